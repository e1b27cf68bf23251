//! One file, `volume`, as large as the volume, through /dev/fuse; and a loop device over it where that is
//! allowed, so that file systems and partitions have a block device.
//!
//! The kernel's messages are handled directly, without a library. The kernel does not cache the file
//! (FOPEN_DIRECT_IO): writes of other hosts are visible, and a loop device's own cache is the only one.
//! Truncating the file has no effect, as with a block device.
//!
//! # The end
//! [`ServerStop`] hides the mount and ends when the last user of file and device is gone. A second request ends it
//! at once, and users get errors (EIO, ENOTCONN).
//!
//! # Recovery
//! If the process is killed and no other process holds the FUSE descriptor, the kernel answers everything
//! with ENOTCONN. The dead mount stays until [`unmount_dead`] removes it ([`Server::new`] calls it for its own mount
//! point); the loop device goes with its last user. But if another process holds the descriptors of
//! [`MountedFile::kept`], users wait, and [`Server::recover`] serves them again from [`InheritedMount`]:
//! requests in flight are sent again (FUSE_NOTIFY_RESEND, Linux 6.9). When the last holder closes the
//! descriptors, waiting users get errors.
//!
//! # Sizes
//! A new size of the volume appears at the file at once, and at the loop device soon after.

mod handler;
mod mount;
mod wire;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use mount::{CreatedDir, MountId, check_available, unmount_dead, unmount_dead_id};

use crate::disk::Disk;
use crate::event_loop;
use crate::event_waiter::ServerStop;
use crate::statistics::Statistics;
use mount::FuseMount;

/// The file's name.
pub const MOUNTED_FILE_NAME: &str = "volume";

/// Whether a loop device is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopDevicePolicy {
    /// If the system has one to give; else the file is all.
    #[default]
    IfAllowed,
    /// Only the file.
    Never,
}

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where to mount; made (mode 0700) if it is not there, and then removed in the end.
    pub dir: PathBuf,
    /// Whether users other than the one who mounts may open the file if its mode lets them.
    pub allow_other: bool,
    /// The file's permissions; writing is taken out for volumes that only may be read.
    pub mode: u32,
    /// Whether a loop device is wanted.
    pub loop_devices: LoopDevicePolicy,
    /// Requests at work at a time.
    pub depth: u16,
}

impl Settings {
    /// What fits most: mode 0600, a loop device if allowed, 256 requests.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Settings {
            dir: dir.into(),
            allow_other: false,
            mode: 0o600,
            loop_devices: LoopDevicePolicy::default(),
            depth: 256,
        }
    }
}

/// What users open.
#[derive(Debug)]
pub struct MountedFile<'a> {
    /// The file.
    pub file: &'a Path,
    /// The loop device over it.
    pub device: Option<&'a Path>,
    /// Why there is no loop device, if one was wanted.
    pub why: Option<io::Error>,
    /// What another process may hold, so that users wait if this one is killed; `None`: the kernel could
    /// not ask again what was in flight (before Linux 6.9), so that holding on would leave users waiting
    /// for ever.
    pub kept: Option<BorrowedMount<'a>>,
}

/// Called once, when a place can be used, or before anything is served of one that is recovered; what it says ends the
/// server.
pub type ReadyCallback<'a> = &'a mut dyn FnMut(MountedFile<'_>) -> io::Result<()>;

/// What serves a place, lent: to be given to another process that holds on.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedMount<'a> {
    /// The kernel's end.
    pub fuse: BorrowedFd<'a>,
    /// The loop device. It stays until the last holder has closed it.
    pub device: Option<BorrowedFd<'a>>,
    /// What [`InheritedMount`] says beside the descriptors.
    pub facts: MountHandover,
}

/// What a process that takes over a mount must know beside its descriptors: what the kernel was told when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountHandover {
    /// The longest write that the kernel may send, in bytes.
    pub write_max: u32,
    /// What tells the mount apart.
    pub name: MountId,
    /// The directory, if it was made by us, and is to be removed.
    pub made: Option<CreatedDir>,
    /// `fusermount3` mounted it.
    pub by_program: bool,
}

/// What is left of a server whose process was killed.
#[derive(Debug)]
pub struct InheritedMount {
    /// The kernel's end.
    pub fuse: OwnedFd,
    /// The loop device.
    pub device: Option<OwnedFd>,
    /// What the kernel was told.
    pub facts: MountHandover,
}

/// A mounted file that waits to be served.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    mount: FuseMount,
    fuse: OwnedFd,
    /// What the server before this one left: the loop device, and the longest write.
    inherited: Option<(Option<OwnedFd>, u32)>,
    statistics: Arc<Statistics>,
}

impl Server {
    /// Mounts. Who opens the file waits until [`Server::run`] serves it.
    ///
    /// # Errors
    /// What the system says: there is no /dev/fuse, the directory cannot be made, or neither this process
    /// nor the program `fusermount3` may mount.
    pub fn new(settings: Settings) -> io::Result<Server> {
        let (mount, fuse) = FuseMount::new(&settings.dir, settings.allow_other)?;
        Ok(Server { settings, mount, fuse, inherited: None, statistics: Arc::default() })
    }

    /// Goes on where a server ended whose process was killed; [`Server::run`] then serves its users, and is
    /// asked again what was in flight. The disk must be of the same volume, and nothing that the killed
    /// process had sent may reach it any more: who calls this sees to both.
    ///
    /// # Errors
    /// What the system says of the descriptors; `BrokenPipe` if the kernel has ended the connection.
    pub fn recover(settings: Settings, kept: InheritedMount) -> io::Result<Server> {
        let InheritedMount { fuse, device, facts } = kept;
        let mount = FuseMount::from_handover(&settings.dir, &facts)?;
        rustix::io::ioctl_fionbio(&fuse, true)?;
        let inherited = Some((device, facts.write_max));
        Ok(Server { settings, mount, fuse, inherited, statistics: Arc::default() })
    }

    /// Counters, which go on while the server runs.
    pub fn io_counters(&self) -> Arc<Statistics> {
        self.statistics.clone()
    }

    /// Serves `disk` until `stop` is asked and all users are gone (or it is asked twice), or somebody
    /// unmounts the place. `ready` is called once, when the loop device is there or it is known that there
    /// will be none; of a place that is recovered, which keeps the loop device that it has, before anything that
    /// waits there is asked for, so that who is told can see to what is to be done if this process dies, too. If it
    /// fails, or anything before it, a recovered place stays as it was found, for anyone who recovers it next; a new
    /// one is taken away.
    ///
    /// # Errors
    /// What `ready` says. Of the disk, when it is gone: all that was out has been answered with an error. Of the
    /// system, or the kernel, if it speaks an older protocol (before Linux 4.20) or takes no answers: then a place
    /// that could be kept ([`MountedFile::kept`]) stays as it is, and its users wait as long as somebody holds what was
    /// kept: who called this sees to that.
    pub fn run(
        &mut self,
        disk: &mut dyn Disk,
        stop: &ServerStop,
        ready: ReadyCallback<'_>,
    ) -> io::Result<()> {
        let mut handler = handler::FuseHandler::new(self, disk, ready)?;
        let result = event_loop::run_event_loop(&mut handler, disk, stop);
        if result.is_err() && handler.may_be_recovered() {
            self.mount.settled = false;
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.mount.unmount_answering(&self.fuse);
    }
}
