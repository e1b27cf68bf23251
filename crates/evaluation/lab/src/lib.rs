//! Runs evaluations: systems under test, the machines and links on which they run, and measurements.
//!
//! [`eval`] defines what is measured and how it is judged; this crate does it. [`Link`] makes hosts and the
//! network between them, [`target`] and [`initiator`] start systems, [`ProcessWatch`] measures processors, and
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
mod background_traffic;
mod block_devices;
mod block_load;
mod created_resources;
mod directory_tree;
pub mod end_request;
mod environment;
mod exports;
mod failure;
pub mod guest;
mod host_capacity;
pub mod initiator;
mod kernel_sessions;
pub mod leftovers;
mod link;
mod measure;
mod memory_limit;
mod mixed_traffic;
pub mod oltp;
mod output_lines;
pub mod place;
mod process;
mod process_watch;
mod progress;
mod recording;
mod run_directory;
mod runner;
mod spdk;
mod steps;
pub mod stream;
pub mod target;
mod turn_order;

pub use environment::machine_facts;
pub use failure::Failure;
pub use host_capacity::probe_host_capacity;
pub use initiator::Initiator;
pub use link::{Link, RemoteMachines, check_namespaces};
pub use place::CommandLocation;
pub use process::{LineTimeout, OutputStream, Process, ProcessSpec};
pub use process_watch::{CpuSample, CpuUse, ProcessWatch};
pub use progress::{LineProgress, NoProgress, ProgressDisplay, StepProgress, TerminalProgress};
pub use recording::result_directory;
pub use run_directory::RunDirectory;
pub use runner::{CoreAssignment, Runner};
pub use target::Target;
