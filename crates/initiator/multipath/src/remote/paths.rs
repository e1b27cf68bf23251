//! Paths: how they come up and are identified, lost, fenced and tried again.

use std::sync::Arc;
use std::time::Duration;

use buf::Cx;
use stream::Tag;
use volume::{Geometry, Op, PathAccess, Time};

use super::path_slot::SlotState;
use super::report::{PathProblem, VolumeMismatch};
use super::settings::matches_serial;
use super::{PATH_LOST, RemoteVolume, TaskState, VolumeIdentity, VolumeStage};
use crate::path::{DownReason, Path, PathEvent, VolumeInfo};
use crate::raw_command::RawError;

impl<P: Path> RemoteVolume<P> {
    /// Looks at the paths that were touched, and does what follows. True if there may be more.
    pub(super) fn process_pending_paths(&mut self, cx: &mut Cx<'_>) -> bool {
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
                self.handle_path_event(cx, index, event);
            }
        }
        if self.has_work {
            self.run_pending_work(cx);
            more |= self.slots.touched != 0;
        }
        more
    }

    #[inline]
    fn handle_path_event(&mut self, cx: &mut Cx<'_>, index: usize, event: PathEvent) {
        match event {
            PathEvent::Done { id, how, payload } => self.handle_operation_ended(cx, index, id, how, payload),
            PathEvent::Up(info) => self.handle_path_up(cx, index, info),
            PathEvent::Changed(info) => self.handle_path_changed(cx, index, info),
            PathEvent::ReservationsChanged => self.events.changed = true,
            PathEvent::Fenced => self.handle_path_fenced(cx, index),
            PathEvent::ControllerReset { controller, is_reset } => {
                self.handle_controller_reset(cx, &controller, is_reset)
            }
            PathEvent::ReservationReply { id, how } => self.handle_reservation_ended(cx, index, id, how),
            PathEvent::RawDone(done) => self.handle_raw_command_ended(cx, index, done),
            PathEvent::Down(why) => self.handle_path_down(cx, index, why),
        }
    }

    /// What is not plain: queues, fences, cancels.
    fn run_pending_work(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.wants_fence && !slot.fencing {
                (slot.wants_fence, slot.fencing) = (false, true);
                slot.generation = slot.generation.wrapping_add(1);
                slot.counts.fences += 1;
                slot.state_changed = true;
                slot.path.fence(cx);
                self.mark_pending(index);
            }
        }
        self.start_controller_resets(cx);
        self.process_cancels(cx);
        self.tasks.release_held_writes();
        self.dispatch_queued(cx);
        self.send_pending_flushes(cx);
        self.send_registering_commands(cx);
        self.send_reservation_ops(cx);
        self.send_raw_commands(cx);
        if self.unserved_since.is_some() && self.should_fail_fast(cx.now) {
            self.tasks.fail_all_waiting(PATH_LOST);
            self.fail_waiting_reservation_ops(cx.now);
            self.raw.fail_waiting(RawError::NotSent);
        }
        let calm = self.tasks.is_settled()
            && self.requests.is_empty()
            && !self.raw.is_waiting()
            && self.stage == VolumeStage::Open
            && self.slots.iter().all(|slot| slot.state == SlotState::Up && slot.is_settled());
        self.has_work = !calm || self.unserved_since.is_some();
        self.schedule_wake();
    }

    pub(super) fn connect_path(&mut self, cx: &mut Cx<'_>, index: usize) {
        let slot = &mut self.slots[index];
        slot.state = SlotState::Connecting;
        slot.state_changed = true;
        slot.path.connect(cx);
        self.has_work = true;
        self.mark_pending(index);
    }

    fn handle_path_up(&mut self, cx: &mut Cx<'_>, index: usize, info: Arc<VolumeInfo>) {
        self.has_work = true;
        let slot = &mut self.slots[index];
        slot.state_changed = true;
        if slot.state != SlotState::Connecting {
            // It was told to disconnect, and did not know it yet.
            return;
        }
        slot.state = SlotState::Up;
        slot.counts.connects += 1;
        if self.stage == VolumeStage::Failed {
            return self.expel_path(cx, index, PathProblem::Down(DownReason::Ended));
        }
        if let Err(mismatch) = self.check_identity(index, &info) {
            self.slots[index].info = Some(info);
            return self.expel_path(cx, index, PathProblem::VolumeMismatch(mismatch));
        }
        let slot = &mut self.slots[index];
        slot.known = true;
        slot.note_up(cx.now);
        self.events.landing |= slot.update_lost_command_lifetime();
        let slot = &mut self.slots[index];
        self.remarks = true;
        (slot.window, slot.depth) = (info.depth.max(1), info.depth.max(1));
        slot.info = None;
        self.adopt_volume_info(cx.now, index, info);
        self.start_registering(cx.now, index);
        self.choose_best_paths(cx.now);
        self.check_opened(cx);
    }

    /// A volume is open when a path has told what it is like. One that is reached by paths that do not serve is
    /// there, and nothing is known of it.
    fn check_opened(&mut self, cx: &mut Cx<'_>) {
        if self.stage == VolumeStage::Opening && self.info.is_some() {
            self.stage = VolumeStage::Open;
            self.events.open = true;
        }
        self.check_failed_or_closed(cx);
    }

    fn handle_path_changed(&mut self, cx: &mut Cx<'_>, index: usize, info: Arc<VolumeInfo>) {
        self.has_work = true;
        self.slots[index].state_changed = true;
        if self.slots[index].state != SlotState::Up || self.slots[index].expelled.is_some() {
            return;
        }
        if let Err(mismatch) = self.check_identity(index, &info) {
            return self.expel_path(cx, index, PathProblem::VolumeMismatch(mismatch));
        }
        let lost = info.access == PathAccess::PersistentLoss;
        self.slots[index].window = info.depth.max(1);
        let served = self.slots[index].serves();
        self.adopt_volume_info(cx.now, index, info);
        if self.slots[index].serves() != served {
            self.handle_serving_changed(cx.now, index);
        }
        self.choose_best_paths(cx.now);
        self.check_opened(cx);
        if !self.slots[index].serves() {
            self.drop_path_flushes(cx, index);
        }
        if lost && self.slots[index].in_work == 0 {
            self.expel_path(
                cx,
                index,
                PathProblem::Down(DownReason::Refused("the target lost this path for good".into())),
            );
        }
    }

    /// Whether what a path found is our volume.
    fn check_identity(&mut self, index: usize, info: &VolumeInfo) -> Result<(), VolumeMismatch> {
        if let Some(expected) = &self.settings.expected {
            expected.check_volume(info)?;
        }
        match (&mut self.identity, info.uuid) {
            (None, Some(uuid)) => self.identity = Some(VolumeIdentity::Uuid(uuid)),
            (None, None) => self.identity = Some(VolumeIdentity::Alone(index as u8, info.serial.clone())),
            (Some(VolumeIdentity::Uuid(volume)), Some(path)) if *volume != path => {
                return Err(VolumeMismatch::OtherUuid { volume: *volume, path });
            }
            (Some(VolumeIdentity::Uuid(_)), Some(_)) => {}
            (Some(VolumeIdentity::Uuid(_)), None) => return Err(VolumeMismatch::NoUuid),
            (Some(VolumeIdentity::Alone(only, serial)), None) if usize::from(*only) == index => {
                if !matches_serial(serial, info) {
                    return Err(VolumeMismatch::OtherSerial);
                }
                if serial.len() < info.serial.len() {
                    *serial = info.serial.clone();
                }
            }
            (Some(VolumeIdentity::Alone(..)), _) => return Err(VolumeMismatch::NoUuid),
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
    fn adopt_volume_info(&mut self, now: Time, index: usize, info: Arc<VolumeInfo>) {
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
    pub(super) fn expel_path(&mut self, cx: &mut Cx<'_>, index: usize, problem: PathProblem) {
        let slot = &mut self.slots[index];
        slot.expelled = Some(problem);
        slot.path.disconnect(cx, Duration::ZERO);
        self.mark_pending(index);
        self.choose_best_paths(cx.now);
    }

    fn handle_path_down(&mut self, cx: &mut Cx<'_>, index: usize, why: DownReason) {
        self.has_work = true;
        let now = cx.now;
        let slot = &mut self.slots[index];
        debug_assert_eq!(slot.in_work, 0, "all that was in work has ended before");
        slot.state_changed = true;
        slot.tried = true;
        slot.depth = 0;
        (slot.registering, slot.untold) = (None, None);
        if slot.state == SlotState::Up {
            slot.down_since = now;
            slot.counts.losses += u64::from(slot.expelled.is_none());
        }
        let expelled = slot.expelled.take();
        // What nothing but somebody's doing can change is tried again only if it has worked before.
        let refused = matches!(why, DownReason::Refused(_) | DownReason::Absent(_));
        let lost = slot.info.as_ref().is_some_and(|info| info.access == PathAccess::PersistentLoss);
        let firm = expelled.is_some() || refused || matches!(why, DownReason::Unproven(_)) || lost;
        // A target that is just starting may not know yet what it is to serve.
        let starting = refused && now < self.opened_at + self.settings.open_timeout;
        // What is expected was found before, so it has worked for others.
        let worked = slot.known || self.settings.expected.is_some();
        let closing = matches!(slot.state, SlotState::Closing | SlotState::Closed);
        let problem = expelled.unwrap_or(PathProblem::Down(why));
        if !closing && matches!(self.stage, VolumeStage::Opening | VolumeStage::Open) {
            slot.note_down(now, slot.state == SlotState::Up, &problem);
            self.remarks = true;
        }
        slot.last = Some((now, problem));
        slot.state = match self.stage {
            _ if closing => SlotState::Closed,
            VolumeStage::Failed | VolumeStage::Closing | VolumeStage::Closed => SlotState::Closed,
            VolumeStage::Opening | VolumeStage::Open if firm && !worked && !starting => SlotState::GivenUp,
            VolumeStage::Opening | VolumeStage::Open => {
                SlotState::Waiting(slot.schedule_reconnect(cx, &self.settings, firm))
            }
        };
        self.drop_path_flushes(cx, index);
        self.drop_path_reservation_ops(index);
        self.choose_best_paths(now);
        self.check_failed_or_closed(cx);
    }

    /// What follows from the end of a path for the volume as a whole.
    fn check_failed_or_closed(&mut self, cx: &mut Cx<'_>) {
        let over = |state| matches!(state, SlotState::GivenUp | SlotState::Closed);
        match self.stage {
            VolumeStage::Opening => {
                let hopeless = self.slots.iter().all(|slot| over(slot.state));
                let tried = self.slots.iter().all(|slot| slot.is_first_attempt_over(cx.now));
                if hopeless || tried && cx.now >= self.opened_at + self.settings.open_timeout {
                    self.stage = VolumeStage::Failed;
                    self.events.failed = true;
                    self.tasks.fail_all_waiting(PATH_LOST);
                    self.fail_reservation_ops(cx.now);
                    self.raw.fail_waiting(RawError::NotSent);
                    self.disconnect_all(cx, Duration::ZERO);
                }
            }
            VolumeStage::Closing if self.slots.iter().all(|slot| slot.state == SlotState::Closed) => {
                self.stage = VolumeStage::Closed;
                self.events.closed = true;
            }
            VolumeStage::Open | VolumeStage::Failed | VolumeStage::Closing | VolumeStage::Closed => {}
        }
    }

    /// Tells every path to disconnect.
    pub(super) fn disconnect_all(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        self.has_work = true;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            match slot.state {
                SlotState::Connecting | SlotState::Up => {
                    slot.state = SlotState::Closing;
                    slot.path.disconnect(cx, grace);
                    self.mark_pending(index);
                }
                SlotState::Waiting(_) | SlotState::GivenUp => slot.state = SlotState::Closed,
                SlotState::Closing | SlotState::Closed => {}
            }
        }
        self.choose_best_paths(cx.now);
        self.check_failed_or_closed(cx);
    }

    /// What a path lost can land no more.
    fn handle_path_fenced(&mut self, cx: &mut Cx<'_>, index: usize) {
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
            if self.tasks.has_planted_bug(super::tasks::PlantedBug::Lose) {
                continue;
            }
            #[cfg(test)]
            let once = once && !self.tasks.has_planted_bug(super::tasks::PlantedBug::RepeatSwap);
            if once {
                // Done again, it would find its own data and say that they differ.
                self.tasks.finish_task(tag, Err(PATH_LOST), payload);
            } else {
                self.requeue_task(cx, tag, payload, Duration::ZERO);
            }
        }
        let mut index = 0;
        while let Some(write) = self.tasks.in_doubt.get(index) {
            if covered(write.path, write.generation) {
                let write = self.tasks.in_doubt.swap_remove(index);
                self.tasks.order.remove_write(&write.op);
                self.tasks.release = true;
            } else {
                index += 1;
            }
        }
        self.choose_best_paths(cx.now);
    }

    /// Whether paths can be given up, connected, or the volume with them.
    pub(super) fn check_reconnects(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.stage, VolumeStage::Opening | VolumeStage::Open) {
            return;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let SlotState::Waiting(next) = slot.state else { continue };
            if cx.now >= slot.down_since + self.settings.loss_timeout {
                slot.state = SlotState::GivenUp;
                slot.state_changed = true;
                self.has_work = true;
            } else if cx.now >= next {
                self.connect_path(cx, index);
            }
        }
        self.check_failed_or_closed(cx);
    }
}
