//! The one place where the volume's refusals and faults become NVMe status.
//!
//! Do Not Retry is set if the same command would fail again. It is clear if another path could succeed, or if
//! the condition passes by itself; so multipath hosts use another path, and others retry.

use nvme::{Completion, Status};
use volume::{Failure, Fault, PathAccess, Refusal, UnservableReason, VolumeId};

/// How a command ends that the volume refused or failed.
pub(crate) fn for_failure(failure: Failure) -> Status {
    match failure {
        Failure::Refused(refusal) => for_refusal(refusal),
        Failure::Failed(fault) => for_fault(fault),
    }
}

/// How both halves of a fused pair end that failed: what is not known not to have been done must not be
/// repeated, since the pair would find its own data.
pub(crate) fn for_pair_failure(failure: Failure) -> Status {
    match failure {
        Failure::Failed(Fault::PathLost | Fault::Aborted | Fault::Internal) => {
            for_failure(failure).with_do_not_retry()
        }
        Failure::Failed(_) | Failure::Refused(_) => for_failure(failure),
    }
}

/// The status of both halves of a fused pair that was written but whose flush (FUA) then failed: final, since a retry
/// would compare with the new data.
pub(crate) fn for_flush_failure_after_pair(failure: Failure) -> Status {
    for_failure(failure).with_do_not_retry()
}

/// What passes by itself is to be tried again after a delay, by hosts that know of delays.
pub(crate) fn with_retry_delay(completion: Completion, delays: impl FnOnce() -> bool) -> Completion {
    if completion.status == Status::COMMAND_INTERRUPTED && delays() {
        return Completion { status: completion.status.with_first_retry_delay(), ..completion };
    }
    completion
}

/// How a command ends that the volume refused.
pub(crate) fn for_refusal(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Conflict | Refusal::NotRegistered => Status::RESERVATION_CONFLICT.with_do_not_retry(),
        Refusal::Busy => Status::COMMAND_INTERRUPTED,
        Refusal::Inaccessible(access) => for_path_access(access),
        Refusal::OutOfRange => Status::LBA_OUT_OF_RANGE.with_do_not_retry(),
        Refusal::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry(),
        Refusal::NotReady(why) => for_unservable(why),
        Refusal::Unsupported => Status::INVALID_OPCODE.with_do_not_retry(),
        // Of a fused pair that is longer than ACWU (NVM Command Set §4.1.5.2).
        Refusal::AtomicUnit => Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_do_not_retry(),
        Refusal::InvalidRelease | Refusal::InvalidAction | Refusal::NothingReserved => {
            Status::INVALID_FIELD.with_do_not_retry()
        }
        // As many blocks are marked bad as can be: those must be written first.
        Refusal::NoMarkSpace => Status::CAPACITY_EXCEEDED.with_do_not_retry(),
        Refusal::NoRegistrationSpace | Refusal::RemovalPrevented => {
            Status::INTERNAL_ERROR.with_do_not_retry()
        }
        Refusal::NotDurable | Refusal::NotFenced => Status::INTERNAL_ERROR,
    }
}

/// How a command ends on a namespace whose volume is not here: one that is away for now may come back, and hosts
/// are to keep their disk.
pub(crate) fn volume_absent(volume: VolumeId) -> Status {
    if volume == VolumeId::UNAVAILABLE {
        Status::NAMESPACE_NOT_READY
    } else {
        Status::INVALID_NAMESPACE.with_do_not_retry()
    }
}

/// How a path answers that does not serve (NVMe Base §8.1.4).
fn for_path_access(access: PathAccess) -> Status {
    match access {
        PathAccess::Inaccessible | PathAccess::Standby => Status::ANA_INACCESSIBLE,
        PathAccess::PersistentLoss => Status::ANA_PERSISTENT_LOSS,
        PathAccess::Transition => Status::ANA_TRANSITION,
        // Such paths serve; who is refused by them all the same may try again.
        PathAccess::Optimized | PathAccess::NonOptimized => Status::INTERNAL_PATH_ERROR,
    }
}

fn for_unservable(why: UnservableReason) -> Status {
    match why {
        UnservableReason::Stopped => Status::NAMESPACE_NOT_READY,
        UnservableReason::NoMedium => Status::NAMESPACE_NOT_READY.with_do_not_retry(),
        UnservableReason::Sanitizing(_) => Status::SANITIZE_IN_PROGRESS,
        UnservableReason::Formatting(_) => Status::FORMAT_IN_PROGRESS,
        UnservableReason::SanitizeFailed => Status::SANITIZE_FAILED.with_do_not_retry(),
        UnservableReason::SyncFailed => Status::WRITE_FAULT.with_do_not_retry(),
        UnservableReason::Removed => Status::INVALID_NAMESPACE.with_do_not_retry(),
    }
}

fn for_fault(fault: Fault) -> Status {
    match fault {
        Fault::Unwritable(_) => Status::WRITE_FAULT.with_do_not_retry(),
        Fault::Medium(_) => Status::UNRECOVERED_READ_ERROR.with_do_not_retry(),
        Fault::Miscompare(_) => Status::COMPARE_FAILURE.with_do_not_retry(),
        Fault::NoSpace => Status::CAPACITY_EXCEEDED.with_do_not_retry(),
        Fault::Sync => Status::WRITE_FAULT.with_do_not_retry(),
        Fault::PathLost => Status::INTERNAL_PATH_ERROR,
        // The host did not ask for that, or the command would have another status.
        Fault::Aborted => Status::COMMAND_INTERRUPTED,
        Fault::Internal => Status::INTERNAL_ERROR,
    }
}
