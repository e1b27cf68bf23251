//! A front end's session: its messages, its rings, and the requests from them.
//!
//! Invariants: one front end at a time, and no new one before every operation of the last has ended, so
//! that nothing old lands after something new; a ring is answered as stopped only when nothing of it is
//! in flight; a broken ring harms no other.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use buf::{Sg, Time};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags,
};
use smallvec::SmallVec;
use volume::Geometry;
use zerocopy::IntoBytes;

use super::block::{self, Config, HEADER, RANGE, Range, RequestHeader, Status, WCE, Wish};
use super::inflight::{self, Inflight};
use super::memory::{Memory, REGIONS_MAX};
use super::message::{self, Message, PAYLOAD_MAX, feature, protocol_feature};
use super::ring::{Broken, Ring};
use super::{Front, ID_MAX};
use crate::disk::Disk;
use crate::requests::{Ask, Ended, Parts, Request, Requests};
use crate::turn::{Face, Leave};
use crate::wait::{Key, Ready, Waiter};

const LISTENER: Key = Key(0);
const PEER: Key = Key(1);
/// Kicks: this and the queue's number, the session's in the upper half.
const KICKS: u64 = 16;
/// Descriptors that one message brings.
const DESCRIPTORS_MAX: usize = message::REGIONS_PER_MESSAGE;
const INPUT: usize = message::HEADER + PAYLOAD_MAX;

const PROTOCOL_FEATURES: u64 = protocol_feature::MQ
    | protocol_feature::REPLY_ACK
    | protocol_feature::BACKEND_REQ
    | protocol_feature::CONFIG
    | protocol_feature::INFLIGHT_SHMFD
    | protocol_feature::RESET_DEVICE
    | protocol_feature::CONFIGURE_MEM_SLOTS;

/// The front's name for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
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

pub(super) struct Server<'a> {
    front: &'a Front,
    requests: Requests<Token>,
    geometry: Geometry,
    read_only: bool,
    session: u32,
    peer: Option<Peer>,
    listening: bool,
    stopped: bool,
    out: Vec<u8>,
}

/// Why a session ends: the front end said what it must not, or is gone.
struct Ends;

impl From<message::Malformed> for Ends {
    fn from(_: message::Malformed) -> Self {
        Ends
    }
}

impl<'a> Server<'a> {
    pub(super) fn new(front: &'a Front, disk: &dyn Disk) -> Self {
        let requests = Requests::new(disk, front.settings.depth, front.statistics.clone());
        Server {
            front,
            requests,
            geometry: disk.geometry(),
            read_only: disk.is_read_only(),
            session: 0,
            peer: None,
            listening: false,
            stopped: false,
            out: Vec::new(),
        }
    }

    fn watch_listener(&mut self, waiter: &Waiter) -> io::Result<()> {
        let may = !self.stopped && self.peer.is_none() && self.requests.in_flight() == 0;
        if may != self.listening {
            self.listening = may;
            match may {
                true => waiter.add(self.front.socket.as_fd(), LISTENER, true, false)?,
                false => waiter.remove(self.front.socket.as_fd())?,
            }
        }
        Ok(())
    }

