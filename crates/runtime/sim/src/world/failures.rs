//! Early ends of a world, or of a process in it: it is killed, or the power fails.

use std::collections::BTreeMap;
use std::ops::Range;

use buf::{Cx, Pool};
use endpoint::{Endpoint, ShardId};
use volume::DiskId;

use super::World;
use crate::disk::{CrashBounds, Disk, combine_crash_states};
use crate::rng::SimRng;
use crate::schedule::{ScheduledEvent, SimEvent};

impl<E: Endpoint> World<E> {
    /// The process that these shards are is killed and started again: its connections are reset, what it
    /// had begun with disks happens or does not, messages to it are lost. Disks keep what they were
    /// given; for a loss of power see [`Disk::lose_power`].
    pub fn restart_shards(&mut self, shards: Range<u16>, mut make: impl FnMut(ShardId, &mut Cx<'_>) -> E) {
        let is_of = |shard: ShardId| shards.contains(&shard.0);
        for due in self.schedule.take_all() {
            match due.what {
                SimEvent::Disk(shard, op, begun) if is_of(shard) => {
                    self.disks.entry(op.disk).or_default().run_for_dead_caller(
                        &mut self.schedule.chance,
                        op,
                        begun,
                    );
                }
                SimEvent::DiskEnded(shard, op, came) if is_of(shard) => {
                    self.disks.entry(op.disk).or_default().note_unreported_failure(&op, came);
                }
                SimEvent::Message(to, _) if is_of(to) => {}
                SimEvent::Dial(shard, _) | SimEvent::DialFailed(shard, ..) if is_of(shard) => {}
                SimEvent::Arrive(to, peer, ..) if is_of(to) => {
                    self.net.drop_shard_end(&mut self.schedule, peer)
                }
                what => self.schedule.reschedule(ScheduledEvent { what, ..due }),
            }
        }
        for id in shards.clone().map(ShardId) {
            let shard = &mut self.shards[id];
            for (_, peer) in std::mem::take(&mut shard.links) {
                self.net.drop_shard_end(&mut self.schedule, peer);
            }
            let pool = Pool::new_poisoned(self.config.pool_bytes);
            let mut cx = Cx { now: self.schedule.now, pool: &pool, entropy: &mut shard.entropy };
            shard.end = make(id, &mut cx);
            shard.pool = pool;
        }
    }

    /// The daemon is killed, and the power stays: its shards stop where they stand, every connection is reset, of
    /// what is out on disks each is done or not, and disks keep what is in their caches. Gives the disks, for
    /// the next world. What a call was told that nobody will hear of any more, the next that syncs is told.
    pub fn kill_daemon(mut self) -> BTreeMap<DiskId, Disk> {
        while let Some(due) = self.schedule.pop() {
            match due.what {
                SimEvent::Disk(_, op, begun) => {
                    self.disks.entry(op.disk).or_default().run_for_dead_caller(
                        &mut self.schedule.chance,
                        op,
                        begun,
                    );
                }
                SimEvent::DiskEnded(_, op, came) => {
                    self.disks.entry(op.disk).or_default().note_unreported_failure(&op, came);
                }
                _ => {}
            }
        }
        self.disks
    }

    /// What a failure of the power at this moment may leave on the disks, within bounds; the world goes on. What is
    /// out and writes may be there, in part, in whole or not at all. `chance`: apart from the world's, which stays as
    /// it is.
    pub fn crash_states(&self, bounds: CrashBounds, chance: &mut SimRng) -> Vec<BTreeMap<DiskId, Disk>> {
        let mut disks = self.disks.clone();
        for op in self.schedule.disk_ops() {
            disks.entry(op.disk).or_default().cache_in_flight(op);
        }
        combine_crash_states(&disks, bounds, chance)
    }

    /// The power fails: shards stop where they stand, every connection is reset, disks lose what was not
    /// synced, and of what is out each sector may be there. Gives the disks, for the next world.
    pub fn lose_power(mut self) -> BTreeMap<DiskId, Disk> {
        while let Some(due) = self.schedule.pop() {
            if let SimEvent::Disk(_, op, begun) = due.what {
                self.disks.entry(op.disk).or_default().run_at_power_loss(
                    &mut self.schedule.chance,
                    op,
                    begun,
                );
            }
        }
        for (_, disk) in self.disks.iter_mut() {
            disk.lose_power(&mut self.schedule.chance);
        }
        self.disks
    }
}
