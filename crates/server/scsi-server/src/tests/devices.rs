//! Removable media, read-only LUNs, paths and resizing.

use scsi::Status;
use volume::{PathAccess, UnservableReason};

use super::*;

const TUR: [u8; 6] = [0; 6];
const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];

fn prevent(on: u8) -> [u8; 6] {
    [0x1e, 0, 0, 0, on, 0]
}

fn removable(shards: u16) -> World {
    let mut world = World::new(shards);
    world.add_with(4096, true, |_| {});
    world
}

#[test]
fn without_a_medium_no_medium_command_works() {
    let mut world = removable(2);
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    world.good(a, &EJECT, &[], 0);
    world.good(a, &EJECT, &[], 0);
    let medium: [&[u8]; 16] = [
        &TUR,
        &read_10(0, 1),
        &write_10(0, 1),
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x35, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
        &[0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &cdb_16(0x9e, 0x10, 0, 32),
        &cdb_16(0x9e, 0x12, 0, 32),
        &cdb_16(0x89, 0, 0, 1),
        &cdb_16(0x8b, 0, 0, 1),
        &cdb_16(0x9c, 0, 0, 1),
        &cdb_16(0x93, 0, u64::MAX, 1),
        &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    for host in [a, b] {
        for cdb in medium {
            world.refused(host, cdb, &[], 0, 0x02_3a00);
        }
        world.good(host, &[0x12, 0, 0, 0, 36, 0], &[], 36);
        world.good(host, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255);
        let sense = world.good(host, &[0x03, 0, 0, 0, 18, 0], &[], 18);
        assert_eq!((sense[2], sense[12]), (2, 0x3a));
    }
    // START without LOAD does not bring the medium back.
    world.refused(a, &[0x1b, 0, 0, 0, 1, 0], &[], 0, 0x02_3a00);
    world.good(a, &LOAD, &[], 0);
    // Who loaded is not told, the others are.
    world.good(a, &TUR, &[], 0);
    world.refused(b, &TUR, &[], 0, 0x06_2800);
    world.good(b, &read_10(0, 1), &[], 512);
}

#[test]
fn power_conditions_and_stops_change_nothing() {
    let mut world = removable(1);
    let host = world.host(0, "iqn.a", &[0]);
    for condition in 1..16 {
        world.good(host, &[0x1b, 0, 0, 0, condition << 4 | 2, 0], &[], 0);
        world.good(host, &TUR, &[], 0);
    }
    for cdb in [[0x1b, 0, 0, 0, 0, 0], [0x1b, 1, 0, 0, 0, 0], [0x1b, 0, 0, 0, 4, 0], [0x1b, 0, 0, 0, 1, 0]] {
        world.good(host, &cdb, &[], 0);
        world.good(host, &TUR, &[], 0);
    }
    let (mut world, host) = disk();
    world.refused(host, &EJECT, &[], 0, 0x05_2400);
    world.refused(host, &LOAD, &[], 0, 0x05_2400);
    world.refused(host, &prevent(1), &[], 0, 0x05_2000);
}

#[test]
fn one_nexus_prevents_the_removal_for_all_until_it_ends() {
    let mut world = removable(2);
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    world.good(a, &prevent(1), &[], 0);
    world.refused(a, &EJECT, &[], 0, 0x05_5302);
    world.refused(b, &EJECT, &[], 0, 0x05_5302);
    world.good(a, &prevent(0), &[], 0);
    world.good(b, &EJECT, &[], 0);
    // While the medium is out: prevented, it cannot be loaded.
    world.good(a, &prevent(1), &[], 0);
    world.refused(a, &LOAD, &[], 0, 0x05_5302);
    world.good(a, &prevent(0), &[], 0);
    world.good(b, &LOAD, &[], 0);
    // A reset ends it, and so does the loss of the nexus.
    world.refused(a, &TUR, &[], 0, 0x06_2800);
    world.good(a, &prevent(1), &[], 0);
    assert_eq!(world.managed(b, ManagementFunction::LogicalUnitReset([0; 8])), ManagementOutcome::Complete);
    for host in [a, b] {
        world.refused(host, &TUR, &[], 0, 0x06_2903);
    }
    world.good(b, &EJECT, &[], 0);
    world.good(b, &LOAD, &[], 0);
    world.refused(a, &TUR, &[], 0, 0x06_2800);
    world.good(a, &prevent(1), &[], 0);
    world.close(a);
    world.good(b, &EJECT, &[], 0);
}

#[test]
fn a_read_only_lun_reads() {
    let (mut world, host) = disk();
    let luns = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(host).change_luns(host.key, luns);
    world.refused(host, &TUR, &[], 0, 0x06_3f0e);
    world.good(host, &read_10(0, 1), &[], 512);
    let writes: [&[u8]; 7] = [
        &write_10(0, 1),
        &[0x2e, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
        &cdb_16(0x89, 0, 0, 1),
        &cdb_16(0x8b, 0, 0, 1),
        &cdb_16(0x9c, 0, 0, 1),
        &cdb_16(0x93, 8, 0, 1),
    ];
    for cdb in writes {
        world.refused(host, cdb, &[], 0, 0x07_2700);
    }
    assert_eq!(world.good(host, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255)[2] & 0x80, 0x80);
    world.good(host, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
}

/// Who may only read takes no medium out, closes no path, keeps no medium in and sets no mode for others, and
/// opens nothing that was closed.
#[test]
fn a_host_that_may_only_read_shuts_nobody_out() {
    let mut world = removable(2);
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    let reads = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(b).change_luns(b.key, reads);
    world.refused(b, &TUR, &[], 0, 0x06_3f0e);
    let set_groups = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    let refused: [(&[u8], &[u8]); 3] =
        [(&EJECT, &[]), (&prevent(1), &[]), (&set_groups, &[0, 0, 0, 0, 3, 0, 0, 1])];
    for (cdb, list) in refused {
        world.refused(b, cdb, list, 0, 0x07_2700);
        world.write(a, 0, &block(1));
    }
    // What changes nothing is done.
    world.good(b, &LOAD, &[], 0);
    world.good(b, &prevent(0), &[], 0);
    world.good(b, &[0x1b, 0, 0, 0, 1, 0], &[], 0);
    // What others took out, or closed, stays so.
    world.good(a, &EJECT, &[], 0);
    world.command(b, &TUR, &[], 0);
    world.refused(b, &LOAD, &[], 0, 0x07_2700);
    world.refused(b, &TUR, &[], 0, 0x02_3a00);
    world.good(a, &LOAD, &[], 0);
    world.request(VolumeId(0), volume::VolumeRequest::Stop);
    world.run();
    world.command(b, &TUR, &[], 0);
    world.refused(b, &[0x1b, 0, 0, 0, 1, 0], &[], 0, 0x07_2700);
    assert_eq!(world.command(a, &TUR, &[], 0).code() >> 16, 2);
    world.good(a, &[0x1b, 0, 0, 0, 1, 0], &[], 0);
}

#[test]
fn paths_serve_by_their_state() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let a = world.fresh_host(0, "iqn.a", 1, &[0]);
    let b = world.fresh_host(1, "iqn.b", 2, &[0]);
    for host in [a, b] {
        world.refused(host, &TUR, &[], 0, 0x06_2900);
    }
    let rtpg = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
    let states = |data: &[u8]| -> Vec<_> {
        scsi::alua::decode_port_groups(data).map(|group| (group.id, group.state.0)).collect()
    };
    assert_eq!(states(&world.good(a, &rtpg, &[], 255)), [(1, 0), (2, 0)]);
    // Host a moves port 2 away.
    let list = [0, 0, 0, 0, 3, 0, 0, 2];
    world.good(a, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &list, 0);
    world.good(a, &TUR, &[], 0);
    world.refused(b, &TUR, &[], 0, 0x06_2a06);
    let blocked: [&[u8]; 4] =
        [&TUR, &read_10(0, 1), &[0x1a, 0, 0x3f, 0, 255, 0], &[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]];
    for cdb in blocked {
        world.refused(b, cdb, &[], 255, 0x02_040c);
    }
    let sense = world.good(b, &[0x03, 0, 0, 0, 18, 0], &[], 18);
    assert_eq!((sense[2], sense[12], sense[13]), (2, 4, 0x0c));
    world.good(b, &[0x12, 0, 0, 0, 36, 0], &[], 36);
    world.good(b, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[], 16);
    assert_eq!(states(&world.good(b, &rtpg, &[], 255)), [(1, 0), (2, 3)]);
    world.request(
        VolumeId(0),
        VolumeRequest::SetAccess { ports: vec![PortId(2)], to: PathAccess::Transition, by: None },
    );
    world.refused(a, &TUR, &[], 0, 0x06_2a06);
    world.refused(b, &TUR, &[], 0, 0x06_2a06);
    world.refused(b, &TUR, &[], 0, 0x02_040a);
    // Back by SET TARGET PORT GROUPS through the very path.
    world.good(b, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[0, 0, 0, 0, 1, 0, 0, 2], 0);
    world.good(b, &TUR, &[], 0);
    assert_eq!(states(&world.good(b, &rtpg, &[], 255)), [(1, 0), (2, 1)]);
    world.refused(a, &TUR, &[], 0, 0x06_2a06);
    // Standby serves no blocks, but what tells of the unit and reservations (SPC-4 §5.15.2.4.4).
    world.good(a, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[0, 0, 0, 0, 2, 0, 0, 2], 0);
    world.refused(b, &TUR, &[], 0, 0x06_2a06);
    for cdb in [&TUR[..], &read_10(0, 1)] {
        world.refused(b, cdb, &[], 255, 0x02_040b);
    }
    world.good(b, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255);
    let register = [0x5f, 6, 0, 0, 0, 0, 0, 0, 24, 0];
    let mut keys = [0; 24];
    keys[15] = 7;
    world.good(b, &register, &keys, 0);
    assert_eq!(world.good(b, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 16, 0], &[], 16)[15], 7);
    assert_eq!(states(&world.good(b, &rtpg, &[], 255)), [(1, 0), (2, 2)]);
    // The operator prefers a port: it is shown, and told.
    let preferred = |data: &[u8]| -> Vec<_> {
        scsi::alua::decode_port_groups(data).map(|group| group.preferred).collect()
    };
    assert_eq!(preferred(&world.good(a, &rtpg, &[], 255)), [false, false]);
    let prefers = |on| VolumeRequest::SetPreferred { ports: vec![PortId(2)], on };
    world.request(VolumeId(0), prefers(true));
    world.refused(a, &TUR, &[], 0, 0x06_2a06);
    assert_eq!(preferred(&world.good(a, &rtpg, &[], 255)), [false, true]);
    world.request(VolumeId(0), prefers(true));
    world.good(a, &TUR, &[], 0);
    world.request(VolumeId(0), prefers(false));
    world.refused(a, &TUR, &[], 0, 0x06_2a06);
    world.refused(b, &TUR, &[], 0, 0x06_2a06);
    assert_eq!(preferred(&world.good(a, &rtpg, &[], 255)), [false, false]);
    for list in [[0, 0, 0, 0, 3, 0, 0, 9], [0, 0, 0, 0, 14, 0, 0, 2], [0, 0, 0, 0, 15, 0, 0, 2]] {
        world.refused(b, &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &list, 0, 0x05_2600);
    }
}

/// A LUN that goes, a volume that goes, and one that grows and shrinks, while commands are under way.
#[test]
fn attack_53_luns_go_and_resize_under_load() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    world.add(4096, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0, 1]), world.host(1, "iqn.b", &[0, 1]));
    // Shrinking: an operation that is under way ends first; one whose data is awaited does not land.
    world.withhold = true;
    let late = world.start(a, &write_10(4000, 1), &block(1), 0);
    world.run();
    world.withhold = false;
    let geometry = world.homes[0].view().geometry;
    world.request(VolumeId(0), VolumeRequest::Resize(Geometry { blocks: 2048, ..geometry }));
    world.send_withheld(late);
    assert_eq!(world.outcome(late).code(), 0x05_2100);
    for host in [a, b] {
        world.refused(host, &TUR, &[], 0, 0x06_2a09);
        world.refused(host, &read_10(2048, 1), &[], 512, 0x05_2100);
        assert_eq!(world.good(host, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[], 8)[2..4], [7, 0xff]);
    }
    // The LUN is taken from host a: what came by it ends, and the other goes on.
    world.disks.hold.set(true);
    let (mine, other) =
        (world.start(a, &write_10(0, 1), &block(2), 0), world.start(b, &write_10(1, 1), &block(3), 0));
    world.withhold = true;
    let waiting = world.start(a, &write_10(2, 1), &block(4), 0);
    world.withhold = false;
    world.run();
    let left = vec![LunEntry { lun: 1, volume: VolumeId(1), read_only: false }];
    world.server(a).change_luns(a.key, left);
    world.run();
    assert_eq!(world.outcome(waiting).code(), 0x05_2500);
    assert_eq!(world.end(mine), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(mine).code(), 0x05_2500);
    assert_eq!(world.outcome(other).status, Status::GOOD);
    world.refused(a, &TUR, &[], 0, 0x05_2500);
    assert_eq!(world.command_on(a, 1, &TUR, &[], 0).code(), 0x06_3f0e);
    assert_eq!(world.command_on(a, 1, &TUR, &[], 0).status, Status::GOOD);
    // REPORT LUNS takes the attention away, for all LUNs at once.
    let back = vec![
        LunEntry { lun: 0, volume: VolumeId(0), read_only: false },
        LunEntry { lun: 1, volume: VolumeId(1), read_only: false },
    ];
    world.server(a).change_luns(a.key, back);
    world.good(a, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], &[], 32);
    assert_eq!(world.command_on(a, 1, &TUR, &[], 0).status, Status::GOOD);
    world.good(a, &TUR, &[], 0);
    // The volume goes.
    world.disks.hold.set(true);
    let last = world.start(b, &write_10(7, 1), &block(5), 0);
    world.run();
    for host in [a, b] {
        world.server(host).remove_unit(VolumeId(0));
    }
    world.run();
    world.refused(a, &TUR, &[], 0, 0x05_2500);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(last).code(), 0x05_2500);
    assert_eq!(world.lent(), 0);
}

