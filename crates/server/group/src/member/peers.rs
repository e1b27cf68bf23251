//! The other members: links, keep-alive, and when one is lost.
//!
//! Invariants: a member is lost only if nothing listens at its address, or nothing was heard of it, or of the store by
//! it, for the stated time while this process ran; messages of a link that was replaced are dropped.

use std::sync::Arc;
use std::time::Duration;

use buf::Time;
use volume::Uuid;

use super::{Group, Member, Output, Timing};
use crate::ids::{GroupId, InstanceId, LinkId, Term};
use crate::link::{LinkMessage, Snapshot};
use crate::object::Membership;

/// Another member.
#[derive(Debug)]
pub(super) struct Peer {
    address: Arc<str>,
    pub(super) link: Option<LinkId>,
    /// When it was heard of last.
    pub(super) heard: Time,
    /// When something was sent last.
    sent: Time,
    /// Nobody listens at its address, or another instance does.
    refused: bool,
    connect_at: Time,
    /// For how long it had heard nothing of the store.
    store_silent: Duration,
    /// Whether it was told that nothing of earlier links is executed any more.
    settled: bool,
}

impl Peer {
    fn is_lost(&self, now: Time, timing: &Timing, store_heard: Time) -> bool {
        let cut_off = self.store_silent >= timing.store_silence && now.since(store_heard) < timing.silence;
        self.refused || now.since(self.heard) >= timing.silence || cut_off
    }
}

