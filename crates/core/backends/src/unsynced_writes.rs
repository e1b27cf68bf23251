//! Tracks which writes are not stable yet, over all shards, so that a flush covers every write that was
//! answered before it, and costs nothing if there is none. Also decides which shard may sync.
//!
//! Each shard counts its own writes. A sync records all counts before it begins; when it has succeeded, all
//! writes counted then are stable. Data written before the volume was opened is counted too, as one write of
//! no shard, because it may not be stable.
//!
//! The kernel reports a failed write-back once per descriptor, to whatever call asks first. So that no host
//! is told GOOD while the failure is reported to another call, only one sync of a volume runs at a time, over
//! all shards. It has succeeded only when every write with its own sync that began before the sync's end has
//! also ended without failure, because such a write may receive the report too. A failure is remembered until
//! the operator acknowledges it (see `sync_failures.rs`).
//!
//! Invariants: a failure is recorded before the turn, or the place among the stable writes, is given up. A
//! shard that waits for the turn registers before it checks the turn for the last time, and the shard that
//! gives it up checks afterwards for waiters; likewise for stable writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sync_failures::{SyncFailureStore, SyncFailures};

#[derive(Debug)]
pub(crate) struct UnsyncedWrites {
    shards: Vec<ShardWriteCounts>,
    /// Changes that are no shard's: what was there at the start, and new lengths of the file.
    others: ShardWriteCounts,
    failures: Arc<SyncFailures>,
    /// The shard that syncs, plus one; 0: none.
    turn: AtomicU64,
    /// On which side stable writes that begin now are counted; each sync that has succeeded turns it, once none is out
    /// on the other side.
    side: AtomicU64,
}

/// One shard's counts, on cache lines of their own.
#[repr(align(128))]
#[derive(Debug, Default)]
struct ShardWriteCounts {
    written: AtomicU64,
    stable: AtomicU64,
    /// Writes that are out and stable by themselves, by the side on which they began.
    out: [AtomicU64; 2],
    /// It waits for its turn.
    waits: AtomicBool,
}

impl ShardWriteCounts {
    fn is_all_synced(&self) -> bool {
        self.written.load(Ordering::Acquire) == self.stable.load(Ordering::Acquire)
    }
}

/// Where a write that is stable by itself is counted while it is out: given back by
/// [`UnsyncedWrites::end_stable_write`].
#[derive(Debug)]
#[must_use]
pub(crate) struct StableWriteSide(usize);

impl UnsyncedWrites {
    /// Of a file where it is not known what is stable.
    pub(crate) fn new(shards: u16) -> Self {
        let others = ShardWriteCounts::default();
        others.written.store(1, Ordering::Relaxed);
        UnsyncedWrites {
            shards: (0..shards).map(|_| ShardWriteCounts::default()).collect(),
            others,
            failures: Arc::default(),
            turn: AtomicU64::new(0),
            side: AtomicU64::new(0),
        }
    }

    /// The same, of a file whose failed sync `store` makes durable.
    pub(crate) fn with_failure_store(self, store: Arc<dyn SyncFailureStore>) -> Self {
        UnsyncedWrites { failures: Arc::new(SyncFailures::new(Some(store))), ..self }
    }

    /// Whether what was written may be lost.
    pub(crate) fn sync_failures(&self) -> &Arc<SyncFailures> {
        &self.failures
    }

