//! The vhost-user back end against our own front end: a correct one, and a hostile one. A machine with a real
//! kernel is in `tests/guest/vhost.sh`.

mod hostile;
mod machine;
#[path = "../support/mod.rs"]
mod support;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use buf::Entropy;
use machine::*;
use support::Behaviour;

#[test]
fn every_request_is_carried_out() {
    for (logical, mood) in [
        (512, Behaviour::default()),
        (4096, Behaviour { shuffle: Some(3), never_lends: true, max_io: Some(8192), ..Behaviour::default() }),
    ] {
        let server = Server::start(logical, mood);
        for (features, indirect) in [(FEATURES, false), (FEATURES | EVENT_IDX, true)] {
            let mut machine = Machine::start(&server, features);
            let bytes: Vec<u8> = (0..20 * 512).map(|n| (n % 251) as u8 + 1).collect();
            machine.memory.write(DATA, &bytes);
            assert_eq!(machine.request(1, 3, bytes.len(), false, indirect), (0, 1));
            assert_eq!(machine.request(4, 0, 0, false, indirect), (0, 1));
            machine.memory.zero(DATA, bytes.len());
            assert_eq!(machine.request(0, 3, bytes.len(), true, indirect), (0, bytes.len() as u32 + 1));
            let mut back = vec![0; bytes.len()];
            machine.memory.read(DATA, &mut back);
            assert!(back == bytes);
            // A discard, then zeroes: sector, count, flags.
            for (kind, flags) in [(11, 0_u32), (13, 0), (13, 1)] {
                let mut range = [0; 16];
                range[..8].copy_from_slice(&5_u64.to_le_bytes());
                range[8..12].copy_from_slice(&10_u32.to_le_bytes());
                range[12..].copy_from_slice(&flags.to_le_bytes());
                machine.memory.write(DATA, &range);
                assert_eq!(machine.request(kind, 0, 16, false, indirect), (0, 1));
            }
            assert_eq!(machine.request(0, 3, bytes.len(), true, indirect).0, 0);
            machine.memory.read(DATA, &mut back);
            let zeroed = 2 * 512..12 * 512;
            assert!(back[zeroed.clone()].iter().all(|&byte| byte == 0));
            assert!(
                back[..zeroed.start] == bytes[..zeroed.start] && back[zeroed.end..] == bytes[zeroed.end..]
            );
            assert_eq!(machine.request(8, 0, 20, true, indirect), (0, 21));
            let mut name = [0; 20];
            machine.memory.read(DATA, &mut name);
            assert_eq!(&name, b"a-serial-number-too-");
            // What is refused.
            assert_eq!(machine.request(0, 8 * MIB / 512, 512, true, indirect).0, 1, "behind the end");
            assert_eq!(machine.request(1, u64::MAX / 512, 512, false, indirect).0, 1, "far behind");
            assert_eq!(machine.request(1, 0, 511, false, indirect).0, 1, "no whole sector");
            assert_eq!(machine.request(11, 0, 17, false, indirect).0, 1, "no whole range");
            assert_eq!(machine.request(99, 0, 0, false, indirect).0, 2, "no such request");
            // The ring is stopped, answered with where it was, and goes on from there.
            machine.say(11, &state(0, 0), &[]);
            let answer = machine.reply(11);
            assert_eq!(answer[4..], u32::from(machine.available).to_ne_bytes());
            machine.begin();
            assert_eq!(machine.request(4, 0, 0, false, indirect), (0, 1));
        }
    }
}

#[test]
fn a_new_size_is_told() {
    let server = Server::start(512, Behaviour::default());
    let mut machine = Machine::start(&server, FEATURES);
    let (ours, theirs) = UnixStream::pair().unwrap();
    machine.say(21, &[], &[theirs.as_fd()]);
    let config = |machine: &mut Machine| {
        let mut payload = Vec::new();
        for word in [0_u32, 60, 0] {
            payload.extend(word.to_ne_bytes());
        }
        payload.extend([0; 60]);
        machine.say(24, &payload, &[]);
        machine.reply(24).split_off(12)
    };
    assert_eq!(config(&mut machine)[..8], (8 * MIB / 512).to_le_bytes());
    assert!(server.disk.resize(12 * MIB / 512));
    assert_eq!(machine.request(4, 0, 0, false, false), (0, 1));
    let mut told = [0; 12];
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    (&ours).read_exact(&mut told).unwrap();
    assert_eq!(told[..4], 2_u32.to_ne_bytes());
    let now = config(&mut machine);
    assert_eq!(now[..8], (12 * MIB / 512).to_le_bytes());
    assert_eq!(now[20..24], 512_u32.to_le_bytes());
    assert_eq!(now[24], 3, "eight blocks in a physical one");
    assert_eq!(machine.request(0, 10 * MIB / 512, 512, true, false).0, 0);
}

