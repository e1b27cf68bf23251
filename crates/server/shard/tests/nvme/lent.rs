//! Memory of a volume that is lent to a read is read when it is sent: what that means for those who shut others out, and
//! for those who are shut out.

use std::time::Duration;

use blockwire_shard::Shard;
use nvme::Status;
use sim::{Config, World};

use crate::both::{both, run};
use crate::host::{self, Host, is_dead, keys, reserve, transfer};
use crate::{pattern, world_of};
use testkit::iscsi_host::Initiator;
use testkit::target::{self, Terms};

const MIB: usize = 1 << 20;
/// Behind what is on its way when a change comes.
const LATER: u8 = 200;

/// A world where what a peer does not take soon stands still.
fn narrow(seed: u64, window: usize) -> World<Shard> {
    let config = Config { window, pool_bytes: 16 << 20, shards: 1, ..Config::new(seed) };
    world_of(config, &target::exports(&Terms::default()))
}

/// Reads a mebibyte by an I/O queue, and does not take it.
fn start_read(world: &mut World<Shard>, host: &mut Host, at: usize) -> u16 {
    host.start(world, at, transfer(2, 0, MIB / 512), &[], MIB)
}

/// Lets the SCSI host go on for so long, and takes nothing of the I/O queues.
fn go_on(world: &mut World<Shard>, scsi: &mut Initiator, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        world.run_for(Duration::from_millis(1));
        scsi.poll(world);
        host::heed(world, &mut Vec::new());
    }
}

fn has_ended(scsi: &Initiator, itt: u32) -> bool {
    scsi.ended.iter().any(|ended| ended.itt == itt)
}

/// The kinds of reservation by which the SCSI host shuts others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Reserve6,
    WriteExclusive,
    ExclusiveAccess,
}

/// The SCSI host asks to have the volume alone; the command that says when it has.
fn shut_out(world: &mut World<Shard>, scsi: &mut Initiator, nvme: &Host, by: By) -> u32 {
    let kind = match by {
        By::Reserve6 => return scsi.command(world, 0, &[0x16, 0, 0, 0, 0, 0], &[], 0),
        By::WriteExclusive => 1,
        By::ExclusiveAccess => 3,
    };
    let (mut register, mut reserve) = ([0; 24], [0; 24]);
    (register[15], reserve[7]) = (0xa, 0xa);
    let itt = scsi.command(world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register, 0);
    go_on(world, scsi, Duration::from_millis(20));
    assert!(has_ended(scsi, itt), "to register shuts nobody out, and waits for nobody");
    assert!(!nvme.pipes[1].is_idle());
    scsi.command(world, 0, &[0x5f, 1, kind, 0, 0, 0, 0, 0, 24, 0], &reserve, 0)
}

/// Takes some of the I/O queue each millisecond until a command has ended, and leaves some to be sent.
fn read_slowly(world: &mut World<Shard>, scsi: &mut Initiator, nvme: &mut Host, itt: u32) {
    let end = world.now() + Duration::from_millis(60);
    while !has_ended(scsi, itt) {
        nvme.pipes[1].poll(world);
        go_on(world, scsi, Duration::from_millis(1));
        assert!(world.now() < end, "it takes too long");
    }
    assert!(!nvme.pipes[1].is_idle());
}

fn write_later(world: &mut World<Shard>, scsi: &mut Initiator) -> u32 {
    let cdb = [0x2a, 0, 0, 0, 0, LATER, 0, 0, 64, 0];
    scsi.command(world, 0, &cdb, &pattern(0, 64, 0x5a), 0)
}

#[test]
fn a_host_that_is_shut_out_is_not_sent_what_is_written_after_that() {
    for by in [By::Reserve6, By::ExclusiveAccess] {
        let mut world = narrow(7, 64 << 10);
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..3).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let itt = shut_out(&mut world, &mut scsi, &nvme, by);
        // It would close the volume for everybody.
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, itt), "{by:?}: it waits for a host that reads nothing");
        let written = write_later(&mut world, &mut scsi);
        go_on(&mut world, &mut scsi, Duration::from_millis(200));
        assert!(has_ended(&scsi, written));
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for _ in 0..1000 {
            nvme.pipes[1].poll(&mut world);
            go_on(&mut world, &mut scsi, Duration::from_millis(1));
        }
        for cid in reads {
            if let Some(ended) = nvme.pipes[1].take_ended(cid) {
                assert!(ended.data.iter().all(|byte| *byte == 0), "{by:?}");
            }
        }
        assert!(is_dead(&world, &nvme.pipes[1]), "{by:?}");
        assert!(!is_dead(&world, &nvme.pipes[2]), "{by:?}: it had nothing of the volume");
    }
}

#[test]
fn a_host_that_reads_what_it_is_sent_loses_no_connection_when_it_is_shut_out() {
    for by in [By::Reserve6, By::ExclusiveAccess] {
        let mut world = narrow(8, 64 << 10);
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..6).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(5));
        let itt = shut_out(&mut world, &mut scsi, &nvme, by);
        read_slowly(&mut world, &mut scsi, &mut nvme, itt);
        let written = write_later(&mut world, &mut scsi);
        read_slowly(&mut world, &mut scsi, &mut nvme, written);
        run(&mut world, &mut scsi, &mut nvme, |_, nvme| nvme.pipes[1].is_idle());
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        for cid in reads {
            let ended = nvme.pipes[1].take_ended(cid).unwrap();
            assert_eq!(ended.status, Status::SUCCESS);
            assert!(ended.data.iter().all(|byte| *byte == 0), "{by:?}");
        }
    }
}

#[test]
fn a_host_that_may_read_on_is_neither_waited_for_nor_loses_its_connection() {
    let mut world = narrow(9, 64 << 10);
    let (mut scsi, mut nvme) = both(&mut world);
    start_read(&mut world, &mut nvme, 1);
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    let itt = shut_out(&mut world, &mut scsi, &nvme, By::WriteExclusive);
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    assert!(has_ended(&scsi, itt));
    go_on(&mut world, &mut scsi, Duration::from_secs(1));
    assert!(!is_dead(&world, &nvme.pipes[1]));
    run(&mut world, &mut scsi, &mut nvme, |_, nvme| nvme.pipes[1].is_idle());
}

#[test]
fn a_parked_read_waits_for_memory_when_the_volume_ceases_to_lend() {
    let mut world = narrow(9, 64 << 10);
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
            assert_eq!(nvme.pipes[at].take_ended(cid).unwrap().status, Status::SUCCESS, "queue {at}");
        }
    }
}
