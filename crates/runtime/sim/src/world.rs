//! The world: shards, wires and disks under one clock and one seed.

mod dial;
mod driver;
mod ends;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use buf::{Class, Cx, Entropy, Errno, Pool, Time};
use endpoint::{Arrival, Endpoint, LinkId, ListenerId, ShardId, pump};
use stream::Received;
use volume::{DiskId, DiskOp};

use crate::config::{Config, ShardFaults};
use crate::disk::Disk;
use crate::net::{Peer, PeerEnd, RESET};
use crate::network::{Network, Reach};
use crate::rng::SimRng;
use crate::schedule::{Event, Schedule};
use crate::shards::{Shards, SimShard};
use driver::ShardDriver;

/// See the crate's page. What is named to it (a shard, a peer, the address of a listener) must be there, else it
/// panics.
pub struct World<E: Endpoint> {
    config: Config,
    schedule: Schedule<E::Message>,
    shards: Shards<E>,
    net: Network,
    disks: BTreeMap<DiskId, Disk>,
    /// Messages to no shard: to the control plane, which is the test.
    outside: Vec<(ShardId, E::Message)>,
}

impl<E: Endpoint> World<E> {
    /// A world of `config.shards` endpoints.
    pub fn new(config: Config, mut make: impl FnMut(ShardId, &mut Cx<'_>) -> E) -> Self {
        let mut schedule = Schedule::new(SimRng::new(config.seed));
        let shards = (0..config.shards).map(ShardId).map(|id| {
            let mut seed = [0; 32];
            let (drawn, _) = seed.split_at_mut(8);
            drawn.copy_from_slice(&schedule.chance.next_u64().to_le_bytes());
            let pool = Pool::poisoned(config.pool_bytes);
            SimShard::new(pool, Entropy::new(seed), schedule.now, |cx| make(id, cx))
        });
        let shards = Shards(shards.collect());
        let net = Network::new(config.wire_delay_max, config.window);
        World { config, schedule, shards, net, disks: BTreeMap::new(), outside: Vec::new() }
    }

    /// The world's clock.
    pub fn now(&self) -> Time {
        self.schedule.now
    }

    /// The world's chance, for what the test decides.
    pub fn chance(&mut self) -> &mut SimRng {
        &mut self.schedule.chance
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
        self.shards.0.len()
    }

    /// A shard's endpoint, to look at.
    pub fn endpoint(&self, shard: ShardId) -> &E {
        &self.shards[shard].end
    }

    /// The same, to fetch what it keeps for who asks.
    pub fn endpoint_mut(&mut self, shard: ShardId) -> &mut E {
        &mut self.shards[shard].end
    }

    /// A shard's pool, to look at.
    pub fn pool(&self, shard: ShardId) -> &Pool {
        &self.shards[shard].pool
    }

    /// Says something to a shard, as the control plane does.
    pub fn tell(&mut self, to: ShardId, message: E::Message) {
        let delay = self.schedule.drawn(self.config.shard_faults.control_delay_max);
        let told = &mut self.shards[to].told;
        *told = (self.schedule.now + delay).max(*told);
        self.schedule.push(*told, Event::Message(to, message));
    }

    /// What shards have said to the control plane since this was last asked.
    pub fn heard(&mut self) -> Vec<(ShardId, E::Message)> {
        std::mem::take(&mut self.outside)
    }

    /// Where peers connect from, from now on, not over loopback, and the processor that takes in what they send.
    pub fn set_comers(&mut self, from: IpAddr, cpu: u32) {
        self.net.comers = Some((from, cpu));
    }

    /// Lets shards be dialled at `address`; which of them accepts is chosen by chance.
    pub fn listen(&mut self, address: SocketAddr, id: ListenerId, shards: Range<u16>) {
        assert!(!shards.is_empty() && shards.end <= self.config.shards, "shards that there are");
        self.net.listen(address, id, shards);
    }

    /// Changes what a dial to a listener meets.
    pub fn set_reach(&mut self, address: SocketAddr, reach: Reach) {
        assert!(self.net.set_reach(&mut self.schedule, address, reach), "somebody listens there");
    }

    /// The connections that were made by dialling `address` and still stand, each by its dialler's end.
    pub fn connections(&self, address: SocketAddr) -> Vec<Peer> {
        self.net.connections(address)
    }

    /// Loses a connection between shards without telling either.
    pub fn silence(&mut self, peer: Peer) {
        self.net.lose(&mut self.schedule, peer, true);
    }

    /// What goes wrong with shards from now on.
    pub fn set_shard_faults(&mut self, faults: ShardFaults) {
        self.config.shard_faults = faults;
    }

    /// Connects to a listener; the accepting shard is chosen by chance.
    pub fn connect(&mut self, listener: ListenerId) -> Peer {
        let (peer, accepted) = self.net.connect(listener);
        let shard = ShardId(self.schedule.chance.below(u64::from(self.config.shards)) as u16);
        self.schedule.push_now(Event::Arrive(shard, peer, None, accepted));
        peer
    }

    /// Sends bytes to the shard.
    pub fn send(&mut self, peer: Peer, bytes: &[u8]) {
        self.net.send(&mut self.schedule, peer, bytes);
    }

    /// Sends no more.
    pub fn shut(&mut self, peer: Peer) {
        self.net[peer].peer_done = true;
        self.net.wake_receive(&mut self.schedule, peer);
    }

    /// Breaks the connection; where its other end is a shard's as well, for both.
    pub fn reset(&mut self, peer: Peer) {
        self.net.reset(&mut self.schedule, peer);
    }

    /// Takes all bytes that have reached the peer.
    pub fn receive(&mut self, peer: Peer) -> Vec<u8> {
        self.net.receive(&mut self.schedule, peer)
    }

    /// How the shard's side has ended the connection.
    pub fn peer_end(&self, peer: Peer) -> PeerEnd {
        self.net[peer].end
    }

    /// Lets the next thing happen. False: nothing will happen any more before `until`; the clock then
    /// stands at `until`.
    pub fn step(&mut self, until: Time) -> bool {
        let faults = self.config.shard_faults;
        let queued = self.schedule.next();
        let timer = self.shards.next_timer(&mut self.schedule, &faults);
        match (queued, timer) {
            (Some(at), timer) if at <= until && timer.is_none_or(|(time, _)| at <= time) => {
                self.schedule.now = self.schedule.now.max(at);
                let due = self.schedule.pop().and_then(|due| {
                    let on = self.net.shard_of(&due.what);
                    self.shards.put_off(&mut self.schedule, &faults, on, due)
                });
                if let Some(due) = due {
                    self.happen(due.what);
                }
                true
            }
            (_, Some((time, shard))) if time <= until => {
                self.schedule.now = self.schedule.now.max(time);
                self.shards[shard].late = None;
                self.with(shard, |end, cx| end.handle_timeout(cx));
                true
            }
            _ => {
                self.schedule.now = self.schedule.now.max(until);
                false
            }
        }
    }

    /// Lets everything happen that happens within `time`.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.schedule.now + time;
        while self.step(until) {}
    }

