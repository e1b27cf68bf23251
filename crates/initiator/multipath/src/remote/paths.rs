//! Paths: how they come up, what they are found to be, how they are lost, fenced and tried again.

use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use stream::Tag;
use volume::{Access, Geometry, Op, Time};

use super::path_slot::State;
use super::terms::{PathProblem, VolumeMismatch, is_same_serial};
use super::{Identity, PATH_LOST, RemoteVolume, Stage, TaskState};
use crate::path::{DownReason, Event, Path, VolumeInfo};

impl<P: Path> RemoteVolume<P> {
    /// Looks at the paths that were touched, and does what follows. True if there may be more.
    pub(super) fn poll_paths(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut more = false;
        let mut touched = std::mem::take(&mut self.touched);
        while touched != 0 {
            let at = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            if self.slots[at].path.turn(cx) {
                more = true;
                self.touched |= 1 << at;
            }
            self.ready |= 1 << at;
            while let Some(event) = self.slots[at].path.poll_event() {
                self.handle_event(cx, at, event);
            }
        }
        if self.has_work {
            self.run_pending(cx);
            more |= self.touched != 0;
        }
        more
    }

    #[inline]
    fn handle_event(&mut self, cx: &mut Cx<'_>, at: usize, event: Event) {
        match event {
            Event::Done { id, how, payload } => self.ended(cx, at, id, how, payload),
            Event::Up(volume_info) => self.path_up(cx, at, volume_info),
            Event::Changed(volume_info) => self.path_changed(cx, at, volume_info),
            Event::ReservationsChanged => self.events.changed = true,
            Event::Fenced => self.path_fenced(cx, at),
            Event::ReservationReply { id, how } => self.request_ended(cx, at, id, how),
            Event::Down(why) => self.path_down(cx, at, why),
        }
    }

