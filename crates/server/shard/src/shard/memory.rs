//! Steps that wait for memory: one queue per shard, first come first served.
//!
//! Invariant: what waits here holds nothing that another one waits for. A write waits before its data is
//! asked for, so no byte stream stands still because of it. Data of NVMe that stands in a stream already
//! has memory of its own, set aside for it, and goes before all that waits.

use std::collections::VecDeque;

use buf::{Class, Cx, Payload};
use nvme_server::{CommandKey, QueueKey};
use scsi_server::TaskKey;
use stream::Target;
use volume::{Io, IoId};

use super::Shard;

/// A step that needs memory, of either server.
#[derive(Debug)]
pub(super) enum ServerStep {
    Scsi(scsi_server::Step),
    Nvme(nvme_server::Step),
}

impl ServerStep {
    /// Whether it is this operation. Those of either server have names of their own.
    pub(super) fn is_io(&self, id: IoId) -> bool {
        match self {
            ServerStep::Scsi(scsi_server::Step::Io { io, .. })
            | ServerStep::Nvme(nvme_server::Step::Io { io, .. }) => io.id == id,
            ServerStep::Scsi(_) | ServerStep::Nvme(_) => false,
        }
    }
}

/// What waits for memory.
#[derive(Debug, Default)]
pub(super) struct MemoryWaiters {
    queue: VecDeque<ServerStep>,
}

impl MemoryWaiters {
    /// Takes an operation out that is not wanted any more.
    pub(super) fn remove_io(&mut self, id: IoId) -> Option<scsi_server::Step> {
        match self.remove(|step| step.is_io(id))? {
            ServerStep::Scsi(step) => Some(step),
            ServerStep::Nvme(_) => None,
        }
    }

    /// The same for a command of NVMe.
    pub(super) fn remove_command_io(&mut self, id: IoId) -> Option<nvme_server::Step> {
        match self.remove(|step| step.is_io(id))? {
            ServerStep::Nvme(step) => Some(step),
            ServerStep::Scsi(_) => None,
        }
    }

    fn remove(&mut self, wanted: impl Fn(&ServerStep) -> bool) -> Option<ServerStep> {
        let at = self.queue.iter().position(wanted)?;
        self.queue.remove(at)
    }

    /// Drops a transfer of a task that has ended.
    pub(super) fn remove_transfer(&mut self, key: TaskKey) {
        self.queue.retain(
            |step| !matches!(step, ServerStep::Scsi(scsi_server::Step::Receive { task, .. }) if *task == key),
        );
    }

    /// Drops the transfers of a queue that ends: its key, and the tags of its commands, may be another's
    /// by the time that there is memory for them.
    pub(super) fn remove_queue(&mut self, key: QueueKey) {
        self.queue.retain(|step| {
            !matches!(step, ServerStep::Nvme(
                nvme_server::Step::Receive { command, .. } | nvme_server::Step::Room { command, .. }
            ) if command.queue == key)
        });
    }

    /// Drops a transfer of a command that has ended.
    pub(super) fn remove_command(&mut self, key: CommandKey) {
        self.queue.retain(|step| {
            !matches!(step, ServerStep::Nvme(
                nvme_server::Step::Receive { command, .. } | nvme_server::Step::Room { command, .. }
            ) if *command == key)
        });
    }
}

impl Shard {
    /// Gives a step its memory, or lets it wait for some.
    pub(super) fn run_with_memory(&mut self, cx: &mut Cx<'_>, step: ServerStep) {
        // What needs no memory gives some back when it is done: it must not wait for those that do.
        let needs_none = matches!(
            step,
            ServerStep::Scsi(scsi_server::Step::Io { want: 0, .. })
                | ServerStep::Nvme(nvme_server::Step::Io { want: 0, .. })
        );
        let in_stream = self.class_of(&step) != Class::Solicited;
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

    /// Which memory a step takes.
    fn class_of(&self, step: &ServerStep) -> Class {
        match step {
            ServerStep::Nvme(nvme_server::Step::Receive { command, .. }) => self.memory_class(*command),
            ServerStep::Nvme(_) | ServerStep::Scsi(_) => Class::Solicited,
        }
    }

    /// Lets those that wait have what has come back.
    pub(super) fn resume_memory_waiters(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut fed = false;
        while let Some(step) = self.memory_waiters.queue.pop_front() {
            match self.try_run_with_memory(cx, step) {
                None => fed = true,
                Some(step) => {
                    self.memory_waiters.queue.push_front(step);
                    break;
                }
            }
        }
        fed
    }

    /// Gives the step back if there is no memory for it.
    fn try_run_with_memory(&mut self, cx: &mut Cx<'_>, step: ServerStep) -> Option<ServerStep> {
        match step {
            ServerStep::Scsi(step) => self.try_run_task_step(cx, step).map(ServerStep::Scsi),
            ServerStep::Nvme(step) => self.try_run_command_step(cx, step).map(ServerStep::Nvme),
        }
    }

    fn try_run_task_step(&mut self, cx: &mut Cx<'_>, step: scsi_server::Step) -> Option<scsi_server::Step> {
        use scsi_server::Step;
        match step {
            Step::Receive { task, at, len } => match cx.pool.take_sg(Class::Solicited, len as usize) {
                Some(memory) => {
                    self.receive(cx, task, at, memory);
                    None
                }
                None => Some(step),
            },
            Step::Io { task, volume, mut io, want } => {
                if !attach(cx, &mut io, want) {
                    return Some(Step::Io { task, volume, io, want });
                }
                self.volumes.submit(cx, &self.server.nexus(task.nexus).nexus, volume, io);
                None
            }
            Step::Send { .. } | Step::Respond { .. } | Step::Retire { .. } | Step::Cancel { .. } => {
                self.run_step(cx, step);
                None
            }
            Step::VolumeRequest { .. } | Step::Managed { .. } => {
                self.run_step(cx, step);
                None
            }
        }
    }

    fn try_run_command_step(
        &mut self,
        cx: &mut Cx<'_>,
        step: nvme_server::Step,
    ) -> Option<nvme_server::Step> {
        use nvme_server::Step;
        match step {
            Step::Receive { command, at, len } => {
                match cx.pool.take_sg(self.memory_class(command), len as usize) {
                    Some(memory) => {
                        self.with_queue(command, |queue, tag| queue.proto.recv_data(cx, tag, at, memory));
                        None
                    }
                    None => Some(step),
                }
            }
            Step::Io { command, volume, mut io, want, to_host } => {
                if !attach(cx, &mut io, want) {
                    return Some(Step::Io { command, volume, io, want, to_host });
                }
                self.volumes.submit(cx, self.nvme.server.nexus(command.queue), volume, io);
                None
            }
            Step::Room { command, class, len } => {
                // The server takes it itself, in this very call.
                if cx.pool.take_sg(class, len as usize).is_none() {
                    return Some(step);
                }
                self.nvme.server.retry(cx, command);
                None
            }
            Step::Send { .. } | Step::Respond { .. } | Step::Retire { .. } | Step::Cancel { .. } => {
                self.run_nvme_step(cx, step);
                None
            }
            Step::VolumeRequest { .. }
            | Step::QueueMessage { .. }
            | Step::EndQueue { .. }
            | Step::ControllerGone { .. } => {
                self.run_nvme_step(cx, step);
                None
            }
            Step::Compute { .. } | Step::CancelCompute { .. } | Step::ListControllers { .. } => {
                self.run_nvme_step(cx, step);
                None
            }
            Step::HostAuthenticated { .. } | Step::AuthenticationFailed { .. } => {
                self.run_nvme_step(cx, step);
                None
            }
        }
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
