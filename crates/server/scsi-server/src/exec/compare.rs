//! Reading and comparing blocks: VERIFY, COMPARE AND WRITE (SBC-3 §5.2, §5.29).

use buf::{MemoryClass, Payload, Sg};
use scsi::Status;
use scsi::cdb::{BlockTransfer, ByteCheck, Verify};
use scsi::sense::Sense;
use volume::{Op, Span};

use super::block::{admit_and_submit, admit_on_arrival, admit_transfer, request_exact_payload};
use super::respond_good;
use crate::after_operation::{AfterOperation, RepeatedCompare};
use crate::context::ExecContext;
use crate::step::Reply;

/// How much is compared with a repeated block at a time, in bytes.
const PATTERN_LEN: usize = 64 << 10;

/// VERIFY.
pub(crate) fn start_verify(ctx: &mut ExecContext, slot: u32, verify: Verify) {
    let span = Span { lba: verify.lba, blocks: u64::from(verify.blocks) };
    match verify.check {
        // Nothing is transferred; what the initiator would send is not asked for.
        ByteCheck::None if verify.blocks > 0 => admit_and_submit(ctx, slot, Op::Verify(span)),
        ByteCheck::None | ByteCheck::CompareOne => match admit_on_arrival(ctx, slot, &Op::Compare(span)) {
            Err(refusal) => ctx.respond_refused(slot, refusal),
            Ok(()) if verify.blocks == 0 => ctx.complete_task(slot, Reply::good(0)),
            Ok(()) => {
                let logical = u64::from(ctx.logical_unit_of(slot).view.geometry.logical);
                request_exact_payload(ctx, slot, logical, false);
            }
        },
        ByteCheck::Compare => {
            let Some(bytes) = admit_transfer(ctx, slot, &Op::Compare(span), verify.blocks) else { return };
            request_exact_payload(ctx, slot, bytes, false);
        }
    }
}

/// The data of a VERIFY is here.
pub(crate) fn handle_verify_data(ctx: &mut ExecContext, slot: u32, verify: Verify, data: Sg) {
    let span = Span { lba: verify.lba, blocks: u64::from(verify.blocks) };
    if verify.check == ByteCheck::Compare {
        return ctx.submit_op(slot, Op::Compare(span), Payload::Out(data), 0);
    }
    let times = (PATTERN_LEN / data.len()).max(1).min(verify.blocks as usize);
    let Some(mut pattern) = ctx.pool().take(MemoryClass::Solicited, times * data.len()) else {
        return ctx.complete_task(slot, Reply::with_status(Status::BUSY));
    };
    for block in pattern.chunks_exact_mut(data.len()) {
        data.copy_to(0, block);
    }
    ctx.tasks.get_mut(slot).job = AfterOperation::CompareOne(Box::new(RepeatedCompare { rest: span }));
    compare_next_blocks(ctx, slot, Payload::Out(pattern.freeze().into()));
}

/// Compares the next blocks with the pattern.
pub(crate) fn compare_next_blocks(ctx: &mut ExecContext, slot: u32, payload: Payload) {
    let logical = u64::from(ctx.logical_unit_of(slot).view.geometry.logical);
    let AfterOperation::CompareOne(compare) = &mut ctx.tasks.get_mut(slot).job else {
        // No other compares a pattern.
        return ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    let pattern = payload.into_sg();
    let blocks = compare.rest.blocks.min(pattern.len() as u64 / logical);
    if blocks == 0 {
        return respond_good(ctx, slot);
    }
    let span = Span { lba: compare.rest.lba, blocks };
    compare.rest = Span { lba: span.lba + blocks, blocks: compare.rest.blocks - blocks };
    let pattern = pattern.slice(0..(blocks * logical) as usize);
    ctx.submit_op(slot, Op::Compare(span), Payload::Out(pattern), 0);
}

/// COMPARE AND WRITE: the initiator must send exactly what it compares and what it writes.
pub(crate) fn compare_and_write(ctx: &mut ExecContext, slot: u32, transfer: BlockTransfer) {
    let op = Op::CompareAndWrite(super::block::transfer_span(transfer));
    if let Err(refusal) = admit_on_arrival(ctx, slot, &op) {
        return ctx.respond_refused(slot, refusal);
    }
    let logical = u64::from(ctx.logical_unit_of(slot).view.geometry.logical);
    let bytes = 2 * u64::from(transfer.blocks) * logical;
    if u64::from(ctx.tasks.get(slot).data_out) == bytes {
        request_exact_payload(ctx, slot, bytes, transfer.fua);
    } else {
        // NUMBER OF LOGICAL BLOCKS says otherwise (256 blocks, too, which it cannot say).
        ctx.respond_check_condition(slot, Sense::invalid_cdb_field(13, None));
    }
}
