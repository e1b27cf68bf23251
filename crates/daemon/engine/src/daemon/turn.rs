//! Who changes what is served, one after the other, and who waits for whom.
//!
//! Invariants: what is served is locked for instants, so that who only looks waits for nobody. Who changes it has the
//! turn, for as long as shards and the state directory take, which are not waited for without end. Disks and other
//! machines may be, and operations of a volume that goes: a request that waits for one has neither, but the name of a
//! volume, which no other may change then.

use std::{
    sync::{MutexGuard, PoisonError, TryLockError},
    thread,
    time::{Duration, Instant},
};

use super::{Daemon, Served};
use crate::{state::identity::Identities, store::Store};
use control::{Code, Refused};

/// How long the turn is waited for.
const TURN: Duration = Duration::from_secs(10);
/// How often is looked whether it is to be had.
const LOOK: Duration = Duration::from_millis(5);

/// A volume that nobody else changes as long as this lives.
pub(super) struct NameLock<'a> {
    daemon: &'a Daemon,
    name: String,
}

impl Drop for NameLock<'_> {
    fn drop(&mut self) {
        self.daemon.names().retain(|(name, _)| *name != self.name);
    }
}

impl Daemon {
    /// What is served; nobody has it for long. A panic in a change leaves a state that was valid before it.
    pub(super) fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Vec<(String, &'static str)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps others from changing a volume, or one that is to have this name, while it is `done`.
    pub(super) fn hold(&self, name: &str, done: &'static str) -> Result<NameLock<'_>, Refused> {
        let mut names = self.names();
        if let Some((_, done)) = names.iter().find(|(held, _)| held == name) {
            let why = format!(
                "volume \"{name}\" is already being {done}, and its backing has not responded yet; try again when \
                 that has finished"
            );
            return Err(Refused::new(Code::Conflict, why));
        }
        names.push((name.to_owned(), done));
        Ok(NameLock { daemon: self, name: name.to_owned() })
    }

    /// The turn to change what is served, with what only they need who do.
    pub(super) fn turn(&self) -> Result<MutexGuard<'_, Identities>, Refused> {
        let until = Instant::now() + TURN;
        loop {
            match self.identities.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOOK),
                Err(TryLockError::WouldBlock) => {
                    let why = "another change is in progress; try again";
                    return Err(Refused::new(Code::TimedOut, why));
                }
            }
        }
    }

    /// The same for who has begun and has to come to an end.
    pub(super) fn turn_at_last(&self) -> MutexGuard<'_, Identities> {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known, and what is open, now: for who opens something beside it and waits.
    pub(super) fn beside(&self) -> Result<(Identities, Vec<Store>), Refused> {
        let known = self.turn()?.clone();
        Ok((known, self.served().open()))
    }
}
