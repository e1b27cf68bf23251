//! A path that goes silent with a write in doubt: the write must not land after the fence was reported.

use std::net::SocketAddr;
use std::time::Duration;

use blockwire_multipath::iscsi::{IscsiPath, Settings, Timeouts};
use blockwire_multipath::{IoError, Path, PathEvent};
use buf::Payload;
use endpoint::CloseMode;
use volume::{Durability, IoId, Op, Outcome};

use crate::world::World;
use crate::{next, run, settings, span, up};
use testkit::delivery;
use testkit::scripted_iscsi_target::{ScriptedAnswer, ScriptedTarget, honest_answer};
use testkit::target;

const OWN: &str = "127.0.0.1:3260";
const OTHER: &str = "127.0.0.1:3261";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A target that pings nobody, so a silent session stays for ever.
fn patient() -> target::TargetLimits {
    let mut terms = target::TargetLimits::default();
    terms.limits.nop_interval = None;
    terms
}

/// A path whose session falls silent with a write on its way; the world between keeps that.
fn silent(elsewhere: &[SocketAddr], timeouts: Timeouts) -> World<IscsiPath> {
    let mut world = crate::world(Settings { timeouts, ..settings() }, &patient());
    world.path.set_fence_portals(elsewhere.to_vec());
    up(&mut world);
    let old = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    assert_eq!(run(&mut world, Op::Write(span(8, 1), Durability::Cached), old).0, Ok(Outcome::Complete));
    world.hold();
    let stale = delivery::payload_with_bytes(&world.pool, &[2; 512]);
    world
        .with(|path, cx| path.submit(cx, IoId(9), Op::Write(span(8, 1), Durability::Cached), stale))
        .unwrap();
    // The connection hears nothing, and new ones to the same portal come to nothing.
    world.deaf.push(address(OWN));
    loop {
        match next(&mut world) {
            PathEvent::Done { id: IoId(9), how: Err(IoError::InDoubt), .. } => {}
            PathEvent::Down(_) => return world,
            other => panic!("{other:?}"),
        }
    }
}

/// Goes on until the fence is told; how long that took.
fn fenced(world: &mut World<IscsiPath>) -> Duration {
    let begun = world.now;
    world.with(|path, cx| path.fence(cx));
    loop {
        match next(world) {
            PathEvent::Fenced => return world.now.since(begun),
            PathEvent::Down(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What stands in the block, read by a path of its own.
fn content(world: &mut World<IscsiPath>) -> u8 {
    world.deaf.clear();
    up(world);
    let room = delivery::payload_for_read(&world.pool, 512);
    let (how, payload) = run(world, Op::Read(span(8, 1)), room);
    assert_eq!(how, Ok(Outcome::Complete));
    delivery::payload_bytes(payload)[0]
}

#[test]
fn a_stale_write_does_not_land_after_the_fence_when_a_silent_path_heals() {
    let mut world = silent(&[address(OTHER)], Timeouts::default());
    let took = fenced(&mut world);
    assert!(took < Duration::from_secs(10), "by the other portal of the group, and not by waiting: {took:?}");
    assert!(world.dialled.contains(&address(OTHER)));
    world.heal();
    world.settle();
    assert_eq!(content(&mut world), 1);
}

#[test]
fn a_login_elsewhere_is_for_the_fence_only() {
    let mut world = silent(&[address(OTHER)], Timeouts::default());
    world.with(|path, cx| {
        path.fence(cx);
        path.connect(cx);
    });
    let (mut is_fenced, mut is_down) = (false, false);
    while !is_fenced || !is_down {
        match next(&mut world) {
            PathEvent::Fenced => is_fenced = true,
            PathEvent::Down(why) => {
                is_down = {
                    assert!(format!("{why:?}").contains("Unreachable"), "{why:?}");
                    true
                }
            }
            other => panic!("it is not up by another path's portal: {other:?}"),
        }
    }
    world.settle();
    assert_eq!(world.dialled.iter().filter(|to| **to == address(OTHER)).count(), 1);
    // With nothing in doubt it goes by its own portals alone.
    world.with(|path, cx| path.connect(cx));
    assert!(matches!(next(&mut world), PathEvent::Down(_)));
    assert_eq!(world.dialled.iter().filter(|to| **to == address(OTHER)).count(), 1);
}

#[test]
fn without_another_way_to_the_target_the_stated_time_is_waited() {
    let fence = Duration::from_secs(40);
    let mut world = silent(&[], Timeouts { fence, ..Timeouts::default() });
    let took = fenced(&mut world);
    assert!(took >= Duration::from_secs(39) && took <= Duration::from_secs(46), "{took:?}");
    // This is what it cannot do: a target that keeps a silent session for longer. So it is stated.
    world.heal();
    world.settle();
    assert_eq!(content(&mut world), 2);
    // The usual time is well above the minute after which a target of ours ends a silent session.
    assert!(Timeouts::default().fence >= Duration::from_secs(100));
}

#[test]
fn a_socket_that_may_hold_a_write_in_doubt_is_reset_however_politely_it_was_to_end() {
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    world.script =
        Some(ScriptedTarget::new(
            |cdb| if cdb[0] == 0x2a { ScriptedAnswer::Silence } else { honest_answer(cdb) },
        ));
    up(&mut world);
    let data = delivery::payload_with_bytes(&world.pool, &[1; 512]);
    world.with(|path, cx| path.submit(cx, IoId(9), Op::Write(span(0, 1), Durability::Cached), data)).unwrap();
    world.settle();
    world.with(|path, cx| path.disconnect(cx, Duration::from_secs(1)));
    let PathEvent::Done { how: Err(IoError::InDoubt), .. } = next(&mut world) else {
        panic!("it is in doubt")
    };
    assert!(matches!(next(&mut world), PathEvent::Down(_)));
    assert_eq!(world.left(), [CloseMode::Abort]);
    // In good order it is not.
    let mut world = crate::world(settings(), &target::TargetLimits::default());
    up(&mut world);
    world.with(|path, cx| path.disconnect(cx, Duration::from_secs(1)));
    assert!(matches!(next(&mut world), PathEvent::Down(_)));
    assert_eq!(world.left(), [CloseMode::Close]);
    let _ = Payload::None;
}
