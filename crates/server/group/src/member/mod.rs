//! One instance of a gateway in its group: what it decides.
//!
//! The world feeds what happens (`handle_*`, and `submit`, `apply` and other requests) and then takes what is to be
//! done ([`Member::poll_output`]). Time is passed in; there is no other input.
//!
//! Invariants:
//! - A command is executed only by the owner of the group in the current term, after its client of the store has the
//!   map in which all earlier owners that were not heard of are barred.
//! - Each command of a host is answered exactly once, unless the instance ends before ([`Output::Restart`]).
//! - A forward of unknown outcome is answered with [`PathError::InDoubt`] only when it can no longer be carried out.
//! - After [`Output::Restart`] nothing else is put out.

mod claims;
mod config;
mod forwards;
mod handover;
mod layout;
mod numbers;
mod output;
mod peers;
mod removals;
mod resets;
mod takeover;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use buf::Time;
use volume::{Notice, Uuid};

use crate::failpoint::{Failpoint, Failpoints};
use crate::ids::{ExecutionId, GroupId, InstanceId, LinkId, MapEpoch, RequestId, StoreTicket, Term};
use crate::link::{LinkMessage, PathState, Snapshot};
use crate::object::{
    Allocations, Configuration, MemberEntry, Members, MembersEdit, Membership, OwnerEdit, Ownership, Record,
    RecordEdit,
};
use crate::register::{Register, RegisterEvent};
use crate::store::{ObjectName, StoreQueue, StoreReply, Waiting};

pub use config::{MemberConfig, Timing};
pub use forwards::COMMANDS_MAX;
use forwards::{Execution, Forward, Held};
use handover::Handover;
use numbers::Requests;
pub use numbers::{ApplyError, HostBindError, PortError};
pub use output::{Output, RestartCause, SavedRecord};
use peers::Peer;
use removals::Removal;
use resets::Resets;
use takeover::Takeover;

/// An ANA group as this instance sees it.
#[derive(Debug)]
struct Group<P> {
    owner: Register<Ownership>,
    /// Its volumes' records; read when the group is taken, written while it is served.
    records: BTreeMap<Uuid, Register<Record>>,
    /// The volumes that it is to have, if they are others.
    wanted: Option<BTreeSet<Uuid>>,
    role: Role,
    /// Commands of hosts of this gateway, and forwards of others, that wait for the owner, in order.
    held: VecDeque<Held<P>>,
    /// How many commands are being executed here.
    executing: usize,
    /// What hosts were told last.
    told: Option<PathState>,
    /// The term of the notices counted here, and their number: given out as owner, taken otherwise.
    notices: (Term, u64),
    /// The states of its volumes that the target has told in this term, while the group is served here.
    snapshots: BTreeMap<Uuid, Snapshot>,
    /// The latest term of which states of its volumes were heard from another member.
    shown: Term,
    /// The latest term whose owner has said that it serves: by then nothing of an earlier term lands any more.
    served: Term,
    /// The map that this instance's client has waited for while it owned the group.
    fence: MapEpoch,
    /// A handover is not begun before.
    hand_over_from: Time,
}

/// What this instance is to a group.
#[derive(Clone, Debug)]
enum Role {
    /// It follows the owner object. If it means to take the group: since when, and when.
    Following { claim: Option<Time> },
    /// It is on the way to serving.
    Taking(Takeover),
    /// It serves.
    Serving,
    /// It gives the group to another member.
    HandingOver(Handover),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not yet a member.
    Joining,
    /// A member.
    Joined,
    /// Barred, or otherwise at its end.
    Ended,
}

