//! Disk operations as system calls, or as calls of a library: the table of open files, and the slots that hold an
//! operation with its address list while the kernel, a blocking thread or the library works on it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use buf::{Sg, SgMut};
use volume::{DiskId, DiskKind, DiskOp};

use crate::library::{DiskSource, LibraryCall, LibraryDisk};

/// The longest address list that one call takes (UIO_MAXIOV). What does not fit is a short read or
/// write, which the backend continues.
pub(crate) const IOV_MAX: usize = 1024;

/// The file behind a disk, or the library.
pub(crate) struct DiskFile {
    /// One for all shards: there may be many files, and many shards. `None`: it is being closed, or is a library's.
    fd: Option<Arc<OwnedFd>>,
    library: Option<Arc<dyn LibraryDisk>>,
    /// Calls wait for another process even if they are asked not to wait.
    waits_for_others: bool,
}

impl DiskFile {
    /// To be made by a thread that may wait: who serves the file is asked what it is.
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Self {
        /// FUSE_SUPER_MAGIC of linux/magic.h. Its files count as ones that can be read without waiting, and yet the
        /// kernel asks the server for data within io_uring_enter (seen with Linux 6.18).
        const FUSE_SUPER_MAGIC: u64 = 0x6573_5546;
        // SAFETY: a statfs is plain numbers, for which zero is good.
        let mut found: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the call fills what is our own.
        let came = unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut found) };
        // Who does not say what it is may be such a server.
        let waits_for_others = came != 0 || found.f_type as u64 == FUSE_SUPER_MAGIC;
        DiskFile { fd: Some(fd), library: None, waits_for_others }
    }

    /// A shard's own handle on a disk.
    pub(crate) fn of(source: &DiskSource) -> Self {
        match source {
            DiskSource::File(file) => DiskFile::new(file.clone()),
            DiskSource::Library(library) => {
                DiskFile { fd: None, library: Some(library.clone()), waits_for_others: false }
            }
        }
    }

    /// The library that carries its calls out.
    pub(crate) fn library(&self) -> Option<Arc<dyn LibraryDisk>> {
        self.library.clone()
    }

    fn fd(&self) -> RawFd {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Drop for DiskFile {
    /// The last word to a server may have to be waited for, too.
    fn drop(&mut self) {
        if self.waits_for_others && self.fd.is_some() {
            let fd = self.fd.take();
            // If the system has no thread for us, it is waited for here.
            let _ = std::thread::Builder::new().name("bw-close".to_owned()).spawn(move || drop(fd));
        }
    }
}

/// The files that disks stand for, on one shard.
#[derive(Default)]
pub(crate) struct DiskTable {
    files: Vec<Option<Rc<DiskFile>>>,
}

impl DiskTable {
    pub(crate) fn set(&mut self, id: DiskId, file: Option<DiskFile>) {
        let at = id.0 as usize;
        if self.files.len() <= at {
            self.files.resize(at + 1, None);
        }
        if let Some(of) = self.files.get_mut(at) {
            *of = file.map(Rc::new);
        }
    }

    pub(crate) fn file(&self, id: DiskId) -> Option<Rc<DiskFile>> {
        self.files.get(id.0 as usize)?.clone()
    }
}

/// A disk operation that is out.
#[derive(Default)]
pub(crate) struct PendingDiskCall {
    pub(crate) op: Option<DiskOp>,
    /// Keeps the file open until the operation is back, even if its disk is taken away.
    file: Option<Rc<DiskFile>>,
    iov: Vec<libc::iovec>,
}

/// The system call for a disk operation. Addresses point into the memory of a [`PendingDiskCall`] slot's
/// operation and into its list, both of which stay until the call has ended.
#[derive(Clone, Copy)]
pub(crate) struct DiskSyscall {
    pub(crate) fd: RawFd,
    /// Calls of this file wait for another process even if they are asked not to wait.
    pub(crate) waits_for_others: bool,
    pub(crate) kind: SyscallKind,
}

impl DiskSyscall {
    /// The same for a library; `None`: there is nothing to do.
    pub(crate) fn for_library(&self) -> Option<LibraryCall> {
        Some(match self.kind {
            SyscallKind::Read { iov, count, offset } => {
                LibraryCall::Read { iov, count: count as usize, offset }
            }
            // What is written through a library is stable when it has ended, or the library's disk says that it has a
            // cache, and is synced.
            SyscallKind::Write { iov, count, offset, durable: _ } => {
                LibraryCall::Write { iov, count: count as usize, offset }
            }
            SyscallKind::Sync => LibraryCall::Sync,
            SyscallKind::Punch { offset, len } => LibraryCall::Punch { offset, len },
            SyscallKind::Zero { offset, len } => LibraryCall::Zero { offset, len },
            SyscallKind::NextData { offset } => LibraryCall::NextData { offset },
            SyscallKind::Prefetch { .. } => return None,
        })
    }
}

/// Its name and arguments.
#[derive(Clone, Copy)]
pub(crate) enum SyscallKind {
    Read { iov: *const libc::iovec, count: u32, offset: u64 },
    Write { iov: *const libc::iovec, count: u32, offset: u64, durable: bool },
    Sync,
    Punch { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    NextData { offset: u64 },
    Prefetch { offset: u64, len: u64 },
}

// SAFETY: the addresses are of memory that nobody touches until the call has ended: the operation
// and the list stand still in their slot, which is given back by the shard when it hears of the end.
unsafe impl Send for DiskSyscall {}

impl PendingDiskCall {
    /// The disk whose operation is out.
    pub(crate) fn disk(&self) -> Option<DiskId> {
        self.op.as_ref().map(|op| op.disk)
    }

    /// Puts an operation in, and says what to call for it.
    pub(crate) fn start(&mut self, file: Rc<DiskFile>, mut op: DiskOp) -> DiskSyscall {
        self.iov.clear();
        let (fd, waits_for_others) = (file.fd(), file.waits_for_others);
        let kind = match &mut op.kind {
            DiskKind::Read { offset, into, skip } => {
                push_iovecs_mut(&mut self.iov, into, *skip);
                let (iov, count) = (self.iov.as_ptr(), self.iov.len() as u32);
                SyscallKind::Read { iov, count, offset: *offset + *skip as u64 }
            }
            DiskKind::Write { offset, from, skip, durable } => {
                push_iovecs(&mut self.iov, from, *skip);
                let (iov, count) = (self.iov.as_ptr(), self.iov.len() as u32);
                SyscallKind::Write { iov, count, offset: *offset + *skip as u64, durable: *durable }
            }
            DiskKind::Sync => SyscallKind::Sync,
            DiskKind::Punch { offset, len } => SyscallKind::Punch { offset: *offset, len: *len },
            DiskKind::Zero { offset, len } => SyscallKind::Zero { offset: *offset, len: *len },
            DiskKind::NextData { offset, .. } => SyscallKind::NextData { offset: *offset },
            DiskKind::Prefetch { offset, len } => SyscallKind::Prefetch { offset: *offset, len: *len },
        };
        // The pieces of a payload lie in the pool, not in the list of pieces: moving the operation
        // moves no byte of them.
        self.op = Some(op);
        self.file = Some(file);
        DiskSyscall { fd, waits_for_others, kind }
    }

    /// Takes the operation out again; `None` if none was started.
    pub(crate) fn finish(&mut self, found: Option<(u64, u64)>) -> Option<DiskOp> {
        self.file = None;
        let mut op = self.op.take()?;
        if let DiskKind::NextData { data, .. } = &mut op.kind {
            *data = found;
        }
        Some(op)
    }
}

fn push_iovecs_mut(iov: &mut Vec<libc::iovec>, into: &mut SgMut, skip: usize) {
    let len = into.len();
    iov.extend(
        into.slices_mut(skip..len)
            .take(IOV_MAX)
            .map(|slice| libc::iovec { iov_base: slice.as_mut_ptr().cast(), iov_len: slice.len() }),
    );
}

fn push_iovecs(iov: &mut Vec<libc::iovec>, from: &Sg, skip: usize) {
    from.for_each_piece(skip..from.len(), |piece, within| {
        if iov.len() < IOV_MAX {
            iov.push(libc::iovec {
                iov_base: piece.as_ptr().wrapping_add(within.start).cast_mut().cast(),
                iov_len: within.len(),
            });
        }
    });
}
