//! Fused Compare and Write (NVMe Base §3.4.2, NVM Command Set §2.1): two commands, next to each other on one
//! queue, that become one operation.
//!
//! The first half waits for the second, which must be the very next command of the queue; any other command
//! ends it. The pair is admitted as a pair. Only then is data requested, for both halves at once, so that no
//! two pairs wait for memory that the other has. Data in the first half's capsule is taken at once, because
//! the second capsule follows it in the stream.
//!
//! Invariant: halves of a pair refer to each other until one of them ends.

use buf::{Payload, Sg};
use nvme::failpoint::{Failpoint, is_on};
use nvme::io::BlockTransfer;
use nvme::{Fuse, Opcode, SglDescriptor, Sqe, Status};
use volume::{Failure, Fault, Op, Outcome};

use super::block::{admit_on_arrival, checked_transfer_len, transfer_span};
use super::resolve_namespace;
use crate::after_wait::{AfterWait, FusedHalf};
use crate::context::ExecContext;
use crate::status;
use crate::step::{CommandKey, Step};
use crate::task::{CountedAs, TaskEnding, TaskPhase};

/// A command that is part of a pair, or that follows a first half, or comes too late.
pub(crate) fn start_fused_or_following(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) {
    if ctx.queues.get(key.queue).closing {
        return ctx.steps.push_back(Step::Retire { command: key });
    }
    let waiting = ctx.queues.get_mut(key.queue).half.take();
    let result = match (sqe.fuse(), waiting) {
        (Fuse::Second, Some(first)) => start_second_half(ctx, key, sqe, data_out, first),
        (Fuse::Second, None) => Err(Status::ABORTED_MISSING_FUSED.with_do_not_retry()),
        (fuse, waiting) => {
            match waiting {
                Some(first) if is_on(Failpoint::HalfWaits) => {
                    ctx.queues.get_mut(key.queue).half = Some(first)
                }
                Some(first) => fail_first_half(ctx, first),
                None => {}
            }
            match fuse {
                Fuse::First => start_first_half(ctx, key, sqe, data_out),
                Fuse::Reserved => Err(Status::INVALID_FIELD.with_do_not_retry()),
                Fuse::No | Fuse::Second => return super::start_command(ctx, key, sqe, data_out),
            }
        }
    };
    if let Err(status) = result {
        ctx.refuse_command(key, sqe, status);
    }
}

/// A first half whose second does not come.
fn fail_first_half(ctx: &mut ExecContext, first: u32) {
    let key = ctx.tasks.get(first).key;
    ctx.terminate_tasks(
        &[(first, key)],
        TaskEnding::Status(Status::ABORTED_MISSING_FUSED.with_do_not_retry()),
    );
}

/// Makes a half a task. Its data is asked for later.
fn insert_half(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    tally: CountedAs,
) -> Result<u32, Status> {
    let transfer = BlockTransfer::from_sqe(sqe);
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get())?;
    let bytes = checked_transfer_len(ctx, key, volume, transfer, data_out)?;
    let stable = transfer.has_flags(BlockTransfer::FUA);
    let half = FusedHalf {
        span: transfer_span(transfer),
        mate: None,
        data: None,
        stable,
        running: false,
        done: false,
    };
    let slot = ctx.insert_task(key, sqe, &entry, bytes, AfterWait::Half(Box::new(half)))?;
    let task = ctx.tasks.get_mut(slot);
    (task.phase, task.tally) = (TaskPhase::Mate, tally);
    Ok(slot)
}

