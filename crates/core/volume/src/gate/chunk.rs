//! How an operation is cut into chunks, each one or two operations of the backend.

use crate::backend::Geometry;
use crate::io::{Durability, Op, SanitizeKind, Span};

/// Bytes per chunk of what is read or written piece by piece: enough to keep a disk busy, and short
/// enough that an abort is prompt.
const CHUNK_BYTES: u32 = 256 << 10;
/// Bytes per chunk of what is zeroed or deallocated: a RAM volume does it within a few milliseconds.
const ERASE_CHUNK_BYTES: u32 = 32 << 20;

/// What is to be done, as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChunkPlan {
    /// Read while exclusive operations are kept out.
    StableRead(Span),
    /// Compare with the payload.
    Compare(Span),
    /// Read and forget.
    Verify(Span),
    /// Write the payload; unaligned.
    Write(Span, Durability),
    /// Write the payload in one step that excludes other writes.
    Atomic(Span),
    /// Compare with the first half of the payload, write the second.
    CompareAndWrite(Span),
    /// Set the payload's bits.
    Or(Span),
    /// Write the payload's one block everywhere.
    Same(Span),
    /// Mark bad.
    Mark(Span),
    /// Zero.
    Zero { span: Span, unmap: bool },
    /// Deallocate: the spans before `at`, which have `before` blocks together, are done.
    Unmap { spans: Vec<Span>, at: usize, before: u64 },
    /// Make every block unreadable that was written: so many passes are over, flushed, and so many blocks of the one
    /// that runs. The volume may change its size meanwhile.
    Sanitize { kind: SanitizeKind, pass: u64, at: u64 },
}

/// What a chunk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkOp {
    /// Reads into the caller's own payload.
    ReadWhole,
    /// Reads into scratch memory, to be looked at.
    Read,
    /// Writes bytes of the payload as they are.
    Write(Durability),
    /// Writes the pattern that fills the scratch memory.
    Pattern,
    /// Reads what surrounds the span into scratch memory, changes it, writes it back.
    Merge(Durability),
    /// Zeroes.
    Zero { unmap: bool },
    /// Deallocates.
    Unmap,
    /// Makes what was written stable.
    Flush,
    /// Asks the home to mark the blocks bad.
    Mark,
}

/// What keeps a chunk apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkExclusion {
    /// Nothing need.
    None,
    /// It is a plain write.
    Marks,
    /// It is exclusive.
    Guard,
}

/// One chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) kind: ChunkOp,
    /// The blocks that are meant.
    pub(super) span: Span,
    /// The blocks that are touched: `span`, but for a merge widened to whole units.
    pub(super) cover: Span,
    pub(super) permit: ChunkExclusion,
}

impl Chunk {
    /// Whether it writes its span, and so makes bad blocks good.
    pub(super) fn writes_span(&self) -> bool {
        match self.kind {
            ChunkOp::Write(_)
            | ChunkOp::Pattern
            | ChunkOp::Merge(_)
            | ChunkOp::Zero { .. }
            | ChunkOp::Unmap => true,
            ChunkOp::ReadWhole | ChunkOp::Read | ChunkOp::Flush | ChunkOp::Mark => false,
        }
    }

    /// What zeroes the first of its blocks where the backend cannot zero part of a unit; `None` if that is not why
    /// it refuses.
    pub(super) fn as_zeroing_merge(&self, geometry: &Geometry) -> Option<Chunk> {
        if !matches!(self.kind, ChunkOp::Zero { .. } | ChunkOp::Unmap) {
            return None;
        }
        let whole = merge_chunk(Durability::Cached, self.span, geometry).cover == self.span;
        let first = next_aligned_span(self.span, 0, CHUNK_BYTES, geometry)?;
        (!whole).then(|| merge_chunk(Durability::Cached, first, geometry))
    }

