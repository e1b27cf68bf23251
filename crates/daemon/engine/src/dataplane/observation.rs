//! Reports of what is on the shards, made from their listings.
//!
//! Invariant: the work grows with what there is, not with its square: ten thousand volumes are listed in a moment.

use std::collections::HashMap;

use reactor::IoKind;
use shard::{CommandLatency, ConnectionStatus, SessionStatus, ShardListing, VolumeStatus};
use volume::VolumeId;

use super::{
    catalog_volume::CatalogVolume, exports::rate_limit_report, latency, nvme_queues, shards::Shards,
    volume_state,
};
use crate::{EngineError, EngineObservation};
use config::plan::Protocol;
use control::report::{
    ConnectionReport, HostRefusalReport, NegotiatedReport, SessionReport, ShardReport, VolumeStateReport,
};

impl Shards {
    /// All of it, from one look at each shard.
    pub(super) fn observation(&self) -> Result<EngineObservation, EngineError> {
        let listings = self.request_listings()?;
        let mut delayed: Vec<_> = listings.iter().flat_map(|listing| &listing.delayed).copied().collect();
        delayed.sort_unstable();
        // Every shard counts the failures of all.
        delayed.dedup();
        Ok(EngineObservation {
            sessions: self.session_reports(&listings, true),
            connections: self.connection_reports(&listings),
            shards: self.shard_reports(&listings),
            standings: self.volume_state_reports(&listings),
            latency: self.latency_reports(&listings),
            refusals: refusal_reports(&listings),
            delayed,
            paths_down: self.down_paths.list(),
        })
    }

    /// The sessions, with their latency or without.
    pub(super) fn session_reports(
        &self,
        listings: &[ShardListing],
        with_latency: bool,
    ) -> Vec<SessionReport> {
        let mut all = nvme_queues::controller_reports(&self.frame(), listings);
        if with_latency {
            nvme_queues::add_latency(&mut all, listings);
        }
        for (shard, listing) in listings.iter().enumerate() {
            all.extend(listing.sessions.iter().map(|session| SessionReport {
                id: session.tsih.into(),
                protocol: Protocol::Iscsi.as_str().to_owned(),
                initiator: session.initiator.to_string(),
                host: self.session_host(session),
                target: session.target.as_ref().map(ToString::to_string),
                isid: Some(session.isid.clone()),
                hostid: None,
                shard,
                connections: session.connections.len(),
                commands: session.tasks as u64,
                user: session.user.clone(),
                reads: session.io.reads,
                read_bytes: session.io.read_bytes,
                writes: session.io.writes,
                written_bytes: session.io.written_bytes,
                latency: with_latency.then(|| latency::latency_reports([&session.latency])),
            }));
        }
        all.sort_by_key(|session| session.id);
        all
    }

    /// The connections.
    pub(super) fn connection_reports(&self, listings: &[ShardListing]) -> Vec<ConnectionReport> {
        let mut all = nvme_queues::connection_reports(&self.frame(), listings);
        for (shard, listing) in listings.iter().enumerate() {
            for session in &listing.sessions {
                all.extend(session.connections.iter().map(|connection| ConnectionReport {
                    id: u64::from(session.tsih) << 16 | u64::from(connection.cid),
                    protocol: Protocol::Iscsi.as_str().to_owned(),
                    session: session.tsih.into(),
                    cid: connection.cid,
                    initiator: session.initiator.to_string(),
                    host: self.session_host(session),
                    user: session.user.clone(),
                    target: session.target.as_ref().map(ToString::to_string),
                    peer: connection.accepted.peer,
                    local: connection.accepted.local,
                    shard,
                    placement: self.frame().placement_text(session.placed),
                    algorithm: connection.algorithm.map(|algorithm| algorithm.to_string()),
                    dh_group: None,
                    tls: None,
                    unproven: false,
                    received_bytes: connection.traffic.received,
                    sent_bytes: connection.traffic.sent,
                    header_digest: connection.digests.0,
                    data_digest: connection.digests.1,
                    negotiated: Some(negotiated_report(session, connection)),
                    queue: None,
                    latency: None,
                }));
            }
        }
        all.sort_by_key(|connection| connection.id);
        all
    }

    /// Which host a session is of.
    pub(super) fn session_host(&self, session: &SessionStatus) -> Option<String> {
        let connection = session.connections.first()?;
        let ends = (connection.accepted.peer.ip(), connection.accepted.local.ip());
        let frame = self.frame();
        let host = frame.matching_host(&session.initiator, ends, session.target.as_deref()?)?;
        Some(host.name.clone())
    }

