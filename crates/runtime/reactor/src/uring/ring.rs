//! The ring itself: setup in the best mode of the kernel, submission, completion.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{CompletionQueue, EnterFlags, IoUring, SubmissionQueue, Submitter};

use crate::mailbox::{ShardWaker, signal_eventfd};

/// Submissions that fit before they must be handed over.
const SQ_ENTRIES: u32 = 1024;
/// Completions that fit; beyond it the kernel keeps them on a list and is slower.
const CQ_ENTRIES: u32 = 8192;

/// Makes a ring for the calling thread, which must be the only one to use it.
pub(crate) fn create_ring() -> io::Result<IoUring> {
    let mut last = None;
    // Newest first: NO_SQARRAY is of Linux 6.6, DEFER_TASKRUN of 6.1, COOP_TASKRUN of 5.19.
    for step in 0..3 {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(CQ_ENTRIES).setup_clamp().setup_submit_all().setup_taskrun_flag();
        match step {
            0 => builder.setup_single_issuer().setup_defer_taskrun().setup_no_sqarray(),
            1 => builder.setup_single_issuer().setup_defer_taskrun(),
            _ => builder.setup_coop_taskrun(),
        };
        match builder.build(SQ_ENTRIES) {
            Ok(ring) if ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop() => {
                return Ok(ring);
            }
            Ok(_) => return Err(io::ErrorKind::Unsupported.into()),
            // A flag that the kernel does not know.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = Some(e),
            Err(e) => return Err(e),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
}

fn create_eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What came of a submission.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) name: u64,
    pub(crate) result: i32,
    pub(crate) flags: u32,
}

/// A ring in use.
pub(crate) struct Ring<'r> {
    pub(crate) submitter: Submitter<'r>,
    sq: SubmissionQueue<'r>,
    cq: CompletionQueue<'r>,
    /// Flags of every call that waits.
    waiting: EnterFlags,
    /// Calls made.
    pub(crate) enters: u64,
    fd: BorrowedFd<'r>,
    /// Made when somebody first asks for a descriptor to watch.
    watch: OnceCell<Arc<OwnedFd>>,
}

impl<'r> Ring<'r> {
    pub(crate) fn new(ring: &'r mut IoUring) -> Self {
        let params = ring.params();
        let waiting = match params.is_feature_no_iowait() {
            // So that a shard that sleeps is not shown as waiting for a disk.
            true => EnterFlags::NO_IOWAIT,
            false => EnterFlags::empty(),
        };
        // SAFETY: the ring, which owns the descriptor, is borrowed for as long.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) };
        let (mut submitter, sq, cq) = ring.split();
        // It spares a look-up per call; without it (before 5.18, or no slot left) all works as well.
        let _ = submitter.register_ring_fd();
        Ring { submitter, sq, cq, waiting, enters: 0, fd, watch: OnceCell::new() }
    }

    /// Readable when something has completed or deferred work waits. The ring's own descriptor is not: who
    /// sleeps on it by epoll is not woken when work is deferred (nobody runs it while the thread waits
    /// elsewhere), so an eventfd is registered, which the kernel signals then too. Not in every case: what
    /// completes because of a write to another eventfd, as the poll of the waker does, signals later or never,
    /// since the kernel lets no eventfd signal another. So what wakes the shard signals this one as well.
    ///
    /// It is readable when it is made: what completed between the caller's last look and this call has
    /// signalled nobody.
    pub(crate) fn fd(&self, waker: &ShardWaker) -> BorrowedFd<'_> {
        if self.watch.get().is_none()
            && let Ok(event) = create_eventfd().map(Arc::new)
            && self.submitter.register_eventfd(event.as_raw_fd()).is_ok()
        {
            waker.add_eventfd(event.clone());
            signal_eventfd(&event);
            let _ = self.watch.set(event);
        }
        self.watch.get().map_or(self.fd, |event| event.as_fd())
    }

    /// What was signalled so far has been looked at. What comes later signals again; what came between
    /// is seen by [`Ring::has_pending_work`].
    pub(crate) fn clear_eventfd(&self) {
        if let Some(event) = self.watch.get() {
            let mut count = 0u64;
            // SAFETY: eight bytes of our own; nothing to read is as good.
            unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
        }
    }

    /// Whether something was added that the kernel has not seen yet.
    pub(crate) fn has_unsubmitted(&mut self) -> bool {
        self.sq.sync();
        !self.sq.is_empty()
    }

    /// Adds a submission, handing over those before it if there is no room.
    ///
    /// # Safety
    /// What the entry points to stays valid until its completion has come.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) {
        loop {
            // SAFETY: as the caller promises.
            if unsafe { self.sq.push(entry) }.is_ok() {
                return;
            }
            self.enter(0, None);
        }
    }

    /// Hands over what was pushed, lets the kernel do its deferred work, and waits if `until` says so.
    pub(crate) fn submit(&mut self, wait: Option<Option<Duration>>) {
        match wait {
            Some(at_most) => self.enter(1, at_most),
            None => {
                self.sq.sync();
                if !self.sq.is_empty() || self.sq.taskrun() || self.sq.cq_overflow() {
                    self.enter(0, None);
                }
            }
        }
    }

    #[expect(clippy::panic, reason = "without its ring a shard would neither work nor get back what is out")]
    fn enter(&mut self, want: u32, at_most: Option<Duration>) {
        self.sq.sync();
        let time = at_most.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        let mut flags = EnterFlags::EXT_ARG | EnterFlags::GETEVENTS;
        if want > 0 {
            flags |= self.waiting;
        }
        self.enters += 1;
        // SAFETY: the arguments are of the form that EXT_ARG announces and live during the call; what
        // the entries point to is valid, as the callers of `push` promise.
        let entered = unsafe { self.submitter.enter(self.sq.len() as u32, want, flags.bits(), Some(&args)) };
        if let Err(e) = entered {
            match e.raw_os_error() {
                // The time is up; a signal came; the kernel wants completions taken or memory first.
                Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => {}
                other => panic!("io_uring_enter on our own ring fails with {other:?}"),
            }
        }
        self.sq.sync();
    }

    /// Whether ring memory says that there is something to take or to run.
    pub(crate) fn has_pending_work(&mut self) -> bool {
        self.cq.sync();
        !self.cq.is_empty() || self.sq.taskrun()
    }

    /// Sees what has completed; [`Ring::next_completion`] gives it.
    pub(crate) fn sync_completions(&mut self) {
        self.cq.sync();
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let entry = self.cq.next()?;
        Some(Completion { name: entry.user_data(), result: entry.result(), flags: entry.flags() })
    }
}
