//! Reads, writes and related commands.

use scsi::Status;

use super::*;

#[test]
fn every_read_and_write_form_moves_its_blocks() {
    for lends in [true, false] {
        let mut world = World::new(1);
        world.add(32768, |geometry| geometry.lends = lends);
        let host = world.host(0, "iqn.a", &[0]);
        let forms: [(&[u8], &[u8]); 4] = [
            (&[0x0a, 0, 0, 9, 1, 0], &[0x08, 0, 0, 9, 1, 0]),
            (&write_10(9, 1), &read_10(9, 1)),
            (&[0xaa, 0x18, 0, 0, 0, 9, 0, 0, 0, 1, 3, 0], &[0xa8, 0x18, 0, 0, 0, 9, 0, 0, 0, 1, 3, 0]),
            (&cdb_16(0x8a, 0x08, 9, 1), &cdb_16(0x88, 0x10, 9, 1)),
        ];
        for (at, (write, read)) in forms.into_iter().enumerate() {
            let data = block(at as u8 + 1);
            let written = world.command(host, write, &data, 0);
            assert_eq!((written.status, written.reply.transferred), (Status::GOOD, 512));
            let got = world.command(host, read, &[], 512);
            assert_eq!((got.status, got.data, got.reply.transferred), (Status::GOOD, data.to_vec(), 512));
        }
        // READ(6) with length 0 reads 256 blocks.
        assert_eq!(world.good(host, &[0x08, 0, 0, 0, 0, 0], &[], 256 * 512).len(), 256 * 512);
        assert_eq!(world.lent(), 0);
    }
}

#[test]
fn the_shorter_length_is_moved_and_the_rest_is_the_residual() {
    let (mut world, host) = disk();
    world.write(host, 0, &[block(1), block(2), block(3)].concat());
    // READ: expected 200, 0, 512 of 1024 and 1024 of 512 bytes.
    for (blocks, expected, moved) in [(1, 200, 200), (1, 0, 0), (2, 512, 512), (1, 1024, 512)] {
        let got = world.command(host, &read_10(0, blocks), &[], expected);
        assert_eq!((got.status, got.data.len() as u32), (Status::GOOD, moved));
        assert_eq!(got.reply.transferred, u64::from(blocks) * 512);
    }
    for verify in [0x2a, 0x2e] {
        let mut cdb = write_10(0, 2);
        cdb[0] = verify;
        // One block of two is sent: one is written.
        let got = world.command(host, &cdb, &block(7), 0);
        assert_eq!((got.status, got.reply.transferred), (Status::GOOD, 1024));
        assert_eq!(world.read(host, 0, 2), [block(7), block(2)].concat());
        // Two of one: one is written.
        cdb[8] = 1;
        let got = world.command(host, &cdb, &[block(8), block(8)].concat(), 0);
        assert_eq!((got.status, got.reply.transferred), (Status::GOOD, 512));
        assert_eq!(world.read(host, 0, 2), [block(8), block(2)].concat());
        // None: nothing; a part of a block: refused.
        assert_eq!(world.command(host, &cdb, &[], 0).status, Status::GOOD);
        let got = world.command(host, &cdb, &[1; 200], 0);
        assert_eq!((got.code(), got.reply.transferred), (0x05_0e03, 512));
        assert_eq!(world.read(host, 0, 1), block(8));
    }
}

/// LBA and length that overflow, or lie beyond the end.
#[test]
fn attack_42_ranges_do_not_wrap() {
    let (mut world, host) = disk();
    let total = 32768u64;
    for opcode in [0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93] {
        for (lba, len) in [
            (total, 1),
            (total - 1, 2),
            (total + 1, 0),
            (u64::MAX, 1),
            (u64::MAX, u32::MAX),
            (1 << 63, 2),
            (0, total as u32 + 1),
        ] {
            let (out, data_in): (&[u8], u32) = if opcode == 0x88 { (&[], 512) } else { (&[0; 512], 0) };
            let got = world.command(host, &cdb_16(opcode, 0, lba, len), out, data_in);
            assert_eq!(got.code(), 0x05_2100, "{opcode:02x} {lba:x} {len:x}");
        }
        if opcode != 0x93 {
            world.good(host, &cdb_16(opcode, 0, 0, 0), &[], 0);
        }
    }
    // COMPARE AND WRITE and WRITE ATOMIC count in bytes 13, and 12 and 13.
    for (lba, len) in [(total, 1), (u64::MAX, 255), (total + 1, 0), (1 << 63, 1)] {
        world.refused(host, &cdb_16(0x89, 0, lba, len), &[0; 1024], 0, 0x05_2100);
        world.refused(host, &cdb_16(0x9c, 0, lba, len), &[0; 512], 0, 0x05_2100);
        if len > 0 {
            world.refused(host, &cdb_16(0x9e, 0x12, lba, 24), &[], 24, 0x05_2100);
        }
    }
    // Longer than one operation may be, but in range.
    world.refused(host, &cdb_16(0x88, 0, 0, 2049), &[], 2049 * 512, 0x05_2400);
    world.refused(host, &cdb_16(0x9c, 0, 0, 2049), &[0; 512], 0, 0x05_2400);
}

