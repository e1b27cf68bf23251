//! What is attached on this machine: a file for each attachment, so that every process finds all of them.
//!
//! Invariants: a note whose holder and keeper are both gone is no attachment, and is removed by whoever
//! sees it. A note is believed only if it stands in a directory that its owner alone can change, and no further
//! than its owner could act: the processes that it names must be this user's.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keeper;
pub use super::process::Process;
use crate::exit::Failure;
use crate::owned::Dir;
use crate::paths::Paths;

/// The longest note, in bytes; a stripe's name has those of its legs.
const NOTE_MAX: u64 = 256 << 10;

/// Who holds on if the holder is killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The keeper.
    pub process: Process,
    /// Where it listens.
    pub socket: PathBuf,
}

/// An attachment, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Who holds it.
    #[serde(flatten)]
    pub holder: Process,
    /// The volume, without secrets.
    pub url: String,
    /// How it is attached.
    pub via: String,
    /// What users open: the device, the file, the socket.
    pub ways: Vec<String>,
    /// The control socket of the daemon that holds it; `None`: a process of its own.
    #[serde(default)]
    pub control: Option<PathBuf>,
    /// Its keeper.
    #[serde(default)]
    pub keeper: Option<Kept>,
    /// How long I/O waits without a holder, in milliseconds.
    #[serde(default)]
    pub timeout_ms: u64,
    /// The identity of the volume, if its target tells it.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The qualifier of the holder's iSCSI sessions.
    #[serde(default)]
    pub nexus: [u8; 3],
}

/// How an attachment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Standing {
    /// Its holder serves it.
    Serving,
    /// Its holder is gone; I/O waits to be recovered.
    Waiting {
        /// For so long yet.
        left_ms: u64,
    },
    /// Nobody recovered it in time: I/O fails.
    Failing,
}

/// A note, where it was found, and how the attachment stands.
#[derive(Clone, Debug)]
pub struct Found {
    /// The note.
    pub note: Note,
    /// Where it stands.
    pub dir: Arc<Dir>,
    /// Its file there.
    pub file: OsString,
    /// As it stands.
    pub standing: Standing,
}

impl Found {
    /// Whether a user's word names it: one of its ways, the directory of one, or the number of a process
    /// that holds nothing else.
    pub fn is(&self, name: &Path) -> bool {
        let note = &self.note;
        let is_pid = note.control.is_none() && name == Path::new(&note.holder.pid.to_string());
        let is_way = |way: &String| {
            let way = Path::new(way);
            // Of a FUSE file the directory names it too; of a device or socket it would name others.
            way == name || (note.via == "fuse" && way.parent() == Some(name) && !way.starts_with("/dev"))
        };
        is_pid || note.ways.iter().any(is_way)
    }

    /// What `--at` names of it.
    pub fn place(&self) -> &str {
        self.note.ways.first().map_or("", String::as_str)
    }

    /// Its ways, for people.
    pub fn ways(&self) -> String {
        self.note.ways.join(" ")
    }
}

/// Where notes are, and sockets and directories that nobody named: beside the control socket.
pub fn dir(control: Option<&Path>) -> PathBuf {
    let usual = Paths::of_process().control;
    let control = control.unwrap_or(&usual);
    control.parent().unwrap_or(Path::new("/run/blockwire")).join("attached")
}

/// All that is attached; what is dead is forgotten.
///
/// # Errors
/// A directory whose notes cannot be believed, and why.
pub fn all(dir: &Path) -> Result<Vec<Found>, Failure> {
    let failed = |why: std::io::Error| Failure::failed(format!("{}: {why}", dir.display()));
    let Some(dir) = Dir::find(dir)?.map(Arc::new) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for file in dir.names().map_err(failed)? {
        let is_note = Path::new(&file).extension().is_some_and(|extension| extension == "json");
        // What begins with a dot is being written, and seen next time.
        if !is_note || file.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        // What is no note, or has just gone, is nobody's business.
        let Ok(text) = dir.read(&file, NOTE_MAX) else { continue };
        let Ok(note) = serde_json::from_slice::<Note>(&text) else { continue };
        match standing(&note, dir.owner()) {
            Some(standing) => found.push(Found { note, dir: dir.clone(), file, standing }),
            None => drop(dir.remove(&file)),
        }
    }
    found.sort_by(|a, b| (a.note.holder.pid, &a.file).cmp(&(b.note.holder.pid, &b.file)));
    Ok(found)
}

fn standing(note: &Note, owner: u32) -> Option<Standing> {
    if note.holder.is_of(owner) {
        return Some(Standing::Serving);
    }
    let kept = note.keeper.as_ref().filter(|kept| kept.process.is_of(owner))?;
    match keeper::ask(kept, owner) {
        Ok(Some(left)) => Some(Standing::Waiting { left_ms: millis(left) }),
        Ok(None) => Some(Standing::Failing),
        // It is just going, or just taken over: its process says that somebody is there.
        Err(_) => Some(Standing::Waiting { left_ms: 0 }),
    }
}

/// A note that goes away with the attachment.
#[derive(Debug)]
pub struct Noted {
    dir: Arc<Dir>,
    file: OsString,
}

impl Noted {
    /// Writes it; who looks sees all of it or nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(dir: Arc<Dir>, file: &OsStr, note: &Note) -> Result<Noted, Failure> {
        let failed =
            |why: std::io::Error| Failure::failed(format!("{}: {why}", dir.path().join(file).display()));
        let text = serde_json::to_vec(note).map_err(|why| failed(why.into()))?;
        dir.make_file(file, &text).map_err(failed)?;
        Ok(Noted { dir, file: file.to_owned() })
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // Who went on with it, or the keeper, may have been faster.
        let _ = self.dir.remove(&self.file);
    }
}

/// Milliseconds, which a note and a message carry.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
