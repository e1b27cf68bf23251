//! The NVMe/TCP part of the plan: subsystems, their namespaces, keys of hosts, referrals.

use std::net::SocketAddr;

use nvme::TransferMax;

use crate::name::VolumeName;

/// A subsystem and what it exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Its NVMe qualified name, unique.
    pub nqn: String,
    /// Tags of the portal groups through which it is reached; never empty.
    pub portals: Vec<u16>,
    /// Its namespaces; numbers are unique within the subsystem.
    pub namespaces: Vec<Namespace>,
    /// Every host may reach it, whether a `[[host]]` names it or not.
    pub open: bool,
    /// SN, at most 20 printable ASCII characters; `None`: made of the identity of its first volume.
    pub serial: Option<String>,
    /// MN, at most 40 printable ASCII characters.
    pub model: String,
    /// What it grants.
    pub grants: ControllerGrants,
    /// Whether its hosts use TLS, where a portal offers it.
    pub tls: shard::TlsMode,
}

impl Subsystem {
    /// Whether one of its namespaces is this volume.
    pub fn exports_volume(&self, volume: &str) -> bool {
        self.namespaces.iter().any(|namespace| namespace.volume.as_str() == volume)
    }
}

/// One namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number, 1..=[`NSID_MAX`].
    pub nsid: u32,
    /// The volume behind it.
    pub volume: VolumeName,
    /// Nobody writes through this namespace.
    pub read_only: bool,
    /// Its ANA group, 1..=[`ANA_GROUP_MAX`]. One volume is in one group, in whatever subsystem.
    pub ana_group: u32,
}

/// Highest namespace number: what the list of active namespaces shows at once (NVMe Base §5.17.2.2).
pub const NSID_MAX: u32 = shard::NAMESPACES_MAX;

/// Highest ANA group.
pub const ANA_GROUP_MAX: u32 = shard::ANA_GROUPS_MAX;

/// MN where the configuration says nothing.
pub const MODEL_DEFAULT: &str = "Blockwire";

/// Bounds of what a host is granted by Connect and Set Features (NVMe-oF §3.3, NVMe Base §5.27.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerGrants {
    /// Controllers at a time, 1..=65519.
    pub controllers: u16,
    /// I/O queues of each controller, 1..=128.
    pub queues: u16,
    /// Entries of each I/O queue, 2..=1024.
    pub queue_depth: u16,
    /// Data in a command's capsule, bytes: 0..=16384, a multiple of 16.
    pub in_capsule: u32,
    /// Largest transfer of one command.
    pub max_transfer: TransferMax,
}

impl Default for ControllerGrants {
    fn default() -> Self {
        ControllerGrants {
            controllers: 1024,
            queues: 128,
            queue_depth: 1024,
            in_capsule: 8192,
            max_transfer: TransferMax::MAX,
        }
    }
}

/// Permission to reach a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemGrant {
    /// The subsystem; `None`: every subsystem, also those created later.
    pub subsystem: Option<String>,
    /// The namespaces; `None`: all.
    pub namespaces: Option<Vec<u32>>,
    /// Writes are refused.
    pub read_only: bool,
}

/// Another discovery service, which ours names to hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Where.
    pub address: SocketAddr,
    /// Its name; mostly the well-known one.
    pub nqn: String,
}
