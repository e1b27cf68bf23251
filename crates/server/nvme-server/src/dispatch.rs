//! Routes commands, their payload, completions and answers: to the context that executes I/O commands, or to
//! the admin commands.

use buf::{Cx, Sg};
use nvme::Sqe;
use volume::{Done, InlineIo, IoId, Refusal, RequestId, Time};

use crate::admin;
use crate::exec::{self, fused};
use crate::queue_message::ControllerEvent;
use crate::server::Server;
use crate::step::{CommandKey, QueueKey, Step};
use crate::task::{Ending, Phase};

impl Server {
    /// A command has come; `data_out`: how many bytes of data its SGL offers the controller to take.
    #[inline]
    pub fn start(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) {
        self.context.now = cx.now;
        if cx.now >= self.context.queues.get(key.queue).slow_path_from
            && self.before_execution(cx, key, sqe, data_out)
        {
            return;
        }
        let queue = self.context.queues.get(key.queue);
        if queue.half.is_some() || queue.closing || sqe.flags & 3 != 0 {
            return fused::start(&mut self.context, key, sqe, data_out);
        }
        exec::start(&mut self.context, key, sqe, data_out);
    }

    /// Whether a command is a plain read or write that needs no task. If the gate can carry it
    /// out ([`Gate::read_inline`](volume::Gate::read_inline), `write_inline`), it has ended: say so
    /// with [`Server::count_fast_path`], and answer it with success. If not, [`Server::start`] it.
    #[must_use]
    #[inline]
    pub fn fast_path(&self, now: Time, key: CommandKey, sqe: &Sqe, data_out: u32) -> Option<InlineIo> {
        self.context.fast_path(now, key, sqe, data_out)
    }

    /// A command was carried out at once.
    #[inline]
    pub fn count_fast_path(&mut self, queue: QueueKey, what: &InlineIo) {
        self.context.count_fast_path(queue, what);
    }

    /// Payload that a `Step::Receive` asked for is here, all of it.
    #[inline]
    pub fn data(&mut self, cx: &mut Cx<'_>, key: CommandKey, _at: u32, data: Sg) {
        self.context.now = cx.now;
        let Some(slot) = self.context.find(key) else { return admin::data(self, cx, key, &data) };
        if self.context.tasks.get(slot).phase == Phase::Data {
            exec::data(&mut self.context, slot, data);
        }
    }

    /// There may be memory for the answer of a command, for which `Step::AwaitMemory` asked; if there is not,
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

    /// The volume's home has answered a `Step::VolumeRequest`.
    pub fn answered(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        self.context.now = cx.now;
        let Some(slot) = self.context.tasks.find_io(IoId(id.0)) else {
            return admin::answered(self, cx, id, result);
        };
        self.context.answered(slot, result);
    }

    /// A command must end without an answer; `Step::Retire` follows.
    pub fn abort(&mut self, key: CommandKey) {
        match self.context.find(key) {
            Some(slot) => self.context.stop_all(&[(slot, key)], Ending::Silent),
            // It was answered in this very turn.
            None if admin::retire(self, key) => {}
            None => self.context.steps.push_back(Step::Retire { command: key }),
        }
    }

    /// A command that wants more than to be executed has come. Whether that is all it wants.
    fn before_execution(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) -> bool {
        if self.authenticate_first(cx, key, sqe, data_out) {
            return true;
        }
        let queue = self.context.queues.get_mut(key.queue);
        if queue.spec.qid == 0 {
            admin::start(self, cx, key, sqe, data_out);
            return true;
        }
        if queue.is_traffic_notice_due(cx.now) {
            self.context.send_to_controller(key.queue, ControllerEvent::Traffic);
        }
        false
    }
}
