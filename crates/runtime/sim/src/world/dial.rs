//! Connections between shards: which dials are answered, and how.
//!
//! Invariant: a dial is answered exactly once, at the latest when its time is over.

use buf::Errno;
use endpoint::{Accepted, Dial, Dialled, Endpoint, ShardId};

use super::World;
use crate::network::{Reach, address};
use crate::schedule::Event;

/// ECONNREFUSED, as Linux numbers it.
const REFUSED: Errno = Errno(111);
/// ETIMEDOUT.
const TIMED_OUT: Errno = Errno(110);

impl<E: Endpoint> World<E> {
    pub(super) fn happen_dial(&mut self, shard: ShardId, dial: Dial) {
        let (faults, schedule) = (self.config.lines, &mut self.schedule);
        let reach = match self.net.reach(dial.to) {
            Reach::Open if schedule.chance.permille(faults.refused_permille) => Reach::Refused,
            Reach::Open if schedule.chance.permille(faults.unanswered_permille) => Reach::Silent,
            reach => reach,
        };
        match reach {
            Reach::Open if dial.until > schedule.now => self.connect_shards(shard, dial),
            Reach::Open | Reach::Silent => {
                let at = dial.until.max(schedule.now);
                schedule.push(at, Event::DialFailed(shard, dial.id, TIMED_OUT));
            }
            Reach::Refused => schedule.push_now(Event::DialFailed(shard, dial.id, REFUSED)),
        }
    }

    fn connect_shards(&mut self, shard: ShardId, dial: Dial) {
        let Some(listening) = self.net.listening(dial.to) else { return };
        let (listener, first, count) = (listening.id, listening.shards.start, listening.shards.len() as u64);
        let [near, far] = self.net.connect_pair(dial.to);
        let to = ShardId(first + self.schedule.chance.below(count) as u16);
        let local = address(near.0 + 1);
        let accepted = Accepted { listener, local: dial.to, peer: local, cpu: None };
        self.schedule.push_soon(self.config.wire_delay_max, Event::Arrive(to, far, None, accepted));
        let faults = self.config.lines;
        if self.schedule.chance.permille(faults.lost_permille) {
            let at = self.schedule.soon(faults.lost_after_max);
            let silent = self.schedule.chance.permille(faults.silent_permille);
            self.schedule.push(at, Event::Lose(near, silent));
        }
        let link = self.take_home(shard, near);
        let dialled = Dialled { link, local, peer: dial.to };
        self.with(shard, |end, cx| end.handle_dialled(cx, dial.id, Ok(dialled)));
    }
}
