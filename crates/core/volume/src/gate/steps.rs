//! Operations that are composed of several steps of the backend.
//!
//! Each chunk takes its scratch memory first, then its permit (marks or guard), then works. So a chunk that
//! waits for memory blocks no other operation.

mod pattern;

use std::time::Duration;

use buf::{Class, Cx, Payload, Sg, SgMut, Time};

use super::bytes::{compare, overlay, set_bits};
use super::chunk::{Chunk, ChunkOp, Permit, Plan};
use super::{BUSY_AGAIN, Gate, LOOK_AGAIN, MEMORY_AGAIN, Work};
use crate::change::{RequestId, VolumeRequest};
use crate::guard::LockRegions;
use crate::io::{Durability, Failure, Fault, IdSpace, Io, Op, Outcome, Refusal, Span, UnservableReason};
use crate::requester::Requester;
use crate::view::View;

/// The state of an operation in steps.
pub(super) struct Steps {
    plan: Plan,
    /// `None` for what was admitted once for good: the gate's own repetition of a read, a sanitize.
    who: Option<Requester>,
    /// The caller's.
    payload: Payload,
    done: u64,
    chunk: Option<Chunk>,
    scratch: Option<SgMut>,
    /// A pattern that fills `scratch`'s length, made once.
    pattern: Option<Sg>,
    held: LockRegions,
    marked: LockRegions,
    stage: Stage,
    /// The part that the backend has is a flush: meanwhile it is in no epoch.
    flushes: bool,
    /// Why it ends at the next chance.
    end: Option<Failure>,
    total: u64,
    /// When the first chunk of something paced began.
    began: Option<Time>,
    /// When it goes on at the earliest, since the backend had no room.
    put_off: Option<Time>,
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Memory and permit for the chunk.
    Permit,
    /// The end of other cores' writes, while the guard is held.
    Quiet { since: Time },
    /// The backend's read.
    Reading,
    /// The backend's last step of the chunk.
    Acting,
    /// The backend's flush of what made bad blocks good.
    Hardening,
    /// The home's answer about bad blocks.
    Asking,
}

impl Steps {
    pub(super) fn new(who: &Requester, op: Op, payload: Payload) -> Steps {
        let plan = Plan::of(op);
        let total = plan.total();
        // A sanitize that has begun goes on, who gains or loses rights meanwhile.
        let who = (!matches!(plan, Plan::Sanitize { .. })).then(|| who.clone());
        Steps { who, total, ..Steps::with(plan, payload) }
    }

    pub(super) fn stable_read(span: Span, payload: Payload) -> Steps {
        Steps { total: span.blocks, ..Steps::with(Plan::StableRead(span), payload) }
    }

    fn with(plan: Plan, payload: Payload) -> Steps {
        Steps {
            plan,
            who: None,
            payload,
            done: 0,
            chunk: None,
            scratch: None,
            pattern: None,
            held: LockRegions::NONE,
            marked: LockRegions::NONE,
            stage: Stage::Permit,
            flushes: false,
            end: None,
            total: 0,
            began: None,
            put_off: None,
        }
    }

    /// Whether the backend or the home has a part of it.
    pub(super) fn is_out(&self) -> bool {
        match self.stage {
            Stage::Reading | Stage::Acting | Stage::Hardening | Stage::Asking => true,
            Stage::Permit | Stage::Quiet { .. } => false,
        }
    }

    /// When it may go on at the earliest: a sanitize of a rate (bytes per second), or one that was put off.
    fn earliest(&mut self, now: Time, rate: u64, logical: u32) -> Option<Time> {
        self.put_off.filter(|time| *time > now).or_else(|| self.due(now, rate, logical))
    }

