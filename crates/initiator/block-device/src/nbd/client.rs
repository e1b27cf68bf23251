//! One client of an NBD server: its socket, received bytes not yet parsed, replies to send.
//!
//! Invariant: a client holds at most [`HELD_BYTES_MAX`] bytes of payload and [`REQUESTS_PER_CLIENT_MAX`] requests, counting those
//! taken, in flight and not yet sent; beyond that, nothing more is read from it. While the
//! client negotiates, no further option is handled before the replies to the last ones are sent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use buf::{Sg, Time};

use super::replies::{
    EncodedReply, PendingReply, block_status_chunk, data_chunk, error_chunk, error_number, simple_reply,
};
use super::session::{CommandKind, Export, OPTION_LEN_MAX, Request, Session, SessionEvent};
use super::wire::error;
use crate::disk::{Disk, REQUEST_LEN_MAX};
use crate::event_waiter::{EpollWaiter, EventKey, ReadyEvent, monotonic_now};
use crate::io_vectors::{IoVectors, recvmsg, sendmsg};
use crate::request_error::RequestError;
use crate::requests::{EndedRequest, RequestKind, RequestTable, WriteMemory};

/// What is received at a time beside payload that has its place: any option fits.
const STAGING_LEN: usize = 2 * OPTION_LEN_MAX;
/// Payload of one client that is held, in bytes: one of the longest requests, and as much beside it.
const HELD_BYTES_MAX: u64 = 2 * REQUEST_LEN_MAX as u64;
/// Requests of one client.
const REQUESTS_PER_CLIENT_MAX: usize = 128;
/// Replies that one system call sends.
const REPLIES_PER_SEND: usize = 64;

/// A payload that is being received.
#[derive(Debug)]
struct IncomingWrite {
    request: Request,
    data: WriteMemory,
    filled: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    fd: OwnedFd,
    key: EventKey,
    index: u32,
    generation: u32,
    session: Session,
    stage: Box<[u8]>,
    /// What of the stage is not understood yet.
    start: usize,
    end: usize,
    incoming: Option<IncomingWrite>,
    /// Payload of a refused write that is still to come, and the answer for then.
    skip: Option<(u32, Request)>,
    /// A write without memory, or a request without room.
    parked: Option<ParkedRequest>,
    /// What negotiation has to say.
    words: Vec<u8>,
    out: VecDeque<EncodedReply>,
    /// How much of the first of `out` (or of `words`) is sent.
    sent: usize,
    held: u64,
    in_flight: usize,
    /// No more is read; the end comes when all is said.
    closing: bool,
    /// The socket is of no use any more.
    broken: bool,
    /// Since when it has been owing bytes, or room for ours.
    owing_since: Time,
    /// What the waiter tells of; `None`: nothing any more.
    interest: Option<(bool, bool)>,
    /// Whether something happened since it was last looked at.
    pub(super) touched: bool,
}

#[derive(Debug)]
enum ParkedRequest {
    /// Its payload follows in the stream.
    Write(Request),
    Ready(crate::requests::Request<PendingReply>),
}

