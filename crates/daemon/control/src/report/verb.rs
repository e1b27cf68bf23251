//! What verbs print that is not an answer of the daemon: of a backup, of a stop, and of any failure.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

/// `backup`
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackupReport {
    /// The file that was written.
    pub file: PathBuf,
    /// Its length.
    pub size_bytes: u64,
    /// How many records of the state directory it has.
    pub records: usize,
    /// Names in it of files that may hold secrets in clear text.
    pub secrets: Vec<String>,
    /// What it does not hold.
    pub not_included: Vec<String>,
}

/// `restore`
#[derive(Debug, Serialize, JsonSchema)]
pub struct RestoreReport {
    /// The state directory.
    pub directory: PathBuf,
    /// How many records were restored.
    pub records: usize,
    /// Where the records are that were there before; `None`: there were none.
    pub replaced: Option<PathBuf>,
    /// Where the files of the configuration were, which are in the backup.
    pub configuration: Vec<PathBuf>,
    /// What the backup does not hold.
    pub not_included: Vec<String>,
}

/// `stop`
#[derive(Debug, Serialize, JsonSchema)]
pub struct StoppingReport {
    /// It is.
    pub stopping: bool,
    /// The daemon's process.
    pub pid: u32,
}

/// A failure, on standard error.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FailureReport {
    /// What failed.
    pub error: FailureFacts,
}

/// What is said of a failure.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FailureFacts {
    /// `failure`, `usage`, `connect-timeout`, `exists`, `nothing-found`, `not-authenticated` or `request-timeout`.
    pub code: &'static str,
    /// The exit code of the process.
    pub exit_code: u8,
    /// Which side is at fault: `caller`, `daemon`, `peer` or `unknown`.
    pub fault: &'static str,
    /// What happened, and what to do.
    pub message: String,
    /// Where to look next, in general.
    pub next: &'static str,
}
