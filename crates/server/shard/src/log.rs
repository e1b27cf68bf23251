//! Events for the operator's log and for the flight recorder.

mod flight;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use buf::Time;
use flight_recorder::FlightRecorder;
use iscsi::login::LoginEndCause;
use iscsi::session::LinkFault as IscsiLinkFault;
use iscsi::wire::LoginStatus;

use nvme::Nqn;
use nvme::fabrics::ConnectRefusal;
use nvme_server::ControllerEnd;
use nvme_tcp::LinkFault;

/// How many lines wait for the log at most.
const LOG_MAX: usize = 256;

/// Lines that nobody has fetched yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Log {
    lines: VecDeque<LogLine>,
    /// Whether or not their lines found room.
    refusals: Vec<(RefusalCause, u64)>,
    /// Has every line, also those that found no room.
    recorder: Option<FlightRecorder>,
    /// The time of what is recorded.
    now: Time,
}

/// Protocol and cause of a refusal, each in a word; there is a fixed number of them.
pub type RefusalCause = (&'static str, &'static str);

impl Log {
    pub(crate) fn push(&mut self, line: LogLine) {
        self.record_line(&line);
        if let Some(cause) = line.refusal_cause() {
            match self.refusals.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, count)) => *count += 1,
                None => self.refusals.push((cause, 1)),
            }
        }
        if self.lines.len() < LOG_MAX {
            self.lines.push_back(line);
        }
    }

    /// How often hosts were refused, by cause.
    pub(crate) fn refusal_counts(&self) -> &[(RefusalCause, u64)] {
        &self.refusals
    }

    pub(crate) fn poll_line(&mut self) -> Option<LogLine> {
        self.lines.pop_front()
    }
}

/// Something that an operator may want to know.
#[derive(Clone, Debug)]
pub enum LogLine {
    /// A login failed.
    LoginFailed {
        /// Where it came from.
        peer: SocketAddr,
        /// Who wanted to log in to what, if it said so.
        names: Option<Box<LoginNames>>,
        /// Why; `None`: the peer went away or took too long.
        cause: Option<LoginEndCause>,
    },
    /// An initiator is in.
    LoggedIn {
        /// Where it came from.
        peer: SocketAddr,
        /// Who.
        initiator: Arc<str>,
        /// Where; `None`: discovery.
        target: Option<Arc<str>>,
    },
    /// A session has ended.
    LoggedOut {
        /// Where its latest connection came from.
        peer: SocketAddr,
        /// Who.
        initiator: Arc<str>,
        /// Where; `None`: discovery.
        target: Option<Arc<str>>,
    },
    /// About an NVMe host.
    Nvme(NvmeLogLine),
    /// A peer broke the protocol.
    LinkFault {
        /// Where the connection came from.
        peer: SocketAddr,
        /// Who.
        initiator: Arc<str>,
        /// Where; `None`: discovery.
        target: Option<Arc<str>>,
        /// How.
        violation: IscsiLinkFault,
    },
    /// Something happened to a volume.
    Volume {
        /// Its name.
        name: Arc<str>,
        /// What.
        remark: volume::OperatorNotice,
    },
}

/// What an initiator says of itself in a login; nothing of it is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginNames {
    /// Its name.
    pub initiator: String,
    /// The target; `None`: discovery.
    pub target: Option<String>,
    /// Its CHAP name, if it gave one.
    pub user: Option<String>,
}

