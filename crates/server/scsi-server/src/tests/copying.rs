//! EXTENDED COPY and RECEIVE COPY RESULTS.

use scsi::Status;
use scsi::Writer;
use scsi::extended_copy::{CopyLen, CopySegment, CopyTarget, ListIdUsage, encode_list};
use scsi::vpd::{Association, CodeSet, Designator, DesignatorType, naa_locally_assigned};

use super::*;

fn list(id: u8, volumes: &[u8], segments: &[CopySegment]) -> Vec<u8> {
    let names: Vec<[u8; 8]> = volumes.iter().map(|volume| naa_locally_assigned(&uuid(*volume))).collect();
    let targets = names.iter().map(|name| CopyTarget {
        designator: Designator {
            code_set: CodeSet::BINARY,
            association: Association::UNIT,
            kind: DesignatorType::NAA,
            bytes: name,
        },
        block_len: 512,
    });
    let mut bytes = vec![0; 8192];
    let mut w = Writer::new(&mut bytes);
    encode_list(id, ListIdUsage::Hold, targets, segments.iter().copied(), &mut w);
    let len = w.written_len();
    bytes.truncate(len);
    bytes
}

fn segment(source: u16, destination: u16, from: u64, to: u64, count: u16) -> CopySegment {
    let len = CopyLen::Blocks { count, destination: false };
    CopySegment { source, destination, source_lba: from, destination_lba: to, len }
}

fn copy_cdb(len: usize) -> [u8; 16] {
    cdb_16(0x83, 0, 0, len as u32)
}

fn results(action: u8, id: u8) -> [u8; 16] {
    let mut cdb = cdb_16(0x84, action, 0, 255);
    cdb[2] = id;
    cdb
}

/// Two volumes; host a reaches both, host b, of another shard, only the first.
fn two() -> (World, Host, Host) {
    let mut world = World::new(2);
    world.add(8192, |_| {});
    world.add(8192, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0, 1]), world.host(1, "iqn.b", &[0]));
    (world, a, b)
}

#[test]
fn blocks_are_copied_between_units_and_within_one() {
    let (mut world, host, _) = two();
    let data: Vec<u8> = (0..2048 * 512).map(|at| (at / 512 * 7 + at) as u8).collect();
    world.write(host, 100, &data);
    world.refused(host, &results(0, 1), &[], 255, 0x05_2400);
    let parameters = list(1, &[0, 1], &[segment(0, 1, 100, 3, 2048), segment(1, 0, 3, 5000, 8)]);
    world.good(host, &copy_cdb(parameters.len()), &parameters, 0);
    let copied = world.command_on(host, 1, &read_10(3, 2048), &[], 2048 * 512);
    assert!(copied.data == data);
    assert_eq!(world.read(host, 5000, 8), data[..4096]);
    // The status: done, two segments, bytes.
    let status = world.good(host, &results(0, 1), &[], 255);
    assert_eq!(status, [0, 0, 0, 8, 0x81, 0, 2, 0, 0, 0x10, 0x10, 0]);
    assert!(world.good(host, &results(4, 1), &[], 255).iter().all(|byte| *byte == 0));
    world.good(host, &copy_cdb(0), &[], 0);
    assert_eq!(world.lent(), 0);
}

/// Segments in bytes begin and end anywhere, also over block lengths that differ.
#[test]
fn bytes_are_copied_from_and_to_the_middle_of_blocks() {
    let (mut world, host, _) = two();
    let data: Vec<u8> = (0..2048 * 512).map(|at| (at / 512 * 7 + at) as u8).collect();
    let old: Vec<u8> = (0..2048 * 512).map(|at| !((at / 512 * 3 + at) as u8)).collect();
    world.write(host, 0, &data);
    for (skip, lead, len) in [
        (0, 0, 1),
        (511, 0, 2),
        (0, 511, 2),
        (100, 100, 300),
        (100, 300, 512),
        (7, 7, 2000),
        (3, 200, 4096),
        (511, 1, 700_001),
        (0, 0, 1025),
    ] {
        world.write(host, 4096, &old);
        let len_of = CopyLen::Bytes { count: len, source_offset: skip, destination_offset: lead };
        let bytes =
            CopySegment { source: 0, destination: 0, source_lba: 3, destination_lba: 4100, len: len_of };
        let parameters = list(1, &[0], &[bytes]);
        world.good(host, &copy_cdb(parameters.len()), &parameters, 0);
        let mut expected = old.clone();
        let (from, to, len) = (3 * 512 + usize::from(skip), 4 * 512 + usize::from(lead), len as usize);
        expected[to..to + len].copy_from_slice(&data[from..from + len]);
        assert!(world.read(host, 4096, 2048) == expected, "{skip} {lead} {len}");
        let status = world.good(host, &results(0, 1), &[], 255);
        assert_eq!(status[8..12], (len as u32).to_be_bytes());
    }
    // An offset beyond its block; bytes beyond the end, of either side.
    for (skip, lead, from, to) in [(512, 0, 0, 0), (0, 512, 0, 0), (1, 0, 8191, 0), (0, 1, 0, 8191)] {
        let len = CopyLen::Bytes { count: 512, source_offset: skip, destination_offset: lead };
        let bytes = CopySegment { source: 0, destination: 0, source_lba: from, destination_lba: to, len };
        let parameters = list(2, &[0], &[bytes]);
        world.refused(host, &copy_cdb(parameters.len()), &parameters, 0, 0x0a_0000);
    }
    assert_eq!(world.lent(), 0);
}