#[test]
fn a_stopped_volume_says_so() {
    let (mut world, host) = disk();
    world.request(VolumeId(0), VolumeRequest::Stop);
    assert_eq!(world.homes[0].view().not_ready, Some(UnservableReason::Stopped));
    world.refused(host, &read_10(0, 1), &[], 512, 0x02_0402);
    world.good(host, &[0x1b, 0, 0, 0, 1, 0], &[], 0);
    world.good(host, &read_10(0, 1), &[], 512);
}

/// Only who has read the inventory has heard that it changed.
#[test]
fn a_report_luns_that_fails_takes_no_attention_back() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    world.add(4096, |_| {});
    let host = world.host(0, "iqn.a", &[0, 1]);
    let entry = |lun: u16| LunEntry { lun, volume: VolumeId(u64::from(lun)), read_only: false };
    for well_known in [false, true] {
        world.server(host).change_luns(host.key, vec![entry(0)]);
        world.server(host).change_luns(host.key, vec![entry(0), entry(1)]);
        let wrong = [0xa0, 0, 0x77, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        let field = if well_known { [0xc1, 1, 0, 0, 0, 0, 0, 0] } else { [0; 8] };
        let refused = world.start_as(host, &field, TaskAttribute::SIMPLE, &wrong, &[], 32);
        world.run();
        assert_eq!(world.outcome(refused).code(), 0x05_2400);
        world.refused(host, &TUR, &[], 0, 0x06_3f0e);
        assert_eq!(world.command_on(host, 1, &TUR, &[], 0).code(), 0x06_3f0e);
        world.good(host, &TUR, &[], 0);
    }
}