/// A line about an NVMe host.
#[derive(Clone, Debug)]
pub enum NvmeLogLine {
    /// A connection ended before it became a queue.
    NotConnected {
        /// Where it came from.
        peer: SocketAddr,
        /// Who to whom, if it said: host and subsystem.
        names: Option<(Nqn, Nqn)>,
        /// Why; `None`: the peer went away or took too long.
        cause: Option<ConnectFailure>,
    },
    /// A host has a controller.
    Connected {
        /// Where it came from.
        peer: SocketAddr,
        /// Who.
        host: Nqn,
        /// Where.
        subsystem: Nqn,
        /// The controller.
        cntlid: u16,
    },
    /// A controller has ended.
    Disconnected {
        /// Where its admin queue came from.
        peer: SocketAddr,
        /// Who.
        host: Nqn,
        /// Where.
        subsystem: Nqn,
        /// The controller.
        cntlid: u16,
        /// What ended it.
        why: ControllerEnd,
    },
    /// A peer broke the protocol.
    LinkFault {
        /// Where it came from.
        peer: SocketAddr,
        /// Who to whom, if it said: host and subsystem.
        names: Option<(Nqn, Nqn)>,
        /// How.
        violation: LinkFault,
    },
}

impl LogLine {
    /// If it tells that a host was refused, or has failed: by which protocol, and why, in a word.
    pub fn refusal_cause(&self) -> Option<RefusalCause> {
        match self {
            LogLine::LoginFailed { cause: None, .. } => Some((ISCSI, UNFINISHED)),
            LogLine::LoginFailed { cause: Some(cause), .. } => Some((ISCSI, login_cause_word(*cause))),
            LogLine::LinkFault { .. } => Some((ISCSI, PROTOCOL_VIOLATION)),
            LogLine::Nvme(line) => Some((NVME, line.refusal_cause()?)),
            LogLine::LoggedIn { .. } | LogLine::LoggedOut { .. } | LogLine::Volume { .. } => None,
        }
    }
}

const ISCSI: &str = "iscsi";
const NVME: &str = "nvme";
/// The peer went away, or took too long.
const UNFINISHED: &str = "unfinished";
/// The peer broke the protocol.
const PROTOCOL_VIOLATION: &str = "protocol";
const AUTHENTICATION: &str = "authentication";
/// There was no TLS where it is demanded, or it failed.
const TLS: &str = "tls";

fn login_cause_word(cause: LoginEndCause) -> &'static str {
    match cause.login_status() {
        LoginStatus::AUTHENTICATION_FAILURE => AUTHENTICATION,
        LoginStatus::AUTHORIZATION_FAILURE => "not-allowed",
        LoginStatus::TARGET_NOT_FOUND | LoginStatus::TARGET_REMOVED => "no-target",
        LoginStatus::SERVICE_UNAVAILABLE => "unavailable",
        LoginStatus::OUT_OF_RESOURCES => "no-resources",
        LoginStatus::TOO_MANY_CONNECTIONS => "too-many",
        LoginStatus::MOVED_TEMPORARILY | LoginStatus::MOVED_PERMANENTLY => "redirected",
        _other => PROTOCOL_VIOLATION,
    }
}

impl NvmeLogLine {
    fn refusal_cause(&self) -> Option<&'static str> {
        Some(match self {
            NvmeLogLine::NotConnected { cause: None, .. } => UNFINISHED,
            NvmeLogLine::NotConnected { cause: Some(cause), .. } => match cause {
                ConnectFailure::NoSubsystem => "no-target",
                ConnectFailure::Away => "unavailable",
                ConnectFailure::Blocked => "blocked",
                ConnectFailure::NotAllowed | ConnectFailure::OtherRule => "not-allowed",
                ConnectFailure::TooManyControllers | ConnectFailure::TooManyOfSource => "too-many",
                ConnectFailure::IdentifierTaken(_) => "identifier-taken",
                ConnectFailure::PutOff => "delayed",
                ConnectFailure::NotConnect => PROTOCOL_VIOLATION,
                ConnectFailure::Refused(_) => "refused",
                ConnectFailure::NoMemory => "no-resources",
                ConnectFailure::TlsRequired
                | ConnectFailure::TlsOff
                | ConnectFailure::TlsNames
                | ConnectFailure::TlsMixed => TLS,
            },
            NvmeLogLine::Disconnected { why, .. } if why.is_unauthenticated() => AUTHENTICATION,
            NvmeLogLine::Disconnected { why: ControllerEnd::Overloaded, .. } => "delayed",
            NvmeLogLine::LinkFault { violation, .. } => match violation {
                LinkFault::Tls(_) | LinkFault::TlsRequired => TLS,
                LinkFault::TlsNotComputed => "too-many",
                _ => PROTOCOL_VIOLATION,
            },
            NvmeLogLine::Connected { .. } | NvmeLogLine::Disconnected { .. } => return None,
        })
    }
}

