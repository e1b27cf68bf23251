//! Everything that the execution of a command may use: nexuses, logical units, tasks, memory, and the steps
//! requested from the shard.
//!
//! Nothing here starts a task: tasks whose turn has come wait in `ready` for the server.

use std::collections::VecDeque;

use buf::{Payload, Pool};
use scsi::Command;
use scsi::cdb::PrOutAction;
use scsi::extended_copy::CopyState;
use scsi::sense::Sense;
use scsi::status::Status;
use volume::{Io, Op, Refusal, RequestId, ShardId, TaskTable, VolumeId, VolumeMap, VolumeRequest};

use crate::after_operation::AfterOperation;
use crate::nexus::{LunState, NexusSpec, NexusState};
use crate::pending_functions::PendingFunctions;
use crate::status;
use crate::step::{NexusKey, Reply, Step, TaskKey};
use crate::task::{Task, TaskEnding, TaskPhase};
use crate::task_set::ExecutedAttribute;
use crate::unit::LogicalUnit;

/// What executing a command may use.
#[derive(Debug)]
pub(crate) struct ExecContext {
    pub(crate) shard: ShardId,
    pub(crate) units: VolumeMap<LogicalUnit>,
    pub(crate) nexuses: Vec<Option<NexusState>>,
    pub(crate) tasks: TaskTable<Task>,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) functions: PendingFunctions,
    /// Copies that run.
    pub(crate) copies: u8,
    /// The shard's memory, from the first call that shows it.
    pub(crate) pool: Option<Pool>,
    /// Tasks whose turn has come.
    pub(crate) ready: VecDeque<(u32, TaskKey)>,
}

impl ExecContext {
    pub(crate) fn new(shard: ShardId) -> Self {
        ExecContext {
            shard,
            units: VolumeMap::default(),
            nexuses: Vec::new(),
            tasks: TaskTable::default(),
            steps: VecDeque::new(),
            functions: PendingFunctions::default(),
            copies: 0,
            pool: None,
            ready: VecDeque::new(),
        }
    }

