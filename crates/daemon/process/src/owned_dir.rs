//! Private files: directories that other users cannot change, files in them, and the users at the other end
//! of Unix sockets.
//!
//! Invariant: only its owner can change the contents of a [`OwnedDir`]. It is used through its descriptor, so
//! later changes to its path have no effect.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::{exit::Failure, random};

/// Others may write: group or world.
const GROUP_OR_WORLD_WRITABLE: u32 = 0o022;
/// Only the world; of a directory's parents no more is asked, since a user's own group is often theirs.
const WORLD_WRITABLE: u32 = 0o002;
/// Who may write may not remove or rename what others made.
const STICKY_BIT: u32 = 0o1000;

/// The option that names the control socket, and so where all that stands beside it is.
const CONTROL_OPTION: &str = "--control";

/// A directory whose owner alone can change what is in it.
#[derive(Debug)]
pub struct OwnedDir {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// The user of this process.
pub fn current_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl OwnedDir {
    /// One of this user's, made (mode 0700) if it is not there.
    ///
    /// # Errors
    /// One that is not ours, or that others can change or replace: says what to do.
    pub fn create(path: &Path) -> Result<OwnedDir, Failure> {
        OwnedDir::create_for_option(path, CONTROL_OPTION)
    }

    /// The same; `option` is that of the command line by which another directory is named.
    ///
    /// # Errors
    /// As [`OwnedDir::create`].
    pub fn create_for_option(path: &Path, option: &str) -> Result<OwnedDir, Failure> {
        let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
        // Nothing is made where nothing can be safe.
        if let Some(parent) = path.ancestors().skip(1).find(|parent| entry_exists(parent)) {
            check_ancestors(parent, option)?;
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let dir = OwnedDir::open(path).map_err(failed)?;
        match dir.owner == current_uid() {
            true => dir.check_owner_only(option),
            false => Err(foreign_owner_failure(path, dir.owner, option)),
        }
    }

    /// The same of a directory that may be named by a symbolic link, if the link is this user's or root's.
    ///
    /// # Errors
    /// As [`OwnedDir::create`].
    pub fn create_through_link(path: &Path, option: &str) -> Result<OwnedDir, Failure> {
        let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
        match path.symlink_metadata() {
            Ok(link) if link.is_symlink() && link.uid() != current_uid() && link.uid() != 0 => {
                Err(foreign_owner_failure(path, link.uid(), option))
            }
            Ok(link) if link.is_symlink() => {
                check_ancestors(path.parent().unwrap_or(path), option)?;
                OwnedDir::create_for_option(&fs::canonicalize(path).map_err(failed)?, option)
            }
            _ => OwnedDir::create_for_option(path, option),
        }
    }

    /// One that is there: this user's, or for root anybody's, who is its [`OwnedDir::owner_uid`]. `None`: there is none.
    ///
    /// # Errors
    /// As [`OwnedDir::create`].
    pub fn find_existing(path: &Path) -> Result<Option<OwnedDir>, Failure> {
        match OwnedDir::open(path) {
            Ok(dir) if dir.owner == current_uid() || current_uid() == 0 => {
                dir.check_owner_only(CONTROL_OPTION).map(Some)
            }
            Ok(dir) => Err(Failure::failed(format!(
                "{} belongs to another user ({}) and is not trusted",
                path.display(),
                dir.owner
            ))),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(Failure::failed(format!("{}: {why}", path.display()))),
        }
    }

    fn open(path: &Path) -> io::Result<OwnedDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let owner = rustix::fs::fstat(&fd)?.st_uid;
        Ok(OwnedDir { fd, path: path.to_owned(), owner })
    }

    fn check_owner_only(self, option: &str) -> Result<OwnedDir, Failure> {
        let status = rustix::fs::fstat(&self.fd)
            .map_err(|why| Failure::failed(format!("{}: {why}", self.path.display())))?;
        if status.st_mode & GROUP_OR_WORLD_WRITABLE != 0 {
            return Err(writable_failure(&self.path, option));
        }
        match self.path.parent() {
            Some(parent) => check_ancestors(parent, option).map(|()| self),
            None => Ok(self),
        }
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whose it is.
    pub fn owner_uid(&self) -> u32 {
        self.owner
    }

    /// The names in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn entry_names(&self) -> io::Result<Vec<OsString>> {
        use std::os::unix::ffi::OsStrExt;
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let name = |entry: Result<rustix::fs::DirEntry, Errno>| {
            entry.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
        };
        let names = entries.map(name).filter(|name| !matches!(name, Ok(name) if name == "." || name == ".."));
        Ok(names.collect::<Result<_, Errno>>()?)
    }

    /// Opens a file of this user's for writing, which keeps what it holds; makes it if there is none.
    ///
    /// # Errors
    /// Anything else than such a file, through whatever link (`PermissionDenied`); what the system says.
    pub fn open_or_create_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?);
        let facts = file.metadata()?;
        match facts.is_file() && facts.uid() == self.owner && facts.mode() & GROUP_OR_WORLD_WRITABLE == 0 {
            true => Ok(file),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Makes a file that is not there.
    ///
    /// # Errors
    /// `AlreadyExists`; what the system says.
    pub fn create_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// What a file of its owner says that nobody else can write, at most `bytes_max` bytes of it.
    ///
    /// # Errors
    /// Anything else than such a file (`PermissionDenied`, `InvalidData`); what the system says.
    pub fn read_trusted(&self, name: &OsStr, bytes_max: u64) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.fd, name, flags, Mode::empty())?);
        let facts = file.metadata()?;
        if !facts.is_file() || facts.uid() != self.owner || facts.mode() & GROUP_OR_WORLD_WRITABLE != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut bytes = Vec::new();
        file.take(bytes_max + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > bytes_max {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too long")),
            false => Ok(bytes),
        }
    }

    /// Makes a file; who looks sees all of it or nothing, also after the power has failed.
    ///
    /// # Errors
    /// `AlreadyExists` if there is one of that name; what the system says.
    pub fn write_new_file(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.write_and_rename(name, bytes, RenameFlags::NOREPLACE)
    }

    /// Makes a file in place of the one of that name; who looks sees all of either.
    ///
    /// # Errors
    /// What the system says.
    pub fn replace_file(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        self.write_and_rename(name, bytes, RenameFlags::empty())
    }

    fn write_and_rename(&self, name: &OsStr, bytes: &[u8], how: RenameFlags) -> io::Result<()> {
        let mut new = OsString::from(format!(".{:016x}.", u64::from_ne_bytes(random::random_bytes()?)));
        new.push(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&self.fd, &new, flags, Mode::RUSR | Mode::WUSR)?);
        // Synced before it has its name: else a failure of the power may leave the name with an empty file.
        let written = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| Ok(rustix::fs::renameat_with(&self.fd, &new, &self.fd, name, how)?));
        written.inspect_err(|_| drop(self.remove_file(&new)))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }
}

