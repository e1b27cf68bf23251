//! Outgoing connections: the socket connects without blocking, and a poll request reports the end of that.
//!
//! Invariant: a connecting link has its poll request in flight, in a slot of the receives, and leaves this
//! phase only when that has ended.

use std::os::fd::AsRawFd;

use buf::Errno;
use endpoint::{Dial, Dialled};
use io_uring::opcode;
use io_uring::types::Fd;
use stream::Tag;

use super::{Link, LinkPhase, RecvState, Uring, kind};
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::link_from_tag;
use crate::socket;

/// A connection that is being made.
pub(super) struct PendingDial {
    dial: Dial,
    /// It shall fail this way, as soon as the watch is back.
    given_up: Option<Errno>,
}

impl<M> Uring<'_, M> {
    pub(super) fn try_start_dial(&mut self, dial: Dial) -> Result<(), Errno> {
        if self.links.len() >= self.base.links_max {
            return Err(Errno(libc::EMFILE));
        }
        let fd = self.base.start_connect(&dial)?;
        let watched = Fd(fd.as_raw_fd());
        let slot = self.recvs.allocate();
        let link = Link::new(fd, LinkPhase::Dialling(PendingDial { dial, given_up: None }));
        let Ok(tag) = self.links.insert(Link { recv: RecvState::Out(slot), ..link }) else {
            self.recvs.release(slot);
            return Err(Errno(libc::EMFILE));
        };
        self.recvs.slot_mut(slot).link = Some(tag);
        self.base.note_dialling(tag, &dial);
        self.push(kind::DIAL, slot, opcode::PollAdd::new(watched, libc::POLLOUT as u32).build());
        Ok(())
    }

    /// Lets a connection that is being made fail.
    pub(super) fn fail_dial(&mut self, tag: Tag, why: Errno) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let (LinkPhase::Dialling(dialling), RecvState::Out(slot)) = (&mut link.phase, &link.recv) {
            dialling.given_up = dialling.given_up.or(Some(why));
            let slot = *slot;
            self.cancel(kind::DIAL, slot);
        }
    }

    /// The watch of a connection that is being made has ended.
    pub(super) fn handle_dial_ended(&mut self, slot: u32) {
        let Some(tag) = self.recvs.slot_mut(slot).link.take() else { return };
        self.recvs.release(slot);
        // A link stays, and stays one that is being connected, while its watch is out.
        let Some(link) = self.links.get_mut(tag) else { return };
        link.recv = RecvState::Nothing;
        let LinkPhase::Dialling(PendingDial { dial, given_up }) = link.phase else { return };
        link.phase = LinkPhase::Open;
        self.base.note_dial_ended(tag, &dial);
        let how = match given_up {
            Some(why) => Err(why),
            None => socket::finish_connect(&link.fd, dial.to),
        };
        let how = how.map(|local| Dialled { link: link_from_tag(tag), local, peer: dial.to });
        if how.is_err() {
            self.take_link_fd(tag);
        }
        self.base.events.push_back(EndpointEvent::Dialled(dial.id, how));
    }
}
