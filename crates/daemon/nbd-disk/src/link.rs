//! Requests and replies on one connection, in the transmission phase, with simple replies.
//!
//! Invariants: a reply is taken only for a request that was sent wholly on this connection and has no reply yet; as many
//! bytes are read into the memory of a read as it has. Whatever else comes ends the connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use reactor::LibraryCall;
use zerocopy::{FromBytes, IntoBytes};

use crate::socket::Socket;

/// Pieces of memory that one call of the system is given at most (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
const REQUEST_BYTES: usize = size_of::<nbd::RequestHeader>();
const REPLY_BYTES: usize = size_of::<nbd::SimpleReply>();

/// The memory of a call: the address and length of its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    iov: *const libc::iovec,
    count: usize,
}

impl Memory {
    /// Of a call without any.
    pub(crate) const NONE: Memory = Memory { iov: std::ptr::null(), count: 0 };

    /// That of a call which has not ended.
    pub(crate) fn of(call: &LibraryCall) -> Self {
        match *call {
            LibraryCall::Read { iov, count, .. } | LibraryCall::Write { iov, count, .. } => {
                Memory { iov, count }
            }
            LibraryCall::Sync
            | LibraryCall::Punch { .. }
            | LibraryCall::Zero { .. }
            | LibraryCall::NextData { .. } => Memory::NONE,
        }
    }

    fn pieces(&self) -> &[libc::iovec] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the list of a call is valid until the call ends (see `LibraryCall`).
        unsafe { std::slice::from_raw_parts(self.iov, self.count) }
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.iov_len).sum()
    }

    /// Its pieces without the first `skip` bytes.
    fn push_rest(&self, mut skip: usize, into: &mut Vec<libc::iovec>) {
        for piece in self.pieces() {
            if skip >= piece.iov_len {
                skip -= piece.iov_len;
                continue;
            }
            if into.len() == PIECES_MAX {
                return;
            }
            let iov_base = piece.iov_base.cast::<u8>().wrapping_add(skip).cast();
            into.push(libc::iovec { iov_base, iov_len: piece.iov_len - skip });
            skip = 0;
        }
    }
}

/// A request that is being sent.
struct Outgoing {
    header: [u8; REQUEST_BYTES],
    payload: Memory,
    done: usize,
}

/// What is being received.
enum Incoming {
    /// A reply, of which so many bytes are there.
    Header([u8; REPLY_BYTES], usize),
    /// The payload of a read.
    Payload { cookie: u64, into: Memory, done: usize },
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing more for now.
    Nothing,
    /// A reply: its request, and its error number. If it is to a read and has no error, [`Link::receive_payload`] has to
    /// be called before anything else is received.
    Reply(u64, u32),
    /// The payload of a read is complete.
    Filled(u64),
}

/// A connection in the transmission phase.
pub(crate) struct Link {
    socket: Socket,
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    pieces: Vec<libc::iovec>,
}

/// The server broke the protocol.
pub(crate) fn violation(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Link {
    pub(crate) fn new(socket: Socket) -> Self {
        let incoming = Incoming::Header([0; REPLY_BYTES], 0);
        Link { socket, outgoing: None, incoming, pieces: Vec::new() }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether a request is under way, and no other can begin.
    pub(crate) fn is_sending(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Begins to send a request.
    ///
    /// # Safety
    /// The memory of `payload` stays until the request is sent or the link is dropped.
    pub(crate) unsafe fn begin_request(&mut self, header: &nbd::RequestHeader, payload: Memory) {
        let mut bytes = [0; REQUEST_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        self.outgoing = Some(Outgoing { header: bytes, payload, done: 0 });
    }

    /// Sends what can be sent without waiting; whether the request is sent wholly.
    pub(crate) fn send(&mut self) -> io::Result<bool> {
        while let Some(outgoing) = &mut self.outgoing {
            self.pieces.clear();
            if let Some(rest) = outgoing.header.get(outgoing.done..).filter(|rest| !rest.is_empty()) {
                let iov_base = rest.as_ptr().cast_mut().cast();
                self.pieces.push(libc::iovec { iov_base, iov_len: rest.len() });
            }
            outgoing.payload.push_rest(outgoing.done.saturating_sub(REQUEST_BYTES), &mut self.pieces);
            match transfer(&self.socket, &mut self.pieces, Direction::Out) {
                Ok(sent) => outgoing.done += sent,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
            if outgoing.done == REQUEST_BYTES + outgoing.payload.len() {
                self.outgoing = None;
            }
        }
        Ok(true)
    }

    /// Receives what is there, up to the next event.
    pub(crate) fn receive(&mut self) -> io::Result<Event> {
        loop {
            self.pieces.clear();
            match &mut self.incoming {
                Incoming::Header(bytes, got) => {
                    let rest = bytes.get_mut(*got..).unwrap_or_default();
                    let iov_base = rest.as_mut_ptr().cast();
                    self.pieces.push(libc::iovec { iov_base, iov_len: rest.len() });
                }
                Incoming::Payload { into, done, .. } => into.push_rest(*done, &mut self.pieces),
            }
            let came = match transfer(&self.socket, &mut self.pieces, Direction::In) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server has closed the connection",
                    ));
                }
                Ok(came) => came,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(Event::Nothing),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) => return Err(why),
            };
            match &mut self.incoming {
                Incoming::Header(bytes, got) => {
                    *got += came;
                    if *got < REPLY_BYTES {
                        continue;
                    }
                    let reply = nbd::SimpleReply::read_from_bytes(bytes.as_slice())
                        .map_err(|_| violation("a reply has a wrong length"))?;
                    self.incoming = Incoming::Header([0; REPLY_BYTES], 0);
                    if reply.magic.get() != nbd::SIMPLE_REPLY_MAGIC {
                        return Err(violation("what it sends is no reply"));
                    }
                    return Ok(Event::Reply(reply.cookie.get(), reply.error.get()));
                }
                Incoming::Payload { cookie, into, done } => {
                    *done += came;
                    if *done == into.len() {
                        let cookie = *cookie;
                        self.incoming = Incoming::Header([0; REPLY_BYTES], 0);
                        return Ok(Event::Filled(cookie));
                    }
                }
            }
        }
    }

    /// The payload of a read follows.
    ///
    /// # Safety
    /// The memory stays, and nobody else touches it, until the payload is complete or the link is dropped.
    pub(crate) unsafe fn receive_payload(&mut self, cookie: u64, into: Memory) {
        self.incoming = Incoming::Payload { cookie, into, done: 0 };
    }
}

#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Moves bytes without waiting.
fn transfer(socket: &Socket, pieces: &mut [libc::iovec], direction: Direction) -> io::Result<usize> {
    // SAFETY: a msghdr is plain numbers and addresses, for which zero is good.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    let fd = socket.as_fd().as_raw_fd();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let came = match direction {
        // SAFETY: the pieces are of memory that stays, and that nobody else touches.
        Direction::In => unsafe { libc::recvmsg(fd, &raw mut message, flags) },
        // SAFETY: the pieces are of memory that stays.
        Direction::Out => unsafe { libc::sendmsg(fd, &raw const message, flags) },
    };
    usize::try_from(came).map_err(|_| io::Error::last_os_error())
}
