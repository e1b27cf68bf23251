//! The volume over scripted paths.

mod controller_resets;
mod flush;
mod histories;
mod idle;
mod key_changes;
mod raw_commands;
mod registering;
mod reservation;
mod script;
mod split;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use endpoint::OutboundSockets;
use volume::reservation::{Action, Key, RegistrationRequest};
use volume::{Failure, Fault, Geometry, IoId, Op, OperatorNotice, PathAccess, Span, Uuid};

use super::{PathProblem, PathState, VolumeEvent, VolumeMismatch, VolumeSettings};
use crate::path::{DownReason, IoError, PathEvent, Protocol, ReservationOp, VolumeInfo};
use crate::url::PathPolicy;
use script::{Scene, geometry, info, read, write};

const SECOND: Duration = Duration::from_secs(1);

fn robin() -> VolumeSettings {
    VolumeSettings { policy: PathPolicy::RoundRobin, ..VolumeSettings::default() }
}

#[test]
fn operations_go_round_the_optimized_paths() {
    let mut scene = Scene::up(3, robin());
    scene.say(1, PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::NonOptimized, ..info() })));
    (0..4).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!([scene.given(0), scene.given(1), scene.given(2)], [2, 0, 2]);
    // Nothing better is left.
    scene.say(0, PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::Inaccessible, ..info() })));
    scene.say(2, PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::Transition, ..info() })));
    scene.submit(read(0));
    assert_eq!([scene.given(0), scene.given(1), scene.given(2)], [2, 1, 2]);
}

#[test]
fn the_path_with_the_least_in_work_is_next() {
    let mut scene = Scene::up(2, VolumeSettings::default());
    (0..4).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!([scene.given(0), scene.given(1)], [2, 2]);
    scene.end_well(1);
    scene.end_well(1);
    (0..2).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!([scene.given(0), scene.given(1)], [2, 2]);
}

#[test]
fn what_has_no_room_waits_in_order() {
    let mut scene = Scene::up(1, VolumeSettings::default());
    (0..6).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!(scene.given(0), 4, "the depth that the path told");
    for lba in 0..6 {
        assert_eq!(scene.end_well(0), read(lba * 8));
    }
    assert_eq!(scene.ends().len(), 6);
    // A window that is smaller than the depth.
    scene.paths[0].0.borrow_mut().window = 2;
    (0..6).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!(scene.given(0), 2);
    (0..6).for_each(|lba| assert_eq!(scene.end_well(0), read(lba * 8)));
    assert_eq!(scene.volume.in_work(), 0);
}

#[test]
fn what_was_not_done_goes_by_another_path() {
    let mut scene = Scene::up(2, robin());
    let id = scene.submit(write(0));
    scene.end(0, Err(IoError::NotDone(Duration::ZERO)));
    assert_eq!([scene.given(0), scene.given(1)], [0, 1]);
    scene.end_well(1);
    assert_eq!(scene.ends(), [(id.0, true)]);
    scene.submit(write(0));
    scene.end(0, Err(IoError::NotDone(SECOND)));
    assert_eq!([scene.given(0), scene.given(1)], [0, 0], "at the earliest after a second");
    scene.pass(SECOND - Duration::from_nanos(1));
    assert_eq!([scene.given(0), scene.given(1)], [0, 0]);
    scene.pass(Duration::from_nanos(1));
    assert_eq!(scene.given(0) + scene.given(1), 1);
}

#[test]
fn a_read_of_unknown_fate_is_repeated_at_once() {
    let mut scene = Scene::up(2, robin());
    scene.submit(read(0));
    scene.lose(0);
    assert_eq!((scene.given(1), scene.count(0, |path| path.fences)), (1, 0));
    scene.end_well(1);
    assert_eq!(scene.ends(), [(1, true)]);
}

