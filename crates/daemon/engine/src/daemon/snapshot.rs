//! Snapshots and clones of volumes in files: a second file that shares the blocks of the first (FICLONE,
//! ioctl_ficlone(2)), which takes no space until either is written.
//!
//! The system takes the file as of one moment: it holds off every write, over whichever protocol it came, while it shares
//! the blocks, and what was answered before is in it. So it is as if the power had failed at that moment, with nothing
//! lost that was answered: hosts that mount it see what they would see after a crash.
//!
//! Invariant: a file that has the name is whole. A request that is refused, or killed on its way, leaves none.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
};

use super::VolumeRegistry;
use crate::{state::sync_parent_directory, store::Store};
use config::spec::VolumeSource;
use control::{
    RefusalCode, RequestRefusal,
    report::{SnapshotReport, VolumeReport},
};
use process::log::area;

impl VolumeRegistry {
    /// Makes a file that has what the volume has now.
    pub(super) fn snapshot_volume(&self, name: &str, file: &Path) -> Result<SnapshotReport, RequestRefusal> {
        let _held = self.lock_name(name, "copied")?;
        let (bytes, _) = self.take_snapshot(name, file)?;
        Ok(SnapshotReport { volume: name.to_owned(), file: file.display().to_string(), size_bytes: bytes })
    }

    /// Makes such a file, and serves it as a volume of its own.
    pub(super) fn clone_volume(
        &self,
        name: &str,
        clone: &str,
        file: &Path,
    ) -> Result<VolumeReport, RequestRefusal> {
        let store = {
            let _held = self.lock_name(name, "copied")?;
            self.lock_served().refuse_used_name(clone)?;
            self.take_snapshot(name, file)?.1
        };
        let mut spec = store.volume.spec;
        // Another volume, as large as its file, that hosts may write to.
        spec.source = VolumeSource::File(file.to_owned());
        (spec.uuid, spec.size, spec.read_only) = (None, None, false);
        self.create(clone, &spec.to_string()).inspect_err(|_| drop(std::fs::remove_file(file)))
    }

    /// Refuses a volume of which a sync has failed.
    fn refuse_in_doubt(&self, name: &str) -> Result<(), RequestRefusal> {
        if !self.engine.has_sync_failure(name) {
            return Ok(());
        }
        let why = format!("a sync of volume \"{name}\" has failed: what is in its file is in doubt");
        Err(RequestRefusal::new(RefusalCode::Conflict, why))
    }

    /// Gives the size of the volume, and the volume without its files.
    fn take_snapshot(&self, name: &str, file: &Path) -> Result<(u64, Store), RequestRefusal> {
        if !file.is_absolute() {
            return Err(RequestRefusal::new(RefusalCode::Invalid, "the path of a file must be absolute"));
        }
        self.lock_served().volume_report(name)?;
        let Some(store) = self.duplicate_store(name)? else {
            let why = format!("volume \"{name}\" is not served: see `blockwire volume show {name}`");
            return Err(RequestRefusal::new(RefusalCode::Failed, why));
        };
        self.refuse_in_doubt(name)?;
        let (VolumeSource::File(_), Some(source)) = (&store.volume.spec.source, &store.file) else {
            return Err(RequestRefusal::new(RefusalCode::Conflict, no_file_text(&store)));
        };
        make_whole(file, |made| {
            rustix::fs::ioctl_ficlone(made, source).map_err(|why| failure(&why.into(), file))?;
            made.sync_all().map_err(|why| failure(&why, file))?;
            // A sync may have failed meanwhile: then the blocks that are shared may be those of before.
            self.refuse_in_doubt(name)
        })?;
        tracing::info!(target: area::VOLUME, volume = name, file = %file.display(), "snapshot taken");
        Ok((store.bytes, store.without_files()))
    }
}

/// Makes a file that `fill` fills. It has no name before it is whole, where the file system can make such files.
fn make_whole(
    file: &Path,
    fill: impl FnOnce(&File) -> Result<(), RequestRefusal>,
) -> Result<(), RequestRefusal> {
    let failed = |why: Errno| failure(&why.into(), file);
    if file.symlink_metadata().is_ok() {
        return Err(failed(Errno::EXIST));
    }
    let directory = file.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(made) => {
            let made = File::from(made);
            fill(&made)?;
            let nameless = format!("/proc/self/fd/{}", made.as_raw_fd());
            rustix::fs::linkat(CWD, nameless, CWD, file, AtFlags::SYMLINK_FOLLOW).map_err(failed)?;
            keep_name(file, Ok(()))
        }
        // Such a file system has the file under its name from the beginning.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(file);
            keep_name(file, fill(&made.map_err(|why| failure(&why, file))?))
        }
        Err(why) => Err(failed(why)),
    }
}

