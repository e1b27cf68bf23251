//! Commands that take too long: ABORT TASK, then LOGICAL UNIT RESET, then the end of the session. Each step
//! has its time ([`Timeouts`](super::Timeouts)).

use std::time::Duration;

use buf::{Cx, Payload};
use iscsi::initiator::{Request, Response, TaskManagement};
use iscsi::wire::{TmfFunction, TmfResponseCode};
use stream::{Host, Tag};
use volume::{Failure, Fault, IoId};

use super::operations::State;
use super::{IscsiPath, Owner};
use crate::{DownReason, IoError};

/// How soon a function is offered again that found no room.
const RETRY: Duration = Duration::from_millis(100);

impl IscsiPath {
    /// The owner wants an operation to end early.
    pub(super) fn abandon(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some((tag, _)) = self.operations.slab.iter().find(|(_, operation)| operation.id == id) else {
            return;
        };
        let Some(operation) = self.operations.slab.get_mut(tag) else { return };
        operation.cancelled = true;
        match operation.state {
            State::Due(_) => self.finish(tag, Err(IoError::Failed(Failure::Failed(Fault::Aborted)))),
            State::Sent { .. } => self.abort(cx, tag),
            State::Aborting { .. } | State::Stuck { .. } => {}
        }
    }

    /// Sends ABORT TASK; if there is no room for it, the clock sends it later.
    fn abort(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(command) = self.operations.slab.get(tag).and_then(|operation| operation.tag()) else {
            return;
        };
        let owner = Owner::Abort(tag);
        if self.manage(cx, TmfFunction::ABORT_TASK, Some(command), owner)
            && let Some(operation) = self.operations.slab.get_mut(tag)
        {
            operation.state = State::Aborting { tag: command, since: cx.now };
            self.operations.note_clock(cx.now + self.settings.timeouts.abort);
        }
    }

    fn manage(&mut self, cx: &mut Cx<'_>, function: TmfFunction, of: Option<Tag>, owner: Owner) -> bool {
        let Some(wired) = &mut self.sessions.current else { return false };
        let request = Request::Task(TaskManagement { function, lun: self.lun, referenced: of });
        let Ok(tag) = wired.session.submit(cx, request, Payload::None) else { return false };
        self.touched = true;
        self.owners.note(tag, owner);
        true
    }

    /// ABORT TASK was answered. If it did what it is for, the operation has ended before it.
    pub(super) fn abort_answered(&mut self, cx: &mut Cx<'_>, tag: Tag, response: &Response) {
        let done = matches!(response, Response::Task(TmfResponseCode::COMPLETE | TmfResponseCode::NO_TASK));
        if let Some(operation) = self.operations.slab.get_mut(tag)
            && let (State::Aborting { tag, .. }, false) = (operation.state, done)
        {
            operation.state = State::Stuck { tag };
            self.operations.note_clock(cx.now);
        }
    }

    /// LOGICAL UNIT RESET was answered.
    pub(super) fn reset_answered(&mut self, cx: &mut Cx<'_>, response: &Response) {
        self.resetting = None;
        if !matches!(response, Response::Task(TmfResponseCode::COMPLETE) | Response::Lost(_)) {
            self.end_session(cx, stuck());
        }
    }

    /// Looks at the clocks of all operations.
    pub(super) fn check_operations(&mut self, cx: &mut Cx<'_>) {
        self.operations.look_at = None;
        self.send_due(cx);
        self.send_due_requests(cx);
        let (now, limits) = (cx.now, self.settings.timeouts.clone());
        let mut late = Vec::new();
        let mut reset = false;
        let mut next = self.resetting.map(|since| since + limits.reset);
        for (tag, operation) in self.operations.slab.iter_mut() {
            let at = match operation.state {
                State::Due(at) => at,
                State::Sent { since, .. } if since + limits.command() > now => since + limits.command(),
                State::Sent { .. } => {
                    late.push(tag);
                    now + RETRY
                }
                State::Aborting { since, .. } if since + limits.abort > now => since + limits.abort,
                State::Aborting { tag, .. } => {
                    operation.state = State::Stuck { tag };
                    reset = true;
                    continue;
                }
                State::Stuck { .. } => {
                    reset = true;
                    continue;
                }
            };
            next = stream::earliest(next, Some(at));
        }
        if let Some(next) = next {
            self.operations.note_clock(next);
        }
        for tag in late {
            self.abort(cx, tag);
        }
        if self.resetting.is_some_and(|since| since + limits.reset <= now) {
            self.end_session(cx, stuck());
        } else if reset && self.resetting.is_none() {
            if self.manage(cx, TmfFunction::LOGICAL_UNIT_RESET, None, Owner::Reset) {
                self.resetting = Some(now);
                self.operations.note_clock(now + limits.reset);
            } else {
                self.operations.note_clock(now + RETRY);
            }
        }
    }
}

fn stuck() -> DownReason {
    DownReason::Lost(
        "a command took too long, and the target neither aborted it nor reset the logical unit; look \
               into the target's log"
            .to_owned(),
    )
}
