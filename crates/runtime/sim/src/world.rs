//! The world: shards, wires and disks under one clock and one seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use buf::{Class, Cx, Entropy, Errno, Pool, Time};
use endpoint::{
    Accepted, Arrival, Departure, Dial, DialId, Driver, Endpoint, LinkId, ListenerId, ShardId, pump,
};
use stream::{Received, RecvOp, SendOp};
use volume::{DiskId, DiskOp};

use crate::dial::{LineFaults, Listening};
use crate::disk::Disk;
use crate::net::{Peer, PeerEnd, Wire};
use crate::rng::SimRng;
use crate::shard_faults::ShardFaults;

/// How a world is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decides everything.
    pub seed: u64,
    /// How many shards.
    pub shards: u16,
    /// Memory of each shard's pool, in bytes.
    pub pool_bytes: usize,
    /// Receives that bring pages of the world's own choice instead of filling the op, in thousandths.
    pub loaned_permille: u32,
    /// The longest delay of a disk operation.
    pub disk_delay_max: Duration,
    /// The longest time between the end of a disk operation and its shard's hearing of it.
    pub disk_tell_delay_max: Duration,
    /// The longest delay of a message between shards.
    pub message_delay_max: Duration,
    /// The longest delay of bytes on the wire.
    pub wire_delay_max: Duration,
    /// Bytes that a peer's window takes before it reads.
    pub window: usize,
    /// The longest that making a connection takes, where it is answered at all.
    pub dial_delay_max: Duration,
    /// What goes wrong with connections between shards.
    pub lines: LineFaults,
    /// What goes wrong with the shards themselves.
    pub shard_faults: ShardFaults,
}

impl Config {
    /// Ordinary delays, no faults.
    pub fn new(seed: u64) -> Self {
        Config {
            seed,
            shards: 2,
            pool_bytes: 16 << 20,
            loaned_permille: 0,
            disk_delay_max: Duration::from_micros(200),
            disk_tell_delay_max: Duration::ZERO,
            message_delay_max: Duration::from_micros(20),
            wire_delay_max: Duration::from_micros(100),
            window: 1 << 20,
            dial_delay_max: Duration::from_micros(500),
            lines: LineFaults::default(),
            shard_faults: ShardFaults::default(),
        }
    }
}

/// What happens at a time.
#[derive(Debug)]
pub(crate) enum Event<M> {
    Receive(Peer),
    Transmit(Peer),
    Release(Peer),
    /// With how many writes there had been on that disk when it began.
    Disk(ShardId, DiskOp, u64),
    /// The rest of a torn read, from this byte on.
    DiskRest(ShardId, DiskOp, usize),
    /// It has ended, and its shard hears of it.
    DiskEnded(ShardId, DiskOp, Result<usize, Errno>),
    Message(ShardId, M),
    Arrive(ShardId, Peer, Option<M>, Accepted),
    /// A connection is to be made.
    Dial(ShardId, Dial),
    /// It is not: this is the answer.
    DialFailed(ShardId, DialId, Errno),
    /// Bytes, and the end, cross from this wire to its twin.
    Carry(Peer),
    /// A connection is lost, in silence or not.
    Lose(Peer, bool),
}

/// An event with its time; ties go in the order of their making.
pub(crate) struct ScheduledEvent<M> {
    pub(crate) at: (Time, u64),
    pub(crate) what: Event<M>,
}

impl<M> PartialEq for ScheduledEvent<M> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl<M> Eq for ScheduledEvent<M> {}
impl<M> PartialOrd for ScheduledEvent<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<M> Ord for ScheduledEvent<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

pub(crate) struct Shard<E> {
    pub(crate) end: E,
    pub(crate) pool: Pool,
    pub(crate) entropy: Entropy,
    /// Which wire each link is.
    pub(crate) links: BTreeMap<LinkId, Peer>,
    next_link: u64,
    /// Nothing happens on it before.
    pub(crate) stands_until: Time,
    /// When its next timer goes off, and when it is heard.
    pub(crate) late: Option<(Time, Time)>,
    /// The last message of the control plane to it: they do not overtake each other.
    told: Time,
}

