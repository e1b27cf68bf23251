//! SCST: `scst.conf`, as scstadmin reads and writes it.

use config::{
    network::ISCSI_PORT,
    spec::{Spec, VolumeSource},
};

use crate::{
    blocks::Statement,
    model::{
        self, ChapUser, Export, Grant, Host, ImportModel, LunOrNamespace, Protocol, Secret, outcome_of,
        parse_flag, set_spec_key,
    },
    note::NoteOutcome,
    render::quoted_string,
};

/// A result of a setting.
type SettingOutcome = (NoteOutcome, String);

fn applied_outcome() -> SettingOutcome {
    (NoteOutcome::Applied, String::new())
}

fn emulated_outcome(why: &str) -> SettingOutcome {
    (NoteOutcome::Emulated, why.to_owned())
}

fn meaningless_outcome(why: &str) -> SettingOutcome {
    (NoteOutcome::NotApplicable, why.to_owned())
}

fn error_outcome(why: &str) -> SettingOutcome {
    (NoteOutcome::Error, why.to_owned())
}

/// Reads a whole file.
pub fn read_scst(statements: &[Statement]) -> ImportModel {
    let mut model = ImportModel::default();
    for statement in statements {
        match (statement.first_word(), statement.word_at(1)) {
            ("HANDLER", kind @ ("vdisk_fileio" | "vdisk_blockio" | "vdisk_nullio")) => {
                model.notes.push(statement.to_note(NoteOutcome::Applied, ""));
                for inner in statement.block_statements() {
                    match inner.first_word() {
                        "DEVICE" => read_device(kind, inner, &mut model),
                        _ => model.notes.push(
                            inner.to_note(NoteOutcome::NotApplicable, "it is about the handler's module"),
                        ),
                    }
                }
            }
            ("HANDLER", _) if statement.block_statements().is_empty() => {
                model.notes.push(statement.to_note(NoteOutcome::NotApplicable, "it has no devices"));
            }
            ("HANDLER", _) => {
                let why = "SCSI devices cannot be passed through: serve the block device";
                model.notes.push(statement.to_note(NoteOutcome::Error, why));
            }
            ("TARGET_DRIVER", "iscsi") => {}
            ("TARGET_DRIVER", "copy_manager") => {
                model.notes.push(
                    statement.to_note(
                        NoteOutcome::Emulated,
                        "copies between volumes follow what this target offers",
                    ),
                );
            }
            ("TARGET_DRIVER", _)
                if statement.block_statements().iter().all(|inner| inner.first_word() != "TARGET") =>
            {
                model.notes.push(statement.to_note(NoteOutcome::NotApplicable, "it has no targets"));
            }
            ("TARGET_DRIVER", _) => {
                model.notes.push(statement.to_note(NoteOutcome::Error, "only iSCSI can be served here"));
            }
            ("DEVICE_GROUP", _) => {
                let why = "path states are kept by the daemon: `blockwire path set VOLUME --state ...`";
                model.notes.push(statement.to_note(NoteOutcome::Error, why));
            }
            _ => model.notes.push(statement.to_note(NoteOutcome::NotApplicable, "it is about the SCST core")),
        }
    }
    // Devices come first, wherever they stand.
    for statement in
        statements.iter().filter(|one| one.first_word() == "TARGET_DRIVER" && one.word_at(1) == "iscsi")
    {
        read_driver(statement, &mut model);
    }
    model
}

