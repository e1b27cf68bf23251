//! The bare responder: one thread, one ring, no protocol.
//!
//! All requests of one receive are answered by one send, from consecutive slots. At most one send per
//! connection is in flight, and replies that become ready meanwhile go with the next one. By default the data
//! of replies is the slots' own contents, so the responder's memory stays in the processor's cache: the
//! limit. With a memory of a volume's size, data comes from the requested offset, and written data goes
//! there: the cost of a RAM disk without a protocol.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

use crate::spin::{SpinEstimator, WaitMode, WaitStats};
use crate::system;
use crate::wire_protocol::bare::{HEADER_LEN, parse_request, reply_header};
use crate::wire_protocol::{LoadOp, WireRequest};

/// What one receive may bring at most.
const RECEIVE_BYTES_MAX: usize = 256 << 10;
/// What one send carries at most, unless a single reply is longer.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Pieces of a send; the system takes 1024.
const IOVECS_MAX: usize = 512;
/// The largest data of one request.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Connections at once. Each has three stretches of memory of its own, of which a process has some 65,000.
const CONNECTIONS_MAX: usize = 20_000;

/// How the responder is set up.
#[derive(Clone, Debug)]
pub struct ResponderOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How to wait.
    pub wait: WaitMode,
    /// The longest poll.
    pub poll: Duration,
    /// Congestion control of its connections; the system's default if `None`.
    pub congestion: Option<String>,
    /// Bytes of memory that stand for a volume; 0 answers from the slots.
    pub memory: usize,
    /// Where it adds up the nanoseconds that it polls.
    pub polled: Option<Arc<AtomicU64>>,
}

/// What was done since the last report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponderCounters {
    /// Requests answered.
    pub requests: u64,
    /// Sends.
    pub sends: u64,
    /// System calls on the ring.
    pub enters: u64,
    /// How it waited.
    pub waits: WaitStats,
}

/// Data of one send: headers and data in slots, or headers here and data elsewhere.
struct SendBatch {
    slots: Vec<u8>,
    len: usize,
    pieces: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
    bytes: usize,
    sent: usize,
}

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    /// What of `input` is to be looked at.
    from: usize,
    to: usize,
    /// The request whose data is arriving, and how much is to come.
    arriving: Option<(WireRequest, usize)>,
    receiving: bool,
    sending: bool,
    /// The peer is gone: closed when nothing is under way.
    closing: bool,
    /// Index in `batches` of the one that is filled.
    filling: usize,
    batches: [SendBatch; 2],
    /// Requests that have no room in a batch yet.
    waiting: VecDeque<WireRequest>,
}

/// The ring and all that it works for. Memory that the kernel was told of belongs to a connection,
/// which is kept until its last operation has ended.
struct Responder {
    connections: Vec<Option<Box<Connection>>>,
    ring: IoUring,
    listener: TcpListener,
    memory: Vec<u8>,
    options: ResponderOptions,
    spin: SpinEstimator,
    counters: ResponderCounters,
    last_event: Instant,
}

const ACCEPT_TOKEN: u64 = u64::MAX;
const SEND_TOKEN_FLAG: u64 = 1 << 32;
/// Connections that may wait to be accepted, as many as at a portal.
const BACKLOG: i32 = 1024;

/// Serves until the process is asked to end; `ready` is called when its memory is there, and `report` whenever the last
/// connection closes.
pub fn serve(
    options: ResponderOptions,
    mut ready: impl FnMut(SocketAddr),
    mut report: impl FnMut(ResponderCounters),
) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen)?;
    // The standard library's backlog of 128 overflows when thousands connect at once; each then waits for a second.
    rustix::net::listen(&listener, BACKLOG)?;
    let address = listener.local_addr()?;
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(8192)
        .build(1024)?;
    let mut responder = Responder {
        connections: Vec::new(),
        ring,
        listener,
        // Written once: pages never touched would all be one page of zeroes.
        memory: (0..options.memory).map(|n| n as u8).collect(),
        spin: SpinEstimator::new(options.wait, options.poll),
        options,
        counters: ResponderCounters::default(),
        last_event: Instant::now(),
    };
    responder.accept()?;
    ready(address);
    while !system::stop_requested() {
        responder.wait()?;
        if responder.complete_all()? {
            responder.counters.waits = std::mem::take(&mut responder.spin.waits);
            report(std::mem::take(&mut responder.counters));
        }
    }
    responder.close_all()
}

