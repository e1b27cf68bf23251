//! Checks placement rules against portals, hosts, volumes and cores.

use crate::{
    diagnostic::{Located, Sink},
    draft::{HostDraft, placement::PlacementDraft},
    plan::{ConnectionPlacement, Portal, Volume},
};
use multipath::suggest;

/// What rules may refer to.
pub struct RuleReferences<'a> {
    /// The portals.
    pub portals: &'a [Located<Portal>],
    /// The hosts.
    pub hosts: &'a [Located<HostDraft>],
    /// The volumes.
    pub volumes: &'a [Volume],
    /// `--cores`; empty: those that the process may use, which the daemon looks at when it starts.
    pub cores: &'a [usize],
}

/// A rule, its references resolved.
pub fn resolve_placement(
    draft: &PlacementDraft,
    names: &RuleReferences<'_>,
    sink: &Sink,
) -> ConnectionPlacement {
    let host = draft.host.as_ref().and_then(|name| resolve_host(name, names.hosts, sink));
    let mut sources = draft.sources.clone();
    let mut peers = None;
    if let Some(HostDraft { host, .. }) = host {
        let names: Vec<String> = host.iqns.iter().chain(&host.nqns).cloned().collect();
        peers = (!names.is_empty()).then_some(names);
        if sources.is_empty() {
            sources.clone_from(&host.sources);
        }
    }
    let cores = draft.cores.iter().map(|core| {
        if !names.cores.is_empty() && !names.cores.contains(&(core.value as usize)) {
            let why = format!("core {} in [[placement]] is not one of --cores {:?}", core.value, names.cores);
            sink.note_error(&core.at, why);
        }
        core.value as usize
    });
    ConnectionPlacement {
        portals: match_portals(draft, names.portals, sink),
        sources,
        peers,
        volume: draft.volume.as_ref().and_then(|name| resolve_volume(name, names.volumes, sink)),
        when: draft.when.clone(),
        nth: draft.nth,
        cores: cores.collect(),
        bind: draft.bind,
    }
}

fn match_portals(draft: &PlacementDraft, portals: &[Located<Portal>], sink: &Sink) -> Option<Vec<usize>> {
    if let Some(named) = &draft.portal
        && !portals.iter().any(|portal| portal.value.address == named.value)
    {
        let known: Vec<String> = portals.iter().map(|portal| portal.value.address.to_string()).collect();
        let why = format!("portal {} in [[placement]] is none of {}", named.value, known.join(", "));
        sink.note_error(&named.at, why);
    }
    if draft.portal.is_none() && draft.protocol.is_none() {
        return None;
    }
    let fits = |portal: &Portal| {
        draft.portal.as_ref().is_none_or(|named| named.value == portal.address)
            && draft.protocol.is_none_or(|protocol| protocol == portal.protocol)
    };
    let all = portals.iter().enumerate();
    Some(all.filter(|(_, portal)| fits(&portal.value)).map(|(at, _)| at).collect())
}

fn resolve_host<'a>(
    name: &Located<String>,
    hosts: &'a [Located<HostDraft>],
    sink: &Sink,
) -> Option<&'a HostDraft> {
    let found = hosts.iter().map(|host| &host.value).find(|host| host.host.name == name.value);
    if found.is_none() {
        let hint =
            suggest::unknown_word_hint(&name.value, hosts.iter().map(|host| host.value.host.name.as_str()));
        sink.note_error(&name.at, format!("there is no host \"{}\"{hint}", name.value));
    }
    found
}

fn resolve_volume(
    name: &Located<String>,
    volumes: &[Volume],
    sink: &Sink,
) -> Option<crate::name::VolumeName> {
    let found = volumes.iter().find(|volume| volume.name.as_str() == name.value);
    if found.is_none() {
        let hint = suggest::unknown_word_hint(&name.value, volumes.iter().map(|volume| volume.name.as_str()));
        sink.note_error(&name.at, format!("there is no volume \"{}\"{hint}", name.value));
    }
    found.map(|volume| volume.name.clone())
}
