//! The daemon is killed under load over both protocols, again and again, on a volume in a file. Everything that was
//! answered before is there after; a write that was not is there or not, each block of it whole.

use std::io;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use iscsi::initiator::LoginConfig;
use iscsi::wire::Isid;
use sim::SimRng;

use crate::daemon::{Daemon, Place, wait_until, worlds};
use crate::host::{self, Host, Names, Sqe};
use crate::initiator::{Data, HOST, Initiator, wanted};

const CONFIG: &str = "[[volume]]\nname = \"disk\"\nsource = \"file:disk.img,size=4M\"\n";
const TARGET: &str = "iqn.2026-11.io.blockwire:disk";
const BOTH: [&str; 2] = ["--nvme", "127.0.0.1:0"];
/// Blocks of 512 bytes in a write.
const BLOCKS: u32 = 8;
const LEN: usize = BLOCKS as usize * 512;
/// Writes that have a place of their own.
const SLOTS: u64 = 64;
/// Bytes that one connection writes to.
pub const LOAD_BYTES: u64 = SLOTS * LEN as u64;

/// A connection with one command at a time.
pub enum Connection {
    Iscsi(Box<Initiator>),
    Nvme(Host),
}

impl Connection {
    pub fn open(daemon: &Daemon, scsi: bool, number: u16) -> Connection {
        if scsi {
            // A port of its own: a second login of the same would end the first one's session.
            let isid = Isid::random([1, 2, 3], number + 1);
            let wanted = LoginConfig { isid, ..wanted(HOST, Some(TARGET), None) };
            let mut session = Initiator::connect(daemon.at, wanted).expect("the login goes well");
            session.settle(0);
            return Connection::Iscsi(Box::new(session));
        }
        let mut id = [7; 16];
        id[..2].copy_from_slice(&number.to_be_bytes());
        Connection::Nvme(Host::ready(nvme(daemon), &Names { id, ..Names::of("disk") }))
    }

    fn write(&mut self, lba: u64, data: &[u8], fua: bool) -> io::Result<()> {
        match self {
            Connection::Iscsi(session) => {
                let mut cdb = [0; 16];
                (cdb[0], cdb[1], cdb[13]) = (0x8a, u8::from(fua) << 3, BLOCKS as u8);
                cdb[2..10].copy_from_slice(&lba.to_be_bytes());
                session.command(0, &cdb, Data::Out(data)).map(|ended| drop(ended.good()))
            }
            Connection::Nvme(host) => {
                let flags = (BLOCKS - 1) | (u32::from(fua) << 30);
                let write = Sqe::new(1, 1).cdw(10, lba as u32).cdw(12, flags);
                host.io.command(write, host::Data::Out(data)).map(|ended| drop(ended.good()))
            }
        }
    }

    fn read(&mut self, lba: u64) -> io::Result<Vec<u8>> {
        match self {
            Connection::Iscsi(session) => Ok(session.read(0, lba, BLOCKS)?.good()),
            Connection::Nvme(host) => {
                let read = Sqe::new(2, 1).cdw(10, lba as u32).cdw(12, BLOCKS - 1);
                Ok(host.io.command(read, host::Data::In(LEN as u32))?.good())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Connection::Iscsi(session) => session.flush(0).map(|ended| drop(ended.good())),
            Connection::Nvme(host) => {
                host.io.command(Sqe::new(0, 1), host::Data::None).map(|ended| drop(ended.good()))
            }
        }
    }
}

fn nvme(daemon: &Daemon) -> SocketAddr {
    daemon.nvme.expect("the daemon speaks NVMe/TCP")
}

/// The bytes of a write: each block tells its place and its version.
fn contents(lba: u64, version: u64) -> Vec<u8> {
    let block = |number: u64| {
        let words = [lba + number, version].map(u64::to_le_bytes).concat();
        words.repeat(512 / words.len())
    };
    (0..u64::from(BLOCKS)).flat_map(block).collect()
}

/// What one connection writes, in a part of the volume that no other writes.
pub struct Load {
    pub number: u16,
    pub scsi: bool,
    /// What was answered last, by places.
    versions: Vec<u64>,
    /// A write that has no answer: its place and version.
    asked: Option<(u64, u64)>,
    last: u64,
    pub answered: u64,
}

impl Load {
    /// Every other one is over iSCSI.
    pub fn new(number: u16) -> Load {
        Load::over(number.is_multiple_of(2), number)
    }

    pub fn over(scsi: bool, number: u16) -> Load {
        Load { number, scsi, versions: vec![0; SLOTS as usize], asked: None, last: 0, answered: 0 }
    }

    fn lba(&self, slot: u64) -> u64 {
        (u64::from(self.number) * SLOTS + slot) * u64::from(BLOCKS)
    }

    /// Writes, reads and flushes until the connection breaks.
    fn run(&mut self, mut over: Connection) {
        while self.step(&mut over).is_ok() {}
    }

