//! The task router and the life of a task.
//!
//! A task is in exactly one phase: it waits for its turn, for payload, for an operation, or for the volume's
//! home. Each event leads to another wait or to the one ending step. An aborted task ends when the memory
//! that it has lent is back, because that cannot be forced.

use buf::{Cx, Sg};
use scsi::sense::Sense;
use scsi::status::Status;
use volume::{InlineIo, IoCompletion, RequestId, ShardId, View, VolumeId, VolumeRequest};

use crate::after_operation::AfterOperation;
use crate::context::ExecContext;
use crate::exec;
use crate::nexus::{CopyVolume, LunEntry, LunState, NexusSpec, NexusState};
use crate::step::{NexusKey, Reply, Step, TaskKey};
use crate::task::{IncomingCommand, Task, TaskEnding, TaskPhase};
use crate::task_set::ExecutedAttribute;
use crate::unit::{LogicalUnit, UnitSpec};

/// The device server of one shard.
#[derive(Debug)]
pub struct Server {
    pub(crate) context: ExecContext,
    lun_serial: u32,
}

impl Server {
    /// The server of this shard, without units.
    pub fn new(shard: ShardId) -> Self {
        Server { context: ExecContext::new(shard), lun_serial: 0 }
    }

    /// Who a nexus is.
    pub fn nexus(&self, key: NexusKey) -> &NexusSpec {
        self.context.nexus(key)
    }

    /// Whether this may be carried out at once: a plain read or write of a logical unit where nothing waits. If the
    /// volume's gate does ([`Gate::read_inline`](volume::Gate::read_inline), `write_inline`), it has ended and the
    /// server need not hear of it; if not, [`Server::start_command`] it.
    #[must_use]
    pub fn inline_io_for(&self, nexus: NexusKey, arrived: &IncomingCommand<'_>) -> Option<InlineIo> {
        exec::fast_path::inline_io_for(&self.context, nexus, arrived)
    }

    /// Whether [`Server::poll_step`] has something to give.
    #[inline]
    pub fn has_steps(&self) -> bool {
        !self.context.steps.is_empty()
    }

