//! How links and the session end, and the timers that end them.
//!
//! A link that fails takes its tasks with it (ErrorRecoveryLevel 0). Its slot is free again when the world
//! has given every operation back and the server has released every task.
//!
//! State that ends with a session, such as a reservation of its nexus, ends before its logout is answered and
//! before the session is reported as closed. So no observer of either finds any of it left.

use super::TargetSession;
use super::control::PendingLogout;
use super::link::{LinkPhase, LinkState};
use super::outgoing::OutgoingPdu;
use super::request::{Fault, LinkFault};
use super::task::TaskKind;
use super::tasks::{SessionTasks, open_or_expected_links};
use crate::links::LinkIndex;
use crate::wire::{AsyncEvent, LogoutResponseCode};
use buf::{Cx, Time};
use std::time::Duration;
use stream::{ConnectionClose, TargetEvent, earliest};

/// Most violations kept for [`TargetSession::poll_link_fault`].
const VIOLATIONS_MAX: usize = 16;

/// How long the server may take to end the nexus. An initiator that waits for the answer to its logout
/// gives up after 15 s or so (open-iscsi's `logout_timeout`).
pub(super) const NEXUS_END_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the server is with the end of the session's nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NexusEndState {
    /// The session goes on, or has tasks still.
    No,
    /// They are to be asked: [`TargetSession::poll_nexus_end`].
    Due { until: Time },
    /// They were asked, and have until then.
    Asked { until: Time },
    /// Nothing is left of the nexus, or its time is over.
    Done,
}

impl NexusEndState {
    /// When the server must be done.
    fn deadline(self) -> Option<Time> {
        match self {
            NexusEndState::Due { until } | NexusEndState::Asked { until } => Some(until),
            NexusEndState::No | NexusEndState::Done => None,
        }
    }
}

impl TargetSession {
    /// Whether the session is ending and all its tasks have ended: what lasts as long as its nexus is to be
    /// ended now, and [`handle_nexus_ended`](Self::handle_nexus_ended) to be called when that is done. Says so once. Until
    /// then, or until 5 s have gone, its logout is not answered and it is not told as closed.
    #[must_use]
    pub fn poll_nexus_end(&mut self) -> bool {
        let NexusEndState::Due { until } = self.nexus_end else { return false };
        self.nexus_end = NexusEndState::Asked { until };
        true
    }

    /// Whether [`poll_nexus_end`](Self::poll_nexus_end), [`poll_cleared_unit`](Self::poll_cleared_unit) or
    /// [`poll_link_to_close`](stream::Connection::poll_link_to_close) has something to give.
    #[inline]
    pub fn has_notices(&self) -> bool {
        !self.shut.is_empty()
            || !self.cleared.is_empty()
            || matches!(self.nexus_end, NexusEndState::Due { .. })
    }

    /// Nothing is left of the session's nexus.
    pub fn handle_nexus_ended(&mut self, cx: &mut Cx<'_>) {
        if let NexusEndState::Due { .. } | NexusEndState::Asked { .. } = self.nexus_end {
            self.nexus_end = NexusEndState::Done;
            self.tasks.unsettled = true;
            self.finish_closing(cx.now);
        }
    }

    /// Whether the session takes no further links.
    pub(super) fn is_ending(&self) -> bool {
        let logs_out = self.logout.is_some_and(|logout| logout.scope.is_none());
        self.closing || logs_out || self.nexus_end != NexusEndState::No
    }

    /// Whether nothing is left of the nexus; asks the server first.
    fn check_nexus_ended(&mut self, now: Time) -> bool {
        match self.nexus_end {
            // A discovery session has no nexus.
            NexusEndState::No if self.tasks.params.discovery => self.nexus_end = NexusEndState::Done,
            NexusEndState::No => self.nexus_end = NexusEndState::Due { until: now + NEXUS_END_TIMEOUT },
            NexusEndState::Due { .. } | NexusEndState::Asked { .. } | NexusEndState::Done => {}
        }
        self.nexus_end == NexusEndState::Done
    }

