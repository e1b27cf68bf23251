//! The same tests on io_uring and on epoll, over loopback.
//!
//! If the kernel forbids io_uring its half fails, unless BLOCKWIRE_NO_URING is set to confirm that this is
//! known.

mod closing;
mod crowd;
#[path = "../../src/denied_syscalls.rs"]
mod denied_syscalls;
mod disks;
mod endpoint;
mod hang;
mod inline;
mod library;
mod options;
mod outward;
mod storm;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ::endpoint::ShardId;
use blockwire_reactor::{Config, IoChoice, ListenConfig, Reactor, ReactorHandle, ShardStats, SpawnError};
use buf::Entropy;

use closing::*;
use crowd::*;
use disks::*;
use endpoint::*;
use hang::*;
use inline::*;
use library::*;
use options::*;
use outward::*;
use storm::*;

type World = ReactorHandle<Msg>;

fn config(io: IoChoice) -> Config {
    let listen = ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
    Config { io, listeners: vec![listen], linger: Duration::from_secs(1), ..Config::default() }
}

/// Two shards on one core each where there are two, else both on the first.
fn two(io: IoChoice) -> Config {
    let count = std::thread::available_parallelism().map_or(1, |n| n.get());
    Config { cores: vec![0, 1 % count], ..config(io) }
}

fn spawn(config: Config) -> World {
    Reactor::spawn(config, |id, _| TestEnd::new(id)).unwrap()
}

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.addresses()[0]).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn frame(op: u32, arg: u32) -> Vec<u8> {
    [op.to_le_bytes(), arg.to_le_bytes()].concat()
}

fn word(stream: &mut TcpStream) -> u32 {
    let mut word = [0; 4];
    stream.read_exact(&mut word).unwrap();
    u32::from_le_bytes(word)
}

/// Ends the world and fails if a shard did (its endpoint asserts that all came back).
fn end(world: World) {
    world.stop(Duration::from_millis(200));
    world.join().unwrap();
}

fn random_bytes(entropy: &mut Entropy, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    entropy.fill(&mut bytes);
    bytes
}

/// Echoes frames of random sizes, several in flight, in random cuts.
fn echo_random(stream: TcpStream, seed: u8, frames: usize, len_max: usize) {
    let mut entropy = Entropy::new([seed; 32]);
    let payloads: Vec<_> = (0..frames)
        .map(|_| {
            let len = 1 + entropy.next_u64() as usize % len_max;
            random_bytes(&mut entropy, len)
        })
        .collect();
    let mut wire = Vec::new();
    for payload in &payloads {
        wire.extend(frame(ECHO, payload.len() as u32));
        wire.extend(payload);
    }
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut rest = &wire[..];
        while !rest.is_empty() {
            let n = (1 + entropy.next_u64() as usize % 100_000).min(rest.len());
            writer.write_all(&rest[..n]).unwrap();
            rest = &rest[n..];
        }
    });
    let mut reader = stream;
    for payload in &payloads {
        let mut back = vec![0; payload.len()];
        reader.read_exact(&mut back).unwrap();
        assert!(back == *payload, "an echo differs");
    }
    sender.join().unwrap();
}

fn echoes(io: IoChoice) {
    let world = spawn(two(io));
    for seed in 0..4 {
        echo_random(connect(&world), seed, 60, 300_000);
    }
    echo_random(connect(&world), 9, 2000, 100);
    let stats = world.stats();
    assert!(stats.iter().map(|s| s.recvs).sum::<u64>() > 0);
    assert_eq!(stats.iter().map(|s| s.accepted).sum::<u64>(), 5);
    end(world);
}

fn many_links_are_balanced(io: IoChoice) {
    let world = spawn(two(io));
    let mut streams: Vec<_> = (0..200).map(|_| connect(&world)).collect();
    let mut counts = [0; 2];
    for stream in &mut streams {
        stream.write_all(&frame(WHERE, 0)).unwrap();
        counts[word(stream) as usize] += 1;
    }
    assert_eq!(counts, [100, 100]);
    let threads: Vec<_> = streams
        .drain(..50)
        .enumerate()
        .map(|(i, stream)| std::thread::spawn(move || echo_random(stream, i as u8, 20, 20_000)))
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    end(world);
}

