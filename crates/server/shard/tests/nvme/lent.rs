//! A RAM volume's memory lent to a read is read when it is sent: the effect on hosts that exclude others, and
//! on hosts that are excluded.

use std::sync::Arc;
use std::time::Duration;

use blockwire_shard::{ControlRequest, Exports, Message, Shard, SubsystemExport, TargetExport};
use endpoint::ShardId;
use nvme::Status;
use nvme::fabrics::{Property, PropertyAccess};
use sim::{Config, PeerEnd, World};
use volume::{RamBackend, RamDisk, VolumeId};

use crate::both::{both, run};
use crate::host::{self, Host, Wanted, is_dead, keys, reserve, transfer};
use crate::{BLOCKS, pattern, world_of};
use testkit::iscsi_initiator::TestInitiator;
use testkit::target::{self, TargetLimits};

const MIB: usize = 1 << 20;
const OTHER_TARGET: &str = "iqn.2026-11.io.blockwire:other";
const OTHER_SUBSYSTEM: &str = "nqn.2026-11.io.blockwire:other";
/// Behind what is on its way when a change comes.
const LATER: u8 = 200;

/// A world where what a peer does not take soon stands still.
fn narrow(seed: u64) -> World<Shard> {
    world_of(narrow_config(seed, 1), &target::build_exports(&TargetLimits::default()))
}

fn narrow_config(seed: u64, shards: u16) -> Config {
    Config { window: 64 << 10, pool_bytes: 16 << 20, shards, ..Config::new(seed) }
}

/// Reads a mebibyte by an I/O queue, and does not take it.
fn start_read(world: &mut World<Shard>, host: &mut Host, at: usize) -> u16 {
    host.start(world, at, transfer(2, 0, MIB / 512), &[], MIB)
}

/// Lets the SCSI host go on for so long, and takes nothing of the I/O queues.
fn go_on(world: &mut World<Shard>, scsi: &mut TestInitiator, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        world.run_for(Duration::from_millis(1));
        scsi.poll(world);
        host::heed(world, &mut Vec::new());
    }
}

fn has_ended(scsi: &TestInitiator, itt: u32) -> bool {
    scsi.ended.iter().any(|ended| ended.itt == itt)
}

/// A SCSI host at a target, by this initiator port.
fn log_in(world: &mut World<Shard>, isid: u16, name: &str) -> TestInitiator {
    let mut wanted = target::login_config(isid);
    wanted.target_name = Some(name.into());
    // Short segments would be copied.
    wanted.limits.mrdsl = 64 << 10;
    let mut scsi = TestInitiator::connect(world, wanted);
    while !scsi.is_logged_in() {
        go_on(world, &mut scsi, Duration::from_millis(1));
    }
    // The unit attention of a new nexus.
    let itt = scsi.send_command(world, 0, &[0; 6], &[], 0);
    go_on(world, &mut scsi, Duration::from_millis(20));
    assert!(has_ended(&scsi, itt));
    scsi.ended.clear();
    scsi
}

/// Reads a mebibyte, and does not take it.
fn start_scsi_read(world: &mut World<Shard>, scsi: &mut TestInitiator) -> u32 {
    scsi.send_command(world, 0, &[0x28, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[], MIB)
}

/// The kinds of reservation by which the SCSI host shuts others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Reserve6,
    WriteExclusive,
    ExclusiveAccess,
}

/// On how many shards a host is shut out, and by what.
const CASES: [(u16, By); 4] =
    [(1, By::Reserve6), (1, By::ExclusiveAccess), (3, By::Reserve6), (3, By::ExclusiveAccess)];

