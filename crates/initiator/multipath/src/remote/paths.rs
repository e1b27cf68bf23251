//! Paths: how they come up and are identified, lost, fenced and tried again.

use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use stream::Tag;
use volume::{Access, Geometry, Op, Time};

use super::path_slot::State;
use super::report::{PathProblem, VolumeMismatch};
use super::settings::is_same_serial;
use super::{Identity, PATH_LOST, RemoteVolume, Stage, TaskState};
use crate::path::{DownReason, Event, Path, VolumeInfo};

impl<P: Path> RemoteVolume<P> {
    /// Looks at the paths that were touched, and does what follows. True if there may be more.
    pub(super) fn poll_paths(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut more = false;
        let mut touched = std::mem::take(&mut self.slots.touched);
        while touched != 0 {
            let index = touched.trailing_zeros() as usize;
            touched &= touched - 1;
            if self.slots[index].path.turn(cx) {
                more = true;
                self.slots.touched |= 1 << index;
            }
            self.slots.ready |= 1 << index;
            while let Some(event) = self.slots[index].path.poll_event() {
                self.handle_event(cx, index, event);
            }
        }
        if self.has_work {
            self.run_pending(cx);
            more |= self.slots.touched != 0;
        }
        more
    }

    #[inline]
    fn handle_event(&mut self, cx: &mut Cx<'_>, index: usize, event: Event) {
        match event {
            Event::Done { id, how, payload } => self.ended(cx, index, id, how, payload),
            Event::Up(info) => self.path_up(cx, index, info),
            Event::Changed(info) => self.path_changed(cx, index, info),
            Event::ReservationsChanged => self.events.changed = true,
            Event::Fenced => self.path_fenced(cx, index),
            Event::ReservationReply { id, how } => self.request_ended(cx, index, id, how),
            Event::Down(why) => self.path_down(cx, index, why),
        }
    }

