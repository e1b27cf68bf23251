//! Requests of the device server to its caller, as values.

use scsi::sense::Sense;
use scsi::status::Status;
use volume::CommandStep;

/// Names an I_T nexus of this shard's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusKey(pub u32);

/// Names a task, from [`Server::start_command`](crate::Server::start_command) to its one ending step.
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

/// Something for the caller to do. [`CommandStep::Io`] names a nexus of the server's own where the bytes are for no
/// initiator (a copy), or where the operation outlives the nexus that asked (a sanitize);
/// [`Server::nexus`](crate::Server::nexus) gives its identity and rights all the same.
pub type Step = CommandStep<TaskKey, Reply, DeviceStep>;

/// A step that only SCSI has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// A task management function has ended.
    ManagementEnd(ManagementEnd),
    /// This task's copy names volumes that its nexus has no LUN of:
    /// [`Server::handle_copy_volumes`](crate::Server::handle_copy_volumes) is to say which it may copy all the same.
    FindCopyVolumes(TaskKey),
}

/// A task management function has ended; all tasks that it affected ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagementEnd {
    /// The function's own task.
    pub task: TaskKey,
    /// How.
    pub outcome: ManagementOutcome,
}

/// Task management functions (SAM-5 §7), as the device server sees them. A logical unit is given
/// as it stands in the request: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
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
