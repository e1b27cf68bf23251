//! Access of hosts to volumes, in the form for the shards.

mod blocked;
mod limits;
mod placement;
mod portal_changes;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use endpoint::{ListenerId, ShardId};
use iscsi::{login::AuthPolicy, name::TargetAddress, session::SessionLimits};
use nvme::auth::DhchapSecret;
use scsi_server::InquiryProduct;
use shard::{
    AdmissionLimits, BlockedHosts, Exports, InitiatorRule, LunExport, LunMask, Redirect, SESSIONS_MAX,
    TargetExport,
};
use volume::{PortId, VolumeId};

use super::{generated_psks::GeneratedPsks, group::JoinedGroup, login};
use crate::{
    EngineError,
    state::{
        StateDir, StateError, ports::PortNumbers, serials::SerialNumbers, target_ports::TargetPortNumbers,
    },
};
use config::{
    difference,
    name::VolumeName,
    network,
    plan::{
        Auth, ConnectionPlacement, DaemonLimits, ExportPlan, Host, Plan, Portal, Protocol, Referral, Target,
        TargetGrant,
    },
};

use blocked::OperatorBlocks;
use limits::HostLimiters;
pub(in crate::dataplane) use limits::rate_limit_report;
pub use portal_changes::PortalChanges;

/// What the configuration says of everything but volumes and the names that lead to them. A daemon has one at a time;
/// another configuration brings another.
#[derive(Debug)]
pub struct FixedSettings {
    portals: Vec<Portal>,
    /// The keys of the portals as configured, by which another configuration names the same ones.
    portal_keys: Vec<String>,
    /// The listener of each portal. None is given twice while the daemon runs: connections bear it.
    listeners: Vec<ListenerId>,
    /// The next one that is given; beyond the largest number: none is left.
    next_listener: u32,
    hosts: Vec<Host>,
    auth: Auth,
    limits: DaemonLimits,
    referrals: Vec<Referral>,
    /// With the shards that the cores are.
    placement: Vec<(ConnectionPlacement, Arc<[ShardId]>)>,
    /// The daemon's cores, in shard order.
    cores: Arc<[u32]>,
    ports: Vec<(Protocol, u16)>,
    /// The numbers of the groups' ports.
    numbers: PortNumbers,
    /// The serial numbers of subsystems that were given one.
    pub(super) serials: SerialNumbers,
    /// PSKs that hosts have generated with the secrets of today.
    generated: GeneratedPsks,
    /// Hosts that the operator has blocked.
    blocked: OperatorBlocks,
    /// The limits of hosts, by their names.
    host_limiters: HostLimiters,
}

/// What the exports say of a volume.
#[derive(Clone, Copy, Debug)]
pub struct VolumeExportInfo {
    /// Its number.
    pub id: VolumeId,
    /// Write-protected by the configuration.
    pub read_only: bool,
    /// Its identity.
    pub uuid: volume::Uuid,
}

impl FixedSettings {
    /// The settings of a plan, whose portals are listeners in their order.
    pub fn of(plan: &Plan) -> Self {
        let count = plan.portals.len();
        let mut ports: Vec<(Protocol, u16)> =
            plan.portals.iter().map(|portal| (portal.protocol, portal.tag)).collect();
        ports.sort_unstable();
        ports.dedup();
        FixedSettings {
            ports,
            numbers: PortNumbers::default(),
            serials: SerialNumbers::default(),
            generated: GeneratedPsks::default(),
            blocked: OperatorBlocks::default(),
            host_limiters: HostLimiters::of(&plan.hosts),
            referrals: plan.referrals.clone(),
            placement: Vec::new(),
            cores: Arc::default(),
            portals: plan.portals.clone(),
            portal_keys: difference::keys_of(&plan.portals),
            listeners: (0..count).map(|at| ListenerId(at as u16)).collect(),
            next_listener: count as u32,
            hosts: plan.hosts.clone(),
            auth: plan.auth.clone(),
            limits: plan.limits.clone(),
        }
    }

    /// The listener of the portal in a place.
    pub fn listener(&self, at: usize) -> Option<ListenerId> {
        self.listeners.get(at).copied()
    }

    /// The listeners of all portals.
    pub fn listeners(&self) -> &[ListenerId] {
        &self.listeners
    }

