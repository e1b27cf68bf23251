//! The task router and the life of a task.
//!
//! A task is in exactly one phase: it waits for its turn, for payload, for an operation, or for the
//! volume's home. Whatever brings it on ends in another wait or in its one ending step. An aborted
//! task ends when what it waits for is back, because memory that is out cannot be taken back by force.

use std::collections::VecDeque;

use buf::{Cx, Payload, Pool, Sg};
use scsi::sense::Sense;
use scsi::status::Status;
use volume::{Adoption, Ask, AskId, ByVolume, Done, Io, IoId, Op, Refusal, Shard, View, VolumeId};

use crate::exec;
use crate::job::Job;
use crate::manage;
use crate::nexus::{LunEntry, LunState, NexusSpec, NexusState};
use crate::order::{Attribute, TaskAttribute};
use crate::status;
use crate::step::{NexusKey, Reply, Step, TaskKey};
use crate::task::{Ending, Phase, Task, Tasks};
use crate::unit::{Unit, UnitSpec};

/// A command as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The logical unit number as it stood in the request.
    pub lun: [u8; 8],
    /// The command descriptor block.
    pub cdb: &'a [u8],
    /// When to execute it.
    pub attr: TaskAttribute,
    /// Bytes that the initiator takes.
    pub data_in: u32,
    /// Bytes that the initiator sends.
    pub data_out: u32,
}

/// The device server of one shard.
#[derive(Debug)]
pub struct Server {
    pub(crate) shard: Shard,
    units: ByVolume<Unit>,
    pub(crate) nexuses: Vec<Option<NexusState>>,
    pub(crate) tasks: Tasks,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) managing: Vec<manage::Pending>,
    /// Functions that have asked so far.
    pub(crate) functions: u64,
    /// Copies that run.
    pub(crate) copies: u8,
    /// The shard's memory, from the first call that shows it.
    pool: Option<Pool>,
    /// Tasks whose turn has come.
    ready: VecDeque<(u32, TaskKey)>,
    starting: bool,
    lun_serial: u32,
}

