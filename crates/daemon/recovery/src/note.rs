//! What is attached on this machine: a file for each attachment, so that every process finds all of them.
//!
//! Invariants: a note whose holder and keeper are both gone is no attachment, unless its device or socket is still there,
//! and is removed by who sees it; what cannot be told from here (no descriptor, another PID namespace) is not gone. A note is believed only if it stands in a directory that its owner alone can change, and no further
//! than its owner could act: the processes that it names must be this user's.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use super::process::Process;
use super::{keeper, process};
use ::process::exit::Failure;
use ::process::owned::Dir;
use ::process::paths::Paths;

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
    /// Its serial number, by which it is known where there is no UUID.
    #[serde(default)]
    pub serial: Option<String>,
    /// Bytes of its blocks.
    #[serde(default)]
    pub block: Option<u32>,
    /// The holder's paths; none: it did not write them down.
    #[serde(default)]
    pub paths: Vec<super::landing::Noted>,
    /// The qualifier of the holder's iSCSI sessions.
    #[serde(default)]
    pub nexus: [u8; 3],
    /// Among which processes the holder and the keeper are ([`process::space`]).
    #[serde(default)]
    pub space: Option<u64>,
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
    /// Holder and keeper are gone, and its device or socket is still there: I/O waits to be recovered, as long as
    /// its users do.
    Stranded,
    /// It cannot be told from here. It counts as served.
    Unknown,
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

    /// Whether its holder serves it, or may.
    pub fn is_held(&self) -> bool {
        matches!(self.standing, Standing::Serving | Standing::Unknown)
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
        let text = match dir.read(&file, NOTE_MAX) {
            Ok(text) => text,
            // What is no note, or has just gone, is nobody's business; what cannot be read now is.
            Err(why) if is_no_note(&why) => continue,
            Err(why) => return Err(failed(why)),
        };
        let Ok(note) = serde_json::from_slice::<Note>(&text) else { continue };
        match standing(&note, dir.owner()) {
            Some(standing) => found.push(Found { note, dir: dir.clone(), file, standing }),
            None => drop(dir.remove(&file)),
        }
    }
    // A number that was given again is the one's who serves it.
    let served: Vec<String> = found
        .iter()
        .filter(|one| !matches!(one.standing, Standing::Stranded | Standing::Unknown))
        .flat_map(|one| one.note.ways.clone())
        .collect();
    found.retain(|one| {
        let is_gone =
            one.standing == Standing::Stranded && one.note.ways.iter().any(|way| served.contains(way));
        if is_gone {
            let _ = one.dir.remove(&one.file);
        }
        !is_gone
    });
    hide_doubles(&mut found);
    found.sort_by(|a, b| (a.note.holder.pid, &a.file).cmp(&(b.note.holder.pid, &b.file)));
    Ok(found)
}

/// Of notes with one keeper one counts: that whose holder lives, if there is one. A recovery that was killed before
/// its keeper had heard of it leaves its own beside the other.
fn hide_doubles(found: &mut Vec<Found>) {
    found.sort_by_key(|one| !one.is_held());
    let mut seen = Vec::new();
    found.retain(|one| {
        let Some(keeper) = &one.note.keeper else { return true };
        let is_first = !seen.contains(keeper);
        seen.push(keeper.clone());
        is_first
    });
}

/// Whether what keeps a file from being read is that it is no note of the directory's owner, or none any more.
fn is_no_note(why: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    let is_link = why.raw_os_error() == Some(Errno::LOOP.raw_os_error());
    is_link || matches!(why.kind(), NotFound | PermissionDenied | InvalidData)
}

