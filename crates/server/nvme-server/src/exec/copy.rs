//! Copy within a namespace (NVM Command Set §3.2.2), source ranges of format 0h. It is read and written in
//! pieces, so that a copy holds little memory and can be aborted between two pieces.

use buf::{Payload, Sg};
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::{Copy, CopyRange};
use nvme::{Completion, Sqe, Status};
use volume::{Durability, Failure, Op, Outcome, Refusal, Span};
use zerocopy::FromBytes;

use super::block::admit_on_arrival;
use super::{flush, parameter_list, resolve_namespace};
use crate::after_wait::{AfterWait, CopyJob};
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
const COPY_CHUNK_BYTES: u32 = 256 << 10;

pub(super) fn start_copy(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    let words = Copy::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    if words.format != 0 {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    if words.protects {
        return Err(Status::INVALID_PROTECTION_INFO.with_do_not_retry());
    }
    if words.ranges > COPY_RANGES_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_do_not_retry());
    }
    if data_out as usize != usize::from(words.ranges) * size_of::<CopyRange>() {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    // At least one block is written.
    let least = Span { lba: words.lba, blocks: 1 };
    admit_on_arrival(ctx, key, &entry, volume, &Op::Write(least, Durability::Cached))?;
    parameter_list::request_list(ctx, key, sqe, &entry, data_out)
}

/// The source ranges are here.
pub(super) fn handle_source_ranges(ctx: &mut ExecContext, slot: u32, sqe: &Sqe, data: &Sg) {
    match check_source_ranges(ctx, slot, Copy::from_sqe(sqe), data) {
        Ok(copying) => {
            ctx.tasks.get_mut(slot).job = AfterWait::Copy(Box::new(copying));
            read_next_chunk(ctx, slot);
        }
        Err(status) => ctx.complete_task(slot, status.into()),
    }
}

fn check_source_ranges(ctx: &ExecContext, slot: u32, words: Copy, data: &Sg) -> Result<CopyJob, Status> {
    let volume =
        ctx.volumes.get(ctx.tasks.get(slot).volume).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
    let bytes = parameter_list::copy_list_bytes::<{ parameter_list::LIST_MAX }>(data);
    let ranges = bytes.chunks_exact(size_of::<CopyRange>()).take(words.ranges.into());
    let sources: Vec<Span> = ranges
        .filter_map(|range| CopyRange::ref_from_bytes(range).ok())
        .map(|range| Span { lba: range.lba.get(), blocks: range.blocks().into() })
        .collect();
    let total: u64 = sources.iter().map(|span| span.blocks).sum();
    let long = sources.iter().any(|span| span.blocks > COPY_RANGE_BLOCKS_MAX.into());
    if long || total > COPY_BLOCKS_MAX.into() {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_do_not_retry());
    }
    let target = Span { lba: words.lba, blocks: total };
    let inside = |span: &Span| span.end().is_some_and(|end| end <= volume.view.geometry.blocks);
    if !inside(&target) || !sources.iter().all(inside) {
        return Err(status::for_refusal(Refusal::OutOfRange));
    }
    // What is written piece by piece must not be read afterwards.
    if sources.iter().any(|source| source.overlaps(&target)) {
        return Err(Status::OVERLAPPING_RANGE.with_do_not_retry());
    }
    Ok(CopyJob { sources, index: 0, copied: 0, to: words.lba, piece: 0, writing: false, stable: words.fua })
}

#[expect(clippy::unreachable, reason = "only Copy's own steps ask, and a Copy stays one until it ends")]
fn copy_job_mut(ctx: &mut ExecContext, slot: u32) -> &mut CopyJob {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterWait::Copy(copying) => copying,
        job => unreachable!("{job:?} is no Copy"),
    }
}

/// Reads the next piece, or ends.
fn read_next_chunk(ctx: &mut ExecContext, slot: u32) {
    let Some(volume) = ctx.volumes.get(ctx.tasks.get(slot).volume) else {
        return ctx.complete_task(slot, Status::INVALID_NAMESPACE.with_do_not_retry().into());
    };
    let logical = volume.view.geometry.logical;
    let copy = copy_job_mut(ctx, slot);
    let Some(source) = copy.sources.get(copy.index) else {
        if copy.stable {
            return flush::flush_after_write(ctx, slot);
        }
        return ctx.complete_task(slot, Completion::SUCCESS);
    };
    let blocks = (source.blocks - copy.copied).min(u64::from(COPY_CHUNK_BYTES / logical));
    let source = if is_on(Failpoint::CopyShifted) { copy.sources.first().unwrap_or(source) } else { source };
    let span = Span { lba: source.lba + copy.copied, blocks };
    (copy.piece, copy.writing) = (blocks, false);
    // At most `COPY_CHUNK_BYTES`.
    let want = blocks as u32 * logical;
    ctx.submit_op(slot, Op::Read(span), Payload::None, want);
}

/// A piece was read, or written.
pub(super) fn handle_io_done(
    ctx: &mut ExecContext,
    slot: u32,
    result: Result<Outcome, Failure>,
    payload: Payload,
) {
    let copy = copy_job_mut(ctx, slot);
    if let Err(failure) = result {
        // Which source range was the first that is not copied.
        let completion = Completion { result: copy.index as u64, status: status::for_failure(failure) };
        return ctx.complete_task(slot, completion);
    }
    let piece = copy.piece;
    if !copy.writing {
        copy.writing = true;
        let op = Op::Write(Span { lba: copy.to, blocks: piece }, Durability::Cached);
        return ctx.submit_op(slot, op, Payload::Out(payload.into_sg()), 0);
    }
    copy.to += piece;
    copy.copied += piece;
    if copy.sources.get(copy.index).is_none_or(|source| copy.copied == source.blocks) {
        (copy.index, copy.copied) = (copy.index + 1, 0);
    }
    read_next_chunk(ctx, slot);
}
