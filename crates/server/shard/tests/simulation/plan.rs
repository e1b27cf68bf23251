//! The parameters of a history, and its world: everything follows from the seed.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::Shard;
use sim::{Config, Disk, DiskFaults, ShardFaults, SimRng, World};
use volume::{DiskId, RamBackend, RamDisk};

use crate::model::{COPIED, Value, fill};
use testkit::target::{self, TargetLimits};
use testkit::{Defect, FaultyBackend};

/// Blocks of the volume.
pub const SPAN: usize = 64;
/// Behind them, where there are copies: pages of as many blocks that nobody writes, each of contents of its own.
pub const PAGES: usize = 16;
/// Where a file's blocks are.
pub const DISK: DiskId = DiskId(3);

/// What makes one history unlike the next.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub shards: u16,
    pub pool_bytes: usize,
    pub window: usize,
    pub loaned_permille: u32,
    pub hosts: usize,
    pub connections: u16,
    /// A file over a disk with a cache, else memory.
    pub file: bool,
    pub write_cache: bool,
    pub direct_align: Option<u32>,
    pub faults: DiskFaults,
    /// In every other history.
    pub shard_faults: ShardFaults,
    /// In thousandths of the steps.
    pub kill_permille: u32,
    pub reinstate_permille: u32,
    pub abort_permille: u32,
    pub reset_permille: u32,
    pub digests: bool,
    pub unsolicited: bool,
    /// Bytes of a first burst and of any, and R2Ts of a task at a time, if they are to be few.
    pub bursts: Option<(u32, u32, u32)>,
    pub power_loss: bool,
    /// Whether the daemon is killed and started again before.
    pub crash: bool,
    /// The longest time that a shard does not hear what a disk has done.
    pub tell_delay_max: Duration,
    /// Whether hosts copy from the pages; of some histories, so that the others stay what they were.
    pub copies: bool,
    pub steps: u32,
    /// A bug that is planted in the backend.
    pub defect: Option<Defect>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut chance = SimRng::new(seed ^ 0x5eed);
        let calm = chance.chance_permille(200);
        let file = chance.chance_permille(700);
        let faulty = file && chance.chance_permille(400);
        let trouble = |chance: &mut SimRng, most| if calm { 0 } else { chance.below(most) as u32 };
        // Of its own, so that the rest of a history stays what it was.
        let mut unsafe_disk = SimRng::new(seed ^ 0xd15c);
        let loses = file && unsafe_disk.chance_permille(200);
        let mut hitches = SimRng::new(seed ^ 0x4177);
        Plan {
            seed,
            shards: chance.between(1, 3) as u16,
            // The smallest leaves memory for a few commands only.
            pool_bytes: *chance.pick(&[1 << 20, 2 << 20, 16 << 20]),
            window: *chance.pick(&[600, 16 << 10, 1 << 20]),
            loaned_permille: *chance.pick(&[0, 0, 500]),
            hosts: chance.between(1, 3) as usize,
            connections: chance.between(1, 4) as u16,
            file,
            write_cache: chance.chance_permille(700),
            direct_align: *chance.pick(&[None, Some(512), Some(4096)]),
            faults: DiskFaults {
                short_permille: if file { chance.below(300) as u32 } else { 0 },
                error_permille: if faulty { chance.below(40) as u32 } else { 0 },
                full_permille: if faulty { chance.below(40) as u32 } else { 0 },
                sync_permille: if faulty && chance.chance_permille(300) { 200 } else { 0 },
                lost_permille: if loses { unsafe_disk.between(1, 10) as u32 } else { 0 },
                torn_permille: if file { hitches.below(300) as u32 } else { 0 },
                no_holes: file && hitches.chance_permille(200),
            },
            shard_faults: ShardFaults::random(&mut hitches),
            kill_permille: trouble(&mut chance, 25),
            reinstate_permille: trouble(&mut chance, 15),
            abort_permille: trouble(&mut chance, 60),
            reset_permille: trouble(&mut chance, 20),
            digests: chance.chance_permille(300),
            unsolicited: chance.chance_permille(600),
            bursts: None,
            power_loss: file && chance.chance_permille(600),
            crash: file && unsafe_disk.chance_permille(500),
            tell_delay_max: Duration::from_micros(if unsafe_disk.chance_permille(500) { 300 } else { 0 }),
            copies: file && seed % 3 == 1,
            steps: 100,
            defect: None,
        }
    }

    /// The same; for every other seed with short bursts, so that data is asked for many times for one
    /// command.
    #[must_use]
    pub fn in_pieces(self) -> Self {
        let mut chance = SimRng::new(self.seed ^ 0x9ece5);
        if chance.chance_permille(500) {
            return self;
        }
        let (first, all) = *chance.pick(&[(512, 512), (512, 2048), (1024, 8192), (4096, 4096)]);
        Plan { bursts: Some((first, all, chance.between(1, 4) as u32)), ..self }
    }

    /// The same with a bug; one of what must be stable, on a disk that loses something.
    #[must_use]
    pub fn with(self, defect: Defect) -> Self {
        let plan = Plan { defect: Some(defect), ..self };
        // Short, so that what is lost is not written over.
        let on_a_disk =
            Plan { file: true, write_cache: true, power_loss: true, crash: false, steps: 30, ..plan.clone() };
        let losing = DiskFaults { short_permille: 100, lost_permille: 60, ..DiskFaults::default() };
        match defect {
            Defect::BeginsClean => Plan { crash: true, ..on_a_disk },
            Defect::ErrorEaten => Plan { faults: losing, ..on_a_disk },
            Defect::StableErrorEaten => Plan { direct_align: Some(512), faults: losing, ..on_a_disk },
            Defect::DisksApart => Plan { shards: 3, ..on_a_disk },
            _ => plan,
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::new(self.seed);
        config.shards = self.shards;
        config.pool_bytes = self.pool_bytes;
        config.window = self.window;
        config.loaned_permille = self.loaned_permille;
        config.disk_tell_delay_max = self.tell_delay_max;
        config
    }

    fn blocks(&self) -> usize {
        if self.copies { SPAN * (1 + PAGES) } else { SPAN }
    }

    /// A disk on which nothing is but the pages.
    fn disk(&self) -> Disk {
        let mut disk = Disk::new(self.faults);
        for block in SPAN..self.blocks() {
            let (page, lba) = (block / SPAN - 1, block % SPAN);
            disk.write((block * 512) as u64, &fill(lba, COPIED | page as Value));
        }
        disk.sync_all();
        disk
    }

    pub fn world(&self, disk: Option<Disk>, round: u64) -> World<Shard> {
        let mut config = self.config();
        config.seed = config.seed.wrapping_add(round << 32);
        let shards = self.shards;
        let mut terms = TargetLimits::default();
        terms.negotiation.max_connections = 4;
        let exports = target::build_exports(&terms);
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        world.add_disk(DISK, disk.unwrap_or_else(|| self.disk()));
        let specs = if self.file {
            let facts = FileFacts {
                direct: self.direct_align.is_some(),
                offset_align: self.direct_align.unwrap_or(0),
                write_cache: self.write_cache,
                ..FileFacts::new((self.blocks() * 512) as u64)
            };
            let file = Arc::new(FileDisk::new(DISK, &facts, shards).unwrap());
            let geometry = file.geometry();
            let (defect, written) = (self.defect, Arc::default());
            target::volume_specs(shards, geometry, &[DISK], None, move |shard| {
                let file = match defect {
                    Some(Defect::DisksApart) => Arc::new(FileDisk::new(DISK, &facts, shards).unwrap()),
                    _ => file.clone(),
                };
                FaultyBackend::with_shared_state(FileBackend::new(file, shard), defect, Arc::clone(&written))
            })
        } else {
            let ram = Arc::new(RamDisk::new(SPAN as u64, SPAN as u64, 512, 4096));
            let geometry = ram.geometry();
            let defect = self.defect;
            target::volume_specs(shards, geometry, &[], None, move |_| {
                FaultyBackend::new(RamBackend::new(ram.clone()), defect)
            })
        };
        target::serve_volume(&mut world, specs);
        world.set_shard_faults(self.shard_faults);
        world
    }
}
