//! A file or block device as a volume's backend.
//!
//! Short reads and writes are continued, a limited number of times. Memory or offsets that O_DIRECT cannot
//! take go through aligned memory. With the write cache off every change is stable before it ends. Flushes
//! that wait share one sync, on whichever shard they wait (see `unsynced_writes.rs`). A stable write that bypasses the
//! page cache uses RWF_DSYNC. Through the page cache it is written and then waits for a shared sync, because
//! a call with its own sync may be told of a failure of other writes, or they of its failure. What writes
//! through (see [`FileFacts::write_through`]) needs no sync, and a flush only asks whether it can be reached.
//! Invariant: an operation's memory is given back exactly once, and is not touched while the disk has it.

mod erase_and_extents;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buf::{Cx, Errno, MemoryClass, Payload, Sg, SgMut};
use volume::{
    Backend, DiskId, DiskKind, DiskOp, DiskTicket, Durability, Failure, Fault, Geometry, Io, IoCompletion,
    IoId, Op, Outcome, Refusal, ShardId, Span,
};

use crate::file_facts::{FileFacts, IO_MAX, UnsuitableFile};
use crate::file_op::{
    EraseMethod, FileOp, FileOpKind, TRIES_MAX, copy_out_of_surrounding, failure_from_errno, is_medium_error,
    is_transient, is_write_specific,
};
use crate::sync_failures::{SyncFailureStore, SyncFailures};
use crate::unsynced_writes::UnsyncedWrites;
use sync::SyncState;

/// The most bytes that one call frees or zeroes of what writes through: eight of Ceph's usual objects.
const ERASE_MAX: u32 = 32 << 20;

/// A file or block device, as all shards of its volume see it.
#[derive(Debug)]
pub struct FileDisk {
    disk: DiskId,
    geometry: Geometry,
    blocks: AtomicU64,
    direct: bool,
    memory_align: usize,
    write_through: bool,
    /// What has turned out not to work.
    no_punch: AtomicBool,
    no_zero: AtomicBool,
    no_extents: AtomicBool,
    dirty: UnsyncedWrites,
}

impl FileDisk {
    /// A disk that the world has opened as `disk` on each of `shards` shards.
    pub fn new(disk: DiskId, facts: &FileFacts, shards: u16) -> Result<Self, UnsuitableFile> {
        let geometry = facts.geometry()?;
        Ok(FileDisk {
            disk,
            geometry,
            blocks: AtomicU64::new(geometry.blocks),
            direct: facts.direct,
            memory_align: if facts.direct { facts.memory_align as usize } else { 1 },
            write_through: facts.write_through,
            no_punch: AtomicBool::new(!facts.punch),
            no_zero: AtomicBool::new(false),
            no_extents: AtomicBool::new(facts.device),
            dirty: UnsyncedWrites::new(shards),
        })
    }

    /// Something was written that is not stable yet, unless all is that ends.
    fn note_write(&self, shard: u16) {
        if !self.write_through {
            self.dirty.note_write(shard);
        }
    }

    /// The same, and `store` makes durable that a sync has failed, before any host is told.
    #[must_use]
    pub fn with_failure_store(self, store: Arc<dyn SyncFailureStore>) -> Self {
        FileDisk { dirty: self.dirty.with_failure_store(store), ..self }
    }

    /// Whether what was written to it may be lost.
    pub fn sync_failures(&self) -> &Arc<SyncFailures> {
        self.dirty.sync_failures()
    }

    /// The operator takes note of what may be lost: so many failures, as they were counted before the file was synced
    /// again, are forgiven. The next flush syncs.
    pub fn acknowledge_sync_failures(&self, failures: u64) {
        self.dirty.note_external_change();
        self.sync_failures().acknowledge_failures(failures);
    }

