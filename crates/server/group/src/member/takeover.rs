//! How a member becomes the owner of a group.
//!
//! ```text
//! owner lost → members read again → expelled → blocklisted → own client has the map → term taken → disks locked
//!            → servers of the blocks have the map → records read → served
//! owner None, or oneself (handed over):                      own client has the map → …
//! ```
//!
//! A disk that an instance keeps locked which is neither lost nor the owner (a request of unknown outcome was carried
//! out late) would wait for ever: after the time of silence that instance is expelled and barred too. A client that is no
//! gateway is not barred: the lock is asked for until it is free.
//!
//! Invariants: nothing of the group is executed before the last step; what is read in the last step is read with the
//! map of the fence, so no swap of an earlier owner can come after it; and every server of a block has that map before,
//! so no write of an earlier owner can.

use std::collections::BTreeSet;
use std::time::Duration;

use buf::Time;
use volume::Uuid;

use super::{Group, Member, Output, Phase, RestartCause, Role};
use crate::failpoint::Failpoint;
use crate::ids::{GroupId, InstanceId, MapEpoch, StoreTicket, Term};
use crate::link::{LinkMessage, PathState};
use crate::object::{MembersEdit, Membership, OwnerEdit, Ownership};
use crate::register::RegisterEvent;
use crate::store::{ObjectName, StoreReply, StoreRequest, Waiting};

/// How long an entry of the blocklist lasts: a year.
pub(super) const BLOCKLIST_EXPIRY: Duration = Duration::from_secs(365 * 24 * 3600);

/// A group that is being taken.
#[derive(Clone, Debug)]
pub(super) struct Takeover {
    /// What the owner object said when it began.
    from: Ownership,
    /// Whom to bar: the old owner, or who holds a lock.
    target: Option<InstanceId>,
    /// Whether this instance has the term.
    has_term: bool,
    step: Step,
    /// The map that this instance's client must have.
    fence: MapEpoch,
    /// Who keeps a disk locked, and since when.
    blocked: Option<(InstanceId, Time)>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The members object is read again.
    Confirming,
    /// The old owner is being expelled.
    Expelling,
    /// The old owner is being barred.
    Blocklisting(Ask),
    /// The own client does not have the map yet.
    AwaitingMap(Ask),
    /// The owner object is being changed.
    TakingTerm,
    /// These volumes' disks are not locked yet; where another holds the lock, it is asked for again.
    Locking(VolumeRequests),
    /// Servers of these volumes may not have the map.
    Spreading(VolumeRequests),
    /// Records are being read.
    Loading,
}

/// A request that is repeated until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// When to ask.
    At(Time),
    /// Asked.
    Asked(StoreTicket),
}

/// A request for each of these volumes, repeated until it is done.
#[derive(Clone, Debug)]
struct VolumeRequests {
    /// Volumes for which it is not done.
    left: BTreeSet<Uuid>,
    /// When to ask, or to ask again; `None`: asked.
    again: Option<Time>,
}

impl Takeover {
    /// Whether this instance has the term, so that disks are being locked.
    pub(super) fn has_term(&self) -> bool {
        self.has_term
    }

    /// Whether it is about to bar this instance.
    pub(super) fn will_bar(&self, instance: InstanceId) -> bool {
        let before = matches!(self.step, Step::Confirming | Step::Expelling | Step::Blocklisting(_));
        before && self.target == Some(instance)
    }
}

impl<P: Clone> Member<P> {
    /// What is next for a group.
    pub(super) fn run_group(&mut self, now: Time, id: GroupId) {
        self.owner_events(now, id);
        if self.phase != Phase::Joined {
            return;
        }
        self.record_events(id);
        if self.phase != Phase::Joined {
            return;
        }
        let Some(group) = self.groups.get(&id) else { return };
        if !group.owner.is_fresh() {
            return self.expire_held(now, id);
        }
        if group.owner.damage().is_some() {
            self.close_damaged(now, id);
            self.expire_held(now, id);
            return self.tell_path(now, id);
        }
        self.change_volumes(now, id);
        let Some(group) = self.groups.get(&id) else { return };
        match group.role.clone() {
            Role::Following { claim } => self.follow(now, id, claim),
            Role::Taking(takeover) => self.advance(now, id, takeover),
            Role::Serving => self.consider_drain(now, id),
            Role::HandingOver(handover) => self.advance_handover(now, id, handover),
        }
        self.settle_term(id);
        self.release_held(now, id);
        self.tell_path(now, id);
    }