#[test]
fn protection_information_is_refused_and_group_numbers_are_not() {
    let (mut world, host) = disk();
    for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x41] {
        let mut cdb = read_10(0, 1);
        (cdb[0], cdb[1]) = (opcode, 0x20);
        world.refused(host, &cdb, &block(0), 0, 0x05_2400);
        (cdb[1], cdb[6]) = (0, 3);
        world.good(host, &cdb, &block(0), 512);
    }
}

#[test]
fn stable_writes_reach_the_disk_as_such() {
    let mut world = World::new(1);
    world.add(4096, |geometry| geometry.write_cache = true);
    let host = world.host(0, "iqn.a", &[0]);
    world.disks.kinds.borrow_mut().clear();
    let mut cdb = write_10(0, 1);
    cdb[1] = 0x08;
    world.good(host, &cdb, &block(1), 0);
    let stable = |op: &volume::Op| matches!(op, volume::Op::Write(_, volume::Durability::Stable));
    assert!(world.disks.kinds.borrow().iter().any(stable));
    for (opcode, data) in [(0x8b, 512), (0x9c, 512), (0x89, 1024)] {
        world.disks.kinds.borrow_mut().clear();
        world.good(host, &cdb_16(opcode, 0x08, 8, 1), &vec![0; data], 0);
        assert_eq!(world.disks.kinds.borrow().last(), Some(&volume::Op::Flush), "{opcode:02x}");
    }
    world.disks.kinds.borrow_mut().clear();
    world.good(host, &[0x35, 0x02, 0, 0, 0, 0, 0, 0, 1, 0], &[], 0);
    assert_eq!(*world.disks.kinds.borrow(), [volume::Op::Flush]);
}

#[test]
fn orwrite_atomic_and_prefetch() {
    let (mut world, host) = disk();
    world.write(host, 4, &block(0xa5));
    world.good(host, &cdb_16(0x8b, 0, 4, 1), &block(0x5a), 0);
    assert_eq!(world.read(host, 4, 1), block(0xff));
    world.good(host, &cdb_16(0x9c, 0, 4, 2), &[7; 1024], 0);
    assert_eq!(world.read(host, 4, 2), [7; 1024]);
    // Boundaries are not offered.
    world.refused(host, &cdb_16(0x9c, 0, 4, 1 << 16 | 2), &[7; 1024], 0, 0x05_2400);
    // Less data than blocks.
    world.refused(host, &cdb_16(0x9c, 0, 4, 2), &[7; 512], 0, 0x05_0e03);
    world.refused(host, &cdb_16(0x8b, 0, 4, 2), &[7; 512], 0, 0x05_0e03);
    world.good(host, &[0x34, 0x02, 0, 0, 0, 0, 3, 0, 0, 0], &[], 0);
    world.good(host, &cdb_16(0x90, 0, 32767, 1), &[], 0);
}

/// WRITE SAME of "everything" is bounded by the longest WRITE SAME.
#[test]
fn attack_44_write_same_is_bounded() {
    let mut world = World::new(1);
    world.add(65536, |_| {});
    let host = world.host(0, "iqn.a", &[0]);
    let same = |flags, lba, len| cdb_16(0x93, flags, lba, len);
    world.refused(host, &same(0, 0, 0), &block(1), 0, 0x05_2400);
    world.refused(host, &same(0, 65536 - 32769, 0), &block(1), 0, 0x05_2400);
    world.refused(host, &same(0, 0, 32769), &block(1), 0, 0x05_2400);
    world.good(host, &same(0, 65536 - 32768, 0), &block(3), 0);
    assert_eq!(world.read(host, 65535, 1), block(3));
    assert_eq!(world.read(host, 32768 - 8, 8), [0; 4096]);
    world.good(host, &[0x41, 0, 0, 0, 0, 8, 0, 0, 2, 0], &block(4), 0);
    assert_eq!(world.read(host, 8, 3), [block(4), block(4), block(0)].concat());
    // A long one can be aborted.
    world.disks.hold.set(true);
    let long = world.start(host, &same(0, 0, 32768), &block(5), 0);
    world.run();
    let abort = world.manage(host, ManagementFunction::AbortTask { tag: Some(long.key.tag) });
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(long), Some(End::Retired));
    assert_eq!(world.end(abort), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!(world.read(host, 32000, 1), block(0));
    assert_eq!(world.lent(), 0);
}

