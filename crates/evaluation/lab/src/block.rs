//! One load on volumes: the experiments that need nothing else.
//!
//! Invariant: threads, volumes and connections are divided over all initiator machines, and none is lost.

use eval::fio::{Amount, Direction, Job};
use eval::preset::{Step, Wire};
use eval::record::{Record, Run};

use crate::Failure;
use crate::background_traffic::BackgroundTraffic;
use crate::initiator::Task;
use crate::measure::{HostLoad, MeasuredLoad, Pulse, measure};
use crate::place::Place;
use crate::progress::StepProgress;
use crate::recording::note_command;
use crate::runner::{Runner, Testbed};
use crate::watch::Watch;

/// Bytes of a write that fills a volume: no target takes less in one command.
const FILLING: u32 = 128 << 10;

/// Writes each volume once, so that reads find bytes and memory is there.
pub(crate) fn fill(runner: &mut Runner<'_>, testbed: &Testbed) -> Result<(), Failure> {
    let job = Job {
        name: "fill".to_owned(),
        direction: Direction::Write,
        block: (FILLING, FILLING),
        depth: 8,
        // All of it, once: without any size the generator would run for a time.
        size: Some(Amount::Percent(100)),
        ..Job::default()
    };
    let initiator = runner.initiator("blockwire")?;
    let task = Task {
        name: "fill".to_owned(),
        place: testbed.link.initiator(0)?,
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
pub(crate) fn load(
    runner: &mut Runner<'_>,
    step: &Step,
    testbed: &Testbed,
    moment: &StepProgress,
    record: &mut Record,
) -> Result<Run, Failure> {
    let hosts = testbed.link.initiators();
    let volumes = testbed.serving.urls(&testbed.link.address(0)).len();
    let used = busy(hosts.len(), &step.job, volumes);
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
        let threads = share(step.job.threads, hosts.len(), host);
        let job = Job { threads, seed: step.job.seed + host as u64, ..step.job.clone() };
        parts.push(HostLoad {
            place: place.clone(),
            urls,
            job,
            connections: share(step.connections, hosts.len(), host),
        });
    }
    let cores = runner.cores.of_target(step.cores);
    let watch = Watch::new(testbed.link.target().clone(), testbed.serving.pids(), &cores)
        .asking(testbed.serving.polls.clone());
    // What serves already has processes that nobody knows: its machine's cores are looked at, if it was named.
    let is_known = step.target != "url" || !testbed.link.target().is_local();
    let watch = is_known.then_some(watch);
    let mut noise = match step.wire {
        Wire::Congested { .. } => Some(BackgroundTraffic::start(runner, &testbed.link)?),
        _ => None,
    };
    let mut run = run(runner, step, &parts, watch.as_ref(), moment, record)?;
    if let Some(side) = &mut run.target {
        side.polls_untold = testbed.serving.is_polling && side.idle_polls.is_none();
    }
    noise.as_mut().map_or(Ok(()), BackgroundTraffic::check)?;
    Ok(run)
}

/// A load on the initiator's own memory: what the network is compared with.
pub(crate) fn local(
    runner: &mut Runner<'_>,
    step: &Step,
    moment: &StepProgress,
    record: &mut Record,
) -> Result<Run, Failure> {
    let urls = vec![format!("local:{}", step.volumes.1)];
    let parts = vec![HostLoad { place: Place::Here, urls, job: step.job.clone(), connections: 1 }];
    run(runner, step, &parts, None, moment, record)
}

fn run(
    runner: &mut Runner<'_>,
    step: &Step,
    parts: &[HostLoad],
    target: Option<&Watch>,
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
    let (run, commands) = measure(&load, &mut |pulse: Pulse| runner.live.goes_on(&moment.at(&pulse)))?;
    commands.iter().for_each(|command| note_command(record, command));
    Ok(run)
}

/// How many of so many machines have a load to do: with one thread and one volume each at least, they would do
/// another load than that of the others.
fn busy(hosts: usize, job: &Job, volumes: usize) -> usize {
    hosts.min(job.threads as usize).min(volumes).max(1)
}

/// How many of `all` fall to one of several.
fn share(all: u32, hosts: usize, host: usize) -> u32 {
    let hosts = u32::try_from(hosts).unwrap_or(1).max(1);
    let extra = u32::from((host as u32) < all % hosts);
    (all / hosts + extra).max(1)
}

/// A link, in a few words.
pub(crate) fn wire_name(wire: Wire) -> String {
    match (wire, limit(wire)) {
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
pub(crate) fn limit(wire: Wire) -> Option<String> {
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
    fn threads_are_shared_out_and_none_is_lost() {
        let shares: Vec<u32> = (0..3).map(|host| share(20, 3, host)).collect();
        assert_eq!(shares, [7, 7, 6]);
        assert_eq!(share(1, 3, 2), 1, "each machine has at least one");
    }

    #[test]
    fn machines_together_never_do_more_than_the_load() {
        let job = Job { threads: 2, ..Job::default() };
        let used = busy(3, &job, 8);
        let threads: u32 = (0..used).map(|host| share(job.threads, used, host)).sum();
        assert_eq!((used, threads), (2, 2));
        assert_eq!((busy(3, &Job { threads: 20, ..Job::default() }, 1), busy(1, &job, 0)), (1, 1));
    }
}
