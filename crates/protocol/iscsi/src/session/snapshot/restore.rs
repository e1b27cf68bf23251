//! From bytes to a session that goes on.

use super::super::TargetSession;
use super::super::carried_data::CarriedData;
use super::super::closing::NexusEndState;
use super::super::command::HELD_BYTES_MAX;
use super::super::link::{LinkState, SegmentPurpose};
use super::super::memory_promise::MemoryPromise;
use super::super::params::{LinkParams, SessionLimits, SessionParams};
use super::super::pings::OutstandingPings;
use super::super::request::{Cdb, ScsiResult, SenseBytes, TaskManagement};
use super::super::response_fence::{FenceState, FencedResponse};
use super::super::task::{
    AdditionalSense, Answer, OutstandingR2t, R2T_MAX, Task, TaskKind, Termination, Transfer,
};
use super::super::task_functions::{WaitingTaskFunctions, ends_unnamed_tasks};
use super::super::tasks::{SessionTasks, TransferTags};
use super::super::window::{HeldRequest, WindowNumbers};
use super::super::{COMMANDS_MAX, IMMEDIATE_MAX};
use super::body::{
    AnswerBody, CommandBody, FenceBody, FenceStateBody, FunctionBody, HeldBody, KindBody, LinkBody,
    ParamsBody, PurposeBody, ReceiveBody, SessionBody, StateBody, TaskBody, TransferBody, WindowBody,
};
use super::{FORMAT, ScsiCommand, SessionSnapshot, SnapshotDamage, TaskState};
use crate::framing::ReceiveState;
use crate::links::{LinkIndex, Links};
use crate::wire::ahs::CDB_LEN_MAX;
use crate::wire::{
    Bhs, Cid, Isid, Itt, Lun, ScsiStatus, Sn, TaskAttribute, TmfFunction, TmfResponseCode, Tsih, Ttt,
};
use buf::crc32c::Crc32c;
use buf::{Cx, MemoryClass, Pool, SgMut, Time};
use smallvec::SmallVec;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use stream::{LinkNumber, Tag};

/// Why a session cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRestoreError {
    /// The bytes are no snapshot that this release reads.
    Damage(SnapshotDamage),
    /// The snapshot contradicts itself, in this.
    Contradiction(&'static str),
    /// There is not as much memory as the session was promised.
    NoMemory,
}

/// In words.
impl fmt::Display for SessionRestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionRestoreError::Damage(damage) => damage.fmt(f),
            SessionRestoreError::Contradiction(what) => {
                write!(f, "a snapshot that contradicts itself ({what})")
            }
            SessionRestoreError::NoMemory => {
                f.write_str("not as much memory as the session was promised: raise the memory limit")
            }
        }
    }
}

impl std::error::Error for SessionRestoreError {}

type Restored<T> = Result<T, SessionRestoreError>;

/// What a field must be.
fn check(sound: bool, what: &'static str) -> Restored<()> {
    if sound { Ok(()) } else { Err(SessionRestoreError::Contradiction(what)) }
}

fn found<T>(value: Option<T>, what: &'static str) -> Restored<T> {
    value.ok_or(SessionRestoreError::Contradiction(what))
}

impl TargetSession {
    /// Goes on with a session of another process, under the operator's `limits` of today; what was told to the
    /// initiator before stays. Commands that were withdrawn are announced again. Links keep their numbers; the
    /// caller lets the session [resume parsing](stream::Connection::resume_parsing).
    pub fn restore(
        cx: &mut Cx<'_>,
        snapshot: &SessionSnapshot,
        limits: &SessionLimits,
    ) -> Result<Self, SessionRestoreError> {
        let body: SessionBody =
            stream::snapshot::read(FORMAT, &snapshot.0).map_err(SessionRestoreError::Damage)?;
        Restoring::begin(cx, &body, limits)?.finish(cx, body)
    }

    /// The links that are in use.
    pub fn link_numbers(&self) -> impl Iterator<Item = LinkNumber> + '_ {
        self.tasks.links.enumerate().filter(|(_, link)| link.is_open()).map(|(index, _)| index.into())
    }
}

/// A session that takes shape.
struct Restoring {
    tasks: SessionTasks,
    functions: WaitingTaskFunctions,
    /// By place in the snapshot.
    tags: Vec<Tag>,
    now: Time,
}

