//! Messages between a controller and its queues, at both ends.

use std::collections::VecDeque;
use std::sync::Arc;

use buf::Cx;
use volume::ShardId;

use super::{AdminWait, Controller, Controllers, JoinedQueue};
use crate::admin;
use crate::queue_message::{ControllerEvent, QueueMessage, QueueReport};
use crate::server::Server;
use crate::spec::{NamespaceEntry, sort_and_dedup_by_nsid};
use crate::step::{ControllerStep, Step};

impl Server {
    /// A message has come to this shard.
    pub fn handle_queue_message(&mut self, cx: &mut Cx<'_>, message: QueueMessage) {
        self.context.now = cx.now;
        match message.event {
            ControllerEvent::Opened { .. }
            | ControllerEvent::Gone { .. }
            | ControllerEvent::Proven
            | ControllerEvent::Traffic
            | ControllerEvent::Report { .. }
            | ControllerEvent::Aborted { .. } => self.handle_queue_event(cx, message),
            ControllerEvent::End
            | ControllerEvent::Abort { .. }
            | ControllerEvent::RequestReport { .. }
            | ControllerEvent::Settings { .. }
            | ControllerEvent::Namespaces(_) => self.context.handle_controller_event(message),
        }
    }

    fn handle_queue_event(&mut self, cx: &mut Cx<'_>, message: QueueMessage) {
        let QueueMessage { cntlid, association, queue_slot, event } = message;
        let known = self.controllers.find_mut(cntlid).filter(|known| known.association == association);
        let Some(controller) = known else {
            if let ControllerEvent::Opened { at } = event {
                // Its controller ended while it was on its way.
                let message = QueueMessage { cntlid, association, queue_slot, event: ControllerEvent::End };
                self.context.steps.push_back(Step::Other(ControllerStep::QueueMessage { to: at, message }));
            }
            return;
        };
        match event {
            ControllerEvent::Opened { at } => {
                let stays = controller.may_keep_queues();
                let settings = controller.settings_event();
                if let Some(member) =
                    controller.members.iter_mut().find(|member| member.queue_slot == queue_slot)
                {
                    member.open = true;
                    // Both may have changed while it was on its way.
                    for event in [settings, ControllerEvent::Namespaces(controller.namespaces.clone())] {
                        let message = QueueMessage { cntlid, association, queue_slot, event };
                        self.context.steps.push_back(Step::Other(ControllerStep::QueueMessage { to: at, message }));
                    }
                }
                if !stays {
                    // The end was told to its shard before it was there.
                    let message =
                        QueueMessage { cntlid, association, queue_slot, event: ControllerEvent::End };
                    self.context.steps.push_back(Step::Other(ControllerStep::QueueMessage { to: at, message }));
                }
            }
            ControllerEvent::Gone { lost, report } => self.handle_queue_gone(cx, cntlid, queue_slot, lost, *report),
            ControllerEvent::Proven => self.controllers.handle_queue_authenticated(&mut self.context.steps, cntlid, queue_slot),
            ControllerEvent::Traffic => self.controllers.note_host_alive(cntlid, cx.now),
            ControllerEvent::Report { ticket, report } => {
                controller.merge_report(queue_slot, *report);
                self.handle_queue_report(cx, cntlid, queue_slot, Some(ticket));
            }
            ControllerEvent::Aborted { ticket, aborted } => {
                controller.handle_abort_answer(&mut self.context.steps, ticket, aborted);
            },
            ControllerEvent::End
            | ControllerEvent::Abort { .. }
            | ControllerEvent::RequestReport { .. }
            | ControllerEvent::Settings { .. }
            // The caller gives these to the queue.
            | ControllerEvent::Namespaces(_) => {}
        }
    }

