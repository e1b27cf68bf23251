//! Volumes of one thread, and the operations in flight that a C program has on them.
//!
//! An operation is cut into commands within the volume's limit; each lends its part of the caller's buffer to
//! the shard. Invariant: for the caller an operation is over when all of its commands have ended and neither
//! the shard nor the kernel can touch its buffer any more.
//!
//! Bounds: per volume as many commands as its terms allow (1,024), so as many operations; state per operation
//! and per command is reused.

mod volumes;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use buf::{Lender, Payload, Sg, SgMut};
use client::{Durability, Failure, Fault, Initiator, Io, IoId, Op, Span, VolumeHandle};
use volume::Epoch;

use crate::abi::Completion;
use crate::pieces::{Piece, for_each_memory_slice};
use crate::slot_table::SlotTable;
use crate::status::{Status, set_last_error, status_of_failure, usage_error};

pub use volumes::Volume;
pub(crate) use volumes::{OpenState, OpenVolume, abi_geometry};

/// Commands of one operation in flight.
const COMMANDS_PER_OPERATION_MAX: u32 = 16;
/// Longest command without payload, in blocks: what one command of either protocol can say.
const COMMAND_BLOCKS_MAX: u64 = 1 << 31;

/// What an operation does with each of its commands.
#[derive(Clone, Copy)]
pub(crate) enum OperationKind {
    Read(NonNull<u8>),
    Write(NonNull<u8>, Durability),
    Flush,
    Discard,
    Zero { unmap: bool },
}

/// Who waits for the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompletionWaiter {
    /// A completion is to be polled.
    Poll(*mut c_void),
    /// A call that waits.
    Call,
}

struct OperationTask {
    volume: VolumeHandle,
    waiter: CompletionWaiter,
    kind: OperationKind,
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
struct TaskCommand {
    task: u32,
    turn: u32,
    ended: bool,
    /// Loans that are not over.
    lent: u32,
}

/// What the handle of an initiator points to.
pub struct InitiatorContext {
    pub(crate) initiator: Initiator,
    pub(crate) thread: u64,
    lender: Lender,
    pub(crate) volumes: Vec<OpenVolume>,
    tasks: SlotTable<OperationTask>,
    commands: SlotTable<TaskCommand>,
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

impl InitiatorContext {
    pub(crate) fn new(initiator: Initiator, thread: u64) -> Self {
        InitiatorContext {
            initiator,
            thread,
            lender: Lender::new(),
            volumes: Vec::new(),
            tasks: SlotTable::new(),
            commands: SlotTable::new(),
            loans_over: VecDeque::new(),
            stalled: VecDeque::new(),
            completed: VecDeque::new(),
            returned: Vec::new(),
            in_flight: 0,
            turns: 0,
            unsent: false,
        }
    }

    /// Starts an operation; its name.
    pub(crate) fn start_operation(
        &mut self,
        volume: VolumeHandle,
        kind: OperationKind,
        pieces: Option<Box<[Piece]>>,
        offset: u64,
        len: u64,
        waiter: CompletionWaiter,
    ) -> Result<u64, Status> {
        let (block, each) = self.check_operation(volume, kind, offset, len)?;
        self.turns = self.turns.wrapping_add(1);
        let task = OperationTask {
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
        self.submit_commands(at);
        if self.tasks.get(at).is_none_or(|task| task.out == 0) {
            self.stalled.retain(|stalled| *stalled != at);
            self.tasks.remove(at);
            return Err(set_last_error(
                Status::AGAIN,
                "the maximum number of operations is in flight: poll, then submit again",
            ));
        }
        self.in_flight += u32::from(matches!(waiter, CompletionWaiter::Poll(_)));
        Ok(id)
    }

    /// Whether an operation makes sense; the bytes of a block and of the longest command.
    fn check_operation(
        &self,
        volume: VolumeHandle,
        kind: OperationKind,
        offset: u64,
        len: u64,
    ) -> Result<(u64, u64), Status> {
        if self.open_volume(volume).is_none_or(|opened| opened.open_state != OpenState::Open) {
            return Err(usage_error("the volume is not open: wait until bw_state() says so"));
        }
        let geometry =
            self.initiator.geometry(volume).ok_or_else(|| usage_error("there is no such volume"))?;
        let block = u64::from(geometry.logical);
        if let OperationKind::Flush = kind {
            return if offset == 0 && len == 0 {
                Ok((block, 1))
            } else {
                Err(usage_error("a flush has no range"))
            };
        }
        if len == 0 || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(usage_error(&format!(
                "offset {offset} and length {len} must be multiples of the volume's blocks of {block} bytes, and \
                 the length not 0"
            )));
        }
        if offset.checked_add(len).is_none_or(|end| end > geometry.capacity_bytes()) {
            return Err(usage_error(&format!(
                "{len} bytes at {offset} go beyond the volume's {} bytes",
                geometry.capacity_bytes()
            )));
        }
        let each = match kind {
            OperationKind::Read(_) | OperationKind::Write(..) => u64::from(geometry.max_io) / block * block,
            OperationKind::Flush | OperationKind::Discard | OperationKind::Zero { .. } => {
                COMMAND_BLOCKS_MAX * block
            }
        };
        Ok((block, each.max(block)))
    }

