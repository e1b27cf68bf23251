//! What a shard needs from io_uring or epoll.

use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, OwnedFd};

use buf::Time;
use endpoint::{IoDriver, LinkArrival, LinkId, ListenerId};

use crate::world_state::WorldState;

/// How long to wait.
#[derive(Clone, Copy)]
pub(crate) enum WaitLimit {
    /// Not at all.
    No,
    /// Until something happens, or until this time.
    Until(Option<Time>),
}

/// The hands of one shard.
pub(crate) trait World<M>: IoDriver<M> {
    fn world_state(&mut self) -> &mut WorldState<M>;
    /// Starts what was asked for, waits, and turns what has happened into events.
    fn collect_events(&mut self, wait: WaitLimit);
    /// Whether a look at memory (or one cheap call) says that [`World::collect_events`] would bring something.
    fn has_events(&mut self) -> bool;
    /// Makes a socket a link of this shard.
    fn install_link(&mut self, fd: OwnedFd, how: LinkArrival<M>);
    /// The sockets of links at rest once more, as another process is to have them; they stay links here. An error if one
    /// is not there, or there is no descriptor left.
    fn duplicate_links(&mut self, links: &[LinkId]) -> io::Result<Vec<OwnedFd>>;
    /// Accepts on one more socket, unless nothing is accepted any more.
    fn open_listener(&mut self, id: ListenerId, socket: TcpListener);
    /// Stops accepting on one.
    fn close_listener(&mut self, id: ListenerId);
    /// Stops accepting on all of them, for good.
    fn close_listeners(&mut self);
    /// Takes every link away with a reset and cancels what can be cancelled.
    fn abort_all_links(&mut self);
    /// Links that exist, those that are being closed included.
    fn link_count(&self) -> usize;
    /// A descriptor that is readable when [`World::collect_events`] would bring something.
    fn fd(&self) -> BorrowedFd<'_>;
    /// When [`World::collect_events`] has something to do that the descriptor does not tell.
    fn next_deadline(&mut self) -> Option<Time>;
    /// Operations that have not come back.
    fn ops_in_flight(&mut self) -> usize;
}
