//! CHAP secrets: inline or from files that no other user can read.
//!
//! RFC 7143 §9.2.1: at least 96 bits unless the network is encrypted, and different ones for the two
//! directions. No message shows a secret or its length.

use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc};

use zeroize::Zeroizing;

use super::{diagnostic::Located, file, reader::TableReader};
use crate::plan::{Credentials, Secret};

/// What is wrong with one secret for both directions.
pub const SAME_SECRET_ERROR: &str = "the secrets of the two directions must differ (RFC 7143 §9.2.1)";
/// Fewest bytes of a secret: 96 bits.
const SECRET_BYTES_MIN: usize = 12;
/// Most bytes of a secret.
const SECRET_BYTES_MAX: usize = 255;
/// Most bytes that Windows takes.
const WINDOWS_SECRET_BYTES_MAX: usize = 16;

/// Reads one `{user, secret, ...}`.
pub fn read_credentials(table: &TableReader<'_>, allow_short: bool) -> Option<Credentials> {
    let user = table.require("user", table.parsed("user", parse_user));
    let secret = read_secret(table, "secret", "secret_file", allow_short);
    if secret.is_none() && !table.has_key("secret") && !table.has_key("secret_file") {
        table.file.sink.note_error(&table.place(), "chap needs the key \"secret\" or \"secret_file\"");
    }
    let mutual_user = table.parsed("mutual_user", self::parse_user);
    let mutual_secret = self::read_secret(table, "mutual_secret", "mutual_secret_file", allow_short);
    let mutual = match (mutual_user, mutual_secret) {
        (Some(user), Some(secret)) => Some((user, secret)),
        (Some(user), None) => {
            if !table.has_key("mutual_secret") && !table.has_key("mutual_secret_file") {
                table.file.sink.note_error(
                    &user.at,
                    "chap needs \"mutual_secret\" or \"mutual_secret_file\" beside mutual_user",
                );
            }
            None
        }
        (None, Some(secret)) => {
            if !table.has_key("mutual_user") {
                table
                    .file
                    .sink
                    .note_error(&secret.at, "chap needs the key \"mutual_user\" beside the mutual secret");
            }
            None
        }
        (None, None) => None,
    };
    let (user, secret) = (user?, secret?);
    if mutual.as_ref().is_some_and(|(_, mutual)| mutual.value == secret.value) {
        table.file.sink.note_error(&secret.at, SAME_SECRET_ERROR);
    }
    Some(Credentials {
        user: user.value,
        secret: secret.value,
        mutual: mutual.map(|(user, secret)| (user.value, secret.value)),
    })
}

/// Reads the file that a key names, and the key or secret of NVMe in it.
pub fn read_key_file<T>(
    table: &TableReader<'_>,
    key: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<Arc<T>> {
    let path = table.text(key)?;
    let bytes = read_secret_file(&table.file.directory.join(&path.value)).map(Zeroizing::new);
    let parsed =
        bytes.and_then(|bytes| parse(std::str::from_utf8(&bytes).map_err(|_| "holds no text".to_owned())?));
    match parsed {
        Ok(value) => Some(Arc::new(value)),
        Err(why) => {
            table.file.sink.note_error(&path.at, format!("{key} \"{}\" {why}", path.value));
            None
        }
    }
}

/// CHAP_N is a text value of at most 255 bytes (RFC 7143 §12.1.3).
fn parse_user(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > 255 || text.chars().any(char::is_control) {
        return Err("a CHAP name has 1 to 255 bytes and no control characters");
    }
    Ok(text.to_owned())
}

fn read_secret(
    table: &TableReader<'_>,
    inline: &str,
    file: &str,
    allow_short: bool,
) -> Option<Located<Secret>> {
    let sink = table.file.sink;
    if table.has_key(inline) && table.has_key(file) {
        sink.note_error(&table.place(), format!("chap takes \"{inline}\" or \"{file}\", not both"));
        return None;
    }
    let secret = if let Some(text) = table.text(inline) {
        if table.file.world_readable {
            sink.note_error(
                &text.at,
                "this file holds a secret and others can read it; chmod o= it, or use secret_file",
            );
        }
        Located::new(Secret::new(text.value.into_bytes()), text.at)
    } else {
        let path = table.text(file)?;
        match read_secret_file(&table.file.directory.join(&path.value)) {
            Ok(bytes) => Located::new(Secret::new(bytes), path.at),
            Err(why) => {
                sink.note_error(&path.at, format!("{file} \"{}\" {why}", path.value));
                return None;
            }
        }
    };
    let length = secret.value.expose().len();
    if length < SECRET_BYTES_MIN && (!allow_short || length == 0) {
        sink.note_error(
            &secret.at,
            "the secret has fewer than 12 bytes (RFC 7143 §9.2.1); see allow_short_secrets in [auth]",
        );
        return None;
    }
    if length > SECRET_BYTES_MAX {
        sink.note_error(&secret.at, "the secret has more than 255 bytes");
        return None;
    }
    if length > WINDOWS_SECRET_BYTES_MAX {
        sink.note_warning(
            &secret.at,
            "the secret has more than 16 bytes: initiators of Windows cannot use it",
        );
    }
    Some(secret)
}

/// The content of a secret file without its last line end.
pub fn read_secret_file(path: &Path) -> Result<Vec<u8>, String> {
    let (file, meta) = file::open_regular(path)?;
    if meta.mode() & 0o077 != 0 {
        return Err(format!("has mode {:04o}: others can use it; chmod 600 it", meta.mode() & 0o7777));
    }
    let mut bytes = file::read_bounded(file, 4096)?.ok_or("is too large to be a secret")?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(bytes)
}
