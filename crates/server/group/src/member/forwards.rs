//! Commands: executed here, forwarded to the owner, or held until there is one.
//!
//! Invariants:
//! - A forward names the term in which it may be executed, and is executed by that term's owner at most once: it is
//!   sent once, links deliver at most once, and a forward of a link that was replaced is dropped.
//! - A forward that is refused was not executed; it is sent to the next term's owner. One for which the owner has no room
//!   is answered: it was not executed, either.
//! - A forward whose link is lost is in doubt until the owner says that nothing of earlier links is executed any more,
//!   or the owner of a later term says that it serves, before which all commands of the earlier one ended or were barred
//!   at every server. Then it is answered with an error of the path; commands that change nothing are sent again at once.

use std::collections::VecDeque;

use buf::Time;
use volume::{Fault, Requester, Uuid};

use super::{Member, Output, Role};
use crate::failpoint::Failpoint;
use crate::ids::{ExecutionId, GroupId, InstanceId, LinkId, RequestId, Term};
use crate::link::{Answer, Command, LinkMessage, PathError};

/// How many commands of this gateway's hosts are held or forwarded at a time, and how many of other members are held
/// or executed. Hosts may have as many as their sessions' windows allow; beyond, they are told to try another path.
pub const COMMANDS_MAX: usize = 65_536;

/// Where a command came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A host of this gateway.
    Here(RequestId),
    /// Another member.
    Peer {
        instance: InstanceId,
        link: LinkId,
        number: u64,
        /// The term in which it may be executed.
        term: Term,
    },
}

impl Source {
    /// Whether it is a forward of this member.
    pub(super) fn is_of(&self, of: InstanceId) -> bool {
        matches!(self, Source::Peer { instance, .. } if *instance == of)
    }

    /// Whether it is a forward of this member that came by another link.
    pub(super) fn is_of_earlier_link(&self, of: InstanceId, now: LinkId) -> bool {
        matches!(self, Source::Peer { instance, link, .. } if *instance == of && *link != now)
    }
}

/// A command that waits.
#[derive(Debug)]
pub(super) struct Held<P> {
    pub(super) until: Time,
    source: Source,
    /// It was refused in this term.
    after: Option<Term>,
    body: Body<P>,
}

type Body<P> = (Uuid, Requester, Command<P>);

/// A command that is being executed here.
#[derive(Debug)]
pub(super) struct Execution {
    group: GroupId,
    volume: Uuid,
    pub(super) source: Source,
}

/// A command that was sent to the owner.
#[derive(Debug)]
pub(super) struct Forward<P> {
    id: RequestId,
    until: Time,
    group: GroupId,
    term: Term,
    peer: InstanceId,
    link: LinkId,
    in_doubt: bool,
    body: Body<P>,
}

impl<P: Clone> Member<P> {
    /// A host of this gateway has a command for a volume. [`Output::Answer`] has its end.
    pub fn submit(&mut self, now: Time, id: RequestId, volume: Uuid, who: Requester, command: Command<P>) {
        if !self.called(now) {
            return;
        }
        let Some(&group) = self.group_of.get(&volume) else {
            return self.answer(id, Err(PathError::NoOwner));
        };
        if self.waiting() >= COMMANDS_MAX {
            return self.answer(id, Err(PathError::Busy));
        }
        let until = now + self.timing.queue;
        let body = (volume, who, command);
        self.route(now, group, Held { until, source: Source::Here(id), after: None, body });
    }

    /// The host does not want an operation any more: it ends early if it can, and is answered in any case. One in doubt
    /// stays so until it is known that it is not executed any more.
    pub fn cancel(&mut self, now: Time, id: RequestId) {
        if !self.called(now) {
            return;
        }
        let is_it = |source: &Source| *source == Source::Here(id);
        if self.drop_held(is_it).is_some() {
            return self.answer(id, Ok(aborted()));
        }
        let forward = self.forwards.iter().find(|(_, forward)| forward.id == id && !forward.in_doubt);
        if let Some((&number, forward)) = forward {
            let (link, message) = (forward.link, LinkMessage::Cancel { number });
            return self.outputs.push_back(Output::Send { link, message });
        }
        self.cancel_execution(is_it);
    }

    /// Another member does not want its forward any more.
    pub(super) fn handle_cancel(&mut self, link: LinkId, number: u64) {
        let is_it = |source: &Source| matches!(source, Source::Peer { link: of, number: known, .. } if (*of, *known) == (link, number));
        if self.drop_held(is_it).is_some() {
            let message = LinkMessage::Answer { number, answer: aborted() };
            return self.outputs.push_back(Output::Send { link, message });
        }
        self.cancel_execution(is_it);
    }

    /// Takes an operation out that is held: it was not carried out. Requests stay, since they end soon.
    fn drop_held(&mut self, is_it: impl Fn(&Source) -> bool) -> Option<Held<P>> {
        let is_io = |held: &Held<P>| is_it(&held.source) && matches!(held.body.2, Command::Io { .. });
        self.groups.values_mut().find_map(|group| {
            let at = group.held.iter().position(is_io)?;
            group.held.remove(at)
        })
    }

