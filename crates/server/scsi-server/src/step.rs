//! Requests of the device server to its caller, as values.

use buf::Sg;
use scsi::sense::Sense;
use scsi::status::Status;
use volume::{Io, IoId, RequestId, VolumeId, VolumeRequest};

/// Names an I_T nexus of this shard's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusKey(pub u32);

/// Names a task, from [`Server::start`](crate::Server::start) to its one ending step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey {
    /// The nexus that it came by.
    pub nexus: NexusKey,
    /// The caller's own name for it, unique among the nexus' live tasks. The low 32 bits are a dense
    /// index: tables as long as the largest are kept.
    pub tag: u64,
}

/// How a task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// SCSI status.
    pub status: Status,
    /// Sense data, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Whether the sense data goes in descriptor format.
    pub descriptor: bool,
    /// Whether the sense data is about an earlier command that was answered before it had ended, and
    /// this one was not executed (SPC-4 §4.5.5).
    pub deferred: bool,
    /// Whether the answer is to be kept in order among those on other connections of the nexus, where it
    /// has several (RFC 7143 §4.2.2.3.4).
    pub fence: bool,
    /// The data length that SCSI's side of the command had, in bytes, whether so many were moved or
    /// not: the transport computes the residual from it (RFC 7143 §11.4.5.1).
    pub transferred: u64,
}

/// Something for the caller to do.
#[derive(Debug)]
pub enum ServerStep {
    /// Let the peer send `len` bytes of the task's payload, from `at` on; [`Server::data`](crate::Server::data) follows.
    Receive {
        /// The task.
        task: TaskKey,
        /// Offset in the task's data.
        at: u32,
        /// Bytes; never 0.
        len: u32,
    },
    /// Send these bytes.
    Send {
        /// The task.
        task: TaskKey,
        /// Offset in the task's data.
        at: u32,
        /// The bytes.
        data: Sg,
    },
    /// Answer the task; it has ended.
    Respond {
        /// The task.
        task: TaskKey,
        /// How.
        reply: Reply,
    },
    /// The task has ended without an answer.
    Retire {
        /// The task.
        task: TaskKey,
    },
    /// Give this to the volume's gate; [`Server::done`](crate::Server::done) follows.
    Io {
        /// The task that it is for. Where the bytes are for no initiator (a copy), or where the
        /// operation outlives the nexus that asked (a sanitize), it names a nexus of the server's
        /// own, whose identity and rights [`Server::nexus`](crate::Server::nexus) gives all the same.
        task: TaskKey,
        /// The volume.
        volume: VolumeId,
        /// The operation.
        io: Io,
        /// Bytes of memory to be attached to `io` as [`Payload::In`](volume::Payload) first; 0 if none.
        want: u32,
    },
    /// Ask that the operation end early; it still ends by `done`.
    Cancel {
        /// The task that it is for.
        task: TaskKey,
        /// The volume.
        volume: VolumeId,
        /// The operation.
        io: IoId,
    },
    /// Ask the volume's home; [`Server::answered`](crate::Server::answered) follows.
    VolumeRequest {
        /// The volume.
        volume: VolumeId,
        /// The server's number for the ask.
        id: RequestId,
        /// What.
        request: VolumeRequest,
    },
    /// A task management function has ended; all tasks that it affected ended before.
    Managed {
        /// The function's own task.
        task: TaskKey,
        /// How.
        outcome: ManagementOutcome,
    },
}

/// Task management functions (SAM-5 §7), as the device server sees them. A logical unit is given
/// as it stands in the request: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// End one task of this nexus; `None` if the transport knows none such.
    AbortTask {
        /// The task.
        tag: Option<u64>,
    },
    /// End all tasks of this nexus on the logical unit.
    AbortTaskSet([u8; 8]),
    /// Clear an auto contingent allegiance (there never is one).
    ClearAca([u8; 8]),
    /// End all tasks of every nexus on the logical unit.
    ClearTaskSet([u8; 8]),
    /// Reset the logical unit.
    LogicalUnitReset([u8; 8]),
    /// Reset every logical unit that this nexus can reach.
    TargetReset,
    /// As if the nexus had been lost.
    NexusReset,
    /// Whether this task is in the task set.
    QueryTask {
        /// The task.
        tag: Option<u64>,
    },
    /// Whether any task of this nexus is in the logical unit's task set.
    QueryTaskSet([u8; 8]),
    /// Whether a unit attention waits.
    QueryAsyncEvent([u8; 8]),
}

/// How a task management function ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementOutcome {
    /// Done; for a query: nothing found.
    Complete,
    /// A query found something.
    Succeeded,
    /// There is no such task.
    NoTask,
    /// There is no such logical unit.
    NoUnit,
    /// Not supported.
    NotSupported,
    /// Refused.
    Rejected,
}
