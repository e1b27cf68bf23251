//! Get Log Page: correct health, errors, effects, and pieces of pages.

use nvme::{Opcode, Status};

use super::super::{block, transfer};
use super::*;

fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(data[at..at + 8].try_into().unwrap())
}

fn world() -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let host = world.controller(spec(2, 1, vec![entry(0)]));
    (world, host)
}

/// A piece of a page.
fn piece(lid: u8, len: u32, offset: u64) -> Sqe {
    let mut sqe = get_log(lid, len);
    (sqe.cdw10[2], sqe.cdw10[3]) = (U32::new(offset as u32), U32::new((offset >> 32) as u32));
    sqe
}

/// Offsets: Linux nvme_smart_log.
#[test]
fn health_counts_what_all_queues_did() {
    let (mut world, host) = world();
    let one = world.connect(2, &join(1, 1, 1)).unwrap();
    let two = world.connect(2, &join(2, 1, 0)).unwrap();
    for lba in 0..1000 {
        world.write(one, lba, &block(1));
    }
    world.write(two, 0, &block(2));
    world.read(two, 0, 8);
    world.read(one, 0, 8);
    world.read(one, 0, 8);
    assert_eq!(
        world.command(one, &transfer(Opcode::READ, 4096, 1), &[]),
        Status::LBA_OUT_OF_RANGE.with_do_not_retry()
    );
    let health = world.good(host, &get_log(2, 512), &[]);
    assert_eq!((health[0], health[3]), (0, 100));
    assert_eq!((u64_at(&health, 32), u64_at(&health, 48)), (1, 2));
    assert_eq!((u64_at(&health, 64), u64_at(&health, 80)), (3, 1001));
    assert_eq!((u64_at(&health, 160), u64_at(&health, 176)), (0, 1));
    // What a queue did stays when it is gone.
    world.close(one);
    world.run();
    world.set(host, nvme::fabrics::Property::CC, 0x0046_4001);
    let health = world.good(host, &get_log(2, 512), &[]);
    assert_eq!((u64_at(&health, 64), u64_at(&health, 80)), (3, 1001));
}

#[test]
fn health_knows_busy_minutes_and_hours() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.disks.hold.set(true);
    let read = world.start(queue, &transfer(Opcode::READ, 0, 1), &[]);
    world.now.0 += 125 * SECOND;
    world.disks.hold.set(false);
    world.run();
    let (core, mut cx) = world.parts.core(1);
    core.server.handle_timeout(&mut cx);
    assert_eq!(world.status(read), Status::SUCCESS);
    world.now.0 += 7200 * SECOND;
    let health = world.good(host, &get_log(2, 512), &[]);
    assert_eq!(u64_at(&health, 128), 2);
    assert_eq!(u64_at(&health, 96), 2);
}

/// Offsets: Linux nvme_error_log_page.
#[test]
fn errors_are_told_newest_first() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(5, 1, 1)).unwrap();
    let mut bad = transfer(Opcode::READ, 9999, 1);
    bad.cid = U16::new(0x1234);
    world.command(queue, &bad, &[]);
    let mut worse = admin(0x06, 0, &[0x99], 4096);
    worse.cid = U16::new(0x4321);
    world.ends(host, &worse, &[]);
    let log = world.good(host, &get_log(1, 4096), &[]);
    // The admin queue's is known at once, that of a queue when it was asked.
    assert_eq!((u64_at(&log, 0), u64_at(&log, 64), u64_at(&log, 128)), (2, 1, 0));
    assert_eq!(log[8..16], [5, 0, 0x34, 0x12, 0x00, 0x81, 0xff, 0xff]);
    assert_eq!((u64_at(&log, 16), log[24], log[29]), (9999, 1, 3));
    assert_eq!(log[72..80], [0, 0, 0x21, 0x43, 0x04, 0x80, 0xff, 0xff]);
    // Without end: the log keeps the newest, and counts all.
    for _ in 0..200 {
        world.command(queue, &bad, &[]);
    }
    let log = world.good(host, &get_log(1, 4096), &[]);
    assert_eq!((u64_at(&log, 0), u64_at(&log, 63 * 64)), (202, 139));
    assert_eq!(u64_at(&world.good(host, &get_log(2, 512), &[]), 176), 202);
}

