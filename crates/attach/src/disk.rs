//! What a front needs of a volume.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use buf::{SgMut, Time};
use volume::{Done, Geometry, Io};

/// A volume that the calling thread drives: local, remote, or served by the daemon that it is part of.
pub trait Disk {
    /// What its blocks are like now.
    fn geometry(&self) -> Geometry;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Memory for a payload of so many bytes; `None`: none is free now, ask again when something has
    /// ended.
    fn memory(&mut self, len: usize) -> Option<SgMut>;
    /// Starts an operation. It ends by [`Disk::poll_done`], and never before its time-outs say so.
    fn submit(&mut self, io: Io);
    /// An operation that has ended.
    fn poll_done(&mut self) -> Option<Done>;
    /// Whether the geometry has changed since this was last asked.
    fn has_changed(&mut self) -> bool;
    /// Lets the volume work: moves what is ready, and waits for at most this long if nothing is
    /// (zero: not at all; `None`: until something happens).
    fn drive(&mut self, wait: Option<Duration>) -> io::Result<()>;
    /// Readable when [`Disk::drive`] has something to do. With it comes the time at which it has, even
    /// if nothing becomes readable.
    fn wake(&self) -> (BorrowedFd<'_>, Option<Time>);
}
