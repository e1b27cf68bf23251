//! The record of a run: raw figures, and everything needed to judge and repeat them.
//!
//! The JSON form of [`Record`] is documented by its fields and versioned by [`RECORD_SCHEMA_VERSION`]. Invariant: only raw
//! figures are stored; derived ones ([`Point`]'s methods) are computed for display.

mod ceiling;
mod figures;
mod inconsistency;
mod limit;
mod migration;
mod negotiated;
mod validation;
pub mod varied;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu::CpuUsage;
use crate::histogram::Histogram;

pub use figures::{Metric, SmokeTest};
pub use limit::{FullestCore, LoadLimit};
pub use negotiated::Negotiated;
pub use validation::ImplausibleFigure;

/// Version of the form; another number is refused when a record is read.
pub const RECORD_SCHEMA_VERSION: u32 = 1;

/// One evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`RECORD_SCHEMA_VERSION`].
    pub schema: u32,
    /// Which preset, or the name of a job file.
    pub preset: String,
    /// What it is about, in a line.
    pub title: String,
    /// Which paper's figures stand beside it, if any.
    pub paper: Option<String>,
    /// When it began: RFC 3339, UTC.
    pub started: String,
    /// How long all of it took, in seconds.
    pub seconds: f64,
    /// The commands that repeat it.
    pub commands: Vec<String>,
    /// Files that systems were started with, whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configurations: Vec<SystemConfiguration>,
    /// Where it ran.
    pub environment: Vec<Machine>,
    /// What was changed to fit the machine, and what could not be done and why.
    pub notes: Vec<String>,
    /// What it measured.
    pub points: Vec<Point>,
}

/// A file that a system was started with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemConfiguration {
    /// Which system.
    pub system: String,
    /// Its name.
    pub file: String,
    /// All of it.
    pub text: String,
}

/// A machine that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// `target`, `initiator` or both.
    pub role: String,
    /// Name and value: kernel, processor, cores, mitigations, congestion control, MTU, versions …
    pub facts: Vec<(String, String)>,
}

/// One load on one pair of systems, several runs of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The target's name.
    pub target: String,
    /// The initiator's.
    pub initiator: String,
    /// `iscsi`, `nvme-tcp`, `tcp` or `local`.
    pub protocol: String,
    /// fio's word: `randread`, `randwrite`, `randrw` …
    pub rw: String,
    /// Bytes of an I/O.
    ///
    /// 0: of many sizes.
    pub bytes: u64,
    /// I/Os in flight, over all threads; of a fixed job, its users.
    pub depth: u32,
    /// Connections.
    pub connections: u32,
    /// MTU of the link; 65536 on loopback, 0: not known.
    pub mtu: u32,
    /// What else tells this point from others, as `name=value`.
    #[serde(default)]
    pub labels: Vec<(String, String)>,
    /// Whether load was refilled at once (no rate was asked for).
    pub is_closed: bool,
    /// How many units of a fixed job (transactions) each run did: then a run's `seconds` is the time that
    /// all of them took. `None`: the load ran for a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<u64>,
    /// Round of the first steady window's end; `None`: not looked for, or not reached.
    #[serde(default)]
    pub steady_after: Option<usize>,
    /// Its runs, in the order in which they were made.
    pub runs: Vec<Run>,
}

/// One run of a point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Which round it belongs to, from 0; runs of one round were made beside each other. `None`: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// What its offsets follow from; `None`: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// When its figures began to count: RFC 3339, UTC, in milliseconds; `None`: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<String>,
    /// Between which moments its I/Os and its processor time were counted; `None`: not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<CountingWindow>,
    /// What was negotiated for its connections, name and value in the words of the protocol's standard; empty: the
    /// initiator does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negotiated: Vec<(String, String)>,
    /// How far it was after each second; empty: the initiator does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<ProgressMark>,
    /// How long figures counted, in seconds.
    pub seconds: f64,
    /// I/Os that ended well.
    pub ios: u64,
    /// Bytes that they moved.
    pub moved: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Latencies, as the initiator saw them; of a fixed job, those of its units; empty: it does not tell them.
    pub latency: Histogram,
    /// Latency as another tool summed it up; then `latency` holds nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_summary: Option<LatencySummary>,
    /// How much of the time and of the latencies is of full load; `None`: the generator does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refilled: Option<FullLoadPeriod>,
    /// I/Os that were out when figures ceased to count; `None`: the generator does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<OutstandingIos>,
    /// Of a fixed job: mean latency of its I/Os in microseconds, as the initiator's kernel counted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_latency_us: Option<f64>,
    /// The target's machine and process; `None`: could not be looked at.
    #[serde(default)]
    pub target: Option<EndUsage>,
    /// The initiator's.
    #[serde(default)]
    pub initiator: Option<EndUsage>,
    /// Segments that TCP sent again.
    #[serde(default)]
    pub retransmits: Option<u64>,
    /// Packets that the interface counted, both ways.
    #[serde(default)]
    pub packets: Option<u64>,
}

