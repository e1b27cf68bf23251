//! Reading and writing blocks (SBC-3 §5).
//!
//! A command moves the smaller of the length in its CDB and the length that the initiator expects; the
//! residual reports the difference. A write that would end within a block is refused.

use buf::{Payload, Sg};
use scsi::cdb::{BlockTransfer, ByteCheck, Verify, WriteAtomic};
use scsi::sense::Sense;
use volume::{Durability, Op, Refusal, Span};

use super::{fail_task, respond_good};
use crate::after_operation::AfterOperation;
use crate::context::ExecContext;
use crate::step::Reply;

pub(crate) fn transfer_span(transfer: BlockTransfer) -> Span {
    Span { lba: transfer.lba, blocks: u64::from(transfer.blocks) }
}

/// Asks the view, on arrival, whether the operation may go on: so that no data is solicited for one
/// that may not. The gate asks again, bindingly.
pub(crate) fn admit_on_arrival(ctx: &ExecContext, slot: u32, op: &Op) -> Result<(), Refusal> {
    let task = ctx.tasks.get(slot);
    if task.read_only && op.is_write() {
        return Err(Refusal::ReadOnly);
    }
    ctx.logical_unit_of(slot).view.admit(&ctx.nexus_of(slot).nexus, op)
}

/// Admits an operation that moves `blocks` blocks, and gives their bytes. `None`: it was refused.
pub(crate) fn admit_transfer(ctx: &mut ExecContext, slot: u32, op: &Op, blocks: u32) -> Option<u64> {
    let geometry = &ctx.logical_unit_of(slot).view.geometry;
    let (logical, max_io) = (u64::from(geometry.logical), u64::from(geometry.max_io));
    let bytes = u64::from(blocks) * logical;
    match admit_on_arrival(ctx, slot, op) {
        Err(refusal) => {
            ctx.respond_refused(slot, refusal);
            None
        }
        Ok(()) if bytes > max_io => {
            ctx.respond_check_condition(slot, Sense::INVALID_FIELD_IN_CDB);
            None
        }
        Ok(()) => Some(bytes),
    }
}

/// The expected length does not fit: nothing was done, and the residual says how much was meant.
pub(crate) fn respond_length_mismatch(ctx: &mut ExecContext, slot: u32, transferred: u64) {
    let sense = Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
    ctx.complete_task(slot, Reply { transferred, ..Reply::check_condition(sense) });
}

/// READ.
pub(crate) fn read(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer) {
    let whole = Op::Read(transfer_span(transfer));
    let Some(bytes) = admit_transfer(ctx, slot, &whole, transfer.blocks) else { return };
    let wanted = bytes.min(u64::from(ctx.tasks.get(slot).data_in));
    if wanted == 0 {
        return ctx.complete_task(slot, Reply::good(bytes));
    }
    let geometry = &ctx.logical_unit_of(slot).view.geometry;
    let logical = u64::from(geometry.logical);
    let blocks = wanted.div_ceil(logical);
    // Bounded by the longest operation, which fits 32 bits.
    let want = if geometry.lends { 0 } else { (blocks * logical) as u32 };
    ctx.submit_op(slot, Op::Read(Span { lba: transfer.lba, blocks }), Payload::None, want);
}

/// READ has read. With FUA what it has read may stand in the cache only, and must be stable before anybody
/// is told of it (SBC-3 §5.12); who may not flush, because another has reserved writing, is told what is
/// there.
pub(crate) fn finish_read(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer, payload: Payload) {
    let cached = ctx.logical_unit_of(slot).view.geometry.write_cache;
    if transfer.fua && cached && admit_on_arrival(ctx, slot, &Op::Flush).is_ok() {
        ctx.tasks.get_mut(slot).job = AfterOperation::FlushAfterRead(Box::new(payload.into_sg()));
        return ctx.submit_op(slot, Op::Flush, Payload::None, 0);
    }
    send_read_data(ctx, slot, transfer, payload.into_sg());
}

/// What READ with FUA has read is stable.
pub(crate) fn finish_fua_read(ctx: &mut ExecContext, slot: u32) {
    let task = ctx.tasks.get_mut(slot);
    match (std::mem::replace(&mut task.job, AfterOperation::Plain), task.command) {
        (AfterOperation::FlushAfterRead(data), scsi::Command::Read(transfer)) => {
            send_read_data(ctx, slot, transfer, *data)
        }
        // Only READ has such a job.
        _ => ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE),
    }
}

fn send_read_data(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer, data: Sg) {
    let logical = ctx.logical_unit_of(slot).view.geometry.logical;
    let task = ctx.tasks.get(slot);
    let (key, data_in) = (task.key, task.data_in);
    ctx.send_data_in(key, data_in, data);
    ctx.complete_task(slot, Reply::good(u64::from(transfer.blocks) * u64::from(logical)));
}

/// WRITE: payload first.
pub(crate) fn write(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer) {
    admit_and_request_data(ctx, slot, &write_op(transfer, None), transfer.blocks);
}

/// Admits a write, and asks for its data.
fn admit_and_request_data(ctx: &mut ExecContext, slot: u32, op: &Op, blocks: u32) {
    let Some(bytes) = admit_transfer(ctx, slot, op, blocks) else { return };
    let logical = u64::from(ctx.logical_unit_of(slot).view.geometry.logical);
    let len = bytes.min(u64::from(ctx.tasks.get(slot).data_out));
    if len == 0 {
        ctx.complete_task(slot, Reply::good(bytes));
    } else if !len.is_multiple_of(logical) {
        respond_length_mismatch(ctx, slot, bytes);
    } else {
        ctx.request_payload(slot, len as u32);
    }
}

