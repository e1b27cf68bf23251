//! The gate: everything between a shard's servers and a volume's backend.
//!
//! It makes the binding admission decision under the view of this turn. It counts operations in flight by the
//! epoch in which they were admitted, and acknowledges a change when older ones have ended. It keeps
//! exclusive operations and overlapping writes apart (see `region_guards.rs`). It composes what a backend cannot do
//! from what it can (see `chunk_execution.rs`), in bounded chunks that can be aborted.
//!
//! Bad blocks are part of the view. Marking them, and writing them, excludes all other writes of their
//! regions until the home has answered, which is when every core has applied the marks; reads wait meanwhile.
//! So all cores agree on the moment from which reads fail, or succeed. While it waits for the home an
//! operation is in no epoch, because the home may itself wait for older ones; the home admits it again.
//!
//! Invariants: every submitted operation ends by [`Gate::poll_done`] exactly once. An operation that waits
//! (for a guard, for memory) holds no mark, and one that waits for memory holds no guard, so that no two wait
//! for each other. Waiting operations are admitted again when the view changes.

mod byte_ops;
mod chunk;
mod chunk_execution;
mod chunked_op;
mod in_flight_ops;
mod inline_io;
mod operation_times;
mod overdue;
mod reads;
mod tasks;
#[cfg(test)]
mod tests;
mod view_update;

use std::collections::VecDeque;

use buf::{Cx, Errno, Payload, Time};

use crate::backend::{Backend, DiskOp, ShardId};
use crate::io::{Failure, Fault, Io, IoCompletion, IoId, Op, Outcome, Refusal, Span, UnservableReason};
use crate::owner_messages::{Ack, OperatorNotice, RequestId, VolumeRequest};
use crate::region_guards::LockRegions;
use crate::requester::Requester;
use crate::shared_gate_state::SharedGateState;
use crate::view::View;

use chunked_op::ChunkedOp;
use in_flight_ops::InFlightByEpoch;
pub use operation_times::OperationTimes;
use overdue::OverdueOperations;
use tasks::{Task, TaskSlot, TaskState};

/// How many parts of operations in steps one [`Gate::resume`] goes on with: where the backend is memory, each
/// is done within it.
const PARTS_PER_RESUME_MAX: usize = 16;
/// One volume's gate on one shard.
/// ```
/// use std::sync::Arc;
/// use buf::{MemoryClass, Cx, Entropy, Payload, Pool, Time};
/// use blockwire_volume::{
///     Backend, Durability, Epoch, Gate, Identity, Io, IoId, Requester, Op, Outcome, PortId, RamBackend, RamDisk, ShardId, SharedGateState,
///     Span, View,
/// };
///
/// let ram = RamBackend::new(Arc::new(RamDisk::new(8, 8, 4096, 4096)));
/// let mut gate = Gate::new(ShardId(0), SharedGateState::new(1), View::without_reservations(ram.geometry()), Box::new(ram));
/// let who = Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: false };
///
/// let (pool, mut entropy) = (Pool::new(1 << 20), Entropy::new([0; 32]));
/// let mut cx = Cx { now: Time(0), pool: &pool, entropy: &mut entropy };
/// let payload = Payload::Out(pool.take_sg(MemoryClass::Wire, 4096).unwrap().freeze());
/// let op = Op::Write(Span { lba: 7, blocks: 1 }, Durability::Cached);
/// gate.submit(&mut cx, &who, Io { id: IoId(1), epoch: Epoch::default(), op, payload });
/// while gate.resume(&mut cx) {}
/// let done = gate.poll_done().unwrap();
/// assert_eq!((done.id, done.result), (IoId(1), Ok(Outcome::Complete)));
/// assert_eq!(done.payload.len(), 4096);
/// ```
pub struct Gate {
    view: View,
    shard: ShardId,
    shared: SharedGateState,
    backend: Box<dyn Backend>,
    tasks: Vec<TaskSlot>,
    free: Vec<u32>,
    flights: InFlightByEpoch,
    /// Tasks that wait for a guard, for marks or for memory, oldest first.
    waiting: VecDeque<u32>,
    /// Other shards know that something waits here.
    is_known: bool,
    /// Plain writes that wait may find their regions free: some were freed, or they have not been tried since other
    /// shards know of them.
    may_enter: bool,
    /// Ended parts of tasks in steps.
    ended: VecDeque<(u32, Result<Outcome, Failure>, Payload)>,
    done: VecDeque<(IoCompletion, OperationTimes)>,
    remarks: VecDeque<OperatorNotice>,
    wakes: VecDeque<ShardId>,
    /// Asks to the volume's home, and the tasks that wait for an answer.
    requests: VecDeque<(RequestId, VolumeRequest)>,
    asked: Vec<(RequestId, u32)>,
    requests_made: u64,
    look_again: Option<Time>,
    /// Operations that the backend has had for too long.
    overdue: OverdueOperations,
    /// The operation that may take memory kept for headers.
    insists: Option<u32>,
    /// Where inline writes may go until the next [`Gate::resume`].
    claimed: LockRegions,
    /// The time of the latest call that had one.
    now: Time,
}

