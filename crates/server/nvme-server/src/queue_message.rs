//! Messages between a controller and its queues: plain data that the composition carries from shard to shard,
//! in order per pair of shards. A message to the own shard goes the same way.

use std::sync::Arc;

use nvme::Status;
use serde::{Deserialize, Serialize};
use volume::Time;

use crate::spec::NamespaceEntry;

/// A message. One of another association than the receiver's is dropped, but for [`ControllerEvent::Opened`], which
/// is answered with [`ControllerEvent::End`].
#[derive(Clone, Debug, PartialEq)]
pub struct QueueMessage {
    /// The controller.
    pub cntlid: u16,
    /// Which life of that number.
    pub association: u64,
    /// The queue that it comes from or goes to, by its [`queue_slot`](crate::QueueSpec).
    pub queue_slot: u16,
    /// What it says.
    pub event: ControllerEvent,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerEvent {
    /// To the controller: the queue is open on this shard.
    Opened {
        /// Which.
        at: volume::ShardId,
    },
    /// To the controller: the queue is gone, and all its commands have ended.
    Gone {
        /// Whether its link was lost: neither Disconnect nor the controller ended it.
        lost: bool,
        /// What it had not reported yet.
        report: Box<QueueReport>,
    },
    /// To the controller: the queue's host has proved who it is.
    Proven,
    /// To the controller: commands have come. At most one per [`traffic_ms`](crate::QueueSpec).
    Traffic,
    /// To the controller: the answer to [`ControllerEvent::RequestReport`].
    Report {
        /// The question's number.
        ticket: u64,
        /// The answer.
        report: Box<QueueReport>,
    },
    /// To the controller: the answer to [`ControllerEvent::Abort`], once the command has ended.
    Aborted {
        /// The question's number.
        ticket: u64,
        /// Whether there was such a command, and it was aborted.
        aborted: bool,
    },
    /// To the queue: end, with all commands. [`ControllerEvent::Gone`] follows.
    End,
    /// To the queue: abort the command of this identifier.
    Abort {
        /// The command's CID.
        cid: u16,
        /// The question's number.
        ticket: u64,
    },
    /// To the queue: report.
    RequestReport {
        /// The question's number.
        ticket: u64,
    },
    /// To the queue: tell of commands so often from now on, in milliseconds; 0: never.
    Settings {
        /// See [`traffic_ms`](crate::QueueSpec).
        traffic_ms: u32,
        /// See [`delays_retries`](crate::QueueSpec).
        delays_retries: bool,
    },
    /// To the queue: these are the namespaces now.
    Namespaces(Arc<[NamespaceEntry]>),
}

/// What a queue has done since it opened, and what went wrong since its last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueReport {
    /// Totals.
    pub counters: QueueCounters,
    /// The latest failures since the last report, oldest first; at most [`FAILURES_MAX`].
    pub failures: Vec<CommandFailure>,
    /// How many failures there were since the last report.
    pub failed: u64,
}

/// How many failures a queue keeps between two reports: as many as the error log has entries.
pub const FAILURES_MAX: usize = 64;

/// What a queue has done for its host; the controller's SMART log is the sum of its I/O queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueCounters {
    /// Read, Compare and Verify commands that succeeded.
    pub reads: u64,
    /// Write commands that succeeded.
    pub writes: u64,
    /// Bytes that those read.
    pub read_bytes: u64,
    /// Bytes that those wrote.
    pub written_bytes: u64,
    /// Commands that ended with a status of type 2 (media and data integrity), but for Compare Failure.
    pub media_errors: u64,
    /// Nanoseconds in which at least one command was not answered yet.
    pub busy_ns: u64,
}

impl QueueCounters {
    /// Both together.
    #[must_use]
    pub fn sum(self, other: QueueCounters) -> QueueCounters {
        QueueCounters {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            media_errors: self.media_errors + other.media_errors,
            // Queues are busy at the same time: the busiest says how long at least.
            busy_ns: self.busy_ns.max(other.busy_ns),
        }
    }
}

/// A command that failed, as the error log tells it (NVMe Base §5.16.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandFailure {
    /// When.
    pub at: Time,
    /// The command's CID.
    pub cid: u16,
    /// How it was answered.
    pub status: Status,
    /// Its first block, 0 if it names none.
    pub lba: u64,
    /// Its namespace.
    pub nsid: u32,
}