    /// Lets the test do something with a shard's endpoint, as its owner would between two turns.
    pub fn act<R>(&mut self, shard: ShardId, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        self.with(shard, act)
    }

    /// Calls an endpoint, and starts what it wants then.
    fn with<R>(&mut self, id: ShardId, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        let shard = &mut self.shards[id];
        let mut cx = Cx { now: self.schedule.now, pool: &shard.pool, entropy: &mut shard.entropy };
        let result = act(&mut shard.end, &mut cx);
        let mut driver = ShardDriver {
            config: &self.config,
            shard: id,
            links: &mut shard.links,
            net: &mut self.net,
            schedule: &mut self.schedule,
            disks: &mut self.disks,
            outside: &mut self.outside,
        };
        while pump(&mut shard.end, &mut cx, &mut driver) {}
        result
    }

    fn happen(&mut self, what: Event<E::Message>) {
        match what {
            Event::Receive(peer) => self.happen_receive(peer),
            Event::Transmit(peer) => self.happen_transmit(peer),
            Event::Release(peer) => self.happen_release(peer),
            Event::Disk(shard, mut op, begun) => {
                let disk = self.disks.entry(op.disk).or_default();
                if let Some(first) = disk.tears(&mut self.schedule.chance, &mut op) {
                    let delay = self.schedule.drawn(self.config.disk_delay_max);
                    let rest = Event::DiskRest(shard, op, first);
                    return self.schedule.push(self.schedule.now + delay, rest);
                }
                let came = disk.run(&mut self.schedule.chance, &mut op, begun);
                self.disk_ended(shard, op, came);
            }
            Event::DiskRest(shard, mut op, first) => {
                let len = self.disks.entry(op.disk).or_default().read_from(&mut op, first);
                self.disk_ended(shard, op, Ok(len));
            }
            Event::DiskEnded(shard, op, came) => {
                self.with(shard, |end, cx| end.handle_disk(cx, op, came));
            }
            Event::Message(to, message) => {
                self.with(to, |end, cx| end.handle_message(cx, message));
            }
            Event::Dial(shard, dial) => self.happen_dial(shard, dial),
            Event::DialFailed(shard, id, why) => {
                self.with(shard, |end, cx| end.handle_dialled(cx, id, Err(why)));
            }
            Event::Carry(peer) => self.net.carry(&mut self.schedule, peer),
            Event::Lose(peer, silent) => self.net.lose(&mut self.schedule, peer, silent),
            Event::Arrive(to, peer, Some(message), _) if self.refuses_a_move() => {
                self.net[peer].departed = true;
                self.net[peer].end = PeerEnd::Reset;
                self.net.carry_soon(&mut self.schedule, peer);
                self.with(to, |end, cx| end.handle_message(cx, message));
            }
            Event::Arrive(to, peer, message, accepted) => {
                let link = self.take_home(to, peer);
                let how = match message {
                    Some(message) => Arrival::Moved(message),
                    None => Arrival::Accepted(accepted),
                };
                self.with(to, |end, cx| end.handle_arrival(cx, link, how));
            }
        }
    }