    fn accept(&mut self, waiter: &Waiter) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(fd) = rustix::net::accept_with(&self.front.socket, flags) else { return Ok(()) };
        waiter.add(fd.as_fd(), PEER, true, false)?;
        self.session = self.session.wrapping_add(1);
        self.peer = Some(Peer {
            fd,
            input: vec![0; INPUT].into(),
            have: 0,
            descriptors: SmallVec::new(),
            features: 0,
            protocol_features: 0,
            memory: Memory::default(),
            queues: (0..self.front.queues()).map(|_| Queue::default()).collect(),
            backend: None,
            write_back: true,
            stopping: None,
        });
        self.front.statistics.clients(1);
        self.watch_listener(waiter)
    }

    fn end_session(&mut self, waiter: &Waiter) -> io::Result<()> {
        let Some(mut peer) = self.peer.take() else { return Ok(()) };
        waiter.remove(peer.fd.as_fd())?;
        for queue in &mut peer.queues {
            queue.forget_kick(waiter)?;
        }
        self.front.statistics.clients(0);
        Ok(())
    }

    /// Takes what the front end says.
    fn hear(&mut self, waiter: &Waiter) -> Result<(), Ends> {
        loop {
            let Some(peer) = &mut self.peer else { return Ok(()) };
            // A ring is being stopped: what is said next is heard when it has been.
            if peer.stopping.is_some() {
                return Ok(());
            }
            match message::parse(&peer.input[..peer.have])? {
                Some((used, envelope)) => {
                    peer.input.copy_within(used..peer.have, 0);
                    peer.have -= used;
                    let files = std::mem::take(&mut peer.descriptors);
                    self.obey(waiter, envelope, files)?;
                }
                None => {
                    if !peer.receive()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn obey(
        &mut self,
        waiter: &Waiter,
        envelope: message::Envelope,
        mut files: SmallVec<[OwnedFd; DESCRIPTORS_MAX]>,
    ) -> Result<(), Ends> {
        let session = self.session;
        let features = block::features(self.read_only);
        let queues = self.front.queues();
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let request = envelope.request;
        self.out.clear();
        let out = &mut self.out;
        let done: Result<(), Broken> = match envelope.message {
            Message::GetFeatures => {
                let all = features
                    | feature::VERSION_1
                    | feature::RING_EVENT_IDX
                    | feature::RING_INDIRECT_DESC
                    | feature::PROTOCOL_FEATURES;
                return peer.say(out, request, &[&all.to_ne_bytes()]);
            }
            Message::SetFeatures(features) => {
                peer.set_features(features);
                Ok(())
            }
            Message::GetProtocolFeatures => {
                return peer.say(out, request, &[&PROTOCOL_FEATURES.to_ne_bytes()]);
            }
            Message::SetProtocolFeatures(features) => {
                peer.protocol_features = features & PROTOCOL_FEATURES;
                Ok(())
            }
            Message::GetQueueCount => {
                return peer.say(out, request, &[&u64::from(queues).to_ne_bytes()]);
            }
            Message::GetRegionsMax => {
                return peer.say(out, request, &[&(REGIONS_MAX as u64).to_ne_bytes()]);
            }
            Message::SetOwner => Ok(()),
            Message::Reset => {
                peer.queues.iter_mut().for_each(|queue| queue.enabled = false);
                Ok(())
            }
            Message::SetMemory(regions) => {
                if regions.len() != files.len() {
                    return Err(Ends);
                }
                peer.memory.clear();
                let added =
                    regions.iter().zip(files.drain(..)).all(|(at, file)| peer.memory.add(*at, file).is_ok());
                peer.find_rings();
                if added { Ok(()) } else { Err(Broken) }
            }
            Message::AddRegion(at) => {
                let file = files.pop().ok_or(Ends)?;
                let added = peer.memory.add(at, file).map_err(|_| Broken);
                peer.find_rings();
                added
            }
            Message::RemoveRegion(at) => {
                let removed = peer.memory.remove(at);
                peer.find_rings();
                if removed { Ok(()) } else { Err(Broken) }
            }
            Message::SetRingSize(index, size) => peer.queue(index)?.ring.set_size(size),
            Message::SetRingAt(index, at) => {
                let memory = std::mem::take(&mut peer.memory);
                let done = peer.queue(index).map(|queue| queue.ring.set_at(at, &memory));
                peer.memory = memory;
                done?
            }
            Message::SetRingBase(index, base) => {
                peer.queue(index)?.ring.next_available = base as u16;
                Ok(())
            }
            Message::GetRingBase(index) => {
                peer.queue(index)?;
                peer.stopping = Some((index, request));
                waiter.change(peer.fd.as_fd(), PEER, false, false).map_err(|_| Ends)?;
                return self.answer_stopped(waiter);
            }
            Message::SetKick(index, true) => {
                let kick = files.pop().ok_or(Ends)?;
                peer.start(waiter, session, index, kick)?;
                Ok(())
            }
            // Without a kick the ring would have to be looked at all the time.
            Message::SetKick(_, false) => Err(Broken),
            Message::SetCall(index, some) => {
                let file = files.pop();
                peer.queue(index)?.call = file.filter(|_| some);
                Ok(())
            }
            Message::SetError(index, some) => {
                let file = files.pop();
                peer.queue(index)?.error = file.filter(|_| some);
                Ok(())
            }
            Message::SetRingEnabled(index, on) => {
                let queue = peer.queue(index)?;
                queue.enabled = on;
                queue.kicked = true;
                Ok(())
            }
            Message::SetBackendSocket => {
                peer.backend = Some(files.pop().ok_or(Ends)?);
                Ok(())
            }
            Message::GetConfig(at) => {
                let mut bytes = [0; message::CONFIG_MAX];
                let config = Config::new(&self.geometry, queues, peer.write_back);
                bytes[..size_of::<Config>()].copy_from_slice(config.as_bytes());
                let range = at.offset as usize..(at.offset + at.size) as usize;
                return peer.say(out, request, &[at.as_bytes(), &bytes[range]]);
            }
            Message::SetConfig(at, bytes) => match (at.offset, &bytes[..]) {
                (WCE, [on]) => {
                    peer.write_back = *on != 0;
                    Ok(())
                }
                _ => Err(Broken),
            },
            Message::GetInflight(asked) => {
                if asked.queues > queues {
                    return Err(Ends);
                }
                let (file, at) = inflight::create(asked).map_err(|_| Ends)?;
                message::reply(out, request, &[at.as_bytes()]);
                return peer.send_with(out, &file);
            }
            Message::SetInflight(at) => {
                let file = files.pop().ok_or(Ends)?;
                let records = inflight::open(file.as_fd(), at).map_err(|_| Ends)?;
                for (queue, record) in peer.queues.iter_mut().zip(records) {
                    queue.inflight = Some(record);
                }
                Ok(())
            }
            Message::Unknown(_) => Err(Broken),
        };
        if envelope.need_reply && peer.protocol_features & protocol_feature::REPLY_ACK != 0 {
            return peer.say(out, request, &[&u64::from(done.is_err()).to_ne_bytes()]);
        }
        Ok(())
    }

    /// Answers that a ring has stopped, once nothing of it is in flight.
    fn answer_stopped(&mut self, waiter: &Waiter) -> Result<(), Ends> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let Some((index, request)) = peer.stopping else { return Ok(()) };
        let queue = peer.queue(index)?;
        // What was taken and has no room will be taken again by whoever goes on.
        let left = queue.again.len() + usize::from(queue.parked.is_some());
        if queue.ring.out() > left {
            return Ok(());
        }
        queue.put_back();
        queue.forget_kick(waiter).map_err(|_| Ends)?;
        let base = u32::from(queue.ring.next_available);
        queue.ring.stop();
        peer.stopping = None;
        waiter.change(peer.fd.as_fd(), PEER, true, false).map_err(|_| Ends)?;
        self.out.clear();
        peer.say(&mut self.out, request, &[&index.to_ne_bytes(), &base.to_ne_bytes()])
    }

    /// Takes what is in a ring. True if anything was started.
    fn serve(&mut self, disk: &mut dyn Disk, index: u16) -> bool {
        let mut started = false;
        while let Some(head) = self.next(index) {
            match self.begin(disk, index, head) {
                Ok(true) => started = true,
                Ok(false) => break,
                Err(Broken) => {
                    if let Some(peer) = &mut self.peer {
                        let queue = &mut peer.queues[usize::from(index)];
                        queue.ring.release(head);
                        queue.break_down();
                    }
                    break;
                }
            }
        }
        started
    }

    /// The next chain of a ring that is to be carried out.
    fn next(&mut self, index: u16) -> Option<u16> {
        let has_room = self.requests.has_room();
        let peer = self.peer.as_mut()?;
        let needs_enabling = peer.features & feature::PROTOCOL_FEATURES != 0;
        let is_stopping = peer.stopping.is_some_and(|(stopping, _)| stopping == u32::from(index));
        let queue = &mut peer.queues[usize::from(index)];
        let may = queue.kick.is_some() && queue.ring.is_placed() && !queue.broken && !is_stopping;
        if !may || !has_room || (needs_enabling && !queue.enabled) {
            return None;
        }
        if let Some(head) = queue.parked.take().or_else(|| queue.again.pop_front()) {
            return Some(head);
        }
        if !queue.kicked {
            return None;
        }
        let taken = queue.ring.pop(&peer.memory).and_then(|head| match head {
            Some(head) => Ok(Some(head)),
            None => {
                queue.ring.want_kicks()?;
                queue.ring.pop(&peer.memory)
            }
        });
        match taken {
            Ok(Some(head)) => {
                if let Some(inflight) = &mut queue.inflight {
                    inflight.taken(head);
                }
                Some(head)
            }
            Ok(None) => {
                queue.kicked = false;
                None
            }
            Err(Broken) => {
                queue.break_down();
                None
            }
        }
    }

    /// Starts what a chain asks; false if it is parked.
    fn begin(&mut self, disk: &mut dyn Disk, index: u16, head: u16) -> Result<bool, Broken> {
        let Some(peer) = &mut self.peer else { return Ok(false) };
        let stable = !peer.write_back || peer.features & block::feature::FLUSH == 0;
        let queue = &mut peer.queues[usize::from(index)];
        let chain = queue.ring.chain(head);
        let (payload, room) = (chain.readable.len().checked_sub(HEADER), chain.writable.len().checked_sub(1));
        let (Some(payload), Some(room)) = (payload, room) else { return Err(Broken) };
        let mut bytes = [0; HEADER];
        chain.readable.read(&peer.memory, 0, &mut bytes)?;
        let header: RequestHeader = zerocopy::transmute!(bytes);
        let wish = header.wish(payload, room, stable);
        let (ask, at, len) = match wish {
            Wish::Do(ask, at, len) => (ask, at, len),
            Wish::Discard | Wish::WriteZeroes => {
                let mut bytes = [0; RANGE];
                chain.readable.read(&peer.memory, HEADER, &mut bytes)?;
                let range: Range = zerocopy::transmute!(bytes);
                match range.ask(wish == Wish::Discard, stable) {
                    Ok(ask) => ask,
                    Err(status) => return queue.finish(&peer.memory, head, status, 0).map(|()| true),
                }
            }
            Wish::Identify => {
                let len = room.min(ID_MAX);
                chain.writable.write(&peer.memory, 0, &self.front.id()[..len])?;
                return queue.finish(&peer.memory, head, Status::Ok, len).map(|()| true);
            }
            Wish::Refuse(status) => return queue.finish(&peer.memory, head, status, 0).map(|()| true),
        };
        let token = Token { session: self.session, queue: index, head };
        let mut request = Request::new(token, ask, at, len);
        let is_within = at.checked_add(len).is_some_and(|end| end <= self.geometry.bytes());
        if matches!(ask, Ask::Write { .. }) && is_within && !self.read_only {
            match payload_of(&peer.memory, &self.geometry, chain, at, len)? {
                Some(lent) => request.lent = lent,
                None => match self.requests.memory(disk, at, len) {
                    Some(data) => request.data = data,
                    None => {
                        queue.parked = Some(head);
                        return Ok(false);
                    }
                },
            }
            if request.lent.is_empty() {
                copy_in(&self.requests, &peer.memory, chain, at, len, &mut request.data)?;
            }
        }
        if self.requests.start(disk, request).is_err() {
            queue.parked = Some(head);
            return Ok(false);
        }
        Ok(true)
    }
}

/// A write's payload where the guest has it, if the disk can take it as it lies there.
fn payload_of(
    memory: &Memory,
    geometry: &Geometry,
    chain: &super::ring::Chain,
    at: u64,
    len: u64,
) -> Result<Option<Sg>, Broken> {
    let block = u64::from(geometry.logical);
    let align = (geometry.dio_align as usize).max(1);
    let mut is_fit = len > 0 && at.is_multiple_of(block) && len.is_multiple_of(block);
    let mut lent = Sg::new();
    chain.readable.each(memory, HEADER, len as usize, |stretch| {
        if is_fit {
            let piece = stretch.memory.view(stretch.at, stretch.len);
            is_fit = piece.as_ptr().addr() % align == 0 && stretch.len % align == 0;
            lent.push(piece);
        }
    })?;
    Ok(is_fit.then_some(lent))
}

fn copy_in(
    requests: &Requests<Token>,
    memory: &Memory,
    chain: &super::ring::Chain,
    at: u64,
    len: u64,
    data: &mut Parts,
) -> Result<(), Broken> {
    let (mut from, mut result) = (HEADER, Ok(()));
    requests.slices(data, at, 0, len, |slice| {
        if result.is_ok() {
            result = chain.readable.read(memory, from, slice);
        }
        from += slice.len();
    });
    Ok(result?)
}

impl Peer {
    fn queue(&mut self, index: u32) -> Result<&mut Queue, Ends> {
        self.queues.get_mut(index as usize).ok_or(Ends)
    }

    fn set_features(&mut self, features: u64) {
        self.features = features;
        for queue in &mut self.queues {
            queue.ring.event_index = features & feature::RING_EVENT_IDX != 0;
            queue.ring.indirect = features & feature::RING_INDIRECT_DESC != 0;
        }
    }

    fn find_rings(&mut self) {
        for queue in self.queues.iter_mut().filter(|queue| queue.kick.is_some()) {
            // A ring that is nowhere is not looked at.
            let _ = queue.ring.find(&self.memory);
        }
    }

    fn start(&mut self, waiter: &Waiter, session: u32, index: u32, kick: OwnedFd) -> Result<(), Ends> {
        let memory = std::mem::take(&mut self.memory);
        let queue = self.queue(index)?;
        queue.forget_kick(waiter).map_err(|_| Ends)?;
        let key = Key(u64::from(session) << 32 | (KICKS + u64::from(index)));
        // Kicks that came before are still in the descriptor.
        waiter.add(kick.as_fd(), key, true, false).map_err(|_| Ends)?;
        queue.kick = Some(kick);
        queue.broken = false;
        queue.kicked = true;
        if let Some(inflight) = &mut queue.inflight
            && queue.ring.out() == 0
        {
            let used = queue.ring.next_used();
            let heads = inflight.recover(queue.ring.size(), used);
            for head in heads {
                if queue.ring.take(&memory, head).is_ok() {
                    queue.again.push_back(head);
                }
            }
            queue.ring.next_available = used.wrapping_add(queue.again.len() as u16);
        }
        self.memory = memory;
        Ok(())
    }

    /// Receives once. False: there is nothing more.
    fn receive(&mut self) -> Result<bool, Ends> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // Only the message that is being read, so that descriptors belong to the one they came with.
        let want = if self.have < message::HEADER {
            message::HEADER
        } else {
            let size = self.input.get(8..12).and_then(|bytes| bytes.first_chunk::<4>()).ok_or(Ends)?;
            message::HEADER + u32::from_ne_bytes(*size) as usize
        };
        let room = self.input.get_mut(self.have..want).ok_or(Ends)?;
        let mut bytes = [io::IoSliceMut::new(room)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came = match rustix::net::recvmsg(&self.fd, &mut bytes, &mut control, flags) {
            Ok(came) => came,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(_) => return Err(Ends),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.descriptors.extend(files);
            }
        }
        let too_many = self.descriptors.len() > DESCRIPTORS_MAX || came.flags.contains(ReturnFlags::CTRUNC);
        if came.bytes == 0 || too_many {
            return Err(Ends);
        }
        self.have += came.bytes;
        Ok(true)
    }

    fn say(&mut self, out: &mut Vec<u8>, request: u32, parts: &[&[u8]]) -> Result<(), Ends> {
        message::reply(out, request, parts);
        // A front end that reads no answers is of no use.
        match rustix::net::send(&self.fd, out, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) if n == out.len() => Ok(()),
            _ => Err(Ends),
        }
    }

    fn send_with(&mut self, out: &[u8], file: &OwnedFd) -> Result<(), Ends> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(&self.fd, &[io::IoSlice::new(out)], &mut control, flags) {
            Ok(n) if n == out.len() => Ok(()),
            _ => Err(Ends),
        }
    }
}

