//! Groups change their owner in good order: a drain, and balance over the members.
//!
//! ```text
//! new commands wait → those in execution end → the target closes the group → disks unlocked → term given
//! ```
//! The target may execute commands of its own hosts without this member while a group is optimized. So it is asked to
//! stop that, and the group is not closed before it has answered.
//!
//! Invariant: when the term is given, nothing of this instance is in flight, so it need not be barred. Once a lock was
//! given back there is no way back to serving in the same term.

use std::collections::BTreeSet;

use buf::Time;
use volume::Uuid;

use super::{Member, Output, Phase, Role};
use crate::failpoint::Failpoint;
use crate::ids::{GroupId, InstanceId};
use crate::object::MembersEdit;
use crate::store::{StoreReply, StoreRequest, Waiting};

/// A group that is being handed over.
#[derive(Clone, Debug)]
pub(super) struct Handover {
    /// `None`: to nobody; the group is opened again with other volumes.
    to: Option<InstanceId>,
    stage: Stage,
    /// Which answer of the target counts; `None`: it has come.
    quiescing: Option<u64>,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Commands in execution and records in flight end; given up then.
    Ending { until: Time },
    /// These disks are still locked; asked again then.
    Unlocking { left: BTreeSet<Uuid>, again: Option<Time> },
    /// The owner object is being changed.
    Swapping,
    /// The owner object is damaged: commands in execution and records in flight end; then the group is closed.
    Closing,
}

impl Handover {
    pub(super) fn is_swapping(&self) -> bool {
        matches!(self.stage, Stage::Swapping)
    }

    /// Of a group whose owner object is damaged.
    pub(super) fn closing(self) -> Handover {
        Handover { to: None, stage: Stage::Closing, ..self }
    }

    /// Whether the target executes nothing of its own hosts any more.
    pub(super) fn is_quiesced(&self) -> bool {
        self.quiescing.is_none()
    }

    /// Whether the target has the group open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. } | Stage::Closing)
    }

    /// Whether the group may still be served again.
    fn may_return(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. })
    }
}

impl<P: Clone> Member<P> {
    /// Moves all groups to other members, and takes none: [`Output::Drained`] tells when there are none left.
    pub fn drain(&mut self, now: Time) {
        self.set_draining(now, true);
    }

    /// Takes groups again.
    pub fn undrain(&mut self, now: Time) {
        self.set_draining(now, false);
    }

    fn set_draining(&mut self, now: Time, on: bool) {
        if !self.called(now) {
            return;
        }
        (self.draining, self.drain_told) = (on, false);
        let edit = MembersEdit::Drain { instance: self.me, on };
        self.members.change(&mut self.store, edit);
        self.turn(now);
    }

    /// Expels an instance that the operator knows to be dead or wants out. Its groups are taken, and it is barred.
    pub fn expel(&mut self, now: Time, lost: InstanceId) {
        if self.called(now) {
            self.members.change(&mut self.store, MembersEdit::Expel { by: self.me, lost });
            self.turn(now);
        }
    }

    /// The member to hand a group to: the one that owns least.
    fn successor(&self, now: Time) -> Option<(usize, InstanceId)> {
        let able = self.members.value().joined().filter(|entry| {
            entry.instance != self.me && !entry.draining && self.link_to(now, entry.instance).is_some()
        });
        able.map(|entry| (self.owned(entry.instance), entry.instance)).min()
    }

    /// Hands a served group over if this gateway is being drained.
    pub(super) fn consider_drain(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        if !self.draining {
            return;
        }
        if group.hand_over_from > now {
            let at = group.hand_over_from;
            return self.wake_at(at);
        }
        match self.successor(now) {
            Some((_, to)) => self.hand_over(now, id, to),
            None => self.not_drained(now, id),
        }
    }

    fn not_drained(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let at = now + self.timing.refresh;
        group.hand_over_from = at;
        self.wake_at(at);
        self.outputs.push_back(Output::NotDrained(id));
    }

    fn hand_over(&mut self, now: Time, id: GroupId, to: InstanceId) {
        let handover = self.begin_handover(now, id, Some(to));
        self.advance_handover(now, id, handover);
    }

    /// Has the target stop.
    pub(super) fn begin_handover(&mut self, now: Time, id: GroupId, to: Option<InstanceId>) -> Handover {
        self.numbers += 1;
        let round = self.numbers;
        self.outputs.push_back(Output::Quiesce { group: id, round });
        let stage = Stage::Ending { until: now + self.timing.handover };
        Handover { to, stage, quiescing: Some(round) }
    }

    /// The answer to [`Output::Quiesce`]: all commands have ended that the target had begun for its own hosts.
    pub fn handle_quiesced(&mut self, now: Time, id: GroupId, round: u64) {
        if !self.called(now) {
            return;
        }
        if let Some(Role::HandingOver(handover)) = self.groups.get_mut(&id).map(|group| &mut group.role)
            && handover.quiescing == Some(round)
        {
            handover.quiescing = None;
            self.turn(now);
        }
    }

    /// Closes a group, and opens it again with the volumes that it is to have.
    pub(super) fn reopen(&mut self, now: Time, id: GroupId) {
        let handover = self.begin_handover(now, id, None);
        self.advance_handover(now, id, handover);
    }

