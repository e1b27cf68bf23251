//! The tasks in a task set, from their command to their one ending step.

use scsi::cdb::Command;
use scsi::sense::Sense;
use volume::{IoId, VolumeId};

use crate::after_operation::AfterOperation;
use crate::order::{Attribute, TaskAttribute};
use crate::step::TaskKey;

/// How many tasks one shard executes at most; beyond it a command gets TASK SET FULL.
pub(crate) const TASKS_MAX: usize = 65_536;
/// Bits of a slot's generation: what is above stays free for other names (see `manage.rs`).
const GENERATION: u32 = (1 << 28) - 1;

/// A command as it arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The logical unit number as it stood in the request.
    pub lun: [u8; 8],
    /// The command descriptor block.
    pub cdb: &'a [u8],
    /// When to execute it.
    pub attr: TaskAttribute,
    /// Bytes that the initiator takes.
    pub data_in: u32,
    /// Bytes that the initiator sends.
    pub data_out: u32,
}

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its turn in the task set.
    Queued,
    /// Payload from the initiator.
    Data,
    /// The end of an operation.
    Io,
    /// An answer of a volume's home.
    VolumeRequest,
    /// A sanitize, which goes on without it if need be.
    Sanitize,
}

/// How a task ends whose work is not wanted any more, as soon as what it waits for is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It goes on.
    No,
    /// Without an answer.
    Silent,
    /// With TASK ABORTED: another nexus has ended it, and TAS is 1.
    Aborted,
    /// With CHECK CONDITION and this.
    Check(Sense),
}

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) key: TaskKey,
    pub(crate) volume: VolumeId,
    /// Where its operation is, if not on its own volume.
    pub(crate) io_volume: VolumeId,
    /// The LUN that it came by, and which making of it.
    pub(crate) lun: u16,
    pub(crate) serial: u32,
    pub(crate) attribute: Attribute,
    pub(crate) command: Command,
    /// Bytes that the initiator takes.
    pub(crate) data_in: u32,
    /// Bytes that the initiator sends.
    pub(crate) data_out: u32,
    /// The nexus may only read through this LUN.
    pub(crate) read_only: bool,
    pub(crate) phase: Phase,
    pub(crate) ending: Ending,
    pub(crate) job: AfterOperation,
}

impl Task {
    /// Whether it is the server's own, and no command of an initiator.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.job, AfterOperation::Sanitize(_) | AfterOperation::Background(_))
    }
}

/// Tasks by slot. An [`IoId`] carries slot and generation, so a late end finds nobody.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots that hold one, in no order: what has ended costs nobody a look.
    live: Vec<u32>,
    /// Where each slot stands in `live`, if it holds one.
    places: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    task: Option<Task>,
}

impl Tasks {
    pub(crate) fn insert(&mut self, task: Task) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() < TASKS_MAX => {
                self.slots.push(Slot::default());
                self.places.push(0);
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (slot, place) = (self.slots.get_mut(at as usize)?, self.places.get_mut(at as usize)?);
        slot.task = Some(task);
        *place = self.live.len() as u32;
        self.live.push(at);
        Some(at)
    }

    #[expect(clippy::indexing_slicing, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn io_id(&self, at: u32) -> IoId {
        IoId(u64::from(self.slots[at as usize].generation) << 32 | u64::from(at))
    }

    pub(crate) fn find_io(&self, id: IoId) -> Option<u32> {
        let at = id.0 as u32;
        let slot = self.slots.get(at as usize)?;
        (u64::from(slot.generation) == id.0 >> 32 && slot.task.is_some()).then_some(at)
    }

    /// The slot, if it still holds the task of this name.
    pub(crate) fn check(&self, at: u32, key: TaskKey) -> Option<u32> {
        let task = self.slots.get(at as usize)?.task.as_ref()?;
        (task.key == key).then_some(at)
    }

    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn get(&self, at: u32) -> &Task {
        self.slots
            .get(at as usize)
            .and_then(|slot| slot.task.as_ref())
            .expect("a slot named by the server holds a task")
    }

    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Task {
        self.slots
            .get_mut(at as usize)
            .and_then(|slot| slot.task.as_mut())
            .expect("a slot named by the server holds a task")
    }

    #[expect(
        clippy::indexing_slicing,
        clippy::expect_used,
        reason = "the server names a slot only while it holds a task"
    )]
    pub(crate) fn remove(&mut self, at: u32) -> Task {
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1) & GENERATION;
        self.free.push(at);
        let place = self.places[at as usize];
        self.live.swap_remove(place as usize);
        if let Some(moved) = self.live.get(place as usize) {
            self.places[*moved as usize] = place;
        }
        slot.task.take().expect("a slot named by the server holds a task")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Task)> {
        self.live.iter().filter_map(|at| Some((*at, self.slots.get(*at as usize)?.task.as_ref()?)))
    }

    /// The tasks for which `which` holds, by slot and name.
    pub(crate) fn select(&self, which: impl Fn(u32, &Task) -> bool) -> Vec<(u32, TaskKey)> {
        let chosen = self.iter().filter(|(at, task)| which(*at, task));
        let mut chosen: Vec<_> = chosen.map(|(at, task)| (at, task.key)).collect();
        chosen.sort_unstable_by_key(|(at, _)| *at);
        chosen
    }

    /// The same, or nobody.
    pub(crate) fn select_unless(
        &self,
        nobody: bool,
        which: impl Fn(u32, &Task) -> bool,
    ) -> Vec<(u32, TaskKey)> {
        if nobody { Vec::new() } else { self.select(which) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NexusKey;

    fn task(tag: u64) -> Task {
        Task {
            key: TaskKey { nexus: NexusKey(0), tag },
            volume: VolumeId(0),
            io_volume: VolumeId(0),
            lun: 0,
            serial: 0,
            attribute: Attribute::Simple,
            command: Command::TestUnitReady,
            data_in: 0,
            data_out: 0,
            read_only: false,
            phase: Phase::Queued,
            ending: Ending::No,
            job: AfterOperation::Plain,
        }
    }

    /// An abort, or a change of a volume, looks at what is being executed: a burst that is over costs nobody anything.
    #[test]
    fn what_has_ended_is_not_looked_at_again() {
        let mut tasks = Tasks::default();
        let looked = |tasks: &Tasks| {
            let count = std::cell::Cell::new(0);
            let found = tasks.select(|_, _| {
                count.set(count.get() + 1);
                true
            });
            assert!(found.is_sorted_by_key(|(at, _)| *at));
            assert!(found.iter().all(|(at, key)| tasks.get(*at).key == *key));
            (count.get(), tasks.live.len())
        };
        for tag in 0..1000 {
            assert_eq!(tasks.insert(task(tag)), Some(tag as u32));
        }
        assert_eq!(looked(&tasks), (1000, 1000));
        for at in (0..1000).filter(|at| at % 7 != 0) {
            tasks.remove(at);
        }
        assert_eq!(looked(&tasks), (143, 143));
        assert!(tasks.insert(task(1)).is_some());
        for at in (0..1000).step_by(7) {
            tasks.remove(at);
        }
        assert_eq!(looked(&tasks), (1, 1));
        assert!(tasks.select_unless(true, |_, _| panic!("nobody is meant")).is_empty());
    }
}
