//! The address of a remote volume, as users write it:
//!
//! ```text
//! iscsi://[user[%password]@]host[:port][/iqn[/lun]][?key=value&...]
//! nvme+tcp://host[:port][/nqn[/nsid]][?key=value&...]
//! ```
//!
//! An IPv6 address is written in brackets. Within a part, `%` and two hexadecimal digits encode a byte;
//! before the `@` the first `%` ends the user's name, and further ones are such escapes. Several URLs of one
//! volume are joined by commas. Without the last part a URL names a target or subsystem; without the last
//! two, a discovery service.
//!
//! The code that does I/O resolves host names. Invariant: no error, `Debug` or `Display` shows a password.

mod error;
mod option;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use iscsi::name::IscsiName;
use nvme::Nqn;

use crate::path::Protocol;
use crate::secret::Secret;
pub use error::{Part, UrlError, Wrong};
pub use option::{Digests, Options, PathPolicy, SecretAt, time};

/// Most URLs that may be joined: as many as a volume has paths.
pub const URLS_MAX: usize = crate::remote::PATHS_MAX;

/// Most bytes of one URL.
const URL_LEN_MAX: usize = 4096;

/// Most bytes of a CHAP name or secret (RFC 7143 §12.1.3: a text value of at most 255 bytes).
const CHAP_LEN_MAX: usize = 255;

/// The largest LUN of the flat space (SAM-5 §4.7.5.1).
const LUN_MAX: u32 = 16_383;

/// The machine, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// An address.
    Address(IpAddr),
    /// A name that somebody must resolve; or an IPv6 address with a zone.
    Name(String),
}

/// What is meant there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The discovery service.
    Discovery,
    /// An iSCSI target, and its logical unit if one is named: 0 to 16383.
    Iscsi(IscsiName, Option<u16>),
    /// An NVMe subsystem, and its namespace if one is named: 1 to 4294967294.
    Nvme(Nqn, Option<u32>),
}

/// A user and what stood behind its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// CHAP_N.
    pub name: String,
    /// The password, if the URL holds one.
    pub secret: Option<Secret>,
}

/// A URL that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Over which protocol.
    pub protocol: Protocol,
    /// Who we are (iSCSI only).
    pub user: Option<User>,
    /// Where.
    pub machine: Machine,
    /// Which TCP port; the protocol's default if none was written.
    pub port: u16,
    /// What.
    pub target: Target,
    /// How.
    pub options: Options,
}

impl Protocol {
    /// What stands in front of `://`.
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi",
            Protocol::Nvme => "nvme+tcp",
        }
    }

    /// A URL to take as a pattern.
    fn example(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi://10.0.0.1:3260/iqn.2026-11.io.blockwire:disk/0",
            Protocol::Nvme => "nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.blockwire:disk/1",
        }
    }
}

impl Url {
    /// Whether `text` means to be one: it begins with a scheme of ours.
    pub fn is_meant(text: &str) -> bool {
        [Protocol::Iscsi, Protocol::Nvme].iter().any(|protocol| after_scheme(text, *protocol).is_some())
    }