impl Responder {
    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: what the entry points to belongs to a connection (or is nothing), and stays
            // where it is until the entry's completion was seen.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0)?;
        }
    }

    /// Submits what is queued, runs deferred work, and waits for `wanted` completions.
    fn enter(&mut self, wanted: u32) -> io::Result<()> {
        /// `IORING_ENTER_GETEVENTS`: without it deferred work is not run.
        const GETEVENTS: u32 = 1;
        self.counters.enters += 1;
        let queued = {
            let mut queue = self.ring.submission();
            queue.sync();
            queue.len() as u32
        };
        // SAFETY: no signal mask is passed; entries were vouched for when they were pushed.
        match unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, wanted, GETEVENTS, None) } {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        if !self.ring.submission().is_empty() || self.ring.submission().taskrun() {
            self.enter(0)?;
        }
        if !self.ring.completion().is_empty() {
            self.last_event = Instant::now();
            return Ok(());
        }
        let ring = &mut self.ring;
        let before = self.spin.waits.polled_ns;
        let came = self.spin.poll(|| {
            ring.submission().taskrun() || !ring.completion().is_empty() || system::stop_requested()
        });
        if let Some(polled) = &self.options.polled {
            polled.fetch_add(self.spin.waits.polled_ns - before, Ordering::Relaxed);
        }
        self.enter(if came { 0 } else { 1 })?;
        if !came {
            self.spin.note_sleep(self.last_event.elapsed());
        }
        self.last_event = Instant::now();
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        let fd = types::Fd(self.listener.as_raw_fd());
        let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut());
        self.push(entry.flags(libc::SOCK_CLOEXEC).build().user_data(ACCEPT_TOKEN))
    }

    /// Handles all completions; true if the last connection closed.
    fn complete_all(&mut self) -> io::Result<bool> {
        let mut closed = false;
        loop {
            let Some(completion) = self.ring.completion().next() else { break };
            let (data, result) = (completion.user_data(), completion.result());
            if data == ACCEPT_TOKEN {
                self.handle_accept(result)?;
                continue;
            }
            let index = (data & !SEND_TOKEN_FLAG) as usize;
            let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { continue };
            if data & SEND_TOKEN_FLAG == 0 {
                connection.handle_receive(result);
            } else {
                connection.handle_send(result);
            }
            closed |= self.advance_connection(index)?;
        }
        Ok(closed && self.connections.iter().all(Option::is_none))
    }

    fn handle_accept(&mut self, result: i32) -> io::Result<()> {
        self.accept()?;
        if result < 0 {
            return Ok(());
        }
        // SAFETY: the completion of an accept gives a fresh descriptor that nothing else owns.
        let socket = unsafe { TcpStream::from_raw_fd(result) };
        let index = match self.connections.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.connections.len() < CONNECTIONS_MAX => {
                self.connections.push(None);
                self.connections.len() - 1
            }
            None => return Ok(()),
        };
        socket.set_nodelay(true)?;
        if let Some(name) = &self.options.congestion {
            system::set_socket_congestion_control(&socket, name)?;
        }
        if let Some(slot) = self.connections.get_mut(index) {
            *slot = Some(Box::new(Connection::new(socket)));
        }
        self.advance_connection(index).map(drop)
    }

    /// Parses what came and starts what can be started; true if the connection closed.
    fn advance_connection(&mut self, index: usize) -> io::Result<bool> {
        let Some(slot) = self.connections.get_mut(index) else { return Ok(false) };
        let Some(connection) = slot else { return Ok(false) };
        if connection.closing {
            if connection.receiving || connection.sending {
                return Ok(false);
            }
            *slot = None;
            return Ok(true);
        }
        self.counters.requests += connection.parse_requests(&mut self.memory);
        connection.fill_batch(&self.memory);
        let send = connection.start_send(index);
        let receive = connection.start_receive(index);
        self.counters.sends += u64::from(send.is_some());
        for entry in send.into_iter().chain(receive) {
            self.push(entry)?;
        }
        // A peer that breaks the protocol is closed by the next turn.
        let is_over =
            |connection: &Connection| connection.closing && !connection.receiving && !connection.sending;
        if self.connections.get(index).and_then(Option::as_deref).is_some_and(is_over) {
            self.advance_connection(index)
        } else {
            Ok(false)
        }
    }

    /// Ends all connections and waits until the kernel has let go of their memory.
    fn close_all(&mut self) -> io::Result<()> {
        for connection in self.connections.iter_mut().flatten() {
            connection.closing = true;
            connection.socket.shutdown(std::net::Shutdown::Both).ok();
        }
        for index in 0..self.connections.len() {
            self.advance_connection(index)?;
        }
        while self.connections.iter().any(Option::is_some) {
            self.enter(1)?;
            self.complete_all()?;
        }
        Ok(())
    }
}

