//! Both protocols on one volume.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use blockwire_shard::{ControlReport, ControlRequest, Message, Shard};
use endpoint::ShardId;
use nvme::Status;
use sim::{Config, Disk, DiskFaults, SimRng, World};
use volume::{DiskId, Geometry, PathAccess, PortId, VolumeId, VolumeRequest};
use zerocopy::little_endian::U32;

use crate::host::{Host, Wanted, heed, keys, reserve, sqe, transfer};
use crate::{BLOCKS, pattern, world, world_of};
use testkit::iscsi_initiator::{CommandResult, TestInitiator};
use testkit::target::{self, TargetLimits, login_config};

const CONFLICT: u8 = 0x18;

/// Lets the world go on until `done`.
pub fn run(
    world: &mut World<Shard>,
    scsi: &mut TestInitiator,
    nvme: &mut Host,
    mut done: impl FnMut(&TestInitiator, &Host) -> bool,
) -> Vec<ControlReport> {
    let mut reports = Vec::new();
    for _ in 0..400_000 {
        scsi.poll(world);
        nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(world));
        heed(world, &mut reports);
        if done(scsi, nvme) {
            return reports;
        }
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
    panic!("it does not come to an end: {world:?}");
}

pub fn both(world: &mut World<Shard>) -> (TestInitiator, Host) {
    let mut nvme = Host::connect(world, Wanted::default());
    let mut scsi = TestInitiator::connect(world, login_config(1));
    run(world, &mut scsi, &mut nvme, |scsi, _| scsi.is_logged_in());
    // The unit attention of a new nexus.
    ask(world, &mut scsi, &mut nvme, &[0; 6], &[], 0);
    (scsi, nvme)
}

pub fn ask(
    world: &mut World<Shard>,
    scsi: &mut TestInitiator,
    nvme: &mut Host,
    cdb: &[u8],
    out: &[u8],
    read: usize,
) -> CommandResult {
    let itt = scsi.send_command(world, 0, cdb, out, read);
    run(world, scsi, nvme, |scsi, _| scsi.ended.iter().any(|ended| ended.itt == itt));
    let at = scsi.ended.iter().position(|ended| ended.itt == itt).unwrap();
    scsi.ended.remove(at)
}

pub fn scsi_read(
    world: &mut World<Shard>,
    scsi: &mut TestInitiator,
    nvme: &mut Host,
    lba: u8,
    blocks: u8,
) -> Vec<u8> {
    let cdb = [0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0];
    let ended = ask(world, scsi, nvme, &cdb, &[], usize::from(blocks) * 512);
    assert_eq!(ended.status, 0, "{ended:?}");
    ended.data
}

fn reserve_out(action: u8, kind: u8, key: u64, other: u64) -> ([u8; 10], [u8; 24]) {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&other.to_be_bytes());
    (cdb, list)
}

#[test]
fn what_one_writes_the_other_reads() {
    for seed in 0..10 {
        let mut world = world(seed, 2);
        let (mut scsi, mut nvme) = both(&mut world);
        let data = pattern(3, 20, 0x5a);
        let cdb = [0x2a, 0, 0, 0, 0, 3, 0, 0, 20, 0];
        assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &data, 0).status, 0);
        assert!(nvme.read(&mut world, 1, 3, 20) == data, "seed {seed}");
        let data = pattern(10, 4, 0xa5);
        assert_eq!(nvme.write(&mut world, 2, 10, &data), Status::SUCCESS);
        assert!(scsi_read(&mut world, &mut scsi, &mut nvme, 10, 4) == data, "seed {seed}");
    }
}

