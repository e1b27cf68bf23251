//! What a daemon offers, and to which hosts: plain data, made by the control plane, the same on every shard.
//!
//! Names and addresses here have been validated; all references resolve.

mod blocked_hosts;
mod condition;
mod continuation;
mod gateways;
mod iscsi_access;
mod nvme;
mod nvme_access;
mod placement;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use endpoint::{AcceptedSocket, ListenerId};
use iscsi::login::AuthPolicy;
use iscsi::name::TargetAddress;
use iscsi::negotiate::NegotiationLimits;
use iscsi::session::SessionLimits;
pub use scsi_server::TargetPort;
use volume::{PortId, VolumeId};

use crate::rate_limit::RateLimiter;

pub(crate) use nvme_access::is_proven;

pub use blocked_hosts::BlockedHosts;
pub use condition::{Comparison, Condition, ConnectionEnd, ConnectionNumber};
pub use continuation::EndCause;
pub use gateways::{GroupExports, OtherGateway};
pub use nvme::{
    ControllerLimits, DISCOVERY_NQN, H2cDataLimits, HostAuth, HostNotAllowed, HostRule, NamespaceExport,
    NamespaceMask, NvmeExports, NvmePortal, NvmeProduct, NvmeService, Referral, SubsystemExport, TlsMode,
};
pub use placement::{
    PlacementOutcome, PlacementPolicy, PlacementQuery, PlacementReason, PlacementRule, ShardPreference,
};

/// How many sessions one daemon keeps at most: every TSIH but 0.
pub const SESSIONS_MAX: usize = 65_535;
/// Connections that may be logging in on one shard at a time, at most (`AdmissionLimits::logins`). With the longest
/// text that a login holds (see `iscsi::login::LOGIN_MEMORY_MAX`) they bound what strangers can make us keep.
pub const LOGINS_MAX: usize = 256;

/// Everything that a shard must know to let initiators in.
#[derive(Clone, Debug)]
pub struct Exports {
    /// Our iSCSI addresses.
    pub portals: Vec<Portal>,
    /// The targets, by name.
    pub targets: Vec<TargetExport>,
    /// How discovery sessions authenticate.
    pub discovery_auth: AuthPolicy,
    /// Hosts that may not connect, for discovery either.
    pub blocked: Arc<BlockedHosts>,
    /// What is offered over NVMe/TCP.
    pub nvme: NvmeExports,
    /// How many may come, and how long they may take.
    pub admission: AdmissionLimits,
    /// Where connections are served, first match first.
    pub placement: Vec<PlacementRule>,
    /// How much may be done with a volume per second; the others are not limited.
    pub volume_limits: HashMap<VolumeId, Arc<RateLimiter>>,
    /// The processor of each shard; empty: they have none of their own.
    pub cores: Arc<[u32]>,
    /// Of a gateway: what it exports with the others of its group.
    pub group: Option<GroupExports>,
}

impl Default for Exports {
    /// Nothing is offered.
    fn default() -> Self {
        Exports {
            portals: Vec::new(),
            targets: Vec::new(),
            discovery_auth: AuthPolicy::None,
            blocked: Arc::default(),
            nvme: NvmeExports::default(),
            admission: AdmissionLimits::default(),
            placement: Vec::new(),
            volume_limits: HashMap::new(),
            cores: Arc::from([]),
            group: None,
        }
    }
}

/// Bounds of what initiators take before they do anything. They hold for what comes: sessions beyond a bound that has
/// become less stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Sessions of the whole daemon, discovery sessions among them: 1 to [`SESSIONS_MAX`]. One more is
    /// refused with 0302h, "out of resources".
    pub sessions: usize,
    /// From the accepted connection to the last login response, or to an answered Connect.
    pub login_time: Duration,
    /// Connections of one shard that may be logging in, or have yet to connect their queue: 1 to
    /// [`LOGINS_MAX`]. One more costs the oldest that owes a request its place.
    pub logins: usize,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        AdmissionLimits { sessions: SESSIONS_MAX, login_time: Duration::from_secs(15), logins: LOGINS_MAX }
    }
}

