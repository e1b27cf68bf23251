//! What waits to be sent on a link, and how it is put on the wire.
//!
//! StatSN, ExpCmdSN and MaxCmdSN are stamped when a PDU enters a batch: what waits long still carries
//! fresh numbers, and StatSN follows the order of the wire.

use super::link::LinkState;
use super::request::ScsiResult;
use super::task::Answer;
use crate::wire::{
    self, AsyncEvent, Bhs, DataInFlags, Itt, LogoutResponseCode, Lun, Pdu, RejectReason, ResponseFlags,
    ScsiResponseCode, ScsiStatus, Sn, TextFlags, TmfResponseCode, Ttt,
};
use buf::crc32c::Crc32c;
use buf::{Class, Cx, Pool, Sg};
use std::ops::Range;
use stream::{Batch, SendOp};
use zerocopy::byteorder::big_endian::{U16, U32};

/// Longest Data-In segment with a data digest: volatile memory is copied, and must fit a batch.
const DIGEST_SEGMENT_MAX: u32 = 128 << 10;
/// Header and digest, padding and digest.
const FRAME: usize = wire::BHS_LEN + 4 + 3 + 4;
/// A PDU that is all head is at most so long: a response with 252 bytes of sense.
const SMALL_MAX: usize = FRAME + 256;

/// A PDU, or a run of Data-In PDUs.
#[derive(Debug)]
pub(super) enum OutgoingPdu {
    DataIn(DataIn),
    Scsi(Box<Scsi>),
    /// The common answer of a write, without a box.
    Good {
        itt: Itt,
        exp_data_sn: u32,
        residual: Residual,
    },
    R2t {
        itt: Itt,
        lun: Lun,
        ttt: u32,
        sn: u32,
        at: u32,
        end: u32,
    },
    Tmf {
        itt: Itt,
        response: TmfResponseCode,
    },
    NopIn {
        itt: Itt,
        ttt: Ttt,
        lun: Lun,
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
pub(super) struct DataIn {
    pub(super) itt: Itt,
    /// Offset of `data` in the command's data.
    pub(super) offset: u32,
    pub(super) data: Sg,
    /// How many bytes of it nobody asked leave for.
    pub(super) unasked: u32,
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
pub(super) struct Scsi {
    pub(super) itt: Itt,
    pub(super) answer: Answer,
    pub(super) exp_data_sn: u32,
    pub(super) residual: Residual,
    /// Read length of a bidirectional command: none of it was moved.
    pub(super) bidi_residual: u32,
    pub(super) with_qualifier: bool,
}

/// How the SCSI layer's length compares with what the initiator expected (RFC 7143 §11.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residual {
    None,
    Underflow(u32),
    Overflow(u32),
}

impl Residual {
    pub(super) fn of(edtl: u32, transferred: u64) -> Self {
        match u64::from(edtl).checked_sub(transferred) {
            Some(0) => Residual::None,
            Some(less) => Residual::Underflow(less as u32),
            None => Residual::Overflow(u32::try_from(transferred - u64::from(edtl)).unwrap_or(u32::MAX)),
        }
    }

    fn count(self) -> u32 {
        match self {
            Residual::None => 0,
            Residual::Underflow(n) | Residual::Overflow(n) => n,
        }
    }
}

impl DataIn {
    /// Longest PDU on a link.
    pub(super) fn segment_of(link: &LinkState) -> u32 {
        let most = link.params.initiator_mrdsl;
        if link.params.data_digest { most.min(DIGEST_SEGMENT_MAX) } else { most }
    }

    /// How many PDUs the whole stretch makes.
    pub(super) fn count(len: u32, segment: u32, burst: u32) -> u32 {
        if (1..=segment.min(burst)).contains(&len) {
            return 1;
        }
        (len / burst) * burst.div_ceil(segment) + (len % burst).div_ceil(segment)
    }

    /// The next PDU's range of `data`, and whether it ends a sequence.
    fn next(&self) -> (Range<usize>, bool) {
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
                let copied = Batch::head_need(&run.data, segment, digest) > 0;
                let pdus = if left <= segment { 1 } else { left.div_ceil(segment) };
                pdus * FRAME + if copied { left } else { 0 }
            }
            OutgoingPdu::NopIn { data, .. } => FRAME + Batch::head_need(data, data.len(), digest),
            OutgoingPdu::Text { data, .. } => FRAME + data.len(),
            OutgoingPdu::Scsi(_) => SMALL_MAX,
            OutgoingPdu::Good { .. }
            | OutgoingPdu::R2t { .. }
            | OutgoingPdu::Tmf { .. }
            | OutgoingPdu::Logout { .. }
            | OutgoingPdu::Async { .. } => FRAME,
            OutgoingPdu::Reject { .. } => FRAME + wire::BHS_LEN,
        }
    }

