//! The one loop body that every world calls.
//!
//! An [`Endpoint`] is one shard of a server or of a host: every connection, volume and backend of one core,
//! without I/O. A [`IoDriver`] is the world's side: sockets, disks, other shards. [`pump`] moves everything
//! that is ready from the one to the other. The reactor (io_uring, epoll), the simulator and the fuzzer all
//! call it, and nothing else.
//!
//! One turn of a world: read the clock; take completions and give each to the endpoint (`handle_*`); call
//! `handle_timeout` if [`Endpoint::poll_timeout`] has passed; call [`pump`]; wait for the next completion, at
//! most until `poll_timeout`.
//!
//! Invariant: an operation that the endpoint hands out comes back exactly once, whatever happens to the
//! socket, the disk or the shard.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod computation;
mod outbound;

use std::net::SocketAddr;

use buf::{Cx, Errno, Time};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

pub use computation::{Computation, NotComputed, PendingResult};
pub use outbound::{
    CloseMode, Dial, DialId, DialSource, Dialled, InterfaceName, NetworkBackend, OutboundSockets,
};
pub use volume::ShardId;

/// Names one socket of a shard, chosen by the world: a dense index in the low 32 bits, and above it a
/// generation, so that a name is never used for another socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// One of the addresses that the daemon listens on, by its place in the list that the world was
/// given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// A socket that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptedSocket {
    /// Which listener it came by.
    pub listener: ListenerId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// The processor that takes in what the peer sends, as far as the world knows: the one that the
    /// network card's queue interrupts. Over loopback it is whichever the peer runs on.
    pub cpu: Option<u32>,
}

/// How a socket reaches a shard.
#[derive(Debug)]
pub enum LinkArrival<M> {
    /// A peer connected.
    Accepted(AcceptedSocket),
    /// Another shard sent it, with what it knew.
    Moved(M),
}

/// How a socket leaves a shard. A receive that is out comes back first, cancelled, and so does a send
/// unless the departure waits for it.
#[derive(Debug)]
pub enum LinkDeparture<M> {
    /// Close it: what was handed to the socket is still delivered (a send that is out is finished,
    /// then shutdown, then close), for as long as the world allows a close to take.
    Close,
    /// Drop it with a reset.
    Abort,
    /// Hand it to another shard, whose [`Endpoint::handle_arrival`] gets the message. If that shard cannot take
    /// the socket, it is reset, and [`Endpoint::handle_message`] gets the message alone. No receive may be out,
    /// for what it brings could not follow the message; a send that is out is finished.
    Move {
        /// Where to.
        to: ShardId,
        /// What the other shard must know.
        message: M,
    },
}

/// One shard, without I/O. After any `handle_*`, the world calls [`pump`].
pub trait Endpoint {
    /// What shards tell each other.
    type Message: Send;

    /// A socket is here. From now on `link` is asked for operations.
    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Self::Message>);
    /// Another shard, or the control plane, says something.
    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Self::Message);
    /// Takes a receive back.
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received);
    /// The socket has taken all of a batch, or failed.
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>);
    /// The kernel has let go of a batch's memory. Comes after `handle_written`.
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp);
    /// A disk operation comes back.
    #[expect(clippy::unreachable, reason = "worlds answer what poll_disk gave, which gives nothing here")]
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        let _ = (cx, came);
        unreachable!("who has no disk is given back no operation, and got {op:?}");
    }
    /// The time that [`Endpoint::poll_timeout`] named has come (calling early is harmless).
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Does the work that is due between events and operations; true if there may be more to poll.
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let _ = cx;
        false
    }
    /// A link that may have something to receive or to send, each once per change.
    #[must_use]
    fn poll_ready(&mut self) -> Option<LinkId>;
    /// What to receive on a link; `None` while one receive is out.
    #[must_use]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp>;
    /// What to send on a link; `None` while one send is out and not written.
    #[must_use]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp>;
    /// What to do with a disk. Who has none asks for nothing.
    #[must_use]
    fn poll_disk(&mut self) -> Option<DiskOp> {
        None
    }
    /// A link that leaves this shard. Nothing is asked of it afterwards, but what is out comes back.
    #[must_use]
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Self::Message>)>;
    /// A link that comes to rest: its operations are to come back. A receive does with what it has brought, or
    /// cancelled; a send that the socket has taken whole as ever, any other by [`Endpoint::handle_send_cut`]. The link
    /// stays, and may be asked for operations again.
    #[must_use]
    fn poll_halt(&mut self) -> Option<LinkId> {
        None
    }
    /// A batch comes back of which the socket has taken the first `written` bytes, and takes no more:
    /// [`Endpoint::poll_halt`] has named its link. Neither of the other calls about it follows.
    #[expect(clippy::unreachable, reason = "worlds answer what poll_halt gave, which gives nothing here")]
    fn handle_send_cut(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp, written: usize) {
        let _ = (cx, op, written);
        unreachable!("who halts no link is given back no part of a batch: {link:?}");
    }
    /// Something for another shard.
    #[must_use]
    fn poll_message(&mut self) -> Option<(ShardId, Self::Message)> {
        None
    }
    /// When [`Endpoint::handle_timeout`] wants to be called, if at all.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// A connection that is wanted. Who never dials has none.
    #[must_use]
    fn poll_dial(&mut self) -> Option<Dial> {
        None
    }
    /// A connection that was wanted stands, or failed this way.
    #[expect(clippy::unreachable, reason = "worlds answer what poll_dial gave, which gives nothing here")]
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        let _ = (cx, id, how);
        unreachable!("who never dials is never answered");
    }
}

