//! Reads: from the submission to an end that no exclusive write has disturbed.

use buf::{Cx, MemoryClass, Payload};

use super::chunked_op::ChunkedOp;
use super::{Gate, TaskState};
use crate::io::{Fault, Io, IoCompletion, Op, Refusal, Span};

/// How often a read is repeated because an exclusive operation wrote meanwhile, before it keeps
/// such operations out.
const READ_TRIES_MAX: u8 = 3;

impl Gate {
    pub(super) fn start_read(&mut self, cx: &mut Cx<'_>, mut io: Io, span: Span) {
        let before = self.shared.guards().write_sequence(self.lock_regions(span));
        let bad = self.view.bad.first_in(span);
        if let (Some(lba), Some(_)) = (bad, before) {
            let result = Err(Fault::Medium(lba).into());
            return self.complete_without_task(IoCompletion { id: io.id, result, payload: io.payload });
        }
        // Blocks that are bad and just being written wait for the end of that.
        let lent = matches!(io.payload, Payload::None) && self.lends_memory() && bad.is_none();
        if !lent && matches!(io.payload, Payload::None) {
            // Asked for before the volume ceased to lend.
            let len = span.blocks as usize * self.view.geometry.logical as usize;
            match cx.pool.take_sg(MemoryClass::Solicited, len) {
                Some(memory) => io.payload = Payload::In(memory),
                None => return self.push_refusal(io, Refusal::Busy),
            }
        }
        if bad.is_some() {
            let work = TaskState::Steps(Box::new(ChunkedOp::stable_read(span, io.payload)));
            let slot = self.insert_task(io.id, io.epoch, work);
            return self.run_chunked_op(cx, slot);
        }
        self.forward_to_backend(cx, io, TaskState::Read { span, before, tries: 0, lent });
    }

    #[expect(clippy::unreachable, reason = "its callers give it a read")]
    pub(super) fn finish_read(&mut self, cx: &mut Cx<'_>, slot: u32, again: TaskState, done: IoCompletion) {
        let TaskState::Read { span, before, tries, lent } = again else { unreachable!("given a read") };
        let regions = self.lock_regions(span);
        let after = self.shared.guards().write_sequence_after_read(regions);
        let undisturbed = before.is_some() && before == after;
        if lent || undisturbed || done.result.is_err() {
            return self.complete_task(slot, done.result, done.payload);
        }
        if let (Some(lba), Some(_)) = (self.view.bad.first_in(span), after) {
            return self.complete_task(slot, Err(Fault::Medium(lba).into()), done.payload);
        }
        if tries >= READ_TRIES_MAX {
            let mut steps = ChunkedOp::stable_read(span, done.payload);
            steps.readmit(&self.view);
            self.task_mut(slot).work = TaskState::Steps(Box::new(steps));
            // It may wait for a guard, and who holds that for the home, which may have to answer a fence
            // first: so no fence waits for it.
            self.move_to_current_epoch(slot);
            return self.run_chunked_op(cx, slot);
        }
        self.task_mut(slot).work = TaskState::Read { span, before: after, tries, lent };
        let (id, epoch) = (self.backend_id(slot), self.task_mut(slot).epoch);
        self.backend.submit(cx, Io { id, epoch, op: Op::Read(span), payload: done.payload });
    }
}