/// Everything that the world starts for a shard during a pump.
struct ShardDriver<'a, M> {
    chance: &'a mut SimRng,
    config: &'a Config,
    now: Time,
    shard: ShardId,
    links: &'a mut BTreeMap<LinkId, Peer>,
    wires: &'a mut Vec<Wire>,
    queue: &'a mut Queue<M>,
    disks: &'a mut BTreeMap<DiskId, Disk>,
    outside: &'a mut Vec<(ShardId, M)>,
    shards: u16,
}

#[derive(Default)]
pub(crate) struct Queue<M> {
    pub(crate) heap: BinaryHeap<Reverse<ScheduledEvent<M>>>,
    made: u64,
    /// The last delivery between each pair of shards: messages do not overtake each other.
    last: BTreeMap<(ShardId, ShardId), Time>,
}

impl<M> Queue<M> {
    pub(crate) fn push(&mut self, at: Time, what: Event<M>) {
        self.made += 1;
        self.heap.push(Reverse(ScheduledEvent { at: (at, self.made), what }));
    }
}

impl<M> ShardDriver<'_, M> {
    fn later(&mut self, most: Duration) -> Time {
        self.now + Duration::from_nanos(self.chance.below(most.as_nanos() as u64 + 1))
    }

    fn deliver(&mut self, to: ShardId, what: Event<M>) {
        let at = self.later(self.config.message_delay_max);
        let last = self.queue.last.entry((self.shard, to)).or_default();
        let at = at.max(*last);
        *last = at;
        self.queue.push(at, what);
    }
}

impl<M> Driver<M> for ShardDriver<'_, M> {
    fn recv(&mut self, link: LinkId, op: RecvOp) {
        let peer = self.links[&link];
        let wire = &mut self.wires[peer.0];
        assert!(wire.recv.is_none(), "one receive is out at a time");
        wire.recv = Some(op);
        let at = self.later(self.config.wire_delay_max);
        self.queue.push(at, Event::Receive(peer));
    }

    fn send(&mut self, link: LinkId, op: SendOp) {
        let peer = self.links[&link];
        assert!(op.len > 0, "a batch is not empty");
        crate::filled::check_send(&op);
        let wire = &mut self.wires[peer.0];
        assert!(wire.send.is_none(), "one send is out at a time");
        wire.send = Some((op, 0));
        let at = self.later(self.config.wire_delay_max);
        self.queue.push(at, Event::Transmit(peer));
    }

    fn disk(&mut self, op: DiskOp) {
        crate::filled::check_disk(&op);
        let at = self.later(self.config.disk_delay_max);
        let begun = self.disks.entry(op.disk).or_default().writes();
        self.queue.push(at, Event::Disk(self.shard, op, begun));
    }

    fn depart(&mut self, link: LinkId, how: Departure<M>) {
        let peer = self.links[&link];
        let wire = &mut self.wires[peer.0];
        match how {
            Departure::Close | Departure::Abort => {
                let reset = matches!(how, Departure::Abort) || !wire.to_shard.is_empty();
                wire.departed = true;
                wire.end = if reset { PeerEnd::Reset } else { PeerEnd::Closed };
                let at = self.now;
                self.queue.push(at, Event::Release(peer));
            }
            Departure::Move { to, message } => {
                let nothing = wire.recv.is_none() && wire.send.is_none() && wire.held.is_empty();
                assert!(nothing, "a link moves with nothing out");
                self.links.remove(&link);
                wire.home = None;
                let accepted =
                    Accepted { listener: ListenerId(0), local: address(0), peer: address(peer.0), cpu: None };
                self.deliver(to, Event::Arrive(to, peer, Some(message), accepted));
            }
        }
    }

    fn post(&mut self, to: ShardId, message: M) {
        if to.0 < self.shards {
            self.deliver(to, Event::Message(to, message));
        } else {
            self.outside.push((to, message));
        }
    }

    fn dial(&mut self, dial: Dial) {
        let at = self.later(self.config.dial_delay_max).min(dial.until.max(self.now));
        self.queue.push(at, Event::Dial(self.shard, dial));
    }
}

