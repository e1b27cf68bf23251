//! What logical units, and LUNs without one, report about themselves.

use scsi::Status;
use scsi::inquiry::StandardInquiry;
use scsi::vpd::{
    self, BlockDeviceCharacteristics, BlockLimits, LogicalBlockProvisioning, ProvisioningType,
    naa_locally_assigned,
};

use super::*;

fn page(code: u8) -> [u8; 6] {
    [0x12, 1, code, 0, 255, 0]
}

#[test]
fn inquiry_is_the_same_at_every_length() {
    let (mut world, host) = disk();
    let whole = world.good(host, &[0x12, 0, 0, 2, 0, 0], &[], 512);
    assert_eq!((whole.len(), whole[2], whole[3] & 0x0f, whole[4]), (74, 6, 2, 69));
    let decoded = StandardInquiry::decode(&whole).unwrap();
    assert_eq!((decoded.vendor, decoded.product), (b"BLOCKWIR".as_slice(), b"Volume".as_slice()));
    assert!(decoded.third_party_copy && decoded.multi_port && !decoded.removable);
    for len in 5..=255u8 {
        let part = world.good(host, &[0x12, 0, 0, 0, len, 0], &[], u32::from(len));
        assert_eq!(part, whole[..part.len()]);
        assert_eq!(part.len(), usize::from(len).min(74));
    }
    world.refused(host, &[0x12, 0, 0x83, 0, 255, 0], &[], 255, 0x05_2400);
}

