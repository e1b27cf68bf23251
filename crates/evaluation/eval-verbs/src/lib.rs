//! The verbs `blockwire eval` and `blockwire bench`: arguments, files and exit codes.
//!
//! Invariant: what is judged, drawn and computed comes from the crate `eval`, what is started and watched from `lab`.

#![forbid(unsafe_code)]

pub mod bench;
pub mod eval;
