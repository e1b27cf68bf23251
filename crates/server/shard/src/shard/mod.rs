//! One shard of the target: connections, device server and volumes composed into an endpoint.
//!
//! The parts know nothing of each other; here their events and steps are carried from one to the
//! other. One turn: connections that were touched tell what happened; the server takes it and says
//! what it wants; gates and connections do it; until nobody has anything to say. Invariant: who is
//! touched is in a queue once (`touched`, `scheduled`, `ready`), so a turn costs what happened, not what
//! exists.

mod admission;
mod conns;
mod control;
mod deferred;
mod iscsi;
mod lent;
mod memory;
mod nexus_presence;
mod nvme;
mod outbox;
mod payload;
mod payload_step;
mod remotes;
mod volumes;

use std::sync::Arc;

use buf::{Cx, Errno, Time};
use endpoint::{Arrival, Departure, Dial, DialId, Dialled, Endpoint, LinkId, ShardId};
use stream::{Received, RecvOp, SendOp};
use volume::DiskOp;

use crate::exports::{Exports, LOGINS_MAX, SESSIONS_MAX};
use crate::log::{Log, LogLine};
use crate::message::{Message, NvmeMessage};

use admission::Admission;
use conns::{Connections, JoinRequest};
use control::{PendingRequests, Stopping};
use deferred::DeferredSteps;
use iscsi::IscsiFront;
use lent::Recalls;
use memory::MemoryWaiters;
use nexus_presence::NexusPresence;
use nvme::NvmeFront;
use outbox::Outbox;
use remotes::Remotes;
use volumes::LocalVolumes;
pub use volumes::home_of;

/// The shard that keeps the directory of sessions.
const DIRECTORY: ShardId = ShardId(0);
/// Beyond `AdmissionLimits::logins` each new login costs the oldest one that owes a request its place, so that
/// strangers who are silent keep nobody out. Those on their way out are at most as many again.
const LOGINS_ROOM: usize = 2 * LOGINS_MAX;

/// How many NVMe queues a shard carries at most. A Connect beyond it is refused, or its link closed.
const QUEUES_MAX: usize = 65_536;

/// One shard of the target. See the module.
pub struct Shard {
    id: ShardId,
    shards: u16,
    exports: Arc<Exports>,
    conns: Connections,
    admission: Admission,
    iscsi: IscsiFront,
    nvme: NvmeFront,
    volumes: LocalVolumes,
    remotes: Remotes,
    memory_waiters: MemoryWaiters,
    deferred: DeferredSteps,
    recalls: Recalls,
    outbox: Outbox,
    stopping: Option<Stopping>,
    requests: PendingRequests,
    nexus_presence: NexusPresence,
    log: Log,
}

impl Shard {
    /// Shard `id` of `shards`, with nothing to serve yet.
    pub fn new(id: ShardId, shards: u16, exports: Arc<Exports>) -> Self {
        assert!(id.0 < shards, "a shard is one of the daemon's");
        let iscsi = IscsiFront::new(id, shards, exports.admission.sessions);
        Shard {
            id,
            shards,
            exports,
            conns: Connections::new(SESSIONS_MAX + LOGINS_ROOM + QUEUES_MAX),
            admission: Admission::default(),
            iscsi,
            nvme: NvmeFront::new(id, shards),
            volumes: LocalVolumes::new(id, shards),
            remotes: Remotes::new(),
            memory_waiters: MemoryWaiters::default(),
            deferred: DeferredSteps::default(),
            recalls: Recalls::default(),
            outbox: Outbox::new(id, shards),
            stopping: None,
            requests: PendingRequests::default(),
            nexus_presence: NexusPresence::default(),
            log: Log::default(),
        }
    }

    /// Something for the log, oldest first. Bounded: what is not fetched in time is counted, not kept.
    pub fn poll_log(&mut self) -> Option<LogLine> {
        self.log.poll()
    }

