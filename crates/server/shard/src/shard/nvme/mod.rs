//! NVMe/TCP on a shard: connections that become queues, and the steps of the NVMe server.
//!
//! A connection identifies its host by its Connect (`accept`). The directory or its controller grants it
//! (`connect`). It goes to the shard where the queue will live and is opened there (`open`). Then commands go
//! to the server and its steps come back (`steps`). Invariant: a grant that does not become a queue is
//! returned to its grantor, once.

mod accept;
mod authentication;
mod connect;
pub(super) mod control;
mod formats;
mod group_hosts;
mod group_resets;
mod memory_offer;
mod open_queues;
mod pending_connects;
pub(super) mod queue_conn;
mod steps;
mod tls;

use std::collections::HashMap;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::{AcceptedSocket, LinkDeparture, LinkId, ShardId};
use nvme::fabrics::ConnectNames;
use nvme::tls::PskIdentity;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, ControllerEnd, ControllerStep, QueueKey, Server, Step};
use nvme_tcp::LinkFault;
use stream::{Connection, Tag, TargetConnection, TargetEvent};
use volume::{IoCompletion, Requester};

use super::connections::Connections;
use super::operations::OperationCommands;
use super::payload_step::{AnyStep, PayloadStep, StepName};
use super::protocol_front::ProtocolFront;
use super::{DIRECTORY_SHARD, QUEUES_MAX, SharedParts, set_slot};
use crate::controller_directory::ControllerDirectory;
use crate::exports::{Exports, PlacementQuery};
use crate::log::{Log, LogLine, NvmeLogLine};
use crate::message::{Message, NvmeMessage, QueueGrant};
use crate::shard::outbox::Outbox;
use crate::shard::quiesce::HeldCommand;
use formats::PendingFormats;
pub(super) use open_queues::controller_spec;
use queue_conn::{ConnectRequest, OpenQueue, QueueConn, QueueState};

/// How long last words may take to leave.
const FINAL_SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The NVMe side of a shard.
pub(super) struct NvmeFront {
    pub(super) server: Server,
    /// The connection of each queue of the server.
    conns: Vec<Option<Tag>>,
    /// This shard's controllers.
    controllers: HashMap<u16, KnownController>,
    directory: Option<ControllerDirectory>,
    /// How many connections are queues, or were: all that do not count among the logins.
    queues: usize,
    operations: OperationCommands<CommandKey>,
    /// What the directory was told last of the memory that is left to promise.
    reported_left: Option<u64>,
    /// Queues that wait for their numbers.
    pending_connects: pending_connects::PendingConnects,
    pub(super) formats: PendingFormats,
    /// On the directory's shard of a gateway: identifiers that the group has bound.
    group_hosts: group_hosts::GroupHosts,
    /// On the same shard: resets for hosts of other gateways.
    group_resets: group_resets::GroupResets,
}

impl NvmeFront {
    pub(super) fn new(id: ShardId, shards: u16) -> Self {
        NvmeFront {
            server: Server::new(id),
            conns: Vec::new(),
            controllers: HashMap::new(),
            directory: (id == DIRECTORY_SHARD).then(|| ControllerDirectory::new(shards)),
            queues: 0,
            operations: OperationCommands::default(),
            reported_left: None,
            pending_connects: pending_connects::PendingConnects::new(),
            formats: PendingFormats::default(),
            group_hosts: group_hosts::GroupHosts::default(),
            group_resets: group_resets::GroupResets::default(),
        }
    }

