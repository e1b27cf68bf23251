//! Paths that accept nothing although they have nothing in flight: their memory was short, or the target's
//! window was closed.

use std::time::Duration;

use volume::{IoId, Op};

use super::SECOND;
use super::script::{Scene, read, write};
use crate::path::ReservationOp;
use crate::remote::VolumeSettings;

/// A path that takes nothing.
fn shut(scene: &mut Scene, path: usize) {
    let mut script = scene.paths[path].0.borrow_mut();
    (script.window, script.claims_refused) = (0, true);
}

fn open(scene: &mut Scene, path: usize) {
    let mut script = scene.paths[path].0.borrow_mut();
    (script.window, script.claims_refused) = (64, false);
}

#[test]
fn a_path_that_took_nothing_while_idle_is_not_left_without_work_for_ever() {
    let mut scene = Scene::up(1, VolumeSettings::default());
    shut(&mut scene, 0);
    (0..3).for_each(|lba| _ = scene.submit(read(lba * 8)));
    scene.submit(write(0));
    scene.pass(SECOND);
    assert_eq!(scene.given(0), 0);
    open(&mut scene, 0);
    scene.pass(SECOND);
    assert_eq!(scene.given(0), 4, "as many as it said that it takes");
    (0..4).for_each(|_| _ = scene.end_well(0));
    assert!(scene.ends().iter().all(|(_, well)| *well));
    // And what comes later is not looked at for nothing either.
    (0..4).for_each(|lba| _ = scene.submit(read(lba * 8)));
    assert_eq!(scene.given(0), 4);
}

#[test]
fn one_path_that_takes_nothing_while_idle_does_not_keep_others_from_work() {
    let mut scene = Scene::up(2, VolumeSettings::default());
    shut(&mut scene, 0);
    (0..8).for_each(|lba| _ = scene.submit(read(lba * 8)));
    scene.pass(SECOND);
    while scene.given(1) > 0 {
        scene.end_well(1);
        scene.pass(Duration::from_millis(20));
    }
    assert_eq!(scene.ends().len(), 8);
}

#[test]
fn a_flush_that_an_idle_path_did_not_take_does_not_hang() {
    let mut scene = Scene::up(1, VolumeSettings::default());
    shut(&mut scene, 0);
    scene.submit(Op::Flush);
    scene.pass(SECOND);
    open(&mut scene, 0);
    scene.pass(SECOND);
    assert_eq!(scene.given(0), 1);
    scene.end_well(0);
    assert_eq!(scene.ends(), [(1, true)]);
}

#[test]
fn a_claim_that_an_idle_path_did_not_take_does_not_hang() {
    let mut scene = Scene::up(1, VolumeSettings::default());
    shut(&mut scene, 0);
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(77), ReservationOp::Report)));
    scene.pass(SECOND);
    open(&mut scene, 0);
    scene.pass(SECOND);
    scene.replies(0, Ok(None));
    assert_eq!(
        scene.volume.poll_reservation_reply().map(|(id, how)| (id, how.is_ok())),
        Some((IoId(77), true))
    );
}
