//! A world for one path and one shard of our own target: sockets are queues, and the clock moves when nothing
//! else does.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Entropy, Errno, Pool, Time};
use endpoint::{
    AcceptedSocket, CloseMode, Dialled, Endpoint, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId,
    OutboundSockets, pump,
};
use shard::{Message, Shard};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

use testkit::delivery::RecvDelivery;
use testkit::scripted_iscsi_target::ScriptedTarget;

/// One end of a socket.
#[derive(Default)]
pub struct End {
    recv: Option<RecvOp>,
    send: Option<SendOp>,
    /// What came and was not received.
    inbox: VecDeque<u8>,
    /// It was closed from here.
    left: bool,
}

/// A socket: our end and the target's.
#[derive(Default)]
pub struct Wire {
    pub ours: End,
    pub theirs: End,
    /// Nothing passes any more.
    pub cut: bool,
    /// Nothing passes, but somebody between the two keeps what was sent, and neither end of the other's hears.
    pub held: bool,
    /// What is kept for the target; the reset of a socket of ours is lost like all else.
    kept: Vec<u8>,
}

const RESET: Errno = Errno(104);
const REFUSED: Errno = Errno(111);

#[derive(Default)]
struct Hands {
    wires: Vec<Wire>,
    reports: usize,
    departed: Vec<usize>,
}

impl IoDriver<Message> for Hands {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        assert!(self.wires[link.0 as usize].theirs.recv.replace(op).is_none());
    }
    fn start_send(&mut self, link: LinkId, op: SendOp) {
        assert!(self.wires[link.0 as usize].theirs.send.replace(op).is_none());
    }
    fn start_disk_op(&mut self, op: DiskOp) {
        unreachable!("a RAM volume has no disk: {op:?}")
    }
    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }

    fn remove_link(&mut self, link: LinkId, _how: LinkDeparture<Message>) {
        self.departed.push(link.0 as usize);
    }
    fn start_dial(&mut self, dial: endpoint::Dial) {
        unreachable!("a target dials nobody: {dial:?}")
    }
    fn post_message(&mut self, _to: endpoint::ShardId, message: Message) {
        assert!(matches!(message, Message::Report(..)), "{message:?}");
        self.reports += 1;
    }
}

pub struct World<S> {
    pub path: S,
    pub shard: Shard,
    /// What answers instead of the shard.
    pub script: Option<ScriptedTarget>,
    pub pool: Pool,
    their_pool: Pool,
    entropy: Entropy,
    their_entropy: Entropy,
    pub now: Time,
    hands: Hands,
    /// Addresses that nobody answers, and such that refuse.
    pub deaf: Vec<SocketAddr>,
    pub shut: Vec<SocketAddr>,
    /// A receive of ours has come back.
    received: bool,
    /// Where connections were asked for.
    pub dialled: Vec<SocketAddr>,
    left: Vec<CloseMode>,
}

impl<S: OutboundSockets> World<S> {
    pub fn new(path: S, shard: Shard) -> Self {
        World {
            path,
            shard,
            script: None,
            pool: Pool::new(32 << 20),
            their_pool: Pool::new(32 << 20),
            entropy: Entropy::new([1; 32]),
            their_entropy: Entropy::new([2; 32]),
            now: Time(1_000_000),
            hands: Hands::default(),
            deaf: Vec::new(),
            shut: Vec::new(),
            received: false,
            dialled: Vec::new(),
            left: Vec::new(),
        }
    }

