//! Outgoing connections.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ::endpoint::{Dialled, ShardId};
use blockwire_reactor::{Config, IoChoice, Reactor, SpawnError, TcpOptions};

use crate::endpoint::*;
use crate::{
    World, all_options, assert_options, config, connect, echo_random, end, frame, spawn, until, word,
};

fn dial(world: &World, to: SocketAddr, within: Duration) -> Receiver<Result<Dialled, i32>> {
    let (tell, told) = channel();
    assert!(world.post(ShardId(0), Msg::Dial(to, within, tell)));
    told
}

fn answer(told: &Receiver<Result<Dialled, i32>>) -> Result<Dialled, i32> {
    told.recv_timeout(Duration::from_secs(10)).expect("every connection that is asked for is answered")
}

/// A listener whose queue is full: who connects to it hears nothing.
struct Silent {
    listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Silent {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let try_one = |_| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let queued: Vec<_> = (0..8).map_while(try_one).collect();
        assert!(queued.len() < 8, "the queue fills");
        Silent { listener, _queued: queued }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }
}

pub fn connections_outwards_are_links(io: IoChoice) {
    let world = spawn(Config { outward: all_options(), ..config(io) });
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let told = dial(&world, address, Duration::from_secs(5));
        let (stream, peer) = listener.accept().unwrap();
        let dialled = answer(&told).unwrap();
        assert_eq!((dialled.peer, dialled.local), (address, peer));
        assert_options(address, address.is_ipv4());
        echo_random(stream, 3, 60, 300_000);
        until(|| world.stats()[0].links == 0);
    }
    end(world);
}

pub fn bytes_that_come_with_a_connection_are_received(io: IoChoice) {
    let world = spawn(config(io));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for _ in 0..50 {
        let told = dial(&world, listener.local_addr().unwrap(), Duration::from_secs(5));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&frame(WHERE, 0)).unwrap();
        assert_eq!(word(&mut stream), 0);
        answer(&told).unwrap();
    }
    end(world);
}

pub fn connections_outwards_are_refused(io: IoChoice) {
    let world = spawn(config(io));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for _ in 0..20 {
        assert_eq!(answer(&dial(&world, nobody, Duration::from_secs(5))), Err(libc::ECONNREFUSED));
    }
    // No socket of this kind is for such an address.
    let nowhere = "[ff02::1]:9".parse().unwrap();
    assert!(answer(&dial(&world, nowhere, Duration::from_secs(5))).is_err());
    assert_eq!(world.stats()[0].links, 0);
    end(world);
}

pub fn connections_outwards_time_out(io: IoChoice) {
    let world = spawn(config(io));
    let silent = Silent::new();
    let start = Instant::now();
    let later = dial(&world, silent.address(), Duration::from_millis(400));
    let sooner = dial(&world, silent.address(), Duration::from_millis(100));
    let over = dial(&world, silent.address(), Duration::ZERO);
    assert_eq!(answer(&over), Err(libc::ETIMEDOUT));
    assert_eq!(answer(&sooner), Err(libc::ETIMEDOUT));
    assert!((90..350).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(answer(&later), Err(libc::ETIMEDOUT));
    assert!(start.elapsed().as_millis() >= 390);
    until(|| world.stats()[0].links == 0);
    end(world);
}

pub fn connections_being_made_come_back_at_the_end(io: IoChoice) {
    let world = spawn(config(io));
    let silent = Silent::new();
    let told: Vec<_> = (0..10).map(|_| dial(&world, silent.address(), Duration::from_secs(60))).collect();
    until(|| world.stats()[0].links == 10);
    let start = Instant::now();
    end(world);
    assert!(start.elapsed() < Duration::from_secs(5));
    told.iter().for_each(|told| assert_eq!(answer(told), Err(libc::ECANCELED)));
}

pub fn connections_being_made_count_as_links(io: IoChoice) {
    let world = spawn(Config { links_max: 2, ..config(io) });
    let silent = Silent::new();
    let first = dial(&world, silent.address(), Duration::from_millis(300));
    let mut stream = connect(&world);
    stream.write_all(&frame(WHERE, 0)).unwrap();
    assert_eq!(word(&mut stream), 0);
    assert_eq!(answer(&dial(&world, silent.address(), Duration::from_secs(5))), Err(libc::EMFILE));
    assert_eq!(answer(&first), Err(libc::ETIMEDOUT));
    until(|| world.stats()[0].links == 1);
    // There is room again.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(answer(&dial(&world, listener.local_addr().unwrap(), Duration::from_secs(5))).is_ok());
    end(world);
}

#[test]
fn options_outwards_that_cannot_be_had_are_an_error() {
    let outward = TcpOptions { congestion: Some("of-no-kernel".into()), ..TcpOptions::default() };
    let failed = Reactor::spawn(Config { outward, ..config(IoChoice::Auto) }, |id, _| TestEnd::new(id));
    assert!(matches!(failed, Err(SpawnError::Outward(_))));
}
