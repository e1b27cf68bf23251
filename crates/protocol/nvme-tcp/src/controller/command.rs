//! ICReq and CapsuleCmd: the agreed parameters, and which commands reach the server (NVMe-TCP §3.6.2,
//! §3.3.2).

use super::outgoing::OutgoingPdu;
use super::receive::{DataPurpose, PduData};
use super::task::{DataSource, Task, TaskEnding};
use super::{ControllerQueue, DigestPolicy};
use crate::LinkFault;
use crate::queue::QueuePhase;
use crate::wire::{CommonHeader, FatalError, IcReq, alignment_bytes};
use nvme::{Direction, FabricsType, Fuse, Opcode, SglDescriptor, Sqe, Status};
use stream::TargetEvent;

/// Where DGST stands in ICReq.
const AT_DGST: u32 = 11;
/// PSDT: the data pointer is one SGL descriptor, which is all that fabrics know.
const PSDT_SGL: u8 = 1;

/// Where a command's data is, by its SGL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SglData {
    source: DataSource,
    len: u32,
    /// Where it begins in the capsule's data.
    offset: u32,
}

impl ControllerQueue {
    /// Answers ICReq.
    pub(super) fn handle_ic_req(&mut self, request: &IcReq) -> Result<(), FatalError> {
        request.check()?;
        let negotiate = |asked: bool, policy: DigestPolicy| match policy {
            DigestPolicy::IfAsked => Ok(asked),
            DigestPolicy::Never => Ok(false),
            DigestPolicy::Required if asked => Ok(true),
            DigestPolicy::Required => Err(FatalError::unsupported_parameter(AT_DGST)),
        };
        self.parameters.header_digest = negotiate(request.header_digest(), self.role.limits.header_digest)?;
        self.parameters.data_digest = negotiate(request.data_digest(), self.role.limits.data_digest)?;
        self.parameters.host_alignment = alignment_bytes(request.hpda);
        self.parameters.r2ts = request.maxr2t.get().saturating_add(1);
        self.phase = QueuePhase::Connect;
        self.out.push(OutgoingPdu::Init(self.parameters));
        Ok(())
    }

    /// Acts on a command, which `data` bytes of capsule data follow. `None`: there is no memory for
    /// them yet.
    pub(super) fn begin_command(&mut self, sqe: &Sqe, data: u32) -> Result<Option<PduData>, LinkFault> {
        if self.role.tasks.len() >= usize::from(self.size.entries) {
            return Err(LinkFault::TooManyCommands);
        }
        let fabrics = sqe.opcode == Opcode::FABRICS;
        if !fabrics && self.phase != QueuePhase::Connect && data > self.size.in_capsule_max {
            return Err(LinkFault::Fatal(FatalError::invalid_field(CommonHeader::AT_PLEN)));
        }
        let cid = sqe.cid.get();
        if is_property_access(sqe) {
            self.reuse_event_request_cid(cid);
        }
        let payload = if self.phase == QueuePhase::Draining {
            Err(Status::ABORTED_SQ_DELETION)
        } else if self.role.tasks.find(cid).is_some() {
            Err(Status::COMMAND_ID_CONFLICT.with_do_not_retry())
        } else if self.role.refused && sqe.fuse() == Fuse::Second {
            // Halves of a pair stand next to each other (NVMe Base §3.4.2).
            Err(Status::ABORTED_MISSING_FUSED.with_do_not_retry())
        } else {
            parse_sgl(sqe, data)
        };
        self.role.refused = payload.is_err();
        let payload = match payload {
            Ok(payload) => payload,
            Err(status) => {
                self.abort_fused_half(sqe.fuse());
                return Ok(Some(PduData::skip(data, DataPurpose::Refuse(cid, status))));
            }
        };
        let mut task = Task::new(cid, payload.source, payload.len);
        // Fabrics commands, and what comes in the place of Connect, are few: nothing is set aside.
        if payload.source == DataSource::Capsule && !fabrics && self.phase != QueuePhase::Connect {
            if !self.role.tasks.capsules.take_unit() {
                return Ok(None);
            }
            task.capsule = true;
        }
        task.arriving = data > 0;
        self.role.arrivals = self.role.arrivals.wrapping_add(1);
        task.arrival = self.role.arrivals;
        task.event_request = self.role.admin && sqe.opcode == Opcode::ASYNC_EVENT_REQUEST;
        let Some(tag) = self.role.tasks.insert(task) else { return Err(LinkFault::TooManyCommands) };
        self.role.half = (sqe.fuse() == Fuse::First).then_some(tag);
        if self.phase == QueuePhase::Connect {
            self.role.connect = Some((tag, *sqe));
        }
        let data_out = match payload.source {
            DataSource::Capsule | DataSource::Host => payload.len,
            DataSource::None | DataSource::Server => 0,
        };
        self.events.push_back(TargetEvent::Command { tag, command: *sqe, data_out });
        let want = if payload.source == DataSource::Capsule { payload.len } else { 0 };
        let tail = data - payload.offset - want;
        let purpose = if data > 0 { DataPurpose::Capsule(tag) } else { DataPurpose::Skip };
        Ok(Some(PduData { lead: payload.offset, want, tail, at: 0, purpose }))
    }
}

