//! The task router and the life of a task.
//!
//! A task is in exactly one phase: it waits for payload, for an operation, or for the volume's home.
//! Whatever brings it on ends in another wait or in its one ending step. An aborted task ends when
//! what it waits for is back, because memory that is out cannot be taken back by force.

use std::collections::VecDeque;

use buf::{Cx, Sg};
use scsi::sense::Sense;
use scsi::status::Status;
use volume::{Adoption, AskId, Done, Io, IoId, Op, Payload, Refusal, View, VolumeId};

use crate::attention::Attentions;
use crate::exec;
use crate::nexus::{LunEntry, NexusSpec, NexusState};
use crate::status;
use crate::step::{NexusKey, Reply, Step, TaskKey};
use crate::task::{Phase, Task, Tasks};
use crate::unit::{Unit, UnitSpec};

/// A command as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The logical unit number as it stood in the request.
    pub lun: [u8; 8],
    /// The command descriptor block.
    pub cdb: &'a [u8],
    /// Bytes that the initiator takes.
    pub data_in: u32,
    /// Bytes that the initiator sends.
    pub data_out: u32,
}

/// The device server of one shard.
#[derive(Debug, Default)]
pub struct Server {
    pub(crate) units: Vec<Option<Unit>>,
    pub(crate) nexuses: Vec<Option<NexusState>>,
    pub(crate) tasks: Tasks,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) managing: Vec<crate::manage::Pending>,
}

impl Server {
    /// A server without units.
    pub fn new() -> Self {
        Self::default()
    }

    /// What to do next.
    #[must_use]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Makes a volume a logical unit of this shard.
    pub fn add_unit(&mut self, spec: UnitSpec, view: View) {
        let at = spec.volume.0 as usize;
        if self.units.len() <= at {
            self.units.resize_with(at + 1, || None);
        }
        self.units[at] = Some(Unit { spec, view });
    }

    /// Opens a nexus. Its first command to each logical unit reports POWER ON (29h/00h).
    pub fn open_nexus(&mut self, spec: NexusSpec) -> NexusKey {
        let mut state = NexusState::new(spec);
        for pending in &mut state.attentions {
            pending.raise(Sense::POWER_ON.code);
        }
        match self.nexuses.iter().position(Option::is_none) {
            Some(at) => {
                self.nexuses[at] = Some(state);
                NexusKey(at as u32)
            }
            None => {
                self.nexuses.push(Some(state));
                NexusKey(self.nexuses.len() as u32 - 1)
            }
        }
    }

    /// Forgets a nexus.
    ///
    /// # Panics
    /// If one of its tasks has not ended: the caller aborts them first.
    pub fn close_nexus(&mut self, key: NexusKey) {
        let live = self.tasks.iter().any(|(_, task)| task.key.nexus == key);
        assert!(!live, "a nexus is closed after its tasks");
        self.nexuses[key.0 as usize] = None;
    }

    /// Who a nexus is.
    pub fn nexus(&self, key: NexusKey) -> &NexusSpec {
        &self.state(key).spec
    }

    pub(crate) fn state(&self, key: NexusKey) -> &NexusState {
        self.nexuses[key.0 as usize].as_ref().expect("a nexus key is used while the nexus is open")
    }

    pub(crate) fn state_mut(&mut self, key: NexusKey) -> &mut NexusState {
        self.nexuses[key.0 as usize].as_mut().expect("a nexus key is used while the nexus is open")
    }

    pub(crate) fn unit(&self, volume: VolumeId) -> Option<&Unit> {
        self.units.get(volume.0 as usize)?.as_ref()
    }

    /// A command has come.
    pub fn start(&mut self, cx: &mut Cx<'_>, key: TaskKey, arrived: Arrived<'_>) {
        match exec::route(self, key, &arrived) {
            exec::Route::Unit { command, lun_at, volume } => {
                let task = Task {
                    key,
                    volume,
                    lun_at,
                    command,
                    data_in: arrived.data_in,
                    data_out: arrived.data_out,
                    phase: Phase::Io,
                    aborted: false,
                };
                match self.tasks.insert(task) {
                    Some(at) => {
                        self.state_mut(key.nexus).remember(key, at);
                        exec::start(self, cx, at);
                    }
                    None => self.answer(key, Reply::plain(Status::TASK_SET_FULL)),
                }
            }
            exec::Route::Whole(command) => exec::target_wide(self, cx, key, command, &arrived),
            exec::Route::Refused(reply) => self.answer(key, reply),
        }
    }

    /// Payload that a [`Step::Receive`] asked for is here.
    pub fn data(&mut self, cx: &mut Cx<'_>, key: TaskKey, at: u32, data: Sg) {
        let Some(slot) = self.find(key) else { return };
        if self.tasks.get(slot).aborted {
            self.retire(slot);
        } else {
            exec::data(self, cx, slot, at, data);
        }
    }

