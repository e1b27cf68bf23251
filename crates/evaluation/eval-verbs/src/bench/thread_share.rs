//! One thread of the load generator: its workers, their memory, and the loop that drives them.
//!
//! Invariant: the worker counts figures, from completions alone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buf::{Payload, Sg, SgMut};
use client::{Durability, Initiator, Io, IoChoice, IoId, Op, Settings, Span};
use eval::fio::{IoDirection, Job};
use eval::load::{
    IoKind, IoRequest, VolumeShape, Worker, WorkerAction, WorkerFigures, fill_pattern, verify_pattern,
};
use volume::Epoch;

use super::BenchArgs;
use super::disk::{LocalDisks, OpenedDisk};
use super::status::ThreadCounters;
use super::volumes::{CompletedIo, NegotiatedParameters, Volumes};
use config::plan::IoEngine;
use process::exit::Failure;

/// Up to so many bytes in flight on a thread, each I/O has a buffer of its own, as programs have: they stay in the
/// processor's cache. With more, reads take memory when their bytes come and give it back when they end, so that
/// what is measured is not how fast this program walks through cold memory.
const OWN_BUFFERS_MAX: u64 = 2 << 20;

/// What a thread has done.
#[derive(Default)]
pub(super) struct ThreadShare {
    /// For each job: its figures, how many of its I/Os failed, and why the first did.
    pub(super) jobs: Vec<(WorkerFigures, u64, Option<String>)>,
    /// What was negotiated for the first of its sessions.
    pub(super) negotiated: Option<NegotiatedParameters>,
}

impl ThreadShare {
    fn of(jobs: &[Job]) -> ThreadShare {
        ThreadShare { jobs: jobs.iter().map(|_| Default::default()).collect(), negotiated: None }
    }
}

/// One worker with the volumes and memory that it uses.
struct WorkerContext {
    worker: Worker,
    job: usize,
    seed: u64,
    volumes: Vec<usize>,
    shapes: Vec<VolumeShape>,
    /// What each slot reads into: nothing if reads take memory when their bytes come.
    memory: Vec<Option<SgMut>>,
    /// What all write.
    pattern: Sg,
    verifies: bool,
    /// For each slot: where its I/O that is verified lies.
    verified: Vec<(u64, u32)>,
    why: Option<String>,
    asleep_until: Option<u64>,
    is_over: bool,
}

impl WorkerContext {
    /// Counts an I/O that could not be started as failed.
    fn fail_io(&mut self, slot: u32, now: u64, why: &str) {
        self.why.get_or_insert_with(|| why.to_owned());
        self.worker.finish_io(slot, now, false);
    }
}

/// A thread's share of the workers: every `threads`-th, on connections of its own.
pub(super) fn run_thread_share(
    args: &BenchArgs,
    jobs: &[Job],
    thread: usize,
    disks: &[OpenedDisk],
    (barrier, has_failed): (&Barrier, &AtomicBool),
    cell: &ThreadCounters,
) -> Result<ThreadShare, Failure> {
    let made = prepare_thread(args, jobs, thread, disks);
    if made.is_err() {
        has_failed.store(true, Ordering::Release);
    }
    // One that fails still comes to the barrier, so no other thread waits for it for ever.
    barrier.wait();
    let (mut volumes, mut seats) = made?;
    if has_failed.load(Ordering::Acquire) {
        // Load that is refused in part is refused: nothing may be written.
        volumes.log_out_all();
        return Ok(ThreadShare::of(jobs));
    }
    let negotiated = volumes.negotiated();
    let now = Instant::now();
    let told = (cell, args.events);
    drive_workers(&mut volumes, &mut seats, now, jobs.iter().any(|job| job.exits_all), told);
    let mut share = ThreadShare { negotiated, ..ThreadShare::of(jobs) };
    for seat in seats {
        let Some((tally, failed, why)) = share.jobs.get_mut(seat.job) else { continue };
        tally.merge(seat.worker.figures());
        *failed += seat.worker.failed_ios();
        *why = why.take().or(seat.why);
    }
    volumes.log_out_all();
    Ok(share)
}

