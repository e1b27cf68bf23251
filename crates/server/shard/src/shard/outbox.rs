//! Messages that leave a shard, and those to itself. Invariant: messages to one shard stay in order.

use std::collections::VecDeque;

use endpoint::ShardId;

use crate::message::{CONTROL_PLANE, ControlReport, Message};

/// See the module.
#[derive(Debug)]
pub(super) struct Outbox {
    id: ShardId,
    shards: u16,
    to_others: VecDeque<(ShardId, Message)>,
    to_self: VecDeque<Message>,
}

impl Outbox {
    /// Of shard `id` of `shards`.
    pub(super) fn new(id: ShardId, shards: u16) -> Self {
        Outbox { id, shards, to_others: VecDeque::new(), to_self: VecDeque::new() }
    }

    /// Sends a message, to this very shard as to any other.
    pub(super) fn post(&mut self, to: ShardId, message: Message) {
        if to == self.id {
            self.to_self.push_back(message);
        } else {
            self.to_others.push_back((to, message));
        }
    }

    /// This shard.
    pub(super) fn shard_id(&self) -> ShardId {
        self.id
    }

    /// How many shards there are.
    pub(super) fn shard_count(&self) -> u16 {
        self.shards
    }

    /// Answers a request of the control plane.
    pub(super) fn send_report(&mut self, request: u64, report: ControlReport) {
        self.post(CONTROL_PLANE, Message::Report(request, report));
    }

    /// Sends a message to every shard, this one too.
    pub(super) fn broadcast(&mut self, message: impl Fn() -> Message) {
        for shard in 0..self.shards {
            self.post(ShardId(shard), message());
        }
    }

    /// One of this shard to itself.
    pub(super) fn poll_message_to_self(&mut self) -> Option<Message> {
        self.to_self.pop_front()
    }

    /// One for another shard.
    pub(super) fn poll_message(&mut self) -> Option<(ShardId, Message)> {
        self.to_others.pop_front()
    }
}
