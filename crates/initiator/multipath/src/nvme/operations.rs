//! Operations from their submission to their end: one command for a read or a write, several in sequence for
//! operations that one cannot carry.
//!
//! Invariant: an operation ends once, after the last of its commands, with its memory.

use buf::{Cx, Payload, Time};
use nvme::{Cqe, Status, admin};
use stream::{Tag, earliest};
use volume::{Failure, IoId, Op, Outcome, Refusal};

use super::operation::{
    AbortStage, OperationPlan, PathFacts, PendingOperation, RemainingCommands, worse_error,
};
use super::queue_links::QueueId;
use super::reservation::ReservationCommand;
use super::status::{self, CommandContext};
use super::{AdminPurpose, NvmePath, PathPhase, RETRY_DELAY};
use crate::{DownReason, IoError, PathEvent, ReservationOp};

/// How often operations are looked over: this part of their time.
const SCANS_PER_TIMEOUT: u32 = 8;
/// Until a caller's wish to end an operation is looked at again, where Aborts are short.
const ABORT_RETRY_DELAY: std::time::Duration = std::time::Duration::from_millis(10);

/// Until an operation comes again that a path could not take whose blocks are not known.
const UNKNOWN_FORMAT_RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(1);

impl NvmePath {
    /// [`Path::submit_command`](crate::Path::submit).
    pub(super) fn start_operation(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        mut op: Op,
        payload: Payload,
    ) -> Result<(), (Op, Payload)> {
        let (Some(known), PathPhase::Up) = (&self.known, &self.state) else { return Err((op, payload)) };
        // A read changes nothing. A flush of another volume would be taken for one of what was written here.
        if self.watch.is_identity_in_doubt() && (op.is_write() || matches!(op, Op::Flush)) {
            return Err((op, payload));
        }
        let commands = if matches!(op, Op::CompareAndWrite(_)) { 2 } else { 1 };
        if !self.io_queues.can_carry(commands) {
            // A pair in queues of one command would wait for ever, with all that waits behind it.
            let how = Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(PathEvent::Done { id, how, payload });
            return Ok(());
        }
        if self.operations.is_full() || !self.parked.is_empty() {
            return Err((op, payload));
        }
        let Some(format) = &known.namespace.format else {
            // Nothing is known of its blocks yet.
            self.events.push_back(PathEvent::Done {
                id,
                how: Err(IoError::NotDone(UNKNOWN_FORMAT_RETRY_DELAY)),
                payload,
            });
            return Ok(());
        };
        let Some(queue) = self.io_queues.choose_queue(commands) else { return Err((op, payload)) };
        let who = queue.who;
        let (writes, lba) = (op.is_write(), first_lba(&op));
        let operation = |remaining, payload| PendingOperation {
            id,
            remaining,
            payload,
            pair: None,
            out: 0,
            error: None,
            writes,
            lba,
            until: cx.now + self.settings.times.operation,
            stage: AbortStage::Working,
            parked: false,
        };
        match known.plan_operation(format, &mut op, payload) {
            OperationPlan::Nothing(payload) => {
                self.events.push_back(PathEvent::Done { id, how: Ok(Outcome::Complete), payload });
            }
            OperationPlan::Refused(failure, payload) => {
                self.events.push_back(PathEvent::Done { id, how: Err(IoError::Failed(failure)), payload });
            }
            OperationPlan::One(sqe, payload) => {
                let Ok(tag) = self.operations.insert(operation(RemainingCommands::Last, Payload::None))
                else {
                    return Err((op, payload));
                };
                match self.links.submit_command(cx, who, sqe, payload) {
                    Ok(command) => self.note_command_sent(tag, who, command),
                    Err((_, payload)) => {
                        self.operations.discard(tag);
                        return Err((op, payload));
                    }
                }
            }
            OperationPlan::Pair(pair, whole) => {
                let operation = PendingOperation {
                    pair: Some(whole),
                    ..operation(RemainingCommands::Last, Payload::None)
                };
                let tag = match self.operations.insert(operation) {
                    Ok(tag) => tag,
                    Err(operation) => return Err((op, operation.pair.map_or(Payload::None, Payload::Out))),
                };
                // Both or none: their queue has room for both, or it is gone.
                for (sqe, half) in pair {
                    match self.links.submit_command(cx, who, sqe, half) {
                        Ok(command) => self.note_command_sent(tag, who, command),
                        Err((_, payload)) => {
                            self.note_command_end(tag, payload, Some(IoError::NotDone(RETRY_DELAY)))
                        }
                    }
                }
                self.finish_operation_if_idle(tag);
            }
            OperationPlan::Remaining(remaining) => {
                match self.operations.insert(operation(remaining, Payload::None)) {
                    Ok(tag) => self.send_next_command(cx, tag),
                    Err(operation) => self.events.push_back(PathEvent::Done {
                        id: operation.id,
                        how: Err(IoError::NotDone(RETRY_DELAY)),
                        payload: Payload::None,
                    }),
                }
            }
        }
        self.schedule_timeout_scan(cx.now);
        Ok(())
    }

