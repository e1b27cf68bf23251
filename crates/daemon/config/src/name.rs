//! Names that go on the wire: volume names, iSCSI names (RFC 7143 §4.2.7), NVMe qualified names (NVMe
//! Base §4.5), default names of targets and subsystems.
//!
//! Invariant: a [`VolumeName`] can stand inside an iSCSI name, in a file name and in a URL without
//! escaping, so nothing downstream needs to quote it.

use std::fmt;

/// Longest volume name, bytes. The prefix, a node name of the same length and two colons still fit
/// into the 223 bytes of an iSCSI name.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest iSCSI name, bytes (RFC 7143 §4.2.7.2).
pub const ISCSI_NAME_BYTES_MAX: usize = 223;

/// What every default target name begins with.
pub const TARGET_PREFIX: &str = "iqn.2026-11.io.blockwire";

/// Longest NVMe qualified name, bytes (NVMe Base §4.5).
pub const NQN_BYTES_MAX: usize = 223;

/// What every default subsystem name begins with.
pub const SUBSYSTEM_PREFIX: &str = "nqn.2026-11.io.blockwire";

/// The name by which every discovery service answers (NVMe Base §4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The name of a volume or node: lowercase letters, digits, `-` and `.`, starting with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeName(String);

/// Why a text cannot be a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    text: String,
    why: &'static str,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" {}", self.text, self.why)
    }
}

impl std::error::Error for NameError {}

impl VolumeName {
    /// The name in `text`, or why it is none.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let refuse = |why| Err(NameError { text: text.to_owned(), why });
        if text.is_empty() {
            return refuse("is empty; a name is needed");
        }
        if text.len() > NAME_BYTES_MAX {
            return refuse("is longer than 64 bytes");
        }
        if !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.') {
            return refuse(
                "may hold only lowercase letters, digits, \"-\" and \".\" (it becomes part of an iSCSI name)",
            );
        }
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return refuse("must begin with a letter or a digit");
        }
        Ok(VolumeName(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The target that exports `volume` where the configuration names none.
pub fn default_target(node: Option<&VolumeName>, volume: &VolumeName) -> String {
    default_name(TARGET_PREFIX, node, volume)
}

/// The subsystem that exports `volume` where the configuration names none.
pub fn default_subsystem(node: Option<&VolumeName>, volume: &VolumeName) -> String {
    default_name(SUBSYSTEM_PREFIX, node, volume)
}

fn default_name(prefix: &str, node: Option<&VolumeName>, volume: &VolumeName) -> String {
    match node {
        Some(node) => format!("{prefix}:{node}:{volume}"),
        None => format!("{prefix}:{volume}"),
    }
}

/// Checks an NVMe qualified name (NVMe Base §4.5). Names are compared byte by byte, so it stays as it is.
pub fn parse_nqn(text: &str) -> Result<String, NameError> {
    let refuse = |why| Err(NameError { text: text.to_owned(), why });
    if text.len() > NQN_BYTES_MAX {
        return refuse("is longer than the 223 bytes of an NVMe qualified name");
    }
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse("is not an NVMe qualified name: it holds blanks or control characters");
    }
    let Some(rest) = text.strip_prefix("nqn.") else {
        return refuse("is not an NVMe qualified name: it begins with nqn.");
    };
    if text == DISCOVERY_NQN {
        return refuse("is the name of every discovery service, and of no subsystem or host");
    }
    if let Some(uuid) = text.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:")
        && uuid::Uuid::try_parse(uuid).is_err()
    {
        return refuse("is not an NVMe qualified name: no UUID follows uuid:");
    }
    match rest.split_once(':') {
        Some((_, name)) if is_iqn(rest) && !name.is_empty() => Ok(text.to_owned()),
        _ => refuse("is not an NVMe qualified name: expected nqn.YYYY-MM.reversed.domain:anything"),
    }
}

/// Checks an iSCSI name and gives its normal form (lowercase, RFC 7143 §4.2.7.2, RFC 3722).
///
/// Only the ASCII subset is accepted: names beyond it exist in the standard but in no initiator.
pub fn parse_iscsi_name(text: &str) -> Result<String, NameError> {
    let refuse = |why| Err(NameError { text: text.to_owned(), why });
    if text.len() > ISCSI_NAME_BYTES_MAX {
        return refuse("is longer than the 223 bytes of an iSCSI name");
    }
    let name = text.to_ascii_lowercase();
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':')) {
        return refuse("is not an iSCSI name: only letters, digits, \"-\", \".\" and \":\" are allowed");
    }
    match name.split_once('.') {
        Some(("iqn", rest)) if is_iqn(rest) => Ok(name),
        Some(("iqn", _)) => {
            refuse("is not an iSCSI qualified name: expected iqn.YYYY-MM.reversed.domain[:anything]")
        }
        Some(("eui", hex)) if is_hex(hex, &[16]) => Ok(name),
        Some(("eui", _)) => refuse("is not an iSCSI name: eui. needs 16 hexadecimal digits"),
        Some(("naa", hex)) if is_hex(hex, &[16, 32]) => Ok(name),
        Some(("naa", _)) => refuse("is not an iSCSI name: naa. needs 16 or 32 hexadecimal digits"),
        _ => refuse("is not an iSCSI name: it begins with iqn., eui. or naa."),
    }
}