/// The SCSI host asks to have the volume alone; the command that says when it has.
fn shut_out(world: &mut World<Shard>, scsi: &mut TestInitiator, by: By) -> u32 {
    let kind = match by {
        By::Reserve6 => return scsi.send_command(world, 0, &[0x16, 0, 0, 0, 0, 0], &[], 0),
        By::WriteExclusive => 1,
        By::ExclusiveAccess => 3,
    };
    let (mut register, mut reserve) = ([0; 24], [0; 24]);
    (register[15], reserve[7]) = (0xa, 0xa);
    let itt = scsi.send_command(world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register, 0);
    go_on(world, scsi, Duration::from_millis(20));
    assert!(has_ended(scsi, itt), "to register shuts nobody out, and waits for nobody");
    scsi.send_command(world, 0, &[0x5f, 1, kind, 0, 0, 0, 0, 0, 24, 0], &reserve, 0)
}

/// Takes some of the I/O queue each millisecond until a command has ended, and leaves some to be sent.
fn read_slowly(world: &mut World<Shard>, scsi: &mut TestInitiator, nvme: &mut Host, itt: u32) {
    let end = world.now() + Duration::from_millis(60);
    while !has_ended(scsi, itt) {
        nvme.pipes[1].poll(world);
        go_on(world, scsi, Duration::from_millis(1));
        assert!(world.now() < end, "it takes too long");
    }
    assert!(!nvme.pipes[1].is_idle());
}

fn write_later(world: &mut World<Shard>, scsi: &mut TestInitiator) -> u32 {
    let cdb = [0x2a, 0, 0, 0, 0, LATER, 0, 0, 64, 0];
    scsi.send_command(world, 0, &cdb, &pattern(0, 64, 0x5a), 0)
}

#[test]
fn a_host_that_is_shut_out_is_not_sent_what_is_written_after_that() {
    for (shards, by) in CASES {
        let mut world = world_of(narrow_config(7, shards), &target::build_exports(&TargetLimits::default()));
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..3).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let itt = shut_out(&mut world, &mut scsi, by);
        // It would close the volume for everybody.
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, itt), "{shards}, {by:?}: it waits for a host that reads nothing");
        let written = write_later(&mut world, &mut scsi);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, written));
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for _ in 0..1000 {
            nvme.pipes[1].poll(&mut world);
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
        }
        for cid in reads {
            if let Some(ended) = nvme.pipes[1].take_result(cid) {
                assert!(ended.data.iter().all(|byte| *byte == 0), "{shards}, {by:?}");
            }
        }
        assert!(is_dead(&world, &nvme.pipes[1]), "{shards}, {by:?}");
        assert!(!is_dead(&world, &nvme.pipes[2]), "{shards}, {by:?}: it had nothing of the volume");
    }
}

#[test]
fn a_host_that_reads_what_it_is_sent_loses_no_connection_when_it_is_shut_out() {
    for (shards, by) in CASES {
        let mut world = world_of(narrow_config(8, shards), &target::build_exports(&TargetLimits::default()));
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..6).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(5));
        let itt = shut_out(&mut world, &mut scsi, by);
        read_slowly(&mut world, &mut scsi, &mut nvme, itt);
        let written = write_later(&mut world, &mut scsi);
        read_slowly(&mut world, &mut scsi, &mut nvme, written);
        run(&mut world, &mut scsi, &mut nvme, |_, nvme| nvme.pipes[1].is_idle());
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for cid in reads {
            let ended = nvme.pipes[1].take_result(cid).unwrap();
            assert_eq!(ended.status, Status::SUCCESS);
            assert!(ended.data.iter().all(|byte| *byte == 0), "{shards}, {by:?}");
        }
    }
}

#[test]
fn a_host_that_may_read_on_is_neither_waited_for_nor_loses_its_connection() {
    let mut world = narrow(9);
    let (mut scsi, mut nvme) = both(&mut world);
    start_read(&mut world, &mut nvme, 1);
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    let itt = shut_out(&mut world, &mut scsi, By::WriteExclusive);
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    assert!(has_ended(&scsi, itt));
    go_on(&mut world, &mut scsi, Duration::from_secs(1));
    assert!(!is_dead(&world, &nvme.pipes[1]));
    run(&mut world, &mut scsi, &mut nvme, |_, nvme| nvme.pipes[1].is_idle());
}

