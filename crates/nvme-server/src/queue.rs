//! A queue on this shard: its commands by tag, and what it counts.

use crate::spec::QueueSpec;
use crate::step::CommandKey;
use crate::word::Counters;

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) spec: QueueSpec,
    pub(crate) counters: Counters,
    /// The first half of a fused pair whose second must be the next command.
    pub(crate) half: Option<u32>,
    /// It is gone when its last command has ended.
    pub(crate) closing: bool,
    /// Commands that have not ended.
    pub(crate) live: u32,
    /// Slots by the index in the tag.
    slots: Vec<u32>,
}

impl Queue {
    pub(crate) fn new(spec: QueueSpec) -> Self {
        Queue { spec, counters: Counters::default(), half: None, closing: false, live: 0, slots: Vec::new() }
    }

    /// Where the command is, or was.
    #[inline]
    pub(crate) fn recall(&self, key: CommandKey) -> Option<u32> {
        self.slots.get(key.tag as u32 as usize).copied()
    }

    #[inline]
    pub(crate) fn remember(&mut self, key: CommandKey, slot: u32) {
        let at = key.tag as u32 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, u32::MAX);
        }
        self.slots[at] = slot;
        self.live += 1;
    }
}
