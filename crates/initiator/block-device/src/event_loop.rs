//! The event loop of all servers: it passes ready descriptors to the server, operations to the disk and completions
//! back, until there is nothing left to do; then it waits.

use std::io;
use std::time::Duration;

use buf::Time;

use crate::disk::Disk;
use crate::event_waiter::{EpollWaiter, ReadyEvent, ServerStop, monotonic_now};
use crate::requests::{EndedRequest, RequestTable};

/// How long a server that was asked to stop waits for operations at the disk; then it answers with an error.
const STOP_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it then still tries to deliver its answers.
const REPLY_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between attempts to allocate memory: it may be freed without a completion of the server's own requests.
const MEMORY_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Rounds of disk and server before descriptors are checked.
const ROUNDS_PER_POLL: usize = 64;

/// What the loop needs of a server.
pub(crate) trait EventHandler {
    /// Identifies a request.
    type Token;
    /// Its requests.
    fn requests(&mut self) -> &mut RequestTable<Self::Token>;
    /// One of its descriptors is ready.
    fn handle_ready(
        &mut self,
        disk: &mut dyn Disk,
        waiter: &EpollWaiter,
        ready: ReadyEvent,
    ) -> io::Result<()>;
    /// A request has ended.
    fn handle_request_ended(&mut self, ended: EndedRequest<Self::Token>) -> io::Result<()>;
    /// The disk's geometry has changed.
    fn handle_geometry_change(&mut self, disk: &mut dyn Disk) -> io::Result<()>;
    /// Sends what can be sent, and starts what had to wait. True if anything was started.
    fn advance(&mut self, disk: &mut dyn Disk, waiter: &EpollWaiter) -> io::Result<bool>;
    /// When to be called by [`EventHandler::advance`] at the latest.
    fn poll_timeout(&self) -> Option<Time>;
    /// Whether anything waits for memory. Meanwhile descriptors that bring requests are not polled, to avoid a busy loop.
    fn waits_for_memory(&self) -> bool;
    /// Asks it to stop. True: it stops when its users are done, however long that takes.
    fn start_stop(&mut self, waiter: &EpollWaiter, how: StopMode) -> bool;
    /// Whether all answers are delivered, and no more requests will come.
    fn is_finished(&self) -> bool;
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
pub(crate) fn run_event_loop(
    handler: &mut impl EventHandler,
    disk: &mut dyn Disk,
    stop: &ServerStop,
) -> io::Result<()> {
    let _flusher = IoFlusher::enable();
    let mut waiter = EpollWaiter::new(disk, stop)?;
    let mut gone: Option<io::Error> = None;
    let mut deadline: Option<Time> = None;
    let mut asked = 0;
    loop {
        let work = run_rounds(handler, disk, &waiter, gone.is_some())?;
        let is_busy = matches!(work, WorkResult::Busy);
        match work {
            WorkResult::Idle | WorkResult::Busy => {}
            WorkResult::DiskGone(error) => {
                waiter.remove_disk(disk);
                gone = Some(error);
                handler.requests().fail_all();
                handler.start_stop(&waiter, StopMode::Now);
                deadline = Some(monotonic_now() + REPLY_FLUSH_TIMEOUT);
                continue;
            }
        }
        let late = deadline.is_some_and(|deadline| monotonic_now() >= deadline);
        if handler.requests().in_flight() == 0 && (handler.is_finished() || late) {
            return gone.map_or(Ok(()), Err);
        }
        if late {
            handler.requests().fail_all();
            deadline = Some(monotonic_now() + REPLY_FLUSH_TIMEOUT);
            continue;
        }
        let until = [handler.poll_timeout(), deadline].into_iter().flatten().min();
        let most = until.map(|until| until.since(monotonic_now()));
        let most = if handler.waits_for_memory() {
            Some(most.map_or(MEMORY_RETRY_INTERVAL, |most| most.min(MEMORY_RETRY_INTERVAL)))
        } else {
            most
        };
        waiter.wait_for_events(disk, if is_busy { Some(Duration::ZERO) } else { most })?;
        if stop.request_count() > asked {
            stop.clear_event();
            asked = stop.request_count();
            let how = if asked == 1 { StopMode::WhenDone } else { StopMode::Now };
            let wait = if asked == 1 { STOP_DRAIN_TIMEOUT } else { Duration::ZERO };
            if !handler.start_stop(&waiter, how) {
                deadline = Some(deadline.unwrap_or(Time(u64::MAX)).min(monotonic_now() + wait));
            }
        }
        let mut index = 0;
        while let Some(ready) = waiter.ready_event(index) {
            if let Some(ready) = ready {
                handler.handle_ready(disk, &waiter, ready)?;
            }
            index += 1;
        }
    }
}

/// After a server has failed, waits until all its operations have completed, or `start_stop` is requested. Its users resend
/// them to the next server of the same disk: a late completion would be taken for one of that server's operations, and
/// an old write could land after a newer one.
pub(crate) fn drain_operations<T>(requests: &mut RequestTable<T>, disk: &mut dyn Disk, stop: &ServerStop) {
    let _flusher = IoFlusher::enable();
    while requests.in_flight() > 0 && stop.request_count() == 0 && disk.drive(Some(Duration::ZERO)).is_ok() {
        while let Some(done) = disk.poll_done() {
            requests.handle_done(disk, done);
        }
        std::thread::sleep(MEMORY_RETRY_INTERVAL);
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
    fn enable() -> IoFlusher {
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

enum WorkResult {
    Idle,
    /// There is more to do.
    Busy,
    DiskGone(io::Error),
}

/// Lets disk and server work until neither has anything to do, or the round limit is reached: a client that sends
/// requests without end must not delay a [`ServerStop`] or other clients.
fn run_rounds(
    handler: &mut impl EventHandler,
    disk: &mut dyn Disk,
    waiter: &EpollWaiter,
    gone: bool,
) -> io::Result<WorkResult> {
    for _ in 0..ROUNDS_PER_POLL {
        let mut moved = false;
        if !gone {
            if let Err(error) = disk.drive(Some(Duration::ZERO)) {
                return Ok(WorkResult::DiskGone(error));
            }
            while let Some(done) = disk.poll_done() {
                handler.requests().handle_done(disk, done);
                moved = true;
            }
            if disk.has_geometry_changed() {
                handler.handle_geometry_change(disk)?;
            }
        }
        while let Some(ended) = handler.requests().poll_ended() {
            handler.handle_request_ended(ended)?;
            moved = true;
        }
        moved |= handler.advance(disk, waiter)?;
        // What was refused at once has ended, too.
        moved |= handler.requests().has_ended_requests();
        if !moved {
            return Ok(WorkResult::Idle);
        }
    }
    Ok(WorkResult::Busy)
}

#[cfg(test)]
mod tests;
