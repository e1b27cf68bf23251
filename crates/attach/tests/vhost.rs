//! The vhost-user back end against a front end of our own: an honest one, and one that means harm. A
//! machine with a real kernel is in `tests/guest/vhost.sh`.

mod support;

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockwire_attach::{Statistics, Stop, vhost};
use buf::{Entropy, Region};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use support::{Mood, RamVolume};
use volume::RamDisk;

const MIB: u64 = 1 << 20;
/// Where the guest's memory begins, as the guest and as the front end know it.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: usize = 16 << 20;
const QUEUE: u16 = 16;

/// Where things are in the memory.
const DESCRIPTORS: usize = 0x1000;
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x3000;
const TABLE: usize = 0x4000;
const HEADERS: usize = 0x8000;
const DATA: usize = 0x10_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const FEATURES: u64 = 1 << 9 | 1 << 28 | 1 << 30 | 1 << 32;
const EVENT_IDX: u64 = 1 << 29;

struct Server {
    dir: PathBuf,
    socket: PathBuf,
    disk: Arc<RamDisk>,
    stop: Stop,
    statistics: Arc<Statistics>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    fn start(logical: u32, mood: Mood) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("attach-vhost-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("sock");
        let blocks = 8 * MIB / u64::from(logical);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let stop = Stop::new().unwrap();
        let settings =
            vhost::Settings { id: "a-serial-number-too-long".into(), ..vhost::Settings::new(&socket) };
        let mut front = vhost::Front::new(settings).unwrap();
        let statistics = front.statistics();
        let (its_disk, its_stop) = (disk.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut volume = RamVolume::new(its_disk, mood);
            front.run(&mut volume, &its_stop)
        });
        Server { dir, socket, disk, stop, statistics, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        self.stop.stop();
        let ended = self.thread.take().unwrap().join();
        let _ = std::fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            ended.expect("the server did not panic").unwrap();
        }
    }
}

