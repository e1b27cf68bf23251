//! Execution of the commands of an I/O queue; each file of this folder executes one family.
//!
//! [`start`] checks a command, and refuses it or makes it a task. Payload and completed operations arrive at
//! [`data`] and [`done`].

mod block;
pub(crate) mod copy;
mod dataset;
mod fabrics;
pub(crate) mod fast_path;
pub(crate) mod flush;
pub(crate) mod fused;
mod list;
mod reserve;

pub use block::UNCORRECTABLE_MAX_POWER;
pub use copy::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX};

use buf::{Payload, Sg};
use nvme::{Completion, Opcode, Sqe, Status};
use volume::{Done, Op};

use crate::after_wait::AfterWait;
use crate::context::{ExecContext, Volume};
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, QueueKey};

/// Executes a command that is no part of a pair.
#[inline]
pub(crate) fn start(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) {
    let result = match sqe.opcode {
        Opcode::READ => block::read(ctx, key, sqe),
        Opcode::WRITE => block::write(ctx, key, sqe, data_out),
        _ => start_other(ctx, key, sqe, data_out),
    };
    if let Err(status) = result {
        ctx.refuse(key, sqe, status);
    }
}

fn start_other(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    match sqe.opcode {
        Opcode::FLUSH => flush::flush(ctx, key, sqe),
        Opcode::COMPARE => block::compare(ctx, key, sqe, data_out),
        Opcode::WRITE_ZEROES => block::write_zeroes(ctx, key, sqe),
        Opcode::WRITE_UNCORRECTABLE => block::write_uncorrectable(ctx, key, sqe),
        Opcode::VERIFY => block::verify(ctx, key, sqe),
        Opcode::DATASET_MANAGEMENT => dataset::start(ctx, key, sqe, data_out),
        Opcode::COPY => copy::start(ctx, key, sqe, data_out),
        Opcode::RESERVATION_REGISTER | Opcode::RESERVATION_ACQUIRE | Opcode::RESERVATION_RELEASE => {
            reserve::start(ctx, key, sqe, data_out)
        }
        Opcode::RESERVATION_REPORT => reserve::report(ctx, key, sqe),
        Opcode::FABRICS => fabrics::on_io_queue(ctx, key, sqe),
        _ => Err(Status::INVALID_OPCODE.final_()),
    }
}

/// The namespace that a command names, and its volume.
#[inline]
pub(crate) fn place(
    ctx: &ExecContext,
    queue: QueueKey,
    nsid: u32,
) -> Result<(NamespaceEntry, &Volume), Status> {
    let entry = ctx.queues.get(queue).spec.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let volume = ctx.volumes.get(entry.volume).ok_or_else(|| status::not_here(entry.volume))?;
    Ok((*entry, volume))
}

/// Payload of a command is here.
#[inline]
pub(crate) fn data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let task = ctx.tasks.get_mut(slot);
    match std::mem::replace(&mut task.job, AfterWait::Plain) {
        AfterWait::Payload(op, stable) => {
            if stable {
                task.job = AfterWait::Flush;
            }
            ctx.submit(slot, op, Payload::Out(data), 0);
        }
        job => {
            task.job = job;
            data_of_other(ctx, slot, data);
        }
    }
}

fn data_of_other(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let sqe = match &ctx.tasks.get(slot).job {
        AfterWait::Half(_) => return fused::data(ctx, slot, data),
        AfterWait::List(sqe) => **sqe,
        // No other asks for data.
        _ => return ctx.complete(slot, Status::INTERNAL_ERROR.into()),
    };
    match sqe.opcode {
        Opcode::DATASET_MANAGEMENT => dataset::ranges(ctx, slot, &sqe, &data),
        Opcode::COPY => copy::ranges(ctx, slot, &sqe, &data),
        _ => reserve::keys(ctx, slot, &sqe, &data),
    }
}

/// There may be memory for a command's answer.
pub(crate) fn retry(ctx: &mut ExecContext, slot: u32) {
    if matches!(ctx.tasks.get(slot).job, AfterWait::Report) {
        reserve::give(ctx, slot);
    }
}

/// A command's operation has ended.
#[inline]
pub(crate) fn done(ctx: &mut ExecContext, slot: u32, done: Done) {
    match (&ctx.tasks.get(slot).job, &done.result) {
        (AfterWait::Read, Ok(_)) => block::finish_read(ctx, slot, done.payload),
        (AfterWait::Plain, Ok(_)) => ctx.complete(slot, Completion::SUCCESS),
        _ => done_other(ctx, slot, done),
    }
}

fn done_other(ctx: &mut ExecContext, slot: u32, done: Done) {
    let Done { result, payload, .. } = done;
    match (&ctx.tasks.get(slot).job, result) {
        (AfterWait::Copy(_), result) => copy::done(ctx, slot, result, payload),
        (AfterWait::Half(_), result) => fused::done(ctx, slot, result),
        (AfterWait::FlushAll(_), result) => flush::next(ctx, slot, result),
        (AfterWait::Flush, Ok(_)) => flush::make_stable(ctx, slot),
        (AfterWait::ReadStable(_), Ok(_)) => block::finish_stable_read(ctx, slot, payload),
        (_, Err(failure)) => {
            ctx.complete(slot, status::of(failure).into());
        }
        // All others have no operation, or an answer of their own.
        (_, Ok(_)) => ctx.complete(slot, Status::INTERNAL_ERROR.into()),
    }
}

/// Starts an operation without payload that ends a command; `stable`: with a flush after it (FUA).
fn submit(ctx: &mut ExecContext, slot: u32, op: Op, stable: bool) {
    if stable {
        ctx.tasks.get_mut(slot).job = AfterWait::Flush;
    }
    ctx.submit(slot, op, Payload::None, 0);
}
