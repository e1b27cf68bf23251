//! Task management functions (RFC 7143 §11.5), and those that wait for the commands before them (§4.2.3.3).

use super::outgoing::OutgoingPdu;
use super::request::TaskManagement;
use super::task::{Task, TaskKind, TaskState, Termination};
use super::tasks::SessionTasks;
use super::window::{CmdSnOrder, HeldRequest};
use crate::links::LinkIndex;
use crate::wire::{Bhs, Pdu, RejectReason, TmfFunction, TmfRequest, TmfResponseCode};
use stream::Tag;

/// Functions that wait for commands, with their tasks.
#[derive(Debug, Default)]
pub(super) struct WaitingTaskFunctions(Vec<(Tag, TaskManagement)>);

impl WaitingTaskFunctions {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &(Tag, TaskManagement)> {
        self.0.iter()
    }

    /// A function that waited in another process.
    pub(super) fn push_restored(&mut self, tag: Tag, request: TaskManagement) {
        self.0.push((tag, request));
    }

    /// A function whose turn has come: answers it, tells the server, or keeps it.
    pub(super) fn begin_function(&mut self, tasks: &mut SessionTasks, index: LinkIndex, bhs: &Bhs) {
        let pdu = TmfRequest::from_bhs(bhs);
        let function = pdu.function();
        let referenced = match tasks.resolve_function(index, pdu) {
            Ok(referenced) => referenced,
            Err(response) => {
                return tasks.links[index].tx.push(OutgoingPdu::Tmf { itt: bhs.itt, response });
            }
        };
        let Some(tag) = tasks.begin_task(index, bhs, TaskKind::Tmf(function, referenced), TaskState::Held)
        else {
            return tasks.links[index].queue_reject(bhs, RejectReason::TOO_MANY_IMMEDIATE);
        };
        tasks.count_in_window(tag);
        let request = TaskManagement { function, lun: pdu.lun.0, referenced };
        if bhs.is_immediate() && ends_unnamed_tasks(function) && tasks.window.exp_cmd_sn().lt(pdu.cmd_sn) {
            self.0.push((tag, request));
        } else {
            tasks.deliver_function(tag, request);
        }
    }

    /// Drops the functions that died with their link while they waited.
    pub(super) fn forget_ended(&mut self, tasks: &SessionTasks) {
        self.0.retain(|(tag, _)| tasks.table.get(*tag).is_some());
    }

    /// Tells of the functions that waited for commands that are here now.
    pub(super) fn deliver_due(&mut self, tasks: &mut SessionTasks) {
        self.0.retain(|(tag, request)| {
            let waits = |task: &Task| tasks.window.exp_cmd_sn().lt(task.cmd_sn);
            let waits = tasks.table.get(*tag).is_some_and(waits);
            if !waits {
                tasks.deliver_function(*tag, *request);
            }
            waits
        });
    }
}

impl SessionTasks {
    /// Which task the function names; or the answer, where none is needed from above.
    fn resolve_function(
        &mut self,
        index: LinkIndex,
        pdu: &TmfRequest,
    ) -> Result<Option<Tag>, TmfResponseCode> {
        match pdu.function() {
            TmfFunction::ABORT_TASK => self.resolve_task(index, pdu, true),
            TmfFunction::QUERY_TASK if self.params.protocol_level >= 2 => {
                self.resolve_task(index, pdu, false)
            }
            TmfFunction::TASK_REASSIGN => Err(TmfResponseCode::NO_REASSIGNMENT),
            TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_ACA
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET => Ok(None),
            TmfFunction::QUERY_TASK_SET
            | TmfFunction::I_T_NEXUS_RESET
            | TmfFunction::QUERY_ASYNCHRONOUS_EVENT
                if self.params.protocol_level >= 2 =>
            {
                Ok(None)
            }
            _other => Err(TmfResponseCode::NOT_SUPPORTED),
        }
    }

    fn resolve_task(
        &mut self,
        index: LinkIndex,
        pdu: &TmfRequest,
        abort: bool,
    ) -> Result<Option<Tag>, TmfResponseCode> {
        if pdu.referenced_tag == pdu.itt {
            return Err(TmfResponseCode::REJECTED);
        }
        let Some(tag) = self.index.find(pdu.referenced_tag.value()) else {
            return Err(self.resolve_absent_task(pdu, abort));
        };
        let Some(task) = self.table.get_mut(tag) else { return Err(TmfResponseCode::NO_TASK) };
        // It is executed on tasks only, and on the link that the task is allegiant to (§11.5.1).
        if task.link != index || !matches!(task.kind, TaskKind::Scsi(_)) {
            return Err(TmfResponseCode::REJECTED);
        }
        if task.lun != pdu.lun {
            return Err(TmfResponseCode::NO_TASK);
        }
        match &mut task.state {
            TaskState::Live => Ok(Some(tag)),
            TaskState::Terminating { how, acked: false } => {
                if abort {
                    *how = Termination::Silent;
                }
                Ok(Some(tag))
            }
            // The server knows nothing of it, or is done with it: it ends here.
            TaskState::Held
            | TaskState::Invalid(_)
            | TaskState::Withdrawn
            | TaskState::Answered(_)
            | TaskState::Terminating { acked: true, .. } => {
                if abort {
                    self.end_task_silently(tag);
                    Err(TmfResponseCode::COMPLETE)
                } else {
                    Err(TmfResponseCode::SUCCEEDED)
                }
            }
        }
    }

    /// A task that is not here: if its command is still missing from the order, an abort closes the
    /// gap (RFC 7143 §11.6.1).
    fn resolve_absent_task(&mut self, pdu: &TmfRequest, abort: bool) -> TmfResponseCode {
        let sn = pdu.ref_cmd_sn;
        let before = sn.lt(pdu.cmd_sn);
        match self.window.cmd_sn_order(sn) {
            CmdSnOrder::Ahead if abort && before => {
                self.window.hold_request(sn, HeldRequest::Skipped);
                TmfResponseCode::COMPLETE
            }
            CmdSnOrder::Next if abort && before => {
                self.window.skips_next = true;
                TmfResponseCode::COMPLETE
            }
            CmdSnOrder::Next | CmdSnOrder::Ahead | CmdSnOrder::Outside => TmfResponseCode::NO_TASK,
        }
    }
}

/// Whether the function ends tasks without naming them.
pub(super) fn ends_unnamed_tasks(function: TmfFunction) -> bool {
    matches!(
        function,
        TmfFunction::ABORT_TASK_SET
            | TmfFunction::CLEAR_TASK_SET
            | TmfFunction::LOGICAL_UNIT_RESET
            | TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET
    )
}
