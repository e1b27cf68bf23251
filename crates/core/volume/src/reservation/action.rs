//! Reservation actions of hosts and their results (SPC-4 §5.9 and §6.15; NVMe Base §7.2 to §7.5 and §8.19).
//! Where the two standards differ, a field of [`Action`] selects one; `docs/one-volume.md` has the rules with
//! their reasons.

use std::sync::Arc;

use super::{HeldReservation, Key, REGISTRANTS_MAX, Registrant, ReservationType, Reservations};
use crate::io::Refusal;
use crate::notice::{Notice, NoticeCause, NoticeReceivers};
use crate::requester::{Identity, PortId, Requester};

/// The longest iSCSI name, and the longest NVMe Qualified Name, in bytes (RFC 7143 §4.2.7.1; NVMe
/// Base §4.5).
const NAME_MAX: usize = 223;

/// A change of reservations that a requester asks for. Where a key is an `Option`, `None` ignores the
/// existing key (REGISTER AND IGNORE EXISTING KEY, IEKEY); the requester must be registered all the same
/// where the action needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Registers, changes or removes a key.
    Register(RegistrationRequest),
    /// Moves the holder's reservation to another, registering it (SCSI only).
    Move {
        /// The holder's key.
        key: Key,
        /// The key to register for `to`.
        new: Key,
        /// The new holder.
        to: Arc<Identity>,
        /// Whether the old holder's registration is removed.
        unregister: bool,
        /// APTPL.
        persist: Option<bool>,
    },
    /// Takes the reservation.
    Reserve {
        /// The registrant's key.
        key: Option<Key>,
        /// Which kind.
        kind: ReservationType,
    },
    /// Gives the reservation up.
    Release {
        /// The registrant's key.
        key: Option<Key>,
        /// Must be the reservation's kind.
        kind: ReservationType,
    },
    /// Removes the reservation and all registrations.
    Clear {
        /// The registrant's key.
        key: Option<Key>,
    },
    /// Removes others' registrations, and takes the reservation if they held it.
    Preempt {
        /// The registrant's key.
        key: Option<Key>,
        /// Whose registrations to remove; zero for everyone else's, if all registrants hold.
        victim: Key,
        /// The kind of the reservation if it is taken.
        kind: ReservationType,
        /// Whether the victims' commands are aborted.
        abort: bool,
    },
    /// Says whether registrations and the reservation survive power loss, without touching them (NVMe
    /// feature 83h).
    Persist {
        /// Whether they do.
        on: bool,
    },
    /// SCSI-2 RESERVE of the whole logical unit.
    LegacyReserve,
    /// SCSI-2 RELEASE.
    LegacyRelease,
}

/// A registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationRequest {
    /// What it may do.
    pub mode: RegisterMode,
    /// The existing key, zero if the requester is not registered; `None` ignores it.
    pub current: Option<Key>,
    /// The key to have; zero to have none ([`RegisterMode::Set`] only; [`RegisterMode::Remove`]
    /// ignores it).
    pub new: Key,
    /// SPEC_I_PT: other identities to register with the same key, each as it is named.
    pub also: Vec<Arc<Identity>>,
    /// ALL_TG_PT: the ports to register on. Empty: the port that the request came by.
    pub ports: Vec<PortId>,
    /// The Host NQN of an NVMe host, at most 223 bytes; `None` for initiators.
    pub nqn: Option<Arc<str>>,
    /// APTPL, CPTPL: whether the state shall survive power loss; `None` leaves that as it is.
    pub persist: Option<bool>,
}

impl RegistrationRequest {
    /// Whatever `new` asks for, by the port that the request came by, with nothing else.
    pub fn new(current: Option<Key>, new: Key) -> RegistrationRequest {
        let (also, ports) = (Vec::new(), Vec::new());
        RegistrationRequest { mode: RegisterMode::Set, current, new, also, ports, nqn: None, persist: None }
    }
}