/// Without memory for its sense data it is answered with BUSY.
#[test]
fn a_request_sense_that_fails_takes_no_attention_away() {
    let (mut world, host) = disk();
    world.server(host).change_luns(host.key, Vec::new());
    let entry = LunEntry { lun: 0, volume: VolumeId(0), read_only: false };
    world.server(host).change_luns(host.key, vec![entry]);
    let sense = [0x03, 0, 0, 0, 252, 0];
    let pool = world.pool.clone();
    let all: Vec<_> = [1 << 20, 1 << 10, 18, 1]
        .into_iter()
        .flat_map(|len| std::iter::from_fn(|| pool.take(MemoryClass::Wire, len)).collect::<Vec<_>>())
        .collect();
    assert_eq!(world.command(host, &sense, &[], 252).status, Status::BUSY);
    drop(all);
    assert_eq!(world.good(host, &sense, &[], 252)[12..14], [0x3f, 0x0e]);
    assert_eq!(world.good(host, &sense, &[], 252)[12..14], [0, 0]);
    world.good(host, &TUR, &[], 0);
}

/// START STOP UNIT without eject makes stable what was written, and that is all: a volume is shared, and one
/// host that powers its disks down must not take it from the others, nor from NVMe hosts, which know no such
/// state.
#[test]
fn a_stop_by_one_host_keeps_nobody_out() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(0, "iqn.b", &[0]));
    world.write(a, 0, &block(1));
    world.disks.kinds.borrow_mut().clear();
    world.good(a, &[0x1b, 0, 0, 0, 0, 0], &[], 0);
    assert!(world.disks.kinds.borrow().contains(&volume::Op::Flush));
    for host in [a, b] {
        world.good(host, &TUR, &[], 0);
        assert_eq!(world.read(host, 0, 1), block(1));
    }
    world.write(b, 0, &block(2));
}

