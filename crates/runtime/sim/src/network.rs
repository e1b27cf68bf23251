//! All connections and listeners.
//!
//! A connection between shards is two wires. Data that one shard sends goes to the peer of its own wire
//! first. From there it is carried to the other wire, in order, after a delay, and no faster than the other
//! shard reads.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::{Index, IndexMut, Range};
use std::time::Duration;

use endpoint::{AcceptedSocket, ListenerId, ShardId};

use crate::connection::{Peer, PeerEnd, SimConnection};
use crate::schedule::{Schedule, SimEvent};

/// What a dial to an address meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Somebody accepts.
    Open,
    /// A reset. What stands goes on.
    Refused,
    /// Nothing: no answer, and of the connections that stand nothing arrives until it is open again.
    Silent,
}

/// Somebody who listens.
#[derive(Debug)]
pub(crate) struct SimListener {
    pub(crate) id: ListenerId,
    pub(crate) shards: Range<u16>,
    reach: Reachability,
}

/// The connections of a world.
#[derive(Debug)]
pub(crate) struct Network {
    wires: Vec<SimConnection>,
    listeners: BTreeMap<SocketAddr, SimListener>,
    /// Where peers connect from, and the processor that takes in what they send.
    pub(crate) comers: Option<(IpAddr, u32)>,
    /// The longest delay of bytes.
    delay_max: Duration,
    /// Bytes that a peer's window takes before it reads.
    window: usize,
}

impl Index<Peer> for Network {
    type Output = SimConnection;
    #[expect(clippy::indexing_slicing, reason = "a peer is named when its wire is made, and wires stay")]
    fn index(&self, peer: Peer) -> &SimConnection {
        &self.wires[peer.0]
    }
}

impl IndexMut<Peer> for Network {
    #[expect(clippy::indexing_slicing, reason = "a peer is named when its wire is made, and wires stay")]
    fn index_mut(&mut self, peer: Peer) -> &mut SimConnection {
        &mut self.wires[peer.0]
    }
}

pub(crate) fn peer_address(number: usize) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1024 + (number % 60_000) as u16))
}

impl Network {
    pub(crate) fn new(delay_max: Duration, window: usize) -> Self {
        Network { wires: Vec::new(), listeners: BTreeMap::new(), comers: None, delay_max, window }
    }

    /// A new wire in the hands of the test, and how its socket is accepted.
    pub(crate) fn connect(&mut self, listener: ListenerId) -> (Peer, AcceptedSocket) {
        let peer = Peer(self.wires.len());
        self.wires.push(SimConnection::new(self.window));
        let mut accepted =
            AcceptedSocket { listener, local: peer_address(0), peer: peer_address(peer.0 + 1), cpu: None };
        if let Some((from, cpu)) = self.comers {
            accepted.peer.set_ip(from);
            accepted.cpu = Some(cpu);
        }
        (peer, accepted)
    }

    /// Two new wires, each the other's twin.
    pub(crate) fn connect_pair(&mut self, via: SocketAddr) -> [Peer; 2] {
        let near = Peer(self.wires.len());
        let far = Peer(near.0 + 1);
        for twin in [far, near] {
            let wire = SimConnection::new(self.window);
            self.wires.push(SimConnection { twin: Some(twin), via: Some(via), ..wire });
        }
        [near, far]
    }

    pub(crate) fn add_listener(&mut self, address: SocketAddr, id: ListenerId, shards: Range<u16>) {
        self.listeners.insert(address, SimListener { id, shards, reach: Reachability::Open });
    }

    /// Who listens at an address.
    pub(crate) fn listener_at(&self, address: SocketAddr) -> Option<&SimListener> {
        self.listeners.get(&address)
    }

    /// What a dial to an address meets.
    pub(crate) fn reachability(&self, address: SocketAddr) -> Reachability {
        self.listener_at(address).map_or(Reachability::Refused, |listening| listening.reach)
    }

    /// Changes it; true if somebody listens there.
    pub(crate) fn set_listener_reachability<M>(
        &mut self,
        schedule: &mut Schedule<M>,
        address: SocketAddr,
        reach: Reachability,
    ) -> bool {
        let Some(listening) = self.listeners.get_mut(&address) else { return false };
        listening.reach = reach;
        if reach == Reachability::Open {
            for peer in self.connection_ends_via(address) {
                self.schedule_transfer(schedule, peer);
            }
        }
        true
    }

    /// The connections that were made by dialling `address` and still stand, each by its dialler's end.
    pub(crate) fn connections_via(&self, address: SocketAddr) -> Vec<Peer> {
        let is_dialler = |peer: &Peer| self[*peer].twin.is_some_and(|twin| twin.0 > peer.0);
        self.connection_ends_via(address).into_iter().filter(is_dialler).collect()
    }

