//! Whether a command may be executed now: the path's state, then reservations, then the medium. Checks that
//! depend on blocks are made with the operation, by the volume's view.

use scsi::Command;
use scsi::cdb::ConflictClass;
use volume::CommandClass;
use volume::{PathAccess, Refusal, UnservableReason};

use crate::context::ExecContext;

/// Judges the task's command. What another gateway executes it judges; what is answered here is answered by what the
/// view says.
pub(crate) fn check_admission(ctx: &ExecContext, slot: u32) -> Result<(), Refusal> {
    let view = &ctx.logical_unit_of(slot).view;
    if view.decided_elsewhere && !is_answered_by_view(&ctx.tasks.get(slot).command) {
        return Ok(());
    }
    check_admission_here(ctx, slot)
}

/// Whether a command neither reads nor changes anything but what the view says.
fn is_answered_by_view(command: &Command) -> bool {
    matches!(
        command,
        Command::TestUnitReady
            | Command::ReadCapacity10
            | Command::ReadCapacity16 { .. }
            | Command::ModeSense(_)
            | Command::LogSense(_)
            | Command::ReserveIn { .. }
    )
}

fn check_admission_here(ctx: &ExecContext, slot: u32) -> Result<(), Refusal> {
    let task = ctx.tasks.get(slot);
    let who = &ctx.nexus_of(slot).nexus;
    let unit = ctx.logical_unit_of(slot);
    let view = &unit.view;
    let command = &task.command;
    let access = view.path_access(who.port);
    let in_standby = access == PathAccess::Standby && is_allowed_in_standby(command);
    if !access.allows_io() && !in_standby && !is_allowed_on_any_path(command) {
        return Err(Refusal::Inaccessible(access));
    }
    let class = match command.conflict_class() {
        ConflictClass::Never => None,
        ConflictClass::Legacy => Some(CommandClass::Status),
        ConflictClass::Read => Some(CommandClass::Read),
        ConflictClass::Write => Some(CommandClass::Write),
    };
    // SPC-2 §5.5.1: so also for the holder of a RESERVE; its PERSISTENT RESERVE OUT the volume refuses.
    let mixes = matches!(command, Command::ReserveIn { .. }) && view.reservations.legacy_holder().is_some();
    if mixes || class.is_some_and(|class| !view.reservations.admits(&who.identity, class)) {
        return Err(Refusal::Conflict);
    }
    match unit.not_ready_reason() {
        Some(why) if !is_allowed_while_not_ready(command, why) => Err(Refusal::NotReady(why)),
        Some(_) | None => Ok(()),
    }
}

/// SPC-4 §5.15.2.4.5: what an unavailable path, or one in transition, still serves.
fn is_allowed_on_any_path(command: &Command) -> bool {
    matches!(
        command,
        Command::Inquiry(_)
            | Command::ReportLuns { .. }
            | Command::RequestSense { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::SetTargetPortGroups { .. }
    )
}

/// SPC-4 §5.15.2.4.4: what a path in standby serves besides.
fn is_allowed_in_standby(command: &Command) -> bool {
    matches!(
        command,
        Command::LogSense(_)
            | Command::ModeSense(_)
            | Command::ModeSelect(_)
            | Command::ReserveIn { .. }
            | Command::ReserveOut(_)
            | Command::SendDiagnostic(_)
            | Command::ReadBuffer(_)
            | Command::WriteBuffer(_)
    )
}

/// Whether a command is executed although the volume is not ready.
fn is_allowed_while_not_ready(command: &Command, why: UnservableReason) -> bool {
    match why {
        // SBC-3 §4.11.2; what tells of the device and touches nothing is let through.
        UnservableReason::Sanitizing(_) | UnservableReason::Formatting(_) => is_informational(command),
        UnservableReason::SanitizeFailed => {
            is_informational(command) || matches!(command, Command::Sanitize(_) | Command::FormatUnit(_))
        }
        UnservableReason::NoMedium | UnservableReason::Stopped => !needs_medium(command),
        // The gate refuses what would write.
        UnservableReason::SyncFailed => true,
        UnservableReason::Removed => false,
    }
}

fn is_informational(command: &Command) -> bool {
    matches!(
        command,
        Command::Inquiry(_)
            | Command::ReportLuns { .. }
            | Command::RequestSense { .. }
            | Command::LogSense(_)
            | Command::ReportOpcodes(_)
            | Command::ReportTaskManagement { .. }
            | Command::ReportTargetPortGroups { .. }
            | Command::ReserveIn { .. }
    )
}

fn needs_medium(command: &Command) -> bool {
    match command {
        Command::TestUnitReady
        | Command::Read(_)
        | Command::Write(_)
        | Command::WriteAndVerify(_)
        | Command::Verify(_)
        | Command::CompareAndWrite(_)
        | Command::OrWrite(_)
        | Command::WriteAtomic(_)
        | Command::WriteSame(_)
        | Command::Unmap { .. }
        | Command::GetLbaStatus { .. }
        | Command::PreFetch(_)
        | Command::SynchronizeCache(_)
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::ReadDefects(_)
        | Command::ExtendedCopy { .. }
        | Command::Sanitize(_)
        | Command::FormatUnit(_) => true,
        Command::RequestSense { .. }
        | Command::Inquiry(_)
        | Command::ModeSense(_)
        | Command::ModeSelect(_)
        | Command::LogSense(_)
        | Command::StartStop(_)
        | Command::PreventAllow { .. }
        | Command::ReportLuns { .. }
        | Command::ReportOpcodes(_)
        | Command::ReportTaskManagement { .. }
        | Command::ReportTargetPortGroups { .. }
        | Command::SetTargetPortGroups { .. }
        | Command::ReserveIn { .. }
        | Command::ReserveOut(_)
        | Command::Reserve
        | Command::Release
        | Command::CopyResults { .. }
        | Command::SendDiagnostic(_)
        | Command::ReadBuffer(_)
        | Command::WriteBuffer(_) => false,
    }
}
