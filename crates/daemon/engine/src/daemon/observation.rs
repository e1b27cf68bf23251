//! What is seen of the daemon at one moment, and what of it is not as it should be.
//!
//! Invariant: it is seen by one look at the shards, and the work grows with what there is, not with its square.

use std::collections::HashMap;

use super::{Daemon, refusal_from_engine_error, volumes::SYNC_FAILED_REASON};
use crate::{EngineObservation, store::Store};
use config::name::VolumeName;
use control::{
    RequestRefusal,
    report::{
        FailedVolumeReport, ObservationReport, ProblemReport, ShardReport, StatusReport, VolumePathReport,
        VolumeReport, VolumeStateReport,
    },
};
use metrics::ObservationSource;

/// A shard with less of its payload memory than one part in so many has hardly any left.
const MEMORY_SHORT_DIVISOR: u64 = 20;

impl ObservationSource for Daemon {
    fn observe(&self) -> Result<ObservationReport, RequestRefusal> {
        let engine = &self.volumes.engine;
        let seen = engine.observe().map_err(|why| refusal_from_engine_error(&why))?;
        let (mut volumes, away, count, targets, subsystems) = {
            let served = self.volumes.lock_served();
            (
                served.brief_reports(),
                absent_server_problems(&served.stores),
                served.stores.len(),
                served.ways.targets.len(),
                served.ways.subsystems.len(),
            )
        };
        add_volume_states(&mut volumes, &seen);
        let mut problems = problem_reports(&volumes, &seen);
        problems.extend(away);
        problems.extend(self.blocked_host_problems());
        let status = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            started_unix_seconds: self.started_unix_seconds,
            node: self.volumes.plan().node.as_ref().map(VolumeName::to_string),
            io: seen
                .shards
                .first()
                .map_or_else(|| self.volumes.plan().io.as_str().to_owned(), |shard| shard.io.clone()),
            listeners: engine.listeners(),
            volumes: count,
            problems,
            failed: volumes.iter().filter_map(failure_report).collect(),
            targets,
            subsystems,
            sessions: seen.sessions.len(),
            connections: seen.connections.len(),
            attachments: self.attachments.count_ready(),
            shards: seen.shards.len(),
            state: self.volumes.state.path().to_string_lossy().into_owned(),
            sandbox: self.sandbox.clone(),
            group: engine.group().and_then(|_| self.gateway_report().ok()),
        };
        let EngineObservation { sessions, connections, shards, refusals, .. } = seen;
        let host_limits = engine.host_limits();
        Ok(ObservationReport { status, volumes, sessions, connections, shards, refusals, host_limits })
    }
}

fn add_volume_states(volumes: &mut [VolumeReport], seen: &EngineObservation) {
    let by_name: HashMap<&str, &VolumeStateReport> =
        seen.standings.iter().map(|standing| (standing.volume.as_str(), standing)).collect();
    for volume in volumes {
        let Some(standing) = by_name.get(volume.name.as_str()) else { continue };
        if volume.failed.is_none() && standing.sync_failed {
            volume.failed = Some(SYNC_FAILED_REASON.to_owned());
        }
        volume.size_bytes = Some(standing.size_bytes);
        volume.read_only |= standing.backing_read_only;
        volume.latency = Some(seen.latency.get(&volume.name).cloned().unwrap_or_default());
        volume.standing = Some((*standing).clone());
    }
}

fn problem_report(kind: &str, subject: &str, why: impl ToString, next: impl ToString) -> ProblemReport {
    ProblemReport {
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        why: why.to_string(),
        next: next.to_string(),
    }
}

fn failure_report(volume: &VolumeReport) -> Option<FailedVolumeReport> {
    Some(FailedVolumeReport { volume: volume.name.clone(), why: volume.failed.clone()? })
}