impl Gate {
    /// The gate of `shard` to a volume. All its gates share `shared_gate_state`, and each has its own backend
    /// value; `view` is the home's current one.
    ///
    /// # Panics
    /// If `shard` is not below [`SharedGateState::shard_count`].
    pub fn new(shard: ShardId, shared: SharedGateState, view: View, backend: Box<dyn Backend>) -> Self {
        shared.assert_shard_in_range(shard);
        Gate {
            view,
            shard,
            shared,
            backend,
            tasks: Vec::new(),
            free: Vec::new(),
            flights: InFlightByEpoch::default(),
            waiting: VecDeque::new(),
            is_known: false,
            may_enter: false,
            ended: VecDeque::new(),
            done: VecDeque::new(),
            remarks: VecDeque::new(),
            wakes: VecDeque::new(),
            requests: VecDeque::new(),
            asked: Vec::new(),
            requests_made: 0,
            look_again: None,
            overdue: OverdueOperations::default(),
            insists: None,
            claimed: LockRegions::NONE,
            now: Time::default(),
        }
    }

    /// What it shares with the gates of other cores.
    pub fn shared_state(&self) -> &SharedGateState {
        &self.shared
    }

    /// What this core believes of the volume.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether a read may come with [`Payload::None`] and be given the backend's own memory. Memory that is
    /// lent is read later: not when an atomic write may have to be seen whole, and not while hosts are
    /// registered or one has reserved the volume, since others would be sent what is written after that.
    pub fn lends_memory(&self) -> bool {
        let reservations = &self.view.reservations;
        let fenced = !reservations.registrants().is_empty() || reservations.legacy_holder().is_some();
        self.view.geometry.lends && !self.shared.had_atomic_op() && !fenced
    }

    /// Whether readers may hold memory that was lent before hosts registered, though some may read no more: what others
    /// write now would be sent to them.
    pub fn may_have_stale_loans(&self) -> bool {
        !self.lends_memory() && self.view.reservations.restricts_anyone() && self.backend.has_loans()
    }

    /// How far the running sanitize is, in 65536ths.
    pub fn sanitize_progress(&self) -> u16 {
        self.view.sanitized.get()
    }

    /// Whether a sync has failed: writes are refused with [`UnservableReason::SyncFailed`] until the operator
    /// takes note of it.
    pub fn has_sync_failed(&self) -> bool {
        self.shared.has_sync_failed()
    }

    /// Whether an operation has failed for want of space within the last minutes.
    pub fn lacked_space_recently(&self, now: Time) -> bool {
        self.shared.lacked_space_recently(now)
    }

    /// How many operations have not ended.
    pub fn in_flight_count(&self) -> usize {
        self.tasks.len() - self.free.len()
    }

