//! The command router and the life of a command.
//!
//! A command waits for payload, for an operation, for the volume's home, or for the other half of
//! its pair: for exactly one of them. Whatever brings it on ends in another wait or in its one
//! ending step. An aborted command ends when what it waits for is back, because memory that is out
//! cannot be taken back by force.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use buf::{Cx, Payload, Pool, Sg};
use nvme::{Completion, Sqe, Status};
use volume::{
    Abort, AskId, ByVolume, Done, Epoch, Facts, Io, IoId, Nexus, Op, Refusal, Shard, Shared, Time, View,
    ViewUpdate, VolumeId, VolumeRequest,
};

use crate::admin;
use crate::controller::Controllers;
use crate::exec::{self, fused};
use crate::job::Job;
use crate::queue::Queue;
use crate::queue_message::{Counters, Failure, Report};
use crate::spec::{NamespaceEntry, QueueSpec};
use crate::status;
use crate::step::{CommandKey, ComputeId, QueueKey, Step};
use crate::task::{Ending, Phase, Tally, Task, Tasks};

/// What a volume is, beyond its view.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// What it says of itself.
    pub facts: Arc<Facts>,
    /// What its gates share.
    pub shared: Shared,
}

/// A volume on this shard.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) info: VolumeInfo,
    pub(crate) view: View,
    /// The reservation report of this view, once it was asked for.
    pub(crate) report: Option<Sg>,
}

/// The NVMe server of one shard.
#[derive(Debug)]
pub struct Server {
    pub(crate) shard: Shard,
    volumes: ByVolume<Volume>,
    queues: Vec<Option<Queue>>,
    pub(crate) tasks: Tasks,
    pub(crate) steps: VecDeque<Step>,
    pub(crate) controllers: Controllers,
    /// Queues that wait for what is being computed, and how much there ever was.
    pub(crate) computing: HashMap<ComputeId, QueueKey>,
    pub(crate) computations: u64,
    /// When the current call came.
    pub(crate) now: Time,
    /// The shard's memory, from the first queue on.
    pool: Option<Pool>,
}

impl Server {
    /// The server of this shard, without volumes and queues.
    pub fn new(shard: Shard) -> Self {
        Server {
            shard,
            volumes: ByVolume::default(),
            queues: Vec::new(),
            tasks: Tasks::default(),
            steps: VecDeque::new(),
            controllers: Controllers::default(),
            computing: HashMap::new(),
            computations: 0,
            now: Time(0),
            pool: None,
        }
    }

    /// The shard that it serves.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// What to do next.
    #[must_use]
    #[inline]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Makes a volume known to this shard. One that is known already stays as it is.
    pub fn add_volume(&mut self, info: VolumeInfo, view: View) {
        let volume = info.facts.id;
        let _ = self.volumes.insert(volume, Volume { info, view, report: None });
    }

