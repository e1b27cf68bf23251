//! Socket calls that both worlds make: listening, accepting, connecting, options, closing.

use std::io;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use buf::Errno;
use endpoint::{AcceptedSocket, DialSource, ListenerId};

use crate::config::{ListenConfig, TcpOptions};

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 1024;

/// A TCP socket for such an address, without blocking.
fn new_tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket that listens, without blocking.
pub(crate) fn listen(how: &ListenConfig) -> io::Result<TcpListener> {
    let fd = new_tcp_socket(how.address)?;
    set_sockopt(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    if how.address.is_ipv6() {
        // So that 0.0.0.0 and [::] can be given side by side.
        set_sockopt(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &1i32)?;
    }
    // Set before listening: accepted sockets inherit all of it.
    set_options(&fd, how.address.is_ipv4(), &how.tcp)?;
    bind(&fd, how.address)?;
    // SAFETY: no pointers are passed.
    if unsafe { libc::listen(fd.as_raw_fd(), BACKLOG) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpListener::from(fd))
}

fn bind(fd: &OwnedFd, address: SocketAddr) -> io::Result<()> {
    with_sockaddr(address, |name, len| {
        // SAFETY: `name` is a whole address of the length given.
        unsafe { libc::bind(fd.as_raw_fd(), name, len) }
    })
}

/// Calls with an address in the system's form.
fn with_sockaddr(
    address: SocketAddr,
    call: impl FnOnce(*const libc::sockaddr, libc::socklen_t) -> libc::c_int,
) -> io::Result<()> {
    let rc = match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            call((&raw const name).cast(), size_of_val(&name) as libc::socklen_t)
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: Ipv6Addr::octets(v6.ip()) },
                sin6_scope_id: v6.scope_id(),
            };
            call((&raw const name).cast(), size_of_val(&name) as libc::socklen_t)
        }
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether the system takes these options for connections outwards.
pub(crate) fn check_options(tcp_options: &TcpOptions) -> io::Result<()> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    set_options(&new_tcp_socket(any)?, true, tcp_options)
}

/// Whether the system takes these options for an address that is listened on already.
pub(crate) fn try_listen_options(how: &ListenConfig) -> io::Result<()> {
    set_options(&new_tcp_socket(how.address)?, how.address.is_ipv4(), &how.tcp)
}

/// Gives a socket that listens other options, for connections that it accepts from now on. Without `dscp` and
/// `keep_alive` they are off again; the others cannot be taken back.
pub(crate) fn change_options(listener: &TcpListener, tcp: &TcpOptions) -> io::Result<()> {
    let is_ipv4 = listener.local_addr()?.is_ipv4();
    if tcp.keep_alive.is_none() {
        set_sockopt(listener, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &0i32)?;
    }
    set_options(listener, is_ipv4, &TcpOptions { dscp: tcp.dscp.or(Some(0)), ..tcp.clone() })
}

/// A socket that connects: it becomes writable when that has ended ([`finish_connect`] says how), and does
/// not block.
pub(crate) fn start_connect(
    to: SocketAddr,
    source: DialSource,
    options: &TcpOptions,
) -> Result<OwnedFd, Errno> {
    let start = || {
        let fd = new_tcp_socket(to)?;
        set_options(&fd, to.is_ipv4(), options)?;
        bind_source(&fd, to, source)?;
        let begun = with_sockaddr(to, |name, len| {
            // SAFETY: `name` is a whole address of the length given.
            unsafe { libc::connect(fd.as_raw_fd(), name, len) }
        });
        match begun {
            // A signal does not stop what it has begun.
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EINPROGRESS | libc::EINTR)) => Err(e),
            Ok(()) | Err(_) => Ok(fd),
        }
    };
    start().map_err(|e: io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
}

/// Fixes where a socket that is about to connect leaves this machine.
fn bind_source(fd: &OwnedFd, to: SocketAddr, source: DialSource) -> io::Result<()> {
    if let Some(interface) = source.interface {
        set_sockopt_bytes(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_str().as_bytes())?;
    }
    let Some(address) = source.address else { return Ok(()) };
    if address.is_ipv4() != to.is_ipv4() {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    }
    // The port is then chosen when it connects, so that one port serves connections to several places; a system that
    // does not know that chooses it now.
    let _ = set_sockopt(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1i32);
    bind(fd, SocketAddr::new(address, 0))
}

/// How connecting has ended, with our address; from then on the socket may block.
pub(crate) fn finish_connect(fd: &OwnedFd, to: SocketAddr) -> Result<SocketAddr, Errno> {
    // SAFETY: the descriptor is open while `fd` is borrowed, and is not closed by this value.
    let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd.as_raw_fd()) });
    let errno = |e: io::Error| Errno(e.raw_os_error().unwrap_or(libc::EIO));
    if let Some(e) = socket.take_error().map_err(errno)? {
        return Err(errno(e));
    }
    // A peer that is gone again has no name any more.
    socket.peer_addr().map_err(|_| Errno(libc::ECONNRESET))?;
    let local = socket.local_addr().map_err(errno)?;
    // Where nobody listens on a port that the system gives away by itself, a socket may meet itself.
    if local == to {
        reset_on_close(fd);
        return Err(Errno(libc::ECONNREFUSED));
    }
    // The ring waits for bytes by itself only where a socket may block.
    socket.set_nonblocking(false).map_err(errno)?;
    Ok(local)
}

