//! libiscsi's load generator, `iscsi-perf`: reads over one session, in user space.
//!
//! One process per session. It reports only its mean rate, over all of its time and without a ramp, so
//! latencies stay unknown; random reads begin at any block of the volume. Its load begins with its line "will
//! run for", which it prints when it is connected, and lasts for whole seconds.

use std::time::{Duration, Instant};

use eval::fio::{IoDirection, Job};
use eval::preset::Protocol;

use super::clock::{announce_window, whole_seconds_up};
use super::{Initiator, LoadEvent, LoadResult, LoadTask, counts_from_rate, load_timeout};
use crate::Failure;
use crate::place::CommandLocation;
use crate::process::Process;

/// `iscsi-perf`.
#[derive(Debug)]
pub(super) struct LibiscsiInitiator;

/// Most sessions, since each is a process.
const SESSIONS_MAX: u32 = 64;
/// Bytes of a block of the volumes; it is told lengths in blocks.
const BLOCK_BYTES: u32 = 512;

impl Initiator for LibiscsiInitiator {
    fn name(&self) -> &'static str {
        "libiscsi"
    }

    fn protocols(&self) -> &[Protocol] {
        &[Protocol::Iscsi]
    }

    fn missing(&self, place: &CommandLocation) -> Option<String> {
        let is_there = place.has_program("iscsi-perf");
        (!is_there)
            .then(|| format!("iscsi-perf: missing on {}: apt install libiscsi-bin", place.display_name()))
    }

    fn unsupported_reason(&self, job: &Job) -> Option<String> {
        let why = match job {
            _ if job.direction != IoDirection::Read => "iscsi-perf only reads",
            _ if job.rate != (None, None) => "iscsi-perf knows no rate",
            _ if job.runtime.is_none() || !job.is_time_based => "iscsi-perf ends by time alone",
            _ if !job.block.0.is_multiple_of(BLOCK_BYTES) => "iscsi-perf reads whole blocks",
            _ => return None,
        };
        Some(why.to_owned())
    }

    fn version(&self, place: &CommandLocation) -> Option<String> {
        // The program has a number of its own that never changes; the library's is its package's.
        let words = ["dpkg-query", "-W", "-f", "${Version}", "libiscsi-bin"];
        place.run(&words).ok().map(|said| said.trim().to_owned()).filter(|said| !said.is_empty())
    }

    fn load_overhead(&self) -> Duration {
        // Whole seconds, and one more so that its processes run together.
        Duration::from_millis(1700)
    }

    fn run(&self, task: &LoadTask<'_>, tell: &dyn Fn(LoadEvent)) -> Result<LoadResult, Failure> {
        let sessions = task.connections.max(task.urls.len() as u32);
        let depth = task.job.depth * task.job.threads;
        if sessions > SESSIONS_MAX {
            let most =
                format!("needs one process per session: {sessions} sessions, of at most {SESSIONS_MAX}");
            return Err(Failure::new(most));
        }
        if depth < sessions {
            return Err(Failure::new(format!("{depth} in flight cannot be shared by {sessions} sessions")));
        }
        // Processes begin apart: a second more, so that they run together for most of the time.
        let apart = u64::from(sessions > 1);
        let seconds = whole_seconds_up(task.job.ramp + task.job.runtime.unwrap_or_default()).max(1) + apart;
        let mut processes = Vec::new();
        for (session, url) in (0..sessions).zip(task.urls.iter().cycle()) {
            let extra = u32::from(session < depth % sessions);
            processes.push(start_session(task, session, url, depth / sessions + extra, seconds)?);
        }
        let mut begun: Vec<Instant> = Vec::new();
        for process in &mut processes {
            let moved = process.wait_for_line(Duration::from_secs(30), parse_transfer_bytes)?;
            if moved != u64::from(task.job.block.0) {
                return Err(process.failure_with_output(format!("it reads {moved} bytes at a time")));
            }
            process
                .wait_for_line(Duration::from_secs(30), |line| line.strip_prefix("will run for").map(drop))?;
            begun.push(process.last_line_time());
        }
        let pids = processes.iter().map(Process::pid).collect();
        let none = || Failure::new("there is no session to be measured");
        let (first, last) = begun.iter().copied().min().zip(begun.iter().copied().max()).ok_or_else(none)?;
        announce_window(&mut processes, pids, (last, first + Duration::from_secs(seconds)), tell)?;
        let mut figures = LoadResult { seconds: seconds as f64, ..LoadResult::default() };
        for process in &mut processes {
            let text = process.wait_for_output(load_timeout(task.job))?;
            let rate =
                last_average(&text).ok_or_else(|| process.failure_with_output("it gives no figure"))?;
            let all = counts_from_rate(rate, seconds, task.job.block.0);
            let (ios, moved) =
                all.ok_or_else(|| process.failure_with_output(format!("{rate} IOPS cannot be")))?;
            figures.merge(&LoadResult { seconds: seconds as f64, ios, moved, ..LoadResult::default() });
        }
        if let Some(first) = processes.first() {
            first.command_line().clone_into(&mut figures.command);
        }
        Ok(figures)
    }
}

