//! Commands carried out inline, and answers of the device server in iSCSI's form.

use buf::Cx;
use iscsi::session::{Response, ScsiResult, SenseBytes};
use iscsi::wire::{ScsiStatus, TmfResponseCode};
use scsi_server::{IncomingCommand, ManagementEnd, ManagementOutcome, Reply, TaskKey};
use stream::{Tag, TargetConnection};

use super::IscsiFront;
use crate::message::Message;
use crate::shard::SharedParts;
use crate::shard::payload_step::CommandConn;
use crate::shard::protocol_front::{ProtocolFront, execute_inline};

impl IscsiFront {
    /// A task management function has ended.
    pub(super) fn answer_management(&mut self, cx: &mut Cx<'_>, parts: &mut SharedParts, end: ManagementEnd) {
        let response = Response::Task(tmf_response(end.outcome));
        let mut reset = None;
        self.with_conn(&mut parts.conns, end.task, |session, tag| {
            session.proto.respond(cx, tag, response);
            if session.cold_reset.take_if(|asked| *asked == tag).is_some() {
                reset = session.target.clone();
            }
        });
        if let Some(target) = reset.filter(|_| end.outcome == ManagementOutcome::Complete) {
            parts.outbox.broadcast(|| Message::ColdReset(target.clone()));
        }
    }

    /// Carries a plain read or write out and answers it, if nothing has to be waited for.
    pub(in crate::shard) fn try_command_inline(
        &mut self,
        cx: &mut Cx<'_>,
        parts: &mut SharedParts,
        conn: Tag,
        key: TaskKey,
        arrived: &IncomingCommand<'_>,
    ) -> bool {
        let Some(io) = self.server.inline_io_for(key.nexus, arrived) else { return false };
        if parts.throttled.is_in_force() && parts.is_limited(conn, io.volume) {
            return false;
        }
        let Some(session) = parts.conns.session_mut(conn) else { return false };
        let (who, tag) = (&self.server.nexus(key.nexus).nexus, Tag::from_bits(key.tag));
        let receive_ns = session.times.receive_ns(cx.now);
        let (proto, parked) = session.protocol_and_parked();
        if !execute_inline(cx, &mut parts.volumes, who, &io, receive_ns, (proto, tag), parked) {
            return false;
        }
        let moved = match io.write {
            None => &mut session.io.read_bytes,
            Some(_) => &mut session.io.written_bytes,
        };
        *moved += u64::from(io.bytes);
        let label = session.times.count_inline_answer(cx.now, (io.volume, io.write.is_some()));
        session.proto.label_next_response(label);
        session.proto.respond_good(cx, tag, io.bytes.into());
        true
    }
}

pub(super) fn scsi_result(reply: &Reply) -> ScsiResult {
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
