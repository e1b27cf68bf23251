//! Measuring block storage over TCP: a load generator, the bare responder that is its yardstick, and
//! the comparison of targets under the same load.
//!
//! The bare responder answers requests of the same sizes as a storage protocol's, from memory, with
//! no protocol at all: it is the limit of anything that runs on kernel TCP. Generator and responder
//! wait in the same way ([`spin`]), and a target is driven by the very loop that drives the
//! responder ([`load`]); only the bytes on the wire differ ([`form`]).

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

pub mod clients;
pub mod compare;
pub mod form;
pub mod histogram;
pub mod idle;
pub mod load;
pub mod responder;
pub mod servers;
pub mod setting;
pub mod spdk;
pub mod spdk_perf;
pub mod spin;
pub mod system;
pub mod usage;
