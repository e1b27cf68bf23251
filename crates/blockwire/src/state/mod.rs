//! The state directory: what must outlive the process.
//!
//! Records are written whole: to a new file, synced, renamed over the old one, the directory
//! synced. Each carries its length and a CRC32C, so a damaged one is refused with its name and
//! never taken for an absent one: a daemon that forgot an identity or a reservation would corrupt
//! the hosts that rely on it. One daemon holds the directory at a time.

pub mod identity;
pub mod volumes;

use std::{
    fmt,
    fs::{self, DirBuilder, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// First word of each record.
const MAGIC: &str = "blockwire-state";
/// Version of the envelope.
const VERSION: &str = "1";
/// Largest record, bytes: 65,536 volumes of 1 KiB each.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// What a daemon notes beside its process in the file that it locks.
const SERVING: &str = "serving";
const STOPPING: &str = "stopping";
/// How long a daemon that is stopping is waited for: more than a clean stop takes.
const ENDS: Duration = Duration::from_secs(90);
/// How long one is waited for that has not said so: it may have been killed just now.
const SETTLES: Duration = Duration::from_millis(500);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(20);

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
    /// Another daemon uses it.
    InUse {
        /// The directory.
        path: PathBuf,
        /// The daemon's process, as far as it has said so.
        pid: Option<u32>,
        /// It is stopping.
        stopping: bool,
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
            StateError::InUse { path, pid, stopping } => {
                let who = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                let path = path.display();
                if *stopping {
                    return write!(
                        f,
                        "the daemon{who} that uses the state directory {path} is still stopping: start again when it \
                         has ended (`blockwire stop` waits for that)"
                    );
                }
                write!(
                    f,
                    "the state directory {path} is in use by another daemon{who}: end that by `blockwire stop`; one \
                     that is to run beside it needs a --state and a --control of its own, and gives volumes other \
                     identities there"
                )
            }
            StateError::Damaged { path, why } => write!(
                f,
                "{} is damaged ({why}); restore it, or move it away if what it remembers may be lost",
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
    /// Held for its lock, and with a note of who holds it.
    lock: File,
}

impl StateDir {
    /// Makes the directory if it is not there (for this user only) and takes it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |what| move |why| StateError::Io { what, path: path.to_owned(), why };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("create"))?;
        let name = path.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&name)
            .map_err(failed("write in"))?;
        match lock.try_lock() {
            Ok(()) => {
                let state = StateDir { path: path.to_owned(), lock };
                state.note(SERVING);
                Ok(state)
            }
            Err(TryLockError::WouldBlock) => {
                let note = fs::read_to_string(&name).unwrap_or_default();
                let (pid, word) = note.trim_end().split_once(' ').unwrap_or_default();
                let (pid, stopping) = (pid.parse().ok(), word == STOPPING);
                Err(StateError::InUse { path: path.to_owned(), pid, stopping })
            }
            Err(TryLockError::Error(why)) => Err(failed("lock")(why)),
        }
    }

    /// The same, but a daemon that is stopping, or was killed just now, is waited for. `waits` is called once if so.
    pub fn open_in_turn(path: &Path, waits: impl Fn(&StateError)) -> Result<Self, StateError> {
        let begun = Instant::now();
        let mut told = false;
        loop {
            let why = match StateDir::open(path) {
                Err(why @ StateError::InUse { .. }) => why,
                other => return other,
            };
            let stopping = matches!(why, StateError::InUse { stopping: true, .. });
            if begun.elapsed() >= if stopping { ENDS } else { SETTLES } {
                return Err(why);
            }
            if stopping && !std::mem::replace(&mut told, true) {
                waits(&why);
            }
            thread::sleep(LOOK);
        }
    }

    /// Tells others who find the directory held that it will soon be free.
    pub fn say_stopping(&self) {
        self.note(STOPPING);
    }

    /// What is noted is for people and for patience only: what counts is the lock.
    fn note(&self, word: &str) {
        let note = format!("{} {word}\n", std::process::id());
        let _ = self.lock.set_len(0).and_then(|()| self.lock.write_all_at(note.as_bytes(), 0));
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A record; `None` if it was never written.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.path.join(name);
        let failed = |why| StateError::Io { what: "read", path: path.clone(), why };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(failed(why)),
        };
        let mut bytes = Vec::new();
        file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        match unwrap_record(&bytes) {
            Ok(payload) => Ok(Some(payload.to_vec())),
            Err(why) => Err(StateError::Damaged { path, why }),
        }
    }

    /// Replaces a record. When this returns, a power failure leaves the new one; before, the old one. If it fails,
    /// the old one stands: what was answered as failed does not come back at the next start.
    pub fn write(&self, name: &str, payload: &[u8]) -> Result<(), StateError> {
        self.write_then(name, payload, || File::open(&self.path)?.sync_all())
    }

    fn write_then(
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
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)
            .map_err(failed("write"))?;
        let head = format!("{MAGIC} {VERSION} {:08x} {}\n", buf::crc32c::crc32c(payload), payload.len());
        file.write_all(head.as_bytes()).and_then(|()| file.write_all(payload)).map_err(failed("write"))?;
        file.sync_all().map_err(failed("sync"))?;
        // The old one keeps a name until the new one is safe.
        let had_one = match fs::remove_file(&old).or_else(absent).and_then(|()| fs::hard_link(&path, &old)) {
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
                tracing::error!(%why, record = %path.display(), "what was refused may be there at the next start");
            }
        } else if had_one {
            let _ = fs::remove_file(&old);
        }
        synced.map_err(failed("sync the directory of"))
    }

    /// Removes a record; it is no mistake if there is none.
    pub fn remove(&self, name: &str) -> Result<(), StateError> {
        let path = self.path.join(name);
        let failed = |why| StateError::Io { what: "remove", path: path.clone(), why };
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(failed(why)),
            _ => {}
        }
        File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// A record as JSON.
    pub fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<Option<T>, StateError> {
        let Some(bytes) = self.read(name)? else { return Ok(None) };
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
        self.write(name, &json)
    }
}

