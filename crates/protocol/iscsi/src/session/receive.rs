//! From received bytes to PDUs: headers, data segments, digests.
//!
//! A header is acted on as soon as it is whole, before its data: a write's data then goes straight to
//! where the server wants it. Data that nobody has placed when the server has had its say goes to
//! memory set aside for it.

use super::link::{Phase, Segment};
use super::request::{Fault, LinkFault};
use super::task::{Destination, Task};
use super::{RETRY, TargetSession};
use crate::framing::{PduReceiver, ReceiveState};
use crate::links::LinkIndex;
use crate::text::TEXT_LEN_MAX;
use crate::wire::{BHS_LEN, Bhs, DataOut, Opcode, Pdu, RejectReason, Sn, pad_len};
use buf::{Class, Cx, Sg, SgMut};
use stream::{Direct, Received, RecvOp, Tag};

/// Whether parsing goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parsing {
    Continue,
    /// More bytes, memory or room are needed first.
    Wait,
}

impl TargetSession {
    /// What to receive next.
    pub(super) fn next_recv(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Option<RecvOp> {
        let link = &self.links[index];
        let phase = link.phase;
        if !link.rx.may_receive() || matches!(phase, Phase::Dead | Phase::Gone) {
            return None;
        }
        let direct = match &link.rx.state {
            _ if phase == Phase::Finishing => None,
            ReceiveState::Data { left, segment: Segment::Write { tag, .. }, .. } if *left > 0 => {
                let (tag, left) = (*tag, *left);
                self.direct(cx, index, tag, left)?
            }
            ReceiveState::Data { .. } => None,
            ReceiveState::Header => self.links[index].rx.inlet.fill_up(),
        };
        Some(self.links[index].rx.receive(direct))
    }

    /// The place of the next payload bytes; the outer `None` if there is no memory for them now.
    #[expect(clippy::option_option, reason = "no place now, or none needed")]
    fn direct(&mut self, cx: &mut Cx<'_>, index: LinkIndex, tag: Tag, left: u32) -> Option<Option<Direct>> {
        let destination = self.destination(cx, index, tag, left, true)?;
        let (Destination::Place(..) | Destination::Hold(_)) = &destination else { return Some(None) };
        let (data, want) = self.tasks.get_mut(tag)?.transfer()?.lend(&destination)?;
        self.links[index].destination = Some(destination);
        Some(Some(Direct { tag, data, want }))
    }

    /// Takes a receive back.
    pub(super) fn received(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        op: RecvOp,
        came: Received,
    ) -> Result<(), LinkFault> {
        let link = &mut self.links[index];
        link.rx.is_out = false;
        let bytes = came.bytes();
        let placed = op.direct.map_or(0, |direct| self.take_back(index, direct, bytes));
        let link = &mut self.links[index];
        if !link.rx.inlet.take(came, op.stage, placed) {
            self.fail_link(cx, index);
            return Ok(());
        }
        self.parse(cx, index, false)
    }

    /// Puts a buffer back where it was taken from, `bytes` of what was wanted filled at most. Gives
    /// how many bytes were for it.
    fn take_back(&mut self, index: LinkIndex, direct: Direct, bytes: usize) -> usize {
        let link = &mut self.links[index];
        if link.rx.inlet.is_filling_up() {
            return link.rx.inlet.filled_up(direct, bytes);
        }
        let Direct { tag, mut data, want } = direct;
        let n = bytes.min(want.len());
        let destination = link.destination.take();
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return n };
        *left -= n as u32;
        if link.framing.data_digest {
            data.digest(want.start..want.start + n, &mut link.rx.crc);
        }
        let Some(task) = self.tasks.get_mut(tag) else { return n };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer() else { return n };
        if let (Some(destination), true) = (destination, wanted) {
            transfer.take_back(&destination, data, n as u32);
            transfer.spill();
        }
        n
    }

    /// Parses all that is here. `placing`: the server has had its chance to place the data that the
    /// stream stands in. Data of commands that are announced meanwhile waits for the next call, so
    /// that it is copied once, to its place.
    pub(super) fn parse(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        mut placing: bool,
    ) -> Result<(), LinkFault> {
        let told = self.events.len();
        loop {
            let link = &mut self.links[index];
            if !link.is_open() {
                link.rx.inlet.clear();
                return Ok(());
            }
            let parsing = match &link.rx.state {
                ReceiveState::Header => self.parse_header(cx, index)?,
                ReceiveState::Data { left: 0, .. } => self.parse_trailer(cx, index),
                ReceiveState::Data { .. } => self.parse_data(cx, index, placing),
            };
            if parsing == Parsing::Wait {
                return Ok(());
            }
            placing &= self.events.len() == told;
        }
    }

