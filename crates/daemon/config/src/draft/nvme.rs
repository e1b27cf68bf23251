//! `[[subsystem]]`, `[[referral]]` and grants: values typed and in their ranges, references not yet
//! resolved.

use nvme::TransferMax;

use crate::{
    diagnostic::Located,
    draft::{LUN_MAX, read_identification},
    name, network,
    plan::{ANA_GROUP_MAX, ControllerGrants, MODEL_DEFAULT, NSID_MAX, Referral, SubsystemGrant, TargetGrant},
    reader::TableReader,
    schema,
};

/// A `[[subsystem]]` whose references are not resolved.
#[derive(Debug)]
pub struct SubsystemDraft {
    /// Its name.
    pub nqn: Located<String>,
    /// Tags; `None`: all.
    pub portals: Option<Vec<Located<u64>>>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceDraft>,
    /// `namespaces` is written, if only with mistakes.
    pub namespaces_written: bool,
    /// `ana_group`.
    pub ana_group: u32,
    /// `hosts`.
    pub hosts: Vec<Located<String>>,
    /// `open`.
    pub open: Option<bool>,
    /// `serial`.
    pub serial: Option<String>,
    /// `model`.
    pub model: String,
    /// Bounds.
    pub grants: ControllerGrants,
    /// `tls`.
    pub tls: shard::TlsMode,
}

/// An element of `namespaces`.
#[derive(Debug)]
pub struct NamespaceDraft {
    /// The volume's name as written.
    pub volume: Located<String>,
    /// Its number; `None`: the next.
    pub nsid: Option<Located<u64>>,
    /// `ro`.
    pub read_only: bool,
    /// `ana_group`.
    pub ana_group: Option<Located<u64>>,
}

/// Reads a `[[subsystem]]`.
pub fn read_subsystem(table: &TableReader<'_>) -> Option<Located<SubsystemDraft>> {
    let nqn = table.require("nqn", table.parsed("nqn", name::parse_nqn));
    let namespaces =
        table.tables("namespaces", &schema::NAMESPACE).iter().filter_map(read_namespace).collect();
    let portals = table.numbers("portals", 0..=0xffff);
    let ana_group = table.number("ana_group", 1..=ANA_GROUP_MAX.into()).map_or(1, |n| n.value as u32);
    let hosts = table.parsed_list("hosts", |text| Ok::<_, &str>(text.to_owned())).unwrap_or_default();
    let open = table.boolean("open").map(|open| open.value);
    let serial = read_identification(table, "serial", 20);
    let model = read_identification(table, "model", 40).unwrap_or_else(|| MODEL_DEFAULT.to_owned());
    let grants = read_controller_grants(table);
    let tls =
        table.keyword("tls", &super::super::tls::MODES).map_or(shard::TlsMode::Allow, |mode| mode.value);
    let nqn = nqn?;
    let at = nqn.at.clone();
    let draft = SubsystemDraft {
        nqn,
        portals,
        namespaces,
        namespaces_written: table.has_key("namespaces"),
        ana_group,
        hosts,
        open,
        serial,
        model,
        grants,
        tls,
    };
    Some(Located::new(draft, at))
}

fn read_controller_grants(table: &TableReader<'_>) -> ControllerGrants {
    let usual = ControllerGrants::default();
    let count = |key, range, usual| table.number(key, range).map_or(usual, |n| n.value as u16);
    let transfers = TransferMax::MIN.bytes().into()..=TransferMax::MAX.bytes().into();
    let refuse = |size: &Located<u64>, key: &str, what: &str| {
        table.file.sink.note_error(&size.at, format!("{key} in [[subsystem]] must be {what}"));
    };
    ControllerGrants {
        controllers: count("controllers", 1..=65519, usual.controllers),
        queues: count("queues", 1..=128, usual.queues),
        queue_depth: count("queue_depth", 2..=1024, usual.queue_depth),
        in_capsule: table.size("in_capsule", 0..=16 << 10).map_or(usual.in_capsule, |size| {
            if !size.value.is_multiple_of(16) {
                refuse(&size, "in_capsule", "a multiple of 16");
            }
            size.value as u32
        }),
        max_transfer: table.size("max_transfer", transfers).map_or(usual.max_transfer, |size| {
            TransferMax::from_bytes(size.value).unwrap_or_else(|| {
                refuse(&size, "max_transfer", "a power of two");
                usual.max_transfer
            })
        }),
    }
}

fn read_namespace(table: &TableReader<'_>) -> Option<NamespaceDraft> {
    let volume = table.require("volume", table.text("volume"));
    let nsid = table.number("nsid", 1..=NSID_MAX.into());
    let read_only = table.boolean("ro").is_some_and(|on| on.value);
    let ana_group = table.number("ana_group", 1..=ANA_GROUP_MAX.into());
    Some(NamespaceDraft { volume: volume?, nsid, read_only, ana_group })
}

