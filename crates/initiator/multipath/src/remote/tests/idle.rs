//! Paths that take nothing although they have nothing in work: their memory was short, or the target's window
//! was closed.

use std::time::Duration;

use volume::{IoId, Op};

use super::SECOND;
use super::script::{Rig, read, write};
use crate::path::ReservationRequest;
use crate::remote::Terms;

/// A path that takes nothing.
fn shut(rig: &mut Rig, path: usize) {
    let mut script = rig.paths[path].0.borrow_mut();
    (script.window, script.claims_refused) = (0, true);
}

fn open(rig: &mut Rig, path: usize) {
    let mut script = rig.paths[path].0.borrow_mut();
    (script.window, script.claims_refused) = (64, false);
}

#[test]
fn a_path_that_took_nothing_while_idle_is_not_left_without_work_for_ever() {
    let mut rig = Rig::up(1, Terms::default());
    shut(&mut rig, 0);
    (0..3).for_each(|lba| _ = rig.submit(read(lba * 8)));
    rig.submit(write(0));
    rig.pass(SECOND);
    assert_eq!(rig.given(0), 0);
    open(&mut rig, 0);
    rig.pass(SECOND);
    assert_eq!(rig.given(0), 4, "as many as it said that it takes");
    (0..4).for_each(|_| _ = rig.end_well(0));
    assert!(rig.ends().iter().all(|(_, well)| *well));
    // And what comes later is not looked at for nothing either.
    (0..4).for_each(|lba| _ = rig.submit(read(lba * 8)));
    assert_eq!(rig.given(0), 4);
}

#[test]
fn one_path_that_takes_nothing_while_idle_does_not_keep_others_from_work() {
    let mut rig = Rig::up(2, Terms::default());
    shut(&mut rig, 0);
    (0..8).for_each(|lba| _ = rig.submit(read(lba * 8)));
    rig.pass(SECOND);
    while rig.given(1) > 0 {
        rig.end_well(1);
        rig.pass(Duration::from_millis(20));
    }
    assert_eq!(rig.ends().len(), 8);
}

#[test]
fn a_flush_that_an_idle_path_did_not_take_does_not_hang() {
    let mut rig = Rig::up(1, Terms::default());
    shut(&mut rig, 0);
    rig.submit(Op::Flush);
    rig.pass(SECOND);
    open(&mut rig, 0);
    rig.pass(SECOND);
    assert_eq!(rig.given(0), 1);
    rig.end_well(0);
    assert_eq!(rig.ends(), [(1, true)]);
}

#[test]
fn a_claim_that_an_idle_path_did_not_take_does_not_hang() {
    let mut rig = Rig::up(1, Terms::default());
    shut(&mut rig, 0);
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(77), ReservationRequest::Report)));
    rig.pass(SECOND);
    open(&mut rig, 0);
    rig.pass(SECOND);
    rig.replies(0, Ok(None));
    assert_eq!(
        rig.volume.poll_reservation_reply().map(|(id, how)| (id, how.is_ok())),
        Some((IoId(77), true))
    );
}
