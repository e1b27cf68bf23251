//! Paths that come up while this host is registered.
//!
//! The host was registered through the paths that were up then. A path that comes up later is a new nexus
//! over iSCSI, or the first of our Host Identifier over NVMe: used without registration, it would conflict
//! with our own reservation. So the volume checks that our registration still exists. Then it registers the
//! path with the same key before it is used, unless the target knows it already. If our key is gone, other
//! hosts have removed it: no path is registered any more.
//!
//! Between the check and the registration another host may preempt us, and neither protocol can combine the
//! two. So the path is registered with the key that it is known to have (REGISTER with the old key, SPC-4
//! §6.16.2; RREGA 0 or 2 without IEKEY, NVMe Base §7.3), and the check is repeated. If only registrations
//! made since then exist, this one is removed.
//!
//! A path that does not serve is not asked: it joins when it begins to serve, also if this host was
//! registered while the path was up. So does a path that was up but not asked when this host was registered,
//! because it was being fenced or was still joining: its checks and requests refer to the previous key.
//!
//! Invariants:
//! - A path carries no operations before that is settled, or the target has refused it, or `queue_timeout`
//!   has passed; a request to the target then still has its time for an answer ([`ANSWER_TIMEOUT_MIN`]).
//! - A path whose registration was requested and not confirmed carries nothing at all: it may undo a
//!   preemption. This is remembered while the path is down.

use std::time::Duration;

use buf::Cx;
use volume::reservation::{Action, Key, RegisterMode, RegistrationRequest};
use volume::{Failure, Identity, IoId, Refusal, Time};

use super::path_slot::{PathSlot, PathSlots};
use super::registration::{KnownKey, PathRegistering, RegisteringStep};
use super::report::PathProblem;
use super::{ANSWER_TIMEOUT_MIN, NEVER, RemoteVolume};
use crate::path::{
    DownReason, IoError, PATHS_MAX, Path, Protocol, Registration, ReservationOp, Reservations,
};

/// A question that is put off is asked again so soon at first, and so late at last.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// How often a path is registered that the target does not show as registered, or refuses for its key.
const REGISTER_TRIES_MAX: u8 = 4;
/// Registrations of ours that are remembered: as many as a volume can have paths.
const KNOWN_REGISTRATIONS_MAX: usize = PATHS_MAX;

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterAction {
    Ask(RegisteringStep),
    /// The path is used.
    Use,
    /// It is not to be used.
    Expel,
}

/// How long to wait before a question that came to nothing is asked again: as long as the path says, and each
/// time longer.
pub(super) fn retry_pause(error: &IoError, pauses: u8) -> Duration {
    let least = match error {
        IoError::NotDone(after) => *after,
        IoError::Failed(_) | IoError::InDoubt => Duration::ZERO,
    };
    // The first time it may be a mere loss of memory or of a race.
    let own = if pauses == 0 { Duration::ZERO } else { RETRY_DELAY_MIN.saturating_mul(1 << pauses.min(7)) };
    least.max(own.min(RETRY_DELAY_MAX))
}

/// How this host is registered.
#[derive(Debug, Default)]
pub(super) struct HostRegistrations {
    /// As it was last, to register paths that come up later in the same way.
    pub(super) registered: Option<RegistrationRequest>,
    /// The path by which a reservation was taken last, if it was not given up since.
    pub(super) holder: Option<usize>,
    /// Registrations of this host that were seen while none was in doubt, as paths of either protocol name them.
    known: KnownRegistrations,
    /// Another host has taken it away, and nobody was told yet.
    pub(super) is_lost: bool,
}

/// Registrations of this host that were seen while none was in doubt, as paths of either protocol name them.
#[derive(Debug, Default)]
struct KnownRegistrations {
    iscsi: Vec<Identity>,
    nvme: Vec<Identity>,
}

impl KnownRegistrations {
    fn of_protocol(&mut self, protocol: Protocol) -> &mut Vec<Identity> {
        match protocol {
            Protocol::Iscsi => &mut self.iscsi,
            Protocol::Nvme => &mut self.nvme,
        }
    }
}

