//! Hosts that must authenticate (DH-HMAC-CHAP), as the composition sees them.
//!
//! Until a host has authenticated, its connection counts as unauthenticated, is evicted first when there are
//! too many, and does not bind its host identifier. A source of failed attempts is delayed like one of wrong
//! passwords: every shard is told, whichever accepted the connection.

use buf::Cx;
use nvme::auth::DhComputation;
use nvme_server::{ComputeId, QueueKey};
use stream::Tag;

use super::NvmeFront;
use crate::exports::LOGINS_MAX;
use crate::login_backoff::source_network;
use crate::message::{CONTROL_PLANE, Message, NvmeMessage};
use crate::shard::{DIRECTORY_SHARD, SharedParts};

impl NvmeFront {
    /// Counts a connection among the strangers, or among the queues.
    pub(super) fn set_queue_unauthenticated(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        stranger: bool,
    ) {
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        let was = std::mem::replace(&mut queue.is_stranger, stranger);
        match (was, stranger) {
            (true, false) => {
                parts.admission.logins -= 1;
                self.queues += 1;
            }
            (false, true) => {
                parts.admission.logins += 1;
                self.queues -= 1;
            }
            (true, true) | (false, false) => {}
        }
        if stranger {
            parts.admission.note_youngest(&parts.conns, conn);
            if parts.admission.logins > parts.exports.admission.logins.clamp(1, LOGINS_MAX) {
                parts.admission.evict_oldest(cx, &mut parts.conns);
            }
        }
    }

    /// A queue's host has proved who it is.
    pub(super) fn handle_host_authenticated(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        key: QueueKey,
    ) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        self.set_queue_unauthenticated(cx, parts, conn, false);
        let open = parts.conns.queue_mut(conn).and_then(|queue| queue.open_state());
        if let Some(cntlid) = open.filter(|open| open.qid == 0).map(|open| open.cntlid) {
            self.replace_psk(parts, cntlid);
            self.log_connected(&mut parts.log, cntlid);
            parts.outbox.post(DIRECTORY_SHARD, Message::Nvme(NvmeMessage::HostAuthenticated(cntlid)));
        }
    }

    /// A queue's host has failed to. Whom we put out ourselves, for the place of another, has failed nothing.
    pub(super) fn handle_host_auth_failed(&mut self, parts: &mut SharedParts, key: QueueKey) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        let Some(queue) = parts.conns.queue_mut(conn).filter(|queue| !queue.evicted) else { return };
        let from = queue.accepted.peer.ip();
        parts.outbox.broadcast(|| Message::AuthenticationFailed(from));
    }

    /// Has something computed for a queue's host, by the control plane.
    pub(super) fn start_computation(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        key: QueueKey,
        id: ComputeId,
        work: DhComputation,
    ) {
        let conn = self.conn_of_queue(key);
        match conn.and_then(|conn| parts.conns.queue_mut(conn)).map(|queue| queue.accepted.peer.ip()) {
            Some(from) => {
                let message = NvmeMessage::Compute(parts.id, id, source_network(from), Box::new(work));
                parts.outbox.post(CONTROL_PLANE, Message::Nvme(message));
            }
            None => self.server.handle_not_computed(cx, id),
        }
    }
}
