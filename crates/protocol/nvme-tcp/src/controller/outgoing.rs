//! PDUs that wait to be sent, and how they are sent.
//!
//! SQHD is stamped when a completion enters a batch. A read's answer goes with its data: as SUCCESS on the
//! last C2HData if that is allowed, otherwise as a CapsuleResp right behind it in the same batch.

use super::ControllerQueue;
use crate::limits::ConnectedQueueSize;
use crate::pdu_receiver::TermReqContents;
use crate::pdu_writer::{DIGEST_SEGMENT_MAX, PDU_OVERHEAD_MAX, PduWriter};
use crate::send_queue;
use crate::wire::{
    C2hData, CapsuleResp, ConnectionParameters, DIGEST_LEN, Flags, IcResp, PduType, R2t, TermReq,
};
use buf::{MemoryClass, Pool, Sg};
use nvme::failpoint::{Failpoint, is_on};
use nvme::{Completion, Cqe};
use std::ops::Range;
use stream::SendOpBuilder;
use zerocopy::IntoBytes;

/// While so many bytes wait to be sent that nobody asked leave for (structures of Identify, small log pages),
/// no further command is read: a host may have many queues, and leave all of them unread.
const UNRESERVED_BYTES_MAX: u64 = 16 << 10;
/// A completion with its digest.
const RESPONSE_LEN_MAX: usize = CapsuleResp::LEN + DIGEST_LEN;

/// A PDU, or a run of C2HData PDUs with the answer.
#[derive(Debug)]
pub enum OutgoingPdu {
    Data(ReadData),
    Response { cid: u16, completion: Completion, connect: bool },
    R2t { cid: u16, ttag: u16, at: u32, len: u32 },
    Init(ConnectionParameters),
    Term(Box<TermReqContents>),
}

/// A stretch of read data, cut into PDUs as it is sent.
#[derive(Debug)]
pub struct ReadData {
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
    fn next_range(&self, digest: bool) -> Range<usize> {
        let left = self.data.len() as u32 - self.done;
        let len = if digest { left.min(DIGEST_SEGMENT_MAX) } else { left };
        self.done as usize..(self.done + len) as usize
    }

    fn head_estimate(&self, digest: bool) -> usize {
        let left = self.data.len() - self.done as usize;
        let segment = self.next_range(digest).len();
        let copied = SendOpBuilder::head_len_for(&self.data, segment, digest) > 0;
        let frames = if segment == left { 1 } else { left.div_ceil(segment.max(1)) };
        frames * PDU_OVERHEAD_MAX + RESPONSE_LEN_MAX + if copied { left } else { 0 }
    }
}

/// What PDUs of a controller are made from.
pub struct PduContext<'a> {
    pub(super) size: ConnectedQueueSize,
    pub(super) sqhd: &'a mut u16,
    pub(super) unasked_bytes: &'a mut u64,
    /// What waits of reads that were allowed.
    pub(super) read_bytes: &'a mut u64,
}

impl send_queue::OutgoingPdu for OutgoingPdu {
    type Context<'a> = PduContext<'a>;

    fn head_estimate(&self, parameters: &ConnectionParameters, _context: &PduContext<'_>) -> usize {
        match self {
            OutgoingPdu::Data(run) => run.head_estimate(parameters.data_digest),
            OutgoingPdu::Response { .. } | OutgoingPdu::R2t { .. } => RESPONSE_LEN_MAX,
            OutgoingPdu::Init(_) => IcResp::LEN,
            OutgoingPdu::Term(term) => TermReq::LEN + term.header.len(),
        }
    }

    /// With an answer behind it.
    fn next_head_len_max(&self, parameters: &ConnectionParameters, context: &PduContext<'_>) -> usize {
        let digest = parameters.data_digest;
        match self {
            OutgoingPdu::Data(run) => {
                PDU_OVERHEAD_MAX
                    + RESPONSE_LEN_MAX
                    + SendOpBuilder::head_len_for(&run.data, run.next_range(digest).len(), digest)
            }
            OutgoingPdu::Response { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Init(_)
            | OutgoingPdu::Term(_) => self.head_estimate(parameters, context),
        }
    }

    fn data_pieces<'a>(
        &'a self,
        _terms: &ConnectionParameters,
        _context: &'a PduContext<'_>,
    ) -> Option<&'a Sg> {
        match self {
            OutgoingPdu::Data(run) => Some(&run.data),
            OutgoingPdu::Response { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Init(_)
            | OutgoingPdu::Term(_) => None,
        }
    }

