//! The io_uring world.
//!
//! One ring per shard, used by its thread only. A turn takes every completion first, then gathers the
//! endpoint's work, then submits all of it and waits with one system call. A receive without a payload of its
//! own selects a stage when data arrives ([`stages`]); one with a payload is a single recvmsg into it and a
//! stage behind it. Disk reads, writes and syncs use the ring; calls that the kernel would only pass to its
//! own thread go to ours.
//!
//! Invariant: operations are in flight slots until their completion has arrived. The world is dropped before
//! its ring, and operations still in flight then are never freed.

mod depth;
mod dial;
mod leave;
mod receive;
mod ring;
mod send;
mod stages;

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use buf::{Errno, Time};
use endpoint::{Arrival, Departure, Dial, Driver, LinkId, ListenerId, ShardId};
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode, squeue};
use stream::{Received, RecvOp, SendOp, Slab, Tag};
use volume::DiskOp;

use crate::base::Base;
use crate::clock;
use crate::disk::{CallKind, DiskSyscall};
use crate::event::Event;
use crate::event_loop::{link_of, tag_of};
use crate::flight::Flights;
use crate::socket;
use crate::world::{Wait, World};

use depth::Depths;
pub(crate) use ring::make;
use ring::{Completion, Ring};
use stages::Stages;

/// What a completion is of: the upper byte of its name; the rest is a slot.
mod kind {
    pub(super) const RECV: u64 = 1;
    pub(super) const SEND: u64 = 2;
    pub(super) const DISK: u64 = 3;
    pub(super) const BELL: u64 = 4;
    pub(super) const LISTENER: u64 = 5;
    pub(super) const CANCEL: u64 = 6;
    pub(super) const DIAL: u64 = 7;
}

const SLOT_BITS: u32 = 56;

fn name(kind: u64, slot: u32) -> u64 {
    kind << SLOT_BITS | u64::from(slot)
}

/// Whether this kernel, and a filter of system calls before it, lets us have all that the world needs: each of
/// io_uring's three calls is tried.
pub(crate) fn probe() -> io::Result<()> {
    let mut ring = make()?;
    // SAFETY: nothing is pointed to.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let ring = Ring::new(&mut ring);
    Stages::new(&ring.submitter)?.unregister(&ring.submitter);
    Ok(())
}

pub(crate) struct Uring<'r, M> {
    base: Base<M>,
    ring: Ring<'r>,
    links: Slab<Link<M>>,
    recvs: Flights<RecvFlight>,
    sends: Flights<SendFlight>,
    stages: Option<Stages>,
    depths: Depths,
    /// Links whose receive found no memory.
    starved: VecDeque<Tag>,
    /// When such were tried last, none could be started.
    in_vain: bool,
}

struct Link<M> {
    fd: OwnedFd,
    recv: Receiving,
    send: Option<u32>,
    /// The last receive left bytes in the socket.
    has_more: bool,
    phase: Phase<M>,
    /// It counts among those that close.
    closes: bool,
}

impl<M> Link<M> {
    fn new(fd: OwnedFd, phase: Phase<M>) -> Self {
        Link { fd, recv: Receiving::Nothing, send: None, has_more: false, phase, closes: false }
    }
}

enum Receiving {
    Nothing,
    /// In this slot.
    Out(u32),
    /// For memory.
    Starved(RecvOp),
}

impl Receiving {
    /// Takes the receive that waits for memory, if one does. What is out stays: the kernel has it, and its
    /// completion must find its link.
    fn take_starved(&mut self) -> Option<RecvOp> {
        match std::mem::replace(self, Receiving::Nothing) {
            Receiving::Starved(op) => Some(op),
            other => {
                *self = other;
                None
            }
        }
    }
}

enum Phase<M> {
    /// It is being connected: watched for being writable, in a slot of the receives.
    Dialling(dial::Dialling),
    Open,
    /// It leaves when nothing of it is out.
    Leaving(Departure<M>),
    /// We have ended, the peer has not.
    Draining,
}

/// A receive that is out, or (without an operation) a watch for the end of the peer.
#[derive(Default)]
struct RecvFlight {
    link: Option<Tag>,
    op: Option<RecvOp>,
    message: Message,
}

/// A send that is out.
#[derive(Default)]
struct SendFlight {
    link: Option<Tag>,
    op: Option<SendOp>,
    /// Bytes written.
    at: usize,
    message: Message,
}

/// A header and its list, which keep their places while a slot's operation is out.
struct Message {
    header: Box<libc::msghdr>,
    iov: Vec<libc::iovec>,
}

impl Default for Message {
    fn default() -> Self {
        // SAFETY: a msghdr is plain numbers and pointers, for which zero means "none".
        Message { header: Box::new(unsafe { std::mem::zeroed() }), iov: Vec::new() }
    }
}

impl Message {
    /// The header, naming the list as it is now.
    fn header(&mut self) -> *mut libc::msghdr {
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len();
        &raw mut *self.header
    }
}

