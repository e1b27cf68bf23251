//! From received bytes to PDUs of the controller.

use super::command::CommandData;
use super::outgoing::OutgoingPdu;
use super::{HostQueue, Phase};
use crate::LinkFault;
use crate::wire::{
    self, C2hData, CapsuleResp, CommonHeader, DIGEST_LEN, Fatal, Flags, Frame, IcResp, PduLimits, PduType,
    R2t, Sender, TermReq,
};
use buf::crc32c::Crc32c;
use buf::{Cx, SgMut, Time};
use stream::{Direct, HostEvent, Inlet, Received, RecvOp, Tag};
use zerocopy::{FromBytes, IntoBytes};

/// Whether parsing goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParseStatus {
    Continue,
    /// More bytes are needed first.
    Wait,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) inlet: Inlet,
    state: ReceiveState,
    crc: Crc32c,
    /// A receive is out.
    pub(super) out: bool,
    /// Since when the stream has stood within a PDU.
    begun: Option<Time>,
}

/// Which part of a PDU comes next.
#[derive(Clone, Copy, Debug)]
enum ReceiveState {
    Header,
    /// `left` bytes of a read's data, from `at` of it on.
    Data {
        tag: Tag,
        flags: Flags,
        at: u32,
        left: u32,
    },
    Digest {
        tag: Tag,
        flags: Flags,
        end: u32,
    },
}

impl Receiver {
    pub(super) fn new() -> Self {
        Receiver {
            inlet: Inlet::new(),
            state: ReceiveState::Header,
            crc: Crc32c::new(),
            out: false,
            begun: None,
        }
    }

    fn is_within_pdu(&self) -> bool {
        !matches!(self.state, ReceiveState::Header) || self.inlet.is_within_header()
    }
}

impl HostQueue {
    /// What to receive next: the rest of a read's data goes straight to where the caller wants it.
    pub(super) fn next_recv(&mut self) -> Option<RecvOp> {
        if self.rx.out || !self.rx.inlet.is_empty() || matches!(self.phase, Phase::Dead | Phase::Gone) {
            return None;
        }
        let direct = match self.rx.state {
            ReceiveState::Data { tag, at, left, .. } if left > 0 => self.memory(tag).and_then(|memory| {
                let data = memory.take()?;
                Some(Direct { tag, data, want: at as usize..(at + left) as usize })
            }),
            ReceiveState::Data { .. } | ReceiveState::Header | ReceiveState::Digest { .. } => None,
        };
        self.rx.out = true;
        Some(RecvOp { direct, stage_len: self.rx.inlet.stage_len(), stage: None })
    }

    fn memory(&mut self, tag: Tag) -> Option<&mut Option<SgMut>> {
        match &mut self.commands.get_mut(tag)?.data {
            CommandData::In(data) => Some(data),
            CommandData::None | CommandData::Out { .. } => None,
        }
    }

    /// Takes a receive back.
    pub(super) fn received(
        &mut self,
        cx: &mut Cx<'_>,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        self.rx.out = false;
        let bytes = received.bytes();
        let placed = op.direct.map_or(0, |direct| self.take_back(direct, bytes));
        if !self.rx.inlet.take(received, op.stage, placed) {
            self.fail();
            return Ok(());
        }
        self.parse(cx)
    }

