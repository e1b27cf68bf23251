//! An operation in flight: its commands, one after another if one cannot carry it, and their results.

use buf::{Cx, MemoryClass, Payload, Sg, Time};
use nvme::identify::IdentifyController;
use nvme::io::{BlockTransfer, DatasetManagement};
use nvme::{Opcode, Sqe, admin};
use volume::{Durability, Failure, Fault, IoId, Op, Refusal, Span};

use super::facts::{BLOCKS_PER_COMMAND_MAX, BlockFormat, CommandLimits, ControllerFacts, NamespaceFacts};
use super::reservation::ReservationCommand;
use crate::IoError;

/// FUSE of the first and of the second command of a pair.
const FUSED_FLAGS: [u8; 2] = [1, 2];

/// An operation in work.
#[derive(Debug)]
pub(super) struct PendingOperation {
    pub(super) id: IoId,
    pub(super) remaining: RemainingCommands,
    /// Memory of an operation whose commands have their own, or none.
    pub(super) payload: Payload,
    /// The memory of a pair: what is compared, then what is written.
    pub(super) pair: Option<Sg>,
    /// Commands in work.
    pub(super) out: u8,
    /// The worst that became of a command.
    pub(super) error: Option<IoError>,
    pub(super) writes: bool,
    pub(super) lba: u64,
    /// When something is done about the command that is in work, or waits to be.
    pub(super) until: Time,
    pub(super) stage: AbortStage,
    /// It waits for memory or for room.
    pub(super) parked: bool,
}

impl PendingOperation {
    /// Whether the command in work is all of it.
    #[inline]
    pub(super) fn is_single_command(&self) -> bool {
        matches!(self.remaining, RemainingCommands::Last)
            && self.out == 1
            && self.pair.is_none()
            && self.error.is_none()
            && !self.parked
    }

    /// Its next command has until then, however long those before took.
    pub(super) fn start_command_timer(&mut self, until: Time) {
        self.until = until;
        if let AbortStage::Late | AbortStage::Aborting { wanted: false } = self.stage {
            // An Abort is for the command before, which has ended.
            self.stage = AbortStage::Working;
        }
    }
}

/// How patient we still are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortStage {
    /// It is in work.
    Working,
    /// Its caller wants it to end: Abort is to be sent.
    Unwanted,
    /// Its time is over: Abort is to be sent.
    Late,
    /// Abort was sent, because its caller wanted that, or because its time was over.
    Aborting { wanted: bool },
}

impl AbortStage {
    pub(super) fn is_cancelled(self) -> bool {
        matches!(self, AbortStage::Unwanted | AbortStage::Aborting { wanted: true })
    }
}

/// What is left to do.
#[derive(Debug)]
pub(super) enum RemainingCommands {
    /// One command, or a pair, and nothing behind it.
    Last,
    /// A command without data over blocks, cut to `most`.
    Range { opcode: Opcode, flags: u32, next: u64, end: u64, most: u32 },
    /// Dataset Management over these, from `at` of `done` blocks of it on.
    Unmap { spans: Vec<Span>, at: usize, done: u64 },
    /// Something about reservations.
    ReservationOp(ReservationCommand),
    /// A command of the caller's own, which was sent.
    Raw,
}

/// What is known of the other side.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathFacts {
    pub(super) nsid: u32,
    pub(super) controller: ControllerFacts,
    pub(super) namespace: NamespaceFacts,
    pub(super) limits: CommandLimits,
}

/// The commands that an operation begins with.
pub(super) enum OperationPlan {
    /// This command, with the operation's memory.
    One(Sqe, Payload),
    /// This pair, and what each writes; the memory of both.
    Pair([(Sqe, Payload); 2], Sg),
    /// Commands as [`PendingOperation::remaining`] makes them.
    Remaining(RemainingCommands),
    /// Nothing has to be done.
    Nothing(Payload),
    /// It cannot be done.
    Refused(Failure, Payload),
}

