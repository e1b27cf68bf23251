//! The file system of one file: what the kernel asks, and what it is told.
//!
//! Invariants: one buffer for the largest write is at hand before a request is read, so a write's payload
//! goes straight to memory that the disk takes; every request that wants an answer gets one; while one
//! request finds no room or memory, no other is read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use buf::{Sg, Time};
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;
use volume::Geometry;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{self, init, opcode};
use super::{FILE, Front, LoopDevices, Place};
use crate::disk::Disk;
use crate::loop_device::LoopDevice;
use crate::requests::{Ask, Ended, Parts, Request, Requests, read_parts, truncate_parts};
use crate::trouble::Trouble;
use crate::turn::{Face, Leave};
use crate::vectors::{Vectors, read, write};
use crate::wait::{Key, Ready, Waiter};

const FUSE: Key = Key(0);
const LOOP: Key = Key(1);
/// The file's number.
const VOLUME: u64 = 2;
/// In front of a write's payload: header and arguments.
const HEAD: usize = 80;
/// Arguments of the other requests, as far as anybody looks.
const ARGUMENTS_MAX: usize = 512;
/// The least that the kernel wants to have room for (FUSE_MIN_READ_BUFFER).
const BUFFER_MIN: usize = 8192;
const PAGE: usize = 4096;
const WRITE_MAX: usize = 1 << 20;
/// Writes of up to so many bytes are copied to memory of their size; for longer ones the copy would cost
/// more than the memory.
const COPY_MAX: usize = 32 << 10;
/// Requests read before answers are given.
const BATCH: usize = 64;
/// How long the kernel may remember names and sizes, in seconds; it is told when they change.
const VALID: u64 = 3600;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The front's name for a request, and what to say when it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    unique: u64,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Data,
    Written(u32),
    Nothing,
    Seek {
        hole: bool,
    },
    /// It was answered already: its user had been killed.
    Forget,
}

/// What finds no room or memory now.
enum Parked {
    Request(Request<Token>),
    /// Its payload is in the buffer.
    Write {
        unique: u64,
        at: u64,
        len: u32,
        stable: bool,
    },
}

/// What the thread says that has to do with the loop device.
type Report = io::Result<PathBuf>;

/// The thread that has to do with the loop device: its calls wait for us.
struct LoopThread {
    resize: mpsc::Sender<()>,
    report: mpsc::Receiver<Report>,
    wake: Arc<OwnedFd>,
}

pub(super) struct Server<'a> {
    front: &'a mut Front,
    ready: Option<&'a mut dyn FnMut(Place<'_>)>,
    requests: Requests<Token>,
    geometry: Geometry,
    read_only: bool,
    write_max: usize,
    head: [u8; HEAD],
    buffer: Option<Parts>,
    parked: Option<Parked>,
    /// Searches that go on.
    later: Vec<Request<Token>>,
    vectors: Vectors,
    /// Whether the waiter tells of requests; `None`: it does not know the descriptor yet.
    watched: Option<bool>,
    loop_thread: Option<LoopThread>,
    /// Whether anything was written since the last flush.
    dirty: bool,
    opened: u64,
    /// The kernel has ended the connection.
    over: bool,
}