/// The write of a WRITE: of all its blocks, or of those that `data` has.
fn write_op(transfer: BlockTransfer, blocks: Option<u64>) -> Op {
    let blocks = blocks.unwrap_or(u64::from(transfer.blocks));
    Op::Write(Span { lba: transfer.lba, blocks }, transfer_durability(transfer))
}

pub(crate) fn transfer_durability(transfer: BlockTransfer) -> Durability {
    if transfer.fua { Durability::Stable } else { Durability::Cached }
}

/// The payload of a WRITE is here.
pub(crate) fn submit_write(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer, data: Sg) {
    let op = write_op(transfer, Some(payload_blocks(ctx, slot, &data)));
    ctx.submit_op(slot, op, Payload::Out(data), 0);
}

fn payload_blocks(ctx: &ExecContext, slot: u32, data: &Sg) -> u64 {
    data.len() as u64 / u64::from(ctx.logical_unit_of(slot).view.geometry.logical)
}

fn transfer_of_verify(verify: Verify) -> BlockTransfer {
    // It is looked at on the medium afterwards, so that is where it must be.
    BlockTransfer { lba: verify.lba, blocks: verify.blocks, dpo: verify.dpo, fua: true, group: verify.group }
}

/// WRITE AND VERIFY.
pub(crate) fn write_and_verify(ctx: &mut ExecContext, slot: u32, verify: Verify) {
    admit_and_request_data(ctx, slot, &write_op(transfer_of_verify(verify), None), verify.blocks);
}

/// The payload of a WRITE AND VERIFY is here.
pub(crate) fn submit_write_and_verify(ctx: &mut ExecContext, slot: u32, verify: Verify, data: Sg) {
    let op = write_op(transfer_of_verify(verify), Some(payload_blocks(ctx, slot, &data)));
    ctx.tasks.get_mut(slot).job = AfterOperation::VerifyAfterWrite;
    ctx.submit_op(slot, op, Payload::Out(data), 0);
}

/// WRITE AND VERIFY has written: verifies what stands there now.
pub(crate) fn verify_after_write(ctx: &mut ExecContext, slot: u32, payload: Payload) {
    let scsi::Command::WriteAndVerify(verify) = ctx.tasks.get(slot).command else {
        // Only WRITE AND VERIFY verifies what it wrote.
        return ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    let data = payload.into_sg();
    let span = Span { lba: verify.lba, blocks: payload_blocks(ctx, slot, &data) };
    ctx.tasks.get_mut(slot).job = AfterOperation::Plain;
    match verify.check {
        ByteCheck::None => ctx.submit_op(slot, Op::Verify(span), Payload::None, 0),
        ByteCheck::Compare | ByteCheck::CompareOne => {
            ctx.submit_op(slot, Op::Compare(span), Payload::Out(data), 0);
        }
    }
}

/// Asks for exactly what an operation needs, and lets a flush follow if FUA asks for one.
pub(crate) fn request_exact_payload(ctx: &mut ExecContext, slot: u32, bytes: u64, fua: bool) {
    if bytes == 0 {
        return respond_good(ctx, slot);
    }
    if u64::from(ctx.tasks.get(slot).data_out) < bytes {
        return respond_length_mismatch(ctx, slot, bytes);
    }
    if fua && ctx.logical_unit_of(slot).view.geometry.write_cache {
        ctx.tasks.get_mut(slot).job = AfterOperation::Flush;
    }
    ctx.request_payload(slot, bytes as u32);
}

/// What was written by an operation without an option for it is made stable.
pub(crate) fn flush_after_write(ctx: &mut ExecContext, slot: u32) {
    ctx.tasks.get_mut(slot).job = AfterOperation::LastFlush;
    ctx.submit_op(slot, Op::Flush, Payload::None, 0);
}

/// ORWRITE.
pub(crate) fn or_write(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer) {
    let op = Op::Or(transfer_span(transfer));
    let Some(bytes) = admit_transfer(ctx, slot, &op, transfer.blocks) else { return };
    request_exact_payload(ctx, slot, bytes, transfer.fua);
}

/// WRITE ATOMIC: without boundaries, which VPD B0h says.
pub(crate) fn write_atomic(ctx: &mut ExecContext, slot: u32, write: WriteAtomic) {
    let op = Op::WriteAtomic(transfer_span(write.transfer));
    let Some(bytes) = admit_transfer(ctx, slot, &op, write.transfer.blocks) else { return };
    if write.boundary != 0 {
        return ctx.respond_check_condition(slot, Sense::invalid_cdb_field(10, None));
    }
    request_exact_payload(ctx, slot, bytes, write.transfer.fua);
}

/// Submits what needs no payload, if it is admitted.
pub(crate) fn admit_and_submit(ctx: &mut ExecContext, slot: u32, op: Op) {
    match admit_on_arrival(ctx, slot, &op) {
        Err(refusal) => fail_task(ctx, slot, refusal.into()),
        Ok(()) => ctx.submit_op(slot, op, Payload::None, 0),
    }
}
