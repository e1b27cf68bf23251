//! Hosts that must prove who they are (DH-HMAC-CHAP), as the composition sees them.
//!
//! Until it has, a connection counts among the strangers, is the first to go when there are too many,
//! and its host's identifier binds nobody. A source whose hosts fail is put off like one of wrong
//! passwords: every shard hears of it, whichever accepted the connection.

use buf::Cx;
use endpoint::ShardId;
use nvme::auth::DhComputation;
use nvme::fabrics::ConnectNames;
use nvme_server::{ComputeId, ControllerEnd, QueueKey};
use stream::Tag;

use crate::backoff::source;
use crate::exports::LOGINS_MAX;
use crate::log::{LogLine, NvmeLogLine};
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::{DIRECTORY, Shard};

impl Shard {
    /// Counts a connection among the strangers, or among the queues.
    pub(super) fn count_queue(&mut self, cx: &mut Cx<'_>, conn: Tag, stranger: bool) {
        let Some(queue) = self.conns.queue(conn) else { return };
        let was = std::mem::replace(&mut queue.is_stranger, stranger);
        match (was, stranger) {
            (true, false) => {
                self.admission.logins -= 1;
                self.nvme.queues += 1;
            }
            (false, true) => {
                self.admission.logins += 1;
                self.nvme.queues -= 1;
            }
            (true, true) | (false, false) => {}
        }
        if stranger {
            self.admission.note_age(&self.conns, conn);
            if self.admission.logins > self.exports.admission.logins.clamp(1, LOGINS_MAX) {
                self.admission.evict_oldest(cx, &mut self.conns);
            }
        }
    }

    pub(in crate::shard) fn conn_of_queue(&self, key: QueueKey) -> Option<Tag> {
        self.nvme.conns.get(key.0 as usize).copied().flatten()
    }

    /// A queue's host has proved who it is.
    pub(super) fn host_authenticated(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        self.count_queue(cx, conn, false);
        let open = self.conns.queue(conn).and_then(|queue| queue.open());
        if let Some(cntlid) = open.filter(|open| open.qid == 0).map(|open| open.cntlid) {
            self.log_connected(cntlid);
            self.outbox.post(DIRECTORY, Message::Nvme(NvmeMessage::HostAuthenticated(cntlid)));
        }
    }

    /// Tells the log of a controller whose host is who it says, as far as it has to be.
    pub(super) fn log_connected(&mut self, cntlid: u16) {
        let Some(controller) = self.nvme.controllers.get_mut(&cntlid) else { return };
        if std::mem::replace(&mut controller.is_logged, true) {
            return;
        }
        let ConnectNames { host, subsystem, .. } = controller.names.clone();
        let peer = controller.accepted.peer;
        self.log.push(LogLine::Nvme(NvmeLogLine::Connected { peer, host, subsystem, cntlid }));
    }

    /// A controller is no more. Of strangers the log says what anybody can cause, and no more.
    pub(super) fn controller_gone(&mut self, cntlid: u16, why: ControllerEnd) {
        let Some(gone) = self.nvme.controllers.remove(&cntlid) else { return };
        let ConnectNames { host, subsystem, .. } = gone.names;
        let line =
            if gone.is_logged || matches!(why, ControllerEnd::Unauthenticated | ControllerEnd::Overloaded) {
                NvmeLogLine::Disconnected { host, subsystem, cntlid, why }
            } else {
                let (peer, names) = (gone.accepted.peer, Some((host, subsystem)));
                NvmeLogLine::NotConnected { peer, names, cause: None }
            };
        self.log.push(LogLine::Nvme(line));
    }

    /// A queue's host has failed to. Whom we put out ourselves, for the place of another, has failed nothing.
    pub(super) fn host_failed_authentication(&mut self, key: QueueKey) {
        let Some(conn) = self.conn_of_queue(key) else { return };
        let Some(queue) = self.conns.queue(conn).filter(|queue| !queue.evicted) else { return };
        let from = queue.accepted.peer.ip();
        self.report_authentication_failure(from);
    }

    /// Has something computed for a queue's host, by the control plane.
    pub(super) fn compute(&mut self, cx: &mut Cx<'_>, key: QueueKey, id: ComputeId, work: DhComputation) {
        let conn = self.conn_of_queue(key);
        match conn.and_then(|conn| self.conns.queue(conn)).map(|queue| queue.accepted.peer.ip()) {
            Some(from) => {
                let message = NvmeMessage::Compute(self.id, id, source(from), Box::new(work));
                self.outbox.post(CONTROL, Message::Nvme(message));
            }
            None => self.nvme.server.not_computed(cx, id),
        }
    }

    /// On the directory's shard: a controller's host has proved who it is, and its identifier is its own.
    pub(super) fn bind_identifier(&mut self, cntlid: u16) {
        let shard = ShardId(cntlid % self.shards);
        if self.nvme.directory.as_mut().is_some_and(|directory| !directory.bind(cntlid)) {
            self.outbox.post(shard, Message::Nvme(NvmeMessage::IdentifierTaken(cntlid)));
        }
    }
}