#[test]
fn a_write_after_protection_is_lifted_is_never_acknowledged_without_being_written() {
    for logical in [512, 4096] {
        let mood = Behaviour::default();
        mood.protected.store(true, Ordering::Relaxed);
        let server = Server::start(logical, mood.clone());
        let mut machine = Machine::start(&server, FEATURES);
        let bytes = [0xa5; 3 * 512];
        machine.memory.write(DATA, &bytes);
        assert_eq!(machine.request(1, 3, bytes.len(), false, false).0, 1, "protected");
        mood.protected.store(false, Ordering::Relaxed);
        assert_eq!(machine.request(1, 3, bytes.len(), false, false), (0, 1));
        machine.memory.zero(DATA, bytes.len());
        assert_eq!(machine.request(0, 3, bytes.len(), true, false).0, 0);
        let mut back = [0; 3 * 512];
        machine.memory.read(DATA, &mut back);
        assert_eq!(back, bytes, "acknowledged and not written");
        mood.protected.store(true, Ordering::Relaxed);
        assert_eq!(machine.request(1, 3, bytes.len(), false, false).0, 1, "protected again");
        // What a machine is offered is what holds now.
        let mut next = Machine::connect_behind(machine, &server);
        let mut offers = |protected| {
            mood.protected.store(protected, Ordering::Relaxed);
            next.ask_u64(1) & 1 << 5 != 0
        };
        assert!(offers(true) && !offers(false));
    }
}

/// What a ring's requests depend on stays as it is until they have ended, whatever is said meanwhile.
#[test]
fn a_ring_that_is_changed_with_requests_in_flight_ends_nobody() {
    let mood = Behaviour { shuffle: Some(2), never_lends: true, ..Behaviour::default() };
    let server = Server::start(512, mood.clone());
    let ring = |index: u32| {
        let mut ring = state(index, 0).to_vec();
        for at in [DESCRIPTORS, USED, AVAILABLE, 0] {
            ring.extend((USER + at as u64 + 0x40).to_ne_bytes());
        }
        ring
    };
    let region: Vec<u8> =
        [0, GUEST, MEMORY as u64, USER, 0].iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
    for change in 0..10 {
        let mut machine = Machine::start(&server, FEATURES);
        mood.stuck.store(true, Ordering::Relaxed);
        let guest = |at: usize| GUEST + at as u64;
        machine.header(0, 0);
        // The last head that there is.
        machine.descriptor(DESCRIPTORS, 15, guest(HEADERS), 16, NEXT, 1);
        machine.descriptor(DESCRIPTORS, 1, guest(DATA), 512, NEXT | WRITE, 2);
        machine.descriptor(DESCRIPTORS, 2, guest(HEADERS + 64), 1, WRITE, 0);
        let before = mood.taken.load(Ordering::Relaxed);
        machine.make_available(15);
        let until = Instant::now() + Duration::from_secs(20);
        while mood.taken.load(Ordering::Relaxed) == before {
            assert!(Instant::now() < until, "change {change}: it is not taken");
            std::thread::sleep(Duration::from_millis(1));
        }
        let file = machine.file.try_clone().unwrap();
        let refused = match change {
            0 => machine.acknowledged(8, &state(0, 1), &[]),
            1 => machine.acknowledged(10, &state(0, 5), &[]),
            2 => machine.acknowledged(9, &ring(0), &[]),
            3 => machine.acknowledged(18, &state(0, 0), &[]) + 1,
            4 => machine.acknowledged(4, &[], &[]) + 1,
            5 => machine.acknowledged(34, &[], &[]) + 1,
            // Memory goes, and the same or none comes.
            6 => machine.acknowledged(38, &region, &[]) + 1,
            7 => {
                assert_eq!(machine.acknowledged(38, &region, &[]), 0);
                machine.acknowledged(37, &region, &[file.as_fd()]) + 1
            }
            8 => machine.acknowledged(5, &[&[1; 1][..], &[0; 7], &region[8..]].concat(), &[file.as_fd()]) + 1,
            _ => machine.acknowledged(2, &(FEATURES | EVENT_IDX).to_ne_bytes(), &[]) + 1,
        };
        assert_eq!(refused, 1, "change {change}");
        // Stopped, it is answered when nothing is in flight.
        machine.say(11, &state(0, 0), &[]);
        mood.stuck.store(false, Ordering::Relaxed);
        assert_eq!(machine.reply(11)[4..], 1_u32.to_ne_bytes(), "change {change}");
        if change != 6 {
            assert_eq!(machine.wait().0, 15, "change {change}");
        }
        drop(machine);
        let mut next = Machine::start(&server, FEATURES);
        assert_eq!(next.request(4, 0, 0, false, false), (0, 1), "change {change}");
    }
}

