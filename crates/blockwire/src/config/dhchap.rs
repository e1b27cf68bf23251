//! Secrets of NVMe in-band authentication (`DHHC-1:hh:BASE64:`), from files that nobody else can read.
//! No message shows a part of one.

use std::sync::Arc;

use nvme::auth::Secret;
use zeroize::Zeroizing;

use super::{reader::Reader, secret};

/// Reads the file that `dhchap_key_file` names.
pub fn key(table: &Reader<'_>) -> Option<Arc<Secret>> {
    const KEY: &str = "dhchap_key_file";
    let path = table.text(KEY)?;
    let bytes = secret::read(&table.file.directory.join(&path.value)).map(Zeroizing::new);
    let parsed = bytes.and_then(|bytes| {
        let text = std::str::from_utf8(&bytes).map_err(|_| "holds no text".to_owned())?;
        Secret::parse(text)
            .map_err(|why| format!("holds no DHHC-1:hh:BASE64: ({why}); `blockwire host key FILE` makes one"))
    });
    match parsed {
        Ok(secret) => Some(Arc::new(secret)),
        Err(why) => {
            table.file.sink.error(&path.at, format!("{KEY} \"{}\" {why}", path.value));
            None
        }
    }
}
