//! From received bytes to PDUs of the target.

use super::InitiatorSession;
use super::command::{CommandData, RequestKind};
use super::link::{LinkPhase, LinkState, PONGS_MAX, SMALL_MAX, Segment};
use super::request::{Fault, LinkFault};
use crate::framing::{Parsing, PduReceiver, ReceiveState};
use crate::initiator::Failure;
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
        if !link.rx.may_receive() || link.is_over() {
            return None;
        }
        let direct = match link.rx.state {
            ReceiveState::Data { left, segment: Segment::Read { tag, offset } } if left > 0 => {
                self.commands.memory(tag).and_then(|memory| {
                    let data = memory.take()?;
                    Some(DirectBuffer { tag, data, want: offset as usize..(offset + left) as usize })
                })
            }
            ReceiveState::Data { .. } | ReceiveState::Header => None,
        };
        Some(self.commands.links[index].rx.receive(direct))
    }

    /// Takes a receive back.
    pub(super) fn received(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        let link = &mut self.commands.links[index];
        link.rx.is_out = false;
        let bytes = received.bytes();
        let placed = op.direct.map_or(0, |direct| self.take_back(index, direct, bytes));
        let link = &mut self.commands.links[index];
        if link.is_over() {
            return Ok(());
        }
        if !link.rx.receive_buffer.take(received, op.stage, placed) {
            match &link.phase {
                LinkPhase::Login(login) if login.is_proving() => self.fail_login(index, Failure::CutShort),
                _ => self.lose_link(index),
            }
            return Ok(());
        }
        self.parse(cx, index)
    }

    /// Puts a buffer back where it was taken from; gives how many bytes were for it.
    fn take_back(&mut self, index: LinkIndex, direct: DirectBuffer, bytes: usize) -> usize {
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let link = &mut self.commands.links[index];
        if link.framing.data_digest {
            data.digest(want.start..want.start + n, &mut link.rx.crc);
        }
        if let ReceiveState::Data { left, segment: Segment::Read { offset, .. } } = &mut link.rx.state {
            *offset += n as u32;
            *left -= n as u32;
        }
        if let Some(memory) = self.commands.memory(tag) {
            *memory = Some(data);
        }
        if let Some(why) = self.commands.table.get(tag).and_then(|command| command.lost) {
            self.commands.lose(tag, why);
        }
        n
    }

    /// Parses all that is here.
    pub(super) fn parse(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<(), LinkFault> {
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
                Ok(Parsing::Continue) => {}
                Ok(Parsing::Wait) => return Ok(()),
                Err(fault) => {
                    self.fail();
                    return Err(LinkFault { link: index.into(), fault });
                }
            }
        }
    }

    fn parse_header(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<Parsing, Fault> {
        let full = self.notices.len() >= NOTICES_MAX;
        let link = &mut self.commands.links[index];
        if full || link.pongs >= PONGS_MAX {
            return Ok(Parsing::Wait);
        }
        let Some(bhs) = link.rx.next_bhs() else { return Ok(Parsing::Wait) };
        // The digest covers additional segments too, which no target's PDU has.
        if bhs.ahs_len() != 0 {
            return Err(Fault::UnexpectedAhs);
        }
        match link.rx.take_header(&bhs, link.framing.header_digest) {
            None => return Ok(Parsing::Wait),
            Some(Err(_wrong)) => return Err(Fault::HeaderDigest),
            Some(Ok(_no_additional_segments)) => {}
        }
        link.heard = cx.now;
        if bhs.data_len() > link.framing.own_mrdsl as usize {
            return Err(Fault::SegmentTooLong(bhs.data_len() as u32));
        }
        let segment = self.begin(index, &bhs)?;
        if bhs.data_len() == 0 {
            self.end_pdu(cx, index, &bhs, segment, true)?;
        } else {
            self.commands.links[index].rx.begin_data(&bhs, segment);
        }
        Ok(Parsing::Continue)
    }

    /// Judges a header; says what its data segment is for.
    fn begin(&mut self, index: LinkIndex, bhs: &Bhs) -> Result<Segment, Fault> {
        let opcode = bhs.opcode();
        let pdu = DataIn::from_bhs(bhs);
        let segment = match opcode {
            Opcode::DATA_IN => match self.commands.check_data(index, pdu)? {
                Some(tag) => Segment::Read { tag, offset: pdu.buffer_offset.get() },
                None => Segment::Skip,
            },
            Opcode::SCSI_RESPONSE => {
                self.commands.expect(index, bhs, |kind| matches!(kind, RequestKind::Scsi(_)))?;
                Segment::Small { filled: 0 }
            }
            Opcode::TEXT_RESPONSE => {
                match self.commands.expect(index, bhs, |kind| matches!(kind, RequestKind::Text { .. }))? {
                    Some(tag) => Segment::Text { tag },
                    None => Segment::Skip,
                }
            }
            Opcode::TMF_RESPONSE => {
                self.commands.expect(index, bhs, |kind| matches!(kind, RequestKind::Task { .. }))?;
                Segment::Skip
            }
            Opcode::REJECT | Opcode::ASYNC_MESSAGE => Segment::Small { filled: 0 },
            Opcode::R2T => {
                self.commands.take_numbers(index, bhs)?;
                self.commands.take_r2t(index, R2t::from_bhs(bhs))?;
                return Ok(Segment::Skip);
            }
            Opcode::NOP_IN => {
                // A ping of the target's has no data; any is final (RFC 7143 §11.19).
                let nop = NopIn::from_bhs(bhs);
                if nop.flags & 0x80 == 0 || nop.itt.is_none() && bhs.data_len() > 0 {
                    return Err(Fault::Ping);
                }
                Segment::Skip
            }
            Opcode::LOGOUT_RESPONSE => Segment::Skip,
            other => return Err(Fault::Unexpected(other)),
        };
        self.commands.take_numbers(index, bhs)?;
        Ok(segment)
    }

    fn parse_data(&mut self, index: LinkIndex, left: u32, segment: Segment) -> Parsing {
        let link = &mut self.commands.links[index];
        let digest = link.framing.data_digest;
        let LinkState { rx: PduReceiver { receive_buffer, state, crc, .. }, small, .. } = link;
        if receive_buffer.is_empty() {
            return Parsing::Wait;
        }
        let len = left as usize;
        let (n, segment) = match segment {
            Segment::Read { tag, offset } => {
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
                            data.digest(from..from + n, crc);
                        }
                        (n, Segment::Read { tag, offset: offset + n as u32 })
                    }
                    // It ended meanwhile, by an answer on another link.
                    None => (receive_buffer.digest(len, crc), segment),
                }
            }
            Segment::Small { filled } if filled < SMALL_MAX => {
                let bytes = take_small(receive_buffer, small.get_mut(filled..).unwrap_or_default(), len);
                crc.update(bytes);
                (bytes.len(), Segment::Small { filled: filled + bytes.len() })
            }
            Segment::Text { tag } => {
                let bytes = take_small(receive_buffer, small, len);
                crc.update(bytes);
                if let Some(RequestKind::Text { reader, .. }) =
                    self.commands.table.get_mut(tag).map(|c| &mut c.kind)
                {
                    reader.add(bytes);
                }
                (bytes.len(), segment)
            }
            Segment::Small { .. } | Segment::Skip => (receive_buffer.digest(len, crc), segment),
        };
        *state = ReceiveState::Data { left: left - n as u32, segment };
        Parsing::Continue
    }

    fn parse_trailer(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        segment: Segment,
    ) -> Result<Parsing, Fault> {
        let link = &mut self.commands.links[index];
        let Some(good) = link.rx.take_trailer(link.framing.data_digest) else { return Ok(Parsing::Wait) };
        link.rx.state = ReceiveState::Header;
        let bhs = link.rx.bhs;
        self.end_pdu(cx, index, &bhs, segment, good)?;
        Ok(Parsing::Continue)
    }

    /// A PDU is whole; `good`: its data digest is right. Only a read's data can be wrong without harm to
    /// what comes after it.
    fn end_pdu(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        bhs: &Bhs,
        segment: Segment,
        good: bool,
    ) -> Result<(), Fault> {
        match segment {
            Segment::Read { tag, .. } => return self.commands.end_data(tag, DataIn::from_bhs(bhs), good),
            Segment::Small { .. } | Segment::Text { .. } if !good => {
                return Err(Fault::DataDigest(bhs.opcode()));
            }
            Segment::Small { filled } => {
                let small = self.commands.links[index].small;
                return self.answer(cx, index, bhs, small.get(..filled).unwrap_or(&small));
            }
            Segment::Text { .. } | Segment::Skip => {}
        }
        self.answer(cx, index, bhs, &[])
    }
}

/// Copies up to `len` bytes that are here into `into`; gives what it copied.
fn take_small<'a>(receive_buffer: &mut ReceiveBuffer, into: &'a mut [u8], len: usize) -> &'a [u8] {
    let want = len.min(into.len());
    let place = into.get_mut(..want).unwrap_or_default();
    let n = receive_buffer.copy_out(place);
    place.get(..n).unwrap_or(place)
}