impl<'r, M> Uring<'r, M> {
    pub(crate) fn new(base: Base<M>, ring: &'r mut IoUring) -> io::Result<Self> {
        let ring = Ring::new(ring);
        let stages = Some(Stages::new(&ring.submitter)?);
        let links = Slab::new(base.links_max);
        let mut world = Uring {
            base,
            ring,
            links,
            recvs: Flights::new(),
            sends: Flights::new(),
            stages,
            depths: Depths::default(),
            starved: VecDeque::new(),
            in_vain: false,
        };
        world.watch_bell();
        for at in 0..world.base.listeners.len() {
            world.watch_listener(at);
        }
        Ok(world)
    }

    fn push(&mut self, kind: u64, slot: u32, entry: Entry) {
        let entry = entry.user_data(name(kind, slot));
        // SAFETY: what an entry of ours points to stands in the slot that it is named by, or belongs
        // to the operation there, until `complete` gives the slot back.
        unsafe { self.ring.push(&entry) };
    }

    fn cancel(&mut self, kind: u64, slot: u32) {
        self.push(kind::CANCEL, 0, opcode::AsyncCancel::new(name(kind, slot)).build());
    }

    fn watch_bell(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.base.bell.fd()), libc::POLLIN as u32).multi(true);
        self.push(kind::BELL, 0, poll.build());
    }

    fn watch_listener(&mut self, at: usize) {
        let Some(listener) = self.base.listener(at) else { return };
        let fd = Fd(listener.socket.as_raw_fd());
        self.push(kind::LISTENER, at as u32, opcode::PollAdd::new(fd, libc::POLLIN as u32).build());
    }

    fn wake_listeners(&mut self) {
        for at in self.base.rested() {
            self.watch_listener(at);
        }
    }

    /// A watch of a listener has ended: something waits there, or it is closed.
    fn listener_ready(&mut self, at: usize) {
        if self.base.listener(at).is_none() {
            // Closed meanwhile: nothing names the slot any more.
            drop(self.base.take_listener(at));
            return;
        }
        self.base.accept(at);
        if self.base.listener(at).is_some_and(|listener| listener.rests_until.is_none()) {
            self.watch_listener(at);
        }
    }

    fn complete(&mut self, of: Completion) {
        let slot = of.name as u32;
        match of.name >> SLOT_BITS {
            kind::RECV => self.received(slot, of),
            kind::SEND => self.sent(slot, of.result),
            kind::DISK => self.disk_ended(slot, of.result),
            kind::BELL if !cqueue::more(of.flags) => self.watch_bell(),
            kind::LISTENER => self.listener_ready(slot as usize),
            kind::DIAL => self.dial_ended(slot),
            // A bell that goes on; a cancellation, of which the operation itself says how it ended.
            _ => {}
        }
    }

    fn disk_ended(&mut self, slot: u32, result: i32) {
        let disk = self.base.disk_calls.at(slot).disk();
        self.base.finish_disk_call(slot, came(result), None);
        if let Some((slot, call)) = disk.and_then(|disk| self.depths.end(disk))
            && let Some(entry) = disk_entry(call)
        {
            self.push(kind::DISK, slot, entry);
        }
    }

    /// When receives that wait for memory are tried: at once, unless none of those that were tried last found
    /// any.
    fn retry(&self) -> Option<Time> {
        let at = if self.in_vain { self.base.retry_at() } else { self.base.now };
        (!self.starved.is_empty()).then_some(at)
    }

    fn is_open(&self, tag: Tag) -> bool {
        self.links.get(tag).is_some_and(|link| matches!(link.phase, Phase::Open))
    }
}

/// A result as the kernel gives it.
fn came(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno(-result))
}

