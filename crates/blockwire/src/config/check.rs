//! Makes the [`Plan`]: everything that was said is checked against everything else, and nothing is
//! opened or applied before all of it holds.

use std::{collections::HashMap, net::SocketAddr};

use super::{
    diagnostic::{Located, Place, Sink},
    draft::{AuthDraft, Draft, HostDraft, TargetDraft},
};
use crate::{
    name::{self, VolumeName},
    network,
    plan::{
        Auth, AuthMethod, COMMANDS_DEFAULT, Host, Inquiry, IoWorld, Lun, Negotiation, Plan, Portal, Target,
        Volume,
    },
    suggest,
};

/// Most portals; each costs a socket on every core.
const PORTS_MAX: usize = 256;

/// What only the command line says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--allow-anonymous`.
    pub allow_anonymous: bool,
    /// `--cores`.
    pub cores: Vec<usize>,
    /// `--io`.
    pub io: IoWorld,
}

/// The plan. It may be used only if `sink` holds no error afterwards.
pub fn check(draft: Draft, options: &Options, sink: &Sink) -> Plan {
    let node = draft.node.as_ref().map(|node| node.value.clone());
    let auth =
        draft.auth.unwrap_or_else(|| Located::new(AuthDraft::default(), Place::whole("configuration")));
    unique(&draft.volumes, |volume| volume.name.as_str(), "volume", sink);
    unique(&draft.targets, |target| &target.name.value, "target", sink);
    unique(&draft.hosts, |host| &host.host.name, "host", sink);
    portals(&draft.portals, sink);
    let volumes: Vec<Volume> = draft.volumes.iter().map(|volume| volume.value.clone()).collect();
    let tags = tags(&draft.portals);
    let open_unless_said = draft.hosts.is_empty();
    let mut targets: Vec<Target> = Vec::new();
    for draft in &draft.targets {
        targets.push(target(&draft.value, &volumes, &tags, open_unless_said, sink));
    }
    for volume in &draft.volumes {
        let exported =
            targets.iter().any(|target| target.luns.iter().any(|lun| lun.volume == volume.value.name));
        if exported {
            continue;
        }
        let target = default_target(node.as_ref(), &volume.value, &tags, open_unless_said);
        if targets.iter().any(|other| other.name == target.name) {
            sink.error(
                &volume.at,
                format!(
                    "volume \"{}\" is in no target, and its default target \"{}\" is taken",
                    volume.value.name, target.name
                ),
            );
        }
        targets.push(target);
    }
    let hosts: Vec<Host> = draft.hosts.iter().map(|draft| host(draft, &targets, sink)).collect();
    methods(&auth, &hosts, sink);
    let plan = Plan {
        node,
        volumes,
        portals: draft.portals.iter().map(|portal| portal.value.clone()).collect(),
        targets,
        hosts,
        auth: auth.value.auth,
        limits: draft.limits.map(|limits| limits.value).unwrap_or_default(),
        cores: options.cores.clone(),
        io: options.io,
    };
    exposure(&plan, &draft.portals, options.allow_anonymous, sink);
    plan
}

/// The target that exports a volume which the configuration puts into none.
pub fn default_target(node: Option<&VolumeName>, volume: &Volume, tags: &[u16], open: bool) -> Target {
    Target {
        name: name::default_target(node, &volume.name),
        alias: None,
        portals: tags.to_vec(),
        luns: vec![Lun { lun: 0, volume: volume.name.clone(), read_only: false }],
        open,
        negotiation: Negotiation::default(),
        commands: COMMANDS_DEFAULT,
        inquiry: Inquiry::default(),
        explicit_alua: false,
        redirect: None,
    }
}

/// The tags of all portals, ascending, each once.
pub fn tags(portals: &[Located<Portal>]) -> Vec<u16> {
    let mut tags: Vec<u16> = portals.iter().map(|portal| portal.value.tag).collect();
    tags.sort_unstable();
    tags.dedup();
    tags
}

fn unique<'a, T>(items: &'a [Located<T>], key: impl Fn(&'a T) -> &'a str, what: &str, sink: &Sink) {
    let mut seen: HashMap<&str, &Place> = HashMap::new();
    for item in items {
        let name = key(&item.value);
        if let Some(first) = seen.get(name) {
            sink.error(&item.at, format!("{what} \"{name}\" is already named at {first}"));
        } else {
            seen.insert(name, &item.at);
        }
    }
}

fn portals(portals: &[Located<Portal>], sink: &Sink) {
    for (index, portal) in portals.iter().enumerate() {
        let clash =
            portals[..index].iter().find(|other| network::collide(other.value.address, portal.value.address));
        if let Some(other) = clash {
            sink.error(
                &portal.at,
                format!(
                    "portal {} is already in use by {} at {}",
                    portal.value.address, other.value.address, other.at
                ),
            );
        }
    }
    if let Some(portal) = portals.get(PORTS_MAX) {
        sink.error(&portal.at, format!("more than {PORTS_MAX} portals"));
    }
}

