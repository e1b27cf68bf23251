//! What is served now: volumes by number, and the targets and subsystems that lead to them.
//!
//! Invariant: a number names one volume for as long as the daemon runs. Its slot in the shards' tables is
//! reused only when every shard has released the volume that had it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use shard::Exports;
use volume::{PortRenumbering, SharedGateState, VolumeId};

use super::{
    exports::{FixedSettings, VolumeExportInfo},
    medium::Medium,
};
use crate::{
    EngineError,
    state::{StateDir, target_ports::TargetPortNumbers},
    store::Store,
};
use config::{
    name::VolumeName,
    plan::{ExportPlan, Target},
};

/// What is served now.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The volumes.
    pub volumes: BTreeMap<VolumeId, CatalogVolume>,
    /// Volumes that nothing leads to any more, while a shard may still have something of them out.
    pub leaving: BTreeMap<VolumeId, CatalogVolume>,
    /// How many numbers were given.
    given: u32,
    /// What leads to them.
    pub ways: ExportPlan,
    /// Targets that led to them and are stopped: the states of their paths are set all the same.
    pub stopped: Vec<Target>,
    /// The numbers of the ports of targets.
    pub target_ports: TargetPortNumbers,
    /// How often exports were made of it: each makes hosts read the discovery log again.
    pub generation: u64,
}

/// A volume that is served.
#[derive(Debug)]
pub struct CatalogVolume {
    /// Its name.
    pub name: VolumeName,
    /// What it stands on.
    pub medium: Medium,
    /// Write-protected by the configuration.
    pub read_only: bool,
    /// Its identity.
    pub uuid: volume::Uuid,
    /// What its gates share.
    pub shared: SharedGateState,
}

impl CatalogVolume {
    /// The entry of an open volume.
    pub fn of(store: &Store, medium: Medium, shared: SharedGateState) -> Self {
        CatalogVolume {
            name: store.volume.name.clone(),
            medium,
            read_only: store.volume.spec.read_only,
            uuid: volume::Uuid(*store.uuid.as_bytes()),
            shared,
        }
    }
}

impl Catalog {
    /// No volume yet, and these ways.
    pub fn of(ways: ExportPlan, target_ports: TargetPortNumbers) -> Self {
        Catalog { ways, target_ports, ..Catalog::default() }
    }

    /// Other ways lead to the volumes from now on.
    pub fn set_exports(&mut self, ways: ExportPlan) {
        let stays = |one: &Target| ways.targets.iter().any(|other| other.name == one.name);
        self.stopped.extend(std::mem::replace(&mut self.ways, ways.clone()).targets);
        self.stopped.retain(|one| !stays(one));
    }

    /// Numbers the ports of targets that came, durably.
    pub fn number_ports(&mut self, frame: &FixedSettings, state: &StateDir) -> Result<(), EngineError> {
        let targets = &self.ways.targets;
        self.target_ports
            .assign_durably(targets, frame.port_numbers(), state)
            .map_err(EngineError::Unsupported)
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<(VolumeId, &CatalogVolume)> {
        self.volumes.iter().find(|(_, entry)| entry.name.as_str() == name).map(|(id, entry)| (*id, entry))
    }

    /// What has come of the numbers by which a volume was reached when an earlier release saved its record.
    pub fn port_renumbering(&self, volume: &VolumeName, frame: &FixedSettings) -> PortRenumbering {
        self.target_ports.renumbering_for(&self.ways.targets, volume, frame.port_numbers())
    }

    /// What the exports say of a volume.
    pub fn known(&self, name: &VolumeName) -> Option<VolumeExportInfo> {
        let (id, entry) = self.find(name.as_str())?;
        Some(VolumeExportInfo { id, read_only: entry.read_only, uuid: entry.uuid })
    }

    /// What the shards are to know.
    pub fn build_exports(&mut self, frame: &FixedSettings) -> Arc<Exports> {
        self.generation += 1;
        let number = |name: &VolumeName| self.known(name);
        Arc::new(frame.build_exports(&self.ways, &self.target_ports, self.generation, number))
    }

    /// The volume of that name that is on its way out.
    pub fn leaving_volume(&self, name: &str) -> Option<VolumeId> {
        let mut leaving = self.leaving.iter();
        leaving.find(|(_, entry)| entry.name.as_str() == name).map(|(id, _)| *id)
    }

    /// A number that no volume ever had; `None` after four billion volumes.
    pub fn allocate_id(&mut self) -> Option<VolumeId> {
        let taken: BTreeSet<u32> =
            self.volumes.keys().chain(self.leaving.keys()).map(|id| id.table_slot()).collect();
        let place = (0..=u32::MAX).find(|place| !taken.contains(place))?;
        let life = self.given;
        self.given = life.checked_add(1)?;
        Some(VolumeId::new(place, life))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataplane::sync_failures::SyncFailureNotes,
        state::{StateDir, identity::Identities},
    };
    use config::{
        plan::{Volume, VolumeOrigin},
        spec,
    };

    fn entry(name: &str) -> CatalogVolume {
        let volume = Volume {
            name: VolumeName::parse(name).unwrap(),
            spec: spec::parse("null:1M").unwrap(),
            origin: VolumeOrigin::Created,
        };
        let store = Store::open(&volume, &mut Identities::default(), [].iter()).unwrap();
        let root = tempfile::tempdir().unwrap();
        let (notes, _) = SyncFailureNotes::of(Arc::new(StateDir::open(root.path()).unwrap()));
        let medium = Medium::of(&store, &[None], 1, (&notes, VolumeId::new(0, 0))).unwrap();
        CatalogVolume::of(&store, medium, SharedGateState::new(1))
    }

    #[test]
    fn no_number_is_given_twice_and_no_place_while_its_volume_leaves() {
        let mut catalog = Catalog::default();
        let mut seen = BTreeSet::new();
        let a = catalog.allocate_id().unwrap();
        catalog.volumes.insert(a, entry("a"));
        let b = catalog.allocate_id().unwrap();
        assert_eq!((a.table_slot(), b.table_slot()), (0, 1));
        // The delete of the first one failed: it is not served, and its operations are out.
        let left = catalog.volumes.remove(&a).unwrap();
        catalog.leaving.insert(a, left);
        assert_eq!(catalog.leaving_volume("a"), Some(a));
        assert!(catalog.find("a").is_none());
        seen.extend([a, b]);
        for _ in 0..5 {
            let next = catalog.allocate_id().unwrap();
            assert_ne!(next.table_slot(), a.table_slot(), "somebody may still hold what is there");
            assert!(seen.insert(next), "{next:?}");
        }
        catalog.leaving.clear();
        let next = catalog.allocate_id().unwrap();
        assert!(
            next.table_slot() == a.table_slot() && seen.insert(next),
            "the place is free, the number is new"
        );
        catalog.given = u32::MAX;
        assert_eq!(catalog.allocate_id(), None);
    }
}
