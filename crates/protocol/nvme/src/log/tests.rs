//! Golden bytes. Offsets: Linux `include/linux/nvme.h` (nvme_get_log_page_command, nvme_smart_log,
//! nvme_effects_log, nvme_ana_rsp_hdr, nvme_ana_group_desc, nvmf_disc_rsp_page_hdr,
//! nvmf_disc_rsp_page_entry, nvme_error_slot) and SPDK `spdk/nvme_spec.h`, `spdk/nvmf_spec.h`.

use std::mem::offset_of;

use super::health::{SmartHealthLog, to_data_units};
use super::*;
use crate::feature::FeatureId;
use crate::name::Nqn;

#[test]
fn the_command_is_cut_at_its_offsets() {
    let mut raw = [0; 64];
    (raw[0], raw[4]) = (2, 3);
    raw[40..56].copy_from_slice(&[0x70, 0x81, 0xff, 0x03, 0x01, 0, 0, 0, 0x08, 7, 0, 0, 1, 0, 0, 0]);
    (raw[58], raw[59]) = (0x80, 2);
    let page = GetLogPage::parse(&Sqe::read_from_bytes(&raw).unwrap());
    let expected = GetLogPage {
        lid: LogPageId::DISCOVERY,
        specific: 1,
        retain: true,
        len: 0x0001_0400 * 4,
        offset: 0x1_0000_0708,
        by_index: true,
        command_set: 2,
        nsid: 3,
    };
    assert_eq!(page, expected);
    let all = GetLogPage::parse(&Sqe::read_from_bytes(&[0xff; 64]).unwrap());
    assert_eq!(all.len, 1 << 34);
}

#[test]
fn fixed_structures_have_their_fields_at_their_offsets() {
    macro_rules! at {
        ($kind:ident: $($field:ident $offset:literal),+ $(,)?) => {
            $(assert_eq!(offset_of!($kind, $field), $offset, stringify!($field));)+
        };
    }
    at!(ErrorEntry: count 0, sqid 8, cid 10, status 12, parameter 14, lba 16, nsid 24, vendor 28);
    at!(ErrorEntry: transport 29, specific 32, transport_specific 40);
    at!(SmartHealthLog: critical 0, temperature 1, spare 3, spare_threshold 4, used 5, units_read 32);
    at!(SmartHealthLog: units_written 48, reads 64, writes 80, busy 96, power_cycles 112, power_on 128);
    at!(SmartHealthLog: unsafe_shutdowns 144, media_errors 160, error_entries 176, warning_minutes 192);
    use super::discovery::{DiscoveryLogHeader, DiscoveryRecord};
    at!(DiscoveryLogHeader: generation 0, records 8, format 16);
    at!(DiscoveryRecord: transport 0, family 1, subtype 2, requirements 3, port 4, cntlid 6, admin_entries 8, flags 10);
    at!(DiscoveryRecord: service 32, subsystem 256, address 512, specific 768);
}

#[test]
fn data_units_are_thousands_of_512_bytes_rounded_up() {
    assert_eq!(to_data_units(0), 0.into());
    assert_eq!(to_data_units(1), 1.into());
    assert_eq!(to_data_units(512_000), 1.into());
    assert_eq!(to_data_units(512_001), 2.into());
}

#[test]
fn supported_pages_and_features_say_yes_at_their_places() {
    let pages = encode_supported_pages(&[LogPageId::SUPPORTED_PAGES, LogPageId::ANA, LogPageId::RESERVATION]);
    assert_eq!((pages[0], pages[4], pages[48], pages[512]), (1, 0, 1, 1));
    assert_eq!(pages.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 3);
    let features = effects::encode_feature_effects(
        [
            (FeatureId::KEEP_ALIVE_TIMER, effects::FeatureScope::Controller, false),
            (FeatureId::NAMESPACE_WRITE_PROTECTION, effects::FeatureScope::Namespace, true),
        ]
        .into_iter(),
    );
    assert_eq!(features[60..64], [0x01, 0, 0x20, 0]);
    assert_eq!(features[528..532], [0x05, 0, 0x10, 0]);
}