#[test]
fn a_reservation_of_one_holds_for_the_other_and_a_preempt_unseats_it() {
    for seed in 0..10 {
        let mut world = world(seed, 2);
        let (mut scsi, mut nvme) = both(&mut world);
        // The SCSI host holds a Write Exclusive reservation.
        for (action, kind, key, other) in [(0, 0, 0, 0xa), (1, 1, 0xa, 0)] {
            let (cdb, list) = reserve_out(action, kind, key, other);
            assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0).status, 0);
        }
        let refused = nvme.write(&mut world, 1, 0, &pattern(0, 1, 1));
        assert_eq!(refused.0 & 0x7ff, Status::RESERVATION_CONFLICT.0, "seed {seed}");
        // The NVMe host registers and preempts.
        assert_eq!(nvme.ask(&mut world, 2, reserve(0x0d, 0, 0), &keys(0, 0xb), 0).status, Status::SUCCESS);
        let preempt = nvme.ask(&mut world, 1, reserve(0x11, 1, 1), &keys(0xb, 0xa), 0);
        assert_eq!(preempt.status, Status::SUCCESS, "seed {seed}");
        assert_eq!(nvme.write(&mut world, 2, 0, &pattern(0, 1, 1)), Status::SUCCESS);
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let told = ask(&mut world, &mut scsi, &mut nvme, &cdb, &pattern(0, 1, 2), 0);
        assert_eq!((told.status, &told.sense[12..14]), (2, &[0x2a, 0x05][..]), "REGISTRATIONS PREEMPTED");
        let refused = ask(&mut world, &mut scsi, &mut nvme, &cdb, &pattern(0, 1, 2), 0);
        assert_eq!(refused.status, CONFLICT);
        // And back: the SCSI host registers again and preempts the NVMe host.
        let (cdb, list) = reserve_out(0, 0, 0, 0xc);
        assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0).status, 0);
        let (cdb, list) = reserve_out(4, 1, 0xc, 0xb);
        assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0).status, 0);
        let refused = nvme.write(&mut world, 1, 0, &pattern(0, 1, 1));
        assert_eq!(refused.0 & 0x7ff, Status::RESERVATION_CONFLICT.0, "seed {seed}");
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &pattern(0, 1, 2), 0).status, 0);
    }
}

/// Memory is promised to sessions at rest, too. Those of one initiator leave enough to other hosts of either
/// protocol.
#[test]
fn idle_sessions_of_one_initiator_shut_no_other_host_out() {
    let config = Config { pool_bytes: 8 << 20, ..Config::new(11) };
    let mut exports = (*target::build_exports(&TargetLimits::default())).clone();
    exports.nvme.subsystems.iter_mut().for_each(|subsystem| subsystem.limits.controllers = 64);
    let mut world = world_of(config, &Arc::new(exports));
    let mut nvme = Host::connect(&mut world, Wanted::default());
    let mut log_in = |world: &mut World<Shard>, name: &str, isid| {
        let asked = iscsi::initiator::LoginConfig { initiator_name: name.into(), ..login_config(isid) };
        let mut scsi = TestInitiator::connect(world, asked);
        run(world, &mut scsi, &mut nvme, |scsi, _| scsi.is_logged_in());
        scsi
    };
    let mut idle: Vec<TestInitiator> =
        (0..100).map(|isid| log_in(&mut world, "iqn.2026-11.test:many", isid)).collect();
    let reserved = world.pool(ShardId(0)).usage().reserved;
    // Beside those of the NVMe host.
    assert!(reserved <= (1 << 20) + (48 << 10), "{reserved} of 4 MiB are promised to one initiator");
    idle.extend((0..100).map(|at| log_in(&mut world, &format!("iqn.2026-11.test:host-{at}"), 1)));
    let many: Vec<Host> = (0..18)
        .map(|host_id| Host::connect(&mut world, Wanted { host_id: host_id + 2, ..Wanted::default() }))
        .collect();
    drop((idle, many));
}

/// A world with a slow file, so that much is in flight.
pub fn slow(seed: u64, shards: u16) -> World<Shard> {
    let facts = FileFacts {
        offset_align: if seed.is_multiple_of(2) { 512 } else { 4096 },
        ..FileFacts::new(BLOCKS * 512)
    };
    let file = Arc::new(FileDisk::new(DiskId(1), &facts, shards).unwrap());
    let geometry = file.geometry();
    let specs = target::volume_specs(shards, geometry, &[DiskId(1)], None, move |shard| {
        FileBackend::new(file.clone(), shard)
    });
    let mut config = Config::new(seed);
    config.shards = shards;
    config.disk_delay_max = Duration::from_millis(5);
    let exports = target::build_exports(&TargetLimits::default());
    let mut world = World::new(config, |id, _| Shard::new(id, shards, exports.clone()));
    world.add_disk(DiskId(1), Disk::new(DiskFaults { short_permille: 100, ..DiskFaults::default() }));
    target::serve_volume(&mut world, specs);
    world
}

