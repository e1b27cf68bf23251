//! Paths that join while this host's reservation key changes.

use volume::reservation::RegisterMode;

use super::registering::*;
use super::*;

/// This host is registered again by its first path, with another key.
fn changes_key(scene: &mut Scene, new: Key) {
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(2), register(new, Some(true)))));
    scene.replies(0, Ok(None));
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(2), Ok(None))));
}

#[test]
fn a_path_that_joins_while_the_key_changes_is_not_used_with_the_old_key() {
    const NEW: Key = Key(8);
    let seen = |own| report(&[(NEW, false), (own, true)]);
    // What is under way when the key changes: the registration, the look behind it, the first look.
    for under_way in 0..3 {
        let mut scene = registered();
        scene.raise(1);
        if under_way < 2 {
            scene.replies(1, report(&[(KEY, false)]));
        }
        if under_way == 1 {
            scene.replies(1, Ok(None));
        }
        changes_key(&mut scene, NEW);
        assert_eq!(asked(&scene, 1), 1, "{under_way}: one after another");
        match under_way {
            0 => assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true))),
            // It was made before the key changed, and says nothing of a preemption.
            _ => assert_eq!(scene.replies(1, report(&[(KEY, false), (KEY, true)])), ReservationOp::Report),
        }
        assert!(!uses(&mut scene, 1), "{under_way}");
        assert_eq!(scene.replies(1, seen(KEY)), ReservationOp::Report, "{under_way}");
        let path_changed = with(register(NEW, Some(true)), RegisterMode::Replace, KEY);
        assert_eq!(scene.replies(1, Ok(None)), path_changed, "{under_way}");
        assert_eq!(scene.replies(1, seen(NEW)), ReservationOp::Report, "{under_way}");
        assert!(uses(&mut scene, 1), "{under_way}");
        assert!(scene.volume.registrations.registered.is_some(), "{under_way}: nobody has preempted us");
    }
}

/// Each of the two stands there with the old key, and none of them says that the new one is not ours.
#[test]
fn two_paths_that_join_while_the_key_changes_are_not_taken_for_a_preemption() {
    const NEW: Key = Key(8);
    let mut scene = registered_by(Protocol::Iscsi, 3);
    let shown = |own| Ok(Some(said(vec![one(NEW, 0, false), one(KEY, 2, false), one(own, 1, true)])));
    for path in [1, 2] {
        scene.raise(path);
        scene.replies(path, report(&[(KEY, false)]));
        scene.replies(path, Ok(None));
    }
    changes_key(&mut scene, NEW);
    for path in [1, 2] {
        scene.replies(path, shown(KEY));
        scene.replies(path, shown(KEY));
        let path_changed = with(register(NEW, Some(true)), RegisterMode::Replace, KEY);
        assert_eq!(scene.replies(path, Ok(None)), path_changed, "path {path}");
        scene.replies(path, shown(NEW));
    }
    assert!(scene.volume.registrations.registered.is_some(), "nobody has preempted us");
}

#[test]
fn a_path_that_waits_to_be_asked_while_the_key_changes_is_asked_of_the_new_one() {
    let mut scene = registered();
    scene.paths[1].0.borrow_mut().claims_refused = true;
    scene.raise(1);
    changes_key(&mut scene, Key(8));
    scene.paths[1].0.borrow_mut().claims_refused = false;
    scene.pass(Duration::from_millis(20));
    scene.replies(1, report(&[(Key(8), false)]));
    assert_eq!(scene.replies(1, Ok(None)), registers(Key(8), Some(true)));
}
