//! The epoll world: for kernels and containers that forbid io_uring.
//!
//! Sockets are watched edge-triggered, in both directions, from arrival to close, so a link needs no further
//! calls for that. The state from an edge is remembered (`readable`, `writable`) until a call finds the
//! opposite. So a receive requested while data is available runs without waiting, and an idle link holds
//! neither stage nor list. Disk operations go to blocking threads.

mod poll;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use buf::{Errno, Time};
use endpoint::{Arrival, Departure, Dial, Dialled, Driver, LinkId, ListenerId, ShardId};
use stream::{Received, RecvOp, SendOp, Slab, Tag};
use volume::DiskOp;

use crate::base::Base;
use crate::blocking::last_errno;
use crate::disk::IOV_MAX;
use crate::event::Event;
use crate::event_loop::{link_of, tag_of};
use crate::mail::Incoming;
use crate::recv;
use crate::socket;
use crate::world::{Wait, World};

use poll::Poll;

/// The names of what is watched that is no link; a link's name is its tag, whose generation never
/// comes that far.
const BELL: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 0x1_0000;

pub(crate) struct Epoll<M> {
    base: Base<M>,
    poll: Poll,
    links: Slab<Link<M>>,
    /// Links that have a receive to do and bytes to do it with.
    due: VecDeque<Tag>,
    /// Links whose receive found no memory.
    starved: Vec<Tag>,
    iov: Vec<libc::iovec>,
}

struct Link<M> {
    fd: OwnedFd,
    recv: Option<RecvOp>,
    send: Option<Sending>,
    readable: bool,
    writable: bool,
    /// The peer has ended or failed: a short read is not the last.
    hung_up: bool,
    is_due: bool,
    phase: Phase<M>,
    /// It counts among those that close.
    closes: bool,
}

impl<M> Link<M> {
    fn new(fd: OwnedFd) -> Self {
        Link {
            fd,
            recv: None,
            send: None,
            readable: false,
            writable: true,
            hung_up: false,
            is_due: false,
            phase: Phase::Open,
            closes: false,
        }
    }
}

struct Sending {
    op: SendOp,
    at: usize,
}

enum Phase<M> {
    /// It is being connected.
    Dialling(Dial),
    Open,
    /// It leaves when its send is written.
    Leaving(Departure<M>),
    /// We have ended, the peer has not.
    Draining,
}

