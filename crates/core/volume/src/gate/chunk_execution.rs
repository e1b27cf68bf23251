//! Takes operations that are composed of several steps of the backend from chunk to chunk.
//!
//! Each chunk takes its scratch memory first, then its permit (marks or guard), then works. So a chunk that
//! waits for memory blocks no other operation.

use std::time::Duration;

use buf::{Cx, MemoryClass, Payload, Time};

use super::chunk::{Chunk, ChunkExclusion, ChunkOp};
use super::chunked_op::{BUSY_RETRY_DELAY, ChunkStage, ChunkedOp};
use super::{Gate, TaskState};
use crate::io::{Durability, Failure, Fault, IdSpace, Io, Op, Outcome, Refusal};
use crate::owner_messages::{RequestId, VolumeRequest};
use crate::region_guards::LockRegions;

/// How soon an exclusive operation looks again whether other cores' writes have ended: they cannot
/// tell without a second fence per write. Then in as long as it has waited, up to the second of these: a disk
/// that hangs costs a thousand looks per second.
const QUIET_POLL_INTERVAL: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How soon an operation that found no memory asks again.
const MEMORY_RETRY_DELAY: Duration = Duration::from_micros(500);

/// What a step leads to.
enum AdvanceResult {
    /// Wait for a guard or for marks: who frees them wakes this gate.
    Wait,
    /// Wait for memory, of whose return nobody tells.
    Memory,
    /// Wait for this time: for the next part's, or to look for other cores' writes, which cannot tell.
    Due(Time),
    /// The backend has it.
    Out,
    /// It has ended.
    End(Result<Outcome, Failure>),
}

impl Gate {
    /// Takes an operation as far as it goes.
    pub(super) fn run_chunked_op(&mut self, cx: &mut Cx<'_>, slot: u32) {
        match self.advance_chunked_op(cx, slot) {
            AdvanceResult::Out => {}
            AdvanceResult::Wait => self.park_task(slot),
            AdvanceResult::Memory => self.park_until(slot, cx.now + MEMORY_RETRY_DELAY),
            AdvanceResult::Due(time) => self.park_until(slot, time),
            AdvanceResult::End(result) => self.finish_chunked_op(slot, result),
        }
    }

    fn park_until(&mut self, slot: u32, time: Time) {
        self.look_again = Some(self.look_again.map_or(time, |sooner| sooner.min(time)));
        self.park_task(slot);
    }

    #[expect(clippy::unreachable, reason = "its callers have found it in steps")]
    fn chunked_op_mut(&mut self, slot: u32) -> &mut ChunkedOp {
        match &mut self.task_mut(slot).work {
            TaskState::Steps(steps) => steps,
            TaskState::Read { .. }
            | TaskState::Write { .. }
            | TaskState::Other
            | TaskState::Flush
            | TaskState::Parked { .. } => {
                unreachable!("a task in steps")
            }
        }
    }

    fn advance_chunked_op(&mut self, cx: &mut Cx<'_>, slot: u32) -> AdvanceResult {
        let geometry = self.view.geometry;
        let (shared, bad) = (self.shared.clone(), self.view.bad.clone());
        let (shard, guards) = (self.shard, shared.guards());
        let erase_max = self.backend.erase_max();
        let steps = self.chunked_op_mut(slot);
        if let Some(why) = steps.end {
            return AdvanceResult::End(Err(why));
        }
        let Some(chunk) = steps.chunk.or_else(|| steps.plan.next_chunk(steps.done, erase_max, &geometry))
        else {
            return AdvanceResult::End(Ok(Outcome::Complete));
        };
        if steps.chunk.is_none()
            && let Some(due) = steps.next_allowed_time(cx.now, shared.sanitize_rate(), geometry.logical)
        {
            return AdvanceResult::Due(due);
        }
        steps.chunk = Some(chunk);
        if steps.stage == ChunkStage::Permit {
            if !self.acquire_scratch(cx, slot, chunk.scratch_len(geometry.logical), chunk.kind) {
                return AdvanceResult::Memory;
            }
            let steps = self.chunked_op_mut(slot);
            let regions = LockRegions::of_span(chunk.cover, geometry.logical);
            match chunk.permit {
                ChunkExclusion::None => {}
                ChunkExclusion::Marks if guards.begin_plain_write(shard, regions) => steps.marked = regions,
                ChunkExclusion::Guard if guards.try_hold(regions, &mut steps.held) => {}
                ChunkExclusion::Marks | ChunkExclusion::Guard => return AdvanceResult::Wait,
            }
            if chunk.permit == ChunkExclusion::Marks && bad.first_in(chunk.span).is_some() {
                // It makes bad blocks good, which is exclusive. While the marks stand none becomes bad,
                // so that this look is the last.
                guards.end_plain_write(shard, std::mem::take(&mut steps.marked));
                steps.chunk = Some(Chunk { permit: ChunkExclusion::Guard, ..chunk });
                return self.advance_chunked_op(cx, slot);
            }
            steps.stage = ChunkStage::Quiet { since: cx.now };
        }
        let steps = self.chunked_op_mut(slot);
        if let ChunkStage::Quiet { since } = steps.stage
            && chunk.permit == ChunkExclusion::Guard
            && !guards.has_no_plain_writes(steps.held)
        {
            let (least, most) = QUIET_POLL_INTERVAL;
            return AdvanceResult::Due(cx.now + cx.now.since(since).clamp(least, most));
        }
        match (chunk.kind, bad.first_in(chunk.span)) {
            (ChunkOp::Mark, _) => {
                self.request_bad_block_update(slot, chunk);
                return AdvanceResult::Out;
            }
            (ChunkOp::ReadWhole, Some(lba)) => return AdvanceResult::End(Err(Fault::Medium(lba).into())),
            (_, _) => {}
        }
        self.start_chunk(cx, slot, chunk);
        AdvanceResult::Out
    }

