//! Two gates on one disk whose operations end in any order: compare-and-write, OR and
//! read-modify-write lose no update, neither each other's nor a plain write's.

extern crate blockwire_volume as volume;

mod slow;

use proptest::prelude::*;
use slow::{BLOCK, World, requester};
use volume::{Durability, Failure, Fault, Op, Outcome, Payload, Span, Time};

/// Blocks of one unit of direct I/O.
const UNIT: u64 = 8;

/// One who adds to the counter in block 64 by compare-and-write, again and again.
#[derive(Clone, Copy)]
enum Adder {
    Idle,
    Reads,
    Swaps,
}

struct Test {
    world: World,
    adders: [Adder; 2],
    added: u32,
    /// What block of the shared unit was last set to what, and by whom no answer is due.
    set: [Option<u8>; UNIT as usize],
    busy: [bool; UNIT as usize],
    whole: Option<(u8, [bool; UNIT as usize])>,
    bits: Vec<u8>,
    fill: u8,
}

const COUNTER: Span = Span { lba: 64, blocks: 1 };
const BITS: Span = Span { lba: 72, blocks: 1 };

impl Test {
    fn new() -> Test {
        Test {
            world: World::new(2, 128, 4096, None),
            adders: [Adder::Idle; 2],
            added: 0,
            set: [Some(0); UNIT as usize],
            busy: [false; UNIT as usize],
            whole: None,
            bits: vec![0; BLOCK],
            fill: 0,
        }
    }

    fn add(&mut self, shard: usize) {
        if let Adder::Idle = self.adders[shard] {
            self.adders[shard] = Adder::Reads;
            let room = self.world.room(BLOCK);
            self.world.submit(shard, &requester(1), shard as u64, Op::Read(COUNTER), room);
        }
    }

    /// Sets one block of the unit, which takes a read-modify-write.
    fn set_one(&mut self, shard: usize, block: usize) {
        if self.busy[block] || self.whole.is_some() {
            return;
        }
        self.fill = self.fill.wrapping_add(1);
        self.busy[block] = true;
        self.set[block] = Some(self.fill);
        let payload = self.world.payload(&[self.fill; BLOCK]);
        let op = Op::Write(Span { lba: block as u64, blocks: 1 }, Durability::Cached);
        self.world.submit(shard, &requester(1), 100 + block as u64, op, payload);
    }

    /// Sets the whole unit by one plain write. Blocks that are being set have either value then.
    fn set_whole(&mut self, shard: usize) {
        if self.whole.is_some() {
            return;
        }
        self.fill = self.fill.wrapping_add(1);
        self.whole = Some((self.fill, self.busy));
        let payload = self.world.payload(&[self.fill; BLOCK * UNIT as usize]);
        let op = Op::Write(Span { lba: 0, blocks: UNIT }, Durability::Cached);
        self.world.submit(shard, &requester(1), 200, op, payload);
    }

    fn or(&mut self, shard: usize, bit: usize) {
        let mut bits = vec![0; BLOCK];
        bits[bit / 8] = 1 << (bit % 8);
        self.bits[bit / 8] |= 1 << (bit % 8);
        let payload = self.world.payload(&bits);
        self.world.submit(shard, &requester(1), 300, Op::Or(BITS), payload);
    }

    fn resume(&mut self, shard: usize) {
        for done in self.world.resume(shard) {
            match done.id.0 {
                adder @ 0..2 => self.adder_goes_on(adder as usize, done.result, done.payload),
                block @ 100..108 => {
                    assert_eq!(done.result, Ok(Outcome::Complete));
                    self.busy[(block - 100) as usize] = false;
                }
                200 => {
                    let (fill, unsure) = self.whole.take().expect("one at a time");
                    self.set = unsure.map(|unsure| (!unsure).then_some(fill));
                }
                _ => assert_eq!(done.result, Ok(Outcome::Complete)),
            }
        }
    }

    fn adder_goes_on(&mut self, adder: usize, result: Result<Outcome, Failure>, payload: Payload) {
        self.adders[adder] = match (self.adders[adder], result) {
            (Adder::Reads, Ok(_)) => {
                let mut both = vec![0; 2 * BLOCK];
                payload.into_sg().copy_to(0, &mut both[..BLOCK]);
                let value = u32::from_le_bytes(both[..4].try_into().unwrap());
                both[BLOCK..BLOCK + 4].copy_from_slice(&(value + 1).to_le_bytes());
                let both = self.world.payload(&both);
                self.world.submit(adder, &requester(1), adder as u64, Op::CompareAndWrite(COUNTER), both);
                Adder::Swaps
            }
            (Adder::Swaps, Ok(_)) => {
                self.added += 1;
                Adder::Idle
            }
            (Adder::Swaps, Err(Failure::Failed(Fault::Miscompare(at)))) => {
                assert!(at < 4);
                Adder::Idle
            }
            (_, result) => panic!("{result:?}"),
        };
    }

    fn settle(&mut self) {
        for round in 0..400 {
            self.world.disk.borrow_mut().land(round * 7);
            self.resume(round % 2);
        }
        assert!(self.world.gates.iter().all(|gate| gate.in_flight_count() == 0));
        assert_eq!(self.world.disk.borrow().waiting(), 0);
    }

