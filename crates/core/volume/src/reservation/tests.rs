use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::facts::Uuid;
use crate::io::Refusal;
use crate::notice::{Notice, NoticeCause};
use crate::record::PersistentState;
use crate::record::RecordError;
use crate::requester::{PortId, Requester};

const UUID: Uuid = Uuid([9; 16]);

/// Nexuses 0 to 3 are SCSI ones (two initiators on two ports), 4 and 5 NVMe hosts.
fn requester(number: u8) -> Requester {
    let identity = match number {
        0..4 => {
            let name = if number < 2 { "iqn.2026-11.example:a" } else { "iqn.2026-11.example:b" };
            let port = PortId(1 + u16::from(number % 2));
            Identity::Initiator { name: name.into(), isid: [0x40, 0, 0, 0, 0, number / 2], port }
        }
        _ => Identity::Host([number; 16]),
    };
    let port = PortId(1 + u16::from(number % 2));
    Requester { identity: Arc::new(identity), port, read_only: false }
}

fn save(state: &Reservations) -> Vec<u8> {
    let reservations = Arc::new(state.clone());
    crate::record::save(UUID, &PersistentState { reservations, ..PersistentState::default() })
}

fn restore(bytes: &[u8]) -> Result<Reservations, RecordError> {
    crate::record::restore_record(bytes, UUID, false).map(|kept| Arc::unwrap_or_clone(kept.reservations))
}

/// SPC-4 table "PERSISTENT RESERVE OUT type codes" and NVMe's "Command Behavior in the Presence of a
/// Reservation", spelled out: kind, then for holder, registrant, stranger whether reads and writes
/// are allowed.
#[test]
fn the_table_is_the_standards() {
    use ReservationType::*;
    let rows = [
        (WriteExclusive, "rw", "r-", "r-"),
        (ExclusiveAccess, "rw", "--", "--"),
        (WriteExclusiveRegistrants, "rw", "rw", "r-"),
        (ExclusiveAccessRegistrants, "rw", "rw", "--"),
        (WriteExclusiveAll, "rw", "rw", "r-"),
        (ExclusiveAccessAll, "rw", "rw", "--"),
    ];
    for (kind, holder, registrant, stranger) in rows {
        for (rank, rights) in [
            (ReservationRole::Holder, holder),
            (ReservationRole::Registrant, registrant),
            (ReservationRole::Stranger, stranger),
        ] {
            assert_eq!(kind.permits(rank, CommandClass::Read), rights.contains('r'), "{kind:?} {rank:?}");
            assert_eq!(kind.permits(rank, CommandClass::Write), rights.contains('w'), "{kind:?} {rank:?}");
            assert!(kind.permits(rank, CommandClass::Status));
        }
    }
    let scsi: Vec<_> = (0..=255).filter(|code| ReservationType::from_scsi(*code).is_some()).collect();
    assert_eq!(scsi, [1, 3, 5, 6, 7, 8]);
    assert_eq!(
        (0..=255).filter_map(ReservationType::from_nvme).map(ReservationType::to_nvme).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6]
    );
    assert!(
        ReservationType::ALL.iter().all(|kind| ReservationType::from_scsi(kind.to_scsi()) == Some(*kind))
    );
}

/// The same rules once more, over small numbers and plain maps.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    keys: BTreeMap<u8, u64>,
    held: Option<(ReservationType, Option<u8>)>,
    legacy: Option<u8>,
    generation: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Set {
        current: Option<u64>,
        new: u64,
    },
    /// As NVMe registers.
    Nvme {
        mode: RegisterMode,
        current: Option<u64>,
        new: u64,
    },
    Reserve {
        key: u64,
        kind: ReservationType,
    },
    Release {
        key: u64,
        kind: ReservationType,
    },
    Clear {
        key: u64,
    },
    Preempt {
        key: u64,
        victim: u64,
        kind: ReservationType,
        abort: bool,
    },
    Move {
        key: u64,
        new: u64,
        to: u8,
        unregister: bool,
    },
    LegacyReserve,
    LegacyRelease,
}

