//! The timers of a shard's controllers: keep alive (NVMe Base §3.9), lost queues, and queues that have to authenticate.

use buf::{Cx, Time};

use super::lifecycle::QUEUE_LOSS_GRACE;
use super::{Controller, ControllerTimer};
use crate::server::Server;
use crate::step::ControllerEnd;

impl Server {
    /// When [`Server::handle_timeout`] wants to be called, if at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.controllers.timers.first().map(|(time, _)| *time)
    }

    /// Keep-alive timers of all controllers here begin again, because the shard has received nothing for some time.
    pub fn restart_keep_alive_timers(&mut self, now: Time) {
        self.controllers.restart_keep_alive_timers(now);
    }

    /// The time that [`Server::poll_timeout`] named has come.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        self.context.now = cx.now;
        while let Some(&(time, due)) = self.controllers.timers.first() {
            if time > cx.now {
                return;
            }
            let cntlid = match due {
                ControllerTimer::Controller(cntlid) => cntlid,
                ControllerTimer::Queue(key) => {
                    self.controllers.move_timer(due, Some(time), None);
                    self.context.queues.get_mut(key).armed = None;
                    self.reject_host(key);
                    continue;
                }
            };
            let due = self.controllers.find(cntlid).and_then(Controller::deadline);
            if due.is_some_and(|due| due <= cx.now) {
                let lost = self.controllers.find(cntlid).is_some_and(|controller| {
                    controller.lost.is_some_and(|lost| lost + QUEUE_LOSS_GRACE <= cx.now)
                });
                self.controllers.end_association(
                    &mut self.context.steps,
                    cntlid,
                    if lost { ControllerEnd::QueueLost } else { ControllerEnd::Silent },
                );
            }
            self.controllers.schedule_deadline(cntlid);
        }
    }
}
