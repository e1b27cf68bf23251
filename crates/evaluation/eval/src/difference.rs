//! Comparison of two records: which figures of the same load got better or worse, and whether the two are
//! comparable at all.
//!
//! Invariant: only points of the same load are compared, figure by figure over their runs; a point that only
//! one record has is named, never skipped silently.

mod cautions;

use serde::Serialize;

use crate::bootstrap::RoundPairing;
use crate::compare::{self, Comparison, Spread};
use crate::record::{EndKind, Metric, Point, Record};

use cautions::comparison_cautions;

/// A figure that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComparedFigure {
    /// I/Os per second.
    Iops,
    /// Mean latency in microseconds.
    Latency,
    /// 99th percentile of latency in microseconds.
    Latency99,
    /// Processor seconds of the target for a million I/Os.
    TargetCpu,
    /// The initiator's.
    InitiatorCpu,
}

/// All of them, in the order in which they are shown.
pub const FIGURES: [ComparedFigure; 5] = [
    ComparedFigure::Iops,
    ComparedFigure::Latency,
    ComparedFigure::Latency99,
    ComparedFigure::TargetCpu,
    ComparedFigure::InitiatorCpu,
];

impl ComparedFigure {
    /// Its name and unit.
    pub fn name(self) -> &'static str {
        match self {
            ComparedFigure::Iops => "IOPS",
            ComparedFigure::Latency => "mean latency, us",
            ComparedFigure::Latency99 => "p99 latency, us",
            ComparedFigure::TargetCpu => "target CPU, s per million",
            ComparedFigure::InitiatorCpu => "initiator CPU, s per million",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        self == ComparedFigure::Iops
    }

    /// Whether it is processor time.
    fn is_cpu_time(self) -> bool {
        matches!(self, ComparedFigure::TargetCpu | ComparedFigure::InitiatorCpu)
    }

    /// Each run's; runs in which it is not known are left out.
    fn values_of(self, point: &Point) -> Vec<f64> {
        point.figures(match self {
            ComparedFigure::Iops => Metric::Iops,
            ComparedFigure::Latency => Metric::MeanLatency,
            ComparedFigure::Latency99 => Metric::Latency99,
            ComparedFigure::TargetCpu => Metric::CpuPerMillion(EndKind::Target),
            ComparedFigure::InitiatorCpu => Metric::CpuPerMillion(EndKind::Initiator),
        })
    }
}

/// Whether both counted processor time in windows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowMatch {
    /// As far as they tell.
    Alike,
    /// They did not: processor time is not compared.
    Unlike,
    /// One of the two does not tell.
    Untold,
}

impl WindowMatch {
    fn of(one: &Point, two: &Point) -> WindowMatch {
        let is_told = |point: &Point| point.runs.iter().all(|run| run.window.is_some());
        match one.has_same_window(two) {
            false => WindowMatch::Unlike,
            true if is_told(one) != is_told(two) => WindowMatch::Untold,
            true => WindowMatch::Alike,
        }
    }
}

/// What is said of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeVerdict {
    /// Better by more than the gate, and not by chance.
    Better,
    /// Worse by more than the gate, and not by chance.
    Worse,
    /// A real difference, within the gate.
    WithinGate,
    /// A real difference beyond the gate between two runs of one program on one machine that was set up alike: it
    /// is of the machine at that time.
    Drift,
    /// A difference that runs of one system show as well.
    Noise,
    /// A difference beyond the gate, of which there are too few rounds, or too short ones, to tell more.
    Unproven,
}

impl ChangeVerdict {
    /// In a word or two.
    pub fn word(self) -> &'static str {
        match self {
            ChangeVerdict::Better => "better",
            ChangeVerdict::Worse => "WORSE",
            ChangeVerdict::WithinGate => "within the gate",
            ChangeVerdict::Drift => "drift",
            ChangeVerdict::Noise => "noise",
            ChangeVerdict::Unproven => "unproven",
        }
    }
}

/// One figure of one load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureDifference {
    /// Which figure.
    pub what: ComparedFigure,
    /// Of the first record.
    pub first: Spread,
    /// Of the second.
    pub second: Spread,
    /// How they compare.
    pub comparison: Comparison,
    /// What that means.
    pub verdict: ChangeVerdict,
}

