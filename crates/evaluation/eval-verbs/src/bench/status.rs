//! Status of a running load, on standard error: for people on a terminal one line that is written over, for programs
//! one JSON object per line.
//!
//! `{"event":"begin"}` when figures begin to count, `{"event":"progress",...}` four times a second,
//! `{"event":"end"}` when they stop counting. Invariant: load threads only store counts that they have
//! anyway; a thread that does no I/O reads the clock and writes the lines.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use eval::fio::Job;
use serde_json::json;

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Who is told how a load goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgressFormat {
    /// Nobody.
    Silent,
    /// Who sits at the terminal.
    Line,
    /// A program (`--events`).
    Json,
}

impl ProgressFormat {
    /// What suits: events if they are asked for, a line where someone can see it be written over.
    pub(super) fn of_stderr(wants_events: bool) -> ProgressFormat {
        match (wants_events, std::io::stderr().is_terminal()) {
            (true, _) => ProgressFormat::Json,
            (false, true) => ProgressFormat::Line,
            (false, false) => ProgressFormat::Silent,
        }
    }

    fn tell_event(self, event: &str) {
        match (self, event) {
            (ProgressFormat::Json, _) => eprintln!("{}", json!({ "event": event })),
            // The line goes: figures take its place.
            (ProgressFormat::Line, "end") => eprint!("\r\x1b[K"),
            (ProgressFormat::Line | ProgressFormat::Silent, _) => {}
        }
    }

    /// `of`: how long figures count, if that is known.
    fn tell_progress(self, cells: &[ThreadCounters], seconds: f64, of: Option<Duration>) {
        match self {
            ProgressFormat::Silent => {}
            ProgressFormat::Json => eprintln!("{}", progress_json(cells, seconds)),
            ProgressFormat::Line => eprint!("\r{}\x1b[K", progress_line(cells, seconds, of)),
        }
    }
}

/// What one thread has done since figures count; alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadCounters {
    ios: AtomicU64,
    bytes: AtomicU64,
    ns: AtomicU64,
    polled_ns: AtomicU64,
}

impl ThreadCounters {
    /// Stores how long the thread has polled, since it began.
    pub(super) fn set_polled(&self, ns: u64) {
        self.polled_ns.store(ns, Ordering::Relaxed);
    }

    /// Stores what the thread has done so far.
    pub(super) fn store(&self, ios: u64, bytes: u64, ns: u64) {
        self.ios.store(ios, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.ns.store(ns, Ordering::Relaxed);
    }
}

/// Processor seconds of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuUsed {
    /// Outside of the kernel.
    pub(super) user: f64,
    /// Inside of it.
    pub(super) system: f64,
    /// Of both, spent polling before sleeping, useful or not.
    pub(super) polled: f64,
}

impl CpuUsed {
    /// Until now; the threads' polling as they stored it last. `None`: it cannot be read, as where connections have
    /// all descriptors.
    fn now(cells: &[ThreadCounters]) -> Option<CpuUsed> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let process = eval::cpu::ProcessReading::parse(&text).ok()?;
        let polled: u64 = cells.iter().map(|cell| cell.polled_ns.load(Ordering::Relaxed)).sum();
        Some(CpuUsed {
            user: process.user as f64 / ticks,
            system: process.system as f64 / ticks,
            polled: polled as f64 / 1e9,
        })
    }

    fn minus(self, earlier: CpuUsed) -> CpuUsed {
        CpuUsed {
            user: self.user - earlier.user,
            system: self.system - earlier.system,
            polled: self.polled - earlier.polled,
        }
    }
}

/// Watches a group of jobs from the moment at which its threads begin, until all threads have gone from
/// `over`; gives what the process used while figures counted. `None`: it is not known, or the load was over before
/// anybody could look.
pub(super) fn watch_jobs(
    jobs: &[Job],
    cells: &[ThreadCounters],
    over: &Receiver<()>,
    format: ProgressFormat,
) -> Option<CpuUsed> {
    let begun = Instant::now();
    let counts_from = jobs.iter().map(|job| job.delay + job.ramp).min().unwrap_or_default();
    let until = jobs.iter().map(|job| job.runtime.map(|runtime| job.delay + job.ramp + runtime));
    // Without a time for every job, the end is when all threads have gone.
    let until = until.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    if !finished_before(over, begun + counts_from) {
        let before = CpuUsed::now(cells);
        format.tell_event("begin");
        let mut next = begun + counts_from;
        loop {
            next += PROGRESS_INTERVAL;
            let end = until.map(|until| begun + until);
            let stop = end.map_or(next, |end| end.min(next));
            let is_over = finished_before(over, stop);
            let now = Instant::now();
            let counted = end.map(|end| end - begun - counts_from);
            format.tell_progress(cells, (now - begun - counts_from).as_secs_f64(), counted);
            if is_over || end.is_some_and(|end| now >= end) {
                break;
            }
        }
        let used = CpuUsed::now(cells).zip(before).map(|(now, before)| now.minus(before));
        format.tell_event("end");
        return used;
    }
    None
}