/// A machine with one queue.
struct Machine {
    stream: UnixStream,
    file: OwnedFd,
    memory: Region,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    available: u16,
    used: u16,
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl Machine {
    /// Connected, nothing said.
    fn connect(server: &Server) -> Machine {
        let stream = UnixStream::connect(&server.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY as u64).unwrap();
        let memory = Region::of_file(file.as_fd(), MEMORY).unwrap();
        let (kick, call, error) = (event(), event(), event());
        Machine { stream, file, memory, kick, call, error, available: 0, used: 0 }
    }

    /// Ready to be used.
    fn start(server: &Server, features: u64) -> Machine {
        let mut machine = Machine::connect(server);
        machine.set_up(features);
        machine.begin();
        machine
    }

    fn set_up(&mut self, features: u64) {
        self.say(3, &[], &[]);
        let offered = self.ask_u64(1);
        assert_eq!(offered & features, features, "{offered:#x}");
        let protocol = self.ask_u64(15);
        self.say(16, &protocol.to_ne_bytes(), &[]);
        assert_eq!(self.ask_u64(17), 16);
        self.say(2, &features.to_ne_bytes(), &[]);
        let table: Vec<u8> =
            [1, GUEST, MEMORY as u64, USER, 0].iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
        let file = self.file.try_clone().unwrap();
        assert_eq!(self.acknowledged(5, &table, &[file.as_fd()]), 0);
    }

    /// The ring as the driver has it, from where it is now.
    fn begin(&mut self) {
        self.say(8, &state(0, QUEUE.into()), &[]);
        self.say(10, &state(0, self.available.into()), &[]);
        let mut ring = state(0, 0).to_vec();
        for at in [DESCRIPTORS, USED, AVAILABLE, 0] {
            ring.extend((USER + at as u64).to_ne_bytes());
        }
        assert_eq!(self.acknowledged(9, &ring, &[]), 0);
        let [kick, call, error] = [&self.kick, &self.call, &self.error].map(|fd| fd.try_clone().unwrap());
        self.say(12, &0_u64.to_ne_bytes(), &[kick.as_fd()]);
        self.say(13, &0_u64.to_ne_bytes(), &[call.as_fd()]);
        self.say(14, &0_u64.to_ne_bytes(), &[error.as_fd()]);
        self.say(18, &state(0, 1), &[]);
    }

    fn say_flagged(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for word in [request, flags, payload.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(payload);
        self.raw(&bytes, files)
    }

    fn raw(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let sent = rustix::net::sendmsg(
            &self.stream,
            &[io::IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        assert_eq!(sent, bytes.len());
        Ok(())
    }

    fn say(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.say_flagged(request, 1, payload, files).unwrap();
    }

    fn reply(&mut self, request: u32) -> Vec<u8> {
        let mut head = [0; 12];
        self.stream.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (request, 5));
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        payload
    }

    fn ask_u64(&mut self, request: u32) -> u64 {
        self.say(request, &[], &[]);
        u64::from_ne_bytes(self.reply(request).try_into().unwrap())
    }

    fn acknowledged(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> u64 {
        self.say_flagged(request, 9, payload, files).unwrap();
        u64::from_ne_bytes(self.reply(request).try_into().unwrap())
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    fn descriptor(&self, table: usize, index: usize, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + 16 * index, &bytes);
    }

    fn header(&self, kind: u32, sector: u64) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(HEADERS, &bytes);
    }

    fn make_available(&mut self, head: u16) {
        let slot = usize::from(self.available % QUEUE);
        self.memory.store_u16(AVAILABLE + 4 + 2 * slot, head.to_le());
        self.available = self.available.wrapping_add(1);
        self.memory.store_u16(AVAILABLE + 2, self.available.to_le());
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits until a chain came back: its head and length.
    fn wait(&mut self) -> (u32, u32) {
        let until = Instant::now() + Duration::from_secs(20);
        while u16::from_le(self.memory.load_u16(USED + 2)) == self.used {
            assert!(Instant::now() < until, "nothing came back");
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut bytes = [0; 8];
        self.memory.read(USED + 4 + 8 * usize::from(self.used % QUEUE), &mut bytes);
        self.used = self.used.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0), word(4))
    }

    fn status(&self) -> u8 {
        let mut byte = [0];
        self.memory.read(HEADERS + 64, &mut byte);
        byte[0]
    }

    /// One request whose data is in two pieces at an odd place: status, and bytes written by the device.
    fn request(
        &mut self,
        kind: u32,
        sector: u64,
        data: usize,
        device_writes: bool,
        indirect: bool,
    ) -> (u8, u32) {
        self.header(kind, sector);
        self.memory.write(HEADERS + 64, &[0xee]);
        let table = if indirect { TABLE } else { DESCRIPTORS };
        let flags = NEXT | if device_writes { WRITE } else { 0 };
        let guest = |at: usize| GUEST + at as u64;
        let first = data / 2 + 1;
        self.descriptor(table, 0, guest(HEADERS), 16, NEXT, 1);
        let mut last = 1;
        if data > 0 {
            self.descriptor(table, 1, guest(DATA), first as u32, flags, 2);
            self.descriptor(table, 2, guest(DATA + first), (data - first) as u32, flags, 3);
            last = 3;
        }
        self.descriptor(table, last, guest(HEADERS + 64), 1, WRITE, 0);
        if indirect {
            self.descriptor(DESCRIPTORS, 0, guest(TABLE), 16 * (last as u32 + 1), INDIRECT, 0);
        }
        self.make_available(0);
        let (head, written) = self.wait();
        assert_eq!(head, 0);
        (self.status(), written)
    }
}

fn state(index: u32, number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&index.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    bytes
}

#[test]
fn every_request_is_carried_out() {
    for (logical, mood) in [
        (512, Mood::default()),
        (4096, Mood { shuffle: Some(3), never_lends: true, max_io: Some(8192), ..Mood::default() }),
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
    let server = Server::start(512, Mood::default());
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
fn what_was_in_flight_is_carried_out_again() {
    let mood = Mood { shuffle: Some(4), ..Mood::default() };
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

impl Machine {
    /// A reply that brings a descriptor.
    fn receive_file(&mut self, request: u32) -> (OwnedFd, Vec<u8>) {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 36];
        let came = rustix::net::recvmsg(
            &self.stream,
            &mut [io::IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::empty(),
        );
        assert_eq!(came.unwrap().bytes, 36);
        assert_eq!(bytes[..4], request.to_ne_bytes());
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (file.unwrap(), bytes[12..].to_vec())
    }
}

#[test]
fn a_hostile_driver_stops_its_own_ring_only() {
    let server = Server::start(512, Mood { shuffle: Some(6), ..Mood::default() });
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
        // The session goes on: the ring can be stopped and set up anew.
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
    let server = Server::start(512, Mood { shuffle: Some(8), never_lends: true, ..Mood::default() });
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
    let server = Server::start(512, Mood::default());
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
