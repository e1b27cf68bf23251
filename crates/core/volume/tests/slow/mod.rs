//! Gates of several shards in one thread, over a disk whose operations end when and in the order
//! that the test says.

#[allow(dead_code, reason = "not every test has a home")]
pub mod daemon;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use volume::{
    Backend, Failure, Fault, Gate, Geometry, Identity, Io, IoCompletion, IoId, Op, Outcome, PortId,
    Requester, ShardId, SharedGateState, Span, View,
};

pub const BLOCK: usize = 512;

/// What the disk holds, and who waits for it.
pub struct Disk {
    pub bytes: Vec<u8>,
    /// First bytes of the writes that landed, in order.
    pub landed: Vec<u8>,
    waiting: Vec<(usize, Io)>,
    done: Vec<Vec<IoCompletion>>,
}

pub type SharedDisk = Rc<RefCell<Disk>>;

pub struct Slow {
    disk: SharedDisk,
    geometry: Geometry,
    shard: usize,
}

impl Disk {
    #[allow(dead_code, reason = "not every test counts")]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many flushes wait.
    #[allow(dead_code, reason = "not every test flushes")]
    pub fn flushes(&self) -> usize {
        self.waiting.iter().filter(|(_, io)| io.op == Op::Flush).count()
    }

    /// Carries out the waiting operation that `pick` falls on.
    pub fn land(&mut self, pick: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let at = pick % self.waiting.len();
        let (shard, io) = self.waiting.remove(at);
        let Io { id, op, mut payload, .. } = io;
        let place = |span: Span| span.lba as usize * BLOCK..(span.lba + span.blocks) as usize * BLOCK;
        let result = match (&op, &mut payload) {
            (Op::Read(span), Payload::In(into)) => {
                into.copy_from(0, &self.bytes[place(*span)]);
                Ok(Outcome::Complete)
            }
            (Op::Write(span, _), Payload::Out(from)) => {
                from.copy_to(0, &mut self.bytes[place(*span)]);
                self.landed.push(self.bytes[place(*span)][0]);
                Ok(Outcome::Complete)
            }
            (Op::WriteZeroes { span, .. }, _) => {
                self.bytes[place(*span)].fill(0);
                Ok(Outcome::Complete)
            }
            (Op::Unmap(spans), _) => {
                spans.iter().for_each(|span| self.bytes[place(*span)].fill(0));
                Ok(Outcome::Complete)
            }
            (Op::Flush, _) => Ok(Outcome::Complete),
            _ => Err(Failure::Failed(Fault::Internal)),
        };
        self.done[shard].push(IoCompletion { id, result, payload });
    }
}

impl Backend for Slow {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        self.disk.borrow_mut().waiting.push((self.shard, io));
    }

    fn cancel(&mut self, _id: IoId) {}

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.disk.borrow_mut().done[self.shard].pop()
    }
}

/// All of it.
pub struct World {
    pub pool: Pool,
    pub entropy: Entropy,
    pub now: Time,
    pub disk: SharedDisk,
    pub gates: Vec<Gate>,
    /// Who was woken by others.
    pub woken: Vec<ShardId>,
}

pub fn geometry(blocks: u64, dio_align: u32) -> Geometry {
    Geometry {
        blocks,
        logical: BLOCK as u32,
        physical: 4096,
        dio_align,
        max_io: 1 << 20,
        thin: false,
        write_cache: false,
        atomic: 64,
        atomic_powerfail: 1,
        caw_max: 64,
        dealloc_reads_zero: false,
        lends: false,
    }
}

impl World {
    pub fn new(shards: u16, blocks: u64, dio_align: u32, view: Option<View>) -> World {
        let disk = Disk {
            bytes: vec![0; blocks as usize * BLOCK],
            landed: Vec::new(),
            waiting: Vec::new(),
            done: (0..shards).map(|_| Vec::new()).collect(),
        };
        let disk = Rc::new(RefCell::new(disk));
        let geometry = geometry(blocks, dio_align);
        let view = view.unwrap_or_else(|| View::without_reservations(geometry));
        let shared = SharedGateState::new(shards);
        let gate = |shard: u16| {
            let slow = Slow { disk: disk.clone(), geometry, shard: usize::from(shard) };
            Gate::new(ShardId(shard), shared.clone(), view.clone(), Box::new(slow))
        };
        let gates = (0..shards).map(gate).collect();
        let (pool, entropy) = (Pool::new(8 << 20), Entropy::new([0; 32]));
        World { pool, entropy, now: Time(0), disk, gates, woken: Vec::new() }
    }

    pub fn payload(&self, bytes: &[u8]) -> Payload {
        let mut sg = self.pool.take_sg(MemoryClass::Wire, bytes.len()).expect("memory");
        sg.copy_from(0, bytes);
        Payload::Out(sg.freeze())
    }

    #[allow(dead_code, reason = "not every test reads")]
    pub fn room(&self, len: usize) -> Payload {
        Payload::In(self.pool.take_sg(MemoryClass::Wire, len).expect("memory"))
    }

    pub fn submit(&mut self, shard: usize, who: &Requester, id: u64, op: Op, payload: Payload) {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.gates[shard].submit(&mut cx, who, Io { id: IoId(id), epoch: Default::default(), op, payload });
    }

    #[allow(dead_code, reason = "not every test has a home")]
    pub fn answered(&mut self, shard: usize, answer: &volume::VolumeAnswer) {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.gates[shard].handle_answer(&mut cx, answer.id, answer.result);
    }

    pub fn resume(&mut self, shard: usize) -> Vec<IoCompletion> {
        let mut cx = Cx { now: self.now, pool: &self.pool, entropy: &mut self.entropy };
        self.gates[shard].resume(&mut cx);
        while let Some(woken) = self.gates[shard].poll_shard_to_wake() {
            self.gates[usize::from(woken.0)].handle_wake();
            self.woken.push(woken);
        }
        std::iter::from_fn(|| self.gates[shard].poll_done()).collect()
    }
}

/// An NVMe host.
pub fn requester(number: u8) -> Requester {
    Requester { identity: Arc::new(Identity::Host([number; 16])), port: PortId(1), read_only: false }
}

/// A SCSI initiator port.
#[allow(dead_code, reason = "not every test has both kinds")]
pub fn initiator(number: u8) -> Requester {
    let (name, port) = ("iqn.2026-11.example:host".into(), PortId(1));
    let identity = Identity::Initiator { name, isid: [0x40, 0, 0, 0, 0, number], port };
    Requester { identity: Arc::new(identity), port, read_only: false }
}