    fn take_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        match message {
            Message::AdmissionRequest(request) => self.admit(request),
            Message::AdmissionReply(token, reply) => self.admission_reply(token, reply),
            Message::JoinSession(tsih, cid, from, token) => {
                self.join_session(cx, tsih, JoinRequest { cid, from, token });
            }
            Message::JoinReply(token, result) => self.join_reply(token, result),
            Message::JoinAborted(tsih, cid, from, token) => {
                self.iscsi.join_aborted(
                    cx,
                    (&mut self.conns, &mut self.outbox),
                    tsih,
                    JoinRequest { cid, from, token },
                );
            }
            Message::ReserveMemory(tsih, wanted, from, token) => {
                self.reserve_memory(cx, tsih, wanted, (from, token))
            }
            Message::MemoryReserved(token, result) => self.memory_reserved(token, result),
            Message::PlaceElsewhere(tsih, from, token) => {
                self.directory_change(|directory, actions| {
                    directory.place_elsewhere(tsih, (from, token), actions)
                });
            }
            Message::LoginAborted(tsih) => self.login_aborted(cx, tsih),
            Message::EndSession(tsih) => self.end_session(cx, tsih),
            Message::ColdReset(target) => self.end_sessions_of(cx, &target),
            Message::SessionGone(tsih) => {
                self.directory_change(|directory, actions| directory.gone(tsih, actions))
            }
            Message::ConnectionGone(tsih, cid) => {
                self.directory_change(|directory, _| directory.connection_gone(tsih, cid));
            }
            Message::AuthenticationFailed(from) => self.admission.backoff.failed(cx.now, from),
            // Comes with a socket, by `handle_arrival`.
            Message::Link(handoff) => self.handoff_without_link(cx, &handoff),
            Message::Nvme(message) => self.take_nvme(cx, message),
            Message::Computed(remote) => self.remotes.handle_worked(remote),
            Message::VolumeRequest(volume, from, id, ask) => {
                if let Some(answer) = self.volumes.ask(cx, volume, from, id, ask) {
                    self.outbox.post(from, Message::Answer(volume, answer));
                }
            }
            Message::NexusCame(volume, who) => self.nexus_presence.came(volume, who),
            Message::NexusGone(volume, from, id, who) => self.nexus_gone(cx, volume, (from, id), who),
            Message::Answer(volume, answer) => self.answered(cx, volume, answer),
            Message::Adopt(volume, adoption) => self.adopt(cx, volume, &adoption),
            Message::Ack(volume, ack) => self.volumes.ack(cx, volume, ack),
            Message::Wake(volume) => self.volumes.wake(volume),
            Message::Control(id, control) => self.control(cx, id, control),
            Message::Barrier(from, id) => {
                // What is to be answered to its earlier messages goes before.
                self.run_nvme_steps(cx);
                self.outbox.post(from, Message::BarrierReached(id));
            }
            Message::BarrierReached(id) => self.requests.barrier_reached(&mut self.outbox, id),
            Message::Stored(volume, ticket, durable) => self.volumes.stored(cx, volume, ticket, durable),
            // For the control plane only.
            Message::Store(..) | Message::Report(..) | Message::Compute(..) => {}
        }
    }
}

/// Puts something in a table whose places are given out densely by another.
fn set_slot<T>(table: &mut Vec<Option<T>>, at: usize, value: T) {
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    if let Some(slot) = table.get_mut(at) {
        *slot = Some(value);
    }
}

impl Endpoint for Shard {
    type Message = Message;

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Arrival<Message>) {
        match how {
            Arrival::Accepted(accepted) => self.accept(cx, link, accepted),
            Arrival::Moved(Message::Link(handoff)) => self.attach(cx, link, *handoff),
            Arrival::Moved(Message::Nvme(NvmeMessage::Link(handoff))) => {
                self.attach_queue(cx, link, *handoff);
            }
            Arrival::Moved(_) => self.conns.departures.push_back((link, Departure::Close)),
        }
    }

    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        self.take_message(cx, message);
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.conn_recv(cx, link, op, came);
    }

    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        self.conn_written(cx, link, how);
    }

    fn handle_sent(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.conn_sent(cx, link, op);
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.volumes.handle_disk(cx, op, came);
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        while let Some((time, tag)) = self.conns.timers.due(cx.now) {
            self.conn_timeout(cx, tag, time);
        }
        self.volumes.handle_timeout(cx);
        self.remotes.handle_timeout(cx);
        self.nvme.server.handle_timeout(cx);
        self.pending_sessions_timeout(cx);
        self.stop_timeout(cx);
        self.resume_deferred(cx);
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        self.nvme.report_memory_left(cx, &mut self.outbox);
        let mut worked = false;
        loop {
            let mut more = false;
            worked |= self.run_remotes(cx);
            while let Some(message) = self.outbox.poll_own() {
                self.take_message(cx, message);
                more = true;
            }
            while let Some(tag) = self.conns.touched.pop_front() {
                self.drain(cx, tag);
                more = true;
            }
            more |= self.resume_memory_waiters(cx);
            more |= self.run_steps(cx);
            more |= self.run_nvme_steps(cx);
            more |= self.run_pending_connects(cx);
            more |= self.run_volumes(cx);
            more |= self.run_recalls(cx);
            more |= self.stop_progress(cx);
            if !more {
                break;
            }
            worked = true;
        }
        worked
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        let link = self.conns.ready.pop_front()?;
        self.conns.links.unready(link);
        Some(link)
    }

    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        self.conn_poll_recv(cx, link)
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.conn_poll_send(cx, link)
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.volumes.poll_disk()
    }

    fn poll_departure(&mut self) -> Option<(LinkId, Departure<Message>)> {
        self.conns.departures.pop_front()
    }

    fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        self.outbox.poll()
    }

    fn poll_dial(&mut self) -> Option<Dial> {
        self.remotes.poll_dial()
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        if let Some(link) = self.remotes.handle_dialled(cx, id, how) {
            self.conns.departures.push_back((link, Departure::Abort));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.volumes.has_long() || !self.deferred.is_empty() {
            // It has come: what gives way goes on as soon as the world has had its turn.
            return Some(Time(0));
        }
        let own =
            [self.stop_deadline(), self.iscsi.pending_sessions.poll_timeout(), self.remotes.poll_timeout()];
        let own = own.into_iter().chain([self.nvme.pending_connects_timeout(), self.recalls.poll_timeout()]);
        let times = [self.conns.timers.next(), self.volumes.poll_timeout(), self.nvme.server.poll_timeout()];
        times.into_iter().chain(own).flatten().min()
    }
}
