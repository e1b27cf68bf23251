//! A shard that its caller's thread drives, for programs with their own loop.
//!
//! Invariant: between two turns, if a turn would make progress, either the descriptor is readable or
//! [`InlineReactor::poll_timeout`] names a time that has passed. This includes operations not yet passed to
//! the kernel from the last turn or [`InlineReactor::with`]: the next turn submits them, many in one call.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use buf::{Cx, Entropy, Pool, Time};
use endpoint::{Endpoint, ShardId};
use io_uring::IoUring;
use volume::DiskId;

use crate::base::{Base, Parts};
use crate::blocking::{BlockingPool, BlockingThreads};
use crate::clock;
use crate::config::{Config, IoKind};
use crate::counters::{Counters, ShardStats};
use crate::disk::DiskFile;
use crate::epoll::Epoll;
use crate::event_loop::EventLoop;
use crate::mail::{Bell, Door, LETTERS_MAX, Letter};
use crate::running::{CONTROL_MAX, SpawnError, choose};
use crate::socket;
use crate::spin::Spin;
use crate::uring::{self, Uring};
use crate::world::{Wait, World};

/// One endpoint and its world, without a thread.
///
/// It stays on the thread that made it, for so do the memory of its pool and the kernel's ring; see
/// [`Roaming`] for one that does not. Dropping it ends it at once and in order: every socket is reset, and
/// everything that is out comes back to the endpoint first. To part from peers politely, say so to the
/// endpoint, and turn until it has.
pub struct InlineReactor<E: Endpoint> {
    body: Box<Body<E>>,
    io: IoKind,
    counters: Arc<Counters>,
    bell: Arc<Bell>,
    heard: Receiver<E::Message>,
    /// Waited for when the shard, which gives them work, is gone: fields are dropped in their order.
    threads: Joined,
    /// There is something to start that the world does not know of.
    has_more: bool,
}

