//! Options of TCP sockets.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use blockwire_reactor::{IoChoice, ListenConfig, TcpKeepAlive, TcpOptions};

use crate::endpoint::*;
use crate::{config, end, frame, spawn, word};

pub fn all_options() -> TcpOptions {
    TcpOptions {
        congestion: Some("reno".into()),
        send_buffer: Some(100_000),
        recv_buffer: Some(200_000),
        dscp: Some(10),
        keep_alive: Some(TcpKeepAlive { idle_s: 30, interval_s: 5, count: 3 }),
    }
}

/// Checks that this process has a socket with this peer and all these options.
pub fn assert_options(peer: SocketAddr, is_ipv4: bool) {
    let found = (3..4096).find(|&fd| {
        // SAFETY: the descriptor is only borrowed to ask for its peer; a wrong one gives an error.
        let other =
            std::mem::ManuallyDrop::new(unsafe { <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(fd) });
        other.peer_addr().is_ok_and(|name| name == peer)
    });
    let found = found.expect("the socket is ours");
    let option = |level, name| {
        let (mut value, mut len) = (0i32, 4u32);
        // SAFETY: the value is writable for its length.
        let rc = unsafe { libc::getsockopt(found, level, name, (&raw mut value).cast(), &mut len) };
        assert_eq!(rc, 0);
        value
    };
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 30);
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 5);
    assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 3);
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_SNDBUF), 200_000);
    assert_eq!(option(libc::SOL_SOCKET, libc::SO_RCVBUF), 400_000);
    match is_ipv4 {
        true => assert_eq!(option(libc::IPPROTO_IP, libc::IP_TOS), 40),
        false => assert_eq!(option(libc::IPPROTO_IPV6, libc::IPV6_TCLASS), 40),
    }
    let congestion = option(libc::IPPROTO_TCP, libc::TCP_CONGESTION).to_ne_bytes();
    assert_eq!(&congestion, b"reno");
}

pub fn tcp_options_are_inherited(io: IoChoice) {
    let mut config = config(io);
    config.listeners[0].tcp = all_options();
    config
        .listeners
        .push(ListenConfig { address: "[::1]:0".parse().unwrap(), ..config.listeners[0].clone() });
    let world = spawn(config);
    for address in world.addresses() {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&frame(WHERE, 0)).unwrap();
        assert_eq!(word(&mut stream), 0);
        assert_options(stream.local_addr().unwrap(), address.is_ipv4());
    }
    end(world);
}