/// One load that both records have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadDifference {
    /// The systems and the load, in words.
    pub load: String,
    /// I/Os that failed, in the first and in the second.
    pub errors: (u64, u64),
    /// Whether the runs of one are too short to win anything.
    pub is_smoke_test: bool,
    /// Whether both counted processor time alike.
    pub windows: WindowMatch,
    /// Figures that one of them does not tell, or that they did not count alike, and so are not compared.
    pub untold: Vec<ComparedFigure>,
    /// Its figures.
    pub lines: Vec<FigureDifference>,
}

/// Two records held against each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecordDifference {
    /// Loads that both have.
    pub pairs: Vec<LoadDifference>,
    /// Loads that only the first has.
    pub only_first: Vec<String>,
    /// Loads that only the second has.
    pub only_second: Vec<String>,
    /// Why the comparison may not mean what it seems to.
    pub cautions: Vec<String>,
}

/// The load of a point, without its systems.
fn load_name(point: &Point) -> String {
    let labels: String = point.labels.iter().map(|(name, value)| format!(", {name}={value}")).collect();
    let rate = if point.is_closed { "" } else { ", at a rate" };
    format!(
        "{} {}, {} bytes x {}, {} connections, MTU {}{labels}{rate}",
        point.protocol, point.rw, point.bytes, point.depth, point.connections, point.mtu
    )
}

fn point_name(point: &Point) -> String {
    format!("{} / {}: {}", point.target, point.initiator, load_name(point))
}

impl RecordDifference {
    /// Holds the second against the first. `gate` is the part (0.05: 5 %) beyond which a difference
    /// counts.
    pub fn of(first: &Record, second: &Record, gate: f64) -> RecordDifference {
        let mut all = RecordDifference::default();
        // What there can be at most is no system that could get worse.
        let systems = |record: &'_ Record| -> Vec<Point> {
            record.points.iter().filter(|point| !point.is_ceiling()).cloned().collect()
        };
        let (ours, theirs) = (systems(first), systems(second));
        let mut left: Vec<&Point> = theirs.iter().collect();
        let mut lonely = Vec::new();
        for one in &ours {
            match left.iter().position(|two| point_name(two) == point_name(one)) {
                Some(at) => all.pairs.push(load_difference(point_name(one), one, left.remove(at))),
                None => lonely.push(one),
            }
        }
        // Other systems under the same load, where there is no doubt which is meant.
        for one in lonely {
            let same = |two: &&Point| load_name(two) == load_name(one);
            let is_clear = ours.iter().filter(|two| load_name(two) == load_name(one)).count() == 1
                && left.iter().filter(|two| same(two)).count() == 1;
            match left.iter().position(|two| is_clear && same(two)) {
                Some(at) => {
                    let two = left.remove(at);
                    let name = format!(
                        "{} / {} against {} / {}: {}",
                        two.target,
                        two.initiator,
                        one.target,
                        one.initiator,
                        load_name(one)
                    );
                    all.pairs.push(load_difference(name, one, two));
                }
                None => all.only_first.push(point_name(one)),
            }
        }
        all.only_second = left.into_iter().map(point_name).collect();
        all.judge(gate);
        if cautions::is_one_program(first, second) {
            all.excuse_drift();
        }
        all.cautions = comparison_cautions(first, second, &all);
        all
    }

    /// Says what each figure's difference means, once the chances are corrected for all loads of that figure.
    fn judge(&mut self, gate: f64) {
        for what in FIGURES {
            let lines = self.pairs.iter_mut().flat_map(|pair| &mut pair.lines);
            compare::correct_holm(lines.filter(|line| line.what == what).map(|line| &mut line.comparison));
        }
        for pair in &mut self.pairs {
            for line in &mut pair.lines {
                let loss = line.comparison.relative_loss(line.what.is_more_better());
                line.verdict = match line.comparison.is_significant() {
                    true if loss > gate => ChangeVerdict::Worse,
                    true if loss < -gate && pair.is_smoke_test => ChangeVerdict::Unproven,
                    true if loss < -gate => ChangeVerdict::Better,
                    true => ChangeVerdict::WithinGate,
                    false if line.comparison.has_too_few_runs() && loss.abs() > gate => {
                        ChangeVerdict::Unproven
                    }
                    false => ChangeVerdict::Noise,
                };
            }
        }
    }

    /// One program cannot have got worse than itself: what differs is the machine.
    fn excuse_drift(&mut self) {
        for line in self.pairs.iter_mut().flat_map(|pair| &mut pair.lines) {
            let loss = line.comparison.relative_loss(line.what.is_more_better());
            line.verdict = match line.verdict {
                ChangeVerdict::Worse | ChangeVerdict::Better => ChangeVerdict::Drift,
                ChangeVerdict::Unproven if loss > 0.0 => ChangeVerdict::Noise,
                other => other,
            };
        }
    }

    /// Figures that differ between two runs of one program.
    pub fn drift_count(&self) -> usize {
        let lines = self.pairs.iter().flat_map(|pair| &pair.lines);
        lines.filter(|line| line.verdict == ChangeVerdict::Drift).count()
    }

    /// Figures that may have got worse by more than the gate, of which there are too few rounds to tell.
    pub fn unproven_loss_count(&self) -> usize {
        let lines = self.pairs.iter().flat_map(|pair| &pair.lines);
        let is_loss =
            |line: &&FigureDifference| line.comparison.relative_loss(line.what.is_more_better()) > 0.0;
        lines.filter(|line| line.verdict == ChangeVerdict::Unproven).filter(is_loss).count()
    }

    /// Figures that got worse, and loads in which I/Os fail that did not.
    pub fn worse_count(&self) -> usize {
        let lines = self.pairs.iter().flat_map(|pair| &pair.lines);
        let failing = self.pairs.iter().filter(|pair| pair.errors.0 == 0 && pair.errors.1 > 0);
        lines.filter(|line| line.verdict == ChangeVerdict::Worse).count() + failing.count()
    }
}

