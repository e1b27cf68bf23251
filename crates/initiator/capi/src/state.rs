//! Volumes of one thread, and the operations in flight that a C program has on them.
//!
//! An operation is cut into commands within the volume's limit; each lends its part of the caller's buffer to
//! the shard. Invariant: for the caller an operation is over when all of its commands have ended and neither
//! the shard nor the kernel can touch its buffer any more.
//!
//! Bounds: per volume as many commands as its terms allow (1,024), so as many operations; state per operation
//! and per command is reused.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use buf::{Lender, Payload, Sg, SgMut};
use client::{Durability, Failure, Fault, Handle, Initiator, Io, IoId, Op, Span, VolumeEvent};
use volume::Epoch;

use crate::abi::{self, Completion};
use crate::pieces::{Piece, each_piece};
use crate::status::{Status, of_failure, said, usage};
use crate::table::Table;

/// Commands of one operation in flight.
const AHEAD: u32 = 16;
/// Longest command without payload, in blocks: what one command of either protocol can say.
const BLOCKS_MAX: u64 = 1 << 31;

/// What a caller's handle points to.
#[derive(Debug)]
pub struct Volume {
    pub(crate) state: *mut Context,
    pub(crate) handle: Handle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenState {
    Opening,
    Open,
    Failed,
}

pub(crate) struct OpenVolume {
    pub(crate) handle: Handle,
    pub(crate) open_state: OpenState,
    pub(crate) urls: String,
    /// When it was begun; its paths have said that it is open.
    begun: Instant,
    is_open: bool,
    /// Why it is not open, if its paths do not say it.
    pub(crate) why: Option<client::Error>,
    /// The caller's; made from a box.
    at: NonNull<Volume>,
}

/// What an operation does with each of its commands.
#[derive(Clone, Copy)]
pub(crate) enum OpKind {
    Read(NonNull<u8>),
    Write(NonNull<u8>, Durability),
    Flush,
    Discard,
    Zero { unmap: bool },
}

/// Who waits for the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A completion is to be polled.
    Poll(*mut c_void),
    /// A call that waits.
    Call,
}

struct Task {
    volume: Handle,
    waiter: Waiter,
    kind: OpKind,
    /// Its memory, where that is not one piece.
    pieces: Option<Box<[Piece]>>,
    /// In bytes from the operation's begin: what was not made commands yet, up to the end.
    next: u64,
    end: u64,
    offset: u64,
    /// Bytes of a command, at most, and of a block.
    each: u64,
    block: u64,
    /// Commands that have not ended, and loans that are not over.
    out: u32,
    failure: Option<Failure>,
    /// Distinguishes those that had this place.
    turn: u32,
}

#[derive(Clone, Copy)]
struct Command {
    task: u32,
    turn: u32,
    ended: bool,
    /// Loans that are not over.
    lent: u32,
}

/// What the handle of an initiator points to.
pub struct Context {
    pub(crate) initiator: Initiator,
    pub(crate) thread: u64,
    lender: Lender,
    pub(crate) volumes: Vec<OpenVolume>,
    tasks: Table<Task>,
    commands: Table<Command>,
    /// Loans that are over and that nobody has been told of.
    loans_over: VecDeque<u64>,
    /// Tasks that wait for room on their volume.
    stalled: VecDeque<u32>,
    completed: VecDeque<Completion>,
    /// Calls' operations that ended.
    returned: Vec<(u64, Option<Failure>)>,
    in_flight: u32,
    turns: u32,
    /// Something was submitted that no turn has carried away.
    unsent: bool,
}

impl Context {
    pub(crate) fn new(initiator: Initiator, thread: u64) -> Self {
        Context {
            initiator,
            thread,
            lender: Lender::new(),
            volumes: Vec::new(),
            tasks: Table::new(),
            commands: Table::new(),
            loans_over: VecDeque::new(),
            stalled: VecDeque::new(),
            completed: VecDeque::new(),
            returned: Vec::new(),
            in_flight: 0,
            turns: 0,
            unsent: false,
        }
    }

    pub(crate) fn opened(&self, handle: Handle) -> Option<&OpenVolume> {
        self.volumes.iter().find(|opened| opened.handle == handle)
    }

