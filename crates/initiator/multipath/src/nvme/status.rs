//! The one place where NVMe status codes become results of operations (NVMe Base §3.3.3.2.1, NVM Command Set
//! §1).
//!
//! A command that was answered has ended: nothing of it can land later, so anything that may be retried is
//! [`IoError::NotDone`]. Only commands lost with their connection are [`IoError::InDoubt`], and of these only
//! those that may change blocks: a read can be repeated anywhere.

use std::time::Duration;

use nvme::Status;
use volume::{Access, Failure, Fault, Refusal, UnservableReason};

use crate::IoError;

/// The longest Command Retry Delay that is heeded.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Before a command is tried again that the controller could not do now, and named no delay for.
const BUSY: Duration = Duration::from_millis(20);

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
pub(super) fn of(status: Option<Status>, how: CommandContext) -> IoError {
    let Some(status) = status else {
        return match (how.writes, how.cancelled) {
            (true, _) => IoError::InDoubt,
            (false, true) => failed(Fault::Aborted),
            (false, false) => IoError::NotDone(Duration::ZERO),
        };
    };
    if how.once && !how.cancelled && !is_untouched(status) && may_be_repeated(status) {
        // The controller does not say that nothing was written.
        return failed(Fault::PathLost);
    }
    let again = || IoError::NotDone(delay(status, how.retry_delays));
    let retry_unless_final = |otherwise: IoError| if status.is_final() { otherwise } else { again() };
    match status.plain() {
        // Of a pair the abort may have met the one half only, and then nothing is written.
        Status::ABORT_REQUESTED | Status::ABORTED_FAILED_FUSED | Status::ABORTED_MISSING_FUSED
            if how.cancelled =>
        {
            failed(Fault::Aborted)
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
        Status::PREEMPT_ABORT | Status::RESERVATION_CONFLICT => refused(Refusal::Conflict),
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY_RANGE => refused(Refusal::ReadOnly),
        Status::LBA_OUT_OF_RANGE => refused(Refusal::OutOfRange),
        Status::CAPACITY_EXCEEDED => failed(Fault::NoSpace),
        Status::SANITIZE_IN_PROGRESS => refused(Refusal::NotReady(UnservableReason::Sanitizing(0))),
        Status::SANITIZE_FAILED => refused(Refusal::NotReady(UnservableReason::SanitizeFailed)),
        Status::NAMESPACE_NOT_READY => {
            retry_unless_final(refused(Refusal::NotReady(UnservableReason::Stopped)))
        }
        Status::INVALID_NAMESPACE => refused(Refusal::NotReady(UnservableReason::Removed)),
        Status::INVALID_OPCODE => refused(Refusal::Unsupported),
        Status::COMMAND_SIZE_LIMIT_EXCEEDED | Status::ATOMIC_WRITE_UNIT_EXCEEDED => {
            refused(Refusal::AtomicUnit)
        }
        Status::WRITE_FAULT | Status::UNRECOVERED_READ_ERROR | Status::UNWRITTEN_BLOCK => {
            failed(Fault::Medium(how.lba))
        }
        // The standard does not say which byte differs.
        Status::COMPARE_FAILURE => failed(Fault::Miscompare(0)),
        _ => retry_unless_final(failed(Fault::Internal)),
    }
}

/// Whether a command that ended so has changed nothing, whatever the controller.
fn is_untouched(status: Status) -> bool {
    matches!(
        status.plain(),
        Status::ABORTED_FAILED_FUSED
            | Status::ABORTED_MISSING_FUSED
            | Status::ANA_PERSISTENT_LOSS
            | Status::ANA_INACCESSIBLE
            | Status::ANA_TRANSITION
            | Status::NAMESPACE_NOT_READY
    )
}

/// Whether a plain command that ended so is tried again.
fn may_be_repeated(status: Status) -> bool {
    let plain = CommandContext {
        writes: true,
        cancelled: false,
        once: false,
        lba: 0,
        retry_delays: [Duration::ZERO; 3],
    };
    matches!(of(Some(status), plain), IoError::NotDone(_))
}

/// What a path-related status says of the path.
pub(super) fn access(status: Status) -> Option<Access> {
    match status.plain() {
        Status::ANA_PERSISTENT_LOSS => Some(Access::PersistentLoss),
        Status::ANA_INACCESSIBLE => Some(Access::Inaccessible),
        Status::ANA_TRANSITION => Some(Access::Transition),
        _ => None,
    }
}

/// How long to wait before a retry: what the controller wants (CRD).
fn delay(status: Status, delays: [Duration; 3]) -> Duration {
    match status.retry_delay() {
        0 => BUSY,
        number => delays.get(usize::from(number) - 1).copied().unwrap_or(BUSY).min(DELAY_MAX),
    }
}

fn failed(fault: Fault) -> IoError {
    IoError::Failed(Failure::Failed(fault))
}

fn refused(refusal: Refusal) -> IoError {
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
        format!("{:?}", of(Some(status), HOW))
    }

    #[test]
    fn what_was_answered_is_never_unknown() {
        for bits in 1..0x8000_u16 {
            let status = Status(bits);
            if !status.is_success() {
                assert!(!matches!(of(Some(status), HOW), IoError::InDoubt), "{bits:04x}");
            }
        }
        assert!(matches!(of(None, HOW), IoError::InDoubt));
        assert!(matches!(of(None, CommandContext { writes: false, ..HOW }), IoError::NotDone(_)));
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
            assert!(matches!(of(Some(status), HOW), IoError::NotDone(_)), "{status:?}");
            let error = format!("{:?}", of(Some(status), pair));
            assert_eq!(error, "Failed(Failed(PathLost))", "{status:?}");
        }
        for status in [Status::ANA_INACCESSIBLE, Status::ABORTED_MISSING_FUSED, Status::NAMESPACE_NOT_READY] {
            assert!(matches!(of(Some(status), pair), IoError::NotDone(_)), "{status:?}");
        }
        assert!(matches!(of(None, pair), IoError::InDoubt));
    }

    #[test]
    fn each_kind_of_status_has_its_fate() {
        let rows = [
            (Status::ANA_INACCESSIBLE, "NotDone(0ns)"),
            (Status::INTERNAL_ERROR, "NotDone(20ms)"),
            (Status::INTERNAL_ERROR.final_(), "Failed(Failed(Internal))"),
            (Status::RESERVATION_CONFLICT, "Failed(Refused(Conflict))"),
            (Status::CAPACITY_EXCEEDED.final_(), "Failed(Failed(NoSpace))"),
            (Status::UNRECOVERED_READ_ERROR.final_(), "Failed(Failed(Medium(7)))"),
            (Status::COMPARE_FAILURE, "Failed(Failed(Miscompare(0)))"),
            (Status::ABORT_REQUESTED, "NotDone(0ns)"),
            (Status(Status::COMMAND_INTERRUPTED.0 | 1 << 11), "NotDone(100ms)"),
            (Status(Status::COMMAND_INTERRUPTED.0 | 2 << 11), "NotDone(60s)"),
            (Status::NAMESPACE_NOT_READY, "NotDone(20ms)"),
            (Status::NAMESPACE_NOT_READY.final_(), "Failed(Refused(NotReady(Stopped)))"),
        ];
        for (status, error) in rows {
            assert_eq!(told(status), error, "{status:?}");
        }
        let cancelled = of(Some(Status::ABORT_REQUESTED), CommandContext { cancelled: true, ..HOW });
        assert_eq!(format!("{cancelled:?}"), "Failed(Failed(Aborted))");
        let half = Status::ABORTED_MISSING_FUSED.final_();
        let cancelled = of(Some(half), CommandContext { cancelled: true, ..HOW });
        assert_eq!(format!("{cancelled:?}"), "Failed(Failed(Aborted))");
    }
}
