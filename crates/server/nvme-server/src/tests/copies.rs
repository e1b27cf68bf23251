//! Copy.

use nvme::io::{Copy, CopyRange};
use zerocopy::IntoBytes;

use super::*;
use crate::{COPY_BLOCKS_MAX, COPY_RANGE_BLOCKS_MAX, COPY_RANGES_MAX};

fn copy(lba: u64, ranges: usize) -> Sqe {
    let mut sqe = sqe(Opcode::COPY);
    Copy { lba, ranges: ranges as u16, format: 0, fua: false, protects: false }.write_to_sqe(&mut sqe);
    sqe
}

fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
    ranges.iter().flat_map(|&(lba, blocks)| CopyRange::new(lba, blocks).as_bytes().to_vec()).collect()
}

fn run(world: &mut World, host: Host, lba: u64, ranges: &[(u64, u32)]) -> Status {
    world.command(host, &copy(lba, ranges.len()), &list(ranges))
}

#[test]
fn ranges_become_one() {
    let (mut world, host) = disk();
    for at in 0..8 {
        world.write(host, at, &block(at as u8 + 1));
    }
    assert_eq!(run(&mut world, host, 100, &[(6, 2), (0, 1), (3, 2)]), Status::SUCCESS);
    let expected = [7, 8, 1, 4, 5, 0].map(block).concat();
    assert_eq!(world.read(host, 100, 6), expected);
    let counters = world.server(host).context.take_queue_report(host.key).counters;
    assert_eq!((counters.reads, counters.writes), (1, 8), "a copy moves nothing of the host's");
    assert_eq!(world.lent(), 0);
}

/// A range as it is on the wire, by hand from NVM Command Set 1.0, figure 33.
#[test]
fn a_range_of_fixed_bytes() {
    let (mut world, host) = disk();
    world.write(host, 0x0203, &[9; 1024]);
    let mut bytes = [0; 32];
    bytes[8..10].copy_from_slice(&[3, 2]);
    bytes[16] = 1;
    world.good(host, &copy(0, 1), &bytes);
    assert_eq!(world.read(host, 0, 3), [block(9), block(9), block(0)].concat());
}

#[test]
fn long_copies_go_piece_by_piece() {
    let mut world = World::new(1);
    world.add(200_000, |_| {});
    let host = world.host(0, 1, &[0]);
    let pattern: Vec<u8> = (0..2048 * 512).map(|at| (at / 512 % 251) as u8).collect();
    world.write(host, 0, &pattern);
    world.write(host, 30_000, &pattern);
    world.disks.kinds.borrow_mut().clear();
    let stable = {
        let mut sqe = copy(100_000, 2);
        sqe.cdw10[2] = U32::new(sqe.cdw(12) | BlockTransfer::FUA);
        sqe
    };
    world.good(host, &stable, &list(&[(0, 32_768), (32_768, 32_768)]));
    let kinds = world.disks.kinds.take();
    assert_eq!(world.read(host, 100_000, 2048), pattern);
    assert_eq!(world.read(host, 130_000, 2048), pattern);
    let longest = kinds.iter().filter_map(|op| match op {
        volume::Op::Read(span) => Some(span.blocks),
        _ => None,
    });
    assert_eq!(longest.max(), Some(512));
    assert_eq!(kinds.iter().filter(|op| matches!(op, volume::Op::Flush)).count(), 1);
}

#[test]
fn limits_are_what_identify_shows() {
    let mut world = World::new(1);
    world.add(200_000, |_| {});
    let host = world.host(0, 1, &[0]);
    let limit = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_do_not_retry();
    let many = vec![(0, 1); usize::from(COPY_RANGES_MAX)];
    assert_eq!(run(&mut world, host, 1000, &many), Status::SUCCESS);
    let more = vec![(0, 1); usize::from(COPY_RANGES_MAX) + 1];
    assert_eq!(run(&mut world, host, 1000, &more), limit);
    let longest = u32::from(COPY_RANGE_BLOCKS_MAX);
    assert_eq!(run(&mut world, host, 100_000, &[(0, longest)]), Status::SUCCESS);
    assert_eq!(run(&mut world, host, 100_000, &[(0, longest + 1)]), limit);
    let whole = COPY_BLOCKS_MAX / longest;
    let mut ranges = vec![(0, longest); whole as usize];
    assert_eq!(run(&mut world, host, 100_000, &ranges), Status::SUCCESS);
    ranges.push((0, 1));
    assert_eq!(run(&mut world, host, 100_000, &ranges), limit);
}

/// Row 75: formats that are not served, lists that are too short, ranges that wrap or overlap.
#[test]
fn attack_75_copies_that_lie() {
    let (mut world, host) = disk();
    world.write(host, 0, &block(1));
    for format in 1..16 {
        let mut sqe = sqe(Opcode::COPY);
        Copy { lba: 100, ranges: 1, format, fua: false, protects: false }.write_to_sqe(&mut sqe);
        assert_eq!(world.command(host, &sqe, &list(&[(0, 1)])), Status::INVALID_FIELD.with_do_not_retry());
    }
    for len in [0, 31, 33, 64] {
        let bytes = vec![0; len];
        assert_eq!(
            world.command(host, &copy(100, 1), &bytes),
            Status::SGL_LENGTH_INVALID.with_do_not_retry()
        );
    }
    let out_of_range = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    for (lba, source) in [(100, (32768, 1)), (100, (u64::MAX, 2)), (32767, (0, 2)), (u64::MAX, (0, 2))] {
        assert_eq!(run(&mut world, host, lba, &[source]), out_of_range, "{lba} {source:?}");
    }
    for (lba, source) in [(0, (0, 1)), (1, (0, 2)), (5, (6, 4))] {
        assert_eq!(
            run(&mut world, host, lba, &[(100, 1), source]),
            Status::OVERLAPPING_RANGE.with_do_not_retry()
        );
    }
    let mut protected = copy(100, 1);
    protected.cdw10[2] = U32::new(1 << 29);
    assert_eq!(
        world.command(host, &protected, &list(&[(0, 1)])),
        Status::INVALID_PROTECTION_INFO.with_do_not_retry()
    );
    assert_eq!(world.read(host, 100, 1), block(0));
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_range_that_fails_is_named() {
    let (mut world, host) = disk();
    world.good(host, &transfer(Opcode::WRITE_UNCORRECTABLE, 50, 1), &[]);
    let started = world.start(host, &copy(100, 3), &list(&[(0, 1), (50, 1), (2, 1)]));
    world.run();
    let status = Status::UNRECOVERED_READ_ERROR.with_do_not_retry();
    assert_eq!(world.end(started), Some(End::Reply(Completion { result: 1, status })));
    // What cannot be written is another fault.
    world.disks.unwritable.set(Some(101));
    let started = world.start(host, &copy(100, 2), &list(&[(0, 1), (2, 1)]));
    world.run();
    let status = Status::WRITE_FAULT.with_do_not_retry();
    assert_eq!(world.end(started), Some(End::Reply(Completion { result: 1, status })));
    assert_eq!(world.command(host, &transfer(Opcode::WRITE, 101, 1), &block(1)), status);
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_copy_ends_when_it_is_aborted() {
    let (mut world, host) = disk();
    world.disks.hold.set(true);
    let started = world.start(host, &with_cid(copy(10_000, 1), 3), &list(&[(0, 4096)]));
    world.run();
    assert!(world.server(host).context.abort_cid(host.key, 3));
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(started), Status::ABORT_REQUESTED);
    assert_eq!(world.disks.kinds.borrow().len(), 1, "one piece was on its way");
    assert_eq!(world.lent(), 0);
}