    /// Keeps a volume, and makes the caller's handle of it.
    pub(crate) fn keep(&mut self, handle: Handle, open_state: OpenState, urls: &str) -> NonNull<Volume> {
        let at = NonNull::from(Box::leak(Box::new(Volume { state: self, handle })));
        let (begun, urls) = (Instant::now(), urls.to_owned());
        self.volumes.push(OpenVolume { handle, open_state, urls, begun, is_open: false, why: None, at });
        at
    }

    /// Starts an operation; its name.
    pub(crate) fn start(
        &mut self,
        volume: Handle,
        kind: OpKind,
        pieces: Option<Box<[Piece]>>,
        offset: u64,
        len: u64,
        waiter: Waiter,
    ) -> Result<u64, Status> {
        let (block, each) = self.judge(volume, kind, offset, len)?;
        self.turns = self.turns.wrapping_add(1);
        let task = Task {
            volume,
            waiter,
            kind,
            pieces,
            next: 0,
            end: len,
            offset,
            each,
            block,
            out: 0,
            failure: None,
            turn: self.turns,
        };
        let id = u64::from(task.turn) << 32;
        let at = self.tasks.insert(task);
        let id = id | u64::from(at);
        self.advance(at);
        if self.tasks.get(at).is_none_or(|task| task.out == 0) {
            self.stalled.retain(|stalled| *stalled != at);
            self.tasks.remove(at);
            return Err(said(
                Status::AGAIN,
                "the maximum number of operations is in flight: poll, then submit again",
            ));
        }
        self.in_flight += u32::from(matches!(waiter, Waiter::Poll(_)));
        Ok(id)
    }

