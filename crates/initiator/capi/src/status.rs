//! Results: codes, their meaning, and the message of a thread's last failed call.
//!
//! Invariant: a message never contains a secret: it is one of the initiator's or of this crate.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use client::{Error, ErrorKind, Failure, Fault, Refusal};

/// A code of the header: zero, or below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub i32);

impl Status {
    pub const OK: Status = Status(0);
    pub const AGAIN: Status = Status(-1);
    pub const USAGE: Status = Status(-2);
    pub const UNREACHABLE: Status = Status(-3);
    pub const UNPROVEN: Status = Status(-4);
    pub const NOT_FOUND: Status = Status(-5);
    pub const TIMED_OUT: Status = Status(-6);
    pub const FAILED: Status = Status(-7);
    pub const MEDIUM: Status = Status(-8);
    pub const NO_SPACE: Status = Status(-9);
    pub const READ_ONLY: Status = Status(-10);
    pub const RESERVED: Status = Status(-11);
    pub const UNSUPPORTED: Status = Status(-12);
    pub const ABORTED: Status = Status(-13);
    pub const LOST: Status = Status(-14);
    pub const THREAD: Status = Status(-15);

    /// What it means, and the system's number that fits best.
    pub fn message_and_errno(self) -> (&'static CStr, i32) {
        match self {
            Status::AGAIN => (c"too many operations are in flight: poll, then try again", libc::EAGAIN),
            Status::USAGE => (c"the arguments are invalid", libc::EINVAL),
            Status::UNREACHABLE => (c"no answer in time", libc::EHOSTUNREACH),
            Status::UNPROVEN => (c"one side's secret was not believed", libc::EACCES),
            Status::NOT_FOUND => (c"there is no such target, logical unit or namespace", libc::ENOENT),
            Status::TIMED_OUT => (c"no answer in time", libc::ETIMEDOUT),
            Status::FAILED => (c"the target or the system refused", libc::EIO),
            Status::MEDIUM => (c"a block cannot be read or written", libc::EIO),
            Status::NO_SPACE => (c"the target has no space left", libc::ENOSPC),
            Status::READ_ONLY => (c"the volume is read-only", libc::EROFS),
            // As Linux says it.
            Status::RESERVED => (c"another host's reservation forbids it", libc::EBADE),
            Status::UNSUPPORTED => (c"the target cannot do it", libc::EOPNOTSUPP),
            Status::ABORTED => (c"it was cancelled", libc::ECANCELED),
            Status::LOST => (c"what was written may be lost", libc::EIO),
            Status::THREAD => (c"the handle belongs to another thread", libc::EPERM),
            Status(0..) => (c"success", 0),
            Status(_) => (c"an unknown code", libc::EIO),
        }
    }
}

/// How an operation ended: its code, and the block that is at fault.
pub fn status_of_failure(failure: Failure) -> (Status, u64) {
    let status = match failure {
        Failure::Failed(Fault::Medium(block) | Fault::Unwritable(block)) => return (Status::MEDIUM, block),
        Failure::Failed(Fault::NoSpace) => Status::NO_SPACE,
        Failure::Failed(Fault::Sync) => Status::LOST,
        Failure::Failed(Fault::PathLost) => Status::TIMED_OUT,
        Failure::Failed(Fault::Aborted) => Status::ABORTED,
        Failure::Failed(Fault::Miscompare(_) | Fault::Internal) => Status::FAILED,
        Failure::Refused(Refusal::Conflict) => Status::RESERVED,
        Failure::Refused(Refusal::ReadOnly) => Status::READ_ONLY,
        Failure::Refused(Refusal::OutOfRange) => Status::USAGE,
        Failure::Refused(Refusal::Unsupported) => Status::UNSUPPORTED,
        Failure::Refused(_) => Status::FAILED,
    };
    (status, 0)
}

thread_local! {
    static LAST_MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps what a call that fails has to say.
pub fn set_last_error(status: Status, message: &str) -> Status {
    let text: Vec<u8> = message.bytes().filter(|byte| *byte != 0).collect();
    LAST_MESSAGE.with(|last| last.replace(CString::new(text).unwrap_or_default()));
    status
}

/// A call that makes no sense.
pub fn usage_error(message: &str) -> Status {
    set_last_error(Status::USAGE, message)
}

/// What the initiator says.
pub fn status_of_error(error: &Error) -> Status {
    let status = match (error.failure, error.kind) {
        (Some(failure), _) => status_of_failure(failure).0,
        (None, ErrorKind::Usage) => Status::USAGE,
        (None, ErrorKind::Unreachable) => Status::UNREACHABLE,
        (None, ErrorKind::Unproven) => Status::UNPROVEN,
        (None, ErrorKind::NotFound) => Status::NOT_FOUND,
        (None, ErrorKind::TimedOut) => Status::TIMED_OUT,
        (None, ErrorKind::Failed) => Status::FAILED,
    };
    set_last_error(status, &error.message)
}

/// What was said last; good until the next failure on this thread.
pub fn last_error_message() -> *const c_char {
    LAST_MESSAGE.with(|last| last.borrow().as_ptr())
}

/// What a call comes to.
pub(crate) fn return_code(result: Result<c_int, Status>) -> c_int {
    result.unwrap_or_else(|status| status.0)
}