impl Restoring {
    /// The parameters, the links without what they receive, and memory.
    fn begin(cx: &mut Cx<'_>, body: &SessionBody, limits: &SessionLimits) -> Restored<Self> {
        let params = session_params(&body.params)?;
        let most = 2 * usize::from(params.max_connections).min(usize::from(u16::MAX) / 2);
        check(body.links.iter().any(Option::is_some) && body.links.len() <= most, "links")?;
        check((1..=COMMANDS_MAX).contains(&body.commands), "commands")?;
        check((2..=IMMEDIATE_MAX).contains(&body.immediate), "immediate commands")?;
        let units_max = u32::from(COMMANDS_MAX) + 1 + u32::from(u16::MAX);
        check(body.window.units <= units_max, "units of memory")?;
        let limits = SessionLimits {
            commands: limits.commands.clamp(1, COMMANDS_MAX).max(body.commands),
            immediate: limits.immediate.clamp(2, IMMEDIATE_MAX).max(body.immediate),
            ..limits.clone()
        };
        let burst = params.unsolicited_burst_len();
        let promise = MemoryPromise::with_units(cx.pool, burst, body.window.units);
        let promise = promise.ok_or(SessionRestoreError::NoMemory)?;
        let mut tasks = SessionTasks::new(cx, params, limits, promise);
        let mut cids = HashSet::new();
        for link in &body.links {
            let link = match link {
                Some(link) => {
                    check(cids.insert(link.cid), "connection identifiers")?;
                    link_state(link, cx.now)?
                }
                None => LinkState::gone(cx.now),
            };
            tasks.links.push(link);
        }
        Ok(Restoring { tasks, functions: WaitingTaskFunctions::default(), tags: Vec::new(), now: cx.now })
    }