#[test]
fn what_was_in_flight_is_carried_out_again() {
    let mood = Behaviour { shuffle: Some(4), ..Behaviour::default() };
    let server = Server::start(512, mood.clone());
    let mut machine = Machine::connect(&server);
    machine.set_up(FEATURES);
    // Memory for what is in flight, as the server makes it.
    let mut asked = [0; 24];
    asked[16..18].copy_from_slice(&1_u16.to_ne_bytes());
    asked[18..20].copy_from_slice(&QUEUE.to_ne_bytes());
    machine.say(31, &asked, &[]);
    let (file, at) = machine.receive_file(31);
    machine.say(32, &at, &[file.as_fd()]);
    machine.begin();
    machine.memory.write(DATA, &[7; 512]);
    assert_eq!(machine.request(1, 0, 512, false, false), (0, 1));
    mood.stuck.store(true, Ordering::Relaxed);
    // Three that do not end; the machine loses its server.
    for (n, sector) in [(3, 10_u64), (1, 11), (2, 12)] {
        let at = HEADERS + 128 * n;
        let mut header = [0; 16];
        header[0] = 1;
        header[8..].copy_from_slice(&sector.to_le_bytes());
        machine.memory.write(at, &header);
        machine.memory.write(DATA + 512 * n, &[n as u8; 512]);
        let guest = |at: usize| GUEST + at as u64;
        machine.descriptor(DESCRIPTORS, 3 * n, guest(at), 16, NEXT, 3 * n as u16 + 1);
        machine.descriptor(DESCRIPTORS, 3 * n + 1, guest(DATA + 512 * n), 512, NEXT, 3 * n as u16 + 2);
        machine.descriptor(DESCRIPTORS, 3 * n + 2, guest(at + 64), 1, WRITE, 0);
        machine.make_available(3 * n as u16);
    }
    std::thread::sleep(Duration::from_millis(200));
    drop(machine.stream);
    let mut next = Machine { stream: UnixStream::connect(&server.socket).unwrap(), ..machine };
    next.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Nobody is served before what the last one left has ended.
    mood.stuck.store(false, Ordering::Relaxed);
    next.set_up(FEATURES);
    next.say(32, &at, &[file.as_fd()]);
    next.begin();
    let mut heads: Vec<u32> = (0..3).map(|_| next.wait().0).collect();
    heads.sort_unstable();
    assert_eq!(heads, [3, 6, 9]);
    for (n, sector) in [(3_u8, 10), (1, 11), (2, 12)] {
        assert_eq!(next.request(0, sector, 512, true, true).0, 0);
        let mut back = [0; 512];
        next.memory.read(DATA, &mut back);
        assert_eq!(back, [n; 512]);
    }
}