    fn parse_header(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Result<Parsing, LinkFault> {
        let link = &mut self.links[index];
        if link.tx.is_full() {
            return Ok(Parsing::Wait);
        }
        let violation = |fault| LinkFault { link: index.into(), fault };
        let Some(bhs) = link.rx.next_bhs() else { return Ok(Parsing::Wait) };
        if bhs.opcode() == Opcode::SCSI_COMMAND && bhs.data_len() > 0 {
            let trailer = pad_len(bhs.data_len()) + if link.framing.data_digest { 4 } else { 0 };
            let header = BHS_LEN + bhs.ahs_len() + if link.framing.header_digest { 4 } else { 0 };
            if link.rx.inlet.keep_whole(header + bhs.data_len() + trailer, cx.pool) {
                return Ok(Parsing::Wait);
            }
        }
        let ahs = match link.rx.take_header(&bhs, link.framing.header_digest) {
            None => return Ok(Parsing::Wait),
            Some(Ok(ahs)) => ahs,
            Some(Err(_wrong)) => {
                self.fail_link(cx, index);
                return Err(violation(Fault::HeaderDigest));
            }
        };
        link.heard = cx.now;
        if bhs.data_len() > link.framing.own_mrdsl as usize {
            self.fail_link(cx, index);
            return Err(violation(Fault::SegmentTooLong(bhs.data_len() as u32)));
        }
        if !ahs.is_empty() && bhs.opcode() != Opcode::SCSI_COMMAND {
            self.fail_session(cx);
            return Err(violation(Fault::UnexpectedAhs));
        }
        self.acknowledge(index, &bhs);
        let segment = self.begin(cx, index, &bhs, &ahs);
        if bhs.data_len() == 0 {
            self.end_pdu(cx, index, &bhs, segment, true);
        } else {
            self.links[index].rx.begin_data(&bhs, segment);
        }
        Ok(Parsing::Continue)
    }

    /// Takes ExpStatSN, which stands at the same place in every request. Numbers that we have not
    /// reached are ignored: nothing is kept for retransmission that they could free.
    fn acknowledge(&mut self, index: LinkIndex, bhs: &Bhs) {
        let link = &mut self.links[index];
        let exp = DataOut::from_bhs(bhs).exp_stat_sn;
        let acked = exp.sub(1);
        if link.acked.lt(acked) && exp.le(link.tx.stat_sn) {
            link.acked = acked;
        }
    }

    /// Acts on a header; says what its data segment is for.
    fn begin(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: &Bhs, ahs: &[u8]) -> Segment {
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => self.begin_command(cx, index, bhs, ahs),
            Opcode::DATA_OUT => self.begin_data_out(cx, index, bhs),
            Opcode::NOP_OUT => {
                let most = self.links[index].framing.peer_mrdsl as usize;
                Segment::gather(bhs.data_len().min(most))
            }
            Opcode::TEXT_REQUEST => Segment::gather(bhs.data_len().min(TEXT_LEN_MAX + 1)),
            Opcode::TMF_REQUEST | Opcode::LOGOUT_REQUEST => Segment::gather(0),
            // A SNACK has no place at ErrorRecoveryLevel 0 (RFC 7143 §11.16), nor a login after login.
            Opcode::SNACK | Opcode::LOGIN_REQUEST => {
                self.reject(index, bhs, RejectReason::PROTOCOL_ERROR);
                Segment::Skip
            }
            _unknown => {
                self.reject(index, bhs, RejectReason::COMMAND_NOT_SUPPORTED);
                Segment::Skip
            }
        }
    }

    fn parse_data(&mut self, cx: &mut Cx<'_>, index: LinkIndex, placing: bool) -> Parsing {
        let link = &mut self.links[index];
        let digest = link.framing.data_digest;
        let PduReceiver { inlet, state, crc, .. } = &mut link.rx;
        let ReceiveState::Data { left, segment } = state else { return Parsing::Continue };
        if inlet.is_empty() {
            return Parsing::Wait;
        }
        match segment {
            Segment::Skip => *left -= inlet.skip(*left as usize) as u32,
            Segment::Gather { data, want, filled } => {
                if data.is_empty() && *want > 0 {
                    match cx.pool.take_sg(Class::Wire, *want) {
                        Some(memory) => *data = memory,
                        None => return self.wait_for_memory(cx, index),
                    }
                }
                let range = *filled..(*filled + *left as usize).min(*want);
                let n = inlet.copy_into(data, range.clone());
                *filled += n;
                *left -= n as u32;
                if digest {
                    data.digest(range.start..range.start + n, crc);
                }
                if range.is_empty() {
                    // Data beyond what is kept cannot be checked, and is not used.
                    *left -= inlet.skip(*left as usize) as u32;
                }
            }
            Segment::Write { tag, .. } => {
                let (tag, left) = (*tag, *left);
                return self.place(cx, index, tag, left, placing);
            }
        }
        Parsing::Continue
    }

