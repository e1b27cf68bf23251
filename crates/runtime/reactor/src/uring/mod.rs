//! The io_uring world.
//!
//! One ring per shard, used by its thread only. A turn takes every completion first, then gathers the
//! endpoint's work, then submits all of it and waits with one system call. A receive without a payload of its
//! own selects a stage when data arrives ([`provided_buffers`]); one with a payload is a single recvmsg into it and a
//! stage behind it. Disk reads, writes and syncs use the ring; calls that the kernel would only pass to its
//! own thread go to ours.
//!
//! Invariant: operations are in flight slots until their completion has arrived. The world is dropped before
//! its ring, and operations still in flight then are never freed.

mod dial;
mod disk_queue;
mod link_close;
mod provided_buffers;
mod receive;
mod ring;
mod send;

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use buf::{Errno, Time};
use endpoint::{Dial, IoDriver, LinkArrival, LinkDeparture, LinkId, ListenerId, ShardId};
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode, squeue};
use stream::{Received, RecvOp, SendOp, Slab, Tag};
use volume::DiskOp;

use crate::clock;
use crate::disk::{DiskSyscall, SyscallKind};
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::{link_from_tag, tag_from_link};
use crate::send_buffer_size::{LargeSends, LinkSendBuffer};
use crate::slot_table::SlotTable;
use crate::socket;
use crate::world::{WaitLimit, World};
use crate::world_state::WorldState;

use disk_queue::DiskQueues;
use provided_buffers::ProvidedBuffers;
pub(crate) use ring::create_ring;
use ring::{Completion, Ring};

/// What a completion is of: the upper byte of its name; the rest is a slot.
mod kind {
    pub(super) const RECV: u64 = 1;
    pub(super) const SEND: u64 = 2;
    pub(super) const DISK: u64 = 3;
    pub(super) const WAKER: u64 = 4;
    pub(super) const LISTENER: u64 = 5;
    pub(super) const CANCEL: u64 = 6;
    pub(super) const DIAL: u64 = 7;
}

const SLOT_BITS: u32 = 56;

fn user_data(kind: u64, slot: u32) -> u64 {
    kind << SLOT_BITS | u64::from(slot)
}

/// Whether this kernel, and a filter of system calls before it, lets us have all that the world needs: each of
/// io_uring's three calls is tried.
pub(crate) fn probe() -> io::Result<()> {
    let mut ring = create_ring()?;
    // SAFETY: nothing is pointed to.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let ring = Ring::new(&mut ring);
    ProvidedBuffers::new(&ring.submitter)?.unregister(&ring.submitter);
    Ok(())
}

pub(crate) struct Uring<'r, M> {
    base: WorldState<M>,
    ring: Ring<'r>,
    links: Slab<Link<M>>,
    recvs: SlotTable<RecvFlight>,
    sends: SlotTable<SendFlight>,
    stages: Option<ProvidedBuffers>,
    depths: DiskQueues,
    large_sends: LargeSends,
    /// Links whose receive found no memory.
    starved: VecDeque<Tag>,
    /// When such were tried last, none could be started.
    in_vain: bool,
}

struct Link<M> {
    fd: OwnedFd,
    recv: RecvState,
    send: Option<u32>,
    send_buffer: LinkSendBuffer,
    /// The last receive left bytes in the socket.
    has_more: bool,
    phase: LinkPhase<M>,
    /// What is out is to come back, as it is.
    is_halting: bool,
    /// It counts among those that close.
    closes: bool,
}

impl<M> Link<M> {
    fn new(fd: OwnedFd, phase: LinkPhase<M>) -> Self {
        Link {
            fd,
            recv: RecvState::Nothing,
            send: None,
            send_buffer: LinkSendBuffer::default(),
            has_more: false,
            phase,
            is_halting: false,
            closes: false,
        }
    }
}

enum RecvState {
    Nothing,
    /// In this slot.
    Out(u32),
    /// For memory.
    Starved(RecvOp),
}

impl RecvState {
    /// Takes the receive that waits for memory, if one does. What is out stays: the kernel has it, and its
    /// completion must find its link.
    fn take_starved(&mut self) -> Option<RecvOp> {
        match std::mem::replace(self, RecvState::Nothing) {
            RecvState::Starved(op) => Some(op),
            other => {
                *self = other;
                None
            }
        }
    }
}

