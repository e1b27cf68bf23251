//! Makes the [`Plan`]: all settings are checked against each other, and nothing is opened or applied before
//! every check has passed.

mod controller_keys;
mod group;
mod nvme;
mod placement;
mod warnings;

pub use self::group::conflict as group_conflict;
pub use nvme::{default_subsystem, serial_for_nqn};

use std::collections::{HashMap, HashSet};

use super::{
    diagnostic::{Located, Place, Sink},
    draft::{AuthDraft, Draft, HostDraft, TargetDraft},
};
use crate::{
    name::{self, VolumeName},
    network,
    plan::{
        AuthMethod, ExportPlan, Host, InquiryStrings, IoEngine, Lun, Negotiation, Plan, Portal, Protocol,
        SESSION_COMMANDS_DEFAULT, SandboxSettings, Subsystem, Target, Volume,
    },
};
use multipath::suggest;

/// Most portals; each costs a socket on every core.
pub const PORTALS_MAX: usize = 256;

/// What only the command line says.
#[derive(Clone, Debug, Default)]
pub struct CommandLineOptions {
    /// `--allow-anonymous`.
    pub allow_anonymous: bool,
    /// `--cores`.
    pub cores: Vec<usize>,
    /// `--io`.
    pub io: IoEngine,
    /// `--sandbox` or `--no-sandbox`; `None`: as `[sandbox]` says.
    pub sandbox: Option<bool>,
}

/// The plan. It may be used only if `sink` holds no error afterwards.
pub fn resolve_draft(draft: Draft, options: &CommandLineOptions, sink: &Sink) -> Plan {
    let node = draft.node.as_ref().map(|node| node.value.clone());
    let auth = draft
        .auth
        .unwrap_or_else(|| Located::new(AuthDraft::default(), Place::outside_file("configuration")));
    check_unique(&draft.volumes, |volume| volume.name.as_str(), "volume", sink);
    check_unique(&draft.targets, |target| &target.name.value, "target", sink);
    check_unique(&draft.hosts, |host| &host.host.name, "host", sink);
    check_unique(&draft.subsystems, |subsystem| &subsystem.nqn.value, "subsystem", sink);
    nvme::check_hosts_exist(&draft.subsystems, &draft.hosts, sink);
    check_portals(&draft.portals, sink);
    let mut volumes: Vec<Volume> = draft.volumes.iter().map(|volume| volume.value.clone()).collect();
    let group = draft.group.map(|section| section.value);
    if let Some(group) = &group {
        group::check_group(group, &draft.volumes, sink);
        volumes.iter_mut().for_each(|volume| group::join_group(group, volume));
    }
    let volumes = volumes;
    let known = VolumesByName::of(&volumes);
    let open_unless_said = draft.hosts.is_empty();
    let iscsi = located_portal_tags(&draft.portals, Protocol::Iscsi);
    let nvme_tags = located_portal_tags(&draft.portals, Protocol::Nvme);
    let unsaid = draft.targets.iter().any(|target| target.value.open.is_none())
        || draft.subsystems.iter().any(|subsystem| subsystem.value.open.is_none());
    let mut targets: Vec<Target> = Vec::new();
    let draft_portals = &draft.portals;
    for draft in &draft.targets {
        targets.push(resolve_target(&draft.value, &known, (draft_portals, &iscsi), open_unless_said, sink));
    }
    let mut subsystems: Vec<Subsystem> = Vec::new();
    for draft in &draft.subsystems {
        subsystems.push(nvme::resolve_subsystem(&draft.value, &known, &nvme_tags, open_unless_said, sink));
    }
    nvme::check_ana_groups(&subsystems, &draft.subsystems, sink);
    let mut ways = ExportPlan { targets, subsystems };
    // Who has said where a volume is to be found has also said where not.
    let defaults: Vec<ExportPlan> = {
        let (exported, taken) = (exported(&ways), TakenNames::of(&ways));
        let unnamed = draft.volumes.iter().filter(|volume| !exported.contains(&volume.value.name));
        let tags = (iscsi.as_slice(), nvme_tags.as_slice());
        unnamed
            .map(|volume| default_exports(node.as_ref(), volume, tags, open_unless_said, &taken, sink))
            .collect()
    };
    defaults.iter().for_each(|one| ways.extend(one));
    let hosts: Vec<Host> = draft
        .hosts
        .iter()
        .map(|one| {
            let mut host = resolve_host(one, &ways.targets, sink);
            host.subsystem_grants = nvme::resolve_grants(one, &ways.subsystems, &draft.subsystems, sink);
            host
        })
        .collect();
    check_auth_methods(&auth, &hosts, &ways.targets, sink);
    check_discovery_auth(&auth, &hosts, sink);
    controller_keys::check_controller_keys(&draft.hosts, &auth, sink);
    crate::tls::check_keys_exist(&draft.portals, &hosts, &auth.value.auth, sink);
    let names = placement::RuleReferences {
        portals: &draft.portals,
        hosts: &draft.hosts,
        volumes: &volumes,
        cores: &options.cores,
    };
    let placement =
        draft.placement.iter().map(|one| placement::resolve_placement(one, &names, sink)).collect();
    if let Some(http) = &draft.http
        && !network::is_loopback(http.value.ip())
    {
        sink.note_warning(
            &http.at,
            "metrics are served without authentication: other machines can read the names of volumes and hosts \
             there; restrict the port by a firewall, or use an address of this machine alone",
        );
    }
    let sandbox = draft.sandbox.map(|section| section.value).unwrap_or_default();
    let plan = Plan {
        node,
        http: draft.http.map(|http| http.value),
        control_group: draft.control_group.map(|group| group.value),
        placement,
        volumes,
        portals: draft.portals.iter().map(|portal| portal.value.clone()).collect(),
        ways,
        referrals: draft.referrals,
        oui: draft.oui.map(|oui| oui.value),
        hosts,
        auth: auth.value.auth,
        allow_anonymous: options.allow_anonymous,
        limits: draft.limits.map(|limits| limits.value).unwrap_or_default(),
        cores: options.cores.clone(),
        io: options.io,
        sandbox: SandboxSettings { is_enabled: options.sandbox.unwrap_or(sandbox.is_enabled), ..sandbox },
        group,
    };
    nvme::check_single_protocol(&plan, &draft.hosts, sink);
    let is_left_to_hosts = unsaid || !defaults.is_empty();
    warnings::note_plan_warnings(&plan, &draft.hosts, &draft.volumes, is_left_to_hosts, sink);
    check_exposure(&plan, &draft.portals, sink);
    plan
}

