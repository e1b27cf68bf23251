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
use super::block::Status;
use super::inflight::Inflight;
use super::memory::Memory;
use super::message::{self, PAYLOAD_MAX};
use super::ring::Ring;
use crate::disk::Disk;
use crate::event_loop::{EventHandler, StopMode};
use crate::requests::{Ended, RequestKind, Requests};
use crate::socket::AcceptGate;
use crate::wait::{EventKey, Ready, Waiter};

const LISTENER: EventKey = EventKey(0);
const PEER: EventKey = EventKey(1);
/// Kicks: this and the queue's number, the session's in the upper half.
const KICKS: u64 = 16;
/// Descriptors that one message brings.
const DESCRIPTORS_MAX: usize = message::REGIONS_PER_MESSAGE;
const INPUT: usize = message::HEADER + PAYLOAD_MAX;

/// The server's name for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTo {
    session: u32,
    queue: u16,
    head: u16,
}

#[derive(Default)]
struct Queue {
    ring: Ring,
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
    inflight: Option<Inflight>,
}

/// A front end.
struct Peer {
    fd: OwnedFd,
    input: Box<[u8]>,
    have: usize,
    descriptors: SmallVec<[OwnedFd; DESCRIPTORS_MAX]>,
    features: u64,
    protocol_features: u64,
    memory: Memory,
    queues: Vec<Queue>,
    backend: Option<OwnedFd>,
    write_back: bool,
    /// A ring that is to be answered as stopped when it is.
    stopping: Option<(u32, u32)>,
}

pub(super) struct VhostHandler<'a> {
    server: &'a Backend,
    requests: Requests<ReplyTo>,
    geometry: Geometry,
    read_only: bool,
    session: u32,
    peer: Option<Peer>,
    gate: AcceptGate,
    stopped: bool,
    out: Vec<u8>,
}

impl<'a> VhostHandler<'a> {
    pub(super) fn new(server: &'a Backend, disk: &dyn Disk) -> Self {
        let requests = Requests::new(disk, server.settings.depth, server.statistics.clone());
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
    fn look(&mut self, disk: &dyn Disk) {
        self.geometry = disk.geometry();
        self.read_only = disk.is_read_only();
    }

    fn watch_listener(&mut self, waiter: &Waiter) -> io::Result<()> {
        let may = !self.stopped && self.peer.is_none() && self.requests.in_flight() == 0;
        self.gate.watch(&self.server.socket, LISTENER, waiter, may)
    }

    fn accept(&mut self, waiter: &Waiter) -> io::Result<()> {
        let Some(fd) = self.gate.accept(&self.server.socket) else { return self.watch_listener(waiter) };
        if waiter.add(fd.as_fd(), PEER, true, false).is_err() {
            // It connects again.
            self.gate.pause();
            return self.watch_listener(waiter);
        }
        self.session = self.session.wrapping_add(1);
        self.peer = Some(Peer {
            fd,
            input: vec![0; INPUT].into(),
            have: 0,
            descriptors: SmallVec::new(),
            features: 0,
            protocol_features: 0,
            memory: Memory::default(),
            queues: (0..self.server.queues()).map(|_| Queue::default()).collect(),
            backend: None,
            write_back: true,
            stopping: None,
        });
        self.server.statistics.clients(1);
        self.watch_listener(waiter)
    }

    fn end_session(&mut self, waiter: &Waiter) -> io::Result<()> {
        let Some(mut peer) = self.peer.take() else { return Ok(()) };
        waiter.remove(peer.fd.as_fd())?;
        for queue in &mut peer.queues {
            queue.forget_kick(waiter)?;
        }
        self.server.statistics.clients(0);
        Ok(())
    }
}

impl EventHandler for VhostHandler<'_> {
    type Token = ReplyTo;

    fn requests(&mut self) -> &mut Requests<ReplyTo> {
        &mut self.requests
    }

    fn handle_ready(&mut self, disk: &mut dyn Disk, waiter: &Waiter, ready: Ready) -> io::Result<()> {
        match ready.key {
            LISTENER => return self.accept(waiter),
            PEER => {
                let is_stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
                if (ready.hung_up && is_stopping) || self.hear(disk, waiter).is_err() {
                    return self.end_session(waiter);
                }
            }
            EventKey(key) if key >> 32 == u64::from(self.session) => {
                let index = (key & 0xffff_ffff).saturating_sub(KICKS) as usize;
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
                            queue.forget_kick(waiter)?;
                        }
                    }
                }
            }
            EventKey(_) => {}
        }
        Ok(())
    }

    fn handle_ended(&mut self, ended: Ended<ReplyTo>) -> io::Result<()> {
        let ReplyTo { session, queue, head } = ended.token;
        let Some(peer) = self.peer.as_mut().filter(|_| session == self.session) else { return Ok(()) };
        let Some(queue) = peer.queues.get_mut(usize::from(queue)) else { return Ok(()) };
        let mut status = match ended.result {
            Ok(()) => Status::Ok,
            Err(crate::RequestError::Unsupported) => Status::Unsupported,
            Err(_) => Status::Failed,
        };
        let mut written = 0;
        if status == Status::Ok && ended.ask == RequestKind::Read {
            let chain = queue.ring.chain(head).ok();
            match chain.map(|chain| chain.writable.write_sg(&peer.memory, 0, &ended.data)) {
                Some(Ok(())) => written = ended.data.len(),
                Some(Err(_)) | None => status = Status::Failed,
            }
        }
        if queue.finish(&peer.memory, head, status, written).is_err() {
            queue.break_down();
        }
        Ok(())
    }

    fn handle_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.look(disk);
        if let Some(backend) = self.peer.as_ref().and_then(|peer| peer.backend.as_ref()) {
            let bytes = message::backend_message(message::BACKEND_CONFIG_CHANGE);
            // A front end that does not listen learns it when it reads the configuration next.
            let _ = rustix::net::send(backend, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Ok(())
    }

    fn advance(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool> {
        self.look(disk);
        let mut started = false;
        for index in 0..self.peer.as_ref().map_or(0, |peer| peer.queues.len()) {
            started |= self.serve(disk, index as u16);
            if let Some(peer) = &mut self.peer {
                // cannot fail: a session's queues are as many from its begin to its end.
                peer.queues[index].call();
            }
        }
        let stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
        if stopping && (self.answer_stopped(waiter).is_err() || self.hear(disk, waiter).is_err()) {
            self.end_session(waiter)?;
        }
        self.watch_listener(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.gate.poll_timeout()
    }

    fn is_short(&self) -> bool {
        let queues = self.peer.as_ref().map_or(&[][..], |peer| &peer.queues);
        queues.iter().any(|queue| queue.parked.is_some())
    }

    fn stop(&mut self, waiter: &Waiter, how: StopMode) -> bool {
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

    fn is_over(&self) -> bool {
        self.stopped && self.peer.is_none()
    }
}
