//! Allocation of blocks: WRITE SAME, UNMAP, GET LBA STATUS (SBC-3 §4.7).

use buf::{Payload, Sg};
use scsi::cdb::WriteSame;
use scsi::provisioning::{
    BlockRange, LbaStatus, ProvisioningStatus, UnmapLimits, UnmapList, encode_lba_status as encode,
};
use scsi::sense::Sense;
use volume::{Extent, Op, Outcome, Refusal, Span};

use super::block::{admit_and_submit, admit_on_arrival, respond_length_mismatch};
use super::parameter_data::contiguous_bytes;
use super::respond_good;
use crate::context::ExecContext;
use crate::step::Reply;

/// MAXIMUM WRITE SAME LENGTH in blocks: below 65536, which tests take for the largest, and a multiple
/// of every physical block.
pub(crate) const WRITE_SAME_MAX: u64 = 32_768;
/// MAXIMUM UNMAP LBA COUNT.
pub(crate) const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(crate) const UNMAP_DESCRIPTORS_MAX: u32 = 1024;

/// WRITE SAME.
pub(crate) fn write_same(ctx: &mut ExecContext, slot: u32, same: WriteSame) {
    let geometry = ctx.logical_unit_of(slot).view.geometry;
    let span = write_same_span(same, geometry.blocks);
    // Protection and range are judged first, then what was asked.
    let judged = match span {
        Ok(span) => admit_on_arrival(ctx, slot, &Op::WriteSame(span)),
        Err(refusal) => {
            admit_on_arrival(ctx, slot, &Op::WriteSame(Span { lba: 0, blocks: 0 })).and(Err(refusal))
        }
    };
    let span = match (judged, span) {
        (Err(refusal), _) | (Ok(()), Err(refusal)) => return ctx.respond_refused(slot, refusal),
        (Ok(()), Ok(span)) => span,
    };
    // No block is ever anchored (ANC_SUP = 0), so that wish is refused, with UNMAP or without.
    if same.anchor {
        return ctx.respond_check_condition(slot, Sense::invalid_cdb_field(1, Some(4)));
    }
    if same.unmap && !geometry.thin {
        return ctx.respond_check_condition(slot, Sense::invalid_cdb_field(1, Some(3)));
    }
    if span.blocks > WRITE_SAME_MAX {
        return ctx.respond_check_condition(slot, Sense::INVALID_FIELD_IN_CDB);
    }
    let data_out = ctx.tasks.get(slot).data_out;
    if same.no_data || (same.unmap && data_out == 0) {
        let op = Op::WriteZeroes { span, unmap: same.unmap };
        ctx.submit_op(slot, op, Payload::None, 0);
    } else if data_out == geometry.logical {
        ctx.request_payload(slot, data_out);
    } else {
        respond_length_mismatch(ctx, slot, u64::from(geometry.logical));
    }
}

/// The blocks that are meant: 0 are all up to the end (WSNZ is 0).
fn write_same_span(same: WriteSame, total: u64) -> Result<Span, Refusal> {
    let left = total.checked_sub(same.lba).filter(|left| *left > 0).ok_or(Refusal::OutOfRange)?;
    let blocks = if same.blocks == 0 { left } else { u64::from(same.blocks) };
    if blocks > left {
        return Err(Refusal::OutOfRange);
    }
    Ok(Span { lba: same.lba, blocks })
}

/// The block of a WRITE SAME is here.
pub(crate) fn handle_write_same_data(ctx: &mut ExecContext, slot: u32, same: WriteSame, data: Sg) {
    let span = match write_same_span(same, ctx.logical_unit_of(slot).view.geometry.blocks) {
        Ok(span) => span,
        Err(refusal) => return ctx.respond_refused(slot, refusal),
    };
    // UNMAP allows to unmap, it does not oblige; and unmapped blocks read zero (LBPRZ = 1), so only zeroes
    // may become unmapped. Any other block is written, or a read would not find it.
    if contiguous_bytes(&data).iter().all(|byte| *byte == 0) {
        ctx.submit_op(slot, Op::WriteZeroes { span, unmap: same.unmap }, Payload::None, 0);
    } else {
        ctx.submit_op(slot, Op::WriteSame(span), Payload::Out(data), 0);
    }
}

/// UNMAP.
pub(crate) fn unmap(ctx: &mut ExecContext, slot: u32, anchor: bool, list_len: u16) {
    if let Err(refusal) = admit_on_arrival(ctx, slot, &Op::Unmap(Vec::new())) {
        return ctx.respond_refused(slot, refusal);
    }
    if anchor {
        ctx.respond_check_condition(slot, Sense::invalid_cdb_field(1, Some(0)));
    } else if list_len == 0 {
        respond_good(ctx, slot);
    } else {
        ctx.request_parameter_list(slot, u32::from(list_len), usize::from(u16::MAX));
    }
}

/// The list of an UNMAP is here.
pub(crate) fn handle_unmap_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    let limits = UnmapLimits {
        capacity: ctx.logical_unit_of(slot).view.geometry.blocks,
        blocks: UNMAP_BLOCKS_MAX,
        descriptors: UNMAP_DESCRIPTORS_MAX,
    };
    let spans: Vec<Span> = match UnmapList::parse(&contiguous_bytes(data), &limits) {
        Err(sense) => return ctx.respond_check_condition(slot, sense),
        Ok(list) => list.iter().map(|b| Span { lba: b.lba, blocks: u64::from(b.blocks) }).collect(),
    };
    if spans.is_empty() {
        respond_good(ctx, slot)
    } else {
        ctx.submit_op(slot, Op::Unmap(spans), Payload::None, 0)
    }
}

/// GET LBA STATUS.
pub(crate) fn get_lba_status(ctx: &mut ExecContext, slot: u32, lba: u64) {
    let left = ctx.logical_unit_of(slot).view.geometry.blocks.saturating_sub(lba);
    admit_and_submit(ctx, slot, Op::Extents(Span { lba, blocks: left }));
}

/// The extents for a GET LBA STATUS are known.
pub(crate) fn finish_lba_status(ctx: &mut ExecContext, slot: u32, allocation: u32, outcome: Outcome) {
    let Outcome::Extents(extents) = outcome else {
        return ctx.complete_task(slot, Reply::check_condition(Sense::INTERNAL_TARGET_FAILURE));
    };
    let extents = coalesce_extents(&extents);
    ctx.respond_with_parameter_data(slot, allocation as usize, |_, w| {
        encode(extents.iter().flat_map(|extent| lba_status_descriptors(*extent)), w);
        Ok(())
    });
}

/// Neighbours that are alike, as one.
fn coalesce_extents(extents: &[Extent]) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match all.last_mut() {
            Some(last) if last.mapped == extent.mapped && last.span.end() == Some(extent.span.lba) => {
                last.span.blocks += extent.span.blocks;
            }
            Some(_) | None => all.push(*extent),
        }
    }
    all
}

/// An extent in descriptors; each counts 32 bits of blocks.
fn lba_status_descriptors(extent: Extent) -> impl Iterator<Item = LbaStatus> {
    const MOST: u64 = 1 << 31;
    let status = if extent.mapped { ProvisioningStatus::MAPPED } else { ProvisioningStatus::DEALLOCATED };
    let Span { lba, blocks } = extent.span;
    (0..blocks.div_ceil(MOST)).map(move |at| {
        let blocks = (blocks - at * MOST).min(MOST) as u32;
        LbaStatus { blocks: BlockRange { lba: lba + at * MOST, blocks }, status }
    })
}
