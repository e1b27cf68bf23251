//! Shared by all processes of the binary: exit codes, log, private files and directories.
//!
//! Invariants: an error shown to a user has an exit code ([`exit::Failure`]). Text of foreign origin is shown
//! only through [`printable`]. A directory that other users could change is never used ([`owned_dir::OwnedDir`]).

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

pub mod exit;
pub mod log;
pub mod owned_dir;
pub mod paths;
pub mod printable;
pub mod private_file;
pub mod random;
pub mod stdout;
