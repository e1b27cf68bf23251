//! Timers of the volume itself, besides those of its paths.

use buf::Cx;
use std::cmp::Reverse;
use stream::{Tag, earliest};
use volume::Time;

use super::path_slot::PathSlot;
use super::reservation::PendingReservationOp;
use super::{NEVER, PATH_LOST, RemoteVolume, TaskState, VolumeStage};
use crate::path::Path;
use crate::raw_command::RawError;

impl<P: Path> RemoteVolume<P> {
    /// Does what is due.
    pub(super) fn run_timers(&mut self, cx: &mut Cx<'_>) {
        if self.wake.is_none_or(|wake| cx.now < wake) {
            return;
        }
        self.has_work = true;
        while let Some(Reverse((time, bits))) = self.tasks.later.peek().copied()
            && time <= cx.now
        {
            self.tasks.later.pop();
            let tag = Tag::from_bits(bits);
            if let Some(task) = self.tasks.slab.get_mut(tag)
                && task.state == TaskState::Later
            {
                task.state = TaskState::Queued;
                self.tasks.queue.push_back(tag);
            }
        }
        if cx.now >= self.ask_again {
            self.ask_again = NEVER;
            self.slots.reset_idle_depths();
        }
        if cx.now >= self.tasks.expiry {
            self.expire_waiting(cx);
        }
        self.check_reconnects(cx);
        if self.unserved_since.is_some() && self.should_fail_fast(cx.now) {
            self.tasks.fail_all_waiting(PATH_LOST);
            self.fail_waiting_reservation_ops(cx.now);
            self.raw.fail_waiting(RawError::NotSent);
        }
        self.schedule_wake();
    }

    /// Ends what has waited long enough.
    fn expire_waiting(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        self.tasks.expiry = NEVER;
        let dark = self.slots.best.is_empty() || self.slots.is_stalled();
        let (fencing, certain) = (self.may_lost_write_land(), self.settings.certain);
        let mut over = Vec::new();
        for (tag, task) in self.tasks.slab.iter_mut() {
            if certain && matches!(task.state, TaskState::Doubt(..)) {
                // Its fence ends it; if its time is over then, at once.
                continue;
            }
            if task.deadline > now {
                let waits = !matches!(task.state, TaskState::Path(_) | TaskState::Flush { todo: 0, .. });
                self.tasks.expiry =
                    if waits { self.tasks.expiry.min(task.deadline) } else { self.tasks.expiry };
                continue;
            }
            match task.state {
                TaskState::Queued if dark => over.push((task.number, tag)),
                TaskState::Held if dark || fencing => over.push((task.number, tag)),
                TaskState::Later | TaskState::Doubt(..) => over.push((task.number, tag)),
                // It waits for room only, or for others; or it is with a path, whose time-outs hold.
                TaskState::Queued | TaskState::Held => task.deadline = NEVER,
                TaskState::Flush { todo, .. } if todo != 0 && (fencing || task.declined) => {
                    over.push((task.number, tag))
                }
                TaskState::Path(_) | TaskState::Flush { .. } => {}
            }
        }
        over.sort_unstable_by_key(|(number, _)| *number);
        for (_, tag) in over {
            match self.tasks.slab.get(tag).map(|task| task.state) {
                Some(TaskState::Flush { .. }) => self.expire_flush(cx, tag),
                _ => self.tasks.fail_unassigned(tag, PATH_LOST),
            }
        }
        self.expire_reservation_ops(now);
        self.expire_raw_commands(now);
        self.settle_overdue_registering(cx);
    }

    /// Finds when the volume has something to do next.
    pub(super) fn schedule_wake(&mut self) {
        let registers = self.slots.iter().any(|slot| slot.registering.is_some());
        let waits =
            !self.tasks.slab.is_empty() || !self.requests.is_empty() || registers || self.raw.is_waiting();
        if !waits {
            self.tasks.expiry = NEVER;
        }
        let mut wake = self.tasks.later.peek().map(|Reverse((time, _))| *time);
        let mut also = |time: Time| {
            if time != NEVER {
                wake = earliest(wake, Some(time));
            }
        };
        also(self.tasks.expiry);
        also(self.ask_again);
        if let Some(next) = self.slots.next_deadline(self.settings.loss_timeout) {
            also(next);
        }
        // Once that time is over nothing is left that it ends, so it is never a time that has passed.
        if let Some(since) = self.unserved_since
            && waits
            && (self.requests.iter().any(PendingReservationOp::is_waiting_for_path)
                || self.raw.is_waiting()
                || self.tasks.slab.iter().any(|(_, task)| self.tasks.fails_without_paths(task.state)))
        {
            also(since + self.settings.fast_fail);
        }
        if self.stage == VolumeStage::Opening
            && self.slots.iter().all(|slot| slot.tried || slot.untold.is_some())
        {
            let untold = self.slots.iter().filter_map(PathSlot::access_report_deadline).max();
            let until = self.opened_at + self.settings.open_timeout;
            also(untold.map_or(until, |untold| untold.max(until)));
        }
        self.wake = wake;
    }
}
