//! What kept a load from being faster.
//!
//! Invariant: what cannot be told is `None`; an end is full by what its processors did, less polling without work.

use std::fmt;

use super::{EndUsage, Point, Run};
use crate::capacity::headers;
use crate::cpu::CpuTimes;

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

/// How full the fullest core of an end was with work, idle polls left out: it lies between two parts of its time, since on
/// which of several cores an end polled, or for how long, may not be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullest {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

impl EndUsage {
    /// Of its cores; `None`: none was looked at.
    pub fn fullest(&self) -> Option<Fullest> {
        let cores = || self.cores.cores.iter().map(|(_, kinds)| kinds).filter(|kinds| kinds.total() > 0.0);
        let part = |kinds: &CpuTimes, polled: f64| ((kinds.busy() - polled) / kinds.total()).clamp(0.0, 1.0);
        let most = cores().map(|kinds| part(kinds, 0.0)).reduce(f64::max)?;
        if self.polls_untold {
            return Some(Fullest { low: 0.0, high: most });
        }
        let polled = self.idle_polls.unwrap_or(0.0).max(0.0);
        let all = self.cores.total();
        // No core did less work than if all polls were its own, and the fullest no less than all on average.
        let low = cores().map(|kinds| part(kinds, polled)).fold(part(&all, polled), f64::max);
        // None did more than if the others had polled whenever they were busy.
        let own = |kinds: &CpuTimes| (polled - (all.busy() - kinds.busy())).max(0.0);
        let high = cores().map(|kinds| part(kinds, own(kinds))).fold(low, f64::max);
        Some(Fullest { low, high })
    }
}

/// Whether a core of an end had no time left; `None`: the end was not looked at, or it may have polled idle for as long as
/// makes the difference.
fn is_full(side: Option<&EndUsage>) -> Option<bool> {
    let fullest = side?.fullest()?;
    match (fullest.low >= FULL, fullest.high >= FULL) {
        (true, _) => Some(true),
        (false, false) => Some(false),
        (false, true) => None,
    }
}

impl Run {
    /// Whether the link was full; `None`: it may have been.
    fn fills_link(&self, point: &Point) -> Option<bool> {
        let Some(full) = point.link_bits().map(|bits| bits * LINK_FULL) else { return Some(false) };
        let is_mixed = matches!(point.rw.as_str(), "rw" | "randrw" | "readwrite");
        let headers = headers(&point.protocol, point.rw.ends_with("write"), point.bytes as f64);
        let most = 8.0 * (self.bandwidth() + self.iops() * headers);
        // Both directions of a link are carried at once. At least half of what was moved went one way.
        let least = if is_mixed { most / 2.0 } else { most };
        match (least >= full, most >= full || point.shares_link()) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }

