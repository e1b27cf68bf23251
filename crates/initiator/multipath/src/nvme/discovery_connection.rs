//! A connection to a discovery controller: dialled, its admin queue set up, the controller enabled; then commands.
//!
//! [`Discovery`](super::Discovery) reads a log by it and closes it, [`DiscoveryWatch`](super::DiscoveryWatch) stays. What
//! a command is for is their purpose `P`. Invariants: every wait is bounded, but for the answer of a command that is sent
//! without a deadline; a connection ends by one event, or by [`DiscoveryConnection::close`], and is closed then.

use std::collections::VecDeque;
use std::net::SocketAddr;

use buf::{Cx, Errno, Payload, Time};
use endpoint::CloseMode;
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::property::{ControllerConfiguration, ControllerStatus};
use nvme::{Completion, Cqe, Sqe, Status};
use stream::earliest;

use super::admin_commands::PendingAdminCommands;
use super::association_start::generated_context;
use super::fence::CSTS_POLL_INTERVAL;
use super::queue_links::{LinkEvent, LinkLoss, QueueId, QueueLinks};
use super::queue_setup::{QueueSetup, SetupProgress};
use super::settings::Settings;
use super::{RETRY_DELAY, down_reasons, setup_context};
use crate::DownReason;
use crate::trace::{Speaker, StageName, Trace};

const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;
const TCP_STAGE: StageName = "TCP";

/// What happened to a connection.
#[derive(Debug)]
pub(super) enum ConnectionEvent<P> {
    /// There is no TCP connection.
    NotDialled(Errno),
    /// The controller has let us in.
    Joined,
    /// The controller is ready: commands may go.
    Ready,
    /// A command for this purpose has succeeded.
    Answered(P, Completion, Payload),
    /// The controller has refused a command. The connection is still open.
    Refused(Status),
    /// The controller has not let us in; the trace says so.
    NotJoined(DownReason),
    /// It is lost.
    Lost(DownReason),
}

/// What a command is for.
#[derive(Clone, Copy, Debug)]
enum Purpose<P> {
    Enable,
    PollReady,
    Caller(P),
}

/// A command that waits for memory, or for the controller.
#[derive(Debug)]
struct WaitingCommand<P> {
    purpose: Purpose<P>,
    command: (Sqe, usize),
    has_deadline: bool,
    at: Time,
}

/// See the module.
#[derive(Debug)]
pub(super) struct DiscoveryConnection<P> {
    pub(super) settings: Settings,
    pub(super) links: QueueLinks,
    pub(super) trace: Trace,
    /// Keep Alive Timeout, milliseconds; 0: the association is not to stay.
    kato_ms: u32,
    /// Where it goes; `None`: it is closed.
    address: Option<SocketAddr>,
    association: u32,
    setup: Option<QueueSetup>,
    admin_commands: PendingAdminCommands<Purpose<P>>,
    waiting: VecDeque<WaitingCommand<P>>,
    /// When the controller must be ready.
    ready: Time,
    /// When memory that was short is asked for again.
    retry: Option<Time>,
    events: VecDeque<ConnectionEvent<P>>,
}

impl<P: Copy> DiscoveryConnection<P> {
    /// Closed. `stays`: with the Keep Alive Timeout of the settings.
    pub(super) fn new(settings: Settings, stays: bool) -> Self {
        let settings = settings.clamped();
        let keep_alive_ms = u32::try_from(settings.times.keep_alive.as_millis()).unwrap_or(u32::MAX);
        DiscoveryConnection {
            links: QueueLinks::new(settings.source),
            settings,
            trace: Trace::disabled(),
            kato_ms: if stays { keep_alive_ms } else { 0 },
            address: None,
            association: 0,
            setup: None,
            admin_commands: PendingAdminCommands::new(),
            waiting: VecDeque::new(),
            ready: Time(0),
            retry: None,
            events: VecDeque::new(),
        }
    }

    /// Connects to a controller; what was open is closed first.
    pub(super) fn open(&mut self, cx: &mut Cx<'_>, at: SocketAddr) {
        self.close(cx);
        self.address = Some(at);
        // A generated key is of one association.
        self.links.generated = None;
        self.dial(cx, at);
    }

