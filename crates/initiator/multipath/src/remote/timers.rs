//! What the volume itself waits for, beside its paths.

use buf::Cx;
use std::cmp::Reverse;
use stream::{Tag, earliest};
use volume::Time;

use super::path_slot::PathSlot;
use super::{At, NEVER, PATH_LOST, RemoteVolume, Stage};
use crate::path::Path;

impl<P: Path> RemoteVolume<P> {
    /// Does what is due.
    pub(super) fn run_timers(&mut self, cx: &mut Cx<'_>) {
        if self.wake.is_none_or(|wake| cx.now < wake) {
            return;
        }
        self.uneasy = true;
        while let Some(Reverse((at, bits))) = self.later.peek().copied()
            && at <= cx.now
        {
            self.later.pop();
            let tag = Tag::from_bits(bits);
            if let Some(task) = self.tasks.get_mut(tag)
                && task.at == At::Later
            {
                task.at = At::Queued;
                self.queue.push_back(tag);
            }
        }
        if cx.now >= self.ask_again {
            self.ask_again();
        }
        if cx.now >= self.expiry {
            self.expire(cx);
        }
        self.look_at_ways(cx);
        if self.dark_since.is_some() && self.is_hopeless(cx.now) {
            self.fail_waiting(PATH_LOST);
            self.fail_claims(cx.now);
        }
        self.set_wake();
    }

    /// Ends what has waited long enough.
    fn expire(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        self.expiry = NEVER;
        let dark = self.best.is_empty() || self.is_stalled();
        let (fencing, certain) = (self.is_fencing(), self.terms.certain);
        let mut over = Vec::new();
        for (tag, task) in self.tasks.iter_mut() {
            if certain && matches!(task.at, At::Doubt(..)) {
                // Its fence ends it; if its time is over then, at once.
                continue;
            }
            if task.deadline > now {
                let waits = !matches!(task.at, At::Path(_) | At::Flush { todo: 0, .. });
                self.expiry = if waits { self.expiry.min(task.deadline) } else { self.expiry };
                continue;
            }
            match task.at {
                At::Queued if dark => over.push((task.number, tag)),
                At::Held if dark || fencing => over.push((task.number, tag)),
                At::Later | At::Doubt(..) => over.push((task.number, tag)),
                // It waits for room only, or for others; or it is with a path, whose time-outs hold.
                At::Queued | At::Held => task.deadline = NEVER,
                At::Flush { todo, .. } if todo != 0 && (fencing || task.declined) => {
                    over.push((task.number, tag))
                }
                At::Path(_) | At::Flush { .. } => {}
            }
        }
        over.sort_unstable_by_key(|(number, _)| *number);
        for (_, tag) in over {
            match self.tasks.get(tag).map(|task| task.at) {
                Some(At::Flush { .. }) => self.expire_flush(cx, tag),
                _ => self.give_up(tag, PATH_LOST),
            }
        }
        self.expire_claims(now);
        self.expire_joins(cx);
    }

    /// Finds when the volume has something to do next.
    pub(super) fn set_wake(&mut self) {
        let joins = self.ways.iter().any(|way| way.joining.is_some());
        let waits = !self.tasks.is_empty() || !self.claims.is_empty() || joins;
        if !waits {
            self.expiry = NEVER;
        }
        let mut wake = self.later.peek().map(|Reverse((at, _))| *at);
        let mut also = |time: Time| {
            if time != NEVER {
                wake = earliest(wake, Some(time));
            }
        };
        also(self.expiry);
        also(self.ask_again);
        if let Some(next) = self.next_attempt() {
            also(next);
        }
        // Once that time is over nothing is left that it ends, so it is never a time that has passed.
        if let Some(since) = self.dark_since
            && waits
            && (!self.claims.is_empty() || self.tasks.iter().any(|(_, task)| self.ends_lost(task.at)))
        {
            also(since + self.terms.fast_fail);
        }
        if self.stage == Stage::Opening && self.ways.iter().all(|way| way.tried || way.untold.is_some()) {
            let untold = self.ways.iter().filter_map(PathSlot::untold_until).max();
            let until = self.opened_at + self.terms.open_timeout;
            also(untold.map_or(until, |untold| untold.max(until)));
        }
        self.wake = wake;
    }
}
