//! Hostile NBD clients, from seeds: they send what a correct client would send, changed, cut and in pieces.
//! `SIM_SEEDS=n` runs n of them, `SIM_SEED=n` that one. A client receives only the data of the volume at the
//! offset that it requested, no memory is leaked, and correct clients are served at the same time and
//! afterwards.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blockwire_block_device::{ServerStop, Statistics, nbd};
use support::{Behaviour, Mutator, RamVolume};
use testkit::seeds::seed_range;
use volume::RamDisk;

const SIZE: usize = 1 << 20;
const REQUEST: u32 = 0x2560_9513;
const CHUNK: u32 = 0x668e_33ef;
const SIMPLE: u32 = 0x6744_6698;

struct Server {
    dir: PathBuf,
    socket: PathBuf,
    stop: ServerStop,
    statistics: Arc<Statistics>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

/// A server that listens, at `sock` in a directory of its own.
fn listen(what: &str) -> (PathBuf, nbd::Server) {
    use std::hash::BuildHasher;
    let random = std::hash::RandomState::new().hash_one(what);
    let dir = std::env::temp_dir().join(format!("attach-hostile-{what}-{random:016x}"));
    std::fs::create_dir(&dir).unwrap();
    let settings = nbd::Settings { stall: Duration::from_secs(2), ..nbd::Settings::new(dir.join("sock")) };
    (dir, nbd::Server::new(settings).unwrap())
}

impl Server {
    fn start(what: &str, mood: Behaviour) -> Server {
        let (dir, mut server) = listen(what);
        let socket = dir.join("sock");
        let (stop, statistics) = (ServerStop::new().unwrap(), server.io_counters());
        let its_stop = stop.clone();
        let thread = std::thread::spawn(move || {
            let blocks = SIZE as u64 / 512;
            let mut volume = RamVolume::new(Arc::new(RamDisk::new(blocks, blocks, 512, 4096)), mood);
            server.run(&mut volume, &its_stop)
        });
        Server { dir, socket, stop, statistics, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request_stop();
        self.stop.request_stop();
        let ended = self.thread.take().unwrap().join();
        let _ = std::fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            ended.expect("the server did not panic").unwrap();
        }
    }
}

/// What the volume has at a place.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16)) as u8 | 1
}

fn request(command: u16, flags: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What an honest client says until it may ask for blocks.
fn greeting() -> Vec<u8> {
    let context = [&[0; 4][..], &1_u32.to_be_bytes(), &15_u32.to_be_bytes(), b"base:allocation"].concat();
    let parts = [3_u32.to_be_bytes().to_vec(), option(8, &[]), option(10, &context), option(7, &[0; 6])];
    parts.concat()
}

fn honest_requests(noise: &mut Mutator) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cookie in 0..noise.draw(12) {
        let len = [512, 4096, 1, 1000, 70_000][noise.draw(5) as usize];
        let at = noise.draw((SIZE - len) as u64);
        let command = [0, 0, 0, 1, 1, 3, 4, 5, 6, 7][noise.draw(10) as usize];
        bytes.extend(request(command, noise.draw(2) as u16, cookie, at, len as u32));
        if command == 1 {
            bytes.extend(std::iter::repeat_n(0xee, len));
        }
    }
    bytes
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Looks at structured answers as far as they go: their data is what is on the volume. Gives how many bytes that were.
fn check(mut said: &[u8], seed: u64) -> usize {
    let mut seen = 0;
    let word = |from: &[u8], at: usize| u32::from_be_bytes(from[at..at + 4].try_into().unwrap());
    while said.len() >= 20 && word(said, 0) == CHUNK {
        let (kind, len) = (u16::from_be_bytes([said[6], said[7]]), word(said, 16) as usize);
        let Some(payload) = said.get(20..20 + len) else { break };
        if kind == 1 {
            seen += len;
            let at = u64::from_be_bytes(payload[..8].try_into().unwrap()) as usize;
            for (n, byte) in payload[8..].iter().enumerate() {
                assert_eq!(*byte, pattern(at + n), "seed {seed}: byte {} of the volume", at + n);
            }
        }
        said = &said[20 + len..];
    }
    seen
}

/// Says something, in pieces, and hears what is answered until it goes away.
fn converse(socket: &Path, bytes: &[u8], noise: &mut Mutator) -> Vec<u8> {
    let mut stream = connect(socket);
    let mut heard = Vec::new();
    let mut hear = |stream: &mut UnixStream, wait: Duration| {
        stream.set_read_timeout(Some(wait)).unwrap();
        let mut piece = [0; 1 << 16];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => return true,
                Ok(n) => heard.extend_from_slice(&piece[..n]),
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    };
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut from = 0;
    while from < bytes.len() {
        let now = (noise.draw(30_000) as usize + 1).min(bytes.len() - from);
        if stream.write_all(&bytes[from..from + now]).is_err() {
            break;
        }
        from += now;
        if noise.draw(4) == 0 && hear(&mut stream, Duration::from_millis(1)) {
            return heard;
        }
    }
    if noise.draw(3) > 0 {
        hear(&mut stream, Duration::from_millis(3));
    }
    if noise.draw(2) == 0 {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(hear(&mut stream, Duration::from_secs(10)), "a connection without a client stays");
    }
    heard
}

/// An honest client: reads, and writes if it may.
fn is_served(socket: &Path, writes: bool, noise: &mut Mutator) {
    let mut stream = connect(socket);
    let take = |stream: &mut UnixStream, len: usize| {
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).expect("an honest client is served");
        bytes
    };
    stream.write_all(&[&3_u32.to_be_bytes()[..], &option(1, &[])].concat()).unwrap();
    take(&mut stream, 18 + 10);
    let at = noise.draw((SIZE - 5000) as u64);
    let bytes: Vec<u8> =
        (0..5000).map(|n| if writes { noise.draw(256) as u8 } else { pattern(at as usize + n) }).collect();
    if writes {
        stream.write_all(&[request(1, 0, 8, at, 5000), bytes.clone()].concat()).unwrap();
        let head = take(&mut stream, 16);
        assert_eq!(head[..8], [&SIMPLE.to_be_bytes()[..], &[0; 4]].concat());
    }
    stream.write_all(&request(0, 0, 9, at, 5000)).unwrap();
    let head = take(&mut stream, 16);
    assert_eq!(head, [&SIMPLE.to_be_bytes()[..], &[0; 4], &9_u64.to_be_bytes()].concat());
    assert!(take(&mut stream, 5000) == bytes);
}