impl Step {
    fn action(&self) -> Action {
        match *self {
            Step::Set { current, new } => Action::Register(RegistrationRequest {
                persist: Some(true),
                ..RegistrationRequest::new(current.map(Key), Key(new))
            }),
            Step::Nvme { mode, current, new } => Action::Register(RegistrationRequest {
                mode,
                current: current.map(Key),
                persist: Some(true),
                ..register(new)
            }),
            Step::Reserve { key, kind } => Action::Reserve { key: Some(Key(key)), kind },
            Step::Release { key, kind } => Action::Release { key: Some(Key(key)), kind },
            Step::Clear { key } => Action::Clear { key: Some(Key(key)) },
            Step::Preempt { key, victim, kind, abort } => {
                Action::Preempt { key: Some(Key(key)), victim: Key(victim), kind, abort }
            }
            Step::Move { key, new, to, unregister } => Action::Move {
                key: Key(key),
                new: Key(new),
                to: requester(to).identity,
                unregister,
                persist: None,
            },
            Step::LegacyReserve => Action::LegacyReserve,
            Step::LegacyRelease => Action::LegacyRelease,
        }
    }
}

impl Model {
    fn holds(&self, who: u8) -> bool {
        match self.held {
            Some((_, Some(holder))) => holder == who,
            Some((_, None)) => self.keys.contains_key(&who),
            None => false,
        }
    }

    fn all(&self) -> bool {
        matches!(self.held, Some((_, None)))
    }

    fn apply(&mut self, who: u8, step: &Step) -> Result<(), Refusal> {
        let legacy = matches!(step, Step::LegacyReserve | Step::LegacyRelease);
        if legacy {
            if !self.keys.is_empty() {
                let assured = match self.held {
                    Some((kind, _)) if kind.grants_registrants_access() => self.keys.contains_key(&who),
                    Some(_) => self.holds(who),
                    None => false,
                };
                return if assured { Ok(()) } else { Err(Refusal::Conflict) };
            }
            match (step, self.legacy) {
                (Step::LegacyReserve, Some(other)) if other != who => return Err(Refusal::Conflict),
                (Step::LegacyReserve, _) => self.legacy = Some(who),
                (_, Some(other)) if other == who => self.legacy = None,
                _ => {}
            }
            return Ok(());
        }
        if self.legacy.is_some() {
            return Err(Refusal::Conflict);
        }
        let has = self.keys.get(&who).copied();
        if let Step::Reserve { key, .. }
        | Step::Release { key, .. }
        | Step::Clear { key }
        | Step::Preempt { key, .. }
        | Step::Move { key, .. } = step
            && has != Some(*key)
        {
            return Err(Refusal::NotRegistered);
        }
        match *step {
            Step::Set { current, new } => {
                if current.is_some_and(|current| current != has.unwrap_or(0)) {
                    return Err(Refusal::NotRegistered);
                }
                if has.is_none() && new == 0 {
                    return Ok(());
                }
                self.generation += 1;
                if new == 0 {
                    self.keys.remove(&who);
                } else {
                    self.keys.insert(who, new);
                }
            }
            Step::Nvme { mode, current, new } => self.register(who, mode, current, new)?,
            Step::Reserve { kind, .. } => match self.held {
                Some((held, _)) if self.holds(who) && held == kind => {}
                Some(_) => return Err(Refusal::Conflict),
                None => self.held = Some((kind, (!kind.is_all_registrants()).then_some(who))),
            },
            Step::Release { kind, .. } => match self.held {
                Some((held, _)) if self.holds(who) && held != kind => return Err(Refusal::InvalidRelease),
                Some(_) if self.holds(who) => self.held = None,
                _ => {}
            },
            Step::Clear { .. } => {
                self.generation += 1;
                self.keys.clear();
                self.held = None;
            }
            Step::Preempt { victim, kind, .. } => self.preempt(who, victim, kind)?,
            Step::Move { new, to, unregister, .. } => {
                let Some((kind, holder)) = self.held else { return Err(Refusal::NothingReserved) };
                if holder != Some(who) {
                    return Err(Refusal::Conflict);
                }
                if new == 0 || to == who || (to < 4 && who < 4 && to / 2 == who / 2) {
                    return Err(Refusal::InvalidAction);
                }
                self.generation += 1;
                if unregister {
                    self.keys.remove(&who);
                }
                self.keys.insert(to, new);
                self.held = Some((kind, Some(to)));
            }
            Step::LegacyReserve | Step::LegacyRelease => unreachable!(),
        }
        self.orphan();
        Ok(())
    }

