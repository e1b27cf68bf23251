//! Connections and their links: who owns which socket, and what is out on it.

use std::collections::VecDeque;
use std::sync::Arc;

use buf::{Cx, Errno};
use endpoint::{Accepted, Departure, LinkId, ShardId};
use iscsi::chap::Algorithm;
use iscsi::session::TargetSession;
use iscsi::wire::{Cid, Tsih};
use scsi_server::NexusKey;
use stream::{Connection, Link, Received, RecvOp, SendOp, Slab, Tag, Timers};

use super::Shard;
use super::nvme::queue::Queue;
use super::payload_step::Parked;
use crate::exports::PlacementOutcome;
use crate::links::{Links, Owner};
use crate::log::LogLine;
use crate::login_link::LoginLink;
use crate::message::{Message, SessionMemory, Traffic};

/// A connection: a login, a session with its links, or a queue of NVMe.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) kind: ConnKind,
    pub(super) parked: Parked,
    /// When `Timers` was last told.
    pub(super) noted: Option<buf::Time>,
    /// Whether it is in `touched`.
    pub(super) touched: bool,
}

impl Conn {
    pub(super) fn new(kind: ConnKind) -> Self {
        Conn { kind, parked: Parked::default(), noted: None, touched: false }
    }
}

#[derive(Debug)]
pub(super) enum ConnKind {
    Login(Box<PendingLogin>),
    Session(Box<Session>),
    Queue(Box<Queue>),
}

/// A link that logs in.
#[derive(Debug)]
pub(super) struct PendingLogin {
    pub(super) id: LinkId,
    pub(super) login: LoginLink,
    /// The connection's CID, once the login has come so far.
    pub(super) cid: Option<Cid>,
    /// What is to be set aside for a new session before the last response goes out.
    pub(super) memory: SessionMemory,
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
    /// How the latest of them came: what the session is judged by while it has none.
    pub(super) latest: Accepted,
    pub(super) io: Traffic,
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
    pub(super) link: Link,
    pub(super) cid: Cid,
    pub(super) accepted: Accepted,
    pub(super) digests: (bool, bool),
    pub(super) segments: (u32, u32),
    /// How the initiator proved itself on it.
    pub(super) algorithm: Option<Algorithm>,
}

/// All connections of a shard, with their links.
pub(super) struct Connections {
    slab: Slab<Conn>,
    pub(super) links: Links,
    pub(super) timers: Timers<Tag>,
    /// Connections that may have events.
    pub(super) touched: VecDeque<Tag>,
    /// Links that may have something to receive or to send.
    pub(super) ready: VecDeque<LinkId>,
    /// Links that the world is to take back.
    pub(super) departures: VecDeque<(LinkId, Departure<Message>)>,
}

impl Connections {
    /// Room for so many.
    pub(super) fn new(max: usize) -> Self {
        Connections {
            slab: Slab::new(max),
            links: Links::default(),
            timers: Timers::default(),
            touched: VecDeque::new(),
            ready: VecDeque::new(),
            departures: VecDeque::new(),
        }
    }

    /// Notes when a connection wants to be called next.
    fn note_timeout(&mut self, tag: Tag) {
        if let Some(conn) = self.slab.get_mut(tag) {
            let wanted = match &conn.kind {
                ConnKind::Login(pending_login) => pending_login.login.poll_timeout(),
                ConnKind::Session(session) => session.proto.poll_timeout(),
                ConnKind::Queue(queue) => queue.proto.poll_timeout(),
            };
            self.timers.note(tag, wanted, &mut conn.noted);
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
    pub(super) fn touch(&mut self, tag: Tag) {
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
        if self.links.make_ready(link) {
            self.ready.push_back(link);
        }
    }

    #[inline]
    pub(super) fn session(&mut self, tag: Tag) -> Option<&mut Session> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Session(session) => Some(session),
            ConnKind::Login(_) | ConnKind::Queue(_) => None,
        }
    }

    pub(super) fn pending_login(&mut self, tag: Tag) -> Option<&mut PendingLogin> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Login(pending_login) => Some(pending_login),
            ConnKind::Session(_) | ConnKind::Queue(_) => None,
        }
    }

    #[inline]
    pub(super) fn queue(&mut self, tag: Tag) -> Option<&mut Queue> {
        match &mut self.slab.get_mut(tag)?.kind {
            ConnKind::Queue(queue) => Some(queue),
            ConnKind::Login(_) | ConnKind::Session(_) => None,
        }
    }
}

