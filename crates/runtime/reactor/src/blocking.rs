//! Threads for system calls that block: all disk operations of the epoll world, and those that io_uring does
//! not support or would only pass to a kernel thread.
//!
//! The pool is shared by all shards. Calls wait in a queue per disk, bounded by the backends' queue depths,
//! and disks take turns. Invariant: disks that never answer keep no other disk from a thread. While as many
//! calls are running as there are shared threads, only a disk without a running call may start another, and
//! the thread that would be the last to start starts a further thread first.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use buf::Errno;
use volume::DiskId;

use crate::disk::{DiskSyscall, SyscallKind};
use crate::mailbox::{MailboxSender, ShardMail};

/// How often in a row a call may be interrupted. These threads take no signal that the process handles, so once
/// is rare.
const INTERRUPTIONS_MAX: u32 = 64;

/// The most threads that are shared by all disks.
const SHARED_THREADS_MAX: usize = 64;

/// The most threads beyond those. As many disks may hang at a time before others wait for one of them.
const EXTRA_THREADS_MAX: usize = 256;

/// One call, and the slot of the shard that waits for it.
pub(crate) struct BlockingCall {
    pub(crate) disk: DiskId,
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) call: DiskSyscall,
}

/// How a call has ended, and the data that a search has found.
type CallResult = (Result<usize, Errno>, Option<(u64, u64)>);

/// Where jobs are put. The threads end when the last of these is dropped.
pub(crate) struct BlockingPool(Arc<CallQueue>);

impl BlockingPool {
    /// Starts `shared` threads and a queue for them.
    pub(crate) fn start<M: Send + 'static>(
        shared: usize,
        mailboxes: Arc<[MailboxSender<M>]>,
    ) -> io::Result<Self> {
        BlockingPool::start_with(shared, mailboxes, execute_syscall)
    }

    fn start_with<M: Send + 'static>(
        shared: usize,
        mailboxes: Arc<[MailboxSender<M>]>,
        perform: fn(DiskSyscall) -> CallResult,
    ) -> io::Result<Self> {
        let jobs = BlockingPool::without_threads(shared);
        let workers = WorkerContext { queue: jobs.0.clone(), mailboxes, perform };
        let mut state = jobs.0.lock();
        for _ in 0..state.shared {
            workers.spawn_worker(&mut state)?;
        }
        drop(state);
        Ok(jobs)
    }

    /// A queue that nothing is taken from.
    pub(crate) fn without_threads(shared: usize) -> Self {
        let state =
            QueueState { shared: shared.clamp(1, SHARED_THREADS_MAX), senders: 1, ..QueueState::default() };
        BlockingPool(Arc::new(CallQueue { state: Mutex::new(state), arrival: Condvar::new() }))
    }

    pub(crate) fn submit(&self, job: BlockingCall) {
        self.0.lock().push_call(job);
        self.0.arrival.notify_one();
    }

    /// To wait for the threads with; it keeps none from ending.
    pub(crate) fn thread_handles(&self) -> BlockingThreads {
        BlockingThreads(self.0.clone())
    }

    /// Takes what a thread would.
    #[cfg(test)]
    pub(crate) fn take_call(&self) -> Option<BlockingCall> {
        self.0.lock().take_ready_call()
    }
}

impl Clone for BlockingPool {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        BlockingPool(self.0.clone())
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.arrival.notify_all();
    }
}

/// The threads behind [`BlockingPool`].
pub(crate) struct BlockingThreads(Arc<CallQueue>);

impl BlockingThreads {
    /// Those that run now. After the last handle of the [`BlockingPool`] has been dropped no other is started.
    pub(crate) fn take_handles(&self) -> Vec<thread::JoinHandle<()>> {
        std::mem::take(&mut self.0.lock().threads)
    }
}

struct CallQueue {
    state: Mutex<QueueState>,
    arrival: Condvar,
}

impl CallQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct QueueState {
    /// Disks with jobs that wait or are out.
    disks: Vec<DiskJobs>,
    /// Whose turn is next in `disks`.
    next: usize,
    /// Queues of disks that have none, to be used again.
    spare: Vec<VecDeque<BlockingCall>>,
    /// Calls that may be out at once, whatever their disks.
    shared: usize,
    /// Calls that are out.
    out: usize,
    /// Threads without a call.
    idle: usize,
    /// How many handles there are.
    senders: usize,
    threads: Vec<thread::JoinHandle<()>>,
}

struct DiskJobs {
    disk: DiskId,
    out: usize,
    waiting: VecDeque<BlockingCall>,
}

