//! What the control plane asks: volumes that come and go, exports that change, listings, and the stop.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::{Accepted, Departure, ShardId};
use scsi_server::{LunEntry, NexusKey};
use stream::{Close, Connection, Tag};
use volume::{Answer, OperatorNotice, Refusal, RequestId, UnservableReason, VolumeId, VolumeRequest};

use super::Shard;
use super::conns::{ConnKind, Session};
use super::outbox::Outbox;
use crate::exports::Exports;
use crate::links::Links;
use crate::log::LogLine;
use crate::message::{ConnectionEntry, Control, Listing, Message, Report, SessionEntry};

/// Asks of the control plane are numbered from here, the server's own from 0.
const CONTROL_ASKS: u64 = 1 << 62;

/// How long initiators may take to log out after a TARGET COLD RESET, before their connections are closed.
const COLD_RESET_GRACE: Duration = Duration::from_secs(2);

/// A stop that is under way.
#[derive(Debug)]
pub(super) struct Stopping {
    request: u64,
    deadline: Time,
    /// Volumes whose flush is out; `None`: sessions have not ended yet.
    flushing: Option<Vec<VolumeId>>,
    /// What was written to one of them is not, or may not be, on stable storage.
    in_doubt: bool,
    told: bool,
}

/// What a session may do.
enum Access {
    /// Reach these logical units.
    Reaches(NexusKey, Vec<LunEntry>),
    /// Discover targets.
    Discovers,
    /// Nothing: it must end.
    Out,
}

/// Requests of the control plane that wait for something.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    /// `None`: nobody wants to hear of it.
    asks: HashMap<RequestId, Option<u64>>,
    made: u64,
    /// Changes of exports that other shards have still to follow, and how many of those.
    barriers: Vec<(u64, u16)>,
    /// Volumes that go away when nothing is in flight on them.
    drops: Vec<(u64, VolumeId)>,
}

impl PendingRequests {
    fn number_ask(&mut self, request: Option<u64>) -> RequestId {
        self.made += 1;
        let number = RequestId(CONTROL_ASKS | self.made);
        self.asks.insert(number, request);
        number
    }

    /// Whether an answer was for the control plane.
    pub(super) fn answered(&mut self, outbox: &mut Outbox, answer: &Answer) -> bool {
        let Some(id) = self.asks.remove(&answer.id) else { return false };
        let Some(id) = id else { return true };
        let report = match answer.result {
            Ok(()) => Report::Done,
            Err(refusal) => Report::Refused(refusal),
        };
        outbox.report(id, report);
        true
    }

    pub(super) fn barrier_reached(&mut self, outbox: &mut Outbox, id: u64) {
        let Some(at) = self.barriers.iter().position(|(known, _)| *known == id) else { return };
        let Some((_, left)) = self.barriers.get_mut(at) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.barriers.remove(at);
            outbox.report(id, Report::Done);
        }
    }
}

impl Shard {
    pub(super) fn control(&mut self, cx: &mut Cx<'_>, id: u64, control: Control) {
        let report = match control {
            // A place is given again only when every shard has let go who had it.
            Control::AddVolume(spec) if !self.volumes.is_free_for(spec.facts.id) => {
                Report::Refused(Refusal::Busy)
            }
            Control::AddVolume(mut spec) => {
                if let Some(view) = self.volumes.take_early_view(spec.facts.id, &spec.view) {
                    spec.view = view;
                }
                let view = spec.view.clone();
                self.iscsi.server.add_unit(spec.unit(), view.clone());
                self.nvme.server.add_volume(spec.namespace(), view);
                self.volumes.add(cx, &mut self.remotes, *spec);
                Report::Done
            }
            Control::DropVolume(volume) => {
                self.iscsi.server.remove_unit(volume);
                self.nvme.server.remove_volume(volume);
                // Who asked before has lost patience, or would not ask again.
                self.requests.drops.retain(|(_, known)| *known != volume);
                self.requests.drops.push((id, volume));
                return;
            }
            Control::VolumeRequest(volume, ask) => return self.control_ask(cx, id, volume, ask),
            Control::Exports(exports) => {
                let old = self.change_exports(cx, exports);
                return self.withdraw(cx, &old, id);
            }
            Control::List => Report::Listing(Box::new(self.listing(cx))),
            Control::Stop { grace } => return self.stop(cx, id, grace),
        };
        self.outbox.report(id, report);
    }

    fn control_ask(&mut self, cx: &mut Cx<'_>, id: u64, volume: VolumeId, ask: VolumeRequest) {
        if self.volumes.get(volume).is_none() {
            return self.outbox.report(id, Report::NoVolume);
        }
        self.ask_for(cx, Some(id), volume, ask);
    }

    /// Asks a volume's home for something that nobody waits for.
    pub(super) fn ask_of_own(&mut self, cx: &mut Cx<'_>, volume: VolumeId, ask: VolumeRequest) {
        let home = self.volumes.home_of(volume);
        if home == self.id {
            return self.ask_for(cx, None, volume, ask);
        }
        let number = self.requests.number_ask(None);
        self.outbox.post(home, Message::VolumeRequest(volume, self.id, number, ask));
    }

