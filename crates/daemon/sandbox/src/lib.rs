//! The daemon's own sandbox: which files, ports and system calls it may use from a moment on, for good.
//!
//! Files and TCP ports are the kernel's business by landlock, system calls by seccomp. Both hold for every thread that
//! starts later, and neither can be lifted. A kernel that lacks one of them keeps nobody from serving: what is in force
//! is reported ([`Report`]), and status and log say so.
//!
//! Invariant: after [`enforce`], what [`may_open`] and [`may_listen`] deny the kernel denies too, if it has landlock.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod files;
mod system_calls;

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// What a process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Files, and directories with all beneath: to read.
    pub readable: BTreeSet<PathBuf>,
    /// Directories of libraries: to read and to map as code.
    pub executable: BTreeSet<PathBuf>,
    /// Files, devices, and directories with all beneath: to read, write, make and remove.
    pub writable: BTreeSet<PathBuf>,
    /// Directories in which sockets are made and removed.
    pub sockets: BTreeSet<PathBuf>,
    /// TCP ports to listen on; 0: one that the system chooses.
    pub listen: BTreeSet<u16>,
    /// TCP ports to connect to; `None`: all.
    pub connect: Option<BTreeSet<u16>>,
    /// The client of Ceph runs in this process, which asks the system for more than the daemon does.
    pub has_ceph: bool,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Files and ports.
    pub landlock: LandlockState,
    /// System calls; or why they are not filtered.
    pub seccomp: Result<(), String>,
}

/// How far landlock goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LandlockState {
    /// Files, and ports if `ports`; the version of the kernel's interface.
    Enforced {
        /// ABI version.
        abi: u32,
        /// Since ABI 4 (Linux 6.7).
        ports: bool,
    },
    /// Not at all, and why.
    Absent(String),
}

/// What holds for this process, once something does.
static ENFORCED: OnceLock<Enforced> = OnceLock::new();

/// The part of a policy that explains what the kernel denies.
#[derive(Debug)]
struct Enforced {
    /// Directories and files, as the kernel knows them: without symbolic links; `None`: all.
    readable: Option<Vec<PathBuf>>,
    writable: Option<Vec<PathBuf>>,
    /// `None`: all.
    listen: Option<BTreeSet<u16>>,
    connect: Option<BTreeSet<u16>>,
    has_ceph: bool,
}

/// Restricts this thread and those that it starts to the policy's files and ports, and the whole process to the system
/// calls of a daemon. Nothing undoes it. Paths that do not exist are left out.
pub fn enforce(policy: &Policy) -> Report {
    let real = |paths: &BTreeSet<PathBuf>| -> Vec<PathBuf> {
        paths.iter().filter_map(|path| path.canonicalize().ok()).collect()
    };
    let writable = real(&policy.writable);
    let readable = [real(&policy.readable), real(&policy.executable), writable.clone()].concat();
    let landlock = match files::restrict_files(policy) {
        Ok((abi, ports)) => LandlockState::Enforced { abi, ports },
        Err(why) => LandlockState::Absent(why),
    };
    let seccomp = system_calls::restrict_system_calls(policy.has_ceph);
    let (has_files, has_ports) = match landlock {
        LandlockState::Enforced { ports, .. } => (true, ports),
        LandlockState::Absent(_) => (false, false),
    };
    let listen = has_ports.then(|| policy.listen.clone());
    let connect = policy.connect.clone().filter(|_| has_ports);
    let has_ceph = policy.has_ceph || (!has_files && seccomp.is_err());
    let (readable, writable) = (has_files.then_some(readable), has_files.then_some(writable));
    let _only_once = ENFORCED.set(Enforced { readable, writable, listen, connect, has_ceph });
    Report { landlock, seccomp }
}

/// Denies the calling thread every file that it has not opened yet, and every TCP port; for a thread that began
/// before [`enforce`]. False: the kernel has no landlock.
pub fn deny_files_to_this_thread() -> bool {
    files::restrict_files(&Policy { connect: Some(BTreeSet::new()), ..Policy::default() }).is_ok()
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be read.
    Read,
    /// To be read and written, or made.
    Write,
}

/// Whether the sandbox lets this process open a file; true where there is none.
pub fn may_open(path: &Path, access: Access) -> bool {
    let Some(enforced) = ENFORCED.get() else { return true };
    let usable = match access {
        Access::Read => &enforced.readable,
        Access::Write => &enforced.writable,
    };
    let Some(usable) = usable else { return true };
    // Of one that does not exist the directory decides.
    let real = path.ancestors().find_map(|part| part.canonicalize().ok());
    real.is_none_or(|real| usable.iter().any(|usable| real.starts_with(usable)))
}

/// Whether the sandbox lets this process listen on a TCP port.
pub fn may_listen(port: u16) -> bool {
    ENFORCED.get().and_then(|enforced| enforced.listen.as_ref()).is_none_or(|ports| ports.contains(&port))
}

/// Whether the sandbox lets this process connect to a TCP port.
pub fn may_connect(port: u16) -> bool {
    ENFORCED.get().and_then(|enforced| enforced.connect.as_ref()).is_none_or(|ports| ports.contains(&port))
}

/// What to do about an error of opening `path`, if it is the sandbox's.
pub fn file_hint(path: &Path, access: Access, why: &io::Error) -> Option<&'static str> {
    let is_ours = why.kind() == io::ErrorKind::PermissionDenied && !may_open(path, access);
    is_ours.then_some(
        "the sandbox of the running daemon does not have this directory: add it to `paths` in [sandbox] and restart \
         the daemon",
    )
}

/// What to do about a port that [`may_connect`] denies.
pub const CONNECT_HINT: &str = "the sandbox of the running daemon does not have this port: restart the daemon with a \
    configuration that has the volume, or add the port to `ports` in [sandbox] and restart";

/// Whether the client of Ceph may run in this process.
pub fn may_run_ceph() -> bool {
    ENFORCED.get().is_none_or(|enforced| enforced.has_ceph)
}

/// What to do where [`may_run_ceph`] denies it.
pub const CEPH_HINT: &str = "the daemon was started without an image of Ceph, and its sandbox has no room for the \
    client: add the volume to the configuration and restart the daemon";

/// What to do about an error of listening on an address, if it is the sandbox's.
pub fn listen_hint(address: SocketAddr, why: &io::Error) -> Option<&'static str> {
    let is_ours = why.kind() == io::ErrorKind::PermissionDenied && !may_listen(address.port());
    is_ours.then_some(
        "the sandbox of the running daemon does not have this port: restart the daemon, or add the port to `ports` in \
         [sandbox] before it starts",
    )
}

#[cfg(test)]
mod tests;