impl<M> Driver<M> for Uring<'_, M> {
    fn recv(&mut self, link: LinkId, op: RecvOp) {
        let tag = tag_of(link);
        match self.links.get(tag) {
            Some(at) if matches!(at.phase, Phase::Open) => {
                assert!(matches!(at.recv, Receiving::Nothing), "one receive at a time per link");
                self.receive(tag, op);
            }
            Some(_) | None => self.base.events.push_back(Event::Recv(link, op, Received::Cancelled)),
        }
    }

    fn send(&mut self, link: LinkId, op: SendOp) {
        let tag = tag_of(link);
        if !self.is_open(tag) {
            self.base.events.push_back(Event::Written(link, Err(Errno(libc::ECANCELED))));
            self.base.events.push_back(Event::Sent(link, op));
            return;
        }
        let slot = self.sends.take();
        let flight = self.sends.at(slot);
        flight.link = Some(tag);
        flight.op = Some(op);
        flight.at = 0;
        if let Some(at) = self.links.get_mut(tag) {
            assert!(at.send.is_none(), "one send at a time per link");
            at.send = Some(slot);
        }
        self.send_on(slot);
    }

    fn disk(&mut self, op: DiskOp) {
        let disk = op.disk;
        let Some((slot, call)) = self.base.start_disk_call(op) else { return };
        match disk_entry(call) {
            Some(entry) if self.depths.start(&self.ring.submitter, disk, slot, call) => {
                self.push(kind::DISK, slot, entry);
            }
            Some(_) => {}
            None => self.base.block_on(disk, slot, call),
        }
    }

    fn depart(&mut self, link: LinkId, how: Departure<M>) {
        let tag = tag_of(link);
        if !self.is_open(tag) {
            return;
        }
        if let Departure::Abort = how {
            return self.abort(tag);
        }
        if let Some(at) = self.links.get_mut(tag) {
            at.phase = Phase::Leaving(how);
            at.closes = true;
        }
        self.base.closes(tag);
        self.cancel_recv(tag);
        self.finish_leaving(tag);
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

/// The submission for a disk call; `None` for those that the kernel gives to a thread anyway.
fn disk_entry(call: DiskSyscall) -> Option<Entry> {
    let fd = Fd(call.fd);
    let entry = match call.kind {
        CallKind::Read { iov, count, offset } => opcode::Readv::new(fd, iov, count).offset(offset).build(),
        CallKind::Write { iov, count, offset, durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            opcode::Writev::new(fd, iov, count).offset(offset).rw_flags(flags).build()
        }
        CallKind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        CallKind::Punch { .. }
        | CallKind::Zero { .. }
        | CallKind::NextData { .. }
        | CallKind::Prefetch { .. } => {
            return None;
        }
    };
    // Else this thread would wait.
    Some(if call.waits_for_others { entry.flags(squeue::Flags::ASYNC) } else { entry })
}

impl<M> World<M> for Uring<'_, M> {
    fn base(&mut self) -> &mut Base<M> {
        &mut self.base
    }

    fn gather(&mut self, wait: Wait) {
        while let Some(tag) = self.base.overdue() {
            self.abort(tag);
        }
        while let Some(tag) = self.base.given_up() {
            self.give_up(tag, Errno(libc::ETIMEDOUT));
        }
        self.wake_listeners();
        self.feed();
        let wait = match wait {
            Wait::Until(until) if self.base.events.is_empty() => {
                let until = [until, self.retry()].into_iter().flatten().min();
                Some(until.map(|until: Time| until.since(clock::now())))
            }
            Wait::Until(_) | Wait::No => None,
        };
        self.ring.submit(wait);
        self.ring.calm();
        self.ring.look();
        while let Some(completion) = self.ring.next() {
            self.complete(completion);
        }
        self.ring.look();
        self.base.kept = self.stages.as_ref().map_or(0, Stages::bytes);
        self.base.counters.syscalls.set(self.ring.enters);
    }

    fn peek(&mut self) -> bool {
        self.ring.peek()
    }

    fn install(&mut self, fd: OwnedFd, how: Arrival<M>) {
        match self.links.insert(Link::new(fd, Phase::Open)) {
            Ok(tag) => self.base.events.push_back(Event::Arrival(link_of(tag), how)),
            Err(link) => {
                socket::reset_on_close(&link.fd);
                self.base.refuse_link(how);
            }
        }
    }

    fn open_listener(&mut self, id: ListenerId, socket: TcpListener) {
        if let Some(at) = self.base.add_listener(id, socket) {
            self.watch_listener(at);
        }
    }

    fn close_listener(&mut self, id: ListenerId) {
        let Some(at) = self.base.find_listener(id) else { return };
        let Some(listener) = self.base.listeners.get_mut(at).and_then(Option::as_mut) else { return };
        // A watch that is out keeps the socket, and the slot until it ends; so it is told to listen no more.
        socket::stop_listening(&listener.socket);
        listener.is_closing = true;
        if listener.rests_until.is_some() {
            drop(self.base.take_listener(at));
        }
    }

    fn close_listeners(&mut self) {
        for listener in self.base.take_listeners() {
            // A watch that is out keeps the socket; so it is told to listen no more.
            socket::stop_listening(&listener.socket);
        }
    }

    fn abort_all(&mut self) {
        let tags: Vec<Tag> = self.links.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.abort(tag);
        }
    }

    fn links(&self) -> usize {
        self.links.len()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ring.fd(&self.base.bell)
    }

    fn due(&mut self) -> Option<Time> {
        if self.ring.has_unsubmitted() || self.ring.peek() {
            return Some(self.base.now);
        }
        [self.base.timer(), self.retry()].into_iter().flatten().min()
    }

    fn out(&mut self) -> usize {
        self.links.len() + self.base.disk_calls.out()
    }
}

impl<M> Drop for Uring<'_, M> {
    fn drop(&mut self) {
        let Some(stages) = self.stages.take() else { return };
        if self.recvs.out() == 0 && self.sends.out() == 0 && self.base.disk_calls.out() == 0 {
            return stages.unregister(&self.ring.submitter);
        }
        // Only a panic brings us here with operations out. The kernel may still write to their memory (of
        // disk operations the base takes care).
        std::mem::forget(stages);
        std::mem::forget(std::mem::replace(&mut self.recvs, Flights::new()));
        std::mem::forget(std::mem::replace(&mut self.sends, Flights::new()));
    }
}

#[cfg(test)]
mod tests {
    use crate::denied;

    #[test]
    fn a_filter_that_refuses_one_call_of_io_uring_is_seen_before_a_shard_starts() {
        for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter] {
            denied::on_a_thread(&[call], libc::EPERM, || {
                assert!(super::probe().is_err(), "system call {call} is refused");
            });
        }
    }
}
