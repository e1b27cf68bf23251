//! The model as TOML, with the notes as comments beside what they became.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::SocketAddr,
};

use config::network;

use crate::{
    ImportResult,
    model::{
        ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Volume,
        controller_key_file_name, key_file_name,
    },
    note::{Note, NoteOutcome},
};

/// How secrets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretFormat {
    /// As they are: for a file that its owner alone can read.
    Yes,
    /// Not at all: for a terminal. What is written is not complete.
    No,
    /// As they are, but no file with a secret is named: for a check before there are such files.
    WithoutKeyFiles,
}

/// Writes all of it.
pub fn render_toml(imported: &ImportResult, secrets: SecretFormat) -> String {
    let (model, source) = (&imported.model, imported.source.as_str());
    let mut out = render_header(imported, secrets);
    render_notes(&mut out, source, &model.notes);
    for volume in &model.volumes {
        render_volume(&mut out, source, volume, model.is_exported(volume));
    }
    let groups = PortalGroups::of(model);
    render_portals(&mut out, &groups);
    for export in &model.exports {
        render_export(&mut out, imported, export, &groups, secrets);
    }
    for address in &model.referrals {
        let _ = write!(out, "\n[[referral]]\naddress = {}\n", quoted_string(&address.to_string()));
    }
    for (at, host) in model.hosts.iter().enumerate() {
        render_host(&mut out, source, (at, host), secrets);
    }
    if !model.discovery.is_empty() || model.has_short_secrets() {
        out.push_str("\n[auth]\n");
        render_chap(&mut out, "discovery", &model.discovery, secrets);
        if model.has_short_secrets() {
            out.push_str("allow_short_secrets = true         # secrets of fewer than 12 bytes are in use\n");
        }
    }
    if !model.limits.is_empty() {
        out.push_str("\n[limits]\n");
        for (key, value) in &model.limits {
            let _ = writeln!(out, "{key} = {value}");
        }
    }
    out
}

fn render_header(imported: &ImportResult, secrets: SecretFormat) -> String {
    let count = |outcome| imported.notes().iter().filter(|note| note.outcome == outcome).count();
    let mut out = format!(
        "# From {} ({}). Each setting has a note with its line there.\n",
        crate::note::printable_value(&imported.source),
        imported.format
    );
    let _ = writeln!(
        out,
        "# {} applied, {} emulated, {} not applicable, {} not carried over (ERROR).",
        count(NoteOutcome::Applied),
        count(NoteOutcome::Emulated),
        count(NoteOutcome::NotApplicable),
        count(NoteOutcome::Error)
    );
    if imported.needs_anonymous {
        out.push_str(
            "# Hosts beyond this machine need no secret for some of this: serve needs --allow-anonymous.\n",
        );
    }
    if secrets == SecretFormat::No && imported.has_secrets() {
        out.push_str(
            "# Secrets are left out here; `-o FILE` writes them, to a file that only its owner can read.\n",
        );
    }
    out
}

