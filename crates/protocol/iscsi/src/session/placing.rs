//! Where write data goes: to the server's buffers, to reserved memory, or nowhere.

use super::task::{Destination, Task};
use super::tasks::SessionTasks;
use crate::framing::{Parsing, PduReceiver, RETRY, ReceiveState};
use crate::links::LinkIndex;
use buf::{Class, Cx};
use stream::{DirectBuffer, Tag};

impl SessionTasks {
    /// The place of the next payload bytes; the outer `None` if there is no memory for them now.
    #[expect(clippy::option_option, reason = "no place now, or none needed")]
    pub(super) fn direct(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
    ) -> Option<Option<DirectBuffer>> {
        let destination = self.destination(cx, index, tag, left, true)?;
        let (Destination::Place(..) | Destination::Hold(_)) = &destination else { return Some(None) };
        let (data, want) = self.table.get_mut(tag)?.transfer()?.lend(&destination)?;
        self.links[index].destination = Some(destination);
        Some(Some(DirectBuffer { tag, data, want }))
    }

    /// Puts a buffer back where it was taken from, `bytes` of what was wanted filled at most. Gives
    /// how many bytes were for it.
    pub(super) fn take_back(&mut self, index: LinkIndex, direct: DirectBuffer, bytes: usize) -> usize {
        let link = &mut self.links[index];
        if link.rx.receive_buffer.is_filling_up() {
            return link.rx.receive_buffer.filled_up(direct, bytes);
        }
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let destination = link.destination.take();
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return n };
        *left -= n as u32;
        if link.framing.data_digest {
            data.digest(want.start..want.start + n, &mut link.rx.crc);
        }
        let Some(task) = self.table.get_mut(tag) else { return n };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer() else { return n };
        if let (Some(destination), true) = (destination, wanted) {
            transfer.take_back(&destination, data, n as u32);
            transfer.spill();
        }
        n
    }

    /// Moves what is here of a write's data to its place.
    #[inline]
    pub(super) fn place(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
        placing: bool,
    ) -> Parsing {
        let task = self.table.get_mut(tag);
        // What was used where it was received, or is of no use, needs no aim.
        if !task.as_ref().is_some_and(|task| task.wants_data()) {
            let PduReceiver { receive_buffer, state, .. } = &mut self.links[index].rx;
            let n = receive_buffer.skip(left as usize) as u32;
            if let Some(transfer) = task.and_then(Task::transfer) {
                transfer.got = transfer.got.saturating_add(n);
            }
            if let ReceiveState::Data { left, .. } = state {
                *left -= n;
            }
            return Parsing::Continue;
        }
        let Some(destination) = self.destination(cx, index, tag, left, placing) else { return Parsing::Wait };
        let link = &mut self.links[index];
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return Parsing::Continue };
        let transfer = self.table.get_mut(tag).and_then(|task| task.transfer());
        let n = match transfer {
            Some(transfer) => {
                let crc = link.framing.data_digest.then_some(&mut link.rx.crc);
                let Some(n) = transfer.fill(&destination, &mut link.rx.receive_buffer, crc) else {
                    return Parsing::Wait;
                };
                n
            }
            None => link.rx.receive_buffer.skip(*left as usize) as u32,
        };
        *left -= n;
        Parsing::Continue
    }

    /// Where a write's next data goes; takes the hold if it must and `placing` allows. `None`: not
    /// known yet, or no memory.
    fn destination(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
        placing: bool,
    ) -> Option<Destination> {
        let Some(task) = self.table.get_mut(tag) else { return Some(Destination::Skip(left)) };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer() else { return Some(Destination::Skip(left)) };
        if !wanted {
            return Some(Destination::Skip(left));
        }
        match transfer.destination(left) {
            Destination::NeedHold if placing => {
                let len = transfer.hold_len(left) as usize;
                match cx.pool.take_sg(Class::Unsolicited, len) {
                    Some(memory) => {
                        transfer.set_hold(memory);
                        Some(transfer.destination(left))
                    }
                    None => {
                        self.links[index].retry = Some(cx.now + RETRY);
                        None
                    }
                }
            }
            Destination::NeedHold => None,
            destination => Some(destination),
        }
    }
}
