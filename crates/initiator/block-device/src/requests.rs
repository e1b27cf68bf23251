//! Turns requests on bytes into operations on blocks.
//!
//! Local systems access any bytes; a volume reads and writes whole blocks, up to a limit per operation. Each request is
//! split, partial blocks at its edges are read first and written back, and its parts are joined again. Invariants: a
//! request taken by [`RequestTable::submit_request`] ends exactly once, by [`RequestTable::poll_ended`]; it has all its memory before
//! anything of it is submitted, so that requests cannot deadlock on memory; and a write with partial blocks shares no
//! block with another write in flight.

mod memory;

use std::collections::VecDeque;
use std::sync::Arc;

use buf::{Payload, Sg, SgMut};
use smallvec::SmallVec;
use volume::{Durability, Epoch, Extent, Io, IoCompletion, IoId, Op, Outcome, Span};

use crate::disk::Disk;
use crate::request_error::RequestError;
use crate::statistics::{CountedRequest, Statistics};
pub(crate) use memory::{WriteMemory, copy_from_parts, truncate_parts};
use memory::{merge_edges, whole_blocks_between};

/// Identifies an operation at the disk: slot, generation of the slot, and part of the request. If the disk's limit is
/// one block, a request has a part per block, so the part number has more bits than the slot number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OperationId {
    /// The low 24 bits count.
    generation: u32,
    index: u16,
    /// Below [`PARTS_PER_REQUEST_MAX`].
    part: u32,
}

/// Most parts of a request.
const PARTS_PER_REQUEST_MAX: u32 = 1 << 24;
/// The bits of a generation in an identifier.
const GENERATION_MASK: u32 = (1 << 24) - 1;

impl OperationId {
    fn to_io_id(self) -> IoId {
        let generation = u64::from(self.generation & GENERATION_MASK);
        IoId(generation << 40 | u64::from(self.index) << 24 | u64::from(self.part % PARTS_PER_REQUEST_MAX))
    }

    fn from_io_id(id: IoId) -> OperationId {
        OperationId {
            generation: (id.0 >> 40) as u32,
            index: (id.0 >> 24) as u16,
            part: id.0 as u32 % PARTS_PER_REQUEST_MAX,
        }
    }
}

/// The kind of a request. Positions and lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Read,
    Write { stable: bool },
    Flush,
    Zero { unmap: bool, stable: bool },
    Unmap { stable: bool },
    Prefetch,
    Extents,
}

impl RequestKind {
    fn is_write(self) -> bool {
        matches!(self, RequestKind::Write { .. } | RequestKind::Zero { .. } | RequestKind::Unmap { .. })
    }
}

/// A request; `token` is the server's identifier for it.
#[derive(Debug)]
pub(crate) struct Request<T> {
    pub(crate) token: T,
    pub(crate) ask: RequestKind,
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Of a write: memory from [`RequestTable::memory`] for this very place, its bytes put where
    /// [`RequestTable::slices`] said.
    pub(crate) data: WriteMemory,
    /// In its place, for writes of whole blocks: memory of others that holds the bytes, and that the disk
    /// may take as it is.
    pub(crate) lent: Sg,
}

impl<T> Request<T> {
    /// A request without payload of its own.
    pub(crate) fn new(token: T, ask: RequestKind, at: u64, len: u64) -> Self {
        Request { token, ask, at, len, data: WriteMemory::new(), lent: Sg::new() }
    }