#[test]
fn a_write_of_unknown_fate_waits_for_the_fence_and_so_does_what_overlaps_it() {
    let mut scene = Scene::up(2, robin());
    scene.submit(write(0));
    scene.lose(0);
    assert_eq!(scene.count(0, |path| path.fences), 1);
    scene.submit(write(4));
    scene.submit(Op::Unmap(vec![Span { lba: 100, blocks: 1 }, Span { lba: 7, blocks: 1 }]));
    scene.submit(write(5));
    scene.submit(write(16));
    scene.submit(read(4));
    assert_eq!(scene.given(1), 2, "what does not overlap, and reads");
    assert_eq!((scene.end_well(1), scene.end_well(1)), (write(16), read(4)));
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.given(1), 1);
    assert_eq!(scene.end_well(1), write(0), "the repetition first, alone");
    assert_eq!(scene.end_well(1), write(4));
    assert!(matches!(scene.end_well(1), Op::Unmap(_)));
    assert_eq!(scene.end_well(1), write(5));
    assert_eq!(scene.ends(), [(5, true), (6, true), (1, true), (2, true), (3, true), (4, true)]);
    assert_eq!(scene.volume.tasks.order.len(), 0);
}

#[test]
fn writes_that_overlap_go_one_after_the_other() {
    let mut scene = Scene::up(2, robin());
    scene.submit(write(0));
    scene.submit(write(7));
    scene.submit(write(14));
    scene.submit(write(100));
    assert_eq!([scene.given(0), scene.given(1)], [1, 1], "the second waits, and the third for the second");
    scene.end_well(0);
    assert_eq!([scene.given(0), scene.given(1)], [1, 1]);
    scene.end_well(0);
    assert_eq!(scene.given(0) + scene.given(1), 2);
}

#[test]
fn a_compare_and_write_of_unknown_fate_is_not_repeated() {
    let mut scene = Scene::up(2, robin());
    scene.submit(Op::CompareAndWrite(Span { lba: 0, blocks: 1 }));
    scene.lose(0);
    assert_eq!(scene.ends(), []);
    scene.say(0, PathEvent::Fenced);
    assert_eq!((scene.given(1), scene.ends()), (0, vec![(1, false)]));
}

#[test]
fn a_write_that_is_given_up_in_doubt_still_holds_back_what_overlaps_it() {
    let settings = VolumeSettings { queue_timeout: 5 * SECOND, ..robin() };
    let mut scene = Scene::up(2, settings);
    scene.submit(write(0));
    scene.lose(0);
    scene.pass(3 * SECOND);
    scene.submit(write(1));
    scene.pass(2 * SECOND - Duration::from_nanos(1));
    assert_eq!(scene.ends(), []);
    scene.pass(Duration::from_nanos(1));
    assert_eq!(scene.ends(), [(1, false)], "exactly at its time");
    scene.submit(write(2));
    assert_eq!(scene.given(1), 0);
    scene.pass(3 * SECOND - Duration::from_nanos(1));
    assert_eq!(scene.ends(), []);
    scene.pass(Duration::from_nanos(1));
    assert_eq!(scene.ends(), [(2, false)], "it waited for the fence since the third second");
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.end_well(1), write(2));
    assert_eq!(scene.ends(), [(3, true)]);
    assert_eq!(scene.volume.tasks.order.len(), 0);
}

#[test]
fn a_fence_covers_what_was_lost_before_it_was_asked_for() {
    let mut scene = Scene::up(2, robin());
    (0..4).for_each(|at| _ = scene.submit(write(at * 8)));
    // Two on each: one is lost while the path stays up, the other after the fence was asked for.
    scene.end(0, Err(IoError::InDoubt));
    assert_eq!(scene.count(0, |path| path.fences), 1);
    scene.end(0, Err(IoError::InDoubt));
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.count(0, |path| path.fences), 2);
    assert_eq!(scene.given(1), 3, "the first goes elsewhere, the second waits");
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.given(0) + scene.given(1), 4);
}

#[test]
fn a_path_that_fences_carries_nothing() {
    let mut scene = Scene::up(1, robin());
    scene.submit(write(0));
    scene.lose(0);
    scene.pass(SECOND);
    assert_eq!(scene.count(0, |path| path.connects), 2);
    scene.raise(0);
    assert_eq!(scene.volume.path_info(0).unwrap().state, PathState::Fencing);
    scene.submit(read(0));
    assert_eq!(scene.given(0), 0);
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.given(0), 2);
}

