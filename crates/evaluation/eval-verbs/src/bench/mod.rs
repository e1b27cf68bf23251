//! `blockwire bench`: load on remote volumes, with fio's options.
//!
//! Workers ([`eval::load`]) decide what starts when. Each thread (`thread_share`) drives its share of them over its
//! own sessions or queues, and `status` reports them. Invariant: processor time is that of the span in which
//! figures count.

mod arguments;
mod disk;
mod status;
mod table;
mod thread_share;
mod volumes;

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use clap::Args;
use eval::fio::{Job, Script, parse_args, parse_file};

pub use self::arguments::reorder_words;
use self::status::{ProgressFormat, ThreadCounters};
use self::table::{JobOutcome, outcomes_json, outcomes_table};
use self::thread_share::run_thread_share;
use self::volumes::NegotiatedParameters;
use config::plan::IoEngine;
use control::secret_url::SecretUrl;
use process::exit::{Exit, Failure};
use process::stdout::print;

/// `bench`
#[derive(Debug, Args)]
#[command(after_help = "Options are fio's, written --name=value or --name value after the URLs; K is 1024:
  --rw=read|write|randread|randwrite|rw|randrw  --bs=4k  --iodepth=32
  --numjobs=1  --size=1g  --runtime=10  --time_based  --rwmixread=70
  --rate_iops=1000  --norandommap  --verify=crc32c  --ramp_time=1  ...
Without any: 4 KiB random reads, 32 in flight, for 5 seconds. --runtime alone runs for that time, as with --time_based.

A job file of fio runs as it stands:
  blockwire bench --job vm.fio --map /dev/sdb=iscsi://10.0.0.1/iqn.2026-11.x:v/0
and so does a command line of fio, as it stands behind the word fio:
  blockwire bench --map /dev/sdb=iscsi://10.0.0.1/iqn.2026-11.x:v/0 \\
      fio --name=x --filename=/dev/sdb --rw=write ...

Examples:
  blockwire bench iscsi://127.0.0.1/iqn.2026-11.io.blockwire:demo/0
  blockwire bench nvme+tcp://127.0.0.1/nqn.2026-11.io.blockwire:demo/1 \\
      --rw=randwrite --iodepth=128 --runtime=10

Writes overwrite the volume; a volume in use needs --force.")]
pub struct BenchArgs {
    /// Volumes, used in turn: URLs; file:PATH and /dev/NAME for local disks; local:SIZE for memory of this
    /// process
    #[arg(required_unless_present = "job")]
    pub urls: Vec<SecretUrl>,
    /// A fio job file
    #[arg(long, value_name = "FILE", conflicts_with = "urls")]
    pub job: Option<PathBuf>,
    /// The volume for a name in the job file, or in fio's command line
    #[arg(long, value_name = "NAME=URL", value_parser = parse_mapping)]
    pub map: Vec<(String, SecretUrl)>,
    /// Write even if it seems to be in use: a mounted device, a file behind a loop device, a volume that is
    /// attached here or reserved by another host
    #[arg(long)]
    pub force: bool,
    /// Threads of the load generator, each with its own connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Sessions or controllers per thread and volume; the thread's workers are distributed over them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub sessions: u32,
    /// Processor of the first thread; the others use the following ones
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// I/O interface
    #[arg(long, value_enum, default_value = "auto")]
    pub io: IoEngine,
    /// Poll for this many microseconds before sleeping
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub poll: u64,
    /// Print a JSON object per line on standard error: when figures begin and stop counting, and progress
    #[arg(long)]
    pub events: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// fio's options
    #[arg(last = true)]
    pub words: Vec<String>,
}

fn parse_mapping(text: &str) -> Result<(String, SecretUrl), Failure> {
    let (name, url) = text.split_once('=').ok_or_else(|| Failure::usage("NAME=URL is expected"))?;
    Ok((name.to_owned(), url.into()))
}

