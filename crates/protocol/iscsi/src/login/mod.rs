//! Login of one connection, target side (RFC 7143 §6.3, §11.12, §11.13), without I/O and without time.
//!
//! The caller passes in whole Login Requests and sends the results. Two questions go to the caller, because
//! another shard may have the answers: which targets the initiator may use ([`LoginAction::Authorize`]), and
//! which session the login becomes ([`LoginAction::Complete`]). The caller keeps the deadline.
//!
//! Invariants: nothing is allocated by a length before the length is checked. Full feature phase is reached
//! only after an authentication that the policy allows. One unauthenticated peer holds at most
//! [`LOGIN_MEMORY_MAX`].

mod auth;
mod machine;

#[cfg(test)]
mod tests;

pub use machine::Login;

use crate::chap::{Algorithm, ChapAccount};
use crate::keys::Key;
use crate::name::{IscsiName, TargetAddress};
use crate::negotiate::{NegotiationLimits, NegotiationViolation, Params, SessionType};
use crate::text::{CHAP_VALUE_LEN_MAX, KeyValue, PAIRS_MAX, TEXT_LEN_MAX, TextError};
use crate::wire::{Bhs, Cid, Isid, LoginStatus, Opcode, Sn, Tsih};

/// Largest data segment in either direction during the login, in bytes (RFC 7143 §6.3).
pub const LOGIN_SEGMENT_LEN_MAX: usize = 8192;

/// Most Login Requests of one login. RFC 7143 §6.2 asks for at least 6 exchanges; a full text in either
/// direction adds a few.
pub const LOGIN_REQUESTS_MAX: u32 = 32;

/// Most bytes that a login holds at once, the caller's receive buffer aside: a text being joined, the same
/// parsed, an answer to it and one PDU cut from that; and a decoded challenge with its encoding.
pub const LOGIN_MEMORY_MAX: usize = TEXT_LEN_MAX
    + PAIRS_MAX * size_of::<KeyValue<'static>>() * 2
    + TEXT_LEN_MAX
    + LOGIN_SEGMENT_LEN_MAX
    + 2 * CHAP_VALUE_LEN_MAX
    + size_of::<char>() * machine::CLAIMED_USER_CHARS_MAX
    + size_of::<Login>();

/// A Login PDU to send: header and text. The text is at most [`LOGIN_SEGMENT_LEN_MAX`] bytes, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginPdu {
    /// The header; DataSegmentLength is set.
    pub bhs: Bhs,
    /// The data segment.
    pub text: Vec<u8>,
}

/// What the caller does next, after a request or an answer.
#[derive(Debug)]
pub enum LoginAction {
    /// Send the response; the next request is awaited.
    Send(LoginPdu),
    /// Ask who may log in, then call [`Login::authorize`]. No request is read until then.
    Authorize(LoginIdentity),
    /// Ask which session this becomes, then call [`Login::complete`]. No request is read until then.
    Complete(Box<SessionQuestion>),
    /// Send the response, close the connection: no login.
    Refuse(LoginPdu, LoginEndCause),
    /// Close the connection without a word: what came is no login.
    Drop(LoginEndCause),
    /// Send the response: the connection is in full feature phase.
    Established(LoginPdu, Box<EstablishedConnection>),
}

/// Who logs in to what, as the first request says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginIdentity {
    /// The initiator's claim of its name; not authenticated yet.
    pub initiator_name: IscsiName,
    /// The target; `None` in discovery sessions that name none.
    pub target_name: Option<IscsiName>,
    /// Type of the session.
    pub session_type: SessionType,
    /// Initiator's part of the session's identity.
    pub isid: Isid,
    /// The session to join, or [`Tsih::NONE`].
    pub tsih: Tsih,
    /// Connection ID.
    pub cid: Cid,
}

/// The answer to [`LoginAction::Authorize`].
#[derive(Debug)]
pub enum Authorization {
    /// The login may go on.
    Granted(Box<LoginPolicy>),
    /// It may not: a status of class 2 or 3.
    Refused(LoginStatus),
    /// The target is elsewhere for now (0101h).
    MovedTemporarily(TargetAddress),
    /// The target is elsewhere for good (0102h).
    MovedPermanently(TargetAddress),
}

/// What a login that is authorized must do, and may negotiate.
#[derive(Clone, Debug)]
pub struct LoginPolicy {
    /// How the initiator must prove itself.
    pub auth: AuthPolicy,
    /// What can be negotiated.
    pub limits: NegotiationLimits,
    /// Tag of the portal group that the connection came to.
    pub portal_group_tag: u16,
    /// Alias of the target, at most 255 bytes.
    pub target_alias: Option<String>,
}

