//! From a queue at rest to bytes.

use super::super::ControllerQueue;
use super::super::receive::{DataPurpose, PduData};
use super::super::task::{DataSource, Task, TaskEnding, TaskState};
use super::body::{
    ParametersBody, PurposeBody, QueueBody, ReceiveBody, SourceBody, StateBody, StretchBody, TaskBody,
};
use super::{FORMAT, QueueSnapshot};
use crate::pdu_receiver::ReceiveState;
use crate::queue::{QueuePhase, RoleQueue};
use buf::Cx;
use nvme::Sqe;
use std::collections::HashMap;
use std::fmt;
use stream::Tag;
use zerocopy::IntoBytes;

/// Why a queue cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSaveRefusal {
    /// Not yet: it is not quiesced, or an operation of its link is out, or events are not taken.
    Busy,
    /// Not yet: so many tasks are with the server.
    TasksWithServer(usize),
    /// Not yet: there is no memory to make bytes of what waits to be sent.
    NoMemory,
    /// Never: its Connect is not answered.
    Connecting,
    /// Never: it is ending.
    Ending,
    /// Never: the keys of its TLS channel cannot be moved.
    Tls,
}

/// In words.
impl fmt::Display for QueueSaveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueSaveRefusal::Busy => "the queue is not at rest yet",
            QueueSaveRefusal::TasksWithServer(tasks) => {
                return write!(f, "{tasks} of its commands are being executed");
            }
            QueueSaveRefusal::NoMemory => "memory is short",
            QueueSaveRefusal::Connecting => "it is still connecting",
            QueueSaveRefusal::Ending => "it is ending",
            QueueSaveRefusal::Tls => "it uses TLS, and the keys of a channel cannot be moved",
        })
    }
}

impl ControllerQueue {
    /// The queue as bytes. It must be quiesced, all operations of its link back, its events taken, and every command
    /// answered or withdrawn. Afterwards it can still go on here: what waited to be sent is made bytes of, and is
    /// sent from those.
    pub fn save(&mut self, cx: &mut Cx<'_>) -> Result<QueueSnapshot, QueueSaveRefusal> {
        self.check_at_rest()?;
        if !self.make_all_unsent(cx) {
            return Err(QueueSaveRefusal::NoMemory);
        }
        let body = self.to_body().ok_or(QueueSaveRefusal::TasksWithServer(1))?;
        Ok(QueueSnapshot(stream::snapshot::write(FORMAT, &body).into()))
    }

    fn check_at_rest(&self) -> Result<(), QueueSaveRefusal> {
        match self.phase {
            QueuePhase::Open => {}
            QueuePhase::Init | QueuePhase::Connect => return Err(QueueSaveRefusal::Connecting),
            QueuePhase::Draining | QueuePhase::Finishing | QueuePhase::Dead | QueuePhase::Gone => {
                return Err(QueueSaveRefusal::Ending);
            }
        }
        if self.tls.is_some() {
            return Err(QueueSaveRefusal::Tls);
        }
        if self.role.connect.is_some() {
            return Err(QueueSaveRefusal::Connecting);
        }
        let live = |task: &Task| match task.state {
            TaskState::Live => true,
            TaskState::Ending { acked, .. } => !acked,
            TaskState::Withdrawn | TaskState::Answered(_) | TaskState::Abandoned => false,
        };
        let live = self.role.tasks.iter().filter(|(_, task)| live(task)).count();
        if live > 0 {
            return Err(QueueSaveRefusal::TasksWithServer(live));
        }
        let rest = self.role.quiesced && self.has_no_io_in_flight() && self.events.is_empty();
        if rest { Ok(()) } else { Err(QueueSaveRefusal::Busy) }
    }

    /// Makes bytes of all that waits, to be sent before all else. False: memory is short, and some still waits.
    fn make_all_unsent(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut bytes = self.out.take_unsent();
        let mut complete = true;
        while !self.out.is_empty() && complete {
            match self.build_send_batch(cx) {
                Ok(Some(op)) => {
                    let before = bytes.len();
                    bytes.resize(before + op.len, 0);
                    op.copy_to(0, bytes.get_mut(before..).unwrap_or_default());
                    self.out.handle_written();
                    self.out.handle_send_released(op);
                }
                Ok(None) | Err(_) => complete = false,
            }
        }
        self.out.set_unsent(bytes);
        complete
    }