impl QueueState {
    fn push_call(&mut self, job: BlockingCall) {
        if let Some(disk) = self.disks.iter_mut().find(|disk| disk.disk == job.disk) {
            return disk.waiting.push_back(job);
        }
        let mut waiting = self.spare.pop().unwrap_or_default();
        let disk = job.disk;
        waiting.push_back(job);
        self.disks.push(DiskJobs { disk, out: 0, waiting });
    }

    /// The next job that may start.
    fn take_ready_call(&mut self) -> Option<BlockingCall> {
        let any = self.out < self.shared;
        let may_start = |disk: &DiskJobs| !disk.waiting.is_empty() && (any || disk.out == 0);
        let mut turns = (self.next..self.disks.len()).chain(0..self.next);
        let at = turns.find(|&at| self.disks.get(at).is_some_and(may_start))?;
        let disk = self.disks.get_mut(at)?;
        let job = disk.waiting.pop_front()?;
        disk.out += 1;
        self.out += 1;
        self.next = at + 1;
        Some(job)
    }

    /// A call on this disk has ended.
    fn finish_call(&mut self, disk: DiskId) {
        self.out -= 1;
        let Some(at) = self.disks.iter().position(|of| of.disk == disk) else { return };
        let Some(of) = self.disks.get_mut(at) else { return };
        of.out -= 1;
        if of.out == 0 && of.waiting.is_empty() {
            self.spare.push(self.disks.swap_remove(at).waiting);
        }
    }

    /// More threads are idle than may be needed at once.
    fn has_surplus_idle_threads(&self) -> bool {
        self.idle > 1 && self.out + self.idle > self.shared + 1
    }

    fn is_shut_down(&self) -> bool {
        self.senders == 0 && self.disks.iter().all(|disk| disk.waiting.is_empty())
    }
}

/// What a thread needs to work, and to start another.
struct WorkerContext<M> {
    queue: Arc<CallQueue>,
    mailboxes: Arc<[MailboxSender<M>]>,
    perform: fn(DiskSyscall) -> CallResult,
}

impl<M: Send + 'static> WorkerContext<M> {
    fn spawn_worker(&self, state: &mut QueueState) -> io::Result<()> {
        let same = WorkerContext {
            queue: self.queue.clone(),
            mailboxes: self.mailboxes.clone(),
            perform: self.perform,
        };
        let number = state.out + state.idle;
        let builder = thread::Builder::new().name(format!("bw-blocking-{number}"));
        let thread = builder.spawn(move || same.run_worker())?;
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
        state.idle += 1;
        Ok(())
    }

    fn run_worker(&self) {
        let mut state = self.queue.lock();
        loop {
            let Some(BlockingCall { disk, shard, slot, call }) = state.take_ready_call() else {
                if state.is_shut_down() || state.has_surplus_idle_threads() {
                    break;
                }
                state = self.queue.arrival.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.idle -= 1;
            if state.idle == 0 && state.senders > 0 && state.out < state.shared + EXTRA_THREADS_MAX {
                // If the system has no thread for us, what waits has to wait for these.
                let _ = self.spawn_worker(&mut state);
            }
            drop(state);
            let (came, data) = (self.perform)(call);
            // A shard does not end while a slot is out, so this is read.
            if let Some(mailbox) = self.mailboxes.get(usize::from(shard)) {
                mailbox.post(ShardMail::Worked { slot, came, data });
            }
            state = self.queue.lock();
            state.idle += 1;
            state.finish_call(disk);
        }
        state.idle -= 1;
        let is_over = state.is_shut_down();
        drop(state);
        if is_over {
            // Others may have waited for a call that was out.
            self.queue.arrival.notify_all();
        }
    }
}

fn execute_syscall(call: DiskSyscall) -> CallResult {
    let fd = call.fd;
    let came = match call.kind {
        // SAFETY: the list and the memory that it names are valid and stand still until the call has
        // ended (see `DiskSyscall`).
        SyscallKind::Read { iov, count, offset } => retry_interrupted(|| {
            // SAFETY: the list and the memory that it names are valid and stand still until the call
            // has ended (see `DiskSyscall`).
            unsafe { libc::preadv(fd, iov, count as i32, offset as i64) }
        }),
        // SAFETY: as for the read.
        SyscallKind::Write { iov, count, offset, durable } => unsafe {
            write_at(fd, iov, count, offset, durable)
        },
        // SAFETY: no pointers are passed (so for the rest).
        SyscallKind::Sync => retry_interrupted(|| unsafe { libc::fdatasync(fd) as isize }),
        SyscallKind::Punch { offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: as above.
            retry_interrupted(|| unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) as isize })
        }
        SyscallKind::Zero { offset, len } => zero_range(fd, offset, len),
        SyscallKind::NextData { offset } => {
            return match seek_next_data(fd, offset) {
                Ok(data) => (Ok(0), data),
                Err(e) => (Err(e), None),
            };
        }
        SyscallKind::Prefetch { offset, len } => {
            // SAFETY: as above. The call returns its error.
            match unsafe { libc::posix_fadvise(fd, offset as i64, len as i64, libc::POSIX_FADV_WILLNEED) } {
                0 => Ok(0),
                e => Err(Errno(e)),
            }
        }
    };
    (came, None)
}

