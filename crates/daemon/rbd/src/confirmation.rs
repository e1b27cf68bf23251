//! Calls that librbd answers without the cluster: by its object map it knows that an object is not there. So it reads zeroes,
//! or what the parent image has, and has nothing to free. A client that another one has barred, and that does not know it
//! yet, would so hand out what was there before, or leave what is there now. The images of a group of gateways end such
//! calls when the cluster has executed something of this client that was sent after them: by then the client was not
//! barred, as far as the servers of the image had learned, and no other gateway serves the image before they all have.
//!
//! Invariant: what waits is ended by a read of the cluster that was begun after it had come, once. The image's client is
//! not used any more after [`Confirmation::close`].

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use buf::Errno;

use crate::objects::Pool;

/// An object that is never there: what matters is that a server looks for it.
const OBJECT: &str = "blockwire.confirmation";
/// librbd keeps whole sectors in an object or none of them.
const SECTOR: usize = 512;

type Done = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// See the module. One per image.
pub(crate) struct Confirmation {
    /// `None` when the image is being closed.
    pool: Mutex<Option<Pool>>,
    /// What an object does not have, its parent may have.
    has_parent: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_under_way: bool,
    /// They came after the read that is under way was begun. As many as calls are out.
    waiting: Vec<Done>,
}

impl Confirmation {
    /// `pool`: that of the image.
    pub(crate) fn new(pool: Pool, has_parent: bool) -> Arc<Confirmation> {
        Arc::new(Confirmation { pool: Mutex::new(Some(pool)), has_parent, state: Mutex::default() })
    }

    /// Lets go of the image's client, so that it can be shut down. No call is out any more.
    pub(crate) fn close(&self) {
        drop(self.pool.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Whether what was read, in these pieces, may be what librbd has made up.
    pub(crate) fn is_needed<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>) -> bool {
        self.has_parent || has_zero_sector(pieces)
    }

    /// Ends it when the cluster has executed a read of this client that begins after this call, or has refused it.
    pub(crate) fn wait(self: &Arc<Self>, done: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let mut state = self.lock();
        state.waiting.push(Box::new(done));
        if !std::mem::replace(&mut state.is_under_way, true) {
            self.read(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = self.clone();
        let ended = move |result: Result<(), Errno>| {
            for done in waiting {
                done(result);
            }
            let mut state = own.lock();
            if state.waiting.is_empty() {
                state.is_under_way = false;
            } else {
                own.read(state);
            }
        };
        match pool {
            Some(pool) => pool.read(OBJECT, 1, move |result| ended(result.map(drop))),
            None => ended(Err(Errno(libc::EIO))),
        }
    }
}

impl fmt::Debug for Confirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Confirmation").field("has_parent", &self.has_parent).finish_non_exhaustive()
    }
}

/// Whether a sector of these pieces is zero throughout. Where pieces do not end with a sector this is not looked for, and
/// taken as so.
fn has_zero_sector<'a>(mut pieces: impl Iterator<Item = &'a [u8]>) -> bool {
    let is_zero = |sector: &[u8]| sector.iter().all(|byte| *byte == 0);
    pieces.any(|piece| {
        let sectors = piece.chunks_exact(SECTOR);
        !sectors.remainder().is_empty() || sectors.into_iter().any(is_zero)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_sector_that_may_be_made_up_is_found() {
        let (full, empty) = ([7; SECTOR * 2], [0; SECTOR]);
        let mut last = [0; SECTOR];
        last[SECTOR - 1] = 1;
        let found = |pieces: &[&[u8]]| has_zero_sector(pieces.iter().copied());
        assert!(!found(&[&full, &last]) && !found(&[]));
        assert!(found(&[&full, &empty]) && found(&[&empty[..], &full]));
        assert!(found(&[&[&full[..], &empty, &last].concat()]));
        // Pieces that do not end with a sector.
        assert!(found(&[&full[..100], &full[100..]]));
    }
}
