//! Discovery (NVMe Base §3.1.2.3): finds subsystems in the logs of discovery controllers, and of those to
//! which they refer.
//!
//! A log is read in pieces, and again from its start if its generation counter (GENCTR) has changed
//! meanwhile. If a referred controller fails, the other results stay.
//!
//! Invariants:
//! - Records per log, readings per log, referrals, their depth, and the total time are bounded.
//! - Each controller is asked once, so circular referrals end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use buf::{Cx, Payload, Time};
use endpoint::{CloseMode, OutboundSockets};
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::log::LogPageId;
use nvme::log::discovery::{DiscoveryLogHeader, DiscoveryRecord, RECORD_LEN};
use nvme::property::{ControllerConfiguration, ControllerStatus};
use nvme::{Cqe, Nqn, Sqe};
use stream::earliest;

use super::admin_commands::{PendingAdminCommands, log_page_command};
use super::association_start::generated_context;
use super::fence::CSTS_POLL_INTERVAL;
use super::queue_links::{LinkEvent, LinkLoss, QueueId, QueueLinks, by_links};
use super::queue_setup::{QueueSetup, SetupProgress};
use super::settings::Settings;
use super::{RETRY_DELAY, down_reasons, setup_context};
use crate::DownReason;
use crate::trace::{Speaker, StageName, Trace};

/// Records of one log that are read.
pub const RECORDS_MAX: u64 = 4096;
/// Controllers that are asked, the first among them.
pub const CONTROLLERS_MAX: usize = 64;
/// How far referrals are followed.
pub const REFERRAL_HOPS_MAX: u8 = 4;
/// Readings of one log that changes again and again.
const LOG_REREADS_MAX: u8 = 8;
/// All of it.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Records per command: 4 KiB, which no MDTS forbids.
const RECORDS_PER_COMMAND: u64 = 4;
const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;

const LOG_STAGE: StageName = "Discovery log";
const TCP_STAGE: StageName = "TCP";

