//! Executes the steps of the SCSI server.

use buf::Cx;
use iscsi::session::{Response, ScsiResult, SenseBytes};
use iscsi::wire::{ScsiStatus, TmfResponseCode};
use scsi::Status;
use scsi_server::{Arrived, ManagementOutcome, Reply, ServerStep, TaskKey};
use stream::{Tag, Target};
use volume::Op;

use super::IscsiFront;
use crate::message::Message;
use crate::shard::Parts;
use crate::shard::front::{Front, carry_out_inline};
use crate::shard::payload_step::{CommandConn, IoStep, PayloadStep, Receive};

impl IscsiFront {
    /// Does what the server wants.
    pub(in crate::shard) fn run_steps(&mut self, cx: &mut Cx<'_>, parts: &mut Parts) -> bool {
        let mut worked = false;
        while let Some(step) = self.server.poll_step() {
            worked = true;
            self.run_step(cx, parts, step);
        }
        worked
    }

    pub(in crate::shard) fn run_step(&mut self, cx: &mut Cx<'_>, parts: &mut Parts, step: ServerStep) {
        match step {
            ServerStep::Receive { task, at, len } => {
                let receive = Receive { command: task, at, len };
                self.start_payload(cx, parts, PayloadStep::Receive(receive));
            }
            ServerStep::Io { task, volume, io, want } => {
                let to_peer = matches!(io.op, Op::Read(_));
                let step = IoStep { command: task, volume, io, want, to_peer };
                self.start_payload(cx, parts, PayloadStep::Io(step));
            }
            ServerStep::Send { task, at, data } => {
                self.with_conn(&mut parts.conns, task, |session, tag| {
                    session.io.read_bytes += data.len() as u64;
                    session.proto.send_data(cx, tag, at, data);
                });
            }
            ServerStep::Respond { task, reply } => {
                // One that ended by another's doing may have waited for memory for its payload.
                if reply.status != Status::GOOD {
                    self.forget_transfers(parts, task);
                }
                let result = Response::Scsi(result(&reply));
                self.with_conn(&mut parts.conns, task, |session, tag| session.proto.respond(cx, tag, result));
            }
            ServerStep::Retire { task } => {
                self.forget_transfers(parts, task);
                self.with_conn(&mut parts.conns, task, |session, tag| session.proto.retire(cx, tag));
            }
            ServerStep::Managed { task, outcome } => {
                let response = Response::Task(tmf_response(outcome));
                let mut reset = None;
                self.with_conn(&mut parts.conns, task, |session, tag| {
                    session.proto.respond(cx, tag, response);
                    if session.cold_reset.take_if(|asked| *asked == tag).is_some() {
                        reset = session.target.clone();
                    }
                });
                if let Some(target) = reset.filter(|_| outcome == ManagementOutcome::Complete) {
                    parts.outbox.broadcast(|| Message::ColdReset(target.clone()));
                }
            }
            ServerStep::Cancel { task, volume, io } => self.cancel_io(cx, parts, task, volume, io),
            ServerStep::VolumeRequest { volume, id, request } => parts.post_request(volume, id, request),
        }
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(in crate::shard) fn try_inline(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut Parts,
        conn: Tag,
        key: TaskKey,
        arrived: &Arrived<'_>,
    ) -> bool {
        let Some(io) = self.server.fast_path(key.nexus, arrived) else { return false };
        let Some(session) = parts.conns.session(conn) else { return false };
        let (who, tag) = (&self.server.nexus(key.nexus).nexus, Tag::from_bits(key.tag));
        let (proto, parked) = session.split();
        if !carry_out_inline(cx, &mut parts.volumes, who, &io, (proto, tag), parked) {
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