#[test]
fn paths_of_another_volume_are_refused() {
    let mut scene = Scene::new(3, robin());
    scene.raise(0);
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Open));
    let other = Uuid([9; 16]);
    scene.say(1, PathEvent::Up(Arc::new(VolumeInfo { uuid: Some(other), ..info() })));
    scene.say(2, PathEvent::Up(Arc::new(VolumeInfo { uuid: None, ..info() })));
    for (path, why) in
        [(1, VolumeMismatch::OtherUuid { volume: script::UUID, path: other }), (2, VolumeMismatch::NoUuid)]
    {
        assert_eq!(scene.count(path, |path| path.disconnects), 1);
        scene.say(path, PathEvent::Down(DownReason::Ended));
        let info = scene.volume.path_info(path).unwrap();
        assert_eq!(info.state, PathState::GivenUp);
        assert_eq!(info.last.unwrap().1, PathProblem::VolumeMismatch(why));
    }
    (0..3).for_each(|_| _ = scene.submit(read(0)));
    assert_eq!([scene.given(0), scene.given(1), scene.given(2)], [3, 0, 0]);
}

#[test]
fn a_path_without_a_uuid_stands_alone() {
    let mut scene = Scene::new(2, robin());
    let alone = VolumeInfo { uuid: None, ..info() };
    scene.say(1, PathEvent::Up(Arc::new(alone.clone())));
    scene.raise(0);
    assert_eq!(scene.count(0, |path| path.disconnects), 1);
    scene.lose(1);
    scene.pass(SECOND);
    let replaced = VolumeInfo { serial: "2".into(), ..alone.clone() };
    scene.say(1, PathEvent::Up(Arc::new(replaced)));
    assert_eq!(scene.count(1, |path| path.disconnects), 1, "another disk");
    scene.say(1, PathEvent::Down(DownReason::Ended));
    scene.pass(20 * SECOND);
    scene.say(1, PathEvent::Up(Arc::new(alone)));
    scene.submit(read(0));
    assert_eq!(scene.given(1), 1);
}

#[test]
fn a_target_that_forgot_its_volume_is_not_written_to() {
    let settings = VolumeSettings { queue_timeout: 30 * SECOND, ..robin() };
    let mut scene = Scene::up(1, settings);
    scene.submit(write(0));
    scene.lose(0);
    scene.pass(SECOND);
    scene.say(0, PathEvent::Up(Arc::new(VolumeInfo { uuid: Some(Uuid([9; 16])), ..info() })));
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.given(0), 0);
    scene.say(0, PathEvent::Down(DownReason::Ended));
    scene.pass(29 * SECOND);
    assert_eq!(scene.ends(), [(1, false)]);
    assert!(scene.count(0, |path| path.connects) > 2, "it is tried on, since it was ours once");
}

#[test]
fn reconnects_come_ever_later() {
    let mut scene = Scene::up(1, robin());
    scene.lose(0);
    let mut waited = vec![];
    for _ in 0..12 {
        let before = scene.now;
        let connects = scene.count(0, |path| path.connects);
        while scene.count(0, |path| path.connects) == connects {
            let next = scene.volume.poll_timeout().expect("it is tried again");
            scene.pass(next.since(scene.now));
        }
        waited.push(scene.now.since(before).as_secs_f64());
        scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
    }
    for (at, waited) in waited.iter().enumerate() {
        let wanted = (0.1 * f64::from(1 << at)).min(10.0);
        assert!((wanted * 0.75..=wanted * 1.25).contains(waited), "{at}: {waited} of {wanted}");
    }
}

#[test]
fn a_path_is_given_up_at_its_time_and_then_nobody_waits() {
    let settings = VolumeSettings { loss_timeout: 30 * SECOND, ..robin() };
    let mut scene = Scene::up(1, settings);
    scene.lose(0);
    scene.submit(read(0));
    let start = scene.now;
    while scene.volume.path_info(0).unwrap().state != PathState::GivenUp {
        let next = scene.volume.poll_timeout().expect("it is not for ever");
        scene.pass(next.since(scene.now));
        if scene.volume.path_info(0).unwrap().state == PathState::Connecting {
            scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
        }
    }
    assert_eq!(scene.now.since(start), 30 * SECOND);
    assert_eq!(scene.ends(), [(1, false)]);
    scene.submit(read(0));
    assert_eq!(scene.ends(), [(2, false)]);
}

