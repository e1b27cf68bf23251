//! A limit of memory for what is started under it: a control group with the memory controller, of version 2 or 1.
//!
//! Invariant: a group is made below this process's own group (version 1) or below the nearest one above it that passes
//! the controller on (version 2), so limits that hold for this process hold for what is in it. It carries the run's
//! token, is listed before it is made, and goes with its owner, once what ran in it has ended.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::Failure;
use crate::created_resources::CreatedResource;
use crate::end_request::wait_until;
use crate::run_directory::RunDirectory;

/// Where control groups are mounted, as the file system hierarchy of systemd has it.
const MOUNT_PREFIX: &str = "/sys/fs/cgroup";
/// How long processes of a group may take to be gone after they were ended.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A group that exists.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    dir: PathBuf,
}

/// Where groups with a memory limit can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupParent {
    dir: PathBuf,
    /// The file that takes the limit.
    limit_file: &'static str,
}

impl MemoryLimit {
    /// Makes a group whose processes may use so many bytes together, their part of the page cache included.
    ///
    /// # Errors
    /// If this system has no group that could be divided so, or does not let us: why.
    pub(crate) fn create(scratch: &RunDirectory, bytes: u64) -> Result<MemoryLimit, Failure> {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let groups = find_parents(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let parent = groups.into_iter().find(|parent| parent.passes_memory_on()).ok_or_else(|| {
            Failure::new("this system has no control group here whose memory could be divided")
        })?;
        let name = scratch.unique_name("bw-", &format!("-{}", scratch.next_number()));
        let dir = parent.dir.join(name);
        let failed = |why: std::io::Error| Failure::new(format!("{}: {why}", dir.display()));
        scratch.note_resource(&CreatedResource::MemoryGroup(dir.display().to_string()))?;
        std::fs::create_dir(&dir).map_err(failed)?;
        let limit = MemoryLimit { dir: dir.clone() };
        std::fs::write(dir.join(parent.limit_file), bytes.to_string()).map_err(failed)?;
        // What is moved to a swap device is in memory no more. A system without one has no such file.
        let swap = dir.join("memory.swap.max");
        if swap.exists() {
            std::fs::write(swap, "0").map_err(failed)?;
        }
        Ok(limit)
    }

    /// The words that run a program in the group.
    pub(crate) fn words_to_run(&self, words: Vec<String>) -> Vec<String> {
        // The shell joins the group and becomes the program.
        let join = "echo $$ >\"$0\" && exec \"$@\"";
        let procs = self.dir.join("cgroup.procs").display().to_string();
        ["sh".to_owned(), "-c".to_owned(), join.to_owned(), procs].into_iter().chain(words).collect()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // What stays is on the list of the run, whose directory goes later.
        let _ = wait_until(EXIT_TIMEOUT, || std::fs::remove_dir(&self.dir).is_ok());
    }
}

/// Whether a path of a list is one of a group that a run could have made; its last part is judged elsewhere.
pub(crate) fn is_group_path(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.starts_with(MOUNT_PREFIX) && path.components().all(is_plain)
}

/// Removes a group that a run has left, if nothing is in it.
pub(crate) fn remove_group(path: &Path) {
    let _ = std::fs::remove_dir(path);
}

impl GroupParent {
    /// Whether groups below it can have a limit. Those of version 1 always can.
    fn passes_memory_on(&self) -> bool {
        if self.limit_file != LIMIT_FILE_V2 {
            return self.dir.is_dir();
        }
        let passed = std::fs::read_to_string(self.dir.join("cgroup.subtree_control")).unwrap_or_default();
        passed.split_ascii_whitespace().any(|controller| controller == "memory")
    }
}

const LIMIT_FILE_V2: &str = "memory.max";
const LIMIT_FILE_V1: &str = "memory.limit_in_bytes";

/// Groups below which one could be made, the nearest first, by what the kernel says of this process's groups and of
/// what is mounted.
fn find_parents(groups: &str, mounts: &str) -> Vec<GroupParent> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let Some((root, at)) = mounts.lines().find_map(|line| parse_group_mount(line, is_v2)) else {
            continue;
        };
        let Ok(below) = Path::new(path).strip_prefix(&root) else { continue };
        // Joined with nothing, a path would end with a slash.
        let own = at.components().chain(below.components()).collect::<PathBuf>();
        if is_v2 {
            // One whose processes are its own passes nothing on: it is the nearest above it that does.
            let above = own.ancestors().take_while(|dir| dir.starts_with(&at));
            found.extend(above.map(|dir| GroupParent { dir: dir.to_owned(), limit_file: LIMIT_FILE_V2 }));
        } else {
            found.push(GroupParent { dir: own, limit_file: LIMIT_FILE_V1 });
        }
    }
    found
}

/// Which group is at which directory, if a line of `mountinfo` is a mount of groups of that version with the memory
/// controller.
fn parse_group_mount(line: &str, is_v2: bool) -> Option<(PathBuf, PathBuf)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, at) = (mount.next()?, mount.next()?);
    let mut kind = kind.split(' ');
    let is_wanted = match (kind.next()?, is_v2) {
        ("cgroup2", true) => true,
        ("cgroup", false) => kind.next_back()?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    (is_wanted && Path::new(at).starts_with(MOUNT_PREFIX)).then(|| (root.into(), at.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::CommandLocation;

    fn dirs(parents: &[GroupParent]) -> Vec<&str> {
        parents.iter().filter_map(|parent| parent.dir.to_str()).collect()
    }

    #[test]
    fn groups_are_found_by_what_the_kernel_says() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = find_parents("0::/user.slice/user-0.slice/session-1.scope\n", mounts);
        assert_eq!(
            dirs(&found),
            [
                "/sys/fs/cgroup/user.slice/user-0.slice/session-1.scope",
                "/sys/fs/cgroup/user.slice/user-0.slice",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
        let mounts = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let groups = "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu:/\n0::/\n";
        let found = find_parents(groups, mounts);
        assert_eq!(dirs(&found), ["/sys/fs/cgroup/memory/jobs/7"]);
        assert_eq!(found[0].limit_file, "memory.limit_in_bytes");
        // In a container the root of the mount is the container's own group.
        let mounts = "32 23 0:28 /jobs/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(dirs(&find_parents(groups, mounts)), ["/sys/fs/cgroup/memory"]);
        assert_eq!(find_parents("", ""), []);
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_no_group() {
        assert!(is_group_path(Path::new("/sys/fs/cgroup/memory/bw-1")));
        assert!(!is_group_path(Path::new("/sys/fs/cgroup/../../../etc")));
        assert!(!is_group_path(Path::new("/etc")) && !is_group_path(Path::new("sys/fs/cgroup/x")));
    }

    /// What is started under a limit is in its group, and the kernel has the limit.
    #[test]
    fn what_is_started_is_in_the_group() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = RunDirectory::create(parent.path()).unwrap();
        let limit = match MemoryLimit::create(&scratch, 32 << 20) {
            Ok(limit) => limit,
            Err(why) => return eprintln!("not tried: {why}"),
        };
        let words = limit.words_to_run(["cat", "/proc/self/cgroup"].map(str::to_owned).to_vec());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let name = limit.dir.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(CommandLocation::Here.run(&words).unwrap().contains(&name));
        let files = [LIMIT_FILE_V1, LIMIT_FILE_V2].map(|file| std::fs::read_to_string(limit.dir.join(file)));
        assert!(files.into_iter().flatten().all(|bytes| bytes.trim() == "33554432"));
        let dir = limit.dir.clone();
        assert!(dir.is_dir());
        drop(limit);
        assert!(!dir.exists());
    }
}
