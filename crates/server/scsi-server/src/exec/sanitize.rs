//! SANITIZE (SBC-3 §4.11, §5.24).
//!
//! A sanitize continues whatever happens to the command, the nexus or the reservation that began it. So it is
//! the server's own task, with its own nexus. First the volume's home closes the volume for everything else
//! and waits until that has ended on every core. Then the operation runs. Then the home opens the volume
//! again, or keeps it closed if the sanitize failed.

use std::sync::Arc;

use buf::{Payload, Sg};
use scsi::Status;
use scsi::cdb::{Sanitize, SanitizeAction};
use scsi::sanitize::Overwrite;
use scsi::sense::Sense;
use volume::{Failure, IoId, Op, Outcome, Refusal, SanitizeKind, UnservableReason, VolumeRequest};

use super::block::admit;
use super::good;
use super::parameter::contiguous;
use crate::after_operation::{AfterOperation, SanitizeStage, Sanitizing};
use crate::context::ExecContext;
use crate::status;
use crate::step::Reply;
use crate::task::Phase;

/// SANITIZE.
pub(crate) fn start(ctx: &mut ExecContext, slot: u32, sanitize: Sanitize) {
    if sanitize.action == SanitizeAction::ExitFailureMode {
        return exit_failure(ctx, slot);
    }
    if let Err(refusal) = admit(ctx, slot, &Op::Sanitize(SanitizeKind::BlockErase)) {
        return ctx.refuse(slot, refusal);
    }
    match sanitize.action {
        SanitizeAction::BlockErase => begin(ctx, slot, sanitize, SanitizeKind::BlockErase),
        SanitizeAction::Overwrite { list_len } => {
            let block_len = ctx.unit_of(slot).view.geometry.logical;
            match Overwrite::check_len(list_len, block_len) {
                Err(sense) => ctx.check(slot, sense),
                Ok(()) => {
                    ctx.receive_list(slot, u32::from(list_len), Overwrite::list_len_max(block_len) as usize)
                }
            }
        }
        // It was handled above.
        SanitizeAction::ExitFailureMode => ctx.check(slot, Sense::INTERNAL_TARGET_FAILURE),
    }
}

/// EXIT FAILURE MODE, where the failed sanitize allowed it (AUSE).
fn exit_failure(ctx: &mut ExecContext, slot: u32) {
    let unit = ctx.unit_of(slot);
    let failed = unit.view.not_ready == Some(UnservableReason::SanitizeFailed);
    if !failed {
        good(ctx, slot);
    } else if unit.spec.shared.sanitize_exit_restricted() {
        ctx.check(slot, Sense::cdb_field(1, Some(4)));
    } else {
        ctx.request(slot, VolumeRequest::SanitizeForgive);
    }
}

/// The list of an overwrite is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, sanitize: Sanitize, data: &Sg) {
    let block_len = ctx.unit_of(slot).view.geometry.logical;
    let kind = match Overwrite::parse(&contiguous(data), block_len) {
        Err(sense) => return ctx.check(slot, sense),
        Ok(overwrite) => SanitizeKind::Overwrite {
            pattern: Arc::from(overwrite.pattern),
            passes: overwrite.passes,
            invert: overwrite.invert,
        },
    };
    begin(ctx, slot, sanitize, kind);
}

fn begin(ctx: &mut ExecContext, slot: u32, sanitize: Sanitize, kind: SanitizeKind) {
    let asker = ctx.tasks.io_id(slot);
    let job = AfterOperation::Sanitize(Box::new(Sanitizing {
        asker,
        sanitize,
        kind,
        stage: SanitizeStage::Closing,
    }));
    match ctx.open_internal_task(slot, job) {
        Some(own) => {
            ctx.tasks.get_mut(slot).phase = Phase::Sanitize;
            ctx.request(own, VolumeRequest::SanitizeStart);
        }
        None => ctx.respond(slot, Reply::plain(Status::TASK_SET_FULL)),
    }
}