    fn owner_events(&mut self, now: Time, id: GroupId) {
        while let Some(event) = self.groups.get_mut(&id).and_then(|group| group.owner.poll_event()) {
            match event {
                RegisterEvent::Read => self.owner_read(id),
                RegisterEvent::Settled(OwnerEdit::Take { from, .. }, wrote) => {
                    self.term_settled(id, from, wrote)
                }
                RegisterEvent::Settled(OwnerEdit::HandOver { .. }, _) => self.handed_over(now, id),
                RegisterEvent::Undecidable => self.end(RestartCause::Undecidable),
                RegisterEvent::Damaged(damage) => {
                    self.outputs.push_back(Output::Damaged { object: ObjectName::Owner(id), damage });
                }
            }
            if self.phase == Phase::Ended {
                return;
            }
        }
    }

    /// The owner object was read or changed.
    fn owner_read(&mut self, id: GroupId) {
        let me = self.me;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let value = *group.owner.value();
        let mine = value.owner == Some(me);
        if group.owner.damage().is_some() {
            return;
        }
        let lost = match &group.role {
            Role::Following { .. } => false,
            Role::Taking(takeover) if takeover.has_term => !mine,
            Role::Taking(takeover) => {
                // Another was faster; or this one's swap is done, which is told next.
                if value.term != takeover.from.term && !matches!(takeover.step, Step::TakingTerm) {
                    group.role = Role::Following { claim: None };
                }
                false
            }
            Role::Serving => !mine && !self.store.failpoints.has(Failpoint::OldOwnerKept),
            Role::HandingOver(handover) => !mine && !handover.is_swapping(),
        };
        if lost {
            self.end(RestartCause::TermLost(id));
        }
    }

    fn term_settled(&mut self, id: GroupId, from: Ownership, wrote: Option<u64>) {
        let me = self.me;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Role::Taking(takeover) = &group.role else { return };
        let value = *group.owner.value();
        let taken = wrote.is_some() && value.owner == Some(me) && value.term == Term(from.term.0 + 1);
        group.role = if taken {
            group.fence = takeover.fence;
            Role::Taking(Takeover { has_term: true, step: group.locking(), ..takeover.clone() })
        } else {
            Role::Following { claim: None }
        };
    }

    fn record_events(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        for (volume, record) in &mut group.records {
            while let Some(event) = record.poll_event() {
                match event {
                    RegisterEvent::Read => {}
                    RegisterEvent::Settled(edit, Some(_)) => {
                        let output = Output::RecordStored { volume: *volume, ticket: edit.ticket };
                        self.outputs.push_back(output);
                    }
                    // A later owner has written it, or it is damaged: this one is no owner any more.
                    RegisterEvent::Settled(_, None) => return self.end(RestartCause::TermLost(id)),
                    RegisterEvent::Undecidable => return self.end(RestartCause::Undecidable),
                    RegisterEvent::Damaged(damage) => {
                        let object = ObjectName::Record(*volume);
                        self.outputs.push_back(Output::Damaged { object, damage });
                    }
                }
            }
        }
    }

    fn follow(&mut self, now: Time, id: GroupId, claim: Option<Time>) {
        let Some(group) = self.groups.get(&id) else { return };
        let value = *group.owner.value();
        let wanted = match value.owner {
            Some(owner) if owner == self.me => return self.begin(now, id, value),
            Some(owner) => self.is_lost(now, owner),
            None => true,
        };
        let claim = match (wanted, claim) {
            (false, _) => None,
            (true, Some(at)) if at <= now => return self.begin(now, id, value),
            (true, Some(at)) => Some(at),
            (true, None) => {
                let delay = self.claim_delay(now, id, value.owner);
                if delay.is_zero() {
                    return self.begin(now, id, value);
                }
                Some(now + delay)
            }
        };
        if let Some(at) = claim {
            self.wake_at(at);
        }
        self.set_role(id, Role::Following { claim });
    }

