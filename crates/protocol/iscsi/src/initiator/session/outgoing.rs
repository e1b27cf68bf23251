//! PDUs that wait to be sent to the target, and how they are sent.
//!
//! CmdSN and ExpStatSN are stamped when a PDU enters a batch: CmdSN follows the order of sending, and a
//! command that ended before it was sent leaves no gap.

use super::InitiatorSession;
use super::command::{Command, CommandData, RequestKind};
use super::commands::CommandWindow;
use super::link::{LinkState, OutgoingPdu};
use super::request::Response;
use crate::discovery::SendTargets;
use crate::framing::{Framing, MEMORY_RETRY_INTERVAL, PDU_OVERHEAD_MAX, PduWriter};
use crate::links::LinkIndex;
use crate::wire::{
    self, BHS_LEN, Cid, CommandFlags, DataOutFlags, Itt, LogoutReason, Lun, Pdu, Sn, TextFlags,
    TmfResponseCode, Ttt, padding,
};
use buf::{Cx, Sg};
use std::ops::Range;
use stream::{SendOp, SendOpBuilder, Slab, Tag};
use zerocopy::byteorder::big_endian::U32;

/// Longest extended CDB segment: its header, and 244 bytes of CDB.
const AHS_LEN_MAX: usize = 4 + 244;
/// A PDU with an extended CDB, beside its data.
const PDU_OVERHEAD_WITH_AHS_MAX: usize = PDU_OVERHEAD_MAX + AHS_LEN_MAX;
/// `SendTargets=`, an iSCSI name of 223 bytes, and a zero byte.
const SEND_TARGETS_TEXT_LEN_MAX: usize = 240;

/// The write data that the next PDU carries.
fn next_pdu_payload<'a>(
    out: &OutgoingPdu,
    commands: &'a Slab<Command>,
    framing: Framing,
) -> Option<(&'a Sg, Range<usize>)> {
    let (tag, range) = match out {
        OutgoingPdu::Request(tag) => (tag, None),
        OutgoingPdu::Data { tag, offset, end, .. } => (tag, Some((*offset, *end))),
        OutgoingPdu::Login(_)
        | OutgoingPdu::Ping(_)
        | OutgoingPdu::Pong { .. }
        | OutgoingPdu::Logout(_)
        | OutgoingPdu::GapFiller { .. } => return None,
    };
    let CommandData::Out { data, immediate } = &commands.get(*tag)?.data else { return None };
    let (offset, end) = range.unwrap_or((0, *immediate));
    let len = (end - offset).min(framing.send_segment_len_max());
    (len > 0).then_some((data, offset as usize..(offset + len) as usize))
}

/// Bytes of head that the next PDU needs at most.
fn next_head_len_max(out: &OutgoingPdu, commands: &Slab<Command>, framing: Framing) -> usize {
    match (out, next_pdu_payload(out, commands, framing)) {
        (OutgoingPdu::Login(pdu), _) => BHS_LEN + pdu.text.len() + 3,
        (_, Some((data, range))) => {
            PDU_OVERHEAD_WITH_AHS_MAX + SendOpBuilder::head_len_for(data, range.len(), framing.data_digest)
        }
        (_, None) => PDU_OVERHEAD_WITH_AHS_MAX + SEND_TARGETS_TEXT_LEN_MAX,
    }
}

impl InitiatorSession {
    /// Makes one batch of all that waits on a link.
    pub(super) fn build_send_batch(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Option<SendOp> {
        let link = &mut self.commands.links[index];
        let framing = link.framing;
        let least = next_head_len_max(link.out.front()?, &self.commands.table, framing);
        if !link.transmit_queue.can_start_batch() {
            return None;
        }
        let estimates = link.out.iter().map(|out| next_head_len_max(out, &self.commands.table, framing));
        let Some(pdus) = PduWriter::start_batch(&mut link.transmit_queue, cx.pool, framing, least, estimates)
        else {
            link.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
            return None;
        };
        let LinkState { out: queue, exp_stat_sn, cid, pongs, .. } = link;
        let mut writer = RequestWriter {
            pdus,
            framing,
            exp_stat_sn: *exp_stat_sn,
            cid: *cid,
            priorities: self.commands.params.protocol_level >= 2,
            window: &mut self.commands.window,
            waiting: &mut self.commands.waiting,
            answered: None,
        };
        let none = Sg::new();
        while let Some(out) = queue.front_mut() {
            let head = next_head_len_max(out, &self.commands.table, framing);
            let pieces = next_pdu_payload(out, &self.commands.table, framing).map_or(&none, |(data, _)| data);
            if writer.answered.is_some() || !writer.pdus.batch.has_room(head, pieces) {
                break;
            }
            *pongs -= usize::from(matches!(out, OutgoingPdu::Pong { .. }));
            if writer.put_pdu(out, &mut self.commands.table) {
                queue.pop_front();
            }
        }
        let (batch, answered) = (writer.pdus.batch, writer.answered);
        let op = link.transmit_queue.finish_batch(batch, cx.now);
        if let Some(tag) = answered {
            self.commands.complete_request(tag, Response::Task(TmfResponseCode::NO_TASK));
            self.finish_closing();
        }
        op
    }
}

/// Makes PDUs of what waits.
struct RequestWriter<'a> {
    pdus: PduWriter,
    framing: Framing,
    exp_stat_sn: Sn,
    cid: Cid,
    priorities: bool,
    window: &'a mut CommandWindow,
    waiting: &'a mut usize,
    /// A function that need not be sent: what it names has ended.
    answered: Option<Tag>,
}

