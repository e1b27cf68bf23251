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
use super::terms::Trouble;
use super::{NEVER, RemoteVolume};
use crate::path::{Claim, Claims, Fate, Path, Protocol, Registration, Why};

/// A question that is put off is asked again so soon at first, and so late at last.
const AGAIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a path is registered that the target does not show as registered, or refuses for its key.
const TRIES_MAX: u8 = 4;
/// Registrations of ours that are remembered: as many as a volume can have paths.
const WITNESSES_MAX: usize = super::PATHS_MAX;

/// How far a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joining {
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
    Register(Old),
    /// `is_first`: no registration of it was in doubt before.
    Registering {
        name: IoId,
        old: Old,
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
enum Old {
    Nothing,
    Key(Key),
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    VolumeRequest(Step),
    /// The path is used.
    Use,
    /// It is not to be used.
    Expel,
}

/// Registrations of this host that were seen while none was in doubt, as paths of either protocol name them.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    iscsi: Vec<Identity>,
    nvme: Vec<Identity>,
}

impl Witnesses {
    fn of(&mut self, protocol: Protocol) -> &mut Vec<Identity> {
        match protocol {
            Protocol::Iscsi => &mut self.iscsi,
            Protocol::Nvme => &mut self.nvme,
        }
    }
}

/// How long to wait before a question that came to nothing is asked again: as long as the path says, and each
/// time longer.
pub(super) fn pause(fate: &Fate, pauses: u8) -> Duration {
    let least = match fate {
        Fate::NotDone(after) => *after,
        Fate::Failed(_) | Fate::Unknown => Duration::ZERO,
    };
    // The first time it may be a mere loss of memory or of a race.
    let own = if pauses == 0 { Duration::ZERO } else { AGAIN.saturating_mul(1 << pauses.min(7)) };
    least.max(own.min(PAUSE_MAX))
}

impl<P: Path> RemoteVolume<P> {
    /// A change of our own was made, by the paths of these bits: what we are registered with from now on.
    pub(super) fn acted(&mut self, now: Time, claim: &Claim, done: u32) {
        let Claim::Act(action) = claim else { return };
        match action {
            Action::Register(register) => {
                let gone = register.mode == RegisterMode::Remove || register.new == Key::NONE;
                if self.registered.as_ref().is_none_or(|before| before.new != register.new) {
                    self.witnesses = Witnesses::default();
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
                    self.join_rest(now, done);
                }
            }
            Action::Clear { .. } => (self.registered, self.holder) = (None, None),
            Action::Reserve { .. } | Action::Release { .. } | Action::Preempt { .. } => {}
            Action::Move { .. } | Action::Persist { .. } | Action::LegacyReserve | Action::LegacyRelease => {}
        }
    }

    /// This host was registered again by the paths of these bits: those that are up besides are to be registered
    /// likewise.
    fn join_rest(&mut self, now: Time, done: u32) {
        let is_host_known = (0..self.ways.len()).any(|at| done >> at & 1 == 1 && self.is_nvme(at));
        for at in 0..self.ways.len() {
            let way = &mut self.ways[at];
            let asked = way.joining.as_mut().filter(|joining| joining.step.name().is_some());
            if let Some(joining) = asked {
                // What it is asked may change the target still.
                joining.is_outdated = true;
                continue;
            }
            // What it may still be registered with by an earlier attempt was asked for again.
            way.in_doubt = None;
            let is_asked = done >> at & 1 == 1 || is_host_known && way.path.protocol() == Protocol::Nvme;
            if way.joining.is_some() || way.serves() && !is_asked {
                self.begin_join(now, at);
            }
        }
        self.choose_best(now);
    }

    fn is_nvme(&self, at: usize) -> bool {
        self.ways[at].path.protocol() == Protocol::Nvme
    }

    /// A path has come up, or begun to serve.
    pub(super) fn begin_join(&mut self, now: Time, at: usize) {
        let way = &mut self.ways[at];
        let joins = self.registered.is_some() || way.in_doubt.is_some();
        way.joining = joins.then_some(Joining {
            step: Step::Look,
            until: NEVER,
            not_before: now,
            pauses: 0,
            tries: 0,
            is_done: false,
            is_named: false,
            is_outdated: false,
        });
        self.limit_join(now, at);
    }