/// What is not as it should be, the worst first.
fn problem_reports(volumes: &[VolumeReport], seen: &EngineObservation) -> Vec<ProblemReport> {
    let mut all: Vec<ProblemReport> = volumes.iter().filter_map(failed_volume_problem).collect();
    let standings = || volumes.iter().filter_map(|volume| volume.standing.as_ref());
    all.extend(standings().filter(|one| one.closed).map(|one| {
        let why = "blocked for all hosts: operations did not complete within the time-out of a change of reservations or paths";
        problem_report(ProblemReport::VOLUME_CLOSED, &one.volume, why, "check its disk; it opens when they end")
    }));
    all.extend(standings().filter(|one| one.no_space).map(|one| {
        let next = "free space on the backing file system, or discard unused blocks from the hosts (fstrim)";
        problem_report(
            ProblemReport::NO_SPACE,
            &one.volume,
            "writes fail because there is no space left",
            next,
        )
    }));
    all.extend(standings().flat_map(|one| &one.paths).filter_map(inaccessible_path_problem));
    let is_served = |name: &str| volumes.iter().any(|volume| volume.name == name);
    all.extend(seen.paths_down.iter().filter(|down| is_served(&down.volume)).map(|down| {
        let leg = down.leg.map_or_else(String::new, |leg| format!(" of leg {leg}"));
        let why = format!("path {}{leg} to it is down: {}", down.path, down.why);
        problem_report(
            ProblemReport::REMOTE_PATH_DOWN,
            &down.volume,
            why,
            "check that machine and the network",
        )
    }));
    all.extend(seen.shards.iter().filter_map(memory_problem));
    all.extend(seen.delayed.iter().map(|from| {
        let why = "its logins are delayed: they failed to authenticate several times";
        let next = "compare its secret with the one configured here; the delay ends after 5 minutes without a failure";
        problem_report(ProblemReport::HOST_BLOCKED, &from.to_string(), why, next)
    }));
    all
}

/// Volumes whose NBD server is away.
fn absent_server_problems(stores: &[Store]) -> Vec<ProblemReport> {
    let exports = stores.iter().flat_map(|store| {
        store.legs_or_self().iter().filter_map(move |part| Some((store, part.export.as_ref()?.absence()?)))
    });
    let problem = |(store, why): (&Store, String)| {
        let (name, next) = (store.volume.name.as_str(), "start the server, and check the network to it");
        problem_report(ProblemReport::REMOTE_PATH_DOWN, name, format!("its NBD server is away: {why}"), next)
    };
    exports.map(problem).collect()
}

fn failed_volume_problem(volume: &VolumeReport) -> Option<ProblemReport> {
    let why = volume.failed.as_ref()?;
    let in_doubt = volume.standing.as_ref().is_some_and(|standing| standing.sync_failed);
    let kind = if in_doubt { ProblemReport::SYNC_FAILED } else { ProblemReport::VOLUME_FAILED };
    let next = if in_doubt {
        format!("check the disk, then `blockwire volume retry {}`", volume.name)
    } else {
        format!("`blockwire volume retry {0}`, or `blockwire volume delete {0}`", volume.name)
    };
    Some(problem_report(kind, &volume.name, why, next))
}

/// A path that hosts cannot use.
fn inaccessible_path_problem(path: &VolumePathReport) -> Option<ProblemReport> {
    if !matches!(path.state.as_str(), "inaccessible" | "persistent-loss") {
        return None;
    }
    let why = format!("its path by port {} ({}) is {}", path.port, path.protocol, path.state);
    let next = format!("`blockwire path set {} --port {} --state optimized`", path.volume, path.port);
    Some(problem_report(ProblemReport::PATH_INACCESSIBLE, &path.volume, why, next))
}