/// Whether it reads or writes a property: it moves no data, and a host shuts its controller down by it.
fn is_property_access(sqe: &Sqe) -> bool {
    let kind = sqe.fabrics_type();
    sqe.opcode == Opcode::FABRICS && matches!(kind, FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET)
}

impl ControllerQueue {
    /// Some hosts give up their outstanding Asynchronous Event Requests as they detach, without a word, and
    /// name the commands that shut the controller down by the identifiers of those (SPDK does). Neither moves
    /// data, so nothing can be mixed up: the request ends without an answer, and its name is free.
    fn reuse_event_request_cid(&mut self, cid: u16) {
        let Some(tag) = self.role.tasks.find(cid) else { return };
        if self.role.tasks.get(tag).is_some_and(|task| task.event_request) {
            self.role.tasks.free_cid(cid);
            self.abort_task(tag, TaskEnding::Silent);
        }
    }

    /// The command behind the first half of a pair is refused here, where the server does not hear of it:
    /// so the half ends here too.
    fn abort_fused_half(&mut self, behind: Fuse) {
        let Some(half) = self.role.half.take() else { return };
        let status = match behind {
            Fuse::Second => Status::ABORTED_FAILED_FUSED,
            Fuse::No | Fuse::First | Fuse::Reserved => Status::ABORTED_MISSING_FUSED,
        };
        self.abort_task(half, TaskEnding::Status(status.with_do_not_retry()));
    }
}

/// Reads the SGL of a command, which `data` bytes of capsule data follow.
fn parse_sgl(sqe: &Sqe, data: u32) -> Result<SglData, Status> {
    let none = SglData { source: DataSource::None, len: 0, offset: 0 };
    if sqe.psdt() != PSDT_SGL {
        return Err(Status::INVALID_FIELD.with_do_not_retry());
    }
    let (sgl, len) = (&sqe.dptr, sqe.dptr.length.get());
    match sqe.direction() {
        // The server refuses what claims to move data both ways.
        Direction::None | Direction::Both => Ok(none),
        Direction::ToController | Direction::ToHost if len == 0 => Ok(none),
        Direction::ToController => match sgl.identifier {
            // Data has one source. A capsule that brings some, and says that it goes by data PDUs,
            // contradicts itself: which bytes are meant cannot be known.
            SglDescriptor::TRANSPORT if data > 0 => Err(Status::SGL_TYPE_INVALID.with_do_not_retry()),
            SglDescriptor::TRANSPORT => Ok(SglData { source: DataSource::Host, len, offset: 0 }),
            SglDescriptor::IN_CAPSULE => {
                let offset = u32::try_from(sgl.address.get()).ok().filter(|offset| *offset <= data);
                let offset = offset.ok_or(Status::SGL_OFFSET_INVALID.with_do_not_retry())?;
                if len > data - offset {
                    return Err(Status::SGL_LENGTH_INVALID.with_do_not_retry());
                }
                Ok(SglData { source: DataSource::Capsule, len, offset })
            }
            _other => Err(Status::SGL_TYPE_INVALID.with_do_not_retry()),
        },
        Direction::ToHost => match sgl.identifier {
            SglDescriptor::TRANSPORT => Ok(SglData { source: DataSource::Server, len, offset: 0 }),
            _other => Err(Status::SGL_TYPE_INVALID.with_do_not_retry()),
        },
    }
}
