//! Initiators that the harness runs, each with the same load.
//!
//! An [`Initiator`] runs a load to its end and reports when figures begin and stop counting, so that
//! processors are measured over the same time. Invariant: figures are those that the initiator itself
//! counted; values that it does not report are absent, not zero.

mod bare;
mod blockwire;
mod clock;
mod fio;
mod fio_args;
pub(crate) mod fio_reports;
mod kernel;
mod libiscsi;
mod negotiated;
mod spdk;
mod stream;

use std::path::Path;
use std::time::Duration;

use eval::Histogram;
use eval::fio::Job;
use eval::preset::Protocol;
use eval::record::{CountingWindow, FullLoadPeriod, OutstandingIos};

use crate::Failure;
use crate::place::CommandLocation;
use crate::process::{Process, ProcessSpec};

/// A system that uses volumes.
pub trait Initiator: Sync {
    /// Its name on the command line.
    fn name(&self) -> &str;

    /// The protocols that it speaks.
    fn protocols(&self) -> &[Protocol];

    /// What is missing in this place and how it is installed; `None`: it can be used.
    fn missing(&self, place: &CommandLocation) -> Option<String>;

    /// Why it cannot do this load; `None`: it can.
    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        let _ = job;
        None
    }

    /// Its version, as it says it; `None`: it has none of its own.
    fn version(&self, _place: &CommandLocation) -> Option<String> {
        None
    }

    /// Between which moments its I/Os are counted, and processors are looked at.
    fn counting_window(&self) -> CountingWindow {
        CountingWindow::OwnClock
    }

    /// Whether it polls and does not tell for how long.
    fn polls_without_report(&self) -> bool {
        false
    }

    /// How long a load takes beside its ramp and run time, about.
    fn load_overhead(&self) -> Duration {
        Duration::from_millis(200)
    }

    /// Runs a load to its end, and tells what happens while it runs.
    ///
    /// # Errors
    /// If it cannot be run, or I/Os fail: what it said.
    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure>;
}

/// What an initiator is to do.
#[derive(Clone, Debug)]
pub struct LoadTask<'a> {
    /// What it is called in messages, and its log.
    pub name: String,
    /// Where it runs.
    pub place: &'a CommandLocation,
    /// Volumes, each used by all threads in turn.
    pub urls: Vec<String>,
    /// The load.
    pub job: &'a Job,
    /// Processors that it may use.
    pub cores: &'a [usize],
    /// Sessions or controllers over all volumes: at least one for each.
    pub connections: u32,
    /// For its files and logs.
    pub dir: &'a Path,
}

impl LoadTask<'_> {
    /// Starts a process of the initiator.
    fn start_process(&self, words: Vec<String>) -> Result<Process, Failure> {
        Process::start(ProcessSpec {
            name: &self.name,
            place: self.place,
            cores: self.cores,
            words,
            dir: self.dir,
        })
    }
}

/// What happens while a load runs.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadEvent {
    /// From now on figures count; these processes do the work.
    Began(Vec<u32>),
    /// What was done since it began.
    Progress(ProgressCounts),
    /// Figures count no more.
    Ended,
}

/// How far a load is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgressCounts {
    /// Seconds since it began.
    pub seconds: f64,
    /// I/Os since it began.
    pub ios: u64,
    /// Bytes since it began.
    pub bytes: u64,
    /// Mean latency since it began, in microseconds; `None`: not told.
    pub latency_us: Option<f64>,
}

/// What a load came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadResult {
    /// How long figures counted.
    pub seconds: f64,
    /// I/Os that ended well.
    pub ios: u64,
    /// Their bytes.
    pub moved: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Latencies; empty: not told.
    pub latency: Histogram,
    /// How much of the time and of the latencies is of full load, where the initiator tells.
    pub refilled: Option<FullLoadPeriod>,
    /// I/Os that were out when figures ceased to count, where the initiator tells.
    pub unfinished: Option<OutstandingIos>,
    /// Processor seconds while figures counted, user and system, where the initiator itself tells.
    pub cpu: Option<(f64, f64)>,
    /// Seconds of them spent looking for work, where the initiator itself tells.
    pub polls: Option<f64>,
    /// What was negotiated for its connections, where the initiator tells.
    pub negotiated: Vec<(String, String)>,
    /// What a person would type to do the same.
    pub command: String,
}

