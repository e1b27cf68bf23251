//! Whether what was written to a file may be lost: a sync of it has failed.
//!
//! The doubt outlives the daemon: who makes it durable is told first, and no host hears of the failure before that
//! has been done (or could not be done: see [`Keeper`]). Only the operator's word ends it.
//!
//! Invariants: all counts only grow. There is doubt while failures are more than those that were forgiven; it is kept
//! while what is durable tells of one that was not forgiven.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes a doubt durable, so that the next start knows of it.
pub trait Keeper: fmt::Debug + Send + Sync {
    /// A sync of a file has failed. As soon as that is durable, or it is clear that it will not be, calls
    /// [`Doubt::kept`], and then wakes every shard of the volume, which may wait for it. Called on a shard: it must not
    /// wait itself.
    fn keep(&self, doubt: &Arc<Doubt>);

    /// Wakes every shard of the volume. Called on a shard: it must not wait itself.
    fn wake(&self);
}

/// The doubt about one file, over all shards.
#[derive(Debug, Default)]
pub struct Doubt {
    failed: AtomicU64,
    forgiven: AtomicU64,
    /// As many failures as what is durable tells of.
    kept: AtomicU64,
    keeper: Option<Arc<dyn Keeper>>,
}

impl Doubt {
    pub(crate) fn new(keeper: Option<Arc<dyn Keeper>>) -> Self {
        Doubt { keeper, ..Doubt::default() }
    }

    /// A sync has failed.
    pub(crate) fn fail(self: &Arc<Self>) {
        self.failed.fetch_add(1, Ordering::SeqCst);
        if !self.is_kept() {
            self.tell();
        }
    }

    /// Asks for what is durable to be brought up to date, and for the shards to be woken.
    pub(crate) fn tell(self: &Arc<Self>) {
        if let Some(keeper) = &self.keeper {
            keeper.keep(self);
        }
    }

    /// Asks for the shards to be woken: those that wait for one that is gone.
    pub(crate) fn wake(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.wake();
        }
    }

    /// Whether what was written may be lost.
    pub fn is_raised(&self) -> bool {
        self.failed.load(Ordering::SeqCst) > self.forgiven.load(Ordering::SeqCst)
    }

    /// Whether hosts may be told.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeper.is_none() || self.kept.load(Ordering::SeqCst) > self.forgiven.load(Ordering::SeqCst)
    }

    /// How many syncs have failed: what [`Doubt::kept`] and [`FileDisk::forgive`](crate::FileDisk::forgive) are told.
    pub fn failures(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    /// So many failures, as counted before it was written down, are durable.
    pub fn kept(&self, failures: u64) {
        self.kept.fetch_max(failures, Ordering::SeqCst);
    }

    /// So many failures, as counted before the file was synced again, are no longer held against it.
    pub(crate) fn forgive(self: &Arc<Self>, failures: u64) {
        self.forgiven.fetch_max(failures, Ordering::SeqCst);
        if self.is_raised() {
            // What was written down is gone with those that were forgiven.
            self.tell();
        }
    }
}
