//! Backups of the state directory: one file with all records and the configuration, and what is not in it.
//!
//! It is a tar archive. `manifest.json` comes first and has the version of the format and the SHA-256 of each file;
//! `state/` has the records, `configuration/` the files of the configuration; `manifest.sha256` comes last, so a file
//! that was cut off is found out. A backup holds secrets: those of the configuration, which is in clear text.
//!
//! Invariant: what [`Backup::parse`] gives was checked whole, so nothing is restored of a damaged backup.

mod take;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt, io,
    io::Read,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::state::{
    RECORD_BYTES_MAX, StateDir, StateError, configuration,
    copy::{RecordBytes, StateCopy, check_record, is_record_name},
    restore::STAGED,
};
use config::ConfigFiles;

pub use take::BackupSource;

const FORMAT: &str = "blockwire-backup";
/// Version of the format; a change that older programs would misread raises it.
const VERSION: u32 = 1;
const MANIFEST: &str = "manifest.json";
const SEAL: &str = "manifest.sha256";
const STATE: &str = "state/";
const CONFIGURATION: &str = "configuration/";
/// Most files in a backup: two records for each of 65,535 volumes, and the rest.
const FILES_MAX: usize = 200_000;
/// Largest backup, bytes.
pub const BACKUP_BYTES_MAX: u64 = 1 << 30;

/// Why a backup cannot be made, read or restored.
#[derive(Debug)]
pub enum BackupError {
    /// The state directory.
    State(StateError),
    /// It is not what was written: how that shows.
    Damaged(String),
    /// A later version wrote it.
    Newer {
        /// Of the format.
        version: u32,
        /// The program.
        program: String,
    },
    /// The directory has something in it.
    NotEmpty {
        /// The directory.
        path: PathBuf,
    },
    /// The system said no.
    Io {
        /// With which file or directory.
        path: PathBuf,
        /// What it said.
        why: io::Error,
    },
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupError::State(why) => why.fmt(f),
            BackupError::Damaged(why) => {
                write!(f, "the backup is damaged ({why}): nothing was restored; use another copy of it")
            }
            BackupError::Newer { version, program } => write!(
                f,
                "the backup was written by a later version, {program} (format {version}, this program reads {VERSION}): \
                 nothing was restored; restore it with that version"
            ),
            BackupError::NotEmpty { path } => write!(
                f,
                "{} is not empty: nothing was restored; name another directory, or move its records aside with --replace",
                path.display()
            ),
            BackupError::Io { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for BackupError {}

impl From<StateError> for BackupError {
    fn from(why: StateError) -> Self {
        BackupError::State(why)
    }
}

/// What is in a backup, and what is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// The program that wrote it, with its version.
    pub program: String,
    /// When, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The state directory.
    pub directory: PathBuf,
    /// The files.
    pub files: Vec<ManifestFile>,
    /// What it does not hold, each with the reason or with what to do.
    pub not_included: Vec<String>,
}

/// One file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its name in the archive.
    pub name: String,
    /// Where it was, of a file of the configuration.
    pub path: Option<PathBuf>,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
    /// Whether it may hold secrets in clear text.
    pub secret: bool,
}

/// Only what every version has.
#[derive(Deserialize)]
struct ManifestProbe {
    format: String,
    version: u32,
    program: String,
}

/// A backup that was checked.
#[derive(Debug)]
pub struct Backup {
    /// What is in it.
    pub manifest: Manifest,
    records: Vec<(String, RecordBytes)>,
}

/// A volume, whose blocks no backup holds.
#[derive(Clone, Debug)]
pub struct BackedVolume {
    /// Its name.
    pub name: String,
    /// What it is.
    pub spec: String,
    /// By which its records are found again, where it is served: a copy of its file needs it in the configuration.
    pub uuid: Option<Uuid>,
}

impl fmt::Display for BackedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackedVolume { name, spec, uuid } = self;
        let uuid = uuid.map(|uuid| format!(", UUID {uuid}")).unwrap_or_default();
        write!(f, "the blocks of volume {name} ({spec}){uuid}")
    }
}

