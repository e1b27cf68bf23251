//! Paths that come up while this host is registered.

use std::sync::Arc;
use std::time::Duration;

use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest};
use volume::{Identity, IoId, PathAccess, Refusal};

use super::script::{Scene, info, read, write};
use super::*;
use crate::path::{
    DownReason, IoError, PathEvent, Protocol, Registration, ReservationOp, Reservations, VolumeInfo,
};

pub(super) const KEY: Key = Key(7);

pub(super) fn register(new: Key, persist: Option<bool>) -> ReservationOp {
    let mode = RegisterMode::Set;
    let (also, ports) = (vec![], vec![]);
    ReservationOp::Change(Action::Register(RegistrationRequest {
        mode,
        current: None,
        new,
        also,
        ports,
        nqn: None,
        persist,
    }))
}

/// A registration with this key, of this port of ours.
pub(super) fn one(key: Key, port: u8, ours: bool) -> Registration {
    Registration { identity: Identity::Host([port; 16]), key, holds: false, ours, kin: Some(true) }
}

pub(super) fn said(registrations: Vec<Registration>) -> Reservations {
    Reservations { generation: 1, persists: None, held: None, registrations, named: true, whole: true }
}

/// What path 1 is told: path 0 is port 0, itself port 1.
pub(super) fn report(keys: &[(Key, bool)]) -> Result<Option<Reservations>, IoError> {
    let keys = keys.iter().map(|&(key, ours)| one(key, u8::from(ours), ours));
    Ok(Some(said(keys.collect())))
}

/// A path that was not registered is registered.
pub(super) fn registers(key: Key, persist: Option<bool>) -> ReservationOp {
    with(register(key, persist), RegisterMode::Add, Key::NONE)
}

/// Its registration is taken back.
fn leaves(key: Key) -> ReservationOp {
    with(register(Key::NONE, Some(true)), RegisterMode::Remove, key)
}

pub(super) fn with(request: ReservationOp, mode: RegisterMode, current: Key) -> ReservationOp {
    let ReservationOp::Change(Action::Register(register)) = request else { panic!("a registration") };
    ReservationOp::Change(Action::Register(RegistrationRequest { mode, current: Some(current), ..register }))
}

/// Two iSCSI paths, the second one down, and this host registered by the first.
pub(super) fn registered() -> Scene {
    registered_by(Protocol::Iscsi, 2)
}

/// The first path is one of iSCSI; the others speak this protocol, and are down.
pub(super) fn registered_by(others: Protocol, paths: usize) -> Scene {
    registered_with(others, paths, robin())
}

fn registered_with(others: Protocol, paths: usize, settings: VolumeSettings) -> Scene {
    let mut scene = Scene::up(paths, settings);
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(others));
    scene.paths[0].0.borrow_mut().protocol = Some(Protocol::Iscsi);
    (1..paths).for_each(|path| scene.lose(path));
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register(KEY, Some(true)))));
    scene.replies(0, Ok(None));
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    scene.pass(Duration::from_secs(1));
    (1..paths).for_each(|path| assert_eq!(scene.count(path, |path| path.connects), 2));
    scene
}

fn is_told(scene: &mut Scene) -> bool {
    std::iter::from_fn(|| scene.volume.poll_event()).any(|news| news == VolumeEvent::Changed)
}

pub(super) fn asked(scene: &Scene, path: usize) -> u32 {
    scene.count(path, |path| path.requests.len() as u32)
}

pub(super) fn uses(scene: &mut Scene, path: usize) -> bool {
    (0..2).for_each(|_| _ = scene.submit(read(0)));
    let used = scene.given(path) > 0;
    for path in 0..2 {
        while scene.given(path) > 0 {
            scene.end_well(path);
        }
    }
    used
}

