//! The state of one task between its header and its answer.
//!
//! Write data arrives strictly in order of its offsets (DataPDUInOrder and DataSequenceInOrder are Yes):
//! immediate, then unsolicited, then one R2T's sequence after the other. So one number, `got`, says how far
//! it has come, and every byte has exactly one destination: a buffer of the server, the hold (memory reserved
//! for unsolicited data), or nowhere, if it is no longer needed.

use super::request::{Response, ScsiResult};
use crate::links::LinkIndex;
use crate::wire::{Itt, Lun, Sn, TmfFunction, TmfResponseCode, Ttt};
use buf::crc32c::Crc32c;
use buf::{SgMut, Time};
use smallvec::SmallVec;
use std::ops::Range;
use stream::{PayloadBuffer, ReceiveBuffer, Tag};

/// Most R2Ts outstanding per task.
pub const R2T_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct Task {
    pub(super) itt: Itt,
    pub(super) lun: Lun,
    pub(super) cmd_sn: Sn,
    /// Index of the link that it is allegiant to.
    pub(super) link: LinkIndex,
    pub(super) immediate: bool,
    pub(super) kind: TaskKind,
    pub(super) state: TaskState,
    /// Bytes that [`reserve_send_window`](stream::TargetConnection::reserve_send_window) allowed and that are not sent yet.
    pub(super) read_reserved: u32,
    /// Bytes that [`reserve_receive_window`](stream::TargetConnection::reserve_receive_window) allowed and that have not come yet.
    pub(super) write_reserved: u32,
    /// Whether its link counts it among those that the peer owes data for.
    pub(super) owing: bool,
    /// Whether the window counts it as in work.
    pub(super) counted: bool,
    /// When the server gave its answer, and under what that is counted.
    pub(super) answer_stamp: (Time, u64),
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every task is a SCSI command")]
pub(super) enum TaskKind {
    Scsi(Transfer),
    /// With the task that it names, if it names one.
    Tmf(TmfFunction, Option<Tag>),
    Text,
}

/// Where a task stands.
#[derive(Debug)]
pub(super) enum TaskState {
    /// Its turn in the order of commands has not come: the server knows nothing of it.
    Held,
    /// Likewise, and it is to fail when its turn comes: no answer may go before that.
    Invalid(AdditionalSense),
    /// With the server.
    Live,
    /// The server has given it back before it had any effect: it is to be announced again.
    Withdrawn,
    /// It ends without the server's answer. `acked`: the server knows and has let go of it.
    Terminating { how: Termination, acked: bool },
    /// Answered, but the peer still owes data: the answer follows the last of it (RFC 7143 §11.4.2).
    Answered(Box<Answer>),
}

/// An answer of the server.
#[derive(Debug)]
pub(super) enum Answer {
    Result(ScsiResult),
    Failure,
    /// Of a task management function.
    Function(TmfResponseCode),
}

/// How a task ends without an answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Termination {
    /// With CHECK CONDITION, ABORTED COMMAND and this additional sense (RFC 7143 §11.4.7.2).
    Sense(AdditionalSense),
    /// With no word.
    Silent,
}

/// AdditionalSense sense code and qualifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdditionalSense(pub(super) u8, pub(super) u8);

impl AdditionalSense {
    pub(super) const UNEXPECTED_UNSOLICITED_DATA: Self = Self(0x0c, 0x0c);
    pub(super) const INCORRECT_AMOUNT_OF_DATA: Self = Self(0x0c, 0x0d);
    pub(super) const PROTOCOL_SERVICE_CRC_ERROR: Self = Self(0x47, 0x05);

    /// Fixed format sense data with sense key ABORTED COMMAND (SPC-4 §4.5.3).
    pub(super) fn to_sense_data(self) -> [u8; 18] {
        let mut sense = [0; 18];
        sense[0] = 0x70;
        sense[2] = 0x0b;
        sense[7] = 10;
        sense[12] = self.0;
        sense[13] = self.1;
        sense
    }
}

