//! From received bytes to PDUs: headers, padding, data, digests.
//!
//! A header is handled as soon as it is complete, before its data, so that the data goes directly to the
//! server's buffer. It stays in the stream until the server has given one.

use super::outgoing::{OutgoingPdu, PduContext};
use super::{ControllerQueue, ControllerRole};
use crate::LinkFault;
use crate::pdu_receiver::{HeaderFault, ParseStatus, PduReceiver, ReceiveState};
use crate::queue::{QueuePhase, RoleQueue};
use crate::send_queue::NoMemory;
use crate::wire::{
    ADMIN_CAPSULE_MAX, CapsuleCmd, CommonHeader, DIGEST_LEN, FatalError, H2cData, IcReq, PduFrame, PduLimits,
    PduType, Sender, TermReq,
};
use buf::{Cx, Time};
use nvme::failpoint::{Failpoint, is_on};
use nvme::{Sqe, Status};
use stream::{DirectBuffer, SendOp, Tag, TargetEvent};

/// Data of a PDU: `lead` bytes that are dropped, `want` bytes that have a use, `tail` dropped again.
#[derive(Clone, Copy, Debug)]
pub struct PduData {
    pub(super) lead: u32,
    pub(super) want: u32,
    pub(super) tail: u32,
    /// Offset of the next wanted byte in the command's data.
    pub(super) at: u32,
    pub(super) purpose: DataPurpose,
}

/// What the data of a PDU is for.
#[derive(Clone, Copy, Debug)]
pub enum DataPurpose {
    /// It came with its command.
    Capsule(Tag),
    /// An R2T asked for it.
    Solicited { tag: Tag, ttag: u16 },
    /// Nothing; behind it the command of this CID is refused.
    Refuse(u16, Status),
    /// Nothing.
    Skip,
}

impl PduData {
    pub(super) fn skip(len: u32, purpose: DataPurpose) -> Self {
        PduData { lead: len, want: 0, tail: 0, at: 0, purpose }
    }

    pub(super) fn tag(&self) -> Option<Tag> {
        match self.purpose {
            DataPurpose::Capsule(tag) | DataPurpose::Solicited { tag, .. } => Some(tag),
            DataPurpose::Refuse(..) | DataPurpose::Skip => None,
        }
    }
}

impl RoleQueue for ControllerQueue {
    type PduData = PduData;
    type Event = TargetEvent<Sqe>;

    #[inline]
    fn has_no_commands(&self) -> bool {
        self.role.tasks.len() == 0
    }

    fn end_all_commands(&mut self) {
        self.abort_all_tasks();
    }

    /// One command at a time until Connect is answered, and nothing is out when the queue is handed off.
    fn is_receive_held(&self) -> bool {
        self.role.quiesced
            || self.phase == QueuePhase::Connect
                && self.awaits_connect_answer()
                && matches!(self.rx.state, ReceiveState::Header)
    }

    fn is_parsing_held(&self) -> bool {
        self.role.quiesced
    }

    fn lend_direct_buffer(&mut self) -> Option<DirectBuffer> {
        match self.rx.state {
            ReceiveState::Data(stretch) if stretch.lead == 0 && stretch.want > 0 => {
                self.lend_payload_buffer(stretch)
            }
            ReceiveState::Header => self.rx.receive_buffer.lend_partial_command(),
            ReceiveState::Data(_) | ReceiveState::Digest(_) => None,
        }
    }

    fn return_direct_buffer(&mut self, direct: DirectBuffer, bytes: usize) -> usize {
        if self.rx.receive_buffer.is_partial_command_lent() {
            return self.rx.receive_buffer.return_partial_command(direct, bytes);
        }
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let ReceiveState::Data(stretch) = &mut self.rx.state else { return n };
        let at = stretch.at;
        stretch.want -= n as u32;
        stretch.at += n as u32;
        if self.parameters.data_digest {
            data.update_crc(want.start..want.start + n, &mut self.rx.crc);
        }
        if let Some(task) = self.role.tasks.get_mut(tag)
            && task.wants_data()
            && let Some(place) = task.buffer_for_offset(at)
        {
            place.return_from_recv(data, n);
        }
        n
    }

