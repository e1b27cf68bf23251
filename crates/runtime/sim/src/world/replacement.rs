//! Another process takes over: links come to rest, and then every endpoint is replaced by one with a pool of its own.

use buf::{Cx, Pool};
use endpoint::{Endpoint, LinkArrival, LinkId, ShardId};
use stream::Received;

use super::World;
use crate::connection::Peer;
use crate::schedule::SimEvent;

impl<E: Endpoint> World<E> {
    /// A link comes to rest: what is out on it comes back, a send with how much of it was written.
    pub(super) fn process_halt(&mut self, peer: Peer) {
        let Some((shard, link)) = self.net[peer].home else { return };
        if self.net[peer].departed {
            return;
        }
        if let Some(op) = self.net[peer].recv.take() {
            self.call_endpoint(shard, |end, cx| end.handle_recv(cx, link, op, Received::Cancelled));
        }
        if let Some((op, written)) = self.net[peer].send.take() {
            self.call_endpoint(shard, |end, cx| end.handle_send_cut(cx, link, op, written));
        }
    }

    /// Another process takes over. `make` makes each shard's endpoint, as with [`World::new`], and says which links of
    /// the one before it gets, each with the message by which it arrives. All other links are reset, and messages that
    /// are on their way are lost with who was to hear of them.
    ///
    /// # Panics
    /// If anything is out on a link that goes along, or on a disk.
    #[expect(clippy::panic, reason = "documented: the test has brought everything to rest")]
    pub fn replace_endpoints(
        &mut self,
        mut make: impl FnMut(ShardId, &mut Cx<'_>) -> (E, Vec<(LinkId, E::Message)>),
    ) {
        for event in self.schedule.take_all().into_iter().rev() {
            match event.what {
                SimEvent::Disk(..) | SimEvent::DiskRest(..) | SimEvent::DiskEnded(..) => {
                    panic!("an operation of a disk is out while its process is replaced")
                }
                SimEvent::Message(..) | SimEvent::DialFailed(..) | SimEvent::Dial(..) => {}
                SimEvent::Arrive(_, peer, Some(_), _) => self.net.drop_shard_end(&mut self.schedule, peer),
                SimEvent::Receive(_)
                | SimEvent::Transmit(_)
                | SimEvent::Release(_)
                | SimEvent::Halt(_)
                | SimEvent::Carry(_)
                | SimEvent::Lose(..)
                | SimEvent::Arrive(..) => self.schedule.reschedule(event),
            }
        }
        for id in (0..self.config.shards).map(ShardId) {
            let old = std::mem::take(&mut self.shards[id].links);
            let pool = Pool::new_poisoned(self.config.pool_bytes);
            let shard = &mut self.shards[id];
            let mut cx = Cx { now: self.schedule.now, pool: &pool, entropy: &mut shard.entropy };
            let (end, carried) = make(id, &mut cx);
            (shard.end, shard.pool, shard.late) = (end, pool, None);
            for (link, peer) in &old {
                if carried.iter().all(|(kept, _)| kept != link) {
                    self.net.drop_shard_end(&mut self.schedule, *peer);
                }
            }
            for (link, message) in carried {
                let Some(peer) = old.get(&link).copied() else { panic!("no link {link:?} of {id:?}") };
                let wire = &self.net[peer];
                let nothing = wire.recv.is_none() && wire.send.is_none() && wire.held.is_empty();
                assert!(nothing, "a link goes along with nothing out");
                let link = self.install_link(id, peer);
                self.call_endpoint(id, |end, cx| end.handle_arrival(cx, link, LinkArrival::Moved(message)));
            }
        }
        for id in (0..self.config.shards).map(ShardId) {
            self.call_endpoint(id, |_, _| ());
        }
    }
}
