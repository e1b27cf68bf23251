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
use crate::message::{Joining, Message, NotJoined, NvmeMessage};

/// How long a Connect waits for the number of its queue.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Most that wait on one shard; one more is refused at once.
const HEIRS_MAX: usize = 256;

/// A queue that waits for its number.
pub(super) struct Heir {
    until: Time,
    cntlid: u16,
    from: ShardId,
    token: u64,
    asked: Joining,
}

/// Those who wait, the first to lose patience in front.
pub(super) type Heirs = VecDeque<Heir>;

impl Shard {
    /// An I/O queue wants to join a controller that should live here.
    pub(super) fn join_controller(
        &mut self,
        cx: &Cx<'_>,
        cntlid: u16,
        (from, token): (ShardId, u64),
        mut asked: Joining,
    ) {
        let answer = self.let_in(cntlid, &mut asked);
        let held = matches!(answer, Err(NotJoined::Refused(ConnectRefusal::Sequence)))
            && self.nvme.server.holds(cntlid, asked.join.qid);
        if held && self.nvme.heirs.len() < HEIRS_MAX {
            let until = cx.now + WAIT_MAX;
            return self.nvme.heirs.push_back(Heir { until, cntlid, from, token, asked });
        }
        self.post(from, Message::Nvme(NvmeMessage::Joined(token, answer)));
    }

    /// Answers those whose number is free, or who have waited long enough; tells whether there were any.
    pub(in crate::shard) fn run_heirs(&mut self, cx: &Cx<'_>) -> bool {
        let mut any = false;
        for _ in 0..self.nvme.heirs.len() {
            let Some(mut heir) = self.nvme.heirs.pop_front() else { break };
            if cx.now < heir.until && self.nvme.server.holds(heir.cntlid, heir.asked.join.qid) {
                self.nvme.heirs.push_back(heir);
                continue;
            }
            any = true;
            let answer = self.let_in(heir.cntlid, &mut heir.asked);
            self.post(heir.from, Message::Nvme(NvmeMessage::Joined(heir.token, answer)));
        }
        any
    }

    /// When somebody has waited long enough.
    pub(in crate::shard) fn heirs_timeout(&self) -> Option<Time> {
        self.nvme.heirs.front().map(|heir| heir.until)
    }
}