impl<P: Path> RemoteVolume<P> {
    /// A change of our own was made, by the paths of these bits: what we are registered with from now on.
    pub(super) fn note_reservation_change(&mut self, now: Time, request: &ReservationOp, done: u32) {
        let ReservationOp::Change(action) = request else { return };
        match action {
            Action::Register(register) => {
                let gone = register.mode == RegisterMode::Remove || register.new == Key::NONE;
                if self.registrations.registered.as_ref().is_none_or(|before| before.new != register.new) {
                    self.registrations.known = KnownRegistrations::default();
                }
                self.registrations.registered = (!gone).then(|| RegistrationRequest {
                    mode: RegisterMode::Set,
                    current: None,
                    also: Vec::new(),
                    ports: Vec::new(),
                    ..register.clone()
                });
                self.registrations.holder = self.registrations.holder.filter(|_| !gone);
                if !gone {
                    self.register_other_paths(now, done);
                }
            }
            Action::Clear { .. } => (self.registrations.registered, self.registrations.holder) = (None, None),
            Action::Reserve { .. } | Action::Release { .. } | Action::Preempt { .. } => {}
            Action::Move { .. } | Action::Persist { .. } | Action::LegacyReserve | Action::LegacyRelease => {}
        }
    }

    /// This host was registered again by the paths of these bits: those that are up besides are to be registered
    /// likewise.
    fn register_other_paths(&mut self, now: Time, done: u32) {
        let is_host_known =
            (0..self.slots.len()).any(|index| done >> index & 1 == 1 && self.slots.is_nvme(index));
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let asked = slot
                .registering
                .as_mut()
                .filter(|registering| registering.step.outstanding_request().is_some());
            if let Some(registering) = asked {
                // What it is asked may change the target still.
                registering.is_outdated = true;
                continue;
            }
            // What it may still be registered with by an earlier attempt was asked for again.
            slot.unconfirmed = None;
            let is_asked = done >> index & 1 == 1 || is_host_known && slot.path.protocol() == Protocol::Nvme;
            if slot.registering.is_some() || slot.serves() && !is_asked {
                self.start_registering(now, index);
            }
        }
        self.choose_best_paths(now);
    }

    /// A path has come up, or begun to serve.
    pub(super) fn start_registering(&mut self, now: Time, index: usize) {
        let slot = &mut self.slots[index];
        let registers = self.registrations.registered.is_some() || slot.unconfirmed.is_some();
        slot.registering = registers.then_some(PathRegistering {
            step: RegisteringStep::Look,
            until: NEVER,
            asked_until: now,
            not_before: now,
            pauses: 0,
            tries: 0,
            is_done: false,
            is_named: false,
            is_outdated: false,
        });
        self.set_registering_deadline(now, index);
    }

    /// A path that is up has begun to serve, or serves no more.
    pub(super) fn handle_serving_changed(&mut self, now: Time, index: usize) {
        let slot = &self.slots[index];
        match slot.registering {
            None if slot.serves() => self.start_registering(now, index),
            None => {}
            // What was asked is asked still.
            Some(_) => self.set_registering_deadline(now, index),
        }
    }

    /// How long a path waits for its registration is counted from when it serves.
    fn set_registering_deadline(&mut self, now: Time, index: usize) {
        let slot = &mut self.slots[index];
        let until = if slot.serves() { now + self.settings.queue_timeout } else { NEVER };
        let Some(registering) = &mut slot.registering else { return };
        registering.until = until;
        if until != NEVER {
            self.tasks.expiry = self.tasks.expiry.min(until);
        }
    }

    /// Asks what paths that have come up need.
    pub(super) fn send_registering_commands(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            // By a path that does not serve nothing is answered.
            let slot = &mut self.slots[index];
            if !slot.serves() {
                continue;
            }
            let Some(registering) = &mut slot.registering else { continue };
            if registering.not_before > cx.now {
                self.ask_again = self.ask_again.min(registering.not_before);
                self.has_work = true;
                continue;
            }
            let name = IoId(u64::MAX - self.numbers);
            let with = |register: &RegistrationRequest, mode, current, new| {
                ReservationOp::Change(Action::Register(RegistrationRequest {
                    mode,
                    current: Some(current),
                    new,
                    ..register.clone()
                }))
            };
            let is_first = slot.unconfirmed.is_none();
            let (request, next) = match (registering.step, &self.registrations.registered, &slot.unconfirmed)
            {
                (RegisteringStep::Look, ..) => (ReservationOp::Report, RegisteringStep::Looking(name)),
                (RegisteringStep::Register(old), Some(register), _) => {
                    let (mode, current) = match old {
                        KnownKey::Nothing => (RegisterMode::Add, Key::NONE),
                        KnownKey::Key(key) => (RegisterMode::Replace, key),
                    };
                    let request = with(register, mode, current, register.new);
                    (request, RegisteringStep::Registering { name, old, is_first })
                }
                (RegisteringStep::Remove, _, Some(register)) => (
                    with(register, RegisterMode::Remove, register.new, Key::NONE),
                    RegisteringStep::Removing(name),
                ),
                (RegisteringStep::Register(_), None, Some(_)) => {
                    registering.step = RegisteringStep::Remove;
                    self.schedule_retry(cx.now);
                    continue;
                }
                (RegisteringStep::Register(_), None, None) | (RegisteringStep::Remove, _, None) => {
                    self.admit_path(cx.now, index);
                    continue;
                }
                (
                    RegisteringStep::Looking(_)
                    | RegisteringStep::Registering { .. }
                    | RegisteringStep::Removing(_),
                    ..,
                ) => continue,
            };
            if slot.path.submit_reservation_op(cx, name, request).is_ok() {
                (registering.step, registering.asked_until) = (next, cx.now + ANSWER_TIMEOUT_MIN);
                if matches!(next, RegisteringStep::Registering { .. }) {
                    registering.tries += 1;
                    slot.unconfirmed = self.registrations.registered.clone();
                }
                self.numbers += 1;
                self.mark_pending(index);
            } else {
                self.schedule_retry(cx.now);
            }
        }
    }

    /// The answer to such a question; false if it is none.
    pub(super) fn handle_registering_ended(
        &mut self,
        cx: &mut Cx<'_>,
        index: usize,
        name: IoId,
        how: &Result<Option<Reservations>, IoError>,
    ) -> bool {
        let Some(registering) = self.slots[index].registering else { return false };
        let next = match registering.step {
            asked if asked.outstanding_request() == Some(name) && registering.is_outdated => {
                restart_registering(&mut self.slots[index])
            }
            RegisteringStep::Looking(of) if of == name => match how {
                Ok(Some(report)) => self.registrations.handle_registration_report(
                    &mut self.slots,
                    cx.now,
                    index,
                    registering,
                    report,
                ),
                Ok(None) | Err(IoError::Failed(_)) => action_if_unknown(&self.slots[index]),
                Err(IoError::NotDone(_) | IoError::InDoubt) => RegisterAction::Ask(RegisteringStep::Look),
            },
            RegisteringStep::Registering { name: of, old, is_first } if of == name => {
                self.registrations.handle_register_result(&mut self.slots, index, old, is_first, how)
            }
            RegisteringStep::Removing(of) if of == name => match how {
                Ok(_) | Err(IoError::Failed(_)) => {
                    self.slots[index].unconfirmed = None;
                    RegisterAction::Use
                }
                Err(IoError::NotDone(_) | IoError::InDoubt) => RegisterAction::Ask(RegisteringStep::Remove),
            },
            _ => return false,
        };
        self.has_work = true;
        self.events.changed |= std::mem::take(&mut self.registrations.is_lost);
        match (next, &mut self.slots[index].registering) {
            (RegisterAction::Ask(step), Some(registering)) => {
                registering.step = step;
                self.tasks.expiry = self.tasks.expiry.min(registering.until);
                if let Err(error @ (IoError::NotDone(_) | IoError::InDoubt)) = how {
                    registering.not_before = cx.now + retry_pause(error, registering.pauses);
                    registering.pauses = registering.pauses.saturating_add(1);
                }
            }
            (RegisterAction::Ask(_), None) => {}
            (RegisterAction::Use, _) => self.admit_path(cx.now, index),
            (RegisterAction::Expel, _) => self.expel_unregistered(cx, index),
        }
        true
    }

    fn expel_unregistered(&mut self, cx: &mut Cx<'_>, index: usize) {
        self.slots[index].registering = None;
        let why = "the target does not report whether this host is still registered for reservations, and this path may have restored the registration: make it answer PERSISTENT RESERVE IN, or Reservation Report";
        self.expel_path(cx, index, PathProblem::Down(DownReason::Silent(why.to_owned())));
    }

    /// A path is used from now on.
    fn admit_path(&mut self, now: Time, index: usize) {
        self.slots[index].registering = None;
        self.slots[index].state_changed = true;
        self.has_work = true;
        self.choose_best_paths(now);
    }

    /// Uses paths as they are whose time is over; who may be registered without right is not used.
    pub(super) fn settle_overdue_registering(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            match self.slots[index].registering {
                Some(registering) if registering.expires_at() <= cx.now => {
                    match action_if_unknown(&self.slots[index]) {
                        RegisterAction::Expel => self.expel_unregistered(cx, index),
                        RegisterAction::Use | RegisterAction::Ask(_) => self.admit_path(cx.now, index),
                    }
                }
                Some(registering) => self.tasks.expiry = self.tasks.expiry.min(registering.expires_at()),
                None => {}
            }
        }
    }
}

