//! The table that maps a target's status and sense data to the next action.
//!
//! It is the counterpart of the device server's table. Every status and every sense key has an entry,
//! including values that no standard defines.

use std::time::Duration;

use iscsi::wire::ScsiStatus;
use scsi::Status;
use scsi::sense::{DecodedSense, Sense, SenseKey, SenseKeySpecific};
use volume::{Failure, Fault, PathAccess, Refusal, Span, UnservableReason};

/// What follows for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandDisposition {
    /// It has done what it was asked.
    Done,
    /// It failed, whichever path it comes by.
    Failed(Failure),
    /// It has not been done; the same once more, after this time.
    Retry(Duration),
    /// It has not been done, and this path will not do it within this time.
    OtherPath(Duration),
    /// The target does not know it, or not in this form.
    Unsupported,
}

/// What follows for what is known of the logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FactsRefresh {
    /// Nothing.
    #[default]
    Nothing,
    /// Its size, its limits, its mode pages are to be read again.
    Medium,
    /// The states of its paths are.
    Access,
    /// Who it is, too.
    Identity,
    /// A write that was answered long ago has failed.
    WriteLost,
}

/// A judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classification {
    pub(super) disposition: CommandDisposition,
    pub(super) refresh: FactsRefresh,
}

const RETRY_AT_ONCE: Duration = Duration::ZERO;
/// A target that is busy is asked again so soon at first; each time later.
const RETRY_BUSY: Duration = Duration::from_millis(10);
const RETRY_SOON: Duration = Duration::from_millis(500);
const RETRY_LATER: Duration = Duration::from_secs(1);

const fn without_refresh(disposition: CommandDisposition) -> Classification {
    Classification { disposition, refresh: FactsRefresh::Nothing }
}

const fn classify_refused(refusal: Refusal) -> Classification {
    without_refresh(CommandDisposition::Failed(Failure::Refused(refusal)))
}

const fn classify_failed(fault: Fault) -> Classification {
    without_refresh(CommandDisposition::Failed(Failure::Failed(fault)))
}

impl Classification {
    const fn with_refresh(self, refresh: FactsRefresh) -> Classification {
        Classification { refresh, ..self }
    }
}

/// Judges an answer. `span`: the blocks that the command was about.
pub(super) fn classify_status(status: ScsiStatus, sense: &[u8], span: Span) -> Classification {
    match Status(status.0) {
        Status::GOOD | Status::CONDITION_MET => without_refresh(CommandDisposition::Done),
        Status::CHECK_CONDITION => match Sense::decode(sense) {
            Some(DecodedSense { deferred: false, sense }) => classify_sense(&sense, span),
            // It is about an earlier command, and this one has not been done (SPC-4 §4.5.7).
            Some(DecodedSense { deferred: true, sense }) => {
                let lost = !matches!(sense.key, SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR);
                without_refresh(CommandDisposition::Retry(RETRY_AT_ONCE)).with_refresh(if lost {
                    FactsRefresh::WriteLost
                } else {
                    FactsRefresh::Nothing
                })
            }
            None => classify_failed(Fault::Internal),
        },
        Status::BUSY | Status::TASK_SET_FULL | Status::ACA_ACTIVE => {
            without_refresh(CommandDisposition::Retry(RETRY_BUSY))
        }
        Status::RESERVATION_CONFLICT => classify_refused(Refusal::Conflict),
        // Another nexus ended it: a preempted one learns more at its next attempt.
        Status::TASK_ABORTED => without_refresh(CommandDisposition::Retry(RETRY_AT_ONCE)),
        _ => classify_failed(Fault::Internal),
    }
}

/// Whether a command that is to be repeated may have been carried out in part: it was ended, not refused.
pub(super) fn may_be_partly_executed(status: ScsiStatus, sense: &[u8]) -> bool {
    match Status(status.0) {
        Status::TASK_ABORTED => true,
        Status::CHECK_CONDITION => {
            let told = Sense::decode(sense).filter(|decoded| !decoded.deferred);
            told.is_some_and(|decoded| decoded.sense.key == SenseKey::ABORTED_COMMAND)
        }
        _ => false,
    }
}

/// Whether the logical unit says that it is not ready.
pub(super) fn is_not_ready(status: ScsiStatus, sense: &[u8]) -> bool {
    let told = Sense::decode(sense).filter(|decoded| !decoded.deferred);
    Status(status.0) == Status::CHECK_CONDITION
        && told.is_some_and(|decoded| decoded.sense.key == SenseKey::NOT_READY)
}

fn classify_sense(sense: &Sense, span: Span) -> Classification {
    let code = (sense.code.code(), sense.code.qualifier());
    match sense.key {
        // NO SENSE, RECOVERED ERROR, COMPLETED.
        SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR | SenseKey(0xf) => {
            without_refresh(CommandDisposition::Done)
        }
        SenseKey::NOT_READY => classify_not_ready(sense, code),
        SenseKey::MEDIUM_ERROR | SenseKey(0x8) => classify_medium_error(sense, code, span),
        SenseKey::HARDWARE_ERROR => match code {
            (0x08, _) | (0x3e, _) => classify_failed(Fault::PathLost),
            _ => classify_failed(Fault::Internal),
        },
        SenseKey::ILLEGAL_REQUEST => classify_illegal_request(code),
        SenseKey::UNIT_ATTENTION => classify_unit_attention(code),
        SenseKey::DATA_PROTECT => match code {
            (0x27, 0x07) => classify_failed(Fault::NoSpace),
            _ => classify_refused(Refusal::ReadOnly).with_refresh(FactsRefresh::Medium),
        },
        SenseKey::ABORTED_COMMAND => without_refresh(CommandDisposition::Retry(RETRY_BUSY)),
        // VOLUME OVERFLOW.
        SenseKey(0xd) => classify_failed(Fault::NoSpace),
        SenseKey::MISCOMPARE => {
            let offset = sense.information.and_then(|at| u32::try_from(at).ok()).unwrap_or(0);
            classify_failed(Fault::Miscompare(offset))
        }
        // Vendor specific, COPY ABORTED, obsolete and reserved ones.
        _ => classify_failed(Fault::Internal),
    }
}

