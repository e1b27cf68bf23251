//! Copies of all records as they are at one moment: what a start would find if the daemon were killed then.
//!
//! Invariant: no record changes while the copy is made, and a damaged one is refused, not left out.

use std::{ffi::OsStr, path::Path};

use uuid::Uuid;

use super::{
    MAGIC, RECORD_BYTES_MAX, RESERVATIONS_SUFFIX, SYNC_FAILED_SUFFIX, StateDir, StateError, unwrap_record,
};

/// Records that a daemon has once for all volumes.
const SINGLE_RECORDS: [&str; 9] = [
    "blocked-hosts",
    super::configuration::RECORD,
    "elsewhere",
    "identities",
    "nexuses",
    "ports",
    "serials",
    "target-ports",
    super::volumes::RECORD_NAME,
];

/// All records of a state directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StateCopy {
    /// Names and files, each with its envelope; in the order of their names.
    pub records: Vec<(String, RecordBytes)>,
    /// Names of files beside them that are no records.
    pub others: Vec<String>,
}

/// The file of a record, which may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordBytes(pub Vec<u8>);

impl std::fmt::Debug for RecordBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

/// Whether the file of a record is whole, and of this version of the format.
///
/// # Errors
/// How it is not.
pub fn check_record(bytes: &[u8]) -> Result<(), String> {
    unwrap_record(bytes).map(drop)
}

/// Whether records have such names: what is restored goes by no other.
pub fn is_record_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends = name.ends_with(".new") || name.ends_with(".old");
    let is_own = name == "lock" || name == super::restore::RECORD;
    !name.is_empty()
        && name.len() < 128
        && !name.starts_with('.')
        && name.chars().all(is_plain)
        && !ends
        && !is_own
}

fn is_known(name: &str) -> bool {
    let is_of_volume = name.split_once('.').is_some_and(|(uuid, what)| {
        matches!(what, RESERVATIONS_SUFFIX | SYNC_FAILED_SUFFIX) && uuid.parse::<Uuid>().is_ok()
    });
    is_of_volume || SINGLE_RECORDS.contains(&name)
}

impl StateDir {
    /// Copies all records. No record is written meanwhile.
    pub fn copy_records(&self) -> Result<StateCopy, StateError> {
        let _unchanged = self.lock_changes();
        let mut copy = StateCopy::default();
        for name in self.file_names()? {
            if !is_record_name(&name) && !is_known(&name) {
                continue;
            }
            let path = self.path.join(&name);
            let bytes = match self.dir.read_trusted(OsStr::new(&name), RECORD_BYTES_MAX) {
                Ok(bytes) => bytes,
                Err(_) if !is_known(&name) => {
                    copy.others.push(name);
                    continue;
                }
                Err(why) => return Err(StateError::Io { what: "read", path, why }),
            };
            if !bytes.starts_with(MAGIC.as_bytes()) && !is_known(&name) {
                copy.others.push(name);
                continue;
            }
            check_record(&bytes).map_err(|why| StateError::Damaged { path, why })?;
            copy.records.push((name, RecordBytes(bytes)));
        }
        Ok(copy)
    }

    /// The names of the files in it, in order; no directories, sockets and links.
    pub(super) fn file_names(&self) -> Result<Vec<String>, StateError> {
        let failed = |why| StateError::Io { what: "list", path: self.path.clone(), why };
        let names = self.dir.entry_names().map_err(failed)?;
        let is_file = |name: &OsStr| {
            Path::new(&self.path).join(name).symlink_metadata().is_ok_and(|facts| facts.is_file())
        };
        let mut names: Vec<String> = names
            .into_iter()
            .filter(|name| is_file(name))
            .filter_map(|name| name.into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }
}
