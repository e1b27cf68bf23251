//! Messages of a front end in one session, and their replies.
//!
//! Invariants: descriptors belong to the message with which they arrived; a ring is answered as stopped only
//! when nothing of it is in flight, and later messages are handled after that answer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use smallvec::SmallVec;
use zerocopy::IntoBytes;

use super::{FDS_PER_MESSAGE_MAX, FIRST_KICK_KEY, FrontEnd, PEER_KEY, VhostHandler, VhostQueue};
use crate::disk::Disk;
use crate::event_waiter::{EpollWaiter, EventKey};
use crate::vhost::block::{self, BlockConfig, WCE_OFFSET};
use crate::vhost::inflight;
use crate::vhost::memory::REGIONS_MAX;
use crate::vhost::message::{self, Message, feature, protocol_feature};
use crate::vhost::ring::BrokenQueue;

const OFFERED_PROTOCOL_FEATURES: u64 = protocol_feature::MQ
    | protocol_feature::REPLY_ACK
    | protocol_feature::BACKEND_REQ
    | protocol_feature::CONFIG
    | protocol_feature::INFLIGHT_SHMFD
    | protocol_feature::RESET_DEVICE
    | protocol_feature::CONFIGURE_MEM_SLOTS;

/// Why a session ends: the front end said what it must not, or is gone.
pub(super) struct SessionEnd;

impl From<message::Malformed> for SessionEnd {
    fn from(_: message::Malformed) -> Self {
        SessionEnd
    }
}

