//! Start parameters of the reactor.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::library::DiskSource;

/// How the real world is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cores to use, one shard each, in shard order. Empty: one shard, bound to no core.
    pub cores: Vec<usize>,
    /// Which system interface to use.
    pub io: IoChoice,
    /// Size of each shard's pool in bytes (rounded up to whole MiB).
    pub pool_bytes: usize,
    /// Links per shard, connections that are being made among them; a socket that comes beyond it is
    /// reset, a connection outwards fails with EMFILE. By default 131,072, as many as a shard has sessions and queues.
    /// A link takes memory when it is there; what a process may have open, `RLIMIT_NOFILE`, is mostly less.
    pub links_max: usize,
    /// Files and devices that every shard knows before it takes its first connection; `DiskId` counts
    /// this list. At most 4096.
    pub disks: Vec<DiskSource>,
    /// Where to listen; `ListenerId` counts this list.
    pub listeners: Vec<ListenConfig>,
    /// Options of the connections that the shards make outwards.
    pub outward: TcpOptions,
    /// The longest time, in nanoseconds, that a shard polls before it sleeps; 0 turns polling off.
    pub poll_ns_max: u64,
    /// How long a closed link may take to deliver what was handed to it, and its peer to end too.
    pub linger: Duration,
    /// Links per shard that may linger so at a time. One more costs the oldest of them its place, with a reset;
    /// so do connections that come when the process has no descriptor left.
    pub closing_max: usize,
    /// Called on a shard's thread when a connection found no descriptor or memory, at most once a minute and
    /// shard: for the log.
    pub on_exhausted: Option<fn()>,
    /// Threads, shared by all shards, for calls that have no asynchronous form (1 to 64).
    pub blocking_threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            cores: Vec::new(),
            io: IoChoice::Auto,
            pool_bytes: 64 << 20,
            links_max: 128 << 10,
            disks: Vec::new(),
            listeners: Vec::new(),
            outward: TcpOptions::default(),
            poll_ns_max: 50_000,
            linger: Duration::from_secs(5),
            closing_max: 1024,
            on_exhausted: None,
            blocking_threads: 4,
        }
    }
}

/// Which system interface is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring if the kernel lets us, else epoll.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// Which system interface is in use, and why.
#[derive(Debug)]
pub enum IoKind {
    /// io_uring.
    Uring,
    /// epoll, because it was asked for.
    Epoll,
    /// epoll, because io_uring failed this way.
    EpollInstead(io::Error),
}

impl fmt::Display for IoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoKind::Uring => f.write_str("io_uring"),
            IoKind::Epoll => f.write_str("epoll, as asked"),
            IoKind::EpollInstead(why) => write!(f, "epoll, since io_uring is not to be had: {why}"),
        }
    }
}

/// One address to listen on.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// IPv4 or IPv6; port 0 lets the system choose.
    pub address: SocketAddr,
    /// Options of the sockets that it accepts.
    pub tcp: TcpOptions,
}

impl From<SocketAddr> for ListenConfig {
    fn from(address: SocketAddr) -> Self {
        ListenConfig { address, tcp: TcpOptions::default() }
    }
}

/// TCP options of a portal, or of connections outwards. TCP_NODELAY is always on: answers are gathered above, so waiting for more
/// bytes gains nothing and stalls on a peer's delayed acknowledgement.
#[derive(Clone, Debug, Default)]
pub struct TcpOptions {
    /// TCP_CONGESTION: an algorithm that the kernel knows, e.g. `cubic`.
    pub congestion: Option<String>,
    /// SO_SNDBUF in bytes (the kernel doubles it).
    pub send_buffer: Option<u32>,
    /// SO_RCVBUF in bytes (the kernel doubles it).
    pub recv_buffer: Option<u32>,
    /// Differentiated services code point, 0 to 63 (RFC 2474).
    pub dscp: Option<u8>,
    /// Keep-alive probes.
    pub keep_alive: Option<TcpKeepAlive>,
}

/// When and how often to probe a silent peer. Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpKeepAlive {
    /// TCP_KEEPIDLE: silence before the first probe, 1 to 32767.
    pub idle_s: u16,
    /// TCP_KEEPINTVL: between probes, 1 to 32767.
    pub interval_s: u16,
    /// TCP_KEEPCNT: unanswered probes until the link fails, 1 to 127.
    pub count: u8,
}
