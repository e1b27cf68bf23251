//! The operations in flight: each from its submission to its one end.

use std::collections::VecDeque;
use std::time::Duration;

use buf::{Class, Cx, Payload, SgMut, Time};
use iscsi::initiator::{NoAnswer, Request, Residual, Response, ScsiAnswer, ScsiCommand};
use iscsi::session::Cdb;
use iscsi::wire::TaskAttribute;
use scsi::Command;
use scsi::Writer;
use scsi::cdb::CDB_LEN_MAX;
use scsi::provisioning::encode_unmap;
use stream::{Host, Slab, Tag};
use volume::{Failure, Fault, IoId, Op, Outcome, Refusal};

use super::disposition::{self, Disposition, Refresh};
use super::plan::{self, Cursor, Data, Form, NextCommand};
use super::unit_facts::Abilities;
use super::{IscsiPath, Owner};
use crate::{Event, IoError};

/// How often a command is repeated because of unit attentions.
const ATTENTIONS_MAX: u16 = 32;
/// How often a command is repeated whose data was damaged, or that the target could not carry out.
const DAMAGES_MAX: u16 = 3;
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How soon a command is offered again that found no memory or no room in the target's window.
const RETRY: Duration = Duration::from_millis(1);

/// An operation in work.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) id: IoId,
    op: Op,
    /// The caller's memory, while no command has it.
    payload: Payload,
    at: Cursor,
    /// What the command in work is.
    form: Form,
    data: Data,
    /// Blocks that it does.
    blocks: u64,
    /// When the operation was submitted.
    begun: Time,
    pub(super) state: State,
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
pub(super) enum State {
    /// Its next command is to be sent then.
    Due(Time),
    /// The session has its command.
    Sent { tag: Tag, since: Time },
    /// It took too long: ABORT TASK was sent then.
    Aborting { tag: Tag, since: Time },
    /// ABORT TASK did not end it.
    Stuck { tag: Tag },
}

impl Operation {
    pub(super) fn tag(&self) -> Option<Tag> {
        match self.state {
            State::Due(_) => None,
            State::Sent { tag, .. } | State::Aborting { tag, .. } | State::Stuck { tag } => Some(tag),
        }
    }

    /// What is owed if nobody knows whether its command was done.
    fn uncertain(&self) -> IoError {
        if self.op.is_write() { IoError::InDoubt } else { IoError::NotDone(Duration::ZERO) }
    }

    /// What is owed if its command was ended by task management: what it did not do it never will. A write
    /// that is repeated does no harm; what compares first would find its own doing.
    fn ended(&self) -> IoError {
        match self.op {
            Op::CompareAndWrite(_) => IoError::InDoubt,
            _ => IoError::NotDone(Duration::ZERO),
        }
    }

    /// The path's own memory was filled so far: what that says of the operation.
    fn take_own(&self, own: Payload, good: usize) -> Result<Outcome, Fault> {
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
                plan::read_extents(&data, plan::span_of(&self.op, &self.at)).ok_or(Fault::Internal)
            }
        }
    }
}

/// The operations in work, and their clock.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) slab: Slab<Operation>,
    /// A write that had been answered was lost: the next flush tells.
    write_lost: bool,
    /// When the clocks are to be looked at.
    pub(super) look_at: Option<Time>,
}

impl Operations {
    pub(super) fn new(most: usize) -> Self {
        Operations { slab: Slab::new(most), write_lost: false, look_at: None }
    }

    pub(super) fn put_off(&mut self, until: Time, tag: Tag) {
        self.note_clock(until);
        if let Some(operation) = self.slab.get_mut(tag) {
            operation.state = State::Due(until);
        }
    }

    pub(super) fn next_due(&self, now: Time) -> Option<Tag> {
        let due = |operation: &Operation| matches!(operation.state, State::Due(at) if at <= now);
        self.slab.iter().find(|(_, operation)| due(operation)).map(|(tag, _)| tag)
    }

    pub(super) fn finish(&mut self, events: &mut VecDeque<Event>, tag: Tag, how: Result<Outcome, IoError>) {
        let Some(Operation { id, payload, op, vouches, .. }) = self.slab.remove(tag) else { return };
        // The target tells of it once. Who does not hear of it by this end hears of it by the next.
        let is_told = vouches && (how.is_ok() || matches!(op, Op::Flush));
        self.write_lost |= vouches && !is_told;
        let how = if is_told { Err(IoError::Failed(Failure::Failed(Fault::Sync))) } else { how };
        events.push_back(Event::Done { id, how, payload });
    }