/// A subsystem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// Its name.
    pub subsystem: Nqn,
    /// Where a controller of it is.
    pub address: SocketAddr,
    /// The port of the subsystem (PORTID).
    pub port: u16,
    /// Whether it wants TLS, which is not spoken here.
    pub tls: bool,
    /// Who told it.
    pub told_by: SocketAddr,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DiscoveryReport {
    /// The subsystems, in the order in which they were told; none twice at one address.
    pub subsystems: Vec<DiscoveredSubsystem>,
    /// Controllers that were referred to and could not be asked, and why.
    pub troubles: Vec<(SocketAddr, DownReason)>,
    /// Records that name no TCP address or no subsystem, or that were too many.
    pub skipped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogReadStep {
    Enable,
    Ready,
    /// The log's header.
    Header,
    /// Records from this one on.
    Records(u64),
    /// The header again.
    Again,
}

/// A controller that is asked.
#[derive(Debug)]
struct LogRead {
    at: SocketAddr,
    hops: u8,
    generation: u64,
    records: u64,
    readings: u8,
    /// What this reading has found.
    found: Vec<DiscoveryRecord>,
    /// A step that waits, and until when.
    waiting: Option<(LogReadStep, Time)>,
    /// When the controller must be ready.
    ready: Time,
}

/// Asks discovery controllers.
#[derive(Debug)]
pub struct Discovery {
    settings: Settings,
    links: QueueLinks,
    trace: Trace,
    admin_commands: PendingAdminCommands<LogReadStep>,
    setup: Option<QueueSetup>,
    reading: Option<LogRead>,
    /// Those that are still to be asked, and after how many referrals.
    next: VecDeque<(SocketAddr, u8)>,
    seen: Vec<SocketAddr>,
    association: u32,
    report: DiscoveryReport,
    outcome: Option<Result<DiscoveryReport, DownReason>>,
    /// When all must be over; `None`: nothing goes on.
    until: Option<Time>,
    /// When memory that was short is asked for again.
    retry: Option<Time>,
    /// A log was read.
    told: bool,
}

impl Discovery {
    /// Of `settings` the addresses are tried until one answers; the subsystem is the well-known name of
    /// discovery unless it is that of another discovery subsystem; NSID, queues and depth say nothing.
    pub fn new(settings: Settings) -> Self {
        Discovery {
            links: QueueLinks::new(settings.source),
            settings: settings.clamped(),
            trace: Trace::disabled(),
            admin_commands: PendingAdminCommands::new(),
            setup: None,
            reading: None,
            next: VecDeque::new(),
            seen: Vec::new(),
            association: 0,
            report: DiscoveryReport::default(),
            outcome: None,
            until: None,
            retry: None,
            told: false,
        }
    }

    /// What is said on the way, for who turned it on.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    /// Begins. The outcome follows within a minute.
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        if self.until.is_some() {
            return;
        }
        self.report = DiscoveryReport::default();
        self.seen.clear();
        self.told = false;
        self.next = self.settings.addresses.iter().map(|&at| (at, 0)).collect();
        self.until = Some(cx.now + DISCOVERY_TIMEOUT);
        self.dial_next_controller(cx);
    }

    /// What came of it, once.
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<Result<DiscoveryReport, DownReason>> {
        self.outcome.take()
    }

    fn admin_queue(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn dial_next_controller(&mut self, cx: &mut Cx<'_>) {
        let Some((at, hops)) = self.next.pop_front() else {
            self.until = None;
            let report = std::mem::take(&mut self.report);
            let outcome = match report.troubles.last() {
                _ if self.told => Ok(report),
                Some((_, why)) => Err(why.clone()),
                None => Err(DownReason::Refused("no address is set; name one".into())),
            };
            self.outcome = Some(outcome);
            return;
        };
        let reading = LogRead {
            at,
            hops,
            generation: 0,
            records: 0,
            readings: 0,
            found: Vec::new(),
            waiting: None,
            ready: cx.now,
        };
        self.reading = Some(reading);
        // A generated key is of one association.
        self.links.generated = None;
        self.dial(cx);
    }

    fn dial(&mut self, cx: &mut Cx<'_>) {
        let Some(at) = self.reading.as_ref().map(|reading| reading.at) else { return };
        self.association = self.association.wrapping_add(1);
        self.trace.stage_started(cx.now, 0, TCP_STAGE);
        self.trace.trace_field(cx.now, (0, TCP_STAGE), Speaker::Us, "address", || at.to_string());
        self.links.request_dial(self.admin_queue(), at, cx.now + self.settings.times.dial);
    }

    /// This controller could not be asked.
    fn handle_controller_failed(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        let Some(reading) = self.reading.take() else { return };
        let stage = if self.setup.is_some() { TCP_STAGE } else { LOG_STAGE };
        if self.setup.is_none() {
            let (what, advice) = down_reasons::text_and_advice(&why);
            self.trace.stage_failed(cx.now, (0, stage), what, advice);
        }
        self.report.troubles.push((reading.at, why));
        self.finish_controller(cx);
    }

    /// Goes on to the next one.
    fn finish_controller(&mut self, cx: &mut Cx<'_>) {
        let who = self.admin_queue();
        self.setup = None;
        self.admin_commands.forget_queue(who);
        self.links.close_link(cx, who, CloseMode::Close);
        self.dial_next_controller(cx);
    }

    fn handle_link_event(&mut self, cx: &mut Cx<'_>, who: QueueId, event: LinkEvent) {
        if who != self.admin_queue() {
            // Of one before.
            return;
        }
        match event {
            LinkEvent::Dialled(_) if self.reading.is_some() => self.handle_dialled_queue(cx),
            LinkEvent::Dialled(_) => {}
            LinkEvent::NotDialled(errno) => self.handle_controller_failed(cx, DownReason::Unreachable(errno)),
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
                self.handle_controller_failed(cx, why);
            }
            LinkEvent::Closed => self.handle_controller_failed(cx, down_reasons::link_lost(LinkLoss::Closed)),
        }
    }

    fn handle_dialled_queue(&mut self, cx: &mut Cx<'_>) {
        self.trace.stage_succeeded(cx.now, 0, TCP_STAGE);
        let connect = Connect {
            qid: 0,
            entries: Connect::ADMIN_ENTRIES_MIN,
            flow_control: self.settings.flow_control,
            individual_deletion: false,
            kato_ms: 0,
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
                if let Some(reading) = &mut self.reading {
                    reading.ready = cx.now + self.settings.times.ready_max;
                    // Only who lets us in counts as one that was asked.
                    self.seen.push(reading.at);
                    // The rest of our own addresses are ways to the same log.
                    if reading.hops == 0 {
                        self.next.clear();
                    }
                }
                self.start_step(cx, LogReadStep::Enable);
            }
            SetupProgress::Generated(psk) => match generated_context(&psk, &self.settings) {
                Ok(context) => {
                    self.links.close_link(cx, self.admin_queue(), CloseMode::Close);
                    self.links.generated = Some(context);
                    self.setup = None;
                    self.dial(cx);
                }
                Err(why) => self.handle_controller_failed(cx, why),
            },
            SetupProgress::Failed(why) => self.handle_controller_failed(cx, why),
        }
    }

    fn start_step(&mut self, cx: &mut Cx<'_>, step: LogReadStep) {
        let log = |offset, len: u64| log_page_command(LogPageId::DISCOVERY, 0, 0, offset, len as usize);
        let size = RECORD_LEN as u64;
        let records = self.reading.as_ref().map_or(0, |reading| reading.records);
        let command: (Sqe, usize) = match step {
            LogReadStep::Enable => {
                (PropertyAccess::property_set_sqe(Property::CC, ControllerConfiguration::ENABLE.0), 0)
            }
            LogReadStep::Ready => (PropertyAccess::property_get_sqe(Property::CSTS, 4), 0),
            LogReadStep::Header | LogReadStep::Again => log(0, size),
            LogReadStep::Records(from) => {
                log((from + 1) * size, (records - from).min(RECORDS_PER_COMMAND) * size)
            }
        };
        if matches!(step, LogReadStep::Header) {
            self.trace.stage_started(cx.now, 0, LOG_STAGE);
        }
        let until = Some(cx.now + self.settings.times.command);
        let who = self.admin_queue();
        let sent = self.admin_commands.send_command(cx, &mut self.links, who, command, (step, until));
        if let (Some(reading), false) = (&mut self.reading, sent) {
            reading.waiting = Some((step, cx.now + RETRY_DELAY));
        }
    }

    fn handle_step_ended(&mut self, cx: &mut Cx<'_>, step: LogReadStep, cqe: Cqe, payload: &Payload) {
        let end = cqe.completion();
        let Some(reading) = &mut self.reading else { return };
        if !end.status.is_success() {
            let why = format!("the discovery log cannot be read: {}", down_reasons::status_text(end.status));
            return self.handle_controller_failed(cx, DownReason::Refused(why));
        }
        match step {
            LogReadStep::Enable => self.start_step(cx, LogReadStep::Ready),
            LogReadStep::Ready => {
                let status = ControllerStatus::parse(end.result);
                if status.ready && !status.fatal {
                    return self.start_step(cx, LogReadStep::Header);
                }
                if status.fatal || reading.ready <= cx.now {
                    return self.handle_controller_failed(
                        cx,
                        DownReason::Lost("the discovery controller does not become ready".into()),
                    );
                }
                reading.waiting = Some((LogReadStep::Ready, cx.now + CSTS_POLL_INTERVAL));
            }
            LogReadStep::Header => self.handle_log_header(cx, payload),
            LogReadStep::Records(from) => self.handle_log_records(cx, from, payload),
            LogReadStep::Again => self.recheck_log_generation(cx, payload),
        }
    }

    fn handle_log_header(&mut self, cx: &mut Cx<'_>, payload: &Payload) {
        let (Some(reading), [header, ..]) = (&mut self.reading, &log_chunks(payload)[..]) else {
            return self.handle_controller_failed(
                cx,
                down_reasons::standard_violated("the discovery log has no header".into()),
            );
        };
        let header = DiscoveryLogHeader::parse(header);
        if header.format.get() != 0 {
            return self.handle_controller_failed(
                cx,
                down_reasons::standard_violated("the discovery log's format is not 0".into()),
            );
        }
        let (generation, records) = (header.generation.get(), header.records.get());
        self.trace.trace_field(cx.now, (0, LOG_STAGE), Speaker::Target, "GENCTR", || generation.to_string());
        self.trace.trace_field(cx.now, (0, LOG_STAGE), Speaker::Target, "NUMREC", || records.to_string());
        reading.found.clear();
        (reading.generation, reading.records) = (generation, records.min(RECORDS_MAX));
        reading.readings += 1;
        self.report.skipped = self.report.skipped.saturating_add(records.saturating_sub(RECORDS_MAX));
        let empty = reading.records == 0;
        self.start_step(cx, if empty { LogReadStep::Again } else { LogReadStep::Records(0) });
    }

    fn handle_log_records(&mut self, cx: &mut Cx<'_>, from: u64, payload: &Payload) {
        let Some(reading) = &mut self.reading else { return };
        reading.found.extend(log_chunks(payload).iter().map(DiscoveryRecord::parse));
        let next = from + RECORDS_PER_COMMAND;
        let more = next < reading.records;
        self.start_step(cx, if more { LogReadStep::Records(next) } else { LogReadStep::Again });
    }

    fn recheck_log_generation(&mut self, cx: &mut Cx<'_>, payload: &Payload) {
        let (Some(reading), [header, ..]) = (&mut self.reading, &log_chunks(payload)[..]) else {
            return self.handle_controller_failed(
                cx,
                down_reasons::standard_violated("the discovery log has no header".into()),
            );
        };
        if DiscoveryLogHeader::parse(header).generation.get() != reading.generation {
            if reading.readings >= LOG_REREADS_MAX {
                let why = "the discovery log changes whenever it is read; try again later";
                return self.handle_controller_failed(cx, DownReason::Lost(why.to_owned()));
            }
            return self.start_step(cx, LogReadStep::Header);
        }
        self.trace.stage_succeeded(cx.now, 0, LOG_STAGE);
        if let Some(reading) = self.reading.take() {
            self.told = true;
            self.take_log_records(reading);
        }
        self.finish_controller(cx);
    }

    /// Takes what a log says.
    fn take_log_records(&mut self, reading: LogRead) {
        for record in &reading.found {
            // An address of nobody in particular is that of who says so.
            let address = record.tcp_address().map(|mut at| {
                if at.ip().is_unspecified() {
                    at.set_ip(reading.at.ip());
                }
                at
            });
            match (record.subtype, address, record.subsystem_nqn()) {
                (DiscoveryRecord::SUBTYPE_NVM, Some(address), Ok(subsystem)) => {
                    let known = |found: &DiscoveredSubsystem| {
                        found.address == address && found.subsystem == subsystem
                    };
                    if !self.report.subsystems.iter().any(known) {
                        self.report.subsystems.push(DiscoveredSubsystem {
                            subsystem,
                            address,
                            port: record.port.get(),
                            tls: record.wants_tls(),
                            told_by: reading.at,
                        });
                    }
                }
                (DiscoveryRecord::SUBTYPE_REFERRAL, Some(address), _) => {
                    self.queue_referral(address, reading.hops + 1)
                }
                // This service itself.
                (DiscoveryRecord::SUBTYPE_CURRENT_DISCOVERY, ..) => {}
                _ => self.report.skipped += 1,
            }
        }
    }

    fn queue_referral(&mut self, to: SocketAddr, hops: u8) {
        let known = self.seen.contains(&to) || self.next.iter().any(|(next, _)| *next == to);
        let tried = self.report.troubles.iter().any(|(tried, _)| *tried == to);
        if known || tried {
            return;
        }
        let full = self.seen.len() + self.next.len() + self.report.troubles.len() >= CONTROLLERS_MAX;
        if hops > REFERRAL_HOPS_MAX || full {
            self.report.skipped += 1;
            return;
        }
        self.next.push_back((to, hops));
    }

    /// What was computed for the queue that comes up.
    fn take_computed(&mut self, cx: &mut Cx<'_>) {
        if self.setup.as_ref().is_some_and(QueueSetup::is_computation_done) {
            self.advance_setup(cx, |setup, cx, context| setup.handle_computed(cx, context));
        }
    }

    fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if self.until.is_some_and(|until| until <= now) {
            self.next.clear();
            self.handle_controller_failed(cx, DownReason::Silent("discovery took too long".to_owned()));
        }
        let late = self.setup.as_ref().is_some_and(|setup| setup.until <= now);
        if late || self.admin_commands.find_overdue(now).is_some() {
            let why = DownReason::Silent("the discovery controller does not answer".to_owned());
            self.handle_controller_failed(cx, why);
        }
        if let Some((step, at)) = self.reading.as_ref().and_then(|reading| reading.waiting)
            && at <= now
        {
            if let Some(reading) = &mut self.reading {
                reading.waiting = None;
            }
            self.start_step(cx, step);
        }
        if self.retry.take_if(|retry| *retry <= now).is_some()
            && self.setup.as_ref().is_some_and(QueueSetup::waits_for_memory)
        {
            self.advance_setup(cx, |setup, cx, context| setup.send_pending(cx, context));
        }
    }
}

/// The pieces of a log that came whole, each as long as a record.
fn log_chunks(payload: &Payload) -> Vec<[u8; RECORD_LEN]> {
    let Payload::In(memory) = payload else { return Vec::new() };
    let mut bytes = Vec::with_capacity(memory.len());
    memory.pieces().iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes.as_chunks().0.to_vec()
}

impl OutboundSockets for Discovery {
    by_links!();

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some((who, event)) = self.links.poll_link_event(cx) {
            self.handle_link_event(cx, who, event);
        }
        self.take_computed(cx);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        let waiting = self.reading.as_ref().and_then(|reading| reading.waiting).map(|(_, at)| at);
        let setup = self.setup.as_ref().map(|setup| setup.until);
        let clocks = [
            self.links.poll_timeout(),
            self.retry,
            self.until,
            waiting,
            setup,
            self.admin_commands.poll_timeout(),
        ];
        clocks.into_iter().fold(None, earliest)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.links.handle_timeout(cx);
        self.check_deadlines(cx);
    }
}
