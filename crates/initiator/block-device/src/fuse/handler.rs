//! The file system of one file: the kernel's requests and their answers.
//!
//! Invariants: a buffer for the largest write is available before a request is read, so a write's payload
//! goes directly to memory that the disk takes; every request that needs an answer gets one; while one
//! request waits for space or memory, no other is read.

mod dispatch;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use buf::{Sg, Time};
use rustix::event::{EventfdFlags, eventfd};
use volume::Geometry;
use zerocopy::{FromBytes, IntoBytes};

use super::wire::{self, opcode};
use super::{
    BorrowedMount, LoopDevicePolicy, MOUNTED_FILE_NAME, MountedFile, ReadyCallback as Called, Server,
};
use crate::disk::Disk;
use crate::event_loop::{EventHandler, StopMode};
use crate::event_waiter::{EpollWaiter, EventKey, ReadyEvent, monotonic_now};
use crate::io_vectors::{IoVectors, readv, writev};
use crate::loop_device::LoopDevice;
use crate::request_error::RequestError;
use crate::requests::{EndedRequest, Request, RequestTable, WriteMemory, copy_from_parts};

const FUSE_KEY: EventKey = EventKey(0);
const LOOP_KEY: EventKey = EventKey(1);
/// The file's number.
const VOLUME_INODE: u64 = 2;
/// In front of a write's payload: header and arguments.
const WRITE_HEADER_LEN: usize = 80;
/// Arguments of the other requests, as far as anybody looks.
const ARGUMENTS_LEN_MAX: usize = 512;
/// The least that the kernel wants to have room for (FUSE_MIN_READ_BUFFER).
const READ_BUFFER_MIN: usize = 8192;
const PAGE_LEN: usize = 4096;
const WRITE_LEN_MAX: usize = 1 << 20;
/// Writes of up to so many bytes are copied to memory of their size; for longer ones the copy would cost
/// more than the memory.
const COPIED_WRITE_MAX: usize = 32 << 10;
/// Requests read before answers are given.
const REQUESTS_PER_BATCH: usize = 64;
/// How long nothing is read when the kernel had no memory for it.
const READ_PAUSE: Duration = Duration::from_millis(10);
/// How long until it is tried again to take a place away that something else is mounted over.
const DETACH_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long until it is looked again whether the program has done that.
const PROGRAM_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long the kernel may remember names and sizes, in seconds; it is told when they change.
const CACHE_VALID_SECONDS: u64 = 3600;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The server's name for a request, and what to say when it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReply {
    unique: u64,
    then: CompletionReply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompletionReply {
    Data,
    Written(u32),
    Zeroed,
    /// All of so many changes is stable.
    Flushed(u64),
    Seek {
        hole: bool,
    },
    /// It was answered already: its user had been killed.
    Forget,
}

/// What finds no room or memory now.
enum ParkedRequest {
    Request(Request<PendingReply>),
    /// Its payload is in the buffer.
    Write {
        unique: u64,
        at: u64,
        len: u32,
        stable: bool,
    },
}

/// What the thread says that has to do with the loop device: its name, and a descriptor to be kept.
type LoopDeviceReport = io::Result<(PathBuf, OwnedFd)>;

/// The thread that has to do with the loop device: its calls wait for us.
struct LoopDeviceThread {
    resize: mpsc::Sender<()>,
    report: mpsc::Receiver<LoopDeviceReport>,
    wake: Arc<OwnedFd>,
}

pub(super) struct FuseHandler<'a> {
    server: &'a mut Server,
    ready: Option<Called<'a>>,
    /// Somebody knows of the place, and sees to who serves it next.
    told: bool,
    requests: RequestTable<PendingReply>,
    geometry: Geometry,
    read_only: bool,
    write_max: usize,
    head: [u8; WRITE_HEADER_LEN],
    buffer: Option<WriteMemory>,
    parked: Option<ParkedRequest>,
    /// Searches that go on.
    later: Vec<Request<PendingReply>>,
    vectors: IoVectors,
    /// Whether the waiter tells of requests; `None`: it does not know the descriptor yet, or not any more.
    watched: Option<bool>,
    loop_thread: Option<LoopDeviceThread>,
    /// The loop device of the server before this one.
    inherited: Option<OwnedFd>,
    /// Whether the kernel has begun to ask.
    begun: bool,
    /// Whether it can be told to ask again.
    resends: bool,
    /// Whether it still is to be told so.
    resend_due: bool,
    /// Writes, zeroes and holes that are under way.
    changing: u64,
    /// Those that have ended, well or not.
    changed: u64,
    /// Of those, how many a flush has covered that ended well.
    flushed: u64,
    /// How often the file was opened and not released, as far as this server knows.
    opened: u64,
    /// Whether there may be users from before this server.
    has_old_users: bool,
    /// Answers that the kernel had no memory to take.
    unsaid: Vec<(u64, i32, Vec<u8>, Sg)>,
    /// Nothing is read before: the kernel had no memory for it.
    paused_until: Option<Time>,
    /// The kernel has ended the connection.
    over: bool,
    /// The users are to be cut off: nothing is read any more.
    leaves: bool,
    /// The place is still to be taken away from sight.
    detach_due: Option<Time>,
}

