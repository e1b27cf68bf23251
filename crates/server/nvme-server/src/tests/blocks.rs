//! Read, Write, Flush and related commands, and their errors.

use super::*;

#[test]
fn what_is_written_is_read() {
    let (mut world, host) = disk();
    let data: Vec<u8> = (0..8 * 512).map(|at| (at / 512 + at) as u8).collect();
    world.write(host, 100, &data);
    assert_eq!(world.read(host, 100, 8), data);
    assert_eq!(world.read(host, 99, 1), block(0));
    world.good(host, &sqe(Opcode::FLUSH), &[]);
    assert!(world.disks.kinds.borrow().contains(&volume::Op::Flush));
    let counters = world.server(host).context.take_queue_report(host.key).counters;
    assert_eq!((counters.reads, counters.read_bytes), (2, 9 * 512));
    assert_eq!((counters.writes, counters.written_bytes), (1, 8 * 512));
    assert_eq!(world.lent(), 0);
}

#[test]
fn fua_reaches_the_disk_as_a_stable_write() {
    let (mut world, host) = disk();
    world.good(host, &transfer_with(Opcode::WRITE, 8, 8, BlockTransfer::FUA), &[1; 4096]);
    let span = volume::Span { lba: 8, blocks: 8 };
    assert_eq!(*world.disks.kinds.borrow(), [volume::Op::Write(span, volume::Durability::Stable)]);
}

#[test]
fn flush_of_all_namespaces_flushes_each() {
    let mut world = World::new(1);
    for _ in 0..3 {
        world.add(4096, |_| {});
    }
    let host = world.host(0, 1, &[0, 1, 2]);
    world.good(host, &on(sqe(Opcode::FLUSH), 0xffff_ffff), &[]);
    assert_eq!(*world.disks.kinds.borrow(), vec![volume::Op::Flush; 3]);
    // One that fails does not keep the others from being flushed.
    world.request(1, VolumeRequest::Stop).unwrap();
    assert_eq!(world.command(host, &on(sqe(Opcode::FLUSH), 0xffff_ffff), &[]), Status::NAMESPACE_NOT_READY);
    assert_eq!(world.disks.kinds.borrow().len(), 5);
    // One that is removed meanwhile is not missed.
    world.request(1, VolumeRequest::Start).unwrap();
    world.disks.hold.set(true);
    let started = world.start(host, &on(sqe(Opcode::FLUSH), 0xffff_ffff), &[]);
    world.run();
    for volume in [1, 2] {
        world.request_later(volume, VolumeRequest::Remove);
        world.server(host).remove_volume(VolumeId(volume.into()));
    }
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(started), Status::SUCCESS);
    let nobody = world.host(0, 2, &[]);
    world.good(nobody, &on(sqe(Opcode::FLUSH), 0xffff_ffff), &[]);
}

#[test]
fn a_namespace_that_is_not_there() {
    let (mut world, host) = disk();
    let invalid = Status::INVALID_NAMESPACE.with_do_not_retry();
    for nsid in [0, 2, 0xffff_fffe] {
        for opcode in [Opcode::READ, Opcode::WRITE, Opcode::FLUSH, Opcode::COMPARE, Opcode::VERIFY] {
            let mut sqe = on(transfer(opcode, 0, 1), nsid);
            sqe.dptr.length = U32::new(0);
            assert_eq!(world.command(host, &sqe, &[]), invalid, "{opcode:?} {nsid:x}");
        }
    }
    assert_eq!(world.command(host, &on(transfer(Opcode::READ, 0, 1), 0xffff_ffff), &[]), invalid);
}

#[test]
fn an_opcode_that_is_none() {
    let (mut world, host) = disk();
    for code in [0x03, 0x06, 0x0a, 0x7d, 0x80, 0xff] {
        assert_eq!(world.command(host, &sqe(Opcode(code)), &[]), Status::INVALID_OPCODE.with_do_not_retry());
    }
}