impl<M> Epoll<M> {
    pub(crate) fn new(base: Base<M>) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.watch_edges(base.bell.fd(), BELL, libc::EPOLLIN)?;
        for (at, listener) in base.listeners.iter().flatten().enumerate() {
            poll.watch_level(listener.socket.as_raw_fd(), LISTENER + at as u64)?;
        }
        let links = Slab::new(base.links_max);
        Ok(Epoll { base, poll, links, due: VecDeque::new(), starved: Vec::new(), iov: Vec::new() })
    }

    fn handle(&mut self, name: u64, events: u32) {
        match name {
            BELL => {}
            LISTENER.. => {
                let at = (name - LISTENER) as usize;
                self.base.accept(at);
                self.rest(at);
            }
            _ => self.edge(Tag::from_bits(name), events),
        }
    }

    /// Stops watching a listener while accepting is pointless.
    fn rest(&mut self, at: usize) {
        if let Some(listener) = self.base.listener(at)
            && listener.rests_until.is_some()
        {
            self.poll.forget(listener.socket.as_raw_fd());
        }
    }

    fn wake_listeners(&mut self) {
        for at in self.base.rested() {
            self.watch_listener(at);
        }
    }

    fn watch_listener(&mut self, at: usize) {
        let Some(listener) = self.base.listener(at) else { return };
        // If the kernel has no room for it now, it is tried again when memory may be there.
        if self.poll.watch_level(listener.socket.as_raw_fd(), LISTENER + at as u64).is_err() {
            self.base.rest(at, std::time::Duration::from_secs(1));
        }
    }

    fn edge(&mut self, tag: Tag, events: u32) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let ended = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        link.hung_up |= events & ended != 0;
        if events & (libc::EPOLLIN as u32 | ended) != 0 {
            link.readable = true;
            if let Phase::Draining = link.phase {
                return self.drain(tag);
            }
            self.receive_soon(tag);
        }
        if events & (libc::EPOLLOUT as u32 | ended) != 0 {
            let Some(link) = self.links.get_mut(tag) else { return };
            link.writable = true;
            if let Phase::Dialling(dial) = link.phase {
                let how = socket::connected(&link.fd, dial.to);
                return self.dialled(tag, how);
            }
            if link.send.is_some() {
                self.send_on(tag);
            }
        }
    }

    fn start_dial(&mut self, dial: Dial) -> Result<(), Errno> {
        if self.links.len() >= self.base.links_max {
            return Err(Errno(libc::EMFILE));
        }
        let fd = self.base.start_dial(&dial)?;
        let raw = fd.as_raw_fd();
        let link = Link { phase: Phase::Dialling(dial), writable: false, ..Link::new(fd) };
        let Ok(tag) = self.links.insert(link) else { return Err(Errno(libc::EMFILE)) };
        self.base.dials(tag, &dial);
        if let Err(e) = self.watch(raw, tag) {
            self.base.dialled(tag, &dial);
            self.remove(tag);
            return Err(Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)));
        }
        Ok(())
    }

    /// A link's connection stands, or failed.
    fn dialled(&mut self, tag: Tag, how: Result<SocketAddr, Errno>) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let Phase::Dialling(dial) = link.phase else { return };
        link.phase = Phase::Open;
        self.base.dialled(tag, &dial);
        let how = how.map(|local| Dialled { link: link_of(tag), local, peer: dial.to });
        if how.is_err() {
            self.remove(tag);
        }
        self.base.events.push_back(Event::Dialled(dial.id, how));
    }

    fn watch(&self, fd: RawFd, tag: Tag) -> io::Result<()> {
        let both = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
        self.poll.watch_edges(fd, tag.to_bits(), both)
    }

    fn receive_soon(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if link.readable && link.recv.is_some() && !link.is_due {
            link.is_due = true;
            self.due.push_back(tag);
        }
    }

    fn receive_due(&mut self) {
        for tag in std::mem::take(&mut self.starved) {
            self.receive_soon(tag);
        }
        // One call per link and turn, so that none starves the others.
        for _ in 0..self.due.len() {
            let Some(tag) = self.due.pop_front() else { return };
            self.receive(tag);
        }
    }

    fn receive(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        link.is_due = false;
        let Some(mut op) = link.recv.take() else { return };
        let room = recv::list(&self.base, &mut self.iov, &mut op);
        if room == 0 {
            link.recv = Some(op);
            self.base.counters.recvs_starved.add(1);
            self.starved.push(tag);
            return;
        }
        self.base.counters.syscalls.add(1);
        match recv_once(&link.fd, &mut self.iov) {
            Ok(got) => {
                if got < room && !link.hung_up {
                    link.readable = false;
                }
                recv::finish(&mut self.base, tag, op, got);
            }
            Err(Errno(libc::EAGAIN)) => {
                link.readable = false;
                // An idle link pins no stage.
                op.stage = None;
                link.recv = Some(op);
            }
            Err(e) => {
                op.stage = None;
                self.base.events.push_back(Event::Recv(link_of(tag), op, Received::Failed(e)));
            }
        }
    }

    /// Sends as much of what is out as the socket takes.
    fn send_on(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let Some(sending) = &mut link.send else { return };
        let counters = &self.base.counters;
        let how = loop {
            if !link.writable {
                return;
            }
            self.iov.clear();
            let iov = &mut self.iov;
            let mut asked = 0;
            sending.op.for_each(sending.at, |at, len| {
                if iov.len() < IOV_MAX {
                    iov.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
                    asked += len;
                }
            });
            counters.syscalls.add(1);
            match send_once(&link.fd, iov, sending.at + asked < sending.op.len) {
                Ok(sent) => {
                    sending.at += sent;
                    if sending.at == sending.op.len {
                        break Ok(());
                    }
                    counters.sends_partial.add(1);
                    link.writable = sent == asked;
                }
                Err(Errno(libc::EAGAIN)) => link.writable = false,
                Err(e) => break Err(e),
            }
        };
        self.sent(tag, how);
    }

    fn sent(&mut self, tag: Tag, how: Result<(), Errno>) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let Some(Sending { op, .. }) = link.send.take() else { return };
        if how.is_ok() {
            self.base.counters.sends.add(1);
            self.base.counters.send_bytes.add(op.len as u64);
        }
        self.base.events.push_back(Event::Written(link_of(tag), how));
        self.base.events.push_back(Event::Sent(link_of(tag), op));
        if let Phase::Leaving(_) = link.phase {
            self.leave(tag);
        }
    }

    /// Nothing of the link is out any more: it goes.
    fn leave(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        match std::mem::replace(&mut link.phase, Phase::Draining) {
            Phase::Dialling(_) | Phase::Open | Phase::Draining => {}
            Phase::Leaving(Departure::Close) => {
                socket::shutdown_write(&link.fd);
                self.drain(tag);
            }
            Phase::Leaving(Departure::Abort) => {
                socket::reset_on_close(&link.fd);
                self.remove(tag);
            }
            Phase::Leaving(Departure::Move { to, message }) => {
                self.poll.forget(link.fd.as_raw_fd());
                if let Some(fd) = self.remove(tag) {
                    self.base.post_link(to, fd, Incoming::Moved(message));
                }
            }
        }
    }

    fn drain(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if socket::drain(link.fd.as_raw_fd()) {
            self.remove(tag);
        }
    }

    fn remove(&mut self, tag: Tag) -> Option<OwnedFd> {
        let link = self.links.remove(tag)?;
        assert!(link.recv.is_none() && link.send.is_none(), "a link goes when nothing of it is out");
        if link.closes {
            self.base.has_closed();
        }
        self.base.unload();
        Some(link.fd)
    }

    /// Gives back what is out, and drops the link with a reset.
    fn abort(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        link.phase = Phase::Leaving(Departure::Abort);
        if std::mem::take(&mut link.closes) {
            self.base.has_closed();
        }
        if let Some(op) = link.recv.take() {
            self.base.events.push_back(Event::Recv(link_of(tag), op, Received::Cancelled));
        }
        if link.send.is_some() {
            self.sent(tag, Err(Errno(libc::ECANCELED)));
        } else {
            self.leave(tag);
        }
    }
}

