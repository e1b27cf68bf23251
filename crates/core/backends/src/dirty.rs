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
pub(crate) struct Dirty {
    shards: Vec<Counts>,
    /// Changes that are no shard's: what was there at the start, and new lengths of the file.
    others: Counts,
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
struct Counts {
    written: AtomicU64,
    stable: AtomicU64,
    /// Writes that are out and stable by themselves, by the side on which they began.
    out: [AtomicU64; 2],
    /// It waits for its turn.
    waits: AtomicBool,
}

impl Counts {
    fn is_clean(&self) -> bool {
        self.written.load(Ordering::Acquire) == self.stable.load(Ordering::Acquire)
    }
}

/// Where a write that is stable by itself is counted while it is out: given back by
/// [`Dirty::end_stable`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Side(usize);

impl Dirty {
    /// Of a file where it is not known what is stable.
    pub(crate) fn new(shards: u16) -> Self {
        let others = Counts::default();
        others.written.store(1, Ordering::Relaxed);
        Dirty {
            shards: (0..shards).map(|_| Counts::default()).collect(),
            others,
            failures: Arc::default(),
            turn: AtomicU64::new(0),
            side: AtomicU64::new(0),
        }
    }

    /// The same, of a file whose failed sync `store` makes durable.
    pub(crate) fn recorded_by(self, store: Arc<dyn SyncFailureStore>) -> Self {
        Dirty { failures: Arc::new(SyncFailures::new(Some(store))), ..self }
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
    pub(crate) fn wrote(&self, shard: u16) {
        let written = &self.shards[usize::from(shard)].written;
        // Only this shard writes it.
        written.store(written.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The file was changed by no shard.
    pub(crate) fn changed(&self) {
        self.others.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all that was noted is stable.
    pub(crate) fn covers(&self, noted: &[u64]) -> bool {
        let all = self.shards.iter().chain([&self.others]).zip(noted);
        all.into_iter().all(|(counts, noted)| counts.stable.load(Ordering::Acquire) >= *noted)
    }

    /// Whether a shard has written something that may not be stable.
    pub(crate) fn has_writes(&self) -> bool {
        !self.shards.iter().all(Counts::is_clean)
    }

    /// Notes what a sync that begins now will cover.
    pub(crate) fn note(&self, covered: &mut Vec<u64>) {
        covered.clear();
        let all = self.shards.iter().chain([&self.others]);
        covered.extend(all.map(|counts| counts.written.load(Ordering::Acquire)));
    }

    /// The sync has succeeded, and nothing that was out beside it has failed.
    pub(crate) fn synced(&self, covered: &[u64]) {
        for (counts, covered) in self.shards.iter().chain([&self.others]).zip(covered) {
            counts.stable.fetch_max(*covered, Ordering::AcqRel);
        }
    }

    pub(crate) fn fail(&self) {
        self.failures.fail();
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failures.any_unforgiven()
    }

    /// Whether something has failed since there were so many failures, be it forgiven meanwhile or not.
    pub(crate) fn has_failed_since(&self, failures: u64) -> bool {
        self.has_failed() || self.failures.failures() > failures
    }

    /// Takes the turn to sync. False: another shard has it, and wakes this one when it is over.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn take_turn(&self, shard: u16) -> bool {
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
    pub(crate) fn end_turn(&self) -> impl Iterator<Item = u16> {
        self.turn.store(0, Ordering::SeqCst);
        let waits = |(_, counts): &(u16, &Counts)| counts.waits.swap(false, Ordering::SeqCst);
        (0..).zip(&self.shards).filter(waits).map(|(shard, _)| shard)
    }

    /// The sync of the shard that has the turn has come back well: which stable writes must end first. `None` while
    /// some are out that are older still, since a sync before it gave up waiting for them: who ends the last of
    /// them wakes this shard.
    pub(crate) fn turn_side(&self) -> Option<Side> {
        let Side(now) = self.side_now();
        let older = Side(now ^ 1);
        // Only who has the turn turns it.
        self.is_side_empty(&older).then(|| {
            self.side.store(older.0 as u64, Ordering::SeqCst);
            Side(now)
        })
    }

    /// Whether none of them is out any more.
    #[expect(clippy::indexing_slicing, reason = "a side is 0 or 1")]
    pub(crate) fn is_side_empty(&self, side: &Side) -> bool {
        self.shards.iter().all(|counts| counts.out[side.0].load(Ordering::SeqCst) == 0)
    }

    /// A write goes out that shall be stable when it ends; and the shard to be woken, if any.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn begin_stable(&self, shard: u16) -> (Side, Option<u16>) {
        let mut wake = None;
        loop {
            let side = self.side_now();
            let out = &self.shards[usize::from(shard)].out[side.0];
            // Only this shard writes it.
            out.store(out.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
            if self.side_now().0 == side.0 {
                return (side, wake);
            }
            // A sync has turned the side and may have looked before this was counted, or wait for it.
            wake = self.end_stable(shard, side).or(wake);
        }
    }

    /// It has ended, and if it failed, that is noted: the shard to be woken, if it is the last that
    /// a sync waits for.
    #[expect(
        clippy::indexing_slicing,
        reason = "shards are numbered below the number that this was made for"
    )]
    pub(crate) fn end_stable(&self, shard: u16, side: Side) -> Option<u16> {
        let out = &self.shards[usize::from(shard)].out[side.0];
        let left = out.load(Ordering::Relaxed) - 1;
        out.store(left, Ordering::SeqCst);
        if left > 0 || self.side_now().0 == side.0 {
            return None;
        }
        self.turn.load(Ordering::SeqCst).checked_sub(1).map(|shard| shard as u16)
    }

    fn side_now(&self) -> Side {
        Side((self.side.load(Ordering::SeqCst) & 1) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_file_at_the_start_is_not_taken_for_stable() {
        let dirty = Dirty::new(2);
        let is_clean = || {
            let mut noted = Vec::new();
            dirty.note(&mut noted);
            dirty.covers(&noted)
        };
        assert!(!is_clean());
        let mut noted = Vec::new();
        dirty.note(&mut noted);
        dirty.wrote(1);
        dirty.synced(&noted);
        assert!(!is_clean(), "written behind the note");
        assert!(dirty.has_writes());
        dirty.note(&mut noted);
        dirty.synced(&noted);
        assert!(is_clean());
        dirty.changed();
        assert!(!is_clean(), "another length");
        assert!(!dirty.has_writes());
    }

    #[test]
    fn one_shard_syncs_at_a_time_and_wakes_those_that_wait() {
        let dirty = Dirty::new(3);
        assert!(dirty.take_turn(1));
        assert!(!dirty.take_turn(0) && !dirty.take_turn(2));
        assert_eq!(dirty.end_turn().collect::<Vec<_>>(), [0, 2]);
        assert!(dirty.take_turn(2));
        assert_eq!(dirty.end_turn().count(), 0);
    }

    #[test]
    fn a_sync_settles_when_the_stable_writes_before_its_end_have_ended() {
        let dirty = Dirty::new(2);
        let (before, _) = dirty.begin_stable(0);
        assert!(dirty.take_turn(1));
        let waits_for = dirty.turn_side().unwrap();
        let (behind, _) = dirty.begin_stable(0);
        assert!(!dirty.is_side_empty(&waits_for));
        assert_eq!(dirty.end_stable(0, behind), None);
        assert!(!dirty.is_side_empty(&waits_for));
        assert!(dirty.turn_side().is_none(), "older ones are out");
        assert_eq!(dirty.end_stable(0, before), Some(1));
        assert!(dirty.is_side_empty(&waits_for));
        let (last, _) = dirty.begin_stable(0);
        let waits_for = dirty.turn_side().unwrap();
        assert!(!dirty.is_side_empty(&waits_for));
        assert_eq!(dirty.end_stable(0, last), Some(1));
        assert!(dirty.is_side_empty(&waits_for));
    }
}
