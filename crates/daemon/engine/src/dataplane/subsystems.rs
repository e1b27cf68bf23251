//! Subsystems, namespaces and hosts of NVMe/TCP, in the form for the shards.

use std::sync::Arc;

use nvme::{HostId, auth::DhchapSecret};
use shard::{
    BlockedHosts, ControllerLimits, HostAuth, HostRule, KeepAliveLimits, NamespaceExport, NamespaceMask,
    NvmeExports, NvmePortal, NvmeProduct, NvmeService, SubsystemExport,
};
use volume::VolumeId;

use super::exports::{FixedSettings, VolumeExportInfo, product_revision, to_shard_network};
use crate::{
    EngineError,
    state::{StateDir, StateError, serials::SerialNumbers},
};
use config::{
    check,
    name::VolumeName,
    plan::{Host, Portal, Protocol, Subsystem, SubsystemGrant},
};
use process::random;

impl FixedSettings {
    /// What is offered over NVMe/TCP.
    pub fn nvme_exports(
        &self,
        subsystems: &[Subsystem],
        blocked: &Arc<BlockedHosts>,
        number: &impl Fn(&VolumeName) -> Option<VolumeExportInfo>,
        generation: u64,
    ) -> NvmeExports {
        let portals = self.portals().iter().enumerate();
        NvmeExports {
            portals: portals.filter_map(|(at, portal)| self.nvme_portal(at, portal)).collect(),
            subsystems: subsystems
                .iter()
                .map(|subsystem| self.build_subsystem(subsystem, blocked, number))
                .collect(),
            referrals: self.shard_referrals(),
            discovery: self.discovery_rules(),
            blocked: blocked.clone(),
            discovery_per_source: Some(self.limits().discovery_per_source),
            proofs: self.auth().proofs.clone(),
            tls: self.tls_context(),
            keep_alive: KeepAliveLimits {
                least_ms: millis(self.limits().keep_alive_min),
                most_ms: self.limits().keep_alive_max.map(millis),
            },
            generation,
        }
    }

    /// Who may ask the discovery service, where it wants proofs: hosts with a secret of their own, and,
    /// where there is a common one, who knows that.
    fn discovery_rules(&self) -> Option<Vec<HostRule>> {
        if !self.auth().dhchap_discovery {
            return None;
        }
        let common = self.auth().dhchap_discovery_key.as_ref().or(self.shared_dhchap_secret());
        let rule = |host: &Host| {
            let secret = host.dhchap.as_ref().or(common)?;
            let controller = host.dhchap_controller.as_ref().or(self.auth().dhchap_controller.as_ref());
            Some(HostRule {
                hosts: host.nqns.iter().map(|nqn| nqn.as_str().into()).collect(),
                id: host.hostid.and_then(HostId::new),
                sources: host.sources.iter().map(to_shard_network).collect(),
                auth: host_auth(Some(secret), controller),
                namespaces: NamespaceMask::All { read_only: false },
                limiter: None,
            })
        };
        let named = self.hosts().iter().filter(|host| host.may_use_nvme()).filter_map(rule);
        let anybody = common.map(|secret| HostRule {
            hosts: Vec::new(),
            id: None,
            sources: Vec::new(),
            auth: host_auth(Some(secret), self.auth().dhchap_controller.as_ref()),
            namespaces: NamespaceMask::All { read_only: false },
            limiter: None,
        });
        Some(named.chain(anybody).collect())
    }

    /// Gives subsystems of several volumes their serial numbers for good, where the configuration gives none: of the
    /// first volume that it names, if its UUID is known; else one that is drawn, and never that of another volume.
    pub fn assign_serials(
        &mut self,
        state: &StateDir,
        subsystems: &[Subsystem],
        uuid: impl Fn(&VolumeName) -> Option<volume::Uuid>,
    ) -> Result<(), EngineError> {
        let failed = |why: StateError| EngineError::Start(why.to_string());
        let mut serials = SerialNumbers::load(state).map_err(failed)?;
        let mut is_new = false;
        for subsystem in subsystems.iter().filter(|one| one.serial.is_none() && one.namespaces.len() > 1) {
            let first = subsystem.namespaces.first().and_then(|one| uuid(&one.volume));
            let uuid =
                first.map_or_else(random_uuid, Ok).map_err(|why| EngineError::Start(why.to_string()))?;
            is_new |= serials.assign(&subsystem.nqn, || serial_from_uuid(uuid));
        }
        if is_new {
            serials.save(state).map_err(failed)?;
        }
        self.serials = serials;
        Ok(())
    }