impl PathFacts {
    fn namespace_sqe(&self, opcode: Opcode) -> Sqe {
        let mut sqe = admin::keep_alive_sqe();
        sqe.opcode = opcode;
        sqe.nsid = self.nsid.into();
        sqe
    }

    fn transfer_sqe(&self, opcode: Opcode, lba: u64, blocks: u32, flags: u32) -> Sqe {
        let mut sqe = self.namespace_sqe(opcode);
        BlockTransfer { lba, blocks, flags }.write_to_sqe(&mut sqe);
        sqe
    }

    /// How to carry an operation out on blocks of this shape. Where the namespace ends is for the controller to
    /// say: it may have grown, and we have not heard of it.
    pub(super) fn plan_operation(
        &self,
        format: &BlockFormat,
        op: &mut Op,
        payload: Payload,
    ) -> OperationPlan {
        let can = |bit| self.controller.supports(bit);
        match op {
            Op::Read(span) => self.plan_transfer(format, Opcode::READ, *span, 0, payload),
            Op::Write(span, durability) => {
                let fua = if *durability == Durability::Stable { BlockTransfer::FUA } else { 0 };
                self.plan_transfer(format, Opcode::WRITE, *span, fua, payload)
            }
            Op::WriteAtomic(span) if span.blocks > u64::from(format.geometry.atomic) => {
                OperationPlan::Refused(Refusal::AtomicUnit.into(), payload)
            }
            Op::WriteAtomic(span) => self.plan_transfer(format, Opcode::WRITE, *span, 0, payload),
            Op::Compare(span) if can(IdentifyController::ONCS_COMPARE) => {
                self.plan_transfer(format, Opcode::COMPARE, *span, 0, payload)
            }
            Op::CompareAndWrite(span) => self.plan_compare_and_write(format, *span, payload),
            Op::Flush if !self.controller.write_cache => OperationPlan::Nothing(payload),
            Op::Flush => OperationPlan::One(self.namespace_sqe(Opcode::FLUSH), payload),
            Op::WriteZeroes { span, unmap } if can(IdentifyController::ONCS_WRITE_ZEROES) => {
                let unmap = *unmap && self.namespace.zeroes_deallocate;
                let flags = if unmap { BlockTransfer::DEALLOCATE } else { 0 };
                self.plan_range(Opcode::WRITE_ZEROES, *span, flags, self.limits.write_zeroes, payload)
            }
            Op::Verify(span) if can(IdentifyController::ONCS_VERIFY) => {
                self.plan_range(Opcode::VERIFY, *span, 0, self.limits.verify, payload)
            }
            Op::MarkBad(span) if can(IdentifyController::ONCS_WRITE_UNCORRECTABLE) => {
                let most = self.limits.write_uncorrectable;
                self.plan_range(Opcode::WRITE_UNCORRECTABLE, *span, 0, most, payload)
            }
            Op::Unmap(spans) if can(IdentifyController::ONCS_DATASET_MANAGEMENT) => {
                if spans.iter().any(|span| !is_range_valid(*span)) {
                    return OperationPlan::Refused(Refusal::OutOfRange.into(), payload);
                }
                spans.retain(|span| span.blocks > 0);
                if spans.is_empty() {
                    return OperationPlan::Nothing(payload);
                }
                OperationPlan::Remaining(RemainingCommands::Unmap {
                    spans: std::mem::take(spans),
                    at: 0,
                    done: 0,
                })
            }
            // A hint; NVMe has no command that reads ahead and keeps nothing else from being read.
            Op::Prefetch(span) if is_range_valid(*span) => OperationPlan::Nothing(payload),
            Op::Prefetch(_) => OperationPlan::Refused(Refusal::OutOfRange.into(), payload),
            Op::Compare(_)
            | Op::WriteZeroes { .. }
            | Op::Verify(_)
            | Op::MarkBad(_)
            | Op::Unmap(_)
            | Op::WriteSame(_)
            | Op::Or(_)
            | Op::Extents(_)
            | Op::Sanitize(_) => OperationPlan::Refused(Refusal::Unsupported.into(), payload),
        }
    }

