//! A persistent association with a discovery controller, which tells when its log has changed (NVMe Base 2.0 §3.1.2.3.3,
//! §5.2.1): with a Keep Alive Timeout the controller stays, and answers Asynchronous Event Requests.
//!
//! What has changed is for [`Discovery`](super::Discovery) to find out. Invariants: every wait but that for an event is
//! bounded; after [`DiscoveryWatchEvent::Watching`] no change is missed: one request for events is always out, or
//! about to be.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use endpoint::{CloseMode, OutboundSockets};
use nvme::async_event::AsyncEvent;
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::feature::{FeatureId, SetFeatures};
use nvme::identify::{self, Cns, Identify, IdentifyController};
use nvme::log::LogPageId;
use nvme::log::discovery::RECORD_LEN;
use nvme::property::{ControllerConfiguration, ControllerStatus};
use nvme::{Cqe, Sqe, admin};
use stream::earliest;

use super::admin_commands::{PendingAdminCommands, log_page_command};
use super::association_start::generated_context;
use super::fence::CSTS_POLL_INTERVAL;
use super::queue_links::{LinkEvent, LinkLoss, QueueId, QueueLinks, by_links};
use super::queue_setup::{QueueSetup, SetupProgress};
use super::settings::Settings;
use super::{RETRY_DELAY, down_reasons, setup_context};
use crate::DownReason;
use crate::trace::Trace;