    /// An operation has ended.
    pub fn done(&mut self, cx: &mut Cx<'_>, done: Done) {
        let Some(slot) = self.tasks.find_io(done.id) else { return };
        if self.tasks.get(slot).aborted {
            self.retire(slot);
        } else {
            exec::done(self, cx, slot, done);
        }
    }

    /// A task must end without an answer; [`Step::Retire`] follows.
    pub fn abort(&mut self, key: TaskKey) {
        if let Some(slot) = self.find(key) {
            self.abort_slot(slot);
        } else {
            // A task management function, or a task that was answered in this very turn.
            self.managing.retain(|pending| pending.function != key);
            self.steps.push_back(Step::Retire { task: key });
        }
    }

    pub(crate) fn abort_slot(&mut self, slot: u32) {
        let id = self.tasks.io_id(slot);
        let task = self.tasks.get_mut(slot);
        if std::mem::replace(&mut task.aborted, true) {
            return;
        }
        match task.phase {
            Phase::Data => self.retire(slot),
            Phase::Io => {
                let volume = task.volume;
                self.steps.push_back(Step::Cancel { volume, io: id });
            }
        }
    }

    /// The volume has changed: takes the new view over, ends the tasks that the change ends, and
    /// queues what must be reported.
    pub fn adopt(&mut self, volume: VolumeId, adoption: &Adoption) {
        if let Some(unit) = self.units.get_mut(volume.0 as usize).and_then(Option::as_mut) {
            unit.view = adoption.view.clone();
        }
        crate::manage::adopt(self, volume, adoption);
    }

    /// The volume's home has answered a [`Step::Ask`].
    pub fn answered(&mut self, cx: &mut Cx<'_>, id: AskId, result: Result<(), Refusal>) {
        let Some(slot) = self.tasks.find_io(IoId(id.0)) else {
            return crate::manage::answered(self, id, result);
        };
        if self.tasks.get(slot).aborted {
            self.retire(slot);
        } else {
            exec::answered(self, cx, slot, result);
        }
    }

    /// Serves a volume no more: its tasks are aborted, its LUNs are not there.
    pub fn remove_unit(&mut self, volume: VolumeId) {
        let live: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.volume == volume).map(|(slot, _)| slot).collect();
        for slot in live {
            self.abort_slot(slot);
        }
        if let Some(unit) = self.units.get_mut(volume.0 as usize) {
            *unit = None;
        }
    }

    /// Changes what a nexus reaches. If the inventory changed, it is told.
    pub fn change_luns(&mut self, key: NexusKey, luns: Vec<LunEntry>) {
        let state = self.state_mut(key);
        if state.spec.luns == luns {
            return;
        }
        let kept = |entry: &LunEntry| {
            let at = state
                .spec
                .luns
                .iter()
                .position(|known| known.lun == entry.lun && known.volume == entry.volume);
            at.map_or_else(Attentions::default, |at| state.attentions[at])
        };
        let mut attentions: Vec<Attentions> = luns.iter().map(kept).collect();
        for pending in &mut attentions {
            pending.raise(Sense::REPORTED_LUNS_DATA_HAS_CHANGED.code);
        }
        state.attentions = attentions;
        state.spec.luns = luns;
    }

    pub(crate) fn find(&self, key: TaskKey) -> Option<u32> {
        let slot = self.nexuses.get(key.nexus.0 as usize)?.as_ref()?.recall(key)?;
        self.tasks.check(slot, key)
    }

    /// Ends a task with an answer.
    pub(crate) fn respond(&mut self, slot: u32, reply: Reply) {
        let task = self.tasks.remove(slot);
        self.answer(task.key, reply);
        crate::manage::ended(self, task.key);
    }

    /// Ends a task without one.
    pub(crate) fn retire(&mut self, slot: u32) {
        let task = self.tasks.remove(slot);
        self.steps.push_back(Step::Retire { task: task.key });
        crate::manage::ended(self, task.key);
    }

    pub(crate) fn answer(&mut self, task: TaskKey, reply: Reply) {
        self.steps.push_back(Step::Respond { task, reply });
    }

    /// Ends a task with CHECK CONDITION.
    pub(crate) fn check(&mut self, slot: u32, sense: Sense) {
        self.respond(slot, Reply::check(sense));
    }

    /// Ends a task that the volume refused or failed.
    pub(crate) fn fail(&mut self, slot: u32, failure: volume::Failure) {
        self.respond(slot, status::reply(failure));
    }

    /// Starts an operation for a task.
    pub(crate) fn submit(&mut self, slot: u32, op: Op, payload: Payload, want: u32) {
        let id = self.tasks.io_id(slot);
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::Io;
        let (task, volume) = (task.key, task.volume);
        let epoch = self.unit(volume).map_or_else(Default::default, |unit| unit.view.epoch);
        self.steps.push_back(Step::Io { task, volume, io: Io { id, epoch, op, payload }, want });
    }
}