#[test]
fn a_parked_read_waits_for_memory_when_the_volume_ceases_to_lend() {
    let mut world = narrow(9);
    let (mut scsi, mut nvme) = both(&mut world);
    // More than are sent at a time.
    let parked: Vec<u16> = (0..12).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    let registered = nvme.ask(&mut world, 2, reserve(0x0d, 0, 0), &keys(0, 0xb), 0);
    assert_eq!(registered.status, Status::SUCCESS);
    // These take all memory that there is, and more.
    let waiting: Vec<u16> = (0..24).map(|_| start_read(&mut world, &mut nvme, 2)).collect();
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    for _ in 0..300 {
        nvme.pipes[1].poll(&mut world);
        go_on(&mut world, &mut scsi, Duration::from_millis(1));
    }
    let mut pipes: Vec<_> = nvme.pipes[1..].iter_mut().collect();
    host::run(&mut world, &mut pipes, |_, pipes| pipes.iter().all(|pipe| pipe.is_idle()));
    for (at, cids) in [(1, parked), (2, waiting)] {
        for cid in cids {
            assert_eq!(nvme.pipes[at].take_result(cid).unwrap().status, Status::SUCCESS, "queue {at}");
        }
    }
}

#[test]
fn an_iscsi_host_that_is_shut_out_is_not_sent_what_is_written_after_that() {
    for (shards, by) in CASES {
        let mut world = world_of(narrow_config(10, shards), &target::build_exports(&TargetLimits::default()));
        let mut scsi = log_in(&mut world, 1, target::TARGET_NAME);
        // On each shard there is one.
        let mut victims: Vec<_> =
            (0..shards).map(|at| log_in(&mut world, 2 + at, target::TARGET_NAME)).collect();
        for victim in &mut victims {
            for _ in 0..3 {
                start_scsi_read(&mut world, victim);
            }
        }
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let itt = shut_out(&mut world, &mut scsi, by);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, itt), "{shards}, {by:?}: it waits for hosts that read nothing");
        let written = write_later(&mut world, &mut scsi);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, written));
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for victim in &mut victims {
            for _ in 0..200 {
                victim.poll(&mut world);
                go_on(&mut world, &mut scsi, Duration::from_millis(1));
            }
            let mut data = victim.ended.iter().flat_map(|ended| &ended.data);
            assert!(data.all(|byte| *byte == 0), "{shards}, {by:?}");
            assert_ne!(victim.peer_end(&world), PeerEnd::Open, "{shards}, {by:?}");
        }
    }
}

#[test]
fn an_iscsi_host_that_reads_what_it_is_sent_loses_no_connection_when_it_is_shut_out() {
    for (shards, by) in CASES {
        let mut world = world_of(narrow_config(11, shards), &target::build_exports(&TargetLimits::default()));
        let mut scsi = log_in(&mut world, 1, target::TARGET_NAME);
        let mut victim = log_in(&mut world, 2, target::TARGET_NAME);
        let reads: Vec<u32> = (0..6).map(|_| start_scsi_read(&mut world, &mut victim)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(5));
        let itt = shut_out(&mut world, &mut scsi, by);
        let mut written = None;
        for _ in 0..400 {
            victim.poll(&mut world);
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
            if written.is_none() && has_ended(&scsi, itt) {
                assert!(!victim.is_idle(), "nothing was left to be sent");
                written = Some(write_later(&mut world, &mut scsi));
            }
        }
        assert!(written.is_some_and(|written| has_ended(&scsi, written)));
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for itt in reads {
            let ended = victim.ended.iter().find(|ended| ended.itt == itt).unwrap();
            assert_eq!((ended.status, ended.data.len()), (0, MIB));
            assert!(ended.data.iter().all(|byte| *byte == 0), "{shards}, {by:?}");
        }
        assert_eq!(victim.peer_end(&world), PeerEnd::Open);
    }
}