/// It is no mistake if there is none.
fn absent(why: io::Error) -> io::Result<()> {
    if why.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(why) }
}

/// Opens the envelope of a record.
fn unwrap_record(bytes: &[u8]) -> Result<&[u8], String> {
    let end = bytes.iter().take(80).position(|b| *b == b'\n').ok_or("no header")?;
    let (head, payload) = (&bytes[..end], &bytes[end + 1..]);
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
    fn what_is_written_is_read() {
        let (_root, state) = directory();
        assert_eq!(state.read("x").unwrap(), None);
        for payload in [&b""[..], b"one", b"two\n\0lines"] {
            state.write("x", payload).unwrap();
            assert_eq!(state.read("x").unwrap().as_deref(), Some(payload));
        }
        state.remove("x").unwrap();
        state.remove("x").unwrap();
        assert_eq!(state.read("x").unwrap(), None);
    }

    #[test]
    fn no_cut_and_no_flipped_bit_passes() {
        let (_root, state) = directory();
        state.write("x", b"precious reservations").unwrap();
        let path = state.path().join("x");
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert!(matches!(state.read("x"), Err(StateError::Damaged { .. })), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            assert!(matches!(state.read("x"), Err(StateError::Damaged { .. })), "bit {bit}");
        }
        fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
        assert!(matches!(state.read("x"), Err(StateError::Damaged { .. })));
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_record() {
        let (_root, state) = directory();
        state.write("x", b"old").unwrap();
        fs::write(state.path().join("x.new"), b"half of the n").unwrap();
        assert_eq!(state.read("x").unwrap().as_deref(), Some(&b"old"[..]));
        state.write("x", b"new").unwrap();
        assert_eq!(state.read("x").unwrap().as_deref(), Some(&b"new"[..]));
        assert!(!state.path().join("x.new").exists());
    }

    #[test]
    fn a_record_that_was_answered_as_failed_is_not_there_at_the_next_start() {
        let (_root, state) = directory();
        let fails = || Err(io::Error::other("no power"));
        assert!(matches!(state.write_then("x", b"refused", fails), Err(StateError::Io { .. })));
        assert_eq!(state.read("x").unwrap(), None);
        state.write("x", b"old").unwrap();
        assert!(matches!(state.write_then("x", b"refused", fails), Err(StateError::Io { .. })));
        assert_eq!(state.read("x").unwrap().as_deref(), Some(&b"old"[..]));
        state.write("x", b"new").unwrap();
        assert_eq!(state.read("x").unwrap().as_deref(), Some(&b"new"[..]));
        let left: Vec<_> =
            fs::read_dir(state.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "the record and the lock: {left:?}");
    }

    #[test]
    fn a_failed_write_leaves_the_old_record() {
        let (_root, state) = directory();
        state.write("x", b"old").unwrap();
        // A directory in the place of the new file makes the write fail, also for root.
        fs::create_dir(state.path().join("x.new")).unwrap();
        assert!(matches!(state.write("x", b"new"), Err(StateError::Io { .. })));
        assert_eq!(state.read("x").unwrap().as_deref(), Some(&b"old"[..]));
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
        let why = StateDir::open_in_turn(&path, |_| panic!("it serves")).unwrap_err().to_string();
        assert!(why.contains("in use by another daemon (process"), "{why}");
        state.say_stopping();
        let why = StateDir::open(&path).unwrap_err().to_string();
        assert!(why.contains("is still stopping") && !why.contains("--state"), "{why}");
        let (told, heard) = std::sync::mpsc::channel();
        let there = path.clone();
        let next = thread::spawn(move || {
            StateDir::open_in_turn(&there, |why| told.send(why.to_string()).unwrap()).map(drop)
        });
        assert!(heard.recv_timeout(Duration::from_secs(30)).unwrap().contains("still stopping"));
        assert!(!next.is_finished());
        drop(state);
        next.join().unwrap().unwrap();
    }
}