/// A `DEVICE`.
fn read_device(kind: &str, block: &Statement, model: &mut ImportModel) {
    let name = block.word_at(1);
    let find = |key: &str| block.block_statements().iter().find(|inner| inner.first_word() == key);
    let path = find("filename").map_or("", |inner| inner.word_at(1));
    let mut spec = Spec::new(match kind {
        "vdisk_nullio" => VolumeSource::Null,
        _ if path.starts_with("/dev/") => VolumeSource::Device(path.into()),
        _ => VolumeSource::File(path.into()),
    });
    spec.direct = kind == "vdisk_blockio";
    let mut notes = vec![block.to_note(NoteOutcome::Applied, "")];
    if kind != "vdisk_nullio" && !path.starts_with('/') {
        notes.push(block.to_note(NoteOutcome::Error, "needs `filename` with an absolute path"));
    }
    for inner in block.block_statements() {
        let said = read_device_setting(inner, &mut spec);
        notes.push(inner.to_note(said.0, said.1));
    }
    if spec.source == VolumeSource::Null && spec.size.is_none() {
        // Its own default is a terabyte.
        spec.size = Some(1 << 40);
    }
    model.add_volume(name, name, spec, notes);
}

fn read_device_setting(inner: &Statement, spec: &mut Spec) -> SettingOutcome {
    let value = inner.word_at(1);
    let on = parse_flag(value);
    let is_on_disk = spec.source.path().is_some();
    match inner.first_word() {
        "filename" => applied_outcome(),
        "blocksize" => outcome_of(set_spec_key(spec, "block", value)),
        "read_only" => outcome_of(set_spec_key(spec, "ro", value)),
        "removable" => outcome_of(set_spec_key(spec, "removable", value)),
        "size" | "size_mb" if !matches!(spec.source, VolumeSource::Device(_)) => {
            let unit = if inner.first_word() == "size" { "" } else { "M" };
            outcome_of(set_spec_key(spec, "size", &format!("{value}{unit}")))
        }
        "size" | "size_mb" => emulated_outcome("a device has its own size"),
        "nv_cache" if on == Some(true) && is_on_disk => {
            spec.cache = false;
            emulated_outcome(
                "nothing here is lost with the power: every write is on stable storage before it completes",
            )
        }
        "write_through" if is_on_disk => {
            spec.cache = on != Some(true);
            applied_outcome()
        }
        "o_direct" if is_on_disk => {
            spec.direct = on == Some(true);
            applied_outcome()
        }
        "thin_provisioned" if is_on_disk => {
            spec.thin = on == Some(true);
            applied_outcome()
        }
        "tas" => outcome_of(set_spec_key(spec, "tas", value)),
        "dif_mode" if !["0", "none"].contains(&value) => error_outcome("there is no protection information"),
        "active" if on == Some(false) => error_outcome("a volume cannot be configured inactive"),
        "usn" | "t10_dev_id" | "naa_id" | "eui64_id" | "t10_vend_id" | "scsi_device_name"
        | "vend_specific_id" => emulated_outcome(
            "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change; hosts see another disk",
        ),
        "prod_id" => emulated_outcome("`product` of [[target]]"),
        "prod_rev_lvl" | "inq_vend_specific" => {
            meaningless_outcome("what is reported is that of this target")
        }
        "nv_cache"
        | "write_through"
        | "o_direct"
        | "thin_provisioned"
        | "active"
        | "dif_mode"
        | "dif_type"
        | "dif_filename"
        | "dif_static_app_tag"
        | "rotational"
        | "threads_num"
        | "threads_pool_type"
        | "numa_node_id"
        | "async"
        | "bind_alua_state"
        | "cluster_mode"
        | "dummy"
        | "expl_alua"
        | "lb_per_pb_exp"
        | "max_tgt_dev_commands"
        | "zero_copy"
        | "pr_file_name"
        | "opt_trans_len"
        | "gen_tp_soft_threshold_reached_UA" => match inner.first_word() {
            "cluster_mode" if on == Some(true) => {
                error_outcome("reservations of several machines are not one here")
            }
            _ => meaningless_outcome("it is about SCST's own handlers"),
        },
        _ => error_outcome("this setting is not known here"),
    }
}

