//! The tasks in a task set, from their command to their one ending step.

use scsi::cdb::Command;
use scsi::sense::Sense;
use volume::{IdSpace, ServerTask, VolumeId};

use crate::after_operation::AfterOperation;
use crate::step::TaskKey;
use crate::task_set::{ExecutedAttribute, TaskAttribute};

/// How many tasks one shard executes at most; beyond it a command gets TASK SET FULL.
pub(crate) const TASKS_MAX: usize = 65_536;

/// A command as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct IncomingCommand<'a> {
    /// The logical unit number as it stood in the request.
    pub lun: [u8; 8],
    /// The command descriptor block.
    pub cdb: &'a [u8],
    /// When to execute it.
    pub attr: TaskAttribute,
    /// Bytes that the initiator takes.
    pub data_in: u32,
    /// Bytes that the initiator sends.
    pub data_out: u32,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskPhase {
    /// Its turn in the task set.
    Queued,
    /// Payload from the initiator.
    Data,
    /// The end of an operation.
    Io,
    /// An answer of a volume's home.
    VolumeRequest,
    /// A sanitize, which goes on without it if need be.
    Sanitize,
}

/// How a task ends whose work is not wanted any more, as soon as what it waits for is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskEnding {
    /// It goes on.
    No,
    /// Without an answer.
    Silent,
    /// With TASK ABORTED: another nexus has ended it, and TAS is 1.
    Aborted,
    /// With CHECK CONDITION and this.
    Check(Sense),
}

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) key: TaskKey,
    pub(crate) volume: VolumeId,
    /// Where its operation is, if not on its own volume.
    pub(crate) io_volume: VolumeId,
    /// The LUN that it came by, and which making of it.
    pub(crate) lun: u16,
    pub(crate) serial: u32,
    pub(crate) attribute: ExecutedAttribute,
    pub(crate) command: Command,
    /// Bytes that the initiator takes.
    pub(crate) data_in: u32,
    /// Bytes that the initiator sends.
    pub(crate) data_out: u32,
    /// The nexus may only read through this LUN.
    pub(crate) read_only: bool,
    pub(crate) phase: TaskPhase,
    pub(crate) ending: TaskEnding,
    pub(crate) job: AfterOperation,
}

impl Task {
    /// Whether it is the server's own, and no command of an initiator.
    pub(crate) fn is_internal(&self) -> bool {
        matches!(self.job, AfterOperation::Sanitize(_) | AfterOperation::Background(_))
    }
}

impl ServerTask for Task {
    type Key = TaskKey;
    const ID_SPACE: IdSpace = IdSpace::Scsi;
    const TASKS_MAX: usize = TASKS_MAX;

    fn key(&self) -> TaskKey {
        self.key
    }
}
