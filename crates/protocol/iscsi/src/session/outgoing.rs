//! PDUs that wait to be sent on a link, and how they are sent.
//!
//! StatSN, ExpCmdSN and MaxCmdSN are stamped when a PDU enters a batch: a PDU that waited long still carries
//! current numbers, and StatSN follows the order of sending.

use super::request::{Residual, ScsiResult};
use super::task::Answer;
use crate::framing::{Framing, PDU_OVERHEAD_MAX, PduWriter};
use crate::wire::{
    self, AsyncEvent, Bhs, DataInFlags, Itt, LogoutResponseCode, Lun, Pdu, RejectReason, ResponseFlags,
    ScsiResponseCode, ScsiStatus, Sn, TextFlags, TmfResponseCode, Ttt,
};
use buf::{Cx, MemoryClass, Pool, Sg, Time};
use std::collections::VecDeque;
use std::ops::Range;
use stream::{NoBatchMemory, ResponseTimes, SendOp, SendOpBuilder, TransmitQueue};
use zerocopy::byteorder::big_endian::{U16, U32};

/// A link with so much to send parses nothing more until some of it has left: the answers to what a
/// peer sends without a window (pings, refused PDUs) stay bounded.
const QUEUED_PDUS_MAX: usize = 512;
/// Likewise for bytes without a reservation: those of pings, and of answers such as INQUIRY's.
const UNRESERVED_BYTES_MAX: u64 = 128 << 10;
/// Likewise on the link of a discovery session, which strangers may have many of.
const DISCOVERY_UNRESERVED_BYTES_MAX: u64 = 16 << 10;
/// A PDU that is all head is at most so long: a response with 252 bytes of sense.
const HEAD_ONLY_PDU_LEN_MAX: usize = PDU_OVERHEAD_MAX + 256;

/// A PDU, or a run of Data-In PDUs.
#[derive(Debug)]
pub(super) enum OutgoingPdu {
    DataIn(DataInRun),
    Scsi(Box<FullResponse>),
    /// The common answer of a write, without a box.
    Good {
        itt: Itt,
        exp_data_sn: u32,
        residual: Residual,
    },
    R2t {
        itt: Itt,
        lun: Lun,
        ttt: Ttt,
        sn: u32,
        offset: u32,
        end: u32,
    },
    Tmf {
        itt: Itt,
        response: TmfResponseCode,
    },
    NopIn {
        itt: Itt,
        ttt: Ttt,
        data: Sg,
    },
    Text {
        itt: Itt,
        ttt: Ttt,
        flags: TextFlags,
        lun: Lun,
        data: Box<[u8]>,
    },
    Logout {
        itt: Itt,
        response: LogoutResponseCode,
        time2wait: u16,
        time2retain: u16,
    },
    Reject {
        reason: RejectReason,
        bhs: Bhs,
    },
    Async {
        event: AsyncEvent,
        parameters: [u16; 3],
    },
}

/// A stretch of read data, cut into PDUs as it is sent.
#[derive(Debug)]
pub(super) struct DataInRun {
    pub(super) itt: Itt,
    /// Offset of `data` in the command's data.
    pub(super) offset: u32,
    pub(super) data: Sg,
    /// How many bytes of it were not reserved.
    pub(super) unreserved: u32,
    /// How much of it is in batches already.
    pub(super) done: u32,
    /// DataSN of the next PDU.
    pub(super) sn: u32,
    /// Longest PDU, and longest sequence, in bytes.
    pub(super) segment: u32,
    pub(super) burst: u32,
    /// Status that rides on the last PDU.
    pub(super) status: Option<(ScsiStatus, Residual)>,
}

/// A SCSI Response with all that it can carry.
#[derive(Debug)]
pub(super) struct FullResponse {
    pub(super) itt: Itt,
    pub(super) answer: Answer,
    pub(super) exp_data_sn: u32,
    pub(super) residual: Residual,
    /// Read length of a bidirectional command: none of it was moved.
    pub(super) bidi_residual: u32,
    pub(super) with_qualifier: bool,
}