    pub fn with<R>(&mut self, act: impl FnOnce(&mut S, &mut Cx<'_>) -> R) -> R {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        act(&mut self.path, &mut cx)
    }

    pub fn tell(&mut self, message: Message) {
        self.serve(|shard, cx| shard.handle_message(cx, message));
    }

    fn serve(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let mut cx = Cx { now: self.now, pool: &self.their_pool, entropy: &mut self.their_entropy };
        act(&mut self.shard, &mut cx);
        while pump(&mut self.shard, &mut cx, &mut self.hands) {}
    }

    /// Sockets that live.
    pub fn open(&self) -> usize {
        self.hands.wires.iter().filter(|wire| !wire.ours.left && !wire.theirs.left && !wire.cut).count()
    }

    /// Breaks every connection.
    pub fn cut(&mut self) {
        self.hands.wires.iter_mut().for_each(|wire| wire.cut = true);
    }

    /// From now on somebody between the two keeps what passes.
    pub fn hold(&mut self) {
        self.hands.wires.iter_mut().for_each(|wire| wire.held = true);
    }

    /// What was kept comes to the target.
    pub fn heal(&mut self) {
        for wire in self.hands.wires.iter_mut().filter(|wire| wire.held) {
            wire.held = false;
            wire.theirs.inbox.extend(wire.kept.drain(..));
        }
    }

    /// How our sockets left, in order.
    pub fn left(&self) -> &[CloseMode] {
        &self.left
    }

    /// Lets everything happen that needs no time.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Lets things happen until `done`, or until this much time has passed.
    pub fn run(&mut self, most: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now + most;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let due = stream::earliest(self.path.poll_timeout(), self.shard.poll_timeout());
            let Some(due) = due.filter(|due| *due <= until) else {
                self.now = until;
                return false;
            };
            self.now = self.now.max(due) + Duration::from_nanos(1);
            if self.path.poll_timeout().is_some_and(|due| due <= self.now) {
                self.with(|path, cx| path.handle_timeout(cx));
            }
            if self.shard.poll_timeout().is_some_and(|due| due <= self.now) {
                self.serve(|shard, cx| shard.handle_timeout(cx));
            }
        }
    }

    fn step(&mut self) -> bool {
        let mut any = self.with(|path, cx| path.turn(cx));
        while let Some(dial) = self.path.poll_dial() {
            any = true;
            self.dialled.push(dial.to);
            let how = if self.deaf.contains(&dial.to) {
                self.now = self.now.max(dial.until);
                Err(Errno(110))
            } else if self.shut.contains(&dial.to) {
                Err(REFUSED)
            } else {
                Ok(self.accept(dial.to))
            };
            self.with(|path, cx| path.handle_dialled(cx, dial.id, how));
        }
        while let Some(link) = self.path.poll_ready() {
            any = true;
            let (recv, send) = self.with(|path, cx| (path.poll_recv(cx, link), path.poll_send(cx, link)));
            let ours = &mut self.hands.wires[link.0 as usize].ours;
            assert!(!ours.left, "nothing is asked of a link that has left");
            if let Some(op) = recv {
                assert!(ours.recv.replace(op).is_none(), "one receive is out");
            }
            if let Some(op) = send {
                assert!(ours.send.replace(op).is_none(), "one batch is out");
            }
        }
        while let Some((link, how)) = self.path.poll_link_close() {
            any = true;
            self.left.push(how);
            self.hands.wires[link.0 as usize].ours.left = true;
        }
        for at in 0..self.hands.wires.len() {
            any |= self.move_ours(at) | self.move_theirs(at);
        }
        for at in std::mem::take(&mut self.hands.departed) {
            any = true;
            self.hands.wires[at].theirs.left = true;
        }
        any
    }

    /// Lets things happen until a receive has come back to us, then does this before anything else.
    pub fn step_received(&mut self, act: impl FnOnce(&mut Self)) {
        self.received = false;
        for _ in 0..100 {
            self.step();
            if self.received {
                return act(self);
            }
        }
    }

    /// Lets our side send what it has, and the target do nothing.
    pub fn send_only(&mut self) {
        while self.with(|path, cx| path.turn(cx)) {}
        while let Some(link) = self.path.poll_ready() {
            let Some(op) = self.with(|path, cx| path.poll_send(cx, link)) else { continue };
            self.with(|path, cx| {
                path.handle_written(cx, link, Ok(()));
                path.handle_send_released(cx, link, op);
            });
        }
    }

