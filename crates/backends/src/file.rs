//! A file or block device as a volume's backend.
//!
//! Short reads and writes are continued; memory or offsets that O_DIRECT cannot take go through
//! aligned memory; with the write cache off every change is stable before it ends. Flushes that
//! wait share one sync. Invariant: an operation's memory is given back exactly once, and none is
//! touched while the disk has it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buf::{Class, Cx, Errno, Payload, Sg, SgMut};
use volume::{
    Backend, DiskId, DiskKind, DiskOp, DiskTicket, Done, Durability, Extent, Failure, Fault, Geometry, Io,
    IoId, Op, Outcome, Refusal, Span,
};

use crate::dirty::Dirty;
use crate::facts::{FileFacts, IO_MAX, Unfit};
use crate::job::{Erase, Job, Work, copy_out, fault_of, is_transient, is_unsupported};

/// Bytes of zeroes written at a time where a file can zero in no better way.
const FILL_BYTES: u64 = 256 << 10;
/// How many extents one answer names.
const EXTENTS_MAX: usize = 64;
/// The ticket of a sync.
const SYNC: DiskTicket = DiskTicket(u64::MAX);

/// A file or block device, as all shards of its volume see it.
#[derive(Debug)]
pub struct FileDisk {
    disk: DiskId,
    geometry: Geometry,
    blocks: AtomicU64,
    direct: bool,
    memory_align: usize,
    /// What has turned out not to work.
    no_punch: AtomicBool,
    no_zero: AtomicBool,
    no_extents: AtomicBool,
    dirty: Dirty,
}

impl FileDisk {
    /// A disk that the world has opened as `disk` on each of `shards` shards.
    pub fn new(disk: DiskId, facts: &FileFacts, shards: u16) -> Result<Self, Unfit> {
        let geometry = facts.geometry()?;
        Ok(FileDisk {
            disk,
            geometry,
            blocks: AtomicU64::new(geometry.blocks),
            direct: facts.direct,
            memory_align: if facts.direct { facts.memory_align as usize } else { 1 },
            no_punch: AtomicBool::new(!facts.punch),
            no_zero: AtomicBool::new(false),
            no_extents: AtomicBool::new(facts.device),
            dirty: Dirty::new(shards),
        })
    }

    /// What the blocks are like now.
    pub fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Acquire), ..self.geometry }
    }

    /// The file has another length now: tells how many blocks that makes.
    pub fn resized(&self, bytes: u64) -> Geometry {
        let unit = u64::from(self.geometry.unit());
        let blocks = bytes / u64::from(self.geometry.logical) / unit * unit;
        self.blocks.store(blocks, Ordering::Release);
        self.geometry()
    }
}

/// One shard's backend on a [`FileDisk`].
#[derive(Debug)]
pub struct File {
    disk: Arc<FileDisk>,
    shard: u16,
    jobs: Vec<Option<Job>>,
    free: Vec<u32>,
    out: VecDeque<DiskOp>,
    done: VecDeque<Done>,
    /// Jobs that the sync which is out covers, and those that wait for the next.
    syncing: Vec<u32>,
    sync_next: Vec<u32>,
    sync_is_out: bool,
    covered: Vec<u64>,
}

impl File {
    /// The backend of `shard` on this disk.
    pub fn new(disk: Arc<FileDisk>, shard: u16) -> Self {
        File {
            disk,
            shard,
            jobs: Vec::new(),
            free: Vec::new(),
            out: VecDeque::new(),
            done: VecDeque::new(),
            syncing: Vec::new(),
            sync_next: Vec::new(),
            sync_is_out: false,
            covered: Vec::new(),
        }
    }

    fn logical(&self) -> u64 {
        u64::from(self.disk.geometry.logical)
    }

    fn open(&mut self, id: IoId, payload: Payload, work: Work) -> u32 {
        let job = Job { id, payload, work, cancelled: false };
        match self.free.pop() {
            Some(slot) => {
                self.jobs[slot as usize] = Some(job);
                slot
            }
            None => {
                self.jobs.push(Some(job));
                (self.jobs.len() - 1) as u32
            }
        }
    }

    fn job(&mut self, slot: u32) -> &mut Job {
        self.jobs[slot as usize].as_mut().expect("a job that is under way")
    }

    fn close(&mut self, slot: u32, result: Result<Outcome, Failure>) {
        let job = self.jobs[slot as usize].take().expect("a job ends once");
        self.free.push(slot);
        self.done.push_back(Done { id: job.id, result, payload: job.payload });
    }

