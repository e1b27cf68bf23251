//! Paths that come up while this host is registered.

use std::sync::Arc;
use std::time::Duration;

use volume::reservation::{Action, Key, Register, RegisterMode};
use volume::{Access, Identity, IoId, Refusal};

use super::script::{Rig, read, volume_info, write};
use super::*;
use crate::path::{
    DownReason, Event, IoError, Protocol, Registration, ReservationRequest, Reservations, VolumeInfo,
};

const KEY: Key = Key(7);

fn register(new: Key, persist: Option<bool>) -> ReservationRequest {
    let mode = RegisterMode::Set;
    let (also, ports) = (vec![], vec![]);
    ReservationRequest::Change(Action::Register(Register {
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
fn one(key: Key, port: u8, ours: bool) -> Registration {
    Registration { identity: Identity::Host([port; 16]), key, holds: false, ours, kin: Some(true) }
}

fn said(registrations: Vec<Registration>) -> Reservations {
    Reservations { generation: 1, persists: None, held: None, registrations, named: true, whole: true }
}

/// What path 1 is told: path 0 is port 0, itself port 1.
fn report(keys: &[(Key, bool)]) -> Result<Option<Reservations>, IoError> {
    let keys = keys.iter().map(|&(key, ours)| one(key, u8::from(ours), ours));
    Ok(Some(said(keys.collect())))
}

/// A path that was not registered is registered.
fn registers(key: Key, persist: Option<bool>) -> ReservationRequest {
    with(register(key, persist), RegisterMode::Add, Key::NONE)
}

/// Its registration is taken back.
fn leaves(key: Key) -> ReservationRequest {
    with(register(Key::NONE, Some(true)), RegisterMode::Remove, key)
}

fn with(request: ReservationRequest, mode: RegisterMode, current: Key) -> ReservationRequest {
    let ReservationRequest::Change(Action::Register(register)) = request else { panic!("a registration") };
    ReservationRequest::Change(Action::Register(Register { mode, current: Some(current), ..register }))
}

/// Two iSCSI paths, the second one down, and this host registered by the first.
fn registered() -> Rig {
    registered_by(Protocol::Iscsi, 2)
}

/// The first path is one of iSCSI; the others speak this protocol, and are down.
fn registered_by(others: Protocol, paths: usize) -> Rig {
    let mut rig = Rig::up(paths, robin());
    rig.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(others));
    rig.paths[0].0.borrow_mut().protocol = Some(Protocol::Iscsi);
    (1..paths).for_each(|path| rig.lose(path));
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(1), register(KEY, Some(true)))));
    rig.replies(0, Ok(None));
    assert_eq!(rig.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    rig.pass(Duration::from_secs(1));
    (1..paths).for_each(|path| assert_eq!(rig.count(path, |path| path.connects), 2));
    rig
}

fn is_told(rig: &mut Rig) -> bool {
    std::iter::from_fn(|| rig.volume.poll_event()).any(|news| news == VolumeEvent::Changed)
}

fn asked(rig: &Rig, path: usize) -> u32 {
    rig.count(path, |path| path.requests.len() as u32)
}

fn uses(rig: &mut Rig, path: usize) -> bool {
    (0..2).for_each(|_| _ = rig.submit(read(0)));
    let used = rig.given(path) > 0;
    for path in 0..2 {
        while rig.given(path) > 0 {
            rig.end_well(path);
        }
    }
    used
}

#[test]
fn a_path_that_comes_up_later_is_registered_before_it_is_used() {
    let mut rig = registered();
    rig.raise(1);
    assert_eq!(rig.volume.path_info(1).unwrap().state, PathState::Registering);
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.replies(1, report(&[(KEY, false)])), ReservationRequest::Report);
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)), "as the others were");
    assert!(!uses(&mut rig, 1));
    assert_eq!(
        rig.replies(1, report(&[(KEY, false), (KEY, true)])),
        ReservationRequest::Report,
        "looked again"
    );
    assert!(uses(&mut rig, 1));
    assert_eq!(rig.volume.path_info(1).unwrap().state, PathState::Up);
    // It is the same nexus when it comes again: the target knows it still.
    rig.lose(1);
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    rig.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert_eq!(asked(&rig, 1), 0);
    assert!(uses(&mut rig, 1));
}

