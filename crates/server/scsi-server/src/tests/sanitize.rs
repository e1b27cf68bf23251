//! SANITIZE: it closes the volume for all hosts, and only the volume's end stops it.

use scsi::Status;

use super::*;

const TUR: [u8; 6] = [0; 6];

fn overwrite(len: u16, flags: u8) -> [u8; 10] {
    let [high, low] = len.to_be_bytes();
    [0x48, 1 | flags, 0, 0, 0, 0, 0, high, low, 0]
}

#[test]
fn overwrite_fills_every_block() {
    let (mut world, host) = disk();
    for (len, passes, invert) in [(4, 1, 0), (512, 1, 0), (256, 2, 0x80)] {
        let pattern: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
        let mut list = vec![invert | passes, 0, (len >> 8) as u8, len as u8];
        list.extend(&pattern);
        world.good(host, &overwrite(len as u16 + 4, 0), &list, 0);
        let flip = if invert == 0 { 0 } else { 0xff };
        let whole: Vec<u8> = pattern.iter().cycle().take(512).map(|byte| byte ^ flip).collect();
        for lba in [0, 1, 32767] {
            assert_eq!(world.read(host, lba, 1), whole);
        }
        world.good(host, &TUR, &[], 0);
    }
    world.good(host, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    assert_eq!(world.read(host, 32767, 1), block(0));
    let status = world.good(host, &cdb_16(0x9e, 0x12, 0, 256), &[], 256);
    assert_eq!((status.len(), status[20] & 7), (24, 1));
}

#[test]
fn wrong_requests_are_refused() {
    let (mut world, host) = disk();
    for cdb in [
        overwrite(4, 0),
        overwrite(517, 0),
        overwrite(8, 0x40),
        [0x48, 3, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x48, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x48, 4, 0, 0, 0, 0, 0, 0, 0, 0],
        [0x48, 2, 0, 0, 0, 0, 0, 0, 8, 0],
        [0x48, 2, 1, 0, 0, 0, 0, 0, 0, 0],
        [0x48, 0x1f, 0, 0, 0, 0, 0, 0, 8, 0],
    ] {
        world.refused(host, &cdb, &[0; 600], 0, 0x05_2400);
    }
    for list in [[0, 0, 0, 4, 1, 2, 3, 4], [1, 0, 0, 0, 1, 2, 3, 4], [1, 0, 2, 1, 1, 2, 3, 4]] {
        world.refused(host, &overwrite(8, 0), &list, 0, 0x05_2600);
    }
    // Nothing has failed, so there is nothing to leave.
    world.good(host, &[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    let other = world.host(0, "iqn.b", &[0]);
    world.good(other, &[0x16, 0, 0, 0, 0, 0], &[], 0);
    world.conflicts(host, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
}

#[test]
fn a_running_sanitize_survives_everything() {
    let mut world = World::new(2);
    world.add(32768, |_| {});
    world.shared[0].set_sanitize_rate(1 << 20);
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    let list = [1, 0, 0, 4, 1, 2, 3, 4];
    let sanitize = world.start(a, &overwrite(8, 0), &list, 0);
    world.run();
    world.now = Time(4_000_000_000);
    world.run();
    assert_eq!(world.end(sanitize), None);
    let blocked: [&[u8]; 5] =
        [&TUR, &read_10(0, 1), &[0x1b, 0, 0, 0, 1, 0], &overwrite(8, 0), &[0x1a, 0, 0x3f, 0, 255, 0]];
    for host in [a, b] {
        for cdb in blocked {
            let got = world.command(host, cdb, &list, 512);
            assert_eq!(got.code(), 0x02_041b, "{cdb:02x?}");
            let scsi::sense::SenseKeySpecific::Progress(progress) = got.sense.unwrap().specific else {
                panic!("no progress: {got:?}")
            };
            // A quarter of 16 MiB at 1 MiB a second.
            assert!((15_000..18_000).contains(&progress), "{progress}");
        }
        world.good(host, &[0x12, 0, 0, 0, 36, 0], &[], 36);
        let sense = world.good(host, &[0x03, 0, 0, 0, 18, 0], &[], 18);
        assert_eq!((sense[2], sense[12], sense[13]), (2, 4, 0x1b));
    }
    let tag = Some(sanitize.key.tag);
    assert_eq!(world.managed(a, ManagementFunction::AbortTask { tag }), ManagementOutcome::Complete);
    assert_eq!(world.end(sanitize), Some(End::Retired));
    assert_eq!(world.managed(a, ManagementFunction::AbortTaskSet([0; 8])), ManagementOutcome::Complete);
    assert_eq!(world.managed(a, ManagementFunction::LogicalUnitReset([0; 8])), ManagementOutcome::Complete);
    assert_eq!(world.managed(b, ManagementFunction::TargetReset), ManagementOutcome::Complete);
    world.close(a);
    world.refused(b, &TUR, &[], 0, 0x06_2903);
    world.refused(b, &TUR, &[], 0, 0x02_041b);
    let a = world.host(0, "iqn.a", &[0]);
    world.refused(a, &TUR, &[], 0, 0x02_041b);
    world.run_out();
    assert!(world.now >= Time(16_000_000_000));
    world.good(a, &TUR, &[], 0);
    world.good(b, &TUR, &[], 0);
    assert_eq!(world.read(b, 32767, 1)[..4], [1, 2, 3, 4]);
    assert_eq!(world.lent(), 0);
}

/// That it has ended cannot be recorded; it has failed then, and another one heals it.
#[test]
fn a_sanitize_whose_end_cannot_be_recorded_does_not_close_its_volume_for_ever() {
    let (mut world, host) = disk();
    world.shared[0].set_sanitize_rate(1 << 20);
    let list = [1, 0, 0, 4, 1, 2, 3, 4];
    let sanitize = world.start(host, &overwrite(8, 0), &list, 0);
    world.run();
    world.stores_fail = true;
    world.run_out();
    assert!(world.end(sanitize).is_some());
    world.refused(host, &TUR, &[], 0, 0x03_3103);
    world.stores_fail = false;
    world.shared[0].set_sanitize_rate(0);
    world.good(host, &overwrite(8, 0), &list, 0);
    world.good(host, &TUR, &[], 0);
}

/// Every block is unreadable and the volume is open; only a shard is late to take that over.
#[test]
fn a_sanitize_that_ended_well_is_not_reported_failed_because_a_shard_is_late() {
    let (mut world, host) = disk();
    world.shared[0].set_sanitize_rate(1 << 20);
    let sanitize = world.start(host, &overwrite(8, 0), &[1, 0, 0, 4, 1, 2, 3, 4], 0);
    world.run();
    world.fences_late = true;
    world.run_out();
    assert_eq!(world.outcome(sanitize).code(), 0x04_4400);
    world.good(host, &TUR, &[], 0);
}

#[test]
fn an_immediate_sanitize_is_answered_when_it_begins() {
    let (mut world, host) = disk();
    world.shared[0].set_sanitize_rate(1 << 20);
    let sanitize = world.start(host, &overwrite(8, 0x80), &[1, 0, 0, 4, 1, 2, 3, 4], 0);
    world.run();
    assert_eq!(world.outcome(sanitize).status, Status::GOOD);
    world.refused(host, &TUR, &[], 0, 0x02_041b);
    world.run_out();
    world.good(host, &TUR, &[], 0);
    // What was under way before ends first.
    world.shared[0].set_sanitize_rate(0);
    world.disks.hold.set(true);
    let write = world.start(host, &write_10(0, 1), &block(9), 0);
    world.run();
    let sanitize = world.start(host, &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0);
    world.run();
    assert_eq!(world.end(sanitize), None);
    world.disks.hold.set(false);
    world.run();
    assert_eq!(world.outcome(write).status, Status::GOOD);
    assert_eq!(world.outcome(sanitize).status, Status::GOOD);
    assert_eq!(world.read(host, 0, 1), block(0));
}

#[test]
fn a_failed_sanitize_is_left_only_as_it_was_allowed() {
    for (allow_exit, code) in [(0x20, 0), (0, 0x05_2400)] {
        let (mut world, host) = disk();
        world.shared[0].set_sanitize_rate(1 << 20);
        let list = [1, 0, 0, 4, 1, 2, 3, 4];
        let sanitize = world.start(host, &overwrite(8, allow_exit), &list, 0);
        world.run();
        // The home is told that it failed, as the shard does when its disk fails.
        world.request(VolumeId(0), VolumeRequest::SanitizeEnd { done: false });
        world.refused(host, &TUR, &[], 0, 0x03_3103);
        let exit = [0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0];
        // Who may only read does not get to see what was to be destroyed.
        let reader = world.host(0, "iqn.r", &[0]);
        let reads = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
        world.server(reader).change_luns(reader.key, reads);
        world.command(reader, &TUR, &[], 0);
        let refused = if code == 0 { 0x07_2700 } else { code };
        assert_eq!(world.command(reader, &exit, &[], 0).code(), refused);
        world.refused(reader, &read_10(0, 1), &[], 512, 0x03_3103);
        assert_eq!(world.command(host, &exit, &[], 0).code(), code);
        world.run_out();
        assert!(world.end(sanitize).is_some());
        // Another sanitize heals it in any case.
        world.shared[0].set_sanitize_rate(0);
        world.good(host, &overwrite(8, 0), &list, 0);
        world.good(host, &TUR, &[], 0);
    }
}

const FORMAT: [u8; 6] = [0x04, 0, 0, 0, 0, 0];
const FORMAT_WITH_LIST: [u8; 6] = [0x04, 0x10, 0, 0, 0, 0];

#[test]
fn a_format_makes_every_block_zero() {
    for thin in [true, false] {
        let mut world = World::new(1);
        world.add(32768, |geometry| geometry.thin = thin);
        let host = world.host(0, "iqn.host-a", &[0]);
        for (cdb, list) in [(FORMAT, &[][..]), (FORMAT_WITH_LIST, &[0, 0, 0, 0][..])] {
            world.write(host, 0, &block(7));
            world.write(host, 32767, &block(7));
            world.good(host, &cdb, list, 0);
            for lba in [0, 1, 32767] {
                assert_eq!(world.read(host, lba, 1), block(0));
            }
        }
        let long = [0x04, 0x30, 0, 0, 0, 0];
        world.good(host, &long, &[0; 8], 0);
        world.refused(host, &FORMAT_WITH_LIST, &[0, 0, 0, 8], 0, 0x05_2600);
        world.refused(host, &[0x04, 0x40, 0, 0, 0, 0], &[], 0, 0x05_2400);
        assert_eq!(world.lent(), 0);
    }
}

#[test]
fn an_immediate_format_is_answered_when_it_begins_and_says_how_far_it_is() {
    let mut world = World::new(2);
    world.add(32768, |geometry| geometry.thin = false);
    world.shared[0].set_sanitize_rate(1 << 20);
    let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
    let format = world.start(a, &FORMAT_WITH_LIST, &[0, 2, 0, 0], 0);
    world.run();
    assert_eq!(world.outcome(format).status, Status::GOOD);
    world.now = Time(4_000_000_000);
    world.run();
    for host in [a, b] {
        let got = world.command(host, &TUR, &[], 0);
        assert_eq!(got.code(), 0x02_0404);
        let scsi::sense::SenseKeySpecific::Progress(progress) = got.sense.unwrap().specific else {
            panic!("no progress: {got:?}")
        };
        assert!((15_000..18_000).contains(&progress), "{progress}");
        world.refused(host, &read_10(0, 1), &[], 512, 0x02_0404);
        world.refused(host, &FORMAT, &[], 0, 0x02_0404);
        world.refused(host, &overwrite(8, 0), &[1, 0, 0, 4, 1, 2, 3, 4], 0, 0x02_0404);
        let sense = world.good(host, &[0x03, 0, 0, 0, 18, 0], &[], 18);
        assert_eq!((sense[2], sense[12], sense[13]), (2, 4, 4));
    }
    world.run_out();
    world.good(a, &TUR, &[], 0);
    world.good(b, &TUR, &[], 0);
}

#[test]
fn a_format_that_failed_is_healed_by_another_one() {
    let mut world = World::new(1);
    world.add(32768, |geometry| geometry.thin = false);
    let host = world.host(0, "iqn.host-a", &[0]);
    world.shared[0].set_sanitize_rate(1 << 20);
    let format = world.start(host, &FORMAT, &[], 0);
    world.run();
    world.stores_fail = true;
    world.run_out();
    assert_eq!(world.outcome(format).code(), 0x03_3101);
    world.refused(host, &TUR, &[], 0, 0x03_3103);
    world.refused(host, &[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], &[], 0, 0x05_2400);
    world.stores_fail = false;
    world.shared[0].set_sanitize_rate(0);
    world.good(host, &FORMAT, &[], 0);
    world.good(host, &TUR, &[], 0);
}

#[test]
fn a_format_is_refused_as_a_write_is() {
    let (mut world, host) = disk();
    let other = world.host(0, "iqn.b", &[0]);
    world.good(other, &[0x16, 0, 0, 0, 0, 0], &[], 0);
    world.conflicts(host, &FORMAT, &[], 0);
    let reads = vec![LunEntry { lun: 0, volume: VolumeId(0), read_only: true }];
    world.server(other).change_luns(other.key, reads);
    world.command(other, &TUR, &[], 0);
    world.refused(other, &FORMAT, &[], 0, 0x07_2700);
}

/// An abort that was answered has ended its command: what waited for its turn at the volume's home does not begin
/// behind it, and what has begun goes on.
#[test]
fn a_format_that_was_aborted_before_its_turn_does_not_begin() {
    for cdb in [&FORMAT[..], &[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let mut world = World::new(2);
        world.add(32768, |_| {});
        let (a, b) = (world.host(0, "iqn.a", &[0]), world.host(1, "iqn.b", &[0]));
        world.write(a, 0, &block(7));
        // A reset of the other host waits for its own write, and the format waits for the reset.
        world.disks.hold.set(true);
        world.start(b, &write_10(8, 1), &block(9), 0);
        world.run();
        let reset = world.manage(b, ManagementFunction::LogicalUnitReset([0; 8]));
        world.run();
        assert_eq!(world.end(reset), None);
        world.refused(a, &TUR, &[], 0, 0x06_2903);
        let format = world.start(a, cdb, &[], 0);
        world.run();
        assert_eq!(world.end(format), None);
        let tag = Some(format.key.tag);
        assert_eq!(world.managed(a, ManagementFunction::AbortTask { tag }), ManagementOutcome::Complete);
        assert_eq!(world.end(format), Some(End::Retired));
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.end(reset), Some(End::Other(ManagementOutcome::Complete)));
        world.good(a, &TUR, &[], 0);
        assert_eq!(world.read(a, 0, 1), block(7));
        // A format that is closing the volume already is carried out, and its abort waits until it has begun.
        world.command(b, &TUR, &[], 0);
        world.shared[0].set_sanitize_rate(1 << 20);
        world.disks.hold.set(true);
        world.start(b, &write_10(8, 1), &block(9), 0);
        world.run();
        let format = world.start(a, cdb, &[], 0);
        world.run();
        let abort = world.manage(a, ManagementFunction::AbortTaskSet([0; 8]));
        world.run();
        assert_eq!((world.end(format), world.end(abort)), (None, None));
        world.disks.hold.set(false);
        world.run();
        assert_eq!(world.end(format), Some(End::Retired));
        assert_eq!(world.end(abort), Some(End::Other(ManagementOutcome::Complete)));
        world.run_out();
        world.good(a, &TUR, &[], 0);
        assert_eq!(world.read(a, 0, 1), block(0));
        assert_eq!(world.lent(), 0);
    }
}
