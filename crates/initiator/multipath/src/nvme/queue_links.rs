//! The connections of a host: each is dialled, then carries one queue, and is removed when that has ended.
//!
//! Connections of an ended association may still be closing while those of the next are opened, so a queue is
//! identified by its association and its number.
//!
//! Invariants:
//! - A connection stays in the list until everything in flight has come back.
//! - Each loss is reported once: before the ends of the commands lost with it, and after those that the
//!   controller had answered.

use std::collections::VecDeque;
use std::net::SocketAddr;

use buf::{Cx, Errno, Payload, Time};
use endpoint::{CloseMode, Computation, Dial, DialId, DialSource, Dialled, LinkId, PendingResult};
use nvme::{Cqe, Sqe, auth};
use nvme_tcp::{ConnectedQueueSize, HostQueue, HostQueueSettings, LinkFault};
use stream::{
    Connection, ConnectionClose, HostConnection, HostEvent, LinkNumber, Received, RecvOp, SendOp, Tag,
    earliest,
};
use tls::{ClientContext, Handshake};

/// What [`OutboundSockets`](endpoint::OutboundSockets) asks of who has [`QueueLinks`] and settings, itself or in a part.
macro_rules! by_links {
    ($($part:ident)?) => {
        fn poll_dial(&mut self) -> Option<endpoint::Dial> {
            self$(.$part)?.links.poll_dial()
        }

        fn handle_dialled(
            &mut self,
            cx: &mut buf::Cx<'_>,
            id: endpoint::DialId,
            how: Result<endpoint::Dialled, buf::Errno>,
        ) {
            self$(.$part)?.links.handle_dialled(
                cx,
                id,
                how,
                (&self$(.$part)?.settings.host_queue_settings(), self$(.$part)?.settings.tls.as_ref()),
            );
        }

        fn handle_recv(
            &mut self,
            cx: &mut buf::Cx<'_>,
            link: endpoint::LinkId,
            op: stream::RecvOp,
            came: stream::Received,
        ) {
            self$(.$part)?.links.handle_recv(cx, link, op, came);
        }

        fn handle_written(
            &mut self,
            cx: &mut buf::Cx<'_>,
            link: endpoint::LinkId,
            how: Result<(), buf::Errno>,
        ) {
            self$(.$part)?.links.handle_written(cx, link, how);
        }

        fn handle_send_released(&mut self, cx: &mut buf::Cx<'_>, link: endpoint::LinkId, op: stream::SendOp) {
            self$(.$part)?.links.handle_sent(cx, link, op);
        }

        fn poll_ready(&mut self) -> Option<endpoint::LinkId> {
            self$(.$part)?.links.poll_ready()
        }

        fn poll_recv(&mut self, cx: &mut buf::Cx<'_>, link: endpoint::LinkId) -> Option<stream::RecvOp> {
            self$(.$part)?.links.poll_recv(cx, link)
        }

        fn poll_send(&mut self, cx: &mut buf::Cx<'_>, link: endpoint::LinkId) -> Option<stream::SendOp> {
            self$(.$part)?.links.poll_send(cx, link)
        }

        fn poll_link_close(&mut self) -> Option<(endpoint::LinkId, endpoint::CloseMode)> {
            self$(.$part)?.links.poll_link_close()
        }

        fn poll_computation(&mut self) -> Option<endpoint::Computation> {
            self$(.$part)?.links.poll_computation()
        }
    };
}
pub(super) use by_links;

/// A connection that there is no memory for.
const ENOMEM: i32 = 12;
/// The one link of a queue.
const ONLY_LINK: LinkNumber = LinkNumber(0);

/// Names a queue: of which association, and which; 0 is the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueId {
    pub(super) association: u32,
    pub(super) qid: u16,
}

impl QueueId {
    pub(super) fn is_admin(self) -> bool {
        self.qid == 0
    }
}

/// What ended a connection that we did not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkLoss {
    /// The controller closed it.
    Closed,
    /// The socket failed.
    Socket(Errno),
    /// The controller broke the rules, or was silent for too long.
    LinkFault(LinkFault),
}

/// What happened to a queue's connection.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// TCP stands.
    Dialled(Dialled),
    /// It does not.
    NotDialled(Errno),
    /// ICResp came: commands may go.
    Ready,
    /// A command has ended.
    Completed(Tag, Cqe, Payload),
    /// The connection is of no use any more.
    Broken(LinkLoss),
    /// Nothing is left of it.
    Closed,
}