    /// Bytes of scratch memory that it needs before it asks for its permit.
    pub(super) fn scratch_len(&self, logical: u32) -> usize {
        match self.kind {
            ChunkOp::Read | ChunkOp::Merge(_) | ChunkOp::Pattern => {
                (self.cover.blocks * u64::from(logical)) as usize
            }
            ChunkOp::ReadWhole | ChunkOp::Write(_) | ChunkOp::Zero { .. } | ChunkOp::Unmap => 0,
            ChunkOp::Flush | ChunkOp::Mark => 0,
        }
    }
}

impl ChunkPlan {
    /// The plan for an operation that is not forwarded as it is.
    #[expect(
        clippy::unreachable,
        reason = "the gate gives these to its backend as they are, and plans all others"
    )]
    pub(super) fn from_op(op: Op) -> ChunkPlan {
        match op {
            Op::Read(span) => ChunkPlan::StableRead(span),
            Op::Compare(span) => ChunkPlan::Compare(span),
            Op::Verify(span) => ChunkPlan::Verify(span),
            Op::Write(span, durability) => ChunkPlan::Write(span, durability),
            Op::WriteAtomic(span) => ChunkPlan::Atomic(span),
            Op::CompareAndWrite(span) => ChunkPlan::CompareAndWrite(span),
            Op::Or(span) => ChunkPlan::Or(span),
            Op::WriteSame(span) => ChunkPlan::Same(span),
            Op::WriteZeroes { span, unmap } => ChunkPlan::Zero { span, unmap },
            Op::Unmap(spans) => ChunkPlan::Unmap { spans, at: 0, before: 0 },
            Op::Sanitize(kind) => ChunkPlan::Sanitize { kind, pass: 0, at: 0 },
            Op::MarkBad(span) => ChunkPlan::Mark(span),
            Op::Flush | Op::Prefetch(_) | Op::Extents(_) => {
                unreachable!("these are done in one step")
            }
        }
    }

    /// The operation again, to admit it once more.
    pub(super) fn to_op(&self) -> Op {
        match self {
            ChunkPlan::StableRead(span) => Op::Read(*span),
            ChunkPlan::Compare(span) => Op::Compare(*span),
            ChunkPlan::Verify(span) => Op::Verify(*span),
            ChunkPlan::Write(span, durability) => Op::Write(*span, *durability),
            ChunkPlan::Atomic(span) => Op::WriteAtomic(*span),
            ChunkPlan::CompareAndWrite(span) => Op::CompareAndWrite(*span),
            ChunkPlan::Or(span) => Op::Or(*span),
            ChunkPlan::Same(span) => Op::WriteSame(*span),
            ChunkPlan::Mark(span) => Op::MarkBad(*span),
            ChunkPlan::Zero { span, unmap } => Op::WriteZeroes { span: *span, unmap: *unmap },
            ChunkPlan::Unmap { spans, .. } => Op::Unmap(spans.clone()),
            ChunkPlan::Sanitize { kind, .. } => Op::Sanitize(kind.clone()),
        }
    }

    /// Whether it depends on what stands in its blocks.
    pub(super) fn depends_on_contents(&self) -> bool {
        match self {
            ChunkPlan::StableRead(_) | ChunkPlan::Compare(_) | ChunkPlan::Verify(_) => true,
            ChunkPlan::CompareAndWrite(_) | ChunkPlan::Or(_) => true,
            ChunkPlan::Write(..) | ChunkPlan::Atomic(_) | ChunkPlan::Same(_) | ChunkPlan::Zero { .. } => {
                false
            }
            ChunkPlan::Unmap { .. } | ChunkPlan::Sanitize { .. } | ChunkPlan::Mark(_) => false,
        }
    }

    /// Whether ending early would show others half of it.
    pub(super) fn is_atomic(&self) -> bool {
        match self {
            ChunkPlan::Atomic(_) | ChunkPlan::CompareAndWrite(_) => true,
            ChunkPlan::StableRead(_)
            | ChunkPlan::Compare(_)
            | ChunkPlan::Verify(_)
            | ChunkPlan::Write(..)
            | ChunkPlan::Or(_) => false,
            ChunkPlan::Same(_)
            | ChunkPlan::Zero { .. }
            | ChunkPlan::Unmap { .. }
            | ChunkPlan::Sanitize { .. } => false,
            ChunkPlan::Mark(_) => false,
        }
    }

    /// The chunk that follows when `done` blocks (of an unmap: of all its spans together; a sanitize
    /// counts by itself) are done; `None` at the end.
    pub(super) fn next_chunk(&mut self, done: u64, erase_max: u32, geometry: &Geometry) -> Option<Chunk> {
        let plain = |kind, span, permit| Some(Chunk { kind, span, cover: span, permit });
        match self {
            ChunkPlan::StableRead(span) => {
                plain(ChunkOp::ReadWhole, remaining_span(*span, done, u64::MAX)?, ChunkExclusion::Guard)
            }
            ChunkPlan::Mark(span) => {
                plain(ChunkOp::Mark, remaining_span(*span, done, u64::MAX)?, ChunkExclusion::Guard)
            }
            ChunkPlan::Compare(span) | ChunkPlan::Verify(span) => plain(
                ChunkOp::Read,
                next_aligned_span(*span, done, CHUNK_BYTES, geometry)?,
                ChunkExclusion::None,
            ),
            ChunkPlan::Write(span, durability) => {
                let span = next_aligned_span(*span, done, CHUNK_BYTES, geometry)?;
                Some(write_or_merge_chunk(ChunkOp::Write(*durability), *durability, span, geometry))
            }
            ChunkPlan::Same(span) => {
                let span = next_aligned_span(*span, done, CHUNK_BYTES, geometry)?;
                Some(write_or_merge_chunk(ChunkOp::Pattern, Durability::Cached, span, geometry))
            }
            ChunkPlan::Atomic(span) => {
                let span = remaining_span(*span, done, u64::MAX)?;
                let chunk = write_or_merge_chunk(
                    ChunkOp::Write(Durability::Cached),
                    Durability::Cached,
                    span,
                    geometry,
                );
                Some(Chunk { permit: ChunkExclusion::Guard, ..chunk })
            }
            ChunkPlan::CompareAndWrite(span) => {
                Some(merge_chunk(Durability::Cached, remaining_span(*span, done, u64::MAX)?, geometry))
            }
            ChunkPlan::Or(span) => Some(merge_chunk(
                Durability::Cached,
                next_aligned_span(*span, done, CHUNK_BYTES, geometry)?,
                geometry,
            )),
            ChunkPlan::Zero { span, unmap } => {
                let span = next_erase_span(*span, done, erase_max, geometry)?;
                plain(ChunkOp::Zero { unmap: *unmap }, span, ChunkExclusion::Marks)
            }
            ChunkPlan::Unmap { spans, at, before } => loop {
                let span = *spans.get(*at)?;
                if let Some(part) = next_erase_span(span, done - *before, erase_max, geometry) {
                    break plain(ChunkOp::Unmap, part, ChunkExclusion::Marks);
                }
                *before += span.blocks;
                *at += 1;
            },
            ChunkPlan::Sanitize { kind, pass, at } => sanitize_chunk(kind, *pass, *at, erase_max, geometry),
        }
    }

    /// A chunk is done: true if a pass over the volume is over with it.
    pub(super) fn note_sanitized_chunk(&mut self, chunk: &Chunk) -> bool {
        let ChunkPlan::Sanitize { pass, at, .. } = self else { return false };
        if chunk.kind == ChunkOp::Flush {
            (*pass, *at) = (*pass + 1, 0);
            return true;
        }
        *at = chunk.span.lba.saturating_add(chunk.span.blocks);
        false
    }

    /// How far a sanitize is, in 65536ths of a volume of so many blocks.
    pub(super) fn sanitize_progress(&self, blocks: u64) -> Option<u32> {
        let ChunkPlan::Sanitize { kind, pass, at } = self else { return None };
        let done = u128::from(*pass) * u128::from(blocks) + u128::from((*at).min(blocks));
        let total = u128::from(sanitize_passes(kind)) * u128::from(blocks);
        Some((done * 65536 / total.max(1)).min(65536) as u32)
    }

    /// How many blocks all chunks together have, as [`ChunkPlan::next_chunk`] counts.
    pub(super) fn total_blocks(&self) -> u64 {
        match self {
            // It ends when there is no further chunk.
            ChunkPlan::Sanitize { .. } => u64::MAX,
            ChunkPlan::Unmap { spans, .. } => spans.iter().map(|span| span.blocks).sum(),
            ChunkPlan::StableRead(span) | ChunkPlan::Compare(span) | ChunkPlan::Verify(span) => span.blocks,
            ChunkPlan::Write(span, _) | ChunkPlan::Atomic(span) | ChunkPlan::CompareAndWrite(span) => {
                span.blocks
            }
            ChunkPlan::Or(span)
            | ChunkPlan::Same(span)
            | ChunkPlan::Zero { span, .. }
            | ChunkPlan::Mark(span) => span.blocks,
        }
    }
}