impl Server {
    /// The server of this shard, without units.
    pub fn new(shard: Shard) -> Self {
        Server {
            shard,
            units: ByVolume::default(),
            nexuses: Vec::new(),
            tasks: Tasks::default(),
            steps: VecDeque::new(),
            managing: Vec::new(),
            functions: 0,
            copies: 0,
            pool: None,
            ready: VecDeque::new(),
            starting: false,
            lun_serial: 0,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Makes a volume a logical unit of this shard. One that is known already stays as it is.
    pub fn add_unit(&mut self, spec: UnitSpec, view: View) {
        let volume = spec.volume;
        let _ = self.units.insert(volume, Unit { spec, view });
    }

    /// Opens a nexus. Its first command to each logical unit reports POWER ON (29h/00h).
    pub fn open_nexus(&mut self, spec: NexusSpec) -> NexusKey {
        let mut luns: Vec<LunState> = spec.luns.iter().map(|_| self.new_lun()).collect();
        for state in &mut luns {
            state.attentions.raise(Sense::POWER_ON.code);
        }
        self.place(NexusState::new(spec, luns))
    }

    fn new_lun(&mut self) -> LunState {
        self.lun_serial = self.lun_serial.wrapping_add(1);
        LunState::new(self.lun_serial)
    }

    fn place(&mut self, state: NexusState) -> NexusKey {
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
    pub(crate) fn open_agent(&mut self, of: NexusKey) -> NexusKey {
        let spec = NexusSpec { luns: Vec::new(), ..self.nexus(of).clone() };
        self.place(NexusState::new(spec, Vec::new()))
    }

    pub(crate) fn close_agent(&mut self, key: NexusKey) {
        if let Some(place) = self.nexuses.get_mut(key.0 as usize) {
            *place = None;
        }
    }

    /// Enters a task of the server's own, that goes on whatever becomes of the task at `slot` or of its
    /// nexus. `None`: too many tasks are in work.
    pub(crate) fn open_own(&mut self, slot: u32, job: Job) -> Option<u32> {
        let Task { key, volume, command, .. } = *self.tasks.get(slot);
        let agent = self.open_agent(key.nexus);
        let own = self.tasks.insert(Task {
            key: TaskKey { nexus: agent, tag: 0 },
            volume,
            io_volume: volume,
            lun: 0,
            serial: 0,
            attribute: Attribute::Simple,
            command,
            data_in: 0,
            data_out: 0,
            read_only: false,
            phase: Phase::Ask,
            ending: Ending::No,
            job,
        });
        if own.is_none() {
            self.close_agent(agent);
        }
        own
    }

    /// A task of the server's own is over.
    pub(crate) fn close_own(&mut self, slot: u32) -> Job {
        let own = self.tasks.remove(slot);
        self.close_agent(own.key.nexus);
        own.job
    }

    /// Forgets a nexus.
    ///
    /// # Panics
    /// If one of its tasks has not ended: the caller aborts them first.
    pub fn close_nexus(&mut self, key: NexusKey) {
        let live = self.tasks.iter().any(|(_, task)| task.key.nexus == key);
        assert!(!live, "a nexus is closed after its tasks");
        self.managing.retain(|pending| pending.function.nexus != key);
        if let Some(agent) = self.state(key).agent {
            self.close_agent(agent);
        }
        if let Some(place) = self.nexuses.get_mut(key.0 as usize) {
            *place = None;
        }
    }

    /// Who a nexus is.
    pub fn nexus(&self, key: NexusKey) -> &NexusSpec {
        &self.state(key).spec
    }

    #[expect(clippy::expect_used, reason = "a key names its nexus until the nexus and its tasks are gone")]
    pub(crate) fn state(&self, key: NexusKey) -> &NexusState {
        self.nexuses
            .get(key.0 as usize)
            .and_then(Option::as_ref)
            .expect("a nexus key is used while the nexus is open")
    }

    #[expect(clippy::expect_used, reason = "a key names its nexus until the nexus and its tasks are gone")]
    pub(crate) fn state_mut(&mut self, key: NexusKey) -> &mut NexusState {
        self.nexuses
            .get_mut(key.0 as usize)
            .and_then(Option::as_mut)
            .expect("a nexus key is used while the nexus is open")
    }

    /// What is kept of a LUN, if neither the nexus nor the LUN has gone meanwhile.
    pub(crate) fn lun_if_open(&mut self, key: NexusKey, lun: u16, serial: u32) -> Option<&mut LunState> {
        self.nexuses.get_mut(key.0 as usize)?.as_mut()?.lun(lun, serial)
    }

    pub(crate) fn unit(&self, volume: VolumeId) -> Option<&Unit> {
        self.units.get(volume)
    }

    /// The logical unit of a task that goes on.
    #[expect(
        clippy::expect_used,
        reason = "when a unit goes, its tasks are told to end, and do nothing more"
    )]
    pub(crate) fn unit_of(&self, slot: u32) -> &Unit {
        let volume = self.tasks.get(slot).volume;
        self.unit(volume).expect("when a unit goes, its tasks are told to end")
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

    /// A command has come.
    pub fn start(&mut self, cx: &mut Cx<'_>, key: TaskKey, arrived: Arrived<'_>) {
        self.pool.get_or_insert_with(|| cx.pool.clone());
        match exec::route(self, key, &arrived) {
            exec::Route::Unit { command, at, attribute } => {
                let task = self.task(key, command, at, attribute, &arrived);
                let Some(slot) = task.and_then(|task| self.tasks.insert(task)) else {
                    return self.answer(key, Reply::plain(Status::TASK_SET_FULL));
                };
                let state = self.state_mut(key.nexus);
                state.remember(key, slot);
                if state.luns.get_mut(at).is_some_and(|lun| lun.order.arrive(slot, attribute)) {
                    exec::start(self, slot);
                }
            }
            exec::Route::Elsewhere { command, place } => {
                exec::identify::elsewhere(self, key, command, place, &arrived);
            }
            exec::Route::Refused(reply) => self.answer(key, reply),
        }
    }

    fn task(
        &self,
        key: TaskKey,
        command: scsi::Command,
        at: usize,
        attribute: Attribute,
        arrived: &Arrived<'_>,
    ) -> Option<Task> {
        let state = self.state(key.nexus);
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
            phase: Phase::Queued,
            ending: Ending::No,
            job: Job::Plain,
        })
    }

