//! FreeBSD's CAM target layer: `ctl.conf`, as ctld reads it (not in its UCL form).

use std::{collections::BTreeMap, net::SocketAddr};

use config::{
    size,
    spec::{Spec, VolumeSource},
};

use crate::{
    blocks::Statement,
    model::{
        self, ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Secret, outcome_of,
        parse_flag, set_spec_key,
    },
    note::{Note, NoteOutcome},
    render::quoted_string,
};

/// How a group of users and initiators lets hosts in.
#[derive(Clone, Default)]
struct AuthGroup {
    is_denied: bool,
    users: Vec<ChapUser>,
    names: Vec<String>,
    sources: Vec<String>,
    /// An initiator was named that cannot be carried over: the group is not open for that.
    is_restricted: bool,
    notes: Vec<Note>,
}

impl AuthGroup {
    fn denied() -> Self {
        AuthGroup { is_denied: true, ..AuthGroup::default() }
    }
}

/// What blocks have said.
#[derive(Default)]
struct ParseState {
    auth: BTreeMap<String, AuthGroup>,
    portals: BTreeMap<String, PortalGroup>,
    luns: BTreeMap<String, Statement>,
}

#[derive(Clone, Default)]
struct PortalGroup {
    addresses: Vec<SocketAddr>,
    discovery: Option<String>,
    notes: Vec<Note>,
}

/// Reads a whole file.
pub fn read_ctl_conf(statements: &[Statement]) -> ImportModel {
    let mut model = ImportModel::default();
    let mut state = ParseState::default();
    state.auth.insert("no-authentication".to_owned(), AuthGroup::default());
    state.auth.insert("no-access".to_owned(), AuthGroup::denied());
    state.auth.insert("default".to_owned(), AuthGroup::denied());
    let everywhere = model::wildcard_portals().to_vec();
    state
        .portals
        .insert("default".to_owned(), PortalGroup { addresses: everywhere, ..PortalGroup::default() });
    for statement in statements {
        let name = statement.word_at(1).to_owned();
        match (statement.first_word(), &statement.body) {
            ("auth-group", Some(body)) => {
                let group = read_auth_group(body);
                state.auth.insert(name, group);
            }
            ("portal-group", Some(body)) => {
                let group = read_portal_group(body);
                state.portals.insert(name, group);
            }
            ("lun", Some(_)) => {
                state.luns.insert(name, statement.clone());
            }
            ("target", Some(_)) => {}
            _ => {
                let note = read_global(statement, &mut model);
                model.notes.push(note);
            }
        }
    }
    for statement in statements.iter().filter(|one| one.first_word() == "target" && one.body.is_some()) {
        read_target(statement, &mut state, &mut model);
    }
    for group in state.portals.values() {
        if let Some(users) = group.discovery.as_ref().and_then(|name| state.auth.get(name)) {
            for user in &users.users {
                if !model.discovery.contains(user) {
                    model.discovery.push(user.clone());
                }
            }
        }
    }
    for (name, lun) in &state.luns {
        if model.volume(name).is_none() {
            add_lun_volume(name, lun, &mut model);
        }
    }
    let groups = state.auth.into_values().flat_map(|group| group.notes);
    model.notes.extend(groups.chain(state.portals.into_values().flat_map(|group| group.notes)));
    model
}