/// Full load, as part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FullLoadPeriod {
    /// How long I/Os that ended were followed by others while figures counted, in seconds.
    pub seconds: f64,
    /// Latency outside of that time, in seconds over all I/Os: before figures counted, of those that were in
    /// flight by then, and after load had ceased.
    pub outside: f64,
}

/// Between which moments I/Os and processor time were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountingWindow {
    /// Both between the same two, which the load generator told as they came.
    Same,
    /// I/Os by the load generator's own clock; processors were looked at when that was expected to begin and, a little
    /// early, to end.
    OwnClock,
}

/// How far a run was at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressMark {
    /// Seconds since its figures began to count.
    pub seconds: f64,
    /// I/Os until then.
    pub ios: u64,
    /// Bytes that they moved.
    pub moved: u64,
}

/// I/Os that were out when figures ceased to count: they are in no count and no latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutstandingIos {
    /// How many.
    pub ios: u64,
    /// How old the oldest was by then, in seconds.
    pub oldest: f64,
}

/// A latency that is known only by these figures, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The longest.
    pub max: f64,
}

/// One end of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndUsage {
    /// The machine's cores. On one machine, both ends share them.
    pub cores: CpuUsage,
    /// Processor seconds of the processes: user, system.
    pub process: (f64, f64),
    /// Resident bytes of the processes at the end.
    pub resident: u64,
    /// Seconds of the above that were of idle polling, where the system tells.
    #[serde(default)]
    pub idle_polls: Option<f64>,
    /// Whether it polls and does not tell for how long: its processors are always in use, whatever it does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub polls_untold: bool,
    /// How many seconds late it was looked at, at most, if that is too late for what was seen to be of the time of
    /// the figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<f64>,
}

impl Run {
    /// I/Os per second.
    pub fn iops(&self) -> f64 {
        if self.seconds > 0.0 { self.ios as f64 / self.seconds } else { 0.0 }
    }

    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        if self.seconds > 0.0 { self.moved as f64 / self.seconds } else { 0.0 }
    }

    /// Mean latency and its standard deviation in nanoseconds; `None`: not known.
    pub fn mean_and_deviation(&self) -> Option<(f64, f64)> {
        match &self.latency_summary {
            _ if self.latency.count() > 0 => Some((self.latency.mean(), self.latency.standard_deviation())),
            Some(summary) => Some((summary.mean, summary.deviation)),
            None => None,
        }
    }
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// The target.
    Target,
    /// The initiator.
    Initiator,
    /// Both, on whatever machines.
    Both,
}

impl Point {
    /// What tells its line in a chart from others: the pair of systems.
    pub fn system_name(&self) -> String {
        let labels: String = self.labels.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        format!("{} / {} ({}){labels}", self.target, self.initiator, self.protocol)
    }

    /// What lay between, in a word or two.
    pub fn link_name(&self) -> String {
        match self.mtu {
            0 => "a network".to_owned(),
            60_001.. => "loopback".to_owned(),
            mtu => format!("MTU {mtu}"),
        }
    }

    /// How noisy its runs were: the spread of IOPS, and the part of time that the hypervisor took.
    pub fn noise(&self) -> (f64, f64) {
        let steal = |run: &Run| {
            let total = run.initiator.as_ref().or(run.target.as_ref())?.cores.total();
            (total.total() > 0.0).then(|| total.steal / total.total())
        };
        let steal = self.runs.iter().filter_map(steal).fold(0.0, f64::max);
        (self.iops().map_or(0.0, |spread| spread.noise()), steal)
    }
}

