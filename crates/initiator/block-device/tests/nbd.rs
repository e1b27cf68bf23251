//! The NBD server against third-party clients, and against a hostile one.

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use blockwire_block_device::{ServerStop, Statistics, nbd};
use support::{Behaviour, RamVolume, behaviours, run, verifying};
use volume::RamDisk;

const MIB: u64 = 1 << 20;

/// A server on a thread of its own.
struct Server {
    dir: PathBuf,
    socket: PathBuf,
    url: String,
    disk: Arc<RamDisk>,
    stop: ServerStop,
    statistics: Arc<Statistics>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

/// A directory of ours alone, under a name that nobody else can foretell.
fn own_directory(what: &str) -> PathBuf {
    use std::hash::BuildHasher;
    use std::os::unix::fs::DirBuilderExt;
    let random = std::hash::RandomState::new().hash_one(what);
    let dir = std::env::temp_dir().join(format!("attach-nbd-{what}-{random:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    dir
}

impl Server {
    fn start(mib: u64, logical: u32, mood: Behaviour) -> Server {
        Self::start_with(mib, logical, mood, |_| {})
    }

    fn start_with(
        mib: u64,
        logical: u32,
        mood: Behaviour,
        change: impl FnOnce(&mut nbd::Settings),
    ) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = own_directory(&n.to_string());
        let socket = dir.join("sock");
        let blocks = mib * MIB / u64::from(logical);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let stop = ServerStop::new().unwrap();
        let mut settings = nbd::Settings::new(&socket);
        change(&mut settings);
        let mut server = nbd::Server::new(settings).unwrap();
        let (statistics, url) = (server.io_counters(), server.url());
        let (its_disk, its_stop) = (disk.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut volume = RamVolume::new(its_disk, mood);
            server.run(&mut volume, &its_stop)
        });
        Server { dir, socket, url, disk, stop, statistics, thread: Some(thread) }
    }

    fn end(&mut self) -> std::io::Result<()> {
        self.stop.request_stop();
        self.thread.take().unwrap().join().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn noise(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.file(name);
        let mut from = std::fs::File::open("/dev/urandom").unwrap().take(bytes);
        std::io::copy(&mut from, &mut std::fs::File::create(&path).unwrap()).unwrap();
        path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn qemu_writes_reads_and_compares() {
    for (logical, mood) in behaviours() {
        let server = Server::start(64, logical, mood);
        let image = server.noise("image", 64 * MIB);
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", text(&image), &server.url]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&image), &server.url]);
        let commands = "write -P 7 1M 2M; read -P 7 1M 2M; write -z -u 2M 64k; read -P 0 2M 64k; \
             write -f -P 9 513 1000; read -P 9 513 1000; discard 4M 4M; read -P 0 4M 4M; write -z 8M 1M; \
             read -P 0 8M 1M; flush; aio_write -P 3 16M 4M; aio_write -P 4 20M 4M; aio_flush; \
             read -P 3 16M 4M; read -P 4 20M 4M";
        let commands = commands.split("; ").flat_map(|command| ["-c", command]);
        let arguments: Vec<&str> = ["-f", "raw"].into_iter().chain(commands).chain([&*server.url]).collect();
        run("qemu-io", &arguments);
        let counted = server.statistics.snapshot();
        assert!(
            counted.bytes_written >= 64 * MIB && counted.flushes > 0 && counted.discards > 0,
            "{counted:?}"
        );
        assert_eq!(counted.failures, 0, "{counted:?}");
    }
}

#[test]
fn libnbd_sees_what_is_offered() {
    let server = Server::start_with(16, 512, Behaviour::default(), |settings| {
        settings.name = "data volume".into();
        settings.description = "a volume of tests".into();
    });
    let said = run("nbdinfo", &["--json", &server.url]);
    for part in [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-size\": 16777216",
        "\"is_read_only\": false",
        "\"can_multi_conn\": true",
        "\"can_fua\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_fast_zero\": true",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_flush\": true",
        "base:allocation",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "a volume of tests",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    let said = run("nbdinfo", &["--list", &format!("nbd+unix:///?socket={}", text(&server.socket))]);
    assert!(said.contains("data volume"), "{said}");
    let read_only = Server::start(1, 512, Behaviour { read_only: true, ..Behaviour::default() });
    assert!(run("nbdinfo", &[&read_only.url]).contains("is_read_only: true"));
    assert_eq!(run("nbdinfo", &["--size", &read_only.url]).trim(), "1048576");
}

#[test]
fn holes_are_told() {
    let server = Server::start(16, 512, Behaviour::default());
    run("qemu-io", &["-f", "raw", "-c", "write -P 1 4M 1M", "-c", "write -P 1 8M 4k", &server.url]);
    let said = run("nbdinfo", &["--map", &server.url]);
    let rows: Vec<Vec<u64>> = said
        .lines()
        .map(|line| line.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect())
        .collect();
    assert_eq!(
        rows,
        [
            [0, 4 * MIB, 3],
            [4 * MIB, MIB, 0],
            [5 * MIB, 3 * MIB, 3],
            [8 * MIB, 4096, 0],
            [8 * MIB + 4096, 8 * MIB - 4096, 3]
        ]
    );
}

#[test]
fn nbdcopy_uses_several_connections() {
    for (logical, mood) in behaviours() {
        let server = Server::start(64, logical, mood);
        let image = server.noise("image", 64 * MIB);
        let back = server.file("back");
        run("nbdcopy", &["--connections=4", "--requests=16", "--flush", text(&image), &server.url]);
        run("nbdcopy", &["--connections=4", &server.url, text(&back)]);
        run("cmp", &[text(&image), text(&back)]);
    }
}

#[test]
fn fio_verifies_by_its_nbd_engine() {
    for (logical, mood) in behaviours() {
        let server = Server::start(64, logical, mood);
        let said = run("fio", &verifying(&format!("--ioengine=nbd --uri={} --bsrange=4k-128k", server.url)));
        assert!(!said.contains("verify:"), "{said}");
    }
}

#[test]
fn nbdkit_stacks_on_it() {
    let server = Server::start(8, 512, Behaviour::default());
    let socket = format!("socket={}", text(&server.socket));
    let server = server.file("kit");
    let said = run("nbdkit", &["-U", text(&server), "nbd", &socket, "--run", "nbdinfo --size \"$uri\""]);
    assert_eq!(said.trim(), "8388608");
}

#[test]
fn a_volume_that_grows_is_seen_by_new_connections() {
    let server = Server::start(8, 512, Behaviour::default());
    let old = Client::connect(&server.socket, Form::ExportName);
    assert_eq!(old.size, 8 * MIB);
    assert!(server.disk.resize(16 * MIB / 512));
    // The server looks when it next has something to do.
    assert_eq!(run("nbdinfo", &["--size", &server.url]).trim(), "16777216");
}

/// How a client of ours negotiates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As the kernel's client and old ones do: simple replies, no limits known.
    ExportName,
    Structured,
}

/// A client that sends what it is told.
struct Client {
    stream: UnixStream,
    size: u64,
}

impl Client {
    fn raw(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream, size: 0 };
        assert_eq!(client.take(18)[..16], *b"NBDMAGICIHAVEOPT");
        client
    }

    fn connect(socket: &Path, form: Form) -> Client {
        let mut client = Client::raw(socket);
        client.send(&3_u32.to_be_bytes());
        if form == Form::Structured {
            client.option(8, &[]);
            assert_eq!(client.option_reply(), (8, 1, vec![]));
        }
        client.option(1, &[]);
        let said = client.take(10);
        client.size = u64::from_be_bytes(said[..8].try_into().unwrap());
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.send(b"IHAVEOPT");
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
    }

    fn option_reply(&mut self) -> (u32, u32, Vec<u8>) {
        let head = self.take(20);
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let data = self.take(number(16) as usize);
        (number(8), number(12), data)
    }

    fn request(&mut self, command: u16, flags: u16, cookie: u64, at: u64, len: u32) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        self.send(&bytes);
    }

    /// A simple reply without data: error and cookie.
    fn simple(&mut self) -> (u32, u64) {
        let head = self.take(16);
        assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
        (
            u32::from_be_bytes(head[4..8].try_into().unwrap()),
            u64::from_be_bytes(head[8..].try_into().unwrap()),
        )
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn clients_that_know_no_limits_are_served() {
    for (logical, mood) in [
        (512, Behaviour::default()),
        (
            4096,
            Behaviour {
                shuffle: Some(3),
                never_lends: true,
                max_io: Some(128 << 10),
                ..Behaviour::default()
            },
        ),
    ] {
        let server = Server::start(64, logical, mood);
        let mut client = Client::connect(&server.socket, Form::ExportName);
        let len = 32 * MIB as usize;
        let bytes: Vec<u8> = (0..len).map(|n| (n * 31 % 253) as u8).collect();
        // Off every block boundary, in one request of the longest kind.
        client.request(1, 0, 1, 1001, len as u32);
        let mut writer = client.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.write_all(&bytes).unwrap());
            assert_eq!(client.simple(), (0, 1));
        });
        client.request(0, 0, 2, 1001, len as u32);
        assert_eq!(client.simple(), (0, 2));
        assert!(client.take(len) == bytes, "what was written is read");
        client.request(0, 0, 3, 0, 2000);
        assert_eq!(client.simple(), (0, 3));
        let around = client.take(2000);
        assert!(around[..1001].iter().all(|&byte| byte == 0) && around[1001..] == bytes[..999]);
    }
}

#[test]
fn unaligned_writes_of_several_clients_lose_nothing() {
    let mood = Behaviour { shuffle: Some(5), never_lends: true, ..Behaviour::default() };
    let server = Server::start(1, 4096, mood);
    // Four clients write neighbouring bytes of the same blocks at the same time.
    std::thread::scope(|scope| {
        for which in 0..4_u64 {
            let socket = &server.socket;
            scope.spawn(move || {
                let mut client = Client::connect(socket, Form::Structured);
                for n in 0..200 {
                    client.request(1, (n % 2) as u16, n, n * 400 + which * 100, 100);
                    client.send(&[which as u8 + 1; 100]);
                }
                for _ in 0..200 {
                    assert_eq!(client.simple().0, 0);
                }
            });
        }
    });
    let mut client = Client::connect(&server.socket, Form::ExportName);
    client.request(0, 0, 1, 0, 80_000);
    assert_eq!(client.simple(), (0, 1));
    let bytes = client.take(80_000);
    for (at, byte) in bytes.iter().enumerate() {
        assert_eq!(usize::from(*byte), at / 100 % 4 + 1, "byte {at}");
    }
}

#[test]
fn what_is_wrong_is_refused_and_the_stream_stays_in_step() {
    let server = Server::start(1, 512, Behaviour::default());
    let mut client = Client::connect(&server.socket, Form::ExportName);
    let cases: [(u16, u16, u64, u32, u32); 12] = [
        (0, 0, MIB, 1, 22),            // read behind the end
        (0, 0, u64::MAX, 512, 22),     // the sum is no 64-bit number
        (1, 0, MIB - 511, 512, 28),    // write across the end
        (1, 0x8000, 0, 512, 22),       // unknown flag
        (1, 0, 0, (32 << 20) + 1, 75), // longer than offered
        (0, 0, 0, u32::MAX, 75),
        (4, 0, MIB, 512, 22),    // trim behind the end
        (6, 0, MIB, 512, 28),    // zeroes behind the end
        (6, 2 | 16, 0, 512, 95), // fast, but no hole
        (7, 0, 0, 512, 22),      // block status without a context
        (9, 0, 0, 512, 22),      // no such command
        (65535, 0, 0, 0, 22),
    ];
    for (n, (command, flags, at, len, error)) in cases.into_iter().enumerate() {
        client.request(command, flags, n as u64, at, len);
        if command == 1 {
            client.send(&vec![1; len as usize]);
        }
        assert_eq!(client.simple(), (error, n as u64), "case {n}");
    }
    client.request(1, 1, 99, 7, 3);
    client.send(b"abc");
    assert_eq!(client.simple(), (0, 99));
    client.request(0, 0, 100, 6, 5);
    assert_eq!(client.simple(), (0, 100));
    assert_eq!(client.take(5), b"\0abc\0");
    client.request(2, 0, 0, 0, 0);
    assert!(client.is_closed());
}

#[test]
fn a_hostile_client_harms_nobody_else() {
    let server = Server::start_with(
        8,
        512,
        Behaviour { memory: Some(80 << 20), ..Behaviour::default() },
        |settings| {
            settings.stall = Duration::from_millis(700);
            settings.clients_max = 8;
        },
    );
    // Garbage in each phase ends the connection.
    let mut client = Client::raw(&server.socket);
    client.send(&u32::MAX.to_be_bytes());
    assert!(client.is_closed(), "unknown client flags");
    let mut client = Client::raw(&server.socket);
    client.send(&[0, 0, 0, 3]);
    client.send(&[0xff; 16]);
    assert!(client.is_closed(), "no option");
    let mut client = Client::connect(&server.socket, Form::ExportName);
    client.send(&[0xff; 28]);
    assert!(client.is_closed(), "no request");
    // Too long an option is skipped and refused; a far too long one ends the connection.
    let mut client = Client::raw(&server.socket);
    client.send(&[0, 0, 0, 3]);
    client.option(3, &vec![0; 100_000]);
    assert_eq!(client.option_reply().1, 0x8000_0009);
    client.option(77, &[1, 2, 3]);
    assert_eq!(client.option_reply().1, 0x8000_0001);
    client.send(b"IHAVEOPT\0\0\0\x03\xff\xff\xff\xff");
    assert!(client.is_closed(), "an option of 4 GiB");
    // Options without end.
    let mut client = Client::raw(&server.socket);
    client.send(&[0, 0, 0, 3]);
    for _ in 0..nbd::OPTIONS_MAX {
        client.option(3, &[]);
        assert_eq!(client.option_reply().1, 2);
        assert_eq!(client.option_reply().1, 1);
    }
    client.option(3, &[]);
    assert!(client.is_closed(), "too many options");
    // Clients that promise a payload and do not send it, or take no answers, hold memory: not for long.
    let mut quiet: Vec<Client> = (0..4).map(|_| Client::connect(&server.socket, Form::ExportName)).collect();
    for (n, client) in quiet.iter_mut().enumerate() {
        if n % 2 == 0 {
            client.request(1, 0, 1, 0, 8 * MIB as u32);
            client.send(&[1; 1000]);
        } else {
            for _ in 0..8 {
                client.request(0, 0, 1, 0, 8 * MIB as u32);
            }
        }
    }
    let mut honest = Client::connect(&server.socket, Form::ExportName);
    honest.request(1, 0, 5, 0, 8 * MIB as u32);
    honest.send(&vec![3; 8 * MIB as usize]);
    assert_eq!(honest.simple(), (0, 5));
    std::thread::sleep(Duration::from_millis(1500));
    for client in &mut quiet {
        assert!(client.is_closed());
    }
    // An idle client owes nothing.
    honest.request(3, 0, 6, 0, 0);
    assert_eq!(honest.simple(), (0, 6));
    // Those who go in the middle of anything leave nothing behind.
    for cut in [0, 3, 20, 50, 100, 2000] {
        let mut client = Client::connect(&server.socket, Form::Structured);
        let mut bytes = Vec::new();
        for command in [1_u16, 0, 1] {
            bytes.extend(0x2560_9513_u32.to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(command.to_be_bytes());
            bytes.extend([0; 16]);
            bytes.extend(1000_u32.to_be_bytes());
            bytes.extend(vec![0; if command == 1 { 1000 } else { 0 }]);
        }
        client.send(&bytes[..cut]);
    }
    honest.request(3, 0, 7, 0, 0);
    assert_eq!(honest.simple(), (0, 7));
}

/// A target that answers nothing for longer than a client may owe: the client is not to blame, however much it
/// had asked for, and however little of it was read.
#[test]
fn a_client_with_many_requests_is_not_cut_while_the_target_stalls() {
    let mood = Behaviour { shuffle: Some(11), ..Behaviour::default() };
    let stall = Duration::from_millis(400);
    let server = Server::start_with(8, 512, mood.clone(), |settings| settings.stall = stall);
    let mut client = Client::connect(&server.socket, Form::ExportName);
    mood.stuck.store(true, Ordering::Relaxed);
    for n in 0..300 {
        client.request(0, 0, n, 512 * n, 512);
    }
    std::thread::sleep(3 * stall);
    mood.stuck.store(false, Ordering::Relaxed);
    let mut ended: Vec<u64> = (0..300)
        .map(|_| {
            let (error, cookie) = client.simple();
            assert_eq!((error, client.take(512)), (0, vec![0; 512]));
            cookie
        })
        .collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq(0..300));
}

#[test]
fn protection_is_heard_by_clients_and_by_each_request() {
    let mood = Behaviour::default();
    let server = Server::start(1, 512, mood.clone());
    let mut early = Client::connect(&server.socket, Form::ExportName);
    let write = |client: &mut Client, len: u32| {
        client.request(1, 0, 7, 0, len);
        client.send(&vec![9; len as usize]);
        client.simple().0
    };
    let is_read_only = || run("nbdinfo", &[&server.url]).contains("is_read_only: true");
    assert_eq!(write(&mut early, 512), 0);
    assert!(!is_read_only());
    mood.protected.store(true, Ordering::Relaxed);
    assert!(is_read_only());
    // Whole blocks, a ragged one, zeroes, a trim: EPERM.
    assert_eq!([512, 100].map(|len| write(&mut early, len)), [1, 1]);
    for command in [4, 6] {
        early.request(command, 0, 8, 0, 512);
        assert_eq!(early.simple(), (1, 8));
    }
    mood.protected.store(false, Ordering::Relaxed);
    assert!(!is_read_only());
    assert_eq!([512, 100].map(|len| write(&mut early, len)), [0, 0]);
}

#[test]
fn more_clients_than_allowed_wait_for_their_turn() {
    let server = Server::start_with(1, 512, Behaviour::default(), |settings| settings.clients_max = 2);
    let first = Client::connect(&server.socket, Form::ExportName);
    let _second = Client::connect(&server.socket, Form::ExportName);
    let mut third = UnixStream::connect(&server.socket).unwrap();
    third.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(third.read(&mut [0; 18]).is_err(), "it waits");
    drop(first);
    third.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    third.read_exact(&mut [0; 18]).unwrap();
}

#[test]
fn failures_and_the_end_of_the_disk_are_told() {
    let mood = Behaviour { shuffle: Some(1), ..Behaviour::default() };
    let mut server = Server::start(1, 512, mood.clone());
    let mut client = Client::connect(&server.socket, Form::Structured);
    mood.fails.store(true, Ordering::Relaxed);
    client.request(3, 0, 1, 0, 0);
    assert_eq!(client.simple(), (5, 1));
    client.request(0, 0, 2, 0, 512);
    let chunk = client.take(26);
    assert_eq!(chunk[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    assert_eq!(chunk[20..24], 5_u32.to_be_bytes());
    mood.fails.store(false, Ordering::Relaxed);
    client.request(3, 0, 3, 0, 0);
    assert_eq!(client.simple(), (0, 3));
    mood.stuck.store(true, Ordering::Relaxed);
    client.request(3, 0, 4, 0, 0);
    std::thread::sleep(Duration::from_millis(300));
    mood.gone.store(true, Ordering::Relaxed);
    assert_eq!(client.simple(), (5, 4));
    assert!(client.is_closed());
    let error = server.thread.take().unwrap().join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the disk was taken away");
}

#[test]
fn the_socket_is_private_replaced_and_removed() {
    use std::os::unix::fs::PermissionsExt;
    let mut server = Server::start(1, 512, Behaviour::default());
    let mode = std::fs::metadata(&server.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let taken = nbd::Server::new(nbd::Settings::new(&server.socket)).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    server.end().unwrap();
    assert!(!server.socket.exists());
    // What a killed server left is no obstacle; a file that is no socket is.
    drop(std::os::unix::net::UnixListener::bind(&server.socket).unwrap());
    drop(nbd::Server::new(nbd::Settings::new(&server.socket)).unwrap());
    std::fs::write(&server.socket, b"precious").unwrap();
    assert!(nbd::Server::new(nbd::Settings::new(&server.socket)).is_err());
    assert_eq!(std::fs::read(&server.socket).unwrap(), b"precious");
}
