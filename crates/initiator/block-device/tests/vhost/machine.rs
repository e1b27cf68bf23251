//! A back end in a thread, and a machine with one queue that uses it.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockwire_block_device::{ServerStop, Statistics, vhost};
use buf::Region;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use volume::RamDisk;

use crate::support::{Behaviour, RamVolume};
pub const MIB: u64 = 1 << 20;
/// Where the guest's memory begins, as the guest and as the front end know it.
pub const GUEST: u64 = 0x10_0000;
pub const USER: u64 = 0x7f00_0000_0000;
pub const MEMORY: usize = 16 << 20;
pub const QUEUE: u16 = 16;

/// Where things are in the memory.
pub const DESCRIPTORS: usize = 0x1000;
pub const AVAILABLE: usize = 0x2000;
pub const USED: usize = 0x3000;
pub const TABLE: usize = 0x4000;
pub const HEADERS: usize = 0x8000;
pub const DATA: usize = 0x10_0000;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const FEATURES: u64 = 1 << 9 | 1 << 28 | 1 << 30 | 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;

pub struct Server {
    pub dir: PathBuf,
    pub socket: PathBuf,
    pub disk: Arc<RamDisk>,
    pub stop: ServerStop,
    pub statistics: Arc<Statistics>,
    pub thread: Option<JoinHandle<io::Result<()>>>,
}

/// A directory of ours alone, under a name that nobody else can foretell.
fn own_directory(what: &str) -> PathBuf {
    use std::hash::BuildHasher;
    use std::os::unix::fs::DirBuilderExt;
    let random = std::hash::RandomState::new().hash_one(what);
    let dir = std::env::temp_dir().join(format!("attach-vhost-{what}-{random:016x}"));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
    dir
}

impl Server {
    pub fn start(logical: u32, mood: Behaviour) -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = own_directory(&n.to_string());
        let socket = dir.join("sock");
        let blocks = 8 * MIB / u64::from(logical);
        let disk = Arc::new(RamDisk::new(blocks, 2 * blocks, logical, 4096));
        let stop = ServerStop::new().unwrap();
        let settings =
            vhost::Settings { id: "a-serial-number-too-long".into(), ..vhost::Settings::new(&socket) };
        let mut server = vhost::Backend::new(settings).unwrap();
        let statistics = server.io_counters();
        let (its_disk, its_stop) = (disk.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut volume = RamVolume::new(its_disk, mood);
            server.run(&mut volume, &its_stop)
        });
        Server { dir, socket, disk, stop, statistics, thread: Some(thread) }
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

/// A machine with one queue.
pub struct Machine {
    pub stream: UnixStream,
    pub file: OwnedFd,
    pub memory: Region,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub error: OwnedFd,
    pub available: u16,
    pub used: u16,
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

impl Machine {
    /// Connected, nothing said.
    pub fn connect(server: &Server) -> Machine {
        let stream = UnixStream::connect(&server.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MEMORY as u64).unwrap();
        let memory = Region::map_file(file.as_fd(), MEMORY).unwrap();
        let (kick, call, error) = (event(), event(), event());
        Machine { stream, file, memory, kick, call, error, available: 0, used: 0 }
    }

    /// Another one, nothing said, when this one is gone.
    pub fn connect_behind(machine: Machine, server: &Server) -> Machine {
        drop(machine);
        Machine::connect(server)
    }

    /// Ready to be used.
    pub fn start(server: &Server, features: u64) -> Machine {
        let mut machine = Machine::connect(server);
        machine.set_up(features);
        machine.begin();
        machine
    }

    pub fn set_up(&mut self, features: u64) {
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
    pub fn begin(&mut self) {
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

    pub fn say_flagged(
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

    pub fn raw(&mut self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
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

    pub fn say(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.say_flagged(request, 1, payload, files).unwrap();
    }

    pub fn reply(&mut self, request: u32) -> Vec<u8> {
        let mut head = [0; 12];
        self.stream.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (request, 5));
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload).unwrap();
        payload
    }

    pub fn ask_u64(&mut self, request: u32) -> u64 {
        self.say(request, &[], &[]);
        u64::from_ne_bytes(self.reply(request).try_into().unwrap())
    }

    pub fn acknowledged(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> u64 {
        self.say_flagged(request, 9, payload, files).unwrap();
        u64::from_ne_bytes(self.reply(request).try_into().unwrap())
    }

    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    pub fn descriptor(&self, table: usize, index: usize, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + 16 * index, &bytes);
    }

    pub fn header(&self, kind: u32, sector: u64) {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(HEADERS, &bytes);
    }

    pub fn make_available(&mut self, head: u16) {
        let slot = usize::from(self.available % QUEUE);
        self.memory.store_u16(AVAILABLE + 4 + 2 * slot, head.to_le());
        self.available = self.available.wrapping_add(1);
        self.memory.store_u16(AVAILABLE + 2, self.available.to_le());
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits until a chain came back: its head and length.
    pub fn wait(&mut self) -> (u32, u32) {
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

    pub fn status(&self) -> u8 {
        let mut byte = [0];
        self.memory.read(HEADERS + 64, &mut byte);
        byte[0]
    }

    /// One request whose data is in two pieces at an odd place: status, and bytes written by the device.
    pub fn request(
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

pub fn state(index: u32, number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&index.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    bytes
}

impl Machine {
    /// A reply that brings a descriptor.
    pub fn receive_file(&mut self, request: u32) -> (OwnedFd, Vec<u8>) {
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
