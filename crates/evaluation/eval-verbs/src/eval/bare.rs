//! `blockwire eval bare`: the bare responder and requester, the ceiling for systems that speak a protocol.
//!
//! The responder says `volume PORT/FIRST+BYTES` for each volume and then `ready`, and serves until it is ended. The
//! requester prints figures in the form of `bench --json`, and events as `bench --events` does. Invariant: the figures
//! are printed once, and are those of all threads together.

use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bench::bare::{BareLoad, BareVolume, MemoryLayout, ProgressEvent, run_bare_load};
use bench::load::LoadMeasurement;
use bench::responder::{ResponderOptions, serve};
use bench::spin::WaitMode;
use bench::wire_protocol::LoadOp;
use clap::Args;
use config::size;
use eval::Histogram;
use process::exit::{Exit, Failure};
use process::stdout::print;
use serde_json::{Value, json};

/// `eval bare`
#[derive(Debug, Args)]
#[group(skip)]
pub struct BareArgs {
    /// Respond on this address, each thread on a free port of it, until ended
    #[arg(long, value_name = "ADDRESS", conflicts_with = "to", required_unless_present = "to")]
    listen: Option<std::net::IpAddr>,
    /// Request from these volumes: bare://ADDRESS:PORT/FIRST+BYTES
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    to: Vec<BareVolume>,
    /// Volumes that the responder's memory is divided into
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    volumes: u32,
    /// Bytes of each volume
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    bytes: u64,
    /// Answer from a few buffers in place of memory of the volumes' size
    #[arg(long)]
    null: bool,
    /// Threads of either end
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Longest poll before sleeping, in microseconds; 0: none
    #[arg(long, value_name = "US", default_value_t = 50)]
    poll: u64,
    /// Where the responder writes for how many seconds it has polled
    #[arg(long, value_name = "FILE")]
    polled: Option<PathBuf>,
    /// read, write or rw, in order, or the same behind rand
    #[arg(long, default_value = "randread", value_parser = ["read", "write", "rw", "randread", "randwrite", "randrw"])]
    rw: String,
    /// Percent of reads in a mix
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(..=100))]
    mix: u8,
    /// Requests per second, each begun on time [default: one for each that ends]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Bytes of a request, at most 1M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size::parse)]
    bs: u64,
    /// Requests in flight over all threads
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    in_flight: u32,
    /// Connections of a thread with each volume
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    sessions: u32,
    /// Milliseconds before figures count
    #[arg(long, value_name = "MS", default_value_t = 500)]
    ramp_ms: u64,
    /// Milliseconds for which figures count
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    runtime_ms: u64,
    /// What the offsets follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Bytes of the longest request that a responder answers.
const REQUEST_MAX: u64 = 1 << 20;

/// Responds, or requests.
pub fn run_bare(args: &BareArgs) -> Result<Exit, Failure> {
    match args.listen {
        Some(address) => run_responder(args, address),
        None => run_requester(args),
    }
}

/// How often the time of polling is written.
const POLLED_WRITE_INTERVAL: Duration = Duration::from_millis(50);

fn run_responder(args: &BareArgs, address: std::net::IpAddr) -> Result<Exit, Failure> {
    let much = || Failure::usage("so many bytes are more than can be");
    let threads = args.threads as usize;
    let layout = MemoryLayout::of(args.volumes as usize, args.bytes, threads).ok_or_else(much)?;
    let polled = Arc::new(AtomicU64::new(0));
    let (to, from) = channel();
    for (thread, memory) in layout.memories.iter().enumerate() {
        let memory = if args.null { 0 } else { usize::try_from(*memory).map_err(|_| much())? };
        let options = ResponderOptions {
            listen: SocketAddr::new(address, 0),
            wait: if args.poll == 0 { WaitMode::Sleep } else { WaitMode::Adaptive },
            poll: Duration::from_micros(args.poll),
            congestion: None,
            memory,
            polled: Some(Arc::clone(&polled)),
        };
        let to = to.clone();
        std::thread::spawn(move || {
            let ready = to.clone();
            let ended = serve(options, move |address| drop(ready.send((thread, Ok(address)))), |_| ());
            let why = ended.err().map_or("it was ended".to_owned(), |why| why.to_string());
            drop(to.send((thread, Err(why))));
        });
    }
    drop(to);
    let failed = |why: String| Failure::failed(format!("{address}: {why}"));
    let silent = || failed("a thread has ended".to_owned());
    let mut ports = vec![0; threads];
    for _ in 0..threads {
        let (thread, answer) = from.recv().map_err(|_| silent())?;
        if let Some(port) = ports.get_mut(thread) {
            *port = answer.map_err(failed)?.port();
        }
    }
    for (thread, first) in &layout.places {
        let port = ports.get(*thread).copied().unwrap_or_default();
        print(&format!("volume {port}/{first}+{}\n", args.bytes))?;
    }
    print("ready\n")?;
    let file = args.polled.as_deref().map(create_file).transpose()?;
    loop {
        if let Some(file) = &file {
            // Always as long, so that who reads it meanwhile sees a whole number.
            let seconds = polled.load(Ordering::Relaxed) as f64 / 1e9;
            let written = file.write_all_at(format!("{seconds:020.6}\n").as_bytes(), 0);
            written.map_err(|why| failed(format!("--polled: {why}")))?;
        }
        match from.recv_timeout(if file.is_some() {
            POLLED_WRITE_INTERVAL
        } else {
            Duration::from_secs(3600)
        }) {
            Ok((_, Err(why))) => return Err(failed(why)),
            Ok(_) | Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return Err(silent()),
        }
    }
}

