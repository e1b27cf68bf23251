//! Status of a running load, for programs: one JSON object per line on standard error.
//!
//! `{"event":"begin"}` when figures begin to count, `{"event":"progress",...}` four times a second,
//! `{"event":"end"}` when they stop counting. Invariant: load threads only store counts that they have
//! anyway; a thread that does no I/O reads the clock and writes the lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use eval::fio::Job;
use serde_json::json;

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

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
    is_told: bool,
) -> Option<CpuUsed> {
    let begun = Instant::now();
    let tell = |line: serde_json::Value| {
        if is_told {
            eprintln!("{line}");
        }
    };
    let counts_from = jobs.iter().map(|job| job.delay + job.ramp).min().unwrap_or_default();
    let until = jobs.iter().map(|job| job.runtime.map(|runtime| job.delay + job.ramp + runtime));
    // Without a time for every job, the end is when all threads have gone.
    let until = until.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
    if !finished_before(over, begun + counts_from) {
        let before = CpuUsed::now(cells);
        tell(json!({ "event": "begin" }));
        let mut next = begun + counts_from;
        loop {
            next += PROGRESS_INTERVAL;
            let end = until.map(|until| begun + until);
            let stop = end.map_or(next, |end| end.min(next));
            let is_over = finished_before(over, stop);
            let now = Instant::now();
            if is_told {
                tell(progress_json(cells, (now - begun - counts_from).as_secs_f64()));
            }
            if is_over || end.is_some_and(|end| now >= end) {
                break;
            }
        }
        let used = CpuUsed::now(cells).zip(before).map(|(now, before)| now.minus(before));
        tell(json!({ "event": "end" }));
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

fn progress_json(cells: &[ThreadCounters], seconds: f64) -> serde_json::Value {
    let sum = |of: fn(&ThreadCounters) -> &AtomicU64| -> u64 {
        cells.iter().map(|cell| of(cell).load(Ordering::Relaxed)).sum()
    };
    let (ios, bytes, ns) = (sum(|cell| &cell.ios), sum(|cell| &cell.bytes), sum(|cell| &cell.ns));
    let latency = (ios > 0).then(|| ns as f64 / ios as f64 / 1e3);
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
    }

    #[test]
    fn a_load_that_ends_early_is_not_waited_for() {
        let (to, over) = channel();
        drop(to);
        let job = Job { runtime: Some(Duration::from_secs(3600)), ..Job::default() };
        let begun = Instant::now();
        let used = watch_jobs(&[job], &[], &over, false);
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
        let used = watch_jobs(&[job], &cells, &over, false).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(150) && used.user >= 0.0);
        assert_eq!(used.polled, 0.0, "what was polled before is not of that time");
    }
}