/// A user and a secret: two words, or both in one pair of quotes.
fn read_user(statement: &Statement) -> Option<(String, Secret)> {
    let joined = statement.remaining_words().join(" ");
    let (name, secret) = joined.trim().split_once(char::is_whitespace)?;
    Some((name.to_owned(), Secret::new(secret.trim())))
}

fn user_outcome(statement: &Statement, how: &str) -> SettingOutcome {
    match read_user(statement) {
        Some(_) => (NoteOutcome::Applied, how.to_owned()),
        None => error_outcome("needs a user and a secret"),
    }
}

/// `TARGET_DRIVER iscsi`.
fn read_driver(block: &Statement, model: &mut ImportModel) {
    let mut discovery = (Vec::new(), None);
    let is_off = block
        .block_statements()
        .iter()
        .any(|inner| inner.first_word() == "enabled" && parse_flag(inner.word_at(1)) == Some(false));
    if is_off {
        model.notes.push(
            block.to_note(
                NoteOutcome::Emulated,
                "enabled 0: nobody reaches its targets, and they are left out",
            ),
        );
        return;
    }
    for inner in block.block_statements() {
        let said = match inner.first_word() {
            "TARGET" => {
                read_target(inner, model);
                continue;
            }
            "enabled" => applied_outcome(),
            key if key.starts_with("IncomingUser") => {
                discovery.0.extend(read_user(inner));
                user_outcome(inner, "`discovery` of [auth]")
            }
            "OutgoingUser" => {
                discovery.1 = read_user(inner);
                user_outcome(inner, "`discovery` of [auth]")
            }
            "iSNSServer" if !inner.word_at(1).is_empty() => {
                error_outcome("initiators find targets with SendTargets; there is no iSNS")
            }
            "internal_portal" => error_outcome("SCST's internal portal is not supported"),
            "link_local" | "iSNSServer" | "trace_level" | "iscsi_version" | "open_state" => {
                meaningless_outcome("it is about SCST")
            }
            _ => error_outcome("this setting is not known here"),
        };
        // A secret stands in one word with its user.
        let mut note = inner.to_note(said.0, said.1);
        redact_setting(&mut note.setting, inner);
        model.notes.push(note);
    }
    let (users, mutual) = discovery;
    model.discovery.extend(users.into_iter().map(|user| ChapUser { user, mutual: mutual.clone() }));
}

/// Shows no more of a line with a secret than its key.
fn redact_setting(setting: &mut String, statement: &Statement) {
    if statement.first_word().starts_with("IncomingUser")
        || statement.first_word().starts_with("OutgoingUser")
    {
        *setting = format!("{} ...", statement.first_word());
    }
}