    /// Reads one URL.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let (protocol, rest) = scheme(text)?;
        let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
        if text.len() > URL_LEN_MAX {
            return Err(wrong(Part::Whole, Wrong::Long(URL_LEN_MAX)));
        }
        if rest.contains(|c: char| c.is_control() || c == '#') {
            return Err(wrong(Part::Whole, Wrong::Character));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            // A slash in a password would make a host of its beginning.
            None if authority.contains('%') && !authority.starts_with('[') && rest.contains('@') => {
                return Err(wrong(Part::Password, Wrong::Slash));
            }
            None => (None, authority),
        };
        let user = user.map(|user| self::user(protocol, user)).transpose()?;
        let (machine, port) = place_of(protocol, place)?;
        let target = target(protocol, path)?;
        let discovery = target == Target::Discovery;
        let port = port.unwrap_or(match (protocol, discovery) {
            (Protocol::Iscsi, _) => 3260,
            (Protocol::Nvme, false) => 4420,
            (Protocol::Nvme, true) => 8009,
        });
        let options = Options::parse(protocol, query)?;
        options.agree_with(protocol, user.as_ref())?;
        Ok(Url { protocol, user, machine, port, target, options })
    }

    /// Reads the URLs of one volume, joined by commas. What concerns the volume as a whole may be said
    /// once or alike everywhere.
    pub fn parse_joined(text: &str) -> Result<Vec<Url>, UrlError> {
        let mut urls = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            // A comma that is followed by anything else belongs to the URL.
            let mut commas =
                rest.match_indices(',').filter_map(|(at, _)| rest.get(..at).zip(rest.get(at + 1..)));
            let (one, after) = commas.find(|(_, after)| scheme(after).is_ok()).unwrap_or((rest, ""));
            urls.push(Url::parse(one)?);
            rest = after;
        }
        let whole = |wrong| UrlError { protocol: None, part: Part::Whole, wrong };
        match urls.len() {
            0 => return Err(whole(Wrong::Missing)),
            1..=URLS_MAX => {}
            _ => return Err(whole(Wrong::TooMany(URLS_MAX))),
        }
        Options::unite(&mut urls)?;
        Ok(urls)
    }

    /// Whether it names one volume: a logical unit or a namespace.
    pub fn names_volume(&self) -> bool {
        matches!(self.target, Target::Iscsi(_, Some(_)) | Target::Nvme(_, Some(_)))
    }

    /// What to say to who gave a URL that names no volume where one is needed.
    pub fn lacks_volume(&self) -> UrlError {
        let part = if self.target == Target::Discovery { Part::Target } else { Part::Unit };
        UrlError { protocol: Some(self.protocol), part, wrong: Wrong::Missing }
    }
}

/// Without password and options.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.protocol.scheme())?;
        if let Some(user) = &self.user {
            write!(f, "{}@", user.name)?;
        }
        match &self.machine {
            Machine::Address(IpAddr::V4(address)) => write!(f, "{address}")?,
            Machine::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Machine::Name(name) if name.contains(':') => write!(f, "[{name}]")?,
            Machine::Name(name) => f.write_str(name)?,
        }
        write!(f, ":{}", self.port)?;
        let unit = match &self.target {
            Target::Discovery => return Ok(()),
            Target::Iscsi(name, lun) => {
                write!(f, "/{}", name.as_str())?;
                lun.map(u32::from)
            }
            Target::Nvme(name, nsid) => {
                f.write_str("/")?;
                // What would end the part, or begin the next.
                for c in name.as_str().chars() {
                    match c {
                        '/' | '?' | '#' | '%' | ' ' | ',' => write!(f, "%{:02X}", c as u32)?,
                        c => write!(f, "{c}")?,
                    }
                }
                *nsid
            }
        };
        unit.map_or(Ok(()), |unit| write!(f, "/{unit}"))
    }
}

/// What stands behind the scheme of this protocol.
fn after_scheme(text: &str, protocol: Protocol) -> Option<&str> {
    let scheme = protocol.scheme();
    let (start, rest) = text.split_at_checked(scheme.len())?;
    rest.strip_prefix("://").filter(|_| start.eq_ignore_ascii_case(scheme))
}

fn scheme(text: &str) -> Result<(Protocol, &str), UrlError> {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        if let Some(rest) = after_scheme(text, protocol) {
            return Ok((protocol, rest));
        }
    }
    let wrong = match text.split_once("://") {
        Some((scheme, _)) if scheme.len() < 16 && scheme.chars().all(|c| c.is_ascii_graphic()) => {
            Wrong::Scheme(scheme.to_owned())
        }
        Some(_) | None => Wrong::Missing,
    };
    Err(UrlError { protocol: None, part: Part::Scheme, wrong })
}

