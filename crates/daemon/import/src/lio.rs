//! LIO: `saveconfig.json`, as rtslib and targetcli write it.

use config::spec::{Spec, VolumeSource};

use crate::{
    json::Document,
    model::{
        self, ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Secret, set_spec_key,
    },
    note::{Note, NoteOutcome},
    render::quoted_string,
    section::{
        IgnoredMeaning::{self, Emulated, NotApplicable, Only},
        ObjectSection,
    },
};

/// Attributes of storage objects that decide nothing here.
const IGNORED_STORE_ATTRIBUTES: &[(&str, IgnoredMeaning)] = &[
    ("alua_support", Only("1", "ALUA cannot be switched off")),
    ("emulate_3pc", Emulated("copies between volumes follow what this target offers")),
    ("emulate_caw", Only("1", "COMPARE AND WRITE cannot be switched off")),
    ("emulate_dpo", NotApplicable("DPO is accepted")),
    ("emulate_fua_read", NotApplicable("FUA of reads is honoured")),
    ("emulate_fua_write", Only("1", "FUA of writes cannot be switched off")),
    ("emulate_model_alias", NotApplicable("the product name is `product` of [[target]]")),
    ("emulate_pr", Only("1", "reservations cannot be switched off")),
    ("emulate_rest_reord", Only("0", "ordered commands stay ordered")),
    ("emulate_rsoc", NotApplicable("REPORT SUPPORTED OPERATION CODES is always there")),
    ("emulate_ua_intlck_ctrl", Only("0", "unit attentions are not interlocked")),
    ("enforce_pr_isids", NotApplicable("registrations are those of an I_T nexus, with its ISID")),
    ("is_nonrot", NotApplicable("volumes say that they do not rotate")),
    ("max_unmap_block_desc_count", NotApplicable("the limits are those of this target")),
    ("max_unmap_lba_count", NotApplicable("the limits are those of this target")),
    ("max_write_same_len", NotApplicable("the limits are those of this target")),
    ("optimal_sectors", NotApplicable("the limits are those of this target")),
    ("pgr_support", Only("1", "reservations cannot be switched off")),
    ("pi_prot_format", NotApplicable("a command to the kernel, not a setting")),
    ("pi_prot_type", Only("0", "there is no protection information")),
    ("pi_prot_verify", Only("0", "there is no protection information")),
    ("queue_depth", Emulated("`commands` of [[target]] limits what a session has in flight")),
    ("submit_type", NotApplicable("it is about the kernel's workers")),
    ("unmap_granularity", NotApplicable("it is that of the file or device")),
    ("unmap_granularity_alignment", NotApplicable("it is that of the file or device")),
    ("unmap_zeroes_data", NotApplicable("what is unmapped reads as zeroes where the backing promises it")),
];

/// Attributes of a portal group that decide nothing here.
const IGNORED_GROUP_ATTRIBUTES: &[(&str, IgnoredMeaning)] = &[
    ("cache_dynamic_acls", NotApplicable("there are no node ACLs made while running")),
    ("default_erl", Only("0", "error recovery level 0 is the only one")),
    ("demo_mode_discovery", Emulated("a host finds the targets that it may reach")),
    ("fabric_prot_type", Only("0", "there is no protection information")),
    ("login_keys_workaround", NotApplicable("it is about the kernel's login code")),
    ("login_timeout", Emulated("`login_timeout` of [limits] is for all targets")),
    ("netif_timeout", NotApplicable("the kernel's setting for lost network interfaces")),
    ("prod_mode_write_protect", Only("0", "use `ro` of luns")),
    ("t10_pi", Only("0", "there is no protection information")),
    ("tpg_enabled_sendtargets", Emulated("a host finds the targets that it may reach")),
];

