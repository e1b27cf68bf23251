//! What a killed evaluation left behind, and its removal by a later one.
//!
//! Invariant: only things that a run of ours created are touched: they are on the list in the run's own
//! directory, which belongs to this user, is not writable by others, and holds a marker that the run had
//! locked until it died. A name alone is no proof.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, openat};

use crate::created_resources::{
    CreatedResource, DIRECTORY_PREFIX, LIST_FILE, LOCK_FILE, MEMORY_DIRECTORY, TOKEN_DIGITS,
};
use crate::place::CommandLocation;
use crate::{directory_tree, exports, kernel_sessions, memory_limit};

/// Most bytes of a list that are read: thousands of entries.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Removes what killed evaluations left on this machine; says what that was.
pub fn remove_leftovers() -> Vec<String> {
    remove_leftovers_in(&std::env::temp_dir())
}

fn remove_leftovers_in(parent: &Path) -> Vec<String> {
    let mut gone = Vec::new();
    let Ok(parent) = parent.canonicalize() else { return gone };
    let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let Some(token) = token_of(&name) else { continue };
        // Held until it is gone: two runs that begin at once do not both remove it.
        let Some(_lock) = lock_if_dead(&parent, &name) else { continue };
        gone.extend(remove_run_directory(&parent.join(&name), token));
    }
    gone
}

/// The token of a directory's name.
fn token_of(name: &str) -> Option<&str> {
    let token = name.strip_prefix(DIRECTORY_PREFIX)?;
    let is_token = token.len() == TOKEN_DIGITS && token.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
    is_token.then_some(token)
}

/// The lock of a directory that a run of this user made and left; `None`: the run lives, or no run made it.
fn lock_if_dead(parent: &Path, name: &str) -> Option<OwnedFd> {
    let dir = directory_tree::open_directory(File::open(parent).ok()?, name).ok()?;
    if !is_private(&fstat(&dir).ok()?) {
        return None;
    }
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let marker = openat(&dir, LOCK_FILE, flags, Mode::empty()).ok()?;
    let found = fstat(&marker).ok()?;
    let mut text = String::new();
    File::from(marker.try_clone().ok()?).take(64).read_to_string(&mut text).ok()?;
    let is_marker = is_private(&found) && found.st_nlink == 1 && Some(text.as_str()) == token_of(name);
    (is_marker && flock(&marker, FlockOperation::NonBlockingLockExclusive).is_ok()).then_some(marker)
}

/// Whether something is this user's, and no other user can change it. Group `x`: a server that runs as a user of
/// its own passes through.
fn is_private(found: &rustix::fs::Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o067 == 0
}

/// Whether a directory is there, and is this user's.
pub(crate) fn is_own_directory(dir: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == me)
}

/// Undoes all on a directory's list and removes it; says what was there. What cannot be undone keeps the
/// directory and its list.
pub(crate) fn remove_run_directory(dir: &Path, token: &str) -> Vec<String> {
    let mut gone = Vec::new();
    let mut text = String::new();
    let list = File::open(dir.join(LIST_FILE));
    if list.and_then(|list| list.take(LIST_BYTES_MAX).read_to_string(&mut text)).is_err() {
        return gone;
    }
    let mut is_whole = true;
    // Each thing once, the last first.
    let mut done: Vec<CreatedResource> = Vec::new();
    for made in text.lines().rev().filter_map(|line| CreatedResource::parse(line, token)) {
        if done.contains(&made) {
            continue;
        }
        match undo_resource(&made, dir, token) {
            UndoOutcome::Was(what) => gone.push(what),
            UndoOutcome::WasNot => {}
            UndoOutcome::Stays => is_whole = false,
        }
        done.push(made);
    }
    let name = dir.file_name().and_then(|name| name.to_str());
    if is_whole
        && let (Some(parent), Some(name)) = (dir.parent(), name)
        && directory_tree::remove_tree(parent, name).is_ok()
    {
        gone.push(dir.display().to_string());
    }
    gone
}

/// What came of undoing.
pub(crate) enum UndoOutcome {
    /// It was there and is gone.
    Was(String),
    /// It was not there.
    WasNot,
    /// It is still there.
    Stays,
}

impl UndoOutcome {
    fn of(what: String, is_there: impl Fn() -> bool, undo: impl FnOnce()) -> UndoOutcome {
        if !is_there() {
            return UndoOutcome::WasNot;
        }
        undo();
        if is_there() { UndoOutcome::Stays } else { UndoOutcome::Was(what) }
    }
}

