//! The one directory of a run for temporary files, and the list of what the run creates elsewhere.
//!
//! Invariant: the directory is private (mode 0700) under an unpredictable name, created exclusively. A marker
//! in it is locked (flock(2)) for as long as the run lives, so that a later run recognizes a dead one by the
//! lock, not by a process id. Anything created elsewhere carries the directory's token in its name and is
//! listed before it is created.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{FlockOperation, flock};

use crate::Failure;
use crate::created_resources::{
    CreatedResource, DIRECTORY_PREFIX, LIST_FILE, LOCK_FILE, MEMORY_DIRECTORY, TOKEN_DIGITS, nvme_host_id,
};
use crate::leftovers;

/// The directory of a run. Dropped, it goes with all that is in it and on its list.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    token: String,
    list: Mutex<File>,
    next: AtomicU32,
    /// Locked until it is closed.
    _marker: File,
}

/// The one of this process, for as long as anybody has it.
static CURRENT_RUN: Mutex<Weak<RunDirectory>> = Mutex::new(Weak::new());

impl PartialEq for RunDirectory {
    fn eq(&self, other: &RunDirectory) -> bool {
        self.path == other.path
    }
}

impl Eq for RunDirectory {}

impl std::hash::Hash for RunDirectory {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

fn directory_failure(what: &Path, why: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {why}: set TMPDIR to a directory that can be written", what.display()))
}

/// Digits that nobody can foretell.
///
/// # Errors
/// If the kernel gives none.
pub(crate) fn random_digits() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN_DIGITS / 2];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|why| Failure::new(format!("/dev/urandom: {why}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl RunDirectory {
    /// That of this process; made if nobody has it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn current() -> Result<Arc<RunDirectory>, Failure> {
        let mut current = CURRENT_RUN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = current.upgrade() {
            return Ok(scratch);
        }
        let scratch = Arc::new(RunDirectory::create(&std::env::temp_dir())?);
        *current = Arc::downgrade(&scratch);
        Ok(scratch)
    }

    /// Makes one in a directory that others may write to.
    pub(crate) fn create(parent: &Path) -> Result<RunDirectory, Failure> {
        let parent = parent.canonicalize().map_err(|why| directory_failure(parent, &why))?;
        RunDirectory::create_with_token(&parent, random_digits()?)
    }

    fn create_with_token(parent: &Path, token: String) -> Result<RunDirectory, Failure> {
        let path = parent.join(format!("{DIRECTORY_PREFIX}{token}"));
        // Not under its own name before it is locked: a run that begins now must not take it for a dead one's.
        let fresh = parent.join(format!("{DIRECTORY_PREFIX}{token}.new"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&fresh)
            .map_err(|why| directory_failure(&fresh, &why))?;
        let made = (|| {
            let new =
                |name: &str| File::options().write(true).create_new(true).mode(0o600).open(fresh.join(name));
            let (mut marker, list) = (new(LOCK_FILE)?, new(LIST_FILE)?);
            marker.write_all(token.as_bytes())?;
            flock(&marker, FlockOperation::NonBlockingLockExclusive)?;
            std::fs::rename(&fresh, &path)?;
            Ok::<_, std::io::Error>((marker, list))
        })();
        let (marker, list) = made.map_err(|why| {
            // Only what was just made can be in it.
            for name in [LOCK_FILE, LIST_FILE] {
                let _ = std::fs::remove_file(fresh.join(name));
            }
            let _ = std::fs::remove_dir(&fresh);
            directory_failure(&fresh, &why)
        })?;
        Ok(RunDirectory { path, token, list: Mutex::new(list), next: AtomicU32::new(0), _marker: marker })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it, for root or us alone (mode 0700). Its path is short, as that of a socket must be.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn create_directory(&self, what: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(format!("{what}{}", self.next_number()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
        Ok(path)
    }

    /// A path in it for a socket.
    pub fn socket_path(&self, what: &str) -> PathBuf {
        self.path.join(format!("{what}{}", self.next_number()))
    }

    /// A number that tells what was made in it apart.
    pub(crate) fn next_number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A name that nobody else has: `start`, the token, `end`.
    pub(crate) fn unique_name(&self, start: &str, end: &str) -> String {
        format!("{start}{}{end}", self.token)
    }

    /// The identifier of this run's NVMe hosts.
    pub(crate) fn nvme_host_id(&self) -> String {
        nvme_host_id(&self.token)
    }

    /// Makes the directory in memory for volumes, if it is not there; `None`: there is no such file system.
    pub(crate) fn memory_directory(&self) -> Result<Option<PathBuf>, Failure> {
        if !Path::new(MEMORY_DIRECTORY).is_dir() {
            return Ok(None);
        }
        let path = Path::new(MEMORY_DIRECTORY).join(self.unique_name(DIRECTORY_PREFIX, ""));
        // Under the lock of the list: it is made once.
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if !leftovers::is_own_directory(&path) {
            append_resource(&mut list, &CreatedResource::Memory)?;
            let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
            made.map_err(|why| Failure::new(format!("{}: {why}", path.display())))?;
        }
        Ok(Some(path))
    }

    /// Writes down what is about to be made.
    pub(crate) fn note_resource(&self, made: &CreatedResource) -> Result<(), Failure> {
        append_resource(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner), made)
    }

    /// Writes down what is about to be mounted below it.
    pub(crate) fn note_mount(&self, at: &Path, kind: &str) -> Result<(), Failure> {
        let below = at.strip_prefix(&self.path).ok().and_then(Path::to_str);
        let below = below.ok_or_else(|| Failure::new(format!("{}: not in our directory", at.display())))?;
        self.note_resource(&CreatedResource::Mount(below.to_owned(), kind.to_owned()))
    }
}

fn append_resource(list: &mut File, made: &CreatedResource) -> Result<(), Failure> {
    let line = format!("{}\n", serde_json::json!(made.to_words()));
    list.write_all(line.as_bytes())
        .map_err(|why| Failure::new(format!("cannot record a created object for later removal: {why}")))
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        // What cannot be removed now stays on the list, for the next run.
        let _ = leftovers::remove_run_directory(&self.path, &self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later run does not know it for one of ours.
    #[test]
    fn a_directory_that_cannot_be_made_whole_never_stays() {
        let dir = tempfile::tempdir().unwrap();
        let token = "0123456789abcdef";
        let taken = dir.path().join(format!("{DIRECTORY_PREFIX}{token}"));
        std::fs::create_dir_all(taken.join("full")).unwrap();
        RunDirectory::create_with_token(dir.path(), token.to_owned()).unwrap_err();
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        assert!(left.eq([taken.clone()]));
        assert!(taken.join("full").exists());
    }
}
