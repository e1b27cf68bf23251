//! How the session ends, and the timers that end it.

use super::link::{LinkPhase, LinkState, OutgoingPdu};
use super::request::{Fault, LinkFault};
use super::{InitiatorSession, SessionState};
use crate::initiator::Failure;
use crate::links::LinkIndex;
use buf::{Cx, Time};
use stream::{Close, HostEvent, Link, earliest};

impl InitiatorSession {
    /// A link is gone. If it had logged in, or nothing else has, the session is over.
    pub(super) fn lose_link(&mut self, index: LinkIndex) {
        let link = &self.commands.links[index];
        if link.is_over() {
            return;
        }
        let matters = link.is_open() || self.state == SessionState::Starting;
        self.drop_link(index);
        if matters {
            self.fail();
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
    pub(super) fn fail(&mut self) {
        if self.is_over() {
            return;
        }
        self.state = SessionState::Dead;
        (self.deadline, self.look_at, self.commands.refused, self.logout) = (None, None, None, None);
        for index in self.commands.links.indices() {
            self.drop_link(index);
        }
        self.commands.lose_all();
    }

    pub(super) fn begin_close(&mut self, how: Close) {
        match (how, self.state) {
            (Close::Now, _) | (Close::AfterLogout(_), SessionState::Starting) => self.fail(),
            (Close::AfterLogout(until), SessionState::Ready) => {
                self.state = SessionState::Draining;
                self.deadline = Some(until);
            }
            (Close::AfterLogout(until), SessionState::Draining | SessionState::LoggingOut) => {
                self.deadline = self.deadline.map(|deadline| deadline.min(until));
            }
            (Close::AfterLogout(_), SessionState::Dead | SessionState::Gone) => {}
        }
    }

    /// Brings to an end what is ending.
    pub(super) fn tidy(&mut self) {
        if self.state == SessionState::Draining && self.commands.table.is_empty() {
            self.log_out();
        }
        for link in self.commands.links.iter_mut() {
            if link.phase == LinkPhase::Dead && link.is_quiet() {
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
    fn log_out(&mut self) {
        let Some(index) = self.commands.links.position(LinkState::is_open) else { return self.fail() };
        self.state = SessionState::LoggingOut;
        let itt = self.commands.fresh_itt();
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
            let (stalled, idle) = (self.stall_deadline(link), self.idle_deadline(link));
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
    fn idle_deadline(&self, link: &LinkState) -> Option<Time> {
        match link.ping {
            Some((_, since)) => Some(since + self.limits.nop_timeout),
            None if link.is_open() => self.limits.nop_interval.map(|interval| link.heard + interval),
            None => None,
        }
    }

    pub(super) fn look_at_clocks(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.deadline) {
            return self.fail();
        }
        if due(self.window_deadline()) {
            return self.give_up(Link(0), Fault::WindowClosed);
        }
        if due(self.look_at)
            && let Some(index) = self.overdue(now)
        {
            return self.give_up(index.into(), Fault::CommandTimeout);
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
                self.give_up(index.into(), Fault::Stalled);
            } else if due(link.deadline) {
                self.fail_login(index, Failure::TimedOut);
            } else if due(self.idle_deadline(link)) {
                if link.ping.is_some() {
                    self.give_up(index.into(), Fault::PingUnanswered);
                } else {
                    self.ping(index, now);
                }
            }
        }
    }

    /// The link of a command that has taken too long; else notes when to look again.
    fn overdue(&mut self, now: Time) -> Option<LinkIndex> {
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

    fn ping(&mut self, index: LinkIndex, now: Time) {
        let itt = self.commands.fresh_itt();
        let link = &mut self.commands.links[index];
        link.ping = Some((itt, now));
        link.out.push_back(OutgoingPdu::Ping(itt));
    }

    fn give_up(&mut self, link: Link, fault: Fault) {
        self.violation.get_or_insert(LinkFault { link, fault });
        self.fail();
    }
}
