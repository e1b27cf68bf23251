//! Reservations, over all paths.
//!
//! SCSI knows a registrant by initiator port and target port: each path is registered for itself. NVMe knows
//! the host, whatever path it uses. So a registration goes to every iSCSI path that is up and to one NVMe
//! path; everything else to one path of the best. Paths that come up later are registered by `joining`.
//!
//! A reservation is held by the nexus that took it, and a RELEASE by any other succeeds and does nothing
//! (SPC-4 §5.9.11.2): so it goes by the path that holds, and waits for that one if it is down.

use buf::Cx;
use volume::reservation::{Action, Key, RegisterMode};
use volume::{Failure, IoId, Refusal, Time};

use super::joining::pause;
use super::{ABORTED, NEVER, PATH_LOST, RemoteVolume, Stage};
use crate::path::{Claim, Claims, Fate, Path, Protocol};

/// Most claims in work on a volume.
pub const CLAIMS_MAX: usize = 16;

/// A claim that was taken on.
#[derive(Debug)]
pub(super) struct Claiming {
    id: IoId,
    claim: Claim,
    /// The name that paths know it by.
    name: IoId,
    begun: bool,
    /// Paths to ask, those that have done it, and the one that is asked.
    todo: u32,
    done: u32,
    at: Option<u8>,
    deadline: Time,
    /// It is not asked before this time, having been put off so often.
    not_before: Time,
    pauses: u8,
    /// How often a path has not taken it.
    skips: u8,
    found: Option<Claims>,
    /// What a path said that had no registration to be removed.
    absent: Option<Failure>,
}

impl Claiming {
    fn registers(&self) -> bool {
        matches!(self.claim, Claim::Act(Action::Register(_)))
    }

    fn unregisters(&self) -> bool {
        matches!(&self.claim, Claim::Act(Action::Register(register))
            if register.mode == RegisterMode::Remove || register.new == Key::NONE)
    }
}

/// How a claim ended: with what was reported, if that was asked for.
pub type Claimed = (IoId, Result<Option<Claims>, Failure>);

impl<P: Path> RemoteVolume<P> {
    /// Asks something about the volume's reservations; it ends by [`RemoteVolume::poll_claimed`]. `false`: too
    /// many are in work already. What has waited for `queue_timeout` fails, and so does a change whose path
    /// was lost: whether it was made is not known.
    pub fn claim(&mut self, cx: &mut Cx<'_>, id: IoId, claim: Claim) -> bool {
        if self.claims.len() >= CLAIMS_MAX {
            return false;
        }
        let failure = match self.stage {
            Stage::Opening | Stage::Open => None,
            Stage::Failed => Some(PATH_LOST),
            Stage::Closing | Stage::Closed => Some(ABORTED),
        };
        if let Some(failure) = failure {
            self.claimed.push_back((id, Err(failure)));
            return true;
        }
        // Apart from the names of operations.
        let name = IoId(u64::MAX - self.numbers);
        self.numbers += 1;
        let deadline = cx.now + self.terms.queue_timeout;
        self.claims.push(Claiming {
            id,
            claim,
            name,
            begun: false,
            todo: 0,
            done: 0,
            at: None,
            deadline,
            not_before: cx.now,
            pauses: 0,
            skips: 0,
            found: None,
            absent: None,
        });
        self.expiry = self.expiry.min(deadline);
        self.uneasy = true;
        true
    }

    /// A claim that has ended.
    #[must_use]
    pub fn poll_claimed(&mut self) -> Option<Claimed> {
        self.claimed.pop_front()
    }

    /// Sends what waits; one claim at a time, in order.
    pub(super) fn send_claims(&mut self, cx: &mut Cx<'_>) {
        let Some(first) = self.claims.first() else { return };
        if first.at.is_some() || self.best.is_empty() {
            return;
        }
        if first.not_before > cx.now {
            self.ask_again = self.ask_again.min(first.not_before);
            self.uneasy = true;
            return;
        }
        let todo = match first.begun {
            true => Some(first.todo),
            false if first.registers() => Some(self.registering() & !first.done),
            false => self.acting(),
        };
        // The path that holds the reservation is down.
        let (Some(todo), Some(first)) = (todo, self.claims.first_mut()) else { return };
        (first.todo, first.begun) = (todo, true);
        if first.todo == 0 {
            // The paths that were left are down: those that have done it suffice, and they join when they are up.
            let lost = first.absent.unwrap_or(PATH_LOST);
            let result = if first.done != 0 { Ok(first.found.take()) } else { Err(lost) };
            return self.end_claim(cx.now, 0, result);
        }
        let at = first.todo.trailing_zeros() as usize;
        if self.ways[at].path.claim(cx, first.name, first.claim.clone()).is_ok() {
            first.at = Some(at as u8);
            self.touch(at);
        } else {
            // One that takes none for now keeps nothing from going by another that is as good.
            first.begun = first.registers();
            first.skips = first.skips.wrapping_add(1);
            self.ask_again_soon(cx.now);
        }
    }

