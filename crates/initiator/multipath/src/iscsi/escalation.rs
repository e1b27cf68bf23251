//! Commands that take too long, and what is done about them: ABORT TASK, then LOGICAL UNIT RESET, then the
//! end of the session. Each step has its time ([`Timeouts`](super::Timeouts)).

use std::time::Duration;

use buf::{Cx, Payload};
use iscsi::initiator::{Request, Response, TaskManagement};
use iscsi::wire::{TmfFunction, TmfResponseCode};
use stream::{Host, Tag};
use volume::{Failure, Fault, IoId};

use super::work::State;
use super::{IscsiPath, Owner};
use crate::{Fate, Why};

/// How soon a function is offered again that found no room.
const RETRY: Duration = Duration::from_millis(100);

impl IscsiPath {
    /// The owner wants an operation to end early.
    pub(super) fn abandon(&mut self, cx: &mut Cx<'_>, id: IoId) {
        let Some((tag, _)) = self.works.iter().find(|(_, work)| work.id == id) else { return };
        let Some(work) = self.works.get_mut(tag) else { return };
        work.cancelled = true;
        match work.state {
            State::Due(_) => self.finish(tag, Err(Fate::Failed(Failure::Failed(Fault::Aborted)))),
            State::Sent { .. } => self.abort(cx, tag),
            State::Aborting { .. } | State::Stuck { .. } => {}
        }
    }

    /// Sends ABORT TASK; if there is no room for it, the clock sends it later.
    fn abort(&mut self, cx: &mut Cx<'_>, tag: Tag) {
        let Some(command) = self.works.get(tag).and_then(|work| work.tag()) else { return };
        let owner = Owner::Abort(tag);
        if self.manage(cx, TmfFunction::ABORT_TASK, Some(command), owner)
            && let Some(work) = self.works.get_mut(tag)
        {
            work.state = State::Aborting { tag: command, since: cx.now };
            self.note_clock(cx.now + self.settings.timeouts.abort);
        }
    }

    fn manage(&mut self, cx: &mut Cx<'_>, function: TmfFunction, of: Option<Tag>, owner: Owner) -> bool {
        let Some(nexus) = &mut self.nexuses.now else { return false };
        let request = Request::Task(TaskManagement { function, lun: self.lun, referenced: of });
        let Ok(tag) = nexus.session.submit(cx, request, Payload::None) else { return false };
        self.touched = true;
        self.own(tag, owner);
        true
    }

    /// ABORT TASK was answered. If it did what it is for, the operation has ended before it.
    pub(super) fn abort_answered(&mut self, cx: &mut Cx<'_>, tag: Tag, response: &Response) {
        let done = matches!(response, Response::Task(TmfResponseCode::COMPLETE | TmfResponseCode::NO_TASK));
        if let Some(work) = self.works.get_mut(tag)
            && let (State::Aborting { tag, .. }, false) = (work.state, done)
        {
            work.state = State::Stuck { tag };
            self.note_clock(cx.now);
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
    pub(super) fn look_at_works(&mut self, cx: &mut Cx<'_>) {
        self.look_at = None;
        self.send_due(cx);
        self.send_due_claims(cx);
        let (now, limits) = (cx.now, self.settings.timeouts.clone());
        let mut late = Vec::new();
        let mut reset = false;
        let mut next = self.resetting.map(|since| since + limits.reset);
        for (tag, work) in self.works.iter_mut() {
            let at = match work.state {
                State::Due(at) => at,
                State::Sent { since, .. } if since + limits.command() > now => since + limits.command(),
                State::Sent { .. } => {
                    late.push(tag);
                    now + RETRY
                }
                State::Aborting { since, .. } if since + limits.abort > now => since + limits.abort,
                State::Aborting { tag, .. } => {
                    work.state = State::Stuck { tag };
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
            self.note_clock(next);
        }
        for tag in late {
            self.abort(cx, tag);
        }
        if self.resetting.is_some_and(|since| since + limits.reset <= now) {
            self.end_session(cx, stuck());
        } else if reset && self.resetting.is_none() {
            if self.manage(cx, TmfFunction::LOGICAL_UNIT_RESET, None, Owner::Reset) {
                self.resetting = Some(now);
                self.note_clock(now + limits.reset);
            } else {
                self.note_clock(now + RETRY);
            }
        }
    }
}

fn stuck() -> Why {
    Why::Lost(
        "a command took too long, and the target neither aborted it nor reset the logical unit; look \
               into the target's log"
            .to_owned(),
    )
}