/// Authentication methods that are allowed. The answer is the first of the offer that an initiator is allowed to use
/// (RFC 7143 §6.2.1); where both are, what it offers decides which one that is.
#[derive(Clone, Debug)]
pub enum AuthPolicy {
    /// No authentication is asked for.
    None,
    /// CHAP if the initiator offers it, else nothing at all.
    Optional(ChapAccounts),
    /// Nothing at all if the initiator offers that, else CHAP.
    Dispensable(ChapAccounts),
    /// CHAP.
    Required(ChapAccounts),
}

impl AuthPolicy {
    fn accounts(&self) -> &[ChapAccount] {
        match self {
            AuthPolicy::None => &[],
            AuthPolicy::Optional(chap) | AuthPolicy::Dispensable(chap) | AuthPolicy::Required(chap) => {
                &chap.accounts
            }
        }
    }

    /// The account of this name.
    pub fn account(&self, name: &str) -> Option<&ChapAccount> {
        self.accounts().iter().find(|account| account.name == name)
    }

    /// Whether an initiator that has proved to be this account of another policy could do so here.
    pub fn has_account(&self, account: &ChapAccount) -> bool {
        self.account(&account.name).is_some_and(|own| own.secret.constant_time_eq(&account.secret))
    }
}

/// Accounts of a CHAP exchange.
#[derive(Clone, Debug)]
pub struct ChapAccounts {
    /// Who may log in.
    pub accounts: Vec<ChapAccount>,
    /// How we prove ourselves, if an initiator asks. Its secret must differ from those of `accounts`.
    pub mutual: Option<ChapAccount>,
    /// Whether an initiator that does not ask us to prove ourselves is refused.
    pub demands_mutual: bool,
    /// Algorithms allowed, best first; [`Algorithm::ALL`] unless configured.
    pub algorithms: Vec<Algorithm>,
}

/// The question which session the login becomes.
#[derive(Clone, Debug)]
pub struct SessionQuestion {
    /// Names, ISID, TSIH, CID as in [`LoginIdentity`].
    pub identity: LoginIdentity,
    /// The CHAP name that was proved.
    pub user: Option<String>,
    /// CmdSN of the login: the first command of a new session carries it.
    pub cmd_sn: Sn,
    /// What was negotiated; session-wide values mean nothing on an added connection.
    pub params: Params,
}

/// The answer to [`SessionQuestion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginCompletion {
    /// A new session, also where it replaces an old one.
    NewSession {
        /// Its handle, not 0.
        tsih: Tsih,
        /// Commands that the initiator may send ahead, at least 1.
        window: u32,
    },
    /// The connection joins (or replaces one of) the session that the request named.
    Join {
        /// ExpCmdSN of the session.
        exp_cmd_sn: Sn,
        /// MaxCmdSN of the session.
        max_cmd_sn: Sn,
    },
    /// No: a status of class 2 or 3.
    Refused(LoginStatus),
}

/// A connection in full feature phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EstablishedConnection {
    /// Names, ISID, requested TSIH, CID.
    pub identity: LoginIdentity,
    /// The session's handle.
    pub tsih: Tsih,
    /// The CHAP name that was proved.
    pub user: Option<String>,
    /// The algorithm by which it was.
    pub algorithm: Option<Algorithm>,
    /// Alias that the initiator gave itself.
    pub initiator_alias: Option<String>,
    /// Tag of the portal group.
    pub portal_group_tag: u16,
    /// What was negotiated; on an added connection only digests and segment lengths.
    pub params: Params,
    /// ExpCmdSN at the final response.
    pub exp_cmd_sn: Sn,
    /// MaxCmdSN at the final response.
    pub max_cmd_sn: Sn,
    /// StatSN of the next response.
    pub stat_sn: Sn,
}

/// Why a login ended. [`LoginEndCause::login_status`] says what the peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginEndCause {
    /// The first PDU is no Login Request: some other protocol.
    NotLogin(Opcode),
    /// A PDU of full feature phase during the login.
    WrongPdu(Opcode),
    /// A data segment of more than 8192 bytes.
    SegmentTooLong,
    /// Additional header segments, or no immediate bit.
    Header,
    /// Version 0 is not among those that the initiator speaks.
    Version,
    /// ITT, ISID, TSIH, CID or versions changed during the login.
    Changed,
    /// A stage or transition that RFC 7143 §6.3 does not know.
    Stage,
    /// Text where an empty request was due.
    Unasked,
    /// A request while we had not answered the last one.
    Overtaken,
    /// More than [`LOGIN_REQUESTS_MAX`] requests.
    TooManyRequests,
    /// A key that the login cannot do without.
    Missing(Key),
    /// A name that is none.
    InitiatorName,
    /// A target name that is none.
    TargetName,
    /// A session type that does not exist.
    SessionType,
    /// Malformed text or a broken rule of negotiation.
    Violation(NegotiationViolation),
    /// Authentication failed, or was evaded.
    Authentication,
    /// Said from above.
    Refused(LoginStatus),
    /// From above came an answer that the login had not asked for.
    OutOfTurn,
}

