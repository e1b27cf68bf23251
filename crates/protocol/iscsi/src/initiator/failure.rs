//! Why a login failed, and what to change (RFC 7143 §11.13.5).

use crate::chap::ChapFailed;
use crate::name::TargetAddress;
use crate::negotiate::Violation;
use crate::text::TextError;
use crate::wire::{LoginStatus, Opcode};
use core::fmt;

/// Why a login failed. The connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The target said no.
    Refused(LoginStatus),
    /// The target is elsewhere.
    Moved(LoginStatus, TargetAddress),
    /// A PDU that is no answer to ours.
    Unexpected(Opcode),
    /// A response with another tag, a wrong length, or an unasked or overlong transition.
    Malformed,
    /// Malformed text or a broken rule of negotiation.
    Violation(Violation),
    /// The target did not prove itself, or chose what we did not offer.
    Authentication,
    /// No end after as many requests as a target would take.
    TooManyRequests,
    /// No end within the time that was given.
    TimedOut,
    /// The target closed the connection after it had agreed to CHAP, and before that was over: a refusal that
    /// was not said, or a mere loss.
    CutShort,
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Failure::Violation(violation)
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Failure::Violation(Violation::Text(error))
    }
}

impl From<ChapFailed> for Failure {
    fn from(_: ChapFailed) -> Self {
        Failure::Authentication
    }
}

impl Failure {
    /// What to do next.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            Failure::Refused(status) => advice_on(*status),
            Failure::Moved(..) => "log in at the address that the target named",
            Failure::Authentication => {
                "check that both sides require CHAP, share an algorithm, and have the same secret for the target"
            }
            Failure::Violation(Violation::NoAgreement(_)) => {
                "allow another value of this key, here or at the target"
            }
            Failure::Unexpected(_)
            | Failure::Malformed
            | Failure::Violation(_)
            | Failure::TooManyRequests => {
                "check that an iSCSI target listens at this address, and its version"
            }
            Failure::CutShort => {
                "compare the CHAP names and secrets of both sides, and look into the target's log"
            }
            Failure::TimedOut => {
                "check that the target is up, and that this is an iSCSI port, or allow more time"
            }
        }
    }
}

fn advice_on(status: LoginStatus) -> &'static str {
    match status {
        LoginStatus::AUTHENTICATION_FAILURE => "check the CHAP user name and secret that this side sends",
        LoginStatus::AUTHORIZATION_FAILURE => "let the target's access rules admit this initiator name",
        LoginStatus::TARGET_NOT_FOUND => "check the target name, or list the targets of this address",
        LoginStatus::TARGET_REMOVED => "the target is gone for good; use another",
        LoginStatus::UNSUPPORTED_VERSION => {
            "the target speaks no version 0 of iSCSI; nothing can be changed here"
        }
        LoginStatus::TOO_MANY_CONNECTIONS => "use fewer links per session",
        LoginStatus::MISSING_PARAMETER => "the target requires a key that was not sent; check its manual",
        LoginStatus::CANNOT_INCLUDE => "add links at portals of the same portal group only",
        LoginStatus::SESSION_TYPE_NOT_SUPPORTED => "the target serves no discovery here; name the target",
        LoginStatus::SESSION_DOES_NOT_EXIST => "the session has ended at the target; begin a new one",
        LoginStatus::SERVICE_UNAVAILABLE | LoginStatus::OUT_OF_RESOURCES => "try again later",
        LoginStatus { class: 2, .. } => "the target did not accept what was sent; its log may say why",
        LoginStatus { .. } => "look into the target's log: it failed by itself",
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(status) => {
                write!(f, "the target refused the login ({:02x}{:02x}h)", status.class, status.detail)?;
            }
            Failure::Moved(_, address) => write!(f, "the target has moved to {address}")?,
            Failure::Unexpected(opcode) => {
                write!(f, "the target answered with a PDU of opcode {:02x}h", opcode.0)?
            }
            Failure::Malformed => f.write_str("the target sent a login response that makes no sense")?,
            Failure::Violation(violation) => write!(f, "negotiation failed: {violation}")?,
            Failure::Authentication => f.write_str("the target and this side did not authenticate")?,
            Failure::TooManyRequests => f.write_str("the target does not end the login")?,
            Failure::TimedOut => f.write_str("the login took too long")?,
            Failure::CutShort => f.write_str("the target closed the connection amid authentication")?,
        }
        write!(f, "; {}", self.advice())
    }
}

impl core::error::Error for Failure {}
