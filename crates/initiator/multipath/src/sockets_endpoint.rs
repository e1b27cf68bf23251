//! One thing with sockets as a shard of its own: a discovery, or a single path that is looked at.

use buf::{Cx, Errno, Time};
use endpoint::{Arrival, Departure, Dial, DialId, Dialled, Endpoint, Leave, LinkId, ShardId, Sockets};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

use crate::client::NoMessage;

/// Computes one piece of work, here and now, if one is wanted; true if there was. For who has no other thread than
/// its caller's: others that it serves wait for one piece at most before they have a turn.
pub(crate) fn compute_one(sockets: &mut impl Sockets) -> bool {
    let Some(work) = sockets.poll_work() else { return false };
    work.run();
    sockets.handle_worked();
    true
}

/// An endpoint that is nothing but `S`.
#[derive(Debug)]
pub struct SocketsEndpoint<S>(pub S);

impl<S: Sockets> Endpoint for SocketsEndpoint<S> {
    type Message = NoMessage;

    fn handle_arrival(&mut self, _cx: &mut Cx<'_>, _link: LinkId, how: Arrival<NoMessage>) {
        match how {
            // It listens nowhere, so nothing is accepted.
            Arrival::Accepted(_) => {}
            Arrival::Moved(nothing) => match nothing {},
        }
    }
    fn handle_message(&mut self, _cx: &mut Cx<'_>, message: NoMessage) {
        match message {}
    }
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.0.handle_recv(cx, link, op, came);
    }
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.0.handle_written(cx, link, how);
    }
    fn handle_sent(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.0.handle_sent(cx, link, op);
    }
    /// It asks for no disk operation, so none comes back.
    fn handle_disk(&mut self, _cx: &mut Cx<'_>, _op: DiskOp, _came: Result<usize, Errno>) {}
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.0.handle_timeout(cx);
    }
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let again = self.0.turn(cx);
        compute_one(&mut self.0) || again
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        self.0.poll_ready()
    }
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        self.0.poll_recv(cx, link)
    }
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.0.poll_send(cx, link)
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        None
    }
    fn poll_departure(&mut self) -> Option<(LinkId, Departure<NoMessage>)> {
        let (link, how) = self.0.poll_leave()?;
        Some(match how {
            Leave::Close => (link, Departure::Close),
            Leave::Abort => (link, Departure::Abort),
        })
    }
    fn poll_message(&mut self) -> Option<(ShardId, NoMessage)> {
        None
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.0.poll_timeout()
    }
    fn poll_dial(&mut self) -> Option<Dial> {
        self.0.poll_dial()
    }
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        self.0.handle_dialled(cx, id, how);
    }
}