    fn cancel_execution(&mut self, is_it: impl Fn(&Source) -> bool) {
        let found = self.executions.iter().find(|(_, execution)| is_it(&execution.source));
        if let Some((&execution, Execution { volume, .. })) = found {
            self.outputs.push_back(Output::Cancel { execution, volume: *volume });
        }
    }

    fn waiting(&self) -> usize {
        self.forwards.len() + self.groups.values().map(|group| group.held.len()).sum::<usize>()
    }

    /// A command that [`Output::Execute`] named has ended.
    pub fn handle_executed(&mut self, now: Time, execution: ExecutionId, answer: Answer<P>) {
        if !self.called(now) {
            return;
        }
        let Some(Execution { group, source, .. }) = self.executions.remove(&execution) else { return };
        let handing_over = self.groups.get_mut(&group).is_some_and(|group| {
            group.executing -= 1;
            group.executing == 0 && matches!(group.role, Role::HandingOver(_))
        });
        match source {
            Source::Here(id) => self.answer(id, Ok(answer)),
            Source::Peer { instance, link, number, .. } => {
                if self.peers.get(&instance).is_some_and(|peer| peer.link == Some(link)) {
                    let message = LinkMessage::Answer { number, answer };
                    self.outputs.push_back(Output::Send { link, message });
                } else {
                    self.tell_settled(instance);
                }
            }
        }
        if handing_over || self.is_settling() {
            self.turn(now);
        }
    }

    fn answer(&mut self, id: RequestId, result: Result<Answer<P>, PathError>) {
        self.outputs.push_back(Output::Answer { id, result });
    }

    /// Executes, forwards or holds a command.
    fn route(&mut self, now: Time, id: GroupId, held: Held<P>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let known = *group.owner.value();
        // One that has just been added: the group is opened with it soon.
        let has_volume = group.records.contains_key(&held.body.0);
        let damaged = group.owner.damage().is_some();
        match (&group.role, held.source) {
            (Role::Serving, _) if !has_volume => {}
            (Role::Serving, Source::Here(_)) => return self.execute(id, held),
            (Role::Serving, Source::Peer { term, .. }) if term == known.term => {
                return self.execute(id, held);
            }
            (Role::Following { .. }, Source::Here(request)) => {
                let refused = damaged || held.after.is_some_and(|after| after >= known.term);
                let link = known.owner.and_then(|owner| Some((owner, self.link_to(now, owner)?)));
                if let Some((owner, link)) = link.filter(|_| !refused) {
                    return self.forward(id, request, (owner, link, known.term), held);
                }
            }
            (_, Source::Peer { term, link, number, .. }) => {
                // This instance may not have read yet that the term is its own.
                let may_be = term > known.term || (term == known.term && group.will_serve(self.me));
                if !may_be || damaged {
                    return self.refuse(link, number);
                }
                if term > known.term {
                    group.owner.poll_store(&mut self.store);
                }
            }
            (Role::Taking(_) | Role::HandingOver(_), Source::Here(_)) => {}
        }
        let until = held.until;
        if let Some(group) = self.groups.get_mut(&id) {
            group.held.push_back(held);
        }
        self.wake_at(until);
    }

    fn execute(&mut self, id: GroupId, held: Held<P>) {
        let Held { source, body: (volume, who, command), .. } = held;
        self.numbers += 1;
        let execution = ExecutionId(self.numbers);
        if let Some(group) = self.groups.get_mut(&id) {
            group.executing += 1;
        }
        self.executions.insert(execution, Execution { group: id, volume, source });
        self.outputs.push_back(Output::Execute { execution, volume, who, command });
    }

    fn forward(&mut self, id: GroupId, request: RequestId, to: (InstanceId, LinkId, Term), held: Held<P>) {
        let (peer, link, term) = to;
        self.numbers += 1;
        let number = self.numbers;
        let (volume, who, command) = held.body.clone();
        let message = LinkMessage::Forward { number, group: id, term, volume, who, command };
        self.outputs.push_back(Output::Send { link, message });
        let Held { until, body, .. } = held;
        let forward = Forward { id: request, until, group: id, term, peer, link, in_doubt: false, body };
        self.forwards.insert(number, forward);
    }

    fn refuse(&mut self, link: LinkId, number: u64) {
        self.outputs.push_back(Output::Send { link, message: LinkMessage::NotOwner { number } });
    }

    /// Another member's host has a command.
    pub(super) fn handle_forward(&mut self, now: Time, group: GroupId, source: Source, body: Body<P>) {
        let Source::Peer { link, number, .. } = source else { return };
        let known = self.groups.contains_key(&group);
        let full = self.executions.len() + self.waiting() >= COMMANDS_MAX * 2;
        if !known {
            return self.refuse(link, number);
        }
        if full {
            return self.outputs.push_back(Output::Send { link, message: LinkMessage::Busy { number } });
        }
        let until = now + self.timing.queue;
        self.route(now, group, Held { until, source, after: None, body });
    }