    fn finish(mut self, cx: &mut Cx<'_>, body: SessionBody) -> Restored<TargetSession> {
        let counted = body.tasks.iter().filter(|task| task.counted).count() as u32;
        for task in &body.tasks {
            self.add_task(task)?;
        }
        self.restore_window(cx.pool, &body.window, counted)?;
        self.restore_functions(&body.functions)?;
        self.check_all_held_tasks_are_waited_for(&body)?;
        for (itt, link) in &body.abandoned {
            let link = self.link_index(*link)?;
            self.tasks.abandoned.insert(Itt::new(*itt), link);
        }
        for fence in &body.fences {
            let fence = self.fence(fence)?;
            self.tasks.fences.push_restored(fence);
        }
        self.tasks.ttts = TransferTags(if body.next_ttt == u32::MAX { 0 } else { body.next_ttt });
        for (slot, link) in body.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let index = self.link_index(slot as u16)?;
            let receive = self.receive_state(cx, index, &link.receive)?;
            self.tasks.links[index].rx.state = receive;
        }
        self.tasks.announce_withdrawn();
        let mut session = TargetSession {
            tasks: self.tasks,
            functions: self.functions,
            shut: VecDeque::new(),
            violations: Vec::new(),
            logout: None,
            close_at: None,
            cleared: body.cleared.iter().map(|lun| Lun(*lun)).collect(),
            closing: false,
            nexus_end: NexusEndState::No,
            closed: false,
            quiesced: false,
        };
        session.finish_closing(cx.now);
        Ok(session)
    }

    /// A slot that holds a link.
    fn link_index(&self, slot: u16) -> Restored<LinkIndex> {
        let links: &Links<LinkState> = &self.tasks.links;
        let index = links.index_of(LinkNumber(slot)).filter(|index| links[*index].is_open());
        found(index, "a link that is not there")
    }

    fn tag(&self, place: u32) -> Restored<Tag> {
        found(self.tags.get(place as usize).copied(), "a task that is not there")
    }

    fn task(&self, place: u32) -> Restored<&Task> {
        found(self.tasks.table.get(self.tag(place)?), "a task that is not there")
    }

    fn add_task(&mut self, body: &TaskBody) -> Restored<()> {
        let link = self.link_index(body.link)?;
        let kind = match &body.kind {
            KindBody::Scsi(transfer) => TaskKind::Scsi(self.transfer(transfer, &body.state)?),
            KindBody::Function(function) => TaskKind::Tmf(TmfFunction(*function), None),
        };
        let is_scsi = matches!(kind, TaskKind::Scsi(_));
        let mut withdrawn = None;
        let state = match &body.state {
            StateBody::Held => TaskState::Held,
            StateBody::Invalid(code, qualifier) => TaskState::Invalid(AdditionalSense(*code, *qualifier)),
            StateBody::Withdrawn(command) => {
                withdrawn = Some(scsi_command(command)?);
                TaskState::Withdrawn
            }
            StateBody::Sense(code, qualifier) => {
                let how = Termination::Sense(AdditionalSense(*code, *qualifier));
                TaskState::Terminating { how, acked: true }
            }
            StateBody::Answered(answer) => TaskState::Answered(Box::new(restored_answer(answer)?)),
        };
        let fits = match &state {
            TaskState::Held => true,
            TaskState::Answered(answer) => is_scsi != matches!(**answer, Answer::Function(_)),
            _of_commands => is_scsi,
        };
        check(fits, "the state of a task")?;
        if let Some(command) = &withdrawn {
            let same = command.link == LinkNumber::from(link) && command.lun == body.lun;
            check(same && body.counted != body.immediate, "a withdrawn command")?;
        }
        let mut task = Task {
            itt: Itt::new(body.itt),
            lun: Lun(body.lun),
            cmd_sn: Sn::new(body.cmd_sn),
            link,
            immediate: body.immediate,
            kind,
            state,
            read_reserved: 0,
            write_reserved: 0,
            owing: false,
            counted: body.counted,
            answer_stamp: (Time(0), 0),
        };
        task.owing = task.is_data_owed();
        let tag = found(self.tasks.restore_task(task), "too many tasks, or two of one tag")?;
        if let KindBody::Scsi(TransferBody { carried: Some((base, bytes)), .. }) = &body.kind {
            self.tasks.carried.insert(tag, CarriedData::new(*base, bytes.as_slice().into()));
        }
        self.tags.push(tag);
        self.tasks.withdrawn.extend(withdrawn.map(|command| (tag, command)));
        Ok(())
    }

    fn transfer(&self, body: &TransferBody, state: &StateBody) -> Restored<Transfer> {
        let wanted = matches!(state, StateBody::Held | StateBody::Withdrawn(_));
        check(body.r2ts.len() <= R2T_MAX, "R2Ts")?;
        check(body.r2ts.iter().all(|(_, offset, end)| offset < end && *end <= body.edtl), "R2Ts")?;
        check(body.whole <= body.got, "data that came")?;
        if wanted && body.write {
            check(
                body.got <= body.asked && body.asked <= body.edtl && body.unsolicited <= body.asked,
                "data that came",
            )?;
        }
        if let Some((base, bytes)) = &body.carried {
            let end = base.checked_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            check(wanted && body.write && !bytes.is_empty() && end == Some(body.got), "data that came")?;
        } else {
            check(!wanted || body.got == 0, "data that came")?;
        }
        let r2t = |(ttt, offset, end): &(u32, u32, u32)| OutstandingR2t {
            ttt: Ttt::new(*ttt),
            offset: *offset,
            end: *end,
        };
        Ok(Transfer {
            read: body.read,
            write: body.write,
            edtl: body.edtl,
            bidi_read_len: body.bidi_read_len,
            data_sn: body.data_sn,
            sent: body.sent,
            got: body.got,
            whole: body.whole,
            unsolicited: body.unsolicited,
            unsolicited_open: body.unsolicited_open,
            sequence_sn: body.sequence_sn,
            r2ts: body.r2ts.iter().map(r2t).collect(),
            asked: body.asked,
            last_ttt: body.last_ttt.map(Ttt::new),
            places: SmallVec::new(),
            hold: None,
            delivered: false,
        })
    }

    fn restore_window(&mut self, pool: &Pool, body: &WindowBody, counted: u32) -> Restored<()> {
        let mut bytes = 0;
        let mut held = VecDeque::new();
        for place in &body.held {
            held.push_back(match place {
                Some(HeldBody::Other { link, bhs, data }) => {
                    bytes += data.len();
                    check(bytes <= HELD_BYTES_MAX, "requests that came early")?;
                    let (link, bhs) = (self.link_index(*link)?, restored_bhs(bhs)?);
                    Some(HeldRequest::Other { link, bhs, data: pool_copy(pool, data, data.len())?.freeze() })
                }
                Some(HeldBody::Scsi { task, command }) => {
                    Some(HeldRequest::Scsi(self.tag(*task)?, scsi_command(command)?))
                }
                Some(HeldBody::Skipped) => Some(HeldRequest::Skipped),
                None => None,
            });
        }
        let numbers = WindowNumbers {
            exp: Sn::new(body.exp),
            max: Sn::new(body.max),
            told: Sn::new(body.told),
            offered: body.offered,
            limit: body.limit,
            peak: body.peak,
            skips_next: body.skips_next,
            opened: body.opened,
        };
        check(self.tasks.window.restore(numbers, held, counted), "the command window")
    }

    fn restore_functions(&mut self, functions: &[FunctionBody]) -> Restored<()> {
        for body in functions {
            let function = TmfFunction(body.function);
            let task = self.task(body.task)?;
            let same = matches!(&task.kind, TaskKind::Tmf(named, None) if *named == function);
            let waits = matches!(task.state, TaskState::Held) && ends_unnamed_tasks(function);
            check(same && waits && task.lun.0 == body.lun, "a task management function")?;
            let request = TaskManagement { function, lun: body.lun, referenced: None };
            self.functions.push_restored(self.tag(body.task)?, request);
        }
        Ok(())
    }

    /// A command or function whose turn has not come would never end if nothing led to it.
    fn check_all_held_tasks_are_waited_for(&self, body: &SessionBody) -> Restored<()> {
        let mut waiting = HashSet::new();
        for held in body.window.held.iter().flatten() {
            if let HeldBody::Scsi { task, .. } = held {
                let is_held = matches!(
                    (&self.task(*task)?.state, &self.task(*task)?.kind),
                    (TaskState::Held | TaskState::Invalid(_), TaskKind::Scsi(_))
                );
                check(is_held && waiting.insert(*task), "a command that came early")?;
            }
        }
        for function in &body.functions {
            check(waiting.insert(function.task), "a task management function")?;
        }
        let held = |task: &&TaskBody| matches!(task.state, StateBody::Held | StateBody::Invalid(..));
        check(body.tasks.iter().filter(held).count() == waiting.len(), "a command that came early")
    }

    fn fence(&self, body: &FenceBody) -> Restored<FencedResponse> {
        let tag = body.task.map(|task| self.tag(task)).transpose()?;
        if let Some(task) = body.task {
            check(matches!(self.task(task)?.state, TaskState::Answered(_)), "a response in order")?;
        }
        let until = self.now + self.tasks.limits.nop_timeout;
        let state = match &body.state {
            FenceStateBody::Waiting => FenceState::Waiting,
            FenceStateBody::Before(marks) => {
                let marks = marks.iter().map(|(link, sn)| Ok((self.link_index(*link)?, Sn::new(*sn))));
                FenceState::Before(marks.collect::<Restored<_>>()?, until)
            }
            FenceStateBody::After(link, sn) => {
                FenceState::After((self.link_index(*link)?, Sn::new(*sn)), until)
            }
            FenceStateBody::Over => FenceState::Over,
        };
        Ok(FencedResponse::restored(tag, body.lun.map(Lun), state))
    }

    /// Where the stream of a link stands.
    fn receive_state(
        &mut self,
        cx: &mut Cx<'_>,
        index: LinkIndex,
        body: &ReceiveBody,
    ) -> Restored<ReceiveState<SegmentPurpose>> {
        let ReceiveBody::Data { bhs, left, crc, purpose } = body else { return Ok(ReceiveState::Header) };
        let (bhs, left) = (restored_bhs(bhs)?, *left);
        let len = bhs.data_len();
        check(left as usize <= len, "the rest of a PDU")?;
        let segment = match purpose {
            PurposeBody::Skip => SegmentPurpose::Skip,
            PurposeBody::Write { task: None, sequence } => {
                SegmentPurpose::Write { tag: Tag::from_bits(u64::MAX), sequence: *sequence }
            }
            PurposeBody::Write { task: Some(task), sequence } => {
                let (tag, task) = (self.tag(*task)?, self.task(*task)?);
                let is_write = matches!(&task.kind, TaskKind::Scsi(transfer) if transfer.write);
                check(is_write && task.link == index && task.itt == bhs.itt, "the rest of a PDU")?;
                SegmentPurpose::Write { tag, sequence: *sequence }
            }
            PurposeBody::Collect { want, filled } => {
                let want = *want as usize;
                let sound = want <= len && filled.len() <= want && filled.len() <= len - left as usize;
                check(sound, "the rest of a PDU")?;
                let data = if filled.is_empty() { SgMut::new() } else { pool_copy(cx.pool, filled, want)? };
                SegmentPurpose::Collect { data, want, filled: filled.len() }
            }
        };
        let rx = &mut self.tasks.links[index].rx;
        (rx.bhs, rx.crc) = (bhs, Crc32c::from_value(*crc));
        Ok(ReceiveState::Data { left, segment })
    }
}

