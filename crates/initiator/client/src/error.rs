//! Errors: what went wrong, which side is at fault, and what to do.

use std::fmt;

use multipath::{DownReason, PathInfo, PathState, Protocol};
use volume::{Failure, Fault, PathAccess, Refusal};

/// The kind of failure, from which the command line derives its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An invalid request: a URL, an offset, a length.
    Usage,
    /// No connection: nothing answered.
    Unreachable,
    /// Authentication failed: the target rejected our secret, or did not prove its own.
    Unproven,
    /// There is no such target, unit or namespace.
    NotFound,
    /// No answer in time.
    TimedOut,
    /// The target or the system refused, or reported an error.
    Failed,
}

/// A failure, in words for a person.
/// ```
/// use blockwire_client::{Initiator, ErrorKind, Settings};
///
/// let mut initiator = Initiator::new(Settings::default())?;
/// let why = initiator.open("iscsi://127.0.0.1/iqn.2026-11.io.blockwire:demo").unwrap_err();
/// assert_eq!(why.kind, ErrorKind::Usage, "{why}");
/// # Ok::<(), blockwire_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: ErrorKind,
    /// What happened and what to do. Never a secret.
    pub message: String,
    /// How the operation ended, if it was one.
    pub failure: Option<Failure>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        Error { kind, message: message.to_string(), failure: None }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Error::new(ErrorKind::Usage, message)
    }

    /// An operation that failed.
    pub fn from_failure(failure: Failure, what: &str) -> Self {
        let kind = match failure {
            Failure::Failed(Fault::PathLost) => ErrorKind::TimedOut,
            Failure::Refused(Refusal::OutOfRange) => ErrorKind::Usage,
            _ => ErrorKind::Failed,
        };
        Error { kind, message: format!("{what}: {}", failure_text(&failure)), failure: Some(failure) }
    }

    /// A failed operation of a volume. If no path was usable, with the last error of each path.
    pub(crate) fn from_volume_failure(failure: Failure, what: &str, paths: &[PathInfo]) -> Self {
        let mut error = Error::from_failure(failure, what);
        if failure != Failure::Failed(Fault::PathLost) {
            return error;
        }
        let mut said: Vec<String> = Vec::new();
        for (_, problem) in paths.iter().filter_map(|path| path.last.as_ref()) {
            let words = match problem {
                multipath::PathProblem::Down(DownReason::Unreachable(errno)) => unreachable_advice(errno.0),
                other => other.to_string(),
            };
            if !said.contains(&words) {
                said.push(words);
            }
        }
        if !said.is_empty() {
            error.message = format!("{}; the last of it: {}", error.message, said.join("; "));
        }
        error
    }

    /// A change without an answer.
    pub(crate) fn with_doubt_advice(mut self) -> Self {
        self.message +=
            "; whether the target has done it is not known: look at its reservations before trying again";
        self
    }

    /// A volume that could not be opened, with the last error of each path. Of a stripe, some legs may be usable.
    pub(crate) fn volume_not_opened(url: &str, paths: &[PathInfo]) -> Self {
        let mut kind = ErrorKind::Failed;
        for path in paths.iter().filter(|path| path.state != PathState::Up) {
            let Some((_, problem)) = &path.last else { continue };
            kind = match problem {
                multipath::PathProblem::Down(DownReason::Unproven(_) | DownReason::CutShort(_)) => {
                    ErrorKind::Unproven
                }
                multipath::PathProblem::Down(DownReason::Absent(_)) if kind != ErrorKind::Unproven => {
                    ErrorKind::NotFound
                }
                multipath::PathProblem::Down(DownReason::Silent(_) | DownReason::Ended)
                    if matches!(kind, ErrorKind::Failed | ErrorKind::Unreachable) =>
                {
                    ErrorKind::TimedOut
                }
                multipath::PathProblem::Down(DownReason::Unreachable(_)) if kind == ErrorKind::Failed => {
                    ErrorKind::Unreachable
                }
                _ => kind,
            };
        }
        if paths.iter().all(|path| path.state != PathState::Up && path.last.is_none()) {
            kind = ErrorKind::TimedOut;
        } else if paths.iter().any(|path| path.state == PathState::Up && !serves(path)) {
            // It is there and does not serve.
            kind = ErrorKind::Failed;
        }
        Error::new(kind, format!("{url}: {}", unserved_reason(paths)))
    }
}