const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;
/// Where Identify Controller has OAES.
const OAES_OFFSET: usize = 92;
/// Keep Alive is sent so many times in its time.
const KEEP_ALIVES_PER_TIMEOUT: u32 = 2;

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryWatchEvent {
    /// From now on changes are told.
    Watching,
    /// The log has changed.
    Changed,
    /// There is no association any more: the watch is over.
    Lost(DownReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStep {
    Enable,
    Ready,
    Identify,
    /// Events are turned on.
    Configure,
    /// Told when the log changes.
    Event,
    /// The log's header is read, which lets the next event come.
    Header,
    KeepAlive,
}

/// See the module.
#[derive(Debug)]
pub struct DiscoveryWatch {
    settings: Settings,
    links: QueueLinks,
    trace: Trace,
    admin_commands: PendingAdminCommands<WatchStep>,
    setup: Option<QueueSetup>,
    association: u32,
    /// Which of the addresses is tried.
    address: usize,
    /// When the controller must be ready.
    ready: Time,
    /// Steps that wait for memory, or for the controller.
    waiting: VecDeque<(WatchStep, Time)>,
    /// When the next Keep Alive is sent.
    keep_alive: Option<Time>,
    retry: Option<Time>,
    is_watching: bool,
    is_over: bool,
    events: VecDeque<DiscoveryWatchEvent>,
}

impl DiscoveryWatch {
    /// Of `settings` the addresses are tried until one answers; NSID, queues and depth say nothing.
    pub fn new(settings: Settings) -> Self {
        DiscoveryWatch {
            links: QueueLinks::new(settings.source),
            settings: settings.clamped(),
            trace: Trace::disabled(),
            admin_commands: PendingAdminCommands::new(),
            setup: None,
            association: 0,
            address: 0,
            ready: Time(0),
            waiting: VecDeque::new(),
            keep_alive: None,
            retry: None,
            is_watching: false,
            is_over: true,
            events: VecDeque::new(),
        }
    }

    /// Begins, or begins again after [`DiscoveryWatchEvent::Lost`].
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        if self.is_over {
            (self.is_over, self.is_watching, self.address) = (false, false, 0);
            // A generated key is of one association.
            self.links.generated = None;
            self.dial(cx);
        }
    }

    /// What has happened, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<DiscoveryWatchEvent> {
        self.events.pop_front()
    }

    fn admin_queue(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn dial(&mut self, cx: &mut Cx<'_>) {
        self.association = self.association.wrapping_add(1);
        match self.settings.addresses.get(self.address) {
            Some(&to) => {
                self.links.request_dial(self.admin_queue(), to, cx.now + self.settings.times.dial);
            }
            None => self.end(cx, DownReason::Refused("no address is set; name one".to_owned())),
        }
    }

    fn end(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let who = self.admin_queue();
        (self.setup, self.keep_alive, self.retry) = (None, None, None);
        self.waiting.clear();
        self.admin_commands.forget_queue(who);
        self.links.close_link(cx, who, CloseMode::Close);
        self.events.push_back(DiscoveryWatchEvent::Lost(why));
    }

    fn handle_link_event(&mut self, cx: &mut Cx<'_>, who: QueueId, event: LinkEvent) {
        if who != self.admin_queue() || self.is_over {
            // Of one before.
            return;
        }
        match event {
            LinkEvent::Dialled(_) => self.handle_dialled_queue(cx),
            LinkEvent::NotDialled(errno) => {
                self.address += 1;
                match self.address < self.settings.addresses.len() {
                    true => self.dial(cx),
                    false => self.end(cx, DownReason::Unreachable(errno)),
                }
            }
            LinkEvent::Ready => {
                self.advance_setup(cx, |setup, cx, context| setup.handle_transport_ready(cx, context))
            }
            LinkEvent::Completed(tag, cqe, payload) => match self.admin_commands.take_purpose(who, tag) {
                Some(step) => self.handle_step_ended(cx, step, cqe, &payload),
                None => self.advance_setup(cx, |setup, cx, context| {
                    setup.handle_completed(cx, context, (tag, cqe, payload))
                }),
            },
            LinkEvent::Broken(how) => {
                let why = match &self.setup {
                    Some(setup) => setup.trace_link_lost(cx, &mut self.trace, how),
                    None => down_reasons::link_lost(how),
                };
                self.end(cx, why);
            }
            LinkEvent::Closed => self.end(cx, down_reasons::link_lost(LinkLoss::Closed)),
        }
    }

    fn handle_dialled_queue(&mut self, cx: &mut Cx<'_>) {
        let connect = Connect {
            qid: 0,
            entries: Connect::ADMIN_ENTRIES_MIN,
            flow_control: self.settings.flow_control,
            individual_deletion: false,
            kato_ms: u32::try_from(self.settings.times.keep_alive.as_millis()).unwrap_or(u32::MAX),
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
                self.keep_alive = Some(cx.now + self.keep_alive_interval());
                self.start_step(cx, WatchStep::Enable);
            }
            SetupProgress::Generated(psk) => match generated_context(&psk, &self.settings) {
                Ok(context) => {
                    self.links.close_link(cx, self.admin_queue(), CloseMode::Close);
                    self.links.generated = Some(context);
                    self.setup = None;
                    self.dial(cx);
                }
                Err(why) => self.end(cx, why),
            },
            SetupProgress::Failed(why) => self.end(cx, why),
        }
    }

    fn keep_alive_interval(&self) -> Duration {
        self.settings.times.keep_alive / KEEP_ALIVES_PER_TIMEOUT
    }

    fn start_step(&mut self, cx: &mut Cx<'_>, step: WatchStep) {
        let command: (Sqe, usize) = match step {
            WatchStep::Enable => {
                (PropertyAccess::property_set_sqe(Property::CC, ControllerConfiguration::ENABLE.0), 0)
            }
            WatchStep::Ready => (PropertyAccess::property_get_sqe(Property::CSTS, 4), 0),
            WatchStep::Identify => {
                let identify = Identify { cns: Cns::CONTROLLER, controller: 0, nsid: 0, command_set: 0 };
                (identify.to_sqe(), identify::IDENTIFY_LEN)
            }
            WatchStep::Configure => {
                let (fid, value) =
                    (FeatureId::ASYNC_EVENT_CONFIGURATION, IdentifyController::OAES_DISCOVERY_CHANGE);
                (SetFeatures { fid, save: false, value, nsid: 0 }.to_sqe(), 0)
            }
            WatchStep::Event => (admin::async_event_request_sqe(), 0),
            WatchStep::Header => log_page_command(LogPageId::DISCOVERY, 0, 0, 0, RECORD_LEN),
            WatchStep::KeepAlive => (admin::keep_alive_sqe(), 0),
        };
        let until = (step != WatchStep::Event).then_some(cx.now + self.settings.times.command);
        let who = self.admin_queue();
        if !self.admin_commands.send_command(cx, &mut self.links, who, command, (step, until)) {
            self.waiting.push_back((step, cx.now + RETRY_DELAY));
        }
    }

    fn handle_step_ended(&mut self, cx: &mut Cx<'_>, step: WatchStep, cqe: Cqe, payload: &Payload) {
        let end = cqe.completion();
        if !end.status.is_success() {
            let why = format!(
                "the discovery controller does not stay to tell of changes: {}",
                down_reasons::status_text(end.status)
            );
            return self.end(cx, DownReason::Refused(why));
        }
        match step {
            WatchStep::Enable => self.start_step(cx, WatchStep::Ready),
            WatchStep::Ready => {
                let status = ControllerStatus::parse(end.result);
                if status.ready && !status.fatal {
                    return self.start_step(cx, WatchStep::Identify);
                }
                if status.fatal || self.ready <= cx.now {
                    let why = "the discovery controller does not become ready".to_owned();
                    return self.end(cx, DownReason::Lost(why));
                }
                self.waiting.push_back((WatchStep::Ready, cx.now + CSTS_POLL_INTERVAL));
            }
            WatchStep::Identify if !tells_of_changes(payload) => {
                let why = "the discovery controller tells of no changes (OAES)".to_owned();
                self.end(cx, DownReason::Refused(why));
            }
            WatchStep::Identify => self.start_step(cx, WatchStep::Configure),
            WatchStep::Configure => {
                self.start_step(cx, WatchStep::Event);
                self.start_step(cx, WatchStep::Header);
            }
            WatchStep::Event => {
                if AsyncEvent::parse(end.result as u32) == AsyncEvent::DISCOVERY_CHANGE {
                    // However often: who has not looked yet is told once.
                    if self.events.back() != Some(&DiscoveryWatchEvent::Changed) {
                        self.events.push_back(DiscoveryWatchEvent::Changed);
                    }
                    self.start_step(cx, WatchStep::Header);
                }
                self.start_step(cx, WatchStep::Event);
            }
            WatchStep::Header if !self.is_watching => {
                self.is_watching = true;
                self.events.push_back(DiscoveryWatchEvent::Watching);
            }
            WatchStep::Header | WatchStep::KeepAlive => {}
        }
    }

    fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let late = self.setup.as_ref().is_some_and(|setup| setup.until <= now);
        if late || self.admin_commands.find_overdue(now).is_some() {
            let why = DownReason::Silent("the discovery controller does not answer".to_owned());
            return self.end(cx, why);
        }
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some((step, at)) if at <= now => self.start_step(cx, step),
                Some(later) => self.waiting.push_back(later),
                None => break,
            }
        }
        if self.keep_alive.is_some_and(|at| at <= now) {
            self.keep_alive = Some(now + self.keep_alive_interval());
            self.start_step(cx, WatchStep::KeepAlive);
        }
        if self.retry.take_if(|retry| *retry <= now).is_some()
            && self.setup.as_ref().is_some_and(QueueSetup::waits_for_memory)
        {
            self.advance_setup(cx, |setup, cx, context| setup.send_pending(cx, context));
        }
    }
}

