//! What waits to be sent to the controller, and how it is put on the wire.

use super::command::{Command, CommandData};
use super::{HostQueue, OutgoingPdu, RETRY};
use crate::pdu_writer::{DIGEST_SEGMENT_MAX, FRAME, PduWriter};
use crate::wire::{CapsuleCmd, H2cData, IcReq, PduType, TermReq, Terms};
use buf::{Cx, Sg};
use std::ops::Range;
use stream::{Batch, SendOp, Slab};
use zerocopy::IntoBytes;

/// The bytes that the next PDU carries.
fn payload<'a>(
    out: &OutgoingPdu,
    commands: &'a Slab<Command>,
    terms: &Terms,
) -> Option<(&'a Sg, Range<usize>)> {
    match out {
        OutgoingPdu::Init | OutgoingPdu::Term(_) => None,
        OutgoingPdu::Capsule(tag) => match &commands.get(*tag)?.data {
            CommandData::Out { data, in_capsule: true } if !data.is_empty() => Some((data, 0..data.len())),
            CommandData::Out { .. } | CommandData::In(_) | CommandData::None => None,
        },
        OutgoingPdu::Data { tag, at, end, .. } => match &commands.get(*tag)?.data {
            CommandData::Out { data, .. } => {
                // Memory that does not change goes in PDUs as long as the controller takes: nvmet of Linux takes the
                // digest of a PDU for that of its command's data.
                let copied = terms.data_digest && !data.is_stable();
                let digest = if copied { DIGEST_SEGMENT_MAX } else { u32::MAX };
                let len = (end - at).min(terms.max_h2c_data).min(digest);
                Some((data, *at as usize..(at + len) as usize))
            }
            CommandData::In(_) | CommandData::None => None,
        },
    }
}

/// Bytes of head that the next PDU needs at most.
fn head_least(out: &OutgoingPdu, commands: &Slab<Command>, terms: &Terms) -> usize {
    match payload(out, commands, terms) {
        Some((data, range)) => FRAME + Batch::head_need(data, range.len(), terms.data_digest),
        None => match out {
            OutgoingPdu::Init => IcReq::LEN,
            OutgoingPdu::Capsule(_) | OutgoingPdu::Data { .. } => FRAME,
            OutgoingPdu::Term(term) => TermReq::LEN + term.header.len(),
        },
    }
}

impl HostQueue {
    /// Makes one batch of all that waits.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        let least = head_least(self.out.front()?, &self.commands, &self.terms);
        if !self.outbox.is_free() {
            return None;
        }
        let mut want = 0;
        for out in &self.out {
            want += head_least(out, &self.commands, &self.terms);
            if want >= stream::HEAD_MAX {
                break;
            }
        }
        let Some(batch) = self.outbox.open(cx.pool, least, want.max(least)) else {
            self.retry = Some(cx.now + RETRY);
            return None;
        };
        let terms = &self.terms;
        let pdus = PduWriter { batch, terms, alignment: terms.controller_alignment };
        let mut writer = Writer { pdus, asked: &self.asked };
        let none = Sg::new();
        while let Some(out) = self.out.front_mut() {
            let head = head_least(out, &self.commands, &self.terms);
            let pieces = payload(out, &self.commands, &self.terms).map_or(&none, |(data, _)| data);
            if !writer.pdus.batch.fits(head, pieces) {
                break;
            }
            if writer.put(out, &mut self.commands) {
                self.out.pop_front();
            }
        }
        self.outbox.close(writer.pdus.batch, cx.now)
    }
}

struct Writer<'a> {
    pdus: PduWriter<'a>,
    asked: &'a IcReq,
}

impl Writer<'_> {
    /// Puts one PDU into the batch; true if `out` is done with. What belongs to a command that has
    /// ended meanwhile is left out.
    fn put(&mut self, out: &mut OutgoingPdu, commands: &mut Slab<Command>) -> bool {
        let carried = payload(out, commands, self.pdus.terms);
        match out {
            OutgoingPdu::Init => self.pdus.batch.put(self.asked.as_bytes()),
            OutgoingPdu::Capsule(tag) => {
                if let Some(command) = commands.get(*tag) {
                    self.pdus.put(CapsuleCmd::new(command.sqe).as_mut_bytes(), carried);
                }
                if let Some(command) = commands.get_mut(*tag) {
                    command.sent = true;
                }
            }
            OutgoingPdu::Data { tag, ttag, at, end } => {
                let Some(command) = commands.get(*tag) else { return true };
                let Some((data, range)) = carried else { return true };
                let (to, cid) = (range.end as u32, command.sqe.cid.get());
                let last = to == *end;
                let mut header = H2cData::new(cid, *ttag, *at, range.len() as u32, last);
                self.pdus.put(header.as_mut_bytes(), Some((data, range)));
                *at = to;
                if let (Some(command), true) = (commands.get_mut(*tag), last) {
                    command.r2ts -= 1;
                }
                return last;
            }
            OutgoingPdu::Term(term) => self.pdus.put_term(PduType::H2C_TERM_REQ, term),
        }
        true
    }
}
