//! Raw commands through this session: each is sent once, and its answer is handed up as it is.
//!
//! A command that takes too long is aborted as any other ([`escalation`](super::escalation)). Its sense data tells the
//! path too what has changed.

use buf::{Cx, Payload};
use iscsi::initiator::{NoAnswer, Request, Residual, Response, ScsiAnswer, ScsiCommand};
use iscsi::wire::TaskAttribute;
use stream::{HostConnection, Tag};
use volume::{IoId, Span};

use super::disposition::{self, CommandDisposition, FactsRefresh};
use super::operations::OperationState;
use super::{IscsiPath, RequestOwner};
use crate::PathEvent;
use crate::raw_command::{RAW_COMMANDS_MAX, RawAnswer, RawBody, RawCommand, RawCompletion, RawError};

/// Most raw commands in work at once on one path.
pub(super) const PATH_RAW_COMMANDS_MAX: usize = RAW_COMMANDS_MAX;

/// A raw command that the session has.
#[derive(Debug)]
pub(super) struct PendingRawCommand {
    pub(super) id: IoId,
    pub(super) state: OperationState,
    /// The owner wants it ended.
    pub(super) cancelled: bool,
}

impl IscsiPath {
    /// Sends a raw command, or gives it back.
    pub(super) fn start_raw_command(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        command: RawCommand,
    ) -> Result<(), RawCommand> {
        let room = usize::from(self.settings.commands_max());
        if !self.is_up()
            || self.is_identity_in_doubt()
            || self.operations.slab.len() + self.raw_commands.len() >= room
            || self.raw_commands.is_full()
        {
            return Err(command);
        }
        let RawBody::Scsi(cdb) = &command.body else {
            let done = RawCompletion::without_answer(id, RawError::WrongProtocol, command.payload);
            self.events.push_back(PathEvent::RawDone(done));
            return Ok(());
        };
        let Some(wired) = &mut self.sessions.current else { return Err(command) };
        let request =
            ScsiCommand { lun: self.lun, cdb: cdb.clone(), attr: TaskAttribute::SIMPLE, priority: 0 };
        let RawCommand { payload, .. } = command;
        self.touched = true;
        match wired.session.submit(cx, Request::Scsi(request), payload) {
            Ok(at) => {
                let state = OperationState::Sent { tag: at, since: cx.now };
                if let Ok(tag) = self.raw_commands.insert(PendingRawCommand { id, state, cancelled: false }) {
                    self.owners.insert_owner(at, RequestOwner::Raw(tag));
                }
                self.operations.schedule_timeout(cx.now + self.settings.timeouts.command_timeout());
                Ok(())
            }
            Err((_, payload)) => Err(RawCommand { payload, ..command }),
        }
    }

    /// A raw command has ended.
    pub(super) fn handle_raw_command_ended(&mut self, tag: Tag, response: Response, mut payload: Payload) {
        let Some(pending) = self.raw_commands.remove(tag) else { return };
        let is_late = !pending.cancelled
            && matches!(pending.state, OperationState::Aborting { .. } | OperationState::Stuck { .. });
        let how = match response {
            Response::Scsi(answer) => {
                self.learn_from_raw_answer(&answer);
                if let Payload::In(data) = &mut payload {
                    data.truncate(answer.transferred as usize);
                }
                Ok(raw_answer(&answer))
            }
            Response::Lost(NoAnswer::NotSent) => Err(RawError::NotSent),
            Response::Lost(NoAnswer::Rejected(_)) => Err(RawError::Rejected),
            Response::Lost(NoAnswer::DataDigest | NoAnswer::Short) => Err(RawError::Damaged),
            Response::Lost(NoAnswer::Aborted) if is_late => Err(RawError::TimedOut),
            Response::Lost(NoAnswer::Aborted) => Err(RawError::Aborted),
            Response::TargetFailure => Err(RawError::NoStatus),
            // The session gives a SCSI command a SCSI answer. What became of any other is not known.
            Response::Lost(NoAnswer::Unknown) | Response::Task(_) | Response::Targets(_) => {
                Err(RawError::InDoubt)
            }
        };
        if let (Err(_), Payload::In(data)) = (&how, &mut payload) {
            // Nothing of it is good.
            data.truncate(0);
        }
        self.unknown |= how == Err(RawError::InDoubt);
        self.events.push_back(PathEvent::RawDone(RawCompletion { id: pending.id, how, payload }));
    }

    /// What an answer says of the logical unit is said once, so it counts here too.
    fn learn_from_raw_answer(&mut self, answer: &ScsiAnswer) {
        let nowhere = Span { lba: 0, blocks: 0 };
        let classified = disposition::classify_status(answer.status, &answer.sense, nowhere);
        self.request_refresh(classified.refresh);
        let is_elsewhere = matches!(classified.disposition, CommandDisposition::OtherPath(_));
        if is_elsewhere && classified.refresh == FactsRefresh::Access {
            self.note_path_access(&answer.sense);
        }
    }
}

fn raw_answer(answer: &ScsiAnswer) -> RawAnswer {
    let (underflow, overflow) = match answer.residual {
        Residual::None => (0, 0),
        Residual::Underflow(count) => (count, 0),
        Residual::Overflow(count) => (0, count),
    };
    RawAnswer::Scsi {
        status: answer.status.0,
        sense: answer.sense.to_vec(),
        transferred: answer.transferred,
        underflow,
        overflow,
    }
}