fn a_slow_reader_gets_all(io: IoChoice) {
    let mut config = config(io);
    config.listeners[0].tcp.send_buffer = Some(16 << 10);
    let world = spawn(config);
    let mut stream = connect(&world);
    const LEN: usize = 6 << 20;
    stream.write_all(&frame(SOURCE, LEN as u32)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (mut at, mut part) = (0, vec![0; 100_000]);
    loop {
        let n = stream.read(&mut part).unwrap();
        if n == 0 {
            break;
        }
        assert!(
            part[..n].iter().enumerate().all(|(i, byte)| *byte == pattern(at + i)),
            "wrong bytes at {at}"
        );
        at += n;
        std::thread::sleep(Duration::from_micros(300));
    }
    assert_eq!(at, LEN);
    end(world);
}

fn a_reader_that_never_reads_is_dropped(io: IoChoice) {
    let world = spawn(config(io));
    let mut stream = connect(&world);
    stream.write_all(&frame(SOURCE, 32 << 20)).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    // The send cannot end, so the shard ends at the deadline with everything back.
    end(world);
}

fn a_reset_by_the_peer(io: IoChoice) {
    let world = spawn(config(io));
    for seed in 0..20u8 {
        let mut stream = connect(&world);
        stream.write_all(&frame(ECHO, 1 << 20)).unwrap();
        stream.write_all(&vec![seed; 50_000 * usize::from(seed)]).unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let len = size_of_val(&linger) as u32;
        // SAFETY: the option is valid for its length.
        let rc = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                len,
            )
        };
        assert_eq!(rc, 0);
    }
    until(|| world.stats()[0].links == 0 && world.stats()[0].accepted == 20);
    until(|| world.stats()[0].pool_lent == 0);
    echo_random(connect(&world), 1, 10, 10_000);
    end(world);
}

fn until(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(5), "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the first shard has taken all messages that were posted before.
fn heard(world: &World) {
    let (to, from) = channel();
    assert!(world.post(ShardId(0), Msg::Ping(to)));
    from.recv_timeout(Duration::from_secs(5)).unwrap();
}

/// What the first shard has counted by now: it tells with its next turn, which a message brings about.
fn counted(world: &World) -> ShardStats {
    world.post(ShardId(0), Msg::Ping(channel().0));
    world.stats()[0]
}

fn half_close_and_close(io: IoChoice) {
    let world = spawn(config(io));
    // The peer ends first: what it is owed still comes.
    let mut stream = connect(&world);
    stream.write_all(&frame(ECHO, 500_000)).unwrap();
    stream.write_all(&vec![7; 500_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all, vec![7; 500_000]);
    // We end first: bytes that the peer sends meanwhile do not cut off the answer.
    let mut stream = connect(&world);
    stream.write_all(&frame(SOURCE, 2 << 20)).unwrap();
    stream.write_all(&vec![0; 300_000]).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 2 << 20);
    drop(stream);
    until(|| world.stats()[0].links == 0);
    // Neither end waits for ever for a peer that does not end.
    let mut stream = connect(&world);
    stream.write_all(&frame(CLOSE, 0)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    until(|| world.stats()[0].links == 0);
    // A reset is one.
    let mut stream = connect(&world);
    stream.write_all(&frame(ABORT, 0)).unwrap();
    let e = stream.read(&mut [0]).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::ECONNRESET));
    end(world);
}

fn links_move(io: IoChoice) {
    let world = spawn(two(io));
    let mut stream = connect(&world);
    for round in 0..50u32 {
        let to = round % 2;
        let mut wire = frame(MOVE, to);
        // More than the move comes with it.
        wire.extend(frame(ECHO, 3000));
        wire.extend(vec![round as u8; 3000]);
        stream.write_all(&wire).unwrap();
        assert_eq!(word(&mut stream), to);
        let mut back = vec![0; 3000];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, vec![round as u8; 3000]);
        stream.write_all(&frame(WHERE, 0)).unwrap();
        assert_eq!(word(&mut stream), to);
    }
    drop(stream);
    until(|| world.stats().iter().all(|s| s.links == 0));
    end(world);
}