/// Parameters of iSCSI that decide nothing here.
const IGNORED_PARAMETERS: &[(&str, IgnoredMeaning)] = &[
    ("AuthMethod", Emulated("CHAP is asked for where there are users")),
    ("DataPDUInOrder", Only("Yes", "data is in order")),
    ("DataSequenceInOrder", Only("Yes", "data is in order")),
    ("DefaultTime2Retain", Emulated("a session ends with its last connection")),
    ("DefaultTime2Wait", Emulated("the initiator may log in again at once")),
    ("ErrorRecoveryLevel", Only("0", "error recovery level 0 is the only one")),
    ("IFMarkInt", NotApplicable("RFC 7143 has no markers")),
    ("IFMarker", Only("No", "RFC 7143 has no markers")),
    ("MaxXmitDataSegmentLength", Emulated("it is what the initiator takes")),
    ("OFMarkInt", NotApplicable("RFC 7143 has no markers")),
    ("OFMarker", Only("No", "RFC 7143 has no markers")),
];

/// Attributes of a node ACL that decide nothing here.
const IGNORED_ACL_ATTRIBUTES: &[(&str, IgnoredMeaning)] = &[
    ("authentication", Emulated("CHAP is asked for where there are users")),
    ("dataout_timeout", NotApplicable("it is about error recovery levels above 0")),
    ("dataout_timeout_retries", NotApplicable("it is about error recovery levels above 0")),
    ("default_erl", Only("0", "error recovery level 0 is the only one")),
    ("nopin_response_timeout", Emulated("`nop_timeout` of [limits] is for all hosts")),
    ("nopin_timeout", Emulated("`nop_interval` of [limits] is for all hosts")),
    ("random_datain_pdu_offsets", Only("0", "data is in order")),
    ("random_datain_seq_offsets", Only("0", "data is in order")),
    ("random_r2t_offsets", Only("0", "R2Ts are in order")),
];

/// Reads the whole document.
pub fn read_lio(document: &Document) -> ImportModel {
    let root = ObjectSection::open(&document.file, &document.root, "saveconfig.json");
    let mut model = ImportModel::default();
    for object in root.sections("storage_objects") {
        read_storage_object(object, &mut model);
    }
    for module in root.sections("fabric_modules") {
        read_discovery_auth(module, &mut model);
    }
    for target in root.sections("targets") {
        read_target(target, &mut model);
    }
    model.notes.extend(root.finish());
    model
}

/// `fabric_modules`: users of discovery.
fn read_discovery_auth(module: ObjectSection<'_>, model: &mut ImportModel) {
    let name = module.text("name").unwrap_or_default();
    let enabled = module.flag("discovery_enable_auth").unwrap_or(false);
    let user = read_chap(&module, "discovery_", enabled);
    if name == "iscsi" && enabled {
        model.discovery.extend(user);
    }
    for key in
        ["discovery_userid", "discovery_password", "discovery_mutual_userid", "discovery_mutual_password"]
    {
        if !enabled {
            module.note_key(key, NoteOutcome::NotApplicable, "discovery_enable_auth switches it off");
        }
    }
    module.note_known_keys(&[("path", NotApplicable("a path in the kernel's configfs"))]);
    model.notes.extend(module.finish());
}

/// The CHAP users whose keys begin with `prefix`. `used`: half a pair is an error.
fn read_chap(section: &ObjectSection<'_>, prefix: &str, used: bool) -> Option<ChapUser> {
    let get = |key: &str| section.text(&format!("{prefix}{key}"));
    let pair = |user: &str, password: &str| match (get(user), get(password)) {
        (Some(user), Some(secret)) => Some((user.to_owned(), Secret::new(secret))),
        (None, None) => None,
        (Some(_), None) | (None, Some(_)) => {
            if used {
                section.note_error(&format!("{prefix}{user}"), "a user and a password belong together");
            }
            None
        }
    };
    let user = pair("userid", "password");
    let mutual = pair("mutual_userid", "mutual_password");
    Some(ChapUser { user: user?, mutual })
}