fn session_params(body: &ParamsBody) -> Restored<SessionParams> {
    const LEN_MAX: u32 = (1 << 24) - 1;
    let params = SessionParams {
        isid: Isid(body.isid),
        tsih: Tsih::new(body.tsih),
        discovery: false,
        max_connections: body.max_connections,
        initial_r2t: body.initial_r2t,
        immediate_data: body.immediate_data,
        max_burst: body.max_burst,
        first_burst: body.first_burst,
        segment_max: body.segment_max,
        max_outstanding_r2t: body.max_outstanding_r2t,
        time2wait: body.time2wait,
        time2retain: body.time2retain,
        protocol_level: body.protocol_level,
        cmd_sn: Sn::new(body.cmd_sn),
    };
    let sound = params.max_connections > 0
        && !params.tsih.is_none()
        && (512..=LEN_MAX).contains(&params.max_burst)
        && params.first_burst <= params.max_burst
        && (512..=LEN_MAX).contains(&params.segment_max);
    check(sound, "the parameters of the session")?;
    Ok(params)
}

/// A link, but for what its stream stands in.
fn link_state(body: &LinkBody, now: Time) -> Restored<LinkState> {
    const LEN_MAX: u32 = (1 << 24) - 1;
    let lengths = [body.peer_mrdsl, body.own_mrdsl];
    check(lengths.iter().all(|len| (512..=LEN_MAX).contains(len)), "the parameters of a link")?;
    let params = LinkParams {
        cid: Cid::new(body.cid),
        header_digest: body.header_digest,
        data_digest: body.data_digest,
        initiator_mrdsl: body.peer_mrdsl,
        target_mrdsl: body.own_mrdsl,
        stat_sn: Sn::new(body.stat_sn),
    };
    let mut link = LinkState::new(&params, &body.unparsed, now);
    link.acked = Sn::new(body.acked);
    check(!link.tx.stat_sn.le(link.acked), "acknowledged responses")?;
    let since = body.pings_awaited.then_some(now);
    link.pings =
        OutstandingPings::restored(body.pings.iter().map(|ttt| Ttt::new(*ttt)), body.pings_forgot, since);
    link.tx.transmit_queue.set_unsent(body.unsent.clone());
    Ok(link)
}

