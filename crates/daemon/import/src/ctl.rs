//! FreeBSD's CAM target layer: `ctl.conf`, as ctld reads it (not in its UCL form).

use std::{collections::BTreeMap, net::SocketAddr};

use config::{
    size,
    spec::{Source, Spec},
};

use crate::{
    blocks::Statement,
    model::{self, Chap, Export, Grant, Host, Model, Protocol, Secret, Unit, flag, outcome, set},
    note::{Note, Outcome},
    render::text,
};

/// How a group of users and initiators lets hosts in.
#[derive(Clone, Default)]
struct AuthGroup {
    is_denied: bool,
    users: Vec<Chap>,
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
struct State {
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
pub fn read(statements: &[Statement]) -> Model {
    let mut model = Model::default();
    let mut state = State::default();
    state.auth.insert("no-authentication".to_owned(), AuthGroup::default());
    state.auth.insert("no-access".to_owned(), AuthGroup::denied());
    state.auth.insert("default".to_owned(), AuthGroup::denied());
    let everywhere = model::everywhere().to_vec();
    state
        .portals
        .insert("default".to_owned(), PortalGroup { addresses: everywhere, ..PortalGroup::default() });
    for statement in statements {
        let name = statement.word(1).to_owned();
        match (statement.key(), &statement.body) {
            ("auth-group", Some(body)) => {
                let group = auth_group(body);
                state.auth.insert(name, group);
            }
            ("portal-group", Some(body)) => {
                let group = portal_group(body);
                state.portals.insert(name, group);
            }
            ("lun", Some(_)) => {
                state.luns.insert(name, statement.clone());
            }
            ("target", Some(_)) => {}
            _ => {
                let note = global(statement, &mut model);
                model.notes.push(note);
            }
        }
    }
    for statement in statements.iter().filter(|one| one.key() == "target" && one.body.is_some()) {
        target(statement, &mut state, &mut model);
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
            volume(name, lun, &mut model);
        }
    }
    let groups = state.auth.into_values().flat_map(|group| group.notes);
    model.notes.extend(groups.chain(state.portals.into_values().flat_map(|group| group.notes)));
    model
}

fn global(statement: &Statement, model: &mut Model) -> Note {
    match statement.key() {
        "debug" | "maxproc" | "pidfile" => statement.note(Outcome::NotApplicable, "it is about ctld"),
        "timeout" => match statement.word(1).parse::<u64>() {
            Ok(seconds) => {
                model.limits.push(("login_timeout", if seconds == 0 { 600 } else { seconds.clamp(1, 600) }));
                statement.note(Outcome::Applied, "`login_timeout` of [limits]")
            }
            Err(_) => statement.note(Outcome::Error, "is no number"),
        },
        "isns-server" => {
            statement.note(Outcome::Error, "initiators find targets with SendTargets; there is no iSNS")
        }
        "isns-period" | "isns-timeout" => statement.note(Outcome::NotApplicable, "there is no iSNS"),
        "transport-group" | "controller" => {
            statement.note(Outcome::Error, "NVMe of ctld is not read: write a [[subsystem]]")
        }
        key if key.ends_with('=') || key.ends_with(':') || statement.word(1) == "=" => statement.note(
            Outcome::Error,
            "this is the UCL form of ctl.conf, which is not read; give the classic one",
        ),
        _ => statement.note(Outcome::Error, "this setting is not known here"),
    }
}

/// `chap` and `chap-mutual`.
fn user(statement: &Statement) -> Result<Chap, &'static str> {
    let pair = |at: usize| {
        let (name, secret) = (statement.word(at), statement.word(at + 1));
        (!name.is_empty() && !secret.is_empty()).then(|| (name.to_owned(), Secret::new(secret)))
    };
    let user = pair(1).ok_or("needs a user and a secret")?;
    let mutual = match statement.key() {
        "chap-mutual" => Some(pair(3).ok_or("needs two users and two secrets")?),
        _ => None,
    };
    Ok(Chap { user, mutual })
}

/// A setting of an authentication group, or one that stands in a target for a group of its own.
fn auth_setting(statement: &Statement, group: &mut AuthGroup) -> Option<(Outcome, String)> {
    Some(match statement.key() {
        "auth-type" => match statement.word(1) {
            "none" | "chap" | "chap-mutual" => (Outcome::Applied, String::new()),
            "deny" => {
                group.is_denied = true;
                (Outcome::Applied, String::new())
            }
            _ => (Outcome::Error, "is none, deny, chap or chap-mutual".to_owned()),
        },
        "chap" | "chap-mutual" => {
            group.is_restricted = true;
            outcome(user(statement).map(|user| group.users.push(user)).map_err(str::to_owned))
        }
        "initiator-name" => {
            group.is_restricted = true;
            outcome(model::iqn(statement.word(1)).map(|name| group.names.push(name)))
        }
        "initiator-portal" => {
            group.is_restricted = true;
            outcome(model::source_network(statement.word(1)).map(|network| group.sources.push(network)))
        }
        "host-nqn" | "host-address" => {
            (Outcome::Error, "NVMe of ctld is not read: write a [[host]] with nqn".to_owned())
        }
        _ => return None,
    })
}

