//! Local files and block devices as volumes of the load generator, bypassing the page cache.
//!
//! The code that serves them as volumes ([`backends::FileBackend`]) drives them, on a separate world. Invariant:
//! nothing is written to a file or device that this machine, or another of our processes, uses, even if the
//! other only reads it. So each is opened and locked once, and all threads use that one.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backends::{FileDisk, FileFacts};
use buf::{Cx, Errno, MemoryClass, SgMut, Time};
use client::{Io, IoChoice, IoCompletion};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use eval::load::VolumeShape;
use reactor::{Config, InlineReactor};
use rustix::fs::OFlags;
use stream::{Received, RecvOp, SendOp};
use volume::{Backend, DiskId, DiskOp};

use process::exit::Failure;
use transfer::local_path::{self, FileKey, LocalPath};

/// How a file is named; devices are named by their paths in `/dev`.
const FILE_PREFIX: &str = "file:";
/// Alignment for O_DIRECT where the system does not tell a file's: a page suits all file systems.
const DIRECT_IO_ALIGNMENT: u32 = 4096;

/// The path of a disk of this machine; `None`: it is a volume of another kind.
pub(super) fn local_disk_path(url: &str) -> Option<&str> {
    url.strip_prefix(FILE_PREFIX).or_else(|| url.starts_with("/dev/").then_some(url))
}

/// Disks of one thread, and the world that moves their bytes.
pub(super) struct LocalDisks {
    inline: InlineReactor<DiskEndpoint>,
    names: Vec<String>,
    shapes: Vec<VolumeShape>,
}

impl LocalDisks {
    /// The disks as one thread drives them.
    pub(super) fn of(
        opened: &[OpenedDisk],
        (io, memory, poll_ns_max): (IoChoice, usize, u64),
    ) -> Result<LocalDisks, Failure> {
        let (mut names, mut shapes) = (Vec::new(), Vec::new());
        let (mut files, mut ends) = (Vec::new(), Vec::new());
        for OpenedDisk { url, path, file, .. } in opened {
            let file = file.try_clone().map_err(|why| disk_failure(path, &why))?;
            let facts = disk_facts(path, &file)?;
            let id = DiskId(files.len() as u32);
            let disk =
                FileDisk::new(id, &facts, 1).map_err(|why| Failure::usage(format!("{path}: {why}")))?;
            let geometry = disk.geometry();
            shapes.push(VolumeShape { bytes: geometry.capacity_bytes(), block: geometry.logical });
            names.push(url.clone());
            files.push(OwnedFd::from(file).into());
            ends.push(backends::FileBackend::new(Arc::new(disk), 0));
        }
        let config = Config { io, pool_bytes: memory, poll_ns_max, disks: files, ..Config::default() };
        let inline = InlineReactor::new(config, |_| DiskEndpoint { files: ends }).map_err(Failure::failed)?;
        Ok(LocalDisks { inline, names, shapes })
    }

    /// The disk of a name.
    pub(super) fn find(&self, url: &str) -> Option<usize> {
        self.names.iter().position(|name| name == url)
    }

    pub(super) fn disk_shape(&self, disk: usize) -> Option<VolumeShape> {
        self.shapes.get(disk).copied()
    }

    pub(super) fn io_buffer(&mut self, len: usize) -> Option<SgMut> {
        self.inline.with_endpoint(|_, cx| cx.pool.take_sg(MemoryClass::Wire, len))
    }

    /// Starts an operation; `false`: there is no such disk.
    pub(super) fn submit(&mut self, disk: usize, io: Io) -> bool {
        self.inline
            .with_endpoint(|ends, cx| ends.files.get_mut(disk).map(|file| file.submit(cx, io)).is_some())
    }

    pub(super) fn turn(&mut self, wait: Duration) {
        self.inline.turn(Some(wait));
    }

    /// Nanoseconds spent polling before sleeping, useful or not.
    pub(super) fn polled_ns(&self) -> u64 {
        self.inline.stats().poll_ns
    }

    pub(super) fn poll_done(&mut self, disk: usize) -> Option<IoCompletion> {
        self.inline.with_endpoint(|ends, _| ends.files.get_mut(disk)?.poll_done())
    }
}

/// A disk that is open and locked, for all threads.
#[derive(Debug)]
pub(super) struct OpenedDisk {
    url: String,
    path: String,
    key: FileKey,
    file: File,
}

/// Opens each disk once, whatever names lead to it. What is written is locked against everybody, what is only read
/// against those who write. `force`: also what this system uses.
pub(super) fn open_disks(urls: &[(&str, bool)], force: bool) -> Result<Vec<OpenedDisk>, Failure> {
    let mut all: Vec<OpenedDisk> = Vec::new();
    // Those that are written first: another name of one that is only read takes what was opened for both.
    let mut urls = urls.to_vec();
    urls.sort_by_key(|(_, writes)| !writes);
    for (url, writes) in urls {
        let path = local_disk_path(url)
            .ok_or_else(|| Failure::usage(format!("{url}: not a file or block device of this machine")))?;
        let key = std::fs::metadata(path).ok().map(|meta| FileKey::of_metadata(&meta));
        let same = all.iter().find(|one| Some(one.key) == key).map(|one| one.file.try_clone());
        let file = match same {
            Some(file) => file.map_err(|why| disk_failure(path, &why))?,
            None if writes => open_to_write(path, force)?,
            None => open_to_read(path)?,
        };
        let key = FileKey::of_metadata(&file.metadata().map_err(|why| disk_failure(path, &why))?);
        all.push(OpenedDisk { url: url.to_owned(), path: path.to_owned(), key, file });
    }
    Ok(all)
}

