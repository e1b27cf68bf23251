//! The volume as a backend with sockets: calls of its paths, under the volume's own identifiers.

use std::time::Duration;

use buf::{Cx, Errno};
use endpoint::{CloseMode, Computation, Dial, DialId, Dialled, LinkId, OutboundSockets};
use stream::{Received, RecvOp, SendOp, earliest};
use volume::{Backend, Geometry, Io, IoCompletion, IoId, OperatorNotice, Time};

use super::{RemoteVolume, VolumeStage};
use crate::path::Path;

impl<P: Path> RemoteVolume<P> {
    /// Whose socket it is. A link that was left stays known until what is out has come back, and longer: names
    /// are never used again.
    #[inline]
    fn path_of_link(&self, link: LinkId) -> Option<usize> {
        self.links.iter().find(|(known, _)| *known == link).map(|(_, slot)| usize::from(*slot))
    }

    /// The first path that answers, of those that may have something to say.
    fn find_map_path<T>(&mut self, mut ask: impl FnMut(&mut Self, usize) -> Option<T>) -> Option<T> {
        (0..self.slots.len()).find_map(|index| ask(self, index))
    }
}

impl<P: Path> Backend for RemoteVolume<P> {
    fn geometry(&self) -> Geometry {
        self.known_geometry().unwrap_or(Geometry::UNKNOWN)
    }

    fn is_read_only(&self) -> bool {
        RemoteVolume::is_read_only(self)
    }

    #[inline]
    fn submit(&mut self, cx: &mut Cx<'_>, io: Io) {
        self.accept_io(cx, io);
    }

    fn cancel(&mut self, id: IoId) {
        self.tasks.cancels.push(id);
        self.has_work = true;
    }

    #[inline]
    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.tasks.done.pop_front()
    }
}

impl<P: Path> OutboundSockets for RemoteVolume<P> {
    fn poll_dial(&mut self) -> Option<Dial> {
        self.find_map_path(|this, index| {
            let dial = this.slots[index].path.poll_dial()?;
            let id = DialId(this.next_dial);
            this.next_dial += 1;
            this.dials.push((id, index as u8, dial.id));
            Some(Dial { id, ..dial })
        })
    }

    fn handle_dialled(&mut self, cx: &mut Cx<'_>, id: DialId, how: Result<Dialled, Errno>) {
        let Some(known) = self.dials.iter().position(|(known, ..)| *known == id) else { return };
        let (_, slot, inner) = self.dials.swap_remove(known);
        if let Ok(dialled) = &how {
            // A name of an older generation of the same slot is over.
            self.links.retain(|(link, _)| link.0 as u32 != dialled.link.0 as u32);
            // Those in use are found first.
            self.links.insert(0, (dialled.link, slot));
        }
        self.slots[usize::from(slot)].path.handle_dialled(cx, inner, how);
        self.mark_pending(usize::from(slot));
    }

    #[inline]
    fn handle_recv(&mut self, cx: &mut Cx<'_>, link: LinkId, op: RecvOp, came: Received) {
        let Some(slot) = self.path_of_link(link) else { return };
        self.slots[slot].path.handle_recv(cx, link, op, came);
        self.mark_pending(slot);
    }

    #[inline]
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkId, how: Result<(), Errno>) {
        let Some(slot) = self.path_of_link(link) else { return };
        self.slots[slot].path.handle_written(cx, link, how);
        self.mark_pending(slot);
    }

    #[inline]
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkId, op: SendOp) {
        let Some(slot) = self.path_of_link(link) else { return };
        self.slots[slot].path.handle_send_released(cx, link, op);
        self.mark_pending(slot);
    }

    #[inline]
    fn poll_ready(&mut self) -> Option<LinkId> {
        while self.slots.ready != 0 {
            let index = self.slots.ready.trailing_zeros() as usize;
            if let Some(link) = self.slots[index].path.poll_ready() {
                return Some(link);
            }
            self.slots.ready &= self.slots.ready - 1;
        }
        None
    }

    #[inline]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<RecvOp> {
        let slot = self.path_of_link(link)?;
        self.slots[slot].path.poll_recv(cx, link)
    }

    #[inline]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkId) -> Option<SendOp> {
        let slot = self.path_of_link(link)?;
        self.slots[slot].path.poll_send(cx, link)
    }

    fn poll_link_close(&mut self) -> Option<(LinkId, CloseMode)> {
        self.find_map_path(|this, index| this.slots[index].path.poll_link_close())
    }

    fn poll_computation(&mut self) -> Option<Computation> {
        self.find_map_path(|this, index| this.slots[index].path.poll_computation())
    }

    /// Whose it was is not told: it happens when a connection comes up, and a look costs little.
    fn handle_computed(&mut self) {
        for index in 0..self.slots.len() {
            self.slots[index].path.handle_computed();
            self.mark_pending(index);
        }
    }

    #[inline]
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        self.process_pending_paths(cx)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.slots.iter().fold(self.wake, |wake, slot| earliest(wake, slot.path.poll_timeout()))
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            if self.slots[index].path.poll_timeout().is_some_and(|time| time <= cx.now) {
                self.slots[index].path.handle_timeout(cx);
                self.mark_pending(index);
            }
        }
        self.run_timers(cx);
    }

    fn close(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        RemoteVolume::close(self, cx, grace);
    }

    fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        if !self.remarks {
            return None;
        }
        let remark = self.slots.iter_mut().enumerate().find_map(|(index, slot)| slot.poll_notice(index));
        self.remarks = remark.is_some();
        remark
    }

    fn is_closed(&self) -> bool {
        self.stage == VolumeStage::Closed
    }
}
