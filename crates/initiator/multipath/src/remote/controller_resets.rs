//! NVMe controllers that a path has lost are reset by a path that is up, where that can be: so what is in doubt need not
//! wait until the lost controller must have given up.

use buf::Cx;

use super::RemoteVolume;
use super::path_slot::SlotState;
use crate::path::{LostController, Path};

impl<P: Path> RemoteVolume<P> {
    /// Asks for what paths that are fenced have lost. The path that lost it may ask itself, once it is up again.
    pub(super) fn start_controller_resets(&mut self, cx: &mut Cx<'_>) {
        for index in 0..self.slots.len() {
            if !self.slots[index].fencing {
                continue;
            }
            for lost in self.slots[index].path.lost_controllers() {
                if self.resets.contains(&lost) {
                    continue;
                }
                let by = (0..self.slots.len()).find(|by| {
                    let slot = &mut self.slots[*by];
                    slot.state == SlotState::Up && slot.path.reset_controller(cx, &lost)
                });
                if let Some(by) = by {
                    self.resets.push(lost);
                    self.mark_pending(by);
                }
            }
        }
    }

    /// A path has had a controller reset, or could not.
    pub(super) fn handle_controller_reset(
        &mut self,
        cx: &mut Cx<'_>,
        controller: &LostController,
        is_reset: bool,
    ) {
        self.resets.retain(|asked| asked != controller);
        self.has_work = true;
        if !is_reset {
            return;
        }
        for index in 0..self.slots.len() {
            self.slots[index].path.handle_controller_reset(cx, controller);
            self.mark_pending(index);
        }
    }
}
