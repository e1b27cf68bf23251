//! The binary, as a library: command line, configuration, control socket, state directory.
//!
//! `serve` is: arguments and files → one checked [`plan::Plan`] → [`engine`] → the shards.

#![forbid(unsafe_code)]

pub mod cli;
pub mod daemon;
pub mod dataplane;
pub mod descriptors;
pub mod engine;
#[cfg(test)]
mod example;
pub mod hints;
pub mod iscsictl;
pub mod key;
pub mod output;
pub mod remote;
pub mod run;
pub mod serve;
pub mod state;
pub mod store;
pub mod verbs;

pub use ::{config, control};
pub use chelsio as chiscsi;
pub use config::{name, network, plan, size, spec};
pub use control::{called, report};
pub use multipath::suggest;
pub use process::{exit, log, owned, paths, shown};
pub use recovery as attached;
