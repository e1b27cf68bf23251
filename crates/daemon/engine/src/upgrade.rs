//! Replacing the process of the daemon under load (see `docs/internals/upgrade.md`).
//!
//! The daemon that serves starts the new binary as its child, with one end of a UNIX socket as its standard input.
//!
//! ```text
//! old                                              new
//! Offer: shards, descriptors of the state
//!   directory, listeners, files and memory
//!   of volumes                               ────▶ reads the configuration, opens the volumes
//!                                            ◀──── Hello, at once
//!                                            ◀──── Prepared, or Refused
//! comes to rest, saves
//! Target: everything that is served          ────▶ restores all shards
//!                                            ◀──── Restored, or Refused
//! Links: the sockets                         ────▶ has all of them
//!                                            ◀──── Held, or Refused
//! Commit                                     ────▶ serves
//! ends                                       ◀──── Taken
//! ```
//!
//! Invariant: up to `Commit` the old process can go on as if nothing had happened, and does after any failure. From then
//! on it does nothing more to what it has handed over.

mod channel;
mod predecessor;
mod successor;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use stream::snapshot::SnapshotFormat;

pub use predecessor::{HandedFiles, HandedListener, Predecessor};
pub use successor::{HandOverError, HandOverOffer, HandedOver, Successor};

/// Tells a start that its standard input is the socket of the daemon that it replaces.
pub const VARIABLE: &str = "BLOCKWIRE_UPGRADE";

/// Of the messages between both processes. Raised with each change of them, or of what they carry.
const FORMAT: SnapshotFormat = SnapshotFormat { kind: *b"hand", version: 3 };

/// A message between both processes. Descriptors go with it.
#[derive(Debug, Serialize, Deserialize)]
enum HandOverMessage {
    /// With what is open, in this order: the state directory's lock, the control socket, the socket of metrics if there
    /// is one, listeners, files, memory of RAM volumes.
    Offer(OfferBody),
    /// By which a binary that can take over is told from one that says nothing.
    Hello,
    Prepared,
    /// In words.
    Refused(String),
    /// A `shard::TargetSnapshot`.
    Target(Vec<u8>),
    Restored,
    /// With the sockets of a shard, in the order of their numbers.
    Links {
        shard: u16,
    },
    Held,
    Commit,
    Taken,
}

#[derive(Debug, Serialize, Deserialize)]
struct OfferBody {
    shards: u16,
    has_metrics: bool,
    /// Under what start its flight recorders' files are.
    flight: Option<String>,
    listeners: Vec<OfferedListener>,
    files: u32,
    memories: Vec<OfferedMemory>,
}

/// A RAM volume that can move.
#[derive(Debug, Serialize, Deserialize)]
struct OfferedMemory {
    volume: String,
    uuid: [u8; 16],
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct OfferedListener {
    /// As the old process numbers it.
    id: u16,
    protocol: String,
    tag: u16,
    /// As bound.
    address: SocketAddr,
}

/// Why both processes cannot go on talking.
#[derive(Debug)]
pub enum ChannelError {
    /// The socket failed, or the other has ended.
    Io(io::Error),
    /// What came is no message of this release.
    Message(stream::snapshot::SnapshotDamage),
    /// Descriptors are missing: the limit of open files is too low.
    Descriptors {
        /// How many were sent.
        sent: usize,
        /// How many came.
        came: usize,
    },
    /// Another message was due.
    Unexpected,
    /// A message is longer than any can be.
    Long,
}

impl From<io::Error> for ChannelError {
    fn from(why: io::Error) -> Self {
        ChannelError::Io(why)
    }
}

fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// In words.
impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Io(why) if is_end(why.kind()) => {
                f.write_str("the other process has ended, or is no blockwire that can take over")
            }
            ChannelError::Io(why) if why.kind() == io::ErrorKind::WouldBlock => {
                f.write_str("the other process does not respond in time")
            }
            ChannelError::Io(why) => write!(f, "the socket between both processes: {why}"),
            ChannelError::Message(damage) => write!(f, "the other process has sent {damage}"),
            ChannelError::Descriptors { sent, came } => write!(
                f,
                "of {sent} descriptors {came} arrived: raise the limit of open files (LimitNOFILE=, ulimit -n)"
            ),
            ChannelError::Unexpected => f.write_str("the other process has sent a message out of turn"),
            ChannelError::Long => f.write_str("the other process has sent a message that is too long"),
        }
    }
}

impl std::error::Error for ChannelError {}
