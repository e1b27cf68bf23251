//! Inline reads and writes: plain ones of memory, executed within the call that delivers their command.
//!
//! Invariant: inline writes are published to all cores, and their claim is dropped, before anything else is
//! done with the volume and before any host is answered.

use buf::Sg;

use super::Gate;
use crate::io::{Durability, Op, Span};
use crate::region_guards::LockRegions;
use crate::requester::Requester;

impl Gate {
    /// Reads inline, if the read is admitted now and the backend lends its memory: as if the read had
    /// been submitted and had ended. `None`: nothing was done; [`Gate::submit`] it.
    #[must_use]
    pub fn read_inline(&mut self, who: &Requester, span: Span) -> Option<Sg> {
        let plain = span.blocks > 0 && self.lends_memory() && self.admit(who, &Op::Read(span)).is_ok();
        if !plain || self.view.bad.first_in(span).is_some() {
            return None;
        }
        self.backend.lend_memory(span)
    }

    /// Writes inline, if the write is admitted now, nothing excludes it, and the backend can: as if
    /// the write had been submitted and had ended well. False: nothing was done; [`Gate::submit`] it.
    ///
    /// [`Gate::resume`] must follow before the write is answered: until then other cores may not see it,
    /// and exclusive operations wait.
    #[must_use]
    pub fn write_inline(&mut self, who: &Requester, span: Span, durability: Durability, from: &[u8]) -> bool {
        let bytes = span.blocks.checked_mul(u64::from(self.view.geometry.logical));
        let plain = !from.is_empty() && bytes == Some(from.len() as u64) && self.is_aligned(span);
        // To make bad blocks good is no plain write.
        if !plain
            || self.view.bad.first_in(span).is_some()
            || self.admit(who, &Op::Write(span, durability)).is_err()
        {
            return false;
        }
        let begins = self.claimed == LockRegions::NONE;
        if begins {
            self.claimed = self.shared.guards().claim_free_regions(self.shard);
        }
        let written = self.claimed.contains_all(self.lock_regions(span))
            && self.backend.write_inline(span, durability, from);
        if begins && !written {
            // No `Gate::resume` need follow what was not done, so nothing else would drop the claim.
            self.publish_inline_writes();
        }
        written
    }

    /// Ends a run of inline writes: all cores see them, and nothing waits for them any more.
    pub(super) fn publish_inline_writes(&mut self) {
        if std::mem::take(&mut self.claimed) != LockRegions::NONE {
            self.backend.publish_inline_writes();
            self.shared.guards().release_claim(self.shard);
        }
    }
}
