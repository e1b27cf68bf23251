//! Secrets of NVMe in-band authentication (`DHHC-1:hh:BASE64:`), from files that no other user can read. No
//! message shows a part of one.

use std::collections::HashSet;
use std::sync::Arc;

use nvme::auth::{DhGroup, DhchapPolicy, DhchapSecret, Hash};
use zeroize::Zeroizing;

use super::{
    diagnostic::{Located, Sink},
    draft::{AuthDraft, HostDraft},
    reader::TableReader,
    secret,
};

/// Hashes, by their names.
pub const HASHES: [(&str, Hash); 3] =
    [("sha512", Hash::Sha512), ("sha384", Hash::Sha384), ("sha256", Hash::Sha256)];

/// Groups, by their names.
pub const GROUPS: [(&str, DhGroup); 6] = [
    ("ffdhe3072", DhGroup::Ffdhe3072),
    ("ffdhe4096", DhGroup::Ffdhe4096),
    ("ffdhe6144", DhGroup::Ffdhe6144),
    ("ffdhe8192", DhGroup::Ffdhe8192),
    ("ffdhe2048", DhGroup::Ffdhe2048),
    ("null", DhGroup::Null),
];

/// What `dhchap_hashes` and `dhchap_groups` allow, in their order.
pub fn read_policy(table: &TableReader<'_>) -> DhchapPolicy {
    let usual = DhchapPolicy::default();
    DhchapPolicy {
        hashes: table.keywords("dhchap_hashes", &HASHES).map_or(usual.hashes, |hashes| hashes.value),
        groups: table.keywords("dhchap_groups", &GROUPS).map_or(usual.groups, |groups| groups.value),
    }
}

/// Reads the file that `dhchap_key_file` names.
pub fn read_dhchap_key_file(table: &TableReader<'_>) -> Option<Arc<DhchapSecret>> {
    read_key_file(table, "dhchap_key_file")
}

/// Reads the file that `dhchap_controller_key_file` names.
pub fn read_controller_key_file(table: &TableReader<'_>) -> Option<Arc<DhchapSecret>> {
    read_key_file(table, CONTROLLER_KEY)
}

const CONTROLLER_KEY: &str = "dhchap_controller_key_file";

/// A key of the controller is used only where the host proves itself too, and never for both directions (NVMe Base
/// §8.3.5.5.7): else a host that knows it could pass for the controller, and the other way round.
pub fn check_controller_keys(hosts: &[Located<HostDraft>], auth: &Located<AuthDraft>, sink: &Sink) {
    let common = &auth.value.auth;
    let discovery = common.dhchap_discovery_key.as_ref();
    let all = hosts.iter().filter_map(|one| one.value.host.dhchap.as_ref());
    let of_hosts: HashSet<&[u8]> =
        all.chain(&common.dhchap).chain(discovery).map(|secret| secret.expose()).collect();
    let drafts = hosts.iter().map(|one| (&one.value.host, &one.at));
    for (host, at) in drafts.filter(|(host, _)| host.may_use_nvme()) {
        let own = host.dhchap.as_ref().or(common.dhchap.as_ref());
        let controller = host.dhchap_controller.as_ref().or(common.dhchap_controller.as_ref());
        let name = &host.name;
        if host.dhchap_controller.is_some() && own.or(discovery).is_none() {
            let why = format!("{CONTROLLER_KEY} of host \"{name}\" has no effect without dhchap_key_file");
            sink.note_error(at, why);
        }
        if let (Some(own), Some(controller)) = (own, controller)
            && own.constant_time_eq(controller)
        {
            let why = format!(
                "host \"{name}\" and its controllers have the same DH-HMAC-CHAP secret; {DIFFERENT_KEY_ADVICE}"
            );
            sink.note_error(at, why);
        } else if host.dhchap_controller.as_ref().is_some_and(|key| of_hosts.contains(key.expose())) {
            let why = format!(
                "{CONTROLLER_KEY} of host \"{name}\" holds the secret of another host or of discovery; \
                 {DIFFERENT_KEY_ADVICE}"
            );
            sink.note_error(at, why);
        }
    }
    if let Some(controller) = &common.dhchap_controller {
        if of_hosts.is_empty() {
            let why = format!("{CONTROLLER_KEY} in [auth] has no effect: no host has a dhchap_key_file");
            sink.note_error(&auth.at, why);
        }
        if of_hosts.contains(controller.expose()) {
            let why = format!("{CONTROLLER_KEY} in [auth] holds the secret of hosts; {DIFFERENT_KEY_ADVICE}");
            sink.note_error(&auth.at, why);
        }
    }
}

const DIFFERENT_KEY_ADVICE: &str = "make another one with `blockwire key generate FILE`";

/// Reads the file that this key names.
pub fn read_key_file(table: &TableReader<'_>, key: &str) -> Option<Arc<DhchapSecret>> {
    let path = table.text(key)?;
    let bytes = secret::read_secret_file(&table.file.directory.join(&path.value)).map(Zeroizing::new);
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|_| "holds no text".to_owned())?;
        DhchapSecret::parse(text).map_err(|why| {
            format!("holds no DHHC-1:hh:BASE64: ({why}); `blockwire key generate FILE` makes one")
        })
    });
    match parsed {
        Ok(secret) => Some(Arc::new(secret)),
        Err(why) => {
            table.file.sink.note_error(&path.at, format!("{key} \"{}\" {why}", path.value));
            None
        }
    }
}
