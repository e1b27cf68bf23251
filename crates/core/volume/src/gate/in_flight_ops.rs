//! Counts operations in flight by the epoch in which they were admitted, and reports when a fence has nothing
//! left to wait for.

use std::collections::VecDeque;

use crate::io::Epoch;
use crate::owner_messages::ChangeId;

#[derive(Debug, Default)]
pub(super) struct InFlightByEpoch {
    /// Ascending epochs; the front may be empty only for the newest epoch.
    counts: VecDeque<(Epoch, u32)>,
    /// Changes to acknowledge when no epoch below the given one is in flight, oldest first.
    fences: VecDeque<(ChangeId, Epoch)>,
}

impl InFlightByEpoch {
    pub(super) fn count_started(&mut self, epoch: Epoch) {
        match self.counts.back_mut() {
            Some((last, count)) if *last == epoch => *count += 1,
            Some((last, _)) => {
                assert!(*last < epoch, "epochs only grow");
                self.counts.push_back((epoch, 1));
            }
            None => self.counts.push_back((epoch, 1)),
        }
    }

    #[expect(
        clippy::expect_used,
        reason = "an operation is counted when it starts, in the epoch that it bears when it ends"
    )]
    pub(super) fn count_finished(&mut self, epoch: Epoch) {
        let found = self.counts.iter_mut().rev().find(|(known, _)| *known == epoch);
        let (_, count) = found.expect("what finishes was started");
        *count -= 1;
        while self.counts.len() > 1 && self.counts.front().is_some_and(|(_, count)| *count == 0) {
            self.counts.pop_front();
        }
    }

    pub(super) fn add_fence(&mut self, change: ChangeId, below: Epoch) {
        self.fences.push_back((change, below));
    }

    pub(super) fn poll_ack(&mut self) -> Option<ChangeId> {
        let (change, below) = *self.fences.front()?;
        let drained = self.counts.iter().all(|(epoch, count)| *count == 0 || *epoch >= below);
        if drained {
            self.fences.pop_front();
            return Some(change);
        }
        None
    }
}
