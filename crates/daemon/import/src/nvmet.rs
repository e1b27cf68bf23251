//! The kernel's NVMe target: `config.json`, as nvmetcli writes it.

use config::{
    name,
    spec::{Spec, VolumeSource},
};

use crate::{
    json::Document,
    model::{self, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Secret, set_spec_key},
    note::NoteOutcome,
    render::quoted_string,
    section::{
        IgnoredMeaning::{Emulated, NotApplicable, Only},
        ObjectSection,
    },
};

/// A host and its secret.
struct HostSecret {
    nqn: String,
    key: Option<Secret>,
    controller_key: Option<Secret>,
}

/// Reads the whole document.
pub fn read_nvmet(document: &Document) -> ImportModel {
    let root = ObjectSection::open(&document.file, &document.root, "config.json");
    let mut model = ImportModel::default();
    let mut hosts = Vec::new();
    for host in root.sections("hosts") {
        let nqn = host.text("nqn").unwrap_or_default().to_owned();
        let key = host.text("dhchap_key").map(Secret::new);
        let controller_key = host.text("dhchap_ctrl_key").filter(|text| !text.is_empty()).map(Secret::new);
        host.note_known_keys(&[
            ("dhchap_dhgroup", Emulated("`dhchap_groups` of [auth] is for all hosts")),
            ("dhchap_hash", Emulated("`dhchap_hashes` of [auth] is for all hosts")),
        ]);
        model.notes.extend(host.finish());
        hosts.push(HostSecret { nqn, key, controller_key });
    }
    for subsystem in root.sections("subsystems") {
        read_subsystem(subsystem, &hosts, &mut model);
    }
    for port in root.sections("ports") {
        read_port(port, &mut model);
    }
    drop_unreachable_exports(&mut model);
    model.notes.extend(root.finish());
    model
}

/// What no port leads to is not served.
fn drop_unreachable_exports(model: &mut ImportModel) {
    let (reached, lost): (Vec<Export>, Vec<Export>) =
        std::mem::take(&mut model.exports).into_iter().partition(|export| !export.portals.is_empty());
    model.exports = reached;
    for mut export in lost {
        for host in &mut model.hosts {
            host.grants.retain(|grant| grant.export != export.name);
        }
        model.notes.append(&mut export.notes);
    }
    model.hosts.retain(|host| !host.grants.is_empty());
}

/// An element of `subsystems`.
fn read_subsystem(subsystem: ObjectSection<'_>, hosts: &[HostSecret], model: &mut ImportModel) {
    let nqn = subsystem.text("nqn").unwrap_or_default();
    if nqn == name::DISCOVERY_NQN {
        let what = "the discovery subsystem";
        model.notes.extend(subsystem.into_omitted_notes(
            what,
            NoteOutcome::Emulated,
            "it is there by itself",
        ));
        return;
    }
    let mut export = Export::new(Protocol::Nvme, nqn);
    if let Err(why) = name::parse_nqn(nqn) {
        subsystem.note_error("nqn", &why.to_string());
    }
    if let Some(attributes) = subsystem.section("attr") {
        export.open = attributes.flag("allow_any_host").unwrap_or(false);
        for (key, ours, most) in [("serial", "serial", 20), ("model", "model", 40)] {
            if let Some(value) = attributes.text(key) {
                let value: String = value.trim().chars().take(most).collect();
                export.set_key(ours, quoted_string(&value));
            }
        }
        if let Some(most) = attributes.number("qid_max") {
            export.set_key("queues", most.clamp(1, 128).to_string());
        }
        attributes.note_known_keys(&[
            ("cntlid_min", Emulated("controller IDs are given from 1 on")),
            ("cntlid_max", Emulated("`controllers` of [[subsystem]] limits their number")),
            ("firmware", NotApplicable("the firmware revision is that of this program")),
            ("ieee_oui", Emulated("`oui` at the top level")),
            ("pi_enable", Only("0", "there is no protection information")),
            ("version", Emulated("the version of NVMe is that of this target")),
        ]);
        export.notes.extend(attributes.finish());
    }
    for namespace in subsystem.sections("namespaces") {
        read_namespace(namespace, &mut export, model);
    }
    for allowed in subsystem.list("allowed_hosts") {
        let crate::json::JsonKind::Text(nqn) = &allowed.kind else { continue };
        let known = hosts.iter().find(|host| host.nqn == *nqn);
        let mut host = Host::new(nqn);
        host.nqns.push(nqn.clone());
        host.dhchap = known.and_then(|known| known.key.clone());
        // Without a key of the host, nothing is proved in either direction.
        let controller_key = known.and_then(|known| known.controller_key.clone());
        host.dhchap_controller = controller_key.filter(|_| host.dhchap.is_some());
        host.grants.push(Grant {
            protocol: Protocol::Nvme,
            export: export.name.clone(),
            units: None,
            through: Vec::new(),
            read_only: false,
        });
        model.add_host(host);
    }
    subsystem.note_known_keys(&[(
        "passthru",
        Only("", "NVMe devices cannot be passed through; serve the block device"),
    )]);
    export.notes.extend(subsystem.finish());
    export.notes.sort_by_key(|note| note.line);
    model.exports.push(export);
}

