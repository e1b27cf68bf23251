//! One TCP connection of the session: its login, its receive state, its send queue, its timers.

use super::{InitiatorLimits, LoginFailure};
use crate::framing::{Framing, PduReceiver};
use crate::initiator::{InitiatorLogin, LoginConfig};
use crate::login::LoginPdu;
use crate::wire::{Cid, Itt, Lun, Sn, Ttt};
use buf::{Cx, Time};
use std::collections::VecDeque;
use stream::{ReceiveBuffer, Tag, TransmitQueue};

/// Longest part of a data segment that is kept by itself: 252 bytes of sense and their length, or the
/// header that a Reject carries.
pub(super) const KEPT_SEGMENT_LEN_MAX: usize = 256;
/// A link with so much to send parses nothing more until some of it has left: our answers to the target's
/// pings stay bounded. Beyond it only what was submitted waits, which the window bounds.
pub(super) const QUEUED_PING_ANSWERS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) cid: Cid,
    pub(super) phase: LinkPhase,
    pub(super) rx: PduReceiver<SegmentPurpose>,
    /// The beginning of a small data segment.
    pub(super) small: [u8; KEPT_SEGMENT_LEN_MAX],
    pub(super) out: VecDeque<OutgoingPdu>,
    pub(super) transmit_queue: TransmitQueue,
    pub(super) framing: Framing,
    /// StatSN that is expected next.
    pub(super) exp_stat_sn: Sn,
    /// Commands allegiant to this link.
    pub(super) commands: usize,
    /// Answers to pings that wait.
    pub(super) pongs: usize,
    /// When something last came.
    pub(super) heard: Time,
    /// Our ping that is unanswered.
    pub(super) ping: Option<(Itt, Time)>,
    /// When the login must be over.
    pub(super) deadline: Option<Time>,
    /// Memory was short: when to try again.
    pub(super) retry: Option<Time>,
}

/// The life of a link.
#[derive(Debug)]
pub(super) enum LinkPhase {
    Login(Box<InitiatorLogin>),
    Open,
    /// Closed; operations are still to come back.
    Dead,
    Gone,
}

impl PartialEq for LinkPhase {
    /// Two phases are equal if they are the same step of a link's life.
    fn eq(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }
}

/// What a data segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentPurpose {
    /// Data of a read, from `offset` of it on.
    Read { tag: Tag, offset: u32 },
    /// Sense data, or a rejected header; `filled` bytes of it are kept.
    Small { filled: usize },
    /// A list of targets.
    Text { tag: Tag },
    /// Nothing.
    Skip,
}

/// A PDU that waits to be sent, or a run of Data-Out PDUs.
#[derive(Debug)]
pub(super) enum OutgoingPdu {
    Login(Box<LoginPdu>),
    Request(Tag),
    /// A stretch of a write from `offset` on, unsolicited or as an R2T asks; `sn` is the next DataSN.
    Data {
        tag: Tag,
        ttt: Ttt,
        offset: u32,
        end: u32,
        sn: u32,
    },
    Ping(Itt),
    Pong {
        ttt: Ttt,
        lun: Lun,
    },
    Logout(Itt),
    /// A NOP-Out with the number of a command that the target refused.
    GapFiller {
        itt: Itt,
        cmd_sn: Sn,
    },
}

impl LinkState {
    /// Begins the login.
    pub(super) fn new(
        cx: &Cx<'_>,
        wanted: &LoginConfig,
        limits: &InitiatorLimits,
    ) -> Result<Self, LoginFailure> {
        let (login, first) = InitiatorLogin::start(wanted.clone())?;
        Ok(LinkState {
            cid: wanted.cid,
            phase: LinkPhase::Login(Box::new(login)),
            rx: PduReceiver::new(ReceiveBuffer::new()),
            small: [0; KEPT_SEGMENT_LEN_MAX],
            out: VecDeque::from([OutgoingPdu::Login(Box::new(first))]),
            transmit_queue: TransmitQueue::new(),
            framing: Framing::LOGIN,
            exp_stat_sn: Sn::new(0),
            commands: 0,
            pongs: 0,
            heard: cx.now,
            ping: None,
            deadline: Some(cx.now + limits.login_timeout),
            retry: None,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == LinkPhase::Open
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, LinkPhase::Dead | LinkPhase::Gone)
    }

    /// Whether the world holds nothing of this link.
    pub(super) fn has_no_io_in_flight(&self) -> bool {
        !self.rx.is_out && self.transmit_queue.is_idle()
    }
}