    /// When a sanitize of this rate (bytes per second) may go on, if that is later than now.
    fn due(&mut self, now: Time, rate: u64, logical: u32) -> Option<Time> {
        if rate == 0 || !matches!(self.plan, Plan::Sanitize { .. }) {
            return None;
        }
        let began = *self.began.get_or_insert(now);
        let bytes = u128::from(self.done) * u128::from(logical);
        let nanos = u64::try_from(bytes * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let due = began + Duration::from_nanos(nanos);
        (due > now).then_some(due)
    }

    /// Asks for an early end; true if the part that the backend has shall be cancelled.
    pub(super) fn cancel(&mut self) -> bool {
        self.end.get_or_insert(Fault::Aborted.into());
        match self.stage {
            Stage::Reading => true,
            Stage::Acting => !self.plan.is_atomic(),
            Stage::Permit | Stage::Quiet { .. } | Stage::Hardening | Stage::Asking => false,
        }
    }

    /// Asks for an early end if the new view does not admit it. What was admitted for good ends with
    /// the volume only.
    pub(super) fn readmit(&mut self, view: &View) {
        let admitted = match &self.who {
            Some(who) => view.admit(who, &self.plan.op()),
            None if view.not_ready == Some(UnservableReason::Removed) => {
                Err(Refusal::NotReady(UnservableReason::Removed))
            }
            None => Ok(()),
        };
        if let Err(refusal) = admitted {
            self.end.get_or_insert(refusal.into());
        }
        if matches!(self.plan, Plan::Sanitize { .. }) && !self.is_out() {
            // The blocks that it was to take next may be there no more.
            (self.chunk, self.stage) = (None, Stage::Permit);
        }
    }

    /// Whether a part of a sanitize, which waits for nobody's time limit, is to be tried again: what carries it out had
    /// no room. Everything else is answered with that.
    fn is_put_off(&mut self, now: Time, result: &Result<Outcome, Failure>) -> bool {
        let busy = matches!(result, Err(Failure::Refused(Refusal::Busy)));
        if !busy || self.end.is_some() || !matches!(self.plan, Plan::Sanitize { .. }) {
            return false;
        }
        (self.chunk, self.stage, self.put_off) = (None, Stage::Permit, Some(now + BUSY_AGAIN));
        true
    }

    /// Looks at what a chunk has read: what stands now in the scratch memory for the merge, or why
    /// the operation ends.
    fn look(&mut self, chunk: &Chunk, scratch: &mut SgMut, logical: usize) -> Result<(), Fault> {
        let from = (chunk.span.lba - chunk.cover.lba) as usize * logical;
        let len = chunk.span.blocks as usize * logical;
        let at = self.done as usize * logical;
        if let Plan::Verify(_) = self.plan {
            return Ok(());
        }
        if let Plan::Zero { .. } | Plan::Unmap { .. } = self.plan {
            scratch.zero(from..from + len);
            return Ok(());
        }
        let Payload::Out(given) = &self.payload else { return Err(Fault::Internal) };
        match &self.plan {
            Plan::Compare(_) => compare(given, at, scratch, from, len),
            Plan::CompareAndWrite(span) => {
                compare(given, 0, scratch, from, len)?;
                let second = span.blocks as usize * logical;
                overlay(given, second, scratch, from, len);
                Ok(())
            }
            Plan::Or(_) => {
                set_bits(given, at, scratch, from, len);
                Ok(())
            }
            Plan::Same(_) => {
                for block in 0..chunk.span.blocks as usize {
                    overlay(given, 0, scratch, from + block * logical, logical);
                }
                Ok(())
            }
            Plan::Write(..) | Plan::Atomic(_) => {
                overlay(given, at, scratch, from, len);
                Ok(())
            }
            Plan::StableRead(_) | Plan::Verify(_) | Plan::Zero { .. } => Err(Fault::Internal),
            Plan::Unmap { .. } | Plan::Sanitize { .. } | Plan::Mark(_) => Err(Fault::Internal),
        }
    }
}

/// What a step leads to.
enum Next {
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
    pub(super) fn step(&mut self, cx: &mut Cx<'_>, slot: u32) {
        match self.advance(cx, slot) {
            Next::Out => {}
            Next::Wait => self.wait(slot),
            Next::Memory => self.wait_until(slot, cx.now + MEMORY_AGAIN),
            Next::Due(time) => self.wait_until(slot, time),
            Next::End(result) => self.end_steps(slot, result),
        }
    }

    fn wait_until(&mut self, slot: u32, time: Time) {
        self.look_again = Some(self.look_again.map_or(time, |sooner| sooner.min(time)));
        self.wait(slot);
    }

    #[expect(clippy::unreachable, reason = "its callers have found it in steps")]
    fn steps(&mut self, slot: u32) -> &mut Steps {
        match &mut self.task(slot).work {
            Work::Steps(steps) => steps,
            Work::Read { .. } | Work::Write { .. } | Work::Other | Work::Flush | Work::Parked { .. } => {
                unreachable!("a task in steps")
            }
        }
    }