    /// Takes scratch memory for a chunk, if it needs any. All who wait may hold payloads that fill
    /// the pool, and none would ever end: so one operation at a time may take what is kept for
    /// headers.
    fn acquire_scratch(&mut self, cx: &mut Cx<'_>, slot: u32, need: usize, kind: ChunkOp) -> bool {
        let may_insist = self.insists.is_none_or(|one| one == slot);
        let steps = self.chunked_op_mut(slot);
        let has_pattern = steps.pattern.as_ref().is_some_and(|pattern| pattern.len() >= need);
        if need == 0 || (kind == ChunkOp::Pattern && has_pattern) {
            return true;
        }
        if steps.scratch.as_ref().is_some_and(|scratch| scratch.len() == need) {
            return true;
        }
        steps.scratch = cx.pool.take_sg(MemoryClass::Solicited, need);
        if steps.scratch.is_none() && may_insist {
            steps.scratch = cx.pool.take_sg(MemoryClass::Wire, need);
            if steps.scratch.is_some() {
                self.insists = Some(slot);
                return true;
            }
        }
        steps.scratch.is_some()
    }

    /// Gives the backend a chunk's first part.
    #[expect(
        clippy::expect_used,
        clippy::unreachable,
        reason = "`advance` has taken the scratch memory, or found the pattern, and asks the home for marks itself; payloads were checked on submission"
    )]
    fn start_chunk(&mut self, cx: &mut Cx<'_>, slot: u32, chunk: Chunk) {
        let logical = self.view.geometry.logical as usize;
        let span = chunk.cover;
        let shared = self.shared.clone();
        let steps = self.chunked_op_mut(slot);
        steps.stage = ChunkStage::Acting;
        let (op, payload) = match chunk.kind {
            ChunkOp::ReadWhole => (Op::Read(span), std::mem::take(&mut steps.payload)),
            ChunkOp::Read | ChunkOp::Merge(_) => {
                steps.stage = ChunkStage::Reading;
                let scratch = steps.scratch.take().expect("taken before the permit");
                (Op::Read(span), Payload::In(scratch))
            }
            ChunkOp::Write(durability) => {
                let from = steps.done as usize * logical;
                let Payload::Out(given) = &steps.payload else { unreachable!("checked on submission") };
                let part = given.slice(from..from + span.blocks as usize * logical);
                (Op::Write(span, durability), Payload::Out(part))
            }
            ChunkOp::Pattern => {
                let pattern = match steps.scratch.take() {
                    Some(scratch) => steps.make_pattern(scratch, logical),
                    None => steps.pattern.clone().expect("made by an earlier chunk"),
                };
                let part = pattern.slice(0..span.blocks as usize * logical);
                (Op::Write(span, Durability::Cached), Payload::Out(part))
            }
            ChunkOp::Zero { unmap } => (Op::WriteZeroes { span, unmap }, Payload::None),
            ChunkOp::Unmap => (Op::Unmap(vec![span]), Payload::None),
            ChunkOp::Flush => (Op::Flush, Payload::None),
            ChunkOp::Mark => unreachable!("asked of the home"),
        };
        if chunk.permit == ChunkExclusion::Guard && op.is_write() {
            shared.guards().begin_exclusive_write(steps.held);
        }
        self.submit_chunk_op(cx, slot, op, payload);
    }

    fn submit_chunk_op(&mut self, cx: &mut Cx<'_>, slot: u32, op: Op, payload: Payload) {
        let (id, epoch) = (self.backend_id(slot), self.task_mut(slot).epoch);
        if op == Op::Flush {
            // What it makes stable was written before: no fence waits for a disk's cache.
            self.chunked_op_mut(slot).flushes = true;
            self.flights.count_finished(epoch);
        }
        self.note_backend_start(slot);
        self.backend.submit(cx, Io { id, epoch, op, payload });
    }

    /// The backend has ended a part.
    #[expect(
        clippy::expect_used,
        clippy::unreachable,
        reason = "the backend ends what a chunk has given it, which stays until then"
    )]
    pub(super) fn handle_chunk_op_done(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        result: Result<Outcome, Failure>,
        payload: Payload,
    ) {
        // Each part is admitted again: `ChunkedOp::readmit` has looked at every view since.
        if std::mem::take(&mut self.chunked_op_mut(slot).flushes) {
            let epoch = self.view.epoch;
            self.flights.count_started(epoch);
            self.task_mut(slot).epoch = epoch;
        } else {
            self.move_to_current_epoch(slot);
        }
        let chunk = self.chunked_op_mut(slot).chunk.expect("a part belongs to a chunk");
        match self.chunked_op_mut(slot).stage {
            ChunkStage::Reading => self.handle_chunk_read(cx, slot, chunk, result, payload),
            ChunkStage::Acting => self.handle_chunk_executed(cx, slot, chunk, result, payload),
            ChunkStage::Hardening if result.is_ok() => self.request_bad_block_update(slot, chunk),
            ChunkStage::Hardening => {
                self.end_exclusive_write(slot, chunk);
                self.finish_chunked_op(slot, result);
            }
            ChunkStage::Permit | ChunkStage::Quiet { .. } | ChunkStage::Asking => {
                unreachable!("the backend had nothing")
            }
        }
    }

    #[expect(
        clippy::unreachable,
        reason = "backends give memory back as it was given, and a read was given memory to fill"
    )]
    fn handle_chunk_read(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        chunk: Chunk,
        result: Result<Outcome, Failure>,
        payload: Payload,
    ) {
        let logical = self.view.geometry.logical as usize;
        let bad = self.view.bad.first_in(chunk.span);
        let shared = self.shared.clone();
        let steps = self.chunked_op_mut(slot);
        let Payload::In(mut scratch) = payload else { unreachable!("a backend gives memory back as it was") };
        let looked = match (steps.end, result, bad) {
            (Some(why), _, _) | (None, Err(why), _) => Err(why),
            (None, Ok(_), Some(lba)) if steps.plan.depends_on_contents() => Err(Fault::Medium(lba).into()),
            (None, Ok(_), _) => {
                steps.process_read_chunk(&chunk, &mut scratch, logical).map_err(Failure::from)
            }
        };
        match (looked, chunk.kind) {
            (Err(why), _) => self.finish_chunked_op(slot, Err(why)),
            (Ok(()), ChunkOp::Merge(durability)) => {
                steps.stage = ChunkStage::Acting;
                shared.guards().begin_exclusive_write(steps.held);
                let op = Op::Write(chunk.cover, durability);
                self.submit_chunk_op(cx, slot, op, Payload::Out(scratch.freeze()));
            }
            (Ok(()), _) => {
                steps.scratch = Some(scratch);
                self.advance_to_next_chunk(cx, slot, chunk);
            }
        }
    }

    fn handle_chunk_executed(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        chunk: Chunk,
        result: Result<Outcome, Failure>,
        payload: Payload,
    ) {
        let cures = chunk.permit == ChunkExclusion::Guard
            && chunk.writes_span()
            && result.is_ok()
            && self.view.bad.first_in(chunk.span).is_some();
        if cures {
            // The record forgets at once that the blocks were bad. If power then took what was written from a
            // cache, what stood there before they were bad would be read again.
            let stable =
                matches!(chunk.kind, ChunkOp::Write(Durability::Stable) | ChunkOp::Merge(Durability::Stable));
            if stable || !self.view.geometry.write_cache {
                return self.request_bad_block_update(slot, chunk);
            }
            self.chunked_op_mut(slot).stage = ChunkStage::Hardening;
            return self.submit_chunk_op(cx, slot, Op::Flush, Payload::None);
        }
        self.end_exclusive_write(slot, chunk);
        let steps = self.chunked_op_mut(slot);
        if chunk.kind == ChunkOp::ReadWhole {
            steps.payload = payload;
        }
        if steps.postpone_if_busy(cx.now, &result) {
            return self.park_until(slot, cx.now + BUSY_RETRY_DELAY);
        }
        match result {
            Err(Failure::Refused(Refusal::Unsupported))
                if let Some(merge) = chunk.as_zeroing_merge(&self.view.geometry) =>
            {
                self.release_chunk_exclusion(slot);
                let steps = self.chunked_op_mut(slot);
                (steps.chunk, steps.stage) = (Some(merge), ChunkStage::Permit);
                self.run_chunked_op(cx, slot);
            }
            Err(why) => self.finish_chunked_op(slot, Err(why)),
            Ok(_) => self.advance_to_next_chunk(cx, slot, chunk),
        }
    }

    /// Readers may look again at what an exclusive chunk wrote.
    fn end_exclusive_write(&mut self, slot: u32, chunk: Chunk) {
        if chunk.permit == ChunkExclusion::Guard && chunk.writes_span() {
            let shared = self.shared.clone();
            shared.guards().end_exclusive_write(self.chunked_op_mut(slot).held);
        }
    }

    /// Asks the home to mark a chunk's blocks, or to clear what was written. The guard stays held.
    #[expect(
        clippy::expect_used,
        reason = "a read and a sanitize, which alone are admitted for good, neither mark nor hold a guard while they write"
    )]
    fn request_bad_block_update(&mut self, slot: u32, chunk: Chunk) {
        let Chunk { span, .. } = chunk;
        let shared = self.shared.clone();
        let steps = self.chunked_op_mut(slot);
        steps.stage = ChunkStage::Asking;
        let who = steps.who.clone().expect("what was admitted for good neither marks nor clears");
        let request = if chunk.kind == ChunkOp::Mark {
            // Readers wait until all cores agree; the write that clears has told them so before.
            shared.guards().begin_exclusive_write(steps.held);
            VolumeRequest::MarkBad { who, span }
        } else {
            VolumeRequest::ClearBad { who, span }
        };
        let epoch = self.task_mut(slot).epoch;
        self.flights.count_finished(epoch);
        self.requests_made += 1;
        let id = RequestId::in_space(IdSpace::Gate, self.requests_made);
        self.asked.push((id, slot));
        self.requests.push_back((id, request));
    }

    /// The home has answered what [`Gate::poll_request`] gave.
    #[expect(
        clippy::expect_used,
        reason = "the home answers what a chunk has asked, and it stays until then"
    )]
    pub fn handle_answer(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        self.now = cx.now;
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) else { return };
        let (_, slot) = self.asked.swap_remove(at);
        let epoch = self.view.epoch;
        self.flights.count_started(epoch);
        self.task_mut(slot).epoch = epoch;
        let (shared, bad) = (self.shared.clone(), self.view.bad.clone());
        let steps = self.chunked_op_mut(slot);
        let chunk = steps.chunk.expect("a part belongs to a chunk");
        shared.guards().end_exclusive_write(steps.held);
        // What was written while it was allowed stands, and shows where blocks were not bad: then a
        // refusal, which says that nothing was done, would be a lie.
        let shows = chunk.writes_span() && bad.count_in(chunk.span) < chunk.span.blocks;
        let partly = shows || steps.done > 0;
        match result {
            Ok(()) => self.advance_to_next_chunk(cx, slot, chunk),
            Err(_) if partly => self.finish_chunked_op(slot, Err(Fault::Aborted.into())),
            Err(refusal) => self.finish_chunked_op(slot, Err(refusal.into())),
        }
    }

    fn advance_to_next_chunk(&mut self, cx: &mut Cx<'_>, slot: u32, chunk: Chunk) {
        self.release_chunk_exclusion(slot);
        let blocks = self.view.geometry.blocks;
        let progress = self.view.sanitized.clone();
        let steps = self.chunked_op_mut(slot);
        steps.done += chunk.span.blocks;
        steps.chunk = None;
        steps.stage = ChunkStage::Permit;
        if steps.plan.note_sanitized_chunk(&chunk) {
            // The next pass may invert.
            steps.pattern = None;
        }
        if let Some(done) = steps.plan.sanitize_progress(blocks) {
            progress.set(done);
        }
        if steps.done >= steps.total {
            // The last part stands, whatever was asked meanwhile.
            return self.finish_chunked_op(slot, Ok(Outcome::Complete));
        }
        self.run_chunked_op(cx, slot);
    }

    fn release_chunk_exclusion(&mut self, slot: u32) {
        let shared = self.shared.clone();
        let shard = self.shard;
        let steps = self.chunked_op_mut(slot);
        shared.guards().end_plain_write(shard, std::mem::take(&mut steps.marked));
        let held = std::mem::take(&mut steps.held);
        if held != LockRegions::NONE {
            shared.guards().release_held(held);
            self.wakes.extend(shared.guards().waiting_shards().filter(|waiter| *waiter != shard));
            self.may_enter = true;
        }
    }

    fn finish_chunked_op(&mut self, slot: u32, result: Result<Outcome, Failure>) {
        if self.insists == Some(slot) {
            self.insists = None;
        }
        self.release_chunk_exclusion(slot);
        let payload = std::mem::take(&mut self.chunked_op_mut(slot).payload);
        self.complete_task(slot, result, payload);
    }
}