/// Why a text is no record, or a record cannot be a text.
#[derive(Debug)]
pub enum RecordError {
    /// It is not the JSON of a record.
    Json(serde_json::Error),
    /// It is of another version.
    Version(u32),
    /// It was read and has a figure that cannot be.
    Read(ImplausibleFigure),
    /// It is not written, for the same reason.
    Unwritten(ImplausibleFigure),
    /// It has no JSON.
    NotJson(serde_json::Error),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Json(why) => write!(f, "not a record of an evaluation: {why}"),
            RecordError::Version(version) => {
                write!(f, "this record is of version {version}, and {RECORD_SCHEMA_VERSION} is known here")
            }
            RecordError::Read(why) => write!(f, "not a record of an evaluation: {why}"),
            RecordError::Unwritten(why) => {
                write!(f, "the record is not written, since it could not be read again: {why}")
            }
            RecordError::NotJson(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for RecordError {}

impl Record {
    /// Reads a record.
    ///
    /// # Errors
    /// If it is no record, of another version, or has figures that cannot be.
    pub fn parse(text: &str) -> Result<Record, RecordError> {
        let record: Record = serde_json::from_str(text).map_err(RecordError::Json)?;
        if record.schema != RECORD_SCHEMA_VERSION {
            return Err(RecordError::Version(record.schema));
        }
        record.check_figures().map_err(RecordError::Read)?;
        Ok(record.migrated())
    }

    /// The record as text, which [`parse`](Self::parse) takes.
    ///
    /// # Errors
    /// If it has figures that cannot be: which.
    pub fn to_text(&self) -> Result<String, RecordError> {
        self.check_figures().map_err(RecordError::Unwritten)?;
        serde_json::to_string(self).map_err(RecordError::NotJson)
    }

    /// Whether it says that both ends ran on one machine: of an end alone the other's is not known.
    pub fn is_single_machine(&self) -> bool {
        matches!(&self.environment[..], [one] if one.role != "target" && one.role != "initiator")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cpu::CpuTimes;

    /// A run whose figures agree: `iops` for a second at a depth of 32.
    pub(crate) fn run(iops: u64) -> Run {
        let mut latency = Histogram::default();
        (0..iops).for_each(|at| latency.record(32_000_000_000 / iops + at % 7));
        let kinds = |user| CpuTimes { user, system: user, idle: 1.0 - 2.0 * user, ..CpuTimes::default() };
        let cores = CpuUsage { cores: vec![(0, kinds(0.3)), (1, kinds(0.45))], switches: 10 };
        let side = |used| {
            Some(EndUsage {
                cores: cores.clone(),
                process: (used, used),
                resident: 1 << 20,
                ..EndUsage::default()
            })
        };
        Run {
            round: None,
            seed: None,
            began: None,
            window: None,
            negotiated: Vec::new(),
            series: Vec::new(),
            seconds: 1.0,
            ios: iops,
            moved: iops * 4096,
            errors: 0,
            latency,
            latency_summary: None,
            refilled: None,
            unfinished: None,
            io_latency_us: None,
            target: side(0.25),
            initiator: side(0.5),
            retransmits: Some(0),
            packets: None,
        }
    }

    /// The same load for 20 s in place of one.
    pub(crate) fn long(mut point: Point) -> Point {
        for run in &mut point.runs {
            let second = run.latency.clone();
            (1..20).for_each(|_| run.latency.merge(&second));
            (run.seconds, run.ios, run.moved) = (run.seconds * 20.0, run.ios * 20, run.moved * 20);
            for side in [&mut run.target, &mut run.initiator].into_iter().flatten() {
                side.process = (side.process.0 * 20.0, side.process.1 * 20.0);
                for (_, kinds) in &mut side.cores.cores {
                    (kinds.user, kinds.system) = (kinds.user * 20.0, kinds.system * 20.0);
                    (kinds.softirq, kinds.idle) = (kinds.softirq * 20.0, kinds.idle * 20.0);
                }
            }
        }
        point
    }

    /// Five rounds of 20 s, which count.
    pub(crate) fn five(target: &str, rw: &str, bytes: u64, iops: u64) -> Point {
        let mut point = point(target, rw, bytes, iops);
        let more = point.runs.iter().take(2).cloned().collect::<Vec<_>>();
        point.runs.extend(more);
        long(point)
    }

    #[test]
    fn runs_that_are_too_short_are_a_smoke_test() {
        let mut one = five("blockwire", "randread", 4096, 1_000);
        assert_eq!(one.smoke_test(), None);
        let refilled = |seconds| Some(FullLoadPeriod { seconds, outside: 0.0 });
        one.runs[2].refilled = refilled(17.0);
        assert!(matches!(one.smoke_test(), Some(SmokeTest::Drained(part)) if (part - 0.15).abs() < 1e-9));
        one.runs[2].refilled = refilled(19.0);
        assert_eq!(one.smoke_test(), None);
        // A target that stopped answering 3 s before the end of 20.
        one.runs[2].refilled = refilled(20.0);
        one.runs[2].unfinished = Some(OutstandingIos { ios: 32, oldest: 3.0 });
        assert!(matches!(one.smoke_test(), Some(SmokeTest::Drained(part)) if (part - 0.15).abs() < 1e-9));
        assert_eq!(one.longest_io_us(), Some(3e6));
        one.runs[2].unfinished = Some(OutstandingIos { ios: 32, oldest: 1.0 });
        assert_eq!(one.smoke_test(), None);
        let said = Record { points: vec![one.clone()], ..Record::default() }.inconsistencies().join(" ");
        assert!(
            said.contains("run 3: 32 I/Os were out at the end of its 20 s, the oldest for 1 s"),
            "{said}"
        );
        // In flight, as at any other moment.
        one.runs[2].unfinished = Some(OutstandingIos { ios: 32, oldest: 0.03 });
        assert!(one.runs[2].stalled_ios().is_none());
        one.runs[2].latency = Histogram::default();
        one.runs[2].latency.record(500_000_000);
        assert_eq!(one.smoke_test(), Some(SmokeTest::FewLatencies(40.0)), "20 s of half a second each");
        one.runs[2].seconds = 9.5;
        assert_eq!(one.smoke_test().unwrap().to_string(), "9.5 s of at least 10");
        assert!(point("blockwire", "randread", 4096, 1_000).smoke_test().is_some());
    }

    pub(crate) fn point(target: &str, rw: &str, bytes: u64, iops: u64) -> Point {
        let mut runs = vec![run(iops), run(iops + iops / 50), run(iops - iops / 50)];
        runs.iter_mut().for_each(|run| run.moved = run.ios * bytes);
        Point {
            target: target.into(),
            initiator: "blockwire".into(),
            protocol: "iscsi".into(),
            rw: rw.into(),
            bytes,
            depth: 32,
            connections: 1,
            mtu: 65_536,
            is_closed: true,
            runs,
            ..Point::default()
        }
    }

    #[test]
    fn what_follows_is_computed() {
        let point = point("blockwire", "randread", 4096, 100_000);
        assert_eq!(point.iops().unwrap().median, 100_000.0);
        assert!((point.cpu_per_million(EndKind::Target).unwrap().median - 5.0).abs() < 1e-9);
        assert!((point.cpu_per_million(EndKind::Both).unwrap().median - 15.0).abs() < 1e-9);
        assert!((point.ios_per_cpu_second(EndKind::Target).unwrap().median - 200_000.0).abs() < 1e-6);
        assert!((point.busy_percent(EndKind::Target).unwrap().median - 75.0).abs() < 1e-9);
        assert!((point.effectiveness(EndKind::Initiator).unwrap().median - 100_000.0 / 75.0).abs() < 1e-6);
        assert!(point.runs.iter().all(|run| run.inconsistencies(&point).is_empty()));
    }

    #[test]
    fn a_record_is_read_back_and_another_version_is_not() {
        let points = vec![point("blockwire", "randread", 4096, 10_000)];
        let record =
            Record { schema: RECORD_SCHEMA_VERSION, preset: "quick".into(), points, ..Record::default() };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record);
        assert!(
            Record::parse(&text.replace("\"schema\":1", "\"schema\":9"))
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
        assert!(Record::parse("{}").is_err());
    }

    /// Written before runs had rounds, windows, series and what the end of a load left unanswered.
    #[test]
    fn a_record_of_an_older_program_is_read_and_shown() {
        let record = Record::parse(include_str!("record/version-1.json")).unwrap();
        let point = &record.points[0];
        assert_eq!((record.points.len(), point.runs.len()), (1, 1));
        for run in &point.runs {
            assert!(run.ios > 0 && run.latency.count() > 0 && run.target.is_some());
            assert_eq!((run.round, run.seed, &run.began, run.window), (None, None, &None, None));
            assert!(run.series.is_empty() && run.unfinished.is_none() && run.stalled_ios().is_none());
        }
        let ratio = point.ratio_to(point, Metric::Iops).unwrap();
        assert_eq!(ratio.ratio, 1.0, "its runs go by their places");
        assert!(
            crate::report::render_html(&record).contains("Quick")
                || !crate::report::render_markdown(&record).is_empty()
        );
        // What is written of it is what was read: nothing is added that it did not tell.
        let text = record.to_text().unwrap();
        let fresh =
            ["round", "seed", "began", "window", "series", "unfinished", "configurations", "polls_untold"];
        assert!(fresh.iter().all(|name| !text.contains(&format!("\"{name}\":"))), "{text}");
        assert_eq!(Record::parse(&text).unwrap(), record);
    }
}
