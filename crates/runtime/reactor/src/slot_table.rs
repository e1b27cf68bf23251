//! Slots for operations in flight: an operation and the address lists that the kernel reads, from the start
//! of an operation until it has come back. Slots and their lists are reused last-in-first-out, so nothing is
//! allocated per operation and the hot ones stay in cache.

/// A growing table of reusable slots. It is as long as the most that was ever out at once, which the
/// limits of the shard bound (two per link; the backends' queue depths for disks).
pub(crate) struct SlotTable<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> SlotTable<T> {
    pub(crate) fn new() -> Self {
        SlotTable { slots: Vec::new(), free: Vec::new() }
    }

    /// A slot for one operation.
    pub(crate) fn allocate(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(T::default());
            (self.slots.len() - 1) as u32
        })
    }

    /// The slot may be used again: nothing outside refers to it.
    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    #[expect(clippy::indexing_slicing, reason = "slots are numbered by `take`, and none is ever removed")]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut T {
        &mut self.slots[slot as usize]
    }

    /// How many slots are taken.
    pub(crate) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
