//! The tasks of a command server: commands that are being executed, from their arrival to their one ending step.

use crate::io::{IdSpace, IoId};

/// Bits of a slot's generation: an identifier space's numbers from 1 << 60 on are free for other names.
const GENERATION_MASK: u32 = (1 << 28) - 1;

/// What a [`TaskTable`] holds.
pub trait ServerTask {
    /// Names it for those who sent it.
    type Key: Copy + PartialEq;
    /// Which server executes it.
    const ID_SPACE: IdSpace;
    /// How many one shard executes at most.
    const TASKS_MAX: usize;

    /// Its name.
    fn key(&self) -> Self::Key;
}

/// Tasks by slot. An [`IoId`] carries slot and generation, so a late end finds nobody.
#[derive(Debug)]
pub struct TaskTable<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// The slots that hold one, in no order: what has ended costs nobody a look.
    live: Vec<u32>,
    /// Where each slot stands in `live`, if it holds one.
    places: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    task: Option<T>,
}

impl<T> Default for TaskTable<T> {
    fn default() -> Self {
        TaskTable { slots: Vec::new(), free: Vec::new(), live: Vec::new(), places: Vec::new() }
    }
}

impl<T: ServerTask> TaskTable<T> {
    /// Takes a task on, and says where; `None`: it is one too many.
    #[inline]
    pub fn insert(&mut self, task: T) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() < T::TASKS_MAX => {
                self.slots.push(Slot { generation: 0, task: None });
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

    /// The name of the operation of the task in a slot.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the server names a slot only while it holds a task")]
    pub fn io_id(&self, at: u32) -> IoId {
        io_id::<T>(self.slots[at as usize].generation, at)
    }

    /// The slot whose task has this operation.
    #[inline]
    pub fn slot_of_io(&self, id: IoId) -> Option<u32> {
        let at = id.0 as u32;
        let slot = self.slots.get(at as usize)?;
        (io_id::<T>(slot.generation, at) == id && slot.task.is_some()).then_some(at)
    }

    /// The slot, if it still holds the task of this name.
    #[inline]
    pub fn slot_if_key(&self, at: u32, key: T::Key) -> Option<u32> {
        let task = self.slots.get(at as usize)?.task.as_ref()?;
        (task.key() == key).then_some(at)
    }

    /// The task that a slot holds, if it holds one.
    pub fn try_get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.task.as_ref()
    }

    /// The task in a slot that holds one.
    #[inline]
    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub fn get(&self, at: u32) -> &T {
        self.slots
            .get(at as usize)
            .and_then(|slot| slot.task.as_ref())
            .expect("a slot named by the server holds a task")
    }

    /// The task in a slot that holds one, to be changed.
    #[inline]
    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub fn get_mut(&mut self, at: u32) -> &mut T {
        self.slots
            .get_mut(at as usize)
            .and_then(|slot| slot.task.as_mut())
            .expect("a slot named by the server holds a task")
    }

    /// Takes a task out. It is not given back, since it is large to move.
    #[inline]
    pub fn remove(&mut self, at: u32) {
        *self.free_slot(at) = None;
    }

    /// Takes a task out and gives it back.
    #[expect(clippy::expect_used, reason = "the server names a slot only while it holds a task")]
    pub fn take(&mut self, at: u32) -> T {
        self.free_slot(at).take().expect("a slot named by the server holds a task")
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the server names a slot only while it holds a task")]
    fn free_slot(&mut self, at: u32) -> &mut Option<T> {
        self.free.push(at);
        let place = self.places[at as usize];
        self.live.swap_remove(place as usize);
        if let Some(moved) = self.live.get(place as usize) {
            self.places[*moved as usize] = place;
        }
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        &mut slot.task
    }

    /// All tasks, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.live.iter().filter_map(|at| Some((*at, self.try_get(*at)?)))
    }

    /// The tasks for which `which` holds, by slot and name.
    pub fn tasks_matching(&self, which: impl Fn(u32, &T) -> bool) -> Vec<(u32, T::Key)> {
        let chosen = self.iter().filter(|(at, task)| which(*at, task));
        let mut chosen: Vec<_> = chosen.map(|(at, task)| (at, task.key())).collect();
        chosen.sort_unstable_by_key(|(at, _)| *at);
        chosen
    }

    /// The same, or nobody.
    pub fn tasks_matching_unless(&self, nobody: bool, which: impl Fn(u32, &T) -> bool) -> Vec<(u32, T::Key)> {
        if nobody { Vec::new() } else { self.tasks_matching(which) }
    }
}

#[inline]
fn io_id<T: ServerTask>(generation: u32, at: u32) -> IoId {
    IoId::in_space(T::ID_SPACE, u64::from(generation) << 32 | u64::from(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ServerTask for u64 {
        type Key = u64;
        const ID_SPACE: IdSpace = IdSpace::Nvme;
        const TASKS_MAX: usize = 1000;

        fn key(&self) -> u64 {
            *self
        }
    }

    /// An abort, or a change of a volume, looks at what is being executed: a burst that is over costs nobody anything.
    #[test]
    fn what_has_ended_is_not_looked_at_again() {
        let mut tasks = TaskTable::default();
        let looked = |tasks: &TaskTable<u64>| {
            let count = std::cell::Cell::new(0);
            let found = tasks.tasks_matching(|_, _| {
                count.set(count.get() + 1);
                true
            });
            assert!(found.is_sorted_by_key(|(at, _)| *at));
            assert!(found.iter().all(|(at, key)| tasks.get(*at) == key));
            (count.get(), tasks.live.len())
        };
        for tag in 0..1000 {
            assert_eq!(tasks.insert(tag), Some(tag as u32));
        }
        assert_eq!(tasks.insert(1000), None);
        assert_eq!(looked(&tasks), (1000, 1000));
        for at in (0..1000).filter(|at| at % 7 != 0) {
            tasks.remove(at);
        }
        assert_eq!(looked(&tasks), (143, 143));
        assert!(tasks.insert(1).is_some());
        for at in (0..1000).step_by(7) {
            assert_eq!(tasks.take(at), u64::from(at));
        }
        assert_eq!(looked(&tasks), (1, 1));
        assert!(tasks.tasks_matching_unless(true, |_, _| panic!("nobody is meant")).is_empty());
    }

    #[test]
    fn a_late_end_finds_nobody() {
        let mut tasks = TaskTable::default();
        let slot = tasks.insert(5_u64).unwrap();
        let id = tasks.io_id(slot);
        assert_eq!((tasks.slot_of_io(id), id.id_space()), (Some(slot), IdSpace::Nvme));
        tasks.remove(slot);
        assert_eq!(tasks.insert(6), Some(slot));
        assert_eq!(
            (tasks.slot_of_io(id), tasks.slot_if_key(slot, 5), tasks.slot_if_key(slot, 6)),
            (None, None, Some(slot))
        );
    }
}