    /// Ends a link at once.
    pub(super) fn fail_link(&mut self, now: Time, index: LinkIndex) {
        let link = &mut self.tasks.links[index];
        if matches!(link.phase, LinkPhase::Dead | LinkPhase::Gone) {
            return;
        }
        link.phase = LinkPhase::Dead;
        link.rx.receive_buffer.clear();
        link.rx.drop_collected_data();
        link.tx.clear();
        link.text = None;
        self.shut.push_back(index.into());
        self.tasks.unsettled = true;
        self.tasks.abandoned.remove_link(index);
        self.tasks.fences.remove_link(index);
        self.note_cleared_units(index);
        self.tasks.terminate_link_tasks(now, index);
        if self.logout.as_ref().is_some_and(|logout| logout.index == index) {
            let whole_session = self.logout.take().is_some_and(|logout| logout.scope.is_none());
            if whole_session {
                return self.fail_session(now);
            }
        }
        // What was told of the window may have died with the link.
        self.tasks.window.opened = true;
        let lives = self.tasks.links.iter().any(LinkState::is_open_or_sending);
        if !lives && self.tasks.expected.is_empty() {
            self.end_session();
        }
    }

    /// Notes of which logical units a lost link takes tasks with it.
    fn note_cleared_units(&mut self, index: LinkIndex) {
        if self.closing {
            return;
        }
        for (_, task) in self.tasks.table.iter() {
            let is_command = matches!(task.kind, TaskKind::Scsi(_));
            if task.link == index && is_command && !self.cleared.contains(&task.lun) {
                self.cleared.push(task.lun);
            }
        }
    }

    /// Ends all links at once.
    pub(super) fn fail_session(&mut self, now: Time) {
        self.end_session();
        for index in self.tasks.links.indices() {
            self.fail_link(now, index);
        }
    }

    fn end_session(&mut self) {
        self.closing = true;
        self.tasks.unsettled = true;
        self.tasks.expected.clear();
        self.cleared.clear();
        self.functions.clear();
        self.tasks.fences.clear();
        self.tasks.window.drain_held().for_each(drop);
    }

    /// Brings to an end what is ending, and goes on with what waits for commands or acknowledgments.
    #[inline]
    pub(super) fn finish_closing(&mut self, now: Time) {
        let is_plain = !self.tasks.unsettled
            && self.functions.is_empty()
            && self.tasks.fences.is_empty()
            && self.tasks.window.is_in_order();
        if !is_plain {
            self.finish_waiting(now);
        }
    }

    #[cold]
    fn finish_waiting(&mut self, now: Time) {
        self.skip_aborted_cmd_sn(now);
        self.functions.forget_ended(&self.tasks);
        self.tasks.window.note_cmd_sn_gap(now, !self.functions.is_empty());
        if !self.tasks.fences.is_empty() {
            self.tasks.step_fences(now);
        }
        if self.tasks.window.take_reopened()
            && let Some(link) = self.tasks.links.iter_mut().find(|link| link.is_open())
        {
            link.tx.push_window_update();
        }
        if !self.tasks.unsettled {
            return;
        }
        self.tasks.unsettled = false;
        self.finish_logout(now);
        for index in self.tasks.links.indices() {
            if self.has_sent_all(index) {
                self.fail_link(now, index);
            }
            let link = &mut self.tasks.links[index];
            if link.phase == LinkPhase::Dead && link.has_no_io_in_flight() && link.tasks == 0 {
                link.phase = LinkPhase::Gone;
            }
            self.tasks.unsettled |= matches!(link.phase, LinkPhase::Finishing | LinkPhase::Dead);
        }
        self.tasks.unsettled |= self.logout.is_some();
        let gone = self.tasks.links.iter().all(|link| link.phase == LinkPhase::Gone);
        if self.closing && gone && self.tasks.table.is_empty() && !self.closed && self.check_nexus_ended(now)
        {
            self.closed = true;
            self.tasks.events.push_back(TargetEvent::Closed);
        }
    }

    fn finish_logout(&mut self, now: Time) {
        let Some(PendingLogout { itt, index, scope }) = self.logout else { return };
        let in_scope = |index: LinkIndex| scope.is_none_or(|scope| scope == index);
        let busy = |(index, link): (LinkIndex, &LinkState)| in_scope(index) && link.tasks > 0;
        if self.tasks.links.enumerate().any(busy) {
            return;
        }
        let stays = |(index, link): (LinkIndex, &LinkState)| link.is_open() && !in_scope(index);
        let goes_on = !self.tasks.expected.is_empty() || self.tasks.links.enumerate().any(stays);
        let ends = !goes_on || self.is_ending();
        if ends && !(self.tasks.table.is_empty() && self.check_nexus_ended(now)) {
            return;
        }
        self.logout = None;
        self.tasks.answer_logout(index, itt, LogoutResponseCode::CLOSED);
    }

