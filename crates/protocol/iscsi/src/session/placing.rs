//! Where write data goes: to the server's buffers, to reserved memory, or nowhere.

use super::task::{Destination, Task};
use super::tasks::SessionTasks;
use crate::framing::{MEMORY_RETRY_INTERVAL, ParseStatus, PduReceiver, ReceiveState};
use crate::links::LinkIndex;
use buf::{Cx, MemoryClass};
use stream::{DirectBuffer, Tag};

impl SessionTasks {
    /// The place of the next payload bytes; the outer `None` if there is no memory for them now.
    #[expect(clippy::option_option, reason = "no place now, or none needed")]
    pub(super) fn lend_direct_buffer(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
    ) -> Option<Option<DirectBuffer>> {
        let destination = self.next_destination(cx, index, tag, left, true)?;
        let (Destination::Place(..) | Destination::Hold(_)) = &destination else { return Some(None) };
        let (data, want) = self.table.get_mut(tag)?.transfer_mut()?.lend_destination_buffer(&destination)?;
        self.links[index].destination = Some(destination);
        Some(Some(DirectBuffer { tag, data, want }))
    }

    /// Puts a buffer back where it was taken from, `bytes` of what was wanted filled at most. Gives
    /// how many bytes were for it.
    pub(super) fn return_direct_buffer(
        &mut self,
        index: LinkIndex,
        direct: DirectBuffer,
        bytes: usize,
    ) -> usize {
        let link = &mut self.links[index];
        if link.rx.receive_buffer.is_partial_command_lent() {
            return link.rx.receive_buffer.return_partial_command(direct, bytes);
        }
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let destination = link.destination.take();
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return n };
        *left -= n as u32;
        if link.framing.data_digest {
            data.update_crc(want.start..want.start + n, &mut link.rx.crc);
        }
        let Some(task) = self.table.get_mut(tag) else { return n };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer_mut() else { return n };
        if let (Some(destination), true) = (destination, wanted) {
            transfer.return_destination_buffer(&destination, data, n as u32);
            if self.carried.place(tag, transfer) {
                transfer.place_held_data();
            }
        }
        n
    }

    /// Moves what is here of a write's data to its place.
    #[inline]
    pub(super) fn place_received_data(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
        placing: bool,
    ) -> ParseStatus {
        let task = self.table.get_mut(tag);
        // What was used where it was received, or is of no use, needs no aim.
        if !task.as_ref().is_some_and(|task| task.wants_data()) {
            let PduReceiver { receive_buffer, state, .. } = &mut self.links[index].rx;
            let n = receive_buffer.skip(left as usize) as u32;
            if let Some(transfer) = task.and_then(Task::transfer_mut) {
                transfer.got = transfer.got.saturating_add(n);
            }
            if let ReceiveState::Data { left, .. } = state {
                *left -= n;
            }
            return ParseStatus::Continue;
        }
        let Some(destination) = self.next_destination(cx, index, tag, left, placing) else {
            return ParseStatus::Wait;
        };
        let link = &mut self.links[index];
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return ParseStatus::Continue };
        let transfer = self.table.get_mut(tag).and_then(|task| task.transfer_mut());
        let n = match transfer {
            Some(transfer) => {
                let crc = link.framing.data_digest.then_some(&mut link.rx.crc);
                let Some(n) = transfer.copy_to_destination(&destination, &mut link.rx.receive_buffer, crc)
                else {
                    return ParseStatus::Wait;
                };
                n
            }
            None => link.rx.receive_buffer.skip(*left as usize) as u32,
        };
        *left -= n;
        ParseStatus::Continue
    }

    /// Where a write's next data goes; takes the hold if it must and `placing` allows. `None`: not
    /// known yet, or no memory.
    fn next_destination(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
        placing: bool,
    ) -> Option<Destination> {
        let Some(task) = self.table.get_mut(tag) else { return Some(Destination::Skip(left)) };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer_mut() else { return Some(Destination::Skip(left)) };
        if !wanted {
            return Some(Destination::Skip(left));
        }
        match transfer.next_destination(left) {
            Destination::NeedHold if placing && !transfer.is_solicited() => {
                let len = transfer.hold_buffer_len(left) as usize;
                match cx.pool.take_sg(MemoryClass::Unsolicited, len) {
                    Some(memory) => {
                        transfer.set_hold_buffer(memory);
                        Some(transfer.next_destination(left))
                    }
                    None => {
                        self.links[index].retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
                        None
                    }
                }
            }
            Destination::NeedHold => None,
            destination => Some(destination),
        }
    }
}