    /// Payload that a [`Step::Receive`] asked for is here.
    pub fn data(&mut self, _cx: &mut Cx<'_>, key: TaskKey, _at: u32, data: Sg) {
        let Some(slot) = self.find(key) else { return };
        if self.tasks.get(slot).phase == Phase::Data {
            exec::data(self, slot, data);
        }
    }

    /// An operation has ended.
    pub fn done(&mut self, _cx: &mut Cx<'_>, done: Done) {
        let Some(slot) = self.tasks.find_io(done.id) else { return };
        if self.tasks.get(slot).ending == Ending::No {
            exec::done(self, slot, done);
        } else {
            self.end(slot);
        }
    }

    /// The volume's home has answered a [`Step::Ask`].
    pub fn answered(&mut self, _cx: &mut Cx<'_>, id: AskId, result: Result<(), Refusal>) {
        let Some(slot) = self.tasks.find_io(IoId(id.0)) else {
            return manage::answered(self, id, result);
        };
        if self.tasks.get(slot).ending == Ending::No {
            exec::answered(self, slot, result);
        } else {
            self.end(slot);
        }
    }

    /// A task must end without an answer; [`Step::Retire`] follows.
    pub fn abort(&mut self, key: TaskKey) {
        match self.find(key) {
            Some(slot) => self.stop_all(&[(slot, key)], Ending::Silent),
            None => {
                // A task management function, or a task that was answered in this very turn.
                self.managing.retain(|pending| pending.function != key);
                self.steps.push_back(Step::Retire { task: key });
            }
        }
    }

    /// Tells tasks to end: those that wait for nothing that is out end now.
    pub(crate) fn stop_all(&mut self, victims: &[(u32, TaskKey)], how: Ending) {
        self.stop_each(victims, |_| how);
    }

    /// The same, each in its own way.
    pub(crate) fn stop_each(&mut self, victims: &[(u32, TaskKey)], how: impl Fn(TaskKey) -> Ending) {
        // All are told before one ends, since the end of one can start another.
        let mut told = Vec::with_capacity(victims.len());
        for &(slot, key) in victims {
            let task = self.tasks.get_mut(slot);
            if task.ending == Ending::No {
                task.ending = how(key);
                told.push((slot, key));
            }
        }
        for (slot, key) in told {
            let Some(slot) = self.tasks.check(slot, key) else { continue };
            let task = self.tasks.get(slot);
            let volume = task.io_volume;
            match task.phase {
                Phase::Queued | Phase::Data | Phase::Sanitize => self.end(slot),
                Phase::Io => {
                    let io = self.tasks.io_id(slot);
                    self.steps.push_back(Step::Cancel { volume, io });
                }
                Phase::Ask if task.is_own() => {}
                Phase::Ask => {
                    // Its answer still comes, and ends the task.
                    let (id, volume) = (AskId(self.tasks.io_id(slot).0), task.volume);
                    self.steps.push_back(Step::Ask { volume, id, ask: Ask::Withdraw });
                }
            }
        }
    }

    /// Ends a task that was told to.
    fn end(&mut self, slot: u32) {
        let task = self.tasks.get(slot);
        match task.ending {
            _ if task.is_own() => exec::end_own(self, slot),
            Ending::Check(sense) => self.check(slot, sense),
            Ending::Aborted => self.respond(slot, Reply::plain(Status::TASK_ABORTED)),
            Ending::No | Ending::Silent => self.retire(slot),
        }
    }

