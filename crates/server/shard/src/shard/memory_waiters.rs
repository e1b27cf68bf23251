//! Steps that wait for memory: one queue per shard, first come first served.
//!
//! Invariant: a waiting step holds nothing that another one waits for. A write waits before its data is
//! requested, so no byte stream stalls because of it. NVMe data that is already in a stream uses memory
//! reserved for it, and goes before all waiting steps.

use std::collections::VecDeque;

use buf::Cx;
use flight_recorder::{Event, EventKind};
use volume::IoId;

use super::Shard;
use super::payload_step::AnyStep;
use super::protocol_front::ProtocolFront;

/// What waits for memory.
#[derive(Debug, Default)]
pub(super) struct MemoryWaiters {
    queue: VecDeque<AnyStep>,
    /// The flight recorder has been told that there are some.
    is_told: bool,
}

impl MemoryWaiters {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Lets a step wait behind all others.
    pub(super) fn push(&mut self, step: AnyStep) {
        self.queue.push_back(step);
    }

    /// Lets a step wait before all others.
    pub(super) fn push_front(&mut self, step: AnyStep) {
        self.queue.push_front(step);
    }

    /// Takes an operation out that is not wanted any more; whether it was here.
    pub(super) fn remove_io(&mut self, id: IoId) -> bool {
        let at = self.queue.iter().position(|step| step.is_io(id));
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// Drops the transfers of commands that have ended: their names may be others' by the time that there is memory
    /// for them.
    pub(super) fn remove_transfers<F: ProtocolFront>(&mut self, ended: impl Fn(F::Command) -> bool) {
        self.queue.retain(|step| {
            !F::as_own_step(step).is_some_and(|step| !step.outlives_command() && ended(step.command()))
        });
    }
}

impl Shard {
    /// Lets those that wait have what has come back.
    pub(super) fn resume_memory_waiters(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut any = false;
        let waits = !self.parts.memory_waiters.queue.is_empty();
        if waits != self.parts.memory_waiters.is_told {
            self.parts.memory_waiters.is_told = waits;
            let kind = if waits { EventKind::MemoryWait } else { EventKind::MemoryFree };
            self.parts.log.record(&Event::new(kind));
        }
        while let Some(step) = self.parts.memory_waiters.queue.pop_front() {
            let without = match step {
                AnyStep::Scsi(step) => {
                    self.iscsi.try_run_with_memory(cx, &mut self.parts, step).map(AnyStep::Scsi)
                }
                AnyStep::Nvme(step) => {
                    self.nvme.try_run_with_memory(cx, &mut self.parts, step).map(AnyStep::Nvme)
                }
            };
            match without {
                None => any = true,
                Some(step) => {
                    self.parts.memory_waiters.queue.push_front(step);
                    break;
                }
            }
        }
        any
    }
}