fn memory_problem(shard: &ShardReport) -> Option<ProblemReport> {
    let free = shard.memory_bytes.saturating_sub(shard.memory_lent_bytes);
    if shard.memory_bytes == 0 || free >= shard.memory_bytes / MEMORY_SHORT_DIVISOR {
        return None;
    }
    let why = format!("{free} of {} bytes of payload memory are free", shard.memory_bytes);
    let next = "raise `memory` in [limits], or look for hosts that do not read what they asked for (`connection list`)";
    Some(problem_report(ProblemReport::MEMORY_SHORT, &format!("shard {}", shard.id), why, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DownPath;

    fn kinds(volumes: &[VolumeReport], seen: &EngineObservation) -> Vec<(String, String)> {
        problem_reports(volumes, seen).into_iter().map(|one| (one.kind, one.subject)).collect()
    }

    fn volume(change: impl FnOnce(&mut VolumeStateReport)) -> VolumeReport {
        let mut standing = VolumeStateReport { volume: "a".into(), ..VolumeStateReport::default() };
        change(&mut standing);
        VolumeReport { name: "a".into(), standing: Some(standing), ..VolumeReport::default() }
    }

    #[test]
    fn each_kind_of_problem_is_found_and_says_what_to_do() {
        let path = |state: &str| VolumePathReport {
            volume: "a".into(),
            port: 3,
            protocol: "nvme".into(),
            group: 1,
            target: None,
            addresses: Vec::new(),
            state: state.into(),
            preferred: false,
        };
        let mut sync_failed = volume(|one| one.sync_failed = true);
        sync_failed.failed = Some(SYNC_FAILED_REASON.into());
        let failed =
            VolumeReport { name: "b".into(), failed: Some("gone".into()), ..VolumeReport::default() };
        for (volume, kind) in [
            (failed, ProblemReport::VOLUME_FAILED),
            (sync_failed, ProblemReport::SYNC_FAILED),
            (volume(|one| one.closed = true), ProblemReport::VOLUME_CLOSED),
            (volume(|one| one.no_space = true), ProblemReport::NO_SPACE),
            (volume(|one| one.paths = vec![path("inaccessible")]), ProblemReport::PATH_INACCESSIBLE),
        ] {
            let name = volume.name.clone();
            assert_eq!(kinds(&[volume], &EngineObservation::default()), [(kind.to_owned(), name)]);
        }
        let healthy = [volume(|one| one.paths = vec![path("optimized"), path("non-optimized")])];
        assert!(kinds(&healthy, &EngineObservation::default()).is_empty());
        let down = |name: &str| DownPath { volume: name.into(), leg: None, path: 1, why: "refused".into() };
        let seen = EngineObservation {
            paths_down: vec![down("a"), down("deleted")],
            delayed: vec!["192.0.2.7".parse().unwrap()],
            ..EngineObservation::default()
        };
        let found = problem_reports(&healthy, &seen);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].kind, ProblemReport::REMOTE_PATH_DOWN);
        assert_eq!(
            (found[1].kind.as_str(), found[1].subject.as_str()),
            (ProblemReport::HOST_BLOCKED, "192.0.2.7")
        );
        assert!(found.iter().all(|one| !one.next.is_empty() && ProblemReport::KINDS.contains(&&*one.kind)));
    }

    #[test]
    fn a_pool_that_is_nearly_all_lent_is_short() {
        let shard = |lent| ShardReport {
            id: 1,
            core: None,
            io: "epoll".into(),
            sessions: 0,
            connections: 0,
            logins: 0,
            memory_bytes: 1000,
            memory_lent_bytes: lent,
            memory_reserved_bytes: 0,
            turns: 0,
            sleeps: 0,
            polls_useful: 0,
            polls_idle: 0,
            poll_ns: 0,
            received_bytes: 0,
            sent_bytes: 0,
            receives_starved: 0,
            connections_refused: 0,
            accepts_exhausted: 0,
            disk_operations: 0,
        };
        assert_eq!(memory_problem(&shard(950)), None);
        let short = memory_problem(&shard(951)).unwrap();
        assert_eq!((short.kind.as_str(), short.subject.as_str()), (ProblemReport::MEMORY_SHORT, "shard 1"));
    }
}
