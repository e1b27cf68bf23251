//! Changes of a volume under load: after the answer to a change, no forbidden operation takes effect, on any
//! shard.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::{ControlReport, ControlRequest, Message, Shard};
use endpoint::ShardId;
use sim::{Config, Disk, DiskFaults, SimRng, World};
use volume::{DiskId, Geometry, RamBackend, RamDisk, VolumeId, VolumeRequest};

use crate::model::{Value, fill, value_of};
use testkit::iscsi_initiator::{CommandResult, TestInitiator};
use testkit::target::{self, TargetLimits, login_config};

pub const BLOCKS: usize = 64;
const CONFLICT: u8 = 0x18;
const TASK_ABORTED: u8 = 0x40;

pub fn world(seed: u64, specs: Vec<blockwire_shard::VolumeSpec>) -> World<Shard> {
    let mut config = Config::new(seed);
    config.shards = specs.len() as u16;
    // A slow disk, so that much is in flight.
    config.disk_delay_max = Duration::from_millis(5);
    let exports = target::build_exports(&TargetLimits::default());
    let shards = config.shards;
    let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
    world.add_disk(DiskId(1), Disk::new(DiskFaults { short_permille: 100, ..DiskFaults::default() }));
    target::serve_volume(&mut world, specs);
    world
}

/// Lets the world go on until `done`; keeps what the target wants kept.
pub fn run(
    world: &mut World<Shard>,
    hosts: &mut [&mut TestInitiator],
    mut done: impl FnMut(&[&mut TestInitiator]) -> bool,
) -> Vec<ControlReport> {
    let mut reports = Vec::new();
    for _ in 0..200_000 {
        for host in hosts.iter_mut() {
            host.poll(world);
        }
        for (_, message) in world.take_control_messages() {
            match message {
                Message::Store(volume, op) => {
                    world.send_message(ShardId(0), Message::Stored(volume, op.ticket, true));
                }
                Message::Report(_, report) => reports.push(report),
                other => panic!("unexpected: {other:?}"),
            }
        }
        if done(hosts) {
            return reports;
        }
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
    panic!("it does not come to an end: {world:?}");
}

pub fn log_in(world: &mut World<Shard>, isid: u16) -> TestInitiator {
    let mut host = TestInitiator::connect(world, login_config(isid));
    run(world, &mut [&mut host], |all| all[0].is_logged_in());
    // The unit attention of a new nexus.
    host.send_command(world, 0, &[0; 6], &[], 0);
    run(world, &mut [&mut host], |all| all[0].is_idle());
    host.ended.clear();
    host
}

pub fn ask(
    world: &mut World<Shard>,
    host: &mut TestInitiator,
    cdb: &[u8],
    out: &[u8],
    read: usize,
) -> CommandResult {
    let itt = host.send_command(world, 0, cdb, out, read);
    let ended = |host: &TestInitiator| host.ended.iter().position(|ended| ended.itt == itt);
    run(world, &mut [host], |all| ended(all[0]).is_some());
    let at = ended(host).unwrap();
    host.ended.remove(at)
}

fn reserve_out(action: u8, kind: u8, key: u64, other: u64) -> ([u8; 10], [u8; 24]) {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&other.to_be_bytes());
    (cdb, list)
}

pub fn write(
    world: &mut World<Shard>,
    host: &mut TestInitiator,
    lba: usize,
    blocks: usize,
    value: Value,
) -> u32 {
    let data: Vec<u8> = (lba..lba + blocks).flat_map(|lba| fill(lba, value)).collect();
    host.send_command(world, 0, &[0x2a, 0, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0], &data, 0)
}

pub fn read_all(world: &mut World<Shard>, host: &mut TestInitiator) -> Vec<Value> {
    let cdb = [0x28, 0, 0, 0, 0, 0, 0, 0, BLOCKS as u8, 0];
    let ended = ask(world, host, &cdb, &[], BLOCKS * 512);
    assert_eq!(ended.status, 0, "{ended:?}");
    let blocks = ended.data.chunks(512).enumerate();
    blocks.map(|(lba, bytes)| value_of(lba, bytes).expect("whole blocks")).collect()
}