/// Volumes by name: each is named as often as targets and subsystems lead to it.
struct VolumesByName<'a>(HashMap<&'a str, &'a Volume>);

impl<'a> VolumesByName<'a> {
    fn of(volumes: &'a [Volume]) -> Self {
        let mut known = HashMap::new();
        for volume in volumes {
            known.entry(volume.name.as_str()).or_insert(volume);
        }
        VolumesByName(known)
    }

    /// The volume of that name, or a complaint.
    fn find(&self, wanted: &Located<String>, sink: &Sink) -> Option<&'a Volume> {
        let found = self.0.get(wanted.value.as_str()).copied();
        if found.is_none() {
            let mut names: Vec<&str> = self.0.keys().copied().collect();
            names.sort_unstable();
            let hint = suggest::unknown_word_hint(&wanted.value, names);
            sink.note_error(&wanted.at, format!("there is no volume \"{}\"{hint}", wanted.value));
        }
        found
    }
}

/// The volumes that targets and subsystems lead to.
fn exported(ways: &ExportPlan) -> HashSet<&VolumeName> {
    let luns = ways.targets.iter().flat_map(|target| &target.luns).map(|lun| &lun.volume);
    let namespaces = ways.subsystems.iter().flat_map(|one| &one.namespaces).map(|one| &one.volume);
    luns.chain(namespaces).collect()
}

/// The names of targets and subsystems that are configured.
struct TakenNames<'a> {
    targets: HashSet<&'a str>,
    subsystems: HashSet<&'a str>,
}

impl<'a> TakenNames<'a> {
    fn of(ways: &'a ExportPlan) -> Self {
        TakenNames {
            targets: ways.targets.iter().map(|target| target.name.as_str()).collect(),
            subsystems: ways.subsystems.iter().map(|one| one.nqn.as_str()).collect(),
        }
    }
}

