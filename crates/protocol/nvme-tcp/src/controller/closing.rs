//! How a queue ends, and the clocks that end it.

use super::{ControllerQueue, Phase};
use crate::LinkFault;
use buf::{Cx, Time};
use std::time::Duration;
use stream::{Close, TargetEvent, earliest};

/// Longest wait for the host to close after a C2HTermReq (NVMe-TCP §3.5).
pub(super) const TERM_TIMEOUT_MAX: Duration = Duration::from_secs(30);

impl ControllerQueue {
    /// Ends the connection at once.
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
        self.abort_all();
    }

    /// Nothing is said any more but last words; what comes is swallowed until the host closes, at
    /// most until `deadline`.
    pub(super) fn begin_termination(&mut self, deadline: Time) {
        self.phase = Phase::Finishing;
        self.rx.clear();
        self.out.clear();
        self.deadline = Some(deadline);
        self.abort_all();
    }

    pub(super) fn begin_close(&mut self, how: Close) {
        match (how, self.phase) {
            (Close::Now, _) => self.fail(),
            (Close::AfterLogout(until), Phase::Init | Phase::Connect | Phase::Open) => {
                self.phase = Phase::Draining;
                self.deadline = Some(until);
            }
            (Close::AfterLogout(until), Phase::Draining | Phase::Finishing) => {
                self.deadline = self.deadline.map(|deadline| deadline.min(until));
            }
            (Close::AfterLogout(_), Phase::Dead | Phase::Gone) => {}
        }
    }

    /// Brings to an end what is ending.
    pub(super) fn advance_closing(&mut self) {
        match self.phase {
            Phase::Init | Phase::Connect | Phase::Open | Phase::Finishing | Phase::Gone => {}
            Phase::Draining => {
                if self.tasks.len() == 0 && self.out.is_empty() && self.out.is_written() {
                    self.fail();
                    self.advance_closing();
                }
            }
            Phase::Dead => {
                if self.tasks.len() == 0 && self.is_quiet() {
                    self.phase = Phase::Gone;
                    self.events.push_back(TargetEvent::Closed);
                }
            }
        }
    }

    /// When the clocks want to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        if matches!(self.phase, Phase::Dead | Phase::Gone) {
            return None;
        }
        let stalled = earliest(self.stall_deadline(), self.owed_deadline());
        [self.handshake_deadline(), stalled, self.pdu_deadline()].into_iter().fold(self.retry, earliest)
    }

    /// The deadline; while the Connect waits for its answer it is not the host who is waited for.
    fn handshake_deadline(&self) -> Option<Time> {
        self.deadline.filter(|_| self.phase != Phase::Connect || self.connect.is_none())
    }

    fn stall_deadline(&self) -> Option<Time> {
        self.out.unwritten_since().map(|since| since + self.limits.stall_timeout)
    }

    fn owed_deadline(&self) -> Option<Time> {
        self.tasks.owed_since().map(|since| since + self.limits.data_out_timeout)
    }

    pub(super) fn check_deadlines(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if due(self.retry) {
            self.retry = None;
        }
        let violation = match self.phase {
            Phase::Dead | Phase::Gone => return,
            Phase::Draining | Phase::Finishing if due(self.deadline) => None,
            _ if due(self.handshake_deadline()) => Some(LinkFault::HandshakeTimeout),
            _ if due(self.stall_deadline()) || due(self.owed_deadline()) => Some(LinkFault::Stalled),
            _ if due(self.pdu_deadline()) => Some(LinkFault::PduTimeout),
            _ => return,
        };
        self.link_fault = violation;
        self.fail();
    }
}
