//! The results of a load, for people and for programs.

use std::fmt::Write;

use eval::Histogram;
use eval::fio::Job;
use eval::load::{IoTotals, WorkerFigures};
use eval::preset::fio_rw_word;
use serde_json::{Map, Value, json};

use super::volumes::NegotiatedParameters;

/// A job and its figures.
#[derive(Debug)]
pub struct JobOutcome {
    name: String,
    rw: &'static str,
    block: (u32, u32),
    in_flight: u64,
    /// Figures of all its workers.
    pub tally: WorkerFigures,
    /// I/Os that failed.
    pub failed: u64,
    /// Why the first did.
    pub why: Option<String>,
    /// Processor seconds of this process: user, system; `None`: not known.
    pub cpu: Option<(f64, f64)>,
    /// Seconds of them spent polling before sleeping, useful or not.
    pub polled: Option<f64>,
}

impl JobOutcome {
    /// Nothing done yet.
    pub fn of(job: &Job) -> JobOutcome {
        JobOutcome {
            name: job.name.clone(),
            rw: fio_rw_word(job.direction, job.is_random),
            block: job.block,
            in_flight: u64::from(job.depth) * u64::from(job.threads),
            tally: WorkerFigures::default(),
            failed: 0,
            why: None,
            cpu: None,
            polled: None,
        }
    }

    /// I/Os that ended well.
    pub fn ios(&self) -> u64 {
        self.tally.read.ios + self.tally.write.ios + self.tally.trim.ios
    }

    fn seconds(&self) -> f64 {
        self.tally.span.map_or(0.0, |(begin, end)| (end - begin) as f64 / 1e9)
    }

    fn cpu_per_million(&self) -> Option<f64> {
        let (user, system) = self.cpu.filter(|_| self.ios() > 0)?;
        Some((user + system) * 1e6 / self.ios() as f64)
    }
}

fn latencies_json(latency: &Histogram) -> Value {
    let us = |percent| latency.percentile(percent) as f64 / 1e3;
    json!({
        "mean": latency.mean() / 1e3, "stddev": latency.standard_deviation() / 1e3, "min": latency.min() as f64 / 1e3,
        "p50": us(50.0), "p90": us(90.0), "p99": us(99.0), "p99.9": us(99.9), "p99.99": us(99.99),
        "max": latency.max() as f64 / 1e3,
    })
}

fn io_kinds(outcome: &JobOutcome) -> [(&'static str, &IoTotals); 4] {
    let tally = &outcome.tally;
    [("read", &tally.read), ("write", &tally.write), ("trim", &tally.trim), ("flush", &tally.flush)]
}

/// What a session has negotiated, in the form of `blockwire info --json`.
fn path_json(negotiated: &NegotiatedParameters) -> Value {
    let terms = negotiated.terms.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
    json!({ "depth": negotiated.depth, "negotiated": terms.collect::<Map<_, _>>() })
}

/// As JSON; latencies in microseconds. `negotiated`: of the first session.
pub fn outcomes_json(
    outcomes: &[JobOutcome],
    notes: &Vec<String>,
    negotiated: Option<&NegotiatedParameters>,
) -> String {
    let jobs = outcomes.iter().map(|outcome| {
        let seconds = outcome.seconds();
        let mut facts = json!({
            "name": outcome.name, "rw": outcome.rw, "bs": [outcome.block.0, outcome.block.1],
            "in_flight": outcome.in_flight, "seconds": seconds,
            "refilled_seconds": outcome.tally.refilled as f64 / 1e9,
            "latency_outside_seconds": outcome.tally.outside as f64 / 1e9,
            "unfinished_ios": outcome.tally.unfinished,
            "unfinished_oldest_seconds": outcome.tally.unfinished_oldest as f64 / 1e9,
            "errors": outcome.failed, "error": outcome.why,
            "cpu_user_seconds": outcome.cpu.map(|cpu| cpu.0), "cpu_system_seconds": outcome.cpu.map(|cpu| cpu.1),
            "poll_seconds": outcome.polled, "cpu_seconds_per_million": outcome.cpu_per_million(),
        });
        for (name, figures) in io_kinds(outcome).into_iter().filter(|(_, figures)| figures.ios > 0) {
            let figures = json!({
                "ios": figures.ios, "bytes": figures.bytes, "iops": figures.ios as f64 / seconds,
                "bytes_per_second": figures.bytes as f64 / seconds, "latency_us": latencies_json(&figures.latency),
                "histogram": figures.latency,
            });
            facts.as_object_mut().map(|facts| facts.insert(name.to_owned(), figures));
        }
        facts
    });
    let all: Vec<Value> = jobs.collect();
    format!("{:#}\n", json!({ "jobs": all, "notes": notes, "path": negotiated.map(path_json) }))
}

/// As a table of at most 80 columns.
pub fn outcomes_table(outcomes: &[JobOutcome], notes: &Vec<String>) -> String {
    let mut text = String::new();
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    for outcome in outcomes {
        push_outcome(&mut text, outcome);
    }
    text
}

fn push_outcome(text: &mut String, outcome: &JobOutcome) {
    let seconds = outcome.seconds();
    let _ = write!(text, "{}: {} I/Os in {seconds:.2} s", outcome.name, outcome.ios());
    let _ = match outcome.cpu_per_million() {
        Some(cpu) => writeln!(text, ", {cpu:.2} CPU seconds per million I/Os"),
        None => writeln!(text),
    };
    let rows: Vec<_> = io_kinds(outcome).into_iter().filter(|(_, figures)| figures.ios > 0).collect();
    if !rows.is_empty() {
        let _ = writeln!(
            text,
            "  {:<5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "", "IOPS", "MB/s", "mean us", "p50", "p99", "p99.9", "max"
        );
    }
    for (name, figures) in rows {
        let latency = &figures.latency;
        let us = |percent| latency.percentile(percent) as f64 / 1e3;
        let _ = writeln!(
            text,
            "  {name:<5} {:>9.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
            figures.ios as f64 / seconds,
            figures.bytes as f64 / seconds / 1e6,
            latency.mean() / 1e3,
            us(50.0),
            us(99.0),
            us(99.9),
            latency.max() as f64 / 1e3
        );
    }
    let longest = io_kinds(outcome).iter().map(|(_, figures)| figures.latency.max()).max();
    let (left, oldest) = (outcome.tally.unfinished, outcome.tally.unfinished_oldest);
    if longest.is_some_and(|longest| oldest > longest) {
        let oldest = oldest as f64 / 1e3;
        let _ = writeln!(
            text,
            "  {left} I/Os were out at the end, the oldest for {oldest:.1} us: they are in no latency"
        );
    }
    if let Some(why) = &outcome.why {
        let _ = writeln!(text, "  {} failed: {why}", outcome.failed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_tells_its_time_and_its_ios_in_80_columns() {
        let job = Job { name: "randread-4k".into(), runtime: Some(Duration::from_secs(2)), ..Job::default() };
        let mut outcome = JobOutcome::of(&job);
        outcome.tally.span = Some((1_000_000_000, 3_000_000_000));
        outcome.tally.read.ios = 9_876_543_210;
        outcome.tally.read.bytes = 9_876_543_210 * 4096;
        outcome.tally.read.latency.record(131_694_400);
        outcome.cpu = Some((1.0, 1.0));
        let text = outcomes_table(&[outcome], &Vec::new());
        assert!(text.starts_with("randread-4k: 9876543210 I/Os in 2.00 s, "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
