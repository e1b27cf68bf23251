//! Files and block devices of this machine, as the load generator drives them: past the page cache.
//!
//! They are driven by the code that serves them as volumes ([`backends::File`]), on a world of their own.
//! Invariant: nothing is written to what this machine itself, or another process of ours, is using.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use backends::{FileDisk, FileFacts};
use buf::{Class, Cx, Errno, SgMut, Time};
use endpoint::{Arrival, Departure, Endpoint, LinkId, ShardId};
use eval::load::Shape;
use initiator::{Done, Io, IoChoice};
use reactor::{Config, Inline};
use rustix::fs::OFlags;
use stream::{Came, RecvOp, SendOp};
use volume::{Backend, DiskId, DiskOp};

use super::super::place::{self, Key};
use crate::exit::Failure;

/// How a file is named; devices are named by their paths in `/dev`.
const FILE: &str = "file:";
/// Alignment for O_DIRECT where the system does not tell a file's: a page suits all file systems.
const PAGE: u32 = 4096;

/// The path of a disk of this machine; `None`: it is a volume of another kind.
pub(super) fn path(url: &str) -> Option<&str> {
    url.strip_prefix(FILE).or_else(|| url.starts_with("/dev/").then_some(url))
}

/// Disks of one thread, and the world that moves their bytes.
pub(super) struct Disks {
    inline: Inline<Ends>,
    names: Vec<String>,
    shapes: Vec<Shape>,
}

impl Disks {
    /// Opens all disks that a thread uses. `writes`: they are to be written.
    pub(super) fn open(
        urls: &[&str],
        writes: bool,
        (io, memory, poll_ns_max): (IoChoice, usize, u64),
    ) -> Result<Disks, Failure> {
        let (mut names, mut shapes) = (Vec::new(), Vec::new());
        let (mut files, mut ends) = (Vec::new(), Vec::new());
        for url in urls {
            let path = path(url).ok_or_else(|| Failure::usage(format!("{url}: this is no disk of here")))?;
            let file = open(path, writes)?;
            let facts = facts(path, &file)?;
            let id = DiskId(files.len() as u32);
            let disk =
                FileDisk::new(id, &facts, 1).map_err(|why| Failure::usage(format!("{path}: {why}")))?;
            let geometry = disk.geometry();
            shapes.push(Shape { bytes: geometry.bytes(), block: geometry.logical });
            names.push((*url).to_owned());
            files.push(Arc::new(OwnedFd::from(file)));
            ends.push(backends::File::new(Arc::new(disk), 0));
        }
        let config = Config { io, pool_bytes: memory, poll_ns_max, disks: files, ..Config::default() };
        let inline = Inline::new(config, |_| Ends { files: ends }).map_err(Failure::failed)?;
        Ok(Disks { inline, names, shapes })
    }

    /// The disk of a name.
    pub(super) fn find(&self, url: &str) -> Option<usize> {
        self.names.iter().position(|name| name == url)
    }

    pub(super) fn shape(&self, disk: usize) -> Shape {
        self.shapes[disk]
    }

    pub(super) fn memory(&mut self, len: usize) -> Option<SgMut> {
        self.inline.with(|_, cx| cx.pool.take_sg(Class::Wire, len))
    }

    pub(super) fn submit(&mut self, disk: usize, io: Io) {
        self.inline.with(|ends, cx| ends.files[disk].submit(cx, io));
    }

    pub(super) fn turn(&mut self, wait: Duration) {
        self.inline.turn(Some(wait));
    }

    /// Nanoseconds spent polling before sleeping, useful or not.
    pub(super) fn polled_ns(&self) -> u64 {
        self.inline.stats().poll_ns
    }

    pub(super) fn poll_done(&mut self, disk: usize) -> Option<Done> {
        self.inline.with(|ends, _| ends.files[disk].poll_done())
    }
}

/// Opens a file or device, locked against processes that change it.
fn open(path: &str, writes: bool) -> Result<File, Failure> {
    let failed = |why: std::io::Error| Failure::failed(format!("{path}: {why}"));
    let is_device = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
    // A device that is opened so is not mounted, and cannot be while we have it.
    let exclusive = if is_device && writes { OFlags::EXCL } else { OFlags::empty() };
    let flags = (OFlags::DIRECT | exclusive).bits().cast_signed();
    let file = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path).map_err(failed)?;
    match file.try_lock_shared() {
        Ok(()) if writes && !is_device => {
            let key = Key::of(&file.metadata().map_err(failed)?);
            match place::user(&file, key) {
                Some(user) => Err(Failure::usage(format!("{path} is in use by {user}: end that use first"))),
                None => Ok(file),
            }
        }
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::failed(format!("{path} is in use by another process: end it first")))
        }
        Err(TryLockError::Error(why)) => Err(failed(why)),
    }
}

fn facts(path: &str, file: &File) -> Result<FileFacts, Failure> {
    let failed = |why: std::io::Error| Failure::failed(format!("{path}: {why}"));
    let device = file.metadata().map_err(failed)?.file_type().is_block_device();
    let bytes = (&mut &*file).seek(SeekFrom::End(0)).map_err(failed)?;
    let align =
        if device { rustix::fs::ioctl_blksszget(file).map_err(|why| failed(why.into()))? } else { PAGE };
    Ok(FileFacts {
        bytes,
        device,
        logical: if align > 512 && device { PAGE } else { 512 },
        physical: None,
        preferred: 0,
        direct: true,
        memory_align: align,
        offset_align: if device { align } else { 512 },
        punch: false,
        write_cache: true,
    })
}

/// Disks and nothing else: no socket ever comes.
struct Ends {
    files: Vec<backends::File>,
}

const NO_SOCKET: &str = "who listens nowhere and dials nobody has no socket";

impl Endpoint for Ends {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, _: LinkId, _: Arrival<()>) {
        unreachable!("{NO_SOCKET}");
    }

    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}

    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Came) {
        unreachable!("{NO_SOCKET}");
    }

    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {
        unreachable!("{NO_SOCKET}");
    }

    fn handle_sent(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {
        unreachable!("{NO_SOCKET}");
    }

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.files[op.disk.0 as usize].handle_disk(cx, op, came);
    }

    fn handle_timeout(&mut self, _: &mut Cx<'_>) {}

    fn turn(&mut self, _: &mut Cx<'_>) -> bool {
        false
    }

    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }

    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }

    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        None
    }

    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.files.iter_mut().find_map(Backend::poll_disk)
    }

    fn poll_departure(&mut self) -> Option<(LinkId, Departure<()>)> {
        None
    }

    fn poll_message(&mut self) -> Option<(ShardId, ())> {
        None
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_of_here_are_told_from_urls() {
        assert_eq!(path("file:/var/tmp/a"), Some("/var/tmp/a"));
        assert_eq!(path("/dev/loop0"), Some("/dev/loop0"));
        assert_eq!((path("local:64M"), path("iscsi://h/t/0"), path("/etc/passwd")), (None, None, None));
    }

    #[test]
    fn what_a_server_has_locked_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let server = File::create(&path).unwrap();
        server.set_len(1 << 20).unwrap();
        server.lock().unwrap();
        let why = open(&path.display().to_string(), true).unwrap_err();
        assert!(why.to_string().contains("in use by another process"), "{why}");
        drop(server);
        assert!(open(&path.display().to_string(), true).is_ok());
    }
}
