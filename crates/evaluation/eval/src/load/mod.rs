//! Load without I/O: which I/O starts when, and how long it took.
//!
//! A [`Worker`] is one thread of a [`Job`]: its driver asks [`Worker::poll`] what to do and reports
//! completions to [`Worker::finish_io`]. Each call gets the time. Invariants:
//! - The same job, seed and volumes give the same I/Os in the same order, however long each takes.
//! - With a rate, latency counts from the intended start of the I/O, so a stalled target is charged for all
//!   that waited (no coordinated omission). I/Os start in the order of the mix: the intended start of one is
//!   not before those ahead of it, nor during its worker's think time.
//! - At most `depth` I/Os are in flight.

mod offsets;
mod pattern;

use std::collections::VecDeque;

use crate::Histogram;
use crate::fio::{IoDirection, Job, JobSize, Rate};
use offsets::{Offsets, ReadWriteMix};
pub use pattern::{Mismatch, fill_pattern, verify_pattern};

/// A volume as a job must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeShape {
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block: u32,
}

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Deallocate.
    Trim,
    /// Flush; it has no offset.
    Flush,
    /// Read what was written, and compare ([`verify_pattern`]).
    Verify,
}

/// An I/O to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// Names it among those that are out: below the job's depth.
    pub slot: u32,
    /// Which of the worker's volumes.
    pub volume: usize,
    /// What.
    pub kind: IoKind,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// Start this.
    Start(IoRequest),
    /// Nothing until something is done, or until this time.
    Wait(Option<u64>),
    /// Nothing any more; nothing is out.
    Finished,
}

/// Why a job cannot be run on its volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// The volume of this name has blocks of so many bytes, which do not divide the job's.
    Block(String, u32),
    /// The part of the volume that is used holds no I/O.
    TooSmall {
        /// Its name.
        volume: String,
        /// Bytes of that part.
        bytes: u64,
        /// Where it begins.
        offset: u64,
        /// Bytes of the largest I/O.
        largest: u32,
    },
    /// So many writes would have to be remembered to be verified.
    TooMuchVerified(u64),
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JobError::Block(volume, block) => {
                write!(f, "{volume} has blocks of {block} bytes, which do not divide the job's")
            }
            JobError::TooSmall { volume, bytes, offset, largest } => {
                write!(f, "{volume}: {bytes} bytes from offset {offset} hold no I/O of {largest}")
            }
            JobError::TooMuchVerified(writes) => {
                write!(
                    f,
                    "it would verify {writes} writes; at most {REMEMBERED_WRITES_MAX}: give a smaller size"
                )
            }
        }
    }
}

impl std::error::Error for JobError {}

/// What one kind of I/O has come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoTotals {
    /// I/Os that ended well.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// I/Os that failed.
    pub errors: u64,
    /// Latencies of those that ended well.
    pub latency: Histogram,
}

impl IoTotals {
    /// Adds an I/O.
    fn add(&mut self, is_good: bool, len: u32, latency_ns: u64) {
        if is_good {
            self.ios += 1;
            self.bytes += u64::from(len);
            self.latency.record(latency_ns);
        } else {
            self.errors += 1;
        }
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &IoTotals) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.latency.merge(&other.latency);
    }
}

/// Figures of a worker, those of its ramp left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerFigures {
    /// Reads.
    pub read: IoTotals,
    /// Writes.
    pub write: IoTotals,
    /// Deallocations.
    pub trim: IoTotals,
    /// Flushes.
    pub flush: IoTotals,
    /// When figures began to count, and when they ceased to: when the time was over, or else with the last I/O.
    pub span: Option<(u64, u64)>,
    /// For how long I/Os that ended were followed by others while figures counted.
    pub refilled: u64,
    /// What of the latencies of reads, writes and deallocations, summed up, lies outside of that time: before
    /// figures counted, of those that were in flight by then, and after load had ceased; less what lies inside of
    /// those that ended too late to be counted.
    pub outside: i64,
    /// I/Os that were out when the time was over, which are in no count and no latency.
    pub unfinished: u64,
    /// How old the oldest of them was by then.
    pub unfinished_oldest: u64,
}

