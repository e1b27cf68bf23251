//! tgt: `targets.conf`, as tgt-admin reads it and as `tgt-admin --dump` prints it.

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
    note::{Note, NoteOutcome},
    render::quoted_string,
};

/// What `tgt-admin --dump` prints in place of a secret.
const PLACEHOLDER_SECRET: &str = "PLEASE_CORRECT_THE_PASSWORD";

/// Options of a logical unit, also for all of a target. The first match decides.
const UNIT_OPTIONS: [&str; 21] = [
    "write-cache",
    "scsi_id",
    "scsi_sn",
    "vendor_id",
    "product_id",
    "product_rev",
    "sense_format",
    "removable",
    "online",
    "path",
    "mode_page",
    "readonly",
    "device-type",
    "bs-type",
    "bsopts",
    "bsoflags",
    "block-size",
    "lbppbe",
    "la_lba",
    "optimal_xfer_gran",
    "optimal_xfer_len",
];

/// Reads a whole file.
pub fn read_tgt(statements: &[Statement]) -> ImportModel {
    let mut model = ImportModel::default();
    let mut driver = "iscsi";
    for statement in statements {
        if statement.first_word() == "default-driver" {
            driver = statement.word_at(1);
        }
    }
    let (mut discovery, mut discovery_mutual) = (None, None);
    for statement in statements {
        if statement.body.is_some() {
            match statement.first_word().to_ascii_lowercase().as_str() {
                "target" => read_target(statement, driver, &mut model),
                _ => model.notes.push(statement.to_note(NoteOutcome::Error, "there is no such block")),
            }
            continue;
        }
        let note = match statement.first_word() {
            "default-driver" => statement.to_note(NoteOutcome::Applied, ""),
            "ignore-errors" | "control-port" => {
                statement.to_note(NoteOutcome::NotApplicable, "it is about tgt-admin")
            }
            "incomingdiscoveryuser" => {
                discovery = read_user(statement);
                secret_note(statement, "`discovery` of [auth]")
            }
            "outgoingdiscoveryuser" => {
                discovery_mutual = read_user(statement);
                secret_note(statement, "`discovery` of [auth]")
            }
            key if key.starts_with("iSNS") => {
                let is_off = key == "iSNS" && parse_flag(statement.word_at(1)) == Some(false);
                let why = "initiators find targets with SendTargets; there is no iSNS";
                statement.to_note(if is_off { NoteOutcome::Applied } else { NoteOutcome::Error }, why)
            }
            _ => statement.to_note(NoteOutcome::Error, "this setting is not known here"),
        };
        model.notes.push(note);
    }
    if let Some(user) = discovery {
        model.discovery.push(ChapUser { user, mutual: discovery_mutual });
    }
    let note = "tgtd listens on all addresses unless its command line says otherwise (--iscsi portal=...)";
    if let Some(first) = statements.first().filter(|_| !model.exports.is_empty()) {
        let place = (first.file.clone(), first.line);
        let setting = format!("portals 0.0.0.0:{ISCSI_PORT} and [::]:{ISCSI_PORT}");
        let (outcome, why) = (NoteOutcome::Emulated, note.to_owned());
        model.notes.insert(0, Note { file: place.0, line: place.1, setting, outcome, why });
    }
    model
}

/// A user and a secret, if there is one.
fn read_user(statement: &Statement) -> Option<(String, Secret)> {
    let (name, secret) = (statement.word_at(1), statement.word_at(2));
    (!name.is_empty() && !secret.is_empty() && secret != PLACEHOLDER_SECRET)
        .then(|| (name.to_owned(), Secret::new(secret)))
}

fn secret_note(statement: &Statement, how: &str) -> Note {
    match read_user(statement) {
        Some(_) => statement.to_note(NoteOutcome::Applied, how),
        None if statement.word_at(2) == PLACEHOLDER_SECRET => {
            let why =
                "tgt-admin does not show secrets: write it into the source, or give its own targets.conf";
            statement.to_note(NoteOutcome::Error, why)
        }
        None => statement.to_note(NoteOutcome::Error, "needs a user and a secret"),
    }
}

/// A store and what stands in its block.
struct BackingStore<'a> {
    statement: &'a Statement,
    number: Option<u64>,
}

