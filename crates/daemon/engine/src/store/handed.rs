//! Files that the process before has open, for a start that takes over from it: such a file is served by its descriptor,
//! with its lock and the kernel's note of a failed sync.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

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

/// The descriptor of the process before, if it has the file open; else `file` itself.
pub(super) fn instead_of(file: File) -> File {
    let handed = HANDED.lock().unwrap_or_else(PoisonError::into_inner);
    handed.as_ref().and_then(|handed| handed.same_as(&file)).unwrap_or(file)
}
