//! Replaces all records of a state directory by those of a backup.
//!
//! The new records are written beside the old ones and synced. Then one record says that they count: from then on each
//! opening of the directory completes the replacement first, so whenever this is killed the next start finds all old
//! records or all new ones. Old ones are moved into a directory of their own, not removed.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{MAGIC, StateDir, StateError, copy::RecordBytes, copy::is_record_name};

/// The record that says that what was staged counts.
pub(super) const RECORD: &str = "restore";
/// Where new records are until they count.
pub(crate) const STAGED: &str = "restore-staged";
/// Where old records are moved to; a number follows.
const REPLACED: &str = "before-restore-";

#[derive(Serialize, Deserialize)]
struct RestoreRecord {
    /// Where old records go.
    replaced: String,
    /// The new ones.
    names: Vec<String>,
}

impl StateDir {
    /// Whether there is any record in it.
    pub fn has_records(&self) -> Result<bool, StateError> {
        for name in self.file_names()? {
            let path = self.path.join(&name);
            let read = is_record(&path).map_err(|why| StateError::Io { what: "read", path, why });
            if read? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces all records by these. Gives the name of the directory that has the old ones, if there were any.
    ///
    /// # Errors
    /// Before the new ones count, the old ones are untouched.
    pub fn replace_records(&self, records: &[(String, RecordBytes)]) -> Result<Option<String>, StateError> {
        let staged = self.path.join(STAGED);
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |why| StateError::Io { what, path, why }
        };
        remove_directory(&staged).map_err(failed("remove", &staged))?;
        make_private_directory(&staged).map_err(failed("make", &staged))?;
        for (name, bytes) in records {
            let path = staged.join(name);
            let write = || {
                use std::{io::Write, os::unix::fs::OpenOptionsExt};
                let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
                file.write_all(&bytes.0)?;
                file.sync_all()
            };
            write().map_err(failed("write", &path))?;
        }
        File::open(&staged).and_then(|dir| dir.sync_all()).map_err(failed("sync", &staged))?;
        let had_records = self.has_records()?;
        let free =
            (1_u32..).map(|number| format!("{REPLACED}{number}")).find(|name| !self.path.join(name).exists());
        let replaced = free.unwrap_or_else(|| REPLACED.to_owned());
        let names = records.iter().map(|(name, _)| name.clone()).collect();
        self.write_json(RECORD, &RestoreRecord { replaced: replaced.clone(), names })?;
        self.finish_restore()?;
        Ok(had_records.then_some(replaced))
    }

    /// Completes a replacement that had come to count when its process was killed.
    pub(super) fn finish_restore(&self) -> Result<(), StateError> {
        let Some(RestoreRecord { replaced, names }) = self.read_json::<RestoreRecord>(RECORD)? else {
            return Ok(());
        };
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |why| StateError::Io { what, path, why }
        };
        let (staged, kept) = (self.path.join(STAGED), self.path.join(&replaced));
        if let Some(wrong) = names.iter().find(|name| !is_record_name(name)) {
            let why = format!("it names \"{wrong}\", which no record is called");
            return Err(StateError::Damaged { path: self.path.join(RECORD), why });
        }
        for name in self.file_names()? {
            let (path, is_new) = (self.path.join(&name), names.contains(&name));
            let is_moved = is_new && !staged.join(&name).exists();
            let is_own = name == "lock" || name.split('.').next() == Some(RECORD);
            if is_own || is_moved || !is_record(&path).map_err(failed("read", &path))? {
                continue;
            }
            make_private_directory(&kept)
                .or_else(|why| if why.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(why) })
                .and_then(|()| fs::rename(&path, kept.join(&name)))
                .map_err(failed("move", &path))?;
        }
        for name in &names {
            let (from, to) = (staged.join(name), self.path.join(name));
            match fs::rename(&from, &to) {
                Err(why) if why.kind() == io::ErrorKind::NotFound && to.exists() => {}
                other => other.map_err(failed("put in place", &to))?,
            }
        }
        if kept.exists() {
            File::open(&kept).and_then(|dir| dir.sync_all()).map_err(failed("sync", &kept))?;
        }
        File::open(&self.path).and_then(|dir| dir.sync_all()).map_err(failed("sync", &self.path))?;
        self.remove_record(RECORD)?;
        remove_directory(&staged).map_err(failed("remove", &staged))
    }
}

