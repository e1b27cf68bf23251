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

use super::{Link, Phase, Receiving, Uring, kind};
use crate::event::Event;
use crate::event_loop::link_of;
use crate::socket;

/// A connection that is being made.
pub(super) struct Dialling {
    dial: Dial,
    /// It shall fail this way, as soon as the watch is back.
    given_up: Option<Errno>,
}

impl<M> Uring<'_, M> {
    pub(super) fn start_dial(&mut self, dial: Dial) -> Result<(), Errno> {
        if self.links.len() >= self.base.links_max {
            return Err(Errno(libc::EMFILE));
        }
        let fd = self.base.start_dial(&dial)?;
        let watched = Fd(fd.as_raw_fd());
        let slot = self.recvs.take();
        let link = Link::new(fd, Phase::Dialling(Dialling { dial, given_up: None }));
        let Ok(tag) = self.links.insert(Link { recv: Receiving::Out(slot), ..link }) else {
            self.recvs.give(slot);
            return Err(Errno(libc::EMFILE));
        };
        self.recvs.at(slot).link = Some(tag);
        self.base.dials(tag, &dial);
        self.push(kind::DIAL, slot, opcode::PollAdd::new(watched, libc::POLLOUT as u32).build());
        Ok(())
    }

    /// Lets a connection that is being made fail.
    pub(super) fn give_up(&mut self, tag: Tag, why: Errno) {
        let Some(link) = self.links.get_mut(tag) else { return };
        if let (Phase::Dialling(dialling), Receiving::Out(slot)) = (&mut link.phase, &link.recv) {
            dialling.given_up = dialling.given_up.or(Some(why));
            let slot = *slot;
            self.cancel(kind::DIAL, slot);
        }
    }

    /// The watch of a connection that is being made has ended.
    pub(super) fn dial_ended(&mut self, slot: u32) {
        let Some(tag) = self.recvs.at(slot).link.take() else { return };
        self.recvs.give(slot);
        // A link stays, and stays one that is being connected, while its watch is out.
        let Some(link) = self.links.get_mut(tag) else { return };
        link.recv = Receiving::Nothing;
        let Phase::Dialling(Dialling { dial, given_up }) = link.phase else { return };
        link.phase = Phase::Open;
        self.base.dialled(tag, &dial);
        let how = match given_up {
            Some(why) => Err(why),
            None => socket::connected(&link.fd, dial.to),
        };
        let how = how.map(|local| Dialled { link: link_of(tag), local, peer: dial.to });
        if how.is_err() {
            self.remove(tag);
        }
        self.base.events.push_back(Event::Dialled(dial.id, how));
    }
}