    /// Moves what is here of a write's data to its place.
    fn place(&mut self, cx: &mut Cx<'_>, index: LinkIndex, tag: Tag, left: u32, placing: bool) -> Parsing {
        let task = self.tasks.get_mut(tag);
        // What was used where it was received, or is of no use, needs no aim.
        if !task.as_ref().is_some_and(|task| task.wants_data()) {
            let PduReceiver { inlet, state, .. } = &mut self.links[index].rx;
            let n = inlet.skip(left as usize) as u32;
            if let Some(transfer) = task.and_then(Task::transfer) {
                transfer.got = transfer.got.saturating_add(n);
            }
            if let ReceiveState::Data { left, .. } = state {
                *left -= n;
            }
            return Parsing::Continue;
        }
        let Some(destination) = self.destination(cx, index, tag, left, placing) else { return Parsing::Wait };
        let link = &mut self.links[index];
        let ReceiveState::Data { left, .. } = &mut link.rx.state else { return Parsing::Continue };
        let transfer = self.tasks.get_mut(tag).and_then(|task| task.transfer());
        let n = match transfer {
            Some(transfer) => {
                let crc = link.framing.data_digest.then_some(&mut link.rx.crc);
                let Some(n) = transfer.fill(&destination, &mut link.rx.inlet, crc) else {
                    return Parsing::Wait;
                };
                n
            }
            None => link.rx.inlet.skip(*left as usize) as u32,
        };
        *left -= n;
        Parsing::Continue
    }

    /// Where a write's next data goes; takes the hold if it must and `placing` allows. `None`: not
    /// known yet, or no memory.
    fn destination(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        tag: Tag,
        left: u32,
        placing: bool,
    ) -> Option<Destination> {
        let Some(task) = self.tasks.get_mut(tag) else { return Some(Destination::Skip(left)) };
        let wanted = task.wants_data();
        let Some(transfer) = task.transfer() else { return Some(Destination::Skip(left)) };
        if !wanted {
            return Some(Destination::Skip(left));
        }
        match transfer.destination(left) {
            Destination::NeedHold if placing => {
                let len = transfer.hold_len(left) as usize;
                match cx.pool.take_sg(Class::Unsolicited, len) {
                    Some(memory) => {
                        transfer.set_hold(memory);
                        Some(transfer.destination(left))
                    }
                    None => {
                        self.wait_for_memory(cx, index);
                        None
                    }
                }
            }
            Destination::NeedHold => None,
            destination => Some(destination),
        }
    }

    fn wait_for_memory(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Parsing {
        self.links[index].retry = Some(cx.now + RETRY);
        Parsing::Wait
    }

    fn parse_trailer(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Parsing {
        let link = &mut self.links[index];
        let Some(good) = link.rx.take_trailer(link.framing.data_digest) else { return Parsing::Wait };
        let bhs = link.rx.bhs;
        let ReceiveState::Data { segment, .. } = &mut link.rx.state else { return Parsing::Continue };
        let segment = segment.take();
        link.rx.state = ReceiveState::Header;
        self.end_pdu(cx, index, &bhs, segment, good);
        Parsing::Continue
    }

    /// A PDU is whole; `good`: its data digest is right.
    fn end_pdu(&mut self, cx: &mut Cx<'_>, index: LinkIndex, bhs: &Bhs, segment: Segment, good: bool) {
        match segment {
            Segment::Write { tag, sequence } => self.end_write_pdu(cx, index, bhs, tag, sequence, good),
            Segment::Gather { .. } if bhs.data_len() > 0 && !good && !segment.is_cut(bhs) => {
                self.reject(index, bhs, RejectReason::DATA_DIGEST_ERROR);
            }
            Segment::Gather { mut data, filled, .. } => {
                data.truncate(filled);
                let data = if data.is_empty() { Sg::new() } else { data.freeze() };
                self.request(cx, index, *bhs, data);
            }
            Segment::Skip => {}
        }
    }
}

impl Segment {
    fn gather(want: usize) -> Self {
        Segment::Gather { data: SgMut::new(), want, filled: 0 }
    }

    /// Moves it out, piece by piece: a move of the whole state would wait for all stores before the last
    /// to it, a write's payload into cold memory among them.
    #[inline]
    fn take(&mut self) -> Segment {
        match self {
            Segment::Write { tag, sequence } => Segment::Write { tag: *tag, sequence: *sequence },
            Segment::Gather { .. } | Segment::Skip => std::mem::replace(self, Segment::Skip),
        }
    }

    /// Whether less is kept than came, so that the digest cannot be checked.
    fn is_cut(&self, bhs: &Bhs) -> bool {
        match self {
            Segment::Gather { want, .. } => *want < bhs.data_len(),
            Segment::Write { .. } | Segment::Skip => true,
        }
    }
}

/// CmdSN stands at the same place in every request that has one.
pub(super) fn cmd_sn_of(bhs: &Bhs) -> Sn {
    crate::wire::NopOut::from_bhs(bhs).cmd_sn
}
