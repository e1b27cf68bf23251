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
use crate::{DownReason, LostController, PathEvent};

/// Between two looks at CSTS.
pub(super) const CSTS_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ControllerFence {
    /// Somebody waits for it.
    pub(super) asked: bool,
    /// The fate of something that may change blocks is unknown.
    pub(super) unknown: bool,
    /// Controllers that were lost, and could not be stopped; at most [`LOST_MAX`].
    lost: Vec<LostAssociation>,
    reset: Option<ControllerReset>,
    /// The controller closed this admin queue in good order.
    ended: Option<QueueId>,
}

/// How many lost controllers are told apart. Each waits for a time that ends, and a path comes up in between.
const LOST_MAX: usize = 16;

/// A controller that was lost.
#[derive(Debug)]
struct LostAssociation {
    /// By what it may be reset; `None`: it cannot be.
    controller: Option<LostController>,
    /// When it must have given up.
    until: Time,
}

/// A controller that is being stopped by its admin queue.
#[derive(Debug)]
struct ControllerReset {
    admin: QueueId,
    /// When it must have stopped.
    until: Time,
    /// When to look again.
    next: Option<Time>,
    /// What is waited for if it cannot be stopped.
    otherwise: LostAssociation,
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
        self.reset.as_ref().is_some_and(|reset| reset.admin == who)
    }

    /// A time that is over is named only if something follows from it: not while a controller is being
    /// stopped, nor while the path is `closing`.
    pub(super) fn poll_timeout(&self, closing: bool) -> Option<Time> {
        let waits = self.asked && self.reset.is_none() && !closing;
        let waited = waits.then(|| self.lost.iter().map(|lost| lost.until).max().unwrap_or(Time(0)));
        let reset = self.reset.as_ref();
        let reset = reset.map(|reset| reset.next.map_or(reset.until, |next| next.min(reset.until)));
        earliest(waited, reset)
    }

    fn wait_for(&mut self, now: Time, lost: LostAssociation) {
        self.lost.retain(|before| before.until > now);
        if self.lost.len() < LOST_MAX {
            self.lost.push(lost);
        } else if let Some(last) = self.lost.last_mut() {
            *last = LostAssociation { controller: None, until: last.until.max(lost.until) };
        }
    }

    /// Controllers that are waited for, and that may be reset by others.
    pub(super) fn lost_controllers(&self) -> Vec<LostController> {
        let resetting = self.reset.iter().map(|reset| &reset.otherwise);
        self.lost.iter().chain(resetting).filter_map(|lost| lost.controller.clone()).collect()
    }
}

impl NvmePath {
    /// The association is over: its controller is stopped, if that can be.
    pub(super) fn start_controller_reset(&mut self, cx: &mut Cx<'_>) {
        let admin = self.admin_queue();
        let ended = self.fence.ended == Some(admin);
        let controller = self.known.map(|facts| facts.controller);
        let lifetime = self.bringup.lost_command_lifetime(&self.settings, controller, ended);
        let otherwise = LostAssociation {
            controller: controller.and_then(|facts| facts.instance).map(|instance| LostController {
                subsystem: self.settings.subsystem.clone(),
                host: self.settings.host.clone(),
                host_id: self.settings.host_id,
                instance,
            }),
            until: cx.now + lifetime,
        };
        if self.known.is_none() {
            // It never carried an operation.
            self.links.close_link(cx, admin, CloseMode::Abort);
            return;
        }
        // Of two that are to be stopped, the older one's time is waited.
        if let Some(before) = self.fence.reset.take() {
            self.fence.wait_for(cx.now, before.otherwise);
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
            self.fence.wait_for(cx.now, otherwise);
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
        if self.fence.lost.is_empty() && !matches!(self.state, PathPhase::Closing(_)) {
            self.fence.unknown = false;
        }
        self.run_fence_timers(cx);
    }

    /// A controller could not be stopped: only time helps.
    pub(super) fn handle_reset_failed(&mut self, cx: &mut Cx<'_>) {
        if let Some(reset) = self.fence.reset.take() {
            self.admin_commands.forget_queue(reset.admin);
            self.links.close_link(cx, reset.admin, CloseMode::Abort);
            self.fence.wait_for(cx.now, reset.otherwise);
        }
    }

    /// A controller was reset by another one. If it is one of ours, it is not waited for.
    pub(super) fn handle_lost_controller_reset(&mut self, cx: &mut Cx<'_>, controller: &LostController) {
        let is_meant = |lost: &LostAssociation| lost.controller.as_ref() == Some(controller);
        self.fence.lost.retain(|lost| !is_meant(lost));
        if let Some(reset) = self.fence.reset.take_if(|reset| is_meant(&reset.otherwise)) {
            self.admin_commands.forget_queue(reset.admin);
            self.links.close_link(cx, reset.admin, CloseMode::Abort);
        }
        self.run_fence_timers(cx);
    }

    pub(super) fn run_fence_timers(&mut self, cx: &mut Cx<'_>) {
        if self.fence.reset.as_ref().is_some_and(|reset| reset.until <= cx.now) {
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
        if !self.fence.unknown || self.fence.lost.iter().all(|lost| lost.until <= cx.now) {
            (self.fence.asked, self.fence.unknown) = (false, false);
            self.fence.lost.clear();
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