/// Whether a path is usable now.
pub(crate) fn serves(path: &PathInfo) -> bool {
    path.state == PathState::Up && path.info.as_ref().is_some_and(|info| info.access.allows_io())
}

/// Why a volume is not usable: the last error of each path that is not.
pub(crate) fn unserved_reason(paths: &[PathInfo]) -> String {
    if paths.is_empty() {
        return "there is no path".to_owned();
    }
    let of_path = |path: &PathInfo| match (&path.state, &path.info, &path.last) {
        (PathState::Up, Some(info), _) => access_text(info.access).to_owned(),
        (PathState::Up, None, _) => "the target does not report it".to_owned(),
        (_, _, Some((_, multipath::PathProblem::Down(DownReason::Unreachable(errno))))) => {
            unreachable_advice(errno.0)
        }
        // By us, when `open_timeout` had passed.
        (_, _, Some((_, multipath::PathProblem::Down(DownReason::Ended)))) => {
            "a path did not come up in time".to_owned()
        }
        (_, _, None) => silence_text(path.protocol),
        (_, _, Some((_, problem))) => problem.to_string(),
    };
    let mut said: Vec<String> = Vec::new();
    for words in paths.iter().filter(|path| !serves(path)).map(of_path) {
        if !said.contains(&words) {
            said.push(words);
        }
    }
    match said.is_empty() {
        true => "the target does not report it".to_owned(),
        false => said.join("; "),
    }
}

/// Nothing was heard of a path in time.
fn silence_text(protocol: Protocol) -> String {
    let spoken = match protocol {
        Protocol::Iscsi => "iSCSI",
        Protocol::Nvme => "NVMe/TCP",
    };
    format!(
        "no answer in time: check the address and its firewalls, and that what listens on this port speaks {spoken} \
         (usual ports: iSCSI 3260, NVMe/TCP 4420)"
    )
}

/// The state of a path that does not serve, in words.
pub(crate) fn access_text(access: PathAccess) -> &'static str {
    match access {
        PathAccess::Optimized | PathAccess::NonOptimized => "the path serves",
        PathAccess::Inaccessible => {
            "the path is inaccessible: the target serves the volume by another path only"
        }
        PathAccess::Standby => "the path is in standby: the target serves the volume by another path only",
        PathAccess::PersistentLoss => "the target has lost this path to the volume for good",
        PathAccess::Transition => "the path is changing its state: try again",
    }
}

/// As Linux numbers them.
const EPERM: i32 = 1;
const ENODEV: i32 = 19;
const EAFNOSUPPORT: i32 = 97;

/// What the system said when nobody could be reached, and what to look at.
pub(crate) fn unreachable_advice(errno: i32) -> String {
    let said = std::io::Error::from_raw_os_error(errno);
    let advice = match said.kind() {
        std::io::ErrorKind::AddrNotAvailable => {
            "host_traddr, or the address that the route prefers, is none of this machine: see `ip address`"
        }
        _ if errno == ENODEV => "there is no network interface of the name in host_iface: see `ip link`",
        _ if errno == EAFNOSUPPORT => "the target is at an address of another family than host_traddr",
        _ if errno == EPERM => "host_iface needs CAP_NET_RAW before Linux 5.7",
        std::io::ErrorKind::ConnectionRefused => {
            "nothing listens there: is the target running, and the port right?"
        }
        std::io::ErrorKind::TimedOut => "no answer: check the address, the network and its firewalls",
        _ => "check the address and the network",
    };
    format!("{said} ({advice})")
}

