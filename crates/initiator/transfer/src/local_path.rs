//! A local file or device as a destination: checked first, changed later.
//!
//! Invariant: [`LocalPath::inspect`] creates, truncates and changes nothing. The file that it opened and locked
//! is the one written to afterwards, even if its name has changed by then. A file locked by another process
//! (a daemon that serves it) is always refused; one that the system uses (a mount, swap, a loop device) is
//! refused without `--force`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxFlags};
use rustix::io::Errno;

use engine::state::file_identity::FileIdentity as Identity;
use engine::store::device_identity;
use process::exit::Failure;

/// How long a lock is waited for: anyone who looks what a new device is holds it for a moment.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// What tells a file or device from every other of this machine while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKey {
    /// A file: device and inode.
    File(u64, u64),
    /// A block device: its number, whatever name leads to it.
    Device(u64),
}

impl FileKey {
    /// Of what is open.
    pub fn of_metadata(meta: &fs::Metadata) -> FileKey {
        match meta.file_type().is_block_device() {
            true => FileKey::Device(meta.rdev()),
            false => FileKey::File(meta.dev(), meta.ino()),
        }
    }

    /// What this lies on, byte for byte: the disk of a partition, the file of a loop device.
    fn backing_key(self) -> Option<FileKey> {
        let FileKey::Device(number) = self else { return None };
        let directory = sysfs_device_path(number);
        if directory.join("partition").exists() {
            let disk = fs::read_to_string(directory.join("../dev")).ok()?;
            let (major, minor) = disk.trim().split_once(':')?;
            return Some(FileKey::Device(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)));
        }
        let file = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
        fs::metadata(file.trim_end_matches('\n')).ok().map(|meta| FileKey::of_metadata(&meta))
    }

    /// Whether a change of one is a change of the other.
    pub fn overlaps(self, other: FileKey) -> bool {
        let lies_on = |one: FileKey, other: FileKey| {
            std::iter::successors(Some(one), |key| key.backing_key()).take(8).any(|key| key == other)
        };
        lies_on(self, other) || lies_on(other, self)
    }
}

fn sysfs_device_path(number: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    format!("/sys/dev/block/{major}:{minor}").into()
}

/// What tells a file from a later one of the same inode, over restarts too; a device from others that get its number.
pub fn file_identity(file: &File) -> io::Result<String> {
    let meta = file.metadata()?;
    let FileKey::File(device, inode) = FileKey::of_metadata(&meta) else {
        let number = meta.rdev();
        let numbers = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        return Ok(match device_identity(number) {
            Identity::Device { wwid } => format!("device {wwid}"),
            Identity::Numbered { set_up: Some(set_up), .. } => format!("device {numbers} of {set_up}"),
            Identity::Numbered { set_up: None, .. } => format!("device {numbers}"),
            Identity::File { .. } | Identity::Image { .. } | Identity::Export { .. } => {
                format!("device {numbers}")
            }
        });
    };
    let more = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
    let known = StatxFlags::from_bits_retain(more.stx_mask).contains(StatxFlags::BTIME);
    let born = match known {
        true => format!("{}.{:09}", more.stx_btime.tv_sec, more.stx_btime.tv_nsec),
        false => "-".to_owned(),
    };
    Ok(format!("file {device}:{inode} of {born}"))
}

/// What stands at a path.
#[derive(Debug)]
enum PathTarget {
    /// Nothing.
    Absent,
    /// A regular file.
    Regular(File),
    /// A block device.
    Device(File),
    /// A pipe, or a device that takes a stream.
    Stream(File),
}

/// See the module.
#[derive(Debug)]
pub struct LocalPath {
    path: PathBuf,
    what: PathTarget,
    /// It did not exist before [`LocalPath::create_file`].
    is_ours: bool,
}

fn error_with_path(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |why| Failure::failed(format!("{}: {why}", path.display()))
}

