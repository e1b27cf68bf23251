//! Evaluation of block storage over Ethernet: which target and which initiator give how many I/Os for
//! how much processor, and how steady the latency is.
//!
//! Here is what needs no load to be run: distributions ([`Histogram`]), when a system is steady
//! ([`steady`]), how runs compare ([`compare`]), where processor time went ([`cpu`]), what follows
//! from raw figures ([`derived`]), and what the papers printed ([`published`]). Invariant: a figure that
//! follows from others is computed from them each time, and checked against them; none is kept.

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
pub mod fio;
mod histogram;
pub mod import;
pub mod interrupts;
mod interval;
pub mod load;
pub mod preset;
pub mod published;
pub mod record;
pub mod report;
pub mod steady;

pub use histogram::Histogram;
pub use interval::Interval;
pub use record::BadFigure;