impl<'a> FuseHandler<'a> {
    pub(super) fn new(server: &'a mut Server, disk: &dyn Disk, ready: Called<'a>) -> io::Result<Self> {
        let geometry = disk.geometry();
        let most = (geometry.max_io as usize).min(WRITE_LEN_MAX) / PAGE_LEN * PAGE_LEN;
        let requests = RequestTable::new(disk, server.settings.depth, server.statistics.clone());
        let inherited = server.inherited.take();
        let recovers = inherited.is_some();
        let (inherited, write_max) = match inherited {
            Some((device, write_max)) => (device, write_max as usize),
            None => (None, most.max(PAGE_LEN)),
        };
        Ok(FuseHandler {
            server,
            ready: Some(ready),
            told: false,
            requests,
            geometry,
            read_only: disk.is_read_only(),
            write_max,
            head: [0; WRITE_HEADER_LEN],
            buffer: None,
            parked: None,
            later: Vec::new(),
            vectors: IoVectors::default(),
            watched: None,
            loop_thread: None,
            inherited,
            begun: recovers,
            resends: recovers,
            resend_due: recovers,
            changing: 0,
            // Nobody knows what the server before this one had written.
            changed: recovers.into(),
            flushed: 0,
            opened: 0,
            has_old_users: recovers,
            unsaid: Vec::new(),
            paused_until: None,
            over: false,
            leaves: false,
            detach_due: None,
        })
    }

    fn mounted_file_path(&self) -> PathBuf {
        self.server.mount.mount_dir().join(MOUNTED_FILE_NAME)
    }

    /// The kernel has begun: now a loop device can be had.
    fn start_loop_device(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let inherited = self.inherited.take();
        if self.server.settings.loop_devices == LoopDevicePolicy::Never && inherited.is_none() {
            return self.report_ready(Err(None));
        }
        let (resize, resizes) = mpsc::channel();
        let (reports, report) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        waiter.add_fd(wake.as_fd(), LOOP_KEY, true, false)?;
        let (file, block, read_only) = (self.mounted_file_path(), self.geometry.logical, self.read_only);
        let opener = self.server.mount.file_opener();
        let its_wake = wake.clone();
        std::thread::Builder::new().name("loop".into()).spawn(move || {
            let made = match inherited {
                // Its size may have changed while nobody served it.
                Some(device) => {
                    LoopDevice::from_inherited(device).inspect(|device| drop(device.refresh_capacity()))
                }
                None => (opener.open(MOUNTED_FILE_NAME, !read_only))
                    .and_then(|backing| LoopDevice::new(&backing, &file, block, read_only)),
            };
            let (device, said) = match made {
                Ok(device) => {
                    let said = device.try_clone_fd().map(|kept| (device.path().to_owned(), kept));
                    (Some(device), said)
                }
                Err(error) => (None, Err(error)),
            };
            // If nobody listens any more, there is nobody to serve the device either.
            let _ = reports.send(said);
            let _ = rustix::io::write(&its_wake, &1_u64.to_ne_bytes());
            let Some(device) = device else { return };
            while resizes.recv().is_ok() {
                // The next change tries again; the file has its size in any case.
                let _ = device.refresh_capacity();
            }
        })?;
        self.loop_thread = Some(LoopDeviceThread { resize, report, wake });
        Ok(())
    }

