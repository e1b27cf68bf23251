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

/// As a table.
pub fn outcomes_table(outcomes: &[JobOutcome], notes: &Vec<String>) -> String {
    let mut text = String::new();
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    let head = ["job", "", "IOPS", "MB/s", "mean us", "p50", "p99", "p99.9", "max", "CPU s/M I/Os"];
    let _ = writeln!(
        text,
        "{:<16} {:<6} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>13}",
        head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7], head[8], head[9]
    );
    for outcome in outcomes {
        let seconds = outcome.seconds();
        for (name, figures) in io_kinds(outcome).into_iter().filter(|(_, figures)| figures.ios > 0) {
            let latency = &figures.latency;
            let us = |percent| latency.percentile(percent) as f64 / 1e3;
            let cpu = outcome.cpu_per_million().map_or("-".to_owned(), |cpu| format!("{cpu:.2}"));
            let _ = writeln!(
                text,
                "{:<16} {name:<6} {:>10.0} {:>10.1} {:>10.1} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {cpu:>13}",
                outcome.name,
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
            let _ = writeln!(
                text,
                "{:<16} {left} I/Os were out at the end, the oldest for {:.1} us: they are in no latency",
                outcome.name,
                oldest as f64 / 1e3
            );
        }
        if let Some(why) = &outcome.why {
            let _ = writeln!(text, "{:<16} {} failed: {why}", outcome.name, outcome.failed);
        }
    }
    text
}
