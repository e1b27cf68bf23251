//! Waiting for the descriptors of a server and its disk, and stopping a server.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use buf::Time;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::disk::Disk;

/// Stops one server, from any thread: on the first call as soon as its users are done, on the second at once.
#[derive(Clone, Debug)]
pub struct ServerStop(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    event: OwnedFd,
    times: AtomicU32,
}

impl ServerStop {
    /// Not yet.
    pub fn new() -> io::Result<ServerStop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ServerStop(Arc::new(StopState { event, times: AtomicU32::new(0) })))
    }

    /// Requests a stop. May be called in a signal handler.
    pub fn request_stop(&self) {
        self.0.times.fetch_add(1, Ordering::Release);
        // It fails only when the count is full, and then it is readable too.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    /// How often a stop was requested.
    pub fn request_count(&self) -> u32 {
        self.0.times.load(Ordering::Acquire)
    }

    pub(crate) fn clear_event(&self) {
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.0.event, &mut [0; 8]);
    }
}

impl AsFd for ServerStop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// Which of a server's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventKey(pub(crate) u64);

const STOP_KEY: u64 = u64::MAX;
const DISK_KEY: u64 = u64::MAX - 1;
/// Descriptors that are told of at a time.
const EVENTS_PER_WAIT: usize = 64;

/// What happened to a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyEvent {
    pub(crate) key: EventKey,
    pub(crate) readable: bool,
    /// The peer is gone; reported each time.
    pub(crate) hung_up: bool,
}

/// The descriptors of one server, its disk and its [`ServerStop`].
pub(crate) struct EpollWaiter {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl EpollWaiter {
    pub(crate) fn new(disk: &dyn Disk, stop: &ServerStop) -> io::Result<Self> {
        let waiter = EpollWaiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_PER_WAIT),
        };
        waiter.add_fd(disk.wake_source().0, EventKey(DISK_KEY), true, false)?;
        waiter.add_fd(stop.as_fd(), EventKey(STOP_KEY), true, false)?;
        Ok(waiter)
    }

    fn event_flags(read: bool, write: bool) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        flags
    }

    pub(crate) fn add_fd(
        &self,
        fd: BorrowedFd<'_>,
        key: EventKey,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key.0);
        Ok(epoll::add(&self.epoll, fd, data, Self::event_flags(read, write))?)
    }

    pub(crate) fn change_fd(
        &self,
        fd: BorrowedFd<'_>,
        key: EventKey,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key.0);
        Ok(epoll::modify(&self.epoll, fd, data, Self::event_flags(read, write))?)
    }

    pub(crate) fn remove_fd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// The disk is gone: its descriptor says no more.
    pub(crate) fn remove_disk(&self, disk: &dyn Disk) {
        let _ = self.remove_fd(disk.wake_source().0);
    }

    /// Waits until something is ready, the disk's time has come, or `most` is over.
    pub(crate) fn wait_for_events(&mut self, disk: &dyn Disk, most: Option<Duration>) -> io::Result<()> {
        let disk_wait = disk.wake_source().1.map(|time| time.since(monotonic_now()));
        let wait = match (disk_wait, most) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let timeout = wait.map(|wait| rustix::event::Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// What was ready when [`EpollWaiter::wait_for_events`] returned, one after the other; within, `None` is not the
    /// server's own.
    pub(crate) fn ready_event(&self, index: usize) -> Option<Option<ReadyEvent>> {
        let event = self.events.get(index)?;
        let (data, flags) = (event.data, event.flags);
        if data.u64() == STOP_KEY || data.u64() == DISK_KEY {
            return Some(None);
        }
        let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
        Some(Some(ReadyEvent {
            key: EventKey(data.u64()),
            readable: flags.contains(epoll::EventFlags::IN) || broken,
            hung_up: broken,
        }))
    }
}

/// CLOCK_MONOTONIC. By libc, which asks the kernel where the vDSO has no clock, as that of User-Mode Linux has
/// none; rustix panics there.
pub(crate) fn monotonic_now() -> Time {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to write; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