#[test]
fn who_was_preempted_meanwhile_does_not_come_back() {
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, report(&[(Key(9), false)]));
    assert_eq!(asked(&rig, 1), 0, "others have taken our key away");
    assert!(uses(&mut rig, 1), "and the target says what it may do");
    assert!(std::iter::from_fn(|| rig.volume.poll_event()).any(|news| news == VolumeEvent::Changed));
    rig.lose(1);
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    assert_eq!(asked(&rig, 1), 0);
}

#[test]
fn who_has_unregistered_registers_no_path() {
    let mut rig = registered();
    for request in [register(Key::NONE, None), ReservationRequest::Change(Action::Clear { key: Some(KEY) })] {
        assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(2), request.clone())));
        rig.replies(0, Ok(None));
        rig.raise(1);
        assert_eq!(asked(&rig, 1), 0, "{request:?}");
        assert!(uses(&mut rig, 1));
        assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(3), register(KEY, None))));
        rig.replies(0, Ok(None));
        rig.replies(1, Ok(None));
        rig.lose(1);
        rig.pass(Duration::from_secs(1));
    }
}

#[test]
fn a_path_waits_for_its_registration_no_longer_than_for_anything() {
    let mut rig = registered();
    rig.raise(1);
    // What is lost is asked again, by the path when it is up again.
    rig.lose(1);
    rig.paths[1].0.borrow_mut().requests.clear();
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    assert_eq!(rig.replies(1, Err(IoError::NotDone(Duration::ZERO))), ReservationRequest::Report);
    assert_eq!(rig.replies(1, Err(IoError::InDoubt)), ReservationRequest::Report);
    rig.pass(Duration::from_millis(20));
    assert_eq!(asked(&rig, 1), 1);
    rig.pass(Duration::from_secs(120));
    assert!(uses(&mut rig, 1), "nobody answers: it is used as it is");
    rig.say(1, Event::Down(DownReason::Ended));
}

#[test]
fn a_preemption_between_the_look_and_the_registration_is_not_undone() {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        let mut rig = registered_by(protocol, 2);
        rig.raise(1);
        rig.replies(1, report(&[(KEY, false)]));
        // Here another host takes KEY away, with all its registrations.
        assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)), "{protocol:?}");
        rig.replies(1, report(&[(KEY, true)]));
        assert!(!uses(&mut rig, 1), "{protocol:?}: it carries nothing by what it has brought back");
        assert_eq!(rig.replies(1, Ok(None)), leaves(KEY), "{protocol:?}: it is taken back");
        assert!(uses(&mut rig, 1), "{protocol:?}: and the target says what it may do");
        assert!(is_told(&mut rig), "{protocol:?}");
        let info = rig.volume.path_info(1).unwrap();
        assert_eq!(info.last.map(|(_, problem)| problem), Some(PathProblem::Preempted), "{protocol:?}");
        rig.lose(1);
        rig.pass(Duration::from_secs(1));
        rig.raise(1);
        assert_eq!(asked(&rig, 1), 0, "{protocol:?}: nor does it come back later");
    }
}

#[test]
fn a_registration_whose_answer_was_lost_is_not_taken_for_one_that_stood() {
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, report(&[(KEY, false)]));
    assert_eq!(rig.replies(1, Err(IoError::InDoubt)), registers(KEY, Some(true)));
    rig.lose(1);
    rig.paths[1].0.borrow_mut().requests.clear();
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    // KEY was taken from path 0, and only then registered by path 1.
    rig.replies(1, report(&[(KEY, true)]));
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.replies(1, Err(IoError::NotDone(Duration::ZERO))), leaves(KEY));
    assert_eq!(rig.replies(1, Ok(None)), leaves(KEY), "until it is done");
    assert!(uses(&mut rig, 1));
}

#[test]
fn a_path_that_may_have_undone_a_preemption_is_not_used_when_nobody_answers() {
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, report(&[(KEY, false)]));
    rig.replies(1, Err(IoError::InDoubt));
    assert_eq!(asked(&rig, 1), 1, "whether it was done is looked up");
    rig.pass(Duration::from_secs(120));
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.count(1, |path| path.disconnects), 1, "it is tried again");
}