    fn advance(&mut self, cx: &mut Cx<'_>, slot: u32) -> Next {
        let geometry = self.view.geometry;
        let (shared, bad) = (self.shared.clone(), self.view.bad.clone());
        let (shard, guards) = (self.shard, shared.guards());
        let steps = self.steps(slot);
        if let Some(why) = steps.end {
            return Next::End(Err(why));
        }
        let Some(chunk) = steps.chunk.or_else(|| steps.plan.chunk(steps.done, &geometry)) else {
            return Next::End(Ok(Outcome::Complete));
        };
        if steps.chunk.is_none()
            && let Some(due) = steps.earliest(cx.now, shared.sanitize_rate(), geometry.logical)
        {
            return Next::Due(due);
        }
        steps.chunk = Some(chunk);
        if steps.stage == Stage::Permit {
            if !self.has_scratch(cx, slot, chunk.scratch_len(geometry.logical), chunk.kind) {
                return Next::Memory;
            }
            let steps = self.steps(slot);
            let regions = LockRegions::of(chunk.cover, geometry.logical);
            match chunk.permit {
                Permit::None => {}
                Permit::Marks if guards.enter(shard, regions) => steps.marked = regions,
                Permit::Guard if guards.hold(regions, &mut steps.held) => {}
                Permit::Marks | Permit::Guard => return Next::Wait,
            }
            if chunk.permit == Permit::Marks && bad.first_in(chunk.span).is_some() {
                // It makes bad blocks good, which is exclusive. While the marks stand none becomes bad,
                // so that this look is the last.
                guards.leave(shard, std::mem::take(&mut steps.marked));
                steps.chunk = Some(Chunk { permit: Permit::Guard, ..chunk });
                return self.advance(cx, slot);
            }
            steps.stage = Stage::Quiet { since: cx.now };
        }
        let steps = self.steps(slot);
        if let Stage::Quiet { since } = steps.stage
            && chunk.permit == Permit::Guard
            && !guards.is_quiet(steps.held)
        {
            let (least, most) = LOOK_AGAIN;
            return Next::Due(cx.now + cx.now.since(since).clamp(least, most));
        }
        match (chunk.kind, bad.first_in(chunk.span)) {
            (ChunkOp::Mark, _) => {
                self.ask_owner(slot, chunk);
                return Next::Out;
            }
            (ChunkOp::ReadWhole, Some(lba)) => return Next::End(Err(Fault::Medium(lba).into())),
            (_, _) => {}
        }
        self.start_chunk(cx, slot, chunk);
        Next::Out
    }

