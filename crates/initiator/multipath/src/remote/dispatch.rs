//! Operations: which path they take, how they end, and which are retried.

use buf::{Cx, Payload};
use smallvec::SmallVec;
use std::time::Duration;
use stream::Tag;
use volume::{
    Durability, Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, PathAccess, Refusal, Span, Time,
};

use super::path_slot::SlotState;
use super::split::SplitProgress;
use super::tasks::{Task, TaskState};
use super::write_overlap::spans_of;
use super::{ABORTED, NEVER, PATH_LOST, RemoteVolume, VolumeStage};
use crate::path::{IoError, Path, VolumeInfo};

/// What comes back undone again and again, without a time to wait, waits for so long.
const RETRY_DELAY: Duration = Duration::from_millis(10);
/// How often it comes back before it does.
const IMMEDIATE_TRIES_MAX: u32 = 2;
/// How soon an operation is tried again that a path took for one beyond the end, though others have told of
/// more blocks, and how often: 5 s for the ports of a target to agree.
const RESIZE_RETRY_DELAY: Duration = Duration::from_millis(100);
const RESIZE_RETRIES_MAX: u32 = 50;

impl<P: Path> RemoteVolume<P> {
    /// Takes an operation on.
    pub(super) fn accept_io(&mut self, cx: &mut Cx<'_>, io: Io) {
        let Io { id, op, payload, .. } = io;
        let is_write = op.is_write();
        if let Some(failure) = self.immediate_failure(cx.now, is_write) {
            return self.tasks.done.push_back(IoCompletion { id, result: Err(failure), payload });
        }
        let number = self.numbers;
        self.numbers += 1;
        let meets = is_write && self.tasks.order.insert_write(&op);
        let task = Task {
            id,
            op,
            state: TaskState::Queued,
            payload: Payload::None,
            number,
            deadline: NEVER,
            tries: 0,
            cancelled: false,
            since: 0,
            again: false,
            declined: false,
            failure: None,
            split: None,
        };
        let plain = !meets && self.tasks.queue.is_empty() && !matches!(task.op, Op::Flush);
        let slot = if plain { self.slots.choose_path(self.settings.policy) } else { None };
        let tag = match self.tasks.slab.insert(task) {
            Ok(tag) => tag,
            Err(task) => return self.tasks.reject_busy(task, payload),
        };
        match slot {
            Some(slot) => self.submit_to_path(cx, tag, slot, payload),
            None => self.queue_task(cx, tag, payload, meets),
        }
    }

    #[inline]
    fn immediate_failure(&self, now: Time, is_write: bool) -> Option<Failure> {
        match self.stage {
            VolumeStage::Opening | VolumeStage::Open
                if self.unserved_since.is_some() && self.should_fail_fast(now) =>
            {
                return Some(PATH_LOST);
            }
            VolumeStage::Opening | VolumeStage::Open => {}
            VolumeStage::Failed => return Some(PATH_LOST),
            VolumeStage::Closing | VolumeStage::Closed => return Some(ABORTED),
        }
        if is_write && self.is_read_only() {
            return Some(Refusal::ReadOnly.into());
        }
        self.tasks.slab.is_full().then_some(Refusal::Busy.into())
    }

    /// Whether nobody waits for a path any more: none has served for `fast_fail`, or none is tried.
    pub(super) fn should_fail_fast(&self, now: Time) -> bool {
        self.unserved_since.is_some_and(|since| now >= since + self.settings.fast_fail)
            || self
                .slots
                .iter()
                .all(|slot| matches!(slot.state, SlotState::GivenUp | SlotState::Closing | SlotState::Closed))
    }

    /// Whether a write may still land that is not with a path any more.
    pub(super) fn may_lost_write_land(&self) -> bool {
        !self.tasks.in_doubt.is_empty() || self.slots.is_fencing()
    }

