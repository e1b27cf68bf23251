//! Which command each operation is of that is with a volume.

use volume::IoId;

/// By the place of the server's task, which is the low half of an operation's name: as long as the most tasks that one
/// server of this shard ever had.
#[derive(Debug)]
pub(super) struct OperationCommands<C> {
    slots: Vec<Option<(IoId, C)>>,
}

impl<C> Default for OperationCommands<C> {
    fn default() -> Self {
        OperationCommands { slots: Vec::new() }
    }
}

impl<C: Copy> OperationCommands<C> {
    /// An operation goes to its volume.
    pub(super) fn insert(&mut self, id: IoId, command: C) {
        let at = id.0 as u32 as usize;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some((id, command));
        }
    }

    /// It has ended.
    pub(super) fn take(&mut self, id: IoId) -> Option<C> {
        let slot = self.slots.get_mut(id.0 as u32 as usize)?;
        slot.take_if(|(known, _)| *known == id).map(|(_, command)| command)
    }
}