#[test]
fn paths_that_join_together_are_no_proof_for_each_other() {
    let mut rig = registered_by(Protocol::Iscsi, 3);
    let seen =
        |ports: &[u8], own| Ok(Some(said(ports.iter().map(|&port| one(KEY, port, port == own)).collect())));
    for path in [1, 2] {
        rig.raise(path);
        rig.replies(path, seen(&[0], path as u8));
    }
    for path in [1, 2] {
        assert_eq!(rig.replies(path, Ok(None)), registers(KEY, Some(true)));
    }
    // Port 0 was preempted before both.
    for path in [1, 2] {
        rig.replies(path, seen(&[1, 2], path as u8));
        assert_eq!(rig.replies(path, Ok(None)), leaves(KEY), "path {path}");
    }
    // Where nothing happened, both are used.
    let mut rig = registered_by(Protocol::Iscsi, 3);
    for path in [1, 2] {
        rig.raise(path);
        rig.replies(path, seen(&[0], path as u8));
    }
    for path in [1, 2] {
        rig.replies(path, Ok(None));
    }
    for path in [1, 2] {
        rig.replies(path, seen(&[0, 1, 2], path as u8));
        assert_eq!(asked(&rig, path), 0);
        assert_eq!(rig.volume.path_info(path).unwrap().state, PathState::Up);
    }
}

#[test]
fn the_same_key_of_another_host_is_no_registration_of_ours() {
    let mut rig = registered();
    rig.raise(1);
    let foreign = Registration { kin: Some(false), ..one(KEY, 9, false) };
    rig.replies(1, Ok(Some(said(vec![foreign]))));
    assert_eq!(asked(&rig, 1), 0);
    assert!(is_told(&mut rig));
    // Over NVMe alone nothing stands for another host.
    let mut rig = registered_by(Protocol::Nvme, 2);
    rig.paths[0].0.borrow_mut().protocol = Some(Protocol::Nvme);
    rig.raise(1);
    let foreign = Registration { kin: None, ..one(KEY, 9, false) };
    rig.replies(1, Ok(Some(said(vec![foreign]))));
    assert_eq!(asked(&rig, 1), 0);
}

#[test]
fn a_report_that_is_cut_short_is_no_preemption() {
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, Ok(Some(Reservations { whole: false, ..said(vec![]) })));
    assert!(!is_told(&mut rig));
    assert!(uses(&mut rig, 1), "as it is");
    rig.lose(1);
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    rig.replies(1, report(&[(KEY, false)]));
    assert_eq!(asked(&rig, 1), 1, "we are registered for all that is known");
}

/// Targets without READ FULL STATUS tell keys and nothing else.
#[test]
fn where_only_keys_are_told_they_are_counted() {
    let keys = |count| {
        let all = (0..count).map(|_| Registration { kin: None, ..one(KEY, 0, false) }).collect();
        Ok(Some(Reservations { named: false, ..said(all) }))
    };
    for (after, stands) in [(2, true), (1, false)] {
        let mut rig = registered();
        rig.raise(1);
        rig.replies(1, keys(1));
        assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)));
        rig.replies(1, keys(after));
        if !stands {
            assert_eq!(rig.replies(1, Ok(None)), leaves(KEY));
        }
        assert_eq!(asked(&rig, 1), 0);
        assert!(uses(&mut rig, 1));
    }
    // A path that the target knows is refused as a new one, and accepted with its key.
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, keys(2));
    let refused = Err(IoError::Failed(Refusal::NotRegistered.into()));
    assert_eq!(rig.replies(1, refused), registers(KEY, Some(true)));
    let again = with(register(KEY, Some(true)), RegisterMode::Replace, KEY);
    assert_eq!(rig.replies(1, Ok(None)), again);
    assert_eq!(asked(&rig, 1), 0);
    assert!(uses(&mut rig, 1));
}

