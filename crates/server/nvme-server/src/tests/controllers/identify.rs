//! Identify: its contents, and which host sees them.

use nvme::Status;
use volume::VolumeRequest;

use super::*;

fn identify(cns: u8, nsid: u32) -> Sqe {
    admin(0x06, nsid, &[cns.into()], 4096)
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([data[at], data[at + 1]])
}

fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
}

fn world() -> (World, Host) {
    let mut world = World::new(2);
    world.add(4096, |geometry| {
        geometry.caw_max = 8;
        geometry.atomic_powerfail = 8;
    });
    world.add_of(4096, 4096, |geometry| geometry.caw_max = 4);
    let mut second = entry(1);
    (second.nsid, second.ana_group, second.read_only) = (7, 3, true);
    let host = world.controller(spec(3, 1, vec![second, entry(0)]));
    (world, host)
}

/// Offsets: Linux nvme_id_ctrl; what Linux demands of a fabrics controller (nvme_init_identify).
#[test]
fn the_controller_says_what_hosts_need() {
    let (mut world, host) = world();
    let data = world.good(host, &identify(1, 0), &[]);
    assert_eq!(&data[4..24], b"0123456789abcdef0123");
    assert_eq!(&data[24..34], b"Blockwire ");
    assert_eq!(&data[64..72], b"1       ");
    assert_eq!((data[76], data[77], u16_at(&data, 78)), (0b1011, 8, 3));
    assert_eq!((u32_at(&data, 80), u32_at(&data, 92), u32_at(&data, 96)), (0x0002_0000, 0x900, 0x41));
    assert_eq!((data[111], u16_at(&data, 256), data[258], data[259]), (1, 2, 7, 3));
    assert_eq!((data[260], data[261], data[262], u16_at(&data, 320)), (3, 0x26, 63, 10));
    assert_eq!((data[342], data[343], u32_at(&data, 344), u32_at(&data, 348)), (30, 0x1f, 64, 64));
    assert_eq!((data[512], data[513], u16_at(&data, 514), u32_at(&data, 516)), (0x66, 0x44, 128, 64));
    assert_eq!((u16_at(&data, 520), u16_at(&data, 522), data[525]), (0x1ff, 1, 7));
    // AWUN, AWUPF; ACWU is that of the volume that can do least.
    assert_eq!((u16_at(&data, 526), u16_at(&data, 528), data[531], u16_at(&data, 532)), (0, 0, 1, 3));
    assert_eq!((u16_at(&data, 534), u32_at(&data, 536), u32_at(&data, 540)), (1, 0x30_0001, 64));
    assert_eq!(&data[768..798], b"nqn.2026-11.io.blockwire:demo\0");
    assert_eq!((u32_at(&data, 1792), u32_at(&data, 1796), u16_at(&data, 1800)), (516, 1, 0));
    assert_eq!((data[1802], data[1803], u16_at(&data, 1804)), (0, 1, 1));
}

/// Linux makes room for a log of all groups and namespaces that are announced, and does without ANA, so
/// with paths that all seem equal, where MDTS is less (`nvme_mpath_init_identify`).
#[test]
fn no_transfer_is_too_short_for_the_ana_log_that_is_announced() {
    for transfer in (13..=20).map(|power| 1u64 << power) {
        let mut world = World::new(1);
        world.add(4096, |_| {});
        let mut spec = spec(3, 1, vec![entry(0)]);
        spec.limits.transfer = nvme::TransferMax::from_bytes(transfer).unwrap();
        let subsystem = Arc::make_mut(&mut spec.subsystem);
        (subsystem.nsid_max, subsystem.ana_group_max) = (crate::NAMESPACES_MAX, crate::ANA_GROUPS_MAX);
        let host = world.controller(spec);
        let data = world.good(host, &identify(1, 0), &[]);
        let (groups, namespaces) = (u32_at(&data, 348), u32_at(&data, 540));
        assert_eq!((u32_at(&data, 344), u32_at(&data, 516)), (128, 1024));
        assert!(16 + 32 * groups + 4 * namespaces <= 4096 << data[77], "{transfer}: {groups}, {namespaces}");
        assert_eq!(namespaces, if transfer == 8192 { 1020 } else { 1024 });
    }
}

/// Offsets: Linux nvme_id_ns.
#[test]
fn namespaces_say_what_their_volumes_are() {
    let (mut world, host) = world();
    let data = world.good(host, &identify(0, 1), &[]);
    assert_eq!(data[..24], [4096_u64, 4096, 0].map(u64::to_le_bytes).concat());
    assert_eq!((data[24], data[25], data[26], data[30], data[31]), (0b1_0011, 0, 0, 1, 0xff));
    assert_eq!((u16_at(&data, 34), u16_at(&data, 36), u16_at(&data, 38)), (0, 0, 7));
    assert_eq!((u16_at(&data, 64), u16_at(&data, 66), u16_at(&data, 68), u16_at(&data, 70)), (7, 7, 7, 7));
    assert_eq!((u16_at(&data, 74), u32_at(&data, 76), data[80]), (32_768, 65_536, 127));
    assert_eq!((u32_at(&data, 92), data[99]), (1, 0));
    assert_eq!(data[104..128], [0; 24], "no designators without an OUI");
    assert_eq!(data[128..132], [0, 0, 9, 0]);
    let data = world.good(host, &identify(0, 7), &[]);
    assert_eq!((u32_at(&data, 92), data[99], data[130]), (3, 1, 12));
    // Inactive, but a number that could be one.
    assert_eq!(world.good(host, &identify(0, 2), &[]), [0; 4096]);
    assert_eq!(world.good(host, &identify(0x11, 7), &[]), data);
}

