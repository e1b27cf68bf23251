//! The progress of a copy: the file of `copy --resume`.
//!
//! Invariant: no file of the user is ever overwritten. A journal is written beside its destination,
//! exclusively, under an unused name. It is stable before it is renamed, and renamed before the copy
//! continues.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::local_path::{FileKey, parent_directory, sync_directory};
use process::exit::Failure;
use process::random;

/// A journal is a few hundred bytes; what is longer is none.
const JOURNAL_LEN_MAX: u64 = 64 << 10;

/// How far a copy is, as its file says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyJournal {
    /// Which source.
    pub from: String,
    /// Which destination.
    pub to: String,
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes, from the first on, that are stable at the destination.
    pub done: u64,
}

fn error_with_path(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |why| Failure::failed(format!("{}: {why}", path.display()))
}

impl CopyJournal {
    /// Reads one, if there is one.
    ///
    /// # Errors
    /// If something else is there; it is left alone.
    pub fn read(path: &Path) -> Result<Option<CopyJournal>, Failure> {
        let opened =
            OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
        let file = match opened {
            Ok(file) => file,
            Err(why) if why.kind() == io::ErrorKind::NotFound && path.symlink_metadata().is_err() => {
                return Ok(None);
            }
            Err(why) => return Err(error_with_path(path)(why)),
        };
        let none = |why: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "{} is not a resume record of a copy ({why}): name another file, or remove it to start over",
                path.display()
            ))
        };
        if !file.metadata().map_err(error_with_path(path))?.is_file() {
            return Err(none(&"it is no regular file"));
        }
        let mut text = Vec::new();
        file.take(JOURNAL_LEN_MAX).read_to_end(&mut text).map_err(error_with_path(path))?;
        serde_json::from_slice(&text).map(Some).map_err(|why| none(&why))
    }

    /// Refuses a place that is the source or the destination itself.
    pub fn refuse_source_or_destination(
        path: &Path,
        ends: &[(Option<FileKey>, &Path)],
    ) -> Result<(), Failure> {
        let key = path.metadata().ok().map(|meta| FileKey::of_metadata(&meta));
        // Where nothing is yet, the names are compared.
        let name = |path: &Path| -> Option<PathBuf> {
            Some(fs::canonicalize(parent_directory(path)).ok()?.join(path.file_name()?))
        };
        let own = name(path);
        if own.is_none() {
            return Err(Failure::usage(format!("{}: there is no such directory", path.display())));
        }
        let is_end = |(end, at): &(Option<FileKey>, &Path)| key.is_some() && key == *end || own == name(at);
        match ends.iter().any(is_end) {
            true => Err(Failure::usage(format!(
                "{} is the source or the destination: name another file for the record",
                path.display()
            ))),
            false => Ok(()),
        }
    }

    /// Writes it, and makes it stable.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let (file, beside) = create_temporary_beside(path).map_err(error_with_path(path))?;
        self.write_and_rename(path, file, &beside).map_err(|why| {
            let _ = fs::remove_file(&beside);
            error_with_path(path)(why)
        })
    }

    fn write_and_rename(&self, path: &Path, mut file: File, beside: &Path) -> io::Result<()> {
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(beside, path)?;
        sync_directory(path)
    }
}

/// A file of a name that nobody has, in the directory of another.
fn create_temporary_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut tries = 0;
    loop {
        let name = format!(".blockwire-copy-{:032x}", u128::from_be_bytes(random::random_bytes()?));
        let beside = parent_directory(path).join(name);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists && tries < 8 => tries += 1,
            other => return other.map(|file| (file, beside)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(done: u64) -> CopyJournal {
        CopyJournal { from: "a".to_owned(), to: "b".to_owned(), bytes: 9, done }
    }

    #[test]
    fn a_journal_takes_its_place_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        // Whatever a user may have there.
        let names = ["db.new", "db.copy.new", "db.tmp", "db.copy~", ".db.copy.swp"];
        names.iter().for_each(|name| fs::write(at(name), name).unwrap());
        for done in 0..3 {
            journal(done).write(&at("db.copy")).unwrap();
            assert_eq!(CopyJournal::read(&at("db.copy")).unwrap(), Some(journal(done)));
        }
        for name in names {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), name);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), names.len() + 1, "something was left behind");
    }

    #[test]
    fn what_is_no_journal_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes");
        assert_eq!(CopyJournal::read(&path).unwrap(), None);
        fs::write(&path, "dear diary").unwrap();
        assert!(CopyJournal::read(&path).is_err() && CopyJournal::read(dir.path()).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear diary");
    }

    #[test]
    fn a_journal_is_not_the_source_nor_the_destination() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("disk"), dir.path().join("link"));
        fs::write(&path, "x").unwrap();
        fs::hard_link(&path, &link).unwrap();
        let key = Some(FileKey::of_metadata(&path.metadata().unwrap()));
        let absent = dir.path().join("absent");
        assert!(CopyJournal::refuse_source_or_destination(&link, &[(key, &path)]).is_err());
        assert!(
            CopyJournal::refuse_source_or_destination(&absent, &[(None, &dir.path().join("./absent"))])
                .is_err()
        );
        assert!(CopyJournal::refuse_source_or_destination(&absent, &[(key, &path)]).is_ok());
        assert!(
            CopyJournal::refuse_source_or_destination(&dir.path().join("no/where"), &[(key, &path)]).is_err()
        );
    }
}