    /// What does not go to a path at once.
    fn queue_task(&mut self, cx: &mut Cx<'_>, tag: Tag, payload: Payload, meets: bool) {
        let is_held = meets && self.tasks.is_blocked_by_overlap(tag);
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        task.payload = payload;
        if is_held {
            task.state = TaskState::Held;
            self.tasks.held.push_back(tag);
        } else {
            self.tasks.queue.push_back(tag);
        }
        self.has_work = true;
        if self.slots.best.is_empty() || self.may_lost_write_land() {
            self.tasks.start_queue_timeout(cx.now, tag);
        }
    }

    /// Gives an operation to a path that has room.
    #[inline]
    fn submit_to_path(&mut self, cx: &mut Cx<'_>, tag: Tag, to: u8, payload: Payload) {
        let slot = &mut self.slots[usize::from(to)];
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        let (op, payload) = if payload.len() as u64 > slot.most || task.split.is_some() {
            SplitProgress::next_piece(&mut task.split, &task.op, slot.most, payload)
        } else {
            (task.op.clone(), payload)
        };
        match slot.path.submit(cx, IoId(tag.to_bits()), op, payload) {
            Ok(()) => {
                task.state = TaskState::Path(to);
                slot.in_work += 1;
            }
            Err((_, payload)) => {
                let payload = SplitProgress::restore_payload(&mut task.split, payload);
                // Its window is smaller than it said: until something of it ends, it is full.
                slot.depth = slot.in_work;
                task.state = TaskState::Queued;
                task.payload = payload;
                self.tasks.queue.push_front(tag);
                self.has_work = true;
                if slot.in_work == 0 {
                    self.handle_stalled_paths(cx.now);
                }
            }
        }
        self.mark_pending(usize::from(to));
    }

    /// A path that has nothing in work took nothing. No end of an operation will say that it has room again,
    /// so the clock does.
    fn handle_stalled_paths(&mut self, now: Time) {
        self.schedule_retry(now);
        let tags: SmallVec<[Tag; 8]> = self.tasks.queue.iter().copied().collect();
        tags.into_iter().for_each(|tag| self.tasks.start_queue_timeout(now, tag));
    }

    /// Something was asked of a path that did not take it, and nothing else may bring us here again.
    pub(super) fn schedule_retry(&mut self, now: Time) {
        self.ask_again = self.ask_again.min(now + RETRY_DELAY);
        self.has_work = true;
    }

    /// Gives what waits to paths that have room.
    pub(super) fn dispatch_queued(&mut self, cx: &mut Cx<'_>) {
        while let Some(&tag) = self.tasks.queue.front() {
            let Some(task) = self.tasks.slab.get_mut(tag) else {
                self.tasks.queue.pop_front();
                continue;
            };
            if matches!(task.op, Op::Flush) {
                if self.slots.best.is_empty() {
                    return;
                }
                self.tasks.queue.pop_front();
                self.plan_flush(cx, tag);
                continue;
            }
            let Some(slot) = self.slots.choose_path(self.settings.policy) else { return };
            self.tasks.queue.pop_front();
            let Some(task) = self.tasks.slab.get_mut(tag) else { continue };
            let payload = std::mem::take(&mut task.payload);
            self.submit_to_path(cx, tag, slot, payload);
        }
    }

