//! Volumes of a gateway group: executed here while this gateway owns them, and by their owner otherwise.
//!
//! ```text
//!            hosts' commands               commands of other gateways
//!                   │                                 │ Execute
//!      direct? ──── yes ──► gate, owner object ◄──────┘
//!          │                                ▲
//!          no ──► Submit ──► the group ─────┘ here, or at another gateway
//! ```
//!
//! The home of a volume takes what the group says of it, and tells every shard, itself included, by [`GroupStep`]. Hosts'
//! commands go past the group only where and while the volume is executed here, so their cost is that of any volume; before
//! the group gives the volume away it has every shard submit them, and waits until nothing is in flight.
//!
//! Gates and owner objects keep their views apart from the servers': those have a view that also says how gateways reach
//! the volume, and by which nothing is decided while another gateway owns it (`group_volume.rs`).

mod executions;
mod group_volume;
mod submitted;

use std::sync::Arc;

use buf::Cx;
use endpoint::ShardId;
use group::{PathState, Snapshot, Term};
use volume::{
    AbortScope, ChangeId, Epoch, Geometry, Notice, NoticeCause, NoticeReceivers, OperatorNotice, PathAccess,
    PortId, Uuid, View, ViewUpdate, VolumeId, VolumeOwner,
};

use super::Shard;
use super::local_volumes::{LocalVolume, LocalVolumes};
use super::outbox::Outbox;
use super::protocol_front::ProtocolFront;
use crate::log::LogLine;
use crate::message::{CONTROL_PLANE, FromGateway, GroupStep, Message, ToGateway};
pub(super) use executions::Executions;
pub(super) use group_volume::GroupVolume;
pub(super) use submitted::SubmittedCommands;
use submitted::SubmittedEnd;

/// Views of a term's owner object are counted from here, so that each is later than all of the terms before: no owner lives
/// to see so many changes.
const EPOCHS_PER_TERM: u64 = 1 << 32;

impl Shard {
    /// What runs the membership has something to say of a volume, whose home is here.
    pub(super) fn handle_from_gateway(&mut self, cx: &mut Cx<'_>, message: FromGateway) {
        match message {
            FromGateway::Open { volume, term, record, geometry } => {
                self.open_in_group(volume, term, record.as_deref(), geometry);
            }
            FromGateway::OpenFailed { volume } => self.log_unreadable_record(volume),
            FromGateway::Quiesce { volume, round } => self.quiesce(volume, round),
            FromGateway::Close { volume } => self.close_in_group(volume),
            FromGateway::Execute { volume, execution, who, command } => {
                self.parts.volumes.execute(cx, volume, execution, who, command);
                self.parts.volumes.mark_pending(volume);
            }
            FromGateway::Cancel { volume, execution } => {
                self.parts.volumes.cancel_execution(volume, execution);
            }
            FromGateway::Answer { number, result } => {
                match self.parts.volumes.submitted.take_answer(number, result) {
                    Some(SubmittedEnd::Io(done)) => self.parts.volumes.orphans.push_back(done),
                    Some(SubmittedEnd::Request(volume, answer)) => {
                        self.handle_volume_answer(cx, volume, answer);
                    }
                    None => {}
                }
            }
            FromGateway::Path { volume, state, others } => self.set_group_path(volume, state, others),
            FromGateway::Snapshot { volume, snapshot } => self.take_snapshot(volume, &snapshot),
            FromGateway::Notices { volume, notices } => {
                self.tell_shards(volume, GroupStep::Notices(notices));
            }
            FromGateway::NoticesLost { volume } => self.tell_shards(volume, GroupStep::NoticesLost),
            FromGateway::ControllerIds { first, count } => self.nvme.add_controller_range(first, count),
            FromGateway::HostBound { number, result } => {
                self.nvme.handle_host_bound(&mut self.parts, number, result);
            }
            FromGateway::ResetController { number, controller } => {
                self.nvme.start_group_reset(&mut self.parts, number, &controller);
            }
            FromGateway::ControllerReset { number, answer } => {
                self.nvme.handle_group_reset(cx, &mut self.parts, number, answer);
            }
            FromGateway::Stored { volume, ticket } => {
                self.parts.volumes.handle_stored(cx, volume, ticket, true)
            }
        }
    }