/// The data of a SCSI command, in both directions.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) edtl: u32,
    pub(super) bidi_read_len: u32,
    /// Number of the next Data-In or R2T: one space for both (RFC 7143 §11.7.5).
    pub(super) data_sn: u32,
    /// End of what the server gave to send.
    pub(super) sent: u32,
    /// Offset of the next byte that comes.
    pub(super) got: u32,
    /// All up to here came in PDUs that are whole, with right digests.
    pub(super) whole: u32,
    /// How much unsolicited data was announced, immediate data included.
    pub(super) unsolicited: u32,
    /// Unsolicited Data-Out PDUs are still to come.
    pub(super) unsolicited_open: bool,
    /// DataSN expected next in this sequence.
    pub(super) sequence_sn: u32,
    /// Sequences asked for, in order.
    pub(super) r2ts: SmallVec<[OutstandingR2t; R2T_MAX]>,
    /// End of what was asked for.
    pub(super) asked: u32,
    /// Transfer tag of the last sequence that ended.
    pub(super) last_ttt: Option<Ttt>,
    /// The server's buffers that are not full, in order.
    pub(super) places: SmallVec<[PayloadBuffer; 1]>,
    pub(super) hold: Option<HeldData>,
    /// The server has some of the data.
    pub(super) delivered: bool,
}

/// A sequence that an R2T asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutstandingR2t {
    pub(super) ttt: Ttt,
    pub(super) offset: u32,
    pub(super) end: u32,
}

/// Unsolicited data that came before the server said where to.
#[derive(Debug)]
pub(super) struct HeldData {
    /// Offset of the buffer's first byte in the task's data.
    base: u32,
    /// Offset of the first byte that was not copied on.
    from: u32,
    /// Offset of the first byte that has not come.
    came: u32,
    end: u32,
    /// `None` while it is out with a receive.
    pub(super) data: Option<SgMut>,
}

/// Where the next bytes of a task go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into the server's buffer of this index: so many bytes.
    Place(usize, u32),
    /// Into the hold.
    Hold(Range<usize>),
    /// The hold must be taken first.
    NeedHold,
    /// Nowhere: so many bytes are dropped.
    Skip(u32),
}

impl TaskKind {
    /// Whether unsolicited data comes for it.
    pub(super) fn has_unsolicited(&self) -> bool {
        match self {
            TaskKind::Scsi(transfer) => transfer.unsolicited > 0,
            TaskKind::Tmf(..) | TaskKind::Text => false,
        }
    }
}

impl Transfer {
    /// Where the next at most `left` bytes go.
    pub(super) fn next_destination(&self, left: u32) -> Destination {
        if let Some((index, place)) =
            self.places.iter().enumerate().find(|(_, place)| self.got < place.data_end())
        {
            if self.got < place.data_offset() {
                return Destination::Skip(left.min(place.data_offset() - self.got));
            }
            return Destination::Place(index, left.min(place.data_end() - self.got));
        }
        match &self.hold {
            None => Destination::NeedHold,
            Some(hold) if self.got < hold.end => {
                let from = (self.got - hold.base) as usize;
                Destination::Hold(from..from + left.min(hold.end - self.got) as usize)
            }
            Some(_) => Destination::Skip(left),
        }
    }

    /// How large a hold is needed: the rest of the unsolicited data.
    pub(super) fn hold_buffer_len(&self, left: u32) -> u32 {
        self.unsolicited.saturating_sub(self.got).max(left)
    }

    pub(super) fn set_hold_buffer(&mut self, data: SgMut) {
        let end = self.got.saturating_add(data.len() as u32);
        self.hold = Some(HeldData { base: self.got, from: self.got, came: self.got, end, data: Some(data) });
    }

    /// Gives the memory that `destination` names to a receive, with the part of it that is to be filled.
    pub(super) fn lend_destination_buffer(
        &mut self,
        destination: &Destination,
    ) -> Option<(SgMut, Range<usize>)> {
        match destination {
            Destination::Place(index, len) => self.places.get_mut(*index)?.lend_to_recv(self.got, *len),
            Destination::Hold(range) => Some((self.hold.as_mut()?.data.take()?, range.clone())),
            Destination::NeedHold | Destination::Skip(_) => None,
        }
    }