impl VhostHandler<'_> {
    /// Takes what the front end says.
    pub(super) fn receive_messages(
        &mut self,
        disk: &dyn Disk,
        waiter: &EpollWaiter,
    ) -> Result<(), SessionEnd> {
        loop {
            // One call hears many messages, and each is answered by what holds then.
            self.refresh_geometry(disk);
            let Some(peer) = &mut self.peer else { return Ok(()) };
            // A ring is being stopped: what is said next is heard when it has been.
            if peer.stopping.is_some() {
                return Ok(());
            }
            // cannot fail: `receive_once` fills what it is given, which ends with the input.
            match message::parse_input(&peer.input[..peer.have])? {
                Some((used, envelope)) => {
                    peer.input.copy_within(used..peer.have, 0);
                    peer.have -= used;
                    let files = std::mem::take(&mut peer.descriptors);
                    self.handle_message(waiter, envelope, files)?;
                }
                None => {
                    if !peer.receive_once()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn handle_message(
        &mut self,
        waiter: &EpollWaiter,
        envelope: message::ReceivedMessage,
        mut files: SmallVec<[OwnedFd; FDS_PER_MESSAGE_MAX]>,
    ) -> Result<(), SessionEnd> {
        let session = self.session;
        let features = block::offered_features(self.read_only);
        let queues = self.server.queue_count();
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let request = envelope.request;
        self.out.clear();
        let out = &mut self.out;
        let done: Result<(), BrokenQueue> = match envelope.message {
            Message::GetFeatures => {
                let all = features
                    | feature::VERSION_1
                    | feature::RING_EVENT_IDX
                    | feature::RING_INDIRECT_DESC
                    | feature::PROTOCOL_FEATURES;
                return peer.send_reply(out, request, &[&all.to_ne_bytes()]);
            }
            Message::SetFeatures(features) => {
                peer.set_features(features);
                Ok(())
            }
            Message::GetProtocolFeatures => {
                return peer.send_reply(out, request, &[&OFFERED_PROTOCOL_FEATURES.to_ne_bytes()]);
            }
            Message::SetProtocolFeatures(features) => {
                peer.protocol_features = features & OFFERED_PROTOCOL_FEATURES;
                Ok(())
            }
            Message::GetQueueCount => {
                return peer.send_reply(out, request, &[&u64::from(queues).to_ne_bytes()]);
            }
            Message::GetRegionsMax => {
                return peer.send_reply(out, request, &[&(REGIONS_MAX as u64).to_ne_bytes()]);
            }
            Message::SetOwner => Ok(()),
            Message::Reset => {
                peer.queues.iter_mut().for_each(|queue| queue.enabled = false);
                Ok(())
            }
            Message::SetMemory(regions) => {
                if regions.len() != files.len() {
                    return Err(SessionEnd);
                }
                peer.memory.clear();
                let added = regions
                    .iter()
                    .zip(files.drain(..))
                    .all(|(at, file)| peer.memory.map_region(*at, file).is_ok());
                peer.map_rings();
                if added { Ok(()) } else { Err(BrokenQueue) }
            }
            Message::AddRegion(at) => {
                let file = files.pop().ok_or(SessionEnd)?;
                let added = peer.memory.map_region(at, file).map_err(|_| BrokenQueue);
                peer.map_rings();
                added
            }
            Message::RemoveRegion(at) => {
                let removed = peer.memory.remove_region(at);
                peer.map_rings();
                if removed { Ok(()) } else { Err(BrokenQueue) }
            }
            Message::SetRingSize(index, size) => peer.queue(index)?.ring.set_size(size),
            Message::SetRingAt(index, at) => {
                let memory = std::mem::take(&mut peer.memory);
                let done = peer.queue(index).map(|queue| queue.ring.set_addresses(at, &memory));
                peer.memory = memory;
                done?
            }
            Message::SetRingBase(index, base) => peer.queue(index)?.ring.set_available_base(base),
            Message::GetRingBase(index) => {
                peer.queue(index)?;
                peer.stopping = Some((index, request));
                waiter.change_fd(peer.fd.as_fd(), PEER_KEY, false, false).map_err(|_| SessionEnd)?;
                return self.reply_ring_stopped(waiter);
            }
            Message::SetKick(index, true) => {
                let kick = set_nonblocking(files.pop().ok_or(SessionEnd)?)?;
                peer.start_queue(waiter, session, index, kick)?;
                Ok(())
            }
            // Without a kick the ring would have to be looked at all the time.
            Message::SetKick(_, false) => Err(BrokenQueue),
            Message::SetCall(index, some) => {
                peer.queue(index)?.call = files.pop().filter(|_| some).map(set_nonblocking).transpose()?;
                Ok(())
            }
            Message::SetError(index, some) => {
                peer.queue(index)?.error = files.pop().filter(|_| some).map(set_nonblocking).transpose()?;
                Ok(())
            }
            Message::SetRingEnabled(index, on) => {
                let queue = peer.queue(index)?;
                queue.enabled = on;
                queue.kicked = true;
                Ok(())
            }
            Message::SetBackendSocket => {
                peer.backend = Some(files.pop().ok_or(SessionEnd)?);
                Ok(())
            }
            Message::GetConfig(at) => {
                let mut bytes = [0; message::CONFIG_MAX];
                let config = BlockConfig::new(&self.geometry, queues, peer.write_back);
                bytes[..size_of::<BlockConfig>()].copy_from_slice(config.as_bytes());
                // cannot fail: the message's parser refuses what is not within CONFIG_MAX.
                let range = at.offset as usize..(at.offset + at.size) as usize;
                return peer.send_reply(out, request, &[at.as_bytes(), &bytes[range]]);
            }
            Message::SetConfig(at, bytes) => match (at.offset, &bytes[..]) {
                (WCE_OFFSET, [on]) => {
                    peer.write_back = *on != 0;
                    Ok(())
                }
                _ => Err(BrokenQueue),
            },
            Message::GetInflight(asked) => {
                if asked.queues > queues {
                    return Err(SessionEnd);
                }
                let (file, at) = inflight::create_records(asked).map_err(|_| SessionEnd)?;
                message::append_reply(out, request, &[at.as_bytes()]);
                return peer.send_with_fd(out, &file);
            }
            Message::SetInflight(at) => {
                let file = files.pop().ok_or(SessionEnd)?;
                if peer.queues.iter().any(|queue| queue.ring.chains_in_flight() > 0) {
                    // What is out is noted in the record that was there when it was taken.
                    return Err(SessionEnd);
                }
                let records = inflight::open_records(file.as_fd(), at).map_err(|_| SessionEnd)?;
                for (queue, record) in peer.queues.iter_mut().zip(records) {
                    queue.inflight = Some(record);
                }
                Ok(())
            }
            Message::Unknown(_) => Err(BrokenQueue),
        };
        if envelope.need_reply && peer.protocol_features & protocol_feature::REPLY_ACK != 0 {
            return peer.send_reply(out, request, &[&u64::from(done.is_err()).to_ne_bytes()]);
        }
        Ok(())
    }

    /// Answers that a ring has stopped, once nothing of it is in flight.
    pub(super) fn reply_ring_stopped(&mut self, waiter: &EpollWaiter) -> Result<(), SessionEnd> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let Some((index, request)) = peer.stopping else { return Ok(()) };
        let queue = peer.queue(index)?;
        // What was taken and has no room will be taken again by who goes on.
        let left = queue.again.len() + usize::from(queue.parked.is_some());
        if queue.ring.chains_in_flight() > left {
            return Ok(());
        }
        queue.return_unstarted();
        queue.remove_kick(waiter).map_err(|_| SessionEnd)?;
        let base = u32::from(queue.ring.next_available);
        queue.ring.unmap_ring();
        peer.stopping = None;
        waiter.change_fd(peer.fd.as_fd(), PEER_KEY, true, false).map_err(|_| SessionEnd)?;
        self.out.clear();
        peer.send_reply(&mut self.out, request, &[&index.to_ne_bytes(), &base.to_ne_bytes()])
    }
}

/// What is read or written to say that something happened: whatever the front end gave, it never waits.
fn set_nonblocking(file: OwnedFd) -> Result<OwnedFd, SessionEnd> {
    rustix::io::ioctl_fionbio(&file, true).map_err(|_| SessionEnd)?;
    Ok(file)
}

impl FrontEnd {
    fn queue(&mut self, index: u32) -> Result<&mut VhostQueue, SessionEnd> {
        self.queues.get_mut(index as usize).ok_or(SessionEnd)
    }

    fn set_features(&mut self, features: u64) {
        self.features = features;
        for queue in &mut self.queues {
            queue.ring.event_index = features & feature::RING_EVENT_IDX != 0;
            queue.ring.indirect = features & feature::RING_INDIRECT_DESC != 0;
        }
    }

    fn map_rings(&mut self) {
        for queue in self.queues.iter_mut().filter(|queue| queue.kick.is_some()) {
            // A ring that is nowhere is not looked at.
            let _ = queue.ring.map_ring(&self.memory);
        }
    }

    fn start_queue(
        &mut self,
        waiter: &EpollWaiter,
        session: u32,
        index: u32,
        kick: OwnedFd,
    ) -> Result<(), SessionEnd> {
        let memory = std::mem::take(&mut self.memory);
        let queue = self.queue(index)?;
        queue.remove_kick(waiter).map_err(|_| SessionEnd)?;
        let key = EventKey(u64::from(session) << 32 | (FIRST_KICK_KEY + u64::from(index)));
        // Kicks that came before are still in the descriptor.
        waiter.add_fd(kick.as_fd(), key, true, false).map_err(|_| SessionEnd)?;
        queue.kick = Some(kick);
        queue.broken = false;
        queue.kicked = true;
        if let Some(inflight) = &mut queue.inflight
            && queue.ring.chains_in_flight() == 0
        {
            let used = queue.ring.next_used_index();
            let heads = inflight.recover_in_flight(queue.ring.size(), used);
            for head in heads {
                if queue.ring.take_chain(&memory, head).is_ok() {
                    queue.again.push_back(head);
                }
            }
            queue.ring.next_available = used.wrapping_add(queue.again.len() as u16);
        }
        self.memory = memory;
        Ok(())
    }

    /// Receives once. False: there is nothing more.
    fn receive_once(&mut self) -> Result<bool, SessionEnd> {
        let mut space =
            [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // Only the message that is being read, so that descriptors belong to the one they came with.
        let want = if self.have < message::HEADER_LEN {
            message::HEADER_LEN
        } else {
            let size = self.input.get(8..12).and_then(|bytes| bytes.first_chunk::<4>()).ok_or(SessionEnd)?;
            message::HEADER_LEN + u32::from_ne_bytes(*size) as usize
        };
        let room = self.input.get_mut(self.have..want).ok_or(SessionEnd)?;
        let mut bytes = [io::IoSliceMut::new(room)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let came = match rustix::net::recvmsg(&self.fd, &mut bytes, &mut control, flags) {
            Ok(came) => came,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(_) => return Err(SessionEnd),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.descriptors.extend(files);
            }
        }
        let too_many =
            self.descriptors.len() > FDS_PER_MESSAGE_MAX || came.flags.contains(ReturnFlags::CTRUNC);
        if came.bytes == 0 || too_many {
            return Err(SessionEnd);
        }
        self.have += came.bytes;
        Ok(true)
    }

    fn send_reply(&mut self, out: &mut Vec<u8>, request: u32, parts: &[&[u8]]) -> Result<(), SessionEnd> {
        message::append_reply(out, request, parts);
        // A front end that reads no answers is of no use.
        match rustix::net::send(&self.fd, out, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) if n == out.len() => Ok(()),
            _ => Err(SessionEnd),
        }
    }

    fn send_with_fd(&mut self, out: &[u8], file: &OwnedFd) -> Result<(), SessionEnd> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::sendmsg(&self.fd, &[io::IoSlice::new(out)], &mut control, flags) {
            Ok(n) if n == out.len() => Ok(()),
            _ => Err(SessionEnd),
        }
    }
}
