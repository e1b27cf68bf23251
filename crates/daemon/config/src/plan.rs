//! The plan: what the daemon will serve, as plain data that has passed every check.
//!
//! It is made once from the command line, the configuration files and the state directory; the engine uses it
//! unchanged. Invariant: names are unique, every reference resolves, every number is in its range, and no
//! listener beyond loopback admits unauthenticated hosts unless the operator allowed it.

mod auth;
mod group;
mod placement;
mod sandbox;
mod subsystem;

use crate::limit_keys::LimitKeys;
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

pub use multipath::Secret;

pub use self::group::GroupSettings;
pub use auth::{AUTH_METHODS_DEFAULT, Auth, AuthMethod, CHAP_ALGORITHMS_DEFAULT, ChapAlgorithm, Credentials};
pub use placement::{ConnectionPlacement, CoreChoice};
pub use sandbox::SandboxSettings;
pub use subsystem::{
    ANA_GROUP_MAX, ControllerGrants, MODEL_DEFAULT, NSID_MAX, Namespace, Referral, Subsystem, SubsystemGrant,
};

use crate::{name::VolumeName, network::Network, spec::Spec};

/// All that is to be served.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// This machine's name inside default target and subsystem names.
    pub node: Option<VolumeName>,
    /// Where metrics are served over HTTP.
    pub http: Option<SocketAddr>,
    /// The group whose members may look at the daemon by its control socket.
    pub control_group: Option<String>,
    /// Volumes, in the order in which they were named.
    pub volumes: Vec<Volume>,
    /// Listeners.
    pub portals: Vec<Portal>,
    /// What leads to volumes: what the configuration names first, then the default ones.
    pub ways: ExportPlan,
    /// Discovery services that ours names.
    pub referrals: Vec<Referral>,
    /// The IEEE OUI for EUI-64, NGUID and NAA 6h; without it the first two are zero, and the NAA is 3h.
    pub oui: Option<[u8; 3]>,
    /// Who may reach what; the first host that matches and has a grant decides.
    pub hosts: Vec<Host>,
    /// Authentication that is not of one host.
    pub auth: Auth,
    /// Strangers may be let in from beyond this machine (`--allow-anonymous`).
    pub allow_anonymous: bool,
    /// Limits of the whole daemon.
    pub limits: DaemonLimits,
    /// Where connections are served; the first rule that fits decides.
    pub placement: Vec<ConnectionPlacement>,
    /// Cores to run on, ascending; empty: every core that the process may use.
    pub cores: Vec<usize>,
    /// How bytes are moved.
    pub io: IoEngine,
    /// What the daemon may use at most.
    pub sandbox: SandboxSettings,
    /// The gateways with which it serves images of Ceph.
    pub group: Option<GroupSettings>,
}

/// What leads to volumes: everything that is served under a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportPlan {
    /// iSCSI targets.
    pub targets: Vec<Target>,
    /// NVMe subsystems.
    pub subsystems: Vec<Subsystem>,
}

impl ExportPlan {
    /// Adds others.
    pub fn extend(&mut self, more: &ExportPlan) {
        self.targets.extend_from_slice(&more.targets);
        self.subsystems.extend_from_slice(&more.subsystems);
    }

    /// The names of all that leads to a volume.
    pub fn names_exporting(&self, volume: &str) -> Vec<std::sync::Arc<str>> {
        let targets = self.targets.iter().filter(|target| target.exports_volume(volume));
        let subsystems = self.subsystems.iter().filter(|one| one.exports_volume(volume));
        let targets = targets.map(|target| target.name.as_str());
        targets.chain(subsystems.map(|one| one.nqn.as_str())).map(Into::into).collect()
    }

    /// The targets that lead to each volume.
    pub fn targets_by_volume(&self) -> HashMap<&str, Vec<&Target>> {
        let mut found: HashMap<&str, Vec<&Target>> = HashMap::new();
        for target in &self.targets {
            for lun in &target.luns {
                found.entry(lun.volume.as_str()).or_default().push(target);
            }
        }
        found
    }

