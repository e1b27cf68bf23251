//! The state of an operation that is composed of several steps of the backend: its plan, how far it is, what its chunk
//! holds and awaits.

mod pattern;

use std::time::Duration;

use buf::{Payload, Sg, SgMut, Time};

use super::byte_ops::{compare_with_scratch, or_into_scratch, overwrite_scratch};
use super::chunk::{Chunk, ChunkPlan};
use crate::io::{Failure, Fault, Op, Outcome, Refusal, Span, UnservableReason};
use crate::region_guards::LockRegions;
use crate::requester::Requester;
use crate::view::View;

/// How soon a sanitize asks a backend again that had no room for a part of it.
pub(super) const BUSY_RETRY_DELAY: Duration = Duration::from_millis(10);

/// The state of an operation in steps.
pub(super) struct ChunkedOp {
    pub(super) plan: ChunkPlan,
    /// `None` for what was admitted once for good: the gate's own repetition of a read, a sanitize.
    pub(super) who: Option<Requester>,
    /// The caller's.
    pub(super) payload: Payload,
    pub(super) done: u64,
    pub(super) chunk: Option<Chunk>,
    pub(super) scratch: Option<SgMut>,
    /// A pattern that fills `scratch`'s length, made once.
    pub(super) pattern: Option<Sg>,
    pub(super) held: LockRegions,
    pub(super) marked: LockRegions,
    pub(super) stage: ChunkStage,
    /// The part that the backend has is a flush: meanwhile it is in no epoch.
    pub(super) flushes: bool,
    /// Why it ends at the next chance.
    pub(super) end: Option<Failure>,
    pub(super) total: u64,
    /// When the first chunk of something paced began.
    began: Option<Time>,
    /// When it goes on at the earliest, since the backend had no room.
    put_off: Option<Time>,
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkStage {
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

impl ChunkedOp {
    pub(super) fn new(who: &Requester, op: Op, payload: Payload) -> ChunkedOp {
        let plan = ChunkPlan::from_op(op);
        let total = plan.total_blocks();
        // A sanitize that has begun goes on, who gains or loses rights meanwhile.
        let who = (!matches!(plan, ChunkPlan::Sanitize { .. })).then(|| who.clone());
        ChunkedOp { who, total, ..ChunkedOp::from_plan(plan, payload) }
    }

    pub(super) fn stable_read(span: Span, payload: Payload) -> ChunkedOp {
        ChunkedOp { total: span.blocks, ..ChunkedOp::from_plan(ChunkPlan::StableRead(span), payload) }
    }

    fn from_plan(plan: ChunkPlan, payload: Payload) -> ChunkedOp {
        ChunkedOp {
            plan,
            who: None,
            payload,
            done: 0,
            chunk: None,
            scratch: None,
            pattern: None,
            held: LockRegions::NONE,
            marked: LockRegions::NONE,
            stage: ChunkStage::Permit,
            flushes: false,
            end: None,
            total: 0,
            began: None,
            put_off: None,
        }
    }

    /// Whether the backend or the home has a part of it.
    pub(super) fn is_outstanding(&self) -> bool {
        match self.stage {
            ChunkStage::Reading | ChunkStage::Acting | ChunkStage::Hardening | ChunkStage::Asking => true,
            ChunkStage::Permit | ChunkStage::Quiet { .. } => false,
        }
    }

    /// When it may go on at the earliest: a sanitize of a rate (bytes per second), or one that was put off.
    pub(super) fn next_allowed_time(&mut self, now: Time, rate: u64, logical: u32) -> Option<Time> {
        self.put_off.filter(|time| *time > now).or_else(|| self.sanitize_pace_time(now, rate, logical))
    }

    /// When a sanitize of this rate (bytes per second) may go on, if that is later than now.
    fn sanitize_pace_time(&mut self, now: Time, rate: u64, logical: u32) -> Option<Time> {
        if rate == 0 || !matches!(self.plan, ChunkPlan::Sanitize { .. }) {
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
            ChunkStage::Reading => true,
            ChunkStage::Acting => !self.plan.is_atomic(),
            ChunkStage::Permit | ChunkStage::Quiet { .. } | ChunkStage::Hardening | ChunkStage::Asking => {
                false
            }
        }
    }

    /// Ends it with this failure as soon as the backend has nothing of it.
    pub(super) fn fail(&mut self, why: Failure) {
        self.end.get_or_insert(why);
    }

    /// Whether it sanitizes the volume.
    pub(super) fn is_sanitize(&self) -> bool {
        matches!(self.plan, ChunkPlan::Sanitize { .. })
    }

    /// Asks for an early end if the new view does not admit it. What was admitted for good ends with
    /// the volume only.
    pub(super) fn readmit(&mut self, view: &View) {
        let admitted = match &self.who {
            Some(who) => view.admit(who, &self.plan.to_op()),
            None if view.not_ready == Some(UnservableReason::Removed) => {
                Err(Refusal::NotReady(UnservableReason::Removed))
            }
            None => Ok(()),
        };
        if let Err(refusal) = admitted {
            self.end.get_or_insert(refusal.into());
        }
        if matches!(self.plan, ChunkPlan::Sanitize { .. }) && !self.is_outstanding() {
            // The blocks that it was to take next may be there no more.
            (self.chunk, self.stage) = (None, ChunkStage::Permit);
        }
    }

    /// Whether a part of a sanitize, which waits for nobody's time limit, is to be tried again: what carries it out had
    /// no room. Everything else is answered with that.
    pub(super) fn postpone_if_busy(&mut self, now: Time, result: &Result<Outcome, Failure>) -> bool {
        let busy = matches!(result, Err(Failure::Refused(Refusal::Busy)));
        if !busy || self.end.is_some() || !matches!(self.plan, ChunkPlan::Sanitize { .. }) {
            return false;
        }
        (self.chunk, self.stage, self.put_off) = (None, ChunkStage::Permit, Some(now + BUSY_RETRY_DELAY));
        true
    }

    /// Looks at what a chunk has read: what stands now in the scratch memory for the merge, or why
    /// the operation ends.
    pub(super) fn process_read_chunk(
        &mut self,
        chunk: &Chunk,
        scratch: &mut SgMut,
        logical: usize,
    ) -> Result<(), Fault> {
        let from = (chunk.span.lba - chunk.cover.lba) as usize * logical;
        let len = chunk.span.blocks as usize * logical;
        let at = self.done as usize * logical;
        if let ChunkPlan::Verify(_) = self.plan {
            return Ok(());
        }
        if let ChunkPlan::Zero { .. } | ChunkPlan::Unmap { .. } = self.plan {
            scratch.zero(from..from + len);
            return Ok(());
        }
        let Payload::Out(given) = &self.payload else { return Err(Fault::Internal) };
        match &self.plan {
            ChunkPlan::Compare(_) => compare_with_scratch(given, at, scratch, from, len),
            ChunkPlan::CompareAndWrite(span) => {
                compare_with_scratch(given, 0, scratch, from, len)?;
                let second = span.blocks as usize * logical;
                overwrite_scratch(given, second, scratch, from, len);
                Ok(())
            }
            ChunkPlan::Or(_) => {
                or_into_scratch(given, at, scratch, from, len);
                Ok(())
            }
            ChunkPlan::Same(_) => {
                for block in 0..chunk.span.blocks as usize {
                    overwrite_scratch(given, 0, scratch, from + block * logical, logical);
                }
                Ok(())
            }
            ChunkPlan::Write(..) | ChunkPlan::Atomic(_) => {
                overwrite_scratch(given, at, scratch, from, len);
                Ok(())
            }
            ChunkPlan::StableRead(_) | ChunkPlan::Verify(_) | ChunkPlan::Zero { .. } => Err(Fault::Internal),
            ChunkPlan::Unmap { .. } | ChunkPlan::Sanitize { .. } | ChunkPlan::Mark(_) => Err(Fault::Internal),
        }
    }
}
