//! What the daemon's sandbox is told beside what the rest of the plan says.

use std::path::PathBuf;

/// `[sandbox]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    /// The daemon restricts itself.
    pub is_enabled: bool,
    /// Further directories in which volumes, keys and configuration files may be while it runs.
    pub paths: Vec<PathBuf>,
    /// Further TCP ports to listen on, and to connect to, while it runs.
    pub ports: Vec<u16>,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        SandboxSettings { is_enabled: true, paths: Vec::new(), ports: Vec::new() }
    }
}
