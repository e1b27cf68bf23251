//! A queue's connection, for both roles, without I/O: it receives and parses, sends its queue, keeps the
//! timers, and ends. The [`Role`] interprets PDUs and holds the commands in flight.

mod tls;

use crate::LinkFault;
use crate::limits::ConnectedQueueSize;
use crate::pdu_receiver::{HeaderFault, ParseStatus, PduReceiver, ReceiveState, TermReqContents};
use crate::send_queue::{NoMemory, OutgoingPdu, SendQueue};
use crate::tls_link::TlsLink;
use crate::wire::ConnectionParameters;
use buf::{Cx, Errno, Time};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;
use stream::{
    Connection, ConnectionClose, DirectBuffer, LinkNumber, ReceiveBuffer, Received, RecvOp, SendOp, earliest,
};

/// How long it takes until memory is asked for again.
pub(crate) const MEMORY_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The one link of a queue.
pub(crate) const LINK: LinkNumber = LinkNumber(0);

/// The life of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePhase {
    /// ICReq and ICResp are exchanged.
    Init,
    /// Connect must come, or waits for its answer.
    Connect,
    Open,
    /// No command is taken any more; what is in work is waited for.
    Draining,
    /// Last words are being sent; what comes is swallowed.
    Finishing,
    /// Closed; operations or commands are still to come back.
    Dead,
    /// Nothing is left.
    Gone,
}

/// How long the peer may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerTimeouts {
    /// To agree on the parameters.
    pub(crate) handshake: Duration,
    /// To end a PDU that it began.
    pub(crate) pdu: Duration,
    /// To read what is sent.
    pub(crate) stall: Duration,
    /// To close after a TermReq.
    pub(crate) term: Duration,
}

/// Host or controller: what a queue of it keeps.
pub trait Role: Debug {
    /// Where the data of a PDU goes.
    type PduData: Copy + Debug;
    /// What waits to be sent.
    type Pdu: OutgoingPdu;
    /// What those above are told.
    type Event: Debug;
    /// The connection is gone.
    const CLOSED_EVENT: Self::Event;
    /// A TermReq.
    fn term_req_pdu(term: Box<TermReqContents>) -> Self::Pdu;
}

/// An NVMe/TCP queue on one side: a [`HostQueue`](crate::HostQueue) or a
/// [`ControllerQueue`](crate::ControllerQueue).
#[derive(Debug)]
pub struct Queue<R: Role> {
    pub(crate) role: R,
    pub(crate) phase: QueuePhase,
    pub(crate) parameters: ConnectionParameters,
    pub(crate) size: ConnectedQueueSize,
    pub(crate) rx: PduReceiver<R::PduData>,
    pub(crate) out: SendQueue<R::Pdu>,
    pub(crate) events: VecDeque<R::Event>,
    timeouts: PeerTimeouts,
    pub(crate) link_fault: Option<LinkFault>,
    /// When the handshake, or what is ending, must be over.
    pub(crate) deadline: Option<Time>,
    /// Memory was short: when to try again.
    pub(crate) retry: Option<Time>,
    /// TLS, if the link has it or may get it.
    pub(crate) tls: Option<Box<TlsLink>>,
    /// The socket is to be closed, and nobody was told yet.
    shut: bool,
}

