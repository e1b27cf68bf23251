//! The plan: what the daemon is to serve, as plain data that has passed every check.
//!
//! Made once from the command line, the configuration files and the state directory; the engine
//! takes it as it is. Invariant: names are unique, every reference resolves, every number is in
//! its range, and no listener beyond loopback is open to strangers unless the operator said so.

use std::{fmt, net::SocketAddr, time::Duration};

use zeroize::Zeroizing;

use crate::{name::VolumeName, network::Network, spec::Spec};

/// All that is to be served.
#[derive(Clone, Debug)]
pub struct Plan {
    /// This machine's name inside default target names.
    pub node: Option<VolumeName>,
    /// Volumes, in the order in which they were named.
    pub volumes: Vec<Volume>,
    /// Listeners.
    pub portals: Vec<Portal>,
    /// Targets, those of the configuration first, then the default one of each other volume.
    pub targets: Vec<Target>,
    /// Who may reach what; the first host that matches and has a grant decides.
    pub hosts: Vec<Host>,
    /// Authentication that is not of one host.
    pub auth: Auth,
    /// Limits of the whole daemon.
    pub limits: Limits,
    /// Cores to run on, ascending; empty: every core that the process may use.
    pub cores: Vec<usize>,
    /// How bytes are moved.
    pub io: IoWorld,
}

/// Who named a volume, which decides whether it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file or the command line: it says so again at the next start.
    Configured,
    /// `volume create`: the state directory remembers it.
    Created,
}

/// A volume to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name, unique.
    pub name: VolumeName,
    /// What it is.
    pub spec: Spec,
    /// Who named it.
    pub origin: Origin,
}

/// The world that moves the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum IoWorld {
    /// io_uring where the kernel allows it, epoll elsewhere.
    #[default]
    Auto,
    /// io_uring, or fail at start.
    Uring,
    /// epoll.
    Epoll,
}

impl IoWorld {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            IoWorld::Auto => "auto",
            IoWorld::Uring => "uring",
            IoWorld::Epoll => "epoll",
        }
    }
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Where it listens; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Target portal group tag (RFC 7143 §13.9): connections of one session may spread over portals of one tag.
    pub tag: u16,
    /// Options of its sockets.
    pub tcp: TcpOptions,
}

/// Socket options of a portal; `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Congestion control algorithm, as in `net.ipv4.tcp_available_congestion_control`.
    pub congestion: Option<String>,
    /// SO_SNDBUF, bytes.
    pub send_buffer: Option<u32>,
    /// SO_RCVBUF, bytes.
    pub receive_buffer: Option<u32>,
    /// Differentiated services code point, 0..=63.
    pub dscp: Option<u8>,
    /// Idle time before TCP keep-alive probes; zero turns them off.
    pub keepalive: Option<Duration>,
}

/// A target and what it exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name, normalized, unique.
    pub name: String,
    /// TargetAlias, at most 255 bytes of UTF-8.
    pub alias: Option<String>,
    /// Tags of the portal groups through which it is reached; never empty.
    pub portals: Vec<u16>,
    /// Logical units; numbers are unique within the target.
    pub luns: Vec<Lun>,
    /// Every initiator may reach it, whether a host names it or not.
    pub open: bool,
    /// What it agrees to at login.
    pub negotiation: Negotiation,
    /// Commands that one session may have outstanding.
    pub commands: u16,
    /// What INQUIRY shows.
    pub inquiry: Inquiry,
    /// Initiators may set path states (SET TARGET PORT GROUPS).
    pub explicit_alua: bool,
    /// Initiators are sent elsewhere at login.
    pub redirect: Option<Redirect>,
}

/// One logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lun {
    /// Logical unit number, 0..=16383 (flat space addressing, SAM-5 §4.7.7).
    pub lun: u16,
    /// The volume behind it.
    pub volume: VolumeName,
    /// Nobody writes through this logical unit.
    pub read_only: bool,
}

/// Vendor and product identification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// At most 8 printable ASCII characters.
    pub vendor: String,
    /// At most 16 printable ASCII characters.
    pub product: String,
}

impl Default for Inquiry {
    fn default() -> Self {
        Inquiry { vendor: "BLKWIRE".to_owned(), product: "Virtual Disk".to_owned() }
    }
}

/// What to say about a digest (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// Never: only None is accepted.
    Off,
    /// As the initiator prefers.
    #[default]
    Allow,
    /// Always: an initiator that does not offer CRC32C is refused.
    Require,
}

/// Bounds of a target's negotiated keys (RFC 7143 §13); the initiator may ask for less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiation {
    /// HeaderDigest.
    pub header_digest: DigestPolicy,
    /// DataDigest.
    pub data_digest: DigestPolicy,
    /// MaxConnections, 1..=65535.
    pub max_connections: u16,
    /// InitialR2T: whether to insist on R2T before any unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// FirstBurstLength, 512..=2^24 - 1 bytes, at most `max_burst`.
    pub first_burst: u32,
    /// MaxBurstLength, 512..=2^24 - 1 bytes.
    pub max_burst: u32,
    /// The target's MaxRecvDataSegmentLength, 512..=2^24 - 1 bytes.
    pub max_receive: u32,
    /// MaxOutstandingR2T, 1..=65535.
    pub max_outstanding_r2t: u16,
}

