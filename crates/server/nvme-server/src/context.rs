//! The volumes, queues and commands of a shard, and the life of a command.
//!
//! A command waits for exactly one thing: payload, an operation, the volume's home, or the other half of its
//! pair. Each event leads to another wait or to the one ending step. An aborted command ends when the memory
//! that it has lent is back, because that cannot be forced.

mod messages;

use std::collections::VecDeque;
use std::sync::Arc;

use buf::{MemoryClass, Payload, Pool, Sg};
use nvme::{Completion, Opcode, Sqe, Status};
use volume::{
    AbortScope, Epoch, Io, IoId, Op, Refusal, RequestId, Requester, ShardId, SharedGateState, TaskTable,
    Time, View, ViewUpdate, VolumeFacts, VolumeId, VolumeMap, VolumeRequest,
};

use crate::after_wait::{AfterWait, FusedHalf};
use crate::queue::Queues;
use crate::queue_message::{CommandFailure, QueueReport};
use crate::spec::{NamespaceEntry, QueueSpec};
use crate::status;
use crate::step::{CommandKey, QueueKey, Step};
use crate::task::{CountedAs, Task, TaskEnding, TaskPhase};

/// What a volume is, beyond its view.
#[derive(Clone, Debug)]
pub struct VolumeInfo {
    /// What it says of itself.
    pub facts: Arc<VolumeFacts>,
    /// What its gates share.
    pub shared: SharedGateState,
}

/// A volume on this shard.
#[derive(Debug)]
pub(crate) struct ServedVolume {
    pub(crate) info: VolumeInfo,
    pub(crate) view: View,
    /// The reservation report of this view, once it was asked for.
    pub(crate) report: Option<Sg>,
}

/// What executes the commands of I/O queues. It knows no controller: a queue tells its own by messages.
#[derive(Debug)]
pub(crate) struct ExecContext {
    pub(crate) shard: ShardId,
    pub(crate) volumes: VolumeMap<ServedVolume>,
    pub(crate) queues: Queues,
    pub(crate) tasks: TaskTable<Task>,
    pub(crate) steps: VecDeque<Step>,
    /// When the current call came.
    pub(crate) now: Time,
    /// The shard's memory, from the first queue on.
    pool: Option<Pool>,
}

impl ExecContext {
    pub(crate) fn new(shard: ShardId) -> Self {
        ExecContext {
            shard,
            volumes: VolumeMap::default(),
            queues: Queues::default(),
            tasks: TaskTable::default(),
            steps: VecDeque::new(),
            now: Time(0),
            pool: None,
        }
    }

    /// Makes room for a queue. Its controller does not know yet.
    pub(crate) fn insert_queue(&mut self, pool: &Pool, spec: QueueSpec) -> QueueKey {
        self.pool.get_or_insert_with(|| pool.clone());
        self.queues.insert(spec)
    }

    /// The volume has changed: takes the new view over, and ends the commands that the change ends.
    pub(crate) fn update_view(&mut self, volume: VolumeId, update: &ViewUpdate) {
        if let Some(known) = self.volumes.get_mut(volume) {
            known.view = update.view.clone();
            known.report = None;
        }
        let asked = update.asked.filter(|(shard, _)| *shard == self.shard).map(|(_, id)| IoId(id.0));
        let none = update.abort == AbortScope::Nobody;
        let victims = self.tasks.tasks_matching_unless(none, |slot, task| {
            let requests = task.phase == TaskPhase::VolumeRequest && asked == Some(self.tasks.io_id(slot));
            task.volume_of_io() == volume
                && !requests
                && update.aborts_tasks_of(&self.nexus(task.key.queue).identity)
        });
        self.terminate_tasks(&victims, TaskEnding::Status(Status::PREEMPT_ABORT.with_do_not_retry()));
    }

    /// The volume's home has answered a command's `Step::VolumeRequest`.
    pub(crate) fn handle_volume_answer(&mut self, slot: u32, result: Result<(), Refusal>) {
        match (self.tasks.get(slot).ending, result) {
            (TaskEnding::No, Ok(())) if matches!(self.tasks.get(slot).job, AfterWait::Report) => {
                self.tasks.get_mut(slot).phase = TaskPhase::Data;
                crate::exec::retry_answer(self, slot);
            }
            (TaskEnding::No, Ok(())) => self.complete_task(slot, Completion::SUCCESS),
            (TaskEnding::No, Err(refusal)) => self.complete_task(slot, status::for_refusal(refusal).into()),
            (TaskEnding::Silent | TaskEnding::Status(_), _) => self.finish_terminated(slot),
        }
    }

