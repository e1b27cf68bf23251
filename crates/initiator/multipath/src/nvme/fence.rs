//! When no command of an ended association can reach the medium any more; see the module above for the rule.

use std::time::Duration;

use buf::{Cx, Time};
use endpoint::CloseMode;
use nvme::fabrics::{Property, PropertyAccess};
use nvme::property::{ControllerStatus, ShutdownStatus};
use nvme::{Cqe, Sqe};
use stream::earliest;

use super::queue_links::{LinkLoss, QueueId};
use super::{AdminPurpose, NvmePath, PathPhase};
use crate::{DownReason, PathEvent};

/// Between two looks at CSTS.
pub(super) const CSTS_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ControllerFence {
    /// Somebody waits for it.
    pub(super) asked: bool,
    /// The fate of something that may change blocks is unknown.
    pub(super) unknown: bool,
    /// When the controllers that were lost must have given up.
    until: Option<Time>,
    reset: Option<ControllerReset>,
    /// The controller closed this admin queue in good order.
    ended: Option<QueueId>,
}

/// A controller that is being stopped by its admin queue.
#[derive(Clone, Copy, Debug)]
struct ControllerReset {
    admin: QueueId,
    /// When it must have stopped.
    until: Time,
    /// When to look again.
    next: Option<Time>,
    /// When it must have given up, if it cannot be stopped.
    otherwise: Time,
}

impl ControllerFence {
    /// A connection broke.
    pub(super) fn note_link_lost(&mut self, who: QueueId, how: &LinkLoss) {
        if who.is_admin() && *how == LinkLoss::Closed {
            self.ended = Some(who);
        }
    }

    /// Whether this queue stops its controller.
    pub(super) fn is_resetting_by(&self, who: QueueId) -> bool {
        self.reset.is_some_and(|reset| reset.admin == who)
    }

    /// A time that is over is named only if something follows from it: not while a controller is being
    /// stopped, nor while the path is `closing`.
    pub(super) fn poll_timeout(&self, closing: bool) -> Option<Time> {
        let waits = self.asked && self.reset.is_none() && !closing;
        let waited = if waits { self.until } else { None };
        let reset = self.reset.map(|reset| reset.next.map_or(reset.until, |next| next.min(reset.until)));
        earliest(waited, reset)
    }

    fn extend_wait_until(&mut self, time: Time) {
        self.until = Some(self.until.map_or(time, |until| until.max(time)));
    }
}

impl NvmePath {
    /// The association is over: its controller is stopped, if that can be.
    pub(super) fn start_controller_reset(&mut self, cx: &mut Cx<'_>) {
        let admin = self.admin_queue();
        let ended = self.fence.ended == Some(admin);
        let otherwise = cx.now
            + self.bringup.lost_command_lifetime(
                &self.settings,
                self.known.map(|facts| facts.controller),
                ended,
            );
        if self.known.is_none() {
            // It never carried an operation.
            self.links.close_link(cx, admin, CloseMode::Abort);
            return;
        }
        // Of two that are to be stopped, the older one's time is waited.
        if let Some(before) = self.fence.reset.take() {
            self.fence.extend_wait_until(before.otherwise);
            self.admin_commands.forget_queue(before.admin);
            self.links.close_link(cx, before.admin, CloseMode::Abort);
        }
        let until = cx.now + self.bringup.ready_timeout(&self.settings);
        let disable = PropertyAccess::property_set_sqe(
            Property::CC,
            self.bringup.controller_configuration().disabled().0,
        );
        let sent = self.links.has_link(admin)
            && self.admin_commands.send_command(
                cx,
                &mut self.links,
                admin,
                (disable, 0),
                (AdminPurpose::Disable, Some(until)),
            );
        if sent {
            self.fence.reset = Some(ControllerReset { admin, until, next: None, otherwise });
        } else {
            self.links.close_link(cx, admin, CloseMode::Abort);
            self.fence.extend_wait_until(otherwise);
        }
    }

    /// A command that stops a controller has ended.
    pub(super) fn handle_reset_command_ended(
        &mut self,
        cx: &mut Cx<'_>,
        who: QueueId,
        purpose: AdminPurpose,
        cqe: Cqe,
    ) {
        let Some(reset) = self.fence.reset.as_mut().filter(|reset| reset.admin == who) else { return };
        let end = cqe.completion();
        if !end.status.is_success() {
            return self.handle_reset_failed(cx);
        }
        let stopped = purpose == AdminPurpose::Disabled && !ControllerStatus::parse(end.result).ready;
        if !stopped {
            reset.next = Some(
                cx.now + if purpose == AdminPurpose::Disable { Duration::ZERO } else { CSTS_POLL_INTERVAL },
            );
            return;
        }
        self.fence.reset = None;
        self.links.close_link(cx, who, CloseMode::Close);
        if self.fence.until.is_none() && !matches!(self.state, PathPhase::Closing(_)) {
            self.fence.unknown = false;
        }
        self.run_fence_timers(cx);
    }

