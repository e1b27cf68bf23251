//! One load on volumes: the experiments that need nothing else.
//!
//! Invariant: threads, volumes and connections are divided over all initiator machines, and none is lost.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use eval::fio::{IoDirection, Job, JobSize};
use eval::preset::{Step, VolumeMedium, Wire};
use eval::record::{Record, Run};

use crate::Failure;
use crate::background_traffic::BackgroundTraffic;
use crate::initiator::LoadTask;
use crate::measure::{HostLoad, LoadProgress, MeasuredLoad, measure_load};
use crate::place::CommandLocation;
use crate::process_watch::ProcessWatch;
use crate::progress::StepProgress;
use crate::recording::note_command;
use crate::run_directory::RunDirectory;
use crate::runner::{Runner, Testbed};

/// Bytes of a write that fills a volume: no target takes less in one command.
const FILL_WRITE_BYTES: u32 = 128 << 10;

/// Writes each volume once, so that reads find bytes and memory is there.
pub(crate) fn fill_volumes(runner: &mut Runner<'_>, testbed: &Testbed) -> Result<(), Failure> {
    let job = Job {
        name: "fill".to_owned(),
        direction: IoDirection::Write,
        block: (FILL_WRITE_BYTES, FILL_WRITE_BYTES),
        depth: 8,
        // All of it, once: without any size the generator would run for a time.
        size: Some(JobSize::Percent(100)),
        ..Job::default()
    };
    let initiator = runner.find_initiator("blockwire")?;
    let task = LoadTask {
        name: "fill".to_owned(),
        place: testbed.link.initiator_place(0)?,
        urls: testbed.serving.urls(&testbed.link.address(0)),
        job: &job,
        cores: &runner.cores.initiator,
        connections: 1,
        dir: &runner.dir,
    };
    initiator.run(&task, &|_| ()).map_err(|why| why.during("filling the volumes"))?;
    Ok(())
}

/// A load on a target's volumes.
pub(crate) fn run_load(
    runner: &mut Runner<'_>,
    step: &Step,
    testbed: &Testbed,
    moment: &StepProgress,
    record: &mut Record,
) -> Result<Run, Failure> {
    let hosts = testbed.link.initiator_places();
    let volumes = testbed.serving.urls(&testbed.link.address(0)).len();
    let used = loaded_hosts(hosts.len(), &step.job, volumes);
    if used < hosts.len() {
        let (all, name) = (hosts.len(), &step.job.name);
        let note =
            format!("{name}: of {all} initiator machines {used} are used: each takes a thread and a volume");
        record.notes.extend((!record.notes.contains(&note)).then_some(note));
    }
    let hosts = hosts.get(..used).unwrap_or(hosts);
    let mut parts = Vec::new();
    for (host, place) in hosts.iter().enumerate() {
        let urls = testbed.serving.urls(&testbed.link.address(host));
        let urls: Vec<String> = urls.into_iter().skip(host).step_by(hosts.len()).collect();
        let threads = host_share(step.job.threads, hosts.len(), host);
        let job = Job { threads, seed: step.job.seed + host as u64, ..step.job.clone() };
        parts.push(HostLoad {
            place: place.clone(),
            urls,
            job,
            connections: host_share(step.connections, hosts.len(), host),
        });
    }
    let cores = runner.cores.target_cores(step.cores);
    let watch = ProcessWatch::new(testbed.link.target_place().clone(), testbed.serving.pids(), &cores)
        .with_poll_source(testbed.serving.polls.clone());
    // What serves already has processes that nobody knows: its machine's cores are looked at, if it was named.
    let is_known = step.target != "url" || !testbed.link.target_place().is_local();
    let watch = is_known.then_some(watch);
    let mut noise = match step.wire {
        Wire::Congested { .. } => Some(BackgroundTraffic::start(runner, &testbed.link)?),
        _ => None,
    };
    let mut run = run_on_hosts(runner, step, &parts, watch.as_ref(), moment, record)?;
    if let Some(side) = &mut run.target {
        side.polls_untold = testbed.serving.is_polling && side.idle_polls.is_none();
    }
    noise.as_mut().map_or(Ok(()), BackgroundTraffic::check_still_running)?;
    Ok(run)
}

/// A load on the initiator's own memory, or on a file of its own: what the network is compared with.
pub(crate) fn run_local_load(
    runner: &mut Runner<'_>,
    step: &Step,
    moment: &StepProgress,
    record: &mut Record,
) -> Result<Run, Failure> {
    let file = match step.medium {
        VolumeMedium::File => Some(WrittenFile::create(step.volumes.1)?),
        VolumeMedium::Ram | VolumeMedium::Null => None,
    };
    let url = match &file {
        Some(file) => format!("file:{}", file.path.display()),
        None => format!("local:{}", step.volumes.1),
    };
    let urls = vec![url];
    let parts = vec![HostLoad { place: CommandLocation::Here, urls, job: step.job.clone(), connections: 1 }];
    run_on_hosts(runner, step, &parts, None, moment, record)
}