/// Waits until a moment; whether all threads have gone before it.
fn finished_before(over: &Receiver<()>, moment: Instant) -> bool {
    loop {
        match over.recv_timeout(moment.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// I/Os and bytes so far, and the mean latency in microseconds.
fn progress_sums(cells: &[ThreadCounters]) -> (u64, u64, Option<f64>) {
    let sum = |of: fn(&ThreadCounters) -> &AtomicU64| -> u64 {
        cells.iter().map(|cell| of(cell).load(Ordering::Relaxed)).sum()
    };
    let (ios, bytes, ns) = (sum(|cell| &cell.ios), sum(|cell| &cell.bytes), sum(|cell| &cell.ns));
    (ios, bytes, (ios > 0).then(|| ns as f64 / ios as f64 / 1e3))
}

/// `3 of 10 s: 366018 I/Os, 122006 IOPS, 499.7 MB/s, mean 247.9 us`.
fn progress_line(cells: &[ThreadCounters], seconds: f64, of: Option<Duration>) -> String {
    let (ios, bytes, latency) = progress_sums(cells);
    let of = of.map_or(String::new(), |of| format!(" of {:.0}", of.as_secs_f64()));
    let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let latency = latency.map_or(String::new(), |us| format!(", mean {us:.1} us"));
    format!(
        "{seconds:.0}{of} s: {ios} I/Os, {:.0} IOPS, {:.1} MB/s{latency}",
        per_second(ios as f64),
        per_second(bytes as f64 / 1e6)
    )
}

fn progress_json(cells: &[ThreadCounters], seconds: f64) -> serde_json::Value {
    let (ios, bytes, latency) = progress_sums(cells);
    json!({ "event": "progress", "seconds": seconds, "ios": ios, "bytes": bytes, "latency_us": latency })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn progress_is_the_sum_of_all_threads() {
        let cells = [ThreadCounters::default(), ThreadCounters::default()];
        cells[0].store(10, 40_960, 50_000);
        cells[1].store(10, 40_960, 150_000);
        let line = progress_json(&cells, 1.5);
        assert_eq!((line["ios"].as_u64(), line["latency_us"].as_f64()), (Some(20), Some(10.0)));
        assert!(progress_json(&[], 0.0)["latency_us"].is_null());
        assert_eq!(
            progress_line(&cells, 2.0, Some(Duration::from_secs(10))),
            "2 of 10 s: 20 I/Os, 10 IOPS, 0.0 MB/s, mean 10.0 us"
        );
        assert_eq!(progress_line(&[], 0.0, None), "0 s: 0 I/Os, 0 IOPS, 0.0 MB/s");
    }

    #[test]
    fn a_load_that_ends_early_is_not_waited_for() {
        let (to, over) = channel();
        drop(to);
        let job = Job { runtime: Some(Duration::from_secs(3600)), ..Job::default() };
        let begun = Instant::now();
        let used = watch_jobs(&[job], &[], &over, ProgressFormat::Silent);
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert!(used.is_none(), "what nobody saw is not nothing");
    }

    #[test]
    fn what_is_used_is_of_the_time_that_counts() {
        let (_to, over) = channel();
        let job = Job {
            runtime: Some(Duration::from_millis(100)),
            ramp: Duration::from_millis(50),
            ..Job::default()
        };
        let begun = Instant::now();
        let cells = [ThreadCounters::default()];
        cells[0].set_polled(5_000_000_000);
        let used = watch_jobs(&[job], &cells, &over, ProgressFormat::Silent).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(150) && used.user >= 0.0);
        assert_eq!(used.polled, 0.0, "what was polled before is not of that time");
    }
}
