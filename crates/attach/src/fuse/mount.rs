//! Mounting /dev/fuse at a place, and taking it away again.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

/// The program that mounts for users who may not.
const PROGRAM: &str = "fusermount3";

/// A place where a file system of ours is mounted.
#[derive(Debug)]
pub(super) struct Mount {
    dir: PathBuf,
    /// Whether the directory is ours to remove.
    made: bool,
    /// Whether the set-user-id program mounted it, because we may not.
    by_program: bool,
    mounted: bool,
}

impl Mount {
    /// Mounts at `dir`, which is made if it is not there; gives the kernel's end.
    pub(super) fn new(dir: &Path, allow_other: bool) -> io::Result<(Mount, OwnedFd)> {
        clean(dir)?;
        let made = match std::fs::DirBuilder::new().create(dir) {
            Ok(()) => {
                std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let mut mount = Mount { dir: std::path::absolute(dir)?, made, by_program: false, mounted: false };
        let fuse = match mount.directly(allow_other) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                mount.by_program = true;
                mount.through_program(allow_other)?
            }
            other => other?,
        };
        mount.mounted = true;
        rustix::io::ioctl_fionbio(&fuse, true)?;
        Ok((mount, fuse))
    }

    /// A place that another process mounted, which is gone.
    pub(super) fn inherited(dir: &Path, made: bool, by_program: bool) -> io::Result<Mount> {
        Ok(Mount { dir: std::path::absolute(dir)?, made, by_program, mounted: true })
    }

    /// Whether the directory was made, and whether the program mounted it.
    pub(super) fn facts(&self) -> (bool, bool) {
        (self.made, self.by_program)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn directly(&self, allow_other: bool) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fuse = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions{}",
            fuse.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
            if allow_other { ",allow_other" } else { "" },
        );
        let options = CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME | MountFlags::NOEXEC;
        rustix::mount::mount("blockwire", &self.dir, "fuse.blockwire", flags, Some(options.as_c_str()))?;
        Ok(fuse)
    }

    /// fusermount3 mounts for users who may not, and hands over the descriptor.
    fn through_program(&self, allow_other: bool) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let options = if allow_other { ",allow_other" } else { "" };
        let mut command = Command::new(PROGRAM);
        command.arg("-o").arg(format!(
            "nosuid,nodev,noexec,default_permissions,fsname=blockwire,subtype=blockwire{options}"
        ));
        command.arg("--").arg(&self.dir);
        let number: RawFd = theirs.as_raw_fd();
        command.env("_FUSE_COMMFD", number.to_string());
        // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe; the descriptor
        // is open until the child has ended.
        unsafe {
            command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let out = command.output().map_err(|error| {
            let why = format!("mounting needs root or the program fusermount3 (package fuse3): {error}");
            io::Error::new(error.kind(), why)
        })?;
        drop(theirs);
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, said));
        }
        receive_descriptor(&ours)
    }

    /// Takes the mount away. Who still uses it keeps what is open, and nobody else finds it.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        let result = if self.by_program {
            let status = Command::new(PROGRAM).args(["-u", "-q", "-z", "--"]).arg(&self.dir).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other("fusermount3 -u failed")) }
        } else {
            rustix::mount::unmount(&self.dir, UnmountFlags::DETACH).map_err(Into::into)
        };
        if self.made {
            let _ = std::fs::remove_dir(&self.dir);
        }
        result
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody is left to hear of it.
        let _ = self.detach();
    }
}

/// Whether this process can mount.
///
/// # Errors
/// What is in the way.
pub fn available() -> io::Result<()> {
    crate::choice::open("/dev/fuse", "the kernel has no FUSE, or this container is not given it")?;
    let program = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(PROGRAM).exists()));
    if program || may_mount()? {
        return Ok(());
    }
    let why = "mounting needs CAP_SYS_ADMIN or the program fusermount3 (package fuse3)";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether the process has CAP_SYS_ADMIN.
fn may_mount() -> io::Result<bool> {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    Ok(set >> CAP_SYS_ADMIN & 1 == 1)
}

/// Takes away what a killed process left mounted at `dir`: its file answers every call with ENOTCONN.
/// Says whether there was anything.
///
/// # Errors
/// What the system says, as when the caller may not unmount.
pub fn clean(dir: &Path) -> io::Result<bool> {
    // The kernel may still know what stat says; this it always asks.
    match rustix::fs::statfs(dir) {
        Err(Errno::NOTCONN) => {}
        _ => return Ok(false),
    }
    match rustix::mount::unmount(dir, UnmountFlags::DETACH) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => {
            let status = Command::new(PROGRAM).args(["-u", "-q", "-z", "--"]).arg(dir).status()?;
            if status.success() { Ok(true) } else { Err(Errno::PERM.into()) }
        }
        Err(error) => Err(error.into()),
    }
}

fn receive_descriptor(from: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(from.as_fd(), &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "fusermount3 gave no descriptor"))
}