#[test]
fn a_page_that_waits_for_a_queue_is_answered_by_its_end() {
    let (mut world, host) = world();
    let queue = world.connect(2, &join(1, 1, 1)).unwrap();
    world.hold_messages = true;
    let log = world.start(host, &get_log(2, 512), &[]);
    world.close(queue);
    world.hold_messages = false;
    world.run();
    assert_eq!(world.status(log), Status::SUCCESS);
}

#[test]
fn pieces_of_a_page_agree_and_end_with_zeroes() {
    let (mut world, host) = world();
    let whole = world.good(host, &get_log(5, 4096), &[]);
    assert_eq!((whole[4 * 6], whole[1024 + 4], whole[1024 + 8]), (1, 3, 1));
    let part = world.good(host, &piece(5, 64, 1024), &[]);
    assert_eq!(part, whole[1024..1088]);
    let mut over = whole[4092..].to_vec();
    over.resize(64, 0);
    assert_eq!(world.good(host, &piece(5, 64, 4092), &[]), over);
    assert_eq!(world.good(host, &piece(5, 4, 4096), &[]), [0; 4]);
    for (offset, len) in [(4100, 4), (2, 4), (u64::MAX - 3, 4), (1 << 40, 4)] {
        let status = world.ends(host, &piece(5, len, offset), &[]).status;
        assert_eq!(status, Status::INVALID_FIELD.with_do_not_retry(), "{offset:#x}");
    }
}

#[test]
fn every_page_is_there_or_is_none() {
    let (mut world, host) = world();
    let pages = world.good(host, &get_log(0, 1024), &[]);
    for lid in 0..=0xff_u8 {
        let status = world.ends(host, &get_log(lid, 64), &[]).status;
        let there = pages[4 * usize::from(lid)] == 1;
        let expected = if there { Status::SUCCESS } else { Status::INVALID_LOG_PAGE.with_do_not_retry() };
        assert_eq!(status, expected, "{lid:#x}");
    }
    assert_eq!(&world.good(host, &get_log(3, 512), &[])[..16], b"\x01\0\0\0\0\0\0\x001       ");
    let features = world.good(host, &get_log(0x12, 1024), &[]);
    assert_eq!((features[4 * 7], features[4 * 8]), (1, 0));
    assert_eq!(world.good(host, &get_log(0x13, 4096), &[]), [0; 4096]);
}

#[test]
fn wrong_fields_are_refused() {
    let (mut world, host) = world();
    // An SGL shorter than NUMD, or a page longer than MDTS.
    let mut short = get_log(2, 512);
    short.dptr.length = U32::new(508);
    assert_eq!(world.ends(host, &short, &[]).status, Status::SGL_LENGTH_INVALID.with_do_not_retry());
    let mut long = get_log(2, 512);
    (long.cdw10[1], long.dptr.length) = (U32::new(0xffff), U32::new(u32::MAX));
    assert_eq!(world.ends(host, &long, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    // Health of one namespace; an index offset; another command set's effects.
    let mut of_one = get_log(2, 512);
    of_one.nsid = U32::new(1);
    assert_eq!(world.ends(host, &of_one, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    let mut index = get_log(0x0c, 512);
    index.cdw10[4] = U32::new(1 << 23);
    assert_eq!(world.ends(host, &index, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    let mut zoned = get_log(5, 4096);
    zoned.cdw10[4] = U32::new(2 << 24);
    assert_eq!(world.ends(host, &zoned, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    assert_eq!(world.pool.usage().lent, 0);
}

/// There is no word for a temperature that nobody measures, and hosts show 0 K as -273 °C.
#[test]
fn no_host_is_told_of_absolute_zero() {
    let (mut world, host) = world();
    let told = |world: &mut World| {
        let health = world.good(host, &get_log(2, 512), &[]);
        (health[0], u16::from_le_bytes([health[1], health[2]]))
    };
    assert_eq!(told(&mut world), (0, 298));
    // A threshold that is set means what it says: over and under.
    for (threshold, warns) in [(290, 2), (298, 2), (299, 0), (1 << 20 | 299, 2), (1 << 20 | 297, 0)] {
        assert_eq!(world.ends(host, &set_feature(0x04, 0, threshold), &[]).status, Status::SUCCESS);
        assert_eq!(told(&mut world), (warns, 298), "{threshold:x}");
    }
}
