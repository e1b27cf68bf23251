//! tgt: `targets.conf`, as tgt-admin reads it and as `tgt-admin --dump` prints it.

use config::{
    network::ISCSI_PORT,
    spec::{Source, Spec},
};

use crate::{
    blocks::Statement,
    model::{self, Chap, Export, Grant, Host, Model, Protocol, Secret, Unit, flag, outcome, set},
    note::{Note, Outcome},
    render::text,
};

/// What `tgt-admin --dump` prints in place of a secret.
const NO_SECRET: &str = "PLEASE_CORRECT_THE_PASSWORD";

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
pub fn read(statements: &[Statement]) -> Model {
    let mut model = Model::default();
    let mut driver = "iscsi";
    for statement in statements {
        if statement.key() == "default-driver" {
            driver = statement.word(1);
        }
    }
    let (mut discovery, mut discovery_mutual) = (None, None);
    for statement in statements {
        if statement.body.is_some() {
            match statement.key().to_ascii_lowercase().as_str() {
                "target" => target(statement, driver, &mut model),
                _ => model.notes.push(statement.note(Outcome::Error, "there is no such block")),
            }
            continue;
        }
        let note = match statement.key() {
            "default-driver" => statement.note(Outcome::Applied, ""),
            "ignore-errors" | "control-port" => {
                statement.note(Outcome::NotApplicable, "it is about tgt-admin")
            }
            "incomingdiscoveryuser" => {
                discovery = user(statement);
                secret_note(statement, "`discovery` of [auth]")
            }
            "outgoingdiscoveryuser" => {
                discovery_mutual = user(statement);
                secret_note(statement, "`discovery` of [auth]")
            }
            key if key.starts_with("iSNS") => {
                let is_off = key == "iSNS" && flag(statement.word(1)) == Some(false);
                let why = "initiators find targets with SendTargets; there is no iSNS";
                statement.note(if is_off { Outcome::Applied } else { Outcome::Error }, why)
            }
            _ => statement.note(Outcome::Error, "this setting is not known here"),
        };
        model.notes.push(note);
    }
    if let Some(user) = discovery {
        model.discovery.push(Chap { user, mutual: discovery_mutual });
    }
    let note = "tgtd listens on all addresses unless its command line says otherwise (--iscsi portal=...)";
    if let Some(first) = statements.first().filter(|_| !model.exports.is_empty()) {
        let place = (first.file.clone(), first.line);
        let setting = format!("portals 0.0.0.0:{ISCSI_PORT} and [::]:{ISCSI_PORT}");
        let (outcome, why) = (Outcome::Emulated, note.to_owned());
        model.notes.insert(0, Note { file: place.0, line: place.1, setting, outcome, why });
    }
    model
}

/// A user and a secret, if there is one.
fn user(statement: &Statement) -> Option<(String, Secret)> {
    let (name, secret) = (statement.word(1), statement.word(2));
    (!name.is_empty() && !secret.is_empty() && secret != NO_SECRET)
        .then(|| (name.to_owned(), Secret::new(secret)))
}

fn secret_note(statement: &Statement, how: &str) -> Note {
    match user(statement) {
        Some(_) => statement.note(Outcome::Applied, how),
        None if statement.word(2) == NO_SECRET => {
            let why =
                "tgt-admin does not show secrets: write it into the source, or give its own targets.conf";
            statement.note(Outcome::Error, why)
        }
        None => statement.note(Outcome::Error, "needs a user and a secret"),
    }
}

/// A store and what stands in its block.
struct Store<'a> {
    statement: &'a Statement,
    number: Option<u64>,
}

/// Who may connect.
#[derive(Default)]
struct Access {
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

impl Access {
    /// Takes a setting, if it is about access.
    fn take(&mut self, statement: &Statement) -> Option<Note> {
        Some(match statement.key() {
            "incominguser" => {
                self.is_closed = true;
                self.users.extend(user(statement));
                secret_note(statement, "`chap` of [[target]]")
            }
            "outgoinguser" if self.mutual.is_none() => {
                self.mutual = user(statement);
                secret_note(statement, "`mutual_user` of [[target]]")
            }
            "initiator-address" if statement.word(1) == "ALL" => {
                self.any_address = true;
                statement.note(Outcome::Applied, "")
            }
            "initiator-address" => {
                self.has_addresses = true;
                let network = model::source_network(statement.word(1));
                let said = outcome(network.map(|network| self.sources.push(network)));
                statement.note(said.0, said.1)
            }
            "initiator-name" => {
                self.has_names = true;
                let said = outcome(model::iqn(statement.word(1)).map(|name| self.names.push(name)));
                statement.note(said.0, said.1)
            }
            _ => return None,
        })
    }