    /// Whether an operation makes sense; the bytes of a block and of the longest command.
    fn judge(&self, volume: Handle, kind: OpKind, offset: u64, len: u64) -> Result<(u64, u64), Status> {
        if self.opened(volume).is_none_or(|opened| opened.open_state != OpenState::Open) {
            return Err(usage("the volume is not open: wait until bw_state() says so"));
        }
        let geometry = self.initiator.geometry(volume).ok_or_else(|| usage("there is no such volume"))?;
        let block = u64::from(geometry.logical);
        if let OpKind::Flush = kind {
            return if offset == 0 && len == 0 { Ok((block, 1)) } else { Err(usage("a flush has no range")) };
        }
        if len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(usage(&format!(
                "offset {offset} and length {len} must be multiples of the volume's blocks of {block} bytes, and \
                 the length not 0"
            )));
        }
        if offset.checked_add(len).is_none_or(|end| end > geometry.bytes()) {
            return Err(usage(&format!(
                "{len} bytes at {offset} go beyond the volume's {} bytes",
                geometry.bytes()
            )));
        }
        let each = match kind {
            OpKind::Read(_) | OpKind::Write(..) => u64::from(geometry.max_io) / block * block,
            OpKind::Flush | OpKind::Discard | OpKind::Zero { .. } => BLOCKS_MAX * block,
        };
        Ok((block, each.max(block)))
    }

    /// Submits as many of a task's commands as there is room for.
    fn advance(&mut self, at: u32) {
        loop {
            let Some(task) = self.tasks.get_mut(at) else { return };
            let is_flush = matches!(task.kind, OpKind::Flush);
            let more = if is_flush { task.next == 0 } else { task.next < task.end && task.failure.is_none() };
            if !more || task.out >= AHEAD {
                return;
            }
            let begin = task.next;
            let len = if is_flush { 0 } else { task.each.min(task.end - begin) };
            task.next = if is_flush { 1 } else { begin + len };
            task.out += 1;
            let (volume, kind, turn) = (task.volume, task.kind, task.turn);
            let span = Span { lba: (task.offset + begin) / task.block, blocks: len / task.block };
            let command = Command { task: at, turn, ended: false, lent: 0 };
            let number = self.commands.insert(command);
            let id = IoId(u64::from(turn) << 32 | u64::from(number));
            let (op, payload, loans) = self.lend(at, kind, span, begin as usize, len as usize, id);
            match self.initiator.submit(volume, Io { id, epoch: Epoch(0), op, payload }) {
                Ok(()) => {
                    if let Some(command) = self.commands.get_mut(number) {
                        command.lent = loans;
                    }
                    self.unsent = true;
                }
                Err(back) => {
                    // The loan ends with it; that is not told to the task, which takes the step back.
                    drop(back);
                    self.commands.remove(number);
                    if let Some(task) = self.tasks.get_mut(at) {
                        (task.next, task.out) = (begin, task.out - 1);
                    }
                    // No loan of this command may be left that another with its name would be told of. Those of
                    // others wait: what they let go on must not come here again before this is done.
                    while let Some(token) = self.lender.poll_returned() {
                        if token != id.0 {
                            self.loans_over.push_back(token);
                        }
                    }
                    if !self.stalled.contains(&at) {
                        self.stalled.push_back(at);
                    }
                    return;
                }
            }
        }
    }

    /// An operation's command with its part of the caller's memory, and how many loans that makes.
    fn lend(
        &self,
        task: u32,
        kind: OpKind,
        span: Span,
        begin: usize,
        len: usize,
        id: IoId,
    ) -> (Op, Payload, u32) {
        let pieces = self.tasks.get(task).and_then(|task| task.pieces.as_deref());
        match kind {
            OpKind::Read(data) => {
                let (mut memory, mut loans) = (SgMut::new(), 0);
                each_piece(pieces, data, begin, len, |at, len| {
                    // SAFETY: the header has the caller leave these bytes alone until the operation
                    // completes, which it does only when all loans are over (see `end_if_over`).
                    memory.append(SgMut::from(unsafe { self.lender.lend(at, len, id.0) }));
                    loans += 1;
                });
                (Op::Read(span), Payload::In(memory), loans)
            }
            OpKind::Write(data, durability) => {
                let (mut memory, mut loans) = (Sg::new(), 0);
                each_piece(pieces, data, begin, len, |at, len| {
                    // SAFETY: as above, and the header forbids to change them.
                    memory.append(Sg::from(unsafe { self.lender.lend_to_read(at, len, true, id.0) }));
                    loans += 1;
                });
                (Op::Write(span, durability), Payload::Out(memory), loans)
            }
            OpKind::Flush => (Op::Flush, Payload::None, 0),
            OpKind::Discard => (Op::Unmap(vec![span]), Payload::None, 0),
            OpKind::Zero { unmap } => (Op::WriteZeroes { span, unmap }, Payload::None, 0),
        }
    }

    /// Takes what has ended, of every volume.
    pub(crate) fn gather(&mut self) {
        for at in 0..self.volumes.len() {
            let Some(&OpenVolume { handle, open_state, .. }) = self.volumes.get(at) else { break };
            while let Some(done) = self.initiator.poll_done(handle) {
                let failure = done.result.as_ref().err().copied();
                // The loan ends here, unless the kernel still has it.
                drop(done.payload);
                self.command_ended(done.id.0, failure);
            }
            if open_state == OpenState::Opening {
                self.look_whether_open(at);
            }
        }
        self.take_returned();
        for _ in 0..self.stalled.len() {
            if let Some(task) = self.stalled.pop_front() {
                self.advance(task);
                self.end_if_over(task);
            }
        }
    }

    /// A volume is open when it can be used, as for who waits for it; and not for ever about to be.
    fn look_whether_open(&mut self, at: usize) {
        let initiator = &mut self.initiator;
        let Some(opened) = self.volumes.get_mut(at) else { return };
        while let Some(event) = initiator.poll_event(opened.handle) {
            match event {
                VolumeEvent::Open => opened.is_open = true,
                VolumeEvent::Failed => return opened.open_state = OpenState::Failed,
                VolumeEvent::Changed | VolumeEvent::Path(_) | VolumeEvent::Closed => {}
            }
        }
        match initiator.is_usable(opened.handle).filter(|_| opened.is_open) {
            Some(Ok(())) => opened.open_state = OpenState::Open,
            Some(Err(why)) => (opened.open_state, opened.why) = (OpenState::Failed, Some(why)),
            None if opened.begun.elapsed() >= initiator.settings().open_timeout => {
                opened.why = Some(initiator.too_late(opened.handle, &opened.urls));
                opened.open_state = OpenState::Failed;
            }
            None => {}
        }
    }

    /// How long it takes until a volume is not about to be opened any more.
    fn opens_for(&self) -> Option<Duration> {
        let most = self.initiator.settings().open_timeout;
        let opening = self.volumes.iter().filter(|opened| opened.open_state == OpenState::Opening);
        opening.map(|opened| most.saturating_sub(opened.begun.elapsed())).min()
    }

    fn take_returned(&mut self) {
        while let Some(token) = self.loans_over.pop_front().or_else(|| self.lender.poll_returned()) {
            let Some(number) = self.named(token) else { continue };
            if let Some(command) = self.commands.get_mut(number) {
                command.lent -= 1;
            }
            self.command_over(number);
        }
    }

    /// The command of this name, if it is still there.
    fn named(&self, id: u64) -> Option<u32> {
        let number = id as u32;
        let command = self.commands.get(number)?;
        (u64::from(command.turn) == id >> 32).then_some(number)
    }

    fn command_ended(&mut self, id: u64, failure: Option<Failure>) {
        let Some(number) = self.named(id) else { return };
        let Some(command) = self.commands.get_mut(number) else { return };
        command.ended = true;
        if let (Some(task), Some(failure)) = (self.tasks.get_mut(command.task), failure) {
            task.failure.get_or_insert(failure);
        }
        self.command_over(number);
    }

    fn command_over(&mut self, number: u32) {
        if self.commands.get(number).is_none_or(|command| !command.ended || command.lent > 0) {
            return;
        }
        let Some(command) = self.commands.remove(number) else { return };
        if let Some(task) = self.tasks.get_mut(command.task) {
            task.out -= 1;
        }
        self.advance(command.task);
        self.end_if_over(command.task);
    }

    /// Ends a task that has nothing out and nothing left to do.
    fn end_if_over(&mut self, at: u32) {
        let Some(task) = self.tasks.get(at) else { return };
        if task.out > 0 || task.next < task.end && task.failure.is_none() {
            return;
        }
        let id = u64::from(task.turn) << 32 | u64::from(at);
        let (volume, waiter, failure) = (task.volume, task.waiter, task.failure);
        self.tasks.remove(at);
        self.stalled.retain(|stalled| *stalled != at);
        match waiter {
            Waiter::Call => self.returned.push((id, failure)),
            Waiter::Poll(user) => {
                let (status, block) = failure.map_or((Status::OK, 0), of_failure);
                let volume =
                    self.opened(volume).map_or(std::ptr::null_mut(), |opened| opened.at.as_ptr().cast());
                self.completed.push_back(Completion {
                    user,
                    volume,
                    id,
                    block,
                    status: status.0,
                    reserved: 0,
                });
            }
        }
    }

    /// Waits until a call's operation has ended.
    pub(crate) fn wait_for(&mut self, id: u64) -> Result<(), Failure> {
        loop {
            self.gather();
            if let Some(at) = self.returned.iter().position(|(ended, _)| *ended == id) {
                return self.returned.swap_remove(at).1.map_or(Ok(()), Err);
            }
            self.turn(None);
        }
    }

    pub(crate) fn turn(&mut self, wait: Option<Duration>) {
        self.unsent = false;
        self.initiator.turn(wait);
    }

    /// Moves what is ready, and waits for a completion if there is none.
    pub(crate) fn poll(&mut self, wait: Option<Duration>) {
        let begun = Instant::now();
        let opening = self.opening();
        self.gather();
        if wait == Some(Duration::ZERO) || !self.completed.is_empty() {
            self.turn(Some(Duration::ZERO));
            return self.gather();
        }
        loop {
            let idle = self.in_flight == 0 && opening == 0;
            if !self.completed.is_empty() || idle || self.opening() != opening {
                break;
            }
            let left = match wait {
                None => None,
                Some(wait) => match wait.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
                    Some(left) => Some(left),
                    None => break,
                },
            };
            self.turn([left, self.opens_for()].into_iter().flatten().min());
            self.gather();
        }
    }

    fn opening(&self) -> usize {
        self.volumes.iter().filter(|opened| opened.open_state == OpenState::Opening).count()
    }

    /// A completion that was not taken yet.
    pub(crate) fn poll_completed(&mut self) -> Option<Completion> {
        let completion = self.completed.pop_front()?;
        self.in_flight -= 1;
        Some(completion)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How long a loop may wait for the descriptor.
    pub(crate) fn wait_max(&mut self) -> Option<Duration> {
        if !self.completed.is_empty() || !self.loans_over.is_empty() || self.unsent {
            return Some(Duration::ZERO);
        }
        [self.initiator.wait_max(), self.opens_for()].into_iter().flatten().min()
    }

    /// Asks that an operation end early.
    pub(crate) fn cancel(&mut self, volume: Handle, id: u64) {
        let (at, turn) = (id as u32, (id >> 32) as u32);
        let named = self.tasks.get_mut(at);
        let Some(task) = named.filter(|task| task.turn == turn && task.volume == volume) else { return };
        if task.next < task.end {
            // What was not begun is not begun any more.
            task.failure.get_or_insert(Failure::Failed(Fault::Aborted));
        }
        for number in self.commands.numbers() {
            if self.commands.get(number).is_some_and(|command| command.task == at && !command.ended) {
                self.initiator.cancel(volume, IoId(u64::from(turn) << 32 | u64::from(number)));
            }
        }
        self.unsent = true;
    }

    /// Ends a volume and frees its handle.
    pub(crate) fn close(&mut self, volume: Handle) -> Result<(), client::Error> {
        let Some(at) = self.volumes.iter().position(|opened| opened.handle == volume) else { return Ok(()) };
        let grace = self.initiator.settings().close_timeout;
        let begun = Instant::now();
        let open_state = |this: &Self| this.opened(volume).map(|opened| opened.open_state);
        while open_state(self) == Some(OpenState::Open) && self.is_busy(volume) && begun.elapsed() < grace {
            self.turn(Some(grace.saturating_sub(begun.elapsed())));
            self.gather();
        }
        let closed = if open_state(self) == Some(OpenState::Open) {
            self.initiator.close(volume)
        } else {
            self.initiator.forget(volume);
            Ok(())
        };
        // What had not ended never will: only its memory is still to come back.
        for number in self.commands.numbers() {
            let Some(command) = self.commands.get_mut(number) else { continue };
            if let Some(task) = self.tasks.get_mut(command.task).filter(|task| task.volume == volume) {
                task.failure.get_or_insert(Failure::Failed(Fault::Aborted));
                command.ended = true;
                self.command_over(number);
            }
        }
        for task in self.tasks.numbers() {
            if let Some(waiting) = self.tasks.get_mut(task).filter(|task| task.volume == volume) {
                waiting.failure.get_or_insert(Failure::Failed(Fault::Aborted));
                self.end_if_over(task);
            }
        }
        self.take_returned();
        while self.is_busy(volume) {
            self.turn(Some(Duration::from_millis(10)));
            self.take_returned();
        }
        let opened = self.volumes.swap_remove(at);
        let handle = opened.at;
        let before = self.completed.len();
        self.completed.retain(|completion| completion.volume != handle.as_ptr().cast());
        self.in_flight -= (before - self.completed.len()) as u32;
        // SAFETY: `keep` made it from a box, and it has just left the list: this is done once.
        drop(unsafe { Box::from_raw(handle.as_ptr()) });
        // What ended of other volumes while this one was waited for is announced by nothing else.
        self.gather();
        closed
    }

    fn is_busy(&self, volume: Handle) -> bool {
        self.tasks.iter().any(|task| task.volume == volume)
    }
}

