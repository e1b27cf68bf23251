//! Exports over NVMe/TCP: subsystems, namespaces, hosts, addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use endpoint::ListenerId;
use nvme::auth::{DhchapPolicy, DhchapSecret};
use nvme::{HostId, TransferMax};
use nvme_server::KeepAliveLimits;
use nvme_tcp::QueueLimits;
use volume::{PortId, VolumeId};

use super::{BlockedHosts, Network};
use crate::rate_limit::RateLimiter;

/// The name by which every discovery service answers (NVMe Base §4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Everything that is offered over NVMe/TCP.
#[derive(Clone, Debug, Default)]
pub struct NvmeExports {
    /// Our addresses.
    pub portals: Vec<NvmePortal>,
    /// The subsystems, by name; none of them is [`DISCOVERY_NQN`].
    pub subsystems: Vec<SubsystemExport>,
    /// Other discovery services that ours names.
    pub referrals: Vec<Referral>,
    /// Who may ask the discovery service, and what they must prove; `None`: anybody, nothing. The first
    /// rule that fits decides; what it says of namespaces means nothing.
    pub discovery: Option<Vec<HostRule>>,
    /// Who may not ask it, whatever the rules say.
    pub blocked: Arc<BlockedHosts>,
    /// How many controllers of the discovery service a source (an IPv4 address, an IPv6 /64) may have;
    /// `None`: as many as there are.
    pub discovery_per_source: Option<u16>,
    /// By what hosts may prove themselves that must.
    pub proofs: DhchapPolicy,
    /// The keys of hosts that use TLS; `None`: there are none, and no TLS.
    pub tls: Option<tls::ServerContext>,
    /// What keep-alive timeouts may be.
    pub keep_alive: KeepAliveLimits,
    /// Which making of the exports this is: the generation counter of discovery logs. Greater with each
    /// change.
    pub generation: u64,
}

/// An address that the daemon listens on for NVMe/TCP.
#[derive(Clone, Debug)]
pub struct NvmePortal {
    /// The listener.
    pub listener: ListenerId,
    /// The address as bound. If it is the unspecified address, discovery names the address that the
    /// asking connection came by, if that is of its family.
    pub address: SocketAddr,
    /// What is answered there.
    pub service: NvmeService,
    /// Its number: PORTID of discovery log entries, and the port whose path state holds for it.
    pub port: PortId,
    /// Whether CRC32C behind headers is granted to hosts that ask.
    pub header_digest: bool,
    /// Whether CRC32C behind data is granted to hosts that ask.
    pub data_digest: bool,
    /// How hosts are to send the data of writes.
    pub data: H2cDataLimits,
    /// Whether hosts use TLS.
    pub tls: TlsMode,
}

/// Whether hosts use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// They do not. Of a subsystem: who comes by TLS is refused.
    Off,
    /// They may: the first byte of a connection decides.
    #[default]
    Allow,
    /// They must.
    Require,
}

/// How hosts are to send the data of writes that does not come in capsules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2cDataLimits {
    /// CPDA: it begins at a multiple of (CPDA + 1) × 4 bytes; 0 to 31.
    pub cpda: u8,
    /// MAXH2CDATA: the most of it in one PDU, in bytes; 4096 and more, a multiple of 4.
    pub pdu_max: u32,
    /// The most of it that one R2T asks for, in bytes; 4096 and more.
    pub r2t_max: u32,
}

impl Default for H2cDataLimits {
    fn default() -> Self {
        let QueueLimits { cpda, max_h2c_data, r2t_len_max, .. } = QueueLimits::default();
        H2cDataLimits { cpda, pdu_max: max_h2c_data, r2t_max: r2t_len_max }
    }
}

impl NvmePortal {
    /// An address for subsystems, which grants digests.
    pub fn new(listener: ListenerId, address: SocketAddr, port: PortId) -> Self {
        NvmePortal {
            listener,
            address,
            service: NvmeService::Subsystems,
            port,
            header_digest: true,
            data_digest: true,
            data: H2cDataLimits::default(),
            tls: TlsMode::Off,
        }
    }
}

