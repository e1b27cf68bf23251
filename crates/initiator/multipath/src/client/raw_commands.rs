//! Raw commands of a client's volumes: those of remote volumes have a target to go to.

use buf::Cx;
use volume::IoId;

use super::{Client, VolumeBackend, VolumeHandle};
use crate::path::Path;
use crate::raw_command::{RawCommand, RawCompletion};

impl<P: Path> Client<P> {
    /// Sends a raw command to a remote volume's target; it ends by [`Client::poll_raw_done`].
    ///
    /// # Errors
    /// The command comes back if too many are in work, or the volume has no target of its own.
    pub fn submit_raw(
        &mut self,
        cx: &mut Cx<'_>,
        volume: VolumeHandle,
        id: IoId,
        command: RawCommand,
    ) -> Result<(), RawCommand> {
        self.mark_pending(volume.0);
        match self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            Some(VolumeBackend::Remote(remote)) => remote.submit_raw(cx, id, command),
            Some(VolumeBackend::Stripe(_) | VolumeBackend::Local(..)) | None => Err(command),
        }
    }

    /// How a raw command of this volume ended.
    pub fn poll_raw_done(&mut self, volume: VolumeHandle) -> Option<RawCompletion> {
        match &mut self.slots.get_mut(volume.0)?.kind {
            VolumeBackend::Remote(remote) => remote.poll_raw_done(),
            VolumeBackend::Stripe(_) | VolumeBackend::Local(..) => None,
        }
    }

    /// Whether a volume has a target that raw commands can go to.
    pub fn takes_raw_commands(&self, volume: VolumeHandle) -> bool {
        matches!(self.slots.get(volume.0).map(|slot| &slot.kind), Some(VolumeBackend::Remote(_)))
    }

    /// Asks that a raw command end early. It still ends by [`Client::poll_raw_done`].
    pub fn cancel_raw(&mut self, cx: &mut Cx<'_>, volume: VolumeHandle, id: IoId) {
        if let Some(VolumeBackend::Remote(remote)) = self.slots.get_mut(volume.0).map(|slot| &mut slot.kind) {
            remote.cancel_raw(cx, id);
            self.mark_pending(volume.0);
        }
    }
}
