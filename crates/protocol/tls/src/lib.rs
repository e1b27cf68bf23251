//! TLS 1.3 with external pre-shared keys (RFC 8446), by the system's OpenSSL 3, as a state machine: bytes in,
//! bytes out, no socket.
//!
//! What NVMe/TCP asks for and nothing else (NVMe/TCP Transport 1.1 §3.6.1): TLS 1.3; TLS_AES_128_GCM_SHA256 and
//! TLS_AES_256_GCM_SHA384; keys with (EC)DHE; no certificates, tickets, early data or other versions. Key updates
//! are answered, a close is told from an end of the stream.
//!
//! A [`Handshake`] takes what has come ([`Handshake::feed_incoming`]) and computes ([`Handshake::step`]): a few hundred
//! microseconds, to be spent on any thread. It becomes a [`Channel`], which encrypts and decrypts records.
//!
//! Invariants:
//! - A [`Channel`] exists only after both sides have proved that they have the same key; the server knows
//!   under which identity.
//! - What is kept of a peer is bounded: one record in OpenSSL, and what the owner fed.
//! - No error and no `Debug` shows a key; keys that are kept here are wiped.
//!
//! OpenSSL draws its own random numbers, so bytes on the wire differ from run to run even in the simulated world.

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

mod channel;
mod context;
mod ex_data;
mod fault;
mod handshake;
mod memory_transport;
mod openssl_psk;
mod psk;

pub use channel::{Channel, DecryptOutcome};
pub use context::{ClientContext, ServerContext};
pub use fault::{ContextError, TlsFault};
pub use handshake::{Handshake, HandshakeProgress};
pub use psk::{Psk, PskLookup};

/// The longest content of a record, in bytes.
pub const RECORD_CONTENT_MAX: usize = 1 << 14;
/// What a record adds with the suites that are used: header, content type, tag.
pub const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// First byte of a record that carries a handshake: how a ClientHello begins.
pub const HANDSHAKE_RECORD: u8 = 0x16;
