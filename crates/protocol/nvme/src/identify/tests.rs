//! Golden bytes. Offsets: Linux `include/linux/nvme.h` (nvme_id_ctrl, nvme_id_ns, nvme_id_ns_nvm,
//! nvme_id_ns_cs_indep, nvme_ns_id_desc, nvme_id_ctrl_nvm) and SPDK `spdk/nvme_spec.h`
//! (spdk_nvme_ctrlr_data, spdk_nvme_ns_data).

use std::mem::offset_of;

use zerocopy::{FromBytes, FromZeros};

use super::controller::IdentifyNvmController;
use super::*;

#[test]
fn the_controller_structure_has_its_fields_at_their_offsets() {
    macro_rules! at {
        ($($field:ident $offset:literal),+ $(,)?) => {
            $(assert_eq!(offset_of!(IdentifyController, $field), $offset, stringify!($field));)+
        };
    }
    at!(vid 0, ssvid 2, sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80);
    at!(rtd3r 84, rtd3e 88, oaes 92, ctratt 96, rrls 100, cntrltype 111, fguid 112, crdt 128, nvmsr 253);
    at!(crcap 134, ciu 135, cirn 136, ccrl 1807);
    at!(vwci 254, mec 255, oacs 256, acl 258, aerl 259, frmw 260, lpa 261, elpe 262, npss 263, kas 320);
    at!(anatt 342, anacap 343, anagrpmax 344, nanagrpid 348, cqt 386, sqes 512, cqes 513, maxcmd 514, nn 516);
    at!(oncs 520, fuses 522, fna 524, vwc 525, awun 526, awupf 528, icsvscc 530, nwpc 531, acwu 532);
    at!(cdfs 534, sgls 536, mnan 540, subnqn 768, ioccsz 1792, iorcsz 1796, icdoff 1800, fcatt 1802);
    at!(msdbd 1803, ofcs 1804, dctype 1806);
}

#[test]
fn the_namespace_structures_have_their_fields_at_their_offsets() {
    macro_rules! at {
        ($kind:ident: $($field:ident $offset:literal),+ $(,)?) => {
            $(assert_eq!(offset_of!($kind, $field), $offset, stringify!($field));)+
        };
    }
    at!(IdentifyNamespace: nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf 25, flbas 26, mc 27, dpc 28, dps 29, nmic 30);
    at!(IdentifyNamespace: rescap 31, fpi 32, dlfeat 33, nawun 34, nawupf 36, nacwu 38, noiob 46, nvmcap 48);
    at!(IdentifyNamespace: npwg 64, npwa 66, npdg 68, npda 70, nows 72, mssrl 74, mcl 76, msrc 80, anagrpid 92);
    at!(IdentifyNamespace: nsattr 99, nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128);
    at!(IdentifyIndependentNamespace: nsfeat 0, nmic 1, rescap 2, fpi 3, anagrpid 4, nsattr 8, nvmsetid 10, endgid 12, nstat 14);
    at!(IdentifyNvmController: verify 0, write_zeroes 1, write_uncorrectable 2, ranges 3, range_blocks 4, blocks 8);
    at!(LbaFormat: metadata 0, shift 2, performance 3);
}

#[test]
fn the_command_is_cut_at_its_offsets() {
    let mut raw = [0; 64];
    (raw[0], raw[4], raw[40], raw[42], raw[43], raw[47]) = (6, 7, 0x13, 0x34, 0x12, 2);
    let identify = Identify::parse(&crate::Sqe::read_from_bytes(&raw).unwrap());
    let expected = Identify { cns: Cns::CONTROLLERS, controller: 0x1234, nsid: 7, command_set: 2 };
    assert_eq!(identify, expected);
}