/// How often a sanitize goes over the volume.
fn sanitize_passes(kind: &SanitizeKind) -> u64 {
    match kind {
        SanitizeKind::Overwrite { passes, .. } => u64::from((*passes).max(1)),
        SanitizeKind::BlockErase => 1,
    }
}

/// A pass is every block that there is, and a flush.
fn sanitize_chunk(
    kind: &SanitizeKind,
    pass: u64,
    at: u64,
    erase_max: u32,
    geometry: &Geometry,
) -> Option<Chunk> {
    if pass >= sanitize_passes(kind) {
        return None;
    }
    let whole = Span { lba: 0, blocks: geometry.blocks };
    let (kind, part) = match kind {
        SanitizeKind::Overwrite { .. } => {
            (ChunkOp::Pattern, next_aligned_span(whole, at, CHUNK_BYTES, geometry))
        }
        SanitizeKind::BlockErase => {
            (ChunkOp::Zero { unmap: true }, next_erase_span(whole, at, erase_max, geometry))
        }
    };
    // The fence before a sanitize has emptied the volume, so nothing need be kept apart.
    Some(match part {
        Some(span) => Chunk { kind, span, cover: span, permit: ChunkExclusion::None },
        None => {
            let flush = Span { lba: 0, blocks: 1 };
            Chunk { kind: ChunkOp::Flush, span: flush, cover: flush, permit: ChunkExclusion::None }
        }
    })
}

