//! What the device server wants is done here, step by step.

use std::collections::VecDeque;

use buf::{Cx, Payload, SgMut};
use endpoint::ShardId;
use iscsi::session::{Response, ScsiResult, SenseBytes};
use iscsi::wire::{ScsiStatus, TmfResponseCode};
use scsi::Status;
use scsi_server::{Arrived, Managed, Reply, Step, TaskKey};
use stream::{Tag, Target};
use volume::{Done, Failure, Fault, Op};

use super::Shard;
use super::conns::{ConnKind, Session};
use super::memory::ServerStep;
use super::volumes::NVME;
use crate::message::Message;

/// What of a session waits until its peer has done its part of what was started before.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Reads: until it has read what was sent.
    queue: VecDeque<Step>,
    /// Writes: until it has sent what it was asked for.
    asking: VecDeque<Step>,
}

impl Shard {
    /// Does what the server wants.
    pub(super) fn run_steps(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut worked = false;
        while let Some(step) = self.server.poll_step() {
            worked = true;
            self.run_step(cx, step);
        }
        worked
    }

    pub(super) fn run_step(&mut self, cx: &mut Cx<'_>, step: Step) {
        match step {
            Step::Receive { task, len, .. } => self.start_receive(cx, task, len, step),
            Step::Io { .. } if self.deferred.must_defer() => self.deferred.push(ServerStep::Scsi(step)),
            Step::Io { task, ref io, .. } => match io.op {
                Op::Read(_) => self.start_read(cx, task, step),
                _ => self.run_with_memory(cx, ServerStep::Scsi(step)),
            },
            Step::Send { task, at, data } => {
                self.with_session(task, |session, tag| {
                    session.io.read_bytes += data.len() as u64;
                    session.proto.send_data(cx, tag, at, data);
                });
            }
            Step::Respond { task, reply } => {
                // One that ended by another's doing may have waited for memory for its payload.
                if reply.status != Status::GOOD {
                    self.forget_transfer(task);
                }
                let result = Response::Scsi(result(&reply));
                self.with_session(task, |session, tag| session.proto.respond(cx, tag, result));
            }
            Step::Retire { task } => {
                self.forget_transfer(task);
                self.with_session(task, |session, tag| session.proto.retire(cx, tag));
            }
            Step::Managed { task, outcome } => {
                let response = Response::Task(tmf_response(outcome));
                let mut reset = None;
                self.with_session(task, |session, tag| {
                    session.proto.respond(cx, tag, response);
                    if session.cold_reset.take_if(|asked| *asked == tag).is_some() {
                        reset = session.target.clone();
                    }
                });
                if let Some(target) = reset.filter(|_| outcome == Managed::Complete) {
                    for shard in 0..self.shards {
                        self.post(ShardId(shard), Message::ColdReset(target.clone()));
                    }
                }
            }
            Step::Cancel { volume, io } => match self.remove_waiting(io) {
                Some(Step::Io { io, .. }) => {
                    let result = Err(Failure::Failed(Fault::Aborted));
                    self.server.done(cx, Done { id: io.id, result, payload: Payload::None });
                }
                Some(_) | None => self.volumes.cancel(volume, io),
            },
            Step::VolumeRequest { volume, id, ask } => {
                let home = self.volumes.home_of(volume);
                self.post(home, Message::VolumeRequest(volume, self.id, id, ask));
            }
        }
    }

    fn remove_waiting(&mut self, id: volume::IoId) -> Option<Step> {
        if let Some(step) = self.memory_waiters.remove_io(id) {
            return Some(step);
        }
        if let Some(ServerStep::Scsi(step)) = self.deferred.remove(id) {
            return Some(step);
        }
        for (_, conn) in self.conns.iter_mut() {
            let super::conns::ConnKind::Session(session) = &mut conn.kind else { continue };
            let queue = &mut session.parked.queue;
            if let Some(at) = queue.iter().position(|step| matches!(step, Step::Io { io, .. } if io.id == id))
            {
                return queue.remove(at);
            }
        }
        None
    }

    /// A read may start when its session has leave to send so much more.
    fn start_read(&mut self, cx: &mut Cx<'_>, task: TaskKey, mut step: Step) {
        let len = self.weigh(&mut step);
        let mut may = Some(step);
        self.with_session(task, |session, tag| {
            if !session.parked.queue.is_empty() || !session.proto.reserve_read(tag, len) {
                session.parked.queue.extend(may.take());
            }
        });
        if let Some(step) = may {
            self.run_with_memory(cx, ServerStep::Scsi(step));
        }
    }

    /// A write's data may be asked for when its session has leave to ask for so much more.
    fn start_receive(&mut self, cx: &mut Cx<'_>, task: TaskKey, len: u32, step: Step) {
        let mut may = Some(step);
        self.with_session(task, |session, tag| {
            if !session.parked.asking.is_empty() || !session.proto.reserve_write(tag, len) {
                session.parked.asking.extend(may.take());
            }
        });
        if let Some(step) = may {
            self.run_with_memory(cx, ServerStep::Scsi(step));
        }
    }

    /// A task that has ended wants no memory for its payload any more.
    fn forget_transfer(&mut self, ended: TaskKey) {
        self.memory_waiters.remove_transfer(ended);
        self.with_session(ended, |session, _| {
            let ends = |step: &Step| matches!(step, Step::Receive { task, .. } if *task == ended);
            session.parked.asking.retain(|step| !ends(step));
        });
    }