#[test]
fn ends_of_the_volume() {
    let (mut world, host) = disk();
    world.write(host, 32767, &block(1));
    let out_of_range = Status::LBA_OUT_OF_RANGE.with_do_not_retry();
    for (lba, blocks) in [(32767, 2), (32768, 1), (u64::MAX, 1), (u64::MAX - 1, 8)] {
        let data = vec![0; blocks as usize * 512];
        for opcode in [Opcode::READ, Opcode::VERIFY, Opcode::WRITE_ZEROES, Opcode::WRITE_UNCORRECTABLE] {
            assert_eq!(world.command(host, &transfer(opcode, lba, blocks), &[]), out_of_range, "{opcode:?}");
        }
        for opcode in [Opcode::WRITE, Opcode::COMPARE] {
            let started = world.start(host, &transfer(opcode, lba, blocks), &data);
            world.run();
            assert_eq!(world.status(started), out_of_range);
            assert!(!world.solicited(started), "refused before its data is asked for");
        }
    }
}

#[test]
fn protection_information_has_no_place() {
    let (mut world, host) = disk();
    let invalid = Status::INVALID_PROTECTION_INFO.with_do_not_retry();
    for bit in [24, 26, 27, 28, 29] {
        for opcode in [Opcode::READ, Opcode::VERIFY, Opcode::WRITE_ZEROES] {
            assert_eq!(world.command(host, &transfer_with(opcode, 0, 1, 1 << bit), &[]), invalid);
        }
        assert_eq!(world.command(host, &transfer_with(Opcode::WRITE, 0, 1, 1 << bit), &block(1)), invalid);
    }
}

#[test]
fn zeroes_are_written_and_may_deallocate() {
    let (mut world, host) = disk();
    world.write(host, 0, &[7; 16 * 512]);
    world.good(host, &transfer(Opcode::WRITE_ZEROES, 1, 2), &[]);
    assert_eq!(world.read(host, 0, 4), [block(7), block(0), block(0), block(7)].concat());
    world.disks.kinds.borrow_mut().clear();
    world.good(
        host,
        &transfer_with(Opcode::WRITE_ZEROES, 8, 8, BlockTransfer::DEALLOCATE | BlockTransfer::FUA),
        &[],
    );
    let zeroes = volume::Op::WriteZeroes { span: volume::Span { lba: 8, blocks: 8 }, unmap: true };
    assert_eq!(*world.disks.kinds.borrow(), [zeroes, volume::Op::Flush], "FUA makes them stable");
    assert_eq!(world.read(host, 8, 8), [0; 4096]);
    // Longer than the longest transfer.
    world.write(host, 5000, &block(9));
    world.good(host, &transfer(Opcode::WRITE_ZEROES, 0, 32768), &[]);
    assert_eq!(world.read(host, 5000, 1), block(0));
}

#[test]
fn compare_and_verify() {
    let (mut world, host) = disk();
    world.write(host, 5, &block(5));
    world.good(host, &transfer(Opcode::COMPARE, 5, 1), &block(5));
    let mut other = block(5);
    other[511] = 6;
    assert_eq!(
        world.command(host, &transfer(Opcode::COMPARE, 5, 1), &other),
        Status::COMPARE_FAILURE.with_do_not_retry()
    );
    world.good(host, &transfer(Opcode::VERIFY, 0, 32768), &[]);
    let counters = world.server(host).context.take_queue_report(host.key).counters;
    assert_eq!((counters.reads, counters.read_bytes), (2, 32769 * 512));
}

