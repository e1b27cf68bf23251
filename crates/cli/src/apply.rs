//! The options and help of `plan`, `apply` and `rollback`: another configuration for the running daemon.

use std::path::PathBuf;

use clap::Args;

use crate::daemon_args::DaemonArgs;

/// The help of `plan`.
pub const PLAN_HELP: &str = "\
The daemon reads FILE, and the *.toml files of the conf.d beside it, checks all of it and compares it with what it \
serves. Nothing is changed. Without FILE, it is the file that `serve` was started with. A path without a leading / is \
taken from the current directory.

Each change has an effect: none, later connections (those that stand keep what they have), may end connections, or \
restart (it cannot change while the daemon runs). The sessions that would end, or lose a volume, follow with the \
reason.

Exit codes: 0 no connection would be disturbed, 1 it cannot be applied, or no daemon is running, 3 connections would be \
disturbed.

Examples:
  blockwire plan
  blockwire plan new.toml --json";

/// The help of `apply`.
pub const APPLY_HELP: &str = "\
The daemon reads FILE as `blockwire plan` does. New volumes are opened and new addresses bound before anything else \
changes; if any of this fails, or a change needs a restart, nothing is changed, and the reason names file and line, or \
the key. Otherwise all of it is in effect when this returns: connections that `plan` names end, and no other.

What was applied is recorded in the state directory. The next start serves it, unless the file that `serve` is started \
with was changed since: then that file is served. SIGHUP and `systemctl reload blockwire` do the same without FILE.

Examples:
  blockwire apply
  blockwire apply new.toml";

/// The help of `rollback`.
pub const ROLLBACK_HELP: &str = "\
Only the text of the configuration is kept. Files of secrets that it names are read again. Volumes in memory that \
the last apply removed come back empty. A second rollback goes forward again.";

/// Which configuration.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigurationArgs {
    /// The configuration file [default: that of `blockwire serve`]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Which daemon.
    #[command(flatten)]
    pub daemon: DaemonArgs,
}
