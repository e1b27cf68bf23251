//! The rings of one session: requests are taken from them, and returned with their status.
//!
//! Invariant: a chain that was taken is returned once, or released with its ring; a broken ring does not
//! affect others.

use std::io;
use std::os::fd::AsFd;

use buf::Sg;
use smallvec::SmallVec;
use volume::Geometry;

use super::{PendingReply, VhostHandler, VhostQueue};
use crate::disk::Disk;
use crate::event_waiter::EpollWaiter;
use crate::requests::{Request, RequestKind, RequestTable, WriteMemory};
use crate::vhost::DEVICE_ID_LEN;
use crate::vhost::block::{
    self, BlockRequest, DISCARD_RANGE_LEN, DiscardRange, REQUEST_HEADER_LEN, RequestHeader, RequestStatus,
};
use crate::vhost::memory::GuestMemory;
use crate::vhost::message::feature;
use crate::vhost::ring::{BrokenQueue, DescriptorChain, RING_SIZE_MAX};

impl VhostHandler<'_> {
    /// Takes what is in a ring, at most as much as a ring holds: a driver that goes on adding keeps nobody else
    /// waiting. True if anything was started.
    pub(super) fn serve_queue(&mut self, disk: &mut dyn Disk, index: u16) -> bool {
        let mut started = false;
        for _ in 0..RING_SIZE_MAX {
            let Some(head) = self.next_chain(index) else { break };
            match self.start_chain(disk, index, head) {
                Ok(true) => started = true,
                Ok(false) => break,
                Err(BrokenQueue) => {
                    let queue = self.peer.as_mut().and_then(|peer| peer.queues.get_mut(usize::from(index)));
                    if let Some(queue) = queue {
                        queue.ring.mark_returned(head);
                        queue.mark_broken();
                    }
                    break;
                }
            }
        }
        started
    }

    /// The next chain of a ring that is to be carried out.
    fn next_chain(&mut self, index: u16) -> Option<u16> {
        let has_room = self.requests.has_room();
        let peer = self.peer.as_mut()?;
        let needs_enabling = peer.features & feature::PROTOCOL_FEATURES != 0;
        let is_stopping = peer.stopping.is_some_and(|(stopping, _)| stopping == u32::from(index));
        let queue = peer.queues.get_mut(usize::from(index))?;
        let may = queue.kick.is_some() && queue.ring.is_mapped() && !queue.broken && !is_stopping;
        if !may || !has_room || (needs_enabling && !queue.enabled) {
            return None;
        }
        if let Some(head) = queue.parked.take().or_else(|| queue.again.pop_front()) {
            return Some(head);
        }
        if !queue.kicked {
            return None;
        }
        let taken = queue.ring.pop_available(&peer.memory).and_then(|head| match head {
            Some(head) => Ok(Some(head)),
            None => {
                queue.ring.enable_kicks()?;
                queue.ring.pop_available(&peer.memory)
            }
        });
        match taken {
            Ok(Some(head)) => {
                if let Some(inflight) = &mut queue.inflight {
                    inflight.record_taken(head);
                }
                Some(head)
            }
            Ok(None) => {
                queue.kicked = false;
                None
            }
            Err(BrokenQueue) => {
                queue.mark_broken();
                None
            }
        }
    }

    /// Starts what a chain asks; false if it is parked.
    fn start_chain(&mut self, disk: &mut dyn Disk, index: u16, head: u16) -> Result<bool, BrokenQueue> {
        let Some(peer) = &mut self.peer else { return Ok(false) };
        let stable = !peer.write_back || peer.features & block::feature::FLUSH == 0;
        let queue = peer.queues.get_mut(usize::from(index)).ok_or(BrokenQueue)?;
        let chain = queue.ring.taken_chain(head)?;
        let (payload, room) = (
            chain.readable.len_bytes().checked_sub(REQUEST_HEADER_LEN),
            chain.writable.len_bytes().checked_sub(1),
        );
        let (Some(payload), Some(room)) = (payload, room) else { return Err(BrokenQueue) };
        let mut bytes = [0; REQUEST_HEADER_LEN];
        chain.readable.read(&peer.memory, 0, &mut bytes)?;
        let header: RequestHeader = zerocopy::transmute!(bytes);
        let request = header.parse_request(payload, room, stable);
        let (ask, at, len) = match request {
            BlockRequest::Do(ask, at, len) => (ask, at, len),
            BlockRequest::Discard | BlockRequest::WriteZeroes => {
                let mut bytes = [0; DISCARD_RANGE_LEN];
                chain.readable.read(&peer.memory, REQUEST_HEADER_LEN, &mut bytes)?;
                let range: DiscardRange = zerocopy::transmute!(bytes);
                match range.to_request(request == BlockRequest::Discard, stable) {
                    Ok(ask) => ask,
                    Err(status) => return queue.finish_chain(&peer.memory, head, status, 0).map(|()| true),
                }
            }
            BlockRequest::Identify => {
                let len = room.min(DEVICE_ID_LEN);
                chain.writable.write(&peer.memory, 0, &self.server.device_id()[..len])?;
                return queue.finish_chain(&peer.memory, head, RequestStatus::Ok, len).map(|()| true);
            }
            BlockRequest::Refuse(status) => {
                return queue.finish_chain(&peer.memory, head, status, 0).map(|()| true);
            }
        };
        let token = PendingReply { session: self.session, queue: index, head };
        let mut request = Request::new(token, ask, at, len);
        // What is refused anyhow needs no memory: `submit_request` refuses it by the same facts.
        if matches!(ask, RequestKind::Write { .. }) && self.requests.check_request(disk, ask, at, len).is_ok()
        {
            match lent_payload(&peer.memory, &self.geometry, chain, at, len)? {
                Some(lent) => request.lent = lent,
                None => match self.requests.alloc_write_memory(disk, at, len) {
                    Some(data) => request.data = data,
                    None => {
                        queue.parked = Some(head);
                        return Ok(false);
                    }
                },
            }
            if request.lent.is_empty() {
                copy_payload_from_guest(&self.requests, &peer.memory, chain, at, len, &mut request.data)?;
            }
        }
        if self.requests.submit_request(disk, request).is_err() {
            queue.parked = Some(head);
            return Ok(false);
        }
        Ok(true)
    }
}

