//! Operations from their submission to their end: one command for a read or a write, several in sequence for
//! operations that one cannot carry.
//!
//! Invariant: an operation ends once, after the last of its commands, with its memory.

use buf::{Cx, Payload, Time};
use nvme::{Cqe, Status, admin};
use stream::{Tag, earliest};
use volume::{Failure, IoId, Op, Outcome, Refusal};

use super::links::QueueId;
use super::operation::{AbortStage, Operation, OperationPlan, PathFacts, Remaining, worse};
use super::reservation::ReservationCommand;
use super::status::{self, CommandContext};
use super::{AdminPurpose, NvmePath, RETRY, State};
use crate::{DownReason, Event, IoError, ReservationOp};

/// How often operations are looked over: this part of their time.
const SCANS: u32 = 8;
/// Until a caller's wish to end an operation is looked at again, where Aborts are short.
const ABORT_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Until an operation comes again that a path could not take whose blocks are not known.
const UNKNOWN_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

impl NvmePath {
    /// [`Path::submit`](crate::Path::submit).
    pub(super) fn operate(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        mut op: Op,
        payload: Payload,
    ) -> Result<(), (Op, Payload)> {
        let (Some(known), State::Up) = (self.known, &self.state) else { return Err((op, payload)) };
        // A read changes nothing. A flush of another volume would be taken for one of what was written here.
        if self.watch.is_unsure() && (op.is_write() || matches!(op, Op::Flush)) {
            return Err((op, payload));
        }
        let commands = if matches!(op, Op::CompareAndWrite(_)) { 2 } else { 1 };
        if !self.io_queues.carries(commands) {
            // A pair in queues of one command would wait for ever, with all that waits behind it.
            let how = Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(Event::Done { id, how, payload });
            return Ok(());
        }
        if self.operations.is_full() || !self.parked.is_empty() {
            return Err((op, payload));
        }
        let Some(format) = known.namespace.format else {
            // Nothing is known of its blocks yet.
            self.events.push_back(Event::Done { id, how: Err(IoError::NotDone(UNKNOWN_PAUSE)), payload });
            return Ok(());
        };
        let Some(queue) = self.io_queues.choose(commands) else { return Err((op, payload)) };
        let who = queue.who;
        let (writes, lba) = (op.is_write(), first(&op));
        let operation = |remaining, payload| Operation {
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
        match known.plan(&format, &mut op, payload) {
            OperationPlan::Nothing(payload) => {
                self.events.push_back(Event::Done { id, how: Ok(Outcome::Complete), payload });
            }
            OperationPlan::Refused(failure, payload) => {
                self.events.push_back(Event::Done { id, how: Err(IoError::Failed(failure)), payload });
            }
            OperationPlan::One(sqe, payload) => {
                let Ok(tag) = self.operations.insert(operation(Remaining::Last, Payload::None)) else {
                    return Err((op, payload));
                };
                match self.links.submit(cx, who, sqe, payload) {
                    Ok(command) => self.sent(tag, who, command),
                    Err((_, payload)) => {
                        self.operations.discard(tag);
                        return Err((op, payload));
                    }
                }
            }
            OperationPlan::Pair(pair, whole) => {
                let operation = Operation { pair: Some(whole), ..operation(Remaining::Last, Payload::None) };
                let tag = match self.operations.insert(operation) {
                    Ok(tag) => tag,
                    Err(operation) => return Err((op, operation.pair.map_or(Payload::None, Payload::Out))),
                };
                // Both or none: their queue has room for both, or it is gone.
                for (sqe, half) in pair {
                    match self.links.submit(cx, who, sqe, half) {
                        Ok(command) => self.sent(tag, who, command),
                        Err((_, payload)) => {
                            self.note_command_end(tag, payload, Some(IoError::NotDone(RETRY)))
                        }
                    }
                }
                self.finish_if_over(tag);
            }
            OperationPlan::Remaining(remaining) => {
                match self.operations.insert(operation(remaining, Payload::None)) {
                    Ok(tag) => self.go_on(cx, tag),
                    Err(operation) => self.events.push_back(Event::Done {
                        id: operation.id,
                        how: Err(IoError::NotDone(RETRY)),
                        payload: Payload::None,
                    }),
                }
            }
        }
        self.watch_operations(cx.now);
        Ok(())
    }

    /// [`Path::request_reservation`](crate::Path::request_reservation).
    pub(super) fn ask(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        request: ReservationOp,
    ) -> Result<(), ReservationOp> {
        let (Some(known), State::Up) = (self.known, &self.state) else { return Err(request) };
        if self.watch.is_unsure() || self.operations.is_full() || !self.parked.is_empty() {
            return Err(request);
        }
        let reservation = known.can_reserve().then(|| ReservationCommand::new(&request)).flatten();
        let Some(reservation) = reservation else {
            let how = Err(IoError::Failed(Failure::Refused(Refusal::Unsupported)));
            self.events.push_back(Event::ReservationReply { id, how });
            return Ok(());
        };
        let operation = Operation {
            id,
            writes: reservation.acts(),
            remaining: Remaining::ReservationOp(reservation),
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
        self.go_on(cx, tag);
        self.watch_operations(cx.now);
        Ok(())
    }

    /// A command of an operation was started.
    fn sent(&mut self, operation: Tag, who: QueueId, command: Tag) {
        if let Some(queue) = self.io_queues.find(who) {
            queue.put(command, operation);
        }
        if let Some(operation) = self.operations.get_mut(operation) {
            operation.out += 1;
        }
    }

    /// Sends the next command of an operation, or lets it wait: for memory or room, or until it is told who the
    /// namespace is.
    fn go_on(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, is_ending) = (self.watch.is_unsure(), matches!(self.state, State::Ending { .. }));
        let (Some(known), Some(operation)) = (self.known, self.operations.get_mut(tag)) else {
            return;
        };
        let held = unsure && (operation.writes || matches!(operation.remaining, Remaining::ReservationOp(_)));
        if held && is_ending {
            // Nothing is asked any more that would tell who the namespace is.
            self.finish_if_over(tag);
            if self.operations.is_empty() {
                self.ending_clock(cx);
            }
            return;
        }
        if !held && let Some(queue) = self.io_queues.choose(1) {
            let who = queue.who;
            if let Some((sqe, payload, by)) = known.next(cx, &operation.remaining)
                && let Ok(command) = self.links.submit(cx, who, sqe, payload)
            {
                operation.remaining.advance(by);
                operation.begin_command(cx.now + self.settings.times.operation);
                return self.sent(tag, who, command);
            }
        }
        operation.parked = true;
        self.parked.push_back(tag);
        self.retry_at(cx.now + RETRY);
    }

    /// Lets those go on that wait.
    pub(super) fn resume_parked(&mut self, cx: &mut Cx<'_>) {
        if !matches!(self.state, State::Up | State::Ending { .. }) || self.retry.is_some() {
            return;
        }
        for _ in 0..self.parked.len() {
            let Some(tag) = self.parked.pop_front() else { return };
            let Some(operation) = self.operations.get_mut(tag) else { continue };
            operation.parked = false;
            self.go_on(cx, tag);
        }
    }

    /// A command of an operation has ended.
    pub(super) fn command_ended(&mut self, cx: &mut Cx<'_>, tag: Tag, cqe: Cqe, payload: Payload) {
        let status = cqe.completion().status;
        let ours = matches!(self.state, State::Closing(_)) && status.plain() == Status::HOST_PATH_ERROR;
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
            how = Some(status::of((!ours).then_some(status), circumstances));
        } else if let Remaining::ReservationOp(reservation) = &mut operation.remaining
            && let Payload::In(report) = std::mem::take(&mut payload)
        {
            reservation.reported(report, self.settings.host_id.bytes());
        }
        let access = status::access(status);
        // Who knows of other blocks than the controller asks it again.
        let resized = status.plain() == Status::LBA_OUT_OF_RANGE;
        self.note_command_end(tag, payload, how);
        if resized && matches!(self.state, State::Up) {
            self.size_differs(cx);
        }
        if let (Some(access), State::Up) = (access, &self.state) {
            self.path_says(cx, access);
        }
        let on = matches!(self.state, State::Up | State::Ending { .. });
        let more = self.operations.get(tag).is_some_and(|operation| {
            operation.out == 0
                && operation.error.is_none()
                && !operation.remaining.is_done()
                && !operation.stage.is_cancelled()
        });
        if on && more {
            if let Some(operation) = self.operations.get_mut(tag) {
                // It may have to wait before it is sent: that is part of its time.
                operation.begin_command(cx.now + self.settings.times.operation);
            }
            return self.go_on(cx, tag);
        }
        self.finish_if_over(tag);
        if matches!(self.state, State::Closing(_)) {
            self.finish_closing();
        } else if matches!(self.state, State::Ending { .. }) && self.operations.is_empty() {
            self.ending_clock(cx);
        }
    }

