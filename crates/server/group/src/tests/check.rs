//! What must hold in every history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sim::linearizability::{History, Operation, OperationKind};
use volume::{CommandClass, Identity, Notice, Uuid};

use super::cluster::Cluster;
use super::target::{BlockIo, restore};
use crate::ids::{GroupId, InstanceId, Term};
use crate::link::PathError;
use crate::member::SavedRecord;
use crate::object::{Members, Membership, Ownership, Record};
use crate::register::peek;
use crate::store::ObjectName;

testkit::tally! {
    pub(super) struct Tally {
        /// Groups that were taken from a lost owner.
        takeovers,
        /// Groups that were handed over in good order.
        handovers,
        /// Instances that found themselves expelled or barred.
        fenced,
        /// Reads and writes that succeeded.
        good,
        /// Requests that succeeded on a volume that came while its group was served.
        second,
        /// Reads and writes that went through another gateway.
        forwarded,
        /// Reservation requests that succeeded.
        reservations,
        /// Preemptions after which the loser could not write.
        fences,
        /// Commands answered as in doubt.
        in_doubt,
        /// Commands refused because of another's reservation.
        conflicts,
        /// Requests to the store of unknown outcome.
        unknown,
        /// Writes and swaps of barred instances that the store refused.
        refused,
        /// Notices that reached hosts of other gateways.
        notices,
        /// Configurations applied.
        applied,
        /// Controllers of lost gateways of which it was told that they are gone.
        resets,
        /// Checks of order that were given up.
        undecided,
        /// Histories in which every group was served at the end.
        whole,
    }
}

/// A command of a host whose answer has not come.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) host: u8,
    pub(super) begin: u64,
    pub(super) volume: Uuid,
    pub(super) what: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ask {
    Read(u64),
    Write(u64, u64),
    Register(u64),
    Reserve,
    Preempt { victim: u8 },
    Unregister,
}

/// A host by the record of a volume that stands.
#[derive(Debug, Default)]
struct Standing {
    key: Option<u64>,
    /// Whether it may not write.
    shut_out: bool,
    /// Whether it holds the reservation.
    holds: bool,
    hold_lost: Vec<u64>,
    /// How many requests may have taken its registration away.
    asked_to_lose: usize,
    key_lost: Vec<u64>,
    right_lost: Vec<u64>,
}

/// Notices that one member sent to the others.
#[derive(Debug)]
struct SentNotices {
    group: GroupId,
    term: Term,
    sequence: u64,
    /// Kept, so that no others lie at their place.
    _notices: Arc<[Notice]>,
}

#[derive(Debug, Default)]
pub(super) struct Checks {
    pub(super) tally: Tally,
    histories: BTreeMap<Uuid, History>,
    owners: BTreeMap<(GroupId, Term), InstanceId>,
    /// The latest term whose owner has read or written at a server.
    touched: BTreeMap<(usize, Uuid), Term>,
    landed: BTreeSet<u64>,
    /// Values that must never be written any more: refused, or given up.
    dead: BTreeMap<u64, &'static str>,
    /// Writes answered as in doubt.
    doubtful: BTreeSet<u64>,
    /// Writes of gateways that have ended without an answer.
    lost: BTreeMap<InstanceId, Vec<u64>>,
    /// Hosts that were preempted, until a record admits them again.
    fenced: BTreeSet<(Uuid, u8)>,
    /// The latest term that was served while it was the group's.
    served: BTreeMap<GroupId, Term>,
    standing: BTreeMap<(Uuid, u8), Standing>,
    /// Keys that a record has had, and those that were taken away: each is registered by one request.
    keys: BTreeSet<u64>,
    gone: BTreeSet<u64>,
    pub(super) terms: BTreeMap<GroupId, Term>,
    ranges: BTreeMap<u16, InstanceId>,
    ports: BTreeMap<u8, u16>,
    bound: BTreeMap<u8, Vec<(InstanceId, u8)>>,
    /// Notices that were sent, by where they lie in memory.
    sent: BTreeMap<usize, SentNotices>,
    /// The last notice that each instance passed on to its hosts, unless it said that some may be missing.
    heard: BTreeMap<(InstanceId, GroupId), Option<(Term, u64)>>,
    configurations: BTreeMap<u64, Arc<[u8]>>,
    versions: BTreeSet<u64>,
}