    /// A path that is up has begun to serve, or serves no more.
    pub(super) fn turn_join(&mut self, now: Time, at: usize) {
        let way = &self.ways[at];
        match way.joining {
            None if way.serves() => self.begin_join(now, at),
            None => {}
            // What was asked is asked still.
            Some(_) => self.limit_join(now, at),
        }
    }

    /// How long a path waits for its registration is counted from when it serves.
    fn limit_join(&mut self, now: Time, at: usize) {
        let way = &mut self.ways[at];
        let until = if way.serves() { now + self.terms.queue_timeout } else { NEVER };
        let Some(joining) = &mut way.joining else { return };
        joining.until = until;
        if until != NEVER {
            self.expiry = self.expiry.min(until);
        }
    }

    /// Asks what paths that have come up need.
    pub(super) fn send_joins(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.ways.len() {
            let serves = self.ways[at].serves();
            let way = &mut self.ways[at];
            let Some(joining) = way.joining.as_mut().filter(|_| way.state == State::Up) else { continue };
            // By a path that does not serve nothing is answered.
            if way.expelled.is_some() || !serves {
                continue;
            }
            if joining.not_before > cx.now {
                self.ask_again = self.ask_again.min(joining.not_before);
                self.uneasy = true;
                continue;
            }
            let name = IoId(u64::MAX - self.numbers);
            let with = |register: &Register, mode, current, new| {
                Claim::Act(Action::Register(Register {
                    mode,
                    current: Some(current),
                    new,
                    ..register.clone()
                }))
            };
            let is_first = way.in_doubt.is_none();
            let (claim, next) = match (joining.step, &self.registered, &way.in_doubt) {
                (Step::Look, ..) => (Claim::Report, Step::Looking(name)),
                (Step::Register(old), Some(register), _) => {
                    let (mode, current) = match old {
                        Old::Nothing => (RegisterMode::Add, Key::NONE),
                        Old::Key(key) => (RegisterMode::Replace, key),
                    };
                    let claim = with(register, mode, current, register.new);
                    (claim, Step::Registering { name, old, is_first })
                }
                (Step::Remove, _, Some(register)) => {
                    (with(register, RegisterMode::Remove, register.new, Key::NONE), Step::Removing(name))
                }
                (Step::Register(_), None, Some(_)) => {
                    joining.step = Step::Remove;
                    self.ask_again_soon(cx.now);
                    continue;
                }
                (Step::Register(_), None, None) | (Step::Remove, _, None) => {
                    self.joined(cx.now, at);
                    continue;
                }
                (Step::Looking(_) | Step::Registering { .. } | Step::Removing(_), ..) => continue,
            };
            if way.path.claim(cx, name, claim).is_ok() {
                joining.step = next;
                if matches!(next, Step::Registering { .. }) {
                    joining.tries += 1;
                    way.in_doubt = self.registered.clone();
                }
                self.numbers += 1;
                self.touch(at);
            } else {
                self.ask_again_soon(cx.now);
            }
        }
    }

    /// The answer to such a question; false if it is none.
    pub(super) fn join_ended(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        name: IoId,
        how: &Result<Option<Claims>, Fate>,
    ) -> bool {
        let Some(joining) = self.ways[at].joining else { return false };
        let next = match joining.step {
            asked if asked.name() == Some(name) && joining.is_outdated => self.begin_again(at),
            Step::Looking(of) if of == name => match how {
                Ok(Some(report)) => self.looked(cx.now, at, joining, report),
                Ok(None) | Err(Fate::Failed(_)) => self.cannot_tell(at),
                Err(Fate::NotDone(_) | Fate::Unknown) => Next::VolumeRequest(Step::Look),
            },
            Step::Registering { name: of, old, is_first } if of == name => {
                self.tried_to_register(at, old, is_first, how)
            }
            Step::Removing(of) if of == name => match how {
                Ok(_) | Err(Fate::Failed(_)) => {
                    self.ways[at].in_doubt = None;
                    Next::Use
                }
                Err(Fate::NotDone(_) | Fate::Unknown) => Next::VolumeRequest(Step::Remove),
            },
            _ => return false,
        };
        self.uneasy = true;
        match (next, &mut self.ways[at].joining) {
            (Next::VolumeRequest(step), Some(joining)) => {
                joining.step = step;
                if let Err(fate @ (Fate::NotDone(_) | Fate::Unknown)) = how {
                    joining.not_before = cx.now + pause(fate, joining.pauses);
                    joining.pauses = joining.pauses.saturating_add(1);
                }
            }
            (Next::VolumeRequest(_), None) => {}
            (Next::Use, _) => self.joined(cx.now, at),
            (Next::Expel, _) => self.expel_unsettled(cx, at),
        }
        true
    }