    fn plan_transfer(
        &self,
        format: &BlockFormat,
        opcode: Opcode,
        span: Span,
        flags: u32,
        payload: Payload,
    ) -> OperationPlan {
        if !is_range_valid(span) {
            return OperationPlan::Refused(Refusal::OutOfRange.into(), payload);
        }
        let right = matches!((&payload, opcode), (Payload::In(_), Opcode::READ))
            || opcode != Opcode::READ && matches!(payload, Payload::Out(_));
        let most = u64::from(format.transfer_blocks());
        if span.blocks == 0 && payload.is_empty() {
            return OperationPlan::Nothing(payload);
        }
        if span.blocks > most {
            return OperationPlan::Refused(Refusal::Unsupported.into(), payload);
        }
        if !right || payload.len() as u64 != span.blocks << format.shift {
            return OperationPlan::Refused(Fault::Internal.into(), payload);
        }
        OperationPlan::One(self.transfer_sqe(opcode, span.lba, span.blocks as u32, flags), payload)
    }

    fn plan_compare_and_write(&self, format: &BlockFormat, span: Span, payload: Payload) -> OperationPlan {
        let most = u64::from(format.geometry.caw_max);
        if most == 0 || span.blocks > most {
            return OperationPlan::Refused(Refusal::Unsupported.into(), payload);
        }
        if !is_range_valid(span) {
            return OperationPlan::Refused(Refusal::OutOfRange.into(), payload);
        }
        let half = (span.blocks << format.shift) as usize;
        let (Payload::Out(both), false) = (&payload, half == 0) else {
            return OperationPlan::Refused(Fault::Internal.into(), payload);
        };
        if both.len() != 2 * half {
            return OperationPlan::Refused(Fault::Internal.into(), payload);
        }
        let [first, second] = FUSED_FLAGS;
        let parts = [(Opcode::COMPARE, first, 0..half), (Opcode::WRITE, second, half..2 * half)];
        let pair = parts.map(|(opcode, fused, part)| {
            let mut sqe = self.transfer_sqe(opcode, span.lba, span.blocks as u32, 0);
            sqe.flags = fused;
            (sqe, Payload::Out(both.slice(part)))
        });
        OperationPlan::Pair(pair, both.clone())
    }

    fn plan_range(
        &self,
        opcode: Opcode,
        span: Span,
        flags: u32,
        most: u32,
        payload: Payload,
    ) -> OperationPlan {
        if !is_range_valid(span) {
            return OperationPlan::Refused(Refusal::OutOfRange.into(), payload);
        }
        if span.blocks == 0 {
            return OperationPlan::Nothing(payload);
        }
        let most = most.clamp(1, BLOCKS_PER_COMMAND_MAX);
        OperationPlan::Remaining(RemainingCommands::Range {
            opcode,
            flags,
            next: span.lba,
            end: span.lba + span.blocks,
            most,
        })
    }

    /// The next command of what is left; `None`: memory is short now.
    pub(super) fn next_command(
        &self,
        cx: &mut Cx<'_>,
        remaining: &RemainingCommands,
    ) -> Option<(Sqe, Payload, CommandProgress)> {
        match remaining {
            RemainingCommands::Last | RemainingCommands::Raw => None,
            RemainingCommands::Range { opcode, flags, next, end, most } => {
                let blocks = u64::from(*most).min(end - next);
                let sqe = self.transfer_sqe(*opcode, *next, blocks as u32, *flags);
                Some((sqe, Payload::None, CommandProgress::Blocks(blocks)))
            }
            RemainingCommands::Unmap { spans, at, done } => self.unmap_command(cx, spans, (*at, *done)),
            RemainingCommands::ReservationOp(reservation) => {
                let (sqe, payload) =
                    reservation.next_command(cx, self.namespace_sqe(Opcode::RESERVATION_REPORT))?;
                Some((sqe, payload, CommandProgress::All))
            }
        }
    }

