//! Files that the process before has open, for a start that takes over from it: such a file is served by its descriptor,
//! with its lock and the kernel's note of a failed sync.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use uuid::Uuid;

use crate::upgrade::HandedFiles;
use config::name::VolumeName;

/// Of the process that this one takes over from. There is one at most, and it is there before any volume is opened.
static HANDED: Mutex<Option<HandedFiles>> = Mutex::new(None);

/// Notes them.
pub fn set_handed_files(files: HandedFiles) {
    *HANDED.lock().unwrap_or_else(PoisonError::into_inner) = Some(files);
}

/// All volumes are open: those that were not taken are closed. A descriptor that stayed would keep the file of a volume
/// that is deleted locked, and its space taken.
pub fn close_handed_files() {
    *HANDED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The descriptor of the process before, if it has what the path leads to open in this way. Another one may not be
/// locked here either: the lock is that of both processes.
pub(super) fn at(path: &Path, read_only: bool, direct: bool) -> Option<File> {
    let handed = HANDED.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let wanted = if direct { wanted | OFlags::DIRECT } else { wanted };
    handed.as_ref()?.at(path).filter(|file| way_of(file) == Some(wanted))
}

/// The descriptor of the process before, if it has the file open in the same way; else `file` itself, which cannot be
/// locked where one of both writes. And whether it is that of the process before.
pub(super) fn instead_of(file: File) -> (File, bool) {
    let handed = HANDED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = handed.as_ref().and_then(|handed| handed.same_as(&file));
    match same.filter(|handed| is_open_alike(handed, &file)) {
        Some(handed) => (handed, true),
        None => (file, false),
    }
}

/// The memory of a RAM volume of the process before, once, and by which UUID hosts know it.
pub(super) fn memory_of(volume: &VolumeName) -> Option<(Uuid, File)> {
    HANDED.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.take_memory(volume)
}

/// Both are open for the same, and pass the page cache or do not.
fn is_open_alike(one: &File, other: &File) -> bool {
    way_of(one).is_some_and(|own| Some(own) == way_of(other))
}

fn way_of(file: &File) -> Option<OFlags> {
    Some(rustix::fs::fcntl_getfl(file).ok()? & (OFlags::RWMODE | OFlags::DIRECT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::identity::Identities;
    use crate::store::{Store, tests::SILENT};
    use config::plan::{Volume, VolumeOrigin};
    use std::sync::{Arc, MutexGuard};

    /// What was handed over is of the whole process.
    fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A volume that is to be written must not get a descriptor that only reads.
    #[test]
    fn descriptors_of_another_way_are_not_taken() {
        let _turn = alone();
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = || File::open(file.path()).unwrap();
        let writing = || File::options().read(true).write(true).open(file.path()).unwrap();
        assert!(is_open_alike(&reading(), &reading()));
        assert!(is_open_alike(&writing(), &writing()));
        assert!(!is_open_alike(&reading(), &writing()));
        let other = || tempfile::NamedTempFile::new().unwrap();
        let (held, missing) = (file.path(), other());
        set_handed_files(HandedFiles::of(vec![writing().into()]).unwrap());
        assert!(at(held, false, false).is_some());
        assert!(at(held, true, false).is_none() && at(held, false, true).is_none());
        assert!(at(missing.path(), false, false).is_none());
        let (taken, is_handed) = instead_of(writing());
        assert!(is_handed && is_open_alike(&taken, &writing()));
        assert!(!instead_of(reading()).1);
        close_handed_files();
        assert!(at(held, false, false).is_none());
    }

    /// A failed sync is told once of each open file. The process that serves must be the one that hears of it, for the
    /// other may never serve.
    #[test]
    fn a_file_that_is_handed_over_is_not_synced_here() {
        let _turn = alone();
        let root = tempfile::tempdir().unwrap();
        let text = format!("file:{},size=1M", root.path().join("a.img").display());
        let spec = config::spec::parse(&text).unwrap();
        let name = config::name::VolumeName::parse("handed-over").unwrap();
        let volume = Volume { name, spec, origin: VolumeOrigin::Configured };
        let open = || Store::open(&volume, &mut Identities::default(), [].iter());
        let serving = open().unwrap();
        assert!(!serving.is_handed);
        let its = serving.file.as_ref().unwrap().try_clone().unwrap();
        set_handed_files(HandedFiles::of(vec![its.into()]).unwrap());
        // A sync would be waited for as long as this is held.
        let disk = Arc::new(Mutex::new(()));
        SILENT.lock().unwrap().push(("handed-over".to_owned(), disk.clone()));
        let silent = disk.lock().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| tell.send(open().unwrap().is_handed).unwrap());
            let is_handed = told.recv_timeout(std::time::Duration::from_secs(20));
            drop(silent);
            assert_eq!(is_handed, Ok(true), "its lock is had, and nothing is synced");
        });
        close_handed_files();
    }
}