    /// Serves a volume no more: commands on it end, its namespaces are not there.
    pub(crate) fn remove_volume(&mut self, volume: VolumeId) {
        self.volumes.remove(volume);
        let victims = self.tasks.tasks_matching(|_, task| task.volume == volume && task.nsid != 0);
        self.terminate_tasks(&victims, TaskEnding::Status(Status::INVALID_NAMESPACE.with_do_not_retry()));
    }

    /// Keeps a volume's reservation report until the volume changes, or no report.
    pub(crate) fn cache_reservation_report(&mut self, volume: VolumeId, report: Option<Sg>) {
        if let Some(known) = self.volumes.get_mut(volume) {
            known.report = report;
        }
    }

    pub(crate) fn remove_queue_if_done(&mut self, key: QueueKey) {
        let Some(mut queue) = self.queues.remove_if_done(key) else { return };
        if queue.spec.qid != 0 {
            let report = queue.take_report(self.now);
            self.notify_queue_gone(key, &queue.spec, !queue.ended, report);
        }
    }

    /// Who sends by a queue.
    #[inline]
    pub(crate) fn nexus(&self, key: QueueKey) -> &Requester {
        &self.queues.get(key).spec.nexus
    }

    /// What a queue has done so far, and what failed since it was asked last.
    pub(crate) fn take_queue_report(&mut self, key: QueueKey) -> QueueReport {
        let now = self.now;
        self.queues.get_mut(key).take_report(now)
    }

    /// Changes which namespaces a queue reaches: commands on those that are gone end.
    pub(crate) fn change_queue_namespaces(&mut self, key: QueueKey, namespaces: Arc<[NamespaceEntry]>) {
        let Some(queue) = self.queues.find_mut(key) else { return };
        queue.spec.namespaces = namespaces;
        let mut gone = Vec::new();
        for (slot, command) in self.commands_of(key, |task| task.nsid != 0) {
            let (nsid, volume) = (self.tasks.get(slot).nsid, self.tasks.get(slot).volume);
            match self.queues.get(key).spec.namespace(nsid) {
                Some(entry) if entry.volume == volume => self.tasks.get_mut(slot).read_only = entry.read_only,
                Some(_) | None => gone.push((slot, command)),
            }
        }
        self.terminate_tasks(&gone, TaskEnding::Status(Status::INVALID_NAMESPACE.with_do_not_retry()));
    }

