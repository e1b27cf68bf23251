//! The configuration that was applied while the daemon ran, and the one before it.
//!
//! It is one record, which is replaced as a whole: whenever the daemon is killed, the next start finds the old
//! configuration or the new one. It may hold secrets, as the files do that it was read from; only this user reads it.
//!
//! The files that `serve` names win where they were changed after the apply: who edits them and starts the daemon again
//! means what stands there.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{StateDir, StateError};
use config::{ConfigFile, ConfigFiles};

/// The record's name.
pub const RECORD: &str = "configuration";

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    path: PathBuf,
    text: String,
    world_readable: bool,
}

#[derive(Serialize, Deserialize)]
struct AppliedRecord {
    /// What stood in the files of `serve` when it was applied.
    served: Vec<FileRecord>,
    /// What was applied.
    current: Vec<FileRecord>,
    /// What was in force before.
    previous: Vec<FileRecord>,
}

/// A configuration that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedConfiguration {
    /// What stood in the files of `serve` when it was applied.
    pub served: ConfigFiles,
    /// What was applied.
    pub current: ConfigFiles,
    /// What was in force before.
    pub previous: ConfigFiles,
}

impl AppliedConfiguration {
    /// Reads it; `None`: nothing was ever applied. Fields of a later version are passed over.
    pub fn load(state: &StateDir) -> Result<Option<Self>, StateError> {
        let read: Option<AppliedRecord> = state.read_json(RECORD).map_err(|why| match why {
            StateError::Damaged { path, why } => {
                let why = format!(
                    "{why}: it is the configuration that was applied last; without it the files that `serve` names are \
                     served"
                );
                StateError::Damaged { path, why }
            }
            other => other,
        })?;
        Ok(read.map(|record| AppliedConfiguration {
            served: files(record.served),
            current: files(record.current),
            previous: files(record.previous),
        }))
    }

    /// Replaces it.
    pub fn save(&self, state: &StateDir) -> Result<(), StateError> {
        let record = AppliedRecord {
            served: records(&self.served),
            current: records(&self.current),
            previous: records(&self.previous),
        };
        state.write_json(RECORD, &record)
    }

    /// Puts back what was recorded before.
    pub fn restore(before: Option<&Self>, state: &StateDir) -> Result<(), StateError> {
        match before {
            Some(before) => before.save(state),
            None => state.remove_record(RECORD),
        }
    }
}

fn records(files: &ConfigFiles) -> Vec<FileRecord> {
    let record = |file: ConfigFile| {
        let ConfigFile { path, text, world_readable } = file;
        FileRecord { path, text, world_readable }
    };
    files.clone().absolute().0.into_iter().map(record).collect()
}

fn files(records: Vec<FileRecord>) -> ConfigFiles {
    let file = |record: FileRecord| {
        let FileRecord { path, text, world_readable } = record;
        ConfigFile { path, text, world_readable }
    };
    ConfigFiles(records.into_iter().map(file).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_of(text: &str) -> ConfigFiles {
        let (path, text) = (PathBuf::from("/etc/blockwire/blockwire.toml"), text.to_owned());
        ConfigFiles(vec![ConfigFile { path, text, world_readable: false }])
    }

    #[test]
    fn it_is_read_as_it_was_written_and_put_back() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        assert_eq!(AppliedConfiguration::load(&state).unwrap(), None);
        let applied = |text: &str| AppliedConfiguration {
            served: files_of("node = 'a'"),
            current: files_of(text),
            previous: ConfigFiles::default(),
        };
        let (first, second) = (applied("node = 'b'"), applied("node = 'c'"));
        first.save(&state).unwrap();
        second.save(&state).unwrap();
        assert_eq!(AppliedConfiguration::load(&state).unwrap(), Some(second));
        AppliedConfiguration::restore(Some(&first), &state).unwrap();
        assert_eq!(AppliedConfiguration::load(&state).unwrap(), Some(first));
        AppliedConfiguration::restore(None, &state).unwrap();
        assert_eq!(AppliedConfiguration::load(&state).unwrap(), None);
    }

    #[test]
    fn a_later_version_may_say_more_and_damage_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let file = serde_json::json!({"path": "/a.toml", "text": "", "world_readable": false, "mode": 384});
        let later = serde_json::json!({"served": [file], "current": [], "previous": [], "when": 1});
        state.write_json(RECORD, &later).unwrap();
        let read = AppliedConfiguration::load(&state).unwrap().unwrap();
        assert_eq!(read.served.0[0].path, PathBuf::from("/a.toml"));
        std::fs::write(root.path().join(RECORD), "torn").unwrap();
        let why = AppliedConfiguration::load(&state).unwrap_err().to_string();
        let path = root.path().join(RECORD).display().to_string();
        assert!(why.contains(&path) && why.contains("without it the files that `serve` names"), "{why}");
        assert!(why.contains("restore it, or move it away"), "{why}");
    }

    #[test]
    fn a_secret_in_it_is_not_printed() {
        assert!(!format!("{:?}", files_of("secret = 'hush hush hush'")).contains("hush"));
    }
}
