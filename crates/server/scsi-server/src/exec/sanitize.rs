//! SANITIZE (SBC-3 §4.11, §5.24), and FORMAT UNIT (§5.3), which is the same work: there is one format, so what a format
//! does is that all blocks are zero afterwards.
//!
//! A sanitize continues whatever happens to the command, the nexus or the reservation that began it. So it is
//! the server's own task, with its own nexus. First the volume's home closes the volume for everything else
//! and waits until that has ended on every core. Then the operation runs. Then the home opens the volume
//! again, or keeps it closed if the sanitize failed.

use std::sync::Arc;

use buf::{Payload, Sg};
use scsi::Status;
use scsi::cdb::{Sanitize, SanitizeAction};
use scsi::format::{FormatParameters, FormatUnit};
use scsi::sanitize::OverwriteParameters;
use scsi::sense::Sense;
use volume::{
    Failure, IoId, Op, Outcome, Refusal, RequestId, Requester, SanitizeKind, UnservableReason, VolumeRequest,
};

use super::block::admit_on_arrival;
use super::parameter_data::contiguous_bytes;
use super::respond_good;
use crate::after_operation::{AfterOperation, SanitizeJob, SanitizeStage};
use crate::context::ExecContext;
use crate::status;
use crate::step::{Reply, Step};
use crate::task::{Task, TaskEnding, TaskPhase};

/// SANITIZE.
pub(crate) fn start_sanitize(ctx: &mut ExecContext, slot: u32, sanitize: Sanitize) {
    if sanitize.action == SanitizeAction::ExitFailureMode {
        return exit_failure_mode(ctx, slot);
    }
    if let Err(refusal) = admit_on_arrival(ctx, slot, &Op::Sanitize(SanitizeKind::BlockErase)) {
        return ctx.respond_refused(slot, refusal);
    }
    match sanitize.action {
        SanitizeAction::BlockErase => begin_sanitize(ctx, slot, &sanitize, SanitizeKind::BlockErase),
        SanitizeAction::Overwrite { list_len } => {
            let block_len = ctx.logical_unit_of(slot).view.geometry.logical;
            match OverwriteParameters::check_len(list_len, block_len) {
                Err(sense) => ctx.respond_check_condition(slot, sense),
                Ok(()) => ctx.request_parameter_list(
                    slot,
                    u32::from(list_len),
                    OverwriteParameters::list_len_max(block_len) as usize,
                ),
            }
        }
        // It was handled above.
        SanitizeAction::ExitFailureMode => ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE),
    }
}

/// EXIT FAILURE MODE, where the failed sanitize allowed it (AUSE).
fn exit_failure_mode(ctx: &mut ExecContext, slot: u32) {
    let unit = ctx.logical_unit_of(slot);
    let failed = unit.view.not_ready == Some(UnservableReason::SanitizeFailed);
    if !failed {
        respond_good(ctx, slot);
    } else if unit.spec.shared.is_sanitize_exit_restricted() {
        ctx.respond_check_condition(slot, Sense::invalid_cdb_field(1, Some(4)));
    } else {
        ctx.request_volume_change(slot, VolumeRequest::SanitizeForgive);
    }
}

/// The list of an overwrite is here.
pub(crate) fn apply_parameter_list(ctx: &mut ExecContext, slot: u32, sanitize: Sanitize, data: &Sg) {
    let block_len = ctx.logical_unit_of(slot).view.geometry.logical;
    let kind = match OverwriteParameters::parse(&contiguous_bytes(data), block_len) {
        Err(sense) => return ctx.respond_check_condition(slot, sense),
        Ok(overwrite) => SanitizeKind::Overwrite {
            pattern: Arc::from(overwrite.pattern),
            passes: overwrite.passes,
            invert: overwrite.invert,
        },
    };
    begin_sanitize(ctx, slot, &sanitize, kind);
}

/// FORMAT UNIT.
pub(crate) fn start_format(ctx: &mut ExecContext, slot: u32, format: FormatUnit) {
    if let Err(refusal) = admit_on_arrival(ctx, slot, &Op::Sanitize(SanitizeKind::BlockErase)) {
        return ctx.respond_refused(slot, refusal);
    }
    if format.with_list {
        let len = FormatParameters::list_len(format.long_list);
        return ctx.request_parameter_list(slot, len as u32, len);
    }
    begin_format(ctx, slot, false);
}