/// What an address answers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeService {
    /// Subsystems, and the discovery service too.
    Subsystems,
    /// The discovery service alone.
    Discovery,
}

/// Another discovery service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referral {
    /// Where.
    pub address: SocketAddr,
    /// Its number: PORTID of the log entry.
    pub port: u16,
    /// Its name; mostly [`DISCOVERY_NQN`].
    pub nqn: Arc<str>,
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemExport {
    /// Its name: at most 223 bytes.
    pub nqn: Arc<str>,
    /// What Identify Controller shows.
    pub product: Arc<NvmeProduct>,
    /// Ports that it is reached by; empty: all.
    pub ports: Vec<PortId>,
    /// Its namespaces, ascending by NSID.
    pub namespaces: Vec<NamespaceExport>,
    /// It has namespaces, and the volumes of all of them are away for now: hosts are told to come again (Controller
    /// Busy), not that there is no such subsystem.
    pub is_away: bool,
    /// Who may come: the first rule that fits decides. None fits: Connect Invalid Host.
    pub rules: Vec<HostRule>,
    /// Who may not come, whatever the rules say: Connect Invalid Host.
    pub blocked: Arc<BlockedHosts>,
    /// What it grants.
    pub limits: ControllerLimits,
    /// Whether its hosts use TLS, where the address offers it.
    pub tls: TlsMode,
}

/// What Identify Controller shows: printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeProduct {
    /// SN, at most 20 characters: the same for the subsystem's life.
    pub serial: String,
    /// MN, at most 40 characters.
    pub model: String,
    /// FR, at most 8 characters.
    pub firmware: String,
}

impl SubsystemExport {
    /// A subsystem whose namespaces are these volumes, NSID 1 first, each in ANA group 1. Any host may use it,
    /// without authentication. `serial` is for the subsystem's life.
    pub fn open_to_all(nqn: &str, serial: &str, volumes: &[VolumeId]) -> Self {
        let namespace = |(nsid, volume): (u32, &VolumeId)| NamespaceExport {
            nsid,
            volume: *volume,
            read_only: false,
            ana_group: 1,
        };
        let product = NvmeProduct { serial: serial.into(), model: "Blockwire".into(), firmware: "0".into() };
        SubsystemExport {
            nqn: nqn.into(),
            product: Arc::new(product),
            ports: Vec::new(),
            namespaces: (1..).zip(volumes).map(namespace).collect(),
            is_away: false,
            rules: vec![HostRule::allow_any()],
            blocked: Arc::default(),
            limits: ControllerLimits::default(),
            tls: TlsMode::Allow,
        }
    }
}

/// A namespace of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceExport {
    /// Its number, from 1.
    pub nsid: u32,
    /// The volume.
    pub volume: VolumeId,
    /// Whether nobody may write through it.
    pub read_only: bool,
    /// Its ANA group, from 1.
    pub ana_group: u32,
}

/// Who may come, and what they may do.
#[derive(Clone, Debug)]
pub struct HostRule {
    /// Names of hosts; empty: any.
    pub hosts: Vec<Arc<str>>,
    /// The Host Identifier that they have to give; `None`: any.
    pub id: Option<HostId>,
    /// Networks that they come from; empty: any.
    pub sources: Vec<Network>,
    /// How they authenticate.
    pub auth: HostAuth,
    /// Which namespaces they see.
    pub namespaces: NamespaceMask,
    /// How much they may do per second, all that have it together.
    pub limiter: Option<Arc<RateLimiter>>,
}

impl HostRule {
    /// Any host, from anywhere, without authentication, reads and writes all namespaces.
    pub fn allow_any() -> Self {
        HostRule {
            hosts: Vec::new(),
            id: None,
            sources: Vec::new(),
            auth: HostAuth::None,
            namespaces: NamespaceMask::All { read_only: false },
            limiter: None,
        }
    }
}

