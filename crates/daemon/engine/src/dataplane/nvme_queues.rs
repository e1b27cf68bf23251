//! NVMe controllers and their queues, as sessions and connections of reports.

use std::collections::{BTreeMap, btree_map::Entry};

use shard::{DISCOVERY_NQN, HostAuthentication, QueueEntry, ShardListing};

use super::{exports::FixedSettings, latency};
use config::plan::Protocol;
use control::report::{ConnectionReport, QueueReport, SessionReport, TlsReport};

/// Controllers are numbered behind all sessions.
const CONTROLLER_ID_BASE: u64 = 1 << 16;

/// The number of a controller among the sessions.
pub fn session_id(cntlid: u16) -> u64 {
    CONTROLLER_ID_BASE | u64::from(cntlid)
}

/// The controller of this number among the sessions; `None`: it is an iSCSI session's, or nobody's.
pub fn cntlid(session: u64) -> Option<u16> {
    u16::try_from(session.checked_sub(CONTROLLER_ID_BASE)?).ok()
}

/// The number of a queue among the connections.
pub fn connection_id(queue: &QueueEntry) -> u64 {
    session_id(queue.cntlid) << 16 | u64::from(queue.qid)
}

/// The subsystem; none for discovery, as over iSCSI.
pub fn subsystem_name(queue: &QueueEntry) -> Option<String> {
    (&*queue.subsystem != DISCOVERY_NQN).then(|| queue.subsystem.to_string())
}

/// The configured host that a queue is of.
pub fn queue_host(frame: &FixedSettings, queue: &QueueEntry) -> Option<String> {
    let found = frame.matching_nvme_host(
        queue.host.as_str(),
        queue.host_id,
        queue.accepted.peer.ip(),
        &queue.subsystem,
    )?;
    Some(found.name.clone())
}

/// Each queue of each shard, as a connection.
pub fn connection_reports(frame: &FixedSettings, listings: &[ShardListing]) -> Vec<ConnectionReport> {
    let mut all = Vec::new();
    for (shard, listing) in listings.iter().enumerate() {
        all.extend(listing.queues.iter().map(|queue| ConnectionReport {
            id: connection_id(queue),
            protocol: Protocol::Nvme.as_str().to_owned(),
            session: session_id(queue.cntlid),
            cid: queue.qid,
            initiator: queue.host.to_string(),
            host: queue_host(frame, queue),
            user: None,
            target: subsystem_name(queue),
            peer: queue.accepted.peer,
            local: queue.accepted.local,
            shard,
            placement: frame.placement_text(queue.placed),
            algorithm: match queue.authentication {
                HostAuthentication::Done(hash, _) => Some(hash.to_string()),
                HostAuthentication::Pending | HostAuthentication::NotRequired => None,
            },
            dh_group: match queue.authentication {
                HostAuthentication::Done(_, group) => Some(group.to_string()),
                HostAuthentication::Pending | HostAuthentication::NotRequired => None,
            },
            unproven: queue.authentication == HostAuthentication::Pending,
            tls: queue.cipher_suite.zip(queue.tls.as_ref()).map(|(suite, identity)| TlsReport {
                version: "1.3".to_owned(),
                suite: suite.to_owned(),
                identity: identity.to_string(),
            }),
            received_bytes: queue.traffic.received,
            sent_bytes: queue.traffic.sent,
            header_digest: queue.digests.0,
            data_digest: queue.digests.1,
            negotiated: None,
            queue: Some(QueueReport {
                entries: queue.entries,
                flow_control: queue.flow_control,
                in_capsule_bytes: queue.in_capsule,
                commands: queue.commands as u64,
                reads: queue.counters.reads,
                read_bytes: queue.counters.read_bytes,
                writes: queue.counters.writes,
                written_bytes: queue.counters.written_bytes,
            }),
            latency: None,
        }));
    }
    all
}

/// The controllers that these queues are of. One whose admin queue is gone stays while it has any queue: commands of
/// that may still write.
pub fn controller_reports(frame: &FixedSettings, listings: &[ShardListing]) -> Vec<SessionReport> {
    let mut all: BTreeMap<u16, SessionReport> = BTreeMap::new();
    for (shard, listing) in listings.iter().enumerate() {
        for queue in &listing.queues {
            let report = || controller_report(frame, shard, queue);
            match all.entry(queue.cntlid) {
                Entry::Vacant(place) => drop(place.insert(report())),
                // The admin queue is on the controller's shard.
                Entry::Occupied(mut place) if queue.qid == 0 => drop(place.insert(report())),
                Entry::Occupied(_) => {}
            }
        }
    }
    for queue in listings.iter().flat_map(|listing| &listing.queues) {
        let Some(controller) = all.get_mut(&queue.cntlid) else { continue };
        controller.connections += 1;
        controller.commands += queue.commands as u64;
        controller.reads += queue.counters.reads;
        controller.read_bytes += queue.counters.read_bytes;
        controller.writes += queue.counters.writes;
        controller.written_bytes += queue.counters.written_bytes;
    }
    all.into_values().collect()
}