impl<P: Clone> Member<P> {
    /// A link to another instance has been made, by either end. The world has made sure who is there.
    pub fn handle_link_up(&mut self, now: Time, link: LinkId, instance: InstanceId) {
        if !self.called(now) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&instance) else {
            // It may have joined just now; it will try again.
            self.members.poll_store(&mut self.store);
            return self.outputs.push_back(Output::CloseLink(link));
        };
        let replaced = peer.link.replace(link);
        (peer.heard, peer.sent, peer.refused, peer.settled) = (now, now, false, false);
        peer.store_silent = Duration::ZERO;
        self.links.insert(link, instance);
        if let Some(old) = replaced {
            self.links.remove(&old);
            self.outputs.push_back(Output::CloseLink(old));
            self.link_lost(old, instance);
        }
        self.keep_alive(now, link);
        for (id, group) in &self.groups {
            let term = group.owner.value().term;
            if group.is_open() {
                let sequence = if group.notices.0 == term { group.notices.1 } else { 0 };
                let message = LinkMessage::NoticesSoFar { group: *id, term, sequence };
                self.outputs.push_back(Output::Send { link, message });
                for (volume, snapshot) in &group.snapshots {
                    let (volume, snapshot) = (*volume, snapshot.clone());
                    let message = LinkMessage::Snapshot { group: *id, term, volume, snapshot };
                    self.outputs.push_back(Output::Send { link, message });
                }
            }
        }
        self.tell_settled(instance);
        self.turn(now);
    }

    /// A link is gone.
    pub fn handle_link_down(&mut self, now: Time, link: LinkId) {
        if !self.called(now) {
            return;
        }
        let Some(instance) = self.links.remove(&link) else { return };
        if let Some(peer) = self.peers.get_mut(&instance)
            && peer.link == Some(link)
        {
            peer.link = None;
            peer.connect_at = now;
        }
        self.link_lost(link, instance);
        self.turn(now);
    }

    /// Nobody listens where this instance should be, or another instance does.
    pub fn handle_refused(&mut self, now: Time, instance: InstanceId) {
        if !self.called(now) {
            return;
        }
        if let Some(peer) = self.peers.get_mut(&instance)
            && peer.link.is_none()
        {
            peer.refused = true;
            self.turn(now);
        }
    }

    /// A message has come.
    pub fn handle_link_message(&mut self, now: Time, link: LinkId, message: LinkMessage<P>) {
        if !self.called(now) {
            return;
        }
        let Some(&instance) = self.links.get(&link) else { return };
        if let Some(peer) = self.peers.get_mut(&instance) {
            peer.heard = now;
        }
        match message {
            LinkMessage::KeepAlive { store_silent } => {
                if let Some(peer) = self.peers.get_mut(&instance) {
                    peer.store_silent = store_silent;
                }
                self.turn(now);
            }
            LinkMessage::Settled => self.settle_peer(instance, link),
            LinkMessage::Forward { number, group, term, volume, who, command } => {
                let source = super::forwards::Source::Peer { instance, link, number, term };
                self.handle_forward(now, group, source, (volume, who, command));
            }
            LinkMessage::Cancel { number } => self.handle_cancel(link, number),
            LinkMessage::Answer { number, answer } => self.forward_answered(number, link, answer),
            LinkMessage::NotOwner { number } => self.forward_refused(now, number, link),
            LinkMessage::Busy { number } => self.forward_not_taken(number, link),
            LinkMessage::Snapshot { group, term, volume, snapshot } => {
                self.show(instance, group, term, (volume, snapshot));
            }
            LinkMessage::Notices { group, term, sequence, volume, notices } => {
                if self.notices_follow(instance, group, term, sequence, sequence) {
                    self.outputs.push_back(Output::Notices { volume, notices });
                }
            }
            LinkMessage::ResetController { number, controller } => {
                self.handle_reset(link, number, controller);
            }
            LinkMessage::ControllerReset { number, answer } => {
                self.handle_reset_answer(link, number, answer);
            }
            LinkMessage::SettleInstance { instance: gone } => self.handle_settle_instance(now, link, gone),
            LinkMessage::InstanceSettled { instance: gone } => {
                self.handle_instance_settled(now, instance, link, gone);
            }
            LinkMessage::NoticesSoFar { group, term, sequence } => {
                self.notices_follow(instance, group, term, sequence, sequence + 1);
                if let Some(group) = self.groups.get_mut(&group) {
                    group.served = group.served.max(term);
                }
                self.turn(now);
            }
        }
    }

    /// Takes the state of a volume from the group's owner. One of an earlier owner may come behind it.
    fn show(&mut self, from: InstanceId, id: GroupId, term: Term, of: (Uuid, Snapshot)) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let known = group.owner.value();
        if term < known.term.max(group.shown) || (term == known.term && known.owner != Some(from)) {
            return;
        }
        group.shown = term;
        let (volume, snapshot) = of;
        self.outputs.push_back(Output::Snapshot { volume, term, snapshot });
    }

    /// Counts the notices of a group's owner. `next` is the number of the next one that is expected if none is
    /// missing. Whether they are those of the owner.
    fn notices_follow(
        &mut self,
        from: InstanceId,
        id: GroupId,
        term: Term,
        sequence: u64,
        next: u64,
    ) -> bool {
        let Some(group) = self.groups.get_mut(&id) else { return false };
        let known = group.owner.value();
        if term < known.term || (term == known.term && known.owner != Some(from)) {
            return false;
        }
        let so_far = if group.notices.0 == term { group.notices.1 } else { 0 };
        // The last notices of an earlier term may be missing.
        if so_far + 1 != next || group.notices.0 != term {
            self.outputs.push_back(Output::NoticesLost(id));
        }
        group.notices = (term, sequence.max(so_far));
        true
    }

    /// Follows the members object.
    pub(super) fn update_peers(&mut self, now: Time) {
        let members = self.members.value();
        let is_peer = |instance| members.membership(instance) == Some(Membership::Joined);
        let gone: Vec<InstanceId> = self.peers.keys().copied().filter(|known| !is_peer(*known)).collect();
        let came = members.joined().filter(|entry| entry.instance != self.me);
        let came: Vec<(InstanceId, Arc<str>)> = came
            .filter(|entry| !self.peers.contains_key(&entry.instance))
            .map(|entry| (entry.instance, entry.address.clone()))
            .collect();
        if !gone.is_empty() || !came.is_empty() {
            self.balance_at = now + self.timing.balance;
        }
        for (instance, address) in came {
            let peer = Peer {
                address,
                link: None,
                heard: now,
                sent: now,
                refused: false,
                connect_at: now,
                store_silent: Duration::ZERO,
                settled: false,
            };
            self.peers.insert(instance, peer);
        }
        for instance in gone {
            let link = self.peers.remove(&instance).and_then(|peer| peer.link);
            if let Some(link) = link {
                self.links.remove(&link);
                self.outputs.push_back(Output::CloseLink(link));
                self.link_lost(link, instance);
            }
        }
    }

    /// Sends keep-alives and connects where there is no link.
    pub(super) fn run_peers(&mut self, now: Time) {
        let timing = self.timing;
        let instances: Vec<InstanceId> = self.peers.keys().copied().collect();
        for instance in instances {
            let Some(peer) = self.peers.get_mut(&instance) else { continue };
            let silent_at = peer.heard + timing.silence;
            let mut wake = (silent_at > now).then_some(silent_at);
            let mut wait = |at: Time| wake = Some(wake.map_or(at, |wake| wake.min(at)));
            match peer.link {
                Some(link) if now.since(peer.sent) >= timing.keep_alive => {
                    wait(now + timing.keep_alive);
                    self.keep_alive(now, link);
                }
                Some(_) => wait(peer.sent + timing.keep_alive),
                None if peer.connect_at <= now => {
                    peer.connect_at = now + timing.keep_alive;
                    wait(peer.connect_at);
                    let address = peer.address.clone();
                    self.outputs.push_back(Output::Connect { instance, address });
                }
                None => wait(peer.connect_at),
            }
            if let Some(at) = wake {
                self.wake_at(at);
            }
        }
    }

    fn keep_alive(&mut self, now: Time, link: LinkId) {
        let message = LinkMessage::KeepAlive { store_silent: now.since(self.store.heard) };
        self.outputs.push_back(Output::Send { link, message });
        if let Some(peer) = self.links.get(&link).and_then(|instance| self.peers.get_mut(instance)) {
            peer.sent = now;
        }
    }

    /// Tells a peer, once per link, that nothing of its earlier links is executed any more.
    pub(super) fn tell_settled(&mut self, instance: InstanceId) {
        let Some(peer) = self.peers.get_mut(&instance) else { return };
        let Some(link) = peer.link.filter(|_| !peer.settled) else { return };
        let earlier = self.executions.values().any(|one| one.source.is_of_earlier_link(instance, link));
        if !earlier {
            peer.settled = true;
            self.outputs.push_back(Output::Send { link, message: LinkMessage::Settled });
        }
    }

    /// The link to a member, unless the member is lost.
    pub(super) fn link_to(&self, now: Time, instance: InstanceId) -> Option<LinkId> {
        let peer = self.peers.get(&instance)?;
        peer.link.filter(|_| !peer.is_lost(now, &self.timing, self.store.heard))
    }

    /// Whether this instance, not oneself, can no longer be a group's owner.
    pub(super) fn is_lost(&self, now: Time, instance: InstanceId) -> bool {
        match self.members.value().membership(instance) {
            None | Some(Membership::Expelled) => true,
            Some(Membership::Joined) => self
                .peers
                .get(&instance)
                .is_some_and(|peer| peer.is_lost(now, &self.timing, self.store.heard)),
        }
    }

    /// How many groups an instance owns.
    pub(super) fn owned(&self, instance: InstanceId) -> usize {
        let owns = |group: &&Group<P>| group.owner.value().owner == Some(instance);
        self.groups.values().filter(owns).count()
    }
}