    /// Moves one group to a member that owns two fewer, if members have not changed lately.
    pub(super) fn balance(&mut self, now: Time) {
        if self.phase != Phase::Joined || self.draining {
            return;
        }
        if self.balance_at > now {
            let at = self.balance_at;
            return self.wake_at(at);
        }
        let moving = self.groups.values().any(|group| matches!(group.role, Role::HandingOver(_)));
        let Some((fewest, to)) = self.successor(now) else { return };
        if moving || self.owned(self.me) < fewest + 2 {
            return;
        }
        let served = self
            .groups
            .iter()
            .find(|(_, group)| matches!(group.role, Role::Serving) && group.hand_over_from <= now);
        if let Some(id) = served.map(|(id, _)| *id) {
            // The new owner must be known before the next is moved.
            self.balance_at = now + self.timing.refresh;
            self.hand_over(now, id, to);
        }
    }

    pub(super) fn advance_handover(&mut self, now: Time, id: GroupId, mut handover: Handover) {
        let me = self.me;
        let Some(group) = self.groups.get_mut(&id) else { return };
        loop {
            match handover.stage.clone() {
                Stage::Ending { until } => {
                    if !handover.is_quiesced() || !group.is_at_rest() {
                        if until <= now {
                            return self.give_handover_up(now, id);
                        }
                        group.role = Role::HandingOver(handover);
                        return self.wake_at(until);
                    }
                    self.outputs.push_back(Output::Close(id));
                    let gone = group.take_wanted();
                    let left = match handover.to {
                        Some(_) => group.records.keys().copied().chain(gone).collect(),
                        None => gone,
                    };
                    handover.stage = Stage::Unlocking { left, again: Some(now) };
                }
                Stage::Unlocking { left, .. } if left.is_empty() => {
                    if handover.to.is_none() {
                        return self.lock_again(now, id);
                    }
                    let edit = group.hand_over_edit(me, handover.to);
                    handover.stage = Stage::Swapping;
                    group.role = Role::HandingOver(handover);
                    return group.owner.change(&mut self.store, edit);
                }
                Stage::Unlocking { left, again: Some(at) } if at <= now => {
                    for volume in &left {
                        self.store.ask(Waiting::Unlock(id, *volume), StoreRequest::Unlock(*volume));
                    }
                    handover.stage = Stage::Unlocking { left, again: None };
                }
                Stage::Unlocking { again, .. } => {
                    group.role = Role::HandingOver(handover);
                    if let Some(at) = again {
                        self.wake_at(at);
                    }
                    return;
                }
                // The object has been mended meanwhile.
                Stage::Closing => handover.stage = Stage::Ending { until: now + self.timing.handover },
                Stage::Swapping => {
                    group.role = Role::HandingOver(handover);
                    return;
                }
            }
        }
    }

    fn give_handover_up(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.role = Role::Serving;
        group.hand_over_from = now + self.timing.handover * 2;
        if self.draining {
            self.outputs.push_back(Output::NotDrained(id));
        }
        self.wake_at(now + self.timing.handover * 2);
    }

    pub(super) fn unlock_reply(&mut self, now: Time, id: GroupId, volume: Uuid, reply: StoreReply) {
        let later = now + self.timing.retry;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Role::HandingOver(Handover { stage: Stage::Unlocking { left, again }, .. }) = &mut group.role
        else {
            return;
        };
        if reply == StoreReply::Done {
            left.remove(&volume);
        } else {
            *again = Some(later);
        }
    }

    /// The term was given, or had been taken meanwhile.
    pub(super) fn handed_over(&mut self, now: Time, id: GroupId) {
        let me = self.me;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let bug = self.store.failpoints;
        let kept = bug.has(Failpoint::OldOwnerKept)
            || (bug.has(Failpoint::UnknownIsFailed) && group.owner.value().owner == Some(me));
        if kept {
            let term = group.owner.value().term;
            let records = group.records.iter();
            let records = records.map(|(volume, record)| (*volume, Ok(Some(record.value().bytes.clone()))));
            let records = records.collect();
            group.role = Role::Serving;
            group.hand_over_from = now + self.timing.handover * 2;
            return self.outputs.push_back(Output::Open { group: id, term, records });
        }
        group.role = Role::Following { claim: None };
        group.hand_over_from = now;
    }

    /// Tells once that a drained gateway owns nothing.
    pub(super) fn tell_drained(&mut self) {
        let idle = self.groups.values().all(|group| {
            let mine = group.owner.value().owner == Some(self.me) && group.owner.damage().is_none();
            matches!(group.role, Role::Following { .. }) && !mine
        });
        if self.draining && !self.drain_told && idle && self.phase == Phase::Joined {
            self.drain_told = true;
            self.outputs.push_back(Output::Drained);
        }
    }

    /// Whether a command for a group that is being handed over may still be executed here.
    pub(super) fn handover_may_return(&self, id: GroupId) -> bool {
        match self.groups.get(&id).map(|group| &group.role) {
            Some(Role::HandingOver(handover)) => handover.may_return(),
            Some(Role::Following { .. } | Role::Taking(_) | Role::Serving) | None => false,
        }
    }
}
