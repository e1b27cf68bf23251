//! The life of a controller: enabling, reset, shutdown (NVMe Base §3.5, §3.6, §3.7), keep alive (§3.9), and
//! the end of its association.
//!
//! - EN 0 → 1 checks the configuration: RDY, or CFS if it is invalid.
//! - EN 1 → 0 ends all I/O queues and the waiting commands of the admin queue; RDY is cleared when they are
//!   gone.
//! - SHN ends the I/O queues too; SHST reports complete when they are gone.
//! - Silence beyond the keep-alive timeout, or a lost connection, ends the association.
//!
//! A host that shuts down closes the I/O connections first and then writes CC on the admin queue. So an I/O
//! connection that is lost without Disconnect ends the association only if no reset or shutdown follows
//! within [`QUEUE_LOSS_GRACE`].

use std::collections::VecDeque;
use std::time::Duration;

use buf::Time;
use nvme::Status;
use nvme::failpoint::{Failpoint, is_on};
use nvme::property::{ControllerConfiguration, ShutdownStatus};

use super::{Controller, ControllerTimer, Controllers, Unanswered};
use crate::queue_message::{ControllerEvent, QueueMessage};
use crate::step::{ControllerEnd, ControllerStep, QueueKey, Step};

/// How long after the loss of an I/O queue its host may still reset or shut down in good order.
pub(super) const QUEUE_LOSS_GRACE: Duration = Duration::from_secs(5);

/// How long a controller that is not enabled, or that has been shut down, stays for a host that says
/// nothing: its keep-alive timer does not run (NVMe Base §3.9).
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a discovery controller without keep alive stays for a host that says nothing: so that
/// nobody holds it for ever.
pub(super) const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(120);

impl Controller {
    /// Whether this configuration can be enabled.
    fn accepts_configuration(&self, configuration: ControllerConfiguration) -> bool {
        let sets = match configuration.command_sets() {
            0 | 6 => true,
            7 => self.is_discovery(),
            _ => false,
        };
        let entries = (configuration.iosqes(), configuration.iocqes());
        // A controller without I/O queues has no entries to size.
        let sized = entries == (6, 4) || self.is_discovery();
        let ready = !configuration.independent_of_media();
        sets && sized && ready && configuration.page_size() == 0 && configuration.arbitration() == 0
    }

    /// When something must happen, if nothing else does.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.ending.is_some() {
            return None;
        }
        // Its I/O queues tell of commands no more often than each quarter of the timeout.
        let quarters = if self.members.is_empty() { 4 } else { 5 };
        let keep_alive_timeout =
            if self.is_keep_alive_running() { self.keep_alive_timeout } else { Some(IDLE_TIMEOUT) };
        let silent =
            keep_alive_timeout.map(|keep_alive_timeout| self.last_heard + keep_alive_timeout / 4 * quarters);
        let lost = self.lost.map(|lost| lost + QUEUE_LOSS_GRACE);
        match (silent, lost) {
            (Some(silent), Some(lost)) => Some(silent.min(lost)),
            (one, other) => one.or(other),
        }
    }

    /// Whether its keep-alive timer runs: from ready to the begin of a shutdown.
    fn is_keep_alive_running(&self) -> bool {
        self.status.ready && self.configuration.is_enabled() && self.configuration.shutdown() == 0
    }

    /// Messages that end all I/O queues that have not been told.
    fn end_io_queues(&mut self, steps: &mut impl Extend<Step>) {
        let (cntlid, association) = (self.spec.cntlid, self.association);
        steps.extend(self.members.iter().map(|member| {
            Step::Other(ControllerStep::QueueMessage {
                to: member.shard,
                message: QueueMessage {
                    cntlid,
                    association,
                    queue_slot: member.queue_slot,
                    event: ControllerEvent::End,
                },
            })
        }));
    }
}