impl Drop for Context {
    /// The initiator's end, after this, takes back everything that is out.
    fn drop(&mut self) {
        for opened in self.volumes.drain(..) {
            // SAFETY: as in `close`.
            drop(unsafe { Box::from_raw(opened.at.as_ptr()) });
        }
    }
}

/// What C is told of a volume.
pub(crate) fn geometry(state: &Context, volume: Handle) -> Result<abi::Geometry, Status> {
    if state.opened(volume).is_none_or(|opened| opened.open_state != OpenState::Open) {
        return Err(usage("the volume is not open: wait until bw_state() says so"));
    }
    let geometry = state.initiator.geometry(volume).ok_or_else(|| usage("there is no such volume"))?;
    let flag = |is: bool, flag: u32| if is { flag } else { 0 };
    Ok(abi::Geometry {
        bytes: geometry.bytes(),
        block: geometry.logical,
        physical: geometry.physical,
        io_max: geometry.max_io,
        flags: flag(state.initiator.is_read_only(volume), abi::BW_GEOMETRY_READ_ONLY)
            | flag(geometry.write_cache, abi::BW_GEOMETRY_WRITE_CACHE)
            | flag(geometry.thin, abi::BW_GEOMETRY_THIN)
            | flag(geometry.dealloc_reads_zero, abi::BW_GEOMETRY_ZEROES),
    })
}

#[cfg(test)]
mod tests;
