//! What the NVMe server wants for controllers and queues, and commands carried out inline.

use buf::Cx;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, ControllerStep, QueueKey};
use stream::{Connection, ConnectionClose, Tag, TargetConnection};
use volume::{Refusal, RequestId};

use super::formats::FormatProgress;
use super::{FINAL_SEND_TIMEOUT, NvmeFront, QueueState, group_resets};
use crate::message::{CONTROL_PLANE, Message, NvmeMessage};
use crate::shard::payload_step::CommandConn;
use crate::shard::protocol_front::execute_inline;
use crate::shard::{DIRECTORY_SHARD, SharedParts};

impl NvmeFront {
    /// Does what the server wants for controllers and queues.
    pub(super) fn run_controller_step(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        step: ControllerStep,
    ) {
        match step {
            ControllerStep::ListControllers { id, of } => {
                let from = parts.id;
                parts.outbox.broadcast(|| {
                    Message::Nvme(NvmeMessage::ListControllers(from, id, Box::new(of.clone())))
                });
            }
            ControllerStep::ResetController { id, request } => {
                let from = parts.id;
                parts.outbox.broadcast(|| {
                    Message::Nvme(NvmeMessage::ResetController(from, id, Box::new(request.clone())))
                });
                group_resets::ask_group(parts, id, &request);
            }
            ControllerStep::FormatVolume { id, volume, who } => self.formats.start(parts, id, volume, who),
            ControllerStep::AnswerReset { to, id, answer } => {
                parts.outbox.post(to, Message::Nvme(NvmeMessage::ResetAnswered(id, answer)));
            }
            ControllerStep::QueueMessage { to, message } => {
                parts.outbox.post(to, Message::Nvme(NvmeMessage::Queue(message)));
            }
            ControllerStep::EndQueue { queue } => self.end_queue(cx, parts, queue),
            ControllerStep::HostAuthenticated { queue } => self.handle_host_authenticated(cx, parts, queue),
            ControllerStep::PskGenerated { queue, psk } => self.psk_generated(parts, queue, &psk),
            ControllerStep::AuthenticationFailed { queue } => self.handle_host_auth_failed(parts, queue),
            ControllerStep::Compute { queue, id, work } => self.start_computation(cx, parts, queue, id, work),
            ControllerStep::CancelCompute { id } => {
                parts.outbox.post(CONTROL_PLANE, Message::Nvme(NvmeMessage::Forget(parts.id, id)))
            }
            ControllerStep::ControllerGone { cntlid, why } => {
                self.handle_controller_gone(parts, cntlid, why);
                parts.outbox.post(DIRECTORY_SHARD, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
        }
    }

    /// The home of a volume has answered; whether that was for a format.
    pub(in crate::shard) fn handle_format_answer(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        id: RequestId,
        result: Result<(), Refusal>,
    ) -> bool {
        match self.formats.handle_answer(cx, parts, id, result) {
            Some(FormatProgress::Begun(asked)) => self.server.handle_format_begun(asked),
            Some(FormatProgress::Ended(asked, end)) => self.server.handle_format_end(cx, asked, end),
            Some(FormatProgress::Waits) => {}
            None => return false,
        }
        true
    }

    /// What was queued for a queue is sent, then its link is closed.
    pub(super) fn end_queue(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, key: QueueKey) {
        let Some(Some(conn)) = self.conns.get(key.0 as usize).copied() else { return };
        let Some(queue) = parts.conns.queue_mut(conn) else { return };
        if queue.open_state().is_none_or(|open| open.key != key) {
            return;
        }
        queue.state = QueueState::Ended;
        queue.proto.close(cx, ConnectionClose::AfterLogout(cx.now + FINAL_SEND_TIMEOUT));
        parts.conns.mark_pending(conn);
        self.forget_transfers_of_queue(parts, key);
        self.server.close_queue(cx, key);
    }

    /// What a queue that ends waits to move is not wanted any more.
    pub(super) fn forget_transfers_of_queue(&mut self, parts: &mut SharedParts, key: QueueKey) {
        parts.memory_waiters.remove_transfers::<Self>(|command| command.queue == key);
        parts.throttled.remove_transfers::<Self>(|command| command.queue == key);
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(super) fn try_command_inline(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        key: CommandKey,
        sqe: &Sqe,
        data_out: u32,
    ) -> bool {
        let Some(io) = self.server.inline_io_for(cx.now, key, sqe, data_out) else { return false };
        if parts.throttled.is_in_force() && parts.is_limited(conn, io.volume) {
            return false;
        }
        let Some(queue) = parts.conns.queue_mut(conn) else { return false };
        let (who, tag) = (self.server.nexus(key.queue), Tag::from_bits(key.tag));
        let receive_ns = queue.times.receive_ns(cx.now);
        let (proto, parked) = queue.protocol_and_parked();
        if !execute_inline(cx, &mut parts.volumes, who, &io, receive_ns, (proto, tag), parked) {
            return false;
        }
        self.server.count_inline_io(key.queue, &io);
        let label = queue.times.count_inline_answer(cx.now, (io.volume, io.write.is_some()));
        queue.proto.label_next_response(label);
        queue.proto.respond(cx, tag, Completion::SUCCESS);
        true
    }
}
