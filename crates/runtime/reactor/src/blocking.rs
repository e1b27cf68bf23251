//! Threads for system calls that can only block: all disk operations of the epoll world, and those
//! that io_uring has no form for or would only give to a thread of the kernel's own.
//!
//! The pool is shared by all shards and bounded; work waits in one queue, which is as long as the
//! backends' queue depths allow. The lock around the queue's end is among these threads only.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use buf::Errno;

use crate::disk::{Call, What};
use crate::mail::{Door, Letter};

/// How often in a row a call may be interrupted. These threads take no signal that the process handles, so once
/// is rare.
const INTERRUPTIONS_MAX: u32 = 64;

/// One call, and the slot of the shard that waits for it.
pub(crate) struct Job {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) call: Call,
}

/// Starts `threads` threads, which end when the last sender is dropped.
pub(crate) fn start<M: Send + 'static>(
    threads: usize,
    doors: Arc<[Door<M>]>,
) -> io::Result<(Sender<Job>, Vec<thread::JoinHandle<()>>)> {
    let (jobs, queue) = channel();
    let queue = Arc::new(Mutex::new(queue));
    let handles = (0..threads.clamp(1, 64)).map(|i| {
        let (queue, doors) = (queue.clone(), doors.clone());
        thread::Builder::new().name(format!("bw-blocking-{i}")).spawn(move || work(&queue, &doors))
    });
    Ok((jobs, handles.collect::<io::Result<_>>()?))
}

fn work<M>(queue: &Mutex<Receiver<Job>>, doors: &[Door<M>]) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { shard, slot, call }) = next else { return };
        let (came, data) = perform(call);
        // A shard does not end while a slot is out, so somebody reads this.
        doors[usize::from(shard)].post(Letter::Worked { slot, came, data });
    }
}

fn perform(call: Call) -> (Result<usize, Errno>, Option<(u64, u64)>) {
    let fd = call.fd;
    let came = match call.what {
        // SAFETY: the list and the memory that it names are valid and stand still until the call has
        // ended (see `Call`).
        What::Read { iov, count, offset } => retry(|| {
            // SAFETY: the list and the memory that it names are valid and stand still until the call
            // has ended (see `Call`).
            unsafe { libc::preadv(fd, iov, count as i32, offset as i64) }
        }),
        // SAFETY: as for the read.
        What::Write { iov, count, offset, durable } => unsafe { write(fd, iov, count, offset, durable) },
        // SAFETY: no pointers are passed (so for the rest).
        What::Sync => retry(|| unsafe { libc::fdatasync(fd) as isize }),
        What::Punch { offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: as above.
            retry(|| unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) as isize })
        }
        What::Zero { offset, len } => zero(fd, offset, len),
        What::NextData { offset } => {
            return match next_data(fd, offset) {
                Ok(data) => (Ok(0), data),
                Err(e) => (Err(e), None),
            };
        }
        What::Prefetch { offset, len } => {
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
unsafe fn write(
    fd: i32,
    iov: *const libc::iovec,
    count: u32,
    offset: u64,
    durable: bool,
) -> Result<usize, Errno> {
    let (count, offset) = (count as i32, offset as i64);
    if durable {
        // SAFETY: as the caller promises.
        let came = retry(|| unsafe { libc::pwritev2(fd, iov, count, offset, libc::RWF_DSYNC) });
        // EPERM is a filter's answer, too; of a file that may not be written the plain write says it again.
        if !matches!(came, Err(Errno(libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP))) {
            return came;
        }
    }
    // SAFETY: as the caller promises.
    let written = retry(|| unsafe { libc::pwritev(fd, iov, count, offset) })?;
    if durable {
        // Of a sync's failure, whatever it is, nobody may read that the write found no room.
        // SAFETY: no pointers are passed.
        retry(|| unsafe { libc::fdatasync(fd) as isize }).map_err(|_| Errno(libc::EIO))?;
    }
    Ok(written)
}

/// Zeroes a range and keeps its space: FALLOC_FL_ZERO_RANGE, which block devices understand too.
fn zero(fd: i32, offset: u64, len: u64) -> Result<usize, Errno> {
    let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointers are passed.
    let came = retry(|| unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) as isize });
    if !matches!(came, Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM))) {
        return came;
    }
    /// _IO(0x12, 127) of linux/fs.h.
    const BLKZEROOUT: libc::c_ulong = 0x127f;
    let range = [offset, len];
    // SAFETY: the call reads two 64-bit numbers. On what is no block device it fails with ENOTTY.
    match retry(|| unsafe { libc::ioctl(fd, BLKZEROOUT as _, range.as_ptr()) as isize }) {
        Err(Errno(libc::ENOTTY)) => came,
        other => other,
    }
}

fn next_data(fd: i32, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
    // SAFETY: no pointers are passed. The file position is nobody's: all else is positioned I/O.
    let seek = |at: u64, whence| match unsafe { libc::lseek(fd, at as i64, whence) } {
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
fn retry(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
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
    use crate::denied;
    use std::io::{Read, Seek};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_filter_that_refuses_pwritev2_does_not_make_a_durable_write_fail() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let mut file = tempfile();
            let bytes = [7u8; 4096];
            let iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let fd = file.as_raw_fd();
            let at = &raw const iov as usize;
            denied::on_a_thread(&[libc::SYS_pwritev2], errno, || {
                // SAFETY: the list and the bytes stand in this function, which waits for the thread.
                let came = unsafe { write(fd, at as *const libc::iovec, 1, 0, true) };
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
        assert_eq!(retry(&mut interrupted), Err(Errno(libc::EINTR)));
        assert_eq!(calls, INTERRUPTIONS_MAX);
        assert_eq!(retry(|| 7), Ok(7));
    }
}