const FENCED: usize = 64;

fn stands(world: &mut World<Shard>, nvme: &mut Host) -> Vec<u8> {
    nvme.read(world, 1, 0, FENCED)
}

/// After PREEMPT AND ABORT is answered to a host of one protocol, no write of the other's lands that was
/// admitted before, whatever shard and connection it came by.
#[test]
fn no_write_of_the_other_protocol_lands_after_preempt_and_abort() {
    let mut refused = 0;
    for seed in 0..40 {
        let mut world = slow(seed, 3);
        let (mut scsi, mut nvme) = both(&mut world);
        let (cdb, list) = reserve_out(0, 0, 0, 0xa);
        assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0).status, 0);
        assert_eq!(nvme.ask(&mut world, 1, reserve(0x0d, 0, 0), &keys(0, 0xb), 0).status, Status::SUCCESS);
        // Write exclusive, registrants only: both may write. It is the keeper's.
        let scsi_keeps = seed % 2 == 0;
        if scsi_keeps {
            let (cdb, list) = reserve_out(1, 5, 0xa, 0);
            assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0).status, 0);
        } else {
            let ended = nvme.ask(&mut world, 2, reserve(0x11, 0, 3), &keys(0xb, 0), 0);
            assert_eq!(ended.status, Status::SUCCESS);
        }
        // The registrants are told, or not; either way they go on.
        ask(&mut world, &mut scsi, &mut nvme, &[0; 6], &[], 0);
        let mut chance = SimRng::new(!seed);
        for value in 1..=24u8 {
            let blocks = chance.between(1, 30) as usize;
            let lba = chance.below((FENCED - blocks) as u64);
            let data = pattern(lba, blocks, value);
            if scsi_keeps {
                nvme.start(&mut world, 1 + usize::from(value) % 2, transfer(1, lba, blocks), &data, 0);
            } else {
                let cdb = [0x2a, 0, 0, 0, 0, lba as u8, 0, 0, blocks as u8, 0];
                scsi.send_command(&mut world, 0, &cdb, &data, 0);
            }
        }
        let until = world.now() + Duration::from_micros(chance.below(8_000));
        while world.step(until) {
            scsi.poll(&mut world);
            nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
        }
        if scsi_keeps {
            let (cdb, list) = reserve_out(5, 5, 0xa, 0xb);
            let ended = ask(&mut world, &mut scsi, &mut nvme, &cdb, &list, 0);
            assert_eq!(ended.status, 0, "seed {seed}: {ended:?}");
        } else {
            let cid = nvme.start(&mut world, 1, reserve(0x11, 2, 3), &keys(0xb, 0xa), 0);
            run(&mut world, &mut scsi, &mut nvme, |_, nvme| {
                nvme.pipes[1].ended.iter().any(|ended| ended.cid == cid)
            });
            let ended = nvme.pipes[1].take_result(cid).unwrap();
            assert_eq!(ended.status, Status::SUCCESS, "seed {seed}: {ended:?}");
        }
        let first = stands(&mut world, &mut nvme);
        for _ in 0..20 {
            world.run_for(Duration::from_millis(5));
            scsi.poll(&mut world);
            nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
        }
        assert!(stands(&mut world, &mut nvme) == first, "seed {seed}: a write landed late");
        refused += scsi.ended.iter().filter(|ended| ended.status == CONFLICT).count();
        let queues = nvme.pipes[1..].iter().flat_map(|pipe| &pipe.ended);
        refused += queues.filter(|ended| ended.status.0 & 0x7ff == Status::RESERVATION_CONFLICT.0).count();
    }
    assert!(refused > 20, "the change met hardly any write: {refused}");
}