    /// This shard has written something that may not be stable. Call it before the write is
    /// answered.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn note_write(&self, shard: u16) {
        let written = &self.shards[usize::from(shard)].written;
        // Only this shard writes it.
        written.store(written.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The file was changed by no shard.
    pub(crate) fn note_external_change(&self) {
        self.others.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all that was noted is stable.
    pub(crate) fn is_synced_up_to(&self, noted: &[u64]) -> bool {
        let all = self.shards.iter().chain([&self.others]).zip(noted);
        all.into_iter().all(|(counts, noted)| counts.stable.load(Ordering::Acquire) >= *noted)
    }

    /// Whether a shard has written something that may not be stable.
    pub(crate) fn has_unsynced_writes(&self) -> bool {
        !self.shards.iter().all(ShardWriteCounts::is_all_synced)
    }

    /// Notes what a sync that begins now will cover.
    pub(crate) fn snapshot_counts(&self, covered: &mut Vec<u64>) {
        covered.clear();
        let all = self.shards.iter().chain([&self.others]);
        covered.extend(all.map(|counts| counts.written.load(Ordering::Acquire)));
    }

    /// The sync has succeeded, and nothing that was out beside it has failed.
    pub(crate) fn note_synced(&self, covered: &[u64]) {
        for (counts, covered) in self.shards.iter().chain([&self.others]).zip(covered) {
            counts.stable.fetch_max(*covered, Ordering::AcqRel);
        }
    }

    pub(crate) fn note_sync_failure(&self) {
        self.failures.note_failure();
    }

    pub(crate) fn has_sync_failed(&self) -> bool {
        self.failures.has_unacknowledged()
    }

    /// Whether something has failed since there were so many failures, be it forgiven meanwhile or not.
    pub(crate) fn has_sync_failed_since(&self, failures: u64) -> bool {
        self.has_sync_failed() || self.failures.failure_count() > failures
    }

    /// Takes the turn to sync. False: another shard has it, and wakes this one when it is over.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn try_acquire_sync_turn(&self, shard: u16) -> bool {
        let take = || {
            let mine = u64::from(shard) + 1;
            self.turn.compare_exchange(0, mine, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let waits = &self.shards[usize::from(shard)].waits;
        if take() {
            return true;
        }
        waits.store(true, Ordering::SeqCst);
        // Who had it may have given it up before he could see that.
        if take() {
            waits.store(false, Ordering::SeqCst);
            return true;
        }
        false
    }

    /// Gives the turn up: these shards are to try again.
    pub(crate) fn release_sync_turn(&self) -> impl Iterator<Item = u16> {
        self.turn.store(0, Ordering::SeqCst);
        let waits = |(_, counts): &(u16, &ShardWriteCounts)| counts.waits.swap(false, Ordering::SeqCst);
        (0..).zip(&self.shards).filter(waits).map(|(shard, _)| shard)
    }

    /// The sync of the shard that has the turn has come back well: which stable writes must end first. `None` while
    /// some are out that are older still, since a sync before it gave up waiting for them: who ends the last of
    /// them wakes this shard.
    pub(crate) fn flip_stable_side(&self) -> Option<StableWriteSide> {
        let StableWriteSide(now) = self.current_side();
        let older = StableWriteSide(now ^ 1);
        // Only who has the turn turns it.
        self.has_no_writes_on_side(&older).then(|| {
            self.side.store(older.0 as u64, Ordering::SeqCst);
            StableWriteSide(now)
        })
    }

    /// Whether none of them is out any more.
    #[expect(clippy::indexing_slicing, reason = "a side is 0 or 1")]
    pub(crate) fn has_no_writes_on_side(&self, side: &StableWriteSide) -> bool {
        self.shards.iter().all(|counts| counts.out[side.0].load(Ordering::SeqCst) == 0)
    }

    /// A write goes out that shall be stable when it ends; and the shard to be woken, if any.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn begin_stable_write(&self, shard: u16) -> (StableWriteSide, Option<u16>) {
        let mut wake = None;
        loop {
            let side = self.current_side();
            let out = &self.shards[usize::from(shard)].out[side.0];
            // Only this shard writes it.
            out.store(out.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
            if self.current_side().0 == side.0 {
                return (side, wake);
            }
            // A sync has turned the side and may have looked before this was counted, or wait for it.
            wake = self.end_stable_write(shard, side).or(wake);
        }
    }

    /// It has ended, and if it failed, that is noted: the shard to be woken, if it is the last that
    /// a sync waits for.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn end_stable_write(&self, shard: u16, side: StableWriteSide) -> Option<u16> {
        let out = &self.shards[usize::from(shard)].out[side.0];
        let left = out.load(Ordering::Relaxed) - 1;
        out.store(left, Ordering::SeqCst);
        if left > 0 || self.current_side().0 == side.0 {
            return None;
        }
        self.turn.load(Ordering::SeqCst).checked_sub(1).map(|shard| shard as u16)
    }

    fn current_side(&self) -> StableWriteSide {
        StableWriteSide((self.side.load(Ordering::SeqCst) & 1) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_file_at_the_start_is_not_taken_for_stable() {
        let dirty = UnsyncedWrites::new(2);
        let is_clean = || {
            let mut noted = Vec::new();
            dirty.snapshot_counts(&mut noted);
            dirty.is_synced_up_to(&noted)
        };
        assert!(!is_clean());
        let mut noted = Vec::new();
        dirty.snapshot_counts(&mut noted);
        dirty.note_write(1);
        dirty.note_synced(&noted);
        assert!(!is_clean(), "written behind the note");
        assert!(dirty.has_unsynced_writes());
        dirty.snapshot_counts(&mut noted);
        dirty.note_synced(&noted);
        assert!(is_clean());
        dirty.note_external_change();
        assert!(!is_clean(), "another length");
        assert!(!dirty.has_unsynced_writes());
    }

    #[test]
    fn one_shard_syncs_at_a_time_and_wakes_those_that_wait() {
        let dirty = UnsyncedWrites::new(3);
        assert!(dirty.try_acquire_sync_turn(1));
        assert!(!dirty.try_acquire_sync_turn(0) && !dirty.try_acquire_sync_turn(2));
        assert_eq!(dirty.release_sync_turn().collect::<Vec<_>>(), [0, 2]);
        assert!(dirty.try_acquire_sync_turn(2));
        assert_eq!(dirty.release_sync_turn().count(), 0);
    }

    #[test]
    fn a_sync_settles_when_the_stable_writes_before_its_end_have_ended() {
        let dirty = UnsyncedWrites::new(2);
        let (before, _) = dirty.begin_stable_write(0);
        assert!(dirty.try_acquire_sync_turn(1));
        let waits_for = dirty.flip_stable_side().unwrap();
        let (behind, _) = dirty.begin_stable_write(0);
        assert!(!dirty.has_no_writes_on_side(&waits_for));
        assert_eq!(dirty.end_stable_write(0, behind), None);
        assert!(!dirty.has_no_writes_on_side(&waits_for));
        assert!(dirty.flip_stable_side().is_none(), "older ones are out");
        assert_eq!(dirty.end_stable_write(0, before), Some(1));
        assert!(dirty.has_no_writes_on_side(&waits_for));
        let (last, _) = dirty.begin_stable_write(0);
        let waits_for = dirty.flip_stable_side().unwrap();
        assert!(!dirty.has_no_writes_on_side(&waits_for));
        assert_eq!(dirty.end_stable_write(0, last), Some(1));
        assert!(dirty.has_no_writes_on_side(&waits_for));
    }
}
