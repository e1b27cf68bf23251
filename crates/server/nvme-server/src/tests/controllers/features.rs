//! Get FeatureValues and Set FeatureValues.

use nvme::fabrics::Property;
use nvme::{Opcode, Status};
use volume::VolumeRequest;

use super::*;

fn world() -> (World, Host) {
    let mut world = World::new(1);
    world.add(4096, |_| {});
    let host = world.controller(spec(1, 1, vec![entry(0)]));
    (world, host)
}

#[test]
fn what_is_granted_is_what_is_told() {
    let (mut world, host) = world();
    assert_eq!(world.ends(host, &set_feature(7, 0, 0x00ff_00ff), &[]).result, 0x000f_000f);
    assert_eq!(world.ends(host, &get_feature(7, 0, 0, 0), &[]).result, 0x000f_000f);
    assert_eq!(world.ends(host, &set_feature(7, 0, 0x0003_0007), &[]).result, 0x0003_0003);
    for wrong in [0xffff_0001, 0x0001_ffff] {
        assert_eq!(
            world.ends(host, &set_feature(7, 0, wrong), &[]).status,
            Status::INVALID_FIELD.with_do_not_retry()
        );
    }
}

#[test]
fn values_are_kept_until_a_reset() {
    let (mut world, host) = world();
    for (fid, value) in [(0x01, 0x0403_0207), (0x05, 0x0102), (0x0a, 1), (0x0b, 0x900), (0x04, 0x0010_0150)] {
        let nsid = u32::from(fid == 0x05);
        assert_eq!(world.ends(host, &set_feature(fid, nsid, value), &[]).status, Status::SUCCESS, "{fid:#x}");
        let get = get_feature(fid, nsid, value & 0x00f0_0000, 0);
        let expected = if fid == 0x04 { 0x0150 } else { value };
        assert_eq!(world.ends(host, &get, &[]).result, u64::from(expected), "{fid:#x}");
        // The default and the saved value are what a reset gives.
        for select in [1, 2] {
            let mut get = get;
            get.cdw10[0] = U32::new(u32::from(fid) | select << 8);
            assert_eq!(world.ends(host, &get, &[]).result, 0, "{fid:#x}");
        }
    }
    assert_eq!(world.set(host, Property::CC, 0), Status::SUCCESS);
    assert_eq!(world.set(host, Property::CC, 0x0046_0001), Status::SUCCESS);
    assert_eq!(world.ends(host, &get_feature(0x0b, 0, 0, 0), &[]).result, 0);
    assert_eq!(world.ends(host, &get_feature(0x01, 0, 0, 0), &[]).result, 0);
}

#[test]
fn each_feature_says_what_can_be_done_with_it() {
    let (mut world, host) = world();
    let can = |world: &mut World, fid: u8| {
        let mut get = get_feature(fid, 1, 0, 4096);
        get.cdw10[0] = U32::new(u32::from(fid) | 3 << 8);
        world.ends(host, &get, &[])
    };
    let known = [
        (0x01, 4),
        (0x02, 4),
        (0x04, 4),
        (0x05, 6),
        (0x06, 0),
        (0x07, 4),
        (0x0a, 4),
        (0x0b, 4),
        (0x0e, 4),
        (0x0f, 4),
        (0x16, 4),
        (0x19, 4),
        (0x81, 0),
        (0x82, 6),
        (0x83, 6),
        (0x84, 6),
    ];
    for fid in 0..=0xff {
        let completion = can(&mut world, fid);
        match known.iter().find(|(known, _)| *known == fid) {
            Some((_, bits)) => assert_eq!((completion.result, completion.status), (*bits, Status::SUCCESS)),
            None => assert_eq!(completion.status, Status::INVALID_FIELD.with_do_not_retry(), "{fid:#x}"),
        }
    }
}