#[test]
fn a_path_is_not_used_before_its_own_registration_is_answered_however_short_the_time_to_wait() {
    for queue_timeout in [Duration::ZERO, Duration::from_secs(1)] {
        let mut scene = registered_with(Protocol::Iscsi, 2, VolumeSettings { queue_timeout, ..robin() });
        scene.raise(1);
        scene.pass(Duration::from_secs(5));
        assert!(!uses(&mut scene, 1), "{queue_timeout:?}");
        assert_eq!(scene.replies(1, report(&[(KEY, false)])), ReservationOp::Report);
        assert_eq!(asked(&scene, 1), 1, "{queue_timeout:?}: it is asked on");
        scene.pass(Duration::from_secs(5));
        assert!(!uses(&mut scene, 1), "{queue_timeout:?}");
        assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)));
        assert_eq!(scene.replies(1, report(&[(KEY, false), (KEY, true)])), ReservationOp::Report);
        assert!(uses(&mut scene, 1), "{queue_timeout:?}");
        // One that does not answer at all is used as it is.
        scene.lose(1);
        scene.pass(Duration::from_secs(1));
        scene.raise(1);
        scene.pass(Duration::from_secs(40));
        assert!(uses(&mut scene, 1), "{queue_timeout:?}");
    }
}

#[test]
fn a_path_that_comes_up_later_is_registered_before_it_is_used() {
    let mut scene = registered();
    scene.raise(1);
    assert_eq!(scene.volume.path_info(1).unwrap().state, PathState::Registering);
    assert!(!uses(&mut scene, 1));
    assert_eq!(scene.replies(1, report(&[(KEY, false)])), ReservationOp::Report);
    assert!(!uses(&mut scene, 1));
    assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)), "as the others were");
    assert!(!uses(&mut scene, 1));
    assert_eq!(scene.replies(1, report(&[(KEY, false), (KEY, true)])), ReservationOp::Report, "looked again");
    assert!(uses(&mut scene, 1));
    assert_eq!(scene.volume.path_info(1).unwrap().state, PathState::Up);
    // It is the same nexus when it comes again: the target knows it still.
    scene.lose(1);
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    scene.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert_eq!(asked(&scene, 1), 0);
    assert!(uses(&mut scene, 1));
}

#[test]
fn who_was_preempted_meanwhile_does_not_come_back() {
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, report(&[(Key(9), false)]));
    assert_eq!(asked(&scene, 1), 0, "others have taken our key away");
    assert!(uses(&mut scene, 1), "and the target says what it may do");
    assert!(std::iter::from_fn(|| scene.volume.poll_event()).any(|news| news == VolumeEvent::Changed));
    scene.lose(1);
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    assert_eq!(asked(&scene, 1), 0);
}

#[test]
fn who_has_unregistered_registers_no_path() {
    let mut scene = registered();
    for request in [register(Key::NONE, None), ReservationOp::Change(Action::Clear { key: Some(KEY) })] {
        assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(2), request.clone())));
        scene.replies(0, Ok(None));
        scene.raise(1);
        assert_eq!(asked(&scene, 1), 0, "{request:?}");
        assert!(uses(&mut scene, 1));
        assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(3), register(KEY, None))));
        scene.replies(0, Ok(None));
        scene.replies(1, Ok(None));
        scene.lose(1);
        scene.pass(Duration::from_secs(1));
    }
}

#[test]
fn a_path_waits_for_its_registration_no_longer_than_for_anything() {
    let mut scene = registered();
    scene.raise(1);
    // What is lost is asked again, by the path when it is up again.
    scene.lose(1);
    scene.paths[1].0.borrow_mut().requests.clear();
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    assert_eq!(scene.replies(1, Err(IoError::NotDone(Duration::ZERO))), ReservationOp::Report);
    assert_eq!(scene.replies(1, Err(IoError::InDoubt)), ReservationOp::Report);
    scene.pass(Duration::from_millis(20));
    assert_eq!(asked(&scene, 1), 1);
    scene.pass(Duration::from_secs(120));
    assert!(uses(&mut scene, 1), "nobody answers: it is used as it is");
    scene.say(1, PathEvent::Down(DownReason::Ended));
}

