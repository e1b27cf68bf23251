//! Commands that take too long: ABORT TASK, then LOGICAL UNIT RESET, then the end of the session. Each step
//! has its time ([`Timeouts`](super::Timeouts)).

use std::time::Duration;

use buf::{Cx, Payload, Time};
use iscsi::initiator::{Request, Response, TaskManagement};
use iscsi::wire::{TmfFunction, TmfResponseCode};
use stream::{HostConnection, Tag};
use volume::{Failure, Fault, IoId};

use super::operations::OperationState;
use super::{IscsiPath, RequestOwner, Timeouts};
use crate::{DownReason, IoError};

/// How soon a function is offered again that found no room.
const TMF_RETRY_DELAY: Duration = Duration::from_millis(100);

impl IscsiPath {
    /// The owner wants an operation to end early.
    pub(super) fn cancel_operation(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some((tag, _)) = self.operations.slab.iter().find(|(_, operation)| operation.id == id) else {
            return;
        };
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        operation.cancelled = true;
        match operation.state {
            OperationState::Due(_) => {
                self.finish_operation(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted))))
            }
            OperationState::Sent { .. } => self.send_abort_task(cx, tag),
            OperationState::Aborting { .. } | OperationState::Stuck { .. } => {}
        }
    }

    /// Sends ABORT TASK; if there is no room for it, the clock sends it soon.
    fn send_abort_task(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(command) = self.operations.slab.get(tag).and_then(|operation| operation.command_tag())
        else {
            return;
        };
        if !self.submit_abort_task(cx, command, RequestOwner::Abort(tag)) {
            return;
        }
        if let Some(operation) = self.operations.slab.get_mut(tag) {
            operation.state = OperationState::Aborting { tag: command, since: cx.now };
        }
    }

    /// The owner wants a raw command to end early.
    pub(super) fn cancel_raw_command(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some((tag, _)) = self.raw_commands.iter().find(|(_, command)| command.id == id) else { return };
        let Some(command) = self.raw_commands.get_mut(tag) else { return };
        command.cancelled = true;
        if let OperationState::Sent { .. } = command.state {
            self.send_raw_abort_task(cx, tag);
        }
    }

    fn send_raw_abort_task(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(OperationState::Sent { tag: command, .. }) =
            self.raw_commands.get(tag).map(|command| command.state)
        else {
            return;
        };
        if !self.submit_abort_task(cx, command, RequestOwner::AbortRaw(tag)) {
            return;
        }
        if let Some(pending) = self.raw_commands.get_mut(tag) {
            pending.state = OperationState::Aborting { tag: command, since: cx.now };
        }
    }

    /// Sends ABORT TASK and sets the clock: for its answer, or for another try if it found no room.
    fn submit_abort_task(&mut self, cx: &mut Cx<'_>, command: Tag, owner: RequestOwner) -> bool {
        let sent = self.submit_task_management(cx, TmfFunction::ABORT_TASK, Some(command), owner);
        let pause = if sent { self.settings.timeouts.abort } else { TMF_RETRY_DELAY };
        self.operations.schedule_timeout(cx.now + pause);
        sent
    }

    /// As [`handle_abort_response`](IscsiPath::handle_abort_response).
    pub(super) fn handle_raw_abort_response(&mut self, cx: &mut Cx<'_>, tag: Tag, response: &Response) {
        if let Some(command) = self.raw_commands.get_mut(tag)
            && let (OperationState::Aborting { tag, .. }, false) = (command.state, is_abort_done(response))
        {
            command.state = OperationState::Stuck { tag };
            self.operations.schedule_timeout(cx.now);
        }
    }

    fn submit_task_management(
        &mut self,
        cx: &mut Cx<'_>,
        function: TmfFunction,
        of: Option<Tag>,
        owner: RequestOwner,
    ) -> bool {
        let Some(wired) = &mut self.sessions.current else { return false };
        let request = Request::Task(TaskManagement { function, lun: self.lun, referenced: of });
        let Ok(tag) = wired.session.submit(cx, request, Payload::None) else { return false };
        self.touched = true;
        self.owners.insert_owner(tag, owner);
        true
    }

    /// ABORT TASK was answered. If it did what it is for, the operation has ended before it.
    pub(super) fn handle_abort_response(&mut self, cx: &mut Cx<'_>, tag: Tag, response: &Response) {
        if let Some(operation) = self.operations.slab.get_mut(tag)
            && let (OperationState::Aborting { tag, .. }, false) = (operation.state, is_abort_done(response))
        {
            operation.state = OperationState::Stuck { tag };
            self.operations.schedule_timeout(cx.now);
        }
    }

    /// LOGICAL UNIT RESET was answered.
    pub(super) fn handle_reset_response(&mut self, cx: &mut Cx<'_>, response: &Response) {
        self.resetting = None;
        if !matches!(response, Response::Task(TmfResponseCode::COMPLETE) | Response::Lost(_)) {
            self.abort_session(cx, abort_and_reset_failed());
        }
    }

    /// Looks at the clocks of all operations.
    pub(super) fn check_operation_timeouts(&mut self, cx: &mut Cx<'_>) {
        self.operations.look_at = None;
        self.send_due_commands(cx);
        self.send_due_reservation_ops(cx);
        let (now, limits) = (cx.now, self.settings.timeouts.clone());
        let (mut late, mut late_raw) = (Vec::new(), Vec::new());
        let mut reset = false;
        let mut next = self.resetting.map(|since| since + limits.reset);
        for (tag, operation) in self.operations.slab.iter_mut() {
            match next_escalation(&mut operation.state, now, &limits) {
                // What its owner wants ended did not find room for that before.
                Escalation::At(_) if operation.cancelled && is_sent(operation.state) => late.push(tag),
                Escalation::At(at) => next = stream::earliest(next, Some(at)),
                Escalation::AbortTask => late.push(tag),
                Escalation::ResetUnit => reset = true,
            }
        }
        for (tag, command) in self.raw_commands.iter_mut() {
            match next_escalation(&mut command.state, now, &limits) {
                // As above.
                Escalation::At(_) if command.cancelled && is_sent(command.state) => late_raw.push(tag),
                Escalation::At(at) => next = stream::earliest(next, Some(at)),
                Escalation::AbortTask => late_raw.push(tag),
                Escalation::ResetUnit => reset = true,
            }
        }
        if let Some(next) = next {
            self.operations.schedule_timeout(next);
        }
        for tag in late {
            self.send_abort_task(cx, tag);
        }
        for tag in late_raw {
            self.send_raw_abort_task(cx, tag);
        }
        if self.resetting.is_some_and(|since| since + limits.reset <= now) {
            self.abort_session(cx, abort_and_reset_failed());
        } else if reset && self.resetting.is_none() {
            if self.submit_task_management(cx, TmfFunction::LOGICAL_UNIT_RESET, None, RequestOwner::Reset) {
                self.resetting = Some(now);
                self.operations.schedule_timeout(now + limits.reset);
            } else {
                self.operations.schedule_timeout(now + TMF_RETRY_DELAY);
            }
        }
    }
}