    /// What a path was asked was about another key.
    fn begin_again(&mut self, at: usize) -> Next {
        if let Some(joining) = &mut self.ways[at].joining {
            (joining.is_outdated, joining.is_done, joining.tries) = (false, false, 0);
        }
        Next::VolumeRequest(Step::Look)
    }

    /// What a report says of a path.
    fn looked(&mut self, now: Time, at: usize, joining: Joining, report: &Claims) -> Next {
        let in_doubt = self.ways[at].in_doubt.is_some();
        if let Some(joining) = &mut self.ways[at].joining {
            joining.is_named = report.named;
        }
        let Some(key) = self.registered.as_ref().map(|register| register.new) else {
            return if in_doubt { Next::VolumeRequest(Step::Remove) } else { Next::Use };
        };
        let own = report.registrations.iter().find(|one| one.ours).map(|one| one.key);
        // What was there before is the proof that nobody has taken it away.
        let stood = own == Some(key) && !in_doubt;
        match stood || self.stands(at, key, report) {
            true => self.remember(at, key, report),
            false if !report.whole => return self.cannot_tell(at),
            false if self.is_undecided(key, report) => return self.decide_later(now, at),
            false => {
                (self.registered, self.holder) = (None, None);
                self.news.changed = true;
                let way = &mut self.ways[at];
                way.last = Some((now, Trouble::Preempted));
                return if in_doubt { Next::VolumeRequest(Step::Remove) } else { Next::Use };
            }
        }
        match own {
            // Not every report shows what the target has said that it has done; none may show another key.
            _ if own == Some(key) || own.is_none() && joining.is_done => {
                self.ways[at].in_doubt = None;
                Next::Use
            }
            _ if joining.tries >= TRIES_MAX => self.cannot_tell(at),
            Some(other) => Next::VolumeRequest(Step::Register(Old::Key(other))),
            None => Next::VolumeRequest(Step::Register(Old::Nothing)),
        }
    }

    /// Whether a registration of this host stands beside those that are in doubt, and the path's own.
    fn stands(&self, at: usize, key: Key, report: &Claims) -> bool {
        let has = |protocol| self.ways.iter().any(|way| way.path.protocol() == protocol);
        // Of the other protocol's registrations a target does not say whose they are.
        let is_mixed = has(Protocol::Iscsi) && has(Protocol::Nvme);
        let is_kin =
            |one: &&Registration| one.key == key && !one.ours && one.kin.unwrap_or(is_mixed || !report.named);
        let mut kin = report.registrations.iter().filter(is_kin);
        // A path in doubt about another key shows that other key.
        let doubts = |of: &(usize, &super::PathSlot<P>)| of.1.is_in_doubt_about(key);
        if !report.named {
            return kin.count() > self.ways.iter().enumerate().filter(doubts).count();
        }
        let alone = self.ways.iter().enumerate().filter(doubts).all(|(other, _)| other == at);
        let witnesses = match self.ways[at].path.protocol() {
            Protocol::Iscsi => &self.witnesses.iscsi,
            Protocol::Nvme => &self.witnesses.nvme,
        };
        kin.any(|one| alone || witnesses.contains(&one.identity))
    }

    /// Whether a report that tells keys and not whose they are leaves open if another host has preempted us: a
    /// registration that was asked for and not confirmed may be one of those that it counts, or not be there yet.
    fn is_undecided(&self, key: Key, report: &Claims) -> bool {
        let ours = report.registrations.iter().filter(|one| one.key == key).count();
        let doubts = || self.ways.iter().filter(|way| way.is_in_doubt_about(key));
        let done = doubts().filter(|way| way.joining.is_some_and(|joining| joining.is_done)).count();
        !report.named && ours > done && done < doubts().count()
    }