/// What a backup is made of.
#[derive(Debug)]
pub struct BackupContent<'a> {
    /// The state directory.
    pub directory: &'a Path,
    /// Its records.
    pub state: StateCopy,
    /// The configuration in force.
    pub configuration: &'a ConfigFiles,
    /// Volumes: their blocks are elsewhere.
    pub volumes: Vec<BackedVolume>,
    /// What else is not in it.
    pub lacks: Vec<String>,
}

impl BackupContent<'_> {
    /// The bytes of the file.
    ///
    /// # Errors
    /// What the archive cannot take.
    pub fn into_bytes(self) -> Result<Vec<u8>, BackupError> {
        let mut files: Vec<(ManifestFile, Vec<u8>)> = Vec::new();
        for (name, RecordBytes(bytes)) in self.state.records {
            let secret = name == configuration::RECORD;
            files.push((manifest_file(format!("{STATE}{name}"), None, &bytes, secret), bytes));
        }
        for (at, file) in self.configuration.0.iter().enumerate() {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy();
            // The first is the file itself, the others are of the conf.d beside it.
            let name = if at == 0 {
                format!("{CONFIGURATION}{name}")
            } else {
                format!("{CONFIGURATION}conf.d/{name}")
            };
            let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.clone());
            let bytes = file.text.clone().into_bytes();
            files.push((manifest_file(name, Some(path), &bytes, !file.world_readable), bytes));
        }
        let mut not_included: Vec<String> = self.volumes.iter().map(ToString::to_string).collect();
        let secret = |path: PathBuf| format!("the file {}, which the configuration names", path.display());
        not_included.extend(self.configuration.secret_files().into_iter().map(secret));
        let other = |name: String| match name.as_str() {
            "machine-id" => {
                "machine-id, by which this machine is told from others as an initiator".to_owned()
            }
            name => format!("{name}, which is no record of a daemon"),
        };
        not_included.extend(self.state.others.into_iter().map(other));
        not_included.extend(self.lacks);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            program: format!("blockwire {}", env!("CARGO_PKG_VERSION")),
            created_unix_seconds: now,
            directory: self.directory.to_owned(),
            files: files.iter().map(|(file, _)| file.clone()).collect(),
            not_included,
        };
        write_archive(&manifest, &files).map_err(|why| BackupError::Io { path: MANIFEST.into(), why })
    }
}

