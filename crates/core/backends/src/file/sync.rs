//! Syncs of a file, one at a time over all shards; and writes with their own sync.
//!
//! Invariant: a flush is done only after every call that may have received a failure report in its place has
//! returned without one (see `unsynced_writes.rs`).

use buf::{Errno, Sg};
use volume::{DiskKind, DiskOp, DiskTicket, Fault, Outcome};

use super::FileBackend;
use crate::file_op::{FileOp, FileOpKind, TRIES_MAX, failure_from_errno, is_transient, is_write_specific};
use crate::unsynced_writes::StableWriteSide;

/// The ticket of a sync.
pub(super) const SYNC_TICKET: DiskTicket = DiskTicket(u64::MAX);

/// How far this shard's sync is.
#[derive(Debug)]
pub(super) enum SyncState {
    /// None is wanted.
    Idle,
    /// Another shard has the turn. What was written before is noted: if that shard's syncs cover it, none of
    /// our own is needed, so nobody waits for more than two.
    Waiting,
    /// The turn is ours, and the disk has it.
    Out,
    /// It has come back; writes that were out beside it have not ended, and if there is no side, older ones.
    AwaitingStableWrites(Option<StableWriteSide>),
}

impl FileBackend {
    pub(super) fn flush(&mut self, slot: u32) {
        if self.disk.dirty.has_sync_failed() {
            return self.complete_op(slot, Err(Fault::Sync.into()));
        }
        if self.disk.write_through {
            return self.push_disk_op(slot, DiskKind::Sync);
        }
        self.sync_next.push(slot);
        self.start_sync();
    }

    /// A flush of what writes through has come back. Nothing that was written depends on it, so it puts nothing in
    /// doubt.
    pub(super) fn handle_flush_done(&mut self, slot: u32, came: Result<usize, Errno>) {
        if came.is_err_and(is_transient) && self.count_retry(slot) {
            return self.push_disk_op(slot, DiskKind::Sync);
        }
        let result =
            came.map(|_| Outcome::Complete).map_err(|errno| failure_from_errno(errno, Fault::PathLost));
        self.complete_op(slot, result);
    }

    /// One sync at a time, over all shards: what comes while one is out may not be covered by it.
    pub(super) fn start_sync(&mut self) {
        if !matches!(self.sync, SyncState::Idle) || self.sync_next.is_empty() {
            return;
        }
        std::mem::swap(&mut self.syncing, &mut self.sync_next);
        self.failures = self.disk.sync_failures().failure_count();
        self.disk.dirty.snapshot_counts(&mut self.covered);
        self.finish_or_acquire_turn();
    }

    /// Ends the flushes that have begun if they need no sync; else syncs, or waits for the turn.
    fn finish_or_acquire_turn(&mut self) {
        let covered = self.disk.dirty.is_synced_up_to(&self.covered);
        let failed = self.disk.dirty.has_sync_failed_since(self.failures);
        if failed || covered {
            return self.finish_flushes(failed);
        }
        self.sync = SyncState::Waiting;
        if self.disk.dirty.try_acquire_sync_turn(self.shard) {
            self.syncing.append(&mut self.sync_next);
            self.sync = SyncState::Out;
            self.disk.dirty.snapshot_counts(&mut self.covered);
            self.push_sync();
        }
    }

    fn push_sync(&mut self) {
        self.out.push_back(DiskOp { disk: self.disk.disk, ticket: SYNC_TICKET, kind: DiskKind::Sync });
    }

    fn finish_flushes(&mut self, failed: bool) {
        self.sync = SyncState::Idle;
        while let Some(slot) = self.syncing.pop() {
            self.complete_op(slot, if failed { Err(Fault::Sync.into()) } else { Ok(Outcome::Complete) });
        }
        self.start_sync();
    }

    pub(super) fn handle_sync_done(&mut self, came: Result<usize, Errno>) {
        match came {
            Err(errno) if is_transient(errno) && self.sync_tries < TRIES_MAX => {
                self.sync_tries += 1;
                return self.push_sync();
            }
            Err(_) => self.disk.dirty.note_sync_failure(),
            Ok(_) => {}
        }
        self.sync_tries = 0;
        self.sync = SyncState::AwaitingStableWrites(None);
        self.continue_sync();
    }

