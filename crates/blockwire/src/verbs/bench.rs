//! `blockwire bench`: load on remote volumes, in fio's words.
//!
//! Workers ([`eval::load`]) decide what starts when; each thread drives its share of them over sessions or
//! queues of its own. Invariant: what is measured is counted by the worker, from completions alone.

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use buf::{Payload, Sg, SgMut};
use clap::Args;
use eval::fio::{Direction, Job, Script, parse_args, parse_file};
use eval::load::{Ask, Kind, Poll, Shape, Tally, Worker, fill, verify};
use initiator::{Durability, Handle, Initiator, Io, IoChoice, IoId, Op, Settings, Span};
use volume::Epoch;

use super::bench_table::{Outcome, json, table};
use super::say;
use crate::exit::{Exit, Failure};
use crate::plan::IoWorld;

/// Most commands on one session or queue.
const COMMANDS_MAX: u64 = 1023;

/// `bench`
#[derive(Debug, Args)]
#[command(after_help = "Words are fio's, as --name=value or --name value behind the URLs; K is 1024:
  --rw=read|write|randread|randwrite|rw|randrw  --bs=4k  --iodepth=32  --numjobs=1  --size=1g  --runtime=10
  --time_based  --rwmixread=70  --rate_iops=1000  --norandommap  --verify=crc32c  --ramp_time=1  ...
Without any: 4 KiB random reads, 32 in flight, for 5 seconds. A job file of fio runs as it stands:
  blockwire bench --job vm.fio --map /dev/sdb=iscsi://10.0.0.1/iqn.2026-11.io.blockwire:v/0

Examples:
  blockwire bench iscsi://127.0.0.1/iqn.2026-11.io.blockwire:demo/0
  blockwire bench nvme+tcp://127.0.0.1/nqn.2026-11.io.blockwire:demo/1 --rw=randwrite --iodepth=128 --runtime=10

Writing destroys what the volume holds.")]
pub struct BenchArgs {
    /// Volumes, each used in turn
    #[arg(required_unless_present = "job")]
    pub urls: Vec<String>,
    /// A job file of fio
    #[arg(long, value_name = "FILE", conflicts_with = "urls")]
    pub job: Option<PathBuf>,
    /// Which volume a name in the job file stands for
    #[arg(long, value_name = "NAME=URL", value_parser = mapped)]
    pub map: Vec<(String, String)>,
    /// Threads of the load generator, each with connections of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Processor that the first thread is bound to; the others follow
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// How bytes are moved
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoWorld,
    /// Look at memory for so many microseconds before sleeping
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub poll: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// fio's words
    #[arg(last = true)]
    pub words: Vec<String>,
}

fn mapped(text: &str) -> Result<(String, String), String> {
    let (name, url) = text.split_once('=').ok_or("NAME=URL is expected")?;
    Ok((name.to_owned(), url.to_owned()))
}

/// The words that stand between the verb and its own options: clap would not know them. Everything that is
/// no option of `bench` and looks like one is fio's.
pub fn sort_words(args: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    const OWN: [&str; 9] =
        ["--job", "--map", "--threads", "--core", "--io", "--poll", "--json", "--help", "--"];
    if args.get(1).is_none_or(|verb| verb != "bench") {
        return args;
    }
    let (mut own, mut words) = (Vec::new(), Vec::new());
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        if !text.starts_with("--") || OWN.contains(&name) {
            let takes = ["--job", "--map", "--threads", "--core", "--io", "--poll"].contains(&text.as_str());
            own.push(arg);
            if takes {
                own.extend(args.next());
            }
            continue;
        }
        words.push(arg);
        if !text.contains('=')
            && let Some(value) = args.next_if(|next| {
                !next.to_string_lossy().starts_with("--")
                    && !initiator::Url::is_meant(&next.to_string_lossy())
            })
        {
            words.push(value);
        }
    }
    if !words.is_empty() {
        own.push("--".into());
        own.extend(words);
    }
    own
}

