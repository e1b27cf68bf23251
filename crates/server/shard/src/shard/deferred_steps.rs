//! Long commands yield: a command that consists of many operations starts a limited number of them before the
//! world has looked at its sockets and disks again.
//!
//! On a RAM volume each operation has ended when it is submitted, and a copy, or a comparison with one
//! repeated block, would run to its end within one turn. Invariant: between two calls of `handle_timeout` at
//! most [`STARTED_PER_TURN_MAX`] operations begin that follow another of their command. The others wait here, in
//! order, and [`Shard`]'s timeout has come as long as any does.

use std::collections::VecDeque;

use buf::Cx;
use volume::IoId;

use super::Shard;
use super::payload_step::AnyStep;
use super::protocol_front::ProtocolFront;

/// How many operations may follow others before the world has its turn. One moves 256 KiB or so.
const STARTED_PER_TURN_MAX: usize = 32;

/// Operations that wait until the world has had its turn.
#[derive(Debug, Default)]
pub(super) struct DeferredSteps {
    queue: VecDeque<AnyStep>,
    /// How many have begun since the world had its turn.
    begun: usize,
    /// Nothing begins: the shard is quiesced.
    pub(super) halted: bool,
    /// What the servers want now follows from operations that have ended.
    pub(super) follows: bool,
}

impl DeferredSteps {
    /// Whether an operation that is to begin has to wait. If not, it is counted.
    pub(super) fn must_defer(&mut self) -> bool {
        if !self.follows {
            return self.halted;
        }
        let full = self.halted || self.begun >= STARTED_PER_TURN_MAX || !self.queue.is_empty();
        self.begun += usize::from(!full);
        full
    }

    pub(super) fn push(&mut self, step: AnyStep) {
        self.queue.push_back(step);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes an operation out that is not wanted any more; whether it was here.
    pub(super) fn remove(&mut self, id: IoId) -> bool {
        let at = self.queue.iter().position(|step| step.is_io(id));
        at.and_then(|at| self.queue.remove(at)).is_some()
    }
}

impl Shard {
    /// The world has had its turn: long operations go on, and some of those begin that wait here.
    pub(super) fn resume_deferred(&mut self, cx: &mut Cx<'_>) {
        self.parts.volumes.resume_long_ops();
        self.parts.deferred.begun = 0;
        while self.parts.deferred.begun < STARTED_PER_TURN_MAX {
            let Some(step) = self.parts.deferred.queue.pop_front() else { return };
            self.parts.deferred.begun += 1;
            match step {
                AnyStep::Scsi(step) => self.iscsi.begin_payload_step(cx, &mut self.parts, step),
                AnyStep::Nvme(step) => self.nvme.begin_payload_step(cx, &mut self.parts, step),
            }
        }
    }
}
