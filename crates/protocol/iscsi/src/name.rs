//! iSCSI names and target addresses (RFC 7143 §4.2.7, §13.8).
//!
//! A name that came from the wire is only ever compared: it is no path, no format and no key into anything
//! but tables of names.

use core::fmt;

/// Longest iSCSI name in bytes.
pub const NAME_LEN_MAX: usize = 223;

/// The port of an address that names none.
pub const PORT_DEFAULT: u16 = 3260;

/// A valid iSCSI name, in lower case.
///
/// Of stringprep (RFC 3722) only the folding to lower case is done; a name with other non-ASCII forms stays
/// different from its composed one, so a comparison can fail, never match wrongly.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IscsiName(String);

/// Not an iSCSI name: wrong type, too long, or a character that names have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameError;

impl IscsiName {
    /// Checks and normalises a name of type iqn, eui or naa.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.len() > NAME_LEN_MAX {
            return Err(NameError);
        }
        let name = text.to_lowercase();
        let (kind, rest) = name.split_once('.').ok_or(NameError)?;
        let good = match kind {
            "iqn" => is_valid_iqn_suffix(rest),
            "eui" => is_hex(rest) && rest.len() == 16,
            "naa" => is_hex(rest) && (rest.len() == 16 || rest.len() == 32),
            _ => false,
        };
        // Folding can lengthen a name.
        if good && name.len() <= NAME_LEN_MAX { Ok(Self(name)) } else { Err(NameError) }
    }

    /// The normalised name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `yyyy-mm.reversed.domain[:anything]`. RFC 3722 leaves of ASCII only letters, digits, `-`, `.` and `:`;
/// `_` is taken too, since virtual machines' names get into initiators' names.
fn is_valid_iqn_suffix(rest: &str) -> bool {
    let Some((date, domain)) = rest.split_once('.') else { return false };
    let (&[a, b, c, d, b'-', m, n], [first, ..]) = (date.as_bytes(), domain.as_bytes()) else { return false };
    let month = [m, n];
    let digits = [a, b, c, d, m, n].iter().all(u8::is_ascii_digit);
    let month_exists = (*b"01"..=*b"12").contains(&month);
    let characters = domain.chars().all(|c| match c {
        '-' | '.' | ':' | '_' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric(),
        c => c.is_alphanumeric(),
    });
    digits && month_exists && characters && !b":.".contains(first)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Value of TargetAddress: `host[:port][,tag]`; an IPv6 host stands in brackets (RFC 7143 §13.8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    host: String,
    port: u16,
    tag: Option<u16>,
}

/// Not a TargetAddress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressError;

impl TargetAddress {
    /// The address of a portal that we serve, with its portal group tag.
    #[must_use]
    pub fn of_portal(address: core::net::SocketAddr, tag: u16) -> Self {
        Self { host: address.ip().to_string(), port: address.port(), tag: Some(tag) }
    }

    /// Parses a value from a peer or from the configuration.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (address, tag) = match text.split_once(',') {
            Some((address, tag)) => (address, Some(parse_u16(tag)?)),
            None => (text, None),
        };
        let (host, port) = if let Some(rest) = address.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or(AddressError)?;
            host.parse::<core::net::Ipv6Addr>().map_err(|_| AddressError)?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or(AddressError)?) })
        } else {
            let (host, port) =
                address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port)));
            let well_formed = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            if host.is_empty() || host.len() > 253 || !well_formed {
                return Err(AddressError);
            }
            (host, port)
        };
        let port = port.map_or(Ok(PORT_DEFAULT), parse_u16)?;
        if port == 0 {
            return Err(AddressError);
        }
        Ok(Self { host: host.to_owned(), port, tag })
    }

    /// The host: a DNS name, or an IP address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port, never 0 when parsed.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The portal group tag, where one is given.
    #[must_use]
    pub fn portal_group_tag(&self) -> Option<u16> {
        self.tag
    }

    /// The same address without its tag, as a redirection carries it (RFC 7143 §11.13.5).
    #[must_use]
    pub fn without_portal_group_tag(mut self) -> Self {
        self.tag = None;
        self
    }
}

fn parse_u16(text: &str) -> Result<u16, AddressError> {
    crate::text::parse_number(text).ok().and_then(|n| u16::try_from(n).ok()).ok_or(AddressError)
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        self.tag.map_or(Ok(()), |tag| write!(f, ",{tag}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalised() {
        let good = [
            ("iqn.2026-11.io.Blockwire:Demo", "iqn.2026-11.io.blockwire:demo"),
            ("IQN.1993-08.org.debian:01:abc", "iqn.1993-08.org.debian:01:abc"),
            ("iqn.2008-11.org.linux-kvm", "iqn.2008-11.org.linux-kvm"),
            ("iqn.2008-11.org.linux-kvm:my_vm", "iqn.2008-11.org.linux-kvm:my_vm"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.52004567BA64678D", "naa.52004567ba64678d"),
            ("naa.62004567BA64678D0123456789ABCDEF", "naa.62004567ba64678d0123456789abcdef"),
        ];
        for (text, want) in good {
            assert_eq!(IscsiName::parse(text).unwrap().as_str(), want);
        }
    }

    #[test]
    fn attack_21_hostile_names_are_refused() {
        let longest = format!("iqn.2026-11.io.example:{}", "a".repeat(NAME_LEN_MAX - 23));
        assert_eq!(longest.len(), NAME_LEN_MAX);
        assert!(IscsiName::parse(&longest).is_ok());
        let too_long = format!("{longest}a");
        // U+0130 grows from two to three bytes when folded.
        let growing = format!("iqn.2026-11.io.example:{}", "\u{130}".repeat(100));
        let bad = [
            "",
            "iqn",
            "iqn.",
            "iqn.2026-11",
            "iqn.2026-13.io.example",
            "iqn.2026-00.io.example",
            "iqn.26-11.io.example",
            "iqn.2026-11.",
            "iqn.2026-11.:x",
            "iqn.2026-11.io.example:../../etc/passwd",
            "iqn.2026-11.io.example:%s%n",
            "iqn.2026-11.io.example:a b",
            "iqn.2026-11.io.example:a\0b",
            "iqn.2026-11.io.example:a,b",
            "eui.0123",
            "eui.02004567A425678G",
            "naa.52004567BA64678",
            "foo.2026-11.io.example",
            &too_long,
            &growing,
        ];
        for text in bad {
            assert_eq!(IscsiName::parse(text), Err(NameError), "{text}");
        }
    }

    #[test]
    fn addresses_read_back() {
        for text in ["10.0.0.1:3260,1", "[fe80::1]:860,0", "san.example.com:3260", "[::1]:3261"] {
            assert_eq!(TargetAddress::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(TargetAddress::parse("san").unwrap().to_string(), "san:3260");
        assert_eq!(TargetAddress::parse("[::1],7").unwrap().to_string(), "[::1]:3260,7");
        let portal = TargetAddress::of_portal("[2001:db8::5]:3260".parse().unwrap(), 2);
        assert_eq!(portal.to_string(), "[2001:db8::5]:3260,2");
        assert_eq!(portal.without_portal_group_tag().to_string(), "[2001:db8::5]:3260");
        for text in
            ["", "host:0", "[::1", "[::1]x", "a;rm -rf", "$(x)", "h:65536", "h:1,65536", "::1", "h:", "h,"]
        {
            assert_eq!(TargetAddress::parse(text), Err(AddressError), "{text}");
        }
    }
}
