//! The thread of an export: gives the calls of shards to the server, takes its replies, and connects again when the
//! server was away.
//!
//! Invariants: a call leaves the table before it ends. What was sent on a connection that is lost has no answer: it is
//! made again on the next one, in the order in which it was started, unless it has waited for longer than the time
//! limit. By then hosts have been told that its path is lost, and what a host was told of is not begun behind its back.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buf::Errno;
use nbd::{command, command_flag, error, flag};
use reactor::LibraryCall;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::disk::{CallSink, NewCall, Options, Shared};
use crate::handshake::ExportInfo;
use crate::link::{Event, Link, Memory, violation};
use crate::socket::Socket;

/// Area of the log.
const LOG_AREA: &str = "volume";
/// The pause before a server that is away is asked again, at first and at most.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The call itself.
    Call,
    /// To make it stable: the server does not take FUA.
    Flush,
}

/// A call that has not ended.
struct Call<E> {
    call: LibraryCall,
    end: E,
    since: Instant,
    stage: Stage,
    /// Sent wholly on the present connection.
    is_sent: bool,
}

/// The thread's state.
pub(crate) struct Worker<E> {
    options: Options,
    info: ExportInfo,
    shared: Arc<Shared<E>>,
    wakeups: UnixStream,
    /// By the cookie of their requests; a cookie is never used again.
    calls: BTreeMap<u64, Call<E>>,
    /// Those that are to be sent, in order.
    unsent: VecDeque<u64>,
    next_cookie: u64,
    retry_pause: Duration,
}

impl<E: CallSink> Worker<E> {
    pub(crate) fn new(
        options: Options,
        info: ExportInfo,
        shared: Arc<Shared<E>>,
        wakeups: UnixStream,
    ) -> Self {
        Worker {
            options,
            info,
            shared,
            wakeups,
            calls: BTreeMap::new(),
            unsent: VecDeque::new(),
            next_cookie: 1,
            retry_pause: RETRY_PAUSE_MIN,
        }
    }

    /// Runs until the last handle of the export has gone.
    pub(crate) fn run(mut self, socket: Socket) {
        let mut next = Some(socket);
        while let Some(socket) = next.take() {
            let mut link = Link::new(socket);
            match self.serve(&mut link) {
                Ok(()) => return,
                Err(why) => self.lose(&why),
            }
            drop(link);
            next = self.reconnect();
        }
    }

    /// Serves until the connection is lost; well: until the export is closed.
    fn serve(&mut self, link: &mut Link) -> io::Result<()> {
        loop {
            if !self.take_new_calls() {
                return Ok(());
            }
            self.send(link)?;
            while self.receive(link)? {
                self.send(link)?;
            }
            let mut wanted = PollFlags::IN;
            wanted.set(PollFlags::OUT, link.is_sending());
            wait(&mut [PollFd::new(link.socket(), wanted), PollFd::new(&self.wakeups, PollFlags::IN)], None)?;
        }
    }

    /// Takes what the shards have started since; false: the export is closed.
    fn take_new_calls(&mut self) -> bool {
        let mut read = [0; 64];
        while matches!((&self.wakeups).read(&mut read), Ok(len) if len == read.len()) {}
        let mut inbox = self.shared.lock();
        let (new, is_closed) = (std::mem::take(&mut inbox.calls), inbox.is_closed);
        drop(inbox);
        for NewCall { call, end, since } in new {
            self.insert(Call { call, end, since, stage: Stage::Call, is_sent: false });
        }
        !is_closed
    }

    fn insert(&mut self, call: Call<E>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.calls.insert(cookie, call);
        self.unsent.push_back(cookie);
    }

    /// Sends what can be sent without waiting.
    fn send(&mut self, link: &mut Link) -> io::Result<()> {
        loop {
            if !link.is_sending() {
                let Some(cookie) = self.unsent.front() else { return Ok(()) };
                let Some(call) = self.calls.get(cookie) else {
                    self.unsent.pop_front();
                    continue;
                };
                let (header, payload) = request(*cookie, call, &self.info);
                // SAFETY: the call stays in the table until it is sent wholly and answered, or the link has gone.
                unsafe { link.begin_request(&header, payload) };
            }
            if !link.send()? {
                return Ok(());
            }
            let sent = self.unsent.pop_front().and_then(|cookie| self.calls.get_mut(&cookie));
            sent.into_iter().for_each(|call| call.is_sent = true);
        }
    }

