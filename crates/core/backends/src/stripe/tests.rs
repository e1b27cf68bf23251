//! A stripe compared with a plain array of bytes: legs end in any order, and fail.

use std::cell::RefCell;
use std::rc::Rc;

use buf::{Entropy, MemoryClass, Payload, Pool, Sg, Time};
use endpoint::{CloseMode, Dial, Dialled};
use proptest::prelude::*;
use stream::{Received, RecvOp, SendOp};
use volume::{Durability, Epoch, Extent, Failure, Fault, Op, OperatorNotice, Outcome, Refusal, Span};

use super::*;
use crate::LegBackend;
use legs::{Hand, Slow, geometry};

mod legs;

const BLOCK: usize = 512;

/// A stripe, its legs' hands, and the array that it must be like.
struct Rig {
    stripe: Stripe<Slow>,
    hands: Vec<Rc<RefCell<Hand>>>,
    ends: Vec<Rc<RefCell<VecDeque<IoCompletion>>>>,
    model: Vec<u8>,
    mapped: Vec<bool>,
    layout: StripeLayout,
    pool: Pool,
    chance: Entropy,
    next: u64,
}

impl Rig {
    fn new(legs: usize, chunk_blocks: u64, blocks: &[u64], seed: u64) -> Rig {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let (mut hands, mut ends, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
        for leg in 0..legs {
            let blocks = blocks[leg % blocks.len()];
            let hand = Rc::new(RefCell::new(Hand {
                bytes: vec![0; blocks as usize * BLOCK],
                mapped: vec![false; blocks as usize],
                ..Hand::default()
            }));
            let done = Rc::new(RefCell::new(VecDeque::new()));
            volumes.push((Slow { hand: hand.clone(), geometry: geometry(blocks), done: done.clone() }, None));
            hands.push(hand);
            ends.push(done);
        }
        let stripe = Stripe::new(volumes, chunk_blocks as u32 * BLOCK as u32, None, None);
        let blocks = stripe.geometry().blocks as usize;
        Rig {
            stripe,
            hands,
            ends,
            model: vec![0; blocks * BLOCK],
            mapped: vec![false; blocks],
            layout: StripeLayout::new(legs, chunk_blocks),
            pool: Pool::new(16 << 20),
            chance: Entropy::new(bytes),
            next: 0,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.chance.next_u64() % end
    }

    fn submit(&mut self, op: Op, payload: Payload) -> IoId {
        self.next += 1;
        let id = IoId(self.next);
        let mut entropy = Entropy::new([0; 32]);
        let mut cx = Cx { now: Time(0), pool: &self.pool, entropy: &mut entropy };
        self.stripe.submit(&mut cx, Io { id, epoch: Epoch(7), op, payload });
        id
    }

    /// Lets legs end what they have, in any order, until nothing is in work.
    fn run(&mut self) -> Vec<IoCompletion> {
        let mut all = Vec::new();
        loop {
            let waiting: Vec<usize> =
                (0..self.hands.len()).filter(|leg| !self.hands[*leg].borrow().waiting.is_empty()).collect();
            if !waiting.is_empty() {
                let leg = waiting[self.below(waiting.len() as u64) as usize];
                let count = self.hands[leg].borrow().waiting.len() as u64;
                let at = self.below(count) as usize;
                let done = self.hands[leg].borrow_mut().end(at);
                self.ends[leg].borrow_mut().push_back(done);
                // As its socket would tell.
                self.stripe.mark_leg_ready(leg);
            }
            let before = all.len();
            all.extend(std::iter::from_fn(|| self.stripe.poll_done()));
            if waiting.is_empty() && all.len() == before {
                assert_eq!(self.stripe.ops.len(), 0);
                return all;
            }
        }
    }

    fn random(&mut self, len: usize) -> Sg {
        let mut memory = self.memory(len);
        for part in memory.slices_mut(0..len) {
            self.chance.fill(part);
        }
        memory.freeze()
    }

    /// In one piece, or in several.
    fn memory(&mut self, len: usize) -> SgMut {
        let take = |len| self.pool.take_sg(MemoryClass::Wire, len).expect("there is memory");
        let cut = match self.chance.next_u64() % 3 {
            0 if len > BLOCK => len / 2 / BLOCK * BLOCK,
            // A piece need not end with a block.
            1 if len > BLOCK => len / 3,
            _ => 0,
        };
        if cut == 0 {
            return take(len);
        }
        let mut memory = take(cut);
        memory.append(take(len - cut));
        memory
    }

    /// A span of up to some rows.
    fn span(&mut self) -> Span {
        let blocks = self.mapped.len() as u64;
        let most = match self.below(3) {
            0 => self.layout.chunk_blocks(),
            _ => 4 * self.layout.chunk_blocks() * self.hands.len() as u64,
        };
        let lba = self.below(blocks);
        Span { lba, blocks: 1 + self.below(most.min(blocks - lba)) }
    }

    /// The first of the stripe's blocks in a span that this leg's bad block is.
    fn first_bad(&self, span: &Span) -> Option<u64> {
        let bad = |leg: usize| self.hands[leg].borrow().bad.map(|bad| self.layout.stripe_lba(leg, bad));
        (0..self.hands.len())
            .filter_map(bad)
            .filter(|lba| span.overlaps(&Span { lba: *lba, blocks: 1 }))
            .min()
    }

    /// Whether a leg of the span is lost.
    fn is_lost(&self, span: &Span) -> bool {
        (0..self.hands.len())
            .any(|leg| self.hands[leg].borrow().lost && self.layout.leg_span(span, leg).blocks > 0)
    }

    fn expected(&self, span: &Span, fault: fn(u64) -> Fault) -> Result<Outcome, Failure> {
        match (self.is_lost(span), self.first_bad(span)) {
            (true, _) => Err(Fault::PathLost.into()),
            (false, Some(bad)) => Err(fault(bad).into()),
            (false, None) => Ok(Outcome::Complete),
        }
    }

    /// Each block of a span, and whether the leg that it lies on does its part.
    fn each(&self, span: &Span) -> Vec<(usize, bool)> {
        let does = |lba: u64| {
            let leg = self.layout.leg_of_lba(lba);
            let (hand, part) = (self.hands[leg].borrow(), self.layout.leg_span(span, leg));
            !hand.lost && !hand.bad.is_some_and(|bad| part.overlaps(&Span { lba: bad, blocks: 1 }))
        };
        (span.lba..span.lba + span.blocks).map(|lba| (lba as usize, does(lba))).collect()
    }

    fn model(&self, span: &Span) -> &[u8] {
        &self.model[span.lba as usize * BLOCK..(span.lba + span.blocks) as usize * BLOCK]
    }

    fn one(&mut self, op: Op, payload: Payload) -> (Result<Outcome, Failure>, Payload) {
        let id = self.submit(op, payload);
        let mut done = self.run();
        assert_eq!(done.len(), 1);
        let done = done.remove(0);
        assert_eq!(done.id, id);
        (done.result, done.payload)
    }

    fn read(&mut self) {
        let span = self.span();
        let memory = self.memory(span.blocks as usize * BLOCK);
        let pieces: Vec<_> = memory.pieces().iter().map(|piece| (piece.as_ptr(), piece.len())).collect();
        let expected = self.expected(&span, Fault::Medium);
        let (result, payload) = self.one(Op::Read(span), Payload::In(memory));
        assert_eq!(result, expected, "read of {span:?}");
        let Payload::In(mut memory) = payload else { panic!("the memory did not come back") };
        let back: Vec<_> = memory.pieces().iter().map(|piece| (piece.as_ptr(), piece.len())).collect();
        assert_eq!(back, pieces, "the memory comes back as it went");
        if result.is_ok() {
            let got: Vec<u8> = memory.slices_mut(0..memory.len()).flat_map(|part| part.to_vec()).collect();
            assert!(got == self.model(&span), "read of {span:?}");
        }
    }

    fn write(&mut self) {
        let span = self.span();
        let data = self.random(span.blocks as usize * BLOCK);
        let expected = self.expected(&span, Fault::Unwritable);
        let each = self.each(&span);
        let (result, payload) = self.one(Op::Write(span, Durability::Stable), Payload::Out(data.clone()));
        assert_eq!(result, expected, "write of {span:?}");
        assert_eq!(payload.len(), data.len(), "the memory comes back");
        for (at, (lba, does)) in each.into_iter().enumerate() {
            if does {
                data.copy_to(at * BLOCK, &mut self.model[lba * BLOCK..(lba + 1) * BLOCK]);
                self.mapped[lba] = true;
            }
        }
    }

    fn compare(&mut self) {
        let span = self.span();
        let mut data = self.model(&span).to_vec();
        let mut differs = None;
        for _ in 0..self.below(3) {
            let at = self.below(data.len() as u64) as usize;
            data[at] ^= 0x55;
            differs = Some(differs.map_or(at, |before: usize| before.min(at)));
        }
        // The same byte twice is as it was.
        let differs = differs.and_then(|_| (0..data.len()).find(|at| data[*at] != self.model(&span)[*at]));
        let mut memory = self.memory(data.len());
        memory.copy_from(0, &data);
        let lost = self.is_lost(&span);
        let (result, payload) = self.one(Op::Compare(span), Payload::Out(memory.freeze()));
        let expected = match differs {
            _ if lost => Err(Fault::PathLost.into()),
            Some(at) => Err(Fault::Miscompare(at as u32).into()),
            None => Ok(Outcome::Complete),
        };
        assert_eq!(result, expected, "compare of {span:?}");
        assert_eq!(payload.len(), data.len());
    }

    fn swap(&mut self) {
        let lba = self.below(self.mapped.len() as u64);
        let span = Span { lba, blocks: (1 + self.below(4)).min(self.mapped.len() as u64 - lba) };
        let (len, mut data) = (span.blocks as usize * BLOCK, self.model(&span).to_vec());
        let new = self.random(len);
        data.resize(2 * len, 0);
        new.copy_to(0, &mut data[len..]);
        let mut memory = self.memory(2 * len);
        memory.copy_from(0, &data);
        let expected = match self.layout.is_within_chunk(&span) {
            true => self.expected(&span, Fault::Unwritable),
            false => Err(Refusal::AtomicUnit.into()),
        };
        let (result, _) = self.one(Op::CompareAndWrite(span), Payload::Out(memory.freeze()));
        assert_eq!(result, expected, "swap of {span:?}");
        if result.is_ok() {
            let begin = span.lba as usize * BLOCK;
            self.model[begin..begin + len].copy_from_slice(&data[len..]);
            self.mapped[span.lba as usize..(span.lba + span.blocks) as usize].fill(true);
        }
    }

    fn erase(&mut self) {
        let spans: Vec<Span> = (0..1 + self.below(3)).map(|_| self.span()).collect();
        let unmaps = self.below(2) == 0;
        let (op, spans) = match unmaps {
            true => (Op::Unmap(spans.clone()), spans),
            false => (Op::WriteZeroes { span: spans[0], unmap: false }, vec![spans[0]]),
        };
        let lost = spans.iter().any(|span| self.is_lost(span));
        let (result, _) = self.one(op, Payload::None);
        assert_eq!(result.is_err(), lost);
        for lba in spans.iter().flat_map(|span| span.lba..span.lba + span.blocks) {
            if !self.hands[self.layout.leg_of_lba(lba)].borrow().lost {
                self.model[lba as usize * BLOCK..(lba as usize + 1) * BLOCK].fill(0);
                self.mapped[lba as usize] = !unmaps;
            }
        }
    }

    fn look(&mut self) {
        let span = self.span();
        let lost = self.is_lost(&span);
        let (result, _) = self.one(Op::Extents(span), Payload::None);
        if lost {
            return assert_eq!(result, Err(Fault::PathLost.into()));
        }
        let Ok(Outcome::Extents(extents)) = result else { panic!("{result:?}") };
        let mut at = span.lba;
        for extent in &extents {
            assert_eq!(extent.span.lba, at, "without gaps");
            at += extent.span.blocks;
            let alike = &self.mapped[extent.span.lba as usize..at as usize];
            assert!(alike.iter().all(|mapped| *mapped == extent.mapped), "{extent:?}");
        }
        assert_eq!(at, span.lba + span.blocks);
        assert!(extents.windows(2).all(|pair| pair[0].mapped != pair[1].mapped), "as few as can be");
    }

    fn flush(&mut self) {
        let before: Vec<u32> = self.hands.iter().map(|hand| hand.borrow().flushes).collect();
        let lost = self.hands.iter().any(|hand| hand.borrow().lost);
        let (result, _) = self.one(Op::Flush, Payload::None);
        assert_eq!(result.is_err(), lost);
        for (hand, before) in self.hands.iter().zip(before) {
            let hand = hand.borrow();
            assert_eq!(hand.flushes, before + u32::from(!hand.lost), "every leg is flushed, once");
        }
    }

    fn step(&mut self) {
        match self.below(12) {
            0..3 => self.read(),
            3..6 => self.write(),
            6 => self.compare(),
            7 => self.swap(),
            8 => self.erase(),
            9 => self.look(),
            10 => self.flush(),
            _ => {
                let leg = self.below(self.hands.len() as u64) as usize;
                let mut hand = self.hands[leg].borrow_mut();
                let blocks = hand.mapped.len() as u64;
                match self.chance.next_u64() % 4 {
                    0 => hand.lost = true,
                    1 => hand.bad = Some(self.chance.next_u64() % blocks),
                    _ => (hand.lost, hand.bad) = (false, None),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn a_stripe_is_like_an_array(
        legs in 1_usize..7,
        chunk in 0_u32..5,
        blocks in prop::collection::vec(40_u64..150, 1..4),
        seed: u64,
    ) {
        let mut rig = Rig::new(legs, 1 << chunk, &blocks, seed);
        let before = rig.pool.usage().lent;
        (0..60).for_each(|_| rig.step());
        prop_assert_eq!(rig.pool.usage().lent, before, "all memory came back");
    }

    #[test]
    fn operations_in_work_together_do_not_meet(legs in 2_usize..5, chunk in 0_u32..4, seed: u64) {
        let mut rig = Rig::new(legs, 1 << chunk, &[160], seed);
        let stretch = rig.mapped.len() as u64 / 8;
        let mut written = Vec::new();
        for at in 0..8 {
            let begin = rig.below(stretch / 2);
            let span = Span { lba: at * stretch + begin, blocks: 1 + rig.below(stretch - begin) };
            let data = rig.random(span.blocks as usize * BLOCK);
            let id = rig.submit(Op::Write(span, Durability::Cached), Payload::Out(data.clone()));
            written.push((id, span, data));
        }
        let done = rig.run();
        prop_assert_eq!(done.len(), 8);
        prop_assert!(done.iter().all(|done| done.result == Ok(Outcome::Complete)));
        for (_, span, data) in &written {
            let memory = rig.memory(data.len());
            rig.submit(Op::Read(*span), Payload::In(memory));
            let mut done = rig.run();
            let Some(IoCompletion { payload: Payload::In(mut memory), .. }) = done.pop() else { panic!("no end") };
            let got: Vec<u8> = memory.slices_mut(0..data.len()).flat_map(|part| part.to_vec()).collect();
            let mut wanted = vec![0; data.len()];
            data.copy_to(0, &mut wanted);
            prop_assert!(got == wanted);
        }
    }
}

#[test]
fn one_range_goes_to_each_leg_in_few_pieces() {
    let mut rig = Rig::new(4, 8, &[4096], 3);
    let memory = rig.pool.take_sg(MemoryClass::Wire, 256 * BLOCK).unwrap();
    rig.submit(Op::Read(Span { lba: 4, blocks: 256 }), Payload::In(memory));
    for (leg, hand) in rig.hands.iter().enumerate() {
        let hand = hand.borrow();
        assert_eq!(hand.waiting.len(), 1, "leg {leg}");
        assert_eq!(hand.waiting[0].epoch, Epoch(7));
    }
    rig.run();
    assert!(rig.hands.iter().all(|hand| hand.borrow().pieces <= 9));
}

#[test]
fn a_cancel_reaches_the_legs_that_are_not_done() {
    let mut rig = Rig::new(3, 8, &[64], 3);
    let memory = rig.pool.take_sg(MemoryClass::Wire, 16 * BLOCK).unwrap();
    let id = rig.submit(Op::Read(Span { lba: 0, blocks: 16 }), Payload::In(memory));
    let done = rig.hands[0].borrow_mut().end(0);
    rig.ends[0].borrow_mut().push_back(done);
    rig.stripe.mark_leg_ready(0);
    assert!(rig.stripe.poll_done().is_none());
    rig.stripe.cancel(id);
    let cancelled: Vec<usize> = rig.hands.iter().map(|hand| hand.borrow().cancelled.len()).collect();
    assert_eq!(cancelled, [0, 1, 0]);
    assert_eq!(rig.run().len(), 1);
}

#[test]
fn what_lies_behind_the_end_or_in_two_chunks_is_refused() {
    let mut rig = Rig::new(2, 8, &[20], 3);
    assert_eq!(rig.stripe.geometry().blocks, 32, "two legs, two whole chunks each");
    let span = Span { lba: 25, blocks: 8 };
    assert_eq!(rig.one(Op::Verify(span), Payload::None).0, Err(Refusal::OutOfRange.into()));
    let most = Span { lba: u64::MAX, blocks: 2 };
    assert_eq!(rig.one(Op::Verify(most), Payload::None).0, Err(Refusal::OutOfRange.into()));
    let data = rig.random(2 * BLOCK);
    let crossing = Op::WriteAtomic(Span { lba: 7, blocks: 2 });
    assert_eq!(rig.one(crossing, Payload::Out(data.clone())).0, Err(Refusal::AtomicUnit.into()));
    let within = Op::WriteAtomic(Span { lba: 8, blocks: 2 });
    assert_eq!(rig.one(within, Payload::Out(data)).0, Ok(Outcome::Complete));
    let none = Span { lba: 32, blocks: 0 };
    assert_eq!(rig.one(Op::Verify(none), Payload::None).0, Ok(Outcome::Complete));
    assert_eq!(rig.one(Op::Or(span), Payload::None).0, Err(Refusal::Unsupported.into()));
}

#[test]
fn the_geometry_promises_what_every_leg_holds() {
    let (one, other) =
        (geometry(100), Geometry { thin: false, max_io: 4096, write_cache: false, ..geometry(50) });
    let all = combined_geometry(&[one, other], 8 * 512, None).unwrap();
    assert_eq!((all.blocks, all.max_io, all.thin), (96, 4096, false));
    assert_eq!((all.write_cache, all.caw_max, all.atomic), (true, 1, 1));
    assert_eq!(combined_geometry(&[one, other], 8 * 512, Some(40 * 512 + 100)).unwrap().blocks, 40);
    assert_eq!(combined_geometry(&[one, other], 8 * 512, Some(1 << 40)).unwrap().blocks, 96);
    assert_eq!(
        combined_geometry(&[one, Geometry { blocks: 7, ..other }], 8 * 512, None),
        Err(StripeMismatch::Small { leg: 2 })
    );
    let long = Geometry { logical: 4096, ..other };
    assert_eq!(
        combined_geometry(&[one, long], 4096, None),
        Err(StripeMismatch::Blocks { leg: 2, has: 4096, first: 512 })
    );
    let direct = Geometry { dio_align: 4096, ..other };
    assert_eq!(
        combined_geometry(&[one, direct], 512, None),
        Err(StripeMismatch::Chunk { leg: 2, needs: 4096 })
    );
    assert_eq!(combined_geometry(&[], 512, None), Ok(Geometry::UNKNOWN));
}

#[test]
fn a_stripe_grows_and_shrinks_with_its_legs() {
    let mut rig = Rig::new(2, 8, &[64], 3);
    let mut entropy = Entropy::new([0; 32]);
    let mut cx = Cx { now: Time(0), pool: &rig.pool, entropy: &mut entropy };
    for (blocks, whole) in [(40, 80), (0, 80), (80, 128)] {
        rig.stripe.leg_mut(1).unwrap().geometry.blocks = blocks;
        assert!(!rig.stripe.turn(&mut cx));
        assert_eq!(rig.stripe.geometry().blocks, whole, "leg 2 has {blocks} blocks, none is no news");
    }
    rig.stripe.leg_mut(1).unwrap().geometry.logical = 4096;
    assert!(!rig.stripe.turn(&mut cx));
    assert_eq!(rig.stripe.geometry().blocks, 0);
    assert!(rig.stripe.mismatch().is_some());
    let (result, _) = rig.one(Op::Flush, Payload::None);
    assert_eq!(result, Err(Fault::PathLost.into()));
}

#[test]
fn what_is_submitted_before_legs_are_known_waits_in_them() {
    let slow = |blocks| {
        let hand = Rc::new(RefCell::new(Hand {
            bytes: vec![3; 64 * BLOCK],
            mapped: vec![true; 64],
            ..Hand::default()
        }));
        (Slow { hand: hand.clone(), geometry: geometry(blocks), done: Rc::default() }, hand)
    };
    let ((one, first), (other, _)) = (slow(0), slow(64));
    let mut blind = Stripe::new(vec![(slow(0).0, None), (slow(0).0, None)], 4096, None, None);
    let mut stripe = Stripe::new(vec![(one, None), (other, None)], 4096, None, Some(512));
    assert_eq!(stripe.geometry().blocks, 0, "one leg is not known");
    let pool = Pool::new(1 << 20);
    let mut entropy = Entropy::new([0; 32]);
    let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
    let io = |op| Io { id: IoId(1), epoch: Epoch(0), op, payload: Payload::None };
    let op = Op::Verify(Span { lba: 0, blocks: 1 });
    stripe.submit(&mut cx, io(op.clone()));
    assert!(stripe.poll_done().is_none());
    assert_eq!(first.borrow().waiting.len(), 1);
    blind.submit(&mut cx, io(op));
    let done = blind.poll_done().expect("nobody knows where it lies");
    assert_eq!(done.result, Err(Fault::PathLost.into()));
}

#[test]
fn the_operator_hears_of_a_path_that_a_leg_elsewhere_has_lost() {
    let hand = Rc::new(RefCell::new(Hand::default()));
    hand.borrow_mut().remark = Some(OperatorNotice::PathUp { path: (None, 3) });
    let here = LegBackend::Local(Box::new(crate::NullBackend::new(64, BLOCK as u32)));
    let far = Slow { hand, geometry: geometry(64), done: Rc::default() };
    let legs = vec![(here, None), (LegBackend::Network(Box::new(far)), None)];
    let mut stripe = Stripe::new(legs, 4 * BLOCK as u32, None, None);
    assert_eq!(stripe.poll_operator_notice(), Some(OperatorNotice::PathUp { path: (Some(1), 3) }));
    assert_eq!(stripe.poll_operator_notice(), None);
}

#[test]
fn a_stripe_erases_at_once_what_each_leg_does() {
    let rig = Rig::new(3, 8, &[100], 1);
    assert_eq!(rig.stripe.erase_max(), rig.stripe.geometry().max_io);
    for (hand, most) in rig.hands.iter().zip([32 << 20, 8 << 20, 16 << 20]) {
        hand.borrow_mut().erase_max = Some(most);
    }
    assert_eq!(rig.stripe.erase_max(), 8 << 20);
}
