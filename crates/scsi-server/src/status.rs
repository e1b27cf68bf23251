//! The one place where the volume's words become SCSI's: refusals and faults to status and sense.

use scsi::sense::{Additional, Sense};
use scsi::status::Status;
use volume::{Access, Cause, Failure, Fault, Refusal, Why};

use crate::step::Reply;

impl Reply {
    /// A status without sense data, and no data moved.
    pub fn plain(status: Status) -> Self {
        Reply { status, sense: None, descriptor: false, transferred: 0 }
    }

    /// GOOD, after so many bytes.
    pub fn good(transferred: u64) -> Self {
        Reply { transferred, ..Reply::plain(Status::GOOD) }
    }

    /// CHECK CONDITION with this sense data.
    pub fn check(sense: Sense) -> Self {
        Reply { sense: Some(sense), ..Reply::plain(Status::CHECK_CONDITION) }
    }
}

/// How a task ends that the volume refused or failed.
pub(crate) fn reply(failure: Failure) -> Reply {
    match failure {
        Failure::Refused(refusal) => refused(refusal),
        Failure::Failed(fault) => failed(fault),
    }
}

/// How a task ends that the volume refused.
pub(crate) fn refused(refusal: Refusal) -> Reply {
    let sense = match refusal {
        Refusal::Conflict | Refusal::NotRegistered => return Reply::plain(Status::RESERVATION_CONFLICT),
        Refusal::Busy => return Reply::plain(Status::BUSY),
        Refusal::Inaccessible(access) => match inaccessible(access) {
            Some(sense) => sense,
            None => return Reply::plain(Status::BUSY),
        },
        Refusal::OutOfRange => Sense::LBA_OUT_OF_RANGE,
        Refusal::ReadOnly => Sense::WRITE_PROTECTED,
        Refusal::AtomicUnit => Sense::INVALID_FIELD_IN_CDB,
        Refusal::NotReady(why) => not_ready(why),
        Refusal::Unsupported => Sense::INVALID_OPCODE,
        Refusal::NoRegistrationSpace => Sense::INSUFFICIENT_REGISTRATION_RESOURCES,
        Refusal::InvalidRelease => Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION,
        Refusal::InvalidAction => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        Refusal::NotDurable | Refusal::NotFenced => Sense::INTERNAL_TARGET_FAILURE,
        Refusal::RemovalPrevented => Sense::MEDIUM_REMOVAL_PREVENTED,
    };
    Reply::check(sense)
}

fn inaccessible(access: Access) -> Option<Sense> {
    match access {
        Access::Transition => Some(Sense::ALUA_TRANSITION),
        // Never Standby, which would have to serve PERSISTENT RESERVE OUT, nor Offline.
        Access::Inaccessible | Access::PersistentLoss => Some(Sense::ALUA_UNAVAILABLE),
        Access::Optimized | Access::NonOptimized => None,
    }
}

fn not_ready(why: Why) -> Sense {
    match why {
        Why::Stopped => Sense::INITIALIZING_COMMAND_REQUIRED,
        Why::NoMedium => Sense::MEDIUM_NOT_PRESENT,
        Why::Sanitizing(progress) => Sense::SANITIZE_IN_PROGRESS.with_progress(progress),
        Why::SanitizeFailed => Sense::SANITIZE_FAILED,
        Why::SyncFailed => Sense::WRITE_ERROR,
        Why::Removed => Sense::LOGICAL_UNIT_NOT_SUPPORTED,
    }
}

fn failed(fault: Fault) -> Reply {
    let sense = match fault {
        Fault::Medium(lba) => Sense::UNRECOVERED_READ_ERROR.with_information(lba),
        Fault::Miscompare(offset) => Sense::MISCOMPARE_DURING_VERIFY.with_information(u64::from(offset)),
        Fault::Sync => Sense::WRITE_ERROR,
        Fault::NoSpace => Sense::SPACE_ALLOCATION_FAILED,
        Fault::PathLost => Sense::INTERNAL_TARGET_FAILURE,
        // The task was not aborted by the initiator, or it would have no answer.
        Fault::Aborted => return Reply::plain(Status::BUSY),
        Fault::Internal => Sense::INTERNAL_TARGET_FAILURE,
    };
    Reply::check(sense)
}

/// The unit attention that a notice becomes.
pub(crate) fn attention(cause: Cause) -> Additional {
    let sense = match cause {
        Cause::RegistrationsPreempted => Sense::REGISTRATIONS_PREEMPTED,
        Cause::ReservationsReleased => Sense::RESERVATIONS_RELEASED,
        Cause::ReservationsPreempted => Sense::RESERVATIONS_PREEMPTED,
        Cause::CapacityChanged => Sense::CAPACITY_DATA_HAS_CHANGED,
        Cause::AccessChanged => Sense::ASYMMETRIC_ACCESS_STATE_CHANGED,
        Cause::IdentityChanged => Sense::INQUIRY_DATA_HAS_CHANGED,
        Cause::InventoryChanged => Sense::REPORTED_LUNS_DATA_HAS_CHANGED,
        Cause::WriteProtectChanged | Cause::SettingsChanged => Sense::MODE_PARAMETERS_CHANGED,
        Cause::MediumChanged => Sense::MEDIUM_MAY_HAVE_CHANGED,
        // Told by INQUIRY and TEST UNIT READY, not by an attention of its own.
        Cause::SanitizeDone => Sense::MODE_PARAMETERS_CHANGED,
        Cause::TasksCleared => Sense::COMMANDS_CLEARED,
        Cause::Reset => Sense::BUS_DEVICE_RESET,
    };
    sense.code
}