impl Connection {
    fn new(socket: TcpStream) -> Self {
        Connection {
            socket,
            input: vec![0; RECEIVE_BYTES_MAX],
            from: 0,
            to: 0,
            arriving: None,
            receiving: false,
            sending: false,
            closing: false,
            filling: 0,
            batches: [SendBatch::new(), SendBatch::new()],
            waiting: VecDeque::new(),
        }
    }

    fn handle_receive(&mut self, result: i32) {
        self.receiving = false;
        match usize::try_from(result) {
            Ok(0) => self.closing = true,
            Ok(came) => self.to += came,
            Err(_) if result == -libc::EINTR || result == -libc::EAGAIN => {}
            Err(_) => self.closing = true,
        }
    }

    #[expect(clippy::indexing_slicing, reason = "`filling` is 0 or 1, and there are two batches")]
    fn handle_send(&mut self, result: i32) {
        self.sending = false;
        let batch = &mut self.batches[1 - self.filling];
        match usize::try_from(result) {
            Ok(sent) => batch.sent += sent,
            Err(_) if result == -libc::EINTR || result == -libc::EAGAIN => {}
            Err(_) => self.closing = true,
        }
        if batch.sent == batch.bytes {
            batch.clear();
        }
    }

    /// Takes the requests that came; gives their number.
    #[expect(
        clippy::indexing_slicing,
        reason = "`from` is at most `to`, which is what was received; `place` keeps a request within the memory"
    )]
    fn parse_requests(&mut self, memory: &mut [u8]) -> u64 {
        let mut requests = 0;
        loop {
            let (request, left) = match self.arriving.take() {
                Some(arriving) => arriving,
                None => {
                    let Some(header) = self.input[self.from..self.to].first_chunk::<HEADER_LEN>() else {
                        break;
                    };
                    let Some(request) = parse_request(header).filter(|r| r.len as usize <= REQUEST_BYTES_MAX)
                    else {
                        self.closing = true;
                        break;
                    };
                    self.from += HEADER_LEN;
                    (request, if request.op == LoadOp::Write { request.len as usize } else { 0 })
                }
            };
            let here = left.min(self.to - self.from);
            if !memory.is_empty() {
                let at = data_offset(request, memory.len())
                    + (request.len as usize - left) * usize::from(left > 0);
                memory[at..at + here].copy_from_slice(&self.input[self.from..self.from + here]);
            }
            self.from += here;
            if here < left {
                self.arriving = Some((request, left - here));
                break;
            }
            self.waiting.push_back(request);
            requests += 1;
        }
        requests
    }

    /// Puts replies into the batch as long as there is room.
    #[expect(clippy::indexing_slicing, reason = "`filling` is 0 or 1, and there are two batches")]
    fn fill_batch(&mut self, memory: &[u8]) {
        while let Some(request) = self.waiting.front() {
            if !self.batches[self.filling].add(*request, memory) {
                break;
            }
            self.waiting.pop_front();
        }
    }

    #[expect(clippy::indexing_slicing, reason = "`filling` is 0 or 1, and there are two batches")]
    fn start_send(&mut self, index: usize) -> Option<squeue::Entry> {
        if self.sending {
            return None;
        }
        // What was not sent whole goes first.
        if self.batches[1 - self.filling].bytes == 0 {
            self.filling = 1 - self.filling;
        }
        let fd = types::Fd(self.socket.as_raw_fd());
        let entry = self.batches[1 - self.filling].send_entry(fd)?;
        self.sending = true;
        Some(entry.user_data(SEND_TOKEN_FLAG | index as u64))
    }

    #[expect(clippy::indexing_slicing, reason = "`to` is at most what was received")]
    fn start_receive(&mut self, index: usize) -> Option<squeue::Entry> {
        // Requests that find no room are the bound: nothing more is received before they are gone.
        if self.receiving || self.closing || !self.waiting.is_empty() {
            return None;
        }
        self.input.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        let room = &mut self.input[self.to..];
        let fd = types::Fd(self.socket.as_raw_fd());
        self.receiving = true;
        Some(opcode::Recv::new(fd, room.as_mut_ptr(), room.len() as u32).build().user_data(index as u64))
    }
}

