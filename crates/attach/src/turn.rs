//! The loop of every front: what is ready goes to the front, what it asks goes to the disk, what ended
//! goes back, until nothing moves; then it waits.

use std::io;
use std::time::Duration;

use buf::Time;

use crate::disk::Disk;
use crate::requests::{Ended, Requests};
use crate::wait::{Ready, Stop, Waiter, now};

/// How long a front that was asked to stop waits for what is at the disk; then it answers with an error.
const STOP_WAIT: Duration = Duration::from_secs(10);
/// How long it then still tries to get its answers to those who asked.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the loop needs of a front.
pub(crate) trait Face {
    /// Its name for a request.
    type Token;
    /// Its requests.
    fn requests(&mut self) -> &mut Requests<Self::Token>;
    /// One of its descriptors is ready.
    fn handle_ready(&mut self, disk: &mut dyn Disk, waiter: &Waiter, ready: Ready) -> io::Result<()>;
    /// A request has ended.
    fn handle_ended(&mut self, ended: Ended<Self::Token>);
    /// The disk's geometry has changed.
    fn handle_change(&mut self, disk: &mut dyn Disk);
    /// Sends what can be sent, and starts what had to wait. True if anything was started.
    fn settle(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool>;
    /// When to be called by [`Face::settle`] at the latest.
    fn poll_timeout(&self) -> Option<Time>;
    /// Takes no more requests.
    fn stop(&mut self, waiter: &Waiter);
    /// Whether all answers are out.
    fn has_said_all(&self) -> bool;
}

/// Runs a front until it is asked to stop, its peer is gone, or the disk is (then with its error).
pub(crate) fn run(face: &mut impl Face, disk: &mut dyn Disk, stop: &Stop) -> io::Result<()> {
    let mut waiter = Waiter::new(disk, stop)?;
    let mut end: Option<End> = None;
    loop {
        if let Err(error) = work(face, disk, &waiter, end.as_ref().is_some_and(|end| end.gone.is_some())) {
            waiter.forget_disk(disk);
            face.requests().give_up();
            face.stop(&waiter);
            end = Some(End { gone: Some(error), deadline: now() + FAREWELL });
            continue;
        }
        if let Some(end) = &mut end {
            let late = now() >= end.deadline;
            if face.requests().in_flight() == 0 && (face.has_said_all() || late) {
                return end.gone.take().map_or(Ok(()), Err);
            }
            if late {
                face.requests().give_up();
                end.deadline = now() + FAREWELL;
                continue;
            }
        }
        let until = [face.poll_timeout(), end.as_ref().map(|end| end.deadline)].into_iter().flatten().min();
        let asked = waiter.wait(disk, until.map(|until| until.since(now())))?;
        if asked && end.is_none() {
            waiter.remove(std::os::fd::AsFd::as_fd(stop))?;
            face.stop(&waiter);
            end = Some(End { gone: None, deadline: now() + STOP_WAIT });
        }
        let mut index = 0;
        while let Some(ready) = waiter.ready(index) {
            if let Some(ready) = ready {
                face.handle_ready(disk, &waiter, ready)?;
            }
            index += 1;
        }
    }
}

/// How a front is being ended.
struct End {
    /// Why the disk is gone.
    gone: Option<io::Error>,
    deadline: Time,
}

/// Lets disk and front work until neither has anything to do. An error is the disk's end.
fn work(face: &mut impl Face, disk: &mut dyn Disk, waiter: &Waiter, gone: bool) -> io::Result<()> {
    loop {
        let mut moved = false;
        if !gone {
            disk.drive(Some(Duration::ZERO))?;
            while let Some(done) = disk.poll_done() {
                face.requests().handle_done(disk, done);
                moved = true;
            }
            if disk.has_changed() {
                face.handle_change(disk);
            }
        }
        while let Some(ended) = face.requests().poll_ended() {
            face.handle_ended(ended);
            moved = true;
        }
        moved |= face.settle(disk, waiter)?;
        if !moved {
            return Ok(());
        }
    }
}