    /// [`Path::request_reservation`](crate::Path::request_reservation).
    pub(super) fn start_reservation_op(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        let (Some(known), PathPhase::Up) = (self.known, &self.state) else { return Err(request) };
        if self.watch.is_identity_in_doubt() || self.operations.is_full() || !self.parked.is_empty() {
            return Err(request);
        }
        let reservation = known.supports_reservations().then(|| ReservationCommand::new(&request)).flatten();
        let Some(reservation) = reservation else {
            let how = Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(PathEvent::ReservationReply { id, how });
            return Ok(());
        };
        let operation = PendingOperation {
            id,
            writes: reservation.is_change(),
            remaining: RemainingCommands::ReservationOp(reservation),
            payload: Payload::None,
            pair: None,
            out: 0,
            error: None,
            lba: 0,
            until: cx.now + self.settings.times.operation,
            stage: AbortStage::Working,
            parked: false,
        };
        let Ok(tag) = self.operations.insert(operation) else { return Err(request) };
        self.send_next_command(cx, tag);
        self.schedule_timeout_scan(cx.now);
        Ok(())
    }

    /// A command of an operation was started.
    pub(super) fn note_command_sent(&mut self, operation: Tag, who: QueueId, command: Tag) {
        if let Some(queue) = self.io_queues.find_queue(who) {
            queue.note_command_sent(command, operation);
        }
        if let Some(operation) = self.operations.get_mut(operation) {
            operation.out += 1;
        }
    }

