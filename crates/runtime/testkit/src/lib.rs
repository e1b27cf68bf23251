//! What the tests of several crates share. A development dependency only: `xtask layers` refuses it
//! anywhere else.
//!
//! | part | what it is |
//! |---|---|
//! | [`alloc`] | an allocator that counts what a thread asks of it |
//! | [`corpus`] | the stored seeds of the fuzzers |
//! | [`delivery`] | how bytes that have come get into a receive |
//! | [`FakeBackend`] | a disk in memory that does as a test says: holds operations up, fails them |
//! | [`faulty`] | `FaultyBackend`: a backend that is good but for one thing |
//! | `fuzz` | what the fuzzers, the stored seeds and the property tests do with bytes |
//! | `target` | what a target serves: one volume, as a logical unit and as a namespace |
//! | `iscsi_host`, `nvme_host` | scripted hosts: they keep the rules, and check those that a target must keep |
//! | `iscsi_target` | a scripted target: it says what a test wants |
//! | `watch` | a limit for tests that use file systems of the kernel |
//!
//! Parts that need a crate above `volume` stand behind the feature of that name.

#![allow(missing_docs, reason = "fields and methods whose names say all")]

pub mod alloc;
pub mod corpus;
pub mod delivery;
pub mod faulty;
pub mod fuzz;
#[cfg(feature = "shard")]
pub mod iscsi_host;
#[cfg(feature = "iscsi")]
pub mod iscsi_target;
#[cfg(feature = "shard")]
pub mod nvme_host;
#[cfg(feature = "shard")]
pub mod target;
#[cfg(feature = "watch")]
pub mod watch;

pub use faulty::{Defect, FaultyBackend};
pub use volume::fake::{FakeBackend, FakeControls};