impl<'a> Server<'a> {
    pub(super) fn new(
        front: &'a mut Front,
        disk: &dyn Disk,
        ready: &'a mut dyn FnMut(Place<'_>),
    ) -> io::Result<Self> {
        let geometry = disk.geometry();
        let most = (geometry.max_io as usize).min(WRITE_MAX) / PAGE * PAGE;
        let requests = Requests::new(disk, front.settings.depth, front.statistics.clone());
        Ok(Server {
            front,
            ready: Some(ready),
            requests,
            geometry,
            read_only: disk.is_read_only(),
            write_max: most.max(PAGE),
            head: [0; HEAD],
            buffer: None,
            parked: None,
            later: Vec::new(),
            vectors: Vectors::default(),
            watched: None,
            loop_thread: None,
            dirty: false,
            opened: 0,
            over: false,
        })
    }

    fn file(&self) -> PathBuf {
        self.front.mount.dir().join(FILE)
    }

    /// The kernel has begun: now a loop device can be had.
    fn begin_loop_device(&mut self, waiter: &Waiter) -> io::Result<()> {
        if self.front.settings.loop_devices == LoopDevices::Never {
            self.tell_ready(Err(None));
            return Ok(());
        }
        let (resize, resizes) = mpsc::channel();
        let (reports, report) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        waiter.add(wake.as_fd(), LOOP, true, false)?;
        let (file, block, read_only) = (self.file(), self.geometry.logical, self.read_only);
        let its_wake = wake.clone();
        std::thread::Builder::new().name("loop".into()).spawn(move || {
            let made = LoopDevice::new(&file, block, read_only);
            let (device, said) = match made {
                Ok(device) => {
                    let path = device.path().to_owned();
                    (Some(device), Ok(path))
                }
                Err(error) => (None, Err(error)),
            };
            // If nobody listens any more, there is nobody to serve the device either.
            let _ = reports.send(said);
            let _ = rustix::io::write(&its_wake, &1_u64.to_ne_bytes());
            let Some(device) = device else { return };
            while resizes.recv().is_ok() {
                // The next change tries again; the file has its size in any case.
                let _ = device.resize();
            }
        })?;
        self.loop_thread = Some(LoopThread { resize, report, wake });
        Ok(())
    }

    fn tell_ready(&mut self, device: Result<PathBuf, Option<io::Error>>) {
        let file = self.file();
        if let Some(ready) = self.ready.take() {
            let (path, why) = match device {
                Ok(path) => (Some(path), None),
                Err(why) => (None, why),
            };
            ready(Place { file: &file, device: path.as_deref(), why });
        }
    }

    /// Reads a request; false if there is none, or nothing to read it to.
    fn read(&mut self, disk: &mut dyn Disk) -> io::Result<bool> {
        if self.buffer.is_none() {
            self.buffer = self.requests.memory(disk, 0, self.write_max.max(BUFFER_MIN) as u64);
        }
        let Some(buffer) = &mut self.buffer else { return Ok(false) };
        self.vectors.clear();
        self.vectors.push_mut(&mut self.head);
        for part in buffer {
            let len = part.len();
            part.slices_mut(0..len).for_each(|slice| self.vectors.push_mut(slice));
        }
        // SAFETY: the vectors were made above, of memory that this value owns alone and does not touch
        // before the call returns.
        let n = match unsafe { read(self.front.fuse.as_raw_fd(), &mut self.vectors) } {
            Ok(n) => n,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(false),
                // Interrupted, or taken back before it was read: the next one.
                Some(libc::EINTR | libc::ENOENT) => return Ok(true),
                Some(libc::ENODEV | libc::ECONNABORTED) => {
                    self.over = true;
                    return Ok(false);
                }
                _ => return Err(error),
            },
        };
        let Ok((header, _)) = wire::InHeader::read_from_prefix(&self.head) else { return Ok(false) };
        if n < size_of::<wire::InHeader>() || header.len as usize != n {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent no FUSE request"));
        }
        let mut arguments = [0; ARGUMENTS_MAX];
        let len = (n - size_of::<wire::InHeader>()).min(ARGUMENTS_MAX);
        let near = len.min(HEAD - size_of::<wire::InHeader>());
        arguments[..near].copy_from_slice(&self.head[size_of::<wire::InHeader>()..][..near]);
        if let Some(buffer) = self.buffer.as_ref().filter(|_| len > near && header.opcode != opcode::WRITE) {
            read_parts(buffer, 0, &mut arguments[near..len]);
        }
        self.dispatch(disk, &header, &arguments[..len])?;
        Ok(true)
    }

    fn dispatch(&mut self, disk: &mut dyn Disk, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let unique = header.unique;
        match header.opcode {
            opcode::INIT => self.init(unique, arguments),
            opcode::LOOKUP => self.look_up(header, arguments),
            opcode::FORGET | opcode::BATCH_FORGET | opcode::DESTROY => Ok(()),
            opcode::GETATTR => self.answer(unique, self.attributes_out(header.node).as_bytes()),
            opcode::SETATTR => self.set_attributes(header, arguments),
            opcode::STATFS => self.answer(unique, self.statfs().as_bytes()),
            opcode::ACCESS | opcode::FSYNCDIR => self.answer(unique, &[]),
            opcode::OPEN => self.open(header, arguments),
            opcode::OPENDIR => self.answer(unique, wire::OpenOut::default().as_bytes()),
            opcode::RELEASEDIR => self.answer(unique, &[]),
            opcode::RELEASE => {
                self.opened = self.opened.saturating_sub(1);
                self.front.statistics.clients(self.opened);
                self.answer(unique, &[])
            }
            opcode::READDIR => self.read_directory(unique, arguments),
            opcode::READ | opcode::WRITE => self.transfer(disk, header, arguments),
            opcode::FLUSH if !self.dirty => self.answer(unique, &[]),
            opcode::FLUSH | opcode::FSYNC => {
                self.dirty = false;
                self.start(disk, unique, Then::Nothing, Ask::Flush, 0, 0)
            }
            opcode::FALLOCATE => self.fallocate(disk, unique, arguments),
            opcode::LSEEK => self.seek(disk, unique, arguments),
            opcode::INTERRUPT => self.interrupt(arguments),
            _ => self.refuse(unique, libc::ENOSYS),
        }
    }

    fn init(&mut self, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::InitIn::read_from_prefix(arguments) else {
            return self.refuse(unique, libc::EPROTO);
        };
        if asked.major != wire::MAJOR || asked.minor < wire::MINOR_MIN {
            self.refuse(unique, libc::EPROTO)?;
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel speaks FUSE {}.{}; 7.28 is needed", asked.major, asked.minor),
            ));
        }
        let offered = u64::from(asked.flags) | u64::from(asked.flags2) << 32;
        let flags = offered
            & (init::ASYNC_READ
                | init::BIG_WRITES
                | init::ASYNC_DIO
                | init::PARALLEL_DIROPS
                | init::MAX_PAGES
                | init::INIT_EXT
                | init::DIRECT_IO_ALLOW_MMAP);
        let depth = self.front.settings.depth;
        let out = wire::InitOut {
            major: wire::MAJOR,
            minor: wire::MINOR,
            max_readahead: asked.max_readahead,
            flags: flags as u32,
            max_background: depth,
            congestion_threshold: depth / 4 * 3,
            max_write: self.write_max as u32,
            time_gran: 1,
            max_pages: (self.write_max / PAGE) as u16,
            flags2: (flags >> 32) as u32,
            ..wire::InitOut::default()
        };
        self.answer(unique, out.as_bytes())
    }

    fn attributes(&self, node: u64) -> wire::Attributes {
        let common = wire::Attributes {
            ino: node,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            blksize: self.geometry.physical.max(PAGE as u32),
            ..wire::Attributes::default()
        };
        if node == wire::ROOT {
            let search = if self.front.settings.allow_other { 0o555 } else { 0o500 };
            return wire::Attributes { mode: libc::S_IFDIR | search, nlink: 2, ..common };
        }
        let mode = self.front.settings.mode & if self.read_only { 0o444 } else { 0o666 };
        let size = self.geometry.bytes();
        wire::Attributes { mode: libc::S_IFREG | mode, nlink: 1, size, blocks: size / 512, ..common }
    }

    fn attributes_out(&self, node: u64) -> wire::AttributesOut {
        let attributes = self.attributes(node);
        wire::AttributesOut { valid: VALID, valid_nsec: 0, dummy: 0, attributes }
    }

    fn look_up(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let name = arguments.split(|&byte| byte == 0).next().unwrap_or_default();
        if header.node != wire::ROOT || name != FILE.as_bytes() {
            return self.refuse(header.unique, libc::ENOENT);
        }
        let out = wire::EntryOut {
            node: VOLUME,
            entry_valid: VALID,
            attr_valid: VALID,
            attributes: self.attributes(VOLUME),
            ..wire::EntryOut::default()
        };
        self.answer(header.unique, out.as_bytes())
    }

    /// The size stays, as that of a block device does when it is opened with O_TRUNC.
    fn set_attributes(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let granted = wire::FATTR_SIZE
            | wire::FATTR_TIMES
            | wire::FATTR_FH
            | wire::FATTR_LOCKOWNER
            | wire::FATTR_KILL_SUIDGID;
        match wire::SetAttributesIn::read_from_prefix(arguments) {
            Ok((asked, _)) if asked.valid & !granted == 0 => {
                self.answer(header.unique, self.attributes_out(header.node).as_bytes())
            }
            _ => self.refuse(header.unique, libc::EPERM),
        }
    }

    fn statfs(&self) -> wire::StatfsOut {
        // A loop device takes its discards' granularity from here.
        let bsize = self.geometry.physical.max(512);
        wire::StatfsOut {
            blocks: self.geometry.bytes() / u64::from(bsize),
            files: 2,
            bsize,
            frsize: bsize,
            namelen: 255,
            ..wire::StatfsOut::default()
        }
    }

    fn open(&mut self, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let flags = arguments.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        if header.node != VOLUME {
            return self.refuse(header.unique, libc::EISDIR);
        }
        if self.read_only && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return self.refuse(header.unique, libc::EROFS);
        }
        self.opened += 1;
        self.front.statistics.clients(self.opened);
        let open_flags = wire::FOPEN_DIRECT_IO | wire::FOPEN_PARALLEL_DIRECT_WRITES;
        self.answer(header.unique, wire::OpenOut { open_flags, ..wire::OpenOut::default() }.as_bytes())
    }

    fn read_directory(&mut self, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::TransferIn::read_from_prefix(arguments) else {
            return self.refuse(unique, libc::EINVAL);
        };
        let entries: [(u64, &str, u32); 3] = [(wire::ROOT, ".", 4), (wire::ROOT, "..", 4), (VOLUME, FILE, 8)];
        let mut out: SmallVec<[u8; 128]> = SmallVec::new();
        for (n, (ino, name, kind)) in entries.into_iter().enumerate().skip(asked.offset.min(3) as usize) {
            let entry = wire::Dirent { ino, offset: n as u64 + 1, namelen: name.len() as u32, kind };
            let len = (size_of::<wire::Dirent>() + name.len()).next_multiple_of(8);
            if out.len() + len > asked.size as usize {
                break;
            }
            out.extend_from_slice(entry.as_bytes());
            out.extend_from_slice(name.as_bytes());
            out.resize(out.len().next_multiple_of(8), 0);
        }
        self.answer(unique, &out)
    }

    /// READ and WRITE: what is behind the end is cut off, as of a block device.
    fn transfer(&mut self, disk: &mut dyn Disk, header: &wire::InHeader, arguments: &[u8]) -> io::Result<()> {
        let unique = header.unique;
        let Ok((asked, _)) = wire::TransferIn::read_from_prefix(arguments) else {
            return self.refuse(unique, libc::EINVAL);
        };
        if header.node != VOLUME {
            return self.refuse(unique, libc::EISDIR);
        }
        let left = self.geometry.bytes().saturating_sub(asked.offset);
        let len = u64::from(asked.size).min(left) as u32;
        if header.opcode == opcode::READ {
            if len == 0 {
                return self.answer(unique, &[]);
            }
            return self.start(disk, unique, Then::Data, Ask::Read, asked.offset, len.into());
        }
        let came = (header.len as usize).saturating_sub(HEAD);
        if asked.size as usize > self.write_max || came < asked.size as usize {
            return self.refuse(unique, libc::EINVAL);
        }
        if len == 0 && asked.size > 0 {
            return self.refuse(unique, libc::ENOSPC);
        }
        self.dirty = true;
        // A direct write is not followed by FSYNC if the file is O_DSYNC: it says so itself.
        let stable = asked.flags as i32 & libc::O_DSYNC != 0;
        self.write(disk, unique, asked.offset, len, stable)
    }

    /// Starts a write whose payload is in the buffer, or parks it.
    fn write(&mut self, disk: &mut dyn Disk, unique: u64, at: u64, len: u32, stable: bool) -> io::Result<()> {
        let block = u64::from(self.geometry.logical);
        let is_whole = at.is_multiple_of(block) && u64::from(len).is_multiple_of(block);
        let copied = if is_whole && len as usize > COPY_MAX {
            None
        } else {
            self.requests.memory(disk, at, len.into())
        };
        let data = match (copied, self.buffer.take()) {
            (Some(mut data), Some(buffer)) => {
                let mut from = 0;
                self.requests.slices(&mut data, at, 0, len.into(), |slice| {
                    read_parts(&buffer, from, slice);
                    from += slice.len();
                });
                self.buffer = Some(buffer);
                data
            }
            (None, Some(mut buffer)) if is_whole => {
                truncate_parts(&mut buffer, len as usize);
                buffer
            }
            (_, buffer) => {
                self.buffer = buffer;
                self.parked = Some(Parked::Write { unique, at, len, stable });
                return Ok(());
            }
        };
        let token = Token { unique, then: Then::Written(len) };
        self.submit(disk, Request::write(token, stable, at, len.into(), data));
        Ok(())
    }

    fn fallocate(&mut self, disk: &mut dyn Disk, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::FallocateIn::read_from_prefix(arguments) else {
            return self.refuse(unique, libc::EINVAL);
        };
        self.dirty = true;
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let left = self.geometry.bytes().saturating_sub(asked.offset);
        let unmap = asked.mode & !keep == libc::FALLOC_FL_PUNCH_HOLE as u32;
        if !unmap && asked.mode & !keep != libc::FALLOC_FL_ZERO_RANGE as u32 {
            // Space that is promised cannot be had of a volume.
            return self.refuse(unique, libc::EOPNOTSUPP);
        }
        if !unmap && asked.length > left {
            return self.refuse(unique, libc::ENOSPC);
        }
        let (at, len) = (asked.offset, asked.length.min(left));
        if len == 0 {
            return self.answer(unique, &[]);
        }
        self.start(disk, unique, Then::Nothing, Ask::Zero { unmap, stable: false }, at, len)
    }

    fn seek(&mut self, disk: &mut dyn Disk, unique: u64, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::LseekIn::read_from_prefix(arguments) else {
            return self.refuse(unique, libc::EINVAL);
        };
        let hole = asked.whence == SEEK_HOLE;
        if !hole && asked.whence != SEEK_DATA {
            return self.refuse(unique, libc::EINVAL);
        }
        let size = self.geometry.bytes();
        if asked.offset >= size {
            return self.refuse(unique, libc::ENXIO);
        }
        self.start(disk, unique, Then::Seek { hole }, Ask::Extents, asked.offset, size - asked.offset)
    }

    /// Whose user was killed need not wait for its data. Writes go on: nobody knows how far they are.
    fn interrupt(&mut self, arguments: &[u8]) -> io::Result<()> {
        let Ok((asked, _)) = wire::InterruptIn::read_from_prefix(arguments) else { return Ok(()) };
        let parked = self.parked.take_if(|parked| match parked {
            Parked::Request(request) => {
                request.token.unique == asked.unique && request.token.then == Then::Data
            }
            Parked::Write { .. } => false,
        });
        let found = self.requests.find(|token| token.unique == asked.unique && token.then == Then::Data);
        match (found, parked) {
            (Some(token), _) => token.then = Then::Forget,
            (None, Some(_)) => {}
            (None, None) => return Ok(()),
        }
        self.refuse(asked.unique, libc::EINTR)
    }

    fn start(
        &mut self,
        disk: &mut dyn Disk,
        unique: u64,
        then: Then,
        ask: Ask,
        at: u64,
        len: u64,
    ) -> io::Result<()> {
        self.submit(disk, Request::new(Token { unique, then }, ask, at, len));
        Ok(())
    }

    fn submit(&mut self, disk: &mut dyn Disk, request: Request<Token>) {
        if let Err(request) = self.requests.start(disk, request) {
            self.parked = Some(Parked::Request(request));
        }
    }

    /// Tries again what was parked. True if it is on its way.
    fn unpark(&mut self, disk: &mut dyn Disk) -> io::Result<bool> {
        match self.parked.take() {
            None => return Ok(false),
            Some(Parked::Request(request)) => self.submit(disk, request),
            Some(Parked::Write { unique, at, len, stable }) => self.write(disk, unique, at, len, stable)?,
        }
        Ok(self.parked.is_none())
    }

    fn answer(&mut self, unique: u64, bytes: &[u8]) -> io::Result<()> {
        self.say(unique, 0, bytes, &Sg::new())
    }

    fn refuse(&mut self, unique: u64, errno: i32) -> io::Result<()> {
        self.say(unique, -errno, &[], &Sg::new())
    }

    fn say(&mut self, unique: u64, error: i32, bytes: &[u8], data: &Sg) -> io::Result<()> {
        let len = size_of::<wire::OutHeader>() + bytes.len() + data.len();
        let header = wire::OutHeader { len: len as u32, error, unique };
        self.vectors.clear();
        self.vectors.push_from(header.as_bytes(), 0);
        self.vectors.push_from(bytes, 0);
        self.vectors.push_sg(data, 0);
        // SAFETY: the vectors were made above, of memory that stays until the call returns.
        match unsafe { write(self.front.fuse.as_raw_fd(), &mut self.vectors) } {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The one who asked is gone, or all of them are.
                Some(libc::ENOENT | libc::EINTR) => Ok(()),
                Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN) => {
                    self.over = true;
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// Where data or a hole begins, if these extents tell; else from where on to ask.
    fn sought(&self, ended: &Ended<Token>, hole: bool) -> Result<u64, u64> {
        let block = u64::from(self.geometry.logical);
        // A hole reads as zeroes, or it is none.
        let is_hole = |mapped: bool| !mapped && self.geometry.dealloc_reads_zero;
        let mut reached = ended.at;
        for extent in &ended.extents {
            if is_hole(extent.mapped) == hole {
                return Ok((extent.span.lba * block).max(ended.at));
            }
            reached = (extent.span.lba.saturating_add(extent.span.blocks)).saturating_mul(block);
        }
        if reached > ended.at { Err(reached) } else { Ok(ended.at) }
    }

    fn handle_sought(&mut self, ended: &Ended<Token>, hole: bool) -> io::Result<()> {
        let unique = ended.token.unique;
        let size = self.geometry.bytes();
        match self.sought(ended, hole) {
            Ok(at) => self.answer(unique, wire::LseekOut { offset: at }.as_bytes()),
            Err(at) if at < size => {
                self.later.push(Request::new(ended.token, Ask::Extents, at, size - at));
                Ok(())
            }
            Err(_) if hole => self.answer(unique, wire::LseekOut { offset: size }.as_bytes()),
            Err(_) => self.refuse(unique, libc::ENXIO),
        }
    }

    fn watch(&mut self, waiter: &Waiter) -> io::Result<()> {
        let wanted = self.parked.is_none() && self.later.is_empty();
        match self.watched {
            None => waiter.add(self.front.fuse.as_fd(), FUSE, wanted, false)?,
            Some(watched) if watched != wanted => {
                waiter.change(self.front.fuse.as_fd(), FUSE, wanted, false)?;
            }
            Some(_) => {}
        }
        self.watched = Some(wanted);
        Ok(())
    }
}

impl Face for Server<'_> {
    type Token = Token;

    fn requests(&mut self) -> &mut Requests<Token> {
        &mut self.requests
    }

    fn handle_ready(&mut self, disk: &mut dyn Disk, _waiter: &Waiter, ready: Ready) -> io::Result<()> {
        if ready.key == LOOP {
            let Some(thread) = &self.loop_thread else { return Ok(()) };
            let _ = rustix::io::read(&thread.wake, &mut [0; 8]);
            if let Ok(report) = thread.report.try_recv() {
                self.tell_ready(report.map_err(Some));
            }
            return Ok(());
        }
        for _ in 0..BATCH {
            if self.over || self.parked.is_some() || !self.read(disk)? {
                break;
            }
        }
        Ok(())
    }

    fn handle_ended(&mut self, ended: Ended<Token>) -> io::Result<()> {
        let Token { unique, then } = ended.token;
        match (ended.result, then) {
            (_, Then::Forget) => Ok(()),
            (Err(Trouble::Unsupported), Then::Seek { .. }) => self.refuse(unique, libc::ENOSYS),
            (Err(trouble), _) => self.refuse(unique, trouble.errno()),
            (Ok(()), Then::Data) => self.say(unique, 0, &[], &ended.data),
            (Ok(()), Then::Written(size)) => {
                self.answer(unique, wire::WriteOut { size, padding: 0 }.as_bytes())
            }
            (Ok(()), Then::Nothing) => self.answer(unique, &[]),
            (Ok(()), Then::Seek { hole }) => self.handle_sought(&ended, hole),
        }
    }

    fn handle_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.geometry = disk.geometry();
        let notice = wire::InvalInode { ino: VOLUME, offset: -1, len: 0 };
        // The kernel does not mind if it does not know the file yet (ENOENT).
        self.say(0, wire::NOTIFY_INVAL_INODE, notice.as_bytes(), &Sg::new())?;
        if let Some(thread) = &self.loop_thread {
            // Where there is no device, nobody listens.
            let _ = thread.resize.send(());
        }
        Ok(())
    }

    fn settle(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool> {
        if self.watched.is_none() {
            self.begin_loop_device(waiter)?;
        }
        let mut started = false;
        while let Some(request) = self.later.pop() {
            match self.requests.start(disk, request) {
                Ok(()) => started = true,
                Err(request) => {
                    self.later.push(request);
                    break;
                }
            }
        }
        started |= self.unpark(disk)?;
        self.watch(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn stop(&mut self, _waiter: &Waiter, how: Leave) -> bool {
        // The thread lets go of the loop device, which goes when nobody else has it.
        self.loop_thread = None;
        let detached = self.front.mount.detach();
        how == Leave::WhenDone && detached.is_ok()
    }

    fn is_over(&self) -> bool {
        self.over
    }
}