/// A `TARGET`.
fn read_target(block: &Statement, model: &mut ImportModel) {
    let mut export = Export::new(Protocol::Iscsi, block.word_at(1));
    match model::normalize_iqn(block.word_at(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.to_note(NoteOutcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.to_note(NoteOutcome::Error, why)),
    }
    let is_on = block
        .block_statements()
        .iter()
        .any(|inner| inner.first_word() == "enabled" && parse_flag(inner.word_at(1)) == Some(true));
    if !is_on {
        model
            .notes
            .push(block.to_note(NoteOutcome::Emulated, "not enabled: nobody reaches it, and it is left out"));
        return;
    }
    let mut users = Vec::new();
    let mut mutual = None;
    let mut groups = Vec::new();
    let mut common = Vec::new();
    for inner in block.block_statements() {
        let said = match inner.first_word() {
            "GROUP" => {
                groups.push(inner);
                continue;
            }
            "LUN" => {
                common.extend(read_lun(inner, &mut export, model));
                continue;
            }
            key if key.starts_with("IncomingUser") => {
                users.extend(read_user(inner));
                user_outcome(inner, "`chap` of [[target]]")
            }
            "OutgoingUser" => {
                mutual = read_user(inner);
                user_outcome(inner, "`mutual_user` of [[target]]")
            }
            "allowed_portal" => match model::parse_portal(inner.word_at(1), ISCSI_PORT.into()) {
                Ok(address) => {
                    export.portals.push(address);
                    applied_outcome()
                }
                Err(why) => error_outcome(&why),
            },
            _ => read_target_setting(inner, &mut export),
        };
        let mut note = inner.to_note(said.0, said.1);
        redact_setting(&mut note.setting, inner);
        export.notes.push(note);
    }
    if export.portals.is_empty() {
        export.portals.extend(model::wildcard_portals());
    }
    export.chap = users.into_iter().map(|user| ChapUser { user, mutual: mutual.clone() }).collect();
    let before = export.units.len();
    for group in groups {
        read_initiator_group(group, &mut export, model);
    }
    let grows = export.units.len() > before;
    export.open = !common.is_empty() && !grows;
    if !common.is_empty() && grows {
        // Who is in no group reaches the logical units of the target itself, and not those of groups.
        let mut host = Host::new(&format!("any initiator of {}", block.word_at(1)));
        host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        host.grants.push(grant_to(&export.name, Some(common)));
        model.add_host(host);
    }
    export.units.sort_by_key(|unit| unit.number);
    export.notes.sort_by_key(|note| note.line);
    model.exports.push(export);
}

fn grant_to(export: &str, units: Option<Vec<u64>>) -> Grant {
    let export = export.to_owned();
    Grant { protocol: Protocol::Iscsi, export, units, through: Vec::new(), read_only: false }
}

/// A `LUN NUMBER DEVICE`; its number, if it is among those of the target.
fn read_lun(statement: &Statement, export: &mut Export, model: &ImportModel) -> Option<u64> {
    let device = statement.word_at(2).to_owned();
    let read_only = statement
        .block_statements()
        .iter()
        .any(|inner| inner.first_word() == "read_only" && parse_flag(inner.word_at(1)) == Some(true));
    let number = statement.word_at(1).parse::<u64>().ok();
    let known = number.and_then(|number| export.units.iter().find(|unit| unit.number == number));
    let said = match (number, model.volume(&device), known) {
        (None, ..) => error_outcome("the number of a logical unit is missing"),
        (_, None, _) => error_outcome("there is no such volume, so the logical unit is left out"),
        (_, _, Some(known)) if known.volume != device || known.read_only != read_only => error_outcome(
            "this number is another volume for other initiators of the target: a number is one volume for all here",
        ),
        _ => applied_outcome(),
    };
    let is_fine = said.0 == NoteOutcome::Applied;
    export.notes.push(statement.to_note(said.0, said.1));
    for inner in statement.block_statements() {
        let said = if inner.first_word() == "read_only" {
            applied_outcome()
        } else {
            error_outcome("this setting is not known here")
        };
        export.notes.push(inner.to_note(said.0, said.1));
    }
    let number = number.filter(|_| is_fine)?;
    if !export.units.iter().any(|unit| unit.number == number) {
        export.units.push(LunOrNamespace { number, volume: device, read_only, ana_group: None });
    }
    Some(number)
}

/// A `GROUP`: initiators, and what they see.
fn read_initiator_group(group: &Statement, export: &mut Export, model: &mut ImportModel) {
    let mut host = Host::new(group.word_at(1));
    let mut numbers = Vec::new();
    let mut is_any = false;
    let mut notes = vec![group.to_note(NoteOutcome::Emulated, "a [[host]]")];
    for inner in group.block_statements() {
        let said = match inner.first_word() {
            "LUN" => {
                numbers.extend(read_lun(inner, export, model));
                continue;
            }
            "INITIATOR" if inner.word_at(1) == "*" => {
                is_any = true;
                applied_outcome()
            }
            "INITIATOR" if inner.word_at(1).contains(['*', '?', '!', '#']) => error_outcome(
                "patterns of names are not there: write the names, or `sources` of the [[host]]",
            ),
            "INITIATOR" => match model::normalize_iqn(inner.word_at(1)) {
                Ok(name) => {
                    host.iqns.push(name);
                    applied_outcome()
                }
                Err(why) => error_outcome(&why),
            },
            "cpu_mask" | "io_grouping_type" | "black_hole" => {
                meaningless_outcome("it is about SCST's threads")
            }
            _ => error_outcome("this setting is not known here"),
        };
        notes.push(inner.to_note(said.0, said.1));
    }
    if is_any {
        host.iqns.clear();
        host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    }
    host.notes = notes;
    if (host.iqns.is_empty() && host.sources.is_empty()) || numbers.is_empty() {
        let notes = std::mem::take(&mut host.notes);
        export.notes.extend(notes);
        export.notes.push(
            group.to_note(NoteOutcome::Emulated, "no initiator or no volume is left: it gives no access"),
        );
        return;
    }
    host.grants.push(grant_to(&export.name, Some(numbers)));
    model.add_host(host);
}

/// Another setting of a target.
fn read_target_setting(inner: &Statement, export: &mut Export) -> SettingOutcome {
    let value = inner.word_at(1);
    let mut number = |ours: &'static str, most: u64| match value.parse::<u64>() {
        Ok(number) => {
            export.set_key(ours, number.clamp(1, most).to_string());
            applied_outcome()
        }
        Err(_) => error_outcome("is no number"),
    };
    match inner.first_word() {
        "MaxRecvDataSegmentLength" => number("max_receive", 16_777_215),
        "FirstBurstLength" => number("first_burst", 16_777_215),
        "MaxBurstLength" => number("max_burst", 16_777_215),
        "MaxOutstandingR2T" => number("max_outstanding_r2t", 65535),
        "QueuedCommands" => number("commands", 4096),
        key @ ("InitialR2T" | "ImmediateData") => match parse_flag(value) {
            Some(on) => {
                export.set_key(
                    if key == "InitialR2T" { "initial_r2t" } else { "immediate_data" },
                    on.to_string(),
                );
                applied_outcome()
            }
            None => error_outcome("is Yes or No"),
        },
        key @ ("HeaderDigest" | "DataDigest") => {
            let has = |word: &str| value.split(',').any(|method| method.trim().eq_ignore_ascii_case(word));
            let policy = match (has("CRC32C"), has("None")) {
                (true, true) => "allow",
                (true, false) => "require",
                (false, _) => "off",
            };
            export.set_key(
                if key == "HeaderDigest" { "header_digest" } else { "data_digest" },
                quoted_string(policy),
            );
            applied_outcome()
        }
        "alias" => {
            export.set_key("alias", quoted_string(&value.chars().take(63).collect::<String>()));
            applied_outcome()
        }
        "NopInInterval" | "NopInTimeout" | "RspTimeout" => {
            emulated_outcome("`nop_interval` and `nop_timeout` of [limits] are for all targets")
        }
        "MaxXmitDataSegmentLength" => emulated_outcome("it is what the initiator takes"),
        "rel_tgt_id" => emulated_outcome("ports are numbered by this target"),
        "redirect" if !value.is_empty() => error_outcome("write `redirect` of [[target]]"),
        "enabled" | "MaxSessions" | "per_portal_acl" | "cpu_mask" | "io_grouping_type" | "redirect"
        | "forward_src" | "forward_dst" | "forwarding" | "aen_disabled" | "black_hole" | "addr_method"
        | "dif_capabilities" | "max_nop_in" | "hw_target" => match inner.first_word() {
            "enabled" => applied_outcome(),
            "per_portal_acl" if parse_flag(value) == Some(true) => {
                error_outcome("write `through` in the access of each [[host]]")
            }
            "MaxSessions" if value != "0" => emulated_outcome("`sessions` of [limits] is for all targets"),
            _ => meaningless_outcome("it is about SCST"),
        },
        _ => error_outcome("this setting is not known here"),
    }
}
