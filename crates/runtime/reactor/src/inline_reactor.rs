//! A shard that its caller's thread drives, for programs with their own loop.
//!
//! Invariant: between two turns, if a turn would make progress, either the descriptor is readable or
//! [`InlineReactor::poll_timeout`] names a time that has passed. This includes operations not yet passed to
//! the kernel from the last turn or [`InlineReactor::with_endpoint`]: the next turn submits them, many in one call.

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

use crate::blocking::{BlockingPool, BlockingThreads};
use crate::busy_poll::BusyPollEstimate;
use crate::clock;
use crate::config::{Config, IoKind};
use crate::counters::{Counters, ShardStats};
use crate::disk::DiskFile;
use crate::epoll::Epoll;
use crate::event_loop::EventLoop;
use crate::mailbox::{MAILBOX_LEN_MAX, MailboxSender, ShardMail, ShardWaker};
use crate::reactor_threads::{CONTROL_MESSAGES_MAX, SpawnError, choose_io_kind};
use crate::socket;
use crate::uring::{self, Uring};
use crate::world::{WaitLimit, World};
use crate::world_state::{WorldState, WorldStateParts};

/// One endpoint and its world, without a thread.
///
/// It stays on the thread that made it, for so do the memory of its pool and the kernel's ring; see
/// [`SendableReactor`] for one that does not. Dropping it ends it at once and in order: every socket is reset, and
/// everything that is out comes back to the endpoint first. To part from peers politely, say so to the
/// endpoint, and turn until it has.
pub struct InlineReactor<E: Endpoint> {
    body: Box<InlineWorld<E>>,
    io: IoKind,
    counters: Arc<Counters>,
    waker: Arc<ShardWaker>,
    heard: Receiver<E::Message>,
    /// Waited for when the shard, which gives them work, is gone: fields are dropped in their order.
    threads: JoinOnDrop,
    /// There is something to start that the world does not know of.
    has_more: bool,
}