    /// What [`View::admit`] says, and whether a failed sync forbids it.
    pub fn admit(&self, who: &Requester, op: &Op) -> Result<(), Refusal> {
        self.view.admit(who, op)?;
        if (op.is_write() || *op == Op::Flush) && self.shared.has_sync_failed() {
            return Err(Refusal::NotReady(UnservableReason::SyncFailed));
        }
        Ok(())
    }

    /// Takes an operation on, if it is admitted now. It ends by [`Gate::poll_done`], perhaps at once.
    /// `io.epoch` is set here.
    ///
    /// # Panics
    /// If the payload is not as long as the operation says (see the crate's page).
    pub fn submit(&mut self, cx: &mut Cx<'_>, who: &Requester, mut io: Io) {
        self.now = cx.now;
        self.publish_inline_writes();
        if let Err(refusal) = self.admit(who, &io.op) {
            return self.push_refusal(io, refusal);
        }
        if self.overdue.is_full() {
            return self.complete_without_task(IoCompletion {
                id: io.id,
                result: Err(Fault::PathLost.into()),
                payload: io.payload,
            });
        }
        self.check_payload(&io);
        io.epoch = self.view.epoch;
        match io.op {
            Op::Read(span) | Op::Write(span, _) if span.blocks == 0 => {
                self.complete_without_task(IoCompletion {
                    id: io.id,
                    result: Ok(Outcome::Complete),
                    payload: io.payload,
                });
            }
            Op::Read(span) => self.start_read(cx, io, span),
            Op::Write(span, _) if self.is_aligned(span) => self.start_write(cx, who, io, span),
            Op::Flush => self.forward_to_backend(cx, io, TaskState::Flush),
            Op::Extents(_) | Op::Prefetch(_) => self.forward_to_backend(cx, io, TaskState::Other),
            Op::Write(..) | Op::WriteAtomic(_) | Op::CompareAndWrite(_) | Op::WriteZeroes { .. } => {
                self.start_chunked_op(cx, who, io);
            }
            Op::Compare(_) | Op::WriteSame(_) | Op::Or(_) | Op::Unmap(_) => {
                self.start_chunked_op(cx, who, io)
            }
            Op::Verify(_) | Op::Sanitize(_) | Op::MarkBad(_) => self.start_chunked_op(cx, who, io),
        }
    }

    fn push_refusal(&mut self, io: Io, refusal: Refusal) {
        self.complete_without_task(IoCompletion {
            id: io.id,
            result: Err(refusal.into()),
            payload: io.payload,
        });
    }

    fn check_payload(&self, io: &Io) {
        let logical = u64::from(self.view.geometry.logical);
        let len = io.payload.len() as u64;
        let fits = match &io.op {
            Op::Read(span) => len == span.blocks * logical || (len == 0 && self.view.geometry.lends),
            Op::Write(span, _) | Op::WriteAtomic(span) => len == span.blocks * logical,
            Op::Compare(span) | Op::Or(span) => len == span.blocks * logical,
            Op::CompareAndWrite(span) => len == 2 * span.blocks * logical,
            Op::WriteSame(_) => len == logical,
            Op::WriteZeroes { .. } | Op::Unmap(_) | Op::Verify(_) | Op::MarkBad(_) => true,
            Op::Flush | Op::Extents(_) | Op::Prefetch(_) | Op::Sanitize(_) => true,
        };
        assert!(fits, "a payload of {len} bytes for {:?}", io.op);
    }

    fn start_write(&mut self, cx: &mut Cx<'_>, who: &Requester, io: Io, span: Span) {
        let regions = self.lock_regions(span);
        if self.shared.guards().begin_plain_write(self.shard, regions) {
            if self.view.bad.first_in(span).is_none() {
                return self.forward_to_backend(cx, io, TaskState::Write { regions });
            }
            self.shared.guards().end_plain_write(self.shard, regions);
            return self.start_chunked_op(cx, who, io);
        }
        let (id, epoch) = (io.id, io.epoch);
        let slot = self.insert_task(id, epoch, TaskState::Parked { io, regions, span, who: who.clone() });
        self.park_task(slot);
    }