/// Where in a memory of `size` bytes a request's data lies.
fn data_offset(request: WireRequest, size: usize) -> usize {
    (request.offset % (size - request.len as usize + 1) as u64) as usize
}

impl SendBatch {
    fn new() -> Self {
        // SAFETY: null pointers and zero lengths are a message without anything.
        let message = Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        SendBatch { slots: vec![0; BATCH_BYTES_MAX], len: 0, pieces: Vec::new(), message, bytes: 0, sent: 0 }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        (self.len, self.bytes, self.sent) = (0, 0, 0);
    }

    /// Adds a reply if there is room.
    #[expect(
        clippy::indexing_slicing,
        reason = "the slots were made long enough; `place` keeps a request within the memory"
    )]
    fn add(&mut self, request: WireRequest, memory: &[u8]) -> bool {
        let data = if request.op == LoadOp::Read { request.len as usize } else { 0 };
        let bytes = HEADER_LEN + data;
        let full = self.bytes + bytes > BATCH_BYTES_MAX || self.pieces.len() + 2 > IOVECS_MAX;
        if full && self.bytes > 0 {
            return false;
        }
        let in_slots = if memory.is_empty() { bytes } else { HEADER_LEN };
        if self.len + in_slots > self.slots.len() {
            // Only a first reply is longer than the slots, so nothing points there yet.
            self.slots.resize(self.len + in_slots, 0);
        }
        let at = self.len;
        self.slots[at..at + HEADER_LEN].copy_from_slice(&reply_header(request.tag, data as u32));
        self.len += in_slots;
        self.push_slice(self.slots[at..].as_ptr(), in_slots);
        if !memory.is_empty() && data > 0 {
            let place = data_offset(request, memory.len());
            self.push_slice(memory[place..place + data].as_ptr(), data);
        }
        self.bytes += bytes;
        true
    }

    /// Adds a stretch, to the last one if it lies behind it.
    fn push_slice(&mut self, at: *const u8, len: usize) {
        match self.pieces.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len).cast_const() == at.cast() => {
                last.iov_len += len;
            }
            _ => self.pieces.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }),
        }
    }

    /// The operation that sends what is left.
    fn send_entry(&mut self, fd: types::Fd) -> Option<squeue::Entry> {
        if self.sent == self.bytes {
            return None;
        }
        let mut skip = self.sent;
        self.bytes -= std::mem::take(&mut self.sent);
        self.pieces.retain_mut(|piece| {
            let gone = skip.min(piece.iov_len);
            skip -= gone;
            piece.iov_base = piece.iov_base.wrapping_byte_add(gone);
            piece.iov_len -= gone;
            piece.iov_len > 0
        });
        // The system itself goes on where the socket's buffer was full.
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        if let [only] = self.pieces[..] {
            return Some(
                opcode::Send::new(fd, only.iov_base.cast(), only.iov_len as u32).flags(flags).build(),
            );
        }
        self.message.msg_iov = self.pieces.as_mut_ptr();
        self.message.msg_iovlen = self.pieces.len();
        Some(opcode::SendMsg::new(fd, &*self.message).flags(flags as u32).build())
    }
}