    /// What the blocks are like now.
    pub fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    /// The file has another length now: tells how many blocks that makes.
    pub fn note_resize(&self, bytes: u64) -> Geometry {
        let unit = u64::from(self.geometry.dio_unit_blocks());
        let blocks = bytes / u64::from(self.geometry.logical) / unit * unit;
        self.blocks.store(blocks, Ordering::Release);
        self.dirty.note_external_change();
        self.geometry()
    }

    /// Somebody else than the shards has synced the file, and it failed: what is in it is in doubt, as if a
    /// shard had been told.
    pub fn note_external_sync_failure(&self) {
        self.dirty.note_sync_failure();
    }
}

/// One shard's backend on a [`FileDisk`].
#[derive(Debug)]
pub struct FileBackend {
    disk: Arc<FileDisk>,
    shard: u16,
    ops: Vec<Option<FileOp>>,
    free: Vec<u32>,
    out: VecDeque<DiskOp>,
    done: VecDeque<IoCompletion>,
    /// Writes that lie in the page cache and wait for a sync.
    written: VecDeque<IoId>,
    /// Ends that tell of a failed sync, until that is durable.
    held: Vec<IoCompletion>,
    /// Operations that the sync which is out covers, and those that wait for the next.
    syncing: Vec<u32>,
    sync_next: Vec<u32>,
    sync: SyncState,
    /// How often in a row the sync could not be made.
    sync_tries: u8,
    /// How much had failed when the flushes of `syncing` began.
    failures: u64,
    covered: Vec<u64>,
    /// Shards that wait for this one.
    wakes: VecDeque<u16>,
}

impl FileBackend {
    /// The backend of `shard` on this disk.
    pub fn new(disk: Arc<FileDisk>, shard: u16) -> Self {
        FileBackend {
            disk,
            shard,
            ops: Vec::new(),
            free: Vec::new(),
            out: VecDeque::new(),
            done: VecDeque::new(),
            written: VecDeque::new(),
            held: Vec::new(),
            syncing: Vec::new(),
            sync_next: Vec::new(),
            sync: SyncState::Idle,
            sync_tries: 0,
            failures: 0,
            covered: Vec::new(),
            wakes: VecDeque::new(),
        }
    }

    fn logical_block_bytes(&self) -> u64 {
        u64::from(self.disk.geometry.logical)
    }