/// One instance of a gateway. `P` is the payload of commands.
#[derive(Debug)]
pub struct Member<P> {
    me: InstanceId,
    entry: MemberEntry,
    timing: Timing,
    phase: Phase,
    store: StoreQueue,
    members: Register<Members>,
    configuration: Register<Configuration>,
    allocations: Register<Allocations>,
    groups: BTreeMap<GroupId, Group<P>>,
    group_of: BTreeMap<Uuid, GroupId>,
    peers: BTreeMap<InstanceId, Peer>,
    links: BTreeMap<LinkId, InstanceId>,
    executions: BTreeMap<ExecutionId, Execution>,
    forwards: BTreeMap<u64, Forward<P>>,
    requests: Requests,
    /// Counts executions and forwards.
    numbers: u64,
    outputs: VecDeque<Output<P>>,
    /// When it was called last: a gap is a pause of this process.
    called: Time,
    started: Option<Time>,
    refresh_at: Time,
    balance_at: Time,
    draining: bool,
    /// Whether the end of a drain was put out.
    drain_told: bool,
    /// Dead instances of this gateway whose blocklist entries are being removed.
    removals: BTreeMap<InstanceId, Removal>,
    resets: Resets,
    configuration_told: u64,
    /// Why it has ended, until that is put out.
    restart: Option<RestartCause>,
    /// The earliest time that something waits for.
    wake: Option<Time>,
}

impl<P: Clone> Member<P> {
    /// An instance that is about to join.
    pub fn new(config: MemberConfig) -> Member<P> {
        Self::build(config, Failpoints::default())
    }

    /// With a planted bug.
    #[cfg(test)]
    pub(crate) fn with_failpoint(config: MemberConfig, on: Option<Failpoint>) -> Member<P> {
        Self::build(config, Failpoints::with(on))
    }

    fn build(config: MemberConfig, failpoints: Failpoints) -> Member<P> {
        let MemberConfig { instance, gateway, state, address, portals, groups, timing } = config;
        let (membership, draining) = (Membership::Joined, false);
        let entry = MemberEntry { instance, gateway, state, address, portals, membership, draining };
        let group_of = groups.iter().flat_map(|(group, volumes)| volumes.iter().map(|one| (*one, *group)));
        Member {
            me: instance,
            entry,
            timing,
            phase: Phase::Joining,
            store: StoreQueue::new(instance, failpoints),
            members: Register::new(ObjectName::Members),
            configuration: Register::new(ObjectName::Configuration),
            allocations: Register::new(ObjectName::Allocations),
            group_of: group_of.collect(),
            groups: groups.into_iter().map(|(group, volumes)| (group, Group::new(group, &volumes))).collect(),
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            executions: BTreeMap::new(),
            forwards: BTreeMap::new(),
            requests: Requests::default(),
            numbers: 0,
            outputs: VecDeque::new(),
            called: Time(0),
            started: None,
            refresh_at: Time(0),
            balance_at: Time(0),
            draining: false,
            drain_told: false,
            removals: BTreeMap::new(),
            resets: Resets::default(),
            configuration_told: 0,
            restart: None,
            wake: None,
        }
    }

    /// Who it is.
    pub fn instance(&self) -> InstanceId {
        self.me
    }

    /// Whether it serves this group, and in which term.
    pub fn serves(&self, group: GroupId) -> Option<Term> {
        let group = self.groups.get(&group)?;
        matches!(group.role, Role::Serving).then(|| group.owner.value().term)
    }

    /// Who owns a group, as far as is known here.
    pub fn ownership(&self, group: GroupId) -> Option<Ownership> {
        self.groups.get(&group).map(|group| *group.owner.value())
    }

    /// The instances that are or were members, as far as is known here.
    pub fn members(&self) -> &[MemberEntry] {
        &self.members.value().0
    }

    /// What is to be done next.
    #[must_use]
    pub fn poll_output(&mut self) -> Option<Output<P>> {
        if self.phase == Phase::Ended {
            return self.restart.take().map(Output::Restart);
        }
        match self.store.poll() {
            Some((ticket, request)) => Some(Output::Store { ticket, request }),
            None => self.outputs.pop_front(),
        }
    }

