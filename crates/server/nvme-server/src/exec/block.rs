//! Commands on a run of blocks (NVM Command Set §3.2): Read, Write, Compare, Verify, Write Zeroes, Write
//! Uncorrectable.
//!
//! A command with data from the host is admitted before the data is requested. Others are admitted by the
//! gate alone, in the same turn.

use buf::Payload;
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::BlockTransfer;
use nvme::{Completion, Sqe, Status};
use volume::{Durability, Op, Refusal, Span};

use super::{resolve_namespace, submit_final_op};
use crate::after_wait::AfterWait;
use crate::context::{ExecContext, ServedVolume};
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, Step};
use crate::task::CountedAs;

/// The longest Write Uncorrectable as Identify shows it (WUSL): a power of two of 4 KiB. So one command
/// takes at most half of what a volume can remember ([`volume::BAD_BLOCKS_MAX`]).
pub const UNCORRECTABLE_MAX_POWER: u8 = 8;

#[inline]
pub(super) fn transfer_span(transfer: BlockTransfer) -> Span {
    Span { lba: transfer.lba, blocks: u64::from(transfer.blocks) }
}

#[inline]
pub(super) fn transfer_durability(transfer: BlockTransfer) -> Durability {
    if transfer.has_flags(BlockTransfer::FUA) && !is_on(Failpoint::FuaForgotten) {
        Durability::Stable
    } else {
        Durability::Cached
    }
}