    /// Whether the target or subsystem of this name leads to a volume.
    pub fn exports_volume(&self, name: &str, volume: &str) -> bool {
        let subsystems = self.subsystems.iter().filter(|subsystem| subsystem.nqn == name);
        self.targets.iter().any(|target| target.name == name && target.exports_volume(volume))
            || subsystems.flat_map(|one| &one.namespaces).any(|one| one.volume.as_str() == volume)
    }

    /// Takes a volume away, and the targets and subsystems that this leaves with nothing.
    pub fn remove_volume(&mut self, volume: &str) {
        self.targets.retain_mut(|target| {
            let led = target.exports_volume(volume);
            target.luns.retain(|lun| lun.volume.as_str() != volume);
            !led || !target.luns.is_empty() || target.redirect.is_some()
        });
        self.subsystems.retain_mut(|subsystem| {
            let before = subsystem.namespaces.len();
            subsystem.namespaces.retain(|namespace| namespace.volume.as_str() != volume);
            subsystem.namespaces.len() == before || !subsystem.namespaces.is_empty()
        });
    }
}

/// Who named a volume, which decides whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeOrigin {
    /// The configuration file or the command line: it says so again at the next start.
    Configured,
    /// `volume create`: the state directory remembers it.
    Created,
}

/// A volume to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name, unique.
    pub name: VolumeName,
    /// What it is.
    pub spec: Spec,
    /// Who named it.
    pub origin: VolumeOrigin,
}

/// The world that moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum IoEngine {
    /// io_uring where the kernel allows it, epoll elsewhere.
    #[default]
    Auto,
    /// io_uring, or fail at start.
    Uring,
    /// epoll.
    Epoll,
}

impl IoEngine {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            IoEngine::Auto => "auto",
            IoEngine::Uring => "uring",
            IoEngine::Epoll => "epoll",
        }
    }
}

/// What is spoken at a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// iSCSI.
    Iscsi,
    /// NVMe/TCP: subsystems, and the discovery service too.
    Nvme,
    /// NVMe/TCP: the discovery service alone.
    NvmeDiscovery,
}

impl Protocol {
    /// Every protocol, by the word that the configuration and the `listening` lines use.
    pub const WORDS: [(&str, Protocol); 3] =
        [("iscsi", Protocol::Iscsi), ("nvme", Protocol::Nvme), ("nvme-discovery", Protocol::NvmeDiscovery)];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi",
            Protocol::Nvme => "nvme",
            Protocol::NvmeDiscovery => "nvme-discovery",
        }
    }
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where it listens; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Portal group tag. iSCSI: RFC 7143 §13.9, connections of one session may spread over portals of
    /// one tag. Path states are set by it over both protocols.
    pub tag: u16,
    /// NVMe/TCP: whether CRC32C over headers, and over data, is granted to hosts that ask.
    pub digests: (bool, bool),
    /// NVMe/TCP: whether hosts use TLS.
    pub tls: shard::TlsMode,
    /// NVMe/TCP: whether its discovery service is announced by mDNS.
    pub announce: bool,
    /// Options of its sockets.
    pub tcp: TcpOptions,
}

/// Socket options of a portal; `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Congestion control algorithm, as in `net.ipv4.tcp_available_congestion_control`.
    pub congestion: Option<String>,
    /// SO_SNDBUF, bytes.
    pub send_buffer: Option<u32>,
    /// SO_RCVBUF, bytes.
    pub receive_buffer: Option<u32>,
    /// Differentiated services code point, 0..=63.
    pub dscp: Option<u8>,
    /// Idle time before TCP keep-alive probes; zero turns them off.
    pub keepalive: Option<Duration>,
}

