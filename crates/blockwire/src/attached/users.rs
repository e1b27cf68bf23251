//! Who uses a device: what is mounted of it, swaps to it, stands on it or has it open.
//!
//! Invariant: what cannot be looked at counts as used by nobody only where the system says that it is not there.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::note::Note;

/// Who uses what an attachment made, for people, one entry each.
pub fn of(note: &Note) -> Vec<String> {
    let mut found = Vec::new();
    for way in note.ways.iter().map(Path::new) {
        // A socket's users are its server's affair; asking for a file that nobody serves would wait.
        let Some(device) = way.starts_with("/dev").then(|| number(way)).flatten() else { continue };
        found.extend(of_device(way, device));
    }
    let ours = [Some(note.holder.pid), note.keeper.as_ref().map(|kept| kept.process.pid)];
    found.extend(open_in_processes(&note.ways, &ours));
    found
}

/// The number of a block device, `major:minor`.
fn number(path: &Path) -> Option<String> {
    let facts = fs::metadata(path).ok().filter(|facts| facts.file_type().is_block_device())?;
    let device = facts.rdev();
    Some(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// What is made of a device or of one of its partitions.
fn of_device(way: &Path, device: String) -> Vec<String> {
    let name = way.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let class = Path::new("/sys/class/block").join(&name);
    let mut devices = vec![(name.clone(), device)];
    for part in fs::read_dir(&class).into_iter().flatten().flatten() {
        let part = part.file_name().to_string_lossy().into_owned();
        if part.starts_with(&name)
            && let Ok(number) = fs::read_to_string(class.join(&part).join("dev"))
        {
            devices.push((part, number.trim().to_owned()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut found = Vec::new();
    for (name, number) in devices {
        for line in mounts.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if words.get(2) == Some(&number.as_str()) {
                found.push(format!("/dev/{name} is mounted at {}", words.get(4).unwrap_or(&"?")));
            }
        }
        let path = format!("/dev/{name}");
        if swaps.lines().any(|line| line.split_ascii_whitespace().next() == Some(path.as_str())) {
            found.push(format!("{path} is used as swap"));
        }
        let holders = fs::read_dir(Path::new("/sys/class/block").join(&name).join("holders"));
        for holder in holders.into_iter().flatten().flatten() {
            found.push(format!("{path} is part of /dev/{}", holder.file_name().to_string_lossy()));
        }
    }
    found
}

/// Processes that have one of these open, but for ours; those of other users are seen by root alone.
fn open_in_processes(ways: &[String], ours: &[Option<u32>]) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if ours.contains(&Some(pid)) || pid == std::process::id() {
            continue;
        }
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let target = open.filter_map(|fd| fs::read_link(fd.path()).ok());
        if let Some(way) = target.into_iter().find(|target| ways.iter().any(|way| Path::new(way) == target)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("process {pid} ({}) has {} open", name.trim(), way.display()));
        }
    }
    found
}