/// An element of `namespaces`.
fn read_namespace(namespace: ObjectSection<'_>, export: &mut Export, model: &mut ImportModel) {
    let number = namespace.number("nsid").unwrap_or(0);
    if namespace.flag("enable") == Some(false) {
        let what = format!("namespace {number} of {}", export.name);
        let why = "enable = 0: no host sees it, and it is left out";
        export.notes.extend(namespace.into_omitted_notes(&what, NoteOutcome::Emulated, why));
        return;
    }
    let key = format!("{}/{number}", export.name);
    let Some(device) = namespace.section("device") else {
        namespace.note_error("device", "a namespace needs a device");
        export.notes.extend(namespace.finish());
        return;
    };
    let path = device.text("path").unwrap_or_default();
    let mut spec = match path.starts_with("/dev/") {
        true => Spec::new(VolumeSource::Device(path.into())),
        false => Spec::new(VolumeSource::File(path.into())),
    };
    if !path.starts_with('/') {
        device.note_error("path", "must be an absolute path");
    }
    read_identity(&device, &mut spec);
    let group = namespace.section("ana").and_then(|ana| {
        let group = ana.number("grpid");
        export.notes.extend(ana.finish());
        group
    });
    let group = group.or_else(|| namespace.number("ana_grpid"));
    namespace.note_known_keys(&[
        ("buffered_io", Emulated("files are read and written through the page cache unless `direct` is set")),
        ("p2pmem", NotApplicable("there is no peer-to-peer memory")),
        ("resv_enable", Emulated("reservations are always there")),
    ]);
    let mut notes = device.finish();
    notes.extend(namespace.finish());
    notes.sort_by_key(|note| note.line);
    let wish = format!("{}-{number}", export.name.rsplit(':').next().unwrap_or("volume"));
    model.add_volume(&key, &wish, spec, notes);
    export.units.push(LunOrNamespace {
        number,
        volume: key,
        read_only: false,
        ana_group: group.filter(|group| *group != 1),
    });
}

/// `uuid`, or else `nguid` if it has the form of one.
fn read_identity(device: &ObjectSection<'_>, spec: &mut Spec) {
    const NIL_UUID: &str = "00000000-0000-0000-0000-000000000000";
    let uuid = device.text("uuid").filter(|uuid| *uuid != NIL_UUID);
    let nguid = device.text("nguid").filter(|nguid| *nguid != NIL_UUID);
    if let Some(uuid) = uuid
        && let Err(why) = set_spec_key(spec, "uuid", uuid)
    {
        device.note_key("uuid", NoteOutcome::Error, &why);
    }
    match (uuid, nguid) {
        (Some(_), Some(_)) => {
            device.note_key("nguid", NoteOutcome::Emulated, "the UUID names the namespace; hosts prefer it");
        }
        (None, Some(nguid)) => match set_spec_key(spec, "uuid", nguid) {
            Ok(()) => device.note_key(
                "nguid",
                NoteOutcome::Emulated,
                "the UUID of the namespace; hosts that know it by its NGUID see another disk",
            ),
            Err(why) => device.note_key("nguid", NoteOutcome::Error, &why),
        },
        (_, None) => {}
    }
}