/// What a registration may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterMode {
    /// Whichever applies: register, change the key, or with a zero key remove (SCSI).
    Set,
    /// Register only; the same key once more is fine (NVMe RREGA 0).
    Add,
    /// Change a registrant's key; where the existing key is ignored, register who is not
    /// registered (NVMe RREGA 2; Base §8.19.3).
    Replace,
    /// Remove only (NVMe RREGA 1).
    Remove,
}

/// What comes of an action that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionEffect {
    /// The new state.
    pub state: Reservations,
    /// Who must hear of it.
    pub notices: Vec<Notice>,
    /// Whose commands are to be aborted, but for the one that asks.
    pub abort: Vec<Arc<Identity>>,
    /// Whether someone may do less than before, so that what was admitted must end first.
    pub drain: bool,
}

impl Action {
    /// What of the action is left to a requester that may only read: its own registration, which it needs
    /// to read beside a reservation for registrants, and whose end gives up what it may still hold. It
    /// keeps nobody from the volume, removes nobody, and leaves everybody's persistence as it is.
    fn allowed_for_read_only(&self) -> Result<Action, Refusal> {
        match self {
            Action::Register(register) if register.also.is_empty() => {
                Ok(Action::Register(RegistrationRequest { persist: None, ..register.clone() }))
            }
            Action::LegacyRelease => Ok(Action::LegacyRelease),
            Action::Register(_) | Action::Move { .. } | Action::Reserve { .. } => Err(Refusal::ReadOnly),
            Action::Release { .. } | Action::Clear { .. } | Action::Preempt { .. } => Err(Refusal::ReadOnly),
            Action::LegacyReserve | Action::Persist { .. } => Err(Refusal::ReadOnly),
        }
    }
}

impl Reservations {
    /// The state after `action`, or why it is refused; `self` stays as it is.
    #[expect(clippy::unreachable, reason = "these actions were handled above")]
    pub fn apply(&self, who: &Requester, action: &Action) -> Result<ActionEffect, Refusal> {
        if who.read_only {
            let who = Requester { read_only: false, ..who.clone() };
            return self.apply(&who, &action.allowed_for_read_only()?);
        }
        match action {
            Action::LegacyReserve => return self.legacy_reserve(who),
            Action::LegacyRelease => return self.legacy_release(who),
            Action::Persist { on } => {
                let mut state = self.clone();
                state.set_persist(Some(*on));
                return Ok(self.effect_of_state(state));
            }
            Action::Register(_) | Action::Move { .. } | Action::Reserve { .. } => {}
            Action::Release { .. } | Action::Clear { .. } | Action::Preempt { .. } => {}
        }
        if self.legacy.is_some() {
            // SPC-2 §5.5.1: persistent reservation commands conflict with RESERVE, the holder's own
            // included.
            return Err(Refusal::Conflict);
        }
        match action {
            Action::Register(register) => self.register(who, register),
            Action::Move { key, new, to, unregister, persist } => {
                self.require_registered_key(who, Some(*key))?;
                self.register_and_move(who, *new, to, *unregister, *persist)
            }
            Action::Reserve { key, kind } => {
                self.require_registered_key(who, *key)?;
                self.reserve(who, *kind)
            }
            Action::Release { key, kind } => {
                self.require_registered_key(who, *key)?;
                self.release(who, *kind)
            }
            Action::Clear { key } => {
                self.require_registered_key(who, *key)?;
                Ok(self.clear(who))
            }
            Action::Preempt { key, victim, kind, abort } => {
                self.require_registered_key(who, *key)?;
                self.preempt(who, *victim, *kind, *abort)
            }
            Action::LegacyReserve | Action::LegacyRelease | Action::Persist { .. } => {
                unreachable!("handled above")
            }
        }
    }

