//! The record of an attachment: a file that names its volume, its device, its holder and its guardian, so
//! that every process finds it.
//!
//! Invariant: a record is written whole or not at all, and is removed with its attachment unless that is left
//! behind.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use super::running_process::ProcessId;
use process::exit::Failure;
use process::owned_dir::OwnedDir;
use process::paths::DefaultPaths;

/// The longest record, in bytes; a stripe's name has those of its legs.
pub(super) const RECORD_BYTES_MAX: u64 = 256 << 10;

/// Who holds on if the holder is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardianAddress {
    /// The guardian.
    pub process: ProcessId,
    /// Where it listens.
    pub socket: PathBuf,
}

/// A path of a holder, as its record says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedPath {
    /// Where it leads, and as whom.
    pub place: String,
    /// What told its nexus apart from those of the holder's other paths.
    pub number: u16,
    /// Whether a login as the same nexus ends its session.
    pub reinstates: bool,
    /// The target portal group that it reached, if that was told.
    pub group: Option<String>,
    /// How long after its loss commands may still be carried out, in milliseconds.
    pub lands_for_ms: u64,
    /// It had never been up: what its target tells was not known, and is taken for the longest that may be.
    #[serde(default)]
    pub is_new: bool,
}

/// An attachment, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRecord {
    /// Who holds it.
    #[serde(flatten)]
    pub holder: ProcessId,
    /// The volume, without secrets.
    pub url: String,
    /// How it is attached.
    pub via: String,
    /// What users open: the device, the file, the socket.
    pub ways: Vec<String>,
    /// The control socket of the daemon that holds it; `None`: a process of its own.
    #[serde(default)]
    pub control: Option<PathBuf>,
    /// Its guardian, by the name that every version reads.
    #[serde(default, rename = "keeper")]
    pub guardian: Option<GuardianAddress>,
    /// How long I/O waits without a holder, in milliseconds.
    #[serde(default)]
    pub timeout_ms: u64,
    /// The identity of the volume, if its target tells it.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Its serial number, by which it is known where there is no UUID.
    #[serde(default)]
    pub serial: Option<String>,
    /// Bytes of its blocks.
    #[serde(default)]
    pub block: Option<u32>,
    /// The holder's paths; none: it did not write them down.
    #[serde(default)]
    pub paths: Vec<RecordedPath>,
    /// The qualifier of the holder's iSCSI sessions.
    #[serde(default)]
    pub nexus: [u8; 3],
    /// Among which processes the holder and the guardian are ([`crate::running_process::pid_namespace`]).
    #[serde(default)]
    pub space: Option<u64>,
}

/// Where records are, and sockets and directories that nobody named: beside the control socket.
pub fn record_dir(control: Option<&Path>) -> PathBuf {
    let usual = DefaultPaths::of_process().control;
    let control = control.unwrap_or(&usual);
    control.parent().unwrap_or(Path::new("/run/blockwire")).join("attached")
}

/// Where records may be: beside the socket that is named, and at the usual place.
pub fn record_dirs(control: Option<&Path>) -> Vec<PathBuf> {
    let mut dirs = vec![record_dir(None)];
    let named = control.map(|control| record_dir(Some(control)));
    dirs.extend(named.filter(|named| !dirs.contains(named)));
    dirs
}

/// A record that goes away with the attachment.
#[derive(Debug)]
pub struct RecordFile {
    dir: Arc<OwnedDir>,
    file: OsString,
    record: AttachRecord,
    stays: bool,
}

impl RecordFile {
    /// Writes it; who looks sees all of it or nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(dir: Arc<OwnedDir>, file: &OsStr, record: &AttachRecord) -> Result<RecordFile, Failure> {
        let failed =
            |why: std::io::Error| Failure::failed(format!("{}: {why}", dir.path().join(file).display()));
        let text = serde_json::to_vec(record).map_err(|why| failed(why.into()))?;
        dir.write_new_file(file, &text).map_err(failed)?;
        Ok(RecordFile { dir, file: file.to_owned(), record: record.clone(), stays: false })
    }

    /// The paths are others now, or what they sent lands for longer. A record that cannot be written again stays as it was.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_paths(&mut self, paths: Vec<RecordedPath>) -> io::Result<()> {
        if self.record.paths == paths {
            return Ok(());
        }
        let record = AttachRecord { paths, ..self.record.clone() };
        self.dir.replace_file(&self.file, &serde_json::to_vec(&record)?)?;
        self.record = record;
        Ok(())
    }

    /// It stays, for who goes on with what is left. Its holder has ended, though its process may live: it holds other
    /// attachments.
    pub fn persist(mut self) {
        let ended =
            AttachRecord { holder: ProcessId { started: 0, ..self.record.holder }, ..self.record.clone() };
        // Where it cannot be written again it stays as it is: it counts when the process has ended.
        self.stays = true;
        if let Ok(text) = serde_json::to_vec(&ended) {
            let _ = self.dir.replace_file(&self.file, &text);
        }
    }
}

/// A record, once it is written: of who ends the attachment, and of who knows how its paths are.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedRecord(Arc<Mutex<Option<RecordFile>>>);

impl SharedRecord {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<RecordFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        if !self.stays {
            // Who went on with it, or the guardian, may have been faster.
            let _ = self.dir.remove_file(&self.file);
        }
    }
}

/// Milliseconds, which a record and a message carry.
pub fn to_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn left_by_the_dead(via: &str, way: &Path) -> String {
        // No process began before the kernel.
        let way = serde_json::json!([way]);
        format!(r#"{{"pid":1,"started":0,"url":"u","via":"{via}","ways":{way},"uuid":"x","nexus":[1,2,3]}}"#)
    }

    /// A path has connected again, to a controller that lets writes land for longer.
    #[test]
    fn a_note_does_not_keep_saying_how_long_writes_landed_before() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(OwnedDir::create(&root.path().join("attached")).unwrap());
        let record: AttachRecord = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let mut noted = RecordFile::write(dir.clone(), OsStr::new("1.json"), &record).unwrap();
        let path = |lands_for_ms| RecordedPath {
            place: "a".to_owned(),
            number: 0,
            reinstates: false,
            group: None,
            lands_for_ms,
            is_new: false,
        };
        for lands_for_ms in [10_000, 3_600_000] {
            noted.set_paths(vec![path(lands_for_ms)]).unwrap();
            let text = dir.read_trusted(OsStr::new("1.json"), RECORD_BYTES_MAX).unwrap();
            let read: AttachRecord = serde_json::from_slice(&text).unwrap();
            assert_eq!(read, AttachRecord { paths: vec![path(lands_for_ms)], ..record.clone() });
        }
        drop(noted);
        assert!(dir.entry_names().unwrap().is_empty());
    }
}