fn target(draft: &TargetDraft, volumes: &[Volume], tags: &[u16], open: bool, sink: &Sink) -> Target {
    let mut luns: Vec<Lun> = Vec::new();
    for lun in &draft.luns {
        let number = lun.lun.value as u16;
        if luns.iter().any(|other| other.lun == number) {
            sink.error(&lun.lun.at, format!("lun {number} stands twice in target \"{}\"", draft.name.value));
        }
        let Some(volume) = volumes.iter().find(|volume| volume.name.as_str() == lun.volume.value) else {
            let names = volumes.iter().map(|volume| volume.name.as_str());
            let hint = suggest::hint(&lun.volume.value, names);
            sink.error(&lun.volume.at, format!("there is no volume \"{}\"{hint}", lun.volume.value));
            continue;
        };
        if luns.iter().any(|other| other.volume == volume.name) {
            sink.error(
                &lun.volume.at,
                format!("volume \"{}\" stands twice in target \"{}\"", volume.name, draft.name.value),
            );
        }
        luns.push(Lun { lun: number, volume: volume.name.clone(), read_only: lun.read_only });
    }
    if !draft.luns_written && draft.redirect.is_none() {
        sink.error(&draft.name.at, format!("target \"{}\" has no luns", draft.name.value));
    }
    if let Some(first) = &draft.first_burst
        && first.value > u64::from(draft.negotiation.max_burst)
    {
        sink.error(
            &first.at,
            "first_burst in [[target]] must not be larger than max_burst (RFC 7143 §13.14)",
        );
    }
    Target {
        name: draft.name.value.clone(),
        alias: draft.alias.clone(),
        portals: target_portals(draft, tags, sink),
        luns,
        open: draft.open.unwrap_or(open),
        negotiation: draft.negotiation.clone(),
        commands: draft.commands,
        inquiry: draft.inquiry.clone(),
        explicit_alua: draft.explicit_alua,
        redirect: draft.redirect.clone(),
    }
}

fn target_portals(draft: &TargetDraft, tags: &[u16], sink: &Sink) -> Vec<u16> {
    let Some(wanted) = &draft.portals else { return tags.to_vec() };
    let mut chosen = Vec::new();
    for tag in wanted {
        let number = tag.value as u16;
        if !tags.contains(&number) {
            let known: Vec<String> = tags.iter().map(u16::to_string).collect();
            sink.error(&tag.at, format!("there is no portal with tag {number}; known: {}", known.join(", ")));
        }
        if chosen.contains(&number) {
            sink.error(&tag.at, format!("portals in [[target]] names tag {number} twice"));
        }
        chosen.push(number);
    }
    if wanted.is_empty() {
        sink.error(&draft.name.at, format!("target \"{}\" has an empty list of portals", draft.name.value));
    }
    chosen
}

fn host(draft: &Located<HostDraft>, targets: &[Target], sink: &Sink) -> Host {
    let mut host = draft.value.host.clone();
    for grant in &draft.value.grants {
        if let Some(wanted) = &grant.value.target {
            let Some(target) = targets.iter().find(|target| target.name == *wanted) else {
                let hint = suggest::hint(wanted, targets.iter().map(|target| target.name.as_str()));
                sink.error(&grant.at, format!("there is no target \"{wanted}\"{hint}"));
                continue;
            };
            let absent =
                grant.value.luns.iter().flatten().find(|n| !target.luns.iter().any(|lun| lun.lun == **n));
            if let Some(lun) = absent {
                sink.error(&grant.at, format!("target \"{wanted}\" has no lun {lun}"));
            }
        }
        if host.grants.iter().any(|other| other.target == grant.value.target) {
            let which = grant.value.target.as_deref().unwrap_or("*");
            sink.error(&grant.at, format!("host \"{}\" has two grants for \"{which}\"", host.name));
        }
        host.grants.push(grant.value.clone());
    }
    host
}

/// Methods without "chap" would make every secret useless, which nobody means.
fn methods(auth: &Located<AuthDraft>, hosts: &[Host], sink: &Sink) {
    let Some(methods) = &auth.value.methods else { return };
    let secrets = !auth.value.auth.chap.is_empty() || hosts.iter().any(|host| !host.chap.is_empty());
    if secrets && !methods.value.contains(&AuthMethod::Chap) {
        sink.error(&methods.at, "methods in [auth] lacks \"chap\", but there are CHAP users");
    }
}

/// Refuses listeners that strangers can reach without a secret.
fn exposure(plan: &Plan, portals: &[Located<Portal>], allow_anonymous: bool, sink: &Sink) {
    let public = portals.iter().filter(|portal| !network::is_loopback(portal.value.address.ip()));
    let mut any = None;
    for portal in public {
        any = Some(portal);
        if allow_anonymous {
            continue;
        }
        let reached = plan.targets.iter().filter(|target| target.portals.contains(&portal.value.tag));
        if let Some(target) = reached.into_iter().find(|target| anonymous(plan, target)) {
            sink.error(
                &portal.at,
                format!(
                    "portal {} is open beyond this machine and target \"{}\" asks for no authentication; \
                     configure CHAP, listen on 127.0.0.1, or give --allow-anonymous",
                    shown(portal.value.address),
                    target.name
                ),
            );
        }
    }
    if let Some(portal) = any
        && plan.node.is_none()
        && plan.targets.iter().any(|target| target.name.starts_with(name::TARGET_PREFIX))
    {
        sink.warn(
            &portal.at,
            "default target names are served beyond this machine without a node name; \
             set node (or --node) so that they differ from those of other machines",
        );
    }
}

fn shown(address: SocketAddr) -> String {
    address.to_string()
}

/// Whether someone may reach the target without a secret.
fn anonymous(plan: &Plan, target: &Target) -> bool {
    let Auth { chap, .. } = &plan.auth;
    let optional = plan.auth.methods().contains(&AuthMethod::None);
    if target.open && (chap.is_empty() || optional) {
        return true;
    }
    plan.hosts.iter().any(|host| {
        let granted =
            host.grants.iter().any(|grant| grant.target.as_ref().is_none_or(|name| *name == target.name));
        granted && ((host.chap.is_empty() && chap.is_empty()) || optional)
    })
}