/// Two copies change halves of the same blocks at once: neither undoes the other's.
#[test]
fn parts_of_one_block_are_copied_by_two_hosts() {
    let mut world = World::new(2);
    world.add(8192, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(0, "iqn.b", &[0]));
    world.write(a, 0, &[block(1), block(2)].concat());
    let half = |id, from, offset| {
        let segments: Vec<CopySegment> = (0..32)
            .map(|at| {
                let len = CopyLen::Bytes { count: 256, source_offset: offset, destination_offset: offset };
                CopySegment { source: 0, destination: 0, source_lba: from, destination_lba: 100 + at, len }
            })
            .collect();
        list(id, &[0], &segments)
    };
    let (left, right) = (half(1, 0, 0), half(2, 1, 256));
    let one = world.start(a, &copy_cdb(left.len()), &left, 0);
    let other = world.start(b, &copy_cdb(right.len()), &right, 0);
    world.run();
    assert_eq!(world.outcome(one).status, Status::GOOD);
    assert_eq!(world.outcome(other).status, Status::GOOD);
    let both = [&block(1)[..256], &block(2)[256..]].concat().repeat(32);
    assert!(world.read(a, 100, 32) == both);
    assert_eq!(world.lent(), 0);
}

/// A LUN of somebody else, too many segments, spans that overlap or lie beyond the end.
#[test]
fn attack_49_copies_reach_only_own_units() {
    let (mut world, a, b) = two();
    world.write(a, 0, &block(7));
    let foreign = list(1, &[0, 1], &[segment(0, 1, 0, 0, 1)]);
    world.refused(b, &copy_cdb(foreign.len()), &foreign, 0, 0x0a_0d02);
    let foreign = list(1, &[0, 1], &[segment(1, 0, 0, 0, 1)]);
    world.refused(b, &copy_cdb(foreign.len()), &foreign, 0, 0x0a_0d02);
    assert_eq!(world.good(b, &results(0, 1), &[], 255)[4], 0x82);
    let unknown = list(2, &[9], &[segment(0, 0, 0, 0, 1)]);
    world.refused(a, &copy_cdb(unknown.len()), &unknown, 0, 0x0a_0d02);
    let beyond = list(3, &[0], &[segment(0, 1, 0, 0, 1)]);
    world.refused(a, &copy_cdb(beyond.len()), &beyond, 0, 0x0a_0804);
    for (from, to) in [(8192, 0), (0, 8192), (8191, 0), (u64::MAX, 0), (0, u64::MAX)] {
        let parameters = list(4, &[0], &[segment(0, 0, from, to, 2)]);
        world.refused(a, &copy_cdb(parameters.len()), &parameters, 0, 0x0a_0000);
    }
    // Limits: segments, targets, the list's length; a list that ends early.
    let many = list(5, &[0], &[segment(0, 0, 0, 8, 1); 65]);
    world.refused(a, &copy_cdb(many.len()), &many, 0, 0x05_2608);
    let many = list(5, &[0; 9], &[segment(0, 0, 0, 8, 1)]);
    world.refused(a, &copy_cdb(many.len()), &many, 0, 0x05_2606);
    world.refused(a, &copy_cdb(1 << 20), &vec![0; 1 << 20], 0, 0x05_1a00);
    let whole = list(5, &[0], &[segment(0, 0, 0, 8, 1)]);
    world.refused(a, &copy_cdb(whole.len() - 8), &whole[..whole.len() - 8], 0, 0x05_1a00);
    world.refused(a, &copy_cdb(whole.len()), &whole[..40], 0, 0x05_1a00);
    // Overlapping: chunk by chunk, and it ends.
    let overlapping = list(6, &[0], &[segment(0, 0, 0, 1, 4096)]);
    world.good(a, &copy_cdb(overlapping.len()), &overlapping, 0);
    assert_eq!(world.read(a, 1, 1), block(7));
    // A unit that may only be read.
    let entry = |lun: u16, read_only| LunEntry { lun, volume: VolumeId(u64::from(lun)), read_only };
    world.server(a).change_luns(a.key, vec![entry(0, false), entry(1, true)]);
    assert_eq!(world.command(a, &[0; 6], &[], 0).code(), 0x06_3f0e);
    let parameters = list(7, &[0, 1], &[segment(0, 1, 0, 0, 1)]);
    world.refused(a, &copy_cdb(parameters.len()), &parameters, 0, 0x07_2700);
    let parameters = list(7, &[0, 1], &[segment(1, 0, 0, 0, 1)]);
    world.good(a, &copy_cdb(parameters.len()), &parameters, 0);
    assert_eq!(world.lent(), 0);
}

