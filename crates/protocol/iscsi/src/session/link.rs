//! One TCP connection of the session: its receive state, its send queue, its timers.

use super::outgoing::{CommandNumbers, LinkSender, OutgoingPdu};
use super::params::{LinkParams, SessionLimits};
use super::pings::OutstandingPings;
use super::task::Destination;
use crate::framing::{Framing, MEMORY_RETRY_INTERVAL, PduReceiver, ReceiveState};
use crate::text_exchange::TextExchange;
use crate::wire::{Bhs, Cid, DataOut, Itt, NopOut, Pdu, RejectReason, Sn, Ttt};
use buf::{Cx, Sg, SgMut, Time};
use stream::{ReceiveBuffer, SendOp, Tag, earliest};

/// The bit of a NOP-Out's second byte that is always set (RFC 7143 §11.18).
const NOP_OUT_FINAL_BIT: u8 = 0x80;

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) cid: Cid,
    pub(super) framing: Framing,
    pub(super) phase: LinkPhase,
    pub(super) rx: PduReceiver<SegmentPurpose>,
    /// Whose buffer is out with a receive.
    pub(super) destination: Option<Destination>,
    pub(super) tx: LinkSender,
    /// The highest StatSN that the peer acknowledged.
    pub(super) acked: Sn,
    /// Tasks allegiant to this link.
    pub(super) tasks: usize,
    /// Write bytes that were allowed, and have not come yet.
    pub(super) write_bytes: u64,
    pub(super) text: Option<Box<TextExchange>>,
    /// When something last came.
    pub(super) heard: Time,
    /// Our pings.
    pub(super) pings: OutstandingPings,
    /// How many tasks the peer owes data for, and since when it has ended no sequence of it.
    pub(super) owed: usize,
    pub(super) owed_since: Time,
    /// Memory was short: when to try again.
    pub(super) retry: Option<Time>,
}

/// The life of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkPhase {
    Open,
    /// Its last PDUs are being sent; what comes is dropped.
    Finishing,
    /// Closed; operations or tasks are still to come back.
    Dead,
    /// Nothing is left of it.
    Gone,
}

/// What a data segment is for.
#[derive(Debug)]
pub(super) enum SegmentPurpose {
    /// Data of a write; `sequence`: it came in a Data-Out.
    Write { tag: Tag, sequence: bool },
    /// Data of a NOP-Out or of a text: its first `want` bytes are kept.
    Collect { data: SgMut, want: usize, filled: usize },
    /// Nothing.
    Skip,
}

impl PduReceiver<SegmentPurpose> {
    /// Gives up what was collected of a NOP-Out or a text that will never be whole.
    pub(super) fn drop_collected_data(&mut self) {
        if let ReceiveState::Data { segment, .. } = &mut self.state
            && matches!(segment, SegmentPurpose::Collect { .. })
        {
            *segment = SegmentPurpose::Skip;
        }
    }
}

impl LinkState {
    pub(super) fn new(params: &LinkParams, leftover: &[u8], now: Time) -> Self {
        LinkState {
            cid: params.cid,
            framing: params.framing(),
            phase: LinkPhase::Open,
            rx: PduReceiver::new(ReceiveBuffer::with_bytes(leftover)),
            destination: None,
            tx: LinkSender::new(params.stat_sn),
            acked: params.stat_sn.sub(1),
            tasks: 0,
            write_bytes: 0,
            text: None,
            heard: now,
            pings: OutstandingPings::default(),
            owed: 0,
            owed_since: now,
            retry: None,
        }
    }

    /// A slot that no link holds.
    pub(super) fn gone(now: Time) -> Self {
        let (cid, stat_sn) = (Cid::new(0), Sn::new(0));
        let params = LinkParams {
            cid,
            header_digest: false,
            data_digest: false,
            initiator_mrdsl: Framing::LOGIN.peer_mrdsl,
            target_mrdsl: Framing::LOGIN.own_mrdsl,
            stat_sn,
        };
        LinkState { phase: LinkPhase::Gone, ..LinkState::new(&params, &[], now) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == LinkPhase::Open
    }

    /// Whether it is open, or has something to say still.
    pub(super) fn is_open_or_sending(&self) -> bool {
        matches!(self.phase, LinkPhase::Open | LinkPhase::Finishing)
    }

    /// Refuses a PDU, with a copy of its header.
    pub(super) fn queue_reject(&mut self, bhs: &Bhs, reason: RejectReason) {
        self.tx.push(OutgoingPdu::Reject { reason, bhs: *bhs });
    }

    /// Takes ExpStatSN, which stands at the same place in every request. Numbers that we have not
    /// reached are ignored: nothing is kept for retransmission that they could free.
    #[inline]
    pub(super) fn handle_exp_stat_sn(&mut self, bhs: &Bhs) {
        let exp = DataOut::from_bhs(bhs).exp_stat_sn;
        let acked = exp.sub(1);
        if self.acked.lt(acked) && exp.le(self.tx.stat_sn) {
            self.acked = acked;
        }
    }

    /// A NOP-Out: what it says of our pings, also if it wants an answer itself (RFC 7143 §11.18). False: it
    /// is refused.
    pub(super) fn admit_nop(&mut self, bhs: &Bhs) -> bool {
        let pdu = NopOut::from_bhs(bhs);
        let reason = if bhs.flags & NOP_OUT_FINAL_BIT == 0 {
            RejectReason::INVALID_PDU_FIELD
        } else if bhs.itt.is_none() && !bhs.is_immediate() {
            RejectReason::PROTOCOL_ERROR
        } else if pdu.ttt.is_none() || self.pings.handle_answer(pdu.ttt) {
            return true;
        } else {
            RejectReason::INVALID_PDU_FIELD
        };
        self.queue_reject(bhs, reason);
        false
    }

    pub(super) fn send_ping(&mut self, now: Time, ttt: Ttt) {
        self.pings.note_sent(ttt, now);
        self.tx.push_nop(Itt::NONE, ttt, Sg::new());
    }

    /// When the first of its clocks wants to be looked at.
    pub(super) fn next_deadline(&self, limits: &SessionLimits) -> Option<Time> {
        let deadlines = [self.owed_data_deadline(limits), self.ping_deadline(limits), self.retry];
        deadlines.into_iter().fold(self.stall_deadline(limits), earliest)
    }

    pub(super) fn stall_deadline(&self, limits: &SessionLimits) -> Option<Time> {
        self.tx.transmit_queue.unwritten_since().map(|since| since + limits.stall_timeout)
    }

    pub(super) fn owed_data_deadline(&self, limits: &SessionLimits) -> Option<Time> {
        (self.owed > 0).then(|| self.owed_since + limits.data_out_timeout)
    }

    /// When the next ping is due, or the answer to the last one.
    pub(super) fn ping_deadline(&self, limits: &SessionLimits) -> Option<Time> {
        match self.pings.unanswered_since() {
            Some(since) => Some(since + limits.nop_timeout),
            None if self.is_open() => limits.nop_interval.map(|interval| self.heard + interval),
            None => None,
        }
    }

    /// Makes one batch of all that waits to be sent.
    pub(super) fn build_send_batch(&mut self, numbers: CommandNumbers, cx: &mut Cx<'_>) -> Option<SendOp> {
        let op = self.tx.build_send_batch(self.framing, numbers, cx);
        if op.is_err() {
            self.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
        }
        op.ok().flatten()
    }

    /// Whether the world holds nothing of this link.
    pub(super) fn has_no_io_in_flight(&self) -> bool {
        !self.rx.is_out && self.tx.transmit_queue.is_idle()
    }
}