    /// The controllers of this shard: number, names, where the admin queue was accepted, and whether the log knows.
    pub(super) fn known_controllers(
        &self,
    ) -> impl Iterator<Item = (u16, &ConnectNames, &AcceptedSocket, bool)> + '_ {
        self.controllers
            .iter()
            .map(|(cntlid, known)| (*cntlid, &known.names, &known.accepted, known.is_logged))
    }

    /// Whether a controller of this number is here.
    pub(super) fn has_controller(&self, cntlid: u16) -> bool {
        self.controllers.contains_key(&cntlid)
    }

    /// A controller of another process is here, without TLS.
    pub(super) fn note_controller(
        &mut self,
        cntlid: u16,
        names: ConnectNames,
        accepted: AcceptedSocket,
        is_logged: bool,
    ) {
        let known = KnownController { names, accepted, is_logged, tls: None, generated: None };
        self.controllers.insert(cntlid, known);
    }

    /// A queue of another process is here.
    pub(super) fn note_queue(&mut self, key: QueueKey, conn: Tag) {
        set_slot(&mut self.conns, key.0 as usize, conn);
        self.queues += 1;
    }

    /// On the directory's shard: enters a controller of another process.
    pub(super) fn restore_directory_entry(
        &mut self,
        exports: &Exports,
        cntlid: u16,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
    ) {
        let Some(directory) = &mut self.directory else { return };
        let export = exports
            .nvme
            .portal(accepted.listener)
            .and_then(|portal| exports.nvme.subsystem(names.subsystem.as_str(), portal.port));
        let limit = export.map_or(u16::MAX, |export| export.limits.controllers);
        directory.restore_controller(cntlid, names, limit);
    }

    fn is_queue_limit_reached(&self) -> bool {
        self.queues >= QUEUES_MAX
    }

    pub(super) fn conn_of_queue(&self, key: QueueKey) -> Option<Tag> {
        self.conns.get(key.0 as usize).copied().flatten()
    }

    /// When somebody has waited long enough.
    pub(super) fn pending_connects_deadline(&self) -> Option<Time> {
        self.pending_connects.front().map(|pending| pending.until)
    }

    /// For the stop, ends the controllers whose I/O queues have ended, on whatever shards: each answers
    /// first what it has in work. Whether there were any.
    pub(super) fn end_idle_controllers(&mut self) -> bool {
        let NvmeFront { server, controllers, .. } = self;
        let rests: Vec<u16> = controllers.keys().copied().filter(|cntlid| server.is_idle(*cntlid)).collect();
        rests.iter().for_each(|cntlid| server.end_controller(*cntlid));
        !rests.is_empty()
    }

    /// Tells the log of a controller whose host is who it says, as far as it has to be.
    pub(super) fn log_connected(&mut self, log: &mut Log, cntlid: u16) {
        let Some(controller) = self.controllers.get_mut(&cntlid) else { return };
        if std::mem::replace(&mut controller.is_logged, true) {
            return;
        }
        let ConnectNames { host, subsystem, .. } = controller.names.clone();
        let peer = controller.accepted.peer;
        log.push(LogLine::Nvme(NvmeLogLine::Connected { peer, host, subsystem, cntlid }));
    }

    /// A controller is no more. Of strangers the log says what anybody can cause, and no more.
    pub(super) fn handle_controller_gone(
        &mut self,
        parts: &mut SharedParts,
        cntlid: u16,
        why: ControllerEnd,
    ) {
        let Some(gone) = self.controllers.remove(&cntlid) else { return };
        tls::revoke_psks(&mut parts.outbox, &gone, why);
        let ConnectNames { host, subsystem, .. } = gone.names;
        let peer = gone.accepted.peer;
        let line = if gone.is_logged || why.is_unauthenticated() || why == ControllerEnd::Overloaded {
            NvmeLogLine::Disconnected { peer, host, subsystem, cntlid, why }
        } else {
            NvmeLogLine::NotConnected { peer, names: Some((host, subsystem)), cause: None }
        };
        parts.log.push(LogLine::Nvme(line));
    }

    /// On the directory's shard: a controller's host has proved who it is, and its identifier is its own.
    pub(super) fn bind_host_id(&mut self, outbox: &mut Outbox, cntlid: u16) {
        let shard = ShardId(cntlid % outbox.shard_count());
        let Some(directory) = &mut self.directory else { return };
        let was_bound = directory.bound_host_id(cntlid);
        if !directory.count_and_bind_host(cntlid) {
            outbox.post(shard, Message::Nvme(NvmeMessage::IdentifierTaken(cntlid)));
        } else if was_bound.is_none() {
            let id = directory.bound_host_id(cntlid);
            self.count_group_host(id);
        }
    }

    /// What was granted does not come to be.
    pub(super) fn release_grant(&mut self, outbox: &mut Outbox, grant: QueueGrant) {
        match grant {
            QueueGrant::Admin { cntlid, .. } => {
                outbox.post(DIRECTORY_SHARD, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
            QueueGrant::Io(joined) => self.server.abandon_queue(&joined.spec),
        }
    }

    /// Tells the directory what is left to promise here, when that has changed by a 64th of all memory
    /// since it was told last. It is advice: a queue that finds less is refused when it connects.
    pub(super) fn report_memory_left(&mut self, cx: &Cx<'_>, outbox: &mut Outbox) {
        let now = memory_offer::reservable_bytes(cx);
        let step = cx.pool.usage().capacity as u64 / 64;
        if self.reported_left.is_none_or(|told| told.abs_diff(now) >= step) {
            self.reported_left = Some(now);
            let message = NvmeMessage::MemoryLeft(outbox.shard_id(), now);
            outbox.post(DIRECTORY_SHARD, Message::Nvme(message));
        }
    }
}

impl ProtocolFront for NvmeFront {
    type Command = CommandKey;
    type Conn = QueueConn;
    type Reply = Completion;
    type ServerStep = ControllerStep;

    #[inline]
    fn has_steps(&self) -> bool {
        self.server.has_steps()
    }

    fn poll_step(&mut self) -> Option<Step> {
        self.server.poll_step()
    }

    fn run_server_step(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, step: ControllerStep) {
        self.run_controller_step(cx, parts, step);
    }

    fn is_success(completion: &Completion) -> bool {
        completion.status.is_success()
    }

    fn respond(queue: &mut QueueConn, cx: &mut Cx<'_>, tag: Tag, completion: Completion) {
        queue.proto.respond(cx, tag, completion);
    }

    fn tag_of(command: CommandKey) -> Tag {
        Tag::from_bits(command.tag)
    }

    fn conn_of(&self, command: CommandKey) -> Option<Tag> {
        self.conn_of_queue(command.queue)
    }

    fn conn_mut(conns: &mut Connections, tag: Tag) -> Option<&mut QueueConn> {
        conns.queue_mut(tag)
    }

    fn nexus_of(&self, command: CommandKey) -> &Requester {
        self.server.nexus(command.queue)
    }

    fn into_any_step(step: PayloadStep<CommandKey>) -> AnyStep {
        AnyStep::Nvme(step)
    }

    fn transfers_name(command: CommandKey) -> StepName {
        StepName::Nvme(command)
    }

    fn as_own_step(step: &AnyStep) -> Option<&PayloadStep<CommandKey>> {
        match step {
            AnyStep::Nvme(step) => Some(step),
            AnyStep::Scsi(_) => None,
        }
    }

    fn retry_answer(&mut self, cx: &mut Cx<'_>, command: CommandKey) {
        self.server.retry_answer(cx, command);
    }

    fn operations_mut(&mut self) -> &mut OperationCommands<CommandKey> {
        &mut self.operations
    }

    fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion) {
        self.server.handle_io_done(cx, done);
    }

    fn forget_link(&mut self, parts: &mut SharedParts, conn: Tag, _: LinkId) {
        if let Some(queue) = parts.conns.queue_mut(conn) {
            queue.gone = true;
            self.forget_queue(parts, conn);
        }
    }
}

