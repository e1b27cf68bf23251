//! The connection to a server, over TCP or a UNIX socket.
//!
//! Invariant: connecting ends in time, whatever the server does.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The port of NBD (IANA).
pub const PORT: u16 = 10_809;
/// A peer that is silent for so long is asked whether it is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// How often it is asked.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// How many questions without an answer end the connection.
const KEEPALIVE_PROBES: u32 = 3;
/// What is sent and not acknowledged for so long ends the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(25);

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// At a TCP port of a host, which is a name or an address.
    Tcp(String, u16),
    /// At a UNIX socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects until then.
    pub(crate) fn connect(server: &ServerAddress, until: Instant) -> io::Result<Self> {
        match server {
            ServerAddress::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, until)?;
                keep_alive(&stream)?;
                Ok(Socket::Tcp(stream))
            }
            ServerAddress::Unix(path) => {
                // Without waiting: with a full queue the server does not take connections, and may never do.
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                Ok(Socket::Unix(stream))
            }
        }
    }

    /// Each read and write takes so long at most; `None`: as long as it takes.
    fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

fn connect_tcp(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// A machine that is gone ends the connection; a server that is slow does not.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MAX.as_millis() as u32)?;
    Ok(())
}

/// A connection whose reads and writes end then at the latest.
pub(crate) struct Deadline<'a> {
    socket: &'a Socket,
    until: Instant,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(socket: &'a Socket, until: Instant) -> Self {
        Deadline { socket, until }
    }

    fn arm(&self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_timeout(Some(left))
    }
}

/// What the system says when a socket's time is over.
fn timed_out(why: io::Error) -> io::Error {
    if why.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { why }
}

impl Read for Deadline<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.arm()?;
        match self.socket {
            Socket::Tcp(stream) => (&mut &*stream).read(into),
            Socket::Unix(stream) => (&mut &*stream).read(into),
        }
        .map_err(timed_out)
    }
}

impl Write for Deadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.arm()?;
        match self.socket {
            Socket::Tcp(stream) => (&mut &*stream).write(bytes),
            Socket::Unix(stream) => (&mut &*stream).write(bytes),
        }
        .map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
