//! Paths that come up while this host is registered.
//!
//! Who registered this host did so by the paths that were up. One that comes up later is a nexus of its own
//! over iSCSI, or the first of our Host Identifier over NVMe: used as it is, it would meet our own reservation.
//! So it is looked whether our registration still stands; then the path is registered with the same key before
//! it is used, unless the target knows it already. If our key has gone, others have taken it away: the path is
//! not registered, and nothing is registered any more.
//!
//! Between the look and the registration another host may preempt us, and neither protocol can tie the one to the
//! other. So the path is registered with the key that it is known to have (REGISTER with the old key, SPC-4
//! §6.16.2; RREGA 0 or 2 without IEKEY, NVMe Base §7.3), and it is looked again: if none of our registrations
//! stands but those that were made since, this one is taken back.
//!
//! A path that does not serve is not asked: it joins when it begins to serve, also if this host was registered
//! while it was up already. So does a path that was up and not asked when this host was registered, since it was being
//! fenced or was joining still: what was found of it, and what is under way, is of the key before.
//!
//! Invariants:
//! - No path carries operations before that is settled, or `queue_timeout` is over, or the target has refused it.
//! - A path whose registration was asked for and not confirmed carries nothing at all: it may undo a preemption.
//!   That is remembered while the path is down.

use std::time::Duration;

use buf::Cx;
use volume::reservation::{Action, Key, Register, RegisterMode};
use volume::{Failure, Identity, IoId, Refusal, Time};

use super::path_slot::State;
use super::terms::PathProblem;
use super::{NEVER, RemoteVolume};
use crate::path::{DownReason, IoError, Path, Protocol, Registration, ReservationRequest, Reservations};

/// A question that is put off is asked again so soon at first, and so late at last.
const AGAIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a path is registered that the target does not show as registered, or refuses for its key.
const TRIES_MAX: u8 = 4;
/// Registrations of ours that are remembered: as many as a volume can have paths.
const KNOWN_MAX: usize = super::PATHS_MAX;

/// How far a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registering {
    step: Step,
    /// When it is used as it is; [`NEVER`] while it does not serve.
    until: Time,
    /// Nothing is asked before this time.
    not_before: Time,
    /// How often it was put off.
    pauses: u8,
    /// How often it was registered.
    tries: u8,
    /// The target has said that it is registered.
    is_done: bool,
    /// The last report said whose registrations are.
    is_named: bool,
    /// This host was registered again since it was asked what it is asked now.
    is_outdated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A report is to be asked for.
    Look,
    Looking(IoId),
    /// It is to be registered.
    Register(KnownKey),
    /// `is_first`: no registration of it was in doubt before.
    Registering {
        name: IoId,
        old: KnownKey,
        is_first: bool,
    },
    /// Its registration is to be taken back.
    Remove,
    Removing(IoId),
}

impl Step {
    /// The question that is out.
    fn name(self) -> Option<IoId> {
        match self {
            Step::Looking(name) | Step::Registering { name, .. } | Step::Removing(name) => Some(name),
            Step::Look | Step::Register(_) | Step::Remove => None,
        }
    }
}

/// What the path is known to be registered with; the target refuses its registration if that is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownKey {
    Nothing,
    Key(Key),
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterAction {
    Ask(Step),
    /// The path is used.
    Use,
    /// It is not to be used.
    Expel,
}

/// Registrations of this host that were seen while none was in doubt, as paths of either protocol name them.
#[derive(Debug, Default)]
pub(super) struct KnownRegistrations {
    iscsi: Vec<Identity>,
    nvme: Vec<Identity>,
}

impl KnownRegistrations {
    fn of(&mut self, protocol: Protocol) -> &mut Vec<Identity> {
        match protocol {
            Protocol::Iscsi => &mut self.iscsi,
            Protocol::Nvme => &mut self.nvme,
        }
    }
}

