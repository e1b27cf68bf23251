//! The one place where the volume's refusals and faults become SCSI status and sense.

use scsi::alua::AccessState;
use scsi::extended_copy::CopySegment;
use scsi::mode;
use scsi::sense::{AdditionalSenseCode, Sense, SenseKey};
use scsi::status::Status;
use volume::{Failure, Fault, NoticeCause, PathAccess, Refusal, UnservableReason};

use crate::step::Reply;

impl Reply {
    /// A status without sense data, and no data moved.
    pub fn with_status(status: Status) -> Self {
        Reply { status, sense: None, descriptor: false, deferred: false, fence: false, transferred: 0 }
    }

    /// GOOD, after so many bytes.
    pub fn good(transferred: u64) -> Self {
        Reply { transferred, ..Reply::with_status(Status::GOOD) }
    }

    /// CHECK CONDITION with this sense data.
    pub fn check_condition(sense: Sense) -> Self {
        Reply { sense: Some(sense), ..Reply::with_status(Status::CHECK_CONDITION) }
    }
}

/// How a task ends that the volume refused or failed.
pub(crate) fn reply_for_failure(failure: Failure) -> Reply {
    match failure {
        Failure::Refused(refusal) => reply_for_refusal(refusal),
        Failure::Failed(fault) => reply_for_fault(fault),
    }
}

/// How a COMPARE AND WRITE ends that the volume refused or failed. What may have been done must not be repeated,
/// by this path or another: it would find its own data. ABORTED COMMAND and NOT READY invite to that.
pub(crate) fn compare_and_write_reply(failure: Failure) -> Reply {
    match failure {
        Failure::Failed(Fault::PathLost | Fault::Aborted | Fault::Internal) => {
            Reply::check_condition(Sense::INTERNAL_TARGET_FAILURE)
        }
        Failure::Failed(_) | Failure::Refused(_) => reply_for_failure(failure),
    }
}

/// How a COMPARE AND WRITE ends whose flush (FUA) failed or was refused: it was done before.
pub(crate) fn reply_for_flush_after_swap(failure: Failure) -> Reply {
    match failure {
        Failure::Failed(Fault::Sync | Fault::NoSpace | Fault::Unwritable(_)) => reply_for_failure(failure),
        Failure::Failed(_) | Failure::Refused(_) => Reply::check_condition(Sense::INTERNAL_TARGET_FAILURE),
    }
}

/// How a task ends that the volume refused.
pub(crate) fn reply_for_refusal(refusal: Refusal) -> Reply {
    let sense = match refusal {
        Refusal::Conflict | Refusal::NotRegistered => {
            return Reply::with_status(Status::RESERVATION_CONFLICT);
        }
        Refusal::Busy => return Reply::with_status(Status::BUSY),
        Refusal::Inaccessible(access) => match path_access_sense(access) {
            Some(sense) => sense,
            None => return Reply::with_status(Status::BUSY),
        },
        Refusal::OutOfRange => Sense::LBA_OUT_OF_RANGE,
        Refusal::ReadOnly => Sense::WRITE_PROTECTED,
        Refusal::AtomicUnit | Refusal::NothingReserved => Sense::INVALID_FIELD_IN_CDB,
        Refusal::NotReady(why) => unservable_sense(why),
        Refusal::Unsupported => Sense::INVALID_OPCODE,
        // No SCSI command marks blocks bad, and none that clears marks needs space for it.
        Refusal::NoMarkSpace => Sense::INTERNAL_TARGET_FAILURE,
        Refusal::NoRegistrationSpace => Sense::INSUFFICIENT_REGISTRATION_RESOURCES,
        Refusal::InvalidRelease => Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION,
        Refusal::InvalidAction => Sense::INVALID_FIELD_IN_PARAMETER_LIST,
        Refusal::NotDurable | Refusal::NotFenced => Sense::INTERNAL_TARGET_FAILURE,
        Refusal::RemovalPrevented => Sense::MEDIUM_REMOVAL_PREVENTED,
    };
    Reply::check_condition(sense)
}

fn path_access_sense(access: PathAccess) -> Option<Sense> {
    match access {
        PathAccess::Transition => Some(Sense::ALUA_TRANSITION),
        PathAccess::Standby => Some(Sense::ALUA_STANDBY),
        // Never Offline.
        PathAccess::Inaccessible | PathAccess::PersistentLoss => Some(Sense::ALUA_UNAVAILABLE),
        PathAccess::Optimized | PathAccess::NonOptimized => None,
    }
}

/// How an EXTENDED COPY ends that may not go on; `byte`: the segment's field that is to blame.
pub(crate) fn copy_refusal_reply(refusal: Refusal, byte: u16) -> Reply {
    match refusal {
        Refusal::OutOfRange => Reply::check_condition(CopySegment::failure_sense(byte)),
        Refusal::Inaccessible(_) | Refusal::NotReady(UnservableReason::Removed) => {
            Reply::check_condition(Sense::COPY_TARGET_NOT_REACHABLE)
        }
        Refusal::NotReady(_) => Reply::check_condition(Sense::COPY_FAILED),
        other => reply_for_refusal(other),
    }
}