#[test]
fn paths_that_join_together_are_not_taken_for_preempted_where_only_keys_are_told() {
    let keys = |count| {
        let all = (0..count).map(|_| Registration { kin: None, ..one(KEY, 0, false) }).collect();
        Ok(Some(Reservations { named: false, ..said(all) }))
    };
    let is_registered = |rig: &Rig, path| rig.volume.path_info(path).unwrap().state == PathState::Up;
    // The second looks before the first is registered, and is registered after it.
    let mut rig = registered_by(Protocol::Iscsi, 3);
    rig.raise(1);
    rig.replies(1, keys(1));
    rig.raise(2);
    rig.replies(2, keys(1));
    assert_eq!(asked(&rig, 2), 0, "it waits for the first");
    assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)));
    rig.replies(1, keys(2));
    assert!(is_registered(&rig, 1));
    rig.pass(Duration::from_secs(1));
    rig.replies(2, keys(2));
    assert_eq!(rig.replies(2, Ok(None)), registers(KEY, Some(true)));
    rig.replies(2, keys(3));
    assert!(is_registered(&rig, 2) && !is_told(&mut rig));
    // Whether the first is registered is not known: it is made certain, and a preemption is seen all the same.
    for stands in [true, false] {
        let mut rig = registered_by(Protocol::Iscsi, 3);
        (1..3).for_each(|path| rig.raise(path));
        (1..3).for_each(|path| _ = rig.replies(path, keys(1)));
        assert_eq!(rig.replies(1, Err(IoError::InDoubt)), registers(KEY, Some(true)));
        rig.pass(Duration::from_millis(5));
        assert_eq!(
            rig.replies(1, keys(1)),
            ReservationRequest::Report,
            "of the volume's first path, or its own"
        );
        assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)), "again");
        rig.replies(1, keys(if stands { 2 } else { 1 }));
        if !stands {
            assert_eq!(rig.replies(1, Ok(None)), leaves(KEY));
            assert!(is_told(&mut rig));
            continue;
        }
        rig.pass(Duration::from_secs(1));
        rig.replies(2, keys(2));
        assert_eq!(rig.replies(2, Ok(None)), registers(KEY, Some(true)));
        rig.replies(2, keys(3));
        assert!(is_registered(&rig, 1) && is_registered(&rig, 2) && !is_told(&mut rig));
    }
}

#[test]
fn a_key_that_was_changed_while_a_path_was_down_is_changed_by_it_too() {
    let mut rig = registered();
    rig.raise(1);
    rig.replies(1, report(&[(KEY, false), (Key(5), true)]));
    let path_changed = with(register(KEY, Some(true)), RegisterMode::Replace, Key(5));
    assert_eq!(rig.replies(1, Ok(None)), path_changed, "the target refuses it if it is not so any more");
    rig.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut rig, 1));
}

#[test]
fn a_target_that_never_shows_a_registration_is_asked_so_often_and_no_more() {
    let mut rig = registered();
    rig.raise(1);
    let mut asks = 0;
    while asked(&rig, 1) > 0 && asks < 100 {
        asks += 1;
        let request = rig.paths[1].0.borrow().requests[0].1.clone();
        if request != ReservationRequest::Report {
            rig.replies(1, Err(IoError::Failed(Refusal::NotRegistered.into())));
            continue;
        }
        rig.replies(1, report(&[(KEY, false)]));
    }
    assert!(asks < 10, "{asks}");
    assert!(uses(&mut rig, 1));
}

#[test]
fn a_question_that_is_put_off_is_not_asked_without_a_pause() {
    let mut rig = registered();
    rig.raise(1);
    let begun = rig.now;
    let mut asks = 0;
    while rig.now.since(begun) < Duration::from_secs(10) {
        while asked(&rig, 1) > 0 {
            rig.replies(1, Err(IoError::NotDone(Duration::ZERO)));
            asks += 1;
        }
        rig.pass(Duration::from_millis(10));
    }
    assert!((8..30).contains(&asks), "{asks} in ten seconds");
    // Nor is a claim of the user's.
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(5), ReservationRequest::Report)));
    let (begun, mut asks) = (rig.now, 0);
    while rig.now.since(begun) < Duration::from_secs(10) {
        while asked(&rig, 0) > 0 {
            rig.replies(0, Err(IoError::NotDone(Duration::ZERO)));
            asks += 1;
        }
        rig.pass(Duration::from_millis(10));
    }
    assert!((8..30).contains(&asks), "{asks} in ten seconds");
}

