//! Write data: Data-Out PDUs (RFC 7143 §11.7), their buffers, and R2Ts (§11.8).

use super::link::SegmentPurpose;
use super::outgoing::OutgoingPdu;
use super::task::{AdditionalSense, OutstandingR2t, Task, TaskKind, TaskState, Termination, Transfer};
use super::tasks::SessionTasks;
use crate::framing::ReceiveState;
use crate::links::LinkIndex;
use crate::wire::{Bhs, DataOut, DataOutFlags, Pdu, RejectReason, Ttt, pad_len};
use buf::crc32c::Crc32c;
use buf::{SgMut, Time};
use stream::{PayloadBuffer, Tag, TargetEvent};

/// What is wrong with a Data-Out.
enum DataOutError {
    /// Its tags name nothing: it alone is refused.
    Pdu,
    /// Its task fails.
    Task(AdditionalSense),
}

impl SessionTasks {
    /// Acts on a Data-Out's header; says what its data is for.
    pub(super) fn begin_data_out(&mut self, now: Time, index: LinkIndex, bhs: &Bhs) -> SegmentPurpose {
        let pdu = DataOut::from_bhs(bhs);
        let found = self.index.find(pdu.itt.value());
        let Some(tag) = found.filter(|tag| self.is_write_on_link(*tag, index)) else {
            if !self.abandoned.contains(pdu.itt, index) || found.is_some() {
                self.links[index].queue_reject(bhs, RejectReason::INVALID_PDU_FIELD);
            }
            return SegmentPurpose::Skip;
        };
        let Some(task) = self.table.get_mut(tag) else { return SegmentPurpose::Skip };
        match check_data_out(task, pdu, self.params.initial_r2t) {
            Ok(()) => {}
            Err(DataOutError::Pdu) => {
                self.links[index].queue_reject(bhs, RejectReason::INVALID_PDU_FIELD);
                return SegmentPurpose::Skip;
            }
            Err(DataOutError::Task(sense)) => self.terminate_task(now, tag, Termination::Sense(sense)),
        }
        SegmentPurpose::Write { tag, sequence: true }
    }

    fn is_write_on_link(&mut self, tag: Tag, index: LinkIndex) -> bool {
        self.table.get_mut(tag).is_some_and(|task| {
            task.link == index && task.transfer_mut().is_some_and(|transfer| transfer.write)
        })
    }

    /// A PDU with write data is whole.
    #[inline]
    pub(super) fn finish_write_pdu(
        &mut self,
        now: Time,
        index: LinkIndex,
        bhs: &Bhs,
        tag: Tag,
        sequence: bool,
        good: bool,
    ) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer_mut() else { return };
        let owed = (transfer.unsolicited_open, transfer.r2ts.len());
        let wrong = if sequence { end_sequence(transfer, DataOut::from_bhs(bhs)) } else { None };
        if owed != (transfer.unsolicited_open, transfer.r2ts.len()) {
            // Bytes alone are no progress: a few of them now and then would hold memory for ever.
            self.links[index].owed_since = now;
        }
        transfer.whole = transfer.got;
        if wanted && !good {
            self.links[index].queue_reject(bhs, RejectReason::DATA_DIGEST_ERROR);
            self.terminate_task(now, tag, Termination::Sense(AdditionalSense::PROTOCOL_SERVICE_CRC_ERROR));
        } else if let (true, Some(sense)) = (wanted, wrong) {
            self.terminate_task(now, tag, Termination::Sense(sense));
        }
        self.advance_task(now, tag);
    }

    /// The immediate data of a task that has no other, if all of it lies in the stage and its digest is
    /// right.
    pub(super) fn contiguous_immediate_data(&self, tag: Tag) -> Option<&[u8]> {
        let task = self.table.get(tag)?;
        let TaskKind::Scsi(transfer) = &task.kind else { return None };
        let link = &self.links[task.link];
        let ReceiveState::Data { left, segment: SegmentPurpose::Write { tag: receiving, .. }, .. } =
            &link.rx.state
        else {
            return None;
        };
        let fresh = transfer.got == 0 && transfer.places.is_empty() && transfer.hold.is_none();
        if *receiving != tag || *left != transfer.edtl || !fresh || !matches!(task.state, TaskState::Live) {
            return None;
        }
        let len = *left as usize;
        if !link.framing.data_digest {
            return link.rx.receive_buffer.peek_contiguous(len);
        }
        let padded = len + pad_len(len);
        let (data, sum) = link.rx.receive_buffer.peek_contiguous(padded + 4)?.split_at(padded);
        let mut crc = Crc32c::new();
        crc.update(data);
        if crc.to_wire_bytes() == sum { data.get(..len) } else { None }
    }

    /// The server places data of a task.
    pub(super) fn add_payload_buffer(&mut self, now: Time, tag: Tag, offset: u32, into: SgMut) {
        let Some(task) = self.table.get_mut(tag) else { return };
        if !task.wants_data() {
            return;
        }
        let Some(transfer) = task.transfer_mut() else { return };
        let Some(place) = PayloadBuffer::new(offset, into, transfer.edtl) else { return };
        transfer.places.push(place);
        self.advance_task(now, tag);
    }

    /// Brings a task forward after data came, a place was given, or it began to end.
    pub(super) fn advance_task(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.table.get_mut(tag) else { return };
        if matches!(task.state, TaskState::Live) {
            self.return_complete_buffers(tag);
            self.send_due_r2ts(tag);
        }
        self.update_data_owed(now, tag);
        self.finish_task(now, tag);
    }

    fn return_complete_buffers(&mut self, tag: Tag) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let (link, reserved) = (task.link, task.write_reserved);
        let Some(transfer) = task.transfer_mut() else { return };
        if self.carried.place(tag, transfer) {
            transfer.place_held_data();
        }
        let mut came = 0;
        while let Some((offset, data)) = transfer.take_complete_buffer() {
            came += data.len() as u32;
            self.events.push_back(TargetEvent::DataReceived { tag, at: offset, data: data.freeze() });
        }
        let came = came.min(reserved);
        task.write_reserved = reserved - came;
        let link = &mut self.links[link];
        link.write_bytes = link.write_bytes.saturating_sub(u64::from(came));
    }

    /// Sends the R2Ts that are due.
    fn send_due_r2ts(&mut self, tag: Tag) {
        let most = usize::from(self.params.max_outstanding_r2t.max(1));
        let Some(task) = self.table.get_mut(tag) else { return };
        let (itt, lun, link) = (task.itt, task.lun, task.link);
        let Some(transfer) = task.transfer_mut() else { return };
        while let Some((offset, end)) = transfer.next_r2t(most, self.params.max_burst) {
            let ttt = self.ttts.next_tag();
            let sn = transfer.data_sn;
            transfer.data_sn = sn.wrapping_add(1);
            transfer.r2ts.push(OutstandingR2t { ttt, offset, end });
            transfer.asked = end;
            self.links[link].tx.push(OutgoingPdu::R2t { itt, lun, ttt, sn, offset, end });
        }
    }

    /// Keeps the link's count of tasks that the peer owes data for.
    #[inline]
    pub(super) fn update_data_owed(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.table.get_mut(tag) else { return };
        let owes = task.is_data_owed();
        if owes == task.owing {
            return;
        }
        task.owing = owes;
        let link = &mut self.links[task.link];
        if owes {
            if link.owed == 0 {
                link.owed_since = now;
            }
            link.owed += 1;
        } else {
            link.owed -= 1;
        }
    }
}