    /// Serves a volume no more: commands on it end, its namespaces are not there.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.volumes.remove(volume);
        let victims = self.tasks.select(|_, task| task.volume == volume && task.nsid != 0);
        self.stop_all(&victims, Ending::Status(Status::INVALID_NAMESPACE.final_()));
    }

    /// What is known of a volume of this shard.
    pub fn volume_info(&self, volume: VolumeId) -> Option<&VolumeInfo> {
        Some(&self.volume(volume)?.info)
    }

    #[inline]
    pub(crate) fn volume(&self, volume: VolumeId) -> Option<&Volume> {
        self.volumes.get(volume)
    }

    /// Keeps a volume's reservation report until the volume changes, or no report.
    pub(crate) fn keep_report(&mut self, volume: VolumeId, report: Option<Sg>) {
        if let Some(known) = self.volumes.get_mut(volume) {
            known.report = report;
        }
    }

    /// Opens a queue. An I/O queue's controller is told.
    pub fn open_queue(&mut self, cx: &mut Cx<'_>, spec: QueueSpec) -> QueueKey {
        self.now = cx.now;
        self.pool.get_or_insert_with(|| cx.pool.clone());
        let at = match self.queues.iter().position(Option::is_none) {
            Some(at) => at,
            None => {
                self.queues.push(None);
                self.queues.len() - 1
            }
        };
        let is_admin = spec.qid == 0;
        if let Some(place) = self.queues.get_mut(at) {
            *place = Some(Queue::new(spec));
        }
        let key = QueueKey(at as u32);
        self.guard(key);
        if !is_admin {
            self.note_opened(key);
        }
        key
    }

    /// Ends a queue: all its commands end by [`Step::Retire`], and with the last of them its key.
    /// Does nothing if it is ending.
    pub fn close_queue(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        self.now = cx.now;
        let Some(queue) = self.queues.get_mut(key.0 as usize).and_then(Option::as_mut) else { return };
        if std::mem::replace(&mut queue.closing, true) {
            return;
        }
        let QueueSpec { cntlid, qid, .. } = queue.spec;
        self.unguard(key);
        if qid == 0 {
            self.admin_closed(cntlid, key);
        }
        self.stop_all(&self.commands_of(key, |_| true), Ending::Silent);
        self.forget_if_done(key);
    }

    fn forget_if_done(&mut self, key: QueueKey) {
        let done = |queue: &mut Queue| queue.closing && queue.live == 0;
        let place = self.queues.get_mut(key.0 as usize);
        let Some(mut queue) = place.and_then(|place| place.take_if(done)) else { return };
        if queue.spec.qid != 0 {
            let report = queue.report(self.now);
            self.note_gone(key, &queue.spec, !queue.ended, report);
        }
    }

    /// Who sends by a queue.
    #[inline]
    pub fn nexus(&self, key: QueueKey) -> &Nexus {
        &self.queue(key).spec.nexus
    }

    /// Whether a queue's controller has a namespace that is this volume.
    pub fn reaches(&self, key: QueueKey, volume: VolumeId) -> bool {
        self.queue(key).spec.namespaces.iter().any(|entry| entry.volume == volume)
    }

    /// What a queue has done since it was opened; zeroes if it is gone.
    pub fn counters(&self, key: QueueKey) -> Counters {
        let queue = self.queues.get(key.0 as usize).and_then(Option::as_ref);
        queue.map_or_else(Counters::default, |queue| queue.counters)
    }

    /// What a queue has done so far, and what failed since it was asked last.
    pub fn report(&mut self, key: QueueKey) -> Report {
        let now = self.now;
        self.queue_mut(key).report(now)
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "a key names its queue until the queue and its commands are gone")]
    pub(crate) fn queue(&self, key: QueueKey) -> &Queue {
        self.queues
            .get(key.0 as usize)
            .and_then(Option::as_ref)
            .expect("a queue key is used while the queue is open")
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "a key names its queue until the queue and its commands are gone")]
    pub(crate) fn queue_mut(&mut self, key: QueueKey) -> &mut Queue {
        self.queues
            .get_mut(key.0 as usize)
            .and_then(Option::as_mut)
            .expect("a queue key is used while the queue is open")
    }

    /// A queue, if it is open.
    pub(crate) fn open_queue_mut(&mut self, key: QueueKey) -> Option<&mut Queue> {
        self.queues.get_mut(key.0 as usize)?.as_mut()
    }

    /// Notes a failure of a command that was never one of the tasks: with the controller if it came by
    /// the admin queue.
    pub(crate) fn note_failure(&mut self, key: QueueKey, failure: Failure) {
        let QueueSpec { cntlid, qid, .. } = self.queue(key).spec;
        match self.controllers.find_mut(cntlid) {
            Some(controller) if qid == 0 => controller.errors.add(0, vec![failure], 1),
            Some(_) | None => self.queue_mut(key).fail(failure),
        }
    }

    /// Changes which namespaces a queue reaches: commands on those that are gone end.
    pub(crate) fn change_queue_namespaces(&mut self, key: QueueKey, namespaces: Arc<[NamespaceEntry]>) {
        let Some(queue) = self.queues.get_mut(key.0 as usize).and_then(Option::as_mut) else { return };
        queue.spec.namespaces = namespaces;
        let mut gone = Vec::new();
        for (slot, command) in self.commands_of(key, |task| task.nsid != 0) {
            let (nsid, volume) = (self.tasks.get(slot).nsid, self.tasks.get(slot).volume);
            match self.queue(key).spec.namespace(nsid) {
                Some(entry) if entry.volume == volume => self.tasks.get_mut(slot).read_only = entry.read_only,
                Some(_) | None => gone.push((slot, command)),
            }
        }
        self.stop_all(&gone, Ending::Status(Status::INVALID_NAMESPACE.final_()));
    }

    /// The shard's memory.
    #[expect(
        clippy::expect_used,
        reason = "every queue is opened with the memory, and commands come by queues"
    )]
    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("a queue was opened with the memory")
    }

    /// A command has come; `data_out`: how many bytes of data its SGL offers the controller to take.
    #[inline]
    pub fn start(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) {
        self.now = cx.now;
        if cx.now >= self.queue(key.queue).attention && self.attend(cx, key, sqe, data_out) {
            return;
        }
        let queue = self.queue(key.queue);
        if queue.half.is_some() || queue.closing || sqe.flags & 3 != 0 {
            return fused::start(self, key, sqe, data_out);
        }
        exec::start(self, key, sqe, data_out);
    }

    /// Payload that a [`Step::Receive`] asked for is here, all of it.
    #[inline]
    pub fn data(&mut self, cx: &mut Cx<'_>, key: CommandKey, _at: u32, data: Sg) {
        self.now = cx.now;
        let Some(slot) = self.find(key) else { return admin::data(self, cx, key, &data) };
        if self.tasks.get(slot).phase == Phase::Data {
            exec::data(self, slot, data);
        }
    }

    /// There may be memory for the answer of a command, for which [`Step::Room`] asked; if there is not,
    /// it asks again.
    pub fn retry(&mut self, cx: &mut Cx<'_>, key: CommandKey) {
        self.now = cx.now;
        match self.find(key) {
            Some(slot) => exec::retry(self, slot),
            None => admin::retry(self, cx, key),
        }
    }

    pub(crate) fn ask_for_room(&mut self, command: CommandKey, len: u32) {
        let class = admin::class_of(len as usize);
        self.steps.push_back(Step::Room { command, class, len });
    }

    /// An operation has ended.
    #[inline]
    pub fn done(&mut self, cx: &mut Cx<'_>, done: Done) {
        self.now = cx.now;
        let Some(slot) = self.tasks.find_io(done.id) else { return };
        if self.tasks.get(slot).ending == Ending::No {
            exec::done(self, slot, done);
        } else {
            self.end(slot);
        }
    }

    /// The volume's home has answered a [`Step::VolumeRequest`].
    pub fn answered(&mut self, cx: &mut Cx<'_>, id: AskId, result: Result<(), Refusal>) {
        self.now = cx.now;
        let Some(slot) = self.tasks.find_io(IoId(id.0)) else {
            return admin::answered(self, cx, id, result);
        };
        match (self.tasks.get(slot).ending, result) {
            (Ending::No, Ok(())) => self.complete(slot, Completion::SUCCESS),
            (Ending::No, Err(refusal)) => self.complete(slot, status::refused(refusal).into()),
            (Ending::Silent | Ending::Status(_), _) => self.end(slot),
        }
    }

    /// A command must end without an answer; [`Step::Retire`] follows.
    pub fn abort(&mut self, key: CommandKey) {
        match self.find(key) {
            Some(slot) => self.stop_all(&[(slot, key)], Ending::Silent),
            // It was answered in this very turn.
            None if admin::retire(self, key) => {}
            None => self.steps.push_back(Step::Retire { command: key }),
        }
    }

    /// Ends a queue's command of this CID with Command Abort Requested, for the host's Abort. False:
    /// there is none, or it is ending already, or the volume's home has it, which carries it out.
    pub fn abort_cid(&mut self, queue: QueueKey, cid: u16) -> bool {
        let victims = self.commands_of(queue, |task| {
            task.cid == cid && task.ending == Ending::No && task.phase != Phase::VolumeRequest
        });
        self.stop_all(&victims, Ending::Status(Status::ABORT_REQUESTED));
        !victims.is_empty()
    }

    /// The commands of a queue for which `which` holds, by slot and name. As many are looked at as the queue has
    /// entries, however many others the shard executes: a host may abort commands without end.
    pub(crate) fn commands_of(&self, key: QueueKey, which: impl Fn(&Task) -> bool) -> Vec<(u32, CommandKey)> {
        let Some(queue) = self.queues.get(key.0 as usize).and_then(Option::as_ref) else { return Vec::new() };
        let mut found: Vec<(u32, CommandKey)> = queue
            .slots()
            .filter_map(|slot| Some((slot, self.tasks.holds(slot)?)))
            .filter(|(_, task)| task.key.queue == key && which(task))
            .map(|(slot, task)| (slot, task.key))
            .collect();
        found.sort_unstable_by_key(|(slot, _)| *slot);
        // Where a command stood before may be another of the same queue's place now.
        found.dedup();
        found
    }

    /// The volume has changed: takes the new view over, and ends the commands that the change ends.
    pub fn adopt(&mut self, volume: VolumeId, adoption: &ViewUpdate) {
        if let Some(known) = self.volumes.get_mut(volume) {
            known.view = adoption.view.clone();
            known.report = None;
        }
        let asked = adoption.asked.filter(|(shard, _)| *shard == self.shard).map(|(_, id)| IoId(id.0));
        let none = adoption.abort == Abort::Nobody;
        let victims = self.tasks.select_unless(none, |slot, task| {
            let asks = task.phase == Phase::VolumeRequest && asked == Some(self.tasks.io_id(slot));
            exec::volume_of_io(self, slot) == volume
                && !asks
                && adoption.aborts(&self.nexus(task.key.queue).identity)
        });
        self.stop_all(&victims, Ending::Status(Status::PREEMPT_ABORT.final_()));
        self.notify(volume, adoption);
    }

    #[inline]
    fn find(&self, key: CommandKey) -> Option<u32> {
        let slot = self.queues.get(key.queue.0 as usize)?.as_ref()?.recall(key)?;
        self.tasks.check(slot, key)
    }

    /// Tells commands to end: those that wait for nothing that is out end now.
    pub(crate) fn stop_all(&mut self, victims: &[(u32, CommandKey)], how: Ending) {
        // All are told before one ends, since the end of one half of a pair is the other's.
        let mut told = Vec::with_capacity(victims.len());
        for &(slot, key) in victims {
            let task = self.tasks.get_mut(slot);
            if task.ending == Ending::No {
                task.ending = how;
                told.push((slot, key));
            }
        }
        for (slot, key) in told {
            if self.tasks.check(slot, key).is_some() {
                self.stop(slot);
            }
        }
    }

    /// Brings a command that was told to end to its end, if nothing of it is out.
    pub(crate) fn stop(&mut self, slot: u32) {
        match self.tasks.get(slot).phase {
            Phase::Data => self.end(slot),
            Phase::Mate => fused::stop(self, slot),
            Phase::Io => {
                let io = self.tasks.io_id(slot);
                let volume = exec::volume_of_io(self, slot);
                self.steps.push_back(Step::Cancel { volume, io });
            }
            Phase::VolumeRequest => {}
        }
    }

    /// Ends a command that was told to.
    pub(crate) fn end(&mut self, slot: u32) {
        fused::part(self, slot);
        match self.tasks.get(slot).ending {
            Ending::Status(status) => self.complete(slot, status.into()),
            Ending::No | Ending::Silent => {
                let command = self.tasks.get(slot).key;
                self.remove(slot);
                self.steps.push_back(Step::Retire { command });
                self.forget_if_done(command.queue);
            }
        }
    }

    /// Makes a command a task. `Err`: it is one too many.
    #[inline]
    pub(crate) fn open(
        &mut self,
        key: CommandKey,
        sqe: &Sqe,
        entry: &NamespaceEntry,
        bytes: u32,
        job: Job,
    ) -> Result<u32, Status> {
        let task = Task {
            key,
            volume: entry.volume,
            nsid: entry.nsid,
            lba: exec::first_block(sqe),
            bytes,
            cid: sqe.cid.get(),
            phase: Phase::Data,
            tally: Tally::No,
            read_only: entry.read_only,
            ending: Ending::No,
            job,
        };
        let slot = self.tasks.insert(task).ok_or(Status::COMMAND_INTERRUPTED)?;
        let now = self.now;
        self.queue_mut(key.queue).remember(now, key, slot);
        Ok(slot)
    }

    /// Takes a command out. It is not given back, since it is large to move.
    #[inline]
    fn remove(&mut self, slot: u32) {
        let Task { key, cid, .. } = *self.tasks.get(slot);
        self.tasks.remove(slot);
        let now = self.now;
        let queue = self.queue_mut(key.queue);
        queue.forget(now);
        if !queue.aborting.is_empty() {
            self.note_aborted(key.queue, cid);
        }
    }

    /// Ends a command with an answer.
    #[inline]
    pub(crate) fn complete(&mut self, slot: u32, completion: Completion) {
        let task = self.tasks.get(slot);
        let command = task.key;
        // A command's queue is open: this is `queue_mut`, which would borrow the task too.
        if let Some(queue) = self.queues.get_mut(command.queue.0 as usize).and_then(Option::as_mut) {
            queue.count(self.now, task, completion);
        }
        self.remove(slot);
        let completion = self.delayed(command.queue, completion);
        self.steps.push_back(Step::Respond { command, completion });
        if self.queue(command.queue).closing {
            self.forget_if_done(command.queue);
        }
    }

    /// Answers a command that never became a task.
    pub(crate) fn refuse(&mut self, command: CommandKey, sqe: &Sqe, status: Status) {
        let (nsid, lba) = (sqe.nsid.get(), exec::first_block(sqe));
        let failure = Failure { at: self.now, cid: sqe.cid.get(), status, lba, nsid };
        self.queue_mut(command.queue).fail(failure);
        let completion = self.delayed(command.queue, status.into());
        self.steps.push_back(Step::Respond { command, completion });
    }

    /// What passes by itself is to be tried again after a delay, by hosts that know of delays.
    pub(crate) fn delayed(&self, key: QueueKey, completion: Completion) -> Completion {
        if completion.status != Status::COMMAND_INTERRUPTED {
            return completion;
        }
        let spec = &self.queue(key).spec;
        let delays = match self.controllers.find(spec.cntlid) {
            Some(controller) if spec.qid == 0 => controller.features.delays_retries(),
            Some(_) | None => spec.delays_retries,
        };
        let status = if delays { completion.status.after_first_delay() } else { completion.status };
        Completion { status, ..completion }
    }

    /// Asks the host for all of a command's payload: `len` bytes.
    #[inline]
    pub(crate) fn receive(&mut self, slot: u32, len: u32) {
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::Data;
        self.steps.push_back(Step::Receive { command: task.key, at: 0, len });
    }

    /// Starts an operation for a command on its own volume.
    #[inline]
    pub(crate) fn submit(&mut self, slot: u32, op: Op, payload: Payload, want: u32) {
        let task = self.tasks.get(slot);
        if task.read_only && op.is_write() {
            return self.complete(slot, status::refused(Refusal::ReadOnly).into());
        }
        let (volume, to_host) = (task.volume, task.job.reads_for_host());
        self.submit_on(slot, volume, op, payload, want, to_host);
    }

    /// Starts an operation for a command on any volume.
    #[inline]
    pub(crate) fn submit_on(
        &mut self,
        slot: u32,
        volume: VolumeId,
        op: Op,
        payload: Payload,
        want: u32,
        to_host: bool,
    ) {
        let id = self.tasks.io_id(slot);
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::Io;
        let io = Io { id, epoch: Epoch::default(), op, payload };
        self.steps.push_back(Step::Io { command: task.key, volume, io, want, to_host });
    }

    /// Asks the home of a command's volume.
    pub(crate) fn ask(&mut self, slot: u32, ask: VolumeRequest) {
        let id = AskId(self.tasks.io_id(slot).0);
        let task = self.tasks.get_mut(slot);
        task.phase = Phase::VolumeRequest;
        self.steps.push_back(Step::VolumeRequest { volume: task.volume, id, ask });
    }
}