/// What is known here of a controller of this shard.
#[derive(Debug)]
struct KnownController {
    names: ConnectNames,
    /// Where its admin queue was accepted.
    accepted: AcceptedSocket,
    /// The log has been told of it: its host has proved who it is, if it has to.
    is_logged: bool,
    /// The identity of the PSK that its queues' TLS goes by; `None`: they have none.
    tls: Option<PskIdentity>,
    /// That of the PSK that was generated on its admin queue last, and does not take the place of that one yet.
    generated: Option<PskIdentity>,
}

/// Who connects, as rules of placement see it.
fn placement_query<'a>(names: &'a ConnectNames, accepted: &'a AcceptedSocket) -> PlacementQuery<'a> {
    PlacementQuery { by: accepted, peer: names.host.as_str(), destination: names.subsystem.as_str() }
}

impl NvmeFront {
    pub(super) fn handle_message(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, message: NvmeMessage) {
        match message {
            NvmeMessage::ControllerRequest(request) => self.admit_controller_in_group(parts, &request),
            NvmeMessage::ControllerReply(token, reply) => {
                self.handle_controller_reply(cx, parts, token, reply)
            }
            NvmeMessage::ControllerGone(cntlid) => {
                let Some(directory) = &mut self.directory else { return };
                let id = directory.bound_host_id(cntlid);
                directory.remove_controller(cntlid);
                self.release_group_host(&mut parts.outbox, id);
            }
            NvmeMessage::MemoryLeft(shard, left) => {
                if let Some(directory) = &mut self.directory {
                    directory.note_memory_left(shard, left);
                }
            }
            NvmeMessage::HostAuthenticated(cntlid) => self.bind_host_id_in_group(parts, cntlid),
            NvmeMessage::IdentifierTaken(cntlid) | NvmeMessage::EndController(cntlid) => {
                self.server.end_controller(cntlid)
            }
            NvmeMessage::JoinController(cntlid, from, token, asked) => {
                self.admit_queue_or_wait(cx, parts, cntlid, (from, token), *asked);
            }
            NvmeMessage::QueueReply(token, answer) => self.handle_queue_reply(cx, parts, token, answer),
            // Comes with a socket, by `handle_arrival`; without one, the link was lost on its way.
            NvmeMessage::Link(handoff) => self.release_grant(&mut parts.outbox, handoff.grant),
            NvmeMessage::ListControllers(from, id, of) => {
                let here = self.server.local_controllers(&of);
                parts.outbox.post(from, Message::Nvme(NvmeMessage::ControllersListed(id, here)));
            }
            NvmeMessage::ControllersListed(id, here) => {
                self.server.handle_shard_controllers(cx, id, parts.shards, &here)
            }
            NvmeMessage::ResetController(from, id, request) => {
                self.server.reset_controller((from, id), &request)
            }
            NvmeMessage::ResetAnswered(id, answer) => self.handle_reset_answered(cx, parts, id, answer),
            NvmeMessage::Queue(message) => self.server.handle_queue_message(cx, message),
            NvmeMessage::Computed(id, outcome) => self.server.handle_computed(cx, id, *outcome),
            NvmeMessage::NotComputed(id) => self.server.handle_not_computed(cx, id),
            // For the control plane only.
            NvmeMessage::Compute(..)
            | NvmeMessage::Forget(..)
            | NvmeMessage::Handshake(..)
            | NvmeMessage::PskGenerated(..)
            | NvmeMessage::PskRevoked(..) => {}
            NvmeMessage::HandshakeComputed(token) => self.handle_handshake_computed(parts, token),
        }
    }

