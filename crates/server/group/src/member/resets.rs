//! Controllers of NVMe hosts that their hosts have lost and want to be reset (Cross-Controller Reset, NVMe Base 2.3
//! §8.3.3). The controller may be at any gateway, and its commands at any owner.
//!
//! Invariant: a controller is told to be gone only when none of its commands can be executed any more:
//! - that of a member, when the member has ended it, with all its commands;
//! - that of an instance that was expelled, when the instance is barred and after that each group was found served by
//!   another member, which executes nothing more of that instance.

use std::collections::{BTreeMap, BTreeSet};

use buf::Time;

use super::takeover::{Ask, BLOCKLIST_EXPIRY};
use super::{Member, Output, Role};
use crate::failpoint::Failpoint;
use crate::ids::{GroupId, InstanceId, LinkId, MapEpoch, RequestId, StoreTicket};
use crate::link::{LinkMessage, LostController, ResetAnswer};
use crate::object::{MembersEdit, Membership};
use crate::store::{StoreReply, StoreRequest, Waiting};

/// How many resets wait at a time, of hosts of this gateway, and of other members. A controller has 8 at most (CCRL).
const RESETS_MAX: usize = 4096;

/// A reset that a host of this gateway waits for.
#[derive(Debug)]
struct WaitingReset {
    controller: LostController,
    number: u64,
    /// The link by which its gateway was asked.
    sent: Option<LinkId>,
    /// The read of the allocations that counts: the identifier may have been given to another instance.
    read: u64,
}

/// How far it is known that nothing of an expelled instance is executed any more.
#[derive(Debug)]
struct Departure {
    step: Step,
    /// Owners that were asked whether they execute something of it, and by which link.
    asked: BTreeMap<InstanceId, LinkId>,
    /// Owners that do not, and never will.
    settled: BTreeSet<InstanceId>,
}

#[derive(Clone, Debug)]
enum Step {
    Barring(Ask),
    /// The own client does not have the map yet in which it is barred.
    AwaitingMap(MapEpoch, Ask),
    /// Owner objects are read again: the reads that count.
    Reading(BTreeMap<GroupId, u64>),
    /// Groups are not served yet, or commands are executed still.
    Ending,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Resets {
    waiting: BTreeMap<RequestId, WaitingReset>,
    /// Those that this gateway's target carries out for other members: by which link they came, and their number there.
    for_members: BTreeMap<u64, (LinkId, u64)>,
    departures: BTreeMap<InstanceId, Departure>,
    /// Instances that this one has barred, and the map in which they are: barring takes as long as the monitors need to
    /// agree.
    barred: BTreeMap<InstanceId, MapEpoch>,
    /// Instances of which nothing is executed any more.
    departed: BTreeSet<InstanceId>,
    /// Members that wait until nothing of an instance is executed here.
    settling: BTreeSet<(InstanceId, LinkId)>,
}

impl Resets {
    /// A takeover has barred an instance.
    pub(super) fn note_barred(&mut self, instance: Option<InstanceId>, map: MapEpoch) {
        self.barred.extend(instance.map(|instance| (instance, map)));
    }
}

impl<P: Clone> Member<P> {
    /// A host of this gateway wants one of its controllers to be reset, which it has lost. [`Output::ControllerReset`]
    /// answers. Of one of this gateway's own the target knows more: it is told to be gone.
    pub fn reset_controller(&mut self, now: Time, id: RequestId, controller: LostController) {
        if !self.called(now) {
            return;
        }
        if self.has_controller_id(controller.cntlid) {
            return self.answer_reset(id, ResetAnswer::Gone);
        }
        if self.resets.waiting.len() >= RESETS_MAX {
            return self.answer_reset(id, ResetAnswer::Unknown);
        }
        self.numbers += 1;
        let (number, read) = (self.numbers, self.allocations.next_read());
        self.resets.waiting.insert(id, WaitingReset { controller, number, sent: None, read });
        self.turn(now);
    }

    /// [`Output::ResetController`] was carried out by this gateway's target.
    pub fn handle_controller_reset(&mut self, now: Time, number: u64, answer: ResetAnswer) {
        if !self.called(now) {
            return;
        }
        let Some((link, number)) = self.resets.for_members.remove(&number) else { return };
        if self.links.contains_key(&link) {
            let message = LinkMessage::ControllerReset { number, answer };
            self.outputs.push_back(Output::Send { link, message });
        }
    }

    fn answer_reset(&mut self, id: RequestId, answer: ResetAnswer) {
        self.resets.waiting.remove(&id);
        self.outputs.push_back(Output::ControllerReset { id, answer });
    }

    /// Another member's host wants a controller of this gateway to be reset.
    pub(super) fn handle_reset(&mut self, link: LinkId, number: u64, controller: LostController) {
        let full = self.resets.for_members.len() >= RESETS_MAX;
        if full || !self.has_controller_id(controller.cntlid) {
            let message = LinkMessage::ControllerReset { number, answer: ResetAnswer::Unknown };
            return self.outputs.push_back(Output::Send { link, message });
        }
        self.numbers += 1;
        self.resets.for_members.insert(self.numbers, (link, number));
        self.outputs.push_back(Output::ResetController { number: self.numbers, controller });
    }