    /// Ends what no session has.
    pub(super) fn finish_due(&mut self, events: &mut VecDeque<Event>) {
        let due = |operation: &Operation| matches!(operation.state, State::Due(_));
        loop {
            let next = self.slab.iter().find(|(_, operation)| due(operation)).map(|(tag, _)| tag);
            let Some(tag) = next else { return };
            self.finish(events, tag, Err(IoError::NotDone(Duration::ZERO)));
        }
    }

    /// A write that was answered is lost: all that vouch for it and are in work fail, or else the next that does.
    fn lose_write(&mut self, can: Option<&Abilities>) {
        self.write_lost = true;
        for (_, operation) in
            self.slab.iter_mut().filter(|(_, operation)| plan::vouches_for_writes(&operation.op, can))
        {
            (operation.vouches, self.write_lost) = (true, false);
        }
    }

    /// The clocks are to be looked at by then.
    pub(super) fn note_clock(&mut self, at: Time) {
        self.look_at = stream::earliest(self.look_at, Some(at));
    }
}

/// The target does not know it. False: it had been told before, or nothing is known.
fn forget(can: &mut Option<Abilities>, form: Form) -> bool {
    can.as_mut().is_some_and(|can| can.forget(form))
}

/// What became of an attempt to send a command.
enum Sending {
    Sent(Tag),
    /// No memory, or no room: again soon.
    Later,
}

