//! The epoll world: for kernels and containers that forbid io_uring.
//!
//! Sockets are watched edge-triggered, in both directions, from arrival to close, so a link needs no further
//! calls for that. The state from an edge is remembered (`readable`, `writable`) until a call finds the
//! opposite. So a receive requested while data is available runs without waiting, and an idle link holds
//! neither stage nor list. Disk operations go to blocking threads.

mod hand_over;
mod poll;
mod socket_calls;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use buf::{Errno, Time};
use endpoint::{Dial, Dialled, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId};
use stream::{Received, RecvOp, SendOp, Slab, Tag};
use volume::DiskOp;

use crate::disk::IOV_MAX;
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::{link_from_tag, tag_from_link};
use crate::mailbox::IncomingLink;
use crate::recv_memory;
use crate::send_buffer_size::{LargeSends, LinkSendBuffer};
use crate::socket;
use crate::world::{WaitLimit, World};
use crate::world_state::WorldState;

use poll::Poll;
use socket_calls::{recv_once, send_once};

/// The names of what is watched that is no link; a link's name is its tag, whose generation never
/// comes that far.
const WAKER_TOKEN: u64 = u64::MAX;
const LISTENER_TOKEN: u64 = u64::MAX - 0x1_0000;

pub(crate) struct Epoll<M> {
    base: WorldState<M>,
    poll: Poll,
    links: Slab<Link<M>>,
    large_sends: LargeSends,
    /// Links that have a receive to do and bytes to do it with.
    due: VecDeque<Tag>,
    /// Links whose long send goes on once others have had their turn.
    due_sends: VecDeque<Tag>,
    /// Links whose receive found no memory.
    starved: Vec<Tag>,
    iov: Vec<libc::iovec>,
}

struct Link<M> {
    fd: OwnedFd,
    recv: Option<RecvOp>,
    send: Option<Sending>,
    send_buffer: LinkSendBuffer,
    readable: bool,
    writable: bool,
    /// The peer has ended or failed: a short read is not the last.
    hung_up: bool,
    is_due: bool,
    phase: LinkPhase<M>,
    /// It counts among those that close.
    closes: bool,
}

impl<M> Link<M> {
    fn new(fd: OwnedFd) -> Self {
        Link {
            fd,
            recv: None,
            send: None,
            send_buffer: LinkSendBuffer::default(),
            readable: false,
            writable: true,
            hung_up: false,
            is_due: false,
            phase: LinkPhase::Open,
            closes: false,
        }
    }
}

struct Sending {
    op: SendOp,
    at: usize,
}

enum LinkPhase<M> {
    /// It is being connected.
    Dialling(Dial),
    Open,
    /// It leaves when its send is written.
    Leaving(LinkDeparture<M>),
    /// We have ended, the peer has not.
    Draining,
}

