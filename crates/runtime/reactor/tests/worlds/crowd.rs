//! What the kernel holds of many links that send at once.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use blockwire_reactor::{Config, IoChoice};

use crate::endpoint::*;
use crate::{config, connect, end, frame, spawn};

/// Peers that take less than they are sent.
const PEERS: usize = 12;
const FRAME_BYTES: usize = 512 << 10;
const FRAMES: usize = 36;
/// What each of them takes before it stops: more than the kernel lets in at first, and more slowly than it is sent.
const TAKEN_BYTES: usize = 12 << 20;
const PAUSE: Duration = Duration::from_millis(20);
/// A small buffer with all that the kernel counts to it, and a part of a send that was let in before.
const HELD_MAX: u64 = 640 << 10;

/// Bytes that the system's sockets at such a port hold to be sent, each.
fn held_bytes(port: u16) -> Vec<u64> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let held = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (from, state, queues) = (words.get(1)?, words.get(3)?, words.get(4)?);
        // 01: it is connected.
        let is_ours = from.ends_with(&local) && *state == "01";
        is_ours.then(|| u64::from_str_radix(queues.split(':').next()?, 16).ok())?
    };
    table.lines().filter_map(held).collect()
}

/// Each of many links held megabytes: together far more than a cache.
pub fn a_crowd_of_senders_leaves_little_with_the_kernel(io: IoChoice) {
    let world = spawn(Config { pool_bytes: 256 << 20, ..config(io) });
    let port = world.addresses()[0].port();
    let mut peers: Vec<TcpStream> = (0..PEERS).map(|_| connect(&world)).collect();
    let writers: Vec<_> = peers
        .iter()
        .map(|peer| {
            let mut writer = peer.try_clone().unwrap();
            std::thread::spawn(move || {
                let payload = vec![7; FRAME_BYTES];
                for _ in 0..FRAMES {
                    writer.write_all(&frame(ECHO, FRAME_BYTES as u32)).unwrap();
                    writer.write_all(&payload).unwrap();
                }
            })
        })
        .collect();
    let mut taken = vec![0; 64 << 10];
    for _ in (0..TAKEN_BYTES).step_by(taken.len()) {
        peers.iter_mut().for_each(|peer| peer.read_exact(&mut taken).unwrap());
        std::thread::sleep(PAUSE);
    }
    let start = Instant::now();
    loop {
        let held = held_bytes(port);
        if held.len() == PEERS && held.iter().all(|bytes| *bytes <= HELD_MAX) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the kernel holds {held:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // And all of it comes.
    let mut rest = vec![0; FRAMES * FRAME_BYTES - TAKEN_BYTES];
    for peer in &mut peers {
        peer.read_exact(&mut rest).unwrap();
        assert!(rest.iter().all(|byte| *byte == 7));
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    drop(peers);
    end(world);
}