    /// Makes the path's own registration certain, or waits until those of others are.
    fn decide_later(&mut self, now: Time, at: usize) -> Next {
        let way = &mut self.ways[at];
        let is_unsure = way.in_doubt.is_some();
        let Some(joining) = &mut way.joining else { return Next::Use };
        if is_unsure && !joining.is_done {
            return match joining.tries < TRIES_MAX {
                true => Next::VolumeRequest(Step::Register(Old::Nothing)),
                false => self.cannot_tell(at),
            };
        }
        joining.not_before = now + AGAIN.saturating_mul(1 << joining.pauses.min(7)).min(PAUSE_MAX);
        joining.pauses = joining.pauses.saturating_add(1);
        Next::VolumeRequest(Step::Look)
    }

    /// While no registration is in doubt, all that are seen are ours by right.
    fn remember(&mut self, at: usize, key: Key, report: &Claims) {
        if !report.named || self.ways.iter().any(|way| way.is_in_doubt_about(key)) {
            return;
        }
        let ours = report.registrations.iter().filter(|one| one.key == key && one.kin != Some(false));
        let known = ours.map(|one| one.identity.clone()).take(WITNESSES_MAX).collect();
        *self.witnesses.of(self.ways[at].path.protocol()) = known;
    }

    /// A path was to be registered.
    fn tried_to_register(
        &mut self,
        at: usize,
        old: Old,
        is_first: bool,
        how: &Result<Option<Claims>, Fate>,
    ) -> Next {
        let key = self.registered.as_ref().map(|register| register.new);
        let way = &mut self.ways[at];
        let Some(joining) = &mut way.joining else { return Next::Use };
        if !matches!(how, Ok(_) | Err(Fate::Unknown)) && is_first {
            way.in_doubt = None;
        }
        match how {
            // It had our key already, and nobody but it has registered it.
            Ok(_) if is_first && Some(old) == key.map(Old::Key) => {
                way.in_doubt = None;
                Next::Use
            }
            Ok(_) => {
                joining.is_done = true;
                Next::VolumeRequest(Step::Look)
            }
            Err(Fate::NotDone(_)) => {
                // It was no try.
                joining.tries = joining.tries.saturating_sub(1);
                Next::VolumeRequest(Step::Look)
            }
            Err(Fate::Unknown) => Next::VolumeRequest(Step::Look),
            Err(Fate::Failed(Failure::Refused(Refusal::NotRegistered | Refusal::Conflict)))
                if joining.tries < TRIES_MAX =>
            {
                match key {
                    // Who it is registered for already was not said: with our key, perhaps.
                    Some(key) if !joining.is_named && old == Old::Nothing => {
                        Next::VolumeRequest(Step::Register(Old::Key(key)))
                    }
                    Some(_) | None => Next::VolumeRequest(Step::Look),
                }
            }
            Err(Fate::Failed(_)) => self.cannot_tell(at),
        }
    }

    /// Whether the path is registered by right cannot be found out.
    fn cannot_tell(&self, at: usize) -> Next {
        if self.ways[at].in_doubt.is_some() { Next::Expel } else { Next::Use }
    }

    fn expel_unsettled(&mut self, cx: &mut Cx<'_>, at: usize) {
        self.ways[at].joining = None;
        let why = "the target does not say whether this host's registration for reservations still stands, which this path may have brought back: have it answer PERSISTENT RESERVE IN, or Reservation Report";
        self.expel(cx, at, Trouble::Down(Why::Silent(why.to_owned())));
    }

    /// A path is used from now on.
    fn joined(&mut self, now: Time, at: usize) {
        self.ways[at].joining = None;
        self.ways[at].news = true;
        self.uneasy = true;
        self.choose_best(now);
    }

    /// Uses paths as they are whose time is over; who may be registered without right is not used.
    pub(super) fn expire_joins(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.ways.len() {
            match self.ways[at].joining {
                Some(joining) if joining.until <= cx.now => match self.cannot_tell(at) {
                    Next::Expel => self.expel_unsettled(cx, at),
                    Next::Use | Next::VolumeRequest(_) => self.joined(cx.now, at),
                },
                Some(joining) if joining.until != NEVER => self.expiry = self.expiry.min(joining.until),
                Some(_) | None => {}
            }
        }
    }
}
