//! From a session at rest to bytes.

use super::super::TargetSession;
use super::super::carried_data::CarriedData;
use super::super::closing::NexusEndState;
use super::super::link::{LinkPhase, LinkState, SegmentPurpose};
use super::super::request::ScsiResult;
use super::super::response_fence::{FenceState, FencedResponse};
use super::super::task::{Answer, Task, TaskKind, Termination, Transfer};
use super::super::tasks::SessionTasks;
use super::super::window::HeldRequest;
use super::body::{
    AnswerBody, CommandBody, FenceBody, FenceStateBody, FunctionBody, HeldBody, KindBody, LinkBody,
    ParamsBody, PurposeBody, ReceiveBody, SessionBody, StateBody, TaskBody, TransferBody, WindowBody,
};
use super::{FORMAT, ScsiCommand, SessionSnapshot, TaskState};
use crate::framing::ReceiveState;
use buf::{Cx, Sg};
use std::collections::HashMap;
use std::fmt;
use stream::{LinkNumber, Tag};

/// Why a session cannot be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionSaveRefusal {
    /// Not yet: it is not quiesced, or an operation of a link is out, or events are not taken.
    Busy,
    /// Not yet: so many tasks are with the server.
    TasksWithServer(usize),
    /// Not yet: there is no memory to make bytes of what waits to be sent.
    NoMemory,
    /// Never: it is a discovery session, which ends by itself.
    Discovery,
    /// Never: it is ending, or one of its links is, or one is on its way to it.
    Ending,
    /// Never: a text exchange is open.
    TextExchange,
}

/// In words.
impl fmt::Display for SessionSaveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionSaveRefusal::Busy => "the session is not at rest yet",
            SessionSaveRefusal::TasksWithServer(tasks) => {
                return write!(f, "{tasks} of its commands are being executed");
            }
            SessionSaveRefusal::NoMemory => "memory is short",
            SessionSaveRefusal::Discovery => "it is a discovery session",
            SessionSaveRefusal::Ending => "it is ending, or a connection joins or leaves it",
            SessionSaveRefusal::TextExchange => "a text exchange is open",
        })
    }
}

/// The places of tasks in the snapshot.
type Places = HashMap<Tag, u32>;

impl TargetSession {
    /// The session as bytes. It must be quiesced, all operations of its links back, its events taken, and every
    /// command answered or withdrawn. Afterwards it can still go on here: what waited to be sent is made bytes of,
    /// and is sent from those.
    pub fn save(&mut self, cx: &mut Cx<'_>) -> Result<SessionSnapshot, SessionSaveRefusal> {
        self.check_at_rest()?;
        // What came early has its data in the hold.
        for (tag, task) in self.tasks.table.iter_mut() {
            let (TaskState::Held, TaskKind::Scsi(transfer)) = (&task.state, &mut task.kind) else { continue };
            if !transfer.carry_received_data(tag, &mut self.tasks.carried) {
                return Err(SessionSaveRefusal::Busy);
            }
        }
        let numbers = self.tasks.window.command_numbers();
        for link in self.tasks.links.iter_mut().filter(|link| link.phase == LinkPhase::Open) {
            if !link.tx.make_all_unsent(link.framing, numbers, cx) {
                return Err(SessionSaveRefusal::NoMemory);
            }
        }
        self.tasks.window.note_window_sent();
        let body = self.to_body()?;
        Ok(SessionSnapshot(stream::snapshot::write(FORMAT, &body).into()))
    }

    fn check_at_rest(&self) -> Result<(), SessionSaveRefusal> {
        let gone = |link: &LinkState| link.phase == LinkPhase::Gone;
        let ends = self.closing
            || self.logout.is_some()
            || self.close_at.is_some()
            || self.nexus_end != NexusEndState::No
            || !self.tasks.expected.is_empty()
            || !self.shut.is_empty();
        if self.tasks.params.discovery {
            return Err(SessionSaveRefusal::Discovery);
        }
        if ends || self.tasks.links.iter().any(|link| !link.is_open() && !gone(link)) {
            return Err(SessionSaveRefusal::Ending);
        }
        if self.tasks.links.iter().any(|link| link.text.is_some()) {
            return Err(SessionSaveRefusal::TextExchange);
        }
        let live = |task: &Task| match &task.state {
            TaskState::Live => true,
            TaskState::Terminating { acked, .. } => !acked,
            TaskState::Held | TaskState::Invalid(_) | TaskState::Withdrawn | TaskState::Answered(_) => false,
        };
        let live = self.tasks.table.iter().filter(|(_, task)| live(task)).count();
        if live > 0 {
            return Err(SessionSaveRefusal::TasksWithServer(live));
        }
        let idle = self.tasks.links.iter().all(LinkState::has_no_io_in_flight);
        if self.quiesced && idle && self.tasks.events.is_empty() {
            Ok(())
        } else {
            Err(SessionSaveRefusal::Busy)
        }
    }

