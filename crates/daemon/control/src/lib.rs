//! The control socket: one JSON value per line, request and reply, over a Unix socket that only the daemon's
//! user can open.
//!
//! Each request carries the version of the protocol. A line has a maximum length, so memory is bounded on
//! both sides. The daemon answers requests of one connection in order.
//!
//! Invariant: only a daemon's own user, or root, may send it requests, and a client trusts only a daemon of
//! its own user or root.

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

pub mod accept_gate;
mod audit;
pub mod client;
pub mod rates;
pub mod readers;
pub mod report;
pub mod secret_bytes;
pub mod secret_url;
pub mod server;

use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use audit::RequestClass;

use crate::{
    report::{
        AttachmentReport, ConnectionReport, GatewayGroupReport, HostBlockReport, HostReport,
        ObservationReport, ReservationReport, SessionReport, ShardReport, SnapshotReport, StatusReport,
        SubsystemReport, TargetReport, TargetSettingsReport, TargetSwitchReport, UpgradeReport,
        VolumePathReport, VolumeReport, line::LineReport, plan::PlanReport,
    },
    secret_bytes::SecretBytes,
    secret_url::SecretUrl,
};

/// Version of the protocol; a change that old clients would misread raises it.
pub const PROTOCOL_VERSION: u32 = 1;
/// Longest request, bytes with its line end.
pub const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Longest reply, bytes with its line end: 65,535 sessions of half a KiB each.
pub const REPLY_BYTES_MAX: u64 = 64 << 20;

/// What a client sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestEnvelope {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// What it wants.
    #[serde(flatten)]
    pub request: Request,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", content = "arguments", rename_all = "kebab-case")]