/// Writes, and syncs with it if `durable`. Where pwritev2 (Linux 4.6, RWF_DSYNC 4.7) is not to be had, a sync
/// follows the write.
///
/// # Safety
/// The list and the memory that it names are valid until the call has ended.
unsafe fn write_at(
    fd: i32,
    iov: *const libc::iovec,
    count: u32,
    offset: u64,
    durable: bool,
) -> Result<usize, Errno> {
    let (count, offset) = (count as i32, offset as i64);
    if durable {
        // SAFETY: as the caller promises.
        let came = retry_interrupted(|| unsafe { libc::pwritev2(fd, iov, count, offset, libc::RWF_DSYNC) });
        // EPERM is a filter's answer, too; of a file that may not be written the plain write says it again.
        if !matches!(came, Err(Errno(libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP))) {
            return came;
        }
    }
    // SAFETY: as the caller promises.
    let written = retry_interrupted(|| unsafe { libc::pwritev(fd, iov, count, offset) })?;
    if durable {
        // Of a sync's failure, whatever it is, nobody may read that the write found no room.
        // SAFETY: no pointers are passed.
        retry_interrupted(|| unsafe { libc::fdatasync(fd) as isize }).map_err(|_| Errno(libc::EIO))?;
    }
    Ok(written)
}

/// Zeroes a range and keeps its space: FALLOC_FL_ZERO_RANGE, which block devices understand too.
fn zero_range(fd: i32, offset: u64, len: u64) -> Result<usize, Errno> {
    let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers are passed.
    let came = retry_interrupted(|| unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) as isize });
    if !matches!(came, Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM))) {
        return came;
    }
    /// _IO(0x12, 127) of linux/fs.h.
    const BLKZEROOUT: libc::c_ulong = 0x127f;
    let range = [offset, len];
    // SAFETY: the call reads two 64-bit numbers. On what is no block device it fails with ENOTTY.
    match retry_interrupted(|| unsafe { libc::ioctl(fd, BLKZEROOUT as _, range.as_ptr()) as isize }) {
        Err(Errno(libc::ENOTTY)) => came,
        other => other,
    }
}