    /// A flush goes to every path that has carried writes since its last, and to one at least.
    fn plan_flush(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let mut todo = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            todo |= u32::from(slot.has_unflushed_writes() && slot.serves()) << index;
        }
        #[cfg(test)]
        if self.tasks.has_planted_bug(super::tasks::PlantedBug::FlushOne) {
            todo &= todo.wrapping_neg();
        }
        if todo == 0 {
            let Some(slot) =
                self.slots.choose_path(self.settings.policy).or(self.slots.best.first().copied())
            else {
                return self.tasks.queue.push_front(tag);
            };
            todo = 1 << slot;
        }
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        task.state = TaskState::Flush { todo, out: 0 };
        task.since = self.cached;
        (task.again, task.declined, task.failure) = (false, false, None);
        self.tasks.flushes.push(tag);
        if self.may_lost_write_land() {
            self.tasks.start_queue_timeout(cx.now, tag);
        }
        self.send_pending_flushes(cx);
    }

    /// Sends what flushes have left to send.
    pub(super) fn send_pending_flushes(&mut self, cx: &mut Cx<'_>) {
        let mut index = 0;
        while let Some(&tag) = self.tasks.flushes.get(index) {
            if self.send_flush_to_paths(cx, tag) {
                self.tasks.flushes.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// True if nothing is left to send.
    fn send_flush_to_paths(&mut self, cx: &mut Cx<'_>, tag: Tag) -> bool {
        let Some(task) = self.tasks.slab.get_mut(tag) else { return true };
        let TaskState::Flush { mut todo, mut out } = task.state else { return true };
        let (mut refused, mut declined) = (false, false);
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if todo >> index & 1 == 0 || !slot.has_room() || slot.access().is_none() {
                continue;
            }
            if slot.path.submit(cx, IoId(tag.to_bits()), Op::Flush, Payload::None).is_ok() {
                slot.in_work += 1;
                (todo, out) = (todo & !(1 << index), out | 1 << index);
                self.slots.mark_pending(index);
            } else {
                slot.depth = slot.in_work;
                (refused, declined) = (refused | (slot.in_work == 0), true);
            }
        }
        task.state = TaskState::Flush { todo, out };
        task.declined |= declined;
        if declined {
            self.tasks.start_queue_timeout(cx.now, tag);
        }
        if refused {
            self.schedule_retry(cx.now);
        }
        todo == 0
    }

    /// A path has ended an operation.
    #[inline]
    pub(super) fn handle_operation_ended(
        &mut self,
        cx: &mut Cx<'_>,
        from: usize,
        id: IoId,
        how: Result<Outcome, IoError>,
        payload: Payload,
    ) {
        let tag = Tag::from_bits(id.0);
        let slot = &mut self.slots[from];
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        match task.state {
            TaskState::Path(index) if usize::from(index) == from => {}
            TaskState::Flush { out, .. } if out >> from & 1 == 1 => {
                return self.handle_path_flush_ended(cx, from, tag, how);
            }
            // A path that ends what it has not: its number is not ours any more.
            _ => return,
        }
        slot.in_work -= 1;
        slot.depth = slot.window;
        let payload = SplitProgress::restore_payload(&mut task.split, payload);
        match how {
            Ok(outcome) => {
                slot.counts.done += 1;
                if task.op.is_write() && !matches!(task.op, Op::Write(_, Durability::Stable)) {
                    self.cached += 1;
                    slot.written = self.cached;
                }
                if SplitProgress::finish_piece(&mut task.split, &task.op) {
                    (task.payload, task.state) = (payload, TaskState::Queued);
                    if task.cancelled {
                        return self.tasks.fail_unassigned(tag, ABORTED);
                    }
                    self.tasks.queue.push_front(tag);
                    self.has_work = true;
                    return;
                }
                self.tasks.finish_task(tag, Ok(outcome), payload);
            }
            Err(IoError::Failed(Failure::Refused(Refusal::OutOfRange)))
                if may_be_within_new_size(task, self.info.as_deref()) =>
            {
                // Others have told of a growth that this path's port has not heard of yet.
                slot.counts.retried += 1;
                self.requeue_task(cx, tag, payload, RESIZE_RETRY_DELAY);
            }
            Err(IoError::Failed(failure)) => {
                slot.counts.failed += 1;
                let failure = SplitProgress::failure_in_whole(task.split.as_deref(), failure);
                self.tasks.finish_task(tag, Err(failure), payload);
            }
            Err(IoError::NotDone(after)) => {
                slot.counts.retried += 1;
                self.requeue_task(cx, tag, payload, after);
            }
            Err(IoError::InDoubt) if task.op.is_write() => {
                slot.counts.lost += 1;
                slot.wants_fence = true;
                task.state = TaskState::Doubt(from as u8, slot.generation);
                task.payload = payload;
                self.has_work = true;
                #[cfg(test)]
                if self.tasks.has_planted_bug(super::tasks::PlantedBug::NoFence) {
                    let task = self.tasks.slab.get_mut(tag).expect("found above");
                    let payload = std::mem::take(&mut task.payload);
                    return self.requeue_task(cx, tag, payload, Duration::ZERO);
                }
                self.tasks.start_queue_timeout(cx.now, tag);
                let held: SmallVec<[Tag; 8]> = self.tasks.held.iter().copied().collect();
                held.into_iter().for_each(|tag| self.tasks.start_queue_timeout(cx.now, tag));
                self.choose_best_paths(cx.now);
            }
            Err(IoError::InDoubt) => {
                slot.counts.lost += 1;
                self.requeue_task(cx, tag, payload, Duration::ZERO);
            }
        }
    }

    fn handle_path_flush_ended(
        &mut self,
        cx: &mut Cx<'_>,
        from: usize,
        tag: Tag,
        how: Result<Outcome, IoError>,
    ) {
        let slot = &mut self.slots[from];
        slot.in_work -= 1;
        slot.depth = slot.window;
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        let TaskState::Flush { todo, mut out } = task.state else { return };
        out &= !(1 << from);
        task.state = TaskState::Flush { todo, out };
        let mut after = Duration::ZERO;
        match how {
            Ok(_) => {
                slot.counts.done += 1;
                slot.flushed = slot.flushed.max(task.since);
            }
            Err(IoError::Failed(failure)) => {
                slot.counts.failed += 1;
                task.failure = Some(graver_flush_failure(task.failure, failure));
            }
            Err(IoError::NotDone(time)) => {
                slot.counts.retried += 1;
                (task.again, after) = (true, time);
            }
            Err(IoError::InDoubt) => {
                slot.counts.lost += 1;
                task.again = true;
            }
        }
        self.finish_or_restart_flush(cx, tag, after);
    }

    /// Ends a flush that has no leg left, or begins it again.
    fn finish_or_restart_flush(&mut self, cx: &mut Cx<'_>, tag: Tag, after: Duration) {
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        if !matches!(task.state, TaskState::Flush { todo: 0, out: 0 }) {
            return;
        }
        match (task.failure.take(), task.again) {
            (Some(failure), _) => self.tasks.finish_task(tag, Err(failure), Payload::None),
            (None, true) => self.requeue_task(cx, tag, Payload::None, after),
            (None, false) => self.tasks.finish_task(tag, Ok(Outcome::Complete), Payload::None),
        }
    }

    /// A flush has waited long enough for a path that is being fenced.
    pub(super) fn expire_flush(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        let TaskState::Flush { out, .. } = task.state else { return };
        task.state = TaskState::Flush { todo: 0, out };
        task.failure = Some(graver_flush_failure(task.failure, PATH_LOST));
        self.finish_or_restart_flush(cx, tag, Duration::ZERO);
    }

    /// A path does not serve any more: flushes do not wait to be sent by it. Who takes its place at the
    /// target has its cache.
    pub(super) fn drop_path_flushes(&mut self, cx: &mut Cx<'_>, slot: usize) {
        let tags: SmallVec<[Tag; 4]> = self.tasks.flushes.iter().copied().collect();
        for tag in tags {
            let Some(task) = self.tasks.slab.get_mut(tag) else { continue };
            let TaskState::Flush { todo, out } = task.state else { continue };
            if todo >> slot & 1 == 1 {
                task.state = TaskState::Flush { todo: todo & !(1 << slot), out };
                task.again = true;
                self.finish_or_restart_flush(cx, tag, Duration::ZERO);
            }
        }
    }

    /// What was not done is to be done again.
    pub(super) fn requeue_task(&mut self, cx: &mut Cx<'_>, tag: Tag, payload: Payload, after: Duration) {
        #[cfg(test)]
        if self.tasks.has_planted_bug(super::tasks::PlantedBug::Double) {
            let id = self.tasks.slab.get(tag).expect("found by the caller").id;
            self.tasks.done.push_back(IoCompletion {
                id,
                result: Ok(Outcome::Complete),
                payload: Payload::None,
            });
        }
        let Some(task) = self.tasks.slab.get_mut(tag) else { return };
        task.payload = payload;
        task.tries += 1;
        task.state = TaskState::Queued;
        let after = if task.tries > IMMEDIATE_TRIES_MAX { after.max(RETRY_DELAY) } else { after };
        if task.cancelled {
            return self.tasks.fail_unassigned(tag, ABORTED);
        }
        match self.stage {
            VolumeStage::Opening | VolumeStage::Open => {}
            VolumeStage::Failed => return self.tasks.fail_unassigned(tag, PATH_LOST),
            VolumeStage::Closing | VolumeStage::Closed => return self.tasks.fail_unassigned(tag, ABORTED),
        }
        self.has_work = true;
        self.tasks.start_queue_timeout(cx.now, tag);
        if after.is_zero() {
            self.tasks.queue.push_back(tag);
        } else {
            self.tasks.postpone(cx.now + after, tag);
        }
    }

    /// Finds the paths to use: all that are optimized, or if none is, all that serve.
    pub(super) fn choose_best_paths(&mut self, now: Time) {
        let mut best = SmallVec::<[u8; 8]>::new();
        for wanted in [PathAccess::Optimized, PathAccess::NonOptimized] {
            let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.access() == Some(wanted));
            best.extend(slots.map(|(index, _)| index as u8));
            if !best.is_empty() {
                break;
            }
        }
        match (best.is_empty(), self.slots.best.is_empty()) {
            (true, false) => {
                self.unserved_since = Some(now);
                self.has_work = true;
                for index in 0..self.slots.len() {
                    if self.slots[index].state == SlotState::Up {
                        self.slots[index].path.recheck_access();
                        self.slots.touched |= 1 << index;
                    }
                }
                // Who waits for room waits for a path now.
                let tags: Vec<Tag> = self
                    .tasks
                    .slab
                    .iter()
                    .map(|(tag, task)| (tag, task.state))
                    .filter(|(_, state)| {
                        matches!(state, TaskState::Queued | TaskState::Held | TaskState::Later)
                    })
                    .map(|(tag, _)| tag)
                    .collect();
                tags.into_iter().for_each(|tag| self.tasks.start_queue_timeout(now, tag));
            }
            (false, _) => self.unserved_since = None,
            (true, true) => {}
        }
        self.slots.set_best(best);
    }

    /// What was asked to end early.
    pub(super) fn process_cancels(&mut self, cx: &mut Cx<'_>) {
        for id in std::mem::take(&mut self.tasks.cancels) {
            let Some((tag, state)) =
                self.tasks.slab.iter().find(|(_, task)| task.id == id).map(|(tag, task)| (tag, task.state))
            else {
                continue;
            };
            if let Some(task) = self.tasks.slab.get_mut(tag) {
                task.cancelled = true;
            }
            match state {
                TaskState::Queued | TaskState::Held | TaskState::Later => {
                    self.tasks.fail_unassigned(tag, ABORTED)
                }
                TaskState::Path(slot) => {
                    self.slots[usize::from(slot)].path.cancel(cx, IoId(tag.to_bits()));
                    self.mark_pending(usize::from(slot));
                }
                // A flush is not worth it; of what is in doubt its fence tells.
                TaskState::Flush { .. } | TaskState::Doubt(..) => {}
            }
        }
    }
}

/// What a flush of several paths comes to: that data may be lost is told whatever else happened, since nobody
/// tells it again.
fn graver_flush_failure(before: Option<Failure>, now: Failure) -> Failure {
    match before {
        Some(Failure::Failed(Fault::Sync)) => Failure::Failed(Fault::Sync),
        Some(_) | None => now,
    }
}

/// Whether an operation that was refused as beyond the end lies within the volume's newest size, and has not been
/// tried often enough to believe it all the same.
fn may_be_within_new_size(task: &Task, info: Option<&VolumeInfo>) -> bool {
    let Some(geometry) = info.and_then(|info| info.geometry) else { return false };
    let within = |span: &Span| span.end().is_some_and(|end| end <= geometry.blocks);
    task.tries < RESIZE_RETRIES_MAX && !spans_of(&task.op).is_empty() && spans_of(&task.op).iter().all(within)
}
