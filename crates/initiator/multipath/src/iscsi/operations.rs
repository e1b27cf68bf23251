//! The operations in flight: each from its submission to its one end.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Cx, MemoryClass, Payload, SgMut, Time};
use iscsi::initiator::{NoAnswer, Request, Residual, Response, ScsiAnswer, ScsiCommand};
use iscsi::session::Cdb;
use iscsi::wire::{ScsiStatus, TaskAttribute};
use scsi::Command;
use scsi::Writer;
use scsi::cdb::CDB_LEN_MAX;
use scsi::provisioning::encode_unmap;
use stream::{HostConnection, Slab, Tag};
use volume::{Durability, Failure, Fault, IoId, Op, Outcome, Refusal};

use super::disposition::{self, CommandDisposition, FactsRefresh};
use super::plan::{self, CommandForm, CommandMemory, NextCommand, OperationProgress};
use super::unit_facts::UnitCapabilities;
use super::{IscsiPath, RequestOwner};
use crate::{IoError, PathEvent};

/// How often a command is repeated because of unit attentions.
const UNIT_ATTENTIONS_MAX: u16 = 32;
/// How often a command is repeated whose data was damaged, or that the target could not carry out.
const DAMAGED_RETRIES_MAX: u16 = 3;
/// The longest pause between two attempts.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// How soon a command is offered again that found no memory or no room in the target's window.
const RESEND_DELAY: Duration = Duration::from_millis(1);

/// An operation in work.
#[derive(Debug)]
pub(super) struct PendingOperation {
    pub(super) id: IoId,
    op: Op,
    /// The caller's memory, while no command has it.
    payload: Payload,
    at: OperationProgress,
    /// What the command in work is.
    form: CommandForm,
    data: CommandMemory,
    /// Blocks that it does.
    blocks: u64,
    /// When the operation was submitted.
    begun: Time,
    pub(super) state: OperationState,
    attentions: u16,
    damages: u16,
    pauses: u16,
    /// The owner wants it ended.
    pub(super) cancelled: bool,
    /// It vouches for a write that was answered before, and that the target has lost since.
    vouches: bool,
}

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationState {
    /// Its next command is to be sent then.
    Due(Time),
    /// The session has its command.
    Sent { tag: Tag, since: Time },
    /// It took too long: ABORT TASK was sent then.
    Aborting { tag: Tag, since: Time },
    /// ABORT TASK did not end it.
    Stuck { tag: Tag },
}

impl PendingOperation {
    pub(super) fn command_tag(&self) -> Option<Tag> {
        match self.state {
            OperationState::Due(_) => None,
            OperationState::Sent { tag, .. }
            | OperationState::Aborting { tag, .. }
            | OperationState::Stuck { tag } => Some(tag),
        }
    }

    /// Whether it is a plain read or write, and this answer to its command with `len` bytes of memory all that it needs.
    fn is_finished_by(&self, response: &Response, len: usize) -> bool {
        let (Op::Read(span) | Op::Write(span, Durability::Cached)) = &self.op else { return false };
        let Response::Scsi(answer) = response else { return false };
        answer.status == ScsiStatus::GOOD
            && answer.residual == Residual::None
            && answer.transferred as usize == len
            && self.data == CommandMemory::Caller
            && self.blocks == span.blocks
    }

    /// What is owed if nobody knows whether its command was done.
    fn error_if_lost(&self) -> IoError {
        if self.op.is_write() { IoError::InDoubt } else { IoError::NotDone(Duration::ZERO) }
    }

    /// What is owed if its command was ended by task management: what it did not do it never will. A write
    /// that is repeated does no harm; what compares first would find its own doing.
    fn error_if_aborted(&self) -> IoError {
        match self.op {
            Op::CompareAndWrite(_) => IoError::InDoubt,
            _ => IoError::NotDone(Duration::ZERO),
        }
    }

    /// The path's own memory was filled so far: what that says of the operation.
    fn outcome_from_own_memory(&self, own: Payload, good: usize) -> Result<Outcome, Fault> {
        let mut data = vec![0; good.min(own.len())];
        own.into_sg().copy_to(0, &mut data);
        match &self.payload {
            Payload::Out(expected) => {
                let mut wanted = vec![0; expected.len()];
                expected.copy_to(0, &mut wanted);
                match wanted.iter().zip(&data).position(|(a, b)| a != b) {
                    Some(at) => Err(Fault::Miscompare(at as u32)),
                    None if data.len() == wanted.len() => Ok(Outcome::Complete),
                    None => Err(Fault::Internal),
                }
            }
            Payload::None | Payload::In(_) => {
                plan::parse_lba_status(&data, plan::current_span(&self.op, &self.at)).ok_or(Fault::Internal)
            }
        }
    }
}

