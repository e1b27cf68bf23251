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
use endpoint::OutboundSockets;
use nvme::Nqn;
use nvme::log::LogPageId;
use nvme::log::discovery::{DiscoveryLogHeader, DiscoveryRecord, RECORD_LEN};
use stream::earliest;

use super::admin_commands::log_page_command;
use super::discovery_connection::{ConnectionEvent, DiscoveryConnection};
use super::down_reasons;
use super::queue_links::by_links;
use super::settings::Settings;
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

const LOG_STAGE: StageName = "Discovery log";

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
}

/// Asks discovery controllers.
#[derive(Debug)]
pub struct Discovery {
    connection: DiscoveryConnection<LogReadStep>,
    reading: Option<LogRead>,
    /// Those that are still to be asked, and after how many referrals.
    next: VecDeque<(SocketAddr, u8)>,
    seen: Vec<SocketAddr>,
    report: DiscoveryReport,
    outcome: Option<Result<DiscoveryReport, DownReason>>,
    /// When all must be over; `None`: nothing goes on.
    until: Option<Time>,
    /// A log was read.
    told: bool,
}

impl Discovery {
    /// Of `settings` the addresses are tried until one answers; the subsystem is the well-known name of
    /// discovery unless it is that of another discovery subsystem; NSID, queues and depth say nothing.
    pub fn new(settings: Settings) -> Self {
        Discovery {
            connection: DiscoveryConnection::new(settings, false),
            reading: None,
            next: VecDeque::new(),
            seen: Vec::new(),
            report: DiscoveryReport::default(),
            outcome: None,
            until: None,
            told: false,
        }
    }

    /// What is said on the way, for who turned it on.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.connection.trace
    }

    /// Begins. The outcome follows within a minute.
    pub fn start(&mut self, cx: &mut Cx<'_>) {
        if self.until.is_some() {
            return;
        }
        self.report = DiscoveryReport::default();
        self.seen.clear();
        self.told = false;
        self.next = self.connection.settings.addresses.iter().map(|&at| (at, 0)).collect();
        self.until = Some(cx.now + DISCOVERY_TIMEOUT);
        self.dial_next_controller(cx);
    }

    /// What came of it, once.
    #[must_use]
    pub fn poll_outcome(&mut self) -> Option<Result<DiscoveryReport, DownReason>> {
        self.outcome.take()
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
        self.reading = Some(LogRead { at, hops, generation: 0, records: 0, readings: 0, found: Vec::new() });
        self.connection.open(cx, at);
    }

    /// This controller could not be asked.
    fn handle_controller_failed(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        let Some(reading) = self.reading.take() else { return };
        self.report.troubles.push((reading.at, why));
        self.finish_controller(cx);
    }

    /// The same of one that had let us in.
    fn handle_log_failed(&mut self, cx: &mut Cx<'_>, why: DownReason) {
        let (what, advice) = down_reasons::text_and_advice(&why);
        self.connection.trace.stage_failed(cx.now, (0, LOG_STAGE), what, advice);
        self.handle_controller_failed(cx, why);
    }

    /// Goes on to the next one.
    fn finish_controller(&mut self, cx: &mut Cx<'_>) {
        self.connection.close(cx);
        self.dial_next_controller(cx);
    }

    fn handle_connection_event(&mut self, cx: &mut Cx<'_>, event: ConnectionEvent<LogReadStep>) {
        match event {
            ConnectionEvent::NotDialled(errno) => {
                self.handle_log_failed(cx, DownReason::Unreachable(errno));
            }
            ConnectionEvent::NotJoined(why) => self.handle_controller_failed(cx, why),
            ConnectionEvent::Joined => {
                if let Some(reading) = &self.reading {
                    // Only who lets us in counts as one that was asked.
                    self.seen.push(reading.at);
                    // The rest of our own addresses are ways to the same log.
                    if reading.hops == 0 {
                        self.next.clear();
                    }
                }
            }
            ConnectionEvent::Ready => self.start_step(cx, LogReadStep::Header),
            ConnectionEvent::Answered(step, _, payload) => match step {
                LogReadStep::Header => self.handle_log_header(cx, &payload),
                LogReadStep::Records(from) => self.handle_log_records(cx, from, &payload),
                LogReadStep::Again => self.recheck_log_generation(cx, &payload),
            },
            ConnectionEvent::Refused(status) => {
                let why = format!("the discovery log cannot be read: {}", down_reasons::status_text(status));
                self.handle_log_failed(cx, DownReason::Refused(why));
            }
            ConnectionEvent::Lost(why) => self.handle_log_failed(cx, why),
        }
    }

    fn start_step(&mut self, cx: &mut Cx<'_>, step: LogReadStep) {
        let log = |offset, len: u64| log_page_command(LogPageId::DISCOVERY, 0, 0, offset, len as usize);
        let size = RECORD_LEN as u64;
        let records = self.reading.as_ref().map_or(0, |reading| reading.records);
        let command = match step {
            LogReadStep::Header | LogReadStep::Again => log(0, size),
            LogReadStep::Records(from) => {
                log((from + 1) * size, (records - from).min(RECORDS_PER_COMMAND) * size)
            }
        };
        if matches!(step, LogReadStep::Header) {
            self.connection.trace.stage_started(cx.now, 0, LOG_STAGE);
        }
        self.connection.send_command(cx, step, command, true);
    }

    fn handle_log_header(&mut self, cx: &mut Cx<'_>, payload: &Payload) {
        let (Some(reading), [header, ..]) = (&mut self.reading, &log_chunks(payload)[..]) else {
            return self.handle_log_failed(
                cx,
                down_reasons::standard_violated("the discovery log has no header".into()),
            );
        };
        let header = DiscoveryLogHeader::parse(header);
        if header.format.get() != 0 {
            return self.handle_log_failed(
                cx,
                down_reasons::standard_violated("the discovery log's format is not 0".into()),
            );
        }
        let (generation, records) = (header.generation.get(), header.records.get());
        self.connection
            .trace
            .trace_field(cx.now, (0, LOG_STAGE), Speaker::Target, "GENCTR", || generation.to_string());
        self.connection
            .trace
            .trace_field(cx.now, (0, LOG_STAGE), Speaker::Target, "NUMREC", || records.to_string());
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
            return self.handle_log_failed(
                cx,
                down_reasons::standard_violated("the discovery log has no header".into()),
            );
        };
        if DiscoveryLogHeader::parse(header).generation.get() != reading.generation {
            if reading.readings >= LOG_REREADS_MAX {
                let why = "the discovery log changes whenever it is read; try again later";
                return self.handle_log_failed(cx, DownReason::Lost(why.to_owned()));
            }
            return self.start_step(cx, LogReadStep::Header);
        }
        self.connection.trace.stage_succeeded(cx.now, 0, LOG_STAGE);
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

    fn run_connection(&mut self, cx: &mut Cx<'_>) {
        while let Some(event) = self.connection.poll_event(cx) {
            self.handle_connection_event(cx, event);
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
    by_links!(connection);

    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        self.run_connection(cx);
        false
    }

    fn poll_timeout(&self) -> Option<Time> {
        earliest(self.connection.poll_timeout(), self.until)
    }

    fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        if self.until.is_some_and(|until| until <= cx.now) {
            self.next.clear();
            self.handle_log_failed(cx, DownReason::Silent("discovery took too long".to_owned()));
        }
        self.connection.handle_timeout(cx);
        self.run_connection(cx);
    }
}