    fn check(&self) {
        let disk = self.world.disk.borrow();
        let block = |lba: u64| &disk.bytes[lba as usize * BLOCK..(lba as usize + 1) * BLOCK];
        assert_eq!(block(COUNTER.lba)[..4], self.added.to_le_bytes(), "an addition was lost");
        assert_eq!(block(BITS.lba), self.bits, "a bit was lost");
        for lba in 0..UNIT {
            assert!(block(lba).iter().all(|byte| *byte == block(lba)[0]), "a torn block");
            if let Some(fill) = self.set[lba as usize] {
                assert_eq!(block(lba)[0], fill, "block {lba} lost its last write");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(usize),
    One(usize, usize),
    Whole(usize),
    Or(usize, usize),
    Land(usize),
    Resume(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..2usize).prop_map(Step::Add),
        2 => (0..2usize, 0..UNIT as usize).prop_map(|(shard, block)| Step::One(shard, block)),
        1 => (0..2usize).prop_map(Step::Whole),
        1 => (0..2usize, 0..64usize).prop_map(|(shard, bit)| Step::Or(shard, bit)),
        5 => any::<usize>().prop_map(Step::Land),
        5 => (0..2usize).prop_map(Step::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_update_is_lost(steps in proptest::collection::vec(step(), 1..150)) {
        let mut test = Test::new();
        for step in steps {
            match step {
                Step::Add(shard) => test.add(shard),
                Step::One(shard, block) => test.set_one(shard, block),
                Step::Whole(shard) => test.set_whole(shard),
                Step::Or(shard, bit) => test.or(shard, bit),
                Step::Land(pick) => test.world.disk.borrow_mut().land(pick),
                Step::Resume(shard) => test.resume(shard),
            }
        }
        test.settle();
        test.check();
        prop_assert_eq!(test.world.pool.usage().lent, 0);
    }
}

#[test]
fn who_waits_for_a_region_is_woken_when_it_is_free() {
    let mut world = World::new(2, 128, 512, None);
    let both = world.payload(&[0; 2 * BLOCK]);
    world.submit(0, &requester(1), 1, Op::CompareAndWrite(COUNTER), both);
    let payload = world.payload(&[1; BLOCK]);
    world.submit(1, &requester(1), 2, Op::Write(COUNTER, Durability::Cached), payload);
    assert!(world.resume(1).is_empty());
    assert_eq!(world.disk.borrow().waiting(), 1, "the write waits for the compare-and-write");
    world.disk.borrow_mut().land(0);
    assert!(world.resume(0).is_empty());
    assert_eq!(world.woken, []);
    world.disk.borrow_mut().land(0);
    assert_eq!(world.resume(0).len(), 1);
    assert_eq!(world.woken, [volume::ShardId(1)]);
    world.resume(1);
    world.disk.borrow_mut().land(0);
    assert_eq!(world.resume(1).len(), 1);
    assert_eq!(world.disk.borrow().landed, [0, 1]);
}

#[test]
fn an_exclusive_operation_looks_again_for_the_end_of_writes() {
    let mut world = World::new(2, 128, 512, None);
    let payload = world.payload(&[1; BLOCK]);
    world.submit(1, &requester(1), 2, Op::Write(COUNTER, Durability::Cached), payload);
    let both = world.payload(&[0; 2 * BLOCK]);
    world.submit(0, &requester(1), 1, Op::CompareAndWrite(COUNTER), both);
    assert!(world.gates[0].poll_timeout().is_some());
    assert_eq!(world.disk.borrow().waiting(), 1);
    world.disk.borrow_mut().land(0);
    assert_eq!(world.resume(1).len(), 1);
    world.resume(0);
    assert_eq!(world.gates[0].poll_timeout(), None);
    world.disk.borrow_mut().land(0);
    let done = world.resume(0);
    assert_eq!(done[0].result, Err(Fault::Miscompare(0).into()));
}

/// A disk may hang for hours.
#[test]
fn a_write_that_does_not_end_does_not_keep_another_core_looking_without_rest() {
    let mut world = World::new(2, 128, 512, None);
    let payload = world.payload(&[1; BLOCK]);
    world.submit(1, &requester(1), 2, Op::Write(COUNTER, Durability::Cached), payload);
    let both = world.payload(&[0; 2 * BLOCK]);
    world.submit(0, &requester(1), 1, Op::CompareAndWrite(COUNTER), both);
    let payload = world.payload(&[2; BLOCK]);
    world.submit(0, &requester(1), 3, Op::Write(COUNTER, Durability::Cached), payload);
    let mut looks = 0;
    while world.now < Time(1_000_000_000) {
        world.now = world.gates[0].poll_timeout().expect("it looks again");
        assert!(world.resume(0).is_empty());
        looks += 1;
    }
    assert!((900..1_100).contains(&looks), "{looks} looks in a second");
    // The end of the write is seen soon all the same, and what was parked behind it goes on.
    world.disk.borrow_mut().land(0);
    assert_eq!(world.resume(1).len(), 1);
    world.now = world.gates[0].poll_timeout().expect("it looks again");
    let mut ended = Vec::new();
    for _ in 0..4 {
        ended.extend(world.resume(0).into_iter().map(|done| done.result));
        world.disk.borrow_mut().land(0);
    }
    assert_eq!(ended, [Err(Fault::Miscompare(0).into()), Ok(Outcome::Complete)]);
}
