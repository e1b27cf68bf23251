//! What the daemon says about itself: the JSON of `--json` and the rows of the tables.
//!
//! Field names are a contract: units are in the name, nothing here is a secret.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// `ram`, `file`, `device` or `null`.
    pub kind: String,
    /// The file or device.
    pub path: Option<String>,
    /// Size.
    pub size_bytes: u64,
    /// Logical block.
    pub block_bytes: u32,
    /// Physical block.
    pub physical_bytes: u32,
    /// Write-protected.
    pub read_only: bool,
    /// A volatile write cache is reported.
    pub write_cache: bool,
    /// The page cache is passed by.
    pub direct: bool,
    /// Unmapped blocks are given back.
    pub thin: bool,
    /// A removable medium is reported.
    pub removable: bool,
    /// Its identity.
    pub uuid: Uuid,
    /// Created at run time, so kept in the state directory.
    pub created: bool,
    /// Where it is exported.
    pub exports: Vec<ExportReport>,
}

/// A logical unit of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// The target.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
    /// Write-protected through this logical unit.
    pub read_only: bool,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias.
    pub alias: Option<String>,
    /// Addresses through which it is reached, with their portal group tags.
    pub portals: Vec<PortalReport>,
    /// Its logical units.
    pub luns: Vec<LunReport>,
    /// Every initiator may reach it.
    pub open: bool,
    /// Hosts with a grant for it.
    pub hosts: Vec<String>,
    /// Where initiators are sent instead.
    pub redirect: Option<SocketAddr>,
    /// Sessions now.
    pub sessions: usize,
}

/// A portal of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortalReport {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub tag: u16,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LunReport {
    /// Its number.
    pub lun: u16,
    /// The volume.
    pub volume: String,
    /// Write-protected.
    pub read_only: bool,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number in this daemon.
    pub id: u64,
    /// The initiator's name.
    pub initiator: String,
    /// The target; `None` for discovery.
    pub target: Option<String>,
    /// The host entry that admitted it.
    pub host: Option<String>,
    /// Target session identifying handle.
    pub tsih: u16,
    /// Initiator session identifier, 12 hexadecimal digits.
    pub isid: String,
    /// The core that carries it.
    pub shard: usize,
    /// Its connections.
    pub connections: usize,
    /// Commands in flight.
    pub commands: u64,
    /// How the initiator proved itself: `none`, `chap-md5`, ...
    pub authentication: String,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Its number in this daemon.
    pub id: u64,
    /// Its session; `None` while it logs in.
    pub session: Option<u64>,
    /// The initiator's name, once known.
    pub initiator: Option<String>,
    /// The target, once known.
    pub target: Option<String>,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// The core that carries it.
    pub shard: usize,
    /// `login`, `full-feature`, `logout`, `closing`.
    pub state: String,
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// A shard: one core's part of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Its number.
    pub id: usize,
    /// The core that it is bound to.
    pub core: usize,
    /// `uring` or `epoll`.
    pub io: String,
    /// Connections that it carries.
    pub connections: usize,
    /// Payload memory, in all.
    pub memory_bytes: u64,
    /// Payload memory in use.
    pub memory_used_bytes: u64,
    /// Turns of its loop that found work.
    pub turns_useful: u64,
    /// Turns that found none.
    pub turns_idle: u64,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerReport {
    /// What is spoken there: `iscsi`.
    pub protocol: String,
    /// Where, with the port that the system chose.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub tag: u16,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been serving.
    pub uptime_seconds: u64,
    /// Its node name.
    pub node: Option<String>,
    /// `uring` or `epoll`.
    pub io: String,
    /// Where it listens.
    pub listeners: Vec<ListenerReport>,
    /// How many volumes.
    pub volumes: usize,
    /// How many targets.
    pub targets: usize,
    /// How many sessions.
    pub sessions: usize,
    /// How many connections.
    pub connections: usize,
    /// How many shards.
    pub shards: usize,
    /// Its state directory.
    pub state: String,
}
