//! Allocation of blocks: WRITE SAME, UNMAP, GET LBA STATUS (SBC-3 §4.7).

use buf::{Payload, Sg};
use scsi::cdb::WriteSame;
use scsi::provisioning::{
    BlockRange, LbaStatus, ProvisioningStatus, UnmapLimits, UnmapList, lba_status as encode,
};
use scsi::sense::Sense;
use volume::{Extent, Op, Outcome, Refusal, Span};

use super::block::{admit, length_mismatch, submit_admitted};
use super::good;
use super::parameter::contiguous;
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
    let geometry = ctx.unit_of(slot).view.geometry;
    let span = reach(same, geometry.blocks);
    // Protection and range are judged first, then what was asked.
    let judged = match span {
        Ok(span) => admit(ctx, slot, &Op::WriteSame(span)),
        Err(refusal) => admit(ctx, slot, &Op::WriteSame(Span { lba: 0, blocks: 0 })).and(Err(refusal)),
    };
    let span = match (judged, span) {
        (Err(refusal), _) | (Ok(()), Err(refusal)) => return ctx.refuse(slot, refusal),
        (Ok(()), Ok(span)) => span,
    };
    // No block is ever anchored (ANC_SUP = 0), so that wish is refused, with UNMAP or without.
    if same.anchor {
        return ctx.check(slot, Sense::cdb_field(1, Some(4)));
    }
    if same.unmap && !geometry.thin {
        return ctx.check(slot, Sense::cdb_field(1, Some(3)));
    }
    if span.blocks > WRITE_SAME_MAX {
        return ctx.check(slot, Sense::INVALID_FIELD_IN_CDB);
    }
    let data_out = ctx.tasks.get(slot).data_out;
    if same.no_data || (same.unmap && data_out == 0) {
        let op = Op::WriteZeroes { span, unmap: same.unmap };
        ctx.submit(slot, op, Payload::None, 0);
    } else if data_out == geometry.logical {
        ctx.receive(slot, data_out);
    } else {
        length_mismatch(ctx, slot, u64::from(geometry.logical));
    }
}

/// The blocks that are meant: 0 are all up to the end (WSNZ is 0).
fn reach(same: WriteSame, total: u64) -> Result<Span, Refusal> {
    let left = total.checked_sub(same.lba).filter(|left| *left > 0).ok_or(Refusal::OutOfRange)?;
    let blocks = if same.blocks == 0 { left } else { u64::from(same.blocks) };
    if blocks > left {
        return Err(Refusal::OutOfRange);
    }
    Ok(Span { lba: same.lba, blocks })
}

/// The block of a WRITE SAME is here.
pub(crate) fn same_data(ctx: &mut ExecContext, slot: u32, same: WriteSame, data: Sg) {
    let span = match reach(same, ctx.unit_of(slot).view.geometry.blocks) {
        Ok(span) => span,
        Err(refusal) => return ctx.refuse(slot, refusal),
    };
    // UNMAP allows to unmap, it does not oblige; and unmapped blocks read zero (LBPRZ = 1), so only zeroes
    // may become unmapped. Any other block is written, or a read would not find it.
    if contiguous(&data).iter().all(|byte| *byte == 0) {
        ctx.submit(slot, Op::WriteZeroes { span, unmap: same.unmap }, Payload::None, 0);
    } else {
        ctx.submit(slot, Op::WriteSame(span), Payload::Out(data), 0);
    }
}

/// UNMAP.
pub(crate) fn unmap(ctx: &mut ExecContext, slot: u32, anchor: bool, list_len: u16) {
    if let Err(refusal) = admit(ctx, slot, &Op::Unmap(Vec::new())) {
        return ctx.refuse(slot, refusal);
    }
    if anchor {
        ctx.check(slot, Sense::cdb_field(1, Some(0)));
    } else if list_len == 0 {
        good(ctx, slot);
    } else {
        ctx.receive_list(slot, u32::from(list_len), usize::from(u16::MAX));
    }
}

/// The list of an UNMAP is here.
pub(crate) fn unmap_list(ctx: &mut ExecContext, slot: u32, data: &Sg) {
    let limits = UnmapLimits {
        capacity: ctx.unit_of(slot).view.geometry.blocks,
        blocks: UNMAP_BLOCKS_MAX,
        descriptors: UNMAP_DESCRIPTORS_MAX,
    };
    let spans: Vec<Span> = match UnmapList::parse(&contiguous(data), &limits) {
        Err(sense) => return ctx.check(slot, sense),
        Ok(list) => list.iter().map(|b| Span { lba: b.lba, blocks: u64::from(b.blocks) }).collect(),
    };
    if spans.is_empty() { good(ctx, slot) } else { ctx.submit(slot, Op::Unmap(spans), Payload::None, 0) }
}

/// GET LBA STATUS.
pub(crate) fn lba_status(ctx: &mut ExecContext, slot: u32, lba: u64) {
    let left = ctx.unit_of(slot).view.geometry.blocks.saturating_sub(lba);
    submit_admitted(ctx, slot, Op::Extents(Span { lba, blocks: left }));
}

/// The extents for a GET LBA STATUS are known.
pub(crate) fn finish_lba_status(ctx: &mut ExecContext, slot: u32, allocation: u32, outcome: Outcome) {
    let Outcome::Extents(extents) = outcome else {
        return ctx.respond(slot, Reply::check(Sense::INTERNAL_TARGET_FAILURE));
    };
    let extents = coalesced(&extents);
    ctx.report(slot, allocation as usize, |_, w| {
        encode(extents.iter().flat_map(|extent| pieces(*extent)), w);
        Ok(())
    });
}

/// Neighbours that are alike, as one.
fn coalesced(extents: &[Extent]) -> Vec<Extent> {
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
fn pieces(extent: Extent) -> impl Iterator<Item = LbaStatus> {
    const MOST: u64 = 1 << 31;
    let status = if extent.mapped { ProvisioningStatus::MAPPED } else { ProvisioningStatus::DEALLOCATED };
    let Span { lba, blocks } = extent.span;
    (0..blocks.div_ceil(MOST)).map(move |at| {
        let blocks = (blocks - at * MOST).min(MOST) as u32;
        LbaStatus { blocks: BlockRange { lba: lba + at * MOST, blocks }, status }
    })
}
