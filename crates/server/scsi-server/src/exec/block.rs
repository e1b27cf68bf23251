//! Reading and writing blocks (SBC-3 §5).
//!
//! A command moves the shorter of what its CDB says and of what the initiator expects, and the
//! residual tells the difference; a write that would end within a block is refused instead.

use buf::{Payload, Sg};
use scsi::cdb::{ByteCheck, Extent, Transfer, Verify, WriteAtomic};
use scsi::sense::Sense;
use volume::{Durability, Op, Refusal, Span};

use super::{fail, flush, good};
use crate::job::Job;
use crate::server::Server;
use crate::step::Reply;

/// A hint reaches no further, in bytes.
const PREFETCH_MAX: u64 = 16 << 20;

pub(crate) fn span(transfer: Transfer) -> Span {
    Span { lba: transfer.lba, blocks: u64::from(transfer.blocks) }
}

/// Asks the view, on arrival, whether the operation may go on: so that no data is solicited for one
/// that may not. The gate asks again, bindingly.
pub(crate) fn admit(server: &Server, slot: u32, op: &Op) -> Result<(), Refusal> {
    let task = server.tasks.get(slot);
    if task.read_only && op.is_write() {
        return Err(Refusal::ReadOnly);
    }
    server.unit_of(slot).view.admit(&server.nexus_of(slot).nexus, op)
}

/// Admits an operation that moves `blocks` blocks, and gives their bytes. `None`: it was refused.
pub(crate) fn admit_transfer(server: &mut Server, slot: u32, op: &Op, blocks: u32) -> Option<u64> {
    let geometry = &server.unit_of(slot).view.geometry;
    let (logical, max_io) = (u64::from(geometry.logical), u64::from(geometry.max_io));
    let bytes = u64::from(blocks) * logical;
    match admit(server, slot, op) {
        Err(refusal) => {
            server.refuse(slot, refusal);
            None
        }
        Ok(()) if bytes > max_io => {
            server.check(slot, Sense::INVALID_FIELD_IN_CDB);
            None
        }
        Ok(()) => Some(bytes),
    }
}

/// The expected length does not fit: nothing was done, and the residual says how much was meant.
pub(crate) fn misfit(server: &mut Server, slot: u32, transferred: u64) {
    let sense = Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
    server.respond(slot, Reply { transferred, ..Reply::check(sense) });
}

/// READ.
pub(crate) fn read(server: &mut Server, slot: u32, transfer: Transfer) {
    let whole = Op::Read(span(transfer));
    let Some(bytes) = admit_transfer(server, slot, &whole, transfer.blocks) else { return };
    let wanted = bytes.min(u64::from(server.tasks.get(slot).data_in));
    if wanted == 0 {
        return server.respond(slot, Reply::good(bytes));
    }
    let geometry = &server.unit_of(slot).view.geometry;
    let logical = u64::from(geometry.logical);
    let blocks = wanted.div_ceil(logical);
    // Bounded by the longest operation, which fits 32 bits.
    let want = if geometry.lends { 0 } else { (blocks * logical) as u32 };
    server.submit(slot, Op::Read(Span { lba: transfer.lba, blocks }), Payload::None, want);
}

/// READ has read. With FUA what it has read may stand in the cache only, and must be stable before anybody
/// is told of it (SBC-3 §5.12); who may not flush, because another has reserved writing, is told what is
/// there.
pub(crate) fn finish_read(server: &mut Server, slot: u32, transfer: Transfer, payload: Payload) {
    let cached = server.unit_of(slot).view.geometry.write_cache;
    if transfer.fua && cached && admit(server, slot, &Op::Flush).is_ok() {
        server.tasks.get_mut(slot).job = Job::Seen(Box::new(payload.into_sg()));
        return server.submit(slot, Op::Flush, Payload::None, 0);
    }
    give_read(server, slot, transfer, payload.into_sg());
}

/// What READ with FUA has read is stable.
pub(crate) fn seen(server: &mut Server, slot: u32) {
    let task = server.tasks.get_mut(slot);
    match (std::mem::replace(&mut task.job, Job::Plain), task.command) {
        (Job::Seen(data), scsi::Command::Read(transfer)) => give_read(server, slot, transfer, *data),
        // Only READ has such a job.
        _ => server.check(slot, Sense::INTERNAL_TARGET_FAILURE),
    }
}

fn give_read(server: &mut Server, slot: u32, transfer: Transfer, data: Sg) {
    let logical = server.unit_of(slot).view.geometry.logical;
    let task = server.tasks.get(slot);
    let (key, data_in) = (task.key, task.data_in);
    server.send(key, data_in, data);
    server.respond(slot, Reply::good(u64::from(transfer.blocks) * u64::from(logical)));
}

/// WRITE: payload first.
pub(crate) fn write(server: &mut Server, slot: u32, transfer: Transfer) {
    solicit(server, slot, &write_op(transfer, None), transfer.blocks);
}

/// Admits a write, and asks for its data.
fn solicit(server: &mut Server, slot: u32, op: &Op, blocks: u32) {
    let Some(bytes) = admit_transfer(server, slot, op, blocks) else { return };
    let logical = u64::from(server.unit_of(slot).view.geometry.logical);
    let len = bytes.min(u64::from(server.tasks.get(slot).data_out));
    if len == 0 {
        server.respond(slot, Reply::good(bytes));
    } else if !len.is_multiple_of(logical) {
        misfit(server, slot, bytes);
    } else {
        server.receive(slot, len as u32);
    }
}

