//! Mounts /dev/fuse at a mount point, and unmounts it.
//!
//! Invariant: only mounts and directories that were created here, or by the process before this one, are
//! unmounted or removed. They are identified by a name that no other mount has had, and handled by
//! descriptor.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{MountHandover, wire};

/// The program that mounts for users who may not.
const FUSERMOUNT_PROGRAM: &str = "fusermount3";
/// How long what is served no more waits for that program.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a file system of ours may take to answer.
const STATFS_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at it, and at what the kernel asks.
const UNMOUNT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest request: a write of 1 MiB, and what stands before it.
const REQUEST_LEN_MAX: usize = (1 << 20) + 4096;
/// What the kernel calls our file systems.
const FILESYSTEM_TYPE: &str = "fuse.blockwire";

/// What a mount is told apart by from all others, ours and theirs, that may stand at its place later: the kernel
/// gives numbers of mounts and devices again at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountId(pub u64);

impl MountId {
    fn new() -> io::Result<MountId> {
        let mut bytes = [0; 8];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
            8 => Ok(MountId(u64::from_ne_bytes(bytes))),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl std::fmt::Display for MountId {
    /// As /proc/self/mountinfo and `df` show it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "blockwire-{:016x}", self.0)
    }
}

/// A directory that was made, told apart from another that is made there later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedDir {
    /// The device of its file system.
    pub device: u64,
    /// The number of its inode.
    pub inode: u64,
}

impl CreatedDir {
    /// The directory that a descriptor means, or that is at a path from there. It is not asked of a file system
    /// that may answer nobody: the kernel says what it knows.
    fn from_directory(from: impl AsFd, path: &Path) -> io::Result<CreatedDir> {
        let flags = AtFlags::SYMLINK_NOFOLLOW
            | AtFlags::NO_AUTOMOUNT
            | AtFlags::EMPTY_PATH
            | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::TYPE;
        let facts = rustix::fs::statx(from, path, flags, wanted)?;
        let device = rustix::fs::makedev(facts.stx_dev_major, facts.stx_dev_minor);
        Ok(CreatedDir { device, inode: facts.stx_ino })
    }

