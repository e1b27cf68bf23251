//! What the NVMe server wants is done here, step by step.

use buf::{Class, Cx};
use endpoint::ShardId;
use nvme::{Completion, Sqe};
use nvme_server::{CommandKey, QueueKey, Step};
use stream::{Close, Connection, Tag, Target};
use volume::{Done, Failure, Fault, IoId, Op, Payload};

use super::{LAST_WORDS_MAX, Queue, QueueState};
use crate::message::{CONTROL, Message, NvmeMessage};
use crate::shard::conns::ConnKind;
use crate::shard::memory::ServerStep;
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
            Step::Room { command, class: Class::Solicited, len } => self.start_answer(cx, command, len, step),
            Step::Receive { command, len, .. } => self.start_queue_receive(cx, command, len, step),
            Step::Room { .. } => self.run_with_memory(cx, ServerStep::Nvme(step)),
            Step::Io { .. } if self.deferred.must_defer() => self.deferred.push(ServerStep::Nvme(step)),
            Step::Io { to_host: true, .. } => self.start_queue_read(cx, step),
            Step::Io { .. } => self.run_with_memory(cx, ServerStep::Nvme(step)),
            Step::Send { command, at, data } => {
                self.with_queue(command, |queue, tag| queue.proto.send_data(cx, tag, at, data));
            }
            Step::Respond { command, completion } => {
                // A command that ends before its data has come wants no memory for it any more.
                if !completion.status.is_success() {
                    self.forget_room(command);
                }
                self.with_queue(command, |queue, tag| queue.proto.respond(cx, tag, completion));
            }
            Step::Retire { command } => {
                self.forget_room(command);
                self.with_queue(command, |queue, tag| queue.proto.retire(cx, tag));
            }
            Step::Cancel { volume, io } => match self.remove_waiting_command(io) {
                Some(Step::Io { io, .. }) => {
                    let result = Err(Failure::Failed(Fault::Aborted));
                    self.nvme.server.done(cx, Done { id: io.id, result, payload: Payload::None });
                }
                Some(_) | None => self.volumes.cancel(volume, io),
            },
            Step::VolumeRequest { volume, id, ask } => {
                let home = self.volumes.home_of(volume);
                self.post(home, Message::VolumeRequest(volume, self.id, id, ask));
            }
            Step::ListControllers { id, of } => {
                for shard in 0..self.shards {
                    let message = NvmeMessage::ListControllers(self.id, id, Box::new(of.clone()));
                    self.post(ShardId(shard), Message::Nvme(message));
                }
            }
            Step::QueueMessage { to, message } => {
                self.post(ShardId(to.0), Message::Nvme(NvmeMessage::Queue(message)));
            }
            Step::EndQueue { queue } => self.end_queue(cx, queue),
            Step::HostAuthenticated { queue } => self.host_authenticated(cx, queue),
            Step::AuthenticationFailed { queue } => self.host_failed_authentication(queue),
            Step::Compute { queue, id, work } => self.compute(cx, queue, id, work),
            Step::CancelCompute { id } => self.post(CONTROL, Message::Nvme(NvmeMessage::Forget(self.id, id))),
            Step::ControllerGone { cntlid, why } => {
                self.controller_gone(cntlid, why);
                self.post(DIRECTORY, Message::Nvme(NvmeMessage::ControllerGone(cntlid)));
            }
        }
    }

    /// A command that has ended wants no memory any more.
    fn forget_room(&mut self, ended: CommandKey) {
        self.memory_waiters.remove_command(ended);
        self.with_queue(ended, |queue, _| {
            queue.parked.retain(|step| !matches!(step, Step::Room { command, .. } if *command == ended));
            queue.asking.retain(|step| !matches!(step, Step::Receive { command, .. } if *command == ended));
        });
    }

    /// What was queued for a queue is sent, then its link is closed.
    pub(super) fn end_queue(&mut self, cx: &mut Cx<'_>, key: QueueKey) {
        let Some(Some(conn)) = self.nvme.conns.get(key.0 as usize).copied() else { return };
        let Some(queue) = self.queue(conn) else { return };
        if queue.open().is_none_or(|open| open.key != key) {
            return;
        }
        queue.state = QueueState::Ended;
        queue.proto.close(cx, Close::AfterLogout(cx.now + LAST_WORDS_MAX));
        self.touch(conn);
        self.memory_waiters.remove_queue(key);
        self.nvme.server.close_queue(cx, key);
    }

    fn remove_waiting_command(&mut self, id: IoId) -> Option<Step> {
        if let Some(step) = self.memory_waiters.remove_command_io(id) {
            return Some(step);
        }
        if let Some(ServerStep::Nvme(step)) = self.deferred.remove(id) {
            return Some(step);
        }
        for (_, conn) in self.conns.iter_mut() {
            let ConnKind::Queue(queue) = &mut conn.kind else { continue };
            let waits = |step: &Step| matches!(step, Step::Io { io, .. } if io.id == id);
            if let Some(at) = queue.parked.iter().position(waits) {
                return queue.parked.remove(at);
            }
        }
        None
    }

    /// A read may start when its queue has leave to send so much more.
    fn start_queue_read(&mut self, cx: &mut Cx<'_>, mut step: Step) {
        let len = self.weigh_command(&mut step);
        let Step::Io { command, .. } = step else { return };
        self.start_answer(cx, command, len, step);
    }

    /// So many bytes for the host may be fetched or made when its queue has leave to send so much more.
    fn start_answer(&mut self, cx: &mut Cx<'_>, command: CommandKey, len: u32, step: Step) {
        let mut may = Some(step);
        self.with_queue(command, |queue, tag| {
            // Who asks again must not wait behind those that wait for what it holds itself.
            if queue.proto.has_leave(tag, len) {
                return;
            }
            if !queue.parked.is_empty() || !queue.proto.reserve_read(tag, len) {
                queue.parked.extend(may.take());
            }
        });
        if let Some(step) = may {
            self.run_with_memory(cx, ServerStep::Nvme(step));
        }
    }

    /// A write's data may be asked for when its queue has leave to ask for so much more. What came with its
    /// command is here.
    fn start_queue_receive(&mut self, cx: &mut Cx<'_>, command: CommandKey, len: u32, step: Step) {
        let mut may = Some(step);
        if self.memory_class(command) == Class::Solicited {
            self.with_queue(command, |queue, tag| {
                if !queue.asking.is_empty() || !queue.proto.reserve_write(tag, len) {
                    queue.asking.extend(may.take());
                }
            });
        }
        if let Some(step) = may {
            self.run_with_memory(cx, ServerStep::Nvme(step));
        }
    }

    /// How much a read or a long answer sends. If a volume may not lend its own memory any more (something was written
    /// atomically, or hosts may be fenced), a read wants as much of the pool's, like all others.
    fn weigh_command(&self, step: &mut Step) -> u32 {
        let (volume, io, want) = match step {
            Step::Io { volume, io, want, .. } => (*volume, io, want),
            Step::Room { len, .. } => return *len,
            _ => return 0,
        };
        let len = match io.op {
            Op::Read(span) if *want == 0 => self.volumes.bytes(volume, span),
            _ => *want,
        };
        if !self.volumes.lends(volume) {
            *want = len;
        }
        len
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
        let Some(now) = self.nvme.server.fast_path(cx.now, key, sqe, data_out) else { return false };
        let Some(ConnKind::Queue(queue)) = self.conns.get_mut(conn).map(|conn| &mut conn.kind) else {
            return false;
        };
        let (who, tag) = (self.nvme.server.nexus(key.queue), Tag::from_bits(key.tag));
        match now.write {
            None => {
                if !queue.parked.is_empty() {
                    return false;
                }
                let may = || queue.proto.reserve_read(tag, now.bytes);
                let Some(data) = self.volumes.read_inline(who, now.volume, now.span, may) else {
                    return false;
                };
                queue.proto.send_data(cx, tag, 0, data);
            }
            Some(durability) => {
                let Some(data) = queue.proto.data_at_hand(tag) else { return false };
                if !self.volumes.write_inline(who, now.volume, (now.span, durability), data) {
                    return false;
                }
            }
        }
        self.nvme.server.count_fast_path(key.queue, &now);
        queue.proto.respond(cx, tag, Completion::SUCCESS);
        true
    }

    /// Reads, long answers and writes that were parked may start now, perhaps.
    pub(super) fn unpark_queue(&mut self, cx: &mut Cx<'_>, conn: Tag) {
        while let Some(mut step) = self.queue(conn).and_then(|queue| queue.parked.pop_front()) {
            let len = self.weigh_command(&mut step);
            let (Step::Io { command, .. } | Step::Room { command, .. }, Some(queue)) =
                (&step, self.queue(conn))
            else {
                return;
            };
            if !queue.proto.reserve_read(Tag::from_bits(command.tag), len) {
                queue.parked.push_front(step);
                break;
            }
            self.run_with_memory(cx, ServerStep::Nvme(step));
        }
        while let Some(step) = self.queue(conn).and_then(|queue| queue.asking.pop_front()) {
            let Step::Receive { command, len, .. } = step else { return };
            let Some(queue) = self.queue(conn) else { return };
            if !queue.proto.reserve_write(Tag::from_bits(command.tag), len) {
                queue.asking.push_front(step);
                return;
            }
            self.run_with_memory(cx, ServerStep::Nvme(step));
        }
    }

    /// Which memory the data of a write is to be taken from.
    pub(in crate::shard) fn memory_class(&self, command: CommandKey) -> Class {
        match self.conn_of(command.queue).and_then(|conn| self.conns.get(conn)).map(|conn| &conn.kind) {
            Some(ConnKind::Queue(queue)) => queue.proto.memory_class(Tag::from_bits(command.tag)),
            Some(ConnKind::Login(_) | ConnKind::Session(_)) | None => Class::Solicited,
        }
    }

    /// Acts on the queue of a command, which then has something to say.
    pub(in crate::shard) fn with_queue(&mut self, command: CommandKey, act: impl FnOnce(&mut Queue, Tag)) {
        let Some(conn) = self.conn_of(command.queue) else { return };
        let Some(queue) = self.queue(conn) else { return };
        act(queue, Tag::from_bits(command.tag));
        self.touch(conn);
    }
}