fn remaining_span(span: Span, done: u64, blocks_max: u64) -> Option<Span> {
    let left = span.blocks.checked_sub(done)?;
    (left > 0).then(|| Span { lba: span.lba + done, blocks: left.min(blocks_max) })
}

/// The next at most `bytes` of a span, ending on a whole unit unless the span ends.
fn next_aligned_span(span: Span, done: u64, bytes: u32, geometry: &Geometry) -> Option<Span> {
    let unit = u64::from(geometry.dio_unit_blocks());
    let most = u64::from(bytes.min(geometry.max_io) / geometry.logical).max(unit);
    let part = remaining_span(span, done, most)?;
    let end = part.lba + part.blocks;
    let whole = end - end % unit;
    if done + part.blocks < span.blocks && whole > part.lba {
        return Some(Span { lba: part.lba, blocks: whole - part.lba });
    }
    Some(part)
}

/// The next part of a span that is freed or zeroed: at most [`ERASE_CHUNK_BYTES`] and what the backend takes, up to a
/// multiple of that, so that what the store allocates by is freed whole.
fn next_erase_span(span: Span, done: u64, erase_max: u32, geometry: &Geometry) -> Option<Span> {
    let unit = u64::from(geometry.dio_unit_blocks());
    let most = u64::from(ERASE_CHUNK_BYTES.min(erase_max) / geometry.logical).max(unit);
    let part = remaining_span(span, done, u64::MAX)?;
    let blocks = part.blocks.min(most - part.lba % most);
    let end = part.lba + blocks;
    let whole = end - end % unit;
    if blocks < part.blocks && whole > part.lba {
        return Some(Span { lba: part.lba, blocks: whole - part.lba });
    }
    Some(Span { lba: part.lba, blocks })
}

