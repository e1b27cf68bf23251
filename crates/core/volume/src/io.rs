//! Operations on a volume, and their results.

use std::sync::Arc;

use buf::Payload;

use crate::facts::VolumeId;

/// Names an operation from its submission to its end; chosen by the submitter, unique per shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// The space that an operation's identifier, or that of a request to a volume's owner, belongs to: the two highest bits
/// of the identifier. Several components use one gate, each with a space of its own; completions and answers are routed
/// by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdSpace {
    /// The SCSI device server.
    Scsi = 0,
    /// The shard itself.
    Shard = 1,
    /// The NVMe server.
    Nvme = 2,
    /// A gate.
    Gate = 3,
}

impl IdSpace {
    const SHIFT: u32 = 62;

    /// An identifier made of a number, of which the two highest bits do not count.
    #[inline]
    pub(crate) const fn make_id(self, number: u64) -> u64 {
        (self as u64) << Self::SHIFT | Self::number_of_id(number)
    }

    #[inline]
    pub(crate) const fn of_id(id: u64) -> IdSpace {
        match id >> Self::SHIFT {
            0 => IdSpace::Scsi,
            1 => IdSpace::Shard,
            2 => IdSpace::Nvme,
            _ => IdSpace::Gate,
        }
    }

    #[inline]
    pub(crate) const fn number_of_id(id: u64) -> u64 {
        id & ((1 << Self::SHIFT) - 1)
    }
}

impl IoId {
    /// The operation of this number in an identifier space: below 1 << 62.
    #[inline]
    pub const fn in_space(space: IdSpace, number: u64) -> IoId {
        IoId(space.make_id(number))
    }

    /// Whose identifier it is.
    #[inline]
    pub const fn id_space(self) -> IdSpace {
        IdSpace::of_id(self.0)
    }
}

/// Counts the views of a volume. An operation carries the one that it was admitted under, and
/// fences count by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// A run of logical blocks.
/// ```
/// use blockwire_volume::Span;
///
/// let span = Span { lba: 8, blocks: 4 };
/// assert_eq!(span.end(), Some(12));
/// assert!(span.overlaps(&Span { lba: 11, blocks: 1 }) && !span.overlaps(&Span { lba: 12, blocks: 1 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first block.
    pub lba: u64,
    /// How many.
    pub blocks: u64,
}

impl Span {
    /// The block behind the last; `None` if that is no 64-bit number.
    pub fn end(&self) -> Option<u64> {
        self.lba.checked_add(self.blocks)
    }

    /// Whether the two have a block in common.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.lba < other.lba.saturating_add(other.blocks) && other.lba < self.lba.saturating_add(self.blocks)
    }
}

/// Where a write must be before it is answered. Other writing operations are as if `Cached`: who must
/// have them stable (FUA) submits an [`Op::Flush`] when they have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Where the volume's write cache is off: stable; else anywhere.
    Cached,
    /// On stable storage (FUA).
    Stable,
}

/// What to do. Block payloads are whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill the payload. With [`Geometry::lends`](crate::Geometry::lends) the payload may be
    /// `None`, and the backend gives its own memory to read.
    Read(Span),
    /// Write the payload.
    Write(Span, Durability),
    /// Write the payload so that it is seen whole or not at all.
    WriteAtomic(Span),
    /// Everything answered before is stable, whichever shard wrote it.
    Flush,
    /// Compare with the payload: [`Fault::Miscompare`] names the first byte that differs.
    Compare(Span),
    /// The payload is first what must stand there, then what shall: one atomic step.
    CompareAndWrite(Span),
    /// Write zeroes; `unmap` allows to give the space back.
    WriteZeroes {
        /// Where.
        span: Span,
        /// Whether the blocks may be deallocated instead.
        unmap: bool,
    },
    /// Write the payload, one block, to every block.
    WriteSame(Span),
    /// Set every bit that is set in the payload.
    Or(Span),
    /// Give the space of these blocks back.
    Unmap(Vec<Span>),
    /// Read from the medium, and keep the bytes.
    Verify(Span),
    /// Reads of these blocks fail until they are written, over every path, also after the volume
    /// was closed and opened again. At most [`BAD_BLOCKS_MAX`](crate::BAD_BLOCKS_MAX) blocks are
    /// bad at a time; beyond, [`Refusal::NoMarkSpace`].
    MarkBad(Span),
    /// A hint that these blocks will be read.
    Prefetch(Span),
    /// Which blocks are mapped, from the span's start on.
    Extents(Span),
    /// Make every block unreadable that was written before.
    Sanitize(SanitizeKind),
}

impl Op {
    /// Whether the operation may change blocks.
    pub fn is_write(&self) -> bool {
        match self {
            Op::Write(..) | Op::WriteAtomic(_) | Op::CompareAndWrite(_) | Op::WriteZeroes { .. } => true,
            Op::WriteSame(_) | Op::Or(_) | Op::Unmap(_) | Op::MarkBad(_) | Op::Sanitize(_) => true,
            Op::Read(_) | Op::Flush | Op::Compare(_) | Op::Verify(_) | Op::Prefetch(_) | Op::Extents(_) => {
                false
            }
        }
    }
}