/// Whether Identify Controller says that changes of the log are told.
fn tells_of_changes(payload: &Payload) -> bool {
    let Payload::In(memory) = payload else { return false };
    let mut bytes = Vec::with_capacity(memory.len());
    memory.pieces().iter().for_each(|piece| bytes.extend_from_slice(piece));
    let oaes = bytes.get(OAES_OFFSET..).and_then(|bytes| bytes.first_chunk());
    oaes.is_some_and(|oaes| u32::from_le_bytes(*oaes) & IdentifyController::OAES_DISCOVERY_CHANGE != 0)
}

impl OutboundSockets for DiscoveryWatch {
    by_links!();

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some((who, event)) = self.links.poll_link_event(cx) {
            self.handle_link_event(cx, who, event);
        }
        if self.setup.as_ref().is_some_and(QueueSetup::is_computation_done) {
            self.advance_setup(cx, |setup, cx, context| setup.handle_computed(cx, context));
        }
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|(_, at)| *at).min();
        let setup = self.setup.as_ref().map(|setup| setup.until);
        let clocks = [
            self.links.poll_timeout(),
            self.retry,
            waiting,
            setup,
            self.keep_alive,
            self.admin_commands.poll_timeout(),
        ];
        clocks.into_iter().fold(None, earliest)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.links.handle_timeout(cx);
        self.check_deadlines(cx);
    }
}
