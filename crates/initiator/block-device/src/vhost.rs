//! A virtio disk for a virtual machine on this host, over vhost-user: the machine's requests are read from
//! its memory and answered there, without TCP and without the kernel.
//!
//! QEMU uses it with `-object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
//! -chardev socket,id=disk,path=PATH,reconnect=1 -device vhost-user-blk-pci,chardev=disk`. Data that the
//! machine writes goes to the volume directly from the machine's memory; data that it reads is copied there
//! once.
//!
//! # What is trusted
//! Nothing that the guest writes: every address, length and index is checked, and a ring whose driver
//! violates the rules stops alone. The front end (QEMU) can crash this process by truncating a file whose
//! pages are mapped (SIGBUS). So a server serves one machine, whose owner may open its socket (mode 0600).
//!
//! # Recovery
//! Requests in flight are recorded in memory that the front end keeps. When this process is killed and
//! another serves the same path, it executes them again after the machine has reconnected, and the guest sees
//! no error.
//!
//! # Not supported
//! There is no dirty log, so QEMU refuses to migrate the machine. A new size is reported to the machine at
//! once.

mod block;
mod handler;
mod inflight;
mod memory;
mod message;
mod ring;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use message::{
    ConfigHeader, InflightLayout, Malformed, MemoryRegion, Message, PAYLOAD_MAX, ReceivedMessage, RingLayout,
    parse_input,
};

use crate::disk::Disk;
use crate::event_loop;
use crate::event_waiter::ServerStop;
use crate::socket::Listener;
use crate::statistics::Statistics;

/// Bytes of the name that a machine sees (VIRTIO_BLK_T_GET_ID).
pub const DEVICE_ID_LEN: usize = 20;

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the socket shall be. A socket there that nobody listens on any more is replaced.
    pub path: PathBuf,
    /// The socket's permissions; 0600 unless another user's machine shall have the disk.
    pub mode: u32,
    /// Queues that a machine may have, 1 to 256: one for each of its processors is best.
    pub queues: u16,
    /// Requests at work at a time.
    pub depth: u16,
    /// The disk's serial number as the machine sees it: at most [`DEVICE_ID_LEN`] bytes of it.
    pub id: String,
}

impl Settings {
    /// What fits most: mode 0600, up to 16 queues, 256 requests, no serial number.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Settings { path: path.into(), mode: 0o600, queues: 16, depth: 256, id: String::new() }
    }
}

/// A back end that listens.
#[derive(Debug)]
pub struct Backend {
    settings: Settings,
    socket: Listener,
    statistics: Arc<Statistics>,
}

impl Backend {
    /// Makes the socket: a machine may connect, and waits until [`Backend::run`] serves it.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if another server listens there, or something that is no socket
    /// is in the way.
    pub fn new(settings: Settings) -> io::Result<Backend> {
        let socket = Listener::new(&settings.path, settings.mode)?;
        Ok(Backend { settings, socket, statistics: Arc::default() })
    }

    /// Counters, which go on while the server runs.
    pub fn io_counters(&self) -> Arc<Statistics> {
        self.statistics.clone()
    }

    fn queue_count(&self) -> u16 {
        self.settings.queues.clamp(1, 256)
    }

    fn device_id(&self) -> [u8; DEVICE_ID_LEN] {
        let mut id = [0; DEVICE_ID_LEN];
        let len = self.settings.id.len().min(DEVICE_ID_LEN);
        id[..len].copy_from_slice(&self.settings.id.as_bytes()[..len]);
        id
    }

    /// Serves `disk`, to one machine after the other, until `stop` is asked and the machine that has it
    /// lets go of it; asked twice, at once.
    ///
    /// # Errors
    /// Of the disk, when it is gone: all that was out has been answered with an error. Of the system, if
    /// it gives no descriptors or waits no more.
    pub fn run(&mut self, disk: &mut dyn Disk, stop: &ServerStop) -> io::Result<()> {
        let mut handler = handler::VhostHandler::new(self, disk);
        event_loop::run_event_loop(&mut handler, disk, stop)
    }
}