    fn register(
        &mut self,
        who: u8,
        mode: RegisterMode,
        current: Option<u64>,
        new: u64,
    ) -> Result<(), Refusal> {
        let has = self.keys.get(&who).copied();
        let ignores = current.is_none();
        let next = match (mode, has) {
            (RegisterMode::Add, Some(has)) if has != new => return Err(Refusal::Conflict),
            (RegisterMode::Remove, Some(_)) if ignores || current == has => 0,
            (RegisterMode::Remove, _) => return Err(Refusal::NotRegistered),
            (_, _) if new == 0 => return Err(Refusal::InvalidAction),
            (RegisterMode::Replace, None) if !ignores => return Err(Refusal::NotRegistered),
            (RegisterMode::Replace, Some(_)) if !ignores && current != has => {
                return Err(Refusal::NotRegistered);
            }
            (_, _) => new,
        };
        self.generation += 1;
        self.keys.remove(&who);
        if next != 0 {
            self.keys.insert(who, next);
        }
        Ok(())
    }

    fn orphan(&mut self) {
        match self.held {
            Some((_, Some(holder))) if !self.keys.contains_key(&holder) => self.held = None,
            Some((_, None)) if self.keys.is_empty() => self.held = None,
            _ => {}
        }
    }

    fn preempt(&mut self, who: u8, victim: u64, kind: ReservationType) -> Result<(), Refusal> {
        let taken = Some((kind, (!kind.is_all_registrants()).then_some(who)));
        if victim == 0 {
            if !self.all() {
                return Err(Refusal::InvalidAction);
            }
            self.keys.retain(|one, _| *one == who);
            self.held = taken;
        } else if let Some((_, Some(holder))) = self.held
            && self.keys[&holder] == victim
        {
            self.keys.retain(|one, key| *one == who || *key != victim);
            self.held = taken;
        } else if self.keys.values().any(|key| *key == victim) {
            self.keys.retain(|_, key| *key != victim);
        } else {
            return Err(Refusal::Conflict);
        }
        self.generation += 1;
        Ok(())
    }
}

fn agree(state: &Reservations, model: &Model) {
    let number = |identity: &Arc<Identity>| (0..6).find(|n| requester(*n).identity == *identity).unwrap();
    let keys = state.registrants().iter().map(|one| (number(&one.identity), one.key.0)).collect();
    let held = state.held_reservation().map(|held| (held.kind, held.holder.as_ref().map(number)));
    let legacy = state.legacy_holder().map(number);
    assert_eq!(Model { keys, held, legacy, generation: state.generation() }, *model);
}