/// The operations in work, and their clock.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) slab: Slab<PendingOperation>,
    /// A write that had been answered was lost: the next flush tells.
    write_lost: bool,
    /// When the clocks are to be looked at.
    pub(super) look_at: Option<Time>,
}

impl Operations {
    pub(super) fn new(most: usize) -> Self {
        Operations { slab: Slab::new(most), write_lost: false, look_at: None }
    }

    pub(super) fn postpone(&mut self, until: Time, tag: Tag) {
        self.schedule_timeout(until);
        if let Some(operation) = self.slab.get_mut(tag) {
            operation.state = OperationState::Due(until);
        }
    }

    pub(super) fn find_due(&self, now: Time) -> Option<Tag> {
        let due =
            |operation: &PendingOperation| matches!(operation.state, OperationState::Due(at) if at <= now);
        self.slab.iter().find(|(_, operation)| due(operation)).map(|(tag, _)| tag)
    }

    pub(super) fn finish_operation(
        &mut self,
        events: &mut VecDeque<PathEvent>,
        tag: Tag,
        how: Result<Outcome, IoError>,
    ) {
        // Not moved: it is long.
        let Some(operation) = self.slab.get_mut(tag) else { return };
        let (id, vouches, is_flush) = (operation.id, operation.vouches, matches!(operation.op, Op::Flush));
        let payload = std::mem::take(&mut operation.payload);
        self.slab.discard(tag);
        // The target tells of it once. Who does not hear of it by this end hears of it by the next.
        let is_told = vouches && (how.is_ok() || is_flush);
        self.write_lost |= vouches && !is_told;
        let how = if is_told { Err(IoError::Failed(Failure::Failed(Fault::Sync))) } else { how };
        events.push_back(PathEvent::Done { id, how, payload });
    }

    /// Ends what no session has.
    pub(super) fn finish_unsent(&mut self, events: &mut VecDeque<PathEvent>) {
        let due = |operation: &PendingOperation| matches!(operation.state, OperationState::Due(_));
        loop {
            let next = self.slab.iter().find(|(_, operation)| due(operation)).map(|(tag, _)| tag);
            let Some(tag) = next else { return };
            self.finish_operation(events, tag, Err(IoError::NotDone(Duration::ZERO)));
        }
    }

    /// A write that was answered is lost: all that vouch for it and are in work fail, or else the next that does.
    fn note_write_lost(&mut self, can: Option<&UnitCapabilities>) {
        self.write_lost = true;
        for (_, operation) in
            self.slab.iter_mut().filter(|(_, operation)| plan::confirms_earlier_writes(&operation.op, can))
        {
            (operation.vouches, self.write_lost) = (true, false);
        }
    }

    /// The clocks are to be looked at by then.
    pub(super) fn schedule_timeout(&mut self, at: Time) {
        self.look_at = stream::earliest(self.look_at, Some(at));
    }
}

/// The target does not know it. False: it had been told before, or nothing is known.
fn note_unknown_form(can: &mut Option<UnitCapabilities>, form: CommandForm) -> bool {
    can.as_mut().is_some_and(|can| can.note_unknown_form(form))
}

/// What became of an attempt to send a command.
enum SendAttempt {
    Sent(Tag),
    /// No memory, or no room: again soon.
    Later,
}

impl IscsiPath {
    /// Takes an operation on, or gives it back.
    pub(super) fn start_operation(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        op: Op,
        payload: Payload,
    ) -> Result<(), (Op, Payload)> {
        if !self.is_up()
            || self.is_identity_in_doubt()
            || self.operations.slab.len() >= usize::from(self.settings.commands_max())
        {
            return Err((op, payload));
        }
        let filled = matches!(payload, Payload::In(_));
        let refused = match &self.can {
            Some(can) => plan::check_operation(&op, can, filled, payload.len()).map_err(IoError::Failed),
            // Nothing is known of its blocks yet.
            None => Err(IoError::NotDone(RETRY_DELAY_MAX)),
        };
        if let Err(error) = refused {
            self.events.push_back(PathEvent::Done { id, how: Err(error), payload });
            return Ok(());
        }
        let vouches = self.operations.write_lost && plan::confirms_earlier_writes(&op, self.can.as_ref());
        self.operations.write_lost &= !vouches;
        let operation = PendingOperation {
            id,
            op,
            payload,
            at: OperationProgress::default(),
            form: CommandForm::Plain,
            data: CommandMemory::None,
            blocks: 0,
            begun: cx.now,
            state: OperationState::Due(cx.now),
            attentions: 0,
            damages: 0,
            pauses: 0,
            cancelled: false,
            vouches,
        };
        let tag = match self.operations.slab.insert(operation) {
            Ok(tag) => tag,
            Err(operation) => {
                self.operations.write_lost |= operation.vouches;
                return Err((operation.op, operation.payload));
            }
        };
        self.send_next_command(cx, tag);
        // A window that is closed pushes back, unless something has come of the operation already.
        let untouched = |operation: &PendingOperation| {
            matches!(operation.state, OperationState::Due(_)) && operation.pauses == 0
        };
        if self.operations.slab.get(tag).is_some_and(untouched)
            && let Some(operation) = self.operations.slab.remove(tag)
        {
            self.operations.write_lost |= operation.vouches;
            return Err((operation.op, operation.payload));
        }
        Ok(())
    }

