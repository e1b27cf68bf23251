//! Identifiers of queues, commands and computations.

/// Names a queue, admin or I/O, of this shard's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueKey(pub u32);

/// Names a command, from its start to its one ending step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandKey {
    /// The queue that it came by.
    pub queue: QueueKey,
    /// The caller's own name for it, unique among the queue's live commands. The low 32 bits are a
    /// dense index: tables as long as the largest are kept.
    pub tag: u64,
}

/// Names a computation that was given out; no other of this shard's server has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ComputeId(pub u64);
