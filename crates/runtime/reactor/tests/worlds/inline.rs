//! Shards that their caller's thread drives.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ::endpoint::{Dialled, Endpoint, ShardId};
use blockwire_reactor::{Config, InlineReactor, IoChoice, SendableReactor, SpawnError};

use crate::endpoint::*;
use crate::{echo_random, frame, temp_file, word};

type Own = InlineReactor<TestEnd>;

fn make(io: IoChoice) -> Own {
    InlineReactor::new(Config { io, ..Config::default() }, |_| TestEnd::new(ShardId(0))).unwrap()
}

fn tell(own: &mut Own, message: Msg) {
    own.with_endpoint(|end, cx| end.handle_message(cx, message));
}

/// Asks for a connection to a listener of the test's.
fn dial(own: &mut Own, to: &TcpListener) -> Receiver<Result<Dialled, i32>> {
    let (answer, told) = channel();
    tell(own, Msg::Dial(to.local_addr().unwrap(), Duration::from_secs(5), answer));
    told
}

/// Turns until there is an answer.
fn answer<T>(own: &mut Own, told: &Receiver<T>) -> T {
    let start = Instant::now();
    loop {
        match told.try_recv() {
            Ok(answer) => return answer,
            Err(TryRecvError::Empty) => own.turn(Some(Duration::from_secs(10))),
            Err(TryRecvError::Disconnected) => panic!("there will be no answer"),
        }
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// By then a descriptor wakes who waits for it, on a machine that has much else to do.
const WAKE_MAX: Duration = Duration::from_secs(2);

/// Whether the descriptor becomes readable within so long.
fn is_readable(own: &Own, within: Duration) -> bool {
    let mut poll = libc::pollfd { fd: own.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    match unsafe { libc::poll(&mut poll, 1, within.as_millis() as i32) } {
        0 => false,
        1 => true,
        other => panic!("poll gives {other}: {}", std::io::Error::last_os_error()),
    }
}

/// A loop of the caller's own: waits for the descriptor alone, and is woken by it whenever it was told no
/// time. Gives how many turns it took.
fn run_by_descriptor(own: &mut Own, is_done: impl Fn(&mut Own) -> bool) -> u32 {
    let start = Instant::now();
    let mut turns = 0;
    while !is_done(own) {
        assert!(start.elapsed() < Duration::from_secs(20), "the descriptor did not wake us");
        let wait = own.wait_max();
        if wait != Some(Duration::ZERO) {
            let woken = is_readable(own, wait.unwrap_or(WAKE_MAX).min(WAKE_MAX));
            assert!(woken || wait.is_some_and(|wait| wait < WAKE_MAX), "nobody was woken");
        }
        own.turn(Some(Duration::ZERO));
        turns += 1;
    }
    turns
}

pub fn a_callers_thread_moves_bytes(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    let peer = thread::spawn(move || echo_random(listener.accept().unwrap().0, 3, 40, 200_000));
    answer(&mut own, &told).unwrap();
    while own.stats().links > 0 {
        own.turn(None);
    }
    peer.join().unwrap();
}

pub fn a_descriptor_says_when_to_turn(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    run_by_descriptor(&mut own, |own| own.stats().links == 1);
    let (mut stream, _) = listener.accept().unwrap();
    run_by_descriptor(&mut own, |_| told.try_recv().is_ok_and(|how| how.is_ok()));
    // What is idle is not readable, and has no time. When it is first asked for it may be.
    is_readable(&own, Duration::ZERO);
    own.turn(Some(Duration::ZERO));
    while own.wait_max() == Some(Duration::ZERO) {
        own.turn(Some(Duration::ZERO));
    }
    assert_eq!(own.wait_max(), None);
    assert!(!is_readable(&own, Duration::from_millis(50)));
    // Who only takes what has ended need not turn for that.
    own.take_from_endpoint(|_| ());
    assert_eq!(own.wait_max(), None);
    for _ in 0..20 {
        stream.write_all(&frame(WHERE, 0)).unwrap();
        assert!(is_readable(&own, Duration::from_secs(5)), "bytes make it readable");
        let before = own.stats().recvs;
        let turns = run_by_descriptor(&mut own, |own| own.stats().recvs > before);
        assert!(turns <= 3, "{turns} turns");
        run_by_descriptor(&mut own, |own| own.wait_max().is_none());
        assert_eq!(word(&mut stream), 0, "the answer left before the descriptor was waited for");
    }
    let peer = thread::spawn(move || echo_random(stream, 5, 40, 100_000));
    run_by_descriptor(&mut own, |own| own.stats().links == 0);
    peer.join().unwrap();
}

pub fn what_came_before_the_descriptor_was_asked_for_wakes_it(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    answer(&mut own, &told).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    while own.wait_max() == Some(Duration::ZERO) {
        own.turn(Some(Duration::ZERO));
    }
    let before = own.stats().recvs;
    stream.write_all(&frame(WHERE, 0)).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert!(is_readable(&own, WAKE_MAX), "bytes came before the first look at the descriptor");
    run_by_descriptor(&mut own, |own| own.stats().recvs > before);
    run_by_descriptor(&mut own, |own| own.wait_max().is_none());
    assert_eq!(word(&mut stream), 0);
}

/// A loop that keeps the descriptor in an epoll set, where what is not signalled is not seen.
pub fn a_descriptor_in_an_epoll_set_wakes(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    run_by_descriptor(&mut own, |own| own.stats().links == 1);
    let (mut stream, _) = listener.accept().unwrap();
    run_by_descriptor(&mut own, |_| told.try_recv().is_ok_and(|how| how.is_ok()));
    // SAFETY: no memory is involved.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(set >= 0);
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open, and the event lives during the call.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, own.as_fd().as_raw_fd(), &mut event) };
    assert_eq!(added, 0);
    for round in 0..20 {
        let mut late = stream.try_clone().unwrap();
        let peer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5 * (round % 3)));
            late.write_all(&frame(WHERE, 0)).unwrap();
        });
        let before = own.stats().recvs;
        while own.stats().recvs == before || own.wait_max().is_some() {
            if own.wait_max() != Some(Duration::ZERO) {
                // SAFETY: room for one event.
                let ready = unsafe { libc::epoll_wait(set, &mut event, 1, 5000) };
                assert_eq!(ready, 1, "round {round}: bytes came and nobody was woken");
            }
            own.turn(Some(Duration::ZERO));
        }
        peer.join().unwrap();
        assert_eq!(word(&mut stream), 0);
    }
    // SAFETY: ours, and used no more.
    unsafe { libc::close(set) };
}

