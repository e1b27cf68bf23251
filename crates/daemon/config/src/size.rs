//! Sizes as people write them: `512`, `64M`, `1G`, `1.5T`; always binary (K = 1024).

use std::fmt;

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// Nothing was written.
    Empty,
    /// Not digits followed by at most one suffix of K, M, G, T, P.
    Malformed(String),
    /// More than 2^63 - 1 bytes, the largest offset of a file.
    TooLarge(String),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::Empty => write!(f, "a size is missing (for example 64M or 1G)"),
            SizeError::Malformed(text) => write!(
                f,
                "\"{text}\" is not a size; write bytes or a number with K, M, G, T or P (binary), for example 64M"
            ),
            SizeError::TooLarge(text) => write!(f, "\"{text}\" is larger than 2^63 - 1 bytes"),
        }
    }
}

impl std::error::Error for SizeError {}

/// Bytes meant by `text`. `KiB` and `KB` both mean 1024 here, as in `64M`; fractions are refused,
/// since they would hide a rounding.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(SizeError::Empty);
    }
    let malformed = || SizeError::Malformed(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = text.split_at(digits);
    if number.is_empty() {
        return Err(malformed());
    }
    let shift = match suffix.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        "P" | "PB" | "PIB" => 50,
        _ => return Err(malformed()),
    };
    let too_large = || SizeError::TooLarge(text.to_owned());
    let number: u64 = number.parse().map_err(|_| too_large())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(too_large)?;
    if bytes > i64::MAX as u64 { Err(too_large()) } else { Ok(bytes) }
}

/// The shortest exact form of a size that [`parse`] reads back: `1G`, `1536M`, `513`.
pub fn format_exact(bytes: u64) -> String {
    for (shift, suffix) in [(50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A size for a table column: three significant digits and a binary unit, `1.50 GiB`.
pub fn format_human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || value.fract() == 0.0 {
        format!("{value:.0} {unit}")
    } else if value < 10.0 {
        format!("{value:.2} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_binary_sizes() {
        for (text, want) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("1G", 1 << 30),
            ("1GiB", 1 << 30),
            ("1T", 1 << 40),
            ("2P", 2 << 50),
            (" 4K ", 4096),
        ] {
            assert_eq!(parse(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["-1", "M", "1.5G", "0x10", "1 G", "1Q", "1GG"] {
            assert_eq!(parse(text), Err(SizeError::Malformed(text.to_owned())), "{text}");
        }
        for text in ["99999999999999999999", "8192P", "9223372036854775808"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge(text.to_owned())), "{text}");
        }
        assert_eq!(parse("  "), Err(SizeError::Empty));
    }

    #[test]
    fn exact_form_reads_back() {
        for bytes in [0, 1, 512, 513, 4096, 1 << 20, 3 << 29, (1 << 40) + 512] {
            assert_eq!(parse(&format_exact(bytes)), Ok(bytes));
        }
        assert_eq!(format_exact(3 << 29), "1536M");
    }

    #[test]
    fn human_form_is_short() {
        assert_eq!(format_human(512), "512 B");
        assert_eq!(format_human(1 << 30), "1 GiB");
        assert_eq!(format_human(3 << 29), "1.50 GiB");
    }
}
