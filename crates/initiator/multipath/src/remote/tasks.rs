//! The operations of a volume: where each is, which wait, and for what.
//!
//! Invariants: an operation is in at most one queue, once; the identifier of an ended one may stay in a queue
//! for a while, and is ignored there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use buf::Payload;
use stream::{Slab, Tag};
use volume::{Failure, IoCompletion, IoId, Op, Outcome, Refusal, Time};

use super::split::SplitProgress;
use super::write_overlap::{WriteOverlapFilter, writes_overlap};
use super::{ABORTED, NEVER};

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    /// In the queue for a path with room.
    Queued,
    /// Behind an earlier write that overlaps it.
    Held,
    /// Undone; to be queued again at a time.
    Later,
    /// With this path.
    Path(u8),
    /// A flush: with the paths of `out`, and to go to those of `todo`.
    Flush { todo: u32, out: u32 },
    /// This path has lost it; the fence is awaited that is asked for after so many.
    Doubt(u8, u32),
}

/// An operation that was taken on.
#[derive(Debug)]
pub(super) struct Task {
    /// The caller's name for it.
    pub(super) id: IoId,
    /// To do it again.
    pub(super) op: Op,
    pub(super) state: TaskState,
    /// Its memory, while no path has it.
    pub(super) payload: Payload,
    /// Its place among all: earlier writes have lower numbers.
    pub(super) number: u64,
    /// When it has waited long enough; [`NEVER`] as long as nothing went wrong.
    pub(super) deadline: Time,
    /// How often it came back undone.
    pub(super) tries: u32,
    pub(super) cancelled: bool,
    /// A flush: the count of cached writes when it began; what its legs came to.
    pub(super) since: u64,
    pub(super) again: bool,
    /// A path that has room has not taken a leg of it.
    pub(super) declined: bool,
    pub(super) failure: Option<Failure>,
    /// What no path carries at once: how far it is.
    pub(super) split: Option<Box<SplitProgress>>,
}

/// A write that ended without a certain answer, and may land until its path is fenced.
#[derive(Debug)]
pub(super) struct InDoubtWrite {
    pub(super) path: u8,
    pub(super) generation: u32,
    pub(super) number: u64,
    pub(super) op: Op,
}

/// Operations that were taken on.
#[derive(Debug)]
pub(super) struct Tasks {
    pub(super) slab: Slab<Task>,
    pub(super) order: WriteOverlapFilter,
    pub(super) in_doubt: Vec<InDoubtWrite>,
    pub(super) queue: VecDeque<Tag>,
    /// Writes behind others, in order; whether one of those has ended.
    pub(super) held: VecDeque<Tag>,
    pub(super) release: bool,
    pub(super) later: BinaryHeap<Reverse<(Time, u64)>>,
    /// Flushes that have legs left to send.
    pub(super) flushes: Vec<Tag>,
    pub(super) cancels: Vec<IoId>,
    pub(super) done: VecDeque<IoCompletion>,
    /// The earliest deadline of what waits, or earlier.
    pub(super) expiry: Time,
    /// What an operation may wait, and whether one in doubt waits however long that takes.
    queue_timeout: Duration,
    certain: bool,
    #[cfg(test)]
    pub(super) bug: Option<PlantedBug>,
}

/// A bug that a test plants: who does not notice it proves nothing.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlantedBug {
    /// A write of unknown fate is repeated without a fence.
    NoFence,
    /// Writes that overlap go at once.
    NoOrder,
    /// A flush goes by one path.
    FlushOne,
    /// What was fenced is forgotten.
    Lose,
    /// What is repeated ends twice.
    Double,
    /// A compare-and-write of unknown fate is repeated.
    RepeatSwap,
}

impl Tasks {
    pub(super) fn new(in_work: usize, queue_timeout: Duration, certain: bool) -> Self {
        Tasks {
            slab: Slab::new(in_work),
            order: WriteOverlapFilter::new(),
            in_doubt: Vec::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            release: false,
            later: BinaryHeap::new(),
            flushes: Vec::new(),
            cancels: Vec::new(),
            done: VecDeque::new(),
            expiry: NEVER,
            queue_timeout,
            certain,
            #[cfg(test)]
            bug: None,
        }
    }

    #[cfg(test)]
    pub(super) fn has_planted_bug(&self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether nothing waits, nor may land still.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty()
            && self.held.is_empty()
            && self.later.is_empty()
            && self.flushes.is_empty()
            && self.in_doubt.is_empty()
    }

