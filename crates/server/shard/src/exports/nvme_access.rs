//! What an NVMe host can reach with the current exports, and how it must authenticate.

use std::sync::Arc;

use endpoint::AcceptedSocket;
use nvme::Nqn;
use nvme::auth::{ConcatenationPolicy, Credentials, DhchapPolicy};
use nvme::fabrics::ConnectNames;
use nvme::tls::{PskIdentity, PskKind};
use nvme_server::discovery::{DiscoveryEntries, DiscoveryEntry, EntryKind, EntryTls, VisibleTo};
use nvme_server::{NamespaceEntry, RequiredAuthentication};
use nvme_tcp::QueueLimits;
use nvme_tcp::controller::DigestPolicy;
use volume::PortId;

use crate::rate_limit::RateLimiter;

use super::{
    Exports, HostRule, NamespaceExport, NvmeExports, NvmePortal, NvmeService, SubsystemExport, TlsMode,
};

impl Exports {
    /// What is granted to a connection that came like this.
    pub(crate) fn queue_limits(&self, accepted: &AcceptedSocket) -> QueueLimits {
        let policy = |granted: bool| if granted { DigestPolicy::IfAsked } else { DigestPolicy::Never };
        let portal = self.nvme.portal(accepted.listener);
        let granted = |of: fn(&NvmePortal) -> bool| policy(portal.is_none_or(of));
        let data = portal.map(|portal| portal.data).unwrap_or_default();
        QueueLimits {
            header_digest: granted(|portal| portal.header_digest),
            data_digest: granted(|portal| portal.data_digest),
            cpda: data.cpda,
            max_h2c_data: data.pdu_max,
            r2t_len_max: data.r2t_max,
            handshake_timeout: self.admission.login_time,
            ..QueueLimits::default()
        }
    }

    /// Whether one rule lets a host in by both ways. A controller has the authentication and the namespaces of
    /// the rule that its admin queue came under, so it is for queues of that rule and no others: else a host
    /// would pass the secret or the bounds that a rule asks of its address by joining one that came by another.
    pub(crate) fn have_same_rule(
        &self,
        names: &ConnectNames,
        one: &AcceptedSocket,
        other: &AcceptedSocket,
    ) -> bool {
        let nvme = &self.nvme;
        let rule = |accepted: &AcceptedSocket| {
            let portal = nvme.portal(accepted.listener)?;
            let subsystem = nvme.subsystem(names.subsystem.as_str(), portal.port)?;
            subsystem.rule_index_for(names.host.as_str(), names.host_id, accepted.peer.ip())
        };
        rule(one).is_some_and(|at| rule(other) == Some(at))
    }

    /// What a host sees that came by an address; `None`: nothing, it is not let in.
    pub(crate) fn namespaces_by_portal(
        &self,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
    ) -> Option<Vec<NamespaceEntry>> {
        let portal = self.nvme.portal(accepted.listener)?;
        let export = self.nvme.subsystem(names.subsystem.as_str(), portal.port)?;
        self.namespaces_of_subsystem(export, names, accepted)
    }

    /// By what a host is limited that came by an address.
    pub(crate) fn limiter_of_host(
        &self,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
    ) -> Option<Arc<RateLimiter>> {
        let portal = self.nvme.portal(accepted.listener)?;
        let export = self.nvme.subsystem(names.subsystem.as_str(), portal.port)?;
        export.rule_for(names.host.as_str(), names.host_id, accepted.peer.ip())?.limiter.clone()
    }

    /// What a host sees of a subsystem; `None`: nothing, it is not let in.
    pub(crate) fn namespaces_of_subsystem(
        &self,
        export: &SubsystemExport,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
    ) -> Option<Vec<NamespaceEntry>> {
        let rule = export.rule_for(names.host.as_str(), names.host_id, accepted.peer.ip())?;
        let entry = |seen: NamespaceExport| NamespaceEntry {
            nsid: seen.nsid,
            volume: seen.volume,
            read_only: seen.read_only,
            ana_group: seen.ana_group,
        };
        Some(export.visible_namespaces(rule).map(entry).collect())
    }

