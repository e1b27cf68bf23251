//! What waits to be sent to the target, and how it is put on the wire.
//!
//! CmdSN and ExpStatSN are stamped when a PDU enters a batch: CmdSN follows the order of the wire, and what
//! ended before it was sent leaves no gap.

use super::command::{Command, Data, Kind};
use super::link::{Framing, LinkState};
use super::request::Response;
use super::{InitiatorSession, RETRY, Window};
use crate::discovery::SendTargets;
use crate::links::LinkIndex;
use crate::login::LoginPdu;
use crate::wire::{
    self, BHS_LEN, Bhs, Cid, CommandFlags, DataOutFlags, Itt, LogoutReason, Lun, Pdu, Sn, TextFlags,
    TmfResponseCode, Ttt, padding,
};
use buf::crc32c::Crc32c;
use buf::{Cx, Sg};
use std::ops::Range;
use stream::{Batch, SendOp, Slab, Tag};
use zerocopy::byteorder::big_endian::U32;

/// Longest data segment with a digest: volatile memory is copied, and must fit a batch.
pub(super) const DIGEST_SEGMENT_MAX: u32 = 128 << 10;
/// Longest extended CDB segment: its header, and 244 bytes of CDB.
const AHS_MAX: usize = 4 + 244;
/// Header, extended CDB, digest, padding and digest.
const FRAME: usize = BHS_LEN + AHS_MAX + 4 + 3 + 4;
/// `SendTargets=`, an iSCSI name of 223 bytes, and a zero byte.
const TEXT_MAX: usize = 240;

/// A PDU, or a run of Data-Out PDUs.
#[derive(Debug)]
pub(super) enum OutgoingPdu {
    Login(Box<LoginPdu>),
    Request(Tag),
    /// A stretch of a write from `at` on, unasked or as an R2T asked; `sn` is the next DataSN.
    Data {
        tag: Tag,
        ttt: Ttt,
        at: u32,
        end: u32,
        sn: u32,
    },
    Ping(Itt),
    Pong {
        ttt: Ttt,
        lun: Lun,
    },
    Logout(Itt),
}

/// The write data that the next PDU carries.
fn payload<'a>(
    out: &OutgoingPdu,
    commands: &'a Slab<Command>,
    framing: Framing,
) -> Option<(&'a Sg, Range<usize>)> {
    let (tag, range) = match out {
        OutgoingPdu::Request(tag) => (tag, None),
        OutgoingPdu::Data { tag, at, end, .. } => (tag, Some((*at, *end))),
        OutgoingPdu::Login(_) | OutgoingPdu::Ping(_) | OutgoingPdu::Pong { .. } | OutgoingPdu::Logout(_) => {
            return None;
        }
    };
    let Data::Out { data, immediate } = &commands.get(*tag)?.data else { return None };
    let digest = if framing.data_digest { DIGEST_SEGMENT_MAX } else { u32::MAX };
    let (at, end) = range.unwrap_or((0, *immediate));
    let len = (end - at).min(framing.target_mrdsl).min(digest);
    (len > 0).then_some((data, at as usize..(at + len) as usize))
}

/// Bytes of head that the next PDU needs at most.
fn head_least(out: &OutgoingPdu, commands: &Slab<Command>, framing: Framing) -> usize {
    match (out, payload(out, commands, framing)) {
        (OutgoingPdu::Login(pdu), _) => BHS_LEN + pdu.text.len() + 3,
        (_, Some((data, range))) => FRAME + Batch::head_need(data, range.len(), framing.data_digest),
        (_, None) => FRAME + TEXT_MAX,
    }
}