    /// How much a read sends. If the volume may not lend its own memory any more (something was written atomically, or
    /// hosts may be fenced), it wants as much of the pool's, like all others.
    fn weigh(&self, step: &mut Step) -> u32 {
        let Step::Io { volume, io, want, .. } = step else { return 0 };
        let len = match io.op {
            Op::Read(span) if *want == 0 => self.volumes.bytes(*volume, span),
            _ => *want,
        };
        if !self.volumes.lends(*volume) {
            *want = len;
        }
        len
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(super) fn try_inline(
        &mut self,
        cx: &mut Cx<'_>,
        conn: Tag,
        key: TaskKey,
        arrived: &Arrived<'_>,
    ) -> bool {
        let Some(now) = self.server.fast_path(key.nexus, arrived) else { return false };
        let Some(ConnKind::Session(session)) = self.conns.get_mut(conn).map(|conn| &mut conn.kind) else {
            return false;
        };
        let (who, tag) = (&self.server.nexus(key.nexus).nexus, Tag::from_bits(key.tag));
        match now.write {
            None => {
                if !session.parked.queue.is_empty() {
                    return false;
                }
                let may = || session.proto.reserve_read(tag, now.bytes);
                let Some(data) = self.volumes.read_inline(who, now.volume, now.span, may) else {
                    return false;
                };
                session.io.read_bytes += u64::from(now.bytes);
                session.proto.send_data(cx, tag, 0, data);
            }
            Some(durability) => {
                let Some(data) = session.proto.data_at_hand(tag) else { return false };
                if !self.volumes.write_inline(who, now.volume, (now.span, durability), data) {
                    return false;
                }
                session.io.written_bytes += u64::from(now.bytes);
            }
        }
        let result = ScsiResult::good(u64::from(now.bytes));
        session.proto.respond(cx, tag, Response::Scsi(result));
        true
    }

    /// Reads that were parked, and writes, may start now, perhaps.
    pub(super) fn unpark(&mut self, cx: &mut Cx<'_>, conn: Tag) {
        while let Some(mut step) = self.session(conn).and_then(|session| session.parked.queue.pop_front()) {
            let len = self.weigh(&mut step);
            let (Step::Io { task, .. }, Some(session)) = (&step, self.session(conn)) else { return };
            if !session.proto.reserve_read(Tag::from_bits(task.tag), len) {
                session.parked.queue.push_front(step);
                break;
            }
            self.run_with_memory(cx, ServerStep::Scsi(step));
        }
        while let Some(step) = self.session(conn).and_then(|session| session.parked.asking.pop_front()) {
            let Step::Receive { task, len, .. } = step else { return };
            let Some(session) = self.session(conn) else { return };
            if !session.proto.reserve_write(Tag::from_bits(task.tag), len) {
                session.parked.asking.push_front(step);
                return;
            }
            self.run_with_memory(cx, ServerStep::Scsi(step));
        }
    }

    /// Memory for a task's payload is there.
    pub(super) fn receive(&mut self, cx: &mut Cx<'_>, task: TaskKey, at: u32, memory: SgMut) {
        self.with_session(task, |session, tag| {
            session.io.written_bytes += memory.len() as u64;
            session.proto.recv_data(cx, tag, at, memory);
        });
    }

    fn with_session(&mut self, task: TaskKey, act: impl FnOnce(&mut Session, Tag)) {
        let Some(Some(conn)) = self.nexuses.get(task.nexus.0 as usize).copied() else { return };
        let Some(session) = self.session(conn) else { return };
        act(session, Tag::from_bits(task.tag));
        self.touch(conn);
    }

    /// A volume's home has answered.
    pub(super) fn answered(&mut self, cx: &mut Cx<'_>, volume: volume::VolumeId, answer: volume::Answer) {
        debug_assert_eq!(ShardId(answer.to.0), self.id);
        if answer.id.is_gates() {
            return self.volumes.gate_answered(cx, volume, &answer);
        }
        if answer.id.0 & NVME != 0 {
            self.nvme.server.answered(cx, answer.id, answer.result);
        } else if !self.nexus_end_answered(cx, answer.id) && !self.control_answered(volume, &answer) {
            self.server.answered(cx, answer.id, answer.result);
        }
    }
}

fn result(reply: &Reply) -> ScsiResult {
    let mut sense = SenseBytes::new();
    if let Some(said) = reply.sense {
        let mut bytes = [0; scsi::Sense::LEN_MAX];
        let len = match reply.deferred {
            false => said.encode(reply.descriptor, &mut bytes),
            true => said.encode_deferred(reply.descriptor, &mut bytes),
        };
        sense.extend(bytes.into_iter().take(len));
    }
    let Reply { status, transferred, fence, .. } = *reply;
    ScsiResult { status: ScsiStatus(status.0), qualifier: 0, sense, transferred, fence }
}

fn tmf_response(outcome: Managed) -> TmfResponseCode {
    match outcome {
        Managed::Complete => TmfResponseCode::COMPLETE,
        Managed::Succeeded => TmfResponseCode::SUCCEEDED,
        Managed::NoTask => TmfResponseCode::NO_TASK,
        Managed::NoUnit => TmfResponseCode::NO_LUN,
        Managed::NotSupported => TmfResponseCode::NOT_SUPPORTED,
        Managed::Rejected => TmfResponseCode::REJECTED,
    }
}
