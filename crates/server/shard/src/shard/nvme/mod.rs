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
mod offer;
mod open;
mod pending_connects;
pub(super) mod queue;
mod steps;
mod tls;

use std::collections::HashMap;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::{Accepted, Departure, LinkId, ShardId};
use nvme::fabrics::ConnectNames;
use nvme::tls::Identity;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, ControllerEnd, ControllerStep, QueueKey, Server, Step};
use nvme_tcp::LinkFault;
use stream::{Connection, Tag, Target, TargetEvent};
use volume::{Done, Requester};

use super::conns::Connections;
use super::front::Front;
use super::operations::Operations;
use super::payload_step::{AnyStep, PayloadStep};
use super::{DIRECTORY, Parts, QUEUES_MAX};
use crate::controllers::Controllers;
use crate::exports::PlacementQuery;
use crate::log::{Log, LogLine, NvmeLogLine};
use crate::message::{Message, NvmeMessage, QueueGrant};
use crate::shard::outbox::Outbox;
use queue::{ConnectRequest, OpenQueue, Queue, QueueState};

/// How long last words may take to leave.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);

/// The NVMe side of a shard.
pub(super) struct NvmeFront {
    pub(super) server: Server,
    /// The connection of each queue of the server.
    conns: Vec<Option<Tag>>,
    /// This shard's controllers.
    controllers: HashMap<u16, Controller>,
    directory: Option<Controllers>,
    /// How many connections are queues, or were: all that do not count among the logins.
    queues: usize,
    operations: Operations<CommandKey>,
    /// What the directory was told last of the memory that is left to promise.
    reported_left: Option<u64>,
    /// Queues that wait for their numbers.
    pending_connects: pending_connects::PendingConnects,
}