#[test]
fn deallocated_reads_are_zero_on_both_sides_or_on_none() {
    for zero in [true, false] {
        let mut world = World::new(1);
        world.add(4096, |geometry| geometry.dealloc_reads_zero = zero);
        let host = world.controller(spec(1, 1, vec![entry(0)]));
        let data = world.good(host, &identify(0, 1), &[]);
        assert_eq!(data[33], 8 | u8::from(zero));
    }
}

#[test]
fn descriptors_name_the_volumes_uuid() {
    let (mut world, host) = world();
    let data = world.good(host, &identify(3, 7), &[]);
    let mut expected = [0; 4096];
    expected[..4].copy_from_slice(&[3, 16, 0, 0]);
    expected[4..20].fill(2);
    expected[20..25].copy_from_slice(&[4, 1, 0, 0, 0]);
    assert_eq!(data, expected);
}

#[test]
fn designators_that_embed_an_oui_are_there_with_one_only() {
    let (mut world, host) = world();
    let known = world.server(host).volume_info(volume::VolumeId(1)).unwrap().clone();
    let view = world.home(1).view().clone();
    let facts =
        volume::VolumeFacts { oui: Some([0xaa, 0xbb, 0xcc]), ..volume::VolumeFacts::clone(&known.facts) };
    world.server(host).remove_volume(volume::VolumeId(1));
    world.server(host).add_volume(crate::VolumeInfo { facts: Arc::new(facts), shared: known.shared }, view);
    let data = world.good(host, &identify(0, 7), &[]);
    assert_eq!(data[104..120], [2, 2, 2, 2, 2, 2, 2, 2, 0xaa, 0xbb, 0xcc, 2, 2, 2, 2, 2]);
    assert_eq!(data[120..128], [0xaa, 0xbb, 0xcc, 2, 2, 2, 2, 2]);
    let descriptors = world.good(host, &identify(3, 7), &[]);
    assert_eq!((descriptors[0], descriptors[12], descriptors[32], descriptors[52]), (1, 2, 3, 4));
}

