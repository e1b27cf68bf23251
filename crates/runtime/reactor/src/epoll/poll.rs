//! The epoll descriptor.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::clock;
use crate::world::WaitLimit;

/// Events taken by one call.
const EVENTS_MAX: usize = 256;

pub(crate) struct Poll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Whether epoll_pwait2 (Linux 5.11) is to be had: kernels before it and filters of system calls refuse it.
    has_nanoseconds: Cell<bool>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just given us this descriptor, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let events = vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        Ok(Poll { fd, events, has_nanoseconds: Cell::new(true) })
    }

    /// Readable when there are events.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Watches for changes of `which`.
    pub(crate) fn watch_edges(&self, fd: RawFd, name: u64, which: libc::c_int) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_ADD, fd, name, which | libc::EPOLLET)
    }

    /// Watches for being readable.
    pub(crate) fn watch_level(&self, fd: RawFd, name: u64) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_ADD, fd, name, libc::EPOLLIN)
    }

    /// Watches no longer.
    pub(crate) fn unwatch(&self, fd: RawFd) {
        // It fails only if the descriptor was not watched, which is what is wanted.
        let _ = self.epoll_ctl(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn epoll_ctl(&self, op: libc::c_int, fd: RawFd, name: u64, which: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: which as u32, u64: name };
        // SAFETY: the event is valid for the call to read.
        let rc = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for events; gives how many there are.
    #[expect(clippy::panic, reason = "only a descriptor or memory that is not ours fails so, which is a bug")]
    pub(crate) fn wait(&mut self, wait: WaitLimit) -> usize {
        let timeout = match wait {
            WaitLimit::No => Some(0),
            WaitLimit::Until(None) => None,
            WaitLimit::Until(Some(until)) => Some(until.since(clock::now()).as_nanos() as u64),
        };
        let fd = self.fd.as_raw_fd();
        let at = self.events.as_mut_ptr();
        let in_nanoseconds = timeout.is_some_and(|ns| ns > 0) && self.has_nanoseconds.get();
        let count = match timeout {
            Some(ns) if in_nanoseconds => {
                let ts = libc::timespec {
                    tv_sec: (ns / 1_000_000_000) as libc::time_t,
                    tv_nsec: (ns % 1_000_000_000) as libc::c_long,
                };
                let no_mask = std::ptr::null::<libc::sigset_t>();
                // SAFETY: the events are writable for EVENTS_MAX entries, the time is valid, and no
                // signal mask is given.
                unsafe {
                    libc::syscall(
                        libc::SYS_epoll_pwait2,
                        fd,
                        at,
                        EVENTS_MAX as i32,
                        &raw const ts,
                        no_mask,
                        0,
                    ) as i32
                }
            }
            timeout => {
                let ms = timeout.map_or(-1, |ns| ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
                // SAFETY: the events are writable for EVENTS_MAX entries.
                unsafe { libc::epoll_wait(fd, at, EVENTS_MAX as i32, ms) }
            }
        };
        if count >= 0 {
            return count as usize;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            // ENOSYS of the kernel; EPERM, ENOSYS or any other number of a filter (seccomp). The next turn
            // takes the call that every system has.
            Some(_) if in_nanoseconds => self.has_nanoseconds.set(false),
            other => panic!("epoll_wait on our own descriptor fails with {other:?}"),
        }
        0
    }

    /// The name and the events of the event at `at`, below what [`Poll::wait`] gave.
    pub(crate) fn event_at(&self, at: usize) -> (u64, u32) {
        self.events.get(at).map_or((0, 0), |event| (event.u64, event.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denied_syscalls;
    use std::time::{Duration, Instant};

    #[test]
    fn a_filter_that_refuses_epoll_pwait2_does_not_end_the_world() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            denied_syscalls::run_with_denied(&[libc::SYS_epoll_pwait2], errno, || {
                let mut poll = Poll::new().unwrap();
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(20) {
                    assert_eq!(poll.wait(WaitLimit::Until(Some(clock::now() + Duration::from_millis(5)))), 0);
                }
                assert!(!poll.has_nanoseconds.get());
            });
        }
    }
}
