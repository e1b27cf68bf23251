//! Receives: into a payload's memory, or into a stage that is selected when data arrives.

use buf::Errno;
use endpoint::LinkDeparture;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::os::fd::AsRawFd;
use stream::{Received, RecvOp, Tag};

use super::provided_buffers::{self, STAGING_LEN};
use super::ring::Completion;
use super::{LinkPhase, RecvState, Uring, completion_result, kind};
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::link_from_tag;
use crate::recv_memory;

impl<M> Uring<'_, M> {
    /// Starts a receive, or lets it wait for memory.
    pub(super) fn submit_recv(&mut self, tag: Tag, mut op: RecvOp) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let fd = Fd(link.fd.as_raw_fd());
        let has_stages = self.stages.as_ref().is_some_and(|stages| stages.ready_count() > 0);
        let slot = self.recvs.allocate();
        let flight = self.recvs.slot_mut(slot);
        // Where bytes wait already, a stage of the length that is asked for is not pinned for long, and
        // it is the one that was used last.
        let entry = if op.direct.is_some() || link.has_more {
            if recv_memory::fill_iovecs(&self.base, &mut flight.message.iov, &mut op) == 0 {
                return self.defer_recv(tag, slot, op);
            }
            match flight.message.iov.as_slice() {
                [piece] => opcode::Recv::new(fd, piece.iov_base.cast(), piece.iov_len as u32).build(),
                _ => opcode::RecvMsg::new(fd, flight.message.header_ptr()).build(),
            }
        } else {
            if !has_stages {
                return self.defer_recv(tag, slot, op);
            }
            let len = op.stage_len.min(STAGING_LEN) as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), len)
                .buf_group(provided_buffers::BUFFER_GROUP)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        flight.link = Some(tag);
        flight.op = Some(op);
        link.recv = RecvState::Out(slot);
        self.push(kind::RECV, slot, entry);
    }

    fn defer_recv(&mut self, tag: Tag, slot: u32, op: RecvOp) {
        self.recvs.release(slot);
        if let Some(link) = self.links.get_mut(tag) {
            link.recv = RecvState::Starved(op);
            self.starved.push_back(tag);
            self.base.counters.recvs_starved.add(1);
        }
    }

    /// Tries as many of the receives that wait for memory as there are stages ready: more would find none
    /// again, and thousands of links would do nothing but ask. The others come by in the next turns.
    pub(super) fn retry_starved_recvs(&mut self) {
        let Some(stages) = &mut self.stages else { return };
        stages.refill(self.base.now, &self.base.pool);
        let batch = stages.ready_count().max(provided_buffers::READY_BUFFERS_MIN).min(self.starved.len());
        let mut started = false;
        for _ in 0..batch {
            let Some(tag) = self.starved.pop_front() else { break };
            let Some(link) = self.links.get_mut(tag) else { continue };
            // A link that has left its wait since (it is being closed) still has its turn here.
            if let Some(op) = link.recv.take_starved() {
                self.submit_recv(tag, op);
                started |= self.links.get(tag).is_some_and(|link| matches!(link.recv, RecvState::Out(_)));
            }
        }
        self.in_vain = batch > 0 && !started;
    }

    pub(super) fn handle_recv_completion(&mut self, slot: u32, of: Completion) {
        let flight = self.recvs.slot_mut(slot);
        let Some(tag) = flight.link.take() else { return };
        let op = flight.op.take();
        self.recvs.release(slot);
        let chosen =
            cqueue::buffer_select(of.flags).and_then(|number| self.stages.as_mut()?.take_buffer(number));
        // A link stays while anything of it is out.
        let Some(link) = self.links.get_mut(tag) else { return };
        link.recv = RecvState::Nothing;
        link.has_more = cqueue::sock_nonempty(of.flags);
        let Some(mut op) = op else { return self.drain_link(tag) };
        if let Some(stage) = chosen {
            op.stage = Some(stage);
        }
        let is_open = matches!(link.phase, LinkPhase::Open) && !link.is_halting;
        match completion_result(of.result) {
            Ok(got) => {
                // What a receive brings cannot follow a link that has packed its message.
                if got > 0 && matches!(link.phase, LinkPhase::Leaving(LinkDeparture::Move { .. })) {
                    link.phase = LinkPhase::Leaving(LinkDeparture::Abort);
                }
                recv_memory::finish_recv(&mut self.base, tag, op, got);
            }
            Err(Errno(libc::ENOBUFS)) if is_open && op.direct.is_none() => {
                if let Some(stages) = &mut self.stages {
                    stages.note_exhausted();
                }
                link.recv = RecvState::Starved(op);
                self.starved.push_back(tag);
                self.base.counters.recvs_starved.add(1);
                return;
            }
            Err(Errno(libc::EINTR | libc::EAGAIN)) if is_open => {
                op.stage = None;
                return self.submit_recv(tag, op);
            }
            Err(e) => {
                op.stage = None;
                let came = match e {
                    Errno(libc::ECANCELED) => Received::Cancelled,
                    _ if !is_open => Received::Cancelled,
                    e => Received::Failed(e),
                };
                self.base.events.push_back(EndpointEvent::Recv(link_from_tag(tag), op, came));
            }
        }
        self.finish_link_close(tag);
    }
}