/// What is due about a command.
enum Escalation {
    /// Nothing before this time.
    At(Time),
    AbortTask,
    ResetUnit,
}

fn next_escalation(state: &mut OperationState, now: Time, limits: &Timeouts) -> Escalation {
    match *state {
        OperationState::Due(at) => Escalation::At(at),
        OperationState::Sent { since, .. } if since + limits.command_timeout() > now => {
            Escalation::At(since + limits.command_timeout())
        }
        OperationState::Sent { .. } => Escalation::AbortTask,
        OperationState::Aborting { since, .. } if since + limits.abort > now => {
            Escalation::At(since + limits.abort)
        }
        OperationState::Aborting { tag, .. } => {
            *state = OperationState::Stuck { tag };
            Escalation::ResetUnit
        }
        OperationState::Stuck { .. } => Escalation::ResetUnit,
    }
}

fn is_sent(state: OperationState) -> bool {
    matches!(state, OperationState::Sent { .. })
}

fn is_abort_done(response: &Response) -> bool {
    matches!(response, Response::Task(TmfResponseCode::COMPLETE | TmfResponseCode::NO_TASK))
}

fn abort_and_reset_failed() -> DownReason {
    DownReason::Lost(
        "a command took too long, and the target neither aborted it nor reset the logical unit; look \
               into the target's log"
            .to_owned(),
    )
}
