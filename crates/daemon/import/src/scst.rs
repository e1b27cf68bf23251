//! SCST: `scst.conf`, as scstadmin reads and writes it.

use config::{
    network::ISCSI_PORT,
    spec::{Source, Spec},
};

use crate::{
    blocks::Statement,
    model::{self, Chap, Export, Grant, Host, Model, Protocol, Secret, Unit, flag, outcome, set},
    note::Outcome,
    render::text,
};

/// A result of a setting.
type Said = (Outcome, String);

fn applied() -> Said {
    (Outcome::Applied, String::new())
}

fn emulated(why: &str) -> Said {
    (Outcome::Emulated, why.to_owned())
}

fn meaningless(why: &str) -> Said {
    (Outcome::NotApplicable, why.to_owned())
}

fn error(why: &str) -> Said {
    (Outcome::Error, why.to_owned())
}

/// Reads a whole file.
pub fn read(statements: &[Statement]) -> Model {
    let mut model = Model::default();
    for statement in statements {
        match (statement.key(), statement.word(1)) {
            ("HANDLER", kind @ ("vdisk_fileio" | "vdisk_blockio" | "vdisk_nullio")) => {
                model.notes.push(statement.note(Outcome::Applied, ""));
                for inner in statement.inner() {
                    match inner.key() {
                        "DEVICE" => device(kind, inner, &mut model),
                        _ => model
                            .notes
                            .push(inner.note(Outcome::NotApplicable, "it is about the handler's module")),
                    }
                }
            }
            ("HANDLER", _) if statement.inner().is_empty() => {
                model.notes.push(statement.note(Outcome::NotApplicable, "it has no devices"));
            }
            ("HANDLER", _) => {
                let why = "SCSI devices cannot be passed through: serve the block device";
                model.notes.push(statement.note(Outcome::Error, why));
            }
            ("TARGET_DRIVER", "iscsi") => {}
            ("TARGET_DRIVER", "copy_manager") => {
                model.notes.push(
                    statement
                        .note(Outcome::Emulated, "copies between volumes follow what this target offers"),
                );
            }
            ("TARGET_DRIVER", _) if statement.inner().iter().all(|inner| inner.key() != "TARGET") => {
                model.notes.push(statement.note(Outcome::NotApplicable, "it has no targets"));
            }
            ("TARGET_DRIVER", _) => {
                model.notes.push(statement.note(Outcome::Error, "only iSCSI can be served here"));
            }
            ("DEVICE_GROUP", _) => {
                let why = "path states are kept by the daemon: `blockwire path set VOLUME --state ...`";
                model.notes.push(statement.note(Outcome::Error, why));
            }
            _ => model.notes.push(statement.note(Outcome::NotApplicable, "it is about the SCST core")),
        }
    }
    // Devices come first, wherever they stand.
    for statement in statements.iter().filter(|one| one.key() == "TARGET_DRIVER" && one.word(1) == "iscsi") {
        driver(statement, &mut model);
    }
    model
}

/// A `DEVICE`.
fn device(kind: &str, block: &Statement, model: &mut Model) {
    let name = block.word(1);
    let find = |key: &str| block.inner().iter().find(|inner| inner.key() == key);
    let path = find("filename").map_or("", |inner| inner.word(1));
    let mut spec = Spec::new(match kind {
        "vdisk_nullio" => Source::Null,
        _ if path.starts_with("/dev/") => Source::Device(path.into()),
        _ => Source::File(path.into()),
    });
    spec.direct = kind == "vdisk_blockio";
    let mut notes = vec![block.note(Outcome::Applied, "")];
    if kind != "vdisk_nullio" && !path.starts_with('/') {
        notes.push(block.note(Outcome::Error, "needs `filename` with an absolute path"));
    }
    for inner in block.inner() {
        let said = device_setting(inner, &mut spec);
        notes.push(inner.note(said.0, said.1));
    }
    if spec.source == Source::Null && spec.size.is_none() {
        // Its own default is a terabyte.
        spec.size = Some(1 << 40);
    }
    model.add_volume(name, name, spec, notes);
}