impl LoadResult {
    /// Adds what another machine did over the same time.
    pub fn merge(&mut self, other: &LoadResult) {
        let is_first = *self == LoadResult::default();
        self.seconds = self.seconds.max(other.seconds);
        // What is too much for a count is too much for a record, which is checked before it is written.
        self.ios = self.ios.saturating_add(other.ios);
        self.moved = self.moved.saturating_add(other.moved);
        self.errors = self.errors.saturating_add(other.errors);
        self.latency.merge(&other.latency);
        // All machines ask for the same and are given the same.
        if self.negotiated.is_empty() {
            self.negotiated.clone_from(&other.negotiated);
        }
        // What one of them does not tell is not known of all.
        self.cpu = match (self.cpu, other.cpu) {
            (Some(ours), Some(theirs)) => Some((ours.0 + theirs.0, ours.1 + theirs.1)),
            (_, theirs) if is_first => theirs,
            _ => None,
        };
        self.refilled = match (self.refilled, other.refilled) {
            (Some(ours), Some(theirs)) => Some(FullLoadPeriod {
                seconds: ours.seconds.max(theirs.seconds),
                outside: ours.outside + theirs.outside,
            }),
            (_, theirs) if is_first => theirs,
            _ => None,
        };
        self.unfinished = match (self.unfinished, other.unfinished) {
            (Some(ours), Some(theirs)) => {
                Some(OutstandingIos { ios: ours.ios + theirs.ios, oldest: ours.oldest.max(theirs.oldest) })
            }
            (_, theirs) if is_first => theirs,
            _ => None,
        };
        self.polls = match (self.polls, other.polls) {
            (Some(ours), Some(theirs)) => Some(ours + theirs),
            (_, theirs) if is_first => theirs,
            _ => None,
        };
    }
}

/// I/Os and bytes of a mean rate that a program tells; `None`: it cannot be.
fn counts_from_rate(rate: f64, seconds: u64, bytes: u32) -> Option<(u64, u64)> {
    let ios = rate * seconds as f64;
    // What 64 bits hold, and room to add some up.
    let is_count = ios.is_finite() && (0.0..=(1_u64 << 56) as f64).contains(&ios);
    let ios = is_count.then_some(ios as u64)?;
    Some((ios, ios.checked_mul(u64::from(bytes))?))
}

/// All initiators that are known. `binary`: this program.
pub fn all_initiators(binary: &Path) -> Vec<Box<dyn Initiator>> {
    let mut all: Vec<Box<dyn Initiator>> = vec![
        Box::new(blockwire::BlockwireInitiator::new(binary)),
        Box::new(libiscsi::LibiscsiInitiator),
        Box::new(spdk::SpdkPerfInitiator),
        Box::new(kernel::KernelInitiator),
        Box::new(stream::StreamSender::new(binary)),
    ];
    all.push(Box::new(blockwire::BlockwireInitiator::polling(binary)));
    all.push(Box::new(bare::BareInitiator::new(binary)));
    all.push(Box::new(bare::BareInitiator::polling(binary)));
    all.extend(fio::FioInitiator::all_methods(binary).map(|fio| Box::new(fio) as Box<dyn Initiator>));
    all
}

/// How long a load may take at most, its start and end included.
pub fn load_timeout(job: &Job) -> Duration {
    let load = job.runtime.unwrap_or(Duration::from_secs(3600)) + job.ramp + job.delay;
    // Each thread may have a connection of its own to be made and ended.
    load + Duration::from_secs(60) + Duration::from_millis(10) * job.threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_can_be_counted_never_becomes_little() {
        let much = LoadResult { ios: 1 << 63, moved: u64::MAX, errors: 1 << 63, ..LoadResult::default() };
        let mut all = much.clone();
        all.merge(&much);
        assert_eq!((all.ios, all.moved, all.errors), (u64::MAX, u64::MAX, u64::MAX));
        for text in ["NaN", "inf", "-1", "1e30"] {
            assert_eq!(counts_from_rate(text.parse().unwrap(), 1, 4096), None, "{text}");
        }
        assert_eq!(counts_from_rate(586_123.4, 2, 4096), Some((1_172_246, 1_172_246 * 4096)));
    }

    #[test]
    fn what_one_machine_does_not_tell_is_never_that_of_all() {
        let tells = LoadResult { ios: 1, cpu: Some((1.0, 2.0)), polls: Some(0.5), ..LoadResult::default() };
        let silent = LoadResult { ios: 1, ..LoadResult::default() };
        for order in [[&tells, &silent], [&silent, &tells]] {
            let mut all = LoadResult::default();
            order.into_iter().for_each(|one| all.merge(one));
            assert_eq!((all.ios, all.cpu, all.polls), (2, None, None));
        }
        let mut both = tells.clone();
        both.merge(&tells);
        assert_eq!((both.cpu, both.polls), (Some((2.0, 4.0)), Some(1.0)));
    }
}
