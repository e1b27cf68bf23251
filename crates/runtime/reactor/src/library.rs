//! Disks behind a library with threads of its own, librbd for example: a shard starts a call and goes on, and a
//! thread of the library tells its end.
//!
//! Invariant: the operation, its memory and its address list stand still in their slot from
//! [`LibraryDisk::start`] until its [`CallEnd`] is ended or dropped, once. Ended calls wait in a list that never
//! has more entries than operations are out, so nobody waits for room in it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use buf::Errno;

use crate::mailbox::ShardWaker;

/// A call of a library. The addresses are of memory that is valid until the [`CallEnd`] of the call is ended: nobody
/// else touches that of a read, and nobody changes that of a write.
#[derive(Clone, Copy, Debug)]
pub enum LibraryCall {
    /// Fill the memory from `offset` on. Ends with the number of bytes.
    Read {
        /// The list of the memory's pieces; at most 1024.
        iov: *const libc::iovec,
        /// How many pieces.
        count: usize,
        /// First byte on the disk.
        offset: u64,
    },
    /// Write the memory from `offset` on. Ends with the number of bytes.
    Write {
        /// The list of the memory's pieces; at most 1024.
        iov: *const libc::iovec,
        /// How many pieces.
        count: usize,
        /// First byte on the disk.
        offset: u64,
    },
    /// Make stable what has been written.
    Sync,
    /// Give the space back; reads zero afterwards.
    Punch {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Zero, keeping the space.
    Zero {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
    },
    /// Search the first data at or behind `offset`. Ends with its start and end, or `None`.
    NextData {
        /// First byte.
        offset: u64,
    },
}

// SAFETY: the addresses are of memory that the shard leaves alone until the call has ended (see `CallEnd`).
unsafe impl Send for LibraryCall {}

/// A disk whose calls a library carries out.
///
/// # Safety
/// The memory of a call is not touched after its [`CallEnd`] was ended or dropped, and that of a write is never
/// changed.
pub unsafe trait LibraryDisk: fmt::Debug + Send + Sync {
    /// Starts a call, and does not wait for anything: a shard's thread calls it. `end` is to be ended by any thread,
    /// at any time, also before this returns.
    fn start(&self, call: LibraryCall, end: CallEnd);
}

/// What stands behind a disk.
#[derive(Clone, Debug)]
pub enum DiskSource {
    /// An open file or block device.
    File(Arc<OwnedFd>),
    /// A library. Shards drop their handles on their own threads, so dropping one must not wait either.
    Library(Arc<dyn LibraryDisk>),
}

impl From<OwnedFd> for DiskSource {
    fn from(fd: OwnedFd) -> Self {
        DiskSource::File(Arc::new(fd))
    }
}

impl From<std::fs::File> for DiskSource {
    fn from(file: std::fs::File) -> Self {
        OwnedFd::from(file).into()
    }
}

/// A call that has ended: its slot, how, and the data that a search has found.
pub(crate) type EndedCall = (u32, Result<usize, Errno>, Option<(u64, u64)>);

/// The ended calls of one shard that it has not seen yet.
#[derive(Debug)]
pub(crate) struct EndedCalls {
    list: Mutex<Vec<EndedCall>>,
    waker: Arc<ShardWaker>,
}

impl EndedCalls {
    pub(crate) fn new(waker: Arc<ShardWaker>) -> Self {
        EndedCalls { list: Mutex::default(), waker }
    }

    /// Exchanges them for an empty list, which keeps its memory.
    pub(crate) fn take(&self, into: &mut Vec<EndedCall>) {
        std::mem::swap(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner), into);
    }
}

/// Ends one call, once. Dropped, it ends the call with ENOTCONN: nobody
/// knows whether it was carried out, and nothing is known to be wrong with its blocks.
#[derive(Debug)]
pub struct CallEnd {
    to: Arc<EndedCalls>,
    slot: u32,
    has_ended: bool,
}

impl CallEnd {
    pub(crate) fn new(to: Arc<EndedCalls>, slot: u32) -> Self {
        CallEnd { to, slot, has_ended: false }
    }

    /// Ends it: the bytes moved, or what went wrong; `data` is the find of [`LibraryCall::NextData`].
    pub fn end(mut self, came: Result<usize, Errno>, data: Option<(u64, u64)>) {
        self.post(came, data);
    }

    fn post(&mut self, came: Result<usize, Errno>, data: Option<(u64, u64)>) {
        self.has_ended = true;
        self.to.list.lock().unwrap_or_else(PoisonError::into_inner).push((self.slot, came, data));
        self.to.waker.notify();
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        if !self.has_ended {
            self.post(Err(Errno(libc::ENOTCONN)), None);
        }
    }
}