#[test]
fn every_listed_page_is_there_and_no_other() {
    let (mut world, host) = disk();
    let listed = world.good(host, &page(0), &[], 255)[4..].to_vec();
    assert_eq!(listed, [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
    for code in 0..=255 {
        if listed.contains(&code) {
            let data = world.good(host, &page(code), &[], 255);
            assert_eq!(data[1], code);
            let len = usize::from(u16::from_be_bytes([data[2], data[3]]));
            assert_eq!(data.len(), (len + 4).min(255));
        } else {
            world.refused(host, &page(code), &[], 255, 0x05_2400);
        }
    }
}

#[test]
fn the_limits_are_those_of_the_volume() {
    let (mut world, host) = disk();
    let limits = BlockLimits::decode(&world.good(host, &page(0xb0), &[], 255)).unwrap();
    assert_eq!((limits.transfer_max, limits.compare_and_write_max, limits.atomic_max), (2048, 255, 2048));
    assert!(limits.write_same_max >= 256 && limits.write_same_max < 65536 && !limits.write_same_non_zero);
    assert!(limits.unmap_blocks_max >= 8 && limits.unmap_blocks_max <= 1 << 20);
    assert!(limits.unmap_descriptors_max >= 256 && limits.unmap_granularity == 8);
    let thin = LogicalBlockProvisioning::decode(&world.good(host, &page(0xb2), &[], 255)).unwrap();
    assert!(thin.unmap && thin.write_same_10 && thin.write_same_16 && thin.reads_zeros && !thin.anchor);
    assert_eq!(thin.kind, ProvisioningType::THIN);
    let kind = BlockDeviceCharacteristics::decode(&world.good(host, &page(0xb1), &[], 255)).unwrap();
    assert_eq!((kind.rotation_rate, kind.after_block_erase.0), (1, 1));

    let mut world = World::new(1);
    world.add(4096, |geometry| (geometry.thin, geometry.atomic) = (false, 0));
    let host = world.host(0, "iqn.a", &[0]);
    let limits = BlockLimits::decode(&world.good(host, &page(0xb0), &[], 255)).unwrap();
    assert_eq!((limits.unmap_blocks_max, limits.unmap_descriptors_max, limits.atomic_max), (0, 0, 0));
    let kind = BlockDeviceCharacteristics::decode(&world.good(host, &page(0xb1), &[], 255)).unwrap();
    assert_eq!(kind.after_block_erase.0, 0);
    // Without provisioning there is no block erase, and without atomic writes no WRITE ATOMIC.
    world.refused(host, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0, 0x05_2400);
    world.refused(host, &cdb_16(0x9c, 0, 0, 1), &block(0), 0, 0x05_2000);
}

#[test]
fn names_come_from_the_uuid_and_the_port() {
    let (mut world, host) = disk();
    let data = world.good(host, &page(0x83), &[], 255);
    let all: Vec<_> = vpd::decode_designators(vpd::page_body(0x83, &data).unwrap())
        .map(|one| (one.association.0, one.kind.0, one.bytes.len()))
        .collect();
    // T10, NAA, UUID of the unit; relative port, group and name of the port; name of the target.
    assert_eq!(all[..5], [(0, 1, 40), (0, 3, 8), (0, 10, 18), (1, 4, 4), (1, 5, 4)]);
    assert_eq!([(all[5].0, all[5].1), (all[6].0, all[6].1)], [(1, 8), (2, 8)]);
    let naa =
        vpd::decode_designators(vpd::page_body(0x83, &data).unwrap()).find(|one| one.kind.0 == 3).unwrap();
    assert_eq!(naa.bytes, naa_locally_assigned(&uuid(0)));
    let serial = world.good(host, &page(0x80), &[], 255);
    assert_eq!(&serial[4..], b"0123456789ab4cde8f00112233445500");
    let ports = world.good(host, &page(0x88), &[], 255);
    assert_eq!(ports[6..8], [0, 1]);
}

#[test]
fn capacity_in_both_forms() {
    let (mut world, host) = disk();
    assert_eq!(world.good(host, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8), [0, 0, 0x7f, 0xff, 0, 0, 2, 0]);
    let whole = world.good(host, &cdb_16(0x9e, 0x10, 0, 32), &[], 32);
    assert_eq!(whole[7..16], [0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
    for len in 0..16 {
        assert_eq!(world.good(host, &cdb_16(0x9e, 0x10, 0, len), &[], 32), whole[..len as usize]);
    }
}

/// LUN fields in every form: peripheral, flat, well known, beyond what there is, and garbage.
#[test]
fn attack_52_lun_fields() {
    let (mut world, host) = disk();
    let mut on = |field: [u8; 8], cdb: &[u8]| {
        let started = world.start_as(host, &field, TaskAttribute::SIMPLE, cdb, &[], 255);
        world.run();
        world.outcome(started)
    };
    let ready = [0; 6];
    for field in
        [[0; 8], [0x40, 0, 0, 0, 0, 0, 0, 0], [0xd2, 0, 0, 0, 0, 0, 0, 0], [0xc1, 1, 0, 0, 0, 0, 0, 0]]
    {
        assert_eq!(on(field, &ready).status, Status::GOOD, "{field:02x?}");
    }
    for field in [
        [0, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0x7f, 0xff, 0, 0, 0, 0, 0, 0],
        [0x80, 0, 0, 0, 0, 0, 0, 0],
        [0xd2, 0, 0x40, 0, 0, 0, 0, 0],
        [0xd2, 1, 0, 0, 0, 0, 0, 0],
        [0xc1, 2, 0, 0, 0, 0, 0, 0],
        [0xff; 8],
    ] {
        assert_eq!(on(field, &ready).code(), 0x05_2500, "{field:02x?}");
        assert_eq!(on(field, &read_10(0, 1)).code(), 0x05_2500);
        let inquiry = on(field, &[0x12, 0, 0, 0, 255, 0]);
        assert_eq!((inquiry.status, inquiry.data[0]), (Status::GOOD, 0x7f));
        let sense = on(field, &[0x03, 0, 0, 0, 255, 0]);
        assert_eq!((sense.status, sense.data[2], sense.data[12]), (Status::GOOD, 5, 0x25));
        let luns = on(field, &[0xa0, 0, 2, 0, 0, 0, 0, 0, 0, 255, 0, 0]);
        assert_eq!(luns.data[..4], [0, 0, 0, 16]);
    }
    // The well known logical unit.
    let w_lun = [0xc1, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(on(w_lun, &[0x12, 0, 0, 0, 255, 0]).data[0], 0x1e);
    assert_eq!(on(w_lun, &page(0x83)).data[1], 0x83);
    assert_eq!(on(w_lun, &page(0xb0)).code(), 0x05_2400);
    assert_eq!(on(w_lun, &read_10(0, 1)).code(), 0x05_2000);
}

/// Service actions out of range, and combinations that do not fit.
#[test]
fn attack_47_supported_opcodes() {
    let (mut world, host) = disk();
    let request = |options: u8, opcode: u8, action: u16, len: u16| {
        let [a, b] = action.to_be_bytes();
        let [c, d] = len.to_be_bytes();
        [0xa3, 0x0c, options, opcode, a, b, 0, 0, c, d, 0, 0]
    };
    for len in [1024u16, 65535] {
        for rctd in [0, 0x80] {
            let all = world.good(host, &request(rctd, 0, 0, len), &[], u32::from(len));
            let total = u32::from_be_bytes(all[..4].try_into().unwrap());
            assert_eq!(all.len(), (total as usize + 4).min(usize::from(len)));
        }
    }
    for (options, opcode, action) in
        [(2, 0x9e, 0x20), (2, 0x9e, 0xffff), (3, 0x9e, 0x1234), (4, 0, 0), (7, 0, 0)]
    {
        let got = world.command(host, &request(options, opcode, action, 255), &[], 255);
        assert_eq!(got.code(), 0x05_2400);
        assert!(matches!(got.sense.unwrap().specific, scsi::sense::SenseKeySpecific::Field(_)));
    }
    for (options, opcode) in [(1, 0x9e), (1, 0xa3), (2, 0x28)] {
        let got = world.command(host, &request(options, opcode, 0, 255), &[], 255);
        assert_eq!(got.code(), 0x05_2400);
        let scsi::sense::SenseKeySpecific::Field(field) = got.sense.unwrap().specific else {
            panic!("no field")
        };
        assert_eq!(field.byte, 2);
    }
    assert_eq!(world.good(host, &request(1, 0x28, 0, 255), &[], 255)[1..5], [3, 0, 10, 0x28]);
    assert_eq!(world.good(host, &request(1, 0xff, 0, 255), &[], 255)[1], 1);
    let functions = world.good(host, &[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16);
    assert_eq!(functions[..4], [0xde, 0x07, 0, 0x0c]);
}

#[test]
fn log_pages_count_what_is_mapped() {
    let (mut world, host) = disk();
    let request = |page: u8| [0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0, 255, 0];
    assert_eq!(world.good(host, &request(0), &[], 255), [0x80, 0, 0, 4, 0, 0x0c, 0x0d, 0x2f]);
    for lba in (0..3 * 4096).step_by(32) {
        world.write(host, lba, &block(1));
    }
    let data = world.good(host, &request(0x0c), &[], 255);
    let counts: Vec<_> = scsi::log::decode_parameters(&data)
        .map(|(code, value)| (code, scsi::log::decode_count(value).unwrap()))
        .collect();
    // 384 times 4 KiB are 1.5 MiB: two sets of 1 MiB of sixteen.
    assert_eq!(counts, [(1, 14), (2, 2)]);
    world.good(host, &request(0x0d), &[], 255);
    world.good(host, &request(0x2f), &[], 255);
    world.refused(host, &request(0x10), &[], 255, 0x05_2400);
}

/// Offsets and lengths beyond the echo buffer; and each nexus has its own.
#[test]
fn attack_48_echo_buffer() {
    let (mut world, host) = disk();
    let other = world.host(0, "iqn.b", &[0]);
    let access = |opcode, mode, id, offset: u32, len: u32| {
        let (o, l) = (offset.to_be_bytes(), len.to_be_bytes());
        [opcode, mode, id, o[1], o[2], o[3], l[1], l[2], l[3], 0]
    };
    assert_eq!(world.good(host, &access(0x3c, 0x0b, 0, 0, 4), &[], 4), [1, 0, 0x10, 0]);
    world.refused(host, &access(0x3c, 0x0a, 0, 0, 4096), &[], 4096, 0x05_2c00);
    world.good(host, &access(0x3b, 0x0a, 0, 0, 512), &block(3), 0);
    world.good(other, &access(0x3b, 0x0a, 0, 0, 512), &block(4), 0);
    assert_eq!(world.good(host, &access(0x3c, 0x0a, 0, 0, 4096), &[], 4096), block(3));
    for (mode, id, offset, len) in [
        (0x0a, 0, 0, 4097),
        (0x0a, 0, 4095, 2),
        (0x0a, 0, 0xff_ffff, 1),
        (0x0a, 1, 0, 8),
        (2, 0, 0, 8),
        (5, 0, 0, 8),
    ] {
        world.refused(host, &access(0x3b, mode, id, offset, len), &vec![0; len as usize], 0, 0x05_2400);
    }
    for (mode, id, offset) in [(0x0a, 0, 1), (0x0a, 7, 0), (2, 0, 0), (0x0a, 0, 0xff_ffff)] {
        world.refused(host, &access(0x3c, mode, id, offset, 8), &[], 8, 0x05_2400);
    }
    // More promised than sent.
    world.refused(host, &access(0x3b, 0x0a, 0, 0, 512), &[1; 8], 0, 0x05_1a00);
}

#[test]
fn small_services() {
    let (mut world, host) = disk();
    assert_eq!(world.good(host, &[0x37, 0, 0, 0, 0, 0, 0, 0, 32, 0], &[], 32), [0; 4]);
    assert_eq!(world.good(host, &[0xb7, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[], 32), [0; 8]);
    world.good(host, &[0x1d, 4, 0, 0, 0, 0], &[], 0);
    assert_eq!(world.good(host, &[0x03, 0, 0, 0, 255, 0], &[], 255)[2], 0);
    assert_eq!(world.good(host, &[0x03, 1, 0, 0, 255, 0], &[], 255)[..2], [0x72, 0]);
    world.refused(host, &[0xc1, 0, 0, 0, 0, 0], &[], 0, 0x05_2000);
    world.refused(host, &[0x12, 0, 0], &[], 0, 0x05_2400);
    // NACA.
    world.refused(host, &[0, 0, 0, 0, 0, 4], &[], 0, 0x05_2400);
}
