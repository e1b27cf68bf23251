//! From received bytes to PDUs of the target.

use super::InitiatorSession;
use super::command::{CommandData, RequestKind};
use super::link::{KEPT_SEGMENT_LEN_MAX, LinkPhase, LinkState, QUEUED_PING_ANSWERS_MAX, SegmentPurpose};
use super::request::{Fault, LinkFault};
use crate::framing::{ParseStatus, PduReceiver, ReceiveState};
use crate::initiator::LoginFailure;
use crate::links::LinkIndex;
use crate::wire::{Bhs, DataIn, NopIn, Opcode, Pdu, R2t};
use buf::Cx;
use stream::{DirectBuffer, ReceiveBuffer, Received, RecvOp};

/// Most notices that wait to be taken: parsing waits for room.
const NOTICES_MAX: usize = 64;

impl InitiatorSession {
    /// What to receive next: the rest of a read's data goes straight to where the caller wants it.
    pub(super) fn next_recv(&mut self, index: LinkIndex) -> Option<RecvOp> {
        let link = &self.commands.links[index];
        if !link.rx.can_start_receive() || link.is_over() {
            return None;
        }
        let direct = match link.rx.state {
            ReceiveState::Data { left, segment: SegmentPurpose::Read { tag, offset } } if left > 0 => {
                self.commands.memory_mut(tag).and_then(|memory| {
                    let data = memory.take()?;
                    Some(DirectBuffer { tag, data, want: offset as usize..(offset + left) as usize })
                })
            }
            ReceiveState::Data { .. } | ReceiveState::Header => None,
        };
        Some(self.commands.links[index].rx.start_receive(direct))
    }

    /// Takes a receive back.
    pub(super) fn finish_receive(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        let link = &mut self.commands.links[index];
        link.rx.is_out = false;
        let bytes = received.bytes();
        let placed = op.direct.map_or(0, |direct| self.return_direct_buffer(index, direct, bytes));
        let link = &mut self.commands.links[index];
        if link.is_over() {
            return Ok(());
        }
        if !link.rx.receive_buffer.take_received(received, op.stage, placed) {
            match &link.phase {
                LinkPhase::Login(login) if login.is_authenticating() => {
                    self.handle_login_failure(index, LoginFailure::CutShort)
                }
                _ => self.handle_link_lost(index),
            }
            return Ok(());
        }
        self.parse_received(cx, index)
    }

    /// Puts a buffer back where it was taken from; gives how many bytes were for it.
    fn return_direct_buffer(&mut self, index: LinkIndex, direct: DirectBuffer, bytes: usize) -> usize {
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let link = &mut self.commands.links[index];
        if link.framing.data_digest {
            data.update_crc(want.start..want.start + n, &mut link.rx.crc);
        }
        if let ReceiveState::Data { left, segment: SegmentPurpose::Read { offset, .. } } = &mut link.rx.state
        {
            *offset += n as u32;
            *left -= n as u32;
        }
        if let Some(memory) = self.commands.memory_mut(tag) {
            *memory = Some(data);
        }
        if let Some(why) = self.commands.table.get(tag).and_then(|command| command.lost) {
            self.commands.end_unanswered(tag, why);
        }
        n
    }

