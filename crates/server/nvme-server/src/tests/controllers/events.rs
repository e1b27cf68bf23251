//! Asynchronous events: which, when, how often; and their logs.

use nvme::Status;
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{PathAccess, VolumeRequest};

use super::*;

const ALL: u32 = 1 << 8 | 1 << 11;

fn world() -> (World, Host) {
    let mut world = World::new(2);
    for _ in 0..3 {
        world.add(4096, |_| {});
    }
    let host = world.controller(spec(2, 1, vec![entry(0), entry(1), entry(2)]));
    assert_eq!(world.ends(host, &set_feature(0x0b, 0, ALL), &[]).status, Status::SUCCESS);
    (world, host)
}

fn inaccessible(to: PathAccess) -> VolumeRequest {
    VolumeRequest::SetAccess { ports: vec![PortId(1)], to, by: None }
}

#[test]
fn an_event_is_told_once_until_its_log_is_read() {
    let (mut world, host) = world();
    let first = world.start(host, &event_request(1), &[]);
    let second = world.start(host, &event_request(2), &[]);
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    assert_eq!(world.event(first), Some(0x0004_0002));
    world.request(2, VolumeRequest::WriteProtect(true)).unwrap();
    assert_eq!(world.end(second), None, "its log was not read");
    // Read, but retained.
    let mut retain = get_log(4, 4096);
    retain.cdw10[0] = U32::new(retain.cdw(10) | 1 << 15);
    assert_eq!(world.good(host, &retain, &[])[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    world.request(1, VolumeRequest::WriteProtect(true)).unwrap();
    assert_eq!(world.end(second), None);
    let list = world.good(host, &get_log(4, 4096), &[]);
    assert_eq!(list[..16], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(world.end(second), None, "all was read");
    assert_eq!(world.good(host, &get_log(4, 4096), &[])[..4], [0; 4]);
    world.request(1, VolumeRequest::WriteProtect(false)).unwrap();
    assert_eq!(world.event(second), Some(0x0004_0002));
}

#[test]
fn an_event_waits_for_a_request() {
    let (mut world, host) = world();
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    world.request(0, inaccessible(PathAccess::NonOptimized)).unwrap();
    let first = world.start(host, &event_request(1), &[]);
    let second = world.start(host, &event_request(2), &[]);
    assert_eq!(world.event(first), Some(0x0004_0002));
    assert_eq!(world.event(second), Some(0x000c_0302));
}

#[test]
fn what_is_not_configured_is_not_told() {
    let (mut world, host) = world();
    assert_eq!(world.ends(host, &set_feature(0x0b, 0, 1 << 11), &[]).status, Status::SUCCESS);
    let request = world.start(host, &event_request(1), &[]);
    world.request(0, VolumeRequest::WriteProtect(true)).unwrap();
    assert_eq!(world.end(request), None);
    assert_eq!(world.good(host, &get_log(4, 4096), &[])[..4], [1, 0, 0, 0]);
}

#[test]
fn a_resize_is_told_and_seen() {
    let (mut world, host) = world();
    let request = world.start(host, &event_request(1), &[]);
    let mut geometry = world.home(0).view().geometry;
    geometry.blocks = 2048;
    world.request(0, VolumeRequest::Resize(geometry)).unwrap();
    assert_eq!(world.event(request), Some(0x0004_0002));
    let data = world.good(host, &admin(0x06, 1, &[0], 4096), &[]);
    assert_eq!(data[..8], 2048_u64.to_le_bytes());
}

#[test]
fn path_states_are_told_and_logged() {
    let (mut world, host) = world();
    let request = world.start(host, &event_request(1), &[]);
    let page = world.good(host, &get_log(0x0c, 1024), &[]);
    assert_eq!(page[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[16..33], [1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(page[48..60], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    world.request(0, inaccessible(PathAccess::Inaccessible)).unwrap();
    assert_eq!(world.event(request), Some(0x000c_0302));
    // While the volumes of a group differ, it does not serve.
    let page = world.good(host, &get_log(0x0c, 1024), &[]);
    assert_eq!((page[0], page[24], page[32]), (2, 2, 3));
    world.request(1, inaccessible(PathAccess::NonOptimized)).unwrap();
    world.request(2, inaccessible(PathAccess::NonOptimized)).unwrap();
    world.request(0, inaccessible(PathAccess::NonOptimized)).unwrap();
    let page = world.good(host, &get_log(0x0c, 1024), &[]);
    assert_eq!((page[0], page[32]), (3, 2));
    // Groups only.
    let mut short = get_log(0x0c, 1024);
    short.cdw10[0] = U32::new(short.cdw(10) | 1 << 8);
    let page = world.good(host, &short, &[]);
    assert_eq!((page[20], page[48]), (0, 0));
    // What another port sees is no concern of this one.
    let other = VolumeRequest::SetAccess { ports: vec![PortId(9)], to: PathAccess::Inaccessible, by: None };
    let request = world.start(host, &event_request(2), &[]);
    world.request(0, other).unwrap();
    assert_eq!(world.end(request), None);
}

pub(in crate::tests) fn register(key: u64) -> Action {
    Action::Register(RegistrationRequest {
        mode: RegisterMode::Replace,
        nqn: Some("nqn.2026-11.io.blockwire:host".into()),
        ..RegistrationRequest::new(None, Key(key))
    })
}

fn who(id: u8) -> Requester {
    Requester { identity: Arc::new(Identity::Host([id; 16])), port: PortId(1), read_only: false }
}

impl World {
    fn reserve(&mut self, volume: u32, id: u8, action: Action) {
        self.request(volume, VolumeRequest::Reserve { who: who(id), action }).unwrap();
    }
}

/// A piece of the reservation log, with or without Retain.
fn notice(world: &mut World, host: Host, offset: u32, len: u32, retain: bool) -> Vec<u8> {
    let mut sqe = get_log(0x80, len);
    sqe.cdw10[0] = U32::new(sqe.cdw(10) | u32::from(retain) << 15);
    sqe.cdw10[2] = U32::new(offset);
    world.good(host, &sqe, &[])
}

/// A notice is read, and gone, when its page was read from the start and without Retain.
#[test]
fn a_notice_stays_until_it_is_read_from_its_start_without_retain() {
    let (mut world, host) = world();
    for volume in [0, 1] {
        world.reserve(volume, 1, register(0x11));
        world.reserve(volume, 9, register(0x99));
    }
    let preempt = Action::Preempt {
        key: Some(Key(0x99)),
        victim: Key(0x11),
        kind: ReservationType::WriteExclusive,
        abort: false,
    };
    let request = world.start(host, &event_request(1), &[]);
    world.reserve(0, 9, preempt.clone());
    world.reserve(1, 9, preempt);
    assert_eq!(world.event(request), Some(0x0080_0006));
    let again = world.start(host, &event_request(2), &[]);
    let first = [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0];
    for _ in 0..3 {
        assert_eq!(notice(&mut world, host, 0, 64, true)[..16], first);
    }
    assert_eq!(world.end(again), None, "the event is retained too");
    // In pieces, whatever they say of the event, all of one notice.
    assert_eq!(notice(&mut world, host, 0, 8, true), first[..8]);
    assert_eq!(notice(&mut world, host, 8, 8, false), first[8..]);
    assert_eq!(world.event(again), Some(0x0080_0006), "it was not read, and its event was cleared");
    assert_eq!(notice(&mut world, host, 0, 8, false), first[..8]);
    assert_eq!(notice(&mut world, host, 8, 8, false), first[8..], "the rest of what was begun");
    assert_eq!(notice(&mut world, host, 0, 64, true)[..16], [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    // Beyond the page there is nothing to read.
    let mut beyond = get_log(0x80, 4);
    beyond.cdw10[2] = U32::new(68);
    assert_eq!(world.ends(host, &beyond, &[]).status, Status::INVALID_FIELD.with_do_not_retry());
    assert_eq!(notice(&mut world, host, 0, 64, false)[0], 2);
    assert_eq!(notice(&mut world, host, 0, 64, false), [0; 64]);
}

#[test]
fn reservation_notices_are_told_one_by_one_unless_masked() {
    let (mut world, host) = world();
    for volume in [0, 1] {
        world.reserve(volume, 1, register(0x11));
        world.reserve(volume, 9, register(0x99));
    }
    let request = world.start(host, &event_request(1), &[]);
    let preempt = Action::Preempt {
        key: Some(Key(0x99)),
        victim: Key(0x11),
        kind: ReservationType::WriteExclusive,
        abort: false,
    };
    world.reserve(0, 9, preempt.clone());
    assert_eq!(world.event(request), Some(0x0080_0006));
    world.reserve(1, 9, preempt.clone());
    let again = world.start(host, &event_request(2), &[]);
    let log = world.good(host, &get_log(0x80, 64), &[]);
    assert_eq!(log[..16], [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0]);
    assert_eq!(world.event(again), Some(0x0080_0006), "there is one more");
    let log = world.good(host, &get_log(0x80, 64), &[]);
    assert_eq!(log[..16], [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(world.good(host, &get_log(0x80, 64), &[]), [0; 64]);
    // Masked (REGPRE), and only on that namespace.
    assert_eq!(world.ends(host, &set_feature(0x82, 1, 1 << 1), &[]).status, Status::SUCCESS);
    assert_eq!(world.ends(host, &get_feature(0x82, 1, 0, 0), &[]).result, 2);
    assert_eq!(world.ends(host, &get_feature(0x82, 2, 0, 0), &[]).result, 0);
    let request = world.start(host, &event_request(3), &[]);
    world.reserve(0, 1, register(0x11));
    world.reserve(0, 9, preempt);
    assert_eq!(world.end(request), None);
    assert_eq!(world.good(host, &get_log(0x80, 64), &[]), [0; 64]);
}
