//! How a world ends before its time: the daemon is killed, or the power fails.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use endpoint::Endpoint;
use volume::DiskId;

use crate::disk::Disk;
use crate::world::{Event, World};

impl<E: Endpoint> World<E> {
    /// The daemon is killed, and the power stays: its shards stop where they stand, every connection is reset, of
    /// what is out on disks each is done or not, and disks keep what is in their caches. Gives the disks, for
    /// the next world. What a call was told that nobody will hear of any more, the next that syncs is told.
    pub fn crash(mut self) -> BTreeMap<DiskId, Disk> {
        while let Some(Reverse(due)) = self.queue.heap.pop() {
            match due.what {
                Event::Disk(_, op, begun) => {
                    self.disks.entry(op.disk).or_default().run_unheard(&mut self.chance, op, begun);
                }
                Event::DiskEnded(_, op, came) => {
                    self.disks.entry(op.disk).or_default().unheard(&op, came);
                }
                _ => {}
            }
        }
        self.disks
    }

    /// The power fails: shards stop where they stand, every connection is reset, disks lose what was not
    /// synced, and of what is out each sector may be there. Gives the disks, for the next world.
    pub fn kill(mut self) -> BTreeMap<DiskId, Disk> {
        while let Some(Reverse(due)) = self.queue.heap.pop() {
            if let Event::Disk(_, op, begun) = due.what {
                self.disks.entry(op.disk).or_default().run_powerless(&mut self.chance, op, begun);
            }
        }
        for (_, disk) in self.disks.iter_mut() {
            disk.lose_power(&mut self.chance);
        }
        self.disks
    }
}
