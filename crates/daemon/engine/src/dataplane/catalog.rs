//! What is served now: volumes by number, and the targets and subsystems that lead to them.
//!
//! Invariant: a number names one volume for as long as the daemon runs. Its slot in the shards' tables is
//! reused only when every shard has released the volume that had it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use shard::{Exports, GroupExports, OtherGateway};
use volume::{PortRenumbering, VolumeId};

use super::{
    catalog_volume::CatalogVolume,
    exports::{FixedSettings, VolumeExportInfo},
    group::JoinedGroup,
    volume_index::{VolumeIndex, VolumePlaces},
};
use crate::{
    EngineError,
    state::{StateDir, target_ports::TargetPortNumbers},
};
use config::{
    name::VolumeName,
    plan::{ExportPlan, Target},
};

/// What is served now.
#[derive(Debug, Default)]
pub struct Catalog {
    /// The volumes.
    pub volumes: VolumeIndex,
    /// Volumes that nothing leads to any more, while a shard may still have something of them out.
    pub leaving: BTreeMap<VolumeId, CatalogVolume>,
    /// The numbers that volumes are given.
    pub places: VolumePlaces,
    /// What leads to them.
    pub ways: ExportPlan,
    /// Targets that led to them and are stopped: the states of their paths are set all the same.
    pub stopped: Vec<Target>,
    /// The numbers of the ports of targets.
    pub target_ports: TargetPortNumbers,
    /// Of a gateway: the others of its group.
    pub gateways: Option<Vec<OtherGateway>>,
    /// How often exports were made of it: each makes hosts read the discovery log again.
    pub generation: u64,
}

impl Catalog {
    /// No volume yet, and these ways.
    pub fn of(ways: ExportPlan, target_ports: TargetPortNumbers) -> Self {
        Catalog { ways, target_ports, ..Catalog::default() }
    }

    /// Other ways lead to the volumes from now on.
    pub fn set_exports(&mut self, ways: ExportPlan) {
        self.stopped.extend(std::mem::replace(&mut self.ways, ways).targets);
        let running: HashSet<&str> = self.ways.targets.iter().map(|target| target.name.as_str()).collect();
        self.stopped.retain(|one| !running.contains(one.name.as_str()));
    }

    /// Numbers the ports of targets that came, durably.
    pub fn number_ports(
        &mut self,
        frame: &FixedSettings,
        state: &StateDir,
        group: Option<&JoinedGroup>,
    ) -> Result<(), EngineError> {
        let targets = &self.ways.targets;
        if let Some(group) = group {
            return self.target_ports.take_given(targets, |port| group.port_number(port).map(|port| port.0));
        }
        self.target_ports
            .assign_durably(targets, frame.port_numbers(), state)
            .map_err(EngineError::Unsupported)
    }

    /// The volume of that name.
    pub fn find(&self, name: &str) -> Option<(VolumeId, &CatalogVolume)> {
        self.volumes.find(name)
    }

    /// What has come of the numbers by which a volume was reached when an earlier release saved its record.
    pub fn port_renumbering(&self, volume: &VolumeName, frame: &FixedSettings) -> PortRenumbering {
        let leading: Vec<_> =
            self.ways.targets.iter().filter(|target| target.exports_volume(volume.as_str())).collect();
        self.target_ports.renumbering_for(&leading, frame.port_numbers())
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
        let mut exports = frame.build_exports(&self.ways, &self.target_ports, self.generation, number);
        let limiters = self.volumes.iter().filter_map(|(id, entry)| Some((id, entry.limiter.clone()?)));
        exports.volume_limits = limiters.collect();
        exports.group = self.gateways.as_ref().map(|gateways| {
            let volumes = self.volumes.iter().filter(|(_, entry)| entry.in_group).map(|(id, _)| id);
            GroupExports { volumes: volumes.collect(), gateways: gateways.clone() }
        });
        Arc::new(exports)
    }

    /// The volume of that name that is on its way out.
    pub fn leaving_volume(&self, name: &str) -> Option<VolumeId> {
        let mut leaving = self.leaving.iter();
        leaving.find(|(_, entry)| entry.name.as_str() == name).map(|(id, _)| *id)
    }

    /// Nothing leads to a volume any more; it stays until every shard has let it go.
    pub fn leave(&mut self, id: VolumeId) {
        if let Some(entry) = self.volumes.remove(id) {
            self.leaving.insert(id, entry);
        }
    }