    fn start_chunked_op(&mut self, cx: &mut Cx<'_>, who: &Requester, io: Io) {
        if matches!(io.op, Op::WriteAtomic(_) | Op::CompareAndWrite(_)) {
            self.shared.note_atomic_op();
        }
        let (id, epoch) = (io.id, io.epoch);
        let steps = ChunkedOp::new(who, io.op, io.payload);
        let slot = self.insert_task(id, epoch, TaskState::Steps(Box::new(steps)));
        self.run_chunked_op(cx, slot);
    }

    /// Starts a flush that nobody asked for and no reservation can refuse: before the daemon stops.
    /// It ends by [`Gate::poll_done`].
    pub fn start_unconditional_flush(&mut self, cx: &mut Cx<'_>, id: IoId) {
        self.now = cx.now;
        let epoch = self.view.epoch;
        self.forward_to_backend(
            cx,
            Io { id, epoch, op: Op::Flush, payload: Payload::None },
            TaskState::Flush,
        );
    }

    fn forward_to_backend(&mut self, cx: &mut Cx<'_>, io: Io, work: TaskState) {
        let slot = self.insert_task(io.id, io.epoch, work);
        let id = self.backend_id(slot);
        self.note_backend_start(slot);
        self.backend.submit(cx, Io { id, ..io });
    }

    fn lock_regions(&self, span: Span) -> LockRegions {
        LockRegions::of_span(span, self.view.geometry.logical)
    }

    fn is_aligned(&self, span: Span) -> bool {
        let geometry = &self.view.geometry;
        if geometry.dio_align <= geometry.logical {
            return true;
        }
        let unit = u64::from(geometry.dio_unit_blocks());
        span.lba.is_multiple_of(unit) && span.blocks.is_multiple_of(unit)
    }

    /// Parks a task until [`Gate::resume`] tries it again.
    fn park_task(&mut self, slot: u32) {
        self.waiting.push_back(slot);
        self.may_enter |= !self.is_known;
    }

    /// Asks that an operation end early. It still ends by [`Gate::poll_done`]: with
    /// [`Fault::Aborted`], or as if nothing had been asked.
    pub fn cancel(&mut self, id: IoId) {
        let is_it = |task: &Task| task.id == id && !task.told;
        let found = self.tasks.iter().position(|slot| slot.task.as_ref().is_some_and(is_it));
        let Some(slot) = found else { return };
        let slot = slot as u32;
        let backend_id = self.backend_id(slot);
        match &mut self.task_mut(slot).work {
            TaskState::Read { .. } | TaskState::Write { .. } | TaskState::Other | TaskState::Flush => {
                self.backend.cancel(backend_id);
            }
            TaskState::Parked { .. } => self.fail_parked_task(slot, Fault::Aborted.into()),
            TaskState::Steps(steps) => {
                if steps.cancel() {
                    self.backend.cancel(backend_id);
                }
            }
        }
    }

    #[expect(clippy::unreachable, reason = "its callers have found it parked")]
    fn fail_parked_task(&mut self, slot: u32, why: Failure) {
        self.waiting.retain(|waiting| *waiting != slot);
        let work = std::mem::replace(&mut self.task_mut(slot).work, TaskState::Other);
        let TaskState::Parked { io, .. } = work else { unreachable!("only parked tasks are unparked") };
        self.complete_task(slot, Err(why), io.payload);
    }

