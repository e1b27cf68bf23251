//! Figures derived from the runs of a load: figures of each run, their spread over rounds, and ratios to
//! another load's.
//!
//! Invariant: a value that a run does not report is absent, not zero; a percentile is of all runs' latencies
//! together.

use super::{EndKind, EndUsage, OutstandingIos, Point, Run};
use crate::Histogram;
use crate::bootstrap::{Ratio, RoundPairing};
use crate::compare::{Comparison, Spread};
use crate::derived;

/// Seconds for which figures count at least.
const COUNTED_SECONDS_MIN: f64 = 10.0;
/// Mean latencies that a run lasts at least: of fewer its begin and its end are too much.
const MEAN_LATENCIES_MIN: f64 = 50.0;
/// Most of a run's time in which load was not refilled, or that the oldest I/O was out for when it ended, as part of all.
const DRAIN_PART_MAX: f64 = 0.1;
/// Least age of an I/O that is out at the end to be called a stall, as part of a run's time.
const STALL_PART_MIN: f64 = 0.01;

/// Why a load's runs are a smoke test: they show that it works, and win nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SmokeTest {
    /// A run lasted for so many seconds.
    Short(f64),
    /// A run lasted for so many mean latencies.
    FewLatencies(f64),
    /// So large a part of a run's time was its end, in which nothing was refilled, or an I/O was not answered.
    Drained(f64),
}

impl std::fmt::Display for SmokeTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SmokeTest::Short(seconds) => {
                write!(
                    f,
                    "{} s of at least {COUNTED_SECONDS_MIN}",
                    crate::figure_range::format_short(*seconds)
                )
            }
            SmokeTest::FewLatencies(count) => {
                write!(f, "{count:.0} mean latencies of at least {MEAN_LATENCIES_MIN}")
            }
            SmokeTest::Drained(part) => {
                write!(
                    f,
                    "for the last {:.0} % of a run's time load drained or was not answered",
                    part * 100.0
                )
            }
        }
    }
}

/// A figure that each run has, or does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// I/Os per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Mean latency in microseconds.
    MeanLatency,
    /// Standard deviation of latency in microseconds.
    Jitter,
    /// 99th percentile of latency in microseconds, of each run for itself: for tests over runs alone.
    Latency99,
    /// How busy one end's machine was, in percent of all its cores.
    Busy(EndKind),
    /// Processor effectiveness of one end: IOPS for each percent of all its machine's cores.
    Effectiveness(EndKind),
    /// Processor seconds of the processes for a million I/Os.
    CpuPerMillion(EndKind),
    /// I/Os for each processor second of the processes.
    PerCore(EndKind),
    /// Seconds that a fixed job took.
    Finish,
    /// Mean latency of a fixed job's I/Os in microseconds, as the initiator's kernel counted it.
    IoLatency,
}

impl Run {
    /// A figure of this run.
    pub fn figure(&self, metric: Metric) -> Option<f64> {
        let side = |end| match end {
            EndKind::Target => self.target.as_ref(),
            EndKind::Initiator | EndKind::Both => self.initiator.as_ref(),
        };
        let busy = |end| {
            let total = side(end)?.cores.total();
            (total.total() > 0.0).then(|| total.busy_percent())
        };
        match metric {
            Metric::Iops => Some(self.iops()),
            Metric::Bandwidth => Some(self.bandwidth()),
            Metric::MeanLatency => Some(self.mean_and_deviation()?.0 / 1e3),
            Metric::Jitter => Some(self.mean_and_deviation()?.1 / 1e3),
            Metric::Latency99 => self.latency.reliable_percentile(99.0).map(|ns| ns as f64 / 1e3),
            Metric::Busy(end) => busy(end),
            Metric::Effectiveness(end) => derived::iops_per_cpu_percent(self.iops(), busy(end)?),
            Metric::CpuPerMillion(end) => {
                let used =
                    |side: &Option<EndUsage>| side.as_ref().map(|side| side.process.0 + side.process.1);
                let used = match end {
                    EndKind::Target => used(&self.target)?,
                    EndKind::Initiator => used(&self.initiator)?,
                    EndKind::Both => used(&self.target)? + used(&self.initiator)?,
                };
                derived::cpu_per_million(self.iops(), used / self.seconds)
            }
            Metric::PerCore(end) => self
                .figure(Metric::CpuPerMillion(end))
                .filter(|seconds| *seconds > 0.0)
                .map(|seconds| 1e6 / seconds),
            Metric::Finish => Some(self.seconds),
            Metric::IoLatency => self.io_latency_us,
        }
    }
}

