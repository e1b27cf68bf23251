//! Reservations, over all paths.
//!
//! SCSI knows a registrant by initiator port and target port: each path is registered for itself. NVMe knows
//! the host, whatever path it uses. So a registration goes to every iSCSI path that is up and to one NVMe
//! path; everything else to one path of the best. Paths that come up later are registered by `joining`.

use buf::Cx;
use smallvec::SmallVec;
use volume::reservation::Action;
use volume::{Failure, IoId, Time};

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
    /// Paths to ask, and the one that is asked.
    todo: u32,
    at: Option<u8>,
    deadline: Time,
    found: Option<Claims>,
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
            at: None,
            deadline,
            found: None,
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
        if !first.begun {
            let registers = matches!(first.claim, Claim::Act(Action::Register(_)));
            let todo = if registers { self.registering() } else { 1 << self.best[0] };
            (self.claims[0].todo, self.claims[0].begun) = (todo, true);
        }
        let first = &mut self.claims[0];
        if first.todo == 0 {
            // The paths that were left are down.
            let first = self.claims.remove(0);
            return self.claimed.push_back((first.id, Err(PATH_LOST)));
        }
        let at = first.todo.trailing_zeros() as usize;
        if self.ways[at].path.claim(cx, first.name, first.claim.clone()).is_ok() {
            first.at = Some(at as u8);
            self.touch(at);
        } else {
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

    pub(super) fn claim_ended(
        &mut self,
        cx: &mut Cx<'_>,
        at: usize,
        name: IoId,
        how: Result<Option<Claims>, Fate>,
    ) {
        if self.join_ended(cx.now, at, name, &how) {
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
                if first.todo != 0 {
                    return;
                }
                Ok(first.found.take())
            }
            Err(Fate::Failed(failure)) => Err(failure),
            Err(Fate::NotDone(_)) => {
                // Elsewhere, or here again; at the deadline it is over.
                first.begun = first.todo.count_ones() > 1;
                return;
            }
            Err(Fate::Unknown) if report => {
                first.begun = false;
                return;
            }
            Err(Fate::Unknown) => Err(PATH_LOST),
        };
        let first = self.claims.remove(0);
        if result.is_ok() {
            self.acted(&first.claim);
        }
        self.claimed.push_back((first.id, result));
        self.send_claims(cx);
    }

    /// A path is not up any more.
    pub(super) fn drop_claims(&mut self, at: usize) {
        for claim in &mut self.claims {
            claim.todo &= !(1 << at);
            if claim.todo == 0
                && claim.at.is_none()
                && !matches!(claim.claim, Claim::Act(Action::Register(_)))
            {
                claim.begun = false;
            }
        }
    }

    /// Ends what waits.
    pub(super) fn fail_claims(&mut self) {
        let claims: SmallVec<[Claiming; 4]> = self.claims.drain(..).collect();
        self.claimed.extend(claims.into_iter().map(|claim| (claim.id, Err(PATH_LOST))));
    }

    pub(super) fn expire_claims(&mut self, now: Time) {
        let mut at = 0;
        while let Some(claim) = self.claims.get(at) {
            if claim.deadline <= now {
                let claim = self.claims.remove(at);
                self.claimed.push_back((claim.id, Err(PATH_LOST)));
            } else {
                self.expiry =
                    if claim.deadline == NEVER { self.expiry } else { self.expiry.min(claim.deadline) };
                at += 1;
            }
        }
    }
}
