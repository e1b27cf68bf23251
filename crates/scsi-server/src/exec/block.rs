//! Reading and writing blocks (SBC-3).

use buf::{Payload, Sg};
use scsi::cdb::Transfer;
use scsi::sense::Sense;
use scsi::{Command, Data};
use volume::reservation::Class;
use volume::{Durability, Op, Refusal, Span};

use crate::server::Server;
use crate::status;
use crate::step::{Reply, Step};
use crate::task::Phase;

/// Whether the logical unit can serve this nexus.
pub(crate) fn ready(server: &Server, slot: u32) -> Result<(), Reply> {
    let task = server.tasks.get(slot);
    let nexus = &server.nexus(task.key.nexus).nexus;
    match server.unit(task.volume) {
        Some(unit) => unit
            .view
            .admit_class(nexus, Class::Status)
            .and_then(|()| unit.view.admit_medium())
            .map_err(status::refused),
        None => Err(Reply::check(Sense::LOGICAL_UNIT_NOT_SUPPORTED)),
    }
}

/// Asks the view, on arrival, whether the operation may go on: so that no data is solicited for one
/// that may not. The gate asks again, bindingly.
fn admit(server: &mut Server, slot: u32, op: &Op, blocks: u32) -> Option<Shape> {
    let task = server.tasks.get(slot);
    let Some(unit) = server.unit(task.volume) else {
        server.check(slot, Sense::LOGICAL_UNIT_NOT_SUPPORTED);
        return None;
    };
    let read_only = server.nexus(task.key.nexus).luns[task.lun_at].read_only;
    let geometry = &unit.view.geometry;
    let shape = Shape { bytes: u64::from(blocks) * u64::from(geometry.logical), lends: geometry.lends };
    let judged = match unit.view.admit(&server.nexus(task.key.nexus).nexus, op) {
        Ok(()) if read_only && op.is_write() => Err(Refusal::ReadOnly),
        Ok(()) if shape.bytes > u64::from(geometry.max_io) => {
            server.check(slot, Sense::INVALID_FIELD_IN_CDB);
            return None;
        }
        judged => judged,
    };
    match judged {
        Ok(()) => Some(shape),
        Err(refusal) => {
            server.respond(slot, status::refused(refusal));
            None
        }
    }
}

struct Shape {
    bytes: u64,
    lends: bool,
}

fn span(transfer: Transfer) -> Span {
    Span { lba: transfer.lba, blocks: u64::from(transfer.blocks) }
}

/// READ.
pub(crate) fn read(server: &mut Server, slot: u32, transfer: Transfer) {
    let op = Op::Read(span(transfer));
    let Some(shape) = admit(server, slot, &op, transfer.blocks) else { return };
    if shape.bytes == 0 {
        server.respond(slot, Reply::good(0));
        return;
    }
    // Bounded by the longest operation, which fits 32 bits.
    let want = if shape.lends { 0 } else { shape.bytes as u32 };
    server.submit(slot, op, Payload::None, want);
}

/// WRITE: payload first.
pub(crate) fn write(server: &mut Server, slot: u32, transfer: Transfer) {
    let op = write_op(transfer);
    let Some(shape) = admit(server, slot, &op, transfer.blocks) else { return };
    let task = server.tasks.get_mut(slot);
    if shape.bytes == 0 {
        server.respond(slot, Reply::good(0));
    } else if u64::from(task.data_out) < shape.bytes {
        // The initiator will not send what its CDB announces: nothing is written, and the residual says why.
        let reply = Reply { transferred: shape.bytes, ..Reply::check(Sense::INVALID_FIELD_IN_CDB) };
        server.respond(slot, reply);
    } else {
        task.phase = Phase::Data;
        let key = task.key;
        server.steps.push_back(Step::Receive { task: key, at: 0, len: shape.bytes as u32 });
    }
}

fn write_op(transfer: Transfer) -> Op {
    let durability = if transfer.fua { Durability::Stable } else { Durability::Cached };
    Op::Write(span(transfer), durability)
}

/// The payload of a WRITE is here.
pub(crate) fn written(server: &mut Server, slot: u32, data: Sg) {
    let Command::Write(transfer) = server.tasks.get(slot).command else {
        server.check(slot, Sense::INTERNAL_TARGET_FAILURE);
        return;
    };
    server.submit(slot, write_op(transfer), Payload::Out(data), 0);
}

/// SYNCHRONIZE CACHE.
pub(crate) fn flush(server: &mut Server, slot: u32) {
    if admit(server, slot, &Op::Flush, 0).is_some() {
        server.submit(slot, Op::Flush, Payload::None, 0);
    }
}

/// The operation of a task has succeeded.
pub(crate) fn finish(server: &mut Server, slot: u32, payload: Payload) {
    let task = server.tasks.get(slot);
    let logical = server.unit(task.volume).map_or(512, |unit| unit.view.geometry.logical);
    let transferred = match task.command.data(logical) {
        Data::None => 0,
        Data::In(len) | Data::Out(len) => len,
    };
    if let Command::Read(_) = task.command {
        let data = payload.into_sg();
        let len = data.len().min(task.data_in as usize);
        let key = task.key;
        let data = if len == data.len() { data } else { data.slice(0..len) };
        if len > 0 {
            server.steps.push_back(Step::Send { task: key, at: 0, data });
        }
    }
    server.respond(slot, Reply::good(transferred));
}
