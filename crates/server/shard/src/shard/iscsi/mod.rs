//! iSCSI on a shard: logins that become sessions, and the steps of the SCSI server.
//!
//! A login identifies the initiator (`login`), the directory decides which session it becomes, and its link
//! goes to that session's shard (`pending_sessions`, `joins`). Then commands go to the server (`sessions`)
//! and its steps come back (`steps`).

pub(super) mod control;
mod joins;
mod login;
mod nexuses;
mod pending_sessions;
mod sessions;
mod steps;

use std::collections::HashMap;
use std::sync::Arc;

use buf::Cx;
use endpoint::{AcceptedSocket, LinkId, ShardId};
use iscsi::session::Response;
use iscsi::wire::{Cid, Isid, Tsih};
use scsi::Status;
use scsi_server::{DeviceStep, NexusKey, Reply, Server, Step, TaskKey};
use stream::{Tag, TargetConnection};
use volume::{IoCompletion, Requester};

use super::connections::{ConnKind, Connections, Session};
use super::operations::OperationCommands;
use super::payload_step::{AnyStep, PayloadStep, StepName};
use super::protocol_front::ProtocolFront;
use super::{DIRECTORY_SHARD, SharedParts};
use crate::exports::{Exports, ShardPreference};
use crate::session_directory::{SessionDirectory, SessionName, SessionRecord};
use crate::target_snapshot::SessionBody;
use nexuses::PendingNexusEnds;
use pending_sessions::PendingSessions;
use sessions::forget_session;
pub(super) use sessions::session_spec;
use steps::scsi_result;

/// The iSCSI side of a shard.
pub(super) struct IscsiFront {
    pub(super) server: Server,
    /// Sessions of this shard by their handle.
    pub(super) sessions: HashMap<Tsih, Tag>,
    /// The connection of each nexus of the server.
    pub(super) nexuses: Vec<Option<Tag>>,
    /// Bytes that were promised to each initiator's sessions when they began.
    promised_by_initiator: HashMap<Arc<str>, usize>,
    pub(super) pending_sessions: PendingSessions,
    pub(super) nexus_ends: PendingNexusEnds,
    directory: Option<SessionDirectory>,
    operations: OperationCommands<TaskKey>,
}

impl IscsiFront {
    /// Of shard `id` of `shards`; the daemon may have so many sessions.
    pub(super) fn new(id: ShardId, shards: u16, sessions_max: usize) -> Self {
        IscsiFront {
            server: Server::new(id),
            sessions: HashMap::new(),
            nexuses: Vec::new(),
            promised_by_initiator: HashMap::new(),
            pending_sessions: PendingSessions::default(),
            nexus_ends: PendingNexusEnds::default(),
            operations: OperationCommands::default(),
            directory: (id == DIRECTORY_SHARD).then(|| SessionDirectory::new(shards, sessions_max)),
        }
    }

    /// A session is here, and was promised so many bytes.
    pub(super) fn note_session(&mut self, tsih: Tsih, conn: Tag, (initiator, promised): (Arc<str>, usize)) {
        self.sessions.insert(tsih, conn);
        *self.promised_by_initiator.entry(initiator).or_default() += promised;
    }

    /// On the directory's shard: enters a session of another process.
    pub(super) fn restore_directory_entry(
        &mut self,
        exports: &Exports,
        session: &SessionBody,
        (shard, latest, connections): (ShardId, AcceptedSocket, Vec<(Cid, AcceptedSocket)>),
        preference: ShardPreference,
    ) {
        let Some(directory) = &mut self.directory else { return };
        let name = SessionName {
            initiator: session.initiator.as_str().into(),
            isid: Isid(session.isid),
            target: session.target.as_str().into(),
            portal_group: exports.portal(latest.listener).map_or(0, |portal| portal.group),
        };
        let record = SessionRecord {
            name,
            shard,
            connections,
            latest,
            connections_max: session.connections_max,
            user: session.user.clone(),
            preference,
            refused: Vec::new(),
            successor: None,
        };
        directory.restore_session(Tsih::new(session.tsih), record);
    }

    /// Ends a nexus.
    pub(super) fn close_nexus(&mut self, nexus: NexusKey) {
        self.server.close_nexus(nexus);
        if let Some(slot) = self.nexuses.get_mut(nexus.0 as usize) {
            *slot = None;
        }
    }
}

impl ProtocolFront for IscsiFront {
    type Command = TaskKey;
    type Conn = Session;
    type Reply = Reply;
    type ServerStep = DeviceStep;

    #[inline]
    fn has_steps(&self) -> bool {
        self.server.has_steps()
    }

    fn poll_step(&mut self) -> Option<Step> {
        self.server.poll_step()
    }

    fn run_server_step(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, step: DeviceStep) {
        match step {
            DeviceStep::ManagementEnd(end) => self.answer_management(cx, parts, end),
            DeviceStep::FindCopyVolumes(task) => {
                let volumes = self.copy_volumes(parts, task.nexus);
                self.server.handle_copy_volumes(task, volumes);
            }
        }
    }

    fn is_success(reply: &Reply) -> bool {
        reply.status == Status::GOOD
    }

    fn respond(session: &mut Session, cx: &mut Cx<'_>, tag: Tag, reply: Reply) {
        session.proto.respond(cx, tag, Response::Scsi(scsi_result(&reply)));
    }

    fn tag_of(command: TaskKey) -> Tag {
        Tag::from_bits(command.tag)
    }

    fn conn_of(&self, command: TaskKey) -> Option<Tag> {
        self.nexuses.get(command.nexus.0 as usize).copied().flatten()
    }

    fn conn_mut(conns: &mut Connections, tag: Tag) -> Option<&mut Session> {
        conns.session_mut(tag)
    }

    fn nexus_of(&self, command: TaskKey) -> &Requester {
        &self.server.nexus(command.nexus).nexus
    }

    fn into_any_step(step: PayloadStep<TaskKey>) -> AnyStep {
        AnyStep::Scsi(step)
    }

    fn transfers_name(command: TaskKey) -> StepName {
        StepName::Scsi(command)
    }

    fn as_own_step(step: &AnyStep) -> Option<&PayloadStep<TaskKey>> {
        match step {
            AnyStep::Scsi(step) => Some(step),
            AnyStep::Nvme(_) => None,
        }
    }

    /// The SCSI server makes its answers without memory of the pool.
    fn retry_answer(&mut self, _: &mut Cx<'_>, _: TaskKey) {}

    fn operations_mut(&mut self) -> &mut OperationCommands<TaskKey> {
        &mut self.operations
    }

    fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion) {
        self.server.handle_io_done(cx, done);
    }

    fn forget_link(&mut self, parts: &mut SharedParts, conn: Tag, id: LinkId) {
        match parts.conns.get_mut(conn).map(|conn| &mut conn.kind) {
            Some(ConnKind::Login(pending_login)) => {
                pending_login.gone = true;
                self.forget_login(parts, conn);
            }
            Some(ConnKind::Session(session)) => {
                session.links.retain(|link| link.id != id);
                forget_session(&mut parts.conns, conn);
            }
            Some(ConnKind::Queue(_)) | None => {}
        }
    }
}