    fn to_body(&self) -> Result<SessionBody, SessionSaveRefusal> {
        let SessionTasks { params, limits, table, links, .. } = &self.tasks;
        let places: Places = table.iter().enumerate().map(|(place, (tag, _))| (tag, place as u32)).collect();
        let withdrawn: HashMap<Tag, &ScsiCommand> =
            self.tasks.withdrawn.iter().map(|(tag, command)| (*tag, command)).collect();
        let carried = &self.tasks.carried;
        let tasks =
            table.iter().map(|(tag, task)| task_body(task, withdrawn.get(&tag).copied(), carried.get(tag)));
        let functions = self.functions.waiting().filter_map(|(tag, request)| {
            let task = *places.get(tag)?;
            Some(FunctionBody { task, function: request.function.0, lun: request.lun })
        });
        Ok(SessionBody {
            params: ParamsBody {
                isid: params.isid.0,
                tsih: params.tsih.value(),
                max_connections: params.max_connections,
                initial_r2t: params.initial_r2t,
                immediate_data: params.immediate_data,
                max_burst: params.max_burst,
                first_burst: params.first_burst,
                segment_max: params.segment_max,
                max_outstanding_r2t: params.max_outstanding_r2t,
                time2wait: params.time2wait,
                time2retain: params.time2retain,
                protocol_level: params.protocol_level,
                cmd_sn: params.cmd_sn.value(),
            },
            commands: limits.commands,
            immediate: limits.immediate,
            window: self.window_body(&places),
            tasks: tasks.collect::<Option<_>>().ok_or(SessionSaveRefusal::TasksWithServer(1))?,
            functions: functions.collect(),
            abandoned: self
                .tasks
                .abandoned
                .iter()
                .map(|(itt, link)| (itt, LinkNumber::from(link).0))
                .collect(),
            next_ttt: self.tasks.ttts.0,
            cleared: self.cleared.iter().map(|lun| lun.0).collect(),
            fences: self.tasks.fences.iter().map(|fence| fence_body(fence, &places)).collect(),
            links: links.iter().map(|link| link.is_open().then(|| link_body(link, &places))).collect(),
        })
    }

    fn window_body(&self, places: &Places) -> WindowBody {
        let (numbers, units, held) = self.tasks.window.parts();
        let held = held.map(|held| held.map(|held| held_body(held, places))).collect();
        WindowBody {
            exp: numbers.exp.value(),
            max: numbers.max.value(),
            told: numbers.told.value(),
            offered: numbers.offered,
            limit: numbers.limit,
            peak: numbers.peak,
            skips_next: numbers.skips_next,
            opened: numbers.opened,
            units,
            held,
        }
    }
}

fn held_body(held: &HeldRequest, places: &Places) -> HeldBody {
    match held {
        HeldRequest::Scsi(tag, command) => match places.get(tag) {
            Some(task) => HeldBody::Scsi { task: *task, command: command_body(command) },
            // It went with its link.
            None => HeldBody::Skipped,
        },
        HeldRequest::Other { link, bhs, data } => HeldBody::Other {
            link: LinkNumber::from(*link).0,
            bhs: bhs.bytes().to_vec(),
            data: bytes_of(data),
        },
        HeldRequest::Skipped => HeldBody::Skipped,
    }
}

fn bytes_of(data: &Sg) -> Vec<u8> {
    let mut bytes = vec![0; data.len()];
    data.copy_to(0, &mut bytes);
    bytes
}

fn command_body(command: &ScsiCommand) -> CommandBody {
    CommandBody {
        lun: command.lun,
        cdb: command.cdb.as_slice().to_vec(),
        attr: command.attr.0,
        priority: command.priority,
        immediate_delivery: command.immediate_delivery,
        read: command.read,
        write: command.write,
        edtl: command.edtl,
        bidi_read_len: command.bidi_read_len,
        link: command.link.0,
    }
}

