//! A shard of the world: the target's, or a host's.

use blockwire_multipath::{Client, Path};
use buf::{Cx, Errno, Time};
use endpoint::{Arrival, Departure, Dial, DialId, Dialled, Endpoint, LinkId, ShardId};
use shard::{Message, Shard};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

pub enum Node<P> {
    Target(Box<Shard>),
    Host(Box<Client<P>>),
}

impl<P> Node<P> {
    pub fn client(&mut self) -> &mut Client<P> {
        match self {
            Node::Host(client) => client,
            Node::Target(_) => panic!("no host lives on this shard"),
        }
    }
}

/// The same call of whichever it is.
macro_rules! either {
    ($node:expr, $end:ident => $call:expr) => {
        match $node {
            Node::Target($end) => $call,
            Node::Host($end) => $call,
        }
    };
}

impl<P: Path> Endpoint for Node<P> {
    type Message = Message;

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Arrival<Message>) {
        match self {
            Node::Target(shard) => shard.handle_arrival(cx, link, how),
            Node::Host(_) => panic!("nobody connects to a host"),
        }
    }
    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        match self {
            Node::Target(shard) => shard.handle_message(cx, message),
            Node::Host(_) => panic!("nobody tells a host anything"),
        }
    }
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        either!(self, end => end.handle_recv(cx, link, op, came));
    }
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        either!(self, end => end.handle_written(cx, link, how));
    }
    fn handle_sent(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        either!(self, end => end.handle_sent(cx, link, op));
    }
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        either!(self, end => end.handle_disk(cx, op, came));
    }
    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        either!(self, end => end.handle_timeout(cx));
    }
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        either!(self, end => end.turn(cx))
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        either!(self, end => end.poll_ready())
    }
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        either!(self, end => end.poll_recv(cx, link))
    }
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        either!(self, end => end.poll_send(cx, link))
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        either!(self, end => end.poll_disk())
    }
    fn poll_departure(&mut self) -> Option<(LinkId, Departure<Message>)> {
        match self {
            Node::Target(shard) => shard.poll_departure(),
            Node::Host(client) => client.poll_departure().map(|(link, how)| match how {
                Departure::Close => (link, Departure::Close),
                Departure::Abort => (link, Departure::Abort),
                Departure::Move { message, .. } => match message {},
            }),
        }
    }
    fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        match self {
            Node::Target(shard) => shard.poll_message(),
            Node::Host(_) => None,
        }
    }
    fn poll_timeout(&self) -> Option<Time> {
        either!(self, end => end.poll_timeout())
    }
    fn poll_dial(&mut self) -> Option<Dial> {
        either!(self, end => end.poll_dial())
    }
    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        either!(self, end => end.handle_dialled(cx, id, how));
    }
}
