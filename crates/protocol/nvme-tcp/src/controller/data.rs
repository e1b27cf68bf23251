//! Write data: its buffers, R2Ts, and H2CData (NVMe-TCP §3.6.2.8, §3.6.2.10).

use super::ControllerQueue;
use super::outgoing::OutgoingPdu;
use super::receive::{DataPurpose, PduData};
use super::task::{TaskEnding, TaskState};
use crate::wire::{CommonHeader, FatalError, FatalStatus, Flags, H2cData, PduFrame};
use buf::{Cx, SgMut};
use nvme::Status;
use nvme::failpoint::{Failpoint, is_on};
use stream::{PayloadBuffer, Tag, TargetEvent};

impl ControllerQueue {
    /// Acts on an H2CData's header; says where its data goes.
    pub(super) fn begin_h2c_data(&mut self, pdu: &H2cData, frame: PduFrame) -> Result<PduData, FatalError> {
        let (at, len) = (pdu.datao.get(), pdu.datal.get());
        let (most, out_of_range) =
            (self.parameters.max_h2c_data, FatalError::without_fei(FatalStatus::OUT_OF_RANGE));
        if len != frame.data {
            let absurd = frame.data > most;
            return Err(if absurd { FatalError::invalid_field(CommonHeader::AT_PLEN) } else { out_of_range });
        }
        if len > most {
            return Err(FatalError::without_fei(FatalStatus::LIMIT_EXCEEDED));
        }
        let unknown = FatalError::sequence_error(H2cData::AT_TTAG);
        let tag = self.role.tasks.find(pdu.cccid.get()).ok_or(unknown)?;
        let task = self.role.tasks.get_mut(tag).ok_or(unknown)?;
        let ttag = pdu.ttag.get();
        let asked = task.r2ts.iter_mut().find(|asked| asked.ttag == ttag).ok_or(unknown)?;
        let end = at.checked_add(len).filter(|end| *end <= asked.end).ok_or(out_of_range)?;
        let last = frame.flags.contains(Flags::LAST);
        if len == 0 || at != asked.next || last != (end == asked.end) {
            return Err(out_of_range);
        }
        asked.next = end;
        let purpose = DataPurpose::Solicited { tag, ttag };
        let lead = if is_on(Failpoint::DataMisplaced) { len.min(16) } else { 0 };
        Ok(PduData { lead, want: len - lead, tail: 0, at, purpose })
    }

    /// A capsule with data is whole.
    pub(super) fn finish_capsule(&mut self, cx: &mut Cx<'_>, tag: Tag, good: bool) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        task.arriving = false;
        if good {
            task.confirm_received();
        } else {
            self.abort_task(tag, TaskEnding::Status(Status::TRANSIENT_TRANSPORT_ERROR));
        }
        self.advance_task(cx, tag);
    }

    /// An H2CData is whole.
    pub(super) fn finish_h2c_data(&mut self, cx: &mut Cx<'_>, tag: Tag, ttag: u16, good: bool) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        let owed = task.r2ts.len();
        task.r2ts.retain(|asked| asked.ttag != ttag || asked.next < asked.end);
        let progressed = task.r2ts.len() < owed;
        if good {
            task.confirm_received();
        }
        if progressed {
            self.role.tasks.note_progress(cx.now);
        }
        if !good {
            self.abort_task(tag, TaskEnding::Status(Status::TRANSIENT_TRANSPORT_ERROR));
        }
        self.advance_task(cx, tag);
    }

    /// The server places data of a task.
    pub(super) fn add_payload_buffer(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, into: SgMut) {
        let Some(task) = self.role.tasks.get_mut(tag).filter(|task| task.wants_data()) else { return };
        let Some(place) = PayloadBuffer::new(at, into, task.len) else { return };
        task.places.push(place);
        if !self.role.tasks.carried.is_empty() {
            self.place_carried_data(tag);
        }
        self.note_payload_buffer_added(cx.now);
        self.advance_task(cx, tag);
    }

    /// Brings a task forward after data came, a place was given, or it began to end.
    fn advance_task(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        if matches!(task.state, TaskState::Live) {
            let mut received = 0;
            while let Some((at, data)) = task.take_complete_buffer() {
                let len = task.write_reserved.min(data.len() as u32);
                task.write_reserved -= len;
                received += u64::from(len);
                self.events.push_back(TargetEvent::DataReceived { tag, at, data: data.freeze() });
            }
            self.role.tasks.write_bytes = self.role.tasks.write_bytes.saturating_sub(received);
            self.send_due_r2ts(tag);
        }
        self.role.tasks.update_data_owed(cx.now, tag);
        self.finish_task(tag);
    }

    /// Sends the R2Ts that are due.
    fn send_due_r2ts(&mut self, tag: Tag) {
        let most = self.parameters.r2ts as usize;
        let len_max = self.role.limits.r2t_len_max.max(crate::wire::MAX_H2C_DATA_LEAST);
        let Some(task) = self.role.tasks.get_mut(tag) else { return };
        while let Some(asked) = task.next_r2t(self.role.next_ttag, most, len_max) {
            self.role.next_ttag = self.role.next_ttag.wrapping_add(1);
            let (ttag, at) = (asked.ttag, asked.next);
            self.out.push(OutgoingPdu::R2t { cid: task.cid, ttag, at, len: asked.end - at });
        }
    }
}