/// The list of a format is here.
pub(crate) fn apply_format_list(ctx: &mut ExecContext, slot: u32, format: FormatUnit, data: &Sg) {
    match FormatParameters::parse(&contiguous_bytes(data), format.long_list) {
        Err(sense) => ctx.respond_check_condition(slot, sense),
        Ok(parameters) => begin_format(ctx, slot, parameters.immediate),
    }
}

fn begin_format(ctx: &mut ExecContext, slot: u32, immediate: bool) {
    // What is not thin keeps its blocks.
    let kind = if ctx.logical_unit_of(slot).view.geometry.thin {
        SanitizeKind::BlockErase
    } else {
        SanitizeKind::Overwrite { pattern: Arc::from([0]), passes: 1, invert: false }
    };
    begin_job(ctx, slot, |asker| SanitizeJob {
        asker,
        immediate,
        // Only what makes every block zero heals it: another format, or a sanitize.
        allow_exit: false,
        formats: true,
        kind,
        stage: SanitizeStage::Closing,
    });
}

fn begin_sanitize(ctx: &mut ExecContext, slot: u32, sanitize: &Sanitize, kind: SanitizeKind) {
    begin_job(ctx, slot, |asker| SanitizeJob {
        asker,
        immediate: sanitize.immediate,
        allow_exit: sanitize.allow_exit,
        formats: false,
        kind,
        stage: SanitizeStage::Closing,
    });
}

fn begin_job(ctx: &mut ExecContext, slot: u32, job: impl FnOnce(IoId) -> SanitizeJob) {
    let job = job(ctx.tasks.io_id(slot));
    let nexus = &ctx.nexus_of(slot).nexus;
    let who = Requester { read_only: nexus.read_only || ctx.tasks.get(slot).read_only, ..nexus.clone() };
    let request =
        if job.formats { VolumeRequest::FormatStart { who } } else { VolumeRequest::SanitizeStart { who } };
    match ctx.open_internal_task(slot, AfterOperation::Sanitize(Box::new(job))) {
        Some(own) => {
            ctx.tasks.get_mut(slot).phase = TaskPhase::Sanitize;
            ctx.request_volume_change(own, request);
        }
        None => ctx.complete_task(slot, Reply::with_status(Status::TASK_SET_FULL)),
    }
}

#[expect(
    clippy::unreachable,
    reason = "only a sanitize's own steps ask, and its task stays one until it ends"
)]
fn sanitize_job_mut(ctx: &mut ExecContext, slot: u32) -> &mut SanitizeJob {
    match &mut ctx.tasks.get_mut(slot).job {
        AfterOperation::Sanitize(sanitizing) => sanitizing,
        _ => unreachable!("a sanitize is under way"),
    }
}

/// The home has closed the volume, or opened it.
pub(crate) fn handle_volume_answer(ctx: &mut ExecContext, slot: u32, result: Result<(), Refusal>) {
    let SanitizeJob { asker, immediate, allow_exit, kind, stage, .. } = sanitize_job_mut(ctx, slot);
    let (asker, immediate, allow_exit, kind) = (*asker, *immediate, *allow_exit, kind.clone());
    match (*stage, result) {
        // The volume is closed for it, though not everything that was under way has ended: nobody would open it.
        (SanitizeStage::Closing, Err(Refusal::NotFenced)) => {
            ctx.logical_unit_of(slot).spec.shared.restrict_sanitize_exit(!allow_exit);
            end_terminated_asker(ctx, asker);
            request_sanitize_end(ctx, slot, false);
        }
        (SanitizeStage::Closing, Err(refusal)) => {
            close_internal_task_with(ctx, slot, status::reply_for_refusal(refusal))
        }
        (SanitizeStage::Closing, Ok(())) => {
            sanitize_job_mut(ctx, slot).stage = SanitizeStage::Running;
            ctx.logical_unit_of(slot).spec.shared.restrict_sanitize_exit(!allow_exit);
            end_terminated_asker(ctx, asker);
            if immediate && let Some(asker) = waiting_command_slot(ctx, asker) {
                respond_good(ctx, asker);
            }
            let name = ctx.tasks.get(slot).key;
            let volume = ctx.tasks.get(slot).volume;
            ctx.submit_op_as(slot, name, volume, Op::Sanitize(kind), Payload::None, 0);
        }
        (SanitizeStage::Opening { well: true }, Ok(())) => finish_sanitize(ctx, slot),
        // That it has ended well cannot be recorded, and what is recorded is that it has not.
        (SanitizeStage::Opening { well: true }, Err(Refusal::NotDurable)) => {
            request_sanitize_end(ctx, slot, false)
        }
        // It has ended well and that stands; only a shard is late, or the volume goes.
        (
            SanitizeStage::Opening { well: true },
            Err(refusal @ (Refusal::NotFenced | Refusal::NotReady(_))),
        ) => {
            close_internal_task_with(ctx, slot, status::reply_for_refusal(refusal));
        }
        (SanitizeStage::Opening { .. }, _) => fail_sanitize(ctx, slot),
        // Nothing is asked while it runs.
        (SanitizeStage::Running, _) => {}
    }
}

