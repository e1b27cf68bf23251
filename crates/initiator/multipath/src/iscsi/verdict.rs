//! The one table from a target's statuses and sense data to what follows from them.
//!
//! It is the other end of the table with which the device server speaks; every status and every sense key
//! has an answer, also those that no standard names.

use std::time::Duration;

use iscsi::wire::ScsiStatus;
use scsi::Status;
use scsi::sense::{Decoded, Sense, SenseKey, Specific};
use volume::{Access, Failure, Fault, Refusal, Span, UnservableReason};

/// What follows for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has done what it was asked.
    Done,
    /// It failed, whichever path it comes by.
    Failed(Failure),
    /// It has not been done; the same once more, after this time.
    Again(Duration),
    /// It has not been done, and this path will not do it within this time.
    Elsewhere(Duration),
    /// The target does not know it, or not in this form.
    Unknown,
}

/// What follows for what is known of the logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Learn {
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
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    pub(super) learn: Learn,
}

const AT_ONCE: Duration = Duration::ZERO;
/// A target that is busy is asked again so soon at first; each time later.
const BUSY: Duration = Duration::from_millis(10);
const SOON: Duration = Duration::from_millis(500);
const LATER: Duration = Duration::from_secs(1);

const fn is(verdict: Verdict) -> Judged {
    Judged { verdict, learn: Learn::Nothing }
}

const fn refused(refusal: Refusal) -> Judged {
    is(Verdict::Failed(Failure::Refused(refusal)))
}

const fn failed(fault: Fault) -> Judged {
    is(Verdict::Failed(Failure::Failed(fault)))
}

impl Judged {
    const fn learning(self, learn: Learn) -> Judged {
        Judged { learn, ..self }
    }
}

/// Judges an answer. `span`: the blocks that the command was about.
pub(super) fn judge(status: ScsiStatus, sense: &[u8], span: Span) -> Judged {
    match Status(status.0) {
        Status::GOOD | Status::CONDITION_MET => is(Verdict::Done),
        Status::CHECK_CONDITION => match Sense::decode(sense) {
            Some(Decoded { deferred: false, sense }) => judge_sense(&sense, span),
            // It is about an earlier command, and this one has not been done (SPC-4 §4.5.7).
            Some(Decoded { deferred: true, sense }) => {
                let lost = !matches!(sense.key, SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR);
                is(Verdict::Again(AT_ONCE)).learning(if lost { Learn::WriteLost } else { Learn::Nothing })
            }
            None => failed(Fault::Internal),
        },
        Status::BUSY | Status::TASK_SET_FULL | Status::ACA_ACTIVE => is(Verdict::Again(BUSY)),
        Status::RESERVATION_CONFLICT => refused(Refusal::Conflict),
        // Another nexus ended it: a preempted one learns more at its next attempt.
        Status::TASK_ABORTED => is(Verdict::Again(AT_ONCE)),
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

fn judge_sense(sense: &Sense, span: Span) -> Judged {
    let code = (sense.code.code(), sense.code.qualifier());
    match sense.key {
        // NO SENSE, RECOVERED ERROR, COMPLETED.
        SenseKey::NO_SENSE | SenseKey::RECOVERED_ERROR | SenseKey(0xf) => is(Verdict::Done),
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
            _ => refused(Refusal::ReadOnly).learning(Learn::Medium),
        },
        SenseKey::ABORTED_COMMAND => is(Verdict::Again(BUSY)),
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
fn medium_error(sense: &Sense, code: (u8, u8), span: Span) -> Judged {
    if code == (0x31, 0x03) {
        return refused(Refusal::NotReady(UnservableReason::SanitizeFailed));
    }
    let within = |lba: &u64| *lba >= span.lba && *lba - span.lba < span.blocks;
    failed(Fault::Medium(sense.information.filter(within).unwrap_or(span.lba)))
}

fn not_ready(sense: &Sense, code: (u8, u8)) -> Judged {
    let progress = match sense.specific {
        Specific::Progress(progress) => progress,
        Specific::None | Specific::Field(_) | Specific::Segment { .. } | Specific::Other(_) => 0,
    };
    match code {
        (0x04, 0x0a) => is(Verdict::Elsewhere(SOON)).learning(Learn::Access),
        // 12h: the port is offline, and others need not be.
        (0x04, 0x0b | 0x0c | 0x12) => is(Verdict::Elsewhere(LATER)).learning(Learn::Access),
        // START STOP UNIT or a hand is needed; stopped on purpose.
        (0x04, 0x02 | 0x03) => refused(Refusal::NotReady(UnservableReason::Stopped)),
        (0x04, 0x1b) => refused(Refusal::NotReady(UnservableReason::Sanitizing(progress))),
        // A gateway has lost what is behind it, and waited. A write may land yet, so nothing is repeated.
        (0x08, _) => failed(Fault::PathLost),
        (0x3a, _) => refused(Refusal::NotReady(UnservableReason::NoMedium)).learning(Learn::Medium),
        // Becoming ready, rebuilding, testing itself, and whatever else passes.
        _ => is(Verdict::Again(SOON)),
    }
}

fn illegal(code: (u8, u8)) -> Judged {
    match code {
        // Unknown operation codes, fields and parameters.
        (0x20 | 0x24 | 0x26, _) => is(Verdict::Unknown),
        (0x21, _) => refused(Refusal::OutOfRange).learning(Learn::Medium),
        // There is no such logical unit any more.
        (0x25, _) => is(Verdict::Elsewhere(LATER)).learning(Learn::Identity),
        (0x27, _) => refused(Refusal::ReadOnly).learning(Learn::Medium),
        (0x53, 0x02) => refused(Refusal::RemovalPrevented),
        (0x55, 0x03) => is(Verdict::Again(SOON)),
        (0x55, 0x04) => refused(Refusal::NoRegistrationSpace),
        (0x67, _) => is(Verdict::Elsewhere(LATER)).learning(Learn::Access),
        _ => refused(Refusal::Unsupported),
    }
}

/// Nothing was done; something is different.
fn attention(code: (u8, u8)) -> Judged {
    let learn = match code {
        (0x28, _) | (0x2a, 0x00 | 0x01 | 0x09) | (0x3f, 0x00..=0x02) => Learn::Medium,
        (0x2a, 0x06 | 0x07) => Learn::Access,
        (0x3f, 0x03 | 0x05 | 0x0e) => Learn::Identity,
        _ => Learn::Nothing,
    };
    is(Verdict::Again(AT_ONCE)).learning(learn)
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