    /// The gateway of a controller has answered.
    pub(super) fn handle_reset_answer(&mut self, link: LinkId, number: u64, answer: ResetAnswer) {
        let is_meant = |reset: &WaitingReset| reset.number == number && reset.sent == Some(link);
        let found = self.resets.waiting.iter().find(|(_, reset)| is_meant(reset)).map(|(id, _)| *id);
        if let Some(id) = found {
            self.answer_reset(id, answer);
        }
    }

    /// A member wants to hear when nothing of an instance is executed here.
    pub(super) fn handle_settle_instance(&mut self, now: Time, link: LinkId, gone: InstanceId) {
        if self.resets.settling.len() < RESETS_MAX {
            self.resets.settling.insert((gone, link));
            self.turn(now);
        }
    }

    /// A member executes nothing of an instance any more.
    pub(super) fn handle_instance_settled(
        &mut self,
        now: Time,
        by: InstanceId,
        link: LinkId,
        gone: InstanceId,
    ) {
        if let Some(departure) = self.resets.departures.get_mut(&gone)
            && departure.asked.get(&by) == Some(&link)
        {
            departure.settled.insert(by);
            self.turn(now);
        }
    }

    pub(super) fn run_resets(&mut self, now: Time) {
        let waiting: Vec<RequestId> = self.resets.waiting.keys().copied().collect();
        for id in waiting {
            self.run_reset(now, id);
        }
        let members = self.members.value();
        let is_expelled = |gone: &InstanceId| members.membership(*gone) == Some(Membership::Expelled);
        self.resets.departed.retain(is_expelled);
        self.resets.barred.retain(|gone, _| is_expelled(gone));
        self.resets.departures.retain(|gone, _| is_expelled(gone));
        let departures: Vec<InstanceId> = self.resets.departures.keys().copied().collect();
        for gone in departures {
            self.run_departure(now, gone);
        }
        self.tell_instances_settled();
    }

    fn run_reset(&mut self, now: Time, id: RequestId) {
        let Some(WaitingReset { controller, sent, read, .. }) = self.resets.waiting.get(&id) else { return };
        let (sent, read) = (*sent, *read);
        let at = self.allocations.value().instance_of(controller.cntlid);
        match at.and_then(|at| Some((at, self.members.value().membership(at)?))) {
            Some((at, Membership::Joined)) => {
                if let Some(link) = self.link_to(now, at).filter(|link| sent != Some(*link)) {
                    self.send_reset(id, link);
                } else if self.is_lost(now, at) && self.members.is_idle() {
                    // One that owns nothing is expelled by nobody else.
                    let edit = MembersEdit::Expel { by: self.me, lost: at };
                    self.members.change(&mut self.store, edit);
                }
            }
            _ if !self.allocations.has_read(read) => self.allocations.poll_store(&mut self.store),
            Some((at, Membership::Expelled)) => {
                let departed = self.resets.departed.contains(&at);
                if departed || self.store.failpoints.has(Failpoint::LostNotSettled) {
                    return self.answer_reset(id, ResetAnswer::Gone);
                }
                let step = Step::Barring(Ask::At(now));
                let new = || Departure { step, asked: BTreeMap::new(), settled: BTreeSet::new() };
                self.resets.departures.entry(at).or_insert_with(new);
            }
            // It was never given, or its instance was forgotten: nobody can say what became of its commands.
            None => self.answer_reset(id, ResetAnswer::Unknown),
        }
    }

    fn send_reset(&mut self, id: RequestId, link: LinkId) {
        let Some(reset) = self.resets.waiting.get_mut(&id) else { return };
        reset.sent = Some(link);
        let message =
            LinkMessage::ResetController { number: reset.number, controller: reset.controller.clone() };
        self.outputs.push_back(Output::Send { link, message });
    }

    /// Goes on until something must be waited for.
    fn run_departure(&mut self, now: Time, gone: InstanceId) {
        while let Some(step) = self.resets.departures.get(&gone).map(|departure| departure.step.clone()) {
            let next = match step {
                Step::Barring(ask) => self.bar_departed(now, gone, ask),
                Step::AwaitingMap(map, ask) => self
                    .ask_for_departure(now, gone, ask, StoreRequest::AwaitMap(map))
                    .map(|ask| Step::AwaitingMap(map, ask)),
                Step::Reading(reads) => self.have_read_owners(&reads).then_some(Step::Ending),
                Step::Ending => {
                    if self.has_departed(now, gone) {
                        self.departed(now, gone);
                    }
                    None
                }
            };
            match (next, self.resets.departures.get_mut(&gone)) {
                (Some(step), Some(departure)) => departure.step = step,
                _ => return,
            }
        }
    }

    fn bar_departed(&mut self, now: Time, gone: InstanceId, ask: Ask) -> Option<Step> {
        if let Some(map) = self.resets.barred.get(&gone) {
            return Some(Step::AwaitingMap(*map, Ask::At(now)));
        }
        if matches!(ask, Ask::At(_)) && self.will_bar(gone) {
            return None;
        }
        let request = StoreRequest::Blocklist { instance: gone, expiry: BLOCKLIST_EXPIRY };
        self.ask_for_departure(now, gone, ask, request).map(Step::Barring)
    }

