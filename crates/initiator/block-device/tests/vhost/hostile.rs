//! Hostile front ends and drivers, from seeds: they send what a correct one would send, changed, out of
//! order, without its descriptors, and with rings that change while requests are in flight. `SIM_SEEDS=n`
//! runs n of them, `SIM_SEED=n` that one. The process survives, and serves the next machine.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::machine::*;
use crate::support::{Behaviour, Mutator};
use testkit::seeds::seed_range;

/// A message: request, flags, payload, and how many descriptors go with it.
type Message = (u32, u32, Vec<u8>, usize);

/// What an honest front end says until its ring is served, and afterwards.
fn honest(noise: &mut Mutator) -> Vec<Message> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let features = FEATURES | if noise.draw(2) == 0 { EVENT_IDX } else { 0 };
    let mut ring = state(0, 0).to_vec();
    ring.extend(words(&[DESCRIPTORS, USED, AVAILABLE, 0].map(|at| USER + at as u64)[..]));
    ring[8 + 24..].fill(0);
    let mut messages = vec![
        (3, 1, vec![], 0),
        (1, 1, vec![], 0),
        (15, 1, vec![], 0),
        (16, 1, words(&[1 << 3 | 1 << 9 | 1 << 12 | 1 << 15]), 0),
        (2, 1, words(&[features]), 0),
        (5, 9, words(&[1, GUEST, MEMORY as u64, USER, 0]), 1),
        (8, 1, state(0, QUEUE.into()).to_vec(), 0),
        (10, 1, state(0, 0).to_vec(), 0),
        (9, 1, ring, 0),
        (12, 1, words(&[0]), 1),
        (13, 1, words(&[0]), 1),
        (14, 1, words(&[0]), 1),
        (18, 1, state(0, 1).to_vec(), 0),
    ];
    let later = [
        (24, 1, [&[0; 4][..], &60_u32.to_ne_bytes(), &[0; 64]].concat(), 0),
        (11, 1, state(0, 0).to_vec(), 0),
        (37, 9, words(&[0, GUEST + (1 << 30), MEMORY as u64, USER + (1 << 30), 0]), 1),
        (38, 9, words(&[0, GUEST, MEMORY as u64, USER, 0]), 0),
        (4, 1, vec![], 0),
        (34, 1, vec![], 0),
        (21, 1, vec![], 1),
        (31, 1, vec![0; 24], 0),
        (5, 9, words(&[1, GUEST, MEMORY as u64, USER, 0]), 1),
    ];
    messages.extend((0..noise.draw(6)).map(|_| later[noise.draw(later.len() as u64) as usize].clone()));
    messages
}

/// Puts chains into the ring; some of them are sensible.
fn scribble(machine: &mut Machine, noise: &mut Mutator) {
    for index in 0..usize::from(QUEUE) {
        let address = match noise.draw(8) {
            0 => noise.odd(),
            1 => GUEST + MEMORY as u64 - noise.draw(600),
            2 => GUEST + TABLE as u64,
            _ => GUEST + DATA as u64 + noise.draw(1 << 20),
        };
        let len = [noise.draw(32) * 16, noise.odd(), noise.draw(9000), 512, 1][noise.draw(5) as usize];
        let table = [DESCRIPTORS, TABLE][noise.draw(2) as usize];
        machine.descriptor(table, index, address, len as u32, noise.draw(8) as u16, noise.draw(18) as u16);
    }
    if noise.draw(2) == 0 {
        machine.header(noise.draw(15) as u32, noise.draw(9000));
        let flags = NEXT | (noise.draw(2) as u16 * WRITE);
        machine.descriptor(DESCRIPTORS, 0, GUEST + HEADERS as u64, 16, NEXT, 1);
        machine.descriptor(DESCRIPTORS, 1, GUEST + DATA as u64, 4096, flags, 2);
        machine.descriptor(DESCRIPTORS, 2, GUEST + HEADERS as u64 + 64, 1, WRITE, 0);
        machine.make_available(0);
    }
    for _ in 0..noise.draw(6) {
        if noise.draw(8) == 0 {
            machine.available = noise.odd() as u16;
        }
        machine.make_available(noise.draw(18) as u16);
    }
}

fn play(server: &Server, noise: &mut Mutator) {
    let mut machine = Machine::connect(server);
    machine.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut messages = honest(noise);
    for _ in 0..noise.draw(4) {
        let at = noise.draw(messages.len() as u64) as usize;
        let other = noise.draw(messages.len() as u64) as usize;
        match noise.draw(6) {
            0 => drop(messages.remove(at)),
            1 => messages.swap(at, other),
            2 => messages.insert(at, messages[other].clone()),
            3 => messages[at].3 = noise.draw(11) as usize,
            4 => messages[at].0 = noise.draw(46) as u32,
            _ => noise.mutate(&mut messages[at].2),
        }
    }
    let file = machine.file.try_clone().unwrap();
    let events = [&machine.kick, &machine.call, &machine.error].map(|event| event.try_clone().unwrap());
    for (request, flags, payload, files) in messages {
        let file = match request {
            12 => &events[0],
            13 => &events[1],
            14 | 21 => &events[2],
            _ => &file,
        };
        // Now and then no memory but an event, and the other way round.
        let file = if noise.draw(20) == 0 { &events[noise.draw(3) as usize] } else { file };
        let all = vec![file.as_fd(); files];
        let sent = if noise.draw(25) == 0 {
            let mut bytes: Vec<u8> =
                [request, flags, payload.len() as u32].iter().flat_map(|word| word.to_ne_bytes()).collect();
            bytes.extend(&payload);
            noise.mutate(&mut bytes);
            bytes.is_empty() || machine.raw(&bytes, &all).is_ok()
        } else {
            machine.say_flagged(request, flags, &payload, &all).is_ok()
        };
        if !sent {
            return;
        }
        if noise.draw(3) == 0 {
            scribble(&mut machine, noise);
        }
    }
    scribble(&mut machine, noise);
    if noise.draw(2) == 0 {
        // What is taken is changed behind it.
        std::thread::sleep(Duration::from_micros(noise.draw(500)));
        scribble(&mut machine, noise);
    }
}

#[test]
fn sessions_of_hostile_front_ends_end_and_the_next_machine_is_served() {
    for lends in [false, true] {
        let mood = Behaviour {
            shuffle: Some(9),
            never_lends: !lends,
            memory: Some(4 << 20),
            ..Behaviour::default()
        };
        let server = Server::start(512, mood);
        for seed in seed_range(100) {
            let noise = &mut Mutator::new(seed);
            play(&server, noise);
            let mut machine = Machine::start(&server, FEATURES);
            let bytes: Vec<u8> = (0..4096).map(|_| noise.draw(256) as u8).collect();
            machine.memory.write(DATA, &bytes);
            assert_eq!(machine.request(1, 40, bytes.len(), false, false), (0, 1), "seed {seed}");
            machine.memory.zero(DATA, bytes.len());
            assert_eq!(machine.request(0, 40, bytes.len(), true, seed % 2 == 0), (0, 4097), "seed {seed}");
            let mut back = vec![0; bytes.len()];
            machine.memory.read(DATA, &mut back);
            assert!(back == bytes, "seed {seed}: not what was written");
        }
    }
}