fn create_file(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::create(path).map_err(|why| Failure::failed(format!("{}: {why}", path.display())))
}

fn run_requester(args: &BareArgs) -> Result<Exit, Failure> {
    if args.bs == 0 || args.bs > REQUEST_MAX {
        return Err(Failure::usage(format!("--bs: 1 to {REQUEST_MAX} bytes are expected")));
    }
    let is_write = args.rw.ends_with("write");
    let load = BareLoad {
        op: if is_write { LoadOp::Write } else { LoadOp::Read },
        reads: args.rw.ends_with("rw").then_some(args.mix),
        rate: args.rate.map(|rate| rate as f64),
        len: args.bs as u32,
        is_sequential: !args.rw.starts_with("rand"),
        in_flight: args.in_flight,
        threads: args.threads.min(args.in_flight),
        sessions: args.sessions,
        ramp: Duration::from_millis(args.ramp_ms),
        runtime: Duration::from_millis(args.runtime_ms),
        poll: Duration::from_micros(args.poll),
        seed: args.seed,
    };
    let begun = Instant::now();
    let began = AtomicU64::new(0);
    let tell = |event: ProgressEvent| {
        let now = begun.elapsed().as_nanos() as u64;
        match event {
            ProgressEvent::Began => {
                began.store(now, Ordering::Relaxed);
                eprintln!("{}", json!({ "event": "begin" }));
            }
            ProgressEvent::Progress(ios) => {
                let seconds = now.saturating_sub(began.load(Ordering::Relaxed)) as f64 / 1e9;
                eprintln!(
                    "{}",
                    json!({ "event": "progress", "seconds": seconds, "ios": ios, "bytes": ios * args.bs })
                );
            }
            ProgressEvent::Ended => eprintln!("{}", json!({ "event": "end" })),
        }
    };
    let measured = run_bare_load(&load, &args.to, &tell)
        .map_err(|why| Failure::failed(format!("{why}; is `eval bare --listen` there?")))?;
    print(&format!("{:#}\n", total_figures(&measured, args.bs)))?;
    Ok(Exit::Success)
}

/// What all threads together did.
fn total_figures(measured: &[LoadMeasurement], bytes: u64) -> Value {
    let mut latency = Histogram::default();
    measured.iter().for_each(|one| latency.merge(&one.latency));
    let writes: u64 = measured.iter().map(|one| one.writes).sum();
    let reads = latency.count() - writes;
    let longest = measured.iter().map(|one| one.seconds).fold(0.0, f64::max);
    let oldest = measured.iter().map(|one| one.unfinished_oldest.as_secs_f64()).fold(0.0, f64::max);
    let polled: u64 = measured.iter().map(|one| one.waits.polled_ns).sum();
    let mut job = json!({
        "name": "bare", "seconds": longest, "errors": 0, "poll_seconds": polled as f64 / 1e9,
        "unfinished_ios": measured.iter().map(|one| one.unfinished).sum::<u64>(),
        "unfinished_oldest_seconds": oldest,
    });
    // Latencies are of both, and told once.
    let mut latency = Some(latency);
    for (kind, ios) in [("read", reads), ("write", writes)] {
        if ios > 0
            && let Some(job) = job.as_object_mut()
        {
            let mut figures = json!({ "ios": ios, "bytes": ios * bytes });
            if let (Some(latency), Some(figures)) = (latency.take(), figures.as_object_mut()) {
                figures.insert("histogram".to_owned(), json!(latency));
            }
            job.insert(kind.to_owned(), figures);
        }
    }
    json!({ "jobs": [job] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_all_threads() {
        let one = |seconds: f64, ns: u64| {
            let mut latency = Histogram::default();
            latency.record(ns);
            LoadMeasurement { seconds, latency, writes: 1, unfinished: 2, ..LoadMeasurement::default() }
        };
        let all = total_figures(&[one(1.0, 500), one(1.5, 700)], 4096);
        let job = &all["jobs"][0];
        assert_eq!((&job["seconds"], &job["unfinished_ios"]), (&json!(1.5), &json!(4)));
        assert_eq!((&job["write"]["ios"], &job["write"]["bytes"]), (&json!(2), &json!(8192)));
        assert_eq!(job.get("read"), None);
    }
}