impl NvmeFront {
    pub(super) fn new(id: ShardId, shards: u16) -> Self {
        NvmeFront {
            server: Server::new(id),
            conns: Vec::new(),
            controllers: HashMap::new(),
            directory: (id == DIRECTORY).then(|| Controllers::new(shards)),
            queues: 0,
            operations: Operations::default(),
            reported_left: None,
            pending_connects: pending_connects::PendingConnects::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.queues >= QUEUES_MAX
    }

    pub(super) fn conn_of_queue(&self, key: QueueKey) -> Option<Tag> {
        self.conns.get(key.0 as usize).copied().flatten()
    }

    /// When somebody has waited long enough.
    pub(super) fn pending_connects_timeout(&self) -> Option<Time> {
        self.pending_connects.front().map(|pending| pending.until)
    }

    /// For the stop, ends the controllers whose I/O queues have ended, on whatever shards: each answers
    /// first what it has in work. Whether there were any.
    pub(super) fn end_controllers(&mut self) -> bool {
        let NvmeFront { server, controllers, .. } = self;
        let rests: Vec<u16> =
            controllers.keys().copied().filter(|cntlid| server.is_at_rest(*cntlid)).collect();
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
    pub(super) fn controller_gone(&mut self, parts: &mut Parts, cntlid: u16, why: ControllerEnd) {
        let Some(gone) = self.controllers.remove(&cntlid) else { return };
        tls::revoke_psks(&mut parts.outbox, &gone, why);
        let ConnectNames { host, subsystem, .. } = gone.names;
        let line = if gone.is_logged || why.is_unauthenticated() || why == ControllerEnd::Overloaded {
            NvmeLogLine::Disconnected { host, subsystem, cntlid, why }
        } else {
            let (peer, names) = (gone.accepted.peer, Some((host, subsystem)));
            NvmeLogLine::NotConnected { peer, names, cause: None }
        };
        parts.log.push(LogLine::Nvme(line));
    }

    /// On the directory's shard: a controller's host has proved who it is, and its identifier is its own.
    pub(super) fn bind_identifier(&mut self, outbox: &mut Outbox, cntlid: u16) {
        let shard = ShardId(cntlid % outbox.shards());
        if self.directory.as_mut().is_some_and(|directory| !directory.bind(cntlid)) {
            outbox.post(shard, Message::Nvme(NvmeMessage::IdentifierTaken(cntlid)));
        }
    }

    /// What was granted does not come to be.
    pub(super) fn give_back(&mut self, outbox: &mut Outbox, grant: QueueGrant) {
        match grant {
            QueueGrant::Admin { cntlid, .. } => {
                outbox.post(DIRECTORY, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
            QueueGrant::Io(joined) => self.server.give_up(&joined.spec),
        }
    }

    /// Tells the directory what is left to promise here, when that has changed by a 64th of all memory
    /// since it was told last. It is advice: a queue that finds less is refused when it connects.
    pub(super) fn report_memory_left(&mut self, cx: &Cx<'_>, outbox: &mut Outbox) {
        let now = offer::left_to_promise(cx);
        let step = cx.pool.usage().capacity as u64 / 64;
        if self.reported_left.is_none_or(|told| told.abs_diff(now) >= step) {
            self.reported_left = Some(now);
            let message = NvmeMessage::MemoryLeft(outbox.id(), now);
            outbox.post(DIRECTORY, Message::Nvme(message));
        }
    }
}

impl Front for NvmeFront {
    type Command = CommandKey;
    type Conn = Queue;
    type Reply = Completion;
    type Other = ControllerStep;

    fn poll_step(&mut self) -> Option<Step> {
        self.server.poll_step()
    }

    fn run_other(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, step: ControllerStep) {
        self.run_controller_step(cx, parts, step);
    }

    fn is_success(completion: &Completion) -> bool {
        completion.status.is_success()
    }

    fn respond(queue: &mut Queue, cx: &mut Cx<'_>, tag: Tag, completion: Completion) {
        queue.proto.respond(cx, tag, completion);
    }

    fn tag_of(command: CommandKey) -> Tag {
        Tag::from_bits(command.tag)
    }

    fn conn_of(&self, command: CommandKey) -> Option<Tag> {
        self.conn_of_queue(command.queue)
    }

    fn conn(conns: &mut Connections, tag: Tag) -> Option<&mut Queue> {
        conns.queue(tag)
    }

    fn nexus_of(&self, command: CommandKey) -> &Requester {
        self.server.nexus(command.queue)
    }

    fn any_step(step: PayloadStep<CommandKey>) -> AnyStep {
        AnyStep::Nvme(step)
    }

    fn own_step(step: &AnyStep) -> Option<&PayloadStep<CommandKey>> {
        match step {
            AnyStep::Nvme(step) => Some(step),
            AnyStep::Scsi(_) => None,
        }
    }

    fn retry(&mut self, cx: &mut Cx<'_>, command: CommandKey) {
        self.server.retry(cx, command);
    }

    fn operations(&mut self) -> &mut Operations<CommandKey> {
        &mut self.operations
    }

    fn done(&mut self, cx: &mut Cx<'_>, done: Done) {
        self.server.done(cx, done);
    }

    fn forget_link(&mut self, parts: &mut Parts, conn: Tag, _: LinkId) {
        if let Some(queue) = parts.conns.queue(conn) {
            queue.gone = true;
            self.forget_queue(parts, conn);
        }
    }
}

/// What is known here of a controller of this shard.
#[derive(Debug)]
struct Controller {
    names: ConnectNames,
    /// Where its admin queue was accepted.
    accepted: Accepted,
    /// The log has been told of it: its host has proved who it is, if it has to.
    is_logged: bool,
    /// The identity of the PSK that its queues' TLS goes by; `None`: they have none.
    tls: Option<Identity>,
    /// That of the PSK that was generated on its admin queue last, and does not take the place of that one yet.
    generated: Option<Identity>,
}

/// Who connects, as rules of placement see it.
fn placement_query<'a>(names: &'a ConnectNames, accepted: &'a Accepted) -> PlacementQuery<'a> {
    PlacementQuery { by: accepted, peer: names.host.as_str(), destination: names.subsystem.as_str() }
}

impl NvmeFront {
    pub(super) fn handle_message(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, message: NvmeMessage) {
        match message {
            NvmeMessage::ControllerRequest(request) => self.admit_controller(parts, &request),
            NvmeMessage::ControllerReply(token, reply) => self.controller_reply(cx, parts, token, reply),
            NvmeMessage::ControllerGone(cntlid) => {
                if let Some(directory) = &mut self.directory {
                    directory.gone(cntlid);
                }
            }
            NvmeMessage::MemoryLeft(shard, left) => {
                if let Some(directory) = &mut self.directory {
                    directory.note_left(shard, left);
                }
            }
            NvmeMessage::HostAuthenticated(cntlid) => self.bind_identifier(&mut parts.outbox, cntlid),
            NvmeMessage::IdentifierTaken(cntlid) => self.server.end_controller(cntlid),
            NvmeMessage::JoinController(cntlid, from, token, asked) => {
                self.join_controller(cx, parts, cntlid, (from, token), *asked);
            }
            NvmeMessage::QueueReply(token, answer) => self.queue_reply(cx, parts, token, answer),
            // Comes with a socket, by `handle_arrival`; without one, the link was lost on its way.
            NvmeMessage::Link(handoff) => self.give_back(&mut parts.outbox, handoff.grant),
            NvmeMessage::ListControllers(from, id, of) => {
                let here = self.server.controllers_here(&of);
                parts.outbox.post(from, Message::Nvme(NvmeMessage::ControllersListed(id, here)));
            }
            NvmeMessage::ControllersListed(id, here) => {
                self.server.handle_controllers(cx, id, parts.shards, &here)
            }
            NvmeMessage::Queue(message) => self.server.handle_queue_message(cx, message),
            NvmeMessage::Computed(id, outcome) => self.server.computed(cx, id, *outcome),
            NvmeMessage::NotComputed(id) => self.server.not_computed(cx, id),
            // For the control plane only.
            NvmeMessage::Compute(..)
            | NvmeMessage::Forget(..)
            | NvmeMessage::Handshake(..)
            | NvmeMessage::PskGenerated(..)
            | NvmeMessage::PskRevoked(..) => {}
            NvmeMessage::HandshakeComputed(token) => self.handshake_computed(parts, token),
        }
    }

    /// A peer broke the rules. Its connection may still have last words; what the queue was is over.
    pub(super) fn queue_protocol_error(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        conn: Tag,
        violation: LinkFault,
    ) {
        let Some(queue) = parts.conns.queue(conn) else { return };
        let line = NvmeLogLine::LinkFault {
            peer: queue.accepted.peer,
            host: queue.names().map(|(host, _)| host),
            violation,
        };
        parts.log.push(LogLine::Nvme(line));
        self.close_server_queue(cx, parts, conn);
    }

    /// The server lets go of a queue: its commands end without a word.
    fn close_server_queue(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag) {
        let Some(queue) = parts.conns.queue(conn) else { return };
        let Some(key) = queue.open().map(|open| open.key) else { return };
        queue.state = QueueState::Ended;
        self.forget_transfers_of_queue(parts, key);
        self.server.close_queue(cx, key);
        // The key may be given again as soon as the last command has ended: the steps that end them are
        // done before anything else.
        self.run_steps(cx, parts);
    }

    /// Hears what a connection has to say.
    pub(super) fn run_queue(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag) {
        loop {
            let Some(queue) = parts.conns.queue(conn) else { return };
            if let Some(event) = queue.proto.poll_event() {
                self.queue_event(cx, parts, conn, event);
                continue;
            }
            // Places for payload are given before parsing goes on, or it would have to be kept apart.
            if self.run_steps(cx, parts) {
                continue;
            }
            let Some(queue) = parts.conns.queue(conn) else { return };
            if queue.proto.poll_shut().is_some() {
                self.lose_queue(cx, parts, conn);
                continue;
            }
            if let Err(violation) = queue.proto.resume(cx) {
                self.queue_protocol_error(cx, parts, conn, violation);
                continue;
            }
            if let Some(violation) = queue.proto.poll_link_fault() {
                self.queue_protocol_error(cx, parts, conn, violation);
                continue;
            }
            // Parsing on may have brought more to tell.
            match queue.proto.poll_event() {
                Some(event) => self.queue_event(cx, parts, conn, event),
                None => break,
            }
        }
        self.compute_handshake(parts, conn);
        self.move_granted(cx, parts, conn);
        self.resume_parked(cx, parts, conn);
        let Some(queue) = parts.conns.queue(conn) else { return };
        let id = queue.id;
        parts.conns.mark_ready(id);
        self.forget_queue(parts, conn);
    }

    fn queue_event(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag, event: TargetEvent<Sqe>) {
        let Some(queue) = parts.conns.queue(conn) else { return };
        if matches!(event, TargetEvent::Closed) {
            queue.closed = true;
            return;
        }
        let Some(key) = queue.open().map(|open| open.key) else {
            return self.stranger_event(cx, parts, conn, event);
        };
        match event {
            TargetEvent::Command { tag, command, data_out } => {
                let key = CommandKey { queue: key, tag: tag.to_bits() };
                if !self.try_command_inline(cx, parts, conn, key, &command, data_out) {
                    if let Some(queue) = parts.conns.queue(conn) {
                        queue.times.start(cx.now, tag);
                    }
                    self.server.start(cx, key, &command, data_out);
                }
            }
            TargetEvent::DataReceived { tag, at, data } => {
                self.server.data(cx, CommandKey { queue: key, tag: tag.to_bits() }, at, data);
            }
            TargetEvent::Aborted { tag } => {
                self.server.abort(CommandKey { queue: key, tag: tag.to_bits() });
            }
            TargetEvent::Closed => {}
        }
    }

    /// A connection's socket is to be closed: what it was is over.
    fn lose_queue(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag) {
        self.close_server_queue(cx, parts, conn);
        let Some(queue) = parts.conns.queue(conn) else { return };
        let (id, peer, names) = (queue.id, queue.accepted.peer, queue.names());
        // Its descriptor is free at once.
        let how = if queue.evicted { Departure::Abort } else { Departure::Close };
        match std::mem::replace(&mut queue.state, QueueState::Ended) {
            QueueState::Ended | QueueState::Open(_) => {}
            QueueState::AwaitingConnect | QueueState::ReadingConnect(_) | QueueState::AwaitingGrant(_) => {
                parts.log.push(LogLine::Nvme(NvmeLogLine::NotConnected { peer, names, cause: None }));
            }
            QueueState::Granted(granted) => {
                self.give_back(&mut parts.outbox, granted.2);
                parts.log.push(LogLine::Nvme(NvmeLogLine::NotConnected { peer, names, cause: None }));
            }
        }
        self.depart(parts, id, how);
    }

    /// Forgets a connection that has ended and whose link is gone.
    pub(super) fn forget_queue(&mut self, parts: &mut Parts, conn: Tag) {
        let Some(queue) = parts.conns.queue(conn) else { return };
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