/// Its volume is configured and did not open: hosts are to keep their disk and wait.
#[test]
fn a_logical_unit_whose_volume_is_away_is_not_taken_for_none() {
    let (mut world, host) = disk();
    let entry = |lun, volume| LunEntry { lun, volume, read_only: false };
    let luns = vec![entry(0, VolumeId(0)), entry(5, VolumeId::UNAVAILABLE)];
    world.server(host).change_luns(host.key, luns);
    let got = world.command_on(host, 0, &[0; 6], &[], 0);
    assert_eq!(got.code(), 0x06_3f0e);
    for cdb in [&[0; 6][..], &read_10(0, 1), &write_10(0, 1)] {
        assert_eq!(world.command_on(host, 5, cdb, &[], 512).code(), 0x02_0401);
        assert_eq!(world.command_on(host, 6, cdb, &[], 512).code(), 0x05_2500);
    }
    let inquiry =
        |world: &mut World, lun| world.command_on(host, lun, &[0x12, 0, 0, 0, 36, 0], &[], 36).data[0];
    assert_eq!((inquiry(&mut world, 5), inquiry(&mut world, 6)), (0x00, 0x7f), "a disk, and none");
    let luns = world.command_on(host, 0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[], 64).data;
    assert_eq!(luns.len(), 8 + 2 * 8, "it is in the inventory");
}

