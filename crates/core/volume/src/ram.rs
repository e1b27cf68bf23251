//! A volume in memory: one region that all shards share, and one backend value per shard.
//!
//! Space is allocated in granules of the physical block size, recorded in a bitmap; an unmapped granule reads
//! as zeroes. Invariant: bytes of the region are only touched by raw copies, and a granule's bit is set after
//! data other than zeroes was written to it.
//!
//! A long read or write is copied in parts, one for each [`Backend::resume`], so that other connections of the shard
//! do not wait for all of it.
//!
//! A disk in a memfd can be gone on with by another process ([`movable`]).

mod movable;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buf::{Cx, Payload, Region, RegionHandle, Sg, SharedWords};

use movable::RamHeader;
pub use movable::{ForeignMemory, movable_ram_len};

use crate::backend::{Backend, Geometry};
use crate::io::{Durability, Extent, Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, Span};
use crate::shared_gate_state::AllocationGauge;

/// The longest operation, in bytes.
const IO_MAX: u32 = 1 << 20;
/// How much of what is lent is told to come near, in bytes: the processor sees itself where a read goes
/// on, and can only fetch so much at once.
const PREFETCH_MAX: usize = 1 << 10;
/// The longest read or write, in bytes, that is copied within the call that submits it, and the longest part of a
/// longer one: some 40 microseconds from memory to memory.
const COPY_MAX: usize = 256 << 10;
/// How many extents one answer names.
const EXTENTS_MAX: usize = 64;
/// How many granules one [`Op::Extents`] looks at, so that an answer is prompt: with 4 KiB blocks
/// 4 GiB, the bitmap's words being skipped 64 at a time.
const EXTENT_GRANULES_MAX: u64 = 1 << 20;

/// The memory of a RAM volume, shared by all shards.
#[derive(Debug)]
pub struct RamDisk {
    region: Arc<Region>,
    /// Bytes of the region that are the disk's, from its beginning on.
    capacity: usize,
    /// One bit per granule: whether it is mapped.
    mapped: SharedWords,
    blocks: AtomicU64,
    /// Of a disk that can move.
    header: Option<RamHeader>,
    /// As many zeroes as one operation reads, for a disk that can move: its own pages take memory when they are read.
    zeroes: Option<Arc<Region>>,
    logical: u32,
    physical: u32,
    /// Bytes of all granules that are mapped.
    gauge: AllocationGauge,
}

impl RamDisk {
    /// A zeroed disk of `blocks` blocks of `logical` bytes, mapped by granules of `physical` bytes,
    /// that can grow to `blocks_max`. Memory is taken when it is first written.
    ///
    /// # Panics
    /// If a size is zero, `logical` does not divide `physical`, one is no power of two, or there is
    /// no address space for so much.
    #[expect(clippy::expect_used, reason = "documented: who can go on without the memory asks `try_new`")]
    pub fn new(blocks: u64, blocks_max: u64, logical: u32, physical: u32) -> Self {
        Self::try_new(blocks, blocks_max, logical, physical).expect("a disk fits the address space")
    }

    /// As [`RamDisk::new`]; `None` if there is no address space for so much.
    ///
    /// # Panics
    /// If the sizes are wrong as for [`RamDisk::new`].
    pub fn try_new(blocks: u64, blocks_max: u64, logical: u32, physical: u32) -> Option<Self> {
        assert!(
            logical.is_power_of_two() && physical.is_power_of_two() && logical <= physical,
            "block sizes"
        );
        assert!(blocks > 0 && blocks <= blocks_max, "a disk has blocks");
        let bytes = blocks_max.checked_mul(u64::from(logical))?;
        let granules = bytes.div_ceil(u64::from(physical));
        let capacity = usize::try_from(bytes).ok()?;
        Some(RamDisk {
            region: Arc::new(Region::try_new(capacity)?),
            capacity,
            // Zeroed by the system, so that what a disk may grow to takes no memory until it is used.
            mapped: SharedWords::zeroed(usize::try_from(granules.div_ceil(64)).ok()?),
            blocks: AtomicU64::new(blocks),
            header: None,
            zeroes: None,
            logical,
            physical,
            gauge: AllocationGauge::default(),
        })
    }

