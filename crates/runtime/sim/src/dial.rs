//! Connections between shards: who listens where, who is answered, and what gets lost.
//!
//! Such a connection is two wires. What one shard sends has reached its own wire's peer first; from there
//! it is carried to the twin, in order, after a delay, and no faster than the twin's shard reads.
//!
//! Invariant: a dial is answered exactly once, at the latest when its time is over.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use buf::{Cx, Errno, Pool, Time};
use endpoint::{Accepted, Dial, Dialled, Endpoint, ListenerId, ShardId};

use crate::net::{Peer, PeerEnd, Wire};
use crate::world::{Event, ScheduledEvent, World, address};

/// ECONNREFUSED, as Linux numbers it.
const REFUSED: Errno = Errno(111);
/// ETIMEDOUT.
const TIMED_OUT: Errno = Errno(110);

/// What goes wrong with connections between shards: chances in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFaults {
    /// A dial is refused although somebody listens.
    pub refused_permille: u32,
    /// A dial is never answered.
    pub unanswered_permille: u32,
    /// A connection gets lost some time after it was made.
    pub lost_permille: u32,
    /// At most so long after.
    pub lost_after_max: Duration,
    /// Of those that get lost, so many are lost in silence: neither end is told, nothing arrives.
    pub silent_permille: u32,
}

/// What a dial to an address meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Somebody accepts.
    Open,
    /// A reset. What stands goes on.
    Refused,
    /// Nothing: no answer, and of the connections that stand nothing arrives until it is open again.
    Silent,
}

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct Listening {
    id: ListenerId,
    shards: Range<u16>,
    reach: Reach,
}

impl<E: Endpoint> World<E> {
    /// Lets shards be dialled at `address`; which of them accepts is chosen by chance.
    pub fn listen(&mut self, address: SocketAddr, id: ListenerId, shards: Range<u16>) {
        assert!(!shards.is_empty() && shards.end <= self.config.shards, "shards that there are");
        self.listeners.insert(address, Listening { id, shards, reach: Reach::Open });
    }

    /// Changes what a dial to a listener meets.
    pub fn set_reach(&mut self, address: SocketAddr, reach: Reach) {
        let listening = self.listeners.get_mut(&address).expect("somebody listens there");
        listening.reach = reach;
        if reach == Reach::Open {
            for peer in self.ends_via(address) {
                self.carry_soon(peer);
            }
        }
    }

    /// The connections that were made by dialling `address` and still stand, each by its dialler's end.
    pub fn connections(&self, address: SocketAddr) -> Vec<Peer> {
        let is_dialler = |peer: &Peer| self.wires[peer.0].twin.is_some_and(|twin| twin.0 > peer.0);
        self.ends_via(address).into_iter().filter(is_dialler).collect()
    }

    /// Loses a connection between shards without telling either.
    pub fn silence(&mut self, peer: Peer) {
        self.happen_lose(peer, true);
    }

    fn ends_via(&self, address: SocketAddr) -> Vec<Peer> {
        let is_of = |wire: &Wire| wire.via == Some(address) && wire.home.is_some();
        self.wires.iter().enumerate().filter(|(_, wire)| is_of(wire)).map(|(at, _)| Peer(at)).collect()
    }