#[test]
fn write_same_unmaps_where_it_may() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 16 * 512]);
    let same = |flags, lba, len| cdb_16(0x93, flags, lba, len);
    // No data at all: NDOB, or an expected length of zero with UNMAP.
    world.good(host, &same(0x09, 0, 2), &[], 0);
    world.good(host, &same(0x08, 2, 2), &[], 0);
    assert_eq!(world.read(host, 0, 5), [[0; 2048].as_slice(), &[1; 512]].concat());
    // UNMAP with a block that is not zero writes it.
    world.good(host, &same(0x08, 8, 8), &block(9), 0);
    assert_eq!(world.read(host, 8, 1), block(9));
    let status = world.good(host, &cdb_16(0x9e, 0x12, 8, 24), &[], 24);
    assert_eq!(status[20] & 7, 0);
    world.good(host, &same(0x08, 8, 8), &block(0), 0);
    let status = world.good(host, &cdb_16(0x9e, 0x12, 8, 24), &[], 24);
    assert_eq!(status[20] & 7, 1);
    // ANCHOR, with UNMAP or without.
    world.refused(host, &same(0x18, 0, 1), &block(0), 0, 0x05_2400);
    world.refused(host, &same(0x10, 0, 1), &block(0), 0, 0x05_2400);
    // Other lengths than a block, or none without UNMAP.
    for (flags, len) in [(0, 0), (0, 256), (0, 1024), (0x08, 1024)] {
        world.refused(host, &same(flags, 0, 1), &vec![0; len], 0, 0x05_0e03);
    }
    let mut thick = World::new(1);
    thick.add(4096, |geometry| geometry.thin = false);
    let host = thick.host(0, "iqn.a", &[0]);
    thick.refused(host, &same(0x08, 0, 1), &block(0), 0, 0x05_2400);
    thick.refused(host, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 24], 0, 0x05_2000);
    thick.good(host, &same(0, 0, 1), &block(1), 0);
}

fn unmap_list(spans: &[(u64, u32)]) -> Vec<u8> {
    let mut list = vec![0; 8];
    for (lba, blocks) in spans {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    let len = list.len() as u16;
    list[..2].copy_from_slice(&(len - 2).to_be_bytes());
    list[2..4].copy_from_slice(&(len - 8).to_be_bytes());
    list
}

fn unmap_cdb(len: usize) -> [u8; 10] {
    let [high, low] = (len as u16).to_be_bytes();
    [0x42, 0, 0, 0, 0, 0, 0, high, low, 0]
}

#[test]
fn unmap_and_lba_status() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 64 * 512]);
    let list = unmap_list(&[(0, 8), (16, 8), (33, 1), (32768, 0)]);
    world.good(host, &unmap_cdb(list.len()), &list, 0);
    assert_eq!(world.read(host, 33, 1), block(0));
    assert_eq!(world.read(host, 34, 1), block(1));
    let status = world.good(host, &cdb_16(0x9e, 0x12, 0, 1024), &[], 1024);
    let all: Vec<_> = scsi::provisioning::decode_lba_status(&status)
        .map(|one| (one.blocks.lba, one.blocks.blocks, one.status.0))
        .collect();
    assert_eq!(all, [(0, 8, 1), (8, 8, 0), (16, 8, 1), (24, 40, 0), (64, 32704, 1)]);
    // From within an extent, and truncated.
    let status = world.good(host, &cdb_16(0x9e, 0x12, 3, 24), &[], 24);
    assert_eq!(status[8..24], [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 5, 1, 0, 0, 0]);
    world.refused(host, &cdb_16(0x9e, 0x12, 32768, 24), &[], 24, 0x05_2100);
    // Nothing to do.
    world.good(host, &unmap_cdb(0), &[], 0);
    world.good(host, &unmap_cdb(8), &unmap_list(&[]), 0);
}

