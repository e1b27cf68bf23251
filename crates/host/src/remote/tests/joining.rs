//! Paths that come up while this host is registered.

use std::time::Duration;

use volume::reservation::{Action, Key, Register, RegisterMode};
use volume::{Identity, IoId};

use super::script::{Rig, read};
use super::*;
use crate::path::{Claim, Claims, Event, Fate, Protocol, Registration, Why};

const KEY: Key = Key(7);

fn register(new: Key, persist: Option<bool>) -> Claim {
    let mode = RegisterMode::Set;
    let (also, ports) = (vec![], vec![]);
    Claim::Act(Action::Register(Register { mode, current: None, new, also, ports, nqn: None, persist }))
}

fn report(keys: &[(Key, bool)]) -> Result<Option<Claims>, Fate> {
    let registration = |&(key, ours): &(Key, bool)| Registration {
        identity: Identity::Host([1; 16]),
        key,
        holds: false,
        ours,
    };
    Ok(Some(Claims {
        generation: 1,
        persists: None,
        held: None,
        registrations: keys.iter().map(registration).collect(),
    }))
}

/// Two iSCSI paths, of which the second is down, and this host registered by the first.
fn registered() -> Rig {
    let mut rig = Rig::up(2, robin());
    rig.paths.iter().for_each(|path| path.0.borrow_mut().protocol = Some(Protocol::Iscsi));
    rig.lose(1);
    assert!(rig.with(|volume, cx| volume.claim(cx, IoId(1), register(KEY, Some(true)))));
    rig.claimed(0, Ok(None));
    assert_eq!(rig.volume.poll_claimed(), Some((IoId(1), Ok(None))));
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.count(1, |path| path.connects), 2);
    rig
}

fn asked(rig: &Rig, path: usize) -> u32 {
    rig.count(path, |path| path.claims.len() as u32)
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
    assert_eq!(rig.volume.path_info(1).unwrap().standing, Standing::Joining);
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.claimed(1, report(&[(KEY, false)])), Claim::Report);
    assert!(!uses(&mut rig, 1));
    assert_eq!(rig.claimed(1, Ok(None)), register(KEY, Some(true)), "as the others were");
    assert!(uses(&mut rig, 1));
    assert_eq!(rig.volume.path_info(1).unwrap().standing, Standing::Up);
    // It is the same nexus when it comes again: the target knows it still.
    rig.lose(1);
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    rig.claimed(1, report(&[(KEY, false), (KEY, true)]));
    assert_eq!(asked(&rig, 1), 0);
    assert!(uses(&mut rig, 1));
}

#[test]
fn who_was_preempted_meanwhile_does_not_come_back() {
    let mut rig = registered();
    rig.raise(1);
    rig.claimed(1, report(&[(Key(9), false)]));
    assert_eq!(asked(&rig, 1), 0, "others have taken our key away");
    assert!(uses(&mut rig, 1), "and the target says what it may do");
    assert!(std::iter::from_fn(|| rig.volume.poll_news()).any(|news| news == News::Changed));
    rig.lose(1);
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    assert_eq!(asked(&rig, 1), 0);
}

#[test]
fn who_has_unregistered_registers_no_path() {
    let mut rig = registered();
    for claim in [register(Key::NONE, None), Claim::Act(Action::Clear { key: Some(KEY) })] {
        assert!(rig.with(|volume, cx| volume.claim(cx, IoId(2), claim.clone())));
        rig.claimed(0, Ok(None));
        rig.raise(1);
        assert_eq!(asked(&rig, 1), 0, "{claim:?}");
        assert!(uses(&mut rig, 1));
        assert!(rig.with(|volume, cx| volume.claim(cx, IoId(3), register(KEY, None))));
        rig.claimed(0, Ok(None));
        rig.claimed(1, Ok(None));
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
    rig.paths[1].0.borrow_mut().claims.clear();
    rig.pass(Duration::from_secs(1));
    rig.raise(1);
    assert_eq!(rig.claimed(1, Err(Fate::NotDone(Duration::ZERO))), Claim::Report);
    assert_eq!(rig.claimed(1, report(&[(KEY, false)])), Claim::Report);
    assert_eq!(rig.claimed(1, Err(Fate::Unknown)), register(KEY, Some(true)));
    assert_eq!(asked(&rig, 1), 1, "whether it was done is looked up");
    rig.pass(Duration::from_secs(120));
    assert!(uses(&mut rig, 1), "nobody answers: it is used as it is");
    rig.say(1, Event::Down(Why::Ended));
}