impl Default for Negotiation {
    fn default() -> Self {
        Negotiation {
            header_digest: DigestPolicy::Allow,
            data_digest: DigestPolicy::Allow,
            max_connections: 4,
            initial_r2t: false,
            immediate_data: true,
            first_burst: 16 << 10,
            max_burst: 1 << 20,
            max_receive: 256 << 10,
            max_outstanding_r2t: 4,
        }
    }
}

/// Commands per session where the configuration says nothing.
pub const COMMANDS_DEFAULT: u16 = 128;

/// Where initiators are sent instead (RFC 7143 §11.13.5, status 0101h and 0102h).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The other portal.
    pub address: SocketAddr,
    /// "Moved permanently" instead of "moved temporarily".
    pub permanent: bool,
}

/// A machine that connects: its names, its credentials and what it may reach.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name in reports, unique.
    pub name: String,
    /// Initiator names, normalized; empty: any.
    pub iqns: Vec<String>,
    /// Networks it connects from; empty: any.
    pub sources: Vec<Network>,
    /// Its credentials; empty: those of [`Auth::chap`].
    pub chap: Vec<Credentials>,
    /// What it may reach.
    pub grants: Vec<Grant>,
}

/// Permission to reach a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The target; `None`: every target, also those created later.
    pub target: Option<String>,
    /// The logical units; `None`: all.
    pub luns: Option<Vec<u16>>,
    /// Writes are refused.
    pub read_only: bool,
}

/// Authentication that is not of one host.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    /// Credentials of initiators whose host has none of its own; empty: such initiators need none.
    pub chap: Vec<Credentials>,
    /// Credentials for discovery sessions; empty: discovery needs none.
    pub discovery: Vec<Credentials>,
    /// AuthMethod values that are allowed where credentials exist; empty: [`METHODS_DEFAULT`]. Their
    /// order means nothing: RFC 7143 §6.2.1 lets that of the initiator decide.
    pub methods: Vec<AuthMethod>,
    /// CHAP algorithms, most wanted first; empty: [`HASHES_DEFAULT`].
    pub hashes: Vec<Hash>,
}

impl Auth {
    /// The methods to offer to an initiator that has credentials.
    pub fn methods(&self) -> &[AuthMethod] {
        if self.methods.is_empty() { &METHODS_DEFAULT } else { &self.methods }
    }

    /// The CHAP algorithms to accept.
    pub fn hashes(&self) -> &[Hash] {
        if self.hashes.is_empty() { &HASHES_DEFAULT } else { &self.hashes }
    }
}

/// What initiators with credentials must use where the configuration says nothing.
pub const METHODS_DEFAULT: [AuthMethod; 1] = [AuthMethod::Chap];

/// CHAP algorithms where the configuration says nothing: all, strongest first.
pub const HASHES_DEFAULT: [Hash; 4] = [Hash::Sha3_256, Hash::Sha256, Hash::Sha1, Hash::Md5];

/// AuthMethod (RFC 7143 §12.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// Challenge handshake.
    Chap,
    /// No authentication.
    None,
}

/// A CHAP algorithm (numbers of the IANA registry "PPP Authentication Algorithms").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// 5
    Md5,
    /// 6
    Sha1,
    /// 7
    Sha256,
    /// 8
    Sha3_256,
}

/// A CHAP user, and optionally how the target proves itself to it.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// CHAP_N of the initiator.
    pub user: String,
    /// Its secret.
    pub secret: Secret,
    /// CHAP_N and secret of the target; initiators may then ask for mutual authentication.
    pub mutual: Option<(String, Secret)>,
}

/// A secret. It is wiped when dropped and never printed; it cannot be serialized.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over the bytes of a secret.
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes, for the CHAP computation and nothing else.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Limits of the whole daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Idle time after which an initiator is asked for a sign of life (NOP-In); zero: never.
    pub nop_interval: Duration,
    /// A connection that has not answered by then is closed.
    pub nop_timeout: Duration,
    /// Payload memory of each core, bytes.
    pub memory: u64,
    /// Sessions of the whole daemon, 1..=65535; `None`: as many as iSCSI can name.
    pub sessions: Option<u16>,
    /// From the accepted connection to the end of the login.
    pub login_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            nop_interval: Duration::from_secs(30),
            nop_timeout: Duration::from_secs(30),
            memory: 128 << 20,
            sessions: None,
            login_timeout: Duration::from_secs(15),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_do_not_print() {
        let credentials = Credentials {
            user: "alice".into(),
            secret: Secret::new(b"correct horse".to_vec()),
            mutual: Some(("target".into(), Secret::new(b"battery staple".to_vec()))),
        };
        let shown = format!("{credentials:?}");
        assert!(shown.contains("alice"));
        assert!(!shown.contains("horse") && !shown.contains("staple"), "{shown}");
        assert!(!shown.contains("99"), "no bytes either: {shown}");
    }
}