/// An element of `storage_objects`.
fn read_storage_object(object: ObjectSection<'_>, model: &mut ImportModel) {
    let name = object.text("name").unwrap_or_default();
    let plugin = object.text("plugin").unwrap_or_default();
    let key = format!("/backstores/{plugin}/{name}");
    let Some(mut spec) = read_backing(&object, plugin) else {
        let why = "there is no such backing here";
        model.notes.extend(object.into_omitted_notes(
            &format!("storage object {key}"),
            NoteOutcome::Error,
            why,
        ));
        return;
    };
    if object.flag("readonly").unwrap_or(false) {
        spec.read_only = true;
    }
    let write_back = object.flag("write_back").unwrap_or(false);
    let mut notes = Vec::new();
    if let Some(attributes) = object.section("attributes") {
        read_attributes(&attributes, &mut spec, write_back);
        notes.extend(attributes.finish());
    }
    read_identity(&object, &mut spec);
    for group in object.sections("alua_tpgs") {
        notes.extend(read_alua_group(group));
    }
    object.note_known_keys(&[
        ("aio", NotApplicable("files are read and written by io_uring or a pool of threads")),
        ("alua_support", Only("true", "ALUA cannot be switched off")),
        ("control", NotApplicable("it is about the kernel")),
        ("nullio", Emulated("a `null` volume")),
        ("udev_path", NotApplicable("it is what `dev` says")),
    ]);
    notes.extend(object.finish());
    notes.sort_by_key(|note| note.line);
    model.add_volume(&key, name, spec, notes);
}

/// Where the bytes lie.
fn read_backing(object: &ObjectSection<'_>, plugin: &str) -> Option<Spec> {
    let path = object.text("dev").unwrap_or_default();
    let size = object.number("size");
    let mut spec = match plugin {
        "block" => Spec::new(VolumeSource::Device(path.into())),
        "fileio" if path.starts_with("/dev/") => Spec::new(VolumeSource::Device(path.into())),
        "fileio" => Spec::new(VolumeSource::File(path.into())),
        "ramdisk" if object.flag("nullio").unwrap_or(false) => Spec::new(VolumeSource::Null),
        "ramdisk" => Spec::new(VolumeSource::Ram),
        _ => return None,
    };
    match (plugin, size) {
        ("fileio" | "ramdisk", Some(_)) if matches!(spec.source, VolumeSource::Device(_)) => {
            object.note_key("size", NoteOutcome::Emulated, "a device has its own size");
        }
        ("fileio" | "ramdisk", Some(bytes)) => spec.size = Some(bytes),
        ("ramdisk", None) => object.note_error("size", "a RAM volume needs a size"),
        _ => {}
    }
    if plugin == "ramdisk" {
        object.note_key(
            "plugin",
            NoteOutcome::Applied,
            "its content is lost when the daemon exits, as it was",
        );
    } else if !path.starts_with('/') {
        object.note_error("dev", "must be an absolute path");
    }
    Some(spec)
}

fn read_attributes(attributes: &ObjectSection<'_>, spec: &mut Spec, write_back: bool) {
    let is_on_disk = spec.source.path().is_some();
    if let Some(block) = attributes.number("block_size")
        && let Err(why) = set_spec_key(spec, "block", &block.to_string())
    {
        attributes.note_key("block_size", NoteOutcome::Error, &why);
    }
    let cache = attributes.flag("emulate_write_cache").unwrap_or(false);
    if is_on_disk {
        spec.cache = cache || write_back;
    } else if cache {
        attributes.note_key("emulate_write_cache", NoteOutcome::NotApplicable, "memory has no write cache");
    }
    let unmap = attributes.flag("emulate_tpu").unwrap_or(false);
    let zero = attributes.flag("emulate_tpws").unwrap_or(false);
    if is_on_disk {
        spec.thin = unmap || zero;
        if unmap != zero {
            attributes.note_key(
                "emulate_tpws",
                NoteOutcome::Emulated,
                "UNMAP and WRITE SAME with UNMAP go together",
            );
        }
    }
    if let Some(on) = attributes.flag("emulate_tas") {
        spec.task_aborted_status = on;
    }
    if attributes.flag("force_pr_aptpl").unwrap_or(false) {
        spec.persist = true;
    }
    for key in ["hw_block_size", "hw_max_sectors", "hw_pi_prot_type", "hw_queue_depth"] {
        attributes.note_key(key, NoteOutcome::NotApplicable, "it describes the device");
    }
    attributes.note_known_keys(IGNORED_STORE_ATTRIBUTES);
}