impl Op {
    /// How reservations look at it (SPC-4 and SBC-3, the tables of commands allowed in the presence
    /// of reservations; NVMe's command groups agree): what may change blocks, or makes changes
    /// stable, writes.
    pub fn command_class(&self) -> CommandClass {
        match self {
            Op::Read(_) | Op::Compare(_) | Op::Verify(_) | Op::Prefetch(_) | Op::Extents(_) => {
                CommandClass::Read
            }
            Op::Write(..) | Op::WriteAtomic(_) | Op::CompareAndWrite(_) | Op::WriteZeroes { .. } => {
                CommandClass::Write
            }
            Op::WriteSame(_) | Op::Or(_) | Op::Unmap(_) | Op::MarkBad(_) | Op::Sanitize(_) => {
                CommandClass::Write
            }
            Op::Flush => CommandClass::Write,
        }
    }
}

/// How reservations look at a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandClass {
    /// Looks at blocks: allowed to everyone under the write-exclusive kinds.
    Read,
    /// Changes something, or is listed as conflicting under every kind (MODE SENSE and MODE SELECT,
    /// SYNCHRONIZE CACHE, START STOP UNIT that stops, PREVENT ALLOW that prevents).
    Write,
    /// Allowed in the presence of every persistent reservation (TEST UNIT READY, READ CAPACITY), but
    /// not of another's SCSI-2 reservation. What even that one allows (INQUIRY, REQUEST SENSE,
    /// REPORT LUNS, RELEASE) is not asked at all.
    Status,
}

/// How to sanitize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SanitizeKind {
    /// Overwrite every block with this pattern, repeated, starting again in each block.
    Overwrite {
        /// One byte up to a block; none is a zero byte.
        pattern: Arc<[u8]>,
        /// Overwrite passes, 1 to 31.
        passes: u8,
        /// Whether each pass inverts the pattern.
        invert: bool,
    },
    /// Deallocate or zero every block.
    BlockErase,
}

/// An operation on its way.
#[derive(Debug)]
pub struct Io {
    /// Its name.
    pub id: IoId,
    /// The view that it was admitted under.
    pub epoch: Epoch,
    /// What to do.
    pub op: Op,
    /// The memory that it needs.
    pub payload: Payload,
}

/// A plain read or write that may be carried out within the call that brings its command, if its gate can. It has then
/// moved all of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineIo {
    /// The volume.
    pub volume: VolumeId,
    /// Its blocks; at least one.
    pub span: Span,
    /// The same in bytes, which is what the peer expects as well.
    pub bytes: u32,
    /// A write's durability; `None`: it is a read.
    pub write: Option<Durability>,
}

/// An operation that has ended.
#[derive(Debug)]
pub struct IoCompletion {
    /// Its name.
    pub id: IoId,
    /// How it ended.
    pub result: Result<Outcome, Failure>,
    /// Its memory.
    pub payload: Payload,
}

/// What a successful operation found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing beyond its payload.
    Complete,
    /// The extents from the span's start on, in order, without gaps; not empty.
    Extents(Vec<Extent>),
}

/// A run of blocks that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The blocks.
    pub span: Span,
    /// Whether space is allocated for them.
    pub mapped: bool,
}

/// Why an operation did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not let through.
    Refused(Refusal),
    /// Tried, and failed.
    Failed(Fault),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Failure::Failed(fault)
    }
}

/// Why an operation was refused before it reached the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another registrant's reservation forbids it.
    Conflict,
    /// The path is in this state.
    Inaccessible(crate::requester::PathAccess),
    /// Blocks behind the end.
    OutOfRange,
    /// The volume, or this requester's access to it, is read-only.
    ReadOnly,
    /// Longer than can be atomic.
    AtomicUnit,
    /// The volume cannot serve now.
    NotReady(UnservableReason),
    /// The backend cannot do it.
    Unsupported,
    /// Too much is in flight.
    Busy,
    /// A registration would be one too many.
    NoRegistrationSpace,
    /// Too many blocks would be marked bad.
    NoMarkSpace,
    /// The key does not match, or the caller is not registered where it must be.
    NotRegistered,
    /// The holder's release names another kind than the reservation's.
    InvalidRelease,
    /// A field of the action is not valid here.
    InvalidAction,
    /// The action needs a reservation, and there is none.
    NothingReserved,
    /// The new state could not be made durable; nothing changed.
    NotDurable,
    /// A requester prevents that the medium is removed.
    RemovalPrevented,
    /// The change stands, but what was in flight before did not end in time: the volume is closed.
    NotFenced,
}

/// Why a volume cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnservableReason {
    /// Stopped by START STOP UNIT or the operator.
    Stopped,
    /// The medium was removed (ejected).
    NoMedium,
    /// A sanitize runs; progress in 65536ths.
    Sanitizing(u16),
    /// A format runs, which is a sanitize by another name; progress in 65536ths. If it fails, so has a sanitize.
    Formatting(u16),
    /// The last sanitize failed.
    SanitizeFailed,
    /// A failed sync has put the contents in doubt: reopen the volume.
    SyncFailed,
    /// The volume is going away.
    Removed,
}

/// What went wrong in the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This block cannot be read.
    Medium(u64),
    /// This block cannot be written.
    Unwritable(u64),
    /// The first byte, counted from the start of the compared range, that differs.
    Miscompare(u32),
    /// The backing store is full.
    NoSpace,
    /// What was written before could not be made stable, and may be lost: sticky, the volume takes
    /// no more writes until it is opened again.
    Sync,
    /// The backing store is out of reach.
    PathLost,
    /// Cancelled.
    Aborted,
    /// Our own fault.
    Internal,
}
