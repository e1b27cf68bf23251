//! Operations that a backend does not end in time: a volume whose store may be out of reach has a limit,
//! [`SharedGateState::set_queue_timeout`](crate::SharedGateState::set_queue_timeout).
//!
//! Invariant: who submitted such an operation hears [`Fault::PathLost`] after that time, and nothing later. The
//! operation itself stays: its memory is the backend's, its regions exclude others and its epoch holds back
//! fences until the backend has ended it, because it may still change the medium. The backend is told that it is
//! cancelled, so that it asks the medium for nothing more: a write that is told as lost is not made again behind newer
//! data.

use std::time::Duration;

use buf::{Payload, Time};

use super::tasks::backend_id;
use super::{Gate, TaskState};
use crate::io::{Fault, IoCompletion};

/// How many operations of a gate may be overdue before it takes no others on. Each has memory for one operation
/// at most, so with operations of 1 MiB that is 32 MiB of a shard beyond what was in flight.
const OVERDUE_MAX: u32 = 32;

/// Which operations are overdue, and when to look for others.
#[derive(Debug, Default)]
pub(super) struct OverdueOperations {
    /// How many there are.
    count: u32,
    /// When an operation may be overdue next.
    due: Option<Time>,
}

impl OverdueOperations {
    /// Whether nothing more is taken on.
    pub(super) fn is_full(&self) -> bool {
        self.count >= OVERDUE_MAX
    }

    /// An operation was submitted.
    pub(super) fn watch(&mut self, now: Time, limit: Option<Duration>) {
        if let (None, Some(limit)) = (self.due, limit) {
            self.due = Some(now + limit);
        }
    }

    /// One of them has ended.
    pub(super) fn ended(&mut self) {
        self.count -= 1;
    }

    /// When to look next.
    pub(super) fn due(&self) -> Option<Time> {
        self.due
    }
}