#[test]
fn lists_begin_behind_the_number_asked_for() {
    let list = encode_namespace_list([1, 2, 5, 9].into_iter(), 2);
    assert_eq!(list[..12], [5, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let full = encode_namespace_list(1..=2000, 0);
    assert_eq!(full[4092..], 1024_u32.to_le_bytes());
    let controllers = encode_controller_list([1, 3, 0x102].into_iter(), 3);
    assert_eq!(controllers[..8], [2, 0, 3, 0, 2, 1, 0, 0]);
    let full = encode_controller_list(1..=3000, 0);
    assert_eq!((full[..2].to_vec(), full[4094..].to_vec()), (vec![0xff, 0x07], vec![0xff, 0x07]));
    let sets = encode_command_sets();
    assert_eq!((sets[0], sets[1..].iter().any(|&byte| byte != 0)), (1, false));
}

#[test]
fn descriptors_follow_one_another_and_end_with_zeroes() {
    let mut descriptors = IdentificationDescriptors::default();
    descriptors.push_eui64([0xe1; 8]);
    descriptors.push_nguid([0xe2; 16]);
    descriptors.push_uuid([0xe3; 16]);
    descriptors.push_command_set(0);
    let bytes = descriptors.bytes();
    assert_eq!(bytes[..5], [1, 8, 0, 0, 0xe1]);
    assert_eq!(bytes[11..17], [0xe1, 2, 16, 0, 0, 0xe2]);
    assert_eq!(bytes[31..37], [0xe2, 3, 16, 0, 0, 0xe3]);
    assert_eq!(bytes[51..58], [0xe3, 4, 1, 0, 0, 0, 0]);
    assert!(bytes[57..].iter().all(|&byte| byte == 0));
}

#[test]
fn designators_embed_the_oui_where_the_standard_wants_it() {
    let uuid = *b"\x01\x23\x45\x67\x89\xab\x4c\xde\x8f\x00\x11\x22\x33\x44\x55\x66";
    let (eui64, nguid) = namespace::identifiers_from_oui([0xaa, 0xbb, 0xcc], uuid);
    assert_eq!(eui64, *b"\xaa\xbb\xcc\x22\x33\x44\x55\x66");
    assert_eq!(nguid, *b"\x01\x23\x45\x67\x89\xab\x4c\xde\xaa\xbb\xcc\x22\x33\x44\x55\x66");
}

#[test]
fn identifiers_are_read_as_they_were_written_and_lengths_that_lie_end_the_list() {
    let mut list = IdentificationDescriptors::default();
    list.push_eui64([1; 8]);
    list.push_nguid([2; 16]);
    list.push_uuid([3; 16]);
    list.push_command_set(0);
    let all = NamespaceIdentifiers {
        eui64: Some([1; 8]),
        nguid: Some([2; 16]),
        uuid: Some([3; 16]),
        command_set: Some(0),
    };
    assert_eq!(NamespaceIdentifiers::parse(list.bytes()), all);
    assert_eq!(NamespaceIdentifiers::parse(&[0; IDENTIFY_LEN]), NamespaceIdentifiers::default());
    let mut short = *list.bytes();
    short[1] = 7;
    assert_eq!(NamespaceIdentifiers::parse(&short).eui64, None);
    assert_eq!(NamespaceIdentifiers::parse(&[0xff; IDENTIFY_LEN]), NamespaceIdentifiers::default());
    let mut last = [0; IDENTIFY_LEN];
    for chunk in last.chunks_exact_mut(32) {
        (chunk[0], chunk[1]) = (9, 28);
    }
    (last[IDENTIFY_LEN - 32], last[IDENTIFY_LEN - 31]) = (3, 29);
    assert_eq!(NamespaceIdentifiers::parse(&last).uuid, None);
}

#[test]
fn the_format_in_use_is_one_that_there_is() {
    let mut namespace = IdentifyNamespace::new_zeroed();
    namespace.lbaf[2].shift = 12;
    namespace.lbaf[17].shift = 9;
    for (nlbaf, flbas, shift) in [(2, 2, Some(12)), (1, 2, None), (63, 0x21, Some(9)), (0, 0x61, None)] {
        (namespace.nlbaf, namespace.flbas) = (nlbaf, flbas);
        assert_eq!(namespace.current_lba_format().map(|format| format.shift), shift, "{nlbaf} {flbas:#x}");
    }
    (namespace.nlbaf, namespace.flbas) = (255, 0x6f);
    assert_eq!(namespace.current_lba_format().map(|format| format.shift), Some(0));
}