pub fn disks_wake_the_descriptor(io: IoChoice) {
    let mut file = temp_file();
    file.write_all(&[7; 100_000]).unwrap();
    let disks = vec![File::try_clone(&file).unwrap().into()];
    let config = Config { io, disks, ..Config::default() };
    let mut own = InlineReactor::new(config, |_| TestEnd::new(ShardId(0))).unwrap();
    let disk = volume::DiskId(0);
    for _ in 0..500 {
        let (to, told) = channel();
        tell(&mut own, Msg::Disk(disk, Step::Read(10, 5000), to));
        run_by_descriptor(&mut own, |_| match told.try_recv() {
            Ok(got) => got.as_deref() == Ok(&[7; 5000]),
            Err(_) => false,
        });
        // A call that only a thread of ours can make.
        let (to, told) = channel();
        tell(&mut own, Msg::Disk(disk, Step::NextData(0), to));
        run_by_descriptor(&mut own, |_| told.try_recv().is_ok_and(|got| got.is_ok()));
    }
}

pub fn turns_wait_as_long_as_they_are_told(io: IoChoice) {
    let mut own = make(io);
    let start = Instant::now();
    (0..100).for_each(|_| own.turn(Some(Duration::ZERO)));
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(60) {
        own.turn(Some(Duration::from_millis(60)));
    }
    assert!(own.stats().turns < 250, "it sleeps: {:?}", own.stats());
    // The endpoint's timer ends a wait without an end.
    let (to, told) = channel();
    tell(&mut own, Msg::Alarm(Duration::from_millis(40), to));
    let start = Instant::now();
    let rung = answer(&mut own, &told);
    assert!((35..1000).contains(&rung.duration_since(start).as_millis()));
    // And is told to who waits by himself.
    let (to, told) = channel();
    tell(&mut own, Msg::Alarm(Duration::from_millis(40), to));
    run_by_descriptor(&mut own, |_| told.try_recv().is_ok());
}

pub fn what_is_out_comes_back_when_it_is_dropped(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    answer(&mut own, &told).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    // It receives a payload, and sends more than anybody takes.
    stream.write_all(&frame(ECHO, 9 << 20)).unwrap();
    let peer = thread::spawn(move || {
        let bytes = vec![7; 8 << 20];
        // The system may take all of it, or notice that nobody is there any more.
        let _ = stream.write_all(&bytes);
    });
    for _ in 0..20 {
        own.turn(Some(Duration::from_millis(1)));
    }
    let pending = dial(&mut own, &listener);
    let start = Instant::now();
    drop(own);
    assert!(start.elapsed() < Duration::from_secs(2));
    peer.join().unwrap();
    // The endpoint itself asserts that all came back.
    assert!(!matches!(pending.try_recv(), Ok(Ok(_))));
}

#[test]
fn it_goes_from_thread_to_thread() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(IoChoice::Epoll);
    let told = dial(&mut own, &listener);
    // SAFETY: all memory of the pool is in the endpoint, whose answers go through channels.
    let roaming = Arc::new(Mutex::new(unsafe { SendableReactor::new(own) }.unwrap()));
    let peer = thread::spawn(move || echo_random(listener.accept().unwrap().0, 8, 60, 100_000));
    let turners: Vec<_> = (0..3)
        .map(|_| {
            let roaming = roaming.clone();
            thread::spawn(move || {
                let start = Instant::now();
                while start.elapsed() < Duration::from_secs(20) {
                    let mut roaming = roaming.lock().unwrap();
                    roaming.reactor_mut().turn(Some(Duration::from_millis(2)));
                    let stats = roaming.reactor_mut().stats();
                    if stats.recvs > 0 && stats.links == 0 {
                        return;
                    }
                }
                panic!("it does not end");
            })
        })
        .collect();
    turners.into_iter().for_each(|turner| turner.join().unwrap());
    peer.join().unwrap();
    assert!(told.try_recv().unwrap().is_ok());
}

#[test]
fn a_ring_stays_on_its_thread() {
    if !crate::is_known_to_be_forbidden() {
        // SAFETY: it does not move.
        assert!(unsafe { SendableReactor::new(make(IoChoice::Uring)) }.is_err());
    }
}

#[test]
fn it_has_no_listeners_and_no_cores() {
    let listening = crate::config(IoChoice::Auto);
    let failed = InlineReactor::new(listening, |_| TestEnd::new(ShardId(0)));
    assert!(matches!(failed, Err(SpawnError::System(_))));
}

pub fn a_peer_that_goes_is_noticed(io: IoChoice) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut own = make(io);
    let told = dial(&mut own, &listener);
    answer(&mut own, &told).unwrap();
    let (stream, _): (TcpStream, _) = listener.accept().unwrap();
    drop(stream);
    run_by_descriptor(&mut own, |own| own.stats().links == 0);
}
