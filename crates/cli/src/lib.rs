//! The command line as a library: arguments, verbs, output, exit codes.
//!
//! Invariant: verbs decide nothing that a daemon or an initiator could decide; they call the crates below.

#![forbid(unsafe_code)]

pub mod apply;
pub mod backup;
pub mod cli;
pub mod daemon_args;
pub mod doctor;
pub mod flight_recorder;
pub mod import;
pub mod iscsictl;
pub mod key;
pub mod man;
pub mod output;
pub mod run;
pub mod schema;
mod top;
pub mod verbs;