/// A host is preempted while its writes are under way on another shard: after the answer none of them
/// lands, though the session that sent them still lives.
#[test]
fn no_write_lands_after_preempt_and_abort() {
    let (mut refused, mut aborted) = (0, 0);
    for seed in 0..60 {
        let facts = FileFacts {
            offset_align: if seed % 2 == 0 { 512 } else { 4096 },
            ..FileFacts::new((BLOCKS * 512) as u64)
        };
        let file = Arc::new(FileDisk::new(DiskId(1), &facts, 2).unwrap());
        let geometry = file.geometry();
        let make = move |shard| FileBackend::new(file.clone(), shard);
        let mut world = world(seed, target::volume_specs(2, geometry, &[DiskId(1)], None, make));
        let mut keeper = log_in(&mut world, 1);
        let mut victim = log_in(&mut world, 2);
        for (host, key) in [(&mut keeper, 0xa), (&mut victim, 0xb)] {
            let (cdb, list) = reserve_out(0, 0, 0, key);
            assert_eq!(ask(&mut world, host, &cdb, &list, 0).status, 0, "seed {seed}: register");
        }
        // Write exclusive, registrants only: both may write.
        let (cdb, list) = reserve_out(1, 5, 0xa, 0);
        assert_eq!(ask(&mut world, &mut keeper, &cdb, &list, 0).status, 0, "seed {seed}: reserve");
        // The registrants are told, or not; either way they go on.
        ask(&mut world, &mut victim, &[0; 6], &[], 0);
        let mut chance = SimRng::new(!seed);
        for value in 1..=40 {
            let blocks = chance.between(1, 30) as usize;
            let lba = chance.below((BLOCKS - blocks) as u64) as usize;
            write(&mut world, &mut victim, lba, blocks, value);
        }
        let until = world.now() + Duration::from_micros(chance.below(8_000));
        while world.step(until) {
            victim.poll(&mut world);
        }
        let (cdb, list) = reserve_out(5, 5, 0xa, 0xb);
        let itt = keeper.send_command(&mut world, 0, &cdb, &list, 0);
        run(&mut world, &mut [&mut keeper, &mut victim], |all| {
            all[0].ended.iter().any(|ended| ended.itt == itt)
        });
        let ended = keeper.ended.pop().unwrap();
        assert_eq!(ended.status, 0, "seed {seed}: {ended:?}");
        let first = read_all(&mut world, &mut keeper);
        for _ in 0..20 {
            world.run_for(Duration::from_millis(5));
            victim.poll(&mut world);
        }
        assert_eq!(read_all(&mut world, &mut keeper), first, "seed {seed}: a write landed late");
        // What came after the change is refused; what it ended is told so.
        refused += victim.ended.iter().filter(|ended| ended.status == CONFLICT).count();
        aborted += victim.ended.iter().filter(|ended| ended.status == TASK_ABORTED).count();
        assert_eq!(victim.tasks_in_flight(), [], "seed {seed}: a command has no answer");
        // One attention, then the refusal.
        ask(&mut world, &mut victim, &[0; 6], &[], 0);
        let data = fill(0, 99);
        let last = ask(&mut world, &mut victim, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &data, 0);
        assert!(last.status == CONFLICT || last.status == 2, "seed {seed}: {last:?}");
        assert_eq!(read_all(&mut world, &mut keeper), first, "seed {seed}: a preempted host writes");
    }
    assert!(refused > 20 && aborted > 20, "the change met hardly any write: {refused}, {aborted}");
}

/// Volumes grow and shrink under load: hosts are told, nothing tears, and nothing is reached that is
/// not there.
#[test]
fn attack_53_resized_during_io() {
    for seed in 0..40 {
        let disk = Arc::new(RamDisk::new(BLOCKS as u64, 2 * BLOCKS as u64, 512, 4096));
        let geometry = disk.geometry();
        let ram = disk.clone();
        let specs = target::volume_specs(2, geometry, &[], None, move |_| RamBackend::new(ram.clone()));
        let mut world = world(seed, specs);
        let mut first = log_in(&mut world, 1);
        let mut second = log_in(&mut world, 2);
        let mut chance = SimRng::new(!seed);
        let mut blocks = BLOCKS as u64;
        let (mut told, mut beyond) = (0, 0);
        for round in 0..12 {
            for value in 1..=10 {
                let host = if value % 2 == 0 { &mut first } else { &mut second };
                let lba = chance.below(2 * BLOCKS as u64 - 20) as usize;
                write(&mut world, host, lba, chance.between(1, 20) as usize, round * 10 + value);
            }
            let until = world.now() + Duration::from_micros(chance.below(500));
            while world.step(until) {}
            blocks = if blocks == BLOCKS as u64 { 2 * BLOCKS as u64 } else { BLOCKS as u64 };
            if blocks > BLOCKS as u64 {
                assert!(disk.resize(blocks));
            }
            let resize = VolumeRequest::Resize(Geometry { blocks, ..geometry });
            world.send_message(
                ShardId(0),
                Message::Control(5, ControlRequest::VolumeRequest(VolumeId(0), resize)),
            );
            let mut done = false;
            while !done {
                let reports = run(&mut world, &mut [&mut first, &mut second], |_| true);
                done = reports.iter().any(|report| matches!(report, ControlReport::Done));
                let until = world.now() + Duration::from_millis(1);
                world.step(until);
            }
            if blocks == BLOCKS as u64 {
                // Nothing that was admitted before is in flight behind the new end any more.
                assert!(disk.resize(blocks));
            }
            run(&mut world, &mut [&mut first, &mut second], |all| all.iter().all(|host| host.is_idle()));
            for ended in first.ended.drain(..).chain(second.ended.drain(..)) {
                let code = ended.sense.get(12..14).unwrap_or_default();
                match (ended.status, code) {
                    (0, _) => {}
                    // CAPACITY DATA HAS CHANGED; LOGICAL BLOCK ADDRESS OUT OF RANGE.
                    (2, [0x2a, 0x09]) => told += 1,
                    (2, [0x21, 0x00]) => beyond += 1,
                    _ => panic!("seed {seed}: {ended:?}"),
                }
            }
        }
        assert!(told > 5 && beyond > 5, "seed {seed}: {told} told, {beyond} beyond");
    }
}