#[test]
fn a_path_that_does_not_serve_is_asked_when_it_does() {
    let mut rig = registered();
    let standby = VolumeInfo { access: volume::Access::Inaccessible, ..super::script::volume_info() };
    rig.say(1, Event::Up(std::sync::Arc::new(standby)));
    assert_eq!(asked(&rig, 1), 0);
    rig.pass(Duration::from_secs(300));
    assert_eq!(asked(&rig, 1), 0);
    rig.say(1, Event::Changed(std::sync::Arc::new(super::script::volume_info())));
    assert_eq!(rig.replies(1, report(&[(KEY, false)])), ReservationRequest::Report);
    assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)), "before it is used");
}

#[test]
fn a_registration_that_was_put_off_is_no_try() {
    let mut rig = registered();
    rig.raise(1);
    for _ in 0..10 {
        rig.replies(1, report(&[(KEY, false)]));
        rig.replies(1, Err(IoError::NotDone(Duration::from_secs(3))));
        rig.pass(Duration::from_millis(2999));
        assert_eq!(asked(&rig, 1), 0);
        rig.pass(Duration::from_millis(1));
        assert_eq!(asked(&rig, 1), 1);
    }
    assert!(!uses(&mut rig, 1), "it is not registered");
}

fn standby() -> Arc<VolumeInfo> {
    Arc::new(VolumeInfo { access: Access::Inaccessible, ..volume_info() })
}

#[test]
fn a_path_that_does_not_serve_is_not_asked_and_does_not_meet_our_reservation_later() {
    let mut rig = registered();
    rig.say(1, Event::Up(standby()));
    rig.pass(Duration::from_secs(500));
    assert_eq!(asked(&rig, 1), 0);
    assert_eq!(rig.volume.path_info(1).unwrap().state, PathState::Up);
    assert!(!rig.volume.has_work, "there is nothing to be done");
    rig.say(1, Event::Changed(Arc::new(volume_info())));
    assert!(!uses(&mut rig, 1));
    rig.replies(1, report(&[(KEY, false)]));
    // It serves no more for a while: it is asked nothing meanwhile, and its time is counted again.
    rig.say(1, Event::Changed(standby()));
    assert_eq!(rig.replies(1, Err(IoError::NotDone(Duration::ZERO))), registers(KEY, Some(true)));
    rig.pass(Duration::from_secs(500));
    assert_eq!(asked(&rig, 1), 0);
    rig.say(1, Event::Changed(Arc::new(volume_info())));
    rig.pass(Duration::from_secs(119));
    assert!(!uses(&mut rig, 1));
    rig.replies(1, report(&[(KEY, false)]));
    rig.replies(1, Ok(None));
    rig.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut rig, 1));
}

#[test]
fn a_path_that_did_not_serve_when_this_host_was_registered_joins_when_it_does() {
    let mut rig = Rig::up(2, robin());
    rig.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    rig.say(1, Event::Changed(standby()));
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(1), register(KEY, Some(true)))));
    rig.replies(0, Ok(None));
    assert_eq!(rig.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    rig.say(1, Event::Changed(Arc::new(volume_info())));
    assert!(!uses(&mut rig, 1));
    rig.replies(1, report(&[(KEY, false)]));
    assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)));
    rig.replies(1, report(&[(KEY, false), (KEY, true)]));
    assert!(uses(&mut rig, 1));
}

/// This host is registered again by its first path, with another key.
fn changes_key(rig: &mut Rig, new: Key) {
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(2), register(new, Some(true)))));
    rig.replies(0, Ok(None));
    assert_eq!(rig.volume.poll_reservation_reply(), Some((IoId(2), Ok(None))));
}

#[test]
fn a_path_that_joins_while_the_key_changes_is_not_used_with_the_old_key() {
    const NEW: Key = Key(8);
    let seen = |own| report(&[(NEW, false), (own, true)]);
    // What is under way when the key changes: the registration, the look behind it, the first look.
    for under_way in 0..3 {
        let mut rig = registered();
        rig.raise(1);
        if under_way < 2 {
            rig.replies(1, report(&[(KEY, false)]));
        }
        if under_way == 1 {
            rig.replies(1, Ok(None));
        }
        changes_key(&mut rig, NEW);
        assert_eq!(asked(&rig, 1), 1, "{under_way}: one after another");
        match under_way {
            0 => assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true))),
            // It was made before the key changed, and says nothing of a preemption.
            _ => assert_eq!(rig.replies(1, report(&[(KEY, false), (KEY, true)])), ReservationRequest::Report),
        }
        assert!(!uses(&mut rig, 1), "{under_way}");
        assert_eq!(rig.replies(1, seen(KEY)), ReservationRequest::Report, "{under_way}");
        let path_changed = with(register(NEW, Some(true)), RegisterMode::Replace, KEY);
        assert_eq!(rig.replies(1, Ok(None)), path_changed, "{under_way}");
        assert_eq!(rig.replies(1, seen(NEW)), ReservationRequest::Report, "{under_way}");
        assert!(uses(&mut rig, 1), "{under_way}");
        assert!(rig.volume.registered.is_some(), "{under_way}: nobody has preempted us");
    }
}