fn script(args: &BenchArgs) -> Result<Script, Failure> {
    let refused = |wrong: Vec<eval::fio::Wrong>| {
        Failure::usage(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    if let Some(path) = &args.job {
        let text = std::fs::read_to_string(path)
            .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
        let mut script = parse_file(&path.display().to_string(), &text).map_err(refused)?;
        script.map_files(&args.map).map_err(Failure::usage)?;
        return Ok(script);
    }
    let words = args.words.iter().map(String::as_str);
    let named = |word: &str| {
        args.words.iter().any(|given| given.trim_start_matches('-').split('=').next() == Some(word))
    };
    let mut line = vec!["--name=bench", "--filename=-"];
    if !named("rw") && !named("readwrite") {
        line.extend(["--rw=randread", "--norandommap"]);
    }
    if !named("iodepth") {
        line.push("--iodepth=32");
    }
    if !named("runtime") && !named("size") && !named("io_size") {
        line.extend(["--runtime=5", "--time_based"]);
    }
    let mut script = parse_args(line.into_iter().chain(words)).map_err(refused)?;
    for job in &mut script.jobs {
        job.files.clone_from(&args.urls);
    }
    Ok(script)
}

/// Runs the jobs: those that are walled off one after the other, the rest side by side.
pub fn bench(args: &BenchArgs) -> Result<Exit, Failure> {
    let script = script(args)?;
    let notes =
        script.notes.iter().map(|note| format!("{} changes nothing: {}", note.word, note.why)).collect();
    let mut outcomes = Vec::new();
    let mut jobs = script.jobs.as_slice();
    while let Some((_, rest)) = jobs.split_first() {
        let together = rest.iter().take_while(|job| !job.is_walled).count();
        let group = &jobs[..=together];
        outcomes.extend(run_group(args, group)?);
        jobs = &jobs[together + 1..];
    }
    let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
    say(&if args.json { json(&outcomes, &notes) } else { table(&outcomes, &notes) })?;
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} I/Os failed")));
    }
    Ok(Exit::Success)
}

fn run_group(args: &BenchArgs, jobs: &[Job]) -> Result<Vec<Outcome>, Failure> {
    let threads = args.threads as usize;
    let barrier = Barrier::new(threads);
    let before = own_usage();
    let shares = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || run_share(args, jobs, thread, barrier))
            })
            .collect();
        let joined = spawned.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::failed("a thread of the load generator has panicked")))
        });
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let used = own_usage().minus(before);
    let mut outcomes: Vec<Outcome> = jobs.iter().map(Outcome::of).collect();
    for share in shares {
        for (outcome, (tally, failed, why)) in outcomes.iter_mut().zip(share) {
            outcome.tally.merge(&tally);
            outcome.failed += failed;
            outcome.why = outcome.why.take().or(why);
        }
    }
    // Jobs that run side by side share what was used by the I/Os that they did.
    let all: u64 = outcomes.iter().map(Outcome::ios).sum();
    for outcome in &mut outcomes {
        let part = if all == 0 { 0.0 } else { outcome.ios() as f64 / all as f64 };
        outcome.cpu = (used.0 * part, used.1 * part);
    }
    Ok(outcomes)
}

#[derive(Clone, Copy)]
struct Used(f64, f64);

impl Used {
    fn minus(self, earlier: Used) -> Used {
        Used(self.0 - earlier.0, self.1 - earlier.1)
    }
}

/// Processor seconds of this process: user, system.
fn own_usage() -> Used {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let process = eval::cpu::Process::parse(&text).unwrap_or_default();
    Used(process.user as f64 / ticks, process.system as f64 / ticks)
}

type Share = Vec<(Tally, u64, Option<String>)>;

/// One worker with the volumes and memory that it uses.
struct Seat {
    worker: Worker,
    job: usize,
    seed: u64,
    volumes: Vec<Handle>,
    shapes: Vec<Shape>,
    /// What each slot reads into, and what all write.
    memory: Vec<Option<SgMut>>,
    pattern: Sg,
    verifies: bool,
    why: Option<String>,
    asleep_until: Option<u64>,
    is_over: bool,
}

/// A thread's share of the workers: every `threads`-th, on connections of its own.
fn run_share(args: &BenchArgs, jobs: &[Job], thread: usize, barrier: &Barrier) -> Result<Share, Failure> {
    let made = set_share_up(args, jobs, thread);
    // Whoever fails still comes to the barrier, so that nobody waits for it in vain.
    barrier.wait();
    let (mut initiator, mut seats) = made?;
    let now = Instant::now();
    drive(&mut initiator, &mut seats, now, jobs.iter().any(|job| job.exits_all));
    let mut share: Share = jobs.iter().map(|_| Default::default()).collect();
    for seat in seats {
        let (tally, failed, why) = &mut share[seat.job];
        tally.merge(seat.worker.tally());
        *failed += seat.worker.failed();
        *why = why.take().or(seat.why);
        for volume in seat.volumes {
            // Another worker of this thread may have closed it already.
            if initiator.geometry(volume).is_some() {
                let _ = initiator.close(volume);
            }
        }
    }
    Ok(share)
}