#[test]
fn lists_show_what_this_host_may_see() {
    let (mut world, host) = world();
    for cns in [0x02, 0x07, 0x10, 0x1a] {
        let list = |world: &mut World, after| world.good(host, &identify(cns, after), &[])[..12].to_vec();
        assert_eq!(list(&mut world, 0), [1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(list(&mut world, 1), [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(list(&mut world, 7), [0; 12]);
        assert_eq!(list(&mut world, 0xffff_fffd), [0; 12]);
    }
    let controllers = admin(0x06, 1, &[0x13], 4096);
    assert_eq!(world.good(host, &controllers, &[])[..6], [1, 0, 3, 0, 0, 0]);
    let behind = admin(0x06, 1, &[0x13 | 4 << 16], 4096);
    assert_eq!(world.good(host, &behind, &[])[..6], [0; 6]);
    assert_eq!(world.good(host, &admin(0x06, 7, &[0x12], 4096), &[])[..4], [1, 0, 3, 0]);
    // Another host of the same subsystem sees its own.
    let other = world.controller(spec(4, 2, vec![]));
    assert_eq!(world.good(other, &identify(2, 0), &[]), [0; 4096]);
}

#[test]
fn command_set_structures_are_those_of_nvm() {
    let (mut world, host) = world();
    assert_eq!(world.good(host, &admin(0x06, 0, &[0x1c | 0xffff << 16], 4096), &[])[..2], [1, 0]);
    assert_eq!(world.good(host, &admin(0x06, 0, &[0x1c | 3 << 16], 4096), &[])[..2], [1, 0]);
    let other = admin(0x06, 0, &[0x1c | 9 << 16], 4096);
    assert_eq!(world.ends(host, &other, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    assert_eq!(world.good(host, &identify(5, 1), &[]), [0; 4096]);
    assert_eq!(
        world.good(host, &identify(6, 0), &[])[..8],
        [0, 0, crate::UNCORRECTABLE_MAX_POWER, 0, 0, 0, 0, 0]
    );
    let independent = world.good(host, &identify(8, 7), &[]);
    assert_eq!((independent[1], independent[2], u32_at(&independent, 4)), (1, 0xff, 3));
    assert_eq!((independent[8], independent[14]), (1, 1));
    world.request(1, VolumeRequest::Stop).unwrap();
    assert_eq!(world.good(host, &identify(8, 7), &[])[14], 0, "not ready");
    for cns in [5, 6, 7, 0x1a, 0x1b] {
        let zoned = admin(0x06, 1, &[cns, 2 << 24], 4096);
        assert_eq!(world.ends(host, &zoned, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    }
}

#[test]
fn attack_72_every_cns_of_every_special_nsid() {
    let (mut world, host) = world();
    let known = [0, 1, 2, 3, 5, 6, 7, 8, 0x10, 0x11, 0x12, 0x13, 0x1a, 0x1b, 0x1c];
    let of_namespaces = [0, 3, 5, 8, 0x11, 0x12, 0x1b];
    let lists = [2, 7, 0x10, 0x1a];
    for cns in 0..=0xff_u8 {
        for nsid in [0, 1, 65, 0xffff_fffe, 0xffff_ffff] {
            let started = world.start(host, &admin(0x06, nsid, &[u32::from(cns) | 3 << 16], 4096), &[]);
            world.run();
            let status = world.status(started);
            let expected = match nsid {
                _ if !known.contains(&cns) => Status::INVALID_FIELD.with_do_not_retry(),
                1 => Status::SUCCESS,
                _ if of_namespaces.contains(&cns) => Status::INVALID_NAMESPACE.with_do_not_retry(),
                0xffff_fffe | 0xffff_ffff if lists.contains(&cns) => {
                    Status::INVALID_NAMESPACE.with_do_not_retry()
                }
                _ => Status::SUCCESS,
            };
            assert_eq!(status, expected, "CNS {cns:#x} NSID {nsid:#x}");
            // Whole structures or nothing, and never what memory held before.
            let len = if status == Status::SUCCESS { 4096 } else { 0 };
            assert_eq!(world.bytes(started).len(), len);
        }
    }
    for room in [0, 1, 4095] {
        let sqe = admin(0x06, 1, &[1], room);
        assert_eq!(world.ends(host, &sqe, &[]).status, Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    assert_eq!(world.pool.usage().lent, 0);
}

/// As the caching mode page says over iSCSI.
#[test]
fn a_namespace_without_a_write_cache_does_not_say_that_it_has_one() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.add(4096, |geometry| geometry.write_cache = true);
    let host = world.controller(spec(2, 1, vec![entry(0), entry(1)]));
    let vwcnp = |world: &mut World, nsid: u32| world.good(host, &identify(8, nsid), &[])[0] & 0x20;
    assert_eq!((vwcnp(&mut world, 1), vwcnp(&mut world, 2)), (0x20, 0));
}

/// NUSE of a thin namespace is what is allocated, and what is deallocated is so no more.
#[test]
fn a_thin_namespace_says_how_much_of_it_is_used() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.add(4096, |geometry| geometry.thin = false);
    let host = world.controller(spec(2, 1, vec![entry(0), entry(1)]));
    let queue = world.connect(2, &join(1, 1, 0)).unwrap();
    let sizes = |world: &mut World, nsid: u32| {
        let data = world.good(host, &admin(0x06, nsid, &[0], 4096), &[]);
        let at = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        (at(0), at(8), at(16), data[24] & 1)
    };
    assert_eq!(sizes(&mut world, 1), (4096, 4096, 0, 1));
    // By granules of 4 KiB.
    world.write(queue, 7, &[1; 1024]);
    assert_eq!(sizes(&mut world, 1), (4096, 4096, 16, 1));
    world.write(queue, 0, &[1; 512]);
    assert_eq!(sizes(&mut world, 1).2, 16, "written again");
    let mut zeroes = super::super::transfer(Opcode::WRITE_ZEROES, 0, 8);
    zeroes.cdw10[2] = U32::new(7 | nvme::io::BlockTransfer::DEALLOCATE);
    assert_eq!(world.command(queue, &zeroes, &[]), Status::SUCCESS);
    assert_eq!(sizes(&mut world, 1).2, 8);
    assert_eq!(sizes(&mut world, 2), (4096, 4096, 4096, 0), "one that is not thin is used at all times");
}

/// Its volume is configured and did not open: hosts are to keep their disk and try again.
#[test]
fn a_namespace_whose_volume_is_away_is_active_and_not_ready() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let away = crate::NamespaceEntry { nsid: 9, volume: volume::VolumeId::UNAVAILABLE, ..entry(0) };
    let host = world.controller(spec(2, 1, vec![entry(0), away]));
    let list = world.good(host, &identify(2, 0), &[]);
    assert_eq!((u32_at(&list, 0), u32_at(&list, 4), u32_at(&list, 8)), (1, 9, 0));
    for cns in [0, 3, 8] {
        assert_eq!(world.ends(host, &identify(cns, 9), &[]).status, Status::NAMESPACE_NOT_READY);
    }
    let queue = world.connect(2, &super::join(1, 1, 1)).unwrap();
    let mut read = crate::tests::transfer(Opcode::READ, 0, 1);
    read.nsid = U32::new(9);
    assert_eq!(world.ends(queue, &read, &[]).status, Status::NAMESPACE_NOT_READY);
    read.nsid = U32::new(10);
    assert_eq!(world.ends(queue, &read, &[]).status, Status::INVALID_NAMESPACE.with_do_not_retry());
}
