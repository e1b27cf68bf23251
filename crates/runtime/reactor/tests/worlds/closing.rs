//! Links that are closed or aborted, and links that are out when the world ends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use ::endpoint::ShardId;
use blockwire_reactor::{Config, IoChoice};

use crate::endpoint::*;
use crate::*;

/// A socket that is on its way to a shard while that shard ends must not keep it.
pub fn links_that_arrive_at_the_end_hold_nobody_up(io: IoChoice) {
    for round in 0..12 {
        let world = spawn(two(io));
        let address = world.addresses()[0];
        let visitors: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(move || {
                    let mut streams = Vec::new();
                    while let Ok(mut stream) = TcpStream::connect(address) {
                        // It may be reset at any time.
                        let _ = stream.write_all(&frame(MOVE, streams.len() as u32 % 2));
                        streams.push(stream);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_micros(1000 * round));
        world.stop(Duration::ZERO);
        world.join().unwrap();
        visitors.into_iter().for_each(|visitor| visitor.join().unwrap());
    }
}

pub fn links_can_be_aborted_while_busy(io: IoChoice) {
    let world = spawn(config(io));
    let mut streams: Vec<_> = (0..20).map(|_| connect(&world)).collect();
    for (i, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&frame([SOURCE, ECHO][i % 2], 2 << 20)).unwrap();
        stream.write_all(&vec![0; 1000 * i]).unwrap();
    }
    until(|| world.stats()[0].links == 20);
    std::thread::sleep(Duration::from_millis(50));
    world.post(ShardId(0), Msg::AbortAll);
    until(|| world.stats()[0].links == 0);
    until(|| world.stats()[0].pool_lent == 0);
    end(world);
}

pub fn a_close_delivers_what_is_being_sent(io: IoChoice) {
    const LEN: usize = 1 << 20;
    let mut config = config(io);
    config.listeners[0].tcp.send_buffer = Some(64 << 10);
    let world = spawn(config);
    let mut streams: Vec<_> = (0..10).map(|_| connect(&world)).collect();
    for stream in &mut streams {
        stream.write_all(&frame(SOURCE, LEN as u32)).unwrap();
        // So that a receive is out, too.
        stream.write_all(&[0]).unwrap();
    }
    let mut idle = connect(&world);
    idle.write_all(&frame(WHERE, 0)).unwrap();
    assert_eq!(word(&mut idle), 0);
    until(|| world.stats()[0].links == 11);
    std::thread::sleep(Duration::from_millis(50));
    world.post(ShardId(0), Msg::CloseAll);
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    for mut stream in streams {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), LEN);
    }
    until(|| world.stats()[0].links == 0 || idle.write(&[0]).is_err());
    end(world);
}

/// Whom we have closed and who stays silent has a place for as long as it is wanted by no other.
pub fn links_that_linger_are_bounded(io: IoChoice) {
    let world = spawn(Config { linger: Duration::from_secs(600), closing_max: 4, ..config(io) });
    let mut streams: Vec<_> = (0..20).map(|_| connect(&world)).collect();
    for stream in &mut streams {
        stream.write_all(&frame(CLOSE, 0)).unwrap();
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "the link is closed");
    }
    until(|| counted(&world).links <= 4);
    drop(streams);
    until(|| counted(&world).links == 0);
    end(world);
}

/// Receives that wait for memory when their links are closed, and peers that end only after the world has given
/// them up: the end of such a peer must find nothing that it can harm.
pub fn a_late_end_of_a_link_that_starved_does_not_end_the_world(io: IoChoice) {
    let world = spawn(Config { pool_bytes: 64 << 20, linger: Duration::from_millis(50), ..config(io) });
    let mut streams: Vec<_> = (0..40).map(|_| connect(&world)).collect();
    until(|| world.stats()[0].links == 40);
    assert!(world.post(ShardId(0), Msg::Hoard(true)));
    heard(&world);
    // Half a frame: it is kept, and more is asked for.
    for stream in &mut streams {
        stream.write_all(&[0]).unwrap();
    }
    until(|| world.stats()[0].recvs_starved > 0);
    assert!(world.post(ShardId(0), Msg::CloseAll));
    // The world gives them up after its linger, while their peers have said nothing.
    for stream in &mut streams {
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "nothing was owed");
    }
    std::thread::sleep(Duration::from_millis(200));
    drop(streams);
    assert!(world.post(ShardId(0), Msg::Hoard(false)));
    until(|| counted(&world).links == 0 && counted(&world).pool_lent == 0);
    echo_random(connect(&world), 1, 10, 10_000);
    end(world);
}