    /// Changes the number of blocks; false if there is no room for so many. What is cut off is
    /// zeroed when the disk grows over it again.
    pub fn resize(&self, blocks: u64) -> bool {
        let Some(bytes) = blocks.checked_mul(u64::from(self.logical)) else { return false };
        if blocks == 0 || bytes > self.capacity as u64 {
            return false;
        }
        let old = self.blocks.load(Ordering::Acquire);
        if blocks > old {
            self.unmap(Span { lba: old, blocks: blocks - old });
        }
        self.blocks.store(blocks, Ordering::Release);
        if let Some(header) = &self.header {
            header.set_blocks(blocks);
        }
        true
    }

    /// How much of it is mapped.
    pub fn allocation_gauge(&self) -> AllocationGauge {
        self.gauge.clone()
    }

    /// What the blocks are like now.
    pub fn geometry(&self) -> Geometry {
        let caw_max = 255.min(IO_MAX / self.logical);
        Geometry {
            blocks: self.blocks.load(Ordering::Acquire),
            logical: self.logical,
            physical: self.physical,
            dio_align: self.logical,
            max_io: IO_MAX,
            thin: true,
            write_cache: false,
            atomic: IO_MAX / self.logical,
            // Nothing survives a power failure, so nothing survives it torn.
            atomic_powerfail: IO_MAX / self.logical,
            caw_max,
            dealloc_reads_zero: true,
            lends: true,
        }
    }

    fn blocks_per_granule(&self) -> u64 {
        u64::from(self.physical / self.logical)
    }

    fn byte_offset(&self, lba: u64) -> usize {
        (lba * u64::from(self.logical)) as usize
    }

    fn byte_len(&self, span: Span) -> usize {
        (span.blocks * u64::from(self.logical)) as usize
    }

    fn mark_mapped(&self, span: Span) {
        if span.blocks == 0 {
            return;
        }
        // Both sizes are powers of two: no division.
        let bits = self.physical.ilog2() - self.logical.ilog2();
        let (first, last) = (span.lba >> bits, (span.lba + span.blocks - 1) >> bits);
        // The usual overwrite of one granule.
        if first == last && self.is_mapped(first) {
            return;
        }
        self.for_each_bitmap_word(first, last + 1, |word, bits| {
            // A look first: the usual overwrite then leaves the cache line shared.
            if word.load(Ordering::Relaxed) & bits != bits {
                let fresh = bits & !word.fetch_or(bits, Ordering::Release);
                self.gauge.add(u64::from(fresh.count_ones()) * u64::from(self.physical));
            }
        });
    }

    /// Zeroes the span, and frees the granules that it covers whole.
    fn unmap(&self, span: Span) {
        let first = span.lba.div_ceil(self.blocks_per_granule());
        let end = (span.lba + span.blocks) / self.blocks_per_granule();
        if first < end {
            self.for_each_bitmap_word(first, end, |word, bits| {
                let freed = bits & word.fetch_and(!bits, Ordering::AcqRel);
                self.gauge.sub(u64::from(freed.count_ones()) * u64::from(self.physical));
            });
        }
        self.region.zero(self.byte_offset(span.lba), self.byte_len(span));
    }