fn load_difference(load: String, one: &Point, two: &Point) -> LoadDifference {
    let errors = |point: &Point| point.runs.iter().map(|run| run.errors).sum();
    let windows = WindowMatch::of(one, two);
    let is_alike = |what: &ComparedFigure| !(what.is_cpu_time() && windows == WindowMatch::Unlike);
    let lines = FIGURES.into_iter().filter(is_alike).filter_map(|what| {
        let (first, second) = (what.values_of(one), what.values_of(two));
        let comparison = Comparison::of(&first, &second, RoundPairing::Apart)?;
        let (first, second) = (Spread::of(&first)?, Spread::of(&second)?);
        // Judged when all are known.
        Some(FigureDifference { what, first, second, comparison, verdict: ChangeVerdict::Noise })
    });
    let lines: Vec<FigureDifference> = lines.collect();
    let is_told = |what: &ComparedFigure| !what.values_of(one).is_empty() || !what.values_of(two).is_empty();
    let is_compared = |what: &ComparedFigure| lines.iter().any(|line| line.what == *what);
    let untold = FIGURES.into_iter().filter(|what| is_told(what) && !is_compared(what)).collect();
    let is_smoke_test = one.smoke_test().or(two.smoke_test()).is_some();
    LoadDifference { load, errors: (errors(one), errors(two)), is_smoke_test, windows, untold, lines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{long, point, run};
    use crate::record::{CountingWindow, Machine};

    fn record(iops: &[u64]) -> Record {
        let mut point = point("blockwire", "randread", 4096, 10_000);
        point.runs = iops.iter().map(|iops| run(*iops)).collect();
        Record { preset: "quick".into(), points: vec![long(point)], ..Record::default() }
    }

    fn verdict(difference: &RecordDifference, what: ComparedFigure) -> ChangeVerdict {
        difference.pairs[0].lines.iter().find(|line| line.what == what).unwrap().verdict
    }

    #[test]
    fn a_real_loss_is_worse_and_noise_is_not() {
        let base = record(&[10_000, 10_100, 9_900, 10_050, 9_950]);
        let slow = record(&[9_000, 9_100, 8_900, 9_050, 8_950]);
        let difference = RecordDifference::of(&base, &slow, 0.05);
        assert_eq!(verdict(&difference, ComparedFigure::Iops), ChangeVerdict::Worse);
        assert_eq!(verdict(&difference, ComparedFigure::Latency), ChangeVerdict::Worse);
        assert_eq!(
            verdict(&difference, ComparedFigure::TargetCpu),
            ChangeVerdict::Worse,
            "the same time for fewer I/Os"
        );
        assert!(difference.worse_count() >= 3 && difference.cautions.is_empty(), "{:?}", difference.cautions);
        assert_eq!(RecordDifference::of(&base, &slow, 0.2).worse_count(), 0, "within the gate");
        let better = |base: &Record, fast: &Record| {
            verdict(&RecordDifference::of(base, fast, 0.05), ComparedFigure::Iops)
        };
        assert_eq!(better(&slow, &base), ChangeVerdict::Better);
        // The same figures of runs that are too short win nothing.
        let short = |record: &Record| {
            let mut record = record.clone();
            record.points[0].runs.iter_mut().for_each(|run| {
                (run.seconds, run.ios, run.moved) = (run.seconds / 20.0, run.ios / 20, run.moved / 20);
            });
            record
        };
        assert_eq!(better(&short(&slow), &short(&base)), ChangeVerdict::Unproven);
        assert_eq!(better(&short(&base), &short(&slow)), ChangeVerdict::Worse);
        let same = RecordDifference::of(&base, &record(&[10_020, 9_980, 10_070, 9_940, 10_010]), 0.0);
        assert_eq!((verdict(&same, ComparedFigure::Iops), same.worse_count()), (ChangeVerdict::Noise, 0));
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let mut other = record(&[10_000, 9_000, 10_000]);
        other.points[0].bytes = 8192;
        other.environment = vec![Machine {
            role: "both".into(),
            facts: vec![("processor".into(), "B".into()), ("load".into(), "2".into())],
        }];
        let mut base = record(&[10_000, 10_000, 10_000]);
        base.environment = vec![Machine {
            role: "both".into(),
            facts: vec![("processor".into(), "A".into()), ("load".into(), "1".into())],
        }];
        let difference = RecordDifference::of(&base, &other, 0.05);
        assert!(difference.pairs.is_empty());
        assert_eq!((difference.only_first.len(), difference.only_second.len()), (1, 1));
        let said = difference.cautions.join("\n");
        assert!(said.contains("processor (A; B)") && !said.contains("load ("), "{said}");
    }

    fn with_facts(record: &Record, facts: &[(&str, &str)]) -> Record {
        let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Record { environment: vec![Machine { role: "both".into(), facts }], ..record.clone() }
    }

    /// Their names contain `load` and `clock`, and only one record has the second.
    #[test]
    fn other_offloads_and_another_clock_source_are_told() {
        let base = record(&[10_000; 5]);
        let one = with_facts(&base, &[("offloads of eth0", "tso on"), ("load", "1"), ("clock MHz", "1")]);
        let two = with_facts(
            &base,
            &[("offloads of eth0", "tso off"), ("load", "2"), ("clock MHz", "2"), ("clock source", "tsc")],
        );
        let said = RecordDifference::of(&one, &two, 0.05).cautions.join("\n");
        assert_eq!(
            said,
            "the both is not the same machine or not set up alike: offloads of eth0 (tso on; tso off), clock source (not known; tsc)"
        );
        let said = RecordDifference::of(&two, &one, 0.05).cautions.join("\n");
        assert!(said.contains("clock source (tsc; not known)"), "{said}");
        let said = RecordDifference::of(&base, &one, 0.05).cautions.join("\n");
        assert_eq!(said, "only the second tells of a machine that is the both");
    }

    #[test]
    fn one_program_is_not_worse_than_itself() {
        let (base, slow) = (record(&[10_000; 5]), record(&[7_000; 5]));
        let facts = [("kernel", "6.1"), ("commit", "abc"), ("build", "release")];
        let [one, two] = [&base, &slow].map(|record| with_facts(record, &facts));
        let difference = RecordDifference::of(&one, &two, 0.05);
        assert_eq!((difference.worse_count(), difference.unproven_loss_count()), (0, 0));
        assert!(difference.drift_count() > 0);
        let said = difference.cautions.join("\n");
        assert!(said.contains("one program on one machine") && said.contains("measure both again"), "{said}");
        // Without a commit, with local changes, by another commit or on another kernel it may be the program.
        for facts in [
            &[("kernel", "6.1"), ("build", "release")][..],
            &[("kernel", "6.1"), ("commit", "abc-dirty"), ("build", "release")],
        ] {
            let [one, two] = [&base, &slow].map(|record| with_facts(record, facts));
            assert!(RecordDifference::of(&one, &two, 0.05).worse_count() > 0, "{facts:?}");
        }
        for facts in [[("kernel", "6.1"), ("commit", "def")], [("kernel", "6.2"), ("commit", "abc")]] {
            let two = with_facts(&slow, &[facts[0], facts[1], ("build", "release")]);
            assert!(RecordDifference::of(&one, &two, 0.05).worse_count() > 0, "{facts:?}");
        }
        assert!(
            RecordDifference::of(&base, &slow, 0.05).worse_count() > 0,
            "nothing is known of the programs"
        );
    }

    #[test]
    fn another_commit_is_not_another_machine() {
        let base = record(&[10_000; 5]);
        let one = with_facts(&base, &[("kernel", "6.1"), ("commit", "abc")]);
        let two = with_facts(&base, &[("kernel", "6.1"), ("commit", "def")]);
        let said = RecordDifference::of(&one, &two, 0.05).cautions.join("\n");
        assert_eq!(said, "the both was measured by another program: commit (abc; def)");
    }

    #[test]
    fn processor_time_of_unlike_windows_is_never_a_loss() {
        let (mut base, mut slow) = (record(&[10_000; 5]), record(&[5_000; 5]));
        let all_of = |record: &mut Record, window| {
            record.points[0].runs.iter_mut().for_each(|run| run.window = window);
        };
        let processors = [ComparedFigure::TargetCpu, ComparedFigure::InitiatorCpu];
        let losses = |difference: &RecordDifference| {
            let lines = difference.pairs[0].lines.iter();
            lines.filter(|line| processors.contains(&line.what)).count()
        };
        all_of(&mut base, Some(CountingWindow::Same));
        let difference = RecordDifference::of(&base, &slow, 0.05);
        assert_eq!(losses(&difference), 2);
        let said = difference.cautions.join("\n");
        assert!(said.contains("processor time in 1 of 1 loads: one of the two does not tell"), "{said}");
        all_of(&mut slow, Some(CountingWindow::OwnClock));
        let difference = RecordDifference::of(&base, &slow, 0.05);
        assert_eq!((losses(&difference), &difference.pairs[0].untold[..]), (0, &processors[..]));
        let said = difference.cautions.join("\n");
        assert!(said.contains("in windows of different kinds") && !said.contains("does not tell"), "{said}");
        all_of(&mut slow, Some(CountingWindow::Same));
        let difference = RecordDifference::of(&base, &slow, 0.05);
        assert_eq!((losses(&difference), difference.cautions.len()), (2, 0));
    }

    #[test]
    fn three_runs_are_too_few_and_say_so() {
        let base = record(&[10_000, 10_100, 9_900]);
        let slow = record(&[8_000, 8_100, 7_900]);
        let difference = RecordDifference::of(&base, &slow, 0.05);
        assert!(difference.cautions[0].contains("too few runs: 3 and 3"), "{:?}", difference.cautions);
        assert_eq!(
            verdict(&difference, ComparedFigure::Iops),
            ChangeVerdict::Unproven,
            "it comes in a tenth of all cases by chance"
        );
        assert_eq!(difference.worse_count(), 0);
        assert!(difference.unproven_loss_count() >= 3);
        assert_eq!(RecordDifference::of(&slow, &base, 0.05).unproven_loss_count(), 0, "gains are no losses");
    }

    #[test]
    fn other_systems_under_one_load_are_held_against_each_other() {
        let base = record(&[10_000; 4]);
        let mut other = record(&[20_000; 4]);
        other.points[0].target = "tgt".into();
        let difference = RecordDifference::of(&base, &other, 0.05);
        assert!(difference.pairs[0].load.starts_with("tgt / blockwire against blockwire / blockwire"));
        // With a second candidate it is not clear which is meant.
        other.points.push(Point { target: "istgt".into(), ..other.points[0].clone() });
        assert!(RecordDifference::of(&base, &other, 0.05).pairs.is_empty());
    }

    /// It was left out without a word: a gate on it passed because nobody had looked.
    #[test]
    fn a_figure_that_one_does_not_tell_is_never_skipped_in_silence() {
        let base = record(&[10_000; 4]);
        let mut blind = base.clone();
        blind.points[0].runs.iter_mut().for_each(|run| run.target = None);
        for (first, second) in [(&base, &blind), (&blind, &base)] {
            let difference = RecordDifference::of(first, second, 0.05);
            assert_eq!(difference.pairs[0].untold, [ComparedFigure::TargetCpu]);
            let said = difference.cautions.join("\n");
            assert!(said.contains("target CPU, s per million: not compared in 1 of 1 loads"), "{said}");
        }
        assert_eq!(RecordDifference::of(&blind, &blind, 0.05).pairs[0].untold, []);
    }

    #[test]
    fn new_errors_are_worse() {
        let base = record(&[10_000; 4]);
        let mut failing = base.clone();
        failing.points[0].runs[0].errors = 3;
        assert_eq!(RecordDifference::of(&base, &failing, 0.05).worse_count(), 1);
        assert_eq!(RecordDifference::of(&failing, &base, 0.05).worse_count(), 0);
    }
}
