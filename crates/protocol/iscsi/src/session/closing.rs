//! How links and the session end, and the clocks that end them.
//!
//! A link that fails takes its tasks with it (ErrorRecoveryLevel 0). Its place is free again when the
//! world has given every operation back and the server has let go of every task.
//!
//! What ends with a session, such as a reservation of its nexus, ends before its logout is answered, and
//! before it is told as closed: anyone who hears of either finds nothing of it left.

use super::TargetSession;
use super::control::Logout;
use super::link::{LinkState, Phase};
use super::outgoing::OutgoingPdu;
use super::request::{Fault, LinkFault};
use super::task::Kind;
use crate::links::LinkIndex;
use crate::wire::{AsyncEvent, LogoutResponseCode};
use buf::{Cx, Time};
use std::time::Duration;
use stream::{Close, TargetEvent, earliest};

/// Most violations kept for [`TargetSession::poll_link_fault`].
const VIOLATIONS_MAX: usize = 16;

/// How long the server may take to end the nexus. An initiator that waits for the answer to its logout
/// gives up after 15 s or so (open-iscsi's `logout_timeout`).
pub(super) const NEXUS_END_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the server is with the end of the session's nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NexusEnd {
    /// The session goes on, or has tasks still.
    No,
    /// They are to be asked: [`TargetSession::poll_nexus_end`].
    Due { until: Time },
    /// They were asked, and have until then.
    Asked { until: Time },
    /// Nothing is left of the nexus, or its time is over.
    Done,
}

impl TargetSession {
    /// Whether the session is ending and all its tasks have ended: what lasts as long as its nexus is to be
    /// ended now, and [`nexus_ended`](Self::nexus_ended) to be called when that is done. Says so once. Until
    /// then, or until 5 s have gone, its logout is not answered and it is not told as closed.
    #[must_use]
    pub fn poll_nexus_end(&mut self) -> bool {
        let NexusEnd::Due { until } = self.nexus_end else { return false };
        self.nexus_end = NexusEnd::Asked { until };
        true
    }

    /// Nothing is left of the session's nexus.
    pub fn nexus_ended(&mut self, cx: &mut Cx<'_>) {
        if let NexusEnd::Due { .. } | NexusEnd::Asked { .. } = self.nexus_end {
            self.nexus_end = NexusEnd::Done;
            self.unsettled = true;
            self.tidy(cx);
        }
    }

    /// Whether the session takes no further links.
    pub(super) fn is_ending(&self) -> bool {
        let logs_out = self.logout.is_some_and(|logout| logout.scope.is_none());
        self.closing || logs_out || self.nexus_end != NexusEnd::No
    }

    /// Whether nothing is left of the nexus; asks those above, at first.
    fn is_nexus_ended(&mut self, now: Time) -> bool {
        match self.nexus_end {
            // A discovery session has no nexus.
            NexusEnd::No if self.params.discovery => self.nexus_end = NexusEnd::Done,
            NexusEnd::No => self.nexus_end = NexusEnd::Due { until: now + NEXUS_END_TIMEOUT },
            NexusEnd::Due { .. } | NexusEnd::Asked { .. } | NexusEnd::Done => {}
        }
        self.nexus_end == NexusEnd::Done
    }

    fn nexus_end_deadline(&self) -> Option<Time> {
        match self.nexus_end {
            NexusEnd::Due { until } | NexusEnd::Asked { until } => Some(until),
            NexusEnd::No | NexusEnd::Done => None,
        }
    }

    /// Ends a link at once.
    pub(super) fn fail_link(&mut self, cx: &mut Cx<'_>, index: LinkIndex) {
        let link = &mut self.links[index];
        if matches!(link.phase, Phase::Dead | Phase::Gone) {
            return;
        }
        link.phase = Phase::Dead;
        link.rx.inlet.clear();
        link.rx.drop_gathered();
        link.tx.clear();
        link.text = None;
        self.shut.push_back(index.into());
        self.unsettled = true;
        self.abandoned.forget(index);
        self.unfence(index);
        self.note_cleared(index);
        self.terminate_tasks_of(cx, index);
        if self.logout.as_ref().is_some_and(|logout| logout.index == index) {
            let whole_session = self.logout.take().is_some_and(|logout| logout.scope.is_none());
            if whole_session {
                return self.fail_session(cx);
            }
        }
        // What was told of the window may have died with the link.
        self.window_opened = true;
        let lives = self.links.iter().any(|link| matches!(link.phase, Phase::Open | Phase::Finishing));
        if !lives && self.expected.is_empty() {
            self.end_session();
        }
    }

