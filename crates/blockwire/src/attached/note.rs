//! What is attached on this machine: a file for each attachment, so that every process finds all of them.
//!
//! Invariant: a note whose holder and keeper are both gone is no attachment, and is removed by whoever
//! sees it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keeper;
use crate::exit::Failure;
use crate::paths::Paths;

/// A process, told apart from a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since boot.
    pub started: u64,
}

impl Process {
    /// The process of this number, if there is one.
    pub fn of(pid: u32) -> Option<Process> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let words: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
        // Field 22 of proc(5); the first word is field 3. A zombie has ended.
        let started = (*words.first()? != "Z").then(|| words.get(19)?.parse().ok()).flatten()?;
        Some(Process { pid, started })
    }

    /// This one.
    pub fn own() -> Process {
        let pid = std::process::id();
        Process::of(pid).unwrap_or(Process { pid, started: 0 })
    }

    /// Whether it still runs.
    pub fn lives(self) -> bool {
        Process::of(self.pid) == Some(self)
    }
}

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
    /// Its file.
    pub file: PathBuf,
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
pub fn all(dir: &Path) -> Vec<Found> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for file in entries.flatten().map(|entry| entry.path()) {
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        // One that is being written is seen next time.
        let Ok(note) = serde_json::from_str::<Note>(&text) else { continue };
        match standing(&note) {
            Some(standing) => found.push(Found { note, file, standing }),
            None => drop(fs::remove_file(&file)),
        }
    }
    found.sort_by(|a, b| (a.note.holder.pid, &a.file).cmp(&(b.note.holder.pid, &b.file)));
    found
}

fn standing(note: &Note) -> Option<Standing> {
    if note.holder.lives() {
        return Some(Standing::Serving);
    }
    let kept = note.keeper.as_ref().filter(|kept| kept.process.lives())?;
    match keeper::ask(&kept.socket) {
        Ok(Some(left)) => Some(Standing::Waiting { left_ms: left.as_millis() as u64 }),
        Ok(None) => Some(Standing::Failing),
        // It is just going, or just taken over: its process says that somebody is there.
        Err(_) => Some(Standing::Waiting { left_ms: 0 }),
    }
}

/// A note that goes away with the attachment.
#[derive(Debug)]
pub struct Noted(PathBuf);

impl Noted {
    /// Writes it; whoever looks sees all of it or nothing.
    pub fn write(file: PathBuf, note: &Note) -> Result<Noted, Failure> {
        let new = file.with_extension("new");
        let text = serde_json::to_string(note).unwrap_or_default();
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &file));
        written.map_err(|why| Failure::failed(format!("{}: {why}", file.display())))?;
        Ok(Noted(file))
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Makes the directory of notes, for its owner alone.
pub fn make(dir: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|why: io::Error| Failure::failed(format!("{}: {why}", dir.display())))
}

/// Milliseconds, which a note and a message carry.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