/// Hosts are numbered from 1.
pub(super) const HOSTS_MAX: u8 = 4;

pub(super) fn host(host: u8) -> Arc<Identity> {
    Arc::new(Identity::Host([host; 16]))
}

impl Checks {
    fn history(&mut self, volume: Uuid) -> &mut History {
        self.histories.entry(volume).or_insert_with(|| History::new(0))
    }

    /// A server has executed a read or write of a volume.
    pub(super) fn block_executed(&mut self, group: GroupId, by: InstanceId, io: &BlockIo) {
        let server = Cluster::server_of(io.volume, io.lba);
        let touched = self.touched.entry((server, io.volume)).or_default();
        let known = *touched;
        *touched = known.max(io.term);
        let Some(value) = io.value else { return };
        assert!(io.term >= known, "stale block: {io:?} of {by} after one of term {known}");
        let served = self.served.get(&group).copied().unwrap_or_default();
        let owner = *self.owners.entry((group, io.term)).or_insert(by);
        assert!(owner == by, "two owners write in term {} of group {group}: {owner} and {by}", io.term);
        assert!(self.landed.insert(value), "written twice: {io:?}");
        if let Some(why) = self.dead.get(&value) {
            panic!("a write that was {why} is written: {io:?}");
        }
        assert!(!self.doubtful.contains(&value), "written after it was answered as in doubt: {io:?}");
        let fenced = self.fenced.contains(&(io.volume, io.host));
        assert!(!fenced, "a write of a preempted host after GOOD: {io:?}");
        assert!(io.term >= served, "stale block: {io:?} of {by} while term {served} is served");
    }

    /// An owner begins to serve a group.
    pub(super) fn opened(
        &mut self,
        cluster: &Cluster,
        by: InstanceId,
        (group, term): (GroupId, Term),
        records: &[(Uuid, SavedRecord)],
    ) {
        let heard = self.heard.get(&(by, group)).copied().flatten();
        let told = heard.is_none_or(|(last, _)| last == term);
        assert!(told, "notices of group {group} may be missing at its new owner {by}: {heard:?}, {term}");
        // One that was replaced while it was stopped reads and writes nothing.
        if self.terms.get(&group) != Some(&term) {
            return;
        }
        for (volume, record) in records {
            let stands = cluster.record(*volume).map(|record| record.bytes);
            let same = record.as_ref().map_or(true, |record| *record == stands);
            assert!(same, "stale record: volume {volume} is opened in term {term} by {by}");
        }
        self.served.insert(group, term);
    }

    /// A host has sent a request.
    pub(super) fn asked(&mut self, ask: &Pending) {
        let loses = match ask.what {
            Ask::Preempt { victim } => victim,
            Ask::Unregister => ask.host,
            Ask::Read(_) | Ask::Write(..) | Ask::Register(_) | Ask::Reserve => return,
        };
        self.standing.entry((ask.volume, loses)).or_default().asked_to_lose += 1;
    }

    /// An object was changed.
    pub(super) fn swapped(&mut self, now: u64, object: ObjectName, value: &[u8]) {
        match object {
            ObjectName::Owner(group) => self.owner_swapped(group, value),
            ObjectName::Record(volume) => {
                let record = peek::<Record>(value).expect("a record");
                let owner = restore(volume, Some(&record.bytes));
                let reservations = &owner.view().reservations;
                for who in 1..=HOSTS_MAX {
                    let admits = reservations.admits(&host(who), CommandClass::Write);
                    let key = reservations.key_of(&host(who)).map(|key| key.0);
                    let holds = reservations.is_holder(&host(who));
                    let standing = self.standing.entry((volume, who)).or_default();
                    if !standing.shut_out && !admits {
                        standing.right_lost.push(now);
                    }
                    if standing.holds && !holds {
                        standing.hold_lost.push(now);
                    }
                    if standing.key.is_some() && key.is_none() {
                        standing.key_lost.push(now);
                        let asked = standing.asked_to_lose;
                        assert!(standing.key_lost.len() <= asked, "stale record: {who} lost its key unasked");
                    }
                    if standing.key != key {
                        self.gone.extend(standing.key);
                        self.keys.extend(key);
                        let back = key.is_some_and(|key| self.gone.contains(&key));
                        assert!(!back, "stale record: key {key:?} of {who} has come back");
                    }
                    (standing.shut_out, standing.key, standing.holds) = (!admits, key, holds);
                    if admits {
                        self.fenced.remove(&(volume, who));
                    }
                }
            }
            ObjectName::Members | ObjectName::Configuration | ObjectName::Allocations => {}
        }
    }

