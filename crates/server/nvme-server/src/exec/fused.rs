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
use nvme::io::Transfer;
use nvme::{Descriptor, Fuse, Opcode, Sqe, Status};
use volume::{Failure, Fault, Op, Outcome};

use super::block::{admit, measure, to_span};
use super::place;
use crate::after_wait::{AfterWait, FusedHalf};
use crate::context::ExecContext;
use crate::status;
use crate::step::{CommandKey, Step};
use crate::task::{CountedAs, Ending, Phase};

/// A command that is part of a pair, or that follows a first half, or comes too late.
pub(crate) fn start(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) {
    if ctx.queues.get(key.queue).closing {
        return ctx.steps.push_back(Step::Retire { command: key });
    }
    let waiting = ctx.queues.get_mut(key.queue).half.take();
    let result = match (sqe.fuse(), waiting) {
        (Fuse::Second, Some(first)) => second(ctx, key, sqe, data_out, first),
        (Fuse::Second, None) => Err(Status::ABORTED_MISSING_FUSED.final_()),
        (fuse, waiting) => {
            match waiting {
                Some(first) if is_on(Failpoint::HalfWaits) => {
                    ctx.queues.get_mut(key.queue).half = Some(first)
                }
                Some(first) => miss(ctx, first),
                None => {}
            }
            match fuse {
                Fuse::First => first(ctx, key, sqe, data_out),
                Fuse::Reserved => Err(Status::INVALID_FIELD.final_()),
                Fuse::No | Fuse::Second => return super::start(ctx, key, sqe, data_out),
            }
        }
    };
    if let Err(status) = result {
        ctx.refuse(key, sqe, status);
    }
}

/// A first half whose second does not come.
fn miss(ctx: &mut ExecContext, first: u32) {
    let key = ctx.tasks.get(first).key;
    ctx.stop_all(&[(first, key)], Ending::Status(Status::ABORTED_MISSING_FUSED.final_()));
}

/// Makes a half a task. Its data is asked for later.
fn open(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    tally: CountedAs,
) -> Result<u32, Status> {
    let transfer = Transfer::of(sqe);
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get())?;
    let bytes = measure(ctx, key, volume, transfer, data_out)?;
    let stable = transfer.has(Transfer::FUA);
    let half =
        FusedHalf { span: to_span(transfer), mate: None, data: None, stable, running: false, done: false };
    let slot = ctx.open(key, sqe, &entry, bytes, AfterWait::Half(Box::new(half)))?;
    let task = ctx.tasks.get_mut(slot);
    (task.phase, task.tally) = (Phase::Mate, tally);
    Ok(slot)
}

fn first(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    if sqe.opcode != Opcode::COMPARE {
        return Err(Status::INVALID_FIELD.final_());
    }
    let slot = open(ctx, key, sqe, data_out, CountedAs::Read)?;
    ctx.queues.get_mut(key.queue).half = Some(slot);
    if sqe.dptr.identifier == Descriptor::IN_CAPSULE {
        ctx.receive(slot, data_out);
    }
    Ok(())
}

/// The second half of `first`: both go on, or neither does.
fn second(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    first: u32,
) -> Result<(), Status> {
    let slot = match pair(ctx, key, sqe, data_out, first) {
        Ok(slot) => slot,
        Err((of_first, status)) => {
            let first_key = ctx.tasks.get(first).key;
            ctx.stop_all(&[(first, first_key)], Ending::Status(of_first));
            return Err(status);
        }
    };
    ctx.half_mut(first).mate = Some(slot);
    ctx.half_mut(slot).mate = Some(first);
    let task = ctx.tasks.get(first);
    if task.phase == Phase::Mate && ctx.half(first).data.is_none() {
        let len = task.bytes;
        ctx.receive(first, len);
    }
    ctx.receive(slot, data_out);
    Ok(())
}

/// Makes the second half a task, if the two go together and are admitted. `Err`: how the first ends,
/// and the second.
fn pair(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
    first: u32,
) -> Result<u32, (Status, Status)> {
    let both = |status| (status, status);
    let transfer = Transfer::of(sqe);
    let fits = sqe.opcode == Opcode::WRITE
        && sqe.nsid.get() == ctx.tasks.get(first).nsid
        && to_span(transfer) == ctx.half(first).span;
    if !fits {
        return Err(both(Status::INVALID_FIELD.final_()));
    }
    let (entry, volume) = place(ctx, key.queue, sqe.nsid.get()).map_err(both)?;
    let op = Op::CompareAndWrite(to_span(transfer));
    admit(ctx, key, &entry, volume, &op).map_err(both)?;
    let failed = Status::ABORTED_FAILED_FUSED.final_();
    open(ctx, key, sqe, data_out, CountedAs::Write).map_err(|status| (failed, status))
}

/// A half's data is here; the pair goes on when both halves' is.
pub(super) fn data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let half_here = ctx.half_mut(slot);
    half_here.data = Some(data);
    let mate = half_here.mate;
    ctx.tasks.get_mut(slot).phase = Phase::Mate;
    let Some(mate) = mate else { return };
    if ctx.half(mate).data.is_none() {
        return;
    }
    let (first, second) =
        if ctx.tasks.get(slot).tally == CountedAs::Read { (slot, mate) } else { (mate, slot) };
    let written = ctx.half_mut(second).data.take();
    let compared = ctx.half_mut(first);
    compared.running = true;
    let op = Op::CompareAndWrite(compared.span);
    let mut bytes = compared.data.take().unwrap_or_default();
    bytes.append(written.unwrap_or_default());
    if ctx.tasks.get(first).read_only {
        return both(ctx, first, Status::NAMESPACE_WRITE_PROTECTED.final_());
    }
    ctx.submit(first, op, Payload::Out(bytes), 0);
}

/// The pair's operation has ended, or the flush after it.
pub(super) fn done(ctx: &mut ExecContext, first: u32, result: Result<Outcome, Failure>) {
    // A pair runs while it is whole.
    let Some(second) = ctx.half(first).mate else {
        return ctx.complete(first, Status::INTERNAL_ERROR.final_().into());
    };
    match result {
        Ok(_) if std::mem::take(&mut ctx.half_mut(second).stable) => {
            ctx.half_mut(first).done = true;
            ctx.submit(first, Op::Flush, Payload::None, 0);
        }
        Ok(_) => both(ctx, first, Status::SUCCESS),
        Err(failure) if ctx.half(first).done => both(ctx, first, status::of_failed_flush_after_pair(failure)),
        // The half at fault says what went wrong; the other was aborted for it (status 09h).
        Err(failure @ Failure::Failed(Fault::Miscompare(_) | Fault::Medium(_))) => {
            end_pair(ctx, first, status::of(failure), Status::ABORTED_FAILED_FUSED.final_());
        }
        Err(failure @ Failure::Failed(Fault::Unwritable(_) | Fault::NoSpace | Fault::Sync)) => {
            end_pair(ctx, first, Status::ABORTED_FAILED_FUSED.final_(), status::of(failure));
        }
        // Of all else both are told: it is of the pair, which was admitted as one.
        Err(failure) => both(ctx, first, status::of_pair(failure)),
    }
}

fn both(ctx: &mut ExecContext, first: u32, status: Status) {
    end_pair(ctx, first, status, status);
}

fn end_pair(ctx: &mut ExecContext, first: u32, of_first: Status, of_second: Status) {
    let second = ctx.half_mut(first).mate.take();
    ctx.complete(first, of_first.into());
    let Some(second) = second else { return };
    ctx.half_mut(second).mate = None;
    ctx.complete(second, of_second.into());
}
