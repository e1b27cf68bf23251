//! Commands on a run of blocks (NVM Command Set §3.2): Read, Write, Compare, Verify, Write Zeroes, Write
//! Uncorrectable.
//!
//! A command with data from the host is admitted before the data is requested. Others are admitted by the
//! gate alone, in the same turn.

use buf::Payload;
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::Transfer;
use nvme::{Completion, Sqe, Status};
use volume::{Durability, Op, Refusal, Span};

use super::{place, submit};
use crate::after_wait::AfterWait;
use crate::context::{ExecContext, Volume};
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, Step};
use crate::task::CountedAs;

/// The longest Write Uncorrectable as Identify shows it (WUSL): a power of two of 4 KiB. So one command
/// takes at most half of what a volume can remember ([`volume::BAD_BLOCKS_MAX`]).
pub const UNCORRECTABLE_MAX_POWER: u8 = 8;

#[inline]
pub(super) fn to_span(transfer: Transfer) -> Span {
    Span { lba: transfer.lba, blocks: u64::from(transfer.blocks) }
}

#[inline]
pub(super) fn durability(transfer: Transfer) -> Durability {
    if transfer.has(Transfer::FUA) && !is_on(Failpoint::FuaForgotten) {
        Durability::Stable
    } else {
        Durability::Cached
    }
}

/// How many bytes a transfer moves, if it may be so long, and if the SGL agrees: `offered` bytes.
#[inline]
pub(super) fn measure(
    ctx: &ExecContext,
    key: CommandKey,
    volume: &Volume,
    transfer: Transfer,
    offered: u32,
) -> Result<u32, Status> {
    if transfer.protects() {
        return Err(Status::INVALID_PROTECTION_INFO.final_());
    }
    let geometry = &volume.view.geometry;
    let bytes = u64::from(transfer.blocks) * u64::from(geometry.logical);
    let max = ctx.queues.get(key.queue).spec.transfer_max.min(geometry.max_io);
    if bytes > u64::from(max) {
        return Err(Status::INVALID_FIELD.final_());
    }
    if bytes != u64::from(offered) {
        return Err(Status::SGL_LENGTH_INVALID.final_());
    }
    Ok(offered)
}

/// Asks the view, on arrival, whether the operation may go on: so that no data is solicited for one
/// that may not. The gate asks again, bindingly.
pub(super) fn admit(
    ctx: &ExecContext,
    key: CommandKey,
    entry: &NamespaceEntry,
    volume: &Volume,
    op: &Op,
) -> Result<(), Status> {
    if entry.read_only && op.is_write() {
        return Err(status::refused(Refusal::ReadOnly));
    }
    volume.view.admit(ctx.nexus(key.queue), op).map_err(status::refused)
}

/// Read.
#[inline]
pub(super) fn read(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let transfer = Transfer::of(sqe);
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    let bytes = measure(ctx, key, volume, transfer, sqe.dptr.length.get())?;
    let want = if volume.view.geometry.lends { 0 } else { bytes };
    let stable = transfer.has(Transfer::FUA) && volume.view.geometry.write_cache;
    let job = if stable { AfterWait::ReadStable(None) } else { AfterWait::Read };
    let slot = ctx.open(key, sqe, &entry, bytes, job)?;
    ctx.tasks.get_mut(slot).tally = CountedAs::Read;
    ctx.submit(slot, Op::Read(to_span(transfer)), Payload::None, want);
    Ok(())
}

/// Read has read.
#[inline]
pub(super) fn finish_read(ctx: &mut ExecContext, slot: u32, payload: Payload) {
    let command = ctx.tasks.get(slot).key;
    ctx.steps.push_back(Step::Send { command, at: 0, data: payload.into_sg() });
    ctx.complete(slot, Completion::SUCCESS);
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
    let admitted = |volume: &Volume| volume.view.admit(ctx.nexus(queue), &Op::Flush).is_ok();
    if ctx.volumes.get(id).is_some_and(admitted) {
        ctx.tasks.get_mut(slot).job = AfterWait::ReadStable(Some(Box::new(payload.into_sg())));
        return ctx.submit(slot, Op::Flush, Payload::None, 0);
    }
    finish_read(ctx, slot, payload);
}

/// Write: payload first.
#[inline]
pub(super) fn write(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    let transfer = Transfer::of(sqe);
    let op = Op::Write(to_span(transfer), durability(transfer));
    solicit(ctx, key, sqe, data_out, op, CountedAs::Write)
}

/// Compare: payload first.
pub(super) fn compare(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    let op = Op::Compare(to_span(Transfer::of(sqe)));
    solicit(ctx, key, sqe, data_out, op, CountedAs::Read)
}

#[inline]
fn solicit(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    op: Op,
    tally: CountedAs,
) -> Result<(), Status> {
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    let bytes = measure(ctx, key, volume, Transfer::of(sqe), data_out)?;
    admit(ctx, key, &entry, volume, &op)?;
    let slot = ctx.open(key, sqe, &entry, bytes, AfterWait::Payload(op, false))?;
    ctx.tasks.get_mut(slot).tally = tally;
    ctx.receive(slot, bytes);
    Ok(())
}

/// Write Zeroes. Its length is not bound by the longest transfer: the gate goes in steps.
pub(super) fn write_zeroes(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let transfer = Transfer::of(sqe);
    let op = Op::WriteZeroes { span: to_span(transfer), unmap: transfer.has(Transfer::DEALLOCATE) };
    // DEAC stands where other commands have no storage tag check; bit 24 is that check here too.
    bare(ctx, key, sqe, op, transfer.has(Transfer::FUA))
}

/// Verify. It reads in steps, as Write Zeroes writes.
pub(super) fn verify(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    if is_on(Failpoint::VerifyBlind) {
        ctx.steps.push_back(Step::Respond { command: key, reply: Completion::SUCCESS });
        return Ok(());
    }
    bare(ctx, key, sqe, Op::Verify(to_span(Transfer::of(sqe))), false)
}

/// Write Uncorrectable.
pub(super) fn write_uncorrectable(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe) -> Result<(), Status> {
    let span = to_span(Transfer::of(sqe));
    let (_, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    if span.blocks * u64::from(volume.view.geometry.logical) > 4096 << UNCORRECTABLE_MAX_POWER {
        return Err(Status::INVALID_FIELD.final_());
    }
    bare(ctx, key, sqe, Op::MarkBad(span), false)
}

/// An operation without payload.
fn bare(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, op: Op, stable: bool) -> Result<(), Status> {
    let transfer = Transfer::of(sqe);
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    if transfer.protects() && !matches!(op, Op::MarkBad(_)) {
        return Err(Status::INVALID_PROTECTION_INFO.final_());
    }
    let bytes = u64::from(transfer.blocks) * u64::from(volume.view.geometry.logical);
    let tally = if matches!(op, Op::Verify(_)) { CountedAs::Read } else { CountedAs::No };
    // At most 65536 blocks of 4096 bytes.
    let slot = ctx.open(key, sqe, &entry, bytes as u32, AfterWait::Plain)?;
    ctx.tasks.get_mut(slot).tally = tally;
    submit(ctx, slot, op, stable);
    Ok(())
}
