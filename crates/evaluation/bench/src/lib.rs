//! Measures block storage over TCP: a load generator, the bare responder for reference, and the comparison of
//! targets under the same load.
//!
//! The bare responder answers requests of a storage protocol's sizes from memory, without a protocol: it is
//! the limit of anything on kernel TCP. Generator and responder wait in the same way ([`spin`]), and the same
//! loop drives the responder and the targets ([`load`]); only the bytes on the wire differ ([`wire_protocol`]).

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

pub mod bare;
pub mod clients;
pub mod compare;
pub mod comparison_args;
pub mod connection_counts;
pub mod fairness;
pub mod idle;
pub mod load;
pub mod responder;
pub mod servers;
pub mod spdk;
pub mod spdk_perf;
pub mod spin;
pub mod system;
pub mod usage;
pub mod wire_protocol;