fn prepare_thread(
    args: &BenchArgs,
    jobs: &[Job],
    thread: usize,
    disks: &[OpenedDisk],
) -> Result<(Volumes, Vec<WorkerContext>), Failure> {
    let cores =
        jobs.iter().find(|job| !job.cores.is_empty()).map(|job| job.cores.clone()).unwrap_or_default();
    let core =
        args.core.map(|core| core + thread).or_else(|| cores.get(thread % cores.len().max(1)).copied());
    if let Some(core) = core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)
            .map_err(|why| Failure::usage(format!("processor {core}: {why}")))?;
    }
    let mine =
        |job: &Job| (0..job.threads).filter(|number| *number as usize % args.threads as usize == thread);
    let in_flight: u64 = jobs.iter().map(|job| mine(job).count() as u64 * u64::from(job.depth)).sum();
    let largest = jobs.iter().map(|job| job.block.0.max(job.block.1)).max().unwrap_or(4096);
    let memory = (in_flight * 2 + 4).saturating_mul(u64::from(largest)).max(32 << 20);
    let settings = Settings {
        io: match args.io {
            IoEngine::Auto => IoChoice::Auto,
            IoEngine::Uring => IoChoice::Uring,
            IoEngine::Epoll => IoChoice::Epoll,
        },
        memory: usize::try_from(memory).map_err(|_| Failure::usage("too much would be in flight"))?,
        poll_ns_max: args.poll * 1000,
        ..Settings::default()
    };
    let disks_given = !disks.is_empty();
    let disks = match disks {
        [] => None,
        disks => Some(LocalDisks::of(disks, (settings.io, settings.memory, settings.poll_ns_max))?),
    };
    let mut open = Volumes::new(Initiator::new(settings)?, disks);
    // Before there are sessions: this may take seconds, in which no target would hear of us.
    let has_buffers = disks_given || in_flight.saturating_mul(u64::from(largest)) <= OWN_BUFFERS_MAX;
    let workers = jobs.iter().flat_map(|job| mine(job).map(move |_| job)).filter(|_| has_buffers);
    let memories: Result<Vec<_>, Failure> =
        workers.map(|job| allocate_read_buffers(&mut open, job)).collect();
    let mut memories = memories?.into_iter();
    let name = |url: &String, number: u32| (url.clone(), number / args.threads % args.sessions);
    let mut wanted = Vec::new();
    let mut seen = HashSet::new();
    for job in jobs {
        for number in mine(job) {
            let names = job.files.iter().map(|url| name(url, number));
            wanted.extend(names.filter(|name| seen.insert(name.clone())));
        }
    }
    open.open_all(&wanted, in_flight.div_ceil(u64::from(args.sessions)))?;
    let mut seats = Vec::new();
    let mut asked = HashSet::new();
    for (at, job) in jobs.iter().enumerate() {
        let pattern = write_pattern(&mut open, job)?;
        for number in mine(job) {
            let mut volumes = Vec::new();
            for url in &job.files {
                let volume = open.find(&name(url, number));
                let volume = volume.ok_or_else(|| Failure::failed(format!("{url}: it is not open")))?;
                if job.direction != IoDirection::Read && open.is_read_only(volume) {
                    return Err(Failure::usage(format!(
                        "{}: the volume is read-only for this host; ask for write access, or use a read-only load",
                        job.name
                    )));
                }
                if job.direction != IoDirection::Read && !args.force && asked.insert(url) {
                    open.refuse_used(volume, url)?;
                }
                volumes.push(volume);
            }
            let memory = memories.next().unwrap_or_default();
            seats.push(worker_context(&open, job, (at, number), volumes, (memory, &pattern))?);
        }
    }
    Ok((open, seats))
}

fn memory_failure() -> Failure {
    Failure::failed("there is no memory for so much in flight")
}

/// What each slot of a worker reads into. Every page of it is touched: the first touch costs more than what is
/// read into it, and would be counted as the target's.
fn allocate_read_buffers(open: &mut Volumes, job: &Job) -> Result<Vec<Option<SgMut>>, Failure> {
    if job.direction == IoDirection::Write && !job.verifies {
        return Ok(Vec::new());
    }
    let len = job.block.0.max(job.block.1) as usize;
    let one = |_| {
        let mut memory = open.io_buffer(len).ok_or_else(memory_failure)?;
        memory.slices_mut(0..len).for_each(|part| part.fill(0));
        Ok(Some(memory))
    };
    (0..job.depth).map(one).collect()
}

/// What all writes of a job carry, unless they are verified.
fn write_pattern(open: &mut Volumes, job: &Job) -> Result<Sg, Failure> {
    let mut pattern = open.io_buffer(job.block.1 as usize).ok_or_else(memory_failure)?;
    let mut bytes = vec![0; job.block.1 as usize];
    fill_pattern(&mut bytes, 0, job.seed);
    pattern.copy_from(0, &bytes);
    Ok(pattern.freeze())
}