    /// Every shard has let go a volume that leaves: its place is free.
    pub fn let_go(&mut self, id: VolumeId) -> Option<CatalogVolume> {
        let entry = self.leaving.remove(&id)?;
        self.places.release(id);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cpu_time::assert_grows_with_number,
        dataplane::{medium::Medium, sync_failures::SyncFailureNotes},
        state::{StateDir, identity::Identities},
        store::{ProbeNeeds, StorageInUse, Store},
    };
    use std::path::Path;

    use volume::SharedGateState;

    use config::{
        check,
        diagnostic::{Sink, SourceText},
        draft::Draft,
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
    fn a_volume_that_leaves_has_its_place_until_it_has_gone() {
        let mut catalog = Catalog::default();
        let (a, b) = (catalog.places.allocate_id().unwrap(), catalog.places.allocate_id().unwrap());
        catalog.volumes.insert(a, entry("a"));
        assert_eq!((a.table_slot(), b.table_slot(), catalog.find("a").map(|(id, _)| id)), (0, 1, Some(a)));
        // The delete of the first one failed: it is not served, and its operations are out.
        catalog.leave(a);
        assert_eq!(catalog.leaving_volume("a"), Some(a));
        assert!(catalog.find("a").is_none());
        let next = catalog.places.allocate_id().unwrap();
        assert_ne!(next.table_slot(), a.table_slot(), "somebody may still hold what is there");
        // Another one of its name is found, and it is not.
        catalog.volumes.insert(next, entry("a"));
        assert_eq!(catalog.find("a").map(|(id, _)| id), Some(next));
        assert!(catalog.let_go(a).is_some() && catalog.let_go(a).is_none());
        let next = catalog.places.allocate_id().unwrap();
        assert!(next.table_slot() == a.table_slot() && next != a, "the place is free, the number is new");
    }

    /// From a configuration to what the shards are told.
    fn check_open_number_and_export(volumes: usize) {
        let mut text = "[[portal]]\nprotocol = \"iscsi\"\naddress = \"127.0.0.1\"\n".to_owned();
        text += "[[portal]]\nprotocol = \"nvme\"\naddress = \"127.0.0.1\"\n";
        for at in 0..volumes {
            text += &format!("[[volume]]\nname = \"v{at}\"\nsource = \"null:1M\"\n");
        }
        for (target, all) in (0..volumes).collect::<Vec<_>>().chunks(250).enumerate() {
            let luns = all.iter().map(|at| format!("{{ lun = {}, volume = \"v{at}\" }}", at % 250));
            let luns = luns.collect::<Vec<_>>().join(", ");
            text += &format!("[[target]]\nname = \"iqn.2026-11.com.example:{target}\"\nluns = [{luns}]\n");
        }
        let (sink, mut draft) = (Sink::default(), Draft::default());
        config::read_text(&SourceText::new("f", text), Path::new("/"), false, &sink, &mut draft);
        let plan = check::resolve_draft(draft, &check::CommandLineOptions::default(), &sink);
        let (plan, _) = sink.into_result(plan).unwrap();
        let mut catalog = Catalog::of(plan.ways.clone(), TargetPortNumbers::default());
        let (mut identities, mut in_use) = (Identities::default(), StorageInUse::default());
        let medium = entry("one").medium;
        for volume in &plan.volumes {
            let probed = ProbeNeeds::for_known(volume, &identities).run();
            let store = Store::open_probed(volume, &mut identities, &in_use, probed).unwrap();
            in_use.add(&store);
            let id = catalog.places.allocate_id().unwrap();
            catalog.volumes.insert(id, CatalogVolume::of(&store, medium.clone(), SharedGateState::new(1)));
        }
        catalog.set_exports(plan.ways.clone());
        let exports = catalog.build_exports(&FixedSettings::of(&plan));
        let luns: Vec<u32> =
            exports.targets.iter().flat_map(|one| &one.luns).map(|lun| lun.volume.table_slot()).collect();
        assert_eq!((luns.len(), luns[1234], catalog.stopped.len()), (volumes, 1234, 0));
    }

    #[test]
    fn what_the_start_does_for_volumes_grows_with_their_number() {
        assert_grows_with_number(10_000, check_open_number_and_export);
    }
}
