//! Values: numbers, booleans, lists, ranges and binary data (RFC 7143 §6.1). Every decoder is bounded and no
//! arithmetic wraps.

/// A value that is not of the form that its key demands, or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueError;

/// A decimal (without leading zeros) or `0x` hexadecimal number below 2^64.
pub fn parse_number(text: &str) -> Result<u64, ValueError> {
    if let Some(digits) = strip_hex(text) {
        let well_formed = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
        return well_formed.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or(ValueError);
    }
    let well_formed = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !well_formed || (text.len() > 1 && text.starts_with('0')) {
        return Err(ValueError);
    }
    text.parse().map_err(|_| ValueError)
}

/// `Yes` or `No`.
pub fn parse_boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err(ValueError),
    }
}

/// The word for a boolean.
#[must_use]
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// The items of a comma-separated list, in the sender's order of preference.
pub fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
}

/// `low~high`, where low does not exceed high.
pub fn parse_range(text: &str) -> Result<(u64, u64), ValueError> {
    let (low, high) = text.split_once('~').ok_or(ValueError)?;
    let (low, high) = (parse_number(low)?, parse_number(high)?);
    if low <= high { Ok((low, high)) } else { Err(ValueError) }
}

/// Binary data of at most `len_max` bytes: `0x` hexadecimal, `0b` base64, or a decimal number below 2^64.
///
/// The length is checked on the text, before anything is decoded or allocated.
pub fn parse_binary(text: &str, len_max: usize) -> Result<Vec<u8>, ValueError> {
    if let Some(digits) = strip_hex(text) {
        return decode_hex(digits, len_max);
    }
    if let Some(digits) = text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
        return decode_base64(digits, len_max);
    }
    let value = parse_number(text)?.to_be_bytes();
    let zeros = value.iter().take_while(|b| **b == 0).count().min(7);
    let bytes = value.get(zeros..).unwrap_or(&value);
    if bytes.len() <= len_max { Ok(bytes.to_vec()) } else { Err(ValueError) }
}

/// Binary data as `0x` and two digits per byte.
#[must_use]
pub fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        for nibble in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(nibble.into(), 16));
        }
    }
    text
}

fn strip_hex(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

fn nibble(digit: u8) -> Result<u8, ValueError> {
    char::from(digit).to_digit(16).map(|n| n as u8).ok_or(ValueError)
}

/// An odd number of digits leaves the first byte with one (RFC 7143 §6.1: (n+1)/2 bytes).
fn decode_hex(digits: &str, len_max: usize) -> Result<Vec<u8>, ValueError> {
    let digits = digits.as_bytes();
    if digits.is_empty() || digits.len().div_ceil(2) > len_max {
        return Err(ValueError);
    }
    let (head, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    for digit in head {
        bytes.push(nibble(*digit)?);
    }
    for [high, low] in pairs.as_chunks().0 {
        bytes.push(nibble(*high)? << 4 | nibble(*low)?);
    }
    Ok(bytes)
}

fn decode_base64(digits: &str, len_max: usize) -> Result<Vec<u8>, ValueError> {
    let padded = digits.len();
    let digits = digits.trim_end_matches('=').as_bytes();
    let pads = padded - digits.len();
    // RFC 4648 §4: groups of four, of which the last may end in one or two pad characters.
    if digits.is_empty() || !padded.is_multiple_of(4) || pads > 2 || digits.len() * 3 / 4 > len_max {
        return Err(ValueError);
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut word = 0u32;
        for digit in group {
            word = word << 6 | u32::from(sextet(*digit)?);
        }
        word <<= 6 * (4 - group.len());
        let [_, whole @ ..] = word.to_be_bytes();
        let (kept, unused) = whole.split_at(group.len() * 3 / 4);
        if unused.iter().any(|b| *b != 0) {
            return Err(ValueError);
        }
        bytes.extend_from_slice(kept);
    }
    Ok(bytes)
}

fn sextet(digit: u8) -> Result<u8, ValueError> {
    match digit {
        b'A'..=b'Z' => Ok(digit - b'A'),
        b'a'..=b'z' => Ok(digit - b'a' + 26),
        b'0'..=b'9' => Ok(digit - b'0' + 52),
        b'+' => Ok(62),
        b'/' => Ok(63),
        _ => Err(ValueError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attack_20_numbers_never_wrap() {
        let good =
            [("0", 0), ("8192", 8192), ("0x2000", 8192), ("0XfF", 255), ("18446744073709551615", u64::MAX)];
        for (text, want) in good {
            assert_eq!(parse_number(text), Ok(want), "{text}");
        }
        let bad = [
            "",
            "-1",
            "+1",
            "8192abc",
            "0x",
            "0xg",
            "08192",
            " 1",
            "1 ",
            "18446744073709551616",
            "0x10000000000000000",
            "0x+1",
            "1e3",
            "1~2",
        ];
        for text in bad {
            assert_eq!(parse_number(text), Err(ValueError), "{text}");
        }
    }

    #[test]
    fn words_lists_and_ranges() {
        assert_eq!(
            (parse_boolean("Yes"), parse_boolean("No"), parse_boolean("yes")),
            (Ok(true), Ok(false), Err(ValueError))
        );
        assert_eq!(split_list("CRC32C,None").collect::<Vec<_>>(), ["CRC32C", "None"]);
        assert_eq!(
            (parse_range("512~0x400"), parse_range("5~4"), parse_range("5")),
            (Ok((512, 1024)), Err(ValueError), Err(ValueError))
        );
    }

    #[test]
    fn attack_12_binary_junk_is_refused_before_decoding() {
        assert_eq!(parse_binary("0xABCDEF", 3), Ok(vec![0xab, 0xcd, 0xef]));
        assert_eq!(parse_binary("0xABCDE", 3), Ok(vec![0x0a, 0xbc, 0xde]));
        assert_eq!(parse_binary("0bTWFu", 3), Ok(b"Man".to_vec()));
        assert_eq!(parse_binary("0BTWE=", 3), Ok(b"Ma".to_vec()));
        assert_eq!(parse_binary("0bTQ==", 3), Ok(b"M".to_vec()));
        assert_eq!(parse_binary("258", 8), Ok(vec![1, 2]));
        assert_eq!(parse_binary("0", 8), Ok(vec![0]));
        let bad = [
            "0x",
            "0b",
            "0xABCDEF01",
            "0xzz",
            "0bTWFuTWFu",
            "0bT",
            "0bTQ=",
            "0bTR==",
            "0bT===",
            "0b====",
            "0b!!!!",
            "0b\u{e9}\u{e9}",
            "abc",
            "",
            "16777216",
        ];
        for text in bad {
            assert_eq!(parse_binary(text, 3), Err(ValueError), "{text}");
        }
        assert_eq!(parse_binary(&format!("0b{}", "A".repeat(2000)), 32), Err(ValueError));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn hex_reads_back(bytes in proptest::collection::vec(any::<u8>(), 1..64)) {
            prop_assert_eq!(parse_binary(&encode_hex(&bytes), 64), Ok(bytes));
        }

        #[test]
        fn any_value_decodes_within_its_bound(text in "(0x|0b|)[0-9a-fA-F+/=]{0,40}") {
            if let Ok(bytes) = parse_binary(&text, 16) {
                prop_assert!(bytes.len() <= 16);
            }
        }
    }
}