    /// `None`: a task is with the server.
    fn to_body(&self) -> Option<QueueBody> {
        let role = &self.role;
        let newest = role.arrivals;
        let mut tasks: Vec<(Tag, &Task)> = role.tasks.iter().collect();
        tasks.sort_by_key(|(_, task)| std::cmp::Reverse(newest.wrapping_sub(task.arrival)));
        let places: HashMap<Tag, u32> =
            tasks.iter().enumerate().map(|(place, (tag, _))| (*tag, place as u32)).collect();
        let withdrawn: HashMap<Tag, &Sqe> = role.withdrawn.iter().map(|(tag, sqe)| (*tag, sqe)).collect();
        let tasks = tasks.iter().map(|(tag, task)| {
            task_body(task, withdrawn.get(tag).copied(), role.tasks.carried.stretches(*tag))
        });
        let stretch = |stretch: &PduData| stretch_body(stretch, self.rx.crc.value(), &places);
        Some(QueueBody {
            parameters: ParametersBody {
                header_digest: self.parameters.header_digest,
                data_digest: self.parameters.data_digest,
                host_alignment: self.parameters.host_alignment,
                controller_alignment: self.parameters.controller_alignment,
                r2ts: self.parameters.r2ts,
                max_h2c_data: self.parameters.max_h2c_data,
            },
            entries: self.size.entries,
            flow_control: self.size.flow_control,
            in_capsule_max: self.size.in_capsule_max,
            admin: role.admin,
            refused: role.refused,
            half: role.half.and_then(|tag| places.get(&tag).copied()),
            next_ttag: role.next_ttag,
            sqhd: role.sqhd,
            tasks: tasks.collect::<Option<_>>()?,
            receive: match &self.rx.state {
                ReceiveState::Header => ReceiveBody::Header,
                ReceiveState::Data(data) => ReceiveBody::Data(stretch(data)),
                ReceiveState::Digest(data) => ReceiveBody::Digest(stretch(data)),
            },
            unparsed: self.rx.receive_buffer.unconsumed_bytes(),
            unsent: self.out.unsent_bytes(),
        })
    }
}

/// `None`: it is with the server.
fn task_body<'a>(
    task: &Task,
    withdrawn: Option<&Sqe>,
    carried: impl Iterator<Item = (u32, &'a [u8])>,
) -> Option<TaskBody> {
    let state = match task.state {
        TaskState::Withdrawn => StateBody::Withdrawn(withdrawn?.as_bytes().to_vec()),
        TaskState::Ending { how: TaskEnding::Status(status), acked: true } => StateBody::Status(status.0),
        TaskState::Answered(completion) => StateBody::Answered(completion.result, completion.status.0),
        TaskState::Abandoned => StateBody::Abandoned,
        TaskState::Live | TaskState::Ending { .. } => return None,
    };
    Some(TaskBody {
        cid: task.cid,
        source: match task.source {
            DataSource::None => SourceBody::None,
            DataSource::Capsule => SourceBody::Capsule,
            DataSource::Host => SourceBody::Host,
            DataSource::Server => SourceBody::Server,
        },
        len: task.len,
        arriving: task.arriving,
        capsule: task.capsule,
        event_request: task.event_request,
        asked: task.asked,
        r2ts: task.r2ts.iter().map(|asked| (asked.ttag, asked.next, asked.end)).collect(),
        carried: carried.map(|(at, bytes)| (at, bytes.to_vec())).collect(),
        state,
    })
}

fn stretch_body(stretch: &PduData, crc: u32, places: &HashMap<Tag, u32>) -> StretchBody {
    let purpose = match stretch.purpose {
        DataPurpose::Capsule(tag) => places.get(&tag).map(|task| PurposeBody::Capsule(*task)),
        DataPurpose::Solicited { tag, ttag } => {
            places.get(&tag).map(|task| PurposeBody::Solicited(*task, ttag))
        }
        DataPurpose::Refuse(cid, status) => Some(PurposeBody::Refuse(cid, status.0)),
        DataPurpose::Skip => None,
    };
    let PduData { lead, want, tail, at, .. } = *stretch;
    StretchBody { lead, want, tail, at, crc, purpose: purpose.unwrap_or(PurposeBody::Skip) }
}