impl DataInRun {
    /// How many PDUs the whole stretch makes.
    pub(super) fn pdu_count(len: u32, segment: u32, burst: u32) -> u32 {
        if (1..=segment.min(burst)).contains(&len) {
            return 1;
        }
        (len / burst) * burst.div_ceil(segment) + (len % burst).div_ceil(segment)
    }

    /// The next PDU's range of `data`, and whether it ends a sequence.
    fn next_pdu(&self) -> (Range<usize>, bool) {
        let len = self.data.len() as u32;
        if self.done == 0 && len <= self.segment.min(self.burst) {
            return (0..len as usize, true);
        }
        let burst_end = (self.done / self.burst + 1).saturating_mul(self.burst).min(len);
        let end = self.done.saturating_add(self.segment).min(burst_end);
        (self.done as usize..end as usize, end == burst_end)
    }
}

impl OutgoingPdu {
    /// About how many bytes of head this takes, for sizing a batch.
    fn head_estimate(&self, digest: bool) -> usize {
        match self {
            OutgoingPdu::DataIn(run) => {
                let left = run.data.len() - run.done as usize;
                let segment = (run.segment as usize).min(left.max(1));
                let copied = SendOpBuilder::head_len_for(&run.data, segment, digest) > 0;
                let pdus = if left <= segment { 1 } else { left.div_ceil(segment) };
                pdus * PDU_OVERHEAD_MAX + if copied { left } else { 0 }
            }
            OutgoingPdu::NopIn { data, .. } => {
                PDU_OVERHEAD_MAX + SendOpBuilder::head_len_for(data, data.len(), digest)
            }
            OutgoingPdu::Text { data, .. } => PDU_OVERHEAD_MAX + data.len(),
            OutgoingPdu::Scsi(_) => HEAD_ONLY_PDU_LEN_MAX,
            OutgoingPdu::Good { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Tmf { .. }
            | OutgoingPdu::Logout { .. }
            | OutgoingPdu::Async { .. } => PDU_OVERHEAD_MAX,
            OutgoingPdu::Reject { .. } => PDU_OVERHEAD_MAX + wire::BHS_LEN,
        }
    }

    /// Bytes of head that the next PDU needs at most.
    fn next_head_len_max(&self, digest: bool) -> usize {
        match self {
            OutgoingPdu::DataIn(run) => {
                let (range, _) = run.next_pdu();
                PDU_OVERHEAD_MAX + SendOpBuilder::head_len_for(&run.data, range.len(), digest)
            }
            other => other.head_estimate(digest),
        }
    }

    /// Whether a StatSN is for this, once it is whole.
    fn takes_stat_sn(&self) -> bool {
        match self {
            OutgoingPdu::DataIn(run) => run.status.is_some(),
            OutgoingPdu::NopIn { itt, .. } => !itt.is_none(),
            OutgoingPdu::R2t { .. } => false,
            OutgoingPdu::Scsi(_)
            | OutgoingPdu::Good { .. }
            | OutgoingPdu::Tmf { .. }
            | OutgoingPdu::Text { .. } => true,
            OutgoingPdu::Logout { .. } | OutgoingPdu::Reject { .. } | OutgoingPdu::Async { .. } => true,
        }
    }

    fn data(&self) -> Option<&Sg> {
        match self {
            OutgoingPdu::DataIn(run) => Some(&run.data),
            OutgoingPdu::NopIn { data, .. } => Some(data),
            _other => None,
        }
    }
}

/// The numbers of the session that every PDU carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandNumbers {
    pub(super) exp_cmd_sn: Sn,
    pub(super) max_cmd_sn: Sn,
}

/// The sending half of a link: what waits, and what is on its way.
#[derive(Debug)]
pub(super) struct LinkSender {
    waiting: VecDeque<OutgoingPdu>,
    pub(super) transmit_queue: TransmitQueue,
    /// The next.
    pub(super) stat_sn: Sn,
    /// Read bytes that were allowed, and are not in a batch yet.
    pub(super) read_bytes: u64,
    /// Bytes in batches that the kernel still holds.
    kernel_bytes: u64,
    /// Bytes that wait to be sent and were not reserved.
    unreserved_bytes: u64,
    /// Since when answers wait.
    pub(super) answer_times: ResponseTimes,
}

