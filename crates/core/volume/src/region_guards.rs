//! Keeps an exclusive operation apart from every overlapping write, over all cores. Plain writes need neither
//! a lock nor a message.
//!
//! Each MiB of a volume is hashed into one of 64 lock regions, each a bit of a word. A plain write raises its own core's mark for its regions,
//! fences, and reads one shared word. If the bit of one of its regions is set, it lowers the marks and waits.
//! An exclusive operation sets its regions' bits in ascending order, so that two never deadlock. Then it
//! fences and waits until no core's mark is raised. Invariant: of a marked write and a guarded operation on
//! one region, one sees the other.
//!
//! Plain writes that end within the call that begins them share one claim: their core claims every region,
//! fences, reads the word once, gives up the regions whose bits are set, and writes to the others until it
//! drops the claim. An exclusive operation waits for claims as it does for marks. Later claims leave its
//! regions out, so it waits for one run of writes at most.
//!
//! Reads take no part, but detect that an exclusive operation wrote meanwhile: each region has a sequence
//! number that is odd during the write (a seqlock's reader side), and such a read is repeated.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::backend::ShardId;
use crate::io::Span;

/// Bytes of consecutive blocks that have one lock region.
const LOCK_REGION_BYTES: u32 = 1 << 20;
/// How many lock regions blocks are hashed into: bits of the guard word. Few enough under the model
/// checker that it can try every interleaving.
const LOCK_REGIONS: u32 = if cfg!(loom) { 2 } else { 64 };

/// Every lock region.
const ALL_REGIONS: u64 = u64::MAX >> (64 - LOCK_REGIONS);

/// A set of lock regions, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockRegions(u64);

impl LockRegions {
    pub(crate) const NONE: LockRegions = LockRegions(0);

    /// The regions of `span`, whose blocks have `logical` bytes.
    pub(crate) fn of_span(span: Span, logical: u32) -> LockRegions {
        if span.blocks == 0 {
            return LockRegions::NONE;
        }
        // Blocks are powers of two (see `Geometry`): no division.
        let per_region_bits = LOCK_REGION_BYTES.ilog2().saturating_sub(logical.ilog2());
        let first = span.lba >> per_region_bits;
        let count = (span.lba.saturating_add(span.blocks - 1) >> per_region_bits) - first + 1;
        if count >= u64::from(LOCK_REGIONS) {
            return LockRegions(ALL_REGIONS);
        }
        (first..first + count).fold(LockRegions::NONE, |all, region| {
            LockRegions(all.0 | 1 << (region % u64::from(LOCK_REGIONS)))
        })
    }

    /// Whether it has all of `others`.
    pub(crate) fn contains_all(self, others: LockRegions) -> bool {
        others.0 & !self.0 == 0
    }

    fn region_indices(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    }
}

/// The part of the guards that one core writes: all of it lies here, in cache lines of its own (a processor may
/// fetch them in pairs).
#[repr(align(128))]
#[derive(Debug)]
struct ShardMarks {
    marks: [AtomicU32; LOCK_REGIONS as usize],
    /// LockRegions that a run of plain writes may go to.
    claim: AtomicU64,
    waiting: AtomicBool,
}

/// The guards of one volume, shared by its gates on all cores.
#[derive(Debug)]
pub(crate) struct RegionGuards {
    word: AtomicU64,
    sequences: Vec<AtomicU32>,
    cores: Vec<ShardMarks>,
}

impl RegionGuards {
    pub(crate) fn new(shards: u16) -> Self {
        let core = |_| ShardMarks {
            marks: std::array::from_fn(|_| AtomicU32::new(0)),
            claim: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
        };
        RegionGuards {
            word: AtomicU64::new(0),
            sequences: (0..LOCK_REGIONS).map(|_| AtomicU32::new(0)).collect(),
            cores: (0..shards).map(core).collect(),
        }
    }

