//! What kept a load from being faster.
//!
//! Invariant: what cannot be told is `None`; an end is full by what its processors did, less polling without work.

use std::fmt;

use super::{EndUsage, Point, Run};
use crate::capacity::header_bytes;
use crate::cpu::CpuTimes;

/// From this part of its time on a core is full.
const FULL_CORE_PART: f64 = 0.9 - 1e-9;
/// From this part of its speed on a link is full: headers take the rest.
const FULL_LINK_PART: f64 = 0.9;

/// What kept a load from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadLimit {
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

impl fmt::Display for LoadLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoadLimit::Initiator => "initiator",
            LoadLimit::Target => "target",
            LoadLimit::BothEnds => "both ends",
            LoadLimit::Link => "link",
            LoadLimit::Latency => "latency",
            LoadLimit::Rate => "its rate",
        })
    }
}

/// How full the fullest core of an end was with work, idle polls left out: it lies between two parts of its time, since on
/// which of several cores an end polled, or for how long, may not be told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullestCore {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

impl EndUsage {
    /// Of its cores; `None`: none was looked at.
    pub fn fullest_core(&self) -> Option<FullestCore> {
        let cores = || self.cores.cores.iter().map(|(_, kinds)| kinds).filter(|kinds| kinds.total() > 0.0);
        let part =
            |kinds: &CpuTimes, polled: f64| ((kinds.busy_time() - polled) / kinds.total()).clamp(0.0, 1.0);
        let most = cores().map(|kinds| part(kinds, 0.0)).reduce(f64::max)?;
        if self.polls_untold {
            return Some(FullestCore { low: 0.0, high: most });
        }
        let polled = self.idle_polls.unwrap_or(0.0).max(0.0);
        let all = self.cores.total();
        // No core did less work than if all polls were its own, and the fullest no less than all on average.
        let low = cores().map(|kinds| part(kinds, polled)).fold(part(&all, polled), f64::max);
        // None did more than if the others had polled whenever they were busy.
        let own = |kinds: &CpuTimes| (polled - (all.busy_time() - kinds.busy_time())).max(0.0);
        let high = cores().map(|kinds| part(kinds, own(kinds))).fold(low, f64::max);
        Some(FullestCore { low, high })
    }
}

/// Whether a core of an end had no time left; `None`: the end was not looked at, or it may have polled idle for as long as
/// makes the difference.
fn has_full_core(side: Option<&EndUsage>) -> Option<bool> {
    let fullest = side?.fullest_core()?;
    match (fullest.low >= FULL_CORE_PART, fullest.high >= FULL_CORE_PART) {
        (true, _) => Some(true),
        (false, false) => Some(false),
        (false, true) => None,
    }
}

impl Run {
    /// Whether the link was full; `None`: it may have been.
    fn fills_link(&self, point: &Point) -> Option<bool> {
        let Some(full) = point.link_bits_per_second().map(|bits| bits * FULL_LINK_PART) else {
            return Some(false);
        };
        let is_mixed = matches!(point.rw.as_str(), "rw" | "randrw" | "readwrite");
        let headers = header_bytes(&point.protocol, point.rw.ends_with("write"), point.bytes as f64);
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
    pub fn limit(&self, point: &Point) -> Option<LoadLimit> {
        let fills_link = self.fills_link(point);
        if fills_link == Some(true) {
            return Some(LoadLimit::Link);
        }
        let target = match point.protocol.as_str() {
            // There is none.
            "local" => Some(false),
            _ => has_full_core(self.target.as_ref()),
        };
        match (has_full_core(self.initiator.as_ref()), target) {
            (Some(true), Some(true)) => Some(LoadLimit::BothEnds),
            (Some(true), _) => Some(LoadLimit::Initiator),
            (_, Some(true)) => Some(LoadLimit::Target),
            (None, _) | (_, None) => None,
            (Some(false), Some(false)) if fills_link.is_none() => None,
            // A stream has no I/Os in flight, and no rate that was asked for.
            (Some(false), Some(false)) if point.protocol == "tcp" => None,
            (Some(false), Some(false)) if point.is_closed => Some(LoadLimit::Latency),
            (Some(false), Some(false)) => Some(LoadLimit::Rate),
        }
    }
}

impl Point {
    /// What kept most of its runs from being faster; `None`: it is not known, or was now this and now that.
    pub fn limit(&self) -> Option<LoadLimit> {
        let limits: Vec<LoadLimit> = self.runs.iter().filter_map(|run| run.limit(self)).collect();
        let count = |limit: &LoadLimit| limits.iter().filter(|other| *other == limit).count();
        let most = limits.iter().copied().max_by_key(count)?;
        (2 * count(&most) > self.runs.len()).then_some(most)
    }