fn build_script(args: &BenchArgs) -> Result<Script, Failure> {
    let refused = |wrong: Vec<eval::fio::ScriptError>| {
        Failure::usage(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    };
    let map: Vec<(String, String)> =
        args.map.iter().map(|(name, url)| (name.clone(), url.to_string())).collect();
    if let Some(path) = &args.job {
        let text = std::fs::read_to_string(path)
            .map_err(|why| Failure::failed(format!("{}: {why}", path.display())))?;
        let mut script = parse_file(&path.display().to_string(), &text).map_err(refused)?;
        script.map_files(&map).map_err(Failure::usage)?;
        return Ok(script);
    }
    let words = args.words.iter().map(String::as_str);
    // A command line of fio's, as it stands: it names its job and its files itself.
    if args.urls.iter().map(|url| &**url).eq(["fio"]) {
        let mut script = parse_args(words).map_err(refused)?;
        script.map_files(&map).map_err(Failure::usage)?;
        return Ok(script);
    }
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
    } else if named("runtime") && !named("time_based") && !named("size") && !named("io_size") {
        // Who names a time means it, however small the volume is; fio would end after one pass.
        line.push("--time_based");
    }
    let mut script = parse_args(line.into_iter().chain(words)).map_err(refused)?;
    for job in &mut script.jobs {
        job.files = args.urls.iter().map(|url| url.to_string()).collect();
    }
    Ok(script)
}

/// Runs the jobs: those that are walled off one after the other, the rest side by side.
pub fn run_bench(args: &BenchArgs) -> Result<Exit, Failure> {
    let script = build_script(args)?;
    let notes =
        script.notes.iter().map(|note| format!("{} changes nothing: {}", note.word, note.why)).collect();
    let mut outcomes = Vec::new();
    let mut negotiated = None;
    for group in script.jobs.chunk_by(|_, next| !next.is_walled) {
        let (some, with) = run_group(args, group)?;
        outcomes.extend(some);
        negotiated = negotiated.or(with);
    }
    let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
    print(&if args.json {
        outcomes_json(&outcomes, &notes, negotiated.as_ref())
    } else {
        outcomes_table(&outcomes, &notes)
    })?;
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} I/Os failed")));
    }
    Ok(Exit::Success)
}

/// The jobs' figures, and what was negotiated for the first session.
fn run_group(
    args: &BenchArgs,
    jobs: &[Job],
) -> Result<(Vec<JobOutcome>, Option<NegotiatedParameters>), Failure> {
    let threads = args.threads as usize;
    let disks = disk::open_disks(&volumes::local_disks_of(jobs), args.force)?;
    // The threads, and who watches them.
    let barrier = Barrier::new(threads + 1);
    let has_failed = AtomicBool::new(false);
    let cells: Vec<ThreadCounters> = (0..threads).map(|_| ThreadCounters::default()).collect();
    let (to, over) = std::sync::mpsc::channel();
    let (shares, used) = std::thread::scope(|scope| {
        let spawned: Vec<_> = cells
            .iter()
            .enumerate()
            .map(|(thread, cell)| {
                let (start, to, disks) = ((&barrier, &has_failed), to.clone(), &disks);
                scope.spawn(move || {
                    let share = run_thread_share(args, jobs, thread, disks, start, cell);
                    drop(to);
                    share
                })
            })
            .collect();
        drop(to);
        barrier.wait();
        let used = status::watch_jobs(jobs, &cells, &over, ProgressFormat::of_stderr(args.events));
        let joined = spawned.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(Failure::failed("a thread of the load generator has panicked")))
        });
        Ok::<_, Failure>((joined.collect::<Result<Vec<_>, _>>()?, used))
    })?;
    let mut outcomes: Vec<JobOutcome> = jobs.iter().map(JobOutcome::of).collect();
    let mut negotiated = None;
    for share in shares {
        negotiated = negotiated.or(share.negotiated);
        for (outcome, (tally, failed, why)) in outcomes.iter_mut().zip(share.jobs) {
            outcome.tally.merge(&tally);
            outcome.failed += failed;
            outcome.why = outcome.why.take().or(why);
        }
    }
    // Jobs that run side by side share what was used by the I/Os that they did.
    let all: u64 = outcomes.iter().map(JobOutcome::ios).sum();
    for outcome in &mut outcomes {
        let part = if all == 0 { 0.0 } else { outcome.ios() as f64 / all as f64 };
        outcome.cpu = used.map(|used| (used.user * part, used.system * part));
        outcome.polled = used.map(|used| used.polled * part);
    }
    Ok((outcomes, negotiated))
}
