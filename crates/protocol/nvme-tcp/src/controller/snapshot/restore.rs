//! From bytes to a queue that goes on.

use super::super::carried_data::CarriedData;
use super::super::receive::{DataPurpose, PduData};
use super::super::task::{DataSource, R2T_MAX, SolicitedRange, Task, TaskEnding, TaskState};
use super::super::{CAPSULES_RESERVED, ConnectedQueueSize, ControllerQueue, QUEUE_ENTRIES_MAX, QueueLimits};
use super::body::{
    ParametersBody, PurposeBody, QueueBody, ReceiveBody, SourceBody, StateBody, StretchBody, TaskBody,
};
use super::{FORMAT, QueueSnapshot};
use crate::pdu_receiver::ReceiveState;
use crate::queue::QueuePhase;
use crate::wire::{ConnectionParameters, MAX_H2C_DATA_LEAST};
use buf::Cx;
use buf::crc32c::Crc32c;
use nvme::{Completion, Sqe, Status};
use std::fmt;
use stream::snapshot::SnapshotDamage;
use stream::{ReceiveBuffer, Tag};
use zerocopy::FromBytes;

/// Why a queue cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRestoreError {
    /// The bytes are no snapshot that this release reads.
    Damage(SnapshotDamage),
    /// The snapshot contradicts itself, in this.
    Contradiction(&'static str),
    /// There is not as much memory as the queue was promised.
    NoMemory,
}

/// In words.
impl fmt::Display for QueueRestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueRestoreError::Damage(damage) => damage.fmt(f),
            QueueRestoreError::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
            QueueRestoreError::NoMemory => {
                f.write_str("not as much memory as the queue was promised: raise the memory limit")
            }
        }
    }
}

impl std::error::Error for QueueRestoreError {}

type Restored<T> = Result<T, QueueRestoreError>;

/// What a field must be.
fn check(sound: bool, what: &'static str) -> Restored<()> {
    if sound { Ok(()) } else { Err(QueueRestoreError::Contradiction(what)) }
}

fn found<T>(value: Option<T>, what: &'static str) -> Restored<T> {
    value.ok_or(QueueRestoreError::Contradiction(what))
}

impl ControllerQueue {
    /// Goes on with a queue of another process, under the operator's `limits` of today; what was agreed with the host
    /// stays. Commands that were withdrawn are announced again. The caller lets the queue
    /// [resume parsing](stream::Connection::resume_parsing).
    pub fn restore(
        cx: &mut Cx<'_>,
        snapshot: &QueueSnapshot,
        limits: QueueLimits,
    ) -> Result<Self, QueueRestoreError> {
        let body: QueueBody =
            stream::snapshot::read(FORMAT, &snapshot.0).map_err(QueueRestoreError::Damage)?;
        check(
            (2..=QUEUE_ENTRIES_MAX).contains(&body.entries) && body.sqhd < body.entries,
            "the queue's size",
        )?;
        let parameters = connection_parameters(&body.parameters)?;
        let receive_buffer = ReceiveBuffer::with_bytes(&body.unparsed);
        let mut queue = Self::with_parameters(cx, limits, parameters, receive_buffer);
        queue.phase = QueuePhase::Open;
        queue.deadline = None;
        queue.size = ConnectedQueueSize {
            entries: body.entries,
            flow_control: body.flow_control,
            in_capsule_max: body.in_capsule_max,
        };
        queue.role.tasks.grow(body.entries);
        if !queue.role.tasks.capsules.reserve_capsules(body.in_capsule_max, CAPSULES_RESERVED) {
            return Err(QueueRestoreError::NoMemory);
        }
        let mut tags = Vec::new();
        for task in &body.tasks {
            tags.push(queue.restore_task(cx, task)?);
        }
        queue.role.admin = body.admin;
        queue.role.refused = body.refused;
        queue.role.half = body.half.map(|place| tag_at(&tags, place)).transpose()?;
        (queue.role.next_ttag, queue.role.sqhd) = (body.next_ttag, body.sqhd);
        queue.rx.state = match &body.receive {
            ReceiveBody::Header => ReceiveState::Header,
            ReceiveBody::Data(stretch) => ReceiveState::Data(queue.restore_stretch(&tags, stretch)?),
            ReceiveBody::Digest(stretch) => {
                check((stretch.lead, stretch.want, stretch.tail) == (0, 0, 0), "the rest of a PDU")?;
                ReceiveState::Digest(queue.restore_stretch(&tags, stretch)?)
            }
        };
        queue.check_carried_data(&tags)?;
        queue.out.set_unsent(body.unsent);
        queue.announce_withdrawn();
        Ok(queue)
    }

