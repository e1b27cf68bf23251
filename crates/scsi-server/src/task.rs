//! The tasks that are in a task set, from their command to their one ending step.

use scsi::cdb::Command;
use volume::{IoId, VolumeId};

use crate::step::TaskKey;

/// How many tasks one shard executes at most; beyond it a command gets TASK SET FULL.
pub(crate) const TASKS_MAX: usize = 65_536;

/// What a task waits for.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Payload from the initiator.
    Data,
    /// The end of an operation.
    Io,
}

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) key: TaskKey,
    pub(crate) volume: VolumeId,
    /// Place in the nexus' list of LUNs.
    pub(crate) lun_at: usize,
    pub(crate) command: Command,
    /// Bytes that the initiator takes.
    pub(crate) data_in: u32,
    /// Bytes that the initiator sends.
    pub(crate) data_out: u32,
    pub(crate) phase: Phase,
    /// Ends without an answer as soon as what it waits for is back.
    pub(crate) aborted: bool,
}

/// Tasks by slot. An [`IoId`] carries slot and generation, so a late end finds nobody.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
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
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        self.slots[at as usize].task = Some(task);
        Some(at)
    }

    pub(crate) fn io_id(&self, at: u32) -> IoId {
        IoId(u64::from(self.slots[at as usize].generation) << 32 | u64::from(at))
    }

    pub(crate) fn find_io(&self, id: IoId) -> Option<u32> {
        let at = id.0 as u32;
        let slot = self.slots.get(at as usize)?;
        (slot.generation == (id.0 >> 32) as u32 && slot.task.is_some()).then_some(at)
    }

    /// The slot, if it still holds the task of this name.
    pub(crate) fn check(&self, at: u32, key: TaskKey) -> Option<u32> {
        let task = self.slots.get(at as usize)?.task.as_ref()?;
        (task.key == key).then_some(at)
    }

    pub(crate) fn get(&self, at: u32) -> &Task {
        self.slots[at as usize].task.as_ref().expect("a slot named by the server holds a task")
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Task {
        self.slots[at as usize].task.as_mut().expect("a slot named by the server holds a task")
    }

    pub(crate) fn remove(&mut self, at: u32) -> Task {
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(at);
        slot.task.take().expect("a slot named by the server holds a task")
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Task)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(at, slot)| slot.task.as_ref().map(|task| (at as u32, task)))
    }
}
