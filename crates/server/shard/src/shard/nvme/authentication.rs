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
use crate::backoff::source;
use crate::exports::LOGINS_MAX;
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::{DIRECTORY, Parts};

impl NvmeFront {
    /// Counts a connection among the strangers, or among the queues.
    pub(super) fn count_queue(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, conn: Tag, stranger: bool) {
        let Some(queue) = parts.conns.queue(conn) else { return };
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
            parts.admission.note_age(&parts.conns, conn);
            if parts.admission.logins > parts.exports.admission.logins.clamp(1, LOGINS_MAX) {
                parts.admission.evict_oldest(cx, &mut parts.conns);
            }
        }
    }

    /// A queue's host has proved who it is.
    pub(super) fn host_authenticated(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, key: QueueKey) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        self.count_queue(cx, parts, conn, false);
        let open = parts.conns.queue(conn).and_then(|queue| queue.open());
        if let Some(cntlid) = open.filter(|open| open.qid == 0).map(|open| open.cntlid) {
            self.replace_psk(parts, cntlid);
            self.log_connected(&mut parts.log, cntlid);
            parts.outbox.post(DIRECTORY, Message::Nvme(NvmeMessage::HostAuthenticated(cntlid)));
        }
    }

    /// A queue's host has failed to. Whom we put out ourselves, for the place of another, has failed nothing.
    pub(super) fn host_failed_authentication(&mut self, parts: &mut Parts, key: QueueKey) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        let Some(queue) = parts.conns.queue(conn).filter(|queue| !queue.evicted) else { return };
        let from = queue.accepted.peer.ip();
        parts.outbox.broadcast(|| Message::AuthenticationFailed(from));
    }

    /// Has something computed for a queue's host, by the control plane.
    pub(super) fn compute(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        key: QueueKey,
        id: ComputeId,
        work: DhComputation,
    ) {
        let conn = self.conn_of_queue(key);
        match conn.and_then(|conn| parts.conns.queue(conn)).map(|queue| queue.accepted.peer.ip()) {
            Some(from) => {
                let message = NvmeMessage::Compute(parts.id, id, source(from), Box::new(work));
                parts.outbox.post(CONTROL, Message::Nvme(message));
            }
            None => self.server.not_computed(cx, id),
        }
    }
}
