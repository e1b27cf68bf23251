//! Cross-Controller Reset: a controller that was lost is reset by the path's next one, against our own target.

use std::time::Duration;

use blockwire_multipath::nvme::{NvmePath, Settings};
use blockwire_multipath::{IoError, LostController, Path, PathEvent};
use nvme::HostId;
use volume::{Durability, Op, Span};

use crate::world::World;
use crate::{settings, up};

const SPAN: Span = Span { lba: 0, blocks: 8 };

/// A path that has lost a controller with a write in doubt, and is up again by another one.
fn lost() -> (World<NvmePath>, LostController) {
    let mut world = up(settings());
    world.cut(0);
    world.cut(1);
    let out = world.out(&[1; 4096]);
    let id = world.start(Op::Write(SPAN, Durability::Cached), out);
    assert!(matches!(world.wait(id).0, Err(IoError::InDoubt)));
    world.down();
    world.connect().unwrap();
    let lost = world.path.lost_controllers();
    assert_eq!(lost.len(), 1);
    (world, lost[0].clone())
}

fn reset(world: &mut World<NvmePath>, lost: &LostController) -> bool {
    assert!(world.host(|path, cx| path.reset_controller(cx, lost)));
    world.until("reset", |events| {
        let found = |event: &PathEvent| matches!(event, PathEvent::ControllerReset { .. });
        let PathEvent::ControllerReset { controller, is_reset } =
            events.remove(events.iter().position(found)?)
        else {
            return None;
        };
        assert_eq!(controller, *lost);
        Some(is_reset)
    })
}

fn is_fenced(world: &mut World<NvmePath>) -> bool {
    while let Some(event) = world.path.poll_event() {
        world.events.push(event);
    }
    world.events.iter().any(|event| matches!(event, PathEvent::Fenced))
}

#[test]
fn a_lost_controller_is_reset_by_the_next_one_and_not_waited_for() {
    let (mut world, lost) = lost();
    world.host(|path, cx| path.fence(cx));
    let begun = world.now;
    assert!(reset(&mut world, &lost));
    assert!(!is_fenced(&mut world));
    world.host(|path, cx| path.handle_controller_reset(cx, &lost));
    world.step();
    assert!(is_fenced(&mut world));
    assert!(world.now.since(begun) < Duration::from_millis(100));
    assert!(world.path.lost_controllers().is_empty());
    assert!(!world.host(|path, cx| path.reset_controller(cx, &lost)), "once in an association");
}

/// It is reset while its own admin queue is still asked to stop it.
#[test]
fn a_reset_by_another_one_ends_the_wait_for_the_own_queue() {
    let mut world = up(settings());
    world.cut(0);
    world.cut(1);
    let out = world.out(&[1; 4096]);
    let id = world.start(Op::Write(SPAN, Durability::Cached), out);
    world.reset(1, true);
    assert!(matches!(world.wait(id).0, Err(IoError::InDoubt)));
    world.down();
    let lost = world.path.lost_controllers();
    world.host(|path, cx| path.fence(cx));
    world.connect().unwrap();
    assert!(reset(&mut world, &lost[0]) && !is_fenced(&mut world));
    world.host(|path, cx| path.handle_controller_reset(cx, &lost[0]));
    world.step();
    assert!(is_fenced(&mut world));
}

#[test]
fn a_reset_of_another_controller_ends_no_wait() {
    let (mut world, lost) = lost();
    world.host(|path, cx| path.fence(cx));
    let mut other = lost.clone();
    other.instance.random_number ^= 1;
    world.host(|path, cx| path.handle_controller_reset(cx, &other));
    world.run_for(Duration::from_secs(1));
    assert!(!is_fenced(&mut world));
}

#[test]
fn controllers_of_others_are_not_asked_for() {
    let (mut world, lost) = lost();
    let other = LostController { host_id: HostId::new([2; 16]).unwrap(), ..lost.clone() };
    assert!(!world.host(|path, cx| path.reset_controller(cx, &other)));
    let Settings { subsystem, .. } = settings();
    let other = LostController { host: subsystem, ..lost };
    assert!(!world.host(|path, cx| path.reset_controller(cx, &other)));
}

/// What becomes of a reset that is under way when its path is lost is not known.
#[test]
fn a_reset_whose_path_is_lost_has_not_been_done() {
    let (mut world, lost) = lost();
    world.cut(2);
    assert!(world.host(|path, cx| path.reset_controller(cx, &lost)));
    world.reset(2, true);
    world.reset(3, true);
    world.down();
    let failed = |event: &PathEvent| matches!(event, PathEvent::ControllerReset { is_reset: false, .. });
    assert!(world.events.iter().any(failed), "{:?}", world.events);
}
