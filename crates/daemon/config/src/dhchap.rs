//! Secrets of NVMe in-band authentication (`DHHC-1:hh:BASE64:`), from files that no other user can read. No
//! message shows a part of one.

use std::sync::Arc;

use nvme::auth::{DhGroup, DhchapPolicy, DhchapSecret, Hash};

use super::{reader::TableReader, secret};

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

/// Names the file of the secret that a controller proves.
pub const CONTROLLER_KEY: &str = "dhchap_controller_key_file";

/// Reads the file that this key names.
pub fn read_key_file(table: &TableReader<'_>, key: &str) -> Option<Arc<DhchapSecret>> {
    secret::read_key_file(table, key, |text| {
        DhchapSecret::parse(text).map_err(|why| {
            format!("holds no DHHC-1:hh:BASE64: ({why}); `blockwire key generate FILE` makes one")
        })
    })
}
