//! Exit codes of the command line (a contract: scripts depend on them) and the one error type that carries them.

use std::fmt;

use client::{Error, ErrorKind};

/// What the process tells its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It is done.
    Success = 0,
    /// It failed.
    Failure = 1,
    /// The command line or the configuration is wrong; nothing was tried.
    Usage = 2,
    /// What was looked at would end or change connections that stand (`plan`).
    Disturbs = 3,
    /// Nothing accepted the connection in time.
    ConnectTimeout = 8,
    /// What was to be attached there is attached already.
    Exists = 15,
    /// What was asked for does not exist.
    NothingFound = 21,
    /// One side did not prove who it is.
    NotAuthenticated = 24,
    /// The request was accepted and not answered in time.
    RequestTimeout = 33,
    /// It was ended by SIGHUP before it was done: 128 and the signal's number, as shells have it.
    HungUp = 129,
    /// It was ended by SIGINT.
    Interrupted = 130,
    /// It was ended by SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// Its name, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Exit::Success => "success",
            Exit::Failure => "failure",
            Exit::Usage => "usage",
            Exit::Disturbs => "disturbs",
            Exit::ConnectTimeout => "connect-timeout",
            Exit::Exists => "exists",
            Exit::NothingFound => "nothing-found",
            Exit::NotAuthenticated => "not-authenticated",
            Exit::RequestTimeout => "request-timeout",
            Exit::HungUp => "hung-up",
            Exit::Interrupted => "interrupted",
            Exit::Terminated => "terminated",
        }
    }

    /// Which side is at fault, as far as the code alone tells it.
    fn default_fault(self) -> FaultSide {
        match self {
            Exit::Usage
            | Exit::NothingFound
            | Exit::Exists
            | Exit::NotAuthenticated
            | Exit::HungUp
            | Exit::Interrupted
            | Exit::Terminated => FaultSide::Caller,
            Exit::ConnectTimeout | Exit::RequestTimeout => FaultSide::Peer,
            Exit::Success | Exit::Disturbs | Exit::Failure => FaultSide::Unknown,
        }
    }
}

/// Which side has to do something about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSide {
    /// Who typed the command: what was asked, or as whom.
    Caller,
    /// The daemon of this machine, or what it runs on.
    Daemon,
    /// The other machine, or the network to it.
    Peer,
    /// Only the message tells.
    Unknown,
}

impl FaultSide {
    /// Its name, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            FaultSide::Caller => "caller",
            FaultSide::Daemon => "daemon",
            FaultSide::Peer => "peer",
            FaultSide::Unknown => "unknown",
        }
    }
}

/// A failure on its way to the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the process exits with.
    pub exit: Exit,
    /// What the person reads; may hold several lines. Never a secret.
    pub message: String,
    /// Which side is at fault.
    pub fault: FaultSide,
}

impl Failure {
    /// A failure with its message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Failure { exit, message: message.to_string(), fault: exit.default_fault() }
    }

    /// The same, and which side is at fault.
    #[must_use]
    pub fn with_fault(self, fault: FaultSide) -> Self {
        Failure { fault, ..self }
    }

    /// Where to look next, beside what the message says.
    pub fn next_step(&self) -> &'static str {
        match (self.exit, self.fault) {
            (Exit::Usage, _) => {
                "correct the command or the configuration; `--help` after the verb shows its options"
            }
            (Exit::NothingFound, _) => {
                "list what there is: the `list` verbs of the daemon, `blockwire discover URL` elsewhere"
            }
            (Exit::Exists, _) => "look at `blockwire attach --list`, and detach what is there first",
            (Exit::NotAuthenticated, _) => {
                "compare names and secrets of both sides; the target's log has the cause"
            }
            (Exit::ConnectTimeout, _) => {
                "check that the other machine runs and that address, port and firewalls are right"
            }
            (_, FaultSide::Daemon) => "look at `blockwire status` and the daemon's log",
            (_, FaultSide::Peer) => "look at the other machine's log; `blockwire doctor URL` shows each step",
            (_, FaultSide::Caller | FaultSide::Unknown) => "do what the message says, and try again",
        }
    }

    /// An ordinary failure, exit code 1.
    pub fn failed(message: impl fmt::Display) -> Self {
        Failure::new(Exit::Failure, message)
    }

    /// A usage error, exit code 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        Failure::new(Exit::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(why: Error) -> Self {
        let exit = match why.kind {
            ErrorKind::Usage => Exit::Usage,
            ErrorKind::Unreachable => Exit::ConnectTimeout,
            ErrorKind::Unproven => Exit::NotAuthenticated,
            ErrorKind::NotFound => Exit::NothingFound,
            ErrorKind::TimedOut => Exit::RequestTimeout,
            ErrorKind::Failed => Exit::Failure,
        };
        let is_answered = why.failure.is_some() && exit == Exit::Failure;
        let failure = Failure::new(exit, why.message);
        if is_answered { failure.with_fault(FaultSide::Peer) } else { failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_which_side_is_at_fault_and_what_is_next() {
        assert_eq!(Failure::usage("x").fault.name(), "caller");
        assert_eq!(Failure::new(Exit::RequestTimeout, "x").fault, FaultSide::Peer);
        assert_eq!(Failure::failed("x").fault, FaultSide::Unknown);
        let daemon = Failure::failed("x").with_fault(FaultSide::Daemon);
        assert!(daemon.next_step().contains("blockwire status"));
        assert!(Failure::new(Exit::NothingFound, "x").next_step().contains("blockwire discover"));
    }
}