fn set_share_up(args: &BenchArgs, jobs: &[Job], thread: usize) -> Result<(Initiator, Vec<Seat>), Failure> {
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
            IoWorld::Auto => IoChoice::Auto,
            IoWorld::Uring => IoChoice::Uring,
            IoWorld::Epoll => IoChoice::Epoll,
        },
        memory: usize::try_from(memory).map_err(|_| Failure::usage("too much would be in flight"))?,
        poll_ns_max: args.poll * 1000,
        ..Settings::default()
    };
    let mut initiator = Initiator::new(settings)?;
    let mut open: Vec<(String, Handle)> = Vec::new();
    let mut seats = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        for number in mine(job) {
            let mut volumes = Vec::new();
            for url in &job.files {
                let volume = match open.iter().find(|(known, _)| known == url) {
                    Some((_, volume)) => *volume,
                    None => {
                        let volume = initiator.open(&with_depth(url, in_flight))?;
                        open.push((url.clone(), volume));
                        volume
                    }
                };
                if job.direction != Direction::Read && initiator.is_read_only(volume) {
                    return Err(Failure::usage(format!("{}: it is read-only for us", job.name)));
                }
                volumes.push(volume);
            }
            seats.push(seat(&mut initiator, job, at, number, volumes)?);
        }
    }
    Ok((initiator, seats))
}

/// As many commands on a session as are to be in flight, unless the URL says how many.
fn with_depth(url: &str, in_flight: u64) -> String {
    if url.contains("commands=") || in_flight <= 128 {
        return url.to_owned();
    }
    let (mark, commands) = (if url.contains('?') { '&' } else { '?' }, in_flight.min(COMMANDS_MAX));
    format!("{url}{mark}commands={commands}")
}

fn seat(
    initiator: &mut Initiator,
    job: &Job,
    at: usize,
    number: u32,
    volumes: Vec<Handle>,
) -> Result<Seat, Failure> {
    let lacking = || Failure::failed("there is no memory for so much in flight");
    let shapes: Vec<Shape> = volumes
        .iter()
        .map(|volume| {
            initiator.geometry(*volume).map_or(Shape { bytes: 0, block: 512 }, |geometry| Shape {
                bytes: geometry.bytes(),
                block: geometry.logical,
            })
        })
        .collect();
    let mut memory = Vec::new();
    if job.direction != Direction::Write || job.verifies {
        for _ in 0..job.depth {
            memory.push(Some(initiator.memory(job.block.0.max(job.block.1) as usize).ok_or_else(lacking)?));
        }
    }
    let mut pattern = initiator.memory(job.block.1 as usize).ok_or_else(lacking)?;
    let mut bytes = vec![0; job.block.1 as usize];
    fill(&mut bytes, 0, job.seed);
    pattern.copy_from(0, &bytes);
    let worker = Worker::new(job, number, &shapes, 0).map_err(Failure::usage)?;
    Ok(Seat {
        worker,
        job: at,
        seed: u64::from(number),
        volumes,
        shapes,
        memory,
        pattern: pattern.freeze(),
        verifies: job.verifies,
        why: None,
        asleep_until: None,
        is_over: false,
    })
}

/// The name of an I/O: which seat, which slot, and what it was.
fn io_id(seat: usize, ask: &Ask) -> IoId {
    IoId((seat as u64) << 32 | u64::from(ask.slot) << 1 | u64::from(ask.kind == Kind::Verify))
}

fn drive(initiator: &mut Initiator, seats: &mut [Seat], begun: Instant, exits_all: bool) {
    let now = || begun.elapsed().as_nanos() as u64;
    let volumes: Vec<Handle> = {
        let mut all: Vec<Handle> = Vec::new();
        for volume in seats.iter().flat_map(|seat| seat.volumes.iter().copied()) {
            if !all.contains(&volume) {
                all.push(volume);
            }
        }
        all
    };
    // Where each verified I/O belongs.
    let mut places: Vec<Vec<(u64, u32)>> = seats.iter().map(|seat| vec![(0, 0); seat.memory.len()]).collect();
    loop {
        let mut wait: Option<u64> = None;
        for (at, seat) in seats.iter_mut().enumerate().filter(|(_, seat)| !seat.is_over) {
            let time = now();
            if seat.asleep_until.is_some_and(|until| until > time) {
                wait = [wait, seat.asleep_until].into_iter().flatten().min();
                continue;
            }
            seat.asleep_until = None;
            loop {
                match seat.worker.poll(time) {
                    Poll::Start(ask) => {
                        if ask.kind == Kind::Verify {
                            places[at][ask.slot as usize] = (ask.offset, ask.len);
                        }
                        begin(initiator, seat, at, &ask, &now);
                    }
                    Poll::Wait(until) => {
                        wait = [wait, until].into_iter().flatten().min();
                        break;
                    }
                    Poll::Finished => {
                        seat.is_over = true;
                        break;
                    }
                }
            }
        }
        if seats.iter().all(|seat| seat.is_over) {
            return;
        }
        if exits_all && seats.iter().any(|seat| seat.is_over) {
            seats.iter_mut().filter(|seat| !seat.is_over).for_each(|seat| seat.worker.stop());
        }
        initiator.turn(wait.map_or(Some(Duration::from_secs(1)), |until| {
            Some(Duration::from_nanos(until.saturating_sub(now())))
        }));
        let time = now();
        for volume in &volumes {
            while let Some(done) = initiator.poll_done(*volume) {
                end(seats, &places, done, time);
            }
        }
    }
}

