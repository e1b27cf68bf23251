//! Reservations over several paths: the reported result matches what was done.

use std::sync::Arc;
use std::time::Duration;

use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest, ReservationType};
use volume::{Failure, Fault, IoId, PathAccess, Refusal};

use super::script::{Scene, info};
use super::*;
use crate::path::{IoError, PathEvent, Protocol, ReservationOp, Reservations, VolumeInfo};

const KEY: Option<Key> = Some(Key(7));
const KIND: ReservationType = ReservationType::WriteExclusive;

fn register(mode: RegisterMode, new: Key) -> ReservationOp {
    let (also, ports) = (vec![], vec![]);
    ReservationOp::Change(Action::Register(RegistrationRequest {
        mode,
        also,
        ports,
        ..RegistrationRequest::new(KEY, new)
    }))
}

fn up(protocol: Protocol) -> Scene {
    let scene = Scene::up(2, robin());
    scene.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(protocol));
    scene
}

fn begin(scene: &mut Scene, request: &ReservationOp) {
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(1), request.clone())));
}

fn end(scene: &mut Scene) -> Option<Result<Option<Reservations>, Failure>> {
    scene.volume.poll_reservation_reply().map(|(_, how)| how)
}

/// Which paths are asked now.
fn asked(scene: &Scene) -> [usize; 2] {
    [0, 1].map(|path| scene.paths.get(path).map_or(0, |path| path.0.borrow().requests.len()))
}

fn absent() -> IoError {
    IoError::Failed(Refusal::NotRegistered.into())
}

#[test]
fn what_a_path_was_asked_is_not_told_to_have_failed_while_the_path_may_still_do_it() {
    let reserve = ReservationOp::Change(Action::Reserve { key: KEY, kind: KIND });
    // Nothing waits, but what goes at once need not.
    for queue_timeout in [Duration::ZERO, Duration::from_secs(1)] {
        let mut scene = Scene::up(2, VolumeSettings { queue_timeout, ..robin() });
        begin(&mut scene, &reserve);
        scene.pass(Duration::from_secs(5));
        assert_eq!((end(&mut scene), asked(&scene)), (None, [1, 0]), "{queue_timeout:?}");
        scene.replies(0, Ok(None));
        assert_eq!(end(&mut scene), Some(Ok(None)), "{queue_timeout:?}");
        // What came back undone waits no longer than that.
        begin(&mut scene, &reserve);
        scene.replies(0, Err(IoError::NotDone(Duration::from_secs(60))));
        scene.pass(Duration::from_secs(2));
        assert_eq!(end(&mut scene), Some(Err(Failure::Failed(Fault::PathLost))), "{queue_timeout:?}");
    }
}

#[test]
fn what_a_path_was_asked_is_not_told_to_have_failed_when_fast_fail_is_over() {
    let reserve = ReservationOp::Change(Action::Reserve { key: KEY, kind: KIND });
    let mut scene = Scene::up(1, VolumeSettings { fast_fail: Duration::from_secs(5), ..robin() });
    begin(&mut scene, &reserve);
    let inaccessible = VolumeInfo { access: PathAccess::Inaccessible, ..info() };
    scene.say(0, PathEvent::Changed(Arc::new(inaccessible)));
    // The second one no path has.
    assert!(scene.with(|volume, cx| volume.submit_reservation_op(cx, IoId(2), ReservationOp::Report)));
    scene.pass(Duration::from_secs(6));
    let lost = Err(Failure::Failed(Fault::PathLost));
    assert_eq!(scene.volume.poll_reservation_reply(), Some((IoId(2), lost.clone())));
    assert_eq!((end(&mut scene), asked(&scene)), (None, [1, 0]));
    assert!(
        scene.volume.poll_timeout().is_none_or(|due| due > scene.now),
        "nothing is due that does nothing"
    );
    scene.replies(0, Ok(None));
    assert_eq!(end(&mut scene), Some(Ok(None)));
    // A path that never answers does not keep it for ever.
    begin(&mut scene, &reserve);
    assert_eq!(end(&mut scene), Some(lost.clone()), "no path serves: it is not asked");
    scene.say(0, PathEvent::Changed(Arc::new(info())));
    begin(&mut scene, &reserve);
    scene.say(0, PathEvent::Changed(Arc::new(VolumeInfo { access: PathAccess::Inaccessible, ..info() })));
    scene.pass(Duration::from_secs(29));
    assert_eq!(end(&mut scene), None);
    scene.pass(Duration::from_secs(120));
    assert_eq!(end(&mut scene), Some(lost));
}

