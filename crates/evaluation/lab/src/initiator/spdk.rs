//! SPDK's load generator for NVMe/TCP, `spdk_nvme_perf`, which polls.
//!
//! Its load begins with its line "Launching workers". Figures count after whole seconds of warming up and for
//! whole seconds; it prints nothing meanwhile. Latencies are those of its own histogram (buckets of 1 part of
//! 128). I/Os in flight are divided over the volumes, or over its threads if those are more.

use std::time::Duration;

use eval::Histogram;
use eval::fio::{IoDirection, Job};
use eval::preset::{Protocol, fio_rw_word};

use super::clock::{announce_window, whole_seconds_up};
use super::{Initiator, LoadEvent, LoadResult, LoadTask, counts_from_rate, load_timeout};
use crate::Failure;
use crate::place::CommandLocation;
use crate::spdk;

/// `spdk_nvme_perf`.
#[derive(Debug)]
pub(super) struct SpdkPerfInitiator;

const PERF_PROGRAM: &str = "spdk_nvme_perf";
/// MiB that it needs beside the memory of its I/Os.
const MEMORY_MIB: u64 = 512;

impl Initiator for SpdkPerfInitiator {
    fn name(&self) -> &'static str {
        "spdk"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::NvmeTcp]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        spdk::missing_program(place, PERF_PROGRAM)
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        let why = match job {
            _ if job.direction == IoDirection::Trim => "it does not deallocate",
            _ if job.rate != (None, None) => "it knows no rate",
            _ if job.runtime.is_none() || !job.is_time_based => "it ends by time",
            _ if job.block.0 != job.block.1 => "reads and writes are of one size",
            _ if job.verifies => "it does not verify",
            _ => return None,
        };
        Some(format!("{PERF_PROGRAM}: {why}"))
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        spdk::target_version(place, "nvmf_tgt")
    }

    fn polls_without_report(&self) -> bool {
        true
    }

    fn load_overhead(&self) -> Duration {
        // Whole seconds of ramp and run, and its environment.
        Duration::from_secs(3)
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        let ramp = Duration::from_secs(whole_seconds_up(task.job.ramp));
        let seconds = whole_seconds_up(task.job.runtime.unwrap_or_default()).max(1);
        let words =
            command_words(task, spdk::program_command_prefix(PERF_PROGRAM)?, ramp.as_secs(), seconds)?;
        let mut processes = [task.start_process(words)?];
        processes[0].wait_for_line(Duration::from_secs(60), |line| {
            line.contains("Launching workers").then_some(())
        })?;
        let pids = vec![processes[0].pid()];
        let begin = processes[0].last_line_time() + ramp;
        announce_window(&mut processes, pids, (begin, begin + Duration::from_secs(seconds)), tell)?;
        let [mut process] = processes;
        let text = process.wait_for_output(load_timeout(task.job))?;
        let total = parse_total(&text).ok_or_else(|| process.failure_with_output("it gives no figure"))?;
        let all = counts_from_rate(total.iops, seconds, task.job.block.0);
        let (ios, moved) =
            all.ok_or_else(|| process.failure_with_output(format!("{} IOPS cannot be", total.iops)))?;
        Ok(LoadResult {
            seconds: seconds as f64,
            ios,
            moved,
            latency: parse_latencies(&text, &total).map_err(Failure::new)?,
            command: process.command_line().to_owned(),
            ..LoadResult::default()
        })
    }
}

fn command_words(
    task: &LoadTask<'_>,
    program: Vec<String>,
    ramp: u64,
    seconds: u64,
) -> Result<Vec<String>, Failure> {
    let job = task.job;
    let threads = task.cores.len().clamp(1, job.threads.max(1) as usize);
    let shares = (threads.max(task.urls.len())) as u32;
    let depth = job.depth * job.threads / shares;
    if depth == 0 {
        let all = job.depth * job.threads;
        return Err(Failure::new(format!("{all} in flight cannot be shared by {shares} volumes or threads")));
    }
    let in_flight = u64::from(depth) * u64::from(shares);
    let memory = MEMORY_MIB + ((in_flight * u64::from(job.block.0) * 2) >> 20);
    let cores = task.cores.iter().take(threads).copied().collect::<Vec<_>>();
    // Its output is to come as it is written, although nobody sees it.
    let mut words = ["stdbuf", "-oL"].map(str::to_owned).to_vec();
    words.extend(program);
    let mut pair = |flag: &str, value: String| words.extend([flag.to_owned(), value]);
    pair("-q", depth.to_string());
    pair("-o", job.block.0.to_string());
    pair("-w", fio_rw_word(job.direction, job.is_random).to_owned());
    if let IoDirection::Mixed(read) = job.direction {
        pair("-M", read.to_string());
    }
    pair("-t", seconds.to_string());
    if ramp > 0 {
        pair("-a", ramp.to_string());
    }
    pair("-c", spdk::core_mask(&cores));
    pair("-P", task.connections.div_ceil(shares).max(1).to_string());
    pair("-s", memory.to_string());
    for url in &task.urls {
        let named = transport_id(url)
            .ok_or_else(|| Failure::new(format!("{url}: not the URL of an NVMe/TCP volume")))?;
        pair("-r", named);
    }
    words.extend(["--no-huge", "--iova-mode", "va", "-LL"].map(str::to_owned));
    Ok(words)
}