#[test]
fn a_preemption_between_the_look_and_the_registration_is_not_undone() {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        let mut scene = registered_by(protocol, 2);
        scene.raise(1);
        scene.replies(1, report(&[(KEY, false)]));
        // Here another host takes KEY away, with all its registrations.
        assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)), "{protocol:?}");
        scene.replies(1, report(&[(KEY, true)]));
        assert!(!uses(&mut scene, 1), "{protocol:?}: it carries nothing by what it has brought back");
        assert_eq!(scene.replies(1, Ok(None)), leaves(KEY), "{protocol:?}: it is taken back");
        assert!(uses(&mut scene, 1), "{protocol:?}: and the target says what it may do");
        assert!(is_told(&mut scene), "{protocol:?}");
        let info = scene.volume.path_info(1).unwrap();
        assert_eq!(info.last.map(|(_, problem)| problem), Some(PathProblem::Preempted), "{protocol:?}");
        scene.lose(1);
        scene.pass(Duration::from_secs(1));
        scene.raise(1);
        assert_eq!(asked(&scene, 1), 0, "{protocol:?}: nor does it come back later");
    }
}

#[test]
fn a_registration_whose_answer_was_lost_is_not_taken_for_one_that_stood() {
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, report(&[(KEY, false)]));
    assert_eq!(scene.replies(1, Err(IoError::InDoubt)), registers(KEY, Some(true)));
    scene.lose(1);
    scene.paths[1].0.borrow_mut().requests.clear();
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    // KEY was taken from path 0, and only then registered by path 1.
    scene.replies(1, report(&[(KEY, true)]));
    assert!(!uses(&mut scene, 1));
    assert_eq!(scene.replies(1, Err(IoError::NotDone(Duration::ZERO))), leaves(KEY));
    assert_eq!(scene.replies(1, Ok(None)), leaves(KEY), "until it is done");
    assert!(uses(&mut scene, 1));
}

#[test]
fn a_path_that_may_have_undone_a_preemption_is_not_used_when_nobody_answers() {
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, report(&[(KEY, false)]));
    scene.replies(1, Err(IoError::InDoubt));
    assert_eq!(asked(&scene, 1), 1, "whether it was done is looked up");
    scene.pass(Duration::from_secs(120));
    assert!(!uses(&mut scene, 1));
    assert_eq!(scene.count(1, |path| path.disconnects), 1, "it is tried again");
}

#[test]
fn paths_that_join_together_are_no_proof_for_each_other() {
    let mut scene = registered_by(Protocol::Iscsi, 3);
    let seen =
        |ports: &[u8], own| Ok(Some(said(ports.iter().map(|&port| one(KEY, port, port == own)).collect())));
    for path in [1, 2] {
        scene.raise(path);
        scene.replies(path, seen(&[0], path as u8));
    }
    for path in [1, 2] {
        assert_eq!(scene.replies(path, Ok(None)), registers(KEY, Some(true)));
    }
    // Port 0 was preempted before both.
    for path in [1, 2] {
        scene.replies(path, seen(&[1, 2], path as u8));
        assert_eq!(scene.replies(path, Ok(None)), leaves(KEY), "path {path}");
    }
    // Where nothing happened, both are used.
    let mut scene = registered_by(Protocol::Iscsi, 3);
    for path in [1, 2] {
        scene.raise(path);
        scene.replies(path, seen(&[0], path as u8));
    }
    for path in [1, 2] {
        scene.replies(path, Ok(None));
    }
    for path in [1, 2] {
        scene.replies(path, seen(&[0, 1, 2], path as u8));
        assert_eq!(asked(&scene, path), 0);
        assert_eq!(scene.volume.path_info(path).unwrap().state, PathState::Up);
    }
}