/// A write's payload where the guest has it, if the disk can take it as it lies there.
fn lent_payload(
    memory: &GuestMemory,
    geometry: &Geometry,
    chain: &DescriptorChain,
    at: u64,
    len: u64,
) -> Result<Option<Sg>, BrokenQueue> {
    let block = u64::from(geometry.logical);
    let align = (geometry.dio_align as usize).max(1);
    let mut is_fit = len > 0 && at.is_multiple_of(block) && len.is_multiple_of(block);
    let mut lent = Sg::new();
    chain.readable.for_each_slice(memory, REQUEST_HEADER_LEN, len as usize, |stretch| {
        if is_fit {
            let piece = stretch.memory.view(stretch.at, stretch.len);
            is_fit = piece.as_ptr().addr() % align == 0 && stretch.len % align == 0;
            lent.push(piece);
        }
    })?;
    Ok(is_fit.then_some(lent))
}

fn copy_payload_from_guest(
    requests: &RequestTable<PendingReply>,
    memory: &GuestMemory,
    chain: &DescriptorChain,
    at: u64,
    len: u64,
    data: &mut WriteMemory,
) -> Result<(), BrokenQueue> {
    let (mut from, mut result) = (REQUEST_HEADER_LEN, Ok(()));
    requests.for_each_slice(data, at, 0, len, |slice| {
        if result.is_ok() {
            result = chain.readable.read(memory, from, slice);
        }
        from += slice.len();
    });
    Ok(result?)
}

impl VhostQueue {
    pub(super) fn remove_kick(&mut self, waiter: &EpollWaiter) -> io::Result<()> {
        match self.kick.take() {
            // The front end has it too, so closing it would not end what the waiter knows.
            Some(kick) => waiter.remove_fd(kick.as_fd()),
            None => Ok(()),
        }
    }

    /// Gives back to the driver's side what was taken last and not begun.
    pub(super) fn return_unstarted(&mut self) {
        let waiting = self.parked.take().into_iter().chain(self.again.drain(..));
        for head in waiting.collect::<SmallVec<[u16; 4]>>() {
            self.ring.mark_returned(head);
            if self.inflight.is_none() {
                self.ring.next_available = self.ring.next_available.wrapping_sub(1);
            }
        }
    }

    /// Gives a chain back with its status.
    pub(super) fn finish_chain(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        status: RequestStatus,
        written: usize,
    ) -> Result<(), BrokenQueue> {
        self.ring.mark_returned(head);
        let chain = self.ring.taken_chain(head)?;
        let last = chain.writable.len_bytes().checked_sub(1).ok_or(BrokenQueue)?;
        chain.writable.write(memory, last, &[status as u8])?;
        if let Some(inflight) = &self.inflight {
            inflight.record_returning(head);
        }
        self.ring.push_used(head, u32::try_from(written + 1).unwrap_or(u32::MAX))?;
        if let Some(inflight) = &self.inflight {
            inflight.record_returned(head, self.ring.next_used_index());
        }
        self.given_back = true;
        Ok(())
    }

    /// The driver broke the rules: says so, and does no more.
    pub(super) fn mark_broken(&mut self) {
        self.broken = true;
        if let Some(error) = &self.error {
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(error, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn call_driver(&mut self) {
        let wanted = std::mem::take(&mut self.given_back) && self.ring.needs_call().unwrap_or(false);
        if let Some(call) = self.call.as_ref().filter(|_| wanted) {
            // It fails only when the count is full, and then it is readable too.
            let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
        }
    }
}
