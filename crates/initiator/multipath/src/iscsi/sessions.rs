//! Sessions and their sockets: which link of which session a socket is, and what it requests from the world.
//!
//! Invariant: a session is kept until the world has given back everything in flight.

use std::collections::VecDeque;
use std::net::SocketAddr;

use buf::{Cx, Errno, Time};
use endpoint::{CloseMode, Dial, DialId, DialSource, LinkId};
use iscsi::initiator::InitiatorSession;
use smallvec::SmallVec;
use stream::{Connection, LinkNumber, Received, RecvOp, SendOp};

/// What [`OutboundSockets`](endpoint::OutboundSockets) asks of who has [`Sessions`] and [`SocketRequests`].
macro_rules! by_sessions {
    () => {
        fn poll_dial(&mut self) -> Option<endpoint::Dial> {
            self.sockets.poll_dial()
        }

        fn handle_written(
            &mut self,
            cx: &mut buf::Cx<'_>,
            link: endpoint::LinkId,
            how: Result<(), buf::Errno>,
        ) {
            self.touched = true;
            self.sessions.handle_written(cx, link, how);
        }

        fn handle_send_released(&mut self, cx: &mut buf::Cx<'_>, link: endpoint::LinkId, op: stream::SendOp) {
            self.touched = true;
            self.sessions.handle_sent(cx, link, op);
        }

        fn poll_ready(&mut self) -> Option<endpoint::LinkId> {
            self.sessions.poll_ready(&mut self.sockets)
        }

        fn poll_recv(&mut self, cx: &mut buf::Cx<'_>, link: endpoint::LinkId) -> Option<stream::RecvOp> {
            self.sessions.poll_recv(cx, link)
        }

        fn poll_link_close(&mut self) -> Option<(endpoint::LinkId, endpoint::CloseMode)> {
            self.sockets.poll_link_close()
        }
    };
}
pub(super) use by_sessions;

/// What is wanted of the world.
#[derive(Debug, Default)]
pub(super) struct SocketRequests {
    dials: VecDeque<Dial>,
    ready: VecDeque<LinkId>,
    leaving: VecDeque<(LinkId, CloseMode)>,
    next_dial: u64,
    /// Where its connections leave this machine.
    source: DialSource,
}

impl SocketRequests {
    pub(super) fn new(source: DialSource) -> Self {
        SocketRequests { source, ..SocketRequests::default() }
    }

    pub(super) fn request_dial(&mut self, to: SocketAddr, until: Time) -> DialId {
        let id = DialId(self.next_dial);
        self.next_dial += 1;
        self.dials.push_back(Dial { id, to, source: self.source, until });
        id
    }

    pub(super) fn request_close(&mut self, link: LinkId, how: CloseMode) {
        self.leaving.push_back((link, how));
    }

    pub(super) fn poll_dial(&mut self) -> Option<Dial> {
        self.dials.pop_front()
    }

    pub(super) fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        self.leaving.pop_front()
    }
}

/// A socket of a session.
#[derive(Clone, Copy, Debug)]
struct SessionSocket {
    socket: LinkId,
    /// It stands in the list of ready ones.
    listed: bool,
    /// The world was told to take it away.
    left: bool,
}

/// A session and its sockets.
#[derive(Debug)]
pub(super) struct SessionWithSockets {
    pub(super) session: InitiatorSession,
    /// By the session's numbers of links.
    wires: SmallVec<[Option<SessionSocket>; 1]>,
    /// Where its leading link goes.
    pub(super) address: SocketAddr,
    /// A logout is under way: what was sent may still be delivered.
    pub(super) polite: bool,
}

impl SessionWithSockets {
    pub(super) fn new(session: InitiatorSession, socket: LinkId, address: SocketAddr) -> Self {
        let mut wired = SessionWithSockets { session, wires: SmallVec::new(), address, polite: false };
        wired.attach_socket(LinkNumber(0), socket);
        wired
    }

    /// Notes the socket of a link.
    pub(super) fn attach_socket(&mut self, link: LinkNumber, socket: LinkId) {
        let at = usize::from(link.0);
        if self.wires.len() <= at {
            self.wires.resize(at + 1, None);
        }
        if let Some(wire) = self.wires.get_mut(at) {
            *wire = Some(SessionSocket { socket, listed: false, left: false });
        }
    }