/// Where a flaw is: an address that the command was not about is none.
fn classify_medium_error(sense: &Sense, code: (u8, u8), span: Span) -> Classification {
    if code == (0x31, 0x03) {
        return classify_refused(Refusal::NotReady(UnservableReason::SanitizeFailed));
    }
    let within = |lba: &u64| *lba >= span.lba && *lba - span.lba < span.blocks;
    classify_failed(Fault::Medium(sense.information.filter(within).unwrap_or(span.lba)))
}

fn classify_not_ready(sense: &Sense, code: (u8, u8)) -> Classification {
    let progress = match sense.specific {
        SenseKeySpecific::Progress(progress) => progress,
        SenseKeySpecific::None
        | SenseKeySpecific::Field(_)
        | SenseKeySpecific::Segment { .. }
        | SenseKeySpecific::Other(_) => 0,
    };
    match code {
        (0x04, 0x0a) => {
            without_refresh(CommandDisposition::OtherPath(RETRY_SOON)).with_refresh(FactsRefresh::Access)
        }
        // 12h: the port is offline, and others need not be.
        (0x04, 0x0b | 0x0c | 0x12) => {
            without_refresh(CommandDisposition::OtherPath(RETRY_LATER)).with_refresh(FactsRefresh::Access)
        }
        // START STOP UNIT or a hand is needed; stopped on purpose.
        (0x04, 0x02 | 0x03) => classify_refused(Refusal::NotReady(UnservableReason::Stopped)),
        (0x04, 0x04) => classify_refused(Refusal::NotReady(UnservableReason::Formatting(progress))),
        (0x04, 0x1b) => classify_refused(Refusal::NotReady(UnservableReason::Sanitizing(progress))),
        // A gateway has lost what is behind it, and waited. A write may land yet, so nothing is repeated.
        (0x08, _) => classify_failed(Fault::PathLost),
        (0x3a, _) => {
            classify_refused(Refusal::NotReady(UnservableReason::NoMedium)).with_refresh(FactsRefresh::Medium)
        }
        // Becoming ready, rebuilding, testing itself, and whatever else passes.
        _ => without_refresh(CommandDisposition::Retry(RETRY_SOON)),
    }
}

fn classify_illegal_request(code: (u8, u8)) -> Classification {
    match code {
        // Unknown operation codes, fields and parameters.
        (0x20 | 0x24 | 0x26, _) => without_refresh(CommandDisposition::Unsupported),
        (0x21, _) => classify_refused(Refusal::OutOfRange).with_refresh(FactsRefresh::Medium),
        // There is no such logical unit any more.
        (0x25, _) => {
            without_refresh(CommandDisposition::OtherPath(RETRY_LATER)).with_refresh(FactsRefresh::Identity)
        }
        (0x27, _) => classify_refused(Refusal::ReadOnly).with_refresh(FactsRefresh::Medium),
        (0x53, 0x02) => classify_refused(Refusal::RemovalPrevented),
        (0x55, 0x03) => without_refresh(CommandDisposition::Retry(RETRY_SOON)),
        (0x55, 0x04) => classify_refused(Refusal::NoRegistrationSpace),
        (0x67, _) => {
            without_refresh(CommandDisposition::OtherPath(RETRY_LATER)).with_refresh(FactsRefresh::Access)
        }
        _ => classify_refused(Refusal::Unsupported),
    }
}

/// Nothing was done; something is different.
fn classify_unit_attention(code: (u8, u8)) -> Classification {
    let refresh = match code {
        (0x28, _) | (0x2a, 0x00 | 0x01 | 0x09) | (0x3f, 0x00..=0x02) => FactsRefresh::Medium,
        (0x2a, 0x06 | 0x07) => FactsRefresh::Access,
        (0x3f, 0x03 | 0x05 | 0x0e) => FactsRefresh::Identity,
        _ => FactsRefresh::Nothing,
    };
    without_refresh(CommandDisposition::Retry(RETRY_AT_ONCE)).with_refresh(refresh)
}

/// The state of a path, in the volume's words.
pub(super) fn access_of_alua_state(state: scsi::alua::AccessState) -> PathAccess {
    use scsi::alua::AccessState;
    match state {
        AccessState::OPTIMIZED => PathAccess::Optimized,
        AccessState::NON_OPTIMIZED => PathAccess::NonOptimized,
        AccessState::TRANSITIONING => PathAccess::Transition,
        AccessState::STANDBY => PathAccess::Standby,
        // Unavailable, offline (which may become any other, SPC-4 §5.15.2.4), and what no standard names.
        _ => PathAccess::Inaccessible,
    }
}