fn begin(initiator: &mut Initiator, seat: &mut Seat, at: usize, ask: &Ask, now: &impl Fn() -> u64) {
    let block = u64::from(seat.shapes[ask.volume].block);
    let span = Span { lba: ask.offset / block, blocks: u64::from(ask.len) / block };
    let (op, payload) = match ask.kind {
        Kind::Read | Kind::Verify => {
            let mut memory = seat.memory.get_mut(ask.slot as usize).and_then(Option::take);
            if let Some(memory) = memory.as_mut().filter(|memory| memory.len() != ask.len as usize) {
                memory.truncate(ask.len as usize);
            }
            let Some(memory) = memory.or_else(|| initiator.memory(ask.len as usize)) else {
                seat.why.get_or_insert_with(|| "there is no memory left".to_owned());
                return seat.worker.done(ask.slot, now(), false);
            };
            (Op::Read(span), Payload::In(memory))
        }
        Kind::Write if seat.verifies => {
            let Some(mut memory) = initiator.memory(ask.len as usize) else {
                seat.why.get_or_insert_with(|| "there is no memory left".to_owned());
                return seat.worker.done(ask.slot, now(), false);
            };
            let mut place = ask.offset;
            for part in memory.slices_mut(0..ask.len as usize) {
                fill(part, place, seat.seed);
                place += part.len() as u64;
            }
            (Op::Write(span, Durability::Cached), Payload::Out(memory.freeze()))
        }
        Kind::Write => (Op::Write(span, Durability::Cached), Payload::Out(seat.pattern.clone())),
        Kind::Trim => (Op::Unmap(vec![span]), Payload::None),
        Kind::Flush => (Op::Flush, Payload::None),
    };
    let io = Io { id: io_id(at, ask), epoch: Epoch(0), op, payload };
    if initiator.submit(seat.volumes[ask.volume], io).is_err() {
        seat.why.get_or_insert_with(|| "the volume takes no more operations".to_owned());
        seat.worker.done(ask.slot, now(), false);
    }
}

fn end(seats: &mut [Seat], places: &[Vec<(u64, u32)>], done: initiator::Done, time: u64) {
    let (at, slot, is_look) = ((done.id.0 >> 32) as usize, (done.id.0 as u32) >> 1, done.id.0 & 1 == 1);
    let Some(seat) = seats.get_mut(at) else { return };
    let mut is_good = true;
    if let Err(failure) = done.result {
        is_good = false;
        seat.why.get_or_insert_with(|| initiator::Error::of(failure, "an I/O failed").message);
    }
    if let Payload::In(mut memory) = done.payload {
        if is_good && is_look {
            let (mut place, len) = places[at][slot as usize];
            for part in memory.slices_mut(0..len as usize) {
                if let Err(wrong) = verify(part, place, seat.seed) {
                    is_good = false;
                    seat.why = Some(format!("what was written does not come back: {wrong}"));
                    break;
                }
                place += part.len() as u64;
            }
        }
        if let Some(place) = seat.memory.get_mut(slot as usize) {
            *place = Some(memory);
        }
    }
    seat.worker.done(slot, time, is_good);
}

#[cfg(test)]
mod tests {
    use super::sort_words;

    #[test]
    fn fios_words_may_stand_anywhere() {
        let line = "blockwire bench --rw=randwrite iscsi://h/t/0 --threads 2 --iodepth 8 --time_based nvme+tcp://h/n/1";
        let sorted = sort_words(line.split(' ').map(Into::into).collect());
        let text: Vec<&str> = sorted.iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(
            text.join(" "),
            "blockwire bench iscsi://h/t/0 --threads 2 nvme+tcp://h/n/1 -- --rw=randwrite --iodepth 8 --time_based"
        );
        let other: Vec<std::ffi::OsString> = ["blockwire", "info", "--rw"].map(Into::into).into();
        assert_eq!(sort_words(other.clone()), other);
    }
}