    /// The link that a socket is.
    fn link_of_socket(&self, socket: LinkId) -> Option<LinkNumber> {
        let is = |wire: &Option<SessionSocket>| wire.is_some_and(|wire| wire.socket == socket);
        self.wires.iter().position(is).map(|at| LinkNumber(at as u16))
    }

    /// Links that are in use.
    pub(super) fn open_links(&self) -> usize {
        self.wires.iter().flatten().filter(|wire| !wire.left).count()
    }

    /// Lists every socket that may have something to do.
    pub(super) fn mark_sockets_ready(&mut self, sockets: &mut SocketRequests) {
        for wire in self.wires.iter_mut().flatten().filter(|wire| !wire.left && !wire.listed) {
            wire.listed = true;
            sockets.ready.push_back(wire.socket);
        }
    }

    /// Passes on which sockets the session is done with. A reset drops what was not delivered yet, so that
    /// it never is; a logout waits for it.
    pub(super) fn close_finished_sockets(&mut self, sockets: &mut SocketRequests) {
        while let Some(link) = self.session.poll_link_to_close() {
            let how = if self.polite { CloseMode::Close } else { CloseMode::Abort };
            if let Some(Some(wire)) = self.wires.get_mut(usize::from(link.0))
                && !wire.left
            {
                wire.left = true;
                sockets.request_close(wire.socket, how);
            }
        }
    }
}

/// The sessions that a path has: the one that serves, and those that wait for their memory.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) current: Option<SessionWithSockets>,
    pub(super) old: SmallVec<[SessionWithSockets; 1]>,
}

/// Most sessions that wait for their memory, before another is begun.
pub(super) const OLD_SESSIONS_MAX: usize = 4;

impl Sessions {
    /// Lists every socket of the session that serves.
    pub(super) fn mark_sockets_ready(&mut self, sockets: &mut SocketRequests) {
        if let Some(wired) = &mut self.current {
            wired.mark_sockets_ready(sockets);
        }
    }

    fn find_by_socket(&mut self, socket: LinkId) -> Option<(&mut SessionWithSockets, LinkNumber)> {
        // A socket's name is never used again, so the order does not matter.
        let all = self.current.iter_mut().chain(&mut self.old);
        all.filter_map(|wired| wired.link_of_socket(socket).map(|link| (wired, link))).next()
    }

    /// Gives a receive back; false: the target broke the protocol.
    pub(super) fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        socket: LinkId,
        op: RecvOp,
        came: Received,
    ) -> Result<(), iscsi::initiator::LinkFault> {
        match self.find_by_socket(socket) {
            Some((wired, link)) => wired.session.handle_recv(cx, link, op, came),
            None => Ok(()),
        }
    }

    pub(super) fn handle_written(&mut self, cx: &mut Cx<'_>, socket: LinkId, how: Result<(), Errno>) {
        if let Some((wired, link)) = self.find_by_socket(socket) {
            wired.session.handle_written(cx, link, how);
        }
    }

    pub(super) fn handle_sent(&mut self, cx: &mut Cx<'_>, socket: LinkId, op: SendOp) {
        if let Some((wired, link)) = self.find_by_socket(socket) {
            wired.session.handle_send_released(cx, link, op);
        }
    }

    pub(super) fn poll_ready(&mut self, sockets: &mut SocketRequests) -> Option<LinkId> {
        loop {
            let socket = sockets.ready.pop_front()?;
            if let Some((wired, link)) = self.find_by_socket(socket)
                && let Some(Some(wire)) = wired.wires.get_mut(usize::from(link.0))
            {
                wire.listed = false;
                if !wire.left {
                    return Some(socket);
                }
            }
        }
    }

    pub(super) fn poll_recv(&mut self, cx: &mut Cx<'_>, socket: LinkId) -> Option<RecvOp> {
        let (wired, link) = self.find_by_socket(socket)?;
        wired.session.poll_recv(cx, link)
    }

    pub(super) fn poll_send(&mut self, cx: &mut Cx<'_>, socket: LinkId) -> Option<SendOp> {
        let (wired, link) = self.find_by_socket(socket)?;
        wired.session.poll_send(cx, link)
    }
}
