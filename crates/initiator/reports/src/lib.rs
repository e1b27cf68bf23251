//! What the initiator's verbs print with `--json`, as types.
//!
//! The words are those of the daemon's reports (`control::report`): one name for one thing, units in names (`_bytes`,
//! `_seconds`, `_ms`), numbers as numbers, `null` for what is not known. The binary's JSON Schema documents both.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::unreachable,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

use std::{collections::BTreeMap, fmt::Write as _};

use client::trace::{Speaker, TraceEvent, TraceLine};
use client::{
    DiscoveredTarget, DiscoveryResult, PathExamination, PathInfo, PathState, Protocol, RawAnswer,
    Registration, Reservations,
};
use schemars::JsonSchema;
use serde::Serialize;
use transfer::reservation_names::registrant_name;
use volume::reservation::ReservationType;

/// `info`: a remote volume.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RemoteVolumeReport {
    /// Its identity over both protocols.
    pub uuid: Option<String>,
    /// Vendor and product, or model.
    pub product: String,
    /// Serial number.
    pub serial: String,
    /// Size.
    pub size_bytes: u64,
    /// Logical block.
    pub block_bytes: u32,
    /// Physical block.
    pub physical_bytes: u32,
    /// Longest read or write.
    pub max_io_bytes: u32,
    /// Unmapped blocks are given back.
    pub thin: bool,
    /// A volatile write cache is reported.
    pub write_cache: bool,
    /// What was deallocated reads as zeroes.
    pub deallocated_reads_zero: bool,
    /// Longest compare-and-write; 0: there is none.
    pub compare_and_write_blocks: u32,
    /// Longest write that is atomic.
    pub atomic_blocks: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Reservation and registrants; `null` if the target has none.
    pub reservation: Option<RemoteReservation>,
    /// Ways to it.
    pub paths: Vec<PathReport>,
}

/// A reservation, or why it is not known.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RemoteReservation {
    /// As the target reports it.
    Known(RemoteReservationReport),
    /// It could not be asked for.
    Unknown {
        /// Why.
        why: String,
    },
}

/// `reserve`: the reservation of a remote volume.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RemoteReservationReport {
    /// Changes with each registration.
    pub generation: u32,
    /// Registrations survive a restart of the target; `null`: it does not tell.
    pub persists: Option<bool>,
    /// The type; `null`: it is not reserved.
    pub kind: Option<&'static str>,
    /// Who is registered.
    pub registrants: Vec<RemoteRegistrantReport>,
}

/// One registrant.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RemoteRegistrantReport {
    /// Its key, hexadecimal.
    pub key: String,
    /// Initiator port or host.
    pub name: String,
    /// It holds the reservation.
    pub holder: bool,
    /// It is this machine.
    pub ours: bool,
}

impl RemoteReservationReport {
    /// Of what a target reports.
    pub fn of(report: &Reservations) -> Self {
        let registrant = |one: &Registration| RemoteRegistrantReport {
            key: format!("{:#018x}", one.key.0),
            name: registrant_name(&one.identity),
            holder: one.holds,
            ours: one.ours,
        };
        RemoteReservationReport {
            generation: report.generation,
            persists: report.persists,
            kind: report.held.map(ReservationType::standard_name),
            registrants: report.registrations.iter().map(registrant).collect(),
        }
    }
}

/// One way to a remote volume.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PathReport {
    /// `iscsi` or `nvme`.
    pub protocol: &'static str,
    /// `connecting`, `up`, `registering`, `fencing`, `waiting`, `given-up` or `closed`.
    pub state: &'static str,
    /// ALUA or ANA: `optimized`, `non-optimized`, `standby`, `inaccessible`, `persistent-loss` or `transition`.
    pub access: Option<&'static str>,
    /// Commands that may be in flight.
    pub depth: Option<u32>,
    /// What happened to it last.
    pub problem: Option<String>,
    /// What was negotiated, by the standards' names.
    pub negotiated: Option<BTreeMap<String, String>>,
}

impl PathReport {
    /// Of a path.
    pub fn of(path: &PathInfo) -> Self {
        let info = path.info.as_ref();
        PathReport {
            protocol: protocol_word(path.protocol),
            state: match path.state {
                PathState::Connecting => "connecting",
                PathState::Up => "up",
                PathState::Registering => "registering",
                PathState::Fencing => "fencing",
                PathState::Waiting(_) => "waiting",
                PathState::GivenUp => "given-up",
                PathState::Closed => "closed",
            },
            access: info.map(|info| info.access.name()),
            depth: info.map(|info| info.depth),
            problem: path.last.as_ref().map(|(_, problem)| problem.to_string()),
            negotiated: info.map(|info| info.terms.iter().cloned().collect()),
        }
    }
}

