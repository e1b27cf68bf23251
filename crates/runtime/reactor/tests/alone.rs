//! Measurements of a whole process, each in a separate process: the test starts itself again with the name of
//! the measurement.

#[path = "worlds/endpoint.rs"]
#[expect(dead_code, reason = "messages that only the other tests send")]
mod endpoint;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use blockwire_reactor::{Config, IoChoice, IoKind, ListenConfig, Reactor, ReactorHandle, SpawnError};

use endpoint::*;

fn spawn(io: IoChoice) -> Result<ReactorHandle<Msg>, SpawnError> {
    let listen = ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap());
    let config = Config { io, cores: vec![0, 0], listeners: vec![listen], ..Config::default() };
    Reactor::spawn(config, |id, _| TestEnd::new(id))
}

fn connect(world: &ReactorHandle<Msg>) -> TcpStream {
    let mut stream = TcpStream::connect(world.addresses()[0]).unwrap();
    stream.write_all(&[WHERE.to_le_bytes(), [0; 4]].concat()).unwrap();
    stream.read_exact(&mut [0; 4]).unwrap();
    stream
}

fn end(world: ReactorHandle<Msg>) {
    world.stop(Duration::from_millis(200));
    world.join().unwrap();
}

fn cpu() -> Duration {
    // SAFETY: plain numbers, for which zero is valid; the call writes one rusage.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used
    };
    let of = |t: libc::timeval| Duration::from_micros(t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64);
    of(used.ru_utime) + of(used.ru_stime)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A hundred idle links cost no processor time and no pool memory.
fn idle(io: IoChoice) {
    let world = spawn(io).unwrap();
    let streams: Vec<_> = (0..100).map(|_| connect(&world)).collect();
    // What the machine does beside may only add, so the quietest of a few looks counts.
    let looks: Vec<_> = (0..3)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(100));
            let (cpu_before, before) = (cpu(), world.stats());
            std::thread::sleep(Duration::from_secs(1));
            let (used, after) = (cpu() - cpu_before, world.stats());
            for shard in &after {
                assert_eq!(shard.links, 50);
                assert_eq!(shard.pool_lent, 0, "an idle link pins memory");
            }
            let turns = before.iter().zip(&after).map(|(before, after)| after.turns - before.turns);
            (turns.max().unwrap(), used)
        })
        .collect();
    let at_rest = |look: &(u64, Duration)| look.0 <= 1 && look.1 < Duration::from_millis(2);
    assert!(looks.iter().any(at_rest), "turns and time used in each idle second: {looks:?}");
    drop(streams);
    end(world);
}

/// Links, listeners, disks and worlds that come and go leave no descriptor behind.
fn descriptors_are_closed(io: IoChoice) {
    let before = descriptors();
    for _ in 0..3 {
        let world = spawn(io).unwrap();
        let disk = world.add_disk(std::fs::File::open("/proc/self/exe").unwrap().into()).unwrap();
        let within = descriptors();
        for round in 0..5u32 {
            let mut streams: Vec<_> = (0..20).map(|_| connect(&world)).collect();
            for (i, stream) in streams.iter_mut().enumerate() {
                let op = [CLOSE, ABORT, MOVE, SOURCE][i % 4];
                let arg = if op == SOURCE { 1000 } else { round % 2 };
                stream.write_all(&[op.to_le_bytes(), arg.to_le_bytes()].concat()).unwrap();
            }
            drop(streams);
        }
        until(|| descriptors() == within);
        world.remove_disk(disk);
        end(world);
        until(|| descriptors() == before);
    }
}