impl<M> Driver<M> for Epoll<M> {
    fn recv(&mut self, link: LinkId, op: RecvOp) {
        let tag = tag_of(link);
        match self.links.get_mut(tag) {
            Some(at) if matches!(at.phase, Phase::Open) => {
                assert!(at.recv.is_none(), "one receive at a time per link");
                at.recv = Some(op);
                self.receive_soon(tag);
            }
            Some(_) | None => self.base.events.push_back(Event::Recv(link, op, Received::Cancelled)),
        }
    }

    fn send(&mut self, link: LinkId, op: SendOp) {
        let tag = tag_of(link);
        match self.links.get_mut(tag) {
            Some(at) if matches!(at.phase, Phase::Open) => {
                assert!(at.send.is_none(), "one send at a time per link");
                at.send = Some(Sending { op, at: 0 });
                self.send_on(tag);
            }
            Some(_) | None => {
                self.base.events.push_back(Event::Written(link, Err(Errno(libc::ECANCELED))));
                self.base.events.push_back(Event::Sent(link, op));
            }
        }
    }

    fn disk(&mut self, op: DiskOp) {
        let disk = op.disk;
        if let Some((slot, call)) = self.base.start_disk_call(op) {
            self.base.block_on(disk, slot, call);
        }
    }

    fn depart(&mut self, link: LinkId, how: Departure<M>) {
        let tag = tag_of(link);
        let Some(at) = self.links.get_mut(tag) else { return };
        if !matches!(at.phase, Phase::Open) {
            return;
        }
        if let Departure::Abort = how {
            return self.abort(tag);
        }
        let recv = at.recv.take();
        let at_rest = at.send.is_none();
        at.phase = Phase::Leaving(how);
        at.closes = true;
        if let Some(op) = recv {
            self.base.events.push_back(Event::Recv(link, op, Received::Cancelled));
        }
        self.base.closes(tag);
        if at_rest {
            self.leave(tag);
        }
    }

    fn post(&mut self, to: ShardId, message: M) {
        self.base.post_message(to, message);
    }

    fn dial(&mut self, dial: Dial) {
        if let Err(e) = self.start_dial(dial) {
            self.base.events.push_back(Event::Dialled(dial.id, Err(e)));
        }
    }
}

impl<M> World<M> for Epoll<M> {
    fn base(&mut self) -> &mut Base<M> {
        &mut self.base
    }