/// A volume as it takes it. Without a name of its own it would say none at all, which no host may.
fn transport_id(url: &str) -> Option<String> {
    let (address, name) = url.strip_prefix("nvme+tcp://")?.split_once('/')?;
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "4420"));
    let (nqn, nsid) = name.split('?').next()?.rsplit_once('/')?;
    Some(format!(
        "trtype:TCP adrfam:IPv4 traddr:{host} trsvcid:{port} subnqn:{nqn} ns:{nsid} \
         hostnqn:nqn.2026-11.io.blockwire:spdk-nvme-perf"
    ))
}

/// What the line `TotalLine` says; latencies in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TotalLine {
    iops: f64,
    mean: f64,
    min: u64,
    max: u64,
}

fn parse_total(text: &str) -> Option<TotalLine> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("Total"))?;
    let (_, figures) = line.split_once(':')?;
    let figures: Vec<f64> = figures.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [iops, _, mean, min, max] = figures[..] else { return None };
    let ns = |us: f64| (us * 1e3) as u64;
    Some(TotalLine { iops, mean: mean * 1e3, min: ns(min), max: ns(max) })
}

/// All histograms that it prints, one for each volume and thread, in one.
fn parse_latencies(text: &str, total: &TotalLine) -> Result<Histogram, &'static str> {
    let bins: Vec<(f64, u64)> = text.lines().filter_map(parse_histogram_bin).collect();
    // Whether they can be counted is seen when they are gathered.
    let count: f64 = bins.iter().map(|(_, count)| *count as f64).sum();
    let squares: f64 = bins.iter().map(|(ns, count)| (ns - total.mean).powi(2) * *count as f64).sum();
    let deviation = (squares / count.max(1.0)).sqrt();
    let bins = bins.into_iter().map(|(ns, count)| (ns as u64, count));
    Histogram::from_counts(bins, (total.min, total.max), total.mean, deviation)
}

/// The middle of a bucket in nanoseconds, and its count: `27.520 - 27.648: 0.0042%  ( 5)`.
fn parse_histogram_bin(line: &str) -> Option<(f64, u64)> {
    let (range, rest) = line.split_once(':')?;
    let (from, to) = range.split_once(" - ")?;
    let (from, to): (f64, f64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
    let count = rest.split_once('(')?.1.strip_suffix(')')?.trim().parse().ok()?;
    Some(((from + to) / 2.0 * 1e3, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TEXT: &str = "Initialization complete. Launching workers.\n\
        ====\n\
        Device Information : IOPS MiB/s Average min max\n\
        TCP  (addr:127.0.0.1) NSID 1 from core  1:  510.00  2.0  1.0  1.0  9.0\n\
        Total                          :  586123.40    2289.54      54.59      30.91     812.33\n\n\
        Summary latency data for TCP from core 1:\n  50.00000% :    54.272us\n\n\
        Latency histogram for TCP  (addr:127.0.0.1 subnqn:nqn.x from core 1:\n\
        \x20      Range in us     Cumulative    IO count\n\
        \x20  50.000 -    50.400:   25.0000%  (       25)\n\
        \x20  55.800 -    56.200:  100.0000%  (       75)\n";

    #[test]
    fn its_figures_are_read() {
        let found = parse_total(TEXT).unwrap();
        assert_eq!(found, TotalLine { iops: 586_123.4, mean: 54_590.0, min: 30_910, max: 812_330 });
        let histogram = parse_latencies(TEXT, &found).unwrap();
        assert_eq!(histogram.count(), 100);
        assert!((histogram.percentile(50.0) as f64 / 56_000.0 - 1.0).abs() < 1.0 / 64.0);
        assert!((histogram.mean() - 54_590.0).abs() < 1.0);
        assert_eq!(parse_total("no device"), None);
        let full = format!("1.0 - 2.0: 1% ({})\n3.0 - 4.0: 2% ({})\n", u64::MAX, 1);
        assert!(parse_latencies(&full, &found).is_err(), "more than 64 bits count");
        let wrong = parse_total(&TEXT.replace("54.59", "NaN")).unwrap();
        assert!(parse_latencies(TEXT, &wrong).is_err());
    }

    #[test]
    fn a_url_becomes_a_transport() {
        let said = transport_id("nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.blockwire:v0/1").unwrap();
        assert!(
            said.starts_with("trtype:TCP adrfam:IPv4 traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.2026"),
            "{said}"
        );
        assert!(said.contains(":v0 ns:1 "), "{said}");
        assert_eq!(transport_id("iscsi://h/t/0"), None);
    }

    #[test]
    fn in_flight_is_shared_by_volumes() {
        let job = Job { depth: 8, threads: 2, block: (4096, 4096), ..Job::default() };
        let urls: Vec<String> = (0..4).map(|at| format!("nvme+tcp://h:1/nqn.v{at}/1")).collect();
        let task = LoadTask {
            name: "t".into(),
            place: &CommandLocation::Here,
            urls,
            job: &job,
            cores: &[1],
            connections: 4,
            dir: Path::new("/"),
        };
        let program = vec![PERF_PROGRAM.to_owned()];
        let said = command_words(&task, program.clone(), 0, 2).unwrap().join(" ");
        assert!(said.contains(" -q 4 ") && said.contains(" -c [1] ") && said.contains(" -P 1 "), "{said}");
        let many = LoadTask { urls: vec!["nvme+tcp://h:1/nqn.v/1".into(); 17], ..task };
        assert!(command_words(&many, program, 0, 2).unwrap_err().to_string().contains("17 volumes"));
    }
}