    fn connection_ends_via(&self, address: SocketAddr) -> Vec<Peer> {
        let is_of = |wire: &SimConnection| wire.via == Some(address) && wire.home.is_some();
        self.wires.iter().enumerate().filter(|(_, wire)| is_of(wire)).map(|(index, _)| Peer(index)).collect()
    }

    /// Sends bytes to a wire's shard.
    pub(crate) fn send<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer, bytes: &[u8]) {
        let wire = &mut self[peer];
        if !wire.departed && !wire.reset {
            wire.to_shard.extend(bytes);
            self.schedule_receive(schedule, peer);
        }
    }

    /// Takes all bytes that have reached a peer.
    pub(crate) fn receive<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer) -> Vec<u8> {
        let wire = &mut self[peer];
        let bytes = Vec::from(std::mem::take(&mut wire.to_peer));
        // Room in the window lets a write go on that waited for it.
        if !bytes.is_empty() && wire.send.is_some() {
            schedule.push_now(SimEvent::Transmit(peer));
        }
        bytes
    }

    pub(crate) fn schedule_receive<M>(&self, schedule: &mut Schedule<M>, peer: Peer) {
        schedule.push_within(self.delay_max, SimEvent::Receive(peer));
    }

    pub(crate) fn schedule_transfer<M>(&self, schedule: &mut Schedule<M>, peer: Peer) {
        let wire = &self[peer];
        if wire.twin.is_some() && (!wire.to_peer.is_empty() || wire.departed) {
            schedule.push_within(self.delay_max, SimEvent::Carry(peer));
        }
    }

    /// Breaks a connection; where its other end is a shard's as well, for both.
    pub(crate) fn reset<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer) {
        self.reset_end(schedule, peer);
        if let Some(twin) = self[peer].twin {
            self.reset_end(schedule, twin);
        }
    }

    fn reset_end<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer) {
        self[peer].reset = true;
        self[peer].end = PeerEnd::Reset;
        self.schedule_receive(schedule, peer);
        schedule.push_now(SimEvent::Transmit(peer));
    }

    /// The shard's end of a wire is gone without a word of the shard.
    pub(crate) fn drop_shard_end<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer) {
        let wire = &mut self[peer];
        (wire.home, wire.recv, wire.send) = (None, None, None);
        wire.held.clear();
        (wire.departed, wire.end) = (true, PeerEnd::Reset);
        self.schedule_transfer(schedule, peer);
    }

    /// A connection between shards is lost, in silence or not.
    pub(crate) fn lose_connection<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer, silent: bool) {
        if !silent {
            return self.reset(schedule, peer);
        }
        self[peer].silent = true;
        if let Some(twin) = self[peer].twin {
            self[twin].silent = true;
        }
    }

    /// Bytes, and the end, cross from a wire to its twin.
    pub(crate) fn transfer_to_twin<M>(&mut self, schedule: &mut Schedule<M>, peer: Peer) {
        let wire = &self[peer];
        let (Some(twin), Some(via)) = (wire.twin, wire.via) else { return };
        let is_cut = self.listener_at(via).is_some_and(|listening| listening.reach == Reachability::Silent);
        if wire.silent || is_cut {
            return;
        }
        let is_gone = wire.departed && wire.home.is_none();
        if wire.reset || is_gone && wire.end == PeerEnd::Reset {
            if !self[twin].reset {
                self.reset_end(schedule, twin);
            }
            return;
        }
        let Ok([wire, other]) = self.wires.get_disjoint_mut([peer.0, twin.0]) else { return };
        // Who has closed swallows what still comes.
        if other.departed {
            wire.to_peer.clear();
        }
        let now = wire.to_peer.len().min(other.window.saturating_sub(other.to_shard.len()));
        other.to_shard.extend(wire.to_peer.drain(..now));
        let ends = is_gone && wire.to_peer.is_empty() && !other.peer_done;
        other.peer_done |= ends;
        if now > 0 || ends {
            self.schedule_receive(schedule, twin);
        }
        if now > 0 && self[peer].send.is_some() {
            schedule.push_now(SimEvent::Transmit(peer));
        }
    }

    /// Whose shard hears of an event. What the system does by itself is nobody's.
    pub(crate) fn event_shard<M>(&self, what: &SimEvent<M>) -> Option<ShardId> {
        match what {
            SimEvent::Receive(peer)
            | SimEvent::Transmit(peer)
            | SimEvent::Release(peer)
            | SimEvent::Halt(peer) => self[*peer].home.map(|(shard, _)| shard),
            SimEvent::DiskEnded(shard, ..)
            | SimEvent::Message(shard, _)
            | SimEvent::Arrive(shard, ..)
            | SimEvent::Dial(shard, _)
            | SimEvent::DialFailed(shard, ..) => Some(*shard),
            SimEvent::Disk(..) | SimEvent::DiskRest(..) | SimEvent::Carry(_) | SimEvent::Lose(..) => None,
        }
    }
}