    fn restore_task(&mut self, cx: &Cx<'_>, body: &TaskBody) -> Restored<Tag> {
        let source = match body.source {
            SourceBody::None => DataSource::None,
            SourceBody::Capsule => DataSource::Capsule,
            SourceBody::Host => DataSource::Host,
            SourceBody::Server => DataSource::Server,
        };
        check(body.r2ts.len() <= R2T_MAX && body.asked <= body.len, "R2Ts")?;
        let sound = |(_, next, end): &(u16, u32, u32)| next <= end && *end <= body.asked;
        check(body.r2ts.iter().all(sound) && (source == DataSource::Host || body.asked == 0), "R2Ts")?;
        check(!body.capsule || source == DataSource::Capsule, "data in a capsule")?;
        let mut withdrawn = None;
        let state = match &body.state {
            StateBody::Withdrawn(sqe) => {
                let sqe = found(Sqe::read_from_bytes(sqe).ok(), "a command")?;
                check(sqe.cid.get() == body.cid, "a command")?;
                withdrawn = Some(sqe);
                TaskState::Withdrawn
            }
            StateBody::Status(status) => {
                TaskState::Ending { how: TaskEnding::Status(Status(*status)), acked: true }
            }
            StateBody::Answered(result, status) => {
                TaskState::Answered(Completion { result: *result, status: Status(*status) })
            }
            StateBody::Abandoned => TaskState::Abandoned,
        };
        check(withdrawn.is_some() || body.carried.is_empty(), "data that came")?;
        let mut task = Task::new(body.cid, source, body.len);
        (task.state, task.arriving, task.event_request) = (state, body.arriving, body.event_request);
        // Of what ends with data that is owed, something must be owed.
        check(withdrawn.is_some() || body.arriving || !body.r2ts.is_empty(), "the state of a task")?;
        task.asked = body.asked;
        task.r2ts = body
            .r2ts
            .iter()
            .map(|(ttag, next, end)| SolicitedRange { ttag: *ttag, next: *next, end: *end })
            .collect();
        self.role.arrivals = self.role.arrivals.wrapping_add(1);
        task.arrival = self.role.arrivals;
        let full = self.role.tasks.len() >= usize::from(self.size.entries);
        check(
            !full && self.role.tasks.find(body.cid).is_none(),
            "too many commands, or two of one identifier",
        )?;
        if body.capsule {
            if !self.role.tasks.capsules.take_unit() {
                return Err(QueueRestoreError::NoMemory);
            }
            task.capsule = true;
        }
        let tag = found(self.role.tasks.insert(task), "too many commands")?;
        let carried = body.carried.iter().map(|(at, bytes)| (*at, bytes.as_slice().into())).collect();
        self.role.tasks.carried.insert(tag, CarriedData::new(carried));
        self.role.tasks.update_data_owed(cx.now, tag);
        self.role.withdrawn.extend(withdrawn.map(|sqe| (tag, sqe)));
        Ok(tag)
    }

    fn restore_stretch(&mut self, tags: &[Tag], body: &StretchBody) -> Restored<PduData> {
        let StretchBody { lead, want, tail, at, crc, purpose } = body;
        let purpose = match purpose {
            PurposeBody::Capsule(place) => DataPurpose::Capsule(tag_at(tags, *place)?),
            PurposeBody::Solicited(place, ttag) => {
                DataPurpose::Solicited { tag: tag_at(tags, *place)?, ttag: *ttag }
            }
            PurposeBody::Refuse(cid, status) => DataPurpose::Refuse(*cid, Status(*status)),
            PurposeBody::Skip => DataPurpose::Skip,
        };
        let stretch = PduData { lead: *lead, want: *want, tail: *tail, at: *at, purpose };
        let task = stretch.tag().and_then(|tag| self.role.tasks.get(tag));
        let end = at.checked_add(*want);
        let fits = match (purpose, task) {
            (DataPurpose::Capsule(_), Some(task)) => {
                task.arriving && (task.source == DataSource::Capsule || *want == 0) && end <= Some(task.len)
            }
            (DataPurpose::Solicited { .. }, Some(task)) => {
                task.source == DataSource::Host && end <= Some(task.asked)
            }
            (DataPurpose::Refuse(..) | DataPurpose::Skip, None) => true,
            (_, _) => false,
        };
        let bounded = lead.checked_add(*want).and_then(|len| len.checked_add(*tail));
        check(fits && end.is_some() && bounded.is_some(), "the rest of a PDU")?;
        self.rx.crc = Crc32c::from_value(*crc);
        Ok(stretch)
    }

    /// What was carried of each command must be what came for it: neither more nor less. Data in a capsule is all
    /// still in the stream if none of it is carried.
    fn check_carried_data(&self, tags: &[Tag]) -> Restored<()> {
        for tag in tags {
            let task = found(self.role.tasks.get(*tag), "a task")?;
            if !matches!(task.state, TaskState::Withdrawn) {
                continue;
            }
            let stretch = self.stretch_of(*tag);
            check(
                task.arriving == matches!(stretch, Some(PduData { purpose: DataPurpose::Capsule(_), .. })),
                "data in a capsule",
            )?;
            let came = task.received_ranges(stretch);
            let carried = || self.role.tasks.carried.stretches(*tag);
            let same = carried().count() == came.len()
                && carried()
                    .zip(&came)
                    .all(|((at, bytes), range)| (at, bytes.len()) == (range.start, range.len()));
            check(same, "data that came")?;
        }
        Ok(())
    }
}

fn tag_at(tags: &[Tag], place: u32) -> Restored<Tag> {
    found(tags.get(place as usize).copied(), "a task that is not there")
}

fn connection_parameters(body: &ParametersBody) -> Restored<ConnectionParameters> {
    let is_alignment = |bytes: u8| (4..=128).contains(&bytes) && bytes.is_multiple_of(4);
    let sound = is_alignment(body.host_alignment)
        && is_alignment(body.controller_alignment)
        && body.r2ts > 0
        && body.max_h2c_data >= MAX_H2C_DATA_LEAST;
    check(sound, "the parameters of the connection")?;
    Ok(ConnectionParameters {
        header_digest: body.header_digest,
        data_digest: body.data_digest,
        host_alignment: body.host_alignment,
        controller_alignment: body.controller_alignment,
        r2ts: body.r2ts,
        max_h2c_data: body.max_h2c_data,
    })
}