    /// Keeps what has become of a command, and its memory if it is the operation's.
    fn note_command_end(&mut self, tag: Tag, payload: Payload, how: Option<IoError>) {
        let Some(operation) = self.operations.get_mut(tag) else { return };
        if matches!(operation.remaining, Remaining::Last) {
            // The halves of a pair come back in any order, and its memory is kept whole beside them.
            if operation.pair.is_none() && !matches!(payload, Payload::None) {
                operation.payload = payload;
            }
        }
        if let Some(how) = how {
            operation.error = Some(worse(operation.error.take(), how));
        }
    }

    /// Tells the end of an operation that has nothing in work or waiting.
    pub(super) fn finish_if_over(&mut self, tag: Tag) {
        if self.operations.get(tag).is_none_or(|operation| operation.out > 0 || operation.parked) {
            return;
        }
        let Some(operation) = self.operations.remove(tag) else { return };
        let Operation { id, remaining, payload, pair, error, stage, .. } = operation;
        let payload = pair.map_or(payload, Payload::Out);
        let failure = error.or_else(|| {
            let cancelled = IoError::Failed(Failure::Failed(volume::Fault::Aborted));
            let stopped =
                if stage.is_cancelled() { cancelled } else { IoError::NotDone(std::time::Duration::ZERO) };
            (!remaining.is_done()).then_some(stopped)
        });
        self.fence.unknown |= matches!(failure, Some(IoError::InDoubt));
        self.events.push_back(match (remaining, failure) {
            (Remaining::ReservationOp(_), Some(error)) => Event::ReservationReply { id, how: Err(error) },
            // A report that cannot be read shows nothing, least of all that nothing is held.
            (Remaining::ReservationOp(reservation), None)
                if reservation.report.is_none() && !reservation.acts() =>
            {
                Event::ReservationReply {
                    id,
                    how: Err(IoError::Failed(Failure::Failed(volume::Fault::Internal))),
                }
            }
            (Remaining::ReservationOp(reservation), None) => {
                Event::ReservationReply { id, how: Ok(reservation.report) }
            }
            (_, Some(error)) => Event::Done { id, how: Err(error), payload },
            (_, None) => Event::Done { id, how: Ok(Outcome::Complete), payload },
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
            self.unpark(tag);
            return;
        }
        self.abort(cx, tag);
    }

    /// Sends Abort for what an operation has in work, if one more may be.
    fn abort(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (Some(known), Some(operation)) = (self.known, self.operations.get(tag)) else { return };
        let wanted = operation.stage.is_cancelled();
        let admin = self.admin();
        let in_work = self.io_queues.list.iter().find_map(|queue| {
            let command = queue.commands(tag).next()?;
            Some((queue.who, self.links.core(queue.who)?.cid(command)?))
        });
        let Some((who, cid)) = in_work else { return };
        let most = usize::from(known.controller.aborts).min(4);
        let until = Some(cx.now + self.settings.times.command);
        let abort = (admin::abort(who.qid, cid), 0);
        let sent = self.admin_commands.count(|purpose| *purpose == AdminPurpose::Abort) < most
            && self.admin_commands.send(cx, &mut self.links, admin, abort, (AdminPurpose::Abort, until));
        if let (Some(operation), true) = (self.operations.get_mut(tag), sent) {
            operation.stage = AbortStage::Aborting { wanted };
            operation.until = cx.now + self.settings.times.abort;
        }
        if !sent {
            self.scan = earliest(self.scan, Some(cx.now + ABORT_PAUSE));
        }
    }

    /// Operations are looked over from time to time as long as there are any.
    fn watch_operations(&mut self, now: Time) {
        if self.scan.is_none() && !self.operations.is_empty() {
            self.scan = Some(now + self.settings.times.operation / SCANS);
        }
    }

    /// Looks for operations that take too long.
    pub(super) fn scan_clock(&mut self, cx: &mut Cx<'_>) {
        if self.scan.is_none_or(|scan| scan > cx.now) {
            return;
        }
        self.scan = None;
        if !matches!(self.state, State::Up | State::Ending { .. }) {
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
            soonest = earliest(soonest, Some(cx.now + ABORT_PAUSE));
        }
        if deaf {
            let why = "an operation was not answered in time, and not aborted either";
            return self.end(cx, DownReason::Lost(why.to_owned()));
        }
        if let Some(tag) = act {
            self.give_up(cx, tag);
        }
        let slow = cx.now + self.settings.times.operation / SCANS;
        let next = soonest.map(|soonest| soonest.max(cx.now + RETRY).min(slow));
        self.scan = earliest(self.scan, next);
    }

    fn give_up(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        if self.operations.get(tag).is_some_and(|operation| operation.parked) {
            self.parked.retain(|parked| *parked != tag);
            if let Some(operation) = self.operations.get_mut(tag) {
                operation.error = Some(worse(operation.error.take(), IoError::NotDone(RETRY)));
            }
            return self.unpark(tag);
        }
        self.abort(cx, tag);
    }
}

impl PathFacts {
    /// Whether there are reservations.
    fn can_reserve(&self) -> bool {
        self.controller.can(nvme::identify::Controller::ONCS_RESERVATIONS)
    }
}

/// The first block of an operation.
fn first(op: &Op) -> u64 {
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