/// Makes the name of a file durable, or removes it if it was not filled.
fn keep_name(file: &Path, filled: Result<(), RequestRefusal>) -> Result<(), RequestRefusal> {
    filled
        .and_then(|()| sync_parent_directory(file).map_err(|why| failure(&why, file)))
        .inspect_err(|_| drop(std::fs::remove_file(file)))
}

fn no_file_text(store: &Store) -> String {
    let name = &store.volume.name;
    let what = match store.volume.spec.source {
        VolumeSource::Rbd(_) => {
            return format!("volume \"{name}\" is an image of Ceph: use `rbd snap create`");
        }
        VolumeSource::Nbd(_) => {
            return format!(
                "volume \"{name}\" is an export of an NBD server, which makes its snapshots (qemu-storage-daemon: \
                 blockdev-snapshot-sync)"
            );
        }
        VolumeSource::Remote(_) => "is on another machine",
        VolumeSource::Device(_) => "is a block device",
        VolumeSource::Stripe(_) => "is a stripe, whose legs cannot be taken as of one moment",
        VolumeSource::Ram | VolumeSource::Null | VolumeSource::File(_) => "is in no file",
    };
    format!("volume \"{name}\" {what}: `blockwire copy` copies it")
}

fn failure(why: &io::Error, file: &Path) -> RequestRefusal {
    let place = file.display();
    let (code, message) = match why.raw_os_error().map(Errno::from_raw_os_error) {
        // What a file system says that knows no such thing, or not of such files (btrfs without copy-on-write).
        Some(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => (
            RefusalCode::Conflict,
            format!(
                "{place}: files cannot share blocks on this file system: keep the volume's file on XFS or btrfs, or copy \
                 the volume with `blockwire copy`"
            ),
        ),
        Some(Errno::XDEV) => {
            (RefusalCode::Invalid, format!("{place} must be on the file system of the volume's file"))
        }
        Some(Errno::EXIST) => (RefusalCode::Conflict, format!("{place} exists: it is never overwritten")),
        _ => (RefusalCode::Failed, format!("{place}: {why}")),
    };
    RequestRefusal::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::fs::MetadataExt};

    fn write(mut made: &File, bytes: &[u8]) -> Result<(), RequestRefusal> {
        made.write_all(bytes).unwrap();
        Ok(())
    }

    /// Who is killed while a large file is shared leaves nothing that looks like a snapshot.
    #[test]
    fn a_file_has_no_name_before_it_is_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("made");
        let is_empty = || std::fs::read_dir(root.path()).unwrap().next().is_none();
        make_whole(&path, |made| {
            assert!(is_empty(), "half of it can be seen");
            write(made, &[7; 8192])
        })
        .unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        let refused = make_whole(&path, |_| Err(RequestRefusal::new(RefusalCode::Conflict, "in doubt")));
        assert_eq!(refused.unwrap_err().message, "in doubt");
        assert!(is_empty());
    }

    #[test]
    fn what_is_there_is_never_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let (path, link) = (root.path().join("made"), root.path().join("link"));
        std::fs::write(&path, "mine").unwrap();
        std::os::unix::fs::symlink(root.path().join("none"), &link).unwrap();
        for there in [&path, &link] {
            let why = make_whole(there, |_| panic!("it is filled")).unwrap_err();
            assert!(why.message.contains("exists"), "{}", why.message);
        }
        // It may also come while another is being made.
        std::fs::remove_file(&path).unwrap();
        let raced = make_whole(&path, |made| {
            std::fs::write(&path, "theirs").unwrap();
            write(made, b"ours")
        });
        assert!(raced.unwrap_err().message.contains("exists"));
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    }

    #[test]
    fn a_file_system_that_cannot_share_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("made");
        for errno in [Errno::OPNOTSUPP, Errno::NOTTY, Errno::INVAL] {
            assert!(failure(&errno.into(), &path).message.contains("cannot share blocks"));
        }
        assert!(failure(&Errno::XDEV.into(), &path).message.contains("on the file system of"));
    }
}