    /// Removes the directory, if it is this one, and empty.
    pub fn remove_if_same(self, dir: &Path) {
        if CreatedDir::from_directory(rustix::fs::CWD, dir).is_ok_and(|now| now == self) {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// A place where a file system of ours is mounted.
#[derive(Debug)]
pub(super) struct FuseMount {
    dir: PathBuf,
    name: MountId,
    /// The directory, if it is ours to remove.
    made: Option<CreatedDir>,
    /// Whether the set-user-id program mounted it, because we may not.
    by_program: bool,
    mounted: bool,
    /// What takes it away for users who may not; in tests it is another.
    program: &'static str,
    /// That program at work: it may ask the file system that it takes away, so nobody who serves that waits for it.
    at_work: Option<Child>,
    /// It is ours to take away; one that another process mounted is once its users know of us.
    pub(super) settled: bool,
}

impl FuseMount {
    /// Mounts at `dir`, which is made if it is not there; gives the kernel's end.
    pub(super) fn new(dir: &Path, allow_other: bool) -> io::Result<(FuseMount, OwnedFd)> {
        use std::os::unix::fs::DirBuilderExt;
        unmount_dead(dir)?;
        let is_new = match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let at = open_directory(dir).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => io::Error::new(
                io::ErrorKind::NotADirectory,
                "it must be a directory, not a file or a link: name an empty one",
            ),
            other => other.into(),
        })?;
        let made = is_new.then(|| CreatedDir::from_directory(&at, Path::new(""))).transpose()?;
        let (dir, name) = (std::path::absolute(dir)?, MountId::new()?);
        let mut mount = FuseMount::mounted_at(dir, name, made);
        (mount.mounted, mount.settled) = (false, true);
        let fuse = match mount.mount_directly(&at, allow_other) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                mount.by_program = true;
                mount.mount_by_fusermount(allow_other)
            }
            other => other,
        };
        let fuse = fuse.inspect_err(|_| mount.remove_created_dir())?;
        mount.mounted = true;
        rustix::io::ioctl_fionbio(&fuse, true)?;
        Ok((mount, fuse))
    }

    #[cfg(test)]
    pub(super) fn uses_fusermount(&self) -> bool {
        self.by_program
    }

    #[cfg(test)]
    pub(super) fn set_fusermount(&mut self, program: &'static str) {
        (self.by_program, self.program) = (true, program);
    }

    /// A place that another process mounted, which is gone. Until it is `settled`, it stays as it is.
    pub(super) fn from_handover(dir: &Path, facts: &MountHandover) -> io::Result<FuseMount> {
        let MountHandover { name, made, by_program, .. } = *facts;
        let dir = std::path::absolute(dir)?;
        let mut mount = FuseMount::mounted_at(dir, name, made);
        mount.by_program = by_program;
        Ok(mount)
    }

    fn mounted_at(dir: PathBuf, name: MountId, made: Option<CreatedDir>) -> FuseMount {
        let (by_program, at_work) = (false, None);
        FuseMount {
            dir,
            name,
            made,
            by_program,
            mounted: true,
            program: FUSERMOUNT_PROGRAM,
            at_work,
            settled: false,
        }
    }

    /// What another process must know that goes on with it.
    pub(super) fn handover(&self, write_max: u32) -> MountHandover {
        MountHandover { write_max, name: self.name, made: self.made, by_program: self.by_program }
    }

    pub(super) fn mount_dir(&self) -> &Path {
        &self.dir
    }

    /// What opens a file of this very mount.
    pub(super) fn file_opener(&self) -> MountFileOpener {
        MountFileOpener { dir: self.dir.clone(), name: self.name }
    }

    /// At the very directory that was opened, whatever its path means by now.
    fn mount_directly(&self, at: &OwnedFd, allow_other: bool) -> io::Result<OwnedFd> {
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
        rustix::mount::mount(
            self.name.to_string(),
            proc_fd_path(at),
            FILESYSTEM_TYPE,
            flags,
            Some(options.as_c_str()),
        )?;
        Ok(fuse)
    }

    /// fusermount3 mounts for users who may not, and hands over the descriptor.
    fn mount_by_fusermount(&self, allow_other: bool) -> io::Result<OwnedFd> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let options = if allow_other { ",allow_other" } else { "" };
        let mut command = Command::new(FUSERMOUNT_PROGRAM);
        command.arg("-o").arg(format!(
            "nosuid,nodev,noexec,default_permissions,fsname={},subtype=blockwire{options}",
            self.name
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

    /// Takes the mount away. Who still uses it keeps what is open, and nobody else finds it. What stands at
    /// its place and is not this mount stays.
    ///
    /// # Errors
    /// `ResourceBusy` if others have mounted something over it; `WouldBlock` while a program takes it away; what the
    /// system says. It may be tried again.
    pub(super) fn detach(&mut self) -> io::Result<()> {
        if !self.mounted || !self.settled {
            return Ok(());
        }
        if let Some(program) = &mut self.at_work {
            let ended = program.try_wait()?.ok_or(io::ErrorKind::WouldBlock)?;
            self.at_work = None;
            if !ended.success() {
                return Err(io::Error::other(format!("{} -u failed", self.program)));
            }
        }
        match TopMount::find_at(&self.dir)? {
            Some(standing) if standing.has_id(self.name) && self.by_program => {
                standing.refuse_if_mounted_over(&self.dir)?;
                self.at_work = Some(unmount_command(self.program, &self.dir).spawn()?);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Some(standing) if standing.has_id(self.name) => standing.unmount_top(&self.dir)?,
            Some(standing) if standing.lies_over(self.name) => return Err(mounted_over_error(&self.dir)),
            // Somebody else has taken it away.
            Some(_) | None => {}
        }
        self.mounted = false;
        self.remove_created_dir();
        Ok(())
    }

    /// Takes the mount away when it is served no more. A program that does it may ask for it still: it and everybody
    /// else who asks is refused, for a while.
    pub(super) fn unmount_answering(&mut self, fuse: &OwnedFd) {
        // As large as the largest write, or the kernel ends the connection's requests by itself.
        let mut request = Vec::new();
        let until = Instant::now() + UNMOUNT_TIMEOUT;
        while self.detach().is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock)
            && Instant::now() < until
        {
            request.resize(REQUEST_LEN_MAX, 0);
            let came = rustix::io::read(fuse, request.as_mut_slice());
            let header = came.ok().and_then(|n| wire::InHeader::read_from_prefix(request.get(..n)?).ok());
            let Some((wire::InHeader { unique, .. }, _)) = header else {
                std::thread::sleep(UNMOUNT_POLL_INTERVAL);
                continue;
            };
            let refused =
                wire::OutHeader { len: size_of::<wire::OutHeader>() as u32, error: -libc::EIO, unique };
            let _ = rustix::io::write(fuse, refused.as_bytes());
        }
    }

    fn remove_created_dir(&mut self) {
        if let Some(made) = self.made.take() {
            made.remove_if_same(&self.dir);
        }
    }
}

/// A way to the files of one mount that leads to no others.
#[derive(Debug)]
pub(super) struct MountFileOpener {
    dir: PathBuf,
    name: MountId,
}

impl MountFileOpener {
    /// Opens a file of the mount: what stands at its place, or over the file, is not taken for it. It waits for the
    /// file system's server.
    ///
    /// # Errors
    /// `ResourceBusy` if something else stands there; what the system says.
    pub(super) fn open(&self, file: &str, is_written: bool) -> io::Result<File> {
        let standing = TopMount::find_at(&self.dir)?.filter(|standing| standing.has_id(self.name));
        let Some(standing) = standing else { return Err(mounted_over_error(&self.dir)) };
        let access = if is_written { OFlags::RDWR } else { OFlags::RDONLY };
        let only_here = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(&standing.at, file, access | OFlags::CLOEXEC, Mode::empty(), only_here) {
            Ok(file) => Ok(file.into()),
            Err(Errno::XDEV) => Err(mounted_over_error(&self.dir.join(file))),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        // Nobody is left to hear of it.
        let _ = self.detach();
        if let Some(mut program) = self.at_work.take() {
            // It ends when nobody has the kernel's end any more; somebody must have waited for it then.
            let _ = std::thread::Builder::new().name("fusermount".into()).spawn(move || program.wait());
        }
    }
}

fn mounted_over_error(dir: &Path) -> io::Error {
    let why = format!("something else is mounted over {}: unmount that first", dir.display());
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// A directory itself, without asking the file system in it: it may be one that answers nobody.
fn open_directory(dir: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty())
}

/// A name of what a descriptor means that follows no path.
fn proc_fd_path(at: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", at.as_raw_fd())
}

/// The mount that a directory is on, the uppermost of those that are there.
#[derive(Debug)]
struct TopMount {
    /// While it is held, its number is no other mount's.
    at: OwnedFd,
    id: String,
    kind: String,
    source: String,
    options: String,
    /// /proc/self/mountinfo.
    table: String,
}

impl TopMount {
    /// `None`: there is no such directory.
    fn find_at(dir: &Path) -> io::Result<Option<TopMount>> {
        let at = match open_directory(dir) {
            Ok(at) => at,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let unknown = || io::Error::other("/proc does not show which file system is mounted there");
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", at.as_raw_fd()))?;
        let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:")).ok_or_else(unknown)?;
        let (id, table) = (id.trim().to_owned(), std::fs::read_to_string("/proc/self/mountinfo")?);
        let line = table.lines().find(|line| line.split(' ').next() == Some(&id)).ok_or_else(unknown)?;
        let (kind, source, options) = parse_mountinfo_line(line).ok_or_else(unknown)?;
        let [kind, source, options] = [kind, source, options].map(str::to_owned);
        Ok(Some(TopMount { at, id, kind, source, options, table }))
    }

    fn has_id(&self, name: MountId) -> bool {
        self.kind == FILESYSTEM_TYPE && self.source == name.to_string()
    }

    /// Whether it is one of this program's that this user mounted.
    fn is_own_mount(&self) -> bool {
        let user = format!("user_id={}", rustix::process::getuid().as_raw());
        let is_named = self.source == "blockwire" || self.source.starts_with("blockwire-");
        self.kind == FILESYSTEM_TYPE && is_named && self.options.split(',').any(|option| option == user)
    }

    /// Whether that mount lies under this one.
    fn lies_over(&self, name: MountId) -> bool {
        let (mut id, source) = (self.id.clone(), name.to_string());
        // From each to the one that it is mounted on; there are no more than lines.
        for _ in self.table.lines() {
            let line = self.table.lines().find(|line| line.split(' ').next() == Some(&id));
            let Some(line) = line else { return false };
            if parse_mountinfo_line(line).is_some_and(|(kind, of, _)| kind == FILESYSTEM_TYPE && of == source)
            {
                return true;
            }
            id = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        false
    }

    /// Refuses to take away what others have mounted something in or over.
    fn refuse_if_mounted_over(&self, dir: &Path) -> io::Result<()> {
        let is_busy = self.table.lines().any(|line| line.split(' ').nth(1) == Some(&self.id));
        if is_busy { Err(mounted_over_error(dir)) } else { Ok(()) }
    }

    /// Takes this very mount away, and nothing that others have mounted in or over it. A user who may not has a
    /// program do it, and waits: not to be called by who serves it, unless he may.
    fn unmount_top(&self, dir: &Path) -> io::Result<()> {
        self.refuse_if_mounted_over(dir)?;
        match rustix::mount::unmount(proc_fd_path(&self.at), UnmountFlags::DETACH) {
            Err(Errno::PERM) => match unmount_command(FUSERMOUNT_PROGRAM, dir).status()?.success() {
                true => Ok(()),
                false => Err(io::Error::other("fusermount3 -u failed")),
            },
            other => Ok(other?),
        }
    }
}

fn unmount_command(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-u", "-q", "-z", "--"]).arg(dir);
    command
}

/// Kind, source and options of the file system of a line of mountinfo (proc(5)).
fn parse_mountinfo_line(line: &str) -> Option<(&str, &str, &str)> {
    let mut words = line.split_once(" - ")?.1.split(' ');
    Some((words.next()?, words.next()?, words.next()?))
}

/// Whether this process can mount.
///
/// # Errors
/// What is in the way.
pub fn check_available() -> io::Result<()> {
    crate::device_node::check_openable(
        "/dev/fuse",
        "the kernel has no FUSE, or this container has no access to it",
    )?;
    let program = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(FUSERMOUNT_PROGRAM).exists()));
    if program || has_cap_sys_admin()? {
        return Ok(());
    }
    let why = "mounting needs CAP_SYS_ADMIN or the program fusermount3 (package fuse3)";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Whether the process has CAP_SYS_ADMIN.
fn has_cap_sys_admin() -> io::Result<bool> {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    Ok(set >> CAP_SYS_ADMIN & 1 == 1)
}

/// Takes away what a killed process of ours left mounted at `dir`: its file answers every call with ENOTCONN.
/// Says whether there was anything. Others' file systems stay, dead ones too.
///
/// # Errors
/// What the system says, as when the caller may not unmount.
pub fn unmount_dead(dir: &Path) -> io::Result<bool> {
    unmount_dead_if(dir, TopMount::is_own_mount)
}

/// The same for one mount only.
///
/// # Errors
/// As [`unmount_dead`].
pub fn unmount_dead_id(dir: &Path, name: MountId) -> io::Result<bool> {
    unmount_dead_if(dir, |standing| standing.has_id(name))
}

fn unmount_dead_if(dir: &Path, is_meant: impl FnOnce(&TopMount) -> bool) -> io::Result<bool> {
    let Some(standing) = TopMount::find_at(dir)?.filter(is_meant) else { return Ok(false) };
    match statfs_with_timeout(standing.at.try_clone()?)? {
        Err(Errno::NOTCONN) => standing.unmount_top(dir).map(|()| true),
        _ => Ok(false),
    }
}

/// What a file system answers whose kernel's end somebody may hold who serves nobody: then the question waits as long
/// as that, and nobody waits with it.
fn statfs_with_timeout(at: OwnedFd) -> io::Result<rustix::io::Result<()>> {
    let (say, said) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("statfs".into()).spawn(move || {
        // The kernel may still know what stat says; this it always asks.
        let _ = say.send(rustix::fs::fstatfs(&at).map(drop));
    })?;
    said.recv_timeout(STATFS_TIMEOUT).map_err(|_| {
        let why =
            "the file system there does not respond: its server hangs, or was killed and a guardian holds it";
        io::Error::new(io::ErrorKind::TimedOut, why)
    })
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