/// What the roles do differently.
pub trait RoleQueue: Sized {
    /// Where the data of a PDU goes.
    type PduData;
    /// What those above are told.
    type Event;
    /// Whether no command is in work.
    fn has_no_commands(&self) -> bool;
    /// Ends every command: nothing more comes of it.
    fn end_all_commands(&mut self);
    /// Whether nothing is to be received now.
    fn is_receive_held(&self) -> bool {
        false
    }
    /// Whether what is here is not to be parsed now.
    fn is_parsing_held(&self) -> bool {
        false
    }
    /// The place of the next bytes, if they have one.
    fn lend_direct_buffer(&mut self) -> Option<DirectBuffer>;
    /// Puts a buffer back where it was taken from; gives how many bytes of those received were for it.
    fn return_direct_buffer(&mut self, direct: DirectBuffer, bytes: usize) -> usize;
    /// Acts on a header, as soon as it is whole.
    fn parse_header(&mut self, cx: &mut Cx<'_>) -> Result<ParseStatus, HeaderFault>;
    /// Moves data to its place.
    fn parse_data(&mut self, cx: &mut Cx<'_>, data: Self::PduData) -> ParseStatus;
    /// Ends a PDU whose data is here.
    fn parse_data_digest(&mut self, cx: &mut Cx<'_>, data: Self::PduData) -> ParseStatus;
    /// Makes one batch of all that waits.
    fn build_send_batch(&mut self, cx: &mut Cx<'_>) -> Result<Option<SendOp>, NoMemory>;
    /// Whether an event has lost its meaning before it was told.
    fn is_event_stale(&self, _event: &Self::Event) -> bool {
        false
    }
    /// Whether the handshake waits for us, not for the peer.
    fn handshake_awaits_us(&self) -> bool {
        false
    }
    /// When data that the peer owes must have come.
    fn owed_data_deadline(&self) -> Option<Time> {
        None
    }
    /// Whether the rest of a PDU waits for us, not for the peer.
    fn pdu_awaits_memory(&self) -> bool {
        false
    }
}

impl<R: Role> Queue<R>
where
    Self: RoleQueue<PduData = R::PduData, Event = R::Event>,
{
    pub(crate) fn with_role(
        cx: &mut Cx<'_>,
        role: R,
        timeouts: PeerTimeouts,
        parameters: ConnectionParameters,
        size: ConnectedQueueSize,
        receive_buffer: ReceiveBuffer,
    ) -> Self {
        Queue {
            role,
            phase: QueuePhase::Init,
            parameters,
            size,
            rx: PduReceiver::new(receive_buffer),
            out: SendQueue::default(),
            events: VecDeque::new(),
            timeouts,
            link_fault: None,
            deadline: Some(cx.now + timeouts.handshake),
            retry: None,
            tls: None,
            shut: false,
        }
    }

    /// What both sides settled; before ICReq, what would be granted to a host that asks for nothing.
    pub fn parameters(&self) -> &ConnectionParameters {
        &self.parameters
    }

    /// What the peer did by leaving something undone; other faults are told where they are found.
    #[must_use]
    pub fn poll_link_fault(&mut self) -> Option<LinkFault> {
        self.link_fault.take()
    }

    /// Whether the world holds nothing of the link.
    pub(crate) fn has_no_io_in_flight(&self) -> bool {
        !self.rx.out && self.out.is_idle() && self.tls.as_ref().is_none_or(|link| link.has_no_io_in_flight())
    }

    /// Whether nothing that is said reaches the peer any more, nor what it says us.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, QueuePhase::Finishing | QueuePhase::Dead | QueuePhase::Gone)
    }

    /// Parses all that is here.
    fn parse_received(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        let result = self.parse_pdus(cx);
        self.rx.note_pdu_start(cx.now);
        result
    }

    fn parse_pdus(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        loop {
            if self.is_over() {
                self.rx.clear();
                return Ok(());
            }
            if self.is_parsing_held() {
                return Ok(());
            }
            let status = match self.rx.state {
                ReceiveState::Header => match self.parse_header(cx) {
                    Ok(status) => status,
                    Err(fault) => return Err(self.fail_with_term_req(cx, fault)),
                },
                ReceiveState::Data(data) => self.parse_data(cx, data),
                ReceiveState::Digest(data) => self.parse_data_digest(cx, data),
            };
            if status == ParseStatus::Wait {
                return Ok(());
            }
        }
    }

    /// Ends the connection for what a header says. After last words, what comes is swallowed until the peer closes.
    fn fail_with_term_req(&mut self, cx: &mut Cx<'_>, HeaderFault { fault, term }: HeaderFault) -> LinkFault {
        let Some(term) = term else {
            self.fail_connection();
            return fault;
        };
        self.phase = QueuePhase::Finishing;
        self.rx.clear();
        self.out.clear();
        self.deadline = Some(cx.now + self.timeouts.term);
        self.end_all_commands();
        self.out.push(R::term_req_pdu(term));
        fault
    }

    /// Ends the connection at once.
    pub(crate) fn fail_connection(&mut self) {
        if matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone) {
            return;
        }
        self.phase = QueuePhase::Dead;
        self.rx.receive_buffer.clear();
        self.out.clear();
        self.deadline = None;
        self.retry = None;
        self.shut = true;
        self.return_queue_ops();
        self.end_all_commands();
    }

    /// Brings to an end what is ending.
    #[inline]
    pub(crate) fn finish_closing(&mut self) {
        if matches!(self.phase, QueuePhase::Draining | QueuePhase::Dead) {
            self.finish_ending_phase();
        }
    }

    #[cold]
    fn finish_ending_phase(&mut self) {
        let drained = self.phase == QueuePhase::Draining
            && self.has_no_commands()
            && self.out.is_empty()
            && self.out.all_written();
        if drained && self.tls.as_mut().is_none_or(|link| link.finish_close_notify()) {
            self.fail_connection();
        }
        if self.phase == QueuePhase::Dead && self.has_no_commands() && self.has_no_io_in_flight() {
            self.phase = QueuePhase::Gone;
            self.events.push_back(R::CLOSED_EVENT);
        }
    }

    /// What is to be received next, as if there were no TLS.
    #[inline]
    pub(crate) fn poll_plain_recv(&mut self) -> Option<RecvOp> {
        let closed = matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone);
        if closed || self.rx.out || !self.rx.receive_buffer.is_empty() || self.is_receive_held() {
            return None;
        }
        let direct = self.lend_direct_buffer();
        self.rx.out = true;
        Some(RecvOp { direct, stage_len: self.rx.receive_buffer.staging_len(), stage: None })
    }

    /// Takes such a receive back.
    #[inline]
    pub(crate) fn handle_plain_recv(
        &mut self,
        cx: &mut Cx<'_>,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        self.rx.out = false;
        let bytes = received.bytes();
        let placed = op.direct.map_or(0, |direct| self.return_direct_buffer(direct, bytes));
        let result = if self.rx.receive_buffer.take_received(received, op.stage, placed) {
            self.parse_received(cx)
        } else {
            self.fail_connection();
            Ok(())
        };
        self.finish_closing();
        result
    }

    /// All that waits to be sent, as if there were no TLS.
    #[inline]
    pub(crate) fn poll_plain_send(&mut self, cx: &mut Cx<'_>) -> Option<SendOp> {
        self.build_send_batch(cx).unwrap_or_else(|NoMemory| {
            self.retry = Some(cx.now + MEMORY_RETRY_INTERVAL);
            None
        })
    }

    fn handshake_deadline(&self) -> Option<Time> {
        self.deadline.filter(|_| !self.handshake_awaits_us())
    }

    fn stall_deadline(&self) -> Option<Time> {
        self.out.unwritten_since().map(|since| since + self.timeouts.stall)
    }

    /// When the PDU that the stream stands in must have ended.
    fn pdu_deadline(&self) -> Option<Time> {
        let since = self.rx.pdu_since.filter(|_| !self.pdu_awaits_memory());
        since.map(|since| since + self.timeouts.pdu)
    }
}

impl<R: Role> Connection for Queue<R>
where
    Self: RoleQueue<PduData = R::PduData, Event = R::Event>,
{
    type Event = R::Event;
    type LinkFault = LinkFault;

    fn poll_recv(&mut self, _cx: &mut Cx<'_>, _link: LinkNumber) -> Option<RecvOp> {
        if self.tls.is_some() {
            return self.poll_record_recv();
        }
        self.poll_plain_recv()
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        _link: LinkNumber,
        op: RecvOp,
        received: Received,
    ) -> Result<(), LinkFault> {
        if self.tls.is_some() {
            return self.handle_record_recv(cx, op, received);
        }
        self.handle_plain_recv(cx, op, received)
    }

    fn resume_parsing(&mut self, cx: &mut Cx<'_>) -> Result<(), LinkFault> {
        if !self.rx.receive_buffer.is_empty() {
            let result = self.parse_received(cx);
            self.finish_closing();
            result?;
        }
        if self.tls.is_some() { self.deliver_decrypted(cx) } else { Ok(()) }
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, _link: LinkNumber) -> Option<SendOp> {
        if self.tls.is_some() {
            return self.poll_record_send(cx);
        }
        self.poll_plain_send(cx)
    }

    fn handle_written(&mut self, _cx: &mut Cx<'_>, _link: LinkNumber, how: Result<(), Errno>) {
        if self.tls.is_some() {
            return self.handle_record_written(how);
        }
        self.out.handle_written();
        if how.is_err() {
            self.fail_connection();
        }
        self.finish_closing();
    }

    fn handle_send_released(&mut self, _cx: &mut Cx<'_>, _link: LinkNumber, op: SendOp) {
        if self.tls.is_some() {
            return self.handle_record_send_released();
        }
        self.out.handle_send_released(op);
        self.finish_closing();
    }

    fn poll_event(&mut self) -> Option<R::Event> {
        loop {
            let event = self.events.pop_front()?;
            if !self.is_event_stale(&event) {
                return Some(event);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if matches!(self.phase, QueuePhase::Dead | QueuePhase::Gone) {
            return None;
        }
        let stalled = earliest(self.stall_deadline(), self.owed_data_deadline());
        [self.handshake_deadline(), stalled, self.pdu_deadline()].into_iter().fold(self.retry, earliest)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.retry) {
            self.retry = None;
        }
        let fault = match self.phase {
            QueuePhase::Dead | QueuePhase::Gone => return,
            QueuePhase::Draining | QueuePhase::Finishing if due(self.deadline) => None,
            _ if due(self.handshake_deadline()) => Some(LinkFault::HandshakeTimeout),
            _ if due(self.stall_deadline()) || due(self.owed_data_deadline()) => Some(LinkFault::Stalled),
            _ if due(self.pdu_deadline()) => Some(LinkFault::PduTimeout),
            _ => return,
        };
        self.link_fault = fault;
        self.fail_connection();
        self.finish_closing();
    }

    fn poll_link_to_close(&mut self) -> Option<LinkNumber> {
        std::mem::take(&mut self.shut).then_some(LINK)
    }

    fn close(&mut self, _cx: &mut Cx<'_>, how: ConnectionClose) {
        match (how, self.phase) {
            (ConnectionClose::Now, _) | (ConnectionClose::AfterLogout(_), QueuePhase::Init) => {
                self.fail_connection()
            }
            (ConnectionClose::AfterLogout(until), QueuePhase::Connect | QueuePhase::Open) => {
                self.phase = QueuePhase::Draining;
                self.deadline = Some(until);
            }
            (ConnectionClose::AfterLogout(until), QueuePhase::Draining | QueuePhase::Finishing) => {
                self.deadline = self.deadline.map(|deadline| deadline.min(until));
            }
            (ConnectionClose::AfterLogout(_), QueuePhase::Dead | QueuePhase::Gone) => {}
        }
        self.finish_closing();
    }
}