    /// Takes scratch memory for a chunk, if it needs any. All who wait may hold payloads that fill
    /// the pool, and none would ever end: so one operation at a time may take what is kept for
    /// headers.
    fn has_scratch(&mut self, cx: &mut Cx<'_>, slot: u32, need: usize, kind: ChunkOp) -> bool {
        let may_insist = self.insists.is_none_or(|one| one == slot);
        let steps = self.steps(slot);
        let has_pattern = steps.pattern.as_ref().is_some_and(|pattern| pattern.len() >= need);
        if need == 0 || (kind == ChunkOp::Pattern && has_pattern) {
            return true;
        }
        if steps.scratch.as_ref().is_some_and(|scratch| scratch.len() == need) {
            return true;
        }
        steps.scratch = cx.pool.take_sg(Class::Solicited, need);
        if steps.scratch.is_none() && may_insist {
            steps.scratch = cx.pool.take_sg(Class::Wire, need);
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
        let steps = self.steps(slot);
        steps.stage = Stage::Acting;
        let (op, payload) = match chunk.kind {
            ChunkOp::ReadWhole => (Op::Read(span), std::mem::take(&mut steps.payload)),
            ChunkOp::Read | ChunkOp::Merge(_) => {
                steps.stage = Stage::Reading;
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
        if chunk.permit == Permit::Guard && op.is_write() {
            shared.guards().begin_writing(steps.held);
        }
        self.submit_part(cx, slot, op, payload);
    }

    fn submit_part(&mut self, cx: &mut Cx<'_>, slot: u32, op: Op, payload: Payload) {
        let (id, epoch) = (self.backend_id(slot), self.task(slot).epoch);
        if op == Op::Flush {
            // What it makes stable was written before: no fence waits for a disk's cache.
            self.steps(slot).flushes = true;
            self.flights.finish(epoch);
        }
        self.begin(slot);
        self.backend.submit(cx, Io { id, epoch, op, payload });
    }

    /// The backend has ended a part.
    #[expect(
        clippy::expect_used,
        clippy::unreachable,
        reason = "the backend ends what a chunk has given it, which stays until then"
    )]
    pub(super) fn stepped(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        result: Result<Outcome, Failure>,
        payload: Payload,
    ) {
        // Each part is admitted again: `Steps::readmit` has looked at every view since.
        if std::mem::take(&mut self.steps(slot).flushes) {
            let epoch = self.view.epoch;
            self.flights.start(epoch);
            self.task(slot).epoch = epoch;
        } else {
            self.renew(slot);
        }
        let chunk = self.steps(slot).chunk.expect("a part belongs to a chunk");
        match self.steps(slot).stage {
            Stage::Reading => self.has_read(cx, slot, chunk, result, payload),
            Stage::Acting => self.has_acted(cx, slot, chunk, result, payload),
            Stage::Hardening if result.is_ok() => self.ask_owner(slot, chunk),
            Stage::Hardening => {
                self.end_writing(slot, chunk);
                self.end_steps(slot, result);
            }
            Stage::Permit | Stage::Quiet { .. } | Stage::Asking => unreachable!("the backend had nothing"),
        }
    }

    #[expect(
        clippy::unreachable,
        reason = "backends give memory back as it was given, and a read was given memory to fill"
    )]
    fn has_read(
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
        let steps = self.steps(slot);
        let Payload::In(mut scratch) = payload else { unreachable!("a backend gives memory back as it was") };
        let looked = match (steps.end, result, bad) {
            (Some(why), _, _) | (None, Err(why), _) => Err(why),
            (None, Ok(_), Some(lba)) if steps.plan.looks() => Err(Fault::Medium(lba).into()),
            (None, Ok(_), _) => steps.look(&chunk, &mut scratch, logical).map_err(Failure::from),
        };
        match (looked, chunk.kind) {
            (Err(why), _) => self.end_steps(slot, Err(why)),
            (Ok(()), ChunkOp::Merge(durability)) => {
                steps.stage = Stage::Acting;
                shared.guards().begin_writing(steps.held);
                let op = Op::Write(chunk.cover, durability);
                self.submit_part(cx, slot, op, Payload::Out(scratch.freeze()));
            }
            (Ok(()), _) => {
                steps.scratch = Some(scratch);
                self.next_chunk(cx, slot, chunk);
            }
        }
    }

    fn has_acted(
        &mut self,
        cx: &mut Cx<'_>,
        slot: u32,
        chunk: Chunk,
        result: Result<Outcome, Failure>,
        payload: Payload,
    ) {
        let cures = chunk.permit == Permit::Guard
            && chunk.writes()
            && result.is_ok()
            && self.view.bad.first_in(chunk.span).is_some();
        if cures {
            // The record forgets at once that the blocks were bad. If power then took what was written from a
            // cache, what stood there before they were bad would be read again.
            let stable =
                matches!(chunk.kind, ChunkOp::Write(Durability::Stable) | ChunkOp::Merge(Durability::Stable));
            if stable || !self.view.geometry.write_cache {
                return self.ask_owner(slot, chunk);
            }
            self.steps(slot).stage = Stage::Hardening;
            return self.submit_part(cx, slot, Op::Flush, Payload::None);
        }
        self.end_writing(slot, chunk);
        let steps = self.steps(slot);
        if chunk.kind == ChunkOp::ReadWhole {
            steps.payload = payload;
        }
        if steps.is_put_off(cx.now, &result) {
            return self.wait_until(slot, cx.now + BUSY_AGAIN);
        }
        match result {
            Err(Failure::Refused(Refusal::Unsupported))
                if let Some(merge) = chunk.as_merge(&self.view.geometry) =>
            {
                self.free_permit(slot);
                let steps = self.steps(slot);
                (steps.chunk, steps.stage) = (Some(merge), Stage::Permit);
                self.step(cx, slot);
            }
            Err(why) => self.end_steps(slot, Err(why)),
            Ok(_) => self.next_chunk(cx, slot, chunk),
        }
    }

