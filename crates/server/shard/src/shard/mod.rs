//! One shard of the target: connections, servers and volumes composed into an endpoint.
//!
//! The parts do not know each other; this module carries events and steps between them. One turn: connections
//! with activity report events; the server takes them and emits steps; gates and connections execute the
//! steps; this repeats until there are none. Invariant: each active connection or volume is in a queue once
//! (`touched`, `scheduled`, `ready`), so the cost of a turn depends on activity, not on what exists.

mod command_times;
mod connections;
mod control;
mod deferred_steps;
mod group;
mod iscsi;
mod link_events;
mod loan_recalls;
mod local_volumes;
mod memory_waiters;
mod network_backends;
mod nvme;
mod operations;
mod outbox;
mod payload_step;
mod protocol_front;
mod quiesce;
mod snapshot;
mod throttle;
mod unauthenticated_conns;
mod volume_events;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Errno, Time};
use endpoint::{
    AcceptedSocket, Dial, DialId, Dialled, Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId,
};
use flight_recorder::{Event, EventKind, FlightRecorder};
use stream::{Received, RecvOp, SendOp, Tag};
use volume::{DiskOp, RequestId, VolumeAnswer, VolumeId, VolumeRequest};

use crate::exports::{Exports, LOGINS_MAX, SESSIONS_MAX};
use crate::link_table::LinkOwner;
use crate::log::{Log, LogLine};
use crate::message::{Message, NvmeMessage};

use connections::{ConnKind, Connections, JoinRequest};
use control::{PendingRequests, StopProgress};
use deferred_steps::DeferredSteps;
use iscsi::IscsiFront;
use loan_recalls::LoanRecalls;
use local_volumes::LocalVolumes;
pub use local_volumes::home_of;
use memory_waiters::MemoryWaiters;
use network_backends::RemoteBackends;
use nvme::NvmeFront;
use outbox::Outbox;
use protocol_front::ProtocolFront;
use quiesce::QuiesceProgress;
pub use snapshot::{CarriedNumbers, RestoreError, RestoreFailure};
use throttle::ThrottledSteps;
use unauthenticated_conns::UnauthenticatedConns;

/// The shard that keeps the directory of sessions.
const DIRECTORY_SHARD: ShardId = ShardId(0);
/// Beyond `AdmissionLimits::logins` each new login costs the oldest one that owes a request its place, so that
/// strangers who are silent keep nobody out. Those on their way out are at most as many again.
const LOGIN_CONNS_MAX: usize = 2 * LOGINS_MAX;

/// How many NVMe queues a shard carries at most. A Connect beyond it is refused, or its link closed.
const QUEUES_MAX: usize = 65_536;

/// One part in so many of what a pool may promise is kept for either protocol, where both are served.
const PROTOCOL_SHARE_DIVISOR: usize = 4;
/// One shard of the target. See the module.
pub struct Shard {
    parts: SharedParts,
    iscsi: IscsiFront,
    nvme: NvmeFront,
    remotes: RemoteBackends,
    recalls: LoanRecalls,
    requests: PendingRequests,
}

/// What both fronts work with.
struct SharedParts {
    id: ShardId,
    shards: u16,
    exports: Arc<Exports>,
    conns: Connections,
    admission: UnauthenticatedConns,
    volumes: LocalVolumes,
    memory_waiters: MemoryWaiters,
    deferred: DeferredSteps,
    throttled: ThrottledSteps,
    outbox: Outbox,
    stopping: Option<StopProgress>,
    quiesce: Option<Box<QuiesceProgress>>,
    /// Links whose operations are to come back.
    halts: VecDeque<LinkId>,
    /// Links of connections that were restored, by number, until they arrive.
    carried_links: HashMap<u32, LinkOwner>,
    log: Log,
}

impl SharedParts {
    /// Whether commands of a connection on a volume may have to wait for limits.
    fn is_limited(&self, conn: Tag, volume: VolumeId) -> bool {
        let of_host = match self.conns.get(conn).map(|conn| &conn.kind) {
            Some(ConnKind::Session(session)) => session.limit.limiter.is_some(),
            Some(ConnKind::Queue(queue)) => queue.limit.limiter.is_some(),
            Some(ConnKind::Login(_)) | None => false,
        };
        of_host || self.exports.volume_limits.contains_key(&volume)
    }

