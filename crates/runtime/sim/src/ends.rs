//! How a world ends before its time: the daemon is killed, or the power fails.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use endpoint::Endpoint;
use volume::{DiskId, DiskKind};

use crate::disk::Disk;
use crate::world::{Happening, World};

impl<E: Endpoint> World<E> {
    /// The daemon is killed, and the power stays: its shards stop where they stand, every connection is reset, of
    /// the writes that are out each is done or not, and disks keep what is in their caches. Gives the disks, for
    /// the next world. What a call was told that nobody will hear of any more, the next that syncs is told.
    pub fn crash(mut self) -> BTreeMap<DiskId, Disk> {
        while let Some(Reverse(due)) = self.queue.heap.pop() {
            match due.what {
                Happening::Disk(_, mut op, begun)
                    if matches!(op.kind, DiskKind::Write { durable: false, .. }) =>
                {
                    let disk = self.disks.entry(op.disk).or_default();
                    if self.chance.permille(500) {
                        let _ = disk.run(&mut self.chance, &mut op, begun);
                    }
                }
                Happening::DiskEnded(_, op, came) => {
                    self.disks.entry(op.disk).or_default().unheard(&op, came);
                }
                _ => {}
            }
        }
        self.disks
    }

    /// The power fails: shards stop where they stand, every connection is reset, disks lose what was not
    /// synced. Gives the disks, for the next world.
    pub fn kill(mut self) -> BTreeMap<DiskId, Disk> {
        for (_, disk) in self.disks.iter_mut() {
            disk.lose_power(&mut self.chance);
        }
        self.disks
    }
}