impl RequestWriter<'_> {
    /// Puts one PDU into the batch; true if `out` is done with. What belongs to a request that has ended
    /// meanwhile is left out.
    fn put_pdu(&mut self, out: &mut OutgoingPdu, commands: &mut Slab<Command>) -> bool {
        match out {
            OutgoingPdu::Login(pdu) => {
                // Its length is in the header, and it has no digests.
                self.pdus.batch.push_bytes(pdu.bhs.bytes());
                self.pdus.batch.push_bytes(&pdu.text);
                self.pdus.batch.push_bytes(padding(pdu.text.len()));
            }
            OutgoingPdu::Request(tag) => self.put_request(*tag, commands),
            &mut OutgoingPdu::Data { tag, ttt, end, .. } => {
                let (command, carried) = (commands.get(tag), next_pdu_payload(out, commands, self.framing));
                let (Some(command), Some((data, range))) = (command, carried) else { return true };
                let RequestKind::Scsi(scsi) = &command.kind else { return true };
                let OutgoingPdu::Data { offset, sn, .. } = out else { return true };
                let to = range.end as u32;
                let (last, len) = (to == end, to - *offset);
                let mut pdu = wire::DataOut::new();
                pdu.flags = if last { DataOutFlags::FINAL } else { DataOutFlags(0) };
                (pdu.lun, pdu.itt, pdu.ttt) = (Lun(scsi.lun), command.itt, ttt);
                (pdu.exp_stat_sn, pdu.data_sn) = (self.exp_stat_sn, Sn::new(*sn));
                pdu.buffer_offset = U32::new(*offset);
                self.pdus.put_pdu_with_payload(&mut pdu, &[], data, range);
                (*offset, *sn) = (to, sn.wrapping_add(1));
                if let Some(command) = commands.get_mut(tag) {
                    command.unsent -= len;
                    command.r2ts -= u32::from(last && !ttt.is_none());
                }
                return last;
            }
            OutgoingPdu::Ping(itt) => self.put_nop_out(*itt, Ttt::NONE, Lun::default()),
            OutgoingPdu::Pong { ttt, lun } => self.put_nop_out(Itt::NONE, *ttt, *lun),
            OutgoingPdu::GapFiller { itt, cmd_sn } => {
                let mut pdu = wire::NopOut::new();
                (pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (*itt, *cmd_sn, self.exp_stat_sn);
                self.pdus.put_pdu(&mut pdu, &[]);
            }
            OutgoingPdu::Logout(itt) => {
                let mut pdu = wire::LogoutRequest::new();
                pdu.op = pdu.op.with_immediate();
                pdu.set_reason(LogoutReason::CLOSE_SESSION);
                (pdu.itt, pdu.cid) = (*itt, self.cid);
                (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
                self.pdus.put_pdu(&mut pdu, &[]);
            }
        }
        true
    }

    fn put_request(&mut self, tag: Tag, commands: &mut Slab<Command>) {
        let Some(command) = commands.get(tag) else { return };
        let sn = match &command.kind {
            RequestKind::Scsi(_) => {
                *self.waiting -= 1;
                self.put_scsi_command(tag, commands)
            }
            RequestKind::Task { referenced, .. } => {
                let named = referenced.map(|tag| commands.get(tag).map(|named| (named.itt, named.sent)));
                if named == Some(None) {
                    self.answered = Some(tag);
                    return;
                }
                self.put_task_management(command, named.flatten());
                self.window.next
            }
            RequestKind::Text { question, ttt, .. } => {
                self.put_text_request(command.itt, question, *ttt);
                self.window.next
            }
        };
        if let Some(command) = commands.get_mut(tag) {
            command.sent = Some(sn);
        }
    }

    fn put_scsi_command(&mut self, tag: Tag, commands: &Slab<Command>) -> Sn {
        let sn = self.window.next.take();
        let Some(command) = commands.get(tag) else { return sn };
        let RequestKind::Scsi(scsi) = &command.kind else { return sn };
        let carried = next_pdu_payload(&OutgoingPdu::Request(tag), commands, self.framing);
        let mut pdu = wire::ScsiCommand::new();
        let mut flags = CommandFlags(0).with_attribute(scsi.attr);
        flags = match &command.data {
            CommandData::None => flags.with(CommandFlags::FINAL),
            CommandData::In(_) => flags.with(CommandFlags::FINAL).with(CommandFlags::READ),
            CommandData::Out { immediate, .. } if command.next > *immediate => {
                flags.with(CommandFlags::WRITE)
            }
            CommandData::Out { .. } => flags.with(CommandFlags::FINAL).with(CommandFlags::WRITE),
        };
        pdu.flags = flags;
        if self.priorities {
            pdu.priority = scsi.priority << 4;
        }
        (pdu.lun, pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (Lun(scsi.lun), command.itt, sn, self.exp_stat_sn);
        pdu.expected_data_len = U32::new(command.len);
        let cdb = scsi.cdb.as_slice();
        let tail = if let Some((head, tail)) = cdb.split_first_chunk() {
            pdu.cdb = *head;
            tail
        } else {
            pdu.cdb.iter_mut().zip(cdb).for_each(|(to, byte)| *to = *byte);
            &[]
        };
        let mut ahs = [0; AHS_LEN_MAX];
        let ahs = encode_extended_cdb(tail, &mut ahs);
        pdu.ahs_words = (ahs.len() / 4) as u8;
        match carried {
            Some((data, range)) => self.pdus.put_pdu_with_payload(&mut pdu, ahs, data, range),
            None => self.pdus.put_pdu_with_payload(&mut pdu, ahs, &Sg::new(), 0..0),
        }
        sn
    }

    fn put_task_management(&mut self, command: &Command, named: Option<(Itt, Option<Sn>)>) {
        let RequestKind::Task { function, lun, .. } = &command.kind else { return };
        let mut pdu = wire::TmfRequest::new();
        pdu.op = pdu.op.with_immediate();
        pdu.set_function(*function);
        (pdu.lun, pdu.itt) = (*lun, command.itt);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        if let Some((itt, sn)) = named {
            pdu.referenced_tag = itt;
            pdu.ref_cmd_sn = sn.unwrap_or(self.window.next);
        }
        self.pdus.put_pdu(&mut pdu, &[]);
    }

    /// The question, or the request for the next piece of its answer.
    fn put_text_request(&mut self, itt: Itt, question: &SendTargets, ttt: Ttt) {
        let mut pdu = wire::TextRequest::new();
        pdu.op = pdu.op.with_immediate();
        pdu.flags = TextFlags::FINAL;
        (pdu.itt, pdu.ttt) = (itt, ttt);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        let name = match question {
            SendTargets::All => "All",
            SendTargets::Named(name) => name.as_str(),
            SendTargets::Own => "",
        };
        let parts = if ttt.is_none() { ["SendTargets=", name, "\0"] } else { [""; 3] };
        let text = parts.concat();
        self.pdus.put_pdu(&mut pdu, text.as_bytes());
    }

    fn put_nop_out(&mut self, itt: Itt, ttt: Ttt, lun: Lun) {
        let mut pdu = wire::NopOut::new();
        pdu.op = pdu.op.with_immediate();
        (pdu.itt, pdu.ttt, pdu.lun) = (itt, ttt, lun);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        self.pdus.put_pdu(&mut pdu, &[]);
    }
}

/// Writes the bytes of a CDB from the 17th on as an additional segment (RFC 7143 §11.2.2.3), if there are any.
fn encode_extended_cdb<'a>(tail: &[u8], into: &'a mut [u8; AHS_LEN_MAX]) -> &'a [u8] {
    if tail.is_empty() {
        return &[];
    }
    let [high, low, kind, _reserved, bytes @ ..] = into;
    [*high, *low] = (tail.len() as u16 + 1).to_be_bytes();
    *kind = 1;
    bytes.iter_mut().zip(tail).for_each(|(to, byte)| *to = *byte);
    into.get(..(4 + tail.len()).next_multiple_of(4)).unwrap_or(into)
}