impl WorkerFigures {
    /// Adds another worker's: from the earlier begin to the later end.
    pub fn merge(&mut self, other: &WorkerFigures) {
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.trim.merge(&other.trim);
        self.flush.merge(&other.flush);
        self.span = match (self.span, other.span) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, two) => one.or(two),
        };
        self.refilled = self.refilled.max(other.refilled);
        self.outside += other.outside;
        self.unfinished += other.unfinished;
        self.unfinished_oldest = self.unfinished_oldest.max(other.unfinished_oldest);
    }
}

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerPhase {
    Load,
    /// It waits for what is out, then flushes or compares.
    Ending,
    Flushing,
    /// What was written is read again.
    Comparing,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct OutstandingIo {
    kind: IoKind,
    len: u32,
    /// From when on its latency counts.
    from: u64,
}

/// A limit of speed as a schedule: when the next may start.
#[derive(Clone, Copy, Debug)]
struct RateSchedule {
    rate: Option<Rate>,
    /// Units (I/Os or bytes) that were started.
    used: u64,
}

impl RateSchedule {
    /// When the next is meant to start.
    fn next_start(&self, start: u64) -> Option<u64> {
        let per_second = match self.rate? {
            Rate::Iops(rate) | Rate::Bytes(rate) => rate,
        };
        let ns = u128::from(self.used) * 1_000_000_000 / u128::from(per_second.max(1));
        Some(start.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    fn advance(&mut self, bytes: u64) {
        self.used += if let Some(Rate::Bytes(_)) = self.rate { bytes } else { 1 };
    }
}

/// One thread of a job. Times are nanoseconds of one clock.
#[derive(Clone, Debug)]
pub struct Worker {
    depth: usize,
    mix: ReadWriteMix,
    block: (u32, u32),
    offsets: Vec<Offsets>,
    /// Which volume is next.
    turn: usize,
    phase: WorkerPhase,
    start: u64,
    counts_from: u64,
    until: Option<u64>,
    /// When load ceased.
    ceased: Option<u64>,
    is_time_based: bool,
    /// Bytes to move; `None`: until time is over.
    left: Option<u64>,
    read_pace: RateSchedule,
    write_pace: RateSchedule,
    think: u64,
    not_before: u64,
    /// When the last one was meant to start.
    meant: u64,
    verifies: bool,
    flushes_at_end: bool,
    /// Whether a write or a deallocation has ended well, counted or not.
    has_written: bool,
    flush_every: u32,
    writes_since: u32,
    out: Vec<Option<OutstandingIo>>,
    free: Vec<u32>,
    /// An I/O that was chosen and waits for its time.
    chosen: Option<(IoKind, usize, u64, u32)>,
    /// What was written, to be compared at the end.
    written: VecDeque<(usize, u64, u32)>,
    /// Volumes that are still to be flushed.
    to_flush: Vec<usize>,
    tally: WorkerFigures,
    failed: u64,
}

/// Writes that a verifying worker remembers: 64 MiB of memory at most.
const REMEMBERED_WRITES_MAX: u64 = 4 << 20;

impl Worker {
    /// Thread `number` of a job, which begins at `now`.
    ///
    /// # Errors
    /// If a volume is smaller than a block of the job, its blocks do not divide the job's, or it would
    /// verify more than 4 Mi writes.
    pub fn new(job: &Job, number: u32, volumes: &[VolumeShape], now: u64) -> Result<Worker, JobError> {
        let largest = job.block.0.max(job.block.1);
        let mut offsets = Vec::with_capacity(volumes.len());
        let mut whole = 0u64;
        for (at, shape) in volumes.iter().enumerate() {
            let name = || job.files.get(at).map_or("volume", String::as_str).to_owned();
            if !job.block.0.is_multiple_of(shape.block) || !job.block.1.is_multiple_of(shape.block) {
                return Err(JobError::Block(name(), shape.block));
            }
            let bytes = used_span(job, shape.bytes, volumes.len() as u64);
            if bytes < u64::from(largest) {
                return Err(JobError::TooSmall { volume: name(), bytes, offset: job.offset, largest });
            }
            whole += bytes;
            let seed = job.seed ^ (u64::from(number) << 32) ^ at as u64;
            offsets.push(Offsets::new(job, bytes, largest, seed));
        }
        let left = match (job.io_size, job.size) {
            (Some(bytes), _) | (None, Some(JobSize::Bytes(bytes))) => bytes,
            (None, _) => whole,
        };
        let left = (!job.is_time_based).then_some(left);
        let moved = left.unwrap_or(whole) / u64::from(job.block.1);
        if job.verifies && moved > REMEMBERED_WRITES_MAX {
            return Err(JobError::TooMuchVerified(moved));
        }
        let start = now + job.delay.as_nanos() as u64;
        let counts_from = start + job.ramp.as_nanos() as u64;
        let until = job.runtime.map(|runtime| counts_from + runtime.as_nanos() as u64);
        Ok(Worker {
            depth: job.depth as usize,
            mix: ReadWriteMix::new(job.direction, job.seed ^ (u64::from(number) << 32)),
            block: job.block,
            offsets,
            turn: 0,
            phase: WorkerPhase::Load,
            start,
            counts_from,
            until,
            ceased: None,
            is_time_based: job.is_time_based,
            left,
            read_pace: RateSchedule { rate: job.rate.0, used: 0 },
            write_pace: RateSchedule { rate: job.rate.1, used: 0 },
            think: job.think.as_nanos() as u64,
            not_before: start,
            meant: start,
            verifies: job.verifies && job.direction != IoDirection::Read,
            flushes_at_end: job.flushes_at_end,
            has_written: false,
            flush_every: job.flush_every,
            writes_since: 0,
            out: vec![None; job.depth as usize],
            free: (0..job.depth).rev().collect(),
            chosen: None,
            written: VecDeque::new(),
            to_flush: Vec::new(),
            tally: WorkerFigures::default(),
            failed: 0,
        })
    }

    /// Figures so far.
    pub fn figures(&self) -> &WorkerFigures {
        &self.tally
    }

    /// I/Os that failed, those of the ramp included.
    pub fn failed_ios(&self) -> u64 {
        self.failed
    }

    /// Starts nothing new: what is out is waited for, nothing is flushed or compared.
    pub fn stop(&mut self) {
        self.phase = if self.is_idle() { WorkerPhase::Over } else { WorkerPhase::Ending };
        (self.verifies, self.flushes_at_end) = (false, false);
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.depth
    }

    /// What to do at this time.
    pub fn poll(&mut self, now: u64) -> WorkerAction {
        if self.phase != WorkerPhase::Load {
            self.end_load(now);
        }
        loop {
            match self.phase {
                WorkerPhase::Load => {
                    if let Some(poll) = self.poll_load(now) {
                        return poll;
                    }
                    self.phase = WorkerPhase::Ending;
                    self.end_load(now);
                }
                WorkerPhase::Ending if !self.is_idle() => return WorkerAction::Wait(None),
                WorkerPhase::Ending => {
                    if self.flushes_at_end && (self.has_written || !self.written.is_empty()) {
                        self.to_flush = (0..self.offsets.len()).collect();
                    }
                    self.phase = WorkerPhase::Flushing;
                }
                WorkerPhase::Flushing => match self.to_flush.pop() {
                    Some(volume) => return self.start_io(IoKind::Flush, volume, 0, 0, now),
                    None if !self.is_idle() => return WorkerAction::Wait(None),
                    None => {
                        self.phase = if self.verifies { WorkerPhase::Comparing } else { WorkerPhase::Over }
                    }
                },
                WorkerPhase::Comparing => {
                    if self.free.is_empty() {
                        return WorkerAction::Wait(None);
                    }
                    match self.written.pop_front() {
                        Some((volume, at, len)) => {
                            return self.start_io(IoKind::Verify, volume, at, len, now);
                        }
                        None if !self.is_idle() => return WorkerAction::Wait(None),
                        None => self.phase = WorkerPhase::Over,
                    }
                }
                WorkerPhase::Over => return WorkerAction::Finished,
            }
        }
    }

    /// Nothing follows any more: since its time was over, or from now on.
    fn end_load(&mut self, now: u64) {
        if self.ceased.is_none() {
            let ceased = self.until.map_or(now, |until| until.min(now));
            self.ceased = Some(ceased);
            self.tally.refilled = ceased.saturating_sub(self.counts_from);
            if Some(ceased) == self.until {
                self.tally.span = self.tally.span.map(|(begin, _)| (begin, ceased));
                let is_counted = |out: &&OutstandingIo| !matches!(out.kind, IoKind::Flush | IoKind::Verify);
                for out in self.out.iter().flatten().filter(is_counted) {
                    self.tally.unfinished += 1;
                    let age = ceased.saturating_sub(out.from);
                    self.tally.unfinished_oldest = self.tally.unfinished_oldest.max(age);
                }
            }
        }
    }

    /// How much of an I/O's latency lies before figures counted or after load had ceased.
    fn latency_outside_window(&self, from: u64, now: u64) -> i64 {
        let ceased = self.ceased.or(self.until).unwrap_or(now);
        let outside = self.counts_from.saturating_sub(from) + now.saturating_sub(ceased.max(from));
        i64::try_from(outside).unwrap_or(i64::MAX)
    }

    /// The next I/O of the load; `None` if there are no more.
    fn poll_load(&mut self, now: u64) -> Option<WorkerAction> {
        if self.until.is_some_and(|until| now >= until) {
            return None;
        }
        if self.free.is_empty() {
            return Some(WorkerAction::Wait(self.until));
        }
        if now < self.not_before {
            return Some(WorkerAction::Wait(Some(self.not_before)));
        }
        if self.flush_every > 0 && self.writes_since >= self.flush_every {
            self.writes_since = 0;
            return Some(self.start_io(IoKind::Flush, self.turn, 0, 0, now));
        }
        let (kind, volume, offset, len) = match self.chosen.take() {
            Some(chosen) => chosen,
            None => self.choose_io()?,
        };
        let timing = if kind == IoKind::Read { &mut self.read_pace } else { &mut self.write_pace };
        let due = timing.next_start(self.start);
        if let Some(due) = due.filter(|due| *due > now) {
            self.chosen = Some((kind, volume, offset, len));
            return Some(WorkerAction::Wait(Some(self.until.map_or(due, |until| until.min(due)))));
        }
        timing.advance(u64::from(len));
        if kind == IoKind::Write {
            self.writes_since += 1;
            if self.verifies {
                self.written.push_back((volume, offset, len));
            }
        }
        let thought = if self.think > 0 { self.not_before } else { 0 };
        self.meant = due.unwrap_or(now).max(self.meant).max(thought);
        Some(self.start_io(kind, volume, offset, len, self.meant))
    }

    fn choose_io(&mut self) -> Option<(IoKind, usize, u64, u32)> {
        if self.left == Some(0) {
            return None;
        }
        let kind = self.mix.next();
        let len = if kind == IoKind::Read { self.block.0 } else { self.block.1 };
        // Volumes in turn; one that is through makes room for the others, all through begin again.
        for _ in 0..self.offsets.len() {
            let volume = self.turn;
            self.turn = (self.turn + 1) % self.offsets.len();
            if let Some(offset) = self.offsets.get_mut(volume).and_then(Offsets::next) {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(u64::from(len));
                }
                return Some((kind, volume, offset, len));
            }
        }
        if !self.is_time_based && self.left.is_none() {
            return None;
        }
        self.offsets.iter_mut().for_each(Offsets::restart);
        let volume = self.turn;
        let offset = self.offsets.get_mut(volume)?.next()?;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(u64::from(len));
        }
        Some((kind, volume, offset, len))
    }

    fn start_io(&mut self, kind: IoKind, volume: usize, offset: u64, len: u32, from: u64) -> WorkerAction {
        let Some(slot) = self.free.pop() else { return WorkerAction::Wait(None) };
        if let Some(out) = self.out.get_mut(slot as usize) {
            *out = Some(OutstandingIo { kind, len, from });
        }
        WorkerAction::Start(IoRequest { slot, volume, kind, offset, len })
    }

    /// An I/O has ended, well or not. Of a slot that is not out nothing has, and nothing is counted.
    pub fn finish_io(&mut self, slot: u32, now: u64, is_good: bool) {
        // Nobody has asked since the time was over: this one was out by then.
        if self.until.is_some_and(|until| now > until) {
            self.end_load(now);
        }
        let Some(out) = self.out.get_mut(slot as usize).and_then(Option::take) else { return };
        self.free.push(slot);
        if self.think > 0 {
            self.not_before = now + self.think;
        }
        self.failed += u64::from(!is_good);
        self.has_written |= is_good && matches!(out.kind, IoKind::Write | IoKind::Trim);
        let outside = if out.kind == IoKind::Flush { 0 } else { self.latency_outside_window(out.from, now) };
        // I/Os and processor time are of the same window: what ends later is in neither.
        if let Some(until) = self.until.filter(|until| now > *until) {
            if is_good && !matches!(out.kind, IoKind::Flush | IoKind::Verify) {
                let inside = until.saturating_sub(self.counts_from.max(out.from));
                self.tally.outside -= i64::try_from(inside).unwrap_or(i64::MAX);
            }
            // The flush at the end is no I/O of the load; how long it took is told beside it.
            if out.kind == IoKind::Flush {
                self.tally.flush.add(is_good, 0, now.saturating_sub(out.from));
            }
            return;
        }
        let figures = match out.kind {
            IoKind::Read => &mut self.tally.read,
            IoKind::Write => &mut self.tally.write,
            IoKind::Trim => &mut self.tally.trim,
            IoKind::Flush => &mut self.tally.flush,
            // Comparing is not part of the load.
            IoKind::Verify => return,
        };
        if now < self.counts_from {
            return;
        }
        figures.add(is_good, out.len, now.saturating_sub(out.from));
        if is_good {
            self.tally.outside += outside;
        }
        let begin = self.tally.span.map_or(self.counts_from, |(begin, _)| begin);
        self.tally.span = Some((begin, now));
    }
}

/// How much of a volume a job uses.
fn used_span(job: &Job, bytes: u64, volumes: u64) -> u64 {
    let room = bytes.saturating_sub(job.offset);
    let part = |amount| match amount {
        JobSize::Bytes(bytes) => bytes,
        JobSize::Percent(percent) => (u128::from(bytes) * u128::from(percent) / 100) as u64,
    };
    let wanted = match (job.file_size, job.size) {
        (Some(amount), _) => part(amount),
        // fio shares a job's size among its files.
        (None, Some(JobSize::Bytes(size))) => size / volumes,
        (None, Some(amount)) => part(amount),
        (None, None) => room,
    };
    wanted.min(room)
}

#[cfg(test)]
mod tests;