    /// Puts a buffer back where it was taken from; gives how many bytes were for it.
    fn take_back(&mut self, direct: Direct, bytes: usize) -> usize {
        let Direct { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        if let ReceiveState::Data { at, left, .. } = &mut self.rx.state {
            *at += n as u32;
            *left -= n as u32;
            if self.terms.data_digest {
                data.digest(want.start..want.start + n, &mut self.rx.crc);
            }
        }
        if let Some(memory) = self.memory(tag) {
            *memory = Some(data);
        }
        if matches!(self.phase, Phase::Finishing | Phase::Dead) {
            self.complete_all();
        }
        n
    }

    /// Parses all that is here.
    pub(super) fn parse(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        let result = self.parse_on(cx);
        if !self.rx.is_within_pdu() {
            self.rx.begun = None;
        } else if self.rx.begun.is_none() {
            self.rx.begun = Some(cx.now);
        }
        result
    }

    fn parse_on(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        loop {
            if matches!(self.phase, Phase::Finishing | Phase::Dead | Phase::Gone) {
                self.rx.inlet.clear();
                self.rx.state = ReceiveState::Header;
                return Ok(());
            }
            let step = match self.rx.state {
                ReceiveState::Header => self.parse_header(cx)?,
                ReceiveState::Data { tag, flags, at, left } => self.parse_data(tag, flags, at, left),
                ReceiveState::Digest { tag, flags, end } => self.parse_digest(tag, flags, end),
            };
            if step == ParseStatus::Wait {
                return Ok(());
            }
        }
    }

    fn parse_header(&mut self, cx: &mut Cx<'_>) -> Result<ParseStatus, LinkFault> {
        let limits = PduLimits {
            from: Sender::Controller,
            header_digest: self.terms.header_digest,
            data_digest: self.terms.data_digest,
            alignment: self.terms.host_alignment,
            capsule_max: 0,
        };
        let Some(bytes) = self.rx.inlet.header(wire::COMMON_LEN) else { return Ok(ParseStatus::Wait) };
        let Ok(common) = CommonHeader::read_from_bytes(bytes) else { return Ok(ParseStatus::Wait) };
        let frame = match Frame::parse(&common, &limits) {
            Ok(frame) => frame,
            Err(_) if common.pdu_type == PduType::C2H_TERM_REQ => {
                return Err(self.terminated(Fatal::field(CommonHeader::AT_PLEN)));
            }
            // Of a header whose length cannot be trusted, what every header begins with.
            Err(fatal) => return Err(self.violate(cx, fatal, common.as_bytes())),
        };
        let head = usize::from(frame.head);
        let Some(bytes) = self.rx.inlet.header(head) else { return Ok(ParseStatus::Wait) };
        if limits.header_digest && frame.flags.contains(Flags::HEADER_DIGEST) {
            let (header, rest) = bytes.split_at(frame.header.into());
            let Some(sum) = rest.first_chunk::<DIGEST_LEN>() else { return Ok(ParseStatus::Wait) };
            if *sum != wire::digest(header) {
                let fatal = Fatal::header_digest(*sum);
                return Err(self.violate_at(cx, fatal, frame));
            }
        }
        match self.begin(frame) {
            Ok(state) => {
                self.rx.inlet.consume(head);
                self.rx.begun = None;
                self.rx.crc = Crc32c::new();
                self.rx.state = state;
                Ok(ParseStatus::Continue)
            }
            Err(LinkFault::Fatal(fatal)) => Err(self.violate_at(cx, fatal, frame)),
            Err(LinkFault::Terminated(fatal)) => Err(self.terminated(fatal)),
            Err(other) => Err(other),
        }
    }

    /// Acts on the header that the inlet has; says what comes behind it.
    fn begin(&mut self, frame: Frame) -> Result<ReceiveState, LinkFault> {
        let out_of_turn = LinkFault::Fatal(Fatal::sequence(CommonHeader::AT_TYPE));
        // ICReq has left: what comes before it answers nothing.
        let asked = self.phase == Phase::Init && !matches!(self.out.front(), Some(OutgoingPdu::Init));
        let header = self.rx.inlet.header(frame.head.into()).unwrap_or_default();
        let talking = matches!(self.phase, Phase::Ready | Phase::Draining);
        match frame.pdu_type {
            PduType::C2H_DATA if talking => {
                let pdu = C2hData::from_prefix(header).copied().ok_or(out_of_turn)?;
                let tag = self.check_data(&pdu, frame).map_err(LinkFault::Fatal)?;
                return Ok(ReceiveState::Data {
                    tag,
                    flags: frame.flags,
                    at: pdu.datao.get(),
                    left: frame.data,
                });
            }
            PduType::CAPSULE_RESP if talking => {
                let pdu = CapsuleResp::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.take_completion(pdu.cqe).map_err(LinkFault::Fatal)?;
            }
            PduType::R2T if talking => {
                let pdu = R2t::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.take_r2t(&pdu).map_err(LinkFault::Fatal)?;
            }
            PduType::IC_RESP if asked => {
                let answer = IcResp::from_prefix(header).copied().ok_or(out_of_turn)?;
                self.terms = answer.terms(&self.asked).map_err(LinkFault::Fatal)?;
                self.phase = Phase::Ready;
                self.deadline = None;
                self.events.push_back(HostEvent::Ready);
            }
            PduType::C2H_TERM_REQ => {
                let fatal = TermReq::from_prefix(header).map(TermReq::fatal);
                return Err(LinkFault::Terminated(fatal.unwrap_or(Fatal::field(CommonHeader::AT_PLEN))));
            }
            _too_early_or_twice => return Err(out_of_turn),
        }
        Ok(ReceiveState::Header)
    }

    fn parse_data(&mut self, tag: Tag, flags: Flags, at: u32, left: u32) -> ParseStatus {
        if left == 0 {
            self.rx.state = ReceiveState::Digest { tag, flags, end: at };
            return ParseStatus::Continue;
        }
        if self.rx.inlet.is_empty() {
            return ParseStatus::Wait;
        }
        let digest = self.terms.data_digest;
        let Some(command) = self.commands.get_mut(tag) else { return ParseStatus::Wait };
        let CommandData::In(Some(data)) = &mut command.data else { return ParseStatus::Wait };
        let from = at as usize;
        let n = self.rx.inlet.copy_into(data, from..from + left as usize);
        if digest {
            data.digest(from..from + n, &mut self.rx.crc);
        }
        self.rx.state = ReceiveState::Data { tag, flags, at: at + n as u32, left: left - n as u32 };
        ParseStatus::Continue
    }

    fn parse_digest(&mut self, tag: Tag, flags: Flags, end: u32) -> ParseStatus {
        let mut good = true;
        if self.terms.data_digest {
            let Some(bytes) = self.rx.inlet.header(DIGEST_LEN) else { return ParseStatus::Wait };
            good = bytes == self.rx.crc.wire();
            self.rx.inlet.consume(DIGEST_LEN);
        }
        self.rx.state = ReceiveState::Header;
        self.rx.begun = None;
        self.end_data(tag, flags, end, good);
        ParseStatus::Continue
    }

    fn violate_at(&mut self, cx: &mut Cx<'_>, fatal: Fatal, frame: Frame) -> LinkFault {
        let header = self.rx.inlet.header(frame.head.into()).unwrap_or_default();
        let header: Box<[u8]> = header.iter().copied().take(frame.header.into()).collect();
        self.violate(cx, fatal, &header)
    }

    /// Says why, and ends the connection.
    fn violate(&mut self, cx: &mut Cx<'_>, fatal: Fatal, header: &[u8]) -> LinkFault {
        self.begin_end(cx.now + self.limits.term_timeout);
        self.out.push_back(OutgoingPdu::Term(fatal, header.into()));
        LinkFault::Fatal(fatal)
    }

    /// A TermReq is never answered.
    fn terminated(&mut self, fatal: Fatal) -> LinkFault {
        self.fail();
        LinkFault::Terminated(fatal)
    }

    /// When the PDU that the stream stands in must have ended.
    pub(super) fn pdu_deadline(&self) -> Option<Time> {
        self.rx.begun.map(|since| since + self.limits.pdu_timeout)
    }
}