/// Whether a file is a record, or was one: others in the directory are not ours to move.
fn is_record(path: &Path) -> io::Result<bool> {
    use std::io::Read;
    let mut start = Vec::new();
    File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC.as_bytes())
}

fn make_private_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(path)
}

fn remove_directory(path: &Path) -> io::Result<()> {
    fs::remove_dir_all(path).or_else(super::ignore_not_found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn of(directory: &Path) -> Vec<(String, RecordBytes)> {
        StateDir::open(directory).unwrap().copy_records().unwrap().records
    }

    /// Killed before each of its steps: the next start finds all of the old records or all of the new ones.
    #[test]
    fn whenever_a_restore_is_killed_all_old_or_all_new_records_are_found() {
        let root = tempfile::tempdir().unwrap();
        let source = StateDir::open(&root.path().join("source")).unwrap();
        for name in ["identities", "ports", "volumes"] {
            source.write_record(name, b"new").unwrap();
        }
        let new = source.copy_records().unwrap().records;
        let names_new: Vec<String> = new.iter().map(|(name, _)| name.clone()).collect();
        // Each state that a kill leaves: staged only, then counting, with so many records of each kind moved.
        for step in 0..8_usize {
            let path = root.path().join(format!("step{step}"));
            let state = StateDir::open(&path).unwrap();
            for name in ["identities", "nexuses", "volumes"] {
                state.write_record(name, b"old").unwrap();
            }
            let old = state.copy_records().unwrap().records;
            let staged = path.join(STAGED);
            make_private_directory(&staged).unwrap();
            for (name, bytes) in &new {
                fs::write(staged.join(name), &bytes.0).unwrap();
            }
            let kept = path.join("before-restore-1");
            if step > 0 {
                let record =
                    RestoreRecord { replaced: "before-restore-1".to_owned(), names: names_new.clone() };
                state.write_json(RECORD, &record).unwrap();
            }
            for name in old.iter().map(|(name, _)| name).take(step.saturating_sub(1)) {
                let _ = make_private_directory(&kept);
                fs::rename(path.join(name), kept.join(name)).unwrap();
            }
            for (name, _) in new.iter().take(step.saturating_sub(4)) {
                fs::rename(staged.join(name), path.join(name)).unwrap();
            }
            drop(state);
            let found = of(&path);
            assert_eq!(found, if step == 0 { old } else { new.clone() }, "step {step}");
            if step > 0 {
                assert_eq!(names(&kept), ["identities", "nexuses", "volumes"], "step {step}");
                assert_eq!(names(&path), ["before-restore-1", "identities", "lock", "ports", "volumes"]);
            }
            assert_eq!(of(&path), found, "it stays so");
        }
    }

    #[test]
    fn old_records_are_kept_aside_and_other_files_stay() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        state.write_record("volumes", b"old").unwrap();
        fs::write(root.path().join("machine-id"), "0123\n").unwrap();
        let copy = state.copy_records().unwrap();
        assert_eq!(copy.others, ["machine-id"]);
        assert_eq!(state.replace_records(&copy.records).unwrap().as_deref(), Some("before-restore-1"));
        assert_eq!(state.replace_records(&[]).unwrap().as_deref(), Some("before-restore-2"));
        assert_eq!(names(root.path()), ["before-restore-1", "before-restore-2", "lock", "machine-id"]);
    }

    #[test]
    fn a_damaged_record_is_not_copied_and_not_left_out() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        state.write_record("identities", b"precious").unwrap();
        let path = root.path().join("identities");
        let whole = fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], b"", b"other"] {
            fs::write(&path, damaged).unwrap();
            let why = state.copy_records().unwrap_err();
            assert!(matches!(why, StateError::Damaged { .. }), "{why}");
        }
    }
}