    #[inline]
    fn parse_header(&mut self, cx: &mut Cx<'_>) -> Result<ParseStatus, HeaderFault> {
        // What a host makes us answer stays bounded: the rest waits until some of it has left.
        if self.is_send_queue_full() || (self.phase == QueuePhase::Connect && self.awaits_connect_answer()) {
            return Ok(ParseStatus::Wait);
        }
        let limits = self.pdu_limits();
        let Some(frame) = self.rx.next_frame(&limits)? else { return Ok(ParseStatus::Wait) };
        let trailer = if limits.data_digest { DIGEST_LEN } else { 0 };
        if self.phase == QueuePhase::Open
            && frame.data > 0
            && frame.pdu_type == PduType::CAPSULE_CMD
            && self
                .rx
                .receive_buffer
                .keep_command_whole(usize::from(frame.head) + frame.data as usize + trailer, cx.pool)
        {
            return Ok(ParseStatus::Wait);
        }
        if !self.rx.check_header_digest(frame, Sender::Host)? {
            return Ok(ParseStatus::Wait);
        }
        let Some(data) = self.begin_pdu(frame).map_err(|fault| self.rx.header_fault(fault, frame))? else {
            return Ok(ParseStatus::Wait);
        };
        self.rx.finish_header(frame.head.into(), (frame.data > 0).then_some(data));
        if frame.data == 0 {
            self.finish_pdu(cx, data, true);
        }
        Ok(ParseStatus::Continue)
    }

    #[inline]
    fn parse_data(&mut self, cx: &mut Cx<'_>, mut stretch: PduData) -> ParseStatus {
        // The stretch is kept here as long as it goes on: to write it down and read it again would wait
        // for every store before it, a write's payload into cold memory among them.
        let done = loop {
            if stretch.lead > 0 {
                stretch.lead -= self.skip_bytes(stretch.lead);
            } else if stretch.want > 0 {
                if self.place_received_data(&mut stretch) == ParseStatus::Wait {
                    break false;
                }
            } else {
                stretch.tail -= self.skip_bytes(stretch.tail);
            }
            if stretch.lead == 0 && stretch.want == 0 && stretch.tail == 0 {
                break true;
            }
            if self.rx.receive_buffer.is_empty() {
                break false;
            }
        };
        if done {
            self.rx.state = ReceiveState::Digest(stretch);
            return self.parse_data_digest(cx, stretch);
        }
        self.rx.state = ReceiveState::Data(stretch);
        ParseStatus::Wait
    }

    #[inline]
    fn parse_data_digest(&mut self, cx: &mut Cx<'_>, stretch: PduData) -> ParseStatus {
        let Some(good) = self.rx.finish_data(self.parameters.data_digest) else { return ParseStatus::Wait };
        let good = good || is_on(Failpoint::DataDigestUnchecked);
        self.finish_pdu(cx, stretch, good);
        ParseStatus::Continue
    }

    fn build_send_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, NoMemory> {
        let ControllerRole { sqhd, unasked_bytes, tasks, .. } = &mut self.role;
        let context = PduContext { size: self.size, sqhd, unasked_bytes, read_bytes: &mut tasks.read_bytes };
        self.out.build_send_batch(cx, &self.parameters, self.parameters.host_alignment, context)
    }

    /// An abort of a task that was answered when the server was told of it.
    fn is_event_stale(&self, event: &TargetEvent<Sqe>) -> bool {
        matches!(event, TargetEvent::Aborted { tag } if !self.is_task_abort_pending(*tag))
    }

    fn handshake_awaits_us(&self) -> bool {
        self.phase == QueuePhase::Connect && self.role.connect.is_some()
    }

    fn owed_data_deadline(&self) -> Option<Time> {
        self.role.tasks.data_owed_since().map(|since| since + self.role.limits.data_out_timeout)
    }

    fn pdu_awaits_memory(&self) -> bool {
        self.role.awaits_place || !self.rx.receive_buffer.is_empty()
    }
}

impl ControllerQueue {
    /// The place of the next bytes of data, if they have one.
    fn lend_payload_buffer(&mut self, stretch: PduData) -> Option<DirectBuffer> {
        let tag = stretch.tag()?;
        let task = self.role.tasks.get_mut(tag).filter(|task| task.wants_data())?;
        let place = task.buffer_for_offset(stretch.at).filter(|place| place.data_offset() <= stretch.at)?;
        let (data, want) = place.lend_to_recv(stretch.at, stretch.want)?;
        Some(DirectBuffer { tag, data, want })
    }

    /// Whether a Connect and all its data are here, and it is unanswered.
    pub(super) fn awaits_connect_answer(&self) -> bool {
        let task = self.role.connect.and_then(|(tag, _)| self.role.tasks.get(tag));
        task.is_some_and(|task| !task.is_data_owed())
    }

    fn pdu_limits(&self) -> PduLimits {
        PduLimits {
            from: Sender::Host,
            header_digest: self.parameters.header_digest,
            data_digest: self.parameters.data_digest,
            alignment: self.parameters.controller_alignment,
            capsule_max: self.size.in_capsule_max.max(ADMIN_CAPSULE_MAX),
        }
    }