    /// The shard's memory.
    #[expect(
        clippy::expect_used,
        reason = "every queue is opened with the memory, and commands come by queues"
    )]
    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("a queue was opened with the memory")
    }

    pub(crate) fn await_memory(&mut self, command: CommandKey, len: u32) {
        let class = memory_class(len as usize);
        self.steps.push_back(Step::AwaitMemory { command, class, len });
    }

    /// Ends a queue's command of this CID with Command Abort Requested, for the host's Abort. False:
    /// there is none, or it is ending already, or the volume's home has it, which carries it out.
    pub(crate) fn abort_cid(&mut self, queue: QueueKey, cid: u16) -> bool {
        let victims = self.commands_of(queue, |task| {
            task.cid == cid && task.ending == TaskEnding::No && task.phase != TaskPhase::VolumeRequest
        });
        self.terminate_tasks(&victims, TaskEnding::Status(Status::ABORT_REQUESTED));
        !victims.is_empty()
    }

    /// The commands of a queue of which `which` holds, by slot and name. As many are looked at as the queue has
    /// entries, however many others the shard executes: a host may abort commands without end.
    pub(crate) fn commands_of(&self, key: QueueKey, which: impl Fn(&Task) -> bool) -> Vec<(u32, CommandKey)> {
        let Some(queue) = self.queues.find(key) else { return Vec::new() };
        let mut found: Vec<(u32, CommandKey)> = queue
            .command_slots()
            .filter_map(|slot| Some((slot, self.tasks.try_get(slot)?)))
            .filter(|(_, task)| task.key.queue == key && which(task))
            .map(|(slot, task)| (slot, task.key))
            .collect();
        found.sort_unstable_by_key(|(slot, _)| *slot);
        // Where a command stood before may be another of the same queue's place now.
        found.dedup();
        found
    }

    #[inline]
    pub(crate) fn find_command(&self, key: CommandKey) -> Option<u32> {
        let slot = self.queues.find(key.queue)?.slot_of(key)?;
        self.tasks.slot_if_key(slot, key)
    }

    /// Tells commands to end: those that wait for nothing that is out end now.
    pub(crate) fn terminate_tasks(&mut self, victims: &[(u32, CommandKey)], how: TaskEnding) {
        // All are told before one ends, since the end of one half of a pair is the other's.
        let mut told = Vec::with_capacity(victims.len());
        for &(slot, key) in victims {
            let task = self.tasks.get_mut(slot);
            if task.ending == TaskEnding::No {
                task.ending = how;
                told.push((slot, key));
            }
        }
        for (slot, key) in told {
            if self.tasks.slot_if_key(slot, key).is_some() {
                self.continue_termination(slot);
            }
        }
    }

    /// Brings a command that was told to end to its end, if nothing of it is out.
    pub(crate) fn continue_termination(&mut self, slot: u32) {
        match self.tasks.get(slot).phase {
            TaskPhase::Data => self.finish_terminated(slot),
            TaskPhase::Mate => self.terminate_fused_half(slot),
            TaskPhase::Io => {
                let io = self.tasks.io_id(slot);
                let task = self.tasks.get(slot);
                let (command, volume) = (task.key, task.volume_of_io());
                self.steps.push_back(Step::Cancel { command, volume, io });
            }
            TaskPhase::VolumeRequest => {}
        }
    }

    /// Ends a command that was told to.
    pub(crate) fn finish_terminated(&mut self, slot: u32) {
        self.separate_fused_halves(slot);
        match self.tasks.get(slot).ending {
            TaskEnding::Status(status) => self.complete_task(slot, status.into()),
            TaskEnding::No | TaskEnding::Silent => {
                let command = self.tasks.get(slot).key;
                self.remove_task(slot);
                self.steps.push_back(Step::Retire { command });
                self.remove_queue_if_done(command.queue);
            }
        }
    }

    /// Makes a command a task. `Err`: it is one too many.
    #[inline]
    pub(crate) fn insert_task(
        &mut self,
        key: CommandKey,
        sqe: &Sqe,
        entry: &NamespaceEntry,
        bytes: u32,
        job: AfterWait,
    ) -> Result<u32, Status> {
        let task = Task {
            key,
            volume: entry.volume,
            nsid: entry.nsid,
            lba: first_block(sqe),
            bytes,
            cid: sqe.cid.get(),
            phase: TaskPhase::Data,
            tally: CountedAs::No,
            read_only: entry.read_only,
            ending: TaskEnding::No,
            job,
        };
        let slot = self.tasks.insert(task).ok_or(Status::COMMAND_INTERRUPTED)?;
        let now = self.now;
        self.queues.get_mut(key.queue).note_command_started(now, key, slot);
        Ok(slot)
    }

    /// Takes a command out. It is not given back, since it is large to move.
    #[inline]
    fn remove_task(&mut self, slot: u32) {
        let Task { key, cid, .. } = *self.tasks.get(slot);
        self.tasks.remove(slot);
        let now = self.now;
        let queue = self.queues.get_mut(key.queue);
        queue.note_command_ended(now);
        if !queue.aborting.is_empty() {
            self.notify_command_aborted(key.queue, cid);
        }
    }

    /// Ends a command with an answer.
    #[inline]
    pub(crate) fn complete_task(&mut self, slot: u32, completion: Completion) {
        let task = self.tasks.get(slot);
        let command = task.key;
        // A command's queue is open: this is `queue_mut`, which would borrow the task too.
        if let Some(queue) = self.queues.find_mut(command.queue) {
            queue.count_completion(self.now, task, completion);
        }
        self.remove_task(slot);
        let completion =
            status::with_retry_delay(completion, || self.queues.get(command.queue).spec.delays_retries);
        self.steps.push_back(Step::Respond { command, reply: completion });
        if self.queues.get(command.queue).closing {
            self.remove_queue_if_done(command.queue);
        }
    }

    /// Answers a command that never became a task.
    pub(crate) fn refuse_command(&mut self, command: CommandKey, sqe: &Sqe, status: Status) {
        let (nsid, lba) = (sqe.nsid.get(), first_block(sqe));
        let failure = CommandFailure { at: self.now, cid: sqe.cid.get(), status, lba, nsid };
        self.queues.get_mut(command.queue).note_failure(failure);
        let completion =
            status::with_retry_delay(status.into(), || self.queues.get(command.queue).spec.delays_retries);
        self.steps.push_back(Step::Respond { command, reply: completion });
    }

    /// Asks the host for all of a command's payload: `len` bytes.
    #[inline]
    pub(crate) fn request_payload(&mut self, slot: u32, len: u32) {
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::Data;
        let volume = task.job.awaits_blocks().then_some(task.volume);
        self.steps.push_back(Step::Receive { command: task.key, at: 0, len, volume });
    }

    /// Starts an operation for a command on its own volume.
    #[inline]
    pub(crate) fn submit_op(&mut self, slot: u32, op: Op, payload: Payload, want: u32) {
        let task = self.tasks.get(slot);
        if task.read_only && op.is_write() {
            return self.complete_task(slot, status::for_refusal(Refusal::ReadOnly).into());
        }
        let (volume, to_peer) = (task.volume, task.job.is_host_read());
        self.submit_op_on(slot, volume, op, payload, want, to_peer);
    }

    /// Starts an operation for a command on any volume.
    #[inline]
    pub(crate) fn submit_op_on(
        &mut self,
        slot: u32,
        volume: VolumeId,
        op: Op,
        payload: Payload,
        want: u32,
        to_peer: bool,
    ) {
        let id = self.tasks.io_id(slot);
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::Io;
        let io = Io { id, epoch: Epoch::default(), op, payload };
        self.steps.push_back(Step::Io { command: task.key, volume, io, want, to_peer });
    }

    /// Asks the home of a command's volume.
    pub(crate) fn request_volume_change(&mut self, slot: u32, request: VolumeRequest) {
        let id = RequestId(self.tasks.io_id(slot).0);
        let task = self.tasks.get_mut(slot);
        task.phase = TaskPhase::VolumeRequest;
        self.steps.push_back(Step::VolumeRequest { volume: task.volume, id, request });
    }
}

