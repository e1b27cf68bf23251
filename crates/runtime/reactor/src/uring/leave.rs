//! Removing a link: operations in flight are cancelled or awaited, then the socket is closed, reset or sent
//! to another shard.
//!
//! Invariant: a socket is released only when neither a receive nor a send of it is in flight.

use std::os::fd::{AsRawFd, OwnedFd};

use buf::Errno;
use endpoint::Departure;
use io_uring::opcode;
use io_uring::types::Fd;
use stream::{Received, Tag};

use super::{Phase, Receiving, Uring, kind};
use crate::event::Event;
use crate::event_loop::link_of;
use crate::mail::Incoming;
use crate::socket;

impl<M> Uring<'_, M> {
    /// Lets a link that leaves go, if nothing of it is out any more.
    pub(super) fn finish_leaving(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let at_rest = matches!(link.recv, Receiving::Nothing) && link.send.is_none();
        if !at_rest || matches!(link.phase, Phase::Dialling(_) | Phase::Open | Phase::Draining) {
            return;
        }
        match std::mem::replace(&mut link.phase, Phase::Draining) {
            Phase::Dialling(_) | Phase::Open | Phase::Draining => {}
            Phase::Leaving(Departure::Close) => {
                socket::shutdown_write(&link.fd);
                self.drain(tag);
            }
            Phase::Leaving(Departure::Abort) => {
                socket::reset_on_close(&link.fd);
                self.remove(tag);
            }
            Phase::Leaving(Departure::Move { to, message }) => {
                if let Some(fd) = self.remove(tag) {
                    self.base.post_link(to, fd, Incoming::Moved(message));
                }
            }
        }
    }

    /// Swallows what the peer still sends, and watches for more.
    pub(super) fn drain(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if !matches!(link.phase, Phase::Draining) {
            return self.finish_leaving(tag);
        }
        let fd = link.fd.as_raw_fd();
        if socket::drain(fd) {
            self.remove(tag);
            return;
        }
        let slot = self.recvs.take();
        self.recvs.at(slot).link = Some(tag);
        link.recv = Receiving::Out(slot);
        let which = (libc::POLLIN | libc::POLLRDHUP) as u32;
        self.push(kind::RECV, slot, opcode::PollAdd::new(Fd(fd), which).build());
    }

    pub(super) fn remove(&mut self, tag: Tag) -> Option<OwnedFd> {
        let link = self.links.remove(tag)?;
        if link.closes {
            self.base.has_closed();
        }
        self.base.unload();
        Some(link.fd)
    }

    /// Drops the link with a reset, once what is out has come back.
    pub(super) fn abort(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let Phase::Dialling(_) = link.phase {
            return self.give_up(tag, Errno(libc::ECANCELED));
        }
        link.phase = Phase::Leaving(Departure::Abort);
        if std::mem::take(&mut link.closes) {
            self.base.has_closed();
        }
        let send = link.send;
        self.cancel_recv(tag);
        if let Some(slot) = send {
            self.cancel(kind::SEND, slot);
        }
        self.finish_leaving(tag);
    }

    pub(super) fn cancel_recv(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let Some(op) = link.recv.take_starved() {
            self.base.events.push_back(Event::Recv(link_of(tag), op, Received::Cancelled));
        } else if let Receiving::Out(slot) = link.recv {
            self.cancel(kind::RECV, slot);
        }
    }
}