    /// A disk operation has ended, and its shard hears of it when it can.
    fn disk_ended(&mut self, shard: ShardId, op: DiskOp, came: Result<usize, Errno>) {
        let most = self.config.disk_tell_delay_max;
        if most.is_zero() && self.shards[shard].stands_until <= self.schedule.now {
            return self.with(shard, |end, cx| end.handle_disk(cx, op, came));
        }
        let delay = self.schedule.drawn(most);
        self.schedule.push(self.schedule.now + delay, Event::DiskEnded(shard, op, came));
    }

    /// Whether a link that moves finds no room.
    fn refuses_a_move(&mut self) -> bool {
        let permille = self.config.shard_faults.refuse_move_permille;
        permille > 0 && self.schedule.chance.permille(permille)
    }

    /// Makes a wire's end a link of a shard.
    fn take_home(&mut self, shard: ShardId, peer: Peer) -> LinkId {
        let link = self.shards[shard].add_link(peer);
        self.net[peer].home = Some((shard, link));
        link
    }

    fn happen_receive(&mut self, peer: Peer) {
        let wire = &mut self.net[peer];
        let Some((shard, link)) = wire.home else { return };
        let pool = self.shards[shard].pool.clone();
        let loan = self.schedule.chance.permille(self.config.loaned_permille).then_some(&pool);
        let stage = |len: usize| pool.take(Class::Wire, len);
        let had = wire.recv.is_some();
        match wire.receive(&mut self.schedule.chance, stage, loan) {
            Some((op, came)) => {
                // There is room in the window again.
                if let Some(twin) = wire.twin {
                    self.net.carry_soon(&mut self.schedule, twin);
                }
                self.with(shard, |end, cx| end.handle_recv(cx, link, op, came));
            }
            // Memory was short: bytes wait, and so does the receive.
            None if had && !wire.to_shard.is_empty() => self.net.wake_receive(&mut self.schedule, peer),
            None => {}
        }
    }

    fn happen_transmit(&mut self, peer: Peer) {
        let Some((shard, link)) = self.net[peer].home else { return };
        let written = self.net[peer].transmit(&mut self.schedule.chance);
        self.net.carry_soon(&mut self.schedule, peer);
        match written {
            Some(how) => {
                self.with(shard, |end, cx| end.handle_written(cx, link, how));
                self.schedule.push_soon(self.config.wire_delay_max, Event::Release(peer));
            }
            None => {
                let wire = &self.net[peer];
                if wire.send.is_some() && wire.to_peer.len() < wire.window {
                    let delay = Duration::from_nanos(self.schedule.chance.below(10_000));
                    self.schedule.push(self.schedule.now + delay, Event::Transmit(peer));
                }
            }
        }
    }

    /// The kernel lets go of memory; a departed link gives everything back and is forgotten.
    fn happen_release(&mut self, peer: Peer) {
        let Some((shard, link)) = self.net[peer].home else { return };
        if let Some(op) = self.net[peer].held.pop_front() {
            self.with(shard, |end, cx| end.handle_sent(cx, link, op));
        }
        if !self.net[peer].departed {
            return;
        }
        let wire = &mut self.net[peer];
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
            self.with(shard, |end, cx| end.handle_recv(cx, link, op, Received::Cancelled));
        }
        if let Some((op, _)) = send {
            self.with(shard, |end, cx| end.handle_written(cx, link, Err(RESET)));
            self.with(shard, |end, cx| end.handle_sent(cx, link, op));
        }
        for op in held {
            self.with(shard, |end, cx| end.handle_sent(cx, link, op));
        }
        self.net[peer].home = None;
        self.shards[shard].links.remove(&link);
        self.net.carry_soon(&mut self.schedule, peer);
    }

    /// How many sockets a shard holds.
    pub fn links(&self, shard: ShardId) -> usize {
        self.shards[shard].links.len()
    }
}

impl<E: Endpoint> std::fmt::Debug for World<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(seed {}, {:?})", self.config.seed, self.schedule.now)
    }
}