#[test]
fn fast_fail_counts_from_the_loss_of_the_last_path() {
    let settings = VolumeSettings { fast_fail: 5 * SECOND, ..robin() };
    let mut scene = Scene::up(2, settings);
    scene.lose(0);
    scene.pass(60 * SECOND);
    scene.lose(1);
    scene.pass(4 * SECOND);
    scene.submit(read(0));
    scene.pass(SECOND - Duration::from_nanos(1));
    assert_eq!(scene.ends(), []);
    scene.pass(Duration::from_nanos(1));
    assert_eq!(scene.ends(), [(1, false)]);
    scene.submit(read(0));
    assert_eq!(scene.ends(), [(2, false)], "at once");
    scene.raise(1);
    scene.submit(read(0));
    scene.end_well(1);
    assert_eq!(scene.ends(), [(3, true)]);
}

#[test]
fn an_operation_waits_for_its_own_time_only() {
    let settings = VolumeSettings { queue_timeout: 10 * SECOND, ..robin() };
    let mut scene = Scene::up(1, settings);
    scene.submit(read(0));
    scene.lose(0);
    scene.pass(6 * SECOND);
    scene.submit(read(8));
    scene.pass(4 * SECOND);
    assert_eq!(scene.ends(), [(1, false)]);
    scene.pass(6 * SECOND - Duration::from_nanos(1));
    assert_eq!(scene.ends(), []);
    scene.pass(Duration::from_nanos(1));
    assert_eq!(scene.ends(), [(2, false)]);
    // Who does not want to wait does not.
    let mut scene = Scene::up(1, VolumeSettings { queue_timeout: Duration::ZERO, ..robin() });
    scene.submit(read(0));
    scene.lose(0);
    scene.pass(Duration::ZERO);
    assert_eq!(scene.ends(), [(1, false)]);
}

#[test]
fn a_volume_that_cannot_be_opened_says_so() {
    let mut scene = Scene::new(2, robin());
    scene.submit(read(0));
    scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Path(0)));
    scene.say(1, PathEvent::Down(DownReason::Refused("no such target".into())));
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Failed));
    assert_eq!(scene.ends(), [(1, false)]);
    assert_eq!(scene.volume.poll_timeout(), None);
    // With time to wait, what can change is tried again.
    let mut scene = Scene::new(1, VolumeSettings { open_timeout: 5 * SECOND, ..robin() });
    scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Path(0)));
    scene.pass(SECOND);
    scene.raise(0);
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Open));
    let mut scene = Scene::new(1, VolumeSettings { open_timeout: 5 * SECOND, ..robin() });
    scene.say(0, PathEvent::Down(DownReason::Unreachable(buf::Errno(111))));
    scene.pass(SECOND);
    scene.say(0, PathEvent::Down(DownReason::Unproven("wrong secret".into())));
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Failed));
}

#[test]
fn changes_are_told() {
    let mut scene = Scene::up(2, robin());
    assert!(scene.volume.has_geometry_changed() && !scene.volume.has_geometry_changed());
    let grown = VolumeInfo { geometry: Some(Geometry { blocks: 2000, ..geometry() }), ..info() };
    scene.say(0, PathEvent::Changed(Arc::new(grown.clone())));
    assert_eq!(scene.volume.poll_event(), Some(VolumeEvent::Changed));
    assert!(scene.volume.has_geometry_changed());
    assert_eq!(scene.volume.known_geometry().unwrap().blocks, 2000);
    scene.say(1, PathEvent::Changed(Arc::new(VolumeInfo { read_only: true, ..grown })));
    assert!(scene.volume.is_read_only() && scene.volume.has_geometry_changed(), "protection is a change");
    scene.submit(write(0));
    assert_eq!(scene.ends(), [(1, false)]);
}