/// Two volumes in memory, each by a target and by a subsystem of its own.
fn two_volumes(config: Config) -> World<Shard> {
    let mut exports: Exports = Arc::unwrap_or_clone(target::build_exports(&TargetLimits::default()));
    let (target, subsystem) = (exports.targets[0].clone(), exports.nvme.subsystems[0].clone());
    exports.targets.push(TargetExport {
        name: OTHER_TARGET.into(),
        luns: TargetExport::open_to_all(OTHER_TARGET, &[VolumeId(1)]).luns,
        ..target
    });
    exports.nvme.subsystems.push(SubsystemExport {
        nqn: OTHER_SUBSYSTEM.into(),
        namespaces: SubsystemExport::open_to_all(OTHER_SUBSYSTEM, "8", &[VolumeId(1)]).namespaces,
        ..subsystem
    });
    let shards = config.shards;
    let mut world = world_of(config, &Arc::new(exports));
    let disk = Arc::new(RamDisk::new(BLOCKS, BLOCKS, 512, 4096));
    let make = move |_| RamBackend::new(disk.clone());
    let geometry = volume::Backend::geometry(&make(0));
    let specs = target::numbered_volume_specs(VolumeId(1), shards, geometry, &[], None, make);
    target::serve_volume(&mut world, specs);
    world
}

#[test]
fn a_host_that_does_not_reach_the_volume_loses_no_connection() {
    for shards in [1, 3] {
        let mut world = two_volumes(narrow_config(12, shards));
        let mut scsi = log_in(&mut world, 1, target::TARGET_NAME);
        let mut victim = log_in(&mut world, 2, target::TARGET_NAME);
        let mut others: Vec<_> = (3..6).map(|isid| log_in(&mut world, isid, OTHER_TARGET)).collect();
        let mut nvme = Host::connect(&mut world, Wanted { subsystem: OTHER_SUBSYSTEM, ..Wanted::default() });
        start_scsi_read(&mut world, &mut victim);
        for other in &mut others {
            start_scsi_read(&mut world, other);
        }
        start_read(&mut world, &mut nvme, 1);
        start_read(&mut world, &mut nvme, 2);
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let itt = shut_out(&mut world, &mut scsi, By::Reserve6);
        go_on(&mut world, &mut scsi, Duration::from_millis(300));
        assert!(has_ended(&scsi, itt));
        assert_ne!(victim.peer_end(&world), PeerEnd::Open);
        assert!(others.iter().all(|other| other.peer_end(&world) == PeerEnd::Open && !other.is_idle()));
        assert!(nvme.pipes.iter().all(|pipe| !is_dead(&world, pipe)));
        for _ in 0..200 {
            others.iter_mut().for_each(|other| other.poll(&mut world));
            nvme.pipes.iter_mut().for_each(|pipe| pipe.poll(&mut world));
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
        }
        assert!(others.iter().all(|other| other.is_idle() && other.ended[0].status == 0));
        assert!(nvme.pipes[1..].iter().all(|pipe| pipe.is_idle() && pipe.ended[0].status.is_success()));
    }
}

/// What was queued is still sent when a queue ends, and the queue has no nexus by then that the reservation could name.
#[test]
fn a_queue_that_has_ended_is_not_sent_what_is_written_after_its_host_was_shut_out() {
    for shards in [1, 3] {
        let mut world = world_of(narrow_config(13, shards), &target::build_exports(&TargetLimits::default()));
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..3).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        // The host resets the controller: its I/O queues end.
        let disable = PropertyAccess::property_set_sqe(Property::CC, 0x0046_0000);
        assert!(nvme.ask(&mut world, 0, disable, &[], 0).status.is_success());
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        assert!(!is_dead(&world, &nvme.pipes[1]), "it has ended without its last words");
        let itt = shut_out(&mut world, &mut scsi, By::Reserve6);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, itt));
        let written = write_later(&mut world, &mut scsi);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, written));
        for _ in 0..200 {
            nvme.pipes[1].poll(&mut world);
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
        }
        for cid in reads {
            let data = nvme.pipes[1].take_result(cid).map_or(Vec::new(), |ended| ended.data);
            assert!(data.iter().all(|byte| *byte == 0), "{shards} shards");
        }
    }
}

