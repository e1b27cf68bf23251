//! Memory of requests: a write's data, and the partial blocks at its edges.
//!
//! Invariant: memory given for a write covers its blocks completely, in parts of at most an operation's
//! length.

use buf::{Payload, SgMut};
use smallvec::SmallVec;
use volume::Span;

use super::{EdgeBlock, RequestTable, RequestTask};
use crate::disk::Disk;

/// The longest part of a request, in bytes: the largest piece that pools have.
const PART_LEN_MAX: usize = 1 << 20;

/// Memory of a write, in parts of at most an operation's length.
pub(crate) type WriteMemory = SmallVec<[SgMut; 1]>;

impl<T> RequestTable<T> {
    pub(super) fn block_span(&self, at: u64, len: u64) -> Span {
        let lba = at / self.block;
        Span { lba, blocks: (at + len).div_ceil(self.block) - lba }
    }

    pub(super) fn part_len_max(&self, disk: &dyn Disk) -> u64 {
        let most = (disk.geometry().max_io as usize).min(PART_LEN_MAX) as u64;
        (most / self.block * self.block).max(self.block)
    }

    /// Memory for all blocks of a write of these bytes; `None`: not now.
    pub(crate) fn alloc_write_memory(&self, disk: &mut dyn Disk, at: u64, len: u64) -> Option<WriteMemory> {
        let part_max = self.part_len_max(disk);
        let mut left = self.block_span(at, len).blocks * self.block;
        let mut parts = WriteMemory::new();
        while left > 0 {
            let now = left.min(part_max);
            parts.push(disk.alloc_payload(now as usize)?);
            left -= now;
        }
        Some(parts)
    }

    /// Where the bytes of a write at `at` belong in its memory, from byte `from` of them on, up to `to`.
    pub(crate) fn for_each_slice(
        &self,
        data: &mut WriteMemory,
        at: u64,
        from: u64,
        to: u64,
        mut each: impl FnMut(&mut [u8]),
    ) {
        let skip = at % self.block;
        let (from, to) = ((from + skip) as usize, (to + skip) as usize);
        let mut base = 0;
        for part in data {
            let end = base + part.len();
            let (start, stop) = (from.max(base), to.min(end));
            if start < stop {
                part.slices_mut(start - base..stop - base).for_each(&mut each);
            }
            base = end;
        }
    }

    pub(super) fn alloc_for_read(
        &self,
        disk: &mut dyn Disk,
        task: &mut RequestTask<T>,
    ) -> Result<(), WriteMemory> {
        let parts = task.span.blocks.div_ceil(self.part_len_max(disk) / self.block);
        if disk.geometry().lends {
            task.back.extend((0..parts).map(|_| Payload::None));
            return Ok(());
        }
        let memory = self.alloc_write_memory(disk, task.at, task.len).ok_or_else(WriteMemory::new)?;
        task.back.extend(memory.into_iter().map(Payload::In));
        Ok(())
    }

    pub(super) fn alloc_for_write(
        &self,
        disk: &mut dyn Disk,
        task: &mut RequestTask<T>,
        data: WriteMemory,
    ) -> Result<(), WriteMemory> {
        let Some(edges) = self.alloc_edges(disk, task.at, task.len) else { return Err(data) };
        let mut lba = task.span.lba;
        for part in data {
            let blocks = part.len() as u64 / self.block;
            task.data.push((lba, part));
            lba += blocks;
        }
        task.edges = edges;
        self.assign_edge_parts(task);
        Ok(())
    }

    /// Of zeroes only the ragged edges are written from memory.
    pub(super) fn alloc_for_zero(
        &self,
        disk: &mut dyn Disk,
        task: &mut RequestTask<T>,
    ) -> Result<(), WriteMemory> {
        let Some(edges) = self.alloc_edges(disk, task.at, task.len) else { return Err(WriteMemory::new()) };
        for edge in &edges {
            let mut data = disk.alloc_payload(self.block as usize).ok_or_else(WriteMemory::new)?;
            data.zero(0..self.block as usize);
            task.data.push((edge.lba, data));
        }
        task.edges = edges;
        self.assign_edge_parts(task);
        Ok(())
    }

    /// Memory to read the blocks of a span that the bytes cover in part only.
    fn alloc_edges(&self, disk: &mut dyn Disk, at: u64, len: u64) -> Option<SmallVec<[EdgeBlock; 2]>> {
        let mut edges = SmallVec::new();
        let span = self.block_span(at, len);
        let last = span.lba + span.blocks - 1;
        let head = !at.is_multiple_of(self.block);
        let tail = !(at + len).is_multiple_of(self.block);
        if head || (tail && last == span.lba) {
            let memory = Payload::In(disk.alloc_payload(self.block as usize)?);
            edges.push(EdgeBlock { lba: span.lba, part: 0, memory });
        }
        if tail && last != span.lba {
            edges.push(EdgeBlock {
                lba: last,
                part: 0,
                memory: Payload::In(disk.alloc_payload(self.block as usize)?),
            });
        }
        Some(edges)
    }

    fn assign_edge_parts(&self, task: &mut RequestTask<T>) {
        for edge in &mut task.edges {
            let holds =
                |(lba, data): &(u64, SgMut)| (*lba..lba + data.len() as u64 / self.block).contains(&edge.lba);
            edge.part = task.data.iter().position(holds).expect("the memory covers the span");
        }
    }
}

/// Copies bytes of a write's memory from `at` on.
pub(crate) fn copy_from_parts(parts: &WriteMemory, at: usize, into: &mut [u8]) {
    let (mut base, mut done) = (0, 0);
    for piece in parts.iter().flat_map(|part| part.pieces()) {
        let from = (at + done).saturating_sub(base);
        if done < into.len() && from < piece.len() {
            let now = (piece.len() - from).min(into.len() - done);
            into[done..done + now].copy_from_slice(&piece[from..from + now]);
            done += now;
        }
        base += piece.len();
    }
    assert_eq!(done, into.len(), "read behind the memory");
}

/// Gives memory behind the first `len` bytes back.
pub(crate) fn truncate_parts(parts: &mut WriteMemory, len: usize) {
    let mut left = len;
    parts.retain(|part| {
        let now = part.len().min(left);
        part.truncate(now);
        left -= now;
        now > 0
    });
}

/// The blocks that lie whole between two bytes.
pub(super) fn whole_blocks_between(at: u64, end: u64, block: u64) -> Option<Span> {
    let (first, behind) = (at.div_ceil(block), end / block);
    (first < behind).then(|| Span { lba: first, blocks: behind - first })
}

/// Puts what was read of ragged edges around the request's own bytes.
pub(super) fn merge_edges<T>(task: &mut RequestTask<T>, block: u64) {
    let (at, end) = (task.at, task.at + task.len);
    for edge in &mut task.edges {
        let old = std::mem::take(&mut edge.memory).into_sg();
        let (lba, data) = &mut task.data[edge.part];
        let (start, stop) = (edge.lba * block, (edge.lba + 1) * block);
        let base = (start - *lba * block) as usize;
        let before = at.clamp(start, stop) - start;
        let behind = end.clamp(start, stop) - start;
        for range in [0..before as usize, behind as usize..block as usize] {
            let mut from = range.start;
            for slice in data.slices_mut(base + range.start..base + range.end) {
                old.copy_to(from, slice);
                from += slice.len();
            }
        }
    }
}
