//! From received bytes to PDUs of the controller.

use super::command::CommandData;
use super::outgoing::PduContext;
use super::{HostQueue, HostRole, OutgoingPdu};
use crate::LinkFault;
use crate::pdu_receiver::{HeaderFault, ParseStatus, ReceiveState};
use crate::queue::{QueuePhase, RoleQueue};
use crate::send_queue::NoMemory;
use crate::wire::{
    C2hData, CapsuleResp, CommonHeader, FatalError, Flags, IcResp, PduFrame, PduLimits, PduType, R2t, Sender,
    TermReq,
};
use buf::{Cx, SgMut};
use nvme::Cqe;
use stream::{DirectBuffer, HostEvent, SendOp, Tag};

/// Where the data of a C2HData goes.
#[derive(Clone, Copy, Debug)]
pub struct PduData {
    tag: Tag,
    flags: Flags,
    /// Offset in the data of the read.
    at: u32,
    /// Bytes that are still to come.
    left: u32,
}

/// What a header began.
enum BegunPdu {
    /// Nothing: the end of the header has not come.
    Incomplete,
    /// There is no data behind it.
    Whole,
    Data(PduData),
}

impl RoleQueue for HostQueue {
    type PduData = PduData;
    type Event = HostEvent<Cqe>;

    fn has_no_commands(&self) -> bool {
        self.role.commands.is_empty()
    }

    fn end_all_commands(&mut self) {
        self.complete_all_commands();
    }

    /// The rest of a read's data goes straight to where the caller wants it.
    fn lend_direct_buffer(&mut self) -> Option<DirectBuffer> {
        match self.rx.state {
            ReceiveState::Data(PduData { tag, at, left, .. }) if left > 0 => {
                let data = self.memory_mut(tag)?.take()?;
                Some(DirectBuffer { tag, data, want: at as usize..(at + left) as usize })
            }
            ReceiveState::Data(_) | ReceiveState::Header | ReceiveState::Digest(_) => None,
        }
    }

    fn return_direct_buffer(&mut self, direct: DirectBuffer, bytes: usize) -> usize {
        let DirectBuffer { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        if let ReceiveState::Data(PduData { at, left, .. }) = &mut self.rx.state {
            *at += n as u32;
            *left -= n as u32;
            if self.parameters.data_digest {
                data.update_crc(want.start..want.start + n, &mut self.rx.crc);
            }
        }
        if let Some(memory) = self.memory_mut(tag) {
            *memory = Some(data);
        }
        if matches!(self.phase, QueuePhase::Finishing | QueuePhase::Dead) {
            self.complete_all_commands();
        }
        n
    }

    fn parse_header(&mut self, _cx: &mut Cx<'_>) -> Result<ParseStatus, HeaderFault> {
        let limits = PduLimits {
            from: Sender::Controller,
            header_digest: self.parameters.header_digest,
            data_digest: self.parameters.data_digest,
            alignment: self.parameters.host_alignment,
            capsule_max: 0,
        };
        let Some(frame) = self.rx.next_frame(&limits)? else { return Ok(ParseStatus::Wait) };
        if !self.rx.check_header_digest(frame, Sender::Controller)? {
            return Ok(ParseStatus::Wait);
        }
        let data = match self.begin_pdu(frame).map_err(|fault| self.rx.header_fault(fault, frame))? {
            BegunPdu::Incomplete => return Ok(ParseStatus::Wait),
            BegunPdu::Whole => None,
            BegunPdu::Data(data) => Some(data),
        };
        self.rx.finish_header(frame.head.into(), data);
        Ok(ParseStatus::Continue)
    }

    fn parse_data(&mut self, _cx: &mut Cx<'_>, data: PduData) -> ParseStatus {
        let PduData { tag, at, left, .. } = data;
        if left == 0 {
            self.rx.state = ReceiveState::Digest(data);
            return ParseStatus::Continue;
        }
        if self.rx.receive_buffer.is_empty() {
            return ParseStatus::Wait;
        }
        let digest = self.parameters.data_digest;
        let Some(command) = self.role.commands.get_mut(tag) else { return ParseStatus::Wait };
        let CommandData::In(Some(memory)) = &mut command.data else { return ParseStatus::Wait };
        let from = at as usize;
        let n = self.rx.receive_buffer.copy_into(memory, from..from + left as usize);
        if digest {
            memory.update_crc(from..from + n, &mut self.rx.crc);
        }
        self.rx.state = ReceiveState::Data(PduData { at: at + n as u32, left: left - n as u32, ..data });
        ParseStatus::Continue
    }

    fn parse_data_digest(&mut self, _cx: &mut Cx<'_>, data: PduData) -> ParseStatus {
        let Some(good) = self.rx.finish_data(self.parameters.data_digest) else { return ParseStatus::Wait };
        self.finish_c2h_data(data.tag, data.flags, data.at, good);
        ParseStatus::Continue
    }

    fn build_send_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, NoMemory> {
        let HostRole { commands, asked, .. } = &mut self.role;
        self.out.build_send_batch(
            cx,
            &self.parameters,
            self.parameters.controller_alignment,
            PduContext { commands, asked },
        )
    }
}

impl HostQueue {
    fn memory_mut(&mut self, tag: Tag) -> Option<&mut Option<SgMut>> {
        match &mut self.role.commands.get_mut(tag)?.data {
            CommandData::In(data) => Some(data),
            CommandData::None | CommandData::Out { .. } => None,
        }
    }

    /// Acts on the header in the receive buffer, if it is whole; says where the data behind it goes.
    fn begin_pdu(&mut self, frame: PduFrame) -> Result<BegunPdu, LinkFault> {
        let out_of_turn = LinkFault::Fatal(FatalError::sequence_error(CommonHeader::AT_TYPE));
        // ICReq has left: what comes before it answers nothing.
        let asked =
            self.phase == QueuePhase::Init && !matches!(self.out.pdus.front(), Some(OutgoingPdu::Init));
        let Some(header) = self.rx.receive_buffer.peek_header(frame.head.into()) else {
            return Ok(BegunPdu::Incomplete);
        };
        let talking = matches!(self.phase, QueuePhase::Connect | QueuePhase::Open | QueuePhase::Draining);
        match frame.pdu_type {
            PduType::C2H_DATA if talking => {
                let pdu = C2hData::from_prefix(header).copied().ok_or(out_of_turn)?;
                let tag = self.check_c2h_data(&pdu, frame).map_err(LinkFault::Fatal)?;
                let (at, left) = (pdu.datao.get(), frame.data);
                return Ok(BegunPdu::Data(PduData { tag, flags: frame.flags, at, left }));
            }
            PduType::CAPSULE_RESP if talking => {
                let pdu = CapsuleResp::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.handle_completion(pdu.cqe).map_err(LinkFault::Fatal)?;
            }
            PduType::R2T if talking => {
                let pdu = R2t::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.handle_r2t(&pdu).map_err(LinkFault::Fatal)?;
            }
            PduType::IC_RESP if asked => {
                let answer = IcResp::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.parameters = answer.parameters(&self.role.asked).map_err(LinkFault::Fatal)?;
                self.phase = QueuePhase::Connect;
                self.deadline = None;
                self.events.push_back(HostEvent::Ready);
            }
            PduType::C2H_TERM_REQ => {
                let fatal = TermReq::from_prefix(header).map(TermReq::fatal_error);
                return Err(LinkFault::Terminated(
                    fatal.unwrap_or(FatalError::invalid_field(CommonHeader::AT_PLEN)),
                ));
            }
            _too_early_or_twice => return Err(out_of_turn),
        }
        Ok(BegunPdu::Whole)
    }
}
