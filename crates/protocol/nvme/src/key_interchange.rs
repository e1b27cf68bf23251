//! Keys as text that people pass on: `PREFIX:hh:base64(key ‖ CRC-32 of it, little-endian):`. Secrets of
//! DH-HMAC-CHAP (NVMe Base §8.3.5.5.8) and pre-shared keys of TLS (NVMe/TCP §3.6.1.5) have this form.
//!
//! Invariant: no error shows a key or a part of it, and memory that held one is wiped.

use zeroize::Zeroizing;

/// Bytes of the checksum.
const CRC_LEN: usize = 4;
/// Most characters of a key's text: 64 bytes and the checksum in base64, and what stands around them.
const KEY_TEXT_LEN_MAX: usize = 128;

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTextError {
    /// It does not begin with the prefix.
    Prefix,
    /// What follows is not two digits that name a transform, and a colon.
    Transform,
    /// The last character is no colon, or one is missing.
    Colon,
    /// What is between the colons is no base64.
    Base64,
    /// The key has this many bytes, which is none of the lengths allowed.
    Length(usize),
    /// The checksum is wrong.
    Checksum,
}

/// Reads a key and the identifier of its transform, at most `transform_max`; white space around the text is
/// not counted.
pub(crate) fn parse_key_text(
    text: &str,
    prefix: &str,
    transform_max: u8,
    lengths: &[usize],
) -> Result<(u8, Zeroizing<Vec<u8>>), KeyTextError> {
    let text = text.trim_ascii().strip_prefix(prefix).ok_or(KeyTextError::Prefix)?;
    let (transform, text) = text.split_once(':').ok_or(KeyTextError::Transform)?;
    let transform = match *transform.as_bytes() {
        [b'0', digit @ b'0'..=b'9'] => digit - b'0',
        _ => return Err(KeyTextError::Transform),
    };
    if transform > transform_max {
        return Err(KeyTextError::Transform);
    }
    let text = text.strip_suffix(':').ok_or(KeyTextError::Colon)?;
    let mut bytes = decode_base64(text.as_bytes()).ok_or(KeyTextError::Base64)?;
    let len = bytes.len().checked_sub(CRC_LEN).ok_or(KeyTextError::Length(0))?;
    if !lengths.contains(&len) {
        return Err(KeyTextError::Length(len));
    }
    let (key, sum) = bytes.split_at(len);
    if sum != crc32(key).to_le_bytes() {
        return Err(KeyTextError::Checksum);
    }
    bytes.truncate(len);
    Ok((transform, bytes))
}

/// The text of a key: to be kept as secret as the key.
pub(crate) fn format_key_text(prefix: &str, transform: u8, key: &[u8]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + CRC_LEN));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&crc32(key).to_le_bytes());
    let mut text = Zeroizing::new(String::with_capacity(KEY_TEXT_LEN_MAX));
    text.push_str(prefix);
    text.push('0');
    text.push(char::from(b'0' + transform % 10));
    text.push(':');
    encode_base64(&bytes, &mut text);
    text.push(':');
    text
}

/// CRC-32 as in IEEE 802.3, bit by bit: it is computed once per secret.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}

const BASE64_ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648 §4, padded; only what encoding gives is taken.
fn decode_base64(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (groups, []) = text.as_chunks::<4>() else { return None };
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    for (n, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|&&byte| byte == b'=').count();
        if padding > 2 || padding > 0 && n + 1 < groups.len() {
            return None;
        }
        let mut bits = 0;
        for &byte in group.iter().take(4 - padding) {
            let value = BASE64_ALPHABET.iter().position(|&known| known == byte)?;
            bits = bits << 6 | value as u32;
        }
        bits <<= 6 * padding;
        let decoded = bits.to_be_bytes();
        let (taken, left) = decoded[1..].split_at(3 - padding);
        if left.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(taken);
    }
    Some(bytes)
}

pub(crate) fn encode_base64(bytes: &[u8], text: &mut String) {
    for group in bytes.chunks(3) {
        let byte = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for n in 0..4 {
            let value = (bits >> (18 - 6 * n) & 63) as usize;
            let digit = BASE64_ALPHABET.get(value).copied().filter(|_| n <= group.len());
            text.push(digit.unwrap_or(b'=').into());
        }
    }
}
