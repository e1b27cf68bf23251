//! Keys as text that people pass on: `PREFIX:hh:base64(key ‖ CRC-32 of it, little-endian):`. Secrets of
//! DH-HMAC-CHAP (NVMe Base §8.3.5.5.8) and pre-shared keys of TLS (NVMe/TCP §3.6.1.5) have this form.
//!
//! Invariant: no error shows a key or a part of it, and memory that held one is wiped.

use core::fmt;

use zeroize::Zeroizing;

/// Bytes of the checksum.
const CRC_LEN: usize = 4;
/// Most characters of a key's text: 64 bytes and the checksum in base64, and what stands around them.
const KEY_TEXT_LEN_MAX: usize = 128;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A secret of DH-HMAC-CHAP: `DHHC-1:`.
    Dhchap,
    /// A configured PSK of TLS: `NVMeTLSkey-1:`.
    Tls,
}

impl KeyKind {
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            KeyKind::Dhchap => "DHHC-1:",
            KeyKind::Tls => "NVMeTLSkey-1:",
        }
    }

    /// The largest identifier of a transform.
    const fn transform_max(self) -> u8 {
        match self {
            KeyKind::Dhchap => 3,
            KeyKind::Tls => 2,
        }
    }

    /// How many bytes a key may have.
    const fn lengths(self) -> &'static [usize] {
        match self {
            KeyKind::Dhchap => &[32, 48, 64],
            KeyKind::Tls => &[32, 48],
        }
    }
}

/// Why a text is no key of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// The kind.
    pub kind: KeyKind,
    /// Why not.
    pub flaw: KeyFlaw,
}

/// What is wrong with the text of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFlaw {
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
    /// The checksum is wrong: a character was mistyped or lost.
    Checksum,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.kind.prefix();
        let (a_key, key, transforms, lengths) = match self.kind {
            KeyKind::Dhchap => ("a secret", "secret", "00, 01, 02 or 03", "32, 48 or 64"),
            KeyKind::Tls => ("a key of TLS", "key", "00, 01 or 02", "32 or 48"),
        };
        match self.flaw {
            KeyFlaw::Prefix => write!(f, "{a_key} begins with `{prefix}`"),
            KeyFlaw::Transform => write!(f, "`{prefix}` must be followed by {transforms} and a colon"),
            KeyFlaw::Colon => write!(f, "{a_key} ends with a colon"),
            KeyFlaw::Base64 => f.write_str("the part between the last two colons is no base64"),
            KeyFlaw::Length(len) => write!(f, "the {key} has {len} bytes, and may have {lengths}"),
            KeyFlaw::Checksum => {
                write!(f, "the {key}'s checksum is wrong: a character was mistyped or lost; copy it again")
            }
        }
    }
}

impl std::error::Error for KeyError {}

/// Reads a key of a kind and the identifier of its transform; white space around the text is not counted.
pub(crate) fn parse_key_text(text: &str, kind: KeyKind) -> Result<(u8, Zeroizing<Vec<u8>>), KeyError> {
    parse_flawed(text, kind).map_err(|flaw| KeyError { kind, flaw })
}

fn parse_flawed(text: &str, kind: KeyKind) -> Result<(u8, Zeroizing<Vec<u8>>), KeyFlaw> {
    let text = text.trim_ascii().strip_prefix(kind.prefix()).ok_or(KeyFlaw::Prefix)?;
    let (transform, text) = text.split_once(':').ok_or(KeyFlaw::Transform)?;
    let transform = match *transform.as_bytes() {
        [b'0', digit @ b'0'..=b'9'] => digit - b'0',
        _ => return Err(KeyFlaw::Transform),
    };
    if transform > kind.transform_max() {
        return Err(KeyFlaw::Transform);
    }
    let text = text.strip_suffix(':').ok_or(KeyFlaw::Colon)?;
    let mut bytes = decode_base64(text.as_bytes()).ok_or(KeyFlaw::Base64)?;
    let len = bytes.len().checked_sub(CRC_LEN).ok_or(KeyFlaw::Length(0))?;
    if !kind.lengths().contains(&len) {
        return Err(KeyFlaw::Length(len));
    }
    let (key, sum) = bytes.split_at(len);
    if sum != crc32(key).to_le_bytes() {
        return Err(KeyFlaw::Checksum);
    }
    bytes.truncate(len);
    Ok((transform, bytes))
}

/// The text of a key: to be kept as secret as the key.
pub(crate) fn format_key_text(kind: KeyKind, transform: u8, key: &[u8]) -> Zeroizing<String> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + CRC_LEN));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&crc32(key).to_le_bytes());
    let mut text = Zeroizing::new(String::with_capacity(KEY_TEXT_LEN_MAX));
    text.push_str(kind.prefix());
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
