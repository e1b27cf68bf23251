//! RFC 7143 and RFC 7144: wire format, text keys, login, CHAP, sessions.
//!
//! The crate implements PDUs, negotiation, tags, digests, R2T and sequence numbers. Of a CDB it only needs
//! the data length and direction. It has no sockets, clocks or entropy.
#![forbid(unsafe_code)]
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

pub mod chap;
pub mod discovery;
mod framing;
pub mod initiator;
pub mod keys;
mod links;
pub mod login;
pub mod name;
pub mod negotiate;
mod params;
pub mod session;
pub mod text;
pub mod text_exchange;
pub mod wire;