    fn accept(&mut self, to: SocketAddr) -> Dialled {
        let at = self.hands.wires.len();
        self.hands.wires.push(Wire::default());
        let link = LinkId(at as u64);
        let peer = SocketAddr::from(([127, 0, 0, 1], 50_000));
        if self.script.is_some() {
            return Dialled { link, local: peer, peer: to };
        }
        let accepted = AcceptedSocket { listener: ListenerId(0), local: to, peer, cpu: None };
        self.serve(|shard, cx| shard.handle_arrival(cx, link, LinkArrival::Accepted(accepted)));
        Dialled { link, local: peer, peer: to }
    }

    fn move_ours(&mut self, at: usize) -> bool {
        let (pool, wire, link) = (self.pool.clone(), &mut self.hands.wires[at], LinkId(at as u64));
        let gone = wire.ours.left || wire.cut;
        let mut any = false;
        if let Some(op) = wire.ours.send.take() {
            any = true;
            let how = if gone || wire.theirs.left && !wire.held { Err(RESET) } else { Ok(()) };
            if how.is_ok() {
                let bytes = testkit::delivery::send_op_bytes(&op);
                if wire.held {
                    wire.kept.extend(bytes);
                } else {
                    wire.theirs.inbox.extend(bytes);
                }
            }
            self.with(|path, cx| {
                path.handle_written(cx, link, how);
                path.handle_send_released(cx, link, op);
            });
        }
        let wire = &mut self.hands.wires[at];
        let over = wire.theirs.left && wire.ours.inbox.is_empty() && !wire.held;
        if let Some((op, came)) = receive(&pool, &mut wire.ours, gone, over) {
            (any, self.received) = (true, true);
            self.with(|path, cx| path.handle_recv(cx, link, op, came));
        }
        any
    }

    fn move_theirs(&mut self, at: usize) -> bool {
        if let Some(script) = &mut self.script {
            let wire = &mut self.hands.wires[at];
            let came: Vec<u8> = wire.theirs.inbox.drain(..).collect();
            if came.is_empty() {
                return false;
            }
            wire.ours.inbox.extend(script.handle_bytes(at, &came));
            return true;
        }
        let (pool, wire, link) = (self.their_pool.clone(), &mut self.hands.wires[at], LinkId(at as u64));
        let gone = wire.theirs.left || wire.cut;
        let mut any = false;
        if let Some(op) = wire.theirs.send.take() {
            any = true;
            let how = if gone || wire.ours.left && !wire.held { Err(RESET) } else { Ok(()) };
            if how.is_ok() && !wire.held {
                let bytes = testkit::delivery::send_op_bytes(&op);
                wire.ours.inbox.extend(bytes);
            }
            self.serve(|shard, cx| {
                shard.handle_written(cx, link, how);
                shard.handle_send_released(cx, link, op);
            });
        }
        let wire = &mut self.hands.wires[at];
        let over = wire.ours.left && wire.theirs.inbox.is_empty() && !wire.held;
        if let Some((op, came)) = receive(&pool, &mut wire.theirs, gone, over) {
            any = true;
            self.serve(|shard, cx| shard.handle_recv(cx, link, op, came));
        }
        any
    }
}

/// What a receive that is out brings, if it brings anything.
fn receive(pool: &Pool, end: &mut End, gone: bool, over: bool) -> Option<(RecvOp, Received)> {
    if end.inbox.is_empty() && !gone && !over {
        return None;
    }
    let op = end.recv.take()?;
    if gone {
        return Some((op, if end.left { Received::Cancelled } else { Received::Failed(RESET) }));
    }
    if end.inbox.is_empty() {
        return Some((op, Received::End));
    }
    Some(RecvDelivery::long_stages().fill_recv(pool, op, &mut end.inbox))
}
