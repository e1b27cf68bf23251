//! Flushes: which paths they go to, and what is told of writes that were lost.

use super::script::{Scene, read, write};
use super::*;

#[test]
fn a_flush_goes_to_every_path_that_carried_writes() {
    let mut scene = Scene::up(3, robin());
    (0..2).for_each(|at| _ = scene.submit(write(at * 8)));
    (0..2).for_each(|path| _ = scene.end_well(path));
    scene.submit(Op::Flush);
    assert_eq!([scene.given(0), scene.given(1), scene.given(2)], [1, 1, 0]);
    scene.end_well(1);
    assert_eq!(scene.ends().len(), 2);
    // A write meanwhile is not of this flush.
    scene.submit(write(64));
    scene.end_well(2);
    scene.end_well(0);
    assert_eq!(scene.ends(), [(4, true), (3, true)]);
    scene.submit(Op::Flush);
    assert_eq!([scene.given(0), scene.given(1), scene.given(2)], [0, 0, 1]);
    scene.end_well(2);
    // Nothing is dirty: one is asked all the same.
    scene.submit(Op::Flush);
    assert_eq!(scene.given(0) + scene.given(1) + scene.given(2), 1);
}

#[test]
fn a_flush_whose_path_is_lost_begins_anew() {
    let mut scene = Scene::up(2, robin());
    (0..2).for_each(|at| _ = scene.submit(write(at * 8)));
    (0..2).for_each(|path| _ = scene.end_well(path));
    scene.ends();
    scene.submit(Op::Flush);
    scene.lose(0);
    assert_eq!(scene.ends(), []);
    scene.end_well(1);
    assert_eq!((scene.given(1), scene.ends()), (1, vec![]), "once more, now that a path has gone");
    scene.end_well(1);
    assert_eq!(scene.ends(), [(3, true)]);
}

#[test]
fn a_flush_that_a_path_does_not_take_does_not_wait_for_ever() {
    let mut scene = Scene::up(2, robin());
    (0..2).for_each(|at| _ = scene.submit(write(at * 8)));
    (0..2).for_each(|path| _ = scene.end_well(path));
    scene.ends();
    scene.paths[0].0.borrow_mut().no_flushes = true;
    scene.submit(Op::Flush);
    scene.end_well(1);
    // Reads go on there all the time.
    for _ in 0..119 {
        scene.submit(read(0));
        scene.pass(SECOND);
        assert_eq!(scene.ends(), []);
    }
    scene.pass(2 * SECOND);
    assert_eq!(scene.ends(), [(3, false)]);
}

#[test]
fn that_a_path_lands_longer_than_was_told_does_not_remain_unsaid() {
    let mut scene = Scene::up(1, robin());
    assert!(scene.volume.has_lost_command_lifetime_changed(), "the target has told");
    assert!(!scene.volume.has_lost_command_lifetime_changed());
    for (longer, is_told) in [(0, false), (30, true), (30, false), (10, false), (31, true)] {
        scene.lose(0);
        scene.paths[0].0.borrow_mut().lands_longer = longer * SECOND;
        scene.pass(60 * SECOND);
        scene.raise(0);
        assert_eq!(scene.volume.has_lost_command_lifetime_changed(), is_told, "{longer}");
    }
    // What the path says while it connects is not of its target.
    scene.lose(0);
    scene.paths[0].0.borrow_mut().lands_longer = Duration::ZERO;
    assert_eq!(scene.volume.path_info(0).unwrap().lands_for, 91 * SECOND);
}

#[test]
fn what_one_path_cannot_flush_is_not_flushed() {
    let mut scene = Scene::up(2, robin());
    (0..2).for_each(|at| _ = scene.submit(write(at * 8)));
    (0..2).for_each(|path| _ = scene.end_well(path));
    scene.ends();
    scene.submit(Op::Flush);
    scene.end(0, Err(IoError::Failed(Failure::Failed(Fault::Sync))));
    scene.end_well(1);
    assert_eq!(scene.ends(), [(3, false)]);
}

#[test]
fn no_other_failure_hides_that_what_was_written_is_lost() {
    const SYNC: Failure = Failure::Failed(Fault::Sync);
    let sync = || Err(IoError::Failed(SYNC));
    let full = || Err(IoError::Failed(Failure::Failed(Fault::NoSpace)));
    let flushing = || {
        let mut scene = Scene::up(2, robin());
        (0..2).for_each(|at| _ = scene.submit(write(at * 8)));
        (0..2).for_each(|path| _ = scene.end_well(path));
        scene.ends();
        scene.submit(Op::Flush);
        scene
    };
    let came_to = |scene: &mut Scene| {
        let results: Vec<_> = scene.ended.drain(..).map(|done| done.result).collect();
        assert_eq!(results, [Err(SYNC)]);
    };
    for first in 0..2 {
        let mut scene = flushing();
        scene.end(first, sync());
        scene.end(1 - first, full());
        came_to(&mut scene);
        let mut scene = flushing();
        scene.end(first, full());
        scene.end(1 - first, sync());
        came_to(&mut scene);
    }
    // The other path is lost.
    let mut scene = flushing();
    scene.end(0, sync());
    scene.lose(1);
    came_to(&mut scene);
}