/// Changes what is offered on all shards; says when it holds, which must not wait for hosts that read nothing.
fn change_exports(world: &mut World<Shard>, change: impl FnOnce(&mut Exports), shards: u16) {
    let mut exports = Exports::clone(&target::build_exports(&TargetLimits::default()));
    change(&mut exports);
    let exports = Arc::new(exports);
    for shard in 0..shards {
        world.send_message(ShardId(shard), Message::Control(9, ControlRequest::Exports(exports.clone())));
    }
    let (mut reports, end) = (Vec::new(), world.now() + Duration::from_millis(200));
    while reports.len() < usize::from(shards) {
        assert!(world.now() < end, "it waits for hosts that read nothing");
        world.run_for(Duration::from_millis(1));
        host::heed(world, &mut reports);
    }
}

#[test]
fn a_host_from_which_a_volume_is_taken_is_not_sent_what_is_written_after_that() {
    for (shards, whole) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut world = world_of(narrow_config(14, shards), &target::build_exports(&TargetLimits::default()));
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..3).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let take = |exports: &mut Exports| match whole {
            true => exports.nvme.subsystems.clear(),
            false => exports.nvme.subsystems[0].namespaces.clear(),
        };
        change_exports(&mut world, take, shards);
        let written = write_later(&mut world, &mut scsi);
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        assert!(has_ended(&scsi, written));
        for _ in 0..200 {
            nvme.pipes[1].poll(&mut world);
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
        }
        for cid in reads {
            let data = nvme.pipes[1].take_result(cid).map_or(Vec::new(), |ended| ended.data);
            assert!(data.iter().all(|byte| *byte == 0), "{shards} shards, the whole subsystem: {whole}");
        }
        assert!(whole || !is_dead(&world, &nvme.pipes[2]), "it had nothing of the volume");
    }
}

#[test]
fn an_iscsi_host_from_which_a_volume_is_taken_is_not_sent_what_is_written_after_that() {
    for (shards, whole) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut world = world_of(narrow_config(15, shards), &target::build_exports(&TargetLimits::default()));
        let mut nvme = Host::connect(&mut world, Wanted::default());
        let mut victims: Vec<_> =
            (0..shards).map(|at| log_in(&mut world, 2 + at, target::TARGET_NAME)).collect();
        for victim in &mut victims {
            for _ in 0..3 {
                start_scsi_read(&mut world, victim);
            }
        }
        world.run_for(Duration::from_millis(20));
        let take = |exports: &mut Exports| match whole {
            true => exports.targets.clear(),
            false => exports.targets[0].luns.clear(),
        };
        change_exports(&mut world, take, shards);
        let later = nvme.write(&mut world, 1, LATER.into(), &pattern(0, 8, 0x5a));
        assert_eq!(later, Status::SUCCESS);
        for victim in &mut victims {
            for _ in 0..200 {
                victim.poll(&mut world);
                world.run_for(Duration::from_millis(1));
            }
            let mut data = victim.ended.iter().flat_map(|ended| &ended.data);
            assert!(data.all(|byte| *byte == 0), "{shards} shards, the whole target: {whole}");
        }
    }
}

/// Another target goes: that is nobody's volume of these hosts.
#[test]
fn a_host_that_keeps_its_volumes_loses_no_connection_when_exports_change() {
    let mut world = two_volumes(narrow_config(16, 1));
    let mut scsi = log_in(&mut world, 1, target::TARGET_NAME);
    let mut nvme = Host::connect(&mut world, Wanted::default());
    start_scsi_read(&mut world, &mut scsi);
    start_read(&mut world, &mut nvme, 1);
    world.run_for(Duration::from_millis(20));
    change_exports(&mut world, |_| {}, 1);
    world.run_for(Duration::from_millis(300));
    assert!(scsi.peer_end(&world) == PeerEnd::Open && !is_dead(&world, &nvme.pipes[1]));
    run(&mut world, &mut scsi, &mut nvme, |scsi, nvme| scsi.is_idle() && nvme.pipes[1].is_idle());
}
