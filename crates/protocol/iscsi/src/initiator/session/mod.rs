//! An iSCSI session on the initiator's side (RFC 7143), without I/O.
//!
//! An [`InitiatorSession`] is one session over one or several links, each from its first byte on: login,
//! then whatever its owner submits. Data of reads goes straight into the caller's buffer; data of writes
//! goes with the command and behind it as far as was agreed, else as the target asks for it.
//!
//! Everything that the target says is checked: data against the command, in order and without gaps, R2Ts
//! against what was agreed, tags by look-up. What does not fit ends the session, as ErrorRecoveryLevel 0 has
//! it (RFC 7143 §7.1.5); so does the loss of a link that has logged in. Invariants:
//! - Every command ends exactly once, by [`HostEvent::Completed`] with its memory.
//! - A read that succeeds is as long as its answer says; of one that is not, no byte is shown that did not
//!   come.
//! - A write that succeeds was sent as far as its answer says.
//! - Of a command that the session lost it is said whether the target can have seen it.

mod answers;
mod closing;
mod command;
mod link;
mod logging_in;
mod outgoing;
mod receive;
mod request;
mod targets;

#[cfg(test)]
mod tests;

use super::{Failure, LoginConfig};
use crate::links::{LinkIndex, Links};
use crate::negotiate::{Params, SessionType, TaskReporting};
use crate::wire::{Cid, Itt, Sn, Tsih};
use buf::{Cx, Errno, Payload, Time};
use command::Command;
use link::{LinkState, Phase};
pub use request::{
    Fault, LinkFault, LoginStep, NoAnswer, Notice, Request, Residual, Response, ScsiAnswer, ScsiCommand,
    TaskManagement,
};
use std::collections::VecDeque;
use std::time::Duration;
use stream::{Close, Connection, Host, HostEvent, Link, Received, RecvOp, SendOp, Slab, Tag, TagIndex};
pub use targets::{ADDRESSES_MAX, TARGETS_MAX, TargetRecord, Targets};

/// Requests other than SCSI commands that may be in work at once.
const IMMEDIATE_MAX: usize = 16;
/// How long a link waits before it asks for memory again.
const RETRY: Duration = Duration::from_millis(1);

/// Most PDUs of logins that are kept for who wants them told.
pub const STEPS_MAX: usize = 128;

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
enum State {
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

/// The order of commands as the initiator sees it (RFC 7143 §4.2.2.1).
#[derive(Clone, Copy, Debug)]
struct Window {
    /// CmdSN of the next command.
    next: Sn,
    exp: Sn,
    max: Sn,
}

impl Window {
    /// How many more commands may be numbered.
    fn room(&self) -> usize {
        if self.next.le(self.max) { self.max.since(self.next) as usize + 1 } else { 0 }
    }

    /// Takes ExpCmdSN and MaxCmdSN; numbers that cannot be are ignored.
    fn take(&mut self, exp: Sn, max: Sn) {
        if !exp.sub(1).le(max) {
            return;
        }
        if self.exp.lt(exp) && exp.le(self.next) {
            self.exp = exp;
        }
        if self.max.lt(max) {
            self.max = max;
        }
    }
}

/// Why a link cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
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
    state: State,
    params: Params,
    tsih: Tsih,
    portal_group_tag: Option<u16>,
    window: Window,
    /// Commands that were accepted and have no CmdSN yet.
    waiting: usize,
    commands: Slab<Command>,
    /// SCSI commands among them.
    scsi: usize,
    index: TagIndex,
    next_itt: u32,
    links: Links<LinkState>,
    /// Tags of commands that ended before their answer came: what comes for them is skipped.
    abandoned: VecDeque<Itt>,
    events: VecDeque<HostEvent<Response>>,
    notices: VecDeque<Notice>,
    shut: VecDeque<Link>,
    violation: Option<LinkFault>,
    /// The link and tag of the logout.
    logout: Option<(LinkIndex, Itt)>,
    /// When what is ending must be over.
    deadline: Option<Time>,
    /// When the age of the commands is looked at next.
    look_at: Option<Time>,
    /// Since when a command has waited for the window.
    refused: Option<Time>,
    /// Logins as they go, if wanted.
    steps: VecDeque<LoginStep>,
}