enum LinkPhase<M> {
    /// It is being connected: watched for being writable, in a slot of the receives.
    Dialling(dial::PendingDial),
    Open,
    /// It leaves when nothing of it is out.
    Leaving(LinkDeparture<M>),
    /// We have ended, the peer has not.
    Draining,
}

/// A receive that is out, or (without an operation) a watch for the end of the peer.
#[derive(Default)]
struct RecvFlight {
    link: Option<Tag>,
    op: Option<RecvOp>,
    message: MsgHeader,
}

/// A send that is out.
#[derive(Default)]
struct SendFlight {
    link: Option<Tag>,
    op: Option<SendOp>,
    /// Bytes written.
    at: usize,
    message: MsgHeader,
}

/// A header and its list, which keep their places while a slot's operation is out.
struct MsgHeader {
    header: Box<libc::msghdr>,
    iov: Vec<libc::iovec>,
}

impl Default for MsgHeader {
    fn default() -> Self {
        // SAFETY: a msghdr is plain numbers and pointers, for which zero means "none".
        MsgHeader { header: Box::new(unsafe { std::mem::zeroed() }), iov: Vec::new() }
    }
}

impl MsgHeader {
    /// The header, naming the list as it is now.
    fn header_ptr(&mut self) -> *mut libc::msghdr {
        self.header.msg_iov = self.iov.as_mut_ptr();
        self.header.msg_iovlen = self.iov.len();
        &raw mut *self.header
    }
}

impl<'r, M> Uring<'r, M> {
    pub(crate) fn new(base: WorldState<M>, ring: &'r mut IoUring) -> io::Result<Self> {
        let ring = Ring::new(ring);
        let stages = Some(ProvidedBuffers::new(&ring.submitter)?);
        let links = Slab::new(base.links_max);
        let mut world = Uring {
            base,
            ring,
            links,
            recvs: SlotTable::new(),
            sends: SlotTable::new(),
            stages,
            depths: DiskQueues::default(),
            large_sends: LargeSends::default(),
            starved: VecDeque::new(),
            in_vain: false,
        };
        world.watch_waker();
        for at in 0..world.base.listeners.len() {
            world.watch_listener(at);
        }
        Ok(world)
    }

    fn push(&mut self, kind: u64, slot: u32, entry: Entry) {
        let entry = entry.user_data(user_data(kind, slot));
        // SAFETY: what an entry of ours points to stands in the slot that it is named by, or belongs
        // to the operation there, until `handle_completion` gives the slot back.
        unsafe { self.ring.push(&entry) };
    }

    fn cancel(&mut self, kind: u64, slot: u32) {
        self.push(kind::CANCEL, 0, opcode::AsyncCancel::new(user_data(kind, slot)).build());
    }

    fn watch_waker(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.base.waker.fd()), libc::POLLIN as u32).multi(true);
        self.push(kind::WAKER, 0, poll.build());
    }

    fn watch_listener(&mut self, at: usize) {
        let Some(listener) = self.base.listener(at) else { return };
        let fd = Fd(listener.socket.as_raw_fd());
        self.push(kind::LISTENER, at as u32, opcode::PollAdd::new(fd, libc::POLLIN as u32).build());
    }

    fn resume_listeners(&mut self) {
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
        self.base.accept_waiting(at);
        if self.base.listener(at).is_some_and(|listener| listener.rests_until.is_none()) {
            self.watch_listener(at);
        }
    }

    fn handle_completion(&mut self, of: Completion) {
        let slot = of.name as u32;
        match of.name >> SLOT_BITS {
            kind::RECV => self.handle_recv_completion(slot, of),
            kind::SEND => self.handle_send_completion(slot, of.result),
            kind::DISK => self.handle_disk_completion(slot, of.result),
            kind::WAKER if !cqueue::more(of.flags) => self.watch_waker(),
            kind::LISTENER => self.listener_ready(slot as usize),
            kind::DIAL => self.handle_dial_ended(slot),
            // The poll of the waker, which goes on; a cancellation, of which the operation itself says how it ended.
            _ => {}
        }
    }

    fn handle_disk_completion(&mut self, slot: u32, result: i32) {
        let disk = self.base.disk_calls.slot_mut(slot).disk();
        self.base.finish_disk_call(slot, completion_result(result), None);
        if let Some((slot, call)) = disk.and_then(|disk| self.depths.finish_call(disk))
            && let Some(entry) = disk_entry(call)
        {
            self.push(kind::DISK, slot, entry);
        }
    }

    /// When receives that wait for memory are tried: at once, unless none of those that were tried last found
    /// any.
    fn recv_retry_time(&self) -> Option<Time> {
        let at = if self.in_vain { self.base.retry_time() } else { self.base.now };
        (!self.starved.is_empty()).then_some(at)
    }

    fn is_open(&self, tag: Tag) -> bool {
        self.links.get(tag).is_some_and(|link| matches!(link.phase, LinkPhase::Open))
    }
}