/// An address that the daemon listens on for iSCSI.
#[derive(Clone, Debug)]
pub struct Portal {
    /// The listener.
    pub listener: ListenerId,
    /// The address as bound; [`Portal::advertised_address`] is what discovery names.
    pub address: SocketAddr,
    /// Target portal group tag: 0 to 65535.
    pub group: u16,
    /// The SCSI target port that connections of this portal come by (one per portal group), where the target has none
    /// of its own.
    pub port: PortId,
}

impl Portal {
    /// Where an initiator finds it that came by our address `local`. The unspecified address stands for that one,
    /// if it is of its family (listeners take one family); what is on loopback is shown by loopback only, since
    /// elsewhere it is another machine.
    pub fn advertised_address(&self, local: IpAddr) -> Option<SocketAddr> {
        let here = local.to_canonical();
        match self.address.ip() {
            ip if ip.is_unspecified() => {
                (ip.is_ipv4() == here.is_ipv4()).then(|| SocketAddr::new(here, self.address.port()))
            }
            ip if ip.is_loopback() && !here.is_loopback() => None,
            _ => Some(self.address),
        }
    }
}

/// A target.
#[derive(Clone, Debug)]
pub struct TargetExport {
    /// Its name, normalised.
    pub name: Arc<str>,
    /// TargetAlias, if any.
    pub alias: Option<Arc<str>>,
    /// Portal groups that it is reached by; empty: all.
    pub groups: Vec<u16>,
    /// Its own ports; a group that is not among them stands for its [`Portal::group`]. No two targets that lead to one
    /// volume have a port in common.
    pub ports: Vec<TargetPort>,
    /// Of their portals, those of these listeners only; `None`: all.
    pub listeners: Option<Vec<ListenerId>>,
    /// Its logical units, ascending by LUN.
    pub luns: Vec<LunExport>,
    /// It has logical units, and the volumes of all of them are away for now: initiators are told to come again
    /// (0301h), not that there is no such target.
    pub is_away: bool,
    /// Who may come: the first rule that fits decides. None fits: 0202h.
    pub rules: Vec<InitiatorRule>,
    /// Who may not come, whatever the rules say: 0202h.
    pub blocked: Arc<BlockedHosts>,
    /// What INQUIRY shows of its logical units.
    pub product: Arc<scsi_server::InquiryProduct>,
    /// Whether initiators may set path states.
    pub explicit_alua: bool,
    /// What it negotiates.
    pub negotiation: NegotiationLimits,
    /// What it grants each session.
    pub limits: SessionLimits,
    /// Where initiators are sent instead, if it moved.
    pub redirect: Option<Redirect>,
    /// Portal groups whose logins are sent to other portals.
    pub sent_on: Vec<GroupRedirect>,
}

impl TargetExport {
    /// A target whose logical units are these volumes, LUN 0 first. Any initiator may use it, without
    /// authentication.
    pub fn open_to_all(name: &str, volumes: &[VolumeId]) -> Self {
        let lun = |(lun, volume): (u16, &VolumeId)| LunExport { lun, volume: *volume, read_only: false };
        TargetExport {
            name: name.into(),
            alias: None,
            groups: Vec::new(),
            ports: Vec::new(),
            listeners: None,
            luns: (0..).zip(volumes).map(lun).collect(),
            is_away: false,
            rules: vec![InitiatorRule::allow_any()],
            blocked: Arc::default(),
            product: Arc::default(),
            explicit_alua: false,
            negotiation: NegotiationLimits::default(),
            limits: SessionLimits::default(),
            redirect: None,
            sent_on: Vec::new(),
        }
    }
}

/// A logical unit of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LunExport {
    /// 0 to 16383.
    pub lun: u16,
    /// The volume; [`VolumeId::UNAVAILABLE`] if it is away for now.
    pub volume: VolumeId,
    /// Whether nobody may write through this LUN.
    pub read_only: bool,
}

/// Who may come, and what they may do.
#[derive(Clone, Debug)]
pub struct InitiatorRule {
    /// Names of initiators, normalised; empty: any.
    pub initiators: Vec<Arc<str>>,
    /// Networks that they come from; empty: any.
    pub sources: Vec<Network>,
    /// Addresses of ours by which they come; empty: any.
    pub locals: Vec<IpAddr>,
    /// How they authenticate.
    pub auth: AuthPolicy,
    /// Which LUNs they see.
    pub luns: LunMask,
    /// How much they may do per second, all that have it together.
    pub limiter: Option<Arc<RateLimiter>>,
}