/// The shard, on either world.
#[expect(clippy::large_enum_variant, reason = "there is one, in a box of its own")]
enum Body<E: Endpoint> {
    /// The ring is dropped after the world that borrows it: fields are dropped in their order.
    Uring(EventLoop<E, Uring<'static, E::Message>>, #[expect(dead_code, reason = "it is kept")] OwnRing),
    Epoll(EventLoop<E, Epoll<E::Message>>),
}

/// A ring at a place of its own, so that a value beside it may borrow it.
struct OwnRing(NonNull<IoUring>);

impl OwnRing {
    fn new(ring: IoUring) -> Self {
        OwnRing(NonNull::from(Box::leak(Box::new(ring))))
    }
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        // SAFETY: made by `new` from a box; the world that borrowed it is dropped before (see `Body`).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

macro_rules! each {
    ($body:expr, $shard:ident => $what:expr) => {
        match $body {
            Body::Uring($shard, _) => $what,
            Body::Epoll($shard) => $what,
        }
    };
}

impl<E: Endpoint> InlineReactor<E>
where
    E::Message: 'static,
{
    /// Sets a world up for the calling thread. Of `config` it takes no cores and no listeners: these must
    /// be empty. Threads for what can only block are started if there are disks.
    ///
    /// # Errors
    /// As [`Reactor::spawn`](crate::Reactor::spawn); [`SpawnError::System`] with `InvalidInput` if `config`
    /// names cores or listeners.
    pub fn new(config: Config, make: impl FnOnce(&mut Cx<'_>) -> E) -> Result<Self, SpawnError> {
        if !config.cores.is_empty() || !config.listeners.is_empty() || config.disks.len() > LETTERS_MAX {
            return Err(SpawnError::System(io::ErrorKind::InvalidInput.into()));
        }
        let io = choose(config.io)?;
        socket::try_options(&config.outward).map_err(SpawnError::Outward)?;
        let (letters, inbox) = sync_channel(LETTERS_MAX);
        let bell = Arc::new(Bell::new().map_err(SpawnError::System)?);
        let door = Door { letters, bell: bell.clone(), load: Arc::new(AtomicUsize::new(0)) };
        let doors: Arc<[Door<E::Message>]> = Arc::new([door.clone()]);
        for (at, file) in config.disks.iter().enumerate() {
            let file = file.try_clone().map_err(SpawnError::System)?;
            door.post(Letter::Disk { id: DiskId(at as u32), file: Some(DiskFile::new(file)) });
        }
        // Without disks there is no job.
        let (jobs, threads) = if config.disks.is_empty() {
            (BlockingPool::without_threads(1), None)
        } else {
            let jobs =
                BlockingPool::start(config.blocking_threads, doors.clone()).map_err(SpawnError::System)?;
            let threads = jobs.threads();
            (jobs, Some(threads))
        };
        let pool = Pool::new(config.pool_bytes);
        let mut entropy = Entropy::new(clock::seed().map_err(SpawnError::System)?);
        let end = make(&mut Cx { now: clock::now(), pool: &pool, entropy: &mut entropy });
        let counters = Arc::<Counters>::default();
        let (control, heard) = sync_channel(CONTROL_MAX);
        let base = Base::new(Parts {
            id: ShardId(0),
            door,
            pool: pool.clone(),
            counters: counters.clone(),
            listeners: Vec::new(),
            links_max: config.links_max,
            linger: config.linger,
            closing_max: config.closing_max,
            on_exhausted: config.on_exhausted,
            outward: config.outward,
            letters: inbox,
            doors,
            control,
            jobs,
        });
        let spin = Spin::new(config.poll_ns_max);
        let body = if let IoKind::Uring = io {
            let ring = OwnRing::new(uring::make().map_err(SpawnError::Uring)?);
            // SAFETY: the box is borrowed here only, and outlives the world (see `Body`).
            let borrowed = unsafe { &mut *ring.0.as_ptr() };
            let world = Uring::new(base, borrowed).map_err(SpawnError::Uring)?;
            Body::Uring(EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false }, ring)
        } else {
            let world = Epoll::new(base).map_err(SpawnError::System)?;
            Body::Epoll(EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false })
        };
        Ok(InlineReactor {
            body: Box::new(body),
            io,
            counters,
            bell,
            heard,
            threads: Joined(threads),
            has_more: true,
        })
    }

    /// Which system interface is in use, and why.
    pub fn io(&self) -> &IoKind {
        &self.io
    }

    /// What it has counted.
    pub fn stats(&self) -> ShardStats {
        self.counters.stats()
    }

    /// The endpoint, to look at.
    pub fn endpoint(&self) -> &E {
        each!(&*self.body, shard => &shard.end)
    }

    /// Lets the caller speak with the endpoint. What that makes it want starts with the next turn. The time that
    /// it is shown is that of the last turn or of the system's last tick, whichever is later: a few milliseconds
    /// old at most, so that a caller may come for each operation without reading the clock each time.
    pub fn with<R>(&mut self, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        self.has_more = true;
        each!(&mut *self.body, shard => {
            let now = shard.world.base().now.max(clock::tick());
            let mut cx = Cx { now, pool: &shard.pool, entropy: &mut shard.entropy };
            act(&mut shard.end, &mut cx)
        })
    }

    /// Lets the caller take what the endpoint has for it, which must make it want nothing: unlike after
    /// [`InlineReactor::with`], no turn is due.
    pub fn take<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        each!(&mut *self.body, shard => act(&mut shard.end))
    }

    /// What the endpoint has said to [`ShardId::CONTROL`], in order.
    pub fn heard(&mut self) -> Option<E::Message> {
        self.heard.try_recv().ok()
    }

