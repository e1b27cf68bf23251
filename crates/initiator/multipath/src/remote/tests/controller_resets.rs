//! Controllers that a path has lost, and another one has reset.

use nvme::{ControllerInstance, HostId, Nqn};

use super::script::{Scene, write};
use super::*;
use crate::path::LostController;

fn lost(cntlid: u16) -> LostController {
    LostController {
        subsystem: Nqn::parse("nqn.2026-11.test:subsystem").unwrap(),
        host: Nqn::parse("nqn.2026-11.test:host").unwrap(),
        host_id: HostId::new([1; 16]).unwrap(),
        instance: ControllerInstance { cntlid, uniquifier: 1, random_number: 7 },
    }
}

/// Path 0 has lost a write with its controller; these others can have it reset.
fn scene(can: &[usize]) -> Scene {
    let mut scene = Scene::up(3, robin());
    can.iter().for_each(|path| scene.paths[*path].0.borrow_mut().can_reset = true);
    scene.submit(write(0));
    scene.paths[0].0.borrow_mut().lost = vec![lost(1)];
    scene.lose(0);
    scene
}

fn asked(scene: &Scene) -> [usize; 3] {
    [0, 1, 2].map(|path: usize| scene.paths[path].0.borrow().resets.len())
}

fn says(scene: &mut Scene, path: usize, is_reset: bool) {
    scene.say(path, PathEvent::ControllerReset { controller: lost(1), is_reset });
}

#[test]
fn a_path_that_is_up_has_it_reset_and_the_one_that_lost_it_is_told() {
    let mut scene = scene(&[1, 2]);
    scene.pass(SECOND / 2);
    assert_eq!(asked(&scene), [0, 1, 0], "one path, once");
    assert_eq!(scene.paths[0].0.borrow().told_reset, []);
    says(&mut scene, 1, true);
    assert_eq!(scene.paths[0].0.borrow().told_reset, [lost(1)]);
    assert_eq!(scene.ends(), [], "only its own word ends a fence");
    scene.paths[0].0.borrow_mut().lost.clear();
    scene.say(0, PathEvent::Fenced);
    let by = (1..3).find(|path| scene.given(*path) == 1).unwrap();
    assert_eq!(scene.end_well(by), write(0));
    assert_eq!(scene.ends(), [(1, true)]);
}

#[test]
fn where_one_path_cannot_another_is_asked() {
    let mut scene = scene(&[1, 2]);
    says(&mut scene, 1, false);
    assert_eq!(asked(&scene), [0, 1, 1]);
    assert_eq!(scene.paths[0].0.borrow().told_reset, []);
    says(&mut scene, 2, false);
    scene.pass(SECOND / 2);
    assert_eq!(asked(&scene), [0, 1, 1], "nobody is asked twice");
    // Time fences it then.
    scene.say(0, PathEvent::Fenced);
    assert_eq!(scene.given(1) + scene.given(2), 1);
}

#[test]
fn the_path_that_lost_it_has_it_reset_when_it_is_up_again() {
    let mut scene = scene(&[]);
    scene.pass(SECOND);
    assert_eq!(asked(&scene), [0; 3]);
    scene.paths[0].0.borrow_mut().can_reset = true;
    scene.raise(0);
    assert_eq!(asked(&scene), [1, 0, 0]);
}
