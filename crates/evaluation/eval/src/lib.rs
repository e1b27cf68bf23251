//! Evaluation of block storage over Ethernet: how many I/Os each target and initiator performs for how much
//! processor time, and how steady the latency is.
//!
//! This crate has everything that needs no running load: distributions ([`Histogram`]), steady state
//! ([`steady`]), comparison of runs ([`compare`]), processor time ([`cpu`]), derived figures ([`derived`]),
//! and the papers' figures ([`published`]). Invariant: a derived figure is computed each time, and checked
//! against its inputs; none is stored.

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

pub mod bootstrap;
pub mod capacity;
pub mod compare;
pub mod cpu;
pub mod derived;
pub mod difference;
pub mod export;
mod figure_range;
pub mod fio;
mod histogram;
pub mod import;
pub mod interrupts;
pub mod load;
pub mod preset;
pub mod published;
pub mod record;
pub mod report;
pub mod steady;

pub use figure_range::FigureRange;
pub use histogram::Histogram;
pub use record::ImplausibleFigure;