/// A text in quotes.
pub fn quoted_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A text as it may stand in a comment.
fn comment_text(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn render_notes(out: &mut String, source: &str, notes: &[Note]) {
    for note in notes {
        // A line of a file that was included is told with its file.
        let file = if note.file == source { String::new() } else { format!("{} ", note.file) };
        let why = if note.why.is_empty() { String::new() } else { format!(": {}", note.why) };
        let said = format!("{file}{}: {}{why}", note.setting, note.outcome.as_str());
        let _ = writeln!(out, "# {:>4}  {}", note.line, comment_text(&said));
    }
}

/// A volume that nothing exports stays a comment: it would be served under a name of its own.
fn render_volume(out: &mut String, source: &str, volume: &Volume, is_exported: bool) {
    let mark = if is_exported { "" } else { "# " };
    out.push('\n');
    if !is_exported {
        let _ = writeln!(out, "# Nothing exports {}: it is not served.", quoted_string(&volume.name));
    }
    let _ = writeln!(out, "{mark}[[volume]]\n{mark}name = {}", quoted_string(&volume.name));
    let _ = writeln!(out, "{mark}source = {}", quoted_string(&volume.spec.to_string()));
    render_notes(out, source, &volume.notes);
}

/// The portal groups: addresses that lead to the same targets and subsystems are one.
struct PortalGroups {
    /// For each address, its protocol and tag.
    tags: BTreeMap<(Protocol, SocketAddr), u16>,
}

impl PortalGroups {
    fn of(model: &ImportModel) -> Self {
        let mut leads: BTreeMap<(Protocol, SocketAddr), BTreeSet<usize>> = BTreeMap::new();
        let every = |protocol| model.exports.iter().filter(move |export| export.protocol == protocol);
        for (at, export) in model.exports.iter().enumerate() {
            for address in &export.portals {
                let own = every(export.protocol).flat_map(|export| export.portals.iter().copied());
                let listener = listener_address(*address, own);
                leads.entry((export.protocol, listener)).or_default().insert(at);
            }
        }
        for address in &model.discovery_portals {
            leads.entry((Protocol::NvmeDiscovery, *address)).or_default();
        }
        let mut sets: Vec<(Protocol, &BTreeSet<usize>)> = Vec::new();
        let mut tags = BTreeMap::new();
        for ((protocol, address), set) in &leads {
            let at = sets.iter().position(|known| *known == (*protocol, set)).unwrap_or_else(|| {
                sets.push((*protocol, set));
                sets.len() - 1
            });
            tags.insert((*protocol, *address), u16::try_from(at + 1).unwrap_or(u16::MAX));
        }
        PortalGroups { tags }
    }

    /// The tags of an export.
    fn tags_of_export(&self, export: &Export) -> BTreeSet<u16> {
        let known = self.tags.iter().filter(|((protocol, _), _)| *protocol == export.protocol);
        let own = known.filter(|((_, listener), _)| {
            export.portals.iter().any(|address| {
                *listener == *address
                    || (network::addresses_conflict(*listener, *address) && listener.ip().is_unspecified())
            })
        });
        own.map(|(_, tag)| *tag).collect()
    }
}

/// What listens for an address: itself, or the wildcard of its family on that port.
fn listener_address(address: SocketAddr, all: impl Iterator<Item = SocketAddr>) -> SocketAddr {
    let mut all = all;
    let covers =
        |other: &SocketAddr| other.ip().is_unspecified() && network::addresses_conflict(*other, address);
    all.find(covers).unwrap_or(address)
}

fn render_portals(out: &mut String, groups: &PortalGroups) {
    for ((protocol, address), tag) in &groups.tags {
        let word = match protocol {
            Protocol::Iscsi => "iscsi",
            Protocol::Nvme => "nvme",
            Protocol::NvmeDiscovery => "nvme-discovery",
        };
        let _ = write!(
            out,
            "\n[[portal]]\nprotocol = \"{word}\"\naddress = {}\n",
            quoted_string(&address.to_string())
        );
        if *tag != 1 {
            let _ = writeln!(out, "tag = {tag}");
        }
    }
}

fn render_export(
    out: &mut String,
    imported: &ImportResult,
    export: &Export,
    groups: &PortalGroups,
    secrets: SecretFormat,
) {
    let (model, source) = (&imported.model, imported.source.as_str());
    let (title, name, units) = match export.protocol {
        Protocol::Iscsi => ("target", "name", "luns"),
        Protocol::Nvme | Protocol::NvmeDiscovery => ("subsystem", "nqn", "namespaces"),
    };
    let _ = writeln!(out, "\n[[{title}]]\n{name} = {}", quoted_string(&export.name));
    let tags = groups.tags_of_export(export);
    let all: BTreeSet<u16> =
        groups.tags.iter().filter(|(key, _)| key.0 == export.protocol).map(|(_, tag)| *tag).collect();
    if tags != all {
        let tags: Vec<String> = tags.iter().map(u16::to_string).collect();
        let _ = writeln!(out, "portals = [{}]", tags.join(", "));
    }
    let _ = writeln!(out, "open = {}", export.open);
    for (key, value) in &export.keys {
        let _ = writeln!(out, "{key} = {value}");
    }
    let _ = writeln!(out, "{units} = [");
    for unit in &export.units {
        let _ = writeln!(out, "  {},", unit_toml(unit, export.protocol, model));
    }
    out.push_str("]\n");
    render_chap(out, "chap", &export.chap, secrets);
    render_notes(out, source, &export.notes);
}

fn unit_toml(unit: &LunOrNamespace, protocol: Protocol, model: &ImportModel) -> String {
    let name = model.volume(&unit.volume).map_or("", |volume| volume.name.as_str());
    let number = if protocol == Protocol::Iscsi { "lun" } else { "nsid" };
    let mut line = format!("{{ {number} = {}, volume = {}", unit.number, quoted_string(name));
    if unit.read_only {
        line.push_str(", ro = true");
    }
    if let Some(group) = unit.ana_group {
        let _ = write!(line, ", ana_group = {group}");
    }
    line + " }"
}

fn render_host(out: &mut String, source: &str, (at, host): (usize, &Host), secrets: SecretFormat) {
    let _ = writeln!(out, "\n[[host]]\nname = {}", quoted_string(&host.label));
    for (key, list) in [("iqn", &host.iqns), ("nqn", &host.nqns), ("sources", &host.sources)] {
        if !list.is_empty() {
            let _ = writeln!(out, "{key} = [{}]", string_array(list));
        }
    }
    out.push_str("access = [\n");
    for grant in &host.grants {
        let _ = writeln!(out, "  {},", grant_toml(grant));
    }
    out.push_str("]\n");
    render_chap(out, "chap", &host.chap, secrets);
    match (&host.dhchap, secrets) {
        (Some(_), SecretFormat::Yes | SecretFormat::No) => {
            let _ = writeln!(out, "dhchap_key_file = {}", quoted_string(&key_file_name(at, host)));
        }
        (Some(_), SecretFormat::WithoutKeyFiles) | (None, _) => {}
    }
    match (&host.dhchap_controller, secrets) {
        (Some(_), SecretFormat::Yes | SecretFormat::No) => {
            let _ = writeln!(
                out,
                "dhchap_controller_key_file = {}",
                quoted_string(&controller_key_file_name(at, host))
            );
        }
        (Some(_), SecretFormat::WithoutKeyFiles) | (None, _) => {}
    }
    render_notes(out, source, &host.notes);
}

fn grant_toml(grant: &Grant) -> String {
    let (name, units) = match grant.protocol {
        Protocol::Iscsi => ("target", "luns"),
        Protocol::Nvme | Protocol::NvmeDiscovery => ("subsystem", "namespaces"),
    };
    let mut line = format!("{{ {name} = {}", quoted_string(&grant.export));
    if let Some(list) = &grant.units {
        let list: Vec<String> = list.iter().map(u64::to_string).collect();
        let _ = write!(line, ", {units} = [{}]", list.join(", "));
    }
    if !grant.through.is_empty() {
        let list: Vec<String> = grant.through.iter().map(ToString::to_string).collect();
        let _ = write!(line, ", through = [{}]", string_array(&list));
    }
    if grant.read_only {
        line.push_str(", mode = \"ro\"");
    }
    line + " }"
}

fn string_array(list: &[String]) -> String {
    list.iter().map(|one| quoted_string(one)).collect::<Vec<_>>().join(", ")
}

fn render_chap(out: &mut String, key: &str, users: &[ChapUser], secrets: SecretFormat) {
    if users.is_empty() {
        return;
    }
    let secret = |key: &str, secret: &str| match secrets {
        SecretFormat::Yes | SecretFormat::WithoutKeyFiles => format!("{key} = {}", quoted_string(secret)),
        SecretFormat::No => format!("{key} = \"\""),
    };
    let one = |chap: &ChapUser| {
        let (user, own) = &chap.user;
        let mut line = format!("{{ user = {}, {}", quoted_string(user), secret("secret", own.expose()));
        if let Some((user, own)) = &chap.mutual {
            let _ = write!(
                line,
                ", mutual_user = {}, {}",
                quoted_string(user),
                secret("mutual_secret", own.expose())
            );
        }
        line + " }"
    };
    match users {
        [user] => {
            let _ = writeln!(out, "{key} = {}", one(user));
        }
        users => {
            let _ = writeln!(out, "{key} = [");
            for user in users {
                let _ = writeln!(out, "  {},", one(user));
            }
            out.push_str("]\n");
        }
    }
}
