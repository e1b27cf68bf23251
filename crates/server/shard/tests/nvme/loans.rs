//! Memory of a volume that is lent to a read is read when it is sent: what that means for those who shut others out, and
//! for those who wait.

use std::time::Duration;

use blockwire_shard::Shard;
use nvme::Status;
use sim::{Config, World};

use crate::both::{both, run};
use crate::host::{self, Host, is_dead, keys, reserve, transfer};
use crate::initiator::Initiator;
use crate::rig::{self, Terms};
use crate::{pattern, world_of};

const MIB: usize = 1 << 20;

/// A world where what a peer does not take soon stands still.
fn narrow(seed: u64) -> World<Shard> {
    let config = Config { window: 64 << 10, pool_bytes: 8 << 20, shards: 1, ..Config::new(seed) };
    world_of(config, &rig::exports(&Terms::default()))
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

/// The SCSI host asks to have the volume alone, in the old way or the new one; the command that says when it has.
fn shut_out(world: &mut World<Shard>, scsi: &mut Initiator, nvme: &mut Host, persistent: bool) -> u32 {
    if !persistent {
        return scsi.command(world, 0, &[0x16, 0, 0, 0, 0, 0], &[], 0);
    }
    let (mut register, mut reserve) = ([0; 24], [0; 24]);
    (register[15], reserve[7]) = (0xa, 0xa);
    let itt = scsi.command(world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &register, 0);
    go_on(world, scsi, Duration::from_millis(100));
    assert!(has_ended(scsi, itt), "to register shuts nobody out, and waits for nobody");
    assert!(!nvme.pipes[1].is_idle());
    // Exclusive access.
    scsi.command(world, 0, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], &reserve, 0)
}

#[test]
fn a_host_that_is_shut_out_is_not_sent_what_is_written_after_that() {
    for persistent in [false, true] {
        let mut world = narrow(7);
        let (mut scsi, mut nvme) = both(&mut world);
        let reads: Vec<u16> = (0..3).map(|_| start_read(&mut world, &mut nvme, 1)).collect();
        go_on(&mut world, &mut scsi, Duration::from_millis(20));
        let itt = shut_out(&mut world, &mut scsi, &mut nvme, persistent);
        go_on(&mut world, &mut scsi, Duration::from_secs(2));
        assert!(!has_ended(&scsi, itt), "it may write before others have taken what they have read");
        run(&mut world, &mut scsi, &mut nvme, |scsi, _| has_ended(scsi, itt));
        assert!(scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
        let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 64, 0];
        let written = scsi.command(&mut world, 0, &cdb, &pattern(0, 64, 0x5a), 0);
        run(&mut world, &mut scsi, &mut nvme, |scsi, nvme| {
            has_ended(scsi, written) && nvme.pipes[1].is_idle()
        });
        for cid in reads {
            let ended = nvme.pipes[1].take_ended(cid).unwrap();
            assert!(ended.status == Status::SUCCESS && ended.data.iter().all(|byte| *byte == 0));
        }
    }
}

/// It would close the volume for everybody.
#[test]
fn a_host_that_takes_nothing_does_not_hold_up_who_shuts_it_out() {
    let mut world = narrow(8);
    let (mut scsi, mut nvme) = both(&mut world);
    start_read(&mut world, &mut nvme, 1);
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    let itt = shut_out(&mut world, &mut scsi, &mut nvme, false);
    go_on(&mut world, &mut scsi, Duration::from_secs(6));
    assert!(has_ended(&scsi, itt) && scsi.ended.iter().all(|ended| ended.status == 0), "{:?}", scsi.ended);
    assert!(is_dead(&world, &nvme.pipes[1]));
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
    let hungry: Vec<u16> = (0..12).map(|_| start_read(&mut world, &mut nvme, 2)).collect();
    go_on(&mut world, &mut scsi, Duration::from_millis(20));
    for _ in 0..300 {
        nvme.pipes[1].poll(&mut world);
        go_on(&mut world, &mut scsi, Duration::from_millis(1));
    }
    let mut pipes: Vec<_> = nvme.pipes[1..].iter_mut().collect();
    host::run(&mut world, &mut pipes, |_, pipes| pipes.iter().all(|pipe| pipe.is_idle()));
    for (at, cids) in [(1, parked), (2, hungry)] {
        for cid in cids {
            assert_eq!(nvme.pipes[at].take_ended(cid).unwrap().status, Status::SUCCESS, "queue {at}");
        }
    }
}