fn start_session(
    task: &LoadTask<'_>,
    session: u32,
    url: &str,
    depth: u32,
    seconds: u64,
) -> Result<Process, Failure> {
    // Its output is to come as it is written, although nobody sees it.
    let mut words = ["stdbuf", "-oL", "iscsi-perf"].map(str::to_owned).to_vec();
    // Each needs a name of its own: sessions of one name and one ISID would end each other.
    words.extend(["-i".to_owned(), format!("iqn.2026-11.io.blockwire.eval:{}-{session}", task.name)]);
    words.extend(["-m".to_owned(), depth.to_string()]);
    words.extend(["-b".to_owned(), (task.job.block.0 / BLOCK_BYTES).to_string()]);
    words.extend(["-t".to_owned(), seconds.to_string()]);
    if task.job.is_random {
        words.push("-r".to_owned());
    }
    words.push(url.to_owned());
    task.start_process(words)
}

/// Bytes of each read, in the line that says so.
fn parse_transfer_bytes(line: &str) -> Option<u64> {
    let (_, bytes) = line.split_once("transfer size of ")?.1.split_once('(')?;
    bytes.split_once(' ')?.0.parse().ok()
}

/// The rate behind the last `iops average`: its final one.
fn last_average(text: &str) -> Option<f64> {
    let (_, behind) = text.rsplit_once("iops average ")?;
    behind.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_words_are_read() {
        // Releases differ in how they write its first word.
        for line in
            ["fixed transfer size of 8 blocks (4096 byte)", "FIXED transfer size of 8 blocks (4096 byte)"]
        {
            assert_eq!(parse_transfer_bytes(line), Some(4096));
        }
        let text = "00:00:01 - lba 4265, iops current 33511 (130 MB/s), iops average 33511 (130 MB/s)\n\
            iops average 30337 (118 MB/s)\n\nfinished.\n";
        assert_eq!(last_average(text), Some(30_337.0));
        assert_eq!(last_average("capacity is 0"), None);
    }

    #[test]
    fn what_it_cannot_do_is_said() {
        let reads = Job { runtime: Some(Duration::from_secs(1)), is_time_based: true, ..Job::default() };
        assert_eq!(LibiscsiInitiator.unsupported_reason(&reads), None);
        for (job, why) in [
            (Job { direction: IoDirection::Write, ..reads.clone() }, "only reads"),
            (Job { direction: IoDirection::Mixed(70), ..reads.clone() }, "only reads"),
            (Job { runtime: None, ..reads.clone() }, "by time"),
            (Job { rate: (Some(eval::fio::Rate::Iops(9)), None), ..reads }, "no rate"),
        ] {
            assert!(
                LibiscsiInitiator.unsupported_reason(&job).is_some_and(|said| said.contains(why)),
                "{why}"
            );
        }
    }
}
