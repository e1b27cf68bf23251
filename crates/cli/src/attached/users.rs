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
    found.extend(loops(&note.ways, Path::new("/sys/block")));
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
        let path = format!("/dev/{name}");
        let mounted = mounts.lines().filter_map(|line| mounted_at(line, &path, &number));
        found.extend(mounted.map(|place| format!("{path} is mounted at {place}")));
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

/// Where a line of proc_pid_mountinfo(5) says that a device is mounted. File systems that have numbers of their
/// own (btrfs) name the device as their source.
fn mounted_at<'a>(line: &'a str, path: &str, number: &str) -> Option<&'a str> {
    let mut words = line.split(' ');
    let (its_number, place) = (words.nth(2)?, words.nth(1)?);
    let source = words.skip_while(|word| *word != "-").nth(2);
    (its_number == number || source == Some(path)).then_some(place)
}

/// Loop devices over files of ours that are none of ours: `mount -o loop`, `losetup`. The kernel has the file open,
/// so no process shows it.
fn loops(ways: &[String], blocks: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(blocks).into_iter().flatten().flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        // Of a mount that was taken away.
        let backing = backing.trim_end_matches('\n').trim_end_matches(" (deleted)");
        let device = format!("/dev/{}", entry.file_name().to_string_lossy());
        if ways.iter().any(|way| way == backing) && !ways.contains(&device) {
            found.push(format!("{device} is a loop device over {backing}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_whose_file_system_has_a_number_of_its_own_is_seen() {
        let ext4 = "36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/ublkb0 rw";
        let btrfs = "37 35 0:45 /sub /srv rw,noatime shared:2 master:1 - btrfs /dev/ublkb0 rw";
        assert_eq!(mounted_at(ext4, "/dev/ublkb1", "98:0"), Some("/mnt"));
        assert_eq!(mounted_at(btrfs, "/dev/ublkb0", "98:0"), Some("/srv"));
        assert_eq!(mounted_at(btrfs, "/dev/ublkb1", "98:1"), None);
        assert_eq!(mounted_at("37 35", "/dev/ublkb1", "98:1"), None);
    }

    #[test]
    fn a_file_is_not_pulled_from_under_a_loop_device_that_somebody_made_of_it() {
        let root = tempfile::tempdir().unwrap();
        let file = "/run/blockwire/attached/1.mount/disk";
        for (name, backing) in [("loop0", file), ("loop1", file), ("loop2", "/etc/other")] {
            let dir = root.path().join(name).join("loop");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("backing_file"), format!("{backing}\n")).unwrap();
        }
        fs::create_dir(root.path().join("sda")).unwrap();
        // The first is the attachment's own.
        let ways = ["/dev/loop0".to_owned(), file.to_owned()];
        assert_eq!(loops(&ways, root.path()), [format!("/dev/loop1 is a loop device over {file}")]);
    }
}