    /// Takes it back from a receive that has put `n` bytes in.
    pub(super) fn return_destination_buffer(&mut self, destination: &Destination, data: SgMut, n: u32) {
        match destination {
            Destination::Place(index, _) => {
                let Some(place) = self.places.get_mut(*index) else { return };
                place.return_from_recv(data, n as usize);
            }
            Destination::Hold(_) => {
                let Some(hold) = &mut self.hold else { return };
                hold.data = Some(data);
                hold.came = hold.came.saturating_add(n);
            }
            Destination::NeedHold | Destination::Skip(_) => return,
        }
        self.got = self.got.saturating_add(n);
    }

    /// Moves what is here of the stream to where `destination` says, and digests it where that is wanted; gives how
    /// many bytes that were. `None` while that memory is out.
    pub(super) fn copy_to_destination(
        &mut self,
        destination: &Destination,
        receive_buffer: &mut ReceiveBuffer,
        mut crc: Option<&mut Crc32c>,
    ) -> Option<u32> {
        let n = match destination {
            Destination::Place(index, len) => {
                self.places.get_mut(*index)?.fill_from_stream(receive_buffer, self.got, *len, crc)?
            }
            Destination::Hold(range) => {
                let hold = self.hold.as_mut()?;
                let data = hold.data.as_mut()?;
                let n = receive_buffer.copy_into(data, range.clone());
                for slice in data.slices_mut(range.start..range.start + n) {
                    if let Some(crc) = &mut crc {
                        crc.update(slice);
                    }
                }
                hold.came = hold.came.saturating_add(n as u32);
                n
            }
            Destination::Skip(len) => receive_buffer.skip(*len as usize),
            Destination::NeedHold => 0,
        };
        self.got = self.got.saturating_add(n as u32);
        Some(n as u32)
    }

    /// Copies held bytes on into the places that want them, and frees the hold when it is empty.
    pub(super) fn place_held_data(&mut self) {
        let Some(hold) = &mut self.hold else { return };
        let Some(held) = &mut hold.data else { return };
        for place in &mut self.places {
            let from = hold.from.max(place.data_offset());
            let to = hold.came.min(place.data_end());
            if from >= to {
                continue;
            }
            if !place.copy_from_received(from, held, (from - hold.base) as usize..(to - hold.base) as usize) {
                return;
            }
            hold.from = to;
        }
        let later_bytes_have_a_place = self.places.iter().any(|place| place.data_end() > self.got);
        if hold.from >= hold.end || (hold.from >= self.got && later_bytes_have_a_place) {
            self.hold = None;
        }
    }

    /// Takes the next buffer out that is full of whole data.
    pub(super) fn take_complete_buffer(&mut self) -> Option<(u32, SgMut)> {
        let first = self.places.first_mut()?;
        if first.data_end() > self.whole {
            return None;
        }
        first.confirm_received();
        if !first.is_complete() {
            return None;
        }
        self.delivered = true;
        self.places.remove(0).into_complete()
    }

    /// The next sequence to ask for, of at most `burst` bytes.
    pub(super) fn next_r2t(&self, most: usize, burst: u32) -> Option<(u32, u32)> {
        if self.unsolicited_open || self.r2ts.len() >= most.min(R2T_MAX) {
            return None;
        }
        let asked = self.asked.max(self.whole);
        let place = self.places.iter().find(|place| place.data_end() > asked)?;
        let offset = asked.max(place.data_offset());
        let end = place.data_end().min(self.edtl).min(offset.saturating_add(burst));
        (offset < end).then_some((offset, end))
    }

    /// Whether the peer still owes data that it announced or was asked for.
    pub(super) fn is_data_owed(&self) -> bool {
        self.unsolicited_open || !self.r2ts.is_empty()
    }

    /// Drops all memory: the data is not wanted any more.
    pub(super) fn drop_memory(&mut self) {
        self.places.clear();
        self.hold = None;
    }
}

impl HeldData {
    /// Its bytes that came, with the offset of the first. `None` while they are out with a receive.
    pub(super) fn received_bytes(&self) -> Option<(u32, Vec<u8>)> {
        let len = (self.came - self.base) as usize;
        let mut bytes = Vec::with_capacity(len);
        for piece in self.data.as_ref()?.pieces() {
            bytes.extend_from_slice(piece.get(..(len - bytes.len()).min(piece.len()))?);
        }
        Some((self.base, bytes))
    }
}

