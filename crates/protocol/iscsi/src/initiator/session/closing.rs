//! How the session ends, and the timers that end it.

use super::link::{LinkPhase, LinkState, OutgoingPdu};
use super::request::{Fault, LinkFault};
use super::{InitiatorSession, SessionState};
use crate::initiator::LoginFailure;
use crate::links::LinkIndex;
use buf::{Cx, Time};
use stream::{ConnectionClose, HostEvent, LinkNumber, earliest};

impl InitiatorSession {
    /// A link is gone. If it had logged in, or nothing else has, the session is over.
    pub(super) fn handle_link_lost(&mut self, index: LinkIndex) {
        let link = &self.commands.links[index];
        if link.is_over() {
            return;
        }
        let matters = link.is_open() || self.state == SessionState::Starting;
        self.drop_link(index);
        if matters {
            self.fail_session();
        }
    }

    fn drop_link(&mut self, index: LinkIndex) {
        let link = &mut self.commands.links[index];
        if link.is_over() {
            return;
        }
        link.phase = LinkPhase::Dead;
        link.rx.receive_buffer.clear();
        link.out.clear();
        (link.pongs, link.ping, link.deadline, link.retry) = (0, None, None, None);
        self.shut.push_back(index.into());
    }

    /// Ends all links at once; every request is given back.
    pub(super) fn fail_session(&mut self) {
        if self.is_over() {
            return;
        }
        self.state = SessionState::Dead;
        (self.deadline, self.look_at, self.commands.refused, self.logout) = (None, None, None, None);
        for index in self.commands.links.indices() {
            self.drop_link(index);
        }
        self.commands.end_all_unanswered();
    }

    pub(super) fn begin_close(&mut self, how: ConnectionClose) {
        match (how, self.state) {
            (ConnectionClose::Now, _) | (ConnectionClose::AfterLogout(_), SessionState::Starting) => {
                self.fail_session()
            }
            (ConnectionClose::AfterLogout(until), SessionState::Ready) => {
                self.state = SessionState::Draining;
                self.deadline = Some(until);
            }
            (ConnectionClose::AfterLogout(until), SessionState::Draining | SessionState::LoggingOut) => {
                self.deadline = self.deadline.map(|deadline| deadline.min(until));
            }
            (ConnectionClose::AfterLogout(_), SessionState::Dead | SessionState::Gone) => {}
        }
    }

    /// Brings to an end what is ending.
    pub(super) fn finish_closing(&mut self) {
        if self.state == SessionState::Draining && self.commands.table.is_empty() {
            self.send_logout();
        }
        for link in self.commands.links.iter_mut() {
            if link.phase == LinkPhase::Dead && link.has_no_io_in_flight() {
                link.phase = LinkPhase::Gone;
            }
        }
        let gone = self.commands.links.iter().all(|link| link.phase == LinkPhase::Gone);
        if self.state == SessionState::Dead && gone && self.commands.table.is_empty() {
            self.state = SessionState::Gone;
            self.commands.events.push_back(HostEvent::Closed);
        }
    }

    /// Asks to close the session (RFC 7143 §11.14).
    fn send_logout(&mut self) {
        let Some(index) = self.commands.links.position(LinkState::is_open) else {
            return self.fail_session();
        };
        self.state = SessionState::LoggingOut;
        let itt = self.commands.next_itt();
        self.logout = Some((index, itt));
        self.commands.links[index].out.push_back(OutgoingPdu::Logout(itt));
    }

    /// When the clocks want to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let session = [self.deadline, self.look_at, self.window_deadline()].into_iter().fold(None, earliest);
        self.commands.links.iter().filter(|link| !link.is_over()).fold(session, |first, link| {
            let (stalled, idle) = (self.stall_deadline(link), self.ping_deadline(link));
            [stalled, idle, link.deadline, link.retry].into_iter().fold(first, earliest)
        })
    }

    fn window_deadline(&self) -> Option<Time> {
        Some(self.commands.refused? + self.limits.command_timeout?)
    }

    fn stall_deadline(&self, link: &LinkState) -> Option<Time> {
        link.transmit_queue.unwritten_since().map(|since| since + self.limits.stall_timeout)
    }

    /// When the next ping is due, or the answer to the last one.
    fn ping_deadline(&self, link: &LinkState) -> Option<Time> {
        match link.ping {
            Some((_, since)) => Some(since + self.limits.nop_timeout),
            None if link.is_open() => self.limits.nop_interval.map(|interval| link.heard + interval),
            None => None,
        }
    }

    pub(super) fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.deadline) {
            return self.fail_session();
        }
        if due(self.window_deadline()) {
            return self.fail_with_fault(LinkNumber(0), Fault::WindowClosed);
        }
        if due(self.look_at)
            && let Some(index) = self.overdue_command_link(now)
        {
            return self.fail_with_fault(index.into(), Fault::CommandTimeout);
        }
        for index in self.commands.links.indices() {
            let link = &mut self.commands.links[index];
            if link.is_over() {
                continue;
            }
            if due(link.retry) {
                link.retry = None;
            }
            let link = &self.commands.links[index];
            if due(self.stall_deadline(link)) {
                self.fail_with_fault(index.into(), Fault::Stalled);
            } else if due(link.deadline) {
                self.handle_login_failure(index, LoginFailure::TimedOut);
            } else if due(self.ping_deadline(link)) {
                if link.ping.is_some() {
                    self.fail_with_fault(index.into(), Fault::PingUnanswered);
                } else {
                    self.send_ping(index, now);
                }
            }
        }
    }

    /// The link of a command that has taken too long; else notes when to look again.
    fn overdue_command_link(&mut self, now: Time) -> Option<LinkIndex> {
        let timeout = self.limits.command_timeout?;
        let (_, oldest) =
            self.commands.table.iter().min_by_key(|(_, command)| command.since).or_else(|| {
                self.look_at = None;
                None
            })?;
        let due = oldest.since + timeout;
        if due <= now {
            return Some(oldest.link);
        }
        self.look_at = Some(due);
        None
    }

    fn send_ping(&mut self, index: LinkIndex, now: Time) {
        let itt = self.commands.next_itt();
        let link = &mut self.commands.links[index];
        link.ping = Some((itt, now));
        link.out.push_back(OutgoingPdu::Ping(itt));
    }

    fn fail_with_fault(&mut self, link: LinkNumber, fault: Fault) {
        self.violation.get_or_insert(LinkFault { link, fault });
        self.fail_session();
    }
}
