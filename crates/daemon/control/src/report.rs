//! The daemon's reports: the JSON of `--json` and the rows of the tables.
//!
//! Field names are a contract: they contain the unit. No field is a secret.

mod access;
mod gateway;
mod latency;
pub mod line;
mod observation;
pub mod plan;
mod verb;

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use access::{
    HostBlockReport, HostRateLimitReport, HostReport, NamespaceExportReport, NamespaceReport,
    RateLimitReport, RegistrantReport, ReservationReport, SubsystemReport, VolumePathReport,
    VolumeStateReport,
};
pub use gateway::{GatewayCounters, GatewayGroupReport, GatewayReport, GatewayVolumeReport};
pub use latency::{BucketReport, LatencyReport, StageReport};
pub use observation::{HostRefusalReport, ObservationReport, ProblemReport, VolumeErrorReport};
pub use verb::{BackupReport, FailureFacts, FailureReport, RestoreReport, StoppingReport};

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// `ram`, `file`, `device`, `null` or `remote`.
    pub kind: String,
    /// The file or device, or the URLs of the volume on another machine, without what proves who we are.
    pub path: Option<String>,
    /// Size; `null` where the volume has failed, as with all that is not known then.
    pub size_bytes: Option<u64>,
    /// Logical block.
    pub block_bytes: Option<u32>,
    /// Physical block.
    pub physical_bytes: Option<u32>,
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
    pub uuid: Option<Uuid>,
    /// Created at run time, so kept in the state directory.
    pub created: bool,
    /// Why it is not served; nothing if it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// Where it is exported over iSCSI.
    pub exports: Vec<ExportReport>,
    /// Where it is exported over NVMe/TCP.
    pub namespaces: Vec<NamespaceExportReport>,
    /// What is true of it now, where one volume is shown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub standing: Option<VolumeStateReport>,
    /// How long its commands took since the daemon serves it, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<Vec<LatencyReport>>,
    /// What was done as asked, but is probably a mistake: after `volume create` and `volume resize`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<String>,
}

/// A snapshot of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotReport {
    /// The volume.
    pub volume: String,
    /// The file that has what it had.
    pub file: String,
    /// The size of the volume then.
    pub size_bytes: u64,
}

/// A volume that is not served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedVolumeReport {
    /// Its name.
    pub volume: String,
    /// Why.
    pub why: String,
}

/// A logical unit of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportReport {
    /// The target.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
    /// Write-protected through this logical unit.
    pub read_only: bool,
}

/// A target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// It was stopped: nobody finds it until it is started again.
    #[serde(default)]
    pub stopped: bool,
}

/// What was done with a target that was to be started or stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetSwitchReport {
    /// Its name.
    pub target: String,
    /// `started`, `reloaded`, `running`, `stopped` or `stopped before`.
    pub done: String,
}

/// What a target is set to, in the words of `chiscsi.conf`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetSettingsReport {
    /// Its name.
    pub target: String,
    /// It is not stopped.
    pub is_active: bool,
    /// Its settings; a key may stand several times. No secrets.
    pub settings: Vec<TargetSetting>,
}

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TargetSetting {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
}

/// A portal of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortalReport {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub tag: u16,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LunReport {
    /// Its number.
    pub lun: u16,
    /// The volume.
    pub volume: String,
    /// Write-protected.
    pub read_only: bool,
}

/// A session: of an iSCSI initiator with a target, or a controller of an NVMe host in a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionReport {
    /// Its number in this daemon: the target session identifying handle, or 65536 and the controller
    /// identifier.
    pub id: u64,
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// The initiator's name, or the host's.
    pub initiator: String,
    /// The configured host that it is; `None`: none is configured, or the target is open to all.
    pub host: Option<String>,
    /// The target or subsystem; `None` for discovery.
    pub target: Option<String>,
    /// Initiator session identifier, 12 hexadecimal digits; `None` over NVMe.
    pub isid: Option<String>,
    /// Host identifier; `None` over iSCSI.
    pub hostid: Option<String>,
    /// The shard that carries it; the admin queue's.
    pub shard: usize,
    /// Its connections: queues, over NVMe.
    pub connections: usize,
    /// Commands in flight.
    pub commands: u64,
    /// The CHAP name that was proved; `None`: nothing was asked.
    pub user: Option<String>,
    /// Read commands since login.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Write commands since login.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// How long its commands took, in observations.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<Vec<LatencyReport>>,
}