    /// Goes on with what another shard was waited for.
    pub(super) fn continue_sync(&mut self) {
        match &mut self.sync {
            SyncState::Waiting => self.finish_or_acquire_turn(),
            SyncState::AwaitingStableWrites(side) => {
                let dirty = &self.disk.dirty;
                // After a failure these flushes have failed: then nothing need be waited for, and the side stays as it
                // is, so that the first sync behind it waits for what this one did not.
                if side.is_none() && !dirty.has_sync_failed_since(self.failures) {
                    *side = dirty.flip_stable_side();
                }
                let ended = side.as_ref().is_some_and(|side| dirty.has_no_writes_on_side(side));
                // Looked at behind them: a failure is noted before a place among them is given up.
                let failed = dirty.has_sync_failed_since(self.failures);
                if !ended && !failed {
                    return;
                }
                if !failed {
                    dirty.note_synced(&self.covered);
                }
                self.wakes.extend(dirty.release_sync_turn());
                self.finish_flushes(failed);
            }
            SyncState::Out | SyncState::Idle => {}
        }
    }

    /// A write that was to be stable by itself has failed, and the system does not say which half of it: it is made
    /// once more without being stable. If its blocks cannot be written, they are bad, and nobody else's affair; else
    /// the disk could not make stable what it had taken, of this write and of others.
    pub(super) fn probe_failed_write(&mut self, slot: u32, offset: u64, from: Sg) {
        let file_op = self.file_op_mut(slot);
        file_op.tries = 0;
        if let FileOpKind::Write { probes, .. } = &mut file_op.kind {
            *probes = true;
        }
        self.push_disk_op(slot, DiskKind::Write { offset, from, skip: 0, durable: false });
    }

    /// A write that was stable by itself is out no more; what failed is noted before.
    pub(super) fn end_stable_write(&mut self, slot: u32) {
        let FileOpKind::Write { side, .. } = &mut self.file_op_mut(slot).kind else { return };
        if let Some(side) = side.take() {
            let wake = self.disk.dirty.end_stable_write(self.shard, side);
            self.wake_sync_shard(wake);
        }
    }

    /// Wakes the shard that has the turn to sync, which may be this one.
    pub(super) fn wake_sync_shard(&mut self, shard: Option<u16>) {
        match shard {
            Some(shard) if shard == self.shard => self.continue_sync(),
            Some(shard) => self.wakes.push_back(shard),
            None => {}
        }
    }

    /// Whether a stable write's error may be that of its sync, and so be about what others have written: the
    /// system does not say which half has failed.
    pub(super) fn may_be_sync_error(&self, errno: Errno) -> bool {
        !is_write_specific(errno) && (self.disk.geometry.write_cache || self.disk.dirty.has_unsynced_writes())
    }
}

impl Drop for FileBackend {
    /// Only with its shard does a backend end that has calls out: nobody will hear what came of them, and nobody
    /// may wait for it. What the disk was never asked has not failed; but a write that was made once more to learn what
    /// has failed leaves that open, asked or not.
    fn drop(&mut self) {
        let was_asked = |ticket: DiskTicket| self.out.iter().all(|op| op.ticket != ticket);
        let has_turn = matches!(self.sync, SyncState::Out | SyncState::AwaitingStableWrites(_));
        let mut in_doubt = matches!(self.sync, SyncState::Out) && was_asked(SYNC_TICKET);
        let mut stable = Vec::new();
        for (slot, file_op) in (0..).zip(&mut self.ops) {
            if let Some(FileOp { kind: FileOpKind::Write { side, probes, .. }, .. }) = file_op
                && let Some(side) = side.take()
            {
                in_doubt |= *probes || was_asked(DiskTicket(slot));
                stable.push(side);
            }
        }
        if in_doubt {
            self.disk.dirty.note_sync_failure();
        }
        if has_turn {
            self.disk.dirty.release_sync_turn().for_each(drop);
        }
        let waited_for = has_turn || !stable.is_empty();
        for side in stable {
            self.disk.dirty.end_stable_write(self.shard, side);
        }
        // Nobody takes this backend's wakes any more: who keeps the doubt wakes those that waited for it.
        if in_doubt {
            self.disk.sync_failures().request_record();
        } else if waited_for {
            self.disk.sync_failures().wake_shards();
        }
    }
}