/// What every change must keep, whatever it was.
fn check_effect(before: &Reservations, who: &Requester, step: &Step, effect: &ActionEffect) {
    let state = &effect.state;
    assert!(effect.notices.iter().all(|notice| !notice.is_for(&who.identity)), "the doer hears nothing");
    let told = |identity: &Identity, cause: NoticeCause| {
        effect.notices.iter().any(|notice: &Notice| notice.cause == cause && notice.is_for(identity))
    };
    for one in before.registrants() {
        let gone = state.key_of(&one.identity).is_none();
        let other = one.identity != who.identity;
        let cause = match step {
            Step::Clear { .. } => NoticeCause::ReservationsPreempted,
            _ => NoticeCause::RegistrationsPreempted,
        };
        assert_eq!(told(&one.identity, cause), gone && other, "{step:?}");
        if let Step::Preempt { abort: true, .. } = step {
            assert_eq!(effect.abort.contains(&one.identity), gone);
        }
        let released = before.held_reservation().is_some_and(|held| held.kind.grants_registrants_access())
            && state.held_reservation().is_none();
        if released && !gone && other {
            assert!(told(&one.identity, NoticeCause::ReservationsReleased), "{step:?}");
        }
    }
    for number in 0..6 {
        let one = requester(number).identity;
        for class in [CommandClass::Read, CommandClass::Write, CommandClass::Status] {
            let lost = before.admits(&one, class) && !state.admits(&one, class);
            assert!(!lost || effect.drain, "rights are taken away without a fence: {step:?}");
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let key = || 0..4u64;
    let kind = || proptest::sample::select(ReservationType::ALL.to_vec());
    let mode =
        || proptest::sample::select(vec![RegisterMode::Add, RegisterMode::Replace, RegisterMode::Remove]);
    let step = prop_oneof![
        6 => (proptest::option::of(key()), key()).prop_map(|(current, new)| Step::Set { current, new }),
        6 => (mode(), proptest::option::of(key()), key())
            .prop_map(|(mode, current, new)| Step::Nvme { mode, current, new }),
        3 => (key(), kind()).prop_map(|(key, kind)| Step::Reserve { key, kind }),
        2 => (key(), kind()).prop_map(|(key, kind)| Step::Release { key, kind }),
        1 => key().prop_map(|key| Step::Clear { key }),
        4 => (key(), key(), kind(), any::<bool>())
            .prop_map(|(key, victim, kind, abort)| Step::Preempt { key, victim, kind, abort }),
        1 => (key(), key(), 0..6u8, any::<bool>())
            .prop_map(|(key, new, to, unregister)| Step::Move { key, new, to, unregister }),
        1 => Just(Step::LegacyReserve),
        1 => Just(Step::LegacyRelease),
    ];
    proptest::collection::vec((0..6u8, step), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn histories_agree_with_the_model(steps in steps()) {
        let (mut state, mut model) = (Reservations::default(), Model::default());
        for (who, step) in steps {
            let mut next = model.clone();
            let expected = next.apply(who, &step);
            let came = state.apply(&requester(who), &step.action());
            prop_assert_eq!(came.as_ref().map(|_| ()).map_err(|refusal| *refusal), expected, "{:?} {:?}", who, step);
            if let Ok(effect) = came {
                check_effect(&state, &requester(who), &step, &effect);
                state = effect.state;
                model = next;
            }
            agree(&state, &model);
            let kept = restore(&save(&state)).unwrap();
            if state.persists() {
                let durable = Reservations { generation: 0, legacy: None, ..state.clone() };
                prop_assert_eq!(kept, durable);
            } else {
                prop_assert_eq!(kept, Reservations::default());
            }
        }
    }

    #[test]
    fn damaged_bytes_are_refused(flip in any::<proptest::sample::Index>(), bit in 0..8u8, cut in any::<proptest::sample::Index>()) {
        let mut state = Reservations::default();
        for number in 0..6 {
            let step = Step::Set { current: Some(0), new: 5 };
            state = state.apply(&requester(number), &step.action()).unwrap().state;
        }
        let bytes = save(&state);
        let mut flipped = bytes.clone();
        flipped[flip.index(bytes.len())] ^= 1 << bit;
        prop_assert!(restore(&flipped).is_err());
        prop_assert!(restore(&bytes[..cut.index(bytes.len())]).is_err());
        let other = crate::record::restore_record(&bytes, Uuid([1; 16]), false);
        prop_assert_eq!(other, Err(RecordError::OtherVolume(UUID)));
        let _ = restore(&flipped[4..]);
    }
}

fn register(new: u64) -> RegistrationRequest {
    RegistrationRequest::new(None, Key(new))
}

#[test]
fn registering_for_others_and_on_all_ports() {
    let who = requester(0);
    let all = RegistrationRequest {
        ports: vec![PortId(1), PortId(2)],
        also: vec![requester(2).identity],
        ..register(7)
    };
    let state = Reservations::default().apply(&who, &Action::Register(all.clone())).unwrap().state;
    for number in 0..4 {
        assert_eq!(state.key_of(&requester(number).identity), Some(Key(7)), "{number}");
    }
    assert_eq!(state.registrants().len(), 4);
    assert_eq!(state.generation(), 1);
    // SPEC_I_PT is for those who are not registered.
    assert_eq!(state.apply(&who, &Action::Register(all)), Err(Refusal::InvalidAction));
}

/// ALL_TG_PT is as if the request had come by every port, for who is registered already too (SPC-4 §6.16.3).
#[test]
fn all_ports_are_not_forgotten_when_a_registered_nexus_names_them() {
    let who = requester(0);
    let on_all = |current: Option<u64>, new| {
        let (current, ports) = (current.map(Key), vec![PortId(1), PortId(2)]);
        Action::Register(RegistrationRequest { current, ports, ..register(new) })
    };
    let here = |current: Option<u64>, new| {
        Action::Register(RegistrationRequest { current: current.map(Key), ..register(new) })
    };
    let keys = |state: &Reservations| {
        [0, 1].map(|number| state.key_of(&requester(number).identity).map(|key| key.0))
    };
    // Both ways to change a key reach both ports, also one where nothing was registered.
    let one = Reservations::default().apply(&who, &on_all(Some(0), 1)).unwrap().state;
    assert_eq!(keys(&one), [Some(1); 2]);
    let two = one.apply(&who, &on_all(Some(1), 2)).unwrap().state;
    assert_eq!((keys(&two), two.generation()), ([Some(2); 2], 2));
    let three = two.apply(&who, &on_all(None, 3)).unwrap().state;
    assert_eq!(keys(&three), [Some(3); 2]);
    let young = Reservations::default().apply(&who, &here(Some(0), 1)).unwrap().state;
    assert_eq!(keys(&young.apply(&who, &on_all(Some(1), 2)).unwrap().state), [Some(2); 2]);
    // To leave is to leave both, and what was held with it.
    for current in [Some(3), None] {
        let take = Action::Reserve { key: Some(Key(3)), kind: ReservationType::WriteExclusive };
        let held = three.apply(&requester(1), &take).unwrap().state;
        let gone = held.apply(&who, &on_all(current, 0)).unwrap().state;
        assert!(gone.registrants().is_empty() && gone.held_reservation().is_none());
    }
    // Who ignores the existing key leaves the other port though it is not registered here.
    let there = Reservations::default().apply(&requester(1), &here(Some(0), 4)).unwrap().state;
    assert_eq!(keys(&there.apply(&who, &on_all(None, 0)).unwrap().state), [None; 2]);
    // With another key there the request would have been refused there: nothing changes.
    assert_eq!(there.apply(&who, &on_all(Some(0), 5)), Err(Refusal::NotRegistered));
    let both = there.apply(&who, &here(Some(0), 5)).unwrap().state;
    for new in [0, 6] {
        assert_eq!(both.apply(&who, &on_all(Some(5), new)), Err(Refusal::NotRegistered));
    }
    assert_eq!(keys(&both.apply(&who, &on_all(None, 6)).unwrap().state), [Some(6); 2]);
}

#[test]
fn nobody_is_given_another_key_behind_its_back_on_any_port() {
    let other = requester(3);
    let state = Reservations::default().apply(&other, &Action::Register(register(9))).unwrap().state;
    let ports = vec![PortId(1), PortId(2)];
    let all = RegistrationRequest { ports, also: vec![requester(2).identity], ..register(7) };
    assert_eq!(state.apply(&requester(0), &Action::Register(all)), Err(Refusal::Conflict));
}

#[test]
fn a_reservation_is_not_moved_without_one_or_to_the_port_that_asks() {
    let who = requester(0);
    let state = Reservations::default().apply(&who, &Action::Register(register(1))).unwrap().state;
    let to = |number| Action::Move {
        key: Key(1),
        new: Key(2),
        to: requester(number).identity,
        unregister: false,
        persist: None,
    };
    assert_eq!(state.apply(&who, &to(2)), Err(Refusal::NothingReserved));
    let take = Action::Reserve { key: Some(Key(1)), kind: ReservationType::WriteExclusive };
    let held = state.apply(&who, &take).unwrap().state;
    for own in [0, 1] {
        assert_eq!(held.apply(&who, &to(own)), Err(Refusal::InvalidAction));
    }
    assert!(held.apply(&who, &to(2)).is_ok());
}

#[test]
fn registrations_are_bounded_and_all_or_none() {
    let mut state = Reservations::default();
    for number in 0..REGISTRANTS_MAX as u32 {
        let mut id = [1; 16];
        id[..4].copy_from_slice(&number.to_be_bytes());
        let who = Requester { identity: Arc::new(Identity::Host(id)), port: PortId(1), read_only: false };
        state = state.apply(&who, &Action::Register(register(1))).unwrap().state;
    }
    let who = requester(0);
    assert_eq!(state.apply(&who, &Action::Register(register(1))), Err(Refusal::NoRegistrationSpace));
    assert!(save(&state).len() < 512 << 10);
    let flood = RegistrationRequest { also: vec![requester(2).identity; 100_000], ..register(1) };
    let refused = Reservations::default().apply(&who, &Action::Register(flood));
    assert_eq!(refused, Err(Refusal::NoRegistrationSpace));
}

#[test]
fn nvme_registers_in_its_own_way() {
    let (host, mode) = (requester(4), |mode, current: u64, new| {
        Action::Register(RegistrationRequest { mode, current: Some(Key(current)), ..register(new) })
    });
    let none = Reservations::default();
    assert_eq!(none.apply(&host, &mode(RegisterMode::Replace, 0, 5)), Err(Refusal::NotRegistered));
    assert_eq!(none.apply(&host, &mode(RegisterMode::Remove, 0, 0)), Err(Refusal::NotRegistered));
    assert_eq!(none.apply(&host, &mode(RegisterMode::Add, 0, 0)), Err(Refusal::InvalidAction));
    let five = none.apply(&host, &mode(RegisterMode::Add, 99, 5)).unwrap().state;
    assert_eq!(five.apply(&host, &mode(RegisterMode::Add, 5, 6)), Err(Refusal::Conflict));
    assert!(five.apply(&host, &mode(RegisterMode::Add, 0, 5)).is_ok());
    assert_eq!(five.apply(&host, &mode(RegisterMode::Replace, 4, 6)), Err(Refusal::NotRegistered));
    let six = five.apply(&host, &mode(RegisterMode::Replace, 5, 6)).unwrap().state;
    assert_eq!(six.key_of(&host.identity), Some(Key(6)));
    let gone = six.apply(&host, &mode(RegisterMode::Remove, 6, 0)).unwrap().state;
    assert!(gone.registrants().is_empty());
}

#[test]
fn one_key_means_the_same_over_both_protocols() {
    let mut state = Reservations::default();
    for (number, key) in [(0, 1), (2, 2), (4, 2)] {
        state = state.apply(&requester(number), &Action::Register(register(key))).unwrap().state;
    }
    let take = Action::Reserve { key: Some(Key(2)), kind: ReservationType::WriteExclusive };
    let state = state.apply(&requester(4), &take).unwrap().state;
    let preempt = Action::Preempt {
        key: Some(Key(1)),
        victim: Key(2),
        kind: ReservationType::ExclusiveAccess,
        abort: true,
    };
    let effect = state.apply(&requester(0), &preempt).unwrap();
    assert_eq!(effect.abort.len(), 2);
    assert!(effect.state.is_holder(&requester(0).identity));
    assert_eq!(effect.state.registrants().len(), 1);
}
