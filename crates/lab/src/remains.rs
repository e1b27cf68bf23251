//! What an evaluation that was killed could not undo, and its removal by a later one.
//!
//! Invariant: only that is touched whose name carries the id of a process that is there no more and whose
//! owner is this user.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::place::Place;

/// How names of network namespaces begin, before the id of the process that made them.
const NAMESPACE: &str = "bw-";
/// How names of directories for temporary files begin.
const DIRECTORY: &str = "blockwire-";
/// How names of volumes in memory begin, before the target's.
const IMAGE: &str = "blockwire-eval-";
/// Where they are.
const MEMORY: &str = "/dev/shm";

/// The name of a network namespace of this process.
pub(crate) fn namespace(end: &str) -> String {
    format!("{NAMESPACE}{}-{end}", std::process::id())
}

/// A directory of this process for mounts and sockets, with a short name; not made yet.
pub(crate) fn directory(what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{DIRECTORY}{}-{what}", std::process::id()))
}

/// The name of a target's volume of this process, in memory.
pub(crate) fn image(target: &str, number: u32) -> String {
    format!("{IMAGE}{target}-{}-{number}", std::process::id())
}

/// Removes what killed evaluations left on this machine; says what that was.
pub fn remove() -> Vec<String> {
    let mut gone = Vec::new();
    for name in names_of_namespaces() {
        let is_empty = |name: &str| {
            Place::Here.run(&["ip", "netns", "pids", name]).is_ok_and(|pids| pids.trim().is_empty())
        };
        if namespace_owner(&name).is_some_and(is_dead)
            && is_empty(&name)
            && Place::Here.run(&["ip", "netns", "del", &name]).is_ok()
        {
            gone.push(format!("network namespace {name}"));
        }
    }
    for dir in theirs(&std::env::temp_dir(), directory_owner) {
        for at in mounts_below(&dir) {
            let at = at.display().to_string();
            if Place::Here.run(&["umount", "-l", &at]).is_ok() {
                gone.push(format!("mount {at}"));
            }
        }
        // Never through a mount that is still there.
        if mounts_below(&dir).is_empty() && std::fs::remove_dir_all(&dir).is_ok() {
            gone.push(dir.display().to_string());
        }
    }
    for file in theirs(Path::new(MEMORY), image_owner) {
        if std::fs::remove_file(&file).is_ok() {
            gone.push(file.display().to_string());
        }
    }
    gone
}

fn is_dead(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn names_of_namespaces() -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The id at the begin of a text, before a dash.
fn leading(text: &str) -> Option<u32> {
    text.split_once('-')?.0.parse().ok()
}

fn namespace_owner(name: &str) -> Option<u32> {
    leading(name.strip_prefix(NAMESPACE)?)
}

fn directory_owner(name: &str) -> Option<u32> {
    leading(name.strip_prefix(DIRECTORY)?)
}

/// The target's name may hold dashes.
fn image_owner(name: &str) -> Option<u32> {
    let (rest, _) = name.strip_prefix(IMAGE)?.rsplit_once('-')?;
    rest.rsplit_once('-')?.1.parse().ok()
}

/// What stands in a directory by the name of a dead process of this user.
fn theirs(dir: &Path, owner: fn(&str) -> Option<u32>) -> Vec<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_theirs = |path: &PathBuf| {
        let pid = path.file_name().and_then(|name| owner(name.to_str()?));
        let is_mine = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.uid() == me);
        is_mine && pid.is_some_and(is_dead)
    };
    entries.map(|entry| entry.path()).filter(is_theirs).collect()
}

/// Mounts below a directory, those on others first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from)
        .filter(|at| at.starts_with(dir))
        .collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_who_made_them() {
        let own = std::process::id();
        assert_eq!(namespace_owner(&namespace("0t")), Some(own));
        assert_eq!(image_owner(&image("spdk-iscsi", 17)), Some(own));
        let directory = directory("vm");
        assert_eq!(directory_owner(directory.file_name().unwrap().to_str().unwrap()), Some(own));
        for other in ["blockwire-ssh-7-0", "blockwire-eval-AbC123", "bw-nvme-t", "bwssh7-t", "blockwire-7"] {
            assert_eq!((namespace_owner(other), directory_owner(other)), (None, None), "{other}");
        }
    }

    /// What a process that has ended left goes; what one that lives made stays.
    #[test]
    fn only_what_the_dead_left_is_removed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let left = std::env::temp_dir().join(format!("{DIRECTORY}{dead}-test"));
        let ours = directory("test");
        std::fs::create_dir_all(left.join("run")).unwrap();
        std::fs::create_dir_all(&ours).unwrap();
        let gone = remove();
        assert!(!left.exists() && gone.iter().any(|what| what.contains(&format!("{dead}-test"))), "{gone:?}");
        assert!(ours.exists());
        std::fs::remove_dir(&ours).unwrap();
    }
}
