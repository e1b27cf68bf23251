//! Why a request of the local system was not carried out, in the words that all fronts share.

use volume::{Failure, Fault, Refusal};

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
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

impl Trouble {
    /// The `errno` that Linux gives its own block devices' users for this.
    pub fn errno(self) -> i32 {
        match self {
            Trouble::Io | Trouble::Gone => libc::EIO,
            Trouble::NoSpace => libc::ENOSPC,
            Trouble::ReadOnly => libc::EROFS,
            Trouble::Conflict => libc::EBADE,
            Trouble::Unsupported => libc::EOPNOTSUPP,
            Trouble::Invalid => libc::EINVAL,
        }
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Failed(Fault::NoSpace) => Trouble::NoSpace,
            Failure::Failed(
                Fault::Medium(_)
                | Fault::Unwritable(_)
                | Fault::Miscompare(_)
                | Fault::Sync
                | Fault::PathLost
                | Fault::Aborted
                | Fault::Internal,
            ) => Trouble::Io,
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Conflict => Trouble::Conflict,
            Refusal::OutOfRange | Refusal::AtomicUnit => Trouble::Invalid,
            Refusal::ReadOnly => Trouble::ReadOnly,
            Refusal::Unsupported => Trouble::Unsupported,
            Refusal::NoMarkSpace | Refusal::NoRegistrationSpace => Trouble::NoSpace,
            Refusal::Inaccessible(_)
            | Refusal::NotReady(_)
            | Refusal::Busy
            | Refusal::NotRegistered
            | Refusal::InvalidRelease
            | Refusal::InvalidAction
            | Refusal::NothingReserved
            | Refusal::NotDurable
            | Refusal::RemovalPrevented
            | Refusal::NotFenced => Trouble::Io,
        }
    }
}
