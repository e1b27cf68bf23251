//! An iSCSI session on the initiator's side (RFC 7143), without I/O.
//!
//! An [`InitiatorSession`] is one session over one or several links, from their first byte on: the login,
//! then the requests of its owner. Data of reads is received directly into the caller's buffer. Data of
//! writes is sent with the command and after it as far as was agreed, and the rest when the target requests
//! it.
//!
//! Everything that the target sends is checked: data against the command, in order and without gaps, R2Ts
//! against what was agreed, tags by look-up. A violation ends the session, as ErrorRecoveryLevel 0 requires
//! (RFC 7143 §7.1.5); so does the loss of a link that has logged in. Invariants:
//! - Every command ends exactly once, by [`HostEvent::Completed`] with its memory.
//! - A read that succeeds is as long as its answer says. A read that fails returns no byte that was not
//!   received.
//! - A write that succeeds was sent as far as its answer says.
//! - For a command that the session lost, the result says whether the target may have seen it.

mod answers;
mod closing;
mod command;
mod commands;
mod discovered_targets;
mod link;
mod logging_in;
mod outgoing;
mod receive;
mod request;

#[cfg(test)]
mod tests;

use super::{LoginConfig, LoginFailure};
use crate::links::LinkIndex;
use crate::negotiate::{Params, SessionType, TaskReporting};
pub use crate::session::{Residual, TaskManagement};
use crate::wire::{Cid, Itt, Tsih};
use buf::{Cx, Errno, Payload, Time};
use commands::Commands;
pub use discovered_targets::{ADDRESSES_MAX, DiscoveredTargets, TARGETS_MAX, TargetRecord};
use link::{LinkPhase, LinkState};
pub use request::{
    Fault, LinkFault, LoginStep, NoAnswer, Notice, Request, Response, ScsiAnswer, ScsiCommand,
};
use std::collections::VecDeque;
use std::time::Duration;
use stream::{
    Connection, ConnectionClose, HostConnection, HostEvent, LinkNumber, Received, RecvOp, SendOp, Tag,
};

/// Requests other than SCSI commands that may be in work at once.
const IMMEDIATE_REQUESTS_MAX: usize = 16;

/// Most PDUs of logins that are kept for who wants them told.
pub const LOGIN_STEPS_MAX: usize = 128;

/// How much an initiator has in work, and how long it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorLimits {
    /// Most SCSI commands in work: 1 to 4096. The target's window may allow fewer.
    pub commands: u16,
    /// How long the login of a link may take.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged; `None`: never.
    pub nop_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub nop_timeout: Duration,
    /// How long the target may leave what we send unread.
    pub stall_timeout: Duration,
    /// How long a command may take, and how long the target may keep its window closed; the session ends
    /// when it is over. `None`: for ever.
    pub command_timeout: Option<Duration>,
    /// Whether logins are told, PDU by PDU ([`InitiatorSession::poll_login_step`]).
    pub trace: bool,
}

impl Default for InitiatorLimits {
    fn default() -> Self {
        InitiatorLimits {
            commands: 128,
            login_timeout: Duration::from_secs(15),
            nop_interval: Some(Duration::from_secs(10)),
            nop_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            command_timeout: Some(Duration::from_secs(120)),
            trace: false,
        }
    }
}

/// The life of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    /// The leading login is not over.
    Starting,
    /// Commands may be submitted.
    Ready,
    /// None may any more; what is in work is waited for.
    Draining,
    /// The logout is sent, or waits to be.
    LoggingOut,
    /// Closed; operations are still to come back.
    Dead,
    /// Nothing is left.
    Gone,
}

/// Why a link cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddLinkError {
    /// The session is not in full feature phase.
    NotReady,
    /// All the links that were negotiated are in use.
    TooManyLinks,
    /// The CID is in use.
    CidInUse,
}