fn set_options(fd: &impl AsRawFd, is_ipv4: bool, tcp: &TcpOptions) -> io::Result<()> {
    set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
    if let Some(name) = &tcp.congestion {
        set_sockopt_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes())?;
    }
    if let Some(bytes) = tcp.send_buffer {
        set_sockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)?;
    }
    if let Some(bytes) = tcp.recv_buffer {
        set_sockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &bytes)?;
    }
    if let Some(dscp) = tcp.dscp {
        if dscp > 63 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        // The lower two bits are ECN's.
        let class = i32::from(dscp) << 2;
        match is_ipv4 {
            true => set_sockopt(fd, libc::IPPROTO_IP, libc::IP_TOS, &class)?,
            false => set_sockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class)?,
        }
    }
    if let Some(probe) = tcp.keep_alive {
        set_sockopt(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32)?;
        set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &i32::from(probe.idle_s))?;
        set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &i32::from(probe.interval_s))?;
        set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &i32::from(probe.count))?;
    }
    Ok(())
}

fn set_sockopt<T: Copy>(fd: &impl AsRawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let at = (value as *const T).cast::<u8>();
    // SAFETY: the value is a plain number (the callers pass integers or a `linger`), readable for
    // its size.
    set_sockopt_bytes(fd, level, name, unsafe { std::slice::from_raw_parts(at, mem::size_of::<T>()) })
}

fn set_sockopt_bytes(fd: &impl AsRawFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the value is readable for the length given.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a socket a send buffer of so many bytes, which the kernel doubles and does not change any more.
pub(crate) fn set_send_buffer(fd: &impl AsRawFd, bytes: i32) -> io::Result<()> {
    set_sockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)
}

/// Lets the kernel choose the size of a send buffer again.
pub(crate) fn unset_send_buffer(fd: &impl AsRawFd) -> io::Result<()> {
    let locked = buffer_locks(fd)?;
    set_sockopt(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &(locked & !SEND_BUFFER_LOCKED))
}

/// Whether a size was set that the kernel does not change; also where it does not say (before Linux 5.14).
pub(crate) fn is_send_buffer_set(fd: &impl AsRawFd) -> bool {
    buffer_locks(fd).map_or(true, |locked| locked & SEND_BUFFER_LOCKED != 0)
}

/// Of SO_BUF_LOCK.
const SEND_BUFFER_LOCKED: u32 = 1;

fn buffer_locks(fd: &impl AsRawFd) -> io::Result<u32> {
    let mut bytes = [0; size_of::<u32>()];
    let len = get_sockopt_bytes(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut bytes)?;
    if len == bytes.len() { Ok(u32::from_ne_bytes(bytes)) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// The shortest time in which the peer has answered, in microseconds; `None`: it has not yet, or the system does not
/// say.
pub(crate) fn min_rtt_us(fd: RawFd) -> Option<u32> {
    /// Where `tcpi_min_rtt` lies in `struct tcp_info`, and its end.
    const MIN_RTT: std::ops::Range<usize> = 148..152;
    let mut info = [0; MIN_RTT.end];
    let len = get_sockopt_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let min =
        info.get(MIN_RTT).filter(|_| len >= MIN_RTT.end)?.first_chunk().copied().map(u32::from_ne_bytes)?;
    // Nothing was measured.
    (min != u32::MAX).then_some(min)
}

/// What an option says, as far as it fits; gives its bytes.
fn get_sockopt_bytes(fd: RawFd, level: i32, name: i32, into: &mut [u8]) -> io::Result<usize> {
    let mut len = into.len() as libc::socklen_t;
    // SAFETY: the buffer is writable for the length given, and so is the length.
    let rc = unsafe { libc::getsockopt(fd, level, name, into.as_mut_ptr().cast(), &raw mut len) };
    if rc == 0 { Ok(len as usize) } else { Err(io::Error::last_os_error()) }
}

/// What accepting brought.
pub(crate) enum AcceptOutcome {
    Socket(OwnedFd, AcceptedSocket),
    /// Nobody waits.
    Empty,
    /// No descriptors or memory are left: try again later.
    Exhausted,
}

/// Takes one connection that waits.
pub(crate) fn accept(listener: &TcpListener, id: ListenerId) -> AcceptOutcome {
    loop {
        match listener.accept() {
            // A peer that is gone already has no local address either.
            Ok((stream, peer)) => {
                if let Ok(local) = stream.local_addr() {
                    let cpu = incoming_cpu(&stream);
                    return AcceptOutcome::Socket(
                        stream.into(),
                        AcceptedSocket { listener: id, local, peer, cpu },
                    );
                }
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => return AcceptOutcome::Empty,
                Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                    return AcceptOutcome::Exhausted;
                }
                // Errors of the connection that waited, not of the listener (accept(2)).
                Some(_) | None if is_connection_error(&e) => {}
                Some(_) | None => return AcceptOutcome::Exhausted,
            },
        }
    }
}

/// A descriptor of no use but to be given up; `None` if there is none left.
pub(crate) fn open_spare_fd() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// The processor that takes in what comes by a socket; `None`: nothing has come yet, or the system does not
/// say. What it tells of nobody is -1.
fn incoming_cpu(socket: &impl AsFd) -> Option<u32> {
    rustix::net::sockopt::socket_incoming_cpu(socket).ok().filter(|cpu| *cpu <= i32::MAX as u32)
}

fn is_connection_error(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
        )
    )
}

