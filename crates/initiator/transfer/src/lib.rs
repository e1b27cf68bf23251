//! Copies and comparisons of remote volumes, and of local files and devices; what they read from and write to.
//!
//! Invariant: nothing that is in use (a reservation, an attachment, a mount, another process's lock) is
//! written to without `--force`, and nothing is changed before all checks have passed.

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

pub mod compare;
pub mod copy;
pub mod copy_ends;
mod copy_job;
pub mod journal;
pub mod local_path;
pub mod progress;
pub mod reservation_names;