    /// A new portal's address, with the port that the system chose.
    pub fn set_address(&mut self, at: usize, address: SocketAddr) {
        if let Some(portal) = self.portals.get_mut(at) {
            portal.address = address;
        }
    }

    /// Gives every port the number that it had before, and new ones numbers that none ever had, durably. The numbers of
    /// the ports of targets are returned.
    pub fn number_ports(
        &mut self,
        state: &StateDir,
        targets: &[Target],
    ) -> Result<TargetPortNumbers, EngineError> {
        let failed = |why: StateError| EngineError::Start(why.to_string());
        let mut numbers = PortNumbers::load(state).map_err(failed)?;
        let mut target_ports = TargetPortNumbers::load(state).map_err(failed)?;
        if numbers.assign(&self.ports, target_ports.highest()).map_err(EngineError::Start)? {
            numbers.save(state).map_err(failed)?;
        }
        target_ports.assign_durably(targets, &numbers, state).map_err(EngineError::Start)?;
        self.numbers = numbers;
        Ok(target_ports)
    }

    /// The same of a gateway: its group gives the numbers, and remembers them.
    pub fn number_ports_in_group(
        &mut self,
        group: &JoinedGroup,
        targets: &[Target],
    ) -> Result<TargetPortNumbers, EngineError> {
        let give = |port: &str| group.port_number(port).map(|number| number.0);
        self.numbers = PortNumbers::given(&self.ports, give)?;
        let mut target_ports = TargetPortNumbers::default();
        target_ports.take_given(targets, give)?;
        Ok(target_ports)
    }

    /// The numbers of the groups' ports.
    pub fn port_numbers(&self) -> &PortNumbers {
        &self.numbers
    }

    /// The ports that the system chose, in the order of the portals.
    pub fn set_addresses(&mut self, bound: &[SocketAddr]) {
        for (portal, address) in self.portals.iter_mut().zip(bound) {
            portal.address = *address;
        }
    }

    /// Authentication that is not of one host.
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Limits of the whole daemon.
    pub fn limits(&self) -> &DaemonLimits {
        &self.limits
    }

