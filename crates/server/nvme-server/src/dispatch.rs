//! Routes commands, their payload, completions and answers: to the context that executes I/O commands, or to
//! the admin commands.

use buf::{Cx, Sg};
use nvme::Sqe;
use volume::{InlineIo, IoCompletion, IoId, Refusal, RequestId, Time};

use crate::admin;
use crate::exec::{self, fused};
use crate::queue_message::ControllerEvent;
use crate::server::Server;
use crate::step::{CommandKey, QueueKey, Step};
use crate::task::{TaskEnding, TaskPhase};

impl Server {
    /// A command has come; `data_out`: how many bytes of data its SGL offers the controller to take.
    #[inline]
    pub fn start_command(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) {
        self.context.now = cx.now;
        if cx.now >= self.context.queues.get(key.queue).slow_path_from
            && self.handle_auth_or_admin(cx, key, sqe, data_out)
        {
            return;
        }
        let queue = self.context.queues.get(key.queue);
        if queue.half.is_some() || queue.closing || sqe.flags & 3 != 0 {
            return fused::start_fused_or_following(&mut self.context, key, sqe, data_out);
        }
        exec::start_command(&mut self.context, key, sqe, data_out);
    }

    /// Whether a command is a plain read or write that needs no task. If the gate can carry it
    /// out ([`Gate::read_inline`](volume::Gate::read_inline), `write_inline`), it has ended: say so
    /// with [`Server::count_inline_io`], and answer it with success. If not, [`Server::start_command`] it.
    #[must_use]
    #[inline]
    pub fn inline_io_for(&self, now: Time, key: CommandKey, sqe: &Sqe, data_out: u32) -> Option<InlineIo> {
        self.context.inline_io_for(now, key, sqe, data_out)
    }

    /// A command was carried out at once.
    #[inline]
    pub fn count_inline_io(&mut self, queue: QueueKey, what: &InlineIo) {
        self.context.count_inline_io(queue, what);
    }

    /// Payload that a `Step::Receive` asked for is here, all of it.
    #[inline]
    pub fn handle_data(&mut self, cx: &mut Cx<'_>, key: CommandKey, _at: u32, data: Sg) {
        self.context.now = cx.now;
        let Some(slot) = self.context.find_command(key) else {
            return admin::handle_data(self, cx, key, &data);
        };
        if self.context.tasks.get(slot).phase == TaskPhase::Data {
            exec::handle_data(&mut self.context, slot, data);
        }
    }

    /// There may be memory for the answer of a command, for which `Step::AwaitMemory` asked; if there is not,
    /// it asks again.
    pub fn retry_answer(&mut self, cx: &mut Cx<'_>, key: CommandKey) {
        self.context.now = cx.now;
        match self.context.find_command(key) {
            Some(slot) => exec::retry_answer(&mut self.context, slot),
            None => admin::retry_waiting(self, cx, key),
        }
    }

    /// An operation has ended.
    #[inline]
    pub fn handle_io_done(&mut self, cx: &mut Cx<'_>, done: IoCompletion) {
        self.context.now = cx.now;
        let Some(slot) = self.context.tasks.slot_of_io(done.id) else { return };
        if self.context.tasks.get(slot).ending == TaskEnding::No {
            exec::handle_io_done(&mut self.context, slot, done);
        } else {
            self.context.finish_terminated(slot);
        }
    }

    /// The volume's home has answered a `Step::VolumeRequest`.
    pub fn handle_volume_answer(&mut self, cx: &mut Cx<'_>, id: RequestId, result: Result<(), Refusal>) {
        self.context.now = cx.now;
        let Some(slot) = self.context.tasks.slot_of_io(IoId(id.0)) else {
            return admin::handle_volume_answer(self, cx, id, result);
        };
        self.context.handle_volume_answer(slot, result);
    }

    /// A command must end without an answer; `Step::Retire` follows.
    pub fn abort_command(&mut self, key: CommandKey) {
        match self.context.find_command(key) {
            Some(slot) => self.context.terminate_tasks(&[(slot, key)], TaskEnding::Silent),
            // It was answered in this very turn.
            None if admin::retire_waiting(self, key) => {}
            None => self.context.steps.push_back(Step::Retire { command: key }),
        }
    }

    /// A command that wants more than to be executed has come. Whether that is all it wants.
    fn handle_auth_or_admin(&mut self, cx: &mut Cx<'_>, key: CommandKey, sqe: &Sqe, data_out: u32) -> bool {
        if self.handle_auth_or_refuse(cx, key, sqe, data_out) {
            return true;
        }
        let queue = self.context.queues.get_mut(key.queue);
        if queue.spec.qid == 0 {
            admin::start_admin_command(self, cx, key, sqe, data_out);
            return true;
        }
        if queue.is_traffic_notice_due(cx.now) {
            self.context.send_to_controller(key.queue, ControllerEvent::Traffic);
        }
        false
    }
}