fn device_setting(inner: &Statement, spec: &mut Spec) -> Said {
    let value = inner.word(1);
    let on = flag(value);
    let is_on_disk = spec.source.path().is_some();
    match inner.key() {
        "filename" => applied(),
        "blocksize" => outcome(set(spec, "block", value)),
        "read_only" => outcome(set(spec, "ro", value)),
        "removable" => outcome(set(spec, "removable", value)),
        "size" | "size_mb" if !matches!(spec.source, Source::Device(_)) => {
            let unit = if inner.key() == "size" { "" } else { "M" };
            outcome(set(spec, "size", &format!("{value}{unit}")))
        }
        "size" | "size_mb" => emulated("a device has its own size"),
        "nv_cache" if on == Some(true) && is_on_disk => {
            spec.cache = false;
            emulated(
                "nothing here is lost with the power: every write is on stable storage before it completes",
            )
        }
        "write_through" if is_on_disk => {
            spec.cache = on != Some(true);
            applied()
        }
        "o_direct" if is_on_disk => {
            spec.direct = on == Some(true);
            applied()
        }
        "thin_provisioned" if is_on_disk => {
            spec.thin = on == Some(true);
            applied()
        }
        "tas" => outcome(set(spec, "tas", value)),
        "dif_mode" if !["0", "none"].contains(&value) => error("there is no protection information"),
        "active" if on == Some(false) => error("a volume cannot be configured inactive"),
        "usn" | "t10_dev_id" | "naa_id" | "eui64_id" | "t10_vend_id" | "scsi_device_name"
        | "vend_specific_id" => emulated(
            "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change; hosts see another disk",
        ),
        "prod_id" => emulated("`product` of [[target]]"),
        "prod_rev_lvl" | "inq_vend_specific" => meaningless("what is reported is that of this target"),
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
        | "gen_tp_soft_threshold_reached_UA" => match inner.key() {
            "cluster_mode" if on == Some(true) => error("reservations of several machines are not one here"),
            _ => meaningless("it is about SCST's own handlers"),
        },
        _ => error("this setting is not known here"),
    }
}

/// A user and a secret: two words, or both in one pair of quotes.
fn user(statement: &Statement) -> Option<(String, Secret)> {
    let joined = statement.rest().join(" ");
    let (name, secret) = joined.trim().split_once(char::is_whitespace)?;
    Some((name.to_owned(), Secret::new(secret.trim())))
}

fn user_note(statement: &Statement, how: &str) -> Said {
    match user(statement) {
        Some(_) => (Outcome::Applied, how.to_owned()),
        None => error("needs a user and a secret"),
    }
}

/// `TARGET_DRIVER iscsi`.
fn driver(block: &Statement, model: &mut Model) {
    let mut discovery = (Vec::new(), None);
    let is_off =
        block.inner().iter().any(|inner| inner.key() == "enabled" && flag(inner.word(1)) == Some(false));
    if is_off {
        model.notes.push(
            block.note(Outcome::Emulated, "enabled 0: nobody reaches its targets, and they are left out"),
        );
        return;
    }
    for inner in block.inner() {
        let said = match inner.key() {
            "TARGET" => {
                target(inner, model);
                continue;
            }
            "enabled" => applied(),
            key if key.starts_with("IncomingUser") => {
                discovery.0.extend(user(inner));
                user_note(inner, "`discovery` of [auth]")
            }
            "OutgoingUser" => {
                discovery.1 = user(inner);
                user_note(inner, "`discovery` of [auth]")
            }
            "iSNSServer" if !inner.word(1).is_empty() => {
                error("initiators find targets with SendTargets; there is no iSNS")
            }
            "internal_portal" => error("SCST's internal portal is not supported"),
            "link_local" | "iSNSServer" | "trace_level" | "iscsi_version" | "open_state" => {
                meaningless("it is about SCST")
            }
            _ => error("this setting is not known here"),
        };
        // A secret stands in one word with its user.
        let mut note = inner.note(said.0, said.1);
        hide(&mut note.setting, inner);
        model.notes.push(note);
    }
    let (users, mutual) = discovery;
    model.discovery.extend(users.into_iter().map(|user| Chap { user, mutual: mutual.clone() }));
}