    pub(crate) fn insert_nexus(&mut self, state: NexusState) -> NexusKey {
        let at = match self.nexuses.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.nexuses.push(None);
                self.nexuses.len() - 1
            }
        };
        if let Some(place) = self.nexuses.get_mut(at) {
            *place = Some(state);
        }
        NexusKey(at as u32)
    }

    /// Opens a nexus of the server's own that acts in the name of another, with its rights: for
    /// operations whose data is for no initiator, or that outlive the nexus that asked.
    pub(crate) fn open_internal_nexus(&mut self, of: NexusKey) -> NexusKey {
        let spec = NexusSpec { luns: Vec::new(), ..self.nexus(of).clone() };
        self.insert_nexus(NexusState::new(spec, Vec::new()))
    }

    pub(crate) fn close_internal_nexus(&mut self, key: NexusKey) {
        if let Some(place) = self.nexuses.get_mut(key.0 as usize) {
            *place = None;
        }
    }

    /// Enters a task of the server's own, that goes on whatever becomes of the task at `slot` or of its
    /// nexus. `None`: too many tasks are in work.
    pub(crate) fn open_internal_task(&mut self, slot: u32, job: AfterOperation) -> Option<u32> {
        let Task { key, volume, command, .. } = *self.tasks.get(slot);
        let internal_nexus = self.open_internal_nexus(key.nexus);
        let own = self.tasks.insert(Task {
            key: TaskKey { nexus: internal_nexus, tag: 0 },
            volume,
            io_volume: volume,
            lun: 0,
            serial: 0,
            attribute: ExecutedAttribute::Simple,
            command,
            data_in: 0,
            data_out: 0,
            read_only: false,
            phase: TaskPhase::VolumeRequest,
            ending: TaskEnding::No,
            job,
        });
        if own.is_none() {
            self.close_internal_nexus(internal_nexus);
        }
        own
    }

    /// A task of the server's own is over.
    pub(crate) fn close_internal_task(&mut self, slot: u32) -> AfterOperation {
        let own = self.tasks.take(slot);
        self.close_internal_nexus(own.key.nexus);
        own.job
    }

    /// Who a nexus is.
    pub(crate) fn nexus(&self, key: NexusKey) -> &NexusSpec {
        &self.nexus_state(key).spec
    }

    #[expect(clippy::expect_used, reason = "a key names its nexus until the nexus and its tasks are gone")]
    pub(crate) fn nexus_state(&self, key: NexusKey) -> &NexusState {
        self.nexuses
            .get(key.0 as usize)
            .and_then(Option::as_ref)
            .expect("a nexus key is used while the nexus is open")
    }

    #[expect(clippy::expect_used, reason = "a key names its nexus until the nexus and its tasks are gone")]
    pub(crate) fn nexus_state_mut(&mut self, key: NexusKey) -> &mut NexusState {
        self.nexuses
            .get_mut(key.0 as usize)
            .and_then(Option::as_mut)
            .expect("a nexus key is used while the nexus is open")
    }

    /// What is kept of a LUN, if neither the nexus nor the LUN has gone meanwhile.
    pub(crate) fn lun_if_open(&mut self, key: NexusKey, lun: u16, serial: u32) -> Option<&mut LunState> {
        self.nexuses.get_mut(key.0 as usize)?.as_mut()?.lun_state_mut(lun, serial)
    }

    pub(crate) fn logical_unit(&self, volume: VolumeId) -> Option<&LogicalUnit> {
        self.units.get(volume)
    }

    /// The logical unit of a task that goes on.
    #[expect(
        clippy::expect_used,
        reason = "when a unit goes, its tasks are told to end, and do nothing more"
    )]
    pub(crate) fn logical_unit_of(&self, slot: u32) -> &LogicalUnit {
        let volume = self.tasks.get(slot).volume;
        self.logical_unit(volume).expect("when a unit goes, its tasks are told to end")
    }

    /// The nexus of a task.
    pub(crate) fn nexus_of(&self, slot: u32) -> &NexusSpec {
        self.nexus(self.tasks.get(slot).key.nexus)
    }

    /// The shard's memory, while a command is being worked on.
    #[expect(clippy::expect_used, reason = "the first command brings the memory")]
    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("a command came with the memory")
    }

    pub(crate) fn find_task(&self, key: TaskKey) -> Option<u32> {
        let slot = self.nexuses.get(key.nexus.0 as usize)?.as_ref()?.task_slot(key)?;
        self.tasks.slot_if_key(slot, key)
    }

    /// Ends a task with an answer.
    pub(crate) fn complete_task(&mut self, slot: u32, mut reply: Reply) {
        reply.descriptor =
            self.logical_unit(self.tasks.get(slot).volume).is_some_and(LogicalUnit::uses_descriptor_sense);
        let task = self.remove_task(slot);
        reply.fence |= ends_others_tasks(&task.command);
        self.push_response(task.key, reply);
        self.functions.note_task_ended(task.key, &mut self.steps);
    }

    /// Ends a task without one.
    pub(crate) fn retire_task(&mut self, slot: u32) {
        let task = self.remove_task(slot);
        self.steps.push_back(Step::Retire { command: task.key });
        self.functions.note_task_ended(task.key, &mut self.steps);
    }

    /// Ends a command that was told to.
    pub(crate) fn end_terminated_task(&mut self, slot: u32) {
        match self.tasks.get(slot).ending {
            TaskEnding::Check(sense) => self.respond_check_condition(slot, sense),
            TaskEnding::Aborted => self.complete_task(slot, Reply::with_status(Status::TASK_ABORTED)),
            TaskEnding::No | TaskEnding::Silent => self.retire_task(slot),
        }
    }

    pub(crate) fn remove_task(&mut self, slot: u32) -> Task {
        self.end_copy_record(slot);
        let task = self.tasks.take(slot);
        let state = self.nexuses.get_mut(task.key.nexus.0 as usize).and_then(Option::as_mut);
        if let Some(LunState { order, .. }) =
            state.and_then(|state| state.lun_state_mut(task.lun, task.serial))
        {
            order.remove_task(slot, task.attribute);
            while let Some(next) = order.next_startable() {
                self.ready.push_back((next, self.tasks.get(next).key));
            }
        }
        task
    }

    pub(crate) fn push_response(&mut self, task: TaskKey, reply: Reply) {
        self.steps.push_back(Step::Respond { command: task, reply });
    }

    /// Ends a task with CHECK CONDITION.
    pub(crate) fn respond_check_condition(&mut self, slot: u32, sense: Sense) {
        self.complete_task(slot, Reply::check_condition(sense));
    }

    /// Ends a task that the volume refused.
    pub(crate) fn respond_refused(&mut self, slot: u32, refusal: Refusal) {
        self.complete_task(slot, status::reply_for_refusal(refusal));
    }

    /// Asks the initiator for the first `len` bytes of a task's payload.
    pub(crate) fn request_payload(&mut self, slot: u32, len: u32) {
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::Data;
        let brings_blocks = matches!(
            task.command,
            Command::Write(_)
                | Command::WriteAndVerify(_)
                | Command::OrWrite(_)
                | Command::WriteAtomic(_)
                | Command::CompareAndWrite(_)
                | Command::Verify(_)
        );
        let volume = brings_blocks.then_some(task.volume);
        self.steps.push_back(Step::Receive { command: task.key, at: 0, len, volume });
    }

    /// Starts an operation for a task on its own volume.
    pub(crate) fn submit_op(&mut self, slot: u32, op: Op, payload: Payload, want: u32) {
        let task = self.tasks.get(slot);
        if task.read_only && op.is_write() {
            return self.respond_refused(slot, Refusal::ReadOnly);
        }
        let (key, volume) = (task.key, task.volume);
        self.submit_op_as(slot, key, volume, op, payload, want);
    }

    /// Starts an operation for a task, on any volume, in the name of `name`.
    pub(crate) fn submit_op_as(
        &mut self,
        slot: u32,
        name: TaskKey,
        volume: VolumeId,
        op: Op,
        payload: Payload,
        want: u32,
    ) {
        let id = self.tasks.io_id(slot);
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::Io;
        task.io_volume = volume;
        let epoch = self.logical_unit(volume).map_or_else(Default::default, |unit| unit.view.epoch);
        let (to_peer, io) = (matches!(op, Op::Read(_)), Io { id, epoch, op, payload });
        self.steps.push_back(Step::Io { command: name, volume, io, want, to_peer });
    }

    /// Asks the home of a task's volume. Who may only read changes nothing for others.
    pub(crate) fn request_volume_change(&mut self, slot: u32, request: VolumeRequest) {
        if self.tasks.get(slot).read_only && changes_shared_state(&request) {
            return self.respond_refused(slot, Refusal::ReadOnly);
        }
        let id = RequestId(self.tasks.io_id(slot).0);
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::VolumeRequest;
        self.steps.push_back(Step::VolumeRequest { volume: task.volume, id, request });
    }

    /// A task goes: if it was a copy, there is room for another, and what did not end well has failed.
    fn end_copy_record(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        let AfterOperation::Copy(copy) = &task.job else { return };
        let (id, nexus) = (copy.id, task.key.nexus);
        self.copies -= 1;
        if let Some(copy) = id.and_then(|id| self.nexus_state_mut(nexus).copy_record_mut(id))
            && copy.status.state == CopyState::InProgress
        {
            copy.status.state = CopyState::Failed;
        }
    }
}