fn manifest_file(name: String, path: Option<PathBuf>, bytes: &[u8], secret: bool) -> ManifestFile {
    ManifestFile { name, path, bytes: bytes.len() as u64, sha256: sha256(bytes), secret }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_archive(manifest: &Manifest, files: &[(ManifestFile, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(manifest.created_unix_seconds);
        archive.append_data(&mut header, name, bytes)
    };
    let text = serde_json::to_vec_pretty(manifest)?;
    append(MANIFEST, &text)?;
    for (file, bytes) in files {
        append(&file.name, bytes)?;
    }
    append(SEAL, sha256(&text).as_bytes())?;
    archive.into_inner()
}

impl Backup {
    /// Reads a backup, and checks all of it.
    ///
    /// # Errors
    /// One that is damaged, or of a later version.
    pub fn parse(bytes: &[u8]) -> Result<Backup, BackupError> {
        let damaged = BackupError::Damaged;
        let mut files = read_archive(bytes).map_err(damaged)?;
        let text = files.remove(MANIFEST).ok_or_else(|| damaged(format!("it has no {MANIFEST}")))?;
        let no_manifest = |why: serde_json::Error| damaged(format!("{MANIFEST}: {why}"));
        let ManifestProbe { format, version, program } =
            serde_json::from_slice(&text).map_err(no_manifest)?;
        if format != FORMAT {
            return Err(damaged(format!("{MANIFEST} says it is \"{format}\"")));
        }
        if version > VERSION {
            return Err(BackupError::Newer { version, program });
        }
        match files.remove(SEAL) {
            Some(seal) if seal == sha256(&text).as_bytes() => {}
            Some(_) => return Err(damaged(format!("the checksum of {MANIFEST} is wrong"))),
            None => return Err(damaged(format!("it was cut off: it has no {SEAL}"))),
        }
        let manifest: Manifest = serde_json::from_slice(&text).map_err(no_manifest)?;
        let mut records = Vec::new();
        for file in &manifest.files {
            let name = &file.name;
            let bytes = files.remove(name).ok_or_else(|| damaged(format!("{name} is missing")))?;
            if bytes.len() as u64 != file.bytes || sha256(&bytes) != file.sha256 {
                return Err(damaged(format!("the checksum of {name} is wrong")));
            }
            let Some(record) = name.strip_prefix(STATE) else { continue };
            if !is_record_name(record) {
                return Err(damaged(format!("no record is called {name}")));
            }
            check_record(&bytes).map_err(|why| damaged(format!("{name}: {why}")))?;
            records.push((record.to_owned(), RecordBytes(bytes)));
        }
        match files.keys().next() {
            Some(extra) => Err(damaged(format!("{MANIFEST} does not name {extra}"))),
            None => Ok(Backup { manifest, records }),
        }
    }

    /// Makes its records those of a state directory. Gives the directory that has the old ones, if there were any.
    ///
    /// # Errors
    /// A directory that a daemon uses, or that has something in it unless `replaces`. Nothing was changed then.
    pub fn restore(&self, directory: &Path, replaces: bool) -> Result<Option<PathBuf>, BackupError> {
        let failed = |why| BackupError::Io { path: directory.to_owned(), why };
        // One that has a lock may be in use, which is said first. One without is not made before the last check.
        let held = if directory.join("lock").exists() { Some(StateDir::open(directory)?) } else { None };
        let is_occupied = match std::fs::read_dir(directory) {
            Ok(entries) => {
                // What a restore leaves that had no space is no reason to refuse the next.
                let is_left = |name: &OsStr| name == "lock" || name == STAGED;
                entries.flatten().any(|entry| !is_left(&entry.file_name()))
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => false,
            Err(why) => return Err(failed(why)),
        };
        if is_occupied && !replaces {
            return Err(BackupError::NotEmpty { path: directory.to_owned() });
        }
        let state = match held {
            Some(state) => state,
            None => StateDir::open(directory)?,
        };
        let replaced = state.replace_records(&self.records)?;
        Ok(replaced.map(|name| state.path().join(name)))
    }

    /// How many records it has.
    pub fn records(&self) -> usize {
        self.records.len()
    }
}

fn read_archive(bytes: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let said = |why: io::Error| why.to_string();
    let mut files = BTreeMap::new();
    let mut archive = tar::Archive::new(bytes);
    for entry in archive.entries().map_err(said)? {
        let mut entry = entry.map_err(said)?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(|_| "a name is no text")?;
        if entry.header().entry_type() != tar::EntryType::Regular {
            return Err(format!("{name} is no file"));
        }
        if entry.size() > RECORD_BYTES_MAX || files.len() >= FILES_MAX {
            return Err(format!("{name} is too long, or one file too many"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(said)?;
        if content.len() as u64 != entry.size() {
            return Err(format!("{name} was cut off"));
        }
        if files.insert(name.clone(), content).is_some() {
            return Err(format!("{name} is in it twice"));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::ConfigFile;

    fn state() -> (tempfile::TempDir, StateDir) {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(&root.path().join("from")).unwrap();
        state.write_record("identities", b"[]").unwrap();
        state.write_record("volumes", b"[]").unwrap();
        (root, state)
    }

    fn backup(state: &StateDir) -> Vec<u8> {
        let text = "[auth]\ndhchap_key_file = \"a.key\"\n".to_owned();
        let file = ConfigFile { path: "/etc/bw/blockwire.toml".into(), text, world_readable: false };
        let content = BackupContent {
            directory: state.path(),
            state: state.copy_records().unwrap(),
            configuration: &ConfigFiles(vec![file]),
            volumes: vec![BackedVolume { name: "a".to_owned(), spec: "file:/srv/a".to_owned(), uuid: None }],
            lacks: Vec::new(),
        };
        content.into_bytes().unwrap()
    }

    #[test]
    fn what_is_not_in_it_is_told_and_secrets_are_marked() {
        let (_root, state) = state();
        let Manifest { files, not_included, .. } = Backup::parse(&backup(&state)).unwrap().manifest;
        let said: Vec<(&str, bool)> = files.iter().map(|file| (file.name.as_str(), file.secret)).collect();
        let records = [("state/identities", false), ("state/volumes", false)];
        assert_eq!(said, [&records[..], &[("configuration/blockwire.toml", true)]].concat());
        let said = not_included.join("\n");
        assert!(said.contains("volume a (file:/srv/a)") && said.contains("/etc/bw/a.key"), "{said}");
    }

    /// Each byte is changed, and the file is cut off everywhere: it is refused, or says the same as before.
    #[test]
    fn a_damaged_backup_is_refused_or_says_the_same() {
        let (_root, state) = state();
        let whole = backup(&state);
        let Backup { manifest, records } = Backup::parse(&whole).unwrap();
        let mut refused = 0;
        let mut check = |bytes: &[u8], at: usize| match Backup::parse(bytes) {
            Ok(read) => assert!(read.manifest == manifest && read.records == records, "byte {at}"),
            Err(BackupError::Damaged(_)) => refused += 1,
            Err(why) => panic!("byte {at}: {why}"),
        };
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x21;
            check(&damaged, at);
            check(&whole[..at], at);
        }
        assert!(refused > whole.len() / 2, "{refused} of {}", whole.len());
    }

    #[test]
    fn a_backup_of_a_later_version_is_refused_by_its_name() {
        let (_root, state) = state();
        let mut manifest = Backup::parse(&backup(&state)).unwrap().manifest;
        (manifest.version, manifest.program) = (VERSION + 1, "blockwire 99".to_owned());
        let why = Backup::parse(&write_archive(&manifest, &[]).unwrap()).unwrap_err();
        assert!(
            matches!(why, BackupError::Newer { .. }) && why.to_string().contains("blockwire 99"),
            "{why}"
        );
        let strange =
            ManifestFile { name: "state/../x".to_owned(), ..manifest_file(String::new(), None, b"", false) };
        (manifest.version, manifest.files) = (VERSION, vec![strange]);
        let why = Backup::parse(&write_archive(&manifest, &[]).unwrap()).unwrap_err();
        assert!(matches!(why, BackupError::Damaged(_)), "{why}");
    }

    #[test]
    fn a_directory_in_use_or_with_something_in_it_is_left_alone() {
        let (root, state) = state();
        let backup = Backup::parse(&backup(&state)).unwrap();
        let used = root.path().join("used");
        let other = StateDir::open(&used).unwrap();
        for replaces in [false, true] {
            let why = backup.restore(&used, replaces).unwrap_err();
            assert!(matches!(why, BackupError::State(StateError::InUse { .. })), "{why}");
        }
        other.write_record("ports", b"[1]").unwrap();
        let before = other.copy_records().unwrap();
        drop(other);
        assert!(matches!(backup.restore(&used, false), Err(BackupError::NotEmpty { .. })));
        let records = |path: &Path| StateDir::open(path).unwrap().copy_records().unwrap().records;
        assert_eq!(records(&used), before.records);
        let foreign = root.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::write(foreign.join("x"), "x").unwrap();
        assert!(matches!(backup.restore(&foreign, false), Err(BackupError::NotEmpty { .. })));
        assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "not even a lock was made");
        let kept = backup.restore(&used, true).unwrap().unwrap();
        assert!(kept.join("ports").exists());
        // One that could not be completed before: its half is not taken for a whole.
        std::fs::create_dir_all(root.path().join("new").join(STAGED)).unwrap();
        std::fs::write(root.path().join("new").join(STAGED).join("ports"), "half").unwrap();
        assert_eq!(backup.restore(&root.path().join("new"), false).unwrap(), None);
        let new = state.copy_records().unwrap().records;
        assert_eq!((records(&used), records(&root.path().join("new"))), (new.clone(), new));
    }
}