/// An element of `ports`.
fn read_port(port: ObjectSection<'_>, model: &mut ImportModel) {
    let mut notes = Vec::new();
    let Some(addr) = port.section("addr") else {
        port.note_error("addr", "a port needs an address");
        model.notes.extend(port.finish());
        return;
    };
    let kind = addr.text("trtype").unwrap_or_default();
    let number = addr.number("trsvcid").unwrap_or(config::network::NVME_PORT.into());
    let address = model::parse_portal(addr.text("traddr").unwrap_or_default(), number);
    addr.note_known_keys(&[
        ("adrfam", NotApplicable("the address says it")),
        ("tsas", Only("none", "TLS is not carried over")),
    ]);
    match addr.text("treq") {
        Some("required") => addr.note_error(
            "treq",
            "TLS is not carried over: set tls = \"require\" in the [[portal]] and tls_key_file in the [[host]]",
        ),
        _ => addr.note_key("treq", NoteOutcome::Emulated, "hosts need no TLS here"),
    }
    let subsystems = port.list("subsystems");
    match address {
        Ok(address) if kind == "tcp" => {
            for name in subsystems {
                let crate::json::JsonKind::Text(name) = &name.kind else { continue };
                if name == name::DISCOVERY_NQN {
                    continue;
                }
                match model.exports.iter_mut().find(|export| export.name == *name) {
                    Some(export) => export.portals.push(address),
                    None => port.note_error(
                        "subsystems",
                        &format!("there is no subsystem \"{}\"", crate::note::printable_value(name)),
                    ),
                }
            }
        }
        Ok(_) => {
            addr.note_error("trtype", "only tcp can be served: what this port alone leads to is left out")
        }
        Err(why) => addr.note_error("traddr", &why),
    }
    notes.extend(addr.finish());
    for group in port.sections("ana_groups") {
        if let Some(ana) = group.section("ana") {
            let why = "path states are kept by the daemon: `blockwire path set VOLUME --state ...`";
            ana.note_known_keys(&[("state", Only("optimized", why))]);
            notes.extend(ana.finish());
        }
        group.note_key("grpid", NoteOutcome::Emulated, "groups are those that namespaces name");
        notes.extend(group.finish());
    }
    if let Some(parameters) = port.section("param") {
        parameters.note_known_keys(&[
            ("inline_data_size", Emulated("`in_capsule` of [[subsystem]], at most 16K")),
            ("max_queue_size", Emulated("`queue_depth` of [[subsystem]]")),
            ("mdts", Emulated("`max_transfer` of [[subsystem]]")),
            ("pi_enable", Only("0", "there is no protection information")),
        ]);
        notes.extend(parameters.finish());
    }
    for referral in port.sections("referrals") {
        notes.extend(read_referral(referral, model));
    }
    port.note_key(
        "portid",
        NoteOutcome::Emulated,
        "portal groups are numbered again, by the subsystems that they lead to",
    );
    notes.extend(port.finish());
    notes.sort_by_key(|note| note.line);
    model.notes.extend(notes);
}

fn read_referral(referral: ObjectSection<'_>, model: &mut ImportModel) -> Vec<crate::note::Note> {
    let mut notes = Vec::new();
    if let Some(addr) = referral.section("addr") {
        let number = addr.number("trsvcid").unwrap_or(config::network::NVME_DISCOVERY_PORT.into());
        match model::parse_portal(addr.text("traddr").unwrap_or_default(), number) {
            Ok(address) if referral.flag("enable") != Some(false) => {
                if !model.referrals.contains(&address) {
                    model.referrals.push(address);
                }
            }
            Ok(_) => addr.note_key("traddr", NoteOutcome::Emulated, "enable = 0: it is left out"),
            Err(why) => addr.note_error("traddr", &why),
        }
        addr.note_known_keys(&[
            ("adrfam", NotApplicable("the address says it")),
            ("portid", NotApplicable("a label")),
            ("treq", NotApplicable("TLS is not carried over")),
            ("trtype", Only("tcp", "only tcp can be served")),
            ("tsas", NotApplicable("TLS is not carried over")),
        ]);
        notes.extend(addr.finish());
    }
    referral.note_known_keys(&[("name", NotApplicable("a label")), ("portid", NotApplicable("a label"))]);
    notes.extend(referral.finish());
    notes
}