    fn put_next_pdu(&mut self, writer: &mut PduWriter<'_>, context: &mut PduContext<'_>) -> bool {
        match self {
            OutgoingPdu::Data(run) => return put_c2h_data(run, writer, context),
            OutgoingPdu::Response { cid, completion, connect } => {
                put_capsule_resp(*cid, *completion, *connect, writer, context);
            }
            OutgoingPdu::R2t { cid, ttag, at, len } => {
                writer.put_pdu(R2t::new(*cid, *ttag, *at, *len).as_mut_bytes(), None);
            }
            OutgoingPdu::Init(parameters) => writer.batch.push_bytes(IcResp::new(parameters).as_bytes()),
            OutgoingPdu::Term(term) => writer.put_term_req(PduType::C2H_TERM_REQ, term),
        }
        true
    }
}

fn put_capsule_resp(
    cid: u16,
    completion: Completion,
    connect: bool,
    writer: &mut PduWriter<'_>,
    PduContext { size, sqhd, .. }: &mut PduContext<'_>,
) {
    let sqhd = if size.flow_control {
        **sqhd = if **sqhd + 1 >= size.entries { 0 } else { **sqhd + 1 };
        **sqhd
    } else if connect {
        // Without flow control SQHD is reserved, and this value grants it (NVMe Base §6.3).
        u16::MAX
    } else {
        0
    };
    writer.put_pdu(CapsuleResp::new(Cqe::new(completion, cid, sqhd)).as_mut_bytes(), None);
}

/// Puts one C2HData, and the answer behind the last one.
fn put_c2h_data(run: &mut ReadData, writer: &mut PduWriter<'_>, context: &mut PduContext<'_>) -> bool {
    let range = run.next_range(writer.parameters.data_digest);
    let len = range.len() as u32;
    let at = run.offset + run.done;
    run.done += len;
    let ends = run.done as usize == run.data.len();
    let answer = run.completion.filter(|_| ends);
    let success = answer.is_some_and(|answer| !context.size.flow_control && answer == Completion::SUCCESS);
    let flags = Flags(0)
        .with(Flags::LAST, ends && (run.ends || run.completion.is_some()))
        .with(Flags::SUCCESS, success);
    *context.read_bytes = context.read_bytes.saturating_sub(u64::from(len));
    writer.put_pdu(C2hData::new(run.cid, at, len, flags).as_mut_bytes(), Some((&run.data, range)));
    if let (Some(completion), false) = (answer, success && !is_on(Failpoint::AnsweredTwice)) {
        put_capsule_resp(run.cid, completion, false, writer, context);
    }
    if ends {
        *context.unasked_bytes -= u64::from(run.unasked);
    }
    ends
}

impl ControllerQueue {
    /// Copies read data that waits to be sent and lies in memory that others may write. What is in batches is not
    /// touched. False: some is left, for want of memory.
    #[must_use]
    pub fn copy_lent_data(&mut self, pool: &Pool) -> bool {
        self.out.pdus.iter_mut().all(|pdu| match pdu {
            OutgoingPdu::Data(run) if !run.data.is_stable() => {
                match pool.copy_sg(MemoryClass::Solicited, &run.data) {
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

    #[inline]
    pub(super) fn push_read_data(&mut self, data: ReadData) {
        self.role.unasked_bytes += u64::from(data.unasked);
        self.out.push(OutgoingPdu::Data(data));
    }

    /// The answer rides with the data of its command, if that waits last.
    #[inline]
    pub(super) fn push_completion(&mut self, cid: u16, completion: Completion, connect: bool) {
        if let Some(OutgoingPdu::Data(run)) = self.out.pdus.back_mut()
            && run.cid == cid
            && run.completion.is_none()
        {
            run.completion = Some(completion);
        } else {
            self.out.push(OutgoingPdu::Response { cid, completion, connect });
        }
        self.out.note_queued_response(self.role.answer_stamp);
    }

    /// Whether so much waits to be sent that no further command is taken.
    #[inline]
    pub(super) fn is_send_queue_full(&self) -> bool {
        self.out.pdus.len() >= 2 * usize::from(self.size.entries) + 64
            || self.role.unasked_bytes >= UNRESERVED_BYTES_MAX
    }
}
