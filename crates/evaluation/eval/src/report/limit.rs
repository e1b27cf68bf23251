//! What limited a load, as its record tells: a processor, the link, the time that an I/O takes, or the rate that was asked
//! for.
//!
//! Invariant: where the processors of an end were not looked at, nothing is said of it.

use std::fmt::Write;

use super::charts::EndSelector;
use super::text::NOT_RECORDED;
use crate::record::{self, FullestCore, Point};

/// What was the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedLimit {
    /// Both ends' processors.
    Both,
    /// The target's processor.
    Target,
    /// The initiator's.
    Initiator,
    /// The speed that the link is held to.
    Link,
    /// The rate that was asked for.
    Rate,
    /// Neither processor was full: I/Os in flight over the latency of one is what there can be.
    Latency,
    /// The record does not tell.
    Untold,
}

/// How busy the fullest core of an end was with work, in words.
fn fullest_core_text(point: &Point, side: EndSelector) -> Option<String> {
    let all: Vec<FullestCore> = point.runs.iter().filter_map(|run| side(run)?.fullest_core()).collect();
    let mean =
        |part: fn(&FullestCore) -> f64| 100.0 * all.iter().map(part).sum::<f64>() / all.len().max(1) as f64;
    let (low, high) = (mean(|one| one.low), mean(|one| one.high));
    (!all.is_empty()).then(|| match low.round() == high.round() {
        true => format!("{high:.0} % busy"),
        // Idle polls are told of all its cores together, or not at all.
        false => format!("{low:.0} to {high:.0} % busy"),
    })
}

impl ReportedLimit {
    /// Of a load.
    pub(super) fn of(point: &Point) -> ReportedLimit {
        match point.limit() {
            Some(record::LoadLimit::BothEnds) => ReportedLimit::Both,
            Some(record::LoadLimit::Target) => ReportedLimit::Target,
            Some(record::LoadLimit::Initiator) => ReportedLimit::Initiator,
            Some(record::LoadLimit::Link) => ReportedLimit::Link,
            Some(record::LoadLimit::Rate) => ReportedLimit::Rate,
            Some(record::LoadLimit::Latency) => ReportedLimit::Latency,
            None => ReportedLimit::Untold,
        }
    }

    /// In a few words.
    pub(super) fn as_text(self) -> &'static str {
        match self {
            ReportedLimit::Both => "the processors of both ends",
            ReportedLimit::Target => "the target's processor",
            ReportedLimit::Initiator => "the initiator's processor",
            ReportedLimit::Link => "the link",
            ReportedLimit::Rate => "the rate that was asked for",
            ReportedLimit::Latency => "the time that one I/O takes (I/Os in flight over latency)",
            ReportedLimit::Untold => NOT_RECORDED,
        }
    }
}

fn fullest_cores(point: &Point) -> [Option<String>; 2] {
    let target: EndSelector = |run| run.target.as_ref();
    let initiator: EndSelector = |run| run.initiator.as_ref();
    [fullest_core_text(point, target), fullest_core_text(point, initiator)]
}

/// What limited a load, with what that was seen by.
pub(super) fn limit_text(point: &Point) -> String {
    let mut text = ReportedLimit::of(point).as_text().to_owned();
    let [target, initiator] = fullest_cores(point);
    let mut seen = String::new();
    for (end, busy) in [("target", target), ("initiator", initiator)] {
        let Some(busy) = busy else { continue };
        let and = if seen.is_empty() { "fullest core of the " } else { ", of the " };
        let _ = write!(seen, "{and}{end} {busy}");
    }
    if !seen.is_empty() {
        let _ = write!(text, " ({seen})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::point;

    fn busy(target: f64, initiator: f64) -> Point {
        let mut one = point("tgt", "randread", 4096, 10_000);
        for run in &mut one.runs {
            for (end, busy) in [(&mut run.target, target), (&mut run.initiator, initiator)] {
                let Some(end) = end else { continue };
                end.cores.cores.truncate(1);
                let kinds = &mut end.cores.cores[0].1;
                (kinds.user, kinds.system, kinds.idle) = (busy, 0.0, 1.0 - busy);
            }
        }
        one
    }

    #[test]
    fn a_full_core_is_the_limit() {
        let of = |target, initiator| ReportedLimit::of(&busy(target, initiator));
        assert_eq!(of(0.95, 0.5), ReportedLimit::Target);
        assert_eq!(of(0.5, 0.95), ReportedLimit::Initiator);
        assert_eq!(of(0.95, 0.95), ReportedLimit::Both);
        assert_eq!(of(0.5, 0.5), ReportedLimit::Latency);
        let said = limit_text(&busy(0.5, 0.95));
        assert_eq!(
            said,
            "the initiator's processor (fullest core of the target 50 % busy, of the initiator 95 % busy)"
        );
    }

    #[test]
    fn a_core_that_polls_in_vain_is_not_full() {
        let mut one = busy(1.0, 0.5);
        for run in &mut one.runs {
            run.target.as_mut().unwrap().idle_polls = Some(0.6);
        }
        assert_eq!(ReportedLimit::of(&one), ReportedLimit::Latency);
        assert!(limit_text(&one).contains("fullest core of the target 40 % busy"), "{}", limit_text(&one));
        for run in &mut one.runs {
            let cores = &mut run.target.as_mut().unwrap().cores.cores;
            cores.push((7, cores[0].1));
        }
        let said = limit_text(&one);
        assert_eq!(
            said,
            "not recorded (fullest core of the target 70 to 100 % busy, of the initiator 50 % busy)"
        );
        one.runs.iter_mut().for_each(|run| run.target.as_mut().unwrap().cores.cores.truncate(1));
        one.is_closed = false;
        assert_eq!(ReportedLimit::of(&one), ReportedLimit::Rate);
    }

    #[test]
    fn of_an_end_that_was_not_seen_nothing_is_said() {
        let mut one = busy(0.5, 0.5);
        one.runs.iter_mut().for_each(|run| run.target = None);
        assert_eq!(limit_text(&one), "not recorded (fullest core of the initiator 50 % busy)");
    }
}