/// How long to wait before a question that came to nothing is asked again: as long as the path says, and each
/// time longer.
pub(super) fn pause(error: &IoError, pauses: u8) -> Duration {
    let least = match error {
        IoError::NotDone(after) => *after,
        IoError::Failed(_) | IoError::InDoubt => Duration::ZERO,
    };
    // The first time it may be a mere loss of memory or of a race.
    let own = if pauses == 0 { Duration::ZERO } else { AGAIN.saturating_mul(1 << pauses.min(7)) };
    least.max(own.min(PAUSE_MAX))
}

impl<P: Path> RemoteVolume<P> {
    /// A change of our own was made, by the paths of these bits: what we are registered with from now on.
    pub(super) fn acted(&mut self, now: Time, request: &ReservationRequest, done: u32) {
        let ReservationRequest::Change(action) = request else { return };
        match action {
            Action::Register(register) => {
                let gone = register.mode == RegisterMode::Remove || register.new == Key::NONE;
                if self.registered.as_ref().is_none_or(|before| before.new != register.new) {
                    self.known_registrations = KnownRegistrations::default();
                }
                self.registered = (!gone).then(|| Register {
                    mode: RegisterMode::Set,
                    current: None,
                    also: Vec::new(),
                    ports: Vec::new(),
                    ..register.clone()
                });
                self.holder = self.holder.filter(|_| !gone);
                if !gone {
                    self.register_rest(now, done);
                }
            }
            Action::Clear { .. } => (self.registered, self.holder) = (None, None),
            Action::Reserve { .. } | Action::Release { .. } | Action::Preempt { .. } => {}
            Action::Move { .. } | Action::Persist { .. } | Action::LegacyReserve | Action::LegacyRelease => {}
        }
    }