fn worker_context(
    open: &Volumes,
    job: &Job,
    (at, number): (usize, u32),
    volumes: Vec<usize>,
    (memory, pattern): (Vec<Option<SgMut>>, &Sg),
) -> Result<WorkerContext, Failure> {
    let shapes: Vec<VolumeShape> = volumes.iter().map(|volume| open.shape(*volume)).collect();
    let worker = Worker::new(job, number, &shapes, 0).map_err(Failure::usage)?;
    Ok(WorkerContext {
        verified: vec![(0, 0); if job.verifies { job.depth as usize } else { 0 }],
        worker,
        job: at,
        seed: u64::from(number),
        volumes,
        shapes,
        memory,
        pattern: pattern.clone(),
        verifies: job.verifies,
        why: None,
        asleep_until: None,
        is_over: false,
    })
}

/// The name of an I/O: which seat, which slot, and what it was.
fn io_id(seat: usize, ask: &IoRequest) -> IoId {
    IoId((seat as u64) << 32 | u64::from(ask.slot) << 1 | u64::from(ask.kind == IoKind::Verify))
}

/// How often a thread's counts are stored for who watches.
const PUBLISH_INTERVAL_NS: u64 = 50_000_000;

/// `cell`: where counts are stored for who watches, and whether those of I/Os are told.
fn drive_workers(
    volumes: &mut Volumes,
    seats: &mut [WorkerContext],
    begun: Instant,
    exits_all: bool,
    (cell, is_told): (&ThreadCounters, bool),
) {
    let now = || begun.elapsed().as_nanos() as u64;
    // Seats to be asked what to do: those that something ended for, and those whose time has come.
    let mut awake: Vec<usize> = (0..seats.len()).collect();
    let mut alarms: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut left = seats.len();
    let mut time = now();
    let mut published = 0;
    loop {
        for at in awake.drain(..) {
            let Some(seat) = seats.get_mut(at) else { continue };
            let due = loop {
                // An I/O is in flight from now on: those before it in this turn took their time to be started.
                match seat.worker.poll(now()) {
                    WorkerAction::Start(ask) => {
                        if ask.kind == IoKind::Verify
                            && let Some(place) = seat.verified.get_mut(ask.slot as usize)
                        {
                            *place = (ask.offset, ask.len);
                        }
                        if !start_io(volumes, seat, at, &ask, &now) {
                            // Not again before the clock has been looked at: the load may be over by then.
                            break Some(time);
                        }
                    }
                    WorkerAction::Wait(due) => break due,
                    WorkerAction::Finished => {
                        left -= usize::from(!std::mem::replace(&mut seat.is_over, true));
                        break None;
                    }
                }
            };
            if due != std::mem::replace(&mut seat.asleep_until, due)
                && let Some(due) = due
            {
                alarms.push(Reverse((due, at)));
            }
        }
        if left == 0 {
            return;
        }
        if exits_all && left < seats.len() {
            seats.iter_mut().filter(|seat| !seat.is_over).for_each(|seat| seat.worker.stop());
        }
        let next = alarms.peek().map(|Reverse((due, _))| Duration::from_nanos(due.saturating_sub(now())));
        volumes.turn(next.unwrap_or(Duration::from_secs(1)).min(Duration::from_secs(1)));
        time = now();
        while let Some(done) = volumes.poll_done() {
            awake.extend(finish_io(seats, done, time));
        }
        while let Some(Reverse((due, at))) = alarms.peek().copied().filter(|Reverse((due, _))| *due <= time) {
            alarms.pop();
            // What was put off since has an alarm of its own.
            if let Some(seat) = seats.get_mut(at).filter(|seat| seat.asleep_until == Some(due)) {
                seat.asleep_until = None;
                awake.push(at);
            }
        }
        if exits_all && left < seats.len() {
            let goes_on = seats.iter().enumerate().filter(|(_, seat)| !seat.is_over);
            awake = goes_on.map(|(at, _)| at).collect();
        }
        if time >= published + PUBLISH_INTERVAL_NS {
            published = time;
            cell.set_polled(volumes.busy_poll_ns());
            if is_told {
                publish_counts(seats, cell);
            }
        }
    }
}

/// Stores what the thread has done where the watching thread sees it.
fn publish_counts(seats: &[WorkerContext], cell: &ThreadCounters) {
    let (mut ios, mut bytes, mut ns) = (0, 0, 0);
    for tally in seats.iter().map(|seat| seat.worker.figures()) {
        for figures in [&tally.read, &tally.write, &tally.trim] {
            ios += figures.ios;
            bytes += figures.bytes;
            ns += figures.latency.sum();
        }
    }
    cell.store(ios, bytes, u64::try_from(ns).unwrap_or(u64::MAX));
}