    /// The volume has changed: takes the new view over, ends the tasks that the change ends, and
    /// queues what must be reported.
    pub fn adopt(&mut self, volume: VolumeId, adoption: &Adoption) {
        // A reset takes TAS back, but what it ends ends as TAS was before.
        let answered = self.unit(volume).is_some_and(Unit::answers_aborted);
        if let Some(unit) = self.units.get_mut(volume) {
            unit.view = adoption.view.clone();
        }
        manage::adopt(self, volume, adoption, answered);
    }

    /// Serves a volume no more: its tasks end, its LUNs are not there.
    pub fn remove_unit(&mut self, volume: VolumeId) {
        self.units.remove(volume);
        let victims = self.tasks.select(|_, task| task.volume == volume);
        self.stop_all(&victims, Ending::Check(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    }

    /// Changes what a nexus reaches. If the inventory changed, it is told; of a unit whose volume was away, that it
    /// says more of itself now (Linux reads its size and names again for that). Tasks that came by a LUN that is not
    /// there any more end.
    pub fn change_luns(&mut self, key: NexusKey, luns: Vec<LunEntry>) {
        if self.nexus(key).luns == luns {
            return;
        }
        let fresh: Vec<LunState> = luns.iter().map(|_| self.new_lun()).collect();
        let state = self.state_mut(key);
        let old: Vec<(LunEntry, LunState)> =
            std::mem::take(&mut state.spec.luns).into_iter().zip(std::mem::take(&mut state.luns)).collect();
        state.luns = fresh;
        for (known, lun_state) in old {
            let mut slots = luns.iter().zip(&mut state.luns);
            let Some((new, slot)) = slots.find(|(new, _)| new.lun == known.lun) else { continue };
            if new.volume == known.volume {
                *slot = lun_state;
            } else if known.volume == VolumeId::AWAY {
                slot.attentions.raise(Sense::INQUIRY_DATA_HAS_CHANGED.code);
            }
        }
        for lun in &mut state.luns {
            lun.attentions.raise(Sense::REPORTED_LUNS_DATA_HAS_CHANGED.code);
        }
        state.spec.luns = luns;
        self.follow_luns(key);
    }

    fn follow_luns(&mut self, key: NexusKey) {
        let mut gone = Vec::new();
        for (slot, task) in self.tasks.select(|_, task| task.key.nexus == key) {
            let Task { lun, serial, .. } = *self.tasks.get(slot);
            let state = self.state(key);
            let place =
                state.find(lun).filter(|at| state.luns.get(*at).is_some_and(|lun| lun.serial == serial));
            match place.and_then(|at| state.spec.luns.get(at)).map(|entry| entry.read_only) {
                Some(read_only) => self.tasks.get_mut(slot).read_only = read_only,
                None => gone.push((slot, task)),
            }
        }
        self.stop_all(&gone, Ending::Check(Sense::LOGICAL_UNIT_NOT_SUPPORTED));
    }

    pub(crate) fn find(&self, key: TaskKey) -> Option<u32> {
        let slot = self.nexuses.get(key.nexus.0 as usize)?.as_ref()?.recall(key)?;
        self.tasks.check(slot, key)
    }

    /// Ends a task with an answer.
    pub(crate) fn respond(&mut self, slot: u32, mut reply: Reply) {
        reply.descriptor = self.unit(self.tasks.get(slot).volume).is_some_and(Unit::descriptor_sense);
        let task = self.remove(slot);
        reply.fence |= exec::ends_others_tasks(&task.command);
        self.answer(task.key, reply);
        manage::ended(self, task.key);
        self.start_ready();
    }

    /// Ends a task without one.
    pub(crate) fn retire(&mut self, slot: u32) {
        let task = self.remove(slot);
        self.steps.push_back(Step::Retire { task: task.key });
        manage::ended(self, task.key);
        self.start_ready();
    }

    fn remove(&mut self, slot: u32) -> Task {
        exec::copy::forget(self, slot);
        let task = self.tasks.remove(slot);
        let state = self.nexuses.get_mut(task.key.nexus.0 as usize).and_then(Option::as_mut);
        if let Some(LunState { order, .. }) = state.and_then(|state| state.lun(task.lun, task.serial)) {
            order.leave(slot, task.attribute);
            while let Some(next) = order.next() {
                self.ready.push_back((next, self.tasks.get(next).key));
            }
        }
        task
    }

    /// Starts the tasks whose turn has come: in a loop, since each may end at once and let others in.
    fn start_ready(&mut self) {
        if self.ready.is_empty() || std::mem::replace(&mut self.starting, true) {
            return;
        }
        while let Some((slot, key)) = self.ready.pop_front() {
            let Some(slot) = self.tasks.check(slot, key) else { continue };
            if self.tasks.get(slot).ending == Ending::No {
                exec::start(self, slot);
            } else {
                self.end(slot);
            }
        }
        self.starting = false;
    }

    pub(crate) fn answer(&mut self, task: TaskKey, reply: Reply) {
        self.steps.push_back(Step::Respond { task, reply });
    }

    /// Ends a task with CHECK CONDITION.
    pub(crate) fn check(&mut self, slot: u32, sense: Sense) {
        self.respond(slot, Reply::check(sense));
    }

    /// Ends a task that the volume refused.
    pub(crate) fn refuse(&mut self, slot: u32, refusal: Refusal) {
        self.respond(slot, status::refused(refusal));
    }

    /// Asks the initiator for the first `len` bytes of a task's payload.
    pub(crate) fn receive(&mut self, slot: u32, len: u32) {
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::Data;
        self.steps.push_back(Step::Receive { task: task.key, at: 0, len });
    }

    /// Starts an operation for a task on its own volume.
    pub(crate) fn submit(&mut self, slot: u32, op: Op, payload: Payload, want: u32) {
        let task = self.tasks.get(slot);
        if task.read_only && op.is_write() {
            return self.refuse(slot, Refusal::ReadOnly);
        }
        let (key, volume) = (task.key, task.volume);
        self.submit_as(slot, key, volume, op, payload, want);
    }

    /// Starts an operation for a task, on any volume, in the name of `name`.
    pub(crate) fn submit_as(
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
        task.phase = Phase::Io;
        task.io_volume = volume;
        let epoch = self.unit(volume).map_or_else(Default::default, |unit| unit.view.epoch);
        self.steps.push_back(Step::Io { task: name, volume, io: Io { id, epoch, op, payload }, want });
    }

    /// Asks the home of a task's volume. Who may only read changes nothing for others.
    pub(crate) fn ask(&mut self, slot: u32, ask: Ask) {
        if self.tasks.get(slot).read_only && changes_others(&ask) {
            return self.refuse(slot, Refusal::ReadOnly);
        }
        let id = AskId(self.tasks.io_id(slot).0);
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::Ask;
        self.steps.push_back(Step::Ask { volume: task.volume, id, ask });
    }
}

/// Whether an ask of a host changes what the volume is for others, or what may be read of it.
fn changes_others(ask: &Ask) -> bool {
    match ask {
        Ask::SetAccess { .. } | Ask::WriteProtectByHost { .. } | Ask::HostSettings { .. } => true,
        Ask::Eject { .. } | Ask::Load { .. } | Ask::Stop | Ask::Start | Ask::SanitizeForgive => true,
        Ask::PreventRemoval { on, .. } => *on,
        Ask::Resize(_) | Ask::WriteProtect(_) | Ask::BackingReadOnly(_) | Ask::Remove => true,
        // The home judges these by the nexus that they name.
        Ask::Reserve { .. } | Ask::MarkBad { .. } | Ask::ClearBad { .. } => false,
        // A sanitize was judged as a write before it began; the others end tasks, as SAM has it.
        Ask::SanitizeStart | Ask::SanitizeEnd { .. } => false,
        Ask::Reset | Ask::ClearTasks { .. } | Ask::AbortTasks { .. } => false,
        Ask::NexusLost(_) | Ask::Withdraw => false,
    }
}