fn seek_next_data(fd: i32, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
    // SAFETY: no pointers are passed. The file position is nobody's: all else is positioned I/O.
    let seek = |at: u64, origin| match unsafe { libc::lseek(fd, at as i64, origin) } {
        -1 => Err(last_errno()),
        at => Ok(at as u64),
    };
    match seek(offset, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(Errno(libc::ENXIO)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Makes a call, again where a signal has interrupted it. One that never gets further is the asker's concern:
/// no thread is lost to it.
fn retry_interrupted(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    for _ in 1..INTERRUPTIONS_MAX {
        match call() {
            -1 if last_errno() == Errno(libc::EINTR) => {}
            -1 => return Err(last_errno()),
            n => return Ok(n as usize),
        }
    }
    match call() {
        -1 => Err(last_errno()),
        n => Ok(n as usize),
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denied_syscalls;
    use crate::mailbox::ShardWaker;
    use std::collections::BTreeSet;
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
    use std::time::Duration;

    fn job(disk: u32, slot: u32) -> BlockingCall {
        // The disk's number stands for its file.
        BlockingCall {
            disk: DiskId(disk),
            shard: 0,
            slot,
            call: DiskSyscall { fd: disk as i32, waits_for_others: false, kind: SyscallKind::Sync },
        }
    }

    fn mailboxes() -> (Arc<[MailboxSender<()>]>, Receiver<ShardMail<()>>) {
        let (sender, inbox) = sync_channel(1024);
        let waker = Arc::new(ShardWaker::new().unwrap());
        (Arc::new([MailboxSender { sender, waker, load: Arc::new(AtomicUsize::new(0)) }]), inbox)
    }

    /// The slots of the next `count` calls that end.
    fn ended(inbox: &Receiver<ShardMail<()>>, count: usize) -> BTreeSet<u32> {
        let slot = || match inbox.recv_timeout(Duration::from_secs(60)) {
            Ok(ShardMail::Worked { slot, .. }) => slot,
            Ok(_) => panic!("only calls are told of"),
            Err(e) => panic!("no thread for a call: {e}"),
        };
        (0..count).map(|_| slot()).collect()
    }

    /// Disks whose calls do not end before [`STUCK`] is let go.
    const HANGS: std::ops::Range<i32> = 100..200;
    static STUCK: Mutex<()> = Mutex::new(());

    fn hangs(call: DiskSyscall) -> CallResult {
        if HANGS.contains(&call.fd) {
            drop(STUCK.lock().unwrap_or_else(PoisonError::into_inner));
        }
        (Ok(0), None)
    }

    #[test]
    fn disks_that_never_answer_do_not_keep_others_from_a_thread() {
        let (mailboxes, inbox) = mailboxes();
        let jobs = BlockingPool::start_with(4, mailboxes, hangs).unwrap();
        let threads = jobs.thread_handles();
        let stuck = STUCK.lock().unwrap();
        // Each with more calls than there are threads.
        for slot in 0..80 {
            jobs.submit(job(HANGS.start as u32 + slot % 10, slot));
        }
        jobs.submit(job(1, 1000));
        jobs.submit(job(1, 1001));
        jobs.submit(job(2, 1002));
        assert_eq!(ended(&inbox, 3), BTreeSet::from([1000, 1001, 1002]));
        assert_eq!(inbox.recv_timeout(Duration::ZERO).err(), Some(RecvTimeoutError::Timeout));
        drop(stuck);
        assert_eq!(ended(&inbox, 80), (0..80).collect());
        drop(jobs);
        for thread in threads.take_handles() {
            thread.join().unwrap();
        }
    }

    #[test]
    fn one_disk_has_all_shared_threads_and_no_more() {
        let jobs = BlockingPool::without_threads(4);
        for slot in 0..10 {
            jobs.submit(job(7, slot));
        }
        let taken: Vec<u32> = std::iter::from_fn(|| jobs.take_call()).map(|job| job.slot).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        jobs.submit(job(8, 20));
        jobs.submit(job(8, 21));
        assert_eq!(jobs.take_call().map(|job| job.slot), Some(20), "a disk without a thread has one");
        assert!(jobs.take_call().is_none());
        jobs.0.lock().finish_call(DiskId(7));
        assert!(jobs.take_call().is_none(), "four are out still");
        jobs.0.lock().finish_call(DiskId(7));
        assert_eq!(jobs.take_call().map(|job| job.slot), Some(4));
        jobs.0.lock().finish_call(DiskId(7));
        assert_eq!(jobs.take_call().map(|job| job.slot), Some(21), "disks take turns");
    }

    #[test]
    fn threads_that_hung_disks_needed_end_when_these_answer() {
        let (mailboxes, inbox) = mailboxes();
        let jobs = BlockingPool::start_with(2, mailboxes, hangs).unwrap();
        let stuck = STUCK.lock().unwrap();
        for slot in 0..20 {
            jobs.submit(job(HANGS.start as u32 + slot, slot));
        }
        let running = || {
            let state = jobs.0.lock();
            state.out + state.idle
        };
        while running() < 21 {
            thread::yield_now();
        }
        drop(stuck);
        ended(&inbox, 20);
        while running() > 3 {
            thread::yield_now();
        }
        jobs.submit(job(1, 50));
        assert_eq!(ended(&inbox, 1), BTreeSet::from([50]));
    }

    #[test]
    fn a_filter_that_refuses_pwritev2_does_not_make_a_durable_write_fail() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let mut file = tempfile();
            let bytes = [7u8; 4096];
            let iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let fd = file.as_raw_fd();
            let at = &raw const iov as usize;
            denied_syscalls::run_with_denied(&[libc::SYS_pwritev2], errno, || {
                // SAFETY: the list and the bytes stand in this function, which waits for the thread.
                let came = unsafe { write_at(fd, at as *const libc::iovec, 1, 0, true) };
                assert_eq!(came, Ok(4096));
            });
            let mut back = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut back).unwrap();
            assert_eq!(back, bytes);
        }
    }

    /// A file that has no name.
    fn tempfile() -> std::fs::File {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE);
        options.open(std::env::temp_dir()).unwrap()
    }

    #[test]
    fn a_call_that_is_always_interrupted_does_not_keep_its_thread_for_ever() {
        let mut calls = 0;
        let mut interrupted = || {
            calls += 1;
            // SAFETY: the address is this thread's own error number.
            unsafe { *libc::__errno_location() = libc::EINTR };
            -1
        };
        assert_eq!(retry_interrupted(&mut interrupted), Err(Errno(libc::EINTR)));
        assert_eq!(calls, INTERRUPTIONS_MAX);
        assert_eq!(retry_interrupted(|| 7), Ok(7));
    }
}