/// The shard, on either world.
#[expect(clippy::large_enum_variant, reason = "there is one, in a box of its own")]
enum InlineWorld<E: Endpoint> {
    /// The ring is dropped after the world that borrows it: fields are dropped in their order.
    Uring(EventLoop<E, Uring<'static, E::Message>>, #[expect(dead_code, reason = "it is kept")] BoxedRing),
    Epoll(EventLoop<E, Epoll<E::Message>>),
}

/// A ring at a place of its own, so that a value beside it may borrow it.
struct BoxedRing(NonNull<IoUring>);

impl BoxedRing {
    fn new(ring: IoUring) -> Self {
        BoxedRing(NonNull::from(Box::leak(Box::new(ring))))
    }
}

impl Drop for BoxedRing {
    fn drop(&mut self) {
        // SAFETY: made by `new` from a box; the world that borrowed it is dropped before (see `InlineWorld`).
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

macro_rules! each {
    ($body:expr, $shard:ident => $what:expr) => {
        match $body {
            InlineWorld::Uring($shard, _) => $what,
            InlineWorld::Epoll($shard) => $what,
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
        if !config.cores.is_empty() || !config.listeners.is_empty() || config.disks.len() > MAILBOX_LEN_MAX {
            return Err(SpawnError::System(io::ErrorKind::InvalidInput.into()));
        }
        let io = choose_io_kind(config.io)?;
        socket::check_options(&config.outward).map_err(SpawnError::Outward)?;
        let (sender, inbox) = sync_channel(MAILBOX_LEN_MAX);
        let waker = Arc::new(ShardWaker::new().map_err(SpawnError::System)?);
        let mailbox = MailboxSender { sender, waker: waker.clone(), load: Arc::new(AtomicUsize::new(0)) };
        let mailboxes: Arc<[MailboxSender<E::Message>]> = Arc::new([mailbox.clone()]);
        for (at, file) in config.disks.iter().enumerate() {
            let file = DiskFile::of(file);
            mailbox.post(ShardMail::Disk { id: DiskId(at as u32), file: Some(file) });
        }
        // Without disks there is no job.
        let (jobs, threads) = if config.disks.is_empty() {
            (BlockingPool::without_threads(1), None)
        } else {
            let jobs = BlockingPool::start(config.blocking_threads, mailboxes.clone())
                .map_err(SpawnError::System)?;
            let threads = jobs.thread_handles();
            (jobs, Some(threads))
        };
        let pool = Pool::new(config.pool_bytes);
        let mut entropy = Entropy::new(clock::random_seed().map_err(SpawnError::System)?);
        let end = make(&mut Cx { now: clock::now(), pool: &pool, entropy: &mut entropy });
        let counters = Arc::<Counters>::default();
        let (control, heard) = sync_channel(CONTROL_MESSAGES_MAX);
        let base = WorldState::new(WorldStateParts {
            id: ShardId(0),
            mailbox,
            pool: pool.clone(),
            counters: counters.clone(),
            listeners: Vec::new(),
            links_max: config.links_max,
            linger: config.linger,
            closing_max: config.closing_max,
            on_exhausted: config.on_exhausted,
            outward: config.outward,
            inbox,
            mailboxes,
            control,
            jobs,
        });
        let spin = BusyPollEstimate::new(config.poll_ns_max);
        let body = if let IoKind::Uring = io {
            let ring = BoxedRing::new(uring::create_ring().map_err(SpawnError::Uring)?);
            // SAFETY: the box is borrowed here only, and outlives the world (see `InlineWorld`).
            let borrowed = unsafe { &mut *ring.0.as_ptr() };
            let world = Uring::new(base, borrowed).map_err(SpawnError::Uring)?;
            InlineWorld::Uring(
                EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false },
                ring,
            )
        } else {
            let world = Epoll::new(base).map_err(SpawnError::System)?;
            InlineWorld::Epoll(EventLoop { end, pool, entropy, world, spin, stop: None, is_ending: false })
        };
        Ok(InlineReactor {
            body: Box::new(body),
            io,
            counters,
            waker,
            heard,
            threads: JoinOnDrop(threads),
            has_more: true,
        })
    }

    /// Which system interface is in use, and why.
    pub fn io_kind(&self) -> &IoKind {
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
    pub fn with_endpoint<R>(&mut self, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        self.has_more = true;
        each!(&mut *self.body, shard => {
            let now = shard.world.world_state().now.max(clock::coarse_now());
            let mut cx = Cx { now, pool: &shard.pool, entropy: &mut shard.entropy };
            act(&mut shard.end, &mut cx)
        })
    }

    /// Lets the caller take what the endpoint has for it, which must make it want nothing: unlike after
    /// [`InlineReactor::with_endpoint`], no turn is due.
    pub fn take_from_endpoint<R>(&mut self, act: impl FnOnce(&mut E) -> R) -> R {
        each!(&mut *self.body, shard => act(&mut shard.end))
    }

    /// What the endpoint has said to [`ShardId::CONTROL_PLANE`], in order.
    pub fn poll_control_message(&mut self) -> Option<E::Message> {
        self.heard.try_recv().ok()
    }

    /// Moves what is ready, and if that is nothing waits until something is, for at most this long (zero:
    /// not at all; `None`: until something happens). What happened has been told to the endpoint when this
    /// returns. It may return sooner, with nothing that concerns the caller: call it in a loop.
    pub fn turn(&mut self, wait: Option<Duration>) {
        let at_most = wait.filter(|wait| !wait.is_zero()).map(|wait| clock::now() + wait);
        self.waker.note_awake();
        each!(&mut *self.body, shard => {
            let mut more = false;
            if self.has_more || shard.has_pending_events() {
                more = shard.turn();
            }
            match wait {
                Some(Duration::ZERO) => shard.world.collect_events(WaitLimit::No),
                Some(_) | None => shard.wait(more, at_most),
            }
            self.has_more = shard.turn();
        });
        // From now on somebody who rings makes the descriptor readable.
        if self.threads.0.is_some() && !self.waker.prepare_sleep() {
            self.has_more = true;
        }
    }

    /// When [`InlineReactor::turn`] has something to do even if the descriptor does not become readable, by
    /// [`InlineReactor::now`]; a time that has come if that is at once. To be asked before each wait of the
    /// caller's own.
    pub fn poll_timeout(&mut self) -> Option<Time> {
        each!(&mut *self.body, shard => {
            if self.has_more || shard.has_pending_events() {
                return Some(shard.world.world_state().now);
            }
            [shard.end.poll_timeout(), shard.world.next_deadline()].into_iter().flatten().min()
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
        each!(&mut *self.body, shard => shard.shut_down());
    }
}

/// Threads that are waited for when this is dropped.
struct JoinOnDrop(Option<BlockingThreads>);

impl Drop for JoinOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        for thread in self.0.iter().flat_map(BlockingThreads::take_handles) {
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
pub struct SendableReactor<E: Endpoint>(InlineReactor<E>);

// SAFETY: who made it promised that nothing of it that is bound to a thread lies outside of it.
unsafe impl<E: Endpoint> Send for SendableReactor<E> {}

impl<E: Endpoint> SendableReactor<E>
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
            IoKind::Epoll | IoKind::EpollInstead(_) => Ok(SendableReactor(inline)),
        }
    }

    /// To use it.
    pub fn reactor_mut(&mut self) -> &mut InlineReactor<E> {
        &mut self.0
    }
}

impl<E: Endpoint> AsFd for SendableReactor<E>
where
    E::Message: 'static,
{
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