impl LocalPath {
    /// Looks at a path, opens what is there and locks it.
    ///
    /// # Errors
    /// If it is in use, or cannot be written to.
    pub fn inspect(path: &Path, force: bool) -> Result<LocalPath, Failure> {
        let what = match path.metadata() {
            Err(why) if why.kind() == io::ErrorKind::NotFound => check_creatable(path)?,
            Err(why) => return Err(error_with_path(path)(why)),
            Ok(meta) if meta.file_type().is_block_device() => open_device(path, force)?,
            Ok(meta) => {
                let file = open_for_writing(path, meta.is_file())?;
                // It was only opened so as not to wait for the one at a pipe's other end.
                let flags =
                    rustix::fs::fcntl_getfl(&file).map_err(|why| error_with_path(path)(why.into()))?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)
                    .map_err(|why| error_with_path(path)(why.into()))?;
                // What was opened is judged, not what its name led to before.
                let meta = file.metadata().map_err(error_with_path(path))?;
                match (meta.is_file(), meta.file_type().is_block_device()) {
                    (true, _) => claim_regular_file(path, file, &meta, force)?,
                    (false, true) => {
                        return Err(Failure::failed(format!("{}: it changes now", path.display())));
                    }
                    (false, false) => PathTarget::Stream(file),
                }
            }
        };
        Ok(LocalPath { path: path.to_owned(), what, is_ours: false })
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self) -> Option<&File> {
        match &self.what {
            PathTarget::Absent => None,
            PathTarget::Regular(file) | PathTarget::Device(file) | PathTarget::Stream(file) => Some(file),
        }
    }

    /// What it is; `None`: nothing yet.
    pub fn file_key(&self) -> Result<Option<FileKey>, Failure> {
        let meta = self.file().map(File::metadata).transpose().map_err(error_with_path(&self.path))?;
        Ok(meta.map(|meta| FileKey::of_metadata(&meta)))
    }

    /// What tells it from a later one of its name; `None`: nothing is there yet.
    pub fn identity(&self) -> Result<Option<String>, Failure> {
        self.file().map(file_identity).transpose().map_err(error_with_path(&self.path))
    }

    /// Bytes that it has and keeps; `None`: it becomes as long as what is written.
    pub fn capacity(&self) -> Result<Option<u64>, Failure> {
        match &self.what {
            PathTarget::Device(file) => device_size(file).map(Some).map_err(error_with_path(&self.path)),
            PathTarget::Absent | PathTarget::Regular(_) | PathTarget::Stream(_) => Ok(None),
        }
    }

    /// What is there, opened once more; `None`: nothing is there yet.
    pub fn reopen_for_reading(&self) -> Result<Option<File>, Failure> {
        self.file().map(File::try_clone).transpose().map_err(error_with_path(&self.path))
    }

    /// Whether there is nothing at its path.
    pub fn is_absent(&self) -> bool {
        matches!(self.what, PathTarget::Absent)
    }

    /// Whether it has offsets: whether it is a file or a block device, or will be.
    pub fn is_seekable(&self) -> bool {
        !matches!(self.what, PathTarget::Stream(_))
    }

    /// Makes the file if there is none, durably: one that somebody else has made since is left alone.
    pub fn create_file(&mut self) -> Result<(), Failure> {
        if !self.is_absent() {
            return Ok(());
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&self.path);
        let file = file.map_err(error_with_path(&self.path))?;
        lock_exclusive(&self.path, &file)?;
        sync_directory(&self.path).map_err(error_with_path(&self.path))?;
        (self.what, self.is_ours) = (PathTarget::Regular(file), true);
        Ok(())
    }

    /// Takes away what [`LocalPath::create_file`] made, if it made something.
    pub fn remove_created(self) {
        let is_it = |meta: fs::Metadata| self.file_key() == Ok(Some(FileKey::of_metadata(&meta)));
        if self.is_ours && fs::symlink_metadata(&self.path).is_ok_and(is_it) {
            let _ = fs::remove_file(&self.path);
        }
    }

    /// To be written from its begin: a regular file is emptied and given this length, what is not written
    /// then reads as zero. The second value says whether that is so.
    pub fn open_truncated(mut self, bytes: u64) -> Result<(File, bool), Failure> {
        self.create_file()?;
        let failed = error_with_path(&self.path);
        match self.what {
            PathTarget::Regular(file) => {
                file.set_len(0).and_then(|()| file.set_len(bytes)).map_err(failed)?;
                Ok((file, true))
            }
            PathTarget::Device(file) | PathTarget::Stream(file) => Ok((file, false)),
            PathTarget::Absent => Err(failed(io::ErrorKind::NotFound.into())),
        }
    }

    /// To be gone on with: nothing of it is changed.
    pub fn open_unchanged(self) -> Result<File, Failure> {
        match self.what {
            PathTarget::Regular(file) | PathTarget::Device(file) | PathTarget::Stream(file) => Ok(file),
            PathTarget::Absent => Err(error_with_path(&self.path)(io::ErrorKind::NotFound.into())),
        }
    }
}

