//! `key=value` text of Login and Text PDUs (RFC 7143 §6.1).
//!
//! Everything about a text is bounded before it is parsed: its length, the number of pairs, the length of
//! keys and values. The result of [`parse`] is UTF-8 with well-formed keys.

mod buf;
mod reassembly;
mod value;

pub use buf::TextBuf;
pub use reassembly::TextReassembly;
pub use value::{
    ValueError, encode_hex, parse_binary, parse_boolean, parse_number, parse_range, split_list, yes_no,
};

/// Longest text of one exchange, over all its PDUs, in bytes: twice the 8192 that every implementation takes
/// (RFC 7143 §6.2), so that nothing that conforms is refused, and small enough to be kept per stranger.
pub const TEXT_LEN_MAX: usize = 16 * 1024;
/// Longest key name in bytes (RFC 7143 §6.1).
pub const KEY_LEN_MAX: usize = 63;
/// Longest value in bytes where the key does not say otherwise (RFC 7143 §6.1).
pub const VALUE_LEN_MAX: usize = 255;
/// Longest value of CHAP_C and CHAP_R: `0x` and 1024 bytes in hexadecimal (RFC 7143 §12.1.3).
pub const CHAP_VALUE_LEN_MAX: usize = 2 + 2 * 1024;
/// Most pairs in one text; RFC 7143 defines 36 keys.
pub const PAIRS_MAX: usize = 128;

/// Answer to a key that the responder does not know.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// Answer to a key that means nothing in this session.
pub const IRRELEVANT: &str = "Irrelevant";
/// Answer to a value that cannot be accepted.
pub const REJECT: &str = "Reject";

/// One `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The key: 1 to 63 letters, digits and `.-+@_#`.
    pub key: &'a str,
    /// The value, without the delimiter.
    pub value: &'a str,
}

/// A text that the peer should not have sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// The text, or the answer to it, exceeds [`TEXT_LEN_MAX`].
    TooLong,
    /// More than [`PAIRS_MAX`] pairs.
    TooManyPairs,
    /// The last pair has no delimiter.
    NotTerminated,
    /// Not UTF-8.
    NotUtf8,
    /// A pair without `=`.
    NoEquals,
    /// A key that is empty, too long, or has a character that keys have not.
    Key,
    /// A value longer than its key allows.
    ValueTooLong,
}

/// In words.
impl core::fmt::Display for TextError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            TextError::TooLong => "the text is too long",
            TextError::TooManyPairs => "the text has too many keys",
            TextError::NotTerminated => "the text is cut off",
            TextError::NotUtf8 => "the text is no UTF-8",
            TextError::NoEquals => "the text has a key without a value",
            TextError::Key => "the text has a key that cannot be one",
            TextError::ValueTooLong => "the text has a value that is too long",
        })
    }
}

/// Parses a whole text. Zero bytes behind the last pair are tolerated: some initiators count their padding.
pub fn parse(bytes: &[u8]) -> Result<Vec<KeyValue<'_>>, TextError> {
    if bytes.len() > TEXT_LEN_MAX {
        return Err(TextError::TooLong);
    }
    let text = core::str::from_utf8(bytes).map_err(|_| TextError::NotUtf8)?;
    let body = text.trim_end_matches('\0');
    if body.is_empty() {
        return Ok(Vec::new());
    }
    if body.len() == text.len() {
        return Err(TextError::NotTerminated);
    }
    let mut pairs = Vec::new();
    for item in body.split('\0') {
        if pairs.len() == PAIRS_MAX {
            return Err(TextError::TooManyPairs);
        }
        pairs.push(parse_pair(item)?);
    }
    Ok(pairs)
}

fn parse_pair(item: &str) -> Result<KeyValue<'_>, TextError> {
    let (key, value) = item.split_once('=').ok_or(TextError::NoEquals)?;
    let first = key.bytes().next().ok_or(TextError::Key)?;
    let well_formed = key.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+@_#".contains(&b));
    if key.len() > KEY_LEN_MAX || !first.is_ascii_alphabetic() || !well_formed {
        return Err(TextError::Key);
    }
    let value_len_max = match key {
        "CHAP_C" | "CHAP_R" => CHAP_VALUE_LEN_MAX,
        _ => VALUE_LEN_MAX,
    };
    if value.len() > value_len_max {
        return Err(TextError::ValueTooLong);
    }
    Ok(KeyValue { key, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_come_in_order() {
        let text = b"InitiatorName=iqn.2026-11.io.example:a\0X-com.example.k=a=b\0iSCSIProtocolLevel=2\0";
        let pairs = parse(text).unwrap();
        let got: Vec<_> = pairs.iter().map(|p| (p.key, p.value)).collect();
        let want = [
            ("InitiatorName", "iqn.2026-11.io.example:a"),
            ("X-com.example.k", "a=b"),
            ("iSCSIProtocolLevel", "2"),
        ];
        assert_eq!(got, want);
        assert_eq!(parse(b"A=\0\0\0").unwrap(), [KeyValue { key: "A", value: "" }]);
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"\0\0").unwrap(), []);
    }

    #[test]
    fn attack_06_malformed_text_is_named() {
        let long_key = [&[b'K'; 64][..], b"=v\0"].concat();
        let long_value = [b"K=", &[b'v'; 256][..], b"\0"].concat();
        let cases: [(&[u8], TextError); 9] = [
            (b"NoEqualsHere\0", TextError::NoEquals),
            (b"=value\0", TextError::Key),
            (b"A=1\0\0B=2\0", TextError::NoEquals),
            (b"Key Space=1\0", TextError::Key),
            (b"9Key=1\0", TextError::Key),
            (&long_key, TextError::Key),
            (&long_value, TextError::ValueTooLong),
            (b"A=1", TextError::NotTerminated),
            (b"A=\xff\xfe\0", TextError::NotUtf8),
        ];
        for (bytes, want) in cases {
            assert_eq!(parse(bytes), Err(want), "{bytes:?}");
        }
        assert!(parse(&[&[b'K'; 63][..], b"=v\0"].concat()).is_ok());
        assert_eq!(parse(&vec![b'K'; 1 << 20]), Err(TextError::TooLong));
    }

    #[test]
    fn attack_07_ten_thousand_keys_stop_at_the_cap() {
        assert_eq!(parse(&b"X=\0".repeat(PAIRS_MAX)).unwrap().len(), PAIRS_MAX);
        assert_eq!(parse(&b"X=\0".repeat(PAIRS_MAX + 1)), Err(TextError::TooManyPairs));
        assert_eq!(parse(&b"X=1\0".repeat(10_000)), Err(TextError::TooLong));
    }

    #[test]
    fn attack_12_chap_values_have_their_own_bound() {
        let value = [&b"CHAP_R=0x"[..], &[b'a'; 2048], b"\0"].concat();
        assert_eq!(parse(&value).unwrap()[0].value.len(), CHAP_VALUE_LEN_MAX);
        let value = [&b"CHAP_R=0x"[..], &[b'a'; 2049], b"\0"].concat();
        assert_eq!(parse(&value), Err(TextError::ValueTooLong));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(b'='), Just(b'A'), any::<u8>()], 0..300)) {
            if let Ok(pairs) = parse(&bytes) {
                let mut out = TextBuf::new();
                for pair in &pairs {
                    out.push(pair.key, pair.value).unwrap();
                }
                prop_assert_eq!(parse(out.as_bytes()).unwrap(), pairs);
            }
        }
    }
}