/// A connection that has logged in, or is connected as a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionReport {
    /// Its number in this daemon.
    pub id: u64,
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// Its session.
    pub session: u64,
    /// Its connection identifier within the session, chosen by the initiator; its queue identifier, 0
    /// for the admin queue.
    pub cid: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The configured host that it is, as for the session.
    pub host: Option<String>,
    /// The CHAP name that was proved; `None`: nothing was asked.
    pub user: Option<String>,
    /// The target; `None` for discovery.
    pub target: Option<String>,
    /// The initiator's address.
    pub peer: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
    /// The shard that carries it.
    pub shard: usize,
    /// How its core was chosen, and by which rule of `[[placement]]`.
    pub placement: String,
    /// The algorithm by which the initiator proved itself: of CHAP `sha3-256`, `sha256`, `sha1` or `md5`;
    /// of DH-HMAC-CHAP `sha512`, `sha384` or `sha256`.
    pub algorithm: Option<String>,
    /// The Diffie-Hellman group by which an NVMe host proved itself: `ffdhe3072` and the like, or `null`.
    pub dh_group: Option<String>,
    /// An NVMe host has still to prove itself.
    pub unproven: bool,
    /// How it is encrypted; `None`: it is not.
    #[serde(default)]
    pub tls: Option<TlsReport>,
    /// Bytes that its socket has received since it came to its shard, headers among them.
    pub received_bytes: u64,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// What the login negotiated; `None` over NVMe.
    pub negotiated: Option<NegotiatedReport>,
    /// What the queue was granted, and what it did; `None` over iSCSI.
    pub queue: Option<QueueReport>,
    /// How long its commands took, where that was asked for: those of its queue, or of its iSCSI session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub latency: Option<Vec<LatencyReport>>,
}

/// The TLS of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TlsReport {
    /// The version: `1.3`.
    pub version: String,
    /// The cipher suite, for example `TLS_AES_128_GCM_SHA256`.
    pub suite: String,
    /// The identity of its pre-shared key, which names host and subsystem (NVMe/TCP Transport 1.1 §3.6.1.3).
    pub identity: String,
}

/// An NVMe queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueReport {
    /// Its entries.
    pub entries: u16,
    /// The host counts free entries by SQHD.
    pub flow_control: bool,
    /// Most data that rides in a command's capsule.
    pub in_capsule_bytes: u32,
    /// Commands in flight.
    pub commands: u64,
    /// Read commands since it was connected.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Write commands since it was connected.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
}

/// What a login has settled (RFC 7143 §13). Lengths are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NegotiatedReport {
    /// Largest data segment that the initiator takes.
    #[serde(rename = "max_send_bytes")]
    pub max_send: u32,
    /// Largest data segment that we take.
    #[serde(rename = "max_receive_bytes")]
    pub max_receive: u32,
    /// Most data per sequence.
    #[serde(rename = "max_burst_bytes")]
    pub max_burst: u32,
    /// Most unsolicited data per command.
    #[serde(rename = "first_burst_bytes")]
    pub first_burst: u32,
    /// Unsolicited data that does not ride on the command is forbidden.
    pub initial_r2t: bool,
    /// Data may ride on the command.
    pub immediate_data: bool,
    /// R2Ts per command at one time.
    pub max_outstanding_r2t: u16,
    /// Connections per session.
    pub max_connections: u16,
    /// Commands that the session may have outstanding now.
    pub commands: u32,
}