impl InitiatorRule {
    /// Any initiator, from anywhere, without authentication, reads and writes all LUNs.
    pub fn allow_any() -> Self {
        InitiatorRule {
            initiators: Vec::new(),
            sources: Vec::new(),
            locals: Vec::new(),
            auth: AuthPolicy::None,
            luns: LunMask::All { read_only: false },
            limiter: None,
        }
    }
}

/// Which LUNs a rule shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LunMask {
    /// All of the target's.
    All {
        /// Whether they may only be read.
        read_only: bool,
    },
    /// These: number, and whether it may only be read.
    Some(Vec<(u16, bool)>),
}

/// A network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address of it.
    pub address: IpAddr,
    /// Length of the prefix in bits: 0 to 32 or 128.
    pub prefix: u8,
}

/// Where a target moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Host and port, without portal group tag.
    pub address: TargetAddress,
    /// Whether for good (0102h) or for now (0101h).
    pub permanent: bool,
}

/// A portal group whose logins are sent to other portals for now (0101h).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRedirect {
    /// Its tag.
    pub group: u16,
    /// Where to, spread over them.
    pub to: Vec<TargetAddress>,
}

impl Network {
    /// Whether `address` belongs to it. An IPv4 address that came in IPv6 form counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix.min(32))).unwrap_or(0);
                u32::from(network) & mask == u32::from(address) & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix.min(128))).unwrap_or(0);
                u128::from(network) & mask == u128::from(address) & mask
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl Exports {
    /// Whether any volume or host is limited.
    pub(crate) fn has_limits(&self) -> bool {
        let of_target = |target: &TargetExport| target.rules.iter().any(|rule| rule.limiter.is_some());
        let of_subsystem = |one: &SubsystemExport| one.rules.iter().any(|rule| rule.limiter.is_some());
        !self.volume_limits.is_empty()
            || self.targets.iter().any(of_target)
            || self.nvme.subsystems.iter().any(of_subsystem)
    }

    /// The portal of a listener.
    pub fn portal(&self, listener: ListenerId) -> Option<&Portal> {
        self.portals.iter().find(|portal| portal.listener == listener)
    }

    /// The ports of a target: one for each portal group that it is reached by, ascending.
    pub fn target_ports(&self, target: &TargetExport) -> Arc<[TargetPort]> {
        let reached = self.portals.iter().filter(|portal| target.is_reached_by(portal));
        let mut ports: Vec<_> = reached
            .map(|portal| TargetPort { port: target.port_id(portal), portal_group: portal.group })
            .collect();
        ports.sort_unstable_by_key(|port| port.port);
        ports.dedup_by_key(|port| port.port);
        ports.into()
    }

    /// The target of this name, if it is reached by this portal.
    pub fn target(&self, name: &str, by: &Portal) -> Option<&TargetExport> {
        self.targets.iter().find(|target| &*target.name == name && target.is_reached_by(by))
    }
}

impl TargetExport {
    /// Whether it is reached by this portal.
    pub fn is_reached_by(&self, portal: &Portal) -> bool {
        (self.groups.is_empty() || self.groups.contains(&portal.group))
            && self.listeners.as_ref().is_none_or(|own| own.contains(&portal.listener))
    }

    /// Its port by which connections of this portal come.
    pub fn port_id(&self, portal: &Portal) -> PortId {
        let own = self.ports.iter().find(|port| port.portal_group == portal.group);
        own.map_or(portal.port, |own| own.port)
    }

    /// Where a login by this portal group is sent instead of being served. Those of one machine are spread
    /// by the ports that they come from.
    pub fn redirect_for(&self, group: u16, by: &AcceptedSocket) -> Option<&TargetAddress> {
        let to = &self.sent_on.iter().find(|one| one.group == group)?.to;
        to.get(usize::from(by.peer.port()) % to.len().max(1))
    }

