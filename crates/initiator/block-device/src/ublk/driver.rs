//! The interface of the driver to a server, and the kernel's driver.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use buf::Sg;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};

use super::control::ControlChannel;
use super::device_path;
use super::queue::{SlotEvent, UblkQueue};
use super::wire::{self, DeviceInfo};
use crate::io_vectors::IoVectors;

/// What is said to the driver, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverCommand {
    Start,
    Stop,
    /// To so many sectors.
    Resize(u64),
}

/// One device. None of these calls waits for what only the thread that makes it could do.
pub(super) trait UblkDriver {
    /// Slots.
    fn queue_depth(&self) -> u16;
    /// Readable when a slot brought something, a command has ended, or somebody has looked.
    fn event_fds(&self) -> [BorrowedFd<'_>; 3];
    /// What a slot brought. An error means that the driver does not work with us.
    fn poll_slot_event(&mut self) -> Option<io::Result<SlotEvent>>;
    /// Gives a result back: bytes, or a negative error number. It goes with the next [`UblkDriver::submit_pending`].
    fn commit_result(&mut self, tag: u16, result: i32);
    /// Hands over what waits for it, commands too.
    fn submit_pending(&mut self) -> io::Result<()>;
    /// Whether the system had no memory to take all of it: [`UblkDriver::submit_pending`] is to be called again, after a while.
    fn has_unsubmitted(&mut self) -> bool;
    /// Copies a write's data to memory that `io_vectors` names.
    ///
    /// # Safety
    /// As of [`crate::io_vectors::read_at`].
    unsafe fn copy_write_data(&self, tag: u16, vectors: &mut IoVectors) -> io::Result<()>;
    /// Copies what was read to the request.
    fn copy_read_data(&self, tag: u16, data: &Sg, vectors: &mut IoVectors) -> io::Result<()>;
    /// Begins a command, when none is out.
    fn start_command(&mut self, command: DriverCommand) -> io::Result<()>;
    /// How the command ended that is out, if it has.
    fn poll_command(&mut self) -> Option<io::Result<()>>;
    /// Begins to look whether nobody has the device mounted, or open for itself alone; who has it open otherwise
    /// cannot be told.
    fn start_use_check(&mut self);
    /// What was seen, once; `None`: nobody has looked, or not to the end.
    fn poll_use_check(&mut self) -> Option<bool>;
}

/// The kernel's driver, and one device of it.
pub(super) struct KernelUblkDriver {
    control: ControlChannel,
    queue: UblkQueue,
    device: u32,
    recovers: bool,
    look: UseCheck,
}

impl KernelUblkDriver {
    pub(super) fn new(info: &DeviceInfo, recovers: bool) -> io::Result<KernelUblkDriver> {
        let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
        let file = File::options().read(true).write(true).open(path)?;
        let queue = UblkQueue::new(file, info.depth)?;
        let (control, look) = (ControlChannel::open()?, UseCheck::new()?);
        Ok(KernelUblkDriver { control, queue, device: info.device, recovers, look })
    }
}

impl UblkDriver for KernelUblkDriver {
    fn queue_depth(&self) -> u16 {
        self.queue.queue_depth()
    }

    fn event_fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.queue.event_fd(), self.control.event_fd(), self.look.event_fd()]
    }

    fn poll_slot_event(&mut self) -> Option<io::Result<SlotEvent>> {
        self.queue.poll_slot_event()
    }

    fn commit_result(&mut self, tag: u16, result: i32) {
        self.queue.commit_result(tag, result);
    }

    fn submit_pending(&mut self) -> io::Result<()> {
        self.control.submit_command()?;
        self.queue.submit_pending()
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.queue.has_unsubmitted() || self.control.has_unsubmitted()
    }

    unsafe fn copy_write_data(&self, tag: u16, vectors: &mut IoVectors) -> io::Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.queue.copy_write_data(tag, vectors) }
    }

    fn copy_read_data(&self, tag: u16, data: &Sg, vectors: &mut IoVectors) -> io::Result<()> {
        self.queue.copy_read_data(tag, data, vectors)
    }

    fn start_command(&mut self, command: DriverCommand) -> io::Result<()> {
        let server = u64::from(std::process::id());
        let (word, data) = match command {
            DriverCommand::Start if self.recovers => (wire::END_USER_RECOVERY, server),
            DriverCommand::Start => (wire::START_DEV, server),
            DriverCommand::Stop => (wire::STOP_DEV, 0),
            DriverCommand::Resize(sectors) => (wire::UPDATE_SIZE, sectors),
        };
        self.control.start_command(word, self.device, &[], data)
    }

    fn poll_command(&mut self) -> Option<io::Result<()>> {
        self.control.poll_command()
    }

    fn start_use_check(&mut self) {
        let path = device_path(self.device);
        self.look.start_check(move || {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
            !matches!(rustix::fs::open(path, flags, Mode::empty()), Err(rustix::io::Errno::BUSY))
        });
    }

    fn poll_use_check(&mut self) -> Option<bool> {
        self.look.poll_is_unused()
    }
}

/// A look at the device on a thread of its own: to open it may read its partitions, and to close it writes what its
/// cache holds, and both wait for answers of who serves it.
#[derive(Debug)]
pub(super) struct UseCheck {
    seen: Arc<AtomicU8>,
    event: Arc<OwnedFd>,
}

const NOT_CHECKING: u8 = 0;
const CHECKING: u8 = 1;
const IN_USE: u8 = 2;
const NOT_IN_USE: u8 = 3;

impl UseCheck {
    pub(super) fn new() -> io::Result<UseCheck> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(UseCheck { seen: Arc::new(AtomicU8::new(NOT_CHECKING)), event })
    }

    /// Readable when somebody has looked.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Begins to look, unless somebody does. Where there is no thread to be had nobody looks, this time.
    pub(super) fn start_check(&mut self, is_unused: impl FnOnce() -> bool + Send + 'static) {
        if self.seen.swap(CHECKING, Ordering::AcqRel) == CHECKING {
            return;
        }
        let (seen, event) = (self.seen.clone(), self.event.clone());
        let thread = std::thread::Builder::new().name("ublk-look".into()).spawn(move || {
            seen.store(if is_unused() { NOT_IN_USE } else { IN_USE }, Ordering::Release);
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(&event, &1_u64.to_ne_bytes());
        });
        if thread.is_err() {
            self.seen.store(NOT_CHECKING, Ordering::Release);
        }
    }

    /// What was seen, once.
    pub(super) fn poll_is_unused(&mut self) -> Option<bool> {
        let seen = self.seen.load(Ordering::Acquire);
        if seen != IN_USE && seen != NOT_IN_USE {
            return None;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.seen.store(NOT_CHECKING, Ordering::Release);
        Some(seen == NOT_IN_USE)
    }
}