#[test]
fn the_same_key_of_another_host_is_no_registration_of_ours() {
    let mut scene = registered();
    scene.raise(1);
    let foreign = Registration { kin: Some(false), ..one(KEY, 9, false) };
    scene.replies(1, Ok(Some(said(vec![foreign]))));
    assert_eq!(asked(&scene, 1), 0);
    assert!(is_told(&mut scene));
    // Over NVMe alone nothing stands for another host.
    let mut scene = registered_by(Protocol::Nvme, 2);
    scene.paths[0].0.borrow_mut().protocol = Some(Protocol::Nvme);
    scene.raise(1);
    let foreign = Registration { kin: None, ..one(KEY, 9, false) };
    scene.replies(1, Ok(Some(said(vec![foreign]))));
    assert_eq!(asked(&scene, 1), 0);
}

#[test]
fn a_report_that_is_cut_short_is_no_preemption() {
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, Ok(Some(Reservations { whole: false, ..said(vec![]) })));
    assert!(!is_told(&mut scene));
    assert!(uses(&mut scene, 1), "as it is");
    scene.lose(1);
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    scene.replies(1, report(&[(KEY, false)]));
    assert_eq!(asked(&scene, 1), 1, "we are registered for all that is known");
}

/// Targets without READ FULL STATUS tell keys and nothing else.
#[test]
fn where_only_keys_are_told_they_are_counted() {
    let keys = |count| {
        let all = (0..count).map(|_| Registration { kin: None, ..one(KEY, 0, false) }).collect();
        Ok(Some(Reservations { named: false, ..said(all) }))
    };
    for (after, stands) in [(2, true), (1, false)] {
        let mut scene = registered();
        scene.raise(1);
        scene.replies(1, keys(1));
        assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)));
        scene.replies(1, keys(after));
        if !stands {
            assert_eq!(scene.replies(1, Ok(None)), leaves(KEY));
        }
        assert_eq!(asked(&scene, 1), 0);
        assert!(uses(&mut scene, 1));
    }
    // A path that the target knows is refused as a new one, and accepted with its key.
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, keys(2));
    let refused = Err(IoError::Failed(Refusal::NotRegistered.into()));
    assert_eq!(scene.replies(1, refused), registers(KEY, Some(true)));
    let again = with(register(KEY, Some(true)), RegisterMode::Replace, KEY);
    assert_eq!(scene.replies(1, Ok(None)), again);
    assert_eq!(asked(&scene, 1), 0);
    assert!(uses(&mut scene, 1));
}

#[test]
fn paths_that_join_together_are_not_taken_for_preempted_where_only_keys_are_told() {
    let keys = |count| {
        let all = (0..count).map(|_| Registration { kin: None, ..one(KEY, 0, false) }).collect();
        Ok(Some(Reservations { named: false, ..said(all) }))
    };
    let is_registered = |scene: &Scene, path| scene.volume.path_info(path).unwrap().state == PathState::Up;
    // The second looks before the first is registered, and is registered after it.
    let mut scene = registered_by(Protocol::Iscsi, 3);
    scene.raise(1);
    scene.replies(1, keys(1));
    scene.raise(2);
    scene.replies(2, keys(1));
    assert_eq!(asked(&scene, 2), 0, "it waits for the first");
    assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)));
    scene.replies(1, keys(2));
    assert!(is_registered(&scene, 1));
    scene.pass(Duration::from_secs(1));
    scene.replies(2, keys(2));
    assert_eq!(scene.replies(2, Ok(None)), registers(KEY, Some(true)));
    scene.replies(2, keys(3));
    assert!(is_registered(&scene, 2) && !is_told(&mut scene));
    // Whether the first is registered is not known: it is made certain, and a preemption is seen all the same.
    for stands in [true, false] {
        let mut scene = registered_by(Protocol::Iscsi, 3);
        (1..3).for_each(|path| scene.raise(path));
        (1..3).for_each(|path| _ = scene.replies(path, keys(1)));
        assert_eq!(scene.replies(1, Err(IoError::InDoubt)), registers(KEY, Some(true)));
        scene.pass(Duration::from_millis(5));
        assert_eq!(
            scene.replies(1, keys(1)),
            ReservationOp::Report,
            "of the volume's first path, or its own"
        );
        assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)), "again");
        scene.replies(1, keys(if stands { 2 } else { 1 }));
        if !stands {
            assert_eq!(scene.replies(1, Ok(None)), leaves(KEY));
            assert!(is_told(&mut scene));
            continue;
        }
        scene.pass(Duration::from_secs(1));
        scene.replies(2, keys(2));
        assert_eq!(scene.replies(2, Ok(None)), registers(KEY, Some(true)));
        scene.replies(2, keys(3));
        assert!(is_registered(&scene, 1) && is_registered(&scene, 2) && !is_told(&mut scene));
    }
}

