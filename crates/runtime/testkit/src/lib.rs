//! Code shared by the tests of several crates. A development dependency only: `xtask layers` refuses it
//! anywhere else.
//!
//! | part | what it is |
//! |---|---|
//! | [`counting_alloc`] | an allocator that counts a thread's allocations |
//! | [`corpus`] | the stored seeds of the fuzzers |
//! | [`delivery`] | delivers received bytes to a pending receive |
//! | [`FakeBackend`] | a disk in memory that a test controls: it delays operations, or makes them fail |
//! | [`faulty_backend`] | `FaultyBackend`: a backend with one planted defect |
//! | `forward_endpoint` | a macro for wrappers that pass calls on |
//! | `fuzz` | common code of fuzzers, stored seeds and property tests |
//! | [`server_world`] | a command server with gates, homes of volumes and shards, without transport |
//! | [`snapshots`] | snapshots of connections, changed |
//! | [`seeds`] | runs of many seeds: on all processors, counted, replayed |
//! | `target` | a target with one volume, as a logical unit and as a namespace |
//! | `iscsi_initiator`, `nvme_host` | scripted hosts: they follow the protocol, and check that the target does |
//! | `scripted_iscsi_target` | a scripted target: it sends what a test wants |
//! | `watchdog` | a time limit for tests that use file systems of the kernel |
//!
//! Parts that need a crate above `volume` are behind the feature of that name.

#![allow(missing_docs, reason = "fields and methods whose names say all")]

pub mod corpus;
pub mod counting_alloc;
pub mod delivery;
pub mod faulty_backend;
mod forward_endpoint;
pub mod fuzz;
#[cfg(feature = "shard")]
pub mod iscsi_initiator;
#[cfg(feature = "shard")]
pub mod nvme_host;
#[cfg(feature = "iscsi")]
pub mod scripted_iscsi_target;
pub mod seeds;
pub mod server_world;
pub mod snapshots;
#[cfg(feature = "shard")]
pub mod target;
#[cfg(feature = "watch")]
pub mod watchdog;

pub use faulty_backend::{Defect, FaultyBackend};
pub use volume::fake_backend::{FakeBackend, FakeControls};