    /// When [`Member::handle_timeout`] wants to be called, if nothing else is before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.phase == Phase::Ended { None } else { self.wake }
    }

    /// Joins; later: the time that [`Member::poll_timeout`] named has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.called(now) {
            self.turn(now);
        }
    }

    /// The store has replied.
    pub fn handle_reply(&mut self, now: Time, ticket: StoreTicket, reply: StoreReply) {
        if !self.called(now) {
            return;
        }
        let Some(waiting) = self.store.take(ticket) else { return };
        match &reply {
            StoreReply::Fenced => return self.end(RestartCause::Blocklisted),
            StoreReply::Unknown => {}
            _ => self.store.heard = now,
        }
        let (retry, store) = (self.timing.retry, &mut self.store);
        match waiting {
            Waiting::Object(ObjectName::Members) => {
                self.members.handle_reply(now, retry, store, ticket, reply);
            }
            Waiting::Object(ObjectName::Configuration) => {
                self.configuration.handle_reply(now, retry, store, ticket, reply);
            }
            Waiting::Object(ObjectName::Allocations) => {
                self.allocations.handle_reply(now, retry, store, ticket, reply);
            }
            Waiting::Object(ObjectName::Owner(group)) => {
                let Some(group) = self.groups.get_mut(&group) else { return };
                group.owner.handle_reply(now, retry, store, ticket, reply);
            }
            Waiting::Object(ObjectName::Record(volume)) => {
                let group = self.groups.values_mut().find(|group| group.records.contains_key(&volume));
                let Some(record) = group.and_then(|group| group.records.get_mut(&volume)) else { return };
                record.handle_reply(now, retry, store, ticket, reply);
            }
            Waiting::Blocklist(group) | Waiting::Map(group) => self.fence_reply(now, group, ticket, reply),
            Waiting::Spread(group, volume) => self.spread_reply(now, group, volume, reply),
            Waiting::Lock(group, volume) => self.lock_reply(now, group, volume, reply),
            Waiting::Unlock(group, volume) => self.unlock_reply(now, group, volume, reply),
            Waiting::Removal(gone) => self.removal_reply(now, gone, reply),
            Waiting::Departure(gone) => self.departure_reply(now, gone, ticket, reply),
            Waiting::Nobody => return,
        }
        self.turn(now);
    }

    /// An operation on a volume has told that the store has barred this instance.
    pub fn handle_fenced(&mut self, now: Time) {
        if self.called(now) {
            self.end(RestartCause::Blocklisted);
        }
    }

    /// The store tells that an object has changed.
    pub fn handle_notification(&mut self, now: Time, object: ObjectName) {
        if !self.called(now) {
            return;
        }
        let store = &mut self.store;
        match object {
            ObjectName::Members => self.members.poll_store(store),
            ObjectName::Configuration => self.configuration.poll_store(store),
            ObjectName::Allocations => self.allocations.poll_store(store),
            ObjectName::Owner(group) => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.owner.poll_store(store);
                }
            }
            // Only the owner reads and writes it.
            ObjectName::Record(_) => {}
        }
    }

    /// A volume's state is to be made durable: a `volume::StoreOp` of the volume's owner object at this gateway.
    /// `term` is that of the [`Output::Open`] that made the owner object: of any other, or of a group that has been
    /// closed, nothing is written. [`Output::RecordStored`] tells that it is durable; there is none if the group is lost
    /// before.
    pub fn store_record(&mut self, now: Time, volume: Uuid, term: Term, ticket: u64, bytes: &[u8]) {
        if !self.called(now) {
            return;
        }
        let Some(group) = self.groups.values_mut().find(|group| group.records.contains_key(&volume)) else {
            return;
        };
        if term != group.owner.value().term || !group.is_open() {
            return;
        }
        let Some(record) = group.records.get_mut(&volume) else { return };
        if self.store.failpoints.has(Failpoint::AnswerBeforeSwap) {
            self.outputs.push_back(Output::RecordStored { volume, ticket });
        }
        // A later one makes those needless that have not been begun: nobody waits for them.
        record.retain_changes(|_| false);
        record.change(&mut self.store, RecordEdit { term, ticket, bytes: bytes.into() });
        self.turn(now);
    }

    /// The state of a volume that this gateway serves since the [`Output::Open`] of this term, and what the hosts of the
    /// others must hear of. To be told after each `Open`, and with each change.
    pub fn publish(&mut self, now: Time, volume: Uuid, term: Term, snapshot: Snapshot, notices: Vec<Notice>) {
        if !self.called(now) {
            return;
        }
        let found = self.groups.iter_mut().find(|(_, group)| group.records.contains_key(&volume));
        let Some((&id, group)) = found else { return };
        if term != group.owner.value().term || !group.is_open() {
            return;
        }
        group.snapshots.insert(volume, snapshot.clone());
        let links: Vec<LinkId> = self.peers.values().filter_map(|peer| peer.link).collect();
        for link in &links {
            let message = LinkMessage::Snapshot { group: id, term, volume, snapshot: snapshot.clone() };
            self.outputs.push_back(Output::Send { link: *link, message });
        }
        if notices.is_empty() {
            return;
        }
        let sequence = if group.notices.0 == term { group.notices.1 + 1 } else { 1 };
        group.notices = (term, sequence);
        let notices: Arc<[Notice]> = notices.into();
        for link in links {
            let notices = notices.clone();
            let message = LinkMessage::Notices { group: id, term, sequence, volume, notices };
            self.outputs.push_back(Output::Send { link, message });
        }
    }

    /// Begins a call; `false`: the instance is at its end.
    fn called(&mut self, now: Time) -> bool {
        if self.phase == Phase::Ended {
            return false;
        }
        if self.started.is_none() {
            self.start(now);
        } else if now.since(self.called) >= self.timing.silence / 2 {
            self.wake_from_pause(now);
        }
        self.called = self.called.max(now);
        true
    }

    fn start(&mut self, now: Time) {
        self.started = Some(now);
        self.store.heard = now;
        self.refresh_at = now + self.timing.refresh;
        self.balance_at = now + self.timing.balance;
        self.members.refresh(&mut self.store);
        self.configuration.refresh(&mut self.store);
        self.allocations.refresh(&mut self.store);
        for group in self.groups.values_mut() {
            group.owner.refresh(&mut self.store);
        }
        self.members.change(&mut self.store, MembersEdit::Join(self.entry.clone()));
    }

    /// This process did not run: what others have sent meanwhile has not been taken yet, so no silence is theirs.
    fn wake_from_pause(&mut self, now: Time) {
        self.peers.values_mut().for_each(|peer| peer.heard = now);
        self.store.heard = now;
    }

    /// The instance must not go on.
    fn end(&mut self, cause: RestartCause) {
        if self.phase != Phase::Ended {
            self.restart = Some(cause);
        }
        self.phase = Phase::Ended;
        self.store.clear();
        self.outputs.clear();
        self.forwards.clear();
        self.executions.clear();
        self.resets = Resets::default();
        self.groups.values_mut().for_each(|group| group.held.clear());
    }

    fn wake_at(&mut self, at: Time) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Works until there is nothing left to do.
    fn turn(&mut self, now: Time) {
        self.wake = None;
        self.read_again(now);
        self.run_members(now);
        if self.phase == Phase::Ended {
            return;
        }
        self.run_numbers();
        if self.phase == Phase::Ended {
            return;
        }
        self.run_peers(now);
        self.run_removals(now);
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for group in groups {
            self.run_group(now, group);
            if self.phase == Phase::Ended {
                return;
            }
        }
        self.run_resets(now);
        self.balance(now);
        self.tell_drained();
        self.collect_timeouts();
    }

    fn read_again(&mut self, now: Time) {
        let due = self.refresh_at <= now;
        if due {
            self.refresh_at = now + self.timing.refresh;
            self.members.poll_store(&mut self.store);
            self.configuration.poll_store(&mut self.store);
            self.allocations.poll_store(&mut self.store);
        }
        let store = &mut self.store;
        self.members.handle_timeout(now, store);
        self.configuration.handle_timeout(now, store);
        self.allocations.handle_timeout(now, store);
        for group in self.groups.values_mut() {
            if due {
                group.owner.poll_store(store);
            }
            group.owner.handle_timeout(now, store);
            group.records.values_mut().for_each(|record| record.handle_timeout(now, store));
        }
        self.wake_at(self.refresh_at);
    }

    fn collect_timeouts(&mut self) {
        let objects =
            [self.members.poll_timeout(), self.configuration.poll_timeout(), self.allocations.poll_timeout()];
        let groups = self.groups.values().flat_map(|group| {
            let records = group.records.values().filter_map(Register::poll_timeout);
            let held = group.held.front().map(|held| held.until);
            group.owner.poll_timeout().into_iter().chain(records).chain(held)
        });
        let first = objects.into_iter().flatten().chain(groups).min();
        if let Some(at) = first {
            self.wake_at(at);
        }
    }

    fn run_members(&mut self, now: Time) {
        while let Some(event) = self.members.poll_event() {
            match event {
                RegisterEvent::Read => self.members_changed(now),
                // It joins when a dead instance of its gateway has been forgotten.
                RegisterEvent::Settled(MembersEdit::Join(_), None)
                    if self.members.value().has_all_of(self.entry.state) => {}
                RegisterEvent::Settled(MembersEdit::Remove(_), _) if self.phase == Phase::Joining => {
                    self.members.change(&mut self.store, MembersEdit::Join(self.entry.clone()));
                }
                RegisterEvent::Settled(MembersEdit::Join(_), None) => {
                    let named = self.members.value().names_another(&self.entry);
                    let cause = if named { RestartCause::NameTaken } else { RestartCause::NoMemberSpace };
                    return self.end(cause);
                }
                RegisterEvent::Settled(..) => {}
                RegisterEvent::Undecidable => return self.end(RestartCause::Undecidable),
                RegisterEvent::Damaged(damage) => {
                    return self.end(RestartCause::Damaged(ObjectName::Members, damage));
                }
            }
            if self.phase == Phase::Ended {
                return;
            }
        }
    }

    fn members_changed(&mut self, now: Time) {
        let mine = self.members.value().membership(self.me);
        match (self.phase, mine) {
            (Phase::Joining, Some(Membership::Joined)) => {
                self.phase = Phase::Joined;
                self.want_range();
            }
            (Phase::Joining, None) | (Phase::Joined, Some(Membership::Joined)) => {}
            (Phase::Joining | Phase::Joined, Some(Membership::Expelled)) | (Phase::Joined, None) => {
                return self.end(RestartCause::Expelled);
            }
            (Phase::Ended, _) => return,
        }
        self.update_peers(now);
    }

    /// What it is to each group, for a test that fails.
    #[cfg(test)]
    pub(crate) fn roles(&self) -> String {
        let roles =
            self.groups.iter().map(|(id, group)| format!("{id} {:?} {:?}", group.role, group.owner.value()));
        format!("{:?} {:?}", self.phase, roles.collect::<Vec<_>>())
    }

    /// Answers a request of the operator or of the target.
    fn reply_to(&mut self, id: RequestId, output: impl FnOnce(RequestId) -> Output<P>) {
        self.outputs.push_back(output(id));
    }
}