    /// Goes on with what waits or is made in steps, for a bounded while. True if there is more to do at
    /// once: call again in the next turn, and not before others have had theirs. Call it each turn, and when another shard's
    /// [`Gate::poll_shard_to_wake`] named this one.
    pub fn resume(&mut self, cx: &mut Cx<'_>) -> bool {
        self.now = cx.now;
        self.publish_inline_writes();
        self.look_again = None;
        self.backend.resume();
        self.take_backend_completions(cx);
        self.tell_overdue();
        let mut parts = self.ended.len().min(PARTS_PER_RESUME_MAX);
        for _ in 0..parts {
            let Some((slot, result, payload)) = self.ended.pop_front() else { break };
            self.handle_chunk_op_done(cx, slot, result, payload);
        }
        let mut untried = false;
        if !self.waiting.is_empty() {
            self.announce_waiting(true);
            let may_enter = std::mem::take(&mut self.may_enter);
            for _ in 0..self.waiting.len() {
                if parts >= PARTS_PER_RESUME_MAX {
                    untried = true;
                    break;
                }
                let Some(slot) = self.waiting.pop_front() else { break };
                if !may_enter && matches!(self.task_mut(slot).work, TaskState::Parked { .. }) {
                    self.park_task(slot);
                    continue;
                }
                let others = self.waiting.len();
                self.retry_parked_task(cx, slot);
                // One that waits again has cost nothing.
                parts += usize::from(self.waiting.len() == others);
            }
            self.may_enter |= may_enter && untried;
            if self.waiting.is_empty() {
                self.announce_waiting(false);
            }
        }
        self.take_backend_completions(cx);
        self.backend.wants_resume() || !self.ended.is_empty() || untried
    }

