//! The one place where NVMe status codes become results of operations (NVMe Base §3.3.3.2.1, NVM Command Set
//! §1).
//!
//! A command that was answered has ended: nothing of it can land later, so anything that may be retried is
//! [`IoError::NotDone`]. Only commands lost with their connection are [`IoError::InDoubt`], and of these only
//! those that may change blocks: a read can be repeated anywhere.

use std::time::Duration;

use nvme::Status;
use volume::{Failure, Fault, PathAccess, Refusal, UnservableReason};

use crate::IoError;

/// The longest Command Retry Delay that is heeded.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// Before a command is tried again that the controller could not do now, and named no delay for.
const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// What must be known of a command to judge its status.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandContext {
    /// It may change blocks.
    pub(super) writes: bool,
    /// Its caller asked that it end.
    pub(super) cancelled: bool,
    /// Done twice it would find its own doing: half of a pair that compares and writes.
    pub(super) once: bool,
    /// Its first block.
    pub(super) lba: u64,
    /// CRDT 1 to 3.
    pub(super) retry_delays: [Duration; 3],
}

/// What a status means that is not success, of a command that the controller has answered; `None` if
/// the answer is ours: the connection was lost.
pub(super) fn error_of_status(status: Option<Status>, how: CommandContext) -> IoError {
    let Some(status) = status else {
        return match (how.writes, how.cancelled) {
            (true, _) => IoError::InDoubt,
            (false, true) => failed_error(Fault::Aborted),
            (false, false) => IoError::NotDone(Duration::ZERO),
        };
    };
    if how.once && !how.cancelled && !is_surely_unexecuted(status) && is_retryable(status) {
        // The controller does not say that nothing was written.
        return failed_error(Fault::PathLost);
    }
    let again = || IoError::NotDone(retry_delay(status, how.retry_delays));
    let retry_unless_final = |otherwise: IoError| if status.is_do_not_retry() { otherwise } else { again() };
    match status.without_retry_hints() {
        // Of a pair the abort may have met the one half only, and then nothing is written.
        Status::ABORT_REQUESTED | Status::ABORTED_FAILED_FUSED | Status::ABORTED_MISSING_FUSED
            if how.cancelled =>
        {
            failed_error(Fault::Aborted)
        }
        Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::ABORTED_BY_HOST
        | Status::HOST_PATH_ERROR
        | Status::CONTROLLER_PATH_ERROR
        | Status::INTERNAL_PATH_ERROR
        | Status::KEEP_ALIVE_EXPIRED
        | Status::ANA_PERSISTENT_LOSS
        | Status::ANA_INACCESSIBLE
        | Status::ANA_TRANSITION => IoError::NotDone(Duration::ZERO),
        Status::COMMAND_INTERRUPTED | Status::TRANSIENT_TRANSPORT_ERROR => again(),
        Status::PREEMPT_ABORT | Status::RESERVATION_CONFLICT => refused_error(Refusal::Conflict),
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY_RANGE => {
            refused_error(Refusal::ReadOnly)
        }
        Status::LBA_OUT_OF_RANGE => refused_error(Refusal::OutOfRange),
        Status::CAPACITY_EXCEEDED => failed_error(Fault::NoSpace),
        Status::SANITIZE_IN_PROGRESS => refused_error(Refusal::NotReady(UnservableReason::Sanitizing(0))),
        Status::FORMAT_IN_PROGRESS => refused_error(Refusal::NotReady(UnservableReason::Formatting(0))),
        Status::SANITIZE_FAILED => refused_error(Refusal::NotReady(UnservableReason::SanitizeFailed)),
        Status::NAMESPACE_NOT_READY => {
            retry_unless_final(refused_error(Refusal::NotReady(UnservableReason::Stopped)))
        }
        Status::INVALID_NAMESPACE => refused_error(Refusal::NotReady(UnservableReason::Removed)),
        Status::INVALID_OPCODE => refused_error(Refusal::Unsupported),
        Status::COMMAND_SIZE_LIMIT_EXCEEDED | Status::ATOMIC_WRITE_UNIT_EXCEEDED => {
            refused_error(Refusal::AtomicUnit)
        }
        Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR | Status::UNWRITTEN_BLOCK => {
            failed_error(Fault::Medium(how.lba))
        }
        // The standard does not say which byte differs.
        Status::COMPARE_FAILURE => failed_error(Fault::Miscompare(0)),
        _ => retry_unless_final(failed_error(Fault::Internal)),
    }
}

/// Whether a command that ended so has changed nothing, whatever the controller.
fn is_surely_unexecuted(status: Status) -> bool {
    matches!(
        status.without_retry_hints(),
        Status::ABORTED_FAILED_FUSED
            | Status::ABORTED_MISSING_FUSED
            | Status::ANA_PERSISTENT_LOSS
            | Status::ANA_INACCESSIBLE
            | Status::ANA_TRANSITION
            | Status::NAMESPACE_NOT_READY
    )
}

/// Whether a plain command that ended so is tried again.
fn is_retryable(status: Status) -> bool {
    let plain = CommandContext {
        writes: true,
        cancelled: false,
        once: false,
        lba: 0,
        retry_delays: [Duration::ZERO; 3],
    };
    matches!(error_of_status(Some(status), plain), IoError::NotDone(_))
}