    /// What a host must prove to a subsystem, if anything; `None`: it is not let in.
    pub(crate) fn required_authentication(
        &self,
        export: &SubsystemExport,
        names: &ConnectNames,
        (accepted, identity): (&AcceptedSocket, Option<&PskIdentity>),
    ) -> Option<Option<Arc<RequiredAuthentication>>> {
        let rule = export.rule_for(names.host.as_str(), names.host_id, accepted.peer.ip())?;
        let is_proven = is_proven(identity, &export.rules, rule);
        let concatenation = self.nvme.concatenation(accepted, export.tls, (identity, is_proven));
        Some(authentication_of_rule(rule, names, &self.nvme.proofs, concatenation))
    }

    /// The same for the discovery service.
    pub(crate) fn required_discovery_authentication(
        &self,
        names: &ConnectNames,
        (accepted, identity): (&AcceptedSocket, Option<&PskIdentity>),
    ) -> Option<Option<Arc<RequiredAuthentication>>> {
        let nvme = &self.nvme;
        let rule = nvme.discovery_rule(names.host.as_str(), names.host_id, accepted.peer.ip()).ok()?;
        let rules = nvme.discovery.as_deref().unwrap_or_default();
        let is_proven = rule.is_some_and(|rule| is_proven(identity, rules, rule));
        let concatenation = nvme.concatenation(accepted, TlsMode::Allow, (identity, is_proven));
        Some(rule.and_then(|rule| authentication_of_rule(rule, names, &nvme.proofs, concatenation)))
    }

    /// What a host may discover that came from an address.
    pub(crate) fn discovery_entries(
        &self,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
    ) -> DiscoveryEntries {
        let nvme = &self.nvme;
        let mut entries = Vec::new();
        for portal in &nvme.portals {
            let mut put = |kind, subsystem, tls| {
                let (address, port) = (portal.address, portal.port);
                entries.push(DiscoveryEntry { kind, subsystem, address, port, hosts: VisibleTo::All, tls });
            };
            if portal.service == NvmeService::Discovery {
                put(
                    EntryKind::Current,
                    Nqn::discovery_service(),
                    discovery_entry_tls(portal.tls, TlsMode::Allow),
                );
                continue;
            }
            for export in nvme.subsystems.iter().filter(|export| export.is_on_port(portal.port)) {
                let seen = export.rule_for(names.host.as_str(), names.host_id, accepted.peer.ip()).is_some();
                if let (true, Ok(name)) = (seen, Nqn::parse(&export.nqn)) {
                    put(EntryKind::Nvm, name, discovery_entry_tls(portal.tls, export.tls));
                }
            }
        }
        self.put_entries_elsewhere(names, accepted, &mut entries);
        for referral in &nvme.referrals {
            let Ok(subsystem) = Nqn::parse(&referral.nqn) else { continue };
            let (address, port) = (referral.address, PortId(referral.port));
            entries.push(DiscoveryEntry {
                kind: EntryKind::Referral,
                subsystem,
                address,
                port,
                hosts: VisibleTo::All,
                tls: EntryTls::None,
            });
        }
        DiscoveryEntries { generation: nvme.generation, entries }
    }
}

impl Exports {
    /// What other gateways of the group serve. They use TLS as this one does.
    fn put_entries_elsewhere(
        &self,
        names: &ConnectNames,
        accepted: &AcceptedSocket,
        entries: &mut Vec<DiscoveryEntry>,
    ) {
        let portals = self.nvme.portals.iter().filter(|portal| portal.service == NvmeService::Subsystems);
        let tls = portals.map(|portal| portal.tls).next().unwrap_or_default();
        for export in &self.nvme.subsystems {
            let seen = export.rule_for(names.host.as_str(), names.host_id, accepted.peer.ip()).is_some();
            let Some(subsystem) = Nqn::parse(&export.nqn).ok().filter(|_| seen) else { continue };
            for (address, port) in self.nvme_portals_elsewhere(export) {
                let subsystem = subsystem.clone();
                let tls = discovery_entry_tls(tls, export.tls);
                let (kind, hosts) = (EntryKind::Nvm, VisibleTo::All);
                entries.push(DiscoveryEntry { kind, subsystem, address, port, hosts, tls });
            }
        }
    }
}

impl NvmeExports {
    /// Whether hosts may come to an address without TLS, generate a PSK, and come again with it.
    pub(crate) fn offers_concatenation(&self, portal: &NvmePortal) -> bool {
        portal.tls == TlsMode::Allow && self.tls.is_some()
    }