fn open_for_writing(path: &Path, is_file: bool) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    // A pipe or a terminal may be for writing alone.
    options.read(is_file).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    match options.open(path) {
        Err(why) if Errno::from_io_error(&why) == Some(Errno::NXIO) => {
            Err(Failure::failed(format!("{}: no process reads from it", path.display())))
        }
        other => other.map_err(error_with_path(path)),
    }
}

/// Whether a file could be made, as far as can be said without making one.
fn check_creatable(path: &Path) -> Result<PathTarget, Failure> {
    if path.symlink_metadata().is_ok() {
        let why = format!("{}: it is a dangling symbolic link: remove it first", path.display());
        return Err(Failure::failed(why));
    }
    let directory = parent_directory(path);
    let access = rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK);
    access.map_err(|why| error_with_path(path)(why.into()))?;
    match path.file_name() {
        Some(_) if !path.as_os_str().as_encoded_bytes().ends_with(b"/") => Ok(PathTarget::Absent),
        _ => Err(Failure::failed(format!("{}: it names no file", path.display()))),
    }
}

fn open_device(path: &Path, force: bool) -> Result<PathTarget, Failure> {
    let try_open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)
    };
    // O_EXCL without O_CREAT asks the kernel whether it uses the device, and keeps it from doing so.
    let file = match try_open(OFlags::EXCL) {
        Err(why) if Errno::from_io_error(&why) == Some(Errno::BUSY) && force => {
            try_open(OFlags::empty()).map_err(error_with_path(path))?
        }
        Err(why) if Errno::from_io_error(&why) == Some(Errno::BUSY) => {
            return Err(in_use_error(
                path,
                "this system (it is mounted, swap, served, or part of another device)",
            ));
        }
        other => other.map_err(error_with_path(path))?,
    };
    if !file.metadata().map_err(error_with_path(path))?.file_type().is_block_device() {
        return Err(Failure::failed(format!("{}: it changes now", path.display())));
    }
    lock_exclusive(path, &file)?;
    Ok(PathTarget::Device(file))
}

fn claim_regular_file(
    path: &Path,
    file: File,
    meta: &fs::Metadata,
    force: bool,
) -> Result<PathTarget, Failure> {
    lock_exclusive(path, &file)?;
    let user = if force { None } else { disk_user_of_file(&file, FileKey::of_metadata(meta)) };
    match user {
        Some(user) => Err(in_use_error(path, &user)),
        None => Ok(PathTarget::Regular(file)),
    }
}

fn in_use_error(path: &Path, user: &str) -> Failure {
    let why = format!("{} is in use by {user}: all data on it would be lost", path.display());
    Failure::usage(format!("{why}; stop using it first, or use --force"))
}

/// Takes the lock that a daemon takes of what it serves. Where nobody can lock, no daemon serves.
fn lock_exclusive(path: &Path, file: &File) -> Result<(), Failure> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(why)) if is_locking_unsupported(&why) => return Ok(()),
            Err(TryLockError::Error(why)) => return Err(error_with_path(path)(why)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => {
                let why = "is locked by another process that serves or writes it: stop that process, or use the \
                           URL of the volume that it serves";
                return Err(Failure::failed(format!("{} {why}", path.display())));
            }
        }
    }
}

fn is_locking_unsupported(why: &io::Error) -> bool {
    matches!(Errno::from_io_error(why), Some(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::INVAL))
}

/// Keeps what is read from being changed meanwhile by who locks it; refuses what somebody writes.
pub fn lock_source_shared(path: &Path, file: &File) -> Result<(), Failure> {
    match try_lock_shared(path, file)? {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{} is open for writing in another process, which may serve it: copy the volume by its URL, or use \
             --force",
            path.display()
        ))),
    }
}

/// Keeps what is read from being changed meanwhile by who locks it; `false`: somebody who may write it has locked it.
pub fn try_lock_shared(path: &Path, file: &File) -> Result<bool, Failure> {
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(why)) if !is_locking_unsupported(&why) => Err(error_with_path(path)(why)),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(true),
    }
}

