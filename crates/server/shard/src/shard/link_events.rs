//! What happens on a link goes to the connection that it belongs to, and what a connection has to say to its front.

use buf::Cx;
use endpoint::LinkId;
use stream::{Connection, Received, RecvOp, SendOp, Tag};

use super::Shard;
use super::connections::ConnKind;
use super::protocol_front::ProtocolFront;
use super::quiesce;

impl Shard {
    pub(super) fn handle_conn_recv(&mut self, cx: &mut Cx<'_>, id: LinkId, op: RecvOp, came: Received) {
        let bytes = match &came {
            Received::Bytes(bytes) => *bytes,
            Received::Loaned(sg) => sg.len(),
            Received::End | Received::Cancelled | Received::Failed(_) => 0,
        };
        let Some(owner) = self.parts.conns.links.note_recv_finished(id, bytes) else {
            return self.remotes.handle_recv(cx, id, op, came);
        };
        let Some(conn) = self.parts.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => pending_login.login.handle_recv(cx, op, came),
            ConnKind::Session(session) => {
                session.times.received = cx.now;
                if let Err(violation) = session.proto.handle_recv(cx, owner.link, op, came) {
                    self.parts.log.push(session.fault_line(violation));
                }
            }
            ConnKind::Queue(queue) => {
                queue.times.received = cx.now;
                if let Err(violation) = queue.proto.handle_recv(cx, owner.link, op, came) {
                    self.nvme.handle_protocol_error(cx, &mut self.parts, owner.conn, violation);
                }
            }
        }
        self.parts.conns.mark_pending(owner.conn);
        self.forget_if_drained(id);
    }

    pub(super) fn handle_conn_send_released(&mut self, cx: &mut Cx<'_>, id: LinkId, op: SendOp) {
        let Some(owner) = self.parts.conns.links.note_send_released(id, op.len, !op.is_stable()) else {
            return self.remotes.handle_send_released(cx, id, op);
        };
        let Some(conn) = self.parts.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            ConnKind::Login(pending_login) => {
                drop(op);
                pending_login.login.handle_send_released();
            }
            ConnKind::Session(session) => session.proto.handle_send_released(cx, owner.link, op),
            ConnKind::Queue(queue) => queue.proto.handle_send_released(cx, owner.link, op),
        }
        self.parts.conns.mark_pending(owner.conn);
        self.forget_if_drained(id);
    }

    /// A batch comes back of which the socket has taken a part only: its connection is quiesced.
    pub(super) fn handle_conn_send_cut(&mut self, cx: &mut Cx<'_>, id: LinkId, op: SendOp, written: usize) {
        let Some(owner) = self.parts.conns.links.note_send_released(id, written, !op.is_stable()) else {
            return;
        };
        let Some(conn) = self.parts.conns.get_mut(owner.conn) else { return };
        match &mut conn.kind {
            // Only sessions and queues are quiesced.
            ConnKind::Login(pending_login) => pending_login.login.handle_send_released(),
            ConnKind::Session(session) => session.proto.handle_send_cut(cx, owner.link, op, written),
            ConnKind::Queue(queue) => queue.proto.handle_send_cut(op, written),
        }
        self.parts.conns.mark_pending(owner.conn);
        self.forget_if_drained(id);
    }

    /// Hears what a connection has to say.
    pub(super) fn run_conn_events(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(conn) = self.parts.conns.get_mut(tag) else { return };
        conn.touched = false;
        match &conn.kind {
            ConnKind::Login(_) if quiesce::freeze_login(&mut self.parts.quiesce, tag) => {}
            ConnKind::Queue(queue)
                if queue.is_connecting() && quiesce::freeze_login(&mut self.parts.quiesce, tag) => {}
            ConnKind::Login(_) => self.iscsi.run_login_events(cx, &mut self.parts, tag),
            ConnKind::Session(_) => self.iscsi.run_session_events(cx, &mut self.parts, tag),
            ConnKind::Queue(_) => self.nvme.run_queue_events(cx, &mut self.parts, tag),
        }
        self.parts.conns.update_timer(tag);
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
