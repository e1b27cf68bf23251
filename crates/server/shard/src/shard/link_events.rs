//! What happens on a link goes to the connection that it belongs to, and what a connection has to say to its front.

use buf::Cx;
use endpoint::LinkId;
use stream::{Connection, Received, RecvOp, SendOp, Tag};

use super::Shard;
use super::conns::ConnKind;
use super::front::Front;
use crate::log::LogLine;

impl Shard {
    pub(super) fn conn_recv(&mut self, cx: &mut Cx<'_>, id: LinkId, op: RecvOp, came: Received) {
        let bytes = match &came {
            Received::Bytes(bytes) => *bytes,
            Received::Loaned(sg) => sg.len(),
            Received::End | Received::Cancelled | Received::Failed(_) => 0,
        };
        let Some(owner) = self.parts.conns.links.recv_back(id, bytes) else {
            return self.remotes.handle_recv(cx, id, op, came);
        };
        let Some(conn) = self.parts.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => pending_login.login.handle_recv(cx, op, came),
            ConnKind::Session(session) => {
                session.times.received = cx.now;
                if let Err(violation) = session.proto.handle_recv(cx, owner.link, op, came) {
                    let initiator = session.initiator.clone();
                    self.parts.log.push(LogLine::LinkFault { initiator, violation });
                }
            }
            ConnKind::Queue(queue) => {
                queue.times.received = cx.now;
                if let Err(violation) = queue.proto.handle_recv(cx, owner.link, op, came) {
                    self.nvme.queue_protocol_error(cx, &mut self.parts, owner.conn, violation);
                }
            }
        }
        self.parts.conns.touch(owner.conn);
        self.forget_if_drained(id);
    }

    pub(super) fn conn_sent(&mut self, cx: &mut Cx<'_>, id: LinkId, op: SendOp) {
        let Some(owner) = self.parts.conns.links.send_back(id, op.len, !op.is_stable()) else {
            return self.remotes.handle_sent(cx, id, op);
        };
        let Some(conn) = self.parts.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => {
                drop(op);
                pending_login.login.handle_sent();
            }
            ConnKind::Session(session) => session.proto.handle_sent(cx, owner.link, op),
            ConnKind::Queue(queue) => queue.proto.handle_sent(cx, owner.link, op),
        }
        self.parts.conns.touch(owner.conn);
        self.forget_if_drained(id);
    }

    /// Hears what a connection has to say.
    pub(super) fn run_conn(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(conn) = self.parts.conns.get_mut(tag) else { return };
        conn.touched = false;
        match conn.kind {
            ConnKind::Login(_) => self.iscsi.run_login(cx, &mut self.parts, tag),
            ConnKind::Session(_) => self.iscsi.run_session(cx, &mut self.parts, tag),
            ConnKind::Queue(_) => self.nvme.run_queue(cx, &mut self.parts, tag),
        }
        self.parts.conns.note_timeout(tag);
    }

    /// Forgets a link that has departed and has nothing out, and a connection that has no link.
    fn forget_if_drained(&mut self, id: LinkId) {
        let Some(owner) = self.parts.conns.forget_if_drained(id) else { return };
        match self.parts.conns.get(owner.conn).map(|conn| &conn.kind) {
            Some(ConnKind::Login(_) | ConnKind::Session(_)) => {
                self.iscsi.forget_link(&mut self.parts, owner.conn, id);
            }
            Some(ConnKind::Queue(_)) => self.nvme.forget_link(&mut self.parts, owner.conn, id),
            None => {}
        }
    }
}