    #[expect(clippy::indexing_slicing, reason = "slots are given out by this table and are places of it")]
    fn insert_op(&mut self, id: IoId, payload: Payload, kind: FileOpKind) -> u32 {
        let file_op = FileOp { id, payload, kind, cancelled: false, tries: 0 };
        match self.free.pop() {
            Some(slot) => {
                self.ops[slot as usize] = Some(file_op);
                slot
            }
            None => {
                self.ops.push(Some(file_op));
                (self.ops.len() - 1) as u32
            }
        }
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "a ticket that is out names an operation of this table until it ends"
    )]
    fn file_op_mut(&mut self, slot: u32) -> &mut FileOp {
        self.ops[slot as usize].as_mut().expect("an operation that is under way")
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "an operation ends once: what ends it is the one call that it has out, or a cancel of a call that is not"
    )]
    fn complete_op(&mut self, slot: u32, result: Result<Outcome, Failure>) {
        let file_op = self.ops[slot as usize].take().expect("an operation ends once");
        self.free.push(slot);
        self.push_completion(file_op.id, result, file_op.payload);
    }

    fn push_completion(&mut self, id: IoId, result: Result<Outcome, Failure>, payload: Payload) {
        let done = IoCompletion { id, result, payload };
        if matches!(done.result, Err(Failure::Failed(Fault::Sync)))
            && !self.disk.sync_failures().is_recorded()
        {
            return self.held.push(done);
        }
        self.done.push_back(done);
    }

    /// Hosts may be told of a failed sync, if that is durable by now.
    fn release_held_completions(&mut self) {
        let failures = self.disk.sync_failures();
        if !self.held.is_empty() && (failures.is_recorded() || !failures.has_unacknowledged()) {
            self.done.extend(self.held.drain(..));
        }
    }

    fn push_disk_op(&mut self, slot: u32, kind: DiskKind) {
        self.out.push_back(DiskOp { disk: self.disk.disk, ticket: DiskTicket(u64::from(slot)), kind });
    }

    /// Whether the disk can move bytes to and from this memory.
    fn is_dio_aligned(&self, address: *const u8, len: usize) -> bool {
        let align = self.disk.memory_align;
        let dio_align = self.disk.geometry.dio_align as usize;
        !self.disk.direct
            || ((address as usize).is_multiple_of(align) && len.is_multiple_of(dio_align.min(4096)))
    }

    /// Memory that O_DIRECT can take: whole pages. `None` if the pool is empty.
    fn allocate_aligned(&self, cx: &mut Cx<'_>, len: usize) -> Option<SgMut> {
        let mut sg = SgMut::new();
        let mut left = len;
        while left > 0 {
            let mut want = left.min(IO_MAX as usize);
            // A piece of at least a page starts on its own size; smaller pieces are no use.
            let piece = loop {
                match cx.pool.take(MemoryClass::Solicited, want.max(4096)) {
                    Some(piece) => break piece,
                    None if want > 4096 => want = (want / 2).next_multiple_of(4096),
                    None => return None,
                }
            };
            let mut piece = piece;
            piece.set_len(want);
            left -= want;
            sg.push(piece);
        }
        Some(sg)
    }

    fn read(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, payload: Payload) {
        let Payload::In(into) = payload else {
            return self.push_completion(id, Err(Fault::Internal.into()), payload);
        };
        let offset = span.lba * self.logical_block_bytes();
        let align = u64::from(self.disk.geometry.dio_align);
        let placed = offset.is_multiple_of(align) && (into.len() as u64).is_multiple_of(align);
        if !self.disk.direct
            || (placed
                && !into.is_only_set_aside()
                && into.pieces().iter().all(|one| self.is_dio_aligned(one.as_ptr(), one.len())))
        {
            let slot = self.insert_op(id, Payload::None, FileOpKind::Read);
            return self.push_disk_op(slot, DiskKind::Read { offset, into, skip: 0 });
        }
        let start = offset - offset % align;
        let cover = (offset + into.len() as u64).next_multiple_of(align) - start;
        let Some(around) = self.allocate_aligned(cx, cover as usize) else {
            return self.push_completion(id, Err(Refusal::Busy.into()), Payload::In(into));
        };
        let from = (offset - start) as usize;
        let slot = self.insert_op(id, Payload::In(into), FileOpKind::ReadAround { span, from });
        self.push_disk_op(slot, DiskKind::Read { offset: start, into: around, skip: 0 });
    }

    fn write(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, durability: Durability, payload: Payload) {
        let Payload::Out(from) = payload else {
            return self.push_completion(id, Err(Fault::Internal.into()), payload);
        };
        if self.disk.dirty.has_sync_failed() {
            return self.push_completion(id, Err(Fault::Sync.into()), Payload::Out(from));
        }
        let durable =
            (durability == Durability::Stable || !self.disk.geometry.write_cache) && !self.disk.write_through;
        let offset = span.lba * self.logical_block_bytes();
        if from.pieces().iter().all(|one| self.is_dio_aligned(one.as_ptr(), one.len())) {
            let slot =
                self.insert_op(id, Payload::None, FileOpKind::Write { durable, side: None, probes: false });
            return self.push_write(slot, offset, from);
        }
        let Some(mut copy) = self.allocate_aligned(cx, from.len()) else {
            return self.push_completion(id, Err(Refusal::Busy.into()), Payload::Out(from));
        };
        let mut at = 0;
        for slice in copy.slices_mut(0..from.len()) {
            from.copy_to(at, slice);
            at += slice.len();
        }
        let slot =
            self.insert_op(id, Payload::Out(from), FileOpKind::Write { durable, side: None, probes: false });
        self.push_write(slot, offset, copy.freeze());
    }

    /// The first of a write. Past the page cache it is stable by itself if it is to be stable.
    #[expect(clippy::unreachable, reason = "its callers have made it a write")]
    fn push_write(&mut self, slot: u32, offset: u64, from: Sg) {
        let (direct, shard, disk) = (self.disk.direct, self.shard, self.disk.clone());
        let FileOpKind::Write { durable, side, .. } = &mut self.file_op_mut(slot).kind else {
            unreachable!("a write")
        };
        let durable = *durable && direct;
        if durable {
            let (begun, wake) = disk.dirty.begin_stable_write(shard);
            *side = Some(begun);
            self.wake_sync_shard(wake);
        }
        self.push_disk_op(slot, DiskKind::Write { offset, from, skip: 0, durable });
    }

    /// How far a transfer is after `came` bytes more; O_DIRECT counts only whole units.
    fn advance_transfer(&self, skip: usize, came: usize, len: usize) -> usize {
        let now = (skip + came).min(len);
        let align = self.disk.geometry.dio_align as usize;
        if !self.disk.direct || now == len { now } else { now - now % align }
    }

    fn handle_read_done(
        &mut self,
        slot: u32,
        offset: u64,
        into: SgMut,
        skip: usize,
        came: Result<usize, Errno>,
    ) {
        let logical = self.logical_block_bytes();
        if let Some(skip) = self.next_transfer_offset(slot, (skip, into.len()), came) {
            return self.push_disk_op(slot, DiskKind::Read { offset, into, skip });
        }
        let result = match came {
            Err(errno) => Err(failure_from_errno(errno, Fault::Medium((offset + skip as u64) / logical))),
            Ok(came) if skip + came >= into.len() => Ok(Outcome::Complete),
            Ok(_) if self.is_cancelled(slot) => Err(Fault::Aborted.into()),
            // Nothing where blocks should be: the file was cut short behind our back.
            Ok(came) => Err(Fault::Medium((offset + (skip + came) as u64) / logical).into()),
        };
        let file_op = self.file_op_mut(slot);
        let result = match (&file_op.kind, &mut file_op.payload) {
            (FileOpKind::ReadAround { from, span }, Payload::In(payload)) => {
                if result.is_ok() {
                    copy_out_of_surrounding(&into.freeze(), *from, payload);
                }
                result.map_err(|failure| clamp_medium_fault(failure, *span))
            }
            _ => {
                file_op.payload = Payload::In(into);
                result
            }
        };
        self.complete_op(slot, result);
    }

    #[expect(clippy::unreachable, reason = "only these kinds of work write")]
    fn handle_write_done(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        op: CompletedWrite,
        came: Result<usize, Errno>,
    ) {
        let CompletedWrite { offset, from, skip, durable } = op;
        let probes = matches!(self.file_op_mut(slot).kind, FileOpKind::Write { probes: true, .. });
        if came.is_ok() && !durable && !probes {
            self.disk.note_write(self.shard);
        }
        if let Some(skip) = self.next_transfer_offset(slot, (skip, from.len()), came) {
            return self.push_disk_op(slot, DiskKind::Write { offset, from, skip, durable });
        }
        let lba = (offset + skip as u64) / self.logical_block_bytes();
        let result = match came {
            Err(errno) if durable && self.may_be_sync_error(errno) => {
                self.disk.dirty.note_sync_failure();
                Err(Fault::Sync.into())
            }
            Err(errno) if durable && !is_write_specific(errno) => {
                return self.probe_failed_write(slot, offset, from);
            }
            // The blocks can be written, or nobody knows: what has failed may have been making stable what lay in the
            // disk's cache, and others may have been told since that theirs is.
            came if probes && !came.is_err_and(is_medium_error) => {
                self.disk.dirty.note_sync_failure();
                Err(Fault::Sync.into())
            }
            Err(errno) => Err(failure_from_errno(errno, Fault::Unwritable(lba))),
            Ok(came) if skip + came < from.len() && self.is_cancelled(slot) => Err(Fault::Aborted.into()),
            Ok(came) if skip + came < from.len() => Err(Fault::NoSpace.into()),
            Ok(_) => Ok(Outcome::Complete),
        };
        self.end_stable_write(slot);
        let written = from.len() as u64;
        let file_op = self.file_op_mut(slot);
        match &mut file_op.kind {
            FileOpKind::Erase { how: EraseMethod::Fill { done, .. }, .. } => {
                *done += written;
                return self.handle_erase_done(cx, slot, result);
            }
            FileOpKind::Write { durable: wanted, .. } => {
                let syncs = *wanted && !durable && result.is_ok();
                if let Payload::None = file_op.payload {
                    file_op.payload = Payload::Out(from);
                }
                if syncs {
                    file_op.kind = FileOpKind::Sync;
                    let id = file_op.id;
                    self.written.push_back(id);
                    return self.flush(slot);
                }
            }
            FileOpKind::Read | FileOpKind::ReadAround { .. } | FileOpKind::Erase { .. } => {
                unreachable!("it writes")
            }
            FileOpKind::Sync | FileOpKind::Extents { .. } | FileOpKind::Prefetch => unreachable!("it writes"),
        }
        self.complete_op(slot, result);
    }

    /// Where a transfer of `len` bytes, `skip` of them done before, goes on after a call; `None` if it has
    /// ended, well or not. What brings nothing on is tried a bounded number of times, and what was cancelled makes no
    /// further call: its blocks may be another's by then.
    fn next_transfer_offset(
        &mut self,
        slot: u32,
        (skip, len): (usize, usize),
        came: Result<usize, Errno>,
    ) -> Option<usize> {
        let next = match came {
            Ok(0) => return None,
            Ok(came) => self.advance_transfer(skip, came, len),
            Err(errno) if is_transient(errno) => skip,
            Err(_) => return None,
        };
        if self.is_cancelled(slot) {
            return None;
        }
        let file_op = self.file_op_mut(slot);
        file_op.tries = if next > skip { 0 } else { file_op.tries + 1 };
        (next < len && file_op.tries <= TRIES_MAX).then_some(next)
    }

    /// Whether an operation asks for nothing more. A write that is made once more to learn what has failed goes on.
    fn is_cancelled(&mut self, slot: u32) -> bool {
        let file_op = self.file_op_mut(slot);
        file_op.cancelled && !matches!(file_op.kind, FileOpKind::Write { probes: true, .. })
    }

    /// Counts one more try of what could not be made: false if there were enough, or if it was cancelled.
    fn count_retry(&mut self, slot: u32) -> bool {
        if self.is_cancelled(slot) {
            return false;
        }
        let file_op = self.file_op_mut(slot);
        file_op.tries += 1;
        file_op.tries <= TRIES_MAX
    }
}