/// Makes the directory of a socket (mode 0700) if it is not there, and sees to it that nobody but its owner and
/// root can put another socket in this one's place.
///
/// # Errors
/// A directory that does not do: says what to do.
pub fn make_socket_dir(path: &Path) -> Result<(), Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    if let Some(parent) = path.ancestors().find(|parent| entry_exists(parent)) {
        check_ancestors(parent, CONTROL_OPTION)?;
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    check_ancestors(path, CONTROL_OPTION)?;
    let facts = fs::metadata(path).map_err(failed)?;
    if facts.uid() != current_uid() && facts.uid() != 0 {
        return Err(Failure::failed(format!(
            "{} belongs to another user ({}), who could replace the socket: use a directory of your own \
             (--control)",
            path.display(),
            facts.uid()
        )));
    }
    match facts.mode() & GROUP_OR_WORLD_WRITABLE != 0 && facts.mode() & STICKY_BIT == 0 {
        true => Err(writable_failure(path, CONTROL_OPTION)),
        false => Ok(()),
    }
}

fn entry_exists(path: &Path) -> bool {
    !path.as_os_str().is_empty() && path.symlink_metadata().is_ok()
}

/// Whether no directory on the way lets everybody replace what is in it.
fn check_ancestors(path: &Path, option: &str) -> Result<(), Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let failed = |why: io::Error| Failure::failed(format!("{}: {why}", path.display()));
    let real = fs::canonicalize(path).map_err(failed)?;
    for on_the_way in real.ancestors() {
        let mode = fs::metadata(on_the_way).map_err(failed)?.mode();
        if mode & WORLD_WRITABLE != 0 && mode & STICKY_BIT == 0 {
            return Err(writable_failure(on_the_way, option));
        }
    }
    Ok(())
}

