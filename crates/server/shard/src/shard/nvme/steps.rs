//! What the NVMe server wants is done here, step by step.

use buf::{Class, Cx};
use endpoint::ShardId;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, QueueKey, Step};
use stream::{Close, Connection, Tag, Target};

use super::{LAST_WORDS_MAX, Queue, QueueState};
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::conns::{Conn, ConnKind};
use crate::shard::payload::carry_out_inline;
use crate::shard::payload_step::{CommandId, IoStep, PayloadStep, Receive, Retry};
use crate::shard::{DIRECTORY, Shard};

impl Shard {
    /// Does what the server wants.
    pub(in crate::shard) fn run_nvme_steps(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut worked = false;
        while let Some(step) = self.nvme.server.poll_step() {
            worked = true;
            self.run_nvme_step(cx, step);
        }
        worked
    }

    pub(in crate::shard) fn run_nvme_step(&mut self, cx: &mut Cx<'_>, step: Step) {
        match step {
            Step::Receive { command, at, len } => {
                self.start_receive(cx, Receive { command: CommandId::Nvme(command), at, len });
            }
            Step::AwaitMemory { command, class, len } => {
                let step = PayloadStep::Retry(Retry { command, class, len });
                match class {
                    Class::Solicited => self.start_answer(cx, step),
                    _ => self.run_with_memory(cx, step),
                }
            }
            Step::Io { command, volume, io, want, to_host: to_peer } => {
                self.start_io(cx, IoStep { command: CommandId::Nvme(command), volume, io, want, to_peer });
            }
            Step::Send { command, at, data } => {
                self.with_queue(command, |queue, tag| queue.proto.send_data(cx, tag, at, data));
            }
            Step::Respond { command, completion } => {
                // A command that ends before its data has come wants no memory for it any more.
                if !completion.status.is_success() {
                    self.forget_transfers(CommandId::Nvme(command));
                }
                self.with_queue(command, |queue, tag| queue.proto.respond(cx, tag, completion));
            }
            Step::Retire { command } => {
                self.forget_transfers(CommandId::Nvme(command));
                self.with_queue(command, |queue, tag| queue.proto.retire(cx, tag));
            }
            Step::Cancel { volume, io } => self.cancel_io(cx, volume, io),
            Step::VolumeRequest { volume, id, request } => self.ask_home(volume, id, request),
            Step::ListControllers { id, of } => {
                let from = self.id;
                self.outbox.broadcast(|| {
                    Message::Nvme(NvmeMessage::ListControllers(from, id, Box::new(of.clone())))
                });
            }
            Step::QueueMessage { to, message } => {
                self.outbox.post(ShardId(to.0), Message::Nvme(NvmeMessage::Queue(message)));
            }
            Step::EndQueue { queue } => self.end_queue(cx, queue),
            Step::HostAuthenticated { queue } => self.host_authenticated(cx, queue),
            Step::AuthenticationFailed { queue } => self.host_failed_authentication(queue),
            Step::Compute { queue, id, work } => self.compute(cx, queue, id, work),
            Step::CancelCompute { id } => {
                self.outbox.post(CONTROL, Message::Nvme(NvmeMessage::Forget(self.id, id)))
            }
            Step::ControllerGone { cntlid, why } => {
                self.nvme.controller_gone(&mut self.log, cntlid, why);
                self.outbox.post(DIRECTORY, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
        }
    }

    /// What was queued for a queue is sent, then its link is closed.
    pub(super) fn end_queue(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        let Some(Some(conn)) = self.nvme.conns.get(key.0 as usize).copied() else { return };
        let Some(queue) = self.conns.queue(conn) else { return };
        if queue.open().is_none_or(|open| open.key != key) {
            return;
        }
        queue.state = QueueState::Ended;
        queue.proto.close(cx, Close::AfterLogout(cx.now + LAST_WORDS_MAX));
        self.conns.touch(conn);
        self.forget_transfers_of_queue(key);
        self.nvme.server.close_queue(cx, key);
    }

    /// What a queue that ends waits to move is not wanted any more.
    pub(super) fn forget_transfers_of_queue(&mut self, key: QueueKey) {
        let its = |command| matches!(command, CommandId::Nvme(command) if command.queue == key);
        self.memory_waiters.remove_transfers(its);
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(super) fn try_command_inline(
        &mut self,
        cx: &mut Cx<'_>,
        conn: Tag,
        key: CommandKey,
        sqe: &Sqe,
        data_out: u32,
    ) -> bool {
        let Some(io) = self.nvme.server.fast_path(cx.now, key, sqe, data_out) else { return false };
        let Some(Conn { kind: ConnKind::Queue(queue), parked, .. }) = self.conns.get_mut(conn) else {
            return false;
        };
        let (who, tag) = (self.nvme.server.nexus(key.queue), Tag::from_bits(key.tag));
        if !carry_out_inline(cx, &mut self.volumes, who, &io, (&mut queue.proto, tag), parked) {
            return false;
        }
        self.nvme.server.count_fast_path(key.queue, &io);
        queue.proto.respond(cx, tag, Completion::SUCCESS);
        true
    }

    /// Acts on the queue of a command, which then has something to say.
    fn with_queue(&mut self, command: CommandKey, act: impl FnOnce(&mut Queue, Tag)) {
        self.with_conn(CommandId::Nvme(command), |conn, tag| {
            if let ConnKind::Queue(queue) = &mut conn.kind {
                act(queue, tag);
            }
        });
    }
}
