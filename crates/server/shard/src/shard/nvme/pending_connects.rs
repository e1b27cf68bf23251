//! Queues whose number another still has. A host may close a queue's connection and connect the queue again
//! at once (SPDK does), and the new connection may be served before the end of the old one is heard of: so a
//! Connect for a number that is held waits for a moment.
//!
//! Invariant: who waits is answered once, when the number is free or the moment has passed.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Time};
use endpoint::ShardId;
use nvme::fabrics::ConnectRefusal;

use super::Shard;
use crate::message::{Message, NvmeMessage, QueueRefusal, QueueRequest};

/// How long a Connect waits for the number of its queue.
const WAIT_MAX: Duration = Duration::from_millis(100);
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

impl Shard {
    /// An I/O queue wants to join a controller that should live here.
    pub(super) fn join_controller(
        &mut self,
        cx: &Cx<'_>,
        cntlid: u16,
        (from, token): (ShardId, u64),
        mut asked: QueueRequest,
    ) {
        let answer = self.admit_queue(cntlid, &mut asked);
        let held = matches!(answer, Err(QueueRefusal::Refused(ConnectRefusal::Sequence)))
            && self.nvme.server.holds(cntlid, asked.join.qid);
        if held && self.nvme.pending_connects.len() < PENDING_CONNECTS_MAX {
            let until = cx.now + WAIT_MAX;
            return self.nvme.pending_connects.push_back(PendingConnect {
                until,
                cntlid,
                from,
                token,
                asked,
            });
        }
        self.outbox.post(from, Message::Nvme(NvmeMessage::QueueReply(token, answer)));
    }

    /// Answers those whose number is free, or who have waited long enough; tells whether there were any.
    pub(in crate::shard) fn run_pending_connects(&mut self, cx: &Cx<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.nvme.pending_connects.len() {
            let Some(mut pending) = self.nvme.pending_connects.pop_front() else { break };
            if cx.now < pending.until && self.nvme.server.holds(pending.cntlid, pending.asked.join.qid) {
                self.nvme.pending_connects.push_back(pending);
                continue;
            }
            any = true;
            let answer = self.admit_queue(pending.cntlid, &mut pending.asked);
            self.outbox.post(pending.from, Message::Nvme(NvmeMessage::QueueReply(pending.token, answer)));
        }
        any
    }
}
