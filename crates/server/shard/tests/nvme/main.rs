//! NVMe/TCP from end to end in the simulated world: hosts connect over any shard, their queues live on
//! all of them, and both protocols serve one volume.

mod attacks;
mod auth;
mod both;
mod ends;
mod facts;
mod host;
mod joins;
mod keys;
mod latency;
mod leaving;
mod lent;
mod limits;
mod proofs;
mod queues;
mod quiesce;

use std::sync::Arc;

use blockwire_shard::{Exports, Shard};
use sim::{Config, World};
use volume::{Backend, DiskId, Geometry, RamBackend, RamDisk};

use testkit::target::{self, TargetLimits};

/// Blocks of the volume.
pub const BLOCKS: u64 = 4096;

/// A world of so many shards that serves a RAM volume.
pub fn world(seed: u64, shards: u16) -> World<Shard> {
    world_with(seed, shards, &target::build_exports(&TargetLimits::default()))
}

/// The same with other exports.
pub fn world_with(seed: u64, shards: u16, exports: &Arc<Exports>) -> World<Shard> {
    let mut config = Config::new(seed);
    config.shards = shards;
    world_of(config, exports)
}

/// The same as configured.
pub fn world_of(config: Config, exports: &Arc<Exports>) -> World<Shard> {
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let geometry = RamBackend::new(disk.clone()).geometry();
    world_on(config, exports, disk, geometry)
}

/// The same on this memory, which says of itself what it is told to.
pub fn world_on(
    config: Config,
    exports: &Arc<Exports>,
    disk: Arc<RamDisk>,
    geometry: Geometry,
) -> World<Shard> {
    let shards = config.shards;
    let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
    let specs =
        target::volume_specs(shards, geometry, &[DiskId(0)], None, move |_| RamBackend::new(disk.clone()));
    target::serve_volume(&mut world, specs);
    world
}

/// Bytes that tell where they belong.
pub fn pattern(lba: u64, blocks: usize, mark: u8) -> Vec<u8> {
    (0..blocks * 512).map(|at| (lba as usize * 512 + at) as u8 ^ (at >> 8) as u8 ^ mark).collect()
}
