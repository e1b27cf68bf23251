//! How a queue ends, and the clocks that end it.

use super::{HostQueue, Phase};
use crate::LinkFault;
use buf::{Cx, Time};
use stream::{Close, HostEvent, earliest};

impl HostQueue {
    /// Ends the connection at once; what is in work fails with Host Path Error.
    pub(super) fn fail(&mut self) {
        if matches!(self.phase, Phase::Dead | Phase::Gone) {
            return;
        }
        self.phase = Phase::Dead;
        self.rx.inlet.clear();
        self.out.clear();
        self.deadline = None;
        self.retry = None;
        self.shut = true;
        self.complete_all();
    }

    /// Nothing is said any more but last words; what comes is swallowed.
    pub(super) fn begin_termination(&mut self, deadline: Time) {
        self.phase = Phase::Finishing;
        self.rx.clear();
        self.out.clear();
        self.deadline = Some(deadline);
        self.complete_all();
    }

    pub(super) fn begin_close(&mut self, how: Close) {
        match (how, self.phase) {
            (Close::Now, _) => self.fail(),
            (Close::AfterLogout(until), Phase::Ready) => {
                self.phase = Phase::Draining;
                self.deadline = Some(until);
            }
            (Close::AfterLogout(_), Phase::Init) => self.fail(),
            (Close::AfterLogout(until), Phase::Draining | Phase::Finishing) => {
                self.deadline = self.deadline.map(|deadline| deadline.min(until));
            }
            (Close::AfterLogout(_), Phase::Dead | Phase::Gone) => {}
        }
    }

    /// Brings to an end what is ending.
    pub(super) fn advance_closing(&mut self) {
        match self.phase {
            Phase::Init | Phase::Ready | Phase::Finishing | Phase::Gone => {}
            Phase::Draining => {
                if self.commands.is_empty() && self.out.is_empty() && self.outbox.is_free() {
                    self.fail();
                    self.advance_closing();
                }
            }
            Phase::Dead => {
                if self.commands.is_empty() && self.is_quiet() {
                    self.phase = Phase::Gone;
                    self.events.push_back(HostEvent::Closed);
                }
            }
        }
    }

    /// When the clocks want to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Dead | Phase::Gone) {
            return None;
        }
        [self.deadline, self.stall_deadline(), self.pdu_deadline()].into_iter().fold(self.retry, earliest)
    }

    fn stall_deadline(&self) -> Option<Time> {
        self.outbox.unwritten_since().map(|since| since + self.limits.stall_timeout)
    }

    pub(super) fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.retry) {
            self.retry = None;
        }
        self.link_fault = match self.phase {
            Phase::Dead | Phase::Gone => return,
            Phase::Init if due(self.deadline) => Some(LinkFault::HandshakeTimeout),
            Phase::Draining | Phase::Finishing if due(self.deadline) => None,
            _ if due(self.stall_deadline()) => Some(LinkFault::Stalled),
            _ if due(self.pdu_deadline()) => Some(LinkFault::PduTimeout),
            _ => return,
        };
        self.fail();
    }
}