    fn nvme_portal(&self, at: usize, portal: &Portal) -> Option<NvmePortal> {
        let service = match portal.protocol {
            Protocol::Iscsi => return None,
            Protocol::Nvme => NvmeService::Subsystems,
            Protocol::NvmeDiscovery => NvmeService::Discovery,
        };
        Some(NvmePortal {
            listener: self.listener(at)?,
            address: portal.address,
            service,
            port: self.port_id(portal.protocol, portal.tag),
            header_digest: portal.digests.0,
            data_digest: portal.digests.1,
            data: shard::H2cDataLimits::default(),
            tls: portal.tls,
        })
    }

    fn shard_referrals(&self) -> Vec<shard::Referral> {
        // Their numbers follow those of our own ports.
        let first = usize::from(self.highest_port()) + 1;
        let referral = |(at, one): (usize, &config::plan::Referral)| shard::Referral {
            address: one.address,
            port: u16::try_from(first + at).unwrap_or(u16::MAX),
            nqn: one.nqn.as_str().into(),
        };
        self.configured_referrals().iter().enumerate().map(referral).collect()
    }

    fn build_subsystem(
        &self,
        subsystem: &Subsystem,
        blocked: &Arc<BlockedHosts>,
        number: &impl Fn(&VolumeName) -> Option<VolumeExportInfo>,
    ) -> SubsystemExport {
        let namespace = |one: &config::plan::Namespace| {
            let known = number(&one.volume);
            NamespaceExport {
                nsid: one.nsid,
                volume: known.map_or(VolumeId::UNAVAILABLE, |known| known.id),
                read_only: one.read_only || known.is_some_and(|known| known.read_only),
                ana_group: one.ana_group,
            }
        };
        let mut namespaces: Vec<NamespaceExport> = subsystem.namespaces.iter().map(namespace).collect();
        namespaces.sort_by_key(|namespace| namespace.nsid);
        let first = subsystem.namespaces.first().and_then(|one| number(&one.volume));
        let given = || self.serials.serial_of(&subsystem.nqn).map(str::to_owned);
        let serial = subsystem.serial.clone().or_else(given).or_else(|| Some(serial_from_uuid(first?.uuid)));
        // While its volume is away nobody is let in; blanks would make it the same as all others that are.
        let serial = serial.unwrap_or_else(|| check::serial_for_nqn(&subsystem.nqn));
        let grants = subsystem.grants;
        SubsystemExport {
            nqn: subsystem.nqn.as_str().into(),
            product: Arc::new(NvmeProduct {
                serial,
                model: subsystem.model.clone(),
                firmware: product_revision(),
            }),
            ports: subsystem.portals.iter().map(|tag| self.port_id(Protocol::Nvme, *tag)).collect(),
            is_away: !namespaces.is_empty()
                && namespaces.iter().all(|one| one.volume == VolumeId::UNAVAILABLE),
            namespaces,
            rules: self.host_rules(subsystem),
            blocked: blocked.clone(),
            limits: ControllerLimits {
                controllers: grants.controllers,
                queues: grants.queues,
                entries: grants.queue_depth,
                in_capsule_max: grants.in_capsule,
                transfer_max: grants.max_transfer,
            },
            tls: subsystem.tls,
        }
    }

    /// The host that connected, if one lets it in to this subsystem; the same rules decide at Connect.
    pub fn matching_nvme_host(
        &self,
        nqn: &str,
        id: HostId,
        source: std::net::IpAddr,
        subsystem: &str,
    ) -> Option<&Host> {
        self.hosts().iter().filter(|host| host.may_use_nvme()).find(|host| {
            let grant = host.subsystem_grant(subsystem);
            grant.is_some_and(|grant| self.host_rule(host, grant).matches(nqn, id, source))
        })
    }

    fn host_rules(&self, subsystem: &Subsystem) -> Vec<HostRule> {
        let hosts = self.hosts().iter().filter(|host| host.may_use_nvme());
        let mut rules: Vec<HostRule> = hosts
            .filter_map(|host| Some(self.host_rule(host, host.subsystem_grant(&subsystem.nqn)?)))
            .collect();
        if subsystem.open {
            rules.push(HostRule {
                hosts: Vec::new(),
                id: None,
                sources: Vec::new(),
                auth: host_auth(self.shared_dhchap_secret(), self.auth().dhchap_controller.as_ref()),
                namespaces: NamespaceMask::All { read_only: false },
                limiter: None,
            });
        }
        rules
    }

    fn host_rule(&self, host: &Host, grant: &SubsystemGrant) -> HostRule {
        HostRule {
            hosts: host.nqns.iter().map(|nqn| nqn.as_str().into()).collect(),
            id: host.hostid.and_then(HostId::new),
            sources: host.sources.iter().map(to_shard_network).collect(),
            auth: host_auth(
                host.dhchap.as_ref().or(self.shared_dhchap_secret()),
                host.dhchap_controller.as_ref().or(self.auth().dhchap_controller.as_ref()),
            ),
            limiter: self.host_limiter(&host.name),
            namespaces: match &grant.namespaces {
                None => NamespaceMask::All { read_only: grant.read_only },
                Some(list) => NamespaceMask::Some(list.iter().map(|nsid| (*nsid, grant.read_only)).collect()),
            },
        }
    }
}

fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn host_auth(host: Option<&Arc<DhchapSecret>>, controller: Option<&Arc<DhchapSecret>>) -> HostAuth {
    match (host.cloned(), controller.cloned()) {
        (None, _) => HostAuth::None,
        (Some(host), None) => HostAuth::Required(host),
        (Some(host), Some(controller)) => HostAuth::Mutual { host, controller },
    }
}

/// What no volume has.
fn random_uuid() -> std::io::Result<volume::Uuid> {
    random::random_bytes().map(volume::Uuid)
}

/// The serial number of a subsystem that stands for one volume: the first digits of its identity.
fn serial_from_uuid(uuid: volume::Uuid) -> String {
    uuid.serial_number()[..20].iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use volume::VolumeId;

    use super::*;
    use crate::example::example_plan;

    fn exports() -> NvmeExports {
        let plan = example_plan();
        let number = |name: &VolumeName| {
            let at = plan.volumes.iter().position(|volume| volume.name == *name)?;
            let uuid = volume::Uuid([at as u8 + 1; 16]);
            Some(VolumeExportInfo {
                id: VolumeId(at as u64),
                read_only: plan.volumes[at].spec.read_only,
                uuid,
            })
        };
        FixedSettings::of(&plan).nvme_exports(&plan.ways.subsystems, &Arc::default(), &number, 7)
    }

    #[test]
    fn hosts_become_rules_of_subsystems() {
        let exports = exports();
        let logs = exports.subsystems.iter().find(|one| one.nqn.ends_with(":logs")).unwrap();
        let seen = |name: &str, from: &str| {
            let id = *uuid::uuid!("3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11").as_bytes();
            let rule = logs.rule_for(name, HostId::new(id).unwrap(), from.parse().unwrap())?;
            let visible = logs.visible_namespaces(rule).map(|one| (one.nsid, one.read_only, one.ana_group));
            Some((rule.auth.host().is_some(), visible.collect::<Vec<_>>()))
        };
        let web = "nqn.2014-08.org.nvmexpress:uuid:3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11";
        assert_eq!(seen(web, "192.0.2.1"), Some((false, vec![(1, false, 1), (4, true, 2)])));
        assert_eq!(seen(web, "198.51.100.1"), None, "not from its network");
        assert_eq!(seen("nqn.2026-11.com.example:other", "192.0.2.1"), None);
        // A host with iSCSI names only comes by no other protocol, whatever its grants say.
        let backup = exports.subsystems.iter().flat_map(|one| &one.rules);
        assert!(backup.flat_map(|rule| &rule.hosts).all(|name| name.starts_with("nqn.")));
        assert_eq!((logs.limits.queues, logs.limits.in_capsule_max), (16, 16 << 10));
        assert_eq!((exports.generation, &*exports.referrals[0].nqn), (7, shard::DISCOVERY_NQN));
    }

    #[test]
    fn the_discovery_service_wants_the_secret_that_is_nearest() {
        let secret =
            |byte: u8| Arc::new(DhchapSecret::generate(None, &mut |bytes: &mut [u8]| bytes.fill(byte)));
        let mut plan = example_plan();
        let rules = |plan: &config::plan::Plan| FixedSettings::of(plan).discovery_rules();
        assert!(rules(&plan).is_none(), "anybody may ask");
        plan.auth.dhchap_discovery = true;
        plan.hosts.iter_mut().for_each(|host| host.dhchap = None);
        plan.auth.dhchap = None;
        assert_eq!(rules(&plan).unwrap().len(), 0, "nobody has a secret");
        let at = plan.hosts.iter().position(|host| host.name == "web").unwrap();
        plan.hosts[at].dhchap = Some(secret(1));
        plan.auth.dhchap = Some(secret(2));
        plan.auth.dhchap_discovery_key = Some(secret(3));
        let wanted = |plan: &config::plan::Plan, name: &str| {
            let all = rules(plan).unwrap();
            let id = *uuid::uuid!("3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11").as_bytes();
            let id = HostId::new(id).unwrap();
            let rule = all.into_iter().find(|rule| rule.matches(name, id, "192.0.2.1".parse().unwrap()));
            let auth = rule.unwrap().auth;
            (
                auth.host().unwrap().to_text().to_string(),
                auth.controller().map(|one| one.to_text().to_string()),
            )
        };
        let web = "nqn.2014-08.org.nvmexpress:uuid:3f0a5b1c-6c2e-4a53-9a4a-0b6b0f9f2a11";
        let text = |byte: u8| secret(byte).to_text().to_string();
        let other = "nqn.2026-11.com.example:other";
        assert_eq!((wanted(&plan, web), wanted(&plan, other)), ((text(1), None), (text(3), None)));
        // The controller's key of the host, or else that of all.
        plan.auth.dhchap_controller = Some(secret(4));
        plan.hosts[at].dhchap_controller = Some(secret(5));
        let both = ((text(1), Some(text(5))), (text(3), Some(text(4))));
        assert_eq!((wanted(&plan, web), wanted(&plan, other)), both);
    }

    #[test]
    fn ports_of_both_protocols_differ() {
        let plan = example_plan();
        let exports = exports();
        let ports: Vec<(NvmeService, u16)> =
            exports.portals.iter().map(|portal| (portal.service, portal.port.0)).collect();
        let frame = FixedSettings::of(&plan);
        let iscsi = frame.port_id(Protocol::Iscsi, 1);
        assert_eq!(iscsi.0, 1);
        assert_eq!(ports, [(NvmeService::Subsystems, 3), (NvmeService::Discovery, 4)]);
        assert_eq!(exports.referrals[0].port, 5);
        assert_eq!(exports.subsystems[0].ports, [volume::PortId(3)]);
    }

    /// The serial number of a subsystem of two volumes, as it is shown with these volumes (by their places) away,
    /// and where the UUIDs of these are not known either.
    fn shared_serial(state: &StateDir, away: &[usize], unknown: &[usize]) -> String {
        let plan = example_plan();
        let mut subsystems = plan.ways.subsystems.clone();
        subsystems.retain(|one| one.namespaces.len() > 1);
        subsystems[0].serial = None;
        let place = |name: &VolumeName| subsystems[0].namespaces.iter().position(|one| one.volume == *name);
        let uuid = |at: usize| volume::Uuid([at as u8 + 1; 16]);
        let known = |name: &VolumeName| {
            let at = place(name).filter(|at| !away.contains(at))?;
            Some(VolumeExportInfo { id: VolumeId(at as u64), read_only: false, uuid: uuid(at) })
        };
        let mut frame = FixedSettings::of(&plan);
        let known_uuid = |name: &VolumeName| place(name).filter(|at| !unknown.contains(at)).map(uuid);
        frame.assign_serials(state, &subsystems[..1], known_uuid).unwrap();
        frame.nvme_exports(&subsystems[..1], &Arc::default(), &known, 1).subsystems[0].product.serial.clone()
    }

    #[test]
    fn a_volume_that_is_missing_changes_no_serial() {
        let root = tempfile::tempdir().unwrap();
        let state = |name: &str| StateDir::open(&root.path().join(name)).unwrap();
        let (first, second) = ("01".repeat(10), "02".repeat(10));
        let before = state("first there");
        assert_eq!(shared_serial(&before, &[], &[]), first, "as before there was a record");
        assert_eq!(shared_serial(&before, &[0], &[0]), first);
        let known = state("first known");
        assert_eq!(shared_serial(&known, &[0], &[]), first, "its UUID is known though it is away");
        let drawn = state("first unknown");
        let serial = shared_serial(&drawn, &[0], &[0]);
        assert!(
            serial.len() == 20 && serial != first && serial != second,
            "{serial}: that of another volume"
        );
        assert_eq!(shared_serial(&drawn, &[0, 1], &[0]), serial);
        assert_eq!(shared_serial(&drawn, &[], &[]), serial, "it changes when the first comes");
    }

    #[test]
    fn subsystems_whose_volumes_are_away_let_nobody_in_and_are_not_taken_for_one() {
        let plan = example_plan();
        let mut subsystems = plan.ways.subsystems.clone();
        subsystems.iter_mut().for_each(|one| one.serial = None);
        let exports =
            FixedSettings::of(&plan).nvme_exports(&subsystems, &Arc::default(), &|_: &VolumeName| None, 1);
        assert!(exports.subsystems.len() > 1 && exports.subsystems.iter().all(|one| one.is_away));
        let serials: Vec<&str> = exports.subsystems.iter().map(|one| one.product.serial.as_str()).collect();
        assert!(serials.iter().all(|serial| serial.len() == 20), "{serials:?}");
        let others = serials.iter().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(others.len(), serials.len(), "{serials:?}");
    }

    #[test]
    fn a_default_subsystem_has_the_serial_of_its_volume() {
        let exports = exports();
        let scratch = exports.subsystems.iter().find(|one| one.nqn.ends_with(":scratch")).unwrap();
        assert_eq!(scratch.product.serial.len(), 20);
        assert!("03030303030303030303".eq(&scratch.product.serial), "{}", scratch.product.serial);
        let logs = exports.subsystems.iter().find(|one| one.nqn.ends_with(":logs")).unwrap();
        assert_eq!((logs.product.serial.as_str(), logs.product.model.as_str()), ("LOGS-1", "Example array"));
    }
}