    /// A write.
    pub(crate) fn write(token: T, stable: bool, at: u64, len: u64, data: WriteMemory) -> Self {
        Request { data, ..Request::new(token, RequestKind::Write { stable }, at, len) }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct EndedRequest<T> {
    pub(crate) token: T,
    pub(crate) ask: RequestKind,
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) result: Result<(), RequestError>,
    /// What was read.
    pub(crate) data: Sg,
    /// What was found, from `at` on, in bytes: length and whether it is mapped.
    pub(crate) extents: SmallVec<[Extent; 1]>,
}

/// One end of a span that the request covers in part only.
#[derive(Debug)]
struct EdgeBlock {
    lba: u64,
    /// The part of the data that has this block.
    part: usize,
    memory: Payload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskPhase {
    /// Behind writes that share blocks with it.
    Waiting,
    /// Its edges are being read.
    Edges,
    Body,
    /// Its writes are being flushed.
    Stable,
}

#[derive(Debug)]
struct RequestTask<T> {
    token: T,
    ask: RequestKind,
    at: u64,
    len: u64,
    /// The blocks it touches.
    span: Span,
    phase: TaskPhase,
    /// Operations that are at the disk.
    out: u32,
    trouble: Option<RequestError>,
    /// Of each part, its first block and its memory, until it is submitted.
    data: SmallVec<[(u64, SgMut); 1]>,
    lent: Sg,
    edges: SmallVec<[EdgeBlock; 2]>,
    /// What came back of each part.
    back: SmallVec<[Payload; 1]>,
    extents: SmallVec<[Extent; 1]>,
}

#[derive(Debug)]
struct TaskSlot<T> {
    generation: u32,
    task: Option<RequestTask<T>>,
}

/// All requests that a server has taken and not yet answered.
#[derive(Debug)]
pub(crate) struct RequestTable<T> {
    block: u64,
    slots: Vec<TaskSlot<T>>,
    free: Vec<u16>,
    /// Writes that wait until others have ended, oldest first.
    waiting: VecDeque<u16>,
    /// Writes in flight with partial blocks.
    ragged: usize,
    /// Those that wait are being looked at.
    is_waking: bool,
    ended: VecDeque<EndedRequest<T>>,
    statistics: Arc<Statistics>,
}

impl<T> RequestTable<T> {
    /// Room for `depth` requests of this disk at a time (at most 65,535).
    pub(crate) fn new(disk: &dyn Disk, depth: u16, statistics: Arc<Statistics>) -> Self {
        let depth = depth.max(1);
        RequestTable {
            block: u64::from(disk.geometry().logical),
            slots: (0..depth).map(|_| TaskSlot { generation: 0, task: None }).collect(),
            free: (0..depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth.into()),
            ragged: 0,
            is_waking: false,
            ended: VecDeque::with_capacity(depth.into()),
            statistics,
        }
    }

    /// Requests that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether another request would find room.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The server's name of a request that has not ended.
    pub(crate) fn find_token(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let tasks = self.slots.iter_mut().filter_map(|slot| slot.task.as_mut());
        tasks.map(|task| &mut task.token).find(|token| is_it(token))
    }

    /// Starts a request, or gives it back if there is no room or no memory for it now.
    pub(crate) fn submit_request(
        &mut self,
        disk: &mut dyn Disk,
        request: Request<T>,
    ) -> Result<(), Request<T>> {
        let Some(&index) = self.free.last() else { return Err(request) };
        let judged = self.check_request(disk, request.ask, request.at, request.len);
        if let Err(trouble) = judged.and_then(|()| self.check_write_payload(&request)) {
            self.end_without_task(request, Err(trouble));
            return Ok(());
        }
        let Request { ask, at, len, .. } = request;
        if len == 0 && ask != RequestKind::Flush {
            self.end_without_task(request, Ok(()));
            return Ok(());
        }
        let mut task = RequestTask {
            token: request.token,
            ask,
            at,
            len,
            span: self.block_span(at, len),
            phase: TaskPhase::Body,
            out: 0,
            trouble: None,
            data: SmallVec::new(),
            lent: Sg::new(),
            edges: SmallVec::new(),
            back: SmallVec::new(),
            extents: SmallVec::new(),
        };
        let ready = match ask {
            RequestKind::Read => self.alloc_for_read(disk, &mut task),
            RequestKind::Write { .. } if !request.lent.is_empty() => {
                task.lent = request.lent;
                Ok(())
            }
            RequestKind::Write { .. } => self.alloc_for_write(disk, &mut task, request.data),
            RequestKind::Zero { .. } => self.alloc_for_zero(disk, &mut task),
            RequestKind::Flush | RequestKind::Unmap { .. } | RequestKind::Prefetch | RequestKind::Extents => {
                Ok(())
            }
        };
        if let Err(data) = ready {
            return Err(Request { token: task.token, ask, at, len, data, lent: Sg::new() });
        }
        self.free.pop();
        let must_wait = ask.is_write() && self.must_wait_for_overlap(&task, self.waiting.len());
        self.slots[usize::from(index)].task = Some(task);
        if must_wait {
            self.task_mut(index).phase = TaskPhase::Waiting;
            self.waiting.push_back(index);
        } else {
            self.start_task(disk, index);
        }
        Ok(())
    }