impl InitiatorSession {
    /// Makes one batch of all that waits on a link.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_>, index: LinkIndex) -> Option<SendOp> {
        let link = &mut self.links[index];
        let framing = link.framing;
        let least = head_least(link.out.front()?, &self.commands, framing);
        if !link.outbox.is_free() {
            return None;
        }
        let mut want = 0;
        for out in &link.out {
            want += head_least(out, &self.commands, framing);
            if want >= stream::HEAD_MAX {
                break;
            }
        }
        let Some(batch) = link.outbox.open(cx.pool, least, want.max(least)) else {
            link.retry = Some(cx.now + RETRY);
            return None;
        };
        let LinkState { out: queue, exp_stat_sn, cid, pongs, .. } = link;
        let mut writer = Writer {
            batch,
            framing,
            exp_stat_sn: *exp_stat_sn,
            cid: *cid,
            priorities: self.params.protocol_level >= 2,
            window: &mut self.window,
            waiting: &mut self.waiting,
            answered: None,
        };
        let none = Sg::new();
        while let Some(out) = queue.front_mut() {
            let head = head_least(out, &self.commands, framing);
            let pieces = payload(out, &self.commands, framing).map_or(&none, |(data, _)| data);
            if writer.answered.is_some() || !writer.batch.fits(head, pieces) {
                break;
            }
            *pongs -= usize::from(matches!(out, OutgoingPdu::Pong { .. }));
            if writer.put(out, &mut self.commands) {
                queue.pop_front();
            }
        }
        let (batch, answered) = (writer.batch, writer.answered);
        let op = link.outbox.close(batch, cx.now);
        if let Some(tag) = answered {
            self.complete(tag, Response::Task(TmfResponseCode::NO_TASK));
            self.tidy();
        }
        op
    }
}

struct Writer<'a> {
    batch: Batch,
    framing: Framing,
    exp_stat_sn: Sn,
    cid: Cid,
    priorities: bool,
    window: &'a mut Window,
    waiting: &'a mut usize,
    /// A function that need not be sent: what it names has ended.
    answered: Option<Tag>,
}

