//! Raw commands through this association: admin commands by the admin queue, others by an I/O queue. Each is sent
//! once, and its completion is handed up as it is.
//!
//! A raw command is an operation of one command, so that Abort, the end of the association and the wait for what is in
//! work hold for it as for any other.

use buf::{Cx, Payload};
use nvme::{Cqe, Status};
use stream::Tag;
use volume::IoId;

use super::operation::{AbortStage, PendingOperation, RemainingCommands};
use super::queue_links::QueueId;
use super::{NvmePath, PathPhase, status};
use crate::PathEvent;
use crate::raw_command::{RawAnswer, RawBody, RawCommand, RawCompletion, RawError};

/// Most raw commands in an admin queue: the path's own need the rest of its 32 entries.
const RAW_ADMIN_MAX: usize = 8;

/// Raw commands that an admin queue has: queue, command, operation.
#[derive(Debug, Default)]
pub(super) struct RawAdminCommands(Vec<(QueueId, Tag, Tag)>);

impl RawAdminCommands {
    /// The operation of a command that has ended.
    pub(super) fn take_operation(&mut self, who: QueueId, command: Tag) -> Option<Tag> {
        let at = self.0.iter().position(|(queue, of, _)| *queue == who && *of == command)?;
        Some(self.0.swap_remove(at).2)
    }

    /// The command of an operation.
    pub(super) fn command_of(&self, operation: Tag) -> Option<Tag> {
        self.0.iter().find(|(_, _, of)| *of == operation).map(|(_, command, _)| *command)
    }
}

impl NvmePath {
    /// Sends a raw command, or gives it back.
    pub(super) fn start_raw_command(
        &mut self,
        cx: &mut Cx<'_>,
        id: IoId,
        command: RawCommand,
    ) -> Result<(), RawCommand> {
        let (Some(known), PathPhase::Up) = (self.known, &self.state) else { return Err(command) };
        if self.watch.is_identity_in_doubt() || self.operations.is_full() || !self.parked.is_empty() {
            return Err(command);
        }
        let (who, sqe) = match &command.body {
            RawBody::NvmeAdmin(_) if self.raw_admin.0.len() >= RAW_ADMIN_MAX => return Err(command),
            RawBody::NvmeAdmin(sqe) => (self.admin_queue(), **sqe),
            RawBody::NvmeIo(sqe) => {
                let Some(queue) = self.io_queues.choose_queue(1) else { return Err(command) };
                let mut sqe = **sqe;
                if sqe.nsid.get() == 0 {
                    sqe.nsid = known.nsid.into();
                }
                (queue.who, sqe)
            }
            RawBody::Scsi(_) => {
                let done = RawCompletion::without_answer(id, RawError::WrongProtocol, command.payload);
                self.events.push_back(PathEvent::RawDone(done));
                return Ok(());
            }
        };
        let operation = PendingOperation {
            id,
            remaining: RemainingCommands::Raw,
            payload: Payload::None,
            pair: None,
            out: 0,
            error: None,
            writes: !command.only_reads,
            lba: 0,
            until: cx.now + self.settings.times.operation,
            stage: AbortStage::Working,
            parked: false,
        };
        let Ok(tag) = self.operations.insert(operation) else { return Err(command) };
        let RawCommand { payload, .. } = command;
        match self.links.submit_raw_command(who, sqe, payload) {
            Ok(sent) if who.is_admin() => {
                self.raw_admin.0.push((who, sent, tag));
                if let Some(operation) = self.operations.get_mut(tag) {
                    operation.out += 1;
                }
            }
            Ok(sent) => self.note_command_sent(tag, who, sent),
            Err(payload) => {
                self.operations.discard(tag);
                return Err(RawCommand { payload, ..command });
            }
        }
        self.schedule_timeout_scan(cx.now);
        Ok(())
    }

    /// A raw command has ended.
    pub(super) fn handle_raw_command_ended(
        &mut self,
        cx: &mut Cx<'_>,
        tag: Tag,
        cqe: Cqe,
        mut payload: Payload,
    ) {
        let Some(operation) = self.operations.remove(tag) else { return };
        let end = cqe.completion();
        let plain = end.status.without_retry_hints();
        let is_lost = matches!(self.state, PathPhase::Closing(_)) && plain == Status::HOST_PATH_ERROR;
        let how = match operation.stage {
            _ if is_lost => Err(RawError::InDoubt),
            AbortStage::Late | AbortStage::Aborting { wanted: false } if plain == Status::ABORT_REQUESTED => {
                Err(RawError::TimedOut)
            }
            AbortStage::Unwanted | AbortStage::Aborting { wanted: true }
                if plain == Status::ABORT_REQUESTED =>
            {
                Err(RawError::Aborted)
            }
            // What the transport makes of a wrong data digest.
            _ if plain == Status::TRANSIENT_TRANSPORT_ERROR && matches!(payload, Payload::In(_)) => {
                Err(RawError::Damaged)
            }
            _ => Ok(RawAnswer::Nvme {
                status: end.status.0,
                result: end.result,
                transferred: payload.len() as u32,
            }),
        };
        if let (Err(_), Payload::In(data)) = (&how, &mut payload) {
            // Nothing of it is good.
            data.truncate(0);
        }
        self.fence.unknown |= how == Err(RawError::InDoubt);
        self.events.push_back(PathEvent::RawDone(RawCompletion { id: operation.id, how, payload }));
        if matches!(self.state, PathPhase::Up) {
            if plain == Status::LBA_OUT_OF_RANGE {
                self.recheck_namespace_size(cx);
            }
            if let Some(access) = status::access_of_status(end.status) {
                self.note_path_access(cx, access);
            }
        }
        self.handle_operations_drained(cx);
    }
}
