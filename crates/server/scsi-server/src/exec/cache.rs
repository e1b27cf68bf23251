//! The caching commands SYNCHRONIZE CACHE and PRE-FETCH (SBC-3 §5.35, §5.8), and operations that continue
//! after their command was answered: theirs, and the flush of a stop (START STOP UNIT).
//!
//! With IMMED the command is answered as soon as it may be executed, and the operation continues as the
//! server's own task: no abort, reset or lost nexus ends it. At most [`BACKGROUND_MAX`] run per nexus and
//! logical unit; a further command is answered when its operation has ended, as if IMMED were 0. A PRE-FETCH
//! promises nothing, so its failure is not reported. If a background flush fails, the next command of that
//! nexus to the logical unit reports a deferred error (SPC-4 §4.5.5). The volume also remembers the failure
//! and refuses every later write or flush.

use buf::Payload;
use scsi::cdb::BlockExtent;
use scsi::sense::Sense;
use volume::{Failure, Op, Refusal, Span};

use super::block::{admit_and_submit, admit_on_arrival};
use super::respond_good;
use crate::after_operation::{AfterOperation, BackgroundOp};
use crate::context::ExecContext;
use crate::status;

/// Operations that go on at once behind answered commands, per nexus and logical unit. Each flush covers all
/// that was written before it, so a host gains nothing by more.
const BACKGROUND_MAX: u8 = 4;
/// A hint reaches no further, in bytes.
const PREFETCH_MAX: u64 = 16 << 20;

/// The blocks of a caching command; 0 are all up to the end.
fn caching_span(ctx: &ExecContext, slot: u32, extent: BlockExtent) -> Result<Span, Refusal> {
    let total = ctx.logical_unit_of(slot).view.geometry.blocks;
    let span = Span { lba: extent.lba, blocks: u64::from(extent.blocks) };
    match span.end() {
        Some(end) if end <= total => {}
        Some(_) | None => return Err(Refusal::OutOfRange),
    }
    Ok(if span.blocks == 0 { Span { blocks: total - span.lba, ..span } } else { span })
}

/// PRE-FETCH: GOOD, never CONDITION MET, since nobody knows how much of it stays in a cache.
pub(crate) fn prefetch(ctx: &mut ExecContext, slot: u32, extent: BlockExtent) {
    let logical = u64::from(ctx.logical_unit_of(slot).view.geometry.logical);
    match caching_span(ctx, slot, extent) {
        Err(refusal) => ctx.respond_refused(slot, refusal),
        Ok(span) => {
            let span = Span { blocks: span.blocks.min(PREFETCH_MAX / logical), ..span };
            let op = Op::Prefetch(span);
            if extent.immediate && start_background(ctx, slot, &op) {
                return respond_good(ctx, slot);
            }
            admit_and_submit(ctx, slot, op);
        }
    }
}

/// SYNCHRONIZE CACHE: of everything, whatever blocks it names.
pub(crate) fn synchronize_cache(ctx: &mut ExecContext, slot: u32, extent: BlockExtent) {
    match caching_span(ctx, slot, extent) {
        Err(refusal) => ctx.respond_refused(slot, refusal),
        Ok(_) if extent.immediate && start_background(ctx, slot, &Op::Flush) => respond_good(ctx, slot),
        Ok(_) => admit_and_submit(ctx, slot, Op::Flush),
    }
}

/// Starts an operation without payload behind a command. False: it may not be executed, or too many go on.
pub(crate) fn start_background(ctx: &mut ExecContext, slot: u32, op: &Op) -> bool {
    let (key, lun, serial) = {
        let task = ctx.tasks.get(slot);
        (task.key, task.lun, task.serial)
    };
    let has_room = |ctx: &mut ExecContext| {
        let state = ctx.nexus_state_mut(key.nexus).lun_state_mut(lun, serial);
        state.is_some_and(|state| state.flushes < BACKGROUND_MAX)
    };
    let hint = matches!(op, Op::Prefetch(_));
    let unsynced = !hint && ctx.logical_unit_of(slot).spec.shared.has_sync_failed();
    let refused = admit_on_arrival(ctx, slot, op).is_err() || unsynced;
    if refused || !has_room(ctx) {
        return false;
    }
    let background = BackgroundOp { nexus: key.nexus, lun, serial, hint };
    let Some(own) = ctx.open_internal_task(slot, AfterOperation::Background(Box::new(background))) else {
        return false;
    };
    if let Some(state) = ctx.nexus_state_mut(key.nexus).lun_state_mut(lun, serial) {
        state.flushes += 1;
    }
    ctx.submit_op(own, op.clone(), Payload::None, 0);
    true
}

/// An operation in the background has ended.
pub(crate) fn handle_background_ended(ctx: &mut ExecContext, slot: u32, failure: Option<Failure>) {
    let AfterOperation::Background(background) = ctx.close_internal_task(slot) else {
        // No other job comes here.
        return;
    };
    let BackgroundOp { nexus, lun, serial, hint } = *background;
    let Some(state) = ctx.lun_if_open(nexus, lun, serial) else { return };
    state.flushes -= 1;
    if let Some(failure) = failure
        && !hint
    {
        // What has no sense data of its own (a path lost, a reservation meanwhile) left things unflushed.
        let sense = status::reply_for_failure(failure).sense.unwrap_or(Sense::INTERNAL_TARGET_FAILURE);
        state.deferred.get_or_insert(sense);
    }
}
