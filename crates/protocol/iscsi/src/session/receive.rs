//! From received bytes to PDUs: headers, data segments, digests.
//!
//! A header is handled as soon as it is complete, before its data, so that a write's data goes directly to
//! the server's buffer. Data for which the server has given no buffer by then goes to memory reserved for it.

use super::TargetSession;
use super::link::{LinkPhase, SegmentPurpose};
use super::request::{Fault, LinkFault};
use crate::framing::{MEMORY_RETRY_INTERVAL, ParseStatus, PduReceiver, ReceiveState};
use crate::links::LinkIndex;
use crate::text::TEXT_LEN_MAX;
use crate::wire::{BHS_LEN, Bhs, Opcode, RejectReason, pad_len};
use buf::{Cx, MemoryClass, Sg, SgMut};
use stream::{Received, RecvOp};

impl TargetSession {
    /// What to receive next.
    pub(super) fn next_recv(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Option<RecvOp> {
        let link = &self.tasks.links[index];
        let phase = link.phase;
        if self.quiesced || !link.rx.can_start_receive() || matches!(phase, LinkPhase::Dead | LinkPhase::Gone)
        {
            return None;
        }
        let direct = match &link.rx.state {
            _ if phase == LinkPhase::Finishing => None,
            ReceiveState::Data { left, segment: SegmentPurpose::Write { tag, .. }, .. } if *left > 0 => {
                let (tag, left) = (*tag, *left);
                self.tasks.lend_direct_buffer(cx, index, tag, left)?
            }
            ReceiveState::Data { .. } => None,
            ReceiveState::Header => self.tasks.links[index].rx.receive_buffer.lend_partial_command(),
        };
        Some(self.tasks.links[index].rx.start_receive(direct))
    }

    /// Takes a receive back.
    pub(super) fn finish_receive(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        let link = &mut self.tasks.links[index];
        link.rx.is_out = false;
        let bytes = received.bytes();
        let placed = op.direct.map_or(0, |direct| self.tasks.return_direct_buffer(index, direct, bytes));
        let link = &mut self.tasks.links[index];
        if !link.rx.receive_buffer.take_received(received, op.stage, placed) {
            self.fail_link(cx.now, index);
            return Ok(());
        }
        self.parse_received(cx, index, false)
    }

    /// Parses all that is here. `placing`: the server has had its chance to place the data that the
    /// stream stands in. Data of commands that are announced meanwhile waits for the next call, so
    /// that it is copied once, to its place.
    pub(super) fn parse_received(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        mut placing: bool,
    ) -> Result<(), LinkFault> {
        let told = self.tasks.events.len();
        loop {
            let link = &mut self.tasks.links[index];
            if !link.is_open() {
                link.rx.receive_buffer.clear();
                return Ok(());
            }
            if self.quiesced {
                return Ok(());
            }
            let parsing = match &link.rx.state {
                ReceiveState::Header => self.parse_header(cx, index)?,
                ReceiveState::Data { left: 0, .. } => self.parse_trailer(cx, index),
                ReceiveState::Data { .. } => self.parse_data(cx, index, placing),
            };
            if parsing == ParseStatus::Wait {
                return Ok(());
            }
            placing &= self.tasks.events.len() == told;
        }
    }

    fn parse_header(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<ParseStatus, LinkFault> {
        let discovery = self.tasks.params.discovery;
        let link = &mut self.tasks.links[index];
        if link.tx.is_full(discovery) {
            return Ok(ParseStatus::Wait);
        }
        let violation = |fault| LinkFault { link: index.into(), fault };
        let Some(bhs) = link.rx.next_bhs() else { return Ok(ParseStatus::Wait) };
        if bhs.opcode() == Opcode::SCSI_COMMAND && bhs.data_len() > 0 {
            let trailer = pad_len(bhs.data_len()) + if link.framing.data_digest { 4 } else { 0 };
            let header = BHS_LEN + bhs.ahs_len() + if link.framing.header_digest { 4 } else { 0 };
            if link.rx.receive_buffer.keep_command_whole(header + bhs.data_len() + trailer, cx.pool) {
                return Ok(ParseStatus::Wait);
            }
        }
        let ahs = match link.rx.take_header(&bhs, link.framing.header_digest) {
            None => return Ok(ParseStatus::Wait),
            Some(Ok(ahs)) => ahs,
            Some(Err(_wrong)) => {
                self.fail_link(cx.now, index);
                return Err(violation(Fault::HeaderDigest));
            }
        };
        link.heard = cx.now;
        if bhs.data_len() > link.framing.own_mrdsl as usize {
            self.fail_link(cx.now, index);
            return Err(violation(Fault::SegmentTooLong(bhs.data_len() as u32)));
        }
        if !ahs.is_empty() && bhs.opcode() != Opcode::SCSI_COMMAND {
            self.fail_session(cx.now);
            return Err(violation(Fault::UnexpectedAhs));
        }
        link.handle_exp_stat_sn(&bhs);
        let segment = self.begin_pdu(cx, index, &bhs, &ahs);
        if bhs.data_len() == 0 {
            self.finish_pdu(cx, index, &bhs, segment, true);
        } else {
            self.tasks.links[index].rx.begin_data(&bhs, segment);
        }
        Ok(ParseStatus::Continue)
    }

    /// Acts on a header; says what its data segment is for.
    fn begin_pdu(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: &Bhs, ahs: &[u8]) -> SegmentPurpose {
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => self.begin_command(cx.now, index, bhs, ahs),
            Opcode::DATA_OUT => self.tasks.begin_data_out(cx.now, index, bhs),
            Opcode::NOP_OUT => {
                let most = self.tasks.links[index].framing.peer_mrdsl as usize;
                SegmentPurpose::new_collect(bhs.data_len().min(most))
            }
            Opcode::TEXT_REQUEST => SegmentPurpose::new_collect(bhs.data_len().min(TEXT_LEN_MAX + 1)),
            Opcode::TMF_REQUEST | Opcode::LOGOUT_REQUEST => SegmentPurpose::new_collect(0),
            // A SNACK has no place at ErrorRecoveryLevel 0 (RFC 7143 §11.16), nor a login after login.
            Opcode::SNACK | Opcode::LOGIN_REQUEST => {
                self.tasks.links[index].queue_reject(bhs, RejectReason::PROTOCOL_ERROR);
                SegmentPurpose::Skip
            }
            _unknown => {
                self.tasks.links[index].queue_reject(bhs, RejectReason::COMMAND_NOT_SUPPORTED);
                SegmentPurpose::Skip
            }
        }
    }

    fn parse_data(&mut self, cx: &mut Cx<'_>, index: LinkIndex, placing: bool) -> ParseStatus {
        let link = &mut self.tasks.links[index];
        let digest = link.framing.data_digest;
        let PduReceiver { receive_buffer, state, crc, .. } = &mut link.rx;
        let ReceiveState::Data { left, segment } = state else { return ParseStatus::Continue };
        if receive_buffer.is_empty() {
            return ParseStatus::Wait;
        }
        match segment {
            SegmentPurpose::Skip => *left -= receive_buffer.skip(*left as usize) as u32,
            SegmentPurpose::Collect { data, want, filled } => {
                if data.is_empty() && *want > 0 {
                    match cx.pool.take_sg(MemoryClass::Wire, *want) {
                        Some(memory) => *data = memory,
                        None => {
                            link.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
                            return ParseStatus::Wait;
                        }
                    }
                }
                let range = *filled..(*filled + *left as usize).min(*want);
                let n = receive_buffer.copy_into(data, range.clone());
                *filled += n;
                *left -= n as u32;
                if digest {
                    data.update_crc(range.start..range.start + n, crc);
                }
                if range.is_empty() {
                    // Data beyond what is kept cannot be checked, and is not used.
                    *left -= receive_buffer.skip(*left as usize) as u32;
                }
            }
            SegmentPurpose::Write { tag, .. } => {
                let (tag, left) = (*tag, *left);
                return self.tasks.place_received_data(cx, index, tag, left, placing);
            }
        }
        ParseStatus::Continue
    }

    fn parse_trailer(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> ParseStatus {
        let link = &mut self.tasks.links[index];
        let Some(good) = link.rx.take_trailer(link.framing.data_digest) else { return ParseStatus::Wait };
        let bhs = link.rx.bhs;
        let ReceiveState::Data { segment, .. } = &mut link.rx.state else { return ParseStatus::Continue };
        let segment = segment.take_purpose();
        link.rx.state = ReceiveState::Header;
        self.finish_pdu(cx, index, &bhs, segment, good);
        ParseStatus::Continue
    }

    /// A PDU is whole; `good`: its data digest is right.
    fn finish_pdu(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        bhs: &Bhs,
        segment: SegmentPurpose,
        good: bool,
    ) {
        match segment {
            SegmentPurpose::Write { tag, sequence } => {
                self.tasks.finish_write_pdu(cx.now, index, bhs, tag, sequence, good)
            }
            SegmentPurpose::Collect { .. } if bhs.data_len() > 0 && !good && !segment.is_truncated(bhs) => {
                self.tasks.links[index].queue_reject(bhs, RejectReason::DATA_DIGEST_ERROR);
            }
            SegmentPurpose::Collect { mut data, filled, .. } => {
                data.truncate(filled);
                let data = if data.is_empty() { Sg::new() } else { data.freeze() };
                self.handle_request(cx.now, index, *bhs, data);
            }
            SegmentPurpose::Skip => {}
        }
    }
}

impl SegmentPurpose {
    fn new_collect(want: usize) -> Self {
        SegmentPurpose::Collect { data: SgMut::new(), want, filled: 0 }
    }

    /// Moves it out, piece by piece: a move of the whole state would wait for all stores before the last
    /// to it, a write's payload into cold memory among them.
    #[inline]
    fn take_purpose(&mut self) -> SegmentPurpose {
        match self {
            SegmentPurpose::Write { tag, sequence } => {
                SegmentPurpose::Write { tag: *tag, sequence: *sequence }
            }
            SegmentPurpose::Collect { .. } | SegmentPurpose::Skip => {
                std::mem::replace(self, SegmentPurpose::Skip)
            }
        }
    }

    /// Whether less is kept than came, so that the digest cannot be checked.
    fn is_truncated(&self, bhs: &Bhs) -> bool {
        match self {
            SegmentPurpose::Collect { want, .. } => *want < bhs.data_len(),
            SegmentPurpose::Write { .. } | SegmentPurpose::Skip => true,
        }
    }
}
