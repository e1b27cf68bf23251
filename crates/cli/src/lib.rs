//! The binary, as a library: command line, configuration, control socket, state directory.
//!
//! `serve` is: arguments and files → one checked [`plan::Plan`] → [`engine`] → the shards.

#![forbid(unsafe_code)]

pub mod cli;
pub mod iscsictl;
pub mod key;
pub mod output;
pub mod run;
pub mod verbs;

pub use ::{config, control, engine};
pub use chelsio as chiscsi;
pub use config::{name, network, plan, size, spec};
pub use control::{called, report};
pub use engine::{daemon, dataplane, descriptors, serve, state, store};
pub use multipath::suggest;
pub use process::{exit, log, owned, paths, shown};
pub use recovery as attached;
