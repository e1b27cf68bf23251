//! Operations: which path they take, how they end, and what is done again.

use std::cmp::Reverse;

use buf::{Cx, Payload};
use smallvec::SmallVec;
use std::time::Duration;
use stream::Tag;
use volume::{Access, Done, Durability, Failure, Fault, Io, IoId, Op, Outcome, Refusal, Span, Time};

use super::order::{overlap, spans};
use super::path_slot::State;
use super::{ABORTED, InDoubtWrite, NEVER, PATH_LOST, RemoteVolume, Stage, Task, TaskState};
use crate::path::{IoError, Path, VolumeInfo};
use crate::url::Policy;

/// What comes back undone again and again, without a time to wait, waits for so long.
const AGAIN: Duration = Duration::from_millis(10);
/// How often it comes back before it does.
const TRIES_MAX: u32 = 2;
/// How soon an operation is tried again that a path took for one beyond the end, though others have told of
/// more blocks, and how often: 5 s for the ports of a target to agree.
const GROWING: Duration = Duration::from_millis(100);
const GROWING_MAX: u32 = 50;

impl<P: Path> RemoteVolume<P> {
    /// Takes an operation on.
    pub(super) fn take(&mut self, cx: &mut Cx<'_>, io: Io) {
        let Io { id, op, payload, .. } = io;
        let is_write = op.is_write();
        if let Some(failure) = self.refuses(cx.now, is_write) {
            return self.done.push_back(Done { id, result: Err(failure), payload });
        }
        let number = self.numbers;
        self.numbers += 1;
        let meets = is_write && self.order.enter(&op);
        let task = Task {
            id,
            op,
            at: TaskState::Queued,
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
        let plain = !meets && self.queue.is_empty() && !matches!(task.op, Op::Flush);
        let slot = if plain { self.choose() } else { None };
        let tag = match self.tasks.insert(task) {
            Ok(tag) => tag,
            Err(task) => return self.no_room(task, payload),
        };
        match slot {
            Some(slot) => self.give(cx, tag, slot, payload),
            None => self.set_aside(cx, tag, payload, meets),
        }
    }

    /// [`Self::refuses`] has looked for room, so this is for the compiler.
    #[cold]
    fn no_room(&mut self, task: Task, payload: Payload) {
        if task.op.is_write() {
            self.order.leave(&task.op);
        }
        self.done.push_back(Done { id: task.id, result: Err(Refusal::Busy.into()), payload });
    }

    #[inline]
    fn refuses(&self, now: Time, is_write: bool) -> Option<Failure> {
        match self.stage {
            Stage::Opening | Stage::Open if self.unserved_since.is_some() && self.is_hopeless(now) => {
                return Some(PATH_LOST);
            }
            Stage::Opening | Stage::Open => {}
            Stage::Failed => return Some(PATH_LOST),
            Stage::Closing | Stage::Closed => return Some(ABORTED),
        }
        if is_write && self.is_read_only() {
            return Some(Refusal::ReadOnly.into());
        }
        self.tasks.is_full().then_some(Refusal::Busy.into())
    }

    /// Whether nobody waits for a path any more: none has served for `fast_fail`, or none is tried.
    pub(super) fn is_hopeless(&self, now: Time) -> bool {
        self.unserved_since.is_some_and(|since| now >= since + self.terms.fast_fail)
            || self
                .slots
                .iter()
                .all(|slot| matches!(slot.state, State::GivenUp | State::Closing | State::Closed))
    }

    /// Whether a write may still land that is not with a path any more.
    pub(super) fn is_fencing(&self) -> bool {
        !self.in_doubt.is_empty() || self.slots.iter().any(|slot| slot.fencing || slot.wants_fence)
    }

    /// What does not go to a path at once.
    fn set_aside(&mut self, cx: &mut Cx<'_>, tag: Tag, payload: Payload, meets: bool) {
        let is_held = meets && self.is_blocked(tag);
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.payload = payload;
        if is_held {
            task.at = TaskState::Held;
            self.held.push_back(tag);
        } else {
            self.queue.push_back(tag);
        }
        self.has_work = true;
        if self.best.is_empty() || self.is_fencing() {
            self.set_deadline(cx.now, tag);
        }
    }

    /// A path among the best that has room.
    #[inline]
    pub(super) fn choose(&mut self) -> Option<u8> {
        if let [only] = self.best[..] {
            return self.slots[usize::from(only)].has_room().then_some(only);
        }
        let count = self.best.len();
        let mut chosen: Option<(usize, u32)> = None;
        for step in 0..count {
            let at = (self.turn + step) % count;
            let Some(slot) = self.best.get(at).map(|&best| &self.slots[usize::from(best)]) else { break };
            if !slot.has_room() {
                continue;
            }
            match self.terms.policy {
                Policy::RoundRobin => {
                    chosen = Some((at, 0));
                    break;
                }
                Policy::LeastQueue if chosen.is_none_or(|(_, least)| slot.in_work < least) => {
                    chosen = Some((at, slot.in_work));
                }
                Policy::LeastQueue => {}
            }
        }
        let (at, _) = chosen?;
        self.turn = at + 1;
        self.best.get(at).copied()
    }

    /// Gives an operation to a path that has room.
    #[inline]
    fn give(&mut self, cx: &mut Cx<'_>, tag: Tag, to: u8, payload: Payload) {
        let slot = &mut self.slots[usize::from(to)];
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let (op, payload) = if payload.len() as u64 > slot.most || task.split.is_some() {
            task.cut(slot.most, payload)
        } else {
            (task.op.clone(), payload)
        };
        match slot.path.submit(cx, IoId(tag.to_bits()), op, payload) {
            Ok(()) => {
                task.at = TaskState::Path(to);
                slot.in_work += 1;
            }
            Err((_, payload)) => {
                let payload = task.mend(payload);
                // Its window is smaller than it said: until something of it ends, it is full.
                slot.depth = slot.in_work;
                task.at = TaskState::Queued;
                task.payload = payload;
                self.queue.push_front(tag);
                self.has_work = true;
                if slot.in_work == 0 {
                    self.stalled(cx.now);
                }
            }
        }
        self.touch(usize::from(to));
    }

    /// A path that has nothing in work took nothing. No end of an operation will say that it has room again,
    /// so the clock does.
    fn stalled(&mut self, now: Time) {
        self.ask_again_soon(now);
        let tags: SmallVec<[Tag; 8]> = self.queue.iter().copied().collect();
        tags.into_iter().for_each(|tag| self.set_deadline(now, tag));
    }

    /// Something was asked of a path that did not take it, and nothing else may bring us here again.
    pub(super) fn ask_again_soon(&mut self, now: Time) {
        self.ask_again = self.ask_again.min(now + AGAIN);
        self.has_work = true;
    }

    /// It is time to ask again: who has nothing in work takes as much as it said, for all that is known.
    pub(super) fn ask_again(&mut self) {
        self.ask_again = NEVER;
        for slot in self.slots.iter_mut().filter(|slot| slot.in_work == 0 && slot.state == State::Up) {
            slot.depth = slot.window;
        }
    }

    /// Whether no path carries anything, though some could.
    pub(super) fn is_stalled(&self) -> bool {
        self.best
            .iter()
            .map(|at| &self.slots[usize::from(*at)])
            .all(|slot| slot.in_work == 0 && !slot.has_room())
    }

    pub(super) fn postpone(&mut self, until: Time, tag: Tag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.at = TaskState::Later;
        self.later.push(std::cmp::Reverse((until, tag.to_bits())));
        self.has_work = true;
    }

    /// Whether an earlier write, in work or in doubt, overlaps this one.
    pub(super) fn is_blocked(&self, tag: Tag) -> bool {
        #[cfg(test)]
        if self.has(super::Bug::NoOrder) {
            return false;
        }
        let Some(task) = self.tasks.get(tag) else { return false };
        let mine = |number: u64, op: &Op| number < task.number && op.is_write() && overlap(op, &task.op);
        self.in_doubt.iter().any(|write| mine(write.number, &write.op))
            || self.tasks.iter().any(|(_, other)| mine(other.number, &other.op))
    }

    /// Lets writes go whose way is free.
    pub(super) fn release_held(&mut self) {
        if !std::mem::take(&mut self.release) {
            return;
        }
        for _ in 0..self.held.len() {
            let Some(tag) = self.held.pop_front() else { break };
            let is_blocked = self.is_blocked(tag);
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            debug_assert_eq!(task.at, TaskState::Held);
            if is_blocked {
                self.held.push_back(tag);
            } else {
                task.at = TaskState::Queued;
                self.queue.push_back(tag);
            }
        }
    }

    /// Gives what waits to paths that have room.
    pub(super) fn drain_queue(&mut self, cx: &mut Cx<'_>) {
        while let Some(&tag) = self.queue.front() {
            let Some(task) = self.tasks.get_mut(tag) else {
                self.queue.pop_front();
                continue;
            };
            if matches!(task.op, Op::Flush) {
                if self.best.is_empty() {
                    return;
                }
                self.queue.pop_front();
                self.start_flush(cx, tag);
                continue;
            }
            let Some(slot) = self.choose() else { return };
            self.queue.pop_front();
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let payload = std::mem::take(&mut task.payload);
            self.give(cx, tag, slot, payload);
        }
    }

    /// A flush goes to every path that has carried writes since its last, and to one at least.
    fn start_flush(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let mut todo = 0;
        for (at, slot) in self.slots.iter().enumerate() {
            todo |= u32::from(slot.is_dirty() && slot.serves()) << at;
        }
        #[cfg(test)]
        if self.has(super::Bug::FlushOne) {
            todo &= todo.wrapping_neg();
        }
        if todo == 0 {
            let Some(slot) = self.choose().or(self.best.first().copied()) else {
                return self.queue.push_front(tag);
            };
            todo = 1 << slot;
        }
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.at = TaskState::Flush { todo, out: 0 };
        task.since = self.cached;
        (task.again, task.declined, task.failure) = (false, false, None);
        self.flushes.push(tag);
        if self.is_fencing() {
            self.set_deadline(cx.now, tag);
        }
        self.send_flushes(cx);
    }

    /// Sends what flushes have left to send.
    pub(super) fn send_flushes(&mut self, cx: &mut Cx<'_>) {
        let mut at = 0;
        while let Some(&tag) = self.flushes.get(at) {
            if self.send_legs(cx, tag) {
                self.flushes.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// True if nothing is left to send.
    fn send_legs(&mut self, cx: &mut Cx<'_>, tag: Tag) -> bool {
        let Some(task) = self.tasks.get_mut(tag) else { return true };
        let TaskState::Flush { mut todo, mut out } = task.at else { return true };
        let (mut refused, mut declined) = (false, false);
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if todo >> at & 1 == 0 || !slot.has_room() || slot.access().is_none() {
                continue;
            }
            if slot.path.submit(cx, IoId(tag.to_bits()), Op::Flush, Payload::None).is_ok() {
                slot.in_work += 1;
                (todo, out) = (todo & !(1 << at), out | 1 << at);
                self.touched |= 1 << at;
                self.ready |= 1 << at;
            } else {
                slot.depth = slot.in_work;
                (refused, declined) = (refused | (slot.in_work == 0), true);
            }
        }
        task.at = TaskState::Flush { todo, out };
        task.declined |= declined;
        if declined {
            self.set_deadline(cx.now, tag);
        }
        if refused {
            self.ask_again_soon(cx.now);
        }
        todo == 0
    }

    /// A path has ended an operation.
    #[inline]
    pub(super) fn ended(
        &mut self,
        cx: &mut Cx<'_>,
        from: usize,
        id: IoId,
        how: Result<Outcome, IoError>,
        payload: Payload,
    ) {
        let tag = Tag::from_bits(id.0);
        let slot = &mut self.slots[from];
        let Some(task) = self.tasks.get_mut(tag) else { return };
        match task.at {
            TaskState::Path(at) if usize::from(at) == from => {}
            TaskState::Flush { out, .. } if out >> from & 1 == 1 => {
                return self.ended_leg(cx, from, tag, how);
            }
            // A path that ends what it has not: its number is not ours any more.
            _ => return,
        }
        slot.in_work -= 1;
        slot.depth = slot.window;
        let payload = if task.split.is_some() { task.mend(payload) } else { payload };
        match how {
            Ok(outcome) => {
                slot.counts.done += 1;
                if task.op.is_write() && !matches!(task.op, Op::Write(_, Durability::Stable)) {
                    self.cached += 1;
                    slot.written = self.cached;
                }
                if task.split.is_some() && task.goes_on() {
                    (task.payload, task.at) = (payload, TaskState::Queued);
                    if task.cancelled {
                        return self.give_up(tag, ABORTED);
                    }
                    self.queue.push_front(tag);
                    self.has_work = true;
                    return;
                }
                self.finish(tag, Ok(outcome), payload);
            }
            Err(IoError::Failed(Failure::Refused(Refusal::OutOfRange)))
                if may_be(task, self.volume_info.as_deref()) =>
            {
                // Others have told of a growth that this path's port has not heard of yet.
                slot.counts.retried += 1;
                self.retry(cx, tag, payload, GROWING);
            }
            Err(IoError::Failed(failure)) => {
                slot.counts.failed += 1;
                let failure = if task.split.is_some() { task.placed(failure) } else { failure };
                self.finish(tag, Err(failure), payload);
            }
            Err(IoError::NotDone(after)) => {
                slot.counts.retried += 1;
                self.retry(cx, tag, payload, after);
            }
            Err(IoError::InDoubt) if task.op.is_write() => {
                slot.counts.lost += 1;
                slot.wants_fence = true;
                task.at = TaskState::Doubt(from as u8, slot.generation);
                task.payload = payload;
                self.has_work = true;
                #[cfg(test)]
                if self.has(super::Bug::NoFence) {
                    let task = self.tasks.get_mut(tag).expect("found above");
                    let payload = std::mem::take(&mut task.payload);
                    return self.retry(cx, tag, payload, Duration::ZERO);
                }
                self.set_deadline(cx.now, tag);
                let held: SmallVec<[Tag; 8]> = self.held.iter().copied().collect();
                held.into_iter().for_each(|tag| self.set_deadline(cx.now, tag));
                self.choose_best(cx.now);
            }
            Err(IoError::InDoubt) => {
                slot.counts.lost += 1;
                self.retry(cx, tag, payload, Duration::ZERO);
            }
        }
    }

    fn ended_leg(&mut self, cx: &mut Cx<'_>, from: usize, tag: Tag, how: Result<Outcome, IoError>) {
        let slot = &mut self.slots[from];
        slot.in_work -= 1;
        slot.depth = slot.window;
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let TaskState::Flush { todo, mut out } = task.at else { return };
        out &= !(1 << from);
        task.at = TaskState::Flush { todo, out };
        let mut after = Duration::ZERO;
        match how {
            Ok(_) => {
                slot.counts.done += 1;
                slot.flushed = slot.flushed.max(task.since);
            }
            Err(IoError::Failed(failure)) => {
                slot.counts.failed += 1;
                task.failure = Some(graver(task.failure, failure));
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
        self.end_flush(cx, tag, after);
    }

    /// Ends a flush that has no leg left, or begins it again.
    fn end_flush(&mut self, cx: &mut Cx<'_>, tag: Tag, after: Duration) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if !matches!(task.at, TaskState::Flush { todo: 0, out: 0 }) {
            return;
        }
        match (task.failure.take(), task.again) {
            (Some(failure), _) => self.finish(tag, Err(failure), Payload::None),
            (None, true) => self.retry(cx, tag, Payload::None, after),
            (None, false) => self.finish(tag, Ok(Outcome::Complete), Payload::None),
        }
    }

    /// A flush has waited long enough for a path that is being fenced.
    pub(super) fn expire_flush(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let TaskState::Flush { out, .. } = task.at else { return };
        task.at = TaskState::Flush { todo: 0, out };
        task.failure = Some(graver(task.failure, PATH_LOST));
        self.end_flush(cx, tag, Duration::ZERO);
    }

    /// A path does not serve any more: flushes do not wait to be sent by it. Who takes its place at the
    /// target has its cache.
    pub(super) fn drop_legs(&mut self, cx: &mut Cx<'_>, slot: usize) {
        let tags: SmallVec<[Tag; 4]> = self.flushes.iter().copied().collect();
        for tag in tags {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let TaskState::Flush { todo, out } = task.at else { continue };
            if todo >> slot & 1 == 1 {
                task.at = TaskState::Flush { todo: todo & !(1 << slot), out };
                task.again = true;
                self.end_flush(cx, tag, Duration::ZERO);
            }
        }
    }

    /// What was not done is to be done again.
    pub(super) fn retry(&mut self, cx: &mut Cx<'_>, tag: Tag, payload: Payload, after: Duration) {
        #[cfg(test)]
        if self.has(super::Bug::Double) {
            let id = self.tasks.get(tag).expect("found by the caller").id;
            self.done.push_back(Done { id, result: Ok(Outcome::Complete), payload: Payload::None });
        }
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.payload = payload;
        task.tries += 1;
        task.at = TaskState::Queued;
        let after = if task.tries > TRIES_MAX { after.max(AGAIN) } else { after };
        if task.cancelled {
            return self.give_up(tag, ABORTED);
        }
        match self.stage {
            Stage::Opening | Stage::Open => {}
            Stage::Failed => return self.give_up(tag, PATH_LOST),
            Stage::Closing | Stage::Closed => return self.give_up(tag, ABORTED),
        }
        self.has_work = true;
        self.set_deadline(cx.now, tag);
        if after.is_zero() {
            self.queue.push_back(tag);
        } else {
            self.postpone(cx.now + after, tag);
        }
    }

    /// From the first time that something went wrong, an operation has `queue_timeout`.
    pub(super) fn set_deadline(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if task.deadline == NEVER {
            task.deadline = now + self.terms.queue_timeout;
        }
        self.expiry = self.expiry.min(task.deadline);
    }

    /// Ends an operation that no path has.
    pub(super) fn give_up(&mut self, tag: Tag, failure: Failure) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let payload = std::mem::take(&mut task.payload);
        let waited = matches!(task.at, TaskState::Queued | TaskState::Later);
        if let TaskState::Doubt(slot, generation) = task.at {
            // It may still land: what overlaps it goes on waiting.
            let Some(task) = self.tasks.remove(tag) else { return };
            self.in_doubt.push(InDoubtWrite { slot, generation, number: task.number, op: task.op });
            return self.done.push_back(Done { id: task.id, result: Err(failure), payload });
        }
        self.finish(tag, Err(failure), payload);
        if waited {
            self.sweep();
        }
    }

    /// Forgets the names of operations that have ended where they waited, once they are the most of all.
    fn sweep(&mut self) {
        let most = 64 + 2 * self.tasks.len();
        if self.queue.len() > most {
            let tasks = &self.tasks;
            self.queue.retain(|tag| tasks.get(*tag).is_some());
        }
        if self.later.len() > most {
            let tasks = &self.tasks;
            self.later.retain(|Reverse((_, bits))| tasks.get(Tag::from_bits(*bits)).is_some());
        }
    }

    /// Ends an operation.
    #[inline]
    pub(super) fn finish(&mut self, tag: Tag, result: Result<Outcome, Failure>, payload: Payload) {
        let Some(task) = self.tasks.remove(tag) else { return };
        if task.op.is_write() {
            self.order.leave(&task.op);
            self.release |= !self.held.is_empty();
        }
        self.done.push_back(Done { id: task.id, result, payload });
    }

    /// Whether an operation ends where nobody waits for a path any more. What a path has ends with that path;
    /// what waits for its fence only, where it must be certain, waits on.
    pub(super) fn ends_lost(&self, at: TaskState) -> bool {
        match at {
            TaskState::Doubt(..) => !self.terms.certain,
            TaskState::Queued | TaskState::Held | TaskState::Later => true,
            TaskState::Path(_) | TaskState::Flush { .. } => false,
        }
    }

    /// Ends what no path has.
    pub(super) fn fail_waiting(&mut self, failure: Failure) {
        let waits = |state: TaskState| {
            self.ends_lost(state) || failure == ABORTED && matches!(state, TaskState::Doubt(..))
        };
        let tags: Vec<Tag> =
            self.tasks.iter().filter(|(_, task)| waits(task.at)).map(|(tag, _)| tag).collect();
        tags.into_iter().for_each(|tag| self.give_up(tag, failure));
    }

    /// Finds the paths to use: all that are optimized, or if none is, all that serve.
    pub(super) fn choose_best(&mut self, now: Time) {
        let mut best = SmallVec::<[u8; 8]>::new();
        for wanted in [Access::Optimized, Access::NonOptimized] {
            let slots = self.slots.iter().enumerate().filter(|(_, slot)| slot.access() == Some(wanted));
            best.extend(slots.map(|(at, _)| at as u8));
            if !best.is_empty() {
                break;
            }
        }
        match (best.is_empty(), self.best.is_empty()) {
            (true, false) => {
                self.unserved_since = Some(now);
                self.has_work = true;
                for (at, slot) in
                    self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.state == State::Up)
                {
                    slot.path.look_now();
                    self.touched |= 1 << at;
                }
                // Who waits for room waits for a path now.
                let tags: Vec<Tag> = self
                    .tasks
                    .iter()
                    .map(|(tag, task)| (tag, task.at))
                    .filter(|(_, at)| matches!(at, TaskState::Queued | TaskState::Held | TaskState::Later))
                    .map(|(tag, _)| tag)
                    .collect();
                tags.into_iter().for_each(|tag| self.set_deadline(now, tag));
            }
            (false, _) => self.unserved_since = None,
            (true, true) => {}
        }
        self.best = best;
        self.turn = 0;
    }

    /// What was asked to end early.
    pub(super) fn run_cancels(&mut self, cx: &mut Cx<'_>) {
        for id in std::mem::take(&mut self.cancels) {
            let Some((tag, at)) =
                self.tasks.iter().find(|(_, task)| task.id == id).map(|(tag, task)| (tag, task.at))
            else {
                continue;
            };
            if let Some(task) = self.tasks.get_mut(tag) {
                task.cancelled = true;
            }
            match at {
                TaskState::Queued | TaskState::Held | TaskState::Later => self.give_up(tag, ABORTED),
                TaskState::Path(slot) => {
                    self.slots[usize::from(slot)].path.cancel(cx, IoId(tag.to_bits()));
                    self.touch(usize::from(slot));
                }
                // A flush is not worth it; of what is in doubt its fence tells.
                TaskState::Flush { .. } | TaskState::Doubt(..) => {}
            }
        }
    }
}

/// What a flush of several paths comes to: that data may be lost is told whatever else happened, since nobody
/// tells it again.
fn graver(before: Option<Failure>, now: Failure) -> Failure {
    match before {
        Some(Failure::Failed(Fault::Sync)) => Failure::Failed(Fault::Sync),
        Some(_) | None => now,
    }
}

/// Whether an operation that was refused as beyond the end lies within the volume's newest size, and has not been
/// tried often enough to believe it all the same.
fn may_be(task: &Task, volume_info: Option<&VolumeInfo>) -> bool {
    let Some(geometry) = volume_info.and_then(|volume_info| volume_info.geometry) else { return false };
    let within = |span: &Span| span.end().is_some_and(|end| end <= geometry.blocks);
    task.tries < GROWING_MAX && !spans(&task.op).is_empty() && spans(&task.op).iter().all(within)
}
