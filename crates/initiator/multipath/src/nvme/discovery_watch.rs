//! A persistent association with a discovery controller, which tells when its log has changed (NVMe Base 2.0 §3.1.2.3.3,
//! §5.2.1): with a Keep Alive Timeout the controller stays, and answers Asynchronous Event Requests.
//!
//! What has changed is for [`Discovery`](super::Discovery) to find out. Invariants: every wait but that for an event is
//! bounded; after [`DiscoveryWatchEvent::Watching`] no change is missed: one request for events is always out, or
//! about to be.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use endpoint::OutboundSockets;
use nvme::async_event::AsyncEvent;
use nvme::feature::{FeatureId, SetFeatures};
use nvme::identify::{self, Cns, Identify, IdentifyController};
use nvme::log::LogPageId;
use nvme::log::discovery::RECORD_LEN;
use nvme::{Completion, Sqe, admin};
use stream::earliest;

use super::admin_commands::log_page_command;
use super::discovery_connection::{ConnectionEvent, DiscoveryConnection};
use super::down_reasons;
use super::queue_links::by_links;
use super::settings::Settings;
use crate::DownReason;

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
    connection: DiscoveryConnection<WatchStep>,
    /// Which of the addresses is tried.
    address: usize,
    /// When the next Keep Alive is sent.
    keep_alive: Option<Time>,
    is_watching: bool,
    is_over: bool,
    events: VecDeque<DiscoveryWatchEvent>,
}

impl DiscoveryWatch {
    /// Of `settings` the addresses are tried until one answers; NSID, queues and depth say nothing.
    pub fn new(settings: Settings) -> Self {
        DiscoveryWatch {
            connection: DiscoveryConnection::new(settings, true),
            address: 0,
            keep_alive: None,
            is_watching: false,
            is_over: true,
            events: VecDeque::new(),
        }
    }

    /// Begins, or begins again after [`DiscoveryWatchEvent::Lost`].
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        if self.is_over {
            (self.is_over, self.is_watching, self.address) = (false, false, 0);
            self.open(cx);
        }
    }

    /// What has happened, oldest first.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<DiscoveryWatchEvent> {
        self.events.pop_front()
    }

    fn open(&mut self, cx: &mut Cx<'_>) {
        match self.connection.settings.addresses.get(self.address) {
            Some(&to) => self.connection.open(cx, to),
            None => self.end(cx, DownReason::Refused("no address is set; name one".to_owned())),
        }
    }

    fn end(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.keep_alive = None;
        self.connection.close(cx);
        self.events.push_back(DiscoveryWatchEvent::Lost(why));
    }

    fn handle_connection_event(&mut self, cx: &mut Cx<'_>, event: ConnectionEvent<WatchStep>) {
        match event {
            ConnectionEvent::NotDialled(errno) => {
                self.address += 1;
                match self.address < self.connection.settings.addresses.len() {
                    true => self.open(cx),
                    false => self.end(cx, DownReason::Unreachable(errno)),
                }
            }
            ConnectionEvent::Joined => self.keep_alive = Some(cx.now + self.keep_alive_interval()),
            ConnectionEvent::Ready => self.start_step(cx, WatchStep::Identify),
            ConnectionEvent::Answered(step, end, payload) => self.handle_step_ended(cx, step, end, &payload),
            ConnectionEvent::Refused(status) => {
                let why = format!(
                    "the discovery controller does not stay to tell of changes: {}",
                    down_reasons::status_text(status)
                );
                self.end(cx, DownReason::Refused(why));
            }
            ConnectionEvent::NotJoined(why) | ConnectionEvent::Lost(why) => self.end(cx, why),
        }
    }

    fn keep_alive_interval(&self) -> Duration {
        self.connection.settings.times.keep_alive / KEEP_ALIVES_PER_TIMEOUT
    }

    fn start_step(&mut self, cx: &mut Cx<'_>, step: WatchStep) {
        let command: (Sqe, usize) = match step {
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
        self.connection.send_command(cx, step, command, step != WatchStep::Event);
    }

    fn handle_step_ended(&mut self, cx: &mut Cx<'_>, step: WatchStep, end: Completion, payload: &Payload) {
        match step {
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

    fn run_connection(&mut self, cx: &mut Cx<'_>) {
        while let Some(event) = self.connection.poll_event(cx) {
            self.handle_connection_event(cx, event);
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
    by_links!(connection);

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        self.run_connection(cx);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        earliest(self.connection.poll_timeout(), self.keep_alive)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.connection.handle_timeout(cx);
        self.run_connection(cx);
        if self.keep_alive.is_some_and(|at| at <= cx.now) {
            self.keep_alive = Some(cx.now + self.keep_alive_interval());
            self.start_step(cx, WatchStep::KeepAlive);
        }
    }
}