#[expect(
    clippy::unreachable,
    reason = "only a sanitize's own steps ask, and its task stays one until it ends"
)]
fn sanitizing(ctx: &mut ExecContext, slot: u32) -> &mut Sanitizing {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterOperation::Sanitize(sanitizing) => sanitizing,
        _ => unreachable!("a sanitize is under way"),
    }
}

/// The home has closed the volume, or opened it.
pub(crate) fn answered(ctx: &mut ExecContext, slot: u32, result: Result<(), Refusal>) {
    let Sanitizing { asker, sanitize, kind, stage } = sanitizing(ctx, slot);
    let (asker, sanitize, kind) = (*asker, *sanitize, kind.clone());
    match (*stage, result) {
        // The volume is closed for it, though not everything that was under way has ended: nobody would open it.
        (SanitizeStage::Closing, Err(Refusal::NotFenced)) => open(ctx, slot, false),
        (SanitizeStage::Closing, Err(refusal)) => close(ctx, slot, status::refused(refusal)),
        (SanitizeStage::Closing, Ok(())) => {
            sanitizing(ctx, slot).stage = SanitizeStage::Running;
            ctx.unit_of(slot).spec.shared.restrict_sanitize_exit(!sanitize.allow_exit);
            if sanitize.immediate
                && let Some(asker) = waiting(ctx, asker)
            {
                good(ctx, asker);
            }
            let name = ctx.tasks.get(slot).key;
            let volume = ctx.tasks.get(slot).volume;
            ctx.submit_as(slot, name, volume, Op::Sanitize(kind), Payload::None, 0);
        }
        (SanitizeStage::Opening { well: true }, Ok(())) => end(ctx, slot, Ok(())),
        // That it has ended well cannot be recorded, and what is recorded is that it has not.
        (SanitizeStage::Opening { well: true }, Err(Refusal::NotDurable)) => open(ctx, slot, false),
        // It has ended well and that stands; only a shard is late, or the volume goes.
        (
            SanitizeStage::Opening { well: true },
            Err(refusal @ (Refusal::NotFenced | Refusal::NotReady(_))),
        ) => {
            close(ctx, slot, status::refused(refusal));
        }
        (SanitizeStage::Opening { .. }, _) => end(ctx, slot, Err(Sense::SANITIZE_FAILED)),
        // Nothing is asked while it runs.
        (SanitizeStage::Running, _) => {}
    }
}

/// The blocks are unreadable, or that failed.
pub(crate) fn done(ctx: &mut ExecContext, slot: u32, result: Result<Outcome, Failure>) {
    open(ctx, slot, result.is_ok());
}

/// Asks the home to open the volume, or to say that its sanitize has failed.
fn open(ctx: &mut ExecContext, slot: u32, well: bool) {
    sanitizing(ctx, slot).stage = SanitizeStage::Opening { well };
    ctx.request(slot, VolumeRequest::SanitizeEnd { done: well });
}

/// It is over.
pub(crate) fn end(ctx: &mut ExecContext, slot: u32, result: Result<(), Sense>) {
    match result {
        Ok(()) => {
            let asker = sanitizing(ctx, slot).asker;
            if let Some(asker) = waiting(ctx, asker) {
                good(ctx, asker);
            }
            ctx.close_internal_task(slot);
        }
        Err(sense) => close(ctx, slot, Reply::check(sense)),
    }
}

fn close(ctx: &mut ExecContext, slot: u32, reply: Reply) {
    let asker = sanitizing(ctx, slot).asker;
    if let Some(asker) = waiting(ctx, asker) {
        ctx.respond(asker, reply);
    }
    ctx.close_internal_task(slot);
}

/// The command that began it, if it still waits.
fn waiting(ctx: &ExecContext, asker: IoId) -> Option<u32> {
    let slot = ctx.tasks.find_io(asker)?;
    (ctx.tasks.get(slot).phase == Phase::Sanitize).then_some(slot)
}