/// Who may connect.
#[derive(Default)]
struct AccessRules {
    users: Vec<(String, Secret)>,
    mutual: Option<(String, Secret)>,
    /// A user was named, if only one without a secret.
    is_closed: bool,
    names: Vec<String>,
    has_names: bool,
    sources: Vec<String>,
    has_addresses: bool,
    any_address: bool,
}

impl AccessRules {
    /// Takes a setting, if it is about access.
    fn take_setting(&mut self, statement: &Statement) -> Option<Note> {
        Some(match statement.first_word() {
            "incominguser" => {
                self.is_closed = true;
                self.users.extend(read_user(statement));
                secret_note(statement, "`chap` of [[target]]")
            }
            "outgoinguser" if self.mutual.is_none() => {
                self.mutual = read_user(statement);
                secret_note(statement, "`mutual_user` of [[target]]")
            }
            "initiator-address" if statement.word_at(1) == "ALL" => {
                self.any_address = true;
                statement.to_note(NoteOutcome::Applied, "")
            }
            "initiator-address" => {
                self.has_addresses = true;
                let network = model::normalize_network(statement.word_at(1));
                let said = outcome_of(network.map(|network| self.sources.push(network)));
                statement.to_note(said.0, said.1)
            }
            "initiator-name" => {
                self.has_names = true;
                let said =
                    outcome_of(model::normalize_iqn(statement.word_at(1)).map(|name| self.names.push(name)));
                statement.to_note(said.0, said.1)
            }
            _ => return None,
        })
    }

    /// Lets hosts in; `false`: no user or initiator is left, so nobody gets access.
    fn grant_hosts(mut self, export: &mut Export, model: &mut ImportModel) -> bool {
        if self.any_address {
            self.sources.clear();
            self.has_addresses = false;
        }
        let is_empty = (self.has_addresses && self.sources.is_empty())
            || (self.has_names && self.names.is_empty())
            || (self.is_closed && self.users.is_empty());
        let mutual = self.mutual;
        export.chap = self.users.into_iter().map(|user| ChapUser { user, mutual: mutual.clone() }).collect();
        let is_restricted = self.has_names || self.has_addresses;
        export.open = !is_restricted && !is_empty;
        if is_restricted && !is_empty {
            let name = export.name.rsplit(':').next().unwrap_or("target");
            let mut host = Host::new(&format!("initiators of {name}"));
            host.iqns = self.names;
            host.sources = self.sources;
            host.grants.push(Grant {
                protocol: Protocol::Iscsi,
                export: export.name.clone(),
                units: None,
                through: Vec::new(),
                read_only: false,
            });
            model.add_host(host);
        }
        !is_empty
    }
}

