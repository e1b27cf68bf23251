//! What makes one history unlike the next, and the world that it is played in: everything follows from
//! the seed.

use std::sync::Arc;
use std::time::Duration;

use backends::{File, FileDisk, FileFacts};
use blockwire_target::{Control, Message, Shard, VolumeSpec};
use endpoint::ShardId;
use sim::{Chance, Config, Disk, Faults, World};
use volume::{DiskId, Ram, RamDisk, Shared};

use crate::liar::Liar;
use crate::rig::{self, Terms};

/// Blocks of the volume.
pub const SPAN: usize = 48;
/// Blocks that it may grow to. Nobody keeps anything behind the first [`SPAN`].
pub const MOST: usize = SPAN + 16;
/// Where a file's blocks are.
pub const DISK: DiskId = DiskId(3);

/// A bug that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The shards do not share their guards: exclusive operations meet.
    GuardsApart,
    /// Fused pairs are carried out as two commands.
    PairsApart,
    /// Writes have ended, for whoever waits for them, before they reach the disk.
    FenceNotAwaited,
    /// A write's data lands in the place of another's.
    DataOfAnother,
    /// Write Zeroes, Dataset Management and UNMAP do nothing.
    NothingDeallocated,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub shards: u16,
    pub pool_bytes: usize,
    pub window: usize,
    pub loaned_permille: u32,
    pub scsi_hosts: usize,
    pub nvme_hosts: usize,
    pub connections: u16,
    pub queues: u16,
    pub entries: u16,
    pub flow_control: bool,
    pub digests: (bool, bool),
    pub r2ts: u32,
    /// A file over a disk with a cache, else memory.
    pub file: bool,
    pub direct_align: Option<u32>,
    pub faults: Faults,
    /// In thousandths of the steps.
    pub abort_permille: u32,
    pub lose_permille: u32,
    pub reset_permille: u32,
    pub unit_reset_permille: u32,
    pub steps: u32,
    /// The longest delay of a disk operation.
    pub disk_delay_max: Duration,
    /// Changes by the operator, in thousandths of the steps; hosts listen for events then.
    pub change_permille: u32,
    /// Keep alive timeout of the controllers.
    pub kato_ms: u32,
    pub bug: Option<Bug>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0x0ae);
        let calm = chance.permille(200);
        let file = chance.permille(600);
        let faulty = file && chance.permille(300);
        let trouble = |chance: &mut Chance, most| if calm { 0 } else { chance.below(most) as u32 };
        Plan {
            seed,
            shards: chance.between(1, 4) as u16,
            pool_bytes: *chance.pick(&[4 << 20, 6 << 20, 16 << 20]),
            window: *chance.pick(&[600, 16 << 10, 1 << 20]),
            loaned_permille: *chance.pick(&[0, 0, 500]),
            scsi_hosts: chance.between(1, 2) as usize,
            nvme_hosts: chance.between(1, 2) as usize,
            connections: chance.between(1, 2) as u16,
            queues: chance.between(1, 3) as u16,
            entries: chance.between(3, 32) as u16,
            flow_control: chance.permille(500),
            digests: (chance.permille(400), chance.permille(400)),
            r2ts: chance.between(1, 4) as u32,
            file,
            direct_align: *chance.pick(&[None, Some(512), Some(4096)]),
            faults: Faults {
                short_permille: if file { chance.below(300) as u32 } else { 0 },
                error_permille: if faulty { chance.below(40) as u32 } else { 0 },
                full_permille: if faulty { chance.below(40) as u32 } else { 0 },
                sync_permille: 0,
            },
            abort_permille: trouble(&mut chance, 100),
            lose_permille: trouble(&mut chance, 15),
            reset_permille: trouble(&mut chance, 20),
            unit_reset_permille: trouble(&mut chance, 15),
            steps: 80,
            disk_delay_max: Duration::from_micros(200),
            change_permille: 0,
            kato_ms: 0,
            bug: None,
        }
    }

    /// Whether the disk works.
    pub fn is_calm(&self) -> bool {
        self.faults.error_permille + self.faults.full_permille == 0
    }

    /// A world for the races of fences: a slow disk that works, and nothing else that goes wrong.
    pub fn slow(seed: u64) -> Self {
        let mut chance = Chance::new(seed ^ 0xfe4ce);
        Plan {
            shards: chance.between(2, 4) as u16,
            pool_bytes: 16 << 20,
            scsi_hosts: 2,
            nvme_hosts: 2,
            connections: 2,
            queues: 3,
            entries: 32,
            file: true,
            faults: Faults { short_permille: 100, ..Faults::default() },
            disk_delay_max: Duration::from_millis(5),
            ..Plan::of(seed)
        }
    }

    /// A world whose volume changes under load.
    pub fn changing(seed: u64) -> Self {
        Plan {
            pool_bytes: 16 << 20,
            file: false,
            faults: Faults::default(),
            change_permille: 150,
            kato_ms: 5_000,
            ..Plan::of(seed)
        }
    }

    fn specs(&self, ram: &Arc<RamDisk>) -> Vec<VolumeSpec> {
        let bug = self.bug;
        if !self.file {
            let (geometry, ram) = (ram.geometry(), ram.clone());
            return rig::volume(self.shards, geometry, &[], None, move |_| {
                Liar::new(Ram::new(ram.clone()), bug)
            });
        }
        let facts = FileFacts {
            bytes: (SPAN * 512) as u64,
            device: false,
            logical: 512,
            physical: None,
            preferred: 4096,
            direct: self.direct_align.is_some(),
            memory_align: 512,
            offset_align: self.direct_align.unwrap_or(0),
            punch: true,
            write_cache: true,
        };
        let file = Arc::new(FileDisk::new(DISK, &facts, self.shards).unwrap());
        let geometry = file.geometry();
        rig::volume(self.shards, geometry, &[DISK], None, move |shard| {
            Liar::new(File::new(file.clone(), shard), bug)
        })
    }

    /// `ram`: the disk, if it is no file.
    pub fn world(&self, ram: &Arc<RamDisk>) -> World<Shard> {
        let mut config = Config::new(self.seed);
        config.shards = self.shards;
        config.pool_bytes = self.pool_bytes;
        config.window = self.window;
        config.disk_delay_max = self.disk_delay_max;
        config.loaned_permille = self.loaned_permille;
        let mut terms = Terms::default();
        terms.negotiation.max_connections = 4;
        let (shards, exports) = (self.shards, rig::exports(&terms));
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        world.add_disk(DISK, Disk::new(self.faults));
        for (shard, mut spec) in (0..).zip(self.specs(ram)) {
            if self.bug == Some(Bug::GuardsApart) {
                spec.shared = Shared::new(shards);
            }
            world.tell(ShardId(shard), Message::Control(0, Control::AddVolume(Box::new(spec))));
        }
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.heard().len(), usize::from(shards));
        world
    }
}
