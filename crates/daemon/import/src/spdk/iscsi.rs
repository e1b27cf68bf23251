//! SPDK's iSCSI target: groups of users, portals and initiators, and the targets that combine them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use crate::{
    model::{self, ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol},
    note::{Note, NoteOutcome},
    render::quoted_string,
    section::{
        IgnoredMeaning::{Emulated, Only},
        ObjectSection,
    },
};

/// Hosts of an initiator group; empty: any.
#[derive(Clone, Default)]
struct InitiatorGroup {
    names: Vec<String>,
    sources: Vec<String>,
}

/// A target as a call made it.
struct PendingTarget {
    export: Export,
    maps: Vec<(u64, u64)>,
    users: u64,
    asks: bool,
    mutual: bool,
}

/// What calls have said.
#[derive(Default)]
pub struct IscsiState {
    users: BTreeMap<u64, Vec<ChapUser>>,
    portals: BTreeMap<u64, Vec<SocketAddr>>,
    initiators: BTreeMap<u64, InitiatorGroup>,
    targets: Vec<PendingTarget>,
    notes: Vec<Note>,
    options: Vec<(&'static str, String)>,
    limits: Vec<(&'static str, u64)>,
    discovery: Option<u64>,
}

impl IscsiState {
    /// Whether a call is about iSCSI, and if so what it says.
    pub fn read_call(&mut self, method: &str, params: &ObjectSection<'_>) -> bool {
        match method {
            "iscsi_set_options" => self.set_options(params),
            "iscsi_create_auth_group" => {
                let tag = params.number("tag").unwrap_or(0);
                for (user, notes) in super::read_group_users(params) {
                    self.users.entry(tag).or_default().push(user);
                    self.notes.extend(notes);
                }
            }
            "iscsi_create_portal_group" => self.add_portal_group(params),
            "iscsi_create_initiator_group" => self.add_initiator_group(params),
            "iscsi_create_target_node" => self.add_target(params),
            "iscsi_set_discovery_auth" => {
                self.discovery = params.number("chap_group").filter(|group| *group != 0);
                params.note_known_keys(&[
                    ("disable_chap", Emulated("CHAP is asked for where there are users")),
                    ("mutual_chap", Emulated("an initiator may ask for it")),
                    ("require_chap", Emulated("CHAP is asked for where there are users")),
                ]);
            }
            _ => return false,
        }
        true
    }

    fn set_options(&mut self, params: &ObjectSection<'_>) {
        if let Some(seconds) = params.number("nop_in_interval") {
            self.limits.push(("nop_interval", seconds.min(3600)));
        }
        if let Some(seconds) = params.number("nop_timeout") {
            self.limits.push(("nop_timeout", seconds.clamp(1, 3600)));
        }
        if let Some(most) = params.number("max_connections_per_session") {
            self.options.push(("max_connections", most.clamp(1, 65535).to_string()));
        }
        if let Some(bytes) = params.number("first_burst_length") {
            self.options.push(("first_burst", bytes.to_string()));
        }
        if let Some(on) = params.flag("immediate_data") {
            self.options.push(("immediate_data", on.to_string()));
        }
        self.discovery = params.number("chap_group").filter(|group| *group != 0);
        for key in [
            "max_large_datain_per_connection",
            "max_r2t_per_connection",
            "pdu_pool_size",
            "immediate_data_pool_size",
            "data_out_pool_size",
            "node_base",
        ] {
            params.note_key(key, NoteOutcome::NotApplicable, "it is about SPDK itself");
        }
        params.note_known_keys(&[
            ("allow_duplicated_isid", Only("false", "a login with the ISID of another session replaces it")),
            ("auth_file", Emulated("its users stand in iscsi_create_auth_group")),
            ("default_time2retain", Emulated("a session ends with its last connection")),
            ("default_time2wait", Emulated("the initiator may log in again at once")),
            ("disable_chap", Emulated("CHAP is asked for where there are users")),
            ("error_recovery_level", Only("0", "error recovery level 0 is the only one")),
            ("max_queue_depth", Emulated("`commands` of [[target]]")),
            ("max_sessions", Emulated("`sessions` of [limits]")),
            ("mutual_chap", Emulated("an initiator may ask for it")),
            ("require_chap", Emulated("CHAP is asked for where there are users")),
        ]);
    }

    fn add_portal_group(&mut self, params: &ObjectSection<'_>) {
        let tag = params.number("tag").unwrap_or(0);
        let list = self.portals.entry(tag).or_default();
        for portal in params.sections("portals") {
            let port = portal.number("port").unwrap_or(config::network::ISCSI_PORT.into());
            match model::parse_portal(portal.text("host").unwrap_or_default(), port) {
                Ok(address) => list.push(address),
                Err(why) => portal.note_error("host", &why),
            }
            portal.note_known_keys(&[("cpumask", Emulated("[[placement]]"))]);
            self.notes.extend(portal.finish());
        }
        params.note_key(
            "tag",
            NoteOutcome::Emulated,
            "portal groups are numbered again, by the targets that they lead to",
        );
        params.note_known_keys(&[("private", Emulated("a host finds the targets that it may reach"))]);
    }

    fn add_initiator_group(&mut self, params: &ObjectSection<'_>) {
        let tag = params.number("tag").unwrap_or(0);
        let mut group = InitiatorGroup::default();
        let (mut any_name, mut any_source) = (false, false);
        for name in params.list("initiators") {
            let crate::json::JsonKind::Text(name) = &name.kind else { continue };
            match name.as_str() {
                "ANY" | "ALL" => any_name = true,
                name if name.starts_with('!') => {
                    params.note_error("initiators", "a name cannot be excluded; list those that may connect");
                }
                name => match model::normalize_iqn(name) {
                    Ok(name) => group.names.push(name),
                    Err(why) => params.note_error("initiators", &why),
                },
            }
        }
        for network in params.list("netmasks") {
            let crate::json::JsonKind::Text(network) = &network.kind else { continue };
            match network.as_str() {
                "ANY" | "ALL" => any_source = true,
                network => match model::normalize_network(network) {
                    Ok(network) => group.sources.push(network),
                    Err(why) => params.note_error("netmasks", &why),
                },
            }
        }
        if any_name {
            group.names.clear();
        }
        if any_source {
            group.sources.clear();
        }
        params.note_key("tag", NoteOutcome::Emulated, "a [[host]]");
        self.initiators.insert(tag, group);
    }

    fn add_target(&mut self, params: &ObjectSection<'_>) {
        let name = params.text("name").unwrap_or_default();
        let mut export = Export::new(Protocol::Iscsi, name);
        match model::normalize_iqn(name) {
            Ok(name) => export.name = name,
            Err(why) => params.note_error("name", &why),
        }
        if let Some(alias) = params.text("alias_name") {
            export.set_key("alias", quoted_string(&alias.chars().take(63).collect::<String>()));
        }
        if let Some(depth) = params.number("queue_depth") {
            export.set_key("commands", depth.clamp(1, 4096).to_string());
        }
        for (key, ours) in [("header_digest", "header_digest"), ("data_digest", "data_digest")] {
            if let Some(on) = params.flag(key) {
                export.set_key(ours, quoted_string(if on { "require" } else { "allow" }));
            }
        }
        for lun in params.sections("luns") {
            let volume = lun.text("bdev_name").unwrap_or_default().to_owned();
            let number = lun.number("lun_id").unwrap_or(u64::MAX);
            export.units.push(LunOrNamespace { number, volume, read_only: false, ana_group: None });
            export.notes.extend(lun.finish());
        }
        let mut maps = Vec::new();
        for map in params.sections("pg_ig_maps") {
            maps.push((map.number("pg_tag").unwrap_or(0), map.number("ig_tag").unwrap_or(0)));
            export.notes.extend(map.finish());
        }
        let users = params.number("chap_group").unwrap_or(0);
        let asks = params.flag("require_chap").unwrap_or(false) || users != 0;
        let asks = asks && !params.flag("disable_chap").unwrap_or(false);
        let mutual = params.flag("mutual_chap").unwrap_or(false);
        self.targets.push(PendingTarget { export, maps, users, asks, mutual });
    }

    /// Makes the targets, when all groups are known.
    pub fn finish_targets(mut self, model: &mut ImportModel) {
        model.notes.append(&mut self.notes);
        if let Some(users) = self.discovery.and_then(|group| self.users.get(&group)) {
            model.discovery = users.clone();
        }
        for (key, value) in std::mem::take(&mut self.limits) {
            model.limits.push((key, value));
        }
        for wanted in std::mem::take(&mut self.targets) {
            self.build_target(wanted, model);
        }
    }

    fn build_target(&self, wanted: PendingTarget, model: &mut ImportModel) {
        let mut export = wanted.export;
        let (kept, lost): (Vec<LunOrNamespace>, Vec<LunOrNamespace>) =
            export.units.into_iter().partition(|unit| model.volume(&unit.volume).is_some());
        export.units = kept;
        let mut wrong = |setting: String, why: &str| {
            let at = export.notes.first().map_or((String::new(), 0), |note| (note.file.clone(), note.line));
            let note =
                Note { file: at.0, line: at.1, setting, outcome: NoteOutcome::Error, why: why.to_owned() };
            model.notes.push(note);
        };
        for unit in lost {
            let what = format!("LUN {} of {}", unit.number, export.name);
            wrong(what, "there is no such volume, so the logical unit is left out");
        }
        let users = self.users.get(&wanted.users).cloned().unwrap_or_default();
        if wanted.asks && users.is_empty() {
            wrong(export.name.clone(), "CHAP is asked for, but its group has no users: nobody gets access");
            return;
        }
        let addresses = |tag: u64| self.portals.get(&tag).cloned().unwrap_or_default();
        let all: BTreeSet<SocketAddr> =
            wanted.maps.iter().flat_map(|(portals, _)| addresses(*portals)).collect();
        export.portals = all.iter().copied().collect();
        for (key, value) in &self.options {
            export.set_key(key, value.clone());
        }
        if wanted.asks {
            export.chap = users;
            if wanted.mutual && export.chap.iter().any(|user| user.mutual.is_some()) {
                export.set_key("mutual", quoted_string("require"));
            }
        }
        for (portals, initiators) in &wanted.maps {
            let group = self.initiators.get(initiators).cloned().unwrap_or_default();
            let through = addresses(*portals);
            let is_all = through.iter().copied().collect::<BTreeSet<_>>() == all;
            if group.names.is_empty() && group.sources.is_empty() && is_all {
                export.open = true;
                continue;
            }
            let mut host = Host::new(&format!("initiator group {initiators}"));
            host.iqns = group.names;
            host.sources = group.sources;
            if host.iqns.is_empty() && host.sources.is_empty() {
                host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
            }
            let through = if is_all { Vec::new() } else { through.iter().map(SocketAddr::ip).collect() };
            host.grants.push(Grant {
                protocol: Protocol::Iscsi,
                export: export.name.clone(),
                units: None,
                through,
                read_only: false,
            });
            model.add_host(host);
        }
        model.exports.push(export);
    }
}