/// A name that two volumes of a nexus have names neither.
#[test]
fn attack_49_a_name_of_two_volumes_is_no_copys_target() {
    let (mut world, a, b) = two();
    world.named_alike = true;
    let twin = world.add(8192, |_| {});
    world.write(a, 0, &block(7));
    let parameters = list(1, &[0, 1], &[segment(0, 1, 0, 5, 1), segment(1, 0, 5, 9, 1)]);
    world.good(a, &copy_cdb(parameters.len()), &parameters, 0);
    let entries = [0, 1, twin.0].map(|volume| LunEntry {
        lun: volume as u16,
        volume: VolumeId(volume),
        read_only: false,
    });
    world.server(a).change_luns(a.key, entries.into());
    assert_eq!(world.command(a, &[0; 6], &[], 0).code(), 0x06_3f0e);
    world.refused(a, &copy_cdb(parameters.len()), &parameters, 0, 0x0a_0d02);
    // A nexus that does not reach the other one means its own.
    let own = list(2, &[0], &[segment(0, 0, 9, 11, 1)]);
    world.good(b, &copy_cdb(own.len()), &own, 0);
    assert_eq!(world.read(a, 11, 1), block(7));
}

/// Volumes of other targets: those that the initiator would reach there, and as it would. They are asked for at each copy,
/// and looked at again before each chunk.
#[test]
fn attack_49_copies_reach_what_a_login_to_another_target_would() {
    let (mut world, _, b) = two();
    world.write(b, 0, &block(7));
    let forth = list(1, &[0, 1], &[segment(0, 1, 0, 5, 1)]);
    let back = list(2, &[0, 1], &[segment(1, 0, 5, 9, 1)]);
    world.refused(b, &copy_cdb(forth.len()), &forth, 0, 0x0a_0d02);
    let other = |read_only| vec![CopyVolume { volume: VolumeId(1), read_only }];
    world.copy_volumes = other(false);
    world.good(b, &copy_cdb(forth.len()), &forth, 0);
    world.good(b, &copy_cdb(back.len()), &back, 0);
    assert_eq!(world.read(b, 9, 1), block(7));
    // It stays no logical unit of this nexus.
    assert_eq!(world.command_on(b, 1, &read_10(5, 1), &[], 512).code(), 0x05_2500);
    world.copy_volumes = other(true);
    world.refused(b, &copy_cdb(forth.len()), &forth, 0, 0x07_2700);
    world.good(b, &copy_cdb(back.len()), &back, 0);
    // Not any more: while a copy is under way, and for the next.
    world.copy_volumes = other(false);
    let long = list(3, &[0, 1], &[segment(0, 1, 0, 0, 8000)]);
    world.disks.hold.set(true);
    let copy = world.start(b, &copy_cdb(long.len()), &long, 0);
    world.run();
    assert!(world.server(b).has_copy_volumes(b.key));
    world.server(b).change_copy_volumes(b.key, Vec::new());
    world.copy_volumes.clear();
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(copy).code(), 0x0a_0d02);
    world.refused(b, &copy_cdb(forth.len()), &forth, 0, 0x0a_0d02);
    assert_eq!(world.lent(), 0);
}

fn reserve_out(
    world: &mut World,
    host: Host,
    lun: u16,
    action: u8,
    kind: u8,
    key: u64,
    service: u64,
) -> Status {
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&service.to_be_bytes());
    world.command_on(host, lun, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0).status
}