    /// Whether the volume accepts such a request now. A server checks before it allocates memory for a write, and
    /// [`RequestTable::submit_request`] checks again, since protection and size may change.
    pub(crate) fn check_request(
        &self,
        disk: &dyn Disk,
        ask: RequestKind,
        at: u64,
        len: u64,
    ) -> Result<(), RequestError> {
        let end = at.checked_add(len).ok_or(RequestError::Invalid)?;
        if ask.is_write() && disk.is_read_only() {
            return Err(RequestError::ReadOnly);
        }
        let has_parts = matches!(ask, RequestKind::Read | RequestKind::Write { .. });
        match ask {
            RequestKind::Flush => Ok(()),
            // Of one more part than blocks, where both ends are ragged.
            _ if has_parts && len / self.block + 2 > PARTS_PER_REQUEST_MAX.into() => {
                Err(RequestError::Invalid)
            }
            _ if end <= disk.geometry().capacity_bytes() => Ok(()),
            RequestKind::Write { .. } | RequestKind::Zero { .. } => Err(RequestError::NoSpace),
            RequestKind::Read | RequestKind::Unmap { .. } | RequestKind::Prefetch | RequestKind::Extents => {
                Err(RequestError::Invalid)
            }
        }
    }

    /// A write without all of its bytes fails: the server allocated none if it expected a refusal, and such a write must
    /// not complete as if it had been done.
    fn check_write_payload(&self, request: &Request<T>) -> Result<(), RequestError> {
        let &Request { ask, at, len, .. } = request;
        if !matches!(ask, RequestKind::Write { .. }) || len == 0 {
            return Ok(());
        }
        let (span, lent) = (self.block_span(at, len), request.lent.len() as u64);
        let held: u64 = request.data.iter().map(|part| part.len() as u64).sum();
        let is_whole = match lent {
            0 => held == span.blocks * self.block,
            _ => lent == len && whole_blocks_between(at, at + len, self.block) == Some(span),
        };
        if is_whole { Ok(()) } else { Err(RequestError::Io) }
    }

    fn end_without_task(&mut self, request: Request<T>, result: Result<(), RequestError>) {
        let Request { token, ask, at, len, .. } = request;
        self.count_statistics(ask, len, result);
        self.ended.push_back(EndedRequest {
            token,
            ask,
            at,
            len,
            result,
            data: Sg::new(),
            extents: SmallVec::new(),
        });
    }

    /// Whether a write must stay behind others: those at work, and the first `before` that wait.
    fn must_wait_for_overlap(&self, task: &RequestTask<T>, before: usize) -> bool {
        let ragged = !task.edges.is_empty();
        if before == 0 && self.ragged == 0 && !ragged {
            return false;
        }
        let meets = |other: &RequestTask<T>| {
            other.ask.is_write() && (ragged || !other.edges.is_empty()) && other.span.overlaps(&task.span)
        };
        let at_work = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        at_work.filter(|other| other.phase != TaskPhase::Waiting).any(meets)
            || self
                .waiting
                .iter()
                .take(before)
                .any(|&index| self.slots[usize::from(index)].task.as_ref().is_some_and(meets))
    }

    fn task_mut(&mut self, index: u16) -> &mut RequestTask<T> {
        self.slots[usize::from(index)].task.as_mut().expect("a slot that is named has a task")
    }

    /// Starts the first phase of a task that may run.
    fn start_task(&mut self, disk: &mut dyn Disk, index: u16) {
        if self.task_mut(index).edges.is_empty() {
            self.start_body_phase(disk, index);
            return;
        }
        self.ragged += 1;
        let task = self.task_mut(index);
        task.phase = TaskPhase::Edges;
        let count = task.edges.len();
        for part in 0..count {
            let edge = &mut self.task_mut(index).edges[part];
            let (span, memory) = (Span { lba: edge.lba, blocks: 1 }, std::mem::take(&mut edge.memory));
            self.submit_part(disk, index, part, Op::Read(span), memory);
        }
    }

    fn submit_part(&mut self, disk: &mut dyn Disk, index: u16, part: usize, op: Op, payload: Payload) {
        let slot = &mut self.slots[usize::from(index)];
        // What has more parts was refused by `check_request`.
        let name = OperationId { generation: slot.generation, index, part: part as u32 };
        slot.task.as_mut().expect("a slot that is named has a task").out += 1;
        disk.submit(Io { id: name.to_io_id(), epoch: Epoch::default(), op, payload });
    }

