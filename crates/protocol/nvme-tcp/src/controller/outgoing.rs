//! What waits to be sent, and how it is put on the wire.
//!
//! SQHD is stamped when a completion enters a batch. A read's answer rides with its data: as SUCCESS
//! on the last C2HData where it may, else as a CapsuleResp right behind it in the same batch.

use super::ControllerQueue;
use super::limits::QueueSize;
use crate::pdu_writer::{DIGEST_SEGMENT_MAX, FRAME, PduWriter};
use crate::receiver::Term;
use crate::wire::{C2hData, CapsuleResp, DIGEST_LEN, Flags, IcResp, PduType, R2t, TermReq, Terms};
use buf::{Class, Cx, Pool, Sg, Time};
use nvme::failpoint::{Failpoint, is_on};
use nvme::{Completion, Cqe};
use std::collections::VecDeque;
use std::ops::Range;
use stream::{Batch, Outbox, SendOp};
use zerocopy::IntoBytes;

/// While so many bytes wait to be sent that nobody asked leave for (structures of Identify, small log pages),
/// no further command is read: a host may have many queues, and leave all of them unread.
const UNASKED_MAX: u64 = 16 << 10;
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

/// What waits to be sent, and what the kernel still holds of it.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    pdus: VecDeque<OutgoingPdu>,
    outbox: Outbox,
    sqhd: u16,
    /// Bytes that wait and nobody asked leave for: small answers.
    unasked_bytes: u64,
    /// Bytes in batches that the kernel still holds.
    kernel_bytes: u64,
}

impl SendQueue {
    pub(super) fn push(&mut self, pdu: OutgoingPdu) {
        self.pdus.push_back(pdu);
    }

    #[inline]
    pub(super) fn push_data(&mut self, data: ReadData) {
        self.unasked_bytes += u64::from(data.unasked);
        self.pdus.push_back(OutgoingPdu::Data(data));
    }

    /// The answer rides with the data of its command, if that waits last.
    #[inline]
    pub(super) fn answer(&mut self, cid: u16, completion: Completion, connect: bool) {
        if let Some(OutgoingPdu::Data(run)) = self.pdus.back_mut()
            && run.cid == cid
            && run.completion.is_none()
        {
            run.completion = Some(completion);
        } else {
            self.pdus.push_back(OutgoingPdu::Response { cid, completion, connect });
        }
    }

    /// Drops what waits.
    pub(super) fn clear(&mut self) {
        self.pdus.clear();
        self.unasked_bytes = 0;
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.pdus.len()
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pdus.is_empty()
    }

    /// Whether so much waits that a queue of so many entries takes no further command.
    #[inline]
    pub(super) fn is_full(&self, entries: u16) -> bool {
        self.pdus.len() >= 2 * usize::from(entries) + 64 || self.unasked_bytes >= UNASKED_MAX
    }

    /// Whether the socket has taken all batches.
    pub(super) fn is_written(&self) -> bool {
        self.outbox.is_free()
    }

    /// Whether the kernel holds nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox.is_idle()
    }

    pub(super) fn unwritten_since(&self) -> Option<Time> {
        self.outbox.unwritten_since()
    }

    #[inline]
    pub(super) fn kernel_bytes(&self) -> u64 {
        self.kernel_bytes
    }

    pub(super) fn written(&mut self) {
        self.outbox.written();
    }

    pub(super) fn sent(&mut self, op: SendOp) {
        self.kernel_bytes = self.kernel_bytes.saturating_sub(op.len as u64);
        self.outbox.sent(op);
    }

    /// Copies read data that waits and lies in memory that others may write. False: some is left, for want of memory.
    pub(super) fn copy_lent(&mut self, pool: &Pool) -> bool {
        self.pdus.iter_mut().all(|out| match out {
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

    /// Makes one batch of all that waits; `read_bytes` is what of it counts as allowed reads.
    pub(super) fn gather(
        &mut self,
        cx: &mut Cx<'_>,
        terms: &Terms,
        size: QueueSize,
        read_bytes: &mut u64,
    ) -> Result<Option<SendOp>, NoMemory> {
        let digest = terms.data_digest;
        let Some(first) = self.pdus.front() else { return Ok(None) };
        let least = first.head_least(digest);
        if !self.outbox.is_free() {
            return Ok(None);
        }
        let mut want = 0;
        for out in &self.pdus {
            want += out.head_estimate(digest);
            if want >= stream::HEAD_MAX {
                break;
            }
        }
        let batch = self.outbox.open(cx.pool, least, want.max(least)).ok_or(NoMemory)?;
        let mut writer = Writer {
            pdus: PduWriter { batch, terms, alignment: terms.host_alignment },
            entries: size.entries,
            flow_control: size.flow_control,
            sqhd: self.sqhd,
            read_bytes: 0,
        };
        let none = Sg::new();
        while let Some(out) = self.pdus.front_mut() {
            if !writer.pdus.batch.fits(out.head_least(digest), out.pieces().unwrap_or(&none)) {
                break;
            }
            if writer.put(out)
                && let Some(OutgoingPdu::Data(run)) = self.pdus.pop_front()
            {
                self.unasked_bytes -= u64::from(run.unasked);
            }
        }
        self.sqhd = writer.sqhd;
        *read_bytes = read_bytes.saturating_sub(writer.read_bytes);
        let op = self.outbox.close(writer.pdus.batch, cx.now);
        self.kernel_bytes += op.as_ref().map_or(0, |op| op.len as u64);
        Ok(op)
    }
}

/// There is no memory for a batch.
pub(super) struct NoMemory;

impl ControllerQueue {
    /// Copies read data that waits to be sent and lies in memory that others may write. What is in batches is not
    /// touched. False: some is left, for want of memory.
    #[must_use]
    pub fn copy_lent(&mut self, pool: &Pool) -> bool {
        self.out.copy_lent(pool)
    }

    /// Makes one batch of all that waits.
    pub(super) fn gather(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        match self.out.gather(cx, &self.terms, self.size, &mut self.tasks.read_bytes) {
            Ok(op) => op,
            Err(NoMemory) => {
                self.retry = Some(cx.now + super::RETRY);
                None
            }
        }
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
        if let (Some(completion), false) = (answer, success && !is_on(Failpoint::AnsweredTwice)) {
            self.response(run.cid, completion, false);
        }
        ends
    }
}
