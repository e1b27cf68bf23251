//! Requests of the control plane: volumes added and removed, changed exports, listings, and the stop.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::LinkDeparture;
use flight_recorder::{Event, EventKind};
use stream::{Connection, ConnectionClose, Tag};
use volume::{
    IdSpace, OperatorNotice, Refusal, RequestId, UnservableReason, VolumeAnswer, VolumeId, VolumeRequest,
};

use super::Shard;
use super::connections::ConnKind;
use super::group::GroupVolume;
use super::iscsi::control::session_entries;
use super::nvme::control::{all_queues_ended, end_queues, stop_queue};
use super::outbox::Outbox;
use super::protocol_front::ProtocolFront;
use crate::exports::Exports;
use crate::log::LogLine;
use crate::message::{ControlReport, ControlRequest, Message, ShardListing};

/// A stop that is under way.
#[derive(Debug)]
pub(super) struct StopProgress {
    request: u64,
    deadline: Time,
    /// Volumes whose flush is out; `None`: sessions have not ended yet.
    flushing: Option<Vec<VolumeId>>,
    /// What was written to one of them is not, or may not be, on stable storage.
    in_doubt: bool,
    told: bool,
}

/// Requests of the control plane that wait for something.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    /// `None`: nobody wants to hear of it.
    waiting: HashMap<RequestId, Option<u64>>,
    made: u64,
    /// Changes of exports that other shards have still to follow, and how many of those.
    barriers: Vec<(u64, u16)>,
    /// Volumes that go away when nothing is in flight on them.
    drops: Vec<(u64, VolumeId)>,
}

impl PendingRequests {
    /// Whether any has not been answered.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || !self.drops.is_empty()
    }

    fn next_request_id(&mut self, control: Option<u64>) -> RequestId {
        self.made += 1;
        let number = RequestId::in_space(IdSpace::Shard, self.made);
        self.waiting.insert(number, control);
        number
    }

    /// Whether an answer was for the control plane.
    pub(super) fn handle_answer(&mut self, outbox: &mut Outbox, answer: &VolumeAnswer) -> bool {
        let Some(id) = self.waiting.remove(&answer.id) else { return false };
        let Some(id) = id else { return true };
        let report = match answer.result {
            Ok(()) => ControlReport::Done,
            Err(refusal) => ControlReport::Refused(refusal),
        };
        outbox.send_report(id, report);
        true
    }

    pub(super) fn handle_barrier_reached(&mut self, outbox: &mut Outbox, id: u64) {
        let Some(at) = self.barriers.iter().position(|(known, _)| *known == id) else { return };
        let Some((_, left)) = self.barriers.get_mut(at) else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.barriers.remove(at);
            outbox.send_report(id, ControlReport::Done);
        }
    }
}

impl Shard {
    pub(super) fn handle_control_request(&mut self, cx: &mut Cx<'_>, id: u64, control: ControlRequest) {
        let report = match control {
            // A place is given again only when every shard has let go who had it.
            ControlRequest::AddVolume(spec) if !self.parts.volumes.is_free_for(spec.facts.id) => {
                ControlReport::Refused(Refusal::Busy)
            }
            ControlRequest::AddVolume(mut spec) => {
                if let Some(view) = self.parts.volumes.take_early_view(spec.facts.id, &spec.view) {
                    spec.view = view;
                }
                let view = match spec.in_group {
                    true => GroupVolume::new(spec.facts.clone(), spec.view.clone()).shown_view(&spec.view),
                    false => spec.view.clone(),
                };
                self.parts.log.record_of_volume(EventKind::VolumeAdded, &spec.facts.name);
                self.iscsi.server.add_unit(spec.unit_spec(), view.clone());
                self.nvme.server.add_volume(spec.volume_info(), view);
                self.parts.volumes.insert(cx, &mut self.remotes, *spec);
                ControlReport::Done
            }
            ControlRequest::DropVolume(volume) => {
                if let Some(local) = self.parts.volumes.get(volume) {
                    self.parts.log.record_of_volume(EventKind::VolumeRemoved, local.name());
                }
                self.iscsi.server.remove_unit(volume);
                self.nvme.server.remove_volume(volume);
                self.release_throttled(cx, Some(volume));
                // Who asked before has lost patience, or would not ask again.
                self.requests.drops.retain(|(_, known)| *known != volume);
                self.requests.drops.push((id, volume));
                return;
            }
            ControlRequest::VolumeRequest(volume, request) => {
                return self.request_for_control(cx, id, volume, request);
            }
            ControlRequest::Exports(exports) => {
                self.parts.log.record(&Event::new(EventKind::ExportsChanged));
                let old = self.replace_exports(cx, exports);
                return self.recall_for_exports(cx, &old, id);
            }
            ControlRequest::List => ControlReport::Listing(Box::new(self.make_listing(cx))),
            ControlRequest::Stop { grace } => return self.start_stop(cx, id, grace),
            ControlRequest::Quiesce => return self.start_quiesce(cx, id),
            ControlRequest::ForceQuiesce => return self.force_quiesce(id),
            ControlRequest::Settle => return self.report_when_applied(cx, id),
            ControlRequest::Save => self.save_report(cx),
            ControlRequest::Resume => {
                self.end_quiesce(cx);
                ControlReport::Done
            }
        };
        self.parts.outbox.send_report(id, report);
    }

