//! SPDK's iSCSI target: groups of users, portals and initiators, and the targets that combine them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use crate::{
    model::{self, Chap, Export, Grant, Host, Model, Protocol, Unit},
    note::{Note, Outcome},
    render::text,
    section::{
        Meaning::{Emulated, Only},
        Section,
    },
};

/// Hosts of an initiator group; empty: any.
#[derive(Clone, Default)]
struct Initiators {
    names: Vec<String>,
    sources: Vec<String>,
}

/// A target as a call made it.
struct Wanted {
    export: Export,
    maps: Vec<(u64, u64)>,
    users: u64,
    asks: bool,
    mutual: bool,
}

/// What calls have said.
#[derive(Default)]
pub struct State {
    users: BTreeMap<u64, Vec<Chap>>,
    portals: BTreeMap<u64, Vec<SocketAddr>>,
    initiators: BTreeMap<u64, Initiators>,
    targets: Vec<Wanted>,
    notes: Vec<Note>,
    options: Vec<(&'static str, String)>,
    limits: Vec<(&'static str, u64)>,
    discovery: Option<u64>,
}

impl State {
    /// Whether a call is about iSCSI, and if so what it says.
    pub fn read(&mut self, method: &str, params: &Section<'_>) -> bool {
        match method {
            "iscsi_set_options" => self.set_options(params),
            "iscsi_create_auth_group" => {
                let tag = params.number("tag").unwrap_or(0);
                for (user, notes) in super::users(params) {
                    self.users.entry(tag).or_default().push(user);
                    self.notes.extend(notes);
                }
            }
            "iscsi_create_portal_group" => self.portal_group(params),
            "iscsi_create_initiator_group" => self.initiator_group(params),
            "iscsi_create_target_node" => self.target(params),
            "iscsi_set_discovery_auth" => {
                self.discovery = params.number("chap_group").filter(|group| *group != 0);
                params.known(&[
                    ("disable_chap", Emulated("CHAP is asked for where there are users")),
                    ("mutual_chap", Emulated("an initiator may ask for it")),
                    ("require_chap", Emulated("CHAP is asked for where there are users")),
                ]);
            }
            _ => return false,
        }
        true
    }

    fn set_options(&mut self, params: &Section<'_>) {
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
            params.note(key, Outcome::NotApplicable, "it is about SPDK itself");
        }
        params.known(&[
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

    fn portal_group(&mut self, params: &Section<'_>) {
        let tag = params.number("tag").unwrap_or(0);
        let list = self.portals.entry(tag).or_default();
        for portal in params.sections("portals") {
            let port = portal.number("port").unwrap_or(config::network::ISCSI_PORT.into());
            match model::portal(portal.text("host").unwrap_or_default(), port) {
                Ok(address) => list.push(address),
                Err(why) => portal.error("host", &why),
            }
            portal.known(&[("cpumask", Emulated("[[placement]]"))]);
            self.notes.extend(portal.finish());
        }
        params.note(
            "tag",
            Outcome::Emulated,
            "portal groups are numbered again, by the targets that they lead to",
        );
        params.known(&[("private", Emulated("a host finds the targets that it may reach"))]);
    }

    fn initiator_group(&mut self, params: &Section<'_>) {
        let tag = params.number("tag").unwrap_or(0);
        let mut group = Initiators::default();
        let (mut any_name, mut any_source) = (false, false);
        for name in params.list("initiators") {
            let crate::json::Kind::Text(name) = &name.kind else { continue };
            match name.as_str() {
                "ANY" | "ALL" => any_name = true,
                name if name.starts_with('!') => {
                    params.error("initiators", "a name cannot be excluded; list those that may connect");
                }
                name => match model::iqn(name) {
                    Ok(name) => group.names.push(name),
                    Err(why) => params.error("initiators", &why),
                },
            }
        }
        for network in params.list("netmasks") {
            let crate::json::Kind::Text(network) = &network.kind else { continue };
            match network.as_str() {
                "ANY" | "ALL" => any_source = true,
                network => match model::source_network(network) {
                    Ok(network) => group.sources.push(network),
                    Err(why) => params.error("netmasks", &why),
                },
            }
        }
        if any_name {
            group.names.clear();
        }
        if any_source {
            group.sources.clear();
        }
        params.note("tag", Outcome::Emulated, "a [[host]]");
        self.initiators.insert(tag, group);
    }

    fn target(&mut self, params: &Section<'_>) {
        let name = params.text("name").unwrap_or_default();
        let mut export = Export::new(Protocol::Iscsi, name);
        match model::iqn(name) {
            Ok(name) => export.name = name,
            Err(why) => params.error("name", &why),
        }
        if let Some(alias) = params.text("alias_name") {
            export.set("alias", text(&alias.chars().take(63).collect::<String>()));
        }
        if let Some(depth) = params.number("queue_depth") {
            export.set("commands", depth.clamp(1, 4096).to_string());
        }
        for (key, ours) in [("header_digest", "header_digest"), ("data_digest", "data_digest")] {
            if let Some(on) = params.flag(key) {
                export.set(ours, text(if on { "require" } else { "allow" }));
            }
        }
        for lun in params.sections("luns") {
            let volume = lun.text("bdev_name").unwrap_or_default().to_owned();
            let number = lun.number("lun_id").unwrap_or(u64::MAX);
            export.units.push(Unit { number, volume, read_only: false, ana_group: None });
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
        self.targets.push(Wanted { export, maps, users, asks, mutual });
    }

    /// Makes the targets, when all groups are known.
    pub fn finish(mut self, model: &mut Model) {
        model.notes.append(&mut self.notes);
        if let Some(users) = self.discovery.and_then(|group| self.users.get(&group)) {
            model.discovery = users.clone();
        }
        for (key, value) in std::mem::take(&mut self.limits) {
            model.limits.push((key, value));
        }
        for wanted in std::mem::take(&mut self.targets) {
            self.make(wanted, model);
        }
    }

    fn make(&self, wanted: Wanted, model: &mut Model) {
        let mut export = wanted.export;
        let (kept, lost): (Vec<Unit>, Vec<Unit>) =
            export.units.into_iter().partition(|unit| model.volume(&unit.volume).is_some());
        export.units = kept;
        let mut wrong = |setting: String, why: &str| {
            let at = export.notes.first().map_or((String::new(), 0), |note| (note.file.clone(), note.line));
            let note = Note { file: at.0, line: at.1, setting, outcome: Outcome::Error, why: why.to_owned() };
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
            export.set(key, value.clone());
        }
        if wanted.asks {
            export.chap = users;
            if wanted.mutual && export.chap.iter().any(|user| user.mutual.is_some()) {
                export.set("mutual", text("require"));
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