    /// The paths that a registration goes to.
    fn registering(&self) -> u32 {
        let (mut ways, mut nvme) = (0, false);
        for (at, way) in self.ways.iter().enumerate() {
            let is_nvme = way.path.protocol() == Protocol::Nvme;
            if way.access().is_some() && !(is_nvme && nvme) {
                ways |= 1 << at;
                nvme |= is_nvme;
            }
        }
        ways
    }

    /// The path that anything else goes to; `None`: none of those that it has to go by is up.
    fn acting(&self) -> Option<u32> {
        let claim = self.claims.first()?;
        let turn = usize::from(claim.skips).checked_rem(self.best.len())?;
        let best = self.best.get(turn).map(|&at| usize::from(at))?;
        let holds = |at: usize| {
            self.holder.is_some_and(|holder| {
                let by_host = |at: usize| self.ways[at].path.protocol() == Protocol::Nvme;
                at == holder || by_host(at) && by_host(holder)
            })
        };
        let by_holder = || {
            let up = (0..self.ways.len()).find(|&at| holds(at) && self.ways[at].access().is_some());
            if holds(best) { Some(best) } else { up }
        };
        let at = match &claim.claim {
            Claim::Act(Action::Release { kind, .. })
                if self.holder.is_some() && !kind.is_all_registrants() =>
            {
                by_holder()?
            }
            Claim::Act(Action::Reserve { .. } | Action::Preempt { .. }) => by_holder().unwrap_or(best),
            Claim::Act(_) | Claim::Report => best,
        };
        Some(1 << at)
    }

    /// Ends a claim. Of a registration that some paths have made it is remembered, however it ends.
    fn end_claim(&mut self, now: Time, at: usize, result: Result<Option<Claims>, Failure>) {
        let claim = self.claims.remove(at);
        if result.is_ok() || claim.done != 0 && claim.registers() && !claim.unregisters() {
            self.acted(now, &claim.claim, claim.done);
        }
        self.claimed.push_back((claim.id, result));
    }

    pub(super) fn claim_ended(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        name: IoId,
        how: Result<Option<Claims>, Fate>,
    ) {
        if self.join_ended(cx, at, name, &how) {
            return;
        }
        let Some(first) = self.claims.first_mut() else { return };
        if first.name != name || first.at != Some(at as u8) {
            return;
        }
        self.uneasy = true;
        first.at = None;
        let report = first.claim == Claim::Report;
        let result = match how {
            Ok(found) => {
                first.found = found.or(first.found.take());
                first.todo &= !(1 << at);
                first.done |= 1 << at;
                match first.claim {
                    Claim::Act(Action::Reserve { .. }) => self.holder = Some(at),
                    // It takes the reservation if it was the victim's: ours stays where it is, unless we are it.
                    Claim::Act(Action::Preempt { victim, .. }) => {
                        let is_ours = self.registered.as_ref().is_some_and(|ours| ours.new == victim);
                        self.holder = if is_ours { Some(at) } else { self.holder.or(Some(at)) };
                    }
                    Claim::Act(Action::Release { .. } | Action::Clear { .. }) => self.holder = None,
                    Claim::Act(_) | Claim::Report => {}
                }
                if first.todo != 0 {
                    return;
                }
                Ok(first.found.take())
            }
            // What is to be removed is not there by this path; by another one it may be.
            Err(Fate::Failed(failure @ Failure::Refused(Refusal::NotRegistered | Refusal::Conflict)))
                if first.unregisters() =>
            {
                first.todo &= !(1 << at);
                first.absent = Some(failure);
                if first.todo != 0 {
                    return;
                }
                if first.done != 0 { Ok(None) } else { Err(failure) }
            }
            Err(Fate::Failed(failure)) => Err(failure),
            Err(fate @ Fate::NotDone(_)) => {
                // Elsewhere, or here again; at the deadline it is over.
                first.not_before = cx.now + pause(&fate, first.pauses);
                first.pauses = first.pauses.saturating_add(1);
                first.begun = first.todo.count_ones() > 1;
                return;
            }
            Err(fate @ Fate::Unknown) if report => {
                first.not_before = cx.now + pause(&fate, first.pauses);
                first.pauses = first.pauses.saturating_add(1);
                first.begun = false;
                return;
            }
            Err(Fate::Unknown) => Err(PATH_LOST),
        };
        self.end_claim(cx.now, 0, result);
        self.send_claims(cx);
    }

    /// A path is not up any more.
    pub(super) fn drop_claims(&mut self, at: usize) {
        for claim in &mut self.claims {
            claim.todo &= !(1 << at);
            if claim.todo == 0 && claim.at.is_none() && !claim.registers() {
                claim.begun = false;
            }
        }
    }

    /// Ends what waits.
    pub(super) fn fail_claims(&mut self, now: Time) {
        while !self.claims.is_empty() {
            self.end_claim(now, 0, Err(PATH_LOST));
        }
    }

    pub(super) fn expire_claims(&mut self, now: Time) {
        let mut at = 0;
        while let Some(claim) = self.claims.get(at) {
            if claim.deadline <= now {
                self.end_claim(now, at, Err(PATH_LOST));
            } else {
                self.expiry =
                    if claim.deadline == NEVER { self.expiry } else { self.expiry.min(claim.deadline) };
                at += 1;
            }
        }
    }
}
