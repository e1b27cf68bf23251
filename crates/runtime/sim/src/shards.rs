//! The shards of a world, and their faults: their threads stop, and their timers are late.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use buf::{Cx, Entropy, Pool, Time};
use endpoint::{Endpoint, LinkId, ShardId};

use crate::config::ShardFaults;
use crate::connection::Peer;
use crate::schedule::{Schedule, ScheduledEvent};

/// One endpoint and what is its own.
pub(crate) struct SimShard<E> {
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
    pub(crate) told: Time,
}

impl<E> SimShard<E> {
    pub(crate) fn new(
        pool: Pool,
        mut entropy: Entropy,
        now: Time,
        make: impl FnOnce(&mut Cx<'_>) -> E,
    ) -> Self {
        let end = make(&mut Cx { now, pool: &pool, entropy: &mut entropy });
        let (links, stands_until, told) = (BTreeMap::new(), Time(0), Time(0));
        SimShard { end, pool, entropy, links, next_link: 0, stands_until, late: None, told }
    }

    /// A new link for this wire.
    pub(crate) fn add_link(&mut self, peer: Peer) -> LinkId {
        let link = LinkId(self.next_link | (self.next_link << 32));
        self.next_link += 1;
        self.links.insert(link, peer);
        link
    }
}

pub(crate) struct Shards<E>(pub(crate) Vec<SimShard<E>>);

impl<E> Index<ShardId> for Shards<E> {
    type Output = SimShard<E>;
    #[expect(
        clippy::indexing_slicing,
        reason = "documented: a test, and an endpoint, name shards that there are"
    )]
    fn index(&self, id: ShardId) -> &SimShard<E> {
        &self.0[usize::from(id.0)]
    }
}

impl<E> IndexMut<ShardId> for Shards<E> {
    #[expect(
        clippy::indexing_slicing,
        reason = "documented: a test, and an endpoint, name shards that there are"
    )]
    fn index_mut(&mut self, id: ShardId) -> &mut SimShard<E> {
        &mut self.0[usize::from(id.0)]
    }
}

impl<E: Endpoint> Shards<E> {
    /// Which timer is heard next, and when.
    pub(crate) fn next_timer(
        &mut self,
        schedule: &mut Schedule<E::Message>,
        faults: &ShardFaults,
    ) -> Option<(Time, ShardId)> {
        let mut next: Option<(Time, ShardId)> = None;
        for (id, shard) in (0..).map(ShardId).zip(&mut self.0) {
            let Some(due) = shard.end.poll_timeout() else { continue };
            let heard = match shard.late {
                Some((of, heard)) if of == due => heard,
                _ => {
                    let heard = due + schedule.random_delay(faults.timer_late_max);
                    shard.late = Some((due, heard));
                    heard
                }
            };
            let heard = (heard.max(shard.stands_until), id);
            next = Some(next.map_or(heard, |next| next.min(heard)));
        }
        next
    }

    /// Puts off what happens on a shard that stands still; it keeps its turn.
    pub(crate) fn postpone(
        &mut self,
        schedule: &mut Schedule<E::Message>,
        faults: &ShardFaults,
        on: Option<ShardId>,
        due: ScheduledEvent<E::Message>,
    ) -> Option<ScheduledEvent<E::Message>> {
        let Some(shard) = on.map(|id| &mut self[id]) else { return Some(due) };
        let may_stand = faults.stand_permille > 0 && shard.stands_until <= schedule.now;
        if may_stand && schedule.chance.chance_permille(faults.stand_permille) {
            shard.stands_until = schedule.now + schedule.random_delay(faults.stand_max);
        }
        if shard.stands_until <= schedule.now {
            return Some(due);
        }
        schedule.reschedule(ScheduledEvent { at: (shard.stands_until, due.at.1), what: due.what });
        None
    }
}
