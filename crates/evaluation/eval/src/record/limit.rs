//! What kept a load from being faster.
//!
//! Invariant: what cannot be told is `None`; an end is full by what its processors did, less polling without work.

use std::fmt;

use super::{EndUsage, Point, Run};

/// From this part of its time on a core is full.
const FULL: f64 = 0.9 - 1e-9;
/// From this part of its speed on a link is full: headers take the rest.
const LINK_FULL: f64 = 0.9;

/// What kept a load from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A core of the initiator had no time left.
    Initiator,
    /// One of the target.
    Target,
    /// One of each end, or one that both share.
    BothEnds,
    /// The link carried what it is held to.
    Link,
    /// Neither end was full: so many I/Os in flight, each for so long, are no more.
    Latency,
    /// No more was asked for.
    Rate,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Initiator => "initiator",
            Limit::Target => "target",
            Limit::BothEnds => "both ends",
            Limit::Link => "link",
            Limit::Latency => "latency",
            Limit::Rate => "its rate",
        })
    }
}

/// Whether a core of an end had no time left; `None`: the end polls and does not tell how long it did so idle, or was not
/// looked at.
fn is_full(side: Option<&EndUsage>) -> Option<bool> {
    let side = side.filter(|side| !side.polls_untold)?;
    // On which cores it polled is not told.
    let polled = side.idle_polls.unwrap_or(0.0);
    let all = side.cores.total();
    let mut cores = side.cores.cores.iter().map(|(_, kinds)| (kinds.busy(), kinds.total()));
    let is_full = |(busy, total): (f64, f64)| total > 0.0 && (busy - polled) / total >= FULL;
    (all.total() > 0.0).then(|| is_full((all.busy(), all.total())) || cores.any(is_full))
}

impl Run {
    /// What kept it from being faster; `None`: it is not known.
    pub fn limit(&self, point: &Point) -> Option<Limit> {
        if point.link_bits().is_some_and(|bits| self.bandwidth() * 8.0 >= bits * LINK_FULL) {
            return Some(Limit::Link);
        }
        let target = match point.protocol.as_str() {
            // There is none.
            "local" => Some(false),
            _ => is_full(self.target.as_ref()),
        };
        match (is_full(self.initiator.as_ref()), target) {
            (Some(true), Some(true)) => Some(Limit::BothEnds),
            (Some(true), _) => Some(Limit::Initiator),
            (_, Some(true)) => Some(Limit::Target),
            (Some(false), Some(false)) if point.is_closed => Some(Limit::Latency),
            (Some(false), Some(false)) => Some(Limit::Rate),
            (None, _) | (_, None) => None,
        }
    }
}

impl Point {
    /// What kept most of its runs from being faster; `None`: it is not known, or was now this and now that.
    pub fn limit(&self) -> Option<Limit> {
        let limits: Vec<Limit> = self.runs.iter().filter_map(|run| run.limit(self)).collect();
        let count = |limit: &Limit| limits.iter().filter(|other| *other == limit).count();
        let most = limits.iter().copied().max_by_key(count)?;
        (2 * count(&most) > self.runs.len()).then_some(most)
    }

    /// The speed that its link is held to, in bits per second.
    fn link_bits(&self) -> Option<f64> {
        let limit = self.labels.iter().find(|(name, _)| name == "limit").map(|(_, value)| value)?;
        limit.strip_suffix("Mb/s")?.parse::<f64>().ok().map(|megabits| megabits * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Kinds;
    use crate::record::tests::point;

    /// Sets how busy the second core of an end was.
    fn busy(side: &mut Option<EndUsage>, part: f64) {
        let side = side.as_mut().unwrap();
        side.cores.cores[1].1 = Kinds { user: part, idle: 1.0 - part, ..Kinds::default() };
    }

    fn half_busy() -> Point {
        let mut point = point("blockwire", "randread", 4096, 10_000);
        for run in &mut point.runs {
            busy(&mut run.target, 0.5);
            busy(&mut run.initiator, 0.5);
        }
        point
    }

    #[test]
    fn each_limit_is_told_from_the_others() {
        let still = half_busy();
        assert_eq!(still.limit(), Some(Limit::Latency), "half of either end was used");
        let mut one = still.clone();
        one.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.97));
        assert_eq!(one.limit(), Some(Limit::Initiator));
        one.runs.iter_mut().for_each(|run| busy(&mut run.target, 0.97));
        assert_eq!(one.limit(), Some(Limit::BothEnds));
        one.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.5));
        assert_eq!(one.limit(), Some(Limit::Target));
        let mut paced = still.clone();
        paced.is_closed = false;
        assert_eq!(paced.limit(), Some(Limit::Rate));
        let mut held = still.clone();
        // 10,000 I/Os of 4 KiB are 328 Mb/s.
        held.labels.push(("limit".into(), "350Mb/s".into()));
        assert_eq!(held.limit(), Some(Limit::Link));
        held.labels[0].1 = "1000Mb/s".into();
        assert_eq!(held.limit(), Some(Limit::Latency));
        // Two of three were something else.
        let mut mixed = still.clone();
        busy(&mut mixed.runs[0].target, 0.97);
        assert_eq!(mixed.limit(), Some(Limit::Latency));
        busy(&mut mixed.runs[1].initiator, 0.97);
        assert_eq!(mixed.limit(), None);
    }

    /// A client that polls has no time left at any depth.
    #[test]
    fn who_polls_without_work_is_not_full() {
        let mut polling = half_busy();
        for run in &mut polling.runs {
            busy(&mut run.initiator, 1.0);
            run.initiator.as_mut().unwrap().idle_polls = Some(0.4);
        }
        assert_eq!(polling.limit(), Some(Limit::Latency));
        for run in &mut polling.runs {
            let side = run.initiator.as_mut().unwrap();
            (side.idle_polls, side.polls_untold) = (None, true);
        }
        assert_eq!(polling.limit(), None, "how long it polled idle nobody knows");
        polling.runs.iter_mut().for_each(|run| busy(&mut run.target, 1.0));
        assert_eq!(polling.limit(), Some(Limit::Target));
        polling.runs.iter_mut().for_each(|run| run.target = None);
        assert_eq!(polling.limit(), None);
    }
}