fn user(protocol: Protocol, text: &str) -> Result<User, UrlError> {
    let wrong = |part, wrong| Err(UrlError { protocol: Some(protocol), part, wrong });
    if protocol == Protocol::Nvme {
        return wrong(Part::User, Wrong::NotHere);
    }
    let (name, secret) = match text.split_once('%') {
        Some((name, secret)) => (name, Some(secret)),
        None => (text, None),
    };
    if name.is_empty() {
        return wrong(Part::User, Wrong::Missing);
    }
    if name.len() > CHAP_LEN_MAX {
        return wrong(Part::User, Wrong::Long(CHAP_LEN_MAX));
    }
    let secret = match secret.map(decode) {
        None => None,
        Some(None) => return wrong(Part::Password, Wrong::Escape),
        Some(Some(bytes)) => Some(Secret::new(bytes)),
    };
    match secret.as_ref().map_or(1, |secret| secret.expose().len()) {
        0 => return wrong(Part::Password, Wrong::Missing),
        1..=CHAP_LEN_MAX => {}
        _ => return wrong(Part::Password, Wrong::Long(CHAP_LEN_MAX)),
    }
    Ok(User { name: name.to_owned(), secret })
}

fn place_of(protocol: Protocol, text: &str) -> Result<(Machine, Option<u16>), UrlError> {
    let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or(wrong(Part::Host, Wrong::Bracket))?;
        let port = match after.strip_prefix(':') {
            Some(port) => Some(port),
            None if after.is_empty() => None,
            None => return Err(wrong(Part::Host, Wrong::Bracket)),
        };
        let (address, zone) = inside.split_once('%').map_or((inside, ""), |(address, zone)| (address, zone));
        let address: Ipv6Addr = address.parse().map_err(|_| wrong(Part::Host, Wrong::Bracket))?;
        // RFC 6874 writes the zone's sign as %25.
        let zone = zone.strip_prefix("25").unwrap_or(zone);
        let machine = if inside.contains('%') {
            Machine::Name(format!("{address}%{zone}"))
        } else {
            Machine::Address(IpAddr::V6(address))
        };
        (machine, port)
    } else {
        let (host, port) = match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(wrong(Part::Host, Wrong::Bracket)),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if host.is_empty() {
            return Err(wrong(Part::Host, Wrong::Missing));
        }
        let good = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !host.chars().all(good) || host.len() > 255 {
            return Err(wrong(Part::Host, Wrong::Character));
        }
        (host.parse().map_or_else(|_| Machine::Name(host.to_owned()), Machine::Address), port)
    };
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(wrong(Part::Port, Wrong::Range(1, 65_535))),
    };
    Ok((host, port))
}

fn target(protocol: Protocol, path: &str) -> Result<Target, UrlError> {
    let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(Target::Discovery);
    }
    let (name, unit) = match path.split_once('/') {
        Some((name, unit)) => (name, Some(unit)),
        None => (path, None),
    };
    let name = decode(name)
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(wrong(Part::Target, Wrong::Escape))?;
    let number = |least: u32, most: u32| match unit.map(str::parse::<u32>) {
        None => Ok(None),
        Some(Ok(unit)) if (least..=most).contains(&unit) => Ok(Some(unit)),
        Some(_) => Err(wrong(Part::Unit, Wrong::Range(least, most))),
    };
    match protocol {
        Protocol::Iscsi => {
            let name = IscsiName::parse(&name).map_err(|_| wrong(Part::Target, Wrong::Name))?;
            Ok(Target::Iscsi(name, number(0, LUN_MAX)?.map(|lun| lun as u16)))
        }
        Protocol::Nvme => {
            let name = Nqn::parse(&name).map_err(|_| wrong(Part::Target, Wrong::Name))?;
            if name.is_discovery() && unit.is_none() {
                return Ok(Target::Discovery);
            }
            Ok(Target::Nvme(name, number(1, u32::MAX - 1)?))
        }
    }
}

/// Undoes percent escapes.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |c: u8| char::from(c).to_digit(16);
        bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
        rest = after;
    }
    Some(bytes)
}