    /// A controller could not be stopped: only time helps.
    pub(super) fn handle_reset_failed(&mut self, cx: &mut Cx<'_>) {
        if let Some(reset) = self.fence.reset.take() {
            self.admin_commands.forget_queue(reset.admin);
            self.links.close_link(cx, reset.admin, CloseMode::Abort);
            self.fence.extend_wait_until(reset.otherwise);
        }
    }

    pub(super) fn run_fence_timers(&mut self, cx: &mut Cx<'_>) {
        if let Some(reset) = self.fence.reset.filter(|reset| reset.until <= cx.now) {
            debug_assert!(self.fence.is_resetting_by(reset.admin));
            self.handle_reset_failed(cx);
        }
        if let Some(reset) = self.fence.reset.as_mut()
            && reset.next.is_some_and(|next| next <= cx.now)
        {
            reset.next = None;
            let (admin, until) = (reset.admin, reset.until);
            let recheck = PropertyAccess::property_get_sqe(Property::CSTS, 4);
            let purpose = (AdminPurpose::Disabled, Some(until));
            if !self.admin_commands.send_command(cx, &mut self.links, admin, (recheck, 0), purpose) {
                self.handle_reset_failed(cx);
            }
        }
        // What is still coming back belongs to what is waited for.
        if !self.fence.asked || self.fence.reset.is_some() || matches!(self.state, PathPhase::Closing(_)) {
            return;
        }
        if !self.fence.unknown || self.fence.until.is_none_or(|until| until <= cx.now) {
            (self.fence.asked, self.fence.unknown, self.fence.until) = (false, false, None);
            self.events.push_back(PathEvent::Fenced);
        }
    }

    /// Ends the association in good order.
    pub(super) fn start_shutdown(&mut self, cx: &mut Cx<'_>, grace: Duration) {
        match self.state {
            PathPhase::Up => {
                self.state = PathPhase::Ending { until: cx.now + grace, told: false, next: None }
            }
            PathPhase::Ending { until, told, next } => {
                self.state = PathPhase::Ending { until: until.min(cx.now + grace), told, next };
            }
            PathPhase::Starting => self.end_association(cx, DownReason::Ended),
            PathPhase::Down => self.events.push_back(PathEvent::Down(DownReason::Ended)),
            PathPhase::Closing(_) => {}
        }
        self.run_shutdown_timers(cx);
    }

    /// Once nothing is in work any more, the controller is shut down.
    pub(super) fn run_shutdown_timers(&mut self, cx: &mut Cx<'_>) {
        let PathPhase::Ending { until, told, next } = self.state else { return };
        if until <= cx.now {
            return self.end_association(cx, DownReason::Ended);
        }
        if next.is_some_and(|next| next <= cx.now) {
            self.state = PathPhase::Ending { until, told, next: None };
            let recheck = PropertyAccess::property_get_sqe(Property::CSTS, 4);
            return self.send_shutdown_command(cx, (recheck, AdminPurpose::ShutDown), until);
        }
        if told || !self.operations.is_empty() {
            return;
        }
        self.state = PathPhase::Ending { until, told: true, next: None };
        let configuration = self.bringup.controller_configuration().with_shutdown(1);
        let shutdown = PropertyAccess::property_set_sqe(Property::CC, configuration.0);
        self.send_shutdown_command(cx, (shutdown, AdminPurpose::Shutdown), until);
    }

    fn send_shutdown_command(&mut self, cx: &mut Cx<'_>, (sqe, purpose): (Sqe, AdminPurpose), until: Time) {
        let (admin, purpose) = (self.admin_queue(), (purpose, Some(until)));
        if !self.admin_commands.send_command(cx, &mut self.links, admin, (sqe, 0), purpose) {
            self.end_association(cx, DownReason::Ended);
        }
    }

    pub(super) fn handle_shutdown_command_ended(&mut self, cx: &mut Cx<'_>, purpose: AdminPurpose, cqe: Cqe) {
        let PathPhase::Ending { until, told, .. } = self.state else { return };
        let end = cqe.completion();
        if !end.status.is_success() {
            return self.end_association(cx, DownReason::Ended);
        }
        let status = ControllerStatus::parse(end.result);
        if purpose == AdminPurpose::Shutdown || status.shutdown != ShutdownStatus::Complete {
            let wait = if purpose == AdminPurpose::Shutdown { Duration::ZERO } else { CSTS_POLL_INTERVAL };
            self.state = PathPhase::Ending { until, told, next: Some(cx.now + wait) };
            return self.run_shutdown_timers(cx);
        }
        let admin = self.admin_queue();
        for qid in 0..=self.settings.queues {
            self.links.close_link(cx, QueueId { qid, ..admin }, CloseMode::Close);
        }
        // Nothing of it can run any more: there is nothing to fence.
        self.known = None;
        self.end_association(cx, DownReason::Ended);
    }
}