    /// The speed that its link is held to, in bits per second.
    fn link_bits_per_second(&self) -> Option<f64> {
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
        assert_eq!(still.limit(), Some(LoadLimit::Latency), "half of either end was used");
        let mut one = still.clone();
        one.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.97));
        assert_eq!(one.limit(), Some(LoadLimit::Initiator));
        one.runs.iter_mut().for_each(|run| busy(&mut run.target, 0.97));
        assert_eq!(one.limit(), Some(LoadLimit::BothEnds));
        one.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.5));
        assert_eq!(one.limit(), Some(LoadLimit::Target));
        let mut paced = still.clone();
        paced.is_closed = false;
        assert_eq!(paced.limit(), Some(LoadLimit::Rate));
        let mut held = still.clone();
        // 10,000 I/Os of 4 KiB are 328 Mb/s.
        held.labels.push(("limit".into(), "350Mb/s".into()));
        assert_eq!(held.limit(), Some(LoadLimit::Link));
        held.labels[0].1 = "1000Mb/s".into();
        assert_eq!(held.limit(), None, "the rest of the link may have been another's");
        held.labels.push(("with".into(), "nothing".into()));
        assert_eq!(held.limit(), Some(LoadLimit::Latency));
        held.labels[1].1 = "the others".into();
        assert_eq!(held.limit(), None);
        held.runs.iter_mut().for_each(|run| busy(&mut run.target, 0.97));
        assert_eq!(held.limit(), Some(LoadLimit::Target));
        // Two of three were something else.
        let mut mixed = still.clone();
        busy(&mut mixed.runs[0].target, 0.97);
        assert_eq!(mixed.limit(), Some(LoadLimit::Latency));
        busy(&mut mixed.runs[1].initiator, 0.97);
        assert_eq!(mixed.limit(), None);
    }

    /// Of a link that carries nothing else.
    fn alone(point: &Point, limit: &str) -> Option<LoadLimit> {
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
        assert_eq!(alone(&small, "50Mb/s"), Some(LoadLimit::Link));
        let mut mixed = half_busy();
        mixed.rw = "randrw".into();
        // At least half of 328 Mb/s goes one way, at most all.
        assert_eq!(alone(&mixed, "150Mb/s"), Some(LoadLimit::Link));
        assert_eq!(alone(&mixed, "300Mb/s"), None);
        assert_eq!(alone(&mixed, "1000Mb/s"), Some(LoadLimit::Latency));
        for nonsense in ["-1Mb/s", "0Mb/s", "infMb/s", "NaNMb/s", "fast"] {
            assert_eq!(alone(&half_busy(), nonsense), Some(LoadLimit::Latency), "{nonsense}");
        }
    }

    #[test]
    fn a_stream_has_no_rate_that_was_asked_for() {
        let mut stream = half_busy();
        (stream.protocol, stream.rw, stream.is_closed) = ("tcp".into(), "write".into(), false);
        assert_eq!(stream.limit(), None);
        assert_eq!(alone(&stream, "350Mb/s"), Some(LoadLimit::Link));
        stream.runs.iter_mut().for_each(|run| busy(&mut run.initiator, 0.97));
        assert_eq!(stream.limit(), Some(LoadLimit::Initiator));
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
            let fullest = point.runs[0].initiator.as_ref().unwrap().fullest_core().unwrap();
            (point.limit(), (fullest.low * 100.0).round(), (fullest.high * 100.0).round())
        };
        assert_eq!(
            set(&[1.0, 1.0], 0.6),
            (None, 70.0, 100.0),
            "one of the two may have done nothing but work"
        );
        assert_eq!(set(&[1.0, 1.0], 0.05), (Some(LoadLimit::Initiator), 98.0, 100.0));
        assert_eq!(set(&[0.8, 0.5], 0.4), (Some(LoadLimit::Latency), 45.0, 80.0));
        assert_eq!(
            set(&[1.0, 0.1], 0.5),
            (Some(LoadLimit::Latency), 50.0, 60.0),
            "the other cannot have polled so long"
        );
        assert_eq!(set(&[1.0, 0.5], 0.0), (Some(LoadLimit::Initiator), 100.0, 100.0));
        assert_eq!(set(&[1.0], 0.4), (Some(LoadLimit::Latency), 60.0, 60.0));
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
        assert_eq!(polling.limit(), Some(LoadLimit::Latency));
        for run in &mut polling.runs {
            let side = run.initiator.as_mut().unwrap();
            (side.idle_polls, side.polls_untold) = (None, true);
        }
        assert_eq!(polling.limit(), None, "how long it polled idle nobody knows");
        polling.runs.iter_mut().for_each(|run| busy(&mut run.target, 1.0));
        assert_eq!(polling.limit(), Some(LoadLimit::Target));
        polling.runs.iter_mut().for_each(|run| run.target = None);
        assert_eq!(polling.limit(), None);
    }
}