/// How a host proves who it is.
#[derive(Clone, Debug)]
pub enum HostAuth {
    /// It does not.
    None,
    /// By DH-HMAC-CHAP (NVMe Base §8.3.5.5), with this secret.
    Required(Arc<DhchapSecret>),
    /// Likewise; and if the host requests it, the controller proves itself with a secret of its own.
    Mutual {
        /// The host's.
        host: Arc<DhchapSecret>,
        /// The controller's.
        controller: Arc<DhchapSecret>,
    },
}

impl HostAuth {
    /// The host's secret; `None`: it does not prove who it is.
    pub fn host(&self) -> Option<&DhchapSecret> {
        match self {
            HostAuth::None => None,
            HostAuth::Required(host) | HostAuth::Mutual { host, .. } => Some(host),
        }
    }

    /// The controller's secret, if it has one for this host.
    pub fn controller(&self) -> Option<&DhchapSecret> {
        match self {
            HostAuth::None | HostAuth::Required(_) => None,
            HostAuth::Mutual { controller, .. } => Some(controller),
        }
    }
}

/// Which namespaces a rule shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceMask {
    /// All of the subsystem's.
    All {
        /// Whether they may only be read.
        read_only: bool,
    },
    /// These: number, and whether it may only be read.
    Some(Vec<(u32, bool)>),
}

/// What a subsystem grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerLimits {
    /// Controllers at a time; one more is refused with Controller Busy.
    pub controllers: u16,
    /// I/O queues of each: 1 to 128.
    pub queues: u16,
    /// Entries of each I/O queue: 2 to 1024.
    pub entries: u16,
    /// Data in a command's capsule, in bytes: 0 to 16384, a multiple of 16.
    pub in_capsule_max: u32,
    /// Largest transfer of one command (MDTS).
    pub transfer_max: TransferMax,
}

impl Default for ControllerLimits {
    fn default() -> Self {
        ControllerLimits {
            controllers: 1024,
            queues: 128,
            entries: 1024,
            in_capsule_max: 8192,
            transfer_max: TransferMax::MAX,
        }
    }
}

/// No rule lets the host in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNotAllowed;

impl NvmeExports {
    /// The portal of a listener.
    pub fn portal(&self, listener: ListenerId) -> Option<&NvmePortal> {
        self.portals.iter().find(|portal| portal.listener == listener)
    }

    /// The rule for a host that asks the discovery service: `Err` if it is not let in, `Ok(None)` if
    /// anybody is.
    pub fn discovery_rule(
        &self,
        host: &str,
        id: HostId,
        source: IpAddr,
    ) -> Result<Option<&HostRule>, HostNotAllowed> {
        if self.blocked.contains(host, source) {
            return Err(HostNotAllowed);
        }
        let Some(rules) = &self.discovery else { return Ok(None) };
        rules.iter().find(|rule| rule.matches(host, id, source)).map(Some).ok_or(HostNotAllowed)
    }

    /// The subsystem of this name, if it is reached by this port.
    pub fn subsystem(&self, nqn: &str, port: PortId) -> Option<&SubsystemExport> {
        self.subsystems.iter().find(|subsystem| &*subsystem.nqn == nqn && subsystem.is_on_port(port))
    }
}

impl SubsystemExport {
    /// Whether it is reached by this port.
    pub fn is_on_port(&self, port: PortId) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }

    /// The rule for a host of this name and identifier that comes from an address; none for one that is blocked.
    pub fn rule_for(&self, host: &str, id: HostId, source: IpAddr) -> Option<&HostRule> {
        self.rule_index_for(host, id, source).and_then(|at| self.rules.get(at))
    }

    /// Its place among the rules.
    pub fn rule_index_for(&self, host: &str, id: HostId, source: IpAddr) -> Option<usize> {
        if self.blocked.contains(host, source) {
            return None;
        }
        self.rules.iter().position(|rule| rule.matches(host, id, source))
    }

    /// What a rule shows of this subsystem's namespaces; `read_only` holds for the rule's hosts.
    pub fn visible_namespaces<'a>(
        &'a self,
        rule: &'a HostRule,
    ) -> impl Iterator<Item = NamespaceExport> + 'a {
        self.namespaces.iter().filter_map(|export| {
            let read_only = match &rule.namespaces {
                NamespaceMask::All { read_only } => *read_only,
                NamespaceMask::Some(shown) => shown.iter().find(|(nsid, _)| *nsid == export.nsid)?.1,
            };
            Some(NamespaceExport { read_only: read_only || export.read_only, ..*export })
        })
    }
}