/// Somebody else's reservation on either end of a copy, or under a WRITE SAME.
#[test]
fn attack_50_reservations_stop_copies_and_write_same() {
    let mut world = World::new(2);
    world.add(8192, |_| {});
    world.add(8192, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0, 1]), world.host(1, "iqn.b", &[0, 1]));
    let forth = list(1, &[0, 1], &[segment(0, 1, 0, 0, 1024)]);
    let back = list(2, &[0, 1], &[segment(1, 0, 0, 0, 1024)]);
    for kind in [1, 3] {
        assert_eq!(reserve_out(&mut world, b, 1, 0, 0, 0, 5), Status::GOOD);
        assert_eq!(reserve_out(&mut world, b, 1, 1, kind, 5, 0), Status::GOOD);
        world.conflicts(a, &copy_cdb(forth.len()), &forth, 0);
        match kind {
            3 => world.conflicts(a, &copy_cdb(back.len()), &back, 0),
            _ => drop(world.good(a, &copy_cdb(back.len()), &back, 0)),
        }
        let same = world.command_on(a, 1, &cdb_16(0x93, 0, 0, 1), &block(1), 0);
        assert_eq!(same.status, Status::RESERVATION_CONFLICT);
        assert_eq!(reserve_out(&mut world, b, 1, 3, 0, 5, 0), Status::GOOD);
    }
    // Reserved while the copy runs: it stops, and nothing lands after the answer to RESERVE.
    world.command_on(a, 0, &cdb_16(0x93, 0, 0, 4096), &block(1), 0);
    let long = list(1, &[0, 1], &[segment(0, 1, 0, 0, 4096)]);
    assert_eq!(reserve_out(&mut world, b, 1, 0, 0, 0, 5), Status::GOOD);
    world.disks.hold.set(true);
    let copy = world.start(a, &copy_cdb(long.len()), &long, 0);
    world.run();
    world.disks.hold.set(false);
    let mut parameters = [0; 24];
    parameters[7] = 5;
    let lun = [0, 1, 0, 0, 0, 0, 0, 0];
    let cdb = [0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0];
    let reserve = world.start_as(b, &lun, TaskAttribute::SIMPLE, &cdb, &parameters, 0);
    world.run();
    assert_eq!(world.outcome(reserve).status, Status::GOOD);
    assert_eq!(world.outcome(copy).status, Status::RESERVATION_CONFLICT);
    let end = world.command_on(b, 1, &read_10(4095, 1), &[], 512);
    assert_eq!((end.status, end.data), (Status::GOOD, block(0).to_vec()));
    let status = world.good(a, &results(0, 1), &[], 255);
    assert_eq!(status[4], 0x82);
    assert_eq!(world.good(a, &results(4, 1), &[], 255)[56], 0x18);
}

#[test]
fn a_copy_can_be_aborted_and_leaves_room() {
    let (mut world, host, _) = two();
    let long = list(1, &[0, 1], &[segment(0, 1, 0, 0, 8000)]);
    world.disks.hold.set(true);
    let copy = world.start(host, &copy_cdb(long.len()), &long, 0);
    world.run();
    assert_eq!(world.good(host, &results(0, 1), &[], 255)[4], 0x80);
    world.refused(host, &copy_cdb(long.len()), &long, 0, 0x05_2600);
    let abort = world.manage(host, ManagementFunction::AbortTask { tag: Some(copy.key.tag) });
    world.run();
    assert_eq!(world.end(abort), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.end(copy), Some(End::Retired));
    assert_eq!(world.end(abort), Some(End::Other(ManagementOutcome::Complete)));
    assert_eq!(world.good(host, &results(0, 1), &[], 255)[4], 0x82);
    assert_eq!(world.server(host).context.copies, 0);
    world.good(host, &copy_cdb(long.len()), &long, 0);
    world.close(host);
    assert_eq!(world.lent(), 0);
}

#[test]
fn operating_parameters_leave_room_for_what_they_promise() {
    let (mut world, host, _) = two();
    let data = world.good(host, &results(3, 0), &[], 255);
    let number = |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap());
    let (targets, segments) = (number(8) >> 16, number(8) & 0xffff);
    assert!(32 * (targets + 1) + 28 <= number(12) && 32 + 28 * (segments + 1) <= number(12));
}

/// The count of copies is looked at when a list is asked for, and again when it is here.
#[test]
fn copies_whose_lists_come_all_at_once_are_no_more_than_may_be() {
    let (mut world, a, _) = two();
    let hosts = [a, world.host(0, "iqn.c", &[0, 1])];
    world.withhold = true;
    let mut copies = Vec::new();
    for host in hosts {
        for id in 0..150 {
            let parameters = list(id, &[0, 1], &[segment(0, 1, 0, 0, 8)]);
            copies.push(world.start(host, &copy_cdb(parameters.len()), &parameters, 0));
        }
    }
    world.withhold = false;
    world.disks.hold.set(true);
    for copy in &copies {
        world.send_withheld(*copy);
    }
    let busy = copies.iter().filter(|copy| world.end(**copy).is_some()).count();
    assert_eq!((usize::from(world.server(a).context.copies), busy), (64, 300 - 64));
    world.disks.hold.set(false);
    world.run();
    let good = copies.iter().filter(|copy| world.outcome(**copy).status == Status::GOOD).count();
    assert_eq!((good, world.server(a).context.copies), (64, 0));
    hosts.into_iter().for_each(|host| world.close(host));
    assert_eq!(world.lent(), 0);
}
