//! Runs evaluations: systems under test, the machines and links on which they run, and measurements.
//!
//! [`eval`] defines what is measured and how it is judged; this crate does it. [`Link`] makes hosts and the
//! network between them, [`target`] and [`initiator`] start systems, [`Watch`] measures processors, and
//! [`Runner`] takes a plan's steps in turn and returns a record. Invariant: everything started, made or
//! changed for a step is ended, removed or undone when its owner is dropped.

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

mod allowance;
mod attach;
mod attached;
mod background_traffic;
mod block;
pub mod ending;
mod environment;
mod exports;
mod failure;
pub mod guest;
mod host_capacity;
pub mod initiator;
mod link;
mod made;
mod measure;
mod mixed_traffic;
pub mod oltp;
mod output_lines;
pub mod place;
mod process;
mod progress;
mod recording;
pub mod remains;
mod runner;
mod scratch;
mod sessions;
mod spdk;
mod steps;
pub mod stream;
pub mod target;
mod tree;
mod turns;
mod watch;

pub use environment::machine;
pub use failure::Failure;
pub use host_capacity::probe_host_capacity;
pub use initiator::Initiator;
pub use link::{Link, Machines, namespaces};
pub use place::Place;
pub use process::{Late, Process, ProcessSpec, Stream};
pub use progress::{LineProgress, NoProgress, ProgressDisplay, StepProgress, TerminalProgress};
pub use recording::directory;
pub use runner::{Cores, Runner};
pub use scratch::Scratch;
pub use target::Target;
pub use watch::{CpuSample, CpuUse, Watch};