    /// A peer broke the rules. Its connection may still have last words; what the queue was is over.
    pub(super) fn handle_protocol_error(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        violation: LinkFault,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let line = NvmeLogLine::LinkFault {
            peer: queue.accepted.peer,
            names: queue.host_and_subsystem_nqn(),
            violation,
        };
        parts.log.push(LogLine::Nvme(line));
        self.close_server_queue(cx, parts, conn);
    }

    /// The server lets go of a queue: its commands end without a word.
    fn close_server_queue(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let Some(key) = queue.open_state().map(|open| open.key) else { return };
        queue.state = QueueState::Ended;
        self.forget_transfers_of_queue(parts, key);
        self.server.close_queue(cx, key);
        // The key may be given again as soon as the last command has ended: the steps that end them are
        // done before anything else.
        self.run_steps(cx, parts);
    }

    /// Hears what a connection has to say.
    pub(super) fn run_queue_events(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        loop {
            let Some(queue) = parts.conns.queue_mut(conn) else { return };
            if let Some(event) = queue.proto.poll_event() {
                self.handle_queue_event(cx, parts, conn, event);
                continue;
            }
            // Places for payload are given before parsing goes on, or it would have to be kept apart.
            if self.run_steps(cx, parts) {
                continue;
            }
            let Some(queue) = parts.conns.queue_mut(conn) else { return };
            if queue.proto.poll_link_to_close().is_some() {
                self.handle_queue_lost(cx, parts, conn);
                continue;
            }
            if let Err(violation) = queue.proto.resume_parsing(cx) {
                self.handle_protocol_error(cx, parts, conn, violation);
                continue;
            }
            if let Some(violation) = queue.proto.poll_link_fault() {
                self.handle_protocol_error(cx, parts, conn, violation);
                continue;
            }
            // Parsing on may have brought more to tell.
            match queue.proto.poll_event() {
                Some(event) => self.handle_queue_event(cx, parts, conn, event),
                None => break,
            }
        }
        self.compute_handshake(parts, conn);
        self.move_granted_queue(cx, parts, conn);
        self.resume_parked(cx, parts, conn);
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let id = queue.id;
        parts.conns.mark_ready(id);
        self.forget_queue(parts, conn);
    }