fn is_hex(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// `YYYY-MM.authority[:rest]`.
fn is_iqn(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else { return false };
    let date = date.as_bytes();
    let month = match date {
        [y @ .., b'-', a, b] if y.len() == 4 && y.iter().all(u8::is_ascii_digit) => [*a, *b],
        _ => return false,
    };
    let authority = authority.split(':').next().unwrap_or_default();
    (*b"01"..=*b"12").contains(&month) && month[1].is_ascii_digit() && !authority.is_empty()
}

/// A group of users: a name as group(5) has it, or a number.
pub fn parse_group(text: &str) -> Result<String, &'static str> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !text.is_empty() && text.len() <= 32 && text.chars().all(is_fine) {
        true => Ok(text.to_owned()),
        false => Err("a group is a name of letters, digits, - _ and ., or a number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_names() {
        for good in ["demo", "db-1", "a.b", "0"] {
            assert!(VolumeName::parse(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in ["", "Demo", "a_b", "-a", ".a", "a/b", "ä", "a:b", &long] {
            assert!(VolumeName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn iscsi_names() {
        for good in [
            "iqn.1993-08.org.debian:01:abcdef",
            "iqn.2026-11.io.blockwire:demo",
            "iqn.2026-11.io",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
        ] {
            assert_eq!(parse_iscsi_name(good), Ok(good.to_ascii_lowercase()), "{good}");
        }
        for bad in [
            "",
            "demo",
            "iqn.",
            "iqn.2026.io",
            "iqn.2026-13.io:x",
            "iqn.2026-00.io:x",
            "iqn.26-11.io",
            "iqn.2026-11.",
            "eui.123",
            "naa.zz",
            "iqn.2026-11.io:a b",
            "iqn.2026-11.io:../x_y",
        ] {
            assert!(parse_iscsi_name(bad).is_err(), "{bad}");
        }
        assert!(parse_iscsi_name(&format!("iqn.2026-11.io:{}", "x".repeat(223))).is_err());
    }

    #[test]
    fn nvme_names() {
        for good in [
            "nqn.2026-11.io.blockwire:demo",
            "nqn.2026-11.com.example:nvme:Array.1_2",
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        ] {
            assert_eq!(parse_nqn(good), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "demo",
            "iqn.2026-11.io:x",
            "nqn.2026-11.io",
            "nqn.2026-11.io:",
            "nqn.2026-13.io:x",
            "nqn.2026-11.io:a b",
            DISCOVERY_NQN,
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae",
        ] {
            assert!(parse_nqn(bad).is_err(), "{bad}");
        }
        assert!(parse_nqn(&format!("nqn.2026-11.io:{}", "x".repeat(223))).is_err());
        let volume = VolumeName::parse("demo").unwrap();
        assert_eq!(default_subsystem(None, &volume), "nqn.2026-11.io.blockwire:demo");
        assert_eq!(default_subsystem(Some(&volume), &volume), "nqn.2026-11.io.blockwire:demo:demo");
    }

    #[test]
    fn the_node_goes_into_default_target_names() {
        let volume = VolumeName::parse("demo").unwrap();
        let node = VolumeName::parse("n1").unwrap();
        assert_eq!(default_target(None, &volume), "iqn.2026-11.io.blockwire:demo");
        assert_eq!(default_target(Some(&node), &volume), "iqn.2026-11.io.blockwire:n1:demo");
    }
}
