//! Files that an operator names, as text: opened once, checked after opening, and read only up to a limit.
//!
//! Invariant: reading never blocks on another process (a FIFO, for example), and never exceeds the limit.

use std::{
    fs::{File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use crate::size;

fn read_error_text(why: io::Error) -> String {
    format!("cannot be read: {why}")
}

/// The same of a file that could not be opened.
fn open_error_text(path: &Path, why: io::Error) -> String {
    let hint = sandbox::file_hint(path, sandbox::Access::Read, &why)
        .map(|hint| format!("; {hint}"))
        .unwrap_or_default();
    read_error_text(why) + &hint
}

/// A regular file, open, and what it is like. The open file is judged, not its name: what is checked is what is read.
///
/// # Errors
/// Words that go behind its name.
pub fn open_regular(path: &Path) -> Result<(File, Metadata), String> {
    // Not to wait for the one at a FIFO's other end.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .map_err(|why| open_error_text(path, why))?;
    let meta = file.metadata().map_err(read_error_text)?;
    match meta.is_file() {
        true => Ok((file, meta)),
        false => Err("is not a regular file".to_owned()),
    }
}

/// All that an open file holds; `None`: more than `bytes_max` bytes.
///
/// # Errors
/// As [`open_regular`].
pub fn read_bounded(file: File, bytes_max: u64) -> Result<Option<Vec<u8>>, String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(read_error_text)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= bytes_max))
}

/// The text of a regular file, and whether everybody may read it.
///
/// # Errors
/// As [`open_regular`].
pub fn read_text(path: &Path, bytes_max: u64) -> Result<(String, bool), String> {
    let (file, meta) = open_regular(path)?;
    let bytes = read_bounded(file, bytes_max)?
        .ok_or_else(|| format!("is larger than {}", size::format_human(bytes_max)))?;
    let text = String::from_utf8(bytes).map_err(|_| "cannot be read: it is not UTF-8 text".to_owned())?;
    Ok((text, meta.mode() & 0o004 != 0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_no_file_is_neither_waited_for_nor_read_without_end() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        for path in [&fifo, Path::new("/dev/zero"), root.path()] {
            assert_eq!(read_text(path, 100).unwrap_err(), "is not a regular file", "{}", path.display());
        }
        let path = root.path().join("file");
        std::fs::write(&path, "0123456789").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o604)).unwrap();
        assert_eq!(read_text(&path, 10), Ok(("0123456789".to_owned(), true)));
        assert!(read_text(&path, 9).unwrap_err().contains("larger than"));
        // One that says that it is empty and is not.
        assert!(read_text(Path::new("/proc/self/maps"), 10).unwrap_err().contains("larger than"));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path, 10).unwrap_err().contains("UTF-8"));
        assert!(read_text(&root.path().join("none"), 10).unwrap_err().contains("cannot be read"));
    }
}