    /// What is true of each volume, in the order of their numbers.
    pub(super) fn volume_state_reports(&self, listings: &[ShardListing]) -> Vec<VolumeStateReport> {
        let by_volume = entries_by_volume(listings);
        let catalog = self.lock_catalog();
        let targets = volume_state::TargetsByVolume::of(&catalog);
        let standing = |(id, entry): (VolumeId, &CatalogVolume)| {
            let entries = by_volume.get(&id)?;
            let mut standing =
                volume_state::volume_state_report(&self.frame(), &targets, entry.name.as_str(), entries)?;
            standing.allocated_bytes = entry.shared.allocated_bytes();
            standing.limits = entry.limiter.as_deref().map(rate_limit_report);
            standing.sync_failed |= entry.shared.has_sync_failed() || entry.medium.has_sync_failure();
            Some(standing)
        };
        catalog.volumes.iter().filter_map(standing).collect()
    }

    fn latency_reports(
        &self,
        listings: &[ShardListing],
    ) -> HashMap<String, Vec<control::report::LatencyReport>> {
        let by_volume = entries_by_volume(listings);
        let catalog = self.lock_catalog();
        let one = |(id, entry): (VolumeId, &CatalogVolume)| {
            let entries: Vec<&CommandLatency> =
                by_volume.get(&id)?.iter().map(|entry| &entry.latency).collect();
            Some((entry.name.to_string(), latency::latency_reports(entries)))
        };
        catalog.volumes.iter().filter_map(one).collect()
    }

    /// The shards.
    pub(super) fn shard_reports(&self, listings: &[ShardListing]) -> Vec<ShardReport> {
        let io = match self.running.io_kind() {
            IoKind::Uring => "uring",
            IoKind::Epoll | IoKind::EpollInstead(_) => "epoll",
        };
        let both = listings.iter().zip(self.running.stats());
        let report = |(id, (listing, stats)): (usize, (&ShardListing, reactor::ShardStats))| ShardReport {
            id,
            core: self.cores.get(id).copied(),
            io: io.to_owned(),
            sessions: listing.sessions.len() + listing.queues.iter().filter(|queue| queue.qid == 0).count(),
            connections: listing.sessions.iter().map(|session| session.connections.len()).sum::<usize>()
                + listing.queues.len(),
            logins: listing.logins,
            memory_bytes: listing.memory.0 as u64,
            memory_lent_bytes: listing.memory.1 as u64,
            memory_reserved_bytes: listing.memory.2 as u64,
            turns: stats.turns,
            sleeps: stats.sleeps,
            polls_useful: stats.polls_useful,
            polls_idle: stats.polls_idle,
            poll_ns: stats.poll_ns,
            received_bytes: stats.recv_bytes,
            sent_bytes: stats.send_bytes,
            receives_starved: stats.recvs_starved,
            connections_refused: stats.refused,
            accepts_exhausted: stats.exhausted,
            disk_operations: stats.disks,
        };
        both.enumerate().map(report).collect()
    }
}

/// The entries of each volume, of all shards.
fn entries_by_volume(listings: &[ShardListing]) -> HashMap<VolumeId, Vec<&VolumeStatus>> {
    let mut found: HashMap<VolumeId, Vec<&VolumeStatus>> = HashMap::new();
    for entry in listings.iter().flat_map(|listing| &listing.volumes) {
        found.entry(entry.id).or_default().push(entry);
    }
    found
}

fn refusal_reports(listings: &[ShardListing]) -> Vec<HostRefusalReport> {
    let mut sums: Vec<((&'static str, &'static str), u64)> = Vec::new();
    for (cause, count) in listings.iter().flat_map(|listing| &listing.refusals) {
        match sums.iter_mut().find(|(known, _)| known == cause) {
            Some((_, sum)) => *sum += count,
            None => sums.push((*cause, *count)),
        }
    }
    sums.sort_unstable();
    let report = |((protocol, cause), count): ((&str, &str), u64)| HostRefusalReport {
        protocol: protocol.to_owned(),
        cause: cause.to_owned(),
        count,
    };
    sums.into_iter().map(report).collect()
}

fn negotiated_report(session: &SessionStatus, connection: &ConnectionStatus) -> NegotiatedReport {
    let params = &session.params;
    NegotiatedReport {
        max_send: connection.segments.0,
        max_receive: connection.segments.1,
        max_burst: params.max_burst,
        first_burst: params.first_burst,
        initial_r2t: params.initial_r2t,
        immediate_data: params.immediate_data,
        max_outstanding_r2t: params.max_outstanding_r2t,
        max_connections: params.max_connections,
        commands: session.window,
    }
}
