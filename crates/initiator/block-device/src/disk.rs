//! What a server needs from a volume.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use buf::{SgMut, Time};
use volume::{Geometry, Io, IoCompletion};

/// The longest payload that one of a server's requests may have, in bytes (what NBD clients send that
/// were told no limit). A disk has memory for twice as much.
pub const REQUEST_LEN_MAX: usize = 32 << 20;

/// A volume that the calling thread drives: local, remote, or served by the daemon that it is part of.
///
/// A server submits [`Op::Read`](volume::Op), `Write`, `Flush`, `WriteZeroes`, `Unmap` (of one span),
/// `Prefetch` and `Extents`. Reads and writes are whole logical blocks and at most
/// [`Geometry::max_io`] bytes; the others may name any span of the volume, and the disk cuts it as it
/// must. The epoch is not used. Operations in flight are not ordered: a server that needs an order waits for the
/// first one.
pub trait Disk {
    /// The current geometry. The logical block size never changes.
    fn geometry(&self) -> Geometry;
    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;
    /// Memory for a payload of so many bytes (up to [`Geometry::max_io`], and up to 1 MiB); `None`: none
    /// is free now, ask again when something has ended.
    fn alloc_payload(&mut self, len: usize) -> Option<SgMut>;
    /// Starts an operation. It completes by [`Disk::poll_done`], at the latest after its time-outs.
    fn submit(&mut self, io: Io);
    /// An operation that has ended.
    fn poll_done(&mut self) -> Option<IoCompletion>;
    /// Whether the geometry or the protection has changed since this was last asked.
    fn has_geometry_changed(&mut self) -> bool;
    /// Lets the volume work: handles what is ready, and waits for at most this long if nothing is (zero: not at all;
    /// `None`: until something happens). An error is the end of the disk: operations in flight will not complete.
    fn drive(&mut self, wait: Option<Duration>) -> io::Result<()>;
    /// Readable when [`Disk::drive`] has something to do; always the same descriptor. With it comes the
    /// time (of CLOCK_MONOTONIC) at which it has, even if nothing becomes readable.
    fn wake_source(&self) -> (BorrowedFd<'_>, Option<Time>);
}