/// A write that came back.
struct CompletedWrite {
    offset: u64,
    from: Sg,
    skip: usize,
    durable: bool,
}

/// A medium fault in what was read around a span is one of the span's first block at the least.
fn clamp_medium_fault(failure: Failure, span: Span) -> Failure {
    match failure {
        Failure::Failed(Fault::Medium(lba)) => {
            Fault::Medium(lba.clamp(span.lba, span.lba + span.blocks.saturating_sub(1))).into()
        }
        other => other,
    }
}

impl Backend for FileBackend {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// Where space is freed by objects of several MiB, each must be named whole.
    fn erase_max(&self) -> u32 {
        if self.disk.write_through { ERASE_MAX } else { IO_MAX }
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        let Io { id, op, payload, .. } = io;
        match op {
            Op::Read(span) => self.read(cx, id, span, payload),
            Op::Write(span, durability) => self.write(cx, id, span, durability, payload),
            Op::Flush => {
                let slot = self.insert_op(id, payload, FileOpKind::Sync);
                self.flush(slot);
            }
            Op::WriteZeroes { span, unmap } => self.start_erase(cx, id, span, unmap),
            Op::Unmap(spans) => match spans[..] {
                [span] => self.start_erase(cx, id, span, true),
                _ => self.push_completion(id, Err(Fault::Internal.into()), payload),
            },
            Op::Prefetch(span) => {
                let kind = DiskKind::Prefetch {
                    offset: span.lba * self.logical_block_bytes(),
                    len: span.blocks * self.logical_block_bytes(),
                };
                let slot = self.insert_op(id, payload, FileOpKind::Prefetch);
                self.push_disk_op(slot, kind);
            }
            Op::Extents(span) => self.start_extents(id, span),
            Op::WriteAtomic(_) | Op::Compare(_) | Op::CompareAndWrite(_) | Op::WriteSame(_) | Op::Or(_) => {
                self.push_completion(id, Err(Fault::Internal.into()), payload);
            }
            Op::Verify(_) | Op::MarkBad(_) | Op::Sanitize(_) => {
                self.push_completion(id, Err(Fault::Internal.into()), payload);
            }
        }
    }

