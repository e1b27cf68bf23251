//! The table that maps a target's status and sense data to the next action.
//!
//! It is the counterpart of the device server's table. Every status and every sense key has an entry,
//! including values that no standard defines.

use std::time::Duration;

use iscsi::wire::ScsiStatus;
use scsi::Status;
use scsi::sense::{DecodedSense, Sense, SenseKey, SenseKeySpecific};
use volume::{Access, Failure, Fault, Refusal, Span, UnservableReason};

/// What follows for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
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
pub(super) enum Refresh {
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
pub(super) struct Classified {
    pub(super) disposition: Disposition,
    pub(super) refresh: Refresh,
}

const AT_ONCE: Duration = Duration::ZERO;
/// A target that is busy is asked again so soon at first; each time later.
const BUSY: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(1);

const fn is(disposition: Disposition) -> Classified {
    Classified { disposition, refresh: Refresh::Nothing }
}

const fn refused(refusal: Refusal) -> Classified {
    is(Disposition::Failed(Failure::Refused(refusal)))
}

const fn failed(fault: Fault) -> Classified {
    is(Disposition::Failed(Failure::Failed(fault)))
}

impl Classified {
    const fn refreshing(self, refresh: Refresh) -> Classified {
        Classified { refresh, ..self }
    }
}

/// Judges an answer. `span`: the blocks that the command was about.
pub(super) fn classify(status: ScsiStatus, sense: &[u8], span: Span) -> Classified {
    match Status(status.0) {
        Status::GOOD | Status::CONDITION_MET => is(Disposition::Done),
        Status::CHECK_CONDITION => match Sense::decode(sense) {
            Some(DecodedSense { deferred: false, sense }) => classify_sense(&sense, span),
            // It is about an earlier command, and this one has not been done (SPC-4 §4.5.7).
            Some(DecodedSense { deferred: true, sense }) => {
                let lost = !matches!(sense.key, SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR);
                is(Disposition::Retry(AT_ONCE)).refreshing(if lost {
                    Refresh::WriteLost
                } else {
                    Refresh::Nothing
                })
            }
            None => failed(Fault::Internal),
        },
        Status::BUSY | Status::TASK_SET_FULL | Status::ACA_ACTIVE => is(Disposition::Retry(BUSY)),
        Status::RESERVATION_CONFLICT => refused(Refusal::Conflict),
        // Another nexus ended it: a preempted one learns more at its next attempt.
        Status::TASK_ABORTED => is(Disposition::Retry(AT_ONCE)),
        _ => failed(Fault::Internal),
    }
}

/// Whether a command that is to be repeated may have been carried out in part: it was ended, not refused.
pub(super) fn may_be_done(status: ScsiStatus, sense: &[u8]) -> bool {
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
pub(super) fn is_unready(status: ScsiStatus, sense: &[u8]) -> bool {
    let told = Sense::decode(sense).filter(|decoded| !decoded.deferred);
    Status(status.0) == Status::CHECK_CONDITION
        && told.is_some_and(|decoded| decoded.sense.key == SenseKey::NOT_READY)
}

fn classify_sense(sense: &Sense, span: Span) -> Classified {
    let code = (sense.code.code(), sense.code.qualifier());
    match sense.key {
        // NO SENSE, RECOVERED ERROR, COMPLETED.
        SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR | SenseKey(0xf) => is(Disposition::Done),
        SenseKey::NOT_READY => not_ready(sense, code),
        SenseKey::MEDIUM_ERROR | SenseKey(0x8) => medium_error(sense, code, span),
        SenseKey::HARDWARE_ERROR => match code {
            (0x08, _) | (0x3e, _) => failed(Fault::PathLost),
            _ => failed(Fault::Internal),
        },
        SenseKey::ILLEGAL_REQUEST => illegal(code),
        SenseKey::UNIT_ATTENTION => attention(code),
        SenseKey::DATA_PROTECT => match code {
            (0x27, 0x07) => failed(Fault::NoSpace),
            _ => refused(Refusal::ReadOnly).refreshing(Refresh::Medium),
        },
        SenseKey::ABORTED_COMMAND => is(Disposition::Retry(BUSY)),
        // VOLUME OVERFLOW.
        SenseKey(0xd) => failed(Fault::NoSpace),
        SenseKey::MISCOMPARE => {
            let offset = sense.information.and_then(|at| u32::try_from(at).ok()).unwrap_or(0);
            failed(Fault::Miscompare(offset))
        }
        // Vendor specific, COPY ABORTED, obsolete and reserved ones.
        _ => failed(Fault::Internal),
    }
}

/// Where a flaw is: an address that the command was not about is none.
fn medium_error(sense: &Sense, code: (u8, u8), span: Span) -> Classified {
    if code == (0x31, 0x03) {
        return refused(Refusal::NotReady(UnservableReason::SanitizeFailed));
    }
    let within = |lba: &u64| *lba >= span.lba && *lba - span.lba < span.blocks;
    failed(Fault::Medium(sense.information.filter(within).unwrap_or(span.lba)))
}

fn not_ready(sense: &Sense, code: (u8, u8)) -> Classified {
    let progress = match sense.specific {
        SenseKeySpecific::Progress(progress) => progress,
        SenseKeySpecific::None
        | SenseKeySpecific::Field(_)
        | SenseKeySpecific::Segment { .. }
        | SenseKeySpecific::Other(_) => 0,
    };
    match code {
        (0x04, 0x0a) => is(Disposition::OtherPath(SOON)).refreshing(Refresh::Access),
        // 12h: the port is offline, and others need not be.
        (0x04, 0x0b | 0x0c | 0x12) => is(Disposition::OtherPath(LATER)).refreshing(Refresh::Access),
        // START STOP UNIT or a hand is needed; stopped on purpose.
        (0x04, 0x02 | 0x03) => refused(Refusal::NotReady(UnservableReason::Stopped)),
        (0x04, 0x1b) => refused(Refusal::NotReady(UnservableReason::Sanitizing(progress))),
        // A gateway has lost what is behind it, and waited. A write may land yet, so nothing is repeated.
        (0x08, _) => failed(Fault::PathLost),
        (0x3a, _) => refused(Refusal::NotReady(UnservableReason::NoMedium)).refreshing(Refresh::Medium),
        // Becoming ready, rebuilding, testing itself, and whatever else passes.
        _ => is(Disposition::Retry(SOON)),
    }
}

fn illegal(code: (u8, u8)) -> Classified {
    match code {
        // Unknown operation codes, fields and parameters.
        (0x20 | 0x24 | 0x26, _) => is(Disposition::Unsupported),
        (0x21, _) => refused(Refusal::OutOfRange).refreshing(Refresh::Medium),
        // There is no such logical unit any more.
        (0x25, _) => is(Disposition::OtherPath(LATER)).refreshing(Refresh::Identity),
        (0x27, _) => refused(Refusal::ReadOnly).refreshing(Refresh::Medium),
        (0x53, 0x02) => refused(Refusal::RemovalPrevented),
        (0x55, 0x03) => is(Disposition::Retry(SOON)),
        (0x55, 0x04) => refused(Refusal::NoRegistrationSpace),
        (0x67, _) => is(Disposition::OtherPath(LATER)).refreshing(Refresh::Access),
        _ => refused(Refusal::Unsupported),
    }
}

/// Nothing was done; something is different.
fn attention(code: (u8, u8)) -> Classified {
    let refresh = match code {
        (0x28, _) | (0x2a, 0x00 | 0x01 | 0x09) | (0x3f, 0x00..=0x02) => Refresh::Medium,
        (0x2a, 0x06 | 0x07) => Refresh::Access,
        (0x3f, 0x03 | 0x05 | 0x0e) => Refresh::Identity,
        _ => Refresh::Nothing,
    };
    is(Disposition::Retry(AT_ONCE)).refreshing(refresh)
}

/// The state of a path, in the volume's words.
pub(super) fn access(state: scsi::alua::AccessState) -> Access {
    use scsi::alua::AccessState;
    match state {
        AccessState::OPTIMIZED => Access::Optimized,
        AccessState::NON_OPTIMIZED => Access::NonOptimized,
        AccessState::TRANSITIONING => Access::Transition,
        // Standby, unavailable, offline (which may become any other, SPC-4 §5.15.2.4), and what no standard names.
        _ => Access::Inaccessible,
    }
}