    /// Moves what is ready, and if that is nothing waits until something is, for at most this long (zero:
    /// not at all; `None`: until something happens). What happened has been told to the endpoint when this
    /// returns. It may return sooner, with nothing that concerns the caller: call it in a loop.
    pub fn turn(&mut self, wait: Option<Duration>) {
        let at_most = wait.filter(|wait| !wait.is_zero()).map(|wait| clock::now() + wait);
        self.bell.wake();
        each!(&mut *self.body, shard => {
            let mut more = false;
            if self.has_more || shard.has_work() {
                more = shard.turn();
            }
            match wait {
                Some(Duration::ZERO) => shard.world.gather(Wait::No),
                Some(_) | None => shard.wait(more, at_most),
            }
            self.has_more = shard.turn();
        });
        // From now on somebody who rings makes the descriptor readable.
        if self.threads.0.is_some() && !self.bell.doze() {
            self.has_more = true;
        }
    }

    /// When [`InlineReactor::turn`] has something to do even if the descriptor does not become readable, by
    /// [`InlineReactor::now`]; a time that has come if that is at once. To be asked before each wait of the
    /// caller's own.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        each!(&mut *self.body, shard => {
            if self.has_more || shard.has_work() {
                return Some(shard.world.base().now);
            }
            [shard.end.poll_timeout(), shard.world.due()].into_iter().flatten().min()
        })
    }

    /// How long the caller may wait for the descriptor; `None`: as long as it likes.
    pub fn wait_max(&mut self) -> Option<Duration> {
        self.poll_timeout().map(|due| due.since(clock::now()))
    }

    /// The clock: CLOCK_MONOTONIC in nanoseconds.
    pub fn now() -> Time {
        clock::now()
    }
}

impl<E: Endpoint> AsFd for InlineReactor<E>
where
    E::Message: 'static,
{
    /// Readable when [`InlineReactor::turn`] has something to do (see also [`InlineReactor::poll_timeout`]). To be
    /// watched only: never read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(&*self.body, shard => shard.world.fd())
    }
}

impl<E: Endpoint> Drop for InlineReactor<E> {
    fn drop(&mut self) {
        // After a panic of the endpoint's it is asked nothing more: the world keeps what is out.
        if thread::panicking() {
            return;
        }
        each!(&mut *self.body, shard => shard.end());
    }
}

/// Threads that are waited for when this is dropped.
struct Joined(Option<BlockingThreads>);

impl Drop for Joined {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for thread in self.0.iter().flat_map(BlockingThreads::take) {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl<E: Endpoint> fmt::Debug for InlineReactor<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InlineReactor").field("io", &self.io).finish_non_exhaustive()
    }
}

/// An [`InlineReactor`] that may go from thread to thread, one at a time: before it is used, or under a lock.
#[derive(Debug)]
pub struct Roaming<E: Endpoint>(InlineReactor<E>);

// SAFETY: who made it promised that nothing of it that is bound to a thread lies outside of it.
unsafe impl<E: Endpoint> Send for Roaming<E> {}

impl<E: Endpoint> Roaming<E>
where
    E::Message: 'static,
{
    /// Lets it roam. Only one on epoll can: a ring, and what is out on it, belong to their thread.
    ///
    /// # Errors
    /// It comes back if it is on io_uring.
    ///
    /// # Safety
    /// Neither now nor later may anything that shares ownership with what is inside (memory of the pool, a
    /// handle on the pool itself, whatever the endpoint shares and is not `Send`) be outside of it while it
    /// moves to another thread, or be used at the same time as it is by another thread.
    pub unsafe fn new(inline: InlineReactor<E>) -> Result<Self, InlineReactor<E>> {
        match inline.io {
            IoKind::Uring => Err(inline),
            IoKind::Epoll | IoKind::EpollInstead(_) => Ok(Roaming(inline)),
        }
    }

    /// To use it.
    pub fn inline(&mut self) -> &mut InlineReactor<E> {
        &mut self.0
    }
}

impl<E: Endpoint> AsFd for Roaming<E>
where
    E::Message: 'static,
{
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
