//! The server of a shard: its volumes, queues and controllers. `dispatch.rs` routes commands.

use std::collections::HashMap;

use buf::Cx;
use volume::{Requester, ShardId, View, ViewUpdate, VolumeId};

use crate::context::{ExecContext, ServedVolume, VolumeInfo};
use crate::controller::Controllers;
use crate::queue_message::{CommandFailure, QueueCounters};
use crate::spec::QueueSpec;
use crate::step::{ComputeId, QueueKey, Step};
use crate::task::TaskEnding;

/// The NVMe server of one shard.
#[derive(Debug)]
pub struct Server {
    /// Volumes, queues, and the commands of I/O queues.
    pub(crate) context: ExecContext,
    pub(crate) controllers: Controllers,
    /// Queues that wait for what is being computed, and how much there ever was.
    pub(crate) computing: HashMap<ComputeId, QueueKey>,
    pub(crate) computations: u64,
}

impl Server {
    /// The server of this shard, without volumes and queues.
    pub fn new(shard: ShardId) -> Self {
        Server {
            context: ExecContext::new(shard),
            controllers: Controllers::default(),
            computing: HashMap::new(),
            computations: 0,
        }
    }

    /// The shard that it serves.
    pub fn shard(&self) -> ShardId {
        self.context.shard
    }

    /// Whether [`Server::poll_step`] has something to give.
    #[inline]
    pub fn has_steps(&self) -> bool {
        !self.context.steps.is_empty()
    }

    /// What to do next.
    #[must_use]
    #[inline]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.context.steps.pop_front()
    }

    /// Makes a volume known to this shard. One that is known already stays as it is.
    pub fn add_volume(&mut self, info: VolumeInfo, view: View) {
        let volume = info.facts.id;
        let _ = self.context.volumes.insert(volume, ServedVolume { info, view, report: None });
    }

    /// Serves a volume no more: commands on it end, its namespaces are not there.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.context.remove_volume(volume);
    }

    /// What is known of a volume of this shard.
    pub fn volume_info(&self, volume: VolumeId) -> Option<&VolumeInfo> {
        Some(&self.context.volumes.get(volume)?.info)
    }

    /// Who sends by a queue.
    #[inline]
    pub fn nexus(&self, key: QueueKey) -> &Requester {
        self.context.nexus(key)
    }

    /// Whether a queue's controller has a namespace that is this volume.
    pub fn reaches_volume(&self, key: QueueKey, volume: VolumeId) -> bool {
        self.context.queues.get(key).spec.namespaces.iter().any(|entry| entry.volume == volume)
    }

    /// What a queue has done since it was opened; zeroes if it is gone.
    pub fn queue_counters(&self, key: QueueKey) -> QueueCounters {
        self.context.queues.find(key).map_or_else(QueueCounters::default, |queue| queue.counters)
    }

    /// Opens a queue. An I/O queue's controller is told.
    pub fn open_queue(&mut self, cx: &mut Cx<'_>, spec: QueueSpec) -> QueueKey {
        self.context.now = cx.now;
        let is_admin = spec.qid == 0;
        let key = self.context.insert_queue(cx.pool, spec);
        self.start_authentication(key);
        if !is_admin {
            self.context.notify_queue_opened(key);
        }
        key
    }

    /// Gives a queue up that was let in by `admit_io_queue` and never opened: its link was lost on
    /// the way, or there was no memory for it. On any shard.
    pub fn abandon_queue(&mut self, spec: &QueueSpec) {
        self.context.abandon_queue(spec);
    }

    /// Ends a queue: all its commands end by `Step::Retire`, and with the last of them its key.
    /// Does nothing if it is ending.
    pub fn close_queue(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        self.context.now = cx.now;
        let Some(queue) = self.context.queues.find_mut(key) else { return };
        if std::mem::replace(&mut queue.closing, true) {
            return;
        }
        let QueueSpec { cntlid, qid, .. } = queue.spec;
        self.close_authentication(key);
        if qid == 0 {
            self.controllers.handle_admin_queue_closed(&mut self.context.steps, cntlid, key);
        }
        self.context.terminate_tasks(&self.context.commands_of(key, |_| true), TaskEnding::Silent);
        self.context.remove_queue_if_done(key);
    }

    /// Whether a queue's host knows of delays before it tries a command again.
    pub(crate) fn supports_retry_delay(&self, key: QueueKey) -> bool {
        let spec = &self.context.queues.get(key).spec;
        match self.controllers.find(spec.cntlid) {
            Some(controller) if spec.qid == 0 => controller.features.supports_retry_delay(),
            Some(_) | None => spec.delays_retries,
        }
    }

    /// Notes a failure of a command that was never one of the tasks: with the controller if it came by
    /// the admin queue.
    pub(crate) fn note_failure(&mut self, key: QueueKey, failure: CommandFailure) {
        let QueueSpec { cntlid, qid, .. } = self.context.queues.get(key).spec;
        match self.controllers.find_mut(cntlid) {
            Some(controller) if qid == 0 => controller.errors.add_failures(0, vec![failure], 1),
            Some(_) | None => self.context.queues.get_mut(key).note_failure(failure),
        }
    }

    /// The volume has changed: takes the new view over, and ends the commands that the change ends.
    pub fn update_view(&mut self, volume: VolumeId, update: &ViewUpdate) {
        self.context.update_view(volume, update);
        self.controllers.notify_hosts(&mut self.context, volume, update);
    }
}