#[test]
fn attack_43_unmap_lists_that_lie() {
    let (mut world, host) = disk();
    let good = unmap_list(&[(0, 8)]);
    let mut long = good.clone();
    long[3] = 32;
    let mut odd = good.clone();
    odd[3] = 15;
    for (list, code) in [
        (long, 0x05_2600),
        (odd, 0x05_2600),
        (unmap_list(&[(u64::MAX, 2)]), 0x05_2100),
        (unmap_list(&[(32767, 2)]), 0x05_2100),
        (unmap_list(&[(0, u32::MAX)]), 0x05_2100),
        (unmap_list(&vec![(0, 1); 4095]), 0x05_2600),
        (good[..7].to_vec(), 0x05_1a00),
    ] {
        world.refused(host, &unmap_cdb(list.len()), &list, 0, code);
    }
    // The CDB promises more than the initiator sends.
    world.refused(host, &unmap_cdb(65535), &good, 0, 0x05_1a00);
    let mut anchored = unmap_cdb(24);
    anchored[1] = 1;
    world.refused(host, &anchored, &good, 0, 0x05_2400);
    let most = unmap_list(&vec![(0, 32); 1024]);
    world.good(host, &unmap_cdb(most.len()), &most, 0);
}

/// What the initiator takes where the command would have it send does not end as if it had been written. The
/// other way nothing is lost: the residual says that all of it was left (libiscsi's Read10Invalid).
#[test]
fn data_that_goes_the_other_way_is_not_told_as_moved() {
    let (mut world, host) = disk();
    world.write(host, 0, &block(1));
    let persist = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let out: [&[u8]; 6] = [
        &write_10(0, 1),
        &cdb_16(0x8a, 0, 0, 1),
        &cdb_16(0x93, 0, 0, 1),
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
        &[0x15, 0x10, 0, 0, 24, 0],
        &persist,
    ];
    for cdb in out {
        world.refused(host, cdb, &[], 512, 0x05_0e03);
    }
    let into: [(&[u8], u64); 3] =
        [(&read_10(0, 1), 512), (&cdb_16(0x88, 0, 0, 1), 512), (&[0x12, 0, 0, 0, 36, 0], 36)];
    for (cdb, len) in into {
        let got = world.command(host, cdb, &block(2), 0);
        assert_eq!((got.status, got.reply.transferred, got.data.len()), (scsi::Status::GOOD, len, 0));
    }
    assert_eq!(world.read(host, 0, 1), block(1));
    // No data at all is told by the residual (libiscsi's Write10Residuals), and so is data for a command
    // that has none.
    let got = world.command(host, &write_10(0, 1), &[], 0);
    assert_eq!((got.status, got.reply.transferred), (Status::GOOD, 512));
    world.good(host, &[0; 6], &[], 512);
    world.good(host, &[0; 6], &block(2), 0);
}

/// What READ with FUA gives must not be in a cache alone (SBC-3 §5.12).
#[test]
fn a_read_with_fua_gives_nothing_that_is_not_stable() {
    let read = |lba: u32| {
        let mut cdb = read_10(lba, 1);
        cdb[1] = 8;
        cdb
    };
    for cached in [true, false] {
        let mut world = World::new(1);
        world.add(4096, |geometry| geometry.write_cache = cached);
        let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(0, "iqn.b", &[0]));
        world.write(a, 0, &block(1));
        world.disks.kinds.borrow_mut().clear();
        world.disks.hold.set(true);
        let waits = world.start(a, &read(0), &[], 512);
        world.run();
        assert_eq!(world.end(waits), None);
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.outcome(waits).data, block(1));
        let flushes =
            |world: &World| world.disks.kinds.borrow().iter().filter(|op| **op == volume::Op::Flush).count();
        assert_eq!(flushes(&world), usize::from(cached));
        // Who may only read because another has reserved writing reads all the same.
        world.good(a, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &registration(1), 0);
        world.good(a, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], &reservation(1), 0);
        assert_eq!(world.good(b, &read(0), &[], 512), block(1));
        assert_eq!(flushes(&world), usize::from(cached));
        world.disks.sync_fails.set(true);
        let got = world.command(a, &read(0), &[], 512);
        assert_eq!((got.status == Status::GOOD, got.data.is_empty()), (!cached, cached));
        assert_eq!(world.lent(), 0);
    }
}

fn registration(key: u64) -> [u8; 24] {
    let mut list = [0; 24];
    list[8..16].copy_from_slice(&key.to_be_bytes());
    list
}

fn reservation(key: u64) -> [u8; 24] {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list
}