/// How many bytes a transfer moves, if it may be so long, and if the SGL agrees: `offered` bytes.
#[inline]
pub(super) fn checked_transfer_len(
    ctx: &ExecContext,
    key: CommandKey,
    volume: &ServedVolume,
    transfer: BlockTransfer,
    offered: u32,
) -> Result<u32, Status> {
    if transfer.uses_protection() {
        return Err(Status::INVALID_PROTECTION_INFO.with_do_not_retry());
    }
    let geometry = &volume.view.geometry;
    let bytes = u64::from(transfer.blocks) * u64::from(geometry.logical);
    let max = ctx.queues.get(key.queue).spec.transfer_max.min(geometry.max_io);
    if bytes > u64::from(max) {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    if bytes != u64::from(offered) {
        return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    Ok(offered)
}

/// Asks the view, on arrival, whether the operation may go on: so that no data is solicited for one
/// that may not. The gate asks again, bindingly.
pub(super) fn admit_on_arrival(
    ctx: &ExecContext,
    key: CommandKey,
    entry: &NamespaceEntry,
    volume: &ServedVolume,
    op: &Op,
) -> Result<(), Status> {
    if entry.read_only && op.is_write() {
        return Err(status::for_refusal(Refusal::ReadOnly));
    }
    volume.view.admit(ctx.nexus(key.queue), op).map_err(status::for_refusal)
}

/// Read.
#[inline]
pub(super) fn read(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let transfer = BlockTransfer::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    let bytes = checked_transfer_len(ctx, key, volume, transfer, sqe.dptr.length.get())?;
    let want = if volume.view.geometry.lends { 0 } else { bytes };
    let stable = transfer.has_flags(BlockTransfer::FUA) && volume.view.geometry.write_cache;
    let job = if stable { AfterWait::ReadStable(None) } else { AfterWait::Read };
    let slot = ctx.insert_task(key, sqe, &entry, bytes, job)?;
    ctx.tasks.get_mut(slot).tally = CountedAs::Read;
    ctx.submit_op(slot, Op::Read(transfer_span(transfer)), Payload::None, want);
    Ok(())
}

/// Read has read.
#[inline]
pub(super) fn finish_read(ctx: &mut ExecContext, slot: u32, payload: Payload) {
    let command = ctx.tasks.get(slot).key;
    ctx.steps.push_back(Step::Send { command, at: 0, data: payload.into_sg() });
    ctx.complete_task(slot, Completion::SUCCESS);
}

/// Read with FUA has read, or made stable what it has read: that may have stood in the cache only, and must
/// be stable before anybody is told of it (NVM command set §3.2.4). Who may not flush, because another has
/// reserved writing, is told what is there.
pub(super) fn finish_stable_read(ctx: &mut ExecContext, slot: u32, payload: Payload) {
    let task = ctx.tasks.get_mut(slot);
    let (id, queue) = (task.volume, task.key.queue);
    if let AfterWait::ReadStable(data @ Some(_)) = &mut task.job {
        let data = data.take().map(|data| *data).unwrap_or_default();
        return finish_read(ctx, slot, Payload::Out(data));
    }
    let admitted = |volume: &ServedVolume| volume.view.admit(ctx.nexus(queue), &Op::Flush).is_ok();
    if ctx.volumes.get(id).is_some_and(admitted) {
        ctx.tasks.get_mut(slot).job = AfterWait::ReadStable(Some(Box::new(payload.into_sg())));
        return ctx.submit_op(slot, Op::Flush, Payload::None, 0);
    }
    finish_read(ctx, slot, payload);
}

/// Write: payload first.
#[inline]
pub(super) fn write(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    let transfer = BlockTransfer::from_sqe(sqe);
    let op = Op::Write(transfer_span(transfer), transfer_durability(transfer));
    admit_and_request_data(ctx, key, sqe, data_out, op, CountedAs::Write)
}

/// Compare: payload first.
pub(super) fn compare(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    let op = Op::Compare(transfer_span(BlockTransfer::from_sqe(sqe)));
    admit_and_request_data(ctx, key, sqe, data_out, op, CountedAs::Read)
}

#[inline]
fn admit_and_request_data(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    op: Op,
    tally: CountedAs,
) -> Result<(), Status> {
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    let bytes = checked_transfer_len(ctx, key, volume, BlockTransfer::from_sqe(sqe), data_out)?;
    admit_on_arrival(ctx, key, &entry, volume, &op)?;
    let slot = ctx.insert_task(key, sqe, &entry, bytes, AfterWait::Payload(op, false))?;
    ctx.tasks.get_mut(slot).tally = tally;
    ctx.request_payload(slot, bytes);
    Ok(())
}

/// Write Zeroes. Its length is not bound by the longest transfer: the gate goes in steps.
pub(super) fn write_zeroes(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let transfer = BlockTransfer::from_sqe(sqe);
    let op = Op::WriteZeroes {
        span: transfer_span(transfer),
        unmap: transfer.has_flags(BlockTransfer::DEALLOCATE),
    };
    // DEAC stands where other commands have no storage tag check; bit 24 is that check here too.
    submit_without_payload(ctx, key, sqe, op, transfer.has_flags(BlockTransfer::FUA))
}

/// Verify. It reads in steps, as Write Zeroes writes.
pub(super) fn verify(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    if is_on(Failpoint::VerifyBlind) {
        ctx.steps.push_back(Step::Respond { command: key, reply: Completion::SUCCESS });
        return Ok(());
    }
    submit_without_payload(ctx, key, sqe, Op::Verify(transfer_span(BlockTransfer::from_sqe(sqe))), false)
}

/// Write Uncorrectable.
pub(super) fn write_uncorrectable(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let span = transfer_span(BlockTransfer::from_sqe(sqe));
    let (_, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    if span.blocks * u64::from(volume.view.geometry.logical) > 4096 << UNCORRECTABLE_MAX_POWER {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    submit_without_payload(ctx, key, sqe, Op::MarkBad(span), false)
}

/// An operation without payload.
fn submit_without_payload(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    op: Op,
    stable: bool,
) -> Result<(), Status> {
    let transfer = BlockTransfer::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    if transfer.uses_protection() && !matches!(op, Op::MarkBad(_)) {
        return Err(Status::INVALID_PROTECTION_INFO.with_do_not_retry());
    }
    let bytes = u64::from(transfer.blocks) * u64::from(volume.view.geometry.logical);
    let tally = if matches!(op, Op::Verify(_)) { CountedAs::Read } else { CountedAs::No };
    // At most 65536 blocks of 4096 bytes.
    let slot = ctx.insert_task(key, sqe, &entry, bytes as u32, AfterWait::Plain)?;
    ctx.tasks.get_mut(slot).tally = tally;
    submit_final_op(ctx, slot, op, stable);
    Ok(())
}