impl Queue {
    fn forget_kick(&mut self, waiter: &Waiter) -> io::Result<()> {
        match self.kick.take() {
            // The front end has it too, so closing it would not end what the waiter knows.
            Some(kick) => waiter.remove(kick.as_fd()),
            None => Ok(()),
        }
    }

    /// Gives back to the driver's side what was taken last and not begun.
    fn put_back(&mut self) {
        let waiting = self.parked.take().into_iter().chain(self.again.drain(..));
        for head in waiting.collect::<SmallVec<[u16; 4]>>() {
            self.ring.release(head);
            if self.inflight.is_none() {
                self.ring.next_available = self.ring.next_available.wrapping_sub(1);
            }
        }
    }

    /// Gives a chain back with its status.
    fn finish(&mut self, memory: &Memory, head: u16, status: Status, written: usize) -> Result<(), Broken> {
        self.ring.release(head);
        let chain = self.ring.chain(head);
        let last = chain.writable.len().checked_sub(1).ok_or(Broken)?;
        chain.writable.write(memory, last, &[status as u8])?;
        if let Some(inflight) = &self.inflight {
            inflight.giving_back(head);
        }
        self.ring.push(head, u32::try_from(written + 1).unwrap_or(u32::MAX))?;
        if let Some(inflight) = &self.inflight {
            inflight.given_back(head, self.ring.next_used());
        }
        self.given_back = true;
        Ok(())
    }