impl HostRule {
    /// Whether it is for a host of this name and identifier that comes from an address.
    pub fn matches(&self, host: &str, id: HostId, source: IpAddr) -> bool {
        let near = self.sources.is_empty() || self.sources.iter().any(|network| network.contains(source));
        self.is_for_name(host) && near && self.id.is_none_or(|wanted| wanted == id)
    }

    /// Whether it is for hosts of this name, whatever their identifiers and addresses.
    pub(crate) fn is_for_name(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|name| &**name == host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(hosts: &[&str], namespaces: NamespaceMask) -> HostRule {
        let hosts = hosts.iter().map(|&host| host.into()).collect();
        HostRule { hosts, namespaces, ..HostRule::allow_any() }
    }

    fn id(byte: u8) -> HostId {
        HostId::new([byte; 16]).unwrap()
    }

    fn subsystem() -> SubsystemExport {
        let product = NvmeProduct { serial: "1".into(), model: "Blockwire".into(), firmware: "0".into() };
        let namespace = |nsid, read_only| NamespaceExport {
            nsid,
            volume: VolumeId(nsid.into()),
            read_only,
            ana_group: 1,
        };
        SubsystemExport {
            nqn: "nqn.2026-11.test:disk".into(),
            product: Arc::new(product),
            ports: vec![PortId(2)],
            is_away: false,
            namespaces: vec![namespace(1, false), namespace(2, true), namespace(7, false)],
            rules: vec![
                rule(&["nqn.2026-11.test:a"], NamespaceMask::Some(vec![(2, false), (7, true)])),
                rule(&["nqn.2026-11.test:b"], NamespaceMask::All { read_only: false }),
            ],
            blocked: Arc::default(),
            limits: ControllerLimits::default(),
            tls: TlsMode::Allow,
        }
    }

    #[test]
    fn a_rule_shows_its_namespaces_and_never_more_leave_than_the_subsystem_gives() {
        let subsystem = subsystem();
        let near = "192.0.2.1".parse().unwrap();
        let seen = |host: &str| {
            let rule = subsystem.rule_for(host, id(1), near)?;
            Some(
                subsystem
                    .visible_namespaces(rule)
                    .map(|seen| (seen.nsid, seen.read_only))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(seen("nqn.2026-11.test:a"), Some(vec![(2, true), (7, true)]));
        assert_eq!(seen("nqn.2026-11.test:b"), Some(vec![(1, false), (2, true), (7, false)]));
        assert_eq!(seen("nqn.2026-11.test:c"), None);
    }

    #[test]
    fn a_rule_with_an_identifier_is_for_no_other() {
        let mut subsystem = subsystem();
        subsystem.rules[1].id = Some(id(7));
        let seen =
            |one| subsystem.rule_for("nqn.2026-11.test:b", one, "192.0.2.1".parse().unwrap()).is_some();
        assert_eq!((seen(id(7)), seen(id(8))), (true, false));
    }

    #[test]
    fn a_subsystem_is_there_by_its_ports_only() {
        let exports = NvmeExports { subsystems: vec![subsystem()], ..NvmeExports::default() };
        assert!(exports.subsystem("nqn.2026-11.test:disk", PortId(2)).is_some());
        assert!(exports.subsystem("nqn.2026-11.test:disk", PortId(1)).is_none());
        assert!(exports.subsystem("nqn.2026-11.test:other", PortId(2)).is_none());
    }
}
