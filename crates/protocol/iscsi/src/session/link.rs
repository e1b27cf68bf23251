//! One TCP connection of the session: what it is receiving, what it has to send, its clocks.

use super::outgoing::OutgoingPdu;
use super::params::LinkParams;
use super::pings::Pings;
use super::task::Destination;
use crate::exchange::TextExchange;
use crate::wire::{Bhs, Itt, Lun, Sn, Ttt};
use buf::crc32c::Crc32c;
use buf::{Sg, SgMut, Time};
use std::collections::VecDeque;
use stream::{Inlet, Outbox, Tag};
use zerocopy::FromZeros;

/// A link with so much to send parses nothing more until some of it has left: the answers to what a
/// peer sends without a window (pings, refused PDUs) stay bounded.
pub(super) const OUT_MAX: usize = 512;
/// Likewise for bytes that nobody asked leave for: those of pings, and of answers such as INQUIRY's.
pub(super) const UNASKED_MAX: u64 = 128 << 10;

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) params: LinkParams,
    pub(super) phase: Phase,
    pub(super) rx: Rx,
    pub(super) out: VecDeque<OutgoingPdu>,
    pub(super) outbox: Outbox,
    pub(super) stat_sn: Sn,
    /// The highest StatSN that the peer acknowledged.
    pub(super) acked: Sn,
    /// Tasks allegiant to this link.
    pub(super) tasks: usize,
    /// Read bytes that were allowed, and are not in a batch yet.
    pub(super) read_bytes: u64,
    /// Write bytes that were allowed, and have not come yet.
    pub(super) write_bytes: u64,
    /// Bytes in batches that the kernel still holds.
    pub(super) kernel_bytes: u64,
    /// Bytes that wait to be sent and nobody asked leave for.
    pub(super) unasked_bytes: u64,
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

/// The receiving half.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) inlet: Inlet,
    pub(super) state: RxState,
    /// Header of the PDU whose data comes.
    pub(super) bhs: Bhs,
    pub(super) crc: Crc32c,
    /// A receive is out.
    pub(super) out: bool,
    /// Whose buffer is out with it.
    pub(super) destination: Option<Destination>,
}

/// Which part of a PDU comes next.
#[derive(Debug)]
pub(super) enum RxState {
    Header,
    /// `left` bytes of a data segment; behind them padding and digest.
    Data {
        left: u32,
        segment: Segment,
    },
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

impl Rx {
    /// Gives up what was gathered of a NOP-Out or a text that will never be whole.
    pub(super) fn drop_gathered(&mut self) {
        if let RxState::Data { segment, .. } = &mut self.state
            && matches!(segment, Segment::Gather { .. })
        {
            *segment = Segment::Skip;
        }
    }
}

impl LinkState {
    pub(super) fn new(params: LinkParams, leftover: &[u8], now: Time) -> Self {
        LinkState {
            phase: Phase::Open,
            rx: Rx {
                inlet: Inlet::with_bytes(leftover),
                state: RxState::Header,
                bhs: Bhs::new_zeroed(),
                crc: Crc32c::new(),
                out: false,
                destination: None,
            },
            out: VecDeque::new(),
            outbox: Outbox::new(),
            stat_sn: params.stat_sn,
            acked: params.stat_sn.sub(1),
            tasks: 0,
            read_bytes: 0,
            write_bytes: 0,
            kernel_bytes: 0,
            unasked_bytes: 0,
            text: None,
            heard: now,
            pings: Pings::default(),
            owed: 0,
            owed_since: now,
            retry: None,
            params,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Tells where the window stands, and nothing else.
    pub(super) fn put_window_update(&mut self) {
        let (itt, ttt, lun) = (Itt::NONE, Ttt::NONE, Lun::default());
        self.out.push_back(OutgoingPdu::NopIn { itt, ttt, lun, data: Sg::new() });
    }

    /// Whether the world holds nothing of this link.
    pub(super) fn is_quiet(&self) -> bool {
        !self.rx.out && self.outbox.is_idle()
    }
}
