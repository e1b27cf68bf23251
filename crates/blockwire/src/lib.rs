//! The binary, as a library: command line, configuration, control socket, state directory.
//!
//! `serve` is: arguments and files → one checked [`plan::Plan`] → the engine → the shards.

#![forbid(unsafe_code)]

pub mod config;
pub mod exit;
pub mod name;
pub mod network;
pub mod plan;
pub mod size;
pub mod spec;
pub mod suggest;
