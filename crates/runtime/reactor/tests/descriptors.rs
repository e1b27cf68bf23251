//! The worlds in a process without free descriptors. The test lowers the limit of its process, so it is a
//! separate program.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ::endpoint::ShardId;
use blockwire_reactor::{Config, IoChoice, ListenConfig, Reactor, ReactorHandle};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[path = "worlds/endpoint.rs"]
#[allow(dead_code)]
mod endpoint;
use endpoint::{CLOSE, Msg, TestEnd, WHERE};

/// How often it was told that there are none left.
static TOLD: AtomicU32 = AtomicU32::new(0);
fn told() {
    TOLD.fetch_add(1, Ordering::Relaxed);
}

/// Descriptors that are free when connections begin to come.
const FREE: u64 = 6;

fn frame(op: u32) -> Vec<u8> {
    [op.to_le_bytes(), 0u32.to_le_bytes()].concat()
}

/// Sockets that need no further descriptor to connect.
fn sockets(count: usize) -> Vec<OwnedFd> {
    let one = |_| rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    (0..count).map(one).collect()
}

fn connect(socket: OwnedFd, to: SocketAddr) -> TcpStream {
    rustix::net::connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Whether a connection is served; false if it is reset. One that is left to wait fails the test.
fn is_served(stream: &mut TcpStream) -> bool {
    let said = stream.write_all(&frame(WHERE)).and_then(|()| stream.read_exact(&mut [0; 4]));
    match said {
        Ok(()) => true,
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => false,
        Err(e) => panic!("neither served nor turned away: {e}"),
    }
}

fn until(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn at_the_limit(io: IoChoice) {
    let listen = ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
    let linger = Duration::from_secs(600);
    let on_exhausted = Some(told as fn());
    let config = Config { io, listeners: vec![listen], linger, on_exhausted, ..Config::default() };
    TOLD.store(0, Ordering::Relaxed);
    let world: ReactorHandle<Msg> = Reactor::spawn(config, |id, _| TestEnd::new(id)).unwrap();
    let to = world.addresses()[0];
    let mut sockets = sockets(40);
    let before = getrlimit(Resource::Nofile);
    let next = sockets.iter().map(|socket| socket.as_raw_fd() as u64).max().unwrap() + 1;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + FREE), maximum: before.maximum }).unwrap();

    // Who comes when none is left is turned away at once, not left to wait.
    let mut streams: Vec<TcpStream> = sockets.drain(..20).map(|socket| connect(socket, to)).collect();
    let served: Vec<bool> = streams.iter_mut().map(is_served).collect();
    let places = served.iter().filter(|served| **served).count();
    assert!((1..=FREE as usize).contains(&places), "{io:?}: {places} of 20 were served");
    let stats = world.stats()[0];
    assert!(stats.exhausted > 0 && stats.refused == 20 - places as u64, "{io:?}: {stats:?}");

    assert_eq!(TOLD.load(Ordering::Relaxed), 1, "told once, however often it happens");

    // Whom we have closed gives the place to who comes, however long it would linger.
    let mut told: Vec<_> = streams.into_iter().zip(served).filter(|(_, served)| *served).collect();
    for (stream, _) in &mut told {
        stream.write_all(&frame(CLOSE)).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0)), "closed in good order");
    }
    let mut later: Vec<TcpStream> = sockets.drain(..places).map(|socket| connect(socket, to)).collect();
    for stream in &mut later {
        assert!(is_served(stream), "{io:?}: the places of those that linger are taken");
    }
    // A peer that goes by itself leaves its place as well.
    drop((later, told));
    // What is counted is told with the next turn.
    until(|| {
        world.post(ShardId(0), Msg::Ping(channel().0));
        world.stats()[0].links == 0
    });
    assert!(is_served(&mut connect(sockets.pop().unwrap(), to)));
    setrlimit(Resource::Nofile, before).unwrap();
    world.stop(Duration::from_millis(200));
    world.join().unwrap();
}

#[test]
fn strangers_at_the_limit_of_descriptors_shut_nobody_out() {
    at_the_limit(IoChoice::Epoll);
    if std::env::var_os("BLOCKWIRE_NO_URING").is_none() {
        at_the_limit(IoChoice::Uring);
    }
}