    /// Calls `each` with every word of the bitmap that has granules of `first..end`, and their bits.
    #[expect(
        clippy::indexing_slicing,
        reason = "the gate admits blocks of the disk only, and the bitmap covers all that it can grow to"
    )]
    fn for_each_bitmap_word(&self, first: u64, end: u64, each: impl Fn(&AtomicU64, u64)) {
        let mut at = first;
        while at < end {
            let stop = (at / 64 * 64 + 64).min(end);
            let bits = (u64::MAX >> (64 - (stop - at))) << (at % 64);
            each(&self.mapped[(at / 64) as usize], bits);
            at = stop;
        }
    }

    #[inline]
    #[expect(
        clippy::indexing_slicing,
        reason = "the gate admits blocks of the disk only, and the bitmap covers all that it can grow to"
    )]
    fn is_mapped(&self, granule: u64) -> bool {
        self.mapped[(granule / 64) as usize].load(Ordering::Acquire) >> (granule % 64) & 1 == 1
    }

    /// Where the run of granules like `granule` ends, at most at `end`.
    #[expect(
        clippy::indexing_slicing,
        reason = "the gate admits blocks of the disk only, and the bitmap covers all that it can grow to"
    )]
    fn mapping_run_end(&self, granule: u64, end: u64) -> u64 {
        let mapped = self.is_mapped(granule);
        let mut at = granule + 1;
        while at < end {
            let word = self.mapped[(at / 64) as usize].load(Ordering::Acquire);
            let same = if mapped { !word } else { word } >> (at % 64);
            if same != 0 {
                return (at + u64::from(same.trailing_zeros())).min(end);
            }
            at = at / 64 * 64 + 64;
        }
        end
    }

    fn extents(&self, span: Span) -> Vec<Extent> {
        let per = self.blocks_per_granule();
        let end = (span.lba + span.blocks).min((span.lba / per + EXTENT_GRANULES_MAX) * per);
        let mut extents = Vec::new();
        let mut lba = span.lba;
        while lba < end && extents.len() < EXTENTS_MAX {
            let granule = lba / per;
            let stop = (self.mapping_run_end(granule, end.div_ceil(per)) * per).min(end);
            extents.push(Extent { span: Span { lba, blocks: stop - lba }, mapped: self.is_mapped(granule) });
            lba = stop;
        }
        extents
    }
}

/// One shard's backend on a [`RamDisk`].
/// ```
/// use std::sync::Arc;
/// use blockwire_volume::{Backend, RamBackend, RamDisk};
///
/// let disk = Arc::new(RamDisk::new(1024, 4096, 512, 4096));
/// // One for each shard, over the same bytes.
/// let shards = [RamBackend::new(disk.clone()), RamBackend::new(disk.clone())];
/// assert!(disk.resize(4096) && !disk.resize(4097));
/// assert!(shards.iter().all(|shard| shard.geometry().capacity_bytes() == 2 << 20));
/// ```
#[derive(Debug)]
pub struct RamBackend {
    disk: Arc<RamDisk>,
    region: RegionHandle,
    /// See [`RamDisk`].
    zeroes: Option<RegionHandle>,
    /// Long reads and writes, in order; the first has begun. As many as the gate admits.
    copies: VecDeque<LongCopy>,
    done: VecDeque<IoCompletion>,
}

/// A read or write that is copied in parts.
#[derive(Debug)]
struct LongCopy {
    io: Io,
    /// Bytes that are copied.
    copied: usize,
}

impl RamBackend {
    /// A backend on this disk, for the shard that makes it.
    pub fn new(disk: Arc<RamDisk>) -> Self {
        let region = RegionHandle::new(disk.region.clone());
        let zeroes = disk.zeroes.clone().map(RegionHandle::new);
        RamBackend { disk, region, zeroes, copies: VecDeque::new(), done: VecDeque::new() }
    }

    /// Whether it is to be copied in parts.
    fn is_long_copy(&self, io: &Io) -> bool {
        match (&io.op, &io.payload) {
            (Op::Read(span), Payload::In(_)) | (Op::Write(span, _), Payload::Out(_)) => {
                self.disk.byte_len(*span) > COPY_MAX
            }
            _ => false,
        }
    }

    /// Copies the next part; true if that was the last.
    fn copy_part(&self, copy: &mut LongCopy) -> bool {
        let LongCopy { io, copied } = copy;
        let (Op::Read(span) | Op::Write(span, _)) = io.op else { return true };
        let part = *copied..self.disk.byte_len(span).min(*copied + COPY_MAX);
        let mut at = self.disk.byte_offset(span.lba) + part.start;
        match &mut io.payload {
            Payload::In(into) => {
                for slice in into.slices_mut(part.clone()) {
                    self.disk.copy_out(at, slice);
                    at += slice.len();
                }
            }
            Payload::Out(from) => {
                for piece in from.slice(part.clone()).pieces() {
                    self.region.region().write_buf(at, piece);
                    at += piece.len();
                }
            }
            Payload::None => {}
        }
        *copied = part.end;
        let is_last = part.end == self.disk.byte_len(span);
        if is_last && matches!(io.op, Op::Write(..)) {
            self.disk.mark_mapped(span);
        }
        is_last
    }