    /// Bytes of head that the next PDU needs at most.
    fn head_least(&self, digest: bool) -> usize {
        match self {
            OutgoingPdu::DataIn(run) => {
                let (range, _) = run.next();
                FRAME + Batch::head_need(&run.data, range.len(), digest)
            }
            other => other.head_estimate(digest),
        }
    }

    /// Whether a StatSN is for this, once it is whole.
    pub(super) fn takes_stat_sn(&self) -> bool {
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
pub(super) struct Stamp {
    pub(super) exp_cmd_sn: Sn,
    pub(super) max_cmd_sn: Sn,
}

impl LinkState {
    /// Copies read data that waits to be sent and that others may write. False: some is left, for want of memory.
    pub(super) fn copy_lent(&mut self, pool: &Pool) -> bool {
        self.out.iter_mut().all(|out| match out {
            OutgoingPdu::DataIn(run) if !run.data.is_stable() => {
                match pool.copy_of(Class::Solicited, &run.data) {
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
}

/// Makes one batch of all that waits on `link`.
pub(super) fn gather(link: &mut LinkState, stamp: Stamp, cx: &mut Cx<'_>) -> Option<SendOp> {
    if link.out.is_empty() || !link.outbox.is_free() {
        return None;
    }
    let digest = link.params.data_digest;
    let least = link.out.front()?.head_least(digest);
    let mut want = 0;
    for out in &link.out {
        want += out.head_estimate(digest);
        if want >= stream::HEAD_MAX {
            break;
        }
    }
    let Some(batch) = link.outbox.open(cx.pool, least, want.max(least)) else {
        link.retry = Some(cx.now + super::RETRY);
        return None;
    };
    let mut writer = Writer {
        batch,
        stamp,
        header_digest: link.params.header_digest,
        data_digest: digest,
        stat_sn: link.stat_sn,
        read_bytes: 0,
        unasked_bytes: 0,
    };
    while let Some(out) = link.out.front_mut() {
        if !writer.batch.fits(out.head_least(digest), out.data().unwrap_or(&Sg::new())) {
            break;
        }
        if writer.put(out)
            && let Some(OutgoingPdu::DataIn(run)) = link.out.pop_front()
        {
            writer.unasked_bytes += u64::from(run.unasked);
        }
    }
    link.stat_sn = writer.stat_sn;
    link.read_bytes = link.read_bytes.saturating_sub(writer.read_bytes);
    link.unasked_bytes = link.unasked_bytes.saturating_sub(writer.unasked_bytes);
    let op = link.outbox.close(writer.batch, cx.now)?;
    link.kernel_bytes += op.len as u64;
    Some(op)
}

struct Writer {
    batch: Batch,
    stamp: Stamp,
    header_digest: bool,
    data_digest: bool,
    stat_sn: Sn,
    /// Read payload that entered the batch.
    read_bytes: u64,
    /// Payload that nobody asked leave for, and that entered the batch.
    unasked_bytes: u64,
}

/// Sets the three numbers that every PDU of the target carries.
macro_rules! stamp {
    ($writer:ident, $pdu:ident, $stat_sn:expr) => {{
        $pdu.stat_sn = $stat_sn;
        $pdu.exp_cmd_sn = $writer.stamp.exp_cmd_sn;
        $pdu.max_cmd_sn = $writer.stamp.max_cmd_sn;
    }};
}

impl Writer {
    /// Puts one PDU into the batch; true if `out` is done with.
    fn put(&mut self, out: &mut OutgoingPdu) -> bool {
        match out {
            OutgoingPdu::DataIn(run) => return self.data_in(run),
            OutgoingPdu::Scsi(response) => self.scsi(response),
            OutgoingPdu::Good { itt, exp_data_sn, residual } => self.good(*itt, *exp_data_sn, *residual),
            OutgoingPdu::R2t { itt, lun, ttt, sn, at, end } => {
                let mut pdu = wire::R2t::new();
                stamp!(self, pdu, self.stat_sn);
                (pdu.itt, pdu.lun, pdu.ttt, pdu.r2t_sn) = (*itt, *lun, Ttt::new(*ttt), Sn::new(*sn));
                pdu.buffer_offset = U32::new(*at);
                pdu.desired_len = U32::new(*end - *at);
                self.frame(&pdu, &[]);
            }
            OutgoingPdu::Tmf { itt, response } => {
                let mut pdu = wire::TmfResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.response) = (*itt, *response);
                self.frame(&pdu, &[]);
            }
            OutgoingPdu::NopIn { itt, ttt, lun, data } => self.nop_in(*itt, *ttt, *lun, data),
            OutgoingPdu::Text { itt, ttt, flags, lun, data } => {
                let mut pdu = wire::TextResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.ttt, pdu.flags, pdu.lun) = (*itt, *ttt, *flags, *lun);
                pdu.set_data_len(data.len());
                self.frame(&pdu, data);
            }
            OutgoingPdu::Logout { itt, response, time2wait, time2retain } => {
                let mut pdu = wire::LogoutResponse::new();
                stamp!(self, pdu, self.stat_sn.take());
                (pdu.itt, pdu.response) = (*itt, *response);
                (pdu.time2wait, pdu.time2retain) = (U16::new(*time2wait), U16::new(*time2retain));
                self.frame(&pdu, &[]);
            }
            OutgoingPdu::Reject { reason, bhs } => {
                let mut pdu = wire::Reject::new();
                stamp!(self, pdu, self.stat_sn.take());
                pdu.reason = *reason;
                pdu.set_data_len(wire::BHS_LEN);
                self.frame(&pdu, bhs.bytes());
            }
            OutgoingPdu::Async { event, parameters: [one, two, three] } => {
                let mut pdu = wire::AsyncMessage::new();
                stamp!(self, pdu, self.stat_sn.take());
                pdu.event = *event;
                (pdu.parameter1, pdu.parameter2) = (U16::new(*one), U16::new(*two));
                pdu.parameter3 = U16::new(*three);
                self.frame(&pdu, &[]);
            }
        }
        true
    }

    fn data_in(&mut self, run: &mut DataIn) -> bool {
        let (range, ends_sequence) = run.next();
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
        self.frame_with(&mut pdu, &run.data, range);
        last
    }

    fn good(&mut self, itt: Itt, exp_data_sn: u32, residual: Residual) {
        let mut pdu = wire::ScsiResponse::new();
        stamp!(self, pdu, self.stat_sn.take());
        pdu.itt = itt;
        pdu.exp_data_sn = Sn::new(exp_data_sn);
        pdu.residual = U32::new(residual.count());
        pdu.flags = pdu.flags.with(residual_flag(residual));
        self.frame(&pdu, &[]);
    }

    fn scsi(&mut self, response: &Scsi) {
        let mut pdu = wire::ScsiResponse::new();
        stamp!(self, pdu, self.stat_sn.take());
        pdu.itt = response.itt;
        match &response.answer {
            Answer::Failure | Answer::Function(_) => {
                pdu.response = ScsiResponseCode::TARGET_FAILURE;
                self.frame(&pdu, &[]);
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
                pdu.set_data_len(len);
                self.frame(&pdu, segment.get(..len).unwrap_or(&segment));
            }
        }
    }

    fn nop_in(&mut self, itt: Itt, ttt: Ttt, lun: Lun, data: &Sg) {
        let mut pdu = wire::NopIn::new();
        let stat_sn = if itt.is_none() { self.stat_sn } else { self.stat_sn.take() };
        stamp!(self, pdu, stat_sn);
        (pdu.itt, pdu.ttt, pdu.lun) = (itt, ttt, lun);
        self.unasked_bytes += data.len() as u64;
        self.frame_with(&mut pdu, data, 0..data.len());
    }

    /// A PDU whose data segment is in `data`, its length already set.
    fn frame(&mut self, pdu: &impl Pdu, data: &[u8]) {
        self.header(pdu.as_bhs());
        if !data.is_empty() {
            self.batch.put(data);
            let mut crc = Crc32c::new();
            if self.data_digest {
                crc.update(data);
            }
            self.trailer(data.len(), crc);
        }
    }

    /// A PDU whose data segment is `range` of `data`.
    fn frame_with(&mut self, pdu: &mut impl Pdu, data: &Sg, range: Range<usize>) {
        let len = range.len();
        pdu.set_data_len(len);
        self.header(pdu.as_bhs());
        if len > 0 {
            let mut crc = Crc32c::new();
            self.batch.payload(data, range, self.data_digest.then_some(&mut crc));
            self.trailer(len, crc);
        }
    }

    fn header(&mut self, bhs: &Bhs) {
        self.batch.put(bhs.bytes());
        if self.header_digest {
            let mut crc = Crc32c::new();
            crc.update(bhs.bytes());
            self.batch.put(&crc.wire());
        }
    }

    fn trailer(&mut self, len: usize, mut crc: Crc32c) {
        let padding = wire::padding(len);
        if !padding.is_empty() {
            self.batch.put(padding);
        }
        if self.data_digest {
            crc.update(padding);
            self.batch.put(&crc.wire());
        }
    }
}

fn residual_flag(residual: Residual) -> ResponseFlags {
    match residual {
        Residual::None => ResponseFlags(0),
        Residual::Underflow(_) => ResponseFlags::UNDERFLOW,
        Residual::Overflow(_) => ResponseFlags::OVERFLOW,
    }
}