/// The write of a WRITE: of all its blocks, or of those that `data` has.
fn write_op(transfer: Transfer, blocks: Option<u64>) -> Op {
    let blocks = blocks.unwrap_or(u64::from(transfer.blocks));
    Op::Write(Span { lba: transfer.lba, blocks }, durability(transfer))
}

pub(crate) fn durability(transfer: Transfer) -> Durability {
    if transfer.fua { Durability::Stable } else { Durability::Cached }
}

/// The payload of a WRITE is here.
pub(crate) fn written(server: &mut Server, slot: u32, transfer: Transfer, data: Sg) {
    let op = write_op(transfer, Some(blocks_of(server, slot, &data)));
    server.submit(slot, op, Payload::Out(data), 0);
}

fn blocks_of(server: &Server, slot: u32, data: &Sg) -> u64 {
    data.len() as u64 / u64::from(server.unit_of(slot).view.geometry.logical)
}

fn verify_write(verify: Verify) -> Transfer {
    // It is looked at on the medium afterwards, so that is where it must be.
    Transfer { lba: verify.lba, blocks: verify.blocks, dpo: verify.dpo, fua: true, group: verify.group }
}

/// WRITE AND VERIFY.
pub(crate) fn write_and_verify(server: &mut Server, slot: u32, verify: Verify) {
    solicit(server, slot, &write_op(verify_write(verify), None), verify.blocks);
}

/// The payload of a WRITE AND VERIFY is here.
pub(crate) fn verified_write(server: &mut Server, slot: u32, verify: Verify, data: Sg) {
    let op = write_op(verify_write(verify), Some(blocks_of(server, slot, &data)));
    server.tasks.get_mut(slot).job = Job::LookAgain;
    server.submit(slot, op, Payload::Out(data), 0);
}

/// WRITE AND VERIFY has written: looks at what stands there now.
pub(crate) fn look_again(server: &mut Server, slot: u32, payload: Payload) {
    let scsi::Command::WriteAndVerify(verify) = server.tasks.get(slot).command else {
        // Only WRITE AND VERIFY looks again.
        return server.check(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    let data = payload.into_sg();
    let span = Span { lba: verify.lba, blocks: blocks_of(server, slot, &data) };
    server.tasks.get_mut(slot).job = Job::Plain;
    match verify.check {
        ByteCheck::None => server.submit(slot, Op::Verify(span), Payload::None, 0),
        ByteCheck::Compare | ByteCheck::CompareOne => {
            server.submit(slot, Op::Compare(span), Payload::Out(data), 0);
        }
    }
}

/// Asks for exactly what an operation needs, and lets a flush follow if FUA asks for one.
pub(crate) fn receive_exactly(server: &mut Server, slot: u32, bytes: u64, fua: bool) {
    if bytes == 0 {
        return good(server, slot);
    }
    if u64::from(server.tasks.get(slot).data_out) < bytes {
        return misfit(server, slot, bytes);
    }
    if fua && server.unit_of(slot).view.geometry.write_cache {
        server.tasks.get_mut(slot).job = Job::Flush;
    }
    server.receive(slot, bytes as u32);
}

/// What was written by an operation without an option for it is made stable.
pub(crate) fn make_stable(server: &mut Server, slot: u32) {
    server.tasks.get_mut(slot).job = Job::LastFlush;
    server.submit(slot, Op::Flush, Payload::None, 0);
}

/// ORWRITE.
pub(crate) fn or_write(server: &mut Server, slot: u32, transfer: Transfer) {
    let op = Op::Or(span(transfer));
    let Some(bytes) = admit_transfer(server, slot, &op, transfer.blocks) else { return };
    receive_exactly(server, slot, bytes, transfer.fua);
}

/// WRITE ATOMIC: without boundaries, which VPD B0h says.
pub(crate) fn write_atomic(server: &mut Server, slot: u32, write: WriteAtomic) {
    let op = Op::WriteAtomic(span(write.transfer));
    let Some(bytes) = admit_transfer(server, slot, &op, write.transfer.blocks) else { return };
    if write.boundary != 0 {
        return server.check(slot, Sense::cdb_field(10, None));
    }
    receive_exactly(server, slot, bytes, write.transfer.fua);
}

/// The blocks of a caching command; 0 are all up to the end.
pub(crate) fn reach(server: &Server, slot: u32, extent: Extent) -> Result<Span, Refusal> {
    let total = server.unit_of(slot).view.geometry.blocks;
    let span = Span { lba: extent.lba, blocks: u64::from(extent.blocks) };
    match span.end() {
        Some(end) if end <= total => {}
        Some(_) | None => return Err(Refusal::OutOfRange),
    }
    Ok(if span.blocks == 0 { Span { blocks: total - span.lba, ..span } } else { span })
}

/// PRE-FETCH: GOOD, never CONDITION MET, since nobody knows how much of it stays in a cache.
pub(crate) fn prefetch(server: &mut Server, slot: u32, extent: Extent) {
    let logical = u64::from(server.unit_of(slot).view.geometry.logical);
    match reach(server, slot, extent) {
        Err(refusal) => server.refuse(slot, refusal),
        Ok(span) => {
            let span = Span { blocks: span.blocks.min(PREFETCH_MAX / logical), ..span };
            let op = Op::Prefetch(span);
            if extent.immediate && flush::start_background(server, slot, &op) {
                return good(server, slot);
            }
            submit_admitted(server, slot, op);
        }
    }
}

/// Submits what needs no payload, if it is admitted.
pub(crate) fn submit_admitted(server: &mut Server, slot: u32, op: Op) {
    match admit(server, slot, &op) {
        Err(refusal) => fail(server, slot, refusal.into()),
        Ok(()) => server.submit(slot, op, Payload::None, 0),
    }
}
