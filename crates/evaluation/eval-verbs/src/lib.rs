//! The verbs `blockwire eval` and `blockwire bench`: arguments, files and exit codes.
//!
//! Invariant: all judging, drawing and computing is in the crate `eval`, all starting and measuring in `lab`.

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

pub mod bench;
pub mod eval;