    /// The rule for an initiator that comes by a connection; none for one that is blocked.
    pub fn rule_for(&self, initiator: &str, by: &AcceptedSocket) -> Option<&InitiatorRule> {
        self.rules.get(self.rule_index_for(initiator, by)?)
    }

    /// Where that rule stands.
    pub fn rule_index_for(&self, initiator: &str, by: &AcceptedSocket) -> Option<usize> {
        if self.blocked.contains(initiator, by.peer.ip()) {
            return None;
        }
        self.rules.iter().position(|rule| rule.matches(initiator, by.peer.ip(), by.local.ip()))
    }

    /// What a rule shows of this target's LUNs, and whether each may only be read.
    pub fn visible_luns<'a>(
        &'a self,
        rule: &'a InitiatorRule,
    ) -> impl Iterator<Item = (LunExport, bool)> + 'a {
        self.luns.iter().filter_map(|&export| {
            let read_only = match &rule.luns {
                LunMask::All { read_only } => *read_only,
                LunMask::Some(luns) => luns.iter().find(|(lun, _)| *lun == export.lun)?.1,
            };
            Some((export, read_only || export.read_only))
        })
    }
}

impl InitiatorRule {
    /// Whether it is for an initiator that comes from an address to one of ours.
    pub fn matches(&self, initiator: &str, source: IpAddr, local: IpAddr) -> bool {
        let named = self.initiators.is_empty() || self.initiators.iter().any(|name| &**name == initiator);
        let near = self.sources.is_empty() || self.sources.iter().any(|network| network.contains(source));
        let reached = self.locals.is_empty() || self.locals.contains(&local.to_canonical());
        named && near && reached
    }
}

#[cfg(test)]
mod tests {
    use iscsi::chap::{Algorithm, ChapAccount, Secret};
    use iscsi::login::ChapAccounts;

    use super::*;

    #[test]
    fn a_rule_may_name_the_address_by_which_its_initiator_comes() {
        let rule = InitiatorRule {
            initiators: vec!["iqn.2026-11.test:a".into()],
            sources: Vec::new(),
            locals: vec!["192.0.2.50".parse().unwrap()],
            auth: AuthPolicy::None,
            luns: LunMask::All { read_only: true },
            limiter: None,
        };
        let fits =
            |name, local: &str| rule.matches(name, "198.51.100.7".parse().unwrap(), local.parse().unwrap());
        assert!(fits("iqn.2026-11.test:a", "192.0.2.50") && fits("iqn.2026-11.test:a", "::ffff:192.0.2.50"));
        assert!(!fits("iqn.2026-11.test:a", "192.0.2.51") && !fits("iqn.2026-11.test:b", "192.0.2.50"));
        let anywhere = InitiatorRule { locals: Vec::new(), ..rule.clone() };
        assert!(anywhere.matches("iqn.2026-11.test:a", "::1".parse().unwrap(), "::1".parse().unwrap()));
    }