    /// What is not plain: queues, fences, cancels.
    fn run_pending(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.wants_fence && !slot.fencing {
                (slot.wants_fence, slot.fencing) = (false, true);
                slot.generation = slot.generation.wrapping_add(1);
                slot.counts.fences += 1;
                slot.state_changed = true;
                slot.path.fence(cx);
                self.touch(index);
            }
        }
        self.run_cancels(cx);
        self.tasks.release_held();
        self.drain_queue(cx);
        self.send_flushes(cx);
        self.send_registrations(cx);
        self.send_requests(cx);
        if self.unserved_since.is_some() && self.is_hopeless(cx.now) {
            self.tasks.fail_waiting(PATH_LOST);
            self.fail_waiting_requests(cx.now);
        }
        let calm = self.tasks.is_calm()
            && self.requests.is_empty()
            && self.stage == Stage::Open
            && self.slots.iter().all(|slot| slot.state == State::Up && slot.is_calm());
        self.has_work = !calm || self.unserved_since.is_some();
        self.set_wake();
    }

    pub(super) fn connect(&mut self, cx: &mut Cx<'_>, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = State::Connecting;
        slot.state_changed = true;
        slot.path.connect(cx);
        self.has_work = true;
        self.touch(index);
    }

    fn path_up(&mut self, cx: &mut Cx<'_>, index: usize, info: Arc<VolumeInfo>) {
        self.has_work = true;
        let slot = &mut self.slots[index];
        slot.state_changed = true;
        if slot.state != State::Connecting {
            // It was told to disconnect, and did not know it yet.
            return;
        }
        slot.state = State::Up;
        slot.counts.connects += 1;
        if self.stage == Stage::Failed {
            return self.expel(cx, index, PathProblem::Down(DownReason::Ended));
        }
        if let Err(mismatch) = self.accept(index, &info) {
            self.slots[index].info = Some(info);
            return self.expel(cx, index, PathProblem::VolumeMismatch(mismatch));
        }
        let slot = &mut self.slots[index];
        slot.known = true;
        slot.path_up(cx.now);
        self.events.landing |= slot.lands_longer();
        let slot = &mut self.slots[index];
        self.remarks = true;
        (slot.window, slot.depth) = (info.depth.max(1), info.depth.max(1));
        slot.info = None;
        self.adopt(cx.now, index, info);
        self.begin_registering(cx.now, index);
        self.choose_best(cx.now);
        self.look_whether_open(cx);
    }

    /// A volume is open when a path has told what it is like. One that is reached by paths that do not serve is
    /// there, and nothing is known of it.
    fn look_whether_open(&mut self, cx: &mut Cx<'_>) {
        if self.stage == Stage::Opening && self.info.is_some() {
            self.stage = Stage::Open;
            self.events.open = true;
        }
        self.look_whether_over(cx);
    }

    fn path_changed(&mut self, cx: &mut Cx<'_>, index: usize, info: Arc<VolumeInfo>) {
        self.has_work = true;
        self.slots[index].state_changed = true;
        if self.slots[index].state != State::Up || self.slots[index].expelled.is_some() {
            return;
        }
        if let Err(mismatch) = self.accept(index, &info) {
            return self.expel(cx, index, PathProblem::VolumeMismatch(mismatch));
        }
        let lost = info.access == Access::PersistentLoss;
        self.slots[index].window = info.depth.max(1);
        let served = self.slots[index].serves();
        self.adopt(cx.now, index, info);
        if self.slots[index].serves() != served {
            self.turn_registering(cx.now, index);
        }
        self.choose_best(cx.now);
        self.look_whether_open(cx);
        if !self.slots[index].serves() {
            self.drop_legs(cx, index);
        }
        if lost && self.slots[index].in_work == 0 {
            self.expel(
                cx,
                index,
                PathProblem::Down(DownReason::Refused("the target lost this path for good".into())),
            );
        }
    }

    /// Whether what a path found is our volume.
    fn accept(&mut self, index: usize, info: &VolumeInfo) -> Result<(), VolumeMismatch> {
        if let Some(expected) = &self.settings.expected {
            expected.accept(info)?;
        }
        match (&mut self.identity, info.uuid) {
            (None, Some(uuid)) => self.identity = Some(Identity::Uuid(uuid)),
            (None, None) => self.identity = Some(Identity::Alone(index as u8, info.serial.clone())),
            (Some(Identity::Uuid(volume)), Some(path)) if *volume != path => {
                return Err(VolumeMismatch::OtherUuid { volume: *volume, path });
            }
            (Some(Identity::Uuid(_)), Some(_)) => {}
            (Some(Identity::Uuid(_)), None) => return Err(VolumeMismatch::NoUuid),
            (Some(Identity::Alone(only, serial)), None) if usize::from(*only) == index => {
                if !is_same_serial(serial, info) {
                    return Err(VolumeMismatch::OtherSerial);
                }
                if serial.len() < info.serial.len() {
                    *serial = info.serial.clone();
                }
            }
            (Some(Identity::Alone(..)), _) => return Err(VolumeMismatch::NoUuid),
        }
        let logical = |info: &VolumeInfo| info.geometry.map(|geometry| geometry.logical);
        let ours = self.info.as_deref().and_then(logical);
        match ours.zip(logical(info)) {
            Some((volume, path)) if volume != path => Err(VolumeMismatch::OtherBlocks { volume, path }),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes over what a path says of the volume, where it says something new: what it had said before may be
    /// older than what another path has said since. The longest operation is what all paths carry.
    fn adopt(&mut self, now: Time, index: usize, info: Arc<VolumeInfo>) {
        let slot = &mut self.slots[index];
        let before = slot.info.replace(info.clone());
        let Some(said) = info.geometry else {
            // Its state is all that it tells.
            if self.info.is_none() && slot.untold.is_none() {
                slot.untold = Some(now);
                slot.last = Some((now, PathProblem::Untold(info.access)));
            }
            return;
        };
        (slot.most, slot.untold) = (u64::from(said.max_io), None);
        let known =
            self.slots.iter().filter(|slot| slot.known).filter_map(|slot| slot.info.as_ref()?.geometry);
        let carried = known.map(|geometry| geometry.max_io).min().unwrap_or(said.max_io);
        let max_io = self.settings.max_io.unwrap_or(carried);
        let mut ours = info;
        if let (Some(volume), Some(before)) = (&self.info, &before) {
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
        let differs = self.info.as_ref().is_none_or(|before| before.geometry != ours.geometry);
        let protection = self.info.as_ref().is_some_and(|before| before.read_only != ours.read_only);
        self.events.geometry |= differs || protection;
        self.events.changed |= self.info.is_some() && (differs || protection);
        self.info = Some(ours);
    }

    /// Ends a path that is up and not to be used.
    pub(super) fn expel(&mut self, cx: &mut Cx<'_>, index: usize, problem: PathProblem) {
        let slot = &mut self.slots[index];
        slot.expelled = Some(problem);
        slot.path.disconnect(cx, Duration::ZERO);
        self.touch(index);
        self.choose_best(cx.now);
    }

    fn path_down(&mut self, cx: &mut Cx<'_>, index: usize, why: DownReason) {
        self.has_work = true;
        let now = cx.now;
        let slot = &mut self.slots[index];
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
        let lost = slot.info.as_ref().is_some_and(|info| info.access == Access::PersistentLoss);
        let firm = expelled.is_some() || refused || matches!(why, DownReason::Unproven(_)) || lost;
        // A target that is just starting may not know yet what it is to serve.
        let starting = refused && now < self.opened_at + self.settings.open_timeout;
        // What is expected was found before, so it has worked for others.
        let worked = slot.known || self.settings.expected.is_some();
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
            Stage::Opening | Stage::Open => State::Waiting(slot.next_attempt(cx, &self.settings, firm)),
        };
        self.drop_legs(cx, index);
        self.drop_requests(index);
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
                if hopeless || tried && cx.now >= self.opened_at + self.settings.open_timeout {
                    self.stage = Stage::Failed;
                    self.events.failed = true;
                    self.tasks.fail_waiting(PATH_LOST);
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
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            match slot.state {
                State::Connecting | State::Up => {
                    slot.state = State::Closing;
                    slot.path.disconnect(cx, grace);
                    self.touch(index);
                }
                State::Waiting(_) | State::GivenUp => slot.state = State::Closed,
                State::Closing | State::Closed => {}
            }
        }
        self.choose_best(cx.now);
        self.look_whether_over(cx);
    }

    /// What a path lost can land no more.
    fn path_fenced(&mut self, cx: &mut Cx<'_>, index: usize) {
        let slot = &mut self.slots[index];
        if !std::mem::take(&mut slot.fencing) {
            return;
        }
        self.has_work = true;
        slot.state_changed = true;
        let generation = slot.generation;
        // Asked for after the loss: a loss notes the count before.
        let covered = |path: u8, then: u32| usize::from(path) == index && then != generation;
        let mut freed: Vec<(u64, Tag)> = Vec::new();
        for (tag, task) in self.tasks.slab.iter() {
            if let TaskState::Doubt(slot, then) = task.state
                && covered(slot, then)
            {
                freed.push((task.number, tag));
            }
        }
        freed.sort_unstable_by_key(|(number, _)| *number);
        for (_, tag) in freed {
            let Some(task) = self.tasks.slab.get_mut(tag) else { continue };
            let payload = std::mem::take(&mut task.payload);
            let once = matches!(task.op, Op::CompareAndWrite(_));
            task.state = TaskState::Queued;
            #[cfg(test)]
            if self.tasks.has(super::tasks::Bug::Lose) {
                continue;
            }
            #[cfg(test)]
            let once = once && !self.tasks.has(super::tasks::Bug::RepeatSwap);
            if once {
                // Done again, it would find its own data and say that they differ.
                self.tasks.finish(tag, Err(PATH_LOST), payload);
            } else {
                self.retry(cx, tag, payload, Duration::ZERO);
            }
        }
        let mut index = 0;
        while let Some(write) = self.tasks.in_doubt.get(index) {
            if covered(write.path, write.generation) {
                let write = self.tasks.in_doubt.swap_remove(index);
                self.tasks.order.leave(&write.op);
                self.tasks.release = true;
            } else {
                index += 1;
            }
        }
        self.choose_best(cx.now);
    }

    /// Whether paths can be given up, connected, or the volume with them.
    pub(super) fn check_slots(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.stage, Stage::Opening | Stage::Open) {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let State::Waiting(next) = slot.state else { continue };
            if cx.now >= slot.down_since + self.settings.loss_timeout {
                slot.state = State::GivenUp;
                slot.state_changed = true;
                self.has_work = true;
            } else if cx.now >= next {
                self.connect(cx, index);
            }
        }
        self.look_whether_over(cx);
    }
}
