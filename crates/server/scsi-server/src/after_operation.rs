//! What follows when a task's operation or request has ended. The next steps are in `exec`.

use std::collections::VecDeque;

use buf::Sg;
use volume::{IoId, SanitizeKind, Span, VolumeId, VolumeRequest};

use crate::step::{NexusKey, TaskKey};

/// What is to follow when the current operation or ask of a task has ended.
#[derive(Debug)]
pub(crate) enum AfterOperation {
    /// The answer.
    Plain,
    /// FUA of what has no such option below: a flush.
    Flush,
    /// That flush: what came before it is done.
    LastFlush,
    /// READ with FUA: what was read is being made stable, and then sent.
    FlushAfterRead(Box<Sg>),
    /// WRITE AND VERIFY: what was written is verified.
    VerifyAfterWrite,
    /// VERIFY against one block.
    CompareOne(Box<RepeatedCompare>),
    /// More asks, then the answer.
    Requests(VecDeque<VolumeRequest>),
    /// PERSISTENT RESERVE IN at a gateway that does not own the volume: what it was told is as of now.
    Refreshed,
    /// The medium is ejected.
    Eject,
    /// LOG SENSE counts mapped blocks.
    MappedBlockCount(Box<MappedBlockCount>),
    /// Which volumes the list of an EXTENDED COPY, these bytes, may name.
    CopyList(Box<[u8]>),
    /// EXTENDED COPY.
    Copy(Box<CopyJob>),
    /// A sanitize: no task of the initiator's, but of the server's own.
    Sanitize(Box<SanitizeJob>),
    /// A flush behind a command that was answered: likewise the server's own.
    Background(Box<BackgroundOp>),
}

/// VERIFY with BYTCHK 11b on its way: the same block over and over.
#[derive(Debug)]
pub(crate) struct RepeatedCompare {
    /// What is not compared yet.
    pub(crate) rest: Span,
}

/// A copy on its way.
#[derive(Debug)]
pub(crate) struct CopyJob {
    /// Its list identifier, if RECEIVE COPY RESULTS may ask about it.
    pub(crate) id: Option<u8>,
    pub(crate) runs: Vec<CheckedSegment>,
    /// The run that is worked on.
    pub(crate) index: usize,
    /// Bytes of that run that are copied.
    pub(crate) done: u64,
    /// Bytes that are copied in all.
    pub(crate) bytes: u64,
    /// Bytes that are read, or written, just now.
    pub(crate) chunk: u64,
    pub(crate) stage: CopyStage,
    /// How often the block that is swapped was found changed.
    pub(crate) swaps: u32,
    /// In whose name operations go.
    pub(crate) name: TaskKey,
}

/// What is done with a chunk.
#[derive(Debug)]
pub(crate) enum CopyStage {
    /// The source is read.
    Read,
    /// The block is read that these bytes become a part of.
    Old(Vec<u8>),
    /// That block is swapped.
    Swap(Vec<u8>),
    /// The destination is written.
    Write,
}

/// A checked segment; places are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedSegment {
    pub(crate) source: VolumeId,
    pub(crate) source_at: u64,
    pub(crate) destination: VolumeId,
    pub(crate) destination_at: u64,
    pub(crate) bytes: u64,
}

/// A sanitize or a format on its way.
#[derive(Debug)]
pub(crate) struct SanitizeJob {
    /// The command that began it, and waits for it. Not by its key: the nexus may be another's by then.
    pub(crate) asker: IoId,
    /// IMMED: its command is answered when it begins.
    pub(crate) immediate: bool,
    /// AUSE, of a sanitize: a failure may be left by EXIT FAILURE MODE.
    pub(crate) allow_exit: bool,
    /// It is a format's.
    pub(crate) formats: bool,
    pub(crate) kind: SanitizeKind,
    pub(crate) stage: SanitizeStage,
}

/// Where a sanitize is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SanitizeStage {
    /// The volume is being closed.
    Closing,
    /// Blocks are made unreadable.
    Running,
    /// The volume is being opened, if all went well.
    Opening { well: bool },
}

/// A count on its way.
#[derive(Debug)]
pub(crate) struct MappedBlockCount {
    /// The first block that was not looked at.
    pub(crate) next: u64,
    pub(crate) mapped: u64,
}

/// Who is to hear of an operation that fails.
#[derive(Debug)]
pub(crate) struct BackgroundOp {
    pub(crate) nexus: NexusKey,
    /// The LUN that it came by, and which making of it: a nexus and a LUN of the same number may be
    /// others' by the time that the flush ends, the serial number never is.
    pub(crate) lun: u16,
    pub(crate) serial: u32,
    /// It is a hint, whose failure is nothing to hear of.
    pub(crate) hint: bool,
}