/// One that nobody else has, not even to read it.
fn open_to_write(path: &str, force: bool) -> Result<File, Failure> {
    let place = LocalPath::inspect(Path::new(path), force)?;
    if !place.is_seekable() {
        return Err(not_a_disk(path));
    }
    let file = place.open_unchanged()?;
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|why| disk_failure(path, &why.into()))?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT).map_err(|why| disk_failure(path, &why.into()))?;
    Ok(file)
}

/// One that nobody changes who locks what he changes.
fn open_to_read(path: &str) -> Result<File, Failure> {
    let is_disk = |meta: std::fs::Metadata| meta.is_file() || meta.file_type().is_block_device();
    if !is_disk(std::fs::metadata(path).map_err(|why| disk_failure(path, &why))?) {
        return Err(not_a_disk(path));
    }
    // Not to wait for the one at a pipe's other end.
    let flags = (OFlags::DIRECT | OFlags::NONBLOCK).bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|why| disk_failure(path, &why))?;
    // The open file is judged, not what its name led to before.
    if !is_disk(file.metadata().map_err(|why| disk_failure(path, &why))?) {
        return Err(not_a_disk(path));
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|why| disk_failure(path, &why.into()))?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)
        .map_err(|why| disk_failure(path, &why.into()))?;
    match local_path::try_lock_shared(Path::new(path), &file)? {
        true => Ok(file),
        false => {
            let why = "is in use by another process, which may write it: end that first, or name the volume that \
                       it serves by its URL";
            Err(Failure::failed(format!("{path} {why}")))
        }
    }
}

fn not_a_disk(path: &str) -> Failure {
    Failure::usage(format!("{path} is neither a file nor a block device"))
}

fn disk_failure(path: &str, why: &std::io::Error) -> Failure {
    Failure::failed(format!("{path}: {why}"))
}

fn disk_facts(path: &str, file: &File) -> Result<FileFacts, Failure> {
    let failed = |why: std::io::Error| disk_failure(path, &why);
    let device = file.metadata().map_err(failed)?.file_type().is_block_device();
    let bytes = (&mut &*file).seek(SeekFrom::End(0)).map_err(failed)?;
    let align = if device {
        rustix::fs::ioctl_blksszget(file).map_err(|why| failed(why.into()))?
    } else {
        DIRECT_IO_ALIGNMENT
    };
    Ok(FileFacts {
        bytes,
        device,
        logical: if align > 512 && device { DIRECT_IO_ALIGNMENT } else { 512 },
        physical: None,
        preferred: 0,
        direct: true,
        memory_align: align,
        offset_align: if device { align } else { 512 },
        punch: false,
        write_cache: true,
        write_through: false,
    })
}

/// Disks and nothing else: nothing listens or dials, so no socket ever comes.
struct DiskEndpoint {
    files: Vec<backends::FileBackend>,
}

impl Endpoint for DiskEndpoint {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, _: LinkId, _: LinkArrival<()>) {}

    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}

    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}

    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}

    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}

    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        if let Some(file) = self.files.get_mut(op.disk.0 as usize) {
            file.handle_disk(cx, op, came);
        }
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

    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
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
        assert_eq!(local_disk_path("file:/var/tmp/a"), Some("/var/tmp/a"));
        assert_eq!(local_disk_path("/dev/loop0"), Some("/dev/loop0"));
        assert_eq!(
            (local_disk_path("local:64M"), local_disk_path("iscsi://h/t/0"), local_disk_path("/etc/passwd")),
            (None, None, None)
        );
    }

    #[test]
    fn what_a_server_has_locked_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let url = format!("file:{}", path.display());
        let server = File::create(&path).unwrap();
        server.set_len(1 << 20).unwrap();
        server.lock().unwrap();
        for writes in [false, true] {
            let why = open_disks(&[(&url, writes)], true).unwrap_err();
            assert!(why.to_string().contains("by another process"), "{why}");
        }
        drop(server);
        assert!(open_disks(&[(&url, true)], false).is_ok());
    }

    #[test]
    fn what_another_process_only_reads_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let url = format!("file:{}", path.display());
        // A daemon that serves it read-only, or a copy whose source it is.
        let reader = File::open(&path).unwrap();
        reader.lock_shared().unwrap();
        let why = open_disks(&[(&url, true)], true).unwrap_err();
        assert!(why.to_string().contains("locked by another process"), "{why}");
        assert!(open_disks(&[(&url, false)], false).is_ok());
        drop(reader);
        // Nor does another one who writes.
        let ours = open_disks(&[(&url, true)], false).unwrap();
        assert!(open_disks(&[(&url, true)], true).is_err() && open_disks(&[(&url, false)], true).is_err());
        drop(ours);
    }

    #[test]
    fn one_disk_of_two_names_is_opened_once_and_for_all_threads() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("disk"), dir.path().join("link"));
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let [url, other] = [&path, &link].map(|path| format!("file:{}", path.display()));
        let opened = open_disks(&[(&other, false), (&url, true)], false).unwrap();
        for _ in 0..2 {
            let disks = LocalDisks::of(&opened, (IoChoice::Epoll, 32 << 20, 0)).unwrap();
            assert!(disks.find(&url).is_some() && disks.find(&other).is_some());
        }
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let why = open_disks(&[(&format!("file:{}", fifo.display()), false)], false).unwrap_err();
        assert!(why.to_string().contains("neither a file nor a block device"), "{why}");
    }
}
