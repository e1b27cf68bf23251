//! The event loop of all servers: it passes ready descriptors to the server, operations to the disk and completions
//! back, until there is nothing left to do; then it waits.

use std::io;
use std::time::Duration;

use buf::Time;

use crate::disk::Disk;
use crate::requests::{Ended, Requests};
use crate::wait::{Ready, Stop, Waiter, now};

/// How long a server that was asked to stop waits for operations at the disk; then it answers with an error.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How long it then still tries to deliver its answers.
const FAREWELL: Duration = Duration::from_secs(2);

/// Interval between attempts to allocate memory: it may be freed without a completion of the server's own requests.
const RETRY: Duration = Duration::from_millis(20);

/// Rounds of disk and server before descriptors are checked.
const ROUNDS: usize = 64;

/// What the loop needs of a server.
pub(crate) trait EventHandler {
    /// Identifies a request.
    type Token;
    /// Its requests.
    fn requests(&mut self) -> &mut Requests<Self::Token>;
    /// One of its descriptors is ready.
    fn handle_ready(&mut self, disk: &mut dyn Disk, waiter: &Waiter, ready: Ready) -> io::Result<()>;
    /// A request has ended.
    fn handle_ended(&mut self, ended: Ended<Self::Token>) -> io::Result<()>;
    /// The disk's geometry has changed.
    fn handle_change(&mut self, disk: &mut dyn Disk) -> io::Result<()>;
    /// Sends what can be sent, and starts what had to wait. True if anything was started.
    fn advance(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool>;
    /// When to be called by [`EventHandler::advance`] at the latest.
    fn poll_timeout(&self) -> Option<Time>;
    /// Whether anything waits for memory. Meanwhile descriptors that bring requests are not polled, to avoid a busy loop.
    fn is_short(&self) -> bool;
    /// Asks it to stop. True: it stops when its users are done, however long that takes.
    fn stop(&mut self, waiter: &Waiter, how: StopMode) -> bool;
    /// Whether all answers are delivered, and no more requests will come.
    fn is_over(&self) -> bool;
}

/// How a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// As soon as its users are done.
    WhenDone,
    /// Now, even if they are not.
    Now,
}

/// Runs a server until it was asked to stop and has ended, its peer is gone, or the disk is (then with its
/// error).
pub(crate) fn run(handler: &mut impl EventHandler, disk: &mut dyn Disk, stop: &Stop) -> io::Result<()> {
    let _flusher = IoFlusher::begin();
    let mut waiter = Waiter::new(disk, stop)?;
    let mut gone: Option<io::Error> = None;
    let mut deadline: Option<Time> = None;
    let mut asked = 0;
    loop {
        let work = work(handler, disk, &waiter, gone.is_some())?;
        let is_busy = matches!(work, Work::Busy);
        match work {
            Work::Idle | Work::Busy => {}
            Work::DiskGone(error) => {
                waiter.forget_disk(disk);
                gone = Some(error);
                handler.requests().give_up();
                handler.stop(&waiter, StopMode::Now);
                deadline = Some(now() + FAREWELL);
                continue;
            }
        }
        let late = deadline.is_some_and(|deadline| now() >= deadline);
        if handler.requests().in_flight() == 0 && (handler.is_over() || late) {
            return gone.map_or(Ok(()), Err);
        }
        if late {
            handler.requests().give_up();
            deadline = Some(now() + FAREWELL);
            continue;
        }
        let until = [handler.poll_timeout(), deadline].into_iter().flatten().min();
        let most = until.map(|until| until.since(now()));
        let most = if handler.is_short() { Some(most.map_or(RETRY, |most| most.min(RETRY))) } else { most };
        waiter.wait(disk, if is_busy { Some(Duration::ZERO) } else { most })?;
        if stop.times() > asked {
            stop.clear();
            asked = stop.times();
            let how = if asked == 1 { StopMode::WhenDone } else { StopMode::Now };
            let wait = if asked == 1 { STOP_WAIT } else { Duration::ZERO };
            if !handler.stop(&waiter, how) {
                deadline = Some(deadline.unwrap_or(Time(u64::MAX)).min(now() + wait));
            }
        }
        let mut index = 0;
        while let Some(ready) = waiter.ready(index) {
            if let Some(ready) = ready {
                handler.handle_ready(disk, &waiter, ready)?;
            }
            index += 1;
        }
    }
}

/// After a server has failed, waits until all its operations have completed, or `stop` is requested. Its users resend
/// them to the next server of the same disk: a late completion would be taken for one of that server's operations, and
/// an old write could land after a newer one.
pub(crate) fn drain<T>(requests: &mut Requests<T>, disk: &mut dyn Disk, stop: &Stop) {
    let _flusher = IoFlusher::begin();
    while requests.in_flight() > 0 && stop.times() == 0 && disk.drive(Some(Duration::ZERO)).is_ok() {
        while let Some(done) = disk.poll_done() {
            requests.handle_done(disk, done);
        }
        std::thread::sleep(RETRY);
    }
}

/// While it lives, the kernel does not make this thread wait for dirty pages when memory is low: they may belong to a
/// file system on the disk that this thread serves, which would be a deadlock.
struct IoFlusher {
    begun: bool,
}

/// linux/prctl.h, Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;

impl IoFlusher {
    /// If the kernel allows it: it needs CAP_SYS_RESOURCE.
    fn begin() -> IoFlusher {
        // SAFETY: two calls without memory; they concern the calling thread alone.
        let begun = unsafe {
            libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) == 0 && libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0
        };
        IoFlusher { begun }
    }
}

impl Drop for IoFlusher {
    fn drop(&mut self) {
        if self.begun {
            // SAFETY: as above. If it fails, the thread goes on as one that is never made to wait.
            unsafe { libc::prctl(PR_SET_IO_FLUSHER, 0, 0, 0, 0) };
        }
    }
}

enum Work {
    Idle,
    /// There is more to do.
    Busy,
    DiskGone(io::Error),
}

/// Lets disk and server work until neither has anything to do, or the round limit is reached: a client that sends
/// requests without end must not delay a [`Stop`] or other clients.
fn work(
    handler: &mut impl EventHandler,
    disk: &mut dyn Disk,
    waiter: &Waiter,
    gone: bool,
) -> io::Result<Work> {
    for _ in 0..ROUNDS {
        let mut moved = false;
        if !gone {
            if let Err(error) = disk.drive(Some(Duration::ZERO)) {
                return Ok(Work::DiskGone(error));
            }
            while let Some(done) = disk.poll_done() {
                handler.requests().handle_done(disk, done);
                moved = true;
            }
            if disk.has_changed() {
                handler.handle_change(disk)?;
            }
        }
        while let Some(ended) = handler.requests().poll_ended() {
            handler.handle_ended(ended)?;
            moved = true;
        }
        moved |= handler.advance(disk, waiter)?;
        // What was refused at once has ended, too.
        moved |= handler.requests().has_ended();
        if !moved {
            return Ok(Work::Idle);
        }
    }
    Ok(Work::Busy)
}

#[cfg(test)]
mod tests;
