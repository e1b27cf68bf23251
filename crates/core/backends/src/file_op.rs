//! The operations of a file backend, with one disk operation of each out at a time.

use buf::{Errno, Payload, Sg, SgMut};
use volume::{Extent, Failure, Fault, IoId, Refusal, Span};

use crate::unsynced_writes::StableWriteSide;

/// How often in a row a call is made once more that brought nothing on: interrupted, told to come again, or
/// of less than a unit. Each of them is over by itself, or never.
pub(crate) const TRIES_MAX: u8 = 16;

/// An operation between its submission and its end.
#[derive(Debug)]
pub(crate) struct FileOp {
    pub(crate) id: IoId,
    /// The caller's memory while it is not with the disk.
    pub(crate) payload: Payload,
    pub(crate) kind: FileOpKind,
    /// Asked to end early.
    pub(crate) cancelled: bool,
    /// How many calls in a row have brought nothing on.
    pub(crate) tries: u8,
}

/// What is being done.
#[derive(Debug)]
pub(crate) enum FileOpKind {
    /// Straight into the caller's memory.
    Read,
    /// Into aligned memory of `cover` bytes; the caller's part starts at `from`.
    ReadAround { span: Span, from: usize },
    /// Bytes of the caller, or a copy of them in aligned memory. Whether they are to be stable, and if the
    /// write itself makes them so, where it is counted; and whether that has failed, so that it is made once more
    /// without being stable, to learn which half has failed.
    Write { durable: bool, side: Option<StableWriteSide>, probes: bool },
    /// Giving space back, zeroing, or writing zeroes, whichever the file can do.
    Erase { span: Span, how: EraseMethod, stable: bool },
    /// Waiting for a sync.
    Sync,
    /// Looking for data and holes from `at` bytes on.
    Extents { span: Span, at: u64, found: Vec<Extent> },
    /// Reading ahead.
    Prefetch,
}

/// How to make blocks zero.
#[derive(Clone, Debug)]
pub(crate) enum EraseMethod {
    /// Deallocating them.
    Punch,
    /// The file's own way, keeping the space.
    Zero,
    /// Writing zeroes: so many bytes are done.
    Fill { done: u64, zeroes: Sg },
}

/// What an error of the system means; `medium` if it is the fault of the block at which it happened.
/// Numbers as Linux has them.
pub(crate) fn failure_from_errno(errno: Errno, medium: Fault) -> Failure {
    match errno.0 {
        // ENOSPC, EDQUOT, EFBIG.
        28 | 122 | 27 => Fault::NoSpace.into(),
        // ENXIO, ENODEV, ENOTCONN, ESHUTDOWN, ETIMEDOUT, ENOLINK, ESTALE, ENOMEDIUM.
        6 | 19 | 107 | 108 | 110 | 67 | 116 | 123 => Fault::PathLost.into(),
        // ECANCELED.
        125 => Fault::Aborted.into(),
        // ENOMEM, ENOBUFS; EINTR, EAGAIN, again and again.
        12 | 105 | 4 | 11 => Refusal::Busy.into(),
        // EROFS, EPERM.
        30 | 1 => Refusal::ReadOnly.into(),
        // EIO, EREMOTEIO, ENODATA, EILSEQ, EBADMSG, and what nobody expects.
        _ => medium.into(),
    }
}

/// Whether the call should be made once more: EINTR, EAGAIN.
pub(crate) fn is_transient(errno: Errno) -> bool {
    matches!(errno.0, 4 | 11)
}

/// Whether the file cannot do this at all: EOPNOTSUPP, ENOSYS, ENOTTY, EINVAL.
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno.0, 95 | 38 | 25 | 22)
}

/// Whether an error of a write that is stable by itself is about the write alone, and says nothing of what
/// others have written: ENOSPC, EDQUOT, EFBIG, which past the page cache come before anything is written;
/// EINVAL, EOPNOTSUPP, ENOSYS, EPERM, which refuse the call; EINTR, EAGAIN, which put it off.
pub(crate) fn is_write_specific(errno: Errno) -> bool {
    matches!(errno.0, 28 | 122 | 27 | 22 | 95 | 38 | 1 | 4 | 11)
}

/// Whether an error says that the very blocks of a call are bad: EIO, EREMOTEIO, ENODATA, EILSEQ, EBADMSG.
pub(crate) fn is_medium_error(errno: Errno) -> bool {
    matches!(errno.0, 5 | 121 | 61 | 84 | 74)
}

/// Copies the caller's part out of what was read around it.
pub(crate) fn copy_out_of_surrounding(around: &Sg, from: usize, into: &mut SgMut) {
    let mut at = from;
    for slice in into.slices_mut(0..into.len()) {
        around.copy_to(at, slice);
        at += slice.len();
    }
}