    fn tell_shards(&mut self, volume: VolumeId, step: GroupStep) {
        self.parts.outbox.broadcast(|| Message::InGroup(volume, step.clone()));
    }

    /// A volume of a group.
    fn group_volume_mut(&mut self, volume: VolumeId) -> Option<&mut LocalVolume> {
        self.parts.volumes.get_mut(volume).filter(|local| local.group.is_some())
    }

    fn open_in_group(&mut self, volume: VolumeId, term: Term, record: Option<&[u8]>, geometry: Geometry) {
        let shards = self.parts.shards;
        let Some(local) = self.group_volume_mut(volume) else { return };
        let Some(part) = local.group.as_mut() else { return };
        let owner = VolumeOwner::restore((*part.facts).clone(), geometry, shards, true, record);
        let Ok(owner) = owner else { return self.log_unreadable_record(volume) };
        let owner = owner.starting_at(Epoch(term.0.saturating_mul(EPOCHS_PER_TERM)));
        part.term = term;
        let (view, uuid) = (owner.view().clone(), part.facts.uuid);
        // What the owner before let hosts do after a sanitize that failed was not recorded.
        local.gate.shared_state().restrict_sanitize_exit(view.owes_sanitize);
        local.home = Some(Box::new(owner));
        let message = publication(volume, term, uuid, &view, Vec::new());
        self.parts.outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
        self.tell_shards(volume, GroupStep::Opened(view));
    }

    fn log_unreadable_record(&mut self, volume: VolumeId) {
        if let Some(local) = self.group_volume_mut(volume) {
            let name = local.name().clone();
            self.parts.log.push(LogLine::Volume { name, remark: OperatorNotice::RecordUnreadable });
        }
    }

    fn quiesce(&mut self, volume: VolumeId, round: u64) {
        let all = (0..self.parts.shards).map(ShardId).collect();
        let Some(local) = self.group_volume_mut(volume) else { return };
        if let Some(part) = &mut local.group {
            part.quiescing = Some((round, all));
        }
        self.tell_shards(volume, GroupStep::Quiesce(round));
    }

    fn close_in_group(&mut self, volume: VolumeId) {
        let Some(local) = self.group_volume_mut(volume) else { return };
        if let Some(part) = &mut local.group {
            part.quiescing = None;
        }
        let answers = local.home.take().map(|home| home.into_refusals()).unwrap_or_default();
        for answer in answers {
            self.parts.outbox.post(answer.to, Message::Answer(volume, answer));
        }
        self.tell_shards(volume, GroupStep::Closed);
    }

    fn set_group_path(&mut self, volume: VolumeId, state: PathState, others: Arc<[(PortId, PathAccess)]>) {
        let Some(local) = self.group_volume_mut(volume) else { return };
        if let Some(part) = local.group.as_mut().filter(|_| state == PathState::Optimized) {
            part.quiescing = None;
        }
        let mut others = others.to_vec();
        others.sort_unstable_by_key(|(port, _)| *port);
        self.tell_shards(volume, GroupStep::Path(state, others.into()));
    }

    fn take_snapshot(&mut self, volume: VolumeId, snapshot: &Snapshot) {
        let Some(local) = self.group_volume_mut(volume) else { return };
        let Some(part) = &local.group else { return };
        // Gateways of one group are of one release: another's state can be read, or is not one.
        if let Ok(view) = View::from_replica(&snapshot.record, part.facts.uuid) {
            self.tell_shards(volume, GroupStep::Replica(view));
        }
    }