impl Run {
    /// I/Os that were out at its end and older than any that ended; `None`: there was no such stall, or it is not told.
    pub fn stalled_ios(&self) -> Option<OutstandingIos> {
        let longest = self.longest_ended_ns()? / 1e9;
        self.unfinished.filter(|left| left.oldest > longest.max(self.seconds * STALL_PART_MIN))
    }

    /// The longest latency of an I/O that ended, in nanoseconds.
    fn longest_ended_ns(&self) -> Option<f64> {
        match &self.latency_summary {
            _ if self.latency.count() > 0 => Some(self.latency.max() as f64),
            summary => summary.map(|summary| summary.max),
        }
    }
}

impl Point {
    /// What its volumes are made of, where that tells points of an experiment apart.
    pub(crate) fn volume_label(&self) -> Option<&str> {
        self.labels.iter().find(|(name, _)| name == "volume").map(|(_, value)| value.as_str())
    }

    /// The longest that an I/O was seen to take in any run, in microseconds: until it ended, or until the run did.
    pub fn longest_io_us(&self) -> Option<f64> {
        let longest = |run: &Run| {
            let left = run.unfinished.map_or(0.0, |left| left.oldest * 1e9);
            Some(run.longest_ended_ns()?.max(left) / 1e3)
        };
        self.runs.iter().filter_map(longest).reduce(f64::max)
    }

    /// A figure of each run that tells it.
    pub fn figures(&self, metric: Metric) -> Vec<f64> {
        self.runs.iter().filter_map(|run| self.figure(run, metric)).collect()
    }

    /// Only of a fixed job is the time a figure.
    fn figure(&self, run: &Run, metric: Metric) -> Option<f64> {
        let is_known = metric != Metric::Finish || self.work.is_some();
        run.figure(metric).filter(|_| is_known)
    }