impl HostRegistrations {
    /// What a report says of a path.
    fn handle_registration_report<P: Path>(
        &mut self,
        slots: &mut PathSlots<P>,
        now: Time,
        index: usize,
        registering: PathRegistering,
        report: &Reservations,
    ) -> RegisterAction {
        let unconfirmed = slots[index].unconfirmed.is_some();
        if let Some(registering) = &mut slots[index].registering {
            registering.is_named = report.named;
        }
        let Some(key) = self.registered.as_ref().map(|register| register.new) else {
            return if unconfirmed {
                RegisterAction::Ask(RegisteringStep::Remove)
            } else {
                RegisterAction::Use
            };
        };
        let own = report.registrations.iter().find(|one| one.ours).map(|one| one.key);
        // What was there before is the proof that nobody has taken it away.
        let stood = own == Some(key) && !unconfirmed;
        match stood || self.has_sibling_registration(slots, index, key, report) {
            true => self.remember_registrations(slots, index, key, report),
            false if !report.whole => return action_if_unknown(&slots[index]),
            false if is_report_ambiguous(slots, key, report) => {
                return postpone_decision(&mut slots[index], now);
            }
            false => {
                *self = HostRegistrations { is_lost: true, ..HostRegistrations::default() };
                let slot = &mut slots[index];
                slot.last = Some((now, PathProblem::Preempted));
                return if unconfirmed {
                    RegisterAction::Ask(RegisteringStep::Remove)
                } else {
                    RegisterAction::Use
                };
            }
        }
        match own {
            // Not every report shows what the target has said that it has done; none may show another key.
            _ if own == Some(key) || own.is_none() && registering.is_done => {
                slots[index].unconfirmed = None;
                RegisterAction::Use
            }
            _ if registering.tries >= REGISTER_TRIES_MAX => action_if_unknown(&slots[index]),
            Some(other) => RegisterAction::Ask(RegisteringStep::Register(KnownKey::Key(other))),
            None => RegisterAction::Ask(RegisteringStep::Register(KnownKey::Nothing)),
        }
    }