/// A host that has logged in meanwhile has made a disk of it, without size and names. It drives such disks as
/// it found them: with path states and copies between disks.
#[test]
fn a_host_hears_that_a_volume_is_there_that_was_away_when_it_logged_in() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.host(0, "iqn.host", &[0]);
    let standard = |world: &mut World| world.command_on(host, 0, &[0x12, 0, 0, 0, 96, 0], &[], 96).data;
    let there = standard(&mut world);
    let entry = |volume| vec![LunEntry { lun: 0, volume, read_only: false }];
    world.server(host).change_luns(host.key, entry(VolumeId::UNAVAILABLE));
    assert_eq!(standard(&mut world), there, "what Linux reads once");
    assert_eq!(world.command_on(host, 0, &TUR, &[], 0).code(), 0x02_0401);
    world.server(host).change_luns(host.key, entry(VolumeId(0)));
    let told = [(); 2].map(|()| world.command_on(host, 0, &TUR, &[], 0).code());
    assert_eq!(told, [0x06_3f03, 0x06_3f0e]);
    world.good(host, &TUR, &[], 0);
}

/// Its home would have to answer, and it has none.
#[test]
fn a_reset_of_the_target_is_not_refused_because_a_volume_is_away() {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.host(0, "iqn.host", &[0]);
    let entry = |lun, volume| LunEntry { lun, volume, read_only: false };
    world.server(host).change_luns(host.key, vec![entry(0, VolumeId(0)), entry(5, VolumeId::UNAVAILABLE)]);
    for what in [ManagementFunction::TargetReset, ManagementFunction::NexusReset] {
        assert_eq!(world.managed(host, what), ManagementOutcome::Complete, "{what:?}");
    }
}
