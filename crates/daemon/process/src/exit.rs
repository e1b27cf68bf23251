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

/// A failure on its way to the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the process exits with.
    pub exit: Exit,
    /// What the person reads; may hold several lines. Never a secret.
    pub message: String,
}

impl Failure {
    /// A failure with its message.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Failure { exit, message: message.to_string() }
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
        Failure::new(exit, why.message)
    }
}