    fn gather(&mut self, wait: Wait) {
        while let Some(tag) = self.base.overdue() {
            self.abort(tag);
        }
        while let Some(tag) = self.base.given_up() {
            self.dialled(tag, Err(Errno(libc::ETIMEDOUT)));
        }
        self.wake_listeners();
        let wait = if self.due.is_empty() && self.base.events.is_empty() { wait } else { Wait::No };
        let wait = match wait {
            Wait::Until(until) if !self.starved.is_empty() => {
                let retry = self.base.retry_at();
                Wait::Until(Some(until.map_or(retry, |until: Time| until.min(retry))))
            }
            wait => wait,
        };
        self.base.counters.syscalls.add(1);
        let count = self.poll.wait(wait);
        for at in 0..count {
            let (name, events) = self.poll.event(at);
            self.handle(name, events);
        }
        self.receive_due();
    }

    fn peek(&mut self) -> bool {
        // Looking costs a call, which `gather` makes anyway.
        true
    }

    fn install(&mut self, fd: OwnedFd, how: Arrival<M>) {
        let raw = fd.as_raw_fd();
        let tag = match self.links.insert(Link::new(fd)) {
            Ok(tag) => tag,
            Err(link) => {
                socket::reset_on_close(&link.fd);
                return self.base.refuse_link(how);
            }
        };
        if self.watch(raw, tag).is_err() {
            if let Some(link) = self.links.remove(tag) {
                socket::reset_on_close(&link.fd);
            }
            return self.base.refuse_link(how);
        }
        self.base.events.push_back(Event::Arrival(link_of(tag), how));
    }

    fn open_listener(&mut self, id: ListenerId, socket: TcpListener) {
        if let Some(at) = self.base.add_listener(id, socket) {
            self.watch_listener(at);
        }
    }

    fn close_listener(&mut self, id: ListenerId) {
        // Closing a socket ends the watching, too.
        if let Some(at) = self.base.find_listener(id) {
            drop(self.base.take_listener(at));
        }
    }

    fn close_listeners(&mut self) {
        self.base.take_listeners().for_each(drop);
    }

    fn abort_all(&mut self) {
        let tags: Vec<Tag> = self.links.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            match self.links.get(tag) {
                Some(Link { phase: Phase::Draining, fd, .. }) => {
                    socket::reset_on_close(fd);
                    self.remove(tag);
                }
                Some(Link { phase: Phase::Dialling(_), .. }) => {
                    self.dialled(tag, Err(Errno(libc::ECANCELED)));
                }
                Some(_) | None => self.abort(tag),
            }
        }
    }

    fn links(&self) -> usize {
        self.links.len()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.poll.fd()
    }

    fn due(&mut self) -> Option<Time> {
        if !self.due.is_empty() {
            return Some(self.base.now);
        }
        let retry = (!self.starved.is_empty()).then(|| self.base.retry_at());
        [self.base.timer(), retry].into_iter().flatten().min()
    }

    fn out(&mut self) -> usize {
        self.links.len() + self.base.disk_calls.out()
    }
}

fn recv_once(fd: &OwnedFd, iov: &mut [libc::iovec]) -> Result<usize, Errno> {
    loop {
        let got = if let [only] = iov {
            // SAFETY: the address is of memory that the operation owns and that is `iov_len` long.
            unsafe { libc::recv(fd.as_raw_fd(), only.iov_base, only.iov_len, libc::MSG_DONTWAIT) }
        } else {
            let mut header = message(iov);
            // SAFETY: the header names a list of such addresses, all valid during the call.
            unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) }
        };
        match got {
            -1 if last_errno() == Errno(libc::EINTR) => {}
            -1 => return Err(last_errno()),
            got => return Ok(got as usize),
        }
    }
}

fn send_once(fd: &OwnedFd, iov: &mut [libc::iovec], more: bool) -> Result<usize, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    let header = message(iov);
    loop {
        // SAFETY: the header names a list of memory that the operation owns, all valid during the call.
        match unsafe { libc::sendmsg(fd.as_raw_fd(), &header, flags) } {
            -1 if last_errno() == Errno(libc::EINTR) => {}
            -1 => return Err(last_errno()),
            sent => return Ok(sent as usize),
        }
    }
}

fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a msghdr is plain numbers and pointers, for which zero means "none".
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = iov.len();
    header
}
