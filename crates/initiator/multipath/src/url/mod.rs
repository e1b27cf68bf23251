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
use std::path::PathBuf;

use iscsi::name::IscsiName;
use nvme::Nqn;

use crate::path::{PATHS_MAX, Protocol};
use crate::secret::Secret;
pub use error::{UrlError, UrlPart, UrlProblem};
pub use option::{DigestOptions, Options, PathPolicy, SecretSource, parse_time};

/// Most URLs that may be joined: as many as a volume has paths.
pub const URLS_MAX: usize = PATHS_MAX;

/// Most bytes of one URL.
const URL_LEN_MAX: usize = 4096;

/// Most bytes of a CHAP name or secret (RFC 7143 §12.1.3: a text value of at most 255 bytes).
const CHAP_LEN_MAX: usize = 255;

/// The largest LUN of the flat space (SAM-5 §4.7.5.1).
const LUN_MAX: u32 = 16_383;

/// The machine, as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum UrlHost {
    /// An address.
    Address(IpAddr),
    /// A name that somebody must resolve; or an IPv6 address with a zone.
    Name(String),
}

/// What is meant there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSelector {
    /// The discovery service.
    Discovery,
    /// An iSCSI target, and its logical unit if one is named: 0 to 16383.
    Iscsi(IscsiName, Option<u16>),
    /// An NVMe subsystem, and its namespace if one is named: 1 to 4294967294.
    Nvme(Nqn, Option<u32>),
}

/// A user and what stood behind its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserInfo {
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
    pub user: Option<UserInfo>,
    /// Where.
    pub machine: UrlHost,
    /// Which TCP port; the protocol's default if none was written.
    pub port: u16,
    /// What.
    pub target: TargetSelector,
    /// How.
    pub options: Options,
}

/// The file of a secret that a URL names as it is from the directory of who wrote it: another process would read
/// another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativeSecretFile(pub PathBuf);

impl RelativeSecretFile {
    /// The first that one of these URLs names.
    pub fn find_in(urls: &[Url]) -> Option<RelativeSecretFile> {
        let secrets = urls
            .iter()
            .flat_map(|url| [&url.options.secret, &url.options.mutual_secret, &url.options.tls_key])
            .flatten();
        secrets.into_iter().find_map(|secret| match secret {
            SecretSource::File(path) if path.is_relative() => Some(RelativeSecretFile(path.clone())),
            SecretSource::File(_) | SecretSource::Environment(_) => None,
        })
    }
}

impl fmt::Display for RelativeSecretFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.display();
        write!(f, "the daemon, which reads {path}, runs in another directory: give its absolute path")
    }
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
    fn example_url(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi://10.0.0.1:3260/iqn.2026-11.io.blockwire:disk/0",
            Protocol::Nvme => "nvme+tcp://10.0.0.1:4420/nqn.2026-11.io.blockwire:disk/1",
        }
    }
}

impl Url {
    /// Whether `text` means to be one: it begins with a scheme of ours.
    pub fn has_known_scheme(text: &str) -> bool {
        [Protocol::Iscsi, Protocol::Nvme].iter().any(|protocol| strip_scheme(text, *protocol).is_some())
    }

