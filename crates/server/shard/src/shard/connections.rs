//! Connections and their links: who owns which socket, and what is out on it.

use std::collections::VecDeque;
use std::sync::Arc;

use buf::{Cx, Errno, MemoryClass, Sg, SgMut};
use endpoint::{AcceptedSocket, LinkDeparture, LinkId, ShardId};
use iscsi::chap::Algorithm;
use iscsi::session::{LinkFault, ScsiCommand, TargetSession};
use iscsi::wire::{Cid, Tsih};
use scsi_server::{NexusKey, TaskKey};
use stream::{Connection, LinkNumber, RecvOp, SendOp, Slab, Tag, TargetConnection, TimerQueue};

use super::command_times::CommandTimes;
use super::local_volumes::LocalVolumes;
use super::nvme::queue_conn::QueueConn;
use super::payload_step::{CommandConn, ParkedSteps};
use super::quiesce::HeldCommand;
use super::throttle::HostLimit;
use crate::exports::PlacementOutcome;
use crate::link_table::{LinkOwner, LinkTable};
use crate::log::LogLine;
use crate::login_link::LoginLink;
use crate::message::{IoCounters, Message, SessionMemoryNeeds};

/// A connection: a login, a session with its links, or a queue of NVMe.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) kind: ConnKind,
    /// When `TimerQueue` was last told.
    pub(super) noted: Option<buf::Time>,
    /// Whether it is in `touched`.
    pub(super) touched: bool,
}

impl Conn {
    pub(super) fn new(kind: ConnKind) -> Self {
        Conn { kind, noted: None, touched: false }
    }
}

#[derive(Debug)]
pub(super) enum ConnKind {
    Login(Box<PendingLogin>),
    Session(Box<Session>),
    Queue(Box<QueueConn>),
}

impl CommandConn for Session {
    type Command = TaskKey;
    type PeerConnection = TargetSession;

    fn protocol_and_parked(&mut self) -> (&mut TargetSession, &mut ParkedSteps<TaskKey>) {
        (&mut self.proto, &mut self.parked)
    }

    fn times_mut(&mut self) -> &mut CommandTimes {
        &mut self.times
    }

    fn has_read_reserved(&self, _: Tag, _: u32) -> bool {
        false
    }

    fn host_limit(&self) -> &HostLimit {
        &self.limit
    }

    fn memory_class(&self, _: Tag) -> MemoryClass {
        MemoryClass::Solicited
    }

    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, data: Sg) {
        self.io.read_bytes += data.len() as u64;
        self.proto.send_data(cx, tag, at, data);
    }

    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, memory: SgMut) {
        self.io.written_bytes += memory.len() as u64;
        self.proto.recv_data(cx, tag, at, memory);
    }
}

/// A link that logs in.
#[derive(Debug)]
pub(super) struct PendingLogin {
    pub(super) id: LinkId,
    pub(super) login: LoginLink,
    /// The connection's CID, once the login has come so far.
    pub(super) cid: Option<Cid>,
    /// What is to be set aside for a new session before the last response goes out.
    pub(super) memory: SessionMemoryNeeds,
    /// What the directory granted, until the last response is written.
    pub(super) grant: Option<(endpoint::ShardId, Tsih, bool)>,
    /// A question to another shard is open; the login is kept until it is answered.
    pub(super) asked: bool,
    /// The link has departed.
    pub(super) gone: bool,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) proto: TargetSession,
    /// How its leading login was placed.
    pub(super) placed: PlacementOutcome,
    pub(super) tsih: Tsih,
    pub(super) initiator: Arc<str>,
    /// What it was promised when it began, in bytes.
    pub(super) promised: usize,
    pub(super) isid: iscsi::wire::Isid,
    pub(super) target: Option<Arc<str>>,
    pub(super) user: Option<String>,
    /// `None` for a discovery session.
    pub(super) nexus: Option<NexusKey>,
    pub(super) links: Vec<SessionLink>,
    pub(super) parked: ParkedSteps<TaskKey>,
    /// How the latest of them came: what the session is judged by while it has none.
    pub(super) latest: AcceptedSocket,
    pub(super) io: IoCounters,
    /// By what its host is limited.
    pub(super) limit: HostLimit,
    pub(super) times: CommandTimes,
    /// Logins of further connections that wait for the end of what they replace.
    pub(super) joining: Vec<JoinRequest>,
    /// Those that were answered and whose links are on their way.
    pub(super) admitted: Vec<JoinRequest>,
    /// A TARGET COLD RESET that is under way.
    pub(super) cold_reset: Option<Tag>,
    /// Homes of volumes that have still to end what lasts as long as the nexus.
    pub(super) homes_left: usize,
    /// They were asked to.
    pub(super) leaves: bool,
    /// `TargetEvent::Closed` has come.
    pub(super) closed: bool,
    /// Commands that came while the shard is quiesced.
    pub(super) held: Vec<HeldCommand<ScsiCommand>>,
    /// It is quiesced.
    pub(super) quiesced: bool,
}

