//! The queue's end of its messages with a controller.

use super::ExecContext;
use crate::queue_message::{ControllerEvent, QueueMessage, QueueReport};
use crate::spec::QueueSpec;
use crate::step::{ControllerStep, QueueKey, Step};

impl ExecContext {
    /// A controller has said something to a queue of this shard.
    pub(crate) fn handle_controller_event(&mut self, message: QueueMessage) {
        let QueueMessage { cntlid, association, queue_slot, event } = message;
        let Some(key) = self.queues.find_registered(cntlid, association, queue_slot) else {
            // It is gone, and has said so.
            return;
        };
        match event {
            ControllerEvent::End => self.end_queue_for_controller(key),
            ControllerEvent::Abort { cid, ticket } => self.abort_for_controller(key, cid, ticket),
            ControllerEvent::RequestReport { ticket } => {
                let report = Box::new(self.take_queue_report(key));
                self.send_to_controller(key, ControllerEvent::Report { ticket, report });
            }
            ControllerEvent::Settings { traffic_ms, delays_retries } => {
                let queue = self.queues.get_mut(key);
                queue.spec.delays_retries = delays_retries;
                queue.set_traffic_interval(traffic_ms);
            }
            ControllerEvent::Namespaces(namespaces) => self.change_queue_namespaces(key, namespaces),
            ControllerEvent::Opened { .. }
            | ControllerEvent::Gone { .. }
            | ControllerEvent::Proven
            | ControllerEvent::Traffic
            | ControllerEvent::Report { .. }
            // The caller gives these to the controller.
            | ControllerEvent::Aborted { .. } => {}
        }
    }

    /// Says something to the controller of a queue.
    pub(crate) fn send_to_controller(&mut self, key: QueueKey, event: ControllerEvent) {
        let QueueSpec { cntlid, association, queue_slot, home, .. } = self.queues.get(key).spec;
        self.steps.push_back(Step::Other(ControllerStep::QueueMessage {
            to: home,
            message: QueueMessage { cntlid, association, queue_slot, event },
        }));
    }

    fn end_queue_for_controller(&mut self, key: QueueKey) {
        let queue = self.queues.get_mut(key);
        if !queue.closing && !std::mem::replace(&mut queue.ended, true) {
            self.steps.push_back(Step::Other(ControllerStep::EndQueue { queue: key }));
        }
    }

    /// An I/O queue has opened on this shard.
    pub(crate) fn notify_queue_opened(&mut self, key: QueueKey) {
        let QueueSpec { cntlid, queue_slot, .. } = self.queues.get(key).spec;
        self.queues.register_io_queue((cntlid, queue_slot), key);
        let at = self.shard;
        self.send_to_controller(key, ControllerEvent::Opened { at });
    }

    /// An I/O queue of this shard is gone, with all its commands.
    pub(crate) fn notify_queue_gone(
        &mut self,
        key: QueueKey,
        spec: &QueueSpec,
        lost: bool,
        report: QueueReport,
    ) {
        self.queues.unregister_io_queue((spec.cntlid, spec.queue_slot), key);
        self.send_queue_gone(spec, lost, report);
    }

    /// Gives a queue up that was let in by [`Server::register_io_queue`] and never opened: its link was lost on
    /// the way, or there was no memory for it. On any shard.
    pub(crate) fn abandon_queue(&mut self, spec: &QueueSpec) {
        self.send_queue_gone(spec, false, QueueReport::default());
    }

    fn send_queue_gone(&mut self, spec: &QueueSpec, lost: bool, report: QueueReport) {
        let event = ControllerEvent::Gone { lost, report: Box::new(report) };
        let message = QueueMessage {
            cntlid: spec.cntlid,
            association: spec.association,
            queue_slot: spec.queue_slot,
            event,
        };
        self.steps.push_back(Step::Other(ControllerStep::QueueMessage { to: spec.home, message }));
    }

    /// On the queue's shard: the command ends, and then its controller is told.
    fn abort_for_controller(&mut self, key: QueueKey, cid: u16, ticket: u64) {
        // Noted first, since the command may end at once.
        self.queues.get_mut(key).aborting.push((cid, ticket));
        if !self.abort_cid(key, cid) {
            self.queues.get_mut(key).aborting.retain(|(_, asked)| *asked != ticket);
            self.send_to_controller(key, ControllerEvent::Aborted { ticket, aborted: false });
        }
    }

    /// A command of a queue with aborts under way has ended.
    pub(crate) fn notify_command_aborted(&mut self, key: QueueKey, cid: u16) {
        let queue = self.queues.get_mut(key);
        let tickets: Vec<u64> =
            queue.aborting.extract_if(.., |(victim, _)| *victim == cid).map(|(_, ticket)| ticket).collect();
        for ticket in tickets {
            self.send_to_controller(key, ControllerEvent::Aborted { ticket, aborted: true });
        }
    }
}
