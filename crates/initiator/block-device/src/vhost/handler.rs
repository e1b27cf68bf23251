//! A front end's session: its messages, its rings, and the requests from them.
//!
//! Invariants: one front end at a time, and no new one before every operation of the last has ended, so that
//! nothing old lands after something new; a ring is answered as stopped only when nothing of it is in flight;
//! a broken ring does not affect others.

mod messages;
mod rings;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use buf::Time;
use rustix::net::SendFlags;
use smallvec::SmallVec;
use volume::Geometry;

use super::Backend;
use super::block::RequestStatus;
use super::inflight::InflightRecord;
use super::memory::GuestMemory;
use super::message::{self, PAYLOAD_MAX};
use super::ring::SplitRing;
use crate::disk::Disk;
use crate::event_loop::{EventHandler, StopMode};
use crate::event_waiter::{EpollWaiter, EventKey, ReadyEvent};
use crate::requests::{EndedRequest, RequestKind, RequestTable};
use crate::socket::AcceptGate;

const LISTENER_KEY: EventKey = EventKey(0);
const PEER_KEY: EventKey = EventKey(1);
/// Kicks: this and the queue's number, the session's in the upper half.
const FIRST_KICK_KEY: u64 = 16;
/// Descriptors that one message brings.
const FDS_PER_MESSAGE_MAX: usize = message::REGIONS_PER_MESSAGE;
const INPUT_BUFFER_LEN: usize = message::HEADER_LEN + PAYLOAD_MAX;

/// The server's name for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingReply {
    session: u32,
    queue: u16,
    head: u16,
}

#[derive(Default)]
struct VhostQueue {
    ring: SplitRing,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    enabled: bool,
    broken: bool,
    /// Whether there may be something to take.
    kicked: bool,
    /// Whether something was given back.
    given_back: bool,
    /// Taken, and without room or memory.
    parked: Option<u16>,
    /// To be carried out again.
    again: VecDeque<u16>,
    inflight: Option<InflightRecord>,
}

/// A front end.
struct FrontEnd {
    fd: OwnedFd,
    input: Box<[u8]>,
    have: usize,
    descriptors: SmallVec<[OwnedFd; FDS_PER_MESSAGE_MAX]>,
    features: u64,
    protocol_features: u64,
    memory: GuestMemory,
    queues: Vec<VhostQueue>,
    backend: Option<OwnedFd>,
    write_back: bool,
    /// A ring that is to be answered as stopped when it is.
    stopping: Option<(u32, u32)>,
}

pub(super) struct VhostHandler<'a> {
    server: &'a Backend,
    requests: RequestTable<PendingReply>,
    geometry: Geometry,
    read_only: bool,
    session: u32,
    peer: Option<FrontEnd>,
    gate: AcceptGate,
    stopped: bool,
    out: Vec<u8>,
}

impl<'a> VhostHandler<'a> {
    pub(super) fn new(server: &'a Backend, disk: &dyn Disk) -> Self {
        let requests = RequestTable::new(disk, server.settings.depth, server.statistics.clone());
        VhostHandler {
            server,
            requests,
            geometry: disk.geometry(),
            read_only: disk.is_read_only(),
            session: 0,
            peer: None,
            gate: AcceptGate::default(),
            stopped: false,
            out: Vec::new(),
        }
    }

    /// What a machine is told of the volume is as the volume is now. Requests are judged by the disk itself.
    fn refresh_geometry(&mut self, disk: &dyn Disk) {
        self.geometry = disk.geometry();
        self.read_only = disk.is_read_only();
    }

    fn watch_listener(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let may = !self.stopped && self.peer.is_none() && self.requests.in_flight() == 0;
        self.gate.update_watch(&self.server.socket, LISTENER_KEY, waiter, may)
    }

    fn accept(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let Some(fd) = self.gate.accept(&self.server.socket) else { return self.watch_listener(waiter) };
        if waiter.add_fd(fd.as_fd(), PEER_KEY, true, false).is_err() {
            // It connects again.
            self.gate.pause_accepting();
            return self.watch_listener(waiter);
        }
        self.session = self.session.wrapping_add(1);
        self.peer = Some(FrontEnd {
            fd,
            input: vec![0; INPUT_BUFFER_LEN].into(),
            have: 0,
            descriptors: SmallVec::new(),
            features: 0,
            protocol_features: 0,
            memory: GuestMemory::default(),
            queues: (0..self.server.queue_count()).map(|_| VhostQueue::default()).collect(),
            backend: None,
            write_back: true,
            stopping: None,
        });
        self.server.statistics.set_clients(1);
        self.watch_listener(waiter)
    }

