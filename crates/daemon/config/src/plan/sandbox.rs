//! What the daemon's sandbox is told beside what the rest of the plan says.

use std::path::PathBuf;

/// `[sandbox]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSettings {
    /// The daemon restricts itself. Without `[sandbox]` it does not.
    pub is_enabled: bool,
    /// Further directories in which volumes, keys and configuration files may be while it runs.
    pub paths: Vec<PathBuf>,
    /// Further TCP ports to listen on, and to connect to, while it runs.
    pub ports: Vec<u16>,
}