/// As the daemon has it.
pub fn protocol_word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Iscsi => "iscsi",
        Protocol::Nvme => "nvme",
    }
}

/// `discover`
#[derive(Debug, Serialize, JsonSchema)]
pub struct DiscoveryReport {
    /// What is offered to this host.
    pub found: Vec<FoundTarget>,
    /// What could not be asked, or understood.
    pub problems: Vec<String>,
}

/// A target or subsystem that is offered.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FoundTarget {
    /// `iscsi` or `nvme`.
    pub protocol: &'static str,
    /// IQN or NQN.
    pub name: String,
    /// Where.
    pub address: String,
    /// Portal group tag, or port identifier.
    pub tag: u16,
    /// TLS is required.
    pub tls: bool,
    /// What to give to other verbs.
    pub url: String,
}

impl DiscoveryReport {
    /// Of what was discovered.
    pub fn of(discovered: &DiscoveryResult) -> Self {
        let found = |one: &DiscoveredTarget| FoundTarget {
            protocol: protocol_word(one.protocol),
            name: one.name.clone(),
            address: one.address.clone(),
            tag: one.tag,
            tls: one.tls,
            url: target_url(one),
        };
        let found = discovered.targets.iter().map(found).collect();
        DiscoveryReport { found, problems: discovered.problems.clone() }
    }
}

/// What to type next: a URL without unit, since discovery names none.
pub fn target_url(found: &DiscoveredTarget) -> String {
    let scheme = if found.protocol == Protocol::Iscsi { "iscsi" } else { "nvme+tcp" };
    let unit = if found.protocol == Protocol::Iscsi { 0 } else { 1 };
    format!("{scheme}://{}/{}/{unit}", found.address, found.name)
}

/// `doctor`
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExaminationReport {
    /// What was said, in order.
    pub steps: Vec<ExaminationStep>,
    /// Every step went well.
    pub healthy: bool,
    /// Why not.
    pub why: Option<String>,
}

/// A line of an examination.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExaminationStep {
    /// Which connection.
    pub connection: u16,
    /// The step of the protocol.
    pub stage: String,
    /// What happened.
    #[serde(flatten)]
    pub event: ExaminationEvent,
}

/// What happened in a step.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum ExaminationEvent {
    /// It begins.
    Begins,
    /// It has ended well.
    Ends,
    /// A value was said.
    Field {
        /// `us` or `target`.
        by: &'static str,
        /// Its name.
        name: String,
        /// The value.
        value: String,
    },
    /// It failed.
    Fails {
        /// Why.
        why: String,
        /// What to do.
        next: String,
    },
}

impl ExaminationReport {
    /// Of a path that was brought up, or was not.
    pub fn of(examined: &PathExamination) -> Self {
        let step = |line: &TraceLine| ExaminationStep {
            connection: line.connection,
            stage: line.stage.to_string(),
            event: match &line.event {
                TraceEvent::Begins => ExaminationEvent::Begins,
                TraceEvent::Ends => ExaminationEvent::Ends,
                TraceEvent::Field { by, name, value } => ExaminationEvent::Field {
                    by: if *by == Speaker::Us { "us" } else { "target" },
                    name: name.to_string(),
                    value: value.clone(),
                },
                TraceEvent::Fails { why, advice } => {
                    ExaminationEvent::Fails { why: why.clone(), next: advice.to_string() }
                }
            },
        };
        let why = examined.outcome.as_ref().err().map(|why| why.message.clone());
        let steps = examined.lines.iter().map(step).collect();
        ExaminationReport { steps, healthy: why.is_none(), why }
    }
}

/// `read` and `write`
#[derive(Debug, Serialize, JsonSchema)]
pub struct MovedReport {
    /// From where.
    pub offset_bytes: u64,
    /// How many bytes.
    pub moved_bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

/// `copy`
#[derive(Debug, Serialize, JsonSchema)]
pub struct CopyReport {
    /// Size of the source.
    pub size_bytes: u64,
    /// What was written.
    pub written_bytes: u64,
    /// What was left or made zero.
    pub zeroed_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Both were compared, and are alike.
    pub verified: bool,
    /// The destination is a file that was created.
    pub new_file: bool,
}

/// `verify`: both are alike; a difference is a failure.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ComparisonReport {
    /// How many bytes were compared.
    pub size_bytes: u64,
    /// They are.
    pub alike: bool,
}

