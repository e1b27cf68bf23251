use super::*;
use crate::extended_copy::CopyLimits;

const UUID: [u8; 16] =
    [0x6b, 0x1f, 0x0c, 0x54, 0x9a, 0x3e, 0x4d, 0x21, 0x8f, 0x60, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc];
const UNIT: UnitNames<'static> = UnitNames { uuid: UUID, vendor: b"BLOCKWIR", oui: None };
const PORT: TargetPort<'static> =
    TargetPort { target: "iqn.2026-11.io.blockwire:demo", portal_group: 0x1a, relative: 3, group: 7 };

fn written(f: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = [0xee; 1024];
    let mut w = Writer::new(&mut out);
    f(&mut w);
    let len = w.written_len();
    for allocation in 0..len {
        let mut cut = [0xee; 1024];
        let mut w = Writer::with_allocation_length(&mut cut, allocation);
        f(&mut w);
        assert_eq!((w.len(), w.written_len()), (len, allocation));
        assert_eq!(cut[..allocation], out[..allocation], "a cut page is the beginning of the whole");
        assert!(cut[allocation..].iter().all(|b| *b == 0xee));
    }
    assert_eq!(usize::from(be16(&out, 2)), len - 4, "the length is that of the whole page");
    out[..len].to_vec()
}

#[test]
fn supported_and_serial() {
    let codes = [SUPPORTED_PAGES, UNIT_SERIAL_NUMBER, DEVICE_IDENTIFICATION, BLOCK_LIMITS];
    assert_eq!(
        written(|w| encode_supported_pages(Peripheral::DISK, &codes, w)),
        [0, 0, 0, 4, 0, 0x80, 0x83, 0xb0]
    );
    assert_eq!(
        written(|w| encode_serial_number(Peripheral::DISK, b"ab1", w)),
        [0, 0x80, 0, 3, b'a', b'b', b'1']
    );
}

#[test]
#[should_panic(expected = "page codes ascend")]
fn page_codes_ascend() {
    let mut out = [0; 16];
    encode_supported_pages(
        Peripheral::DISK,
        &[UNIT_SERIAL_NUMBER, SUPPORTED_PAGES],
        &mut Writer::new(&mut out),
    );
}

#[test]
fn identification_page() {
    let data = written(|w| encode_identification(Peripheral::DISK, Some(&UNIT), &PORT, w));
    let found: Vec<_> = decode_designators(page_body(DEVICE_IDENTIFICATION, &data).unwrap()).collect();
    let expected: &[(CodeSet, Association, DesignatorType, &[u8])] = &[
        (CodeSet::ASCII, Association::UNIT, DesignatorType::T10, b"BLOCKWIR6b1f0c549a3e4d218f60123456789abc"),
        (
            CodeSet::BINARY,
            Association::UNIT,
            DesignatorType::NAA,
            &[0x34, 0x7f, 0x1e, 0x60, 0xcc, 0x46, 0xd7, 0x9d],
        ),
        (
            CodeSet::BINARY,
            Association::UNIT,
            DesignatorType::UUID,
            &[
                0x10, 0, 0x6b, 0x1f, 0x0c, 0x54, 0x9a, 0x3e, 0x4d, 0x21, 0x8f, 0x60, 0x12, 0x34, 0x56, 0x78,
                0x9a, 0xbc,
            ],
        ),
        (CodeSet::BINARY, Association::PORT, DesignatorType::RELATIVE_PORT, &[0, 0, 0, 3]),
        (CodeSet::BINARY, Association::PORT, DesignatorType::PORT_GROUP, &[0, 0, 0, 7]),
        (
            CodeSet::UTF_8,
            Association::PORT,
            DesignatorType::NAME,
            b"iqn.2026-11.io.blockwire:demo,t,0x001a\0\0",
        ),
        (CodeSet::UTF_8, Association::DEVICE, DesignatorType::NAME, b"iqn.2026-11.io.blockwire:demo\0\0\0"),
    ];
    assert_eq!(found.len(), expected.len());
    for (designator, (code_set, association, kind, bytes)) in found.iter().zip(expected) {
        let wanted = Designator { code_set: *code_set, association: *association, kind: *kind, bytes };
        assert_eq!(*designator, wanted);
        assert_eq!(UNIT.is_named_by(designator), *association == Association::UNIT);
    }
    // The relative port: no protocol; the name: iSCSI.
    let at = 4 + 44 + 12 + 22;
    assert_eq!(data[at..at + 4], [1, 0x14, 0, 4]);
    assert_eq!(data[at + 16..at + 20], [0x53, 0x98, 0, 40]);

    let without = written(|w| encode_identification(Peripheral::WELL_KNOWN, None, &PORT, w));
    assert_eq!(decode_designators(page_body(DEVICE_IDENTIFICATION, &without).unwrap()).count(), 4);
    let uuids: Vec<_> = decode_designators(page_body(DEVICE_IDENTIFICATION, &data).unwrap())
        .filter_map(|d| d.uuid())
        .collect();
    assert_eq!(uuids, [UUID]);
    let numbers: Vec<_> = decode_designators(page_body(DEVICE_IDENTIFICATION, &data).unwrap())
        .filter_map(|d| d.port_or_group_number())
        .collect();
    assert_eq!(numbers, [PORT.relative, PORT.group]);
    let other = UnitNames { uuid: [0; 16], ..UNIT };
    assert!(found.iter().all(|designator| !other.is_named_by(designator)));
}

