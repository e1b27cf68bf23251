//! Bytes that may hold secrets: in messages they are hexadecimal text, and they are never shown.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Bytes to write to a file, not to show: they have no `Display`, and their `Debug` says only how many they are.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(pub Vec<u8>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

impl Serialize for SecretBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
        let text: String = self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        bytes.map(SecretBytes).ok_or_else(|| D::Error::custom("no hexadecimal bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_back_and_none_is_shown() {
        let all = SecretBytes((0..=255).collect());
        let text = serde_json::to_string(&all).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("feff\""), "{text}");
        assert_eq!(serde_json::from_str::<SecretBytes>(&text).unwrap(), all);
        assert_eq!(format!("{all:?}"), "(256 bytes)");
        for wrong in ["\"0\"", "\"0g\"", "\"\u{e9}\"", "7"] {
            assert!(serde_json::from_str::<SecretBytes>(wrong).is_err(), "{wrong}");
        }
    }
}
