//! Turns requests on bytes into operations on blocks.
//!
//! Local systems access any bytes; a volume reads and writes whole blocks, up to a limit per operation. Each request is
//! split, partial blocks at its edges are read first and written back, and its parts are joined again. Invariants: a
//! request taken by [`Requests::start`] ends exactly once, by [`Requests::poll_ended`]; it has all its memory before
//! anything of it is submitted, so that requests cannot deadlock on memory; and a write with partial blocks shares no
//! block with another write in flight.

mod memory;

use std::collections::VecDeque;
use std::sync::Arc;

use buf::{Payload, Sg, SgMut};
use smallvec::SmallVec;
use volume::{Done, Durability, Epoch, Extent, Io, IoId, Op, Outcome, Span};

use crate::disk::Disk;
use crate::request_error::RequestError;
use crate::statistics::{Counted, Statistics};
pub(crate) use memory::{Parts, read_parts, truncate_parts};
use memory::{fill_edges, inner};

/// Identifies an operation at the disk: slot, generation of the slot, and part of the request. If the disk's limit is
/// one block, a request has a part per block, so the part number has more bits than the slot number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OperationId {
    /// The low 24 bits count.
    generation: u32,
    index: u16,
    /// Below [`PARTS_MAX`].
    part: u32,
}

/// Most parts of a request.
const PARTS_MAX: u32 = 1 << 24;
/// The bits of a generation in an identifier.
const GENERATION: u32 = (1 << 24) - 1;

impl OperationId {
    fn pack(self) -> IoId {
        let generation = u64::from(self.generation & GENERATION);
        IoId(generation << 40 | u64::from(self.index) << 24 | u64::from(self.part % PARTS_MAX))
    }