fn foreign_owner_failure(path: &Path, owner: u32, option: &str) -> Failure {
    Failure::failed(format!(
        "{} belongs to another user ({owner}): remove it, or use a directory of your own ({option})",
        path.display()
    ))
}

fn writable_failure(path: &Path, option: &str) -> Failure {
    Failure::failed(format!(
        "{} can be written by other users, who could replace files in it: remove that permission (chmod go-w), or \
         use another directory ({option})",
        path.display()
    ))
}

/// The process at the other end of a connected Unix socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its user.
    pub user: u32,
    /// Its number; 0 if it is in a PID namespace that we do not see.
    pub pid: u32,
}

impl PeerProcess {
    /// Of this socket.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(socket: impl AsFd) -> io::Result<PeerProcess> {
        let credentials = rustix::net::sockopt::socket_peercred(socket)?;
        let pid = u32::try_from(credentials.pid.as_raw_pid()).unwrap_or(0);
        Ok(PeerProcess { user: credentials.uid.as_raw(), pid })
    }

    /// Whether it may tell us what to do: it is of our own user, or root.
    pub fn is_trusted(self) -> bool {
        self.user == 0 || self.user == current_uid()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_write_or_replace_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (open, inner) = (root.path().join("open"), root.path().join("open/inner"));
        fs::create_dir(&open).unwrap();
        set_mode(&open, 0o777);
        for why in [OwnedDir::create(&inner).unwrap_err(), make_socket_dir(&open).unwrap_err()] {
            assert!(why.message.contains("can be written by other users"), "{why}");
        }
        assert!(!inner.exists(), "who is refused has changed nothing");
        set_mode(&open, 0o1777);
        assert!(make_socket_dir(&open).is_ok());
        assert!(OwnedDir::create(&inner).is_ok());
        set_mode(&inner, 0o770);
        assert!(
            OwnedDir::create(&inner).is_err()
                && OwnedDir::find_existing(&inner).is_err()
                && make_socket_dir(&inner).is_err()
        );
        let link = root.path().join("link");
        symlink(root.path(), &link).unwrap();
        assert!(OwnedDir::create(&link).is_err(), "a link is nobody's directory");
        assert!(OwnedDir::find_existing(&root.path().join("none")).unwrap().is_none());
    }

    #[test]
    fn a_file_is_made_through_no_link_and_over_no_other() {
        let root = tempfile::tempdir().unwrap();
        let dir = OwnedDir::create(&root.path().join("dir")).unwrap();
        let victim = root.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, dir.path().join("note")).unwrap();
        let name = OsStr::new("note");
        assert!(dir.read_trusted(name, 100).is_err());
        assert_eq!(dir.write_new_file(name, b"x").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(dir.entry_names().unwrap(), ["note"], "nothing else is left");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        dir.remove_file(name).unwrap();
        dir.write_new_file(name, b"said").unwrap();
        assert_eq!(dir.read_trusted(name, 4).unwrap(), b"said");
        assert!(dir.read_trusted(name, 3).is_err());
        set_mode(&dir.path().join("note"), 0o622);
        assert!(dir.read_trusted(name, 4).is_err(), "others can write it");
    }
}