impl Shard {
    pub(super) fn conn_recv(&mut self, cx: &mut Cx<'_>, id: LinkId, op: RecvOp, came: Received) {
        let bytes = match &came {
            Received::Bytes(bytes) => *bytes,
            Received::Loaned(sg) => sg.len(),
            Received::End | Received::Cancelled | Received::Failed(_) => 0,
        };
        let Some(owner) = self.conns.links.recv_back(id, bytes) else {
            return self.remotes.handle_recv(cx, id, op, came);
        };
        let Some(conn) = self.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => pending_login.login.handle_recv(cx, op, came),
            ConnKind::Session(session) => {
                if let Err(violation) = session.proto.handle_recv(cx, owner.link, op, came) {
                    let initiator = session.initiator.clone();
                    self.log.push(LogLine::LinkFault { initiator, violation });
                }
            }
            ConnKind::Queue(queue) => {
                if let Err(violation) = queue.proto.handle_recv(cx, owner.link, op, came) {
                    self.queue_protocol_error(cx, owner.conn, violation);
                }
            }
        }
        self.conns.touch(owner.conn);
        self.forget_if_drained(id);
    }

    pub(super) fn conn_written(&mut self, cx: &mut Cx<'_>, id: LinkId, how: Result<(), Errno>) {
        let Some(owner) = self.conns.links.get(id) else { return self.remotes.handle_written(cx, id, how) };
        let Some(conn) = self.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => pending_login.login.handle_written(how),
            ConnKind::Session(session) => session.proto.handle_written(cx, owner.link, how),
            ConnKind::Queue(queue) => queue.proto.handle_written(cx, owner.link, how),
        }
        self.conns.touch(owner.conn);
        self.conns.mark_ready(id);
    }

    pub(super) fn conn_sent(&mut self, cx: &mut Cx<'_>, id: LinkId, op: SendOp) {
        let Some(owner) = self.conns.links.send_back(id, op.len, !op.is_stable()) else {
            return self.remotes.handle_sent(cx, id, op);
        };
        let Some(conn) = self.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => {
                drop(op);
                pending_login.login.handle_sent();
            }
            ConnKind::Session(session) => session.proto.handle_sent(cx, owner.link, op),
            ConnKind::Queue(queue) => queue.proto.handle_sent(cx, owner.link, op),
        }
        self.conns.touch(owner.conn);
        self.forget_if_drained(id);
    }

    pub(super) fn conn_poll_recv(&mut self, cx: &mut Cx<'_>, id: LinkId) -> Option<RecvOp> {
        let Some(owner) = self.conns.links.get(id) else { return self.remotes.poll_recv(cx, id) };
        let op = match &mut self.conns.get_mut(owner.conn)?.kind {
            ConnKind::Login(pending_login) => pending_login.login.poll_recv(),
            ConnKind::Session(session) => session.proto.poll_recv(cx, owner.link),
            ConnKind::Queue(queue) => queue.proto.poll_recv(cx, owner.link),
        }?;
        self.conns.links.recv_out(id);
        Some(op)
    }

    pub(super) fn conn_poll_send(&mut self, cx: &mut Cx<'_>, id: LinkId) -> Option<SendOp> {
        let Some(owner) = self.conns.links.get(id) else { return self.remotes.poll_send(cx, id) };
        let op = match &mut self.conns.get_mut(owner.conn)?.kind {
            ConnKind::Login(pending_login) => pending_login.login.poll_send(cx),
            ConnKind::Session(session) => session.proto.poll_send(cx, owner.link),
            ConnKind::Queue(queue) => queue.proto.poll_send(cx, owner.link),
        }?;
        self.conns.links.send_out(id, !op.is_stable());
        Some(op)
    }

    pub(super) fn conn_timeout(&mut self, cx: &mut Cx<'_>, tag: Tag, time: buf::Time) {
        let Some(conn) = self.conns.get_mut(tag) else { return };
        if conn.noted != Some(time) {
            return;
        }
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
        self.conns.touch(tag);
    }

    /// Hears what a connection has to say.
    pub(super) fn drain(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(conn) = self.conns.get_mut(tag) else { return };
        conn.touched = false;
        match conn.kind {
            ConnKind::Login(_) => self.drain_login(cx, tag),
            ConnKind::Session(_) => self.drain_session(cx, tag),
            ConnKind::Queue(_) => self.drain_queue(cx, tag),
        }
        self.conns.note_timeout(tag);
    }

    /// Lets a link go. What is out on it comes back first; then it is forgotten.
    pub(super) fn depart(&mut self, id: LinkId, how: Departure<Message>) {
        let moved = matches!(how, Departure::Move { .. });
        let how = match (self.conns.links.depart(id, moved), how) {
            (true, Departure::Close) => Departure::Abort,
            (_, how) => how,
        };
        self.conns.departures.push_back((id, how));
        self.forget_if_drained(id);
    }

    /// Forgets a link that has departed and has nothing out, and a connection that has no link.
    fn forget_if_drained(&mut self, id: LinkId) {
        let Some(owner) = self.conns.links.remove_drained(id) else {
            self.conns.mark_ready(id);
            return;
        };
        self.forget_link(id, owner);
    }

    fn forget_link(&mut self, id: LinkId, owner: Owner) {
        let Some(conn) = self.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => {
                pending_login.gone = true;
                self.forget_login(owner.conn);
            }
            ConnKind::Session(session) => {
                session.links.retain(|link| link.id != id);
                self.forget_session(owner.conn);
            }
            ConnKind::Queue(queue) => {
                queue.gone = true;
                self.forget_queue(owner.conn);
            }
        }
    }
}