/// Whether a command ends tasks of others than the one it is.
fn ends_others_tasks(command: &Command) -> bool {
    matches!(command, Command::ReserveOut(out) if out.action == PrOutAction::PreemptAndAbort)
}

/// Whether an ask of a host changes what the volume is for others, or what may be read of it.
fn changes_shared_state(request: &VolumeRequest) -> bool {
    match request {
        VolumeRequest::SetAccess { .. }
        | VolumeRequest::SetPreferred { .. }
        | VolumeRequest::WriteProtectByHost { .. }
        | VolumeRequest::HostSettings { .. } => true,
        VolumeRequest::Eject { .. }
        | VolumeRequest::Load { .. }
        | VolumeRequest::Stop
        | VolumeRequest::Start
        | VolumeRequest::SanitizeForgive => true,
        VolumeRequest::PreventRemoval { on, .. } => *on,
        VolumeRequest::Resize(_)
        | VolumeRequest::WriteProtect(_)
        | VolumeRequest::BackingReadOnly(_)
        | VolumeRequest::Remove => true,
        // The home judges these by the nexus that they name.
        VolumeRequest::Reserve { .. } | VolumeRequest::MarkBad { .. } | VolumeRequest::ClearBad { .. } => {
            false
        }
        VolumeRequest::SanitizeStart { .. } | VolumeRequest::FormatStart { .. } => false,
        // It was begun with that right; the others end tasks, as SAM has it.
        VolumeRequest::SanitizeEnd { .. } => false,
        VolumeRequest::Reset | VolumeRequest::ClearTasks { .. } | VolumeRequest::AbortTasks { .. } => false,
        VolumeRequest::NexusLost(_) | VolumeRequest::Withdraw | VolumeRequest::Refresh => false,
    }
}