impl<M> Epoll<M> {
    pub(crate) fn new(base: WorldState<M>) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.watch_edges(base.waker.fd(), WAKER_TOKEN, libc::EPOLLIN)?;
        for (at, listener) in base.listeners.iter().flatten().enumerate() {
            poll.watch_level(listener.socket.as_raw_fd(), LISTENER_TOKEN + at as u64)?;
        }
        let links = Slab::new(base.links_max);
        Ok(Epoll {
            base,
            poll,
            links,
            large_sends: LargeSends::default(),
            due: VecDeque::new(),
            due_sends: VecDeque::new(),
            starved: Vec::new(),
            iov: Vec::new(),
        })
    }

    fn handle_event(&mut self, name: u64, events: u32) {
        match name {
            WAKER_TOKEN => {}
            LISTENER_TOKEN.. => {
                let at = (name - LISTENER_TOKEN) as usize;
                self.base.accept_waiting(at);
                self.pause_listener(at);
            }
            _ => self.handle_link_event(Tag::from_bits(name), events),
        }
    }

    /// Stops watching a listener while accepting is pointless.
    fn pause_listener(&mut self, at: usize) {
        if let Some(listener) = self.base.listener(at)
            && listener.rests_until.is_some()
        {
            self.poll.unwatch(listener.socket.as_raw_fd());
        }
    }

    fn resume_listeners(&mut self) {
        for at in self.base.rested() {
            self.watch_listener(at);
        }
    }

    fn watch_listener(&mut self, at: usize) {
        let Some(listener) = self.base.listener(at) else { return };
        // If the kernel has no room for it now, it is tried again when memory may be there.
        if self.poll.watch_level(listener.socket.as_raw_fd(), LISTENER_TOKEN + at as u64).is_err() {
            self.base.pause_accepting(at, std::time::Duration::from_secs(1));
        }
    }

    fn handle_link_event(&mut self, tag: Tag, events: u32) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let ended = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        link.hung_up |= events & ended != 0;
        if events & (libc::EPOLLIN as u32 | ended) != 0 {
            link.readable = true;
            if let LinkPhase::Draining = link.phase {
                return self.drain_link(tag);
            }
            self.queue_recv(tag);
        }
        if events & (libc::EPOLLOUT as u32 | ended) != 0 {
            let Some(link) = self.links.get_mut(tag) else { return };
            link.writable = true;
            if let LinkPhase::Dialling(dial) = link.phase {
                let how = socket::finish_connect(&link.fd, dial.to);
                return self.finish_dial(tag, how);
            }
            if link.send.is_some() {
                self.continue_send(tag);
            }
        }
    }

    fn try_start_dial(&mut self, dial: Dial) -> Result<(), Errno> {
        if self.links.len() >= self.base.links_max {
            return Err(Errno(libc::EMFILE));
        }
        let fd = self.base.start_connect(&dial)?;
        let raw = fd.as_raw_fd();
        let link = Link { phase: LinkPhase::Dialling(dial), writable: false, ..Link::new(fd) };
        let Ok(tag) = self.links.insert(link) else { return Err(Errno(libc::EMFILE)) };
        self.base.note_dialling(tag, &dial);
        if let Err(e) = self.watch_link(raw, tag) {
            self.base.note_dial_ended(tag, &dial);
            self.take_link_fd(tag);
            return Err(Errno(e.raw_os_error().unwrap_or(libc::ENOMEM)));
        }
        Ok(())
    }

    /// A link's connection stands, or failed.
    fn finish_dial(&mut self, tag: Tag, how: Result<SocketAddr, Errno>) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let LinkPhase::Dialling(dial) = link.phase else { return };
        link.phase = LinkPhase::Open;
        self.base.note_dial_ended(tag, &dial);
        let how = how.map(|local| Dialled { link: link_from_tag(tag), local, peer: dial.to });
        if how.is_err() {
            self.take_link_fd(tag);
        }
        self.base.events.push_back(EndpointEvent::Dialled(dial.id, how));
    }

    fn watch_link(&self, fd: RawFd, tag: Tag) -> io::Result<()> {
        let both = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP;
        self.poll.watch_edges(fd, tag.to_bits(), both)
    }

    fn queue_recv(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if link.readable && link.recv.is_some() && !link.is_due {
            link.is_due = true;
            self.due.push_back(tag);
        }
    }

    fn run_queued_recvs(&mut self) {
        for tag in std::mem::take(&mut self.starved) {
            self.queue_recv(tag);
        }
        // One call per link and turn, so that none starves the others.
        for _ in 0..self.due.len() {
            let Some(tag) = self.due.pop_front() else { return };
            self.recv_available(tag);
        }
    }

    /// Sends on where a long send has made room for other links.
    fn run_queued_sends(&mut self) {
        for _ in 0..self.due_sends.len() {
            let Some(tag) = self.due_sends.pop_front() else { return };
            self.continue_send(tag);
        }
    }

    fn recv_available(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        link.is_due = false;
        let Some(mut op) = link.recv.take() else { return };
        let room = recv_memory::fill_iovecs(&self.base, &mut self.iov, &mut op);
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
                recv_memory::finish_recv(&mut self.base, tag, op, got);
            }
            Err(Errno(libc::EAGAIN)) => {
                link.readable = false;
                // An idle link pins no stage.
                op.stage = None;
                link.recv = Some(op);
            }
            Err(e) => {
                op.stage = None;
                self.base.events.push_back(EndpointEvent::Recv(link_from_tag(tag), op, Received::Failed(e)));
            }
        }
    }

    /// Sends as much of what is out as the socket takes.
    fn continue_send(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let Some(sending) = &mut link.send else { return };
        let counters = &self.base.counters;
        let most = self.base.active.transfer_max(self.base.now);
        let how = loop {
            if !link.writable {
                return;
            }
            self.iov.clear();
            let iov = &mut self.iov;
            let mut asked = 0;
            sending.op.for_each_piece(sending.at, |at, len| {
                if iov.len() < IOV_MAX && asked < most {
                    let len = len.min(most - asked);
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
                    if link.writable && most < usize::MAX {
                        return self.due_sends.push_back(tag);
                    }
                }
                Err(Errno(libc::EAGAIN)) => link.writable = false,
                Err(e) => break Err(e),
            }
        };
        self.finish_send(tag, how);
    }

    fn finish_send(&mut self, tag: Tag, how: Result<(), Errno>) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let Some(Sending { op, .. }) = link.send.take() else { return };
        self.large_sends.note_send_ended(&mut link.send_buffer);
        if how.is_ok() {
            self.base.counters.sends.add(1);
            self.base.counters.send_bytes.add(op.len as u64);
        }
        self.base.events.push_back(EndpointEvent::Written(link_from_tag(tag), how));
        self.base.events.push_back(EndpointEvent::Sent(link_from_tag(tag), op));
        if let LinkPhase::Leaving(_) = link.phase {
            self.finish_link_close(tag);
        }
    }

    /// Nothing of the link is out any more: it goes.
    fn finish_link_close(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        match std::mem::replace(&mut link.phase, LinkPhase::Draining) {
            LinkPhase::Dialling(_) | LinkPhase::Open | LinkPhase::Draining => {}
            LinkPhase::Leaving(LinkDeparture::Close) => {
                socket::shutdown_write(&link.fd);
                self.drain_link(tag);
            }
            LinkPhase::Leaving(LinkDeparture::Abort) => {
                socket::reset_on_close(&link.fd);
                self.take_link_fd(tag);
            }
            LinkPhase::Leaving(LinkDeparture::Move { to, message }) => {
                link.send_buffer.restore_buffer(&link.fd);
                self.poll.unwatch(link.fd.as_raw_fd());
                if let Some(fd) = self.take_link_fd(tag) {
                    self.base.post_link(to, fd, IncomingLink::Moved(message));
                }
            }
        }
    }

    fn drain_link(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if socket::discard_received(link.fd.as_raw_fd()) {
            self.take_link_fd(tag);
        }
    }

    fn take_link_fd(&mut self, tag: Tag) -> Option<OwnedFd> {
        let link = self.links.remove(tag)?;
        assert!(link.recv.is_none() && link.send.is_none(), "a link goes when nothing of it is out");
        if link.closes {
            self.base.note_closed();
        }
        self.base.count_link_removed();
        Some(link.fd)
    }

    /// Gives back what is out, and drops the link with a reset.
    fn abort_link(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        link.phase = LinkPhase::Leaving(LinkDeparture::Abort);
        if std::mem::take(&mut link.closes) {
            self.base.note_closed();
        }
        if let Some(op) = link.recv.take() {
            self.base.events.push_back(EndpointEvent::Recv(link_from_tag(tag), op, Received::Cancelled));
        }
        if link.send.is_some() {
            self.finish_send(tag, Err(Errno(libc::ECANCELED)));
        } else {
            self.finish_link_close(tag);
        }
    }
}

