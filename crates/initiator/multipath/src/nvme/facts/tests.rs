//! Controllers that lie about themselves and their namespaces, in fixed bytes. Offsets are those of NVMe
//! Base §5.17.2.1 and NVM Command Set §4.1.5.1.

use nvme::{HostId, Nqn};

use super::*;

const LEN: usize = nvme::identify::IDENTIFY_LEN;

/// A controller with nothing wrong.
fn controller() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[77] = 5;
    bytes[78..80].copy_from_slice(&7_u16.to_le_bytes());
    bytes[80..84].copy_from_slice(&0x0002_0000_u32.to_le_bytes());
    bytes[111] = 1;
    bytes[320] = 10;
    (bytes[512], bytes[513]) = (0x66, 0x44);
    bytes[514] = 128;
    bytes[516] = 4;
    bytes[536] = 1;
    bytes[540] = 4;
    bytes[1792] = 0x44;
    bytes[1796] = 1;
    bytes
}

/// A namespace with nothing wrong: 1,024 blocks of 512 bytes.
fn namespace() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    (bytes[1], bytes[9]) = (4, 4);
    bytes[130] = 9;
    bytes
}

fn judge(change: impl FnOnce(&mut [u8; LEN])) -> Result<ControllerFacts, UnusableFacts> {
    let mut bytes = controller();
    change(&mut bytes);
    ControllerFacts::from_identify(&IdentifyController::parse(&bytes), 7, 1)
}

fn settings() -> Settings {
    let name = Nqn::parse("nqn.2026-11.test:a").unwrap();
    Settings::new(vec![], name.clone(), 1, name, HostId::new([1; 16]).unwrap())
}

fn judge_namespace(change: impl FnOnce(&mut [u8; LEN])) -> Result<NamespaceFacts, UnusableFacts> {
    let mut bytes = namespace();
    change(&mut bytes);
    NamespaceFacts::from_identify(&IdentifyNamespace::parse(&bytes), &judge(|_| ()).unwrap(), &settings())
}

#[test]
fn attack_105_identify_shows_another_controller() {
    assert!(judge(|_| ()).is_ok());
    assert!(matches!(judge(|bytes| bytes[78] = 8), Err(UnusableFacts::Lie(_))));
    assert!(matches!(judge(|bytes| bytes[79] = 0xff), Err(UnusableFacts::Lie(_))));
}

#[test]
fn attack_106_controllers_that_cannot_be() {
    let lies: [fn(&mut [u8; LEN]); 11] = [
        // NN 0; MNAN more than NN; SQES and CQES of other entries; SGLS 0; ICDOFF 1; IOCCSZ 3; IORCSZ 0.
        |bytes| bytes[516] = 0,
        |bytes| bytes[540..544].fill(0xff),
        |bytes| bytes[512] = 0,
        |bytes| bytes[512] = 0x77,
        |bytes| bytes[513] = 0x05,
        |bytes| bytes[536..540].fill(0),
        |bytes| bytes[1800] = 1,
        |bytes| bytes[1792] = 3,
        |bytes| bytes[1796] = 0,
        // KAS 0; ANA without groups.
        |bytes| bytes[320] = 0,
        |bytes| bytes[76] = 8,
    ];
    for (at, lie) in lies.into_iter().enumerate() {
        assert!(matches!(judge(lie), Err(UnusableFacts::Lie(_))), "{at}");
    }
    assert!(matches!(judge(|bytes| bytes[111] = 2), Err(UnusableFacts::Foreign(_))));
    // What may be large is believed no further than what it is for.
    let facts = judge(|bytes| {
        bytes[77] = 255;
        bytes[516..520].fill(0xff);
        bytes[1792..1796].fill(0xff);
        bytes[76] = 8;
        bytes[344..352].fill(0xff);
        bytes[4..72].fill(0xff);
    })
    .unwrap();
    assert_eq!(facts.transfer_max, Some(u64::MAX));
    assert_eq!(facts.ana_log_len(), Some(16 + 32 * ANA_GROUPS_MAX as usize));
    assert_eq!(ascii_field_text(&facts.serial), "?".repeat(20));
    let namespace =
        NamespaceFacts::from_identify(&IdentifyNamespace::parse(&namespace()), &facts, &settings()).unwrap();
    assert_eq!(namespace.format.unwrap().geometry.max_io, settings().transfer_max);
}

#[test]
fn attack_107_namespaces_that_cannot_be() {
    assert_eq!(judge_namespace(|_| ()).unwrap().format.unwrap().geometry.blocks, 1024);
    let lies: [fn(&mut [u8; LEN]); 6] = [
        // LBADS 0, 63, 255; NSZE 2^64 − 1; FLBAS beyond NLBAF; protection without metadata.
        |bytes| bytes[130] = 0,
        |bytes| bytes[130] = 63,
        |bytes| bytes[130] = 255,
        |bytes| bytes[..8].fill(0xff),
        |bytes| bytes[26] = 1,
        |bytes| bytes[29] = 1,
    ];
    for (at, lie) in lies.into_iter().enumerate() {
        assert!(matches!(judge_namespace(lie), Err(UnusableFacts::Lie(_))), "{at}");
    }
    assert!(matches!(judge_namespace(|bytes| bytes.fill(0)), Err(UnusableFacts::Absent(_))));
    let foreign: [fn(&mut [u8; LEN]); 2] = [|bytes| bytes[128] = 8, |bytes| bytes[130] = 13];
    for (at, change) in foreign.into_iter().enumerate() {
        assert!(matches!(judge_namespace(change), Err(UnusableFacts::Foreign(_))), "{at}");
    }
    // NOIOB says nothing that matters here, whatever it is.
    assert!(judge_namespace(|bytes| bytes[46..48].fill(0xff)).is_ok());
    // An atomic boundary makes no write longer than a block atomic.
    let bounded = judge_namespace(|bytes| (bytes[24], bytes[34], bytes[40]) = (2, 63, 7)).unwrap();
    assert_eq!(bounded.format.unwrap().geometry.atomic, 1);
}

#[test]
fn a_log_of_more_groups_than_there_are_says_nothing() {
    let groups =
        [1, 2].map(|id| ana::AnaGroup { id, changes: 1, state: ana::AnaState::Optimized, nsids: vec![] });
    let mut log = ana::encode_page(1, &groups, true);
    assert_eq!(ana_group_access(&log, 2, 2), PathAccess::Optimized);
    assert_eq!(ana_group_access(&log, 2, 1), PathAccess::Inaccessible);
    log[8..10].copy_from_slice(&0xffff_u16.to_le_bytes());
    assert_eq!(ana_group_access(&log, 1, 2), PathAccess::Inaccessible, "it lies about its count");
    // Of those that are read of very many it is not known how many there are.
    assert_eq!(ana_group_access(&log, 1, ANA_GROUPS_MAX), PathAccess::Optimized);
    assert_eq!(ana_group_access(&[], 1, 2), PathAccess::Inaccessible);
}