/// The unit serial number becomes the UUID; the designators that LIO makes of it are its own.
fn read_identity(object: &ObjectSection<'_>, spec: &mut Spec) {
    let Some(wwn) = object.text("wwn") else { return };
    match set_spec_key(spec, "uuid", wwn) {
        Ok(()) => object.note_key(
            "wwn",
            NoteOutcome::Emulated,
            "the UUID of the volume; its NAA designator is another one, so names by WWID (multipath, ESXi) change",
        ),
        Err(_) => object.note_key(
            "wwn",
            NoteOutcome::Error,
            "is no UUID: the volume gets a new identity, and hosts see another disk",
        ),
    }
}

/// An element of `alua_tpgs`.
fn read_alua_group(group: ObjectSection<'_>) -> Vec<Note> {
    group.note_known_keys(&[
        (
            "alua_access_state",
            Only("0", "path states are kept by the daemon: `blockwire path set VOLUME --state ...`"),
        ),
        ("alua_access_status", NotApplicable("a report of the kernel")),
        (
            "alua_access_type",
            Emulated("path states are implicit; `explicit_alua` of [[target]] lets hosts set them"),
        ),
        ("alua_support_active_nonoptimized", NotApplicable("all states are there")),
        ("alua_support_active_optimized", NotApplicable("all states are there")),
        ("alua_support_lba_dependent", NotApplicable("no volume has it")),
        ("alua_support_offline", NotApplicable("all states are there")),
        ("alua_support_standby", Emulated("hosts see inaccessible instead of standby")),
        ("alua_support_transitioning", NotApplicable("all states are there")),
        ("alua_support_unavailable", NotApplicable("all states are there")),
        ("alua_write_metadata", Emulated("path states always survive a restart")),
        ("implicit_trans_secs", NotApplicable("a state changes at once")),
        ("name", Emulated("groups are those of [[portal]]")),
        ("nonop_delay_msecs", NotApplicable("a non-optimized path is not slowed down")),
        ("preferred", Only("0", "no group is preferred")),
        ("tg_pt_gp_id", Emulated("groups are those of [[portal]]")),
        ("trans_delay_msecs", NotApplicable("a state changes at once")),
    ]);
    group.finish()
}

/// An element of `targets`.
fn read_target(target: ObjectSection<'_>, model: &mut ImportModel) {
    let wwn = target.text("wwn").unwrap_or_default().to_owned();
    let fabric = target.text("fabric").unwrap_or_default();
    if fabric != "iscsi" {
        let what = format!(
            "target {} of the fabric {}",
            crate::note::printable_value(&wwn),
            crate::note::printable_value(fabric)
        );
        model.notes.extend(target.into_omitted_notes(
            &what,
            NoteOutcome::Error,
            "only iSCSI can be served here",
        ));
        return;
    }
    let mut export = Export::new(Protocol::Iscsi, &wwn);
    match model::normalize_iqn(&wwn) {
        Ok(name) => export.name = name,
        Err(why) => target.note_key("wwn", NoteOutcome::Error, &why),
    }
    let mut is_first = true;
    let groups = target.sections("tpgs");
    let mut enabled = 0;
    for group in groups {
        if group.flag("enable") == Some(false) {
            let why = "enable = false: nobody reaches it, and it is left out";
            model.notes.extend(group.into_omitted_notes(
                &format!("portal group of {}", export.name),
                NoteOutcome::Emulated,
                why,
            ));
            continue;
        }
        enabled += 1;
        read_portal_group(group, &mut export, is_first, model);
        is_first = false;
    }
    target.note_known_keys(&[("parameters", NotApplicable("the target itself has none"))]);
    export.notes.extend(target.finish());
    export.notes.sort_by_key(|note| note.line);
    if enabled == 0 {
        model.notes.append(&mut export.notes);
    } else {
        model.exports.push(export);
    }
}