    fn owner_swapped(&mut self, group: GroupId, value: &[u8]) {
        let ownership = peek::<Ownership>(value).expect("an owner object");
        let term = self.terms.entry(group).or_default();
        assert_eq!(ownership.term.0, term.0 + 1, "terms of group {group} are counted");
        *term = ownership.term;
    }

    pub(super) fn answered(&mut self, now: u64, ask: &Pending, answer: Answered) {
        let Pending { host: who, begin, volume, what } = *ask;
        let client = u32::from(who);
        let mut note = |what, end| {
            let (lba, what) = what;
            self.history(volume).record(lba, Operation { client, begin, end, what });
        };
        match (what, answer) {
            (Ask::Read(lba), Answered::Good(value)) => {
                note((lba, OperationKind::Read(value.expect("a read has data"))), Some(now));
                self.tally.good += 1;
            }
            (Ask::Write(lba, value), Answered::Good(_)) => {
                note((lba, OperationKind::Write(value)), Some(now));
                assert!(self.landed.contains(&value), "GOOD without effect: {ask:?}");
                self.tally.good += 1;
            }
            (Ask::Write(lba, value), Answered::Path(PathError::InDoubt) | Answered::Lost) => {
                note((lba, OperationKind::Write(value)), None);
                if answer != Answered::Lost {
                    self.doubtful.insert(value);
                }
            }
            (Ask::Write(_, value), Answered::Refused | Answered::Path(_)) => {
                assert!(!self.landed.contains(&value), "refused with effect: {ask:?}");
                self.dead.insert(value, "refused");
            }
            (Ask::Read(_), _) => {}
            (Ask::Register(key), Answered::Good(_)) => {
                assert!(self.keys.contains(&key), "GOOD without effect: {ask:?}");
                self.tally.reservations += 1;
            }
            (Ask::Preempt { victim }, Answered::Good(_)) => {
                self.tally.reservations += 1;
                // If it lost key and right once meanwhile, and at once, it lost them by this request.
                let standing = self.standing.get(&(volume, victim));
                let once = standing.is_some_and(|standing| {
                    let since =
                        |lost: &[u64]| lost.iter().copied().filter(|at| *at >= begin).collect::<Vec<_>>();
                    let (key, right) = (since(&standing.key_lost), since(&standing.right_lost));
                    standing.shut_out && key.len() == 1 && key == right
                });
                if once {
                    self.fenced.insert((volume, victim));
                    self.tally.fences += 1;
                }
            }
            (Ask::Reserve | Ask::Unregister, Answered::Good(_)) => {
                let standing = self.standing.get(&(volume, who));
                let effect = standing.is_some_and(|standing| match what {
                    Ask::Reserve => standing.holds || standing.hold_lost.iter().any(|at| *at >= begin),
                    _ => standing.key_lost.iter().any(|at| *at >= begin),
                });
                assert!(effect, "GOOD without effect: {ask:?}");
                self.tally.reservations += 1;
            }
            (Ask::Register(_) | Ask::Preempt { .. } | Ask::Reserve | Ask::Unregister, _) => {}
        }
        match answer {
            Answered::Path(PathError::InDoubt) => self.tally.in_doubt += 1,
            Answered::Good(_) => self.tally.second += u64::from(volume.0[1] == super::world::SECOND),
            Answered::Refused => self.tally.conflicts += 1,
            Answered::Path(_) | Answered::Lost => {}
        }
    }

    /// A gateway has ended before it has answered this.
    pub(super) fn lost(&mut self, at: InstanceId, ask: &Pending) {
        if let Ask::Write(_, value) = ask.what {
            self.lost.entry(at).or_default().push(value);
        }
    }