/// Makes a listening socket refuse connections from now on, who holds it still.
pub(crate) fn stop_listening(socket: &TcpListener) {
    // SAFETY: no pointers are passed. It cannot fail on a socket that listens.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RD) };
}

/// Says that we send no more. What was written before is still delivered.
pub(crate) fn shutdown_write(fd: &OwnedFd) {
    // SAFETY: no pointers are passed. It fails only if the connection is gone, which is as good.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

/// Makes the coming close a reset.
pub(crate) fn reset_on_close(fd: &OwnedFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // It cannot fail on a socket; if it did, the close would be an ordinary one.
    let _ = set_sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// Swallows what the peer still sends; true when it has ended.
pub(crate) fn discard_received(fd: RawFd) -> bool {
    /// So that one flooding peer holds no shard up.
    const CALLS_MAX: usize = 16;
    let mut sink = MaybeUninit::<[u8; 64 << 10]>::uninit();
    for _ in 0..CALLS_MAX {
        // SAFETY: the buffer is writable for its length. With MSG_TRUNC a TCP socket drops the bytes and writes
        // nothing to it (tcp(7)).
        let got = unsafe {
            let at = sink.as_mut_ptr().cast();
            libc::recv(fd, at, size_of_val(&sink), libc::MSG_TRUNC | libc::MSG_DONTWAIT)
        };
        match got {
            0 => return true,
            1.. => {}
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN) => return false,
                Some(libc::EINTR) => {}
                Some(_) | None => return true,
            },
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use endpoint::InterfaceName;

    use super::*;

    /// Over loopback a connection's bytes come in on the processor that the peer runs on.
    #[test]
    fn an_accepted_socket_says_on_which_processor_its_bytes_come_in() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut seen = 0;
        for core in 0..cores {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            let peer = std::thread::spawn(move || {
                // Which of the machine's cores this process may use is not said.
                crate::clock::pin_to_core(core).ok().map(|()| TcpStream::connect(to).unwrap())
            });
            let Some(_peer) = peer.join().unwrap() else { continue };
            let AcceptOutcome::Socket(_, accepted) = accept(&listener, ListenerId(0)) else {
                panic!("somebody has connected")
            };
            assert_eq!(accepted.cpu, Some(core as u32));
            seen += 1;
        }
        assert!(seen > 0 || cores == 1, "this process may use one of the first {cores} cores");
        let fresh = new_tcp_socket("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(incoming_cpu(&fresh).is_none_or(|cpu| (cpu as usize) < 4096), "-1 is no processor");
    }

    #[test]
    fn a_connection_leaves_by_the_address_and_the_interface_that_were_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let options = TcpOptions::default();
        let address = |text: &str| Some(text.parse().unwrap());
        let source =
            |address, interface: &str| DialSource { address, interface: InterfaceName::parse(interface) };
        for source in [source(address("127.0.0.9"), ""), source(address("127.0.0.9"), "lo")] {
            let socket = start_connect(to, source, &options).unwrap();
            let (_, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), source.address.unwrap());
            assert_eq!(finish_connect(&socket, to).unwrap(), peer);
        }
        let failed = |source| start_connect(to, source, &options).map(drop);
        // Not of this machine (RFC 5737), of the other family, no such interface.
        assert_eq!(failed(source(address("192.0.2.1"), "")), Err(Errno(libc::EADDRNOTAVAIL)));
        assert_eq!(failed(source(address("::1"), "")), Err(Errno(libc::EAFNOSUPPORT)));
        assert_eq!(failed(source(None, "none0")), Err(Errno(libc::ENODEV)));
    }

    #[test]
    fn a_socket_that_meets_itself_is_refused() {
        let socket = new_tcp_socket("127.0.0.1:0".parse().unwrap()).unwrap();
        bind(&socket, "127.0.0.1:0".parse().unwrap()).unwrap();
        let socket = TcpListener::from(socket);
        let own = socket.local_addr().unwrap();
        let socket = OwnedFd::from(socket);
        // SAFETY: `name` is a whole address of the length given.
        let _ = with_sockaddr(own, |name, len| unsafe { libc::connect(socket.as_raw_fd(), name, len) });
        assert_eq!(finish_connect(&socket, own), Err(Errno(libc::ECONNREFUSED)));
    }
}