/// The blocks are unreadable, or that failed.
pub(crate) fn handle_io_done(ctx: &mut ExecContext, slot: u32, result: Result<Outcome, Failure>) {
    request_sanitize_end(ctx, slot, result.is_ok());
}

/// Asks the home to open the volume, or to say that its sanitize has failed.
fn request_sanitize_end(ctx: &mut ExecContext, slot: u32, well: bool) {
    sanitize_job_mut(ctx, slot).stage = SanitizeStage::Opening { well };
    ctx.request_volume_change(slot, VolumeRequest::SanitizeEnd { done: well });
}

/// It has ended well.
fn finish_sanitize(ctx: &mut ExecContext, slot: u32) {
    let asker = sanitize_job_mut(ctx, slot).asker;
    if let Some(asker) = waiting_command_slot(ctx, asker) {
        respond_good(ctx, asker);
    }
    ctx.close_internal_task(slot);
}

/// It has failed.
pub(crate) fn fail_sanitize(ctx: &mut ExecContext, slot: u32) {
    let formats = sanitize_job_mut(ctx, slot).formats;
    let sense = if formats { Sense::FORMAT_FAILED } else { Sense::SANITIZE_FAILED };
    close_internal_task_with(ctx, slot, Reply::check_condition(sense));
}

fn close_internal_task_with(ctx: &mut ExecContext, slot: u32, reply: Reply) {
    let asker = sanitize_job_mut(ctx, slot).asker;
    end_terminated_asker(ctx, asker);
    if let Some(asker) = waiting_command_slot(ctx, asker) {
        ctx.complete_task(asker, reply);
    }
    ctx.close_internal_task(slot);
}

/// Ends the command that began it, if that was told to end and has waited for what becomes of the begin.
fn end_terminated_asker(ctx: &mut ExecContext, asker: IoId) {
    if let Some(asker) = waiting_command_slot(ctx, asker)
        && ctx.tasks.get(asker).ending != TaskEnding::No
    {
        ctx.end_terminated_task(asker);
    }
}

/// The command at `slot` is to end, and what it has asked for may not have begun: that is withdrawn, so that nothing is
/// destroyed behind an abort that was answered. True: the command ends with the answer.
pub(crate) fn withdraw_begin(ctx: &mut ExecContext, slot: u32) -> bool {
    let asker = ctx.tasks.io_id(slot);
    let begins = |task: &Task| {
        matches!(&task.job, AfterOperation::Sanitize(job)
            if job.asker == asker && job.stage == SanitizeStage::Closing)
    };
    let Some((own, volume)) =
        ctx.tasks.iter().find(|(_, task)| begins(task)).map(|(own, task)| (own, task.volume))
    else {
        return false;
    };
    let id = RequestId(ctx.tasks.io_id(own).0);
    ctx.steps.push_back(Step::VolumeRequest { volume, id, request: VolumeRequest::Withdraw });
    true
}

/// The command that began it, if it still waits.
fn waiting_command_slot(ctx: &ExecContext, asker: IoId) -> Option<u32> {
    let slot = ctx.tasks.slot_of_io(asker)?;
    (ctx.tasks.get(slot).phase == TaskPhase::Sanitize).then_some(slot)
}