/// A write of `span` by `kind` if it is aligned, else a merge.
fn write_or_merge_chunk(kind: ChunkOp, durability: Durability, span: Span, geometry: &Geometry) -> Chunk {
    let chunk = merge_chunk(durability, span, geometry);
    if chunk.cover == span { Chunk { kind, permit: ChunkExclusion::Marks, ..chunk } } else { chunk }
}

fn merge_chunk(durability: Durability, span: Span, geometry: &Geometry) -> Chunk {
    let unit = u64::from(geometry.dio_unit_blocks());
    let lba = span.lba - span.lba % unit;
    let end = (span.lba + span.blocks).next_multiple_of(unit);
    let cover = Span { lba, blocks: end - lba };
    Chunk { kind: ChunkOp::Merge(durability), span, cover, permit: ChunkExclusion::Guard }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamDisk;

    /// Objects that lie in the span whole are each named whole by one part.
    #[test]
    fn what_is_freed_is_cut_where_the_store_allocates() {
        let geometry = RamDisk::new(1 << 20, 1 << 20, 512, 4096).geometry();
        let objects = 8192;
        let span = Span { lba: 3, blocks: 10 * objects };
        let mut plan = ChunkPlan::Unmap { spans: vec![span], at: 0, before: 0 };
        let (mut done, mut parts) = (0, Vec::new());
        while let Some(chunk) = plan.next_chunk(done, 16 << 20, &geometry) {
            assert_eq!(chunk.span.lba, span.lba + done);
            done += chunk.span.blocks;
            let end = chunk.span.lba + chunk.span.blocks;
            parts.push(end / objects);
            assert!(done == span.blocks || end.is_multiple_of(objects));
        }
        assert_eq!((done, parts), (span.blocks, vec![4, 8, 10]));
    }

    /// Whatever becomes of its size, each pass goes to the end that there is then, and is flushed.
    #[test]
    fn a_sanitize_in_which_the_volume_is_resized_leaves_nothing_out_and_is_flushed() {
        let sized = |blocks| RamDisk::new(blocks, blocks, 512, 4096).geometry();
        let (small, large) = (sized(1000), sized(5000));
        for (from, to) in [(small, large), (large, small)] {
            let kind = SanitizeKind::Overwrite { pattern: [1][..].into(), passes: 2, invert: false };
            let mut plan = ChunkPlan::Sanitize { kind, pass: 0, at: 0 };
            let (mut geometry, mut passes, mut at, mut done) = (from, 0, 0, 0);
            while let Some(chunk) = plan.next_chunk(done, 1 << 20, &geometry) {
                assert_eq!(
                    plan.next_chunk(done, 1 << 20, &geometry),
                    Some(chunk),
                    "nothing is done by asking"
                );
                if chunk.kind == ChunkOp::Flush {
                    assert!(at >= geometry.blocks, "pass {passes} flushes at {at} of {}", geometry.blocks);
                    (passes, at) = (passes + 1, 0);
                } else {
                    assert_eq!(chunk.span.lba, at);
                    at += chunk.span.blocks;
                    assert!(at <= geometry.blocks);
                }
                done += chunk.span.blocks;
                assert_eq!(plan.note_sanitized_chunk(&chunk), chunk.kind == ChunkOp::Flush);
                assert!(plan.sanitize_progress(geometry.blocks).is_some_and(|far| far <= 65536));
                // In the middle of the first pass.
                if at > 600 {
                    geometry = to;
                }
            }
            assert_eq!((passes, plan.sanitize_progress(geometry.blocks)), (2, Some(65536)));
        }
    }
}
