//! What is served now: volumes by number, and what leads to them.

use std::{collections::BTreeMap, sync::Arc};

use target::Exports;
use volume::VolumeId;

use super::{
    exports::{Frame, Known},
    medium::Medium,
};
use crate::{name::VolumeName, plan::Ways, store::Store};

/// What is served now.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The volumes.
    pub volumes: BTreeMap<VolumeId, Entry>,
    /// What leads to them.
    pub ways: Ways,
    /// How often exports were made of it: each makes hosts read the discovery log anew.
    pub generation: u64,
}

/// A volume that is served.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: VolumeName,
    /// What it stands on.
    pub medium: Medium,
    /// Write-protected by the configuration.
    pub read_only: bool,
    /// Its identity.
    pub uuid: volume::Uuid,
}

impl Entry {
    /// The entry of an open volume.
    pub fn of(store: &Store, medium: Medium) -> Self {
        Entry {
            name: store.volume.name.clone(),
            medium,
            read_only: store.volume.spec.read_only,
            uuid: volume::Uuid(*store.uuid.as_bytes()),
        }
    }
}

impl Catalog {
    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<(VolumeId, &Entry)> {
        self.volumes.iter().find(|(_, entry)| entry.name.as_str() == name).map(|(id, entry)| (*id, entry))
    }

    /// What the shards are to know.
    pub fn exports(&mut self, frame: &Frame) -> Arc<Exports> {
        self.generation += 1;
        let number = |name: &VolumeName| {
            let known =
                |(id, entry): (VolumeId, &Entry)| Known { id, read_only: entry.read_only, uuid: entry.uuid };
            self.find(name.as_str()).map(known)
        };
        Arc::new(frame.exports(&self.ways, self.generation, number))
    }

    /// The lowest number that is free.
    pub fn free(&self) -> VolumeId {
        let mut id = VolumeId(0);
        while self.volumes.contains_key(&id) {
            id.0 += 1;
        }
        id
    }
}
