//! What waits to be sent, and how it is put on the wire.
//!
//! SQHD is stamped when a completion enters a batch. A read's answer rides with its data: as SUCCESS
//! on the last C2HData where it may, else as a CapsuleResp right behind it in the same batch.

use super::ControllerQueue;
use crate::pdu_writer::{DIGEST_SEGMENT_MAX, FRAME, PduWriter};
use crate::receiver::Term;
use crate::wire::{C2hData, CapsuleResp, DIGEST_LEN, Flags, IcResp, PduType, R2t, TermReq, Terms};
use buf::{Class, Cx, Pool, Sg};
use nvme::planted::{Bug, planted};
use nvme::{Completion, Cqe};
use std::ops::Range;
use stream::{Batch, SendOp};
use zerocopy::IntoBytes;

/// A completion with its digest.
const RESPONSE: usize = CapsuleResp::LEN + DIGEST_LEN;

/// A PDU, or a run of C2HData PDUs with the answer.
#[derive(Debug)]
pub(super) enum OutgoingPdu {
    Data(ReadData),
    Response { cid: u16, completion: Completion, connect: bool },
    R2t { cid: u16, ttag: u16, at: u32, len: u32 },
    Init(Terms),
    Term(Box<Term>),
}

/// A stretch of read data, cut into PDUs as it is sent.
#[derive(Debug)]
pub(super) struct ReadData {
    pub(super) cid: u16,
    /// It reaches the end of the command's data.
    pub(super) ends: bool,
    /// Offset of `data` in the command's data.
    pub(super) offset: u32,
    /// How many bytes of it nobody asked leave for.
    pub(super) unasked: u32,
    /// How much of it is in batches already.
    pub(super) done: u32,
    pub(super) data: Sg,
    /// The answer, behind it.
    pub(super) completion: Option<Completion>,
}

impl ReadData {
    fn next(&self, digest: bool) -> Range<usize> {
        let left = self.data.len() as u32 - self.done;
        let len = if digest { left.min(DIGEST_SEGMENT_MAX) } else { left };
        self.done as usize..(self.done + len) as usize
    }

    fn estimate(&self, digest: bool) -> usize {
        let left = self.data.len() - self.done as usize;
        let segment = self.next(digest).len();
        let copied = Batch::head_need(&self.data, segment, digest) > 0;
        let frames = if segment == left { 1 } else { left.div_ceil(segment.max(1)) };
        frames * FRAME + RESPONSE + if copied { left } else { 0 }
    }
}

impl OutgoingPdu {
    /// About how many bytes of head this takes, for sizing a batch.
    fn head_estimate(&self, digest: bool) -> usize {
        match self {
            OutgoingPdu::Data(run) => run.estimate(digest),
            OutgoingPdu::Response { .. } | OutgoingPdu::R2t { .. } => RESPONSE,
            OutgoingPdu::Init(_) => IcResp::LEN,
            OutgoingPdu::Term(term) => TermReq::LEN + term.header.len(),
        }
    }