/// With no descriptor left, a connection is turned away with the one that is kept for it; the world does not turn
/// round and round meanwhile, and accepts again later.
fn accepting_rests(io: IoChoice) {
    let world = spawn(io).unwrap();
    let limit = |most: u64| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
        // SAFETY: the limit is valid during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    let highest = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest =
        highest.map(|e| e.unwrap().file_name().into_string().unwrap().parse::<u64>().unwrap()).max();
    let mut filler: Vec<std::fs::File> = Vec::new();
    limit(highest.unwrap() + 20);
    let first = connect(&world);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        filler.push(file);
    }
    filler.pop();
    // Takes the last descriptor, so none is left to accept it with.
    let mut second = TcpStream::connect(world.addresses()[0]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = world.stats();
    std::thread::sleep(Duration::from_millis(500));
    let turns: u64 = world.stats().iter().zip(&before).map(|(now, then)| now.turns - then.turns).sum();
    assert!(turns < 30, "{turns} turns for nothing");
    second.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let turned_away = second.read(&mut [0; 4]).unwrap_err().kind();
    assert_eq!(turned_away, std::io::ErrorKind::ConnectionReset, "there is no descriptor for it");
    drop(filler);
    let mut second = connect(&world);
    second.write_all(&[WHERE.to_le_bytes(), [0; 4]].concat()).unwrap();
    second.read_exact(&mut [0; 4]).unwrap();
    drop((first, second));
    end(world);
}

fn until(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(5), "it never happens");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A daemon starts with as many disks as it came to have while it ran.
fn many_disks(io: IoChoice) {
    const DISKS: usize = 4500;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid during the calls.
    let most = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        limit.rlim_max
    };
    if most < DISKS as u64 + 500 {
        return eprintln!("skipped: a process may have {most} files here");
    }
    let disk = blockwire_reactor::DiskSource::from(std::fs::File::open("/dev/null").unwrap());
    let listeners = vec![ListenConfig::from("127.0.0.1:0".parse::<SocketAddr>().unwrap())];
    let config = Config { io, cores: vec![0], listeners, disks: vec![disk; DISKS], ..Config::default() };
    let world = Reactor::spawn(config, |id, _| TestEnd::new(id)).unwrap();
    drop(connect(&world));
    end(world);
}

/// Where the kernel forbids io_uring, `auto` takes epoll and says why, and `uring` is an error.
fn forbidden() {
    forbid_uring();
    let world = spawn(IoChoice::Auto).unwrap();
    assert!(matches!(world.io_kind(), IoKind::EpollInstead(e) if e.raw_os_error() == Some(libc::EPERM)));
    assert!(world.io_kind().to_string().starts_with("epoll, since io_uring is not to be had"));
    connect(&world);
    end(world);
    assert!(matches!(spawn(IoChoice::Uring), Err(SpawnError::Uring(_))));
}

/// Makes io_uring_setup fail with EPERM, as containers do.
fn forbid_uring() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number of the system call is at offset 0.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, denied),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter are valid during the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Runs as the child, if the environment says so.
#[test]
fn part() {
    let (Ok(part), Ok(io)) = (std::env::var("REACTOR_PART"), std::env::var("REACTOR_IO")) else { return };
    let io = if io == "uring" { IoChoice::Uring } else { IoChoice::Epoll };
    match part.as_str() {
        "idle" => idle(io),
        "descriptors" => descriptors_are_closed(io),
        "exhausted" => accepting_rests(io),
        "forbidden" => forbidden(),
        "disks" => many_disks(io),
        other => panic!("there is no part {other}"),
    }
}

fn alone(part: &str, io: &str) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "part", "--nocapture"])
        .env("REACTOR_PART", part)
        .env("REACTOR_IO", io)
        .status()
        .unwrap();
    assert!(status.success(), "{part} on {io}");
}

fn on_both(part: &str) {
    alone(part, "epoll");
    if std::env::var_os("BLOCKWIRE_NO_URING").is_none() {
        alone(part, "uring");
    }
}

#[test]
fn idle_links_cost_nothing() {
    on_both("idle");
}

#[test]
fn no_descriptor_leaks() {
    on_both("descriptors");
}

#[test]
fn accepting_rests_without_descriptors() {
    on_both("exhausted");
}

#[test]
fn more_disks_than_mailbox_places_do_not_keep_a_world_from_starting() {
    on_both("disks");
}

#[test]
fn without_io_uring_epoll_serves() {
    alone("forbidden", "epoll");
}