/// Checks a Data-Out against its task, and moves on to its sequence.
fn check_data_out(task: &mut Task, pdu: &DataOut, initial_r2t: bool) -> Result<(), DataOutError> {
    let (lun, wanted) = (task.lun, task.wants_data());
    let Some(transfer) = task.transfer_mut() else { return Err(DataOutError::Pdu) };
    let end = if pdu.ttt.is_none() {
        if !transfer.unsolicited_open {
            // Nothing tells how much follows: the answer waits for this sequence to end.
            transfer.unsolicited_open = true;
            let sense = if initial_r2t {
                AdditionalSense::UNEXPECTED_UNSOLICITED_DATA
            } else {
                AdditionalSense::INCORRECT_AMOUNT_OF_DATA
            };
            return if wanted { Err(DataOutError::Task(sense)) } else { Ok(()) };
        }
        transfer.unsolicited
    } else if pdu.lun == lun {
        solicited_sequence_end(transfer, pdu.ttt)?
    } else {
        return Err(DataOutError::Pdu);
    };
    if !wanted {
        return Ok(());
    }
    let sn = transfer.sequence_sn;
    transfer.sequence_sn = sn.wrapping_add(1);
    if pdu.data_sn.value() != sn {
        return Err(DataOutError::Task(AdditionalSense::PROTOCOL_SERVICE_CRC_ERROR));
    }
    let offset = pdu.buffer_offset.get();
    let past = u64::from(offset) + u64::from(pdu.data_segment_len.value());
    if offset != transfer.got || past > u64::from(end) {
        return Err(DataOutError::Task(AdditionalSense::INCORRECT_AMOUNT_OF_DATA));
    }
    Ok(())
}

/// The end of the sequence that `ttt` names: sequences are fulfilled in the order they were asked for.
fn solicited_sequence_end(transfer: &mut Transfer, ttt: Ttt) -> Result<u32, DataOutError> {
    match transfer.r2ts.first() {
        Some(asked) if asked.ttt == ttt => {
            transfer.got = transfer.got.max(asked.offset);
            Ok(asked.end)
        }
        Some(_) | None if transfer.last_ttt == Some(ttt) => {
            Err(DataOutError::Task(AdditionalSense::INCORRECT_AMOUNT_OF_DATA))
        }
        Some(_) | None => Err(DataOutError::Pdu),
    }
}

/// Ends the sequence if this is its last PDU; says what is wrong with its length.
fn end_sequence(transfer: &mut Transfer, pdu: &DataOut) -> Option<AdditionalSense> {
    if !pdu.flags.contains(DataOutFlags::FINAL) {
        return None;
    }
    let end = if pdu.ttt.is_none() {
        if !transfer.unsolicited_open {
            return None;
        }
        transfer.unsolicited_open = false;
        transfer.unsolicited
    } else {
        let first = transfer.r2ts.first().filter(|asked| asked.ttt == pdu.ttt)?;
        let end = first.end;
        transfer.last_ttt = Some(first.ttt);
        transfer.r2ts.remove(0);
        end
    };
    transfer.sequence_sn = 0;
    (transfer.got != end).then_some(AdditionalSense::INCORRECT_AMOUNT_OF_DATA)
}