/// What a path-related status says of the path.
pub(super) fn access_of_status(status: Status) -> Option<PathAccess> {
    match status.without_retry_hints() {
        Status::ANA_PERSISTENT_LOSS => Some(PathAccess::PersistentLoss),
        Status::ANA_INACCESSIBLE => Some(PathAccess::Inaccessible),
        Status::ANA_TRANSITION => Some(PathAccess::Transition),
        _ => None,
    }
}

/// How long to wait before a retry: what the controller wants (CRD).
fn retry_delay(status: Status, delays: [Duration; 3]) -> Duration {
    match status.retry_delay() {
        0 => DEFAULT_RETRY_DELAY,
        number => {
            delays.get(usize::from(number) - 1).copied().unwrap_or(DEFAULT_RETRY_DELAY).min(RETRY_DELAY_MAX)
        }
    }
}

fn failed_error(fault: Fault) -> IoError {
    IoError::Failed(Failure::Failed(fault))
}

fn refused_error(refusal: Refusal) -> IoError {
    IoError::Failed(Failure::Refused(refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: CommandContext = CommandContext {
        writes: true,
        cancelled: false,
        once: false,
        lba: 7,
        retry_delays: [Duration::from_millis(100), Duration::from_secs(500), Duration::ZERO],
    };

    fn told(status: Status) -> String {
        format!("{:?}", error_of_status(Some(status), HOW))
    }

    #[test]
    fn what_was_answered_is_never_unknown() {
        for bits in 1..0x8000_u16 {
            let status = Status(bits);
            if !status.is_success() {
                assert!(!matches!(error_of_status(Some(status), HOW), IoError::InDoubt), "{bits:04x}");
            }
        }
        assert!(matches!(error_of_status(None, HOW), IoError::InDoubt));
        assert!(matches!(
            error_of_status(None, CommandContext { writes: false, ..HOW }),
            IoError::NotDone(_)
        ));
    }

    #[test]
    fn a_compare_and_write_is_tried_again_only_if_nothing_of_it_was_done() {
        let pair = CommandContext { once: true, ..HOW };
        for status in [
            Status::INTERNAL_PATH_ERROR,
            Status::INTERNAL_ERROR,
            Status::ABORT_REQUESTED,
            Status::TRANSIENT_TRANSPORT_ERROR,
            Status::COMMAND_INTERRUPTED,
            Status::HOST_PATH_ERROR,
        ] {
            assert!(matches!(error_of_status(Some(status), HOW), IoError::NotDone(_)), "{status:?}");
            let error = format!("{:?}", error_of_status(Some(status), pair));
            assert_eq!(error, "Failed(Failed(PathLost))", "{status:?}");
        }
        for status in [Status::ANA_INACCESSIBLE, Status::ABORTED_MISSING_FUSED, Status::NAMESPACE_NOT_READY] {
            assert!(matches!(error_of_status(Some(status), pair), IoError::NotDone(_)), "{status:?}");
        }
        assert!(matches!(error_of_status(None, pair), IoError::InDoubt));
    }

    #[test]
    fn each_kind_of_status_has_its_fate() {
        let rows = [
            (Status::ANA_INACCESSIBLE, "NotDone(0ns)"),
            (Status::INTERNAL_ERROR, "NotDone(20ms)"),
            (Status::INTERNAL_ERROR.with_do_not_retry(), "Failed(Failed(Internal))"),
            (Status::RESERVATION_CONFLICT, "Failed(Refused(Conflict))"),
            (Status::CAPACITY_EXCEEDED.with_do_not_retry(), "Failed(Failed(NoSpace))"),
            (Status::UNRECOVERED_READ_ERROR.with_do_not_retry(), "Failed(Failed(Medium(7)))"),
            (Status::COMPARE_FAILURE, "Failed(Failed(Miscompare(0)))"),
            (Status::ABORT_REQUESTED, "NotDone(0ns)"),
            (Status(Status::COMMAND_INTERRUPTED.0 | 1 << 11), "NotDone(100ms)"),
            (Status(Status::COMMAND_INTERRUPTED.0 | 2 << 11), "NotDone(60s)"),
            (Status::NAMESPACE_NOT_READY, "NotDone(20ms)"),
            (Status::NAMESPACE_NOT_READY.with_do_not_retry(), "Failed(Refused(NotReady(Stopped)))"),
        ];
        for (status, error) in rows {
            assert_eq!(told(status), error, "{status:?}");
        }
        let cancelled =
            error_of_status(Some(Status::ABORT_REQUESTED), CommandContext { cancelled: true, ..HOW });
        assert_eq!(format!("{cancelled:?}"), "Failed(Failed(Aborted))");
        let half = Status::ABORTED_MISSING_FUSED.with_do_not_retry();
        let cancelled = error_of_status(Some(half), CommandContext { cancelled: true, ..HOW });
        assert_eq!(format!("{cancelled:?}"), "Failed(Failed(Aborted))");
    }
}
