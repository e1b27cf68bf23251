//! Copy within a namespace (NVM Command Set §3.2.2), source ranges of format 0h. It is read and written in
//! pieces, so that a copy holds little memory and can be aborted between two pieces.

use buf::{Payload, Sg};
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::{Copy, CopyRange};
use nvme::{Completion, Sqe, Status};
use volume::{Durability, Failure, Op, Outcome, Refusal, Span};
use zerocopy::FromBytes;

use super::block::admit;
use super::{flush, list, place};
use crate::after_wait::{AfterWait, Copying};
use crate::context::ExecContext;
use crate::status;
use crate::step::CommandKey;

/// The most source ranges of one Copy (MSRC, which shows one less).
pub const COPY_RANGES_MAX: u16 = 128;
/// The most blocks of one source range (MSSRL).
pub const COPY_RANGE_BLOCKS_MAX: u16 = 32_768;
/// The most blocks of one Copy (MCL).
pub const COPY_BLOCKS_MAX: u32 = 65_536;
/// How much is copied at a time, in bytes.
const PIECE: u32 = 256 << 10;

pub(super) fn start(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    let words = Copy::of(sqe);
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    if words.format != 0 {
        return Err(Status::INVALID_FIELD.final_());
    }
    if words.protects {
        return Err(Status::INVALID_PROTECTION_INFO.final_());
    }
    if words.ranges > COPY_RANGES_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.final_());
    }
    if data_out as usize != usize::from(words.ranges) * size_of::<CopyRange>() {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    // At least one block is written.
    let least = Span { lba: words.lba, blocks: 1 };
    admit(ctx, key, &entry, volume, &Op::Write(least, Durability::Cached))?;
    list::receive(ctx, key, sqe, &entry, data_out)
}

/// The source ranges are here.
pub(super) fn ranges(ctx: &mut ExecContext, slot: u32, sqe: &Sqe, data: &Sg) {
    match judge(ctx, slot, Copy::of(sqe), data) {
        Ok(copying) => {
            ctx.tasks.get_mut(slot).job = AfterWait::Copy(Box::new(copying));
            read(ctx, slot);
        }
        Err(status) => ctx.complete(slot, status.into()),
    }
}

fn judge(ctx: &ExecContext, slot: u32, words: Copy, data: &Sg) -> Result<Copying, Status> {
    let volume = ctx.volumes.get(ctx.tasks.get(slot).volume).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let bytes = list::bytes::<{ list::LIST_MAX }>(data);
    let ranges = bytes.chunks_exact(size_of::<CopyRange>()).take(words.ranges.into());
    let sources: Vec<Span> = ranges
        .filter_map(|range| CopyRange::ref_from_bytes(range).ok())
        .map(|range| Span { lba: range.lba.get(), blocks: range.blocks().into() })
        .collect();
    let total: u64 = sources.iter().map(|span| span.blocks).sum();
    let long = sources.iter().any(|span| span.blocks > COPY_RANGE_BLOCKS_MAX.into());
    if long || total > COPY_BLOCKS_MAX.into() {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.final_());
    }
    let target = Span { lba: words.lba, blocks: total };
    let inside = |span: &Span| span.end().is_some_and(|end| end <= volume.view.geometry.blocks);
    if !inside(&target) || !sources.iter().all(inside) {
        return Err(status::refused(Refusal::OutOfRange));
    }
    // What is written piece by piece must not be read afterwards.
    if sources.iter().any(|source| source.overlaps(&target)) {
        return Err(Status::OVERLAPPING_RANGE.final_());
    }
    Ok(Copying { sources, index: 0, copied: 0, to: words.lba, piece: 0, writing: false, stable: words.fua })
}

#[expect(clippy::unreachable, reason = "only Copy's own steps ask, and a Copy stays one until it ends")]
fn copying(ctx: &mut ExecContext, slot: u32) -> &mut Copying {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterWait::Copy(copying) => copying,
        job => unreachable!("{job:?} is no Copy"),
    }
}

/// Reads the next piece, or ends.
fn read(ctx: &mut ExecContext, slot: u32) {
    let Some(volume) = ctx.volumes.get(ctx.tasks.get(slot).volume) else {
        return ctx.complete(slot, Status::INVALID_NAMESPACE.final_().into());
    };
    let logical = volume.view.geometry.logical;
    let copy = copying(ctx, slot);
    let Some(source) = copy.sources.get(copy.index) else {
        if copy.stable {
            return flush::make_stable(ctx, slot);
        }
        return ctx.complete(slot, Completion::SUCCESS);
    };
    let blocks = (source.blocks - copy.copied).min(u64::from(PIECE / logical));
    let source = if is_on(Failpoint::CopyShifted) { copy.sources.first().unwrap_or(source) } else { source };
    let span = Span { lba: source.lba + copy.copied, blocks };
    (copy.piece, copy.writing) = (blocks, false);
    // At most `PIECE`.
    let want = blocks as u32 * logical;
    ctx.submit(slot, Op::Read(span), Payload::None, want);
}

/// A piece was read, or written.
pub(super) fn done(ctx: &mut ExecContext, slot: u32, result: Result<Outcome, Failure>, payload: Payload) {
    let copy = copying(ctx, slot);
    if let Err(failure) = result {
        // Which source range was the first that is not copied.
        let completion = Completion { result: copy.index as u64, status: status::of(failure) };
        return ctx.complete(slot, completion);
    }
    let piece = copy.piece;
    if !copy.writing {
        copy.writing = true;
        let op = Op::Write(Span { lba: copy.to, blocks: piece }, Durability::Cached);
        return ctx.submit(slot, op, Payload::Out(payload.into_sg()), 0);
    }
    copy.to += piece;
    copy.copied += piece;
    if copy.sources.get(copy.index).is_none_or(|source| copy.copied == source.blocks) {
        (copy.index, copy.copied) = (copy.index + 1, 0);
    }
    read(ctx, slot);
}