    /// Notes of which logical units a lost link takes tasks with it.
    fn note_cleared(&mut self, index: LinkIndex) {
        if self.closing {
            return;
        }
        for (_, task) in self.tasks.iter() {
            let is_command = matches!(task.kind, Kind::Scsi(_));
            if task.link == index && is_command && !self.cleared.contains(&task.lun) {
                self.cleared.push(task.lun);
            }
        }
    }

    /// Ends all links at once.
    pub(super) fn fail_session(&mut self, cx: &mut Cx<'_>) {
        self.end_session();
        for index in self.links.indices() {
            self.fail_link(cx, index);
        }
    }

    fn end_session(&mut self) {
        self.closing = true;
        self.unsettled = true;
        self.expected.clear();
        self.cleared.clear();
        self.waiting_functions.clear();
        self.fences.clear();
        self.window.drain().for_each(drop);
    }

    /// Brings to an end what is ending.
    pub(super) fn tidy(&mut self, cx: &mut Cx<'_>) {
        self.skip_aborted_cmd_sn(cx);
        self.note_cmd_sn_gap(cx.now);
        if !self.fences.is_empty() {
            self.step_fences(cx);
        }
        if std::mem::take(&mut self.window_opened) && !self.window.is_closed() {
            self.tell_window();
        }
        if !self.unsettled {
            return;
        }
        self.unsettled = false;
        self.tidy_logout(cx.now);
        for index in self.links.indices() {
            if self.has_said_all(index) {
                self.fail_link(cx, index);
            }
            let link = &mut self.links[index];
            if link.phase == Phase::Dead && link.is_quiet() && link.tasks == 0 {
                link.phase = Phase::Gone;
            }
            self.unsettled |= matches!(link.phase, Phase::Finishing | Phase::Dead);
        }
        self.unsettled |= self.logout.is_some();
        let gone = self.links.iter().all(|link| link.phase == Phase::Gone);
        if self.closing && gone && self.tasks.is_empty() && !self.closed && self.is_nexus_ended(cx.now) {
            self.closed = true;
            self.events.push_back(TargetEvent::Closed);
        }
    }

    fn tidy_logout(&mut self, now: Time) {
        let Some(Logout { itt, index, scope }) = self.logout else { return };
        let in_scope = |index: LinkIndex| scope.is_none_or(|scope| scope == index);
        let busy = |(index, link): (LinkIndex, &LinkState)| in_scope(index) && link.tasks > 0;
        if self.links.enumerate().any(busy) {
            return;
        }
        let stays = |(index, link): (LinkIndex, &LinkState)| link.is_open() && !in_scope(index);
        let goes_on = !self.expected.is_empty() || self.links.enumerate().any(stays);
        let ends = !goes_on || self.is_ending();
        if ends && !(self.tasks.is_empty() && self.is_nexus_ended(now)) {
            return;
        }
        self.logout = None;
        self.answer_logout(index, itt, LogoutResponseCode::CLOSED);
    }

    /// Notes since when commands, or task management functions, have waited for the one whose turn it is.
    fn note_cmd_sn_gap(&mut self, now: Time) {
        let missing = self.window.exp();
        self.forget_ended_functions();
        let waits = self.window.has_gap() || !self.waiting_functions.is_empty();
        self.cmd_sn_gap = match self.cmd_sn_gap {
            _ if !waits => None,
            Some((known, since)) if known == missing => Some((known, since)),
            Some(_) | None => Some((missing, now)),
        };
    }

    /// Whether a finishing link has nothing left to send.
    fn has_said_all(&self, index: LinkIndex) -> bool {
        let link = &self.links[index];
        let waits = match &self.logout {
            Some(logout) => logout.index == index || logout.scope.is_none(),
            None => false,
        };
        link.phase == Phase::Finishing && !waits && link.tasks == 0 && link.tx.is_idle()
    }