/// Who uses a regular file of this machine as a disk, as far as the system tells.
pub fn disk_user_of_file(file: &File, key: FileKey) -> Option<String> {
    let is_it = |path: &str| fs::metadata(path).is_ok_and(|meta| FileKey::of_metadata(&meta) == key);
    let line = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim_end_matches('\n').to_owned());
    for entry in directory_entries("/sys/block") {
        if line(entry.join("loop/backing_file")).is_some_and(|backing| is_it(&backing)) {
            return Some(format!("the loop device /dev/{}", entry.file_name()?.to_string_lossy()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swap = |line: &str| {
        line.split_ascii_whitespace().next().is_some_and(|path| is_it(&unescape_proc_path(path)))
    };
    if swaps.lines().skip(1).any(swap) {
        return Some("this system as swap".to_owned());
    }
    for subsystem in directory_entries("/sys/kernel/config/nvmet/subsystems") {
        for namespace in directory_entries(subsystem.join("namespaces")) {
            if line(namespace.join("device_path")).is_some_and(|path| is_it(&path)) {
                return Some("the kernel's NVMe target".to_owned());
            }
        }
    }
    for core in directory_entries("/sys/kernel/config/target/core") {
        for disk in directory_entries(core) {
            if line(disk.join("udev_path")).is_some_and(|path| is_it(&path)) {
                return Some("the kernel's SCSI target".to_owned());
            }
        }
    }
    // Virtual machines lock ranges of their images.
    match rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN | Errno::ACCESS) => Some("another process, which has locked it".to_owned()),
        Ok(()) | Err(_) => None,
    }
}

fn directory_entries(directory: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A path of proc(5), where blanks are octal escapes.
fn unescape_proc_path(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// A device has no length of its own: its end is where seeking ends.
/// It is read and written from where it was before.
pub fn device_size(file: &File) -> io::Result<u64> {
    use rustix::fs::SeekFrom::{Current, End, Start};
    let (at, end) = (rustix::fs::seek(file, Current(0))?, rustix::fs::seek(file, End(0))?);
    rustix::fs::seek(file, Start(at))?;
    Ok(end)
}

/// The directory that a path lies in.
pub fn parent_directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes what has happened to names stable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    match File::open(parent_directory(path))?.sync_all() {
        // Some file systems have nothing to do there, and say so.
        Err(why) if Errno::from_io_error(&why) == Some(Errno::INVAL) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        assert!(LocalPath::inspect(&path, false).unwrap().is_absent() && !path.exists());
        fs::write(&path, b"what it holds").unwrap();
        let place = LocalPath::inspect(&path, true).unwrap();
        assert!(place.reopen_for_reading().unwrap().is_some_and(|file| file.metadata().unwrap().len() == 13));
        assert_eq!(fs::read(&path).unwrap(), b"what it holds");
        drop(place);
        let server = File::open(&path).unwrap();
        server.lock_shared().unwrap();
        let why = LocalPath::inspect(&path, true).unwrap_err();
        assert!(why.message.contains("locked by another process"), "{why}");
        assert!(LocalPath::inspect(&dir.path().join("no/such/disk"), false).is_err());
        std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join("link")).unwrap();
        assert!(LocalPath::inspect(&dir.path().join("link"), false).is_err());
        assert!(!dir.path().join("nowhere").exists());
    }

    #[test]
    fn a_file_that_another_has_made_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let place = LocalPath::inspect(&path, false).unwrap();
        fs::write(&path, b"somebody's").unwrap();
        assert!(place.open_truncated(4096).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"somebody's");
    }

    #[test]
    fn what_another_has_put_in_the_place_of_our_file_is_never_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        for is_replaced in [true, false] {
            let mut place = LocalPath::inspect(&path, false).unwrap();
            place.create_file().unwrap();
            if is_replaced {
                fs::write(dir.path().join("other"), b"somebody's").unwrap();
                fs::rename(dir.path().join("other"), &path).unwrap();
            }
            place.remove_created();
            assert_eq!(path.exists(), is_replaced);
            let _ = fs::remove_file(&path);
        }
    }

    #[test]
    fn a_file_is_told_from_a_later_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, b"1").unwrap();
        let before = file_identity(&File::open(&path).unwrap()).unwrap();
        assert_eq!(file_identity(&File::open(&path).unwrap()).unwrap(), before);
        fs::remove_file(&path).unwrap();
        thread::sleep(Duration::from_millis(20));
        fs::write(&path, b"1").unwrap();
        assert_ne!(file_identity(&File::open(&path).unwrap()).unwrap(), before);
    }

    #[test]
    fn who_asks_how_long_a_device_is_does_not_have_it_written_at_its_end() {
        use std::io::{Read, Write};
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"it begins here").unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(3)).unwrap();
        assert_eq!(device_size(&file).unwrap(), 14);
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "begins here");
    }

    #[test]
    fn swaps_names_are_read_as_they_are_meant() {
        assert_eq!(unescape_proc_path("/a\\040b\\134c"), "/a b\\c");
    }
}
