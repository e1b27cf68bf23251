//! The smallest world: one shard and any number of sockets, without delays. Only the shard's allocations are
//! counted.

use std::collections::VecDeque;
use std::net::SocketAddr;

use blockwire_shard::{Message, Shard};
use buf::{Cx, Entropy, Pool, Time};
use endpoint::{
    AcceptedSocket, Dial, Endpoint, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId, pump,
};
use stream::{RecvOp, SendOp};
use volume::{DiskKind, DiskOp};

use testkit::counting_alloc::count_allocations;
use testkit::delivery::RecvDelivery;

/// One socket.
#[derive(Default)]
pub struct Wire {
    recv: Option<RecvOp>,
    send: Option<SendOp>,
    pub to_shard: VecDeque<u8>,
    pub to_peer: Vec<u8>,
    pub gone: bool,
}

#[derive(Default)]
pub struct Hands {
    pub wires: Vec<Wire>,
    pub reports: usize,
    disk: VecDeque<DiskOp>,
}

impl Wire {
    /// Gives the wire's own memory back.
    pub fn forget(&mut self) {
        (self.to_peer, self.to_shard) = (Vec::new(), VecDeque::new());
    }
}

impl IoDriver<Message> for Hands {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        self.wires[link.0 as usize].recv = Some(op);
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        self.wires[link.0 as usize].send = Some(op);
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        self.disk.push_back(op);
    }

    fn halt_link(&mut self, link: LinkId) {
        unreachable!("nothing comes to rest here: {link:?}");
    }

    fn remove_link(&mut self, link: LinkId, _how: LinkDeparture<Message>) {
        self.wires[link.0 as usize].gone = true;
    }

    fn post_message(&mut self, _to: ShardId, message: Message) {
        assert!(matches!(message, Message::Report(..)), "{message:?}");
        self.reports += 1;
    }

    fn start_dial(&mut self, dial: Dial) {
        unreachable!("a target's shard without remotes dials nobody: {dial:?}");
    }
}

pub struct World {
    pub shard: Shard,
    pub pool: Pool,
    entropy: Entropy,
    pub now: Time,
    pub hands: Hands,
}

impl World {
    pub fn new(shard: Shard, pool_bytes: usize) -> Self {
        let hands = Hands { disk: VecDeque::with_capacity(256), ..Hands::default() };
        World {
            shard,
            pool: Pool::new(pool_bytes),
            entropy: Entropy::new([5; 32]),
            now: Time(1_000_000),
            hands,
        }
    }

    /// Lets the shard do something, counted.
    pub fn with(&mut self, act: impl FnOnce(&mut Shard, &mut Cx<'_>)) {
        let World { shard, pool, entropy, now, hands } = self;
        now.0 += 1_000;
        let mut cx = Cx { now: *now, pool, entropy };
        count_allocations(|| {
            act(shard, &mut cx);
            while pump(shard, &mut cx, hands) {}
        });
    }

    pub fn tell(&mut self, message: Message) {
        self.with(|shard, cx| shard.handle_message(cx, message));
    }

    pub fn connect(&mut self) -> usize {
        self.connect_to(ListenerId(0))
    }

    pub fn connect_to(&mut self, listener: ListenerId) -> usize {
        let at = self.hands.wires.len();
        // What the world's own lists take is the world's.
        self.hands.wires.push(Wire {
            to_shard: VecDeque::with_capacity(1 << 20),
            to_peer: Vec::with_capacity(1 << 20),
            ..Wire::default()
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 3260));
        let accepted = AcceptedSocket { listener, local: address, peer: address, cpu: None };
        self.with(|shard, cx| shard.handle_arrival(cx, LinkId(at as u64), LinkArrival::Accepted(accepted)));
        at
    }

    /// Moves bytes both ways until nothing moves any more.
    pub fn settle(&mut self, at: usize) {
        while self.write_out(at) | self.read_in(at) | self.run_disk() {}
    }

    /// Every disk operation succeeds; what is read is whatever stood in the memory.
    fn run_disk(&mut self) -> bool {
        let Some(op) = self.hands.disk.pop_front() else { return false };
        let len = match &op.kind {
            DiskKind::Read { into, skip, .. } => into.len() - skip,
            DiskKind::Write { from, skip, .. } => from.len() - skip,
            other => unreachable!("reads and writes only: {other:?}"),
        };
        self.with(|shard, cx| shard.handle_disk(cx, op, Ok(len)));
        true
    }

    fn write_out(&mut self, at: usize) -> bool {
        let wire = &mut self.hands.wires[at];
        let Some(op) = wire.send.take() else { return false };
        let had = wire.to_peer.len();
        wire.to_peer.resize(had + op.len, 0);
        assert_eq!(op.copy_to(0, &mut wire.to_peer[had..]), op.len);
        let link = LinkId(at as u64);
        self.with(|shard, cx| {
            shard.handle_written(cx, link, Ok(()));
            shard.handle_send_released(cx, link, op);
        });
        true
    }

    fn read_in(&mut self, at: usize) -> bool {
        let wire = &mut self.hands.wires[at];
        if wire.to_shard.is_empty() {
            return false;
        }
        let Some(op) = wire.recv.take() else { return false };
        let (op, came) = RecvDelivery::long_stages().fill_recv(&self.pool, op, &mut wire.to_shard);
        let link = LinkId(at as u64);
        self.with(|shard, cx| shard.handle_recv(cx, link, op, came));
        true
    }

    /// Calls the timers that are due by `now`.
    pub fn sleep(&mut self, nanoseconds: u64) {
        self.now.0 += nanoseconds;
        if self.shard.poll_timeout().is_some_and(|due| due <= self.now) {
            self.with(|shard, cx| shard.handle_timeout(cx));
        }
    }
}