/// Each of the two stands there with the old key, and none of them says that the new one is not ours.
#[test]
fn two_paths_that_join_while_the_key_changes_are_not_taken_for_a_preemption() {
    const NEW: Key = Key(8);
    let mut rig = registered_by(Protocol::Iscsi, 3);
    let shown = |own| Ok(Some(said(vec![one(NEW, 0, false), one(KEY, 2, false), one(own, 1, true)])));
    for path in [1, 2] {
        rig.raise(path);
        rig.replies(path, report(&[(KEY, false)]));
        rig.replies(path, Ok(None));
    }
    changes_key(&mut rig, NEW);
    for path in [1, 2] {
        rig.replies(path, shown(KEY));
        rig.replies(path, shown(KEY));
        let path_changed = with(register(NEW, Some(true)), RegisterMode::Replace, KEY);
        assert_eq!(rig.replies(path, Ok(None)), path_changed, "path {path}");
        rig.replies(path, shown(NEW));
    }
    assert!(rig.volume.registered.is_some(), "nobody has preempted us");
}

#[test]
fn a_path_that_waits_to_be_asked_while_the_key_changes_is_asked_of_the_new_one() {
    let mut rig = registered();
    rig.paths[1].0.borrow_mut().claims_refused = true;
    rig.raise(1);
    changes_key(&mut rig, Key(8));
    rig.paths[1].0.borrow_mut().claims_refused = false;
    rig.pass(Duration::from_millis(20));
    rig.replies(1, report(&[(Key(8), false)]));
    assert_eq!(rig.replies(1, Ok(None)), registers(Key(8), Some(true)));
}

#[test]
fn a_path_that_was_being_fenced_when_this_host_was_registered_does_not_meet_our_reservation_later() {
    let mut rig = Rig::up(2, robin());
    rig.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    rig.submit(write(0));
    let lost = usize::from(rig.given(1) > 0);
    let other = 1 - lost;
    rig.end(lost, Err(IoError::InDoubt));
    assert_eq!(rig.volume.path_info(lost).unwrap().state, PathState::Fencing);
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(1), register(KEY, Some(true)))));
    rig.replies(other, Ok(None));
    assert_eq!(rig.volume.poll_reservation_reply(), Some((IoId(1), Ok(None))));
    rig.say(lost, Event::Fenced);
    assert_eq!(rig.volume.path_info(lost).unwrap().state, PathState::Registering);
    rig.replies(lost, report(&[(KEY, false)]));
    assert_eq!(rig.replies(lost, Ok(None)), registers(KEY, Some(true)));
    rig.replies(lost, report(&[(KEY, false), (KEY, true)]));
    assert_eq!(rig.volume.path_info(lost).unwrap().state, PathState::Up);
}

#[test]
fn a_path_that_comes_up_while_this_host_is_being_registered_is_registered_too() {
    let mut rig = Rig::up(2, robin());
    rig.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    rig.lose(1);
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(1), register(KEY, Some(true)))));
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    assert_eq!(asked(&rig, 1), 0, "it is not known yet whether there is anything to join");
    rig.replies(0, Ok(None));
    assert!(!uses(&mut rig, 1));
    rig.replies(1, report(&[(KEY, false)]));
    assert_eq!(rig.replies(1, Ok(None)), registers(KEY, Some(true)));
}

#[test]
fn of_nvme_paths_one_is_registered_for_all() {
    let mut rig = Rig::up(2, robin());
    assert!(rig.with(|volume, cx| volume.request_reservation(cx, IoId(1), register(KEY, Some(true)))));
    rig.replies(0, Ok(None));
    assert_eq!(asked(&rig, 1), 0);
    assert!(uses(&mut rig, 1));
}