impl<P> Group<P> {
    fn new(group: GroupId, volumes: &[Uuid]) -> Group<P> {
        let records = volumes.iter().map(|volume| (*volume, Register::new(ObjectName::Record(*volume))));
        Group {
            owner: Register::new(ObjectName::Owner(group)),
            records: records.collect(),
            wanted: None,
            role: Role::Following { claim: None },
            held: VecDeque::new(),
            executing: 0,
            told: None,
            notices: (Term(0), 0),
            snapshots: BTreeMap::new(),
            shown: Term(0),
            served: Term(0),
            fence: MapEpoch(0),
            hand_over_from: Time(0),
        }
    }

    /// Whether the target has the group open: what it executes or stores is of the present term.
    fn is_open(&self) -> bool {
        match &self.role {
            Role::Serving => true,
            Role::HandingOver(handover) => handover.is_open(),
            Role::Following { .. } | Role::Taking(_) => false,
        }
    }

    /// Whether nothing of it is executed for this member, and no record is being written.
    fn is_at_rest(&self) -> bool {
        self.executing == 0 && self.records.values().all(Register::is_idle)
    }

    fn hand_over_edit(&self, from: InstanceId, to: Option<InstanceId>) -> OwnerEdit {
        OwnerEdit::HandOver { term: self.owner.value().term, from, to, fence: self.fence }
    }
}
