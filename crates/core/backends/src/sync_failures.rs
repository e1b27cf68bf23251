//! Failed syncs of a file: data written to it may be lost.
//!
//! They outlive the daemon: the store that records them is told first, and no host hears of a failure before
//! it is recorded (or could not be: see [`SyncFailureStore`]). Only the operator can acknowledge them.
//!
//! Invariants: all counts only grow. Written data is in doubt while there are more failures than acknowledged
//! ones; this is recorded as long as the record shows an unacknowledged failure.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records that a sync of a file has failed, so that the next start knows of it.
pub trait SyncFailureStore: fmt::Debug + Send + Sync {
    /// A sync of a file has failed. As soon as that is durable, or it is clear that it will not be, calls
    /// [`SyncFailures::note_recorded`], and then wakes every shard of the volume, which may wait for it. Called on a shard: it must not
    /// wait itself.
    fn record_failures(&self, failures: &Arc<SyncFailures>);

    /// Wakes every shard of the volume. Called on a shard: it must not wait itself.
    fn wake_shards(&self);
}

/// The failed syncs of one file, over all shards.
#[derive(Debug, Default)]
pub struct SyncFailures {
    failed: AtomicU64,
    forgiven: AtomicU64,
    /// As many failures as what is durable tells of.
    recorded: AtomicU64,
    store: Option<Arc<dyn SyncFailureStore>>,
}

impl SyncFailures {
    pub(crate) fn new(store: Option<Arc<dyn SyncFailureStore>>) -> Self {
        SyncFailures { store, ..SyncFailures::default() }
    }

    /// A sync has failed.
    pub(crate) fn note_failure(self: &Arc<Self>) {
        self.failed.fetch_add(1, Ordering::SeqCst);
        if !self.is_recorded() {
            self.request_record();
        }
    }

    /// Asks for what is durable to be brought up to date, and for the shards to be woken.
    pub(crate) fn request_record(self: &Arc<Self>) {
        if let Some(store) = &self.store {
            store.record_failures(self);
        }
    }

    /// Asks for the shards to be woken: those that wait for one that is gone.
    pub(crate) fn wake_shards(&self) {
        if let Some(store) = &self.store {
            store.wake_shards();
        }
    }

    /// Whether what was written may be lost.
    pub fn has_unacknowledged(&self) -> bool {
        self.failed.load(Ordering::SeqCst) > self.forgiven.load(Ordering::SeqCst)
    }

    /// Whether hosts may be told.
    pub(crate) fn is_recorded(&self) -> bool {
        self.store.is_none() || self.recorded.load(Ordering::SeqCst) > self.forgiven.load(Ordering::SeqCst)
    }

    /// How many syncs have failed: what [`SyncFailures::note_recorded`] and [`FileDisk::acknowledge_sync_failures`](crate::FileDisk::acknowledge_sync_failures) are told.
    pub fn failure_count(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    /// So many failures, as counted before it was written down, are durable.
    pub fn note_recorded(&self, failures: u64) {
        self.recorded.fetch_max(failures, Ordering::SeqCst);
    }

    /// So many failures, as counted before the file was synced again, are no longer held against it.
    pub(crate) fn acknowledge_failures(self: &Arc<Self>, failures: u64) {
        self.forgiven.fetch_max(failures, Ordering::SeqCst);
        if self.has_unacknowledged() {
            // What was written down is gone with those that were forgiven.
            self.request_record();
        }
    }
}