    /// Submits as many of a task's commands as there is room for.
    fn submit_commands(&mut self, at: u32) {
        loop {
            let Some(task) = self.tasks.get_mut(at) else { return };
            let is_flush = matches!(task.kind, OperationKind::Flush);
            let more = if is_flush { task.next == 0 } else { task.next < task.end && task.failure.is_none() };
            if !more || task.out >= COMMANDS_PER_OPERATION_MAX {
                return;
            }
            let begin = task.next;
            let len = if is_flush { 0 } else { task.each.min(task.end - begin) };
            task.next = if is_flush { 1 } else { begin + len };
            task.out += 1;
            let (volume, kind, turn) = (task.volume, task.kind, task.turn);
            let span = Span { lba: (task.offset + begin) / task.block, blocks: len / task.block };
            let command = TaskCommand { task: at, turn, ended: false, lent: 0 };
            let number = self.commands.insert(command);
            let id = IoId(u64::from(turn) << 32 | u64::from(number));
            let (op, payload, loans) =
                self.make_lent_command(at, kind, span, begin as usize, len as usize, id);
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
    fn make_lent_command(
        &self,
        task: u32,
        kind: OperationKind,
        span: Span,
        begin: usize,
        len: usize,
        id: IoId,
    ) -> (Op, Payload, u32) {
        let pieces = self.tasks.get(task).and_then(|task| task.pieces.as_deref());
        match kind {
            OperationKind::Read(data) => {
                let (mut memory, mut loans) = (SgMut::new(), 0);
                for_each_memory_slice(pieces, data, begin, len, |at, len| {
                    // SAFETY: the header has the caller leave these bytes alone until the operation
                    // completes, which it does only when all loans are over (see `finish_task_if_idle`).
                    memory.append(SgMut::from(unsafe { self.lender.lend_mut(at, len, id.0) }));
                    loans += 1;
                });
                (Op::Read(span), Payload::In(memory), loans)
            }
            OperationKind::Write(data, durability) => {
                let (mut memory, mut loans) = (Sg::new(), 0);
                for_each_memory_slice(pieces, data, begin, len, |at, len| {
                    // SAFETY: as above, and the header forbids to change them.
                    memory.append(Sg::from(unsafe { self.lender.lend_read_only(at, len, true, id.0) }));
                    loans += 1;
                });
                (Op::Write(span, durability), Payload::Out(memory), loans)
            }
            OperationKind::Flush => (Op::Flush, Payload::None, 0),
            OperationKind::Discard => (Op::Unmap(vec![span]), Payload::None, 0),
            OperationKind::Zero { unmap } => (Op::WriteZeroes { span, unmap }, Payload::None, 0),
        }
    }

    /// Takes what has ended, of every volume.
    pub(crate) fn drain_completions(&mut self) {
        for at in 0..self.volumes.len() {
            let Some(&OpenVolume { handle, open_state, .. }) = self.volumes.get(at) else { break };
            while let Some(done) = self.initiator.poll_done(handle) {
                let failure = done.result.as_ref().err().copied();
                // The loan ends here, unless the kernel still has it.
                drop(done.payload);
                self.handle_command_ended(done.id.0, failure);
            }
            if open_state == OpenState::Opening {
                self.update_open_state(at);
            }
        }
        self.reap_returned_loans();
        for _ in 0..self.stalled.len() {
            if let Some(task) = self.stalled.pop_front() {
                self.submit_commands(task);
                self.finish_task_if_idle(task);
            }
        }
    }

    fn reap_returned_loans(&mut self) {
        while let Some(token) = self.loans_over.pop_front().or_else(|| self.lender.poll_returned()) {
            let Some(number) = self.find_command(token) else { continue };
            if let Some(command) = self.commands.get_mut(number) {
                command.lent -= 1;
            }
            self.finish_command_if_idle(number);
        }
    }

    /// The command of this name, if it is still there.
    fn find_command(&self, id: u64) -> Option<u32> {
        let number = id as u32;
        let command = self.commands.get(number)?;
        (u64::from(command.turn) == id >> 32).then_some(number)
    }

    fn handle_command_ended(&mut self, id: u64, failure: Option<Failure>) {
        let Some(number) = self.find_command(id) else { return };
        let Some(command) = self.commands.get_mut(number) else { return };
        command.ended = true;
        if let (Some(task), Some(failure)) = (self.tasks.get_mut(command.task), failure) {
            task.failure.get_or_insert(failure);
        }
        self.finish_command_if_idle(number);
    }

    fn finish_command_if_idle(&mut self, number: u32) {
        if self.commands.get(number).is_none_or(|command| !command.ended || command.lent > 0) {
            return;
        }
        let Some(command) = self.commands.remove(number) else { return };
        if let Some(task) = self.tasks.get_mut(command.task) {
            task.out -= 1;
        }
        self.submit_commands(command.task);
        self.finish_task_if_idle(command.task);
    }

    /// Ends a task that has nothing out and nothing left to do.
    fn finish_task_if_idle(&mut self, at: u32) {
        let Some(task) = self.tasks.get(at) else { return };
        if task.out > 0 || task.next < task.end && task.failure.is_none() {
            return;
        }
        let id = u64::from(task.turn) << 32 | u64::from(at);
        let (volume, waiter, failure) = (task.volume, task.waiter, task.failure);
        self.tasks.remove(at);
        self.stalled.retain(|stalled| *stalled != at);
        match waiter {
            CompletionWaiter::Call => self.returned.push((id, failure)),
            CompletionWaiter::Poll(user) => {
                let (status, block) = failure.map_or((Status::OK, 0), status_of_failure);
                let volume =
                    self.open_volume(volume).map_or(std::ptr::null_mut(), |opened| opened.at.as_ptr().cast());
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
    pub(crate) fn wait_for_operation(&mut self, id: u64) -> Result<(), Failure> {
        loop {
            self.drain_completions();
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
    pub(crate) fn wait_for_completion(&mut self, wait: Option<Duration>) {
        let begun = Instant::now();
        let opening = self.volumes_opening();
        self.drain_completions();
        if wait == Some(Duration::ZERO) || !self.completed.is_empty() {
            self.turn(Some(Duration::ZERO));
            return self.drain_completions();
        }
        loop {
            let idle = self.in_flight == 0 && opening == 0;
            if !self.completed.is_empty() || idle || self.volumes_opening() != opening {
                break;
            }
            let left = match wait {
                None => None,
                Some(wait) => match wait.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
                    Some(left) => Some(left),
                    None => break,
                },
            };
            self.turn([left, self.open_time_left()].into_iter().flatten().min());
            self.drain_completions();
        }
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
    pub(crate) fn descriptor_wait_max(&mut self) -> Option<Duration> {
        if !self.completed.is_empty() || !self.loans_over.is_empty() || self.unsent {
            return Some(Duration::ZERO);
        }
        [self.initiator.descriptor_wait_max(), self.open_time_left()].into_iter().flatten().min()
    }

    /// Asks that an operation end early.
    pub(crate) fn cancel(&mut self, volume: VolumeHandle, id: u64) {
        let (at, turn) = (id as u32, (id >> 32) as u32);
        let named = self.tasks.get_mut(at);
        let Some(task) = named.filter(|task| task.turn == turn && task.volume == volume) else { return };
        if task.next < task.end {
            // What was not begun is not begun any more.
            task.failure.get_or_insert(Failure::Failed(Fault::Aborted));
        }
        for number in self.commands.slot_numbers() {
            if self.commands.get(number).is_some_and(|command| command.task == at && !command.ended) {
                self.initiator.cancel(volume, IoId(u64::from(turn) << 32 | u64::from(number)));
            }
        }
        self.unsent = true;
    }

    fn has_operations(&self, volume: VolumeHandle) -> bool {
        self.tasks.iter().any(|task| task.volume == volume)
    }
}

impl Drop for InitiatorContext {
    /// The initiator's end, after this, takes back everything that is out.
    fn drop(&mut self) {
        for opened in self.volumes.drain(..) {
            // SAFETY: as in `close_volume`.
            drop(unsafe { Box::from_raw(opened.at.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests;
