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

use super::block_path;
use super::control::Channel;
use super::queue::{Queue, SlotEvent};
use super::wire::{self, DeviceInfo};
use crate::vectors::Vectors;

/// What is said to the driver, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Start,
    Stop,
    /// To so many sectors.
    Resize(u64),
}

/// One device. None of these calls waits for what only the thread that makes it could do.
pub(super) trait Driver {
    /// Slots.
    fn depth(&self) -> u16;
    /// Readable when a slot brought something, a command has ended, or somebody has looked.
    fn events(&self) -> [BorrowedFd<'_>; 3];
    /// What a slot brought. An error means that the driver does not work with us.
    fn poll(&mut self) -> Option<io::Result<SlotEvent>>;
    /// Gives a result back: bytes, or a negative error number. It goes with the next [`Driver::submit`].
    fn commit(&mut self, tag: u16, result: i32);
    /// Hands over what waits for it, commands too.
    fn submit(&mut self) -> io::Result<()>;
    /// Whether the system had no memory to take all of it: [`Driver::submit`] is to be called again, after a while.
    fn is_unsent(&mut self) -> bool;
    /// Copies a write's data to memory that `vectors` names.
    ///
    /// # Safety
    /// As of [`crate::vectors::read_at`].
    unsafe fn read_data(&self, tag: u16, vectors: &mut Vectors) -> io::Result<()>;
    /// Copies what was read to the request.
    fn write_data(&self, tag: u16, data: &Sg, vectors: &mut Vectors) -> io::Result<()>;
    /// Begins a command, when none is out.
    fn begin(&mut self, command: Command) -> io::Result<()>;
    /// How the command ended that is out, if it has.
    fn poll_command(&mut self) -> Option<io::Result<()>>;
    /// Begins to look whether nobody has the device mounted, or open for itself alone; who has it open otherwise
    /// cannot be told.
    fn check_use(&mut self);
    /// What was seen, once; `None`: nobody has looked, or not to the end.
    fn poll_unused(&mut self) -> Option<bool>;
}

/// The kernel's driver, and one device of it.
pub(super) struct Kernel {
    control: Channel,
    queue: Queue,
    device: u32,
    recovers: bool,
    look: UseCheck,
}

impl Kernel {
    pub(super) fn new(info: &DeviceInfo, recovers: bool) -> io::Result<Kernel> {
        let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
        let file = File::options().read(true).write(true).open(path)?;
        let queue = Queue::new(file, info.depth)?;
        let (control, look) = (Channel::open()?, UseCheck::new()?);
        Ok(Kernel { control, queue, device: info.device, recovers, look })
    }
}

impl Driver for Kernel {
    fn depth(&self) -> u16 {
        self.queue.depth()
    }

    fn events(&self) -> [BorrowedFd<'_>; 3] {
        [self.queue.event(), self.control.event(), self.look.event()]
    }

    fn poll(&mut self) -> Option<io::Result<SlotEvent>> {
        self.queue.poll()
    }

    fn commit(&mut self, tag: u16, result: i32) {
        self.queue.commit(tag, result);
    }

    fn submit(&mut self) -> io::Result<()> {
        self.control.send()?;
        self.queue.submit()
    }

    fn is_unsent(&mut self) -> bool {
        self.queue.is_unsent() || self.control.is_unsent()
    }

    unsafe fn read_data(&self, tag: u16, vectors: &mut Vectors) -> io::Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.queue.read_data(tag, vectors) }
    }

    fn write_data(&self, tag: u16, data: &Sg, vectors: &mut Vectors) -> io::Result<()> {
        self.queue.write_data(tag, data, vectors)
    }

    fn begin(&mut self, command: Command) -> io::Result<()> {
        let server = u64::from(std::process::id());
        let (word, data) = match command {
            Command::Start if self.recovers => (wire::END_USER_RECOVERY, server),
            Command::Start => (wire::START_DEV, server),
            Command::Stop => (wire::STOP_DEV, 0),
            Command::Resize(sectors) => (wire::UPDATE_SIZE, sectors),
        };
        self.control.begin(word, self.device, &[], data)
    }

    fn poll_command(&mut self) -> Option<io::Result<()>> {
        self.control.poll()
    }

    fn check_use(&mut self) {
        let path = block_path(self.device);
        self.look.begin(move || {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
            !matches!(rustix::fs::open(path, flags, Mode::empty()), Err(rustix::io::Errno::BUSY))
        });
    }

    fn poll_unused(&mut self) -> Option<bool> {
        self.look.poll()
    }
}

/// A look at the device on a thread of its own: to open it may read its partitions, and to close it writes what its
/// cache holds, and both wait for answers of who serves it.
#[derive(Debug)]
pub(super) struct UseCheck {
    seen: Arc<AtomicU8>,
    event: Arc<OwnedFd>,
}

const NOBODY_LOOKS: u8 = 0;
const LOOKING: u8 = 1;
const USED: u8 = 2;
const UNUSED: u8 = 3;

impl UseCheck {
    pub(super) fn new() -> io::Result<UseCheck> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(UseCheck { seen: Arc::new(AtomicU8::new(NOBODY_LOOKS)), event })
    }

    /// Readable when somebody has looked.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Begins to look, unless somebody does. Where there is no thread to be had nobody looks, this time.
    pub(super) fn begin(&mut self, is_unused: impl FnOnce() -> bool + Send + 'static) {
        if self.seen.swap(LOOKING, Ordering::AcqRel) == LOOKING {
            return;
        }
        let (seen, event) = (self.seen.clone(), self.event.clone());
        let thread = std::thread::Builder::new().name("ublk-look".into()).spawn(move || {
            seen.store(if is_unused() { UNUSED } else { USED }, Ordering::Release);
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(&event, &1_u64.to_ne_bytes());
        });
        if thread.is_err() {
            self.seen.store(NOBODY_LOOKS, Ordering::Release);
        }
    }

    /// What was seen, once.
    pub(super) fn poll(&mut self) -> Option<bool> {
        let seen = self.seen.load(Ordering::Acquire);
        if seen != USED && seen != UNUSED {
            return None;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.seen.store(NOBODY_LOOKS, Ordering::Release);
        Some(seen == UNUSED)
    }
}