    /// Reads one URL.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let (protocol, rest) = parse_scheme(text)?;
        let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
        if text.len() > URL_LEN_MAX {
            return Err(wrong(UrlPart::Whole, UrlProblem::Long(URL_LEN_MAX)));
        }
        if rest.contains(|c: char| c.is_control() || c == '#') {
            return Err(wrong(UrlPart::Whole, UrlProblem::Character));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            // A slash in a password would make a host of its beginning.
            None if authority.contains('%') && !authority.starts_with('[') && rest.contains('@') => {
                return Err(wrong(UrlPart::Password, UrlProblem::Slash));
            }
            None => (None, authority),
        };
        let user = user.map(|user| self::parse_user(protocol, user)).transpose()?;
        let (machine, port) = parse_host_port(protocol, place)?;
        let target = parse_target_selector(protocol, path)?;
        let discovery = target == TargetSelector::Discovery;
        let port = port.unwrap_or(match (protocol, discovery) {
            (Protocol::Iscsi, _) => 3260,
            (Protocol::Nvme, false) => 4420,
            (Protocol::Nvme, true) => 8009,
        });
        let options = Options::parse(protocol, query)?;
        options.check_consistency(protocol, user.as_ref())?;
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
            let (one, after) = commas.find(|(_, after)| parse_scheme(after).is_ok()).unwrap_or((rest, ""));
            urls.push(Url::parse(one)?);
            rest = after;
        }
        let whole = |wrong| UrlError { protocol: None, part: UrlPart::Whole, wrong };
        match urls.len() {
            0 => return Err(whole(UrlProblem::Missing)),
            1..=URLS_MAX => {}
            _ => return Err(whole(UrlProblem::TooMany(URLS_MAX))),
        }
        Options::merge_volume_options(&mut urls)?;
        Ok(urls)
    }

    /// What is allowed, but probably a mistake, in words, with what to do.
    pub fn warning(&self) -> Option<&'static str> {
        let proves_nobody = self.options.mutual_secret.is_none();
        (self.options.concatenation == Some(true) && proves_nobody).then_some(
            "concat=yes without mutual_secret_file: the controller proves nothing, and a machine between could pass for \
             it, generate the key with this host and read all; give the controller's secret where the network is not \
             trusted",
        )
    }

    /// Whether it names one volume: a logical unit or a namespace.
    pub fn has_volume(&self) -> bool {
        matches!(self.target, TargetSelector::Iscsi(_, Some(_)) | TargetSelector::Nvme(_, Some(_)))
    }

    /// What to say to who gave a URL that names no volume where one is needed.
    pub fn missing_volume_error(&self) -> UrlError {
        let part = if self.target == TargetSelector::Discovery { UrlPart::Target } else { UrlPart::Unit };
        UrlError { protocol: Some(self.protocol), part, wrong: UrlProblem::Missing }
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
            UrlHost::Address(IpAddr::V4(address)) => write!(f, "{address}")?,
            UrlHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            UrlHost::Name(name) if name.contains(':') => write!(f, "[{name}]")?,
            UrlHost::Name(name) => f.write_str(name)?,
        }
        write!(f, ":{}", self.port)?;
        let unit = match &self.target {
            TargetSelector::Discovery => return Ok(()),
            TargetSelector::Iscsi(name, lun) => {
                write!(f, "/{}", name.as_str())?;
                lun.map(u32::from)
            }
            TargetSelector::Nvme(name, nsid) => {
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
fn strip_scheme(text: &str, protocol: Protocol) -> Option<&str> {
    let scheme = protocol.scheme();
    let (start, rest) = text.split_at_checked(scheme.len())?;
    rest.strip_prefix("://").filter(|_| start.eq_ignore_ascii_case(scheme))
}

fn parse_scheme(text: &str) -> Result<(Protocol, &str), UrlError> {
    for protocol in [Protocol::Iscsi, Protocol::Nvme] {
        if let Some(rest) = strip_scheme(text, protocol) {
            return Ok((protocol, rest));
        }
    }
    let wrong = match text.split_once("://") {
        Some((scheme, _)) if scheme.len() < 16 && scheme.chars().all(|c| c.is_ascii_graphic()) => {
            UrlProblem::Scheme(scheme.to_owned())
        }
        Some(_) | None => UrlProblem::Missing,
    };
    Err(UrlError { protocol: None, part: UrlPart::Scheme, wrong })
}

fn parse_user(protocol: Protocol, text: &str) -> Result<UserInfo, UrlError> {
    let wrong = |part, wrong| Err(UrlError { protocol: Some(protocol), part, wrong });
    if protocol == Protocol::Nvme {
        return wrong(UrlPart::User, UrlProblem::NotHere);
    }
    let (name, secret) = match text.split_once('%') {
        Some((name, secret)) => (name, Some(secret)),
        None => (text, None),
    };
    if name.is_empty() {
        return wrong(UrlPart::User, UrlProblem::Missing);
    }
    if name.len() > CHAP_LEN_MAX {
        return wrong(UrlPart::User, UrlProblem::Long(CHAP_LEN_MAX));
    }
    let secret = match secret.map(percent_decode) {
        None => None,
        Some(None) => return wrong(UrlPart::Password, UrlProblem::Escape),
        Some(Some(bytes)) => Some(Secret::new(bytes)),
    };
    match secret.as_ref().map_or(1, |secret| secret.expose().len()) {
        0 => return wrong(UrlPart::Password, UrlProblem::Missing),
        1..=CHAP_LEN_MAX => {}
        _ => return wrong(UrlPart::Password, UrlProblem::Long(CHAP_LEN_MAX)),
    }
    Ok(UserInfo { name: name.to_owned(), secret })
}

fn parse_host_port(protocol: Protocol, text: &str) -> Result<(UrlHost, Option<u16>), UrlError> {
    let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or(wrong(UrlPart::Host, UrlProblem::Bracket))?;
        let port = match after.strip_prefix(':') {
            Some(port) => Some(port),
            None if after.is_empty() => None,
            None => return Err(wrong(UrlPart::Host, UrlProblem::Bracket)),
        };
        let (address, zone) = inside.split_once('%').map_or((inside, ""), |(address, zone)| (address, zone));
        let address: Ipv6Addr = address.parse().map_err(|_| wrong(UrlPart::Host, UrlProblem::Bracket))?;
        // RFC 6874 writes the zone's sign as %25.
        let zone = zone.strip_prefix("25").unwrap_or(zone);
        let machine = if inside.contains('%') {
            UrlHost::Name(format!("{address}%{zone}"))
        } else {
            UrlHost::Address(IpAddr::V6(address))
        };
        (machine, port)
    } else {
        let (host, port) = match text.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(wrong(UrlPart::Host, UrlProblem::Bracket)),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if host.is_empty() {
            return Err(wrong(UrlPart::Host, UrlProblem::Missing));
        }
        let good = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !host.chars().all(good) || host.len() > 255 {
            return Err(wrong(UrlPart::Host, UrlProblem::Character));
        }
        (host.parse().map_or_else(|_| UrlHost::Name(host.to_owned()), UrlHost::Address), port)
    };
    let port = match port.map(str::parse::<u16>) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(_) => return Err(wrong(UrlPart::Port, UrlProblem::Range(1, 65_535))),
    };
    Ok((host, port))
}