#[test]
fn what_is_cancelled_ends_once() {
    let mut scene = Scene::up(1, robin());
    let first = scene.submit(write(0));
    let second = scene.submit(write(0));
    scene.with(|volume, _| volume::Backend::cancel(volume, second));
    assert_eq!(scene.ends(), [(2, false)], "it waited for the first");
    scene.with(|volume, _| volume::Backend::cancel(volume, first));
    assert_eq!(scene.paths[0].0.borrow().cancels.len(), 1);
    assert_eq!(scene.ends(), []);
    scene.end(0, Err(IoError::NotDone(Duration::ZERO)));
    assert_eq!(scene.ends(), [(1, false)], "it is not done again");
    assert_eq!(scene.volume.tasks.order.len(), 0);
}

#[test]
fn a_volume_is_closed_when_its_paths_are() {
    let mut scene = Scene::up(2, robin());
    scene.submit(write(0));
    scene.submit(write(0));
    scene.lose(1);
    scene.with(|volume, cx| volume.close(cx, SECOND));
    assert_eq!(scene.ends(), [(2, false)]);
    assert_eq!([0, 1].map(|path| scene.count(path, |path| path.disconnects)), [1, 0]);
    scene.end_well(0);
    assert_eq!(scene.ends(), [(1, true)]);
    scene.say(0, PathEvent::Down(DownReason::Ended));
    while let Some(news) = scene.volume.poll_event() {
        if news == VolumeEvent::Closed {
            assert_eq!(scene.volume.poll_timeout(), None);
            scene.submit(read(0));
            assert_eq!(scene.ends(), [(3, false)]);
            return;
        }
    }
    panic!("nobody says that it is closed");
}

#[test]
fn more_than_is_held_is_refused() {
    let mut scene = Scene::up(1, VolumeSettings { in_work: 3, ..robin() });
    (0..3).for_each(|lba| _ = scene.submit(read(lba)));
    assert!(!scene.volume.has_room());
    scene.submit(read(9));
    assert_eq!(scene.ends(), [(4, false)]);
}

#[test]
fn a_registration_goes_to_every_path_that_is_a_nexus_of_its_own() {
    let register = ReservationOp::Change(Action::Register(RegistrationRequest::new(None, Key(7))));
    let mut scene = Scene::up(4, robin());
    (0..2).for_each(|path| scene.paths[path].0.borrow_mut().protocol = Some(Protocol::Iscsi));
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register.clone())));
    let asked = |scene: &Scene| [0, 1, 2, 3].map(|path| scene.count(path, |path| path.requests.len() as u32));
    assert_eq!(asked(&scene), [1, 0, 0, 0], "one after the other");
    assert_eq!(scene.replies(0, Ok(None)), register);
    assert_eq!(asked(&scene), [0, 1, 0, 0]);
    scene.replies(1, Ok(None));
    assert_eq!(asked(&scene), [0, 0, 1, 0]);
    scene.replies(2, Ok(None));
    assert_eq!((asked(&scene), scene.volume.poll_reservation_reply()), ([0; 4], Some((IoId(1), Ok(None)))));
    // Everything else is for one path; a report is asked for again, a change is not.
    for (request, again) in
        [(ReservationOp::Report, true), (ReservationOp::Change(Action::Clear { key: None }), false)]
    {
        assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(2), request.clone())));
        assert_eq!(asked(&scene), [1, 0, 0, 0]);
        assert_eq!(scene.replies(0, Err(IoError::InDoubt)), request);
        assert_eq!(asked(&scene)[0], u32::from(again));
        match again {
            true => _ = scene.replies(0, Ok(None)),
            false => assert!(scene.volume.poll_reservation_reply().unwrap().1.is_err()),
        }
        while scene.volume.poll_reservation_reply().is_some() {}
    }
    // Nobody waits for ever.
    (0..4).for_each(|path| scene.lose(path));
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(3), ReservationOp::Report)));
    scene.pass(120 * SECOND);
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(3), Err(Failure::Failed(Fault::PathLost)))));
}