fn messages_wake_sleepers(io: IoChoice) {
    let mut world = spawn(two(io));
    let mut worst = Duration::ZERO;
    let mut sum = Duration::ZERO;
    for i in 0..40 {
        std::thread::sleep(Duration::from_millis(5));
        let (to, from) = channel();
        let start = Instant::now();
        let message = if i % 2 == 0 { Msg::Ping(to) } else { Msg::Relay(ShardId(1), to) };
        assert!(world.post(ShardId(0), message));
        let at = from.recv_timeout(Duration::from_secs(5)).expect("a message is never slept over");
        worst = worst.max(at - start);
        sum += at - start;
    }
    eprintln!("{io:?}: message latency mean {:?}, worst {worst:?}", sum / 40);
    assert!(sum / 40 < Duration::from_millis(200));
    let inbox = world.take_control_inbox().unwrap();
    // A flood arrives whole and in order.
    for _ in 0..10 {
        assert!(world.post(ShardId(1), Msg::Report(1000)));
    }
    for i in 0..10_000 {
        match inbox.recv_timeout(Duration::from_secs(5)).ok() {
            Some(Msg::Reported(n)) => assert_eq!(n, i % 1000),
            _ => panic!("message {i} is lost"),
        }
    }
    end(world);
}

fn timers_are_kept(io: IoChoice) {
    let world = spawn(config(io));
    for ms in [1, 3, 20, 50] {
        let (to, from) = channel();
        let start = Instant::now();
        world.post(ShardId(0), Msg::Alarm(Duration::from_millis(ms), to));
        let late = from.recv_timeout(Duration::from_secs(5)).unwrap() - start;
        assert!(late >= Duration::from_millis(ms), "{ms} ms came after {late:?}");
        // On a busy machine the thread itself waits for a core.
        assert!(late < Duration::from_millis(ms + 1000), "{ms} ms came after {late:?}");
    }
    end(world);
}