impl Client {
    pub(super) fn new(fd: OwnedFd, index: u32, generation: u32, key: EventKey) -> Self {
        let mut words = Vec::new();
        let session = Session::new(&mut words);
        Client {
            fd,
            key,
            index,
            generation,
            session,
            stage: vec![0; STAGING_LEN].into(),
            start: 0,
            end: 0,
            incoming: None,
            skip: None,
            parked: None,
            words,
            out: VecDeque::with_capacity(REQUESTS_PER_CLIENT_MAX),
            sent: 0,
            held: 0,
            in_flight: 0,
            closing: false,
            broken: false,
            owing_since: monotonic_now(),
            interest: Some((true, false)),
            touched: true,
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether nothing is left to do, so that it may go.
    pub(super) fn is_finished(&self) -> bool {
        self.in_flight == 0 && (self.broken || (self.closing && self.is_output_drained()))
    }

    pub(super) fn is_output_drained(&self) -> bool {
        self.broken || (self.words.is_empty() && self.out.is_empty())
    }

    /// Since when it has kept others waiting; `None`: it owes nothing.
    pub(super) fn stalled_since(&self) -> Option<Time> {
        let owes = !self.session.is_transmission()
            || self.incoming.is_some()
            || self.skip.is_some()
            || self.end > self.start && self.parked.is_none()
            || !self.is_output_drained();
        (owes && !self.is_blocked_by_server()).then_some(self.owing_since)
    }

    /// Whether it waits for memory or room.
    pub(super) fn has_parked_request(&self) -> bool {
        self.parked.is_some()
    }

    /// Whether it is we who keep it waiting: for memory or room, or for the end of what it asked before.
    fn is_blocked_by_server(&self) -> bool {
        let is_full =
            self.session.is_transmission() && self.incoming.is_none() && !self.may_accept_payload(0);
        (self.parked.is_some() || is_full) && self.is_output_drained()
    }

    /// Before anything changes: as long as we keep it waiting its time does not run.
    fn reset_stall_timer(&mut self) {
        if self.is_blocked_by_server() {
            self.owing_since = monotonic_now();
        }
    }

    /// Takes no more requests.
    pub(super) fn stop_receiving(&mut self) {
        self.touched = true;
        self.closing = true;
        self.incoming = None;
        self.skip = None;
        self.parked = None;
    }

    /// Ends the connection at once.
    pub(super) fn abort_connection(&mut self) {
        self.touched = true;
        self.broken = true;
        self.words.clear();
        self.out.clear();
        self.stop_receiving();
    }

    /// Something happened at the socket: receives once, straight to a payload's place first.
    pub(super) fn handle_ready(
        &mut self,
        ready: ReadyEvent,
        requests: &RequestTable<PendingReply>,
        vectors: &mut IoVectors,
    ) {
        self.touched = true;
        if ready.hung_up && (self.closing || self.parked.is_some()) {
            // Nobody will hear the answer.
            self.abort_connection();
        }
        if !ready.readable || self.closing || self.broken {
            return;
        }
        self.stage.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        vectors.clear();
        let mut direct = 0;
        if let Some(incoming) = self.incoming.as_mut().filter(|_| self.end == 0) {
            let (at, len) = (incoming.request.at, u64::from(incoming.request.len));
            direct = (len - incoming.filled) as usize;
            requests.for_each_slice(&mut incoming.data, at, incoming.filled, len, |slice| {
                vectors.push_buffer(slice)
            });
        }
        vectors.push_buffer(&mut self.stage[self.end..]);
        if vectors.len_bytes() == 0 {
            if ready.hung_up {
                // It is told of that again and again, and there is no room to read how it ends.
                self.abort_connection();
            }
            return;
        }
        // SAFETY: the vectors were made above, of memory that this client owns alone and that nobody
        // touches before the call returns.
        match unsafe { recvmsg(self.fd.as_raw_fd(), vectors) } {
            Ok(0) => {
                // Nobody will hear an answer: what is out ends, and that is all.
                self.abort_connection();
            }
            Ok(n) => {
                self.owing_since = monotonic_now();
                let placed = n.min(direct);
                if let Some(incoming) = &mut self.incoming {
                    incoming.filled += placed as u64;
                }
                self.end += n - placed;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.abort_connection(),
        }
    }

    fn may_accept_payload(&self, len: u64) -> bool {
        self.in_flight + self.out.len() < REQUESTS_PER_CLIENT_MAX
            && (self.held == 0 || self.held + len <= HELD_BYTES_MAX)
    }

    /// Understands what was received, and starts what it asks. True if anything was started.
    fn parse_received(
        &mut self,
        disk: &mut dyn Disk,
        requests: &mut RequestTable<PendingReply>,
        export: &Export,
    ) -> bool {
        let mut started = false;
        while !self.broken && !self.closing {
            if let Some(parked) = self.parked.take() {
                if !self.start_or_repark(disk, requests, parked) {
                    break;
                }
                started = true;
                continue;
            }
            if self.incoming.is_some() {
                if !self.fill_incoming(requests) {
                    break;
                }
                started = true;
                continue;
            }
            if let Some((left, request)) = self.skip.take() {
                let now = (self.end - self.start).min(left as usize);
                self.start += now;
                if now < left as usize {
                    self.skip = Some((left - now as u32, request));
                    break;
                }
                self.reply_error(&request, request.kind.err().unwrap_or(error::INVAL));
                continue;
            }
            let is_held = if self.session.is_transmission() {
                !self.may_accept_payload(0)
            } else {
                !self.words.is_empty()
            };
            if is_held {
                break;
            }
            let input = &self.stage[self.start..self.end];
            let (used, step) = self.session.handle_input(input, export, &mut self.words);
            self.start += used;
            match step {
                SessionEvent::More => break,
                SessionEvent::Close => self.closing = true,
                SessionEvent::Request(request) => self.accept_request(request),
            }
        }
        started
    }

    /// A request has come; its payload has not.
    fn accept_request(&mut self, request: Request) {
        let token = PendingReply {
            client: self.index,
            generation: self.generation,
            cookie: request.cookie,
            structured: request.structured,
            one: request.kind == Ok(CommandKind::BlockStatus { one: true }),
        };
        let ask = match request.kind {
            Err(_) if request.payload > 0 => {
                self.skip = Some((request.payload, request));
                return;
            }
            Err(number) => return self.reply_error(&request, number),
            Ok(CommandKind::Disconnect) => {
                self.closing = true;
                return;
            }
            Ok(CommandKind::Write { .. }) => {
                self.parked = Some(ParkedRequest::Write(request));
                return;
            }
            Ok(CommandKind::Read) => RequestKind::Read,
            Ok(CommandKind::Flush) => RequestKind::Flush,
            Ok(CommandKind::Trim { fua }) => RequestKind::Unmap { stable: fua },
            Ok(CommandKind::Cache) => RequestKind::Prefetch,
            Ok(CommandKind::WriteZeroes { fua, may_punch }) => {
                RequestKind::Zero { unmap: may_punch, stable: fua }
            }
            Ok(CommandKind::BlockStatus { .. }) => RequestKind::Extents,
        };
        let request = crate::requests::Request::new(token, ask, request.at, request.len.into());
        self.parked = Some(ParkedRequest::Ready(request));
    }

    /// Starts what is parked, or parks it again and says false.
    fn start_or_repark(
        &mut self,
        disk: &mut dyn Disk,
        requests: &mut RequestTable<PendingReply>,
        parked: ParkedRequest,
    ) -> bool {
        match parked {
            ParkedRequest::Write(request) => {
                // Only what is within the volume gets memory; the rest is told later, after its payload.
                let len = u64::from(request.len);
                let fits =
                    request.at.checked_add(len).is_some_and(|end| end <= disk.geometry().capacity_bytes());
                if !fits {
                    let request = Request { kind: Err(error::NOSPC), ..request };
                    self.skip = Some((request.payload, request));
                    return true;
                }
                let memory = if self.may_accept_payload(len) {
                    requests.alloc_write_memory(disk, request.at, len)
                } else {
                    None
                };
                let Some(data) = memory else {
                    self.parked = Some(ParkedRequest::Write(request));
                    return false;
                };
                self.held += len;
                self.owing_since = monotonic_now();
                self.incoming = Some(IncomingWrite { request, data, filled: 0 });
                true
            }
            ParkedRequest::Ready(request) => {
                let is_held = matches!(request.ask, RequestKind::Write { .. });
                let adds = if matches!(request.ask, RequestKind::Read) { request.len } else { 0 };
                if !is_held && !self.may_accept_payload(adds) {
                    self.parked = Some(ParkedRequest::Ready(request));
                    return false;
                }
                match requests.submit_request(disk, request) {
                    Ok(()) => {
                        self.held += adds;
                        self.in_flight += 1;
                        true
                    }
                    Err(request) => {
                        self.parked = Some(ParkedRequest::Ready(request));
                        false
                    }
                }
            }
        }
    }

    /// Moves what was received to the payload's place. True if it is complete.
    fn fill_incoming(&mut self, requests: &RequestTable<PendingReply>) -> bool {
        let Some(incoming) = &mut self.incoming else { return false };
        let len = u64::from(incoming.request.len);
        let mut from = &self.stage[self.start..self.end];
        let now = (len - incoming.filled).min(from.len() as u64);
        let (first, last) = (incoming.filled, incoming.filled + now);
        requests.for_each_slice(&mut incoming.data, incoming.request.at, first, last, |slice| {
            // cannot fail: the slices together are as long as what is moved, which is not more than there is.
            let (here, later) = from.split_at(slice.len());
            slice.copy_from_slice(here);
            from = later;
        });
        self.start += now as usize;
        incoming.filled += now;
        if incoming.filled < len {
            return false;
        }
        let Some(IncomingWrite { request, data, .. }) = self.incoming.take() else { return false };
        let token = PendingReply {
            client: self.index,
            generation: self.generation,
            cookie: request.cookie,
            structured: false,
            one: false,
        };
        let stable = request.kind == Ok(CommandKind::Write { fua: true });
        self.parked =
            Some(ParkedRequest::Ready(crate::requests::Request::write(token, stable, request.at, len, data)));
        true
    }

    fn reply_error(&mut self, request: &Request, number: u32) {
        let reply = if request.structured {
            error_chunk(request.cookie, number)
        } else {
            simple_reply(request.cookie, number, Sg::new())
        };
        self.push_reply(reply);
    }

    fn push_reply(&mut self, reply: EncodedReply) {
        if self.is_output_drained() {
            self.owing_since = monotonic_now();
        }
        self.out.push_back(reply);
    }

    /// A request of this client has ended.
    pub(super) fn handle_request_ended(&mut self, mut ended: EndedRequest<PendingReply>, export: &Export) {
        self.touched = true;
        self.reset_stall_timer();
        // cannot fail, here and with `held`: each request that was started ends once, and what was held for it
        // was counted by the same length.
        self.in_flight -= 1;
        if matches!(ended.ask, RequestKind::Write { .. })
            || (ended.ask == RequestKind::Read && ended.result.is_err())
        {
            self.held -= ended.len;
        }
        if self.broken {
            if ended.ask == RequestKind::Read && ended.result.is_ok() {
                self.held -= ended.len;
            }
            return;
        }
        if ended.ask == RequestKind::Extents && ended.result == Err(RequestError::Unsupported) {
            // Nothing is known, so all of it counts as data.
            ended.result = Ok(());
        }
        let cookie = ended.token.cookie;
        let reply = match (ended.result, ended.ask) {
            (Err(trouble), _) if ended.token.structured => error_chunk(cookie, error_number(trouble)),
            (Err(trouble), _) => simple_reply(cookie, error_number(trouble), Sg::new()),
            (Ok(()), RequestKind::Read) if ended.token.structured => data_chunk(cookie, ended.at, ended.data),
            (Ok(()), RequestKind::Extents) => block_status_chunk(&ended, export),
            (Ok(()), _) => simple_reply(cookie, 0, ended.data),
        };
        self.push_reply(reply);
    }

    /// Sends what can be sent.
    fn send_pending(&mut self, vectors: &mut IoVectors) {
        while !self.is_output_drained() {
            vectors.clear();
            if self.words.is_empty() {
                let mut skip = self.sent;
                for reply in self.out.iter().take(REPLIES_PER_SEND) {
                    vectors.push_bytes(&reply.head, skip);
                    skip = skip.saturating_sub(reply.head.len());
                    vectors.push_sg(&reply.data, skip);
                    skip = 0;
                    if vectors.is_full() {
                        break;
                    }
                }
            } else {
                vectors.push_bytes(&self.words, self.sent);
            }
            // SAFETY: the vectors were made above, of replies that stay in place until the call returns.
            match unsafe { sendmsg(self.fd.as_raw_fd(), vectors) } {
                Ok(n) => {
                    self.owing_since = monotonic_now();
                    self.handle_sent(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.abort_connection(),
            }
        }
    }

    fn handle_sent(&mut self, n: usize) {
        self.sent += n;
        if !self.words.is_empty() {
            if self.sent == self.words.len() {
                self.words.clear();
                self.sent = 0;
            }
            return;
        }
        while let Some(reply) = self.out.front().filter(|reply| self.sent >= reply.len()) {
            // cannot fail: what is sent is counted by what was there to send.
            self.sent -= reply.len();
            self.held -= reply.data.len() as u64;
            self.out.pop_front();
        }
    }

    /// Sends and starts all that can be. True if anything was started.
    pub(super) fn send_and_start(
        &mut self,
        disk: &mut dyn Disk,
        requests: &mut RequestTable<PendingReply>,
        export: &Export,
        vectors: &mut IoVectors,
    ) -> bool {
        let mut started = false;
        self.reset_stall_timer();
        loop {
            self.send_pending(vectors);
            let before = self.end - self.start;
            started |= self.parse_received(disk, requests, export);
            // Answers may have filled the queue, and what was sent makes room for more.
            if self.end - self.start == before || self.out.is_empty() {
                let held = !self.words.is_empty();
                self.send_pending(vectors);
                // An option waits until the answers before it are sent: now they are.
                if held && self.words.is_empty() && self.end > self.start && !self.broken {
                    continue;
                }
                return started;
            }
        }
    }

    /// Tells the waiter what this client waits for now.
    pub(super) fn update_watch(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let Some(interest) = self.interest else { return Ok(()) };
        if self.broken || self.is_finished() {
            self.interest = None;
            return waiter.remove_fd(self.fd.as_fd());
        }
        let read = !self.closing && self.parked.is_none() && self.end - self.start < self.stage.len();
        let now = (read, !self.is_output_drained());
        if interest != now {
            self.interest = Some(now);
            waiter.change_fd(self.fd.as_fd(), self.key, now.0, now.1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::test_disk::{Behaviour, RamVolume};

    /// Each wish for a name is answered with it, and it is longer than the wish.
    #[test]
    fn answers_that_a_client_does_not_take_do_not_pile_up_while_it_negotiates() {
        let name = "n".repeat(100);
        let export = Export {
            name: name.clone(),
            description: String::new(),
            size: 1 << 20,
            read_only: false,
            minimum: 512,
            preferred: 4096,
            fast_zero: false,
            unmapped_is_zero: false,
        };
        let (ours, mut peer) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        peer.set_nonblocking(true).unwrap();
        let ram = std::sync::Arc::new(volume::RamDisk::new(64, 64, 512, 4096));
        let mut disk = RamVolume::new(ram, Behaviour::default());
        let mut requests = RequestTable::new(&disk, 4, std::sync::Arc::default());
        let mut vectors = IoVectors::default();
        let mut client = Client::new(ours.into(), 0, 1, EventKey(1));
        let wishes = (OPTION_LEN_MAX - 6) / 2;
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        for _ in 0..100 {
            bytes.extend(b"IHAVEOPT");
            bytes.extend(6_u32.to_be_bytes());
            bytes.extend((6 + 2 * wishes as u32).to_be_bytes());
            bytes.extend(0_u32.to_be_bytes());
            bytes.extend((wishes as u16).to_be_bytes());
            (0..wishes).for_each(|_| bytes.extend(1_u16.to_be_bytes()));
        }
        let (mut sent, mut most) = (0, 0);
        for _ in 0..1000 {
            sent += peer.write(&bytes[sent..]).unwrap_or(0);
            let ready = ReadyEvent { key: EventKey(1), readable: true, hung_up: false };
            client.handle_ready(ready, &requests, &mut vectors);
            client.send_and_start(&mut disk, &mut requests, &export, &mut vectors);
            most = most.max(client.words.len());
        }
        // All of what one stage asks for, and no more.
        assert!((1 << 17..4 << 20).contains(&most), "{most} bytes wait");
        assert!(!client.broken && sent < bytes.len());
    }
}