    /// Bytes of head that the next PDU needs at most, with an answer behind it.
    fn head_least(&self, digest: bool) -> usize {
        match self {
            OutgoingPdu::Data(run) => {
                FRAME + RESPONSE + Batch::head_need(&run.data, run.next(digest).len(), digest)
            }
            OutgoingPdu::Response { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Init(_)
            | OutgoingPdu::Term(_) => self.head_estimate(digest),
        }
    }

    fn pieces(&self) -> Option<&Sg> {
        match self {
            OutgoingPdu::Data(run) => Some(&run.data),
            OutgoingPdu::Response { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Init(_)
            | OutgoingPdu::Term(_) => None,
        }
    }
}

impl ControllerQueue {
    /// Copies read data that waits to be sent and lies in memory that others may write. What is in batches is not
    /// touched. False: some is left, for want of memory.
    #[must_use]
    pub fn copy_lent(&mut self, pool: &Pool) -> bool {
        self.out.iter_mut().all(|out| match out {
            OutgoingPdu::Data(run) if !run.data.is_stable() => {
                match run.data.copied(pool, Class::Solicited) {
                    Some(copy) => {
                        run.data = copy;
                        true
                    }
                    None => false,
                }
            }
            _ => true,
        })
    }

    /// Makes one batch of all that waits.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        let digest = self.terms.data_digest;
        let least = self.out.front()?.head_least(digest);
        if !self.outbox.is_free() {
            return None;
        }
        let mut want = 0;
        for out in &self.out {
            want += out.head_estimate(digest);
            if want >= stream::HEAD_MAX {
                break;
            }
        }
        let Some(batch) = self.outbox.open(cx.pool, least, want.max(least)) else {
            self.retry = Some(cx.now + super::RETRY);
            return None;
        };
        let terms = &self.terms;
        let mut writer = Writer {
            pdus: PduWriter { batch, terms, alignment: terms.host_alignment },
            entries: self.size.entries,
            flow_control: self.size.flow_control,
            sqhd: self.sqhd,
            read_bytes: 0,
        };
        let none = Sg::new();
        while let Some(out) = self.out.front_mut() {
            if !writer.pdus.batch.fits(out.head_least(digest), out.pieces().unwrap_or(&none)) {
                break;
            }
            if writer.put(out)
                && let Some(OutgoingPdu::Data(run)) = self.out.pop_front()
            {
                self.unasked_bytes -= u64::from(run.unasked);
            }
        }
        self.sqhd = writer.sqhd;
        self.read_bytes = self.read_bytes.saturating_sub(writer.read_bytes);
        let op = self.outbox.close(writer.pdus.batch, cx.now)?;
        self.kernel_bytes += op.len as u64;
        Some(op)
    }
}

struct Writer<'a> {
    pdus: PduWriter<'a>,
    entries: u16,
    flow_control: bool,
    sqhd: u16,
    /// Read payload that entered the batch.
    read_bytes: u64,
}

impl Writer<'_> {
    /// Puts one PDU, and an answer that rides with it, into the batch; true if `out` is done with.
    fn put(&mut self, out: &mut OutgoingPdu) -> bool {
        match out {
            OutgoingPdu::Data(run) => return self.data(run),
            OutgoingPdu::Response { cid, completion, connect } => self.response(*cid, *completion, *connect),
            OutgoingPdu::R2t { cid, ttag, at, len } => {
                self.pdus.put(R2t::new(*cid, *ttag, *at, *len).as_mut_bytes(), None);
            }
            OutgoingPdu::Init(terms) => self.pdus.batch.put(IcResp::new(terms).as_bytes()),
            OutgoingPdu::Term(term) => self.pdus.put_term(PduType::C2H_TERM_REQ, term),
        }
        true
    }

    fn response(&mut self, cid: u16, completion: Completion, connect: bool) {
        let sqhd = if self.flow_control {
            self.sqhd = if self.sqhd + 1 >= self.entries { 0 } else { self.sqhd + 1 };
            self.sqhd
        } else if connect {
            // Without flow control SQHD is reserved, and this value grants it (NVMe Base §6.3).
            u16::MAX
        } else {
            0
        };
        self.pdus.put(CapsuleResp::new(Cqe::new(completion, cid, sqhd)).as_mut_bytes(), None);
    }

    fn data(&mut self, run: &mut ReadData) -> bool {
        let range = run.next(self.pdus.terms.data_digest);
        let len = range.len() as u32;
        let at = run.offset + run.done;
        run.done += len;
        let ends = run.done as usize == run.data.len();
        let answer = run.completion.filter(|_| ends);
        let success = answer.is_some_and(|answer| !self.flow_control && answer == Completion::SUCCESS);
        let flags = Flags(0)
            .with(Flags::LAST, ends && (run.ends || run.completion.is_some()))
            .with(Flags::SUCCESS, success);
        self.read_bytes += u64::from(len);
        self.pdus.put(C2hData::new(run.cid, at, len, flags).as_mut_bytes(), Some((&run.data, range)));
        if let (Some(completion), false) = (answer, success && !planted(Bug::AnsweredTwice)) {
            self.response(run.cid, completion, false);
        }
        ends
    }
}