/// Why a queue was not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectFailure {
    /// There is no such subsystem at this address.
    NoSubsystem,
    /// The volumes of the subsystem are away for now.
    Away,
    /// No rule of the subsystem lets the host in.
    NotAllowed,
    /// The operator or the configuration blocks the host.
    Blocked,
    /// It is an I/O queue, and its address comes under another rule of the subsystem than that of the
    /// controller's admin queue.
    OtherRule,
    /// The subsystem, or the daemon, has as many controllers as it may.
    TooManyControllers,
    /// Its source has as many controllers of the discovery service as it may.
    TooManyOfSource,
    /// The host's identifier is in use by the host of this name.
    IdentifierTaken(Arc<str>),
    /// Too many hosts from there have failed to prove who they are: it has to wait.
    PutOff,
    /// It sent another command than Connect first.
    NotConnect,
    /// The Connect was refused, by the controller that it named or for what it said.
    Refused(ConnectRefusal),
    /// There was no memory for it.
    NoMemory,
    /// The subsystem demands TLS, and it came without.
    TlsRequired,
    /// The subsystem has no TLS, and it came by TLS.
    TlsOff,
    /// It is an I/O queue, and did not come by the TLS that its controller's admin queue came by.
    TlsMixed,
    /// The identity of its TLS key is of another host or subsystem than its Connect names.
    TlsNames,
}

/// In words, with what to do about it.
impl std::fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ConnectFailure::NoSubsystem => "there is no such subsystem at this address",
            ConnectFailure::Away => "its volumes cannot be served for now: see volume list",
            ConnectFailure::NotAllowed => "no rule lets this host in from there: name it in a [[host]] of the subsystem",
            ConnectFailure::Blocked => "the host is blocked: see blockwire host unblock, and blocked in its [[host]]",
            ConnectFailure::OtherRule => {
                "it comes under another rule than that of its controller's admin queue, or than that of the secret which \
                 generated its key"
            }
            ConnectFailure::TooManyControllers => "there are as many controllers as may be: see controllers and [limits]",
            ConnectFailure::TooManyOfSource => {
                "its address has as many controllers of the discovery service as it may: see discovery_per_source"
            }
            ConnectFailure::TlsRequired => "its subsystem demands TLS (tls = \"require\"), and it came without: give the host a key",
            ConnectFailure::TlsOff => "its subsystem has tls = \"off\", and it came by TLS",
            ConnectFailure::TlsNames => "its Connect names another host or subsystem than its TLS identity",
            ConnectFailure::TlsMixed => {
                "it did not come as its controller's admin queue did: all queues by TLS with one key, or none"
            }
            ConnectFailure::IdentifierTaken(bearer) => return write!(f, "its host identifier is in use by {bearer}"),
            ConnectFailure::PutOff => "hosts from there did not authenticate several times: it has to wait",
            ConnectFailure::NotConnect => "it sent another command than Connect first",
            ConnectFailure::Refused(refusal) => return write!(f, "{refusal}"),
            ConnectFailure::NoMemory => "there is no memory for it: see memory in [limits]",
        })
    }
}

impl NvmeLogLine {
    /// Whether anybody can cause it at will.
    pub fn is_from_unauthenticated(&self) -> bool {
        match self {
            NvmeLogLine::NotConnected { .. } | NvmeLogLine::LinkFault { .. } => true,
            NvmeLogLine::Disconnected { why, .. } => {
                why.is_unauthenticated() || *why == ControllerEnd::Overloaded
            }
            NvmeLogLine::Connected { .. } => false,
        }
    }
}
