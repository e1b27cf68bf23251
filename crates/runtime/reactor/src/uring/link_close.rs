//! Removing a link: operations in flight are cancelled or awaited, then the socket is closed, reset or sent
//! to another shard.
//!
//! Invariant: a socket is released only when neither a receive nor a send of it is in flight.

use std::os::fd::{AsRawFd, OwnedFd};

use buf::Errno;
use endpoint::LinkDeparture;
use io_uring::opcode;
use io_uring::types::Fd;
use stream::{Received, Tag};

use super::{LinkPhase, RecvState, Uring, kind};
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::link_from_tag;
use crate::mailbox::IncomingLink;
use crate::socket;

impl<M> Uring<'_, M> {
    /// Lets a link that leaves go, if nothing of it is out any more.
    pub(super) fn finish_link_close(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        let at_rest = matches!(link.recv, RecvState::Nothing) && link.send.is_none();
        if !at_rest || matches!(link.phase, LinkPhase::Dialling(_) | LinkPhase::Open | LinkPhase::Draining) {
            return;
        }
        match std::mem::replace(&mut link.phase, LinkPhase::Draining) {
            LinkPhase::Dialling(_) | LinkPhase::Open | LinkPhase::Draining => {}
            LinkPhase::Leaving(LinkDeparture::Close) => {
                socket::shutdown_write(&link.fd);
                self.drain_link(tag);
            }
            LinkPhase::Leaving(LinkDeparture::Abort) => {
                socket::reset_on_close(&link.fd);
                self.take_link_fd(tag);
            }
            LinkPhase::Leaving(LinkDeparture::Move { to, message }) => {
                link.send_buffer.restore_buffer(&link.fd);
                if let Some(fd) = self.take_link_fd(tag) {
                    self.base.post_link(to, fd, IncomingLink::Moved(message));
                }
            }
        }
    }

    /// Swallows what the peer still sends, and watches for more.
    pub(super) fn drain_link(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if !matches!(link.phase, LinkPhase::Draining) {
            return self.finish_link_close(tag);
        }
        let fd = link.fd.as_raw_fd();
        if socket::discard_received(fd) {
            self.take_link_fd(tag);
            return;
        }
        let slot = self.recvs.allocate();
        self.recvs.slot_mut(slot).link = Some(tag);
        link.recv = RecvState::Out(slot);
        let which = (libc::POLLIN | libc::POLLRDHUP) as u32;
        self.push(kind::RECV, slot, opcode::PollAdd::new(Fd(fd), which).build());
    }

    pub(super) fn take_link_fd(&mut self, tag: Tag) -> Option<OwnedFd> {
        let link = self.links.remove(tag)?;
        if link.closes {
            self.base.note_closed();
        }
        self.base.count_link_removed();
        Some(link.fd)
    }

    /// Drops the link with a reset, once what is out has come back.
    pub(super) fn abort_link(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let LinkPhase::Dialling(_) = link.phase {
            return self.fail_dial(tag, Errno(libc::ECANCELED));
        }
        link.phase = LinkPhase::Leaving(LinkDeparture::Abort);
        if std::mem::take(&mut link.closes) {
            self.base.note_closed();
        }
        let send = link.send;
        self.cancel_recv(tag);
        if let Some(slot) = send {
            self.cancel(kind::SEND, slot);
        }
        self.finish_link_close(tag);
    }

    pub(super) fn cancel_recv(&mut self, tag: Tag) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let Some(op) = link.recv.take_starved() {
            self.base.events.push_back(EndpointEvent::Recv(link_from_tag(tag), op, Received::Cancelled));
        } else if let RecvState::Out(slot) = link.recv {
            self.cancel(kind::RECV, slot);
        }
    }
}