    /// Takes the next thing that has come; false: nothing has.
    fn receive(&mut self, link: &mut Link) -> io::Result<bool> {
        match link.receive()? {
            Event::Nothing => return Ok(false),
            Event::Reply(cookie, number) => {
                let call = self.calls.get(&cookie).filter(|call| call.is_sent);
                let call = call.ok_or_else(|| violation("it answers a request that it was not sent"))?;
                if number == error::SHUTDOWN {
                    return Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        "the server is shutting down",
                    ));
                }
                match call.call {
                    LibraryCall::Read { .. } if number == 0 => {
                        // SAFETY: the memory is the call's, which stays in the table until the payload is complete or
                        // the link has gone.
                        unsafe { link.receive_payload(cookie, Memory::of(&call.call)) };
                    }
                    _ => self.finish(cookie, number),
                }
            }
            Event::Filled(cookie) => self.finish(cookie, 0),
        }
        self.retry_pause = RETRY_PAUSE_MIN;
        Ok(true)
    }

    /// A request has been answered.
    fn finish(&mut self, cookie: u64, number: u32) {
        let Some(mut call) = self.calls.remove(&cookie) else { return };
        let changes = !matches!(call.call, LibraryCall::Read { .. } | LibraryCall::Sync);
        let is_stable = self.info.has(flag::SEND_FUA) || !self.info.has(flag::SEND_FLUSH);
        if number == 0 && changes && !is_stable && call.stage == Stage::Call {
            (call.stage, call.is_sent) = (Stage::Flush, false);
            return self.insert(call);
        }
        let came = match number {
            // What it has moved.
            0 => Ok(Memory::of(&call.call).len()),
            number => Err(errno_of(number)),
        };
        call.end.end(came);
    }

    /// The connection is lost: nothing that is out will be answered.
    fn lose(&mut self, why: &io::Error) {
        self.shared.set_absence(Some(why.to_string()));
        tracing::warn!(
            target: LOG_AREA,
            volume = self.options.volume, server = %self.options.server, %why, unanswered = self.calls.len(),
            "the connection to the NBD server is lost"
        );
        self.unsent = self.calls.keys().copied().collect();
        for call in self.calls.values_mut() {
            // What was written and not flushed may be lost with the server.
            (call.stage, call.is_sent) = (Stage::Call, false);
        }
    }

    /// Connects again, however long it takes; `None`: the export is closed.
    fn reconnect(&mut self) -> Option<Socket> {
        let mut due = Instant::now();
        loop {
            if !self.take_new_calls() {
                return None;
            }
            self.expire();
            let now = Instant::now();
            if now >= due {
                match self.try_connect() {
                    Ok(socket) => {
                        // What has grown too old meanwhile is not made again.
                        self.expire();
                        return Some(socket);
                    }
                    Err(why) => self.tell(why),
                }
                due = Instant::now() + self.retry_pause;
                self.retry_pause = (self.retry_pause * 2).min(RETRY_PAUSE_MAX);
            }
            let next = self.calls.values().map(|call| call.since + self.options.queue_timeout).min();
            let next = next.map_or(due, |next| next.min(due));
            let pause = next.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            if wait(&mut [PollFd::new(&self.wakeups, PollFlags::IN)], Some(pause)).is_err() {
                std::thread::sleep(RETRY_PAUSE_MIN);
            }
        }
    }

    fn try_connect(&mut self) -> Result<Socket, String> {
        let (socket, info) = self.options.connect().map_err(|why| why.to_string())?;
        if !self.info.is_still(&info) {
            return Err(
                "the export is smaller, or can do less, than when the volume was opened: it may be another; \
                        restart the daemon, or delete the volume and create it again, if it is the right one"
                    .to_owned(),
            );
        }
        self.shared.set_absence(None);
        tracing::info!(
            target: LOG_AREA,
            volume = self.options.volume, server = %self.options.server, unanswered = self.calls.len(),
            "connected to the NBD server again"
        );
        Ok(socket)
    }

    /// Says why the server is away, once for each reason.
    fn tell(&self, why: String) {
        if self.shared.set_absence(Some(why.clone())) {
            tracing::warn!(
                target: LOG_AREA,
                volume = self.options.volume, server = %self.options.server, why,
                "the NBD server is away; it will be asked again"
            );
        }
    }

    /// Ends what has waited too long. There is no connection now.
    fn expire(&mut self) {
        let (now, limit) = (Instant::now(), self.options.queue_timeout);
        let is_old = |call: &Call<E>| now.saturating_duration_since(call.since) >= limit;
        let old: Vec<u64> =
            self.calls.iter().filter(|(_, call)| is_old(call)).map(|(cookie, _)| *cookie).collect();
        for call in old.into_iter().filter_map(|cookie| self.calls.remove(&cookie)) {
            call.end.end(Err(Errno(libc::ENOTCONN)));
        }
        self.unsent.retain(|cookie| self.calls.contains_key(cookie));
    }
}

/// Waits for one of these, or for so long.
fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(fds, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

/// The request for a call, and its payload.
fn request<E>(cookie: u64, call: &Call<E>, info: &ExportInfo) -> (nbd::RequestHeader, Memory) {
    let fua = if info.has(flag::SEND_FUA) { command_flag::FUA } else { 0 };
    let (none, memory) = (Memory::NONE, Memory::of(&call.call));
    let (kind, flags, offset, len, payload) = match call.call {
        _ if call.stage == Stage::Flush => (command::FLUSH, 0, 0, 0, none),
        LibraryCall::Read { offset, .. } => (command::READ, 0, offset, memory.len() as u64, none),
        LibraryCall::Write { offset, .. } => (command::WRITE, fua, offset, memory.len() as u64, memory),
        LibraryCall::Punch { offset, len } => (command::WRITE_ZEROES, fua, offset, len, none),
        LibraryCall::Zero { offset, len } => {
            (command::WRITE_ZEROES, fua | command_flag::NO_HOLE, offset, len, none)
        }
        LibraryCall::Sync | LibraryCall::NextData { .. } => (command::FLUSH, 0, 0, 0, none),
    };
    let header = nbd::RequestHeader {
        magic: nbd::REQUEST_MAGIC.into(),
        flags: flags.into(),
        command: kind.into(),
        cookie: cookie.into(),
        offset: offset.into(),
        // Longer ones were refused when they came.
        len: u32::try_from(len).unwrap_or(u32::MAX).into(),
    };
    (header, payload)
}

/// What an error of a server means. Only NBD_EIO is about the blocks of a request; what says nothing of them is told as
/// a lost path.
fn errno_of(number: u32) -> Errno {
    Errno(match number {
        error::IO => libc::EIO,
        error::NOSPC => libc::ENOSPC,
        error::NOMEM => libc::ENOMEM,
        error::NOTSUP => libc::EOPNOTSUPP,
        error::INVAL | error::OVERFLOW => libc::ENXIO,
        _ => libc::ENOTCONN,
    })
}
