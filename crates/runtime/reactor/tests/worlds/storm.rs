//! Everything at once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use blockwire_reactor::{Config, IoChoice};
use buf::Entropy;

use crate::endpoint::*;
use crate::{config, connect, end, frame, random_bytes, spawn, two, until, word};

/// Everything at once, at random, on two shards: every answer that is owed comes and is right, and
/// the endpoints' books balance.
pub fn a_storm(io: IoChoice) {
    let world = spawn(two(io));
    let deadline = Instant::now() + Duration::from_millis(1500);
    let address = world.addresses()[0];
    let clients: Vec<_> = (0..12u8)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut entropy = Entropy::new([seed; 32]);
                while Instant::now() < deadline {
                    visit(TcpStream::connect(address).unwrap(), &mut entropy);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    until(|| world.stats().iter().all(|s| s.links == 0 && s.pool_lent == 0));
    end(world);
}

/// One connection's life: some frames, and one of several ends.
fn visit(mut stream: TcpStream, entropy: &mut Entropy) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for _ in 0..entropy.next_u64() % 8 {
        let (mut wire, mut due) = (Vec::new(), Vec::new());
        for _ in 0..1 + entropy.next_u64() % 4 {
            if entropy.next_u64().is_multiple_of(4) {
                let to = (entropy.next_u64() % 2) as u32;
                wire.extend(frame(MOVE, to));
                due.extend(to.to_le_bytes());
            } else {
                let len = 1 << (entropy.next_u64() % 18);
                let bytes = random_bytes(entropy, len);
                wire.extend(frame(ECHO, len as u32));
                wire.extend(&bytes);
                due.extend(bytes);
            }
        }
        let cut = entropy.next_u64() as usize % wire.len();
        stream.write_all(&wire[..cut]).unwrap();
        stream.write_all(&wire[cut..]).unwrap();
        let mut back = vec![0; due.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == due, "an answer differs");
    }
    match entropy.next_u64() % 5 {
        0 => stream.write_all(&frame(CLOSE, 0)).unwrap(),
        1 => stream.write_all(&frame(ABORT, 0)).unwrap(),
        2 => stream.write_all(&frame(SOURCE, 100_000)).unwrap(),
        // Goes in the middle of a frame, with an answer on its way.
        3 => stream
            .write_all(&[frame(ECHO, 9), vec![1; 9], frame(ECHO, 70_000), vec![0; 20_000]].concat())
            .unwrap(),
        _ => stream.shutdown(Shutdown::Both).unwrap(),
    }
}

/// A thousand links have bytes at the same time, and the shard memory for a few receives.
pub fn many_links_share_little_memory(io: IoChoice) {
    let world = spawn(Config { pool_bytes: 1 << 20, ..config(io) });
    let mut streams: Vec<_> = (0..1000).map(|_| connect(&world)).collect();
    until(|| world.stats()[0].links == 1000);
    for _ in 0..3 {
        streams.iter_mut().for_each(|stream| stream.write_all(&frame(WHERE, 0)).unwrap());
        streams.iter_mut().for_each(|stream| assert_eq!(word(stream), 0));
    }
    let starved = world.stats()[0].recvs_starved;
    assert!(starved < 10 * 3 * 1000, "{starved} receives of 3,000 found no memory");
    end(world);
}