    /// What the loss of a nexus changes: persistent reservations stay, a SCSI-2 one goes. `None`:
    /// nothing.
    pub fn without_legacy_reservation_of(&self, who: Option<&Identity>) -> Option<Reservations> {
        let legacy = self.legacy.as_deref()?;
        if who.is_some_and(|who| who != legacy) {
            return None;
        }
        Some(Reservations { legacy: None, ..self.clone() })
    }

    fn require_registered_key(&self, who: &Requester, key: Option<Key>) -> Result<(), Refusal> {
        match (self.key_of(&who.identity), key) {
            (None, _) => Err(Refusal::NotRegistered),
            (Some(has), Some(given)) if has != given => Err(Refusal::NotRegistered),
            (Some(_), _) => Ok(()),
        }
    }

    fn effect_of_state(&self, state: Reservations) -> ActionEffect {
        ActionEffect { state, notices: Vec::new(), abort: Vec::new(), drain: false }
    }

    fn with_next_generation(&self) -> Reservations {
        Reservations { generation: self.generation.wrapping_add(1), ..self.clone() }
    }

    fn set_persist(&mut self, persist: Option<bool>) {
        if let Some(persist) = persist {
            self.persist = persist || self.persist_forced;
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    fn put_registrant(&mut self, identity: Arc<Identity>, key: Key) -> Result<(), Refusal> {
        let named = match &*identity {
            Identity::Initiator { name, .. } => !name.is_empty() && name.len() <= NAME_MAX,
            Identity::Host(id) => *id != [0; 16],
        };
        if !named {
            return Err(Refusal::InvalidAction);
        }
        match self.find_registrant(&identity) {
            Ok(at) => self.registrants[at].key = key,
            Err(_) if self.registrants.len() >= REGISTRANTS_MAX => return Err(Refusal::NoRegistrationSpace),
            Err(at) => self.registrants.insert(at, Registrant { identity, key, nqn: None }),
        }
        Ok(())
    }

    /// Notes under which NQN a host has registered.
    #[expect(clippy::indexing_slicing, reason = "the place is what the search has found")]
    fn bind_host_nqn(&mut self, who: &Identity, nqn: Option<&Arc<str>>) -> Result<(), Refusal> {
        let (Identity::Host(_), Some(nqn)) = (who, nqn) else { return Ok(()) };
        let Ok(at) = self.find_registrant(who) else { return Ok(()) };
        if nqn.is_empty() || nqn.len() > NAME_MAX {
            return Err(Refusal::InvalidAction);
        }
        if self.registrants[at].nqn.as_ref().is_some_and(|bound| bound != nqn) {
            // Two machines with one identifier: a preempt could not tell them apart.
            return Err(Refusal::Conflict);
        }
        self.registrants[at].nqn = Some(nqn.clone());
        Ok(())
    }

    fn register(&self, who: &Requester, register: &RegistrationRequest) -> Result<ActionEffect, Refusal> {
        let has = self.key_of(&who.identity);
        let known = register.current.is_none_or(|current| has.unwrap_or(Key::NONE) == current);
        let own = [who.identity.clone()];
        match (register.mode, has) {
            (RegisterMode::Set, _) if !known => Err(Refusal::NotRegistered),
            (RegisterMode::Set, Some(_)) if !register.also.is_empty() => Err(Refusal::InvalidAction),
            (RegisterMode::Set, _) => self.register_scsi_ports(who, register),
            (RegisterMode::Add, Some(has)) if has != register.new => Err(Refusal::Conflict),
            (RegisterMode::Add | RegisterMode::Replace, _) if register.new == Key::NONE => {
                Err(Refusal::InvalidAction)
            }
            (RegisterMode::Add, Some(_)) => self.replace_registration(who, register, &own),
            (RegisterMode::Add, None) => self.add_registration(who, register),
            (RegisterMode::Replace, None) if register.current.is_none() => {
                self.add_registration(who, register)
            }
            (RegisterMode::Replace | RegisterMode::Remove, None) => Err(Refusal::NotRegistered),
            (RegisterMode::Replace | RegisterMode::Remove, Some(_)) if !known => Err(Refusal::NotRegistered),
            (RegisterMode::Replace, Some(_)) => self.replace_registration(who, register, &own),
            (RegisterMode::Remove, Some(_)) => Ok(self.unregister(who, &own, register.persist)),
        }
    }

    /// SCSI's REGISTER, on every port that it names as if it had come by each (SPC-4 §6.16.3, ALL_TG_PT):
    /// all or nothing. A port where nothing is registered, because it is younger than the others'
    /// registrations, follows them; one where another key stands is not this request's to change.
    fn register_scsi_ports(
        &self,
        who: &Requester,
        register: &RegistrationRequest,
    ) -> Result<ActionEffect, Refusal> {
        let everywhere = identities_on_ports(&who.identity, &register.ports);
        let foreign = |current: Key| {
            everywhere
                .iter()
                .filter_map(|identity| self.key_of(identity))
                .any(|key| key != current && key != register.new)
        };
        if register.current.is_some_and(foreign) {
            return Err(Refusal::NotRegistered);
        }
        let is_registered = |identity: &Arc<Identity>| self.key_of(identity).is_some();
        if register.new == Key::NONE {
            return Ok(match everywhere.iter().any(is_registered) {
                true => self.unregister(who, &everywhere, register.persist),
                // SPC-4 §5.9.7: an unregistered nexus that registers no key does nothing, well.
                false => self.effect_of_state(self.clone()),
            });
        }
        if is_registered(&who.identity) {
            self.replace_registration(who, register, &everywhere)
        } else {
            self.add_registration(who, register)
        }
    }

    fn add_registration(
        &self,
        who: &Requester,
        register: &RegistrationRequest,
    ) -> Result<ActionEffect, Refusal> {
        if register.also.len() > REGISTRANTS_MAX {
            return Err(Refusal::NoRegistrationSpace);
        }
        let mut state = self.with_next_generation();
        let own = identities_on_ports(&who.identity, &register.ports);
        for also in register.also.iter().flat_map(|also| identities_on_ports(also, &register.ports)) {
            // Nobody's key is replaced behind its back, on whatever port.
            if !own.contains(&also) && self.key_of(&also).is_some_and(|has| has != register.new) {
                return Err(Refusal::Conflict);
            }
            state.put_registrant(also, register.new)?;
        }
        for identity in own {
            state.put_registrant(identity, register.new)?;
        }
        state.bind_host_nqn(&who.identity, register.nqn.as_ref())?;
        state.set_persist(register.persist);
        Ok(self.effect_of_state(state))
    }

    fn replace_registration(
        &self,
        who: &Requester,
        register: &RegistrationRequest,
        own: &[Arc<Identity>],
    ) -> Result<ActionEffect, Refusal> {
        let mut state = self.with_next_generation();
        for identity in own {
            state.put_registrant(identity.clone(), register.new)?;
        }
        state.bind_host_nqn(&who.identity, register.nqn.as_ref())?;
        state.set_persist(register.persist);
        Ok(self.effect_of_state(state))
    }

    fn unregister(&self, who: &Requester, own: &[Arc<Identity>], persist: Option<bool>) -> ActionEffect {
        let mut state = self.with_next_generation();
        state.registrants.retain(|registrant| !own.contains(&registrant.identity));
        state.set_persist(persist);
        let mut effect = self.effect_of_state(state);
        effect.release_if_orphaned();
        // SPC-4 §5.9.11: who stays registered hears of it if the kind favours registrants.
        if let (Some(held), None) = (&self.held, &effect.state.held)
            && held.kind.grants_registrants_access()
        {
            effect.notify_registrants(&who.identity, NoticeCause::ReservationsReleased);
        }
        // The one who left may do less now.
        effect.drain = self.held.is_some();
        effect
    }

    fn register_and_move(
        &self,
        who: &Requester,
        new: Key,
        to: &Arc<Identity>,
        unregister: bool,
        persist: Option<bool>,
    ) -> Result<ActionEffect, Refusal> {
        // SPC-4 §5.9.8: that nothing is reserved is the CDB's fault.
        let Some(held) = &self.held else { return Err(Refusal::NothingReserved) };
        // SPC-4 §5.9.8: neither an all-registrants reservation nor another's can be moved.
        if held.holder.as_ref() != Some(&who.identity) {
            return Err(Refusal::Conflict);
        }
        // Nor to the initiator port that asks, by whatever target port.
        let to_itself = to.is_same_initiator(&who.identity);
        if new == Key::NONE || to_itself {
            return Err(Refusal::InvalidAction);
        }
        let mut state = self.with_next_generation();
        if unregister {
            state.registrants.retain(|registrant| registrant.identity != who.identity);
        }
        state.put_registrant(to.clone(), new)?;
        state.held = Some(HeldReservation { kind: held.kind, holder: Some(to.clone()) });
        state.set_persist(persist);
        Ok(ActionEffect { drain: true, ..self.effect_of_state(state) })
    }

    fn reserve(&self, who: &Requester, kind: ReservationType) -> Result<ActionEffect, Refusal> {
        match &self.held {
            Some(held) if self.is_holder(&who.identity) && held.kind == kind => {
                Ok(self.effect_of_state(self.clone()))
            }
            Some(_) => Err(Refusal::Conflict),
            None => {
                let mut state = self.clone();
                state.take_reservation(who, kind);
                Ok(ActionEffect { drain: true, ..self.effect_of_state(state) })
            }
        }
    }

    fn take_reservation(&mut self, who: &Requester, kind: ReservationType) {
        let holder = (!kind.is_all_registrants()).then(|| who.identity.clone());
        self.held = Some(HeldReservation { kind, holder });
    }

    fn release(&self, who: &Requester, kind: ReservationType) -> Result<ActionEffect, Refusal> {
        match &self.held {
            Some(held) if self.is_holder(&who.identity) => {
                if held.kind != kind {
                    return Err(Refusal::InvalidRelease);
                }
                let mut effect = self.effect_of_state(Reservations { held: None, ..self.clone() });
                if kind.grants_registrants_access() {
                    effect.notify_registrants(&who.identity, NoticeCause::ReservationsReleased);
                }
                Ok(effect)
            }
            Some(_) | None => Ok(self.effect_of_state(self.clone())),
        }
    }

    fn clear(&self, who: &Requester) -> ActionEffect {
        let mut state = self.with_next_generation();
        state.held = None;
        state.registrants.clear();
        let mut effect = self.effect_of_state(state);
        let others = self.registrants.iter().map(|registrant| &registrant.identity);
        effect.notify(others.filter(|one| **one != who.identity), NoticeCause::ReservationsPreempted);
        effect
    }

    fn preempt(
        &self,
        who: &Requester,
        victim: Key,
        kind: ReservationType,
        abort: bool,
    ) -> Result<ActionEffect, Refusal> {
        let all = self.held.as_ref().is_some_and(|held| held.kind.is_all_registrants());
        // SPC-4 §5.9.11: the reservation changes hands if the key is the holder's, or zero while
        // all registrants hold; then the one who asks keeps its registration.
        let takes = match (self.holder_key(), victim) {
            (Some(_), Key::NONE) if all => true,
            (_, Key::NONE) => return Err(Refusal::InvalidAction),
            (Some(held), victim) => !all && held == victim,
            (None, _) => false,
        };
        let is_victim = |registrant: &Registrant| match victim {
            Key::NONE => registrant.identity != who.identity,
            victim => registrant.key == victim && !(takes && registrant.identity == who.identity),
        };
        if !takes && !self.registrants.iter().any(is_victim) {
            return Err(Refusal::Conflict);
        }
        let victims: Vec<_> =
            self.registrants.iter().filter(|one| is_victim(one)).map(|one| one.identity.clone()).collect();
        let mut state = self.with_next_generation();
        state.registrants.retain(|registrant| !is_victim(registrant));
        if takes {
            state.take_reservation(who, kind);
        }
        let mut effect = ActionEffect { drain: true, ..self.effect_of_state(state) };
        effect.release_if_orphaned();
        effect
            .notify(victims.iter().filter(|one| **one != who.identity), NoticeCause::RegistrationsPreempted);
        let kept =
            effect.state.held.as_ref().map(|held| held.kind) == self.held.as_ref().map(|held| held.kind);
        if !kept {
            // Survivors may do something else than before, or the reservation is gone.
            effect.notify_registrants(&who.identity, NoticeCause::ReservationsReleased);
        }
        if abort {
            effect.abort = victims;
        }
        Ok(effect)
    }

    /// SPC-3 §5.6.3: with registrations about, RESERVE and RELEASE of those whose access is assured
    /// do nothing, well; of others they conflict. `None`: no registrations, SPC-2 holds.
    fn legacy_noop_if_registered(&self, who: &Requester) -> Option<Result<ActionEffect, Refusal>> {
        if self.registrants.is_empty() {
            return None;
        }
        let assured = self.held.as_ref().is_some_and(|held| {
            held.kind.permits(self.role_of(held, &who.identity), crate::io::CommandClass::Write)
        });
        Some(if assured { Ok(self.effect_of_state(self.clone())) } else { Err(Refusal::Conflict) })
    }

    fn legacy_reserve(&self, who: &Requester) -> Result<ActionEffect, Refusal> {
        if let Some(answer) = self.legacy_noop_if_registered(who) {
            return answer;
        }
        match &self.legacy {
            Some(holder) if *holder != who.identity => Err(Refusal::Conflict),
            Some(_) => Ok(self.effect_of_state(self.clone())),
            None => {
                let state = Reservations { legacy: Some(who.identity.clone()), ..self.clone() };
                Ok(ActionEffect { drain: true, ..self.effect_of_state(state) })
            }
        }
    }

    fn legacy_release(&self, who: &Requester) -> Result<ActionEffect, Refusal> {
        if let Some(answer) = self.legacy_noop_if_registered(who) {
            return answer;
        }
        let state = self.without_legacy_reservation_of(Some(&who.identity)).unwrap_or_else(|| self.clone());
        Ok(self.effect_of_state(state))
    }
}

/// An initiator port as it is named on these target ports, and on the one that it is named on.
fn identities_on_ports(identity: &Arc<Identity>, ports: &[PortId]) -> Vec<Arc<Identity>> {
    let mut all = vec![identity.clone()];
    for other in ports.iter().map(|port| identity.with_target_port(*port)) {
        if other != **identity {
            all.push(Arc::new(other));
        }
    }
    all
}

impl ActionEffect {
    /// Ends a reservation whose holder, or whose last registrant, has gone.
    fn release_if_orphaned(&mut self) {
        let orphaned = match &self.state.held {
            Some(HeldReservation { holder: Some(holder), .. }) => self.state.key_of(holder).is_none(),
            Some(HeldReservation { holder: None, .. }) => self.state.registrants.is_empty(),
            None => false,
        };
        if orphaned {
            self.state.held = None;
        }
    }

    fn notify<'a>(&mut self, whom: impl Iterator<Item = &'a Arc<Identity>>, cause: NoticeCause) {
        let whom: Arc<[_]> = whom.cloned().collect();
        if !whom.is_empty() {
            self.notices.push(Notice { to: NoticeReceivers::These(whom), cause });
        }
    }

    /// Tells those who are registered in the new state, but for the one who did it.
    fn notify_registrants(&mut self, doer: &Identity, cause: NoticeCause) {
        let registrants = self.state.registrants.clone();
        self.notify(registrants.iter().map(|one| &one.identity).filter(|one| ***one != *doer), cause);
    }
}