    /// Starts the main phase: everything that the request is about.
    fn start_body_phase(&mut self, disk: &mut dyn Disk, index: u16) {
        let block = self.block;
        let part_max = self.part_len_max(disk) / block;
        let task = self.task_mut(index);
        task.phase = TaskPhase::Body;
        let (ask, span, at, end) = (task.ask, task.span, task.at, task.at + task.len);
        match ask {
            RequestKind::Read => {
                for part in 0..task.back.len() {
                    let lba = span.lba + part as u64 * part_max;
                    let blocks = part_max.min(span.lba + span.blocks - lba);
                    let memory = std::mem::take(&mut self.task_mut(index).back[part]);
                    self.submit_part(disk, index, part, Op::Read(Span { lba, blocks }), memory);
                }
            }
            RequestKind::Write { stable } => {
                let durability = if stable { Durability::Stable } else { Durability::Cached };
                self.submit_data_writes(disk, index, durability);
                self.submit_lent_writes(disk, index, durability, part_max);
            }
            RequestKind::Zero { unmap, .. } => {
                self.submit_data_writes(disk, index, Durability::Cached);
                if let Some(span) = whole_blocks_between(at, end, block) {
                    self.submit_part(disk, index, 0, Op::WriteZeroes { span, unmap }, Payload::None);
                }
            }
            RequestKind::Unmap { .. } => {
                if let Some(span) = whole_blocks_between(at, end, block) {
                    self.submit_part(disk, index, 0, Op::Unmap(vec![span]), Payload::None);
                }
            }
            RequestKind::Flush => self.submit_part(disk, index, 0, Op::Flush, Payload::None),
            RequestKind::Prefetch => self.submit_part(disk, index, 0, Op::Prefetch(span), Payload::None),
            RequestKind::Extents => self.submit_part(disk, index, 0, Op::Extents(span), Payload::None),
        }
        if self.task_mut(index).out == 0 {
            self.start_next_phase(disk, index);
        }
    }

    fn submit_data_writes(&mut self, disk: &mut dyn Disk, index: u16, durability: Durability) {
        let block = self.block;
        for part in 0..self.task_mut(index).data.len() {
            let (lba, data) = &mut self.task_mut(index).data[part];
            let (lba, data) = (*lba, std::mem::take(data));
            let span = Span { lba, blocks: data.len() as u64 / block };
            self.submit_part(disk, index, part, Op::Write(span, durability), Payload::Out(data.freeze()));
        }
    }

    fn submit_lent_writes(&mut self, disk: &mut dyn Disk, index: u16, durability: Durability, part_max: u64) {
        let block = self.block;
        let task = self.task_mut(index);
        let (first, lent) = (task.span.lba, std::mem::take(&mut task.lent));
        let blocks = lent.len() as u64 / block;
        if blocks > 0 && blocks <= part_max {
            let span = Span { lba: first, blocks };
            self.submit_part(disk, index, 0, Op::Write(span, durability), Payload::Out(lent));
            return;
        }
        for (part, from) in (0..blocks).step_by(part_max as usize).enumerate() {
            let now = part_max.min(blocks - from);
            let bytes = lent.slice((from * block) as usize..((from + now) * block) as usize);
            let span = Span { lba: first + from, blocks: now };
            self.submit_part(disk, index, part, Op::Write(span, durability), Payload::Out(bytes));
        }
    }

    /// Takes an operation's end.
    pub(crate) fn handle_done(&mut self, disk: &mut dyn Disk, done: IoCompletion) {
        let OperationId { generation, index, part } = OperationId::from_io_id(done.id);
        let part = part as usize;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        if slot.generation & GENERATION_MASK != generation {
            return;
        }
        let Some(task) = slot.task.as_mut() else { return };
        // cannot fail: the name is one of this task's operations, and each of them ends once.
        task.out -= 1;
        match done.result {
            Ok(outcome) => match (task.phase, task.ask) {
                // cannot fail: an operation's part is that of the edge, or of the memory, that it was given.
                (TaskPhase::Edges, _) if done.payload.len() as u64 == self.block => {
                    task.edges[part].memory = done.payload;
                }
                // Missing data must not be invented.
                (TaskPhase::Edges, _) => {
                    task.trouble.get_or_insert(RequestError::Io);
                }
                (TaskPhase::Body, RequestKind::Read) => task.back[part] = done.payload,
                (TaskPhase::Body, RequestKind::Extents) => {
                    if let Outcome::Extents(extents) = outcome {
                        task.extents.extend(extents);
                    }
                }
                _ => {}
            },
            Err(failure) => {
                task.trouble.get_or_insert(failure.into());
            }
        }
        if task.out == 0 {
            self.start_next_phase(disk, index);
        }
    }

