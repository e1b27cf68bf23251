//! Steps that wait for memory: one queue per shard, first come first served.
//!
//! Invariant: what waits here holds nothing that another one waits for. A write waits before its data is
//! asked for, so no byte stream stands still because of it.

use std::collections::VecDeque;

use buf::{Class, Cx, Payload};
use scsi_server::{Step, TaskKey};
use volume::IoId;

use super::Shard;

/// What waits for memory.
#[derive(Debug, Default)]
pub(super) struct Hunger {
    queue: VecDeque<Step>,
}

impl Hunger {
    /// Takes an operation out that is not wanted any more.
    pub(super) fn remove_io(&mut self, id: IoId) -> Option<Step> {
        let at = self.queue.iter().position(|step| matches!(step, Step::Io { io, .. } if io.id == id))?;
        self.queue.remove(at)
    }

    /// Drops a transfer of a task that has ended.
    pub(super) fn remove_transfer(&mut self, key: TaskKey) {
        self.queue.retain(|step| !matches!(step, Step::Receive { task, .. } if *task == key));
    }
}

impl Shard {
    /// Gives a step its memory, or lets it wait for some.
    pub(super) fn feed_step(&mut self, cx: &mut Cx<'_>, step: Step) {
        // What needs no memory gives some back when it is done: it must not wait for those that do.
        let needs_none = matches!(step, Step::Io { want: 0, .. });
        if !needs_none && !self.hunger.queue.is_empty() {
            self.hunger.queue.push_back(step);
            return;
        }
        let hungry = self.try_feed(cx, step);
        self.hunger.queue.extend(hungry);
    }

    /// Lets those that wait have what has come back.
    pub(super) fn feed(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut fed = false;
        while let Some(step) = self.hunger.queue.pop_front() {
            match self.try_feed(cx, step) {
                None => fed = true,
                Some(step) => {
                    self.hunger.queue.push_front(step);
                    break;
                }
            }
        }
        fed
    }

    /// Gives the step back if there is no memory for it.
    fn try_feed(&mut self, cx: &mut Cx<'_>, step: Step) -> Option<Step> {
        match step {
            Step::Receive { task, at, len } => match cx.pool.take_sg(Class::Solicited, len as usize) {
                Some(memory) => {
                    self.receive(cx, task, at, memory);
                    None
                }
                None => Some(step),
            },
            Step::Io { task, volume, mut io, want } => match cx.pool.take_sg(Class::Solicited, want as usize)
            {
                Some(memory) => {
                    if want > 0 {
                        io.payload = Payload::In(memory);
                    }
                    self.fronts.submit(cx, &self.server.nexus(task.nexus).nexus, volume, io);
                    None
                }
                None => Some(Step::Io { task, volume, io, want }),
            },
            Step::Send { .. } | Step::Respond { .. } | Step::Retire { .. } => unreachable!("needs no memory"),
            Step::Cancel { .. } | Step::Ask { .. } | Step::Managed { .. } => unreachable!("needs no memory"),
        }
    }
}
