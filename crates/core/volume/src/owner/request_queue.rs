//! Requests that wait for their turn at a volume's home.
//!
//! Invariants: every accepted request leaves the queue once, to be executed or refused. Whether a request is
//! accepted does not depend on how much other peers send: when the queue is full, a new request replaces one
//! of the peer that has most of them. Requests that end something (a requester, a sanitize, the volume itself) or
//! report the state of the backing are never refused; at most one of each kind waits per shard, or per requester
//! that has something to lose.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::backend::ShardId;
use crate::owner_messages::{RequestId, VolumeRequest};
use crate::requester::Identity;

/// How many asks wait for their turn, but for those that are never refused: two per path of a cluster of 64 nodes
/// with 4 paths each.
pub const REQUESTS_MAX: usize = 512;

/// One ask.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) from: ShardId,
    pub(super) id: RequestId,
    pub(super) request: VolumeRequest,
}

/// Whose share of the queue an ask is in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RequestSource {
    Requester(Arc<Identity>),
    /// Asks that name nobody: resets, sanitizes, the operator.
    ShardId(ShardId),
}

impl QueuedRequest {
    fn source(&self) -> RequestSource {
        self.request
            .requester()
            .map_or(RequestSource::ShardId(self.from), |who| RequestSource::Requester(who.clone()))
    }
}

/// Those that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    queue: VecDeque<QueuedRequest>,
}

impl RequestQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<QueuedRequest> {
        self.queue.pop_front()
    }

    /// Whether an ask of this requester waits.
    pub(super) fn has_request_of(&self, who: &Identity) -> bool {
        self.queue.iter().any(|asked| asked.request.requester().is_some_and(|known| **known == *who))
    }

    /// Takes an ask on; gives the one that has to be refused for it, which may be itself.
    #[must_use]
    pub(super) fn push_or_displace(&mut self, asked: QueuedRequest) -> Option<QueuedRequest> {
        if asked.request.must_be_queued() {
            let replaced = self.superseded_by(&asked).and_then(|at| self.queue.remove(at));
            self.queue.push_back(asked);
            return replaced;
        }
        if self.queue.len() < REQUESTS_MAX {
            self.queue.push_back(asked);
            return None;
        }
        let Some(at) = self.newest_of_largest_share(&asked.source()) else { return Some(asked) };
        let refused = self.queue.remove(at);
        self.queue.push_back(asked);
        refused
    }

    /// The one that says what a newer one says better: what the backing of a volume is like.
    fn superseded_by(&self, newer: &QueuedRequest) -> Option<usize> {
        self.queue.iter().position(|older| {
            let both = (&older.request, &newer.request);
            let same = matches!(
                both,
                (VolumeRequest::Resize(_), VolumeRequest::Resize(_))
                    | (VolumeRequest::BackingReadOnly(_), VolumeRequest::BackingReadOnly(_))
            );
            same && older.from == newer.from
        })
    }

    /// The newest ask of the one that has most, if that is at least two more than this one has.
    fn newest_of_largest_share(&self, requester: &RequestSource) -> Option<usize> {
        let mut counts: HashMap<RequestSource, usize> = HashMap::new();
        for asked in self.queue.iter().filter(|asked| !asked.request.must_be_queued()) {
            *counts.entry(asked.source()).or_default() += 1;
        }
        let own = counts.get(requester).copied().unwrap_or_default();
        let most = counts.values().copied().max().filter(|most| *most >= own + 2)?;
        let newest = self.queue.iter().rposition(|asked| {
            !asked.request.must_be_queued() && counts.get(&asked.source()) == Some(&most)
        })?;
        Some(newest)
    }

    /// Takes one out again.
    pub(super) fn withdraw(&mut self, from: ShardId, id: RequestId) -> bool {
        let at = self.queue.iter().position(|asked| asked.from == from && asked.id == id);
        at.and_then(|at| self.queue.remove(at)).is_some()
    }
}
