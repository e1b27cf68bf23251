//! A process of the binary: how it ends, where it logs, which files and directories are its own.
//!
//! Invariants: an error that reaches a person has an exit code ([`exit::Failure`]); text that others chose is shown
//! by [`shown`] only; a directory that others could change is never used ([`owned::Dir`]).

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
pub mod owned;
pub mod paths;
pub mod random;
pub mod shown;
pub mod stdout;
