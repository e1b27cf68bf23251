//! Secrets of NVMe in-band authentication, from files that nobody else can read.
//!
//! The form is `DHHC-1:hh:BASE64:` (NVMe Base §8.13.5.8): the secret of 32, 48 or 64 bytes and its
//! CRC-32, least significant byte first. No message shows a part of it.

use zeroize::Zeroizing;

use super::{reader::Reader, secret};
use crate::plan::{DhchapKey, Secret};

/// Reads the file that `dhchap_key_file` names.
pub fn key(table: &Reader<'_>) -> Option<DhchapKey> {
    const KEY: &str = "dhchap_key_file";
    let path = table.text(KEY)?;
    let bytes = secret::read(&table.file.directory.join(&path.value)).map(Zeroizing::new);
    match bytes.and_then(|bytes| parse(&bytes).map_err(str::to_owned)) {
        Ok(key) => Some(key),
        Err(why) => {
            table.file.sink.error(&path.at, format!("{KEY} \"{}\" {why}", path.value));
            None
        }
    }
}

/// The key in `text`, or what is wrong with it.
fn parse(text: &[u8]) -> Result<DhchapKey, &'static str> {
    let form = "is not of the form DHHC-1:hh:BASE64: (`nvme gen-dhchap-key` makes such a key)";
    let rest = text.trim_ascii().strip_prefix(b"DHHC-1:").ok_or(form)?;
    let [b'0', digit @ b'0'..=b'3', b':', rest @ ..] = rest else { return Err(form) };
    let encoded = rest.strip_suffix(b":").ok_or(form)?;
    let bytes = base64(encoded).ok_or(form)?;
    let (secret, crc) = bytes.split_last_chunk::<4>().ok_or(form)?;
    if !matches!((digit, secret.len()), (b'0', 32 | 48 | 64) | (b'1', 32) | (b'2', 48) | (b'3', 64)) {
        return Err("holds a key whose length is not that of its hash: 32, 48 or 64 bytes");
    }
    if crc32(secret) != u32::from_le_bytes(*crc) {
        return Err("holds a key whose checksum does not fit: it was not copied whole");
    }
    Ok(DhchapKey { secret: Secret::new(secret.to_vec()), transform: digit - b'0' })
}

/// Base64 with padding (RFC 4648 §4).
fn base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    // Never grown, so that no copy of a secret is left behind.
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() / 4 * 3));
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for at in 0..4 {
            bits = bits << 6 | group.get(at).map_or(Some(0), |digit| value(*digit))?;
        }
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend_from_slice(bytes.get(..group.len().checked_sub(1)?)?);
    }
    Some(out)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

/// CRC-32 as in Ethernet and zip (reflected, polynomial 04C11DB7h).
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key as `nvme gen-dhchap-key` prints it.
    const GENERATED: &str = "DHHC-1:01:W3ij9Bv30F62wM2g61PP8Iv81nc+HbMS4QezUcHVkJHBfS4a:";

    #[test]
    fn keys_of_the_usual_tool_are_read() {
        let key = parse(GENERATED.as_bytes()).unwrap();
        assert_eq!((key.transform, key.secret.expose().len()), (1, 32));
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "the check value of CRC-32");
        assert_eq!(base64(b"Zm9vYg==").unwrap().as_slice(), b"foob");
        assert_eq!(base64(b"Zm9vYmE=").unwrap().as_slice(), b"fooba");
        assert!(!format!("{key:?}").contains(&GENERATED[10..20]), "no secret in Debug");
    }

    #[test]
    fn wrong_keys_say_what_is_wrong_and_show_nothing() {
        let swapped = GENERATED.replacen(&GENERATED[12..14], "zz", 1);
        for (text, want) in [
            ("", "form"),
            ("secret", "form"),
            ("DHHC-1:04:AAAA:", "form"),
            ("DHHC-1:01:A%AA:", "form"),
            ("DHHC-1:01:AAAAAAAA:", "length"),
            (swapped.as_str(), "checksum"),
            (GENERATED.trim_end_matches(':'), "form"),
            (&GENERATED.replace(":01:", ":02:"), "length"),
        ] {
            let why = parse(text.as_bytes()).unwrap_err();
            assert!(why.contains(want), "{text}: {why}");
        }
    }
}
