//! Who uses a device: mounts, swap, devices on top of it, processes that have it open.
//!
//! Invariant: something that cannot be inspected counts as unused only if the system says that it does not exist.
//! Otherwise its use is unknown, and is reported like a user. Only root sees processes of other users.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;

use super::record::AttachRecord;

/// Users of an attachment, one entry each, for people.
pub fn attachment_users(record: &AttachRecord) -> Vec<String> {
    let mut found = Vec::new();
    for way in record.ways.iter().map(Path::new) {
        // Clients of a socket are the server's business; touching a file without a server would hang.
        if way.starts_with("/dev") {
            found.extend(
                device_holders(way).unwrap_or_else(|why| unknown_users(&way.display().to_string(), &why)),
            );
        }
    }
    let ways = || record.ways.join(" ");
    let loops = loop_devices_over(&record.ways, Path::new("/sys/block"));
    found.extend(loops.unwrap_or_else(|why| unknown_users(&ways(), &why)));
    let ours = [Some(record.holder.pid), record.guardian.as_ref().map(|kept| kept.process.pid)];
    let open = processes_with_open(&record.ways, &ours);
    found.extend(open.unwrap_or_else(|why| unknown_users(&ways(), &why)));
    found
}

fn unknown_users(way: &str, why: &io::Error) -> Vec<String> {
    vec![format!("cannot determine who uses {way}: {why}")]
}

/// What was found; `None`: it does not exist.
fn ok_if_exists<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(why) => {
            let gone = [Errno::NOENT, Errno::NOTDIR, Errno::SRCH, Errno::NODEV, Errno::NXIO];
            let is_gone = gone.iter().any(|errno| why.raw_os_error() == Some(errno.raw_os_error()));
            if is_gone { Ok(None) } else { Err(why) }
        }
    }
}

/// The names in a directory; none if it does not exist.
fn dir_entry_names(dir: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let names = fs::read_dir(dir).and_then(|entries| entries.map(name).collect());
    Ok(ok_if_exists(names)?.unwrap_or_default())
}

fn read_or_empty(path: &Path) -> io::Result<String> {
    Ok(ok_if_exists(fs::read_to_string(path))?.unwrap_or_default())
}

/// The number of a block device, `major:minor`.
fn device_number(path: &Path) -> io::Result<Option<String>> {
    let facts = ok_if_exists(fs::metadata(path))?.filter(|facts| facts.file_type().is_block_device());
    let device = facts.map(|facts| facts.rdev());
    Ok(device.map(|device| format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))))
}

/// Devices on top of a device or one of its partitions.
fn device_holders(way: &Path) -> io::Result<Vec<String>> {
    let Some(device) = device_number(way)? else { return Ok(Vec::new()) };
    let name = way.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let class = Path::new("/sys/class/block").join(&name);
    let mut devices = vec![(name.clone(), device)];
    for part in dir_entry_names(&class)?.into_iter().filter(|part| part.starts_with(&name)) {
        if let Some(number) = ok_if_exists(fs::read_to_string(class.join(&part).join("dev")))? {
            devices.push((part, number.trim().to_owned()));
        }
    }
    let (mounts, swaps) =
        (read_or_empty("/proc/self/mountinfo".as_ref())?, read_or_empty("/proc/swaps".as_ref())?);
    let mut found = Vec::new();
    for (name, number) in devices {
        let path = format!("/dev/{name}");
        let mounted = mounts.lines().filter_map(|line| mount_point_of(line, &path, &number));
        found.extend(mounted.map(|place| format!("{path} is mounted at {place}")));
        if swaps.lines().any(|line| line.split_ascii_whitespace().next() == Some(path.as_str())) {
            found.push(format!("{path} is used as swap"));
        }
        let holders = dir_entry_names(&Path::new("/sys/class/block").join(&name).join("holders"))?;
        found.extend(holders.iter().map(|holder| format!("{path} is part of /dev/{holder}")));
    }
    Ok(found)
}

/// Where a line of proc_pid_mountinfo(5) says that a device is mounted. File systems that have numbers of their
/// own (btrfs) name the device as their source.
fn mount_point_of<'a>(line: &'a str, path: &str, number: &str) -> Option<&'a str> {
    let mut words = line.split(' ');
    let (its_number, place) = (words.nth(2)?, words.nth(1)?);
    let source = words.skip_while(|word| *word != "-").nth(2);
    (its_number == number || source == Some(path)).then_some(place)
}

/// Foreign loop devices over our files (`mount -o loop`, `losetup`). The kernel has the file open, so no process shows
/// it.
fn loop_devices_over(ways: &[String], blocks: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for name in dir_entry_names(blocks)? {
        let file = blocks.join(&name).join("loop/backing_file");
        let Some(backing) = ok_if_exists(fs::read_to_string(file))? else { continue };
        // Its mount was removed.
        let backing = backing.trim_end_matches('\n').trim_end_matches(" (deleted)");
        let device = format!("/dev/{name}");
        if ways.iter().any(|way| way == backing) && !ways.contains(&device) {
            found.push(format!("{device} is a loop device over {backing}"));
        }
    }
    Ok(found)
}

/// Processes, other than ours, that have one of these open; only root sees those of other users.
fn processes_with_open(ways: &[String], ours: &[Option<u32>]) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for pid in dir_entry_names("/proc".as_ref())?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        if ours.contains(&Some(pid)) || pid == std::process::id() {
            continue;
        }
        let process = Path::new("/proc").join(pid.to_string());
        let open = match dir_entry_names(&process.join("fd")) {
            // Another user's.
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => continue,
            other => other?,
        };
        let target = open.iter().filter_map(|fd| fs::read_link(process.join("fd").join(fd)).ok());
        if let Some(way) = target.into_iter().find(|target| ways.iter().any(|way| Path::new(way) == target)) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(format!("process {pid} ({}) has {} open", name.trim(), way.display()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_whose_file_system_has_a_number_of_its_own_is_seen() {
        let ext4 = "36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/ublkb0 rw";
        let btrfs = "37 35 0:45 /sub /srv rw,noatime shared:2 master:1 - btrfs /dev/ublkb0 rw";
        assert_eq!(mount_point_of(ext4, "/dev/ublkb1", "98:0"), Some("/mnt"));
        assert_eq!(mount_point_of(btrfs, "/dev/ublkb0", "98:0"), Some("/srv"));
        assert_eq!(mount_point_of(btrfs, "/dev/ublkb1", "98:1"), None);
        assert_eq!(mount_point_of("37 35", "/dev/ublkb1", "98:1"), None);
    }

    #[test]
    fn a_device_of_which_it_cannot_be_told_who_uses_it_is_not_taken_for_unused() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(ok_if_exists::<()>(Err(errno.into())).is_err(), "{errno:?}");
        }
        assert!(ok_if_exists::<()>(Err(Errno::NOENT.into())).unwrap().is_none());
        assert_eq!(unknown_users("/dev/a", &Errno::MFILE.into()).len(), 1);
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
        assert_eq!(
            loop_devices_over(&ways, root.path()).unwrap(),
            [format!("/dev/loop1 is a loop device over {file}")]
        );
    }
}
