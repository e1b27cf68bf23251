//! How a gate applies a change: operations that wait or run are admitted again under the new view.

use super::{Gate, TaskState};
use crate::io::{Epoch, UnservableReason};
use crate::owner_messages::ViewUpdate;
use crate::view::View;

impl Gate {
    /// Adopts a change, between two turns. What waits is admitted again under the new view.
    pub fn update_view(&mut self, update: &ViewUpdate) {
        self.publish_inline_writes();
        // A gate may have been made with a view that is newer than the change.
        if update.view.epoch > self.view.epoch {
            let starts = |view: &View| {
                matches!(
                    view.not_ready,
                    Some(UnservableReason::Sanitizing(_) | UnservableReason::Formatting(_))
                )
            };
            if starts(&update.view) && !starts(&self.view) {
                update.view.sanitized.set(0);
            }
            self.view = update.view.clone();
            for slot in 0..self.tasks.len() as u32 {
                self.readmit_task(slot);
            }
        }
        let below = if update.drain { update.view.epoch } else { Epoch(0) };
        self.flights.add_fence(update.change, below);
    }

    #[expect(clippy::indexing_slicing, reason = "its caller counts up to the length of the table")]
    fn readmit_task(&mut self, slot: u32) {
        let view = &self.view;
        let Some(task) = self.tasks[slot as usize].task.as_mut() else { return };
        let refused = match &mut task.work {
            TaskState::Read { .. } | TaskState::Write { .. } | TaskState::Other | TaskState::Flush => return,
            TaskState::Parked { io, who, .. } => view.admit(who, &io.op).err(),
            TaskState::Steps(steps) => {
                // What is with the backend ends under the old epoch, and what is asked of the home is
                // admitted there; see `advance_chunked_op` for the rest.
                steps.readmit(view);
                if steps.is_outstanding() {
                    return;
                }
                None
            }
        };
        if let Some(refusal) = refused {
            return self.fail_parked_task(slot, refusal.into());
        }
        self.flights.count_finished(task.epoch);
        task.epoch = view.epoch;
        self.flights.count_started(task.epoch);
    }
}
