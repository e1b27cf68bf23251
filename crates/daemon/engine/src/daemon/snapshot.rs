//! Snapshots and clones of volumes in files: a second file that shares the blocks of the first (FICLONE,
//! ioctl_ficlone(2)), which takes no space until either is written.
//!
//! The system takes the file as of one moment: it holds off every write, over whichever protocol it came, while it shares
//! the blocks, and what was answered before is in it. So it is as if the power had failed at that moment, with nothing
//! lost that was answered: hosts that mount it see what they would see after a crash.
//!
//! Invariant: a refused request leaves no file.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::io::Errno;

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
        if self.engine.has_sync_failure(name) {
            let why = format!("a sync of volume \"{name}\" has failed: what is in its file is in doubt");
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        let (VolumeSource::File(_), Some(source)) = (&store.volume.spec.source, &store.file) else {
            return Err(RequestRefusal::new(RefusalCode::Conflict, no_file_text(&store)));
        };
        share_blocks(source, file).map_err(|why| failure(&why, file))?;
        tracing::info!(target: area::VOLUME, volume = name, file = %file.display(), "snapshot taken");
        Ok((store.bytes, store.without_files()))
    }
}

/// Makes `file` with what `source` has, on stable storage.
fn share_blocks(source: &File, file: &Path) -> io::Result<()> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(file)?;
    let shared = rustix::fs::ioctl_ficlone(&made, source)
        .map_err(io::Error::from)
        .and_then(|()| made.sync_all())
        .and_then(|()| sync_parent_directory(file));
    shared.inspect_err(|_| drop(std::fs::remove_file(file)))
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

    /// Blocks are shared where the file system can, and what is refused leaves no file.
    #[test]
    fn a_file_is_made_or_none_is() {
        let root = tempfile::tempdir().unwrap();
        let (source, made) = (root.path().join("source"), root.path().join("made"));
        std::fs::write(&source, [7; 8192]).unwrap();
        let open = File::open(&source).unwrap();
        match share_blocks(&open, &made) {
            Ok(()) => assert_eq!(std::fs::read(&made).unwrap(), [7; 8192]),
            Err(why) => {
                let refusal = failure(&why, &made);
                assert!(refusal.message.contains("cannot share blocks"), "{}", refusal.message);
                assert!(!made.exists());
            }
        }
        std::fs::write(&made, "mine").unwrap();
        let refusal = failure(&share_blocks(&open, &made).unwrap_err(), &made);
        assert!(refusal.message.contains("exists"), "{}", refusal.message);
        assert_eq!(std::fs::read(&made).unwrap(), b"mine");
    }
}
