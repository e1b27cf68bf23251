//! What the device server wants is done here, step by step.

use buf::Cx;
use endpoint::ShardId;
use iscsi::session::{Response, ScsiResult, SenseBytes};
use iscsi::wire::{ScsiStatus, TmfResponseCode};
use scsi::Status;
use scsi_server::{Arrived, ManagementOutcome, Reply, ServerStep, TaskKey};
use stream::{Tag, Target};
use volume::{Answer, Op, RequestId, VolumeId, VolumeRequest};

use crate::message::Message;
use crate::shard::Shard;
use crate::shard::conns::{Conn, ConnKind, Session};
use crate::shard::payload::carry_out_inline;
use crate::shard::payload_step::{CommandId, IoStep, Receive};
use crate::shard::volumes::NVME;

impl Shard {
    /// Does what the server wants.
    pub(in crate::shard) fn run_steps(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut worked = false;
        while let Some(step) = self.iscsi.server.poll_step() {
            worked = true;
            self.run_step(cx, step);
        }
        worked
    }

    pub(in crate::shard) fn run_step(&mut self, cx: &mut Cx<'_>, step: ServerStep) {
        match step {
            ServerStep::Receive { task, at, len } => {
                self.start_receive(cx, Receive { command: CommandId::Scsi(task), at, len });
            }
            ServerStep::Io { task, volume, io, want } => {
                let to_peer = matches!(io.op, Op::Read(_));
                self.start_io(cx, IoStep { command: CommandId::Scsi(task), volume, io, want, to_peer });
            }
            ServerStep::Send { task, at, data } => {
                self.with_session(task, |session, tag| {
                    session.io.read_bytes += data.len() as u64;
                    session.proto.send_data(cx, tag, at, data);
                });
            }
            ServerStep::Respond { task, reply } => {
                // One that ended by another's doing may have waited for memory for its payload.
                if reply.status != Status::GOOD {
                    self.forget_transfers(CommandId::Scsi(task));
                }
                let result = Response::Scsi(result(&reply));
                self.with_session(task, |session, tag| session.proto.respond(cx, tag, result));
            }
            ServerStep::Retire { task } => {
                self.forget_transfers(CommandId::Scsi(task));
                self.with_session(task, |session, tag| session.proto.retire(cx, tag));
            }
            ServerStep::Managed { task, outcome } => {
                let response = Response::Task(tmf_response(outcome));
                let mut reset = None;
                self.with_session(task, |session, tag| {
                    session.proto.respond(cx, tag, response);
                    if session.cold_reset.take_if(|asked| *asked == tag).is_some() {
                        reset = session.target.clone();
                    }
                });
                if let Some(target) = reset.filter(|_| outcome == ManagementOutcome::Complete) {
                    self.outbox.broadcast(|| Message::ColdReset(target.clone()));
                }
            }
            ServerStep::Cancel { volume, io } => self.cancel_io(cx, volume, io),
            ServerStep::VolumeRequest { volume, id, request } => self.ask_home(volume, id, request),
        }
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(in crate::shard) fn try_inline(
        &mut self,
        cx: &mut Cx<'_>,
        conn: Tag,
        key: TaskKey,
        arrived: &Arrived<'_>,
    ) -> bool {
        let Some(io) = self.iscsi.server.fast_path(key.nexus, arrived) else { return false };
        let Some(Conn { kind: ConnKind::Session(session), parked, .. }) = self.conns.get_mut(conn) else {
            return false;
        };
        let (who, tag) = (&self.iscsi.server.nexus(key.nexus).nexus, Tag::from_bits(key.tag));
        if !carry_out_inline(cx, &mut self.volumes, who, &io, (&mut session.proto, tag), parked) {
            return false;
        }
        let moved = match io.write {
            None => &mut session.io.read_bytes,
            Some(_) => &mut session.io.written_bytes,
        };
        *moved += u64::from(io.bytes);
        let result = ScsiResult::good(u64::from(io.bytes));
        session.proto.respond(cx, tag, Response::Scsi(result));
        true
    }

    fn with_session(&mut self, task: TaskKey, act: impl FnOnce(&mut Session, Tag)) {
        self.with_conn(CommandId::Scsi(task), |conn, tag| {
            if let ConnKind::Session(session) = &mut conn.kind {
                act(session, tag);
            }
        });
    }

    /// Asks a volume's home for what a server wants of it.
    pub(in crate::shard) fn ask_home(&mut self, volume: VolumeId, id: RequestId, ask: VolumeRequest) {
        let home = self.volumes.home_of(volume);
        self.outbox.post(home, Message::VolumeRequest(volume, self.id, id, ask));
    }

    /// A volume's home has answered.
    pub(in crate::shard) fn answered(&mut self, cx: &mut Cx<'_>, volume: VolumeId, answer: Answer) {
        debug_assert_eq!(ShardId(answer.to.0), self.id);
        if answer.id.is_of_gate() {
            return self.volumes.gate_answered(cx, volume, &answer);
        }
        if answer.id.0 & NVME != 0 {
            self.nvme.server.answered(cx, answer.id, answer.result);
        } else if !self.nexus_end_answered(cx, answer.id)
            && !self.requests.answered(&mut self.outbox, &answer)
        {
            self.iscsi.server.answered(cx, answer.id, answer.result);
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

fn tmf_response(outcome: ManagementOutcome) -> TmfResponseCode {
    match outcome {
        ManagementOutcome::Complete => TmfResponseCode::COMPLETE,
        ManagementOutcome::Succeeded => TmfResponseCode::SUCCEEDED,
        ManagementOutcome::NoTask => TmfResponseCode::NO_TASK,
        ManagementOutcome::NoUnit => TmfResponseCode::NO_LUN,
        ManagementOutcome::NotSupported => TmfResponseCode::NOT_SUPPORTED,
        ManagementOutcome::Rejected => TmfResponseCode::REJECTED,
    }
}
