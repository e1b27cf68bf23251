//! Earlier instances of this gateway are forgotten: their blocklist entries, ranges of controller identifiers, names of
//! hosts, and last their entries in the members object.
//!
//! Invariant: only the gateway's next instance takes an entry off the blocklist, which holds the lock of the state directory, so the earlier
//! process is dead; and not before what that process has sent can no longer arrive ([`Timing::orphan`](super::Timing)).

use std::time::Duration;

use buf::Time;

use super::{Member, Phase};
use crate::failpoint::Failpoint;
use crate::ids::InstanceId;
use crate::object::{AllocationsEdit, MembersEdit, Membership};
use crate::store::{StoreReply, StoreRequest, Waiting};

/// How far a dead predecessor is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Its entry leaves the blocklist.
    Asked,
    /// That was not answered; ask again then.
    Again(Time),
    /// The members and allocations objects forget it.
    Forgetting,
}

impl<P: Clone> Member<P> {
    /// Dead instances of this gateway leave the blocklist, when nothing that they have sent can still arrive.
    pub(super) fn run_removals(&mut self, now: Time) {
        let early = self.store.failpoints.has(Failpoint::EntryRemovedEarly);
        let orphan = if early { Duration::ZERO } else { self.timing.orphan };
        let at = self.started.unwrap_or(now) + orphan;
        let gone = self
            .members
            .value()
            .0
            .iter()
            .filter(|entry| entry.state == self.entry.state && entry.membership == Membership::Expelled);
        let gone: Vec<InstanceId> = gone.map(|entry| entry.instance).collect();
        if gone.is_empty() || self.phase == Phase::Ended {
            return;
        }
        if at > now {
            return self.wake_at(at);
        }
        for instance in gone {
            match self.removals.get(&instance) {
                None => self.ask_removal(instance),
                Some(Removal::Again(at)) if *at <= now => self.ask_removal(instance),
                Some(Removal::Again(at)) => {
                    let at = *at;
                    self.wake_at(at);
                }
                Some(Removal::Asked | Removal::Forgetting) => {}
            }
        }
    }

    /// Forgets an expelled instance of a gateway that never comes back. Its entry stays on the blocklist. `false`: it was
    /// not expelled.
    pub fn forget(&mut self, now: Time, gone: InstanceId) -> bool {
        if !self.called(now) || self.members.value().membership(gone) != Some(Membership::Expelled) {
            return false;
        }
        self.forget_all(gone);
        self.turn(now);
        true
    }

    /// The allocations first: only the members object tells the next instance what is left to forget.
    fn forget_all(&mut self, gone: InstanceId) {
        self.change_allocations(None, AllocationsEdit::Forget(gone));
    }

    /// Nothing is allocated to it any more.
    pub(super) fn forgotten(&mut self, gone: InstanceId) {
        self.members.change(&mut self.store, MembersEdit::Remove(gone));
    }

    fn ask_removal(&mut self, gone: InstanceId) {
        self.removals.insert(gone, Removal::Asked);
        self.store.ask(Waiting::Removal(gone), StoreRequest::RemoveFromBlocklist(gone));
    }

    pub(super) fn removal_reply(&mut self, now: Time, gone: InstanceId, reply: StoreReply) {
        if reply != StoreReply::Done {
            self.removals.insert(gone, Removal::Again(now + self.timing.retry));
            return;
        }
        self.removals.insert(gone, Removal::Forgetting);
        self.forget_all(gone);
    }
}
