//! Removes one of our directories with everything in it, and nothing else.
//!
//! Invariant: no symbolic link is followed and no mount is entered, including bind mounts: each directory is
//! opened relative to its parent by openat2(2), which refuses both.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, unlinkat};
use rustix::path::Arg;

/// Directories in each other; those of an evaluation are a few.
const DEPTH_MAX: u32 = 32;

/// Opens a directory that lies in another, and is neither a link nor a mount.
pub(crate) fn open_directory(parent: impl AsFd, name: impl Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_XDEV
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(parent, name, flags, Mode::empty(), resolve)?)
}

/// Removes all that a directory holds except `kept`.
pub(crate) fn remove_contents(dir: &OwnedFd, kept: &[&CStr]) -> io::Result<()> {
    remove_contents_below(dir, kept, DEPTH_MAX)
}

fn remove_contents_below(dir: &OwnedFd, kept: &[&CStr], depth: u32) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        entries.push(entry?);
    }
    for entry in entries {
        let name = entry.file_name();
        if name == c"." || name == c".." || kept.contains(&name) {
            continue;
        }
        // A kind that the file system does not tell is tried as a file first.
        let is_file = entry.file_type() != FileType::Directory;
        if is_file && unlinkat(dir, name, AtFlags::empty()).is_ok() {
            continue;
        }
        let depth = depth.checked_sub(1).ok_or_else(|| io::Error::other("directories are too deep"))?;
        remove_contents_below(&open_directory(dir, name)?, &[], depth)?;
        unlinkat(dir, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes a directory at `parent`/`name` with all that it holds; nothing is done if it is not there.
pub(crate) fn remove_tree(parent: &Path, name: &str) -> io::Result<()> {
    let above = File::open(parent)?;
    let dir = match open_directory(&above, name) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let path = parent.canonicalize()?.join(name);
    if let Some(at) = mounts_below(&path)?.first() {
        return Err(io::Error::other(format!("{} is mounted", at.display())));
    }
    remove_contents(&dir, &[])?;
    Ok(unlinkat(&above, name, AtFlags::REMOVEDIR)?)
}

/// Mounts at and below a real path, those on others first.
pub(crate) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    // Without the table nothing is known to be free of mounts.
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> =
        parse_mounts(&text).map(|mount| mount.at).filter(|at| at.starts_with(dir)).collect();
    found.reverse();
    Ok(found)
}

/// A line of proc(5)'s mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// Where it is.
    pub(crate) at: PathBuf,
    /// The file system's kind: `ext4`, `fuse.x`.
    pub(crate) kind: String,
    /// What is mounted: a device, mostly.
    pub(crate) source: String,
}

/// All mounts of a table, in its order.
pub(crate) fn parse_mounts(text: &str) -> impl Iterator<Item = MountEntry> + '_ {
    text.lines().filter_map(|line| {
        let (own, rest) = line.split_once(" - ")?;
        let mut rest = rest.split(' ');
        let (kind, source) = (rest.next()?.to_owned(), unescape_octal(rest.next()?));
        let at = PathBuf::from(unescape_octal(own.split(' ').nth(4)?));
        Some(MountEntry { at, kind, source })
    })
}

/// A path without the octal escapes of the kernel's tables: blank, tab, line feed, backslash.
fn unescape_octal(text: &str) -> String {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.into_iter().fold(text.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::CommandLocation;

    #[test]
    fn what_a_link_points_to_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, own) = (dir.path().join("kept"), dir.path().join("own"));
        std::fs::create_dir_all(kept.join("sub")).unwrap();
        std::fs::create_dir_all(own.join("a/b")).unwrap();
        std::fs::write(kept.join("sub/file"), b"1").unwrap();
        std::os::unix::fs::symlink(&kept, own.join("a/b/link")).unwrap();
        std::os::unix::fs::symlink(&kept, dir.path().join("itself")).unwrap();
        assert!(remove_tree(dir.path(), "itself").is_err(), "it is a link");
        remove_tree(dir.path(), "own").unwrap();
        assert!(!own.exists() && kept.join("sub/file").exists());
        remove_tree(dir.path(), "own").unwrap();
    }

    /// Where this user can mount: a directory of the same file system, mounted once more below ours, is not
    /// emptied.
    #[test]
    fn what_is_mounted_below_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, own) = (dir.path().join("kept"), dir.path().join("own"));
        std::fs::create_dir_all(own.join("z/mount")).unwrap();
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(kept.join("file"), b"1").unwrap();
        std::fs::write(own.join("a"), b"1").unwrap();
        let (from, at) = (kept.display().to_string(), own.join("z/mount").display().to_string());
        if CommandLocation::Here.run(&["mount", "--bind", &from, &at]).is_err() {
            eprintln!("not tried: this user cannot mount");
            return;
        }
        let tried = remove_tree(dir.path(), "own");
        // The same by descriptor, had the table of mounts been read a moment too early.
        let emptied = remove_contents(&open_directory(File::open(dir.path()).unwrap(), "own").unwrap(), &[]);
        CommandLocation::Here.run(&["umount", &at]).unwrap();
        assert!(tried.is_err() && emptied.is_err() && kept.join("file").exists());
        remove_tree(dir.path(), "own").unwrap();
    }

    #[test]
    fn a_table_of_mounts_is_read_with_its_escapes() {
        let text = "36 35 98:0 /mnt1 /m\\040p rw,noatime master:1 - ext4 /dev/loop3 rw,errors=continue\n\
                    37 35 0:50 / /run/x rw - fuse.blockwire blockwire rw\nbroken\n";
        let all: Vec<MountEntry> = parse_mounts(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].at.as_path(), all[0].kind.as_str()), (Path::new("/m p"), "ext4"));
        assert_eq!((all[0].source.as_str(), all[1].kind.as_str()), ("/dev/loop3", "fuse.blockwire"));
    }
}