    /// Sends the next command of an operation, or ends it.
    pub(super) fn send_next_command(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, limit) = (self.is_identity_in_doubt(), self.settings.timeouts.retry);
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        if unsure && !operation.cancelled {
            return match cx.now > operation.begun + limit {
                true => self.finish_operation(tag, Err(IoError::NotDone(RETRY_DELAY_MAX))),
                false => self.operations.postpone(cx.now + RESEND_DELAY, tag),
            };
        }
        let Some(can) = &self.can else {
            return self.finish_operation(tag, Err(IoError::NotDone(RETRY_DELAY_MAX)));
        };
        match plan::next_command(&operation.op, &mut operation.at, can) {
            NextCommand::Done(outcome) => self.finish_operation(tag, Ok(outcome)),
            NextCommand::Refused(failure) => self.finish_operation(tag, Err(IoError::Failed(failure))),
            NextCommand::Send { .. } if operation.cancelled => {
                self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
            }
            NextCommand::Send { command, long, data, form, blocks } => {
                (operation.form, operation.data, operation.blocks) = (form, data, blocks);
                match self.send_operation_command(cx, tag, &command, long, data) {
                    SendAttempt::Sent(at) => {
                        self.operations.schedule_timeout(cx.now + self.settings.timeouts.command_timeout());
                        if let Some(operation) = self.operations.slab.get_mut(tag) {
                            operation.state = OperationState::Sent { tag: at, since: cx.now };
                        }
                    }
                    SendAttempt::Later => self.operations.postpone(cx.now + RESEND_DELAY, tag),
                }
            }
        }
    }

    /// Offers a command to the session.
    fn send_operation_command(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        command: &Command,
        long: bool,
        data: CommandMemory,
    ) -> SendAttempt {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return SendAttempt::Later };
        let payload = match data {
            CommandMemory::None => Payload::None,
            CommandMemory::Caller => std::mem::take(&mut operation.payload),
            CommandMemory::In(len) => match cx.pool.take_sg(MemoryClass::Solicited, len) {
                Some(memory) => Payload::In(memory),
                None => return SendAttempt::Later,
            },
            CommandMemory::Zeroes(len) => match cx.pool.take_sg(MemoryClass::Solicited, len) {
                Some(mut memory) => {
                    memory.zero(0..len);
                    Payload::Out(memory.freeze())
                }
                None => return SendAttempt::Later,
            },
            CommandMemory::UnmapList(count) => {
                let Some(mut list) = cx.pool.take(MemoryClass::Wire, 8 + 16 * count) else {
                    return SendAttempt::Later;
                };
                let (Op::Unmap(spans), Some(can)) = (&operation.op, &self.can) else {
                    return SendAttempt::Later;
                };
                encode_unmap(plan::unmap_descriptors(spans, operation.at, can), &mut Writer::new(&mut list));
                Payload::Out(SgMut::from(list).freeze())
            }
        };
        match self.submit_command(cx, command, long, payload) {
            Ok(at) => {
                self.owners.insert_owner(at, RequestOwner::Operation(tag));
                SendAttempt::Sent(at)
            }
            Err(payload) => {
                if let (CommandMemory::Caller, Some(operation)) = (data, self.operations.slab.get_mut(tag)) {
                    operation.payload = payload;
                }
                SendAttempt::Later
            }
        }
    }

    /// Offers a command to the session; gives its memory back if there is no room.
    pub(super) fn submit_command(
        &mut self,
        cx: &mut Cx<'_>,
        command: &Command,
        long: bool,
        payload: Payload,
    ) -> Result<Tag, Payload> {
        let Some(wired) = &mut self.sessions.current else { return Err(payload) };
        let mut cdb = [0; CDB_LEN_MAX];
        if long {
            command.encode_long(&mut cdb)
        } else {
            command.encode(&mut cdb)
        };
        let command =
            ScsiCommand { lun: self.lun, cdb: Cdb::Short(cdb), attr: TaskAttribute::SIMPLE, priority: 0 };
        self.touched = true;
        wired.session.submit(cx, Request::Scsi(command), payload).map_err(|(_, payload)| payload)
    }

    /// An operation's command has ended.
    pub(super) fn handle_operation_ended(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        response: Response,
        payload: Payload,
    ) {
        // Nearly every command is a read or a write that has moved all of its data.
        let can_be_last = self.can.is_some() && !self.is_identity_in_doubt();
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        if can_be_last && operation.is_finished_by(&response, payload.len()) {
            operation.payload = payload;
            return self.finish_operation(tag, Ok(Outcome::Complete));
        }
        let len = payload.len();
        let mut own = Payload::None;
        match operation.data {
            CommandMemory::Caller => operation.payload = payload,
            CommandMemory::None
            | CommandMemory::In(_)
            | CommandMemory::Zeroes(_)
            | CommandMemory::UnmapList(_) => own = payload,
        }
        let aborting =
            matches!(operation.state, OperationState::Aborting { .. } | OperationState::Stuck { .. });
        let cancelled = operation.cancelled;
        operation.state = OperationState::Due(cx.now);
        match response {
            Response::Scsi(answer) => self.handle_scsi_answer(cx, tag, &answer, own, len),
            // The command ended without a status (RFC 7143 §11.4.3); it may have been done in part.
            Response::TargetFailure => self.retry_damaged_command(cx, tag),
            Response::Lost(NoAnswer::DataDigest | NoAnswer::Short | NoAnswer::Rejected(_)) => {
                self.retry_damaged_command(cx, tag)
            }
            Response::Lost(NoAnswer::NotSent) => {
                self.finish_operation(tag, Err(IoError::NotDone(Duration::ZERO)))
            }
            Response::Lost(NoAnswer::Unknown) => self.finish_in_doubt(tag),
            Response::Lost(NoAnswer::Aborted) if cancelled => {
                self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
            }
            Response::Lost(NoAnswer::Aborted) if aborting => {
                let error = self
                    .operations
                    .slab
                    .get(tag)
                    .map_or(IoError::InDoubt, PendingOperation::error_if_aborted);
                self.unknown |= matches!(error, IoError::InDoubt);
                self.finish_operation(tag, Err(error));
            }
            // Ended for another's sake.
            Response::Lost(NoAnswer::Aborted) => {
                match self.operations.slab.get(tag).map(PendingOperation::error_if_aborted) {
                    Some(IoError::InDoubt) => self.finish_in_doubt(tag),
                    Some(_) | None => self.retry_damaged_command(cx, tag),
                }
            }
            // The session gives a SCSI command a SCSI answer. What became of any other is not known.
            Response::Task(_) | Response::Targets(_) => self.finish_in_doubt(tag),
        }
    }

    /// The target answered.
    fn handle_scsi_answer(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        answer: &ScsiAnswer,
        own: Payload,
        len: usize,
    ) {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        let span = plan::current_span(&operation.op, &operation.at);
        let classified = disposition::classify_status(answer.status, &answer.sense, span);
        // First of all: it bears on what becomes of this command.
        self.request_refresh(classified.refresh);
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        match classified.disposition {
            CommandDisposition::Done => {
                // Of a list the target need not say that it took it all. What would have been more than we meant
                // was about other blocks: the two of us do not count them alike.
                let is_over = matches!(answer.residual, Residual::Overflow(_));
                let blocks = matches!(operation.data, CommandMemory::Caller | CommandMemory::Zeroes(_));
                let whole = !blocks || answer.transferred as usize == len && !is_over;
                if !whole
                    && operation.form == CommandForm::Compare
                    && note_unknown_form(&mut self.can, CommandForm::Compare)
                {
                    // It took nothing to compare with: it does not know BYTCHK.
                    return self.send_next_command(cx, tag);
                }
                if !whole {
                    // GOOD, but not for all of it.
                    self.request_refresh(FactsRefresh::Medium);
                    return self
                        .finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Internal))));
                }
                if let CommandMemory::In(_) = operation.data {
                    let how = operation.outcome_from_own_memory(own, answer.transferred as usize);
                    let how = how.map_err(|fault| IoError::Failed(Failure::Failed(fault)));
                    return self.finish_operation(tag, how);
                }
                let (form, blocks) = (operation.form, operation.blocks);
                operation.at.note_blocks_done(&operation.op, form, blocks);
                self.send_next_command(cx, tag);
            }
            CommandDisposition::Failed(failure) => self.finish_operation(tag, Err(IoError::Failed(failure))),
            CommandDisposition::Unsupported => {
                let form = operation.form;
                if form == CommandForm::Plain
                    || !note_unknown_form(&mut self.can, form) && form != CommandForm::Stable
                {
                    self.finish_operation(tag, Err(IoError::Failed(Failure::Refused(Refusal::Unsupported))));
                } else {
                    self.send_next_command(cx, tag);
                }
            }
            // It was ended amid its work, and would find its own doing.
            CommandDisposition::Retry(_)
                if matches!(operation.op, Op::CompareAndWrite(_))
                    && disposition::may_be_partly_executed(answer.status, &answer.sense) =>
            {
                self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::PathLost))));
            }
            CommandDisposition::Retry(after) => self.retry_command(cx, tag, after),
            // The path is used no more until it was looked at: on another one it need not wait.
            CommandDisposition::OtherPath(_) if classified.refresh == FactsRefresh::Access => {
                self.note_path_access(&answer.sense);
                self.finish_operation(tag, Err(IoError::NotDone(Duration::ZERO)));
            }
            CommandDisposition::OtherPath(after) => self.finish_operation(tag, Err(IoError::NotDone(after))),
        }
    }

    /// Whether another volume may stand behind the logical unit number by now: nothing is sent before that is
    /// known.
    pub(super) fn is_identity_in_doubt(&self) -> bool {
        let looks = self.probe.as_ref().is_some_and(|probe| probe.scope == FactsRefresh::Identity);
        self.is_up() && (self.to_refresh == FactsRefresh::Identity || looks)
    }

    /// The same command again, if there is still time for it.
    fn retry_command(&mut self, cx: &mut Cx<'_>, tag: Tag, after: Duration) {
        let limit = self.settings.timeouts.retry;
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        if operation.cancelled {
            return self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
        }
        if after.is_zero() {
            operation.attentions += 1;
            let over = operation.attentions > UNIT_ATTENTIONS_MAX;
            return if over {
                self.finish_operation(tag, Err(IoError::NotDone(RETRY_DELAY_MAX)))
            } else {
                self.send_next_command(cx, tag)
            };
        }
        let pause = after.saturating_mul(1 << operation.pauses.min(10)).min(RETRY_DELAY_MAX);
        operation.pauses += 1;
        if cx.now + pause > operation.begun + limit {
            return self.finish_operation(tag, Err(IoError::NotDone(pause)));
        }
        self.operations.postpone(cx.now + pause, tag);
    }

    /// The same once more, a few times: it ended without doing any harm that a repetition would not undo.
    fn retry_damaged_command(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        operation.damages += 1;
        if operation.damages > DAMAGED_RETRIES_MAX {
            return self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Internal))));
        }
        if matches!(operation.op, Op::CompareAndWrite(_)) {
            return self.finish_in_doubt(tag);
        }
        self.send_next_command(cx, tag);
    }

    fn finish_in_doubt(&mut self, tag: Tag) {
        let error = self.operations.slab.get(tag).map_or(IoError::InDoubt, PendingOperation::error_if_lost);
        self.unknown |= matches!(error, IoError::InDoubt);
        self.finish_operation(tag, Err(error));
    }

    pub(super) fn finish_operation(&mut self, tag: Tag, how: Result<Outcome, IoError>) {
        self.operations.finish_operation(&mut self.events, tag, how);
    }

    /// Sends what is due.
    pub(super) fn send_due_commands(&mut self, cx: &mut Cx<'_>) {
        while let Some(tag) = self.operations.find_due(cx.now) {
            self.send_next_command(cx, tag);
        }
    }

    /// Something is to be learnt.
    pub(super) fn request_refresh(&mut self, refresh: FactsRefresh) {
        let rank = |refresh| match refresh {
            FactsRefresh::Nothing | FactsRefresh::WriteLost => 0,
            FactsRefresh::Access => 1,
            FactsRefresh::Medium => 2,
            FactsRefresh::Identity => 3,
        };
        if refresh == FactsRefresh::WriteLost {
            self.operations.note_write_lost(self.can.as_ref());
        }
        if rank(refresh) > rank(self.to_refresh) {
            self.to_refresh = refresh;
        }
    }
}
