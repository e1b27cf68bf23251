//! Which writes are in flight: overlapping ones are executed one after the other.
//!
//! A write with an unknown outcome is repeated. If a later write to the same blocks were sent before, the
//! repetition would restore the old contents. So a write waits for each overlapping one that was submitted
//! earlier, until that has ended; if it ended in doubt, until its path is fenced.
//!
//! Counters per stripe of blocks show cheaply that nothing can overlap; operations themselves are compared
//! only if their stripes overlap. Invariant: a counter is the number of entered operations that touch a
//! stripe of its bucket, so zero means none.

use volume::{Op, Span};

/// Counters. With 128 writes of 4 KiB in work, one in twenty meets another's counter by chance.
const COUNTER_BUCKETS: usize = 2048;
/// Blocks per stripe, as a power of two.
const STRIPE_BLOCKS_LOG2: u32 = 5;
/// An operation on more stripes counts as touching all.
const STRIPES_PER_OPERATION_MAX: u64 = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct WriteOverlapFilter {
    counts: Box<[u32; COUNTER_BUCKETS]>,
    /// Operations that touch all.
    wide: u32,
    /// All operations.
    all: u32,
}

impl WriteOverlapFilter {
    pub(super) fn new() -> Self {
        WriteOverlapFilter { counts: Box::new([0; COUNTER_BUCKETS]), wide: 0, all: 0 }
    }

    /// Notes a write; true if it may overlap another that was noted.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a bucket is a number of 11 bits")]
    pub(super) fn insert_write(&mut self, op: &Op) -> bool {
        let mut meets = self.wide > 0;
        match buckets_of(op) {
            Some(buckets) => {
                for bucket in buckets {
                    let count = &mut self.counts[bucket];
                    meets |= *count > 0;
                    *count += 1;
                }
            }
            None => {
                meets = self.all > 0;
                self.wide += 1;
            }
        }
        self.all += 1;
        meets
    }

    /// A write that was noted has ended.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a bucket is a number of 11 bits")]
    pub(super) fn remove_write(&mut self, op: &Op) {
        self.all -= 1;
        match buckets_of(op) {
            Some(buckets) => buckets.for_each(|bucket| self.counts[bucket] -= 1),
            None => self.wide -= 1,
        }
    }

    /// How many writes are noted.
    #[cfg(test)]
    pub(super) fn len(&self) -> u32 {
        self.all
    }
}

/// The buckets of an operation's stripes; `None`: it counts as touching all.
#[inline]
fn buckets_of(op: &Op) -> Option<impl Iterator<Item = usize>> {
    let span = match spans_of(op) {
        [span] => *span,
        _ => return None,
    };
    let first = span.lba >> STRIPE_BLOCKS_LOG2;
    let last = span.lba.saturating_add(span.blocks.saturating_sub(1)) >> STRIPE_BLOCKS_LOG2;
    // Fibonacci hashing: stripes that are near each other are far apart.
    let bucket = |stripe: u64| (stripe.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize;
    (last - first < STRIPES_PER_OPERATION_MAX).then(|| (first..=last).map(bucket))
}

/// The blocks that an operation names.
pub(super) fn spans_of(op: &Op) -> &[Span] {
    match op {
        Op::Read(span) | Op::Write(span, _) | Op::WriteAtomic(span) | Op::Compare(span) => {
            std::slice::from_ref(span)
        }
        Op::CompareAndWrite(span) | Op::WriteZeroes { span, .. } | Op::WriteSame(span) | Op::Or(span) => {
            std::slice::from_ref(span)
        }
        Op::Verify(span) | Op::MarkBad(span) | Op::Prefetch(span) | Op::Extents(span) => {
            std::slice::from_ref(span)
        }
        Op::Unmap(spans) => spans,
        Op::Flush | Op::Sanitize(_) => &[],
    }
}

/// Whether two writes have a block in common.
pub(super) fn writes_overlap(one: &Op, other: &Op) -> bool {
    let whole = |op: &Op| matches!(op, Op::Sanitize(_));
    whole(one)
        || whole(other)
        || spans_of(one).iter().any(|one| spans_of(other).iter().any(|other| one.overlaps(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::Durability::Cached;

    fn write(lba: u64, blocks: u64) -> Op {
        Op::Write(Span { lba, blocks }, Cached)
    }

    #[test]
    fn what_overlaps_always_meets() {
        let ops = [
            write(0, 1),
            write(31, 2),
            write(1 << 40, 8),
            write(5, 5000),
            write(u64::MAX - 1, 2),
            Op::Unmap(vec![Span { lba: 3, blocks: 1 }, Span { lba: 1 << 40, blocks: 1 }]),
            Op::WriteZeroes { span: Span { lba: 0, blocks: 1 << 50 }, unmap: true },
        ];
        for one in &ops {
            for other in &ops {
                let mut order = WriteOverlapFilter::new();
                assert!(!order.insert_write(one), "nothing is there: {one:?}");
                let meets = order.insert_write(other);
                assert!(meets || !writes_overlap(one, other), "{one:?} and {other:?}");
                order.remove_write(one);
                order.remove_write(other);
                assert_eq!(order.len(), 0);
                assert!(!order.insert_write(&write(0, 64)));
            }
        }
    }

    #[test]
    fn few_meet_by_chance() {
        let (mut order, mut met) = (WriteOverlapFilter::new(), 0);
        for at in 0..128 {
            met += u32::from(order.insert_write(&write(at * 7919 * 64, 8)));
        }
        assert!(met < 16, "{met} of 128");
    }
}
