//! Secrets of NVMe in-band authentication (`DHHC-1:hh:BASE64:`), from files that no other user can read. No
//! message shows a part of one.

use std::sync::Arc;

use nvme::auth::{Group, Hash, Policy, Secret};
use zeroize::Zeroizing;

use super::{reader::Reader, secret};

/// Hashes, by their names.
pub const HASHES: [(&str, Hash); 3] =
    [("sha512", Hash::Sha512), ("sha384", Hash::Sha384), ("sha256", Hash::Sha256)];

/// Groups, by their names.
pub const GROUPS: [(&str, Group); 6] = [
    ("ffdhe3072", Group::Ffdhe3072),
    ("ffdhe4096", Group::Ffdhe4096),
    ("ffdhe6144", Group::Ffdhe6144),
    ("ffdhe8192", Group::Ffdhe8192),
    ("ffdhe2048", Group::Ffdhe2048),
    ("null", Group::Null),
];

/// What `dhchap_hashes` and `dhchap_groups` allow, in their order.
pub fn policy(table: &Reader<'_>) -> Policy {
    let usual = Policy::default();
    Policy {
        hashes: table.words("dhchap_hashes", &HASHES).map_or(usual.hashes, |hashes| hashes.value),
        groups: table.words("dhchap_groups", &GROUPS).map_or(usual.groups, |groups| groups.value),
    }
}

/// Reads the file that `dhchap_key_file` names.
pub fn key(table: &Reader<'_>) -> Option<Arc<Secret>> {
    key_of(table, "dhchap_key_file")
}

/// Reads the file that this key names.
pub fn key_of(table: &Reader<'_>, key: &str) -> Option<Arc<Secret>> {
    let path = table.text(key)?;
    let bytes = secret::read(&table.file.directory.join(&path.value)).map(Zeroizing::new);
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|_| "holds no text".to_owned())?;
        Secret::parse(text).map_err(|why| {
            format!("holds no DHHC-1:hh:BASE64: ({why}); `blockwire key generate FILE` makes one")
        })
    });
    match parsed {
        Ok(secret) => Some(Arc::new(secret)),
        Err(why) => {
            table.file.sink.error(&path.at, format!("{key} \"{}\" {why}", path.value));
            None
        }
    }
}