fn read_global(statement: &Statement, model: &mut ImportModel) -> Note {
    match statement.first_word() {
        "debug" | "maxproc" | "pidfile" => statement.to_note(NoteOutcome::NotApplicable, "it is about ctld"),
        "timeout" => match statement.word_at(1).parse::<u64>() {
            Ok(seconds) => {
                model.limits.push(("login_timeout", if seconds == 0 { 600 } else { seconds.clamp(1, 600) }));
                statement.to_note(NoteOutcome::Applied, "`login_timeout` of [limits]")
            }
            Err(_) => statement.to_note(NoteOutcome::Error, "is no number"),
        },
        "isns-server" => statement
            .to_note(NoteOutcome::Error, "initiators find targets with SendTargets; there is no iSNS"),
        "isns-period" | "isns-timeout" => statement.to_note(NoteOutcome::NotApplicable, "there is no iSNS"),
        "transport-group" | "controller" => {
            statement.to_note(NoteOutcome::Error, "NVMe of ctld is not read: write a [[subsystem]]")
        }
        key if key.ends_with('=') || key.ends_with(':') || statement.word_at(1) == "=" => statement.to_note(
            NoteOutcome::Error,
            "this is the UCL form of ctl.conf, which is not read; give the classic one",
        ),
        _ => statement.to_note(NoteOutcome::Error, "this setting is not known here"),
    }
}

/// `chap` and `chap-mutual`.
fn read_chap_user(statement: &Statement) -> Result<ChapUser, &'static str> {
    let pair = |at: usize| {
        let (name, secret) = (statement.word_at(at), statement.word_at(at + 1));
        (!name.is_empty() && !secret.is_empty()).then(|| (name.to_owned(), Secret::new(secret)))
    };
    let user = pair(1).ok_or("needs a user and a secret")?;
    let mutual = match statement.first_word() {
        "chap-mutual" => Some(pair(3).ok_or("needs two users and two secrets")?),
        _ => None,
    };
    Ok(ChapUser { user, mutual })
}

/// A setting of an authentication group, or one that stands in a target for a group of its own.
fn read_auth_setting(statement: &Statement, group: &mut AuthGroup) -> Option<(NoteOutcome, String)> {
    Some(match statement.first_word() {
        "auth-type" => match statement.word_at(1) {
            "none" | "chap" | "chap-mutual" => (NoteOutcome::Applied, String::new()),
            "deny" => {
                group.is_denied = true;
                (NoteOutcome::Applied, String::new())
            }
            _ => (NoteOutcome::Error, "is none, deny, chap or chap-mutual".to_owned()),
        },
        "chap" | "chap-mutual" => {
            group.is_restricted = true;
            outcome_of(read_chap_user(statement).map(|user| group.users.push(user)).map_err(str::to_owned))
        }
        "initiator-name" => {
            group.is_restricted = true;
            outcome_of(model::normalize_iqn(statement.word_at(1)).map(|name| group.names.push(name)))
        }
        "initiator-portal" => {
            group.is_restricted = true;
            outcome_of(
                model::normalize_network(statement.word_at(1)).map(|network| group.sources.push(network)),
            )
        }
        "host-nqn" | "host-address" => {
            (NoteOutcome::Error, "NVMe of ctld is not read: write a [[host]] with nqn".to_owned())
        }
        _ => return None,
    })
}

fn read_auth_group(body: &[Statement]) -> AuthGroup {
    let mut group = AuthGroup::default();
    for statement in body {
        let said = read_auth_setting(statement, &mut group)
            .unwrap_or((NoteOutcome::Error, "this setting is not known here".to_owned()));
        group.notes.push(statement.to_note(said.0, said.1));
    }
    group
}

fn read_portal_group(body: &[Statement]) -> PortalGroup {
    let mut group = PortalGroup::default();
    for statement in body {
        let said = match statement.first_word() {
            "listen" => outcome_of(
                parse_listen_address(statement.word_at(1)).map(|address| group.addresses.push(address)),
            ),
            "discovery-auth-group" => {
                group.discovery = Some(statement.word_at(1).to_owned());
                (NoteOutcome::Applied, "`discovery` of [auth]".to_owned())
            }
            "discovery-filter" => {
                (NoteOutcome::Emulated, "a host finds the targets that it may reach".to_owned())
            }
            "listen-iser" => (NoteOutcome::Error, "iSER is not there".to_owned()),
            "redirect" => (NoteOutcome::Error, "write `redirect` of each [[target]]".to_owned()),
            "offload" | "option" | "tag" | "foreign" => {
                (NoteOutcome::NotApplicable, "it is about the kernel's ports".to_owned())
            }
            "dscp" | "pcp" => (NoteOutcome::Emulated, "`dscp` of [[portal]]".to_owned()),
            _ => (NoteOutcome::Error, "this setting is not known here".to_owned()),
        };
        group.notes.push(statement.to_note(said.0, said.1));
    }
    group
}