    fn ask_for(&mut self, cx: &mut Cx<'_>, request: Option<u64>, volume: VolumeId, ask: VolumeRequest) {
        let number = self.requests.number_ask(request);
        if let Some(answer) = self.volumes.ask(cx, volume, self.id, number, ask) {
            self.requests.answered(&mut self.outbox, &answer);
        }
    }

    /// Lets volumes go on which nothing is in flight any more; true if one went.
    pub(super) fn drop_volumes(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.requests.drops.is_empty() {
            return false;
        }
        let mut dropped = false;
        let drops = std::mem::take(&mut self.requests.drops);
        for (id, volume) in drops {
            let Some(answers) = self.volumes.drop_idle(cx, &mut self.remotes, volume) else {
                self.requests.drops.push((id, volume));
                continue;
            };
            for answer in answers {
                self.outbox.post(ShardId(answer.to.0), Message::Answer(volume, answer));
            }
            self.outbox.report(id, Report::Done);
            dropped = true;
        }
        dropped
    }

    /// Reports a change once every shard has done what this one told it of the change: a controller's
    /// queues may be on any.
    pub(super) fn report_when_applied(&mut self, cx: &mut Cx<'_>, id: u64) {
        self.run_nvme_steps(cx);
        self.requests.barriers.push((id, self.shards));
        let from = self.id;
        self.outbox.broadcast(|| Message::Barrier(from, id));
    }

    /// Sessions keep what they may still reach; those that may reach nothing any more are ended. Gives the exports of before.
    fn change_exports(&mut self, cx: &mut Cx<'_>, exports: Arc<Exports>) -> Arc<Exports> {
        let old = std::mem::replace(&mut self.exports, exports);
        self.change_controllers(cx);
        let tags: Vec<Tag> = self.iscsi.sessions.values().copied().collect();
        for tag in tags {
            match self.access(tag) {
                Access::Reaches(nexus, luns) => self.change_luns(nexus, luns),
                Access::Discovers => {}
                Access::Out => {
                    if let Some(session) = self.conns.session(tag) {
                        session.proto.close(cx, Close::AfterLogout(cx.now + Duration::from_secs(5)));
                    }
                    self.conns.touch(tag);
                }
            }
        }
        old
    }

    /// Ends the sessions of a target that was reset: their initiators hear why, and are in again with a login.
    pub(super) fn end_sessions_of(&mut self, cx: &mut Cx<'_>, target: &str) {
        let tags: Vec<Tag> = self.iscsi.sessions.values().copied().collect();
        for tag in tags {
            let Some(session) =
                self.conns.session(tag).filter(|session| session.target.as_deref() == Some(target))
            else {
                continue;
            };
            session.proto.close(cx, Close::AfterLogout(cx.now + COLD_RESET_GRACE));
            self.conns.touch(tag);
        }
    }

    /// What a session may do by the exports of now. Each connection is judged by its own addresses, as it was when it
    /// came; while there is none, the latest one is.
    fn access(&mut self, tag: Tag) -> Access {
        let Some(session) = self.conns.session(tag) else { return Access::Out };
        let (nexus, proved) = (session.nexus, session.user.is_some());
        let (target, initiator) = (session.target.clone(), session.initiator.clone());
        let links: Vec<Accepted> = session.links.iter().map(|link| link.accepted).collect();
        let latest = session.latest;
        let Some(target) = target else {
            return if self.exports.may_discover(proved) { Access::Discovers } else { Access::Out };
        };
        let reached = |accepted: &Accepted| self.exports.reached(&target, &initiator, proved, accepted);
        let luns = reached(links.first().unwrap_or(&latest));
        match (nexus, luns) {
            (Some(nexus), Some(luns)) if links.iter().all(|link| reached(link).as_ref() == Some(&luns)) => {
                Access::Reaches(nexus, luns)
            }
            (_, _) => Access::Out,
        }
    }

    /// Whether a further connection of a session, that came like this, reaches just what its others reach. A session
    /// without any has from now on what this one reaches.
    pub(super) fn shares(&mut self, conn: Tag, accepted: &Accepted) -> bool {
        let Some(session) = self.conns.session(conn) else { return false };
        let Some(nexus) = session.nexus else { return true };
        let (proved, initiator) = (session.user.is_some(), session.initiator.clone());
        let Some(target) = session.target.clone() else { return true };
        let others: Vec<Accepted> = session.links.iter().map(|link| link.accepted).collect();
        let Some(luns) = self.exports.reached(&target, &initiator, proved, accepted) else { return false };
        let alike = |other: &Accepted| {
            self.exports.reached(&target, &initiator, proved, other).as_ref() == Some(&luns)
        };
        if !others.iter().all(alike) {
            return false;
        }
        if others.is_empty() {
            self.change_luns(nexus, luns);
        }
        true
    }

