//! The parameters of a history, and its world: everything follows from the seed.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::{
    ControlRequest, Exports, H2cDataLimits, LunExport, Message, NamespaceExport, Shard, TargetSnapshot,
    VolumeSpec,
};
use endpoint::ShardId;
use sim::{Config, Disk, DiskFaults, ShardFaults, SimRng, World};
use volume::{DiskId, RamBackend, RamDisk, SharedGateState, VolumeId, VolumeOwner};

use testkit::target::{self, TargetLimits};
use testkit::{Defect, FaultyBackend};

/// Blocks of the volume.
pub const SPAN: usize = 48;
/// Blocks that it may grow to. Nobody keeps anything behind the first [`SPAN`].
pub const MOST: usize = SPAN + 16;
/// Blocks behind the first [`SPAN`] that nobody writes, and that are copied from.
pub const PATTERNS: usize = 16;

/// Where a file's blocks are.
pub fn disk(volume: usize) -> DiskId {
    DiskId(3 + volume as u32)
}

/// A bug that is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The shards do not share their guards: exclusive operations meet.
    GuardsApart,
    /// Fused pairs are carried out as two commands.
    PairsApart,
    /// Writes have ended, for who waits for them, before they reach the disk.
    FenceNotAwaited,
    /// A write's data lands in the place of another's.
    DataOfAnother,
    /// Write Zeroes, Dataset Management and UNMAP do nothing.
    NothingDeallocated,
    /// A flush is answered, and nothing is synced.
    FlushUnsynced,
    /// FUA is forgotten.
    FuaForgotten,
    /// A volume's record is told to be durable before it is: its file was renamed, and the directory not synced.
    RecordEarly,
    /// A volume's record is written over the old one.
    RecordInPlace,
}

impl Bug {
    /// What is wrong with the backend, if it is the backend's.
    fn defect(self) -> Option<Defect> {
        match self {
            Bug::FenceNotAwaited => Some(Defect::EarlyWrite),
            Bug::DataOfAnother => Some(Defect::DataOfAnother),
            Bug::NothingDeallocated => Some(Defect::NothingDeallocated),
            Bug::FlushUnsynced => Some(Defect::EarlyFlush),
            Bug::FuaForgotten => Some(Defect::NoFua),
            Bug::GuardsApart | Bug::PairsApart | Bug::RecordEarly | Bug::RecordInPlace => None,
        }
    }
}

