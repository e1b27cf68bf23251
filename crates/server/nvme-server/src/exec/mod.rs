//! Execution of the commands of an I/O queue; each file of this folder executes one family.
//!
//! [`start_command`] checks a command, and refuses it or makes it a task. Payload and completed operations arrive at
//! [`handle_data`] and [`handle_io_done`].

mod block;
pub(crate) mod copy;
mod dataset;
mod fabrics;
pub(crate) mod fast_path;
pub(crate) mod flush;
pub(crate) mod fused;
mod parameter_list;
mod reservation;

pub use block::UNCORRECTABLE_MAX_POWER;
pub use copy::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX};

use buf::{Payload, Sg};
use nvme::{Completion, Opcode, Sqe, Status};
use volume::{IoCompletion, Op};

use crate::after_wait::AfterWait;
use crate::context::{ExecContext, ServedVolume};
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, QueueKey};

/// Executes a command that is no part of a pair.
#[inline]
pub(crate) fn start_command(ctx: &mut ExecContext, key: CommandKey, sqe: &Sqe, data_out: u32) {
    let result = match sqe.opcode {
        Opcode::READ => block::read(ctx, key, sqe),
        Opcode::WRITE => block::write(ctx, key, sqe, data_out),
        _ => start_other_command(ctx, key, sqe, data_out),
    };
    if let Err(status) = result {
        ctx.refuse_command(key, sqe, status);
    }
}

fn start_other_command(
    ctx: &mut ExecContext,
    key: CommandKey,
    sqe: &Sqe,
    data_out: u32,
) -> Result<(), Status> {
    match sqe.opcode {
        Opcode::FLUSH => flush::flush(ctx, key, sqe),
        Opcode::COMPARE => block::compare(ctx, key, sqe, data_out),
        Opcode::WRITE_ZEROES => block::write_zeroes(ctx, key, sqe),
        Opcode::WRITE_UNCORRECTABLE => block::write_uncorrectable(ctx, key, sqe),
        Opcode::VERIFY => block::verify(ctx, key, sqe),
        Opcode::DATASET_MANAGEMENT => dataset::start_dataset_management(ctx, key, sqe, data_out),
        Opcode::COPY => copy::start_copy(ctx, key, sqe, data_out),
        Opcode::RESERVATION_REGISTER | Opcode::RESERVATION_ACQUIRE | Opcode::RESERVATION_RELEASE => {
            reservation::start_reservation_command(ctx, key, sqe, data_out)
        }
        Opcode::RESERVATION_REPORT => reservation::start_report(ctx, key, sqe),
        Opcode::FABRICS => fabrics::execute_on_io_queue(ctx, key, sqe),
        _ => Err(Status::INVALID_OPCODE.with_do_not_retry()),
    }
}

/// The namespace that a command names, and its volume.
#[inline]
pub(crate) fn resolve_namespace(
    ctx: &ExecContext,
    queue: QueueKey,
    nsid: u32,
) -> Result<(NamespaceEntry, &ServedVolume), Status> {
    let entry =
        ctx.queues.get(queue).spec.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.with_do_not_retry())?;
    let volume = ctx.volumes.get(entry.volume).ok_or_else(|| status::volume_absent(entry.volume))?;
    Ok((*entry, volume))
}

/// Payload of a command is here.
#[inline]
pub(crate) fn handle_data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let task = ctx.tasks.get_mut(slot);
    match std::mem::replace(&mut task.job, AfterWait::Plain) {
        AfterWait::Payload(op, stable) => {
            if stable {
                task.job = AfterWait::Flush;
            }
            ctx.submit_op(slot, op, Payload::Out(data), 0);
        }
        job => {
            task.job = job;
            handle_other_data(ctx, slot, data);
        }
    }
}

fn handle_other_data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    let sqe = match &ctx.tasks.get(slot).job {
        AfterWait::Half(_) => return fused::handle_half_data(ctx, slot, data),
        AfterWait::List(sqe) => **sqe,
        // No other asks for data.
        _ => return ctx.complete_task(slot, Status::INTERNAL_ERROR.into()),
    };
    match sqe.opcode {
        Opcode::DATASET_MANAGEMENT => dataset::handle_ranges(ctx, slot, &sqe, &data),
        Opcode::COPY => copy::handle_source_ranges(ctx, slot, &sqe, &data),
        _ => reservation::handle_keys(ctx, slot, &sqe, &data),
    }
}

/// There may be memory for a command's answer.
pub(crate) fn retry_answer(ctx: &mut ExecContext, slot: u32) {
    if matches!(ctx.tasks.get(slot).job, AfterWait::Report) {
        reservation::send_report(ctx, slot);
    }
}

/// A command's operation has ended.
#[inline]
pub(crate) fn handle_io_done(ctx: &mut ExecContext, slot: u32, done: IoCompletion) {
    match (&ctx.tasks.get(slot).job, &done.result) {
        (AfterWait::Read, Ok(_)) => block::finish_read(ctx, slot, done.payload),
        (AfterWait::Plain, Ok(_)) => ctx.complete_task(slot, Completion::SUCCESS),
        _ => handle_other_io_done(ctx, slot, done),
    }
}

fn handle_other_io_done(ctx: &mut ExecContext, slot: u32, done: IoCompletion) {
    let IoCompletion { result, payload, .. } = done;
    match (&ctx.tasks.get(slot).job, result) {
        (AfterWait::Copy(_), result) => copy::handle_io_done(ctx, slot, result, payload),
        (AfterWait::Half(_), result) => fused::handle_pair_done(ctx, slot, result),
        (AfterWait::FlushAll(_), result) => flush::handle_volume_flushed(ctx, slot, result),
        (AfterWait::Flush, Ok(_)) => flush::flush_after_write(ctx, slot),
        (AfterWait::ReadStable(_), Ok(_)) => block::finish_stable_read(ctx, slot, payload),
        (_, Err(failure)) => {
            ctx.complete_task(slot, status::for_failure(failure).into());
        }
        // All others have no operation, or an answer of their own.
        (_, Ok(_)) => ctx.complete_task(slot, Status::INTERNAL_ERROR.into()),
    }
}

/// Starts an operation without payload that ends a command; `stable`: with a flush after it (FUA).
fn submit_final_op(ctx: &mut ExecContext, slot: u32, op: Op, stable: bool) {
    if stable {
        ctx.tasks.get_mut(slot).job = AfterWait::Flush;
    }
    ctx.submit_op(slot, op, Payload::None, 0);
}