    fn end_session(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        let Some(mut peer) = self.peer.take() else { return Ok(()) };
        waiter.remove_fd(peer.fd.as_fd())?;
        for queue in &mut peer.queues {
            queue.remove_kick(waiter)?;
        }
        self.server.statistics.set_clients(0);
        Ok(())
    }
}

impl EventHandler for VhostHandler<'_> {
    type Token = PendingReply;

    fn requests(&mut self) -> &mut RequestTable<PendingReply> {
        &mut self.requests
    }

    fn handle_ready(
        &mut self,
        disk: &mut dyn Disk,
        waiter: &EpollWaiter,
        ready: ReadyEvent,
    ) -> io::Result<()> {
        match ready.key {
            LISTENER_KEY => return self.accept(waiter),
            PEER_KEY => {
                let is_stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
                if (ready.hung_up && is_stopping) || self.receive_messages(disk, waiter).is_err() {
                    return self.end_session(waiter);
                }
            }
            EventKey(key) if key >> 32 == u64::from(self.session) => {
                let index = (key & 0xffff_ffff).saturating_sub(FIRST_KICK_KEY) as usize;
                let queue = self.peer.as_mut().and_then(|peer| peer.queues.get_mut(index));
                if let Some(queue) = queue {
                    queue.kicked = true;
                    if let Some(kick) = &queue.kick {
                        // A descriptor that does not behave as an eventfd would keep us awake for ever, and
                        // so would one whose other side is gone.
                        let mut count = [0; 8];
                        let is_spurious = |read| read == Err(rustix::io::Errno::AGAIN) && !ready.hung_up;
                        let read = rustix::io::read(kick, &mut count);
                        if read != Ok(count.len()) && !is_spurious(read) {
                            queue.remove_kick(waiter)?;
                        }
                    }
                }
            }
            EventKey(_) => {}
        }
        Ok(())
    }

    fn handle_request_ended(&mut self, ended: EndedRequest<PendingReply>) -> io::Result<()> {
        let PendingReply { session, queue, head } = ended.token;
        let Some(peer) = self.peer.as_mut().filter(|_| session == self.session) else { return Ok(()) };
        let Some(queue) = peer.queues.get_mut(usize::from(queue)) else { return Ok(()) };
        let mut status = match ended.result {
            Ok(()) => RequestStatus::Ok,
            Err(crate::RequestError::Unsupported) => RequestStatus::Unsupported,
            Err(_) => RequestStatus::Failed,
        };
        let mut written = 0;
        if status == RequestStatus::Ok && ended.ask == RequestKind::Read {
            let chain = queue.ring.taken_chain(head).ok();
            match chain.map(|chain| chain.writable.write_sg(&peer.memory, 0, &ended.data)) {
                Some(Ok(())) => written = ended.data.len(),
                Some(Err(_)) | None => status = RequestStatus::Failed,
            }
        }
        if queue.finish_chain(&peer.memory, head, status, written).is_err() {
            queue.mark_broken();
        }
        Ok(())
    }

    fn handle_geometry_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.refresh_geometry(disk);
        if let Some(backend) = self.peer.as_ref().and_then(|peer| peer.backend.as_ref()) {
            let bytes = message::backend_message(message::BACKEND_CONFIG_CHANGE);
            // A front end that does not listen learns it when it reads the configuration next.
            let _ = rustix::net::send(backend, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &EpollWaiter) -> io::Result<bool> {
        self.refresh_geometry(disk);
        let mut started = false;
        for index in 0..self.peer.as_ref().map_or(0, |peer| peer.queues.len()) {
            started |= self.serve_queue(disk, index as u16);
            if let Some(peer) = &mut self.peer {
                // cannot fail: a session's queues are as many from its begin to its end.
                peer.queues[index].call_driver();
            }
        }
        let stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
        if stopping
            && (self.reply_ring_stopped(waiter).is_err() || self.receive_messages(disk, waiter).is_err())
        {
            self.end_session(waiter)?;
        }
        self.watch_listener(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.gate.poll_timeout()
    }

    fn waits_for_memory(&self) -> bool {
        let queues = self.peer.as_ref().map_or(&[][..], |peer| &peer.queues);
        queues.iter().any(|queue| queue.parked.is_some())
    }

    fn start_stop(&mut self, waiter: &EpollWaiter, how: StopMode) -> bool {
        self.stopped = true;
        // The machine keeps its disk until it lets go of it.
        let waits = how == StopMode::WhenDone && self.peer.is_some();
        if !waits {
            // An error would only say that it was not watched.
            let _ = self.end_session(waiter);
        }
        let _ = self.watch_listener(waiter);
        waits
    }

    fn is_finished(&self) -> bool {
        self.stopped && self.peer.is_none()
    }
}