impl<M> IoDriver<M> for Epoll<M> {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        let tag = tag_from_link(link);
        match self.links.get_mut(tag) {
            Some(at) if matches!(at.phase, LinkPhase::Open) => {
                assert!(at.recv.is_none(), "one receive at a time per link");
                at.recv = Some(op);
                self.queue_recv(tag);
            }
            Some(_) | None => self.base.events.push_back(EndpointEvent::Recv(link, op, Received::Cancelled)),
        }
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        let tag = tag_from_link(link);
        match self.links.get_mut(tag) {
            Some(at) if matches!(at.phase, LinkPhase::Open) => {
                assert!(at.send.is_none(), "one send at a time per link");
                self.large_sends.note_send_started(&mut at.send_buffer, &at.fd, op.len);
                at.send = Some(Sending { op, at: 0 });
                self.continue_send(tag);
            }
            Some(_) | None => {
                self.base.events.push_back(EndpointEvent::Written(link, Err(Errno(libc::ECANCELED))));
                self.base.events.push_back(EndpointEvent::Sent(link, op));
            }
        }
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        let disk = op.disk;
        if let Some((slot, call)) = self.base.start_disk_call(op) {
            self.base.submit_blocking(disk, slot, call);
        }
    }

    fn halt_link(&mut self, link: LinkId) {
        self.cut_short(link);
    }

    fn remove_link(&mut self, link: LinkId, how: LinkDeparture<M>) {
        let tag = tag_from_link(link);
        let Some(at) = self.links.get_mut(tag) else { return };
        if !matches!(at.phase, LinkPhase::Open) {
            return;
        }
        if let LinkDeparture::Abort = how {
            return self.abort_link(tag);
        }
        let recv = at.recv.take();
        let at_rest = at.send.is_none();
        at.phase = LinkPhase::Leaving(how);
        at.closes = true;
        if let Some(op) = recv {
            self.base.events.push_back(EndpointEvent::Recv(link, op, Received::Cancelled));
        }
        self.base.note_closing(tag);
        if at_rest {
            self.finish_link_close(tag);
        }
    }

    fn post_message(&mut self, to: ShardId, message: M) {
        self.base.post_message(to, message);
    }

    fn start_dial(&mut self, dial: Dial) {
        if let Err(e) = self.try_start_dial(dial) {
            self.base.events.push_back(EndpointEvent::Dialled(dial.id, Err(e)));
        }
    }
}

