//! Options of TCP sockets.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use blockwire_reactor::{BoundListener, IoChoice, ListenConfig, TcpKeepAlive, TcpOptions};
use endpoint::ListenerId;

use crate::endpoint::*;
use crate::{config, end, frame, spawn, two, until, word};

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

/// Listeners are opened while the world runs, take other options, and are closed; what was accepted is served.
pub fn listeners_come_change_and_go(io: IoChoice) {
    let world = spawn(two(io));
    let served = |stream: &mut TcpStream| {
        stream.write_all(&frame(WHERE, 0)).unwrap();
        assert!(word(stream) < 2);
    };
    let mut old = Vec::new();
    for round in 0..6 {
        let bound =
            BoundListener::bind(&ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap())).unwrap();
        let (address, id) = (bound.address(), ListenerId(1 + round * 3));
        let mut early = TcpStream::connect(address).unwrap();
        assert!(world.add_listener(id, bound));
        served(&mut early);
        let changed = ListenerId(id.0 + 2);
        world.change_listener(id, changed, all_options());
        // Its shard has heard of it when it has answered to what it accepted later.
        let mut later = TcpStream::connect(address).unwrap();
        served(&mut later);
        until(|| {
            let mut stream = TcpStream::connect(address).unwrap();
            served(&mut stream);
            has_options(stream.local_addr().unwrap())
        });
        // Not by the number that it had before.
        world.remove_listener(id);
        served(&mut TcpStream::connect(address).unwrap());
        world.remove_listener(changed);
        until(|| TcpStream::connect(address).is_err());
        old.extend([early, later]);
    }
    old.iter_mut().for_each(served);
    world.stop_accepting();
    until(|| TcpStream::connect(world.addresses()[0]).is_err());
    let late =
        BoundListener::bind(&ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap())).unwrap();
    let address = late.address();
    world.add_listener(ListenerId(99), late);
    until(|| TcpStream::connect(address).is_err());
    drop(old);
    end(world);
}

/// Whether this process has a socket with this peer, on which keep-alive probes are on.
fn has_options(peer: SocketAddr) -> bool {
    (3..4096).any(|fd| {
        // SAFETY: the descriptor is only borrowed to ask for its peer; a wrong one gives an error.
        let other =
            std::mem::ManuallyDrop::new(unsafe { <TcpStream as std::os::fd::FromRawFd>::from_raw_fd(fd) });
        let (mut value, mut len) = (0i32, 4u32);
        let name = libc::SO_KEEPALIVE;
        other.peer_addr().is_ok_and(|found| found == peer)
            // SAFETY: the value is writable for its length.
            && unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &mut len) } == 0
            && value == 1
    })
}