/// A target and what it exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name, normalized, unique.
    pub name: String,
    /// It is the default one of a volume, and alone leads to it; else the configuration names it.
    pub is_default: bool,
    /// TargetAlias, at most 255 bytes of UTF-8.
    pub alias: Option<String>,
    /// Tags of the portal groups through which it is reached; never empty.
    pub portals: Vec<u16>,
    /// Places in the plan's portals: of those of its groups, it is reached by these only; `None`: by all.
    pub listeners: Option<Vec<usize>>,
    /// Logical units; numbers are unique within the target.
    pub luns: Vec<Lun>,
    /// Every initiator may reach it, whether a host names it or not.
    pub open: bool,
    /// What it agrees to at login.
    pub negotiation: Negotiation,
    /// Commands that one session may have outstanding.
    pub commands: u16,
    /// What INQUIRY shows.
    pub inquiry: InquiryStrings,
    /// Initiators may set path states (SET TARGET PORT GROUPS).
    pub explicit_alua: bool,
    /// Initiators are sent elsewhere at login.
    pub redirect: Option<Redirect>,
    /// Logins by these portal groups are sent elsewhere.
    pub sent_on: Vec<TemporaryRedirect>,
    /// How its initiators prove themselves, where their host has no credentials of its own; `None`: as
    /// [`Auth`] says.
    pub auth: Option<TargetAuth>,
    /// How long one of its initiators may leave a ping unanswered; `None`: [`DaemonLimits::nop_timeout`].
    pub nop_timeout: Option<Duration>,
}

impl Target {
    /// Whether a volume is one of its logical units.
    pub fn exports_volume(&self, volume: &str) -> bool {
        self.luns.iter().any(|lun| lun.volume.as_str() == volume)
    }
}

/// A portal group of a target whose logins are sent to others, for the time being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemporaryRedirect {
    /// Its tag.
    pub group: u16,
    /// Where to, spread over them; never empty.
    pub to: Vec<SocketAddr>,
}

/// How the initiators of one target prove themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAuth {
    /// Their credentials; never empty.
    pub chap: Vec<Credentials>,
    /// AuthMethod values that are allowed; empty: [`Auth::methods`].
    pub methods: Vec<AuthMethod>,
    /// An initiator that does not ask the target to prove itself is refused.
    pub mutual: bool,
}

/// One logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    /// Logical unit number, 0..=16383 (flat space addressing, SAM-5 §4.7.7).
    pub lun: u16,
    /// The volume behind it.
    pub volume: VolumeName,
    /// Nobody writes through this logical unit.
    pub read_only: bool,
}

/// Vendor and product identification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquiryStrings {
    /// At most 8 printable ASCII characters.
    pub vendor: String,
    /// At most 16 printable ASCII characters.
    pub product: String,
}

impl Default for InquiryStrings {
    fn default() -> Self {
        InquiryStrings { vendor: "BLKWIRE".to_owned(), product: "Virtual Disk".to_owned() }
    }
}

/// What to say about a digest (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// Never: only None is accepted.
    Off,
    /// As the initiator prefers.
    #[default]
    Allow,
    /// Always: an initiator that does not offer CRC32C is refused.
    Require,
}

/// Bounds of a target's negotiated keys (RFC 7143 §13); the initiator may ask for less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiation {
    /// HeaderDigest.
    pub header_digest: DigestPolicy,
    /// DataDigest.
    pub data_digest: DigestPolicy,
    /// MaxConnections, 1..=65535.
    pub max_connections: u16,
    /// InitialR2T: whether to insist on R2T before any unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// FirstBurstLength, 512..=2^24 - 1 bytes, at most `max_burst`.
    pub first_burst: u32,
    /// MaxBurstLength, 512..=2^24 - 1 bytes.
    pub max_burst: u32,
    /// The target's MaxRecvDataSegmentLength, 512..=2^24 - 1 bytes.
    pub max_receive: u32,
    /// MaxOutstandingR2T, 1..=65535.
    pub max_outstanding_r2t: u16,
}

impl Default for Negotiation {
    fn default() -> Self {
        Negotiation {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            max_connections: 4,
            initial_r2t: false,
            immediate_data: true,
            first_burst: 16 << 10,
            max_burst: 1 << 20,
            max_receive: 256 << 10,
            max_outstanding_r2t: 4,
        }
    }
}

/// Commands per session where the configuration says nothing.
pub const SESSION_COMMANDS_DEFAULT: u16 = 128;

/// Where initiators are sent instead (RFC 7143 §11.13.5, status 0101h and 0102h).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The other portal.
    pub address: SocketAddr,
    /// "Moved permanently" instead of "moved temporarily".
    pub permanent: bool,
}