    /// The home of a group's volume has something to say.
    pub(super) fn handle_group_step(&mut self, cx: &mut Cx<'_>, volume: VolumeId, step: GroupStep) {
        let Some(local) = self.parts.volumes.get_mut(volume) else { return };
        let Some(part) = local.group.as_mut() else { return };
        let told = match step {
            GroupStep::Opened(view) => {
                let adopted = ViewUpdate {
                    change: ChangeId(0),
                    view: view.clone(),
                    drain: false,
                    abort: AbortScope::Nobody,
                    notices: Vec::new(),
                    asked: None,
                };
                local.gate.update_view(&adopted);
                part.open(&view);
                Some(part.take_missed_notices())
            }
            GroupStep::Path(state, others) => part
                .set_path(state, others)
                .then(|| vec![Notice { to: NoticeReceivers::All, cause: NoticeCause::AccessChanged }]),
            GroupStep::Quiesce(round) => {
                part.start_quiesce(round);
                None
            }
            GroupStep::Quiet(from, round) => {
                if let Some((_, left)) = part.quiescing.as_mut().filter(|(known, _)| *known == round) {
                    left.retain(|shard| *shard != from);
                }
                None
            }
            GroupStep::Closed => {
                part.close();
                Some(Vec::new())
            }
            GroupStep::Replica(view) => {
                (!part.is_open && part.take_view(&view)).then(|| part.take_missed_notices())
            }
            GroupStep::Notices(notices) => Some(notices.to_vec()),
            GroupStep::NoticesLost => {
                part.note_missed();
                // Hosts look again at what they can see of the paths.
                Some(vec![Notice { to: NoticeReceivers::All, cause: NoticeCause::AccessChanged }])
            }
        };
        let update = told.map(|notices| part.shown_update(notices));
        self.parts.volumes.mark_pending(volume);
        if let Some(update) = update {
            self.update_servers(cx, volume, &update);
        }
    }

    /// The servers take a change over.
    pub(super) fn update_servers(&mut self, cx: &mut Cx<'_>, volume: VolumeId, update: &ViewUpdate) {
        self.iscsi.server.update_view(volume, update);
        self.iscsi.run_steps(cx, &mut self.parts);
        self.nvme.server.update_view(volume, update);
        self.nvme.run_steps(cx, &mut self.parts);
    }

    /// A change of an owner object of this gateway, as the servers are to see it.
    pub(super) fn shown_change(&mut self, volume: VolumeId, update: &ViewUpdate) -> Option<ViewUpdate> {
        let part = self.parts.volumes.get_mut(volume)?.group.as_mut()?;
        part.take_view(&update.view);
        Some(ViewUpdate { view: part.shown_view(&update.view), ..update.clone() })
    }
}

impl LocalVolumes {
    /// Does what waits, and sends what is for the group; true if there was any.
    pub(super) fn run_group(&mut self, cx: &mut Cx<'_>, outbox: &mut Outbox) -> bool {
        let mut any = self.start_waiting_executions(cx);
        while let Some(message) = self.submitted.out.pop_front() {
            any = true;
            outbox.post(CONTROL_PLANE, Message::ToGateway(Box::new(message)));
        }
        any
    }

    /// Tells the home, and the home the group, when nothing is in flight any more.
    pub(super) fn check_quiesced(&mut self, volume: VolumeId, outbox: &mut Outbox) {
        let (shard, home) = (self.shard_id(), self.home_of(volume));
        let waits = self.executions.has_waiting_of(volume);
        let Some(local) = self.get_mut(volume) else { return };
        let idle = local.gate.in_flight_count() == 0 && !waits;
        let owner_idle = local.home.as_ref().is_none_or(|home| home.is_idle());
        let Some(part) = local.group.as_mut() else { return };
        if let Some(round) = part.quiesce.take_if(|_| idle) {
            outbox.post(home, Message::InGroup(volume, GroupStep::Quiet(shard, round)));
        }
        if let Some((round, _)) = part.quiescing.take_if(|(_, left)| left.is_empty() && idle && owner_idle) {
            let message = Box::new(ToGateway::Quiesced { volume, round });
            outbox.post(CONTROL_PLANE, Message::ToGateway(message));
        }
    }
}

/// What the other gateways are to know of a volume that this one owns.
pub(super) fn publication(
    volume: VolumeId,
    term: Term,
    uuid: Uuid,
    view: &View,
    notices: Vec<Notice>,
) -> ToGateway {
    let snapshot = Snapshot { geometry: view.geometry, record: view.to_replica(uuid).into() };
    ToGateway::Publish { volume, term, snapshot, notices }
}