    /// Connections are limited by the exports of now.
    fn update_host_limits(&mut self) {
        for (_, conn) in self.conns.iter_mut() {
            match &mut conn.kind {
                ConnKind::Session(session) => {
                    let target = session.target.as_deref();
                    let by = session.links.first().map_or(session.latest, |link| link.accepted);
                    session.limit.limiter = target.and_then(|target| {
                        self.exports.limiter_of_initiator(target, &session.initiator, &by)
                    });
                }
                ConnKind::Queue(queue) => {
                    let limiter = queue
                        .open_names()
                        .and_then(|names| self.exports.limiter_of_host(names, &queue.accepted));
                    queue.limit.limiter = limiter;
                }
                ConnKind::Login(_) => {}
            }
        }
    }

    /// Asks a volume's home for what a server wants of it.
    fn post_request(&mut self, volume: VolumeId, id: RequestId, request: VolumeRequest) {
        if self.volumes.is_forwarded(volume) {
            if let Some(answer) = self.volumes.submitted.submit_request(volume, id, request) {
                self.outbox.post(self.id, Message::Answer(volume, answer));
            }
            return;
        }
        let home = self.volumes.home_of(volume);
        self.outbox.post(home, Message::VolumeRequest(volume, self.id, id, request));
    }

    /// See [`LocalVolumes::request_from_owner`].
    #[must_use]
    fn request_from_owner(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeId,
        (from, id): (ShardId, RequestId),
        request: VolumeRequest,
    ) -> Option<VolumeAnswer> {
        if let Some(local) = self.volumes.get(volume) {
            self.log.record_request(local.name(), &request);
        }
        self.volumes.request_from_owner(cx, volume, from, id, request)
    }
}

impl Shard {
    /// Shard `id` of `shards`, with nothing to serve yet.
    pub fn new(id: ShardId, shards: u16, exports: Arc<Exports>) -> Self {
        assert!(id.0 < shards, "a shard is one of the daemon's");
        let iscsi = IscsiFront::new(id, shards, exports.admission.sessions);
        let mut parts = SharedParts {
            id,
            shards,
            exports,
            conns: Connections::new(SESSIONS_MAX + LOGIN_CONNS_MAX + QUEUES_MAX),
            admission: UnauthenticatedConns::default(),
            volumes: LocalVolumes::new(id, shards),
            memory_waiters: MemoryWaiters::default(),
            deferred: DeferredSteps::default(),
            throttled: ThrottledSteps::default(),
            outbox: Outbox::new(id, shards),
            stopping: None,
            quiesce: None,
            halts: VecDeque::new(),
            carried_links: HashMap::new(),
            log: Log::default(),
        };
        parts.throttled.set_in_force(parts.exports.has_limits());
        Shard {
            parts,
            iscsi,
            nvme: NvmeFront::new(id, shards),
            remotes: RemoteBackends::new(),
            recalls: LoanRecalls::default(),
            requests: PendingRequests::default(),
        }
    }

    /// Has its events recorded from now on.
    pub fn record_flight(&mut self, now: Time, recorder: FlightRecorder) {
        self.parts.log.set_recorder(recorder);
        self.parts.log.set_now(now);
        self.parts.log.record(&Event::new(EventKind::Start));
    }

    /// Something for the log, oldest first. Bounded: what is not fetched in time is counted, not kept.
    pub fn poll_log(&mut self) -> Option<LogLine> {
        self.parts.log.poll_line()
    }

    fn accept_link(&mut self, cx: &mut Cx<'_>, id: LinkId, accepted: AcceptedSocket) {
        if !self.parts.exports.portals.is_empty() && !self.parts.exports.nvme.portals.is_empty() {
            cx.pool.set_account_share(PROTOCOL_SHARE_DIVISOR);
        }
        let logins = self.parts.exports.admission.logins.clamp(1, LOGINS_MAX);
        if self.parts.admission.logins >= 2 * logins || self.parts.stopping.is_some() {
            self.parts.conns.departures.push_back((id, LinkDeparture::Abort));
            return;
        }
        if self.parts.admission.logins >= logins {
            self.parts.admission.evict_oldest(cx, &mut self.parts.conns);
        }
        if self.parts.exports.nvme.portal(accepted.listener).is_some() {
            return self.nvme.accept_host(cx, &mut self.parts, id, accepted);
        }
        self.iscsi.accept_login(cx, &mut self.parts, id, accepted);
    }