impl<M> World<M> for Epoll<M> {
    fn world_state(&mut self) -> &mut WorldState<M> {
        &mut self.base
    }

    fn collect_events(&mut self, wait: WaitLimit) {
        while let Some(tag) = self.base.poll_overdue_close() {
            self.abort_link(tag);
        }
        while let Some(tag) = self.base.poll_timed_out_dial() {
            self.finish_dial(tag, Err(Errno(libc::ETIMEDOUT)));
        }
        self.resume_listeners();
        let is_idle = self.due.is_empty() && self.due_sends.is_empty() && self.base.events.is_empty();
        let wait = if is_idle { wait } else { WaitLimit::No };
        let wait = match wait {
            WaitLimit::Until(until) if !self.starved.is_empty() => {
                let retry = self.base.retry_time();
                WaitLimit::Until(Some(until.map_or(retry, |until: Time| until.min(retry))))
            }
            wait => wait,
        };
        self.base.counters.syscalls.add(1);
        let count = self.poll.wait(wait);
        for at in 0..count {
            let (name, events) = self.poll.event_at(at);
            self.handle_event(name, events);
        }
        self.run_queued_recvs();
        self.run_queued_sends();
    }

    fn has_events(&mut self) -> bool {
        // Looking costs a call, which `collect_events` makes anyway.
        true
    }

    fn install_link(&mut self, fd: OwnedFd, how: LinkArrival<M>) {
        let raw = fd.as_raw_fd();
        let tag = match self.links.insert(Link::new(fd)) {
            Ok(tag) => tag,
            Err(link) => {
                socket::reset_on_close(&link.fd);
                return self.base.refuse_link(how);
            }
        };
        if self.watch_link(raw, tag).is_err() {
            if let Some(link) = self.links.remove(tag) {
                socket::reset_on_close(&link.fd);
            }
            return self.base.refuse_link(how);
        }
        self.base.events.push_back(EndpointEvent::Arrival(link_from_tag(tag), how));
    }

    fn duplicate_links(&mut self, links: &[LinkId]) -> io::Result<Vec<OwnedFd>> {
        links.iter().map(|link| self.duplicate_link(*link)).collect()
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

    fn abort_all_links(&mut self) {
        let tags: Vec<Tag> = self.links.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            match self.links.get(tag) {
                Some(Link { phase: LinkPhase::Draining, fd, .. }) => {
                    socket::reset_on_close(fd);
                    self.take_link_fd(tag);
                }
                Some(Link { phase: LinkPhase::Dialling(_), .. }) => {
                    self.finish_dial(tag, Err(Errno(libc::ECANCELED)));
                }
                Some(_) | None => self.abort_link(tag),
            }
        }
    }

    fn link_count(&self) -> usize {
        self.links.len()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.poll.fd()
    }

    fn next_deadline(&mut self) -> Option<Time> {
        if !self.due.is_empty() || !self.due_sends.is_empty() {
            return Some(self.base.now);
        }
        let retry = (!self.starved.is_empty()).then(|| self.base.retry_time());
        [self.base.next_deadline(), retry].into_iter().flatten().min()
    }

    fn ops_in_flight(&mut self) -> usize {
        self.links.len() + self.base.disk_calls.in_use()
    }
}
