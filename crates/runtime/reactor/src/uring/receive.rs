//! Receives: into a payload's memory, or into a stage that is selected when data arrives.

use buf::Errno;
use endpoint::Departure;
use io_uring::squeue::Flags;
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use std::os::fd::AsRawFd;
use stream::{Received, RecvOp, Tag};

use super::ring::Completion;
use super::stages::{self, STAGE_LEN};
use super::{Phase, Receiving, Uring, came, kind};
use crate::event::Event;
use crate::event_loop::link_of;
use crate::recv;

impl<M> Uring<'_, M> {
    /// Starts a receive, or lets it wait for memory.
    pub(super) fn receive(&mut self, tag: Tag, mut op: RecvOp) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let fd = Fd(link.fd.as_raw_fd());
        let has_stages = self.stages.as_ref().is_some_and(|stages| stages.ready() > 0);
        let slot = self.recvs.take();
        let flight = self.recvs.at(slot);
        // Where bytes wait already, a stage of the length that is asked for is not pinned for long, and
        // it is the one that was used last.
        let entry = if op.direct.is_some() || link.has_more {
            if recv::list(&self.base, &mut flight.message.iov, &mut op) == 0 {
                return self.starve(tag, slot, op);
            }
            match flight.message.iov.as_slice() {
                [piece] => opcode::Recv::new(fd, piece.iov_base.cast(), piece.iov_len as u32).build(),
                _ => opcode::RecvMsg::new(fd, flight.message.header()).build(),
            }
        } else {
            if !has_stages {
                return self.starve(tag, slot, op);
            }
            let len = op.stage_len.min(STAGE_LEN) as u32;
            opcode::Recv::new(fd, std::ptr::null_mut(), len)
                .buf_group(stages::GROUP)
                .build()
                .flags(Flags::BUFFER_SELECT)
        };
        flight.link = Some(tag);
        flight.op = Some(op);
        link.recv = Receiving::Out(slot);
        self.push(kind::RECV, slot, entry);
    }

    fn starve(&mut self, tag: Tag, slot: u32, op: RecvOp) {
        self.recvs.give(slot);
        if let Some(link) = self.links.get_mut(tag) {
            link.recv = Receiving::Starved(op);
            self.starved.push_back(tag);
            self.base.counters.recvs_starved.add(1);
        }
    }

    /// Tries as many of the receives that wait for memory as there are stages ready: more would find none
    /// again, and thousands of links would do nothing but ask. The others come by in the next turns.
    pub(super) fn feed(&mut self) {
        let Some(stages) = &mut self.stages else { return };
        stages.fill(self.base.now, &self.base.pool);
        let batch = stages.ready().max(stages::READY_MIN).min(self.starved.len());
        let mut started = false;
        for _ in 0..batch {
            let Some(tag) = self.starved.pop_front() else { break };
            let Some(link) = self.links.get_mut(tag) else { continue };
            // A link that has left its wait since (it is being closed) still has its turn here.
            if let Some(op) = link.recv.take_starved() {
                self.receive(tag, op);
                started |= self.links.get(tag).is_some_and(|link| matches!(link.recv, Receiving::Out(_)));
            }
        }
        self.in_vain = batch > 0 && !started;
    }

    pub(super) fn received(&mut self, slot: u32, of: Completion) {
        let flight = self.recvs.at(slot);
        let Some(tag) = flight.link.take() else { return };
        let op = flight.op.take();
        self.recvs.give(slot);
        let chosen = cqueue::buffer_select(of.flags).and_then(|number| self.stages.as_mut()?.take(number));
        // A link stays while anything of it is out.
        let Some(link) = self.links.get_mut(tag) else { return };
        link.recv = Receiving::Nothing;
        link.has_more = cqueue::sock_nonempty(of.flags);
        let Some(mut op) = op else { return self.drain(tag) };
        if let Some(stage) = chosen {
            op.stage = Some(stage);
        }
        let is_open = matches!(link.phase, Phase::Open);
        match came(of.result) {
            Ok(got) => {
                // What a receive brings cannot follow a link that has packed its message.
                if got > 0 && matches!(link.phase, Phase::Leaving(Departure::Move { .. })) {
                    link.phase = Phase::Leaving(Departure::Abort);
                }
                recv::finish(&mut self.base, tag, op, got);
            }
            Err(Errno(libc::ENOBUFS)) if is_open && op.direct.is_none() => {
                if let Some(stages) = &mut self.stages {
                    stages.ran_out();
                }
                link.recv = Receiving::Starved(op);
                self.starved.push_back(tag);
                self.base.counters.recvs_starved.add(1);
                return;
            }
            Err(Errno(libc::EINTR | libc::EAGAIN)) if is_open => {
                op.stage = None;
                return self.receive(tag, op);
            }
            Err(e) => {
                op.stage = None;
                let came = match e {
                    Errno(libc::ECANCELED) => Received::Cancelled,
                    _ if !is_open => Received::Cancelled,
                    e => Received::Failed(e),
                };
                self.base.events.push_back(Event::Recv(link_of(tag), op, came));
            }
        }
        self.finish_leaving(tag);
    }
}
