//! When operations came to where, in the time of the shard's turns.

use buf::Time;

use super::Gate;
use crate::io::IoCompletion;

/// When an operation that has ended came to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationTimes {
    /// To the gate.
    pub submitted: Time,
    /// To the backend, for the first time: until then another operation, or a change of the volume, excluded it. What
    /// never came there ended at this time.
    pub begun: Time,
}

/// Later than anything.
const NEVER: Time = Time(u64::MAX);

impl OperationTimes {
    /// Of what comes to the gate now.
    pub(super) fn at_submission(now: Time) -> Self {
        OperationTimes { submitted: now, begun: NEVER }
    }

    /// Of what ends now.
    pub(super) fn at_end(self, now: Time) -> Self {
        OperationTimes { begun: self.begun.min(now), ..self }
    }
}

impl Gate {
    /// Ends an operation that never became a task.
    pub(super) fn complete_without_task(&mut self, done: IoCompletion) {
        self.done.push_back((done, OperationTimes { submitted: self.now, begun: self.now }));
    }

    /// Notes that a task comes to the backend, if it does for the first time.
    pub(super) fn note_backend_start(&mut self, slot: u32) {
        let now = self.now;
        let task = self.task_mut(slot);
        task.times.begun = task.times.begun.min(now);
        task.sent = now;
    }
}
