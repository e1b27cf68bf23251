//! A queue as bytes, for another process that goes on with it (see `docs/internals/upgrade.md`).
//!
//! What is saved is what the host can notice: agreed parameters, SQHD, commands with their data as far as it came,
//! R2Ts, half a PDU, bytes that are owed. Clocks are not saved: all time-outs begin again. Memory is not saved
//! either: the restored queue takes its own, or does not come to be.
//!
//! Invariant: a snapshot is parsed, never trusted. Tasks named in it are looked up, lengths are checked against
//! each other, and what contradicts itself is refused as a whole.

mod body;
#[cfg(test)]
pub(super) mod omissions;
mod restore;
mod save;

use std::fmt;
use stream::snapshot::SnapshotFormat;

pub use restore::QueueRestoreError;
pub use save::QueueSaveRefusal;

/// Of one open queue.
const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"nvmq", version: 1 };

/// A queue at rest, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueSnapshot(Box<[u8]>);

impl QueueSnapshot {
    /// Bytes that another process wrote: [`ControllerQueue::restore`](super::ControllerQueue::restore) reads them.
    pub fn from_bytes(bytes: Box<[u8]>) -> Self {
        QueueSnapshot(bytes)
    }

    /// The bytes, for another process.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Without its bytes: data of hosts is among them.
impl fmt::Debug for QueueSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueueSnapshot({} bytes)", self.0.len())
    }
}