    /// Readers may look again at what an exclusive chunk wrote.
    fn end_writing(&mut self, slot: u32, chunk: Chunk) {
        if chunk.permit == Permit::Guard && chunk.writes() {
            let shared = self.shared.clone();
            shared.guards().end_writing(self.steps(slot).held);
        }
    }

    /// Asks the home to mark a chunk's blocks, or to clear what was written. The guard stays held.
    #[expect(
        clippy::expect_used,
        reason = "a read and a sanitize, which alone are admitted for good, neither mark nor hold a guard while they write"
    )]
    fn ask_owner(&mut self, slot: u32, chunk: Chunk) {
        let Chunk { span, .. } = chunk;
        let shared = self.shared.clone();
        let steps = self.steps(slot);
        steps.stage = Stage::Asking;
        let who = steps.who.clone().expect("what was admitted for good neither marks nor clears");
        let request = if chunk.kind == ChunkOp::Mark {
            // Readers wait until all cores agree; the write that clears has told them so before.
            shared.guards().begin_writing(steps.held);
            VolumeRequest::MarkBad { who, span }
        } else {
            VolumeRequest::ClearBad { who, span }
        };
        let epoch = self.task(slot).epoch;
        self.flights.finish(epoch);
        self.requests_made += 1;
        let id = RequestId::of(IdSpace::Gate, self.requests_made);
        self.asked.push((id, slot));
        self.requests.push_back((id, request));
    }

    /// The home has answered what [`Gate::poll_request`] gave.
    #[expect(
        clippy::expect_used,
        reason = "the home answers what a chunk has asked, and it stays until then"
    )]
    pub fn answered(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        self.now = cx.now;
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == id) else { return };
        let (_, slot) = self.asked.swap_remove(at);
        let epoch = self.view.epoch;
        self.flights.start(epoch);
        self.task(slot).epoch = epoch;
        let (shared, bad) = (self.shared.clone(), self.view.bad.clone());
        let steps = self.steps(slot);
        let chunk = steps.chunk.expect("a part belongs to a chunk");
        shared.guards().end_writing(steps.held);
        // What was written while it was allowed stands, and shows where blocks were not bad: then a
        // refusal, which says that nothing was done, would be a lie.
        let shows = chunk.writes() && bad.count_in(chunk.span) < chunk.span.blocks;
        let partly = shows || steps.done > 0;
        match result {
            Ok(()) => self.next_chunk(cx, slot, chunk),
            Err(_) if partly => self.end_steps(slot, Err(Fault::Aborted.into())),
            Err(refusal) => self.end_steps(slot, Err(refusal.into())),
        }
    }

    fn next_chunk(&mut self, cx: &mut Cx<'_>, slot: u32, chunk: Chunk) {
        self.free_permit(slot);
        let blocks = self.view.geometry.blocks;
        let progress = self.view.sanitized.clone();
        let steps = self.steps(slot);
        steps.done += chunk.span.blocks;
        steps.chunk = None;
        steps.stage = Stage::Permit;
        if steps.plan.sanitized(&chunk) {
            // The next pass may invert.
            steps.pattern = None;
        }
        if let Some(done) = steps.plan.progress(blocks) {
            progress.set(done);
        }
        if steps.done >= steps.total {
            // The last part stands, whatever was asked meanwhile.
            return self.end_steps(slot, Ok(Outcome::Complete));
        }
        self.step(cx, slot);
    }

    fn free_permit(&mut self, slot: u32) {
        let shared = self.shared.clone();
        let shard = self.shard;
        let steps = self.steps(slot);
        shared.guards().leave(shard, std::mem::take(&mut steps.marked));
        let held = std::mem::take(&mut steps.held);
        if held != LockRegions::NONE {
            shared.guards().release(held);
            self.wakes.extend(shared.guards().waiters().filter(|waiter| *waiter != shard));
            self.may_enter = true;
        }
    }

    fn end_steps(&mut self, slot: u32, result: Result<Outcome, Failure>) {
        if self.insists == Some(slot) {
            self.insists = None;
        }
        self.free_permit(slot);
        let payload = std::mem::take(&mut self.steps(slot).payload);
        self.close(slot, result, payload);
    }
}