/// `None`: it is with the server.
fn task_body(
    task: &Task,
    withdrawn: Option<&ScsiCommand>,
    carried: Option<&CarriedData>,
) -> Option<TaskBody> {
    let kind = match &task.kind {
        TaskKind::Scsi(transfer) => KindBody::Scsi(transfer_body(transfer, carried)),
        TaskKind::Tmf(function, _) => KindBody::Function(function.0),
        TaskKind::Text => return None,
    };
    let state = match &task.state {
        TaskState::Held => StateBody::Held,
        TaskState::Invalid(sense) => StateBody::Invalid(sense.0, sense.1),
        TaskState::Withdrawn => StateBody::Withdrawn(command_body(withdrawn?)),
        TaskState::Terminating { how: Termination::Sense(sense), acked: true } => {
            StateBody::Sense(sense.0, sense.1)
        }
        TaskState::Answered(answer) => StateBody::Answered(answer_body(answer)),
        TaskState::Live | TaskState::Terminating { .. } => return None,
    };
    Some(TaskBody {
        itt: task.itt.value(),
        lun: task.lun.0,
        cmd_sn: task.cmd_sn.value(),
        link: LinkNumber::from(task.link).0,
        immediate: task.immediate,
        counted: task.counted,
        kind,
        state,
    })
}

fn answer_body(answer: &Answer) -> AnswerBody {
    match answer {
        Answer::Result(ScsiResult { status, qualifier, sense, transferred, fence }) => AnswerBody::Result {
            status: status.0,
            qualifier: *qualifier,
            sense: sense.to_vec(),
            transferred: *transferred,
            fence: *fence,
        },
        Answer::Failure => AnswerBody::Failure,
        Answer::Function(response) => AnswerBody::Function(response.0),
    }
}

fn transfer_body(transfer: &Transfer, carried: Option<&CarriedData>) -> TransferBody {
    let r2ts = transfer.r2ts.iter().map(|r2t| (r2t.ttt.value(), r2t.offset, r2t.end)).collect();
    TransferBody {
        read: transfer.read,
        write: transfer.write,
        edtl: transfer.edtl,
        bidi_read_len: transfer.bidi_read_len,
        data_sn: transfer.data_sn,
        sent: transfer.sent,
        got: transfer.got,
        whole: transfer.whole,
        unsolicited: transfer.unsolicited,
        unsolicited_open: transfer.unsolicited_open,
        sequence_sn: transfer.sequence_sn,
        r2ts,
        asked: transfer.asked,
        last_ttt: transfer.last_ttt.map(|ttt| ttt.value()),
        carried: carried.map(|carried| (carried.base(), carried.bytes().to_vec())),
    }
}

fn fence_body(fence: &FencedResponse, places: &Places) -> FenceBody {
    let state = match &fence.state {
        FenceState::Waiting => FenceStateBody::Waiting,
        FenceState::Before(marks, _) => FenceStateBody::Before(
            marks.iter().map(|(link, sn)| (LinkNumber::from(*link).0, sn.value())).collect(),
        ),
        FenceState::After((link, sn), _) => FenceStateBody::After(LinkNumber::from(*link).0, sn.value()),
        FenceState::Over => FenceStateBody::Over,
    };
    FenceBody { task: places.get(&fence.tag).copied(), lun: fence.lun().map(|lun| lun.0), state }
}

fn link_body(link: &LinkState, places: &Places) -> LinkBody {
    let receive = match &link.rx.state {
        ReceiveState::Header => ReceiveBody::Header,
        ReceiveState::Data { left, segment } => ReceiveBody::Data {
            bhs: link.rx.bhs.bytes().to_vec(),
            left: *left,
            crc: link.rx.crc.value(),
            purpose: match segment {
                SegmentPurpose::Write { tag, sequence } => {
                    PurposeBody::Write { task: places.get(tag).copied(), sequence: *sequence }
                }
                SegmentPurpose::Collect { data, want, filled } => {
                    let mut bytes: Vec<u8> =
                        data.pieces().iter().flat_map(|piece| piece.iter().copied()).collect();
                    bytes.truncate(*filled);
                    PurposeBody::Collect { want: *want as u32, filled: bytes }
                }
                SegmentPurpose::Skip => PurposeBody::Skip,
            },
        },
    };
    let (pings, pings_forgot) = link.pings.unanswered();
    LinkBody {
        cid: link.cid.value(),
        header_digest: link.framing.header_digest,
        data_digest: link.framing.data_digest,
        peer_mrdsl: link.framing.peer_mrdsl,
        own_mrdsl: link.framing.own_mrdsl,
        stat_sn: link.tx.stat_sn.value(),
        acked: link.acked.value(),
        pings: pings.map(|ttt| ttt.value()).collect(),
        pings_forgot,
        pings_awaited: link.pings.unanswered_since().is_some(),
        receive,
        unparsed: link.rx.receive_buffer.unconsumed_bytes(),
        unsent: link.tx.transmit_queue.unsent_bytes(),
    }
}