/// An element of `tpgs`.
fn read_portal_group(group: ObjectSection<'_>, export: &mut Export, is_first: bool, model: &mut ImportModel) {
    let mut notes = Vec::new();
    let before = std::mem::take(&mut export.units);
    read_luns(&group, export, model, &mut notes);
    if !is_first && before != export.units {
        group.note_error("luns", "the logical units of a target are the same in all its portal groups here; those of the first group are used");
        export.units = before;
    }
    read_portals(&group, export, &mut notes);
    group.note_key(
        "tag",
        NoteOutcome::Emulated,
        "portal groups are numbered again, by the targets that they lead to",
    );
    if let Some(parameters) = group.section("parameters") {
        read_negotiation(&parameters, export);
        notes.extend(parameters.finish());
    }
    let attributes = group.section("attributes");
    let flag = |key: &str| attributes.as_ref().and_then(|attributes| attributes.flag(key)).unwrap_or(false);
    let asks = flag("authentication");
    let demo = flag("generate_node_acls");
    let protects = flag("demo_mode_write_protect") && demo;
    if let Some(depth) = attributes.as_ref().and_then(|attributes| attributes.number("default_cmdsn_depth")) {
        export.set_key("commands", depth.clamp(1, 4096).to_string());
    }
    export.open = demo;
    let acls = group.sections("node_acls");
    if protects {
        export.units.iter_mut().for_each(|unit| unit.read_only = true);
        if !acls.is_empty()
            && let Some(attributes) = &attributes
        {
            let why = "every host reads only, also those with a node ACL: switch it off to let these write";
            attributes.note_error("demo_mode_write_protect", why);
        }
    }
    let user = read_chap(&group, "chap_", asks);
    match (user, asks) {
        (Some(user), true) => export.chap = vec![user],
        (None, true) if demo => group.note_error(
            "attributes",
            "authentication is asked for, but the group has no user: hosts without a node ACL could not log in there",
        ),
        (Some(_), false) => group.note_key("chap_userid", NoteOutcome::NotApplicable, "authentication = 0 switches it off"),
        (None, _) => {}
    }
    if asks && demo && export.chap.is_empty() {
        export.open = false;
    }
    for acl in acls {
        read_node_acl(acl, export, asks, model);
    }
    if let Some(attributes) = attributes {
        attributes.note_known_keys(IGNORED_GROUP_ATTRIBUTES);
        notes.extend(attributes.finish());
    }
    notes.extend(group.finish());
    export.notes.extend(notes);
}

/// `portals`.
fn read_portals(group: &ObjectSection<'_>, export: &mut Export, notes: &mut Vec<Note>) {
    for portal in group.sections("portals") {
        let port = portal.number("port").unwrap_or(config::network::ISCSI_PORT.into());
        match model::parse_portal(portal.text("ip_address").unwrap_or_default(), port) {
            Ok(address) => export.portals.push(address),
            Err(why) => portal.note_error("ip_address", &why),
        }
        portal.note_known_keys(&[
            ("iser", Only("false", "iSER is not there")),
            ("offload", NotApplicable("there is no offload engine")),
        ]);
        notes.extend(portal.finish());
    }
}

/// `luns`.
fn read_luns(group: &ObjectSection<'_>, export: &mut Export, model: &ImportModel, notes: &mut Vec<Note>) {
    for lun in group.sections("luns") {
        let number = lun.number("index").unwrap_or(u64::MAX);
        let key = lun.text("storage_object").unwrap_or_default();
        lun.note_known_keys(&[
            ("alias", NotApplicable("a name inside the kernel")),
            ("alua_tg_pt_gp_name", Emulated("groups are those of [[portal]]")),
        ]);
        match model.volume(key) {
            Some(_) => export.units.push(LunOrNamespace {
                number,
                volume: key.to_owned(),
                read_only: false,
                ana_group: None,
            }),
            None => {
                lun.note_error("storage_object", "there is no such volume, so the logical unit is left out")
            }
        }
        notes.extend(lun.finish());
    }
}

fn read_negotiation(parameters: &ObjectSection<'_>, export: &mut Export) {
    for (key, ours) in [("HeaderDigest", "header_digest"), ("DataDigest", "data_digest")] {
        let Some(methods) = parameters.text(key) else { continue };
        let has = |word: &str| methods.split(',').any(|method| method.trim().eq_ignore_ascii_case(word));
        let policy = match (has("CRC32C"), has("None")) {
            (true, true) => "allow",
            (true, false) => "require",
            (false, _) => "off",
        };
        export.set_key(ours, quoted_string(policy));
    }
    for (key, ours) in [("InitialR2T", "initial_r2t"), ("ImmediateData", "immediate_data")] {
        if let Some(on) = parameters.flag(key) {
            export.set_key(ours, on.to_string());
        }
    }
    for (key, ours) in [("MaxConnections", "max_connections"), ("MaxOutstandingR2T", "max_outstanding_r2t")] {
        if let Some(number) = parameters.number(key) {
            export.set_key(ours, number.to_string());
        }
    }
    if let Some(alias) = parameters.text("TargetAlias") {
        export.set_key("alias", quoted_string(&alias.chars().take(63).collect::<String>()));
    }
    read_lengths(parameters, export);
    parameters.note_known_keys(IGNORED_PARAMETERS);
}

