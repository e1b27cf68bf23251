//! Exports of NBD servers as disks of the reactor: qemu-storage-daemon, qemu-nbd, nbdkit, nbd-server.
//!
//! - [`disk`]: an export that is open, and the calls that shards give it.
//! - [`handshake`]: fixed newstyle negotiation up to NBD_OPT_GO (the NBD protocol, doc/proto.md).
//! - [`socket`]: the connection, over TCP or a UNIX socket.
//! - `link`: requests and replies on a connection.
//! - `worker`: the thread of an export: it gives calls to the server, and connects again when the server was away.
//!
//! Every change is stable when it has ended: it is sent with FUA, or followed by a flush. So a server that is killed and
//! started again has lost nothing that a host was told of. A connection that ends leaves requests without an answer;
//! they are made again on the next connection, and nothing that overlaps them is made before (the volume's gate sees
//! to that). NBD has no fence: what a server has read from a connection that has ended may still be carried out.
//!
//! Invariants: a call ends once, well only after the server has answered it on the connection on which it was sent
//! last; its memory is touched by the worker alone, and not after its end. What a server sends is never an index or a
//! length that is used unchecked.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod disk;
pub mod handshake;
mod link;
pub mod socket;
#[cfg(test)]
mod tests;
mod worker;

pub use disk::{NbdDisk, OpenError, Options};
pub use handshake::ExportInfo;
pub use socket::ServerAddress;