#[test]
fn blocks_marked_bad_stay_so_until_they_are_written() {
    let (mut world, host) = disk();
    world.write(host, 0, &[1; 4 * 512]);
    world.good(host, &transfer(Opcode::WRITE_UNCORRECTABLE, 1, 2), &[]);
    let bad = Status::UNRECOVERED_READ_ERROR.with_do_not_retry();
    assert_eq!(world.command(host, &transfer(Opcode::READ, 0, 4), &[]), bad);
    assert_eq!(world.command(host, &transfer(Opcode::VERIFY, 2, 1), &[]), bad);
    assert_eq!(world.command(host, &transfer(Opcode::COMPARE, 1, 1), &block(1)), bad);
    world.write(host, 1, &[2; 1024]);
    assert_eq!(world.read(host, 0, 4), [block(1), block(2), block(2), block(1)].concat());
    let long = transfer(Opcode::WRITE_UNCORRECTABLE, 0, 2049);
    assert_eq!(world.command(host, &long, &[]), Status::INVALID_FIELD.with_do_not_retry());
    world.good(host, &transfer(Opcode::WRITE_UNCORRECTABLE, 0, 2048), &[]);
}

#[test]
fn a_volume_of_4096_byte_blocks() {
    let mut world = World::new(1);
    world.add_of(256, 4096, |_| {});
    let host = world.host(0, 1, &[0]);
    let mut write = transfer(Opcode::WRITE, 3, 1);
    write.dptr.length = U32::new(4096);
    world.good(host, &write, &[3; 4096]);
    let mut read = transfer(Opcode::READ, 3, 1);
    read.dptr.length = U32::new(4096);
    assert_eq!(world.good(host, &read, &[]), [3; 4096]);
    read.dptr.length = U32::new(512);
    assert_eq!(world.command(host, &read, &[]), Status::SGL_LENGTH_INVALID.with_do_not_retry());
}

#[test]
fn a_queue_reports_what_failed_and_how_long_it_was_busy() {
    let (mut world, host) = disk();
    world.now = Time(1000);
    world.disks.hold.set(true);
    let read = world.start(host, &transfer(Opcode::READ, 0, 1), &[]);
    world.run();
    world.now = Time(1500);
    world.start(host, &with_cid(on(transfer(Opcode::READ, 3, 1), 9), 7), &[]);
    let report = world.server(host).context.take_queue_report(host.key);
    assert_eq!(report.counters.busy_ns, 500);
    let status = Status::INVALID_NAMESPACE.with_do_not_retry();
    let failure = crate::CommandFailure { at: Time(1500), cid: 7, status, lba: 3, nsid: 9 };
    assert_eq!((report.failures, report.failed), (vec![failure], 1));
    world.now = Time(1700);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.status(read), Status::SUCCESS);
    world.now = Time(9000);
    let report = world.server(host).context.take_queue_report(host.key);
    assert_eq!((report.counters.busy_ns, report.failed), (700, 0));
    // The medium's failures are counted, a comparison's are not; the latest are kept.
    world.good(host, &transfer(Opcode::WRITE_UNCORRECTABLE, 5, 1), &[]);
    world.command(host, &transfer(Opcode::COMPARE, 0, 1), &block(1));
    for lba in 0..100 {
        world.command(host, &transfer(Opcode::READ, lba / 100 + 5, 1), &[]);
    }
    let report = world.server(host).context.take_queue_report(host.key);
    assert_eq!((report.counters.media_errors, report.failed), (100, 101));
    assert_eq!(report.failures.len(), crate::FAILURES_MAX);
}