impl LinkSender {
    pub(super) fn new(stat_sn: Sn) -> Self {
        LinkSender {
            waiting: VecDeque::new(),
            transmit_queue: TransmitQueue::new(),
            stat_sn,
            read_bytes: 0,
            kernel_bytes: 0,
            unreserved_bytes: 0,
            answer_times: ResponseTimes::default(),
        }
    }

    /// Notes since when the last of what waits, which is an answer or has one, does so.
    #[inline]
    pub(super) fn note_queued_response(&mut self, (now, label): (Time, u64)) {
        self.answer_times.note_response(now, label, self.waiting.len());
    }

    #[inline]
    pub(super) fn push(&mut self, pdu: OutgoingPdu) {
        self.waiting.push_back(pdu);
    }

    /// Drops what waits: the link is over.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        drop(self.transmit_queue.take_unsent());
        self.answer_times.clear();
    }

    /// Whether nothing waits, and no batch is on its way to the socket.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.transmit_queue.has_unsent() && self.transmit_queue.can_start_batch()
    }

    /// Whether so much waits that no more is parsed.
    #[inline]
    pub(super) fn is_full(&self, discovery: bool) -> bool {
        let unreserved_max = if discovery { DISCOVERY_UNRESERVED_BYTES_MAX } else { UNRESERVED_BYTES_MAX };
        self.waiting.len() >= QUEUED_PDUS_MAX || self.unreserved_bytes >= unreserved_max
    }

    /// Allows `len` bytes of a read, of which `reserved` were allowed before, where no more than `most` are on their
    /// way: one I/O always.
    #[inline]
    pub(super) fn reserve_send_window(&mut self, reserved: &mut u32, len: u32, most: u32) -> bool {
        // A task that asks again keeps what it was allowed, which counts once.
        let more = len.saturating_sub(*reserved);
        let unsent = self.transmit_queue.unsent_len() as u64;
        let outstanding = self.read_bytes + self.kernel_bytes + unsent;
        let allowed = outstanding == u64::from(*reserved) || outstanding + u64::from(more) <= u64::from(most);
        if allowed {
            self.read_bytes += u64::from(more);
            *reserved += more;
        }
        allowed
    }

    /// Takes an allowance back that was not used.
    #[inline]
    pub(super) fn release_send_window(&mut self, reserved: u32) {
        self.read_bytes = self.read_bytes.saturating_sub(u64::from(reserved));
    }

    /// Queues read data, of which so many bytes were allowed.
    #[inline]
    pub(super) fn push_data_in(&mut self, run: DataInRun, reserved: u32) {
        let len = run.data.len() as u64;
        self.read_bytes = (self.read_bytes + len).saturating_sub(u64::from(reserved));
        self.unreserved_bytes += u64::from(run.unreserved);
        self.waiting.push_back(OutgoingPdu::DataIn(run));
    }

    /// Queues a NOP-In, with the data of the NOP-Out that it answers.
    pub(super) fn push_nop(&mut self, itt: Itt, ttt: Ttt, data: Sg) {
        self.unreserved_bytes += data.len() as u64;
        self.waiting.push_back(OutgoingPdu::NopIn { itt, ttt, data });
    }

    /// Tells where the window stands, and nothing else.
    pub(super) fn push_window_update(&mut self) {
        self.push_nop(Itt::NONE, Ttt::NONE, Sg::new());
    }

    /// Queues a status without sense: it rides on the last of the data (RFC 7143 §11.7.3), or is a
    /// response by itself, which must then be GOOD.
    pub(super) fn push_status(&mut self, itt: Itt, status: ScsiStatus, exp_data_sn: u32, residual: Residual) {
        match self.last_queued_data_in(itt) {
            Some(run) => run.status = Some((status, residual)),
            None => self.waiting.push_back(OutgoingPdu::Good { itt, exp_data_sn, residual }),
        }
    }

    /// The last of what waits, if it is data of this task without status.
    pub(super) fn last_queued_data_in(&mut self, itt: Itt) -> Option<&mut DataInRun> {
        match self.waiting.back_mut() {
            Some(OutgoingPdu::DataIn(run)) if run.itt == itt && run.status.is_none() => Some(run),
            Some(_) | None => None,
        }
    }

    /// The ExpStatSN that acknowledges all that is sent and waits to be sent.
    pub(super) fn exp_stat_sn_after_queue(&self) -> Sn {
        let statuses = self.waiting.iter().filter(|pdu| pdu.takes_stat_sn()).count();
        self.stat_sn.add(statuses as u32)
    }

    /// Copies read data that waits to be sent and that others may write. False: some is left, for want of memory.
    pub(super) fn copy_lent_data(&mut self, pool: &Pool) -> bool {
        self.waiting.iter_mut().all(|pdu| match pdu {
            OutgoingPdu::DataIn(run) if !run.data.is_stable() => {
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

    /// Makes one batch of all that waits.
    pub(super) fn build_send_batch(
        &mut self,
        framing: Framing,
        numbers: CommandNumbers,
        cx: &mut Cx<'_>,
    ) -> Result<Option<SendOp>, NoMemory> {
        if self.transmit_queue.has_unsent() {
            return self.build_unsent_batch(cx);
        }
        let digest = framing.data_digest;
        let Some(first) = self.waiting.front().filter(|_| self.transmit_queue.can_start_batch()) else {
            return Ok(None);
        };
        let least = first.next_head_len_max(digest);
        let estimates = self.waiting.iter().map(|pdu| pdu.head_estimate(digest));
        let pdus = PduWriter::start_batch(&mut self.transmit_queue, cx.pool, framing, least, estimates)
            .ok_or(NoMemory)?;
        let mut writer =
            ResponseWriter { pdus, numbers, stat_sn: self.stat_sn, read_bytes: 0, unreserved_bytes: 0 };
        while let Some(pdu) = self.waiting.front_mut() {
            if !writer.pdus.batch.has_room(pdu.next_head_len_max(digest), pdu.data().unwrap_or(&Sg::new())) {
                break;
            }
            if writer.put_pdu(pdu) {
                self.answer_times.begin_batch();
                if let Some(OutgoingPdu::DataIn(run)) = self.waiting.pop_front() {
                    writer.unreserved_bytes += u64::from(run.unreserved);
                }
            }
        }
        self.stat_sn = writer.stat_sn;
        self.read_bytes = self.read_bytes.saturating_sub(writer.read_bytes);
        self.unreserved_bytes = self.unreserved_bytes.saturating_sub(writer.unreserved_bytes);
        let op = self.transmit_queue.finish_batch(writer.pdus.batch, cx.now);
        self.kernel_bytes += op.as_ref().map_or(0, |op| op.len as u64);
        Ok(op)
    }

    #[cold]
    fn build_unsent_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, NoMemory> {
        let op = self.transmit_queue.build_unsent_batch(cx.pool, cx.now).map_err(|NoBatchMemory| NoMemory)?;
        self.kernel_bytes += op.as_ref().map_or(0, |op| op.len as u64);
        Ok(op)
    }

    /// A batch came back of which the socket took only the first `written` bytes: the rest goes first.
    pub(super) fn keep_unsent(&mut self, op: SendOp, written: usize) {
        self.kernel_bytes = self.kernel_bytes.saturating_sub(op.len as u64);
        self.transmit_queue.keep_unsent(op, written);
    }

    /// Makes bytes of all that waits, to be sent before all else. False: memory is short, and some still waits.
    pub(super) fn make_all_unsent(
        &mut self,
        framing: Framing,
        numbers: CommandNumbers,
        cx: &mut Cx<'_>,
    ) -> bool {
        let mut bytes = self.transmit_queue.take_unsent();
        let mut complete = true;
        while !self.waiting.is_empty() && complete {
            match self.build_send_batch(framing, numbers, cx) {
                Ok(Some(op)) => {
                    let before = bytes.len();
                    bytes.resize(before + op.len, 0);
                    op.copy_to(0, bytes.get_mut(before..).unwrap_or_default());
                    self.transmit_queue.handle_written();
                    self.handle_send_released(op);
                }
                Ok(None) | Err(NoMemory) => complete = false,
            }
        }
        self.transmit_queue.set_unsent(bytes);
        complete
    }

    /// A batch's memory came back.
    pub(super) fn handle_send_released(&mut self, op: SendOp) {
        self.kernel_bytes = self.kernel_bytes.saturating_sub(op.len as u64);
        self.transmit_queue.handle_send_released(op);
    }
}

/// There is no memory for a batch.
#[derive(Debug)]
pub(super) struct NoMemory;

/// Makes PDUs of what waits.
struct ResponseWriter {
    pdus: PduWriter,
    numbers: CommandNumbers,
    stat_sn: Sn,
    /// Read payload that entered the batch.
    read_bytes: u64,
    /// Payload that was not reserved, and that entered the batch.
    unreserved_bytes: u64,
}

/// Sets the three numbers that every PDU of the target carries.
macro_rules! stamp {
    ($writer:ident, $pdu:ident, $stat_sn:expr) => {{
        $pdu.stat_sn = $stat_sn;
        $pdu.exp_cmd_sn = $writer.numbers.exp_cmd_sn;
        $pdu.max_cmd_sn = $writer.numbers.max_cmd_sn;
    }};
}

impl ResponseWriter {
    /// Puts one PDU into the batch; true if `out` is done with.
    fn put_pdu(&mut self, out: &mut OutgoingPdu) -> bool {
        match out {
            OutgoingPdu::DataIn(run) => return self.put_data_in(run),
            OutgoingPdu::Scsi(response) => self.put_scsi_response(response),
            OutgoingPdu::Good { itt, exp_data_sn, residual } => {
                self.put_good_response(*itt, *exp_data_sn, *residual)
            }
            OutgoingPdu::R2t { itt, lun, ttt, sn, offset, end } => {
                let mut pdu = wire::R2t::new();
                stamp!(self, pdu, self.stat_sn);
                (pdu.itt, pdu.lun, pdu.ttt, pdu.r2t_sn) = (*itt, *lun, *ttt, Sn::new(*sn));
                pdu.buffer_offset = U32::new(*offset);
                pdu.desired_len = U32::new(*end - *offset);
                self.pdus.put_pdu(&mut pdu, &[]);
            }
            OutgoingPdu::Tmf { itt, response } => {
                let mut pdu = wire::TmfResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.response) = (*itt, *response);
                self.pdus.put_pdu(&mut pdu, &[]);
            }
            OutgoingPdu::NopIn { itt, ttt, data } => self.put_nop_in(*itt, *ttt, data),
            OutgoingPdu::Text { itt, ttt, flags, lun, data } => {
                let mut pdu = wire::TextResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.ttt, pdu.flags, pdu.lun) = (*itt, *ttt, *flags, *lun);
                self.pdus.put_pdu(&mut pdu, data);
            }
            OutgoingPdu::Logout { itt, response, time2wait, time2retain } => {
                let mut pdu = wire::LogoutResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.response) = (*itt, *response);
                (pdu.time2wait, pdu.time2retain) = (U16::new(*time2wait), U16::new(*time2retain));
                self.pdus.put_pdu(&mut pdu, &[]);
            }
            OutgoingPdu::Reject { reason, bhs } => {
                let mut pdu = wire::Reject::new();
                stamp!(self, pdu, self.stat_sn.take());
                pdu.reason = *reason;
                self.pdus.put_pdu(&mut pdu, bhs.bytes());
            }
            OutgoingPdu::Async { event, parameters: [one, two, three] } => {
                let mut pdu = wire::AsyncMessage::new();
                stamp!(self, pdu, self.stat_sn.take());
                pdu.event = *event;
                (pdu.parameter1, pdu.parameter2) = (U16::new(*one), U16::new(*two));
                pdu.parameter3 = U16::new(*three);
                self.pdus.put_pdu(&mut pdu, &[]);
            }
        }
        true
    }

    fn put_data_in(&mut self, run: &mut DataInRun) -> bool {
        let (range, ends_sequence) = run.next_pdu();
        let last = range.end == run.data.len();
        let mut pdu = wire::DataIn::new();
        stamp!(self, pdu, Sn::new(0));
        pdu.itt = run.itt;
        pdu.data_sn = Sn::new(run.sn);
        pdu.buffer_offset = U32::new(run.offset + run.done);
        if ends_sequence {
            pdu.flags = DataInFlags::FINAL;
        }
        if let (true, Some((status, residual))) = (last, run.status) {
            pdu.flags = pdu.flags.with(DataInFlags::STATUS).with(match residual {
                Residual::None => DataInFlags(0),
                Residual::Underflow(_) => DataInFlags::UNDERFLOW,
                Residual::Overflow(_) => DataInFlags::OVERFLOW,
            });
            pdu.status = status;
            pdu.residual = U32::new(residual.count());
            pdu.stat_sn = self.stat_sn.take();
        }
        self.read_bytes += range.len() as u64;
        run.done = range.end as u32;
        run.sn = run.sn.wrapping_add(1);
        self.pdus.put_pdu_with_payload(&mut pdu, &[], &run.data, range);
        last
    }

    fn put_good_response(&mut self, itt: Itt, exp_data_sn: u32, residual: Residual) {
        let mut pdu = wire::ScsiResponse::new();
        stamp!(self, pdu, self.stat_sn.take());
        pdu.itt = itt;
        pdu.exp_data_sn = Sn::new(exp_data_sn);
        pdu.residual = U32::new(residual.count());
        pdu.flags = pdu.flags.with(residual_flag(residual));
        self.pdus.put_pdu(&mut pdu, &[]);
    }

    fn put_scsi_response(&mut self, response: &FullResponse) {
        let mut pdu = wire::ScsiResponse::new();
        stamp!(self, pdu, self.stat_sn.take());
        pdu.itt = response.itt;
        match &response.answer {
            Answer::Failure | Answer::Function(_) => {
                pdu.response = ScsiResponseCode::TARGET_FAILURE;
                self.pdus.put_pdu(&mut pdu, &[]);
            }
            Answer::Result(ScsiResult { status, qualifier, sense, .. }) => {
                pdu.status = *status;
                if response.with_qualifier {
                    pdu.status_qualifier = U16::new(*qualifier);
                }
                pdu.exp_data_sn = Sn::new(response.exp_data_sn);
                pdu.residual = U32::new(response.residual.count());
                pdu.flags = pdu.flags.with(residual_flag(response.residual));
                if response.bidi_residual > 0 {
                    pdu.flags = pdu.flags.with(ResponseFlags::BIDI_UNDERFLOW);
                    pdu.bidi_residual = U32::new(response.bidi_residual);
                }
                let mut segment = [0u8; 2 + 252];
                let [high, low, bytes @ ..] = &mut segment;
                let len = sense.len().min(bytes.len());
                [*high, *low] = (len as u16).to_be_bytes();
                bytes.iter_mut().zip(sense).for_each(|(to, byte)| *to = *byte);
                let len = if sense.is_empty() { 0 } else { 2 + len };
                self.pdus.put_pdu(&mut pdu, segment.get(..len).unwrap_or(&segment));
            }
        }
    }

    fn put_nop_in(&mut self, itt: Itt, ttt: Ttt, data: &Sg) {
        let mut pdu = wire::NopIn::new();
        let stat_sn = if itt.is_none() { self.stat_sn } else { self.stat_sn.take() };
        stamp!(self, pdu, stat_sn);
        (pdu.itt, pdu.ttt) = (itt, ttt);
        self.unreserved_bytes += data.len() as u64;
        self.pdus.put_pdu_with_payload(&mut pdu, &[], data, 0..data.len());
    }
}

fn residual_flag(residual: Residual) -> ResponseFlags {
    match residual {
        Residual::None => ResponseFlags(0),
        Residual::Underflow(_) => ResponseFlags::UNDERFLOW,
        Residual::Overflow(_) => ResponseFlags::OVERFLOW,
    }
}
