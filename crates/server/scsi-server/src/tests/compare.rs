//! VERIFY, WRITE AND VERIFY and COMPARE AND WRITE.

use scsi::Status;
use volume::{Fault, PathAccess};

use super::*;

fn verify(opcode: u8, check: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let mut cdb = read_10(lba, blocks);
    (cdb[0], cdb[1]) = (opcode, check << 1);
    cdb
}

/// What cannot be written is named as such: MEDIUM ERROR, WRITE ERROR, and the block.
#[test]
fn a_block_that_cannot_be_written() {
    let (mut world, host) = disk();
    world.disks.unwritable.set(Some(12));
    for cdb in [&write_10(10, 4)[..], &verify(0x2e, 0, 10, 4)] {
        let got = world.command(host, cdb, &[5; 2048], 0);
        assert_eq!((got.code(), got.sense.unwrap().information), (0x03_0c00, Some(12)));
    }
    world.disks.unwritable.set(None);
    world.good(host, &write_10(10, 4), &[5; 2048], 0);
}

#[test]
fn verify_compares_what_it_is_told_to() {
    let (mut world, host) = disk();
    let data = [block(1), block(2), block(1)].concat();
    world.write(host, 10, &data);
    // Without comparing, data that comes all the same is swallowed.
    world.good(host, &verify(0x2f, 0, 10, 3), &[], 0);
    let swallowed = world.command(host, &verify(0x2f, 0, 10, 3), &data, 0);
    assert_eq!((swallowed.status, swallowed.reply.transferred), (Status::GOOD, 0));
    world.good(host, &verify(0x2f, 1, 10, 3), &data, 0);
    let mut wrong = data.clone();
    wrong[513] ^= 1;
    let got = world.command(host, &verify(0x2f, 1, 10, 3), &wrong, 0);
    assert_eq!((got.code(), got.sense.unwrap().information), (0x0e_1d00, Some(513)));
    // One block against many.
    world.good(host, &cdb_16(0x93, 0, 100, 5000), &block(6), 0);
    world.good(host, &cdb_16(0x8f, 6, 100, 5000), &block(6), 0);
    world.refused(host, &cdb_16(0x8f, 6, 100, 5001), &block(6), 0, 0x0e_1d00);
    world.refused(host, &verify(0x2f, 3, 10, 2), &block(1), 0, 0x0e_1d00);
    world.good(host, &verify(0x2f, 3, 10, 1), &block(1), 0);
    world.refused(host, &verify(0x2f, 2, 10, 1), &block(1), 0, 0x05_2400);
    for check in [0, 1, 3] {
        world.good(host, &verify(0x2f, check, 0, 0), &[], 0);
    }
    world.refused(host, &verify(0x2f, 1, 10, 2), &block(1), 0, 0x05_0e03);
    // Without data, nothing bounds how much is looked at.
    world.good(host, &cdb_16(0x8f, 0, 0, 32768), &[], 0);
    assert_eq!(world.lent(), 0);
}

#[test]
fn write_and_verify_looks_at_what_it_wrote() {
    let (mut world, host) = disk();
    for check in [0, 1] {
        world.disks.kinds.borrow_mut().clear();
        world.good(host, &verify(0x2e, check, 5, 2), &[8 + check; 1024], 0);
        assert_eq!(world.read(host, 5, 2), [8 + check; 1024]);
        let kinds = world.disks.kinds.borrow();
        assert!(matches!(kinds[0], volume::Op::Write(_, volume::Durability::Stable)), "{kinds:?}");
        assert!(matches!(kinds[1], volume::Op::Read(_)), "{kinds:?}");
    }
    world.refused(host, &verify(0x2e, 3, 5, 2), &[0; 1024], 0, 0x05_2400);
}

fn caw(blocks: u8, lba: u64) -> [u8; 16] {
    cdb_16(0x89, 0, lba, u32::from(blocks))
}

#[test]
fn compare_and_write_is_exact() {
    let (mut world, host) = disk();
    world.good(host, &caw(1, 7), &[block(0), block(5)].concat(), 0);
    assert_eq!(world.read(host, 7, 1), block(5));
    let mut wrong = [block(5), block(6)].concat();
    wrong[100] = 0;
    let got = world.command(host, &caw(1, 7), &wrong, 0);
    assert_eq!((got.code(), got.sense.unwrap().information), (0x0e_1d00, Some(100)));
    assert_eq!(world.read(host, 7, 1), block(5));
    world.good(
        host,
        &caw(255, 0),
        &[vec![0; 7 * 512], vec![5; 512], vec![0; 247 * 512], vec![9; 255 * 512]].concat(),
        0,
    );
    assert_eq!(world.read(host, 254, 1), block(9));
    // Any other length than twice the blocks.
    for len in [0, 512, 2048, 1023] {
        world.refused(host, &caw(1, 7), &vec![0; len], 0, 0x05_2400);
    }
    world.refused(host, &caw(0, 7), &[0; 1024], 0, 0x05_2400);
    world.good(host, &caw(0, 7), &[], 0);
    let mut small = World::new(1);
    small.add(4096, |geometry| geometry.caw_max = 8);
    let host = small.host(0, "iqn.a", &[0]);
    small.refused(host, &caw(9, 0), &vec![0; 9 * 1024], 0, 0x05_2400);
    small.good(host, &caw(8, 0), &vec![0; 8 * 1024], 0);
}

/// An initiator would repeat it, and it would find its own data.
#[test]
fn a_compare_and_write_that_may_have_been_done_is_not_asked_for_again() {
    let (mut world, host) = disk();
    let data = [block(0), block(5)].concat();
    for (fault, code) in
        [(Fault::PathLost, 0x04_4400), (Fault::Aborted, 0x04_4400), (Fault::Internal, 0x04_4400)]
    {
        world.disks.writes_end.set(Some(fault));
        world.refused(host, &caw(1, 7), &data, 0, code);
    }
    world.disks.writes_end.set(None);
    world.good(host, &caw(1, 7), &data, 0);
}

fn cached_disk() -> (World, Host) {
    let mut world = World::new(1);
    world.add(4096, |geometry| geometry.write_cache = true);
    let host = world.host(0, "iqn.a", &[0]);
    (world, host)
}

/// It is done, and only its flush fails: nothing of what it may say lets an initiator repeat it.
#[test]
fn a_compare_and_write_whose_flush_fails_is_not_asked_for_again() {
    let data = [block(0), block(5)].concat();
    let mut stable = caw(1, 7);
    stable[1] = 0x08;
    for fault in [Fault::PathLost, Fault::Aborted, Fault::Internal] {
        let (mut world, host) = cached_disk();
        world.disks.flushes_end.set(Some(fault));
        world.refused(host, &stable, &data, 0, 0x04_4400);
        world.disks.flushes_end.set(None);
        assert_eq!(world.read(host, 7, 1), block(5));
    }
    // The flush is refused, since the path has stopped serving while the disk wrote.
    let (mut world, host) = cached_disk();
    world.disks.hold_writes.set(true);
    let started = world.start(host, &stable, &data, 0);
    world.run();
    world.request_later(
        VolumeId(0),
        VolumeRequest::SetAccess { ports: vec![PortId(1)], to: PathAccess::Transition, by: None },
    );
    world.disks.hold_writes.set(false);
    world.run();
    assert_eq!(world.outcome(started).code(), 0x04_4400);
}