impl Gate {
    /// Tells the end of operations that are overdue by now.
    pub(super) fn tell_overdue(&mut self) {
        let now = self.now;
        if self.overdue.due.is_none_or(|due| due > now) {
            return;
        }
        self.overdue.due = None;
        let Some(limit) = self.shared.queue_timeout() else { return };
        let mut parked = Vec::new();
        for (slot, entry) in (0..).zip(&mut self.tasks) {
            let Some(task) = entry.task.as_mut().filter(|task| !task.told) else { continue };
            // A sanitize has a time of its own, and nobody waits for its end.
            if matches!(&task.work, TaskState::Steps(steps) if steps.is_sanitize()) {
                continue;
            }
            let due = task.sent + limit;
            if due > now {
                self.overdue.due = Some(self.overdue.due.map_or(due, |other| other.min(due)));
                continue;
            }
            // Half an atomic write is not given up: its parts would be of two times.
            let mut cancels = true;
            match &mut task.work {
                TaskState::Parked { .. } => {
                    parked.push(slot);
                    continue;
                }
                TaskState::Steps(steps) => {
                    steps.fail(Fault::PathLost.into());
                    // What waits for a guard or for memory ends when it is tried next, which is now.
                    if !steps.is_outstanding() {
                        continue;
                    }
                    cancels = steps.cancel();
                }
                TaskState::Read { .. } | TaskState::Write { .. } | TaskState::Other | TaskState::Flush => {}
            }
            task.told = true;
            self.overdue.count += 1;
            if cancels {
                self.backend.cancel(backend_id(entry.generation, slot));
            }
            let done =
                IoCompletion { id: task.id, result: Err(Fault::PathLost.into()), payload: Payload::None };
            self.done.push_back((done, task.times.at_end(now)));
        }
        for slot in parked {
            self.fail_parked_task(slot, Fault::PathLost.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{World, requester};
    use super::*;
    use crate::backend::ShardId;
    use crate::fake_backend::{FakeBackend, FakeControls};
    use crate::io::{Durability, Epoch, Io, IoId, Op, Outcome, SanitizeKind, Span};
    use crate::owner_messages::{AbortScope, ChangeId, ViewUpdate};
    use crate::ram::{RamBackend, RamDisk};
    use crate::shared_gate_state::SharedGateState;
    use crate::view::View;

    const LIMIT: Duration = Duration::from_secs(20);

    fn held_gate() -> (World, FakeControls, Gate) {
        let disk = Arc::new(RamDisk::new(64, 64, 512, 4096));
        let (world, hand) = (World::new(), FakeControls::default());
        let backend = FakeBackend::new(RamBackend::new(disk.clone()), disk.geometry(), hand.clone());
        let shared = SharedGateState::new(1);
        shared.set_queue_timeout(LIMIT);
        let gate =
            Gate::new(ShardId(0), shared, View::without_reservations(disk.geometry()), Box::new(backend));
        hand.hold.set(true);
        (world, hand, gate)
    }

    fn submit(world: &mut World, gate: &mut Gate, id: u64, op: Op) {
        let payload = match op {
            Op::Write(..) | Op::WriteAtomic(_) => world.filled(&[id as u8; 512]),
            Op::CompareAndWrite(_) => world.filled(&[id as u8; 1024]),
            Op::Read(_) => world.empty(512),
            _ => Payload::None,
        };
        let io = Io { id: IoId(id), epoch: Epoch::default(), op, payload };
        gate.submit(&mut world.cx(), &requester(1), io);
        gate.resume(&mut world.cx());
    }

    fn ended(world: &mut World, gate: &mut Gate) -> Vec<(u64, Result<Outcome, crate::Failure>)> {
        gate.resume(&mut world.cx());
        std::iter::from_fn(|| gate.poll_done()).map(|done| (done.id.0, done.result)).collect()
    }

    /// The write may still land: until the backend has ended it a fence waits, and so do its blocks.
    #[test]
    fn what_is_overdue_is_told_once_and_holds_back_fences() {
        let (mut world, hand, mut gate) = held_gate();
        let lost = Err(Fault::PathLost.into());
        let at = Span { lba: 3, blocks: 1 };
        submit(&mut world, &mut gate, 1, Op::Write(at, Durability::Stable));
        submit(&mut world, &mut gate, 2, Op::CompareAndWrite(at));
        assert_eq!(gate.poll_timeout().map(|due| due.min(Time(0) + LIMIT)), gate.poll_timeout());
        world.now = Time(0) + LIMIT - Duration::from_millis(1);
        assert_eq!(ended(&mut world, &mut gate), []);
        world.now = Time(0) + LIMIT;
        assert_eq!(ended(&mut world, &mut gate), [(1, lost.clone()), (2, lost)]);
        assert_eq!(gate.in_flight_count(), 1, "the second has waited for the first, and is gone");
        gate.cancel(IoId(1));
        let standing = crate::VolumeState { epoch: Epoch(1), ..(**gate.view()).clone() };
        let (change, abort, view) = (ChangeId(1), AbortScope::Nobody, View::from(standing));
        gate.update_view(&ViewUpdate { change, view, drain: true, abort, notices: Vec::new(), asked: None });
        assert!(gate.poll_ack().is_none(), "the write may land yet");
        hand.hold.set(false);
        assert_eq!(ended(&mut world, &mut gate), [], "its end was told");
        assert!(gate.poll_ack().is_some());
        assert_eq!(gate.in_flight_count(), 0);
        assert_eq!(world.pool.usage().lent, 0);
        submit(&mut world, &mut gate, 1, Op::Read(at));
        assert_eq!(ended(&mut world, &mut gate), [(1, Ok(Outcome::Complete))]);
    }

    #[test]
    fn what_is_overdue_is_bounded() {
        let (mut world, hand, mut gate) = held_gate();
        let at = Span { lba: 3, blocks: 1 };
        for id in 0..u64::from(OVERDUE_MAX) {
            submit(&mut world, &mut gate, id, Op::Read(at));
        }
        world.now = Time(0) + LIMIT;
        assert_eq!(ended(&mut world, &mut gate).len(), OVERDUE_MAX as usize);
        submit(&mut world, &mut gate, 99, Op::Read(at));
        assert_eq!(ended(&mut world, &mut gate), [(99, Err(Fault::PathLost.into()))], "at once");
        hand.hold.set(false);
        assert_eq!(ended(&mut world, &mut gate), []);
        submit(&mut world, &mut gate, 100, Op::Read(at));
        assert_eq!(ended(&mut world, &mut gate), [(100, Ok(Outcome::Complete))]);
    }

    /// Its parts would be of two times, where the backend carries them out by themselves.
    #[test]
    fn an_atomic_write_is_told_and_not_given_up_halfway() {
        let at = Span { lba: 3, blocks: 1 };
        for (op, cancels) in [(Op::WriteAtomic(at), 0), (Op::Write(at, Durability::Stable), 1)] {
            let (mut world, hand, mut gate) = held_gate();
            submit(&mut world, &mut gate, 1, op);
            world.now = Time(0) + LIMIT;
            assert_eq!(ended(&mut world, &mut gate), [(1, Err(Fault::PathLost.into()))]);
            assert_eq!(hand.cancels.get(), cancels);
            hand.hold.set(false);
            assert_eq!(ended(&mut world, &mut gate), []);
            assert_eq!(gate.in_flight_count(), 0);
        }
    }

    /// A sanitize takes its time; what has no limit waits.
    #[test]
    fn a_sanitize_is_never_overdue() {
        let (mut world, hand, mut gate) = held_gate();
        submit(&mut world, &mut gate, 1, Op::Sanitize(SanitizeKind::BlockErase));
        world.now = Time(0) + 10 * LIMIT;
        assert_eq!(ended(&mut world, &mut gate), []);
        hand.hold.set(false);
        for _ in 0..10 {
            gate.resume(&mut world.cx());
        }
        assert_eq!(ended(&mut world, &mut gate), [(1, Ok(Outcome::Complete))]);
    }
}
