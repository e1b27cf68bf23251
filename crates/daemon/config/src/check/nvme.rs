//! Checks subsystems against volumes, portals and hosts, and finds hosts that reach one volume over both
//! protocols.

use std::collections::{HashMap, HashSet};

use super::VolumesByName;
use crate::{
    diagnostic::{Located, Sink},
    draft::{HostDraft, nvme::SubsystemDraft},
    name::{self, VolumeName},
    plan::{
        ControllerGrants, Host, MODEL_DEFAULT, NSID_MAX, Namespace, Plan, Subsystem, SubsystemGrant, Volume,
    },
};
use multipath::suggest;

/// The subsystem that exports a volume which the configuration puts into none.
pub fn default_subsystem(node: Option<&VolumeName>, volume: &Volume, tags: &[u16], open: bool) -> Subsystem {
    Subsystem {
        nqn: name::default_subsystem(node, &volume.name),
        portals: tags.to_vec(),
        namespaces: vec![Namespace { nsid: 1, volume: volume.name.clone(), read_only: false, ana_group: 1 }],
        open,
        serial: None,
        model: MODEL_DEFAULT.to_owned(),
        grants: ControllerGrants::default(),
        tls: shard::TlsMode::Allow,
    }
}

/// A configured subsystem; `open` is what holds where it does not say.
pub fn resolve_subsystem(
    draft: &SubsystemDraft,
    volumes: &VolumesByName<'_>,
    tags: &[u16],
    open: bool,
    sink: &Sink,
) -> Subsystem {
    let namespaces = resolve_namespaces(draft, volumes, sink);
    if !draft.namespaces_written {
        sink.note_error(&draft.nqn.at, format!("subsystem \"{}\" has no namespaces", draft.nqn.value));
    }
    let most = shard::namespaces_max(draft.grants.max_transfer) as usize;
    if namespaces.len() > most {
        let (nqn, count) = (&draft.nqn.value, namespaces.len());
        sink.note_error(
            &draft.nqn.at,
            format!("subsystem \"{nqn}\" has {count} namespaces, but hosts could not read the states of more than {most} at once with its max_transfer: use 16K or more"),
        );
    }
    Subsystem {
        nqn: draft.nqn.value.clone(),
        portals: super::resolve_portal_groups(
            "[[subsystem]]",
            &draft.nqn,
            draft.portals.as_deref(),
            tags,
            sink,
        ),
        namespaces,
        open: draft.open.unwrap_or(open),
        serial: Some(draft.serial.clone().unwrap_or_else(|| serial_for_nqn(&draft.nqn.value))),
        model: draft.model.clone(),
        grants: draft.grants,
        tls: draft.tls,
    }
}

fn resolve_namespaces(draft: &SubsystemDraft, volumes: &VolumesByName<'_>, sink: &Sink) -> Vec<Namespace> {
    let mut namespaces: Vec<Namespace> = Vec::new();
    let (mut numbers, mut names) = (HashSet::new(), HashSet::new());
    let mut next = 1;
    for written in &draft.namespaces {
        let nsid = written.nsid.as_ref().map_or(next, |nsid| nsid.value as u32);
        next = nsid.saturating_add(1);
        let at = written.nsid.as_ref().map_or(&written.volume.at, |nsid| &nsid.at);
        // Hosts are told of no greater one, and ask for none.
        if nsid > NSID_MAX {
            let why = format!("the next nsid would be above {NSID_MAX}: give the namespace a free one");
            sink.note_error(at, why);
            continue;
        }
        if !numbers.insert(nsid) {
            sink.note_error(at, format!("nsid {nsid} appears twice in subsystem \"{}\"", draft.nqn.value));
        }
        let Some(volume) = volumes.find(&written.volume, sink) else { continue };
        if !names.insert(&volume.name) {
            sink.note_error(
                &written.volume.at,
                format!("volume \"{}\" appears twice in subsystem \"{}\"", volume.name, draft.nqn.value),
            );
        }
        namespaces.push(Namespace {
            nsid,
            volume: volume.name.clone(),
            read_only: written.read_only,
            ana_group: written.ana_group.as_ref().map_or(draft.ana_group, |group| group.value as u32),
        });
    }
    namespaces
}

/// A serial number that stays with a name: 20 hexadecimal digits.
pub fn serial_for_nqn(nqn: &str) -> String {
    // FNV-1a over the name, 128 bits, of which 80 are shown: not a secret, only unlikely to collide.
    let hash = nqn.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    });
    format!("{:020x}", hash >> 48)
}

/// One volume is in one ANA group, in whatever subsystem it is.
pub fn check_ana_groups(subsystems: &[Subsystem], drafts: &[Located<SubsystemDraft>], sink: &Sink) {
    let mut first: HashMap<&VolumeName, u32> = HashMap::new();
    for (subsystem, draft) in subsystems.iter().zip(drafts) {
        for namespace in &subsystem.namespaces {
            let other = *first.entry(&namespace.volume).or_insert(namespace.ana_group);
            if other != namespace.ana_group {
                let why = format!(
                    "volume \"{}\" is in ANA group {} here and in {other} elsewhere; it can be in one only",
                    namespace.volume, namespace.ana_group
                );
                sink.note_error(&draft.at, why);
            }
        }
    }
}

