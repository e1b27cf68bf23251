//! Volumes that are removed while hosts use them: every request is answered, and a volume that reuses the
//! slot never receives a message for the old one.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::{
    CONTROL_PLANE, ControlReport, ControlRequest, Exports, Message, NamespaceExport, Shard, VolumeSpec,
};
use endpoint::ShardId;
use nvme::Status;
use sim::{Config, Disk, DiskFaults, World};
use volume::{DiskId, Refusal, VolumeId, VolumeRequest};
use zerocopy::little_endian::U32;

use crate::host::{Host, Wanted, sqe, transfer, wait};
use crate::{BLOCKS, pattern};
use testkit::target::{self, TargetLimits};

const SHARDS: u16 = 2;

/// A volume on a slow disk, as each shard is told of it.
fn file(id: VolumeId, disk: DiskId) -> Vec<VolumeSpec> {
    let facts = FileFacts::new(BLOCKS * 512);
    let file = Arc::new(FileDisk::new(disk, &facts, SHARDS).unwrap());
    let geometry = file.geometry();
    target::numbered_volume_specs(id, SHARDS, geometry, &[disk], None, move |shard| {
        FileBackend::new(file.clone(), shard)
    })
}

/// Exports that show these volumes as namespaces from 1 up.
fn exports(volumes: &[VolumeId]) -> Arc<Exports> {
    let mut exports = Arc::unwrap_or_clone(target::build_exports(&TargetLimits::default()));
    exports.targets.clear();
    let namespace = |(nsid, volume)| NamespaceExport { nsid, volume, read_only: false, ana_group: 1 };
    exports.nvme.subsystems[0].namespaces = (1..).zip(volumes.iter().copied()).map(namespace).collect();
    Arc::new(exports)
}

/// Tells every shard of a volume; what they answer.
fn add(world: &mut World<Shard>, id: VolumeId, disk: DiskId) -> Vec<ControlReport> {
    for (shard, spec) in (0..).zip(file(id, disk)) {
        world.send_message(ShardId(shard), Message::Control(1, ControlRequest::AddVolume(Box::new(spec))));
    }
    world.run_for(Duration::from_millis(1));
    reports(world)
}

fn reports(world: &mut World<Shard>) -> Vec<ControlReport> {
    let heard = world.take_control_messages().into_iter();
    let report = |(to, message)| match message {
        Message::Report(_, report) if to == CONTROL_PLANE => Some(report),
        _ => None,
    };
    heard.filter_map(report).collect()
}

fn tell_all(world: &mut World<Shard>, control: impl Fn() -> ControlRequest) {
    for shard in 0..SHARDS {
        world.send_message(ShardId(shard), Message::Control(2, control()));
    }
}

fn world(seed: u64, volumes: &[VolumeId]) -> World<Shard> {
    let config = Config { shards: SHARDS, disk_delay_max: Duration::from_millis(5), ..Config::new(seed) };
    let exports = exports(volumes);
    let mut world = World::new(config, |id, _| Shard::new(id, SHARDS, exports.clone()));
    for (disk, volume) in (1..).zip(volumes) {
        world.add_disk(DiskId(disk), Disk::new(DiskFaults::default()));
        add(&mut world, *volume, DiskId(disk));
    }
    world
}

/// A Flush of all namespaces whose turn comes to a volume that has gone meanwhile is answered.
#[test]
fn a_flush_of_all_does_not_wait_for_ever_for_a_volume_that_went() {
    let volumes = [VolumeId::new(0, 0), VolumeId::new(1, 0)];
    for seed in 0..20 {
        let mut world = world(seed, &volumes);
        let mut host = Host::connect(&mut world, Wanted::default());
        for nsid in [1, 2] {
            let mut write = transfer(1, 0, 8);
            write.nsid = U32::new(nsid);
            assert!(host.ask(&mut world, 1, write, &pattern(0, 8, 1), 0).status.is_success());
        }
        let mut flush = sqe(0);
        flush.nsid = U32::new(u32::MAX);
        let cid = host.start(&mut world, 1, flush, &[], 0);
        // The flush of the last namespace is out; the first one's turn comes behind it.
        world.run_for(Duration::from_micros(100 * (seed + 1)));
        tell_all(&mut world, || ControlRequest::DropVolume(volumes[0]));
        let ended = wait(&mut world, &mut host.pipes[1], cid);
        assert!(ended.status.is_success(), "seed {seed}: {ended:?}");
    }
}

/// While something is out on a volume that is to go, nobody gets its place; and who gets it then is served, whatever
/// comes late for the volume that had it before.
#[test]
fn nobody_gets_the_place_of_a_volume_whose_operations_are_out() {
    let (old, new) = (VolumeId::new(0, 0), VolumeId::new(0, 1));
    let mut refused = 0;
    for seed in 0..20 {
        let mut world = world(seed, &[old]);
        let mut host = Host::connect(&mut world, Wanted::default());
        for lba in 0..8 {
            host.start(&mut world, 1 + lba as usize % 2, transfer(1, lba, 1), &pattern(lba, 1, 3), 0);
        }
        world.run_for(Duration::from_micros(200));
        tell_all(&mut world, || ControlRequest::DropVolume(old));
        world.add_disk(DiskId(9), Disk::new(DiskFaults::default()));
        let mut added = add(&mut world, new, DiskId(9));
        while !added.iter().filter(|one| matches!(one, ControlReport::Refused(Refusal::Busy))).count().eq(&0)
        {
            refused += 1;
            world.run_for(Duration::from_millis(20));
            reports(&mut world);
            // One that took it and one that did not: it goes from both, as the control plane does it.
            tell_all(&mut world, || ControlRequest::DropVolume(new));
            world.run_for(Duration::from_millis(20));
            reports(&mut world);
            added = add(&mut world, new, DiskId(9));
        }
        tell_all(&mut world, || ControlRequest::Exports(exports(&[new])));
        // What is late for the old volume: an ask, an adoption's like, and the end of a store.
        world.send_message(
            ShardId(0),
            Message::VolumeRequest(old, ShardId(1), volume::RequestId(77), VolumeRequest::Remove),
        );
        world.send_message(ShardId(0), Message::Stored(old, 1, true));
        world.run_for(Duration::from_millis(20));
        host.settle(&mut world);
        let mut host = Host::connect(&mut world, Wanted::default());
        assert_eq!(host.write(&mut world, 1, 3, &pattern(3, 1, 9)), Status::SUCCESS, "seed {seed}");
        assert!(host.read(&mut world, 2, 3, 1) == pattern(3, 1, 9), "seed {seed}");
    }
    assert!(refused > 5, "hardly anything was out: {refused}");
}