    fn unpack(id: IoId) -> OperationId {
        OperationId {
            generation: (id.0 >> 40) as u32,
            index: (id.0 >> 24) as u16,
            part: id.0 as u32 % PARTS_MAX,
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
    /// Of a write: memory from [`Requests::memory`] for this very place, its bytes put where
    /// [`Requests::slices`] said.
    pub(crate) data: Parts,
    /// In its place, for writes of whole blocks: memory of others that holds the bytes, and that the disk
    /// may take as it is.
    pub(crate) lent: Sg,
}

impl<T> Request<T> {
    /// A request without payload of its own.
    pub(crate) fn new(token: T, ask: RequestKind, at: u64, len: u64) -> Self {
        Request { token, ask, at, len, data: Parts::new(), lent: Sg::new() }
    }

    /// A write.
    pub(crate) fn write(token: T, stable: bool, at: u64, len: u64, data: Parts) -> Self {
        Request { data, ..Request::new(token, RequestKind::Write { stable }, at, len) }
    }
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Ended<T> {
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
struct Edge {
    lba: u64,
    /// The part of the data that has this block.
    part: usize,
    memory: Payload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Behind writes that share blocks with it.
    Waiting,
    /// Its edges are being read.
    Edges,
    Body,
    /// Its writes are being flushed.
    Stable,
}

#[derive(Debug)]
struct Task<T> {
    token: T,
    ask: RequestKind,
    at: u64,
    len: u64,
    /// The blocks it touches.
    span: Span,
    phase: Phase,
    /// Operations that are at the disk.
    out: u32,
    trouble: Option<RequestError>,
    /// Of each part, its first block and its memory, until it is submitted.
    data: SmallVec<[(u64, SgMut); 1]>,
    lent: Sg,
    edges: SmallVec<[Edge; 2]>,
    /// What came back of each part.
    back: SmallVec<[Payload; 1]>,
    extents: SmallVec<[Extent; 1]>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    task: Option<Task<T>>,
}

/// All requests that a server has taken and not yet answered.
#[derive(Debug)]
pub(crate) struct Requests<T> {
    block: u64,
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
    /// Writes that wait until others have ended, oldest first.
    waiting: VecDeque<u16>,
    /// Writes in flight with partial blocks.
    ragged: usize,
    /// Those that wait are being looked at.
    is_waking: bool,
    ended: VecDeque<Ended<T>>,
    statistics: Arc<Statistics>,
}

impl<T> Requests<T> {
    /// Room for `depth` requests of this disk at a time (at most 65,535).
    pub(crate) fn new(disk: &dyn Disk, depth: u16, statistics: Arc<Statistics>) -> Self {
        let depth = depth.max(1);
        Requests {
            block: u64::from(disk.geometry().logical),
            slots: (0..depth).map(|_| Slot { generation: 0, task: None }).collect(),
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
    pub(crate) fn find(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let tasks = self.slots.iter_mut().filter_map(|slot| slot.task.as_mut());
        tasks.map(|task| &mut task.token).find(|token| is_it(token))
    }

    /// Starts a request, or gives it back if there is no room or no memory for it now.
    pub(crate) fn start(&mut self, disk: &mut dyn Disk, request: Request<T>) -> Result<(), Request<T>> {
        let Some(&index) = self.free.last() else { return Err(request) };
        let judged = self.judge(disk, request.ask, request.at, request.len);
        if let Err(trouble) = judged.and_then(|()| self.check_payload(&request)) {
            self.end_at_once(request, Err(trouble));
            return Ok(());
        }
        let Request { ask, at, len, .. } = request;
        if len == 0 && ask != RequestKind::Flush {
            self.end_at_once(request, Ok(()));
            return Ok(());
        }
        let mut task = Task {
            token: request.token,
            ask,
            at,
            len,
            span: self.span(at, len),
            phase: Phase::Body,
            out: 0,
            trouble: None,
            data: SmallVec::new(),
            lent: Sg::new(),
            edges: SmallVec::new(),
            back: SmallVec::new(),
            extents: SmallVec::new(),
        };
        let ready = match ask {
            RequestKind::Read => self.prepare_read(disk, &mut task),
            RequestKind::Write { .. } if !request.lent.is_empty() => {
                task.lent = request.lent;
                Ok(())
            }
            RequestKind::Write { .. } => self.prepare_write(disk, &mut task, request.data),
            RequestKind::Zero { .. } => self.prepare_zero(disk, &mut task),
            RequestKind::Flush | RequestKind::Unmap { .. } | RequestKind::Prefetch | RequestKind::Extents => {
                Ok(())
            }
        };
        if let Err(data) = ready {
            return Err(Request { token: task.token, ask, at, len, data, lent: Sg::new() });
        }
        self.free.pop();
        let must_wait = ask.is_write() && self.must_wait(&task, self.waiting.len());
        self.slots[usize::from(index)].task = Some(task);
        if must_wait {
            self.task(index).phase = Phase::Waiting;
            self.waiting.push_back(index);
        } else {
            self.begin(disk, index);
        }
        Ok(())
    }

    /// Whether the volume accepts such a request now. A server checks before it allocates memory for a write, and
    /// [`Requests::start`] checks again, since protection and size may change.
    pub(crate) fn judge(
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
            _ if has_parts && len / self.block + 2 > PARTS_MAX.into() => Err(RequestError::Invalid),
            _ if end <= disk.geometry().bytes() => Ok(()),
            RequestKind::Write { .. } | RequestKind::Zero { .. } => Err(RequestError::NoSpace),
            RequestKind::Read | RequestKind::Unmap { .. } | RequestKind::Prefetch | RequestKind::Extents => {
                Err(RequestError::Invalid)
            }
        }
    }

    /// A write without all of its bytes fails: the server allocated none if it expected a refusal, and such a write must
    /// not complete as if it had been done.
    fn check_payload(&self, request: &Request<T>) -> Result<(), RequestError> {
        let &Request { ask, at, len, .. } = request;
        if !matches!(ask, RequestKind::Write { .. }) || len == 0 {
            return Ok(());
        }
        let (span, lent) = (self.span(at, len), request.lent.len() as u64);
        let held: u64 = request.data.iter().map(|part| part.len() as u64).sum();
        let is_whole = match lent {
            0 => held == span.blocks * self.block,
            _ => lent == len && inner(at, at + len, self.block) == Some(span),
        };
        if is_whole { Ok(()) } else { Err(RequestError::Io) }
    }

    fn end_at_once(&mut self, request: Request<T>, result: Result<(), RequestError>) {
        let Request { token, ask, at, len, .. } = request;
        self.count(ask, len, result);
        self.ended.push_back(Ended {
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
    fn must_wait(&self, task: &Task<T>, before: usize) -> bool {
        let ragged = !task.edges.is_empty();
        if before == 0 && self.ragged == 0 && !ragged {
            return false;
        }
        let meets = |other: &Task<T>| {
            other.ask.is_write() && (ragged || !other.edges.is_empty()) && other.span.overlaps(&task.span)
        };
        let at_work = self.slots.iter().filter_map(|slot| slot.task.as_ref());
        at_work.filter(|other| other.phase != Phase::Waiting).any(meets)
            || self
                .waiting
                .iter()
                .take(before)
                .any(|&index| self.slots[usize::from(index)].task.as_ref().is_some_and(meets))
    }

    fn task(&mut self, index: u16) -> &mut Task<T> {
        self.slots[usize::from(index)].task.as_mut().expect("a slot that is named has a task")
    }

    /// Starts the first phase of a task that may run.
    fn begin(&mut self, disk: &mut dyn Disk, index: u16) {
        if self.task(index).edges.is_empty() {
            self.body(disk, index);
            return;
        }
        self.ragged += 1;
        let task = self.task(index);
        task.phase = Phase::Edges;
        let count = task.edges.len();
        for part in 0..count {
            let edge = &mut self.task(index).edges[part];
            let (span, memory) = (Span { lba: edge.lba, blocks: 1 }, std::mem::take(&mut edge.memory));
            self.submit(disk, index, part, Op::Read(span), memory);
        }
    }

    fn submit(&mut self, disk: &mut dyn Disk, index: u16, part: usize, op: Op, payload: Payload) {
        let slot = &mut self.slots[usize::from(index)];
        // What has more parts was refused by `judge`.
        let name = OperationId { generation: slot.generation, index, part: part as u32 };
        slot.task.as_mut().expect("a slot that is named has a task").out += 1;
        disk.submit(Io { id: name.pack(), epoch: Epoch::default(), op, payload });
    }

    /// Starts the main phase: everything that the request is about.
    fn body(&mut self, disk: &mut dyn Disk, index: u16) {
        let block = self.block;
        let part_max = self.part_max(disk) / block;
        let task = self.task(index);
        task.phase = Phase::Body;
        let (ask, span, at, end) = (task.ask, task.span, task.at, task.at + task.len);
        match ask {
            RequestKind::Read => {
                for part in 0..task.back.len() {
                    let lba = span.lba + part as u64 * part_max;
                    let blocks = part_max.min(span.lba + span.blocks - lba);
                    let memory = std::mem::take(&mut self.task(index).back[part]);
                    self.submit(disk, index, part, Op::Read(Span { lba, blocks }), memory);
                }
            }
            RequestKind::Write { stable } => {
                let durability = if stable { Durability::Stable } else { Durability::Cached };
                self.write_data(disk, index, durability);
                self.write_lent(disk, index, durability, part_max);
            }
            RequestKind::Zero { unmap, .. } => {
                self.write_data(disk, index, Durability::Cached);
                if let Some(span) = inner(at, end, block) {
                    self.submit(disk, index, 0, Op::WriteZeroes { span, unmap }, Payload::None);
                }
            }
            RequestKind::Unmap { .. } => {
                if let Some(span) = inner(at, end, block) {
                    self.submit(disk, index, 0, Op::Unmap(vec![span]), Payload::None);
                }
            }
            RequestKind::Flush => self.submit(disk, index, 0, Op::Flush, Payload::None),
            RequestKind::Prefetch => self.submit(disk, index, 0, Op::Prefetch(span), Payload::None),
            RequestKind::Extents => self.submit(disk, index, 0, Op::Extents(span), Payload::None),
        }
        if self.task(index).out == 0 {
            self.next(disk, index);
        }
    }

    fn write_data(&mut self, disk: &mut dyn Disk, index: u16, durability: Durability) {
        let block = self.block;
        for part in 0..self.task(index).data.len() {
            let (lba, data) = &mut self.task(index).data[part];
            let (lba, data) = (*lba, std::mem::take(data));
            let span = Span { lba, blocks: data.len() as u64 / block };
            self.submit(disk, index, part, Op::Write(span, durability), Payload::Out(data.freeze()));
        }
    }

    fn write_lent(&mut self, disk: &mut dyn Disk, index: u16, durability: Durability, part_max: u64) {
        let block = self.block;
        let task = self.task(index);
        let (first, lent) = (task.span.lba, std::mem::take(&mut task.lent));
        let blocks = lent.len() as u64 / block;
        if blocks > 0 && blocks <= part_max {
            let span = Span { lba: first, blocks };
            self.submit(disk, index, 0, Op::Write(span, durability), Payload::Out(lent));
            return;
        }
        for (part, from) in (0..blocks).step_by(part_max as usize).enumerate() {
            let now = part_max.min(blocks - from);
            let bytes = lent.slice((from * block) as usize..((from + now) * block) as usize);
            let span = Span { lba: first + from, blocks: now };
            self.submit(disk, index, part, Op::Write(span, durability), Payload::Out(bytes));
        }
    }

    /// Takes an operation's end.
    pub(crate) fn handle_done(&mut self, disk: &mut dyn Disk, done: Done) {
        let OperationId { generation, index, part } = OperationId::unpack(done.id);
        let part = part as usize;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return };
        if slot.generation & GENERATION != generation {
            return;
        }
        let Some(task) = slot.task.as_mut() else { return };
        // cannot fail: the name is one of this task's operations, and each of them ends once.
        task.out -= 1;
        match done.result {
            Ok(outcome) => match (task.phase, task.ask) {
                // cannot fail: an operation's part is that of the edge, or of the memory, that it was given.
                (Phase::Edges, _) if done.payload.len() as u64 == self.block => {
                    task.edges[part].memory = done.payload;
                }
                // Missing data must not be invented.
                (Phase::Edges, _) => {
                    task.trouble.get_or_insert(RequestError::Io);
                }
                (Phase::Body, RequestKind::Read) => task.back[part] = done.payload,
                (Phase::Body, RequestKind::Extents) => {
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
            self.next(disk, index);
        }
    }

    /// A phase has ended: the next one, or the end.
    fn next(&mut self, disk: &mut dyn Disk, index: u16) {
        let block = self.block;
        let task = self.task(index);
        if task.trouble.is_none() {
            match (task.phase, task.ask) {
                (Phase::Edges, _) => {
                    fill_edges(task, block);
                    self.body(disk, index);
                    return;
                }
                (
                    Phase::Body,
                    RequestKind::Zero { stable: true, .. } | RequestKind::Unmap { stable: true },
                ) => {
                    task.phase = Phase::Stable;
                    self.submit(disk, index, 0, Op::Flush, Payload::None);
                    return;
                }
                (Phase::Waiting | Phase::Body | Phase::Stable, _) => {}
            }
        }
        self.end(index);
        self.wake_waiting(disk);
    }

    fn end(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        let mut task = slot.task.take().expect("a task ends once");
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        if !task.edges.is_empty() && task.phase != Phase::Waiting {
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
        self.count(task.ask, task.len, result);
        self.ended.push_back(Ended {
            token: task.token,
            ask: task.ask,
            at: task.at,
            len: task.len,
            result,
            data,
            extents: task.extents,
        });
    }

    fn wake_waiting(&mut self, disk: &mut dyn Disk) {
        // What begins here may end at once: then this goes on, and not one call deeper for each.
        if std::mem::replace(&mut self.is_waking, true) {
            return;
        }
        let mut at = 0;
        while at < self.waiting.len() {
            let index = self.waiting[at];
            let task = self.slots[usize::from(index)].task.as_ref();
            if task.is_some_and(|task| self.must_wait(task, at)) {
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.begin(disk, index);
            // What began may have ended at once, and others with it.
            at = 0;
        }
        self.is_waking = false;
    }

    fn count(&self, ask: RequestKind, len: u64, result: Result<(), RequestError>) {
        self.statistics.count(match (result, ask) {
            (Err(_), _) => Counted::Failure,
            (Ok(()), RequestKind::Read) => Counted::Read(len),
            (Ok(()), RequestKind::Write { .. }) => Counted::Written(len),
            (Ok(()), RequestKind::Flush) => Counted::Flush,
            (Ok(()), RequestKind::Zero { .. } | RequestKind::Unmap { .. }) => Counted::Discard,
            (Ok(()), RequestKind::Prefetch | RequestKind::Extents) => Counted::Other,
        });
    }

    /// Whether there is one that [`Requests::poll_ended`] would give.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// A request that has ended.
    pub(crate) fn poll_ended(&mut self) -> Option<Ended<T>> {
        self.ended.pop_front()
    }

    /// Ends all requests: the disk is gone.
    pub(crate) fn give_up(&mut self) {
        self.waiting.clear();
        for index in 0..self.slots.len() {
            if let Some(task) = &mut self.slots[index].task {
                task.trouble = Some(RequestError::Gone);
                self.end(index as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests;