/// A file of this machine, all of it written: where nothing was, a read needs no disk.
struct WrittenFile {
    path: PathBuf,
    // Its directory lies in the run's, and goes with it at the latest.
    _scratch: Arc<RunDirectory>,
}

impl WrittenFile {
    fn create(bytes: u64) -> Result<WrittenFile, Failure> {
        let scratch = RunDirectory::current()?;
        let path = scratch.create_directory("file")?.join("volume");
        let file = WrittenFile { path, _scratch: scratch };
        let written = (|| {
            let mut out = std::fs::File::create_new(&file.path)?;
            let chunk: Vec<u8> = (0..FILL_WRITE_BYTES).map(|at| (at % 251) as u8).collect();
            let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
            while left > 0 {
                let part = chunk.get(..left).unwrap_or(&chunk);
                out.write_all(part)?;
                left -= part.len();
            }
            out.sync_all()
        })();
        written.map_err(|why: std::io::Error| {
            Failure::new(format!("{}: {why}: set TMPDIR to a directory with room", file.path.display()))
        })?;
        Ok(file)
    }
}

impl Drop for WrittenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn run_on_hosts(
    runner: &mut Runner<'_>,
    step: &Step,
    parts: &[HostLoad],
    target: Option<&ProcessWatch>,
    moment: &StepProgress,
    record: &mut Record,
) -> Result<Run, Failure> {
    let (initiators, dir) = (runner.initiators, runner.dir.clone());
    let initiator = initiators.iter().find(|known| known.name() == step.initiator);
    let Some(initiator) = initiator else {
        return Err(Failure::new(format!("unknown initiator {}", step.initiator)));
    };
    let cores = runner.cores.initiator.clone();
    let load =
        MeasuredLoad { initiator: &**initiator, name: "initiator", parts, target, cores: &cores, dir: &dir };
    let (run, commands) = measure_load(&load, &mut |pulse: LoadProgress| {
        runner.live.step_progressed(&moment.with_progress(&pulse))
    })?;
    commands.iter().for_each(|command| note_command(record, command));
    Ok(run)
}

/// How many of so many machines have a load to do: with one thread and one volume each at least, they would do
/// another load than that of the others.
fn loaded_hosts(hosts: usize, job: &Job, volumes: usize) -> usize {
    hosts.min(job.threads as usize).min(volumes).max(1)
}

/// How many of `all` fall to one of several.
fn host_share(all: u32, hosts: usize, host: usize) -> u32 {
    let hosts = u32::try_from(hosts).unwrap_or(1).max(1);
    let extra = u32::from((host as u32) < all % hosts);
    (all / hosts + extra).max(1)
}

/// A link, in a few words.
pub(crate) fn wire_name(wire: Wire) -> String {
    match (wire, rate_limit_text(wire)) {
        (Wire::Loopback, _) => "loopback".to_owned(),
        (_, Some(limit)) => format!("MTU {}, {limit}", mtu(wire)),
        (_, None) => format!("MTU {}", mtu(wire)),
    }
}

/// Bytes of the largest packet.
pub(crate) fn mtu(wire: Wire) -> u32 {
    match wire {
        Wire::Loopback => 65_536,
        Wire::Veth { mtu } | Wire::Limited { mtu, .. } | Wire::Congested { mtu, .. } => mtu,
    }
}

/// The speed that a link is held to.
pub(crate) fn rate_limit_text(wire: Wire) -> Option<String> {
    match wire {
        Wire::Limited { limit, .. } | Wire::Congested { limit, .. } => {
            Some(format!("{}Mb/s", limit / 1_000_000))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_its_own_is_written_and_goes() {
        let file = WrittenFile::create(u64::from(FILL_WRITE_BYTES) + 4096).unwrap();
        let path = file.path.clone();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(
            (bytes.len(), bytes[1], bytes[FILL_WRITE_BYTES as usize + 4095]),
            ((128 << 10) + 4096, 1, 79)
        );
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn threads_are_shared_out_and_none_is_lost() {
        let shares: Vec<u32> = (0..3).map(|host| host_share(20, 3, host)).collect();
        assert_eq!(shares, [7, 7, 6]);
        assert_eq!(host_share(1, 3, 2), 1, "each machine has at least one");
    }

    #[test]
    fn machines_together_never_do_more_than_the_load() {
        let job = Job { threads: 2, ..Job::default() };
        let used = loaded_hosts(3, &job, 8);
        let threads: u32 = (0..used).map(|host| host_share(job.threads, used, host)).sum();
        assert_eq!((used, threads), (2, 2));
        assert_eq!(
            (loaded_hosts(3, &Job { threads: 20, ..Job::default() }, 1), loaded_hosts(1, &job, 0)),
            (1, 1)
        );
    }
}
