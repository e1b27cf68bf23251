//! System calls that the standard library lacks: cores, congestion control, descriptors, namespaces.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

fn check_result(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Binds this thread, and what it starts from now on, to one core.
pub fn pin_thread(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Sets a socket's congestion control.
pub fn set_socket_congestion_control(socket: &impl AsFd, name: &str) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(socket, name)?)
}

/// A socket's congestion control.
pub fn socket_congestion_control(socket: &impl AsFd) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(socket)?)
}

/// Lets this process have as many descriptors as the system allows.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Moves this thread, and what it starts from now on, into a network of its own.
pub fn unshare_network() -> io::Result<()> {
    // SAFETY: no memory is involved.
    check_result(unsafe { libc::unshare(libc::CLONE_NEWNET) }).map(drop)
}

/// Processor time of all children that have ended and were waited for, user and system, in nanoseconds.
pub fn children_cpu_ns() -> io::Result<u64> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one that the call fills.
    check_result(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut used) })?;
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Ok(ns(used.ru_utime) + ns(used.ru_stime))
}

/// Processor time of a process, all its threads ended or alive, user and system, in nanoseconds.
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut clock = 0;
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: `clock` is what the call fills.
    match unsafe { libc::clock_getcpuclockid(pid, &mut clock) } {
        0 => clock_ns(clock),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Processor time of the thread that asks, user and system, in nanoseconds.
#[cfg(test)]
pub fn thread_cpu_ns() -> io::Result<u64> {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is what the call fills.
    check_result(unsafe { libc::clock_gettime(clock, &mut time) })?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A program that ends with this thread, even if that is killed: a server that nobody asks to end would serve on.
pub fn command_ending_with_parent(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Asks a process to end.
pub fn terminate(pid: u32) -> io::Result<()> {
    signal(pid, Signal::TERM)
}

/// Stops a process until [`resume`].
pub fn pause(pid: u32) -> io::Result<()> {
    signal(pid, Signal::STOP)
}

/// Lets a process go on.
pub fn resume(pid: u32) -> io::Result<()> {
    signal(pid, Signal::CONT)
}

fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, signal)?)
}

static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_stop(_: libc::c_int) {
    STOP_REQUESTED.store(true, Ordering::Relaxed);
}

/// From now on SIGTERM and SIGINT make [`stop_requested`] true and interrupt what waits.
pub fn install_stop_handler() -> io::Result<()> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: zero is a value of this structure (no flags, an empty mask).
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note_stop as *const () as usize;
        // SAFETY: the handler only stores to an atomic, which a handler may.
        check_result(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

/// Whether the process was asked to end.
pub fn stop_requested() -> bool {
    STOP_REQUESTED.load(Ordering::Relaxed)
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
        let fd = check_result(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    /// Waits for `socket` to be readable, and writable where asked, from now on.
    pub fn add(&self, socket: RawFd, token: u64) -> io::Result<()> {
        self.epoll_ctl(libc::EPOLL_CTL_ADD, socket, token, libc::EPOLLIN)
    }

    /// Changes whether writability is waited for as well.
    pub fn set_writable(&self, socket: RawFd, token: u64, wanted: bool) -> io::Result<()> {
        let also = if wanted { libc::EPOLLOUT } else { 0 };
        self.epoll_ctl(libc::EPOLL_CTL_MOD, socket, token, libc::EPOLLIN | also)
    }

    fn epoll_ctl(&self, how: libc::c_int, socket: RawFd, token: u64, events: libc::c_int) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: the event is read during the call only.
        check_result(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), how, socket, &mut event) }).map(drop)
    }

    /// Waits until a socket is ready, or for as long as this to the nanosecond.
    fn wait_shortly(&self, timeout: Duration) -> io::Result<()> {
        let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut fd = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor is looked at, and it and the time outlive the call; no signal mask is passed.
        match check_result(unsafe { libc::ppoll(&mut fd, 1, &time, std::ptr::null()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other.map(drop),
        }
    }

    /// Tokens of the sockets that are ready, after at most `timeout` (of 10 ms and more rounded up to milliseconds);
    /// `None` waits as long as it takes.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<impl Iterator<Item = u64>> {
        let timeout =
            match timeout.filter(|timeout| !timeout.is_zero() && *timeout < Duration::from_millis(10)) {
                Some(short) => {
                    self.wait_shortly(short)?;
                    Some(Duration::ZERO)
                }
                None => timeout,
            };
        let timeout = timeout.map_or(-1, |t| t.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32);
        // SAFETY: the system writes at most as many events as there are.
        let count = check_result(unsafe {
            libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), self.events.len() as i32, timeout)
        });
        let count = match count {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        Ok(self.events.iter().take(count as usize).map(|event| event.u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As after a comparison that was killed.
    #[test]
    fn what_is_held_never_outlives_who_started_it() {
        let started = std::thread::spawn(|| {
            let mut command = command_ending_with_parent("sh");
            command.args(["-c", "echo on; exec sleep 600"]).stdout(std::process::Stdio::piped());
            let mut child = command.spawn().unwrap();
            // It is held once it says something.
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
            child
        });
        let mut child = started.join().unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn what_is_set_is_in_force() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set_socket_congestion_control(&listener, "reno").unwrap();
        assert_eq!(socket_congestion_control(&listener).unwrap(), "reno");
        assert!(set_socket_congestion_control(&listener, "none such").is_err());
        raise_descriptor_limit().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(pin_thread(CpuSet::MAX_CPU).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let own = rustix::thread::sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|core| own.is_set(*core)).unwrap();
        std::thread::spawn(move || {
            pin_thread(core).unwrap();
            let now = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(now.is_set(core) && now.count() == 1);
        })
        .join()
        .unwrap();
        assert_eq!(signal(0, Signal::TERM).unwrap_err().kind(), io::ErrorKind::InvalidInput, "nobody's");
    }
}