    /// Lets hosts in; `false`: no user or initiator is left, so nobody gets access.
    fn admit(mut self, export: &mut Export, model: &mut Model) -> bool {
        if self.any_address {
            self.sources.clear();
            self.has_addresses = false;
        }
        let is_empty = (self.has_addresses && self.sources.is_empty())
            || (self.has_names && self.names.is_empty())
            || (self.is_closed && self.users.is_empty());
        let mutual = self.mutual;
        export.chap = self.users.into_iter().map(|user| Chap { user, mutual: mutual.clone() }).collect();
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
fn target(block: &Statement, driver: &str, model: &mut Model) {
    let mut export = Export::new(Protocol::Iscsi, block.word(1));
    match model::iqn(block.word(1)) {
        Ok(name) => {
            export.name = name;
            export.notes.push(block.note(Outcome::Applied, ""));
        }
        Err(why) => export.notes.push(block.note(Outcome::Error, why)),
    }
    let mut driver = driver;
    let mut access = Access::default();
    let (mut stores, mut common) = (Vec::new(), Vec::new());
    for statement in block.inner() {
        let key = statement.key();
        if let Some(note) = access.take(statement) {
            export.notes.push(note);
            continue;
        }
        match key {
            "driver" => {
                driver = statement.word(1);
                export.notes.push(statement.note(Outcome::Applied, ""));
            }
            "backing-store" | "direct-store" => stores.push(Store { statement, number: None }),
            _ if UNIT_OPTIONS.contains(&key) || key == "params" => common.push(statement),
            _ => {
                let note = option(statement, &mut export);
                export.notes.push(note);
            }
        }
    }
    if driver != "iscsi" {
        let why = "only iSCSI over TCP can be served: the target is left out";
        model.notes.push(block.note(Outcome::Error, format!("driver {}: {why}", crate::note::shown(driver))));
        return;
    }
    units(stores, &common, &mut export, model);
    export.portals.extend(model::everywhere());
    if !access.admit(&mut export, model) {
        export.notes.push(block.note(Outcome::Error, "no user or initiator is left: nobody gets access"));
    }
    model.exports.push(export);
}

/// LUNs: tgt takes the stores in the order of their paths, and LUN 0 is its controller. `backing-store` is taken
/// before `direct-store`.
fn units(mut stores: Vec<Store<'_>>, common: &[&Statement], export: &mut Export, model: &mut Model) {
    stores.sort_by(|a, b| {
        let key = |store: &Store<'_>| (store.statement.key().to_owned(), store.statement.word(1).to_owned());
        key(a).cmp(&key(b))
    });
    let mut taken = Vec::new();
    for store in &mut stores {
        let said = store.statement.inner().iter().find(|inner| inner.key() == "lun");
        store.number = said.and_then(|said| said.word(1).parse().ok());
        taken.extend(store.number);
    }
    for store in stores {
        let number = store.number.unwrap_or_else(|| {
            let free = (1..).find(|number| !taken.contains(number)).unwrap_or(1);
            taken.push(free);
            free
        });
        let statement = store.statement;
        let path = statement.word(1);
        let mut notes = Vec::new();
        let mut spec = match path.starts_with("/dev/") {
            true => Spec::new(Source::Device(path.into())),
            false => Spec::new(Source::File(path.into())),
        };
        let said = match (path.starts_with('/'), statement.key()) {
            (false, _) => (Outcome::Error, "must be an absolute path".to_owned()),
            (true, "direct-store") => (
                Outcome::Emulated,
                format!("LUN {number}; vendor, product and serial number are ours, not those of the device"),
            ),
            (true, _) => (Outcome::Applied, format!("LUN {number}")),
        };
        notes.push(statement.note(said.0, said.1));
        let own = statement.inner();
        let wider = common.iter().copied().filter(|wide| !own.iter().any(|near| near.key() == wide.key()));
        for (option, is_own) in own.iter().map(|one| (one, true)).chain(wider.map(|one| (one, false))) {
            let note = unit_option(option, &mut spec, export);
            if is_own || !export.notes.contains(&note) {
                if is_own { notes.push(note) } else { export.notes.push(note) }
            }
        }
        let key = format!("{}/{path}", export.name);
        let wish = path.rsplit('/').next().unwrap_or("volume");
        let wish = wish.rsplit_once('.').map_or(wish, |(stem, _)| stem);
        model.add_volume(&key, wish, spec, notes);
        let volume = key;
        export.units.push(Unit { number, volume, read_only: false, ana_group: None });
    }
    export.units.sort_by_key(|unit| unit.number);
}

/// An option of a logical unit.
fn unit_option(option: &Statement, spec: &mut Spec, export: &mut Export) -> Note {
    let value = option.word(1);
    let printable =
        |most: usize| value.chars().filter(|c| (' '..='~').contains(c)).take(most).collect::<String>();
    let said = match option.key() {
        "lun" => outcome(value.parse::<u64>().map(|_| ()).map_err(|_| "is no number".to_owned())),
        "write-cache" if value.is_empty() => outcome(set(spec, "cache", "on")),
        "write-cache" => outcome(set(spec, "cache", value)),
        "readonly" => outcome(set(spec, "ro", value)),
        "removable" => outcome(set(spec, "removable", value)),
        "block-size" => outcome(set(spec, "block", value)),
        "lbppbe" => {
            let exponent = value.parse::<u32>().ok().and_then(|exponent| spec.block.checked_shl(exponent));
            outcome(
                exponent.map_or(Err("is no exponent".to_owned()), |bytes| {
                    set(spec, "physical", &bytes.to_string())
                }),
            )
        }
        "vendor_id" => {
            export.set("vendor", text(&printable(8)));
            (Outcome::Emulated, "`vendor` of [[target]] is for all its logical units".to_owned())
        }
        "product_id" => {
            export.set("product", text(&printable(16)));
            (Outcome::Emulated, "`product` of [[target]] is for all its logical units".to_owned())
        }
        "scsi_id" | "scsi_sn" => (
            Outcome::Emulated,
            "the identity is the volume's UUID, so names by WWID (multipath, ESXi) change".to_owned(),
        ),
        "device-type" if value != "disk" => (Outcome::Error, "only disks can be served".to_owned()),
        "bs-type" if !["rdwr", "aio", ""].contains(&value) => {
            (Outcome::Error, "only files and block devices can be served".to_owned())
        }
        "bsoflags" => {
            let flags = value.to_ascii_lowercase();
            spec.direct |= flags.contains("direct");
            if flags.contains("sync") {
                spec.cache = false;
            }
            (Outcome::Applied, "`direct` and `cache`".to_owned())
        }
        "online" if flag(value) == Some(false) => {
            (Outcome::Error, "a volume cannot be configured offline".to_owned())
        }
        "params" | "mode_page" | "path" | "bsopts" => {
            (Outcome::Error, "settings by tgtadm's own words have no counterpart".to_owned())
        }
        "device-type" | "bs-type" | "online" => (Outcome::Applied, String::new()),
        "product_rev" | "sense_format" | "la_lba" | "optimal_xfer_gran" | "optimal_xfer_len" => {
            (Outcome::NotApplicable, "what is reported is that of this target".to_owned())
        }
        "allow-in-use" => (Outcome::NotApplicable, "it is about tgt-admin".to_owned()),
        _ => (Outcome::Error, "this setting is not known here".to_owned()),
    };
    option.note(said.0, said.1)
}

/// Another option of a target.
fn option(statement: &Statement, export: &mut Export) -> Note {
    let value = statement.word(1);
    let mut number = |ours: &'static str| match value.parse::<u64>() {
        Ok(number) => {
            export.set(ours, number.to_string());
            (Outcome::Applied, String::new())
        }
        Err(_) => (Outcome::Error, "is no number".to_owned()),
    };
    let said = match statement.key() {
        "MaxRecvDataSegmentLength" => number("max_receive"),
        "FirstBurstLength" => number("first_burst"),
        "MaxBurstLength" => number("max_burst"),
        "MaxOutstandingR2T" => number("max_outstanding_r2t"),
        "MaxConnections" => number("max_connections"),
        key @ ("InitialR2T" | "ImmediateData") => match flag(value) {
            Some(on) => {
                export
                    .set(if key == "InitialR2T" { "initial_r2t" } else { "immediate_data" }, on.to_string());
                (Outcome::Applied, String::new())
            }
            None => (Outcome::Error, "is Yes or No".to_owned()),
        },
        key @ ("HeaderDigest" | "DataDigest") => {
            let has = |word: &str| value.split(',').any(|method| method.trim().eq_ignore_ascii_case(word));
            let policy = match (has("CRC32C"), has("None")) {
                (true, true) => "allow",
                (true, false) => "require",
                (false, _) => "off",
            };
            export.set(if key == "HeaderDigest" { "header_digest" } else { "data_digest" }, text(policy));
            (Outcome::Applied, String::new())
        }
        "ErrorRecoveryLevel" if value != "0" => {
            (Outcome::Error, "error recovery level 0 is the only one".to_owned())
        }
        "controller_tid" | "allow-in-use" => (Outcome::NotApplicable, "it is about tgt".to_owned()),
        "outgoinguser" => (Outcome::NotApplicable, "tgt uses the first one only".to_owned()),
        "MaxXmitDataSegmentLength" => (Outcome::Emulated, "it is what the initiator takes".to_owned()),
        "nop_interval" | "nop_count" => {
            (Outcome::Emulated, "`nop_interval` and `nop_timeout` of [limits] are for all targets".to_owned())
        }
        "ErrorRecoveryLevel"
        | "DataPDUInOrder"
        | "DataSequenceInOrder"
        | "DefaultTime2Wait"
        | "DefaultTime2Retain"
        | "IFMarker"
        | "OFMarker"
        | "IFMarkInt"
        | "OFMarkInt" => (Outcome::NotApplicable, "there is one value only".to_owned()),
        _ => (Outcome::Error, "this setting is not known here".to_owned()),
    };
    statement.note(said.0, said.1)
}
