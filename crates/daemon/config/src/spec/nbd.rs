//! Exports of NBD servers in a SPEC, as the NBD URI specification writes them:
//!
//! ```text
//! nbd://HOST[:PORT][/EXPORT]
//! nbd+unix:///[EXPORT]?socket=PATH
//! ```
//!
//! `%` and two hexadecimal digits encode a byte. Without an EXPORT the server's default one is meant. Invariant: what is
//! kept parses to the same again.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use multipath::url::percent_decode;

use super::{SpecError, VolumeSource};

/// The keys that mean something for an export: its size and cache are the server's affair.
pub(super) const OWN_KEYS: [&str; 14] = [
    "queue_timeout",
    "block",
    "physical",
    "ro",
    "uuid",
    "thin",
    "removable",
    "tas",
    "sanitize_rate",
    "iops_limit",
    "iops_burst",
    "bandwidth_limit",
    "bandwidth_burst",
    "persist",
];

/// How long I/O waits for the server, unless something else is said: less than the 30 s after which hosts give up.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// The port of NBD (IANA).
const PORT: u16 = 10_809;
/// Longest URL, bytes.
const URL_BYTES_MAX: usize = 8192;
/// Longest path of a UNIX socket, bytes (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;

const TCP: &str = "nbd://";
const UNIX: &str = "nbd+unix://";
/// What is told apart to be refused.
const TLS: [&str; 2] = ["nbds://", "nbds+unix://"];

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServer {
    /// At a TCP port of a host, which is a name or an address.
    Tcp(String, u16),
    /// At a UNIX socket.
    Unix(PathBuf),
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdExport {
    /// As it was written.
    url: String,
    /// Its server.
    pub server: NbdServer,
    /// Its name there; empty: the default export.
    pub export: String,
    /// How long an operation may wait for the server before it fails with a path error.
    pub queue_timeout: Duration,
}

/// Whether an export is meant.
pub(super) fn is_meant(text: &str) -> bool {
    [TCP, UNIX].iter().chain(&TLS).any(|scheme| text.starts_with(scheme))
}

impl NbdExport {
    /// Reads a URL.
    pub(super) fn parse(url: &str) -> Result<Self, SpecError> {
        let bad = |why: &str| SpecError::BadUrl(format!("{url}: {why}"));
        if url.len() > URL_BYTES_MAX || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(bad("a URL has no spaces, and at most 8192 bytes"));
        }
        if TLS.iter().any(|scheme| url.starts_with(scheme)) {
            return Err(bad("TLS is not supported for NBD: use nbd+unix://, or a tunnel to the server"));
        }
        let decoded = |part: &str| percent_decode(part).and_then(|bytes| String::from_utf8(bytes).ok());
        let (server, export) = if let Some(rest) = url.strip_prefix(UNIX) {
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            let socket = query.strip_prefix("socket=").filter(|socket| !socket.contains('&'));
            let socket = socket.and_then(decoded).filter(|socket| socket.starts_with('/'));
            let socket =
                socket.filter(|socket| socket.len() <= SOCKET_PATH_BYTES_MAX && !socket.contains('\0'));
            let (Some(socket), Some(export)) = (socket, path.strip_prefix('/')) else {
                return Err(bad(
                    "write nbd+unix:///EXPORT?socket=PATH, with an absolute path of at most 107 bytes",
                ));
            };
            (NbdServer::Unix(socket.into()), export)
        } else {
            let rest = url.strip_prefix(TCP).unwrap_or_default();
            let (place, export) = rest.split_once('/').unwrap_or((rest, ""));
            let Some(server) = parse_place(place).filter(|_| !rest.contains('?')) else {
                return Err(bad("write nbd://HOST[:PORT]/EXPORT, and an IPv6 address in brackets"));
            };
            (server, export)
        };
        let export = decoded(export).filter(|export| !export.contains('\0'));
        let export =
            export.ok_or_else(|| bad("% must be followed by two hexadecimal digits, and names are UTF-8"))?;
        if export.len() > 4096 {
            return Err(bad("the name of an export has at most 4096 bytes"));
        }
        Ok(NbdExport { url: url.to_owned(), server, export, queue_timeout: QUEUE_TIMEOUT })
    }

    /// The URL as it was written.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl VolumeSource {
    /// The TCP port of its NBD server, if it has one.
    pub fn nbd_port(&self) -> Option<u16> {
        match self {
            VolumeSource::Nbd(export) => match export.server {
                NbdServer::Tcp(_, port) => Some(port),
                NbdServer::Unix(_) => None,
            },
            _ => None,
        }
    }
}

/// `HOST`, `HOST:PORT`, `[IPv6]`, `[IPv6]:PORT`.
fn parse_place(place: &str) -> Option<NbdServer> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_host_char) {
        return None;
    }
    let port = port.map_or(Some(PORT), |port| port.parse().ok()).filter(|port| *port != 0)?;
    Some(NbdServer::Tcp(host.to_owned(), port))
}

/// The SPEC without the keys of other volumes.
impl fmt::Display for NbdExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        if self.queue_timeout != QUEUE_TIMEOUT {
            write!(f, ",queue_timeout={}ms", self.queue_timeout.as_millis())?;
        }
        Ok(())
    }
}