fn fill(socket: &Path) {
    let mut stream = connect(socket);
    let bytes: Vec<u8> = (0..SIZE).map(pattern).collect();
    stream.write_all(&[&3_u32.to_be_bytes()[..], &option(1, &[])].concat()).unwrap();
    stream.write_all(&[request(1, 0, 8, 0, SIZE as u32), bytes].concat()).unwrap();
    let mut said = [0; 18 + 10 + 16];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(said[18 + 10 + 4..][..4], [0; 4]);
}

#[test]
fn sessions_of_hostile_clients_get_nothing_that_is_not_theirs() {
    for writes in [false, true] {
        // Little memory: what stays behind is missed soon.
        let mood =
            Behaviour { shuffle: Some(5), never_lends: true, memory: Some(4 << 20), ..Behaviour::default() };
        let server = Server::start(if writes { "written" } else { "read" }, mood.clone());
        fill(&server.socket);
        mood.protected.store(!writes, std::sync::atomic::Ordering::Relaxed);
        let mut seen = 0;
        for seed in seed_range(100) {
            let noise = &mut Mutator::new(seed);
            let mut bytes = greeting();
            if noise.draw(3) == 0 {
                noise.mutate(&mut bytes);
            }
            let mut requests = honest_requests(noise);
            for _ in 0..noise.draw(6) {
                noise.mutate(&mut requests);
            }
            bytes.extend(requests);
            let heard = converse(&server.socket, &bytes, noise);
            if !writes {
                let answers = heard.windows(4).position(|word| word == CHUNK.to_be_bytes());
                seen += answers.map_or(0, |at| check(&heard[at..], seed));
            }
            is_served(&server.socket, writes, noise);
        }
        assert!(writes || seen > 0 || seed_range(100).count() < 20, "nothing was handed out at all");
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while server.statistics.snapshot().clients > 0 {
            assert!(std::time::Instant::now() < until, "clients that are gone are counted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// That a client is gone is told again and again, also where there is no room to hear of it.
#[test]
fn a_client_that_is_gone_keeps_nobody_awake_while_the_disk_is_silent() {
    let mood = Behaviour { silent: true, ..Behaviour::default() };
    let (dir, mut server) = listen("gone");
    let socket = dir.join("sock");
    let stop = ServerStop::new().unwrap();
    let its_stop = stop.clone();
    let client = std::thread::spawn(move || {
        let mut stream = connect(&socket);
        let mut bytes = greeting();
        // More than are taken at a time, and more behind them than are kept.
        (0..2000).for_each(|cookie| bytes.extend(request(0, 0, cookie, 0, 512)));
        stream.write_all(&bytes).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(stream);
        std::thread::sleep(Duration::from_millis(500));
        its_stop.request_stop();
        its_stop.request_stop();
    });
    let mut volume = RamVolume::new(Arc::new(RamDisk::new(64, 64, 512, 4096)), mood);
    let before = processor_time();
    server.run(&mut volume, &stop).unwrap();
    let used = processor_time() - before;
    client.join().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(used < Duration::from_millis(100), "{used:?} of processor time in 500 ms");
}
