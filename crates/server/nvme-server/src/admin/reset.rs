//! Cross-Controller Reset (NVMe Base 2.3 §5.4.3): a host has this controller reset another one of its own, that it has
//! lost. A shard knows only its own controllers, so every shard is asked.
//!
//! Invariant: the command succeeds only when nothing of the other controller can run any more. So each success says that
//! the reset is complete (IRS), and the log page has no entries.

use buf::Cx;
use nvme::controller_reset::IMMEDIATE_RESET_SUCCESSFUL;
use nvme::{ControllerInstance, Status};

use super::{AdminOutcome, answer_unless_later, take_waiting};
use crate::controller::reset::RESETS_MAX;
use crate::controller::{AdminWait, WaitingCommand};
use crate::server::Server;
use crate::step::{CommandKey, ControllerResetAnswer, ControllerResetRequest, ControllerStep, Step};

/// The command has come.
pub(super) fn start_reset(
    server: &mut Server,
    cntlid: u16,
    (key, cid): (CommandKey, u16),
    instance: ControllerInstance,
) -> Result<AdminOutcome, Status> {
    let id = server.controllers.next_list_id();
    let controller = server.controllers.find_mut(cntlid).ok_or(Status::INTERNAL_ERROR)?;
    if instance.cntlid == cntlid {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let waiting = controller.waiting.iter().filter_map(|waiting| match &waiting.on {
        AdminWait::Reset { instance, .. } => Some(*instance),
        _ => None,
    });
    if waiting.clone().any(|other| other == instance) {
        return Err(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
    }
    if waiting.count() >= RESETS_MAX.into() {
        return Err(Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED);
    }
    let request = ControllerResetRequest {
        instance,
        subsystem: controller.spec.subsystem.nqn.clone(),
        host: controller.spec.host.clone(),
    };
    let on = AdminWait::Reset { id, instance, answers: 0, status: Status::SUCCESS };
    controller.waiting.push(WaitingCommand { key, cid, on });
    server.context.steps.push_back(Step::Other(ControllerStep::ResetController { id, request }));
    Ok(AdminOutcome::Later)
}

impl Server {
    /// One of so many has answered, each shard and the group of gateways, if there is one ([`ControllerStep::ResetController`]).
    pub fn handle_reset_answer(
        &mut self,
        cx: &mut Cx<'_>,
        id: u64,
        shards: u16,
        answer: ControllerResetAnswer,
    ) {
        let is_meant = |waiting: &WaitingCommand| matches!(waiting.on, AdminWait::Reset { id: asked, .. } if asked == id);
        let Some((cntlid, mut waiting)) = take_waiting(self, is_meant) else { return };
        let AdminWait::Reset { answers, status, .. } = &mut waiting.on else { return };
        *answers += 1;
        match answer {
            ControllerResetAnswer::Gone => {}
            ControllerResetAnswer::NotPermitted => *status = Status::INVALID_FIELD.with_do_not_retry(),
            ControllerResetAnswer::Busy => *status = Status::CROSS_CONTROLLER_RESET_LIMIT_EXCEEDED,
            ControllerResetAnswer::Unknown => *status = Status::INTERNAL_ERROR.with_do_not_retry(),
        }
        let (is_complete, status) = (*answers >= shards, *status);
        if !is_complete {
            if let Some(controller) = self.controllers.find_mut(cntlid) {
                controller.waiting.push(waiting);
            }
            return;
        }
        let outcome = if status.is_success() {
            Ok(AdminOutcome::with_result(IMMEDIATE_RESET_SUCCESSFUL))
        } else {
            Err(status)
        };
        answer_unless_later(self, cx.pool, waiting.key, waiting.cid, outcome);
    }
}
