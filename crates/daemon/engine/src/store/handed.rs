//! Files that the process before has open, for a start that takes over from it: such a file is served by its descriptor,
//! with its lock and the kernel's note of a failed sync.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::upgrade::HandedFiles;

/// Of the process that this one takes over from. There is one at most, and it is there before any volume is opened.
static HANDED: Mutex<Option<HandedFiles>> = Mutex::new(None);

/// Notes them.
pub fn set_handed_files(files: HandedFiles) {
    *HANDED.lock().unwrap_or_else(PoisonError::into_inner) = Some(files);
}

/// The descriptor of the process before, if it has what the path leads to open.
pub(super) fn at(path: &Path) -> Option<File> {
    let handed = HANDED.lock().unwrap_or_else(PoisonError::into_inner);
    handed.as_ref()?.at(path)
}

/// The descriptor of the process before, if it has the file open in the same way; else `file` itself, which cannot be
/// locked where one of both writes.
pub(super) fn instead_of(file: File) -> File {
    let handed = HANDED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = handed.as_ref().and_then(|handed| handed.same_as(&file));
    same.filter(|handed| is_open_alike(handed, &file)).unwrap_or(file)
}

/// Both are open for the same, and pass the page cache or do not.
fn is_open_alike(one: &File, other: &File) -> bool {
    let way = |file: &File| Some(rustix::fs::fcntl_getfl(file).ok()? & (OFlags::RWMODE | OFlags::DIRECT));
    way(one).is_some_and(|own| Some(own) == way(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that is to be written must not get a descriptor that only reads.
    #[test]
    fn descriptors_of_another_way_are_not_taken() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = || File::open(file.path()).unwrap();
        let writing = || File::options().read(true).write(true).open(file.path()).unwrap();
        assert!(is_open_alike(&reading(), &reading()));
        assert!(is_open_alike(&writing(), &writing()));
        assert!(!is_open_alike(&reading(), &writing()));
    }
}