impl Task {
    pub(super) fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        match &mut self.kind {
            TaskKind::Scsi(transfer) => Some(transfer),
            TaskKind::Tmf(..) | TaskKind::Text => None,
        }
    }

    /// Whether the peer still owes data.
    pub(super) fn is_data_owed(&self) -> bool {
        match &self.kind {
            TaskKind::Scsi(transfer) => transfer.is_data_owed(),
            TaskKind::Tmf(..) | TaskKind::Text => false,
        }
    }

    /// Whether arriving data has a use.
    pub(super) fn wants_data(&self) -> bool {
        matches!(self.state, TaskState::Held | TaskState::Live | TaskState::Withdrawn)
    }
}

impl Answer {
    pub(super) fn from_response(response: Response) -> Option<Self> {
        match response {
            Response::Scsi(result) => Some(Answer::Result(result)),
            Response::TargetFailure => Some(Answer::Failure),
            Response::Task(_) | Response::Targets(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buf::{MemoryClass, Pool};

    fn write(edtl: u32, offset: u32, len: usize) -> Transfer {
        let pool = Pool::new_poisoned(1 << 20);
        let mut transfer = Transfer { write: true, edtl, asked: edtl, ..Transfer::default() };
        transfer.places.extend(PayloadBuffer::new(
            offset,
            pool.take_sg(MemoryClass::Solicited, len).unwrap(),
            edtl,
        ));
        transfer
    }

    /// What a session says of the order of the data is one thing, what stands in a buffer another.
    #[test]
    fn a_buffer_is_never_full_of_bytes_that_did_not_come() {
        // All is said to have come, and nothing was put in.
        let mut transfer = write(4096, 0, 4096);
        (transfer.got, transfer.whole) = (4096, 4096);
        assert!(transfer.take_complete_buffer().is_none());
        // It begins where bytes were skipped that nobody wanted.
        let mut transfer = write(4096, 512, 512);
        let mut receive_buffer = ReceiveBuffer::with_bytes(&[7; 4096]);
        while transfer.got < 4096 {
            let destination = transfer.next_destination(4096 - transfer.got);
            let destination =
                if destination == Destination::NeedHold { Destination::Skip(4096) } else { destination };
            transfer.copy_to_destination(&destination, &mut receive_buffer, None).unwrap();
        }
        transfer.whole = 4096;
        assert_eq!(transfer.take_complete_buffer().map(|(at, data)| (at, data.len())), Some((512, 512)));
        // It is longer than the data, or lies behind it.
        let mut transfer = write(512, 0, 4096);
        let mut receive_buffer = ReceiveBuffer::with_bytes(&[7; 512]);
        transfer.copy_to_destination(&transfer.next_destination(512), &mut receive_buffer, None).unwrap();
        transfer.whole = 512;
        assert_eq!(transfer.take_complete_buffer().map(|(at, data)| (at, data.len())), Some((0, 512)));
        assert!(write(512, 512, 512).places.is_empty());
    }

    #[test]
    fn a_hold_gives_no_more_than_came_into_it() {
        let pool = Pool::new_poisoned(1 << 20);
        let mut transfer = Transfer { write: true, edtl: 1024, unsolicited: 1024, ..Transfer::default() };
        transfer.set_hold_buffer(pool.take_sg(MemoryClass::Unsolicited, 1024).unwrap());
        let mut receive_buffer = ReceiveBuffer::with_bytes(&[7; 100]);
        transfer.copy_to_destination(&transfer.next_destination(1024), &mut receive_buffer, None).unwrap();
        // What is said to have come and did not.
        (transfer.got, transfer.whole) = (1024, 1024);
        transfer.places.extend(PayloadBuffer::new(
            0,
            pool.take_sg(MemoryClass::Solicited, 1024).unwrap(),
            1024,
        ));
        transfer.place_held_data();
        assert!(transfer.take_complete_buffer().is_none());
    }
}