impl Session {
    /// The sockets of its connections, as they were accepted; while it has none, the latest one.
    pub(super) fn accepted_sockets(&self) -> Vec<AcceptedSocket> {
        let links: Vec<AcceptedSocket> = self.links.iter().map(|link| link.accepted).collect();
        if links.is_empty() { vec![self.latest] } else { links }
    }

    /// What the log says of a peer that broke the protocol on one of the links.
    pub(super) fn fault_line(&self, violation: LinkFault) -> LogLine {
        let link = self.links.iter().find(|known| known.link == violation.link);
        LogLine::LinkFault {
            peer: link.map_or(self.latest.peer, |link| link.accepted.peer),
            initiator: self.initiator.clone(),
            target: self.target.clone(),
            violation,
        }
    }
}

/// A login that wants to join a session, and to know where its command window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JoinRequest {
    pub(super) cid: Cid,
    /// Its shard, and its number there.
    pub(super) from: ShardId,
    pub(super) token: u64,
}

/// A link of a session.
#[derive(Debug)]
pub(super) struct SessionLink {
    pub(super) id: LinkId,
    pub(super) link: LinkNumber,
    pub(super) cid: Cid,
    pub(super) accepted: AcceptedSocket,
    pub(super) digests: (bool, bool),
    pub(super) segments: (u32, u32),
    /// How the initiator proved itself on it.
    pub(super) algorithm: Option<Algorithm>,
}

/// All connections of a shard, with their links.
pub(super) struct Connections {
    slab: Slab<Conn>,
    pub(super) links: LinkTable,
    pub(super) timers: TimerQueue<Tag>,
    /// Connections that may have events.
    pub(super) touched: VecDeque<Tag>,
    /// Links that may have something to receive or to send.
    pub(super) ready: VecDeque<LinkId>,
    /// Links that the world is to take back.
    pub(super) departures: VecDeque<(LinkId, LinkDeparture<Message>)>,
}

impl Connections {
    /// Room for so many.
    pub(super) fn new(max: usize) -> Self {
        Connections {
            slab: Slab::new(max),
            links: LinkTable::default(),
            timers: TimerQueue::default(),
            touched: VecDeque::new(),
            ready: VecDeque::new(),
            departures: VecDeque::new(),
        }
    }

    /// Notes when a connection wants to be called next.
    pub(super) fn update_timer(&mut self, tag: Tag) {
        if let Some(conn) = self.slab.get_mut(tag) {
            let wanted = match &conn.kind {
                ConnKind::Login(pending_login) => pending_login.login.poll_timeout(),
                ConnKind::Session(session) => session.proto.poll_timeout(),
                ConnKind::Queue(queue) => queue.proto.poll_timeout(),
            };
            self.timers.update_timer(tag, wanted, &mut conn.noted);
        }
    }

    /// Takes one on; gives it back if there are as many as can be.
    pub(super) fn insert(&mut self, conn: Conn) -> Result<Tag, Conn> {
        self.slab.insert(conn)
    }

    pub(super) fn remove(&mut self, tag: Tag) -> Option<Conn> {
        self.slab.remove(tag)
    }

    #[inline]
    pub(super) fn get(&self, tag: Tag) -> Option<&Conn> {
        self.slab.get(tag)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, tag: Tag) -> Option<&mut Conn> {
        self.slab.get_mut(tag)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Tag, &Conn)> {
        self.slab.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Tag, &mut Conn)> {
        self.slab.iter_mut()
    }

    /// Notes that a connection may have events, and that its timer may have moved.
    #[inline]
    pub(super) fn mark_pending(&mut self, tag: Tag) {
        if let Some(conn) = self.slab.get_mut(tag)
            && !conn.touched
        {
            conn.touched = true;
            self.touched.push_back(tag);
        }
    }