/// A machine that connects: its names, its credentials and what it may reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Its name in reports, unique.
    pub name: String,
    /// Initiator names, normalized; empty: any.
    pub iqns: Vec<String>,
    /// Networks it connects from; empty: any.
    pub sources: Vec<Network>,
    /// Its credentials; empty: those of [`Auth::chap`].
    pub chap: Vec<Credentials>,
    /// What it may reach.
    pub grants: Vec<TargetGrant>,
    /// Its NVMe names; empty: any.
    pub nqns: Vec<String>,
    /// Its NVMe Host Identifier; `None`: any.
    pub hostid: Option<[u8; 16]>,
    /// Its secret for DH-HMAC-CHAP; `None`: [`Auth::dhchap`].
    pub dhchap: Option<Arc<nvme::auth::DhchapSecret>>,
    /// The secret by which controllers prove themselves to it; `None`: [`Auth::dhchap_controller`].
    pub dhchap_controller: Option<Arc<nvme::auth::DhchapSecret>>,
    /// Its key for TLS; `None`: [`Auth::tls_key`].
    pub tls_key: Option<Arc<nvme::tls::ConfiguredPsk>>,
    /// It may reach one volume over both protocols.
    pub both: bool,
    /// It may not connect.
    pub blocked: bool,
    /// How much it may do per second, all its sessions together.
    pub limits: LimitKeys,
    /// Which subsystems it may reach.
    pub subsystem_grants: Vec<SubsystemGrant>,
}

impl Host {
    /// Whether it may come over iSCSI at all: with NVMe names only it may not.
    pub fn may_use_iscsi(&self) -> bool {
        !self.iqns.is_empty() || self.nqns.is_empty()
    }

    /// Whether it may come over NVMe/TCP at all: with iSCSI names only it may not.
    pub fn may_use_nvme(&self) -> bool {
        !self.nqns.is_empty() || self.iqns.is_empty()
    }

    /// Its grant for a target: the one that names it before the one for all.
    pub fn target_grant(&self, target: &str) -> Option<&TargetGrant> {
        let named = self.grants.iter().find(|grant| grant.target.as_deref() == Some(target));
        named.or_else(|| self.grants.iter().find(|grant| grant.target.is_none()))
    }

    /// Its grant for a subsystem, likewise.
    pub fn subsystem_grant(&self, nqn: &str) -> Option<&SubsystemGrant> {
        let named = self.subsystem_grants.iter().find(|grant| grant.subsystem.as_deref() == Some(nqn));
        named.or_else(|| self.subsystem_grants.iter().find(|grant| grant.subsystem.is_none()))
    }
}

/// Permission to reach a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGrant {
    /// The target; `None`: every target, also those created later.
    pub target: Option<String>,
    /// The logical units, and whether each may only be read; `None`: all.
    pub luns: Option<Vec<(u16, bool)>>,
    /// Writes are refused, to whichever it is.
    pub read_only: bool,
    /// Addresses of ours by which it must come; empty: any.
    pub locals: Vec<IpAddr>,
}

/// Limits of the whole daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonLimits {
    /// Idle time after which an initiator is asked for a sign of life (NOP-In); zero: never.
    pub nop_interval: Duration,
    /// A connection that has not answered by then is closed.
    pub nop_timeout: Duration,
    /// Payload memory of each core, bytes.
    pub memory: u64,
    /// Sessions of the whole daemon, 1..=65535; `None`: as many as iSCSI can name.
    pub sessions: Option<u16>,
    /// From the accepted connection to the end of the login.
    pub login_timeout: Duration,
    /// Least keep-alive timeout of an NVMe host that wants one.
    pub keep_alive_min: Duration,
    /// Longest keep-alive timeout of an NVMe host, which then must want one; `None`: no bound.
    pub keep_alive_max: Option<Duration>,
    /// Controllers of the discovery service that one source may have, 1..=1024.
    pub discovery_per_source: u16,
}

impl Default for DaemonLimits {
    fn default() -> Self {
        DaemonLimits {
            nop_interval: Duration::from_secs(30),
            nop_timeout: Duration::from_secs(30),
            memory: 128 << 20,
            sessions: None,
            login_timeout: Duration::from_secs(15),
            keep_alive_min: Duration::from_secs(1),
            keep_alive_max: None,
            discovery_per_source: 128,
        }
    }
}