    /// The driver broke the rules: says so, and does no more.
    fn break_down(&mut self) {
        self.broken = true;
        if let Some(error) = &self.error {
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(error, &1_u64.to_ne_bytes());
        }
    }

    fn call(&mut self) {
        let wanted = std::mem::take(&mut self.given_back) && self.ring.wants_call().unwrap_or(false);
        if let Some(call) = self.call.as_ref().filter(|_| wanted) {
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}

impl Face for Server<'_> {
    type Token = Token;

    fn requests(&mut self) -> &mut Requests<Token> {
        &mut self.requests
    }

    fn handle_ready(&mut self, _disk: &mut dyn Disk, waiter: &Waiter, ready: Ready) -> io::Result<()> {
        match ready.key {
            LISTENER => return self.accept(waiter),
            PEER => {
                let is_stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
                if (ready.hung_up && is_stopping) || self.hear(waiter).is_err() {
                    return self.end_session(waiter);
                }
            }
            Key(key) if key >> 32 == u64::from(self.session) => {
                let index = (key & 0xffff_ffff).saturating_sub(KICKS) as usize;
                let queue = self.peer.as_mut().and_then(|peer| peer.queues.get_mut(index));
                if let Some(queue) = queue {
                    queue.kicked = true;
                    if let Some(kick) = &queue.kick {
                        // A descriptor that does not behave as an eventfd would keep us awake for ever.
                        let mut count = [0; 8];
                        if rustix::io::read(kick, &mut count).is_err() {
                            queue.forget_kick(waiter)?;
                        }
                    }
                }
            }
            Key(_) => {}
        }
        Ok(())
    }

    fn handle_ended(&mut self, ended: Ended<Token>) -> io::Result<()> {
        let Token { session, queue, head } = ended.token;
        let Some(peer) = self.peer.as_mut().filter(|_| session == self.session) else { return Ok(()) };
        let queue = &mut peer.queues[usize::from(queue)];
        let mut status = match ended.result {
            Ok(()) => Status::Ok,
            Err(crate::Trouble::Unsupported) => Status::Unsupported,
            Err(_) => Status::Failed,
        };
        let mut written = 0;
        if status == Status::Ok && ended.ask == Ask::Read {
            written = ended.data.len();
            if queue.ring.chain(head).writable.write_sg(&peer.memory, 0, &ended.data).is_err() {
                status = Status::Failed;
            }
        }
        if queue.finish(&peer.memory, head, status, written).is_err() {
            queue.break_down();
        }
        Ok(())
    }

    fn handle_change(&mut self, disk: &mut dyn Disk) -> io::Result<()> {
        self.geometry = disk.geometry();
        if let Some(backend) = self.peer.as_ref().and_then(|peer| peer.backend.as_ref()) {
            let bytes = message::backend_message(message::BACKEND_CONFIG_CHANGE);
            // A front end that does not listen learns it when it reads the configuration next.
            let _ = rustix::net::send(backend, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Ok(())
    }

    fn settle(&mut self, disk: &mut dyn Disk, waiter: &Waiter) -> io::Result<bool> {
        let mut started = false;
        for index in 0..self.peer.as_ref().map_or(0, |peer| peer.queues.len()) {
            started |= self.serve(disk, index as u16);
            if let Some(peer) = &mut self.peer {
                peer.queues[index].call();
            }
        }
        let stopping = self.peer.as_ref().is_some_and(|peer| peer.stopping.is_some());
        if stopping && (self.answer_stopped(waiter).is_err() || self.hear(waiter).is_err()) {
            self.end_session(waiter)?;
        }
        self.watch_listener(waiter)?;
        Ok(started)
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn stop(&mut self, waiter: &Waiter, how: Leave) -> bool {
        self.stopped = true;
        // The machine keeps its disk until it lets go of it.
        let waits = how == Leave::WhenDone && self.peer.is_some();
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
