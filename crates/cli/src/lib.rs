//! The binary, as a library: command line, configuration, control socket, state directory.
//!
//! `serve` is: arguments and files → one checked [`plan::Plan`] → [`engine`] → the shards.

#![forbid(unsafe_code)]

pub mod attached;
pub mod called;
pub mod chiscsi;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod dataplane;
pub mod descriptors;
pub mod engine;
pub mod hints;
pub mod iscsictl;
pub mod key;
pub mod name;
pub mod network;
pub mod output;
pub mod plan;
pub mod remote;
pub mod report;
pub mod run;
pub mod serve;
pub mod size;
pub mod spec;
pub mod state;
pub mod store;
pub mod verbs;

pub use multipath::suggest;
pub use process::{exit, log, owned, paths, shown};