/// `attach --list`: an attachment.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AttachedReport {
    /// The process that holds it.
    pub pid: u32,
    /// The holder is a daemon.
    pub daemon: bool,
    /// The volume, without what proves who we are.
    pub url: String,
    /// `ublk`, `fuse`, `nbd` or `vhost-user`.
    pub via: String,
    /// What users open: device, file, socket.
    pub ways: Vec<String>,
    /// The volume's identity.
    pub uuid: Option<String>,
    /// How long I/O waits if the holder is killed.
    pub timeout_ms: u64,
    /// `serving`, `waiting`, `failing`, `stranded` or `unknown`.
    pub state: &'static str,
    /// How long I/O still waits to be recovered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// `detach`
#[derive(Debug, Serialize, JsonSchema)]
pub struct DetachedReport {
    /// The volume, without what proves who we are.
    pub url: String,
    /// How it was attached.
    pub via: String,
    /// Devices, files and sockets that were its.
    pub ways: Vec<String>,
    /// The volume's identity.
    pub uuid: Option<String>,
}

/// `discover --watch`: one line per target that comes or goes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DiscoveryEventReport {
    /// `added` or `removed`.
    pub event: &'static str,
    /// What to give to other verbs.
    pub url: String,
}

/// `node show`: a volume that is kept to be attached.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// The volume; several URLs joined by commas are its paths.
    pub url: String,
    /// `connect-all` attaches it.
    pub autostart: bool,
    /// `ublk`, `fuse`, `nbd` or `vhost-user`; `None`: what this machine can.
    pub via: Option<String>,
    /// Directory, socket or device to create; `None`: one of the daemon's choice.
    pub at: Option<String>,
    /// How long I/O waits if the holder is killed.
    pub timeout_ms: u64,
}

/// `node list`: a node, or why it cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ListedNodeReport {
    /// As its file says it.
    Known(NodeReport),
    /// It could not be read.
    Unknown {
        /// Its name.
        name: String,
        /// Why.
        why: String,
    },
}

/// `connect-all`: what became of a node.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ConnectedNodeReport {
    /// Its name.
    pub name: String,
    /// `attached`, `already-attached` or `failed`.
    pub state: &'static str,
    /// What users open: device, file, socket.
    pub ways: Vec<String>,
    /// Why it failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// `scsi`: what the target answered.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ScsiAnswerReport {
    /// Status code of SAM; 0: GOOD.
    pub status: u8,
    /// Sense data, hexadecimal.
    pub sense: String,
    /// Data that was moved.
    pub transferred_bytes: u32,
    /// How much less the target moved than was asked for.
    pub underflow_bytes: u32,
    /// How much more it would have moved.
    pub overflow_bytes: u32,
    /// The answer in words.
    pub meaning: String,
    /// What was received, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// `nvme`: what the controller answered.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NvmeAnswerReport {
    /// Status field of the completion, without its phase bit; 0: success.
    pub status: u16,
    /// Dword 0 of the completion.
    pub dword0: u32,
    /// Dword 1 of the completion.
    pub dword1: u32,
    /// Data that was moved.
    pub transferred_bytes: u32,
    /// The answer in words.
    pub meaning: String,
    /// What was received, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// What was answered to a command that was given byte by byte.
#[derive(Debug)]
pub enum RawAnswerReport {
    /// `scsi`
    Scsi(ScsiAnswerReport),
    /// `nvme`
    Nvme(NvmeAnswerReport),
}

impl RawAnswerReport {
    /// Of an answer and what came with it.
    pub fn of(answer: &RawAnswer, data: Option<&[u8]>) -> Self {
        let (meaning, data) = (answer.to_string(), data.map(hex));
        match answer {
            RawAnswer::Scsi { status, sense, transferred, underflow, overflow } => {
                RawAnswerReport::Scsi(ScsiAnswerReport {
                    status: *status,
                    sense: hex(sense),
                    transferred_bytes: *transferred,
                    underflow_bytes: *underflow,
                    overflow_bytes: *overflow,
                    meaning,
                    data,
                })
            }
            RawAnswer::Nvme { status, result, transferred } => RawAnswerReport::Nvme(NvmeAnswerReport {
                status: *status,
                dword0: *result as u32,
                dword1: (result >> 32) as u32,
                transferred_bytes: *transferred,
                meaning,
                data,
            }),
        }
    }
}

fn hex(data: &[u8]) -> String {
    data.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
