//! A queue on the host's side (NVMe-TCP §3), without I/O.
//!
//! A [`HostQueue`] is one TCP connection from its first byte on: ICReq, then whatever commands its
//! owner submits, the first of which is Connect. Data of reads goes straight into the caller's buffer;
//! data of writes goes in the capsule where it may, else as the controller asks for it.
//!
//! Everything that the controller says is checked: lengths and offsets against the command, in order
//! and without gaps, R2Ts against what was offered, tags by look-up. What does not fit ends the
//! connection with an H2CTermReq. Invariants:
//! - Every command ends exactly once, by [`HostEvent::Completed`] with its memory.
//! - A read that succeeds is whole; of one that is not, no byte is shown that did not come.

mod closing;
mod command;
mod outgoing;
mod receive;

use crate::LinkFault;
use crate::controller::{ENTRIES_MAX, QueueSize};
use crate::pdu_writer::DIGEST_SEGMENT_MAX;
use crate::receiver::{Receiver, Term};
use crate::wire::{ADMIN_CAPSULE_MAX, IcReq, Terms};
use buf::{Cx, Errno, Payload, Time};
use command::Command;
use nvme::{Cqe, Sqe};
use receive::PduData;
use std::collections::VecDeque;
use std::time::Duration;
use stream::{
    Close, Connection, Host, HostEvent, Inlet, Link, Outbox, Received, RecvOp, SendOp, Slab, Tag, TagIndex,
};

#[cfg(test)]
mod tests;

/// How long it takes until memory is asked for again.
const RETRY: Duration = Duration::from_millis(1);
/// The one link of a queue.
const LINK: Link = Link(0);

/// What a host offers, and how long it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// HPDA: data of the controller begins at a multiple of (HPDA + 1) × 4 bytes; 0 to 31. Some
    /// controllers refuse anything but 0.
    pub hpda: u8,
    /// Whether to ask for CRC32C behind headers.
    pub header_digest: bool,
    /// Whether to ask for CRC32C behind data.
    pub data_digest: bool,
    /// R2Ts per command that may be outstanding; 1 to 16.
    pub r2ts: u32,
    /// How long the controller may take for ICResp.
    pub handshake_timeout: Duration,
    /// How long it may take to end a PDU that it began.
    pub pdu_timeout: Duration,
    /// How long it may leave what we send unread.
    pub stall_timeout: Duration,
    /// How long it may take to close after an H2CTermReq.
    pub term_timeout: Duration,
}

impl Default for HostLimits {
    fn default() -> Self {
        HostLimits {
            hpda: 0,
            header_digest: false,
            data_digest: false,
            r2ts: 1,
            handshake_timeout: Duration::from_secs(15),
            pdu_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            term_timeout: Duration::from_secs(5),
        }
    }
}

/// The life of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// ICResp must come.
    Init,
    /// Commands may be submitted.
    Ready,
    /// None may any more; what is in work is waited for.
    Draining,
    /// Last words are being sent; what comes is swallowed.
    Finishing,
    /// Closed; operations are still to come back.
    Dead,
    /// Nothing is left.
    Gone,
}

/// A PDU, or a run of H2CData PDUs.
#[derive(Debug)]
enum OutgoingPdu {
    Init,
    Capsule(Tag),
    /// What an R2T asked for, from `at` on.
    Data {
        tag: Tag,
        ttag: u16,
        at: u32,
        end: u32,
    },
    Term(Box<Term>),
}

/// An NVMe/TCP queue on the host's side.
#[derive(Debug)]
pub struct HostQueue {
    limits: HostLimits,
    asked: IcReq,
    terms: Terms,
    phase: Phase,
    size: QueueSize,
    /// Commands that may be in work at once.
    window: usize,
    commands: Slab<Command>,
    index: TagIndex,
    next_cid: u16,
    rx: Receiver<PduData>,
    out: VecDeque<OutgoingPdu>,
    outbox: Outbox,
    events: VecDeque<HostEvent<Cqe>>,
    link_fault: Option<LinkFault>,
    /// When the handshake, or what is ending, must be over.
    deadline: Option<Time>,
    /// Memory was short: when to try again.
    retry: Option<Time>,
    /// The socket is to be closed, and nobody was told yet.
    shut: bool,
}

