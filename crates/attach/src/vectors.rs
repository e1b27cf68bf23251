//! Lists of memory for the kernel, used again from call to call.

use std::io;
use std::os::fd::RawFd;

use buf::Sg;

/// Pieces that one call takes (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Addresses and lengths. They name memory without owning it: whoever calls with them promises that it
/// is there.
#[derive(Debug, Default)]
pub(crate) struct Vectors(Vec<libc::iovec>);

impl Vectors {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= PIECES_MAX
    }

    fn push(&mut self, base: *mut libc::c_void, len: usize) {
        if len > 0 && !self.is_full() {
            self.0.push(libc::iovec { iov_base: base, iov_len: len });
        }
    }

    /// Memory to be filled.
    pub(crate) fn push_mut(&mut self, memory: &mut [u8]) {
        self.push(memory.as_mut_ptr().cast(), memory.len());
    }

    /// Bytes to be sent, from `skip` on.
    pub(crate) fn push_from(&mut self, bytes: &[u8], skip: usize) {
        let bytes = bytes.get(skip..).unwrap_or_default();
        self.push(bytes.as_ptr().cast_mut().cast(), bytes.len());
    }

    /// A payload to be sent, from `skip` on.
    pub(crate) fn push_sg(&mut self, data: &Sg, mut skip: usize) {
        for piece in data.pieces() {
            let here = skip.min(piece.len());
            // Within the piece, or just behind it with no length.
            self.push(piece.as_ptr().wrapping_add(here).cast_mut().cast(), piece.len() - here);
            skip -= here;
        }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|vector| vector.iov_len).sum()
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: zeroes are a msghdr without name, vectors, control data and flags.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.0.as_mut_ptr();
        header.msg_iovlen = self.0.len() as _;
        header
    }
}

fn result(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// recvmsg, without waiting.
///
/// # Safety
/// The vectors name memory that is live and that nobody else touches until this returns.
pub(crate) unsafe fn receive(fd: RawFd, into: &mut Vectors) -> io::Result<usize> {
    let mut header = into.header();
    // SAFETY: the header names the vectors, and they live memory, by the caller's promise.
    result(unsafe { libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) })
}

/// sendmsg, without waiting.
///
/// # Safety
/// The vectors name memory that is live until this returns.
pub(crate) unsafe fn send(fd: RawFd, from: &mut Vectors) -> io::Result<usize> {
    let header = from.header();
    // SAFETY: as in `receive`.
    result(unsafe { libc::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}
/// readv.
///
/// # Safety
/// As of [`receive`].
pub(crate) unsafe fn read(fd: RawFd, into: &mut Vectors) -> io::Result<usize> {
    // SAFETY: as in `receive`.
    result(unsafe { libc::readv(fd, into.0.as_ptr(), into.0.len() as libc::c_int) })
}

/// writev.
///
/// # Safety
/// As of [`send`].
pub(crate) unsafe fn write(fd: RawFd, from: &mut Vectors) -> io::Result<usize> {
    // SAFETY: as in `receive`.
    result(unsafe { libc::writev(fd, from.0.as_ptr(), from.0.len() as libc::c_int) })
}

/// preadv.
///
/// # Safety
/// As of [`receive`].
pub(crate) unsafe fn read_at(fd: RawFd, into: &mut Vectors, at: u64) -> io::Result<usize> {
    // SAFETY: as in `receive`.
    result(unsafe { libc::preadv(fd, into.0.as_ptr(), into.0.len() as libc::c_int, at as libc::off_t) })
}

/// pwritev.
///
/// # Safety
/// As of [`send`].
pub(crate) unsafe fn write_at(fd: RawFd, from: &mut Vectors, at: u64) -> io::Result<usize> {
    // SAFETY: as in `receive`.
    result(unsafe { libc::pwritev(fd, from.0.as_ptr(), from.0.len() as libc::c_int, at as libc::off_t) })
}