    /// The memory of a span. It is read when the answer goes out, so it is told to come near now.
    fn view_memory(&self, span: Span) -> Sg {
        let (at, len) = (self.disk.byte_offset(span.lba), self.disk.byte_len(span));
        if let Some(zeroes) = &self.zeroes {
            return self.view_mapped_memory((at, len), zeroes);
        }
        let lent = self.region.view(at, len);
        self.region.region().prefetch(at, len.min(PREFETCH_MAX));
        Sg::from(lent)
    }

    fn read(&self, span: Span, payload: Payload) -> (Result<Outcome, Failure>, Payload) {
        let at = self.disk.byte_offset(span.lba);
        match payload {
            Payload::None => (Ok(Outcome::Complete), Payload::Out(self.view_memory(span))),
            Payload::In(mut into) => {
                let mut done = 0;
                for slice in into.slices_mut(0..self.disk.byte_len(span)) {
                    self.disk.copy_out(at + done, slice);
                    done += slice.len();
                }
                (Ok(Outcome::Complete), Payload::In(into))
            }
            Payload::Out(_) => (Err(Fault::Internal.into()), payload),
        }
    }

    fn write(&self, span: Span, payload: &Payload) -> Result<Outcome, Failure> {
        let Payload::Out(from) = payload else { return Err(Fault::Internal.into()) };
        let mut at = self.disk.byte_offset(span.lba);
        for piece in from.pieces() {
            self.region.region().write_buf(at, piece);
            at += piece.len();
        }
        self.disk.mark_mapped(span);
        Ok(Outcome::Complete)
    }

    fn execute_op(&self, op: Op, payload: Payload) -> (Result<Outcome, Failure>, Payload) {
        let result = match op {
            Op::Read(span) => return self.read(span, payload),
            Op::Write(span, _) => self.write(span, &payload),
            Op::WriteZeroes { span, unmap: true } => {
                self.disk.unmap(span);
                Ok(Outcome::Complete)
            }
            Op::WriteZeroes { span, unmap: false } => {
                self.region.region().zero(self.disk.byte_offset(span.lba), self.disk.byte_len(span));
                self.disk.mark_mapped(span);
                Ok(Outcome::Complete)
            }
            Op::Unmap(spans) => {
                spans.iter().for_each(|span| self.disk.unmap(*span));
                Ok(Outcome::Complete)
            }
            Op::Extents(span) => Ok(Outcome::Extents(self.disk.extents(span))),
            Op::Flush | Op::Prefetch(_) => Ok(Outcome::Complete),
            Op::WriteAtomic(_) | Op::Compare(_) | Op::CompareAndWrite(_) | Op::WriteSame(_) | Op::Or(_) => {
                Err(Fault::Internal.into())
            }
            Op::Verify(_) | Op::MarkBad(_) | Op::Sanitize(_) => Err(Fault::Internal.into()),
        };
        (result, payload)
    }
}