/// Shows no more of a line with a secret than its key.
fn hide(setting: &mut String, statement: &Statement) {
    if statement.key().starts_with("IncomingUser") || statement.key().starts_with("OutgoingUser") {
        *setting = format!("{} ...", statement.key());
    }
}

/// A `TARGET`.
fn target(block: &Statement, model: &mut Model) {
    let mut export = Export::new(Protocol::Iscsi, block.word(1));
    match model::iqn(block.word(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.note(Outcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.note(Outcome::Error, why)),
    }
    let is_on =
        block.inner().iter().any(|inner| inner.key() == "enabled" && flag(inner.word(1)) == Some(true));
    if !is_on {
        model.notes.push(block.note(Outcome::Emulated, "not enabled: nobody reaches it, and it is left out"));
        return;
    }
    let mut users = Vec::new();
    let mut mutual = None;
    let mut groups = Vec::new();
    let mut common = Vec::new();
    for inner in block.inner() {
        let said = match inner.key() {
            "GROUP" => {
                groups.push(inner);
                continue;
            }
            "LUN" => {
                common.extend(lun(inner, &mut export, model));
                continue;
            }
            key if key.starts_with("IncomingUser") => {
                users.extend(user(inner));
                user_note(inner, "`chap` of [[target]]")
            }
            "OutgoingUser" => {
                mutual = user(inner);
                user_note(inner, "`mutual_user` of [[target]]")
            }
            "allowed_portal" => match model::portal(inner.word(1), ISCSI_PORT.into()) {
                Ok(address) => {
                    export.portals.push(address);
                    applied()
                }
                Err(why) => error(&why),
            },
            _ => target_setting(inner, &mut export),
        };
        let mut note = inner.note(said.0, said.1);
        hide(&mut note.setting, inner);
        export.notes.push(note);
    }
    if export.portals.is_empty() {
        export.portals.extend(model::everywhere());
    }
    export.chap = users.into_iter().map(|user| Chap { user, mutual: mutual.clone() }).collect();
    let before = export.units.len();
    for group in groups {
        initiators(group, &mut export, model);
    }
    let grows = export.units.len() > before;
    export.open = !common.is_empty() && !grows;
    if !common.is_empty() && grows {
        // Who is in no group reaches the logical units of the target itself, and not those of groups.
        let mut host = Host::new(&format!("any initiator of {}", block.word(1)));
        host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
        host.grants.push(grant(&export.name, Some(common)));
        model.add_host(host);
    }
    export.units.sort_by_key(|unit| unit.number);
    export.notes.sort_by_key(|note| note.line);
    model.exports.push(export);
}

fn grant(export: &str, units: Option<Vec<u64>>) -> Grant {
    let export = export.to_owned();
    Grant { protocol: Protocol::Iscsi, export, units, through: Vec::new(), read_only: false }
}

/// A `LUN NUMBER DEVICE`; its number, if it is among those of the target.
fn lun(statement: &Statement, export: &mut Export, model: &Model) -> Option<u64> {
    let device = statement.word(2).to_owned();
    let read_only =
        statement.inner().iter().any(|inner| inner.key() == "read_only" && flag(inner.word(1)) == Some(true));
    let number = statement.word(1).parse::<u64>().ok();
    let known = number.and_then(|number| export.units.iter().find(|unit| unit.number == number));
    let said = match (number, model.volume(&device), known) {
        (None, ..) => error("the number of a logical unit is missing"),
        (_, None, _) => error("there is no such volume, so the logical unit is left out"),
        (_, _, Some(known)) if known.volume != device || known.read_only != read_only => error(
            "this number is another volume for other initiators of the target: a number is one volume for all here",
        ),
        _ => applied(),
    };
    let is_fine = said.0 == Outcome::Applied;
    export.notes.push(statement.note(said.0, said.1));
    for inner in statement.inner() {
        let said =
            if inner.key() == "read_only" { applied() } else { error("this setting is not known here") };
        export.notes.push(inner.note(said.0, said.1));
    }
    let number = number.filter(|_| is_fine)?;
    if !export.units.iter().any(|unit| unit.number == number) {
        export.units.push(Unit { number, volume: device, read_only, ana_group: None });
    }
    Some(number)
}

/// A `GROUP`: initiators, and what they see.
fn initiators(group: &Statement, export: &mut Export, model: &mut Model) {
    let mut host = Host::new(group.word(1));
    let mut numbers = Vec::new();
    let mut is_any = false;
    let mut notes = vec![group.note(Outcome::Emulated, "a [[host]]")];
    for inner in group.inner() {
        let said = match inner.key() {
            "LUN" => {
                numbers.extend(lun(inner, export, model));
                continue;
            }
            "INITIATOR" if inner.word(1) == "*" => {
                is_any = true;
                applied()
            }
            "INITIATOR" if inner.word(1).contains(['*', '?', '!', '#']) => {
                error("patterns of names are not there: write the names, or `sources` of the [[host]]")
            }
            "INITIATOR" => match model::iqn(inner.word(1)) {
                Ok(name) => {
                    host.iqns.push(name);
                    applied()
                }
                Err(why) => error(&why),
            },
            "cpu_mask" | "io_grouping_type" | "black_hole" => meaningless("it is about SCST's threads"),
            _ => error("this setting is not known here"),
        };
        notes.push(inner.note(said.0, said.1));
    }
    if is_any {
        host.iqns.clear();
        host.sources = vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    }
    host.notes = notes;
    if (host.iqns.is_empty() && host.sources.is_empty()) || numbers.is_empty() {
        let notes = std::mem::take(&mut host.notes);
        export.notes.extend(notes);
        export
            .notes
            .push(group.note(Outcome::Emulated, "no initiator or no volume is left: it gives no access"));
        return;
    }
    host.grants.push(grant(&export.name, Some(numbers)));
    model.add_host(host);
}

/// Another setting of a target.
fn target_setting(inner: &Statement, export: &mut Export) -> Said {
    let value = inner.word(1);
    let mut number = |ours: &'static str, most: u64| match value.parse::<u64>() {
        Ok(number) => {
            export.set(ours, number.clamp(1, most).to_string());
            applied()
        }
        Err(_) => error("is no number"),
    };
    match inner.key() {
        "MaxRecvDataSegmentLength" => number("max_receive", 16_777_215),
        "FirstBurstLength" => number("first_burst", 16_777_215),
        "MaxBurstLength" => number("max_burst", 16_777_215),
        "MaxOutstandingR2T" => number("max_outstanding_r2t", 65535),
        "QueuedCommands" => number("commands", 4096),
        key @ ("InitialR2T" | "ImmediateData") => match flag(value) {
            Some(on) => {
                export
                    .set(if key == "InitialR2T" { "initial_r2t" } else { "immediate_data" }, on.to_string());
                applied()
            }
            None => error("is Yes or No"),
        },
        key @ ("HeaderDigest" | "DataDigest") => {
            let has = |word: &str| value.split(',').any(|method| method.trim().eq_ignore_ascii_case(word));
            let policy = match (has("CRC32C"), has("None")) {
                (true, true) => "allow",
                (true, false) => "require",
                (false, _) => "off",
            };
            export.set(if key == "HeaderDigest" { "header_digest" } else { "data_digest" }, text(policy));
            applied()
        }
        "alias" => {
            export.set("alias", text(&value.chars().take(63).collect::<String>()));
            applied()
        }
        "NopInInterval" | "NopInTimeout" | "RspTimeout" => {
            emulated("`nop_interval` and `nop_timeout` of [limits] are for all targets")
        }
        "MaxXmitDataSegmentLength" => emulated("it is what the initiator takes"),
        "rel_tgt_id" => emulated("ports are numbered by this target"),
        "redirect" if !value.is_empty() => error("write `redirect` of [[target]]"),
        "enabled" | "MaxSessions" | "per_portal_acl" | "cpu_mask" | "io_grouping_type" | "redirect"
        | "forward_src" | "forward_dst" | "forwarding" | "aen_disabled" | "black_hole" | "addr_method"
        | "dif_capabilities" | "max_nop_in" | "hw_target" => match inner.key() {
            "enabled" => applied(),
            "per_portal_acl" if flag(value) == Some(true) => {
                error("write `through` in the access of each [[host]]")
            }
            "MaxSessions" if value != "0" => emulated("`sessions` of [limits] is for all targets"),
            _ => meaningless("it is about SCST"),
        },
        _ => error("this setting is not known here"),
    }
}