    /// The caller has looked for room, so this is for the compiler.
    #[cold]
    pub(super) fn reject_busy(&mut self, task: Task, payload: Payload) {
        if task.op.is_write() {
            self.order.remove_write(&task.op);
        }
        self.done.push_back(IoCompletion { id: task.id, result: Err(Refusal::Busy.into()), payload });
    }

    pub(super) fn postpone(&mut self, until: Time, tag: Tag) {
        let Some(task) = self.slab.get_mut(tag) else { return };
        task.state = TaskState::Later;
        self.later.push(Reverse((until, tag.to_bits())));
    }

    /// Whether an earlier write, in work or in doubt, overlaps this one.
    pub(super) fn is_blocked_by_overlap(&self, tag: Tag) -> bool {
        #[cfg(test)]
        if self.has_planted_bug(PlantedBug::NoOrder) {
            return false;
        }
        let Some(task) = self.slab.get(tag) else { return false };
        let mine =
            |number: u64, op: &Op| number < task.number && op.is_write() && writes_overlap(op, &task.op);
        self.in_doubt.iter().any(|write| mine(write.number, &write.op))
            || self.slab.iter().any(|(_, other)| mine(other.number, &other.op))
    }

    /// Lets writes go whose way is free.
    pub(super) fn release_held_writes(&mut self) {
        if !std::mem::take(&mut self.release) {
            return;
        }
        for _ in 0..self.held.len() {
            let Some(tag) = self.held.pop_front() else { break };
            let is_blocked = self.is_blocked_by_overlap(tag);
            let Some(task) = self.slab.get_mut(tag) else { continue };
            debug_assert_eq!(task.state, TaskState::Held);
            if is_blocked {
                self.held.push_back(tag);
            } else {
                task.state = TaskState::Queued;
                self.queue.push_back(tag);
            }
        }
    }

    /// From the first time that something went wrong, an operation has `queue_timeout`.
    pub(super) fn start_queue_timeout(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.slab.get_mut(tag) else { return };
        if task.deadline == NEVER {
            task.deadline = now + self.queue_timeout;
        }
        self.expiry = self.expiry.min(task.deadline);
    }

    /// Ends an operation that no path has.
    pub(super) fn fail_unassigned(&mut self, tag: Tag, failure: Failure) {
        let Some(task) = self.slab.get_mut(tag) else { return };
        let payload = std::mem::take(&mut task.payload);
        let waited = matches!(task.state, TaskState::Queued | TaskState::Later);
        if let TaskState::Doubt(path, generation) = task.state {
            // It may still land: what overlaps it goes on waiting.
            let Some(task) = self.slab.remove(tag) else { return };
            self.in_doubt.push(InDoubtWrite { path, generation, number: task.number, op: task.op });
            return self.done.push_back(IoCompletion { id: task.id, result: Err(failure), payload });
        }
        self.finish_task(tag, Err(failure), payload);
        if waited {
            self.purge_stale_tags();
        }
    }

    /// Forgets the names of operations that have ended where they waited, once they are the most of all.
    fn purge_stale_tags(&mut self) {
        let most = 64 + 2 * self.slab.len();
        if self.queue.len() > most {
            let tasks = &self.slab;
            self.queue.retain(|tag| tasks.get(*tag).is_some());
        }
        if self.later.len() > most {
            let tasks = &self.slab;
            self.later.retain(|Reverse((_, bits))| tasks.get(Tag::from_bits(*bits)).is_some());
        }
    }

    /// Ends an operation.
    #[inline]
    pub(super) fn finish_task(&mut self, tag: Tag, result: Result<Outcome, Failure>, payload: Payload) {
        let Some(task) = self.slab.remove(tag) else { return };
        if task.op.is_write() {
            self.order.remove_write(&task.op);
            self.release |= !self.held.is_empty();
        }
        self.done.push_back(IoCompletion { id: task.id, result, payload });
    }

    /// Whether an operation ends where nobody waits for a path any more. What a path has ends with that path;
    /// what waits for its fence only, where it must be certain, waits on.
    pub(super) fn fails_without_paths(&self, state: TaskState) -> bool {
        match state {
            TaskState::Doubt(..) => !self.certain,
            TaskState::Queued | TaskState::Held | TaskState::Later => true,
            TaskState::Path(_) | TaskState::Flush { .. } => false,
        }
    }

    /// Ends what no path has.
    pub(super) fn fail_all_waiting(&mut self, failure: Failure) {
        let waits = |state: TaskState| {
            self.fails_without_paths(state) || failure == ABORTED && matches!(state, TaskState::Doubt(..))
        };
        let tags: Vec<Tag> =
            self.slab.iter().filter(|(_, task)| waits(task.state)).map(|(tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.fail_unassigned(tag, failure));
    }
}