    /// Sends the next command of an operation, or lets it wait: for memory or room, or until it is told who the
    /// namespace is.
    fn send_next_command(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, is_ending) =
            (self.watch.is_identity_in_doubt(), matches!(self.state, PathPhase::Ending { .. }));
        let (Some(known), Some(operation)) = (self.known, self.operations.get_mut(tag)) else {
            return;
        };
        let held = unsure
            && (operation.writes || matches!(operation.remaining, RemainingCommands::ReservationOp(_)));
        if held && is_ending {
            // Nothing is asked any more that would tell who the namespace is.
            self.finish_operation_if_idle(tag);
            if self.operations.is_empty() {
                self.run_shutdown_timers(cx);
            }
            return;
        }
        if !held && let Some(queue) = self.io_queues.choose_queue(1) {
            let who = queue.who;
            if let Some((sqe, payload, by)) = known.next_command(cx, &operation.remaining)
                && let Ok(command) = self.links.submit_command(cx, who, sqe, payload)
            {
                operation.remaining.note_command_sent(by);
                operation.start_command_timer(cx.now + self.settings.times.operation);
                return self.note_command_sent(tag, who, command);
            }
        }
        operation.parked = true;
        self.parked.push_back(tag);
        self.schedule_retry(cx.now + RETRY_DELAY);
    }

    /// Lets those go on that wait.
    pub(super) fn resume_parked(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.state, PathPhase::Up | PathPhase::Ending { .. }) || self.retry.is_some() {
            return;
        }
        for _ in 0..self.parked.len() {
            let Some(tag) = self.parked.pop_front() else { return };
            let Some(operation) = self.operations.get_mut(tag) else { continue };
            operation.parked = false;
            self.send_next_command(cx, tag);
        }
    }

    /// A command of an operation has ended.
    pub(super) fn handle_operation_ended(&mut self, cx: &mut Cx<'_>, tag: Tag, cqe: Cqe, payload: Payload) {
        // Nearly every command is all of its operation, and succeeds.
        if cqe.completion().status.is_success()
            && matches!(self.state, PathPhase::Up)
            && let Some(operation) =
                self.operations.get_mut(tag).filter(|operation| operation.is_single_command())
        {
            let own = std::mem::take(&mut operation.payload);
            let payload = if matches!(payload, Payload::None) { own } else { payload };
            let done = PathEvent::Done { id: operation.id, how: Ok(Outcome::Complete), payload };
            self.operations.discard(tag);
            return self.events.push_back(done);
        }
        self.handle_other_command_ended(cx, tag, cqe, payload);
    }

    /// A command has ended that failed, or is not all of its operation, or the path is not up.
    fn handle_other_command_ended(&mut self, cx: &mut Cx<'_>, tag: Tag, cqe: Cqe, payload: Payload) {
        let is_raw = |operation: &PendingOperation| matches!(operation.remaining, RemainingCommands::Raw);
        if self.operations.get(tag).is_some_and(is_raw) {
            return self.handle_raw_command_ended(cx, tag, cqe, payload);
        }
        let status = cqe.completion().status;
        let ours = matches!(self.state, PathPhase::Closing(_))
            && status.without_retry_hints() == Status::HOST_PATH_ERROR;
        let Some(operation) = self.operations.get_mut(tag) else { return };
        operation.out -= 1;
        let mut payload = payload;
        let mut how = None;
        if !status.is_success() {
            let circumstances = CommandContext {
                writes: operation.writes,
                cancelled: operation.stage.is_cancelled(),
                once: operation.pair.is_some(),
                lba: operation.lba,
                retry_delays: self.known.map_or(Default::default(), |known| known.controller.retry_delays),
            };
            how = Some(status::error_of_status((!ours).then_some(status), circumstances));
        } else if let RemainingCommands::ReservationOp(reservation) = &mut operation.remaining
            && let Payload::In(report) = std::mem::take(&mut payload)
        {
            reservation.parse_report(report, self.settings.host_id.bytes());
        }
        let access = status::access_of_status(status);
        // Who knows of other blocks than the controller asks it again.
        let resized = status.without_retry_hints() == Status::LBA_OUT_OF_RANGE;
        self.note_command_end(tag, payload, how);
        if resized && matches!(self.state, PathPhase::Up) {
            self.recheck_namespace_size(cx);
        }
        if let (Some(access), PathPhase::Up) = (access, &self.state) {
            self.note_path_access(cx, access);
        }
        let on = matches!(self.state, PathPhase::Up | PathPhase::Ending { .. });
        let more = self.operations.get(tag).is_some_and(|operation| {
            operation.out == 0
                && operation.error.is_none()
                && !operation.remaining.is_done()
                && !operation.stage.is_cancelled()
        });
        if on && more {
            if let Some(operation) = self.operations.get_mut(tag) {
                // It may have to wait before it is sent: that is part of its time.
                operation.start_command_timer(cx.now + self.settings.times.operation);
            }
            return self.send_next_command(cx, tag);
        }
        self.finish_operation_if_idle(tag);
        self.handle_operations_drained(cx);
    }

    /// An operation has ended, perhaps the last that a path waits for that ends.
    pub(super) fn handle_operations_drained(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.state, PathPhase::Closing(_)) {
            self.finish_closing();
            // A fence may have waited for what was still coming back.
            self.run_fence_timers(cx);
        } else if matches!(self.state, PathPhase::Ending { .. }) && self.operations.is_empty() {
            self.run_shutdown_timers(cx);
        }
    }

    /// Keeps what has become of a command, and its memory if it is the operation's.
    fn note_command_end(&mut self, tag: Tag, payload: Payload, how: Option<IoError>) {
        let Some(operation) = self.operations.get_mut(tag) else { return };
        if matches!(operation.remaining, RemainingCommands::Last) {
            // The halves of a pair come back in any order, and its memory is kept whole beside them.
            if operation.pair.is_none() && !matches!(payload, Payload::None) {
                operation.payload = payload;
            }
        }
        if let Some(how) = how {
            operation.error = Some(worse_error(operation.error.take(), how));
        }
    }

    /// Tells the end of an operation that has nothing in work or waiting.
    pub(super) fn finish_operation_if_idle(&mut self, tag: Tag) {
        if self.operations.get(tag).is_none_or(|operation| operation.out > 0 || operation.parked) {
            return;
        }
        let Some(operation) = self.operations.remove(tag) else { return };
        let PendingOperation { id, remaining, payload, pair, error, stage, .. } = operation;
        let payload = pair.map_or(payload, Payload::Out);
        let failure = error.or_else(|| {
            let cancelled = IoError::Failed(Failure::Failed(volume::Fault::Aborted));
            let stopped =
                if stage.is_cancelled() { cancelled } else { IoError::NotDone(std::time::Duration::ZERO) };
            (!remaining.is_done()).then_some(stopped)
        });
        self.fence.unknown |= matches!(failure, Some(IoError::InDoubt));
        self.events.push_back(match (remaining, failure) {
            (RemainingCommands::ReservationOp(_), Some(error)) => {
                PathEvent::ReservationReply { id, how: Err(error) }
            }
            // A report that cannot be read shows nothing, least of all that nothing is held.
            (RemainingCommands::ReservationOp(reservation), None)
                if reservation.report.is_none() && !reservation.is_change() =>
            {
                PathEvent::ReservationReply {
                    id,
                    how: Err(IoError::Failed(Failure::Failed(volume::Fault::Internal))),
                }
            }
            (RemainingCommands::ReservationOp(reservation), None) => {
                PathEvent::ReservationReply { id, how: Ok(reservation.report) }
            }
            (_, Some(error)) => PathEvent::Done { id, how: Err(error), payload },
            (_, None) => PathEvent::Done { id, how: Ok(Outcome::Complete), payload },
        });
    }

    /// [`Path::cancel`](crate::Path::cancel).
    pub(super) fn cancel_operation(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some(tag) = self.operations.iter().find(|(_, operation)| operation.id == id).map(|(tag, _)| tag)
        else {
            return;
        };
        let Some(operation) = self.operations.get_mut(tag) else { return };
        operation.stage = match operation.stage {
            AbortStage::Working | AbortStage::Unwanted | AbortStage::Late => AbortStage::Unwanted,
            AbortStage::Aborting { .. } => AbortStage::Aborting { wanted: true },
        };
        if operation.parked {
            self.parked.retain(|parked| *parked != tag);
            self.drop_parked_command(tag);
            return;
        }
        self.send_abort(cx, tag);
    }

    /// Sends Abort for what an operation has in work, if one more may be.
    fn send_abort(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (Some(known), Some(operation)) = (self.known, self.operations.get(tag)) else { return };
        let wanted = operation.stage.is_cancelled();
        let admin = self.admin_queue();
        let in_work = self.io_queues.list.iter().find_map(|queue| {
            let command = queue.commands_of(tag).next()?;
            Some((queue.who, self.links.host_queue(queue.who)?.command_id(command)?))
        });
        let in_work = in_work.or_else(|| {
            let command = self.raw_admin.command_of(tag)?;
            Some((admin, self.links.host_queue(admin)?.command_id(command)?))
        });
        let Some((who, cid)) = in_work else { return };
        let most = usize::from(known.controller.aborts).min(4);
        let until = Some(cx.now + self.settings.times.command);
        let abort = (admin::abort_sqe(who.qid, cid), 0);
        let sent = self.admin_commands.count_with_purpose(|purpose| *purpose == AdminPurpose::Abort) < most
            && self.admin_commands.send_command(
                cx,
                &mut self.links,
                admin,
                abort,
                (AdminPurpose::Abort, until),
            );
        if let (Some(operation), true) = (self.operations.get_mut(tag), sent) {
            operation.stage = AbortStage::Aborting { wanted };
            operation.until = cx.now + self.settings.times.abort;
        }
        if !sent {
            self.scan = earliest(self.scan, Some(cx.now + ABORT_RETRY_DELAY));
        }
    }

    /// Operations are looked over from time to time as long as there are any.
    pub(super) fn schedule_timeout_scan(&mut self, now: Time) {
        if self.scan.is_none() && !self.operations.is_empty() {
            self.scan = Some(now + self.settings.times.operation / SCANS_PER_TIMEOUT);
        }
    }

    /// Looks for operations that take too long.
    pub(super) fn check_operation_timeouts(&mut self, cx: &mut Cx<'_>) {
        if self.scan.is_none_or(|scan| scan > cx.now) {
            return;
        }
        self.scan = None;
        if !matches!(self.state, PathPhase::Up | PathPhase::Ending { .. }) {
            return;
        }
        let (mut soonest, mut act, mut deaf) = (None, None, false);
        for (tag, operation) in self.operations.iter_mut() {
            let late = operation.until <= cx.now;
            match operation.stage {
                AbortStage::Working if late => operation.stage = AbortStage::Late,
                AbortStage::Aborting { .. } if late => {
                    deaf = true;
                    continue;
                }
                AbortStage::Working | AbortStage::Aborting { .. } => {
                    soonest = earliest(soonest, Some(operation.until));
                    continue;
                }
                AbortStage::Unwanted | AbortStage::Late => {}
            }
            // What has waited for memory all the time is given up by itself.
            if operation.parked {
                operation.stage = AbortStage::Unwanted;
            }
            act.get_or_insert(tag);
            soonest = earliest(soonest, Some(cx.now + ABORT_RETRY_DELAY));
        }
        if deaf {
            let why = "an operation was not answered in time, and not aborted either";
            return self.end_association(cx, DownReason::Lost(why.to_owned()));
        }
        if let Some(tag) = act {
            self.give_up_operation(cx, tag);
        }
        let slow = cx.now + self.settings.times.operation / SCANS_PER_TIMEOUT;
        let next = soonest.map(|soonest| soonest.max(cx.now + RETRY_DELAY).min(slow));
        self.scan = earliest(self.scan, next);
    }

    fn give_up_operation(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        if self.operations.get(tag).is_some_and(|operation| operation.parked) {
            self.parked.retain(|parked| *parked != tag);
            if let Some(operation) = self.operations.get_mut(tag) {
                operation.error = Some(worse_error(operation.error.take(), IoError::NotDone(RETRY_DELAY)));
            }
            return self.drop_parked_command(tag);
        }
        self.send_abort(cx, tag);
    }
}

impl PathFacts {
    /// Whether there are reservations.
    fn supports_reservations(&self) -> bool {
        self.controller.supports(nvme::identify::IdentifyController::ONCS_RESERVATIONS)
    }
}

/// The first block of an operation.
fn first_lba(op: &Op) -> u64 {
    match op {
        Op::Read(span)
        | Op::Write(span, _)
        | Op::WriteAtomic(span)
        | Op::Compare(span)
        | Op::CompareAndWrite(span)
        | Op::WriteZeroes { span, .. }
        | Op::WriteSame(span)
        | Op::Or(span)
        | Op::Verify(span)
        | Op::MarkBad(span)
        | Op::Prefetch(span)
        | Op::Extents(span) => span.lba,
        Op::Unmap(spans) => spans.first().map_or(0, |span| span.lba),
        Op::Flush | Op::Sanitize(_) => 0,
    }
}