    /// Whether a registration of this host stands beside those that are in doubt, and the path's own.
    fn has_sibling_registration<P: Path>(
        &self,
        slots: &PathSlots<P>,
        index: usize,
        key: Key,
        report: &Reservations,
    ) -> bool {
        let has = |protocol| slots.iter().any(|slot| slot.path.protocol() == protocol);
        // Of the other protocol's registrations a target does not say whose they are.
        let is_mixed = has(Protocol::Iscsi) && has(Protocol::Nvme);
        let is_kin =
            |one: &&Registration| one.key == key && !one.ours && one.kin.unwrap_or(is_mixed || !report.named);
        let mut kin = report.registrations.iter().filter(is_kin);
        // A path in doubt about another key shows that other key.
        let doubts = |of: &(usize, &PathSlot<P>)| of.1.is_registration_unconfirmed(key);
        if !report.named {
            return kin.count() > slots.iter().enumerate().filter(doubts).count();
        }
        let alone = slots.iter().enumerate().filter(doubts).all(|(other, _)| other == index);
        let known_registrations = match slots[index].path.protocol() {
            Protocol::Iscsi => &self.known.iscsi,
            Protocol::Nvme => &self.known.nvme,
        };
        kin.any(|one| alone || known_registrations.contains(&one.identity))
    }