/// `None`: it is shown to be gone.
fn standing(note: &Note, owner: u32) -> Option<Standing> {
    let look = || -> io::Result<Option<Standing>> {
        let here = process::space()?;
        if note.space.is_some_and(|space| space != here) {
            // Of its processes nothing can be told; but a keeper outlives its holder, and answers in any space.
            let is_gone = note.keeper.as_ref().map(|kept| has_ceased(kept, owner)).transpose()?;
            return Ok((is_gone != Some(true)).then_some(Standing::Unknown));
        }
        if note.holder.is_of(owner)? {
            return Ok(Some(Standing::Serving));
        }
        let Some(kept) = &note.keeper else { return Ok(None) };
        Ok(kept.process.is_of(owner)?.then(|| waiting(kept, owner)))
    };
    let stranded = || Ok(is_stranded(note, owner)?.then_some(Standing::Stranded));
    let found = look().and_then(|found| found.map_or_else(stranded, |standing| Ok(Some(standing))));
    found.unwrap_or(Some(Standing::Unknown))
}

/// Whether nobody listens any more where a keeper did. Without the socket it is not told: it may have another path
/// here.
fn has_ceased(kept: &Kept, owner: u32) -> io::Result<bool> {
    let Some(socket) = kept.socket.to_str() else { return Ok(false) };
    is_stale_socket(socket, owner)
}

/// As the keeper says it.
fn waiting(kept: &Kept, owner: u32) -> Standing {
    match keeper::ask(kept, owner) {
        Ok(Some(left)) => Standing::Waiting { left_ms: millis(left) },
        Ok(None) => Standing::Failing,
        // It is just going, or just taken over: its process says that somebody is there.
        Err(_) => Standing::Waiting { left_ms: 0 },
    }
}

/// Whether what nobody holds is there all the same: a ublk device stays until it is taken away; and who was at a
/// socket comes again when somebody listens there, and asks again what was in flight.
fn is_stranded(note: &Note, owner: u32) -> io::Result<bool> {
    let Some(way) = note.ways.first() else { return Ok(false) };
    match &*note.via {
        "ublk" => Ok(facts_of(way)?.is_some_and(|facts| facts.file_type().is_block_device())),
        "nbd" | "vhost-user" => is_stale_socket(way, owner),
        _ => Ok(false),
    }
}

/// `None`: nothing is there.
fn facts_of(path: &str) -> io::Result<Option<std::fs::Metadata>> {
    match std::fs::symlink_metadata(path) {
        Ok(facts) => Ok(Some(facts)),
        Err(why) if matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Whether a path is a socket of this owner that nobody listens on.
///
/// # Errors
/// What keeps us from knowing.
pub(super) fn is_stale_socket(path: &str, owner: u32) -> io::Result<bool> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    if !facts_of(path)?.is_some_and(|facts| facts.file_type().is_socket() && facts.uid() == owner) {
        return Ok(false);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(true),
        // Somebody listens, who has no room now or speaks otherwise; or it has just gone.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE | Errno::NOENT) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// A note that goes away with the attachment.
#[derive(Debug)]
pub struct Noted {
    dir: Arc<Dir>,
    file: OsString,
    note: Note,
    stays: bool,
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
        Ok(Noted { dir, file: file.to_owned(), note: note.clone(), stays: false })
    }

    /// The paths are others now, or what they sent lands for longer. A note that cannot be written again stays as it was.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_paths(&mut self, paths: Vec<super::landing::Noted>) -> io::Result<()> {
        if self.note.paths == paths {
            return Ok(());
        }
        let note = Note { paths, ..self.note.clone() };
        self.dir.replace_file(&self.file, &serde_json::to_vec(&note)?)?;
        self.note = note;
        Ok(())
    }

    /// It stays, for who goes on with what is left. Its holder has ended, though its process may live: it holds other
    /// attachments.
    pub fn leave_behind(mut self) {
        let ended = Note { holder: Process { started: 0, ..self.note.holder }, ..self.note.clone() };
        // Where it cannot be written again it stays as it is: it counts when the process has ended.
        self.stays = true;
        if let Ok(text) = serde_json::to_vec(&ended) {
            let _ = self.dir.replace_file(&self.file, &text);
        }
    }
}

/// A note, once it is written: of who ends the attachment, and of who knows how its paths are.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedNote(Arc<Mutex<Option<Noted>>>);

impl SharedNote {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if !self.stays {
            // Who went on with it, or the keeper, may have been faster.
            let _ = self.dir.remove(&self.file);
        }
    }
}

