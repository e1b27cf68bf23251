//! The commands in execution, from their arrival to their one ending step.

use nvme::Status;
use volume::{IoId, Issuer, VolumeId};

use crate::job::Job;
use crate::step::CommandKey;

/// How many commands one shard executes at most; beyond it a command is to be tried again.
pub(crate) const TASKS_MAX: usize = 262_144;
/// Bits of a slot's generation. Numbers from 1 << 61 on are free for requests of admin commands.
const GENERATION: u32 = (1 << 29) - 1;

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Payload from the host.
    Data,
    /// The end of an operation.
    Io,
    /// An answer of a volume's home.
    VolumeRequest,
    /// The other half of a fused pair.
    Mate,
}

/// How a command ends whose work is not wanted any more, as soon as what it waits for is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It goes on.
    No,
    /// Without an answer.
    Silent,
    /// With this one.
    Status(Status),
}

impl Task {
    /// Where its operation is, if it has one.
    pub(crate) fn volume_of_io(&self) -> VolumeId {
        match &self.job {
            Job::FlushAll(all) => all.volume,
            _ => self.volume,
        }
    }
}

/// How a command counts in its queue's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedAs {
    /// Not at all.
    No,
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// A command.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) key: CommandKey,
    pub(crate) volume: VolumeId,
    pub(crate) nsid: u32,
    /// The first block that it names; 0 if it names none.
    pub(crate) lba: u64,
    /// How much the command moves, in bytes.
    pub(crate) bytes: u32,
    pub(crate) cid: u16,
    pub(crate) phase: Phase,
    pub(crate) tally: CountedAs,
    /// The host may only read this namespace.
    pub(crate) read_only: bool,
    pub(crate) ending: Ending,
    pub(crate) job: Job,
}

/// Commands by slot. An [`IoId`] carries slot and generation, so a late end finds nobody.
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

const _: () = assert!(size_of::<Slot>() <= 112, "tasks stay small");

impl Tasks {
    #[inline]
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

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn io_id(&self, at: u32) -> IoId {
        IoId::of(Issuer::Nvme, u64::from(self.slots[at as usize].generation) << 32 | u64::from(at))
    }

    #[inline]
    pub(crate) fn find_io(&self, id: IoId) -> Option<u32> {
        let at = id.0 as u32;
        let slot = self.slots.get(at as usize)?;
        let issued = IoId::of(Issuer::Nvme, u64::from(slot.generation) << 32 | u64::from(at));
        (issued == id && slot.task.is_some()).then_some(at)
    }

    /// The slot, if it still holds the command of this name.
    #[inline]
    pub(crate) fn check(&self, at: u32, key: CommandKey) -> Option<u32> {
        let task = self.slots.get(at as usize)?.task.as_ref()?;
        (task.key == key).then_some(at)
    }

    /// The command that the slot holds, if it holds one.
    pub(crate) fn holds(&self, at: u32) -> Option<&Task> {
        self.slots.get(at as usize)?.task.as_ref()
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn get(&self, at: u32) -> &Task {
        self.slots
            .get(at as usize)
            .and_then(|slot| slot.task.as_ref())
            .expect("a slot named by the server holds a task")
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Task {
        self.slots
            .get_mut(at as usize)
            .and_then(|slot| slot.task.as_mut())
            .expect("a slot named by the server holds a task")
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the server names a slot only while it holds a task")]
    pub(crate) fn remove(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1) & GENERATION;
        slot.task = None;
        self.free.push(at);
        let place = self.places[at as usize];
        self.live.swap_remove(place as usize);
        if let Some(moved) = self.live.get(place as usize) {
            self.places[*moved as usize] = place;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Task)> {
        self.live.iter().filter_map(|at| Some((*at, self.holds(*at)?)))
    }

    /// The commands for which `which` holds, by slot and name.
    pub(crate) fn select(&self, which: impl Fn(u32, &Task) -> bool) -> Vec<(u32, CommandKey)> {
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
    ) -> Vec<(u32, CommandKey)> {
        if nobody { Vec::new() } else { self.select(which) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueKey;

    fn task(tag: u64) -> Task {
        Task {
            key: CommandKey { queue: QueueKey(0), tag },
            volume: VolumeId(0),
            nsid: 1,
            lba: 0,
            bytes: 0,
            cid: 0,
            phase: Phase::Data,
            tally: CountedAs::No,
            read_only: false,
            ending: Ending::No,
            job: Job::Plain,
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