/// An address with a port; brackets around IPv6.
fn parse_listen_address(address: &str) -> Result<SocketAddr, String> {
    config::network::listen_address(address).map_err(|why| why.to_string())
}

/// A `target`.
fn read_target(block: &Statement, state: &mut ParseState, model: &mut ImportModel) {
    let mut export = Export::new(Protocol::Iscsi, block.word_at(1));
    match model::normalize_iqn(block.word_at(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.to_note(NoteOutcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.to_note(NoteOutcome::Error, why)),
    }
    let mut own = AuthGroup::default();
    let mut has_own = false;
    let mut group: Option<String> = None;
    // Each portal group, and the authentication group behind it if it has one of its own.
    let mut portals: Vec<(String, Option<String>)> = Vec::new();
    for statement in block.block_statements() {
        if let Some(said) = read_auth_setting(statement, &mut own) {
            has_own = true;
            export.notes.push(statement.to_note(said.0, said.1));
            continue;
        }
        let said = match statement.first_word() {
            "auth-group" => {
                group = Some(statement.word_at(1).to_owned());
                outcome_of_known(state.auth.contains_key(statement.word_at(1)))
            }
            "portal-group" => {
                let auth = Some(statement.word_at(2)).filter(|name| !name.is_empty()).map(str::to_owned);
                let is_known = auth.as_ref().is_none_or(|auth| state.auth.contains_key(auth));
                portals.push((statement.word_at(1).to_owned(), auth));
                outcome_of_known(is_known && state.portals.contains_key(statement.word_at(1)))
            }
            "lun" => read_lun(statement, &mut export, state, model),
            _ => read_target_setting(statement, &mut export),
        };
        export.notes.push(statement.to_note(said.0, said.1));
    }
    if portals.is_empty() {
        portals.push(("default".to_owned(), None));
    }
    let usual = match (has_own, group) {
        (true, _) => own,
        (false, Some(name)) => state.auth.get(&name).cloned().unwrap_or_else(AuthGroup::denied),
        // Without any, the group called default holds.
        (false, None) => state.auth.get("default").cloned().unwrap_or_else(AuthGroup::denied),
    };
    admit_through_groups(state, &usual, portals, &mut export, model);
    export.units.sort_by_key(|unit| unit.number);
    model.exports.push(export);
}

/// Lets hosts in through each portal group, as its own authentication group says or else as the usual one does.
fn admit_through_groups(
    state: &ParseState,
    usual: &AuthGroup,
    portals: Vec<(String, Option<String>)>,
    export: &mut Export,
    model: &mut ImportModel,
) {
    for (name, _) in &portals {
        if let Some(group) = state.portals.get(name) {
            export.portals.extend(&group.addresses);
        }
    }
    let differ = portals.iter().any(|(_, auth)| auth.is_some());
    for (name, auth) in portals {
        let group = auth.map_or(Some(usual.clone()), |auth| state.auth.get(&auth).cloned());
        let group = group.unwrap_or_else(AuthGroup::denied);
        let through = match differ {
            true => state.portals.get(&name).map(|group| group.addresses.clone()).unwrap_or_default(),
            false => Vec::new(),
        };
        admit_group(&group, through, export, model);
    }
}

fn outcome_of_known(is_known: bool) -> (NoteOutcome, String) {
    match is_known {
        true => (NoteOutcome::Applied, String::new()),
        false => (NoteOutcome::Error, "there is no such group: nobody gets access through it".to_owned()),
    }
}

/// Another setting of a target.
fn read_target_setting(statement: &Statement, export: &mut Export) -> (NoteOutcome, String) {
    match statement.first_word() {
        "alias" => {
            export
                .set_key("alias", quoted_string(&statement.word_at(1).chars().take(63).collect::<String>()));
            (NoteOutcome::Applied, String::new())
        }
        "redirect" => match parse_listen_address(statement.word_at(1)) {
            Ok(address) => {
                export.set_key("redirect", format!("{{ to = {} }}", quoted_string(&address.to_string())));
                (NoteOutcome::Applied, String::new())
            }
            Err(why) => (NoteOutcome::Error, why),
        },
        "offload" => (NoteOutcome::NotApplicable, "there is no offload engine".to_owned()),
        "port" => (NoteOutcome::Error, "only iSCSI can be served here".to_owned()),
        _ => (NoteOutcome::Error, "this setting is not known here".to_owned()),
    }
}

/// Lets hosts in as a group says, through these addresses, or through all if there are none.
fn admit_group(group: &AuthGroup, through: Vec<SocketAddr>, export: &mut Export, model: &mut ImportModel) {
    let is_empty = group.users.is_empty() && group.names.is_empty() && group.sources.is_empty();
    if group.is_denied || (group.is_restricted && is_empty) {
        return;
    }
    let is_wide = group.names.is_empty() && group.sources.is_empty();
    if is_wide && through.is_empty() {
        export.open = true;
        export.chap.clone_from(&group.users);
        return;
    }
    let mut host =
        Host::new(&format!("initiators of {}", export.name.rsplit(':').next().unwrap_or("target")));
    host.iqns.clone_from(&group.names);
    host.sources.clone_from(&group.sources);
    if is_wide {
        host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    }
    host.chap.clone_from(&group.users);
    // A listener on all addresses is no address by which a host connects.
    let mut addresses: Vec<std::net::IpAddr> = through.iter().map(SocketAddr::ip).collect();
    if addresses.iter().any(std::net::IpAddr::is_unspecified) {
        addresses.clear();
    }
    host.grants.push(Grant {
        protocol: Protocol::Iscsi,
        export: export.name.clone(),
        units: None,
        through: addresses,
        read_only: false,
    });
    model.add_host(host);
}

/// A `lun` of a target: by the name of a global one, or with a block of its own.
fn read_lun(
    statement: &Statement,
    export: &mut Export,
    state: &ParseState,
    model: &mut ImportModel,
) -> (NoteOutcome, String) {
    let Ok(number) = statement.word_at(1).parse::<u64>() else {
        return (NoteOutcome::Error, "the number of a logical unit is missing".to_owned());
    };
    let (key, block) = match &statement.body {
        Some(_) => (format!("{}/{number}", export.name), statement),
        None => match state.luns.get(statement.word_at(2)) {
            Some(block) => (statement.word_at(2).to_owned(), block),
            None => return (NoteOutcome::Error, "there is no lun of that name".to_owned()),
        },
    };
    if model.volume(&key).is_none() {
        add_lun_volume(&key, block, model);
    }
    export.units.push(LunOrNamespace { number, volume: key, read_only: false, ana_group: None });
    (NoteOutcome::Applied, String::new())
}

/// What a lun is.
fn add_lun_volume(key: &str, block: &Statement, model: &mut ImportModel) {
    let find = |key: &str| block.block_statements().iter().find(|inner| inner.first_word() == key);
    let path = find("path").map_or("", |inner| inner.word_at(1));
    let is_ram = find("backend").is_some_and(|inner| inner.word_at(1) == "ramdisk");
    let mut spec = Spec::new(match path {
        _ if is_ram => VolumeSource::Ram,
        path if path.starts_with("/dev/") => VolumeSource::Device(path.into()),
        path => VolumeSource::File(path.into()),
    });
    let mut notes = Vec::new();
    if !is_ram && !path.starts_with('/') {
        notes.push(block.to_note(NoteOutcome::Error, "needs `path` with an absolute path"));
    }
    for inner in block.block_statements() {
        let value = inner.word_at(1);
        let said = match inner.first_word() {
            "path" | "backend" => match value {
                "block" | "ramdisk" => (NoteOutcome::Applied, String::new()),
                path if path.starts_with("/dev/zvol/") => (
                    NoteOutcome::Emulated,
                    "a volume of ZFS: on Linux it is /dev/zvol/POOL/NAME too, if OpenZFS is installed".to_owned(),
                ),
                _ => (NoteOutcome::Applied, String::new()),
            },
            "blocksize" => outcome_of(set_spec_key(&mut spec, "block", value)),
            "size" if matches!(spec.source, VolumeSource::Device(_)) => {
                (NoteOutcome::Emulated, "a device has its own size".to_owned())
            }
            "size" => outcome_of(size::parse(value).map(|bytes| spec.size = Some(bytes)).map_err(|why| why.to_string())),
            "serial" | "device-id" => (
                NoteOutcome::Emulated,
                "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change; hosts see another disk"
                    .to_owned(),
            ),
            "device-type" if !["0", "disk", "direct"].contains(&value) => {
                (NoteOutcome::Error, "only disks can be served".to_owned())
            }
            "device-type" | "ctl-lun" => (NoteOutcome::NotApplicable, "it is about CTL".to_owned()),
            "option" => read_lun_option(inner, &mut spec),
            _ => (NoteOutcome::Error, "this setting is not known here".to_owned()),
        };
        notes.push(inner.to_note(said.0, said.1));
    }
    let wish = match key.split_once('/') {
        // One of a target's own: by its file, or else by the target and its number.
        Some((_, number)) => match path.rsplit('/').next().filter(|name| !name.is_empty()) {
            Some(name) => name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned(),
            None => format!("ram-{number}"),
        },
        None => key.to_owned(),
    };
    let wish = wish.as_str();
    model.add_volume(key, wish, spec, notes);
}

/// `option NAME VALUE`, see ctladm(8).
fn read_lun_option(inner: &Statement, spec: &mut Spec) -> (NoteOutcome, String) {
    let value = inner.word_at(2);
    match inner.word_at(1) {
        "readonly" => outcome_of(set_spec_key(spec, "ro", value)),
        "removable" => outcome_of(set_spec_key(spec, "removable", value)),
        "unmap" if spec.source.path().is_some() => outcome_of(set_spec_key(spec, "thin", value)),
        "writecache" if spec.source.path().is_some() => outcome_of(set_spec_key(spec, "cache", value)),
        "pblocksize" => {
            let bytes = value.split(',').next().unwrap_or(value);
            outcome_of(set_spec_key(spec, "physical", bytes))
        }
        "vendor" | "product" => (NoteOutcome::Emulated, "`vendor` and `product` of [[target]]".to_owned()),
        "naa" | "eui" | "uuid" | "scsiname" | "ident_info" => match set_spec_key(spec, "uuid", value) {
            Ok(()) => (NoteOutcome::Applied, "the UUID of the volume".to_owned()),
            Err(_) => (
                NoteOutcome::Emulated,
                "the identity is the volume's UUID; hosts see another disk".to_owned(),
            ),
        },
        "insecure_tpc" if parse_flag(value) == Some(true) => {
            (NoteOutcome::Error, "copies between volumes follow the access of the host".to_owned())
        }
        "reordering"
        | "serseq"
        | "avail-threshold"
        | "used-threshold"
        | "pool-avail-threshold"
        | "pool-used-threshold"
        | "rpm"
        | "revision"
        | "formfactor"
        | "provisioning_type"
        | "num_threads"
        | "insecure_tpc"
        | "pblockoffset"
        | "ublocksize"
        | "ublockoffset"
        | "capacity"
        | "unmap"
        | "writecache"
        | "file" => (NoteOutcome::NotApplicable, "it is about CTL".to_owned()),
        _ => (NoteOutcome::Error, "this option is not known here".to_owned()),
    }
}
