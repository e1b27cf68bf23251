//! Calls that move bytes of a socket and do not wait; a signal does not end them.

use std::os::fd::{AsRawFd, OwnedFd};

use buf::Errno;

use crate::blocking::last_errno;

/// Bytes that are there, 0 at the end of the stream; `EAGAIN` if there are none.
pub(super) fn recv_once(fd: &OwnedFd, iov: &mut [libc::iovec]) -> Result<usize, Errno> {
    loop {
        let got = if let [only] = iov {
            // SAFETY: the address is of memory that the operation owns and that is `iov_len` long.
            unsafe { libc::recv(fd.as_raw_fd(), only.iov_base, only.iov_len, libc::MSG_DONTWAIT) }
        } else {
            let mut header = msghdr_for(iov);
            // SAFETY: the header names a list of such addresses, all valid during the call.
            unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) }
        };
        match got {
            -1 if last_errno() == Errno(libc::EINTR) => {}
            -1 => return Err(last_errno()),
            got => return Ok(got as usize),
        }
    }
}

/// As many bytes as the socket takes; `more`: others follow soon. `EAGAIN` if it takes none.
pub(super) fn send_once(fd: &OwnedFd, iov: &mut [libc::iovec], more: bool) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    let header = msghdr_for(iov);
    loop {
        // SAFETY: the header names a list of memory that the operation owns, all valid during the call.
        match unsafe { libc::sendmsg(fd.as_raw_fd(), &header, flags) } {
            -1 if last_errno() == Errno(libc::EINTR) => {}
            -1 => return Err(last_errno()),
            sent => return Ok(sent as usize),
        }
    }
}

fn msghdr_for(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr is plain numbers and pointers, for which zero means "none".
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = iov.len();
    header
}
