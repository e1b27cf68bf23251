//! Starts the operations of endpoints: they become events.

use std::collections::BTreeMap;

use endpoint::{Accepted, Departure, Dial, Driver, LinkId, ListenerId, ShardId};
use stream::{RecvOp, SendOp};
use volume::{DiskId, DiskOp};

use crate::config::Config;
use crate::disk::Disk;
use crate::net::{Peer, PeerEnd};
use crate::network::{Network, address};
use crate::schedule::{Event, Schedule};

/// Everything that the world starts for a shard during a pump.
pub(super) struct ShardDriver<'a, M> {
    pub(super) config: &'a Config,
    pub(super) shard: ShardId,
    pub(super) links: &'a mut BTreeMap<LinkId, Peer>,
    pub(super) net: &'a mut Network,
    pub(super) schedule: &'a mut Schedule<M>,
    pub(super) disks: &'a mut BTreeMap<DiskId, Disk>,
    pub(super) outside: &'a mut Vec<(ShardId, M)>,
}

impl<M> ShardDriver<'_, M> {
    #[expect(
        clippy::expect_used,
        reason = "an endpoint that names a link it does not have shall end its test"
    )]
    fn peer(&self, link: LinkId) -> Peer {
        *self.links.get(&link).expect("a link of this shard")
    }

    fn deliver(&mut self, to: ShardId, what: Event<M>) {
        self.schedule.deliver((self.shard, to), self.config.message_delay_max, what);
    }
}

impl<M> Driver<M> for ShardDriver<'_, M> {
    fn recv(&mut self, link: LinkId, op: RecvOp) {
        let peer = self.peer(link);
        let wire = &mut self.net[peer];
        assert!(wire.recv.is_none(), "one receive is out at a time");
        wire.recv = Some(op);
        self.schedule.push_soon(self.config.wire_delay_max, Event::Receive(peer));
    }

    fn send(&mut self, link: LinkId, op: SendOp) {
        let peer = self.peer(link);
        assert!(op.len > 0, "a batch is not empty");
        crate::filled::check_send(&op);
        let wire = &mut self.net[peer];
        assert!(wire.send.is_none(), "one send is out at a time");
        wire.send = Some((op, 0));
        self.schedule.push_soon(self.config.wire_delay_max, Event::Transmit(peer));
    }

    fn disk(&mut self, op: DiskOp) {
        crate::filled::check_disk(&op);
        let begun = self.disks.entry(op.disk).or_default().writes();
        self.schedule.push_soon(self.config.disk_delay_max, Event::Disk(self.shard, op, begun));
    }

    fn depart(&mut self, link: LinkId, how: Departure<M>) {
        let peer = self.peer(link);
        let wire = &mut self.net[peer];
        match how {
            Departure::Close | Departure::Abort => {
                let reset = matches!(how, Departure::Abort) || !wire.to_shard.is_empty();
                wire.departed = true;
                wire.end = if reset { PeerEnd::Reset } else { PeerEnd::Closed };
                self.schedule.push_now(Event::Release(peer));
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
        if to.0 < self.config.shards {
            self.deliver(to, Event::Message(to, message));
        } else {
            self.outside.push((to, message));
        }
    }

    fn dial(&mut self, dial: Dial) {
        let at = self.schedule.soon(self.config.dial_delay_max).min(dial.until.max(self.schedule.now));
        self.schedule.push(at, Event::Dial(self.shard, dial));
    }
}