/// A result as the kernel gives it.
fn completion_result(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno(-result))
}

impl<M> IoDriver<M> for Uring<'_, M> {
    fn start_recv(&mut self, link: LinkId, op: RecvOp) {
        let tag = tag_from_link(link);
        match self.links.get_mut(tag) {
            Some(at) if matches!(at.phase, LinkPhase::Open) => {
                assert!(matches!(at.recv, RecvState::Nothing), "one receive at a time per link");
                at.is_halting = false;
                self.submit_recv(tag, op);
            }
            Some(_) | None => self.base.events.push_back(EndpointEvent::Recv(link, op, Received::Cancelled)),
        }
    }

    fn start_send(&mut self, link: LinkId, op: SendOp) {
        let tag = tag_from_link(link);
        if !self.is_open(tag) {
            self.base.events.push_back(EndpointEvent::Written(link, Err(Errno(libc::ECANCELED))));
            self.base.events.push_back(EndpointEvent::Sent(link, op));
            return;
        }
        let slot = self.sends.allocate();
        let flight = self.sends.slot_mut(slot);
        if let Some(at) = self.links.get_mut(tag) {
            assert!(at.send.is_none(), "one send at a time per link");
            at.send = Some(slot);
            at.is_halting = false;
            self.large_sends.note_send_started(&mut at.send_buffer, &at.fd, op.len);
        }
        flight.link = Some(tag);
        flight.op = Some(op);
        flight.at = 0;
        self.continue_send(slot);
    }

    fn start_disk_op(&mut self, op: DiskOp) {
        let disk = op.disk;
        let Some((slot, call)) = self.base.start_disk_call(op) else { return };
        match disk_entry(call) {
            Some(entry) if self.depths.try_start_call(&self.ring.submitter, disk, slot, call) => {
                self.push(kind::DISK, slot, entry);
            }
            Some(_) => {}
            None => self.base.submit_blocking(disk, slot, call),
        }
    }

    fn halt_link(&mut self, link: LinkId) {
        let tag = tag_from_link(link);
        let Some(at) = self.links.get_mut(tag).filter(|at| matches!(at.phase, LinkPhase::Open)) else {
            return;
        };
        at.is_halting = true;
        let send = at.send;
        self.cancel_recv(tag);
        if let Some(slot) = send {
            self.cancel(kind::SEND, slot);
        }
    }

    fn remove_link(&mut self, link: LinkId, how: LinkDeparture<M>) {
        let tag = tag_from_link(link);
        if !self.is_open(tag) {
            return;
        }
        if let LinkDeparture::Abort = how {
            return self.abort_link(tag);
        }
        if let Some(at) = self.links.get_mut(tag) {
            at.phase = LinkPhase::Leaving(how);
            at.closes = true;
        }
        self.base.note_closing(tag);
        self.cancel_recv(tag);
        self.finish_link_close(tag);
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

/// The submission for a disk call; `None` for those that the kernel gives to a thread anyway.
fn disk_entry(call: DiskSyscall) -> Option<Entry> {
    let fd = Fd(call.fd);
    let entry = match call.kind {
        SyscallKind::Read { iov, count, offset } => match only_piece(iov, count) {
            Some((at, len)) => opcode::Read::new(fd, at, len).offset(offset).build(),
            None => opcode::Readv::new(fd, iov, count).offset(offset).build(),
        },
        SyscallKind::Write { iov, count, offset, durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            match only_piece(iov, count) {
                Some((at, len)) => opcode::Write::new(fd, at, len).offset(offset).rw_flags(flags).build(),
                None => opcode::Writev::new(fd, iov, count).offset(offset).rw_flags(flags).build(),
            }
        }
        SyscallKind::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        SyscallKind::Punch { .. }
        | SyscallKind::Zero { .. }
        | SyscallKind::NextData { .. }
        | SyscallKind::Prefetch { .. } => {
            return None;
        }
    };
    // Else this thread would wait.
    Some(if call.waits_for_others { entry.flags(squeue::Flags::ASYNC) } else { entry })
}

/// Address and length of a list's only piece, which the kernel takes without fetching a list. Most payloads are one.
fn only_piece(iov: *const libc::iovec, count: u32) -> Option<(*mut u8, u32)> {
    if count != 1 {
        return None;
    }
    // SAFETY: the list stands in its slot until the call has ended, and has so many pieces.
    let piece = unsafe { *iov };
    Some((piece.iov_base.cast(), u32::try_from(piece.iov_len).ok()?))
}

impl<M> World<M> for Uring<'_, M> {
    fn world_state(&mut self) -> &mut WorldState<M> {
        &mut self.base
    }

    fn collect_events(&mut self, wait: WaitLimit) {
        while let Some(tag) = self.base.poll_overdue_close() {
            self.abort_link(tag);
        }
        while let Some(tag) = self.base.poll_timed_out_dial() {
            self.fail_dial(tag, Errno(libc::ETIMEDOUT));
        }
        self.resume_listeners();
        self.retry_starved_recvs();
        let wait = match wait {
            WaitLimit::Until(until) if self.base.events.is_empty() => {
                let until = [until, self.recv_retry_time()].into_iter().flatten().min();
                Some(until.map(|until: Time| until.since(clock::now())))
            }
            WaitLimit::Until(_) | WaitLimit::No => None,
        };
        self.ring.submit(wait);
        self.ring.clear_eventfd();
        self.ring.sync_completions();
        while let Some(completion) = self.ring.next_completion() {
            self.handle_completion(completion);
        }
        self.ring.sync_completions();
        self.base.kept = self.stages.as_ref().map_or(0, ProvidedBuffers::memory_bytes);
        self.base.counters.syscalls.set(self.ring.enters);
    }

    fn has_events(&mut self) -> bool {
        self.ring.has_pending_work()
    }

    fn install_link(&mut self, fd: OwnedFd, how: LinkArrival<M>) {
        match self.links.insert(Link::new(fd, LinkPhase::Open)) {
            Ok(tag) => self.base.events.push_back(EndpointEvent::Arrival(link_from_tag(tag), how)),
            Err(link) => {
                socket::reset_on_close(&link.fd);
                self.base.refuse_link(how);
            }
        }
    }

    fn duplicate_links(&mut self, links: &[LinkId]) -> io::Result<Vec<OwnedFd>> {
        let one = |link: &LinkId| {
            let at = self.links.get_mut(tag_from_link(*link));
            let at =
                at.filter(|at| matches!(at.phase, LinkPhase::Open)).ok_or(io::ErrorKind::NotConnected)?;
            // The other process knows nothing of our buffer.
            at.send_buffer.restore_buffer(&at.fd);
            at.fd.try_clone()
        };
        links.iter().map(one).collect()
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

    fn abort_all_links(&mut self) {
        let tags: Vec<Tag> = self.links.iter().map(|(tag, _)| tag).collect();
        for tag in tags {
            self.abort_link(tag);
        }
    }

    fn link_count(&self) -> usize {
        self.links.len()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ring.fd(&self.base.waker)
    }

    fn next_deadline(&mut self) -> Option<Time> {
        if self.ring.has_unsubmitted() || self.ring.has_pending_work() {
            return Some(self.base.now);
        }
        [self.base.next_deadline(), self.recv_retry_time()].into_iter().flatten().min()
    }

    fn ops_in_flight(&mut self) -> usize {
        self.links.len() + self.base.disk_calls.in_use()
    }
}

impl<M> Drop for Uring<'_, M> {
    fn drop(&mut self) {
        let Some(stages) = self.stages.take() else { return };
        if self.recvs.in_use() == 0 && self.sends.in_use() == 0 && self.base.disk_calls.in_use() == 0 {
            return stages.unregister(&self.ring.submitter);
        }
        // Only a panic brings us here with operations out. The kernel may still write to their memory (of
        // disk operations the base takes care).
        std::mem::forget(stages);
        std::mem::forget(std::mem::replace(&mut self.recvs, SlotTable::new()));
        std::mem::forget(std::mem::replace(&mut self.sends, SlotTable::new()));
    }
}

#[cfg(test)]
mod tests {
    use crate::denied_syscalls;

    #[test]
    fn a_filter_that_refuses_one_call_of_io_uring_is_seen_before_a_shard_starts() {
        for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_register, libc::SYS_io_uring_enter] {
            denied_syscalls::run_with_denied(&[call], libc::EPERM, || {
                assert!(super::probe().is_err(), "system call {call} is refused");
            });
        }
    }
}