/// The default target and subsystem of a volume, where there are portals for them.
fn default_exports(
    node: Option<&VolumeName>,
    volume: &Located<Volume>,
    (iscsi, nvme): (&[u16], &[u16]),
    open: bool,
    configured: &TakenNames<'_>,
    sink: &Sink,
) -> ExportPlan {
    let taken = |what: &str, name: &str| {
        let volume_name = &volume.value.name;
        let why =
            format!("volume \"{volume_name}\" is in no {what}, and its default {what} \"{name}\" is taken");
        sink.note_error(&volume.at, why);
    };
    let mut ways = ExportPlan::default();
    if !iscsi.is_empty() {
        let target = default_target(node, &volume.value, iscsi, open);
        if configured.targets.contains(target.name.as_str()) {
            taken("target", &target.name);
        }
        ways.targets.push(target);
    }
    if !nvme.is_empty() {
        let subsystem = default_subsystem(node, &volume.value, nvme, open);
        if configured.subsystems.contains(subsystem.nqn.as_str()) {
            taken("subsystem", &subsystem.nqn);
        }
        ways.subsystems.push(subsystem);
    }
    ways
}

/// The target that exports a volume which the configuration puts into none.
pub fn default_target(node: Option<&VolumeName>, volume: &Volume, tags: &[u16], open: bool) -> Target {
    Target {
        name: name::default_target(node, &volume.name),
        is_default: true,
        alias: None,
        portals: tags.to_vec(),
        listeners: None,
        luns: vec![Lun { lun: 0, volume: volume.name.clone(), read_only: false }],
        open,
        negotiation: Negotiation::default(),
        commands: SESSION_COMMANDS_DEFAULT,
        inquiry: InquiryStrings::default(),
        explicit_alua: false,
        redirect: None,
        sent_on: Vec::new(),
        auth: None,
        nop_timeout: None,
    }
}

/// The tags of the portals of a protocol, ascending, each once.
fn located_portal_tags(portals: &[Located<Portal>], protocol: Protocol) -> Vec<u16> {
    portal_tags(portals.iter().map(|portal| &portal.value), protocol)
}

/// The tags of the portals of a protocol, ascending, each once.
pub fn portal_tags<'a>(portals: impl Iterator<Item = &'a Portal>, protocol: Protocol) -> Vec<u16> {
    let spoken = portals.filter(|portal| portal.protocol == protocol);
    let mut tags: Vec<u16> = spoken.map(|portal| portal.tag).collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}

fn check_unique<'a, T>(items: &'a [Located<T>], key: impl Fn(&'a T) -> &'a str, what: &str, sink: &Sink) {
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for item in items {
        let name = key(&item.value);
        if let Some(first) = seen.get(name) {
            sink.note_error(&item.at, format!("{what} \"{name}\" is already named at {first}"));
        } else {
            seen.insert(name, &item.at);
        }
    }
}

fn check_portals(portals: &[Located<Portal>], sink: &Sink) {
    for (index, portal) in portals.iter().enumerate() {
        let clash = portals
            .iter()
            .take(index)
            .find(|other| network::addresses_conflict(other.value.address, portal.value.address));
        if let Some(other) = clash {
            sink.note_error(
                &portal.at,
                format!(
                    "portal {} is already in use by {} at {}",
                    portal.value.address, other.value.address, other.at
                ),
            );
        }
    }
    if let Some(portal) = portals.get(PORTALS_MAX) {
        sink.note_error(&portal.at, format!("more than {PORTALS_MAX} portals"));
    }
}