    fn announce_waiting(&mut self, waits: bool) {
        if std::mem::replace(&mut self.is_known, waits) != waits {
            self.shared.guards().set_shard_waiting(self.shard, waits);
        }
    }

    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unreachable,
        reason = "what waits is in use, and was matched just before; the backend has nothing that waits"
    )]
    fn retry_parked_task(&mut self, cx: &mut Cx<'_>, slot: u32) {
        let (shard, guards) = (self.shard, self.shared.guards());
        let task = self.tasks[slot as usize].task.as_mut().expect("a task that waits");
        match &task.work {
            TaskState::Parked { regions, .. } if !guards.begin_plain_write(shard, *regions) => {
                self.park_task(slot)
            }
            TaskState::Parked { span, regions, .. } if self.view.bad.first_in(*span).is_some() => {
                guards.end_plain_write(shard, *regions);
                let TaskState::Parked { io, who, .. } = std::mem::replace(&mut task.work, TaskState::Other)
                else {
                    unreachable!("matched above")
                };
                let steps = ChunkedOp::new(&who, io.op, io.payload);
                task.work = TaskState::Steps(Box::new(steps));
                self.run_chunked_op(cx, slot);
            }
            TaskState::Parked { regions, .. } => {
                let next = TaskState::Write { regions: *regions };
                let TaskState::Parked { io, .. } = std::mem::replace(&mut task.work, next) else {
                    unreachable!("matched above")
                };
                let id = self.backend_id(slot);
                self.note_backend_start(slot);
                self.backend.submit(cx, Io { id, ..io });
            }
            TaskState::Steps(_) => self.run_chunked_op(cx, slot),
            TaskState::Read { .. } | TaskState::Write { .. } | TaskState::Other | TaskState::Flush => {
                unreachable!("the backend has it")
            }
        }
    }

    /// Takes what the backend has ended.
    #[expect(
        clippy::unreachable,
        reason = "a parked task is given to the backend only when it is parked no more"
    )]
    fn take_backend_completions(&mut self, cx: &mut Cx<'_>) {
        while let Some(id) = self.backend.poll_unsynced_write() {
            self.note_unsynced_write(id);
        }
        while let Some(done) = self.backend.poll_done() {
            let slot = done.id.0 as u32;
            debug_assert_eq!(self.backend_id(slot), done.id, "a backend ends an operation once");
            match done.result {
                Err(Failure::Failed(Fault::Sync)) if self.shared.note_sync_failure() => {
                    self.remarks.push_back(OperatorNotice::SyncFailed);
                }
                Err(Failure::Failed(Fault::NoSpace)) if self.shared.should_report_no_space(cx.now) => {
                    self.remarks.push_back(OperatorNotice::NoSpace);
                }
                Ok(_) | Err(_) => {}
            }
            match self.task_mut(slot).work {
                TaskState::Read { span, before, tries, lent } => {
                    self.finish_read(
                        cx,
                        slot,
                        TaskState::Read { span, before, tries: tries + 1, lent },
                        done,
                    );
                }
                TaskState::Write { regions } => {
                    self.shared.guards().end_plain_write(self.shard, regions);
                    self.complete_task(slot, done.result, done.payload);
                }
                TaskState::Other | TaskState::Flush => self.complete_task(slot, done.result, done.payload),
                TaskState::Steps(_) => self.ended.push_back((slot, done.result, done.payload)),
                TaskState::Parked { .. } => unreachable!("what is parked is not with the backend"),
            }
        }
    }

    /// The blocks of a write stand, and it is only to be made stable.
    fn note_unsynced_write(&mut self, id: IoId) {
        let slot = id.0 as u32;
        debug_assert_eq!(self.backend_id(slot), id, "a backend tells it before the end");
        // What is made in steps holds its regions until it ends, and is counted as long.
        if let TaskState::Write { regions } = self.task_mut(slot).work {
            self.task_mut(slot).work = TaskState::Flush;
            self.shared.guards().end_plain_write(self.shard, regions);
            let epoch = self.task_mut(slot).epoch;
            self.flights.count_finished(epoch);
        }
    }

    /// What the operator should hear of: a failed sync once, a lack of space once a minute, over all cores.
    pub fn poll_operator_notice(&mut self) -> Option<OperatorNotice> {
        self.remarks.pop_front()
    }

    /// An operation that has ended. Call [`Gate::resume`] first.
    #[must_use]
    pub fn poll_done(&mut self) -> Option<IoCompletion> {
        self.poll_done_with_times().map(|(done, _)| done)
    }

    /// The same, with when it came to where.
    #[must_use]
    pub fn poll_done_with_times(&mut self) -> Option<(IoCompletion, OperationTimes)> {
        self.done.pop_front()
    }

    /// What the world shall do with the disk next.
    #[must_use]
    pub fn poll_disk(&mut self) -> Option<DiskOp> {
        self.backend.poll_disk()
    }

    /// The world has done it.
    pub fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.now = cx.now;
        self.backend.handle_disk(cx, op, came);
        self.take_backend_completions(cx);
    }

    /// A shard whose gate to this volume shall [`Gate::handle_wake`] and [`Gate::resume`]: what it waits for
    /// may be free.
    #[must_use]
    pub fn poll_shard_to_wake(&mut self) -> Option<ShardId> {
        self.wakes.pop_front().or_else(|| self.backend.poll_shard_to_wake())
    }

    /// Another shard's [`Gate::poll_shard_to_wake`] named this one.
    pub fn handle_wake(&mut self) {
        self.may_enter = true;
        self.backend.handle_wake();
    }

    /// When to call [`Gate::resume`] at the latest, if nothing else happens.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.look_again, self.overdue.due()].into_iter().flatten().min()
    }

    /// Something to ask of the volume's home; the answer goes to [`Gate::handle_answer`].
    #[must_use]
    pub fn poll_request(&mut self) -> Option<(RequestId, VolumeRequest)> {
        self.requests.pop_front()
    }

    /// A change that this shard has adopted and drained; goes to the home core.
    #[must_use]
    pub fn poll_ack(&mut self) -> Option<Ack> {
        let change = self.flights.poll_ack()?;
        Some(Ack { from: self.shard, change })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Gates of other cores may live on.
        self.publish_inline_writes();
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("shard", &self.shard)
            .field("in_flight", &self.in_flight_count())
            .finish()
    }
}
