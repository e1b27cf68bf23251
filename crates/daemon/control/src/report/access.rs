//! Reports on volumes over both protocols: reservations, paths, protection, access.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PortalReport, SessionReport, VolumeErrorReport};

/// What is true of a volume now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeStateReport {
    /// The volume.
    pub volume: String,
    /// Its size now, bytes.
    pub size_bytes: u64,
    /// What it stands on takes no writes now: the machine that has it says so.
    pub backing_read_only: bool,
    /// The operator forbids writes.
    pub write_protected: bool,
    /// A host has forbidden writes (SCSI's software write protection).
    pub write_protected_by_host: bool,
    /// Why nothing can be read or written, if so.
    pub not_ready: Option<String>,
    /// A change could not be fenced in time: nothing is let through until what is stuck has ended.
    pub closed: bool,
    /// Its paths: one per port.
    pub paths: Vec<VolumePathReport>,
    /// Its reservation.
    pub reservation: ReservationReport,
    /// Read operations since the volume was opened, over both protocols.
    pub reads: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Operations that have not ended.
    #[serde(default)]
    pub operations_in_flight: u64,
    /// Bytes that it takes of its backing; `null` where that is not known.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Operations that failed, by cause; causes that never occurred are left out.
    #[serde(default)]
    pub errors: Vec<VolumeErrorReport>,
    /// How much may be done with it per second, and what waited for that; `None`: it is not limited.
    #[serde(default)]
    pub limits: Option<RateLimitReport>,
    /// A sync has failed, and the operator has not taken note of it.
    #[serde(default)]
    pub sync_failed: bool,
    /// An operation has failed in the last minutes because there was no space.
    #[serde(default)]
    pub no_space: bool,
}

/// Limits of operations and bytes per second of a volume or host, and what they have delayed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RateLimitReport {
    /// Operations per second.
    pub iops_limit: Option<u64>,
    /// Operations that may begin at once.
    pub iops_burst: Option<u64>,
    /// Bytes per second.
    pub bandwidth_limit_bytes: Option<u64>,
    /// Bytes that may be moved at once.
    pub bandwidth_burst_bytes: Option<u64>,
    /// Operations that have waited since the limits were set.
    pub throttled: u64,
    /// How long they waited, together.
    pub throttled_ns: u64,
}

/// The limits of a configured host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostRateLimitReport {
    /// The host.
    pub host: String,
    /// Its limits.
    #[serde(flatten)]
    pub limits: RateLimitReport,
}

/// A path from one of our ports to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumePathReport {
    /// The volume.
    pub volume: String,
    /// The port: relative target port (SCSI) or PORTID (NVMe).
    pub port: u16,
    /// What is spoken there.
    pub protocol: String,
    /// Its portal group.
    pub group: u16,
    /// iSCSI: the target whose port it is.
    #[serde(default)]
    pub target: Option<String>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// `optimized`, `non-optimized`, `standby`, `inaccessible`, `persistent-loss` or `transition`: SCSI hosts see
    /// it as ALUA, NVMe hosts as ANA, which shows `standby` as inaccessible.
    pub state: String,
    /// Whether the operator prefers it: SCSI hosts see it (PREF).
    #[serde(default)]
    pub preferred: bool,
}

/// The reservation of a volume: one table for both protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationReport {
    /// The volume.
    pub volume: String,
    /// What is held: `write-exclusive`, `exclusive-access`, each also with `-registrants-only` or
    /// `-all-registrants`, or `scsi-2`; `None`: nothing.
    pub kind: Option<String>,
    /// Who holds it; `None`: nobody, or all registrants.
    pub holder: Option<String>,
    /// PRGENERATION and GEN.
    pub generation: u32,
    /// Whether it survives a restart (APTPL and PTPL).
    pub persists: bool,
    /// Who is registered.
    pub registrants: Vec<RegistrantReport>,
}

/// A registrant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistrantReport {
    /// `iscsi` or `nvme`.
    pub protocol: String,
    /// The initiator's name, or the host's NQN, or its identifier if no NQN is known.
    pub name: String,
    /// Initiator session identifier, 12 hexadecimal digits; `None` over NVMe.
    pub isid: Option<String>,
    /// The target port that the initiator registered by; `None` over NVMe: a host is the same on all.
    pub port: Option<u16>,
    /// The host identifier; `None` over iSCSI.
    pub hostid: Option<String>,
    /// The configured host that it is, if one has this name.
    pub host: Option<String>,
    /// Its key, 16 hexadecimal digits behind `0x`.
    pub key: String,
    /// It holds the reservation, alone or with all others.
    pub holder: bool,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubsystemReport {
    /// Its name.
    pub nqn: String,
    /// Addresses through which it is reached, with their portal group tags.
    pub portals: Vec<PortalReport>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceReport>,
    /// Every host may reach it.
    pub open: bool,
    /// Hosts with a grant for it.
    pub hosts: Vec<String>,
    /// Its serial number, if one is configured.
    pub serial: Option<String>,
    /// Its model number.
    pub model: String,
    /// Controllers now.
    pub controllers: usize,
}

/// A namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceReport {
    /// Its number.
    pub nsid: u32,
    /// The volume.
    pub volume: String,
    /// Write-protected.
    pub read_only: bool,
    /// Its ANA group.
    pub ana_group: u32,
}

/// A namespace of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceExportReport {
    /// The subsystem.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// Write-protected through this namespace.
    pub read_only: bool,
    /// Its ANA group.
    pub ana_group: u32,
}

/// A configured host: one machine by its names in both protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// Its iSCSI names; none and no NQN: any.
    pub iqns: Vec<String>,
    /// Its NVMe names.
    pub nqns: Vec<String>,
    /// Its NVMe Host Identifier.
    pub hostid: Option<String>,
    /// Networks that it comes from; none: any.
    pub sources: Vec<String>,
    /// It may reach one volume over both protocols.
    pub both: bool,
    /// Its CHAP names; none: those of everyone.
    pub chap_users: Vec<String>,
    /// It has a DH-HMAC-CHAP secret of its own.
    pub dhchap: bool,
    /// Controllers have a DH-HMAC-CHAP secret of their own for it.
    #[serde(default)]
    pub dhchap_controller: bool,
    /// Targets that it may reach.
    pub targets: Vec<String>,
    /// Subsystems that it may reach.
    pub subsystems: Vec<String>,
    /// Its sessions and controllers now.
    pub sessions: usize,
    /// How much it may do per second, and what waited for that; `None`: it is not limited.
    #[serde(default)]
    pub limits: Option<RateLimitReport>,
    /// It is blocked by at least one of its names.
    #[serde(default)]
    pub blocked: bool,
    /// Those of its names that are blocked.
    #[serde(default)]
    pub blocked_names: Vec<String>,
    /// It is in no configuration: its name is that by which it was blocked.
    #[serde(default)]
    pub unconfigured: bool,
}

/// A host that was blocked, or is let in again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostBlockReport {
    /// The names by which it connects.
    pub names: Vec<String>,
    /// Whether it is blocked now.
    pub blocked: bool,
    /// Its sessions and controllers that have ended, as they were before.
    pub sessions: Vec<SessionReport>,
}