/// An iSCSI session on the initiator's side.
#[derive(Debug)]
pub struct InitiatorSession {
    wanted: LoginConfig,
    limits: InitiatorLimits,
    state: SessionState,
    commands: Commands,
    tsih: Tsih,
    portal_group_tag: Option<u16>,
    notices: VecDeque<Notice>,
    shut: VecDeque<LinkNumber>,
    violation: Option<LinkFault>,
    /// The link and tag of the logout.
    logout: Option<(LinkIndex, Itt)>,
    /// When what is ending must be over.
    deadline: Option<Time>,
    /// When the age of the commands is looked at next.
    look_at: Option<Time>,
    /// Logins as they go, if wanted.
    steps: VecDeque<LoginStep>,
}

impl InitiatorSession {
    /// Begins on a socket that is connected, which is link 0. [`HostEvent::Ready`] follows when the login is
    /// over; [`Notice::LoginFailed`] and [`HostEvent::Closed`] if it failed.
    ///
    /// What this end cannot do is not offered, whatever `wanted` allows: recovery levels above 0, data out
    /// of order, other task reporting than RFC 3720's. A name that is too long for a text is refused.
    pub fn new(
        cx: &mut Cx<'_>,
        mut wanted: LoginConfig,
        limits: InitiatorLimits,
    ) -> Result<Self, LoginFailure> {
        let commands = limits.commands.clamp(1, 4096);
        let limits = InitiatorLimits { commands, ..limits };
        wanted.limits.erl = 0;
        (wanted.limits.data_pdu_in_order, wanted.limits.data_sequence_in_order) = (true, true);
        wanted.limits.task_reporting = vec![TaskReporting::Rfc3720];
        let kind = if wanted.target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
        let mut commands = Commands::new(kind, wanted.cmd_sn, commands);
        let leading = commands.links.push(LinkState::new(cx, &wanted, &limits)?);
        let mut session = InitiatorSession {
            limits,
            state: SessionState::Starting,
            commands,
            tsih: wanted.tsih,
            portal_group_tag: None,
            notices: VecDeque::new(),
            shut: VecDeque::new(),
            violation: None,
            logout: None,
            deadline: None,
            look_at: None,
            steps: VecDeque::new(),
            wanted,
        };
        session.trace_first_request(leading);
        Ok(session)
    }

    /// Adds a link to the session, on a socket that is connected to a portal of the same group (RFC 7143
    /// §4.2.6). [`Notice::LinkReady`] follows, or [`Notice::LoginFailed`], which leaves the session as it is.
    pub fn add_link(&mut self, cx: &mut Cx<'_>, cid: Cid) -> Result<LinkNumber, AddLinkError> {
        if self.state != SessionState::Ready || self.commands.params.session_type == SessionType::Discovery {
            return Err(AddLinkError::NotReady);
        }
        let used = |link: &&LinkState| link.phase != LinkPhase::Gone;
        if self.commands.links.iter().filter(used).count() >= self.commands.params.max_connections as usize {
            return Err(AddLinkError::TooManyLinks);
        }
        if self.commands.links.iter().filter(used).any(|link| link.cid == cid) {
            return Err(AddLinkError::CidInUse);
        }
        let cmd_sn = self.commands.window.next;
        let wanted = LoginConfig { tsih: self.tsih, cid, cmd_sn, ..self.wanted.clone() };
        let link = LinkState::new(cx, &wanted, &self.limits).map_err(|_| AddLinkError::NotReady)?;
        let index = match self.commands.links.position(|link| link.phase == LinkPhase::Gone) {
            Some(index) => {
                self.commands.links[index] = link;
                index
            }
            None => self.commands.links.push(link),
        };
        self.trace_first_request(index);
        Ok(index.into())
    }

    /// A PDU of a login, oldest first; none unless [`InitiatorLimits::trace`] is set. At most
    /// [`LOGIN_STEPS_MAX`] are kept: the oldest are lost first.
    #[must_use]
    pub fn poll_login_step(&mut self) -> Option<LoginStep> {
        self.steps.pop_front()
    }

