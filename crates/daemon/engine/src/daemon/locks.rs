//! Locks of the control plane: which one a request holds, and for how long.
//!
//! Invariants: what is served is locked for moments only, so that a request that only reads never waits. A request that
//! changes it holds the change lock, for as long as shards and the state directory take, which have deadlines. A request
//! that waits for a disk, a remote machine or the last operations of a volume holds neither, but only the name of its
//! volume, which no other request may change meanwhile.

use std::{
    sync::{Arc, MutexGuard, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

use super::{ServedState, VolumeRegistry};
use crate::{state::identity::Identities, store::StorageInUse};
use config::plan::Plan;
use control::{RefusalCode, RequestRefusal};

/// How long a request waits for the change lock.
const CHANGE_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two attempts to take it.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// As long as this lives, no other request changes the volume.
pub(super) struct NameLock<'a> {
    volumes: &'a VolumeRegistry,
    name: String,
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        self.volumes.lock_names().names.retain(|(name, _)| *name != self.name);
    }
}

/// Names that are locked.
#[derive(Debug, Default)]
pub(super) struct LockedNames {
    /// Each with what is done to its volume.
    pub(super) names: Vec<(String, &'static str)>,
    /// All are, because another process takes over.
    all: bool,
}

/// As long as this lives, no request changes any volume.
pub(super) struct AllNamesLock<'a> {
    volumes: &'a VolumeRegistry,
}

impl AllNamesLock<'_> {
    /// This process does not change them any more.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for AllNamesLock<'_> {
    fn drop(&mut self) {
        self.volumes.lock_names().all = false;
    }
}

impl VolumeRegistry {
    /// What is served, locked for a moment. If a change panics, the state from before it stays valid.
    pub(super) fn lock_served(&self) -> MutexGuard<'_, ServedState> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plan as it was at start, or applied last.
    pub(super) fn plan(&self) -> Arc<Plan> {
        self.plan.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another plan is served from now on.
    pub(super) fn replace_plan(&self, plan: Plan) {
        *self.plan.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(plan);
    }

    fn lock_names(&self) -> MutexGuard<'_, LockedNames> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the name of a volume, or of one to be created, while it is `done`.
    pub(super) fn lock_name(&self, name: &str, done: &'static str) -> Result<NameLock<'_>, RequestRefusal> {
        let mut locked = self.lock_names();
        if locked.all {
            return Err(RequestRefusal::new(
                RefusalCode::Conflict,
                "another process is taking over; try again",
            ));
        }
        if let Some((_, done)) = locked.names.iter().find(|(held, _)| held == name) {
            let why = format!(
                "volume \"{name}\" is already being {done}, and its backing has not responded yet; try again when \
                 that has finished"
            );
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        locked.names.push((name.to_owned(), done));
        Ok(NameLock { volumes: self, name: name.to_owned() })
    }

    /// Locks the names of all volumes, if none is locked.
    pub(super) fn lock_all_names(&self) -> Result<AllNamesLock<'_>, RequestRefusal> {
        let mut locked = self.lock_names();
        if let Some((name, done)) = locked.names.first() {
            let why = format!("volume \"{name}\" is being {done}; try again when that has finished");
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        if std::mem::replace(&mut locked.all, true) {
            let why = "another process is taking over already";
            return Err(RequestRefusal::new(RefusalCode::Conflict, why));
        }
        Ok(AllNamesLock { volumes: self })
    }

    /// The lock to change what is served, with what only changes need.
    pub(super) fn lock_changes(&self) -> Result<MutexGuard<'_, Identities>, RequestRefusal> {
        let until = Instant::now() + CHANGE_LOCK_TIMEOUT;
        loop {
            match self.identities.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_POLL_INTERVAL),
                Err(TryLockError::WouldBlock) => {
                    let why = "another change is in progress; try again";
                    return Err(RequestRefusal::new(RefusalCode::TimedOut, why));
                }
            }
        }
    }

    /// The same without a time limit, for a change that has begun and must be finished.
    pub(super) fn lock_changes_unbounded(&self) -> MutexGuard<'_, Identities> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies of what is known and what is open, for a request that opens something without holding a lock.
    pub(super) fn snapshot(&self) -> Result<(Identities, StorageInUse), RequestRefusal> {
        let known = self.lock_changes()?.clone();
        Ok((known, self.lock_served().open_stores()))
    }
}
