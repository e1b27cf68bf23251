//! What each command of an I/O queue does; the files of this folder execute, one family each.
//!
//! [`start`] judges what the command says and either refuses it or makes it a task. What comes back
//! (payload, the end of an operation) goes through [`data`] and [`done`].

mod block;
pub(crate) mod copy;
mod dataset;
pub(crate) mod fast_path;
pub(crate) mod flush;
pub(crate) mod fused;
mod list;
mod reserve;

pub use block::UNCORRECTABLE_MAX_POWER;
pub use copy::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX};

use buf::{Payload, Sg};
use nvme::{Completion, Opcode, Sqe, Status};
use volume::{Done, Op, VolumeId};

use crate::admin::fabrics;
use crate::job::Job;
use crate::server::{Server, Volume};
use crate::spec::NamespaceEntry;
use crate::status;
use crate::step::{CommandKey, QueueKey};

/// Executes a command that is no part of a pair.
#[inline]
pub(crate) fn start(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32) {
    let result = match sqe.opcode {
        Opcode::READ => block::read(server, key, sqe),
        Opcode::WRITE => block::write(server, key, sqe, data_out),
        _ => start_other(server, key, sqe, data_out),
    };
    if let Err(status) = result {
        server.refuse(key, sqe, status);
    }
}

fn start_other(server: &mut Server, key: CommandKey, sqe: &Sqe, data_out: u32) -> Result<(), Status> {
    match sqe.opcode {
        Opcode::FLUSH => flush::flush(server, key, sqe),
        Opcode::COMPARE => block::compare(server, key, sqe, data_out),
        Opcode::WRITE_ZEROES => block::write_zeroes(server, key, sqe),
        Opcode::WRITE_UNCORRECTABLE => block::write_uncorrectable(server, key, sqe),
        Opcode::VERIFY => block::verify(server, key, sqe),
        Opcode::DATASET_MANAGEMENT => dataset::start(server, key, sqe, data_out),
        Opcode::COPY => copy::start(server, key, sqe, data_out),
        Opcode::RESERVATION_REGISTER | Opcode::RESERVATION_ACQUIRE | Opcode::RESERVATION_RELEASE => {
            reserve::start(server, key, sqe, data_out)
        }
        Opcode::RESERVATION_REPORT => reserve::report(server, key, sqe),
        Opcode::FABRICS => fabrics::on_io_queue(server, key, sqe),
        _ => Err(Status::INVALID_OPCODE.final_()),
    }
}

/// The namespace that a command names, and its volume.
#[inline]
pub(crate) fn place(
    server: &Server,
    queue: QueueKey,
    nsid: u32,
) -> Result<(NamespaceEntry, &Volume), Status> {
    let entry = server.queue(queue).spec.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.final_())?;
    let volume = server.volume(entry.volume).ok_or_else(|| status::not_here(entry.volume))?;
    Ok((*entry, volume))
}

/// The first block that a command names; 0 if it names none.
#[inline]
pub(crate) fn first_block(sqe: &Sqe) -> u64 {
    const NAMING: u32 = 1 << Opcode::WRITE.0
        | 1 << Opcode::READ.0
        | 1 << Opcode::WRITE_UNCORRECTABLE.0
        | 1 << Opcode::COMPARE.0
        | 1 << Opcode::WRITE_ZEROES.0
        | 1 << Opcode::VERIFY.0
        | 1 << Opcode::COPY.0;
    if sqe.opcode.0 < 32 && NAMING >> sqe.opcode.0 & 1 == 1 { sqe.cdw_pair(10) } else { 0 }
}

/// Payload of a command is here.
#[inline]
pub(crate) fn data(server: &mut Server, slot: u32, data: Sg) {
    let task = server.tasks.get_mut(slot);
    match std::mem::replace(&mut task.job, Job::Plain) {
        Job::Payload(op, stable) => {
            if stable {
                task.job = Job::Flush;
            }
            server.submit(slot, op, Payload::Out(data), 0);
        }
        job => {
            task.job = job;
            data_of_other(server, slot, data);
        }
    }
}

fn data_of_other(server: &mut Server, slot: u32, data: Sg) {
    let sqe = match &server.tasks.get(slot).job {
        Job::Half(_) => return fused::data(server, slot, data),
        Job::List(sqe) => **sqe,
        // No other asks for data.
        _ => return server.complete(slot, Status::INTERNAL_ERROR.into()),
    };
    match sqe.opcode {
        Opcode::DATASET_MANAGEMENT => dataset::ranges(server, slot, &sqe, &data),
        Opcode::COPY => copy::ranges(server, slot, &sqe, &data),
        _ => reserve::keys(server, slot, &sqe, &data),
    }
}

/// There may be memory for a command's answer.
pub(crate) fn retry(server: &mut Server, slot: u32) {
    if matches!(server.tasks.get(slot).job, Job::Report) {
        reserve::give(server, slot);
    }
}

/// A command's operation has ended.
#[inline]
pub(crate) fn done(server: &mut Server, slot: u32, done: Done) {
    match (&server.tasks.get(slot).job, &done.result) {
        (Job::Read, Ok(_)) => block::finish_read(server, slot, done.payload),
        (Job::Plain, Ok(_)) => server.complete(slot, Completion::SUCCESS),
        _ => done_other(server, slot, done),
    }
}

fn done_other(server: &mut Server, slot: u32, done: Done) {
    let Done { result, payload, .. } = done;
    match (&server.tasks.get(slot).job, result) {
        (Job::Copy(_), result) => copy::done(server, slot, result, payload),
        (Job::Half(_), result) => fused::done(server, slot, result),
        (Job::FlushAll(_), result) => flush::next(server, slot, result),
        (Job::Flush, Ok(_)) => flush::make_stable(server, slot),
        (Job::ReadStable(_), Ok(_)) => block::finish_stable_read(server, slot, payload),
        (_, Err(failure)) => {
            server.complete(slot, status::of(failure).into());
        }
        // All others have no operation, or an answer of their own.
        (_, Ok(_)) => server.complete(slot, Status::INTERNAL_ERROR.into()),
    }
}

/// Where the operation of a command is, if it has one.
pub(crate) fn volume_of_io(server: &Server, slot: u32) -> VolumeId {
    let task = server.tasks.get(slot);
    match &task.job {
        Job::FlushAll(all) => all.at,
        _ => task.volume,
    }
}

/// Starts an operation without payload that ends a command; `stable`: with a flush after it (FUA).
fn submit(server: &mut Server, slot: u32, op: Op, stable: bool) {
    if stable {
        server.tasks.get_mut(slot).job = Job::Flush;
    }
    server.submit(slot, op, Payload::None, 0);
}
