//! Controllers and queues as plain data. A change here raises the version of the snapshot that it is part of.

use nvme::Status;
use serde::{Deserialize, Serialize};
use volume::Time;

use crate::queue_message::{CommandFailure, QueueCounters};

/// A controller and its admin queue, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerSnapshot {
    /// The port of its host's path.
    pub(super) port: u16,
    pub(super) kato_ms: u32,
    pub(super) individual_deletion: bool,
    pub(super) limits: LimitsBody,
    /// CC and CSTS.
    pub(super) configuration: u32,
    pub(super) status: u32,
    pub(super) granted: u16,
    pub(super) members: Vec<MemberBody>,
    pub(super) past: QueueCounters,
    /// How long it had been open, in nanoseconds.
    pub(super) age_ns: u64,
    pub(super) events: EventsBody,
    pub(super) errors: Vec<ErrorBody>,
    pub(super) errors_count: u64,
    pub(super) features: FeaturesBody,
    pub(super) ana: AnaBody,
    pub(super) notices: NoticesBody,
    /// Which life of it this is: uniquifier and random number.
    pub(super) instance: (u8, u64),
    pub(super) admin: ServerQueueSnapshot,
}

impl ControllerSnapshot {
    /// Its admin queue.
    pub fn admin_queue(&self) -> &ServerQueueSnapshot {
        &self.admin
    }

    /// The I/O queues that it has: identifier and shard of each.
    pub fn io_queues(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        self.members.iter().map(|member| (member.qid, member.shard))
    }

    /// What its host asked for when it connected: keep alive in milliseconds, and whether it deletes queues one by
    /// one.
    pub fn connect_attributes(&self) -> (u32, bool) {
        (self.kato_ms, self.individual_deletion)
    }
}

/// A queue of the server, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerQueueSnapshot {
    pub(super) cntlid: u16,
    pub(super) association: u64,
    pub(super) qid: u16,
    pub(super) queue_slot: u16,
    pub(super) entries: u32,
    pub(super) flow_control: bool,
    pub(super) in_capsule: u32,
    pub(super) home: u16,
    pub(super) port: u16,
    pub(super) transfer_max: u32,
    pub(super) traffic_ms: u32,
    pub(super) delays_retries: bool,
    pub(super) namespaces: Vec<NamespaceBody>,
    pub(super) counters: QueueCounters,
    /// What was not reported to the controller.
    pub(super) failures: Vec<FailureBody>,
    pub(super) failed: u64,
    /// `None`: its host need not prove anything.
    pub(super) proof: Option<ProofBody>,
}

impl ServerQueueSnapshot {
    /// Its controller.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Its identifier; 0 is the admin queue.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Its entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether SQHD counts.
    pub fn has_flow_control(&self) -> bool {
        self.flow_control
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LimitsBody {
    pub(super) queues: u16,
    pub(super) entries: u32,
    /// Bytes.
    pub(super) transfer: u32,
    pub(super) in_capsule: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemberBody {
    pub(super) qid: u16,
    pub(super) queue_slot: u16,
    pub(super) shard: u16,
    pub(super) counters: QueueCounters,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventsBody {
    pub(super) configuration: u32,
    pub(super) pending: u8,
    pub(super) masked: u8,
    pub(super) changed: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ErrorBody {
    pub(super) number: u64,
    pub(super) qid: u16,
    pub(super) failure: FailureBody,
}

/// When it was is not carried: no log page tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FailureBody {
    cid: u16,
    status: u16,
    lba: u64,
    nsid: u32,
}

impl FailureBody {
    pub(super) fn of(failure: &CommandFailure) -> Self {
        FailureBody { cid: failure.cid, status: failure.status.0, lba: failure.lba, nsid: failure.nsid }
    }

    pub(super) fn to_failure(&self, at: Time) -> CommandFailure {
        CommandFailure { at, cid: self.cid, status: Status(self.status), lba: self.lba, nsid: self.nsid }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FeaturesBody {
    pub(super) arbitration: u32,
    pub(super) power: u32,
    pub(super) thresholds: [u32; 2],
    pub(super) error_recovery: u32,
    pub(super) atomicity: u32,
    /// Milliseconds since 1970, as the host would have it now.
    pub(super) timestamp: Option<u64>,
    pub(super) behavior: Vec<u8>,
    pub(super) masks: Vec<(u32, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnaBody {
    pub(super) changes: u64,
    pub(super) groups: Vec<AnaGroupBody>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnaGroupBody {
    pub(super) id: u32,
    pub(super) changes: u64,
    pub(super) state: u8,
    pub(super) nsids: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NoticesBody {
    /// Number, kind and namespace of each, oldest first.
    pub(super) queue: Vec<(u64, u8, u32)>,
    pub(super) count: u64,
    /// The page as the host last began to read it.
    pub(super) shown: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamespaceBody {
    pub(super) nsid: u32,
    /// `None`: its volume is away.
    pub(super) volume: Option<[u8; 16]>,
    pub(super) read_only: bool,
    pub(super) ana_group: u32,
}

/// How the host of a queue has proved who it is: identifiers of hash and group; `None`: by its TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProofBody {
    pub(super) method: Option<(u8, u8)>,
}
