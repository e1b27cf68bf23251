//! An open export, and the calls that shards give it.
//!
//! Invariant: a shard's thread waits for nothing here; what it gives is in the list of the worker, which has no more
//! calls than the volume's gates have operations out.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use buf::Errno;
use nbd::flag;
use reactor::{CallEnd, LibraryCall, LibraryDisk};

use crate::handshake::{EXPORT_NAME_BYTES_MAX, ExportInfo, HandshakeError, negotiate};
use crate::link::Memory;
use crate::socket::{Deadline, ServerAddress, Socket};
use crate::worker::Worker;

/// How long connecting and the handshake may take together.
pub const ANSWER: Duration = Duration::from_secs(3);
/// The longest read or write of a volume: a server has to take it in one request.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Which export, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its server.
    pub server: ServerAddress,
    /// Its name there; empty: the default export.
    pub export: String,
    /// It is only read.
    pub read_only: bool,
    /// Offsets and lengths are multiples of this many bytes.
    pub block: u32,
    /// How long a call may wait for a server that is away. What is older ends with a path error when the server is
    /// found away, and is not made again when it comes back.
    pub queue_timeout: Duration,
    /// The volume, for the log.
    pub volume: String,
}

/// Why an export cannot be used.
#[derive(Debug)]
pub enum OpenError {
    /// Nobody listens there, or no machine answers.
    Connect(io::Error),
    /// What the server said.
    Handshake(HandshakeError),
    /// The name of the export is longer than 4,096 bytes.
    Name,
    /// The export may only be read, and the volume is to be written.
    ReadOnly,
    /// Its smallest block has this many bytes, and the volume's is smaller.
    Block(u32),
    /// It takes at most so many bytes in a request.
    Payload(u32),
    /// There is no thread to be had, or no socket.
    System(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Connect(why) if why.kind() == io::ErrorKind::WouldBlock => {
                f.write_str("cannot connect: the server has more clients waiting than it takes")
            }
            OpenError::Connect(why) => write!(f, "cannot connect: {why}; is the NBD server running?"),
            OpenError::Handshake(why) => why.fmt(f),
            OpenError::Name => write!(f, "the name of an export has at most {EXPORT_NAME_BYTES_MAX} bytes"),
            OpenError::ReadOnly => {
                f.write_str("the server lets the export be read only: append \",ro\", or start the server without --read-only")
            }
            OpenError::Block(bytes @ ..=4096) => {
                write!(f, "the export has blocks of {bytes} bytes: append \",block=4096\"")
            }
            OpenError::Block(bytes) => {
                write!(f, "the export has blocks of {bytes} bytes, and a volume at most 4096")
            }
            OpenError::Payload(bytes) => {
                write!(f, "the server takes at most {bytes} bytes in a request, and a volume needs 1 MiB")
            }
            OpenError::System(why) => write!(f, "the system has no thread or socket left: {why}"),
        }
    }
}

impl std::error::Error for OpenError {}

impl OpenError {
    /// Whether it may pass without anybody changing a configuration.
    pub fn may_pass(&self) -> bool {
        match self {
            OpenError::Connect(_) | OpenError::System(_) => true,
            OpenError::Handshake(why) => why.may_pass(),
            OpenError::Name | OpenError::ReadOnly | OpenError::Block(_) | OpenError::Payload(_) => false,
        }
    }
}

impl Options {
    /// Connects, and negotiates the export.
    pub(crate) fn connect(&self) -> Result<(Socket, ExportInfo), OpenError> {
        let until = Instant::now() + ANSWER;
        let socket = Socket::connect(&self.server, until).map_err(OpenError::Connect)?;
        let info =
            negotiate(&mut Deadline::new(&socket, until), &self.export).map_err(OpenError::Handshake)?;
        Ok((socket, info))
    }

    fn check(&self, info: &ExportInfo) -> Result<(), OpenError> {
        if info.is_read_only() && !self.read_only {
            return Err(OpenError::ReadOnly);
        }
        if info.block_min > self.block {
            return Err(OpenError::Block(info.block_min));
        }
        if info.payload_max < TRANSFER_BYTES_MAX {
            return Err(OpenError::Payload(info.payload_max));
        }
        Ok(())
    }
}

/// What an end of a call is told to: a shard, or a test.
pub(crate) trait CallSink: Send + 'static {
    /// The call has ended: bytes moved, or what went wrong.
    fn end(self, came: Result<usize, Errno>);
}

impl CallSink for CallEnd {
    fn end(self, came: Result<usize, Errno>) {
        CallEnd::end(self, came, None);
    }
}

/// What the shards and the worker of an export share.
#[derive(Debug)]
pub(crate) struct Shared<E> {
    inbox: Mutex<Inbox<E>>,
    /// Wakes the worker.
    waker: UnixStream,
    /// Why there is no connection; `None`: there is one.
    absence: Mutex<Option<String>>,
}

