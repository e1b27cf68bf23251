//! New files that only their owner can read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes a file of these parts. It is private (mode 0600) from its first moment, and whole and durable, or not there.
///
/// # Errors
/// `AlreadyExists`: it is left as it is. What the system says: then there is no file.
pub fn create_private_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    // Its name, too, is to outlive a power failure.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = written.and_then(|()| File::open(parent)?.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}
