//! The command line as a library: what is parsed, what each verb does, what is printed, exit codes.
//!
//! Invariant: nothing is decided here that a daemon or an initiator could decide; verbs ask the crates below.

#![forbid(unsafe_code)]

pub mod cli;
pub mod daemon_args;
pub mod iscsictl;
pub mod key;
pub mod output;
pub mod run;
pub mod verbs;