    fn request_for_control(&mut self, cx: &mut Cx<'_>, id: u64, volume: VolumeId, request: VolumeRequest) {
        if self.parts.volumes.get(volume).is_none() {
            return self.parts.outbox.send_report(id, ControlReport::NoVolume);
        }
        self.request_from_local_owner(cx, Some(id), volume, request);
    }

    /// Asks a volume's home for something that nobody waits for.
    pub(super) fn request_without_reply(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        request: VolumeRequest,
    ) {
        let home = self.parts.volumes.home_of(volume);
        if home == self.parts.id {
            return self.request_from_local_owner(cx, None, volume, request);
        }
        let number = self.requests.next_request_id(None);
        self.parts.outbox.post(home, Message::VolumeRequest(volume, self.parts.id, number, request));
    }

    fn request_from_local_owner(
        &mut self,
        cx: &mut Cx<'_>,
        control: Option<u64>,
        volume: VolumeId,
        request: VolumeRequest,
    ) {
        let number = self.requests.next_request_id(control);
        let elsewhere = self.parts.volumes.get(volume).is_some_and(|local| local.is_owned_elsewhere());
        let answer = if elsewhere {
            self.parts.volumes.submitted.submit_for_operator(volume, number, request)
        } else {
            self.parts.request_from_owner(cx, volume, (self.parts.id, number), request)
        };
        if let Some(answer) = answer {
            self.requests.handle_answer(&mut self.parts.outbox, &answer);
        }
    }

    /// Lets volumes go on which nothing is in flight any more; true if one went.
    pub(super) fn drop_idle_volumes(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.requests.drops.is_empty() {
            return false;
        }
        let mut dropped = false;
        let drops = std::mem::take(&mut self.requests.drops);
        for (id, volume) in drops {
            let Some(answers) = self.parts.volumes.drop_idle(cx, &mut self.remotes, volume) else {
                self.requests.drops.push((id, volume));
                continue;
            };
            for answer in answers {
                self.parts.outbox.post(answer.to, Message::Answer(volume, answer));
            }
            self.parts.outbox.send_report(id, ControlReport::Done);
            dropped = true;
        }
        dropped
    }

    /// Reports a change once every shard has done what this one told it of the change: a controller's
    /// queues may be on any.
    pub(super) fn report_when_applied(&mut self, cx: &mut Cx<'_>, id: u64) {
        self.nvme.run_steps(cx, &mut self.parts);
        self.requests.barriers.push((id, self.parts.shards));
        let from = self.parts.id;
        self.parts.outbox.broadcast(|| Message::Barrier(from, id));
    }

    /// Takes other exports over, and gives those of before.
    fn replace_exports(&mut self, cx: &mut Cx<'_>, exports: Arc<Exports>) -> Arc<Exports> {
        let old = std::mem::replace(&mut self.parts.exports, exports);
        self.nvme.apply_exports_to_controllers(cx, &mut self.parts);
        self.iscsi.apply_exports_to_sessions(cx, &mut self.parts);
        self.update_limits(cx);
        old
    }

    fn make_listing(&self, cx: &mut Cx<'_>) -> ShardListing {
        let usage = cx.pool.usage();
        ShardListing {
            sessions: session_entries(&self.parts.conns),
            queues: self.nvme.queue_entries(&self.parts),
            volumes: self.parts.volumes.volume_entries(cx.now),
            memory: (usage.capacity, usage.lent, usage.reserved),
            logins: self.parts.admission.logins,
            refusals: self.parts.log.refusal_counts().to_vec(),
            delayed: self.parts.admission.backoff.delayed_sources(cx.now).collect(),
        }
    }