#[derive(Debug)]
struct QueueLink {
    who: QueueId,
    link: LinkId,
    peer: SocketAddr,
    core: HostQueue,
    /// It stands among those that are ready.
    listed: bool,
    /// It may have events.
    lively: bool,
    /// What a step of its TLS handshake comes to.
    shaking: Option<PendingResult<tls::HandshakeProgress>>,
    /// Its break was told, or we ended it.
    over: bool,
    /// How its socket is to be closed.
    leave: CloseMode,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct QueueLinks {
    dials: VecDeque<Dial>,
    /// Dials that are not answered.
    awaited: Vec<(DialId, QueueId)>,
    list: Vec<QueueLink>,
    ready: VecDeque<LinkId>,
    leaves: VecDeque<(LinkId, CloseMode)>,
    told: VecDeque<(QueueId, LinkEvent)>,
    /// What is to be computed for queues that come up: one piece each.
    work: VecDeque<Computation>,
    next: u64,
    /// Where connections leave this machine.
    source: DialSource,
    /// What TLS of connections to come goes by, if a key was generated.
    pub(super) generated: Option<ClientContext>,
}

impl QueueLinks {
    pub(super) fn new(source: DialSource) -> Self {
        QueueLinks { source, ..QueueLinks::default() }
    }

    /// Asks for a connection; [`LinkEvent::Dialled`] or [`LinkEvent::NotDialled`] follows.
    pub(super) fn request_dial(&mut self, who: QueueId, to: SocketAddr, until: Time) {
        let id = DialId(self.next);
        self.next += 1;
        self.awaited.push((id, who));
        self.dials.push_back(Dial { id, to, source: self.source, until });
    }

    pub(super) fn poll_dial(&mut self) -> Option<Dial> {
        self.dials.pop_front()
    }

    /// Has something computed elsewhere for a queue; gives what will have come of it.
    pub(super) fn start_computation(
        &mut self,
        who: QueueId,
        work: auth::DhComputation,
    ) -> Option<PendingResult<auth::DhResult>> {
        let peer = self.list.iter().find(|linked| linked.who == who && !linked.over)?.peer;
        let (work, awaited) = Computation::new(peer.ip(), move || work.run());
        self.work.push_back(work);
        Some(awaited)
    }

    /// What is to be computed and still wanted.
    pub(super) fn poll_computation(&mut self) -> Option<Computation> {
        while let Some(work) = self.work.pop_front() {
            if work.is_wanted() {
                return Some(work);
            }
        }
        None
    }

    pub(super) fn handle_dialled(
        &mut self,
        cx: &mut Cx<'_>,
        id: DialId,
        how: Result<Dialled, Errno>,
        (limits, tls): (&HostQueueSettings, Option<&ClientContext>),
    ) {
        let place = self.awaited.iter().position(|(awaited, _)| *awaited == id);
        let who = place.map(|place| self.awaited.swap_remove(place).1);
        match (who, how) {
            (Some(who), Ok(dialled)) => {
                let mut core = HostQueue::new(cx, limits.clone());
                let link = dialled.link;
                match self.generated.as_ref().or(tls).map(Handshake::new_client).transpose() {
                    Ok(None) => {}
                    Ok(Some(handshake)) => core.start_tls(handshake),
                    Err(_) => {
                        self.leaves.push_back((link, CloseMode::Abort));
                        return self.told.push_back((who, LinkEvent::NotDialled(Errno(ENOMEM))));
                    }
                }
                self.list.push(QueueLink {
                    who,
                    link,
                    peer: dialled.peer,
                    core,
                    listed: true,
                    lively: true,
                    shaking: None,
                    over: false,
                    leave: CloseMode::Abort,
                });
                self.ready.push_back(link);
                self.told.push_back((who, LinkEvent::Dialled(dialled)));
            }
            (Some(who), Err(errno)) => self.told.push_back((who, LinkEvent::NotDialled(errno))),
            // Who wanted it has given up meanwhile.
            (None, Ok(dialled)) => self.leaves.push_back((dialled.link, CloseMode::Abort)),
            (None, Err(_)) => {}
        }
    }

