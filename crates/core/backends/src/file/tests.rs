//! The file backend behind a gate, compared with a plain array of bytes. The disk checks O_DIRECT's rules,
//! moves fewer bytes than requested, fails, and forgets data that was not synced.

mod shards;

use std::time::Duration;

use buf::{Entropy, Pool, Time};
use proptest::prelude::*;
use volume::{Extent, Gate, Identity, PortId, Requester, ShardId, SharedGateState, View};

use super::*;

const BLOCKS: u64 = 256;
const EIO: Errno = Errno(5);
const ENOSPC: Errno = Errno(28);
const EOPNOTSUPP: Errno = Errno(95);

/// A disk of bytes.
struct Disk {
    bytes: Vec<u8>,
    stable: Vec<u8>,
    align: u64,
    memory_align: usize,
    /// Moves at most so many bytes per call: at least a unit, but not always whole ones.
    most: usize,
    /// A byte whose reading or writing fails.
    bad: Option<u64>,
    sync_fails: bool,
    full: bool,
    erases: bool,
    syncs: u32,
}

impl Disk {
    fn check(&self, offset: u64, pieces: impl Iterator<Item = (*const u8, usize)>) {
        assert_eq!(offset % self.align, 0, "an offset that O_DIRECT refuses");
        for (address, len) in pieces {
            assert_eq!(address as usize % self.memory_align, 0, "memory that O_DIRECT refuses");
            assert_eq!(len as u64 % self.align, 0, "a length that O_DIRECT refuses");
        }
    }

    fn hits(&self, offset: u64, len: usize) -> bool {
        self.bad.is_some_and(|bad| (offset..offset + len as u64).contains(&bad))
    }

    /// As far as a call gets: before the bad byte, and no further than `most`.
    fn reach(&self, offset: u64, len: usize) -> usize {
        let most = len.min(self.most);
        let before = self.bad.filter(|bad| *bad >= offset).map_or(u64::MAX, |bad| bad - offset);
        let before = before - before % self.align;
        if before == 0 { most } else { most.min(before as usize) }
    }

    fn run(&mut self, op: &mut DiskOp) -> Result<usize, Errno> {
        match &mut op.kind {
            DiskKind::Read { offset, into, skip } => {
                let len = into.len();
                let rest: Vec<_> =
                    into.slices_mut(*skip..len).map(|slice| (slice.as_ptr(), slice.len())).collect();
                let at = *offset + *skip as u64;
                self.check(at, rest.into_iter());
                let reach = self.reach(at, len - *skip);
                if self.hits(at, reach) {
                    return Err(EIO);
                }
                let mut from = at as usize;
                for slice in into.slices_mut(*skip..*skip + reach) {
                    slice.copy_from_slice(&self.bytes[from..from + slice.len()]);
                    from += slice.len();
                }
                Ok(reach)
            }
            DiskKind::Write { offset, from, skip, durable } => {
                let rest = from.slice(*skip..from.len());
                let at = *offset + *skip as u64;
                self.check(at, rest.pieces().iter().map(|piece| (piece.as_ptr(), piece.len())));
                let reach = self.reach(at, rest.len());
                if self.full {
                    return Err(ENOSPC);
                }
                if self.hits(at, reach) {
                    return Err(EIO);
                }
                let target = at as usize..at as usize + reach;
                rest.copy_to(0, &mut self.bytes[target.clone()]);
                if *durable {
                    self.stable[target.clone()].copy_from_slice(&self.bytes[target]);
                }
                Ok(reach)
            }
            DiskKind::Sync => {
                self.syncs += 1;
                if std::mem::take(&mut self.sync_fails) {
                    return Err(EIO);
                }
                self.stable.clone_from(&self.bytes);
                Ok(0)
            }
            DiskKind::Punch { offset, len } | DiskKind::Zero { offset, len } => {
                if !self.erases {
                    return Err(EOPNOTSUPP);
                }
                self.bytes[*offset as usize..(*offset + *len) as usize].fill(0);
                Ok(0)
            }
            DiskKind::NextData { offset, data } => {
                let start = (*offset as usize..self.bytes.len()).find(|at| self.bytes[*at] != 0);
                *data = start.map(|start| {
                    let zero = (start..self.bytes.len()).find(|at| self.bytes[*at] == 0);
                    (start as u64, zero.unwrap_or(self.bytes.len()) as u64)
                });
                Ok(0)
            }
            DiskKind::Prefetch { .. } => Ok(0),
        }
    }
}

struct World {
    pool: Pool,
    entropy: Entropy,
    disk: Disk,
    gate: Gate,
    shared: SharedGateState,
    who: Requester,
}

