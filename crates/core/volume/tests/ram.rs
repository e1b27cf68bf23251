//! A RAM volume behind two gates against a plain array of bytes and a set of mapped blocks.

extern crate blockwire_volume as volume;

use std::sync::Arc;

use buf::{Cx, Entropy, MemoryClass, Payload, Pool, Time};
use proptest::prelude::*;
use volume::{
    Durability, Extent, Gate, Identity, Io, IoCompletion, IoId, Op, Outcome, PortId, RamBackend, RamDisk,
    Requester, ShardId, SharedGateState, Span, View,
};

const BLOCKS: u64 = 512;
/// Blocks per granule.
const PER: u64 = 8;

struct World {
    pool: Pool,
    entropy: Entropy,
    gates: Vec<Gate>,
    disk: Arc<RamDisk>,
    who: Requester,
}

impl World {
    fn new() -> World {
        let disk = Arc::new(RamDisk::new(BLOCKS, 2 * BLOCKS, 512, 4096));
        let shared = SharedGateState::new(2);
        let gate = |shard| {
            let backend = Box::new(RamBackend::new(disk.clone()));
            Gate::new(ShardId(shard), shared.clone(), View::without_reservations(disk.geometry()), backend)
        };
        let gates = (0..2).map(gate).collect();
        let identity = Arc::new(Identity::Host([1; 16]));
        let who = Requester { identity, port: PortId(1), read_only: false };
        World { pool: Pool::new(8 << 20), entropy: Entropy::new([0; 32]), gates, disk, who }
    }

    fn run(&mut self, shard: usize, op: Op, payload: Payload) -> IoCompletion {
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        let gate = &mut self.gates[shard];
        gate.submit(&mut cx, &self.who, Io { id: IoId(1), epoch: Default::default(), op, payload });
        while gate.resume(&mut cx) {}
        gate.poll_done().expect("memory answers at once")
    }

    fn out(&self, bytes: &[u8]) -> Payload {
        let mut sg = self.pool.take_sg(MemoryClass::Wire, bytes.len()).unwrap();
        sg.copy_from(0, bytes);
        Payload::Out(sg.freeze())
    }

