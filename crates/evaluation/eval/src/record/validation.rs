//! Valid figures of a record. A record may come from any file, or from another tool's figures; reports,
//! comparisons and charts then use it without further checks.
//!
//! Invariant: records that were read or written passed [`Record::check_figures`]: every figure is finite and not
//! negative, and none is so large or so small that a computed figure would not be.

use std::fmt;

use super::{EndUsage, Point, Record, Run};

/// Most of any time, in seconds: 30,000 years.
const SECONDS_MAX: f64 = 1e12;
/// Least of a run that has figures, in seconds: a nanosecond.
const SECONDS_MIN: f64 = 1e-9;
/// Most nanoseconds of one latency: those that 64 bits hold.
const NANOSECONDS_MAX: f64 = u64::MAX as f64;
/// Most of any count, bytes included: 64 PiB. Two hundred runs' are counted together without loss.
const COUNT_MAX: u64 = 1 << 56;
/// Most seconds of a run of which each is kept: a week's.
const SERIES_MAX: usize = 604_800;
/// Most runs of all points: their counts are summed up in 64 bits.
const RUNS_MAX: usize = 200;

/// A figure that cannot be: its name, with the load and the run that it is of, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImplausibleFigure {
    /// Where in the record, from the outside: `load 1`, `run 2`.
    places: Vec<String>,
    /// Which figure, and what it can be.
    text: String,
}

impl ImplausibleFigure {
    fn new(text: String) -> ImplausibleFigure {
        ImplausibleFigure { places: Vec::new(), text }
    }

    fn in_place(mut self, place: impl Into<String>) -> ImplausibleFigure {
        self.places.insert(0, place.into());
        self
    }
}

impl fmt::Display for ImplausibleFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.places.iter().try_for_each(|place| write!(f, "{place}: "))?;
        f.write_str(&self.text)
    }
}

impl std::error::Error for ImplausibleFigure {}

fn figure(name: &str, value: f64, most: f64) -> Result<(), ImplausibleFigure> {
    if value.is_finite() && (0.0..=most).contains(&value) {
        return Ok(());
    }
    Err(ImplausibleFigure::new(format!("{name} is {value:e}, and from 0 to {most:e} can be")))
}

fn check_optional(name: &str, value: Option<f64>, most: f64) -> Result<(), ImplausibleFigure> {
    value.map_or(Ok(()), |value| figure(name, value, most))
}

fn check_count(name: &str, value: u64) -> Result<(), ImplausibleFigure> {
    let bad = || ImplausibleFigure::new(format!("{name} is {value}, and at most {COUNT_MAX} can be"));
    (value <= COUNT_MAX).then_some(()).ok_or_else(bad)
}

impl Record {
    /// Whether its figures can be.
    ///
    /// # Errors
    /// Which cannot, and why.
    pub fn check_figures(&self) -> Result<(), ImplausibleFigure> {
        figure("seconds", self.seconds, SECONDS_MAX)?;
        for (at, point) in self.points.iter().enumerate() {
            point.check_figures().map_err(|bad| bad.in_place(format!("load {}", at + 1)))?;
        }
        let runs: usize = self.points.iter().map(|point| point.runs.len()).sum();
        let errors = self.points.iter().flat_map(|point| &point.runs).map(|run| run.errors);
        if errors.fold(0_u64, u64::saturating_add) > COUNT_MAX {
            return Err(ImplausibleFigure::new(format!(
                "errors of its {runs} runs are more than {COUNT_MAX}"
            )));
        }
        Ok(())
    }
}

impl Point {
    fn check_figures(&self) -> Result<(), ImplausibleFigure> {
        check_count("bytes", self.bytes)?;
        check_count("work", self.work.unwrap_or(0))?;
        if self.runs.len() > RUNS_MAX {
            return Err(ImplausibleFigure::new(format!(
                "it has {} runs, and at most {RUNS_MAX} can be",
                self.runs.len()
            )));
        }
        let run = |(at, run): (usize, &Run)| {
            run.check_figures().map_err(|bad| bad.in_place(format!("run {}", at + 1)))
        };
        self.runs.iter().enumerate().try_for_each(run)
    }
}

impl Run {
    /// Whether its figures can be.
    ///
    /// # Errors
    /// Which cannot, and why.
    pub fn check_figures(&self) -> Result<(), ImplausibleFigure> {
        figure("seconds", self.seconds, SECONDS_MAX)?;
        if self.seconds > 0.0 && self.seconds < SECONDS_MIN {
            return Err(ImplausibleFigure::new(format!(
                "seconds is {:e}, and 0 or at least {SECONDS_MIN:e} can be",
                self.seconds
            )));
        }
        for (name, value) in [("ios", self.ios), ("moved", self.moved), ("errors", self.errors)] {
            check_count(name, value)?;
        }
        if self.series.len() > SERIES_MAX {
            let long = self.series.len();
            return Err(ImplausibleFigure::new(format!(
                "series is {long} long, and at most {SERIES_MAX} can be"
            )));
        }
        for mark in &self.series {
            figure("series' seconds", mark.seconds, SECONDS_MAX)?;
            check_count("series' ios", mark.ios)?;
            check_count("series' moved", mark.moved)?;
        }
        check_count("retransmits", self.retransmits.unwrap_or(0))?;
        check_count("packets", self.packets.unwrap_or(0))?;
        check_count("latency's count", self.latency.count())?;
        if let Some(summary) = &self.latency_summary {
            figure("mean", summary.mean, NANOSECONDS_MAX)?;
            figure("deviation", summary.deviation, NANOSECONDS_MAX)?;
            figure("max", summary.max, NANOSECONDS_MAX)?;
        }
        if let Some(refilled) = &self.refilled {
            figure("refilled seconds", refilled.seconds, SECONDS_MAX)?;
            // Over all I/Os.
            figure("latency outside", refilled.outside.abs(), SECONDS_MAX * COUNT_MAX as f64)?;
        }
        if let Some(unfinished) = &self.unfinished {
            check_count("unfinished ios", unfinished.ios)?;
            figure("unfinished oldest", unfinished.oldest, SECONDS_MAX)?;
        }
        check_optional("io_latency_us", self.io_latency_us, NANOSECONDS_MAX)?;
        for (end, side) in [("target", &self.target), ("initiator", &self.initiator)] {
            side.as_ref().map_or(Ok(()), EndUsage::check_figures).map_err(|bad| bad.in_place(end))?;
        }
        Ok(())
    }
}

