//! Volumes on files, block devices, and nothing; and stripes of volumes.
//!
//! No backend here opens a file or makes a system call: the world does, reports the file's properties in
//! [`FileFacts`], and executes the [`DiskOp`](volume::DiskOp)s. [`FileDisk`] is shared by all shards of one
//! volume; each shard has its own [`FileBackend`] on it.

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

mod file;
mod file_facts;
mod file_op;
mod leg;
mod null;
pub mod stripe;
mod sync_failures;
mod unsynced_writes;

pub use file::{FileBackend, FileDisk};
pub use file_facts::{FileFacts, UnsuitableFile};
pub use leg::LegBackend;
pub use null::NullBackend;
pub use stripe::Stripe;
pub use sync_failures::{SyncFailureStore, SyncFailures};