/// Lengths of bursts and segments.
fn read_lengths(parameters: &ObjectSection<'_>, export: &mut Export) {
    for (key, ours) in [
        ("MaxBurstLength", "max_burst"),
        ("FirstBurstLength", "first_burst"),
        ("MaxRecvDataSegmentLength", "max_receive"),
    ] {
        if let Some(number) = parameters.number(key) {
            export.set_key(ours, number.to_string());
        }
    }
}

/// An element of `node_acls`: a host, by its name.
fn read_node_acl(acl: ObjectSection<'_>, export: &Export, asks: bool, model: &mut ImportModel) {
    let wwn = acl.text("node_wwn").unwrap_or_default();
    let mut host = Host::new(wwn);
    match model::normalize_iqn(wwn) {
        Ok(name) => host.iqns.push(name),
        Err(why) => {
            acl.note_error("node_wwn", &why);
            model.notes.extend(acl.finish());
            return;
        }
    }
    if let Some(user) = read_chap(&acl, "chap_", asks) {
        if asks {
            host.chap.push(user);
        } else {
            acl.note_key(
                "chap_userid",
                NoteOutcome::NotApplicable,
                "authentication = 0 of its portal group switches it off",
            );
        }
    }
    let (numbers, protected) = read_mapped_luns(&acl, export, &mut host.notes);
    let keyless = asks && host.chap.is_empty() && export.chap.is_empty();
    if keyless {
        acl.note_error(
            "node_wwn",
            "authentication is asked for, but this host has no user: it gets no access",
        );
    }
    if let Some(attributes) = acl.section("attributes") {
        attributes.note_known_keys(IGNORED_ACL_ATTRIBUTES);
        host.notes.extend(attributes.finish());
    }
    acl.note_known_keys(&[
        ("tag", NotApplicable("a label")),
        ("tcq_depth", Emulated("`commands` of [[target]] is for all its hosts")),
        ("parameters", NotApplicable("negotiated values are those of the target")),
    ]);
    host.notes.extend(acl.finish());
    host.notes.sort_by_key(|note| note.line);
    let all = numbers.len() == export.units.len();
    host.grants.push(Grant {
        protocol: Protocol::Iscsi,
        export: export.name.clone(),
        units: (!all).then_some(numbers),
        through: Vec::new(),
        read_only: protected,
    });
    if keyless {
        model.notes.append(&mut host.notes);
    } else {
        model.add_host(host);
    }
}

/// `read_mapped_luns`: the numbers that the host sees, and whether it only reads.
fn read_mapped_luns(acl: &ObjectSection<'_>, export: &Export, notes: &mut Vec<Note>) -> (Vec<u64>, bool) {
    let mut numbers = Vec::new();
    let (mut protected, mut writable) = (0, 0);
    for mapped in acl.sections("mapped_luns") {
        let inside = mapped.number("tpg_lun").unwrap_or(u64::MAX);
        let seen = mapped.number("index").unwrap_or(inside);
        if inside != seen {
            mapped.note_error(
                "index",
                "a host sees a logical unit by its number in the target here, not by another one",
            );
        }
        match mapped.flag("write_protect").unwrap_or(false) {
            true => protected += 1,
            false => writable += 1,
        }
        if export.units.iter().any(|unit| unit.number == inside) {
            numbers.push(inside);
        }
        mapped.note_known_keys(&[("alias", NotApplicable("a name inside the kernel"))]);
        notes.extend(mapped.finish());
    }
    if protected > 0 && writable > 0 {
        let why = "a host reads or writes all that it reaches in a target: write_protect of a part of the mapped \
                   LUNs cannot be carried over, so it only reads";
        acl.note_error("mapped_luns", why);
    }
    (numbers, protected > 0)
}