/// What a path still has, when no path has served for `fast_fail`, is that path's: the clock is not looked at
/// again and again until it ends.
#[test]
fn after_fast_fail_nothing_is_due_that_does_nothing() {
    for (op, certain) in [(read(0), false), (write(0), true), (Op::Flush, false)] {
        let mut scene = Scene::up(2, VolumeSettings { fast_fail: 5 * SECOND, certain, ..robin() });
        scene.submit(op);
        let closed =
            || PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::Inaccessible, ..info() }));
        scene.say(0, closed());
        scene.say(1, closed());
        scene.submit(read(64));
        assert_eq!(scene.given(0) + scene.given(1), 1);
        for _ in 0..20 {
            let Some(due) = scene.volume.poll_timeout() else { break };
            assert!(
                scene.now.0 == 1_000_000_000 || due > scene.now,
                "the clock was looked at, and is due at once"
            );
            scene.now = scene.now.max(due);
            scene.with(|volume, cx| volume.handle_timeout(cx));
        }
        assert_eq!(
            (scene.volume.in_work(), scene.ends()),
            (1, vec![(2, false)]),
            "what a path has is its own"
        );
        assert!(scene.volume.poll_timeout().is_none_or(|due| due > scene.now));
        let at = usize::from(scene.given(0) == 0);
        scene.end_well(at);
        assert_eq!(scene.volume.in_work(), 0);
    }
}

/// How often a path is connected in a minute that comes up, and fails after a while.
fn connects_in_a_minute(serves: Duration) -> u32 {
    let mut scene = Scene::up(1, robin());
    let (begun, before) = (scene.now, scene.count(0, |path| path.connects));
    while scene.now.since(begun) < 60 * SECOND {
        scene.pass(serves);
        scene.lose(0);
        let connects = scene.count(0, |path| path.connects);
        while scene.count(0, |path| path.connects) == connects {
            let next = scene.volume.poll_timeout().expect("it is tried again");
            scene.pass(next.since(scene.now));
        }
        scene.raise(0);
    }
    scene.count(0, |path| path.connects) - before
}

#[test]
fn a_path_that_comes_up_and_fails_at_once_is_not_tried_without_end() {
    let at_once = connects_in_a_minute(Duration::from_millis(1));
    assert!((6..=16).contains(&at_once), "{at_once}");
    // One that served for long enough comes back soon.
    let mut scene = Scene::up(1, robin());
    for _ in 0..8 {
        scene.lose(0);
        scene.pass(20 * SECOND);
        scene.raise(0);
    }
    scene.pass(10 * SECOND);
    scene.lose(0);
    let next = scene.volume.poll_timeout().expect("it is tried again");
    assert!(next.since(scene.now) <= Duration::from_millis(125), "{:?}", next.since(scene.now));
}

#[test]
fn what_becomes_of_paths_is_said_once_for_each_reason() {
    let mut scene = Scene::up(2, robin());
    let said =
        |scene: &mut Scene| std::iter::from_fn(|| scene.volume.poll_operator_notice()).collect::<Vec<_>>();
    assert_eq!(said(&mut scene), []);
    let down = |why: &str| OperatorNotice::PathDown { path: (None, 1), why: why.into() };
    scene.lose(1);
    assert_eq!(said(&mut scene), [down("the wire is cut")]);
    let mut lines = 0;
    let begun = scene.now;
    while scene.now.since(begun) < 600 * SECOND {
        scene.pass(15 * SECOND);
        if scene.volume.path_info(1).unwrap().state == PathState::Connecting {
            scene.say(1, PathEvent::Down(DownReason::Silent("no answer".into())));
        }
        lines += said(&mut scene).len();
    }
    assert!((5..=11).contains(&lines), "once a minute: {lines}");
    scene.pass(15 * SECOND);
    scene.raise(1);
    if scene.volume.path_info(1).unwrap().state == PathState::Up {
        assert_eq!(said(&mut scene), [OperatorNotice::PathUp { path: (None, 1) }]);
    }
    scene.with(|volume, cx| volume.close(cx, SECOND));
    scene.say(0, PathEvent::Down(DownReason::Ended));
    scene.say(1, PathEvent::Down(DownReason::Ended));
    assert_eq!(said(&mut scene), [], "what is closed is no news");
}