impl EndUsage {
    fn check_figures(&self) -> Result<(), ImplausibleFigure> {
        for (_, kinds) in &self.cores.cores {
            let all =
                [kinds.user, kinds.system, kinds.irq, kinds.softirq, kinds.idle, kinds.iowait, kinds.steal];
            all.into_iter().try_for_each(|time| figure("a core's time", time, SECONDS_MAX))?;
        }
        figure("user time", self.process.0, SECONDS_MAX)?;
        figure("system time", self.process.1, SECONDS_MAX)?;
        check_count("context switches", self.cores.switches)?;
        check_count("resident", self.resident)?;
        check_optional("idle_polls", self.idle_polls, SECONDS_MAX)?;
        check_optional("late", self.late, SECONDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use crate::Histogram;
    use crate::record::{LatencySummary, RECORD_SCHEMA_VERSION, Record, tests};

    fn record() -> Record {
        let points = vec![tests::point("blockwire", "randread", 4096, 1000)];
        Record { schema: RECORD_SCHEMA_VERSION, preset: "quick".into(), points, ..Record::default() }
    }

    /// A record with one figure of its first run changed, as text.
    fn with(path: &str, value: serde_json::Value) -> String {
        let mut json = serde_json::to_value(record()).unwrap();
        *json.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        json.to_string()
    }

    /// It ended `eval report` and `eval compare`, and with them all clean-ups of a run.
    #[test]
    fn a_record_never_ends_the_program_by_its_latencies() {
        let latency = "/points/0/runs/0/latency";
        for (name, value) in [
            ("min_ns", serde_json::json!(u64::MAX)),
            ("max_ns", serde_json::json!(0)),
            ("buckets", serde_json::json!([[0, u64::MAX], [1, 1]])),
            ("buckets", serde_json::json!([[4_000_000, 1]])),
            ("sum_ns", serde_json::json!(u128::MAX.to_string())),
        ] {
            let read = Record::parse(&with(&format!("{latency}/{name}"), value.clone()));
            let why = read.expect_err(&format!("{name} {value}"));
            assert!(why.to_string().starts_with("not a record of an evaluation: "), "{why}");
        }
    }

    #[test]
    fn figures_that_cannot_be_are_never_read() {
        for (path, value) in [
            ("/seconds", 1e308),
            ("/points/0/runs/0/seconds", 1e308),
            ("/points/0/runs/0/seconds", -1.0),
            ("/points/0/runs/0/seconds", 1e-300),
            ("/points/0/runs/1/target/process/0", 1e308),
            ("/points/0/runs/1/initiator/cores/cores/0/1/user", -1e9),
        ] {
            let why = Record::parse(&with(path, value.into())).expect_err(path);
            assert!(why.to_string().contains(" is "), "{why}");
        }
        let text = with("/points/0/runs/0/ios", u64::MAX.into());
        assert!(Record::parse(&text).unwrap_err().to_string().contains("load 1: run 1: ios"), "{text}");
        assert_eq!(Record::parse(&record().to_text().unwrap()).unwrap(), record());
    }

    /// A figure that is not finite would be written as `null`, which no record has.
    #[test]
    fn a_record_that_cannot_be_read_again_is_never_written() {
        for figure in [f64::INFINITY, f64::NAN, 1e308] {
            let mut record = record();
            let run = &mut record.points[0].runs[0];
            run.latency = Histogram::default();
            run.latency_summary = Some(LatencySummary { mean: figure, deviation: 1.0, max: 1.0 });
            let why = record.to_text().unwrap_err();
            assert!(why.to_string().contains("load 1: run 1: mean"), "{why}");
        }
    }

    /// Of whatever is taken, all that is shown of it can be made.
    #[test]
    fn what_is_read_is_shown_without_an_end() {
        let mut record = record();
        let run = &mut record.points[0].runs[0];
        (run.seconds, run.ios, run.moved, run.errors) = (1e-9, 1 << 56, 1 << 56, 1 << 55);
        run.latency = Histogram::default();
        run.latency.record(0);
        run.latency.record(u64::MAX);
        record.points[0].runs[1].seconds = 1e12;
        record.points[0].runs[2].seconds = 0.0;
        let record = Record::parse(&record.to_text().unwrap()).unwrap();
        assert!(
            !crate::report::render_html(&record).is_empty()
                && !crate::report::render_markdown(&record).is_empty()
        );
        assert!(
            !crate::report::render_csv(&record).is_empty()
                && record.points[0].latency_histogram().count() > 0
        );
        let _ = record.inconsistencies();
    }
}