pub enum Request {
    /// All volumes.
    VolumeList,
    /// One volume.
    VolumeShow {
        /// Its name.
        name: String,
        /// With how long its commands took.
        #[serde(default)]
        latency: bool,
    },
    /// Serve a new volume.
    VolumeCreate {
        /// Its name.
        name: String,
        /// What it is, as on the command line. Relative paths have no meaning here.
        spec: String,
    },
    /// Stop serving a volume.
    VolumeDelete {
        /// Its name.
        name: String,
        /// Also if it is in use.
        force: bool,
    },
    /// Serve a volume that could not be served before.
    VolumeRetry {
        /// Its name.
        name: String,
    },
    /// Change a volume's size.
    VolumeResize {
        /// Its name.
        name: String,
        /// The new size.
        size_bytes: u64,
        /// Also if it gets smaller.
        shrink: bool,
    },
    /// Make a file that has what a volume has now, and shares its blocks.
    VolumeSnapshot {
        /// Its name.
        name: String,
        /// The file, which must not exist. Relative paths have no meaning here.
        file: PathBuf,
    },
    /// Make such a file, and serve it as a volume of its own.
    VolumeClone {
        /// The name of the volume that is cloned.
        name: String,
        /// The name of the new volume.
        clone: String,
        /// As in [`Request::VolumeSnapshot`].
        file: PathBuf,
    },
    /// Forbid writes to a volume, or allow them.
    VolumeProtect {
        /// Its name.
        name: String,
        /// Whether to forbid.
        on: bool,
    },
    /// Change the limits of a volume. What is `None` stays; a limit of 0 is none.
    VolumeLimit {
        /// Its name.
        name: String,
        /// Operations per second.
        iops_limit: Option<u64>,
        /// Operations at once; if a limit comes without it, a tenth of a second's.
        iops_burst: Option<u64>,
        /// Bytes per second.
        bandwidth_limit: Option<u64>,
        /// Bytes at once, likewise.
        bandwidth_burst: Option<u64>,
    },
    /// All subsystems.
    SubsystemList,
    /// One subsystem.
    SubsystemShow {
        /// Its name, or the end of it.
        name: String,
    },
    /// All configured hosts.
    HostList,
    /// One of them.
    HostShow {
        /// Its name.
        name: String,
    },
    /// Refuse a host, and end its sessions.
    HostBlock {
        /// One of its names: iSCSI name, NQN, or that of the configuration.
        name: String,
    },
    /// Let a blocked host in again.
    HostUnblock {
        /// As in [`Request::HostBlock`].
        name: String,
    },
    /// The gateways of the group.
    GatewayList,
    /// Hand the group's volumes to other gateways, and take none.
    GatewayDrain {
        /// No longer.
        off: bool,
    },
    /// Bar a gateway from the cluster, and take its volumes.
    GatewayFence {
        /// Its name, or the number of one run of it.
        gateway: String,
    },
    /// The reservations of all volumes.
    ReservationList,
    /// The reservation of one volume.
    ReservationShow {
        /// The volume.
        name: String,
    },
    /// The paths of one volume, or of all.
    PathList {
        /// The volume.
        name: Option<String>,
    },
    /// Set the state of paths.
    PathSet {
        /// The volume.
        name: String,
        /// By this port only.
        port: Option<u16>,
        /// By the ports of this portal group only.
        group: Option<u16>,
        /// The state; `None`: as it is.
        #[serde(default)]
        state: Option<String>,
        /// Whether they are preferred; `None`: as it is.
        #[serde(default)]
        preferred: Option<bool>,
    },
    /// All targets.
    TargetList,
    /// One target.
    TargetShow {
        /// Its name, or the end of it.
        name: String,
    },
    /// Start targets; where they come from a file, read it again.
    TargetStart {
        /// Which; an empty list: all; nothing: those that run.
        names: Option<Vec<String>>,
    },
    /// Stop targets.
    TargetStop {
        /// Which; an empty list: all.
        names: Vec<String>,
    },
    /// What targets are set to.
    TargetSettings {
        /// Which; an empty list: all.
        names: Vec<String>,
    },
    /// What became of the lines of foreign files that the daemon was started with.
    FileLines,
    /// All sessions.
    SessionList,
    /// End an iSCSI session.
    SessionEnd {
        /// Its number.
        id: u64,
    },
    /// End sessions and controllers at once, and wait until nothing of them is in flight.
    SessionKill(SessionSelector),
    /// All connections.
    ConnectionList,
    /// One connection.
    ConnectionShow {
        /// Its number.
        id: u64,
        /// With how long its commands took.
        #[serde(default)]
        latency: bool,
    },
    /// All shards.
    ShardList,
    /// All that is seen of the daemon, from one look at its shards.
    Observe,
    /// Make a remote volume a local block device, and hold it.
    Attach(AttachRequest),
    /// Take away one that the daemon holds.
    Detach {
        /// One of its ways, as it was answered.
        way: String,
        /// Without waiting for the device's users.
        now: bool,
    },
    /// What a configuration would change, and whom it would disturb.
    Plan {
        /// Its file, by a path that holds in any directory; nothing: that of `serve`.
        file: Option<PathBuf>,
    },
    /// Serve by a configuration from now on, all of it or nothing.
    Apply {
        /// As in [`Request::Plan`].
        file: Option<PathBuf>,
    },
    /// Serve by the configuration before the last apply.
    Rollback,
    /// All records of the state directory and the configuration, as they are at one moment.
    Backup,
    /// Let another process serve: this binary, or a new one.
    Upgrade {
        /// The binary; `None`: that of the daemon, as it is on disk now.
        binary: Option<PathBuf>,
        /// How long commands may take that are in work.
        within_ms: u64,
    },
    /// The daemon itself.
    Status,
    /// End the daemon.
    Stop {
        /// Without waiting for what is in flight.
        now: bool,
    },
}

/// Which sessions, iSCSI sessions and NVMe controllers alike, are meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionSelector {
    /// The one of this number.
    Id(u64),
    /// Those of an iSCSI initiator name or Host NQN.
    Initiator(String),
    /// Those of a configured host, by its name.
    Host(String),
}

/// A remote volume that the daemon shall hold as a local block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The volume; several URLs of it, joined by commas, are its paths. Files that it names are the daemon's.
    pub url: SecretUrl,
    /// How; the best way unless given.
    pub via: Option<String>,
    /// The directory, socket or device. Relative paths have no meaning here.
    pub at: Option<PathBuf>,
    /// Go on with what a killed holder left.
    pub recover: bool,
    /// Also with a device without a note.
    #[serde(default)]
    pub force: bool,
    /// How long I/O waits without a holder, in milliseconds.
    pub timeout_ms: u64,
}