fn temp_file() -> File {
    let path =
        std::env::temp_dir().join(format!("blockwire-reactor-{}-{:?}", std::process::id(), Instant::now()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

/// Accepting that fails for want of memory, not of a descriptor, is not helped by giving one up: it rests.
fn accepting_that_fails_keeps_no_processor_busy(io: IoChoice) {
    denied_syscalls::run_with_denied(&[libc::SYS_accept4], libc::ENOMEM, || {
        let world = spawn(config(io));
        let exhausted = || {
            world.post(ShardId(0), Msg::Ping(channel().0));
            world.stats()[0].exhausted
        };
        let stream = connect(&world);
        until(|| exhausted() > 0);
        let (start, before) = (Instant::now(), exhausted());
        std::thread::sleep(Duration::from_millis(400));
        let times = exhausted() - before;
        // It rests for 100 ms at a time.
        let most = start.elapsed().as_millis() as u64 / 50 + 2;
        assert!(times <= most, "{times} times, where {most} were enough");
        drop(stream);
        end(world);
    });
}

fn links_beyond_the_limit_are_reset(io: IoChoice) {
    let world = spawn(Config { links_max: 3, ..config(io) });
    let mut streams: Vec<_> = (0..5).map(|_| connect(&world)).collect();
    until(|| world.stats()[0].refused == 2);
    let answers =
        |s: &mut TcpStream| s.write_all(&frame(WHERE, 0)).is_ok() && s.read(&mut [0]).is_ok_and(|n| n > 0);
    assert_eq!(streams.iter_mut().map(answers).filter(|alive| *alive).count(), 3);
    end(world);
}

/// Where a shard has no room for a link that another shard hands over, only its message arrives.
fn a_message_is_not_lost_with_the_link_that_it_comes_with(io: IoChoice) {
    let mut world = spawn(Config { links_max: 1, ..two(io) });
    let inbox = world.take_control_inbox().unwrap();
    let (mut one, mut other) = (connect(&world), connect(&world));
    for stream in [&mut one, &mut other] {
        stream.write_all(&frame(WHERE, 0)).unwrap();
    }
    let to = word(&mut other);
    assert_ne!(word(&mut one), to, "each shard has one link");
    one.write_all(&[frame(MOVE, to), vec![7; 5]].concat()).unwrap();
    let message = inbox.recv_timeout(Duration::from_secs(10)).ok();
    assert!(matches!(message, Some(Msg::Reported(5))), "what came with the link is lost");
    assert!(one.read(&mut [0]).is_err(), "the link is reset");
    end(world);
}

fn stopping_ends_accepting(io: IoChoice) {
    let world = spawn(config(io));
    let mut stream = connect(&world);
    stream.write_all(&frame(WHERE, 0)).unwrap();
    assert_eq!(word(&mut stream), 0);
    world.stop_accepting();
    until(|| TcpStream::connect(world.addresses()[0]).is_err());
    stream.write_all(&frame(WHERE, 0)).unwrap();
    assert_eq!(word(&mut stream), 0, "what was accepted is served");
    // With the last link the shard ends, long before the grace is over.
    let start = Instant::now();
    world.stop(Duration::from_secs(30));
    drop(stream);
    world.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
}

fn is_known_to_be_forbidden() -> bool {
    std::env::var_os("BLOCKWIRE_NO_URING").is_some()
}

macro_rules! worlds {
    ($($name:ident,)*) => {
        mod epoll {
            $(#[test] fn $name() { super::$name(super::IoChoice::Epoll); })*
        }

        mod uring {
            $(#[test] fn $name() {
                if !super::is_known_to_be_forbidden() {
                    super::$name(super::IoChoice::Uring);
                }
            })*
        }
    };
}

worlds! {
    echoes,
    many_links_are_balanced,
    many_links_share_little_memory,
    a_crowd_of_senders_leaves_little_with_the_kernel,
    a_slow_reader_gets_all,
    a_reader_that_never_reads_is_dropped,
    a_reset_by_the_peer,
    half_close_and_close,
    links_move,
    messages_wake_sleepers,
    timers_are_kept,
    disks_work,
    a_library_is_a_disk,
    disks_that_never_answer_keep_no_other_waiting,
    many_disks_that_never_answer_leave_workers_to_others,
    operations_out_come_back_at_the_end,
    links_that_arrive_at_the_end_hold_nobody_up,
    links_can_be_aborted_while_busy,
    a_close_delivers_what_is_being_sent,
    links_that_linger_are_bounded,
    a_late_end_of_a_link_that_starved_does_not_end_the_world,
    a_storm,
    tcp_options_are_inherited,
    listeners_come_change_and_go,
    accepting_that_fails_keeps_no_processor_busy,
    links_beyond_the_limit_are_reset,
    a_message_is_not_lost_with_the_link_that_it_comes_with,
    stopping_ends_accepting,
    connections_outwards_are_links,
    bytes_that_come_with_a_connection_are_received,
    connections_outwards_are_refused,
    connections_outwards_time_out,
    connections_being_made_come_back_at_the_end,
    connections_being_made_count_as_links,
    a_callers_thread_moves_bytes,
    a_descriptor_says_when_to_turn,
    what_came_before_the_descriptor_was_asked_for_wakes_it,
    a_descriptor_in_an_epoll_set_wakes,
    disks_wake_the_descriptor,
    turns_wait_as_long_as_they_are_told,
    what_is_out_comes_back_when_it_is_dropped,
    a_peer_that_goes_is_noticed,
}

#[test]
fn an_address_in_use_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(IoChoice::Auto);
    config.listeners[0].address = taken.local_addr().unwrap();
    let failed = Reactor::spawn(config, |id, _| TestEnd::new(id));
    assert!(matches!(failed, Err(SpawnError::Listen(..))));
}

/// As that of a process that was killed, whose ring the kernel has not ended yet.
#[test]
fn an_address_that_comes_free_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(IoChoice::Auto);
    config.listeners[0].address = taken.local_addr().unwrap();
    let freed = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(taken);
    });
    end(spawn(config));
    freed.join().unwrap();
}

#[test]
fn a_core_that_is_not_there_is_an_error() {
    let config = Config { cores: vec![0, 1000], ..config(IoChoice::Auto) };
    let failed = Reactor::spawn(config, |id, _| TestEnd::new(id));
    assert!(matches!(failed, Err(SpawnError::Core(1000, _))));
}

#[test]
fn an_endpoint_that_cannot_be_built_is_an_error() {
    let config = Config { cores: vec![0, 0, 0], ..config(IoChoice::Auto) };
    let failed = Reactor::spawn(config, |id, _| {
        assert_ne!(id, ShardId(1), "as the test wants");
        TestEnd::new(id)
    });
    assert!(matches!(failed, Err(SpawnError::System(_))));
}