#[test]
fn effects_stand_by_opcode_in_two_sets() {
    use super::effects::CommandEffects;
    let page = effects::encode_command_effects(
        &[(0x06, CommandEffects::SUPPORTED)],
        &[(0x01, CommandEffects::WRITES)],
    );
    assert_eq!(page[24..28], [1, 0, 0, 0]);
    assert_eq!(page[1028..1032], [3, 0, 0, 0]);
    assert_eq!(page.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 4);
}

#[test]
fn small_pages_stand_at_their_offsets() {
    let slot = encode_firmware_slot(*b"1.2     ");
    assert_eq!((slot[0], &slot[8..16], slot[16]), (1, &b"1.2     "[..], 0));
    let changed = encode_changed_namespaces(&[3, 0x102]);
    assert_eq!(changed[..12], [3, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    let many: Vec<u32> = (1..=1025).collect();
    assert_eq!(encode_changed_namespaces(&many[..1024])[4092..], 1024_u32.to_le_bytes());
    assert_eq!(encode_changed_namespaces(&many)[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let page = encode_reservation_notification(0x0102, ReservationNotice::ReservationPreempted, 4, 0x0506);
    assert_eq!(page[..16], [2, 1, 0, 0, 0, 0, 0, 0, 3, 4, 0, 0, 6, 5, 0, 0]);
    // Built by hand from NVMe Base 2.0, figure 240.
    let page = encode_reservation_notification(0x0203, ReservationNotice::ReservationReleased, 4, 0x0506);
    assert_eq!(page[..16], [3, 2, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 6, 5, 0, 0]);
}

#[test]
fn ana_groups_carry_their_namespaces_unless_only_groups_are_wanted() {
    use super::ana::{AnaGroup, AnaState, encode_page};
    let groups = [
        AnaGroup { id: 1, changes: 7, state: AnaState::Optimized, nsids: vec![1, 3] },
        AnaGroup { id: 9, changes: 2, state: AnaState::Change, nsids: vec![2] },
    ];
    let full = encode_page(8, &groups, false);
    assert_eq!(full.len(), 16 + 32 + 8 + 32 + 4);
    assert_eq!(full[..16], [8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(full[16..33], [1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(full[48..56], [1, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(full[56..73], [9, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 15]);
    let short = encode_page(8, &groups, true);
    assert_eq!((short.len(), short[20]), (16 + 64, 0));
}

#[test]
fn records_tell_address_and_service_in_ascii() {
    use super::discovery::DiscoveryRecord;
    let nqn = Nqn::parse("nqn.2026-11.io.blockwire:demo").unwrap();
    let record = DiscoveryRecord::new_tcp(
        DiscoveryRecord::SUBTYPE_NVM,
        &nqn,
        "192.0.2.1:4420".parse().unwrap(),
        7,
        128,
    );
    let bytes = record.as_bytes();
    assert_eq!(bytes[..12], [3, 1, 2, 4, 7, 0, 0xff, 0xff, 128, 0, 0, 0]);
    assert_eq!(&bytes[32..38], b"4420  ");
    assert_eq!(bytes[63], b' ');
    assert_eq!(&bytes[256..286], b"nqn.2026-11.io.blockwire:demo\0");
    assert_eq!(&bytes[512..523], b"192.0.2.1  ");
    assert_eq!(bytes[768], 0);
    let six = DiscoveryRecord::new_tcp(
        DiscoveryRecord::SUBTYPE_REFERRAL,
        &nqn,
        "[2001:db8::1]:8009".parse().unwrap(),
        1,
        32,
    );
    assert_eq!((six.family, six.subtype, &six.address[..12]), (2, 1, &b"2001:db8::1 "[..]));
}
