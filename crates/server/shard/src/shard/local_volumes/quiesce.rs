//! What keeps volumes from being quiesced, and what is saved of them then (see `shard::quiesce`).

use std::sync::Arc;

use volume::{RunningVolume, VolumeNotIdle};

use super::{LocalVolume, LocalVolumes};
use crate::message::VolumeWork;

impl LocalVolume {
    /// What keeps it from being quiesced.
    fn work(&self) -> Option<VolumeWork> {
        let operations = self.gate.in_flight_count();
        if operations > 0 || self.scheduled {
            return Some(VolumeWork::Operations(operations));
        }
        let why = self.home.as_ref()?.save_running(self.gate.shared_state()).err()?;
        Some(VolumeWork::State(why))
    }
}

impl LocalVolumes {
    /// A volume of peers, if there is one.
    pub(in crate::shard) fn first_remote_volume(&self) -> Option<Arc<str>> {
        self.volumes.iter().find(|(_, local)| local.remote.is_some()).map(|(_, local)| local.name.clone())
    }

    /// A volume of a gateway group.
    pub(in crate::shard) fn first_group_volume(&self) -> Option<Arc<str>> {
        self.volumes.iter().find(|(_, local)| local.group.is_some()).map(|(_, local)| local.name.clone())
    }

    /// A volume with operations, or whose state is being changed, and what keeps it from being quiesced.
    pub(in crate::shard) fn first_busy_volume(&self) -> Option<(Arc<str>, VolumeWork)> {
        self.volumes.iter().find_map(|(_, local)| Some((local.name.clone(), local.work()?)))
    }

    /// The state of the volumes whose home is here.
    pub(in crate::shard) fn running_volumes(
        &self,
    ) -> impl Iterator<Item = Result<RunningVolume, VolumeNotIdle>> + '_ {
        self.volumes
            .iter()
            .filter_map(|(_, local)| Some(local.home.as_ref()?.save_running(local.gate.shared_state())))
    }
}
