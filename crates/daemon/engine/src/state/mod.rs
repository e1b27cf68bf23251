//! The state directory: data that must outlive the process.
//!
//! Records are written whole: to a new file, synced, renamed over the old one, the directory synced. Each
//! carries its length and a CRC32C. A damaged record is refused with its name and never taken for an absent
//! one: a daemon that forgot an identity or a reservation would corrupt the hosts that rely on it. One daemon
//! holds the directory at a time.
//!
//! Invariant: the directory belongs to this user, no other user can change its contents, and no symbolic link
//! in it is followed.

pub mod blocked_hosts;
pub mod configuration;
pub mod copy;
pub mod file_identity;
pub mod identity;
pub mod known_files;
pub mod nexuses;
pub mod ports;
pub mod restore;
pub mod serials;
pub mod target_ports;
pub mod volumes;

use std::{
    collections::HashSet,
    ffi::OsStr,
    fmt,
    fs::{self, File, TryLockError},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use uuid::Uuid;

use process::log::area;
use process::owned_dir::OwnedDir;

/// First word of each record.
const MAGIC: &str = "blockwire-state";
/// Version of the envelope.
const VERSION: &str = "1";
/// Largest record, bytes: 65,536 volumes of 1 KiB each.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;

/// Behind a volume's UUID and a dot: the record of its reservations, bad blocks, path states and protection.
pub const RESERVATIONS_SUFFIX: &str = "reservations";
/// Behind that of a file or device: the note of a failed sync.
pub const SYNC_FAILED_SUFFIX: &str = "sync-failed";

/// What a daemon notes beside its process in the file that it locks.
const SERVING_NOTE: &str = "serving";
const STOPPING_NOTE: &str = "stopping";
/// How long a daemon that is stopping is waited for: more than a clean stop takes.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(90);
/// How long one is waited for that has not said so: it may have been killed just now.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(500);
/// How often is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why the state directory cannot be used.
#[derive(Debug)]
pub enum StateError {
    /// The system said no.
    Io {
        /// What was tried, as in "cannot WHAT".
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What it said.
        why: io::Error,
    },
    /// Others can change what is in it, or it is somebody else's: which, and what to do.
    Unsafe(String),
    /// Another daemon uses it.
    InUse {
        /// The directory.
        path: PathBuf,
        /// The daemon's process, as far as it has said so.
        pid: Option<u32>,
        /// It is stopping.
        stopping: bool,
    },
    /// A record is longer than one may be.
    Large {
        /// The record.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
    /// A record is not what was written.
    Damaged {
        /// The record.
        path: PathBuf,
        /// How that shows.
        why: String,
    },
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Io { what, path, why } => write!(f, "cannot {what} {}: {why}", path.display()),
            StateError::Unsafe(why) => write!(f, "the state directory cannot be trusted: {why}"),
            StateError::InUse { path, pid, stopping } => {
                let who = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                let path = path.display();
                if *stopping {
                    return write!(
                        f,
                        "the daemon{who} that uses the state directory {path} is still stopping: start again when \
                         it has exited (`blockwire stop` waits for that)"
                    );
                }
                write!(
                    f,
                    "the state directory {path} is in use by another daemon{who}: stop it with `blockwire stop`. \
                     A second daemon needs its own --state and --control, and gives its volumes other identities"
                )
            }
            StateError::Large { path, bytes } => write!(
                f,
                "{} would have {bytes} bytes, more than the limit of {RECORD_BYTES_MAX}: the old record is kept",
                path.display()
            ),
            StateError::Damaged { path, why } => write!(
                f,
                "{} is damaged ({why}); restore it, or move it away if its contents may be lost",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StateError {}

/// The directory, held by this process.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The same, open: nobody else can change what is in it.
    dir: OwnedDir,
    /// Held for its lock, and with a note of who holds it.
    lock: File,
    /// Held while a record changes, and while all are copied.
    changes: Mutex<()>,
}

impl StateDir {
    /// Makes the directory if it is not there (for this user only) and takes it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |what| move |why| StateError::Io { what, path: path.to_owned(), why };
        let missing: Vec<&Path> =
            path.ancestors().take_while(|part| part.symlink_metadata().is_err()).collect();
        let dir =
            OwnedDir::create_through_link(path, "--state").map_err(|why| StateError::Unsafe(why.message))?;
        sync_ancestors(dir.path(), &missing).map_err(failed("sync the directory of"))?;
        let name = dir.path().join("lock");
        let lock = dir.open_or_create_file(OsStr::new("lock")).map_err(|why| StateError::Io {
            what: "write",
            path: name.clone(),
            why,
        })?;
        match lock.try_lock() {
            Ok(()) => {
                let state = StateDir { path: dir.path().to_owned(), dir, lock, changes: Mutex::default() };
                state.write_status(SERVING_NOTE);
                state.finish_restore()?;
                Ok(state)
            }
            Err(TryLockError::WouldBlock) => {
                let note = fs::read_to_string(&name).unwrap_or_default();
                let (pid, word) = note.trim_end().split_once(' ').unwrap_or_default();
                let (pid, stopping) = (pid.parse().ok(), word == STOPPING_NOTE);
                Err(StateError::InUse { path: path.to_owned(), pid, stopping })
            }
            Err(TryLockError::Error(why)) => Err(failed("lock")(why)),
        }
    }

    /// The same with the lock of a daemon that hands over to this process.
    pub fn adopt(path: &Path, lock: File) -> Result<Self, StateError> {
        let dir =
            OwnedDir::create_through_link(path, "--state").map_err(|why| StateError::Unsafe(why.message))?;
        let name = dir.path().join("lock");
        let failed = |why| StateError::Io { what: "look at", path: name.clone(), why };
        let (named, held) = (fs::metadata(&name).map_err(failed)?, lock.metadata().map_err(failed)?);
        if (named.dev(), named.ino()) != (held.dev(), held.ino()) {
            let why =
                format!("the daemon that hands over uses another state directory than {}", path.display());
            return Err(StateError::Unsafe(why));
        }
        Ok(StateDir { path: dir.path().to_owned(), dir, lock, changes: Mutex::default() })
    }

    /// The lock, for a process that takes over.
    pub fn duplicate_lock(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// Tells others that this process holds the directory.
    pub fn note_serving(&self) {
        self.write_status(SERVING_NOTE);
    }

    /// The same, but a daemon that is stopping, or was killed just now, is waited for. `waits` is called once if so.
    pub fn open_when_free(path: &Path, waits: impl Fn(&StateError)) -> Result<Self, StateError> {
        let begun = Instant::now();
        let mut told = false;
        loop {
            let why = match StateDir::open(path) {
                Err(why @ StateError::InUse { .. }) => why,
                other => return other,
            };
            let stopping = matches!(why, StateError::InUse { stopping: true, .. });
            if begun.elapsed() >= if stopping { STOPPING_TIMEOUT } else { SETTLE_TIMEOUT } {
                return Err(why);
            }
            if stopping && !std::mem::replace(&mut told, true) {
                waits(&why);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Tells others who find the directory held that it will soon be free.
    pub fn note_stopping(&self) {
        self.write_status(STOPPING_NOTE);
    }

    /// What is noted is for people and for patience only: what counts is the lock.
    fn write_status(&self, word: &str) {
        let note = format!("{} {word}\n", std::process::id());
        let _ = self.lock.set_len(0).and_then(|()| self.lock.write_all_at(note.as_bytes(), 0));
    }

    fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A record; `None` if it was never written.
    pub fn read_record(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.path.join(name);
        let bytes = match self.dir.read_trusted(OsStr::new(name), RECORD_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
                let why = "it is not our own file, or others can write to it".to_owned();
                return Err(StateError::Damaged { path, why });
            }
            Err(why) => return Err(StateError::Io { what: "read", path, why }),
        };
        match unwrap_record(&bytes) {
            Ok(payload) => Ok(Some(payload.to_vec())),
            Err(why) => Err(StateError::Damaged { path, why }),
        }
    }

    /// Replaces a record. When this returns, a power failure leaves the new one; before, the old one. If it fails,
    /// the old one stands: what was answered as failed does not come back at the next start.
    pub fn write_record(&self, name: &str, payload: &[u8]) -> Result<(), StateError> {
        self.write_record_then(name, payload, || File::open(&self.path)?.sync_all())
    }

    fn write_record_then(
        &self,
        name: &str,
        payload: &[u8],
        sync_directory: impl Fn() -> io::Result<()>,
    ) -> Result<(), StateError> {
        let path = self.path.join(name);
        let (new, old) = (self.path.join(format!("{name}.new")), self.path.join(format!("{name}.old")));
        let failed = |what| {
            let path = path.clone();
            move |why| StateError::Io { what, path, why }
        };
        let head = format!("{MAGIC} {VERSION} {:08x} {}\n", buf::crc32c::crc32c(payload), payload.len());
        let bytes = (head.len() + payload.len()) as u64;
        if bytes > RECORD_BYTES_MAX {
            return Err(StateError::Large { path, bytes });
        }
        let _changing = self.lock_changes();
        // A half of one that a crash has left, or whatever stands there: it is not written through.
        fs::remove_file(&new).or_else(ignore_not_found).map_err(failed("write"))?;
        let file = self.dir.create_file(OsStr::new(&format!("{name}.new")));
        let mut file = file.map_err(failed("write"))?;
        file.write_all(head.as_bytes()).and_then(|()| file.write_all(payload)).map_err(failed("write"))?;
        file.sync_all().map_err(failed("sync"))?;
        // The old one keeps a name until the new one is safe.
        let had_one =
            match fs::remove_file(&old).or_else(ignore_not_found).and_then(|()| link_or_copy(&path, &old)) {
                Ok(()) => true,
                Err(why) if why.kind() == io::ErrorKind::NotFound => false,
                Err(why) => return Err(failed("keep the old version of")(why)),
            };
        fs::rename(&new, &path).map_err(failed("replace"))?;
        let synced = sync_directory();
        if synced.is_err() {
            let back = if had_one { fs::rename(&old, &path) } else { fs::remove_file(&path) };
            let back = back.and_then(|()| sync_directory());
            if let Err(why) = back {
                tracing::error!(target: area::STATE, %why, record = %path.display(), "a refused change may be in effect at the next \
                start");
            }
        } else if had_one {
            let _ = fs::remove_file(&old);
        }
        synced.map_err(failed("sync the directory of"))
    }

    /// Removes a record; it is no mistake if there is none.
    pub fn remove_record(&self, name: &str) -> Result<(), StateError> {
        let path = self.path.join(name);
        let failed = |why| StateError::Io { what: "remove", path: path.clone(), why };
        let _changing = self.lock_changes();
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(failed(why)),
            _ => {}
        }
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// The UUIDs of the volumes that have records of their own.
    pub fn recorded_volumes(&self) -> Result<HashSet<Uuid>, StateError> {
        let of = |name: &OsStr| {
            let (uuid, what) = name.to_str()?.split_once('.')?;
            if matches!(what, RESERVATIONS_SUFFIX | SYNC_FAILED_SUFFIX) {
                uuid.parse::<Uuid>().ok()
            } else {
                None
            }
        };
        let failed = |why| StateError::Io { what: "list", path: self.path.clone(), why };
        let mut found = HashSet::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            found.extend(of(&entry.map_err(failed)?.file_name()));
        }
        Ok(found)
    }

    /// A record as JSON.
    pub fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        let Some(bytes) = self.read_record(name)? else { return Ok(None) };
        let damaged =
            |why: serde_json::Error| StateError::Damaged { path: self.path.join(name), why: why.to_string() };
        serde_json::from_slice(&bytes).map(Some).map_err(damaged)
    }

    /// Replaces a record by JSON.
    pub fn write_json<T: serde::Serialize>(&self, name: &str, value: &T) -> Result<(), StateError> {
        let json = serde_json::to_vec_pretty(value).map_err(|why| StateError::Io {
            what: "write",
            path: self.path.join(name),
            why: why.into(),
        })?;
        self.write_record(name, &json)
    }
}

/// Makes the names stable that lead to the directory: without them a failure of the power loses all that is in it. Its
/// own is synced at each start: the daemon that made it may have been killed before it came so far.
fn sync_ancestors(directory: &Path, made: &[&Path]) -> io::Result<()> {
    made.iter().copied().chain([directory]).try_for_each(|part| match sync_parent_directory(part) {
        // The operator's, who does not let us look.
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    })
}

/// Makes the name of a file or directory stable.
pub(crate) fn sync_parent_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all()) {
        // Its file system knows no such thing (EINVAL).
        Err(why) if why.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// Gives what a name leads to a second name; where the file system knows no such thing, a copy of it has that name.
fn link_or_copy(path: &Path, old: &Path) -> io::Result<()> {
    link_or_copy_with(path, old, |path, old| fs::hard_link(path, old))
}

fn link_or_copy_with(
    path: &Path,
    old: &Path,
    link: impl Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    match link(path, old) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Err(why),
        Err(_) => fs::copy(path, old).and_then(|_| File::open(old)?.sync_all()),
        Ok(()) => Ok(()),
    }
}

/// It is no mistake if there is none.
fn ignore_not_found(why: io::Error) -> io::Result<()> {
    if why.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(why) }
}

/// More than the first line of a record has, bytes.
const HEADER_BYTES_MAX: usize = 80;

/// Opens the envelope of a record.
fn unwrap_record(bytes: &[u8]) -> Result<&[u8], String> {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let head = parts.next().filter(|head| head.len() < HEADER_BYTES_MAX).ok_or("no header")?;
    let payload = parts.next().ok_or("no header")?;
    let head = std::str::from_utf8(head).map_err(|_| "no header")?;
    let words: Vec<&str> = head.split(' ').collect();
    let [MAGIC, version, crc, length] = words[..] else { return Err("no header".to_owned()) };
    if version != VERSION {
        return Err(format!("written by another version of the format, {version}"));
    }
    if length != payload.len().to_string() {
        return Err(format!("{} bytes where {length} were written", payload.len()));
    }
    if crc != format!("{:08x}", buf::crc32c::crc32c(payload)) {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, StateDir) {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(&root.path().join("a/b")).unwrap();
        (root, state)
    }

    #[test]
    fn a_directory_that_others_can_change_is_not_used_and_no_link_in_it_is_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let (place, victim) = (root.path().join("state"), root.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        fs::create_dir(&place).unwrap();
        symlink(&victim, place.join("lock")).unwrap();
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
            let why = StateDir::open(&place).unwrap_err().to_string();
            assert!(why.contains("can be written by other users") && why.contains("--state"), "{why}");
        }
        fs::set_permissions(&place, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(StateDir::open(&place), Err(StateError::Io { .. })), "a link is no lock");
        fs::remove_file(place.join("lock")).unwrap();
        // Our own link to our own directory is that directory.
        symlink(&place, root.path().join("link")).unwrap();
        let state = StateDir::open(&root.path().join("link")).unwrap();
        assert_eq!(state.path(), fs::canonicalize(&place).unwrap());
        for name in ["x", "x.new"] {
            symlink(&victim, place.join(name)).unwrap();
        }
        assert!(state.read_record("x").is_err());
        fs::remove_file(place.join("x")).unwrap();
        state.write_record("x", b"record").unwrap();
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"record"[..]));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::set_permissions(place.join("x"), fs::Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(state.read_record("x"), Err(StateError::Damaged { .. })), "others can write it");
    }

    #[test]
    fn what_is_written_is_read() {
        let (_root, state) = directory();
        assert_eq!(state.read_record("x").unwrap(), None);
        for payload in [&b""[..], b"one", b"two\n\0lines"] {
            state.write_record("x", payload).unwrap();
            assert_eq!(state.read_record("x").unwrap().as_deref(), Some(payload));
        }
        state.remove_record("x").unwrap();
        state.remove_record("x").unwrap();
        assert_eq!(state.read_record("x").unwrap(), None);
    }

    #[test]
    fn no_cut_and_no_flipped_bit_passes() {
        let (_root, state) = directory();
        state.write_record("x", b"precious reservations").unwrap();
        let path = state.path().join("x");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(state.read_record("x"), Err(StateError::Damaged { .. })), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            assert!(matches!(state.read_record("x"), Err(StateError::Damaged { .. })), "bit {bit}");
        }
        fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
        assert!(matches!(state.read_record("x"), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_record() {
        let (_root, state) = directory();
        state.write_record("x", b"old").unwrap();
        fs::write(state.path().join("x.new"), b"half of the n").unwrap();
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"old"[..]));
        state.write_record("x", b"new").unwrap();
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"new"[..]));
        assert!(!state.path().join("x.new").exists());
    }

    #[test]
    fn a_record_that_was_answered_as_failed_is_not_there_at_the_next_start() {
        let (_root, state) = directory();
        let fails = || Err(io::Error::other("no power"));
        assert!(matches!(state.write_record_then("x", b"refused", fails), Err(StateError::Io { .. })));
        assert_eq!(state.read_record("x").unwrap(), None);
        state.write_record("x", b"old").unwrap();
        assert!(matches!(state.write_record_then("x", b"refused", fails), Err(StateError::Io { .. })));
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"old"[..]));
        state.write_record("x", b"new").unwrap();
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"new"[..]));
        let left: Vec<_> =
            fs::read_dir(state.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "the record and the lock: {left:?}");
    }

    #[test]
    fn where_no_file_has_two_names_the_old_record_is_kept_as_a_copy() {
        let root = tempfile::tempdir().unwrap();
        let (path, old) = (root.path().join("x"), root.path().join("x.old"));
        let none = |_: &Path, _: &Path| Err(io::Error::from_raw_os_error(1));
        assert!(link_or_copy_with(&path, &old, none).is_err_and(|why| why.kind() == io::ErrorKind::NotFound));
        fs::write(&path, "precious").unwrap();
        link_or_copy_with(&path, &old, none).unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"precious");
        let gone = |_: &Path, _: &Path| Err(io::ErrorKind::NotFound.into());
        assert!(link_or_copy_with(&path, &old, gone).is_err());
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let (_root, state) = directory();
        state.write_record("x", b"old").unwrap();
        // Zeroes that no page is taken for: they are refused before anything is made of them but a checksum.
        let large = vec![0; RECORD_BYTES_MAX as usize - 20];
        assert!(matches!(state.write_record("x", &large), Err(StateError::Large { .. })));
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"old"[..]));
    }

    #[test]
    fn a_failed_write_leaves_the_old_record() {
        let (_root, state) = directory();
        state.write_record("x", b"old").unwrap();
        // A directory in the place of the new file makes the write fail, also for root.
        fs::create_dir(state.path().join("x.new")).unwrap();
        assert!(matches!(state.write_record("x", b"new"), Err(StateError::Io { .. })));
        assert_eq!(state.read_record("x").unwrap().as_deref(), Some(&b"old"[..]));
    }

    #[test]
    fn one_daemon_at_a_time() {
        let (_root, state) = directory();
        let path = state.path().to_owned();
        let own = Some(std::process::id());
        let is_held = |pid| matches!(StateDir::open(&path), Err(StateError::InUse { pid: held, stopping: false, .. }) if held == pid);
        assert!(is_held(own));
        drop(state);
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn one_that_is_stopping_is_waited_for_and_named_as_such() {
        let (_root, state) = directory();
        let path = state.path().to_owned();
        let why = StateDir::open_when_free(&path, |_| panic!("it serves")).unwrap_err().to_string();
        assert!(why.contains("in use by another daemon (process"), "{why}");
        state.note_stopping();
        let why = StateDir::open(&path).unwrap_err().to_string();
        assert!(why.contains("is still stopping") && !why.contains("--state"), "{why}");
        let (told, heard) = std::sync::mpsc::channel();
        let there = path.clone();
        let next = thread::spawn(move || {
            StateDir::open_when_free(&there, |why| told.send(why.to_string()).unwrap()).map(drop)
        });
        assert!(heard.recv_timeout(Duration::from_secs(30)).unwrap().contains("still stopping"));
        assert!(!next.is_finished());
        drop(state);
        next.join().unwrap().unwrap();
    }
}