    /// Ends a connection, or the wish for one. In good order, what was said is still delivered; else
    /// nothing of it leaves any more.
    pub(super) fn close_link(&mut self, cx: &mut Cx<'_>, who: QueueId, leave: CloseMode) {
        self.awaited.retain(|(_, awaited)| *awaited != who);
        for linked in self.list.iter_mut().filter(|linked| linked.who == who && !linked.over) {
            (linked.over, linked.leave) = (true, leave);
            linked.core.close(cx, ConnectionClose::Now);
            mark_ready(linked, &mut self.ready);
        }
        self.close_finished_sockets();
    }

    /// Whether a connection of this association is there or on its way.
    pub(super) fn has_link(&self, who: QueueId) -> bool {
        self.list.iter().any(|linked| linked.who == who && !linked.over)
    }

    pub(super) fn host_queue(&self, who: QueueId) -> Option<&HostQueue> {
        self.list.iter().find(|linked| linked.who == who && !linked.over).map(|linked| &linked.core)
    }

    /// Connect has succeeded.
    pub(super) fn open_queue(&mut self, who: QueueId, size: ConnectedQueueSize) {
        if let Some(linked) = self.list.iter_mut().find(|linked| linked.who == who) {
            linked.core.finish_connect(size);
        }
    }

    /// Starts a command; gives it back if the queue is gone or has no room.
    pub(super) fn submit_command(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        sqe: Sqe,
        payload: Payload,
    ) -> Result<Tag, (Sqe, Payload)> {
        let Some(linked) = self.list.iter_mut().find(|linked| linked.who == who && !linked.over) else {
            return Err((sqe, payload));
        };
        let tag = linked.core.submit(cx, sqe, payload)?;
        mark_ready(linked, &mut self.ready);
        Ok(tag)
    }

    /// As [`QueueLinks::submit_command`], for a command of which it is not known how much data it sends.
    pub(super) fn submit_raw_command(
        &mut self,
        who: QueueId,
        sqe: Sqe,
        payload: Payload,
    ) -> Result<Tag, Payload> {
        let Some(linked) = self.list.iter_mut().find(|linked| linked.who == who && !linked.over) else {
            return Err(payload);
        };
        let tag = linked.core.submit_accepting_short_data(sqe, payload).map_err(|(_, payload)| payload)?;
        mark_ready(linked, &mut self.ready);
        Ok(tag)
    }

    fn find_link(&mut self, link: LinkId) -> Option<&mut QueueLink> {
        // A name is used once, but its connection may be gone: what comes late is dropped.
        self.list.iter_mut().find(|linked| linked.link == link)
    }

    pub(super) fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        let broken = match &came {
            Received::End => Some(LinkLoss::Closed),
            Received::Failed(errno) => Some(LinkLoss::Socket(*errno)),
            Received::Bytes(_) | Received::Loaned(_) | Received::Cancelled => None,
        };
        if broken.is_some() {
            self.drain_queue_events(link);
        }
        let Some(linked) = self.find_link(link) else { return };
        let result = linked.core.handle_recv(cx, ONLY_LINK, op, came);
        self.finish_socket_event(link, broken.or(result.err().map(LinkLoss::LinkFault)));
    }