/// Reads a `[[referral]]`.
pub fn read_referral(table: &TableReader<'_>) -> Option<Referral> {
    let address = table.require("address", table.parsed("address", network::parse_discovery_address))?;
    if address.value.ip().is_unspecified() || address.value.port() == 0 {
        let why = format!("address in [[referral]]: a host cannot connect to {}", address.value);
        table.file.sink.note_error(&address.at, why);
    }
    let nqn = table.parsed("nqn", |text| {
        if text == name::DISCOVERY_NQN { Ok(text.to_owned()) } else { name::parse_nqn(text) }
    });
    let nqn = nqn.map_or_else(|| name::DISCOVERY_NQN.to_owned(), |nqn| nqn.value);
    Some(Referral { address: address.value, nqn })
}

/// An OUI as `0011aa` or `00-11-AA` or `00:11:aa`.
pub fn parse_oui(text: &str) -> Result<[u8; 3], String> {
    let digits: String = text.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    let wrong = || format!("\"{text}\" is not six hexadecimal digits such as \"0011aa\"");
    if digits.len() != 6 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    let number = u32::from_str_radix(&digits, 16).map_err(|_| wrong())?;
    let [_, a, b, c] = number.to_be_bytes();
    Ok([a, b, c])
}

/// A Host Identifier of 128 bits, not zero (NVMe-oF §3.3).
pub fn parse_host_id(text: &str) -> Result<[u8; 16], String> {
    match uuid::Uuid::try_parse(text) {
        Ok(id) if !id.is_nil() => Ok(id.into_bytes()),
        Ok(_) => Err("a Host Identifier must not be zero".to_owned()),
        Err(why) => Err(format!("\"{text}\" is not a UUID: {why}")),
    }
}

/// `access` of a host: its grants for targets and for subsystems.
pub fn read_grants(table: &TableReader<'_>) -> (Vec<Located<TargetGrant>>, Vec<Located<SubsystemGrant>>) {
    let (mut targets, mut subsystems) = (Vec::new(), Vec::new());
    for table in table.tables("access", &schema::ACCESS) {
        let misplaced = |key: &str, of: &str| {
            if table.has_key(key) {
                let why = format!("\"{key}\" in access of [[host]] needs \"{of}\" beside it");
                table.file.sink.note_error(&table.place(), why);
            }
        };
        match (table.has_key("target"), table.has_key("subsystem")) {
            (true, false) => {
                misplaced("namespaces", "subsystem");
                targets.extend(read_target_grant(&table));
            }
            (false, true) => {
                misplaced("luns", "target");
                misplaced("through", "target");
                subsystems.extend(read_subsystem_grant(&table));
            }
            (true, true) => table
                .file
                .sink
                .note_error(&table.place(), "access of [[host]] takes \"target\" or \"subsystem\", not both"),
            (false, false) => table
                .file
                .sink
                .note_error(&table.place(), "access of [[host]] needs the key \"target\" or \"subsystem\""),
        }
    }
    (targets, subsystems)
}

/// `*` is everything; else what `parse` makes of it.
fn parse_wildcard_or<E>(text: &str, parse: impl Fn(&str) -> Result<String, E>) -> Result<Option<String>, E> {
    if text == "*" { Ok(None) } else { parse(text).map(Some) }
}

fn is_read_only(table: &TableReader<'_>) -> bool {
    table.keyword("mode", &[("rw", false), ("ro", true)]).is_some_and(|mode| mode.value)
}

fn read_target_grant(table: &TableReader<'_>) -> Option<Located<TargetGrant>> {
    let target = table.parsed("target", |text| parse_wildcard_or(text, name::parse_iscsi_name));
    let luns = table.numbers("luns", 0..=LUN_MAX);
    let read_only = is_read_only(table);
    let locals = table.parsed_list("through", str::parse::<std::net::IpAddr>);
    if locals.as_ref().is_some_and(Vec::is_empty) {
        table.file.sink.note_error(&table.place(), "through in access of [[host]] holds no address");
    }
    let target = target?;
    let luns = luns.map(|luns| luns.into_iter().map(|lun| (lun.value as u16, false)).collect());
    let locals = locals.unwrap_or_default().into_iter().map(|one| one.value).collect();
    Some(Located::new(TargetGrant { target: target.value, luns, read_only, locals }, target.at))
}

fn read_subsystem_grant(table: &TableReader<'_>) -> Option<Located<SubsystemGrant>> {
    let subsystem = table.parsed("subsystem", |text| parse_wildcard_or(text, name::parse_nqn));
    let namespaces = table.numbers("namespaces", 1..=NSID_MAX.into());
    let read_only = is_read_only(table);
    let subsystem = subsystem?;
    let namespaces = namespaces.map(|list| list.into_iter().map(|nsid| nsid.value as u32).collect());
    Some(Located::new(SubsystemGrant { subsystem: subsystem.value, namespaces, read_only }, subsystem.at))
}