    /// One write, and now and then a read of another place, or a flush.
    pub fn step(&mut self, over: &mut Connection) -> io::Result<()> {
        self.last += 1;
        // An odd number: every place comes, in an order of its own.
        let (slot, version) = (self.last * 23 % SLOTS, self.last);
        self.asked = Some((slot, version));
        over.write(self.lba(slot), &contents(self.lba(slot), version), version.is_multiple_of(8))?;
        self.asked = None;
        self.versions[slot as usize] = version;
        self.answered += 1;
        let other = (slot + 7) % SLOTS;
        if version.is_multiple_of(5) {
            let found = over.read(self.lba(other))?;
            self.compare(other, &found);
        }
        if version.is_multiple_of(16) { over.flush() } else { Ok(()) }
    }

    fn compare(&self, slot: u64, found: &[u8]) {
        let lba = self.lba(slot);
        let of = |version: u64| if version == 0 { vec![0; LEN] } else { contents(lba, version) };
        let told = of(self.versions[slot as usize]);
        let asked = self.asked.filter(|(at, _)| *at == slot).map(|(_, version)| of(version));
        for (at, block) in found.chunks(512).enumerate() {
            let part = |whole: &[u8]| block == &whole[at * 512..][..512];
            let right = part(&told) || asked.as_deref().is_some_and(part);
            assert!(
                right,
                "connection {}, block {}: {:02x?} where version {} was written, and asked {:?}",
                self.number,
                lba + at as u64,
                &block[..32],
                self.versions[slot as usize],
                self.asked
            );
        }
    }

    /// After a start: every place is what it was told to be.
    pub fn verify(&mut self, over: &mut Connection) {
        for slot in 0..SLOTS {
            let found = over.read(self.lba(slot)).expect("a daemon that was started serves");
            self.compare(slot, &found);
        }
        // What may be of either version is written again.
        if let Some((slot, _)) = self.asked.take() {
            self.last += 1;
            let data = contents(self.lba(slot), self.last);
            over.write(self.lba(slot), &data, false).expect("a daemon that was started serves");
            self.versions[slot as usize] = self.last;
        }
    }
}

/// How often it is killed: `KILLS`, or 50 times.
fn kills() -> u32 {
    std::env::var("KILLS").ok().and_then(|value| value.parse().ok()).unwrap_or(50)
}

#[test]
fn no_byte_is_wrong_however_often_the_daemon_is_killed_under_load() {
    let place = Place::new();
    let mut chance = SimRng::new(7);
    let mut loads: Vec<Load> = (0..4).map(Load::new).collect();
    let worlds = worlds();
    for round in 0..kills() {
        let world = worlds[round as usize % worlds.len()];
        let daemon = place.serve(CONFIG, &[&BOTH[..], &["--io", world]].concat());
        // By the other protocol than the one that has written it.
        for load in &mut loads {
            let mut over = Connection::open(&daemon, !load.scsi, load.number + 64);
            load.verify(&mut over);
        }
        let connections: Vec<_> =
            loads.iter().map(|load| Connection::open(&daemon, load.scsi, load.number)).collect();
        let lives = Duration::from_micros(chance.between(1_000, 60_000));
        thread::scope(|scope| {
            let running: Vec<_> = loads
                .iter_mut()
                .zip(connections)
                .map(|(load, over)| scope.spawn(move || load.run(over)))
                .collect();
            thread::sleep(lives);
            daemon.kill();
            running.into_iter().for_each(|load| load.join().expect("no byte is wrong"));
        });
    }
    let daemon = place.serve(CONFIG, &BOTH);
    for load in &mut loads {
        load.verify(&mut Connection::open(&daemon, load.scsi, load.number));
    }
    let answered: Vec<u64> = loads.iter().map(|load| load.answered).collect();
    println!("killed {} times; writes that were answered, by connections: {answered:?}", kills());
    assert!(
        answered.iter().all(|many| *many > u64::from(kills())),
        "there was hardly any load: {answered:?}"
    );
}

/// What a daemon wrote that was killed may be in a cache still: the next one does not take its file for stable.
#[test]
fn the_first_flush_after_a_start_reaches_the_disk() {
    for scsi in [true, false] {
        let place = Place::new();
        let daemon = place.serve(CONFIG, &BOTH);
        Connection::open(&daemon, scsi, 0).write(0, &contents(0, 1), false).unwrap();
        daemon.kill();
        // The calls of threads, which io_uring's operations are not.
        let daemon = place.serve(CONFIG, &[&BOTH[..], &["--io", "epoll"]].concat());
        let log = place.path("calls");
        let mut tracer = Command::new("strace")
            .args(["-f", "-e", "trace=fsync,fdatasync", "-o"])
            .arg(&log)
            .args(["-p", &daemon.pid().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .expect("strace runs: install it (tests/setup.sh crash)");
        let traced = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
            !status.contains("TracerPid:\t0\n")
        };
        wait_until(10, || "strace does not attach".to_owned(), traced);
        // Threads are attached to one after the other.
        thread::sleep(Duration::from_millis(200));
        let calls = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(!calls().contains("sync("), "something else syncs: {}", calls());
        Connection::open(&daemon, scsi, 0).flush().unwrap();
        wait_until(
            10,
            || format!("a flush was answered, and nothing synced: {}", calls()),
            || calls().contains("sync("),
        );
        drop(daemon);
        tracer.wait().unwrap();
    }
}