    /// A controller of this instance, or of a gateway that has ended.
    pub(super) fn controller_of(&self, instance: InstanceId) -> Option<u16> {
        self.ranges.iter().find(|(_, by)| **by == instance).map(|(id, _)| *id)
    }

    /// The controllers of an instance are gone, and with them what its hosts had under way: these, and what was lost.
    pub(super) fn controllers_gone(&mut self, at: InstanceId, pending: impl Iterator<Item = Ask>) {
        let pending = pending.filter_map(|ask| match ask {
            Ask::Write(_, value) => Some(value),
            _ => None,
        });
        for value in pending.chain(self.lost.get(&at).into_iter().flatten().copied()) {
            if !self.landed.contains(&value) {
                self.dead.insert(value, "of a controller that is gone");
            }
        }
        self.tally.resets += 1;
    }

    pub(super) fn range(&mut self, by: InstanceId, first: u16, count: u16) {
        for id in first..first + count {
            let other = self.ranges.insert(id, by);
            assert!(other.is_none(), "controller identifier {id} is given to {by} and {other:?}");
        }
    }

    pub(super) fn port(&mut self, name: u8, number: u16) {
        let known = *self.ports.entry(name).or_insert(number);
        assert_eq!(known, number, "a port has two numbers");
        let same = self.ports.values().filter(|other| **other == number).count();
        assert_eq!(same, 1, "two ports have the number {number}");
    }

    pub(super) fn bound(&mut self, cluster: &Cluster, by: InstanceId, host: u8, nqn: u8) {
        let (_, members) = &cluster.objects[&ObjectName::Members];
        let members = peek::<Members>(members).expect("the members object");
        let users = self.bound.entry(host).or_default();
        users.retain(|(instance, _)| members.membership(*instance) == Some(Membership::Joined));
        assert!(
            users.iter().all(|(_, known)| *known == nqn),
            "host {host} has two names: {users:?} and {nqn}"
        );
        users.push((by, nqn));
    }

    pub(super) fn notices_sent(
        &mut self,
        group: GroupId,
        term: Term,
        sequence: u64,
        notices: &Arc<[Notice]>,
    ) {
        let place = notices.as_ptr() as usize;
        let notices = notices.clone();
        self.sent.insert(place, SentNotices { group, term, sequence, _notices: notices });
    }

    /// Hosts are told of every notice in order, or that some may be missing.
    pub(super) fn notices_heard(&mut self, by: InstanceId, notices: &Arc<[Notice]>) {
        let SentNotices { group, term, sequence, .. } = self.sent[&(notices.as_ptr() as usize)];
        let last = self.heard.entry((by, group)).or_default();
        if let Some(last) = last {
            assert_eq!(
                (term, sequence),
                (last.0, last.1 + 1),
                "notices of group {group} are missing at {by}"
            );
        }
        *last = Some((term, sequence));
        self.tally.notices += 1;
    }

    pub(super) fn notices_lost(&mut self, by: InstanceId, group: GroupId) {
        self.heard.insert((by, group), None);
    }

    pub(super) fn configuration(&mut self, version: u64, bytes: &Arc<[u8]>) {
        let known = self.configurations.entry(version).or_insert_with(|| bytes.clone());
        assert_eq!(known, bytes, "two configurations of version {version}");
    }

    pub(super) fn applied(&mut self, version: u64, bytes: &Arc<[u8]>) {
        assert!(self.versions.insert(version), "version {version} is given twice");
        self.configuration(version, bytes);
        self.tally.applied += 1;
    }

    /// Every block's reads and writes have an order.
    pub(super) fn finish(&mut self) {
        for (volume, history) in &self.histories {
            match history.check_linearizable() {
                Ok(sim::linearizability::Verdict::Holds) => {}
                Ok(sim::linearizability::Verdict::Undecided) => self.tally.undecided += 1,
                Err(violation) => panic!("volume {volume}: {violation}"),
            }
        }
    }
}

/// How a command ended for its host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answered {
    Good(Option<u64>),
    Refused,
    Path(PathError),
    /// Its gateway has gone.
    Lost,
}