    /// This host was registered again by the paths of these bits: those that are up besides are to be registered
    /// likewise.
    fn register_rest(&mut self, now: Time, done: u32) {
        let is_host_known = (0..self.slots.len()).any(|at| done >> at & 1 == 1 && self.is_nvme(at));
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let asked = slot.registering.as_mut().filter(|registering| registering.step.name().is_some());
            if let Some(registering) = asked {
                // What it is asked may change the target still.
                registering.is_outdated = true;
                continue;
            }
            // What it may still be registered with by an earlier attempt was asked for again.
            slot.unconfirmed = None;
            let is_asked = done >> at & 1 == 1 || is_host_known && slot.path.protocol() == Protocol::Nvme;
            if slot.registering.is_some() || slot.serves() && !is_asked {
                self.begin_registering(now, at);
            }
        }
        self.choose_best(now);
    }

    fn is_nvme(&self, at: usize) -> bool {
        self.slots[at].path.protocol() == Protocol::Nvme
    }

    /// A path has come up, or begun to serve.
    pub(super) fn begin_registering(&mut self, now: Time, at: usize) {
        let slot = &mut self.slots[at];
        let registers = self.registered.is_some() || slot.unconfirmed.is_some();
        slot.registering = registers.then_some(Registering {
            step: Step::Look,
            until: NEVER,
            not_before: now,
            pauses: 0,
            tries: 0,
            is_done: false,
            is_named: false,
            is_outdated: false,
        });
        self.limit_registering(now, at);
    }

    /// A path that is up has begun to serve, or serves no more.
    pub(super) fn turn_registering(&mut self, now: Time, at: usize) {
        let slot = &self.slots[at];
        match slot.registering {
            None if slot.serves() => self.begin_registering(now, at),
            None => {}
            // What was asked is asked still.
            Some(_) => self.limit_registering(now, at),
        }
    }

    /// How long a path waits for its registration is counted from when it serves.
    fn limit_registering(&mut self, now: Time, at: usize) {
        let slot = &mut self.slots[at];
        let until = if slot.serves() { now + self.terms.queue_timeout } else { NEVER };
        let Some(registering) = &mut slot.registering else { return };
        registering.until = until;
        if until != NEVER {
            self.expiry = self.expiry.min(until);
        }
    }

    /// Asks what paths that have come up need.
    pub(super) fn send_registrations(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.slots.len() {
            let serves = self.slots[at].serves();
            let slot = &mut self.slots[at];
            let Some(registering) = slot.registering.as_mut().filter(|_| slot.state == State::Up) else {
                continue;
            };
            // By a path that does not serve nothing is answered.
            if slot.expelled.is_some() || !serves {
                continue;
            }
            if registering.not_before > cx.now {
                self.ask_again = self.ask_again.min(registering.not_before);
                self.has_work = true;
                continue;
            }
            let name = IoId(u64::MAX - self.numbers);
            let with = |register: &Register, mode, current, new| {
                ReservationRequest::Change(Action::Register(Register {
                    mode,
                    current: Some(current),
                    new,
                    ..register.clone()
                }))
            };
            let is_first = slot.unconfirmed.is_none();
            let (request, next) = match (registering.step, &self.registered, &slot.unconfirmed) {
                (Step::Look, ..) => (ReservationRequest::Report, Step::Looking(name)),
                (Step::Register(old), Some(register), _) => {
                    let (mode, current) = match old {
                        KnownKey::Nothing => (RegisterMode::Add, Key::NONE),
                        KnownKey::Key(key) => (RegisterMode::Replace, key),
                    };
                    let request = with(register, mode, current, register.new);
                    (request, Step::Registering { name, old, is_first })
                }
                (Step::Remove, _, Some(register)) => {
                    (with(register, RegisterMode::Remove, register.new, Key::NONE), Step::Removing(name))
                }
                (Step::Register(_), None, Some(_)) => {
                    registering.step = Step::Remove;
                    self.ask_again_soon(cx.now);
                    continue;
                }
                (Step::Register(_), None, None) | (Step::Remove, _, None) => {
                    self.registered_now(cx.now, at);
                    continue;
                }
                (Step::Looking(_) | Step::Registering { .. } | Step::Removing(_), ..) => continue,
            };
            if slot.path.request_reservation(cx, name, request).is_ok() {
                registering.step = next;
                if matches!(next, Step::Registering { .. }) {
                    registering.tries += 1;
                    slot.unconfirmed = self.registered.clone();
                }
                self.numbers += 1;
                self.touch(at);
            } else {
                self.ask_again_soon(cx.now);
            }
        }
    }

    /// The answer to such a question; false if it is none.
    pub(super) fn registering_ended(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        name: IoId,
        how: &Result<Option<Reservations>, IoError>,
    ) -> bool {
        let Some(registering) = self.slots[at].registering else { return false };
        let next = match registering.step {
            asked if asked.name() == Some(name) && registering.is_outdated => self.begin_again(at),
            Step::Looking(of) if of == name => match how {
                Ok(Some(report)) => self.looked(cx.now, at, registering, report),
                Ok(None) | Err(IoError::Failed(_)) => self.cannot_tell(at),
                Err(IoError::NotDone(_) | IoError::InDoubt) => RegisterAction::Ask(Step::Look),
            },
            Step::Registering { name: of, old, is_first } if of == name => {
                self.tried_to_register(at, old, is_first, how)
            }
            Step::Removing(of) if of == name => match how {
                Ok(_) | Err(IoError::Failed(_)) => {
                    self.slots[at].unconfirmed = None;
                    RegisterAction::Use
                }
                Err(IoError::NotDone(_) | IoError::InDoubt) => RegisterAction::Ask(Step::Remove),
            },
            _ => return false,
        };
        self.has_work = true;
        match (next, &mut self.slots[at].registering) {
            (RegisterAction::Ask(step), Some(registering)) => {
                registering.step = step;
                if let Err(error @ (IoError::NotDone(_) | IoError::InDoubt)) = how {
                    registering.not_before = cx.now + pause(error, registering.pauses);
                    registering.pauses = registering.pauses.saturating_add(1);
                }
            }
            (RegisterAction::Ask(_), None) => {}
            (RegisterAction::Use, _) => self.registered_now(cx.now, at),
            (RegisterAction::Expel, _) => self.expel_unsettled(cx, at),
        }
        true
    }

    /// What a path was asked was about another key.
    fn begin_again(&mut self, at: usize) -> RegisterAction {
        if let Some(registering) = &mut self.slots[at].registering {
            (registering.is_outdated, registering.is_done, registering.tries) = (false, false, 0);
        }
        RegisterAction::Ask(Step::Look)
    }

    /// What a report says of a path.
    fn looked(
        &mut self,
        now: Time,
        at: usize,
        registering: Registering,
        report: &Reservations,
    ) -> RegisterAction {
        let unconfirmed = self.slots[at].unconfirmed.is_some();
        if let Some(registering) = &mut self.slots[at].registering {
            registering.is_named = report.named;
        }
        let Some(key) = self.registered.as_ref().map(|register| register.new) else {
            return if unconfirmed { RegisterAction::Ask(Step::Remove) } else { RegisterAction::Use };
        };
        let own = report.registrations.iter().find(|one| one.ours).map(|one| one.key);
        // What was there before is the proof that nobody has taken it away.
        let stood = own == Some(key) && !unconfirmed;
        match stood || self.stands(at, key, report) {
            true => self.remember(at, key, report),
            false if !report.whole => return self.cannot_tell(at),
            false if self.is_undecided(key, report) => return self.decide_later(now, at),
            false => {
                (self.registered, self.holder) = (None, None);
                self.events.changed = true;
                let slot = &mut self.slots[at];
                slot.last = Some((now, PathProblem::Preempted));
                return if unconfirmed { RegisterAction::Ask(Step::Remove) } else { RegisterAction::Use };
            }
        }
        match own {
            // Not every report shows what the target has said that it has done; none may show another key.
            _ if own == Some(key) || own.is_none() && registering.is_done => {
                self.slots[at].unconfirmed = None;
                RegisterAction::Use
            }
            _ if registering.tries >= TRIES_MAX => self.cannot_tell(at),
            Some(other) => RegisterAction::Ask(Step::Register(KnownKey::Key(other))),
            None => RegisterAction::Ask(Step::Register(KnownKey::Nothing)),
        }
    }

    /// Whether a registration of this host stands beside those that are in doubt, and the path's own.
    fn stands(&self, at: usize, key: Key, report: &Reservations) -> bool {
        let has = |protocol| self.slots.iter().any(|slot| slot.path.protocol() == protocol);
        // Of the other protocol's registrations a target does not say whose they are.
        let is_mixed = has(Protocol::Iscsi) && has(Protocol::Nvme);
        let is_kin =
            |one: &&Registration| one.key == key && !one.ours && one.kin.unwrap_or(is_mixed || !report.named);
        let mut kin = report.registrations.iter().filter(is_kin);
        // A path in doubt about another key shows that other key.
        let doubts = |of: &(usize, &super::PathSlot<P>)| of.1.is_unconfirmed(key);
        if !report.named {
            return kin.count() > self.slots.iter().enumerate().filter(doubts).count();
        }
        let alone = self.slots.iter().enumerate().filter(doubts).all(|(other, _)| other == at);
        let known_registrations = match self.slots[at].path.protocol() {
            Protocol::Iscsi => &self.known_registrations.iscsi,
            Protocol::Nvme => &self.known_registrations.nvme,
        };
        kin.any(|one| alone || known_registrations.contains(&one.identity))
    }

    /// Whether a report that tells keys and not whose they are leaves open if another host has preempted us: a
    /// registration that was asked for and not confirmed may be one of those that it counts, or not be there yet.
    fn is_undecided(&self, key: Key, report: &Reservations) -> bool {
        let ours = report.registrations.iter().filter(|one| one.key == key).count();
        let doubts = || self.slots.iter().filter(|slot| slot.is_unconfirmed(key));
        let done =
            doubts().filter(|slot| slot.registering.is_some_and(|registering| registering.is_done)).count();
        !report.named && ours > done && done < doubts().count()
    }

    /// Makes the path's own registration certain, or waits until those of others are.
    fn decide_later(&mut self, now: Time, at: usize) -> RegisterAction {
        let slot = &mut self.slots[at];
        let is_unsure = slot.unconfirmed.is_some();
        let Some(registering) = &mut slot.registering else { return RegisterAction::Use };
        if is_unsure && !registering.is_done {
            return match registering.tries < TRIES_MAX {
                true => RegisterAction::Ask(Step::Register(KnownKey::Nothing)),
                false => self.cannot_tell(at),
            };
        }
        registering.not_before = now + AGAIN.saturating_mul(1 << registering.pauses.min(7)).min(PAUSE_MAX);
        registering.pauses = registering.pauses.saturating_add(1);
        RegisterAction::Ask(Step::Look)
    }

    /// While no registration is in doubt, all that are seen are ours by right.
    fn remember(&mut self, at: usize, key: Key, report: &Reservations) {
        if !report.named || self.slots.iter().any(|slot| slot.is_unconfirmed(key)) {
            return;
        }
        let ours = report.registrations.iter().filter(|one| one.key == key && one.kin != Some(false));
        let known = ours.map(|one| one.identity.clone()).take(KNOWN_MAX).collect();
        *self.known_registrations.of(self.slots[at].path.protocol()) = known;
    }

    /// A path was to be registered.
    fn tried_to_register(
        &mut self,
        at: usize,
        old: KnownKey,
        is_first: bool,
        how: &Result<Option<Reservations>, IoError>,
    ) -> RegisterAction {
        let key = self.registered.as_ref().map(|register| register.new);
        let slot = &mut self.slots[at];
        let Some(registering) = &mut slot.registering else { return RegisterAction::Use };
        if !matches!(how, Ok(_) | Err(IoError::InDoubt)) && is_first {
            slot.unconfirmed = None;
        }
        match how {
            // It had our key already, and nobody but it has registered it.
            Ok(_) if is_first && Some(old) == key.map(KnownKey::Key) => {
                slot.unconfirmed = None;
                RegisterAction::Use
            }
            Ok(_) => {
                registering.is_done = true;
                RegisterAction::Ask(Step::Look)
            }
            Err(IoError::NotDone(_)) => {
                // It was no try.
                registering.tries = registering.tries.saturating_sub(1);
                RegisterAction::Ask(Step::Look)
            }
            Err(IoError::InDoubt) => RegisterAction::Ask(Step::Look),
            Err(IoError::Failed(Failure::Refused(Refusal::NotRegistered | Refusal::Conflict)))
                if registering.tries < TRIES_MAX =>
            {
                match key {
                    // Who it is registered for already was not said: with our key, perhaps.
                    Some(key) if !registering.is_named && old == KnownKey::Nothing => {
                        RegisterAction::Ask(Step::Register(KnownKey::Key(key)))
                    }
                    Some(_) | None => RegisterAction::Ask(Step::Look),
                }
            }
            Err(IoError::Failed(_)) => self.cannot_tell(at),
        }
    }

    /// Whether the path is registered by right cannot be found out.
    fn cannot_tell(&self, at: usize) -> RegisterAction {
        if self.slots[at].unconfirmed.is_some() { RegisterAction::Expel } else { RegisterAction::Use }
    }

    fn expel_unsettled(&mut self, cx: &mut Cx<'_>, at: usize) {
        self.slots[at].registering = None;
        let why = "the target does not say whether this host's registration for reservations still stands, which this path may have brought back: have it answer PERSISTENT RESERVE IN, or Reservation Report";
        self.expel(cx, at, PathProblem::Down(DownReason::Silent(why.to_owned())));
    }

    /// A path is used from now on.
    fn registered_now(&mut self, now: Time, at: usize) {
        self.slots[at].registering = None;
        self.slots[at].state_changed = true;
        self.has_work = true;
        self.choose_best(now);
    }

    /// Uses paths as they are whose time is over; who may be registered without right is not used.
    pub(super) fn expire_registering(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.slots.len() {
            match self.slots[at].registering {
                Some(registering) if registering.until <= cx.now => match self.cannot_tell(at) {
                    RegisterAction::Expel => self.expel_unsettled(cx, at),
                    RegisterAction::Use | RegisterAction::Ask(_) => self.registered_now(cx.now, at),
                },
                Some(registering) if registering.until != NEVER => {
                    self.expiry = self.expiry.min(registering.until)
                }
                Some(_) | None => {}
            }
        }
    }
}