    fn start_stop(&mut self, cx: &mut Cx<'_>, id: u64, grace: Duration) {
        self.parts.log.record(&Event::new(EventKind::Stop));
        self.end_quiesce(cx);
        let deadline = cx.now + grace;
        self.parts.stopping =
            Some(StopProgress { request: id, deadline, flushing: None, in_doubt: false, told: false });
        // What is in flight is to be answered in time.
        self.release_throttled(cx, None);
        let tags: Vec<Tag> = self.parts.conns.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            match self.parts.conns.get_mut(tag).map(|conn| &mut conn.kind) {
                Some(ConnKind::Session(session)) => {
                    session.proto.close(cx, ConnectionClose::AfterLogout(deadline))
                }
                Some(ConnKind::Login(pending_login)) => {
                    let link = pending_login.id;
                    self.iscsi.depart_link(&mut self.parts, link, LinkDeparture::Close);
                }
                Some(ConnKind::Queue(_)) => stop_queue(cx, &mut self.parts.conns, tag, deadline),
                None => {}
            }
            self.parts.conns.mark_pending(tag);
        }
    }

    pub(super) fn stop_deadline(&self) -> Option<Time> {
        self.parts.stopping.as_ref().filter(|stop| stop.flushing.is_none()).map(|stop| stop.deadline)
    }

    pub(super) fn handle_stop_timeout(&mut self, cx: &mut Cx<'_>) {
        if self.stop_deadline().is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        let tags: Vec<Tag> = self.iscsi.sessions.values().copied().collect();
        for tag in tags {
            if let Some(session) = self.parts.conns.session_mut(tag) {
                session.proto.close(cx, ConnectionClose::Now);
            }
            self.parts.conns.mark_pending(tag);
        }
        end_queues(cx, &mut self.parts.conns);
        self.start_stop_flushes(cx);
    }

    /// When all sessions have ended, flushes; when all is flushed, says so. True if it did either.
    pub(super) fn advance_stop(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.drop_idle_volumes(cx) || self.parts.stopping.is_some() && self.nvme.end_idle_controllers() {
            return true;
        }
        let over = self.iscsi.sessions.is_empty()
            && (self.parts.stopping.is_none() || all_queues_ended(&self.parts.conns));
        match &mut self.parts.stopping {
            Some(StopProgress { flushing: None, .. }) if over => {
                self.start_stop_flushes(cx);
                true
            }
            Some(StopProgress { flushing: Some(left), told, request, in_doubt, .. })
                if left.is_empty() && !*told =>
            {
                // What was flushed is safe; now peers that hold volumes of ours are parted from.
                if !self.remotes.close_all(cx) {
                    return false;
                }
                *told = true;
                let (id, safe) = (*request, !*in_doubt);
                let refused = ControlReport::Refused(Refusal::NotReady(UnservableReason::SyncFailed));
                self.parts.outbox.send_report(id, if safe { ControlReport::Done } else { refused });
                true
            }
            Some(_) | None => false,
        }
    }

    fn start_stop_flushes(&mut self, cx: &mut Cx<'_>) {
        let volumes = self.parts.volumes.volumes_to_flush();
        if let Some(stopping) = &mut self.parts.stopping {
            stopping.flushing = Some(volumes.clone());
        }
        for volume in volumes {
            self.parts.volumes.start_stop_flush(cx, volume);
        }
    }

    /// A flush of the stop has ended. After a sync that failed a later one says nothing of what was lost.
    pub(super) fn handle_stop_flush_done(&mut self, volume: VolumeId, well: bool) {
        let failed = self.parts.volumes.get(volume).is_some_and(|local| local.gate.has_sync_failed());
        if let Some(StopProgress { flushing: Some(left), in_doubt, .. }) = &mut self.parts.stopping {
            left.retain(|known| *known != volume);
            *in_doubt |= !well || failed;
        }
        if let Some(local) = self.parts.volumes.get(volume).filter(|_| !well || failed) {
            let name = local.name().clone();
            self.parts.log.push(LogLine::Volume { name, remark: OperatorNotice::NotFlushed });
        }
    }
}