impl LoginEndCause {
    /// What the peer is told.
    #[must_use]
    pub const fn login_status(self) -> LoginStatus {
        match self {
            LoginEndCause::NotLogin(_) | LoginEndCause::WrongPdu(_) => LoginStatus::INVALID_DURING_LOGIN,
            LoginEndCause::Version => LoginStatus::UNSUPPORTED_VERSION,
            LoginEndCause::Missing(_) => LoginStatus::MISSING_PARAMETER,
            LoginEndCause::TargetName => LoginStatus::TARGET_NOT_FOUND,
            LoginEndCause::SessionType => LoginStatus::SESSION_TYPE_NOT_SUPPORTED,
            LoginEndCause::Authentication => LoginStatus::AUTHENTICATION_FAILURE,
            LoginEndCause::Refused(status) => status,
            LoginEndCause::OutOfTurn => LoginStatus::TARGET_ERROR,
            LoginEndCause::SegmentTooLong
            | LoginEndCause::Header
            | LoginEndCause::Changed
            | LoginEndCause::Stage
            | LoginEndCause::Unasked
            | LoginEndCause::Overtaken
            | LoginEndCause::TooManyRequests
            | LoginEndCause::InitiatorName
            | LoginEndCause::Violation(_) => LoginStatus::INITIATOR_ERROR,
        }
    }
}

/// In words, with what to do about it where the operator can.
impl core::fmt::Display for LoginEndCause {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = match self {
            LoginEndCause::NotLogin(_) => {
                "what came first is no iSCSI login: another protocol is spoken to this port"
            }
            LoginEndCause::WrongPdu(_) => {
                "the initiator sent a request of a session before its login was over"
            }
            LoginEndCause::SegmentTooLong => "the initiator sent more than 8192 bytes of text at once",
            LoginEndCause::Header => "a login request of the initiator has a header that none may have",
            LoginEndCause::Version => "the initiator speaks no version 0 of iSCSI",
            LoginEndCause::Changed => {
                "the initiator changed its tags, its ISID or its CID in the middle of the login"
            }
            LoginEndCause::Stage => "the initiator asked for a stage of the login that there is not",
            LoginEndCause::Unasked => "the initiator sent text where none was due",
            LoginEndCause::Overtaken => "the initiator sent a request before the last was answered",
            LoginEndCause::TooManyRequests => "the initiator does not come to the end of its login",
            LoginEndCause::Missing(key) => return write!(f, "the initiator did not send {}", key.name()),
            LoginEndCause::InitiatorName => {
                "the initiator's name is not an iSCSI name: use one that begins with iqn., eui. or naa."
            }
            LoginEndCause::TargetName => {
                "the requested target name is not an iSCSI name: check the initiator's configuration"
            }
            LoginEndCause::SessionType => "the initiator asked for a type of session that there is not",
            LoginEndCause::Violation(violation) => return write!(f, "{violation}"),
            LoginEndCause::Authentication => {
                "the initiator did not authenticate: compare its CHAP names and secrets with those configured here"
            }
            LoginEndCause::Refused(status) => return fmt_refusal(*status, f),
            LoginEndCause::OutOfTurn => "internal error of this target: the login is out of order",
        };
        f.write_str(text)
    }
}

fn fmt_refusal(status: LoginStatus, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
    let text = match status {
        LoginStatus::AUTHENTICATION_FAILURE => {
            "the initiator did not authenticate: compare its CHAP names and secrets with those configured here"
        }
        LoginStatus::AUTHORIZATION_FAILURE => {
            "no rule lets this initiator in from there: name it in a [[host]] of this target"
        }
        LoginStatus::TARGET_NOT_FOUND => {
            "there is no such target at this address: `blockwire target list` shows them"
        }
        LoginStatus::TARGET_REMOVED => "the target is gone",
        LoginStatus::TOO_MANY_CONNECTIONS => "its session has as many connections as were agreed",
        LoginStatus::CANNOT_INCLUDE => "its session cannot have this connection",
        LoginStatus::SESSION_DOES_NOT_EXIST => "the session to join does not exist",
        LoginStatus::SERVICE_UNAVAILABLE => {
            "put off for a while: too many tries from there, or the target is stopping"
        }
        LoginStatus::OUT_OF_RESOURCES => "no memory or no place is left for it: see [limits]",
        LoginStatus { class, detail } => {
            return write!(f, "refused with login status {class:02x}{detail:02x}h");
        }
    };
    f.write_str(text)
}

impl From<NegotiationViolation> for LoginEndCause {
    fn from(violation: NegotiationViolation) -> Self {
        LoginEndCause::Violation(violation)
    }
}

impl From<TextError> for LoginEndCause {
    fn from(error: TextError) -> Self {
        LoginEndCause::Violation(NegotiationViolation::Text(error))
    }
}

impl From<crate::chap::ChapFailed> for LoginEndCause {
    fn from(_: crate::chap::ChapFailed) -> Self {
        LoginEndCause::Authentication
    }
}
