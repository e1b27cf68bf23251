//! The verbs `blockwire eval` and `blockwire bench`: arguments, files and exit codes.
//!
//! Invariant: what is judged, drawn and computed comes from the crate `eval`, what is started and watched from `lab`.

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