    /// Acts on a header; says what its data is for. `None`: it is not whole, or may not come in yet.
    fn begin_pdu(&mut self, frame: PduFrame) -> Result<Option<PduData>, LinkFault> {
        let out_of_turn = LinkFault::Fatal(FatalError::sequence_error(CommonHeader::AT_TYPE));
        let Some(header) = self.rx.receive_buffer.peek_header(frame.head.into()) else { return Ok(None) };
        match frame.pdu_type {
            PduType::CAPSULE_CMD if self.phase != QueuePhase::Init => {
                let capsule = CapsuleCmd::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.begin_command(&capsule.sqe, frame.data)
            }
            PduType::H2C_DATA if self.phase != QueuePhase::Init => {
                let pdu = H2cData::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.begin_h2c_data(&pdu, frame).map(Some).map_err(LinkFault::Fatal)
            }
            PduType::IC_REQ if self.phase == QueuePhase::Init => {
                let request = IcReq::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.handle_ic_req(&request).map_err(LinkFault::Fatal)?;
                Ok(Some(PduData::skip(0, DataPurpose::Skip)))
            }
            PduType::H2C_TERM_REQ => {
                let fatal = TermReq::from_prefix(header).map(TermReq::fatal_error);
                Err(LinkFault::Terminated(fatal.unwrap_or(FatalError::invalid_field(CommonHeader::AT_PLEN))))
            }
            _second_icreq_or_too_early => Err(out_of_turn),
        }
    }

    /// Drops bytes, but digests them: those around them may be wanted.
    fn skip_bytes(&mut self, len: u32) -> u32 {
        if self.parameters.data_digest {
            self.rx.receive_buffer.skip_with_crc(len as usize, &mut self.rx.crc) as u32
        } else {
            self.rx.receive_buffer.skip(len as usize) as u32
        }
    }

    /// Moves what is here of wanted data to its place.
    fn place_received_data(&mut self, stretch: &mut PduData) -> ParseStatus {
        let PduReceiver { receive_buffer, crc, .. } = &mut self.rx;
        let task =
            stretch.tag().and_then(|tag| self.role.tasks.get_mut(tag)).filter(|task| task.wants_data());
        let Some(task) = task else {
            (stretch.lead, stretch.want) = (stretch.want, 0);
            return ParseStatus::Continue;
        };
        let Some(place) = task.buffer_for_offset(stretch.at) else {
            self.role.awaits_place = true;
            return ParseStatus::Wait;
        };
        if place.data_offset() > stretch.at {
            let gap = stretch.want.min(place.data_offset() - stretch.at);
            (stretch.lead, stretch.want, stretch.at) = (gap, stretch.want - gap, stretch.at + gap);
            return ParseStatus::Continue;
        }
        let crc = self.parameters.data_digest.then_some(crc);
        let Some(n) = place.fill_from_stream(receive_buffer, stretch.at, stretch.want, crc) else {
            return ParseStatus::Wait;
        };
        stretch.want -= n as u32;
        stretch.at += n as u32;
        ParseStatus::Continue
    }

    /// A PDU is whole; `good`: its data digest is right.
    fn finish_pdu(&mut self, cx: &mut Cx<'_>, stretch: PduData, good: bool) {
        match stretch.purpose {
            DataPurpose::Capsule(tag) => self.finish_capsule(cx, tag, good),
            DataPurpose::Solicited { tag, ttag } => self.finish_h2c_data(cx, tag, ttag, good),
            DataPurpose::Refuse(cid, status) => {
                self.out.push(OutgoingPdu::Response { cid, completion: status.into(), connect: false });
            }
            DataPurpose::Skip => {}
        }
    }

    /// The in-capsule data of a task, if the stream stands before it, all of it lies in the stage, and
    /// its digest is right.
    pub(super) fn contiguous_capsule_data(&self, tag: Tag) -> Option<&[u8]> {
        let task = self.role.tasks.get(tag).filter(|task| task.wants_data() && task.places.is_empty())?;
        let ReceiveState::Data(stretch) = self.rx.state else { return None };
        let stands_there = matches!(stretch.purpose, DataPurpose::Capsule(of) if of == tag);
        if !stands_there || stretch.lead > 0 || stretch.at > 0 || stretch.want != task.len {
            return None;
        }
        let (len, behind) = (stretch.want as usize, stretch.tail as usize);
        if !self.parameters.data_digest {
            return self.rx.receive_buffer.peek_contiguous(len);
        }
        let (data, sum) =
            self.rx.receive_buffer.peek_contiguous(len + behind + DIGEST_LEN)?.split_at(len + behind);
        // What stands before it is digested already.
        let mut crc = self.rx.crc;
        crc.update(data);
        if crc.to_wire_bytes() == sum || is_on(Failpoint::DataDigestUnchecked) {
            data.get(..len)
        } else {
            None
        }
    }

    /// Data has got a place: the host is waited for again, from now on.
    pub(super) fn note_payload_buffer_added(&mut self, now: Time) {
        if std::mem::take(&mut self.role.awaits_place) {
            self.rx.pdu_since = Some(now);
        }
    }
}