/// What the daemon sends back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyEnvelope {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// How it went.
    #[serde(flatten)]
    pub outcome: ReplyOutcome,
}

/// How a request went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyOutcome {
    /// Done.
    Ok(Box<Answer>),
    /// Not done.
    Error(RequestRefusal),
}

/// An answer, by the verb that asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// All volumes.
    Volumes(Vec<VolumeReport>),
    /// One volume: shown, created, retried or resized.
    Volume(VolumeReport),
    /// A volume is no longer served.
    Deleted(VolumeReport),
    /// A snapshot of a volume was taken.
    Snapshot(SnapshotReport),
    /// All subsystems.
    Subsystems(Vec<SubsystemReport>),
    /// One subsystem.
    Subsystem(SubsystemReport),
    /// All configured hosts.
    Hosts(Vec<HostReport>),
    /// One of them.
    Host(HostReport),
    /// A host was blocked, or let in again.
    HostBlocked(HostBlockReport),
    /// The gateways of the group.
    Gateways(Box<GatewayGroupReport>),
    /// All reservations.
    Reservations(Vec<ReservationReport>),
    /// One of them.
    Reservation(ReservationReport),
    /// Paths, as they are now.
    Paths(Vec<VolumePathReport>),
    /// All targets.
    Targets(Vec<TargetReport>),
    /// One target.
    Target(TargetReport),
    /// Targets that were to be started or stopped.
    Switched(Vec<TargetSwitchReport>),
    /// What targets are set to.
    Settings(Vec<TargetSettingsReport>),
    /// What became of lines.
    Lines(Vec<LineReport>),
    /// A session is being ended.
    SessionEnded {
        /// Its number.
        id: u64,
    },
    /// Sessions that have ended, as they were before.
    SessionsKilled(Vec<SessionReport>),
    /// All sessions.
    Sessions(Vec<SessionReport>),
    /// All connections.
    Connections(Vec<ConnectionReport>),
    /// One connection.
    Connection(ConnectionReport),
    /// All shards.
    Shards(Vec<ShardReport>),
    /// All that is seen.
    Observation(Box<ObservationReport>),
    /// A remote volume is attached.
    Attached(AttachmentReport),
    /// One is no longer.
    Detached {
        /// As it was named.
        way: String,
    },
    /// What a configuration changes, to be applied or applied.
    Plan(Box<PlanReport>),
    /// A backup, to be written to a file.
    Backup(SecretBytes),
    /// The daemon.
    Status(StatusReport),
    /// Another process serves.
    Upgraded(UpgradeReport),
    /// The daemon is stopping; its process number, so that a script can wait for its end.
    Stopping {
        /// The process.
        pid: u32,
    },
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRefusal {
    /// For programs.
    pub code: RefusalCode,
    /// For people.
    pub message: String,
}

/// Kinds of refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The request makes no sense.
    Invalid,
    /// What it names does not exist.
    NotFound,
    /// What it names exists already, or is in use.
    Conflict,
    /// What was to be attached there is attached already.
    Attached,
    /// The far end of what was to be attached did not accept a connection in time.
    Unreachable,
    /// It, or the daemon to it, did not prove who it is.
    Unproven,
    /// It was tried and failed.
    Failed,
    /// The shards did not answer in time.
    TimedOut,
    /// Too many clients, or the daemon is stopping.
    Unavailable,
    /// Another version of the protocol.
    Version,
}

impl RequestRefusal {
    /// A refusal.
    pub fn new(code: RefusalCode, message: impl std::fmt::Display) -> Self {
        RequestRefusal { code, message: message.to_string() }
    }
}

impl Request {
    /// Whether it changes nothing, reads no file that its sender names, and is answered without what lines of foreign
    /// files say: members of the group of readers may send it.
    pub fn is_read_only(&self) -> bool {
        matches!(RequestClass::of(self), RequestClass::Look)
    }
}

/// One line of at most `bytes_max` bytes; `None` at the end of the stream.
fn read_bounded_line(from: &mut impl BufRead, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    from.take(bytes_max).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() as u64 + 1 >= bytes_max => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"))
        }
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests;