/// How an EXTENDED COPY ends one of whose operations failed.
pub(crate) fn copy_failure_reply(failure: Failure) -> Reply {
    match failure {
        Failure::Refused(refusal) => copy_refusal_reply(refusal, 0),
        Failure::Failed(_) => Reply::check_condition(Sense::COPY_FAILED),
    }
}

/// What REQUEST SENSE tells of a logical unit that serves this path in such a state.
pub(crate) fn unit_state_sense(access: PathAccess, why: Option<UnservableReason>) -> Sense {
    path_access_sense(access).or(why.map(unservable_sense)).unwrap_or(Sense::NO_SENSE)
}

/// How a path's state is shown.
pub(crate) fn access_state(access: PathAccess) -> AccessState {
    match access {
        PathAccess::Optimized => AccessState::OPTIMIZED,
        PathAccess::NonOptimized => AccessState::NON_OPTIMIZED,
        PathAccess::Inaccessible | PathAccess::PersistentLoss => AccessState::UNAVAILABLE,
        PathAccess::Transition => AccessState::TRANSITIONING,
        PathAccess::Standby => AccessState::STANDBY,
    }
}

fn unservable_sense(why: UnservableReason) -> Sense {
    match why {
        UnservableReason::Stopped => Sense::INITIALIZING_COMMAND_REQUIRED,
        UnservableReason::NoMedium => Sense::MEDIUM_NOT_PRESENT,
        UnservableReason::Sanitizing(progress) => Sense::SANITIZE_IN_PROGRESS.with_progress(progress),
        UnservableReason::Formatting(progress) => Sense::FORMAT_IN_PROGRESS.with_progress(progress),
        UnservableReason::SanitizeFailed => Sense::SANITIZE_FAILED,
        UnservableReason::SyncFailed => Sense::WRITE_ERROR,
        UnservableReason::Removed => Sense::LOGICAL_UNIT_NOT_SUPPORTED,
    }
}

fn reply_for_fault(fault: Fault) -> Reply {
    let sense = match fault {
        Fault::Medium(lba) => Sense::UNRECOVERED_READ_ERROR.with_information(lba),
        Fault::Unwritable(lba) => Sense::WRITE_ERROR.with_information(lba),
        Fault::Miscompare(offset) => Sense::MISCOMPARE_DURING_VERIFY.with_information(u64::from(offset)),
        Fault::Sync => Sense::WRITE_ERROR,
        Fault::NoSpace => Sense::SPACE_ALLOCATION_FAILED,
        // The one key that says neither that the medium is bad nor that the target is.
        Fault::PathLost => Sense::LOGICAL_UNIT_COMMUNICATION_FAILURE,
        // The task was not aborted by the initiator, or it would have no answer. Part of it may be done.
        Fault::Aborted => Sense::ABORTED,
        Fault::Internal => Sense::INTERNAL_TARGET_FAILURE,
    };
    Reply::check_condition(sense)
}

/// The sense data of a unit attention.
pub(crate) fn unit_attention_sense(code: AdditionalSenseCode) -> Sense {
    let sense = Sense::new(SenseKey::UNIT_ATTENTION, code);
    if code == Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED.code {
        return sense.with_information(mode::THRESHOLD_DESCRIPTOR_AT);
    }
    sense
}

/// The unit attention that a notice becomes, if any.
pub(crate) fn unit_attention_code(cause: NoticeCause) -> Option<AdditionalSenseCode> {
    let sense = match cause {
        NoticeCause::RegistrationsPreempted => Sense::REGISTRATIONS_PREEMPTED,
        NoticeCause::ReservationsReleased => Sense::RESERVATIONS_RELEASED,
        NoticeCause::ReservationsPreempted => Sense::RESERVATIONS_PREEMPTED,
        NoticeCause::CapacityChanged => Sense::CAPACITY_DATA_HAS_CHANGED,
        NoticeCause::AccessChanged => Sense::ASYMMETRIC_ACCESS_STATE_CHANGED,
        NoticeCause::IdentityChanged => Sense::INQUIRY_DATA_HAS_CHANGED,
        NoticeCause::InventoryChanged => Sense::REPORTED_LUNS_DATA_HAS_CHANGED,
        NoticeCause::WriteProtectChanged | NoticeCause::SettingsChanged => Sense::MODE_PARAMETERS_CHANGED,
        NoticeCause::MediumChanged => Sense::MEDIUM_MAY_HAVE_CHANGED,
        // SBC-3 §4.11 has none: TEST UNIT READY and REQUEST SENSE tell.
        NoticeCause::SanitizeDone => return None,
        NoticeCause::ThinThresholdReached => Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED,
        NoticeCause::TasksCleared => Sense::COMMANDS_CLEARED,
        NoticeCause::Reset => Sense::BUS_DEVICE_RESET,
    };
    Some(sense.code)
}