    /// What waits at a place that is recovered is asked for when it is known who serves it now, and not before.
    fn report_recovered(&mut self) -> io::Result<()> {
        let inherited = self.inherited.as_ref().map(|device| LoopDevice::from_inherited(device.try_clone()?));
        let device = inherited.transpose()?;
        let device = match device {
            Some(device) => Ok((device.path().to_owned(), device.try_clone_fd()?)),
            None => Err(None),
        };
        self.report_ready(device)
    }

    /// Whether somebody else may serve the users of a place whose server failed by itself.
    pub(super) fn may_be_recovered(&self) -> bool {
        self.told && self.resends && !self.over && !self.leaves
    }

    fn report_ready(&mut self, device: Result<(PathBuf, OwnedFd), Option<io::Error>>) -> io::Result<()> {
        let file = self.mounted_file_path();
        if let Some(ready) = self.ready.take() {
            let (device, why) = match device {
                Ok(device) => (Some(device), None),
                Err(why) => (None, why),
            };
            let facts = self.server.mount.handover(self.write_max as u32);
            let keep = BorrowedMount {
                fuse: self.server.fuse.as_fd(),
                device: device.as_ref().map(|(_, kept)| kept.as_fd()),
                facts,
            };
            let kept = self.resends.then_some(keep);
            ready(MountedFile {
                file: &file,
                device: device.as_ref().map(|(path, _)| path.as_path()),
                why,
                kept,
            })?;
            self.server.mount.settled = true;
            self.told = true;
        }
        Ok(())
    }