/// How data of writes is cut on its way.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    /// What NVMe hosts are asked to keep to.
    pub data: H2cDataLimits,
    /// What they put in a capsule at most, in bytes, though they may put more.
    pub in_capsule: u32,
    /// What they ask the controller to keep to.
    pub hpda: u8,
    /// Bytes that come to iSCSI unasked, and that one R2T asks for, at most.
    pub bursts: (u32, u32),
    /// Whether iSCSI has Data-Out unasked; whether data rides on its commands.
    pub unasked: (bool, bool),
    /// R2Ts of an iSCSI task at a time.
    pub outstanding: u32,
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
    pub faults: DiskFaults,
    /// In every other history.
    pub shard_faults: ShardFaults,
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
    /// Bytes of a block.
    pub block: usize,
    /// Bytes of a disk's sectors, which are written whole or not at all; `None`: of a block.
    pub sector: Option<usize>,
    /// Of the moments at which something has changed so many, in thousandths, are crash points.
    pub crash_permille: u32,
    pub volumes: usize,
    /// Commands beyond the plainest, and what they need.
    pub wide: bool,
    /// Whether the power fails amid the history.
    pub power_loss: bool,
    /// Bits that turn over on the wires of NVMe, in thousandths of the batches.
    pub noise_permille: u32,
    /// Data of writes goes in small pieces; else in as few as can be.
    pub pieces: Option<Pieces>,
    /// Of the steps so many, in thousandths, are followed by a replacement of the process.
    pub replace_permille: u32,
    pub bug: Option<Bug>,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut chance = SimRng::new(seed ^ 0x0ae);
        let calm = chance.chance_permille(200);
        let file = chance.chance_permille(600);
        let faulty = file && chance.chance_permille(300);
        // Of its own, so that the rest of a history stays what it was.
        let mut hitches = SimRng::new(seed ^ 0x4177);
        let trouble = |chance: &mut SimRng, most| if calm { 0 } else { chance.below(most) as u32 };
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
            flow_control: chance.chance_permille(500),
            digests: (chance.chance_permille(400), chance.chance_permille(400)),
            r2ts: chance.between(1, 4) as u32,
            file,
            direct_align: *chance.pick(&[None, Some(512), Some(4096)]),
            faults: DiskFaults {
                short_permille: if file { chance.below(300) as u32 } else { 0 },
                error_permille: if faulty { chance.below(40) as u32 } else { 0 },
                full_permille: if faulty { chance.below(40) as u32 } else { 0 },
                sync_permille: 0,
                lost_permille: 0,
                torn_permille: if file { hitches.below(300) as u32 } else { 0 },
                no_holes: file && hitches.chance_permille(200),
            },
            shard_faults: ShardFaults::random(&mut hitches),
            abort_permille: trouble(&mut chance, 100),
            lose_permille: trouble(&mut chance, 15),
            reset_permille: trouble(&mut chance, 20),
            unit_reset_permille: trouble(&mut chance, 15),
            steps: 80,
            disk_delay_max: Duration::from_micros(200),
            change_permille: 0,
            kato_ms: 0,
            block: 512,
            sector: None,
            crash_permille: 0,
            volumes: 1,
            wide: false,
            power_loss: false,
            noise_permille: 0,
            pieces: None,
            replace_permille: 0,
            bug: None,
        }
    }

    /// The same with blocks of either size, several volumes, commands that make, copy and verify more,
    /// failures of the power, and noise on the wires.
    pub fn wide(seed: u64) -> Self {
        let plan = Plan::of(seed);
        let mut chance = SimRng::new(seed ^ 0x31de);
        // Of its own, so that the rest of a history stays what it was.
        let loses = plan.file && SimRng::new(seed ^ 0x105e).chance_permille(200);
        let noise_permille = if chance.chance_permille(300) { chance.between(2, 20) as u32 } else { 0 };
        Plan {
            block: *chance.pick(&[512, 4096]),
            volumes: chance.between(1, 2) as usize,
            wide: true,
            power_loss: plan.file && chance.chance_permille(700),
            faults: DiskFaults { lost_permille: if loses { 4 } else { 0 }, ..plan.faults },
            noise_permille,
            // Without digests noise is what is read.
            digests: if noise_permille > 0 { (true, true) } else { plan.digests },
            ..plan
        }
    }

    /// The same on disks that work and tear blocks at 512 bytes, for crash points: nothing fails but the power, and
    /// that at any moment.
    pub fn crashing(seed: u64, crash_permille: u32) -> Self {
        let plan = Plan::wide(seed);
        Plan {
            file: true,
            sector: Some(512),
            crash_permille,
            power_loss: false,
            noise_permille: 0,
            steps: 24,
            // A write that is short ends at a block, as those of devices do.
            faults: DiskFaults {
                short_permille: if plan.block == 512 { plan.faults.short_permille } else { 0 },
                no_holes: plan.faults.no_holes,
                ..DiskFaults::default()
            },
            abort_permille: 50,
            lose_permille: 0,
            reset_permille: 0,
            unit_reset_permille: 0,
            ..plan.in_pieces()
        }
    }

    /// A daemon that is started on what one of those has left, and one host of either protocol.
    #[must_use]
    pub fn restarted(&self, scsi: bool) -> Self {
        Plan {
            shards: 1,
            pool_bytes: 16 << 20,
            window: 1 << 20,
            loaned_permille: 0,
            scsi_hosts: usize::from(scsi),
            nvme_hosts: usize::from(!scsi),
            connections: 1,
            queues: 1,
            entries: 32,
            shard_faults: ShardFaults::default(),
            crash_permille: 0,
            pieces: None,
            bug: None,
            ..self.clone()
        }
    }

    /// The same; for every other seed with data of writes in small pieces, so that most of it is asked for,
    /// many a time for one command, and mostly on blocks of 4096 bytes.
    #[must_use]
    pub fn in_pieces(self) -> Self {
        let mut chance = SimRng::new(self.seed ^ 0x9ece5);
        if chance.chance_permille(500) {
            return self;
        }
        let pages = |chance: &mut SimRng, most| chance.between(1, most) as u32 * 4096;
        let pieces = Pieces {
            data: H2cDataLimits {
                cpda: *chance.pick(&[0, 0, 3, 31]),
                pdu_max: pages(&mut chance, 2),
                r2t_max: pages(&mut chance, 4),
            },
            in_capsule: *chance.pick(&[0, 512, 4096]),
            hpda: *chance.pick(&[0, 0, 3, 31]),
            bursts: *chance.pick(&[(512, 512), (512, 2048), (4096, 4096), (4096, 8192)]),
            unasked: (chance.chance_permille(500), chance.chance_permille(500)),
            outstanding: chance.between(1, 4) as u32,
        };
        let block = if self.wide { self.block } else { *chance.pick(&[512, 4096, 4096]) };
        Plan { pieces: Some(pieces), block, ..self }
    }

    /// The same on one or two volumes of blocks of either size.
    #[must_use]
    fn on_any_blocks(self) -> Self {
        let mut chance = SimRng::new(self.seed ^ 0xb10c5);
        Plan { block: *chance.pick(&[512, 4096]), volumes: chance.between(1, 2) as usize, ..self }
    }

    /// Whether the disk works.
    pub fn is_calm(&self) -> bool {
        self.faults.error_permille + self.faults.full_permille + self.faults.lost_permille == 0
    }

    /// A world for the races of fences: a slow disk that works, and nothing else that goes wrong.
    pub fn slow(seed: u64) -> Self {
        let mut chance = SimRng::new(seed ^ 0xfe4ce);
        Plan {
            shards: chance.between(2, 4) as u16,
            pool_bytes: 16 << 20,
            scsi_hosts: 2,
            nvme_hosts: 2,
            connections: 2,
            queues: 3,
            entries: 32,
            file: true,
            faults: DiskFaults { short_permille: 100, ..DiskFaults::default() },
            disk_delay_max: Duration::from_millis(5),
            ..Plan::of(seed)
        }
        .in_pieces()
        .on_any_blocks()
    }

    /// A world with a volume that changes under load.
    pub fn changing(seed: u64) -> Self {
        Plan {
            pool_bytes: 16 << 20,
            file: false,
            faults: DiskFaults::default(),
            change_permille: 150,
            kato_ms: 5_000,
            ..Plan::of(seed)
        }
        .in_pieces()
        .on_any_blocks()
    }

    /// Blocks of a volume at its start.
    fn blocks(&self) -> usize {
        SPAN + if self.wide { PATTERNS } else { 0 }
    }

    /// The disks of all volumes, if they are no files.
    pub fn rams(&self) -> Vec<Arc<RamDisk>> {
        let ram = || RamDisk::new(self.blocks() as u64, MOST as u64, self.block as u32, 4096);
        (0..self.volumes).map(|_| Arc::new(ram())).collect()
    }

    fn specs(&self, volume: usize, ram: &Arc<RamDisk>, saved: Option<&[u8]>) -> Vec<VolumeSpec> {
        let defect = self.bug.and_then(Bug::defect);
        let id = VolumeId(volume as u64);
        if !self.file {
            let (geometry, ram) = (ram.geometry(), ram.clone());
            return target::numbered_volume_specs(id, self.shards, geometry, &[], saved, move |_| {
                FaultyBackend::new(RamBackend::new(ram.clone()), defect)
            });
        }
        let facts = FileFacts {
            logical: self.block as u32,
            direct: self.direct_align.is_some(),
            offset_align: self.direct_align.unwrap_or(0),
            ..FileFacts::new((self.blocks() * self.block) as u64)
        };
        let file = Arc::new(FileDisk::new(disk(volume), &facts, self.shards).unwrap());
        let geometry = file.geometry();
        target::numbered_volume_specs(id, self.shards, geometry, &[disk(volume)], saved, move |shard| {
            FaultyBackend::new(FileBackend::new(file.clone(), shard), defect)
        })
    }

    /// What each shard of another process is told of a volume that goes on.
    pub fn running_specs(
        &self,
        volume: usize,
        ram: &Arc<RamDisk>,
        snapshot: &TargetSnapshot,
    ) -> Vec<VolumeSpec> {
        let fresh = self.specs(volume, ram, None);
        let facts = (*fresh[0].facts).clone();
        let running = snapshot.running_volume(facts.uuid).expect("a volume that was served");
        let (shared, geometry) = (SharedGateState::new(self.shards), fresh[0].view.geometry);
        let home = VolumeOwner::restore_running(facts, geometry, self.shards, false, running, &shared);
        let home = home.expect("its state is sound");
        let view = home.view().clone();
        let mut home = Some(Box::new(home));
        fresh
            .into_iter()
            .map(|spec| VolumeSpec {
                home: spec.home.and_then(|_| home.take()),
                shared: shared.clone(),
                view: view.clone(),
                ..spec
            })
            .collect()
    }

    pub fn exports(&self) -> Exports {
        let mut terms = TargetLimits::default();
        terms.negotiation.max_connections = 4;
        let mut exports = (*target::build_exports(&terms)).clone();
        if let Some(pieces) = self.pieces {
            exports.nvme.portals.iter_mut().for_each(|portal| portal.data = pieces.data);
        }
        for volume in 1..self.volumes {
            let id = VolumeId(volume as u64);
            let lun = LunExport { lun: volume as u16, volume: id, ..exports.targets[0].luns[0] };
            exports.targets[0].luns.push(lun);
            let subsystem = &mut exports.nvme.subsystems[0];
            let nsid = volume as u32 + 1;
            subsystem.namespaces.push(NamespaceExport { nsid, volume: id, ..subsystem.namespaces[0] });
        }
        exports
    }

    /// A world that nothing was kept for.
    pub fn world(&self, rams: &[Arc<RamDisk>]) -> World<Shard> {
        let sector = self.sector.unwrap_or(self.block);
        let fresh = (0..self.volumes).map(|_| (Disk::with_sector_len(sector, self.faults), None)).collect();
        self.world_of(rams, fresh, 0)
    }

    /// A world over disks and the records of volumes; `rams`: the disks, if they are no files. `round`
    /// tells the worlds of one history apart.
    pub fn world_of(
        &self,
        rams: &[Arc<RamDisk>],
        kept: Vec<(Disk, Option<Vec<u8>>)>,
        round: u64,
    ) -> World<Shard> {
        let mut config = Config::new(self.seed.wrapping_add(round << 32));
        config.shards = self.shards;
        config.pool_bytes = self.pool_bytes;
        config.window = self.window;
        config.disk_delay_max = self.disk_delay_max;
        config.loaned_permille = self.loaned_permille;
        let (shards, exports) = (self.shards, Arc::new(self.exports()));
        let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
        for (volume, (contents, saved)) in kept.into_iter().enumerate() {
            world.add_disk(disk(volume), contents);
            let specs = self.specs(volume, &rams[volume], saved.as_deref());
            for (shard, mut spec) in (0..).zip(specs) {
                if self.bug == Some(Bug::GuardsApart) {
                    spec.shared = SharedGateState::new(shards);
                }
                world.send_message(
                    ShardId(shard),
                    Message::Control(0, ControlRequest::AddVolume(Box::new(spec))),
                );
            }
        }
        world.run_for(Duration::from_millis(1));
        assert_eq!(world.take_control_messages().len(), usize::from(shards) * self.volumes);
        world.set_shard_faults(self.shard_faults);
        world
    }
}