impl IscsiPath {
    /// Takes an operation on, or gives it back.
    pub(super) fn begin(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        op: Op,
        payload: Payload,
    ) -> Result<(), (Op, Payload)> {
        if !self.is_up()
            || self.is_unsure()
            || self.operations.slab.len() >= usize::from(self.settings.commands())
        {
            return Err((op, payload));
        }
        let filled = matches!(payload, Payload::In(_));
        let refused = match &self.can {
            Some(can) => plan::admit(&op, can, filled, payload.len()).map_err(IoError::Failed),
            // Nothing is known of its blocks yet.
            None => Err(IoError::NotDone(PAUSE_MAX)),
        };
        if let Err(error) = refused {
            self.events.push_back(Event::Done { id, how: Err(error), payload });
            return Ok(());
        }
        let vouches = self.operations.write_lost && plan::vouches_for_writes(&op, self.can.as_ref());
        self.operations.write_lost &= !vouches;
        let operation = Operation {
            id,
            op,
            payload,
            at: Cursor::default(),
            form: Form::Plain,
            data: Data::None,
            blocks: 0,
            begun: cx.now,
            state: State::Due(cx.now),
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
        self.go_on(cx, tag);
        // A window that is closed pushes back, unless something has come of the operation already.
        let untouched =
            |operation: &Operation| matches!(operation.state, State::Due(_)) && operation.pauses == 0;
        if self.operations.slab.get(tag).is_some_and(untouched)
            && let Some(operation) = self.operations.slab.remove(tag)
        {
            self.operations.write_lost |= operation.vouches;
            return Err((operation.op, operation.payload));
        }
        Ok(())
    }

    /// Sends the next command of an operation, or ends it.
    pub(super) fn go_on(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let (unsure, limit) = (self.is_unsure(), self.settings.timeouts.retry);
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        if unsure && !operation.cancelled {
            return match cx.now > operation.begun + limit {
                true => self.finish(tag, Err(IoError::NotDone(PAUSE_MAX))),
                false => self.operations.put_off(cx.now + RETRY, tag),
            };
        }
        let Some(can) = &self.can else {
            return self.finish(tag, Err(IoError::NotDone(PAUSE_MAX)));
        };
        match plan::next(&operation.op, &mut operation.at, can) {
            NextCommand::Done(outcome) => self.finish(tag, Ok(outcome)),
            NextCommand::Refused(failure) => self.finish(tag, Err(IoError::Failed(failure))),
            NextCommand::Send { .. } if operation.cancelled => {
                self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
            }
            NextCommand::Send { command, long, data, form, blocks } => {
                (operation.form, operation.data, operation.blocks) = (form, data, blocks);
                match self.send(cx, tag, &command, long, data) {
                    Sending::Sent(at) => {
                        self.operations.note_clock(cx.now + self.settings.timeouts.command());
                        if let Some(operation) = self.operations.slab.get_mut(tag) {
                            operation.state = State::Sent { tag: at, since: cx.now };
                        }
                    }
                    Sending::Later => self.operations.put_off(cx.now + RETRY, tag),
                }
            }
        }
    }

    /// Offers a command to the session.
    fn send(&mut self, cx: &mut Cx<'_>, tag: Tag, command: &Command, long: bool, data: Data) -> Sending {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return Sending::Later };
        let payload = match data {
            Data::None => Payload::None,
            Data::Caller => std::mem::take(&mut operation.payload),
            Data::In(len) => match cx.pool.take_sg(Class::Solicited, len) {
                Some(memory) => Payload::In(memory),
                None => return Sending::Later,
            },
            Data::Zeroes(len) => match cx.pool.take_sg(Class::Solicited, len) {
                Some(mut memory) => {
                    memory.zero(0..len);
                    Payload::Out(memory.freeze())
                }
                None => return Sending::Later,
            },
            Data::UnmapList(count) => {
                let Some(mut list) = cx.pool.take(Class::Wire, 8 + 16 * count) else { return Sending::Later };
                let (Op::Unmap(spans), Some(can)) = (&operation.op, &self.can) else { return Sending::Later };
                encode_unmap(plan::unmap_list(spans, operation.at, can), &mut Writer::new(&mut list));
                Payload::Out(SgMut::from(list).freeze())
            }
        };
        match self.offer(cx, command, long, payload) {
            Ok(at) => {
                self.owners.note(at, Owner::Operation(tag));
                Sending::Sent(at)
            }
            Err(payload) => {
                if let (Data::Caller, Some(operation)) = (data, self.operations.slab.get_mut(tag)) {
                    operation.payload = payload;
                }
                Sending::Later
            }
        }
    }

    /// Offers a command to the session; gives its memory back if there is no room.
    pub(super) fn offer(
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
    pub(super) fn operation_ended(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        response: Response,
        payload: Payload,
    ) {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        let len = payload.len();
        let mut own = Payload::None;
        match operation.data {
            Data::Caller => operation.payload = payload,
            Data::None | Data::In(_) | Data::Zeroes(_) | Data::UnmapList(_) => own = payload,
        }
        let aborting = matches!(operation.state, State::Aborting { .. } | State::Stuck { .. });
        let cancelled = operation.cancelled;
        operation.state = State::Due(cx.now);
        match response {
            Response::Scsi(answer) => self.answered(cx, tag, &answer, own, len),
            // The command ended without a status (RFC 7143 §11.4.3); it may have been done in part.
            Response::TargetFailure => self.repeat_damaged(cx, tag),
            Response::Lost(NoAnswer::DataDigest | NoAnswer::Short | NoAnswer::Rejected(_)) => {
                self.repeat_damaged(cx, tag)
            }
            Response::Lost(NoAnswer::NotSent) => self.finish(tag, Err(IoError::NotDone(Duration::ZERO))),
            Response::Lost(NoAnswer::Unknown) => self.finish_unknown(tag),
            Response::Lost(NoAnswer::Aborted) if cancelled => {
                self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
            }
            Response::Lost(NoAnswer::Aborted) if aborting => {
                let error = self.operations.slab.get(tag).map_or(IoError::InDoubt, Operation::ended);
                self.unknown |= matches!(error, IoError::InDoubt);
                self.finish(tag, Err(error));
            }
            // Ended for another's sake.
            Response::Lost(NoAnswer::Aborted) => match self.operations.slab.get(tag).map(Operation::ended) {
                Some(IoError::InDoubt) => self.finish_unknown(tag),
                Some(_) | None => self.repeat_damaged(cx, tag),
            },
            // The session gives a SCSI command a SCSI answer. What became of any other is not known.
            Response::Task(_) | Response::Targets(_) => self.finish_unknown(tag),
        }
    }

    /// The target answered.
    fn answered(&mut self, cx: &mut Cx<'_>, tag: Tag, answer: &ScsiAnswer, own: Payload, len: usize) {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        let span = plan::span_of(&operation.op, &operation.at);
        let classified = disposition::classify(answer.status, &answer.sense, span);
        // First of all: it bears on what becomes of this command.
        self.refresh(classified.refresh);
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        match classified.disposition {
            Disposition::Done => {
                // Of a list the target need not say that it took it all. What would have been more than we meant
                // was about other blocks: the two of us do not count them alike.
                let is_over = matches!(answer.residual, Residual::Overflow(_));
                let blocks = matches!(operation.data, Data::Caller | Data::Zeroes(_));
                let whole = !blocks || answer.transferred as usize == len && !is_over;
                if !whole && operation.form == Form::Compare && forget(&mut self.can, Form::Compare) {
                    // It took nothing to compare with: it does not know BYTCHK.
                    return self.go_on(cx, tag);
                }
                if !whole {
                    // GOOD, but not for all of it.
                    self.refresh(Refresh::Medium);
                    return self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Internal))));
                }
                if let Data::In(_) = operation.data {
                    let how = operation.take_own(own, answer.transferred as usize);
                    let how = how.map_err(|fault| IoError::Failed(Failure::Failed(fault)));
                    return self.finish(tag, how);
                }
                let (form, blocks) = (operation.form, operation.blocks);
                operation.at.advance(&operation.op, form, blocks);
                self.go_on(cx, tag);
            }
            Disposition::Failed(failure) => self.finish(tag, Err(IoError::Failed(failure))),
            Disposition::Unsupported => {
                let form = operation.form;
                if form == Form::Plain || !forget(&mut self.can, form) && form != Form::Stable {
                    self.finish(tag, Err(IoError::Failed(Failure::Refused(Refusal::Unsupported))));
                } else {
                    self.go_on(cx, tag);
                }
            }
            // It was ended amid its work, and would find its own doing.
            Disposition::Retry(_)
                if matches!(operation.op, Op::CompareAndWrite(_))
                    && disposition::may_be_done(answer.status, &answer.sense) =>
            {
                self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::PathLost))));
            }
            Disposition::Retry(after) => self.repeat(cx, tag, after),
            // The path is used no more until it was looked at: on another one it need not wait.
            Disposition::OtherPath(_) if classified.refresh == Refresh::Access => {
                self.closed(&answer.sense);
                self.finish(tag, Err(IoError::NotDone(Duration::ZERO)));
            }
            Disposition::OtherPath(after) => self.finish(tag, Err(IoError::NotDone(after))),
        }
    }

    /// Whether another volume may stand behind the logical unit number by now: nothing is sent before that is
    /// known.
    pub(super) fn is_unsure(&self) -> bool {
        let looks = self.probe.as_ref().is_some_and(|probe| probe.scope == Refresh::Identity);
        self.is_up() && (self.to_refresh == Refresh::Identity || looks)
    }

    /// The same command again, if there is still time for it.
    fn repeat(&mut self, cx: &mut Cx<'_>, tag: Tag, after: Duration) {
        let limit = self.settings.timeouts.retry;
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        if operation.cancelled {
            return self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))));
        }
        if after.is_zero() {
            operation.attentions += 1;
            let over = operation.attentions > ATTENTIONS_MAX;
            return if over {
                self.finish(tag, Err(IoError::NotDone(PAUSE_MAX)))
            } else {
                self.go_on(cx, tag)
            };
        }
        let pause = after.saturating_mul(1 << operation.pauses.min(10)).min(PAUSE_MAX);
        operation.pauses += 1;
        if cx.now + pause > operation.begun + limit {
            return self.finish(tag, Err(IoError::NotDone(pause)));
        }
        self.operations.put_off(cx.now + pause, tag);
    }

    /// The same once more, a few times: it ended without doing any harm that a repetition would not undo.
    fn repeat_damaged(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        operation.damages += 1;
        if operation.damages > DAMAGES_MAX {
            return self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Internal))));
        }
        if matches!(operation.op, Op::CompareAndWrite(_)) {
            return self.finish_unknown(tag);
        }
        self.go_on(cx, tag);
    }

    fn finish_unknown(&mut self, tag: Tag) {
        let error = self.operations.slab.get(tag).map_or(IoError::InDoubt, Operation::uncertain);
        self.unknown |= matches!(error, IoError::InDoubt);
        self.finish(tag, Err(error));
    }

    pub(super) fn finish(&mut self, tag: Tag, how: Result<Outcome, IoError>) {
        self.operations.finish(&mut self.events, tag, how);
    }

    /// Sends what is due.
    pub(super) fn send_due(&mut self, cx: &mut Cx<'_>) {
        while let Some(tag) = self.operations.next_due(cx.now) {
            self.go_on(cx, tag);
        }
    }

    /// Something is to be learnt.
    pub(super) fn refresh(&mut self, refresh: Refresh) {
        let rank = |refresh| match refresh {
            Refresh::Nothing | Refresh::WriteLost => 0,
            Refresh::Access => 1,
            Refresh::Medium => 2,
            Refresh::Identity => 3,
        };
        if refresh == Refresh::WriteLost {
            self.operations.lose_write(self.can.as_ref());
        }
        if rank(refresh) > rank(self.to_refresh) {
            self.to_refresh = refresh;
        }
    }
}