fn resolve_target(
    draft: &TargetDraft,
    volumes: &VolumesByName<'_>,
    (portals, tags): (&[Located<Portal>], &[u16]),
    open: bool,
    sink: &Sink,
) -> Target {
    let mut luns: Vec<Lun> = Vec::new();
    let (mut numbers, mut names) = (HashSet::new(), HashSet::new());
    for lun in &draft.luns {
        let number = lun.lun.value as u16;
        if !numbers.insert(number) {
            sink.note_error(
                &lun.lun.at,
                format!("lun {number} appears twice in target \"{}\"", draft.name.value),
            );
        }
        let Some(volume) = volumes.find(&lun.volume, sink) else { continue };
        if !names.insert(&volume.name) {
            sink.note_error(
                &lun.volume.at,
                format!("volume \"{}\" appears twice in target \"{}\"", volume.name, draft.name.value),
            );
        }
        luns.push(Lun { lun: number, volume: volume.name.clone(), read_only: lun.read_only });
    }
    if !draft.luns_written && draft.redirect.is_none() {
        sink.note_error(&draft.name.at, format!("target \"{}\" has no luns", draft.name.value));
    }
    if let Some(first) = &draft.first_burst
        && first.value > u64::from(draft.negotiation.max_burst)
    {
        sink.note_error(
            &first.at,
            "first_burst in [[target]] must not be larger than max_burst (RFC 7143 §13.14)",
        );
    }
    Target {
        name: draft.name.value.clone(),
        is_default: false,
        alias: draft.alias.clone(),
        portals: resolve_portal_groups("[[target]]", &draft.name, draft.portals.as_deref(), tags, sink),
        listeners: draft.addresses.as_ref().map(|addresses| {
            let own = |portal: &Located<Portal>| addresses.contains(&portal.value.address);
            portals.iter().enumerate().filter(|(_, portal)| own(portal)).map(|(at, _)| at).collect()
        }),
        luns,
        open: draft.open.unwrap_or(open),
        negotiation: draft.negotiation.clone(),
        commands: draft.commands,
        inquiry: draft.inquiry.clone(),
        explicit_alua: draft.explicit_alua,
        redirect: draft.redirect.clone(),
        sent_on: draft.sent_on.clone(),
        auth: draft.auth.clone(),
        nop_timeout: draft.nop_timeout,
    }
}

/// The portal groups that a target or subsystem is reached by.
fn resolve_portal_groups(
    title: &str,
    name: &Located<String>,
    wanted: Option<&[Located<u64>]>,
    tags: &[u16],
    sink: &Sink,
) -> Vec<u16> {
    let what = title.trim_matches(['[', ']']);
    if tags.is_empty() {
        let protocol = if what == "target" { "iscsi" } else { "nvme" };
        let why =
            format!("{what} \"{}\" cannot be reached: no portal has protocol \"{protocol}\"", name.value);
        sink.note_error(&name.at, why);
        return Vec::new();
    }
    let Some(wanted) = wanted else { return tags.to_vec() };
    let mut chosen = Vec::new();
    for tag in wanted {
        let number = tag.value as u16;
        if !tags.contains(&number) {
            let known: Vec<String> = tags.iter().map(u16::to_string).collect();
            sink.note_error(
                &tag.at,
                format!("there is no portal with tag {number}; known: {}", known.join(", ")),
            );
        }
        if chosen.contains(&number) {
            sink.note_error(&tag.at, format!("portals in {title} names tag {number} twice"));
        }
        chosen.push(number);
    }
    if wanted.is_empty() {
        sink.note_error(&name.at, format!("{what} \"{}\" has an empty list of portals", name.value));
    }
    chosen
}

fn resolve_host(draft: &Located<HostDraft>, targets: &[Target], sink: &Sink) -> Host {
    let mut host = draft.value.host.clone();
    for grant in &draft.value.grants {
        if let Some(wanted) = &grant.value.target {
            let Some(target) = targets.iter().find(|target| target.name == *wanted) else {
                let hint =
                    suggest::unknown_word_hint(wanted, targets.iter().map(|target| target.name.as_str()));
                sink.note_error(&grant.at, format!("there is no target \"{wanted}\"{hint}"));
                continue;
            };
            let absent =
                grant.value.luns.iter().flatten().find(|(n, _)| !target.luns.iter().any(|lun| lun.lun == *n));
            if let Some((lun, _)) = absent {
                sink.note_error(&grant.at, format!("target \"{wanted}\" has no lun {lun}"));
            }
        }
        if host.grants.iter().any(|other| other.target == grant.value.target) {
            let which = grant.value.target.as_deref().unwrap_or("*");
            sink.note_error(&grant.at, format!("host \"{}\" has two grants for \"{which}\"", host.name));
        }
        host.grants.push(grant.value.clone());
    }
    host
}

/// Methods without "chap" would make every secret useless, which nobody means.
fn check_auth_methods(auth: &Located<AuthDraft>, hosts: &[Host], targets: &[Target], sink: &Sink) {
    let Some(methods) = &auth.value.methods else { return };
    let secrets = !auth.value.auth.chap.is_empty()
        || hosts.iter().any(|host| !host.chap.is_empty())
        || targets.iter().any(|target| target.auth.as_ref().is_some_and(|own| own.methods.is_empty()));
    if secrets && !methods.value.contains(&AuthMethod::Chap) {
        sink.note_error(&methods.at, "methods in [auth] lacks \"chap\", but there are CHAP users");
    }
}