    fn end(&mut self, id: IoId, result: Result<Outcome, Failure>, payload: Payload) {
        self.done.push_back(Done { id, result, payload });
    }

    fn push(&mut self, slot: u32, kind: DiskKind) {
        self.out.push_back(DiskOp { disk: self.disk.disk, ticket: DiskTicket(u64::from(slot)), kind });
    }

    /// Whether the disk can move bytes to and from this memory.
    fn fits(&self, address: *const u8, len: usize) -> bool {
        let align = self.disk.memory_align;
        let dio_align = self.disk.geometry.dio_align as usize;
        !self.disk.direct
            || ((address as usize).is_multiple_of(align) && len.is_multiple_of(dio_align.min(4096)))
    }

    /// Memory that O_DIRECT can take: whole pages. `None` if the pool is empty.
    fn aligned(&self, cx: &mut Cx<'_>, len: usize) -> Option<SgMut> {
        let mut sg = SgMut::new();
        let mut left = len;
        while left > 0 {
            let mut want = left.min(IO_MAX as usize);
            // A piece of at least a page starts on its own size; smaller pieces are no use.
            let piece = loop {
                match cx.pool.take(Class::Solicited, want.max(4096)) {
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
        let Payload::In(into) = payload else { return self.end(id, Err(Fault::Internal.into()), payload) };
        let offset = span.lba * self.logical();
        let align = u64::from(self.disk.geometry.dio_align);
        let placed = offset.is_multiple_of(align) && (into.len() as u64).is_multiple_of(align);
        if !self.disk.direct || (placed && into.pieces().iter().all(|one| self.fits(one.as_ptr(), one.len())))
        {
            let slot = self.open(id, Payload::None, Work::Read);
            return self.push(slot, DiskKind::Read { offset, into, skip: 0 });
        }
        let start = offset - offset % align;
        let cover = (offset + into.len() as u64).next_multiple_of(align) - start;
        let Some(around) = self.aligned(cx, cover as usize) else {
            return self.end(id, Err(Refusal::Busy.into()), Payload::In(into));
        };
        let from = (offset - start) as usize;
        let slot = self.open(id, Payload::In(into), Work::ReadAround { span, from });
        self.push(slot, DiskKind::Read { offset: start, into: around, skip: 0 });
    }

    fn write(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, durability: Durability, payload: Payload) {
        let Payload::Out(from) = payload else { return self.end(id, Err(Fault::Internal.into()), payload) };
        if self.disk.dirty.has_failed() {
            return self.end(id, Err(Fault::Sync.into()), Payload::Out(from));
        }
        let durable = durability == Durability::Stable || !self.disk.geometry.write_cache;
        let offset = span.lba * self.logical();
        if from.pieces().iter().all(|one| self.fits(one.as_ptr(), one.len())) {
            let slot = self.open(id, Payload::None, Work::Write);
            return self.push(slot, DiskKind::Write { offset, from, skip: 0, durable });
        }
        let Some(mut copy) = self.aligned(cx, from.len()) else {
            return self.end(id, Err(Refusal::Busy.into()), Payload::Out(from));
        };
        let mut at = 0;
        for slice in copy.slices_mut(0..from.len()) {
            from.copy_to(at, slice);
            at += slice.len();
        }
        let slot = self.open(id, Payload::Out(from), Work::Write);
        self.push(slot, DiskKind::Write { offset, from: copy.freeze(), skip: 0, durable });
    }

    fn erase(&mut self, cx: &mut Cx<'_>, id: IoId, span: Span, unmap: bool) {
        if span.blocks == 0 {
            return self.end(id, Ok(Outcome::Complete), Payload::None);
        }
        if self.disk.dirty.has_failed() {
            return self.end(id, Err(Fault::Sync.into()), Payload::None);
        }
        let stable = !self.disk.geometry.write_cache;
        let how = if unmap { Erase::Punch } else { Erase::Zero };
        let slot = self.open(id, Payload::None, Work::Erase { span, how, stable });
        self.go_on_erasing(cx, slot);
    }

    /// Starts the next disk operation of an erasure, in the best way that has not failed to work.
    fn go_on_erasing(&mut self, cx: &mut Cx<'_>, slot: u32) {
        let logical = self.logical();
        let disk = self.disk.clone();
        let Work::Erase { span, how, .. } = &mut self.job(slot).work else { unreachable!("an erasure") };
        let (offset, len) = (span.lba * logical, span.blocks * logical);
        if matches!(how, Erase::Punch) && disk.no_punch.load(Ordering::Relaxed) {
            *how = Erase::Zero;
        }
        if matches!(how, Erase::Zero) && disk.no_zero.load(Ordering::Relaxed) {
            *how = Erase::Fill { done: 0, zeroes: Sg::new() };
        }
        let how = how.clone();
        match how {
            Erase::Punch => self.push(slot, DiskKind::Punch { offset, len }),
            Erase::Zero => self.push(slot, DiskKind::Zero { offset, len }),
            Erase::Fill { done, zeroes } => self.fill(cx, slot, offset, len, done, zeroes),
        }
    }

    fn fill(&mut self, cx: &mut Cx<'_>, slot: u32, offset: u64, len: u64, done: u64, mut zeroes: Sg) {
        let align = u64::from(self.disk.geometry.dio_align);
        if !offset.is_multiple_of(align) || !len.is_multiple_of(align) {
            // Neither punching nor zeroing works, and less than a unit cannot be written.
            return self.close(slot, Err(Refusal::Unsupported.into()));
        }
        if zeroes.is_empty() {
            let Some(mut fresh) = self.aligned(cx, len.min(FILL_BYTES) as usize) else {
                return self.close(slot, Err(Refusal::Busy.into()));
            };
            fresh.zero(0..fresh.len());
            zeroes = fresh.freeze();
        }
        let part = zeroes.slice(0..(len - done).min(zeroes.len() as u64) as usize);
        if let Work::Erase { how, .. } = &mut self.job(slot).work {
            *how = Erase::Fill { done, zeroes };
        }
        self.push(slot, DiskKind::Write { offset: offset + done, from: part, skip: 0, durable: false });
    }

    fn flush(&mut self, slot: u32) {
        if self.disk.dirty.has_failed() {
            return self.close(slot, Err(Fault::Sync.into()));
        }
        self.sync_next.push(slot);
        self.start_sync();
    }

    /// One sync at a time: what comes while one is out may not be covered by it.
    fn start_sync(&mut self) {
        if self.sync_is_out || self.sync_next.is_empty() {
            return;
        }
        if self.disk.dirty.is_clean() {
            while let Some(slot) = self.sync_next.pop() {
                self.close(slot, Ok(Outcome::Complete));
            }
            return;
        }
        std::mem::swap(&mut self.syncing, &mut self.sync_next);
        self.sync_is_out = true;
        self.disk.dirty.note(&mut self.covered);
        self.out.push_back(DiskOp { disk: self.disk.disk, ticket: SYNC, kind: DiskKind::Sync });
    }

    fn has_synced(&mut self, came: Result<usize, Errno>) {
        self.sync_is_out = false;
        match came {
            Err(errno) if is_transient(errno) => {
                self.sync_next.append(&mut self.syncing);
                return self.start_sync();
            }
            Err(_) => self.disk.dirty.fail(),
            Ok(_) => self.disk.dirty.synced(&self.covered),
        }
        // Another shard's sync may have been the one that was told of the failure.
        let failed = self.disk.dirty.has_failed();
        while let Some(slot) = self.syncing.pop() {
            self.close(slot, if failed { Err(Fault::Sync.into()) } else { Ok(Outcome::Complete) });
        }
        if failed {
            while let Some(slot) = self.sync_next.pop() {
                self.close(slot, Err(Fault::Sync.into()));
            }
        }
        self.start_sync();
    }

    /// How far a transfer is after `came` bytes more, of which O_DIRECT counts whole units only.
    fn advance(&self, skip: usize, came: usize, len: usize) -> usize {
        let now = (skip + came).min(len);
        let align = self.disk.geometry.dio_align as usize;
        if !self.disk.direct || now == len { now } else { now - now % align }
    }

    fn has_read(&mut self, slot: u32, offset: u64, into: SgMut, skip: usize, came: Result<usize, Errno>) {
        let logical = self.logical();
        let again = match came {
            Ok(0) => None,
            Ok(came) => Some(self.advance(skip, came, into.len())),
            Err(errno) if is_transient(errno) => Some(skip),
            Err(_) => None,
        };
        if let Some(skip) = again
            && skip < into.len()
        {
            return self.push(slot, DiskKind::Read { offset, into, skip });
        }
        // Nothing where blocks should be: the file was cut short behind our back.
        let lba = (offset + skip as u64) / logical;
        let result = match came {
            Err(errno) => Err(fault_of(errno, Fault::Medium(lba))),
            Ok(0) => Err(Fault::Medium(lba).into()),
            Ok(_) => Ok(Outcome::Complete),
        };
        let job = self.job(slot);
        let result = match (&job.work, &mut job.payload) {
            (Work::ReadAround { from, span }, Payload::In(payload)) => {
                if result.is_ok() {
                    copy_out(&into.freeze(), *from, payload);
                }
                result.map_err(|failure| within(failure, *span))
            }
            _ => {
                job.payload = Payload::In(into);
                result
            }
        };
        self.close(slot, result);
    }

    fn has_written(&mut self, cx: &mut Cx<'_>, slot: u32, op: Written, came: Result<usize, Errno>) {
        let Written { offset, from, skip, durable } = op;
        let again = match came {
            Ok(0) => None,
            Ok(came) => Some(self.advance(skip, came, from.len())),
            Err(errno) if is_transient(errno) => Some(skip),
            Err(_) => None,
        };
        if came.is_ok() && !durable {
            self.disk.dirty.wrote(self.shard);
        }
        if let Some(skip) = again
            && skip < from.len()
        {
            return self.push(slot, DiskKind::Write { offset, from, skip, durable });
        }
        let lba = (offset + skip as u64) / self.logical();
        let result = match came {
            Err(errno) => Err(fault_of(errno, Fault::Unwritable(lba))),
            Ok(0) => Err(Fault::NoSpace.into()),
            Ok(_) => Ok(Outcome::Complete),
        };
        let written = from.len() as u64;
        let job = self.job(slot);
        match &mut job.work {
            Work::Erase { how: Erase::Fill { done, .. }, .. } => {
                *done += written;
                self.has_erased(cx, slot, result);
            }
            _ => {
                if let Payload::None = job.payload {
                    job.payload = Payload::Out(from);
                }
                self.close(slot, result);
            }
        }
    }

    fn has_erased(&mut self, cx: &mut Cx<'_>, slot: u32, result: Result<Outcome, Failure>) {
        let logical = self.logical();
        let job = self.job(slot);
        let Work::Erase { span, how, stable } = &job.work else { unreachable!("an erasure") };
        let stable = *stable;
        let more = matches!(how, Erase::Fill { done, .. } if *done < span.blocks * logical);
        match result {
            Err(failure) => self.close(slot, Err(failure)),
            Ok(_) if more && job.cancelled => self.close(slot, Err(Fault::Aborted.into())),
            Ok(_) if more => self.go_on_erasing(cx, slot),
            Ok(_) if stable => {
                self.job(slot).work = Work::Sync;
                self.flush(slot);
            }
            Ok(_) => self.close(slot, Ok(Outcome::Complete)),
        }
    }

    /// A file was asked to punch or to zero.
    fn has_asked(&mut self, cx: &mut Cx<'_>, slot: u32, kind: DiskKind, came: Result<usize, Errno>) {
        let Work::Erase { span, .. } = &self.job(slot).work else { unreachable!("an erasure") };
        let lba = span.lba;
        let cannot = match kind {
            DiskKind::Punch { .. } => &self.disk.no_punch,
            _ => &self.disk.no_zero,
        };
        match came {
            Ok(_) => {
                self.disk.dirty.wrote(self.shard);
                self.has_erased(cx, slot, Ok(Outcome::Complete));
            }
            Err(errno) if is_transient(errno) => self.push(slot, kind),
            Err(errno) if is_unsupported(errno) => {
                cannot.store(true, Ordering::Relaxed);
                self.go_on_erasing(cx, slot);
            }
            Err(errno) => self.close(slot, Err(fault_of(errno, Fault::Unwritable(lba)))),
        }
    }

    fn extents(&mut self, id: IoId, span: Span) {
        if span.blocks == 0 || self.disk.no_extents.load(Ordering::Relaxed) {
            let all = vec![Extent { span, mapped: true }];
            return self.end(id, Ok(Outcome::Extents(all)), Payload::None);
        }
        let at = span.lba * self.logical();
        let slot = self.open(id, Payload::None, Work::Extents { span, at, found: Vec::new() });
        self.push(slot, DiskKind::NextData { offset: at, data: None });
    }

    fn has_found(&mut self, slot: u32, offset: u64, data: Option<(u64, u64)>, came: Result<usize, Errno>) {
        let logical = self.logical();
        let disk = self.disk.clone();
        let job = self.job(slot);
        let Work::Extents { span, at, found } = &mut job.work else { unreachable!("a search") };
        let end = (span.lba + span.blocks) * logical;
        // A block with any data is mapped.
        let data = match (came, data) {
            (Err(errno), _) if is_transient(errno) => {
                return self.push(slot, DiskKind::NextData { offset, data: None });
            }
            (Err(_), _) => {
                disk.no_extents.store(true, Ordering::Relaxed);
                Some((*at, end))
            }
            (Ok(_), data) => data,
        };
        let (from, to) = data.unwrap_or((end, end));
        let from = (from / logical * logical).clamp(*at, end);
        let to = to.div_ceil(logical).saturating_mul(logical).clamp(from, end);
        let mut add = |start: u64, stop: u64, mapped: bool| {
            if start < stop {
                let span = Span { lba: start / logical, blocks: (stop - start) / logical };
                found.push(Extent { span, mapped });
            }
        };
        add(*at, from, false);
        add(from, to, true);
        // No progress would be an answer that contradicts itself: the rest counts as mapped.
        if to == *at {
            add(*at, end, true);
            *at = end;
        } else {
            *at = to;
        }
        if *at < end && found.len() < EXTENTS_MAX {
            let offset = *at;
            return self.push(slot, DiskKind::NextData { offset, data: None });
        }
        let found = std::mem::take(found);
        self.close(slot, Ok(Outcome::Extents(found)));
    }
}

/// A write that came back.
struct Written {
    offset: u64,
    from: Sg,
    skip: usize,
    durable: bool,
}

/// A medium fault in what was read around a span is one of the span's first block at the least.
fn within(failure: Failure, span: Span) -> Failure {
    match failure {
        Failure::Failed(Fault::Medium(lba)) => {
            Fault::Medium(lba.clamp(span.lba, span.lba + span.blocks.saturating_sub(1))).into()
        }
        other => other,
    }
}

impl Backend for File {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        let Io { id, op, payload, .. } = io;
        match op {
            Op::Read(span) => self.read(cx, id, span, payload),
            Op::Write(span, durability) => self.write(cx, id, span, durability, payload),
            Op::Flush => {
                let slot = self.open(id, payload, Work::Sync);
                self.flush(slot);
            }
            Op::WriteZeroes { span, unmap } => self.erase(cx, id, span, unmap),
            Op::Unmap(spans) => match spans[..] {
                [span] => self.erase(cx, id, span, true),
                _ => self.end(id, Err(Fault::Internal.into()), payload),
            },
            Op::Prefetch(span) => {
                let kind = DiskKind::Prefetch {
                    offset: span.lba * self.logical(),
                    len: span.blocks * self.logical(),
                };
                let slot = self.open(id, payload, Work::Prefetch);
                self.push(slot, kind);
            }
            Op::Extents(span) => self.extents(id, span),
            Op::WriteAtomic(_) | Op::Compare(_) | Op::CompareAndWrite(_) | Op::WriteSame(_) | Op::Or(_) => {
                self.end(id, Err(Fault::Internal.into()), payload);
            }
            Op::Verify(_) | Op::MarkBad(_) | Op::Sanitize(_) => {
                self.end(id, Err(Fault::Internal.into()), payload);
            }
        }
    }

    /// What the disk has not been asked yet ends at once; a call that is out cannot be recalled.
    fn cancel(&mut self, id: IoId) {
        let found = self.jobs.iter_mut().position(|job| job.as_ref().is_some_and(|job| job.id == id));
        let Some(slot) = found else { return };
        let slot = slot as u32;
        self.job(slot).cancelled = true;
        let Some(at) = self.out.iter().position(|op| op.ticket.0 == u64::from(slot)) else { return };
        let Some(op) = self.out.remove(at) else { return };
        let job = self.job(slot);
        match (op.kind, &job.payload) {
            (DiskKind::Read { into, .. }, Payload::None) => job.payload = Payload::In(into),
            (DiskKind::Write { from, .. }, Payload::None) if matches!(job.work, Work::Write) => {
                job.payload = Payload::Out(from);
            }
            _ => {}
        }
        self.close(slot, Err(Fault::Aborted.into()));
    }

    fn poll_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.out.pop_front()
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let slot = op.ticket.0 as u32;
        match op.kind {
            DiskKind::Sync => self.has_synced(came),
            DiskKind::Read { offset, into, skip } => self.has_read(slot, offset, into, skip, came),
            DiskKind::Write { offset, from, skip, durable } => {
                self.has_written(cx, slot, Written { offset, from, skip, durable }, came);
            }
            DiskKind::Punch { .. } | DiskKind::Zero { .. } => self.has_asked(cx, slot, op.kind, came),
            DiskKind::NextData { offset, data } => self.has_found(slot, offset, data, came),
            // A hint: whether it helped is nobody's concern.
            DiskKind::Prefetch { .. } => self.close(slot, Ok(Outcome::Complete)),
        }
    }
}