    /// What the disk has not been asked yet ends at once, unless it is to tell whether a sync has failed; a call that is
    /// out cannot be recalled.
    fn cancel(&mut self, id: IoId) {
        let found =
            self.ops.iter_mut().position(|file_op| file_op.as_ref().is_some_and(|file_op| file_op.id == id));
        let Some(slot) = found else { return };
        let slot = slot as u32;
        let file_op = self.file_op_mut(slot);
        file_op.cancelled = true;
        if matches!(file_op.kind, FileOpKind::Write { probes: true, .. }) {
            return;
        }
        let Some(at) = self.out.iter().position(|op| op.ticket.0 == u64::from(slot)) else { return };
        let Some(op) = self.out.remove(at) else { return };
        let file_op = self.file_op_mut(slot);
        match (op.kind, &file_op.payload) {
            (DiskKind::Read { into, .. }, Payload::None) => file_op.payload = Payload::In(into),
            (DiskKind::Write { from, .. }, Payload::None)
                if matches!(file_op.kind, FileOpKind::Write { .. }) =>
            {
                file_op.payload = Payload::Out(from);
            }
            _ => {}
        }
        self.end_stable_write(slot);
        self.complete_op(slot, Err(Fault::Aborted.into()));
    }

    fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        self.wakes.pop_front().map(ShardId)
    }

    fn handle_wake(&mut self) {
        self.continue_sync();
        self.release_held_completions();
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }

    fn poll_unsynced_write(&mut self) -> Option<IoId> {
        self.written.pop_front()
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.out.pop_front()
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let slot = op.ticket.0 as u32;
        match op.kind {
            DiskKind::Sync if op.ticket == sync::SYNC_TICKET => self.handle_sync_done(came),
            DiskKind::Sync => self.handle_flush_done(slot, came),
            DiskKind::Read { offset, into, skip } => self.handle_read_done(slot, offset, into, skip, came),
            DiskKind::Write { offset, from, skip, durable } => {
                self.handle_write_done(cx, slot, CompletedWrite { offset, from, skip, durable }, came);
            }
            DiskKind::Punch { .. } | DiskKind::Zero { .. } => {
                self.handle_punch_or_zero_done(cx, slot, op.kind, came)
            }
            DiskKind::NextData { offset, data } => self.handle_next_data(slot, offset, data, came),
            // A hint: whether it helped is nobody's concern.
            DiskKind::Prefetch { .. } => self.complete_op(slot, Ok(Outcome::Complete)),
        }
    }
}
