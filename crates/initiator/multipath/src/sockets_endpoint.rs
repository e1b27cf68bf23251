//! A single object with sockets as an endpoint: a discovery, or one path that is examined.

use buf::{Cx, Errno, Time};
use endpoint::{CloseMode, Dial, DialId, Dialled, Endpoint, LinkDeparture, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp};

/// What shards that stand alone tell each other: nothing.
#[derive(Debug)]
pub enum NoShardMessage {}

/// Computes one piece of work, here and now, if one is wanted; true if there was. For who has no other thread than
/// its caller's: others that it serves wait for one piece at most before they have a turn.
pub(crate) fn run_one_computation(sockets: &mut impl OutboundSockets) -> bool {
    let Some(work) = sockets.poll_computation() else { return false };
    work.run();
    sockets.handle_computed();
    true
}

/// How a socket that a path is done with leaves its shard.
pub(crate) fn departure_of_close(how: CloseMode) -> LinkDeparture<NoShardMessage> {
    match how {
        CloseMode::Close => LinkDeparture::Close,
        CloseMode::Abort => LinkDeparture::Abort,
    }
}

/// What [`Endpoint`] asks of a shard that listens nowhere and stands alone.
macro_rules! without_peers {
    () => {
        type Message = NoShardMessage;

        fn handle_arrival(
            &mut self,
            _cx: &mut buf::Cx<'_>,
            _link: endpoint::LinkId,
            how: endpoint::LinkArrival<NoShardMessage>,
        ) {
            match how {
                // It listens nowhere, so nothing is accepted.
                endpoint::LinkArrival::Accepted(_) => {}
                endpoint::LinkArrival::Moved(nothing) => match nothing {},
            }
        }

        fn handle_message(&mut self, _cx: &mut buf::Cx<'_>, message: NoShardMessage) {
            match message {}
        }

        fn poll_message(&mut self) -> Option<(endpoint::ShardId, NoShardMessage)> {
            None
        }
    };
}
pub(crate) use without_peers;

/// An endpoint that is nothing but `S`.
#[derive(Debug)]
pub struct SocketsEndpoint<S>(pub S);

impl<S: OutboundSockets> Endpoint for SocketsEndpoint<S> {
    without_peers!();

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.0.handle_recv(cx, link, op, came);
    }
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.0.handle_written(cx, link, how);
    }
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.0.handle_send_released(cx, link, op);
    }
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.0.handle_timeout(cx);
    }
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let again = self.0.turn(cx);
        run_one_computation(&mut self.0) || again
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
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<NoShardMessage>)> {
        let (link, how) = self.0.poll_link_close()?;
        Some((link, departure_of_close(how)))
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