    /// What is not plain: queues, fences, cancels.
    fn run_pending(&mut self, cx: &mut Cx<'_>) {
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            if slot.wants_fence && !slot.fencing {
                (slot.wants_fence, slot.fencing) = (false, true);
                slot.generation = slot.generation.wrapping_add(1);
                slot.counts.fences += 1;
                slot.state_changed = true;
                slot.path.fence(cx);
                self.touch(at);
            }
        }
        self.run_cancels(cx);
        self.release_held();
        self.drain_queue(cx);
        self.send_flushes(cx);
        self.send_registrations(cx);
        self.send_requests(cx);
        if self.unserved_since.is_some() && self.is_hopeless(cx.now) {
            self.fail_waiting(PATH_LOST);
            self.fail_requests(cx.now);
        }
        let calm = self.queue.is_empty()
            && self.held.is_empty()
            && self.later.is_empty()
            && self.flushes.is_empty()
            && self.requests.is_empty()
            && self.stage == Stage::Open
            && self.slots.iter().all(|slot| slot.state == State::Up && slot.is_calm());
        self.has_work = !(calm && self.in_doubt.is_empty() && self.unserved_since.is_none());
        self.set_wake();
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>, at: usize) {
        let slot = &mut self.slots[at];
        slot.state = State::Connecting;
        slot.state_changed = true;
        slot.path.connect(cx);
        self.has_work = true;
        self.touch(at);
    }

    fn path_up(&mut self, cx: &mut Cx<'_>, at: usize, volume_info: Arc<VolumeInfo>) {
        self.has_work = true;
        let slot = &mut self.slots[at];
        slot.state_changed = true;
        if slot.state != State::Connecting {
            // It was told to disconnect, and did not know it yet.
            return;
        }
        slot.state = State::Up;
        slot.counts.connects += 1;
        if self.stage == Stage::Failed {
            return self.expel(cx, at, PathProblem::Down(DownReason::Ended));
        }
        if let Err(mismatch) = self.accept(at, &volume_info) {
            self.slots[at].volume_info = Some(volume_info);
            return self.expel(cx, at, PathProblem::VolumeMismatch(mismatch));
        }
        let slot = &mut self.slots[at];
        slot.known = true;
        slot.path_up(cx.now);
        self.events.landing |= slot.lands_longer();
        let slot = &mut self.slots[at];
        self.remarks = true;
        (slot.window, slot.depth) = (volume_info.depth.max(1), volume_info.depth.max(1));
        slot.volume_info = None;
        self.adopt(cx.now, at, volume_info);
        self.begin_registering(cx.now, at);
        self.choose_best(cx.now);
        self.look_whether_open(cx);
    }

    /// A volume is open when a path has told what it is like. One that is reached by paths that do not serve is
    /// there, and nothing is known of it.
    fn look_whether_open(&mut self, cx: &mut Cx<'_>) {
        if self.stage == Stage::Opening && self.volume_info.is_some() {
            self.stage = Stage::Open;
            self.events.open = true;
        }
        self.look_whether_over(cx);
    }

    fn path_changed(&mut self, cx: &mut Cx<'_>, at: usize, volume_info: Arc<VolumeInfo>) {
        self.has_work = true;
        self.slots[at].state_changed = true;
        if self.slots[at].state != State::Up || self.slots[at].expelled.is_some() {
            return;
        }
        if let Err(mismatch) = self.accept(at, &volume_info) {
            return self.expel(cx, at, PathProblem::VolumeMismatch(mismatch));
        }
        let lost = volume_info.access == Access::PersistentLoss;
        self.slots[at].window = volume_info.depth.max(1);
        let served = self.slots[at].serves();
        self.adopt(cx.now, at, volume_info);
        if self.slots[at].serves() != served {
            self.turn_registering(cx.now, at);
        }
        self.choose_best(cx.now);
        self.look_whether_open(cx);
        if !self.slots[at].serves() {
            self.drop_legs(cx, at);
        }
        if lost && self.slots[at].in_work == 0 {
            self.expel(
                cx,
                at,
                PathProblem::Down(DownReason::Refused("the target lost this path for good".into())),
            );
        }
    }

    /// Whether what a path found is our volume.
    fn accept(&mut self, at: usize, volume_info: &VolumeInfo) -> Result<(), VolumeMismatch> {
        if let Some(expected) = &self.terms.expected {
            expected.accept(volume_info)?;
        }
        match (&mut self.identity, volume_info.uuid) {
            (None, Some(uuid)) => self.identity = Some(Identity::Uuid(uuid)),
            (None, None) => self.identity = Some(Identity::Alone(at as u8, volume_info.serial.clone())),
            (Some(Identity::Uuid(volume)), Some(path)) if *volume != path => {
                return Err(VolumeMismatch::OtherUuid { volume: *volume, path });
            }
            (Some(Identity::Uuid(_)), Some(_)) => {}
            (Some(Identity::Uuid(_)), None) => return Err(VolumeMismatch::NoUuid),
            (Some(Identity::Alone(only, serial)), None) if usize::from(*only) == at => {
                if !is_same_serial(serial, volume_info) {
                    return Err(VolumeMismatch::OtherSerial);
                }
                if serial.len() < volume_info.serial.len() {
                    *serial = volume_info.serial.clone();
                }
            }
            (Some(Identity::Alone(..)), _) => return Err(VolumeMismatch::NoUuid),
        }
        let logical = |volume_info: &VolumeInfo| volume_info.geometry.map(|geometry| geometry.logical);
        let ours = self.volume_info.as_deref().and_then(logical);
        match ours.zip(logical(volume_info)) {
            Some((volume, path)) if volume != path => Err(VolumeMismatch::OtherBlocks { volume, path }),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes over what a path says of the volume, where it says something new: what it had said before may be
    /// older than what another path has said since. The longest operation is what all paths carry.
    fn adopt(&mut self, now: Time, at: usize, volume_info: Arc<VolumeInfo>) {
        let slot = &mut self.slots[at];
        let before = slot.volume_info.replace(volume_info.clone());
        let Some(said) = volume_info.geometry else {
            // Its state is all that it tells.
            if self.volume_info.is_none() && slot.untold.is_none() {
                slot.untold = Some(now);
                slot.last = Some((now, PathProblem::Untold(volume_info.access)));
            }
            return;
        };
        (slot.most, slot.untold) = (u64::from(said.max_io), None);
        let known = self
            .slots
            .iter()
            .filter(|slot| slot.known)
            .filter_map(|slot| slot.volume_info.as_ref()?.geometry);
        let carried = known.map(|geometry| geometry.max_io).min().unwrap_or(said.max_io);
        let max_io = self.terms.max_io.unwrap_or(carried);
        let mut ours = volume_info;
        if let (Some(volume), Some(before)) = (&self.volume_info, &before) {
            let is_same = |one: &VolumeInfo, other: &VolumeInfo| one.geometry == other.geometry;
            let geometry = if is_same(before, &ours) { volume.geometry } else { ours.geometry };
            let is_protected =
                if before.read_only == ours.read_only { volume.read_only } else { ours.read_only };
            let ours = Arc::make_mut(&mut ours);
            (ours.geometry, ours.read_only) = (geometry, is_protected);
        }
        if ours.geometry.is_some_and(|geometry| geometry.max_io != max_io) {
            let ours = Arc::make_mut(&mut ours);
            ours.geometry = ours.geometry.map(|geometry| Geometry { max_io, ..geometry });
        }
        let differs = self.volume_info.as_ref().is_none_or(|before| before.geometry != ours.geometry);
        let protection = self.volume_info.as_ref().is_some_and(|before| before.read_only != ours.read_only);
        self.events.geometry |= differs || protection;
        self.events.changed |= self.volume_info.is_some() && (differs || protection);
        self.volume_info = Some(ours);
    }

    /// Ends a path that is up and not to be used.
    pub(super) fn expel(&mut self, cx: &mut Cx<'_>, at: usize, problem: PathProblem) {
        let slot = &mut self.slots[at];
        slot.expelled = Some(problem);
        slot.path.disconnect(cx, Duration::ZERO);
        self.touch(at);
        self.choose_best(cx.now);
    }

    fn path_down(&mut self, cx: &mut Cx<'_>, at: usize, why: DownReason) {
        self.has_work = true;
        let now = cx.now;
        let slot = &mut self.slots[at];
        debug_assert_eq!(slot.in_work, 0, "all that was in work has ended before");
        slot.state_changed = true;
        slot.tried = true;
        slot.depth = 0;
        (slot.registering, slot.untold) = (None, None);
        if slot.state == State::Up {
            slot.down_since = now;
            slot.counts.losses += u64::from(slot.expelled.is_none());
        }
        let expelled = slot.expelled.take();
        // What nothing but somebody's doing can change is tried again only if it has worked before.
        let refused = matches!(why, DownReason::Refused(_) | DownReason::Absent(_));
        let lost =
            slot.volume_info.as_ref().is_some_and(|volume_info| volume_info.access == Access::PersistentLoss);
        let firm = expelled.is_some() || refused || matches!(why, DownReason::Unproven(_)) || lost;
        // A target that is just starting may not know yet what it is to serve.
        let starting = refused && now < self.opened_at + self.terms.open_timeout;
        // What is expected was found before, so it has worked for others.
        let worked = slot.known || self.terms.expected.is_some();
        let closing = matches!(slot.state, State::Closing | State::Closed);
        let problem = expelled.unwrap_or(PathProblem::Down(why));
        if !closing && matches!(self.stage, Stage::Opening | Stage::Open) {
            slot.say_down(now, slot.state == State::Up, &problem);
            self.remarks = true;
        }
        slot.last = Some((now, problem));
        slot.state = match self.stage {
            _ if closing => State::Closed,
            Stage::Failed | Stage::Closing | Stage::Closed => State::Closed,
            Stage::Opening | Stage::Open if firm && !worked && !starting => State::GivenUp,
            Stage::Opening | Stage::Open => State::Waiting(slot.next_attempt(cx, &self.terms, firm)),
        };
        self.drop_legs(cx, at);
        self.drop_requests(at);
        self.choose_best(now);
        self.look_whether_over(cx);
    }

    /// What follows from the end of a path for the volume as a whole.
    fn look_whether_over(&mut self, cx: &mut Cx<'_>) {
        let over = |state| matches!(state, State::GivenUp | State::Closed);
        match self.stage {
            Stage::Opening => {
                let hopeless = self.slots.iter().all(|slot| over(slot.state));
                let tried = self.slots.iter().all(|slot| slot.is_tried(cx.now));
                if hopeless || tried && cx.now >= self.opened_at + self.terms.open_timeout {
                    self.stage = Stage::Failed;
                    self.events.failed = true;
                    self.fail_waiting(PATH_LOST);
                    self.fail_requests(cx.now);
                    self.disconnect_all(cx, Duration::ZERO);
                }
            }
            Stage::Closing if self.slots.iter().all(|slot| slot.state == State::Closed) => {
                self.stage = Stage::Closed;
                self.events.closed = true;
            }
            Stage::Open | Stage::Failed | Stage::Closing | Stage::Closed => {}
        }
    }

    /// Tells every path to disconnect.
    pub(super) fn disconnect_all(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.has_work = true;
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            match slot.state {
                State::Connecting | State::Up => {
                    slot.state = State::Closing;
                    slot.path.disconnect(cx, grace);
                    self.touch(at);
                }
                State::Waiting(_) | State::GivenUp => slot.state = State::Closed,
                State::Closing | State::Closed => {}
            }
        }
        self.choose_best(cx.now);
        self.look_whether_over(cx);
    }

    /// What a path lost can land no more.
    fn path_fenced(&mut self, cx: &mut Cx<'_>, at: usize) {
        let slot = &mut self.slots[at];
        if !std::mem::take(&mut slot.fencing) {
            return;
        }
        self.has_work = true;
        slot.state_changed = true;
        let generation = slot.generation;
        // Asked for after the loss: a loss notes the count before.
        let covered = |slot: u8, then: u32| usize::from(slot) == at && then != generation;
        let mut freed: Vec<(u64, Tag)> = Vec::new();
        for (tag, task) in self.tasks.iter() {
            if let TaskState::Doubt(slot, then) = task.at
                && covered(slot, then)
            {
                freed.push((task.number, tag));
            }
        }
        freed.sort_unstable_by_key(|(number, _)| *number);
        for (_, tag) in freed {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let payload = std::mem::take(&mut task.payload);
            let once = matches!(task.op, Op::CompareAndWrite(_));
            task.at = TaskState::Queued;
            #[cfg(test)]
            if self.has(super::Bug::Lose) {
                continue;
            }
            #[cfg(test)]
            let once = once && !self.has(super::Bug::RepeatSwap);
            if once {
                // Done again, it would find its own data and say that they differ.
                self.finish(tag, Err(PATH_LOST), payload);
            } else {
                self.retry(cx, tag, payload, Duration::ZERO);
            }
        }
        let mut at = 0;
        while let Some(write) = self.in_doubt.get(at) {
            if covered(write.slot, write.generation) {
                let write = self.in_doubt.swap_remove(at);
                self.order.leave(&write.op);
                self.release = true;
            } else {
                at += 1;
            }
        }
        self.choose_best(cx.now);
    }

    /// Whether paths can be given up, connected, or the volume with them.
    pub(super) fn check_slots(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.stage, Stage::Opening | Stage::Open) {
            return;
        }
        for at in 0..self.slots.len() {
            let slot = &mut self.slots[at];
            let State::Waiting(next) = slot.state else { continue };
            if cx.now >= slot.down_since + self.terms.loss_timeout {
                slot.state = State::GivenUp;
                slot.state_changed = true;
                self.has_work = true;
            } else if cx.now >= next {
                self.connect(cx, at);
            }
        }
        self.look_whether_over(cx);
    }

    /// When a path that waits has to be looked at.
    pub(super) fn next_attempt(&self) -> Option<Time> {
        let loss = self.terms.loss_timeout;
        let next = self.slots.iter().filter_map(|slot| match slot.state {
            State::Waiting(at) => Some(at.min(slot.down_since + loss)),
            _ => None,
        });
        next.min()
    }
}