/// Where no host has a secret, none could prove itself to the discovery service.
fn check_discovery_auth(auth: &Located<AuthDraft>, hosts: &[Host], sink: &Sink) {
    let common = auth.value.auth.dhchap_discovery_key.is_some() || auth.value.auth.dhchap.is_some();
    let own = hosts.iter().any(|host| host.may_use_nvme() && host.dhchap.is_some());
    if let Some(at) = auth.value.discovery.as_ref().filter(|on| on.value && !common && !own) {
        let why = "dhchap_discovery in [auth] requires authentication, but no host has a secret; \
                   set dhchap_discovery_key_file or dhchap_key_file";
        sink.note_error(&at.at, why);
    }
}

/// Why `ways` may not be added to those of a plan: the next start, which looks at all of them, would be refused.
pub fn export_conflict(plan: &Plan, ways: &ExportPlan) -> Option<String> {
    let plan = Plan { ways: ways.clone(), ..plan.clone() };
    let open = plan.portals.iter().find_map(|portal| portal_exposure_error(&plan, portal));
    open.or_else(|| plan.hosts.iter().find_map(|host| nvme::dual_protocol_error(&plan, host)))
}

/// Refuses listeners that strangers can reach without a secret.
fn check_exposure(plan: &Plan, portals: &[Located<Portal>], sink: &Sink) {
    let public = portals.iter().filter(|portal| !network::is_loopback(portal.value.address.ip()));
    let mut any = None;
    for portal in public {
        any = Some(portal);
        if let Some(why) = portal_exposure_error(plan, &portal.value) {
            sink.note_error(&portal.at, why);
        }
    }
    if let Some(portal) = any
        && plan.node.is_none()
        && (plan.ways.targets.iter().any(|target| target.name.starts_with(name::TARGET_PREFIX))
            || plan.ways.subsystems.iter().any(|subsystem| subsystem.nqn.starts_with(name::SUBSYSTEM_PREFIX)))
    {
        sink.note_warning(
            &portal.at,
            "default names are visible to other machines, but no node name is set; set node (or --node) to make \
             them unique",
        );
    }
}

/// What is wrong with a portal by which strangers come from beyond this machine.
fn portal_exposure_error(plan: &Plan, portal: &Portal) -> Option<String> {
    if plan.allow_anonymous || network::is_loopback(portal.address.ip()) {
        return None;
    }
    let (what, remedy) = anonymous_access(plan, portal)?;
    Some(format!(
        "portal {} is reachable from other machines and {what} requires no \
         authentication; {remedy}, listen on 127.0.0.1, \
         or give --allow-anonymous",
        portal.address
    ))
}

/// What strangers can reach by a portal without a secret, and what to do about it. A discovery service
/// alone shows names, and only those that its asker may reach.
fn anonymous_access(plan: &Plan, portal: &Portal) -> Option<(String, &'static str)> {
    match portal.protocol {
        Protocol::Iscsi => {
            let mut reached = plan.ways.targets.iter().filter(|target| target.portals.contains(&portal.tag));
            let target = reached.find(|target| is_reachable_without_secret(plan, target))?;
            Some((format!("target \"{}\"", target.name), "configure CHAP"))
        }
        // A key of TLS proves who a host is.
        Protocol::Nvme if portal.tls == shard::TlsMode::Require => None,
        Protocol::Nvme => {
            let mut reached = plan
                .ways
                .subsystems
                .iter()
                .filter(|one| one.portals.contains(&portal.tag) && one.tls != shard::TlsMode::Require);
            let subsystem = reached.find(|subsystem| nvme::is_reachable_without_secret(plan, subsystem))?;
            Some((format!("subsystem \"{}\"", subsystem.nqn), "configure dhchap_key_file"))
        }
        Protocol::NvmeDiscovery => None,
    }
}

/// Whether someone may reach the target without a secret.
fn is_reachable_without_secret(plan: &Plan, target: &Target) -> bool {
    let chap = plan.auth.shared_credentials(target);
    let optional = plan.auth.target_methods(target).contains(&AuthMethod::None);
    if target.open && (chap.is_empty() || optional) {
        return true;
    }
    plan.hosts.iter().any(|host| {
        let granted = host.may_use_iscsi() && host.target_grant(&target.name).is_some();
        granted && ((host.chap.is_empty() && chap.is_empty()) || optional)
    })
}