fn tell(world: &mut World<Shard>, scsi: &mut TestInitiator, nvme: &mut Host, ask: VolumeRequest) {
    world.send_message(ShardId(0), Message::Control(5, ControlRequest::VolumeRequest(VolumeId(0), ask)));
    let mut done = false;
    while !done {
        let reports = run(world, scsi, nvme, |_, _| true);
        done = reports.iter().any(|report| matches!(report, ControlReport::Done));
        let until = world.now() + Duration::from_millis(1);
        world.step(until);
    }
}

#[test]
fn a_resize_and_a_path_state_are_told_to_both() {
    let mut world = world(11, 2);
    let (mut scsi, mut nvme) = both(&mut world);
    // Namespace attribute and ANA notices.
    let mut features = sqe(9);
    (features.cdw10[0], features.cdw10[1]) = (U32::new(0x0b), U32::new(1 << 8 | 1 << 11));
    assert!(nvme.ask(&mut world, 0, features, &[], 0).status.is_success());
    let geometry = geometry();
    for (change, log, sense) in [
        (VolumeRequest::Resize(Geometry { blocks: BLOCKS / 2, ..geometry }), 0x04, [0x2a, 0x09]),
        (
            VolumeRequest::SetAccess {
                ports: vec![PortId(1), PortId(2)],
                to: PathAccess::NonOptimized,
                by: None,
            },
            0x0c,
            [0x2a, 0x06],
        ),
    ] {
        let event = nvme.start(&mut world, 0, sqe(0x0c), &[], 0);
        tell(&mut world, &mut scsi, &mut nvme, change);
        let told = crate::host::wait(&mut world, &mut nvme.pipes[0], event);
        assert!(told.status.is_success());
        assert_eq!((told.result & 7, told.result >> 16 & 0xff), (2, log), "a notice, and its log page");
        let told = ask(&mut world, &mut scsi, &mut nvme, &[0; 6], &[], 0);
        assert_eq!((told.status, &told.sense[12..14]), (2, &sense[..]), "{told:?}");
    }
    let beyond = nvme.write(&mut world, 1, BLOCKS / 2, &pattern(0, 1, 1));
    assert_eq!(beyond.0 & 0x7ff, Status::LBA_OUT_OF_RANGE.0);
}

fn geometry() -> Geometry {
    use volume::{Backend, RamBackend, RamDisk};
    RamBackend::new(Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096))).geometry()
}

/// What a host of iSCSI allowed for its sanitize does not hold for a format of an NVMe host: after one that has failed,
/// nobody is shown what was there before.
#[test]
fn a_failed_format_of_one_protocol_is_not_left_by_what_the_other_allowed() {
    let mut world = slow(5, 2);
    let (mut scsi, mut nvme) = both(&mut world);
    // Block erase, with AUSE.
    let erase = [0x48, 0x22, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &erase, &[], 0).status, 0);
    assert_eq!(nvme.write(&mut world, 1, 0, &pattern(0, 1, 1)), Status::SUCCESS);
    world.disk(DiskId(1)).unwrap().faults.error_permille = 1000;
    let mut format = sqe(0x80);
    format.nsid = U32::new(1);
    let failed = nvme.ask(&mut world, 0, format, &[], 0).status;
    assert_eq!(failed.0 & 0x7ff, Status::SANITIZE_FAILED.0, "{failed:?}");
    world.disk(DiskId(1)).unwrap().faults.error_permille = 0;
    let exit = [0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0];
    let refused = ask(&mut world, &mut scsi, &mut nvme, &exit, &[], 0);
    assert_eq!((refused.status, refused.sense[2], refused.sense[12]), (2, 5, 0x24), "{refused:?}");
    assert_eq!(nvme.ask(&mut world, 0, format, &[], 0).status, Status::SUCCESS);
    assert_eq!(ask(&mut world, &mut scsi, &mut nvme, &[0; 6], &[], 0).status, 0);
    assert!(nvme.read(&mut world, 1, 0, 1) == [0; 512]);
}
