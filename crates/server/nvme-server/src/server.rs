//! The server of a shard: I/O commands go to the context that executes them, the rest to the controllers and
//! their admin commands.

use std::collections::HashMap;

use buf::{Cx, Sg};
use nvme::Sqe;
use volume::{AskId, Done, IoId, Nexus, Refusal, Shard, Time, View, ViewUpdate, VolumeId};

use crate::admin;
use crate::context::{ExecContext, VolumeInfo};
use crate::controller::Controllers;
use crate::exec::fast_path::FastPath;
use crate::exec::{self, fused};
use crate::queue_message::{Counters, Failure};
use crate::spec::QueueSpec;
use crate::step::{CommandKey, ComputeId, QueueKey, Step};
use crate::task::{Ending, Phase};

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
    pub fn new(shard: Shard) -> Self {
        Server {
            context: ExecContext::new(shard),
            controllers: Controllers::default(),
            computing: HashMap::new(),
            computations: 0,
        }
    }

    /// The shard that it serves.
    pub fn shard(&self) -> Shard {
        self.context.shard
    }

    /// What to do next.
    #[must_use]
    #[inline]
    pub fn poll_step(&mut self) -> Option<Step> {
        self.context.steps.pop_front()
    }

    /// Makes a volume known to this shard. One that is known already stays as it is.
    pub fn add_volume(&mut self, info: VolumeInfo, view: View) {
        self.context.add_volume(info, view);
    }

    /// Serves a volume no more: commands on it end, its namespaces are not there.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        self.context.remove_volume(volume);
    }

    /// What is known of a volume of this shard.
    pub fn volume_info(&self, volume: VolumeId) -> Option<&VolumeInfo> {
        self.context.volume_info(volume)
    }

    /// Who sends by a queue.
    #[inline]
    pub fn nexus(&self, key: QueueKey) -> &Nexus {
        self.context.nexus(key)
    }

    /// Whether a queue's controller has a namespace that is this volume.
    pub fn reaches(&self, key: QueueKey, volume: VolumeId) -> bool {
        self.context.reaches(key, volume)
    }

    /// What a queue has done since it was opened; zeroes if it is gone.
    pub fn counters(&self, key: QueueKey) -> Counters {
        self.context.counters(key)
    }

    /// Opens a queue. An I/O queue's controller is told.
    pub fn open_queue(&mut self, cx: &mut Cx<'_>, spec: QueueSpec) -> QueueKey {
        self.context.now = cx.now;
        let is_admin = spec.qid == 0;
        let key = self.context.insert_queue(cx.pool, spec);
        self.guard(key);
        if !is_admin {
            self.context.note_opened(key);
        }
        key
    }

    /// Gives a queue up that was let in by [`Server::join`] and never opened: its link was lost on
    /// the way, or there was no memory for it. On any shard.
    pub fn give_up(&mut self, spec: &QueueSpec) {
        self.context.give_up(spec);
    }

    /// Ends a queue: all its commands end by [`Step::Retire`], and with the last of them its key.
    /// Does nothing if it is ending.
    pub fn close_queue(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        self.context.now = cx.now;
        let Some(queue) = self.context.open_queue_mut(key) else { return };
        if std::mem::replace(&mut queue.closing, true) {
            return;
        }
        let QueueSpec { cntlid, qid, .. } = queue.spec;
        self.unguard(key);
        if qid == 0 {
            self.admin_closed(cntlid, key);
        }
        self.context.stop_all(&self.context.commands_of(key, |_| true), Ending::Silent);
        self.context.forget_if_done(key);
    }

    /// Whether a queue's host knows of delays before it tries a command again.
    pub(crate) fn delays_retries(&self, key: QueueKey) -> bool {
        let spec = &self.context.queue(key).spec;
        match self.controllers.find(spec.cntlid) {
            Some(controller) if spec.qid == 0 => controller.features.delays_retries(),
            Some(_) | None => spec.delays_retries,
        }
    }

    /// Notes a failure of a command that was never one of the tasks: with the controller if it came by
    /// the admin queue.
    pub(crate) fn note_failure(&mut self, key: QueueKey, failure: Failure) {
        let QueueSpec { cntlid, qid, .. } = self.context.queue(key).spec;
        match self.controllers.find_mut(cntlid) {
            Some(controller) if qid == 0 => controller.errors.add(0, vec![failure], 1),
            Some(_) | None => self.context.queue_mut(key).fail(failure),
        }
    }

    /// A command has come; `data_out`: how many bytes of data its SGL offers the controller to take.
    #[inline]
    pub fn start(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) {
        self.context.now = cx.now;
        if cx.now >= self.context.queue(key.queue).attention && self.attend(cx, key, sqe, data_out) {
            return;
        }
        let queue = self.context.queue(key.queue);
        if queue.half.is_some() || queue.closing || sqe.flags & 3 != 0 {
            return fused::start(&mut self.context, key, sqe, data_out);
        }
        exec::start(&mut self.context, key, sqe, data_out);
    }

    /// Whether a command is a plain read or write that needs no task. If the gate can carry it
    /// out ([`Gate::read_at_once`](volume::Gate::read_at_once), `write_at_once`), it has ended: say so
    /// with [`Server::count_fast_path`], and answer it with success. If not, [`Server::start`] it.
    #[must_use]
    #[inline]
    pub fn fast_path(&self, now: Time, key: CommandKey, sqe: &Sqe, data_out: u32) -> Option<FastPath> {
        self.context.fast_path(now, key, sqe, data_out)
    }

    /// A command was carried out at once.
    #[inline]
    pub fn count_fast_path(&mut self, queue: QueueKey, what: &FastPath) {
        self.context.count_fast_path(queue, what);
    }

    /// Payload that a [`Step::Receive`] asked for is here, all of it.
    #[inline]
    pub fn data(&mut self, cx: &mut Cx<'_>, key: CommandKey, _at: u32, data: Sg) {
        self.context.now = cx.now;
        let Some(slot) = self.context.find(key) else { return admin::data(self, cx, key, &data) };
        if self.context.tasks.get(slot).phase == Phase::Data {
            exec::data(&mut self.context, slot, data);
        }
    }

    /// There may be memory for the answer of a command, for which [`Step::Room`] asked; if there is not,
    /// it asks again.
    pub fn retry(&mut self, cx: &mut Cx<'_>, key: CommandKey) {
        self.context.now = cx.now;
        match self.context.find(key) {
            Some(slot) => exec::retry(&mut self.context, slot),
            None => admin::retry(self, cx, key),
        }
    }

    /// An operation has ended.
    #[inline]
    pub fn done(&mut self, cx: &mut Cx<'_>, done: Done) {
        self.context.now = cx.now;
        let Some(slot) = self.context.tasks.find_io(done.id) else { return };
        if self.context.tasks.get(slot).ending == Ending::No {
            exec::done(&mut self.context, slot, done);
        } else {
            self.context.end(slot);
        }
    }

    /// The volume's home has answered a [`Step::VolumeRequest`].
    pub fn answered(&mut self, cx: &mut Cx<'_>, id: AskId, result: Result<(), Refusal>) {
        self.context.now = cx.now;
        let Some(slot) = self.context.tasks.find_io(IoId(id.0)) else {
            return admin::answered(self, cx, id, result);
        };
        self.context.answered(slot, result);
    }

    /// A command must end without an answer; [`Step::Retire`] follows.
    pub fn abort(&mut self, key: CommandKey) {
        match self.context.find(key) {
            Some(slot) => self.context.stop_all(&[(slot, key)], Ending::Silent),
            // It was answered in this very turn.
            None if admin::retire(self, key) => {}
            None => self.context.steps.push_back(Step::Retire { command: key }),
        }
    }

    /// The volume has changed: takes the new view over, and ends the commands that the change ends.
    pub fn adopt(&mut self, volume: VolumeId, adoption: &ViewUpdate) {
        self.context.update_view(volume, adoption);
        self.notify(volume, adoption);
    }
}
