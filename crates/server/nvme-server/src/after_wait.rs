//! The next step of a command, and the data that it needs.

use buf::Sg;
use nvme::Sqe;
use volume::{Failure, Op, Span, VolumeId};

/// What is to follow when what a command waits for is there. Rare ones are boxed, so that tasks stay
/// small.
#[derive(Debug)]
pub(crate) enum AfterWait {
    /// The answer.
    Plain,
    /// The data that was read, and the answer.
    Read,
    /// Read with FUA: with what it has read, once that is being made stable.
    ReadStable(Option<Box<Sg>>),
    /// With the payload this operation, and with `true` a flush (FUA) after it.
    Payload(Op, bool),
    /// A flush (FUA), then the answer.
    Flush,
    /// Flushes of all namespaces.
    FlushAll(Box<FlushAll>),
    /// A half of a fused pair.
    Half(Box<FusedHalf>),
    /// With the payload, which is a list, whatever the command says.
    List(Box<Sqe>),
    /// Copy.
    Copy(Box<CopyJob>),
    /// A reservation report, which waits for memory.
    Report,
}

impl AfterWait {
    /// Whether what its operation reads goes to the host, and is counted to what its link has under way.
    #[inline]
    pub(crate) fn is_host_read(&self) -> bool {
        matches!(self, AfterWait::Read | AfterWait::ReadStable(None))
    }
}

impl AfterWait {
    /// Whether the payload that it waits for is for the blocks of its volume.
    pub(crate) fn awaits_blocks(&self) -> bool {
        match self {
            AfterWait::Payload(..) | AfterWait::Half(_) => true,
            AfterWait::Plain
            | AfterWait::Read
            | AfterWait::ReadStable(_)
            | AfterWait::Flush
            | AfterWait::FlushAll(_)
            | AfterWait::List(_)
            | AfterWait::Copy(_)
            | AfterWait::Report => false,
        }
    }
}

/// A Copy on its way.
#[derive(Debug)]
pub(crate) struct CopyJob {
    pub(crate) sources: Vec<Span>,
    /// The source range that is being copied.
    pub(crate) index: usize,
    /// How many blocks of it are copied.
    pub(crate) copied: u64,
    /// Where the next block goes.
    pub(crate) to: u64,
    /// The piece on its way: its blocks.
    pub(crate) piece: u64,
    /// Whether it is read, and is now written.
    pub(crate) writing: bool,
    /// Whether all must be stable in the end (FUA).
    pub(crate) stable: bool,
}

/// A Flush of all namespaces on its way: one volume after the other.
#[derive(Debug)]
pub(crate) struct FlushAll {
    /// The volume whose turn it is.
    pub(crate) volume: VolumeId,
    /// Those that follow.
    pub(crate) rest: Vec<VolumeId>,
    /// The first failure.
    pub(crate) failed: Option<Failure>,
}

/// A half of a pair.
#[derive(Debug)]
pub(crate) struct FusedHalf {
    pub(crate) span: Span,
    /// The other half.
    pub(crate) mate: Option<u32>,
    pub(crate) data: Option<Sg>,
    /// Of the second half: whether the write must be stable (FUA).
    pub(crate) stable: bool,
    /// The pair's operation is on its way; it runs under the first half's name.
    pub(crate) running: bool,
    /// It was done, and is being made stable.
    pub(crate) done: bool,
}
