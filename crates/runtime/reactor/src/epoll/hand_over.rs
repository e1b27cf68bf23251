//! Links of which another process takes over.

use std::io;
use std::os::fd::OwnedFd;

use endpoint::LinkId;
use stream::Received;

use super::{Epoll, LinkPhase, Sending};
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::tag_from_link;

impl<M> Epoll<M> {
    /// What is out on a link comes back.
    pub(super) fn cut_short(&mut self, link: LinkId) {
        let Some(at) = self.links.get_mut(tag_from_link(link)) else { return };
        if !matches!(at.phase, LinkPhase::Open) {
            return;
        }
        if let Some(op) = at.recv.take() {
            self.base.events.push_back(EndpointEvent::Recv(link, op, Received::Cancelled));
        }
        if let Some(Sending { op, at: written }) = at.send.take() {
            self.large_sends.note_send_ended(&mut at.send_buffer);
            self.base.events.push_back(EndpointEvent::SendCut(link, op, written));
        }
    }

    /// The socket of an open link, for another process.
    pub(super) fn duplicate_link(&mut self, link: LinkId) -> io::Result<OwnedFd> {
        let at = self.links.get_mut(tag_from_link(link));
        let at = at.filter(|at| matches!(at.phase, LinkPhase::Open)).ok_or(io::ErrorKind::NotConnected)?;
        // The other process knows nothing of our buffer.
        at.send_buffer.restore_buffer(&at.fd);
        at.fd.try_clone()
    }
}