/// A target's block.
fn read_target(block: &Statement, driver: &str, model: &mut ImportModel) {
    let mut export = Export::new(Protocol::Iscsi, block.word_at(1));
    match model::normalize_iqn(block.word_at(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.to_note(NoteOutcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.to_note(NoteOutcome::Error, why)),
    }
    let mut driver = driver;
    let mut access = AccessRules::default();
    let (mut stores, mut common) = (Vec::new(), Vec::new());
    for statement in block.block_statements() {
        let key = statement.first_word();
        if let Some(note) = access.take_setting(statement) {
            export.notes.push(note);
            continue;
        }
        match key {
            "driver" => {
                driver = statement.word_at(1);
                export.notes.push(statement.to_note(NoteOutcome::Applied, ""));
            }
            "backing-store" | "direct-store" => stores.push(BackingStore { statement, number: None }),
            _ if UNIT_OPTIONS.contains(&key) || key == "params" => common.push(statement),
            _ => {
                let note = apply_target_option(statement, &mut export);
                export.notes.push(note);
            }
        }
    }
    if driver != "iscsi" {
        let why = "only iSCSI over TCP can be served: the target is left out";
        model.notes.push(
            block.to_note(
                NoteOutcome::Error,
                format!("driver {}: {why}", crate::note::printable_value(driver)),
            ),
        );
        return;
    }
    add_units(stores, &common, &mut export, model);
    export.portals.extend(model::wildcard_portals());
    if !access.grant_hosts(&mut export, model) {
        export
            .notes
            .push(block.to_note(NoteOutcome::Error, "no user or initiator is left: nobody gets access"));
    }
    model.exports.push(export);
}

/// LUNs: tgt takes the stores in the order of their paths, and LUN 0 is its controller. `backing-store` is taken
/// before `direct-store`.
fn add_units(
    mut stores: Vec<BackingStore<'_>>,
    common: &[&Statement],
    export: &mut Export,
    model: &mut ImportModel,
) {
    stores.sort_by(|a, b| {
        let key = |store: &BackingStore<'_>| {
            (store.statement.first_word().to_owned(), store.statement.word_at(1).to_owned())
        };
        key(a).cmp(&key(b))
    });
    let mut taken = Vec::new();
    for store in &mut stores {
        let said = store.statement.block_statements().iter().find(|inner| inner.first_word() == "lun");
        store.number = said.and_then(|said| said.word_at(1).parse().ok());
        taken.extend(store.number);
    }
    for store in stores {
        let number = store.number.unwrap_or_else(|| {
            let free = (1..).find(|number| !taken.contains(number)).unwrap_or(1);
            taken.push(free);
            free
        });
        let statement = store.statement;
        let path = statement.word_at(1);
        let mut notes = Vec::new();
        let mut spec = match path.starts_with("/dev/") {
            true => Spec::new(VolumeSource::Device(path.into())),
            false => Spec::new(VolumeSource::File(path.into())),
        };
        let said = match (path.starts_with('/'), statement.first_word()) {
            (false, _) => (NoteOutcome::Error, "must be an absolute path".to_owned()),
            (true, "direct-store") => (
                NoteOutcome::Emulated,
                format!("LUN {number}; vendor, product and serial number are ours, not those of the device"),
            ),
            (true, _) => (NoteOutcome::Applied, format!("LUN {number}")),
        };
        notes.push(statement.to_note(said.0, said.1));
        let own = statement.block_statements();
        let wider = common
            .iter()
            .copied()
            .filter(|wide| !own.iter().any(|near| near.first_word() == wide.first_word()));
        for (option, is_own) in own.iter().map(|one| (one, true)).chain(wider.map(|one| (one, false))) {
            let note = apply_unit_option(option, &mut spec, export);
            if is_own || !export.notes.contains(&note) {
                if is_own { notes.push(note) } else { export.notes.push(note) }
            }
        }
        let key = format!("{}/{path}", export.name);
        let wish = path.rsplit('/').next().unwrap_or("volume");
        let wish = wish.rsplit_once('.').map_or(wish, |(stem, _)| stem);
        model.add_volume(&key, wish, spec, notes);
        let volume = key;
        export.units.push(LunOrNamespace { number, volume, read_only: false, ana_group: None });
    }
    export.units.sort_by_key(|unit| unit.number);
}

