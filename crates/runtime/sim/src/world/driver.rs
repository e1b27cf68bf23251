//! Starts the operations of endpoints: they become events.

use std::collections::BTreeMap;

use endpoint::{AcceptedSocket, Dial, IoDriver, LinkDeparture, LinkId, ListenerId, ShardId};
use stream::{RecvOp, SendOp};
use volume::{DiskId, DiskOp};

use crate::config::Config;
use crate::connection::{Peer, PeerEnd};
use crate::disk::Disk;
use crate::network::{Network, peer_address};
use crate::schedule::{Schedule, SimEvent};

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

    fn schedule_delivery(&mut self, to: ShardId, what: SimEvent<M>) {
        self.schedule.push_in_order((self.shard, to), self.config.message_delay_max, what);
    }
}

impl<M> IoDriver<M> for ShardDriver<'_, M> {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        let peer = self.peer(link);
        let wire = &mut self.net[peer];
        assert!(wire.recv.is_none(), "one receive is out at a time");
        wire.recv = Some(op);
        self.schedule.push_within(self.config.wire_delay_max, SimEvent::Receive(peer));
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        let peer = self.peer(link);
        assert!(op.len > 0, "a batch is not empty");
        crate::unfilled_check::assert_send_filled(&op);
        let wire = &mut self.net[peer];
        assert!(wire.send.is_none(), "one send is out at a time");
        wire.send = Some((op, 0));
        self.schedule.push_within(self.config.wire_delay_max, SimEvent::Transmit(peer));
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        crate::unfilled_check::assert_disk_op_filled(&op);
        let begun = self.disks.entry(op.disk).or_default().write_count();
        self.schedule.push_within(self.config.disk_delay_max, SimEvent::Disk(self.shard, op, begun));
    }

    fn halt_link(&mut self, link: LinkId) {
        let peer = self.peer(link);
        self.schedule.push_within(self.config.wire_delay_max, SimEvent::Halt(peer));
    }

    fn remove_link(&mut self, link: LinkId, how: LinkDeparture<M>) {
        let peer = self.peer(link);
        let wire = &mut self.net[peer];
        match how {
            LinkDeparture::Close | LinkDeparture::Abort => {
                let reset = matches!(how, LinkDeparture::Abort) || !wire.to_shard.is_empty();
                wire.departed = true;
                wire.end = if reset { PeerEnd::Reset } else { PeerEnd::Closed };
                self.schedule.push_now(SimEvent::Release(peer));
            }
            LinkDeparture::Move { to, message } => {
                let nothing = wire.recv.is_none() && wire.send.is_none() && wire.held.is_empty();
                assert!(nothing, "a link moves with nothing out");
                self.links.remove(&link);
                wire.home = None;
                let accepted = AcceptedSocket {
                    listener: ListenerId(0),
                    local: peer_address(0),
                    peer: peer_address(peer.0),
                    cpu: None,
                };
                self.schedule_delivery(to, SimEvent::Arrive(to, peer, Some(message), accepted));
            }
        }
    }

    fn post_message(&mut self, to: ShardId, message: M) {
        if to.0 < self.config.shards {
            self.schedule_delivery(to, SimEvent::Message(to, message));
        } else {
            self.outside.push((to, message));
        }
    }

    fn start_dial(&mut self, dial: Dial) {
        let at = self
            .schedule
            .random_time_within(self.config.dial_delay_max)
            .min(dial.until.max(self.schedule.now));
        self.schedule.push(at, SimEvent::Dial(self.shard, dial));
    }
}
