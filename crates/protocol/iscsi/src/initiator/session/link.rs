//! One TCP connection of the session: its login, what it receives, what it has to send, its clocks.

use super::outgoing::OutgoingPdu;
use super::{Failure, InitiatorLimits};
use crate::initiator::{InitiatorLogin, LoginConfig};
use crate::wire::{Bhs, Cid, Itt, Sn};
use buf::crc32c::Crc32c;
use buf::{Cx, Time};
use std::collections::VecDeque;
use stream::{Inlet, Outbox, Tag};

/// Longest part of a data segment that is kept by itself: 252 bytes of sense and their length, or the
/// header that a Reject carries.
pub(super) const SMALL_MAX: usize = 256;
/// A link with so much to send parses nothing more until some of it has left: our answers to the target's
/// pings stay bounded. Beyond it only what was submitted waits, which the window bounds.
pub(super) const PONGS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) cid: Cid,
    pub(super) phase: Phase,
    pub(super) rx: Rx,
    pub(super) out: VecDeque<OutgoingPdu>,
    pub(super) outbox: Outbox,
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

/// What the login negotiated for the link's PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    pub(super) header_digest: bool,
    pub(super) data_digest: bool,
    /// Longest data segment that we receive.
    pub(super) initiator_mrdsl: u32,
    /// Longest data segment that the target receives.
    pub(super) target_mrdsl: u32,
}

/// The life of a link.
#[derive(Debug)]
pub(super) enum Phase {
    Login(Box<InitiatorLogin>),
    Open,
    /// Closed; operations are still to come back.
    Dead,
    Gone,
}

impl PartialEq for Phase {
    /// Two phases are equal if they are the same step of a link's life.
    fn eq(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }
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
    /// The beginning of a small data segment.
    pub(super) small: [u8; SMALL_MAX],
}

/// Which part of a PDU comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxState {
    Header,
    /// `left` bytes of a data segment; behind them padding and digest.
    Data {
        left: u32,
        segment: Segment,
    },
}

/// What a data segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// Data of a read, from `at` of it on.
    Read { tag: Tag, at: u32 },
    /// Sense data, or a rejected header; `filled` bytes of it are kept.
    Small { filled: usize },
    /// A list of targets.
    Text { tag: Tag },
    /// Nothing.
    Skip,
}

impl LinkState {
    /// Begins the login.
    pub(super) fn new(cx: &Cx<'_>, wanted: &LoginConfig, limits: &InitiatorLimits) -> Result<Self, Failure> {
        let (login, first) = InitiatorLogin::start(wanted.clone())?;
        Ok(LinkState {
            cid: wanted.cid,
            phase: Phase::Login(Box::new(login)),
            rx: Rx {
                inlet: Inlet::new(),
                state: RxState::Header,
                bhs: Bhs::ZERO,
                crc: Crc32c::new(),
                out: false,
                small: [0; SMALL_MAX],
            },
            out: VecDeque::from([OutgoingPdu::Login(Box::new(first))]),
            outbox: Outbox::new(),
            framing: Framing {
                header_digest: false,
                data_digest: false,
                initiator_mrdsl: 8192,
                target_mrdsl: 8192,
            },
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
        self.phase == Phase::Open
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Dead | Phase::Gone)
    }

    /// Whether the world holds nothing of this link.
    pub(super) fn is_quiet(&self) -> bool {
        !self.rx.out && self.outbox.is_idle()
    }
}
