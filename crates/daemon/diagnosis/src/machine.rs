//! What the machine is like: kernel, limits, space, permissions, addresses, clock.

use std::{
    collections::BTreeSet,
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Examination, Finding};
use process::owned_dir::OwnedDir;

/// Less free than this part of a file system is worth a warning.
const FREE_PART_MIN: u64 = 20;
/// Less free than this is a problem for the state directory, which is written at each change.
const STATE_FREE_MIN: u64 = 16 << 20;
/// Fewer files than this are not enough for a thousand sessions.
const FILES_MIN: u64 = 4096;
/// The program is younger than this: a clock before it is wrong. 2026-01-01.
const CLOCK_MIN: Duration = Duration::from_secs(1_767_225_600);

/// The state directory: is it there, whose is it, has it room?
pub(super) fn examine_state(found: &mut Examination, state: &Path) {
    match OwnedDir::find_existing(state) {
        Ok(Some(_)) => {}
        Ok(None) => return found.saw("state", format!("{} does not exist yet", state.display())),
        Err(why) => {
            found.saw("state", format!("{} cannot be looked at", state.display()));
            let next =
                "run this as root or as the daemon's user; the directory must be that user's, with mode 0700";
            return found.findings.push(Finding::problem(state.display(), why.message, next));
        }
    }
    let Some(space) = Space::of(state) else { return };
    found.saw("state", format!("{}: {}", state.display(), space.text()));
    if space.is_read_only {
        let why = "its file system is mounted read-only: reservations and other changes cannot be saved";
        found.findings.push(Finding::problem(
            state.display(),
            why,
            "see the kernel's log, repair it, mount it read-write",
        ));
    } else if space.free < STATE_FREE_MIN {
        let why = format!("{}: reservations and other changes cannot be saved", space.text());
        found.findings.push(Finding::problem(state.display(), why, "free space on its file system"));
    }
}

/// The file systems of the configured volumes' files.
pub(super) fn examine_volume_space(found: &mut Examination, files: &[PathBuf]) {
    let directories: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    let mut seen = BTreeSet::new();
    for directory in directories {
        let Some(space) = Space::of(directory) else {
            let next = "mount its file system, or correct the path";
            found.findings.push(Finding::problem(
                directory.display(),
                "the directory of a volume cannot be looked at",
                next,
            ));
            continue;
        };
        if !seen.insert(space.file_system) {
            continue;
        }
        found.saw("space", format!("{}: {}", directory.display(), space.text()));
        if space.is_read_only {
            let next = "see the kernel's log, repair it, mount it read-write";
            found.findings.push(Finding::problem(
                directory.display(),
                "its file system is mounted read-only",
                next,
            ));
        } else if space.free < space.size / FREE_PART_MIN {
            let why = format!("{}: writes to thin volumes on it may fail soon", space.text());
            let next = "free space there, or discard unused blocks from the hosts (fstrim)";
            found.findings.push(Finding::warning(directory.display(), why, next));
        }
    }
}

/// Where a start would listen.
pub(super) fn examine_addresses(found: &mut Examination, addresses: &[SocketAddr]) {
    for address in addresses.iter().filter(|address| address.port() != 0) {
        match TcpListener::bind(address) {
            Ok(_) => found.saw("address", format!("{address} is free")),
            Err(why) => {
                let next = match why.kind() {
                    std::io::ErrorKind::AddrInUse => format!(
                        "`ss -ltnp 'sport = :{}'` shows who has it: stop that, or serve on another port",
                        address.port()
                    ),
                    std::io::ErrorKind::AddrNotAvailable => {
                        "this machine does not have that address: `ip address` shows which it has".to_owned()
                    }
                    _ => "serve on a port of 1024 or more, or run as the daemon's unit does".to_owned(),
                };
                found.findings.push(Finding::problem(
                    address,
                    format!("it cannot be listened on: {why}"),
                    next,
                ));
            }
        }
    }
}

/// Kernel, limits, memory and clock. `daemon`: the process whose limits count; else our own.
pub(super) fn examine_system(found: &mut Examination, daemon: Option<u32>) {
    let system = rustix::system::uname();
    found.saw(
        "kernel",
        format!("{} {}", system.release().to_string_lossy(), system.machine().to_string_lossy()),
    );
    examine_uring(found);
    examine_limits(found, daemon);
    examine_memory(found);
    if SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() < CLOCK_MIN {
        let why =
            "the machine's clock is years behind: times in the log and checks of certificates are wrong";
        found.findings.push(Finding::problem("clock", why, "set it (timedatectl set-ntp true)"));
    }
}

fn examine_uring(found: &mut Examination) {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match disabled.trim() {
        "1" | "2" => {
            found.saw("io_uring", "disabled by the system");
            let next = "sysctl kernel.io_uring_disabled=0 allows it";
            let why = "io_uring is disabled: epoll is used, which costs more processor time";
            found.findings.push(Finding::warning("kernel.io_uring_disabled", why, next));
        }
        _ => found.saw("io_uring", "allowed"),
    }
}

fn examine_limits(found: &mut Examination, daemon: Option<u32>) {
    let path = daemon.map_or_else(|| "/proc/self/limits".to_owned(), |pid| format!("/proc/{pid}/limits"));
    let Ok(text) = fs::read_to_string(&path) else {
        return found.saw("limits", format!("{path} cannot be read"));
    };
    // A daemon raises the soft limit as far as it may; what an ordinary process has says little.
    let of = |name: &str, at: usize| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        let value = line.get(name.len()..)?.split_whitespace().nth(at)?;
        Some(if value == "unlimited" { u64::MAX } else { value.parse().ok()? })
    };
    let files = of("Max open files", 1);
    let shown = |value: Option<u64>| match value {
        None => "unknown".to_owned(),
        Some(u64::MAX) => "unlimited".to_owned(),
        Some(value) => value.to_string(),
    };
    let memlock = of("Max locked memory", 0);
    found.saw("limits", format!("{} open files, {} bytes of locked memory", shown(files), shown(memlock)));
    if daemon.is_some() && files.is_some_and(|files| files < FILES_MIN) {
        let why =
            format!("at most {} files: each connection and each file of a volume takes one", shown(files));
        found.findings.push(Finding::warning(
            "limit of open files",
            why,
            "LimitNOFILE=65536 in its unit, or ulimit -n",
        ));
    }
}

fn examine_memory(found: &mut Examination) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (Some(total), Some(available)) = (kib("MemTotal:"), kib("MemAvailable:")) else { return };
    found.saw("memory", format!("{} MiB of {} MiB available", available >> 10, total >> 10));
    if available < total / FREE_PART_MIN {
        let why = format!(
            "{} MiB of {} MiB are left: the system may kill the daemon",
            available >> 10,
            total >> 10
        );
        found.findings.push(Finding::warning(
            "memory",
            why,
            "make RAM volumes or memory in [limits] smaller",
        ));
    }
}

/// A file system.
struct Space {
    file_system: u64,
    free: u64,
    size: u64,
    is_read_only: bool,
}

impl Space {
    fn of(path: &Path) -> Option<Space> {
        let facts = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
        let is_read_only = facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
        let (free, size) = (bytes(facts.f_bavail), bytes(facts.f_blocks));
        Some(Space { file_system: facts.f_fsid, free, size, is_read_only })
    }

    fn text(&self) -> String {
        format!("{} MiB of {} MiB free", self.free >> 20, self.size >> 20)
    }
}