impl InitiatorSession {
    /// Begins on a socket that is connected, which is link 0. [`HostEvent::Ready`] follows when the login is
    /// over; [`Notice::LoginFailed`] and [`HostEvent::Closed`] if it failed.
    ///
    /// What this end cannot do is not offered, whatever `wanted` allows: recovery levels above 0, data out
    /// of order, other task reporting than RFC 3720's. A name that is too long for a text is refused.
    pub fn new(cx: &mut Cx<'_>, mut wanted: LoginConfig, limits: InitiatorLimits) -> Result<Self, Failure> {
        let commands = limits.commands.clamp(1, 4096);
        let limits = InitiatorLimits { commands, ..limits };
        wanted.limits.erl = 0;
        (wanted.limits.data_pdu_in_order, wanted.limits.data_sequence_in_order) = (true, true);
        wanted.limits.task_reporting = vec![TaskReporting::Rfc3720];
        let kind = if wanted.target_name.is_some() { SessionType::Normal } else { SessionType::Discovery };
        let most = usize::from(commands) + IMMEDIATE_MAX;
        let mut links = Links::new();
        let leading = links.push(LinkState::new(cx, &wanted, &limits)?);
        let sn = wanted.cmd_sn;
        let mut session = InitiatorSession {
            limits,
            state: State::Starting,
            params: Params::defaults(kind),
            tsih: wanted.tsih,
            portal_group_tag: None,
            window: Window { next: sn, exp: sn, max: sn },
            waiting: 0,
            commands: Slab::new(most),
            scsi: 0,
            index: TagIndex::new(most),
            next_itt: 1,
            links,
            abandoned: VecDeque::new(),
            events: VecDeque::new(),
            notices: VecDeque::new(),
            shut: VecDeque::new(),
            violation: None,
            logout: None,
            deadline: None,
            look_at: None,
            refused: None,
            steps: VecDeque::new(),
            wanted,
        };
        session.trace_first(leading);
        Ok(session)
    }

    /// Adds a link to the session, on a socket that is connected to a portal of the same group (RFC 7143
    /// §4.2.6). [`Notice::LinkReady`] follows, or [`Notice::LoginFailed`], which leaves the session as it is.
    pub fn add_link(&mut self, cx: &mut Cx<'_>, cid: Cid) -> Result<Link, AddError> {
        if self.state != State::Ready || self.params.session_type == SessionType::Discovery {
            return Err(AddError::NotReady);
        }
        let used = |link: &&LinkState| link.phase != Phase::Gone;
        if self.links.iter().filter(used).count() >= self.params.max_connections as usize {
            return Err(AddError::TooManyLinks);
        }
        if self.links.iter().filter(used).any(|link| link.cid == cid) {
            return Err(AddError::CidInUse);
        }
        let cmd_sn = self.window.next;
        let wanted = LoginConfig { tsih: self.tsih, cid, cmd_sn, ..self.wanted.clone() };
        let link = LinkState::new(cx, &wanted, &self.limits).map_err(|_| AddError::NotReady)?;
        let index = match self.links.position(|link| link.phase == Phase::Gone) {
            Some(index) => {
                self.links[index] = link;
                index
            }
            None => self.links.push(link),
        };
        self.trace_first(index);
        Ok(index.into())
    }

    /// A PDU of a login, oldest first; none unless [`InitiatorLimits::trace`] is set. At most
    /// [`STEPS_MAX`] are kept: the oldest are lost first.
    #[must_use]
    pub fn poll_login_step(&mut self) -> Option<LoginStep> {
        self.steps.pop_front()
    }

    /// What was negotiated; the defaults before [`HostEvent::Ready`].
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
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
        self.commands.len()
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
    /// as far as there is room for what it tells, so `resume` may bring more as long as this was true before it.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.events.is_empty() || !self.notices.is_empty() || self.violation.is_some()
    }

    /// Whether nothing can be submitted any more, now or ever. What is in work ends when its memory is back.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Dead | State::Gone)
    }

    /// Whether everything that was out has come back: [`HostEvent::Closed`] was told, or waits to be.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }
}

impl Connection for InitiatorSession {
    type Event = HostEvent<Response>;
    type LinkFault = LinkFault;

    fn poll_recv(&mut self, _cx: &mut Cx<'_>, link: Link) -> Option<RecvOp> {
        self.next_recv(self.links.index_of(link)?)
    }

    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: Link,
        op: RecvOp,
        came: Received,
    ) -> Result<(), Self::LinkFault> {
        let Some(index) = self.links.index_of(link) else { return Ok(()) };
        let result = self.received(cx, index, op, came);
        self.tidy();
        result
    }

    fn resume(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault> {
        let mut result = Ok(());
        for index in self.links.indices() {
            if !self.links[index].rx.inlet.is_empty() {
                result = result.and(self.parse(cx, index));
            }
        }
        self.tidy();
        result
    }

    fn poll_send(&mut self, cx: &mut Cx<'_>, link: Link) -> Option<SendOp> {
        self.gather(cx, self.links.index_of(link)?)
    }

    fn handle_written(&mut self, _cx: &mut Cx<'_>, link: Link, how: Result<(), Errno>) {
        if let Some(index) = self.links.index_of(link) {
            self.links[index].outbox.written();
            if how.is_err() {
                self.lose_link(index);
            }
        }
        self.tidy();
    }

    fn handle_sent(&mut self, _cx: &mut Cx<'_>, link: Link, op: SendOp) {
        if let Some(link) = self.links.get_mut(link) {
            link.outbox.sent(op);
        }
        self.tidy();
    }

    fn poll_event(&mut self) -> Option<Self::Event> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.next_deadline()
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.look_at_clocks(cx);
        self.tidy();
    }

    fn poll_shut(&mut self) -> Option<Link> {
        self.shut.pop_front()
    }

    fn close(&mut self, _cx: &mut Cx<'_>, how: Close) {
        self.begin_close(how);
        self.tidy();
    }
}

impl Host for InitiatorSession {
    type Command = Request;
    type Response = Response;

    fn submit(
        &mut self,
        cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)> {
        self.start(cx.now, command, payload)
    }
}