fn restored_bhs(bytes: &[u8]) -> Restored<Bhs> {
    found(Bhs::from_prefix(bytes).filter(|bhs| bhs.bytes().len() == bytes.len()).copied(), "a header")
}

/// Memory of `len` bytes that begins with these.
fn pool_copy(pool: &Pool, bytes: &[u8], len: usize) -> Restored<SgMut> {
    if len == 0 {
        return Ok(SgMut::new());
    }
    let mut memory = pool.take_sg(MemoryClass::Wire, len).ok_or(SessionRestoreError::NoMemory)?;
    memory.copy_from(0, bytes);
    Ok(memory)
}

fn scsi_command(body: &CommandBody) -> Restored<ScsiCommand> {
    let cdb = match <[u8; 16]>::try_from(body.cdb.as_slice()) {
        Ok(short) => Cdb::Short(short),
        Err(_) => {
            check((17..=CDB_LEN_MAX).contains(&body.cdb.len()), "a CDB")?;
            Cdb::Long(body.cdb.as_slice().into())
        }
    };
    Ok(ScsiCommand {
        lun: body.lun,
        cdb,
        attr: TaskAttribute(body.attr),
        priority: body.priority,
        immediate_delivery: body.immediate_delivery,
        read: body.read,
        write: body.write,
        edtl: body.edtl,
        bidi_read_len: body.bidi_read_len,
        link: LinkNumber(body.link),
    })
}

fn restored_answer(body: &AnswerBody) -> Restored<Answer> {
    Ok(match body {
        AnswerBody::Result { status, qualifier, sense, transferred, fence } => {
            check(sense.len() <= 252, "sense data")?;
            Answer::Result(ScsiResult {
                status: ScsiStatus(*status),
                qualifier: *qualifier,
                sense: SenseBytes::from_slice(sense),
                transferred: *transferred,
                fence: *fence,
            })
        }
        AnswerBody::Failure => Answer::Failure,
        AnswerBody::Function(response) => Answer::Function(TmfResponseCode(*response)),
    })
}
