//! The ends of a transfer: volumes of other machines, and files and devices of this one.
//!
//! Invariant: nothing is written to what somebody uses (a reservation, an attachment, a mount, another process's
//! lock) unless it is forced, and nothing is changed before all that could refuse has been asked.

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

pub mod claims;
pub mod ends;
pub mod journal;
pub mod place;
pub mod progress;