    /// Whether a finishing link has nothing left to send.
    fn has_sent_all(&self, index: LinkIndex) -> bool {
        let link = &self.tasks.links[index];
        let waits = match &self.logout {
            Some(logout) => logout.index == index || logout.scope.is_none(),
            None => false,
        };
        link.phase == LinkPhase::Finishing && !waits && link.tasks == 0 && link.tx.is_idle()
    }

    pub(super) fn begin_close(&mut self, now: Time, how: ConnectionClose) {
        match how {
            ConnectionClose::Now => self.fail_session(now),
            ConnectionClose::AfterLogout(until) => {
                // A second request gives no more time.
                let until = self.close_at.map_or(until, |first| first.min(until));
                let left = until.since(now).as_secs().min(u64::from(u16::MAX)) as u16;
                self.close_at = Some(until);
                for link in self.tasks.links.iter_mut().filter(|link| link.is_open()) {
                    let event = AsyncEvent::LOGOUT_REQUEST;
                    link.tx.push(OutgoingPdu::Async { event, parameters: [0, 0, left] });
                }
                if !self.tasks.links.iter().any(LinkState::is_open) {
                    self.end_session();
                }
            }
        }
    }

    /// When the clocks want to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let links = self.tasks.links.iter().filter(|link| link.is_open_or_sending());
        let expected = self.tasks.expected.iter().map(|(_, until)| *until).min();
        let first = earliest(earliest(self.close_at, expected), self.tasks.fences.acknowledgment_deadline());
        let first = earliest(earliest(first, self.nexus_end.deadline()), self.cmd_sn_gap_deadline());
        links.fold(first, |first, link| earliest(first, link.next_deadline(&self.tasks.limits)))
    }

    /// When a command must have come that others wait for: over links that live nothing gets lost.
    fn cmd_sn_gap_deadline(&self) -> Option<Time> {
        self.tasks
            .window
            .cmd_sn_gap_since()
            .filter(|_| !self.closing)
            .map(|since| since + self.tasks.limits.data_out_timeout)
    }

    pub(super) fn check_deadlines(&mut self, now: Time) {
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.close_at) {
            self.close_at = None;
            return self.fail_session(now);
        }
        if due(self.nexus_end.deadline()) {
            self.nexus_end = NexusEndState::Done;
            self.tasks.unsettled = true;
        }
        let before = self.tasks.expected.len();
        self.tasks.expected.retain(|(_, until)| *until > now);
        let lives = self.tasks.links.iter().any(LinkState::is_open_or_sending);
        if self.tasks.expected.is_empty() && before > 0 && !lives {
            return self.fail_session(now);
        }
        if due(self.tasks.fences.acknowledgment_deadline()) {
            for index in self.tasks.fences.awaited_links() {
                if self.tasks.links[index].is_open() {
                    self.report_fault(index, Fault::Unacknowledged);
                    self.fail_link(now, index);
                }
            }
        }
        if due(self.cmd_sn_gap_deadline()) {
            if let Some(index) = self.tasks.links.position(LinkState::is_open) {
                self.report_fault(index, Fault::CommandMissing);
            }
            return self.fail_session(now);
        }
        for index in self.tasks.links.indices() {
            let (link, limits) = (&self.tasks.links[index], &self.tasks.limits);
            if !link.is_open_or_sending() {
                continue;
            }
            if due(link.stall_deadline(limits)) || due(link.owed_data_deadline(limits)) {
                self.report_fault(index, Fault::Stalled);
                self.fail_link(now, index);
            } else if due(link.ping_deadline(limits)) {
                if link.pings.unanswered_since().is_some() {
                    self.report_fault(index, Fault::PingUnanswered);
                    self.fail_link(now, index);
                } else {
                    self.tasks.send_ping(now, index);
                }
            }
            let link = &mut self.tasks.links[index];
            if due(link.retry) {
                link.retry = None;
            }
        }
        let SessionTasks { window, links, expected, .. } = &mut self.tasks;
        window.secure_min_memory(open_or_expected_links(links, expected));
    }

    pub(super) fn report_fault(&mut self, index: LinkIndex, fault: Fault) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(LinkFault { link: index.into(), fault });
        }
    }
}
