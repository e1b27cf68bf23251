//! Why a login failed, and what to change (RFC 7143 §11.13.5).

use crate::chap::ChapFailed;
use crate::name::TargetAddress;
use crate::negotiate::NegotiationViolation;
use crate::text::TextError;
use crate::wire::{LoginStatus, Opcode};
use core::fmt;

/// Why a login failed. The connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginFailure {
    /// The target said no.
    Refused(LoginStatus),
    /// The target wants to know who logs in, and this side has no credentials.
    CredentialsMissing,
    /// The target is elsewhere.
    Moved(LoginStatus, TargetAddress),
    /// A PDU that is no answer to ours.
    Unexpected(Opcode),
    /// A response with another tag, a wrong length, or an unasked or overlong transition.
    Malformed,
    /// Malformed text or a broken rule of negotiation.
    Violation(NegotiationViolation),
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

impl From<NegotiationViolation> for LoginFailure {
    fn from(violation: NegotiationViolation) -> Self {
        LoginFailure::Violation(violation)
    }
}

impl From<TextError> for LoginFailure {
    fn from(error: TextError) -> Self {
        LoginFailure::Violation(NegotiationViolation::Text(error))
    }
}

impl From<ChapFailed> for LoginFailure {
    fn from(_: ChapFailed) -> Self {
        LoginFailure::Authentication
    }
}

impl LoginFailure {
    /// What to do next.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            LoginFailure::Refused(status) => status_advice(*status),
            LoginFailure::CredentialsMissing => {
                "give a CHAP user name and its secret, as the target has them"
            }
            LoginFailure::Moved(..) => "log in at the address that the target named",
            LoginFailure::Authentication => {
                "check that both sides require CHAP, share an algorithm, and have the same secret for the target"
            }
            LoginFailure::Violation(NegotiationViolation::NoAgreement(_)) => {
                "allow another value of this key, here or at the target"
            }
            LoginFailure::Unexpected(_) => {
                "this port may speak another protocol: iSCSI is usually on port 3260, NVMe/TCP on 4420"
            }
            LoginFailure::Malformed | LoginFailure::Violation(_) | LoginFailure::TooManyRequests => {
                "check that an iSCSI target listens at this address, and its version"
            }
            LoginFailure::CutShort => {
                "compare the CHAP names and secrets of both sides, and look into the target's log"
            }
            LoginFailure::TimedOut => {
                "check that this port speaks iSCSI (usually 3260; NVMe/TCP is on 4420), and that the target is not \
                 overloaded"
            }
        }
    }
}

fn status_advice(status: LoginStatus) -> &'static str {
    match status {
        LoginStatus::AUTHENTICATION_FAILURE => {
            "compare the CHAP user name and secret that this side sends with those of the target"
        }
        LoginStatus::AUTHORIZATION_FAILURE => "let the target's access rules admit this initiator name",
        LoginStatus::TARGET_NOT_FOUND => {
            "check the target's name: a discovery of this address lists the targets that this initiator may use"
        }
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

/// What a status says, by its name in RFC 7143 §11.13.5; `None`: a status that it does not have.
fn status_name(status: LoginStatus) -> Option<&'static str> {
    Some(match status {
        LoginStatus::AUTHENTICATION_FAILURE => "authentication failure",
        LoginStatus::AUTHORIZATION_FAILURE => "authorization failure",
        LoginStatus::TARGET_NOT_FOUND => "it has no such target",
        LoginStatus::TARGET_REMOVED => "the target has been removed",
        LoginStatus::UNSUPPORTED_VERSION => "unsupported version",
        LoginStatus::TOO_MANY_CONNECTIONS => "too many connections",
        LoginStatus::MISSING_PARAMETER => "missing parameter",
        LoginStatus::CANNOT_INCLUDE => "the connection cannot be included in the session",
        LoginStatus::SESSION_TYPE_NOT_SUPPORTED => "session type not supported",
        LoginStatus::SESSION_DOES_NOT_EXIST => "the session does not exist",
        LoginStatus::SERVICE_UNAVAILABLE => "service unavailable",
        LoginStatus::OUT_OF_RESOURCES => "out of resources",
        _ => return None,
    })
}

impl fmt::Display for LoginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoginFailure::Refused(status) => {
                f.write_str("the target refused the login: ")?;
                f.write_str(status_name(*status).unwrap_or("it does not say why"))?;
                write!(f, " ({:02x}{:02x}h)", status.class, status.detail)?;
            }
            LoginFailure::CredentialsMissing => {
                f.write_str("the target requires authentication, and this side gave no user")?
            }
            LoginFailure::Moved(_, address) => write!(f, "the target has moved to {address}")?,
            LoginFailure::Unexpected(opcode) => write!(
                f,
                "what listens there did not answer with a login response, but with opcode {:02x}h",
                opcode.0
            )?,
            LoginFailure::Malformed => f.write_str("the target sent a login response that makes no sense")?,
            LoginFailure::Violation(violation) => write!(f, "negotiation failed: {violation}")?,
            LoginFailure::Authentication => f.write_str("the target and this side did not authenticate")?,
            LoginFailure::TooManyRequests => f.write_str("the target does not end the login")?,
            LoginFailure::TimedOut => f.write_str("the target did not finish the login in time")?,
            LoginFailure::CutShort => f.write_str("the target closed the connection amid authentication")?,
        }
        write!(f, "; {}", self.advice())
    }
}

impl core::error::Error for LoginFailure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_status_means_and_what_to_do() {
        let said = LoginFailure::Refused(LoginStatus::TARGET_NOT_FOUND).to_string();
        assert!(said.contains("no such target (0203h); check"), "{said}");
        let said = LoginFailure::Refused(LoginStatus { class: 3, detail: 0x77 }).to_string();
        assert!(said.contains("does not say why (0377h); look"), "{said}");
        let said = LoginFailure::CredentialsMissing.to_string();
        assert!(said.contains("gave no user; give a CHAP user name"), "{said}");
    }
}