/// The grants of a host for subsystems: its own, then those of subsystems that name it.
pub fn resolve_grants(
    draft: &Located<HostDraft>,
    subsystems: &[Subsystem],
    drafts: &[Located<SubsystemDraft>],
    sink: &Sink,
) -> Vec<SubsystemGrant> {
    let name = &draft.value.host.name;
    let mut grants: Vec<SubsystemGrant> = Vec::new();
    for grant in &draft.value.subsystem_grants {
        if let Some(wanted) = &grant.value.subsystem {
            let Some(subsystem) = subsystems.iter().find(|subsystem| subsystem.nqn == *wanted) else {
                let hint = suggest::unknown_word_hint(
                    wanted,
                    subsystems.iter().map(|subsystem| subsystem.nqn.as_str()),
                );
                sink.note_error(&grant.at, format!("there is no subsystem \"{wanted}\"{hint}"));
                continue;
            };
            let has = |nsid: u32| subsystem.namespaces.iter().any(|namespace| namespace.nsid == nsid);
            if let Some(nsid) = grant.value.namespaces.iter().flatten().find(|nsid| !has(**nsid)) {
                sink.note_error(&grant.at, format!("subsystem \"{wanted}\" has no namespace {nsid}"));
            }
        }
        if grants.iter().any(|other| other.subsystem == grant.value.subsystem) {
            let which = grant.value.subsystem.as_deref().unwrap_or("*");
            sink.note_error(&grant.at, format!("host \"{name}\" has two grants for \"{which}\""));
        }
        grants.push(grant.value.clone());
    }
    for subsystem in drafts {
        let Some(named) = subsystem.value.hosts.iter().find(|host| host.value == *name) else { continue };
        let nqn = &subsystem.value.nqn.value;
        if grants.iter().any(|grant| grant.subsystem.as_ref() == Some(nqn)) {
            sink.note_error(&named.at, format!("host \"{name}\" has two grants for \"{nqn}\""));
        }
        let grant = SubsystemGrant { subsystem: Some(nqn.clone()), namespaces: None, read_only: false };
        grants.push(grant);
    }
    // One that is blocked reaches nothing.
    if !draft.value.access_written && grants.is_empty() && !draft.value.host.blocked {
        sink.note_error(
            &draft.at,
            format!("host \"{name}\" needs the key \"access\", or a subsystem that names it"),
        );
    }
    grants
}

/// Every name in `hosts` is that of a host.
pub fn check_hosts_exist(drafts: &[Located<SubsystemDraft>], hosts: &[Located<HostDraft>], sink: &Sink) {
    for named in drafts.iter().flat_map(|draft| &draft.value.hosts) {
        let names = hosts.iter().map(|host| host.value.host.name.as_str());
        if !names.clone().any(|name| name == named.value) {
            let hint = suggest::unknown_word_hint(&named.value, names);
            sink.note_error(&named.at, format!("there is no host \"{}\"{hint}", named.value));
        }
    }
}

/// Nothing that hosts run today merges an iSCSI and an NVMe path to one disk: two file systems would
/// be mounted from it. So a host that can reach a volume both ways must say that it knows.
pub fn check_single_protocol(plan: &Plan, drafts: &[Located<HostDraft>], sink: &Sink) {
    for (host, draft) in plan.hosts.iter().zip(drafts) {
        if let Some(why) = dual_protocol_conflict(plan, host) {
            if is_single_machine(host) {
                sink.note_error(&draft.at, why);
            } else {
                sink.note_warning(&draft.at, why);
            }
        }
    }
}

/// What stands against a plan by which one machine reaches a volume over both protocols.
pub fn dual_protocol_error(plan: &Plan, host: &Host) -> Option<String> {
    is_single_machine(host).then(|| dual_protocol_conflict(plan, host)).flatten()
}

/// Names say for certain that one machine is meant; a network may hold two.
fn is_single_machine(host: &Host) -> bool {
    !host.iqns.is_empty() && !host.nqns.is_empty()
}

fn dual_protocol_conflict(plan: &Plan, host: &Host) -> Option<String> {
    if host.both {
        return None;
    }
    let (volume, target, subsystem) = dual_protocol_volume(plan, host)?;
    Some(format!(
        "host \"{}\" reaches volume \"{volume}\" over iSCSI (target \"{target}\") and over NVMe/TCP (subsystem \
         \"{subsystem}\"), but no operating system's multipath combines the two; remove one, or set both = true",
        host.name
    ))
}

/// A volume that the host's own grants lead to by both protocols.
fn dual_protocol_volume<'a>(plan: &'a Plan, host: &Host) -> Option<(&'a VolumeName, &'a str, &'a str)> {
    let mut over_nvme: HashMap<&VolumeName, &str> = HashMap::new();
    for subsystem in plan.ways.subsystems.iter().filter(|_| host.may_use_nvme()) {
        let Some(grant) = host.subsystem_grant(&subsystem.nqn) else { continue };
        let seen = |nsid: u32| grant.namespaces.as_ref().is_none_or(|list| list.contains(&nsid));
        for namespace in subsystem.namespaces.iter().filter(|one| seen(one.nsid)) {
            over_nvme.entry(&namespace.volume).or_insert(&subsystem.nqn);
        }
    }
    for target in plan.ways.targets.iter().filter(|_| host.may_use_iscsi()) {
        let Some(grant) = host.target_grant(&target.name) else { continue };
        let seen =
            |lun: u16| grant.luns.as_ref().is_none_or(|luns| luns.iter().any(|(number, _)| *number == lun));
        for lun in target.luns.iter().filter(|lun| seen(lun.lun)) {
            if let Some(subsystem) = over_nvme.get(&lun.volume) {
                return Some((&lun.volume, &target.name, subsystem));
            }
        }
    }
    None
}

/// Whether someone may reach the subsystem without a secret.
pub fn is_reachable_without_secret(plan: &Plan, subsystem: &Subsystem) -> bool {
    let common = plan.auth.dhchap.is_some();
    if subsystem.open && !common {
        return true;
    }
    plan.hosts
        .iter()
        .filter(|host| host.may_use_nvme())
        .any(|host| host.subsystem_grant(&subsystem.nqn).is_some() && host.dhchap.is_none() && !common)
}