/// A world's hands for one shard. Each call only starts what it names.
pub trait IoDriver<M> {
    /// Starts a receive; attaches a stage if `op.stage_len` is not 0, now or when bytes are there.
    fn start_recv(&mut self, link: LinkId, op: RecvOp);
    /// Starts a send. Partial sends and iovec limits are the driver's affair.
    fn start_send(&mut self, link: LinkId, op: SendOp);
    /// Starts a disk operation.
    fn start_disk_op(&mut self, op: DiskOp);
    /// Has what is out on a link come back (see [`Endpoint::poll_halt`]); the link stays.
    fn halt_link(&mut self, link: LinkId);
    /// Takes a link away.
    fn remove_link(&mut self, link: LinkId, how: LinkDeparture<M>);
    /// Delivers a message, in order per pair of shards, waking the other shard if it sleeps.
    fn post_message(&mut self, to: ShardId, message: M);
    /// Starts a connection outwards. It is answered exactly once, at the latest when its time is over.
    fn start_dial(&mut self, dial: Dial);
}

/// How often [`pump`] asks the endpoint for more before it lets the world look at its completions.
const PUMP_ROUNDS_MAX: usize = 16;

/// Up to so many bytes to be sent and to be received, a link's peer is taken to wait for its answer.
const SHORT_EXCHANGE_BYTES_MAX: usize = 32 << 10;

/// Starts what a link is ready for. Where little is in flight, the answer leaves before the look into a
/// socket that is empty most likely, for the peer waits for it. Else what has come is taken first, so
/// that this side has work while the peer has.
fn start_link_io<E: Endpoint>(
    end: &mut E,
    cx: &mut Cx<'_>,
    driver: &mut impl IoDriver<E::Message>,
    link: LinkId,
) {
    let (recv, mut send) = (end.poll_recv(cx, link), end.poll_send(cx, link));
    let room = recv.as_ref().map_or(0, |op| op.stage_len);
    if let Some(op) = send.take_if(|op| op.len + room <= SHORT_EXCHANGE_BYTES_MAX) {
        driver.start_send(link, op);
    }
    if let Some(op) = recv {
        driver.start_recv(link, op);
    }
    if let Some(op) = send {
        driver.start_send(link, op);
    }
}

/// Moves everything that is ready from the endpoint to the driver. True if it stopped because it
/// had done enough for one turn, and more may be ready.
pub fn pump<E: Endpoint>(end: &mut E, cx: &mut Cx<'_>, driver: &mut impl IoDriver<E::Message>) -> bool {
    for _ in 0..PUMP_ROUNDS_MAX {
        let mut more = end.turn(cx);
        while let Some(op) = end.poll_disk() {
            driver.start_disk_op(op);
        }
        while let Some(link) = end.poll_ready() {
            start_link_io(end, cx, driver, link);
            more = true;
        }
        while let Some((to, message)) = end.poll_message() {
            driver.post_message(to, message);
        }
        while let Some(link) = end.poll_halt() {
            driver.halt_link(link);
        }
        while let Some((link, how)) = end.poll_departure() {
            driver.remove_link(link, how);
        }
        while let Some(dial) = end.poll_dial() {
            driver.start_dial(dial);
        }
        if !more {
            return false;
        }
    }
    true
}