    /// What kept it from being faster; `None`: it is not known.
    pub fn limit(&self, point: &Point) -> Option<Limit> {
        let fills_link = self.fills_link(point);
        if fills_link == Some(true) {
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
            (None, _) | (_, None) => None,
            (Some(false), Some(false)) if fills_link.is_none() => None,
            // A stream has no I/Os in flight, and no rate that was asked for.
            (Some(false), Some(false)) if point.protocol == "tcp" => None,
            (Some(false), Some(false)) if point.is_closed => Some(Limit::Latency),
            (Some(false), Some(false)) => Some(Limit::Rate),
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
        let megabits = limit.strip_suffix("Mb/s")?.parse::<f64>().ok()?;
        Some(megabits * 1e6).filter(|bits| bits.is_finite() && *bits > 0.0)
    }

    /// Whether its link may carry more than it: loads beside it, or traffic that congests the link, of which the record
    /// does not tell. Only a load that is labelled as alone is known to be.
    fn shares_link(&self) -> bool {
        !self.labels.iter().any(|(name, value)| name == "with" && value == "nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    /// Sets how busy the second core of an end was.
    fn busy(side: &mut Option<EndUsage>, part: f64) {
        let side = side.as_mut().unwrap();
        side.cores.cores[1].1 = CpuTimes { user: part, idle: 1.0 - part, ..CpuTimes::default() };
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
        assert_eq!(held.limit(), None, "the rest of the link may have been another's");
        held.labels.push(("with".into(), "nothing".into()));
        assert_eq!(held.limit(), Some(Limit::Latency));
        held.labels[1].1 = "the others".into();
        assert_eq!(held.limit(), None);
        held.runs.iter_mut().for_each(|run| busy(&mut run.target, 0.97));
        assert_eq!(held.limit(), Some(Limit::Target));
        // Two of three were something else.
        let mut mixed = still.clone();
        busy(&mut mixed.runs[0].target, 0.97);
        assert_eq!(mixed.limit(), Some(Limit::Latency));
        busy(&mut mixed.runs[1].initiator, 0.97);
        assert_eq!(mixed.limit(), None);
    }

    /// Of a link that carries nothing else.
    fn alone(point: &Point, limit: &str) -> Option<Limit> {
        let labels = [("limit", limit), ("with", "nothing")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Point { labels: labels.into(), ..point.clone() }.limit()
    }

    #[test]
    fn a_link_is_full_in_one_direction_with_its_headers() {
        let mut small = half_busy();
        small.bytes = 512;
        small.runs.iter_mut().for_each(|run| run.moved = run.ios * 512);
        // 41 Mb/s, and 48 with headers.
        assert_eq!(alone(&small, "50Mb/s"), Some(Limit::Link));
        let mut mixed = half_busy();
        mixed.rw = "randrw".into();
        // At least half of 328 Mb/s goes one way, at most all.
        assert_eq!(alone(&mixed, "150Mb/s"), Some(Limit::Link));
        assert_eq!(alone(&mixed, "300Mb/s"), None);
        assert_eq!(alone(&mixed, "1000Mb/s"), Some(Limit::Latency));
        for nonsense in ["-1Mb/s", "0Mb/s", "infMb/s", "NaNMb/s", "fast"] {
            assert_eq!(alone(&half_busy(), nonsense), Some(Limit::Latency), "{nonsense}");
        }
    }

    #[test]
    fn a_stream_has_no_rate_that_was_asked_for() {
        let mut stream = half_busy();
        (stream.protocol, stream.rw, stream.is_closed) = ("tcp".into(), "write".into(), false);
        assert_eq!(stream.limit(), None);
        assert_eq!(alone(&stream, "350Mb/s"), Some(Limit::Link));
        stream.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.97));
        assert_eq!(stream.limit(), Some(Limit::Initiator));
    }

    /// The polls of all cores were taken from each: a core full of work beside one that polls looked half empty.
    #[test]
    fn idle_polls_of_other_cores_hide_no_full_core() {
        let mut point = half_busy();
        let mut set = |parts: &[f64], polled: f64| {
            for run in &mut point.runs {
                let side = run.initiator.as_mut().unwrap();
                let kinds = |part: f64| CpuTimes { user: part, idle: 1.0 - part, ..CpuTimes::default() };
                side.cores.cores = (0..).zip(parts.iter().copied().map(kinds)).collect();
                side.idle_polls = Some(polled);
            }
            let fullest = point.runs[0].initiator.as_ref().unwrap().fullest().unwrap();
            (point.limit(), (fullest.low * 100.0).round(), (fullest.high * 100.0).round())
        };
        assert_eq!(
            set(&[1.0, 1.0], 0.6),
            (None, 70.0, 100.0),
            "one of the two may have done nothing but work"
        );
        assert_eq!(set(&[1.0, 1.0], 0.05), (Some(Limit::Initiator), 98.0, 100.0));
        assert_eq!(set(&[0.8, 0.5], 0.4), (Some(Limit::Latency), 45.0, 80.0));
        assert_eq!(
            set(&[1.0, 0.1], 0.5),
            (Some(Limit::Latency), 50.0, 60.0),
            "the other cannot have polled so long"
        );
        assert_eq!(set(&[1.0, 0.5], 0.0), (Some(Limit::Initiator), 100.0, 100.0));
        assert_eq!(set(&[1.0], 0.4), (Some(Limit::Latency), 60.0, 60.0));
    }

    /// A client that polls has no time left at any depth.
    #[test]
    fn who_polls_without_work_is_not_full() {
        let mut polling = half_busy();
        for run in &mut polling.runs {
            busy(&mut run.initiator, 1.0);
            run.initiator.as_mut().unwrap().cores.cores.remove(0);
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
