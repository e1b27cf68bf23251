//! Connections between shards: which dials are answered, and how.
//!
//! Invariant: a dial is answered exactly once, at the latest when its time is over.

use std::net::SocketAddr;

use buf::Errno;
use endpoint::{AcceptedSocket, Dial, Dialled, Endpoint, ShardId};

use super::World;
use crate::network::{Reachability, peer_address};
use crate::schedule::SimEvent;

/// ECONNREFUSED, as Linux numbers it.
const ECONNREFUSED: Errno = Errno(111);
/// ETIMEDOUT.
const ETIMEDOUT: Errno = Errno(110);

impl<E: Endpoint> World<E> {
    pub(super) fn process_dial(&mut self, shard: ShardId, dial: Dial) {
        let (faults, schedule) = (self.config.lines, &mut self.schedule);
        let reach = match self.net.reachability(dial.to) {
            Reachability::Open if schedule.chance.chance_permille(faults.refused_permille) => {
                Reachability::Refused
            }
            Reachability::Open if schedule.chance.chance_permille(faults.unanswered_permille) => {
                Reachability::Silent
            }
            reach => reach,
        };
        match reach {
            Reachability::Open if dial.until > schedule.now => self.connect_shards(shard, dial),
            Reachability::Open | Reachability::Silent => {
                let at = dial.until.max(schedule.now);
                schedule.push(at, SimEvent::DialFailed(shard, dial.id, ETIMEDOUT));
            }
            Reachability::Refused => schedule.push_now(SimEvent::DialFailed(shard, dial.id, ECONNREFUSED)),
        }
    }

    fn connect_shards(&mut self, shard: ShardId, dial: Dial) {
        let Some(listening) = self.net.listener_at(dial.to) else { return };
        let (listener, first, count) = (listening.id, listening.shards.start, listening.shards.len() as u64);
        let [near, far] = self.net.connect_pair(dial.to);
        let to = ShardId(first + self.schedule.chance.below(count) as u16);
        let local = peer_address(near.0 + 1);
        let local = dial.source.address.map_or(local, |address| SocketAddr::new(address, local.port()));
        let accepted = AcceptedSocket { listener, local: dial.to, peer: local, cpu: None };
        self.schedule.push_within(self.config.wire_delay_max, SimEvent::Arrive(to, far, None, accepted));
        let faults = self.config.lines;
        if self.schedule.chance.chance_permille(faults.lost_permille) {
            let at = self.schedule.random_time_within(faults.lost_after_max);
            let silent = self.schedule.chance.chance_permille(faults.silent_permille);
            self.schedule.push(at, SimEvent::Lose(near, silent));
        }
        let link = self.install_link(shard, near);
        let dialled = Dialled { link, local, peer: dial.to };
        self.call_endpoint(shard, |end, cx| end.handle_dialled(cx, dial.id, Ok(dialled)));
    }
}