fn auth_group(body: &[Statement]) -> AuthGroup {
    let mut group = AuthGroup::default();
    for statement in body {
        let said = auth_setting(statement, &mut group)
            .unwrap_or((Outcome::Error, "this setting is not known here".to_owned()));
        group.notes.push(statement.note(said.0, said.1));
    }
    group
}

fn portal_group(body: &[Statement]) -> PortalGroup {
    let mut group = PortalGroup::default();
    for statement in body {
        let said = match statement.key() {
            "listen" => outcome(listen(statement.word(1)).map(|address| group.addresses.push(address))),
            "discovery-auth-group" => {
                group.discovery = Some(statement.word(1).to_owned());
                (Outcome::Applied, "`discovery` of [auth]".to_owned())
            }
            "discovery-filter" => {
                (Outcome::Emulated, "a host finds the targets that it may reach".to_owned())
            }
            "listen-iser" => (Outcome::Error, "iSER is not there".to_owned()),
            "redirect" => (Outcome::Error, "write `redirect` of each [[target]]".to_owned()),
            "offload" | "option" | "tag" | "foreign" => {
                (Outcome::NotApplicable, "it is about the kernel's ports".to_owned())
            }
            "dscp" | "pcp" => (Outcome::Emulated, "`dscp` of [[portal]]".to_owned()),
            _ => (Outcome::Error, "this setting is not known here".to_owned()),
        };
        group.notes.push(statement.note(said.0, said.1));
    }
    group
}

/// An address with a port; brackets around IPv6.
fn listen(address: &str) -> Result<SocketAddr, String> {
    config::network::listen_address(address).map_err(|why| why.to_string())
}