    pub(super) fn forward_answered(&mut self, number: u64, link: LinkId, answer: Answer<P>) {
        if self.forwards.get(&number).is_some_and(|forward| forward.link == link)
            && let Some(forward) = self.forwards.remove(&number)
        {
            self.answer(forward.id, Ok(answer));
        }
    }

    pub(super) fn forward_not_taken(&mut self, number: u64, link: LinkId) {
        if self.forwards.get(&number).is_some_and(|forward| forward.link == link)
            && let Some(forward) = self.forwards.remove(&number)
        {
            self.answer(forward.id, Err(PathError::Busy));
        }
    }

    pub(super) fn forward_refused(&mut self, now: Time, number: u64, link: LinkId) {
        if self.forwards.get(&number).is_none_or(|forward| forward.link != link) {
            return;
        }
        let Some(forward) = self.forwards.remove(&number) else { return };
        let (group, term) = (forward.group, forward.term);
        if let Some(group) = self.groups.get_mut(&group) {
            group.owner.poll_store(&mut self.store);
        }
        self.hold_again(now, forward, Some(term));
    }

    fn hold_again(&mut self, now: Time, forward: Forward<P>, after: Option<Term>) {
        let Forward { id, until, group, body, .. } = forward;
        self.route(now, group, Held { until, source: Source::Here(id), after, body });
    }

    /// A link is gone or replaced: nothing of it will be answered.
    pub(super) fn link_lost(&mut self, link: LinkId, instance: InstanceId) {
        for group in self.groups.values_mut() {
            group.held.retain(|held| !matches!(held.source, Source::Peer { link: of, .. } if of == link));
        }
        let now = self.called;
        let lost: Vec<u64> = self
            .forwards
            .iter()
            .filter(|(_, forward)| forward.link == link)
            .map(|(number, _)| *number)
            .collect();
        let bugs = self.store.failpoints;
        for number in lost {
            let Some(mut forward) = self.forwards.remove(&number) else { continue };
            forward.in_doubt = true;
            if forward.body.2.is_repeatable() || bugs.has(Failpoint::ForwardRepeated) {
                self.hold_again(now, forward, None);
            } else if bugs.has(Failpoint::ForwardNotSettled) {
                self.answer(forward.id, Err(PathError::InDoubt));
            } else {
                self.forwards.insert(number, forward);
            }
        }
        self.tell_settled(instance);
    }

    /// A member executes nothing of earlier links any more.
    pub(super) fn settle_peer(&mut self, instance: InstanceId, link: LinkId) {
        if self.peers.get(&instance).is_none_or(|peer| peer.link != Some(link)) {
            return;
        }
        self.settle(|forward| forward.peer == instance && forward.link != link);
    }

    /// What was sent in an earlier term has ended, or never will be executed.
    pub(super) fn settle_term(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (term, served) = (group.owner.value().term, group.served);
        match group.role {
            Role::Following { .. } | Role::Serving => {}
            // Hosts are not answered before the group is served again.
            Role::Taking(_) | Role::HandingOver(_) => return,
        }
        if group.notices.0 < term {
            group.notices = (term, 0);
            self.outputs.push_back(Output::NoticesLost(id));
        }
        self.settle(|forward| forward.group == id && forward.term < served);
    }

    fn settle(&mut self, over: impl Fn(&Forward<P>) -> bool) {
        let over: Vec<(u64, RequestId)> = self
            .forwards
            .iter()
            .filter(|(_, forward)| forward.in_doubt && over(forward))
            .map(|(number, forward)| (*number, forward.id))
            .collect();
        for (number, id) in over {
            self.forwards.remove(&number);
            self.answer(id, Err(PathError::InDoubt));
        }
    }

    /// Held commands go on where they can, in their order.
    pub(super) fn release_held(&mut self, now: Time, id: GroupId) {
        self.expire_held(now, id);
        if self.handover_may_return(id) {
            return;
        }
        let Some(group) = self.groups.get_mut(&id) else { return };
        for held in std::mem::take(&mut group.held) {
            self.route(now, id, held);
        }
    }

    /// What has waited too long is answered: it was not carried out.
    pub(super) fn expire_held(&mut self, now: Time, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let (late, held): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut group.held).into_iter().partition(|held| held.until <= now);
        group.held = held;
        for held in late {
            match held.source {
                Source::Here(id) => self.answer(id, Err(PathError::NoOwner)),
                Source::Peer { link, number, .. } => self.refuse(link, number),
            }
        }
    }
}

/// The answer to an operation that was not carried out because its host did not want it any more.
fn aborted<P>() -> Answer<P> {
    Answer::Io { result: Err(Fault::Aborted.into()), payload: None }
}