impl Writer<'_> {
    /// Puts one PDU into the batch; true if `out` is done with. What belongs to a request that has ended
    /// meanwhile is left out.
    fn put(&mut self, out: &mut OutgoingPdu, commands: &mut Slab<Command>) -> bool {
        match out {
            OutgoingPdu::Login(pdu) => {
                self.batch.put(pdu.bhs.bytes());
                self.batch.put(&pdu.text);
                self.batch.put(padding(pdu.text.len()));
            }
            OutgoingPdu::Request(tag) => self.request(*tag, commands),
            OutgoingPdu::Data { tag, ttt, at, end, sn } => {
                let carried = payload(
                    &OutgoingPdu::Data { tag: *tag, ttt: *ttt, at: *at, end: *end, sn: *sn },
                    commands,
                    self.framing,
                );
                let (Some(command), Some((data, range))) = (commands.get(*tag), carried) else { return true };
                let Kind::Scsi(scsi) = &command.kind else { return true };
                let to = range.end as u32;
                let (last, len) = (to == *end, to - *at);
                let mut pdu = wire::DataOut::new();
                pdu.flags = if last { DataOutFlags::FINAL } else { DataOutFlags(0) };
                (pdu.lun, pdu.itt, pdu.ttt) = (Lun(scsi.lun), command.itt, *ttt);
                (pdu.exp_stat_sn, pdu.data_sn) = (self.exp_stat_sn, Sn::new(*sn));
                pdu.buffer_offset = U32::new(*at);
                self.frame(&mut pdu, &[], Some((data, range)));
                (*at, *sn) = (to, sn.wrapping_add(1));
                if let Some(command) = commands.get_mut(*tag) {
                    command.unsent -= len;
                    command.r2ts -= u32::from(last && !ttt.is_none());
                }
                return last;
            }
            OutgoingPdu::Ping(itt) => self.nop(*itt, Ttt::NONE, Lun::default()),
            OutgoingPdu::Pong { ttt, lun } => self.nop(Itt::NONE, *ttt, *lun),
            OutgoingPdu::Logout(itt) => {
                let mut pdu = wire::LogoutRequest::new();
                pdu.op = pdu.op.immediate();
                pdu.set_reason(LogoutReason::CLOSE_SESSION);
                (pdu.itt, pdu.cid) = (*itt, self.cid);
                (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
                self.frame(&mut pdu, &[], None);
            }
        }
        true
    }

    fn request(&mut self, tag: Tag, commands: &mut Slab<Command>) {
        let Some(command) = commands.get(tag) else { return };
        let sn = match &command.kind {
            Kind::Scsi(_) => {
                *self.waiting -= 1;
                self.scsi(tag, commands)
            }
            Kind::Task { referenced, .. } => {
                let named = referenced.map(|tag| commands.get(tag).map(|named| (named.itt, named.sent)));
                if named == Some(None) {
                    self.answered = Some(tag);
                    return;
                }
                self.task(command, named.flatten());
                self.window.next
            }
            Kind::Text { question, ttt, .. } => {
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
        self.window.next = sn.next();
        let Some(command) = commands.get(tag) else { return sn };
        let Kind::Scsi(scsi) = &command.kind else { return sn };
        let carried = payload(&OutgoingPdu::Request(tag), commands, self.framing);
        let mut pdu = wire::ScsiCommand::new();
        let mut flags = CommandFlags(0).with_attribute(scsi.attr);
        flags = match &command.data {
            Data::None => flags.with(CommandFlags::FINAL),
            Data::In(_) => flags.with(CommandFlags::FINAL).with(CommandFlags::READ),
            Data::Out { immediate, .. } if command.next > *immediate => flags.with(CommandFlags::WRITE),
            Data::Out { .. } => flags.with(CommandFlags::FINAL).with(CommandFlags::WRITE),
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
        self.frame(&mut pdu, ahs, carried);
        sn
    }

    fn task(&mut self, command: &Command, named: Option<(Itt, Option<Sn>)>) {
        let Kind::Task { function, lun, .. } = &command.kind else { return };
        let mut pdu = wire::TmfRequest::new();
        pdu.op = pdu.op.immediate();
        pdu.set_function(*function);
        (pdu.lun, pdu.itt) = (*lun, command.itt);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        if let Some((itt, sn)) = named {
            pdu.referenced_tag = itt;
            pdu.ref_cmd_sn = sn.unwrap_or(self.window.next);
        }
        self.frame(&mut pdu, &[], None);
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
        pdu.set_data_len(text.len());
        self.header(pdu.as_bhs(), &[]);
        if !text.is_empty() {
            self.batch.put(text.as_bytes());
            let mut crc = Crc32c::new();
            crc.update(text.as_bytes());
            self.trailer(text.len(), crc);
        }
    }

    fn nop(&mut self, itt: Itt, ttt: Ttt, lun: Lun) {
        let mut pdu = wire::NopOut::new();
        pdu.op = pdu.op.immediate();
        (pdu.itt, pdu.ttt, pdu.lun) = (itt, ttt, lun);
        (pdu.cmd_sn, pdu.exp_stat_sn) = (self.window.next, self.exp_stat_sn);
        self.frame(&mut pdu, &[], None);
    }

    /// A header, with its digest, and the data behind it.
    fn frame(&mut self, pdu: &mut impl Pdu, ahs: &[u8], carried: Option<(&Sg, Range<usize>)>) {
        let len = carried.as_ref().map_or(0, |(_, range)| range.len());
        pdu.set_data_len(len);
        self.header(pdu.as_bhs(), ahs);
        let Some((data, range)) = carried else { return };
        let mut crc = Crc32c::new();
        self.batch.payload(data, range, self.framing.data_digest.then_some(&mut crc));
        self.trailer(len, crc);
    }

    fn header(&mut self, bhs: &Bhs, ahs: &[u8]) {
        self.batch.put(bhs.bytes());
        self.batch.put(ahs);
        if self.framing.header_digest {
            let mut crc = Crc32c::new();
            crc.update(bhs.bytes());
            crc.update(ahs);
            self.batch.put(&crc.wire());
        }
    }

    fn trailer(&mut self, len: usize, mut crc: Crc32c) {
        let padding = padding(len);
        self.batch.put(padding);
        if self.framing.data_digest {
            crc.update(padding);
            self.batch.put(&crc.wire());
        }
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