    /// While no registration is in doubt, all that are seen are ours by right.
    fn remember_registrations<P: Path>(
        &mut self,
        slots: &PathSlots<P>,
        index: usize,
        key: Key,
        report: &Reservations,
    ) {
        if !report.named || slots.iter().any(|slot| slot.is_registration_unconfirmed(key)) {
            return;
        }
        let ours = report.registrations.iter().filter(|one| one.key == key && one.kin != Some(false));
        let known = ours.map(|one| one.identity.clone()).take(KNOWN_REGISTRATIONS_MAX).collect();
        *self.known.of_protocol(slots[index].path.protocol()) = known;
    }

    /// A path was to be registered.
    fn handle_register_result<P: Path>(
        &self,
        slots: &mut PathSlots<P>,
        index: usize,
        old: KnownKey,
        is_first: bool,
        how: &Result<Option<Reservations>, IoError>,
    ) -> RegisterAction {
        let key = self.registered.as_ref().map(|register| register.new);
        let slot = &mut slots[index];
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
                RegisterAction::Ask(RegisteringStep::Look)
            }
            Err(IoError::NotDone(_)) => {
                // It was no try.
                registering.tries = registering.tries.saturating_sub(1);
                RegisterAction::Ask(RegisteringStep::Look)
            }
            Err(IoError::InDoubt) => RegisterAction::Ask(RegisteringStep::Look),
            Err(IoError::Failed(Failure::Refused(Refusal::NotRegistered | Refusal::Conflict)))
                if registering.tries < REGISTER_TRIES_MAX =>
            {
                match key {
                    // Who it is registered for already was not said: with our key, perhaps.
                    Some(key) if !registering.is_named && old == KnownKey::Nothing => {
                        RegisterAction::Ask(RegisteringStep::Register(KnownKey::Key(key)))
                    }
                    Some(_) | None => RegisterAction::Ask(RegisteringStep::Look),
                }
            }
            Err(IoError::Failed(_)) => action_if_unknown(&slots[index]),
        }
    }
}

/// Whether a report that tells keys and not whose they are leaves open if another host has preempted us: a
/// registration that was asked for and not confirmed may be one of those that it counts, or not be there yet.
fn is_report_ambiguous<P: Path>(slots: &PathSlots<P>, key: Key, report: &Reservations) -> bool {
    let ours = report.registrations.iter().filter(|one| one.key == key).count();
    let doubts = || slots.iter().filter(|slot| slot.is_registration_unconfirmed(key));
    let done =
        doubts().filter(|slot| slot.registering.is_some_and(|registering| registering.is_done)).count();
    !report.named && ours > done && done < doubts().count()
}

/// Makes the path's own registration certain, or waits until those of others are.
fn postpone_decision<P: Path>(slot: &mut PathSlot<P>, now: Time) -> RegisterAction {
    let is_unsure = slot.unconfirmed.is_some();
    let Some(registering) = &mut slot.registering else { return RegisterAction::Use };
    if is_unsure && !registering.is_done {
        return match registering.tries < REGISTER_TRIES_MAX {
            true => RegisterAction::Ask(RegisteringStep::Register(KnownKey::Nothing)),
            false => action_if_unknown(slot),
        };
    }
    registering.not_before =
        now + RETRY_DELAY_MIN.saturating_mul(1 << registering.pauses.min(7)).min(RETRY_DELAY_MAX);
    registering.pauses = registering.pauses.saturating_add(1);
    RegisterAction::Ask(RegisteringStep::Look)
}

/// What a path was asked was about another key.
fn restart_registering<P: Path>(slot: &mut PathSlot<P>) -> RegisterAction {
    if let Some(registering) = &mut slot.registering {
        (registering.is_outdated, registering.is_done, registering.tries) = (false, false, 0);
    }
    RegisterAction::Ask(RegisteringStep::Look)
}

/// Whether the path is registered by right cannot be found out.
fn action_if_unknown<P: Path>(slot: &PathSlot<P>) -> RegisterAction {
    if slot.unconfirmed.is_some() { RegisterAction::Expel } else { RegisterAction::Use }
}