    /// What was negotiated; the defaults before [`HostEvent::Ready`].
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.commands.params
    }

    /// The session's handle at the target.
    #[must_use]
    pub fn tsih(&self) -> Tsih {
        self.tsih
    }

    /// Tag of the portal group, where the target told it.
    #[must_use]
    pub fn portal_group_tag(&self) -> Option<u16> {
        self.portal_group_tag
    }

    /// Requests in work.
    #[must_use]
    pub fn commands_in_work(&self) -> usize {
        self.commands.table.len()
    }

    /// What happened that is no answer to a command, oldest first.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// What the target did by leaving something undone; other violations are told where they are found.
    #[must_use]
    pub fn poll_link_fault(&mut self) -> Option<LinkFault> {
        self.violation.take()
    }

    /// Whether something waits to be taken: an event, a notice, a violation. What was received is parsed only
    /// as far as there is room for what it tells, so `resume_parsing` may bring more as long as this was true before it.
    #[must_use]
    pub fn has_pending_events(&self) -> bool {
        !self.commands.events.is_empty() || !self.notices.is_empty() || self.violation.is_some()
    }

    /// Whether nothing can be submitted any more, now or ever. What is in work ends when its memory is back.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, SessionState::Dead | SessionState::Gone)
    }

    /// Whether everything that was out has come back: [`HostEvent::Closed`] was told, or waits to be.
    #[must_use]
    pub fn is_fully_closed(&self) -> bool {
        self.state == SessionState::Gone
    }
}

impl Connection for InitiatorSession {
    type Event = HostEvent<Response>;
    type LinkFault = LinkFault;

    fn poll_recv(&mut self, _cx: &mut Cx<'_>, link: LinkNumber) -> Option<RecvOp> {
        self.next_recv(self.commands.links.index_of(link)?)
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: LinkNumber,
        op: RecvOp,
        received: Received,
    ) -> Result<(), Self::LinkFault> {
        let Some(index) = self.commands.links.index_of(link) else { return Ok(()) };
        let result = self.finish_receive(cx, index, op, received);
        self.finish_closing();
        result
    }

    fn resume_parsing(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault> {
        let mut result = Ok(());
        for index in self.commands.links.indices() {
            if !self.commands.links[index].rx.receive_buffer.is_empty() {
                result = result.and(self.parse_received(cx, index));
            }
        }
        self.finish_closing();
        result
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<SendOp> {
        self.build_send_batch(cx, self.commands.links.index_of(link)?)
    }

    fn handle_written(&mut self, _cx: &mut Cx<'_>, link: LinkNumber, how: Result<(), Errno>) {
        if let Some(index) = self.commands.links.index_of(link) {
            self.commands.links[index].transmit_queue.handle_written();
            if how.is_err() {
                self.handle_link_lost(index);
            }
        }
        self.finish_closing();
    }

    fn handle_send_released(&mut self, _cx: &mut Cx<'_>, link: LinkNumber, op: SendOp) {
        if let Some(link) = self.commands.links.get_mut(link) {
            link.transmit_queue.handle_send_released(op);
        }
        self.finish_closing();
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.commands.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.check_deadlines(cx);
        self.finish_closing();
    }

    fn poll_link_to_close(&mut self) -> Option<LinkNumber> {
        self.shut.pop_front()
    }

    fn close(&mut self, _cx: &mut Cx<'_>, how: ConnectionClose) {
        self.begin_close(how);
        self.finish_closing();
    }
}

impl HostConnection for InitiatorSession {
    type Command = Request;
    type Response = Response;

    fn submit(
        &mut self,
        cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)> {
        if self.state != SessionState::Ready {
            return Err((command, payload));
        }
        let tag = self.commands.start_request(cx.now, command, payload)?;
        if let (None, Some(timeout)) = (self.look_at, self.limits.command_timeout) {
            self.look_at = Some(cx.now + timeout);
        }
        Ok(tag)
    }
}
