//! A gate's table of operations that have not ended: where each is, and the epoch that it is counted in.
//!
//! Invariant: a task is counted in one epoch, or, while it only flushes, in none; it is closed once, and its slot's next
//! task has another generation, so that the backend's name of a task is given again only to another.

use buf::{Payload, Time};

use super::Gate;
use super::chunked_op::ChunkedOp;
use super::operation_times::OperationTimes;
use crate::io::{Epoch, Failure, Io, IoCompletion, IoId, Outcome, Span};
use crate::region_guards::LockRegions;
use crate::requester::Requester;

pub(super) struct TaskSlot {
    pub(super) generation: u32,
    pub(super) task: Option<Task>,
}

/// An operation between its submission and its end.
pub(super) struct Task {
    pub(super) id: IoId,
    pub(super) epoch: Epoch,
    pub(super) work: TaskState,
    pub(super) times: OperationTimes,
    /// When the backend was last given a part of it; at first, when it was submitted.
    pub(super) sent: Time,
    /// Its end was told before the backend has ended it.
    pub(super) told: bool,
}

pub(super) enum TaskState {
    /// A read with the backend: its regions' sequence when it began.
    Read { span: Span, before: Option<u64>, tries: u8, lent: bool },
    /// A write with the backend, its marks raised.
    Write { regions: LockRegions },
    /// Something with the backend that needs neither.
    Other,
    /// A flush with the backend, or a write with nothing else left: in no epoch. What it makes stable was written
    /// before, so no change need wait for it, however slow the disk is.
    Flush,
    /// Not with the backend yet: a write that met a guard.
    Parked { io: Io, regions: LockRegions, span: Span, who: Requester },
    /// In several steps.
    Steps(Box<ChunkedOp>),
}

/// The backend's name of the task that a slot has in this generation.
pub(super) fn backend_id(generation: u32, slot: u32) -> IoId {
    IoId(u64::from(generation) << 32 | u64::from(slot))
}

impl Gate {
    #[expect(
        clippy::indexing_slicing,
        reason = "a free slot is a place of the table, or was pushed just before"
    )]
    pub(super) fn insert_task(&mut self, id: IoId, epoch: Epoch, work: TaskState) -> u32 {
        let times = OperationTimes::at_submission(self.now);
        let task = Task { id, epoch, work, times, sent: self.now, told: false };
        self.overdue.watch(self.now, self.shared.queue_timeout());
        if !matches!(task.work, TaskState::Flush) {
            self.flights.count_started(task.epoch);
        }
        match self.free.pop() {
            Some(slot) => {
                self.tasks[slot as usize].task = Some(task);
                slot
            }
            None => {
                self.tasks.push(TaskSlot { generation: 0, task: Some(task) });
                (self.tasks.len() - 1) as u32
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "slots are given out by this table and are places of it")]
    pub(super) fn backend_id(&self, slot: u32) -> IoId {
        backend_id(self.tasks[slot as usize].generation, slot)
    }

    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots are places of the table, and are used between `open` and `close` only"
    )]
    pub(super) fn task_mut(&mut self, slot: u32) -> &mut Task {
        self.tasks[slot as usize].task.as_mut().expect("a slot that is in use")
    }

    /// Ends a task: its slot, its epoch and its marks are free again.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "slots are places of the table, and a task is closed by the one who ends it"
    )]
    pub(super) fn complete_task(&mut self, slot: u32, result: Result<Outcome, Failure>, payload: Payload) {
        let entry = &mut self.tasks[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let task = entry.task.take().expect("a task ends once");
        self.free.push(slot);
        if !matches!(task.work, TaskState::Flush) {
            self.flights.count_finished(task.epoch);
        }
        if task.told {
            return self.overdue.ended();
        }
        let times = task.times.at_end(self.now);
        self.done.push_back((IoCompletion { id: task.id, result, payload }, times));
    }

    /// A task goes on under the view that stands now.
    pub(super) fn move_to_current_epoch(&mut self, slot: u32) {
        let (old, new) = (self.task_mut(slot).epoch, self.view.epoch);
        self.flights.count_finished(old);
        self.flights.count_started(new);
        self.task_mut(slot).epoch = new;
    }
}
