//! Paths that come up while this host is registered.
//!
//! Whoever registered this host did so by the paths that were up. One that comes up later is a nexus of its own
//! over iSCSI, or the first of our Host Identifier over NVMe: used as it is, it would meet our own reservation.
//! So it is looked whether our registration still stands; then the path is registered with the same key before
//! it is used, unless the target knows it already. If our key has gone, others have taken it away: the path is
//! not registered, and nothing is registered any more.
//!
//! Invariant: no path carries operations before that is settled, or `queue_timeout` is over, or the target has
//! refused it.

use buf::Cx;
use volume::reservation::{Action, Key, Register, RegisterMode};
use volume::{IoId, Time};

use super::way::State;
use super::{NEVER, RemoteVolume};
use crate::path::{Claim, Claims, Fate, Path};

/// How far a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joining {
    step: Step,
    /// When it is used as it is.
    until: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A report is to be asked for.
    Look,
    Looking(IoId),
    /// It is to be registered.
    Register,
    Registering(IoId),
}

impl<P: Path> RemoteVolume<P> {
    /// A change of our own was made: what we are registered with from now on.
    pub(super) fn acted(&mut self, claim: &Claim) {
        let Claim::Act(action) = claim else { return };
        match action {
            Action::Register(register) => {
                let gone = register.mode == RegisterMode::Remove || register.new == Key::NONE;
                self.registered = (!gone).then(|| Register {
                    mode: RegisterMode::Set,
                    current: None,
                    also: Vec::new(),
                    ports: Vec::new(),
                    ..register.clone()
                });
            }
            Action::Clear { .. } => self.registered = None,
            Action::Reserve { .. } | Action::Release { .. } | Action::Preempt { .. } => {}
            Action::Move { .. } | Action::Persist { .. } | Action::LegacyReserve | Action::LegacyRelease => {}
        }
    }

    /// A path has come up.
    pub(super) fn begin_join(&mut self, now: Time, at: usize) {
        let until = now + self.terms.queue_timeout;
        let join = self.registered.as_ref().map(|_| Joining { step: Step::Look, until });
        self.ways[at].joining = join;
        if join.is_some() && until != NEVER {
            self.expiry = self.expiry.min(until);
        }
    }

    /// Asks what paths that have come up need.
    pub(super) fn send_joins(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.ways.len() {
            let way = &mut self.ways[at];
            let Some(joining) = way.joining.as_mut().filter(|_| way.state == State::Up) else { continue };
            let name = IoId(u64::MAX - self.numbers);
            let (claim, next) = match (joining.step, &self.registered) {
                (Step::Look, _) => (Claim::Report, Step::Looking(name)),
                (Step::Register, Some(register)) => {
                    (Claim::Act(Action::Register(register.clone())), Step::Registering(name))
                }
                (Step::Register, None) => {
                    self.joined(cx.now, at);
                    continue;
                }
                (Step::Looking(_) | Step::Registering(_), _) => continue,
            };
            if way.path.claim(cx, name, claim).is_ok() {
                joining.step = next;
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
        now: Time,
        at: usize,
        name: IoId,
        how: &Result<Option<Claims>, Fate>,
    ) -> bool {
        let Some(joining) = &mut self.ways[at].joining else { return false };
        let key = self.registered.as_ref().map(|register| register.new);
        let next = match (joining.step, how) {
            (Step::Looking(of), Ok(Some(report))) if of == name => {
                let has = |ours: bool| {
                    report.registrations.iter().any(|one| Some(one.key) == key && (one.ours || !ours))
                };
                if key.is_some() && !has(false) {
                    // Others have taken it away.
                    self.registered = None;
                    self.news.changed = true;
                }
                (has(false) && !has(true)).then_some(Step::Register)
            }
            (Step::Looking(of) | Step::Registering(of), Err(Fate::NotDone(_))) if of == name => {
                Some(if matches!(joining.step, Step::Looking(_)) { Step::Look } else { Step::Register })
            }
            (Step::Registering(of), Err(Fate::Unknown)) if of == name => Some(Step::Look),
            (Step::Looking(of) | Step::Registering(of), _) if of == name => None,
            _ => return false,
        };
        self.uneasy = true;
        match next {
            Some(step) => self.ways[at].joining.as_mut().expect("found above").step = step,
            None => self.joined(now, at),
        }
        true
    }

    /// A path is used from now on.
    fn joined(&mut self, now: Time, at: usize) {
        self.ways[at].joining = None;
        self.ways[at].news = true;
        self.uneasy = true;
        self.choose_best(now);
    }

    /// Uses paths as they are whose time is over.
    pub(super) fn expire_joins(&mut self, now: Time) {
        for at in 0..self.ways.len() {
            match self.ways[at].joining {
                Some(joining) if joining.until <= now => self.joined(now, at),
                Some(joining) if joining.until != NEVER => self.expiry = self.expiry.min(joining.until),
                Some(_) | None => {}
            }
        }
    }
}