    /// A plain write begins, unless an exclusive operation holds a region of it.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn begin_plain_write(&self, shard: ShardId, regions: LockRegions) -> bool {
        let core = &self.cores[usize::from(shard.0)];
        for region in regions.region_indices() {
            // Only this core writes its marks, so no read-modify-write is needed.
            let marks = core.marks[region].load(Ordering::Relaxed);
            core.marks[region].store(marks + 1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        // Acquire: who sees the bit cleared sees what the exclusive operation did.
        if self.word.load(Ordering::Acquire) & regions.0 == 0 {
            return true;
        }
        self.end_plain_write(shard, regions);
        false
    }

    /// A plain write has ended.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn end_plain_write(&self, shard: ShardId, regions: LockRegions) {
        let core = &self.cores[usize::from(shard.0)];
        for region in regions.region_indices() {
            let marks = core.marks[region].load(Ordering::Relaxed);
            core.marks[region].store(marks - 1, Ordering::Release);
        }
    }

    /// A run of plain writes begins; gives the regions that it may go to, as long as the claim stands.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn claim_free_regions(&self, shard: ShardId) -> LockRegions {
        let claim = &self.cores[usize::from(shard.0)].claim;
        // Release, as every store of a claim: who sees it sees what earlier runs wrote.
        claim.store(ALL_REGIONS, Ordering::Release);
        fence(Ordering::SeqCst);
        // Acquire: who sees a bit cleared sees what the exclusive operation did.
        let free = ALL_REGIONS & !self.word.load(Ordering::Acquire);
        claim.store(free, Ordering::Release);
        LockRegions(free)
    }

    /// The run has ended.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn release_claim(&self, shard: ShardId) {
        self.cores[usize::from(shard.0)].claim.store(0, Ordering::Release);
    }

    /// Takes the regions of `wanted` that are not in `held`, in ascending order, as far as they are
    /// free; true once all are held.
    pub(crate) fn try_hold(&self, wanted: LockRegions, held: &mut LockRegions) -> bool {
        for region in LockRegions(wanted.0 & !held.0).region_indices() {
            let bit = 1 << region;
            if self.word.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
                return false;
            }
            held.0 |= bit;
        }
        fence(Ordering::SeqCst);
        true
    }

    /// Whether no plain write is in flight on regions that are held.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn has_no_plain_writes(&self, held: LockRegions) -> bool {
        let unmarked =
            |core: &ShardMarks| held.region_indices().all(|at| core.marks[at].load(Ordering::Acquire) == 0);
        self.cores.iter().all(|core| core.claim.load(Ordering::Acquire) & held.0 == 0 && unmarked(core))
    }

    /// Frees regions that were held. Gates that wait must be woken: see [`RegionGuards::waiting_shards`].
    pub(crate) fn release_held(&self, held: LockRegions) {
        self.word.fetch_and(!held.0, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Says whether gates of this shard wait for a region. Set before trying once more, so that
    /// either the try succeeds or the one who releases sees it.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn set_shard_waiting(&self, shard: ShardId, waiting: bool) {
        self.cores[usize::from(shard.0)].waiting.store(waiting, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The shards whose gates wait.
    pub(crate) fn waiting_shards(&self) -> impl Iterator<Item = ShardId> {
        let waits = |core: &ShardMarks| core.waiting.load(Ordering::Relaxed);
        self.cores.iter().enumerate().filter(move |(_, core)| waits(core)).map(|(at, _)| ShardId(at as u16))
    }

    /// An exclusive operation starts to write the regions that it holds.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn begin_exclusive_write(&self, held: LockRegions) {
        for region in held.region_indices() {
            self.sequences[region].fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// It has written.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn end_exclusive_write(&self, held: LockRegions) {
        for region in held.region_indices() {
            self.sequences[region].fetch_add(1, Ordering::Release);
        }
    }

    /// Tells, by being equal before and after a read, that no exclusive operation wrote meanwhile;
    /// `None` while one writes.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for, and regions are bits of a word, as many as there are marks"
    )]
    pub(crate) fn write_sequence(&self, regions: LockRegions) -> Option<u64> {
        let mut sum = 0;
        for region in regions.region_indices() {
            let sequence = self.sequences[region].load(Ordering::Acquire);
            if sequence % 2 == 1 {
                return None;
            }
            sum += u64::from(sequence);
        }
        Some(sum)
    }

    /// The same behind a read: what was read is ordered before the look.
    pub(crate) fn write_sequence_after_read(&self, regions: LockRegions) -> Option<u64> {
        fence(Ordering::Acquire);
        self.write_sequence(regions)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn regions_cover_their_spans() {
        let of = |lba, blocks| LockRegions::of_span(Span { lba, blocks }, 512);
        assert_eq!(of(0, 0), LockRegions::NONE);
        assert_eq!(of(0, 1), LockRegions(1));
        assert_eq!(of(2047, 2), LockRegions(3));
        assert_eq!(of(2048 * 63, 2049), LockRegions(1 << 63 | 1));
        assert_eq!(of(5, 2048 * 64), LockRegions(u64::MAX));
        assert_eq!(of(u64::MAX - 1, u64::MAX).region_indices().count(), 1, "what cannot be does no harm");
        assert_eq!(LockRegions::of_span(Span { lba: 255, blocks: 2 }, 4096), LockRegions(3));
    }

    /// Marks that lay elsewhere shared lines with those of the next core.
    #[test]
    fn no_two_cores_write_one_cache_line() {
        let guards = RegionGuards::new(3);
        let lines = |core: &ShardMarks| {
            let words = core.marks.iter().map(|mark| std::ptr::from_ref(mark).addr());
            let flags = [std::ptr::from_ref(&core.claim).addr(), std::ptr::from_ref(&core.waiting).addr()];
            words.chain(flags).map(|at| at / 128).collect::<std::collections::BTreeSet<_>>()
        };
        let of: Vec<_> = guards.cores.iter().map(lines).collect();
        assert!(of[0].is_disjoint(&of[1]) && of[1].is_disjoint(&of[2]) && of[0].is_disjoint(&of[2]));
        let shared = std::ptr::from_ref(&guards.word).addr() / 128;
        assert!(of.iter().all(|lines| !lines.contains(&shared)));
    }

    #[test]
    fn a_claim_leaves_out_what_is_held_and_keeps_the_rest() {
        let guards = RegionGuards::new(2);
        let (mut a, mut b) = (LockRegions::NONE, LockRegions::NONE);
        assert!(guards.try_hold(LockRegions(0b0110), &mut a));
        let claimed = guards.claim_free_regions(ShardId(1));
        assert!(claimed.contains_all(LockRegions(0b1001)) && !claimed.contains_all(LockRegions(0b0001_0010)));
        assert!(guards.has_no_plain_writes(a), "what is held was not claimed");
        assert!(guards.try_hold(LockRegions(0b1000), &mut b));
        assert!(!guards.has_no_plain_writes(b), "the claim was there before");
        // Under load the next run follows at once, but without what is held now.
        guards.release_claim(ShardId(1));
        assert!(
            !guards.claim_free_regions(ShardId(1)).contains_all(LockRegions(0b1000))
                && guards.has_no_plain_writes(b)
        );
        guards.release_claim(ShardId(1));
    }

    #[test]
    fn two_exclusive_operations_take_turns() {
        let guards = RegionGuards::new(2);
        let (mut a, mut b) = (LockRegions::NONE, LockRegions::NONE);
        assert!(guards.try_hold(LockRegions(0b0110), &mut a));
        assert!(!guards.try_hold(LockRegions(0b0111), &mut b));
        assert_eq!(b, LockRegions(0b0001), "what is free and below is taken");
        assert!(!guards.begin_plain_write(ShardId(0), LockRegions(0b0001)));
        assert!(guards.begin_plain_write(ShardId(0), LockRegions(0b1000)));
        guards.release_held(a);
        assert!(guards.try_hold(LockRegions(0b0111), &mut b));
        assert!(guards.has_no_plain_writes(b));
        assert!(!guards.has_no_plain_writes(LockRegions(0b1000)));
    }
}

/// Every interleaving and every reordering that the memory model allows, for two cores.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// What the guard keeps apart: loom reports two that touch it at once.
    struct Block(UnsafeCell<u32>);

    impl Block {
        /// Touches it for writing; loom panics if another does at the same time.
        fn touch(&self) {
            self.0.with_mut(|_| ());
        }
    }

    const LOCK_REGION: LockRegions = LockRegions(1);

    fn plain(guards: &RegionGuards, block: &Block, shard: ShardId) {
        if guards.begin_plain_write(shard, LOCK_REGION) {
            block.touch();
            guards.end_plain_write(shard, LOCK_REGION);
        }
    }

    fn exclusive(guards: &RegionGuards, block: &Block) {
        let mut held = LockRegions::NONE;
        if guards.try_hold(LOCK_REGION, &mut held) {
            if guards.has_no_plain_writes(held) {
                block.touch();
            }
            guards.release_held(held);
        }
    }

    #[test]
    fn a_plain_write_and_an_exclusive_one_never_meet() {
        loom::model(|| {
            let guards = Arc::new(RegionGuards::new(2));
            let block = Arc::new(Block(UnsafeCell::new(0)));
            let other = thread::spawn({
                let (guards, block) = (guards.clone(), block.clone());
                move || plain(&guards, &block, ShardId(1))
            });
            exclusive(&guards, &block);
            other.join().unwrap();
        });
    }

    /// Two runs, so that a claim is raised again while the exclusive operation waits.
    fn runs(guards: &RegionGuards, block: &Block, shard: ShardId) {
        for _ in 0..2 {
            if guards.claim_free_regions(shard).contains_all(LOCK_REGION) {
                block.touch();
            }
            guards.release_claim(shard);
        }
    }

    #[test]
    fn a_run_of_plain_writes_and_an_exclusive_one_never_meet() {
        loom::model(|| {
            let guards = Arc::new(RegionGuards::new(2));
            let block = Arc::new(Block(UnsafeCell::new(0)));
            let other = thread::spawn({
                let (guards, block) = (guards.clone(), block.clone());
                move || runs(&guards, &block, ShardId(1))
            });
            exclusive(&guards, &block);
            other.join().unwrap();
        });
    }

    #[test]
    fn two_exclusive_ones_never_meet() {
        loom::model(|| {
            let guards = Arc::new(RegionGuards::new(2));
            let block = Arc::new(Block(UnsafeCell::new(0)));
            let other = thread::spawn({
                let (guards, block) = (guards.clone(), block.clone());
                move || exclusive(&guards, &block)
            });
            exclusive(&guards, &block);
            other.join().unwrap();
        });
    }

    /// One who waits for a region either gets it when trying again, or is seen by who frees it.
    #[test]
    fn no_wake_is_lost() {
        loom::model(|| {
            let guards = Arc::new(RegionGuards::new(2));
            let mut held = LockRegions::NONE;
            assert!(guards.try_hold(LOCK_REGION, &mut held));
            let waiter = thread::spawn({
                let guards = guards.clone();
                move || {
                    guards.set_shard_waiting(ShardId(1), true);
                    guards.begin_plain_write(ShardId(1), LOCK_REGION)
                }
            });
            guards.release_held(held);
            let seen = guards.waiting_shards().any(|shard| shard == ShardId(1));
            let entered = waiter.join().unwrap();
            assert!(entered || seen);
        });
    }

    /// A read that finds the sequence the same on both sides saw none or all of an exclusive write.
    #[test]
    fn a_read_that_was_torn_is_noticed() {
        loom::model(|| {
            let guards = Arc::new(RegionGuards::new(1));
            let halves = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let writer = thread::spawn({
                let (guards, halves) = (guards.clone(), halves.clone());
                move || {
                    let mut held = LockRegions::NONE;
                    assert!(guards.try_hold(LOCK_REGION, &mut held));
                    guards.begin_exclusive_write(held);
                    halves.0.store(1, Ordering::Relaxed);
                    halves.1.store(1, Ordering::Relaxed);
                    guards.end_exclusive_write(held);
                    guards.release_held(held);
                }
            });
            let before = guards.write_sequence(LOCK_REGION);
            let read = (halves.0.load(Ordering::Relaxed), halves.1.load(Ordering::Relaxed));
            let after = guards.write_sequence_after_read(LOCK_REGION);
            if before.is_some() && before == after {
                assert_eq!(read.0, read.1);
            }
            writer.join().unwrap();
        });
    }
}