#[test]
fn lying_lengths_of_designators_are_bounded() {
    assert_eq!(decode_designators(&[1, 3, 0, 8, 1, 2, 3]).count(), 0);
    assert_eq!(decode_designators(&[1, 3, 0, 1, 1, 1, 3]).count(), 1);
    assert_eq!(page_body(DEVICE_IDENTIFICATION, &[0, 0x83, 0xff, 0xff, 9]), Some(&[9][..]));
    assert_eq!(page_body(UNIT_SERIAL_NUMBER, &[0, 0x83, 0, 0]), None);
    assert_eq!(page_body(UNIT_SERIAL_NUMBER, &[0, 0x80]), None);
}

#[test]
fn extended_policy_and_ports() {
    let extended = ExtendedInquiry { volatile_cache: true, sense_len_max: 28 };
    let data = written(|w| extended.encode(Peripheral::DISK, w));
    assert_eq!((data.len(), data[3]), (64, 0x3c));
    assert_eq!(data[4..14], [0, 7, 1, 0, 0, 0, 0, 0, 0, 28]);
    assert_eq!(written(|w| encode_mode_page_policy(Peripheral::DISK, w)), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
    let data = written(|w| encode_scsi_ports(Peripheral::DISK, [PORT, PORT].into_iter(), w));
    assert_eq!(data.len(), 4 + 2 * (12 + 44));
    assert_eq!(data[4..20], [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 44, 0x53, 0x98, 0, 40]);
}

#[test]
fn block_limits() {
    let limits = BlockLimits {
        write_same_non_zero: true,
        compare_and_write_max: 128,
        granularity: 8,
        transfer_max: 2048,
        transfer_optimal: 256,
        prefetch_max: 0,
        unmap_blocks_max: 0x10_0000,
        unmap_descriptors_max: 256,
        unmap_granularity: 8,
        unmap_alignment: Some(0),
        write_same_max: 0x1_0000_0000,
        atomic_max: 8,
        atomic_alignment: 1,
        atomic_granularity: 2,
        atomic_max_with_boundary: 4,
        atomic_boundary_max: 5,
    };
    let data = written(|w| limits.encode(Peripheral::DISK, w));
    #[rustfmt::skip]
    assert_eq!(data, [
        0, 0xb0, 0, 0x3c, 1, 128, 0, 8, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 1, 0,
        0, 0, 0, 8, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2,
        0, 0, 0, 4, 0, 0, 0, 5,
    ]);
    assert_eq!(BlockLimits::decode(&data), Some(limits));
    let none = written(|w| BlockLimits::default().encode(Peripheral::DISK, w));
    assert_eq!(BlockLimits::decode(&none), Some(BlockLimits::default()));
    // The short page of SBC-2.
    let short = BlockLimits::decode(&[0, 0xb0, 0, 12, 0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0, 64]).unwrap();
    assert_eq!((short.transfer_max, short.transfer_optimal, short.unmap_blocks_max), (256, 64, 0));
}

#[test]
fn characteristics_and_provisioning() {
    let ssd = BlockDeviceCharacteristics {
        rotation_rate: 1,
        after_block_erase: ReadAfterErase::READABLE,
        form_factor: 0,
        fua_behavior: true,
        verify_unmapped: false,
    };
    let data = written(|w| ssd.encode(Peripheral::DISK, w));
    assert_eq!((data.len(), &data[..10]), (64, &[0, 0xb1, 0, 0x3c, 0, 1, 0, 0x40, 2, 0][..]));
    assert_eq!(BlockDeviceCharacteristics::decode(&data), Some(ssd));

    let thin = LogicalBlockProvisioning {
        threshold_exponent: 1,
        unmap: true,
        write_same_16: true,
        write_same_10: true,
        reads_zeros: true,
        anchor: false,
        kind: ProvisioningType::THIN,
    };
    let data = written(|w| thin.encode(Peripheral::DISK, w));
    assert_eq!(data, [0, 0xb2, 0, 4, 1, 0xe4, 2, 0]);
    assert_eq!(LogicalBlockProvisioning::decode(&data), Some(thin));
}

#[test]
fn third_party_copy_page() {
    let limits = CopyLimits {
        targets: 2,
        segments: 16,
        descriptors_len: 1024,
        segment_len: 0x100_0000,
        concurrent: 4,
        granularity: 9,
    };
    let data = written(|w| encode_third_party_copy(Peripheral::DISK, &limits, w));
    #[rustfmt::skip]
    assert_eq!(data[..24], [
        0, 0x8f, 0, 92, 0, 1, 0, 12, 9, 0x83, 1, 0, 0x84, 4, 0, 1, 3, 4, 0, 0, 0, 4, 0, 28,
    ]);
    assert_eq!(data[28..36], [0, 2, 0, 16, 0, 0, 4, 0]);
    assert_eq!(data[52..60], [0, 8, 0, 4, 3, 0x02, 0x0a, 0xe4]);
    assert_eq!(data[60..77], [0x80, 1, 0, 32, 0, 0, 0, 4, 0, 0, 0, 4, 1, 0, 0, 0, 9]);
    assert_eq!(data.len(), 96);
}

// SPC-4 table "NAA IEEE Registered Extended designator format".
#[test]
fn an_oui_gives_a_registered_extended_name() {
    let naa = naa_registered_extended([0x00, 0x11, 0xaa], &UUID);
    assert_eq!(naa[..8], [0x60, 0x01, 0x1a, 0xa4, 0x9a, 0x3e, 0x4d, 0x21]);
    assert_eq!(naa[8..12], UUID[8..12]);
    assert_eq!(naa[12..], [0x56 ^ 0x6b, 0x78 ^ 0x1f, 0x9a ^ 0x0c, 0xbc ^ 0x54]);
    let unit = UnitNames { oui: Some([0x00, 0x11, 0xaa]), ..UNIT };
    let data = written(|w| encode_identification(Peripheral::DISK, Some(&unit), &PORT, w));
    let found = decode_designators(page_body(DEVICE_IDENTIFICATION, &data).unwrap());
    let names: Vec<_> = found.filter(|name| name.kind == DesignatorType::NAA).collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].bytes, naa);
    assert!(unit.is_named_by(&names[0]) && !UNIT.is_named_by(&names[0]));
    // Two of one machine and one tick of a clock (UUID version 1).
    let mut next = UUID;
    next[0] ^= 1;
    assert_ne!(naa_registered_extended([0, 0x11, 0xaa], &next), naa);
}
