//! Execution of commands. [`route`] finds the logical unit and checks the command; each file of this folder
//! executes one family.
//!
//! A command is executed when its turn in the task set has come: [`start_task`] checks path, reservation and
//! medium, in this order, and calls its family. Payload, completed operations and answers from the volume's
//! home arrive at [`handle_data`], [`handle_io_done`] and [`handle_volume_answer`].

mod alua;
mod block;
pub(crate) mod cache;
mod command_admission;
pub(crate) mod compare;
pub(crate) mod copy;
pub(crate) mod fast_path;
pub(crate) mod identify;
pub(crate) mod log_pages;
mod mode_pages;
mod parameter_data;
mod power;
mod provision;
pub(crate) mod report;
mod reservation;
pub(crate) mod sanitize;
mod vpd;

use buf::Sg;
use scsi::lun::{LunAddress, REPORT_LUNS_WLUN};
use scsi::sense::Sense;
use scsi::{Command, CommandSet, DataTransfer};
use volume::{Failure, IoCompletion, Op, Payload, Refusal, VolumeId};

use crate::after_operation::AfterOperation;
use crate::context::ExecContext;
use crate::status;
use crate::step::{Reply, TaskKey};
use crate::task::IncomingCommand;
use crate::task_set::ExecutedAttribute;

/// Where a command goes.
pub(crate) enum Route {
    /// To the logical unit at this place of the nexus' list.
    Unit { command: Command, at: usize, attribute: ExecutedAttribute },
    /// To the REPORT LUNS well known logical unit, to one whose volume is away, or to where no logical unit
    /// is: some commands have an answer even there.
    WithoutVolume { command: Command, lun: LunWithoutVolume },
    /// Back.
    Refused(Reply),
}

/// A LUN that no volume of this shard is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LunWithoutVolume {
    /// The REPORT LUNS well known logical unit.
    WellKnown,
    /// A logical unit whose volume is away for now.
    Away,
    /// Nothing.
    NoUnit,
}