/// A failed operation in words.
fn failure_text(failure: &Failure) -> String {
    let text = match failure {
        Failure::Refused(Refusal::Conflict) => {
            "a reservation forbids it: this host neither holds it nor is registered as its type demands; `blockwire \
             reserve URL report` shows who is"
        }
        Failure::Refused(Refusal::Inaccessible(PathAccess::Transition)) => {
            "the path is changing its state: try again"
        }
        Failure::Refused(Refusal::Inaccessible(_)) => "the target serves the volume by another path only",
        Failure::Refused(Refusal::OutOfRange) => "it goes beyond the end of the volume",
        Failure::Refused(Refusal::ReadOnly) => "the volume is read-only for us",
        Failure::Refused(Refusal::NotReady(_)) => "the volume is not ready",
        Failure::Refused(Refusal::Unsupported) => "the target cannot do it",
        Failure::Refused(Refusal::Busy) => "too much is in flight",
        Failure::Refused(Refusal::NotRegistered) => {
            "the key does not match, or we are not registered: `blockwire reserve URL report` shows who is"
        }
        Failure::Refused(Refusal::NoRegistrationSpace) => "the target has no room for another registration",
        Failure::Refused(Refusal::InvalidRelease) => "the reservation is of another type",
        Failure::Refused(Refusal::AtomicUnit) => "it is longer than the target writes atomically",
        Failure::Refused(Refusal::NoMarkSpace) => "the target cannot mark more blocks",
        Failure::Refused(Refusal::InvalidAction) => "the volume is in no state for it",
        Failure::Refused(Refusal::NothingReserved) => "nothing is reserved",
        Failure::Refused(Refusal::NotDurable) => {
            "the target could not make it durable, so nothing has changed"
        }
        Failure::Refused(Refusal::RemovalPrevented) => "a host prevents that the medium is removed",
        Failure::Refused(Refusal::NotFenced) => {
            "the target did it, but what was in flight before did not end in time: it has closed the volume"
        }
        Failure::Failed(Fault::Unwritable(block)) => return format!("block {block} cannot be written"),
        Failure::Failed(Fault::Medium(block)) => return format!("block {block} cannot be read"),
        Failure::Failed(Fault::Miscompare(at)) => return format!("byte {at} differs from what was expected"),
        Failure::Failed(Fault::NoSpace) => "the target has no space left",
        Failure::Failed(Fault::Sync) => "what was written may be lost: the target could not make it stable",
        Failure::Failed(Fault::PathLost) => "no path to the volume served in time",
        Failure::Failed(Fault::Aborted) => "it was aborted",
        Failure::Failed(Fault::Internal) => "it failed inside the target, or here",
    };
    text.to_owned()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use buf::Time;
    use multipath::{PathCounters, PathProblem};

    use super::*;

    #[test]
    fn an_operation_without_a_path_says_what_ended_the_path() {
        let path = |why: DownReason| PathInfo {
            protocol: Protocol::Iscsi,
            state: PathState::Connecting,
            info: None,
            last: Some((Time(1), PathProblem::Down(why))),
            in_work: 0,
            lands_for: std::time::Duration::ZERO,
            counts: PathCounters::default(),
        };
        let broke =
            || path(DownReason::Lost("the target broke the protocol: it sent a wrong header digest".into()));
        let paths = [broke(), broke(), path(DownReason::Unreachable(buf::Errno(111)))];
        let lost = Failure::Failed(Fault::PathLost);
        let message = Error::from_volume_failure(lost, "read of 512 bytes at 0", &paths).message;
        assert_eq!(message.matches("wrong header digest").count(), 1, "{message}");
        assert!(message.contains("no path to the volume served in time"), "{message}");
        assert!(message.contains("nothing listens there"), "{message}");
        let other = Error::from_volume_failure(Failure::Failed(Fault::NoSpace), "write", &paths).message;
        assert!(!other.contains("header digest"), "{other}");
    }

    #[test]
    fn a_stripe_whose_one_leg_serves_says_why_the_other_does_not() {
        let leg = |state, info, last| PathInfo {
            protocol: Protocol::Nvme,
            state,
            info,
            last,
            in_work: 0,
            lands_for: std::time::Duration::ZERO,
            counts: PathCounters::default(),
        };
        let info = std::sync::Arc::new(multipath::VolumeInfo {
            uuid: None,
            geometry: None,
            read_only: false,
            access: PathAccess::Optimized,
            product: String::new(),
            serial: String::new(),
            depth: 1,
            terms: Vec::new(),
        });
        let absent = PathProblem::Down(DownReason::Absent("Identify Namespace: there is none".into()));
        let up = || leg(PathState::Up, Some(info.clone()), None);
        let paths = [up(), leg(PathState::Connecting, None, Some((Time(1), absent)))];
        let error = Error::volume_not_opened("stripe", &paths);
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("Identify Namespace: there is none"), "{}", error.message);
        assert!(!error.message.contains("does not report"), "{}", error.message);
        let refused = PathProblem::Down(DownReason::Unreachable(buf::Errno(111)));
        let paths = [up(), leg(PathState::Connecting, None, Some((Time(1), refused)))];
        assert!(unserved_reason(&paths).contains("is the target running"));
    }
}
