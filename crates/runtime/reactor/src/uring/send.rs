//! Sends: one call per batch, which gathers its pieces, continued if the list is too long for one, or other links are
//! active and the batch is long.

use std::os::fd::AsRawFd;

use buf::Errno;
use endpoint::LinkDeparture;
use io_uring::opcode;
use io_uring::types::Fd;
use stream::Tag;

use super::{LinkPhase, Uring, completion_result, kind};
use crate::disk::IOV_MAX;
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::link_from_tag;

impl<M> Uring<'_, M> {
    /// Sends on from where the flight stands.
    pub(super) fn continue_send(&mut self, slot: u32) {
        let flight = self.sends.slot_mut(slot);
        let Some(link) = flight.link.and_then(|tag| self.links.get(tag)) else { return };
        let Some(op) = flight.op.as_mut() else { return };
        let iov = &mut flight.message.iov;
        iov.clear();
        let most = self.base.active.transfer_max(self.base.now);
        let mut asked = 0;
        op.for_each_piece(flight.at, |at, len| {
            if iov.len() < IOV_MAX && asked < most {
                let len = len.min(most - asked);
                iov.push(libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len });
                asked += len;
            }
        });
        let more = if flight.at + asked < op.len { libc::MSG_MORE } else { 0 };
        // With MSG_WAITALL the kernel itself goes on after a part was taken.
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | more;
        let fd = Fd(link.fd.as_raw_fd());
        let entry = match iov.as_slice() {
            // Most batches are one head. The kernel need not fetch a header and a list for it.
            [piece] => {
                opcode::Send::new(fd, piece.iov_base.cast(), piece.iov_len as u32).flags(flags).build()
            }
            _ => opcode::SendMsg::new(fd, flight.message.header_ptr()).flags(flags as u32).build(),
        };
        self.push(kind::SEND, slot, entry);
    }

    pub(super) fn handle_send_completion(&mut self, slot: u32, result: i32) {
        let flight = self.sends.slot_mut(slot);
        // A link stays while anything of it is out.
        let Some(tag) = flight.link else { return };
        let Some(link) = self.links.get_mut(tag) else { return };
        let is_aborted = matches!(link.phase, LinkPhase::Leaving(LinkDeparture::Abort));
        let is_halting = link.is_halting && matches!(link.phase, LinkPhase::Open);
        let len = flight.op.as_ref().map_or(0, |op| op.len);
        let how = match completion_result(result) {
            Ok(n) => {
                flight.at += n;
                if flight.at < len && is_halting {
                    return self.cut_send(slot, tag);
                }
                if flight.at < len && !is_aborted {
                    self.base.counters.sends_partial.add(1);
                    return self.continue_send(slot);
                }
                if flight.at < len { Err(Errno(libc::ECANCELED)) } else { Ok(()) }
            }
            Err(Errno(libc::EINTR | libc::EAGAIN | libc::ECANCELED)) if is_halting => {
                return self.cut_send(slot, tag);
            }
            Err(Errno(libc::EINTR | libc::EAGAIN)) if !is_aborted => return self.continue_send(slot),
            Err(e) => Err(e),
        };
        link.send = None;
        self.large_sends.note_send_ended(&mut link.send_buffer);
        flight.link = None;
        let Some(op) = flight.op.take() else { return };
        self.sends.release(slot);
        if how.is_ok() {
            self.base.counters.sends.add(1);
            self.base.counters.send_bytes.add(op.len as u64);
        }
        self.base.events.push_back(EndpointEvent::Written(link_from_tag(tag), how));
        self.base.events.push_back(EndpointEvent::Sent(link_from_tag(tag), op));
        self.finish_link_close(tag);
    }

    /// A send of a link that is halted comes back as far as it has come.
    fn cut_send(&mut self, slot: u32, tag: Tag) {
        let flight = self.sends.slot_mut(slot);
        flight.link = None;
        let (op, written) = (flight.op.take(), flight.at);
        self.sends.release(slot);
        if let Some(link) = self.links.get_mut(tag) {
            link.send = None;
            self.large_sends.note_send_ended(&mut link.send_buffer);
        }
        if let Some(op) = op {
            self.base.events.push_back(EndpointEvent::SendCut(link_from_tag(tag), op, written));
        }
    }
}
