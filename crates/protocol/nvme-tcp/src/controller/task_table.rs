//! The tasks of a queue by tag and by CID, and their total memory.

use super::capsule_memory::CapsuleMemory;
use super::carried_data::CarriedDataTable;
use super::task::Task;
use crate::limits::QUEUE_ENTRIES_MAX;
use buf::{Pool, Time};
use stream::{Slab, Tag, TagIndex};

#[derive(Debug)]
pub(super) struct TaskTable {
    tasks: Slab<Task>,
    index: TagIndex,
    pub(super) capsules: CapsuleMemory,
    /// What came for tasks before they were withdrawn.
    pub(super) carried: CarriedDataTable,
    /// Read bytes that were allowed, and are not in a batch yet.
    pub(super) read_bytes: u64,
    /// Write bytes that were allowed, and have not come yet.
    pub(super) write_bytes: u64,
    /// How many tasks the host owes data for.
    owed: usize,
    /// Since when it has sent no stretch of that to its end.
    owed_since: Time,
}

impl TaskTable {
    pub(super) fn new(pool: &Pool, now: Time) -> Self {
        TaskTable {
            tasks: Slab::new(usize::from(QUEUE_ENTRIES_MAX)),
            index: TagIndex::new(1),
            capsules: CapsuleMemory::empty(pool),
            carried: CarriedDataTable::default(),
            read_bytes: 0,
            write_bytes: 0,
            owed: 0,
            owed_since: now,
        }
    }

    /// The queue has so many entries.
    pub(super) fn grow(&mut self, entries: u16) {
        self.index.grow(entries.into());
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn tags(&self) -> Vec<Tag> {
        self.tasks.iter().map(|(tag, _)| tag).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Tag, &Task)> {
        self.tasks.iter()
    }

    #[inline]
    pub(super) fn get(&self, tag: Tag) -> Option<&Task> {
        self.tasks.get(tag)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, tag: Tag) -> Option<&mut Task> {
        self.tasks.get_mut(tag)
    }

    /// The task with the carried data of all.
    pub(super) fn get_mut_with_carried(&mut self, tag: Tag) -> Option<(&mut Task, &mut CarriedDataTable)> {
        Some((self.tasks.get_mut(tag)?, &mut self.carried))
    }

    /// The task of this CID.
    #[inline]
    pub(super) fn find(&self, cid: u16) -> Option<Tag> {
        self.index.find(cid.into())
    }

    /// `None`: it is one too many.
    #[inline]
    pub(super) fn insert(&mut self, task: Task) -> Option<Tag> {
        let cid = task.cid;
        let tag = self.tasks.insert(task).ok()?;
        self.index.insert(cid.into(), tag);
        Some(tag)
    }

    /// Another command may have this CID.
    pub(super) fn free_cid(&mut self, cid: u16) {
        self.index.remove(cid.into());
    }

    /// Takes a task out of the table and of every count; gives its CID.
    pub(super) fn remove(&mut self, tag: Tag) -> Option<u16> {
        let task = self.tasks.get(tag)?;
        let cid = task.cid;
        // Another task may have its CID already (see `free_cid`).
        self.index.remove_tag(cid.into(), tag);
        if task.capsule {
            self.capsules.release_unit();
        }
        self.owed -= usize::from(task.owing);
        self.read_bytes = self.read_bytes.saturating_sub(u64::from(task.read_reserved));
        self.write_bytes = self.write_bytes.saturating_sub(u64::from(task.write_reserved));
        self.carried.remove(tag);
        self.tasks.discard(tag);
        Some(cid)
    }

    /// Whether a task may read `len` bytes, of `most` in all that are read or on their way.
    #[inline]
    pub(super) fn reserve_send_window(&mut self, tag: Tag, len: u32, kernel_bytes: u64, most: u32) -> bool {
        let Some(task) = self.tasks.get_mut(tag) else { return true };
        // Who asks again (its answer found no memory) keeps what it was allowed, and that counts once.
        let kept = task.read_reserved;
        let more = len.saturating_sub(kept);
        let outstanding = self.read_bytes + kernel_bytes;
        let allowed = outstanding == u64::from(kept) || outstanding + u64::from(more) <= u64::from(most);
        if allowed {
            self.read_bytes += u64::from(more);
            task.read_reserved += more;
        }
        allowed
    }

    /// Whether a task may ask for `len` bytes, of `most` in all that have not come.
    #[inline]
    pub(super) fn reserve_receive_window(&mut self, tag: Tag, len: u32, most: u32) -> bool {
        let Some(task) = self.tasks.get_mut(tag) else { return true };
        let outstanding = self.write_bytes;
        let allowed = outstanding == 0 || outstanding + u64::from(len) <= u64::from(most);
        if allowed {
            self.write_bytes += u64::from(len);
            task.write_reserved += len;
        }
        allowed
    }

    /// Keeps the count of tasks that the host owes data for.
    #[inline]
    pub(super) fn update_data_owed(&mut self, now: Time, tag: Tag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let owes = !task.r2ts.is_empty();
        if owes == task.owing {
            return;
        }
        task.owing = owes;
        if owes {
            if self.owed == 0 {
                self.owed_since = now;
            }
            self.owed += 1;
        } else {
            self.owed -= 1;
        }
    }

    /// The host has sent a stretch to its end. Bytes alone are no progress: a few of them now and then would hold
    /// memory for ever.
    pub(super) fn note_progress(&mut self, now: Time) {
        self.owed_since = now;
    }

    /// Since when the host has owed data, if it owes any.
    pub(super) fn data_owed_since(&self) -> Option<Time> {
        (self.owed > 0).then_some(self.owed_since)
    }
}
