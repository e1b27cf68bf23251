//! Mode pages: what can be changed, and which nexuses are told.

use super::*;

const TUR: [u8; 6] = [0; 6];

fn control_page(world: &mut World, host: Host) -> Vec<u8> {
    world.good(host, &[0x1a, 8, 0x0a, 0, 255, 0], &[], 255)[4..].to_vec()
}

fn select(page: &[u8]) -> Vec<u8> {
    let mut list = vec![0; 4];
    list.extend(page);
    list
}

#[test]
fn software_write_protection_is_shared_and_told() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    let mut page = control_page(&mut world, a);
    page[4] |= 8;
    let list = select(&page);
    let cdb = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    world.good(a, &cdb, &list, 0);
    world.good(a, &TUR, &[], 0);
    world.refused(b, &TUR, &[], 0, 0x06_2a01);
    for host in [a, b] {
        world.refused(host, &write_10(0, 1), &block(1), 0, 0x07_2700);
        world.good(host, &read_10(0, 1), &[], 512);
        assert_eq!(world.good(host, &[0x1a, 0, 0x3f, 0, 255, 0], &[], 255)[2], 0x90);
    }
    // Protection is told before a length that does not fit, and before data is asked for.
    world.refused(a, &cdb_16(0x93, 8, 0, 1), &[], 0, 0x07_2700);
    world.refused(a, &cdb_16(0x93, 0, 0, 1), &[0; 7], 0, 0x07_2700);
    world.refused(a, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 24], 0, 0x07_2700);
    world.refused(a, &cdb_16(0x89, 0, 0, 1), &[0; 1024], 0, 0x07_2700);
    world.refused(a, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0, 0x07_2700);
    page[4] &= !8;
    world.good(b, &cdb, &select(&page), 0);
    world.refused(a, &TUR, &[], 0, 0x06_2a01);
    world.write(a, 0, &block(1));
    // Who may only read protects nobody else's writes.
    let reads = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(b).change_luns(b.key, reads);
    world.command(b, &TUR, &[], 0);
    world.refused(b, &cdb, &list, 0, 0x07_2700);
    world.write(a, 0, &block(1));
    // Nor does it set what others' sense data looks like (D_SENSE).
    page[2] |= 4;
    world.refused(b, &cdb, &select(&page), 0, 0x07_2700);
    world.good(a, &cdb, &select(&page), 0);
}

#[test]
fn sense_data_follows_d_sense_on_every_shard() {
    let mut world = World::new(2);
    world.add(4096, |_| {});
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    assert!(!world.command(a, &read_10(9999, 1), &[], 512).reply.descriptor);
    let mut page = control_page(&mut world, b);
    page[2] |= 4;
    let list = select(&page);
    world.good(b, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0);
    assert!(world.command(b, &read_10(9999, 1), &[], 512).reply.descriptor);
    let told = world.command(a, &TUR, &[], 0);
    assert_eq!((told.code(), told.reply.descriptor), (0x06_2a01, true));
    assert_eq!(control_page(&mut world, a)[2] & 4, 4);
    // A reset brings the default back.
    assert_eq!(world.managed(b, ManagementFunction::LogicalUnitReset([0; 8])), ManagementOutcome::Complete);
    world.refused(a, &TUR, &[], 0, 0x06_2903);
    assert_eq!(control_page(&mut world, a)[2] & 4, 0);
}

#[test]
fn lists_that_are_wrong_change_nothing() {
    let (mut world, host) = disk();
    let page = control_page(&mut world, host);
    let all = world.good(host, &[0x1a, 8, 0x3f, 0, 255, 0], &[], 255);
    assert!(all.windows(page.len()).any(|part| part == page));
    // What cannot be changed: TST.
    let mut other = page.clone();
    other[2] |= 0x20;
    let list = select(&other);
    world.refused(host, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0, 0x05_2600);
    let list = select(&page);
    world.refused(host, &[0x15, 0x11, 0, 0, list.len() as u8, 0], &list, 0, 0x05_2400);
    world.refused(host, &[0x15, 0x10, 0, 0, 6, 0], &list[..6], 0, 0x05_1a00);
    world.refused(host, &[0x55, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff, 0], &list, 0, 0x05_1a00);
    world.good(host, &[0x15, 0x10, 0, 0, 0, 0], &[], 0);
    world.good(host, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0);
    // The write cache is what it is.
    let mut caching = world.good(host, &[0x1a, 8, 0x08, 0, 255, 0], &[], 255)[4..].to_vec();
    assert_eq!(caching[2] & 4, 0);
    caching[2] |= 4;
    let list = select(&caching);
    world.refused(host, &[0x15, 0x10, 0, 0, list.len() as u8, 0], &list, 0, 0x05_2600);
    world.refused(host, &[0x1a, 0, 0xca, 0, 255, 0], &[], 255, 0x05_3900);
    world.refused(host, &[0x1a, 0, 0x19, 0, 255, 0], &[], 255, 0x05_2400);
    world.good(host, &[0x5a, 0x10, 0x3f, 0xff, 0, 0, 0, 0, 255, 0], &[], 255);
    assert_eq!(control_page(&mut world, host), page);
}

#[test]
fn a_thin_volume_tells_its_threshold_and_when_it_is_reached() {
    let mut world = World::new(2);
    world.add(32768, |_| {});
    world.add(32768, |geometry| geometry.thin = false);
    let hosts = [world.host(0, "iqn.a", &[0, 1]), world.host(1, "iqn.b", &[0, 1])];
    let sense = [0x5a, 8, 0x1c, 2, 0, 0, 0, 0, 64, 0];
    let page = |world: &mut World| world.good(hosts[0], &sense, &[], 64)[8..].to_vec();
    assert_eq!(page(&mut world)[16..], [0x01, 2, 0, 0, 0, 0, 0, 0], "none is configured");
    // 50 % of 16 MiB, in sets of 1 MiB.
    world.shared[0].set_thin_threshold_percent(50);
    let shared = world.shared[0].clone();
    world.homes[0].watch_thin_threshold(shared);
    assert_eq!(page(&mut world)[16..], [0x81, 2, 0, 0, 0, 0, 0, 8]);
    for mib in 0..8 {
        world.write(hosts[0], mib * 2048, &[1; 1 << 20]);
    }
    world.homes[0].handle_timeout(Time(1_000_000_000));
    world.run_home(VolumeId(0));
    world.run();
    for host in hosts {
        let told = world.command(host, &TUR, &[], 0);
        assert_eq!(told.code(), 0x06_3807);
        assert_eq!(told.sense.and_then(|sense| sense.information), Some(16), "where its descriptor stands");
        world.good(host, &TUR, &[], 0);
    }
    let not_thin = world.command_on(hosts[0], 1, &sense, &[], 64);
    assert_eq!(not_thin.code(), 0x05_2400, "what is not thin has no such page");
}
