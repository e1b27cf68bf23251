//! Steps that wait for memory: one queue per shard, first come first served.
//!
//! Invariant: what waits here holds nothing that another one waits for. A write waits before its data is
//! asked for, so no byte stream stands still because of it. Data of NVMe that stands in a stream already
//! has memory of its own, set aside for it, and goes before all that waits.

use std::collections::VecDeque;

use buf::{Class, Cx, Payload};
use volume::{Io, IoId};

use super::Shard;
use super::payload_step::{CommandId, IoStep, PayloadStep, Receive, Retry};

/// What waits for memory.
#[derive(Debug, Default)]
pub(super) struct MemoryWaiters {
    queue: VecDeque<PayloadStep>,
}

impl MemoryWaiters {
    /// Takes an operation out that is not wanted any more; whether it was here.
    pub(super) fn remove_io(&mut self, id: IoId) -> bool {
        let at = self.queue.iter().position(|step| step.is_io(id));
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// Drops the transfers of commands that have ended: their names may be others' by the time that there is memory
    /// for them.
    pub(super) fn remove_transfers(&mut self, ended: impl Fn(CommandId) -> bool) {
        self.queue.retain(|step| !(step.ends_with_command() && ended(step.command())));
    }
}

impl Shard {
    /// Gives a step its memory, or lets it wait for some.
    pub(super) fn run_with_memory(&mut self, cx: &mut Cx<'_>, step: PayloadStep) {
        // What needs no memory gives some back when it is done: it must not wait for those that do.
        let needs_none = matches!(step, PayloadStep::Io(IoStep { want: 0, .. }));
        let in_stream = match &step {
            PayloadStep::Receive(receive) => self.memory_class(receive.command) != Class::Solicited,
            PayloadStep::Io(_) | PayloadStep::Retry(_) => false,
        };
        if !needs_none && !in_stream && !self.memory_waiters.queue.is_empty() {
            self.memory_waiters.queue.push_back(step);
            return;
        }
        match self.try_run_with_memory(cx, step) {
            Some(step) if in_stream => self.memory_waiters.queue.push_front(step),
            Some(step) => self.memory_waiters.queue.push_back(step),
            None => {}
        }
    }

    /// Lets those that wait have what has come back.
    pub(super) fn resume_memory_waiters(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        while let Some(step) = self.memory_waiters.queue.pop_front() {
            match self.try_run_with_memory(cx, step) {
                None => any = true,
                Some(step) => {
                    self.memory_waiters.queue.push_front(step);
                    break;
                }
            }
        }
        any
    }

    /// Gives the step back if there is no memory for it.
    fn try_run_with_memory(&mut self, cx: &mut Cx<'_>, step: PayloadStep) -> Option<PayloadStep> {
        match step {
            PayloadStep::Receive(Receive { command, at, len }) => {
                let Some(memory) = cx.pool.take_sg(self.memory_class(command), len as usize) else {
                    return Some(step);
                };
                self.with_conn(command, |conn, tag| conn.kind.recv_data(cx, tag, at, memory));
            }
            PayloadStep::Io(mut step) => {
                if !attach(cx, &mut step.io, step.want) {
                    return Some(PayloadStep::Io(step));
                }
                let who = match step.command {
                    CommandId::Scsi(key) => &self.iscsi.server.nexus(key.nexus).nexus,
                    CommandId::Nvme(key) => self.nvme.server.nexus(key.queue),
                };
                self.volumes.submit(cx, who, step.volume, step.io);
            }
            PayloadStep::Retry(Retry { command, class, len }) => {
                // The server takes it itself, in this very call.
                if cx.pool.take_sg(class, len as usize).is_none() {
                    return Some(step);
                }
                self.nvme.server.retry(cx, command);
            }
        }
        None
    }
}

/// Attaches the memory that an operation wants; false if there is none.
fn attach(cx: &Cx<'_>, io: &mut Io, want: u32) -> bool {
    if want == 0 {
        return true;
    }
    let Some(memory) = cx.pool.take_sg(Class::Solicited, want as usize) else { return false };
    io.payload = Payload::In(memory);
    true
}