    /// Reads a request; false if there is none, or nothing to read it to.
    fn read_request(&mut self, disk: &mut dyn Disk) -> io::Result<bool> {
        self.alloc_request_buffer(disk);
        let Some(buffer) = &mut self.buffer else { return Ok(false) };
        self.vectors.clear();
        self.vectors.push_buffer(&mut self.head);
        for part in buffer {
            let len = part.len();
            part.slices_mut(0..len).for_each(|slice| self.vectors.push_buffer(slice));
        }
        // SAFETY: the vectors were made above, of memory that this value owns alone and does not touch
        // before the call returns.
        let n = match unsafe { readv(self.server.fuse.as_raw_fd(), &mut self.vectors) } {
            Ok(n) => n,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(false),
                // Interrupted, or taken back before it was read: the next one.
                Some(libc::EINTR | libc::ENOENT) => return Ok(true),
                Some(libc::ENODEV | libc::ECONNABORTED) => {
                    self.over = true;
                    return Ok(false);
                }
                Some(libc::ENOMEM) => {
                    self.pause_reading();
                    return Ok(false);
                }
                // Memory in more pieces than one call takes is no good: other memory may come.
                None if error.kind() == io::ErrorKind::InvalidInput => {
                    self.buffer = None;
                    self.pause_reading();
                    return Ok(false);
                }
                _ => return Err(error),
            },
        };
        let Ok((header, _)) = wire::InHeader::read_from_prefix(&self.head) else { return Ok(false) };
        if n < size_of::<wire::InHeader>() || header.len as usize != n {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent no FUSE request"));
        }
        let mut arguments = [0; ARGUMENTS_LEN_MAX];
        let len = (n - size_of::<wire::InHeader>()).min(ARGUMENTS_LEN_MAX);
        let near = len.min(WRITE_HEADER_LEN - size_of::<wire::InHeader>());
        arguments[..near].copy_from_slice(&self.head[size_of::<wire::InHeader>()..][..near]);
        if let Some(buffer) = self.buffer.as_ref().filter(|_| len > near && header.opcode != opcode::WRITE) {
            copy_from_parts(buffer, 0, &mut arguments[near..len]);
        }
        self.dispatch_request(disk, &header, &arguments[..len])?;
        Ok(true)
    }

    fn reply(&mut self, unique: u64, bytes: &[u8]) -> io::Result<()> {
        self.send_reply(unique, 0, bytes, &Sg::new())
    }

    fn reply_error(&mut self, unique: u64, errno: i32) -> io::Result<()> {
        self.send_reply(unique, -errno, &[], &Sg::new())
    }

    /// Says what could not be said. Nothing is read meanwhile, so that this is at most what was under way.
    fn resend_unsent(&mut self) -> io::Result<()> {
        for (unique, error, bytes, data) in std::mem::take(&mut self.unsaid) {
            self.send_reply(unique, error, &bytes, &data)?;
        }
        Ok(())
    }

    fn pause_reading(&mut self) {
        self.paused_until = Some(monotonic_now() + READ_PAUSE);
    }

    fn send_reply(&mut self, unique: u64, error_number: i32, bytes: &[u8], data: &Sg) -> io::Result<()> {
        let len = size_of::<wire::OutHeader>() + bytes.len() + data.len();
        let header = wire::OutHeader { len: len as u32, error: error_number, unique };
        self.vectors.clear();
        self.vectors.push_bytes(header.as_bytes(), 0);
        self.vectors.push_bytes(bytes, 0);
        self.vectors.push_sg(data, 0);
        let mut copy = Vec::new();
        if self.vectors.len_bytes() < len {
            // The kernel takes an answer in one call, which takes only so many pieces.
            copy.resize(data.len(), 0);
            data.copy_to(0, &mut copy);
            self.vectors.clear();
            self.vectors.push_bytes(header.as_bytes(), 0);
            self.vectors.push_bytes(bytes, 0);
            self.vectors.push_bytes(&copy, 0);
        }
        // SAFETY: the vectors were made above, of memory that stays until the call returns.
        match unsafe { writev(self.server.fuse.as_raw_fd(), &mut self.vectors) } {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The one who asked is gone, or all of them are.
                Some(libc::ENOENT | libc::EINTR) => Ok(()),
                // Said when there is.
                Some(libc::ENOMEM | libc::EAGAIN) => {
                    self.unsaid.push((unique, error_number, bytes.to_vec(), data.clone()));
                    Ok(())
                }
                Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN) => {
                    self.over = true;
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    fn may_read_request(&self) -> bool {
        let is_held_up = self.parked.is_some() || self.paused_until.is_some() || !self.unsaid.is_empty();
        !self.over && !self.leaves && !is_held_up
    }

    /// Memory for the next request. Without it none is read, and none is waited for.
    fn alloc_request_buffer(&mut self, disk: &mut dyn Disk) {
        if self.buffer.is_none() {
            self.buffer =
                self.requests.alloc_write_memory(disk, 0, self.write_max.max(READ_BUFFER_MIN) as u64);
        }
    }

    /// Takes the place away from sight, as soon as nothing else is mounted over it. Users go on meanwhile; when it
    /// is known that there are none, nobody has to wait for that.
    fn advance_detach(&mut self) {
        if self.detach_due.is_none_or(|due| monotonic_now() < due) {
            return;
        }
        let detached = self.server.mount.detach();
        if detached.as_ref().is_err_and(|why| why.kind() == io::ErrorKind::WouldBlock) {
            // The program that takes it away may ask for it: it is answered meanwhile.
            self.detach_due = Some(monotonic_now() + PROGRAM_POLL_INTERVAL);
            return;
        }
        let is_unused = self.opened == 0 && !self.has_old_users && self.requests.in_flight() == 0;
        self.over |= detached.is_err() && is_unused;
        self.detach_due = (detached.is_err() && !self.over).then(|| monotonic_now() + DETACH_RETRY_INTERVAL);
    }

    fn update_watch(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        if self.over {
            // That the connection has ended would be told again and again, whatever is waited for.
            return match self.watched.take() {
                Some(_) => waiter.remove_fd(self.server.fuse.as_fd()),
                None => Ok(()),
            };
        }
        let wanted = self.may_read_request() && self.later.is_empty() && self.buffer.is_some();
        match self.watched {
            None => waiter.add_fd(self.server.fuse.as_fd(), FUSE_KEY, wanted, false)?,
            Some(watched) if watched != wanted => {
                waiter.change_fd(self.server.fuse.as_fd(), FUSE_KEY, wanted, false)?;
            }
            Some(_) => {}
        }
        self.watched = Some(wanted);
        Ok(())
    }
}

impl EventHandler for FuseHandler<'_> {
    type Token = PendingReply;

    fn requests(&mut self) -> &mut RequestTable<PendingReply> {
        &mut self.requests
    }

    fn handle_ready(
        &mut self,
        disk: &mut dyn Disk,
        _waiter: &EpollWaiter,
        ready: ReadyEvent,
    ) -> io::Result<()> {
        if ready.key == LOOP_KEY {
            let Some(thread) = &self.loop_thread else { return Ok(()) };
            let _ = rustix::io::read(&thread.wake, &mut [0; 8]);
            if let Ok(report) = thread.report.try_recv() {
                self.report_ready(report.map_err(Some))?;
            }
            return Ok(());
        }
        for _ in 0..REQUESTS_PER_BATCH {
            if !self.may_read_request() || !self.read_request(disk)? {
                break;
            }
        }
        // The kernel has ended the connection, and reading would say so; without a buffer nothing was read.
        self.over |= ready.hung_up && (!self.may_read_request() || self.buffer.is_none());
        Ok(())
    }

    fn handle_request_ended(&mut self, ended: EndedRequest<PendingReply>) -> io::Result<()> {
        let PendingReply { unique, then } = ended.token;
        match then {
            CompletionReply::Written(_) | CompletionReply::Zeroed => {
                self.changing = self.changing.saturating_sub(1);
                self.changed += 1;
            }
            // One that failed covers nothing: who closes next has it tried again.
            CompletionReply::Flushed(covered) if ended.result.is_ok() => {
                self.flushed = self.flushed.max(covered)
            }
            CompletionReply::Flushed(_)
            | CompletionReply::Data
            | CompletionReply::Seek { .. }
            | CompletionReply::Forget => {}
        }
        match (ended.result, then) {
            (_, CompletionReply::Forget) => Ok(()),
            (Err(RequestError::Unsupported), CompletionReply::Seek { .. }) => {
                self.reply_error(unique, libc::ENOSYS)
            }
            (Err(trouble), _) => self.reply_error(unique, trouble.errno()),
            (Ok(()), CompletionReply::Data) => self.send_reply(unique, 0, &[], &ended.data),
            (Ok(()), CompletionReply::Written(size)) => {
                self.reply(unique, wire::WriteOut { size, padding: 0 }.as_bytes())
            }
            (Ok(()), CompletionReply::Zeroed | CompletionReply::Flushed(_)) => self.reply(unique, &[]),
            (Ok(()), CompletionReply::Seek { hole }) => self.handle_seek_extents(&ended, hole),
        }
    }

    fn handle_geometry_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.geometry = disk.geometry();
        self.read_only = disk.is_read_only();
        let notice = wire::InvalInode { ino: VOLUME_INODE, offset: -1, len: 0 };
        // The kernel does not mind if it does not know the file yet (ENOENT).
        self.send_reply(0, wire::NOTIFY_INVAL_INODE, notice.as_bytes(), &Sg::new())?;
        if let Some(thread) = &self.loop_thread {
            // Where there is no device, nobody listens.
            let _ = thread.resize.send(());
        }
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &EpollWaiter) -> io::Result<bool> {
        if std::mem::take(&mut self.resend_due) {
            self.report_recovered()?;
            // What the server before this one had taken comes again, ahead of what waits.
            self.send_reply(0, wire::NOTIFY_RESEND, &[], &Sg::new())?;
        }
        let begins = self.begun && self.loop_thread.is_none() && self.ready.is_some();
        if begins || self.inherited.is_some() {
            self.start_loop_device(waiter)?;
        }
        let mut started = false;
        while let Some(request) = self.later.pop() {
            match self.requests.submit_request(disk, request) {
                Ok(()) => started = true,
                Err(request) => {
                    self.later.push(request);
                    break;
                }
            }
        }
        started |= self.retry_parked(disk)?;
        self.advance_detach();
        self.resend_unsent()?;
        self.paused_until = self.paused_until.filter(|until| monotonic_now() < *until);
        self.alloc_request_buffer(disk);
        self.update_watch(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.detach_due, self.paused_until].into_iter().flatten().min()
    }

    fn waits_for_memory(&self) -> bool {
        let waits = self.parked.is_some() || !self.later.is_empty() || !self.unsaid.is_empty();
        !self.over && (waits || self.buffer.is_none())
    }

    fn start_stop(&mut self, waiter: &EpollWaiter, how: StopMode) -> bool {
        // The thread lets go of the loop device, which goes when nobody else has it; and none is made now.
        if let Some(thread) = self.loop_thread.take() {
            // What it still says would wake us until it has ended.
            let _ = waiter.remove_fd(thread.wake.as_fd());
        }
        self.ready = None;
        if !self.server.mount.settled {
            // Its users go on waiting, for somebody else.
            self.over = true;
            return false;
        }
        self.leaves |= how == StopMode::Now;
        self.detach_due = Some(monotonic_now());
        self.advance_detach();
        how == StopMode::WhenDone
    }

    fn is_finished(&self) -> bool {
        self.over || (self.leaves && self.unsaid.is_empty())
    }
}

#[cfg(test)]
mod tests;