/// A shard: one core's part of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardReport {
    /// Its number.
    pub id: usize,
    /// The core that it is bound to; `None`: none.
    pub core: Option<usize>,
    /// `uring` or `epoll`.
    pub io: String,
    /// Sessions that it carries.
    pub sessions: usize,
    /// Connections of these sessions.
    pub connections: usize,
    /// Connections in login.
    pub logins: usize,
    /// Payload memory, in all.
    pub memory_bytes: u64,
    /// Payload memory that holds something.
    pub memory_lent_bytes: u64,
    /// Payload memory set aside for what initiators may send unasked.
    pub memory_reserved_bytes: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// Times that it slept in the kernel.
    pub sleeps: u64,
    /// Times that polling before sleeping found work.
    pub polls_useful: u64,
    /// Times that it found none.
    pub polls_idle: u64,
    /// Nanoseconds spent polling, whether work came or not.
    #[serde(default)]
    pub poll_ns: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Receives that found no memory and had to wait for some.
    #[serde(default)]
    pub receives_starved: u64,
    /// Connections reset for want of room, or of descriptors.
    #[serde(default)]
    pub connections_refused: u64,
    /// Times that accepting found no descriptor or memory left.
    #[serde(default)]
    pub accepts_exhausted: u64,
    /// Disk operations ended.
    #[serde(default)]
    pub disk_operations: u64,
}

/// A remote volume that the daemon holds as a local block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AttachmentReport {
    /// The volume, without secrets.
    pub url: String,
    /// `ublk`, `fuse`, `nbd` or `vhost-user`.
    pub via: String,
    /// The device, the file, the socket.
    pub ways: Vec<String>,
    /// The same with what each is, and remarks, as the command line prints them.
    pub lines: Vec<String>,
    /// How long I/O waits if the daemon is killed, in milliseconds.
    pub timeout_ms: u64,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListenerReport {
    /// What is spoken there: `iscsi`, `nvme` or `nvme-discovery`.
    pub protocol: String,
    /// Where, with the port that the system chose.
    pub address: SocketAddr,
    /// Its portal group tag.
    pub tag: u16,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has been serving.
    pub uptime_seconds: u64,
    /// When it began, in seconds since 1970.
    #[serde(default)]
    pub started_unix_seconds: u64,
    /// Its node name.
    pub node: Option<String>,
    /// `uring` or `epoll`.
    pub io: String,
    /// Where it listens.
    pub listeners: Vec<ListenerReport>,
    /// How many volumes are served.
    pub volumes: usize,
    /// What is not as it should be; empty: all is well.
    #[serde(default)]
    pub problems: Vec<ProblemReport>,
    /// Volumes that should be and are not.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed: Vec<FailedVolumeReport>,
    /// How many targets.
    pub targets: usize,
    /// How many subsystems.
    pub subsystems: usize,
    /// How many sessions.
    pub sessions: usize,
    /// How many connections.
    pub connections: usize,
    /// How many remote volumes it holds as local block devices.
    #[serde(default)]
    pub attachments: usize,
    /// How many shards.
    pub shards: usize,
    /// Its state directory.
    pub state: String,
    /// What it has restricted itself to.
    #[serde(default)]
    pub sandbox: SandboxReport,
    /// The gateways with which it serves images of Ceph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GatewayGroupReport>,
}

/// A daemon's own sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SandboxReport {
    /// The version of the kernel's landlock, if files are restricted.
    pub landlock_abi: Option<u32>,
    /// TCP ports are restricted.
    pub ports: bool,
    /// System calls are restricted.
    pub seccomp: bool,
    /// Why something is not.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub lacks: Vec<String>,
}

/// What went to another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpgradeReport {
    /// The process that serves now.
    pub pid: u32,
    /// iSCSI sessions that it goes on with.
    pub sessions: usize,
    /// NVMe queues that it goes on with.
    pub queues: usize,
    /// Connections that were closed.
    pub left: Vec<LeftConnectionReport>,
    /// For how long nothing was served, in milliseconds.
    pub pause_ms: u64,
}

/// A connection that could not move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftConnectionReport {
    /// Where it came from.
    pub peer: std::net::SocketAddr,
    /// The initiator or host, if it had said who it is.
    pub initiator: Option<String>,
    /// The target or subsystem.
    pub target: Option<String>,
    /// Why it could not.
    pub why: String,
}