    /// What to do next.
    #[must_use]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.context.steps.pop_front()
    }

    /// Makes a volume a logical unit of this shard. One that is known already stays as it is.
    pub fn add_unit(&mut self, spec: UnitSpec, view: View) {
        let volume = spec.volume;
        let _ = self.context.units.insert(volume, LogicalUnit { spec, view });
    }

    /// Opens a nexus. Its first command to each logical unit reports POWER ON (29h/00h).
    pub fn open_nexus(&mut self, spec: NexusSpec) -> NexusKey {
        let mut luns: Vec<LunState> = spec.luns.iter().map(|_| self.new_lun_state()).collect();
        for state in &mut luns {
            state.attentions.raise(Sense::POWER_ON.code);
        }
        self.context.insert_nexus(NexusState::new(spec, luns))
    }

    pub(crate) fn new_lun_state(&mut self) -> LunState {
        self.lun_serial = self.lun_serial.wrapping_add(1);
        LunState::new(self.lun_serial)
    }

    /// Forgets a nexus.
    ///
    /// # Panics
    /// If one of its tasks has not ended: the caller aborts them first.
    pub fn close_nexus(&mut self, key: NexusKey) {
        let live = self.context.tasks.iter().any(|(_, task)| task.key.nexus == key);
        assert!(!live, "a nexus is closed after its tasks");
        self.context.functions.remove_functions_of_nexus(key);
        if let Some(internal_nexus) = self.context.nexus_state(key).internal_nexus {
            self.context.close_internal_nexus(internal_nexus);
        }
        if let Some(place) = self.context.nexuses.get_mut(key.0 as usize) {
            *place = None;
        }
    }

    /// A command has come.
    pub fn start_command(&mut self, cx: &mut Cx<'_>, key: TaskKey, arrived: IncomingCommand<'_>) {
        self.context.pool.get_or_insert_with(|| cx.pool.clone());
        match exec::route(&mut self.context, key, &arrived) {
            exec::Route::Unit { command, at, attribute } => {
                let task = self.make_task(key, command, at, attribute, &arrived);
                let Some(slot) = task.and_then(|task| self.context.tasks.insert(task)) else {
                    return self.context.push_response(key, Reply::with_status(Status::TASK_SET_FULL));
                };
                let state = self.context.nexus_state_mut(key.nexus);
                state.note_task_slot(key, slot);
                if state.luns.get_mut(at).is_some_and(|lun| lun.order.add_task(slot, attribute)) {
                    exec::start_task(&mut self.context, slot);
                }
            }
            exec::Route::WithoutVolume { command, lun } => {
                exec::identify::answer_without_volume(&mut self.context, key, command, lun, &arrived);
            }
            exec::Route::Refused(reply) => self.context.push_response(key, reply),
        }
        self.start_ready_tasks();
    }

    fn make_task(
        &self,
        key: TaskKey,
        command: scsi::Command,
        at: usize,
        attribute: ExecutedAttribute,
        arrived: &IncomingCommand<'_>,
    ) -> Option<Task> {
        let state = self.context.nexus_state(key.nexus);
        let (entry, serial) = (state.spec.luns.get(at)?, state.luns.get(at)?.serial);
        Some(Task {
            key,
            volume: entry.volume,
            io_volume: entry.volume,
            lun: entry.lun,
            serial,
            attribute,
            command,
            data_in: arrived.data_in,
            data_out: arrived.data_out,
            read_only: entry.read_only,
            phase: TaskPhase::Queued,
            ending: TaskEnding::No,
            job: AfterOperation::Plain,
        })
    }

    /// Payload that a `Step::Receive` asked for is here.
    pub fn handle_data(&mut self, _cx: &mut Cx<'_>, key: TaskKey, _at: u32, data: Sg) {
        let Some(slot) = self.context.find_task(key) else { return };
        if self.context.tasks.get(slot).phase == TaskPhase::Data {
            exec::handle_data(&mut self.context, slot, data);
        }
        self.start_ready_tasks();
    }

    /// An operation has ended.
    pub fn handle_io_done(&mut self, _cx: &mut Cx<'_>, done: IoCompletion) {
        let Some(slot) = self.context.tasks.slot_of_io(done.id) else { return };
        if self.context.tasks.get(slot).ending == TaskEnding::No {
            exec::handle_io_done(&mut self.context, slot, done);
        } else {
            self.finish_terminated(slot);
        }
        self.start_ready_tasks();
    }

    /// A task must end without an answer; `Step::Retire` follows.
    pub fn abort_command(&mut self, key: TaskKey) {
        match self.context.find_task(key) {
            Some(slot) => self.terminate_tasks(&[(slot, key)], TaskEnding::Silent),
            None => {
                // A task management function, or a task that was answered in this very turn.
                self.context.functions.remove_function(key);
                self.context.steps.push_back(Step::Retire { command: key });
            }
        }
        self.start_ready_tasks();
    }

    /// Tells tasks to end: those that wait for nothing that is out end now.
    pub(crate) fn terminate_tasks(&mut self, victims: &[(u32, TaskKey)], how: TaskEnding) {
        self.terminate_tasks_with(victims, |_| how);
    }

    /// The same, each in its own way.
    pub(crate) fn terminate_tasks_with(
        &mut self,
        victims: &[(u32, TaskKey)],
        how: impl Fn(TaskKey) -> TaskEnding,
    ) {
        // All are told before one ends: what is told to end is not started in its place.
        let mut told = Vec::with_capacity(victims.len());
        for &(slot, key) in victims {
            let task = self.context.tasks.get_mut(slot);
            if task.ending == TaskEnding::No {
                task.ending = how(key);
                told.push((slot, key));
            }
        }
        for (slot, key) in told {
            let Some(slot) = self.context.tasks.slot_if_key(slot, key) else { continue };
            let task = self.context.tasks.get(slot);
            let (phase, volume, is_internal) = (task.phase, task.volume, task.is_internal());
            let io_volume = task.io_volume;
            match phase {
                TaskPhase::Sanitize if exec::sanitize::withdraw_begin(&mut self.context, slot) => {}
                TaskPhase::Queued | TaskPhase::Data | TaskPhase::Sanitize => self.finish_terminated(slot),
                TaskPhase::Io => {
                    let io = self.context.tasks.io_id(slot);
                    self.context.steps.push_back(Step::Cancel { command: key, volume: io_volume, io });
                }
                TaskPhase::VolumeRequest if is_internal => {}
                TaskPhase::VolumeRequest => {
                    // Its answer still comes, and ends the task.
                    let id = RequestId(self.context.tasks.io_id(slot).0);
                    self.context.steps.push_back(Step::VolumeRequest {
                        volume,
                        id,
                        request: VolumeRequest::Withdraw,
                    });
                }
            }
        }
    }

    /// Ends a task that was told to.
    pub(crate) fn finish_terminated(&mut self, slot: u32) {
        if self.context.tasks.get(slot).is_internal() {
            exec::end_internal_task(&mut self.context, slot);
        } else {
            self.context.end_terminated_task(slot);
        }
    }

    /// Serves a volume no more: its tasks end, its LUNs are not there.
    pub fn remove_unit(&mut self, volume: VolumeId) {
        self.context.units.remove(volume);
        let victims = self.context.tasks.tasks_matching(|_, task| task.volume == volume);
        self.terminate_tasks(&victims, TaskEnding::Check(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
        self.start_ready_tasks();
    }

    /// Changes what a nexus reaches. If the inventory changed, it is told; of a unit whose volume was away, that it
    /// says more of itself now (Linux reads its size and names again for that). Tasks that came by a LUN that is not
    /// there any more end.
    pub fn change_luns(&mut self, key: NexusKey, luns: Vec<LunEntry>) {
        if self.context.nexus(key).luns == luns {
            return;
        }
        let fresh: Vec<LunState> = luns.iter().map(|_| self.new_lun_state()).collect();
        let state = self.context.nexus_state_mut(key);
        let old: Vec<(LunEntry, LunState)> =
            std::mem::take(&mut state.spec.luns).into_iter().zip(std::mem::take(&mut state.luns)).collect();
        state.luns = fresh;
        for (known, lun_state) in old {
            let mut slots = luns.iter().zip(&mut state.luns);
            let Some((new, slot)) = slots.find(|(new, _)| new.lun == known.lun) else { continue };
            if new.volume == known.volume {
                *slot = lun_state;
            } else if known.volume == VolumeId::UNAVAILABLE {
                slot.attentions.raise(Sense::INQUIRY_DATA_HAS_CHANGED.code);
            }
        }
        for lun in &mut state.luns {
            lun.attentions.raise(Sense::REPORTED_LUNS_DATA_HAS_CHANGED.code);
        }
        state.spec.luns = luns;
        self.apply_luns_to_tasks(key);
        self.start_ready_tasks();
    }

    /// Whether a copy of this nexus has named a volume that it has no LUN of.
    pub fn has_copy_volumes(&self, key: NexusKey) -> bool {
        !self.context.nexus_state(key).copy_volumes.is_empty()
    }

    /// What the copies of a nexus may name besides its logical units, from now on.
    pub fn change_copy_volumes(&mut self, key: NexusKey, volumes: Vec<CopyVolume>) {
        self.context.nexus_state_mut(key).copy_volumes = volumes;
    }

    /// The answer to [`DeviceStep::FindCopyVolumes`](crate::DeviceStep::FindCopyVolumes).
    pub fn handle_copy_volumes(&mut self, task: TaskKey, volumes: Vec<CopyVolume>) {
        let Some(slot) = self.context.find_task(task) else { return };
        self.change_copy_volumes(task.nexus, volumes);
        exec::copy::handle_copy_volumes(&mut self.context, slot);
        self.start_ready_tasks();
    }

    fn apply_luns_to_tasks(&mut self, key: NexusKey) {
        let mut gone = Vec::new();
        for (slot, task) in self.context.tasks.tasks_matching(|_, task| task.key.nexus == key) {
            let Task { lun, serial, .. } = *self.context.tasks.get(slot);
            let state = self.context.nexus_state(key);
            let place =
                state.lun_index(lun).filter(|at| state.luns.get(*at).is_some_and(|lun| lun.serial == serial));
            match place.and_then(|at| state.spec.luns.get(at)).map(|entry| entry.read_only) {
                Some(read_only) => self.context.tasks.get_mut(slot).read_only = read_only,
                None => gone.push((slot, task)),
            }
        }
        self.terminate_tasks(&gone, TaskEnding::Check(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    }

    /// Starts the tasks whose turn has come: in a loop, since each may end at once and let others in.
    pub(crate) fn start_ready_tasks(&mut self) {
        while let Some((slot, key)) = self.context.ready.pop_front() {
            let Some(slot) = self.context.tasks.slot_if_key(slot, key) else { continue };
            if self.context.tasks.get(slot).ending == TaskEnding::No {
                exec::start_task(&mut self.context, slot);
            } else {
                self.finish_terminated(slot);
            }
        }
    }
}
