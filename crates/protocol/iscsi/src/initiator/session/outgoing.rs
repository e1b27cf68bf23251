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
use crate::framing::{FRAME_LEN, Framing, PduWriter, RETRY};
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
const AHS_MAX: usize = 4 + 244;
/// A PDU with an extended CDB, beside its data.
const FRAME: usize = FRAME_LEN + AHS_MAX;
/// `SendTargets=`, an iSCSI name of 223 bytes, and a zero byte.
const TEXT_MAX: usize = 240;

/// The write data that the next PDU carries.
fn payload<'a>(
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
    let len = (end - offset).min(framing.segment_max());
    (len > 0).then_some((data, offset as usize..(offset + len) as usize))
}

/// Bytes of head that the next PDU needs at most.
fn head_least(out: &OutgoingPdu, commands: &Slab<Command>, framing: Framing) -> usize {
    match (out, payload(out, commands, framing)) {
        (OutgoingPdu::Login(pdu), _) => BHS_LEN + pdu.text.len() + 3,
        (_, Some((data, range))) => FRAME + SendOpBuilder::head_need(data, range.len(), framing.data_digest),
        (_, None) => FRAME + TEXT_MAX,
    }
}

impl InitiatorSession {
    /// Makes one batch of all that waits on a link.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Option<SendOp> {
        let link = &mut self.commands.links[index];
        let framing = link.framing;
        let least = head_least(link.out.front()?, &self.commands.table, framing);
        if !link.transmit_queue.is_free() {
            return None;
        }
        let estimates = link.out.iter().map(|out| head_least(out, &self.commands.table, framing));
        let Some(pdus) = PduWriter::open(&mut link.transmit_queue, cx.pool, framing, least, estimates) else {
            link.retry = Some(cx.now + RETRY);
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
            let head = head_least(out, &self.commands.table, framing);
            let pieces = payload(out, &self.commands.table, framing).map_or(&none, |(data, _)| data);
            if writer.answered.is_some() || !writer.pdus.batch.fits(head, pieces) {
                break;
            }
            *pongs -= usize::from(matches!(out, OutgoingPdu::Pong { .. }));
            if writer.put(out, &mut self.commands.table) {
                queue.pop_front();
            }
        }
        let (batch, answered) = (writer.pdus.batch, writer.answered);
        let op = link.transmit_queue.close(batch, cx.now);
        if let Some(tag) = answered {
            self.commands.complete(tag, Response::Task(TmfResponseCode::NO_TASK));
            self.tidy();
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
    fn put(&mut self, out: &mut OutgoingPdu, commands: &mut Slab<Command>) -> bool {
        match out {
            OutgoingPdu::Login(pdu) => {
                // Its length is in the header, and it has no digests.
                self.pdus.batch.put(pdu.bhs.bytes());
                self.pdus.batch.put(&pdu.text);
                self.pdus.batch.put(padding(pdu.text.len()));
            }
            OutgoingPdu::Request(tag) => self.request(*tag, commands),
            &mut OutgoingPdu::Data { tag, ttt, end, .. } => {
                let (command, carried) = (commands.get(tag), payload(out, commands, self.framing));
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
                self.pdus.put_payload(&mut pdu, &[], data, range);
                (*offset, *sn) = (to, sn.wrapping_add(1));
                if let Some(command) = commands.get_mut(tag) {
                    command.unsent -= len;
                    command.r2ts -= u32::from(last && !ttt.is_none());
                }
                return last;
            }
            OutgoingPdu::Ping(itt) => self.nop(*itt, Ttt::NONE, Lun::default()),
            OutgoingPdu::Pong { ttt, lun } => self.nop(Itt::NONE, *ttt, *lun),
            OutgoingPdu::GapFiller { itt, cmd_sn } => {
                let mut pdu = wire::NopOut::new();
                (pdu.itt, pdu.cmd_sn, pdu.exp_stat_sn) = (*itt, *cmd_sn, self.exp_stat_sn);
                self.pdus.put(&mut pdu, &[]);
            }
            OutgoingPdu::Logout(itt) => {
                let mut pdu = wire::LogoutRequest::new();
                pdu.op = pdu.op.immediate();
                pdu.set_reason(LogoutReason::CLOSE_SESSION);
                (pdu.itt, pdu.cid) = (*itt, self.cid);
                (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
                self.pdus.put(&mut pdu, &[]);
            }
        }
        true
    }

    fn request(&mut self, tag: Tag, commands: &mut Slab<Command>) {
        let Some(command) = commands.get(tag) else { return };
        let sn = match &command.kind {
            RequestKind::Scsi(_) => {
                *self.waiting -= 1;
                self.scsi(tag, commands)
            }
            RequestKind::Task { referenced, .. } => {
                let named = referenced.map(|tag| commands.get(tag).map(|named| (named.itt, named.sent)));
                if named == Some(None) {
                    self.answered = Some(tag);
                    return;
                }
                self.task(command, named.flatten());
                self.window.next
            }
            RequestKind::Text { question, ttt, .. } => {
                self.text(command.itt, question, *ttt);
                self.window.next
            }
        };
        if let Some(command) = commands.get_mut(tag) {
            command.sent = Some(sn);
        }
    }

    fn scsi(&mut self, tag: Tag, commands: &Slab<Command>) -> Sn {
        let sn = self.window.next.take();
        let Some(command) = commands.get(tag) else { return sn };
        let RequestKind::Scsi(scsi) = &command.kind else { return sn };
        let carried = payload(&OutgoingPdu::Request(tag), commands, self.framing);
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
        let mut ahs = [0; AHS_MAX];
        let ahs = extended_cdb(tail, &mut ahs);
        pdu.ahs_words = (ahs.len() / 4) as u8;
        match carried {
            Some((data, range)) => self.pdus.put_payload(&mut pdu, ahs, data, range),
            None => self.pdus.put_payload(&mut pdu, ahs, &Sg::new(), 0..0),
        }
        sn
    }

    fn task(&mut self, command: &Command, named: Option<(Itt, Option<Sn>)>) {
        let RequestKind::Task { function, lun, .. } = &command.kind else { return };
        let mut pdu = wire::TmfRequest::new();
        pdu.op = pdu.op.immediate();
        pdu.set_function(*function);
        (pdu.lun, pdu.itt) = (*lun, command.itt);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        if let Some((itt, sn)) = named {
            pdu.referenced_tag = itt;
            pdu.ref_cmd_sn = sn.unwrap_or(self.window.next);
        }
        self.pdus.put(&mut pdu, &[]);
    }

    /// The question, or the request for the next piece of its answer.
    fn text(&mut self, itt: Itt, question: &SendTargets, ttt: Ttt) {
        let mut pdu = wire::TextRequest::new();
        pdu.op = pdu.op.immediate();
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
        self.pdus.put(&mut pdu, text.as_bytes());
    }

    fn nop(&mut self, itt: Itt, ttt: Ttt, lun: Lun) {
        let mut pdu = wire::NopOut::new();
        pdu.op = pdu.op.immediate();
        (pdu.itt, pdu.ttt, pdu.lun) = (itt, ttt, lun);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        self.pdus.put(&mut pdu, &[]);
    }
}

/// Writes the bytes of a CDB from the 17th on as an additional segment (RFC 7143 §11.2.2.3), if there are any.
fn extended_cdb<'a>(tail: &[u8], into: &'a mut [u8; AHS_MAX]) -> &'a [u8] {
    if tail.is_empty() {
        return &[];
    }
    let [high, low, kind, _reserved, bytes @ ..] = into;
    [*high, *low] = (tail.len() as u16 + 1).to_be_bytes();
    *kind = 1;
    bytes.iter_mut().zip(tail).for_each(|(to, byte)| *to = *byte);
    into.get(..(4 + tail.len()).next_multiple_of(4)).unwrap_or(into)
}