    fn listing(&self, cx: &mut Cx<'_>) -> Listing {
        let usage = cx.pool.usage();
        let sessions = self.conns.iter().filter_map(|(_, conn)| match &conn.kind {
            ConnKind::Session(session) => Some(entry(session, &self.conns.links)),
            ConnKind::Login(_) | ConnKind::Queue(_) => None,
        });
        Listing {
            sessions: sessions.collect(),
            queues: self.queue_entries(),
            volumes: self.volumes.entries(),
            memory: (usage.capacity, usage.lent, usage.reserved),
            logins: self.admission.logins,
        }
    }

    fn stop(&mut self, cx: &mut Cx<'_>, id: u64, grace: Duration) {
        let deadline = cx.now + grace;
        self.stopping =
            Some(Stopping { request: id, deadline, flushing: None, in_doubt: false, told: false });
        let tags: Vec<Tag> = self.conns.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            match self.conns.get_mut(tag).map(|conn| &mut conn.kind) {
                Some(ConnKind::Session(session)) => session.proto.close(cx, Close::AfterLogout(deadline)),
                Some(ConnKind::Login(pending_login)) => {
                    let link = pending_login.id;
                    self.depart(link, Departure::Close);
                }
                Some(ConnKind::Queue(_)) => self.stop_queue(cx, tag, deadline),
                None => {}
            }
            self.conns.touch(tag);
        }
    }

    pub(super) fn stop_deadline(&self) -> Option<Time> {
        self.stopping.as_ref().filter(|stop| stop.flushing.is_none()).map(|stop| stop.deadline)
    }

    pub(super) fn stop_timeout(&mut self, cx: &mut Cx<'_>) {
        if self.stop_deadline().is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        let tags: Vec<Tag> = self.iscsi.sessions.values().copied().collect();
        for tag in tags {
            if let Some(session) = self.conns.session(tag) {
                session.proto.close(cx, Close::Now);
            }
            self.conns.touch(tag);
        }
        self.end_queues(cx);
        self.flush_all(cx);
    }

    /// When all sessions have ended, flushes; when all is flushed, says so. True if it did either.
    pub(super) fn stop_progress(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.drop_volumes(cx) || self.stopping.is_some() && self.nvme.end_controllers() {
            return true;
        }
        let over = self.iscsi.sessions.is_empty() && (self.stopping.is_none() || self.queues_ended());
        match &mut self.stopping {
            Some(Stopping { flushing: None, .. }) if over => {
                self.flush_all(cx);
                true
            }
            Some(Stopping { flushing: Some(left), told, request, in_doubt, .. })
                if left.is_empty() && !*told =>
            {
                // What was flushed is safe; now peers that hold volumes of ours are parted from.
                if !self.remotes.close_all(cx) {
                    return false;
                }
                *told = true;
                let (id, safe) = (*request, !*in_doubt);
                let refused = Report::Refused(Refusal::NotReady(UnservableReason::SyncFailed));
                self.outbox.report(id, if safe { Report::Done } else { refused });
                true
            }
            Some(_) | None => false,
        }
    }

    fn flush_all(&mut self, cx: &mut Cx<'_>) {
        let volumes = self.volumes.unflushed();
        if let Some(stopping) = &mut self.stopping {
            stopping.flushing = Some(volumes.clone());
        }
        for volume in volumes {
            self.volumes.flush(cx, volume);
        }
    }

    /// A flush of the stop has ended. After a sync that failed a later one says nothing of what was lost.
    pub(super) fn flushed(&mut self, volume: VolumeId, well: bool) {
        let failed = self.volumes.get(volume).is_some_and(|local| local.gate.sync_failed());
        if let Some(Stopping { flushing: Some(left), in_doubt, .. }) = &mut self.stopping {
            left.retain(|known| *known != volume);
            *in_doubt |= !well || failed;
        }
        if let Some(local) = self.volumes.get(volume).filter(|_| !well || failed) {
            let name = local.name().clone();
            self.log.push(LogLine::Volume { name, remark: OperatorNotice::NotFlushed });
        }
    }
}

fn entry(session: &Session, links: &Links) -> SessionEntry {
    let connections = session.links.iter().map(|link| ConnectionEntry {
        cid: link.cid.value(),
        peer: link.accepted.peer,
        local: link.accepted.local,
        digests: link.digests,
        segments: link.segments,
        algorithm: link.algorithm,
        traffic: links.traffic(link.id),
    });
    SessionEntry {
        tsih: session.tsih.value(),
        initiator: session.initiator.clone(),
        isid: session.isid.to_string(),
        target: session.target.clone(),
        user: session.user.clone(),
        params: session.proto.params().clone(),
        window: session.proto.command_window(),
        placed: session.placed,
        connections: connections.collect(),
        tasks: session.proto.tasks_in_work(),
        io: session.io,
    }
}