impl Controllers {
    /// The host writes CC.
    pub(crate) fn write_configuration(
        &mut self,
        steps: &mut VecDeque<Step>,
        now: Time,
        cntlid: u16,
        to: ControllerConfiguration,
    ) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        let from = std::mem::replace(&mut controller.configuration, to);
        let starts = !from.is_enabled() && to.is_enabled();
        if starts {
            controller.last_heard = controller.last_heard.max(now);
            if controller.status.ready || !controller.accepts_configuration(to) {
                controller.status.fatal = true;
            } else {
                controller.status.ready = true;
            }
        }
        let stops = from.is_enabled() && !to.is_enabled();
        let shuts = from.shutdown() == 0 && to.shutdown() != 0;
        if shuts {
            controller.status.shutdown = ShutdownStatus::Occurring;
        } else if to.shutdown() == 0 && (controller.status.shutdown == ShutdownStatus::Complete || stops) {
            controller.status.shutdown = ShutdownStatus::No;
        }
        if stops || shuts {
            controller.lost = None;
            controller.end_io_queues(steps);
            let waiting = std::mem::take(&mut controller.waiting);
            for waiting in waiting {
                controller.note_ended_command(&waiting);
                let completion = Status::ABORTED_SQ_DELETION.into();
                steps.push_back(Step::Respond { command: waiting.key, reply: completion });
            }
            if stops {
                controller.reset_state();
            }
            self.end_if_queues_gone(steps, cntlid);
        }
        if starts || stops || shuts {
            self.schedule_deadline(cntlid);
        }
    }

    /// What an admin command that was ended has asked of a volume is answered.
    pub(crate) fn settle_unanswered(&mut self, steps: &mut VecDeque<Step>, settled: Unanswered) {
        let asked = |controller: &&mut Controller| controller.unanswered.contains(&settled);
        let Some(controller) = self.here.values_mut().find(asked) else { return };
        controller.unanswered.retain(|unanswered| *unanswered != settled);
        let cntlid = controller.spec.cntlid;
        self.end_if_queues_gone(steps, cntlid);
    }

    /// A controller of which nothing runs any more has ended its reset, its shutdown, or itself.
    pub(super) fn end_if_queues_gone(&mut self, steps: &mut VecDeque<Step>, cntlid: u16) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        let runs = !controller.members.is_empty() || !controller.unanswered.is_empty();
        if runs && !is_on(Failpoint::ResetHasty) {
            return;
        }
        if controller.status.shutdown == ShutdownStatus::Occurring {
            controller.status.shutdown = ShutdownStatus::Complete;
        }
        if !controller.configuration.is_enabled() {
            controller.status.ready = false;
            controller.status.fatal = false;
        }
        if let (Some(why), true) = (controller.ending, controller.admin_gone) {
            let armed = controller.armed;
            self.move_timer(ControllerTimer::Controller(cntlid), armed, None);
            self.here.remove(&cntlid);
            steps.push_back(Step::Other(ControllerStep::ControllerGone { cntlid, why }));
            self.answer_reset_waiters(steps, cntlid);
        }
    }

    /// Ends an association. CFS shows it to who still looks.
    pub(crate) fn end_association(&mut self, steps: &mut VecDeque<Step>, cntlid: u16, why: ControllerEnd) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        if controller.ending.is_some() {
            return;
        }
        controller.ending = Some(why);
        controller.status.fatal = true;
        (controller.keep_alive_timeout, controller.lost) = (None, None);
        controller.end_io_queues(steps);
        if !controller.admin_gone {
            steps.push_back(Step::Other(ControllerStep::EndQueue { queue: controller.admin }));
        }
        self.schedule_deadline(cntlid);
        self.end_if_queues_gone(steps, cntlid);
    }

    /// The admin queue is closed: what waits on it ends, and so does the association.
    pub(crate) fn handle_admin_queue_closed(
        &mut self,
        steps: &mut VecDeque<Step>,
        cntlid: u16,
        key: QueueKey,
    ) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        if controller.admin != key {
            return;
        }
        controller.admin_gone = true;
        let retired = std::mem::take(&mut controller.waiting);
        retired.iter().for_each(|waiting| controller.note_ended_command(waiting));
        steps.extend(retired.into_iter().map(|waiting| Step::Retire { command: waiting.key }));
        self.end_association(steps, cntlid, ControllerEnd::Closed);
        self.end_if_queues_gone(steps, cntlid);
    }

    /// The host has shown that it is there.
    pub(crate) fn note_host_alive(&mut self, cntlid: u16, now: Time) {
        if let Some(controller) = self.find_mut(cntlid) {
            controller.last_heard = controller.last_heard.max(now);
        }
    }

    /// Keep-alive timers of all controllers here begin again.
    pub(crate) fn restart_keep_alive_timers(&mut self, now: Time) {
        for controller in self.here.values_mut() {
            controller.last_heard = controller.last_heard.max(now);
        }
    }

    /// Puts a controller's deadline among the timers. One that has moved away is seen when the timer
    /// fires, so that nothing is done for each command.
    pub(crate) fn schedule_deadline(&mut self, cntlid: u16) {
        let Some(controller) = self.here.get_mut(&cntlid) else { return };
        let deadline = controller.deadline();
        let old = std::mem::replace(&mut controller.armed, deadline);
        self.move_timer(ControllerTimer::Controller(cntlid), old, deadline);
    }
}

impl Controller {
    /// What a reset forgets (NVMe Base §3.7.2): all but the totals and the error log.
    fn reset_state(&mut self) {
        self.granted = self.spec.limits.queues;
        self.events = Default::default();
        self.features = Default::default();
        self.snapshot = None;
    }
}