/// Finds the logical unit, and judges what can be judged before the command is a task.
pub(crate) fn route(ctx: &mut ExecContext, key: TaskKey, arrived: &IncomingCommand<'_>) -> Route {
    let address = LunAddress::parse(&arrived.lun);
    let state = ctx.nexus_state(key.nexus);
    let index = match address {
        Some(LunAddress::Unit(lun)) => u16::try_from(lun.number()).ok().and_then(|lun| state.lun_index(lun)),
        Some(LunAddress::WellKnown(_)) | None => None,
    };
    let unit = index.and_then(|at| Some((at, ctx.logical_unit(state.spec.luns.get(at)?.volume)?)));
    let Some((at, unit)) = unit else {
        let is_away = index
            .and_then(|at| state.spec.luns.get(at))
            .is_some_and(|entry| entry.volume == VolumeId::UNAVAILABLE);
        return match address {
            Some(LunAddress::WellKnown(REPORT_LUNS_WLUN)) => {
                route_without_volume(arrived.cdb, LunWithoutVolume::WellKnown)
            }
            _ if is_away => route_without_volume(arrived.cdb, LunWithoutVolume::Away),
            _ => route_without_volume(arrived.cdb, LunWithoutVolume::NoUnit),
        };
    };
    let parsed = unit.command_set(state.spec.explicit_alua).parse(arrived.cdb);
    let (descriptor, logical) = (unit.uses_descriptor_sense(), unit.view.geometry.logical);
    let refused = |sense| Route::Refused(Reply { descriptor, ..Reply::check_condition(sense) });
    // SAM-5 §5.14: INQUIRY, REPORT LUNS and REQUEST SENSE report no unit attention.
    let exempt = matches!(arrived.cdb.first(), Some(0x03 | 0x12 | 0xa0));
    let lun = if exempt { None } else { ctx.nexus_state_mut(key.nexus).luns.get_mut(at) };
    if let Some(code) = lun.and_then(|lun| lun.attentions.take_oldest()) {
        // It may tell of tasks that others have ended: no answer of one of them may come behind it.
        let reply = Reply::check_condition(status::unit_attention_sense(code));
        return Route::Refused(Reply { descriptor, fence: true, ..reply });
    }
    // Likewise of deferred errors (SPC-4 §4.5.5); what is refused by one is not executed.
    let lun = if exempt { None } else { ctx.nexus_state_mut(key.nexus).luns.get_mut(at) };
    if let Some(sense) = lun.and_then(|lun| lun.deferred.take()) {
        return Route::Refused(Reply { descriptor, deferred: true, ..Reply::check_condition(sense) });
    }
    match (parsed, ExecutedAttribute::from_task_attribute(arrived.attr)) {
        (Err(error), _) => refused(error.sense()),
        (Ok(_), None) => refused(Sense::INVALID_MESSAGE_ERROR),
        (Ok(command), Some(_)) if is_wrong_direction(command.data_transfer(logical), arrived) => {
            refused(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
        }
        (Ok(command), Some(attribute)) => Route::Unit { command, at, attribute },
    }
}

/// Whether the initiator takes where the command would have it send: then the command may not end as if its
/// data had been moved. Less than it names, none included, is told by the residual; so is what a READ cannot
/// send to an initiator that says it sends.
fn is_wrong_direction(data: DataTransfer, arrived: &IncomingCommand<'_>) -> bool {
    match data {
        DataTransfer::Out(len) => len > 0 && arrived.data_out == 0 && arrived.data_in > 0,
        DataTransfer::In(_) | DataTransfer::None => false,
    }
}

fn route_without_volume(cdb: &[u8], lun: LunWithoutVolume) -> Route {
    let refused = |sense| Route::Refused(Reply::check_condition(sense));
    match (CommandSet::BASIC.parse(cdb), lun) {
        (
            Ok(command @ (Command::Inquiry(_) | Command::ReportLuns { .. } | Command::RequestSense { .. })),
            _,
        ) => Route::WithoutVolume { command, lun },
        (Ok(command @ Command::TestUnitReady), LunWithoutVolume::WellKnown) => {
            Route::WithoutVolume { command, lun }
        }
        (Ok(_), LunWithoutVolume::WellKnown) => refused(Sense::INVALID_OPCODE),
        (Err(error), LunWithoutVolume::WellKnown) => refused(error.sense()),
        // It may come back, and hosts are to wait for it and keep their disk.
        (Ok(_) | Err(_), LunWithoutVolume::Away) => refused(Sense::BECOMING_READY),
        (Ok(_) | Err(_), LunWithoutVolume::NoUnit) => refused(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
    }
}

/// Executes a task whose turn has come.
pub(crate) fn start_task(ctx: &mut ExecContext, slot: u32) {
    if let Err(refusal) = command_admission::check_admission(ctx, slot) {
        return ctx.respond_refused(slot, refusal);
    }
    let command = ctx.tasks.get(slot).command;
    match command {
        Command::TestUnitReady => ctx.complete_task(slot, Reply::good(0)),
        Command::Read(transfer) => block::read(ctx, slot, transfer),
        Command::Write(transfer) => block::write(ctx, slot, transfer),
        Command::WriteAndVerify(verify) => block::write_and_verify(ctx, slot, verify),
        Command::OrWrite(transfer) => block::or_write(ctx, slot, transfer),
        Command::WriteAtomic(write) => block::write_atomic(ctx, slot, write),
        Command::PreFetch(extent) => cache::prefetch(ctx, slot, extent),
        Command::SynchronizeCache(extent) => cache::synchronize_cache(ctx, slot, extent),
        Command::Verify(verify) => compare::start_verify(ctx, slot, verify),
        Command::CompareAndWrite(transfer) => compare::compare_and_write(ctx, slot, transfer),
        Command::WriteSame(same) => provision::write_same(ctx, slot, same),
        Command::Unmap { anchor, list_len, .. } => provision::unmap(ctx, slot, anchor, list_len),
        Command::GetLbaStatus { lba, .. } => provision::get_lba_status(ctx, slot, lba),
        Command::Inquiry(inquiry) => identify::inquiry(ctx, slot, inquiry),
        Command::ReadCapacity10 => identify::read_capacity(ctx, slot, None),
        Command::ReadCapacity16 { allocation } => identify::read_capacity(ctx, slot, Some(allocation)),
        Command::ReportLuns { select, allocation } => identify::report_luns(ctx, slot, select, allocation),
        Command::RequestSense { descriptor, allocation } => {
            report::request_sense(ctx, slot, descriptor, allocation);
        }
        Command::ModeSense(request) => mode_pages::mode_sense(ctx, slot, request),
        Command::ModeSelect(select) => mode_pages::mode_select(ctx, slot, select),
        Command::LogSense(request) => log_pages::log_sense(ctx, slot, request),
        Command::ReportOpcodes(request) => report::report_opcodes(ctx, slot, request),
        Command::ReportTaskManagement { extended, allocation } => {
            report::report_task_management(ctx, slot, extended, allocation);
        }
        Command::ReadDefects(request) => report::read_defect_data(ctx, slot, request),
        Command::ReadBuffer(access) => report::read_buffer(ctx, slot, access),
        Command::WriteBuffer(access) => report::write_buffer(ctx, slot, access),
        // The self-test is whether the logical unit answers at all, and it does.
        Command::SendDiagnostic(_) => ctx.complete_task(slot, Reply::good(0)),
        Command::StartStop(what) => power::start_stop_unit(ctx, slot, what),
        Command::PreventAllow { prevent } => power::prevent_allow_medium_removal(ctx, slot, prevent),
        Command::ReportTargetPortGroups { extended, allocation } => {
            alua::report_target_port_groups(ctx, slot, extended, allocation);
        }
        Command::SetTargetPortGroups { list_len } => alua::set_target_port_groups(ctx, slot, list_len),
        Command::ReserveIn { .. } => reservation::persistent_reserve_in(ctx, slot),
        Command::ReserveOut(out) => reservation::persistent_reserve_out(ctx, slot, out),
        Command::Reserve => reservation::spc2_reserve_release(ctx, slot, true),
        Command::Release => reservation::spc2_reserve_release(ctx, slot, false),
        Command::ExtendedCopy { list_len } => copy::start_extended_copy(ctx, slot, list_len),
        Command::CopyResults { action, list_id, allocation } => {
            copy::receive_copy_results(ctx, slot, action, list_id, allocation);
        }
        Command::Sanitize(sanitize) => sanitize::start_sanitize(ctx, slot, sanitize),
        Command::FormatUnit(format) => sanitize::start_format(ctx, slot, format),
    }
}

/// Payload of a task is here.
pub(crate) fn handle_data(ctx: &mut ExecContext, slot: u32, data: Sg) {
    match ctx.tasks.get(slot).command {
        Command::Write(transfer) => block::submit_write(ctx, slot, transfer, data),
        Command::WriteAndVerify(verify) => block::submit_write_and_verify(ctx, slot, verify, data),
        Command::OrWrite(transfer) => {
            ctx.submit_op(slot, Op::Or(block::transfer_span(transfer)), Payload::Out(data), 0);
        }
        Command::WriteAtomic(write) => {
            ctx.submit_op(slot, Op::WriteAtomic(block::transfer_span(write.transfer)), Payload::Out(data), 0);
        }
        Command::CompareAndWrite(transfer) => {
            ctx.submit_op(slot, Op::CompareAndWrite(block::transfer_span(transfer)), Payload::Out(data), 0);
        }
        Command::Verify(verify) => compare::handle_verify_data(ctx, slot, verify, data),
        Command::WriteSame(same) => provision::handle_write_same_data(ctx, slot, same, data),
        Command::Unmap { .. } => provision::handle_unmap_list(ctx, slot, &data),
        Command::ModeSelect(select) => mode_pages::apply_parameter_list(ctx, slot, select, &data),
        Command::WriteBuffer(_) => report::store_echo_buffer(ctx, slot, &data),
        Command::SetTargetPortGroups { .. } => alua::apply_parameter_list(ctx, slot, &data),
        Command::ReserveOut(out) => reservation::apply_parameter_list(ctx, slot, out, &data),
        Command::ExtendedCopy { .. } => copy::apply_parameter_list(ctx, slot, &data),
        Command::Sanitize(sanitize) => sanitize::apply_parameter_list(ctx, slot, sanitize, &data),
        Command::FormatUnit(format) => sanitize::apply_format_list(ctx, slot, format, &data),
        // No other asks for data.
        _ => ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE),
    }
}

/// A task's operation has ended.
pub(crate) fn handle_io_done(ctx: &mut ExecContext, slot: u32, done: IoCompletion) {
    let IoCompletion { result, payload, .. } = done;
    match (&ctx.tasks.get(slot).job, result) {
        (AfterOperation::Copy(_), result) => copy::handle_io_done(ctx, slot, result, payload),
        (AfterOperation::Sanitize(_), result) => sanitize::handle_io_done(ctx, slot, result),
        (AfterOperation::Background(_), result) => cache::handle_background_ended(ctx, slot, result.err()),
        (_, Err(failure)) => fail_task(ctx, slot, failure),
        (AfterOperation::Plain, Ok(outcome)) => match ctx.tasks.get(slot).command {
            Command::Read(transfer) => block::finish_read(ctx, slot, transfer, payload),
            Command::GetLbaStatus { allocation, .. } => {
                provision::finish_lba_status(ctx, slot, allocation, outcome);
            }
            _ => respond_good(ctx, slot),
        },
        (AfterOperation::Flush, Ok(_)) => block::flush_after_write(ctx, slot),
        (AfterOperation::LastFlush, Ok(_)) => respond_good(ctx, slot),
        (AfterOperation::VerifyAfterWrite, Ok(_)) => block::verify_after_write(ctx, slot, payload),
        (AfterOperation::FlushAfterRead(_), Ok(_)) => block::finish_fua_read(ctx, slot),
        (AfterOperation::CompareOne(_), Ok(_)) => compare::compare_next_blocks(ctx, slot, payload),
        (AfterOperation::MappedBlockCount(_), Ok(outcome)) => {
            log_pages::handle_extents_counted(ctx, slot, outcome)
        }
        (AfterOperation::Eject, Ok(_)) => power::eject_medium(ctx, slot),
        // Asks are no operations.
        (AfterOperation::CopyList(_) | AfterOperation::Requests(_) | AfterOperation::Refreshed, Ok(_)) => {
            ctx.respond_check_condition(slot, Sense::INTERNAL_TARGET_FAILURE)
        }
    }
}

/// Ends a task of the server's own whose volume is served no more.
pub(crate) fn end_internal_task(ctx: &mut ExecContext, slot: u32) {
    match ctx.tasks.get(slot).job {
        AfterOperation::Background(_) => cache::handle_background_ended(ctx, slot, None),
        _ => sanitize::fail_sanitize(ctx, slot),
    }
}

fn fail_task(ctx: &mut ExecContext, slot: u32, failure: Failure) {
    let task = ctx.tasks.get(slot);
    let reply = match task.command {
        Command::CompareAndWrite(_) if matches!(task.job, AfterOperation::LastFlush) => {
            status::reply_for_flush_after_swap(failure)
        }
        Command::CompareAndWrite(_) => status::compare_and_write_reply(failure),
        _ => status::reply_for_failure(failure),
    };
    ctx.complete_task(slot, reply);
}

/// The volume's home has answered a task.
pub(crate) fn handle_volume_answer(ctx: &mut ExecContext, slot: u32, result: Result<(), Refusal>) {
    let task = ctx.tasks.get_mut(slot);
    match (&mut task.job, result) {
        (AfterOperation::Sanitize(_), result) => sanitize::handle_volume_answer(ctx, slot, result),
        (_, Err(refusal)) => ctx.respond_refused(slot, refusal),
        (AfterOperation::Requests(requests), Ok(())) => match requests.pop_front() {
            Some(request) => ctx.request_volume_change(slot, request),
            None => respond_good(ctx, slot),
        },
        (AfterOperation::Refreshed, Ok(())) => match command_admission::check_admission(ctx, slot) {
            Ok(()) => reservation::report_reservations(ctx, slot),
            Err(refusal) => ctx.respond_refused(slot, refusal),
        },
        (_, Ok(())) => respond_good(ctx, slot),
    }
}

/// Ends a task that moved what its CDB says, or nothing to the initiator.
pub(crate) fn respond_good(ctx: &mut ExecContext, slot: u32) {
    let logical = ctx.logical_unit_of(slot).view.geometry.logical;
    let transferred = match ctx.tasks.get(slot).command.data_transfer(logical) {
        DataTransfer::None | DataTransfer::In(_) => 0,
        DataTransfer::Out(len) => len,
    };
    ctx.complete_task(slot, Reply::good(transferred));
}