    /// Parses all that is here.
    pub(super) fn parse_received(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<(), LinkFault> {
        loop {
            let link = &mut self.commands.links[index];
            let parsing = match (&link.phase, link.rx.state) {
                (LinkPhase::Dead | LinkPhase::Gone, _) => {
                    link.rx.receive_buffer.clear();
                    return Ok(());
                }
                (LinkPhase::Login(_), _) => Ok(self.parse_login(cx, index)),
                (LinkPhase::Open, ReceiveState::Header) => self.parse_header(cx, index),
                (LinkPhase::Open, ReceiveState::Data { left: 0, segment }) => {
                    self.parse_trailer(cx, index, segment)
                }
                (LinkPhase::Open, ReceiveState::Data { left, segment }) => {
                    Ok(self.parse_data(index, left, segment))
                }
            };
            match parsing {
                Ok(ParseStatus::Continue) => {}
                Ok(ParseStatus::Wait) => return Ok(()),
                Err(fault) => {
                    self.fail_session();
                    return Err(LinkFault { link: index.into(), fault });
                }
            }
        }
    }

    fn parse_header(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<ParseStatus, Fault> {
        let full = self.notices.len() >= NOTICES_MAX;
        let link = &mut self.commands.links[index];
        if full || link.pongs >= QUEUED_PING_ANSWERS_MAX {
            return Ok(ParseStatus::Wait);
        }
        let Some(bhs) = link.rx.next_bhs() else { return Ok(ParseStatus::Wait) };
        // The digest covers additional segments too, which no target's PDU has.
        if bhs.ahs_len() != 0 {
            return Err(Fault::UnexpectedAhs);
        }
        match link.rx.take_header(&bhs, link.framing.header_digest) {
            None => return Ok(ParseStatus::Wait),
            Some(Err(_wrong)) => return Err(Fault::HeaderDigest),
            Some(Ok(_no_additional_segments)) => {}
        }
        link.heard = cx.now;
        if bhs.data_len() > link.framing.own_mrdsl as usize {
            return Err(Fault::SegmentTooLong(bhs.data_len() as u32));
        }
        let segment = self.begin_pdu(index, &bhs)?;
        if bhs.data_len() == 0 {
            self.finish_pdu(cx, index, &bhs, segment, true)?;
        } else {
            self.commands.links[index].rx.begin_data(&bhs, segment);
        }
        Ok(ParseStatus::Continue)
    }

    /// Judges a header; says what its data segment is for.
    fn begin_pdu(&mut self, index: LinkIndex, bhs: &Bhs) -> Result<SegmentPurpose, Fault> {
        let opcode = bhs.opcode();
        let pdu = DataIn::from_bhs(bhs);
        let segment = match opcode {
            Opcode::DATA_IN => match self.commands.check_data_in(index, pdu)? {
                Some(tag) => SegmentPurpose::Read { tag, offset: pdu.buffer_offset.get() },
                None => SegmentPurpose::Skip,
            },
            Opcode::SCSI_RESPONSE => {
                self.commands
                    .find_answered_request(index, bhs, |kind| matches!(kind, RequestKind::Scsi(_)))?;
                SegmentPurpose::Small { filled: 0 }
            }
            Opcode::TEXT_RESPONSE => {
                match self
                    .commands
                    .find_answered_request(index, bhs, |kind| matches!(kind, RequestKind::Text { .. }))?
                {
                    Some(tag) => SegmentPurpose::Text { tag },
                    None => SegmentPurpose::Skip,
                }
            }
            Opcode::TMF_RESPONSE => {
                self.commands
                    .find_answered_request(index, bhs, |kind| matches!(kind, RequestKind::Task { .. }))?;
                SegmentPurpose::Skip
            }
            Opcode::REJECT | Opcode::ASYNC_MESSAGE => SegmentPurpose::Small { filled: 0 },
            Opcode::R2T => {
                self.commands.handle_sequence_numbers(index, bhs)?;
                self.commands.handle_r2t(index, R2t::from_bhs(bhs))?;
                return Ok(SegmentPurpose::Skip);
            }
            Opcode::NOP_IN => {
                // A ping of the target's has no data; any is final (RFC 7143 §11.19).
                let nop = NopIn::from_bhs(bhs);
                if nop.flags & 0x80 == 0 || nop.itt.is_none() && bhs.data_len() > 0 {
                    return Err(Fault::Ping);
                }
                SegmentPurpose::Skip
            }
            Opcode::LOGOUT_RESPONSE => SegmentPurpose::Skip,
            other => return Err(Fault::Unexpected(other)),
        };
        self.commands.handle_sequence_numbers(index, bhs)?;
        Ok(segment)
    }

    fn parse_data(&mut self, index: LinkIndex, left: u32, segment: SegmentPurpose) -> ParseStatus {
        let link = &mut self.commands.links[index];
        let digest = link.framing.data_digest;
        let LinkState { rx: PduReceiver { receive_buffer, state, crc, .. }, small, .. } = link;
        if receive_buffer.is_empty() {
            return ParseStatus::Wait;
        }
        let len = left as usize;
        let (n, segment) = match segment {
            SegmentPurpose::Read { tag, offset } => {
                let command = self.commands.table.get_mut(tag);
                let data = command.and_then(|command| match &mut command.data {
                    CommandData::In(Some(data)) => Some(data),
                    CommandData::In(None) | CommandData::None | CommandData::Out { .. } => None,
                });
                match data {
                    Some(data) => {
                        let from = offset as usize;
                        let n = receive_buffer.copy_into(data, from..from + len);
                        if digest {
                            data.update_crc(from..from + n, crc);
                        }
                        (n, SegmentPurpose::Read { tag, offset: offset + n as u32 })
                    }
                    // It ended meanwhile, by an answer on another link.
                    None => (receive_buffer.skip_with_crc(len, crc), segment),
                }
            }
            SegmentPurpose::Small { filled } if filled < KEPT_SEGMENT_LEN_MAX => {
                let bytes =
                    copy_small_segment(receive_buffer, small.get_mut(filled..).unwrap_or_default(), len);
                crc.update(bytes);
                (bytes.len(), SegmentPurpose::Small { filled: filled + bytes.len() })
            }
            SegmentPurpose::Text { tag } => {
                let bytes = copy_small_segment(receive_buffer, small, len);
                crc.update(bytes);
                if let Some(RequestKind::Text { reader, .. }) =
                    self.commands.table.get_mut(tag).map(|c| &mut c.kind)
                {
                    reader.add_bytes(bytes);
                }
                (bytes.len(), segment)
            }
            SegmentPurpose::Small { .. } | SegmentPurpose::Skip => {
                (receive_buffer.skip_with_crc(len, crc), segment)
            }
        };
        *state = ReceiveState::Data { left: left - n as u32, segment };
        ParseStatus::Continue
    }

    fn parse_trailer(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        segment: SegmentPurpose,
    ) -> Result<ParseStatus, Fault> {
        let link = &mut self.commands.links[index];
        let Some(good) = link.rx.take_trailer(link.framing.data_digest) else { return Ok(ParseStatus::Wait) };
        link.rx.state = ReceiveState::Header;
        let bhs = link.rx.bhs;
        self.finish_pdu(cx, index, &bhs, segment, good)?;
        Ok(ParseStatus::Continue)
    }

    /// A PDU is whole; `good`: its data digest is right. Only a read's data can be wrong without harm to
    /// what comes after it.
    fn finish_pdu(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        bhs: &Bhs,
        segment: SegmentPurpose,
        good: bool,
    ) -> Result<(), Fault> {
        match segment {
            SegmentPurpose::Read { tag, .. } => {
                return self.commands.finish_data_in(tag, DataIn::from_bhs(bhs), good);
            }
            SegmentPurpose::Small { .. } | SegmentPurpose::Text { .. } if !good => {
                return Err(Fault::DataDigest(bhs.opcode()));
            }
            SegmentPurpose::Small { filled } => {
                let small = self.commands.links[index].small;
                return self.handle_pdu(cx, index, bhs, small.get(..filled).unwrap_or(&small));
            }
            SegmentPurpose::Text { .. } | SegmentPurpose::Skip => {}
        }
        self.handle_pdu(cx, index, bhs, &[])
    }
}

/// Copies up to `len` bytes that are here into `into`; gives what it copied.
fn copy_small_segment<'a>(receive_buffer: &mut ReceiveBuffer, into: &'a mut [u8], len: usize) -> &'a [u8] {
    let want = len.min(into.len());
    let place = into.get_mut(..want).unwrap_or_default();
    let n = receive_buffer.copy_out(place);
    place.get(..n).unwrap_or(place)
}
