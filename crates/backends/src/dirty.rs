//! Which writes are not stable yet, over all shards, so that a flush covers every write that was
//! answered before it, and costs nothing if there is none.
//!
//! Each shard counts its own writes; a sync notes all counts before it begins, and when it has
//! succeeded, everything counted then is stable. A sync that failed is remembered for good: the
//! kernel reports such an error once and forgets it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Dirty {
    shards: Vec<Counts>,
    failed: AtomicBool,
}

/// One shard's counts, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    stable: AtomicU64,
}

impl Dirty {
    pub(crate) fn new(shards: u16) -> Self {
        Dirty { shards: (0..shards).map(|_| Counts::default()).collect(), failed: AtomicBool::new(false) }
    }

    /// This shard has written something that may not be stable. Call it before the write is
    /// answered.
    pub(crate) fn wrote(&self, shard: u16) {
        let written = &self.shards[usize::from(shard)].written;
        // Only this shard writes it.
        written.store(written.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    pub(crate) fn is_clean(&self) -> bool {
        let clean =
            |counts: &Counts| counts.written.load(Ordering::Acquire) == counts.stable.load(Ordering::Acquire);
        self.shards.iter().all(clean)
    }

    /// Notes what a sync that begins now will cover.
    pub(crate) fn note(&self, covered: &mut Vec<u64>) {
        covered.clear();
        covered.extend(self.shards.iter().map(|counts| counts.written.load(Ordering::Acquire)));
    }

    /// The sync has succeeded.
    pub(crate) fn synced(&self, covered: &[u64]) {
        for (counts, covered) in self.shards.iter().zip(covered) {
            counts.stable.fetch_max(*covered, Ordering::AcqRel);
        }
    }

    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}
