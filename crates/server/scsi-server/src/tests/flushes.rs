//! SYNCHRONIZE CACHE, and flushes that continue after its answer.

use scsi::Status;
use volume::Op;

use super::*;

const SYNC: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const IMMED: [u8; 10] = [0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn an_immediate_flush_is_answered_at_once_and_goes_on() {
    let (mut world, host) = disk();
    world.write(host, 0, &block(1));
    world.disks.hold.set(true);
    let waits = world.start(host, &SYNC, &[], 0);
    let at_once = [IMMED.to_vec(), cdb_16(0x91, 2, 0, 0).to_vec()].map(|cdb| world.start(host, &cdb, &[], 0));
    world.run();
    assert_eq!(world.end(waits), None);
    for flush in at_once {
        assert_eq!(world.outcome(flush).status, Status::GOOD);
    }
    let flushes = world.disks.kinds.borrow().iter().filter(|op| **op == Op::Flush).count();
    assert_eq!(flushes, 3, "all of them were begun");
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(waits).status, Status::GOOD);
    // A range beyond the end is told at once.
    let mut beyond = IMMED;
    beyond[2..6].copy_from_slice(&32769u32.to_be_bytes());
    world.refused(host, &beyond, &[], 0, 0x05_2100);
    assert_eq!(world.lent(), 0);
}

/// A stop without eject, and PRE-FETCH: with IMMED they are answered at once and go on, without it they wait.
#[test]
fn stops_and_prefetches_go_on_behind_their_answer() {
    let stop: fn(u8) -> Vec<u8> = |immed| vec![0x1b, immed, 0, 0, 0, 0];
    let fetch: fn(u8) -> Vec<u8> = |immed| vec![0x34, immed << 1, 0, 0, 0, 0, 0, 0, 8, 0];
    for (name, cdb) in [("stop", stop), ("prefetch", fetch)] {
        let (mut world, host) = disk();
        world.write(host, 0, &block(1));
        world.disks.hold.set(true);
        let [waits, at_once] = [0, 1].map(|immed| world.start(host, &cdb(immed), &[], 0));
        world.run();
        assert_eq!(world.end(waits), None, "{name}");
        assert_eq!(world.outcome(at_once).status, Status::GOOD, "{name}");
        let kinds = world.disks.kinds.borrow().clone();
        let begun = kinds.iter().filter(|op| matches!(op, Op::Flush | Op::Prefetch(_))).count();
        assert_eq!(begun, 2, "{name}: both were begun: {kinds:?}");
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.outcome(waits).status, Status::GOOD, "{name}");
        // What may not be executed is told at once, with IMMED too.
        if name == "prefetch" {
            let mut beyond = fetch(1);
            beyond[2..6].copy_from_slice(&32769u32.to_be_bytes());
            world.refused(host, &beyond, &[], 0, 0x05_2100);
        }
        assert_eq!(world.lent(), 0);
    }
}

#[test]
fn flushes_in_the_background_are_bounded_per_nexus_and_unit() {
    let (mut world, a) = disk();
    let b = world.host(0, "iqn.b", &[0]);
    world.disks.hold.set(true);
    let of_a: Vec<_> = (0..7).map(|_| world.start(a, &IMMED, &[], 0)).collect();
    let of_b = world.start(b, &IMMED, &[], 0);
    world.run();
    let ended: Vec<_> = of_a.iter().map(|flush| world.end(*flush).is_some()).collect();
    assert_eq!(ended, [true, true, true, true, false, false, false], "beyond four, at the end");
    assert_eq!(world.outcome(of_b).status, Status::GOOD, "another nexus has its own");
    // An abort ends what waits, and nothing in the background.
    assert_eq!(world.managed(b, ManagementFunction::AbortTaskSet([0; 8])), ManagementOutcome::Complete);
    world.disks.hold.set(false);
    world.run();
    assert!(of_a.iter().all(|flush| world.outcome(*flush).status == Status::GOOD));
    world.disks.hold.set(true);
    let again = world.start(a, &IMMED, &[], 0);
    world.run();
    assert_eq!(world.outcome(again).status, Status::GOOD, "places are free again");
}

#[test]
fn a_failed_flush_in_the_background_is_told_and_sticks() {
    let (mut world, a) = disk();
    let b = world.host(0, "iqn.b", &[0]);
    world.write(a, 0, &block(1));
    world.disks.hold.set(true);
    world.disks.sync_fails.set(true);
    world.good(a, &IMMED, &[], 0);
    // Neither an abort of everything nor a reset takes it back.
    assert_eq!(world.managed(a, ManagementFunction::LogicalUnitReset([0; 8])), ManagementOutcome::Complete);
    for host in [a, b] {
        world.refused(host, &[0; 6], &[], 0, 0x06_2903);
    }
    world.disks.hold.set(false);
    world.run();
    world.disks.sync_fails.set(false);
    // INQUIRY and REQUEST SENSE are executed, and leave it to be told.
    world.good(a, &[0x12, 0, 0, 0, 36, 0], &[], 36);
    world.good(a, &[0x03, 0, 0, 0, 18, 0], &[], 18);
    let told = world.command(a, &write_10(0, 1), &block(2), 0);
    assert_eq!((told.status, told.code(), told.reply.deferred), (Status::CHECK_CONDITION, 0x03_0c00, true));
    assert_eq!(world.read(a, 0, 1), block(1), "what was told it instead was not executed; reads go on");
    // Told once as deferred; sticky for everyone from then on.
    for host in [a, b] {
        for cdb in [&write_10(0, 1)[..], &SYNC, &IMMED] {
            let data: &[u8] = if cdb[0] == 0x2a { &[3; 512] } else { &[] };
            let got = world.command(host, cdb, data, 0);
            assert_eq!((got.status, got.code()), (Status::CHECK_CONDITION, 0x03_0c00), "{cdb:02x?}");
            assert!(!got.reply.deferred, "{cdb:02x?}: refused for itself");
        }
    }
}

#[test]
fn a_flush_outlives_its_nexus_and_its_failure_is_told_to_no_other() {
    let (mut world, a) = disk();
    world.disks.hold.set(true);
    world.good(a, &IMMED, &[], 0);
    world.close(a);
    // Another nexus takes the place of the first.
    let b = world.fresh_host(0, "iqn.b", 1, &[0]);
    assert_eq!(b, a, "the same key");
    world.disks.sync_fails.set(true);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.command(b, &[0; 6], &[], 0).code(), 0x06_2900);
    world.good(b, &[0; 6], &[], 0);
    world.refused(b, &SYNC, &[], 0, 0x03_0c00);
}

#[test]
fn a_flush_ends_with_its_unit() {
    let (mut world, host) = disk();
    world.disks.hold.set(true);
    world.good(host, &IMMED, &[], 0);
    world.server(host).remove_unit(VolumeId(0));
    world.disks.hold.set(false);
    world.run();
    world.refused(host, &[0; 6], &[], 0, 0x05_2500);
    assert_eq!(world.server(host).context.tasks.iter().count(), 0);
}