/// The halves of a fused pair end together.
impl ExecContext {
    #[expect(clippy::unreachable, reason = "pairs name halves only, and a half stays one until it ends")]
    pub(crate) fn fused_half(&self, slot: u32) -> &FusedHalf {
        match &self.tasks.get(slot).job {
            AfterWait::Half(half) => half,
            job => unreachable!("{job:?} is no half of a pair"),
        }
    }

    #[expect(clippy::unreachable, reason = "pairs name halves only, and a half stays one until it ends")]
    pub(crate) fn fused_half_mut(&mut self, slot: u32) -> &mut FusedHalf {
        match &mut self.tasks.get_mut(slot).job {
            AfterWait::Half(half) => half,
            job => unreachable!("{job:?} is no half of a pair"),
        }
    }

    /// A half that waits for its mate was told to end.
    fn terminate_fused_half(&mut self, slot: u32) {
        match self.fused_half(slot).mate {
            Some(mate) if self.fused_half(mate).running => {
                // The operation runs under the mate's name; both end with it.
                let (key, failed) =
                    (self.tasks.get(mate).key, Status::ABORTED_FAILED_FUSED.with_do_not_retry());
                self.terminate_tasks(&[(mate, key)], TaskEnding::Status(failed));
            }
            Some(_) | None => self.finish_terminated(slot),
        }
    }

    /// A command is about to end that was told to. If it is half of a pair, so is the other half. A pair whose
    /// operation was on its way may have been done: neither half may be sent again.
    fn separate_fused_halves(&mut self, slot: u32) {
        let AfterWait::Half(half_here) = &mut self.tasks.get_mut(slot).job else { return };
        let (mate, ran) = (half_here.mate.take(), half_here.running);
        if ran {
            forbid_retry(self.tasks.get_mut(slot));
        }
        let queue = self.tasks.get(slot).key.queue;
        let queue = self.queues.get_mut(queue);
        if queue.half == Some(slot) {
            queue.half = None;
        }
        let Some(mate) = mate else { return };
        self.fused_half_mut(mate).mate = None;
        let task = self.tasks.get_mut(mate);
        match task.ending {
            TaskEnding::No => {
                task.ending = TaskEnding::Status(Status::ABORTED_FAILED_FUSED.with_do_not_retry())
            }
            TaskEnding::Silent | TaskEnding::Status(_) => {}
        }
        if ran {
            forbid_retry(task);
        }
        self.finish_terminated(mate);
    }
}

fn forbid_retry(task: &mut Task) {
    if let TaskEnding::Status(status) = task.ending {
        task.ending = TaskEnding::Status(status.with_do_not_retry());
    }
}

/// The first block that a command names; 0 if it names none.
#[inline]
fn first_block(sqe: &Sqe) -> u64 {
    const OPCODES_WITH_LBA: u32 = 1 << Opcode::WRITE.0
        | 1 << Opcode::READ.0
        | 1 << Opcode::WRITE_UNCORRECTABLE.0
        | 1 << Opcode::COMPARE.0
        | 1 << Opcode::WRITE_ZEROES.0
        | 1 << Opcode::VERIFY.0
        | 1 << Opcode::COPY.0;
    if sqe.opcode.0 < 32 && OPCODES_WITH_LBA >> sqe.opcode.0 & 1 == 1 { sqe.cdw_pair(10) } else { 0 }
}

/// Structures of a page may use what is kept for small replies.
pub(crate) fn memory_class(len: usize) -> MemoryClass {
    if len <= nvme::identify::IDENTIFY_LEN { MemoryClass::Wire } else { MemoryClass::Solicited }
}