#[test]
fn a_key_that_was_changed_while_a_path_was_down_is_changed_by_it_too() {
    let mut scene = registered();
    scene.raise(1);
    scene.replies(1, report(&[(KEY, false), (Key(5), true)]));
    let path_changed = with(register(KEY, Some(true)), RegisterMode::Replace, Key(5));
    assert_eq!(scene.replies(1, Ok(None)), path_changed, "the target refuses it if it is not so any more");
    scene.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut scene, 1));
}

#[test]
fn a_target_that_never_shows_a_registration_is_asked_so_often_and_no_more() {
    let mut scene = registered();
    scene.raise(1);
    let mut asks = 0;
    while asked(&scene, 1) > 0 && asks < 100 {
        asks += 1;
        let request = scene.paths[1].0.borrow().requests[0].1.clone();
        if request != ReservationOp::Report {
            scene.replies(1, Err(IoError::Failed(Refusal::NotRegistered.into())));
            continue;
        }
        scene.replies(1, report(&[(KEY, false)]));
    }
    assert!(asks < 10, "{asks}");
    assert!(uses(&mut scene, 1));
}

#[test]
fn a_question_that_is_put_off_is_not_asked_without_a_pause() {
    let mut scene = registered();
    scene.raise(1);
    let begun = scene.now;
    let mut asks = 0;
    while scene.now.since(begun) < Duration::from_secs(10) {
        while asked(&scene, 1) > 0 {
            scene.replies(1, Err(IoError::NotDone(Duration::ZERO)));
            asks += 1;
        }
        scene.pass(Duration::from_millis(10));
    }
    assert!((8..30).contains(&asks), "{asks} in ten seconds");
    // Nor is a request of the user's.
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(5), ReservationOp::Report)));
    let (begun, mut asks) = (scene.now, 0);
    while scene.now.since(begun) < Duration::from_secs(10) {
        while asked(&scene, 0) > 0 {
            scene.replies(0, Err(IoError::NotDone(Duration::ZERO)));
            asks += 1;
        }
        scene.pass(Duration::from_millis(10));
    }
    assert!((8..30).contains(&asks), "{asks} in ten seconds");
}

#[test]
fn a_path_that_does_not_serve_is_asked_when_it_does() {
    let mut scene = registered();
    let standby = VolumeInfo { access: volume::PathAccess::Inaccessible, ..super::script::info() };
    scene.say(1, PathEvent::Up(std::sync::Arc::new(standby)));
    assert_eq!(asked(&scene, 1), 0);
    scene.pass(Duration::from_secs(300));
    assert_eq!(asked(&scene, 1), 0);
    scene.say(1, PathEvent::Changed(std::sync::Arc::new(super::script::info())));
    assert_eq!(scene.replies(1, report(&[(KEY, false)])), ReservationOp::Report);
    assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)), "before it is used");
}

#[test]
fn a_registration_that_was_put_off_is_no_try() {
    let mut scene = registered();
    scene.raise(1);
    for _ in 0..10 {
        scene.replies(1, report(&[(KEY, false)]));
        scene.replies(1, Err(IoError::NotDone(Duration::from_secs(3))));
        scene.pass(Duration::from_millis(2999));
        assert_eq!(asked(&scene, 1), 0);
        scene.pass(Duration::from_millis(1));
        assert_eq!(asked(&scene, 1), 1);
    }
    assert!(!uses(&mut scene, 1), "it is not registered");
}