    #[test]
    fn copies_may_name_what_a_login_to_another_target_would_reach() {
        let portal = |listener: u16, port: u16| Portal {
            listener: ListenerId(listener),
            address: SocketAddr::new("192.0.2.1".parse().unwrap(), port),
            group: port,
            port: PortId(port),
        };
        let accounts = |secret: &str| ChapAccounts {
            accounts: vec![ChapAccount { name: "user".into(), secret: Secret::new(secret.into()) }],
            mutual: None,
            demands_mutual: false,
            algorithms: Algorithm::ALL.to_vec(),
        };
        let target = |name: &str, volume: u64, alter: &dyn Fn(&mut TargetExport)| {
            let mut target = TargetExport::open_to_all(name, &[VolumeId(volume)]);
            alter(&mut target);
            target
        };
        let elsewhere = || TargetAddress::of_portal("192.0.2.9:3260".parse().unwrap(), 1);
        let proves = |secret: &'static str| {
            move |target: &mut TargetExport| target.rules[0].auth = AuthPolicy::Required(accounts(secret))
        };
        let exports = Exports {
            portals: vec![portal(0, 3260), portal(1, 3261)],
            targets: vec![
                target("iqn.here", 0, &proves("one secret of it")),
                target("iqn.reads", 1, &|target| target.rules[0].luns = LunMask::All { read_only: true }),
                target("iqn.same", 2, &proves("one secret of it")),
                target("iqn.other", 3, &proves("another secret of it")),
                target("iqn.optional", 4, &|target| {
                    target.rules[0].auth = AuthPolicy::Optional(accounts("another secret of it"));
                }),
                target("iqn.elsewhere", 5, &|target| target.groups = vec![3261]),
                target("iqn.named", 6, &|target| target.rules[0].initiators = vec!["iqn.b".into()]),
                target("iqn.moved", 7, &|target| {
                    target.redirect = Some(Redirect { address: elsewhere(), permanent: false });
                }),
                target("iqn.sent-on", 8, &|target| {
                    target.sent_on = vec![GroupRedirect { group: 3260, to: vec![elsewhere()] }];
                }),
            ],
            ..Exports::default()
        };
        let by = |listener: u16| AcceptedSocket {
            listener: ListenerId(listener),
            peer: "198.51.100.7:4000".parse().unwrap(),
            local: "192.0.2.1:3260".parse().unwrap(),
            cpu: None,
        };
        let seen = |user, links: &[AcceptedSocket]| {
            let volumes = exports.copy_volumes("iqn.here", ("iqn.a", user), links);
            volumes.iter().map(|one| (one.volume.0, one.read_only)).collect::<Vec<_>>()
        };
        assert_eq!(seen(Some("user"), &[by(0)]), [(1, true), (2, false), (4, false)]);
        assert_eq!(seen(None, &[by(0)]), [(1, true), (4, false)]);
        assert_eq!(seen(Some("another"), &[by(0)]), [(1, true), (4, false)]);
        assert_eq!(seen(None, &[by(1)]), [(1, true), (4, false), (5, false), (8, false)]);
        assert_eq!(seen(None, &[by(0), by(1)]), [(1, true), (4, false)]);
        assert_eq!(seen(None, &[by(7)]), []);
    }

    #[test]
    fn a_portal_is_shown_where_the_initiator_can_reach_it() {
        let shown = |address: &str, local: &str| {
            let portal = Portal {
                listener: ListenerId(0),
                address: address.parse().unwrap(),
                group: 1,
                port: PortId(1),
            };
            portal.advertised_address(local.parse().unwrap()).map(|at| at.to_string())
        };
        for (address, local, at) in [
            ("192.0.2.1:3260", "198.51.100.7", Some("192.0.2.1:3260")),
            ("192.0.2.1:3260", "127.0.0.1", Some("192.0.2.1:3260")),
            ("0.0.0.0:3260", "198.51.100.7", Some("198.51.100.7:3260")),
            ("0.0.0.0:3260", "::ffff:198.51.100.7", Some("198.51.100.7:3260")),
            ("0.0.0.0:3260", "2001:db8::1", None),
            ("[::]:3261", "2001:db8::1", Some("[2001:db8::1]:3261")),
            ("[::]:3261", "198.51.100.7", None),
            ("127.0.0.1:3261", "198.51.100.7", None),
            ("[::1]:3261", "198.51.100.7", None),
            ("[::1]:3261", "127.0.0.1", Some("[::1]:3261")),
        ] {
            assert_eq!(shown(address, local).as_deref(), at, "{address} by {local}");
        }
    }

    #[test]
    fn networks_contain_their_addresses_only() {
        let network = |address: &str, prefix| Network { address: address.parse().unwrap(), prefix };
        let inside = |network: &Network, address: &str| network.contains(address.parse().unwrap());
        let ten = network("10.1.2.3", 8);
        assert!(inside(&ten, "10.255.0.1") && inside(&ten, "::ffff:10.0.0.1"));
        assert!(!inside(&ten, "11.0.0.1") && !inside(&ten, "fe80::1"));
        let all = network("0.0.0.0", 0);
        assert!(inside(&all, "203.0.113.9") && !inside(&all, "::1"));
        let six = network("2001:db8::", 32);
        assert!(inside(&six, "2001:db8:1::9") && !inside(&six, "2001:db9::1"));
        let one = network("192.0.2.1", 32);
        assert!(inside(&one, "192.0.2.1") && !inside(&one, "192.0.2.2"));
    }
}