    /// A phase has ended: the next one, or the end.
    fn start_next_phase(&mut self, disk: &mut dyn Disk, index: u16) {
        let block = self.block;
        let task = self.task_mut(index);
        if task.trouble.is_none() {
            match (task.phase, task.ask) {
                (TaskPhase::Edges, _) => {
                    merge_edges(task, block);
                    self.start_body_phase(disk, index);
                    return;
                }
                (
                    TaskPhase::Body,
                    RequestKind::Zero { stable: true, .. } | RequestKind::Unmap { stable: true },
                ) => {
                    task.phase = TaskPhase::Stable;
                    self.submit_part(disk, index, 0, Op::Flush, Payload::None);
                    return;
                }
                (TaskPhase::Waiting | TaskPhase::Body | TaskPhase::Stable, _) => {}
            }
        }
        self.finish_task(index);
        self.start_unblocked_writes(disk);
    }

    fn finish_task(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        let mut task = slot.task.take().expect("a task ends once");
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        if !task.edges.is_empty() && task.phase != TaskPhase::Waiting {
            self.ragged -= 1;
        }
        let mut result = task.trouble.map_or(Ok(()), Err);
        let mut data = Sg::new();
        if task.ask == RequestKind::Read && result.is_ok() {
            for payload in task.back.drain(..) {
                data.append(payload.into_sg());
            }
            let skip = (task.at % self.block) as usize;
            if data.len() as u64 != task.span.blocks * self.block {
                (data, result) = (Sg::new(), Err(RequestError::Io));
            } else if skip > 0 || data.len() as u64 != task.len {
                // cannot fail: the request lies within the blocks that it touches, and they are all here.
                data = data.slice(skip..skip + task.len as usize);
            }
        }
        self.count_statistics(task.ask, task.len, result);
        self.ended.push_back(EndedRequest {
            token: task.token,
            ask: task.ask,
            at: task.at,
            len: task.len,
            result,
            data,
            extents: task.extents,
        });
    }

    fn start_unblocked_writes(&mut self, disk: &mut dyn Disk) {
        // What begins here may end at once: then this goes on, and not one call deeper for each.
        if std::mem::replace(&mut self.is_waking, true) {
            return;
        }
        let mut at = 0;
        while at < self.waiting.len() {
            let index = self.waiting[at];
            let task = self.slots[usize::from(index)].task.as_ref();
            if task.is_some_and(|task| self.must_wait_for_overlap(task, at)) {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.start_task(disk, index);
            // What began may have ended at once, and others with it.
            at = 0;
        }
        self.is_waking = false;
    }

    fn count_statistics(&self, ask: RequestKind, len: u64, result: Result<(), RequestError>) {
        self.statistics.count_request(match (result, ask) {
            (Err(_), _) => CountedRequest::Failure,
            (Ok(()), RequestKind::Read) => CountedRequest::Read(len),
            (Ok(()), RequestKind::Write { .. }) => CountedRequest::Written(len),
            (Ok(()), RequestKind::Flush) => CountedRequest::Flush,
            (Ok(()), RequestKind::Zero { .. } | RequestKind::Unmap { .. }) => CountedRequest::Discard,
            (Ok(()), RequestKind::Prefetch | RequestKind::Extents) => CountedRequest::Other,
        });
    }

    /// Whether there is one that [`RequestTable::poll_ended`] would give.
    pub(crate) fn has_ended_requests(&self) -> bool {
        !self.ended.is_empty()
    }

    /// A request that has ended.
    pub(crate) fn poll_ended(&mut self) -> Option<EndedRequest<T>> {
        self.ended.pop_front()
    }

    /// Ends all requests: the disk is gone.
    pub(crate) fn fail_all(&mut self) {
        self.waiting.clear();
        for index in 0..self.slots.len() {
            if let Some(task) = &mut self.slots[index].task {
                task.trouble = Some(RequestError::Gone);
                self.finish_task(index as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests;
