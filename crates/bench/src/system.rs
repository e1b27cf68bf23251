//! What the standard library has no word for: cores, congestion control, descriptors, name spaces.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds this thread, and what it starts from now on, to one core.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a set of cores is a plain bit field, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is within the set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set is as long as said; 0 is this thread.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) }).map(drop)
}

/// Sets a socket's congestion control.
pub fn set_congestion(socket: &impl AsRawFd, name: &str) -> io::Result<()> {
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    // SAFETY: the value is `name.len()` bytes at that address.
    checked(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// A socket's congestion control.
pub fn congestion(socket: &impl AsRawFd) -> io::Result<String> {
    let mut name = [0u8; 32];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the system writes at most `len` bytes there.
    checked(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_mut_ptr().cast(),
            &mut len,
        )
    })?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// Lets this process have as many descriptors as the system allows.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is the one that the call fills.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
}

/// Moves this thread, and what it starts from now on, into a network of its own.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: no memory is involved.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Processor time of all children that have ended and were waited for, user and system, in nanoseconds.
pub fn children_cpu_ns() -> io::Result<u64> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one that the call fills.
    checked(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut used) })?;
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(ns(used.ru_utime) + ns(used.ru_stime))
}

/// Asks a process to end.
pub fn terminate(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGTERM)
}

/// Stops a process until [`resume`].
pub fn pause(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGSTOP)
}

/// Lets a process go on.
pub fn resume(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGCONT)
}

fn signal(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: no memory is involved.
    checked(unsafe { libc::kill(pid, signal) }).map(drop)
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn note_stop(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// From now on SIGTERM and SIGINT make [`stopped`] true and interrupt what waits.
pub fn catch_stop() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: zero is a value of this structure (no flags, an empty mask).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note_stop as *const () as usize;
        // SAFETY: the handler only stores to an atomic, which a handler may.
        checked(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

/// Whether the process was asked to end.
pub fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Waits for many sockets at once.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// Waits for nothing yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    /// Waits for `socket` to be readable, and writable where asked, from now on.
    pub fn add(&self, socket: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, token, libc::EPOLLIN)
    }

    /// Changes whether writability is waited for as well.
    pub fn writable(&self, socket: RawFd, token: u64, wanted: bool) -> io::Result<()> {
        let also = if wanted { libc::EPOLLOUT } else { 0 };
        self.control(libc::EPOLL_CTL_MOD, socket, token, libc::EPOLLIN | also)
    }

    fn control(&self, how: libc::c_int, socket: RawFd, token: u64, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event is read during the call only.
        checked(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), how, socket, &mut event) }).map(drop)
    }

    /// Tokens of the sockets that are ready, after at most `timeout` (rounded up to milliseconds);
    /// `None` waits as long as it takes.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<impl Iterator<Item = u64>> {
        let timeout = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        // SAFETY: the system writes at most as many events as there are.
        let count = checked(unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), self.events.len() as i32, timeout)
        });
        let count = match count {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        Ok(self.events[..count as usize].iter().map(|event| event.u64))
    }
}