    /// Notes that a link may have something to receive or to send.
    #[inline]
    pub(super) fn mark_ready(&mut self, link: LinkId) {
        if self.links.mark_ready(link) {
            self.ready.push_back(link);
        }
    }

    #[inline]
    pub(super) fn session_mut(&mut self, tag: Tag) -> Option<&mut Session> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Session(session) => Some(session),
            ConnKind::Login(_) | ConnKind::Queue(_) => None,
        }
    }

    pub(super) fn pending_login_mut(&mut self, tag: Tag) -> Option<&mut PendingLogin> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Login(pending_login) => Some(pending_login),
            ConnKind::Session(_) | ConnKind::Queue(_) => None,
        }
    }

    #[inline]
    pub(super) fn queue_mut(&mut self, tag: Tag) -> Option<&mut QueueConn> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Queue(queue) => Some(queue),
            ConnKind::Login(_) | ConnKind::Session(_) => None,
        }
    }

    /// What was sent is written, or never will be. False: the link is not of one of these connections.
    pub(super) fn handle_written(
        &mut self,
        cx: &mut Cx<'_>,
        volumes: &mut LocalVolumes,
        id: LinkId,
        how: Result<(), Errno>,
    ) -> bool {
        let Some(owner) = self.links.owner_if_active(id) else { return false };
        let Some(conn) = self.get_mut(owner.conn) else { return true };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => pending_login.login.handle_written(how),
            ConnKind::Session(session) => session.handle_written(cx, volumes, owner.link, how),
            ConnKind::Queue(queue) => queue.handle_written(cx, volumes, owner.link, how),
        }
        self.mark_pending(owner.conn);
        self.mark_ready(id);
        true
    }

    /// What a link wants to receive.
    pub(super) fn poll_recv(&mut self, cx: &mut Cx<'_>, id: LinkId, owner: LinkOwner) -> Option<RecvOp> {
        let op = match &mut self.get_mut(owner.conn)?.kind {
            ConnKind::Login(pending_login) => pending_login.login.poll_recv(),
            ConnKind::Session(session) => session.proto.poll_recv(cx, owner.link),
            ConnKind::Queue(queue) => queue.proto.poll_recv(cx, owner.link),
        }?;
        self.links.note_recv_started(id);
        Some(op)
    }

    /// What a link wants to send.
    pub(super) fn poll_send(&mut self, cx: &mut Cx<'_>, id: LinkId, owner: LinkOwner) -> Option<SendOp> {
        let op = match &mut self.get_mut(owner.conn)?.kind {
            ConnKind::Login(pending_login) => pending_login.login.poll_send(cx),
            ConnKind::Session(session) => session.proto.poll_send(cx, owner.link),
            ConnKind::Queue(queue) => queue.proto.poll_send(cx, owner.link),
        }?;
        self.links.note_send_started(id, !op.is_stable());
        Some(op)
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        while let Some((time, tag)) = self.timers.pop_due(cx.now) {
            let Some(conn) = self.slab.get_mut(tag).filter(|conn| conn.noted == Some(time)) else { continue };
            conn.noted = None;
            match &mut conn.kind {
                ConnKind::Login(pending_login) => pending_login.login.handle_timeout(cx.now),
                ConnKind::Session(session) => {
                    if session.proto.poll_timeout().is_some_and(|time| time <= cx.now) {
                        session.proto.handle_timeout(cx);
                    }
                }
                ConnKind::Queue(queue) => {
                    if queue.proto.poll_timeout().is_some_and(|time| time <= cx.now) {
                        queue.proto.handle_timeout(cx);
                    }
                }
            }
            self.mark_pending(tag);
        }
    }

    /// Lets a link go. Tells whose it was, if nothing is out on it, so that it is forgotten already.
    pub(super) fn begin_departure(&mut self, id: LinkId, how: LinkDeparture<Message>) -> Option<LinkOwner> {
        let moved = matches!(how, LinkDeparture::Move { .. });
        let how = match (self.links.begin_departure(id, moved), how) {
            (true, LinkDeparture::Close) => LinkDeparture::Abort,
            (_, how) => how,
        };
        self.departures.push_back((id, how));
        self.forget_if_drained(id)
    }

    /// Forgets a link that has departed and has nothing out, and tells whose it was.
    pub(super) fn forget_if_drained(&mut self, id: LinkId) -> Option<LinkOwner> {
        let owner = self.links.remove_drained(id);
        if owner.is_none() {
            self.mark_ready(id);
        }
        owner
    }
}
