//! What a shard needs from io_uring or epoll.

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};

use buf::Time;
use endpoint::{Arrival, Driver, ListenerId};

use crate::base::Base;

/// How long to wait.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until something happens, or until this time.
    Until(Option<Time>),
}

/// The hands of one shard.
pub(crate) trait World<M>: Driver<M> {
    fn base(&mut self) -> &mut Base<M>;
    /// Starts what was asked for, waits, and turns what has happened into events.
    fn gather(&mut self, wait: Wait);
    /// Whether a look at memory (or one cheap call) says that [`World::gather`] would bring something.
    fn peek(&mut self) -> bool;
    /// Makes a socket a link of this shard.
    fn install(&mut self, fd: OwnedFd, how: Arrival<M>);
    /// Accepts on one more socket, unless nothing is accepted any more.
    fn open_listener(&mut self, id: ListenerId, socket: TcpListener);
    /// Stops accepting on one.
    fn close_listener(&mut self, id: ListenerId);
    /// Stops accepting on all of them, for good.
    fn close_listeners(&mut self);
    /// Takes every link away with a reset and cancels what can be cancelled.
    fn abort_all(&mut self);
    /// Links that exist, those that are being closed included.
    fn links(&self) -> usize;
    /// A descriptor that is readable when [`World::gather`] would bring something.
    fn fd(&self) -> BorrowedFd<'_>;
    /// When [`World::gather`] has something to do that the descriptor does not tell.
    fn due(&mut self) -> Option<Time>;
    /// Operations that have not come back.
    fn out(&mut self) -> usize;
}