pub(crate) fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1024 + (number % 60_000) as u16))
}

/// See the crate's page.
pub struct World<E: Endpoint> {
    pub(crate) config: Config,
    pub(crate) chance: SimRng,
    pub(crate) now: Time,
    pub(crate) shards: Vec<Shard<E>>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) disks: BTreeMap<DiskId, Disk>,
    pub(crate) queue: Queue<E::Message>,
    /// Messages to no shard: to the control plane, which is the test.
    outside: Vec<(ShardId, E::Message)>,
    pub(crate) listeners: BTreeMap<SocketAddr, Listening>,
    /// Where peers connect from, and the processor that takes in what they send.
    comers: Option<(IpAddr, u32)>,
}

impl<E: Endpoint> World<E> {
    /// A world of `config.shards` endpoints.
    pub fn new(config: Config, mut make: impl FnMut(ShardId, &mut Cx<'_>) -> E) -> Self {
        let mut chance = SimRng::new(config.seed);
        let shards = (0..config.shards)
            .map(|id| {
                let pool = Pool::poisoned(config.pool_bytes);
                let mut seed = [0; 32];
                seed[..8].copy_from_slice(&chance.next_u64().to_le_bytes());
                let mut entropy = Entropy::new(seed);
                let mut cx = Cx { now: Time(1), pool: &pool, entropy: &mut entropy };
                let end = make(ShardId(id), &mut cx);
                Shard {
                    end,
                    pool,
                    entropy,
                    links: BTreeMap::new(),
                    next_link: 0,
                    stands_until: Time(0),
                    late: None,
                    told: Time(0),
                }
            })
            .collect();
        let queue = Queue { heap: BinaryHeap::new(), made: 0, last: BTreeMap::new() };
        World {
            config,
            chance,
            now: Time(1),
            shards,
            wires: Vec::new(),
            disks: BTreeMap::new(),
            queue,
            outside: Vec::new(),
            listeners: BTreeMap::new(),
            comers: None,
        }
    }

    /// The world's clock.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The world's chance, for what the test decides.
    pub fn chance(&mut self) -> &mut SimRng {
        &mut self.chance
    }

    /// Puts a disk in.
    pub fn add_disk(&mut self, id: DiskId, disk: Disk) {
        self.disks.insert(id, disk);
    }

    /// A disk.
    pub fn disk(&mut self, id: DiskId) -> Option<&mut Disk> {
        self.disks.get_mut(&id)
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// A shard's endpoint, to look at.
    pub fn endpoint(&self, shard: ShardId) -> &E {
        &self.shards[usize::from(shard.0)].end
    }

    /// The same, to fetch what it keeps for who asks.
    pub fn endpoint_mut(&mut self, shard: ShardId) -> &mut E {
        &mut self.shards[usize::from(shard.0)].end
    }

    /// A shard's pool, to look at.
    pub fn pool(&self, shard: ShardId) -> &Pool {
        &self.shards[usize::from(shard.0)].pool
    }

    /// Says something to a shard, as the control plane does.
    pub fn tell(&mut self, to: ShardId, message: E::Message) {
        let delay = self.drawn(self.config.shard_faults.control_delay_max);
        let told = &mut self.shards[usize::from(to.0)].told;
        *told = (self.now + delay).max(*told);
        let at = *told;
        self.queue.push(at, Event::Message(to, message));
    }

    /// What shards have said to the control plane since this was last asked.
    pub fn heard(&mut self) -> Vec<(ShardId, E::Message)> {
        std::mem::take(&mut self.outside)
    }

    /// Where peers connect from, from now on, not over loopback, and the processor that takes in what they send.
    pub fn set_comers(&mut self, from: IpAddr, cpu: u32) {
        self.comers = Some((from, cpu));
    }

    /// Connects to a listener; the accepting shard is chosen by chance.
    pub fn connect(&mut self, listener: ListenerId) -> Peer {
        let peer = Peer(self.wires.len());
        self.wires.push(Wire::new(self.config.window));
        let shard = ShardId(self.chance.below(u64::from(self.config.shards)) as u16);
        let mut accepted = Accepted { listener, local: address(0), peer: address(peer.0 + 1), cpu: None };
        if let Some((from, cpu)) = self.comers {
            accepted.peer.set_ip(from);
            accepted.cpu = Some(cpu);
        }
        self.queue.push(self.now, Event::Arrive(shard, peer, None, accepted));
        peer
    }

    /// Sends bytes to the shard.
    pub fn send(&mut self, peer: Peer, bytes: &[u8]) {
        let wire = &mut self.wires[peer.0];
        if wire.departed || wire.reset {
            return;
        }
        wire.to_shard.extend(bytes);
        self.wake_receive(peer);
    }

    /// Sends no more.
    pub fn shut(&mut self, peer: Peer) {
        self.wires[peer.0].peer_done = true;
        self.wake_receive(peer);
    }

    /// Breaks the connection; where its other end is a shard's as well, for both.
    pub fn reset(&mut self, peer: Peer) {
        self.break_end(peer);
        if let Some(twin) = self.wires[peer.0].twin {
            self.break_end(twin);
        }
    }

    pub(crate) fn break_end(&mut self, peer: Peer) {
        self.wires[peer.0].reset = true;
        self.wires[peer.0].end = PeerEnd::Reset;
        self.wake_receive(peer);
        self.queue.push(self.now, Event::Transmit(peer));
    }

    /// Takes all bytes that have reached the peer.
    pub fn receive(&mut self, peer: Peer) -> Vec<u8> {
        let wire = &mut self.wires[peer.0];
        let bytes: Vec<u8> = wire.to_peer.drain(..).collect();
        // Room in the window lets a write go on that waited for it.
        if !bytes.is_empty() && wire.send.is_some() {
            self.queue.push(self.now, Event::Transmit(peer));
        }
        bytes
    }

    /// How the shard's side has ended the connection.
    pub fn peer_end(&self, peer: Peer) -> PeerEnd {
        self.wires[peer.0].end
    }

    pub(crate) fn wake_receive(&mut self, peer: Peer) {
        let delay = Duration::from_nanos(self.chance.below(self.config.wire_delay_max.as_nanos() as u64 + 1));
        self.queue.push(self.now + delay, Event::Receive(peer));
    }

    /// Lets the next thing happen. False: nothing will happen any more before `until`; the clock then
    /// stands at `until`.
    pub fn step(&mut self, until: Time) -> bool {
        let queued = self.queue.heap.peek().map(|Reverse(due)| due.at.0);
        let timer = self.next_timer();
        match (queued, timer) {
            (Some(at), timer) if at <= until && timer.is_none_or(|(time, _)| at <= time) => {
                self.now = self.now.max(at);
                let Reverse(due) = self.queue.heap.pop().expect("peeked");
                if let Some(due) = self.put_off(due) {
                    self.happen(due.what);
                }
                true
            }
            (_, Some((time, at))) if time <= until => {
                self.now = self.now.max(time);
                self.shards[at].late = None;
                self.with(at, |end, cx| end.handle_timeout(cx));
                true
            }
            _ => {
                self.now = self.now.max(until);
                false
            }
        }
    }

    /// Lets everything happen that happens within `time`.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
    }

    /// Lets the test do something with a shard's endpoint, as its owner would between two turns.
    pub fn act<R>(&mut self, shard: ShardId, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        let mut result = None;
        self.with(usize::from(shard.0), |end, cx| result = Some(act(end, cx)));
        result.expect("it was called")
    }

    pub(crate) fn with(&mut self, shard: usize, act: impl FnOnce(&mut E, &mut Cx<'_>)) {
        let state = &mut self.shards[shard];
        let mut cx = Cx { now: self.now, pool: &state.pool, entropy: &mut state.entropy };
        act(&mut state.end, &mut cx);
        let mut driver = ShardDriver {
            chance: &mut self.chance,
            config: &self.config,
            now: self.now,
            shard: ShardId(shard as u16),
            links: &mut state.links,
            wires: &mut self.wires,
            queue: &mut self.queue,
            disks: &mut self.disks,
            outside: &mut self.outside,
            shards: self.config.shards,
        };
        while pump(&mut state.end, &mut cx, &mut driver) {}
    }

    fn happen(&mut self, what: Event<E::Message>) {
        match what {
            Event::Receive(peer) => self.happen_receive(peer),
            Event::Transmit(peer) => self.happen_transmit(peer),
            Event::Release(peer) => self.happen_release(peer),
            Event::Disk(shard, mut op, begun) => {
                let disk = self.disks.entry(op.disk).or_default();
                if let Some(first) = disk.tears(&mut self.chance, &mut op) {
                    let delay = self.drawn(self.config.disk_delay_max);
                    return self.queue.push(self.now + delay, Event::DiskRest(shard, op, first));
                }
                let came = disk.run(&mut self.chance, &mut op, begun);
                self.disk_ended(shard, op, came);
            }
            Event::DiskRest(shard, mut op, first) => {
                let len = self.disks.entry(op.disk).or_default().read_from(&mut op, first);
                self.disk_ended(shard, op, Ok(len));
            }
            Event::DiskEnded(shard, op, came) => {
                self.with(usize::from(shard.0), |end, cx| end.handle_disk(cx, op, came));
            }
            Event::Message(to, message) => {
                self.with(usize::from(to.0), |end, cx| end.handle_message(cx, message));
            }
            Event::Dial(shard, dial) => self.happen_dial(shard, dial),
            Event::DialFailed(shard, id, why) => {
                self.with(usize::from(shard.0), |end, cx| end.handle_dialled(cx, id, Err(why)));
            }
            Event::Carry(peer) => self.happen_carry(peer),
            Event::Lose(peer, silent) => self.happen_lose(peer, silent),
            Event::Arrive(to, peer, Some(message), _) if self.refuses_a_move() => {
                self.wires[peer.0].departed = true;
                self.wires[peer.0].end = PeerEnd::Reset;
                self.carry_soon(peer);
                self.with(usize::from(to.0), |end, cx| end.handle_message(cx, message));
            }
            Event::Arrive(to, peer, message, accepted) => {
                let link = self.take_home(to, peer);
                let how = match message {
                    Some(message) => Arrival::Moved(message),
                    None => Arrival::Accepted(accepted),
                };
                self.with(usize::from(to.0), |end, cx| end.handle_arrival(cx, link, how));
            }
        }
    }

    /// A disk operation has ended, and its shard hears of it when it can.
    fn disk_ended(&mut self, shard: ShardId, op: DiskOp, came: Result<usize, Errno>) {
        let most = self.config.disk_tell_delay_max;
        if most.is_zero() && self.shards[usize::from(shard.0)].stands_until <= self.now {
            return self.with(usize::from(shard.0), |end, cx| end.handle_disk(cx, op, came));
        }
        let delay = self.drawn(most);
        self.queue.push(self.now + delay, Event::DiskEnded(shard, op, came));
    }

    /// Makes a wire's end a link of a shard.
    pub(crate) fn take_home(&mut self, shard: ShardId, peer: Peer) -> LinkId {
        let home = &mut self.shards[usize::from(shard.0)];
        let link = LinkId(home.next_link | (home.next_link << 32));
        home.next_link += 1;
        home.links.insert(link, peer);
        self.wires[peer.0].home = Some((shard, link));
        link
    }

    fn happen_receive(&mut self, peer: Peer) {
        let wire = &mut self.wires[peer.0];
        let Some((shard, link)) = wire.home else { return };
        let pool = self.shards[usize::from(shard.0)].pool.clone();
        let loan = self.chance.permille(self.config.loaned_permille).then_some(&pool);
        let stage = |len: usize| pool.take(Class::Wire, len);
        let had = wire.recv.is_some();
        match wire.receive(&mut self.chance, stage, loan) {
            Some((op, came)) => {
                // There is room in the window again.
                if let Some(twin) = self.wires[peer.0].twin {
                    self.carry_soon(twin);
                }
                self.with(usize::from(shard.0), |end, cx| end.handle_recv(cx, link, op, came));
            }
            // Memory was short: bytes wait, and so does the receive.
            None if had && !wire.to_shard.is_empty() => self.wake_receive(peer),
            None => {}
        }
    }

    fn happen_transmit(&mut self, peer: Peer) {
        let Some((shard, link)) = self.wires[peer.0].home else { return };
        let written = self.wires[peer.0].transmit(&mut self.chance);
        self.carry_soon(peer);
        match written {
            Some(how) => {
                self.with(usize::from(shard.0), |end, cx| end.handle_written(cx, link, how));
                let delay =
                    Duration::from_nanos(self.chance.below(self.config.wire_delay_max.as_nanos() as u64 + 1));
                self.queue.push(self.now + delay, Event::Release(peer));
            }
            None => {
                let wire = &self.wires[peer.0];
                let moves = wire.send.is_some() && wire.to_peer.len() < wire.window;
                if moves {
                    let delay = Duration::from_nanos(self.chance.below(10_000));
                    self.queue.push(self.now + delay, Event::Transmit(peer));
                }
            }
        }
    }

    /// The kernel lets go of memory; a departed link gives everything back and is forgotten.
    fn happen_release(&mut self, peer: Peer) {
        let Some((shard, link)) = self.wires[peer.0].home else { return };
        let at = usize::from(shard.0);
        if let Some(op) = self.wires[peer.0].held.pop_front() {
            self.with(at, |end, cx| end.handle_sent(cx, link, op));
        }
        if !self.wires[peer.0].departed {
            return;
        }
        let wire = &mut self.wires[peer.0];
        let recv = wire.recv.take();
        // What was handed to the socket is still delivered, unless the connection was reset.
        let send = wire.send.take();
        if let Some((op, written)) = &send
            && wire.end == PeerEnd::Closed
        {
            let mut rest = vec![0; op.len - written];
            op.copy_to(*written, &mut rest);
            wire.to_peer.extend(rest);
        }
        let held = std::mem::take(&mut wire.held);
        if let Some(op) = recv {
            self.with(at, |end, cx| end.handle_recv(cx, link, op, Received::Cancelled));
        }
        if let Some((op, _)) = send {
            self.with(at, |end, cx| end.handle_written(cx, link, Err(crate::net::RESET)));
            self.with(at, |end, cx| end.handle_sent(cx, link, op));
        }
        for op in held {
            self.with(at, |end, cx| end.handle_sent(cx, link, op));
        }
        self.wires[peer.0].home = None;
        self.shards[at].links.remove(&link);
        self.carry_soon(peer);
    }

    /// How many sockets a shard holds.
    pub fn links(&self, shard: ShardId) -> usize {
        self.shards[usize::from(shard.0)].links.len()
    }

    /// How many messages wait to be delivered.
    pub fn undelivered(&self) -> usize {
        self.queue.heap.iter().filter(|Reverse(due)| matches!(due.what, Event::Message(..))).count()
    }
}

impl<E: Endpoint> std::fmt::Debug for World<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(seed {}, {:?})", self.config.seed, self.now)
    }
}
