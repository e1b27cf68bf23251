//! Options shared by all verbs of a running daemon.

use std::path::PathBuf;

use clap::Args;

/// Which daemon to ask, and how to show the answer.
#[derive(Clone, Debug, Default, Args)]
pub struct DaemonArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Control socket of the daemon [default: /run/blockwire/control.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
}
