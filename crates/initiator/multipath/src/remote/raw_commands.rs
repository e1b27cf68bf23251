//! Raw commands of a volume: each goes to one path of its protocol, once.
//!
//! It takes the path that serves with the fewest commands in flight; if none of its protocol serves, one that is up
//! though the volume is inaccessible by it (what tells of path states works there). If none is up, or all are full, it
//! waits for `queue_timeout`. Once a path has it, it is not retried: what the path says is how it ended.

use std::collections::VecDeque;

use buf::Cx;
use volume::{IoId, Time};

use super::path_slot::SlotState;
use super::{RemoteVolume, VolumeStage};
use crate::path::Path;
use crate::raw_command::{RAW_COMMANDS_MAX, RawCommand, RawCompletion, RawError};

/// Raw commands that were taken on.
#[derive(Debug, Default)]
pub(super) struct RawCommands {
    waiting: VecDeque<WaitingCommand>,
    sent: Vec<SentCommand>,
    done: VecDeque<RawCompletion>,
}

#[derive(Debug)]
struct WaitingCommand {
    id: IoId,
    command: RawCommand,
    deadline: Time,
}

/// A command that a path has.
#[derive(Debug)]
struct SentCommand {
    id: IoId,
    /// The name that the path knows it by.
    name: IoId,
    path: usize,
    only_reads: bool,
}

impl RawCommands {
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn end(&mut self, id: IoId, command: RawCommand, how: RawError) {
        self.done.push_back(RawCompletion::without_answer(id, how, command.payload));
    }

    /// Ends what no path has.
    pub(super) fn fail_waiting(&mut self, how: RawError) {
        while let Some(WaitingCommand { id, command, .. }) = self.waiting.pop_front() {
            self.end(id, command, how);
        }
    }
}

impl<P: Path> RemoteVolume<P> {
    /// Takes a raw command on; it ends by [`RemoteVolume::poll_raw_done`].
    ///
    /// # Errors
    /// [`RAW_COMMANDS_MAX`] wait or are in work: the command comes back.
    pub fn submit_raw(&mut self, cx: &mut Cx<'_>, id: IoId, command: RawCommand) -> Result<(), RawCommand> {
        if self.raw.waiting.len() + self.raw.sent.len() >= RAW_COMMANDS_MAX {
            return Err(command);
        }
        let is_known = self.slots.iter().any(|slot| command.is_for(slot.path.protocol()));
        let refusal = match self.stage {
            _ if !is_known => Some(RawError::WrongProtocol),
            _ if self.settings.read_only && !command.only_reads => Some(RawError::ReadOnly),
            _ if command.changes_reservations && self.registrations.registered.is_some() => {
                Some(RawError::ReservationsKept)
            }
            VolumeStage::Opening | VolumeStage::Open => None,
            VolumeStage::Failed => Some(RawError::NotSent),
            VolumeStage::Closing | VolumeStage::Closed => Some(RawError::Aborted),
        };
        if let Some(refusal) = refusal {
            self.raw.end(id, command, refusal);
            return Ok(());
        }
        let deadline = cx.now + self.settings.queue_timeout;
        self.raw.waiting.push_back(WaitingCommand { id, command, deadline });
        self.tasks.expiry = self.tasks.expiry.min(deadline);
        self.has_work = true;
        self.send_raw_commands(cx);
        Ok(())
    }

    /// A raw command that has ended.
    #[must_use]
    pub fn poll_raw_done(&mut self) -> Option<RawCompletion> {
        self.raw.done.pop_front()
    }

    /// Asks that a raw command end early. It still ends by [`RemoteVolume::poll_raw_done`].
    pub fn cancel_raw(&mut self, cx: &mut Cx<'_>, id: IoId) {
        if let Some(at) = self.raw.waiting.iter().position(|waiting| waiting.id == id)
            && let Some(waiting) = self.raw.waiting.remove(at)
        {
            return self.raw.end(id, waiting.command, RawError::Aborted);
        }
        let sent = self.raw.sent.iter().find(|sent| sent.id == id).map(|sent| (sent.path, sent.name));
        if let Some((path, name)) = sent {
            self.slots[path].path.cancel(cx, name);
            self.mark_pending(path);
        }
    }

    /// Gives what waits to paths that have room, in order for each protocol.
    pub(super) fn send_raw_commands(&mut self, cx: &mut Cx<'_>) {
        let mut at = 0;
        while let Some(waiting) = self.raw.waiting.get(at) {
            let Some(path) = self.path_for_raw(&waiting.command) else {
                at += 1;
                continue;
            };
            let Some(WaitingCommand { id, command, deadline }) = self.raw.waiting.remove(at) else { return };
            // Apart from the names of operations.
            let name = IoId(u64::MAX - self.numbers);
            self.numbers += 1;
            let only_reads = command.only_reads;
            match self.slots[path].path.submit_raw(cx, name, command) {
                Ok(()) => {
                    self.slots[path].in_work += 1;
                    self.raw.sent.push(SentCommand { id, name, path, only_reads });
                    self.mark_pending(path);
                }
                Err(command) => {
                    self.raw.waiting.insert(at, WaitingCommand { id, command, deadline });
                    at += 1;
                    self.schedule_retry(cx.now);
                }
            }
        }
    }

    /// See the module.
    fn path_for_raw(&self, command: &RawCommand) -> Option<usize> {
        let of_protocol = |index: &usize| command.is_for(self.slots[*index].path.protocol());
        let room = |index: &usize| self.slots[*index].has_room();
        let load = |index: &usize| self.slots[*index].in_work;
        let best = self.slots.best.iter().map(|index| usize::from(*index)).filter(of_protocol);
        let mut best = best.peekable();
        if best.peek().is_some() {
            return best.filter(room).min_by_key(load);
        }
        let is_up = |index: &usize| {
            let slot = &self.slots[*index];
            let settled = slot.is_settled() && slot.expelled.is_none() && slot.known;
            slot.state == SlotState::Up && settled
        };
        (0..self.slots.len()).filter(of_protocol).filter(is_up).filter(room).min_by_key(load)
    }

    /// A path has ended a raw command.
    pub(super) fn handle_raw_command_ended(&mut self, cx: &mut Cx<'_>, from: usize, done: RawCompletion) {
        let at = self.raw.sent.iter().position(|sent| sent.name == done.id && sent.path == from);
        let Some(at) = at else { return };
        let sent = self.raw.sent.swap_remove(at);
        let slot = &mut self.slots[from];
        slot.in_work -= 1;
        slot.depth = slot.window;
        self.has_work = true;
        if !sent.only_reads {
            // A flush covers what it may have written.
            self.cached += 1;
            slot.written = self.cached;
        }
        if done.how == Err(RawError::InDoubt) {
            // What it left behind is ended before anything else goes by this path.
            slot.counts.lost += 1;
            slot.wants_fence = true;
            self.choose_best_paths(cx.now);
        }
        self.raw.done.push_back(RawCompletion { id: sent.id, ..done });
    }

    /// Ends what has waited long enough.
    pub(super) fn expire_raw_commands(&mut self, now: Time) {
        let mut at = 0;
        while let Some(waiting) = self.raw.waiting.get(at) {
            if waiting.deadline > now {
                self.tasks.expiry = self.tasks.expiry.min(waiting.deadline);
                at += 1;
            } else if let Some(WaitingCommand { id, command, .. }) = self.raw.waiting.remove(at) {
                self.raw.end(id, command, RawError::NotSent);
            }
        }
    }
}
