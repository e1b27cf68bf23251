//! Messages between shards and from the control plane: a bounded queue per shard and a waker.
//!
//! A message wakes a sleeping shard, and costs no system call otherwise. The two flags of a [`ShardWaker`] are a
//! Dekker pair: the sender raises `notified` and then reads `asleep`, the sleeper raises `asleep` and then reads
//! `notified`, all in one sequentially consistent order. So at least one of them sees the other, and no message
//! is missed.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};

use buf::{Errno, Time};
use endpoint::{AcceptedSocket, LinkArrival, LinkId, ListenerId};
use volume::DiskId;

use crate::config::TcpOptions;
use crate::disk::DiskFile;

/// Messages that may wait for one shard: far more than the connections that move or the fences that
/// run in one turn. A shard that finds another's mailbox full keeps its messages and pumps no more until
/// they are posted, so nobody waits for anybody while holding something.
pub(crate) const MAILBOX_LEN_MAX: usize = 4096;

/// What comes to a shard from outside.
pub(crate) enum ShardMail<M> {
    Message(M),
    /// A socket that becomes a link here.
    Link {
        fd: OwnedFd,
        how: IncomingLink<M>,
    },
    /// Their sockets are wanted for another process.
    DuplicateLinks {
        links: Vec<LinkId>,
        reply: Sender<io::Result<Vec<OwnedFd>>>,
    },
    /// Its listeners are wanted for another process.
    DuplicateListeners {
        reply: Sender<io::Result<Vec<(ListenerId, OwnedFd)>>>,
    },
    /// The file behind a disk; `None` takes it away.
    Disk {
        id: DiskId,
        file: Option<DiskFile>,
    },
    /// A blocking thread is done with a work slot.
    Worked {
        slot: u32,
        came: Result<usize, Errno>,
        data: Option<(u64, u64)>,
    },
    /// Accept here too.
    OpenListener {
        id: ListenerId,
        socket: TcpListener,
    },
    /// What is accepted here comes by another listener from now on, with these options.
    ChangeListener {
        from: ListenerId,
        to: ListenerId,
        tcp: Box<TcpOptions>,
    },
    /// Accept here no more.
    CloseListener {
        id: ListenerId,
    },
    /// Accept no more anywhere.
    CloseListeners,
    /// End when no link is left, or at this time.
    Stop {
        deadline: Time,
    },
}

/// Where a link comes from.
pub(crate) enum IncomingLink<M> {
    Accepted(AcceptedSocket),
    Moved(M),
}

impl<M> From<IncomingLink<M>> for LinkArrival<M> {
    fn from(incoming: IncomingLink<M>) -> Self {
        match incoming {
            IncomingLink::Accepted(accepted) => LinkArrival::Accepted(accepted),
            IncomingLink::Moved(message) => LinkArrival::Moved(message),
        }
    }
}

/// Wakes one shard.
#[derive(Debug)]
pub(crate) struct ShardWaker {
    notified: AtomicBool,
    asleep: AtomicBool,
    event: OwnedFd,
    /// Signalled as well.
    watched: OnceLock<Arc<OwnedFd>>,
}

impl ShardWaker {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just given us this descriptor, and nobody else knows it.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let (notified, asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(ShardWaker { notified, asleep, event, watched: OnceLock::new() })
    }

    /// Tells that something waits; true if the shard had to be woken.
    pub(crate) fn notify(&self) -> bool {
        self.notified.store(true, Ordering::SeqCst);
        if !self.asleep.swap(false, Ordering::SeqCst) {
            return false;
        }
        signal_eventfd(&self.event);
        if let Some(event) = self.watched.get() {
            signal_eventfd(event);
        }
        true
    }

    /// Another eventfd is to be signalled whenever a sleeper is woken.
    pub(crate) fn add_eventfd(&self, event: Arc<OwnedFd>) {
        let _ = self.watched.set(event);
    }

    /// Whether somebody has notified it since [`ShardWaker::take_notification`].
    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed)
    }

    /// The shard is about to read its messages; true if there may be any.
    pub(crate) fn take_notification(&self) -> bool {
        self.is_notified() && self.notified.swap(false, Ordering::SeqCst)
    }

    /// The shard goes to sleep, unless this says that something waits.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.notified.load(Ordering::SeqCst) {
            self.note_awake();
            return false;
        }
        true
    }

    /// The shard is awake again.
    pub(crate) fn note_awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Becomes readable at each [`ShardWaker::notify`] that meets a sleeper (watch it edge-triggered: it is
    /// never read).
    pub(crate) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Makes an eventfd readable.
pub(crate) fn signal_eventfd(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight readable bytes. A full counter means that a wake-up is pending anyway.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Puts messages into the mailbox of one shard.
pub(crate) struct MailboxSender<M> {
    pub(crate) sender: SyncSender<ShardMail<M>>,
    pub(crate) waker: Arc<ShardWaker>,
    /// Links there and on their way there.
    pub(crate) load: Arc<AtomicUsize>,
}

impl<M> Clone for MailboxSender<M> {
    fn clone(&self) -> Self {
        MailboxSender { sender: self.sender.clone(), waker: self.waker.clone(), load: self.load.clone() }
    }
}

/// How posting ended.
pub(crate) enum PostOutcome<M> {
    /// It was; the shard had to be woken if true.
    Done(bool),
    /// There is no room now.
    Full(ShardMail<M>),
    /// The shard has ended: what was posted is dropped.
    Gone,
}

impl<M> MailboxSender<M> {
    pub(crate) fn try_post(&self, mail: ShardMail<M>) -> PostOutcome<M> {
        match self.sender.try_send(mail) {
            Ok(()) => PostOutcome::Done(self.waker.notify()),
            Err(TrySendError::Full(mail)) => PostOutcome::Full(mail),
            Err(TrySendError::Disconnected(_)) => PostOutcome::Gone,
        }
    }

    /// Waits for room. For threads that are no shards.
    pub(crate) fn post(&self, mail: ShardMail<M>) -> bool {
        // A sleeper with a full mailbox was woken when the mailbox filled, so it empties it.
        let sent = self.sender.send(mail).is_ok();
        self.waker.notify();
        sent
    }
}
