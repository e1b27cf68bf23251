//! Third-party programs, and a RAM volume as a disk of this thread that may answer late and out of order,
//! have little memory, or fail.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use blockwire_block_device::Disk;
use buf::{Cx, Entropy, MemoryClass, Pool, SgMut, Time};
use rustix::event::{EventfdFlags, eventfd};
use volume::{Backend, Fault, Geometry, Io, IoCompletion, Op, RamBackend, RamDisk};

/// How a disk behaves.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Answers come later, in an order drawn from this seed.
    pub shuffle: Option<u64>,
    /// Reads are given memory, as remote volumes need it.
    pub never_lends: bool,
    pub read_only: bool,
    /// While true, writes are refused and nobody is told.
    pub protected: Arc<AtomicBool>,
    /// The longest operation, if not what memory has.
    pub max_io: Option<u32>,
    /// Bytes of payload memory; 128 MiB if nothing is said.
    pub memory: Option<usize>,
    /// How many operations were taken.
    pub taken: Arc<AtomicU64>,
    /// While true every operation fails.
    pub fails: Arc<AtomicBool>,
    /// While true nothing that is late ends.
    pub stuck: Arc<AtomicBool>,
    /// Once true the disk is gone.
    pub gone: Arc<AtomicBool>,
    /// Nothing ends, and nobody is woken.
    pub silent: bool,
}

/// Block sizes and behaviours that users of a disk must not notice.
#[allow(dead_code, reason = "not every test plays them")]
pub fn behaviours() -> [(u32, Behaviour); 3] {
    [
        (512, Behaviour::default()),
        (
            4096,
            Behaviour { shuffle: Some(7), never_lends: true, max_io: Some(64 << 10), ..Behaviour::default() },
        ),
        (
            512,
            Behaviour { shuffle: Some(9), never_lends: true, memory: Some(8 << 20), ..Behaviour::default() },
        ),
    ]
}

pub struct RamVolume {
    disk: Arc<RamDisk>,
    ram: RamBackend,
    pool: Pool,
    entropy: Entropy,
    mood: Behaviour,
    late: Vec<IoCompletion>,
    lost: Vec<Io>,
    done: VecDeque<IoCompletion>,
    blocks: u64,
    wake: OwnedFd,
    pub flushes: u64,
}

impl RamVolume {
    pub fn new(disk: Arc<RamDisk>, mood: Behaviour) -> Self {
        RamVolume {
            ram: RamBackend::new(disk.clone()),
            blocks: disk.geometry().blocks,
            disk,
            pool: Pool::new(mood.memory.unwrap_or(128 << 20)),
            entropy: Entropy::new([mood.shuffle.unwrap_or(0) as u8; 32]),
            mood,
            late: Vec::new(),
            lost: Vec::new(),
            done: VecDeque::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            flushes: 0,
        }
    }

    /// How many operations have not been taken back.
    #[allow(dead_code, reason = "not every test leaves some")]
    pub fn out(&self) -> usize {
        self.late.len() + self.done.len()
    }
}

impl Disk for RamVolume {
    fn geometry(&self) -> Geometry {
        let geometry = self.ram.geometry();
        Geometry {
            lends: !self.mood.never_lends,
            max_io: self.mood.max_io.unwrap_or(geometry.max_io),
            ..geometry
        }
    }

    fn is_read_only(&self) -> bool {
        self.mood.read_only || self.mood.protected.load(Ordering::Relaxed)
    }

    fn alloc_payload(&mut self, len: usize) -> Option<SgMut> {
        assert!(len <= self.geometry().max_io as usize, "memory for no operation");
        self.pool.take_sg(MemoryClass::Solicited, len)
    }