impl World {
    fn new(facts: FileFacts) -> World {
        let bytes = vec![0; facts.bytes as usize];
        let disk = Disk {
            stable: bytes.clone(),
            bytes,
            align: if facts.direct { u64::from(facts.offset_align) } else { 1 },
            memory_align: if facts.direct { facts.memory_align as usize } else { 1 },
            most: usize::MAX,
            bad: None,
            sync_fails: false,
            full: false,
            erases: true,
            syncs: 0,
        };
        let shared_disk = Arc::new(FileDisk::new(DiskId(3), &facts, 1).unwrap());
        let view = View::without_reservations(shared_disk.geometry());
        let shared = SharedGateState::new(1);
        let gate = Gate::new(ShardId(0), shared.clone(), view, Box::new(FileBackend::new(shared_disk, 0)));
        let identity = Arc::new(Identity::Host([1; 16]));
        World {
            pool: Pool::new(16 << 20),
            entropy: Entropy::new([0; 32]),
            disk,
            gate,
            shared,
            who: Requester { identity, port: PortId(1), read_only: false },
        }
    }

    fn out(&self, bytes: &[u8]) -> Payload {
        let mut sg = self.pool.take_sg(MemoryClass::Wire, bytes.len()).unwrap();
        sg.copy_from(0, bytes);
        Payload::Out(sg.freeze())
    }

    fn room(&self, len: usize) -> Payload {
        Payload::In(self.pool.take_sg(MemoryClass::Wire, len).unwrap())
    }

    fn start(&mut self, id: u64, op: Op, payload: Payload) {
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        self.gate.submit(&mut cx, &self.who, Io { id: IoId(id), epoch: Default::default(), op, payload });
    }

    /// Runs the disk until nothing moves.
    fn settle(&mut self) -> Vec<IoCompletion> {
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut self.entropy };
        loop {
            let more = self.gate.resume(&mut cx);
            match self.gate.poll_disk() {
                Some(mut op) => {
                    let came = self.disk.run(&mut op);
                    self.gate.handle_disk(&mut cx, op, came);
                }
                None if !more => break,
                None => {}
            }
        }
        std::iter::from_fn(|| self.gate.poll_done()).collect()
    }

    fn run(&mut self, op: Op, payload: Payload) -> (Result<Outcome, Failure>, Vec<u8>) {
        self.start(1, op, payload);
        let mut done = self.settle();
        assert_eq!(done.len(), 1, "one end for one operation");
        let done = done.remove(0);
        let sg = done.payload.into_sg();
        let mut bytes = vec![0; sg.len()];
        sg.copy_to(0, &mut bytes);
        (done.result, bytes)
    }

    fn write(&mut self, lba: u64, bytes: &[u8]) -> Result<Outcome, Failure> {
        let payload = self.out(bytes);
        self.run(Op::Write(Span { lba, blocks: bytes.len() as u64 / 512 }, Durability::Cached), payload).0
    }

    fn read(&mut self, lba: u64, blocks: u64) -> (Result<Outcome, Failure>, Vec<u8>) {
        let room = self.room(blocks as usize * 512);
        self.run(Op::Read(Span { lba, blocks }), room)
    }
}

