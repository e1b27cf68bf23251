//! One TCP connection of the session: what it is receiving, what it has to send, its clocks.

use super::outgoing::{CommandNumbers, LinkSender};
use super::params::LinkParams;
use super::pings::Pings;
use super::task::Destination;
use crate::exchange::TextExchange;
use crate::framing::{Framing, PduReceiver, ReceiveState};
use crate::wire::{Cid, Sn};
use buf::{Cx, SgMut, Time};
use stream::{Inlet, SendOp, Tag};

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) cid: Cid,
    pub(super) framing: Framing,
    pub(super) phase: Phase,
    pub(super) rx: PduReceiver<Segment>,
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
    pub(super) pings: Pings,
    /// How many tasks the peer owes data for, and since when it has ended no sequence of it.
    pub(super) owed: usize,
    pub(super) owed_since: Time,
    /// Memory was short: when to try again.
    pub(super) retry: Option<Time>,
}

/// The life of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Its last words are being sent; what comes is swallowed.
    Finishing,
    /// Closed; operations or tasks are still to come back.
    Dead,
    /// Nothing is left of it.
    Gone,
}

/// What a data segment is for.
#[derive(Debug)]
pub(super) enum Segment {
    /// Data of a write; `sequence`: it came in a Data-Out.
    Write { tag: Tag, sequence: bool },
    /// Data of a NOP-Out or of a text: its first `want` bytes are kept.
    Gather { data: SgMut, want: usize, filled: usize },
    /// Nothing.
    Skip,
}

impl PduReceiver<Segment> {
    /// Gives up what was gathered of a NOP-Out or a text that will never be whole.
    pub(super) fn drop_gathered(&mut self) {
        if let ReceiveState::Data { segment, .. } = &mut self.state
            && matches!(segment, Segment::Gather { .. })
        {
            *segment = Segment::Skip;
        }
    }
}

impl LinkState {
    pub(super) fn new(params: &LinkParams, leftover: &[u8], now: Time) -> Self {
        LinkState {
            cid: params.cid,
            framing: params.framing(),
            phase: Phase::Open,
            rx: PduReceiver::new(Inlet::with_bytes(leftover)),
            destination: None,
            tx: LinkSender::new(params.stat_sn),
            acked: params.stat_sn.sub(1),
            tasks: 0,
            write_bytes: 0,
            text: None,
            heard: now,
            pings: Pings::default(),
            owed: 0,
            owed_since: now,
            retry: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Makes one batch of all that waits to be sent.
    pub(super) fn gather(&mut self, numbers: CommandNumbers, cx: &mut Cx<'_>) -> Option<SendOp> {
        let op = self.tx.gather(self.framing, numbers, cx);
        if op.is_err() {
            self.retry = Some(cx.now + super::RETRY);
        }
        op.ok().flatten()
    }

    /// Whether the world holds nothing of this link.
    pub(super) fn is_quiet(&self) -> bool {
        !self.rx.is_out && self.tx.outbox.is_idle()
    }
}
