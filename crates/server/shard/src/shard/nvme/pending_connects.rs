//! Connects for a queue number that is still in use. A host may close a queue's connection and connect the
//! queue again at once (SPDK does), and the new connection may be served before the end of the old one is
//! seen. So a Connect for such a number waits for a moment.
//!
//! Invariant: a waiting Connect is answered once, when the number is free or the moment has passed.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::ShardId;
use nvme::fabrics::ConnectRefusal;

use super::NvmeFront;
use crate::message::{Message, NvmeMessage, QueueRefusal, QueueRequest};
use crate::shard::SharedParts;

/// How long a Connect waits for the number of its queue.
const QID_WAIT_MAX: Duration = Duration::from_millis(100);
/// Most that wait on one shard; one more is refused at once.
const PENDING_CONNECTS_MAX: usize = 256;

/// A queue that waits for its number.
pub(super) struct PendingConnect {
    pub(super) until: Time,
    cntlid: u16,
    from: ShardId,
    token: u64,
    asked: QueueRequest,
}

/// Those who wait, the first to lose patience in front.
pub(super) type PendingConnects = VecDeque<PendingConnect>;

impl NvmeFront {
    /// An I/O queue wants to join a controller that should live here.
    pub(super) fn admit_queue_or_wait(
        &mut self,
        cx: &Cx<'_>,
        parts: &mut SharedParts,
        cntlid: u16,
        (from, token): (ShardId, u64),
        mut asked: QueueRequest,
    ) {
        let answer = self.admit_queue(parts, cntlid, &mut asked);
        let held = matches!(answer, Err(QueueRefusal::Refused(ConnectRefusal::Sequence)))
            && self.server.has_proven_queue(cntlid, asked.join.qid);
        if held && self.pending_connects.len() < PENDING_CONNECTS_MAX {
            let until = cx.now + QID_WAIT_MAX;
            return self.pending_connects.push_back(PendingConnect { until, cntlid, from, token, asked });
        }
        parts.outbox.post(from, Message::Nvme(NvmeMessage::QueueReply(token, answer)));
    }

    /// Answers those whose number is free, or who have waited long enough; tells whether there were any.
    pub(in crate::shard) fn run_pending_connects(&mut self, cx: &Cx<'_>, parts: &mut SharedParts) -> bool {
        let mut any = false;
        for _ in 0..self.pending_connects.len() {
            let Some(mut pending) = self.pending_connects.pop_front() else { break };
            if cx.now < pending.until && self.server.has_proven_queue(pending.cntlid, pending.asked.join.qid)
            {
                self.pending_connects.push_back(pending);
                continue;
            }
            any = true;
            let answer = self.admit_queue(parts, pending.cntlid, &mut pending.asked);
            parts.outbox.post(pending.from, Message::Nvme(NvmeMessage::QueueReply(pending.token, answer)));
        }
        any
    }
}