#[derive(Debug)]
pub(crate) struct Inbox<E> {
    pub(crate) calls: Vec<NewCall<E>>,
    /// The last handle has gone.
    pub(crate) is_closed: bool,
}

/// A call that the worker has not taken yet.
#[derive(Debug)]
pub(crate) struct NewCall<E> {
    pub(crate) call: LibraryCall,
    pub(crate) end: E,
    pub(crate) since: Instant,
}

impl<E> Shared<E> {
    /// With the worker's end of the waker.
    pub(crate) fn new() -> io::Result<(Self, UnixStream)> {
        let (waker, wakeups) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakeups.set_nonblocking(true)?;
        let inbox = Mutex::new(Inbox { calls: Vec::new(), is_closed: false });
        Ok((Shared { inbox, waker, absence: Mutex::new(None) }, wakeups))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inbox<E>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server is away, and why; true: that is news.
    pub(crate) fn set_absence(&self, why: Option<String>) -> bool {
        let mut absence = self.absence.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *absence != why;
        *absence = why;
        is_news
    }

    fn absence(&self) -> Option<String> {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn push(&self, call: LibraryCall, end: E) {
        let mut inbox = self.lock();
        let is_first = inbox.calls.is_empty();
        inbox.calls.push(NewCall { call, end, since: Instant::now() });
        drop(inbox);
        // The worker takes all that is there when it is woken.
        if is_first {
            self.wake();
        }
    }

    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.wake();
    }

    fn wake(&self) {
        // If it is full, the worker has not read what is in it yet.
        let _ = (&self.waker).write(&[1]);
    }
}

/// Closes the export when the last handle goes.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared<CallEnd>>,
    info: ExportInfo,
    read_only: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// An open export. Clones are the same one. When the last one goes, its worker ends, and what is out with it.
#[derive(Clone, Debug)]
pub struct NbdDisk(Arc<Handle>);

impl NbdDisk {
    /// Connects to the server, and opens the export: takes [`ANSWER`] at most, and the time that the resolver of names
    /// needs.
    ///
    /// # Errors
    /// The server is away, or the export is not as the volume needs it.
    pub fn open(options: Options) -> Result<NbdDisk, OpenError> {
        if options.export.len() > EXPORT_NAME_BYTES_MAX {
            return Err(OpenError::Name);
        }
        let (socket, info) = options.connect()?;
        options.check(&info)?;
        let (shared, wakeups) = Shared::new().map_err(OpenError::System)?;
        let (shared, read_only) = (Arc::new(shared), options.read_only);
        let worker = Worker::new(options, info, shared.clone(), wakeups);
        let name = "bw-nbd".to_owned();
        thread::Builder::new().name(name).spawn(move || worker.run(socket)).map_err(OpenError::System)?;
        Ok(NbdDisk(Arc::new(Handle { shared, info, read_only })))
    }

    /// What the server said of it when it was opened.
    pub fn info(&self) -> &ExportInfo {
        &self.0.info
    }

    /// Why the server is away; `None`: it is there, as far as is known.
    pub fn absence(&self) -> Option<String> {
        self.0.shared.absence()
    }
}

/// What a call ends with without the server being asked; `None`: it is to be asked.
pub(crate) fn end_without_server(
    call: &LibraryCall,
    info: &ExportInfo,
    read_only: bool,
) -> Option<Result<usize, Errno>> {
    let payload = Memory::of(call).len() as u64;
    let (offset, len) = match *call {
        LibraryCall::Read { offset, .. } | LibraryCall::Write { offset, .. } => (offset, payload),
        LibraryCall::Punch { offset, len } | LibraryCall::Zero { offset, len } => (offset, len),
        LibraryCall::Sync => return (!info.has(flag::SEND_FLUSH)).then_some(Ok(0)),
        LibraryCall::NextData { .. } => return Some(Err(Errno(libc::EOPNOTSUPP))),
    };
    let changes = !matches!(call, LibraryCall::Read { .. });
    if changes && read_only {
        return Some(Err(Errno(libc::EROFS)));
    }
    let erases = matches!(call, LibraryCall::Punch { .. } | LibraryCall::Zero { .. });
    if erases && !info.has(flag::SEND_WRITE_ZEROES) {
        return Some(Err(Errno(libc::EOPNOTSUPP)));
    }
    let is_within = offset.checked_add(len).is_some_and(|end| end <= info.bytes);
    if !is_within || u32::try_from(len).is_err() {
        return Some(Err(Errno(libc::ENXIO)));
    }
    (len == 0).then_some(Ok(0))
}

// SAFETY: the worker alone touches the memory of a call, and takes the call out of its table, with all that points to
// the memory, before it ends it. It sends the memory of a write and changes none of it.
unsafe impl LibraryDisk for NbdDisk {
    fn start(&self, call: LibraryCall, end: CallEnd) {
        match end_without_server(&call, &self.0.info, self.0.read_only) {
            Some(came) => end.end(came, None),
            None => self.0.shared.push(call, end),
        }
    }
}