/// Adds to controllers how long the commands of their queues took.
pub fn add_latency(controllers: &mut [SessionReport], listings: &[ShardListing]) {
    let mut queues: BTreeMap<u64, Vec<&shard::CommandLatency>> = BTreeMap::new();
    for queue in listings.iter().flat_map(|listing| &listing.queues) {
        queues.entry(session_id(queue.cntlid)).or_default().push(&queue.latency);
    }
    for controller in controllers {
        let of = queues.remove(&controller.id).unwrap_or_default();
        controller.latency = Some(latency::latency_reports(of));
    }
}

fn controller_report(frame: &FixedSettings, shard: usize, queue: &QueueEntry) -> SessionReport {
    SessionReport {
        id: session_id(queue.cntlid),
        protocol: Protocol::Nvme.as_str().to_owned(),
        initiator: queue.host.to_string(),
        host: queue_host(frame, queue),
        target: subsystem_name(queue),
        isid: None,
        hostid: Some(queue.host_id.to_string()),
        shard,
        connections: 0,
        commands: 0,
        user: None,
        reads: 0,
        read_bytes: 0,
        writes: 0,
        written_bytes: 0,
        latency: None,
    }
}

#[cfg(test)]
mod tests {
    use nvme::auth::{DhGroup, Hash};
    use nvme::{HostId, Nqn};
    use nvme_server::QueueCounters;
    use shard::LinkTraffic;

    use super::*;
    use crate::example::example_plan;

    fn queue(cntlid: u16, qid: u16, reads: u64) -> QueueEntry {
        let host = "nqn.2014-08.org.nvmexpress:uuid:3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11";
        QueueEntry {
            cntlid,
            qid,
            subsystem: "nqn.2026-11.com.example:logs".into(),
            host: Nqn::parse(host).unwrap(),
            host_id: HostId::new(*uuid::uuid!("3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11").as_bytes()).unwrap(),
            accepted: endpoint::AcceptedSocket {
                listener: endpoint::ListenerId(0),
                peer: "192.0.2.7:50000".parse().unwrap(),
                local: "127.0.0.1:4420".parse().unwrap(),
                cpu: None,
            },
            tls: None,
            digests: (true, false),
            entries: 128,
            flow_control: true,
            in_capsule: 8192,
            authentication: if qid == 1 {
                HostAuthentication::Done(Hash::Sha384, DhGroup::Ffdhe4096)
            } else {
                HostAuthentication::Pending
            },
            cipher_suite: None,
            commands: 1,
            traffic: LinkTraffic::default(),
            placed: shard::PlacementOutcome { rule: None, choice: shard::PlacementReason::LeastLoaded },
            latency: shard::CommandLatency::default(),
            counters: QueueCounters { reads, read_bytes: reads * 4096, ..QueueCounters::default() },
        }
    }

    #[test]
    fn queues_of_several_shards_are_one_controller() {
        let frame = FixedSettings::of(&example_plan());
        let listing = |queues| ShardListing { queues, ..ShardListing::default() };
        let listings =
            [listing(vec![queue(2, 0, 0), queue(9, 1, 5)]), listing(vec![queue(2, 1, 3), queue(2, 2, 4)])];
        let controllers = controller_reports(&frame, &listings);
        assert_eq!(controllers.len(), 2, "that of the lone I/O queue may still write");
        let lone = &controllers[1];
        assert_eq!((lone.id, lone.shard, lone.connections, lone.commands), (65545, 0, 1, 1));
        let one = &controllers[0];
        assert_eq!((one.id, one.connections, one.commands), (65538, 3, 3));
        assert_eq!((one.reads, one.read_bytes, one.host.as_deref()), (7, 28672, Some("web")));
        let connections = connection_reports(&frame, &listings);
        assert_eq!(connections.len(), 4);
        assert_eq!((connections[2].id, connections[2].shard, connections[2].cid), (65538 << 16 | 1, 1, 1));
        assert_eq!(connections[2].algorithm.as_deref(), Some("sha384"));
        assert_eq!((connections[2].dh_group.as_deref(), connections[2].unproven), (Some("ffdhe4096"), false));
        assert_eq!((&connections[0].algorithm, connections[0].unproven), (&None, true));
        assert_eq!(connections[2].queue.as_ref().map(|queue| queue.reads), Some(3));
    }
}