#[test]
fn a_hostile_driver_stops_its_own_ring_only() {
    let server = Server::start(512, Behaviour { shuffle: Some(6), ..Behaviour::default() });
    let guest = |at: usize| GUEST + at as u64;
    let end = guest(MEMORY);
    type Trick = (&'static str, Box<dyn Fn(&mut Machine)>);
    let put = |address: u64, len: u32, flags: u16, next: u16| -> Box<dyn Fn(&mut Machine)> {
        Box::new(move |machine| {
            machine.descriptor(DESCRIPTORS, 0, address, len, flags, next);
            machine.make_available(0);
        })
    };
    let tricks: Vec<Trick> = vec![
        ("an address of nothing", put(0, 16, NEXT, 1)),
        ("an address behind all", put(u64::MAX, 16, NEXT, 1)),
        ("a length across the end", put(end - 8, 16, NEXT, 1)),
        ("a length that is none", put(guest(0), 0, 0, 0)),
        ("a circle", put(guest(0), 16, NEXT, 0)),
        ("a next one that is none", put(guest(0), 16, NEXT, QUEUE)),
        ("a table of no whole entries", put(guest(TABLE), 17, INDIRECT, 0)),
        ("a table of none", put(guest(TABLE), 0, INDIRECT, 0)),
        ("a table too long", put(guest(TABLE), 16 * 1025, INDIRECT, 0)),
        ("a table of nowhere", put(end, 16, INDIRECT, 0)),
        ("a table and more", put(guest(TABLE), 32, INDIRECT | NEXT, 1)),
        (
            "a table in a table",
            Box::new(move |machine| {
                machine.descriptor(TABLE, 0, guest(TABLE), 16, INDIRECT, 0);
                machine.descriptor(DESCRIPTORS, 0, guest(TABLE), 16, INDIRECT, 0);
                machine.make_available(0);
            }),
        ),
        (
            "a circle in a table",
            Box::new(move |machine| {
                machine.descriptor(TABLE, 0, guest(0), 16, NEXT, 1);
                machine.descriptor(TABLE, 1, guest(0), 16, NEXT, 0);
                machine.descriptor(DESCRIPTORS, 0, guest(TABLE), 32, INDIRECT, 0);
                machine.make_available(0);
            }),
        ),
        (
            "what is read behind what is written",
            Box::new(move |machine| {
                machine.descriptor(DESCRIPTORS, 0, guest(HEADERS), 16, WRITE | NEXT, 1);
                machine.descriptor(DESCRIPTORS, 1, guest(HEADERS), 16, 0, 0);
                machine.make_available(0);
            }),
        ),
        ("a head that is none", Box::new(|machine| machine.make_available(QUEUE))),
        (
            "more than the ring has",
            Box::new(|machine| {
                machine.available = 1000;
                machine.make_available(0);
            }),
        ),
        (
            "data from nowhere",
            Box::new(move |machine| {
                machine.header(1, 0);
                machine.descriptor(DESCRIPTORS, 0, guest(HEADERS), 16, NEXT, 1);
                machine.descriptor(DESCRIPTORS, 1, 1 << 40, 512, NEXT, 2);
                machine.descriptor(DESCRIPTORS, 2, guest(HEADERS + 64), 1, WRITE, 0);
                machine.make_available(0);
            }),
        ),
        (
            "a status for nowhere",
            Box::new(move |machine| {
                machine.header(4, 0);
                machine.descriptor(DESCRIPTORS, 0, guest(HEADERS), 16, NEXT, 1);
                machine.descriptor(DESCRIPTORS, 1, 1 << 40, 1, WRITE, 0);
                machine.make_available(0);
            }),
        ),
    ];
    for (what, trick) in tricks {
        let mut machine = Machine::start(&server, FEATURES);
        trick(&mut machine);
        let until = Instant::now() + Duration::from_secs(10);
        while rustix::io::read(&machine.error, &mut [0; 8]).is_err() {
            assert!(Instant::now() < until, "{what}: told to nobody");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The session goes on: the ring can be stopped and set up again.
        machine.say(11, &state(0, 0), &[]);
        machine.reply(11);
        machine.memory.zero(DESCRIPTORS, 0x4000);
        (machine.available, machine.used) = (0, 0);
        machine.begin();
        assert_eq!(machine.request(4, 0, 0, false, false), (0, 1), "{what}");
    }
    // A chain that is out is not taken twice.
    assert_eq!(server.statistics.snapshot().writes, 0);
}

#[test]
fn rings_of_noise_harm_nobody() {
    let server =
        Server::start(512, Behaviour { shuffle: Some(8), never_lends: true, ..Behaviour::default() });
    let mut noise = Entropy::new([1; 32]);
    for round in 0..150 {
        let mut machine = Machine::start(&server, FEATURES | if round % 2 == 0 { EVENT_IDX } else { 0 });
        let mut draw = |n: u64| noise.next_u64() % n;
        for table in [DESCRIPTORS, TABLE] {
            for index in 0..usize::from(QUEUE) {
                let address = match draw(8) {
                    0 => draw(u64::MAX),
                    1 => GUEST + MEMORY as u64 - draw(600),
                    2 => GUEST + TABLE as u64,
                    _ => GUEST + draw(MEMORY as u64),
                };
                let len = [draw(32) * 16, draw(1 << 32), draw(5000), 16, 1][draw(5) as usize];
                machine.descriptor(table, index, address, len as u32, draw(8) as u16, draw(18) as u16);
            }
        }
        for at in (1 << 16..MEMORY).step_by(1 << 14) {
            let at = at + draw(1 << 12) as usize;
            machine.memory.write(at, &draw(14).to_le_bytes());
        }
        for _ in 0..draw(12) {
            machine.make_available(draw(18) as u16);
        }
        if draw(3) == 0 {
            machine.say(11, &state(0, 0), &[]);
            machine.reply(11);
        }
    }
    let mut machine = Machine::start(&server, FEATURES);
    assert_eq!(machine.request(4, 0, 0, false, false), (0, 1));
}

#[test]
fn messages_that_are_wrong_end_the_session_or_are_refused() {
    let server = Server::start(512, Behaviour::default());
    let long = vec![0; 5000];
    let none: &[BorrowedFd<'_>] = &[];
    let region: Vec<u8> =
        [1, GUEST, MEMORY as u64, USER, 0].iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
    let many: Vec<u8> = [9_u64].iter().chain(&[0; 36]).flat_map(|n| n.to_ne_bytes()).collect();
    let spare = event();
    let too_many: Vec<_> = (0..12).map(|_| spare.as_fd()).collect();
    let cases: [(u32, u32, &[u8], &[BorrowedFd<'_>]); 16] = [
        (1, 2, &[], none),            // no such version
        (1, 5, &[], none),            // a reply
        (1, 1, &long, none),          // longer than any
        (2, 1, &[0; 7], none),        // no number
        (8, 1, &state(16, 16), none), // no such queue
        (8, 1, &state(u32::MAX, 16), none),
        (9, 1, &[0; 39], none), // not a whole address
        (11, 1, &state(99, 0), none),
        (12, 1, &0_u64.to_ne_bytes(), none), // a kick without descriptor
        (5, 1, &region, none),               // memory without descriptor
        (5, 1, &many, none),                 // nine regions
        (24, 1, &[0xff; 12], none),          // bytes of nowhere
        (25, 1, &[0xff; 80], none),
        (31, 1, &[0xff; 24], none), // too much in flight
        (32, 1, &[0; 24], none),    // without descriptor
        (3, 1, &[], &too_many),
    ];
    for (n, (request, flags, payload, files)) in cases.into_iter().enumerate() {
        let mut machine = Machine::connect(&server);
        let _ = machine.say_flagged(request, flags, payload, files);
        assert!(machine.is_closed(), "case {n}");
    }
    // What is only refused, and the session goes on.
    let mut machine = Machine::connect(&server);
    machine.set_up(FEATURES);
    let short = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&short, 4096).unwrap();
    let at = |guest: u64, size: u64, user: u64, offset: u64| -> Vec<u8> {
        [0, guest, size, user, offset].iter().flat_map(|n| n.to_ne_bytes()).collect()
    };
    let far = GUEST + (1 << 30);
    for region in [
        at(far, 8192, far, 0), // longer than its file
        at(far, 4096, far, 4096),
        at(far, 0, far, 0),
        at(u64::MAX - 5, 4096, far, 0),
        at(far, u64::MAX, 0, 0),
        at(far, 4096, far, u64::MAX - 100),
        at(GUEST + 4096, 4096, far, 0), // where other memory is
    ] {
        assert_eq!(machine.acknowledged(37, &region, &[short.as_fd()]), 1, "{region:?}");
    }
    assert_eq!(machine.acknowledged(37, &at(far, 4096, far, 0), &[short.as_fd()]), 0);
    assert_eq!(machine.acknowledged(38, &at(far, 4096, far, 0), &[]), 0);
    assert_eq!(machine.acknowledged(38, &at(far, 4096, far, 0), &[]), 1);
    for size in [0, 3, 2048, u32::MAX] {
        assert_eq!(machine.acknowledged(8, &state(0, size), &[]), 1);
    }
    assert_eq!(machine.acknowledged(8, &state(0, QUEUE.into()), &[]), 0);
    for place in [0, USER + 1, USER + MEMORY as u64 - 64, u64::MAX - 15] {
        let mut ring = state(0, 0).to_vec();
        for at in [place, USER + USED as u64, USER + AVAILABLE as u64, 0] {
            ring.extend(at.to_ne_bytes());
        }
        assert_eq!(machine.acknowledged(9, &ring, &[]), 1, "{place:#x}");
    }
    assert_eq!(machine.acknowledged(77, &[1, 2, 3], &[]), 1, "no such message");
    machine.begin();
    assert_eq!(machine.request(4, 0, 0, false, false), (0, 1));
    // A ring whose memory is taken away stops, and harms nothing.
    let region = at(GUEST, MEMORY as u64, USER, 0);
    assert_eq!(machine.acknowledged(38, &region, &[]), 0);
    machine.header(4, 0);
    machine.make_available(0);
    let file = machine.file.try_clone().unwrap();
    assert_eq!(machine.acknowledged(37, &region, &[file.as_fd()]), 0);
    rustix::io::write(&machine.kick, &1_u64.to_ne_bytes()).unwrap();
    assert_eq!(machine.wait().0, 0);
}