#[test]
fn only_what_is_plain_in_every_respect_is_done_at_once() {
    let (mut world, host) = disk();
    let key = CommandKey { queue: host.key, tag: 7 };
    let now = world.now;
    let request =
        |world: &mut World, sqe: &Sqe, data_out| world.server(host).inline_io_for(now, key, sqe, data_out);
    let mut read = transfer(Opcode::READ, 8, 2);
    read.dptr.length = U32::new(1024);
    let write = transfer_with(Opcode::WRITE, 8, 2, BlockTransfer::FUA);
    let span = volume::Span { lba: 8, blocks: 2 };
    let plain = request(&mut world, &read, 0).expect("a plain read");
    assert_eq!((plain.volume, plain.span, plain.bytes, plain.write), (VolumeId(0), span, 1024, None));
    let plain_write = request(&mut world, &write, 1024).expect("a plain write");
    assert_eq!((plain_write.bytes, plain_write.write), (1024, Some(volume::Durability::Stable)));
    for what in [plain, plain_write] {
        world.server(host).count_inline_io(host.key, &what);
    }
    let counters = world.server(host).context.take_queue_report(host.key).counters;
    assert_eq!(
        (counters.reads, counters.read_bytes, counters.writes, counters.written_bytes),
        (1, 1024, 1, 1024)
    );
    let mut short = read;
    short.dptr.length = U32::new(512);
    let mut first_half = read;
    first_half.flags |= 1;
    for refused in [short, first_half, on(read, 2), on(sqe(Opcode::FLUSH), 1)] {
        assert_eq!(request(&mut world, &refused, 0), None, "{refused:?}");
    }
    assert_eq!(request(&mut world, &write, 512), None, "not all of it comes");
    let reader = world.host_on(0, 0xb, 1, [entry(0, true)].into());
    let key = CommandKey { queue: reader.key, tag: 8 };
    assert!(world.server(reader).inline_io_for(now, key, &read, 0).is_some());
    assert_eq!(world.server(reader).inline_io_for(now, key, &write, 1024), None);
}

/// What Read with FUA gives must not be in a cache alone (NVM command set §3.2.4).
#[test]
fn a_read_with_fua_gives_nothing_that_is_not_stable() {
    use nvme::reservation::{Acquire, AcquireAction, Register, RegisterAction};
    for cached in [true, false] {
        let mut world = World::new(1);
        world.add(4096, |geometry| geometry.write_cache = cached);
        let (a, b) = (world.host(0, 0xa, &[0]), world.host(0, 0xb, &[0]));
        world.write(a, 0, &block(1));
        let read = transfer_with(Opcode::READ, 0, 1, BlockTransfer::FUA);
        let flushes =
            |world: &World| world.disks.kinds.borrow().iter().filter(|op| **op == volume::Op::Flush).count();
        assert_eq!(world.good(a, &read, &[]), block(1));
        assert_eq!(flushes(&world), usize::from(cached));
        // Who may only read because another has reserved writing reads all the same.
        let mut sqe = sqe(Opcode::RESERVATION_REGISTER);
        Register { action: RegisterAction::Register, ignore_key: false, persist: None }
            .write_to_sqe(&mut sqe);
        world.good(a, &sqe, &[0u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
        sqe.opcode = Opcode::RESERVATION_ACQUIRE;
        Acquire { action: AcquireAction::Acquire, ignore_key: false, kind: 1 }.write_to_sqe(&mut sqe);
        world.good(a, &sqe, &[1u64.to_le_bytes(), 0u64.to_le_bytes()].concat());
        assert_eq!(world.good(b, &read, &[]), block(1));
        assert_eq!(flushes(&world), usize::from(cached));
        world.disks.sync_fails.set(true);
        assert_eq!(world.command(a, &read, &[]) == Status::SUCCESS, !cached);
        assert_eq!(world.lent(), 0);
    }
}

/// Reads that were started and not sent yet are capped per link, so that a host that does not read drains nobody:
/// whatever flags they bear.
#[test]
fn no_read_goes_round_what_a_link_may_have_under_way() {
    for cached in [true, false] {
        let mut world = World::new(1);
        world.add(4096, |geometry| geometry.write_cache = cached);
        let host = world.host(0, 0xa, &[0]);
        for flags in [0, BlockTransfer::FUA, BlockTransfer::LIMITED_RETRY] {
            let before = world.to_host;
            world.good(host, &transfer_with(Opcode::READ, 0, 8, flags), &[]);
            assert_eq!(world.to_host - before, 8, "{flags:x}");
        }
        // What a flush of it takes is not for the host.
        world.good(host, &sqe(Opcode::FLUSH), &[]);
        assert_eq!(world.to_host, 3 * 8);
    }
}
