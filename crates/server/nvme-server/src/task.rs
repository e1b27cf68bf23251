//! The commands in execution, from their arrival to their one ending step.

use nvme::Status;
use volume::{IdSpace, ServerTask, VolumeId};

use crate::after_wait::AfterWait;
use crate::step::CommandKey;

/// How many commands one shard executes at most; beyond it a command is to be tried again.
pub(crate) const TASKS_MAX: usize = 262_144;

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskPhase {
    /// Payload from the host.
    Data,
    /// The end of an operation.
    Io,
    /// An answer of a volume's home.
    VolumeRequest,
    /// The other half of a fused pair.
    Mate,
}

/// How a command ends whose work is not wanted any more, as soon as what it waits for is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskEnding {
    /// It goes on.
    No,
    /// Without an answer.
    Silent,
    /// With this one.
    Status(Status),
}

impl Task {
    /// Where its operation is, if it has one.
    pub(crate) fn volume_of_io(&self) -> VolumeId {
        match &self.job {
            AfterWait::FlushAll(all) => all.volume,
            _ => self.volume,
        }
    }
}

/// How a command counts in its queue's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedAs {
    /// Not at all.
    No,
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// A command.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) key: CommandKey,
    pub(crate) volume: VolumeId,
    pub(crate) nsid: u32,
    /// The first block that it names; 0 if it names none.
    pub(crate) lba: u64,
    /// How much the command moves, in bytes.
    pub(crate) bytes: u32,
    pub(crate) cid: u16,
    pub(crate) phase: TaskPhase,
    pub(crate) tally: CountedAs,
    /// The host may only read this namespace.
    pub(crate) read_only: bool,
    pub(crate) ending: TaskEnding,
    pub(crate) job: AfterWait,
}

impl ServerTask for Task {
    type Key = CommandKey;
    const ID_SPACE: IdSpace = IdSpace::Nvme;
    const TASKS_MAX: usize = TASKS_MAX;

    #[inline]
    fn key(&self) -> CommandKey {
        self.key
    }
}

const _: () = assert!(size_of::<Option<Task>>() <= 104, "tasks stay small");