fn parse_target_selector(protocol: Protocol, path: &str) -> Result<TargetSelector, UrlError> {
    let wrong = |part, wrong| UrlError { protocol: Some(protocol), part, wrong };
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(TargetSelector::Discovery);
    }
    let (name, unit) = match path.split_once('/') {
        Some((name, unit)) => (name, Some(unit)),
        None => (path, None),
    };
    let name = percent_decode(name)
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(wrong(UrlPart::Target, UrlProblem::Escape))?;
    let number = |least: u32, most: u32| match unit.map(str::parse::<u32>) {
        None => Ok(None),
        Some(Ok(unit)) if (least..=most).contains(&unit) => Ok(Some(unit)),
        Some(_) => Err(wrong(UrlPart::Unit, UrlProblem::Range(least, most))),
    };
    match protocol {
        Protocol::Iscsi => {
            let name = IscsiName::parse(&name).map_err(|_| wrong(UrlPart::Target, UrlProblem::Name))?;
            Ok(TargetSelector::Iscsi(name, number(0, LUN_MAX)?.map(|lun| lun as u16)))
        }
        Protocol::Nvme => {
            let name = Nqn::parse(&name).map_err(|_| wrong(UrlPart::Target, UrlProblem::Name))?;
            if name.is_discovery_service() && unit.is_none() {
                return Ok(TargetSelector::Discovery);
            }
            Ok(TargetSelector::Nvme(name, number(1, u32::MAX - 1)?))
        }
    }
}

/// Undoes percent escapes; `None`: one of them is none.
pub fn percent_decode(text: &str) -> Option<Vec<u8>> {
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
