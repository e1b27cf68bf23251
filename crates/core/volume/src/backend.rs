//! The contract of a backend, which executes operations: one backend value per volume and shard.

use buf::{Cx, Errno, Sg, SgMut};

use crate::io::{Durability, Io, IoCompletion, IoId, Span};

/// One core's part of the daemon, from 0 up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The control plane: a message to it leaves the shards.
    pub const CONTROL_PLANE: ShardId = ShardId(u16::MAX);
}

/// The geometry of a volume. Lengths are in logical blocks unless another unit is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many logical blocks.
    pub blocks: u64,
    /// Bytes per logical block: 512 or 4096.
    pub logical: u32,
    /// Bytes per physical block: at least `logical`, a power of two.
    pub physical: u32,
    /// Alignment of memory and offsets for direct I/O, in bytes.
    pub dio_align: u32,
    /// The longest operation, in bytes.
    pub max_io: u32,
    /// Whether space is allocated on writing only.
    pub thin: bool,
    /// Whether completed writes may be lost in a power failure.
    pub write_cache: bool,
    /// The longest [`Op::WriteAtomic`](crate::Op), which concurrent reads see whole or not at all.
    pub atomic: u32,
    /// The longest write that a power failure leaves either complete or without effect; at least 1.
    pub atomic_powerfail: u32,
    /// The longest [`Op::CompareAndWrite`](crate::Op).
    pub caw_max: u32,
    /// Whether deallocated blocks are known to read as zeroes.
    pub dealloc_reads_zero: bool,
    /// Whether reads may be answered from the backend's own memory (see [`Op::Read`](crate::Op)).
    pub lends: bool,
}

impl Geometry {
    /// Of a volume whose geometry is not known yet: it has no blocks, so no operation is possible.
    pub const UNKNOWN: Geometry = Geometry {
        blocks: 0,
        logical: 512,
        physical: 512,
        dio_align: 1,
        max_io: 0,
        thin: false,
        write_cache: true,
        atomic: 1,
        atomic_powerfail: 1,
        caw_max: 0,
        dealloc_reads_zero: false,
        lends: false,
    };

    /// Blocks that direct I/O must take together: 1 unless blocks are smaller than `dio_align`.
    /// `blocks` is a multiple of it.
    pub fn dio_unit_blocks(&self) -> u32 {
        (self.dio_align / self.logical).max(1)
    }

    /// Bytes of the whole volume.
    pub fn capacity_bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.logical))
    }
}

/// Executes operations. Only [`Op::Read`](crate::Op), `Write`, `Flush`, `WriteZeroes`, `Unmap`
/// (of one span), `Prefetch` and `Extents` reach a backend: the gate composes all other operations from
/// these, and excludes conflicting writes. A write is a multiple of [`Geometry::dio_unit_blocks`], in position
/// and length; reads, and operations that free or zero blocks, need not be.
pub trait Backend {
    /// Its current geometry.
    fn geometry(&self) -> Geometry;
    /// The longest [`Op::Unmap`](crate::Op) or `WriteZeroes`, in bytes.
    fn erase_max(&self) -> u32 {
        self.geometry().max_io
    }
    /// Whether writes of every requester are refused now, because a remote volume is read-only at its target.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Starts an operation. [`Backend::poll_done`] returns it when it has ended, perhaps at once.
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io);
    /// Reads inline: gives its own memory, as [`Geometry::lends`] says. `None`: submit the read.
    fn lend_memory(&mut self, _span: Span) -> Option<Sg> {
        None
    }
    /// Whether memory that it lent, by this call or by a read, may not have been returned yet. A backend that lends
    /// memory must implement it.
    fn has_loans(&self) -> bool {
        self.geometry().lends
    }
    /// Writes all of `from` within this call. False: nothing was done; submit the write. Until
    /// [`Backend::publish_inline_writes`] other cores may not see it, even if they see what was stored later.
    fn write_inline(&mut self, _span: Span, _durability: Durability, _from: &[u8]) -> bool {
        false
    }
    /// Makes inline writes visible to all cores.
    fn publish_inline_writes(&mut self) {}
    /// Continues operations that the backend executes itself, for a bounded time. A backend that gives all long
    /// operations to the world has nothing to continue.
    fn resume(&mut self) {}
    /// Whether [`Backend::resume`] is to be called in the next turn.
    fn wants_resume(&self) -> bool {
        false
    }
    /// Requests that the operation end early. `poll_done` returns it in any case.
    fn cancel(&mut self, id: IoId);
    /// An operation that has ended.
    #[must_use]
    fn poll_done(&mut self) -> Option<IoCompletion>;
    /// A write that has not ended, but whose data all later reads return: it only has to become stable. No fence
    /// waits for that, as none waits for a flush. Returned at most once per write, before its end.
    #[must_use]
    fn poll_unsynced_write(&mut self) -> Option<IoId> {
        None
    }
    /// The next disk operation for the world. A backend without a disk returns none.
    #[must_use]
    fn poll_disk(&mut self) -> Option<DiskOp> {
        None
    }
    /// The world has executed it: the number of bytes, or the error of the system.
    #[expect(clippy::unreachable, reason = "worlds answer what poll_disk gave, which gives nothing here")]
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let _ = (cx, came);
        unreachable!("who has no disk is given back no operation, and got {op:?}");
    }
    /// A core whose backend of this volume waits for this one and may go on:
    /// [`Backend::handle_wake`] is to be called there.
    #[must_use]
    fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        None
    }
    /// Another core's backend of this volume may have named this one by [`Backend::poll_shard_to_wake`].
    fn handle_wake(&mut self) {}
}

/// Names an open file or device; the world knows what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(pub u32);

/// The backend's own note of what a disk operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DiskTicket(pub u64);

/// One system call's worth of work, with its memory.
#[derive(Debug)]
pub struct DiskOp {
    /// Which file or device.
    pub disk: DiskId,
    /// Which of the backend's operations.
    pub ticket: DiskTicket,
    /// What to do.
    pub kind: DiskKind,
}

/// What to do with a disk. Offsets and lengths in bytes.
#[derive(Debug)]
pub enum DiskKind {
    /// preadv: fill `into` from byte `skip` of it on.
    Read {
        /// Where on the disk the first byte of `into` belongs.
        offset: u64,
        /// The memory.
        into: SgMut,
        /// How much of it was filled by earlier calls.
        skip: usize,
    },
    /// pwritev: write `from`, from byte `skip` of it on.
    Write {
        /// Where on the disk the first byte of `from` belongs.
        offset: u64,
        /// The memory.
        from: Sg,
        /// How much of it was written by earlier calls.
        skip: usize,
        /// RWF_DSYNC.
        durable: bool,
    },
    /// fdatasync.
    Sync,
    /// Give the space back; reads zero afterwards.
    Punch {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Zero, keeping the space.
    Zero {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Where data (not a hole) starts at or behind `offset`, then where it ends: the world answers
    /// with both in `data`, or `None` if only a hole follows.
    NextData {
        /// First byte.
        offset: u64,
        /// Filled by the world: start and end of the next data.
        data: Option<(u64, u64)>,
    },
    /// Ask the system to read ahead.
    Prefetch {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
}
