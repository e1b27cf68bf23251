//! LOG SENSE (SPC-4 §6.9), and the mapped size of a thin volume, for the logical block provisioning page
//! (SBC-3 §6.3.3).
//!
//! The extents are counted again for each request, one operation after the other, because backends keep no
//! count. So the command can be aborted, and other commands run between two operations.

use buf::Payload;
use scsi::Command;
use scsi::cdb::LogSense;
use scsi::log::{self, LogValues, ThinResources};
use scsi::sense::Sense;
use volume::{Geometry, Op, Outcome, Span};

use crate::after_operation::{AfterOperation, MappedBlockCount};
use crate::context::ExecContext;

/// The least threshold set, in bytes.
const THRESHOLD_SET_LEN_MIN: u64 = 1 << 20;

/// THRESHOLD EXPONENT: sets are of 1 MiB, or so large that 32 bits count them.
pub(crate) fn threshold_exponent(geometry: &Geometry) -> u8 {
    let least = (THRESHOLD_SET_LEN_MIN / u64::from(geometry.logical)).trailing_zeros() as u8;
    let needed = (64 - geometry.blocks.leading_zeros()).saturating_sub(32) as u8;
    least.max(needed)
}

/// LOG SENSE.
pub(crate) fn log_sense(ctx: &mut ExecContext, slot: u32, request: LogSense) {
    let unit = ctx.logical_unit_of(slot);
    let counts = request.page == log::PROVISIONING && request.subpage == 0;
    if unit.view.geometry.thin && counts && unit.not_ready_reason().is_none() {
        start_extent_count(ctx, slot);
    } else {
        let unknown = ThinResources { available: 0, used: 0, shared: false };
        // While nothing can be counted the page is not there; the list of pages needs no counts.
        let resources = (unit.view.geometry.thin && !counts).then_some(unknown);
        respond_log_sense(ctx, slot, resources);
    }
}

/// Answers a LOG SENSE.
fn respond_log_sense(ctx: &mut ExecContext, slot: u32, resources: Option<ThinResources>) {
    let Command::LogSense(request) = ctx.tasks.get(slot).command else {
        // Only LOG SENSE counts blocks.
        return ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    let values = LogValues { temperature: None, resources };
    ctx.respond_with_parameter_data(slot, usize::from(request.allocation), |_, w| {
        log::encode_log_sense(&request, &values, w)
    });
}

/// Starts to count.
fn start_extent_count(ctx: &mut ExecContext, slot: u32) {
    ctx.tasks.get_mut(slot).job =
        AfterOperation::MappedBlockCount(Box::new(MappedBlockCount { next: 0, mapped: 0 }));
    request_extents(ctx, slot, 0);
}

fn request_extents(ctx: &mut ExecContext, slot: u32, from: u64) {
    let blocks = ctx.logical_unit_of(slot).view.geometry.blocks;
    let span = Span { lba: from, blocks: blocks.saturating_sub(from) };
    ctx.submit_op(slot, Op::Extents(span), Payload::None, 0);
}

/// Some extents are known.
pub(crate) fn handle_extents_counted(ctx: &mut ExecContext, slot: u32, outcome: Outcome) {
    let geometry = ctx.logical_unit_of(slot).view.geometry;
    let AfterOperation::MappedBlockCount(usage) = &mut ctx.tasks.get_mut(slot).job else {
        return ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    };
    let before = usage.next;
    if let Outcome::Extents(extents) = &outcome {
        for extent in extents {
            usage.mapped += if extent.mapped { extent.span.blocks } else { 0 };
            usage.next = extent.span.end().unwrap_or(u64::MAX);
        }
    }
    let (next, mapped) = (usage.next, usage.mapped);
    if next == before {
        ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE);
    } else if next < geometry.blocks {
        request_extents(ctx, slot, next);
    } else {
        let exponent = u32::from(threshold_exponent(&geometry));
        let sets = |blocks: u64| u32::try_from(blocks.div_ceil(1 << exponent)).unwrap_or(u32::MAX);
        let used = sets(mapped);
        let resources =
            ThinResources { available: sets(geometry.blocks).saturating_sub(used), used, shared: false };
        respond_log_sense(ctx, slot, Some(resources));
    }
}