impl Backend for RamBackend {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        if self.is_long_copy(&io) {
            return self.copies.push_back(LongCopy { io, copied: 0 });
        }
        let (result, payload) = self.execute_op(io.op, io.payload);
        self.done.push_back(IoCompletion { id: io.id, result, payload });
    }

    fn lend_memory(&mut self, span: Span) -> Option<Sg> {
        Some(self.view_memory(span))
    }

    fn has_loans(&self) -> bool {
        self.region.has_views()
    }

    fn write_inline(&mut self, span: Span, _durability: Durability, from: &[u8]) -> bool {
        self.region.region().write_non_temporal(self.disk.byte_offset(span.lba), from);
        self.disk.mark_mapped(span);
        true
    }

    fn publish_inline_writes(&mut self) {
        self.region.region().store_fence();
    }

    fn resume(&mut self) {
        let Some(mut copy) = self.copies.pop_front() else { return };
        if self.copy_part(&mut copy) {
            let Io { id, payload, .. } = copy.io;
            self.done.push_back(IoCompletion { id, result: Ok(Outcome::Complete), payload });
        } else {
            self.copies.push_front(copy);
        }
    }

    fn wants_resume(&self) -> bool {
        !self.copies.is_empty()
    }

    fn cancel(&mut self, _id: IoId) {
        // What has not ended does so soon.
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use buf::{Entropy, MemoryClass, Pool, Time};

    use super::*;
    use crate::{Epoch, Gate, Identity, PortId, Requester, ShardId, SharedGateState, View};

    const BLOCK: usize = 4096;
    const LONG: usize = 3 * COPY_MAX + BLOCK;

    fn io(id: u64, op: Op, payload: Payload) -> Io {
        Io { id: IoId(id), epoch: Epoch::default(), op, payload }
    }

    /// What other connections wait for is one part, not all of a long write or read.
    #[test]
    fn long_copies_are_made_in_parts_and_in_order() {
        let (pool, mut entropy) = (Pool::new(8 << 20), Entropy::new([5; 32]));
        let mut cx = Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
        let mut ram = RamBackend::new(Arc::new(RamDisk::new(1024, 1024, BLOCK as u32, BLOCK as u32)));
        let long = Span { lba: 3, blocks: (LONG / BLOCK) as u64 };
        let short = Span { lba: 900, blocks: (COPY_MAX / BLOCK) as u64 };
        let take = |len| pool.take_sg(MemoryClass::Wire, len).unwrap();
        let mut data = take(LONG);
        for (at, byte) in data.slices_mut(0..LONG).flatten().enumerate() {
            *byte = (at / 7) as u8;
        }
        let data = data.freeze();
        let write = Op::Write(long, Durability::Cached);
        ram.submit(&mut cx, io(1, write, Payload::Out(data.clone())));
        ram.submit(&mut cx, io(2, Op::Read(long), Payload::In(take(LONG))));
        let write = Op::Write(short, Durability::Cached);
        ram.submit(&mut cx, io(3, write, Payload::Out(data.slice(0..COPY_MAX))));
        assert_eq!(ram.poll_done().map(|done| done.id), Some(IoId(3)), "it is as long as a part");
        for turn in 1..=8 {
            assert!(ram.wants_resume());
            ram.resume();
            let done = ram.poll_done();
            assert_eq!(done.is_some(), turn % 4 == 0, "four parts each");
            let Some(IoCompletion { id, result, payload }) = done else { continue };
            assert_eq!((id, result), (IoId(turn / 4), Ok(Outcome::Complete)));
            if let Payload::In(into) = payload {
                let mut read = vec![0; LONG];
                into.freeze().copy_to(0, &mut read);
                assert!(read.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8));
            }
        }
        assert!(!ram.wants_resume() && ram.poll_done().is_none());
        assert_eq!(ram.disk.allocation_gauge().get(), (LONG + COPY_MAX) as u64);
    }

    /// Nothing else comes for a volume whose parked write has begun: the gate itself must say that it is not done.
    #[test]
    fn a_long_write_that_was_parked_goes_on_until_it_ends() {
        let (pool, mut entropy) = (Pool::new(8 << 20), Entropy::new([5; 32]));
        let mut cx = Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
        let (disk, shared) = (Arc::new(RamDisk::new(4096, 4096, 512, 4096)), SharedGateState::new(2));
        let [mut first, mut second] = [0, 1].map(|shard| {
            let view = View::without_reservations(disk.geometry());
            Gate::new(ShardId(shard), shared.clone(), view, Box::new(RamBackend::new(disk.clone())))
        });
        let who =
            Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: false };
        let span = Span { lba: 0, blocks: 2048 };
        let data = || {
            let mut sg = pool.take_sg(MemoryClass::Wire, 1 << 20).unwrap();
            sg.copy_from(0, &vec![1; 1 << 20]);
            Payload::Out(sg.freeze())
        };
        second.submit(&mut cx, &who, io(1, Op::WriteAtomic(span), data()));
        first.submit(&mut cx, &who, io(2, Op::Write(span, Durability::Cached), data()));
        assert!(!first.resume(&mut cx) && first.poll_done().is_none(), "it is parked");
        while second.resume(&mut cx) {}
        assert!(second.poll_done().is_some());
        assert_eq!(second.poll_shard_to_wake(), Some(ShardId(0)));
        first.handle_wake();
        let mut turns = 1;
        while first.resume(&mut cx) {
            turns += 1;
        }
        assert!(first.poll_done().is_some() && turns > 3, "in parts: {turns}");
    }
}
