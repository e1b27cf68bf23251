//! A shard of the world: the target's, or a host's.

use blockwire_multipath::{Client, Path};
use buf::{Cx, Errno, Time};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use shard::{Message, Shard};
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
    testkit::forward_links!(either);

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Message>) {
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
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        either!(self, end => end.handle_disk(cx, op, came));
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        either!(self, end => end.poll_disk())
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Message>)> {
        match self {
            Node::Target(shard) => shard.poll_departure(),
            Node::Host(client) => client.poll_departure().map(|(link, how)| match how {
                LinkDeparture::Close => (link, LinkDeparture::Close),
                LinkDeparture::Abort => (link, LinkDeparture::Abort),
                LinkDeparture::Move { message, .. } => match message {},
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
}
