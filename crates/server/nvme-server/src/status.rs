//! The one place where the volume's refusals and faults become NVMe status.
//!
//! Do Not Retry is set if the same command would fail again. It is clear if another path could succeed, or if
//! the condition passes by itself; so multipath hosts use another path, and others retry.

use nvme::{Completion, Status};
use volume::{Access, Failure, Fault, Refusal, UnservableReason, VolumeId};

/// How a command ends that the volume refused or failed.
pub(crate) fn of(failure: Failure) -> Status {
    match failure {
        Failure::Refused(refusal) => refused(refusal),
        Failure::Failed(fault) => failed(fault),
    }
}

/// How both halves of a fused pair end that failed: what is not known not to have been done must not be
/// repeated, since the pair would find its own data.
pub(crate) fn of_pair(failure: Failure) -> Status {
    match failure {
        Failure::Failed(Fault::PathLost | Fault::Aborted | Fault::Internal) => of(failure).final_(),
        Failure::Failed(_) | Failure::Refused(_) => of(failure),
    }
}

/// The status of both halves of a fused pair that was written but whose flush (FUA) then failed: final, since a retry
/// would compare with the new data.
pub(crate) fn of_failed_flush_after_pair(failure: Failure) -> Status {
    of(failure).final_()
}

/// What passes by itself is to be tried again after a delay, by hosts that know of delays.
pub(crate) fn delayed(completion: Completion, delays: impl FnOnce() -> bool) -> Completion {
    if completion.status == Status::COMMAND_INTERRUPTED && delays() {
        return Completion { status: completion.status.after_first_delay(), ..completion };
    }
    completion
}

/// How a command ends that the volume refused.
pub(crate) fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Conflict | Refusal::NotRegistered => Status::RESERVATION_CONFLICT.final_(),
        Refusal::Busy => Status::COMMAND_INTERRUPTED,
        Refusal::Inaccessible(access) => inaccessible(access),
        Refusal::OutOfRange => Status::LBA_OUT_OF_RANGE.final_(),
        Refusal::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.final_(),
        Refusal::NotReady(why) => not_ready(why),
        Refusal::Unsupported => Status::INVALID_OPCODE.final_(),
        // Of a fused pair that is longer than ACWU (NVM Command Set §4.1.5.2).
        Refusal::AtomicUnit => Status::ATOMIC_WRITE_UNIT_EXCEEDED.final_(),
        Refusal::InvalidRelease | Refusal::InvalidAction | Refusal::NothingReserved => {
            Status::INVALID_FIELD.final_()
        }
        // As many blocks are marked bad as can be: those must be written first.
        Refusal::NoMarkSpace => Status::CAPACITY_EXCEEDED.final_(),
        Refusal::NoRegistrationSpace | Refusal::RemovalPrevented => Status::INTERNAL_ERROR.final_(),
        Refusal::NotDurable | Refusal::NotFenced => Status::INTERNAL_ERROR,
    }
}

/// How a command ends on a namespace whose volume is not here: one that is away for now may come back, and hosts
/// are to keep their disk.
pub(crate) fn not_here(volume: VolumeId) -> Status {
    if volume == VolumeId::AWAY { Status::NAMESPACE_NOT_READY } else { Status::INVALID_NAMESPACE.final_() }
}

/// How a path answers that does not serve (NVMe Base §8.1.4).
fn inaccessible(access: Access) -> Status {
    match access {
        Access::Inaccessible => Status::ANA_INACCESSIBLE,
        Access::PersistentLoss => Status::ANA_PERSISTENT_LOSS,
        Access::Transition => Status::ANA_TRANSITION,
        // Such paths serve; who is refused by them all the same may try again.
        Access::Optimized | Access::NonOptimized => Status::INTERNAL_PATH_ERROR,
    }
}

fn not_ready(why: UnservableReason) -> Status {
    match why {
        UnservableReason::Stopped => Status::NAMESPACE_NOT_READY,
        UnservableReason::NoMedium => Status::NAMESPACE_NOT_READY.final_(),
        UnservableReason::Sanitizing(_) => Status::SANITIZE_IN_PROGRESS,
        UnservableReason::SanitizeFailed => Status::SANITIZE_FAILED.final_(),
        UnservableReason::SyncFailed => Status::WRITE_FAULT.final_(),
        UnservableReason::Removed => Status::INVALID_NAMESPACE.final_(),
    }
}

fn failed(fault: Fault) -> Status {
    match fault {
        Fault::Unwritable(_) => Status::WRITE_FAULT.final_(),
        Fault::Medium(_) => Status::UNRECOVERED_READ_ERROR.final_(),
        Fault::Miscompare(_) => Status::COMPARE_FAILURE.final_(),
        Fault::NoSpace => Status::CAPACITY_EXCEEDED.final_(),
        Fault::Sync => Status::WRITE_FAULT.final_(),
        Fault::PathLost => Status::INTERNAL_PATH_ERROR,
        // The host did not ask for that, or the command would have another status.
        Fault::Aborted => Status::COMMAND_INTERRUPTED,
        Fault::Internal => Status::INTERNAL_ERROR,
    }
}