fn facts(direct: bool, align: u32, write_cache: bool) -> FileFacts {
    FileFacts {
        direct,
        memory_align: align,
        offset_align: align,
        write_cache,
        ..FileFacts::new(BLOCKS * 512)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Read(u64, u64),
    Zero(u64, u64),
    Unmap(u64, u64),
    Same(u64, u64, u8),
    Or(u64, u64, u8),
    Swap(u64, u64, bool, u8),
    Short(usize),
    Erases(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..BLOCKS - 40, 1..40u64);
    let step = prop_oneof![
        (place(), any::<u8>()).prop_map(|((lba, blocks), fill)| Step::Write(lba, blocks, fill)),
        place().prop_map(|(lba, blocks)| Step::Read(lba, blocks)),
        place().prop_map(|(lba, blocks)| Step::Zero(lba, blocks)),
        place().prop_map(|(lba, blocks)| Step::Unmap(lba, blocks)),
        (place(), any::<u8>()).prop_map(|((lba, blocks), fill)| Step::Same(lba, blocks, fill)),
        (place(), any::<u8>()).prop_map(|((lba, blocks), fill)| Step::Or(lba, blocks, fill)),
        (place(), any::<bool>(), any::<u8>())
            .prop_map(|((lba, blocks), right, fill)| Step::Swap(lba, blocks, right, fill)),
        (1..9usize).prop_map(|units| Step::Short(units * 4096 + units % 2 * 512)),
        any::<bool>().prop_map(Step::Erases),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A pattern in which every byte's place can be told.
fn pattern(blocks: u64, fill: u8) -> Vec<u8> {
    (0..blocks as usize * 512).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ fill).collect()
}

fn follow(world: &mut World, model: &mut [u8], step: Step) {
    let ok = Ok(Outcome::Complete);
    let at = |lba: u64, blocks: u64| lba as usize * 512..(lba + blocks) as usize * 512;
    match step {
        Step::Write(lba, blocks, fill) => {
            let bytes = pattern(blocks, fill);
            assert_eq!(world.write(lba, &bytes), ok);
            model[at(lba, blocks)].copy_from_slice(&bytes);
        }
        Step::Read(lba, blocks) => assert_eq!(world.read(lba, blocks), (ok, model[at(lba, blocks)].to_vec())),
        Step::Zero(lba, blocks) => {
            let op = Op::WriteZeroes { span: Span { lba, blocks }, unmap: false };
            assert_eq!(world.run(op, Payload::None).0, ok);
            model[at(lba, blocks)].fill(0);
        }
        Step::Unmap(lba, blocks) => {
            assert_eq!(world.run(Op::Unmap(vec![Span { lba, blocks }]), Payload::None).0, ok);
            model[at(lba, blocks)].fill(0);
        }
        Step::Same(lba, blocks, fill) => {
            let block = pattern(1, fill);
            let payload = world.out(&block);
            assert_eq!(world.run(Op::WriteSame(Span { lba, blocks }), payload).0, ok);
            model[at(lba, blocks)].chunks_mut(512).for_each(|to| to.copy_from_slice(&block));
        }
        Step::Or(lba, blocks, fill) => {
            let bits = pattern(blocks, fill);
            let payload = world.out(&bits);
            assert_eq!(world.run(Op::Or(Span { lba, blocks }), payload).0, ok);
            model[at(lba, blocks)].iter_mut().zip(&bits).for_each(|(to, bits)| *to |= bits);
        }
        Step::Swap(lba, blocks, right, fill) => {
            let mut both = model[at(lba, blocks)].to_vec();
            if !right {
                both[77] ^= 1;
            }
            let new = pattern(blocks, fill);
            both.extend_from_slice(&new);
            let payload = world.out(&both);
            let result = world.run(Op::CompareAndWrite(Span { lba, blocks }), payload).0;
            if right {
                assert_eq!(result, ok);
                model[at(lba, blocks)].copy_from_slice(&new);
            } else {
                assert_eq!(result, Err(Fault::Miscompare(77).into()));
            }
        }
        Step::Short(most) => world.disk.most = most,
        Step::Erases(on) => world.disk.erases = on,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_file_is_a_disk(steps in steps(), direct: bool, align in prop_oneof![Just(512), Just(4096)], cache: bool) {
        let mut world = World::new(facts(direct, align, cache));
        let mut model = vec![0; (BLOCKS * 512) as usize];
        for step in steps {
            follow(&mut world, &mut model, step);
            prop_assert!(world.disk.bytes == model);
            prop_assert!(cache || world.disk.stable == model, "answered, not stable, and no write cache");
        }
        prop_assert_eq!(world.pool.usage().lent, 0);
    }
}

#[test]
fn what_writes_through_is_never_synced_and_a_flush_that_fails_puts_nothing_in_doubt() {
    let mut world = World::new(FileFacts { write_through: true, ..facts(false, 512, false) });
    let ok = Ok(Outcome::Complete);
    assert_eq!(world.write(3, &pattern(4, 1)), ok);
    assert_eq!(world.run(Op::Unmap(vec![Span { lba: 3, blocks: 1 }]), Payload::None).0, ok);
    assert_eq!(world.disk.syncs, 0, "answered without a sync");
    world.disk.sync_fails = true;
    assert_eq!(world.run(Op::Flush, Payload::None).0, Err(Fault::PathLost.into()));
    assert_eq!(world.run(Op::Flush, Payload::None).0, ok);
    assert_eq!(world.write(3, &pattern(4, 2)), ok);
    assert_eq!(world.disk.syncs, 2, "each flush asks");
}

#[test]
fn a_flush_makes_stable_and_a_second_one_is_free() {
    let mut world = World::new(facts(true, 512, true));
    world.write(3, &[7; 512]).unwrap();
    assert_ne!(world.disk.bytes, world.disk.stable);
    for id in 1..4 {
        world.start(id, Op::Flush, Payload::None);
    }
    assert!(world.settle().iter().all(|done| done.result.is_ok()));
    assert_eq!(world.disk.bytes, world.disk.stable);
    assert_eq!(world.disk.syncs, 1, "nothing was written between them");
    assert!(world.run(Op::Flush, Payload::None).0.is_ok());
    assert_eq!(world.disk.syncs, 1);
    let payload = world.out(&[8; 512]);
    let stable = Op::Write(Span { lba: 4, blocks: 1 }, Durability::Stable);
    assert!(world.run(stable, payload).0.is_ok());
    assert_eq!(world.disk.bytes, world.disk.stable);
}

#[test]
fn a_failed_sync_is_never_forgotten() {
    let mut world = World::new(facts(true, 512, true));
    world.write(0, &[7; 512]).unwrap();
    world.disk.sync_fails = true;
    assert_eq!(world.run(Op::Flush, Payload::None).0, Err(Fault::Sync.into()));
    let refused = Err(Refusal::NotReady(volume::UnservableReason::SyncFailed).into());
    assert_eq!(world.write(0, &[8; 512]), refused);
    assert_eq!(world.run(Op::Flush, Payload::None).0, refused);
    assert_eq!(world.read(0, 1), (Ok(Outcome::Complete), vec![7; 512]));
    assert!(world.gate.has_sync_failed());
    assert_eq!(world.gate.poll_operator_notice(), Some(volume::OperatorNotice::SyncFailed));
    assert_eq!(world.gate.poll_operator_notice(), None, "once");
}

#[test]
fn errors_name_the_block_and_leave_the_volume_usable() {
    let mut world = World::new(facts(true, 512, false));
    world.disk.bad = Some(10 * 512 + 5);
    assert_eq!(world.read(8, 8).0, Err(Fault::Medium(10).into()));
    assert_eq!(world.write(10, &[1; 512]), Err(Fault::Unwritable(10).into()));
    assert_eq!(world.write(0, &[1; 512]), Ok(Outcome::Complete));
    world.disk.full = true;
    assert_eq!(world.write(0, &[1; 512]), Err(Fault::NoSpace.into()));
    assert_eq!(world.write(0, &[1; 512]), Err(Fault::NoSpace.into()));
    assert_eq!(world.gate.poll_operator_notice(), Some(volume::OperatorNotice::NoSpace));
    assert_eq!(world.gate.poll_operator_notice(), None, "not for each write");
    world.disk.full = false;
    assert_eq!(world.write(0, &[2; 512]), Ok(Outcome::Complete));
    assert_eq!(world.read(0, 1).1, vec![2; 512]);
}

#[test]
fn extents_follow_the_data() {
    let mut world = World::new(facts(true, 512, true));
    world.write(16, &[1; 1024]).unwrap();
    let (result, _) = world.run(Op::Extents(Span { lba: 4, blocks: BLOCKS - 4 }), Payload::None);
    let extent = |lba, blocks, mapped| Extent { span: Span { lba, blocks }, mapped };
    let expected = vec![extent(4, 12, false), extent(16, 2, true), extent(18, BLOCKS - 18, false)];
    assert_eq!(result, Ok(Outcome::Extents(expected)));
}

/// A write that was told as lost may not be made again: others may have written its blocks by then.
#[test]
fn what_was_cancelled_makes_no_further_call() {
    for came in [Err(Errno(4)), Err(Errno(11)), Ok(512)] {
        let mut world = World::new(FileFacts { write_through: true, ..facts(false, 512, false) });
        let payload = world.out(&pattern(4, 1));
        world.start(1, Op::Write(Span { lba: 3, blocks: 4 }, Durability::Stable), payload);
        let op = world.gate.poll_disk().unwrap();
        world.gate.cancel(IoId(1));
        let mut cx = Cx { now: Time(0), pool: &world.pool, entropy: &mut world.entropy };
        world.gate.handle_disk(&mut cx, op, came);
        let done = world.settle();
        assert_eq!(done.len(), 1);
        assert!(done[0].result.is_err(), "{came:?}");
        assert_eq!(world.disk.bytes, world.disk.stable, "{came:?}: nothing more was written");
        assert!(world.disk.bytes.iter().all(|byte| *byte == 0));
        assert_eq!(world.write(3, &pattern(4, 2)), Ok(Outcome::Complete));
    }
}

/// The gate cancels what it tells as lost.
#[test]
fn what_is_overdue_makes_no_further_call() {
    let mut world = World::new(FileFacts { write_through: true, ..facts(false, 512, false) });
    world.shared.set_queue_timeout(Duration::from_secs(20));
    let payload = world.out(&pattern(4, 1));
    world.start(1, Op::Write(Span { lba: 3, blocks: 4 }, Durability::Stable), payload);
    let op = world.gate.poll_disk().unwrap();
    let now = Time(0) + Duration::from_secs(20);
    let mut cx = Cx { now, pool: &world.pool, entropy: &mut world.entropy };
    world.gate.resume(&mut cx);
    assert_eq!(world.gate.poll_done().map(|done| done.result), Some(Err(Fault::PathLost.into())));
    world.gate.handle_disk(&mut cx, op, Err(Errno(11)));
    world.gate.resume(&mut cx);
    assert!(world.gate.poll_disk().is_none(), "it is not made again");
    assert!(world.gate.poll_done().is_none(), "its end was told");
    assert_eq!(world.gate.in_flight_count(), 0);
}