    fn read(&mut self, shard: usize, span: Span, lent: bool) -> Vec<u8> {
        let len = span.blocks as usize * 512;
        let room = Payload::In(self.pool.take_sg(MemoryClass::Wire, len).unwrap());
        let payload = if lent && self.gates[shard].lends_memory() { Payload::None } else { room };
        let done = self.run(shard, Op::Read(span), payload);
        assert_eq!(done.result, Ok(Outcome::Complete));
        let mut bytes = vec![0; len];
        done.payload.into_sg().copy_to(0, &mut bytes);
        bytes
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(Span, u8),
    Atomic(Span, u8),
    Zero(Span, bool),
    Unmap(Span),
    Read(Span, bool),
    Extents(Span),
}

fn step() -> impl Strategy<Value = Step> {
    let span = || (0..BLOCKS - 64, 1..64u64).prop_map(|(lba, blocks)| Span { lba, blocks });
    prop_oneof![
        3 => (span(), 1..=255u8).prop_map(|(span, fill)| Step::Write(span, fill)),
        1 => (span(), 1..=255u8).prop_map(|(span, fill)| Step::Atomic(span, fill)),
        1 => (span(), any::<bool>()).prop_map(|(span, unmap)| Step::Zero(span, unmap)),
        2 => span().prop_map(Step::Unmap),
        3 => (span(), any::<bool>()).prop_map(|(span, lent)| Step::Read(span, lent)),
        2 => span().prop_map(Step::Extents),
    ]
}

fn bytes(span: Span) -> std::ops::Range<usize> {
    span.lba as usize * 512..(span.lba + span.blocks) as usize * 512
}

fn touch(mapped: &mut [bool], span: Span) {
    (span.lba / PER..(span.lba + span.blocks).div_ceil(PER))
        .for_each(|granule| mapped[granule as usize] = true);
}

fn free(mapped: &mut [bool], span: Span) {
    (span.lba.div_ceil(PER)..(span.lba + span.blocks) / PER)
        .for_each(|granule| mapped[granule as usize] = false);
}

fn follow(world: &mut World, shard: usize, model: &mut [u8], mapped: &mut [bool], step: Step) {
    match step {
        Step::Write(span, fill) | Step::Atomic(span, fill) => {
            let payload = world.out(&vec![fill; span.blocks as usize * 512]);
            let op = match step {
                Step::Atomic(..) => Op::WriteAtomic(span),
                _ => Op::Write(span, Durability::Cached),
            };
            assert!(world.run(shard, op, payload).result.is_ok());
            model[bytes(span)].fill(fill);
            touch(mapped, span);
        }
        Step::Zero(span, unmap) => {
            assert!(world.run(shard, Op::WriteZeroes { span, unmap }, Payload::None).result.is_ok());
            model[bytes(span)].fill(0);
            if unmap { free(mapped, span) } else { touch(mapped, span) }
        }
        Step::Unmap(span) => {
            assert!(world.run(shard, Op::Unmap(vec![span]), Payload::None).result.is_ok());
            model[bytes(span)].fill(0);
            free(mapped, span);
        }
        Step::Read(span, lent) => assert_eq!(world.read(shard, span, lent), model[bytes(span)]),
        Step::Extents(span) => {
            let Ok(Outcome::Extents(extents)) = world.run(shard, Op::Extents(span), Payload::None).result
            else {
                panic!("no extents");
            };
            check_extents(&extents, span, mapped);
        }
    }
}

fn check_extents(extents: &[Extent], span: Span, mapped: &[bool]) {
    let mut at = span.lba;
    for extent in extents {
        assert_eq!(extent.span.lba, at);
        assert!(extent.span.blocks > 0);
        at += extent.span.blocks;
        assert!((extent.span.lba..at).all(|lba| mapped[(lba / PER) as usize] == extent.mapped));
    }
    assert_eq!(at, span.lba + span.blocks);
    assert!(extents.windows(2).all(|pair| pair[0].mapped != pair[1].mapped));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn memory_is_a_disk(steps in proptest::collection::vec((0..2usize, step()), 1..60)) {
        let mut world = World::new();
        let mut model = vec![0; (BLOCKS * 512) as usize];
        let mut mapped = vec![false; (BLOCKS / PER) as usize];
        for (shard, step) in steps {
            follow(&mut world, shard, &mut model, &mut mapped, step);
        }
        prop_assert_eq!(world.pool.usage().lent, 0);
    }
}

#[test]
fn memory_is_lent_until_a_write_must_be_seen_whole() {
    let mut world = World::new();
    assert!(world.gates[1].lends_memory());
    let payload = world.out(&[1; 512]);
    let atomic = Op::WriteAtomic(Span { lba: 0, blocks: 1 });
    assert!(world.run(0, atomic, payload).result.is_ok());
    assert!(!world.gates[1].lends_memory());
    // Who asked before hearing of it is served all the same.
    let done = world.run(1, Op::Read(Span { lba: 0, blocks: 1 }), Payload::None);
    assert!(matches!(&done.payload, Payload::In(copied) if copied.len() == 512));
}

#[test]
fn what_a_disk_grows_by_reads_zero() {
    let mut world = World::new();
    let last = Span { lba: BLOCKS - 1, blocks: 1 };
    let payload = world.out(&[9; 512]);
    assert!(world.run(0, Op::Write(last, Durability::Cached), payload).result.is_ok());
    assert!(world.disk.resize(BLOCKS / 2));
    assert!(world.disk.resize(2 * BLOCKS));
    assert!(!world.disk.resize(2 * BLOCKS + 1) && !world.disk.resize(0));
    assert_eq!(world.disk.geometry().blocks, 2 * BLOCKS);
    assert_eq!(world.read(0, last, false), [0; 512]);
}