#[test]
fn wrong_fields_are_refused() {
    let (mut world, host) = world();
    let cases = [
        // Saving.
        (set_feature(0x0b, 0, 0), 1 << 31, Status::FEATURE_NOT_SAVEABLE),
        // Not there.
        (set_feature(0x03, 0, 0), 0, Status::INVALID_FIELD),
        (set_feature(0x0c, 0, 0), 0, Status::INVALID_FIELD),
        // Not changeable.
        (set_feature(0x06, 0, 0), 0, Status::FEATURE_NOT_CHANGEABLE),
        (set_feature(0x81, 0, 1), 0, Status::COMMAND_SEQUENCE_ERROR),
        (set_feature(0x83, 2, 1), 0, Status::INVALID_NAMESPACE),
        // Not a namespace's, and no such namespace.
        (set_feature(0x0b, 1, 0), 0, Status::FEATURE_NOT_NAMESPACE_SPECIFIC),
        (set_feature(0x82, 0, 0), 0, Status::INVALID_NAMESPACE),
        (set_feature(0x82, 2, 0), 0, Status::INVALID_NAMESPACE),
        (set_feature(0x84, 0xffff_ffff, 0), 0, Status::INVALID_NAMESPACE),
        // Power states, sensors, deallocation errors, command sets, protection that there are not.
        (set_feature(0x02, 0, 1), 0, Status::INVALID_FIELD),
        (set_feature(0x04, 0, 1 << 16), 0, Status::INVALID_FIELD),
        (set_feature(0x04, 0, 2 << 20), 0, Status::INVALID_FIELD),
        (set_feature(0x05, 1, 1 << 16), 0, Status::INVALID_FIELD),
        (set_feature(0x19, 0, 1), 0, Status::INVALID_FIELD),
        (set_feature(0x84, 1, 2), 0, Status::INVALID_FIELD),
        // Data that is not there.
        (set_feature(0x0e, 0, 0), 0, Status::SGL_LENGTH_INVALID),
        (set_feature(0x16, 0, 0), 0, Status::SGL_LENGTH_INVALID),
    ];
    for (mut sqe, save, status) in cases {
        sqe.cdw10[0] = U32::new(sqe.cdw(10) | save);
        assert_eq!(world.ends(host, &sqe, &[]).status, status.with_do_not_retry(), "{sqe:x?}");
    }
    // What is so already may be set so.
    assert_eq!(world.ends(host, &set_feature(0x06, 0, 1), &[]).status, Status::SUCCESS);
    assert_eq!(world.ends(host, &set_feature(0x83, 1, 0), &[]).status, Status::SUCCESS);
    assert_eq!(world.ends(host, &set_feature(0x19, 0, 0), &[]).status, Status::SUCCESS);
    for fid in [0x0e, 0x16, 0x81] {
        let status = world.ends(host, &get_feature(fid, 0, 1, 7), &[]).status;
        assert_eq!(status, Status::SGL_LENGTH_INVALID.with_do_not_retry());
    }
    // 64-bit host identifiers are none on fabrics.
    assert_eq!(
        world.ends(host, &get_feature(0x81, 0, 0, 16), &[]).status,
        Status::INVALID_FIELD.with_do_not_retry()
    );
    assert_eq!(world.good(host, &get_feature(0x81, 0, 1, 16), &[]), [1; 16]);
    assert_eq!(world.ends(host, &get_feature(0x06, 0, 0, 0), &[]).result, 1);
    let mut reserved = get_feature(0x06, 0, 0, 0);
    reserved.cdw10[0] = U32::new(6 | 4 << 8);
    assert_eq!(world.ends(host, &reserved, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
}

#[test]
fn the_timestamp_goes_on() {
    let (mut world, host) = world();
    world.pass(2);
    let read = world.good(host, &get_feature(0x0e, 0, 0, 8), &[]);
    assert_eq!(read, [0xd0, 0x07, 0, 0, 0, 0, 0, 0]);
    let set = admin(0x09, 0, &[0x0e], 8);
    world.good(host, &set, &[0, 0, 0, 0, 1, 0, 0, 0]);
    world.pass(1);
    let read = world.good(host, &get_feature(0x0e, 0, 0, 8), &[]);
    assert_eq!(read, [0xe8, 0x03, 0, 0, 1, 0, 2, 0]);
}

#[test]
fn host_behavior_is_kept() {
    let (mut world, host) = world();
    let set = admin(0x09, 0, &[0x16], 512);
    let mut behavior = [0; 512];
    behavior[0] = 1;
    world.good(host, &set, &behavior);
    assert_eq!(world.good(host, &get_feature(0x16, 0, 0, 512), &[]), behavior);
    behavior[0] = 2;
    assert_eq!(world.ends(host, &set, &behavior).status, Status::INVALID_FIELD.with_do_not_retry());
}

#[test]
fn write_protection_is_the_volumes_own() {
    let (mut world, host) = world();
    let queue = world.connect(1, &join(1, 1, 0)).unwrap();
    assert_eq!(world.ends(host, &set_feature(0x84, 1, 1), &[]).status, Status::SUCCESS);
    assert_eq!(world.ends(host, &get_feature(0x84, 1, 0, 0), &[]).result, 1);
    let data = world.good(host, &admin(0x06, 1, &[0], 4096), &[]);
    assert_eq!(data[99], 1);
    let write = super::super::transfer(Opcode::WRITE, 0, 1);
    let refused = world.command(queue, &write, &super::super::block(1));
    assert_eq!(refused, Status::NAMESPACE_WRITE_PROTECTED.with_do_not_retry());
    assert_eq!(world.ends(host, &set_feature(0x84, 1, 0), &[]).status, Status::SUCCESS);
    assert_eq!(world.command(queue, &write, &super::super::block(1)), Status::SUCCESS);
    // Who may only read protects nobody else's writes.
    let reads = NamespaceEntry { read_only: true, ..entry(0) };
    world.server(host).change_namespaces(1, vec![reads]);
    world.run();
    assert_eq!(world.ends(host, &get_feature(0x84, 1, 0, 0), &[]).result, 1);
    assert_eq!(world.ends(host, &set_feature(0x84, 1, 1), &[]).status, Status::SUCCESS);
    let status = world.ends(host, &set_feature(0x84, 1, 0), &[]).status;
    assert_eq!(status, Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry());
    world.server(host).change_namespaces(1, vec![entry(0)]);
    world.run();
    assert_eq!(world.command(queue, &write, &super::super::block(1)), Status::SUCCESS);
    // What the operator protects no host opens.
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    let status = world.ends(host, &set_feature(0x84, 1, 0), &[]).status;
    assert_eq!(status, Status::FEATURE_NOT_CHANGEABLE.with_do_not_retry());
}

/// RESCAP says that a namespace can persist its reservations (PTPL), so a host can have it do so, and see
/// what others did by a registration.
#[test]
fn persistence_of_reservations_is_not_refused_where_it_is_offered() {
    let (mut world, host) = world();
    for on in [1, 0, 0, 1] {
        assert_eq!(world.ends(host, &set_feature(0x83, 1, on), &[]).status, Status::SUCCESS);
        assert_eq!(world.ends(host, &get_feature(0x83, 1, 0, 0), &[]).result, u64::from(on));
        assert_eq!(world.home(0).view().reservations.persists(), on == 1);
    }
}