    fn submit(&mut self, io: Io) {
        let logical = u64::from(self.geometry().logical);
        let span = match &io.op {
            Op::Read(span) | Op::Write(span, _) => {
                assert!(span.blocks * logical <= u64::from(self.geometry().max_io), "too long: {:?}", io.op);
                Some(*span)
            }
            Op::WriteZeroes { span, .. } | Op::Prefetch(span) | Op::Extents(span) => Some(*span),
            Op::Unmap(spans) => Some(spans[0]),
            _ => None,
        };
        if let Some(span) = span {
            let end = span.end().expect("a span is within 64 bits");
            assert!(span.blocks > 0 && end <= self.geometry().blocks, "outside: {:?}", io.op);
        }
        if matches!(io.op, Op::Write(..)) {
            assert_eq!(io.payload.len() as u64, span.unwrap().blocks * logical, "payload of {:?}", io.op);
        }
        self.flushes += u64::from(io.op == Op::Flush);
        self.mood.taken.fetch_add(1, Ordering::Relaxed);
        if self.mood.silent {
            return self.lost.push(io);
        }
        if self.mood.fails.load(Ordering::Relaxed) {
            self.done.push_back(IoCompletion {
                id: io.id,
                result: Err(Fault::PathLost.into()),
                payload: io.payload,
            });
            return;
        }
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        self.ram.submit(&mut cx, io);
        while self.ram.wants_resume() {
            self.ram.resume();
        }
        while let Some(done) = self.ram.poll_done() {
            match self.mood.shuffle {
                None => self.done.push_back(done),
                Some(_) => {
                    self.late.push(done);
                    rustix::io::write(&self.wake, &1_u64.to_ne_bytes()).unwrap();
                }
            }
        }
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }

    fn has_geometry_changed(&mut self) -> bool {
        std::mem::replace(&mut self.blocks, self.disk.geometry().blocks) != self.blocks
    }

    fn drive(&mut self, wait: Option<Duration>) -> io::Result<()> {
        assert_eq!(wait, Some(Duration::ZERO), "servers wait by themselves");
        if self.mood.gone.load(Ordering::Relaxed) {
            return Err(io::Error::other("the disk was taken away"));
        }
        // Some of what is late, in any order; none at all now and then.
        if self.mood.stuck.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = self.entropy.next_u64() % (self.late.len() as u64 + 1);
        for _ in 0..now {
            let which = (self.entropy.next_u64() % self.late.len() as u64) as usize;
            self.done.push_back(self.late.swap_remove(which));
        }
        if self.late.is_empty() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        Ok(())
    }

    fn wake_source(&self) -> (BorrowedFd<'_>, Option<Time>) {
        (self.wake.as_fd(), None)
    }
}

/// Random numbers of one seed.
#[allow(dead_code, reason = "not every test has seeds")]
pub struct Mutator(Entropy);

#[allow(dead_code, reason = "not every test has seeds")]
impl Mutator {
    pub fn new(seed: u64) -> Mutator {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Mutator(Entropy::new(bytes))
    }

    /// Below `n`, which is not 0.
    pub fn draw(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// A number that programs are wrong about.
    pub fn odd(&mut self) -> u64 {
        let near = [0, 1, 511, 512, 4096, 1 << 16, 1 << 20, 1 << 25, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
        let near = near[self.draw(near.len() as u64) as usize];
        match self.draw(4) {
            0 => near.wrapping_sub(1),
            1 => near.wrapping_add(1),
            2 => self.0.next_u64(),
            _ => near,
        }
    }

    /// Changes what an honest peer would say: bytes, numbers and pieces of it.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.draw(bytes.len() as u64) as usize;
        let len = self.draw(40).min((bytes.len() - at) as u64) as usize;
        match self.draw(7) {
            0 => bytes[at] ^= 1 << self.draw(8),
            1 | 2 => {
                let width = [2, 4, 8][self.draw(3) as usize].min(bytes.len() - at);
                let number = self.odd();
                let number = if self.draw(2) == 0 { number.to_be_bytes() } else { number.to_le_bytes() };
                bytes[at..at + width].copy_from_slice(&number[8 - width..]);
            }
            3 => drop(bytes.drain(at..at + len)),
            4 => {
                let again = bytes[at..at + len].to_vec();
                drop(bytes.splice(at..at, again));
            }
            5 => {
                let some: Vec<u8> = (0..len).map(|_| self.draw(256) as u8).collect();
                drop(bytes.splice(at..at, some));
            }
            _ => bytes.truncate(at),
        }
    }
}

/// Runs a foreign program; what it says must be a success.
#[allow(dead_code, reason = "not every test runs programs")]
pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; `tests/setup.sh attach` installs it"));
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {}\n{said}", out.status);
    said
}

/// The words of a fio that verifies what it has written: `own`, and what all of them share.
#[allow(dead_code, reason = "not every test runs programs")]
pub fn verifying(own: &str) -> Vec<&str> {
    const SHARED: &str = "--rw=randwrite --size=64m --io_size=64m --iodepth=16 --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --minimal --verify_state_save=0";
    ["--name=v"].into_iter().chain(own.split(' ')).chain(SHARED.split(' ')).collect()
}
