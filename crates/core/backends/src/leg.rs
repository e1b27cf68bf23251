//! A member of a stripe: a local volume, or a remote one behind sockets.

use std::fmt;
use std::time::Duration;

use buf::{Cx, Errno, Sg, Time};
use endpoint::{CloseMode, Computation, Dial, DialId, Dialled, LinkId, NetworkBackend, OutboundSockets};
use stream::{Received, RecvOp, SendOp};
use volume::{Backend, DiskOp, Durability, Geometry, Io, IoCompletion, IoId, OperatorNotice, ShardId, Span};

/// A leg of a stripe, or the backend inside a wrapper: either kind of backend. A local one has no sockets, so its socket
/// polls return `None`.
pub enum LegBackend {
    /// A backend without sockets.
    Local(Box<dyn Backend>),
    /// A backend with sockets: a remote volume.
    Network(Box<dyn NetworkBackend>),
}

impl fmt::Debug for LegBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LegBackend::Local(_) => "Local",
            LegBackend::Network(_) => "Network",
        })
    }
}

macro_rules! each {
    ($any:expr, $leg:ident => $what:expr) => {
        match $any {
            LegBackend::Local($leg) => $what,
            LegBackend::Network($leg) => $what,
        }
    };
}

/// What sockets do, and what is said where there are none.
macro_rules! elsewhere {
    ($any:expr, $leg:ident => $what:expr, else $otherwise:expr) => {
        match $any {
            LegBackend::Local(_) => $otherwise,
            LegBackend::Network($leg) => $what,
        }
    };
}

impl Backend for LegBackend {
    fn geometry(&self) -> Geometry {
        each!(self, leg => leg.geometry())
    }
    fn erase_max(&self) -> u32 {
        each!(self, leg => leg.erase_max())
    }
    fn is_read_only(&self) -> bool {
        each!(self, leg => leg.is_read_only())
    }
    #[inline]
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        each!(self, leg => leg.submit(cx, io));
    }
    fn lend_memory(&mut self, span: Span) -> Option<Sg> {
        each!(self, leg => leg.lend_memory(span))
    }
    fn has_loans(&self) -> bool {
        each!(self, leg => leg.has_loans())
    }
    fn write_inline(&mut self, span: Span, durability: Durability, from: &[u8]) -> bool {
        each!(self, leg => leg.write_inline(span, durability, from))
    }
    fn publish_inline_writes(&mut self) {
        each!(self, leg => leg.publish_inline_writes());
    }
    fn resume(&mut self) {
        each!(self, leg => leg.resume());
    }
    fn wants_resume(&self) -> bool {
        each!(self, leg => leg.wants_resume())
    }
    fn cancel(&mut self, id: IoId) {
        each!(self, leg => leg.cancel(id));
    }
    #[inline]
    fn poll_done(&mut self) -> Option<IoCompletion> {
        each!(self, leg => leg.poll_done())
    }
    #[inline]
    fn poll_unsynced_write(&mut self) -> Option<IoId> {
        each!(self, leg => leg.poll_unsynced_write())
    }
    #[inline]
    fn poll_disk(&mut self) -> Option<DiskOp> {
        each!(self, leg => leg.poll_disk())
    }
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        each!(self, leg => leg.handle_disk(cx, op, came));
    }
    fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        each!(self, leg => leg.poll_shard_to_wake())
    }
    fn handle_wake(&mut self) {
        each!(self, leg => leg.handle_wake());
    }
}

impl OutboundSockets for LegBackend {
    fn poll_dial(&mut self) -> Option<Dial> {
        elsewhere!(self, leg => leg.poll_dial(), else None)
    }
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        elsewhere!(self, leg => leg.handle_dialled(cx, id, how), else unreachable!("nothing was dialled"));
    }
    #[inline]
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        elsewhere!(self, leg => leg.handle_recv(cx, link, op, came), else unreachable!("there is no socket"));
    }
    #[inline]
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        elsewhere!(self, leg => leg.handle_written(cx, link, how), else unreachable!("there is no socket"));
    }
    #[inline]
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        elsewhere!(self, leg => leg.handle_send_released(cx, link, op), else unreachable!("there is no socket"));
    }
    #[inline]
    fn poll_ready(&mut self) -> Option<LinkId> {
        elsewhere!(self, leg => leg.poll_ready(), else None)
    }
    #[inline]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        elsewhere!(self, leg => leg.poll_recv(cx, link), else None)
    }
    #[inline]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        elsewhere!(self, leg => leg.poll_send(cx, link), else None)
    }
    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        elsewhere!(self, leg => leg.poll_link_close(), else None)
    }
    fn poll_computation(&mut self) -> Option<Computation> {
        elsewhere!(self, leg => leg.poll_computation(), else None)
    }
    fn handle_computed(&mut self) {
        elsewhere!(self, leg => leg.handle_computed(), else ());
    }
    #[inline]
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        elsewhere!(self, leg => leg.turn(cx), else false)
    }
    fn poll_timeout(&self) -> Option<Time> {
        elsewhere!(self, leg => leg.poll_timeout(), else None)
    }
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        elsewhere!(self, leg => leg.handle_timeout(cx), else ());
    }
    fn close(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        elsewhere!(self, leg => leg.close(cx, grace), else ());
    }
    fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        elsewhere!(self, leg => leg.poll_operator_notice(), else None)
    }
    fn is_closed(&self) -> bool {
        elsewhere!(self, leg => leg.is_closed(), else true)
    }
}