    /// Runs of another load, each with the run of this one that was made beside it: in the same round, or, where rounds
    /// are not told and both have as many runs, in the same place. `None`: which belong together is not known.
    fn paired_runs<'a>(&'a self, base: &'a Point) -> Option<Vec<(&'a Run, &'a Run)>> {
        let rounds = |point: &Point| {
            let mut rounds = point.runs.iter().map(|run| run.round).collect::<Option<Vec<u32>>>()?;
            rounds.sort_unstable();
            // Of a round that was made twice nobody can tell which is meant.
            (!rounds.windows(2).any(|pair| pair.first() == pair.last())).then_some(rounds)
        };
        if rounds(base).is_some() && rounds(self).is_some() {
            let same =
                |one: &'a Run| self.runs.iter().find(|two| two.round == one.round).map(|two| (one, two));
            return Some(base.runs.iter().filter_map(same).collect());
        }
        let is_untold = [base, self].iter().all(|point| point.runs.iter().all(|run| run.round.is_none()));
        (is_untold && base.runs.len() == self.runs.len()).then(|| base.runs.iter().zip(&self.runs).collect())
    }

    /// Figures of another load and of this one, and how they belong together. What one run of a pair does not tell
    /// takes the other's with it. Processor time that was counted in windows of different kinds is not held together.
    pub(crate) fn paired_figures(&self, base: &Point, metric: Metric) -> (Vec<f64>, Vec<f64>, RoundPairing) {
        let is_processor = match metric {
            Metric::Busy(_) | Metric::Effectiveness(_) | Metric::CpuPerMillion(_) | Metric::PerCore(_) => {
                true
            }
            Metric::Iops
            | Metric::Bandwidth
            | Metric::MeanLatency
            | Metric::Jitter
            | Metric::Latency99
            | Metric::Finish
            | Metric::IoLatency => false,
        };
        if is_processor && !self.has_same_window(base) {
            return (Vec::new(), Vec::new(), RoundPairing::Apart);
        }
        let Some(pairs) = self.paired_runs(base) else {
            return (base.figures(metric), self.figures(metric), RoundPairing::Apart);
        };
        let told = pairs
            .into_iter()
            .filter_map(|(one, two)| Some((base.figure(one, metric)?, self.figure(two, metric)?)));
        let (first, second) = told.unzip();
        (first, second, RoundPairing::Paired)
    }

    /// Whether all runs of both whose window is told have windows of one kind.
    pub(crate) fn has_same_window(&self, other: &Point) -> bool {
        let mut kinds = self.runs.iter().chain(&other.runs).filter_map(|run| run.window);
        kinds.next().is_none_or(|first| kinds.all(|kind| kind == first))
    }

    /// How its figure compares with that of another load, round by round.
    pub fn compared_to(&self, base: &Point, metric: Metric) -> Option<Comparison> {
        let (first, second, rounds) = self.paired_figures(base, metric);
        Comparison::of(&first, &second, rounds)
    }

    fn spread(&self, metric: Metric) -> Option<Spread> {
        Spread::of(&self.figures(metric))
    }

    /// Why its runs are too short to count; `None`: they count.
    pub fn smoke_test(&self) -> Option<SmokeTest> {
        self.runs.iter().find_map(|run| {
            // What is timed of a fixed job is all of it.
            let drain = run.refilled.filter(|_| self.work.is_none() && self.is_closed);
            let drained = drain.map_or(0.0, |refilled| 1.0 - refilled.seconds / run.seconds);
            let drained = run.unfinished.map_or(drained, |left| drained.max(left.oldest / run.seconds));
            let latency = run.mean_and_deviation().map_or(0.0, |(mean, _)| mean / 1e9);
            match () {
                () if run.seconds < COUNTED_SECONDS_MIN => Some(SmokeTest::Short(run.seconds)),
                () if run.seconds < MEAN_LATENCIES_MIN * latency => {
                    Some(SmokeTest::FewLatencies(run.seconds / latency))
                }
                () if drained > DRAIN_PART_MAX => Some(SmokeTest::Drained(drained)),
                () => None,
            }
        })
    }

    /// Its figure over that of another load, round by round.
    pub fn ratio_to(&self, base: &Point, metric: Metric) -> Option<Ratio> {
        let (first, second, rounds) = self.paired_figures(base, metric);
        Ratio::of(&first, &second, rounds)
    }

    /// Its percentile of latency over that of another load.
    pub fn percentile_ratio_to(&self, base: &Point, percent: f64) -> Option<Ratio> {
        let told = |run: &Run| run.latency.count() > 0;
        let all = |point: &'_ Point| point.runs.iter().filter(|run| told(run)).cloned().collect::<Vec<Run>>();
        let (runs, rounds) = match self.paired_runs(base) {
            Some(pairs) => {
                let pairs = pairs.into_iter().filter(|(one, two)| told(one) && told(two));
                (pairs.map(|(one, two)| (one.clone(), two.clone())).unzip(), RoundPairing::Paired)
            }
            None => ((all(base), all(self)), RoundPairing::Apart),
        };
        let latencies =
            |runs: &'_ [Run]| runs.iter().map(|run| run.latency.clone()).collect::<Vec<Histogram>>();
        let (first, second) = (latencies(&runs.0), latencies(&runs.1));
        let (first, second): (Vec<&Histogram>, Vec<&Histogram>) =
            (first.iter().collect(), second.iter().collect());
        Ratio::of_percentile(&first, &second, percent, rounds)
    }

    /// Seconds that its fixed job took.
    pub fn finish_seconds(&self) -> Option<Spread> {
        self.spread(Metric::Finish)
    }

    /// Mean latency of its fixed job's I/Os in microseconds, as the initiator's kernel counted it.
    pub fn kernel_io_latency(&self) -> Option<Spread> {
        self.spread(Metric::IoLatency)
    }

    /// I/Os per second.
    pub fn iops(&self) -> Option<Spread> {
        self.spread(Metric::Iops)
    }

    /// Bytes per second.
    pub fn bandwidth(&self) -> Option<Spread> {
        self.spread(Metric::Bandwidth)
    }

    /// A percentile of all runs' latencies together, in microseconds; `None`: not told, or too few lie beyond it.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        self.latency_histogram().reliable_percentile(percent).map(|ns| ns as f64 / 1e3)
    }

    /// Mean latency in microseconds.
    pub fn mean_latency(&self) -> Option<Spread> {
        self.spread(Metric::MeanLatency)
    }

    /// Standard deviation of latency in microseconds.
    pub fn jitter(&self) -> Option<Spread> {
        self.spread(Metric::Jitter)
    }

    /// All runs' latencies in one.
    pub fn latency_histogram(&self) -> Histogram {
        let mut all = Histogram::default();
        self.runs.iter().for_each(|run| all.merge(&run.latency));
        all
    }

    /// Processor seconds of the processes for a million I/Os.
    pub fn cpu_per_million(&self, end: EndKind) -> Option<Spread> {
        self.spread(Metric::CpuPerMillion(end))
    }

    /// I/Os for each processor second of the processes.
    pub fn ios_per_cpu_second(&self, end: EndKind) -> Option<Spread> {
        self.spread(Metric::PerCore(end))
    }

    /// How busy one end's machine was, in percent of all its cores.
    pub fn busy_percent(&self, end: EndKind) -> Option<Spread> {
        self.spread(Metric::Busy(end))
    }

    /// Processor effectiveness of one end: IOPS for each percent of all its machine's cores.
    pub fn effectiveness(&self, end: EndKind) -> Option<Spread> {
        self.spread(Metric::Effectiveness(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{CountingWindow, tests::five};

    /// Five rounds in which both systems are slow together, so that their ratio is the same in each.
    fn rounds(target: &str, part: u64) -> Point {
        let mut point = five(target, "randread", 4096, 1_000);
        for (round, run) in (0u32..).zip(&mut point.runs) {
            (run.round, run.ios) = (Some(round), (10_000 + 7_000 * u64::from(round)) * part);
        }
        point
    }

    #[test]
    fn rounds_are_paired_by_their_numbers() {
        let (base, mut fast) = (rounds("tgt", 1), rounds("blockwire", 2));
        fast.runs.reverse();
        let ratio = fast.ratio_to(&base, Metric::Iops).unwrap();
        assert!(ratio.is_above(1.99) && ratio.is_below(2.01), "{ratio:?}");
        assert_eq!(fast.compared_to(&base, Metric::Iops).unwrap().ratio, ratio);
        // Without numbers they would be held together by their places.
        let untold = |point: &Point| {
            let mut point = point.clone();
            point.runs.iter_mut().for_each(|run| run.round = None);
            point
        };
        assert!(!untold(&fast).ratio_to(&untold(&base), Metric::Iops).unwrap().is_above(1.99));
    }

    /// A round that one side did not make, or does not tell, shifted all that came behind it.
    #[test]
    fn a_round_that_one_side_does_not_tell_never_shifts_the_others() {
        let more = |target, part| {
            let mut point = rounds(target, part);
            let mut sixth = point.runs[0].clone();
            (sixth.round, sixth.ios) = (Some(5), 90_000 * part);
            point.runs.push(sixth);
            point
        };
        let (mut base, fast) = (more("tgt", 1), more("blockwire", 2));
        base.runs.remove(1);
        let ratio = fast.ratio_to(&base, Metric::Iops).unwrap();
        assert!(ratio.is_above(1.99) && ratio.is_below(2.01), "{ratio:?}");
        let (base, mut fast) = (more("tgt", 1), more("blockwire", 1));
        for run in &mut fast.runs {
            let side = run.target.as_mut().unwrap();
            side.process = (side.process.0 * 2.0, side.process.1 * 2.0);
        }
        fast.runs[2].target = None;
        let ratio = fast.ratio_to(&base, Metric::CpuPerMillion(EndKind::Target)).unwrap();
        assert!(ratio.is_above(1.99) && ratio.is_below(2.01), "{ratio:?}");
        fast.runs[2].latency = Histogram::default();
        assert!(fast.percentile_ratio_to(&base, 99.0).unwrap().interval.is_some());
        // A round that is there twice is no round of anything.
        let mut twice = rounds("blockwire", 2);
        twice.runs[3].round = Some(2);
        let apart = twice.ratio_to(&rounds("tgt", 1), Metric::Iops).unwrap();
        assert!(!apart.is_above(1.99), "{apart:?}");
    }

    #[test]
    fn processor_time_of_unlike_windows_is_never_held_together() {
        let (mut base, mut fast) = (rounds("tgt", 1), rounds("blockwire", 2));
        let cpu = Metric::CpuPerMillion(EndKind::Target);
        base.runs.iter_mut().for_each(|run| run.window = Some(CountingWindow::OwnClock));
        assert!(fast.ratio_to(&base, cpu).is_some(), "of an older record it is not known");
        fast.runs.iter_mut().for_each(|run| run.window = Some(CountingWindow::Same));
        assert_eq!((fast.ratio_to(&base, cpu), fast.compared_to(&base, cpu)), (None, None));
        assert!(fast.ratio_to(&base, Metric::Iops).is_some());
        fast.runs.iter_mut().for_each(|run| run.window = Some(CountingWindow::OwnClock));
        assert!(fast.ratio_to(&base, cpu).is_some());
    }
}