fn start_first_half(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    if sqe.opcode != Opcode::COMPARE {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let slot = insert_half(ctx, key, sqe, data_out, CountedAs::Read)?;
    ctx.queues.get_mut(key.queue).half = Some(slot);
    if sqe.dptr.identifier == SglDescriptor::IN_CAPSULE {
        ctx.request_payload(slot, data_out);
    }
    Ok(())
}

/// The second half of `start_first_half`: both go on, or neither does.
fn start_second_half(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    first: u32,
) -> Result<(), Status> {
    let slot = match pair_halves(ctx, key, sqe, data_out, first) {
        Ok(slot) => slot,
        Err((of_first, status)) => {
            let first_key = ctx.tasks.get(first).key;
            ctx.terminate_tasks(&[(first, first_key)], TaskEnding::Status(of_first));
            return Err(status);
        }
    };
    ctx.fused_half_mut(first).mate = Some(slot);
    ctx.fused_half_mut(slot).mate = Some(first);
    let task = ctx.tasks.get(first);
    if task.phase == TaskPhase::Mate && ctx.fused_half(first).data.is_none() {
        let len = task.bytes;
        ctx.request_payload(first, len);
    }
    ctx.request_payload(slot, data_out);
    Ok(())
}

/// Makes the second half a task, if the two go together and are admitted. `Err`: how the first ends,
/// and the second.
fn pair_halves(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    first: u32,
) -> Result<u32, (Status, Status)> {
    let both = |status| (status, status);
    let transfer = BlockTransfer::from_sqe(sqe);
    let fits = sqe.opcode == Opcode::WRITE
        && sqe.nsid.get() == ctx.tasks.get(first).nsid
        && transfer_span(transfer) == ctx.fused_half(first).span;
    if !fits {
        return Err(both(Status::INVALID_FIELD.with_do_not_retry()));
    }
    let (entry, volume) = resolve_namespace(ctx, key.queue, sqe.nsid.get()).map_err(both)?;
    let op = Op::CompareAndWrite(transfer_span(transfer));
    admit_on_arrival(ctx, key, &entry, volume, &op).map_err(both)?;
    let failed = Status::ABORTED_FAILED_FUSED.with_do_not_retry();
    insert_half(ctx, key, sqe, data_out, CountedAs::Write).map_err(|status| (failed, status))
}

/// A half's data is here; the pair goes on when both halves' is.
pub(super) fn handle_half_data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let half_here = ctx.fused_half_mut(slot);
    half_here.data = Some(data);
    let mate = half_here.mate;
    ctx.tasks.get_mut(slot).phase = TaskPhase::Mate;
    let Some(mate) = mate else { return };
    if ctx.fused_half(mate).data.is_none() {
        return;
    }
    let (first, second) =
        if ctx.tasks.get(slot).tally == CountedAs::Read { (slot, mate) } else { (mate, slot) };
    let written = ctx.fused_half_mut(second).data.take();
    let compared = ctx.fused_half_mut(first);
    compared.running = true;
    let op = Op::CompareAndWrite(compared.span);
    let mut bytes = compared.data.take().unwrap_or_default();
    bytes.append(written.unwrap_or_default());
    if ctx.tasks.get(first).read_only {
        return end_pair_with_status(ctx, first, Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
    }
    ctx.submit_op(first, op, Payload::Out(bytes), 0);
}

/// The pair's operation has ended, or the flush after it.
pub(super) fn handle_pair_done(ctx: &mut ExecContext, first: u32, result: Result<Outcome, Failure>) {
    // A pair runs while it is whole.
    let Some(second) = ctx.fused_half(first).mate else {
        return ctx.complete_task(first, Status::INTERNAL_ERROR.with_do_not_retry().into());
    };
    match result {
        Ok(_) if std::mem::take(&mut ctx.fused_half_mut(second).stable) => {
            ctx.fused_half_mut(first).done = true;
            ctx.submit_op(first, Op::Flush, Payload::None, 0);
        }
        Ok(_) => end_pair_with_status(ctx, first, Status::SUCCESS),
        Err(failure) if ctx.fused_half(first).done => {
            end_pair_with_status(ctx, first, status::for_flush_failure_after_pair(failure))
        }
        // The half at fault says what went wrong; the other was aborted for it (status 09h).
        Err(failure @ Failure::Failed(Fault::Miscompare(_) | Fault::Medium(_))) => {
            end_pair(
                ctx,
                first,
                status::for_failure(failure),
                Status::ABORTED_FAILED_FUSED.with_do_not_retry(),
            );
        }
        Err(failure @ Failure::Failed(Fault::Unwritable(_) | Fault::NoSpace | Fault::Sync)) => {
            end_pair(
                ctx,
                first,
                Status::ABORTED_FAILED_FUSED.with_do_not_retry(),
                status::for_failure(failure),
            );
        }
        // Of all else both are told: it is of the pair, which was admitted as one.
        Err(failure) => end_pair_with_status(ctx, first, status::for_pair_failure(failure)),
    }
}

fn end_pair_with_status(ctx: &mut ExecContext, first: u32, status: Status) {
    end_pair(ctx, first, status, status);
}

fn end_pair(ctx: &mut ExecContext, first: u32, of_first: Status, of_second: Status) {
    let second = ctx.fused_half_mut(first).mate.take();
    ctx.complete_task(first, of_first.into());
    let Some(second) = second else { return };
    ctx.fused_half_mut(second).mate = None;
    ctx.complete_task(second, of_second.into());
}
