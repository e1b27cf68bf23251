//! Outgoing connections, which the initiator's part of a shard requests from the world.
//!
//! Invariant: each [`Dial`] is answered exactly once by [`OutboundSockets::handle_dialled`], at the latest when its
//! time is over; the resulting socket is then treated like any other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use buf::{Cx, Errno, Time};
use stream::{Received, RecvOp, SendOp};
use volume::{Backend, OperatorNotice};

use crate::{Computation, LinkId};

/// Names a connection that was asked for, until it is answered. Chosen by who asks; who composes
/// several gives each its own names and translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub u64);

/// The name of a network interface: 1 to 15 bytes (IFNAMSIZ).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InterfaceName {
    bytes: [u8; 15],
    len: u8,
}

impl InterfaceName {
    /// `None`: no interface of Linux can have this name.
    pub fn parse(name: &str) -> Option<Self> {
        let has_form = !matches!(name, "." | "..")
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':'));
        let mut bytes = [0; 15];
        let place = bytes.get_mut(..name.len()).filter(|place| !place.is_empty() && has_form)?;
        place.copy_from_slice(name.as_bytes());
        Some(InterfaceName { bytes, len: name.len() as u8 })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    }
}

impl std::fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Where a connection leaves this machine, as far as that is not left to its routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialSource {
    /// Our address.
    pub address: Option<IpAddr>,
    /// Our network interface.
    pub interface: Option<InterfaceName>,
}

/// A TCP connection that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Its name.
    pub id: DialId,
    /// Where to.
    pub to: SocketAddr,
    /// Where from.
    pub source: DialSource,
    /// When the world gives up, with ETIMEDOUT.
    pub until: Time,
}

/// A connection that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialled {
    /// The socket.
    pub link: LinkId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
}

/// How a socket that was dialled leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// What was handed to the socket is still delivered.
    Close,
    /// With a reset.
    Abort,
}

/// A state machine that dials connections of its own and performs no I/O itself: a path to a remote volume, or a volume
/// with several. The owner asks it with `poll_*` for sockets to dial, receives, sends, computations and a timer, carries
/// them out, and returns each result with `handle_*`, as for an [`Endpoint`](crate::Endpoint). A backend that needs only
/// a timer implements `turn`, `poll_timeout` and `handle_timeout`, and returns `None` from the polls of sockets.
pub trait OutboundSockets {
    /// A connection that is wanted.
    #[must_use]
    fn poll_dial(&mut self) -> Option<Dial>;
    /// A dialled connection is established, or has failed. From now on the link is polled for operations.
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>);
    /// Takes a receive back.
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received);
    /// The socket has taken all of a batch, or failed.
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>);
    /// The kernel has let go of a batch's memory.
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp);
    /// A link that may have something to receive or to send, each once per change.
    #[must_use]
    fn poll_ready(&mut self) -> Option<LinkId>;
    /// What to receive on a link; `None` while one receive is out.
    #[must_use]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp>;
    /// What to send on a link; `None` while one send is out and not written.
    #[must_use]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp>;
    /// A link to be closed. It is not polled afterwards; operations in flight on it are still returned.
    #[must_use]
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)>;
    /// A long computation (a key exchange, for example), to be done off the data path;
    /// [`OutboundSockets::handle_computed`] follows, whether it was done or dropped. To be asked after each turn.
    #[must_use]
    fn poll_computation(&mut self) -> Option<Computation> {
        None
    }
    /// Some of its work has been done, or was dropped; [`OutboundSockets::turn`] follows.
    fn handle_computed(&mut self) {}
    /// Does the work that is due between events and operations; true if there may be more to poll.
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool;
    /// When [`OutboundSockets::handle_timeout`] wants to be called, if at all.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;
    /// The time that `poll_timeout` named has come (calling early is harmless); [`OutboundSockets::turn`] follows.
    fn handle_timeout(&mut self, cx: &mut Cx<'_>);
    /// Ends it: it parts from its peers within `grace`, then at once. Who does not know how is cut off.
    fn close(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        let _ = (cx, grace);
    }
    /// What its operator should hear of: a path that is lost, one that is up again. Bounded, and seldom.
    #[must_use]
    fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        None
    }
    /// Whether it has parted from all peers for ever.
    #[must_use]
    fn is_closed(&self) -> bool {
        true
    }
}

/// A backend whose volume is elsewhere, or in part: one value per volume and shard. What is submitted to it
/// ends by [`Backend::poll_done`] as anywhere.
pub trait NetworkBackend: Backend + OutboundSockets {}

impl<T: Backend + OutboundSockets> NetworkBackend for T {}
