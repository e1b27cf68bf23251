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
use endpoint::{CloseMode, Sockets};
use nvme::fabrics::{Connect, ConnectData, Property, PropertyAccess};
use nvme::log::Lid;
use nvme::log::discovery::{Header, RECORD, Record};
use nvme::property::{Configuration, ControllerStatus};
use nvme::{Cqe, Nqn, Sqe};
use stream::earliest;

use super::admin_commands::{AdminCommands, log_page};
use super::fence::POLL;
use super::links::{LinkEvent, LinkLoss, Links, QueueId, by_links};
use super::queue_setup::{Progress, QueueSetup};
use super::settings::Settings;
use super::start::generated_context;
use super::{RETRY, context, reasons};
use crate::DownReason;
use crate::trace::{Side, Stage, Trace};

/// Records of one log that are read.
pub const RECORDS_MAX: u64 = 4096;
/// Controllers that are asked, the first among them.
pub const CONTROLLERS_MAX: usize = 64;
/// How far referrals are followed.
pub const HOPS_MAX: u8 = 4;
/// Readings of one log that changes again and again.
const READINGS_MAX: u8 = 8;
/// All of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Records per command: 4 KiB, which no MDTS forbids.
const PIECE: u64 = 4;
const ADMIN_CAPSULE_MAX: u32 = 8192;

const LOG: Stage = "Discovery log";
const TCP: Stage = "TCP";

/// A subsystem that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
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
    pub subsystems: Vec<Discovered>,
    /// Controllers that were referred to and could not be asked, and why.
    pub troubles: Vec<(SocketAddr, DownReason)>,
    /// Records that name no TCP address or no subsystem, or that were too many.
    pub skipped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
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
struct LogReading {
    at: SocketAddr,
    hops: u8,
    generation: u64,
    records: u64,
    readings: u8,
    /// What this reading has found.
    found: Vec<Record>,
    /// A step that waits, and until when.
    waiting: Option<(Step, Time)>,
    /// When the controller must be ready.
    ready: Time,
}