    pub(super) fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        if how.is_err() {
            self.drain_queue_events(link);
        }
        let Some(linked) = self.find_link(link) else { return };
        linked.core.handle_written(cx, ONLY_LINK, how);
        self.finish_socket_event(link, how.err().map(LinkLoss::Socket));
    }

    pub(super) fn handle_sent(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        let Some(linked) = self.find_link(link) else { return };
        linked.core.handle_send_released(cx, ONLY_LINK, op);
        self.finish_socket_event(link, None);
    }

    /// Takes what a connection has to tell before it is told that it is broken: a refusal comes before
    /// the end of the connection that it is about.
    fn drain_queue_events(&mut self, link: LinkId) {
        let QueueLinks { list, told, .. } = self;
        let Some(linked) = list.iter_mut().find(|linked| linked.link == link) else { return };
        while let Some(event) = linked.core.poll_event() {
            told.extend(link_event_of(event).map(|event| (linked.who, event)));
        }
    }

    /// A connection was told something.
    fn finish_socket_event(&mut self, link: LinkId, broken: Option<LinkLoss>) {
        let QueueLinks { list, ready, told, .. } = self;
        let Some(linked) = list.iter_mut().find(|linked| linked.link == link) else { return };
        if let (Some(how), false) = (broken, linked.over) {
            linked.over = true;
            told.push_back((linked.who, LinkEvent::Broken(how)));
        }
        mark_ready(linked, ready);
        self.close_finished_sockets();
    }

    pub(super) fn poll_ready(&mut self) -> Option<LinkId> {
        let link = self.ready.pop_front()?;
        if let Some(linked) = self.find_link(link) {
            linked.listed = false;
        }
        Some(link)
    }

    pub(super) fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        self.find_link(link)?.core.poll_recv(cx, ONLY_LINK)
    }

    pub(super) fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        self.find_link(link)?.core.poll_send(cx, ONLY_LINK)
    }

    pub(super) fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        self.leaves.pop_front()
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.list.iter().map(|linked| linked.core.poll_timeout()).fold(None, earliest)
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        for linked in &mut self.list {
            if linked.core.poll_timeout().is_none_or(|due| due > cx.now) {
                continue;
            }
            linked.core.handle_timeout(cx);
            if let (Some(violation), false) = (linked.core.poll_link_fault(), linked.over) {
                linked.over = true;
                self.told.push_back((linked.who, LinkEvent::Broken(LinkLoss::LinkFault(violation))));
            }
            mark_ready(linked, &mut self.ready);
        }
        self.close_finished_sockets();
    }

    /// Closes the sockets of those that are done.
    fn close_finished_sockets(&mut self) {
        for linked in &mut self.list {
            if linked.core.poll_link_to_close().is_some() {
                self.leaves.push_back((linked.link, linked.leave));
            }
        }
    }

    /// Has steps of TLS handshakes computed elsewhere, and takes what came of them.
    fn advance_handshakes(&mut self) {
        let QueueLinks { list, work, ready, told, .. } = self;
        for linked in list.iter_mut() {
            if let Some(handshake) = linked.core.poll_handshake() {
                let (step, pending) = Computation::new(linked.peer.ip(), move || handshake.step());
                linked.shaking = Some(pending);
                work.push_back(step);
            }
            let Some(progress) = linked.shaking.as_mut().and_then(|pending| pending.take()) else { continue };
            linked.shaking = None;
            linked.core.handle_handshake(progress.ok());
            if let (Some(fault), false) = (linked.core.poll_link_fault(), linked.over) {
                linked.over = true;
                told.push_back((linked.who, LinkEvent::Broken(LinkLoss::LinkFault(fault))));
            }
            mark_ready(linked, ready);
        }
        self.close_finished_sockets();
    }

    /// The next thing that happened.
    pub(super) fn poll_link_event(&mut self, cx: &mut Cx<'_>) -> Option<(QueueId, LinkEvent)> {
        self.advance_handshakes();
        if let Some(told) = self.told.pop_front() {
            return Some(told);
        }
        for at in 0..self.list.len() {
            let Some(linked) = self.list.get_mut(at) else { break };
            if !linked.lively {
                continue;
            }
            let who = linked.who;
            match linked.core.poll_event() {
                Some(HostEvent::Closed) => {
                    self.list.remove(at);
                    return Some((who, LinkEvent::Closed));
                }
                Some(event) => return link_event_of(event).map(|event| (who, event)),
                None => {
                    linked.lively = false;
                    if let (Err(violation), false) = (linked.core.resume_parsing(cx), linked.over) {
                        linked.over = true;
                        mark_ready(linked, &mut self.ready);
                        return Some((who, LinkEvent::Broken(LinkLoss::LinkFault(violation))));
                    }
                }
            }
        }
        None
    }
}

/// What an event of a connection that goes on means.
fn link_event_of(event: HostEvent<Cqe>) -> Option<LinkEvent> {
    match event {
        HostEvent::Ready => Some(LinkEvent::Ready),
        HostEvent::Completed { tag, response, payload } => Some(LinkEvent::Completed(tag, response, payload)),
        HostEvent::Closed => None,
    }
}

fn mark_ready(linked: &mut QueueLink, ready: &mut VecDeque<LinkId>) {
    linked.lively = true;
    if !linked.listed {
        linked.listed = true;
        ready.push_back(linked.link);
    }
}