    fn set_role(&mut self, id: GroupId, role: Role) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.role = role;
        }
    }

    /// Begins to take a group from what its owner object says.
    fn begin(&mut self, now: Time, id: GroupId, from: Ownership) {
        let has_term = from.owner == Some(self.me);
        let target = from.owner.filter(|owner| *owner != self.me);
        let step = if target.is_some() {
            self.members.refresh(&mut self.store);
            Step::Confirming
        } else {
            Step::AwaitingMap(Ask::At(now))
        };
        let fence = from.fence;
        self.advance(now, id, Takeover { from, target, has_term, step, fence, blocked: None });
    }

    /// Locks and loads a group that was closed in the same term.
    pub(super) fn lock_again(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (from, fence, step) = (*group.owner.value(), group.fence, group.locking());
        self.advance(now, id, Takeover { from, target: None, has_term: true, step, fence, blocked: None });
    }

    /// Goes on until something must be waited for.
    fn advance(&mut self, now: Time, id: GroupId, mut takeover: Takeover) {
        loop {
            let next = match takeover.step.clone() {
                Step::Confirming => self.confirm(now, &takeover),
                Step::Expelling => self.expel_target(now, &takeover),
                Step::Blocklisting(ask) => self.blocklist(now, id, &mut takeover, ask),
                Step::AwaitingMap(ask) => self.await_map(now, id, &mut takeover, ask),
                Step::TakingTerm => Progress::Wait,
                Step::Locking(requests) => self.lock(now, id, &mut takeover, requests),
                Step::Spreading(requests) => self.spread(now, id, &mut takeover, requests),
                Step::Loading => return self.load(now, id, takeover),
            };
            match next {
                Progress::Wait => return self.set_role(id, Role::Taking(takeover)),
                Progress::Next(step) => takeover.step = step,
                Progress::GiveUp => return self.set_role(id, Role::Following { claim: None }),
            }
        }
    }

    fn confirm(&mut self, now: Time, takeover: &Takeover) -> Progress {
        let Some(owner) = takeover.target else { return Progress::GiveUp };
        if !self.members.is_fresh() {
            return Progress::Wait;
        }
        if !takeover.has_term && !self.is_lost(now, owner) {
            return Progress::GiveUp;
        }
        if self.members.value().membership(owner) == Some(Membership::Joined) {
            let edit = MembersEdit::Expel { by: self.me, lost: owner };
            self.members.change(&mut self.store, edit);
            return Progress::Next(Step::Expelling);
        }
        Progress::Next(Step::Blocklisting(Ask::At(now)))
    }

    fn expel_target(&mut self, now: Time, takeover: &Takeover) -> Progress {
        let Some(owner) = takeover.target else { return Progress::GiveUp };
        match self.members.value().membership(owner) {
            Some(Membership::Joined) if self.members.is_idle() => Progress::GiveUp,
            Some(Membership::Joined) => Progress::Wait,
            Some(Membership::Expelled) | None => Progress::Next(Step::Blocklisting(Ask::At(now))),
        }
    }

    fn blocklist(&mut self, now: Time, id: GroupId, takeover: &mut Takeover, ask: Ask) -> Progress {
        let Some(owner) = takeover.target else { return Progress::GiveUp };
        if self.store.failpoints.has(Failpoint::NoBlocklist) {
            return Progress::Next(Step::AwaitingMap(Ask::At(now)));
        }
        let expires = self.store.failpoints.has(Failpoint::EntryExpires);
        let expiry = if expires { Duration::from_secs(6) } else { BLOCKLIST_EXPIRY };
        let request = StoreRequest::Blocklist { instance: owner, expiry };
        self.ask_when(now, ask, Waiting::Blocklist(id), request, |ask| {
            takeover.step = Step::Blocklisting(ask);
        })
    }

    fn await_map(&mut self, now: Time, id: GroupId, takeover: &mut Takeover, ask: Ask) -> Progress {
        if takeover.fence == MapEpoch(0) || self.store.failpoints.has(Failpoint::NoMapWait) {
            return self.map_reached(id, takeover);
        }
        let request = StoreRequest::AwaitMap(takeover.fence);
        self.ask_when(now, ask, Waiting::Map(id), request, |ask| takeover.step = Step::AwaitingMap(ask))
    }

    /// The client has the map: the term is next, unless this instance has it already.
    fn map_reached(&mut self, id: GroupId, takeover: &Takeover) -> Progress {
        let Some(group) = self.groups.get_mut(&id) else { return Progress::GiveUp };
        if takeover.has_term {
            group.fence = group.fence.max(takeover.fence);
            return Progress::Next(group.locking());
        }
        let edit = OwnerEdit::Take { from: takeover.from, by: self.me, fence: takeover.fence };
        group.owner.change(&mut self.store, edit);
        Progress::Next(Step::TakingTerm)
    }

    fn ask_when(
        &mut self,
        now: Time,
        ask: Ask,
        waiting: Waiting,
        request: StoreRequest,
        asked: impl FnOnce(Ask),
    ) -> Progress {
        match ask {
            Ask::At(at) if at <= now => asked(Ask::Asked(self.store.ask(waiting, request))),
            Ask::At(at) => self.wake_at(at),
            Ask::Asked(_) => {}
        }
        Progress::Wait
    }

    fn lock(
        &mut self,
        now: Time,
        id: GroupId,
        takeover: &mut Takeover,
        mut requests: VolumeRequests,
    ) -> Progress {
        if requests.left.is_empty() {
            let Some(group) = self.groups.get(&id) else { return Progress::GiveUp };
            let bugs = self.store.failpoints;
            // While nobody was ever barred there is no map to learn.
            let needless = takeover.fence == MapEpoch(0) || bugs.has(Failpoint::MapNotSpread);
            let left = if needless { BTreeSet::new() } else { group.records.keys().copied().collect() };
            return Progress::Next(Step::Spreading(VolumeRequests { left, again: Some(now) }));
        }
        if let Some((holder, since)) = takeover.blocked
            && now.since(since) >= self.timing.silence
        {
            (takeover.target, takeover.blocked) = (Some(holder), None);
            self.members.refresh(&mut self.store);
            return Progress::Next(Step::Confirming);
        }
        self.ask_for_volumes(now, &mut requests, |volume| {
            (Waiting::Lock(id, volume), StoreRequest::Lock(volume))
        });
        takeover.step = Step::Locking(requests);
        Progress::Wait
    }

    fn ask_for_volumes(
        &mut self,
        now: Time,
        requests: &mut VolumeRequests,
        request: impl Fn(Uuid) -> (Waiting, StoreRequest),
    ) {
        match requests.again {
            Some(at) if at <= now => {
                for (waiting, request) in requests.left.iter().copied().map(request) {
                    self.store.ask(waiting, request);
                }
                requests.again = None;
            }
            Some(at) => self.wake_at(at),
            None => {}
        }
    }

    /// Lets no write of an earlier owner land any more: whatever was on its way has landed, or is refused.
    fn spread(
        &mut self,
        now: Time,
        id: GroupId,
        takeover: &mut Takeover,
        mut requests: VolumeRequests,
    ) -> Progress {
        if requests.left.is_empty() {
            let Some(group) = self.groups.get_mut(&id) else { return Progress::GiveUp };
            let cached = self.store.failpoints.has(Failpoint::RecordsNotRead);
            let unread = group.records.values_mut().filter(|record| !cached || !record.is_fresh());
            unread.for_each(|record| record.refresh(&mut self.store));
            return Progress::Next(Step::Loading);
        }
        self.ask_for_volumes(now, &mut requests, |volume| {
            (Waiting::Spread(id, volume), StoreRequest::SpreadMap(volume))
        });
        takeover.step = Step::Spreading(requests);
        Progress::Wait
    }

    /// The owner object is damaged: nobody can take the group, and this instance cannot know that it still has it.
    fn close_damaged(&mut self, now: Time, id: GroupId) {
        let role = self.groups.get(&id).map(|group| group.role.clone());
        let closing = match role {
            Some(Role::Serving) => Some(self.begin_handover(now, id, None).closing()),
            Some(Role::HandingOver(handover)) if handover.is_open() => Some(handover.closing()),
            Some(Role::Following { .. } | Role::Taking(_) | Role::HandingOver(_)) | None => None,
        };
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let Some(handover) = closing {
            if !handover.is_quiesced() || !group.is_at_rest() {
                group.role = Role::HandingOver(handover);
                return;
            }
            self.outputs.push_back(Output::Close(id));
        }
        group.role = Role::Following { claim: None };
    }

    fn load(&mut self, now: Time, id: GroupId, takeover: Takeover) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.records.values().any(|record| !record.is_fresh()) {
            return self.set_role(id, Role::Taking(takeover));
        }
        let records = group.records.iter().map(|(volume, record)| {
            let bytes = (record.count() > 0).then(|| record.value().bytes.clone());
            (*volume, record.damage().map_or(Ok(bytes), Err))
        });
        let (term, records) = (group.owner.value().term, records.collect());
        group.role = Role::Serving;
        // Hosts of this gateway may have missed the last notices of the earlier owner.
        if group.notices.0 != term {
            group.notices = (term, 0);
            self.outputs.push_back(Output::NoticesLost(id));
        }
        group.served = term;
        group.snapshots.clear();
        let sequence = group.notices.1;
        self.outputs.push_back(Output::Open { group: id, term, records });
        for link in self.peers.values().filter_map(|peer| peer.link) {
            let message = LinkMessage::NoticesSoFar { group: id, term, sequence };
            self.outputs.push_back(Output::Send { link, message });
        }
        self.balance_at = self.balance_at.max(now + self.timing.retry);
    }

    /// The reply to a blocklisting, or to waiting for the map.
    pub(super) fn fence_reply(&mut self, now: Time, id: GroupId, ticket: StoreTicket, reply: StoreReply) {
        let retry = Ask::At(now + self.timing.retry);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Role::Taking(mut takeover) = group.role.clone() else { return };
        let asked = Ask::Asked(ticket);
        match (&takeover.step, reply) {
            (Step::Blocklisting(ask), StoreReply::Blocklisted(map)) if *ask == asked => {
                self.resets.note_barred(takeover.target, map);
                takeover.fence = takeover.fence.max(map);
                takeover.step = Step::AwaitingMap(Ask::At(now));
            }
            // Who keeps a disk locked cannot be barred: it may be no gateway, and may let go.
            (Step::Blocklisting(ask), _) if *ask == asked && takeover.has_term => {
                (takeover.target, takeover.step) = (None, group.locking_from(now + self.timing.retry));
            }
            (Step::Blocklisting(ask), _) if *ask == asked => takeover.step = Step::Blocklisting(retry),
            (Step::AwaitingMap(ask), StoreReply::Done) if *ask == asked => {
                match self.map_reached(id, &takeover) {
                    Progress::Next(step) => takeover.step = step,
                    Progress::Wait | Progress::GiveUp => {}
                }
            }
            (Step::AwaitingMap(ask), _) if *ask == asked => takeover.step = Step::AwaitingMap(retry),
            _ => return,
        }
        self.set_role(id, Role::Taking(takeover));
    }

    pub(super) fn spread_reply(&mut self, now: Time, id: GroupId, volume: Uuid, reply: StoreReply) {
        let later = now + self.timing.retry;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Role::Taking(Takeover { step: Step::Spreading(requests), .. }) = &mut group.role else {
            return;
        };
        if reply == StoreReply::Done {
            requests.left.remove(&volume);
        } else {
            requests.again = Some(later);
        }
    }

    pub(super) fn lock_reply(&mut self, now: Time, id: GroupId, volume: Uuid, reply: StoreReply) {
        let later = now + self.timing.retry;
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Role::Taking(Takeover { step: Step::Locking(requests), blocked, .. }) = &mut group.role else {
            return;
        };
        match reply {
            StoreReply::Done => {
                requests.left.remove(&volume);
                *blocked = None;
            }
            StoreReply::Locked(holder) => {
                if blocked.is_none_or(|(known, _)| known != holder) {
                    *blocked = Some((holder, now));
                }
                requests.again = Some(later);
            }
            _ => requests.again = Some(later),
        }
    }

    /// Tells hosts how this gateway reaches a group.
    pub(super) fn tell_path(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let owner = group.owner.value().owner;
        let state = match &group.role {
            Role::Serving => PathState::Optimized,
            Role::Following { .. } if group.owner.damage().is_some() => PathState::Transition,
            Role::Following { .. } if owner.is_some_and(|owner| self.link_to(now, owner).is_some()) => {
                PathState::NonOptimized
            }
            Role::Following { .. } | Role::Taking(_) | Role::HandingOver(_) => PathState::Transition,
        };
        if let Some(group) = self.groups.get_mut(&id)
            && group.told.replace(state) != Some(state)
        {
            self.outputs.push_back(Output::Path { group: id, state });
        }
    }
}

impl<P> Group<P> {
    fn locking(&self) -> Step {
        self.locking_from(Time(0))
    }

    fn locking_from(&self, at: Time) -> Step {
        Step::Locking(VolumeRequests { left: self.records.keys().copied().collect(), again: Some(at) })
    }

    /// Whether this instance has the term, or is about to learn that it has it, and does not serve yet.
    pub(super) fn will_serve(&self, me: InstanceId) -> bool {
        match &self.role {
            Role::Taking(takeover) => takeover.has_term,
            Role::Following { .. } => self.owner.value().owner == Some(me),
            Role::Serving | Role::HandingOver(_) => true,
        }
    }
}

/// Whether a step is over.
enum Progress {
    Wait,
    Next(Step),
    GiveUp,
}