    /// As many ranges as one command takes.
    fn unmap_command(
        &self,
        cx: &mut Cx<'_>,
        spans: &[Span],
        (mut at, mut done): (usize, u64),
    ) -> Option<(Sqe, Payload, CommandProgress)> {
        const DSM_RANGE_LEN: usize = 16;
        let limits = self.limits;
        let room = usize::from(limits.ranges).min(spans.len() - at + 1);
        // Long spans take several ranges, so ask for what there may be, and cut what is not used.
        let wanted =
            spans.iter().skip(at).map(|span| span.blocks.div_ceil(limits.range_blocks.into())).sum::<u64>();
        let room = usize::from(limits.ranges).min(usize::try_from(wanted).unwrap_or(room).max(1));
        let mut list = cx.pool.take_sg(MemoryClass::Wire, room * DSM_RANGE_LEN)?;
        let (mut ranges, mut left) = (0, limits.blocks);
        while ranges < room && left > 0 {
            let Some(span) = spans.get(at) else { break };
            let blocks = (span.blocks - done).min(limits.range_blocks.into()).min(left);
            let mut range = [0; DSM_RANGE_LEN];
            range[4..8].copy_from_slice(&(blocks as u32).to_le_bytes());
            range[8..].copy_from_slice(&(span.lba + done).to_le_bytes());
            list.copy_from(ranges * DSM_RANGE_LEN, &range);
            ranges += 1;
            (done, left) = (done + blocks, left - blocks);
            if done == span.blocks {
                (at, done) = (at + 1, 0);
            }
        }
        list.truncate(ranges * DSM_RANGE_LEN);
        let mut sqe = self.namespace_sqe(Opcode::DATASET_MANAGEMENT);
        DatasetManagement { ranges: ranges as u16, deallocate: true }.write_to_sqe(&mut sqe);
        Some((sqe, Payload::Out(list.freeze()), CommandProgress::Spans(at, done)))
    }
}

/// Whether blocks can have these numbers.
fn is_range_valid(span: Span) -> bool {
    span.end().is_some()
}

/// How far a command brings an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommandProgress {
    Blocks(u64),
    Spans(usize, u64),
    All,
}

impl RemainingCommands {
    /// A command was sent.
    pub(super) fn note_command_sent(&mut self, by: CommandProgress) {
        match (&mut *self, by) {
            (RemainingCommands::Range { next, .. }, CommandProgress::Blocks(blocks)) => *next += blocks,
            (RemainingCommands::Unmap { at, done, .. }, CommandProgress::Spans(to, of)) => {
                (*at, *done) = (to, of)
            }
            (RemainingCommands::ReservationOp(reservation), CommandProgress::All) => reservation.sent = true,
            _ => {}
        }
    }

    /// Whether no command is left to be sent.
    pub(super) fn is_done(&self) -> bool {
        match self {
            RemainingCommands::Last | RemainingCommands::Raw => true,
            RemainingCommands::Range { next, end, .. } => next >= end,
            RemainingCommands::Unmap { spans, at, .. } => *at >= spans.len(),
            RemainingCommands::ReservationOp(reservation) => reservation.sent,
        }
    }
}

/// The worse of two fates: what was not compared equal was certainly not written; else what is unknown
/// outweighs what failed, and that what may be tried again.
pub(super) fn worse_error(a: Option<IoError>, b: IoError) -> IoError {
    let rank = |error: &IoError| match error {
        IoError::Failed(Failure::Failed(Fault::Miscompare(_))) => 3,
        IoError::InDoubt => 2,
        IoError::Failed(_) => 1,
        IoError::NotDone(_) => 0,
    };
    match a {
        Some(a) if rank(&a) >= rank(&b) => a,
        _ => b,
    }
}