    /// Nothing more is told of it.
    pub(super) fn close(&mut self, cx: &mut Cx<'_>) {
        if self.address.take().is_none() {
            return;
        }
        let who = self.admin_queue();
        (self.setup, self.retry) = (None, None);
        self.waiting.clear();
        self.events.clear();
        self.admin_commands.forget_queue(who);
        self.links.close_link(cx, who, CloseMode::Close);
    }

    /// Sends a command with room for so many bytes of answer; `has_deadline`: its answer must come in its time. Without
    /// memory it is sent later.
    pub(super) fn send_command(
        &mut self,
        cx: &mut Cx<'_>,
        purpose: P,
        command: (Sqe, usize),
        has_deadline: bool,
    ) {
        self.send_or_wait(cx, Purpose::Caller(purpose), command, has_deadline);
    }

    /// What has happened, oldest first.
    pub(super) fn poll_event(&mut self, cx: &mut Cx<'_>) -> Option<ConnectionEvent<P>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.links.poll_link_event(cx) {
                Some((who, event)) if who == self.admin_queue() && self.address.is_some() => {
                    self.handle_link_event(cx, event);
                }
                // Of one before.
                Some(_) => {}
                None if self.setup.as_ref().is_some_and(QueueSetup::is_computation_done) => {
                    self.advance_setup(cx, |setup, cx, context| setup.handle_computed(cx, context));
                }
                None => return None,
            }
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|waiting| waiting.at).min();
        let setup = self.setup.as_ref().map(|setup| setup.until);
        let clocks =
            [self.links.poll_timeout(), self.retry, waiting, setup, self.admin_commands.poll_timeout()];
        clocks.into_iter().fold(None, earliest)
    }

    pub(super) fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.links.handle_timeout(cx);
        let now = cx.now;
        let late = self.setup.as_ref().is_some_and(|setup| setup.until <= now);
        if late || self.admin_commands.find_overdue(now).is_some() {
            let why = DownReason::Silent("the discovery controller does not answer".to_owned());
            return self.fail(cx, why);
        }
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(waiting) if waiting.at <= now => {
                    self.send_or_wait(cx, waiting.purpose, waiting.command, waiting.has_deadline);
                }
                Some(later) => self.waiting.push_back(later),
                None => break,
            }
        }
        if self.retry.take_if(|retry| *retry <= now).is_some()
            && self.setup.as_ref().is_some_and(QueueSetup::waits_for_memory)
        {
            self.advance_setup(cx, |setup, cx, context| setup.send_pending(cx, context));
        }
    }

    fn admin_queue(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn dial(&mut self, cx: &mut Cx<'_>, at: SocketAddr) {
        self.association = self.association.wrapping_add(1);
        self.trace.stage_started(cx.now, 0, TCP_STAGE);
        self.trace.trace_field(cx.now, (0, TCP_STAGE), Speaker::Us, "address", || at.to_string());
        self.links.request_dial(self.admin_queue(), at, cx.now + self.settings.times.dial);
    }

    fn end(&mut self, cx: &mut Cx<'_>, event: ConnectionEvent<P>) {
        self.close(cx);
        self.events.push_back(event);
    }

    fn fail(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        let event = match self.setup {
            Some(_) => ConnectionEvent::NotJoined(why),
            None => ConnectionEvent::Lost(why),
        };
        self.end(cx, event);
    }

    fn handle_link_event(&mut self, cx: &mut Cx<'_>, event: LinkEvent) {
        match event {
            LinkEvent::Dialled(_) => self.handle_dialled_queue(cx),
            LinkEvent::NotDialled(errno) => self.end(cx, ConnectionEvent::NotDialled(errno)),
            LinkEvent::Ready => {
                self.advance_setup(cx, |setup, cx, context| setup.handle_transport_ready(cx, context))
            }
            LinkEvent::Completed(tag, cqe, payload) => {
                match self.admin_commands.take_purpose(self.admin_queue(), tag) {
                    Some(purpose) => self.handle_answer(cx, purpose, cqe, payload),
                    None => self.advance_setup(cx, |setup, cx, context| {
                        setup.handle_completed(cx, context, (tag, cqe, payload))
                    }),
                }
            }
            LinkEvent::Broken(how) => {
                let why = match &self.setup {
                    Some(setup) => setup.trace_link_lost(cx, &mut self.trace, how),
                    None => down_reasons::link_lost(how),
                };
                self.fail(cx, why);
            }
            LinkEvent::Closed => self.fail(cx, down_reasons::link_lost(LinkLoss::Closed)),
        }
    }

    fn handle_dialled_queue(&mut self, cx: &mut Cx<'_>) {
        self.trace.stage_succeeded(cx.now, 0, TCP_STAGE);
        let connect = Connect {
            qid: 0,
            entries: Connect::ADMIN_ENTRIES_MIN,
            flow_control: self.settings.flow_control,
            individual_deletion: false,
            kato_ms: self.kato_ms,
        };
        let until = cx.now + self.settings.times.join;
        let setup =
            QueueSetup::new(self.admin_queue(), connect, ConnectData::DYNAMIC, ADMIN_CAPSULE_DATA_MAX, until);
        setup.handle_dialled(cx, setup_context(&self.settings, &mut self.links, &mut self.trace));
        self.setup = Some(setup);
    }

    fn advance_setup(
        &mut self,
        cx: &mut Cx<'_>,
        act: impl FnOnce(&mut QueueSetup, &mut Cx<'_>, super::SetupContext<'_>) -> SetupProgress,
    ) {
        let Some(setup) = &mut self.setup else { return };
        match act(setup, cx, setup_context(&self.settings, &mut self.links, &mut self.trace)) {
            SetupProgress::Going => self.retry = setup.waits_for_memory().then_some(cx.now + RETRY_DELAY),
            SetupProgress::Up(_) => {
                self.setup = None;
                self.ready = cx.now + self.settings.times.ready_max;
                self.events.push_back(ConnectionEvent::Joined);
                let enable =
                    PropertyAccess::property_set_sqe(Property::CC, ControllerConfiguration::ENABLE.0);
                self.send_or_wait(cx, Purpose::Enable, (enable, 0), true);
            }
            SetupProgress::Generated(psk) => match generated_context(&psk, &self.settings) {
                Ok(context) => {
                    self.links.close_link(cx, self.admin_queue(), CloseMode::Close);
                    self.links.generated = Some(context);
                    self.setup = None;
                    if let Some(at) = self.address {
                        self.dial(cx, at);
                    }
                }
                Err(why) => self.fail(cx, why),
            },
            SetupProgress::Failed(why) => self.fail(cx, why),
        }
    }

    fn send_or_wait(
        &mut self,
        cx: &mut Cx<'_>,
        purpose: Purpose<P>,
        command: (Sqe, usize),
        has_deadline: bool,
    ) {
        let until = has_deadline.then_some(cx.now + self.settings.times.command);
        let who = self.admin_queue();
        if !self.admin_commands.send_command(cx, &mut self.links, who, command, (purpose, until)) {
            let at = cx.now + RETRY_DELAY;
            self.waiting.push_back(WaitingCommand { purpose, command, has_deadline, at });
        }
    }

    fn handle_answer(&mut self, cx: &mut Cx<'_>, purpose: Purpose<P>, cqe: Cqe, payload: Payload) {
        let end = cqe.completion();
        if !end.status.is_success() {
            return self.events.push_back(ConnectionEvent::Refused(end.status));
        }
        let poll = (PropertyAccess::property_get_sqe(Property::CSTS, 4), 0);
        match purpose {
            Purpose::Enable => self.send_or_wait(cx, Purpose::PollReady, poll, true),
            Purpose::PollReady => {
                let status = ControllerStatus::parse(end.result);
                if status.ready && !status.fatal {
                    return self.events.push_back(ConnectionEvent::Ready);
                }
                if status.fatal || self.ready <= cx.now {
                    let why = "the discovery controller does not become ready".to_owned();
                    return self.fail(cx, DownReason::Lost(why));
                }
                let at = cx.now + CSTS_POLL_INTERVAL;
                self.waiting.push_back(WaitingCommand {
                    purpose: Purpose::PollReady,
                    command: poll,
                    has_deadline: true,
                    at,
                });
            }
            Purpose::Caller(purpose) => {
                self.events.push_back(ConnectionEvent::Answered(purpose, end, payload));
            }
        }
    }
}
