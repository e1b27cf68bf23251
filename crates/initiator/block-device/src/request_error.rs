//! Why a request of the local system failed, in terms that all servers share.

use volume::{Failure, Fault, Refusal};

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The medium, the path or the backing store failed.
    Io,
    /// No space: in the backing store, or behind the end of the volume.
    NoSpace,
    /// Writes are refused.
    ReadOnly,
    /// Another host's reservation forbids it.
    Conflict,
    /// The volume cannot do it.
    Unsupported,
    /// The request itself is wrong: outside of the volume, or of a form that was not offered.
    Invalid,
    /// The volume is gone.
    Gone,
}

impl RequestError {
    /// The `errno` that Linux gives its own block devices' users for this.
    pub fn errno(self) -> i32 {
        match self {
            RequestError::Io | RequestError::Gone => libc::EIO,
            RequestError::NoSpace => libc::ENOSPC,
            RequestError::ReadOnly => libc::EROFS,
            RequestError::Conflict => libc::EBADE,
            RequestError::Unsupported => libc::EOPNOTSUPP,
            RequestError::Invalid => libc::EINVAL,
        }
    }
}

impl From<Failure> for RequestError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Failed(Fault::NoSpace) => RequestError::NoSpace,
            Failure::Failed(
                Fault::Medium(_)
                | Fault::Unwritable(_)
                | Fault::Miscompare(_)
                | Fault::Sync
                | Fault::PathLost
                | Fault::Aborted
                | Fault::Internal,
            ) => RequestError::Io,
        }
    }
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => RequestError::Conflict,
            Refusal::OutOfRange | Refusal::AtomicUnit => RequestError::Invalid,
            Refusal::ReadOnly => RequestError::ReadOnly,
            Refusal::Unsupported => RequestError::Unsupported,
            Refusal::NoMarkSpace | Refusal::NoRegistrationSpace => RequestError::NoSpace,
            Refusal::Inaccessible(_)
            | Refusal::NotReady(_)
            | Refusal::Busy
            | Refusal::NotRegistered
            | Refusal::InvalidRelease
            | Refusal::InvalidAction
            | Refusal::NothingReserved
            | Refusal::NotDurable
            | Refusal::RemovalPrevented
            | Refusal::NotFenced => RequestError::Io,
        }
    }
}