/// Milliseconds, which a note and a message carry.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn left_by_the_dead(via: &str, way: &Path) -> String {
        // No process began before the kernel.
        let way = serde_json::json!([way]);
        format!(r#"{{"pid":1,"started":0,"url":"u","via":"{via}","ways":{way},"uuid":"x","nexus":[1,2,3]}}"#)
    }

    #[test]
    fn whose_clients_come_again_and_ask_again_is_not_forgotten_while_its_socket_stands() {
        use std::os::unix::net::UnixListener;
        let root = tempfile::tempdir().unwrap();
        let (notes, stale, served) =
            (root.path().join("attached"), root.path().join("stale"), root.path().join("served"));
        let dir = Dir::make(&notes).unwrap();
        drop(UnixListener::bind(&stale).unwrap());
        let listener = UnixListener::bind(&served).unwrap();
        for (name, via, way) in [
            ("1.json", "nbd", &stale),
            ("2.json", "vhost-user", &served),
            ("3.json", "vhost-user", &root.path().join("gone")),
            ("4.json", "fuse", &stale),
        ] {
            dir.make_file(OsStr::new(name), left_by_the_dead(via, way).as_bytes()).unwrap();
        }
        let found = all(&notes).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].standing, found[0].note.nexus), (Standing::Stranded, [1, 2, 3]));
        // Who gives it up takes the socket away, and no other.
        super::super::give_up(&found[0]).unwrap();
        assert!(!stale.exists() && served.exists());
        assert!(all(&notes).unwrap().is_empty() && dir.names().unwrap().is_empty());
        drop(listener);
    }

    #[test]
    fn what_another_process_number_space_or_a_missing_descriptor_hides_is_not_taken_for_dead() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::make(&root.path().join("attached")).unwrap());
        let note: Note = serde_json::from_str(&left_by_the_dead("fuse", Path::new("/a"))).unwrap();
        assert_eq!(standing(&note, dir.owner()), None, "it is shown to be gone");
        let elsewhere = Note { space: Some(process::space().unwrap() + 1), ..note };
        let text = serde_json::to_vec(&elsewhere).unwrap();
        dir.make_file(OsStr::new("1.json"), &text).unwrap();
        let found = all(dir.path()).unwrap();
        assert_eq!((found.len(), found[0].standing), (1, Standing::Unknown));
        assert!(found[0].is_held() && super::super::give_up(&found[0]).is_err());
        assert_eq!(dir.names().unwrap(), ["1.json"], "its note was removed");
        // All of a space may have ended; its keeper's socket tells.
        let socket = root.path().join("keeper");
        let kept = Kept { process: elsewhere.holder, socket: socket.clone() };
        let kept = Note { keeper: Some(kept), ..elsewhere };
        assert_eq!(standing(&kept, dir.owner()), Some(Standing::Unknown), "no socket tells nothing");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(standing(&kept, dir.owner()), Some(Standing::Unknown));
        drop(listener);
        assert_eq!(standing(&kept, dir.owner()), None, "nobody holds it any more");
        // What cannot be read for now is no less there.
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(!is_no_note(&errno.into()), "{errno:?}");
        }
        assert!(is_no_note(&Errno::NOENT.into()) && is_no_note(&Errno::LOOP.into()));
    }

    /// A path has connected again, to a controller that lets writes land for longer.
    #[test]
    fn a_note_does_not_keep_saying_how_long_writes_landed_before() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::make(&root.path().join("attached")).unwrap());
        let note: Note = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let mut noted = Noted::write(dir.clone(), OsStr::new("1.json"), &note).unwrap();
        let path = |lands_for_ms| super::super::landing::Noted {
            place: "a".to_owned(),
            number: 0,
            reinstates: false,
            group: None,
            lands_for_ms,
            is_new: false,
        };
        for lands_for_ms in [10_000, 3_600_000] {
            noted.set_paths(vec![path(lands_for_ms)]).unwrap();
            let text = dir.read(OsStr::new("1.json"), NOTE_MAX).unwrap();
            let read: Note = serde_json::from_slice(&text).unwrap();
            assert_eq!(read, Note { paths: vec![path(lands_for_ms)], ..note.clone() });
        }
        drop(noted);
        assert!(dir.names().unwrap().is_empty());
    }

    #[test]
    fn what_a_front_that_failed_has_left_behind_is_not_taken_for_served_while_its_process_lives() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::make(&root.path().join("attached")).unwrap());
        let note: Note = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let note = Note { holder: Process::own().unwrap(), ..note };
        let noted = Noted::write(dir.clone(), OsStr::new("1.json"), &note).unwrap();
        assert_eq!(all(dir.path()).unwrap()[0].standing, Standing::Serving);
        noted.leave_behind();
        let left: Note = serde_json::from_slice(&dir.read(OsStr::new("1.json"), NOTE_MAX).unwrap()).unwrap();
        assert!(!left.holder.is_of(dir.owner()).unwrap() && left.url == note.url);
        drop(Noted::write(dir.clone(), OsStr::new("2.json"), &note).unwrap());
        assert_eq!(dir.names().unwrap(), ["1.json"]);
    }

    #[test]
    fn a_recovery_that_was_killed_half_way_leaves_no_second_attachment() {
        let root = tempfile::tempdir().unwrap();
        let dir = Arc::new(Dir::make(&root.path().join("attached")).unwrap());
        let note: Note = serde_json::from_str(&left_by_the_dead("nbd", Path::new("/a"))).unwrap();
        let of = |file: &str, socket: Option<&str>, standing| {
            let keeper = socket.map(|socket| Kept { process: note.holder, socket: socket.into() });
            Found { note: Note { keeper, ..note.clone() }, dir: dir.clone(), file: file.into(), standing }
        };
        let waits = Standing::Waiting { left_ms: 1 };
        let mut found = vec![
            of("1", Some("/k"), waits),
            of("2", Some("/k"), Standing::Serving),
            of("3", Some("/l"), waits),
            of("4", Some("/l"), waits),
            of("5", None, Standing::Stranded),
            of("6", None, Standing::Stranded),
        ];
        hide_doubles(&mut found);
        let files: Vec<_> = found.iter().map(|one| one.file.to_str().unwrap()).collect();
        assert_eq!(files, ["2", "3", "5", "6"]);
    }

    #[test]
    fn a_ublk_device_that_outlives_holder_and_keeper_is_not_forgotten() {
        let block = |path: &PathBuf| {
            fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_block_device())
        };
        let device = fs::read_dir("/dev").unwrap().map(|entry| entry.unwrap().path()).find(block);
        let Some(device) = device else { return };
        let root = tempfile::tempdir().unwrap();
        let notes = root.path().join("attached");
        let dir = Dir::make(&notes).unwrap();
        for (name, via, way) in [
            ("1.json", "ublk", device.as_path()),
            ("2.json", "ublk", Path::new("/dev/ublkb4294967295")),
            ("3.json", "nbd", device.as_path()),
        ] {
            dir.make_file(OsStr::new(name), left_by_the_dead(via, way).as_bytes()).unwrap();
        }
        let found = all(&notes).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].standing, found[0].note.uuid.as_deref()), (Standing::Stranded, Some("x")));
        assert_eq!(found[0].note.nexus, [1, 2, 3]);
        assert_eq!(dir.names().unwrap(), ["1.json"], "what is gone is forgotten");
    }
}