    /// Tells the initiator that a closed window has opened.
    fn tell_window(&mut self) {
        if let Some(link) = self.links.iter_mut().find(|link| link.is_open()) {
            link.tx.push_window_update();
        }
    }

    pub(super) fn begin_close(&mut self, cx: &mut Cx<'_>, how: Close) {
        match how {
            Close::Now => self.fail_session(cx),
            Close::AfterLogout(until) => {
                // Who asks again gives no more time.
                let until = self.close_at.map_or(until, |first| first.min(until));
                let left = until.since(cx.now).as_secs().min(u64::from(u16::MAX)) as u16;
                self.close_at = Some(until);
                for link in self.links.iter_mut().filter(|link| link.is_open()) {
                    let event = AsyncEvent::LOGOUT_REQUEST;
                    link.tx.push(OutgoingPdu::Async { event, parameters: [0, 0, left] });
                }
                if !self.links.iter().any(LinkState::is_open) {
                    self.end_session();
                }
            }
        }
    }

    /// When the clocks want to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let links = self.links.iter().filter(|link| matches!(link.phase, Phase::Open | Phase::Finishing));
        let expected = self.expected.iter().map(|(_, until)| *until).min();
        let first = earliest(earliest(self.close_at, expected), self.fence_deadline());
        let first = earliest(earliest(first, self.nexus_end_deadline()), self.gap_deadline());
        links.fold(first, |first, link| {
            let stalled = self.stall_deadline(link);
            let owed = self.owed_deadline(link);
            let idle = self.idle_deadline(link);
            [stalled, owed, idle, link.retry].into_iter().fold(first, earliest)
        })
    }

    fn stall_deadline(&self, link: &LinkState) -> Option<Time> {
        link.tx.outbox.unwritten_since().map(|since| since + self.limits.stall_timeout)
    }

    fn owed_deadline(&self, link: &LinkState) -> Option<Time> {
        (link.owed > 0).then(|| link.owed_since + self.limits.data_out_timeout)
    }

    /// When a command must have come that others wait for: over links that live nothing gets lost.
    fn gap_deadline(&self) -> Option<Time> {
        self.cmd_sn_gap.filter(|_| !self.closing).map(|(_, since)| since + self.limits.data_out_timeout)
    }

    /// When the next ping is due, or the answer to the last one.
    fn idle_deadline(&self, link: &LinkState) -> Option<Time> {
        match link.pings.since() {
            Some(since) => Some(since + self.limits.nop_timeout),
            None if link.is_open() => self.limits.nop_interval.map(|interval| link.heard + interval),
            None => None,
        }
    }

    pub(super) fn look_at_clocks(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.close_at) {
            self.close_at = None;
            return self.fail_session(cx);
        }
        if due(self.nexus_end_deadline()) {
            self.nexus_end = NexusEnd::Done;
            self.unsettled = true;
        }
        let before = self.expected.len();
        self.expected.retain(|(_, until)| *until > now);
        let lives = self.links.iter().any(|link| matches!(link.phase, Phase::Open | Phase::Finishing));
        if self.expected.is_empty() && before > 0 && !lives {
            return self.fail_session(cx);
        }
        if due(self.fence_deadline()) {
            self.end_silent_links(cx);
        }
        if due(self.gap_deadline()) {
            if let Some(index) = self.links.position(LinkState::is_open) {
                self.note(index, Fault::CommandMissing);
            }
            return self.fail_session(cx);
        }
        for index in self.links.indices() {
            let link = &self.links[index];
            if !matches!(link.phase, Phase::Open | Phase::Finishing) {
                continue;
            }
            if due(self.stall_deadline(link)) || due(self.owed_deadline(link)) {
                self.note(index, Fault::Stalled);
                self.fail_link(cx, index);
            } else if due(self.idle_deadline(link)) {
                if link.pings.since().is_some() {
                    self.note(index, Fault::PingUnanswered);
                    self.fail_link(cx, index);
                } else {
                    self.ping(cx, index);
                }
            }
            let link = &mut self.links[index];
            if due(link.retry) {
                link.retry = None;
            }
        }
        self.secure();
    }

    pub(super) fn note(&mut self, index: LinkIndex, fault: Fault) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(LinkFault { link: index.into(), fault });
        }
    }
}