    /// Whether a takeover is about to bar it.
    fn will_bar(&self, gone: InstanceId) -> bool {
        let bars = |role: &Role| matches!(role, Role::Taking(takeover) if takeover.will_bar(gone));
        self.groups.values().any(|group| bars(&group.role))
    }

    fn ask_for_departure(
        &mut self,
        now: Time,
        gone: InstanceId,
        ask: Ask,
        request: StoreRequest,
    ) -> Option<Ask> {
        match ask {
            Ask::At(at) if at <= now => Some(Ask::Asked(self.store.ask(Waiting::Departure(gone), request))),
            Ask::At(at) => {
                self.wake_at(at);
                None
            }
            Ask::Asked(_) => None,
        }
    }

    /// The reply to barring an instance, or to waiting for the map.
    pub(super) fn departure_reply(
        &mut self,
        now: Time,
        gone: InstanceId,
        ticket: StoreTicket,
        reply: StoreReply,
    ) {
        let retry = Ask::At(now + self.timing.retry);
        let reads = self.groups.iter().map(|(id, group)| (*id, group.owner.next_read()));
        let reads: BTreeMap<GroupId, u64> = reads.collect();
        let Some(departure) = self.resets.departures.get_mut(&gone) else { return };
        let asked = Ask::Asked(ticket);
        departure.step = match (&departure.step, reply) {
            (Step::Barring(ask), StoreReply::Blocklisted(map)) if *ask == asked => {
                Step::AwaitingMap(map, Ask::At(now))
            }
            (Step::Barring(ask), _) if *ask == asked => Step::Barring(retry),
            // Reads of this client show from now on all that the instance has ever swapped.
            (Step::AwaitingMap(_, ask), StoreReply::Done) if *ask == asked => Step::Reading(reads),
            (Step::AwaitingMap(map, ask), _) if *ask == asked => Step::AwaitingMap(*map, retry),
            _ => return,
        };
    }

    fn have_read_owners(&mut self, reads: &BTreeMap<GroupId, u64>) -> bool {
        let mut all = true;
        for (id, read) in reads {
            let Some(group) = self.groups.get_mut(id) else { continue };
            if !group.owner.has_read(*read) {
                group.owner.poll_store(&mut self.store);
                all = false;
            }
        }
        all
    }

    /// Whether each group is served by a member that executes nothing of this instance; asks the owners.
    fn has_departed(&mut self, now: Time, gone: InstanceId) -> bool {
        let (mut all, mut unasked) = (true, Vec::new());
        let here = self.executions.values().any(|execution| execution.source.is_of(gone));
        let Some(departure) = self.resets.departures.get(&gone) else { return false };
        for group in self.groups.values() {
            let owned = group.owner.value();
            let is_served = group.owner.damage().is_none() && group.served >= owned.term;
            let is_settled = owned.owner.is_some_and(|owner| {
                owner != gone && if owner == self.me { !here } else { departure.settled.contains(&owner) }
            });
            all &= is_served && is_settled;
            if let Some(owner) = owned.owner.filter(|owner| *owner != self.me && *owner != gone)
                && let Some(link) = self.link_to(now, owner)
                && !departure.settled.contains(&owner)
                && departure.asked.get(&owner) != Some(&link)
            {
                unasked.push((owner, link));
            }
        }
        for (owner, link) in unasked {
            let Some(departure) = self.resets.departures.get_mut(&gone) else { break };
            if departure.asked.insert(owner, link) != Some(link) {
                let message = LinkMessage::SettleInstance { instance: gone };
                self.outputs.push_back(Output::Send { link, message });
            }
        }
        all
    }

    fn departed(&mut self, now: Time, gone: InstanceId) {
        self.resets.departures.remove(&gone);
        self.resets.departed.insert(gone);
        let waiting: Vec<RequestId> = self.resets.waiting.keys().copied().collect();
        for id in waiting {
            self.run_reset(now, id);
        }
    }

    /// Tells members that nothing of an instance is executed here any more. Its links are closed once this member knows
    /// that it was expelled, so nothing of it comes later.
    fn tell_instances_settled(&mut self) {
        for (gone, link) in self.resets.settling.clone() {
            let joined = self.members.value().membership(gone) == Some(Membership::Joined);
            if joined {
                self.members.poll_store(&mut self.store);
            }
            let executes = self.executions.values().any(|execution| execution.source.is_of(gone));
            if self.links.contains_key(&link) && (joined || executes) {
                continue;
            }
            self.resets.settling.remove(&(gone, link));
            let message = LinkMessage::InstanceSettled { instance: gone };
            self.outputs.push_back(Output::Send { link, message });
        }
    }

    /// An execution has ended: somebody may have waited for it.
    pub(super) fn is_settling(&self) -> bool {
        !self.resets.settling.is_empty() || !self.resets.departures.is_empty()
    }
}