    fn handle_queue_gone(
        &mut self,
        cx: &mut Cx<'_>,
        cntlid: u16,
        queue_slot: u16,
        lost: bool,
        report: QueueReport,
    ) {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return };
        controller.merge_report(queue_slot, report);
        if let Some(at) = controller.members.iter().position(|member| member.queue_slot == queue_slot) {
            let member = controller.members.swap_remove(at);
            controller.past = controller.past.sum(member.counters);
        }
        let spared = controller.spec.individual_deletion || !controller.may_keep_queues();
        if lost && !spared && controller.lost.is_none() {
            controller.lost = Some(cx.now);
        }
        // Nobody will answer for it any more.
        let orphans: Vec<u64> = controller
            .waiting
            .iter()
            .filter_map(|waiting| match waiting.on {
                AdminWait::Abort { ticket } if ticket >> 48 == u64::from(queue_slot) => Some(ticket),
                _ => None,
            })
            .collect();
        for ticket in orphans {
            controller.handle_abort_answer(&mut self.context.steps, ticket, false);
        }
        self.handle_queue_report(cx, cntlid, queue_slot, None);
        self.controllers.schedule_deadline(cntlid);
        self.controllers.end_if_queues_gone(&mut self.context.steps, cntlid);
    }

    /// A queue has reported, or never will: log pages that waited for it may be answered.
    fn handle_queue_report(&mut self, cx: &mut Cx<'_>, cntlid: u16, queue_slot: u16, answer: Option<u64>) {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return };
        for waiting in &mut controller.waiting {
            if let AdminWait::Reports { ticket, from, .. } = &mut waiting.on
                && answer.is_none_or(|answer| answer == *ticket)
            {
                from.retain(|asked| *asked != queue_slot);
            }
        }
        let ready = |controller: &Controller| {
            let done = |wait: &AdminWait| matches!(wait, AdminWait::Reports { from, .. } if from.is_empty());
            controller.waiting.iter().position(|waiting| done(&waiting.on))
        };
        while let Some(controller) = self.controllers.find_mut(cntlid)
            && let Some(at) = ready(controller)
        {
            let waiting = controller.waiting.remove(at);
            if let AdminWait::Reports { page, .. } = waiting.on {
                admin::logs::handle_reports_gathered(self, cx, cntlid, waiting.key, waiting.cid, page);
            }
        }
    }

    /// Changes which namespaces a controller of this shard reaches: its host is told what changed,
    /// and its queues follow.
    pub fn change_namespaces(&mut self, cntlid: u16, namespaces: Vec<NamespaceEntry>) {
        let Some(controller) = self.controllers.find_mut(cntlid) else { return };
        let fresh = sort_and_dedup_by_nsid(namespaces);
        let changed = changed_nsids(&controller.namespaces, &fresh);
        if changed.is_empty() {
            return;
        }
        controller.namespaces = fresh.clone();
        let (association, admin) = (controller.association, controller.admin);
        let messages = controller.members.iter().map(|member| {
            Step::Other(ControllerStep::QueueMessage {
                to: member.shard,
                message: QueueMessage {
                    cntlid,
                    association,
                    queue_slot: member.queue_slot,
                    event: ControllerEvent::Namespaces(fresh.clone()),
                },
            })
        });
        self.context.steps.extend(messages);
        if !controller.admin_gone {
            self.context.queues.get_mut(admin).spec.namespaces = fresh;
        }
        self.controllers.notify_namespaces_changed(&mut self.context.steps, cntlid, &changed);
        self.controllers.refresh_ana_groups(&mut self.context, cntlid);
    }
}

impl Controllers {
    /// A queue's host has proved who it is: the queue's identifier is its own from now on, unless another
    /// had proved it before, and who has proved nothing under it goes.
    fn handle_queue_authenticated(&mut self, steps: &mut VecDeque<Step>, cntlid: u16, queue_slot: u16) {
        let Some(controller) = self.find_mut(cntlid) else { return };
        let association = controller.association;
        let Some(qid) =
            controller.members.iter().find(|member| member.queue_slot == queue_slot).map(|member| member.qid)
        else {
            return;
        };
        let rivals =
            controller.members.iter().filter(|member| member.qid == qid && member.queue_slot != queue_slot);
        let late = rivals.clone().any(|member| member.proven);
        let ends: Vec<(ShardId, u16)> = if late {
            let own =
                controller.members.iter().filter(|member| member.queue_slot == queue_slot && !member.proven);
            own.map(|member| (member.shard, member.queue_slot)).collect()
        } else {
            rivals.map(|member| (member.shard, member.queue_slot)).collect()
        };
        for member in controller.members.iter_mut().filter(|member| member.queue_slot == queue_slot && !late)
        {
            member.proven = true;
        }
        steps.extend(ends.into_iter().map(|(to, queue_slot)| {
            Step::Other(ControllerStep::QueueMessage {
                to,
                message: QueueMessage { cntlid, association, queue_slot, event: ControllerEvent::End },
            })
        }));
    }
}

impl Controller {
    fn settings_event(&self) -> ControllerEvent {
        let delays_retries = self.features.supports_retry_delay();
        ControllerEvent::Settings { traffic_ms: self.traffic_notice_interval_ms(), delays_retries }
    }

    /// Messages that tell its I/O queues how often it wants to hear of commands, and how its host tries
    /// them again.
    pub(crate) fn settings_messages(&self) -> Vec<Step> {
        let event = self.settings_event();
        let (cntlid, association) = (self.spec.cntlid, self.association);
        let message = |queue_slot| QueueMessage { cntlid, association, queue_slot, event: event.clone() };
        self.members
            .iter()
            .map(|member| {
                Step::Other(ControllerStep::QueueMessage {
                    to: member.shard,
                    message: message(member.queue_slot),
                })
            })
            .collect()
    }

    /// Whether its I/O queues may stay: it neither stops, nor shuts down, nor ends.
    fn may_keep_queues(&self) -> bool {
        let stops = !self.configuration.is_enabled();
        !stops && self.ending.is_none() && self.status.shutdown == nvme::property::ShutdownStatus::No
    }

    /// Takes a queue's report over.
    fn merge_report(&mut self, queue_slot: u16, report: QueueReport) {
        let member = self.members.iter_mut().find(|member| member.queue_slot == queue_slot);
        let Some(JoinedQueue { qid, counters, .. }) = member else { return };
        *counters = report.counters;
        let qid = *qid;
        self.errors.add_failures(qid, report.failures, report.failed);
    }
}

/// The NSIDs whose entries differ, ascending.
fn changed_nsids(old: &Arc<[NamespaceEntry]>, new: &Arc<[NamespaceEntry]>) -> Vec<u32> {
    let lone = |of: &[NamespaceEntry], other: &[NamespaceEntry]| -> Vec<u32> {
        of.iter().filter(|entry| !other.contains(entry)).map(|entry| entry.nsid).collect()
    };
    let mut changed = lone(old, new);
    changed.extend(lone(new, old));
    changed.sort_unstable();
    changed.dedup();
    changed
}