    /// Which PSKs a host that authenticates may generate on an admin queue that came like this.
    fn concatenation(
        &self,
        accepted: &AcceptedSocket,
        subsystem: TlsMode,
        (identity, is_proven): (Option<&PskIdentity>, bool),
    ) -> ConcatenationPolicy {
        let offers = self.portal(accepted.listener).is_some_and(|portal| self.offers_concatenation(portal));
        match (identity.map(|identity| identity.kind), subsystem) {
            (Some(PskKind::Generated), _) if is_proven => ConcatenationPolicy::Replacement,
            (None, TlsMode::Allow) if offers => ConcatenationPolicy::Allowed,
            (None, TlsMode::Require) if offers => ConcatenationPolicy::Required,
            (Some(PskKind::Generated | PskKind::Retained), _) | (None, _) => ConcatenationPolicy::Refused,
        }
    }
}

/// Whether a host proved what `rule` asks when it generated the PSK that it comes by. A PSK bears the host's name, not the
/// rule that it was generated under: the host has proved it if all secrets of hosts of this name are this rule's.
pub(crate) fn is_proven(identity: Option<&PskIdentity>, rules: &[HostRule], rule: &HostRule) -> bool {
    let Some(identity) = identity.filter(|identity| identity.kind == PskKind::Generated) else {
        return false;
    };
    let Some(own) = rule.auth.host() else { return false };
    let of_this_name = rules.iter().filter(|other| other.is_for_name(identity.host.as_str()));
    of_this_name.filter_map(|other| other.auth.host()).all(|other| own.constant_time_eq(other))
}

/// Whether hosts of a subsystem use TLS at an address. What they cannot do is not offered either.
fn discovery_entry_tls(portal: TlsMode, subsystem: TlsMode) -> EntryTls {
    match (portal, subsystem) {
        (TlsMode::Off, _) | (_, TlsMode::Off) => EntryTls::None,
        (TlsMode::Require, _) | (_, TlsMode::Require) => EntryTls::Required,
        (TlsMode::Allow, TlsMode::Allow) => EntryTls::Allowed,
    }
}

/// How a host authenticates, if it does.
fn authentication_of_rule(
    rule: &HostRule,
    names: &ConnectNames,
    policy: &DhchapPolicy,
    concatenation: ConcatenationPolicy,
) -> Option<Arc<RequiredAuthentication>> {
    let secret = rule.auth.host()?;
    let credentials = Credentials {
        host_nqn: names.host.as_str().to_owned(),
        subsystem_nqn: names.subsystem.as_str().to_owned(),
        host: Some(secret.derive_key(names.host.as_str())),
        controller: rule.auth.controller().map(|secret| secret.derive_key(names.subsystem.as_str())),
    };
    Some(Arc::new(RequiredAuthentication { credentials, policy: policy.clone(), concatenation }))
}

#[cfg(test)]
mod tests {
    use nvme::auth::DhchapSecret;

    use super::*;
    use crate::exports::HostAuth;

    const SECRETS: [&str; 2] = [
        "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:",
        "DHHC-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    ];

    fn rule(host: &str, secret: Option<usize>) -> HostRule {
        let auth = secret.map_or(HostAuth::None, |at| {
            HostAuth::Required(Arc::new(DhchapSecret::parse(SECRETS[at]).unwrap()))
        });
        let hosts = [host].iter().filter(|host| !host.is_empty()).map(|&host| host.into()).collect();
        HostRule { hosts, auth, ..HostRule::allow_any() }
    }

    #[test]
    fn a_generated_psk_proves_nothing_where_a_name_has_several_secrets() {
        let generated = format!("NVMe1G01 nqn.h nqn.s {:044}", 7);
        let generated = &PskIdentity::parse(generated.as_bytes()).unwrap();
        let retained = &PskIdentity::parse(b"NVMe0R01 nqn.h nqn.s").unwrap();
        let is_proven = |rules: &[HostRule]| is_proven(Some(generated), rules, &rules[0]);
        let own = || rule("nqn.h", Some(0));
        assert!(is_proven(&[own()]) && is_proven(&[own(), own(), rule("nqn.h", None)]));
        assert!(is_proven(&[own(), rule("nqn.other", Some(1))]), "another name's");
        assert!(!is_proven(&[own(), rule("nqn.h", Some(1))]));
        assert!(!is_proven(&[own(), rule("", Some(1))]), "any name's");
        assert!(!is_proven(&[rule("nqn.h", None), own()]) && !is_proven(&[rule("nqn.h", None)]));
        for identity in [None, Some(retained)] {
            assert!(!super::is_proven(identity, &[own()], &own()));
        }
    }
}