/// Starts an I/O; `false`: it could not be started and counts as failed.
fn start_io(
    volumes: &mut Volumes,
    seat: &mut WorkerContext,
    at: usize,
    ask: &IoRequest,
    now: &impl Fn() -> u64,
) -> bool {
    let shape_and_volume = seat.shapes.get(ask.volume).zip(seat.volumes.get(ask.volume).copied());
    let Some((shape, volume)) = shape_and_volume else {
        seat.fail_io(ask.slot, now(), "the job has no such volume");
        return false;
    };
    let block = u64::from(shape.block);
    let span = Span { lba: ask.offset / block, blocks: u64::from(ask.len) / block };
    let (op, payload) = match ask.kind {
        IoKind::Read | IoKind::Verify => {
            let mut memory = seat.memory.get_mut(ask.slot as usize).and_then(Option::take);
            if let Some(memory) = memory.as_mut().filter(|memory| memory.len() != ask.len as usize) {
                memory.truncate(ask.len as usize);
            }
            let Some(memory) = memory.or_else(|| volumes.read_buffer(ask.len as usize)) else {
                seat.fail_io(ask.slot, now(), "there is no memory left");
                return false;
            };
            (Op::Read(span), Payload::In(memory))
        }
        IoKind::Write if seat.verifies => {
            let Some(mut memory) = volumes.io_buffer(ask.len as usize) else {
                seat.fail_io(ask.slot, now(), "there is no memory left");
                return false;
            };
            let mut place = ask.offset;
            for part in memory.slices_mut(0..ask.len as usize) {
                fill_pattern(part, place, seat.seed);
                place += part.len() as u64;
            }
            (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze()))
        }
        IoKind::Write => (Op::Write(span, Durability::Cached), Payload::Out(seat.pattern.clone())),
        IoKind::Trim => (Op::Unmap(vec![span]), Payload::None),
        IoKind::Flush => (Op::Flush, Payload::None),
    };
    let io = Io { id: io_id(at, ask), epoch: Epoch(0), op, payload };
    let is_taken = volumes.submit(volume, io);
    if !is_taken {
        seat.fail_io(ask.slot, now(), "the volume is closed");
    }
    is_taken
}

/// Tells a worker that an operation has ended; which seat has something to do.
fn finish_io(seats: &mut [WorkerContext], done: CompletedIo, time: u64) -> Option<usize> {
    let (at, slot, is_look) = ((done.id.0 >> 32) as usize, (done.id.0 as u32) >> 1, done.id.0 & 1 == 1);
    let seat = seats.get_mut(at)?;
    let mut is_good = true;
    if let Err(why) = done.result {
        is_good = false;
        seat.why.get_or_insert(why.message);
    }
    if let Payload::In(mut memory) = done.payload {
        if is_good
            && is_look
            && let Some((mut place, len)) = seat.verified.get(slot as usize).copied()
        {
            for part in memory.slices_mut(0..len as usize) {
                if let Err(wrong) = verify_pattern(part, place, seat.seed) {
                    is_good = false;
                    seat.why = Some(format!("verification failed: {wrong}"));
                    break;
                }
                place += part.len() as u64;
            }
        }
        if let Some(place) = seat.memory.get_mut(slot as usize) {
            *place = Some(memory);
        }
    }
    seat.worker.finish_io(slot, time, is_good);
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page faults of this thread that needed no disk.
    fn faults() -> u64 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // Behind the name in brackets: state, five identities, flags.
        stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_for_reads_is_there_before_the_load() {
        let words = ["--name=x", "--filename=-", "--rw=randread", "--bs=512k", "--iodepth=64"];
        let script = eval::fio::parse_args(words).unwrap();
        let settings = Settings { memory: 64 << 20, ..Settings::default() };
        let mut open = Volumes::new(Initiator::new(settings).unwrap(), None);
        let mut memory = allocate_read_buffers(&mut open, &script.jobs[0]).unwrap();
        assert_eq!(memory.len(), 64);
        let before = faults();
        for part in memory.iter_mut().flatten().flat_map(|memory| memory.slices_mut(0..512 << 10)) {
            part.chunks_mut(4096).for_each(|page| page[0] = 1);
        }
        // Of 8,192 pages, or 16 large ones.
        assert!(faults() - before < 8, "{} pages were not there", faults() - before);
    }

    #[test]
    fn many_large_reads_land_in_few_buffers() {
        let settings = Settings { memory: 512 << 20, ..Settings::default() };
        let mut open = Volumes::new(Initiator::new(settings).unwrap(), None);
        let before = faults();
        let in_flight: Vec<SgMut> = (0..256).map(|_| open.read_buffer(512 << 10).unwrap()).collect();
        for mut memory in in_flight {
            memory.slices_mut(0..512 << 10).for_each(|part| part.fill(1));
        }
        // Those of one buffer, 128 pages, and some of the pool's own tables; 32,768 if each had its own.
        assert!(faults() - before < 1024, "{} pages were touched", faults() - before);
    }
}
