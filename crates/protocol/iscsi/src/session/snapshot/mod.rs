//! A session as bytes, for another process that goes on with it (see `docs/internals/upgrade.md`).
//!
//! What is saved is what the initiator can notice: negotiated parameters, numbers, the command window, tasks with
//! their data as far as it came, half a PDU, bytes that are owed. Clocks are not saved: all time-outs begin again.
//! Memory is not saved either: the restored session takes its own, or does not come to be.
//!
//! Invariant: a snapshot is parsed, never trusted. Names in it (links, tasks) are looked up, counts are checked
//! against each other, and what contradicts itself is refused as a whole.

mod body;
#[cfg(test)]
pub(super) mod omissions;
mod restore;
mod save;

use super::request::ScsiCommand;
use super::task::TaskState;
use std::fmt;
use stream::snapshot::{SnapshotDamage, SnapshotFormat};

pub use restore::SessionRestoreError;
pub use save::SessionSaveRefusal;

/// Of one session in full feature phase.
const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"iscs", version: 1 };

/// A session at rest, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSnapshot(Box<[u8]>);

impl SessionSnapshot {
    /// Bytes that another process wrote: [`TargetSession::restore`](super::TargetSession::restore) reads them.
    #[must_use]
    pub fn from_bytes(bytes: Box<[u8]>) -> Self {
        SessionSnapshot(bytes)
    }

    /// The bytes, for another process.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Without its bytes: data of hosts is among them.
impl fmt::Debug for SessionSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionSnapshot({} bytes)", self.0.len())
    }
}
