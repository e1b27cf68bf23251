//! The world: shards, wires and disks under one clock and one seed.

mod dial;
mod driver;
mod failures;
mod replacement;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use buf::{Cx, Entropy, Errno, MemoryClass, Pool, Time};
use endpoint::{Endpoint, LinkArrival, LinkId, ListenerId, ShardId, pump};
use stream::Received;
use volume::{DiskId, DiskOp};

use crate::config::{Config, ShardFaults};
use crate::connection::{ECONNRESET, Peer, PeerEnd};
use crate::disk::Disk;
use crate::network::{Network, Reachability};
use crate::rng::SimRng;
use crate::schedule::{Schedule, SimEvent};
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
            let pool = Pool::new_poisoned(config.pool_bytes);
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
    pub fn rng(&mut self) -> &mut SimRng {
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
    pub fn shard_count(&self) -> usize {
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
    pub fn send_message(&mut self, to: ShardId, message: E::Message) {
        let delay = self.schedule.random_delay(self.config.shard_faults.control_delay_max);
        let told = &mut self.shards[to].told;
        *told = (self.schedule.now + delay).max(*told);
        self.schedule.push(*told, SimEvent::Message(to, message));
    }

    /// What shards have said to the control plane since this was last asked.
    pub fn take_control_messages(&mut self) -> Vec<(ShardId, E::Message)> {
        std::mem::take(&mut self.outside)
    }

    /// Where peers connect from, from now on, not over loopback, and the processor that takes in what they send.
    pub fn set_peer_origin(&mut self, from: IpAddr, cpu: u32) {
        self.net.comers = Some((from, cpu));
    }

    /// Lets shards be dialled at `address`; which of them accepts is chosen by chance.
    pub fn add_listener(&mut self, address: SocketAddr, id: ListenerId, shards: Range<u16>) {
        assert!(!shards.is_empty() && shards.end <= self.config.shards, "shards that there are");
        self.net.add_listener(address, id, shards);
    }

    /// Changes what a dial to a listener meets.
    pub fn set_reachability(&mut self, address: SocketAddr, reach: Reachability) {
        assert!(
            self.net.set_listener_reachability(&mut self.schedule, address, reach),
            "somebody listens there"
        );
    }

    /// The connections that were made by dialling `address` and still stand, each by its dialler's end.
    pub fn connections_via(&self, address: SocketAddr) -> Vec<Peer> {
        self.net.connections_via(address)
    }

    /// Loses a connection between shards without telling either.
    pub fn lose_silently(&mut self, peer: Peer) {
        self.net.lose_connection(&mut self.schedule, peer, true);
    }

    /// What goes wrong with shards from now on.
    pub fn set_shard_faults(&mut self, faults: ShardFaults) {
        self.config.shard_faults = faults;
    }

    /// Connects to a listener; the accepting shard is chosen by chance.
    pub fn connect(&mut self, listener: ListenerId) -> Peer {
        let (peer, accepted) = self.net.connect(listener);
        let shard = ShardId(self.schedule.chance.below(u64::from(self.config.shards)) as u16);
        self.schedule.push_now(SimEvent::Arrive(shard, peer, None, accepted));
        peer
    }

    /// Sends bytes to the shard.
    pub fn send(&mut self, peer: Peer, bytes: &[u8]) {
        self.net.send(&mut self.schedule, peer, bytes);
    }

    /// Sends no more.
    pub fn shutdown_write(&mut self, peer: Peer) {
        self.net[peer].peer_done = true;
        self.net.schedule_receive(&mut self.schedule, peer);
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
        let queued = self.schedule.next_time();
        let timer = self.shards.next_timer(&mut self.schedule, &faults);
        match (queued, timer) {
            (Some(at), timer) if at <= until && timer.is_none_or(|(time, _)| at <= time) => {
                self.schedule.now = self.schedule.now.max(at);
                let due = self.schedule.pop().and_then(|due| {
                    let on = self.net.event_shard(&due.what);
                    self.shards.postpone(&mut self.schedule, &faults, on, due)
                });
                if let Some(due) = due {
                    self.process_event(due.what);
                }
                true
            }
            (_, Some((time, shard))) if time <= until => {
                self.schedule.now = self.schedule.now.max(time);
                self.shards[shard].late = None;
                self.call_endpoint(shard, |end, cx| end.handle_timeout(cx));
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
    pub fn with_endpoint<R>(&mut self, shard: ShardId, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
        self.call_endpoint(shard, act)
    }

    /// Calls an endpoint, and starts what it wants then.
    fn call_endpoint<R>(&mut self, id: ShardId, act: impl FnOnce(&mut E, &mut Cx<'_>) -> R) -> R {
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

    fn process_event(&mut self, what: SimEvent<E::Message>) {
        match what {
            SimEvent::Receive(peer) => self.process_receive(peer),
            SimEvent::Transmit(peer) => self.process_transmit(peer),
            SimEvent::Release(peer) => self.process_release(peer),
            SimEvent::Halt(peer) => self.process_halt(peer),
            SimEvent::Disk(shard, mut op, begun) => {
                let disk = self.disks.entry(op.disk).or_default();
                if let Some(first) = disk.tear_read(&mut self.schedule.chance, &mut op) {
                    let delay = self.schedule.random_delay(self.config.disk_delay_max);
                    let rest = SimEvent::DiskRest(shard, op, first);
                    return self.schedule.push(self.schedule.now + delay, rest);
                }
                let came = disk.execute(&mut self.schedule.chance, &mut op, begun);
                self.finish_disk_op(shard, op, came);
            }
            SimEvent::DiskRest(shard, mut op, first) => {
                let len = self.disks.entry(op.disk).or_default().finish_torn_read(&mut op, first);
                self.finish_disk_op(shard, op, Ok(len));
            }
            SimEvent::DiskEnded(shard, op, came) => {
                self.call_endpoint(shard, |end, cx| end.handle_disk(cx, op, came));
            }
            SimEvent::Message(to, message) => {
                self.call_endpoint(to, |end, cx| end.handle_message(cx, message));
            }
            SimEvent::Dial(shard, dial) => self.process_dial(shard, dial),
            SimEvent::DialFailed(shard, id, why) => {
                self.call_endpoint(shard, |end, cx| end.handle_dialled(cx, id, Err(why)));
            }
            SimEvent::Carry(peer) => self.net.transfer_to_twin(&mut self.schedule, peer),
            SimEvent::Lose(peer, silent) => self.net.lose_connection(&mut self.schedule, peer, silent),
            SimEvent::Arrive(to, peer, Some(message), _) if self.refuses_link_move() => {
                self.net[peer].departed = true;
                self.net[peer].end = PeerEnd::Reset;
                self.net.schedule_transfer(&mut self.schedule, peer);
                self.call_endpoint(to, |end, cx| end.handle_message(cx, message));
            }
            SimEvent::Arrive(to, peer, message, accepted) => {
                let link = self.install_link(to, peer);
                let how = match message {
                    Some(message) => LinkArrival::Moved(message),
                    None => LinkArrival::Accepted(accepted),
                };
                self.call_endpoint(to, |end, cx| end.handle_arrival(cx, link, how));
            }
        }
    }

    /// A disk operation has ended, and its shard hears of it when it can.
    fn finish_disk_op(&mut self, shard: ShardId, op: DiskOp, came: Result<usize, Errno>) {
        let most = self.config.disk_tell_delay_max;
        if most.is_zero() && self.shards[shard].stands_until <= self.schedule.now {
            return self.call_endpoint(shard, |end, cx| end.handle_disk(cx, op, came));
        }
        let delay = self.schedule.random_delay(most);
        self.schedule.push(self.schedule.now + delay, SimEvent::DiskEnded(shard, op, came));
    }

    /// Whether a link that moves finds no room.
    fn refuses_link_move(&mut self) -> bool {
        let permille = self.config.shard_faults.refuse_move_permille;
        permille > 0 && self.schedule.chance.chance_permille(permille)
    }

    /// Makes a wire's end a link of a shard.
    fn install_link(&mut self, shard: ShardId, peer: Peer) -> LinkId {
        let link = self.shards[shard].add_link(peer);
        self.net[peer].home = Some((shard, link));
        link
    }

    fn process_receive(&mut self, peer: Peer) {
        let wire = &mut self.net[peer];
        let Some((shard, link)) = wire.home else { return };
        let pool = self.shards[shard].pool.clone();
        let loan = self.schedule.chance.chance_permille(self.config.loaned_permille).then_some(&pool);
        let stage = |len: usize| pool.take(MemoryClass::Wire, len);
        let had = wire.recv.is_some();
        match wire.recv_random_part(&mut self.schedule.chance, stage, loan) {
            Some((op, came)) => {
                // There is room in the window again.
                if let Some(twin) = wire.twin {
                    self.net.schedule_transfer(&mut self.schedule, twin);
                }
                self.call_endpoint(shard, |end, cx| end.handle_recv(cx, link, op, came));
            }
            // Memory was short: bytes wait, and so does the receive.
            None if had && !wire.to_shard.is_empty() => self.net.schedule_receive(&mut self.schedule, peer),
            None => {}
        }
    }

    fn process_transmit(&mut self, peer: Peer) {
        let Some((shard, link)) = self.net[peer].home else { return };
        let written = self.net[peer].send_random_part(&mut self.schedule.chance);
        self.net.schedule_transfer(&mut self.schedule, peer);
        match written {
            Some(how) => {
                self.call_endpoint(shard, |end, cx| end.handle_written(cx, link, how));
                self.schedule.push_within(self.config.wire_delay_max, SimEvent::Release(peer));
            }
            None => {
                let wire = &self.net[peer];
                if wire.send.is_some() && wire.to_peer.len() < wire.window {
                    let delay = Duration::from_nanos(self.schedule.chance.below(10_000));
                    self.schedule.push(self.schedule.now + delay, SimEvent::Transmit(peer));
                }
            }
        }
    }

    /// The kernel lets go of memory; a departed link gives everything back and is forgotten.
    fn process_release(&mut self, peer: Peer) {
        let Some((shard, link)) = self.net[peer].home else { return };
        if let Some(op) = self.net[peer].held.pop_front() {
            self.call_endpoint(shard, |end, cx| end.handle_send_released(cx, link, op));
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
            self.call_endpoint(shard, |end, cx| end.handle_recv(cx, link, op, Received::Cancelled));
        }
        if let Some((op, _)) = send {
            self.call_endpoint(shard, |end, cx| end.handle_written(cx, link, Err(ECONNRESET)));
            self.call_endpoint(shard, |end, cx| end.handle_send_released(cx, link, op));
        }
        for op in held {
            self.call_endpoint(shard, |end, cx| end.handle_send_released(cx, link, op));
        }
        self.net[peer].home = None;
        self.shards[shard].links.remove(&link);
        self.net.schedule_transfer(&mut self.schedule, peer);
    }

    /// How many sockets a shard holds.
    pub fn link_count(&self, shard: ShardId) -> usize {
        self.shards[shard].links.len()
    }
}

impl<E: Endpoint> std::fmt::Debug for World<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World(seed {}, {:?})", self.config.seed, self.schedule.now)
    }
}