    fn handle_queue_event(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        event: TargetEvent<Sqe>,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        if matches!(event, TargetEvent::Closed) {
            queue.closed = true;
            return;
        }
        let Some(key) = queue.open_state().map(|open| open.key) else {
            return self.handle_unconnected_event(cx, parts, conn, event);
        };
        match event {
            TargetEvent::Command { tag, command, data_out } => {
                if parts.is_quiescing() {
                    return self.hold_command(cx, parts, conn, (tag, command, data_out));
                }
                let key = CommandKey { queue: key, tag: tag.to_bits() };
                if !self.try_command_inline(cx, parts, conn, key, &command, data_out) {
                    if let Some(queue) = parts.conns.queue_mut(conn) {
                        queue.times.start_task(cx.now, tag);
                    }
                    self.server.start_command(cx, key, &command, data_out);
                }
            }
            TargetEvent::DataReceived { tag, at, data } => {
                self.server.handle_data(cx, CommandKey { queue: key, tag: tag.to_bits() }, at, data);
            }
            TargetEvent::Aborted { tag } => {
                queue.held.retain(|(held, ..)| *held != tag);
                self.server.abort_command(CommandKey { queue: key, tag: tag.to_bits() });
            }
            TargetEvent::Closed => {}
        }
    }

    /// A command that was held is started as a task.
    pub(super) fn start_command(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        (tag, command, data_out): HeldCommand<Sqe>,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let Some(queue_key) = queue.server_key() else { return };
        queue.times.start_task(cx.now, tag);
        let key = CommandKey { queue: queue_key, tag: tag.to_bits() };
        self.server.start_command(cx, key, &command, data_out);
    }

    /// Takes requests for events back from the server: they wait with their connections.
    pub(super) fn withdraw_event_requests(&mut self, conns: &mut Connections) {
        let cntlids: Vec<u16> = self.controllers.keys().copied().collect();
        for cntlid in cntlids {
            for (key, sqe) in self.server.withdraw_event_requests(cntlid) {
                let conn = self.conn_of_queue(key.queue);
                let Some(queue) = conn.and_then(|conn| conns.queue_mut(conn)) else { continue };
                let tag = Tag::from_bits(key.tag);
                if let Err(sqe) = queue.proto.withdraw(tag, sqe) {
                    queue.held.push((tag, sqe, 0));
                }
            }
        }
    }

    /// A connection's socket is to be closed: what it was is over.
    fn handle_queue_lost(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, conn: Tag) {
        self.close_server_queue(cx, parts, conn);
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let (id, peer, names) = (queue.id, queue.accepted.peer, queue.host_and_subsystem_nqn());
        // Its descriptor is free at once.
        let how = if queue.evicted { LinkDeparture::Abort } else { LinkDeparture::Close };
        match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::Ended | QueueState::Open(_) => {}
            QueueState::AwaitingConnect | QueueState::ReadingConnect(_) | QueueState::AwaitingGrant(_) => {
                parts.log.push(LogLine::Nvme(NvmeLogLine::NotConnected { peer, names, cause: None }));
            }
            QueueState::Granted(granted) => {
                self.release_grant(&mut parts.outbox, granted.2);
                parts.log.push(LogLine::Nvme(NvmeLogLine::NotConnected { peer, names, cause: None }));
            }
        }
        self.depart_link(parts, id, how);
    }

    /// Forgets a connection that has ended and whose link is gone.
    pub(super) fn forget_queue(&mut self, parts: &mut SharedParts, conn: Tag) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        if !queue.gone || !queue.closed {
            return;
        }
        let (is_stranger, key) = (queue.is_stranger, queue.key);
        parts.admission.logins -= usize::from(is_stranger);
        self.queues -= usize::from(!is_stranger);
        if let Some(slot) = key.and_then(|key| self.conns.get_mut(key.0 as usize))
            && *slot == Some(conn)
        {
            *slot = None;
        }
        parts.conns.remove(conn);
    }
}