#[test]
fn a_release_does_not_succeed_by_a_path_that_does_not_hold_the_reservation() {
    let (reserve, release) = (
        ReservationOp::Change(Action::Reserve { key: KEY, kind: KIND }),
        ReservationOp::Change(Action::Release { key: KEY, kind: KIND }),
    );
    let mut scene = up(Protocol::Iscsi);
    begin(&mut scene, &reserve);
    scene.replies(0, Ok(None));
    assert_eq!(end(&mut scene), Some(Ok(None)));
    scene.lose(0);
    begin(&mut scene, &release);
    assert_eq!(asked(&scene), [0, 0], "it would be done well by path 1, and nothing with it");
    scene.pass(Duration::from_secs(1));
    scene.raise(0);
    assert_eq!(asked(&scene), [1, 0], "it waited for the path that holds");
    scene.replies(0, Ok(None));
    assert_eq!(end(&mut scene), Some(Ok(None)));
    // Where that one does not come back, the end says that a path is missing.
    begin(&mut scene, &reserve);
    scene.replies(0, Ok(None));
    end(&mut scene);
    scene.lose(0);
    begin(&mut scene, &release);
    scene.pass(Duration::from_secs(120));
    assert_eq!(end(&mut scene), Some(Err(Failure::Failed(Fault::PathLost))));
    // Over NVMe the host holds it, by whatever path.
    let mut scene = up(Protocol::Nvme);
    begin(&mut scene, &reserve);
    scene.replies(0, Ok(None));
    end(&mut scene);
    scene.lose(0);
    begin(&mut scene, &release);
    assert_eq!(asked(&scene), [0, 1]);
}

#[test]
fn a_reservation_that_is_taken_once_more_does_not_meet_itself() {
    let reserve = ReservationOp::Change(Action::Reserve { key: KEY, kind: KIND });
    let mut scene = up(Protocol::Iscsi);
    scene.lose(0);
    begin(&mut scene, &reserve);
    scene.replies(1, Ok(None));
    end(&mut scene);
    scene.pass(Duration::from_secs(1));
    scene.raise(0);
    begin(&mut scene, &reserve);
    assert_eq!(asked(&scene), [0, 1], "path 0 would conflict with our own");
}

#[test]
fn a_registration_is_not_made_twice_by_a_path_that_has_made_it() {
    let mut scene = up(Protocol::Iscsi);
    begin(&mut scene, &register(RegisterMode::Add, Key(7)));
    scene.replies(0, Ok(None));
    scene.replies(1, Err(IoError::NotDone(Duration::ZERO)));
    assert_eq!(asked(&scene), [0, 1], "path 0 would be refused: it is registered");
    scene.replies(1, Ok(None));
    assert_eq!(end(&mut scene), Some(Ok(None)));
    // The rest goes down: those that are up are registered, and it joins when it is up again.
    let mut scene = up(Protocol::Iscsi);
    begin(&mut scene, &register(RegisterMode::Add, Key(7)));
    scene.paths[1].0.borrow_mut().claims_refused = true;
    scene.replies(0, Ok(None));
    scene.lose(1);
    scene.paths[1].0.borrow_mut().claims_refused = false;
    assert_eq!(end(&mut scene), Some(Ok(None)));
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    assert_eq!(scene.replies(1, Err(IoError::NotDone(Duration::ZERO))), ReservationOp::Report, "it joins");
}

#[test]
fn a_registration_that_one_path_did_not_have_is_removed_by_the_others() {
    for first in 0..2 {
        let mut scene = up(Protocol::Iscsi);
        begin(&mut scene, &register(RegisterMode::Remove, Key::NONE));
        for path in 0..2 {
            scene.replies(path, if path == first { Err(absent()) } else { Ok(None) });
        }
        assert_eq!(end(&mut scene), Some(Ok(None)), "path {first} was not registered");
    }
    let mut scene = up(Protocol::Iscsi);
    begin(&mut scene, &register(RegisterMode::Remove, Key::NONE));
    (0..2).for_each(|path| _ = scene.replies(path, Err(absent())));
    assert_eq!(end(&mut scene), Some(Err(Refusal::NotRegistered.into())), "none was");
}

#[test]
fn what_one_path_has_registered_is_not_forgotten_because_another_refused() {
    let mut scene = up(Protocol::Iscsi);
    begin(&mut scene, &register(RegisterMode::Add, Key(7)));
    scene.replies(0, Ok(None));
    scene.replies(1, Err(IoError::Failed(Refusal::NoRegistrationSpace.into())));
    assert_eq!(end(&mut scene), Some(Err(Refusal::NoRegistrationSpace.into())));
    assert_eq!(asked(&scene), [0, 1], "this host is registered, and the path joins");
    scene.lose(1);
    scene.paths[1].0.borrow_mut().requests.clear();
    scene.pass(Duration::from_secs(1));
    scene.raise(1);
    assert_eq!(asked(&scene), [0, 1], "also when it comes again");
}

#[test]
fn a_claim_that_is_put_off_is_not_asked_again_without_a_pause() {
    let hows: [fn() -> IoError; 2] = [|| IoError::NotDone(Duration::ZERO), || IoError::InDoubt];
    for how in hows {
        let mut scene = up(Protocol::Nvme);
        begin(&mut scene, &ReservationOp::Report);
        let mut asks = 0;
        for _ in 0..5000 {
            for path in 0..2 {
                while asked(&scene)[path] > 0 && asks < 1000 {
                    asks += 1;
                    scene.replies(path, Err(how()));
                }
            }
            scene.pass(Duration::from_millis(1));
        }
        assert!((8..20).contains(&asks), "{:?}: {asks} times in 5 seconds", how());
        scene.pass(Duration::from_secs(115));
        assert_eq!(end(&mut scene), Some(Err(Failure::Failed(Fault::PathLost))));
    }
}