fn undo_resource(made: &CreatedResource, dir: &Path, token: &str) -> UndoOutcome {
    match made {
        CreatedResource::Namespace(name) => {
            let is_there = || Path::new("/run/netns").join(name).exists();
            UndoOutcome::of(format!("network namespace {name}"), is_there, || {
                let pids = CommandLocation::Here.run(&["ip", "netns", "pids", name]);
                if pids.is_ok_and(|pids| pids.trim().is_empty()) {
                    let _ = CommandLocation::Here.run(&["ip", "netns", "del", name]);
                }
            })
        }
        CreatedResource::Memory => {
            let name = format!("{DIRECTORY_PREFIX}{token}");
            let path = Path::new(MEMORY_DIRECTORY).join(&name);
            UndoOutcome::of(
                path.display().to_string(),
                || is_own_directory(&path),
                || {
                    let _ = directory_tree::remove_tree(Path::new(MEMORY_DIRECTORY), &name);
                },
            )
        }
        CreatedResource::Mount(at, kind) => {
            let at = dir.join(at);
            let is_there = || {
                let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                directory_tree::parse_mounts(&table).any(|mount| mount.at == at && mount.kind == *kind)
            };
            UndoOutcome::of(format!("mount {}", at.display()), is_there, || {
                let at = at.display().to_string();
                if CommandLocation::Here.run(&["umount", &at]).is_err() {
                    let _ = CommandLocation::Here.run(&["umount", "-l", &at]);
                }
            })
        }
        CreatedResource::Lio(own) => {
            let what = format!("exports of LIO named {own}");
            UndoOutcome::of(what, || exports::has_lio_exports(own), || exports::remove_lio_exports(own))
        }
        CreatedResource::Nvmet(own) => {
            let what = format!("exports of nvmet named {own}");
            UndoOutcome::of(what, || exports::has_nvmet_exports(own), || exports::remove_nvmet_exports(own))
        }
        CreatedResource::IscsiInterface(name) => {
            let what = format!("iSCSI sessions over the interface {name}");
            let has = || kernel_sessions::may_have_iscsi_sessions(&CommandLocation::Here, name);
            UndoOutcome::of(what, has, || kernel_sessions::end_iscsi_sessions(&CommandLocation::Here, name))
        }
        CreatedResource::MemoryGroup(path) => {
            let group = Path::new(path);
            UndoOutcome::of(
                format!("control group {path}"),
                || group.is_dir(),
                || {
                    memory_limit::remove_group(group);
                },
            )
        }
        CreatedResource::NvmeHost(id) => {
            let what = format!("NVMe connections of the host {id}");
            let has = || kernel_sessions::may_have_nvme_controllers(&CommandLocation::Here, id);
            UndoOutcome::of(what, has, || kernel_sessions::disconnect_nvme(&CommandLocation::Here, id))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::run_directory::RunDirectory;

    /// A directory as a killed run leaves it.
    fn left(parent: &Path) -> (std::path::PathBuf, String) {
        let scratch = RunDirectory::create(parent).unwrap();
        let (from, token) = (scratch.path().to_owned(), scratch.unique_name("", ""));
        let aside = parent.join("aside");
        std::fs::rename(&from, &aside).unwrap();
        // Its marker is free from now on; there is nothing at its path that it could remove.
        drop(scratch);
        std::fs::rename(aside, &from).unwrap();
        (from, token)
    }

    /// Whatever bears a name as ours, and is not what a run of ours left, is never removed.
    #[test]
    fn directories_that_no_run_made_are_never_removed() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
            std::fs::write(path.join("report"), b"1").unwrap();
            path
        };
        // A date, the id of a process that has ended, a token without a marker, one with that of another.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let names = ["blockwire-2026-11-22", &format!("blockwire-{dead}-vm"), "blockwire-0123456789abcdef"];
        let mut kept: Vec<_> = names.into_iter().map(make).collect();
        let strange = make("blockwire-00000000000000aa");
        std::fs::write(strange.join(LOCK_FILE), b"0123456789abcdef").unwrap();
        std::fs::set_permissions(strange.join(LOCK_FILE), PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::write(strange.join(LIST_FILE), b"").unwrap();
        // One that others may write to, and one behind a link.
        let (open, _) = left(parent.path());
        std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        std::fs::write(open.join("report"), b"1").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let (far, _) = left(elsewhere.path());
        std::fs::write(far.join("report"), b"1").unwrap();
        std::os::unix::fs::symlink(&far, parent.path().join(far.file_name().unwrap())).unwrap();
        kept.extend([strange, open, far]);
        assert_eq!(remove_leftovers_in(parent.path()), Vec::<String>::new());
        assert!(kept.iter().all(|dir| dir.join("report").exists()));
    }

    #[test]
    fn what_a_living_run_made_is_never_removed() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = RunDirectory::create(parent.path()).unwrap();
        std::fs::write(scratch.path().join("file"), b"1").unwrap();
        assert_eq!(remove_leftovers_in(parent.path()), Vec::<String>::new());
        assert!(scratch.path().join("file").exists());
        let path = scratch.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
        drop(scratch);
        assert!(!path.exists(), "it goes with its owner");
    }

    #[test]
    fn what_a_dead_run_left_goes() {
        let parent = tempfile::tempdir().unwrap();
        let (path, token) = left(parent.path());
        std::fs::create_dir(path.join("run0")).unwrap();
        std::fs::write(path.join("run0/file"), b"1").unwrap();
        let memory = Path::new(MEMORY_DIRECTORY).join(format!("{DIRECTORY_PREFIX}{token}"));
        let has_memory = std::fs::create_dir(&memory).is_ok();
        std::fs::write(path.join(LIST_FILE), "[\"memory\"]\n[\"memory\"]\n[\"namespace\",\"eth0\"]\n")
            .unwrap();
        let gone = remove_leftovers_in(parent.path());
        assert!(!path.exists() && !memory.exists(), "{gone:?}");
        assert_eq!(gone.len(), if has_memory { 2 } else { 1 }, "{gone:?}");
    }

    /// What somebody mounted there, and no run has on its list, is not unmounted, and the directory stays.
    #[test]
    fn a_mount_that_no_run_made_is_never_undone() {
        let parent = tempfile::tempdir().unwrap();
        let (path, _) = left(parent.path());
        for name in ["ours", "theirs"] {
            std::fs::create_dir(path.join(name)).unwrap();
        }
        let at = |name: &str| path.join(name).display().to_string();
        if CommandLocation::Here.run(&["mount", "-t", "tmpfs", "none", &at("ours")]).is_err() {
            eprintln!("not tried: this user cannot mount");
            return;
        }
        CommandLocation::Here.run(&["mount", "-t", "tmpfs", "none", &at("theirs")]).unwrap();
        std::fs::write(path.join("theirs/file"), b"1").unwrap();
        // The second is on the list as another kind of file system: it is another mount.
        let list = "[\"mount\",\"theirs\",\"ext4\"]\n[\"mount\",\"ours\",\"tmpfs\"]\n";
        std::fs::write(path.join(LIST_FILE), list).unwrap();
        let gone = remove_leftovers_in(parent.path());
        let stays = path.join("theirs/file").exists() && path.join(LIST_FILE).exists();
        CommandLocation::Here.run(&["umount", &at("theirs")]).unwrap();
        assert!(stays && gone == [format!("mount {}", at("ours"))], "{gone:?}");
        assert_eq!(remove_leftovers_in(parent.path()), [path.display().to_string()]);
    }

    #[test]
    fn a_list_names_only_what_carries_its_token() {
        let token = "0123456789abcdef";
        let id = crate::run_directory::RunDirectory::create(tempfile::tempdir().unwrap().path())
            .unwrap()
            .nvme_host_id();
        for line in [
            "[\"namespace\",\"bw-0123456789abcdee-0t\"]",
            "[\"namespace\",\"bw-0123456789abcdef/../x\"]",
            "[\"mount\",\"../x\",\"ext4\"]",
            "[\"mount\",\"/x\",\"ext4\"]",
            "[\"lio\",\"bw\"]",
            "[\"iscsi-interface\",\"default\"]",
            &format!("[\"nvme-host\",\"{id}\"]"),
            "[\"memory\",\"x\"]",
            "[\"memory-group\",\"/sys/fs/cgroup/system.slice\"]",
            "[\"memory-group\",\"/etc/bw-0123456789abcdef-0\"]",
            "{}",
            "",
        ] {
            assert_eq!(CreatedResource::parse(line, token), None, "{line}");
        }
        let line = "[\"namespace\",\"bw-0123456789abcdef-0t\"]";
        assert_eq!(
            CreatedResource::parse(line, token),
            Some(CreatedResource::Namespace("bw-0123456789abcdef-0t".to_owned()))
        );
    }
}