    /// The process that these shards are is killed and started again: its connections are reset, what it
    /// had begun with disks happens or does not, messages to it are lost. Disks keep what they were
    /// given; for a loss of power see [`Disk::lose_power`](crate::Disk::lose_power).
    pub fn restart(&mut self, shards: Range<u16>, mut make: impl FnMut(ShardId, &mut Cx<'_>) -> E) {
        let is_of = |shard: ShardId| shards.contains(&shard.0);
        for Reverse(due) in std::mem::take(&mut self.queue.heap).into_sorted_vec() {
            match due.what {
                Event::Disk(shard, op, begun) if is_of(shard) => {
                    self.disks.entry(op.disk).or_default().run_unheard(&mut self.chance, op, begun);
                }
                Event::DiskEnded(shard, op, came) if is_of(shard) => {
                    self.disks.entry(op.disk).or_default().unheard(&op, came);
                }
                Event::Message(to, _) if is_of(to) => {}
                Event::Dial(shard, _) | Event::DialFailed(shard, ..) if is_of(shard) => {}
                Event::Arrive(to, peer, ..) if is_of(to) => self.lose_end(peer),
                what => self.queue.heap.push(Reverse(ScheduledEvent { what, ..due })),
            }
        }
        for id in shards.clone() {
            let shard = &mut self.shards[usize::from(id)];
            for (_, peer) in std::mem::take(&mut shard.links) {
                self.lose_end(peer);
            }
            let shard = &mut self.shards[usize::from(id)];
            let pool = Pool::poisoned(self.config.pool_bytes);
            let mut cx = Cx { now: self.now, pool: &pool, entropy: &mut shard.entropy };
            shard.end = make(ShardId(id), &mut cx);
            shard.pool = pool;
        }
    }

    /// The shard's end of a wire is gone without a word of the shard.
    fn lose_end(&mut self, peer: Peer) {
        let wire = &mut self.wires[peer.0];
        (wire.home, wire.recv, wire.send) = (None, None, None);
        wire.held.clear();
        (wire.departed, wire.end) = (true, PeerEnd::Reset);
        self.carry_soon(peer);
    }

    pub(crate) fn carry_soon(&mut self, peer: Peer) {
        let wire = &self.wires[peer.0];
        if wire.twin.is_some() && (!wire.to_peer.is_empty() || wire.departed) {
            let at = self.soon(self.config.wire_delay_max);
            self.queue.push(at, Event::Carry(peer));
        }
    }

    fn soon(&mut self, most: Duration) -> Time {
        self.now + Duration::from_nanos(self.chance.below(most.as_nanos() as u64 + 1))
    }

    pub(crate) fn happen_dial(&mut self, shard: ShardId, dial: Dial) {
        let faults = self.config.lines;
        let reach = self.listeners.get(&dial.to).map_or(Reach::Refused, |listening| listening.reach);
        let reach = match reach {
            Reach::Open if self.chance.permille(faults.refused_permille) => Reach::Refused,
            Reach::Open if self.chance.permille(faults.unanswered_permille) => Reach::Silent,
            reach => reach,
        };
        match reach {
            Reach::Open if dial.until > self.now => self.connect_shards(shard, dial),
            Reach::Open | Reach::Silent => {
                let at = dial.until.max(self.now);
                self.queue.push(at, Event::DialFailed(shard, dial.id, TIMED_OUT));
            }
            Reach::Refused => self.queue.push(self.now, Event::DialFailed(shard, dial.id, REFUSED)),
        }
    }

    fn connect_shards(&mut self, shard: ShardId, dial: Dial) {
        let Listening { id, shards, .. } = &self.listeners[&dial.to];
        let (listener, first, count) = (*id, shards.start, shards.len() as u64);
        let near = Peer(self.wires.len());
        let far = Peer(near.0 + 1);
        for twin in [far, near] {
            let wire = Wire::new(self.config.window);
            self.wires.push(Wire { twin: Some(twin), via: Some(dial.to), ..wire });
        }
        let to = ShardId(first + self.chance.below(count) as u16);
        let local = address(near.0 + 1);
        let accepted = Accepted { listener, local: dial.to, peer: local, cpu: None };
        let at = self.soon(self.config.wire_delay_max);
        self.queue.push(at, Event::Arrive(to, far, None, accepted));
        let faults = self.config.lines;
        if self.chance.permille(faults.lost_permille) {
            let at = self.soon(faults.lost_after_max);
            let silent = self.chance.permille(faults.silent_permille);
            self.queue.push(at, Event::Lose(near, silent));
        }
        let link = self.take_home(shard, near);
        let dialled = Dialled { link, local, peer: dial.to };
        self.with(usize::from(shard.0), |end, cx| end.handle_dialled(cx, dial.id, Ok(dialled)));
    }

    pub(crate) fn happen_carry(&mut self, peer: Peer) {
        let wire = &self.wires[peer.0];
        let (Some(twin), Some(via)) = (wire.twin, wire.via) else { return };
        let silent = wire.silent || self.listeners.get(&via).is_some_and(|l| l.reach == Reach::Silent);
        if silent {
            return;
        }
        let is_gone = wire.departed && wire.home.is_none();
        if wire.reset || is_gone && wire.end == PeerEnd::Reset {
            if !self.wires[twin.0].reset {
                self.break_end(twin);
            }
            return;
        }
        let [wire, other] = self.wires.get_disjoint_mut([peer.0, twin.0]).expect("two wires");
        // Who has closed swallows what still comes.
        if other.departed {
            wire.to_peer.clear();
        }
        let now = wire.to_peer.len().min(other.window.saturating_sub(other.to_shard.len()));
        other.to_shard.extend(wire.to_peer.drain(..now));
        let ends = is_gone && wire.to_peer.is_empty() && !other.peer_done;
        other.peer_done |= ends;
        if now > 0 || ends {
            self.wake_receive(twin);
        }
        if now > 0 && self.wires[peer.0].send.is_some() {
            self.queue.push(self.now, Event::Transmit(peer));
        }
    }

    pub(crate) fn happen_lose(&mut self, peer: Peer, silent: bool) {
        let twin = self.wires[peer.0].twin.expect("only connections between shards get lost");
        if !silent {
            return self.reset(peer);
        }
        for end in [peer, twin] {
            self.wires[end.0].silent = true;
        }
    }
}