    /// The portals.
    pub fn portals(&self) -> &[Portal] {
        &self.portals
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Other discovery services.
    pub fn configured_referrals(&self) -> &[Referral] {
        &self.referrals
    }

    /// The DH-HMAC-CHAP secret of hosts that have none of their own.
    pub fn shared_dhchap_secret(&self) -> Option<&Arc<nvme::auth::DhchapSecret>> {
        self.auth.dhchap.as_ref()
    }

    /// PSKs that hosts have generated.
    pub fn generated_psks(&self) -> &GeneratedPsks {
        &self.generated
    }

    /// Whether the same hosts have the same DH-HMAC-CHAP secrets, for the same subsystems.
    fn has_secrets_of(&self, other: &FixedSettings) -> bool {
        let is_same = |one: &Option<Arc<DhchapSecret>>, other: &Option<Arc<DhchapSecret>>| match (one, other)
        {
            (None, None) => true,
            (Some(one), Some(other)) => one.constant_time_eq(other),
            (None, Some(_)) | (Some(_), None) => false,
        };
        let (one, two) = (&self.auth, &other.auth);
        is_same(&one.dhchap, &two.dhchap)
            && is_same(&one.dhchap_discovery_key, &two.dhchap_discovery_key)
            && self.hosts.len() == other.hosts.len()
            && self.hosts.iter().zip(&other.hosts).all(|(one, other)| {
                one.nqns == other.nqns
                    && one.hostid == other.hostid
                    && one.sources == other.sources
                    && one.subsystem_grants == other.subsystem_grants
                    && is_same(&one.dhchap, &other.dhchap)
            })
    }

    /// The exports that `ways` stand for; `number` knows the volumes.
    pub fn build_exports(
        &self,
        ways: &ExportPlan,
        target_ports: &TargetPortNumbers,
        generation: u64,
        number: impl Fn(&VolumeName) -> Option<VolumeExportInfo>,
    ) -> Exports {
        let portal = |(at, portal): (usize, &Portal)| {
            let listener = self.listener(at).filter(|_| portal.protocol == Protocol::Iscsi);
            listener.map(|listener| shard::Portal {
                listener,
                address: portal.address,
                group: portal.tag,
                port: self.port_id(Protocol::Iscsi, portal.tag),
            })
        };
        let blocked = self.blocked_hosts();
        Exports {
            portals: self.portals.iter().enumerate().filter_map(portal).collect(),
            targets: ways
                .targets
                .iter()
                .map(|target| self.build_target(target, target_ports, &blocked, &number))
                .collect(),
            discovery_auth: login::discovery_policy(&self.auth),
            nvme: self.nvme_exports(&ways.subsystems, &blocked, &number, generation),
            blocked,
            admission: AdmissionLimits {
                sessions: self.limits.sessions.map_or(SESSIONS_MAX, usize::from),
                login_time: self.limits.login_timeout,
                logins: crate::descriptors::pending_logins_max(self.cores.len()),
            },
            placement: self.placement_rules(ways),
            volume_limits: HashMap::new(),
            cores: self.cores.clone(),
            group: None,
        }
    }

    /// The host that an initiator is, if one lets it in to this target from one address to one of ours;
    /// the same conditions decide at login.
    pub fn matching_host(&self, initiator: &str, ends: (IpAddr, IpAddr), target: &str) -> Option<&Host> {
        self.hosts.iter().filter(|host| host.may_use_iscsi()).find(|host| {
            host.target_grant(target).is_some_and(|grant| {
                let rule = InitiatorRule {
                    initiators: host.iqns.iter().map(|iqn| iqn.as_str().into()).collect(),
                    sources: host.sources.iter().map(to_shard_network).collect(),
                    locals: grant.locals.clone(),
                    auth: AuthPolicy::None,
                    luns: LunMask::All { read_only: true },
                    limiter: None,
                };
                rule.matches(initiator, ends.0, ends.1)
            })
        })
    }

    /// Portal groups of each protocol, ascending, those of iSCSI first.
    pub fn portal_groups(&self) -> &[(Protocol, u16)] {
        &self.ports
    }

    /// The number of a group's port: relative target port, or NVMe port. Where nothing was recorded
    /// ([`FixedSettings::number_ports`]), they count from 1 over its portals.
    pub fn port_id(&self, protocol: Protocol, tag: u16) -> PortId {
        let rank = || self.ports.iter().filter(|port| **port < (protocol, tag)).count() as u16 + 1;
        PortId(self.numbers.number_of(protocol, tag).unwrap_or_else(rank))
    }

    /// The greatest number that a port has or had.
    pub fn highest_port(&self) -> u16 {
        self.numbers.highest().max(self.ports.len() as u16)
    }

    fn build_target(
        &self,
        target: &Target,
        target_ports: &TargetPortNumbers,
        blocked: &Arc<BlockedHosts>,
        number: &impl Fn(&VolumeName) -> Option<VolumeExportInfo>,
    ) -> TargetExport {
        let port = |&group: &u16| {
            let port = target_ports.number_of(target, group, &self.numbers)?;
            Some(shard::TargetPort { port: PortId(port), portal_group: group })
        };
        let lun = |lun: &config::plan::Lun| {
            let known = number(&lun.volume);
            let read_only = lun.read_only || known.is_some_and(|known| known.read_only);
            LunExport {
                lun: lun.lun,
                volume: known.map_or(VolumeId::UNAVAILABLE, |known| known.id),
                read_only,
            }
        };
        let mut luns: Vec<LunExport> = target.luns.iter().map(lun).collect();
        luns.sort_by_key(|lun| lun.lun);
        TargetExport {
            name: target.name.as_str().into(),
            alias: target.alias.as_deref().map(Into::into),
            groups: target.portals.clone(),
            ports: target.portals.iter().filter_map(port).collect(),
            listeners: target
                .listeners
                .as_ref()
                .map(|portals| portals.iter().filter_map(|at| self.listener(*at)).collect()),
            is_away: !luns.is_empty() && luns.iter().all(|lun| lun.volume == VolumeId::UNAVAILABLE),
            luns,
            rules: self.initiator_rules(target),
            blocked: blocked.clone(),
            product: Arc::new(InquiryProduct {
                vendor: target.inquiry.vendor.clone(),
                product: target.inquiry.product.clone(),
                revision: product_revision(),
            }),
            explicit_alua: target.explicit_alua,
            negotiation: login::negotiation_limits(&target.negotiation),
            limits: SessionLimits {
                commands: target.commands,
                nop_interval: Some(self.limits.nop_interval).filter(|interval| !interval.is_zero()),
                nop_timeout: target.nop_timeout.unwrap_or(self.limits.nop_timeout),
                ..SessionLimits::default()
            },
            sent_on: target
                .sent_on
                .iter()
                .map(|one| shard::GroupRedirect {
                    group: one.group,
                    to: one.to.iter().filter_map(|to| TargetAddress::parse(&to.to_string()).ok()).collect(),
                })
                .collect(),
            redirect: target.redirect.as_ref().and_then(|to| {
                let address = TargetAddress::parse(&to.address.to_string()).ok()?;
                Some(Redirect { address, permanent: to.permanent })
            }),
        }
    }

    fn initiator_rules(&self, target: &Target) -> Vec<InitiatorRule> {
        let hosts = self.hosts.iter().filter(|host| host.may_use_iscsi());
        let mut rules: Vec<InitiatorRule> = hosts
            .filter_map(|host| Some(self.initiator_rule(target, host, host.target_grant(&target.name)?)))
            .collect();
        if target.open {
            rules.push(InitiatorRule {
                initiators: Vec::new(),
                sources: Vec::new(),
                locals: Vec::new(),
                auth: login::target_policy(&self.auth, target, &[]),
                luns: LunMask::All { read_only: false },
                limiter: None,
            });
        }
        rules
    }

    fn initiator_rule(&self, target: &Target, host: &Host, grant: &TargetGrant) -> InitiatorRule {
        InitiatorRule {
            initiators: host.iqns.iter().map(|iqn| iqn.as_str().into()).collect(),
            sources: host.sources.iter().map(to_shard_network).collect(),
            locals: grant.locals.clone(),
            auth: login::target_policy(&self.auth, target, &host.chap),
            limiter: self.host_limiter(&host.name),
            luns: match &grant.luns {
                None => LunMask::All { read_only: grant.read_only },
                Some(luns) => {
                    LunMask::Some(luns.iter().map(|(lun, ro)| (*lun, grant.read_only || *ro)).collect())
                }
            },
        }
    }
}

/// A network of an access list.
pub fn to_shard_network(network: &network::Network) -> shard::Network {
    shard::Network { address: network.address(), prefix: network.prefix() }
}

/// PRODUCT REVISION LEVEL: major and minor version, at most 4 characters.
pub fn product_revision() -> String {
    let revision = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    revision.chars().take(4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::example_plan;

    fn by(peer: &str) -> endpoint::AcceptedSocket {
        let end = |address: &str| SocketAddr::new(address.parse().unwrap(), 3260);
        endpoint::AcceptedSocket {
            listener: ListenerId(0),
            peer: end(peer),
            local: end("192.0.2.99"),
            cpu: None,
        }
    }

    fn exports() -> Exports {
        let plan = example_plan();
        let number = |name: &VolumeName| {
            let at = plan.volumes.iter().position(|volume| volume.name == *name)?;
            let read_only = plan.volumes[at].spec.read_only;
            Some(VolumeExportInfo { id: VolumeId(at as u64), read_only, uuid: volume::Uuid([1; 16]) })
        };
        FixedSettings::of(&plan).build_exports(&plan.ways, &TargetPortNumbers::default(), 1, number)
    }

    #[test]
    fn hosts_become_rules() {
        let exports = exports();
        let portal = |group| exports.portals.iter().find(|portal| portal.group == group).unwrap();
        let db = exports.target("iqn.2026-11.com.example:db", portal(1)).unwrap();
        assert!(
            exports.target("iqn.2026-11.com.example:db", portal(2)).is_none(),
            "it is reached by group 1 only"
        );
        let seen = |name: &str, from: &str| {
            let rule = db.rule_for(name, &by(from))?;
            assert!(matches!(rule.auth, AuthPolicy::Required(_)));
            Some(db.visible_luns(rule).map(|(lun, read_only)| (lun.lun, read_only)).collect::<Vec<_>>())
        };
        let db1 = "iqn.1993-08.org.debian:01:db1";
        assert_eq!(seen(db1, "192.0.2.1"), Some(vec![(0, false), (1, true)]));
        assert_eq!(seen(db1, "198.51.100.1"), None, "not from its network");
        assert_eq!(
            seen("iqn.1993-08.org.debian:01:backup", "198.51.100.1"),
            Some(vec![(0, true), (1, true)])
        );
        let frame = FixedSettings::of(&example_plan());
        let host = |name, from: &str| {
            let ends = (from.parse().unwrap(), "192.0.2.99".parse().unwrap());
            Some(frame.matching_host(name, ends, &db.name)?.name.clone())
        };
        assert_eq!(host(db1, "192.0.2.1").as_deref(), Some("db1"));
        assert_eq!(host(db1, "198.51.100.1"), None);
        assert_eq!(seen("iqn.1993-08.org.debian:01:other", "192.0.2.1"), None);
    }

    #[test]
    fn limits_reach_the_shards() {
        let exports = exports();
        let admission = exports.admission;
        assert_eq!((admission.sessions, admission.login_time), (2000, std::time::Duration::from_secs(20)));
        assert_eq!(exports.targets[0].limits.nop_interval, Some(std::time::Duration::from_secs(10)));
    }

    /// Saved registrants and path states name ports by number: a group that is added, and one that goes, must not make
    /// them name others.
    #[test]
    fn a_portal_group_keeps_its_port_number_whatever_groups_come_and_go() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::open(root.path()).unwrap();
        let port = |change: &dyn Fn(&mut Plan), protocol, tag| {
            let mut plan = example_plan();
            change(&mut plan);
            let mut frame = FixedSettings::of(&plan);
            frame.number_ports(&state, &[]).unwrap();
            frame.port_id(protocol, tag).0
        };
        assert_eq!(port(&|_| {}, Protocol::Iscsi, 2), 2);
        let first = &|plan: &mut Plan| plan.portals[0].tag = 0;
        assert_eq!([0, 1, 2].map(|tag| port(first, Protocol::Iscsi, tag)), [5, 1, 2]);
        let none = &|plan: &mut Plan| plan.portals.retain(|portal| portal.protocol != Protocol::Iscsi);
        assert_eq!(port(none, Protocol::Nvme, 1), 3);
        let mut frame = FixedSettings::of(&example_plan());
        frame.number_ports(&state, &[]).unwrap();
        assert_eq!(frame.port_id(Protocol::Iscsi, 1), PortId(1));
        let exports = frame.build_exports(&example_plan().ways, &TargetPortNumbers::default(), 1, |_| None);
        assert_eq!(exports.nvme.referrals[0].port, 6, "behind all that ever were");
    }

    /// And in those of a daemon whose earlier build knew ports of portal groups only: behind all of these.
    #[test]
    fn a_target_has_its_ports_in_the_exports() {
        let root = tempfile::tempdir().unwrap();
        let plan = example_plan();
        for (written, port) in [(None, 5), (Some(r#"[{"protocol":"iscsi","group":1,"port":3}]"#), 7)] {
            let state = StateDir::open(&root.path().join(port.to_string())).unwrap();
            if let Some(written) = written {
                state.write_record("ports", written.as_bytes()).unwrap();
            }
            let mut frame = FixedSettings::of(&plan);
            let target_ports = frame.number_ports(&state, &plan.ways.targets).unwrap();
            let exports = frame.build_exports(&plan.ways, &target_ports, 1, |_| None);
            let db = exports.target("iqn.2026-11.com.example:db", &exports.portals[0]).unwrap();
            assert_eq!((db.port_id(&exports.portals[0]).0, exports.target_ports(db)[0].port.0), (port, port));
            // A target that only sends elsewhere has none.
            assert!(exports.targets.iter().any(|target| target.ports.is_empty()));
        }
    }

    #[test]
    fn one_port_for_each_portal_group() {
        let exports = exports();
        let ports: Vec<(u16, u16)> =
            exports.portals.iter().map(|portal| (portal.group, portal.port.0)).collect();
        assert_eq!(ports, [(1, 1), (1, 1), (2, 2)]);
        let moved = exports.target("iqn.2026-11.com.example:moved", &exports.portals[0]).unwrap();
        let redirect = moved.redirect.as_ref().unwrap();
        assert_eq!(
            (redirect.address.host(), redirect.address.port(), redirect.permanent),
            ("192.0.2.11", 3260, true)
        );
    }
}
