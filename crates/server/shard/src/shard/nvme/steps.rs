//! What the NVMe server wants for controllers and queues, and commands carried out inline.

use buf::Cx;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, ControllerStep, QueueKey};
use stream::{Close, Connection, Tag, Target};

use super::{LAST_WORDS_MAX, NvmeFront, QueueState};
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::front::carry_out_inline;
use crate::shard::payload_step::CommandConn;
use crate::shard::{DIRECTORY, Parts};

impl NvmeFront {
    /// Does what the server wants for controllers and queues.
    pub(super) fn run_controller_step(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, step: ControllerStep) {
        match step {
            ControllerStep::ListControllers { id, of } => {
                let from = parts.id;
                parts.outbox.broadcast(|| {
                    Message::Nvme(NvmeMessage::ListControllers(from, id, Box::new(of.clone())))
                });
            }
            ControllerStep::QueueMessage { to, message } => {
                parts.outbox.post(to, Message::Nvme(NvmeMessage::Queue(message)));
            }
            ControllerStep::EndQueue { queue } => self.end_queue(cx, parts, queue),
            ControllerStep::HostAuthenticated { queue } => self.host_authenticated(cx, parts, queue),
            ControllerStep::PskGenerated { queue, psk } => self.psk_generated(parts, queue, &psk),
            ControllerStep::AuthenticationFailed { queue } => self.host_failed_authentication(parts, queue),
            ControllerStep::Compute { queue, id, work } => self.compute(cx, parts, queue, id, work),
            ControllerStep::CancelCompute { id } => {
                parts.outbox.post(CONTROL, Message::Nvme(NvmeMessage::Forget(parts.id, id)))
            }
            ControllerStep::ControllerGone { cntlid, why } => {
                self.controller_gone(parts, cntlid, why);
                parts.outbox.post(DIRECTORY, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
        }
    }

    /// What was queued for a queue is sent, then its link is closed.
    pub(super) fn end_queue(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, key: QueueKey) {
        let Some(Some(conn)) = self.conns.get(key.0 as usize).copied() else { return };
        let Some(queue) = parts.conns.queue(conn) else { return };
        if queue.open().is_none_or(|open| open.key != key) {
            return;
        }
        queue.state = QueueState::Ended;
        queue.proto.close(cx, Close::AfterLogout(cx.now + LAST_WORDS_MAX));
        parts.conns.touch(conn);
        self.forget_transfers_of_queue(parts, key);
        self.server.close_queue(cx, key);
    }

    /// What a queue that ends waits to move is not wanted any more.
    pub(super) fn forget_transfers_of_queue(&mut self, parts: &mut Parts, key: QueueKey) {
        parts.memory_waiters.remove_transfers::<Self>(|command| command.queue == key);
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(super) fn try_command_inline(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        conn: Tag,
        key: CommandKey,
        sqe: &Sqe,
        data_out: u32,
    ) -> bool {
        let Some(io) = self.server.fast_path(cx.now, key, sqe, data_out) else { return false };
        let Some(queue) = parts.conns.queue(conn) else { return false };
        let (who, tag) = (self.server.nexus(key.queue), Tag::from_bits(key.tag));
        let (proto, parked) = queue.split();
        if !carry_out_inline(cx, &mut parts.volumes, who, &io, (proto, tag), parked) {
            return false;
        }
        self.server.count_fast_path(key.queue, &io);
        let label = queue.times.answer_at_once(cx.now, (io.volume, io.write.is_some()), &mut parts.volumes);
        queue.proto.label_answer(label);
        queue.proto.respond(cx, tag, Completion::SUCCESS);
        true
    }
}