    fn handle_shard_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        match message {
            Message::AdmissionRequest(request) => self.iscsi.admit_to_directory(&mut self.parts, request),
            Message::AdmissionReply(token, reply) => {
                self.iscsi.handle_admission_reply(&mut self.parts, token, reply)
            }
            Message::JoinSession(tsih, cid, from, token) => {
                self.iscsi.handle_join_request(cx, &mut self.parts, tsih, JoinRequest { cid, from, token });
            }
            Message::JoinReply(token, result) => self.iscsi.handle_join_reply(&mut self.parts, token, result),
            Message::JoinAborted(tsih, cid, from, token) => {
                self.iscsi.handle_join_aborted(
                    cx,
                    (&mut self.parts.conns, &mut self.parts.outbox),
                    tsih,
                    JoinRequest { cid, from, token },
                );
            }
            Message::ReserveMemory(tsih, wanted, from, token) => {
                self.iscsi.reserve_memory(cx, &mut self.parts, tsih, wanted, (from, token))
            }
            Message::MemoryReserved(token, result) => {
                self.iscsi.handle_memory_reserved(&mut self.parts, token, result)
            }
            Message::PlaceElsewhere(tsih, from, token) => {
                self.iscsi.update_directory(&mut self.parts, |directory, actions| {
                    directory.retry_on_other_shard(tsih, (from, token), actions)
                });
            }
            Message::LoginAborted(tsih) => self.iscsi.handle_login_aborted(cx, &mut self.parts, tsih),
            Message::EndSession(tsih) => self.iscsi.end_session(cx, &mut self.parts, tsih),
            Message::ColdReset(target) => self.iscsi.end_target_sessions(cx, &mut self.parts, &target),
            Message::SessionGone(tsih) => {
                self.iscsi.update_directory(&mut self.parts, |directory, actions| {
                    directory.remove_session(tsih, actions)
                })
            }
            Message::ConnectionGone(tsih, cid) => {
                self.iscsi
                    .update_directory(&mut self.parts, |directory, _| directory.remove_connection(tsih, cid));
            }
            Message::AuthenticationFailed(from) => self.parts.admission.backoff.note_failure(cx.now, from),
            // Comes with a socket, by `handle_arrival`; without one, the link was lost on its way.
            Message::CarriedLink(number) => self.lose_carried_link(cx, number),
            // Comes with a socket, by `handle_arrival`.
            Message::Link(handoff) => self.iscsi.handoff_without_link(cx, &mut self.parts, &handoff),
            Message::Nvme(message) => self.nvme.handle_message(cx, &mut self.parts, message),
            Message::Computed(remote) => self.remotes.handle_computed(remote),
            Message::VolumeRequest(volume, from, id, request) => {
                if let Some(answer) = self.parts.request_from_owner(cx, volume, (from, id), request) {
                    self.parts.outbox.post(from, Message::Answer(volume, answer));
                }
            }
            Message::Answer(volume, answer) => self.handle_volume_answer(cx, volume, answer),
            Message::ViewUpdate(volume, update) => self.update_view(cx, volume, &update),
            Message::Ack(volume, ack) => self.parts.volumes.handle_ack(cx, volume, ack),
            Message::Wake(volume) => self.parts.volumes.handle_wake(volume),
            Message::Control(id, control) => self.handle_control_request(cx, id, control),
            Message::Barrier(from, id) => {
                // What is to be answered to its earlier messages goes before.
                self.nvme.run_steps(cx, &mut self.parts);
                self.parts.outbox.post(from, Message::BarrierReached(id));
            }
            Message::BarrierReached(id) => self.requests.handle_barrier_reached(&mut self.parts.outbox, id),
            Message::Stored(volume, ticket, durable) => {
                if !durable && let Some(local) = self.parts.volumes.get(volume) {
                    self.parts.log.record_of_volume(EventKind::RecordNotSaved, local.name());
                }
                self.parts.volumes.handle_stored(cx, volume, ticket, durable)
            }
            Message::FromGateway(message) => self.handle_from_gateway(cx, *message),
            Message::InGroup(volume, step) => self.handle_group_step(cx, volume, step),
            // For the control plane only.
            Message::Store(..) | Message::Report(..) | Message::Compute(..) | Message::ToGateway(_) => {}
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

    fn handle_arrival(&mut self, cx: &mut Cx<'_>, link: LinkId, how: LinkArrival<Message>) {
        self.parts.log.set_now(cx.now);
        let Some(how) = self.parts.keep_arrival(link, how) else { return };
        match how {
            LinkArrival::Moved(Message::CarriedLink(number)) => self.attach_carried_link(link, number),
            LinkArrival::Accepted(accepted) => self.accept_link(cx, link, accepted),
            LinkArrival::Moved(Message::Link(handoff)) => {
                self.iscsi.attach_link(cx, &mut self.parts, link, *handoff)
            }
            LinkArrival::Moved(Message::Nvme(NvmeMessage::Link(handoff))) => {
                self.nvme.attach_queue(cx, &mut self.parts, link, *handoff);
            }
            LinkArrival::Moved(_) => self.parts.conns.departures.push_back((link, LinkDeparture::Close)),
        }
    }

    fn handle_message(&mut self, cx: &mut Cx<'_>, message: Message) {
        self.parts.log.set_now(cx.now);
        self.handle_shard_message(cx, message);
    }

    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        self.handle_conn_recv(cx, link, op, came);
    }

    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        let SharedParts { conns, volumes, .. } = &mut self.parts;
        if !conns.handle_written(cx, volumes, link, how) {
            self.remotes.handle_written(cx, link, how);
        }
    }

    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        self.handle_conn_send_released(cx, link, op);
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.parts.volumes.handle_disk(cx, op, came);
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.parts.log.set_now(cx.now);
        if self.parts.is_halting() {
            return;
        }
        self.parts.conns.handle_timeout(cx);
        self.parts.volumes.handle_timeout(cx);
        self.remotes.handle_timeout(cx);
        self.nvme.server.handle_timeout(cx);
        self.iscsi.handle_pending_sessions_timeout(cx, &mut self.parts);
        self.handle_stop_timeout(cx);
        self.resume_deferred(cx);
        self.resume_throttled(cx);
    }

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        self.parts.log.set_now(cx.now);
        self.nvme.report_memory_left(cx, &mut self.parts.outbox);
        let mut worked = false;
        loop {
            let mut more = false;
            worked |= self.run_pending_remotes(cx);
            while let Some(message) = self.parts.outbox.poll_message_to_self() {
                self.handle_shard_message(cx, message);
                more = true;
            }
            while let Some(tag) = self.parts.conns.touched.pop_front() {
                self.run_conn_events(cx, tag);
                more = true;
            }
            more |= !self.parts.is_halting() && self.resume_memory_waiters(cx);
            more |= self.iscsi.run_steps(cx, &mut self.parts);
            more |= self.nvme.run_steps(cx, &mut self.parts);
            more |= self.nvme.run_pending_connects(cx, &mut self.parts);
            more |= self.run_pending_volumes(cx);
            more |= self.parts.volumes.run_group(cx, &mut self.parts.outbox);
            more |= self.run_recalls(cx);
            more |= self.advance_stop(cx);
            if !more {
                more = self.advance_quiesce();
            }
            if !more {
                break;
            }
            worked = true;
        }
        worked
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        if self.parts.is_halting() {
            return None;
        }
        let link = self.parts.conns.ready.pop_front()?;
        self.parts.conns.links.clear_ready(link);
        Some(link)
    }

    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        match self.parts.conns.links.owner_if_active(link) {
            Some(owner) => self.parts.conns.poll_recv(cx, link, owner),
            None => self.remotes.poll_recv(cx, link),
        }
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        match self.parts.conns.links.owner_if_active(link) {
            Some(owner) => self.parts.conns.poll_send(cx, link, owner),
            None => self.remotes.poll_send(cx, link),
        }
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.parts.volumes.poll_disk()
    }

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<Message>)> {
        self.parts.conns.departures.pop_front()
    }

    fn poll_halt(&mut self) -> Option<LinkId> {
        self.parts.halts.pop_front()
    }

    fn handle_send_cut(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp, written: usize) {
        self.handle_conn_send_cut(cx, link, op, written);
    }

    fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        self.parts.outbox.poll_message()
    }

    fn poll_dial(&mut self) -> Option<Dial> {
        self.remotes.poll_dial()
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        if let Some(link) = self.remotes.handle_dialled(cx, id, how) {
            self.parts.conns.departures.push_back((link, LinkDeparture::Abort));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.parts.is_halting() {
            return None;
        }
        if self.parts.volumes.has_long_ops() || !self.parts.deferred.is_empty() {
            // It has come: what gives way goes on as soon as the world has had its turn.
            return Some(Time(0));
        }
        let own =
            [self.stop_deadline(), self.iscsi.pending_sessions.poll_timeout(), self.remotes.poll_timeout()];
        let own = own.into_iter().chain([self.nvme.pending_connects_deadline(), self.recalls.poll_timeout()]);
        let times = [
            self.parts.conns.timers.next_time(),
            self.parts.volumes.poll_timeout(),
            self.nvme.server.poll_timeout(),
            self.parts.throttled.poll_timeout(),
        ];
        times.into_iter().chain(own).flatten().min()
    }
}