/// A `target`.
fn target(block: &Statement, state: &mut State, model: &mut Model) {
    let mut export = Export::new(Protocol::Iscsi, block.word(1));
    match model::iqn(block.word(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.note(Outcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.note(Outcome::Error, why)),
    }
    let mut own = AuthGroup::default();
    let mut has_own = false;
    let mut group: Option<String> = None;
    // Each portal group, and the authentication group behind it if it has one of its own.
    let mut portals: Vec<(String, Option<String>)> = Vec::new();
    for statement in block.inner() {
        if let Some(said) = auth_setting(statement, &mut own) {
            has_own = true;
            export.notes.push(statement.note(said.0, said.1));
            continue;
        }
        let said = match statement.key() {
            "auth-group" => {
                group = Some(statement.word(1).to_owned());
                known(state.auth.contains_key(statement.word(1)))
            }
            "portal-group" => {
                let auth = Some(statement.word(2)).filter(|name| !name.is_empty()).map(str::to_owned);
                let is_known = auth.as_ref().is_none_or(|auth| state.auth.contains_key(auth));
                portals.push((statement.word(1).to_owned(), auth));
                known(is_known && state.portals.contains_key(statement.word(1)))
            }
            "lun" => lun(statement, &mut export, state, model),
            _ => target_setting(statement, &mut export),
        };
        export.notes.push(statement.note(said.0, said.1));
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
    admit_all(state, &usual, portals, &mut export, model);
    export.units.sort_by_key(|unit| unit.number);
    model.exports.push(export);
}

/// Lets hosts in through each portal group, as its own authentication group says or else as the usual one does.
fn admit_all(
    state: &State,
    usual: &AuthGroup,
    portals: Vec<(String, Option<String>)>,
    export: &mut Export,
    model: &mut Model,
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
        admit(&group, through, export, model);
    }
}

fn known(is_known: bool) -> (Outcome, String) {
    match is_known {
        true => (Outcome::Applied, String::new()),
        false => (Outcome::Error, "there is no such group: nobody gets access through it".to_owned()),
    }
}

/// Another setting of a target.
fn target_setting(statement: &Statement, export: &mut Export) -> (Outcome, String) {
    match statement.key() {
        "alias" => {
            export.set("alias", text(&statement.word(1).chars().take(63).collect::<String>()));
            (Outcome::Applied, String::new())
        }
        "redirect" => match listen(statement.word(1)) {
            Ok(address) => {
                export.set("redirect", format!("{{ to = {} }}", text(&address.to_string())));
                (Outcome::Applied, String::new())
            }
            Err(why) => (Outcome::Error, why),
        },
        "offload" => (Outcome::NotApplicable, "there is no offload engine".to_owned()),
        "port" => (Outcome::Error, "only iSCSI can be served here".to_owned()),
        _ => (Outcome::Error, "this setting is not known here".to_owned()),
    }
}

/// Lets hosts in as a group says, through these addresses, or through all if there are none.
fn admit(group: &AuthGroup, through: Vec<SocketAddr>, export: &mut Export, model: &mut Model) {
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
fn lun(statement: &Statement, export: &mut Export, state: &State, model: &mut Model) -> (Outcome, String) {
    let Ok(number) = statement.word(1).parse::<u64>() else {
        return (Outcome::Error, "the number of a logical unit is missing".to_owned());
    };
    let (key, block) = match &statement.body {
        Some(_) => (format!("{}/{number}", export.name), statement),
        None => match state.luns.get(statement.word(2)) {
            Some(block) => (statement.word(2).to_owned(), block),
            None => return (Outcome::Error, "there is no lun of that name".to_owned()),
        },
    };
    if model.volume(&key).is_none() {
        volume(&key, block, model);
    }
    export.units.push(Unit { number, volume: key, read_only: false, ana_group: None });
    (Outcome::Applied, String::new())
}

/// What a lun is.
fn volume(key: &str, block: &Statement, model: &mut Model) {
    let find = |key: &str| block.inner().iter().find(|inner| inner.key() == key);
    let path = find("path").map_or("", |inner| inner.word(1));
    let is_ram = find("backend").is_some_and(|inner| inner.word(1) == "ramdisk");
    let mut spec = Spec::new(match path {
        _ if is_ram => Source::Ram,
        path if path.starts_with("/dev/") => Source::Device(path.into()),
        path => Source::File(path.into()),
    });
    let mut notes = Vec::new();
    if !is_ram && !path.starts_with('/') {
        notes.push(block.note(Outcome::Error, "needs `path` with an absolute path"));
    }
    for inner in block.inner() {
        let value = inner.word(1);
        let said = match inner.key() {
            "path" | "backend" => match value {
                "block" | "ramdisk" => (Outcome::Applied, String::new()),
                path if path.starts_with("/dev/zvol/") => (
                    Outcome::Emulated,
                    "a volume of ZFS: on Linux it is /dev/zvol/POOL/NAME too, if OpenZFS is installed".to_owned(),
                ),
                _ => (Outcome::Applied, String::new()),
            },
            "blocksize" => outcome(set(&mut spec, "block", value)),
            "size" if matches!(spec.source, Source::Device(_)) => {
                (Outcome::Emulated, "a device has its own size".to_owned())
            }
            "size" => outcome(size::parse(value).map(|bytes| spec.size = Some(bytes)).map_err(|why| why.to_string())),
            "serial" | "device-id" => (
                Outcome::Emulated,
                "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change; hosts see another disk"
                    .to_owned(),
            ),
            "device-type" if !["0", "disk", "direct"].contains(&value) => {
                (Outcome::Error, "only disks can be served".to_owned())
            }
            "device-type" | "ctl-lun" => (Outcome::NotApplicable, "it is about CTL".to_owned()),
            "option" => lun_option(inner, &mut spec),
            _ => (Outcome::Error, "this setting is not known here".to_owned()),
        };
        notes.push(inner.note(said.0, said.1));
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
fn lun_option(inner: &Statement, spec: &mut Spec) -> (Outcome, String) {
    let value = inner.word(2);
    match inner.word(1) {
        "readonly" => outcome(set(spec, "ro", value)),
        "removable" => outcome(set(spec, "removable", value)),
        "unmap" if spec.source.path().is_some() => outcome(set(spec, "thin", value)),
        "writecache" if spec.source.path().is_some() => outcome(set(spec, "cache", value)),
        "pblocksize" => {
            let bytes = value.split(',').next().unwrap_or(value);
            outcome(set(spec, "physical", bytes))
        }
        "vendor" | "product" => (Outcome::Emulated, "`vendor` and `product` of [[target]]".to_owned()),
        "naa" | "eui" | "uuid" | "scsiname" | "ident_info" => match set(spec, "uuid", value) {
            Ok(()) => (Outcome::Applied, "the UUID of the volume".to_owned()),
            Err(_) => {
                (Outcome::Emulated, "the identity is the volume's UUID; hosts see another disk".to_owned())
            }
        },
        "insecure_tpc" if flag(value) == Some(true) => {
            (Outcome::Error, "copies between volumes follow the access of the host".to_owned())
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
        | "file" => (Outcome::NotApplicable, "it is about CTL".to_owned()),
        _ => (Outcome::Error, "this option is not known here".to_owned()),
    }
}
