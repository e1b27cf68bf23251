//! The ends of a transfer: volumes of other machines, and files and devices of this one.
//!
//! Invariant: nothing is written to what somebody uses (a reservation, an attachment, a mount, another process's
//! lock) unless it is forced, and nothing is changed before all that could refuse has been asked.

#![forbid(unsafe_code)]

pub mod claims;
pub mod ends;
pub mod journal;
pub mod place;
pub mod progress;