impl HostQueue {
    /// Begins on a socket that is connected. [`HostEvent::Ready`] follows when the terms are agreed;
    /// then one command at a time may be submitted: Connect, first of all.
    pub fn new(cx: &mut Cx<'_>, limits: HostLimits) -> Self {
        let limits = HostLimits { r2ts: limits.r2ts.clamp(1, R2TS_MAX), ..limits };
        let asked = IcReq::new(limits.hpda, limits.header_digest, limits.data_digest, limits.r2ts);
        HostQueue {
            asked,
            terms: Terms {
                header_digest: false,
                data_digest: false,
                host_alignment: 4,
                controller_alignment: 4,
                r2ts: limits.r2ts,
                max_h2c_data: crate::wire::MAX_H2C_DATA_LEAST,
            },
            phase: Phase::Init,
            size: QueueSize { entries: 2, flow_control: true, in_capsule_max: ADMIN_CAPSULE_MAX },
            window: 1,
            commands: Slab::new(usize::from(ENTRIES_MAX)),
            index: TagIndex::new(1),
            next_cid: 0,
            rx: Receiver::new(Inlet::new()),
            out: VecDeque::from([OutgoingPdu::Init]),
            outbox: Outbox::new(),
            events: VecDeque::new(),
            link_fault: None,
            deadline: Some(cx.now + limits.handshake_timeout),
            retry: None,
            shut: false,
            limits,
        }
    }

    /// Connect has succeeded: so many commands may be in work from now on (one less than entries, as a
    /// full submission queue has it), and so much data in a capsule.
    pub fn open(&mut self, size: QueueSize) {
        let entries = size.entries.clamp(2, ENTRIES_MAX);
        // A capsule is one PDU, whose data may have to be copied to be digested: what is longer is asked for, whatever
        // the controller says that it takes.
        let in_capsule_max = size.in_capsule_max.min(DIGEST_SEGMENT_MAX);
        self.size = QueueSize { entries, in_capsule_max, ..size };
        self.window = usize::from(entries) - 1;
        self.index.grow(self.window);
    }

    /// What both sides settled.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Commands in work.
    pub fn commands_in_work(&self) -> usize {
        self.commands.len()
    }

    /// What a command in work is called on the wire (CID), for an Abort of it.
    pub fn cid(&self, tag: Tag) -> Option<u16> {
        self.commands.get(tag).map(|command| command.sqe.cid.get())
    }

    /// What the controller did by leaving something undone; other faults are told where they are
    /// found.
    #[must_use]
    pub fn poll_link_fault(&mut self) -> Option<LinkFault> {
        self.link_fault.take()
    }

    /// Whether the world holds nothing of the link.
    fn is_quiet(&self) -> bool {
        !self.rx.out && self.outbox.is_idle()
    }
}

/// Most R2Ts per command that are offered: what waits to be sent is bounded by this times the window.
const R2TS_MAX: u32 = 16;

impl Connection for HostQueue {
    type Event = HostEvent<Cqe>;
    type LinkFault = LinkFault;

    fn poll_recv(&mut self, _cx: &mut Cx<'_>, _link: Link) -> Option<RecvOp> {
        self.next_recv()
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        _link: Link,
        op: RecvOp,
        received: Received,
    ) -> Result<(), Self::LinkFault> {
        let result = self.received(cx, op, received);
        self.advance_closing();
        result
    }

    fn resume(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault> {
        if self.rx.inlet.is_empty() {
            return Ok(());
        }
        let result = self.parse(cx);
        self.advance_closing();
        result
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, _link: Link) -> Option<SendOp> {
        self.gather(cx)
    }

    fn handle_written(&mut self, _cx: &mut Cx<'_>, _link: Link, how: Result<(), Errno>) {
        self.outbox.written();
        if how.is_err() {
            self.fail();
        }
        self.advance_closing();
    }

    fn handle_sent(&mut self, _cx: &mut Cx<'_>, _link: Link, op: SendOp) {
        self.outbox.sent(op);
        self.advance_closing();
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.check_deadlines(cx);
        self.advance_closing();
    }

    fn poll_shut(&mut self) -> Option<Link> {
        std::mem::take(&mut self.shut).then_some(LINK)
    }

    fn close(&mut self, _cx: &mut Cx<'_>, how: Close) {
        self.begin_close(how);
        self.advance_closing();
    }
}

impl Host for HostQueue {
    type Command = Sqe;
    type Response = Cqe;

    fn submit(
        &mut self,
        _cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)> {
        self.start(command, payload)
    }
}