/// An option of a logical unit.
fn apply_unit_option(option: &Statement, spec: &mut Spec, export: &mut Export) -> Note {
    let value = option.word_at(1);
    let printable =
        |most: usize| value.chars().filter(|c| (' '..='~').contains(c)).take(most).collect::<String>();
    let said = match option.first_word() {
        "lun" => outcome_of(value.parse::<u64>().map(|_| ()).map_err(|_| "is no number".to_owned())),
        "write-cache" if value.is_empty() => outcome_of(set_spec_key(spec, "cache", "on")),
        "write-cache" => outcome_of(set_spec_key(spec, "cache", value)),
        "readonly" => outcome_of(set_spec_key(spec, "ro", value)),
        "removable" => outcome_of(set_spec_key(spec, "removable", value)),
        "block-size" => outcome_of(set_spec_key(spec, "block", value)),
        "lbppbe" => {
            let exponent = value.parse::<u32>().ok().and_then(|exponent| spec.block.checked_shl(exponent));
            outcome_of(exponent.map_or(Err("is no exponent".to_owned()), |bytes| {
                set_spec_key(spec, "physical", &bytes.to_string())
            }))
        }
        "vendor_id" => {
            export.set_key("vendor", quoted_string(&printable(8)));
            (NoteOutcome::Emulated, "`vendor` of [[target]] is for all its logical units".to_owned())
        }
        "product_id" => {
            export.set_key("product", quoted_string(&printable(16)));
            (NoteOutcome::Emulated, "`product` of [[target]] is for all its logical units".to_owned())
        }
        "scsi_id" | "scsi_sn" => (
            NoteOutcome::Emulated,
            "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change".to_owned(),
        ),
        "device-type" if value != "disk" => (NoteOutcome::Error, "only disks can be served".to_owned()),
        "bs-type" if !["rdwr", "aio", ""].contains(&value) => {
            (NoteOutcome::Error, "only files and block devices can be served".to_owned())
        }
        "bsoflags" => {
            let flags = value.to_ascii_lowercase();
            spec.direct |= flags.contains("direct");
            if flags.contains("sync") {
                spec.cache = false;
            }
            (NoteOutcome::Applied, "`direct` and `cache`".to_owned())
        }
        "online" if parse_flag(value) == Some(false) => {
            (NoteOutcome::Error, "a volume cannot be configured offline".to_owned())
        }
        "params" | "mode_page" | "path" | "bsopts" => {
            (NoteOutcome::Error, "settings by tgtadm's own words have no counterpart".to_owned())
        }
        "device-type" | "bs-type" | "online" => (NoteOutcome::Applied, String::new()),
        "product_rev" | "sense_format" | "la_lba" | "optimal_xfer_gran" | "optimal_xfer_len" => {
            (NoteOutcome::NotApplicable, "what is reported is that of this target".to_owned())
        }
        "allow-in-use" => (NoteOutcome::NotApplicable, "it is about tgt-admin".to_owned()),
        _ => (NoteOutcome::Error, "this setting is not known here".to_owned()),
    };
    option.to_note(said.0, said.1)
}

/// Another option of a target.
fn apply_target_option(statement: &Statement, export: &mut Export) -> Note {
    let value = statement.word_at(1);
    let mut number = |ours: &'static str| match value.parse::<u64>() {
        Ok(number) => {
            export.set_key(ours, number.to_string());
            (NoteOutcome::Applied, String::new())
        }
        Err(_) => (NoteOutcome::Error, "is no number".to_owned()),
    };
    let said = match statement.first_word() {
        "MaxRecvDataSegmentLength" => number("max_receive"),
        "FirstBurstLength" => number("first_burst"),
        "MaxBurstLength" => number("max_burst"),
        "MaxOutstandingR2T" => number("max_outstanding_r2t"),
        "MaxConnections" => number("max_connections"),
        key @ ("InitialR2T" | "ImmediateData") => match parse_flag(value) {
            Some(on) => {
                export.set_key(
                    if key == "InitialR2T" { "initial_r2t" } else { "immediate_data" },
                    on.to_string(),
                );
                (NoteOutcome::Applied, String::new())
            }
            None => (NoteOutcome::Error, "is Yes or No".to_owned()),
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
            (NoteOutcome::Applied, String::new())
        }
        "ErrorRecoveryLevel" if value != "0" => {
            (NoteOutcome::Error, "error recovery level 0 is the only one".to_owned())
        }
        "controller_tid" | "allow-in-use" => (NoteOutcome::NotApplicable, "it is about tgt".to_owned()),
        "outgoinguser" => (NoteOutcome::NotApplicable, "tgt uses the first one only".to_owned()),
        "MaxXmitDataSegmentLength" => (NoteOutcome::Emulated, "it is what the initiator takes".to_owned()),
        "nop_interval" | "nop_count" => (
            NoteOutcome::Emulated,
            "`nop_interval` and `nop_timeout` of [limits] are for all targets".to_owned(),
        ),
        "ErrorRecoveryLevel"
        | "DataPDUInOrder"
        | "DataSequenceInOrder"
        | "DefaultTime2Wait"
        | "DefaultTime2Retain"
        | "IFMarker"
        | "OFMarker"
        | "IFMarkInt"
        | "OFMarkInt" => (NoteOutcome::NotApplicable, "there is one value only".to_owned()),
        _ => (NoteOutcome::Error, "this setting is not known here".to_owned()),
    };
    statement.to_note(said.0, said.1)
}