fn standby() -> Arc<VolumeInfo> {
    Arc::new(VolumeInfo { access: PathAccess::Inaccessible, ..info() })
}

#[test]
fn a_path_that_does_not_serve_is_not_asked_and_does_not_meet_our_reservation_later() {
    let mut scene = registered();
    scene.say(1, PathEvent::Up(standby()));
    scene.pass(Duration::from_secs(500));
    assert_eq!(asked(&scene, 1), 0);
    assert_eq!(scene.volume.path_info(1).unwrap().state, PathState::Up);
    assert!(!scene.volume.has_work, "there is nothing to be done");
    scene.say(1, PathEvent::Changed(Arc::new(info())));
    assert!(!uses(&mut scene, 1));
    scene.replies(1, report(&[(KEY, false)]));
    // It serves no more for a while: it is asked nothing meanwhile, and its time is counted again.
    scene.say(1, PathEvent::Changed(standby()));
    assert_eq!(scene.replies(1, Err(IoError::NotDone(Duration::ZERO))), registers(KEY, Some(true)));
    scene.pass(Duration::from_secs(500));
    assert_eq!(asked(&scene, 1), 0);
    scene.say(1, PathEvent::Changed(Arc::new(info())));
    scene.pass(Duration::from_secs(119));
    assert!(!uses(&mut scene, 1));
    scene.replies(1, report(&[(KEY, false)]));
    scene.replies(1, Ok(None));
    scene.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut scene, 1));
}

#[test]
fn a_path_that_did_not_serve_when_this_host_was_registered_joins_when_it_does() {
    let mut scene = Scene::up(2, robin());
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    scene.say(1, PathEvent::Changed(standby()));
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register(KEY, Some(true)))));
    scene.replies(0, Ok(None));
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    scene.say(1, PathEvent::Changed(Arc::new(info())));
    assert!(!uses(&mut scene, 1));
    scene.replies(1, report(&[(KEY, false)]));
    assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)));
    scene.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut scene, 1));
}

#[test]
fn a_path_that_was_being_fenced_when_this_host_was_registered_does_not_meet_our_reservation_later() {
    let mut scene = Scene::up(2, robin());
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    scene.submit(write(0));
    let lost = usize::from(scene.given(1) > 0);
    let other = 1 - lost;
    scene.end(lost, Err(IoError::InDoubt));
    assert_eq!(scene.volume.path_info(lost).unwrap().state, PathState::Fencing);
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register(KEY, Some(true)))));
    scene.replies(other, Ok(None));
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    scene.say(lost, PathEvent::Fenced);
    assert_eq!(scene.volume.path_info(lost).unwrap().state, PathState::Registering);
    scene.replies(lost, report(&[(KEY, false)]));
    assert_eq!(scene.replies(lost, Ok(None)), registers(KEY, Some(true)));
    scene.replies(lost, report(&[(KEY, false), (KEY, true)]));
    assert_eq!(scene.volume.path_info(lost).unwrap().state, PathState::Up);
}

#[test]
fn a_path_that_comes_up_while_this_host_is_being_registered_is_registered_too() {
    let mut scene = Scene::up(2, robin());
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    scene.lose(1);
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register(KEY, Some(true)))));
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    assert_eq!(asked(&scene, 1), 0, "it is not known yet whether there is anything to join");
    scene.replies(0, Ok(None));
    assert!(!uses(&mut scene, 1));
    scene.replies(1, report(&[(KEY, false)]));
    assert_eq!(scene.replies(1, Ok(None)), registers(KEY, Some(true)));
}

#[test]
fn of_nvme_paths_one_is_registered_for_all() {
    let mut scene = Scene::up(2, robin());
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), register(KEY, Some(true)))));
    scene.replies(0, Ok(None));
    assert_eq!(asked(&scene, 1), 0);
    assert!(uses(&mut scene, 1));
}
