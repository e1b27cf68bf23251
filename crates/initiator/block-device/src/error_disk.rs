//! A lost disk: every operation fails, so that clients get errors instead of waiting for ever.
//!
//! Invariant: an operation ends in the call that submits it, and touches nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use buf::{MemoryClass, Pool, SgMut, Time};
use rustix::event::{EventfdFlags, eventfd};
use volume::{Fault, Geometry, Io, IoCompletion};

use crate::disk::{Disk, REQUEST_LEN_MAX};

/// A volume of this size whose paths are all lost ([`Fault::PathLost`]).
#[derive(Debug)]
pub struct ErrorDisk {
    geometry: Geometry,
    read_only: bool,
    pool: Pool,
    done: VecDeque<IoCompletion>,
    /// Never readable: there is never anything to do.
    wake: OwnedFd,
}

impl ErrorDisk {
    /// In place of a disk that was like this.
    ///
    /// # Errors
    /// If the system gives no descriptor.
    pub fn in_place_of(geometry: Geometry, read_only: bool) -> io::Result<ErrorDisk> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let pool = Pool::new(2 * REQUEST_LEN_MAX);
        // What is written is thrown away, so any memory will do, and reads need none that lasts.
        let geometry = Geometry { dio_align: 1, lends: false, ..geometry };
        Ok(ErrorDisk { geometry, read_only, pool, done: VecDeque::new(), wake })
    }
}

impl Disk for ErrorDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn is_read_only(&self) -> bool {
        self.read_only
    }
    fn alloc_payload(&mut self, len: usize) -> Option<SgMut> {
        self.pool.take_sg(MemoryClass::Wire, len)
    }
    fn submit(&mut self, io: Io) {
        self.done.push_back(IoCompletion {
            id: io.id,
            result: Err(Fault::PathLost.into()),
            payload: io.payload,
        });
    }
    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }
    fn has_geometry_changed(&mut self) -> bool {
        false
    }
    fn drive(&mut self, _wait: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
    fn wake_source(&self) -> (BorrowedFd<'_>, Option<Time>) {
        (self.wake.as_fd(), None)
    }
}
