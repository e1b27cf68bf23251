//! Lists of memory for the kernel, used again from call to call.

use std::io;
use std::os::fd::RawFd;

use buf::Sg;

/// Pieces that one call takes (UIO_MAXIOV).
const IOVECS_MAX: usize = 1024;

/// Addresses and lengths. They name memory without owning it: who calls with them promises that it
/// is there.
///
/// What is sent or received as a stream goes on in the next call, so there the first [`IOVECS_MAX`] pieces are
/// enough. What must go in one call is refused if it has more.
#[derive(Debug, Default)]
pub(crate) struct IoVectors {
    pieces: Vec<libc::iovec>,
    /// More were pushed than one call takes.
    is_cut: bool,
}

impl IoVectors {
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.is_cut = false;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.pieces.len() >= IOVECS_MAX
    }

    fn push_iovec(&mut self, base: *mut libc::c_void, len: usize) {
        if len > 0 && self.is_full() {
            self.is_cut = true;
        } else if len > 0 {
            self.pieces.push(libc::iovec { iov_base: base, iov_len: len });
        }
    }

    /// Memory to be filled.
    pub(crate) fn push_buffer(&mut self, memory: &mut [u8]) {
        self.push_iovec(memory.as_mut_ptr().cast(), memory.len());
    }

    /// Bytes to be sent, from `skip` on.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8], skip: usize) {
        let bytes = bytes.get(skip..).unwrap_or_default();
        self.push_iovec(bytes.as_ptr().cast_mut().cast(), bytes.len());
    }

    /// A payload to be sent, from `skip` on.
    pub(crate) fn push_sg(&mut self, data: &Sg, mut skip: usize) {
        for piece in data.pieces() {
            let here = skip.min(piece.len());
            // Within the piece, or just behind it with no length.
            self.push_iovec(piece.as_ptr().wrapping_add(here).cast_mut().cast(), piece.len() - here);
            skip -= here;
        }
    }

    /// Length in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.pieces.iter().map(|vector| vector.iov_len).sum()
    }

    /// All that was pushed, for a call that must take all of it.
    fn all_vectors(&self) -> io::Result<&[libc::iovec]> {
        match self.is_cut {
            false => Ok(&self.pieces),
            true => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "more pieces of memory than one call takes"))
            }
        }
    }

    fn message_header(&mut self) -> libc::msghdr {
        // SAFETY: zeroes are a msghdr without name, vectors, control data and flags.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.pieces.as_mut_ptr();
        header.msg_iovlen = self.pieces.len() as _;
        header
    }
}

fn syscall_result(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// recvmsg, without waiting.
///
/// # Safety
/// The vectors name memory that is live and that nobody else touches until this returns.
pub(crate) unsafe fn recvmsg(fd: RawFd, into: &mut IoVectors) -> io::Result<usize> {
    let mut header = into.message_header();
    // SAFETY: the header names the vectors, and they live memory, by the caller's promise.
    syscall_result(unsafe { libc::recvmsg(fd, &mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) })
}

/// sendmsg, without waiting.
///
/// # Safety
/// The vectors name memory that is live until this returns.
pub(crate) unsafe fn sendmsg(fd: RawFd, from: &mut IoVectors) -> io::Result<usize> {
    let header = from.message_header();
    // SAFETY: as in `recvmsg`.
    syscall_result(unsafe { libc::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}
/// readv.
///
/// # Safety
/// As of [`recvmsg`].
pub(crate) unsafe fn readv(fd: RawFd, into: &mut IoVectors) -> io::Result<usize> {
    let pieces = into.all_vectors()?;
    // SAFETY: as in `recvmsg`.
    syscall_result(unsafe { libc::readv(fd, pieces.as_ptr(), pieces.len() as libc::c_int) })
}

/// writev.
///
/// # Safety
/// As of [`sendmsg`].
pub(crate) unsafe fn writev(fd: RawFd, from: &mut IoVectors) -> io::Result<usize> {
    let pieces = from.all_vectors()?;
    // SAFETY: as in `recvmsg`.
    syscall_result(unsafe { libc::writev(fd, pieces.as_ptr(), pieces.len() as libc::c_int) })
}

/// preadv.
///
/// # Safety
/// As of [`recvmsg`].
pub(crate) unsafe fn preadv(fd: RawFd, into: &mut IoVectors, at: u64) -> io::Result<usize> {
    let pieces = into.all_vectors()?;
    // SAFETY: as in `recvmsg`.
    syscall_result(unsafe {
        libc::preadv(fd, pieces.as_ptr(), pieces.len() as libc::c_int, at as libc::off_t)
    })
}

/// pwritev.
///
/// # Safety
/// As of [`sendmsg`].
pub(crate) unsafe fn pwritev(fd: RawFd, from: &mut IoVectors, at: u64) -> io::Result<usize> {
    let pieces = from.all_vectors()?;
    // SAFETY: as in `recvmsg`.
    syscall_result(unsafe {
        libc::pwritev(fd, pieces.as_ptr(), pieces.len() as libc::c_int, at as libc::off_t)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_one_call_cannot_take_is_refused_and_never_cut_in_silence() {
        let file = rustix::fs::memfd_create("vectors", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 20).unwrap();
        let mut memory = vec![7; 2 * (IOVECS_MAX + 1)];
        for count in [IOVECS_MAX, IOVECS_MAX + 1] {
            let mut vectors = IoVectors::default();
            memory.chunks_mut(2).take(count).for_each(|piece| vectors.push_buffer(piece));
            // Nothing is behind the last one.
            vectors.push_buffer(&mut []);
            let fd = file.as_raw_fd();
            // SAFETY: the vectors name `memory`, which lives on, and which nobody else touches.
            let ends = unsafe {
                [
                    pwritev(fd, &mut vectors, 0),
                    preadv(fd, &mut vectors, 0),
                    writev(fd, &mut vectors),
                    readv(fd, &mut vectors),
                ]
            };
            for end in ends {
                match end {
                    Ok(n) => assert_eq!((n, count), (2 * IOVECS_MAX, IOVECS_MAX)),
                    Err(error) => {
                        assert_eq!((error.kind(), count), (io::ErrorKind::InvalidInput, IOVECS_MAX + 1));
                    }
                }
            }
            vectors.clear();
            vectors.push_buffer(&mut memory[..2]);
            // SAFETY: as above.
            assert_eq!(unsafe { pwritev(fd, &mut vectors, 0) }.unwrap(), 2);
        }
    }
}