/// Asks discovery controllers.
#[derive(Debug)]
pub struct Discovery {
    settings: Settings,
    links: Links,
    trace: Trace,
    admin_commands: AdminCommands<Step>,
    setup: Option<QueueSetup>,
    reading: Option<LogReading>,
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
            settings: settings.sane(),
            links: Links::default(),
            trace: Trace::off(),
            admin_commands: AdminCommands::new(),
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
        self.until = Some(cx.now + PATIENCE);
        self.ask_next(cx);
    }

    /// What came of it, once.
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<Result<DiscoveryReport, DownReason>> {
        self.outcome.take()
    }

    fn who(&self) -> QueueId {
        QueueId { association: self.association, qid: 0 }
    }

    fn ask_next(&mut self, cx: &mut Cx<'_>) {
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
        let reading = LogReading {
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
        self.trace.begins(cx.now, 0, TCP);
        self.trace.field(cx.now, (0, TCP), Side::Us, "address", || at.to_string());
        self.links.dial(self.who(), at, cx.now + self.settings.times.dial);
    }

    /// This controller could not be asked.
    fn fail(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        let Some(reading) = self.reading.take() else { return };
        let stage = if self.setup.is_some() { TCP } else { LOG };
        if self.setup.is_none() {
            let (what, advice) = reasons::split(&why);
            self.trace.fails(cx.now, (0, stage), what, advice);
        }
        self.report.troubles.push((reading.at, why));
        self.leave(cx);
    }

    /// Goes on to the next one.
    fn leave(&mut self, cx: &mut Cx<'_>) {
        let who = self.who();
        self.setup = None;
        self.admin_commands.forget(who);
        self.links.close(cx, who, CloseMode::Close);
        self.ask_next(cx);
    }

    fn handle_link_event(&mut self, cx: &mut Cx<'_>, who: QueueId, event: LinkEvent) {
        if who != self.who() {
            // Of one before.
            return;
        }
        match event {
            LinkEvent::Dialled(_) if self.reading.is_some() => self.dialled(cx),
            LinkEvent::Dialled(_) => {}
            LinkEvent::NotDialled(errno) => self.fail(cx, DownReason::Unreachable(errno)),
            LinkEvent::Ready => self.join(cx, |setup, cx, context| setup.ready(cx, context)),
            LinkEvent::Completed(tag, cqe, payload) => match self.admin_commands.ended(who, tag) {
                Some(step) => self.ended(cx, step, cqe, &payload),
                None => self.join(cx, |setup, cx, context| setup.completed(cx, context, (tag, cqe, payload))),
            },
            LinkEvent::Broken(how) => {
                let why = match &self.setup {
                    Some(setup) => setup.cut(cx, &mut self.trace, how),
                    None => reasons::broken(how),
                };
                self.fail(cx, why);
            }
            LinkEvent::Closed => self.fail(cx, reasons::broken(LinkLoss::Closed)),
        }
    }

    fn dialled(&mut self, cx: &mut Cx<'_>) {
        self.trace.ends(cx.now, 0, TCP);
        let connect = Connect {
            qid: 0,
            entries: Connect::ADMIN_ENTRIES_MIN,
            flow_control: self.settings.flow_control,
            individual_deletion: false,
            kato_ms: 0,
        };
        let until = cx.now + self.settings.times.join;
        let setup = QueueSetup::new(self.who(), connect, ConnectData::DYNAMIC, ADMIN_CAPSULE_MAX, until);
        setup.dialled(cx, context(&self.settings, &mut self.links, &mut self.trace));
        self.setup = Some(setup);
    }

    fn join(
        &mut self,
        cx: &mut Cx<'_>,
        act: impl FnOnce(&mut QueueSetup, &mut Cx<'_>, super::SetupContext<'_>) -> Progress,
    ) {
        let Some(setup) = &mut self.setup else { return };
        match act(setup, cx, context(&self.settings, &mut self.links, &mut self.trace)) {
            Progress::Going => self.retry = setup.is_short().then_some(cx.now + RETRY),
            Progress::Up(_) => {
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
                self.step(cx, Step::Enable);
            }
            Progress::Generated(psk) => match generated_context(&psk, &self.settings) {
                Ok(context) => {
                    self.links.close(cx, self.who(), CloseMode::Close);
                    self.links.generated = Some(context);
                    self.setup = None;
                    self.dial(cx);
                }
                Err(why) => self.fail(cx, why),
            },
            Progress::Failed(why) => self.fail(cx, why),
        }
    }

    fn step(&mut self, cx: &mut Cx<'_>, step: Step) {
        let log = |offset, len: u64| log_page(Lid::DISCOVERY, 0, 0, offset, len as usize);
        let size = RECORD as u64;
        let records = self.reading.as_ref().map_or(0, |reading| reading.records);
        let command: (Sqe, usize) = match step {
            Step::Enable => (PropertyAccess::set_sqe(Property::CC, Configuration::ENABLE.0), 0),
            Step::Ready => (PropertyAccess::get_sqe(Property::CSTS, 4), 0),
            Step::Header | Step::Again => log(0, size),
            Step::Records(from) => log((from + 1) * size, (records - from).min(PIECE) * size),
        };
        if matches!(step, Step::Header) {
            self.trace.begins(cx.now, 0, LOG);
        }
        let until = Some(cx.now + self.settings.times.command);
        let who = self.who();
        let sent = self.admin_commands.send(cx, &mut self.links, who, command, (step, until));
        if let (Some(reading), false) = (&mut self.reading, sent) {
            reading.waiting = Some((step, cx.now + RETRY));
        }
    }

    fn ended(&mut self, cx: &mut Cx<'_>, step: Step, cqe: Cqe, payload: &Payload) {
        let end = cqe.completion();
        let Some(reading) = &mut self.reading else { return };
        if !end.status.is_success() {
            let why = format!("the discovery log cannot be read: {}", reasons::status(end.status));
            return self.fail(cx, DownReason::Refused(why));
        }
        match step {
            Step::Enable => self.step(cx, Step::Ready),
            Step::Ready => {
                let status = ControllerStatus::parse(end.result);
                if status.ready && !status.fatal {
                    return self.step(cx, Step::Header);
                }
                if status.fatal || reading.ready <= cx.now {
                    return self
                        .fail(cx, DownReason::Lost("the discovery controller does not become ready".into()));
                }
                reading.waiting = Some((Step::Ready, cx.now + POLL));
            }
            Step::Header => self.header(cx, payload),
            Step::Records(from) => self.records(cx, from, payload),
            Step::Again => self.again(cx, payload),
        }
    }

    fn header(&mut self, cx: &mut Cx<'_>, payload: &Payload) {
        let (Some(reading), [header, ..]) = (&mut self.reading, &pieces(payload)[..]) else {
            return self.fail(cx, reasons::lie("the discovery log has no header".into()));
        };
        let header = Header::parse(header);
        if header.format.get() != 0 {
            return self.fail(cx, reasons::lie("the discovery log's format is not 0".into()));
        }
        let (generation, records) = (header.generation.get(), header.records.get());
        self.trace.field(cx.now, (0, LOG), Side::Target, "GENCTR", || generation.to_string());
        self.trace.field(cx.now, (0, LOG), Side::Target, "NUMREC", || records.to_string());
        reading.found.clear();
        (reading.generation, reading.records) = (generation, records.min(RECORDS_MAX));
        reading.readings += 1;
        self.report.skipped = self.report.skipped.saturating_add(records.saturating_sub(RECORDS_MAX));
        let empty = reading.records == 0;
        self.step(cx, if empty { Step::Again } else { Step::Records(0) });
    }

    fn records(&mut self, cx: &mut Cx<'_>, from: u64, payload: &Payload) {
        let Some(reading) = &mut self.reading else { return };
        reading.found.extend(pieces(payload).iter().map(Record::parse));
        let next = from + PIECE;
        let more = next < reading.records;
        self.step(cx, if more { Step::Records(next) } else { Step::Again });
    }

    fn again(&mut self, cx: &mut Cx<'_>, payload: &Payload) {
        let (Some(reading), [header, ..]) = (&mut self.reading, &pieces(payload)[..]) else {
            return self.fail(cx, reasons::lie("the discovery log has no header".into()));
        };
        if Header::parse(header).generation.get() != reading.generation {
            if reading.readings >= READINGS_MAX {
                let why = "the discovery log changes whenever it is read; try again later";
                return self.fail(cx, DownReason::Lost(why.to_owned()));
            }
            return self.step(cx, Step::Header);
        }
        self.trace.ends(cx.now, 0, LOG);
        if let Some(reading) = self.reading.take() {
            self.told = true;
            self.take(reading);
        }
        self.leave(cx);
    }

    /// Takes what a log says.
    fn take(&mut self, reading: LogReading) {
        for record in &reading.found {
            // An address of nobody in particular is that of who says so.
            let address = record.tcp_address().map(|mut at| {
                if at.ip().is_unspecified() {
                    at.set_ip(reading.at.ip());
                }
                at
            });
            match (record.subtype, address, record.name()) {
                (Record::NVM, Some(address), Ok(subsystem)) => {
                    let known = |found: &Discovered| found.address == address && found.subsystem == subsystem;
                    if !self.report.subsystems.iter().any(known) {
                        self.report.subsystems.push(Discovered {
                            subsystem,
                            address,
                            port: record.port.get(),
                            tls: record.wants_tls(),
                            told_by: reading.at,
                        });
                    }
                }
                (Record::REFERRAL, Some(address), _) => self.refer(address, reading.hops + 1),
                // This service itself.
                (Record::CURRENT, ..) => {}
                _ => self.report.skipped += 1,
            }
        }
    }

    fn refer(&mut self, to: SocketAddr, hops: u8) {
        let known = self.seen.contains(&to) || self.next.iter().any(|(next, _)| *next == to);
        let tried = self.report.troubles.iter().any(|(tried, _)| *tried == to);
        if known || tried {
            return;
        }
        let full = self.seen.len() + self.next.len() + self.report.troubles.len() >= CONTROLLERS_MAX;
        if hops > HOPS_MAX || full {
            self.report.skipped += 1;
            return;
        }
        self.next.push_back((to, hops));
    }

    /// What was computed for the queue that comes up.
    fn take_answers(&mut self, cx: &mut Cx<'_>) {
        if self.setup.as_ref().is_some_and(QueueSetup::is_answered) {
            self.join(cx, |setup, cx, context| setup.computed(cx, context));
        }
    }

    fn look_at_clocks(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        if self.until.is_some_and(|until| until <= now) {
            self.next.clear();
            self.fail(cx, DownReason::Silent("discovery took too long".to_owned()));
        }
        let late = self.setup.as_ref().is_some_and(|setup| setup.until <= now);
        if late || self.admin_commands.overdue(now).is_some() {
            let why = DownReason::Silent("the discovery controller does not answer".to_owned());
            self.fail(cx, why);
        }
        if let Some((step, at)) = self.reading.as_ref().and_then(|reading| reading.waiting)
            && at <= now
        {
            if let Some(reading) = &mut self.reading {
                reading.waiting = None;
            }
            self.step(cx, step);
        }
        if self.retry.take_if(|retry| *retry <= now).is_some()
            && self.setup.as_ref().is_some_and(QueueSetup::is_short)
        {
            self.join(cx, |setup, cx, context| setup.go(cx, context));
        }
    }
}

/// The pieces of a log that came whole, each as long as a record.
fn pieces(payload: &Payload) -> Vec<[u8; RECORD]> {
    let Payload::In(memory) = payload else { return Vec::new() };
    let mut bytes = Vec::with_capacity(memory.len());
    memory.pieces().iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes.as_chunks().0.to_vec()
}

impl Sockets for Discovery {
    by_links!();

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        while let Some((who, event)) = self.links.poll(cx) {
            self.handle_link_event(cx, who, event);
        }
        self.take_answers(cx);
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
        self.look_at_clocks(cx);
    }
}
